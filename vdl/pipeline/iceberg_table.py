"""An Iceberg table, committed from the driver by PyIceberg: no jar.

Executors write Parquet files into the table's `data` folder; readers see them once a commit names
them. A commit is one atomic step of the catalog: new columns, the files and the property
`vdl.job.NAME`. The property is the state of the job NAME: the number of its commits, the next
offset of every partition, where the job began, its totals, and its open windows. It is a property
of the table and not of a snapshot, because other writers' snapshots come in between, and snapshots
expire. The facts of a batch in a snapshot (`vdl.job`, `vdl.sequence`, `vdl.rows` and others) are
for people and for `notes`.

**Fenced.** A commit asserts the snapshot that it was made on, and PyIceberg's own retries are
disabled: they would silently append a late commit to the faster one. Retries are made here, after a
check of the property. If it is unchanged, the other commit was of another writer, perhaps a
compaction, and did no harm. If it has changed, this run ends.

**Lost responses.** A commit whose response is lost may be made, may never be, or may be made later.
The property shows if it is this commit's own. If it is not, the commit is retried on the same
snapshot, so that at most one of the two is accepted. Files that one of them may name are kept.

Files have no field ids, so readers find columns by the table's name mapping, which every commit
keeps current. Manifests are merged according to the table's properties, so that commits do not slow
down with the number of earlier ones; `vacuum` drops the oldest snapshots.

Does not depend on Spark or on Kafka.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import (
    CommitFailedException,
    NamespaceAlreadyExistsError,
    NoSuchNamespaceError,
    NoSuchTableError,
    TableAlreadyExistsError,
)
from pyiceberg.table import Table, TableProperties, Transaction
from pyiceberg.table.snapshots import Snapshot

from vdl.pipeline.account import Account
from vdl.pipeline.compaction import Compacted, rewrite
from vdl.pipeline.errors import CommitConflict, PipelineError, SinkInconsistent
from vdl.pipeline.file_columns import columns_of_table
from vdl.pipeline.iceberg_catalog import (
    UNCLEAR,
    WAITS_SECONDS,
    Attempt,
    catalog_of,
    in_words,
    patiently,
    shown,
    text_of,
)
from vdl.pipeline.iceberg_compaction import GROUPS_MAX, Group, plan, still_there
from vdl.pipeline.iceberg_entries import file_of_same_rows, new_file
from vdl.pipeline.iceberg_files import IMPLEMENTATION, local_path
from vdl.pipeline.iceberg_rules import IcebergRefused, check_not_null, check_rules, columns_of
from vdl.pipeline.iceberg_snapshot import RowDelta, live_files
from vdl.pipeline.iceberg_upsert import MERGE_ON_READ, MODE, Merge
from vdl.pipeline.job_state import JobState
from vdl.pipeline.positions import Positions, TopicPositions, check_same_topics
from vdl.pipeline.rollback import (
    GONE,
    Rewinding,
    Shown,
    Version,
    is_put_back,
)
from vdl.pipeline.storage import (
    NamedFiles,
    PlaceUnclear,
    iceberg_options,
    is_url,
    storage_of,
)
from vdl.pipeline.table import WRITER, Commit, CommitNote, Place, WindowState, by_whom, offsets_told
from vdl.pipeline.table_columns import Change, change_of, digits_of, problem_of, types_of
from vdl.pipeline.tasks import Tasks, here
from vdl.pipeline.upsert import Part, leftovers, staging_folder
from vdl.pipeline.window_files import WindowFiles

ATTEMPTS = 5
"""Limit on attempts to commit: other writers may be faster; another run of the job may not."""
STATE = "vdl.job."
"""Prefix of the table property with a job's state; the job's name follows."""
SNAPSHOTS_KEPT = 500
RETAIN_HOURS_MIN = 24
PROPERTIES = {
    "format-version": "2",
    "commit.manifest-merge.enabled": "true",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
}
"""Properties of a table that is created here. Each commit writes a new metadata file."""
UPSERT_PROPERTIES = {MODE: MERGE_ON_READ, "write.delete.granularity": "file"}
"""Further properties of a table for upserts.

