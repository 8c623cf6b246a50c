"""State of a replica apart from its log's entries: in checkpoints, and in snapshots for peers.

*Members* are the group's configuration. In this Raft a configuration takes effect when it is
applied, so it is applied state and is checkpointed with the rest, under a key of its own.

A *snapshot* is sent to a replica that is behind the log's start (§7): members, and the items of the
state machine. For a group of commands it replaces the entries up to the last applied one. For a
partition it does not: its records are the entries. Its snapshot is taken at the log's *start*, a
few hundred bytes, and the entries follow by ordinary appends, from disk if necessary: one path for
all catching up, resumable, every frame checksummed. The members and producer windows in such a
snapshot may then reflect more than the log's start: `reflects` is the index up to which they do,
and entries up to there are not applied to them again.

A large state is a snapshot *in parts*, each of a limited number of items, so that neither its
sender nor its receiver processes all of it in one turn:

     0  0            u32  no plain length: a version that does not know parts refuses it
     4  item count   u32
     8  member bytes u32, members
        and for each part: bytes u32, plain bytes u32, zstd frame of an array of items

Does not depend on how snapshots travel, or what items mean.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from struct import Struct
from typing import Protocol

import cramjam
import msgspec

from ids import Index, NodeId
from raft.errors import InvalidConfChange
from raft.membership import decode_conf_change, restored
from raft.types import CONF_CHANGE_KINDS, ConfState, Entry
from segments.api import INSTALLED_STATE_BYTES_MAX

SNAPSHOT_BYTES_MAX = 8 << 20
"""Maximum size of a snapshot that is not in parts, compressed: it travels in one frame and is kept
in one journal record. A group whose log was cut while its state was half as large, and has outgrown
the limit since, cannot have a replica replaced. A coordinator refuses what would bring it to that
half."""

PARTS_BYTES_MAX = INSTALLED_STATE_BYTES_MAX
"""Maximum size of a snapshot in parts. No state that may be sent so reaches it, however badly it
compresses: a position takes at most some 80 bytes more than it counts as (`Offsets.bytes`)."""

STATE_BYTES_MAX = 64 << 20
"""Maximum plain size of a state in a snapshot that is not in parts, and of a part."""

PART_BYTES = 1 << 20
"""Plain bytes of items after which a part ends."""

MEMBERS_KEY = b"\x00"
"""Key of the members in checkpoints. No machine has a key of this kind."""

MEMBERS_SHARED = 1_024
"""Most values of `Members` that are kept to be shared."""

Items = list[tuple[bytes, bytes]]
"""A machine's state: (key, value) in key order."""


class Members(msgspec.Struct, frozen=True, array_like=True):
    """A group's configuration as of an applied index. Replica ids ascending."""

    reflects: Index
    """Members and items reflect entries up to this index, or up to the applied one if that is
    higher."""
    voters: tuple[NodeId, ...]
    voters_outgoing: tuple[NodeId, ...] = ()
    learners: tuple[NodeId, ...] = ()
    learners_next: tuple[NodeId, ...] = ()
    auto_leave: bool = False
    revision: int = 0
    """Last revision of the wanted members for which the group has done its part: see
    `vdl/state/reassignment.py`."""

    @property
    def conf_state(self) -> ConfState:
        """The configuration in the core's form. Groups with the same members share one value."""
        return _conf_state(self)


@lru_cache(maxsize=MEMBERS_SHARED)
def _conf_state(members: Members) -> ConfState:
    return ConfState(
        voters=members.voters,
        voters_outgoing=members.voters_outgoing,
        learners=members.learners,
        learners_next=members.learners_next,
        auto_leave=members.auto_leave,
    )


class SnapshotState(msgspec.Struct, frozen=True, array_like=True):
    """A snapshot's payload."""

    members: Members
    items: Items


@lru_cache(maxsize=MEMBERS_SHARED)
def members_of(conf_state: ConfState, *, reflects: Index, revision: int = 0) -> Members:
    """Return the members of a configuration, with the index at which it was applied.

    Groups with equal ones share one value.
    """
    return Members(
        reflects=reflects,
        voters=conf_state.voters,
        voters_outgoing=conf_state.voters_outgoing,
        learners=conf_state.learners,
        learners_next=conf_state.learners_next,
        auto_leave=conf_state.auto_leave,
        revision=revision,
    )


