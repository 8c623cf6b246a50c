"""What is remembered of how a group's state was encoded: the last snapshot, and how large it was.

To encode a state is work for the whole loop, some 6 us for each committed offset: with a hundred
thousand of them longer than the shortest election timeout. So it is not done to answer a question
that was answered before:

* How large a snapshot would be is worked out from the last one: bytes per item, times the items
  there are now. A state that has doubled since, or halved, is encoded again. So is one of which
  checkpoints have stored so many items of more than twice the usual length that it may be over the
  limit by now: what a client says along with a position can be 4 KiB instead of nothing. For less,
  who asks leaves a margin. Whether a snapshot can be sent is decided by the snapshot itself.
* A snapshot that was made is kept for whoever asks next, mostly the same peer, because the link had
  no room for the frame. It does as long as the entries behind it are in the log.

Ticks are those of the group that asks.

Must not know: what items are, who asks for a snapshot, whether it arrived.
"""

from __future__ import annotations

from collections.abc import Iterable

from ids import Index
from raft.types import Snapshot
from vdl.logstream.group.snapshots import SNAPSHOT_BYTES_MAX

KEPT_TICKS = 1_000
"""How long a snapshot is kept that nobody asks for: up to 8 MiB a group, some 30 of a coordinator
with a million positions. Longer than a leader waits
for one that was lost on the way."""

PAUSE_TICKS = 100
"""The least time from one snapshot that is made to the next."""

RETRY_TICKS = 500
"""After which it is looked again whether a state that was too large fits into a snapshot."""

RETRY_TICKS_MAX = 60_000
"""As long as it is not expected to fit, each wait is twice the one before, up to this: what is
expected may be wrong, and a replica that nothing is sent to stays behind for ever."""


class SnapshotCache:
    """See the module."""

    __slots__ = (
        "_asked_tick", "_bytes", "_grown", "_is_short", "_item_bytes", "_items", "_retry_ticks",
        "_snapshot", "_tick", "measured_until",
    )  # fmt: skip

    def __init__(self) -> None:
        self.measured_until = 0
        """Until which tick what was measured counts as measured anew. For the owner to set."""
        self._items = 0
        self._bytes = 0
        """Of the last encoding; 0 before the first."""
        self._item_bytes = 0
        """What an item took then, uncompressed."""
        self._grown = 0
        """By how much what was stored since and is twice as long, or longer, is longer, in all."""
        self._snapshot: Snapshot | None = None
        self._is_short = False
        """Whether that one is: see `Owner.snapshots_are_short`."""
        self._asked_tick = 0
        self._tick: int | None = None
        """When a snapshot was last made, or tried."""
        self._retry_ticks = 0
        """How long to wait from there because it was too large; 0 if it was not."""

    # --- how large ---------------------------------------------------------------------------
    def measured(self, items: int, size: int, uncompressed: int) -> None:
        """A state of so many items took so many bytes."""
        self._items = items
        self._bytes = size
        self._item_bytes = uncompressed // (items + 1)
        self._grown = 0

    def stored(self, items: Iterable[tuple[bytes, bytes | None]]) -> None:
        """A checkpoint stores these keys and values, None where they went."""
        usual = self._item_bytes
        for key, value in items:
            if value is not None and (more := len(key) + len(value) - usual) > usual:
                self._grown += more

    def forget_size(self) -> None:
        """The state is another one."""
        self._bytes = 0

    def is_like_measured(self, items: int) -> bool:
        """Whether the last encoding says something of a state of so many items."""
        now, then = items + 1, self._items + 1
        return self._bytes > 0 and now < 2 * then and then < 2 * now

    def bytes_expected(self, items: int) -> int:
        """How large a state of so many items would be; 0 before the first was encoded."""
        return self._bytes * (items + 1) // (self._items + 1)

    def may_have_passed(self, limit: int, items: int) -> bool:
        """Whether a state of so many items may be over the limit because they are longer now."""
        expected = self.bytes_expected(items)
        return expected <= limit < expected + self._grown

    # --- snapshots ---------------------------------------------------------------------------
    def may_encode(self, items: int, tick: int, bytes_max: int = SNAPSHOT_BYTES_MAX) -> bool:
        """Whether a snapshot of so many items may be made now. `bytes_max`: what fits."""
        if self._tick is None:
            return True
        wait = self._retry_ticks
        if not wait:
            wait = PAUSE_TICKS
        elif self.bytes_expected(items) <= bytes_max:
            wait = RETRY_TICKS
        return tick - self._tick >= wait

    def too_large(self, tick: int) -> None:
        """The state did not fit."""
        self._tick = tick
        self._retry_ticks = min(max(2 * self._retry_ticks, RETRY_TICKS), RETRY_TICKS_MAX)

    def failed(self, tick: int) -> None:
        """A snapshot could not be made, for another reason."""
        self._tick = tick
        self._retry_ticks = RETRY_TICKS

    def keep(self, snapshot: Snapshot, tick: int, *, is_short: bool = False) -> None:
        """A snapshot was made; the one before goes. `is_short`: see `Owner.snapshots_are_short`."""
        self._snapshot, self._is_short = snapshot, is_short
        self._asked_tick = self._tick = tick
        self._retry_ticks = 0

    def kept(self, *, first_index: Index, tick: int, is_short: bool = False) -> Snapshot | None:
        """The last snapshot, for a log that begins at `first_index`: what is behind it is there.
        Not one that is shorter than one may be now."""
        snapshot = self._snapshot
        is_too_short = self._is_short and not is_short
        if snapshot is None or is_too_short or snapshot.index < first_index - 1:
            self._snapshot = None
            return None
        self._asked_tick = tick
        return snapshot

    def forget_unused(self, tick: int) -> None:
        """Let go of a snapshot that nobody has asked for lately."""
        if self._snapshot is not None and tick - self._asked_tick >= KEPT_TICKS:
            self._snapshot = None

    def forget_snapshot(self) -> None:
        """Nobody will ask here any more."""
        self._snapshot = None
