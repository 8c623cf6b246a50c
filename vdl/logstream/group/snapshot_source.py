"""Snapshots of one replica's state for others: made at once, or encoded in pieces if large.

A snapshot has the members and items of everything applied, and an index: the receiver gets the
entries after it, and skips those that the state reflects. For a partition, whose entries are kept
themselves, the index is just before the first entry of the log. For any other state it is the
applied index.

Does not depend on messages, on which replica receives a snapshot, or on how one is installed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import segments.api as storage
from ids import Index
from raft.errors import SnapshotTemporarilyUnavailable
from raft.types import ConfState, Snapshot
from vdl.logstream.group.owner import Owner
from vdl.logstream.group.snapshot_cache import SnapshotCache
from vdl.logstream.group.snapshots import (
    PARTS_BYTES_MAX,
    SNAPSHOT_BYTES_MAX,
    Items,
    encode_snapshot,
    members_of,
)
from vdl.logstream.group.state_encoding import AppliedState, StateEncoding, StateEncodings

MEASURED_TICKS = 500
"""Time for which the size of a state encoded in pieces counts as that of the present one."""


@dataclass(frozen=True, slots=True)
class Applied:
    """Position and members of the applied state."""

    index: Index
    """Index of the last applied entry. Invariant: the state reflects every entry up to it."""
    reflects: Index
    """State and members reflect entries up to this index, if it is above `index`."""
    revision: int
    conf_state: ConfState


class SnapshotSource:
    """Snapshots of one replica's applied state, and their size.

    Invariant: items and members of a snapshot are those of one moment, and its members name the
    last entry that they reflect.
    """

    __slots__ = ("_applied", "_encodings", "_log", "_owner", "_state", "_tick", "cache")

    def __init__(
        self,
        owner: Owner,
        log: storage.Log,
        state: AppliedState,
        *,
        applied: Callable[[], Applied],
        tick: Callable[[], int],
        encodings: StateEncodings,
    ) -> None:
        """Create the source. `applied` returns what is applied now, which `state` reflects."""
        self._owner = owner
        self._log = log
        self._state = state
        self._applied = applied
        self._tick = tick
        self._encodings = encodings
        self.cache = SnapshotCache()

    def when_cut_off(self, first: int) -> Snapshot | None:
        """Return the state for a replica that lacks entries from `first` on, or None.

        The entries must be cut off here. None if it is not available now.
        """
        if first >= self._log.first_index:
            return None
        try:
            return self.make()
        except SnapshotTemporarilyUnavailable:
            return None

    def make(self) -> Snapshot:
        """Return a snapshot for a replica that needs entries before the log's start.

        Raise SnapshotTemporarilyUnavailable if there is none now.
        """
        log, owner, cache, tick = self._log, self._owner, self.cache, self._tick()
        if self._state.loading is not None:
            raise SnapshotTemporarilyUnavailable
        is_short = owner.snapshots_are_short
        kept = cache.kept(first_index=log.first_index, tick=tick, is_short=is_short)
        if kept is not None:
            return kept
        # The core requests one at each message of the peer.
        if self._state.encoding is None and not cache.may_encode(
            owner.item_count, tick, self._bytes_max
        ):
            raise SnapshotTemporarilyUnavailable
        if (encoding := self._encode_later()) is not None:
            encoding.is_wanted = True
            raise SnapshotTemporarilyUnavailable
        applied = self._applied()
        index = log.first_index - 1 if owner.entries_are_state else applied.index
        reflects = max(applied.index, applied.reflects)
        try:
            next_offset = log.offset_after(index)
        except (storage.CorruptRecord, storage.ReadRefused):
            # Damage in the index, which any reader, the scrubber included, rebuilds.
            cache.failed(tick)
            raise SnapshotTemporarilyUnavailable from None
        is_shortened = is_short and index < reflects
        items = owner.snapshot_items(next_offset, is_short=is_shortened)
        if items is None:
            raise SnapshotTemporarilyUnavailable
        data = self._encode(applied, reflects, items)
        if len(data) > SNAPSHOT_BYTES_MAX:
            cache.too_large(tick)
            raise SnapshotTemporarilyUnavailable
        snapshot = Snapshot(index, log.term(index), applied.conf_state, next_offset, data)
        cache.keep(snapshot, tick, is_short=is_short)
        return snapshot

    def _encode(self, applied: Applied, reflects: Index, items: Items) -> bytes:
        """Encode the state as a snapshot in one piece; only for small states."""
        members = members_of(applied.conf_state, reflects=reflects, revision=applied.revision)
        data = encode_snapshot(members, items)
        uncompressed = sum(len(key) + len(value) for key, value in items)
        self.cache.measured(self._owner.item_count, len(data), uncompressed)
        return data

    @property
    def in_parts(self) -> bool:
        """See `LargeState.snapshots_in_parts`."""
        large = self._state.large
        return large is not None and large.snapshots_in_parts

    @property
    def _bytes_max(self) -> int:
        """Maximum size of a snapshot."""
        return PARTS_BYTES_MAX if self.in_parts else SNAPSHOT_BYTES_MAX

    def expected_bytes(self, *, limit: int, anew: bool) -> int | None:
        """Return the expected size of a snapshot, measured again if it may exceed `limit`.

        `anew`: encode one. Return None if that takes more than this turn; call again later.
        """
        if self._state.loading is not None:
            return None
        items, cache = self._owner.item_count, self.cache
        is_known = cache.is_like_measured(items) and not cache.may_have_passed(limit, items)
        if anew:
            is_known = is_known and self._tick() < cache.measured_until
        if not is_known:
            if self._encode_later() is not None:
                return None
            applied = self._applied()
            self._encode(applied, applied.index, self._owner.items())
        return cache.bytes_expected(items)

    def leadership_lost(self) -> None:
        """Forget the snapshot kept for followers, and do not send the one being encoded."""
        self.cache.forget_snapshot()
        if self._state.encoding is not None:
            self._state.encoding.is_wanted = False

    # --- in pieces ---------------------------------------------------------------------------
    def _encode_later(self) -> StateEncoding | None:
        """Return the encoding of a state too large for one turn, begun here or before, or None."""
        has_begun = self._state.encoding is not None
        encoding = self._state.encode()
        if encoding is not None and not has_begun:
            self._encodings.add(self)
        return encoding

    def encode_on(self) -> bool:
        """See `Encoder.encode_on`."""
        encoding, tick = self._state.encoding, self._tick()
        if encoding is None:
            return False
        if encoding.standing is None:
            if encoding.read_on():
                self._stand(encoding)
            return True
        data = encoding.pack_on()
        if data is None:
            return True
        self._state.encoding = None
        self.cache.measured(encoding.count, len(data), encoding.plain_bytes)
        self.cache.measured_until = tick + MEASURED_TICKS
        if len(data) > self._bytes_max:
            self.cache.too_large(tick)
        elif encoding.is_wanted:
            self.cache.keep(replace(encoding.standing, data=data), tick)
        return False

    def _stand(self, encoding: StateEncoding) -> None:
        """Give the encoding the index and members of its items, which are the present state."""
        log, applied = self._log, self._applied()
        index = applied.index
        try:
            next_offset = log.offset_after(index)
        except (storage.CorruptRecord, storage.ReadRefused):  # as for a snapshot in one piece
            self._state.encoding = None
            self.cache.failed(self._tick())
            return
        reflects = max(index, applied.reflects)
        members = members_of(applied.conf_state, reflects=reflects, revision=applied.revision)
        standing = Snapshot(index, log.term(index), applied.conf_state, next_offset)
        encoding.stand(
            standing,
            members,
            count=self._owner.item_count,
            in_parts=self.in_parts,
        )
