"""Upserts into an Iceberg table: replaced rows are deleted in place, by position.

The driver plans: the table's own scan selects the files that may have a key of the batch, by the
minimum and maximum of each file and by its partition. Tasks do the rest, each for some files: they
read the key columns, find the rows that the batch replaces, and write their positions
(`deleted_rows`). A file with more than DELETED_SHARE_MAX deleted rows is rewritten without them;
this bounds the rows that a reader must skip, and on average what a commit writes. A file without
any of the keys is left unchanged.

If the table property `write.merge.mode` is not `merge-on-read`, or the format version is 1, rows
are not deleted in place: each file that has a key is rewritten.

Files that tasks write are synced before a commit names them.

Does not depend on Spark, on Kafka, or on how a job's offsets are stored.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping, Sequence
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

from vdl.pipeline.deleted_rows import NONE, live_batches, read_positions, write_positions
from vdl.pipeline.errors import CommitConflict
from vdl.pipeline.file_columns import Column, columns_of_table, in_columns, names_in, repeated
from vdl.pipeline.iceberg_files import local_path
from vdl.pipeline.iceberg_snapshot import (
    LiveFile,
    by_data_file,
    deletes_file,
    deletes_of,
    live_file,
    live_files,
    shared_by_rows,
)
from vdl.pipeline.storage import TOKEN_BYTES, storage_of
from vdl.pipeline.table import Commit
from vdl.pipeline.tasks import Tasks, groups
from vdl.pipeline.upsert import (
    GONE,
    KeyFiles,
    KeyRange,
    Part,
    Reduced,
    RowFiles,
    check_truncation,
    have_common_keys,
    parts_of,
    reduce_part,
    whole_of,
)

MODE, MERGE_ON_READ = "write.merge.mode", "merge-on-read"
DELETES_FORMAT_MIN = 2
DELETED_SHARE_MAX = 0.2
"""Share of deleted rows above which a file is rewritten."""
SEARCH_BYTES = 32 << 20
"""Bytes of data files that one task searches; it searches at least one file."""
SEARCH_ROWS = 1 << 20
"""Keys of a file that are searched together."""
BATCH_ROWS = 20_000
GROUP_ROWS, GROUP_BYTES = 128 * 1024, 64 << 20
"""Limits on rows in Arrow's form, which are held until their row group is written."""
NUMBER = "__n"


