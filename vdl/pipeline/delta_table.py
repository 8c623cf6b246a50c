"""A Delta table, committed from the driver by delta-rs: no jar, and a third of a second a commit.

Executors write Parquet files into the table's folder; readers see them once a commit names them.
Two of the commit's transactions are the job's: `(vdl/job, sequence)` is its progress, and
`(vdl/job/state, mark)` names a file with its state (`state_files`): the next offset of every
partition, where the job began, and its total rows, dead letters and late rows. Delta keeps the last
version of each transaction forever, so no history must be searched, and other writers (OPTIMIZE,
deletions) may commit in between without harm. A job with windows has one more transaction,
`(vdl/job/windows, mark)`: that mark names a file with the state of its open windows
(`window_files`). VACUUM ignores such files, because their folder's name begins with an underscore.

VACUUM removes files that no commit names, as for any writer.

Does not depend on Spark or on Kafka.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
from deltalake import DeltaTable, Schema
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import (
    AddAction,
    CommitProperties,
    Transaction,
    create_table_with_add_actions,
)

from vdl.pipeline.account import Account
from vdl.pipeline.compaction import Compacted
from vdl.pipeline.delta_rules import check_not_null, check_partitions, check_rules
from vdl.pipeline.delta_upsert import (
    check_rows,
    check_upsert,
    merge,
    sync_files,
    tidy_log,
    undo_torn,
)
from vdl.pipeline.errors import CommitConflict, PipelineError, SinkInconsistent
from vdl.pipeline.job_state import JobState
from vdl.pipeline.partitioning import as_text
from vdl.pipeline.positions import Positions, TopicPositions, check_same_topics
from vdl.pipeline.rollback import (
    GONE,
    Rewinding,
    Shown,
    Version,
    is_put_back,
)
from vdl.pipeline.state_files import StateFiles, new_mark, sequence_of
from vdl.pipeline.storage import delta_options, is_url, storage_of
from vdl.pipeline.table import (
    WRITER,
    Commit,
    CommitNote,
    DataFile,
    Place,
    WindowState,
    by_whom,
    offsets_told,
)
from vdl.pipeline.table_columns import change_of, problem_of, schema_lines
from vdl.pipeline.upsert import Changes, changes_of, leftovers, staging_folder
from vdl.pipeline.window_files import WindowFiles

ATTEMPTS = 5
"""Limit on attempts to commit: other writers may be faster; another run of the job may not."""
HISTORY_MAX = 100_000
FACTS = "vdl"
"""Key of a batch's facts in a commit's metadata."""
STATE, WINDOWS = "state", "windows"
PROPERTIES = {"delta.logRetentionDuration": "interval 1 hours"}
"""Properties of a table that is created here.

Each commit lists the log, which takes 0.1 ms of processor time for every ten files. The job's state
has all facts of the log, so nothing before a checkpoint is needed.
"""
RETENTION = "delta.setTransactionRetentionDuration"
"""Delta's property that makes a table forget transactions."""


