"""What a replica knows apart from its log's entries: in checkpoints, and in snapshots for peers.

*Members* are the group's configuration. In Raft as it is done here a configuration takes effect
when it is applied, so it is applied state and is checkpointed with the rest, under a key of its
own.

A *snapshot* is sent to a replica that is behind the log's start (§7): members, and the items of the
state machine. For a group of commands it replaces the entries up to the last applied one. For a
partition it does not: its records are the entries. There it stands at the log's *start*, a few
hundred bytes, and the entries follow by ordinary appends, from disk if need be: one path for all
catching up, resumable, every frame checksummed. What such a snapshot brings (members and producer
windows) may then reflect more than the log's start: `reflects` says up to where, and entries up to
there are not applied to it again.

A large state is a snapshot *in parts*, each of so many items, so that neither who makes it nor who
takes it does all of it in one turn:

     0  0            u32  no plain length: a version that does not know parts refuses it
     4  item count   u32
     8  member bytes u32, members
        and for each part: bytes u32, plain bytes u32, zstd frame of an array of items

Must not know: who asks, how snapshots travel, what items mean.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
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
"""The largest snapshot that is not in parts, compressed: it travels in one frame and is kept in one
journal record. A group whose log was cut while its state was half as large, and has outgrown it
since, cannot have a replica replaced. A coordinator refuses what would bring it to that half."""

PARTS_BYTES_MAX = INSTALLED_STATE_BYTES_MAX
"""The same of one in parts. No state that may be sent so gets there, however little compression
makes of it: a position takes at most some 80 bytes more than it counts as (`Offsets.bytes`)."""

STATE_BYTES_MAX = 64 << 20
"""The largest state a snapshot that is not in parts may say it holds, and the largest part."""

PART_BYTES = 1 << 20
"""A part ends once its items have as many bytes, plain."""

MEMBERS_KEY = b"\x00"
"""Where checkpoints keep the members. No machine has a key of this kind."""

Items = list[tuple[bytes, bytes]]
"""A machine's state: (key, value) in key order."""


class Members(msgspec.Struct, frozen=True, array_like=True):
    """A group's configuration as of an applied index. Replica ids ascending."""

    reflects: Index
    """Members and items are those of after this index, if more than that has been applied."""
    voters: tuple[NodeId, ...]
    voters_outgoing: tuple[NodeId, ...] = ()
    learners: tuple[NodeId, ...] = ()
    learners_next: tuple[NodeId, ...] = ()
    auto_leave: bool = False
    revision: int = 0
    """Up to which revision of what the members are to be the group has done its part: see
    `vdl/state/reassignment.py`."""

    @property
    def conf_state(self) -> ConfState:
        """In the core's form."""
        return ConfState(
            voters=self.voters,
            voters_outgoing=self.voters_outgoing,
            learners=self.learners,
            learners_next=self.learners_next,
            auto_leave=self.auto_leave,
        )


class SnapshotState(msgspec.Struct, frozen=True, array_like=True):
    """A snapshot's payload."""

    members: Members
    items: Items


def members_of(conf_state: ConfState, *, reflects: Index, revision: int = 0) -> Members:
    """The core's form, with the index it was applied at."""
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
    """The revision that a membership change says the group has done its part of; 0 if it says
    nothing."""
    context = decode_conf_change(entry.data).context
    return _REVISION.unpack(context)[0] if context else 0


def revision_context(revision: int) -> bytes:
    """What a membership change carries to say so."""
    return _REVISION.pack(revision)


DecodeError = msgspec.DecodeError
"""Bytes that are no snapshot, or no members, of this version."""

_LENGTH = Struct("<I")
_HEAD_OF_PARTS = Struct("<III")
_PART = Struct("<II")
_PAIR = b"\x92"
"""msgpack: two values follow."""
_ARRAY_32 = 0xDD
"""So many values follow."""
_ITEM_COUNT = Struct(">BI")
_REVISION = Struct("<Q")
_ENCODER = msgspec.msgpack.Encoder(order="deterministic")
_MEMBERS = msgspec.msgpack.Decoder(Members)
_SNAPSHOT = msgspec.msgpack.Decoder(SnapshotState)
_ITEMS = msgspec.msgpack.Decoder(Items)


