"""Detection and repair after a table was restored to an older version.

The job's progress stays as it was then (a transaction, a property), while its rows are gone: it
would continue after a gap that is never filled. The versions that the table shows reveal this: each
has a parent, and some are commits of the job. `vdl pipeline rewind` puts the job back to the last
of these.

Does not depend on Spark, Kafka, or table formats.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vdl.pipeline.account import Account
from vdl.pipeline.errors import PipelineError, SinkInconsistent
from vdl.pipeline.job_state import JobState
from vdl.pipeline.positions import Positions
from vdl.pipeline.table import Commit, WindowState
from vdl.pipeline.table_columns import schema_lines, types_of

GONE = -1
"""A version that is not known any more."""


@dataclass(frozen=True, slots=True)
class Version:
    """Version of a table.

    `parent`: the version it was made from, None for the first; `facts`: its contents as a commit of
    the job, None if it is another's, or restores an older version.
    """

    parent: int | None
    facts: Mapping[str, Any] | None
    age: int = 0
    """Order of creation: later versions have greater ages.

    A restoring version has that of the version it restores.
    """


@dataclass(frozen=True, slots=True)
class Shown:
    """The job's last commit among those that a table shows.

    `facts` None: there is none, or, if not `is_known`, the known versions do not reach back to it.
    `age`: of the oldest version that was looked at.
    """

    facts: Mapping[str, Any] | None
    is_known: bool = True
    age: int = 0


def shown(versions: Mapping[int, Version], newest: int | None) -> Shown:
    """Follow the known versions from the newest one back to a commit of the job."""
    found, age = newest, 0
    while found is not None:
        version = versions.get(found)
        if version is None:
            return Shown(None, is_known=False, age=age)
        age = version.age
        if version.facts is not None:
            return Shown(version.facts, age=age)
        found = version.parent
    return Shown(None, age=age)


def is_put_back(
    versions: Mapping[int, Version], newest: int | None, sequence: int
) -> tuple[bool, Shown]:
    """Return (True if the table lacks commits of the job up to `sequence`, what it shows)."""
    found = shown(versions, newest)
    if found.facts is not None:
        return int(found.facts["sequence"]) < sequence, found
    if found.is_known:
        return sequence > 0, found
    # A later commit would have been found on the way back; an older one may precede the known
    # versions.
    later = (one for one in versions.values() if one.age > found.age)
    return any(one.facts is not None for one in later), found


class RolledBack(SinkInconsistent):
    """The table was restored to a version before the job's last commits."""

    def __init__(self, path: str, job: str, *, sequence: int, found: Shown) -> None:
        last = 0 if found.facts is None else int(found.facts["sequence"])
        where = f"batch {last}" if found.is_known else "an earlier one"
        super().__init__(
            f"{path}: was restored to an older version: the job {job} has committed {sequence} "
            f"batches, but the table has only those up to {where}; continuing would skip the "
            "others. `vdl pipeline rewind` continues the job at the end of the table"
        )


def account_at(
    account: Account | None, facts: Mapping[int, Mapping[str, Any]], last: int, sequence: int
) -> Account | None:
    """Return the account of a job that is put back from its commit `sequence` to `last`.

    `facts`: sequence → contents of a commit. Return None if a commit in between does not record
    what it wrote.
    """
    behind = [facts.get(n) for n in range(last + 1, sequence + 1)]
    if account is None or None in behind:
        return None
    rows, dead, late = (
        sum(int(one.get(name, 0)) for one in behind if one) for name in ("rows", "dead", "late")
    )
    return Account(account.begin, account.rows - rows, account.dead - dead, account.late - late)


def end_of(path: str, found: Shown, account: Account | None) -> Positions:
    """Return the job's positions according to what the table shows. Raises PipelineError."""
    end = None
    if found.facts is not None:
        end = found.facts.get("end")
    elif found.is_known and account is not None:
        end = account.begin.to_json()
    if not end:
        what = "its versions do not record their source offsets; write it again"
        raise PipelineError(f"{path}: {what}")
    return Positions.from_json(end)


