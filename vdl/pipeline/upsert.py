"""Upserts: a table that holds one row for each key, that of the key's last record.

Executors write the effects of a batch's records to staging files, one row for each record. Its
column OP has the effect: a row of its key (ROW), the deletion of that row (DELETE), or the deletion
of all rows before it (TRUNCATE). The effect of the last record of each key is then merged into the
table in one commit, with the batch's offsets.

Records are ordered by offset, so all records of a key should be in one partition, where Kafka's
producers put them. The partitions of the source then divide a batch into parts without common keys,
and `reduce_part` reduces one part to the last record of each key. It is a task; it holds its part
in memory, and `source.max_rows` and `source.max_bytes` bound the batch. If parts do have a key in
common, as after partitions were added to a topic, the batch is reduced as one part.

Does not depend on Spark, on Kafka, or on table formats.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from vdl.pipeline.errors import CommitConflict, PipelineError
from vdl.pipeline.partitioning import PartitionField, divided
from vdl.pipeline.storage import TOKEN_BYTES, Storage, storage_of
from vdl.pipeline.table import OP, ROW, TRUNCATE, Commit
from vdl.pipeline.tasks import groups

PLACE = "__place"
STAGED = "_vdl/upserts"
"""Folder of staging files, below a table's: VACUUM and readers ignore such names."""
GONE = "the files of this batch are missing"
PART_ROWS = 250_000
"""Rows of a batch that one task reduces, if the source has several partitions."""
VALUES_MAX = 200
"""Limit on known values of a key column for the search of files.

Beyond it only the minimum and maximum are used.
"""


@dataclass(frozen=True, slots=True)
class Changes:
    """Effect of a batch on a table.

    `rows`: the last record of each key, with OP, which is ROW or DELETE; `truncates`: all other
    rows of the table are deleted.
    """

    rows: Any
    truncates: bool

    def kept(self) -> Any:
        """Return the rows that the batch leaves in the table, as they are in its files."""
        if not self.rows.num_rows:
            return self.rows
        return self.rows.filter(pc.equal(self.rows[OP], ROW)).drop_columns([OP])


def check_key(key: Sequence[str], schema: Any) -> None:
    """Check that a key can identify rows of an Arrow schema. Raises PipelineError."""
    problems = []
    for name in key:
        if name not in schema.names:
            problems.append(f"column {name} does not exist")
        elif not _is_key(schema.field(name).type):
            problems.append(f"{name} is {schema.field(name).type}")
    if problems:
        what = "a key has integers, strings, booleans, dates, times or decimals"
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
    """Return the combined effect of a batch's staging files.

    Raises CommitConflict if they were removed, as the first commit of a later run does, and
    PipelineError if a truncation has no defined place in the order of the records.
    """
    try:
        tables = [_read(file.path, storage) for file in commit.files]
    except FileNotFoundError as error:
        raise CommitConflict(commit.files[0].path, GONE) from error
    found, truncation = _last_records(tables, key)
    if truncation is not None:
        check_truncation(commit, truncation)
    return Changes(found, truncates=truncation is not None)


def check_truncation(commit: Commit, place: tuple[int, int]) -> None:
    """Check that a truncation, at this partition and offset, has a defined place among the records.

    Raises PipelineError.
    """
    if len(commit.end.partitions()) > 1:
        partition, offset = place
        raise PipelineError(
            f"partition {partition} offset {offset}: the source table was truncated, which "
            "cannot be ordered in a topic of several partitions; nothing of this batch was "
            "written"
        )


