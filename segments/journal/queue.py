"""What waits for the journal: the batch that is being staged, and the rest of a divided one.

Every batch has a token, the next number. A block carries one batch, or a part of one that no file
takes whole. Batches are written in the order of their tokens.

Must not know: files, threads.
"""

from __future__ import annotations

from segments.journal.split import block_bytes
from segments.log.log import Batch


class Queue:
    """The batches that are not on disk yet, and how far the disk has come."""

    __slots__ = ("batch", "durable_token", "is_closing", "is_wanted", "proved_token", "rest")

    def __init__(self) -> None:
        self.batch = Batch(1)
        """Use: whoever stages adds to it.
        Invariant: no part of it was handed to the disk, and every older batch was taken."""
        self.rest: Batch | None = None
        """Use: the part of an older batch that is not in a block yet.
        Invariant: while there is one, `batch` is not taken."""
        self.durable_token = 0
        """Use: what may be acknowledged.
        Invariant: every batch up to this token is on disk as a whole. It never sinks."""
        self.proved_token = 0
        """Use: what may be relied on where a damaged block would cost more than what it says.
        Invariant: a block behind every batch up to this token that needs a proof is on disk and
        says that it is, or was refused by a full disk. It never sinks."""
        self.is_wanted = False
        """Use: `batch` is to be written next, even when it is empty: somebody waits for it, or for
        the proof of the block before."""
        self.is_closing = False
        """Use: the next block that leaves nothing behind is the closing one.
        Invariant: never False again."""

    @property
    def is_due(self) -> bool:
        """Something is to be written without waiting for an idle spell."""
        return self.rest is not None or self.is_wanted

    @property
    def is_empty(self) -> bool:
        return self.rest is None and not self.batch.records

    @property
    def block_bytes(self) -> int:
        """What the blocks of all that waits take in files."""
        waiting = block_bytes(self.batch)
        return waiting if self.rest is None else waiting + block_bytes(self.rest)

    def take(self) -> Batch:
        """The batch that was being staged. The next one takes its place, unless it is empty."""
        batch = self.batch
        self.is_wanted = False
        if batch.records:
            self.batch = Batch(batch.token + 1)
        return batch