# --- tasks --------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Target:
    """Data file to be searched.

    `location`: name in manifests; `deletes`: file of its deleted rows, "" if it has none;
    `partition`: name and value of key columns that all its rows share.
    """

    location: str
    rows: int
    deletes: str = ""
    partition: tuple[tuple[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class Search:
    """Input of one search task.

    `keys`: files of the batch's keys; `columns`: of the table; `prefix`: prefix of the names of
    written files; `share_max`: as DELETED_SHARE_MAX.
    """

    targets: tuple[Target, ...]
    keys: tuple[str, ...]
    key: tuple[str, ...]
    columns: tuple[Column, ...]
    prefix: str
    share_max: float
    storage: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Deletes:
    """New file of deleted rows."""

    path: str
    rows: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Changed:
    """Data file that has keys of the batch.

    It has more deleted rows, or is replaced by a file of the remaining rows (`rest`), or is removed
    if none remain. An empty `location` means that a file of keys was removed.
    """

    location: str = ""
    deletes: Deletes | None = None
    rest: str = ""


def search(task: Search) -> list[Changed]:
    """Find the rows of some files that a batch replaces; write their deletes or replacements."""
    storage = storage_of(task.prefix, task.storage)
    try:
        keys = Keys([_read(path, storage) for path in task.keys], task.key, task.columns)
    except FileNotFoundError:
        return [Changed()]
    # Another task of the batch, or another attempt of this one, writes other files.
    with RowFiles(f"{task.prefix}-{secrets.token_hex(TOKEN_BYTES)}", storage) as files:
        return [
            changed
            for target in task.targets
            if (changed := _changed(target, keys, task, files, storage)) is not None
        ]


def _read(path: str, storage: Any) -> Any:
    with storage.open(path) as file:
        return pq.read_table(file)


def _changed(
    target: Target, keys: Keys, task: Search, files: RowFiles, storage: Any
) -> Changed | None:
    path = local_path(target.location)
    known = read_positions(local_path(target.deletes), storage)
    deleted = np.union1d(known, keys.positions_in(path, target.partition, storage))
    if len(deleted) == len(known):
        return None
    assert len(deleted) <= target.rows, (target, len(deleted))
    if len(deleted) == target.rows:
        return Changed(target.location)
    if len(deleted) > task.share_max * target.rows:
        left = live_batches(path, deleted, BATCH_ROWS, storage)
        rows = in_groups(in_columns(batch, task.columns) for batch in left)
        return Changed(target.location, rest=files.write(rows))
    path = files.next_path()
    size = write_positions(path, target.location, deleted, storage)
    return Changed(target.location, deletes=Deletes(path, len(deleted), size))


def in_groups(batches: Iterator[Any]) -> Iterator[Any]:
    """Yield the same rows in tables large enough for a row group and bounded in memory."""
    waiting: list[Any] = []
    rows = size = 0
    for batch in batches:
        waiting.append(batch)
        rows, size = rows + batch.num_rows, size + batch.nbytes
        if rows >= GROUP_ROWS or size >= GROUP_BYTES:
            yield pa.Table.from_batches(waiting)
            waiting, rows, size = [], 0, 0
    if rows:
        yield pa.Table.from_batches(waiting)


class Keys:
    """Keys of a batch."""

    def __init__(
        self, tables: Sequence[Any], key: Sequence[str], columns: Sequence[Column]
    ) -> None:
        """`columns`: of the table."""
        self._key = list(key)
        self._columns = [column for column in columns if column.name in key]
        self._keys = pa.concat_tables(tables).combine_chunks()
        self._values = {name: pc.unique(self._keys[name]) for name in self._key}

    def positions_in(self, path: str, partition: Sequence[tuple[str, Any]], storage: Any) -> Any:
        """Return the positions of rows of a data file that have one of the keys, ascending.

        `partition`: values of columns that the file itself need not have.
        """
        found, place = [NONE], 0
        with storage.open(path) as opened:
            file = pq.ParquetFile(opened)
            names = names_in(file.schema_arrow, self._columns)
            shared = {name: value for name, value in partition if name not in names}
            # A row without a value in a key column has no key.
            if any(shared.get(name) is None for name in self._key if name not in names):
                return NONE
            for batch in file.iter_batches(SEARCH_ROWS, columns=list(names.values())):
                columns = {name: batch.column(of_file) for name, of_file in names.items()}
                for name, value in shared.items():
                    kind = self._keys.schema.field(name).type
                    columns[name] = repeated(value, kind, batch.num_rows)
                found.append(self._rows_of(pa.table(columns)) + place)
                place += batch.num_rows
        return np.concatenate(found)

    def _rows_of(self, table: Any) -> Any:
        table = table.select(self._key).cast(self._keys.schema)
        # NULL is no key, and not in the values.
        is_known = [pc.is_in(table[name], value_set=self._values[name]) for name in self._key]
        candidates = is_known[0]
        for more in is_known[1:]:
            candidates = pc.and_(candidates, more)
        rows = np.flatnonzero(candidates.combine_chunks().to_numpy(zero_copy_only=False))
        if len(self._key) == 1 or not len(rows):
            return rows
        numbered = table.take(pa.array(rows)).append_column(NUMBER, pa.array(rows))
        return np.sort(numbered.join(self._keys, self._key, join_type="left semi")[NUMBER])


# --- the driver ---------------------------------------------------------------------------------
@dataclass(slots=True)
class Merged:
    """Files that a commit removes and adds, of data and of deleted rows.

    `new`: (path, value of each partition); `rest`: (path, file whose remaining rows it has, and
    whose partition).
    """

    old: list[IcebergFile] = field(default_factory=list)
    new: list[tuple[str, tuple[Any, ...]]] = field(default_factory=list)
    rest: list[tuple[str, IcebergFile]] = field(default_factory=list)
    deletes: list[IcebergFile] = field(default_factory=list)


class Merge:
    """Merge of one batch into a table. `part`: common fields of its parts."""

    def __init__(self, commit: Commit, part: Part, tasks: Tasks) -> None:
        self._commit = commit
        self._part = part
        self._tasks = tasks
        self._storage = storage_of(part.prefix, part.storage)
        self._written: list[str] = []
        """Paths written by the last search."""
        self._reduced = self._reduce(parts_of(commit, part))
        if self._have_common_keys():
            for path in [path for one in self._reduced for path in (one.keys, *one.paths) if path]:
                self._storage.remove(path)
            self._reduced = self._reduce([whole_of(commit, part)])
        truncations = [one.truncation for one in self._reduced if one.truncation is not None]
        for place in truncations[:1]:
            check_truncation(commit, place)
        self._truncates = bool(truncations)

    def _reduce(self, parts: Sequence[Part]) -> list[Reduced]:
        found = self._tasks(reduce_part, parts)
        if any(one.is_gone for one in found):
            raise CommitConflict(self._part.keys_folder, GONE)
        return found

    def _have_common_keys(self) -> bool:
        """Return True if a key is in two parts: each has a row of it."""
        paths = tuple(one.keys for one in self._reduced if one.keys)
        if len(paths) < 2:
            return False
        files = KeyFiles(paths, self._part.key, self._part.storage)
        (found,) = self._tasks(have_common_keys, [files])
        if found is None:
            raise CommitConflict(self._part.keys_folder, GONE)
        return found

    @property
    def nulls(self) -> list[str]:
        """Required columns that are NULL in a row."""
        return sorted({name for one in self._reduced for name in one.nulls})

    @property
    def staged(self) -> list[str]:
        """Files that are not needed once the batch is committed."""
        return [one.keys for one in self._reduced if one.keys]

    def write(self, table: Table) -> Merged:
        """Search the table and write the changed files.

        Their data is durable, their names are not, and no reader sees them yet. Raises
        CommitConflict, PipelineError.
        """
        merged = Merged(new=[file for one in self._reduced for file in one.new])
        keyed = [one for one in self._reduced if one.keys]
        if self._truncates:
            merged.old = [file for live in live_files(table) for file in live.files]
        elif keyed:
            self._search(table, keyed, merged)
        return merged

    def _search(self, table: Table, keyed: Sequence[Reduced], merged: Merged) -> None:
        if not set(self._part.key) <= {field.name for field in table.schema().fields}:
            return  # The commit adds the column, so no row has a value there.
        files = {live.data.file_path: live for live in _planned(table, _wanted(keyed))}
        is_merging = (
            table.metadata.format_version >= DELETES_FORMAT_MIN
            and table.properties.get(MODE) == MERGE_ON_READ
        )
        targets = [
            (_target(live, table, self._part.key), int(live.data.file_size_in_bytes))
            for _, live in sorted(files.items())
        ]
        columns = columns_of_table(table)
        searches = [
            Search(
                tuple(of_task),
                tuple(one.keys for one in keyed),
                self._part.key,
                columns,
                self._part.prefix,
                DELETED_SHARE_MAX if is_merging else 0.0,
                self._part.storage,
            )
            for of_task in groups(targets, SEARCH_BYTES)
        ]
        for changed in (one for found in self._tasks(search, searches) for one in found):
            if not changed.location:
                raise CommitConflict(self._part.keys_folder, GONE)
            live = files[changed.location]
            if changed.deletes is not None:
                new = changed.deletes
                location = new.path if "://" in new.path else f"file://{new.path}"
                merged.deletes.append(deletes_file(location, new.rows, new.bytes, live.data))
                merged.old += live.files[1:]
                self._written.append(new.path)
                continue
            merged.old += live.files
            if changed.rest:
                merged.rest.append((changed.rest, live.data))
                self._written.append(changed.rest)
        assert len(set(self._written)) == len(self._written), "two tasks wrote one file"

    def leave(self) -> None:
        """Keep the written files: a commit that names them may have been made, or may yet be."""
        self._written.clear()

    def forget(self) -> None:
        """Remove the files that a search has written, after a commit that failed."""
        for path in self._written:
            self._storage.remove(path)
        self._written.clear()


def _target(live: LiveFile, table: Table, key: Sequence[str]) -> Target:
    shared = [(name, value) for name, value in shared_by_rows(table, live.data) if name in key]
    deletes = "" if live.deletes is None else live.deletes.file_path
    return Target(live.data.file_path, int(live.data.record_count), deletes, tuple(shared))


def _planned(table: Table, wanted: BooleanExpression) -> list[LiveFile]:
    """Return the data files that may have rows of this kind.

    Raises PipelineError if rows of the table were deleted in another way than that of
    `deleted_rows`.
    """
    # A scan leaves out keys that others have deleted and the batch does not have. A file that is
    # rewritten would have their rows again, as such a file of keys applies to older files only.
    by_data_file(table, deletes_of(table))
    found = []
    for task in table.scan(row_filter=wanted).plan_files():
        deletes = by_data_file(table, task.delete_files)
        found.append(live_file(table, task.file, deletes))
    return found


def _wanted(reduced: Sequence[Reduced]) -> BooleanExpression:
    """Return a filter that combines the known range of each key column."""
    wanted: BooleanExpression = AlwaysTrue()
    for name in reduced[0].ranges:
        known: KeyRange = reduced[0].ranges[name]
        for one in reduced[1:]:
            known = known | one.ranges[name]
        if known.values is not None:
            one_of: BooleanExpression = In(name, sorted(known.values))
        else:
            least, largest = known.least, known.largest
            one_of = And(GreaterThanOrEqual(name, least), LessThanOrEqual(name, largest))
        wanted = And(wanted, one_of)
    return wanted