def _last_records(tables: Sequence[Any], key: Sequence[str]) -> tuple[Any, tuple[int, int] | None]:
    """Return the last record of each key after the last truncation, and the first truncation.

    The truncation is given by partition and offset, and None if there is none.
    """
    if not tables:
        return pa.table({}), None
    order = [("_partition", "ascending"), ("_offset", "ascending")]
    found = pa.concat_tables(tables).sort_by(order)
    ends = pc.equal(found[OP], TRUNCATE)
    truncation = None
    if pc.any(ends).as_py():
        at = pc.indices_nonzero(ends)
        first = found.slice(at[0].as_py(), 1)
        truncation = (first["_partition"][0].as_py(), first["_offset"][0].as_py())
        found = found.slice(pc.max(at).as_py() + 1)
    places = pa.array(range(found.num_rows), pa.int64())
    grouped = found.select(list(key)).append_column(PLACE, places).group_by(list(key))
    wanted = grouped.aggregate([(PLACE, "max")])[f"{PLACE}_max"]
    return found.take(wanted), truncation


def _read(path: str, storage: Storage, filters: Any = None) -> Any:
    with storage.open(path) as file:
        return pq.read_table(file, filters=filters)


# --- a batch in parts ---------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Part:
    """Input of one task of reduction.

    `files`: staging files; `partitions`: partitions of the source whose records are read from them;
    `prefix`: prefix of the names of files with new rows; `keys_folder`: folder of the file of keys;
    `required`: columns that must not be NULL.
    """

    files: tuple[str, ...]
    partitions: tuple[int, ...]
    key: tuple[str, ...]
    fields: tuple[PartitionField, ...]
    prefix: str
    keys_folder: str
    required: tuple[str, ...] = ()
    storage: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class KeyRange:
    """Known range of a key column: minimum, maximum, and all values if they are few."""

    least: Any
    largest: Any
    values: frozenset[Any] | None

    def __or__(self, other: KeyRange) -> KeyRange:
        values = None
        if self.values is not None and other.values is not None:
            values = self.values | other.values
        if values is not None and len(values) > VALUES_MAX:
            values = None
        least, largest = min(self.least, other.least), max(self.largest, other.largest)
        return KeyRange(least, largest, values)


@dataclass(frozen=True, slots=True)
class Reduced:
    """Result of the reduction of a part.

    `keys`: file of its keys, "" if there are none; `ranges`: by column; `new`: files of rows, with
    their values of the table's partitions; `truncation`: partition and offset of the first one;
    `nulls`: required columns that are NULL in a row; `is_gone`: a staging file was removed, and
    nothing was written.
    """

    keys: str = ""
    ranges: Mapping[str, KeyRange] = field(default_factory=dict)
    new: tuple[tuple[str, tuple[Any, ...]], ...] = ()
    truncation: tuple[int, int] | None = None
    nulls: tuple[str, ...] = ()
    is_gone: bool = False

    @property
    def paths(self) -> list[str]:
        """Files of rows."""
        return [path for path, _ in self.new]


def parts_of(commit: Commit, part: Part) -> list[Part]:
    """Divide a batch into parts of about PART_ROWS, by partitions of the source.

    `part` has the common fields.
    """
    rows: dict[int, int] = {}
    for file in commit.files:
        assert file.spans, file
        for span in file.spans:
            rows[span.partition] = rows.get(span.partition, 0) + span.end - span.start
    found: list[list[int]] = groups(sorted(rows.items()), PART_ROWS)
    parts = []
    for partitions in found:
        files = tuple(
            file.path
            for file in commit.files
            if any(span.partition in partitions for span in file.spans)
        )
        parts.append(replace(part, files=files, partitions=tuple(partitions)))
    return parts


def whole_of(commit: Commit, part: Part) -> Part:
    """Return a batch as one part. `part` has the common fields."""
    partitions = {span.partition for file in commit.files for span in file.spans}
    files = tuple(file.path for file in commit.files)
    return replace(part, files=files, partitions=tuple(sorted(partitions)))


@dataclass(frozen=True, slots=True)
class KeyFiles:
    """Files with the keys of parts, each once in a file."""

    paths: tuple[str, ...]
    key: tuple[str, ...]
    storage: Mapping[str, str] = field(default_factory=dict)


