"""Conversion of values to JSON, each by the schema that it names.

A value is a zero byte, the id of its schema (four bytes, big-endian), and a payload in the schema's
form: Confluent's wire format. `decode` continues with the JSON, so a table's columns, rescued
members and dead letters are the same for every form.

    RecordBatch column of values ──▶ column of (text, error), one of which is NULL

Does not depend on tables or on jobs.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from vdl.pipeline.registered import avro_values, json_values, protobuf_values
from vdl.pipeline.registered.errors import ValueUnreadable
from vdl.pipeline.registered.registry import REGISTRIES_MAX, Registry, Schema, shared_registry

Read = Callable[[bytes], str]
"""Function from the bytes after the id to JSON.

Raises ValueUnreadable, and any exception of the library for bytes that do not match the schema.
"""

READERS: Mapping[str, tuple[str, Callable[[Schema], Read]]] = {
    "avro": ("AVRO", avro_values.reader),
    "protobuf": ("PROTOBUF", protobuf_values.reader),
    "json-schema": ("JSON", json_values.reader),
}
"""`decode.format` → the registry's name of such schemas, and the factory of their readers."""
FORMS = tuple(READERS)
_MAKERS = dict(READERS.values())
PREFIX_BYTES = 5
READERS_MAX = 1_000
"""Limit on cached schemas in a process; the registry's client caches the same number."""
TYPE = "struct<text:string,error:string>"
REGISTERED = "_registered"
"""Column of TYPE for a record's value."""
REGISTERED_DDL = f"`{REGISTERED}` {TYPE}"
DETAIL_MAX = 200


class Values:
    """Reader of the values of one form, or of all, by one registry."""

    def __init__(self, registry: Registry, form: str = "") -> None:
        self._registry = registry
        self._kind = READERS[form][0] if form else ""
        self._reader = lru_cache(READERS_MAX)(self._find_reader)

    def text(self, value: bytes) -> str:
        """Return a value as JSON. Raises ValueUnreadable, RegistryFailed."""
        if len(value) < PREFIX_BYTES or value[0]:
            raise ValueUnreadable("the value does not begin with a schema id")
        schema_id = int.from_bytes(value[1:PREFIX_BYTES], "big")
        found = self._reader(schema_id)
        if isinstance(found, str):
            raise ValueUnreadable(found)
        try:
            return found(value[PREFIX_BYTES:])
        except Exception as error:  # noqa: BLE001
            # Libraries raise exceptions of many kinds for malformed bytes.
            raise ValueUnreadable(
                f"the value is not valid for schema {schema_id}: {_told(error)}"
            ) from None

    def _find_reader(self, schema_id: int) -> Read | str:
        """Return a reader of values of this schema, or the reason why they cannot be read.

        The result is permanent, since a registry reuses no id and changes no schema. Raises
        ValueUnreadable if the registry does not know the id now, RegistryFailed.
        """
        schema = self._registry.schema(schema_id)
        make_reader = _MAKERS.get(schema.kind)
        if make_reader is None or self._kind not in ("", schema.kind):
            known = self._kind or ", ".join(_MAKERS)
            return f"schema {schema_id} is of kind {schema.kind}, not {known}"
        try:
            return make_reader(schema)
        except Exception as error:  # noqa: BLE001 - as above, for a schema
            return f"schema {schema_id} cannot be used: {_told(error)}"


@dataclass(frozen=True, slots=True)
class Texts:
    """Settings of tasks that add REGISTERED to the records they read.

    `registry`: settings of `registry.Registry`, with their secrets.
    """

    form: str
    registry: Mapping[str, str]

    def to_text(self) -> str:
        return json.dumps([self.form, dict(self.registry)])

    @staticmethod
    def from_text(text: str) -> Texts:
        return Texts(*json.loads(text))


def with_texts(batches: Iterator[Any], texts: Texts) -> Iterator[Any]:
    """Yield batches of records with the column REGISTERED. Raises RegistryFailed."""
    given = tuple(sorted(texts.registry.items()))
    for batch in batches:
        found = read_column(_values(given, texts.form), batch.column("value"))
        yield batch.append_column(REGISTERED, found)


@lru_cache(REGISTRIES_MAX)
def _values(settings: tuple[tuple[str, str], ...], form: str) -> Values:
    return Values(shared_registry(settings), form)


def json_texts(column: Any, settings: Mapping[str, str], form: str) -> Any:
    """Return a column of TYPE for a column of values; both members are NULL if there is no value.

    `settings`: those of `registry.Registry`, with their secrets.
    """
    import pyarrow as pa
    from pyspark.sql.functions import arrow_udf

    given = tuple(sorted(settings.items()))

    def read(values: Any) -> Any:
        return read_column(_values(given, form), values)

    # Spark reads the types themselves, which this module cannot name without importing pyarrow.
    read.__annotations__ = {"values": pa.Array, "return": pa.Array}
    return arrow_udf(read, TYPE)(column)


def read_column(values: Values, column: Any) -> Any:
    """Return Arrow's column of (text, error) for one of bytes. Raises RegistryFailed."""
    import pyarrow as pa

    texts: list[str | None] = []
    errors: list[str | None] = []
    for value in column:
        found = value.as_py()
        text, error = None, None
        if found is not None:
            try:
                text = values.text(found)
            except ValueUnreadable as problem:
                error = str(problem)
        texts.append(text)
        errors.append(error)
    columns = [pa.array(texts, pa.string()), pa.array(errors, pa.string())]
    return pa.StructArray.from_arrays(columns, ["text", "error"])


def _told(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return (lines[0] if lines else type(error).__name__)[:DETAIL_MAX]
