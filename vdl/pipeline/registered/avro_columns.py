"""Decoding of values in Avro's binary form to Arrow columns, one field of all values at a time.

Supports records of primitive fields, each of which may also be null. The result for a field is its
form in JSON (`avro_values`) converted by Spark to the column's type. Values for which that is not
obvious, or that do not match their schema, are in doubt, and left to the path through JSON. So are
all values of any other schema (`Unfit`).

All values are in one buffer. A field is decoded at the places where the previous field ended.
Nothing is read beyond the buffer; reading beyond the end of a value is detected from the place that
was reached.

Does not depend on registries or on Spark.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from vdl.pipeline.columns import slices
from vdl.pipeline.varints import BYTES_MAX, Ints, varints

PADDING = bytes(16)
"""Bytes after the last value, so that a truncated number can be read."""
INTS = {pa.int8(): 8, pa.int16(): 16, pa.int32(): 32, pa.int64(): 64}
TIMESTAMP = pa.timestamp("us", tz="UTC")
TIME_US_MAX = 7_000_000_000_000_000
"""Limit on times, in the year 2191; later and negative ones are in doubt."""
DAYS_MAX = 80_000
MILLIS = {"timestamp-millis": 1_000, "timestamp-micros": 1}
Mask = Any


class Unfit(Exception):
    """Schema whose values cannot be read here."""


class Places:
    """Position of the reader in each value. `sure`: mask of the values not in doubt so far."""

    def __init__(self, data: Any, at: Ints, end: Ints) -> None:
        self.data = data
        self.at = at
        self._end = end
        self.sure: Mask = np.ones(len(at), bool)

    def doubt(self, good: Mask) -> None:
        self.sure &= good

    def varint(self, here: Mask) -> Ints:
        """Read a number of the values that have one here; 0 for the others."""
        value: Ints = np.zeros(len(self.at), np.int64)
        here = here & ~self._is_endless(here)
        found, behind = varints(self.data, self.at[here])
        self.sure[here] &= behind - self.at[here] < BYTES_MAX
        value[here] = found
        self.at[here] = behind
        self._stay()
        return value

    def _is_endless(self, here: Mask) -> Mask:
        """Return the mask of numbers that are too long, and mark their values as in doubt.

        `here`: mask of the values that have a number.
        """
        found: Mask = np.zeros(len(self.at), bool)
        found[here] = self.data[self.at[here]] > 127
        for n in range(1, BYTES_MAX):
            if not found.any():
                return found
            found[found] = self.data[self.at[found] + n] > 127
        self.sure &= ~found
        return found

    def skip(self, count: Ints | int, here: Mask) -> Ints:
        """Skip `count` bytes of the values that have them here; return where they began."""
        began = self.at.copy()
        self.at = self.at + np.where(here, count, 0)
        self._stay()
        return began

    def fixed(self, kind: str, here: Mask) -> Any:
        """Read little-endian numbers."""
        width = np.dtype(kind).itemsize
        began = self.skip(width, here)
        bytes_of = self.data[began[:, None] + np.arange(width)]
        return np.ascontiguousarray(bytes_of).view(kind)[:, 0]

    def _stay(self) -> None:
        """Keep positions within their values; a value that was read beyond its end is in doubt."""
        self.sure &= self.at <= self._end
        self.at = np.minimum(self.at, self._end)

    def finish(self) -> None:
        """Mark values with remaining bytes as in doubt."""
        self.sure &= self.at == self._end


Field = Callable[[Places, Mask], Any]
"""Reader of a field of the values that have one; its column is NULL for the others."""


class AvroColumns:
    """Decoder of one writer's schema, given as JSON, to the wanted columns. Raises Unfit."""

    def __init__(self, schema: str, wanted: pa.Schema) -> None:
        told = json.loads(schema)
        if not isinstance(told, Mapping) or told.get("type") != "record":
            raise Unfit("not a record")
        self._wanted = wanted
        self._fields: list[tuple[str, Callable[[Places], Any]]] = []
        for field in told["fields"]:
            place = wanted.get_field_index(field["name"])
            kind = wanted.field(place).type if place >= 0 else None
            self._fields.append((str(field["name"]), _nullable(field["type"], kind)))

    def read(self, data: Any, at: Ints, end: Ints) -> tuple[pa.Table, Mask]:
        """Return (the columns, mask of the rows not in doubt) of values at [at, end).

        `data`: an array of bytes followed by PADDING; the values are in ascending order.
        """
        places = Places(data, at.copy(), end)
        found = {name: read(places) for name, read in self._fields}
        places.finish()
        columns = []
        for field in self._wanted:
            column = found.get(field.name)
            if column is None:
                column = pa.nulls(len(at), field.type)
            columns.append(column)
        return pa.table(columns, schema=self._wanted), places.sure


