"""Totals over all commits of a job: its first offsets and the rows written since.

A table that keeps every commit adds them up. A table whose log is cleaned (Delta's, after thirty
days) has only some of its commits left, and their sum looks like a total. Such a table keeps its
account itself, and reports None if it cannot know.

Does not depend on Spark, Kafka, or table formats.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from vdl.pipeline.positions import Positions
from vdl.pipeline.table import Commit, CommitNote, TableSink


@dataclass(frozen=True, slots=True)
class Account:
    """Totals over the commits from the first one on.

    `begin`: positions at which the first commit began; partitions that it lacks were added later.
    `late`: as in `Commit`.
    """

    begin: Positions = field(default_factory=Positions)
    rows: int = 0
    dead: int = 0
    late: int = 0

    def plus(self, commit: Commit | CommitNote) -> Account:
        """Return the account with the next commit included."""
        return Account(
            self.begin or commit.start,
            self.rows + commit.rows,
            self.dead + commit.dead,
            self.late + commit.late,
        )


@runtime_checkable
class KeepsAccount(Protocol):
    """Table whose account may cover commits that its log no longer has."""

    def account(self) -> Account | None:
        """Return the account up to the last commit of an open table; None if it is not known."""


def account_of(table: TableSink) -> Account | None:
    """Return the account of an open table up to its `sequence`; None if it is not known."""
    if isinstance(table, KeepsAccount):
        return table.account()
    # Another run may have committed since the table was opened.
    notes = [note for note in table.notes() if note.sequence <= table.sequence]
    if [note.sequence for note in notes] != list(range(1, table.sequence + 1)):
        return None
    found = Account()
    for note in notes:
        found = found.plus(note)
    return found
