"""Process that commits numbers to a table, batch after batch, to be killed.

    python -m tests.pipeline.committer KIND PATH CATALOG COMMITS

KIND is a kind of table, or `iceberg-upsert`; CATALOG is an SQLite file or the address of a REST
catalog. It continues at the table's end, up to COMMITS batches in total. If another run was faster,
it starts again, as a supervised job does. A batch has ROWS numbers, those of its offsets; each has
one of KEYS keys.
"""

from __future__ import annotations

import sys
import uuid

import pyarrow as pa
import pyarrow.parquet as pq

from vdl.pipeline.errors import CommitConflict
from vdl.pipeline.open_table import open_place
from vdl.pipeline.positions import OffsetRange, Positions, TopicPositions
from vdl.pipeline.storage import Storage, resolved_settings, storage_of
from vdl.pipeline.table import OP, ROW, Commit, DataFile, Place, TableSink
from vdl.pipeline.table_columns import schema_lines
from vdl.pipeline.upsert import STAGED

ROWS, KEYS = 7, 61
UPSERT = "-upsert"
COLUMNS = pa.schema(
    [
        ("n", pa.int64()), ("key", pa.int64()), ("_partition", pa.int32()),
        ("_offset", pa.int64()),
    ]
)  # fmt: skip
TOPICS = {"t": ("id", 1)}


def at(offset: int) -> Positions:
    return Positions({"t": TopicPositions("id", {0: offset})})


def table_of(kind: str, path: str, catalog: str) -> TableSink:
    """Return the table that a job would use, with the store's settings from the environment."""
    settings = {"name": "vdl", "type": "rest", "uri": catalog}
    if "://" not in catalog:
        settings |= {"type": "sql", "uri": f"sqlite:///{catalog}"}
    key = ("key",) if kind.endswith(UPSERT) else ()
    kind = kind.removesuffix(UPSERT)
    catalog_settings = settings if kind == "iceberg" else {}
    storage = resolved_settings(path, {})
    place = Place(kind, path, storage, catalog_settings, "default.t", key=key)
    return open_place(place, "job")


def commit_next(table: TableSink, storage: Storage, run: str, first: int) -> int:
    """Commit a batch of the numbers from `first` on; return the number after it."""
    end = first + ROWS
    name = f"{table.staging(run)}/job-{run}-{first}-0.parquet"
    numbers = list(range(first, end))
    with storage.create(name) as file:
        keys = [number * number % KEYS for number in numbers]
        rows = pa.table([numbers, keys, [0] * ROWS, numbers], schema=COLUMNS)
        if STAGED in name:
            rows = rows.append_column(OP, pa.array([ROW] * ROWS))
        pq.write_table(rows, file)
    span = (OffsetRange("t", 0, first, end),)
    found = DataFile(name, ROWS, storage.finish(name), span)
    lines = schema_lines(COLUMNS)
    table.commit(Commit("job", run, 0, at(first), at(end), ROWS, 0, (found,), lines), COLUMNS)
    return end


def commit_all(kind: str, path: str, catalog: str, commits: int) -> None:
    storage = storage_of(path, resolved_settings(path, {}))
    while True:
        run = uuid.uuid4().hex[:12]
        table = table_of(kind, path, catalog)
        first = table.open(TOPICS).offset("t", 0) or 0
        try:
            while first < commits * ROWS:
                first = commit_next(table, storage, run, first)
                print(first, flush=True)
        except CommitConflict:
            print("conflict", flush=True)
            continue
        return


if __name__ == "__main__":
    commit_all(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))