The second is for other writers: a file of deleted rows is to be for one data file.
"""
NAMES = TableProperties.DEFAULT_NAME_MAPPING


class IcebergSink(Rewinding):
    """One job's view of its Iceberg table, with its progress."""

    def __init__(self, place: Place, job: str, tasks: Tasks = here) -> None:
        self.path = place.path
        self._place = place
        self._tasks = tasks
        self._job = job
        self._fields = place.partition_by
        self._key = place.key
        self._storage = storage_of(place.path, place.storage)
        self._known_catalog: Catalog | None = None
        self._sequence = 0
        self._positions = Positions()
        self._account: Account | None = Account()
        self._windows: WindowState | None = None
        self._table: Table | None = None
        self._known_window_files: WindowFiles | None = None

    @property
    def sequence(self) -> int:
        return self._sequence

    @property
    def windows(self) -> WindowState | None:
        return self._windows

    @property
    def _window_files(self) -> WindowFiles:
        if self._known_window_files is None:
            self._known_window_files = WindowFiles(Path(self._root), self._job)
        return self._known_window_files

    @property
    def _root(self) -> str:
        """Location of the table, as a path or a URL; an existing table has its own."""
        return self.path if self._table is None else local_path(self._table.location())

    @property
    def _catalog(self) -> Catalog:
        if self._known_catalog is None:
            settings = {**self._place.catalog, **iceberg_options(self._place.storage)}
            if not is_url(self.path):
                settings.setdefault("py-io-impl", IMPLEMENTATION)
            self._known_catalog = catalog_of(settings)
        return self._known_catalog

    def window_folder(self) -> str:
        return str(self._window_files.folder())

    def _opened(self, topics: Mapping[str, tuple[str, int]]) -> Positions:
        self._table = self._load()
        self._known_window_files = None
        self._positions, self._sequence = Positions(), 0
        self._account, self._windows, self._heir = Account(), None, ""
        state = self._state_of(self._job)
        self._check_not_forgotten(state)
        if state is None:
            return self._positions
        known = state.end
        found = {name: TopicPositions(topic_id, {}) for name, (topic_id, _) in topics.items()}
        check_same_topics(known, Positions(found))
        self._check_same_key(self._job, state.key)
        self._sequence, self._positions = state.sequence, known
        self._account, self._heir = state.account, state.heir
        windows = self._told_state(self._job).get("windows")
        if windows is not None:
            self._windows = WindowState.from_json(windows)
            self._window_files.check(self._windows)
            self._window_files.show_late(self._sequence, self._windows)
        return known

    def _check_not_forgotten(self, state: JobState | None) -> None:
        """Check that the property counts all commits that snapshots and file names show.

        Raises SinkInconsistent.
        """
        known = 0 if state is None else state.sequence
        found = max((note.sequence for note in self.notes()), default=0)
        if not max(known, found) and self._table is not None:
            found = int(any(self._writer_of(path) == self._job for path in _named(self._table)))
        if found > known:
            what = f"its property {STATE}{self._job} counts {known} batches of the job"
            raise SinkInconsistent(
                f"{self.path}: {what}, its snapshots and files say {found} or more: to go on would "
                "write rows again"
            )

    def account(self) -> Account | None:
        return self._account

    def _load(self) -> Table | None:
        if not is_url(self.path) and self._has_no_file():
            return None
        with self._in_words():
            return self._found()

    def _found(self) -> Table | None:
        """Return the table, or None. Raises SinkInconsistent, and the errors in UNCLEAR."""
        try:
            return self._catalog.load_table(self._place.name)
        except (NoSuchTableError, NoSuchNamespaceError):
            return None
        except FileNotFoundError as error:
            raise SinkInconsistent(
                f"{self.path}: the catalog has the table {self._place.name}, but its metadata file "
                f"is gone: restore it, or drop the table in the catalog ({error})"
            ) from error

    def _in_words(self) -> AbstractContextManager[None]:
        return in_words(self.path, self._place.catalog)

    def _has_no_file(self) -> bool:
        """Return True if the catalog is an SQLite file that is missing; a look-up creates none."""
        scheme, _, path = self._place.catalog.get("uri", "").partition(":///")
        return scheme == "sqlite" and bool(path) and not Path(path).exists()

    def _state_of(self, job: str) -> JobState | None:
        """Return a job's state in the table, or None. Raises SinkInconsistent."""
        told = self._told_state(job)
        try:
            return JobState.from_json(told) if told else None
        except (ValueError, KeyError, TypeError) as error:
            raise SinkInconsistent(f"{self.path}: {STATE}{job}: {error!r}") from None

    def _told_state(self, job: str) -> dict[str, Any]:
        """Return the JSON of a job's state, empty if there is none. Raises SinkInconsistent."""
        text = self._text(job)
        try:
            found: dict[str, Any] = {} if text is None else json.loads(text)
        except ValueError as error:
            raise SinkInconsistent(f"{self.path}: {STATE}{job}: {error}") from None
        return found

    def _text(self, job: str) -> str | None:
        """Return a job's state as it was written, or None."""
        return None if self._table is None else self._table.properties.get(f"{STATE}{job}")

    def staging(self, run: str) -> str:
        del run
        data = f"{self._root}/data"
        folder = staging_folder(self._root, self._job) if self._key else data
        for one in {data, folder}:
            self._storage.make_folder(one)
        return folder

    def check(self, commit: Commit, arrow_schema: Any) -> None:
        if not commit.start.goes_on_from(self._positions):
            raise CommitConflict(self.path, "the batch does not begin where the table ends")
        self._check_unchanged()
        if self._table is not None:
            check_rules(self.path, self._table, self._fields)
            self._change(self._table, arrow_schema)
            if not self._key:
                check_not_null(self.path, self._table, arrow_schema, commit.files, self._storage)

    def commit(self, commit: Commit, arrow_schema: Any) -> None:
        account = None if self._account is None else self._account.plus(commit)
        self._commit(commit, arrow_schema, account)

    def _commit(
        self, commit: Commit, arrow_schema: Any, account: Account | None, former: str = ""
    ) -> None:
        self.check(commit, arrow_schema)
        sequence = self._sequence + 1
        outdated: list[Path] = []
        merge, staged = None, []
        if self._key:
            staged = leftovers(self._root, self._job, commit, self._storage)
            merge = self._merge(commit)
            staged += merge.staged
        if commit.windows is not None:
            self._window_files.sync()
            outdated = self._window_files.others(commit.windows)
        if commit.files and not self._key:
            self._storage.sync_names([f"{self._root}/data"])
        with self._in_words():
            state = JobState(sequence, commit.end, account, self._key)
            states = {self._job: _state_text(commit, state), **self._ended(former)}
            self._write(commit, arrow_schema, states, merge)
        if commit.windows is not None:
            self._window_files.show_late(sequence, commit.windows)
        self._window_files_remove(outdated)
        for path in staged:
            self._storage.remove(path)
        self._sequence, self._positions = sequence, commit.end
        self._windows, self._account = commit.windows, account

    def _ended(self, job: str) -> dict[str, str]:
        """Return the state that gives another job this one as its heir; none if "".

        A run of that job finds a commit that it has not made, and is refused.
        """
        told = self._told_state(job) if job else {}
        if not told:
            return {}
        return {job: _as_text({**told, "sequence": told["sequence"] + 1, "heir": self._job})}

    def _window_files_remove(self, outdated: list[Path]) -> None:
        if outdated:
            self._window_files.remove(outdated)

    def _merge(self, commit: Commit) -> Merge:
        """Reduce a batch to the last record of each key.

        Raises CommitConflict, IcebergRefused, PipelineError.
        """
        fields = [] if self._table is None else self._table.schema().fields
        part = Part(
            files=(),
            partitions=(),
            key=self._key,
            fields=self._fields,
            # Named like files of a run's tasks: the rows are this job's.
            prefix=f"{self._root}/data/{self._job}-{commit.run}-{commit.batch}",
            keys_folder=staging_folder(self._root, self._job),
            required=tuple(one.name for one in fields if one.required),
            storage=self._place.storage,
        )
        merge = Merge(commit, part, self._tasks)
        if merge.nulls:
            reasons = [f"its column {name} is required, and NULL in rows" for name in merge.nulls]
            raise IcebergRefused(self.path, reasons)
        return merge

    def _write(
        self, commit: Commit, arrow_schema: Any, states: Mapping[str, str], merge: Merge | None
    ) -> None:
        """Commit, and retry if another writer was faster or a response was lost.

        `states`: job → its state after the commit.

        Raises CommitConflict, PipelineError.
        """
        if self._table is None:
            self._table = self._create(arrow_schema)
            self._check_unchanged()
            check_rules(self.path, self._table, self._fields)
        doubt: Exception | None = None
        for seconds in WAITS_SECONDS:
            attempt = self._attempt(self._table, commit, arrow_schema, states, merge)
            try:
                attempt.commit()
                return
            except CommitFailedException:
                # An earlier attempt of this commit may be the faster one.
                doubt = None
            except UNCLEAR as error:
                doubt = error
                if merge is not None:
                    merge.leave()
                time.sleep(seconds)
            self._refresh()
            if self._text(self._job) == states[self._job]:
                return
            # A refused commit may have been made by a request that was sent twice, and another run
            # may have committed since: then its files are the table's.
            if not attempt.is_in(self._table):
                if doubt is None:
                    attempt.clean()
                if merge is not None:
                    merge.forget()
            self._check_sequence()
            check_rules(self.path, self._table, self._fields)
        if doubt is not None:
            # It may be made later. The next run that opens the table finds out, or is refused.
            settings = self._place.catalog
            what = f"a commit may have been made or not: {text_of(doubt, settings)}"
            raise PipelineError(f"{self.path}: {what}") from shown(doubt, settings)
        raise CommitConflict(self.path, f"{len(WAITS_SECONDS)} commits came to nothing")

    def _create(self, arrow_schema: Any) -> Table:
        """Create the table without rows, unless another run was faster. Raises PipelineError."""
        reason = "it is gone again"
        for seconds in WAITS_SECONDS:
            try:
                self._ask_for_table(arrow_schema)
            except (TableAlreadyExistsError, CommitFailedException):
                pass
            except UNCLEAR as error:
                reason = text_of(error, self._place.catalog)
                time.sleep(seconds)
            found = patiently(self._found)
            if found is not None:
                return found
        raise PipelineError(f"{self.path}: the table is not made: {reason}")

    def _ask_for_table(self, arrow_schema: Any) -> None:
        """Create the table in the catalog, and its namespace if that is missing.

        Creation of an existing namespace is not requested: a user who may write to it may lack the
        permission to create it.
        """
        namespace = Catalog.namespace_from(self._place.name)
        for end in range(1, len(namespace) + 1):
            if not self._catalog.namespace_exists(namespace[:end]):
                with suppress(NamespaceAlreadyExistsError):
                    self._catalog.create_namespace(namespace[:end])
        location = self.path if is_url(self.path) else f"file://{self.path}"
        properties = {**PROPERTIES, **UPSERT_PROPERTIES} if self._key else PROPERTIES
        transaction = self._catalog.create_table_transaction(
            self._place.name, arrow_schema, location=location, properties=properties
        )
        if self._fields:
            with transaction.update_spec() as update:
                for field in self._fields:
                    update.add_field(field.column, field.iceberg)
        transaction.commit_transaction()

    def _attempt(
        self,
        table: Table,
        commit: Commit,
        arrow_schema: Any,
        states: Mapping[str, str],
        merge: Merge | None,
    ) -> Attempt:
        """Prepare one commit on the last loaded state of the table."""
        change = self._change(table, arrow_schema)
        transaction = once(table)
        if change.added or change.widened:
            with transaction.update_schema() as update:
                update.union_by_name(arrow_schema)
        if transaction.table_metadata.name_mapping() is None:
            names = transaction.table_metadata.schema().name_mapping
            transaction.set_properties({NAMES: names.model_dump_json()})
        transaction.set_properties({f"{STATE}{job}": text for job, text in states.items()})
        facts = _facts(commit, self._sequence + 1)
        if merge is not None:
            merged = merge.write(table)
            self._storage.sync_names([f"{self._root}/data"])
            with RowDelta(transaction, table, facts) as delta:
                for old in merged.old:
                    delta.delete_data_file(old)
                for path, partition in merged.new:
                    delta.append_data_file(new_file(table, transaction, path, partition))
                for path, of in merged.rest:
                    delta.append_data_file(file_of_same_rows(table, transaction, path, of))
                for deletes in merged.deletes:
                    delta.append_data_file(deletes)
            return Attempt(transaction)
        with RowDelta(transaction, table, facts) as append:
            for file in commit.files:
                append.append_data_file(new_file(table, transaction, file.path, file.partition))
        return Attempt(transaction)

    def _change(self, table: Table, arrow_schema: Any) -> Change:
        """Return the change that rows make to the columns. Raises SinkInconsistent."""
        change = change_of(columns_of(table.schema().as_arrow()), columns_of(arrow_schema))
        if change.breaking:
            raise SinkInconsistent(f"{self.path}: {problem_of(change)}")
        known = types_of(columns_of(table.schema().as_arrow()))
        for name, kind in types_of("\n".join(change.widened)).items():
            if digits_of(kind) != digits_of(known[name]):
                raise SinkInconsistent(
                    f"{self.path}: its columns have changed: {name} is {known[name]} in the table "
                    f"and {kind} in the rows, with other digits behind the point"
                )
        return change

    def _check_unchanged(self) -> None:
        """Check that no other run has committed for this job.

        Raises CommitConflict, PipelineError.
        """
        self._refresh()
        self._check_sequence()

    def _refresh(self) -> None:
        """Load the table again, or look for it. Raises PipelineError."""
        with self._in_words():
            if self._table is not None:
                try:
                    patiently(self._table.refresh)
                except (NoSuchTableError, FileNotFoundError) as error:
                    what = "the table was removed while the job ran"
                    raise SinkInconsistent(f"{self.path}: {what}") from error
            elif is_url(self.path) or not self._has_no_file():
                self._table = patiently(self._found)

    def _check_sequence(self) -> None:
        """Check the last loaded state for commits of other runs, and that the rows are there.

        Raises CommitConflict, SinkInconsistent.
        """
        state = self._state_of(self._job)
        found = 0 if state is None else state.sequence
        if found != self._sequence:
            self._heir = "" if state is None else state.heir
            self._check_not_succeeded()
            what = f"the job is at batch {found}, not {self._sequence}"
            raise CommitConflict(self.path, what, self.last_run())
        self._check_history()

    def last_run(self) -> str:
        return by_whom(self._told_state(self._job))

    def notes(self) -> list[CommitNote]:
        """Return notes as far as snapshots are kept, without offsets if there are many."""
        table = self._table or self._load()
        found = []
        for snapshot in [] if table is None else table.metadata.snapshots:
            told = _told(snapshot)
            if told.get("vdl.job") == self._job:
                start, end = (
                    Positions.from_json(json.loads(told.get(f"vdl.{name}", "{}")))
                    for name in ("start", "end")
                )
                rows, dead, late = (int(told[f"vdl.{name}"]) for name in ("rows", "dead", "late"))
                found.append(CommitNote(int(told["vdl.sequence"]), start, end, rows, dead, late))
        return sorted(found, key=lambda note: note.sequence)

    def columns(self) -> str:
        return "" if self._table is None else columns_of(self._table.schema().as_arrow())

    def files(self) -> list[str]:
        return [path for path in self._all_files() if self._writer_of(path) in {"", self._job}]

    def unclear_files(self) -> list[str]:
        """Return files of unknown writers if other jobs write to the table, too; else nothing."""
        paths = self._all_files()
        writers = {self._writer_of(path) for path in paths} | self._jobs()
        if not writers - {"", self._job}:
            return []
        return [path for path in paths if not self._writer_of(path)]

    def _all_files(self) -> list[str]:
        """Return the paths of all data files.

        Raises PipelineError if rows were deleted: the files alone would bring them back.
        """
        table = self._load()
        live = [] if table is None else live_files(table)
        if any(one.deletes is not None for one in live):
            raise PipelineError(f"{self.path}: its files have rows that were deleted")
        return [local_path(one.data.file_path) for one in live]

    def _jobs(self) -> set[str]:
        """Return the jobs that have ever written to the table."""
        names = {} if self._table is None else self._table.properties
        return {name.removeprefix(STATE) for name in names if name.startswith(STATE)}

    def _writer_of(self, path: str) -> str:
        """Return the job that has written a file; "" if its name does not contain it."""
        found = WRITER.match(path.rpartition("/")[2])
        return "" if found is None else found["job"]

    # --- after a table was put back, or a job was renamed ----------------------------------------
    def _told(self) -> Mapping[int, Mapping[str, Any]]:
        known = [one.facts for one in self._versions().values()]
        return {int(facts["sequence"]): facts for facts in known if facts is not None}

    def _schema(self) -> Any:
        assert self._table is not None, self.path
        return self._table.schema().as_arrow()

    def other_jobs(self) -> Mapping[str, JobState]:
        states = {job: self._state_of(job) for job in self._jobs() - {self._job}}
        return {job: one for job, one in states.items() if one is not None and not one.heir}

    def _put_back(self) -> tuple[bool, Shown]:
        """Return True if the table shows less than the job has committed, and what it shows."""
        if not self._sequence or self._table is None:
            return False, Shown(None)
        current = self._table.current_snapshot()
        if current is not None and self._is_last(current):
            return False, Shown(None)
        newest = None if current is None else current.snapshot_id
        return is_put_back(self._versions(), newest, self._sequence)

    def _is_last(self, snapshot: Snapshot) -> bool:
        """Return True if the snapshot is the job's last commit."""
        told = _told(snapshot)
        is_own = told.get("vdl.job") == self._job
        return is_own and told.get("vdl.sequence") == str(self._sequence)

    def _versions(self) -> Mapping[int, Version]:
        """Return the versions of the snapshots that are kept."""
        found = {}
        for snapshot in [] if self._table is None else self._table.metadata.snapshots:
            told = _told(snapshot)
            facts: dict[str, Any] | None = None
            if told.get("vdl.job") == self._job:
                facts = {name: told[f"vdl.{name}"] for name in ("sequence", "rows", "dead", "late")}
                facts["end"] = json.loads(told.get("vdl.end", "{}"))
            # The parent of the oldest kept snapshot may be gone; only the first one has none.
            age = snapshot.sequence_number or 0
            parent = snapshot.parent_snapshot_id
            is_first = parent is None and age == 1
            found[snapshot.snapshot_id] = Version(
                parent if parent is not None or is_first else GONE, facts, age
            )
        return found

    # --- few files of many ----------------------------------------------------------------------
    def compact(self, bytes_target: int) -> Compacted:
        """Compact in a snapshot of its own: readers of older ones keep their files.

        Raises PipelineError, and CommitConflict if other writers were faster ATTEMPTS times.
        """
        with self._in_words():
            return self._compact(bytes_target)

    def _compact(self, bytes_target: int) -> Compacted:
        table = self._load()
        if table is None or table.current_snapshot() is None:
            return Compacted()
        check_rules(self.path, table, self._fields)
        live = live_files(table)
        others = {self._writer_of(one.data.file_path) for one in live} | self._jobs()
        if others - {"", self._job}:
            what = "other jobs write to this table, too: a compaction would mix their rows"
            raise PipelineError(f"{self.path}: {what}")
        done = Compacted()
        groups = plan(table, live, bytes_target)
        for start in range(0, len(groups), GROUPS_MAX):
            done += self._compact_groups(table, groups[start : start + GROUPS_MAX], bytes_target)
        return done

    def _compact_groups(
        self, table: Table, groups: Sequence[Group], bytes_target: int
    ) -> Compacted:
        """Rewrite some files, and replace them by the new ones in one commit."""
        # Named like files of a run's tasks: the rows are this job's.
        prefix = f"{self._job}-{secrets.token_hex(6)}-0-compacted"
        folder, storage = f"{self._root}/data", self._place.storage
        columns = columns_of_table(table)
        found = self._tasks(
            rewrite, [one.rewrite(folder, prefix, bytes_target, columns, storage) for one in groups]
        )
        groups = [replace(group, new=new) for group, new in zip(groups, found, strict=True)]
        for group in groups:
            assert sum(file.rows for file in group.new) >= group.rows_min, group
        for _ in range(ATTEMPTS):
            groups, outdated = still_there(groups, table)
            for path in [file.path for group in outdated for file in group.new]:
                self._storage.remove(path)
            if not groups:
                return Compacted()
            transaction = once(table)
            try:
                with RowDelta(transaction, table) as delta:
                    for group in groups:
                        self._replace(delta, group, table, transaction)
                attempt = Attempt(transaction)
                attempt.commit()
            except CommitFailedException:
                table.refresh()
                if not attempt.is_in(table):
                    attempt.clean()
                    check_rules(self.path, table, self._fields)
                    continue
            return Compacted(
                before=sum(len(group.files) for group in groups),
                after=sum(len(group.new) for group in groups),
            )
        raise CommitConflict(self.path, f"{ATTEMPTS} compactions came to nothing")

    def _replace(
        self, delta: RowDelta, group: Group, table: Table, transaction: Transaction
    ) -> None:
        for old in (file for one in group.files for file in one.files):
            delta.delete_data_file(old)
        for new in group.new:
            file = file_of_same_rows(table, transaction, new.path, group.files[0].data)
            delta.append_data_file(file)

    def vacuum(self, retain_hours: int) -> Compacted:
        """Drop old snapshots, then files that no snapshot needs.

        Snapshots are dropped if they are older than `retain_hours` or than the newest
        SNAPSHOTS_KEPT, unless a reference names them. Files are removed if they are older than
        `retain_hours`; of data files only this job's. Raises PipelineError, CommitConflict.
        """
        with self._in_words():
            return self._vacuum(retain_hours)

    def _vacuum(self, retain_hours: int) -> Compacted:
        table = self._load()
        if table is None:
            return Compacted()
        if retain_hours < RETAIN_HOURS_MIN:
            what = f"a retention of less than {RETAIN_HOURS_MIN} hours: files of a batch under way"
            raise PipelineError(f"{self.path}: {what} would be among what is removed")
        edge = time.time() - retain_hours * 3600
        newest = sorted(table.metadata.snapshots, key=lambda s: s.timestamp_ms)[-SNAPSHOTS_KEPT:]
        named = {ref.snapshot_id for ref in table.metadata.refs.values()}
        kept = named | {s.snapshot_id for s in newest if s.timestamp_ms >= edge * 1000}
        expired = [s.snapshot_id for s in table.metadata.snapshots if s.snapshot_id not in kept]
        if expired:
            try:
                table.maintenance.expire_snapshots().by_ids(expired).commit()
            except CommitFailedException as error:
                raise CommitConflict(self.path, str(error)) from error
        table.refresh()
        return Compacted(removed=self._remove_unnamed(table, edge))

    def _remove_unnamed(self, table: Table, edge: float) -> int:
        """Remove files below the table that no snapshot needs and that are older than `edge`.

        Return their number. Raises PipelineError, and removes none, if it is not certain which
        files the snapshots need.
        """
        root = local_path(table.location())
        data, metadata = (self._storage.entries(f"{root}/{n}") for n in ("data", "metadata"))
        found = [one.path for one in data if self._writer_of(one.path) == self._job]
        found += [one.path for one in metadata if one.path.endswith(".avro")]
        old = {one.path for one in (*data, *metadata) if one.modified < edge}
        try:
            needed = NamedFiles(_reachable(table))
            gone = [path for path in found if path in old and not needed.has(path)]
        except PlaceUnclear as error:
            raise PipelineError(f"{self.path}: no file was removed: {error}") from error
        for path in gone:
            self._storage.remove(path)
        return len(gone)


