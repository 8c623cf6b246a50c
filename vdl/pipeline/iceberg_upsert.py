"""Upserts into an Iceberg table: files that have a key of a batch are written again without it.

Which files can have one is asked of the table's own scan, which goes by the least and the largest
value of each file, and by its partition. Of these the columns of the key are read, and a file that
has none of the keys stays as it is. So a commit costs the files that it changes, and holds a batch
and the keys of one file in memory.

The new files are synced before a commit names them, as those of executors are.

Must not know: Spark, Kafka, how a job's offsets are kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.expressions import (
    AlwaysTrue,
    And,
    BooleanExpression,
    GreaterThanOrEqual,
    In,
    LessThanOrEqual,
)
from pyiceberg.manifest import DataFile as IcebergFile
from pyiceberg.table import Table

from vdl.pipeline.errors import PipelineError
from vdl.pipeline.iceberg_files import local_path
from vdl.pipeline.partitioning import PartitionField, divided
from vdl.pipeline.storage import Storage
from vdl.pipeline.upsert import Changes

VALUES_MAX = 200
"""Of a column, that PyIceberg compares one by one with what it knows of a file."""
BATCH_ROWS = 20_000
GROUP_ROWS, GROUP_BYTES = 128 * 1024, 64 << 20
"""Of rows in Arrow's form, which are held until their row group is written."""
NUMBER = "__n"


@dataclass(slots=True)
class Merged:
    """What a commit takes out of the table and brings to it: (path, value of each partition)."""

    old: list[IcebergFile] = field(default_factory=list)
    new: list[tuple[str, tuple[Any, ...]]] = field(default_factory=list)


class Merge:
    """Of the changes of a batch. `prefix`: of the names of new files, which nobody else has."""

    def __init__(
        self,
        changes: Changes,
        key: Sequence[str],
        fields: Sequence[PartitionField],
        storage: Storage,
        prefix: str,
    ) -> None:
        self._changes = changes
        self._key = list(key)
        self._fields = fields
        self._storage = storage
        self._prefix = prefix
        self._count = 0
        self._written: list[str] = []

    def write(self, table: Table) -> Merged:
        """The new files, durable but for their names, which nobody sees yet."""
        merged = Merged()
        if self._changes.truncates:
            merged.old = _files(table, AlwaysTrue())
        elif self._changes.rows.num_rows:
            keys = self._changes.rows.select(self._key)
            for file in _files(table, _wanted(keys)):
                self._without(file, keys, merged)
        for batch in self._changes.kept().combine_chunks().to_batches():
            for partition, part in divided(batch, self._fields) if self._fields else [((), batch)]:
                merged.new.append((self._put(iter([pa.Table.from_batches([part])])), partition))
        return merged

    def leave(self) -> None:
        """Not remove what was written: a commit that names it may have been made, or be made."""
        self._written.clear()

    def forget(self) -> None:
        """Remove what was written, as of a commit that came to nothing."""
        for path in self._written:
            self._storage.remove(path)
        self._written.clear()

    def _without(self, file: IcebergFile, keys: Any, merged: Merged) -> None:
        """Note a file that has some of the keys, and write what is left of it."""
        path = local_path(file.file_path)
        kept = self._kept(path, keys)
        if kept.all():
            return
        merged.old.append(file)
        if kept.any():
            partition = tuple(file.partition[n] for n in range(len(self._fields)))
            merged.new.append((self._put(self._rest(path, kept)), partition))

    def _kept(self, path: str, keys: Any) -> Any:
        """For each row of a file whether its key is none of these."""
        with self._storage.open(path) as opened:
            found = pq.ParquetFile(opened).read(columns=self._key)
        found = found.select(self._key).cast(keys.schema)
        count = found.num_rows
        numbered = found.append_column(NUMBER, pa.array(np.arange(count)))
        left = numbered.join(keys, self._key, join_type="left anti")[NUMBER]
        kept = np.zeros(count, dtype=bool)
        kept[left.to_numpy()] = True
        return kept

    def _rest(self, path: str, kept: Any) -> Iterator[Any]:
        """The rows of a file that stay, in groups that are worth a row group and fit in memory."""
        waiting: list[Any] = []
        rows = size = place = 0
        with self._storage.open(path) as opened:
            for batch in pq.ParquetFile(opened).iter_batches(BATCH_ROWS):
                part = batch.filter(pa.array(kept[place : place + batch.num_rows]))
                place += batch.num_rows
                waiting.append(part)
                rows, size = rows + part.num_rows, size + part.nbytes
                if rows >= GROUP_ROWS or size >= GROUP_BYTES:
                    yield pa.Table.from_batches(waiting)
                    waiting, rows, size = [], 0, 0
        if rows:
            yield pa.Table.from_batches(waiting)

    def _put(self, tables: Iterator[Any]) -> str:
        """One file of them; its path."""
        path = f"{self._prefix}-{self._count:04d}.parquet"
        self._count += 1
        self._written.append(path)
        first = next(tables)
        with (
            self._storage.create(path) as file,
            pq.ParquetWriter(file, first.schema, compression="zstd") as writer,
        ):
            writer.write_table(first)
            for table in tables:
                writer.write_table(table)
        self._storage.finish(path)
        return path


def _files(table: Table, wanted: BooleanExpression) -> list[IcebergFile]:
    """Data files that may have rows of this kind. Raises PipelineError where rows of them were
    deleted by others: to write the files again would bring these back."""
    found = {}
    for task in table.scan(row_filter=wanted).plan_files():
        if task.delete_files:
            what = "rows were deleted from it by others, which this sink does not read"
            raise PipelineError(f"{table.location()}: {what}")
        found[task.file.file_path] = task.file
    return [found[path] for path in sorted(found)]


def _wanted(keys: Any) -> BooleanExpression:
    """What is known of each column of keys by itself."""
    wanted: BooleanExpression = AlwaysTrue()
    for name in keys.column_names:
        values = pc.unique(keys[name])
        if len(values) <= VALUES_MAX:
            one: BooleanExpression = In(name, values.to_pylist())
        else:
            least = pc.min_max(values)
            one = And(
                GreaterThanOrEqual(name, least["min"].as_py()),
                LessThanOrEqual(name, least["max"].as_py()),
            )
        wanted = And(wanted, one)
    return wanted
