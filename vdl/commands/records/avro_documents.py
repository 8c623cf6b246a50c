"""JSON documents as values of an Avro schema, the reverse of what `vdl consume` prints.

Bytes and fixed are base64, decimals strings or numbers, dates and times ISO 8601 (or the numbers of
Avro), enums their symbols. A union takes the first of its types that fits; members of a record that
are missing have their default.

Does not depend on a registry, or on how a value is encoded.
"""

from __future__ import annotations

import base64
import datetime
import decimal
from collections.abc import Callable, Mapping
from typing import Any

from vdl.commands.records.record_json import BadRecord

INT_BITS, LONG_BITS = 32, 64
_TIMES: Mapping[str, Callable[[str], object]] = {
    "date": datetime.date.fromisoformat,
    "time-millis": datetime.time.fromisoformat,
    "time-micros": datetime.time.fromisoformat,
    "timestamp-millis": datetime.datetime.fromisoformat,
    "timestamp-micros": datetime.datetime.fromisoformat,
    "local-timestamp-millis": datetime.datetime.fromisoformat,
    "local-timestamp-micros": datetime.datetime.fromisoformat,
}
"""Logical type -> reader of its ISO form."""


class AvroDocuments:
    """Converts documents to values that fastavro encodes by one schema."""

    def __init__(self, schema: Any) -> None:
        """Prepare for a schema, as JSON."""
        self._schema = schema
        self._named: dict[str, Any] = {}
        self._collect(schema, "")

    def value(self, document: object) -> Any:
        """Return the value of a document. Raises BadRecord."""
        return self._convert(document, self._schema, "value")

    def _collect(self, schema: Any, space: str) -> None:
        """Remember the named types, by name with and without namespace."""
        if isinstance(schema, list):
            for branch in schema:
                self._collect(branch, space)
        if not isinstance(schema, dict):
            return
        space = schema.get("namespace", space)
        if name := schema.get("name"):
            self._named[name] = self._named[f"{space}.{name}"] = schema
        for field in schema.get("fields", ()):
            self._collect(field["type"], space)
        for part in ("items", "values", "type"):
            self._collect(schema.get(part), space)

    def _convert(self, found: object, schema: Any, where: str) -> Any:
        if isinstance(schema, list):
            return self._one_of(found, schema, where)
        kind = schema["type"] if isinstance(schema, dict) else schema
        if isinstance(kind, list | dict):
            return self._convert(found, kind, where)
        if kind in self._named and kind not in _PLAIN:
            return self._convert(found, self._named[kind], where)
        logical = schema.get("logicalType", "") if isinstance(schema, dict) else ""
        if kind in ("record", "error"):
            return self._record(found, schema, where)
        if kind == "array" and isinstance(found, list):
            return [self._convert(one, schema["items"], f"{where}[]") for one in found]
        if kind == "map" and isinstance(found, dict):
            return {
                name: self._convert(one, schema["values"], f"{where}.{name}")
                for name, one in found.items()
            }
        if kind == "enum" and found in schema["symbols"]:
            return found
        if logical == "decimal":
            return _read(decimal.Decimal, str(found), kind, where)
        if kind in ("bytes", "fixed") and isinstance(found, str):
            return _read(lambda text: base64.b64decode(text, validate=True), found, kind, where)
        if logical in _TIMES and isinstance(found, str):
            return _read(_TIMES[logical], found, logical, where)
        if _fits(found, kind):
            return found
        raise BadRecord(f"{where}: expected {kind}")

    def _one_of(self, found: object, branches: list[Any], where: str) -> Any:
        problems = []
        for branch in branches:
            try:
                return self._convert(found, branch, where)
            except BadRecord as error:
                problems.append(str(error))
        raise BadRecord("; or ".join(problems) or f"{where}: an empty union")

    def _record(self, found: object, schema: Any, where: str) -> dict[str, Any]:
        if not isinstance(found, dict):
            raise BadRecord(f"{where}: expected an object")
        fields = {field["name"]: field for field in schema["fields"]}
        unknown = sorted(found.keys() - fields.keys())
        if unknown:
            raise BadRecord(f"{where}: no member {unknown[0]!r}; known are {', '.join(fields)}")
        missing = [name for name in fields if name not in found and "default" not in fields[name]]
        if missing:
            raise BadRecord(f"{where}.{missing[0]}: missing")
        # fastavro writes the default of a member that is left out.
        return {
            name: self._convert(found[name], field["type"], f"{where}.{name}")
            for name, field in fields.items()
            if name in found
        }


def _read(read: Callable[[str], Any], text: str, kind: str, where: str) -> Any:
    try:
        return read(text)
    except (ValueError, decimal.InvalidOperation):
        raise BadRecord(f"{where}: {text[:40]!r} is no {kind}") from None


def _is_number(found: object) -> bool:
    return isinstance(found, int | float) and not isinstance(found, bool)


def _is_integer(found: object, bits: int) -> bool:
    if not isinstance(found, int) or isinstance(found, bool):
        return False
    return -(1 << bits - 1) <= found < 1 << bits - 1


_PLAIN: Mapping[str, Callable[[object], bool]] = {
    "null": lambda found: found is None,
    "boolean": lambda found: isinstance(found, bool),
    "int": lambda found: _is_integer(found, INT_BITS),
    "long": lambda found: _is_integer(found, LONG_BITS),
    "float": _is_number,
    "double": _is_number,
    "string": lambda found: isinstance(found, str),
    "bytes": lambda found: False,
}
"""Primitive type -> True for documents that it takes as they are."""


def _fits(found: object, kind: str) -> bool:
    return kind in _PLAIN and _PLAIN[kind](found)
