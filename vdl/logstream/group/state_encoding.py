"""A state that is encoded in pieces, over many turns of the loop, while entries are applied to it.

The state of a full coordinator is a million items, and each takes microseconds. So it is read a few
hundred at a time. What is read is of different moments; but whatever changes
meanwhile is noted as changed, for the next checkpoint, and is taken from there. Once all has been
read and nothing changed is left to take, what is in hand is the state of this very moment: of one
applied index. From then on it stands still, and is put in order, packed and compressed, again in
pieces.

Changes that are taken here are the next checkpoint's, too, and the other way round: whoever takes
them tells the other.

Must not know: what items mean, whom the snapshot is for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import islice
from typing import Protocol

from raft.messages import MsgStorageApply
from raft.types import Snapshot
from vdl.clock import Clock
from vdl.logstream.group.snapshots import Items, Members, PartsWriter, SnapshotWriter
from vdl.logstream.group.state_loading import StateLoading
from vdl.state.table import LargeState, Scan

Changes = list[tuple[bytes, bytes | None]]

CHANGES_KEPT = 4_000
"""Positions that may have changed and wait to be encoded for the next checkpoint: some 30 ms. What
changes often is encoded once as long as no more do."""

PACKED_PER_READ = 4
"""Items that can be packed in the time that one takes to be read."""
PREFIX_BYTES = 2
"""Of a key: items that share it are kept together, so that few have to be sorted at a time."""


class StateEncoding:
    """See the module."""

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
        """`items` and `take_changes`: see `vdl.state.table.Scan`. `piece`: how many items are read
        at a time."""
        self.is_wanted = False
        """Whether somebody is to be sent it; else it is only measured."""
        self._items, self._take_changes = items, take_changes
        self._piece = self._room = piece
        self._parts: dict[bytes, dict[bytes, bytes]] = {}
        self._rest: list[bytes] = []
        """The parts that are still to be packed, the last first."""
        self._writer: SnapshotWriter | PartsWriter | None = None
        self.standing: Snapshot | None = None
        """The snapshot, but for its data, once nothing changes in it any more."""
        self.count = self.plain_bytes = 0
        """How much there is in the state, as its owner says; bytes of the keys and values that are
        packed."""

    def changed(self, changes: Iterable[tuple[bytes, bytes | None]]) -> None:
        """A checkpoint took these changes."""
        if self.standing is None:
            for key, value in changes:
                self._put(key, value)

    def read_on(self) -> bool:
        """Read one more piece. True: nothing is left, and this is the state as it is now; `stand`
        is to be called before it changes."""
        changes = self._take_changes(self._room)
        self.changed(changes)
        left = self._room - len(changes)
        if not left:
            # Perhaps as much changes as is taken: take more the next time, to come to an end.
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
        """What was read, with these members, is to be the data of this snapshot, which is in parts
        or not."""
        self.standing, self.count = standing, count
        self._rest = sorted(self._parts, reverse=True)
        made = PartsWriter if in_parts else SnapshotWriter
        self._writer = made(members, sum(map(len, self._parts.values())))

    def pack_on(self) -> bytes | None:
        """Pack one more piece; the whole, once there is no more."""
        writer = self._writer
        assert writer is not None, "it changes yet"
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


class StateOwner(Protocol):
    """See `Owner` in `group.py`."""

    @property
    def entries_are_state(self) -> bool: ...
    @property
    def item_count(self) -> int: ...
    def items(self) -> Items: ...
    def scan(self) -> Scan | None: ...
    def take_meta(self) -> Changes: ...
    @property
    def large(self) -> LargeState | None: ...


class AppliedState:
    """A group's state on its way to checkpoints, and to an encoding that takes changes, too."""

    __slots__ = (
        "_changes", "_is_replaced", "_owner", "_piece", "_unstored", "_unstored_is_all",
        "encoding", "large", "loading", "unapplied",
    )  # fmt: skip

    def __init__(
        self,
        owner: StateOwner,
        *,
        is_replaced: bool,
        piece: int,
        loaded: dict[bytes, bytes | None] | None = None,
    ) -> None:
        """`piece`: see `StateEncoding`; a state that is not larger is not encoded in pieces.
        `loaded`: the whole state, as it was before the changes that nobody has taken; None: it is
        stored, or to be encoded."""
        self._owner = owner
        self._piece = piece
        self._is_replaced = is_replaced
        """A snapshot came in: what checkpoints hold is none of the present state."""
        self.encoding: StateEncoding | None = None
        """The one that has begun. Set it to None to end it."""
        self.large = owner.large
        self._changes: ChangesEncoding | None = None
        """The one under way: a checkpoint waits for it."""
        self.loading: StateLoading | None = None
        """A state from elsewhere that is loaded in pieces. Set it to None to end it."""
        self.unapplied: list[MsgStorageApply] = []
        """What is to be applied once it is."""
        self._unstored: dict[bytes, bytes | None] = {} if loaded is None else loaded
        """What was taken of the state's changes and no checkpoint has got yet."""
        self._unstored_is_all = loaded is not None
        """That it is the whole state, and not only what changed of it."""

    def encode(self) -> StateEncoding | None:
        """The encoding, which may begin now. None: the state is to be encoded in one piece."""
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
        """Encode what changed, as far as that is more than the next checkpoint should have to.
        Whether that was anything."""
        large = self.large
        if large is None or (count := large.changed_positions) <= CHANGES_KEPT:
            return False
        changes = large.take_dirty(min(count - CHANGES_KEPT // 2, CHANGES_KEPT))
        if self.encoding is not None:
            self.encoding.changed(changes)
        self._unstored.update(changes)
        return True

    @property
    def has_many_changes(self) -> bool:
        """Whether more wait to be encoded than a checkpoint should have to."""
        return self.large is not None and self.large.changed_positions > 2 * CHANGES_KEPT

    def begin_changes(self) -> ChangesEncoding | None:
        """Encode changes in turns, until a checkpoint can have them; None: that has begun."""
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
        self._unstored.update(changes)
        return changes

    def replaced(self, items: Items) -> None:
        """The state is to be what another replica gave."""
        self._is_replaced = True
        self.encoding = self.loading = None
        self._unstored, self._unstored_is_all = {}, not self._owner.entries_are_state
        if self._unstored_is_all:
            # As it came it is stored: all of it would be encoded again for the next checkpoint.
            self._unstored.update(items)

    def load(self, pieces: Iterator[Items], loaded: Callable[[], None]) -> StateLoading:
        """As `replaced`, the owner's state too, in pieces; `loaded` is called at the end."""
        assert self.large is not None, "it is small"
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

    def take_unapplied(self) -> list[MsgStorageApply]:
        """What waited for the state to be loaded."""
        unapplied, self.unapplied = self.unapplied, []
        return unapplied

    def collect(self, *, is_lost: bool) -> tuple[dict[bytes, bytes | None], bool]:
        """What a checkpoint is to store, and whether that is all there is. `is_lost`: what the
        ones before have stored."""
        is_all, self._is_replaced = self._is_replaced or is_lost, False
        # Before the changes are taken: they are a part of it that need not be made once more.
        whole: dict[bytes, bytes | None] | None = (
            dict(self._owner.items()) if is_all and not self._unstored_is_all else None
        )
        changes = self._owner.take_meta()
        if self.encoding is not None:
            self.encoding.changed(changes)
        unstored, self._unstored = self._unstored, {}
        self._unstored_is_all = False
        if whole is not None:
            return whole, is_all
        unstored.update(changes)
        return unstored, is_all


class ChangesEncoding:
    """What a start has applied again, on its way to the next checkpoint. An `Encoder`."""

    __slots__ = ("encode_on",)

    def __init__(self, encode_on: Callable[[], bool]) -> None:
        """`encode_on`: see `Encoder.encode_on`."""
        self.encode_on = encode_on


class Encoder(Protocol):
    """A group whose state is being encoded."""

    def encode_on(self) -> bool:
        """Do one more piece; whether there is another."""


class StateEncodings:
    """The encodings of one server: a piece of one of them in each turn of the loop."""

    __slots__ = ("_clock", "_is_armed", "_is_over", "_waiting")

    def __init__(self, clock: Clock, is_over: Callable[[], bool]) -> None:
        """`is_over`: whether the server has stopped."""
        self._clock = clock
        self._is_over = is_over
        self._waiting: dict[Encoder, None] = {}
        """In the order in which they are served."""
        self._is_armed = False

    def add(self, encoder: Encoder) -> None:
        """It has begun."""
        self._waiting[encoder] = None
        self._arm()

    def _arm(self) -> None:
        if not self._is_armed:
            self._is_armed = True
            self._clock.call_later(1, self._next)  # behind the next look at the files

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
