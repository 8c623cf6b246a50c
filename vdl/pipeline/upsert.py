"""Upserts: a table that holds one row for each key, the one of its last record.

Executors write what the records of a batch do to the table into staging files, a row for each
record, whose column OP says whether it is a row of its key (ROW), the end of it (DELETE), or the
end of all rows before it (TRUNCATE). The driver reads them, keeps what the last record of each key
says, and merges that into the table in one commit, with the batch's offsets. What it holds in
memory is a batch, which `source.max_rows` and `source.max_bytes` bound; files of the table that
cannot have one of its keys are not rewritten.

The order is that of offsets, so all records of a key must be in one partition, as Kafka's producers
put them there.

Must not know: Spark, Kafka, formats of tables.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from vdl.pipeline.errors import CommitConflict, PipelineError
from vdl.pipeline.storage import Storage
from vdl.pipeline.table import OP, ROW, TRUNCATE, Commit

PLACE = "__place"
STAGED = "_vdl/upserts"
"""The folder of staging files, below a table's: VACUUM and readers leave such names alone."""


@dataclass(frozen=True, slots=True)
class Changes:
    """What a batch does to a table. `rows`: the last record of each key, with OP, which is ROW or
    DELETE; `truncates`: whether all other rows of the table end."""

    rows: Any
    truncates: bool

    def kept(self) -> Any:
        """The rows of the table that there are afterwards, as they are in its files."""
        if not self.rows.num_rows:
            return self.rows
        return self.rows.filter(pc.equal(self.rows[OP], ROW)).drop_columns([OP])


def check_key(key: Sequence[str], schema: Any) -> None:
    """That rows of an Arrow schema can be told apart by a key. Raises PipelineError."""
    problems = []
    for name in key:
        if name not in schema.names:
            problems.append(f"there is no column {name}")
        elif not _is_key(schema.field(name).type):
            problems.append(f"{name} is {schema.field(name).type}")
    if problems:
        what = "a key is of whole numbers, texts, booleans, dates, times or decimals"
        raise PipelineError(f"sink.key: {'; '.join(problems)}: {what}")


def _is_key(kind: Any) -> bool:
    types = pa.types
    return bool(
        types.is_integer(kind)
        or types.is_string(kind)
        or types.is_boolean(kind)
        or types.is_date32(kind)
        or types.is_timestamp(kind)
        or types.is_decimal128(kind)
    )


def changes_of(commit: Commit, key: Sequence[str], storage: Storage) -> Changes:
    """Of the staging files of a batch. Raises CommitConflict where they were removed, as the first
    commit of a later run does, PipelineError where a truncation has no place in the order of the
    records."""
    try:
        tables = [_read(file.path, storage) for file in commit.files]
    except FileNotFoundError as error:
        raise CommitConflict(commit.files[0].path, "the files of this batch are gone") from error
    if not tables:
        return Changes(pa.table({}), truncates=False)
    order = [("_partition", "ascending"), ("_offset", "ascending")]
    found = pa.concat_tables(tables).sort_by(order)
    ends = pc.equal(found[OP], TRUNCATE)
    truncates = bool(pc.any(ends).as_py())
    if truncates:
        if len(commit.end.partitions()) > 1:
            (first, *_) = found.filter(ends).to_pylist()
            where = f"partition {first['_partition']} offset {first['_offset']}"
            raise PipelineError(
                f"{where}: the source's table was truncated, which has no place in the order of a "
                "topic of several partitions; nothing of this batch was written"
            )
        last = pc.max(pc.indices_nonzero(ends)).as_py()
        found = found.slice(last + 1)
    places = pa.array(range(found.num_rows), pa.int64())
    grouped = found.select(list(key)).append_column(PLACE, places).group_by(list(key))
    wanted = grouped.aggregate([(PLACE, "max")])[f"{PLACE}_max"]
    return Changes(found.take(wanted), truncates=truncates)


def _read(path: str, storage: Storage) -> Any:
    with storage.open(path) as file:
        return pq.read_table(file)


def staging_folder(path: str, job: str) -> str:
    return f"{path}/{STAGED}/{job}"


def leftovers(path: str, job: str, commit: Commit, storage: Storage) -> list[str]:
    """Staging files that are there now, of this batch and of runs that ended before: to be removed
    once the batch is committed. A run that is to begin finds this batch committed."""
    folder = staging_folder(path, job)
    found = {entry.path for entry in storage.entries(folder)}
    return sorted(found | {file.path for file in commit.files})


def required_nulls(rows: Any, required: Iterable[str]) -> list[str]:
    """Those of the columns that are NULL somewhere in rows, or not there."""
    return sorted(
        name
        for name in required
        if rows.num_rows and (name not in rows.column_names or rows[name].null_count)
    )