def revision_of(entry: Entry) -> int:
    """Return the revision that a membership change completes; 0 if it names none."""
    context = decode_conf_change(entry.data).context
    return _REVISION.unpack(context)[0] if context else 0


def revision_context(revision: int) -> bytes:
    """Return the context of a membership change that completes a revision."""
    return _REVISION.pack(revision)


DecodeError = msgspec.DecodeError
"""Raised for bytes that are no snapshot, or no members, of this version."""

_LENGTH = Struct("<I")
_HEAD_OF_PARTS = Struct("<III")
_PART = Struct("<II")
_PAIR = b"\x92"
"""msgpack: two values follow."""
_ARRAY_32 = 0xDD
"""msgpack: an array whose length follows as u32."""
_ITEM_COUNT = Struct(">BI")
_REVISION = Struct("<Q")
_ENCODER = msgspec.msgpack.Encoder(order="deterministic")
_MEMBERS = msgspec.msgpack.Decoder(Members)
_SNAPSHOT = msgspec.msgpack.Decoder(SnapshotState)
_ITEMS = msgspec.msgpack.Decoder(Items)


def encode_members(members: Members) -> bytes:
    """Return the value kept under `MEMBERS_KEY`."""
    return _ENCODER.encode(members)


def encode_snapshot(members: Members, items: Items) -> bytes:
    """Return the payload of a snapshot, as it travels and as the journal keeps it.

    Its plain length (u32) and a zstd frame; names and small numbers are most of it.
    """
    plain = _ENCODER.encode(SnapshotState(members, items))
    return _LENGTH.pack(len(plain)) + bytes(cramjam.zstd.compress(plain))


class SnapshotWriter:
    """Encoder of a snapshot in pieces, with the same plain bytes as `encode_snapshot`."""

    __slots__ = ("_compressor", "_length")

    def __init__(self, members: Members, count: int) -> None:
        """Begin a snapshot. `count`: the number of all items."""
        self._compressor = cramjam.zstd.Compressor()
        self._length = 0
        self._write(_PAIR + _ENCODER.encode(members) + _ITEM_COUNT.pack(_ARRAY_32, count))

    def add(self, items: Items) -> None:
        """Add the next items, in key order. Work: a microsecond for each."""
        self._write(b"".join(map(_ENCODER.encode, items)))

    def finish(self) -> bytes:
        """Return the snapshot; all items were added."""
        return _LENGTH.pack(self._length) + bytes(self._compressor.finish())

    def _write(self, plain: bytes) -> None:
        self._length += len(plain)
        self._compressor.compress(plain)


class PartsWriter:
    """Encoder of a snapshot in parts."""

    __slots__ = ("_items", "_parts", "_plain_bytes", "length")

    def __init__(self, members: Members, count: int) -> None:
        """Begin a snapshot. `count`: the number of all items."""
        encoded = _ENCODER.encode(members)
        self._parts = [_HEAD_OF_PARTS.pack(0, count, len(encoded)), encoded]
        self.length = sum(map(len, self._parts))
        """Bytes written so far."""
        self._items: Items = []
        self._plain_bytes = 0
        """Approximate plain bytes of `_items`."""

    def add(self, items: Items) -> None:
        """Add the next items, in key order. Work: a microsecond for each."""
        for item in items:
            self._items.append(item)
            self._plain_bytes += len(item[0]) + len(item[1])
            if self._plain_bytes >= PART_BYTES:
                self._end_part()

    def finish(self) -> bytes:
        """Return the snapshot; all items were added."""
        if self._items:
            self._end_part()
        return b"".join(self._parts)

    def _end_part(self) -> None:
        plain = _ENCODER.encode(self._items)
        packed = bytes(cramjam.zstd.compress(plain))
        self._parts += [_PART.pack(len(packed), len(plain)), packed]
        self.length += _PART.size + len(packed)
        self._items, self._plain_bytes = [], 0


@dataclass(frozen=True, slots=True)
class OpenSnapshot:
    """A snapshot whose items are read in pieces."""

    members: Members
    is_in_parts: bool
    count: int
    """Number of items."""
    pieces: Iterator[Items]
    """Items in key order. Raises DecodeError at a malformed part."""


