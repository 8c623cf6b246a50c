"""Decoding and writing of rows by the task that reads them.

Spark moves a row from the Python process that read it to the JVM, which decodes it, and to a Python
process that writes it: that is most of its cost. A job that writes decoded rows unchanged does not
need Spark for this. If a value has a form and types that can be decoded here to exactly Spark's
result, its row is written to a file at once. Doubtful values take Spark's path. A batch therefore
has the same rows and dead letters either way, only in other files.

A task returns the reports of its files, and the records in doubt. Of dead letters it writes those
that Spark would find too: unreadable values of a registry's schemas, tombstones, texts that are not
JSON objects at all.

A file is handled like those of `files.py`: it is named by its task attempt, synced before it is
reported, removed if the task fails, and committed by the driver if Spark counts the task.

Does not depend on the driver's side, or on table formats.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from vdl.pipeline.decode import DEAD, DROP, NO_VALUE, NOT_JSON, ORIGIN
from vdl.pipeline.files import DeadRows, FileRows, WriteSpec, task_name
from vdl.pipeline.json_columns import KINDS, JsonColumns, Unreadable
from vdl.pipeline.registered.avro_columns import PADDING, AvroColumns, Unfit
from vdl.pipeline.registered.errors import ValueUnreadable
from vdl.pipeline.registered.registry import shared_registry
from vdl.pipeline.registered.values import REGISTERED, Texts, with_texts

JSON, AVRO = "json", "avro"
FORMS = (JSON, AVRO)
PREFIX_BYTES = 5
SCHEMAS_MAX = 1_000
"""Limit on cached schemas of a registry in a process."""
SCHEMAS_OF_BATCH_MAX = 8
"""Limit on schemas of one batch; values of further ones take Spark's path."""
LEFT_BYTES_MAX = 4 << 20
"""Default: a batch has about this for each task, so it is given up if most values are in doubt."""
NOWHERE = WriteSpec("", "", "", "", {})
SETTINGS_THAT_DECODE = ("spark.sql.json.", "spark.sql.legacy.")
"""Prefixes of Spark settings that may change how Spark decodes a value."""


@dataclass(frozen=True, slots=True)
class Direct:
    """Settings of the tasks.

    `spec`: of one batch, NOWHERE before; `schema`: serialized Arrow schema of the rows;
    `registry`: settings, with their secrets; `is_utc`: times without a zone are in UTC;
    `tombstones`: treatment of records without a value.
    """

    form: str
    spec: WriteSpec
    schema: bytes
    is_utc: bool
    registry: Mapping[str, str] = field(default_factory=dict)
    tombstones: str = DEAD
    left_bytes_max: int = LEFT_BYTES_MAX
    """Limit on the records that a task returns, in Arrow's form."""


def plain_columns(fields: Sequence[Any], *, topics: int) -> Any:
    """Return the type of the rows of a schema's fields as `decode` returns them, without Spark.

    `topics`: number of topics of the job.
    """
    from pyspark.sql.types import StructType

    from vdl.pipeline.read import DDL

    names = ORIGIN if topics > 1 else ORIGIN[:-1]
    origin = StructType.fromDDL(", ".join(f"{n} {DDL[n.removeprefix('_')]}" for n in names))
    found = StructType()
    for one in (*fields, *origin.fields):
        found.add(one.name, one.dataType, nullable=True)
    return found


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


@dataclass(frozen=True, slots=True)
class Outcome:
    """Report of a task about its records.

    `reports`: of its files; `left`: the records it has not written, as an Arrow stream, or none;
    `is_given_up`: more was left than a task may return, and no file was written.
    """

    reports: Sequence[Mapping[str, Any]] = ()
    left: bytes = b""
    is_given_up: bool = False


def write_task(batches: Iterator[pa.RecordBatch], direct: Direct, texts: Texts | None) -> Outcome:
    """Write rows and sure dead letters of a task's records; return the reports and the rest.

    `texts`: how values of a registry's schemas are read that are in doubt; their records then have
    the column REGISTERED.
    """
    rows, dead = _Rows(direct), _SureLetters(direct)
    left: list[pa.RecordBatch] = []
    size = 0
    try:
        for batch in batches:
            rest = rows.add(batch)
            if rest is None:
                continue
            if texts is not None:
                (rest,) = with_texts(iter([rest]), texts)
            rest = dead.without(rest)
            if not rest.num_rows:
                continue
            left.append(rest)
            size += rest.nbytes
            if size > direct.left_bytes_max:
                rows.abandon()
                dead.abandon()
                return Outcome(is_given_up=True)
        reports = [*rows.finish(), *dead.finish()]
    except BaseException:
        rows.abandon()
        dead.abandon()
        raise
    return Outcome(reports, _stream_of(left))


