"""A Delta table, committed from the driver by delta-rs: no jar, and a third of a second a commit.

Executors write Parquet files into the table's folder, where nobody sees them until a commit names
them. Two of the commit's transactions are the job's: `(vdl/job, sequence)` says how far it has
come, and `(vdl/job/state, mark)` names a file that says the rest (`state_files`): the next offset
of every partition, where the job began, and how many rows, dead and late ones there were in all.
Delta keeps the last version of each transaction for ever, so no history has to be searched, and
other writers (OPTIMIZE, deletions) come between without harm. A job with windows has one
transaction more, `(vdl/job/windows, mark)`: that mark names a file that says what its open windows
are (`window_files`). VACUUM leaves such files alone, because their folder's name begins with an
underscore.

Earlier releases had a transaction for each partition, `(vdl/job/topic/topic id/partition, next
offset)`, and others for the account, which made commits of thousands of partitions large and their
opening slow. They are read where there is no state (`_known_before`), and written no more.

Files that no commit names are removed by VACUUM, as those of any writer.

Must not know: Spark, Kafka.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping
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

from vdl.pipeline.account import Account, added_up
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
from vdl.pipeline.partitioning import as_text
from vdl.pipeline.positions import Positions, TopicPositions, check_same_topics
from vdl.pipeline.rollback import (
    GONE,
    Rewinding,
    Shown,
    Version,
    is_put_back,
)
from vdl.pipeline.state_files import JobState, StateFiles, new_mark, sequence_of
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
"""Other writers of the table may be quicker; another run of the same job may not."""
HISTORY_MAX = 100_000
FACTS = "vdl"
"""Key of what a commit's metadata says about its batch."""
STATE, WINDOWS = "state", "windows"
COUNTED, ROWS, DEAD, LATE, BEGIN = "counted", "rows", "dead", "late", "begin"
"""Transactions of the account, of earlier releases."""
PROPERTIES = {"delta.logRetentionDuration": "interval 1 hours"}
"""Of a table that is made here. Each commit lists the log, so it takes longer with every file in
there: 0.1 ms of processor time for ten. What the log says of this job is in its state, too, so
nothing of it is needed that is behind a checkpoint."""
RETENTION = "delta.setTransactionRetentionDuration"
"""Delta's property that makes a table forget transactions."""