def once(table: Table) -> Transaction:
    """Return a transaction that PyIceberg does not retry.

    The property is set only in this process' view of the table; other writers keep their own. The
    commit asserts the current snapshot of that view.
    """
    known = table.metadata
    properties = {**known.properties, TableProperties.COMMIT_NUM_RETRIES: "0"}
    table.metadata = known.model_copy(update={"properties": properties})
    return table.transaction()


def _state_text(commit: Commit, state: JobState) -> str:
    windows = None if commit.windows is None else commit.windows.to_json()
    return _as_text({**state.to_json(), **commit.runner(), "windows": windows})


def _as_text(state: Mapping[str, Any]) -> str:
    return json.dumps(state, separators=(",", ":"))


def _facts(commit: Commit, sequence: int) -> dict[str, str]:
    """Return a batch's facts for its snapshot."""
    told = {
        "vdl.job": commit.job,
        "vdl.sequence": str(sequence),
        "vdl.run": commit.run,
        "vdl.batch": str(commit.batch),
        "vdl.rows": str(commit.rows),
        "vdl.dead": str(commit.dead),
        "vdl.late": str(commit.late),
    }
    for name, where in offsets_told(commit).items():
        told[f"vdl.{name}"] = json.dumps(where, separators=(",", ":"))
    return told


def _told(snapshot: Snapshot) -> Mapping[str, str]:
    return {} if snapshot.summary is None else snapshot.summary.additional_properties


def _named(table: Table) -> Iterator[str]:
    """Yield the paths of the current snapshot's files of any kind."""
    snapshot = table.current_snapshot()
    for manifest in [] if snapshot is None else snapshot.manifests(table.io):
        for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True):
            yield entry.data_file.file_path


def _reachable(table: Table) -> Iterator[str]:
    """Yield all files that any snapshot needs."""
    seen: set[str] = set()
    for snapshot in table.metadata.snapshots:
        yield snapshot.manifest_list
        for manifest in snapshot.manifests(table.io):
            if manifest.manifest_path in seen:
                continue
            seen.add(manifest.manifest_path)
            yield manifest.manifest_path
            yield from _paths(manifest.fetch_manifest_entry(table.io, discard_deleted=True))


def _paths(entries: Iterable[Any]) -> Iterator[str]:
    return (entry.data_file.file_path for entry in entries)
