"""Files of deleted rows: positions of rows in one data file that no longer exist.

Version 2 of Iceberg's format calls them position delete files. Each file written here is for one
data file, and a data file has at most one: the next deletion writes all positions again and removes
the older file from the table. The table's metadata therefore shows how much of a data file is
deleted, and a replaced data file takes its deleted rows with it. (Version 3 requires this for its
deletion vectors.)

A position is the number of a row in its file, from 0.

Does not depend on Spark, on Kafka, or on snapshots.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from vdl.pipeline.storage import Storage

PATH_ID, POSITION_ID = 2147483546, 2147483545
"""Ids of the columns in Iceberg's specification."""
PATH, POSITION = "file_path", "pos"
SCHEMA = pa.schema(
    [
        pa.field(PATH, pa.string(), nullable=False, metadata={"PARQUET:field_id": str(PATH_ID)}),
        pa.field(
            POSITION, pa.int64(), nullable=False, metadata={"PARQUET:field_id": str(POSITION_ID)}
        ),
    ]
)
GROUP_ROWS = 1 << 20
NONE: Any = np.empty(0, dtype=np.int64)


def write_positions(path: str, location: str, positions: Any, storage: Storage) -> int:
    """Write the deleted rows of the data file at `location`; return the file's bytes.

    The file's data is durable, its name is not. `positions`: an ascending array of int64.
    """
    with (
        storage.create(path) as file,
        pq.ParquetWriter(
            file, SCHEMA, compression="zstd", use_dictionary=[PATH],
            column_encoding={POSITION: "DELTA_BINARY_PACKED"},
        ) as writer,
    ):  # fmt: skip
        for start in range(0, len(positions), GROUP_ROWS):
            part = positions[start : start + GROUP_ROWS]
            columns = [pa.repeat(location, len(part)), pa.array(part, pa.int64())]
            writer.write_table(pa.Table.from_arrays(columns, schema=SCHEMA))
    return storage.finish(path)


def read_positions(path: str, storage: Storage) -> Any:
    """Return the positions of a file, ascending, each once; none for a `path` of "".

    The format allows other writers to repeat a position.
    """
    if not path:
        return NONE
    with storage.open(path) as file:
        found = pq.read_table(file, columns=[POSITION])[POSITION]
    return np.unique(found.combine_chunks().to_numpy(zero_copy_only=False))


def live_batches(path: str, deleted: Any, rows: int, storage: Storage) -> Iterator[Any]:
    """Yield the rows of a data file that are not deleted, in batches of up to `rows`."""
    place = 0
    with storage.open(path) as file:
        for batch in pq.ParquetFile(file).iter_batches(rows):
            end = place + batch.num_rows
            first, last = (int(np.searchsorted(deleted, edge)) for edge in (place, end))
            if first < last:
                kept = np.ones(batch.num_rows, dtype=bool)
                kept[deleted[first:last] - place] = False
                batch = batch.filter(pa.array(kept))
            place = end
            yield batch
