"""Writing of rows to Parquet files on executors, with rows and dead letters of a task apart.

Rows are in one file, or in one for each partition of the table, and continue in another once a file
is large.

A task writes under a name of its own, with its attempt number, into the table's staging folder. The
driver commits the files of the attempts that Spark counts. A task reports its files as rows
(REPORT_DDL), so only the files have to be shared.

Files are synced before they are reported: a commit names only files that survive a power cut.

Does not depend on the driver's side, or on table formats.
"""

from __future__ import annotations

import json
import zlib
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from vdl.pipeline.decode import DEAD_ONLY, explain, range_end
from vdl.pipeline.file_stats import stats_of
from vdl.pipeline.partitioning import PartitionField, divided, to_json
from vdl.pipeline.positions import OffsetRange
from vdl.pipeline.read import HEADERS
from vdl.pipeline.storage import Storage, storage_of
from vdl.pipeline.table import FILE_BYTES

ROW_GROUP_ROWS = 128 * 1024
ROW_GROUP_BYTES = 64 << 20
"""Size of a row group in Arrow's form; rows are held until the group is written."""
GATHERED_ROWS = 20_000
GATHERED_BYTES = 64 << 20
"""Size of batches that are written together: Spark's are small (`session.SETTINGS`)."""
UTC = "UTC"
NO_SETTINGS: Mapping[str, str] = {}
OPEN_MAX = 64
"""Limit on open files of a task: the one longest without rows is finished early."""
HELD_BYTES = 256 << 20
"""Limit on rows held by all files of a task, in Arrow's form."""
REPORT_DDL = (
    "kind string, path string, rows long, seen long, bytes long, spans string, "
    "newest long, example string, stats string, partition string"
)
REPORT = pa.schema(
    [
        ("kind", pa.string()),
        ("path", pa.string()),
        ("rows", pa.int64()),
        ("seen", pa.int64()),
        ("bytes", pa.int64()),
        ("spans", pa.string()),
        ("newest", pa.int64()),
        ("example", pa.string()),
        ("stats", pa.string()),
        ("partition", pa.string()),
    ]
)
ROWS, DEAD = "rows", "dead"
DEAD_SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", HEADERS),
        ("error", pa.string()),
        ("offset_end", pa.int64()),
    ]
)
"""Schema of the dead-letter table.

`offset_end`: for a letter that stands for offsets without a readable record, the offset after them;
null for one record.
"""


@dataclass(frozen=True, slots=True)
class WriteSpec:
    """Settings of the tasks of a batch.

    `dead_there`: "topic/partition" → offsets whose dead letters an earlier attempt has committed,
    as `packed` returns them.
    """

    prefix: str
    rows_folder: str
    dead_folder: str
    topic: str
    """The job's only topic, or "" if the `_topic` column has it."""
    kinds: Mapping[str, str]
    dead_there: Mapping[str, bytes] = field(default_factory=dict)
    only: str = ""
    """ROWS or DEAD if the batches hold only such, without the columns of the others."""
    partition_by: tuple[PartitionField, ...] = ()
    """Partition fields of the rows' table."""
    file_bytes: int = FILE_BYTES
    storage: Mapping[str, str] = field(default_factory=dict)
    """Settings of the object store, for folders in one."""


def write_batches(batches: Iterator[pa.RecordBatch], spec: WriteSpec) -> Iterator[pa.RecordBatch]:
    """Write the batches; yield one report for each file."""
    task = task_name()
    rows, dead = FileRows(spec, task), DeadRows(spec, task)
    try:
        for batch in map(in_utc, gathered(batches)):
            good, bad = _split(batch, spec)
            if good is not None and good.num_rows:
                rows.add(good)
            if bad is not None and bad.num_rows:
                dead.add(bad)
        reports = [*rows.finish(), dead.finish()]
    except BaseException:
        rows.abandon()
        dead.abandon()
        raise
    found = [report for report in reports if report is not None]
    if found:
        yield pa.RecordBatch.from_pylist(found, schema=REPORT)


