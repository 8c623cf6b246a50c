"""The last snapshot of a group's state, and its size as an estimate for the next.

Encoding a state blocks the loop, some 6 us for each committed offset: with a hundred thousand of
them longer than the shortest election timeout. So a state is not encoded again for the same
question:

* The size of a snapshot is estimated from the last one: bytes per item, times the present number of
  items. A state that has doubled or halved since is encoded again. So is a state that may exceed
  the limit by now, because checkpoints have stored many items of more than twice the usual length:
  the metadata that a client attaches to a committed offset can be 4 KiB instead of nothing. For
  smaller errors the caller leaves a margin. The final check is made on the snapshot itself.
* A snapshot is kept for the next request, mostly of the same peer, because the link had no room for
  the frame. It is valid as long as the entries behind it are in the log.

Ticks are those of the calling group.

Does not depend on what items are, or whether a snapshot arrived.
"""

from __future__ import annotations

from collections.abc import Iterable

from ids import Index
from raft.types import Snapshot
from vdl.logstream.group.snapshots import SNAPSHOT_BYTES_MAX

KEPT_TICKS = 1_000
"""Ticks for which an unrequested snapshot is kept: up to 8 MiB a group, some 30 of a coordinator
with a million positions. Longer than a leader waits for one that was lost on the way."""

PAUSE_TICKS = 100
"""Minimum time between two snapshots."""

RETRY_TICKS = 500
"""Time after which a state that was too large is tried again."""

RETRY_TICKS_MAX = 60_000
"""Maximum of that time, which doubles as long as the state is not expected to fit. It is bounded
because the estimate may be wrong, and a replica that receives nothing stays behind for ever."""


class SnapshotCache:
    """The last snapshot of one group, and the sizes of its last encoding."""

    __slots__ = (
        "_asked_tick", "_bytes", "_grown", "_is_short", "_item_bytes", "_items", "_retry_ticks",
        "_snapshot", "_tick", "measured_until",
    )  # fmt: skip

    def __init__(self) -> None:
        self.measured_until = 0
        """Tick until which the measurement counts as new. Set by the owner."""
        self._items = 0
        self._bytes = 0
        """Size of the last encoding; 0 before the first."""
        self._item_bytes = 0
        """Uncompressed bytes per item in that encoding."""
        self._grown = 0
        """Excess bytes, in total, of items stored since that are at least twice as long."""
        self._snapshot: Snapshot | None = None
        self._is_short = False
        """True if the snapshot is short: see `Owner.snapshots_are_short`."""
        self._asked_tick = 0
        self._tick: int | None = None
        """Tick at which a snapshot was last made, or tried."""
        self._retry_ticks = 0
        """Time to wait from there because it was too large; 0 if it was not."""

    # --- size --------------------------------------------------------------------------------
    def measured(self, items: int, size: int, uncompressed: int) -> None:
        """Note that a state of `items` items took `size` bytes."""
        self._items = items
        self._bytes = size
        self._item_bytes = uncompressed // (items + 1)
        self._grown = 0

    def stored(self, items: Iterable[tuple[bytes, bytes | None]]) -> None:
        """Note the keys and values that a checkpoint stores, None for removed ones."""
        usual = self._item_bytes
        for key, value in items:
            if value is not None and (more := len(key) + len(value) - usual) > usual:
                self._grown += more

    def forget_size(self) -> None:
        """Forget the measurement: the state was replaced."""
        self._bytes = 0

    def is_like_measured(self, items: int) -> bool:
        """Return True if the last encoding is a basis for a state of `items` items."""
        now, then = items + 1, self._items + 1
        return self._bytes > 0 and now < 2 * then and then < 2 * now

    def bytes_expected(self, items: int) -> int:
        """Return the estimated size of a state of `items` items; 0 before the first encoding."""
        return self._bytes * (items + 1) // (self._items + 1)

    def may_have_passed(self, limit: int, items: int) -> bool:
        """Return True if a state of `items` items may exceed the limit because items grew."""
        expected = self.bytes_expected(items)
        return expected <= limit < expected + self._grown

    # --- snapshots ---------------------------------------------------------------------------
    def may_encode(self, items: int, tick: int, bytes_max: int = SNAPSHOT_BYTES_MAX) -> bool:
        """Return True if a snapshot of `items` items may be made now.

        `bytes_max`: the size limit.
        """
        if self._tick is None:
            return True
        wait = self._retry_ticks
        if not wait:
            wait = PAUSE_TICKS
        elif self.bytes_expected(items) <= bytes_max:
            wait = RETRY_TICKS
        return tick - self._tick >= wait

    def too_large(self, tick: int) -> None:
        """Note that the state did not fit."""
        self._tick = tick
        self._retry_ticks = min(max(2 * self._retry_ticks, RETRY_TICKS), RETRY_TICKS_MAX)

    def failed(self, tick: int) -> None:
        """Note that a snapshot could not be made, for another reason."""
        self._tick = tick
        self._retry_ticks = RETRY_TICKS

    def keep(self, snapshot: Snapshot, tick: int, *, is_short: bool = False) -> None:
        """Keep a new snapshot in place of the last. `is_short`: see `Owner.snapshots_are_short`."""
        self._snapshot, self._is_short = snapshot, is_short
        self._asked_tick = self._tick = tick
        self._retry_ticks = 0

    def kept(self, *, first_index: Index, tick: int, is_short: bool = False) -> Snapshot | None:
        """Return the last snapshot if a log that begins at `first_index` has the entries behind it.

        None if it is short and may not be.
        """
        snapshot = self._snapshot
        is_too_short = self._is_short and not is_short
        if snapshot is None or is_too_short or snapshot.index < first_index - 1:
            self._snapshot = None
            return None
        self._asked_tick = tick
        return snapshot

    def forget_unused(self, tick: int) -> None:
        """Drop a snapshot that was not requested lately."""
        if self._snapshot is not None and tick - self._asked_tick >= KEPT_TICKS:
            self._snapshot = None

    def forget_snapshot(self) -> None:
        """Drop the snapshot: no more requests will come."""
        self._snapshot = None
