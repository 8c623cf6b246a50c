"""What a table shows of a job, after somebody has put it back to an older version.

How far a job is stays as it was then (a transaction, a property), while its rows are gone: it would
go on behind a hole that is never filled. The versions that the table shows tell: each is made of
another one, and some are commits of the job. `vdl pipeline rewind` puts the job back to the last of
these.

Must not know: Spark, Kafka, formats of tables.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vdl.pipeline.account import Account
from vdl.pipeline.errors import PipelineError, SinkInconsistent
from vdl.pipeline.positions import Positions
from vdl.pipeline.table import Commit, WindowState
from vdl.pipeline.table_columns import schema_lines

GONE = -1
"""A version that is not known any more."""


@dataclass(frozen=True, slots=True)
class Version:
    """Of a table. `parent`: the version it was made of, None: it is the first; `facts`: what it
    says as a commit of the job, None: it is another's, or puts an older version back."""

    parent: int | None
    facts: Mapping[str, Any] | None
    age: int = 0
    """A version that is made later has a greater one; of one that puts another back, that one's."""


@dataclass(frozen=True, slots=True)
class Shown:
    """The job's last commit among those that a table shows. `facts` None: there is none, or, where
    it is not `is_known`, the versions that are known do not reach back to it. `age`: of the oldest
    one that was looked at."""

    facts: Mapping[str, Any] | None
    is_known: bool = True
    age: int = 0


def shown(versions: Mapping[int, Version], newest: int | None) -> Shown:
    """By the versions that are known, from the newest one back."""
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
    """Whether the table shows less than the job's commits up to `sequence`, and what it shows."""
    found = shown(versions, newest)
    if found.facts is not None:
        return int(found.facts["sequence"]) < sequence, found
    if found.is_known:
        return sequence > 0, found
    # A later commit would have been met on the way back; an older one may lie behind what is known.
    later = (one for one in versions.values() if one.age > found.age)
    return any(one.facts is not None for one in later), found


class RolledBack(SinkInconsistent):
    """The table was put back to a version before the job's last commits."""

    def __init__(self, path: str, job: str, *, sequence: int, found: Shown) -> None:
        last = 0 if found.facts is None else int(found.facts["sequence"])
        where = f"batch {last}" if found.is_known else "an earlier one"
        super().__init__(
            f"{path}: was put back to an older version: the job {job} has committed {sequence} "
            f"batches, the table shows those up to {where}: to go on would leave the others out. "
            "`vdl pipeline rewind` lets the job go on where the table ends"
        )


def account_at(
    account: Account | None, facts: Mapping[int, Mapping[str, Any]], last: int, sequence: int
) -> Account | None:
    """Of a job that is put back from its commit `sequence` to `last`; None where a commit between
    does not say what it wrote. `facts`: sequence → what a commit says."""
    behind = [facts.get(n) for n in range(last + 1, sequence + 1)]
    if account is None or None in behind:
        return None
    rows, dead, late = (
        sum(int(one.get(name, 0)) for one in behind if one) for name in ("rows", "dead", "late")
    )
    return Account(account.begin, account.rows - rows, account.dead - dead, account.late - late)


def end_of(path: str, found: Shown, account: Account | None) -> Positions:
    """Where the job is by what the table shows. Raises PipelineError."""
    end = None
    if found.facts is not None:
        end = found.facts.get("end")
    elif found.is_known and account is not None:
        end = account.begin.to_json()
    if not end:
        what = "its versions do not say at which offsets they end: write it anew"
        raise PipelineError(f"{path}: {what}")
    return Positions.from_json(end)


class Rewinding(ABC):
    """What tables have in common that can be put back, and that several jobs may write to."""

    path: str
    _job: str
    _sequence: int
    _positions: Positions
    _account: Account | None
    _windows: WindowState | None

    def rewind(self, topics: Mapping[str, tuple[str, int]], run: Mapping[str, Any]) -> Positions:
        """Open the table and put the job to where that ends by what it shows, in a commit without
        rows; that place. `run`: as `Commit.runner` has it. Raises PipelineError, CommitConflict."""
        known = self._opened(topics)
        is_back, found = self._put_back()
        if not is_back:
            return known
        if self._windows is not None:
            raise PipelineError(f"{self.path}: open windows cannot be put back: write it anew")
        end = end_of(self.path, found, self._account)
        last = 0 if found.facts is None else int(found.facts["sequence"])
        account = account_at(self._account, self._told(), last, self._sequence)
        self._move(end, account, run)
        return end

    def take_over(self, other: str, run: Mapping[str, Any]) -> Positions:
        """Let the job, which is new, go on where another one is in an open table. Raises
        PipelineError, CommitConflict."""
        found = self.other_jobs().get(other)
        if found is None or self._sequence:
            what = f"has begun: {self._sequence} batches" if found else f"{other} is none of its"
            raise PipelineError(f"{self.path}: the job {self._job} cannot go on there: {what}")
        self._move(found, Account(found), run)
        return found

    def begin_beside(self, start: Positions, run: Mapping[str, Any]) -> None:
        """Let the job, which is new, begin in an open table that other jobs of the same topics
        write to. Raises CommitConflict."""
        self._move(start, Account(start), run)

    def _move(self, end: Positions, account: Account | None, run: Mapping[str, Any]) -> None:
        columns = self._schema()
        lines = schema_lines(columns)
        commit = Commit(
            self._job, run["run"], 0, self._positions, end, 0, 0, (), lines,
            host=run["host"], since_ms=run["since_ms"],
        )  # fmt: skip
        self._commit(commit, columns, account)

    def _check_not_put_back(self) -> None:
        """Raises RolledBack."""
        is_back, found = self._put_back()
        if is_back:
            raise RolledBack(self.path, self._job, sequence=self._sequence, found=found)

    # --- what each kind of table does in its own way --------------------------------------------
    @abstractmethod
    def other_jobs(self) -> Mapping[str, Positions]:
        """Where the other jobs are that have written to the open table."""

    @abstractmethod
    def _opened(self, topics: Mapping[str, tuple[str, int]]) -> Positions:
        """As `TableSink.open`, whatever the table shows."""

    @abstractmethod
    def _put_back(self) -> tuple[bool, Shown]:
        """Of the open table, as `is_put_back`."""

    @abstractmethod
    def _told(self) -> Mapping[int, Mapping[str, Any]]:
        """Sequence → what the job's commit says, as far as they are known."""

    @abstractmethod
    def _schema(self) -> Any:
        """The table's columns as Arrow has them."""

    @abstractmethod
    def _commit(self, commit: Commit, arrow_schema: Any, account: Account | None) -> None:
        """As `TableSink.commit`, with that account behind it."""


def check_not_renamed(table: Any, job: str, ids: Mapping[str, tuple[str, int]]) -> None:
    """That no other job has written a table, in which this one is new, from the same topics. Raises
    SinkInconsistent."""
    if not isinstance(table, Rewinding):
        return
    for other, positions in sorted(table.other_jobs().items()):
        same = [
            topic
            for topic, known in positions.topics.items()
            if topic in ids and known.topic_id == ids[topic][0]
        ]
        if same:
            raise SinkInconsistent(
                f"{table.path}: the job {other} has written {', '.join(same)} to it, and {job} is "
                "new: its rows would be there twice. If that job is now called so, "
                f"`vdl pipeline rewind --of {other}` lets this one go on there; "
                "`vdl pipeline rewind --beside` lets it begin at source.start"
            )