def gathered(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the same rows in larger batches, up to about GATHERED_ROWS and GATHERED_BYTES.

    Much of the cost of a batch does not depend on its number of rows.
    """
    waiting: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        waiting.append(batch)
        rows, size = rows + batch.num_rows, size + batch.nbytes
        if rows >= GATHERED_ROWS or size >= GATHERED_BYTES:
            yield from _as_one(waiting)
            waiting, rows, size = [], 0, 0
    yield from _as_one(waiting)


def _as_one(batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """Return one batch, unless one of its columns would be too large for its type."""
    if len(batches) < 2:
        return batches
    found: list[pa.RecordBatch] = pa.Table.from_batches(batches).combine_chunks().to_batches()
    return found


def in_utc(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the batch with its times in UTC, at the same moments.

    Arrow names the session's time zone, but files of one table, which may come from several
    sessions, must have one type.
    """
    if not any(
        pa.types.is_timestamp(f.type) and f.type.tz not in {None, UTC} for f in batch.schema
    ):
        return batch
    kinds = [
        pa.field(f.name, pa.timestamp(f.type.unit, UTC), f.nullable, f.metadata)
        if pa.types.is_timestamp(f.type) and f.type.tz is not None
        else f
        for f in batch.schema
    ]
    return batch.cast(pa.schema(kinds))


def _split(
    batch: pa.RecordBatch, spec: WriteSpec
) -> tuple[pa.RecordBatch | None, pa.RecordBatch | None]:
    """Return (the good rows without the columns of dead letters, the others)."""
    if spec.only == ROWS:
        return batch, None
    if spec.only == DEAD:
        return None, batch
    errors = batch.column("_error")
    names = [name for name in batch.schema.names if name not in DEAD_ONLY]
    if errors.null_count == len(errors):
        return batch.select(names), None
    is_good = pc.is_null(errors)
    return batch.select(names).filter(is_good), batch.filter(pc.invert(is_good))


def packed(offsets: Iterable[int]) -> bytes:
    """Return a set of offsets as compressed distances.

    Tasks receive it with secrets, and Spark writes to a file what is larger than a mebibyte.
    """
    ordered = np.sort(np.fromiter(offsets, np.int64))
    return zlib.compress(np.diff(ordered, prepend=0).tobytes())


def unpacked(data: bytes) -> frozenset[int]:
    distances = np.frombuffer(zlib.decompress(data), np.int64)
    return frozenset(np.cumsum(distances).tolist())


def _letters(
    bad: pa.RecordBatch, kinds: Mapping[str, str], there: Mapping[str, frozenset[int]]
) -> pa.RecordBatch:
    """Return dead letters in the columns of their table, without those that are there."""
    topics, partitions = bad.column("_dead_topic").to_pylist(), bad.column("_partition").to_pylist()
    offsets = bad.column("_offset").to_pylist()
    none: frozenset[int] = frozenset()
    wanted = [
        offset not in there.get(f"{topic}/{partition}", none)
        for topic, partition, offset in zip(topics, partitions, offsets, strict=True)
    ]
    bad = bad.filter(pa.array(wanted, pa.bool_()))
    errors = [
        explain(error, value, kinds)
        for error, value in zip(
            bad.column("_error").to_pylist(), bad.column("_value").to_pylist(), strict=True
        )
    ]
    columns = [
        bad.column(name).cast(DEAD_SCHEMA.field(n).type)
        for n, name in enumerate(
            ("_dead_topic", "_partition", "_offset", "_timestamp", "_key", "_value", "_headers")
        )
    ]
    ends = pa.array(map(range_end, errors), pa.int64())
    return pa.RecordBatch.from_arrays(
        [*columns, pa.array(errors, pa.string()), ends], schema=DEAD_SCHEMA
    )


def _spans(batch: pa.RecordBatch, topic: str) -> list[OffsetRange]:
    names = batch.schema.names
    if "_partition" not in names or "_offset" not in names:
        return []
    topics = batch.column("_topic") if "_topic" in names else pa.repeat(topic, batch.num_rows)
    return _ranges(topics, batch.column("_partition"), batch.column("_offset"))


def _dead_spans(letters: pa.RecordBatch) -> list[OffsetRange]:
    return _ranges(letters.column(0), letters.column(1), letters.column(2))


def _ranges(topics: pa.Array, partitions: pa.Array, offsets: pa.Array) -> list[OffsetRange]:
    table = pa.table({"t": topics, "p": partitions, "o": offsets})
    found = table.group_by(["t", "p"]).aggregate([("o", "min"), ("o", "max")]).to_pylist()
    return [OffsetRange(str(r["t"]), int(r["p"]), r["o_min"], r["o_max"] + 1) for r in found]


class FileRows:
    """Rows of a task: one file at a time for each partition."""

    def __init__(self, spec: WriteSpec, task: str) -> None:
        self._spec = spec
        self._task = task
        self._open: OrderedDict[tuple[Any, ...], _File] = OrderedDict()
        self._count = 0
        self._reports: list[dict[str, Any] | None] = []

    def add(self, batch: pa.RecordBatch) -> None:
        fields = self._spec.partition_by
        for key, rows in divided(batch, fields) if fields else [((), batch)]:
            file = self._open.get(key) or self._next(key)
            self._open.move_to_end(key)
            file.add(rows, _spans(rows, self._spec.topic))
            if file.written() >= self._spec.file_bytes:
                self._end(key)
            if len(self._open) > OPEN_MAX:
                self._end(next(iter(self._open)))
        if sum(file.held_bytes for file in self._open.values()) > HELD_BYTES:
            for file in self._open.values():
                file.flush()

    def _next(self, key: tuple[Any, ...]) -> _File:
        number = f"-{self._count:04d}" if self._count else ""
        path = f"{self._spec.rows_folder}/{self._spec.prefix}-{self._task}{number}.parquet"
        self._count += 1
        self._open[key] = _File(path, ROWS, self._spec.storage, key)
        return self._open[key]

    def _end(self, key: tuple[Any, ...]) -> None:
        self._reports.append(self._open.pop(key).finish())

    def finish(self) -> list[dict[str, Any] | None]:
        for key in list(self._open):
            self._end(key)
        return self._reports

    def abandon(self) -> None:
        for file in self._open.values():
            file.abandon()
        for report in self._reports:
            if report is not None:
                storage_of(report["path"], self._spec.storage).remove(report["path"])


class DeadRows:
    """Dead letters of a task: one file."""

    def __init__(self, spec: WriteSpec, task: str) -> None:
        self._spec = spec
        self._there: dict[str, frozenset[int]] | None = None
        path = f"{spec.dead_folder}/{spec.prefix}-{task}-dead.parquet"
        self._file = _File(path, DEAD, spec.storage)

    def add(self, bad: pa.RecordBatch) -> None:
        """Add decoded rows with an error. They have at least ORIGIN's columns and DEAD_ONLY."""
        if self._there is None:
            self._there = {place: unpacked(data) for place, data in self._spec.dead_there.items()}
        letters = _letters(bad, self._spec.kinds, self._there)
        self._file.seen += bad.num_rows
        if letters.num_rows:
            self._file.add(letters, _dead_spans(letters))

    def finish(self) -> dict[str, Any] | None:
        return self._file.finish()

    def abandon(self) -> None:
        self._file.abandon()


class _File:
    """One Parquet file, opened with its first rows."""

    def __init__(
        self,
        path: str,
        kind: str,
        storage: Mapping[str, str] = NO_SETTINGS,
        partition: tuple[Any, ...] = (),
    ) -> None:
        self._path = path
        self._partition = partition
        self._settings = storage
        self._storage: Storage | None = None
        self._file: Any = None
        self._told: list[pq.FileMetaData] = []
        self._kind = kind
        self._writer: Any = None
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_rows = self.held_bytes = 0
        self._rows = 0
        self.seen = 0
        """Number of dead letters, including those that an earlier attempt has committed."""
        self._spans: dict[tuple[str, int], OffsetRange] = {}
        self._newest = -1
        self._example = ""

    def add(self, batch: pa.RecordBatch, spans: list[OffsetRange]) -> None:
        if self._writer is None:
            self._storage = storage_of(self._path, self._settings)
            self._file = self._storage.create(self._path)
            self._writer = pq.ParquetWriter(
                self._file, batch.schema, compression="zstd", metadata_collector=self._told
            )
        for span in spans:
            key = (span.topic, span.partition)
            old = self._spans.get(key, span)
            self._spans[key] = OffsetRange(
                span.topic, span.partition, min(span.start, old.start), max(span.end, old.end)
            )
        self._rows += batch.num_rows
        self._note(batch)
        # Small batches would make small row groups, each with its own dictionaries.
        self._waiting.append(batch)
        self._waiting_rows += batch.num_rows
        self.held_bytes += batch.nbytes
        if self._waiting_rows >= ROW_GROUP_ROWS or self.held_bytes >= ROW_GROUP_BYTES:
            self.flush()

    def written(self) -> int:
        """Return the bytes written, without held rows."""
        return int(self._file.tell())

    def _note(self, batch: pa.RecordBatch) -> None:
        if self._kind == DEAD:
            row = batch.slice(0, 1).to_pylist()[0]
            self._example = self._example or (
                f"{row['topic']}/{row['partition']} offset {row['offset']}: {row['error']}"
            )
        elif "_timestamp" in batch.schema.names:
            newest = pc.max(batch.column("_timestamp").cast(pa.int64())).as_py()
            self._newest = max(self._newest, -1 if newest is None else newest // 1000)

    def flush(self) -> None:
        if self._waiting:
            table = pa.Table.from_batches(self._waiting)
            self._writer.write_table(table, row_group_size=ROW_GROUP_ROWS)
            self._waiting, self._waiting_rows, self.held_bytes = [], 0, 0

    def finish(self) -> dict[str, Any] | None:
        """Close and sync; return the report, or None if there is nothing to report."""
        if self._writer is None:
            return self._report(0, "") if self.seen else None
        self.flush()
        self._writer.close()
        self._file.close()
        assert self._storage is not None
        return self._report(self._storage.finish(self._path), self._path)

    def _report(self, size: int, path: str) -> dict[str, Any]:
        spans = [[s.topic, s.partition, s.start, s.end] for _, s in sorted(self._spans.items())]
        return {
            "kind": self._kind,
            "path": path,
            "rows": self._rows,
            "seen": self.seen,
            "bytes": size,
            "spans": json.dumps(spans),
            "newest": self._newest,
            "example": self._example,
            "stats": json.dumps(stats_of(self._told[0])) if path else "{}",
            "partition": json.dumps(to_json(self._partition)),
        }

    def abandon(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._file.close()
            assert self._storage is not None
            self._storage.remove(self._path)


def task_name() -> str:
    """Return a name of this attempt of this task, which no other has."""
    from pyspark import TaskContext

    context = TaskContext.get()
    if context is None:
        return "0-0"
    return f"{context.partitionId()}-{context.taskAttemptId()}"