def have_common_keys(files: KeyFiles) -> bool | None:
    """Return True if two files have a key in common; None if one was removed. A task."""
    try:
        tables = [_read(path, storage_of(path, files.storage)) for path in files.paths]
    except FileNotFoundError:
        return None
    keys = pa.concat_tables(tables)
    return bool(keys.group_by(list(files.key)).aggregate([]).num_rows < keys.num_rows)


def reduce_part(part: Part) -> Reduced:
    """Reduce a part of a batch to the last record of each key. A task."""
    storage = storage_of(part.prefix, part.storage)
    wanted = [("_partition", "in", list(part.partitions))]
    try:
        tables = [_read(path, storage, wanted) for path in part.files]
    except FileNotFoundError:
        return Reduced(is_gone=True)
    found, truncation = _last_records(tables, part.key)
    if not found.num_rows:
        return Reduced(truncation=truncation)
    rows = Changes(found, truncates=truncation is not None).kept()
    nulls = tuple(required_nulls(rows, part.required))
    if nulls:
        return Reduced(truncation=truncation, nulls=nulls)
    # Another task of the batch, or another attempt of this one, writes other files.
    token = secrets.token_hex(TOKEN_BYTES)
    new = RowFiles(f"{part.prefix}-{token}", storage)
    with new:
        for batch in rows.combine_chunks().to_batches():
            for partition, of_it in divided(batch, part.fields) if part.fields else [((), batch)]:
                new.write(iter([pa.Table.from_batches([of_it])]), partition)
        keys = found.select(list(part.key))
        path = f"{part.keys_folder}/keys-{token}.parquet"
        with storage.create(path) as file:
            pq.write_table(keys, file, compression="zstd")
        storage.finish(path)
    ranges = {name: _range(keys[name]) for name in part.key}
    return Reduced(path, ranges, tuple(new.written), truncation)


def _range(column: Any) -> KeyRange:
    values = pc.unique(column)
    known = frozenset(values.to_pylist()) if len(values) <= VALUES_MAX else None
    ends = pc.min_max(values)
    return KeyRange(ends["min"].as_py(), ends["max"].as_py(), known)


class RowFiles:
    """Parquet files that a task writes; their data is durable, their names are not.

    Use in a `with`: if it fails, they are removed. `written`: paths, with the values of the table's
    partitions.
    """

    def __init__(self, prefix: str, storage: Storage) -> None:
        self._prefix = prefix
        self._storage = storage
        self._paths: list[str] = []
        self.written: list[tuple[str, tuple[Any, ...]]] = []

    def __enter__(self) -> RowFiles:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            for path in self._paths:
                self._storage.remove(path)

    def next_path(self) -> str:
        path = f"{self._prefix}-{len(self._paths):04d}.parquet"
        self._paths.append(path)
        return path

    def write(self, tables: Iterator[Any], partition: tuple[Any, ...] = ()) -> str:
        """Write tables, at least one, into one file; return its path."""
        path = self.next_path()
        first = next(tables)
        with (
            self._storage.create(path) as file,
            pq.ParquetWriter(file, first.schema, compression="zstd") as writer,
        ):
            writer.write_table(first)
            for table in tables:
                writer.write_table(table)
        self._storage.finish(path)
        self.written.append((path, partition))
        return path


def staging_folder(path: str, job: str) -> str:
    return f"{path}/{STAGED}/{job}"


def leftovers(path: str, job: str, commit: Commit, storage: Storage) -> list[str]:
    """Return the existing staging files of this batch and of earlier runs.

    They are to be removed after the commit of the batch; a later run will find it committed.
    """
    folder = staging_folder(path, job)
    found = {entry.path for entry in storage.entries(folder)}
    return sorted(found | {file.path for file in commit.files})


def required_nulls(rows: Any, required: Iterable[str]) -> list[str]:
    """Return the columns that are missing in rows or NULL in one of them."""
    return sorted(
        name
        for name in required
        if rows.num_rows and (name not in rows.column_names or rows[name].null_count)
    )