def left_of(outcomes: Iterable[Outcome]) -> pa.Table | None:
    """Return the records that tasks have left, or None."""
    tables = [pa.ipc.open_stream(one.left).read_all() for one in outcomes if one.left]
    return pa.concat_tables(tables) if tables else None


def _stream_of(batches: Sequence[pa.RecordBatch]) -> bytes:
    if not batches:
        return b""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batches[0].schema) as stream:
        for batch in batches:
            stream.write_batch(batch)
    found: bytes = sink.getvalue().to_pybytes()
    return found


class _Rows:
    """Writer of the rows of a task that can be decoded here."""

    def __init__(self, direct: Direct) -> None:
        self._files = FileRows(direct.spec, task_name())
        self._schema = pa.ipc.read_schema(pa.py_buffer(direct.schema))
        wanted = pa.schema([f for f in self._schema if f.name not in ORIGIN])
        self._read = _reader(direct, wanted)

    def add(self, batch: pa.RecordBatch) -> pa.RecordBatch | None:
        """Write the rows of the values that are not in doubt; return the other records, if any."""
        found, sure = self._read(batch.column("value"))
        sure &= _are_records(batch)
        if sure.any():
            self._files.add(_with_origin(found, batch, sure, self._schema))
        return None if sure.all() else batch.filter(pa.array(~sure))

    def finish(self) -> list[dict[str, Any]]:
        return [report for report in self._files.finish() if report is not None]

    def abandon(self) -> None:
        self._files.abandon()


class _SureLetters:
    """Writer of the dead letters that Spark would find too."""

    def __init__(self, direct: Direct) -> None:
        self._files = DeadRows(direct.spec, task_name())
        self._tombstones = direct.tombstones
        schema = pa.ipc.read_schema(pa.py_buffer(direct.schema))
        own = pa.schema([f for f in schema if f.name not in ORIGIN])
        self._json = Unreadable(own) if direct.form == JSON else None

    def without(self, rest: pa.RecordBatch) -> pa.RecordBatch:
        """Write such records; return the others. Tombstones to be dropped are left out."""
        values = rest.column("value")
        is_record = pa.array(_are_records(rest))
        is_none = pc.and_(is_record, pc.is_null(values))
        if self._json is None:
            reason = pc.struct_field(rest.column(REGISTERED), "error")
        else:
            reason = pc.if_else(self._json.find(values), NOT_JSON, pa.scalar(None, pa.string()))
        reason = pc.if_else(is_record, reason, None)
        if self._tombstones == DEAD:
            reason = pc.if_else(is_none, NO_VALUE, reason)
        is_gone = is_dead = pc.is_valid(reason)
        if pc.any(is_dead).as_py():
            self._files.add(_as_dead(rest.filter(is_dead), reason.filter(is_dead)))
        if self._tombstones == DROP:
            is_gone = pc.or_(is_dead, is_none)
        return rest.filter(pc.invert(is_gone))

    def finish(self) -> list[dict[str, Any]]:
        report = self._files.finish()
        return [] if report is None else [report]

    def abandon(self) -> None:
        self._files.abandon()


def _as_dead(records: pa.RecordBatch, reason: pa.Array) -> pa.RecordBatch:
    """Return records in the columns that `decode` gives dead letters."""
    names = {"_dead_topic": "topic", "_partition": "partition", "_offset": "offset"}
    names |= {f"_{name}": name for name in ("timestamp", "key", "value", "headers")}
    columns = [records.column(name) for name in names.values()]
    return pa.RecordBatch.from_arrays([*columns, reason], [*names, "_error"])


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
        try:
            return _avro_columns(self._registry, schema_id, self._wanted.serialize().to_pybytes())
        except ValueUnreadable:
            return None


@lru_cache(SCHEMAS_MAX)
def _avro_columns(
    registry: tuple[tuple[str, str], ...], schema_id: int, wanted: bytes
) -> AvroColumns | None:
    """Return a decoder, or None if values of the schema take Spark's path.

    There they are read, or reported as bad. Raises ValueUnreadable, RegistryFailed.
    """
    schema = shared_registry(registry).schema(schema_id)
    if schema.kind != "AVRO" or schema.references:
        return None
    try:
        return AvroColumns(schema.text, pa.ipc.read_schema(pa.py_buffer(wanted)))
    except (Unfit, ValueError, KeyError, TypeError):
        return None