class Rewinding(ABC):
    """Common part of tables that can be restored, and that several jobs may write to."""

    path: str
    _job: str
    _key: tuple[str, ...]
    _sequence: int
    _positions: Positions
    _account: Account | None
    _windows: WindowState | None
    _heir: str = ""
    _alone_in: Mapping[str, tuple[str, int]] = {}
    """Topics of which no other job may have written to the table before this job's first commit."""
    _is_moving: bool = False
    """True while `_move` commits."""

    def open(self, topics: Mapping[str, tuple[str, int]]) -> Positions:
        """Open the table as `TableSink.open` does."""
        known = self._opened(topics)
        self._check_not_succeeded()
        self._check_not_put_back()
        return known

    def rewind(self, topics: Mapping[str, tuple[str, int]], run: Mapping[str, Any]) -> Positions:
        """Open the table and move the job to the positions that it shows, in a commit without rows.

        Returns the positions. `run`: as returned by `Commit.runner`. Raises PipelineError,
        CommitConflict.
        """
        known = self._opened(topics)
        is_back, found = self._put_back()
        if not is_back or self._heir:
            return known
        if self._windows is not None:
            raise PipelineError(f"{self.path}: open windows cannot be restored; write it again")
        end = end_of(self.path, found, self._account)
        last = 0 if found.facts is None else int(found.facts["sequence"])
        account = account_at(self._account, self._told(), last, self._sequence)
        self._move(end, account, run)
        return end

    def take_over(self, other: str, run: Mapping[str, Any]) -> Positions:
        """Let a new job continue in an open table from the positions of another one.

        The other one is ended by the same commit: a run of it is refused from then on. Raises
        PipelineError, CommitConflict.
        """
        found = self.other_jobs().get(other)
        is_new = not self._sequence or self._heir == other
        if found is None or not is_new:
            what = (
                f"has committed {self._sequence} batches"
                if found
                else (f"{other} is not a job of the table")
            )
            raise PipelineError(f"{self.path}: the job {self._job} cannot take over: {what}")
        self._check_same_key(other, found.key)
        self._move(found.end, Account(found.end), run, former=other)
        return found.end

    def begin_beside(self, start: Positions, run: Mapping[str, Any]) -> None:
        """Let a new job begin in an open table that other jobs of the same topics write to.

        Raises CommitConflict.
        """
        self._move(start, Account(start), run)

    def check_alone(self, topics: Mapping[str, tuple[str, int]]) -> None:
        """Check that no other job has written rows of these topics to the open table.

        A table in which this job is new checks it again with the job's first commit: another job
        may have begun meanwhile. Raises SinkInconsistent.
        """
        self._alone_in = topics
        if self._sequence or not topics:
            return
        for other, state in sorted(self.other_jobs().items()):
            same = [
                topic
                for topic, known in state.end.topics.items()
                if topic in topics and known.topic_id == topics[topic][0]
            ]
            if same:
                job = self._job
                raise SinkInconsistent(
                    f"{self.path}: the job {other} has written {', '.join(same)} to it, and {job} "
                    f"is new: its rows would be written twice. If {job} is a new name of that job, "
                    f"run `vdl pipeline rewind --of {other}` to continue; to start at "
                    "source.start, run `vdl pipeline rewind --beside`"
                )

    def _move(
        self, end: Positions, account: Account | None, run: Mapping[str, Any], former: str = ""
    ) -> None:
        """Commit no rows, and these positions. `former`: a job whose place this one takes."""
        columns = self._schema()
        lines = schema_lines(columns)
        commit = Commit(
            self._job, run["run"], 0, self._positions, end, 0, 0, (), lines,
            host=run["host"], since_ms=run["since_ms"],
        )  # fmt: skip
        self._is_moving = True
        try:
            self._commit(commit, columns, account, former)
        finally:
            self._is_moving = False
        self._heir = ""

    def _check_history(self) -> None:
        """Check that the table, as last loaded, may get another batch of this job.

        It may have been restored, and another job may have begun, while this run was at work.
        Raises SinkInconsistent.
        """
        if not self._is_moving:
            self._check_not_put_back()
            self.check_alone(self._alone_in)

    def _check_same_key(self, job: str, key: tuple[str, ...] | None) -> None:
        """Check that the rows that `job` has written are those of this job's key, or of none.

        A key may get more columns, and others if a column of it was renamed in the table. Raises
        SinkInconsistent.
        """
        if key in {None, self._key}:
            return
        old, new = set(key or ()), set(self._key)
        if old and new and (old < new or not old <= set(types_of(self.columns()))):
            return
        was, wanted = (
            f"one row for each {', '.join(one)}" if one else "a row for each record"
            for one in (key or (), self._key)
        )
        raise SinkInconsistent(
            f"{self.path}: the job {job} has written {was}, and this job file asks for {wanted} "
            "(sink.mode, sink.key): the table would have rows of both kinds; use a new table"
        )

    def _check_not_succeeded(self) -> None:
        """Raise SinkInconsistent if another job has taken this one's place."""
        if self._heir:
            raise SinkInconsistent(
                f"{self.path}: the job {self._heir} has taken the place of {self._job}: rows would "
                f"be written twice. To go on as {self._job}, stop {self._heir} and run `vdl "
                f"pipeline rewind --of {self._heir}`"
            )

    def _check_not_put_back(self) -> None:
        """Raise RolledBack if the table was restored."""
        is_back, found = self._put_back()
        if is_back:
            raise RolledBack(self.path, self._job, sequence=self._sequence, found=found)

    # --- parts specific to each kind of table ----------------------------------------------------
    @abstractmethod
    def columns(self) -> str:
        """Return the columns as `TableSink.columns` does."""

    @abstractmethod
    def other_jobs(self) -> Mapping[str, JobState]:
        """Return the states of other jobs of the open table, without those that have an heir."""

    @abstractmethod
    def _opened(self, topics: Mapping[str, tuple[str, int]]) -> Positions:
        """Open the table as `TableSink.open` does, even if it was restored."""

    @abstractmethod
    def _put_back(self) -> tuple[bool, Shown]:
        """Return the result of `is_put_back` for the open table."""

    @abstractmethod
    def _told(self) -> Mapping[int, Mapping[str, Any]]:
        """Return sequence → contents of the job's commit, for known commits."""

    @abstractmethod
    def _schema(self) -> Any:
        """Return the table's columns as an Arrow schema."""

    @abstractmethod
    def _commit(
        self, commit: Commit, arrow_schema: Any, account: Account | None, former: str = ""
    ) -> None:
        """Commit as `TableSink.commit` does, with that account afterwards.

        `former`: another job of the table, which has this one as its heir from then on.
        """