def _nullable(told: Any, wanted: pa.DataType | None) -> Callable[[Places], Any]:
    """Return a reader of a field whose type may be a union with null. Raises Unfit."""
    if not isinstance(told, list):
        always = _field(told, wanted)
        return lambda places: always(places, np.ones(len(places.at), bool))
    kinds = [kind for kind in told if kind != "null"]
    if len(kinds) != 1 or len(told) > 2:
        raise Unfit("a union")
    inner, which = _field(kinds[0], wanted), told.index(kinds[0])

    def read(places: Places) -> Any:
        chosen = places.varint(np.ones(len(places.at), bool))
        places.doubt((chosen >= 0) & (chosen < len(told)))
        return inner(places, (chosen == which) & places.sure)

    return read


def _field(told: Any, wanted: pa.DataType | None) -> Field:
    """Return a reader of a type. Raises Unfit, also if conversion to the column is not obvious."""
    logical = told.get("logicalType", "") if isinstance(told, Mapping) else ""
    kind = told["type"] if isinstance(told, Mapping) else told
    if kind in {"int", "long"}:
        return _whole(logical, wanted)
    if kind in {"string", "bytes"}:
        if kind == "bytes" and wanted is not None:
            raise Unfit("bytes")
        return _text(logical, wanted)
    if kind in {"float", "double"}:
        return _number("<f4" if kind == "float" else "<f8", wanted)
    if kind == "boolean":
        return _boolean(wanted)
    if kind == "enum":
        return _enum([str(symbol) for symbol in told["symbols"]], wanted)
    raise Unfit(str(kind))


def _expect(wanted: pa.DataType | None, *kinds: pa.DataType) -> None:
    if wanted is not None and wanted not in kinds:
        raise Unfit(f"a column of {wanted}")


def _whole(logical: str, wanted: pa.DataType | None) -> Field:
    if not logical:
        _expect(wanted, *INTS)
    elif logical in MILLIS:
        _expect(wanted, TIMESTAMP)
    elif logical == "date":
        _expect(wanted, pa.date32())
    elif wanted is not None:
        raise Unfit(logical)

    def read(places: Places, here: Mask) -> Any:
        value = places.varint(here)
        if wanted is None:
            return None
        if wanted in INTS:
            edge = 1 << (INTS[wanted] - 1)
            good = (value >= -edge) & (value <= edge - 1)
        elif wanted == TIMESTAMP:
            good = (value >= 0) & (value <= TIME_US_MAX // MILLIS[logical])
        else:
            good = (value >= 0) & (value <= DAYS_MAX)
        places.doubt(good | ~here)
        value = np.where(good, value, 0)
        mask = ~(here & good)
        if wanted == TIMESTAMP:
            return pa.array(value * MILLIS[logical], pa.int64(), mask=mask).cast(wanted)
        if wanted in INTS:
            return pa.array(value, pa.int64(), mask=mask).cast(wanted)
        return pa.array(value.astype(np.int32), pa.int32(), mask=mask).cast(wanted)

    return read


def _text(logical: str, wanted: pa.DataType | None) -> Field:
    _expect(wanted, pa.string())
    if logical and wanted is not None:
        raise Unfit(logical)

    def read(places: Places, here: Mask) -> Any:
        length = places.varint(here)
        places.doubt(length >= 0)
        length = np.where(places.sure, length, 0)
        began = places.skip(length, here)
        if wanted is None:
            return None
        length = np.where(here & places.sure, places.at - began, -1)
        found = slices(pa.py_buffer(places.data), began, length)
        try:
            return found.cast(pa.string())
        except pa.ArrowInvalid:
            texts = [_decoded(value.as_py()) for value in found]
            texts_found = pa.array(texts, pa.string())
            places.doubt(np.asarray(texts_found.is_valid()) | ~here)
            return texts_found

    return read


def _decoded(value: bytes | None) -> str | None:
    try:
        return None if value is None else value.decode()
    except UnicodeDecodeError:
        return None


def _number(kind: str, wanted: pa.DataType | None) -> Field:
    _expect(wanted, pa.float64())

    def read(places: Places, here: Mask) -> Any:
        value = places.fixed(kind, here)
        if wanted is None:
            return None
        good = np.isfinite(value)
        places.doubt(good | ~here)
        value = np.where(good, value, 0).astype(np.float64)
        return pa.array(value, pa.float64(), mask=~(here & good))

    return read


def _boolean(wanted: pa.DataType | None) -> Field:
    _expect(wanted, pa.bool_())

    def read(places: Places, here: Mask) -> Any:
        value = places.fixed("u1", here)
        places.doubt((value <= 1) | ~here)
        return None if wanted is None else pa.array(value == 1, pa.bool_(), mask=~here)

    return read


def _enum(symbols: list[str], wanted: pa.DataType | None) -> Field:
    _expect(wanted, pa.string())

    def read(places: Places, here: Mask) -> Any:
        chosen = places.varint(here)
        good = (chosen >= 0) & (chosen < len(symbols))
        places.doubt(good | ~here)
        if wanted is None:
            return None
        where = pa.array(np.where(good, chosen, 0), pa.int64(), mask=~(here & good))
        return pa.array(symbols, pa.string()).take(where)

    return read
