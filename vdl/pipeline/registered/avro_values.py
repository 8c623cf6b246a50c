"""Conversion of Avro's binary form to JSON, by the writer's schema.

Bytes and fixed become base64, decimals strings with all their digits, dates and times ISO 8601, and
enums their symbols. A union becomes its value.
"""

from __future__ import annotations

import base64
import datetime
import json
from collections.abc import Callable
from io import BytesIO
from typing import Any

from vdl.pipeline.registered.errors import ValueUnreadable
from vdl.pipeline.registered.registry import Schema


def reader(schema: Schema) -> Callable[[bytes], str]:
    """Return a reader of values. Raises fastavro's exceptions for an invalid schema."""
    import fastavro

    named: dict[str, Any] = {}
    for text in schema.references.values():
        fastavro.parse_schema(json.loads(text), named_schemas=named)
    parsed = fastavro.parse_schema(json.loads(schema.text), named_schemas=named)

    def read(data: bytes) -> str:
        file = BytesIO(data)
        value = fastavro.schemaless_reader(file, parsed, None)
        if left := len(data) - file.tell():
            raise ValueUnreadable(f"{left} bytes follow the value")
        return json.dumps(value, default=_plain, ensure_ascii=False)

    return read


def _plain(value: Any) -> str:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, datetime.datetime | datetime.date | datetime.time):
        return value.isoformat()
    return str(value)
