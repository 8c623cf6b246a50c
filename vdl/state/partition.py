"""The replicated state of one partition beside its records: the windows of its producers.

It follows from the committed batches alone, so every replica has it, and a snapshot of a partition
is this plus a few numbers about its log.

Must not know: records, leadership, the log itself.
"""

from __future__ import annotations

from vdl.state.producers import Producers


class PartitionState:
    """See the module. Fed by the log stream through `producers.apply`."""

    __slots__ = ("producers",)

    def __init__(self) -> None:
        self.producers = Producers()

    def take_dirty(self) -> list[tuple[bytes, bytes | None]]:
        """(key, value) pairs that changed since the last call; None deletes."""
        return self.producers.take_dirty()

    def load(self, items: list[tuple[bytes, bytes]]) -> None:
        """Replace the whole state."""
        self.producers.load(items)

    def items(self) -> list[tuple[bytes, bytes]]:
        """The whole state, in key order: snapshots and digests."""
        return self.producers.items()