class DeltaSink(Rewinding):
    """See above."""

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
        self._runs_known: Mapping[str, str] | None = None
        self._state_files = StateFiles(self.path, job, self._storage)

    @property
    def sequence(self) -> int:
        return self._sequence

    @property
    def windows(self) -> WindowState | None:
        return self._windows

    def window_folder(self) -> str:
        return str(self._window_files.folder())

    def open(self, topics: Mapping[str, tuple[str, int]]) -> Positions:
        known = self._opened(topics)
        self._check_not_put_back()
        return known

    def _opened(self, topics: Mapping[str, tuple[str, int]]) -> Positions:
        self._positions = Positions()
        self._windows = None
        self._account, self._runs_known = Account(), None
        self._load_remembered()
        if not self._sequence:
            return self._positions
        known = self._known(topics)
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
        """Load the table, and how far the job is in it. Raises SinkInconsistent if the table has
        forgotten that."""
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
        """That the transaction knows of all commits that anything else knows of. Where it does not,
        its number would make the job write again what it has written. Raises SinkInconsistent.

        A state file of the next commit is of one that was killed before it was made, but where that
        would be the first one and the log no longer reaches back to the table's beginning: then it
        may be all that is left of it.
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
            f"{self.path}: {what} the table, and {number} or more by {witness}: to go on would "
            f"write rows again. A table with {RETENTION} forgets transactions"
        )

    def _load_whole(self) -> DeltaTable | None:
        """Without an upsert that a power cut has torn."""
        table = self._load()
        if not self._key or table is None or is_url(self.path):
            return table
        told = json.loads(table.history(1)[0].get(FACTS, "{}"))
        if told.get("job") == self._job and undo_torn(self.path, table, self._storage):
            return self._load()
        return table

    def _known(self, topics: Mapping[str, tuple[str, int]]) -> Positions:
        """Where the job is, and its account. Raises SinkInconsistent."""
        mark = self._version(self._app(STATE))
        state = self._state_files.read(mark) if mark else None
        if state is None or state.sequence != self._sequence:
            return self._known_before(topics, state)
        self._account = state.account
        return state.end

    def _known_before(
        self, topics: Mapping[str, tuple[str, int]], state: JobState | None
    ) -> Positions:
        """As an earlier release has kept it, whose commit is the last: by what this says, or by
        transactions. `state`: of a commit before."""
        facts = self._last_facts()
        told = facts is not None and "end" in facts
        known = Positions.from_json(facts["end"]) if facts and told else self._from_ids(topics)
        if not known:
            raise SinkInconsistent(
                f"{self.path}: the job {self._job} has committed {self._sequence} batches, but not "
                f"of the topics there are now"
            )
        self._account = self._account_before(known, state)
        return known

    def _from_ids(self, topics: Mapping[str, tuple[str, int]]) -> Positions:
        """Positions from the transactions alone, of the topics that there are."""
        found: dict[str, TopicPositions] = {}
        for topic, (topic_id, count) in topics.items():
            offsets = {
                partition: version - 1
                for partition in range(count)
                if (version := self._version(self._app(topic, topic_id, partition)))
            }
            if offsets:
                found[topic] = TopicPositions(topic_id, offsets)
        return Positions(found)

    def account(self) -> Account | None:
        return self._account

    def _account_before(self, positions: Positions, state: JobState | None) -> Account | None:
        """Of a table whose last commit is of an earlier release."""
        counted = self._version(self._app(COUNTED))
        kept = self._kept_account(positions) if counted else None
        if state is not None and state.sequence > counted:
            counted, kept = state.sequence, state.account
        if counted == self._sequence:
            return kept
        # The last commits are of a release that kept no account.
        if counted and kept is None:
            return None
        return added_up(self.notes(), end=self._sequence, known=kept, counted=counted)

    def _kept_account(self, positions: Positions) -> Account | None:
        """Of transactions, which have numbers one higher; 0: not known."""
        rows, dead, late = (self._version(self._app(name)) for name in (ROWS, DEAD, LATE))
        if not rows:
            return None
        begin: dict[str, TopicPositions] = {}
        for topic, known in positions.topics.items():
            offsets = {
                partition: version - 1
                for partition in known.offsets
                if (version := self._version(self._app(BEGIN, topic, known.topic_id, partition)))
            }
            if offsets:
                begin[topic] = TopicPositions(known.topic_id, offsets)
        return Account(Positions(begin), rows - 1, dead - 1, late - 1)

    def _app(self, *parts: object) -> str:
        return "/".join(["vdl", self._job, *map(str, parts)])

    def _version(self, app: str) -> int:
        """Of a transaction; 0: there is none. Each look-up goes over all that the table has."""
        if self._table is None:
            return 0
        return int(self._table.transaction_version(app) or 0)

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
            raise CommitConflict(self.path, "the batch does not begin where the table ends")
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

    def _commit(self, commit: Commit, arrow_schema: Any, account: Account | None) -> None:
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
        name = self._state_files.write(mark, JobState(sequence, commit.end, account))
        outdated_states = self._state_files.others(name)
        transactions.append(Transaction(self._app(STATE), mark, now))
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

    def _sync_log(self) -> None:
        """Make the commit survive a power cut: delta-rs leaves that to the file system."""
        table = self._table
        assert table is not None, self.path
        # It does not know yet what it has written itself. To load it anew would take longer.
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
        # A file keeps the name it was written under: nobody has seen it.
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
        """Without columns whose value the partition says."""
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
        """Commit, again where another writer was quicker since the last look: then the version that
        is to be written is there already. Raises CommitConflict."""
        for attempt in range(ATTEMPTS):
            if attempt:
                self._check_unchanged()
            try:
                if self._table is None:
                    if not self._create(actions, schema, properties):
                        continue
                    if not self._key:
                        return
                assert self._table is not None, self.path
                self._fit_columns(self._table, schema)
                if changes is not None and changes.rows.num_rows + changes.truncates:
                    check_rows(self.path, self._table, changes, self._partitions())
                    merge(self._table, changes, self._key, properties)
                    self._table.update_incremental()
                    if self._version(self._app(STATE)) == mark:
                        return
                    # It changes nothing, as of keys that the table does not have.
                    self._check_unchanged()
                self._table.create_write_transaction(
                    actions,
                    "append",
                    schema,
                    self._partitions() or None,
                    commit_properties=properties,
                )
            except CommitFailedError:
                continue
            return
        raise CommitConflict(self.path, f"{ATTEMPTS} commits came to nothing")

    def _create(
        self, actions: list[AddAction], schema: Schema, properties: CommitProperties
    ) -> bool:
        """Make the table with a first commit; False: another run was quicker. A table for upserts
        begins without rows, and is not the job's yet."""
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
        except CommitFailedError:
            return False
        except DeltaError:
            # What is there already is no error of its own.
            if self._load() is None:
                raise
            return False
        self._table = self._load()
        return True

    def _fit_columns(self, table: DeltaTable, schema: Schema) -> None:
        """Add columns that the table does not have yet. Raises SinkInconsistent."""
        known = table.schema()
        self._check_columns(known, schema)
        names = {field.name for field in known.fields}
        added = [field for field in schema.fields if field.name not in names]
        if added:
            table.alter.add_columns(added)
            # A commit of its own, which stands behind that of another run where this was quicker.
            self._check_unchanged()

    def _check_columns(self, known: Schema, found: Schema) -> None:
        """Raises SinkInconsistent."""
        change = change_of(_lines(known), _lines(found))
        if change.breaking:
            raise SinkInconsistent(f"{self.path}: {problem_of(change)}")
        if change.widened:
            raise SinkInconsistent(
                f"{self.path}: its columns have changed: {', '.join(change.widened)} is wider than "
                "in the table, whose files hold the narrower type: rewrite it, or cast in a step"
            )

    def _check_unchanged(self) -> None:
        """That nobody has committed for this job since. Raises CommitConflict."""
        if self._table is None:
            self._table = self._load()
        else:
            self._table.update_incremental()
        found = self._version(self._app())
        if found < self._sequence:
            raise self._forgotten("this run", self._sequence)
        if found != self._sequence:
            what = f"the job is at batch {found}, not {self._sequence}"
            raise CommitConflict(self.path, what, self.last_run())

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
        """What this job's commits say, newest first, as far as the history reaches back."""
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

    def other_jobs(self) -> Mapping[str, Positions]:
        found = {}
        for job in self._state_files.jobs() - {self._job}:
            mark = 0
            if self._table is not None:
                mark = int(self._table.transaction_version(f"vdl/{job}/{STATE}") or 0)
            if mark:
                found[job] = StateFiles(self.path, job, self._storage).read(mark).end
        return found

    def _put_back(self) -> tuple[bool, Shown]:
        """Whether the table shows less than what the job has committed, and what it shows."""
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
        """Without those that other jobs have written, as far as it can be told."""
        return [path for path in self._all_files() if self._writer_of(path) in {"", self._job}]

    def unclear_files(self) -> list[str]:
        """Of a table that other jobs write to, too: files that do not say whose rows they have."""
        paths = self._all_files()
        writers = {self._writer_of(path) for path in paths} | set(self._runs().values())
        if not writers - {"", self._job}:
            return []
        return [path for path in paths if not self._writer_of(path)]

    def compact(self, bytes_target: int) -> Compacted:
        """As a commit of its own, of Delta's kind: readers of older versions keep their files."""
        table = self._load()
        if table is None:
            return Compacted()
        check_rules(self.path, table, list(table.metadata().partition_columns))
        writers = {self._writer_of(path) for path in self._all_files()}
        if writers - {"", self._job}:
            what = "other jobs write to this table, too: a compaction would mix their rows"
            raise PipelineError(f"{self.path}: {what}")
        try:
            told = table.optimize.compact(target_size=bytes_target)
        except CommitFailedError as error:
            raise CommitConflict(self.path, str(error)) from error
        return Compacted(before=int(told["numFilesRemoved"]), after=int(told["numFilesAdded"]))

    def vacuum(self, retain_hours: int) -> Compacted:
        """Raises PipelineError for less than the table's own retention: files of a batch under way
        would be among what is removed."""
        table = self._load()
        if table is None:
            return Compacted()
        try:
            removed = table.vacuum(retention_hours=retain_hours, dry_run=False)
        except DeltaError as error:
            raise PipelineError(f"{self.path}: {error}") from error
        return Compacted(removed=len(removed))

    def _all_files(self) -> list[str]:
        table = self._load()
        if table is None:
            return []
        # Names are as in URLs; `file_uris` would have the folder's so, and not those of its files.
        names = pa.table(table.get_add_actions(flatten=True)).column("path").to_pylist()
        paths = [unquote(name) for name in names]
        return [
            path if is_url(path) else str(Path(path)) if path[:1] == "/" else f"{self.path}/{path}"
            for path in (re.sub(r"^file://", "", path) for path in paths)
        ]

    def _writer_of(self, path: str) -> str:
        """The job that has written a file; "" where nobody knows, as when it was compacted."""
        found = WRITER.match(Path(path).name)
        if found is None:
            return ""
        return found["job"] or self._runs().get(found["run"], "")

    def _runs(self) -> Mapping[str, str]:
        """Run → its job, as far as the history reaches back. Files of earlier releases have no more
        than the run in their names."""
        if self._runs_known is None:
            table = self._load()
            history = [] if table is None else table.history(HISTORY_MAX)
            told = [json.loads(entry.get(FACTS, "{}")) for entry in history]
            self._runs_known = {str(f["run"]): str(f["job"]) for f in told if "run" in f}
        return self._runs_known


def _lines(schema: Schema) -> str:
    """Columns as `table_columns` has them, in Delta's types: names inside nested ones differ
    from Arrow's."""
    return schema_lines(pa.schema(schema.to_arrow()))
