"""Decoding and writing of rows by the task that reads them.

Spark moves a row from the Python process that read it to the JVM, which decodes it, and to a Python
process that writes it: that is most of its cost. A job that writes decoded rows unchanged does not
need Spark for this. If a value has a form and types that can be decoded here to exactly Spark's
result, its row is written to a file at once. Doubtful values and dead letters take Spark's path,
and so does a report of each file, as a row that stands for no record. A batch therefore has the
same rows and dead letters either way, only in other files.

A file is handled like those of `files.py`: it is named by its task attempt, synced before it is
reported, removed if the task fails, and committed by the driver if Spark counts the task.

Does not depend on the driver's side, or on table formats.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from vdl.pipeline.decode import ORIGIN
from vdl.pipeline.files import FileRows, WriteSpec, task_name, written_row
from vdl.pipeline.json_columns import KINDS, JsonColumns
from vdl.pipeline.registered.avro_columns import PADDING, AvroColumns, Unfit
from vdl.pipeline.registered.errors import ValueUnreadable
from vdl.pipeline.registered.registry import shared_registry

JSON, AVRO = "json", "avro"
FORMS = (JSON, AVRO)
PREFIX_BYTES = 5
SCHEMAS_MAX = 1_000
"""Limit on cached schemas of a registry in a process."""
SCHEMAS_OF_BATCH_MAX = 8
"""Limit on schemas of one batch; values of further ones take Spark's path."""
SETTINGS_THAT_DECODE = ("spark.sql.json.", "spark.sql.legacy.")
"""Prefixes of Spark settings that may change how Spark decodes a value."""


@dataclass(frozen=True, slots=True)
class Direct:
    """Settings of the tasks.

    `schema`: serialized Arrow schema of the rows; `registry`: settings, with their secrets;
    `is_utc`: times without a zone are in UTC.
    """

    form: str
    spec: WriteSpec
    schema: bytes
    is_utc: bool
    registry: Mapping[str, str] = field(default_factory=dict)

    def to_text(self) -> str:
        return msgspec.json.encode(self).decode()

    @staticmethod
    def from_text(text: str) -> Direct:
        return msgspec.json.decode(text, type=Direct)


def can_write(form: str, schema: pa.Schema, settings: Iterable[str]) -> bool:
    """Return True if rows of an Arrow schema can be decoded here.

    `settings`: names of the settings that Spark was given.
    """
    names = schema.names
    own = [name for name in names if name not in ORIGIN]
    return (
        form in FORMS
        and len(set(names)) == len(names)
        and bool(own)
        and names[: len(own)] == own
        and all(schema.field(name).type in KINDS and schema.field(name).nullable for name in own)
        and not any(name.startswith(SETTINGS_THAT_DECODE) for name in settings)
    )


def written(batches: Iterator[pa.RecordBatch], direct: Direct) -> Iterator[pa.RecordBatch]:
    """Write rows as their records are read; yield the remaining records and a report."""
    rows = FileRows(direct.spec, task_name())
    schema = pa.ipc.read_schema(pa.py_buffer(direct.schema))
    read = _reader(direct, pa.schema([f for f in schema if f.name not in ORIGIN]))
    columns: Sequence[str] = ()
    try:
        for batch in batches:
            columns = batch.schema.names
            found, sure = read(batch.column("value"))
            sure &= _are_records(batch)
            if sure.any():
                rows.add(_with_origin(found, batch, sure, schema))
            if not sure.all():
                yield batch.filter(pa.array(~sure))
        reports = rows.finish()
    except BaseException:
        rows.abandon()
        raise
    for report in reports:
        if report is not None:
            yield written_row(json.dumps(report), columns)


Read = Any
"""Function from values to (columns of the surely decoded ones or more, mask of these)."""


def _reader(direct: Direct, wanted: pa.Schema) -> Read:
    if direct.form == JSON:
        found = JsonColumns(wanted, is_utc=direct.is_utc)
        return found.read
    return _AvroValues(tuple(sorted(direct.registry.items())), wanted).read


