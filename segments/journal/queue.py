"""The journal's queue: the batch being staged, and the rest of a divided batch.

Every batch has a token, the next number. A block carries one batch, or a part of one that does not
fit in a file. Batches are written in the order of their tokens.

Does not depend on files or threads.
"""

from __future__ import annotations

from segments.journal.split import block_bytes
from segments.log.log import Batch


class Queue:
    """Batches that are not on disk yet, and the progress of the disk."""

    __slots__ = ("batch", "durable_token", "is_closing", "is_wanted", "proved_token", "rest")

    def __init__(self) -> None:
        self.batch = Batch(1)
        """Use: records are staged into it.
        Invariant: no part of it was handed to the disk, and every older batch was taken."""
        self.rest: Batch | None = None
        """Use: the part of an older batch that is not in a block yet.
        Invariant: while there is one, `batch` is not taken."""
        self.durable_token = 0
        """Use: batches up to it may be acknowledged.
        Invariant: every batch up to this token is wholly on disk. Never decreases."""
        self.proved_token = 0
        """Use: batches up to it may be relied on even where a damaged block would cost more than
        its own records.
        Invariant: for every batch up to this token that needs a proof, a later block is on disk
        that states its durability, or was refused by a full disk. Never decreases."""
        self.is_wanted = False
        """Use: `batch` must be written next, even if it is empty: a caller waits for it, or for the
        proof of the block before."""
        self.is_closing = False
        """Use: the next block that leaves nothing waiting is the closing one.
        Invariant: once True never False again."""

    @property
    def is_due(self) -> bool:
        """True if something must be written without waiting for an idle spell."""
        return self.rest is not None or self.is_wanted

    @property
    def is_empty(self) -> bool:
        return self.rest is None and not self.batch.records

    @property
    def block_bytes(self) -> int:
        """Size in files of the blocks of all waiting batches."""
        waiting = block_bytes(self.batch)
        return waiting if self.rest is None else waiting + block_bytes(self.rest)

    def take(self) -> Batch:
        """Return the batch that was being staged; a new one replaces it unless it is empty."""
        batch = self.batch
        self.is_wanted = False
        if batch.records:
            self.batch = Batch(batch.token + 1)
        return batch
