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

Must not know: who asks, how snapshots travel, what items mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import Protocol

import cramjam
import msgspec

from ids import Index, NodeId
from raft.errors import InvalidConfChange
from raft.membership import decode_conf_change, restored
from raft.types import CONF_CHANGE_KINDS, ConfState, Entry
from segments.api import INSTALLED_STATE_BYTES_MAX

SNAPSHOT_BYTES_MAX = INSTALLED_STATE_BYTES_MAX
"""The largest snapshot, compressed: it travels in one frame and is kept in one journal record. A
group whose log was cut while its state was half as large, and has outgrown it since, cannot have a
replica replaced; a coordinator gets there with some two hundred thousand committed offsets."""

STATE_BYTES_MAX = 64 << 20
"""The largest state a snapshot may say it holds."""

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
_PAIR = b"\x92"
"""msgpack: two values follow."""
_ARRAY_32 = 0xDD
"""So many values follow."""
_ITEM_COUNT = Struct(">BI")
_REVISION = Struct("<Q")
_ENCODER = msgspec.msgpack.Encoder(order="deterministic")
_MEMBERS = msgspec.msgpack.Decoder(Members)
_SNAPSHOT = msgspec.msgpack.Decoder(SnapshotState)


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


def check_members(conf_state: ConfState) -> None:
    """Raises DecodeError for members that cannot be."""
    try:
        restored(conf_state)
    except InvalidConfChange as error:
        raise DecodeError(str(error)) from error


def decode_snapshot(data: bytes | bytearray | memoryview) -> SnapshotState:
    """Nothing in the result points into `data`. Raises DecodeError."""
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