class DeltaSink(Rewinding):
    """One job's view of its Delta table, with its progress."""

    def __init__(self, place: Place, job: str) -> None:
        self.path = place.path
        self._storage = storage_of(place.path, place.storage)
        self._options = delta_options(place.storage) or None
        self._job = job
        self._fields = place.partition_by
        self._key = place.key
        self._sequence = 0
        self._positions = Positions()
        self._table: DeltaTable | None = None
        self._window_files = WindowFiles(Path(self.path), job)
        self._windows: WindowState | None = None
        self._account: Account | None = None
        self._state_files = StateFiles(self.path, job, self._storage)

    @property
    def sequence(self) -> int:
        return self._sequence

    @property
    def windows(self) -> WindowState | None:
        return self._windows

    def window_folder(self) -> str:
        return str(self._window_files.folder())

    def _opened(self, topics: Mapping[str, tuple[str, int]]) -> Positions:
        self._positions = Positions()
        self._windows = None
        self._account, self._heir = Account(), ""
        self._load_remembered()
        if not self._sequence:
            return self._positions
        known = self._known()
        found = {name: TopicPositions(topic_id, {}) for name, (topic_id, _) in topics.items()}
        check_same_topics(known, Positions(found))
        mark = self._version(self._app(WINDOWS))
        if mark:
            self._windows = self._window_files.read_state(mark)
            self._window_files.check(self._windows)
            self._window_files.show_late(self._sequence, self._windows)
        self._positions = known
        return known

    def _load_remembered(self) -> None:
        """Load the table and the job's progress.

        Raises SinkInconsistent if the table has forgotten the progress.
        """
        before = -1
        while True:
            self._table = self._load_whole()
            self._sequence = self._version(self._app())
            try:
                self._check_not_forgotten()
            except SinkInconsistent:
                # Another run may have committed since the table was loaded.
                if self._sequence == before:
                    raise
                before = self._sequence
            else:
                return

    def _check_not_forgotten(self) -> None:
        """Check that the transaction counts all commits that other traces show.

        If it does not, the job would write again what it has written. Raises SinkInconsistent.

        A state file of the next commit belongs to a run that was killed before it made that commit.
        The exception is a state file of the first commit when the log no longer reaches back to the
        table's beginning: it may be the only remaining trace of that commit.
        """
        known = self._sequence
        mark = max(self._state_files.marks(), default=0)
        written = sequence_of(mark)
        if written > known + 1:
            raise self._forgotten(f"{self.path}/_vdl/state/{self._job}/{mark}.json", written)
        if self._table is None or (known and written <= known):
            return
        facts = self._last_facts()
        if facts is not None and int(facts["sequence"]) > known:
            raise self._forgotten("the table's log", int(facts["sequence"]))
        if known:
            return
        if written and len(self._table.history(HISTORY_MAX)) <= self._table.version():
            raise self._forgotten(f"{self.path}/_vdl/state/{self._job}/{mark}.json", written)
        own = [path for path in self._all_files() if self._writer_of(path) == self._job]
        if own:
            raise self._forgotten(f"the name of a file, {own[0]}", 1)

    def _forgotten(self, witness: str, number: int) -> SinkInconsistent:
        what = f"the job {self._job} has committed {self._sequence} batches by the transaction of"
        return SinkInconsistent(
            f"{self.path}: {what} the table, but {number} or more by {witness}; continuing "
            f"would write rows twice. A table with {RETENTION} forgets transactions"
        )

    def _load_whole(self) -> DeltaTable | None:
        """Load the table, after reverting an upsert that a power cut has torn."""
        table = self._load()
        if not self._key or table is None or is_url(self.path):
            return table
        told = json.loads(table.history(1)[0].get(FACTS, "{}"))
        if told.get("job") == self._job and undo_torn(self.path, table, self._storage):
            return self._load()
        return table

    def _known(self) -> Positions:
        """Return the job's positions, and load its account. Raises SinkInconsistent."""
        state = self._state_of(self._job)
        if state is None or state.sequence != self._sequence:
            what = "none" if state is None else f"that of batch {state.sequence}"
            raise SinkInconsistent(
                f"{self.path}: the job {self._job} has committed {self._sequence} batches, and its "
                f"state is {what}: an earlier build has written it; begin a new table"
            )
        self._check_same_key(self._job, state.key)
        self._account, self._heir = state.account, state.heir
        return state.end

    def _state_of(self, job: str) -> JobState | None:
        """Return the state of a job of the loaded table. Raises SinkInconsistent."""
        mark = self._version(_app_of(job, STATE))
        return StateFiles(self.path, job, self._storage).read(mark) if mark else None

    def account(self) -> Account | None:
        return self._account

    def _app(self, *parts: str) -> str:
        return _app_of(self._job, *parts)

    def _version(self, app: str) -> int:
        """Return the version of a transaction, 0 if there is none.

        Each look-up scans all of the table's transactions. Raises SinkInconsistent.
        """
        if self._table is None:
            return 0
        try:
            return int(self._table.transaction_version(app) or 0)
        except DeltaError as error:
            what = "was removed while the job ran" if self._load() is None else str(error)
            raise SinkInconsistent(f"{self.path}: the table {what}") from error

    def _load(self) -> DeltaTable | None:
        try:
            return DeltaTable(self.path, storage_options=self._options)
        except TableNotFoundError:
            return None

    def staging(self, run: str) -> str:
        del run
        folder = staging_folder(self.path, self._job) if self._key else self.path
        self._storage.make_folder(folder)
        return folder

    def check(self, commit: Commit, arrow_schema: Any) -> None:
        if not commit.start.goes_on_from(self._positions):
            raise CommitConflict(self.path, "the batch does not begin at the end of the table")
        self._check_unchanged()
        if not self._key:
            check_partitions(self.path, self._partitions(), commit.files)
        if self._table is not None:
            check_rules(self.path, self._table, self._partitions())
            self._check_columns(self._table.schema(), Schema.from_arrow(arrow_schema))
            if self._key:
                check_upsert(self.path, self._table)
            else:
                check_not_null(self.path, self._table, arrow_schema, commit.files, self._storage)

    def commit(self, commit: Commit, arrow_schema: Any) -> None:
        account = None if self._account is None else self._account.plus(commit)
        self._commit(commit, arrow_schema, account)

    def _commit(
        self, commit: Commit, arrow_schema: Any, account: Account | None, former: str = ""
    ) -> None:
        self.check(commit, arrow_schema)
        sequence = self._sequence + 1
        changes = changes_of(commit, self._key, self._storage) if self._key else None
        staged = leftovers(self.path, self._job, commit, self._storage) if self._key else []
        actions = [] if self._key else [self._action(file) for file in commit.files]
        facts = {
            "job": commit.job,
            "sequence": sequence,
            **commit.runner(),
            "batch": commit.batch,
            **offsets_told(commit),
            "rows": commit.rows,
            "dead": commit.dead,
            "late": commit.late,
        }
        now = int(time.time() * 1000)
        transactions = [Transaction(self._app(), sequence, now)]
        outdated: list[Path] = []
        mark = new_mark(sequence)
        state = JobState(sequence, commit.end, account, self._key)
        name = self._state_files.write(mark, state)
        outdated_states = self._state_files.others(name)
        transactions.append(Transaction(self._app(STATE), mark, now))
        transactions += self._ended(former, now)
        if commit.windows is not None:
            name = self._window_files.write_state(mark, commit.windows)
            self._window_files.sync()
            outdated = self._window_files.others(commit.windows, name)
            transactions.append(Transaction(self._app(WINDOWS), mark, now))
        properties = CommitProperties(
            custom_metadata={FACTS: json.dumps(facts)},
            max_commit_retries=0,
            app_transactions=transactions,
        )
        self._storage.sync_names([self.path])
        self._write(actions, Schema.from_arrow(arrow_schema), properties, changes, mark)
        self._sync_log()
        if commit.windows is not None:
            self._window_files.show_late(sequence, commit.windows)
        self._window_files.remove(outdated)
        self._state_files.remove(outdated_states)
        for path in staged:
            self._storage.remove(path)
        self._sequence, self._positions = sequence, commit.end
        self._windows, self._account = commit.windows, account

    def _ended(self, job: str, now: int) -> list[Transaction]:
        """Return the transactions that give another job this one as its heir; none if "".

        A run of that job finds a commit that it has not made, and is refused.
        """
        state = self._state_of(job) if job else None
        if state is None:
            return []
        state = replace(state, sequence=state.sequence + 1, heir=self._job)
        mark = new_mark(state.sequence)
        StateFiles(self.path, job, self._storage).write(mark, state)
        return [
            Transaction(_app_of(job), state.sequence, now),
            Transaction(_app_of(job, STATE), mark, now),
        ]

    def _sync_log(self) -> None:
        """Make the commit survive a power cut, which delta-rs does not ensure."""
        table = self._table
        assert table is not None, self.path
        # The table does not yet include its own commit. Loading it again would take longer.
        table.update_incremental()
        if not is_url(self.path):
            if self._key:
                sync_files(self.path, table.version(), self._storage)
            log = f"{self.path}/_delta_log"
            self._storage.finish(f"{log}/{table.version():020d}.json")
            self._storage.sync_names([log, self.path])
        if self._key:
            tidy_log(table)

    def _action(self, file: DataFile) -> AddAction:
        # A file keeps the name it was written under: no reader has seen it.
        return AddAction(
            path=file.path.removeprefix(f"{self.path}/"),
            size=file.bytes,
            partition_values=dict(
                zip(self._partitions(), map(as_text, file.partition), strict=True)
            ),
            modification_time=int(time.time() * 1000),
            data_change=True,
            stats=json.dumps({"numRecords": file.rows, **self._stats(file)}),
        )

    def _partitions(self) -> list[str]:
        return [field.column for field in self._fields]

    def _stats(self, file: DataFile) -> dict[str, Any]:
        """Return statistics without columns whose value the partition has."""
        names = set(self._partitions())
        return {
            what: {name: value for name, value in known.items() if name not in names}
            for what, known in file.stats.items()
        }

    def _write(
        self,
        actions: list[AddAction],
        schema: Schema,
        properties: CommitProperties,
        changes: Changes | None,
        mark: int,
    ) -> None:
        """Commit, and retry if another writer committed since the table was loaded.

        The version to be written then exists already. It may also be this commit's own: if a
        store's answer is lost, the client repeats the request, and the store refuses the second
        one. So after a failure the table is searched for this commit's mark. Raises CommitConflict,
        PipelineError.
        """
        for attempt in range(ATTEMPTS):
            if attempt:
                self._check_unchanged()
            try:
                if self._table is None:
                    if not self._create(actions, schema, properties):
                        if self._is_made(mark):
                            return
                        continue
                    if not self._key:
                        return
                assert self._table is not None, self.path
                self._fit_columns(self._table, schema)
                if changes is not None and changes.rows.num_rows + changes.truncates:
                    check_rows(self.path, self._table, changes, self._partitions())
                    merge(self._table, changes, self._key, properties)
                    if self._is_made(mark):
                        return
                    # The merge changed nothing, as with keys that the table does not have.
                    self._check_unchanged()
                self._table.create_write_transaction(
                    actions,
                    "append",
                    schema,
                    self._partitions() or None,
                    commit_properties=properties,
                )
            except (CommitFailedError, DeltaError, OSError) as error:
                if self._is_made(mark):
                    return
                if not isinstance(error, CommitFailedError):
                    raise PipelineError(f"{self.path}: {error}") from error
                continue
            return
        raise CommitConflict(self.path, f"{ATTEMPTS} commits failed")

    def _is_made(self, mark: int) -> bool:
        """Return True if the table has the commit of this mark."""
        self._refresh()
        return self._version(self._app(STATE)) == mark

    def _refresh(self) -> None:
        """Load the table, or what was committed to it since."""
        if self._table is None:
            self._table = self._load()
        else:
            self._table.update_incremental()

    def _create(
        self, actions: list[AddAction], schema: Schema, properties: CommitProperties
    ) -> bool:
        """Create the table with a first commit; return False if another run was faster.

        A table for upserts begins without rows, and without a commit of the job.
        """
        try:
            create_table_with_add_actions(
                self.path,
                schema,
                actions,
                mode="error",
                commit_properties=None if self._key else properties,
                storage_options=self._options,
                partition_by=self._partitions() or None,
                configuration=PROPERTIES,
            )
        except DeltaError:
            # delta-rs has no separate error for an existing table.
            if self._load() is None:
                raise
            return False
        self._table = self._load()
        return True

    def _fit_columns(self, table: DeltaTable, schema: Schema) -> None:
        """Add columns that the table does not have yet. Raises SinkInconsistent, CommitConflict."""
        known = table.schema()
        self._check_columns(known, schema)
        names = {field.name for field in known.fields}
        added = [field for field in schema.fields if field.name not in names]
        if added:
            table.alter.add_columns(added)
            # This is a commit of its own; another run may have committed before it.
            self._check_unchanged()

    def _check_columns(self, known: Schema, found: Schema) -> None:
        """Check that the rows' columns fit the table's. Raises SinkInconsistent."""
        change = change_of(_lines(known), _lines(found))
        if change.breaking:
            raise SinkInconsistent(f"{self.path}: {problem_of(change)}")
        if change.widened:
            raise SinkInconsistent(
                f"{self.path}: its columns have changed: {', '.join(change.widened)} is wider "
                "than in the table, whose files have the narrower type; rewrite the table, or "
                "cast in a step"
            )

    def _check_unchanged(self) -> None:
        """Check that no other run has committed for this job, and that its rows are still there.

        Raises CommitConflict, SinkInconsistent.
        """
        self._refresh()
        found = self._version(self._app())
        if found < self._sequence:
            raise self._forgotten("this run", self._sequence)
        if found != self._sequence:
            with suppress(SinkInconsistent):  # A still later commit has removed it.
                state = self._state_of(self._job)
                self._heir = "" if state is None else state.heir
            self._check_not_succeeded()
            what = f"the job is at batch {found}, expected {self._sequence}"
            raise CommitConflict(self.path, what, self.last_run())
        self._check_history()

    def last_run(self) -> str:
        return by_whom(self._last_facts())

    def notes(self) -> list[CommitNote]:
        return [
            CommitNote(
                int(facts["sequence"]),
                Positions.from_json(facts.get("start", {})),
                Positions.from_json(facts.get("end", {})),
                int(facts["rows"]),
                int(facts["dead"]),
                int(facts.get("late", 0)),
            )
            for facts in reversed(self._facts())
        ]

    def _last_facts(self) -> dict[str, Any] | None:
        for limit in (1, 64, HISTORY_MAX):
            found = self._facts(limit)
            if found:
                return found[0]
        return None

    def _facts(self, limit: int = HISTORY_MAX) -> list[dict[str, Any]]:
        """Return the facts of this job's commits, newest first, as far as the history reaches."""
        if self._table is None:
            self._table = self._load()
        if self._table is None:
            return []
        found: list[dict[str, Any]] = []
        for entry in self._table.history(limit):
            facts = json.loads(entry.get(FACTS, "{}"))
            if facts.get("job") == self._job:
                found.append(facts)
        return found

    # --- after a table was put back, or a job was renamed ----------------------------------------
    def _told(self) -> Mapping[int, Mapping[str, Any]]:
        return {int(facts["sequence"]): facts for facts in self._facts()}

    def _schema(self) -> pa.Schema:
        assert self._table is not None, self.path
        return pa.schema(self._table.schema().to_arrow())

    def _jobs(self) -> set[str]:
        """Return the jobs that have ever written to the table."""
        return {job for job in self._state_files.jobs() if self._version(_app_of(job, STATE))}

    def other_jobs(self) -> Mapping[str, JobState]:
        states = {job: self._state_of(job) for job in self._jobs() - {self._job}}
        return {job: one for job, one in states.items() if one is not None and not one.heir}

    def _put_back(self) -> tuple[bool, Shown]:
        """Return True if the table shows less than the job has committed, and what it shows."""
        if not self._sequence or self._table is None:
            return False, Shown(None)
        for limit in (1, 64, HISTORY_MAX):
            entries = self._table.history(limit)
            versions = {int(one["version"]): self._version_of(one) for one in entries}
            is_back, found = is_put_back(versions, self._table.version(), self._sequence)
            if found.facts is not None or found.is_known or len(entries) < limit:
                break
        return is_back, found

    def _version_of(self, entry: Mapping[str, Any]) -> Version:
        number = int(entry["version"])
        if entry.get("operation") == "RESTORE":
            told = entry.get("operationParameters", {}).get("version")
            target = int(told) if str(told).isdecimal() else GONE
            return Version(target, None, target)
        facts = json.loads(entry.get(FACTS, "{}"))
        is_own = facts.get("job") == self._job
        return Version(number - 1 if number else None, facts if is_own else None, number)

    def columns(self) -> str:
        return "" if self._table is None else _lines(self._table.schema())

    def files(self) -> list[str]:
        """Return the files, without those known to be of other jobs."""
        return [path for path in self._all_files() if self._writer_of(path) in {"", self._job}]

    def unclear_files(self) -> list[str]:
        """Return files of unknown writers if other jobs write to the table, too; else nothing."""
        paths = self._all_files()
        writers = {self._writer_of(path) for path in paths} | self._jobs()
        if not writers - {"", self._job}:
            return []
        return [path for path in paths if not self._writer_of(path)]

    def compact(self, bytes_target: int) -> Compacted:
        """Compact in a commit of its own, of Delta's kind.

        Readers of older versions keep their files. Raises PipelineError, CommitConflict.
        """
        table = self._load()
        if table is None:
            return Compacted()
        check_rules(self.path, table, list(table.metadata().partition_columns))
        writers = {self._writer_of(path) for path in self._all_files()}
        if writers - {"", self._job}:
            what = "other jobs write to this table too: a compaction would mix their rows"
            raise PipelineError(f"{self.path}: {what}")
        try:
            told = table.optimize.compact(target_size=bytes_target)
        except CommitFailedError as error:
            raise CommitConflict(self.path, str(error)) from error
        return Compacted(before=int(told["numFilesRemoved"]), after=int(told["numFilesAdded"]))

    def vacuum(self, retain_hours: int) -> Compacted:
        """Remove files that are no longer needed, and those of killed runs, which no commit names.

        Raises PipelineError for less than the table's own retention: files of a batch in progress
        could be removed.
        """
        table = self._load()
        if table is None:
            return Compacted()
        try:
            removed = table.vacuum(retention_hours=retain_hours, dry_run=False, full=True)
        except DeltaError as error:
            raise PipelineError(f"{self.path}: {error}") from error
        return Compacted(removed=len(removed))

    def _all_files(self) -> list[str]:
        table = self._load()
        if table is None:
            return []
        # Names are URL-encoded; `file_uris` would encode the folder's name, but not its files'.
        names = pa.table(table.get_add_actions(flatten=True)).column("path").to_pylist()
        paths = [unquote(name) for name in names]
        return [
            path if is_url(path) else str(Path(path)) if path[:1] == "/" else f"{self.path}/{path}"
            for path in (re.sub(r"^file://", "", path) for path in paths)
        ]

    def _writer_of(self, path: str) -> str:
        """Return the job that has written a file; "" if unknown, as after a compaction."""
        found = WRITER.match(Path(path).name)
        return "" if found is None else found["job"]


def _app_of(job: str, *parts: str) -> str:
    """Return the name of a job's transactions."""
    return "/".join(["vdl", job, *parts])


def _lines(schema: Schema) -> str:
    """Return columns in the form of `table_columns`, in Delta's types.

    Names inside nested types differ from Arrow's.
    """
    return schema_lines(pa.schema(schema.to_arrow()))
