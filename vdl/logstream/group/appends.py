"""Appends to a partition on their way: held back before the log, or waiting behind their entry.

Must not know: who decides what becomes of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ids import NO_OFFSET, Index, Offset, Term
from vdl.errors import ErrorCode
from vdl.records.batch import BatchHeader

Verify = Callable[[Callable[[ErrorCode], None]], None]
"""Asks a transaction's coordinator whether it is open and has this partition, or puts it in. The
argument is called once, also at once: NONE, or why not."""


@dataclass(slots=True)
class Appended:
    """What became of one batch."""

    error: ErrorCode
    base_offset: Offset = NO_OFFSET
    log_start_offset: Offset = NO_OFFSET
    duplicate_timestamp: int | None = None
    """Largest timestamp of the batch as it was first appended; None: it is no duplicate."""


class Waiter:
    """A produce that waits for its entry to commit, and for `copies` of it on voters' disks."""

    __slots__ = (
        "base_offset", "copies", "deadline_ns", "done", "duplicate_timestamp", "index", "term",
    )  # fmt: skip

    def __init__(
        self,
        *,
        index: Index,
        term: Term,
        base_offset: Offset,
        copies: int,
        deadline_ns: int,
        done: Callable[[Appended], None],
        duplicate_timestamp: int | None = None,
    ) -> None:
        self.copies = copies
        self.index = index
        self.term = term
        self.base_offset = base_offset
        self.deadline_ns = deadline_ns
        self.done = done
        self.duplicate_timestamp = duplicate_timestamp


class HeldAppend:
    """A batch that waits to be appended."""

    __slots__ = (
        "batch", "begins_epoch", "copies_min", "deadline_ns", "done", "header", "verify",
    )  # fmt: skip

    def __init__(
        self,
        batch: memoryview,
        header: BatchHeader,
        copies_min: int,
        deadline_ns: int,
        done: Callable[[Appended], None],
        verify: Verify | None,
        begins_epoch: bool = False,
    ) -> None:
        self.batch = batch
        self.begins_epoch = begins_epoch
        self.copies_min = copies_min
        self.header = header
        self.deadline_ns = deadline_ns
        self.done = done
        self.verify = verify
