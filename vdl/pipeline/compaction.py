"""Rewriting of many small files into few large ones; rows, order and columns stay the same.

A job that commits every second writes a file a second. Readers open each of them, so old files are
rewritten now and then into files of about `bytes_target`. How a table replaces the old files by the
new ones is the table's concern; this module handles files only.

Does not depend on Spark, on Kafka, or on table formats.
"""

from __future__ import annotations

import ctypes
import os
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar, runtime_checkable

import pyarrow as pa
import pyarrow.parquet as pq

from vdl.pipeline.deleted_rows import live_batches, read_positions
from vdl.pipeline.errors import PipelineError
from vdl.pipeline.file_columns import Column, in_columns, repeated, schema_in
from vdl.pipeline.storage import TOKEN_BYTES, Storage, storage_of
from vdl.pipeline.table import sync_folder

BYTES_TARGET = 128 << 20
RETAIN_HOURS = 168
BATCH_ROWS = 20_000
_AT_FDCWD = -100
_EXCHANGE = 2
File = TypeVar("File")


@dataclass(frozen=True, slots=True)
class Compacted:
    """Number of files that were replaced, that replace them, and that were removed."""

    before: int = 0
    after: int = 0
    removed: int = 0

    def __add__(self, other: Compacted) -> Compacted:
        return Compacted(
            self.before + other.before, self.after + other.after, self.removed + other.removed
        )


@runtime_checkable
class CompactingSink(Protocol):
    """Table whose files can be compacted while its job runs and readers read."""

    def compact(self, bytes_target: int) -> Compacted:
        """Compact a table that was opened. Raises PipelineError."""

    def vacuum(self, retain_hours: int) -> Compacted:
        """Remove files that no commit has named for `retain_hours`.

        Keep all that may be needed by a reader that began since, or by a run in progress.
        """


@dataclass(frozen=True, slots=True)
class Written:
    """New file."""

    path: str
    rows: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Source:
    """File to be read. `deletes`: file of its deleted rows, "" if it has none."""

    path: str
    deletes: str = ""


@dataclass(frozen=True, slots=True)
class Rewrite:
    """Input of one rewriting task.

    It writes files of about `bytes_target` into `folder`, whose names begin with `prefix`.
    `columns`: of an Iceberg table; without them, columns keep the names that they have in files.
    `shared`: columns with one value in all rows, which a file need not have.
    """

    sources: tuple[Source, ...]
    folder: str
    prefix: str
    bytes_target: int
    columns: tuple[Column, ...] = ()
    shared: tuple[tuple[str, Any], ...] = ()
    storage: Mapping[str, str] = field(default_factory=dict)


def bins(files: Sequence[tuple[File, int]], bytes_target: int) -> list[list[File]]:
    """Group files, given with their bytes, that are to be rewritten together.

    A group has at least two neighbours, each smaller than half of the target. A row is therefore
    rewritten only a few times.
    """
    found: list[list[File]] = [[]]
    room = bytes_target
    for file, size in files:
        if 2 * size >= bytes_target:
            continue
        if size > room:
            found.append([])
            room = bytes_target
        found[-1].append(file)
        room -= size
    return [group for group in found if len(group) > 1]


def rewrite(task: Rewrite) -> list[Written]:
    """Write all rows that are not deleted, in order, into new files, durably. A task.

    The columns are those of all files, in the widest of their types.
    """
    storage = storage_of(task.folder, task.storage)
    schemas = [pq.read_schema(storage.open(one.path)).remove_metadata() for one in task.sources]
    if task.columns:
        schemas = [schema_in(one, task.columns) for one in schemas]
    schema = pa.unify_schemas(schemas, promote_options="permissive")
    # Another attempt of this task writes other files.
    token = secrets.token_hex(TOKEN_BYTES)
    found: list[Written] = []
    rows = _rows(task, schema, storage)
    batch = next(rows, None)
    while batch is not None:
        path = f"{task.folder}/{task.prefix}-{token}-{len(found):04d}.parquet"
        count = 0
        with (
            storage.create(path) as file,
            pq.ParquetWriter(file, schema, compression="zstd") as writer,
        ):
            while batch is not None and (not count or file.tell() < task.bytes_target):
                writer.write_table(batch)
                count += batch.num_rows
                batch = next(rows, None)
        found.append(Written(path, count, storage.finish(path)))
    storage.sync_names([task.folder])
    return found


def _rows(task: Rewrite, schema: pa.Schema, storage: Storage) -> Iterator[pa.Table]:
    """Yield tables large enough for a row group and bounded in memory."""
    waiting: list[Any] = []
    rows = size = 0
    for one in task.sources:
        deleted = read_positions(one.deletes, storage)
        left = 0
        for batch in live_batches(one.path, deleted, BATCH_ROWS, storage):
            left += batch.num_rows
            if task.columns:
                batch = in_columns(batch, task.columns)
            waiting.append(_in_schema(pa.Table.from_batches([batch]), schema, dict(task.shared)))
            rows, size = rows + batch.num_rows, size + batch.nbytes
            if rows >= 128 * 1024 or size >= 64 << 20:
                yield pa.concat_tables(waiting)
                waiting, rows, size = [], 0, 0
        assert left + len(deleted) == _count(one.path, storage), (one, left, len(deleted))
    if rows:
        yield pa.concat_tables(waiting)


def _count(path: str, storage: Storage) -> int:
    with storage.open(path) as file:
        return int(pq.read_metadata(file).num_rows)


def _in_schema(table: pa.Table, schema: pa.Schema, shared: Mapping[str, Any]) -> pa.Table:
    columns = []
    for column in schema:
        if column.name in table.column_names:
            columns.append(table[column.name].cast(column.type))
        elif shared.get(column.name) is not None:
            columns.append(repeated(shared[column.name], column.type, table.num_rows))
        else:
            columns.append(pa.nulls(table.num_rows, column.type))
    return pa.table(columns, schema=schema)


def exchange(one: Path, other: Path) -> None:
    """Exchange the names of two folders atomically.

    Raises PipelineError if the file system does not support it.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    renamed = getattr(libc, "renameat2", None)
    if renamed is None:
        raise PipelineError(
            "this system cannot exchange two folders atomically, which compaction requires"
        )
    names = [os.fsencode(path) for path in (one, other)]
    if renamed(_AT_FDCWD, names[0], _AT_FDCWD, names[1], _EXCHANGE):
        reason = os.strerror(ctypes.get_errno())
        raise PipelineError(f"{one} and {other} cannot be exchanged: {reason}")
    for folder in {one.parent, other.parent}:
        sync_folder(folder)
