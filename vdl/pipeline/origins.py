"""Check that the rows of a batch have distinct origins.

A row that goes to a topic is identified by its topic, partition and offset and, if a step makes
several rows of one record, by its number among them, in `_row`. Readers of the topic take two rows
of one origin for a duplicate, and drop the second. So origins must be unique in the whole batch:
`SELECT ... UNION ALL SELECT ...` puts rows of one record far apart, into files of different tasks.

Memory: four bytes for each offset between a partition's first and last row, which a batch bounds,
and numbers of ROWS_MAX rows at a time, or of one record's.

Does not depend on Spark or Kafka.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from vdl.pipeline.errors import PipelineError
from vdl.pipeline.positions import OffsetRange
from vdl.pipeline.table import DataFile

READ_ROWS = 64_000
ROWS_MAX = 1_000_000

Array = Any  # numpy is one of the packages whose types are not checked


def check_origins(files: Sequence[DataFile]) -> None:
    """Raise PipelineError if two rows of these files have one origin, or a row has none.

    The files have the same columns, `_partition` and `_offset` among them.
    """
    bounds = _bounds(files)
    counts: dict[tuple[str, int], Array] = {
        place: np.zeros(r.count, np.uint32) for place, r in bounds.items()
    }
    for file in files:
        for place, offsets in _read(file):
            np.add.at(counts[place], offsets - bounds[place].start, 1)
    for place, found in sorted(counts.items()):
        if (found > 1).any():
            _check_numbers(files, bounds[place], found)


def _bounds(files: Sequence[DataFile]) -> dict[tuple[str, int], OffsetRange]:
    """Return, for each topic and partition, the range from the first row's offset to the last's."""
    found: dict[tuple[str, int], OffsetRange] = {}
    for file in files:
        for span in file.spans:
            place = (span.topic, span.partition)
            old = found.get(place, span)
            first, end = min(span.start, old.start), max(span.end, old.end)
            found[place] = OffsetRange(*place, first, end)
    return found


def _read(file: DataFile) -> Iterator[tuple[tuple[str, int], Array]]:
    """Yield the offsets of a file's rows, in pieces, each of one topic and partition."""
    stored = pq.ParquetFile(file.path)
    names = [n for n in ("_topic", "_partition", "_offset") if n in stored.schema_arrow.names]
    for batch in stored.iter_batches(READ_ROWS, columns=names):
        rows = pa.Table.from_batches([batch])
        if any(column.null_count for column in rows.columns):
            raise PipelineError(f"a row has no source offset: NULL in one of {names}")
        if len(file.spans) == 1:
            (span,) = file.spans
            yield (span.topic, span.partition), batch.column("_offset").to_numpy()
            continue
        if "_topic" not in names:
            rows = rows.append_column("_topic", pa.repeat(_only_topic(file), rows.num_rows))
        by = rows.group_by(["_topic", "_partition"]).aggregate([("_offset", "list")])
        for piece in by.to_batches():
            topics, partitions = piece.column("_topic"), piece.column("_partition")
            for n in range(piece.num_rows):
                offsets = piece.column("_offset_list")[n].values.to_numpy()
                yield (topics[n].as_py(), partitions[n].as_py()), offsets


def _only_topic(file: DataFile) -> str:
    (topic,) = {span.topic for span in file.spans}
    return topic


def _check_numbers(files: Sequence[DataFile], bounds: OffsetRange, counts: Array) -> None:
    """Raise PipelineError unless the rows of each record of a partition have distinct numbers."""
    what = f"several rows have the same source offset: {bounds.topic}/{bounds.partition}"
    rows = ds.dataset([file.path for file in files], format="parquet")
    if "_row" not in rows.schema.names:
        first = bounds.start + int(np.argmax(counts > 1))
        raise PipelineError(f"{what} offset {first}; number them in a column _row")
    mine = ds.field("_partition") == bounds.partition
    if "_topic" in rows.schema.names:
        mine &= ds.field("_topic") == bounds.topic
    offset = ds.field("_offset")
    for low, end in _windows(counts):
        if (counts[low:end] > 1).any():
            inside = (offset >= bounds.start + low) & (offset < bounds.start + end)
            named = rows.to_table(["_offset", "_row"], filter=mine & inside)
            times = named.group_by(["_offset", "_row"]).aggregate([([], "count_all")])
            for row in times.filter(ds.field("count_all") > 1).slice(0, 1).to_pylist():
                raise PipelineError(
                    f"{what} offset {row['_offset']} with the number {row['_row']} in _row"
                )


def _windows(counts: Array) -> Iterator[tuple[int, int]]:
    """Yield consecutive [start, end) with ROWS_MAX counted rows at most, or one record."""
    rows = np.cumsum(counts, dtype=np.int64)
    start, before = 0, 0
    while start < len(counts):
        end = max(start + 1, int(np.searchsorted(rows, before + ROWS_MAX, "right")))
        yield start, end
        start, before = end, int(rows[end - 1])
