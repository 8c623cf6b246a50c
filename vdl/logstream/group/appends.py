"""Appends to a partition in progress: held before the log, or waiting for their entry's commit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ids import NO_OFFSET, Index, Offset, Term
from vdl.errors import ErrorCode
from vdl.records.batch import BatchHeader

Verify = Callable[[Callable[[ErrorCode], None]], None]
"""Function that requests a transaction's coordinator to confirm that the transaction is open and
has this partition, or to add it. The argument is called once, possibly at once, with NONE or the
reason for a refusal."""


@dataclass(slots=True)
class Appended:
    """Outcome of appending one batch."""

    error: ErrorCode
    base_offset: Offset = NO_OFFSET
    log_start_offset: Offset = NO_OFFSET
    duplicate_timestamp: int | None = None
    """Largest timestamp of the batch as first appended; None: it is no duplicate."""


class Waiter:
    """A produce request that waits for its entry's commit and its copies on `copies` voters."""

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