def encode_members(members: Members) -> bytes:
    """The value kept under `MEMBERS_KEY`."""
    return _ENCODER.encode(members)


def encode_snapshot(members: Members, items: Items) -> bytes:
    """The payload of a snapshot, as it travels and as the journal keeps it: its plain length (u32)
    and a zstd frame; names and small numbers are most of it."""
    plain = _ENCODER.encode(SnapshotState(members, items))
    return _LENGTH.pack(len(plain)) + bytes(cramjam.zstd.compress(plain))


class SnapshotWriter:
    """`encode_snapshot` in pieces: of the same plain bytes."""

    __slots__ = ("_compressor", "_length")

    def __init__(self, members: Members, count: int) -> None:
        """`count`: of all items."""
        self._compressor = cramjam.zstd.Compressor()
        self._length = 0
        self._write(_PAIR + _ENCODER.encode(members) + _ITEM_COUNT.pack(_ARRAY_32, count))

    def add(self, items: Items) -> None:
        """The items that follow, in key order. Work: a microsecond for each."""
        self._write(b"".join(map(_ENCODER.encode, items)))

    def finish(self) -> bytes:
        """All of them were added."""
        return _LENGTH.pack(self._length) + bytes(self._compressor.finish())

    def _write(self, plain: bytes) -> None:
        self._length += len(plain)
        self._compressor.compress(plain)


class PartsWriter:
    """A snapshot in parts."""

    __slots__ = ("_items", "_parts", "_plain_bytes", "length")

    def __init__(self, members: Members, count: int) -> None:
        """`count`: of all items."""
        encoded = _ENCODER.encode(members)
        self._parts = [_HEAD_OF_PARTS.pack(0, count, len(encoded)), encoded]
        self.length = sum(map(len, self._parts))
        """Bytes of what is written."""
        self._items: Items = []
        self._plain_bytes = 0
        """Of `_items`, about."""

    def add(self, items: Items) -> None:
        """The items that follow, in key order. Work: a microsecond for each."""
        for item in items:
            self._items.append(item)
            self._plain_bytes += len(item[0]) + len(item[1])
            if self._plain_bytes >= PART_BYTES:
                self._end_part()

    def finish(self) -> bytes:
        """All of them were added."""
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
    """Of the items."""
    pieces: Iterator[Items]
    """In key order. Raises DecodeError where a part is none."""


def open_snapshot(data: bytes | bytearray | memoryview) -> OpenSnapshot:
    """What `decode_snapshot` does, a piece at a time where it is in parts. Raises DecodeError for
    what is not laid out as a snapshot; what a part holds is seen when it is read."""
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
    """Raises DecodeError for members that cannot be."""
    try:
        restored(conf_state)
    except InvalidConfChange as error:
        raise DecodeError(str(error)) from error


def decode_snapshot(data: bytes | bytearray | memoryview) -> SnapshotState:
    """Nothing in the result points into `data`. Raises DecodeError."""
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
    """A checkpoint's items without the members, and these; `initial` when they never changed.
    Raises DecodeError."""
    if items and items[0][0] == MEMBERS_KEY:
        return _MEMBERS.decode(items[0][1]), items[1:]
    return initial, items


class Passing(Protocol):
    """See `Owner` in `group.py`."""

    def pass_over(self, entries: Sequence[Entry], *, is_last: bool) -> None: ...


def pass_over(owner: Passing, entries: Sequence[Entry], reflects: Index) -> None:
    """Show an owner those of the entries that its state reflects."""
    first = entries[0].index
    if first <= reflects:
        is_last = entries[-1].index >= reflects
        owner.pass_over(entries[: reflects + 1 - first] if is_last else entries, is_last=is_last)


def for_the_owner(entries: Sequence[Entry], reflects: Index) -> Sequence[Entry]:
    """The entries that an owner applies: no membership changes, and none that its state already
    reflects."""
    if entries[0].index > reflects:
        for entry in entries:
            if entry.kind in CONF_CHANGE_KINDS:
                break
        else:
            return entries
    return [e for e in entries if e.index > reflects and e.kind not in CONF_CHANGE_KINDS]
