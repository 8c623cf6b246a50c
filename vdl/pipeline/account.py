"""What all commits of a job come to: where it began, and how much it has written since.

A table that keeps every commit adds them up. Of one whose log is cleaned (Delta's, after thirty
days) what is left of the commits is a part, and a part looks like a whole: so such a table keeps
its account itself, and says None where it cannot know.

Must not know: Spark, Kafka, formats of tables.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from vdl.pipeline.positions import Positions
from vdl.pipeline.table import Commit, CommitNote, TableSink


@dataclass(frozen=True, slots=True)
class Account:
    """Of the commits from the first one on. `begin`: where the first one began; partitions that it
    does not have came later. `late`: as in `Commit`."""

    begin: Positions = field(default_factory=Positions)
    rows: int = 0
    dead: int = 0
    late: int = 0

    def plus(self, commit: Commit | CommitNote) -> Account:
        """With the next commit."""
        return Account(
            self.begin or commit.start,
            self.rows + commit.rows,
            self.dead + commit.dead,
            self.late + commit.late,
        )


@runtime_checkable
class KeepsAccount(Protocol):
    """A table that may outlive what its commits say."""

    def account(self) -> Account | None:
        """Up to the last commit, once the table is open; None: it is not known."""


def account_of(table: TableSink) -> Account | None:
    """Of a table that was opened, up to its `sequence`; None: it is not known."""
    if isinstance(table, KeepsAccount):
        return table.account()
    return added_up(table.notes(), end=table.sequence)


def added_up(
    notes: Sequence[CommitNote], *, end: int, known: Account | None = None, counted: int = 0
) -> Account | None:
    """`known`, which is of the first `counted` commits, with those behind up to number `end`; None
    where one of them is missing among `notes` (oldest first)."""
    found = known or Account()
    behind = [note for note in notes if counted < note.sequence <= end]
    if [note.sequence for note in behind] != list(range(counted + 1, end + 1)):
        return None
    for note in behind:
        found = found.plus(note)
    return found