def _are_records(batch: pa.RecordBatch) -> Any:
    """Return the mask of records. Letters of the source have a header without a name."""
    headers = batch.column("headers")
    good = np.ones(batch.num_rows, bool)
    if headers.null_count == batch.num_rows or not headers.flatten().field("key").null_count:
        return good
    for n in np.flatnonzero(np.asarray(headers.is_valid())):
        good[n] = all(one["key"] is not None for one in headers[n].as_py())
    return good


def _with_origin(
    found: pa.Table, batch: pa.RecordBatch, sure: Any, schema: pa.Schema
) -> pa.RecordBatch:
    """Return decoded columns with the origins of their records, in the table's schema."""
    names = [f.name.removeprefix("_") for f in schema if f.name in ORIGIN]
    origin = batch.select(names)
    if not sure.all():
        origin = origin.filter(pa.array(sure))
    assert found.num_rows == origin.num_rows, (found.num_rows, origin.num_rows)
    columns = [
        origin.column(f.name.removeprefix("_")) if f.name in ORIGIN else _one(found.column(f.name))
        for f in schema
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _one(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


class _AvroValues:
    """Reader of values that name their schema in a registry."""

    def __init__(self, registry: tuple[tuple[str, str], ...], wanted: pa.Schema) -> None:
        self._registry = registry
        self._wanted = wanted

    def read(self, values: pa.Array) -> tuple[pa.Table, Any]:
        sure: Any = np.zeros(len(values), bool)
        length = np.asarray(pc.fill_null(pc.binary_length(values), 0))
        named = length >= PREFIX_BYTES
        if not named.any():
            return self._wanted.empty_table(), sure
        edges = np.frombuffer(values.buffers()[1], np.int32)[values.offset :]
        edges = edges[: len(values) + 1].astype(np.int64)
        data = np.frombuffer(b"".join([values.buffers()[2], PADDING]), np.uint8)
        where = np.flatnonzero(named)
        at = edges[where]
        ids = data[at[:, None] + np.arange(PREFIX_BYTES)].astype(np.int64)
        schema_id = ids[:, 1] << 24 | ids[:, 2] << 16 | ids[:, 3] << 8 | ids[:, 4]
        schema_id[ids[:, 0] != 0] = -1
        parts: list[tuple[Any, pa.Table]] = []
        for one in np.unique(schema_id)[:SCHEMAS_OF_BATCH_MAX]:
            columns = self._columns(int(one))
            if columns is None:
                continue
            chosen = where[schema_id == one]
            found, good = columns.read(
                data, edges[chosen] + PREFIX_BYTES, edges[chosen] + length[chosen]
            )
            sure[chosen[good]] = True
            parts.append((chosen[good], found if good.all() else found.filter(pa.array(good))))
        if not parts:
            return self._wanted.empty_table(), sure
        if len(parts) == 1:
            return parts[0][1], sure
        order = np.argsort(np.concatenate([places for places, _ in parts]), kind="stable")
        return pa.concat_tables([table for _, table in parts]).take(pa.array(order)), sure

    def _columns(self, schema_id: int) -> AvroColumns | None:
        if schema_id < 0:
            return None
        return _avro_columns(self._registry, schema_id, self._wanted.serialize().to_pybytes())


@lru_cache(SCHEMAS_MAX)
def _avro_columns(
    registry: tuple[tuple[str, str], ...], schema_id: int, wanted: bytes
) -> AvroColumns | None:
    """Return a decoder, or None if values of the schema take Spark's path.

    There they are read, or reported as bad. Raises RegistryFailed.
    """
    try:
        schema = shared_registry(registry).schema(schema_id)
    except ValueUnreadable:
        return None
    if schema.kind != "AVRO" or schema.references:
        return None
    try:
        return AvroColumns(schema.text, pa.ipc.read_schema(pa.py_buffer(wanted)))
    except (Unfit, ValueError, KeyError, TypeError):
        return None
