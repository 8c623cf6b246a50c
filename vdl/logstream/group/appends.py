"""An append to a partition: one batch on its way from the request to the acknowledgement."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from ids import NO_INDEX, NO_OFFSET, NO_TERM, NodeId, Offset, Term
from raft.types import NONE
from vdl.errors import ErrorCode
from vdl.records.batch import BatchHeader

Verify = Callable[[Callable[[ErrorCode], None]], None]
"""Function that requests a transaction's coordinator to confirm that the transaction is open and
has this partition, or to add it. The argument is called once, possibly at once, with NONE or the
reason for a refusal."""

NO_BATCH = memoryview(b"")
"""Batch of an append that is in the log."""


class Appended(msgspec.Struct):
    """Outcome of appending one batch."""

    error: ErrorCode
    base_offset: Offset = NO_OFFSET
    log_start_offset: Offset = NO_OFFSET
    duplicate_timestamp: int | None = None
    """Largest timestamp of the batch as first appended; None: it is no duplicate."""
    term: Term = NO_TERM
    """Term in which it was appended; NO_TERM if it was not acknowledged."""
    acked_by: NodeId = NONE
    """Replica whose acknowledgement was the last that it needed."""
    appended_ns: int = 0
    """Time of the append, if the batch was held before; otherwise 0."""


class Append:
    """A batch that is held, or whose entry waits for its commit and its copies on `copies` voters.

    Invariant: `done` is called once, and the append is in no queue then.
    """

    __slots__ = (
        "appended_ns", "base_offset", "batch", "begins_epoch", "copies", "deadline_ns", "done",
        "duplicate_timestamp", "header", "index", "term", "verify",
    )  # fmt: skip

    def __init__(
        self,
        batch: memoryview,
        header: BatchHeader,
        copies: int,
        deadline_ns: int,
        done: Callable[[Appended], None],
        verify: Verify | None,
        begins_epoch: bool,
    ) -> None:
        """Begin an append. `copies`: minimum number of replicas, the topic's setting."""
        self.batch = batch
        """The batch, until it is in the log: its memory may be reused after that turn."""
        self.header = header
        self.copies = copies
        """Number of voters that must hold the entry; at most the replicas there are."""
        self.deadline_ns = deadline_ns
        self.done = done
        self.verify = verify
        self.begins_epoch = begins_epoch
        self.index = NO_INDEX
        """Use: with `term`, to know the entry. Invariant: both are those of the leader's log when
        it appended the entry, or of the original of a duplicate."""
        self.term = NO_TERM
        self.base_offset = NO_OFFSET
        self.appended_ns = 0
        """Time at which it was appended after it had been held; 0: it was not held."""
        self.duplicate_timestamp: int | None = None
