"""Encoding of a state in pieces, over many turns of the loop, while entries are applied to it.

The state of a full coordinator is a million items, and each takes microseconds. So a few hundred
are read at a time. They are read at different moments; but every change in the meantime is noted
for the next checkpoint, and is taken from there. Once all items have been read and no change is
left to take, the result is the present state, of one applied index. From then on it is fixed, and
is sorted, packed and compressed, again in pieces.

Changes that are taken here also belong to the next checkpoint, and the other way round: the one
that takes them passes them to the other.

Does not depend on what items mean, or on the receiver of the snapshot.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import islice
from typing import Protocol

from raft.messages import MsgStorageApply
from raft.types import Snapshot
from vdl.clock import Clock
from vdl.logstream.group.owner import Owner
from vdl.logstream.group.snapshots import Items, Members, PartsWriter, SnapshotWriter
from vdl.logstream.group.state_loading import StateLoading
from vdl.state.empty import NO_ITEMS, NO_KEYS

Changes = list[tuple[bytes, bytes | None]]

CHANGES_KEPT = 4_000
"""Maximum number of changed positions that wait for the next checkpoint: some 30 ms of encoding.
Within it a position that changes often is encoded once."""

PACKED_PER_READ = 4
"""Number of items that can be packed in the time in which one is read."""
PREFIX_BYTES = 2
"""Bytes of a key by which items are partitioned, so that few have to be sorted at a time."""


class StateEncoding:
    """The encoding of one state."""

    __slots__ = (
        "_items",
        "_parts",
        "_piece",
        "_rest",
        "_room",
        "_take_changes",
        "_writer",
        "count",
        "is_wanted",
        "plain_bytes",
        "standing",
    )

    def __init__(
        self,
        items: Iterator[tuple[bytes, bytes]],
        take_changes: Callable[[int], Changes],
        *,
        piece: int,
    ) -> None:
        """Begin an encoding.

        `items` and `take_changes`: see `vdl.state.table.Scan`. `piece`: number of items read at a
        time.
        """
        self.is_wanted = False
        """True if the snapshot will be sent; otherwise it is only measured."""
        self._items, self._take_changes = items, take_changes
        self._piece = self._room = piece
        self._parts: dict[bytes, dict[bytes, bytes]] = {}
        self._rest: list[bytes] = []
        """Parts still to be packed, in reverse order."""
        self._writer: SnapshotWriter | PartsWriter | None = None
        self.standing: Snapshot | None = None
        """The snapshot, without its data, once the items are fixed."""
        self.count = self.plain_bytes = 0
        """Size of the state as given by its owner; bytes of the keys and values packed so far."""

    def changed(self, changes: Iterable[tuple[bytes, bytes | None]]) -> None:
        """Take over changes that a checkpoint took."""
        if self.standing is None:
            for key, value in changes:
                self._put(key, value)

    def read_on(self) -> bool:
        """Read one more piece. Return True if this is the state as it is now.

        `stand` must then be called before the state changes.
        """
        changes = self._take_changes(self._room)
        self.changed(changes)
        left = self._room - len(changes)
        if not left:
            # Changes may come as fast as they are taken: take more the next time, to come to an
            # end.
            self._room = 2 * len(changes)
            return False
        self._room = max(self._piece, 2 * len(changes))
        for key, value in islice(self._items, left):
            self._put(key, value)
            left -= 1
        return left > 0

    def stand(
        self, standing: Snapshot, members: Members, *, count: int, in_parts: bool = False
    ) -> None:
        """Fix the items read, with these members, as the data of this snapshot, in parts or not."""
        self.standing, self.count = standing, count
        self._rest = sorted(self._parts, reverse=True)
        made = PartsWriter if in_parts else SnapshotWriter
        self._writer = made(members, sum(map(len, self._parts.values())))

    def pack_on(self) -> bytes | None:
        """Pack one more piece. Return the whole snapshot after the last."""
        writer = self._writer
        assert writer is not None, "the key is still changing"
        left = self._piece * PACKED_PER_READ
        while self._rest and left > 0:
            items: Items = sorted(self._parts.pop(self._rest.pop()).items())
            writer.add(items)
            left -= len(items)
            self.plain_bytes += sum(len(key) + len(value) for key, value in items)
        return None if self._rest else writer.finish()

    def _put(self, key: bytes, value: bytes | None) -> None:
        part = self._parts.setdefault(key[:PREFIX_BYTES], {})
        if value is None:
            part.pop(key, None)
        else:
            part[key] = value


class AppliedState:
    """A group's changed state, for checkpoints and for an encoding that is under way."""

    __slots__ = (
        "_changes", "_is_replaced", "_owner", "_piece", "_unstored", "_unstored_is_all",
        "encoding", "large", "loading", "unapplied",
    )  # fmt: skip

    def __init__(
        self,
        owner: Owner,
        *,
        is_replaced: bool,
        piece: int,
        loaded: dict[bytes, bytes | None] | None = None,
    ) -> None:
        """Create the state.

        `piece`: see `StateEncoding`; a state that is not larger is not encoded in pieces. `loaded`:
        the whole state, without the changes not taken yet; None: it is stored, or to be encoded.
        """
        self._owner = owner
        self._piece = piece
        self._is_replaced = is_replaced
        """True if a snapshot replaced the state: checkpoints hold nothing of it."""
        self.encoding: StateEncoding | None = None
        """The encoding that has begun. Set it to None to end it."""
        self.large = owner.large
        self._changes: ChangesEncoding | None = None
        """The encoding of changes under way, for which a checkpoint waits."""
        self.loading: StateLoading | None = None
        """A received state that is loaded in pieces. Set it to None to end it."""
        self.unapplied: list[MsgStorageApply] = NO_ITEMS
        """Applications that wait for the state to be loaded."""
        self._unstored: dict[bytes, bytes | None] = NO_KEYS if loaded is None else loaded
        """Changes taken from the state that no checkpoint has received yet."""
        self._unstored_is_all = loaded is not None
        """True if they are the whole state, not only its changes."""

    def encode(self) -> StateEncoding | None:
        """Return the encoding, begun now if necessary.

        None: the state is to be encoded in one piece.
        """
        if self.encoding is None:
            owner = self._owner
            is_in_parts = self.large is not None and self.large.snapshots_in_parts
            is_large = is_in_parts or owner.item_count > self._piece
            scan = owner.scan() if is_large else None
            if scan is None:
                return None
            take = partial(self._take_changes, scan.take_dirty)
            self.encoding = StateEncoding(scan.items, take, piece=self._piece)
        return self.encoding

    def encode_changes(self) -> bool:
        """Encode changes beyond the next checkpoint's limit. Return True if there were any."""
        large = self.large
        if large is None or (count := large.changed_positions) <= CHANGES_KEPT:
            return False
        changes = large.take_dirty(min(count - CHANGES_KEPT // 2, CHANGES_KEPT))
        if self.encoding is not None:
            self.encoding.changed(changes)
        self._own_unstored().update(changes)
        return True

    @property
    def has_many_changes(self) -> bool:
        """True if more changes wait to be encoded than a checkpoint may have."""
        return self.large is not None and self.large.changed_positions > 2 * CHANGES_KEPT

    def begin_changes(self) -> ChangesEncoding | None:
        """Encode changes over several turns, until a checkpoint can take them.

        None: that has begun.
        """
        if self._changes is not None:
            return None

        def encode_on() -> bool:
            if self.loading is None and self.encode_changes():
                return True
            self._changes = None
            return False

        self._changes = ChangesEncoding(encode_on)
        return self._changes

    def _take_changes(self, take_dirty: Callable[[int], Changes], limit: int) -> Changes:
        changes = take_dirty(limit)
        self._own_unstored().update(changes)
        return changes

    def _own_unstored(self) -> dict[bytes, bytes | None]:
        if self._unstored is NO_KEYS:
            self._unstored = {}
        return self._unstored

    def replaced(self, items: Items) -> None:
        """Note that a state from another replica replaces the present one."""
        self._is_replaced = True
        self.encoding = self.loading = None
        self._unstored, self._unstored_is_all = {}, not self._owner.entries_are_state
        if self._unstored_is_all:
            # Store the items as received: otherwise all would be encoded again for the next
            # checkpoint.
            self._unstored.update(items)

    def load(self, pieces: Iterator[Items], loaded: Callable[[], None]) -> StateLoading:
        """Replace the state in pieces, the owner's too; `loaded` is called at the end."""
        assert self.large is not None, "a small image has no pieces"
        self.replaced([])

        def end() -> None:
            self.loading = None
            loaded()

        self.loading = loading = StateLoading(
            pieces,
            self.large,
            took=self._unstored.update,
            wanted=lambda: self.loading is loading,
            loaded=end,
        )
        return loading

    def apply_later(self, message: MsgStorageApply) -> None:
        """Keep an application until the state is loaded."""
        if self.unapplied is NO_ITEMS:
            self.unapplied = []
        self.unapplied.append(message)

    def take_unapplied(self) -> list[MsgStorageApply]:
        """Return the applications that waited for the state to be loaded."""
        unapplied, self.unapplied = self.unapplied, NO_ITEMS
        return unapplied

    def collect(self, *, is_lost: bool) -> tuple[dict[bytes, bytes | None], bool]:
        """Return the items that a checkpoint is to store, and True if they are the whole state.

        `is_lost`: what earlier checkpoints stored is lost.
        """
        is_all, self._is_replaced = self._is_replaced or is_lost, False
        # Before the changes are taken: they are part of it and need not be encoded twice.
        whole: dict[bytes, bytes | None] | None = (
            dict(self._owner.items()) if is_all and not self._unstored_is_all else None
        )
        changes = self._owner.take_meta()
        if self.encoding is not None:
            self.encoding.changed(changes)
        unstored, self._unstored = self._own_unstored(), NO_KEYS
        self._unstored_is_all = False
        if whole is not None:
            return whole, is_all
        unstored.update(changes)
        return unstored, is_all


class ChangesEncoding:
    """Encoding of the changes that a start applied again, for the next checkpoint. An `Encoder`."""

    __slots__ = ("encode_on",)

    def __init__(self, encode_on: Callable[[], bool]) -> None:
        """Create the encoding. `encode_on`: see `Encoder.encode_on`."""
        self.encode_on = encode_on


class Encoder(Protocol):
    """A group whose state is being encoded."""

    def encode_on(self) -> bool:
        """Process one more piece. Return True if there is another."""


class StateEncodings:
    """The encodings of one server: a piece of one of them in each turn of the loop."""

    __slots__ = ("_clock", "_is_armed", "_is_over", "_waiting")

    def __init__(self, clock: Clock, is_over: Callable[[], bool]) -> None:
        """Create the queue. `is_over`: returns True if the server has stopped."""
        self._clock = clock
        self._is_over = is_over
        self._waiting: dict[Encoder, None] = {}
        """Encoders in the order in which they are served."""
        self._is_armed = False

    def add(self, encoder: Encoder) -> None:
        """Queue an encoder that has begun."""
        self._waiting[encoder] = None
        self._arm()

    def _arm(self) -> None:
        if not self._is_armed:
            self._is_armed = True
            self._clock.call_later(1, self._next)  # after the loop has polled its sockets again

    def _next(self) -> None:
        self._is_armed = False
        if self._is_over():
            self._waiting.clear()
            return
        encoder = next(iter(self._waiting))
        del self._waiting[encoder]
        if encoder.encode_on():
            self._waiting[encoder] = None
        if self._waiting:
            self._arm()