def open_snapshot(data: bytes | bytearray | memoryview) -> OpenSnapshot:
    """Open a snapshot, to be read a piece at a time if it is in parts.

    Raise DecodeError if the layout is not that of a snapshot. The content of a part is checked when
    it is read.
    """
    if len(data) < _HEAD_OF_PARTS.size or _LENGTH.unpack_from(data)[0]:
        state = decode_snapshot(data)
        return OpenSnapshot(state.members, False, len(state.items), iter([state.items]))
    if len(data) > PARTS_BYTES_MAX:
        raise DecodeError(f"a snapshot of {len(data)} bytes")
    view = memoryview(data)
    _, count, length = _HEAD_OF_PARTS.unpack_from(view)
    at = _HEAD_OF_PARTS.size + length
    if at > len(view):
        raise DecodeError(f"a snapshot of {len(view)} bytes, {length} of them members")
    members = _MEMBERS.decode(view[_HEAD_OF_PARTS.size : at])
    check_members(members.conf_state)
    parts: list[tuple[int, int, int]] = []
    while at < len(view):
        if len(view) - at < _PART.size:
            raise DecodeError(f"a part of {len(view) - at} bytes")
        packed, plain = _PART.unpack_from(view, at)
        at += _PART.size
        if packed > len(view) - at or plain > STATE_BYTES_MAX:
            raise DecodeError(f"a part of {packed} bytes, {plain} plain")
        parts.append((at, packed, plain))
        at += packed
    pieces = (_part(view[at : at + packed], plain) for at, packed, plain in parts)
    return OpenSnapshot(members, True, count, pieces)


def _part(packed: memoryview, length: int) -> Items:
    plain = bytearray(length)
    try:
        cramjam.zstd.decompress_into(packed, plain)
    except cramjam.DecompressionError as error:
        raise DecodeError(str(error)) from error
    return _ITEMS.decode(plain)


def check_members(conf_state: ConfState) -> None:
    """Raise DecodeError if the members are impossible."""
    try:
        restored(conf_state)
    except InvalidConfChange as error:
        raise DecodeError(str(error)) from error


def decode_snapshot(data: bytes | bytearray | memoryview) -> SnapshotState:
    """Decode a snapshot. Raise DecodeError if it is malformed.

    The result does not refer to `data`.
    """
    if len(data) >= _HEAD_OF_PARTS.size and not _LENGTH.unpack_from(data)[0]:
        opened = open_snapshot(data)
        return SnapshotState(opened.members, [item for piece in opened.pieces for item in piece])
    length = _LENGTH.unpack_from(data)[0] if len(data) >= _LENGTH.size else STATE_BYTES_MAX + 1
    if length > STATE_BYTES_MAX or len(data) > SNAPSHOT_BYTES_MAX:
        raise DecodeError(f"a snapshot of {len(data)} bytes, {length} plain")
    plain = bytearray(length)
    try:
        cramjam.zstd.decompress_into(memoryview(data)[_LENGTH.size :], plain)
    except cramjam.DecompressionError as error:
        raise DecodeError(str(error)) from error
    state = _SNAPSHOT.decode(plain)
    check_members(state.members.conf_state)
    return state


def split_members(items: Items, initial: Members) -> tuple[Members, Items]:
    """Return the members in a checkpoint, and its other items.

    `initial` if the members never changed. Raise DecodeError if they are malformed.
    """
    if items and items[0][0] == MEMBERS_KEY:
        return _MEMBERS.decode(items[0][1]), items[1:]
    return initial, items


class Passing(Protocol):
    """See `Owner` in `owner.py`."""

    def pass_over(self, entries: Sequence[Entry], *, is_last: bool) -> None: ...


def pass_over(owner: Passing, entries: Sequence[Entry], reflects: Index) -> None:
    """Show an owner those of the entries that its state reflects."""
    first = entries[0].index
    if first <= reflects:
        is_last = entries[-1].index >= reflects
        owner.pass_over(entries[: reflects + 1 - first] if is_last else entries, is_last=is_last)


def for_the_owner(entries: Sequence[Entry], reflects: Index) -> Sequence[Entry]:
    """Return the entries that an owner applies.

    These exclude membership changes, and entries that its state already reflects.
    """
    if entries[0].index > reflects:
        for entry in entries:
            if entry.kind in CONF_CHANGE_KINDS:
                break
        else:
            return entries
    return [e for e in entries if e.index > reflects and e.kind not in CONF_CHANGE_KINDS]
