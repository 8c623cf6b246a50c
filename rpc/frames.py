"""RAFT frames: Raft messages of many groups in one frame.

Once per loop turn a server sends each peer one frame with the messages of all its groups for that
peer. The small, fixed parts of all messages are at the front; the payloads of entries follow in the
same order, as they are in memory. Sending uses a gather list that copies nothing; received payloads
are views into the frame.

    count u32, meta_bytes u32
    meta:     message, message, ...      each: kind u8, group, to, from, term, then its own fields;
                                         MsgApp and MsgProp are followed by their entry heads
    payloads: payload, payload, ...      of entries and snapshots, in order, without padding

Entry head, 41 bytes: term u64, index u64, kind u8, base_offset u64, records u32, timestamp i64,
length u32. Integers are little-endian. A frame must be used up exactly.

Message kinds and their layout are wire format: append new kinds, never change one. Local storage
messages have none and cannot be encoded. Every count and length is checked against the bytes
present before it is used; nothing is allocated by a count. Decoding raises only MalformedFrame.

Does not depend on the meaning of messages, links, or time.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from struct import Struct
from typing import Any, Final

from ids import GroupId, NodeId
from raft.messages import (
    MsgApp,
    MsgAppResp,
    MsgCommit,
    MsgHeartbeat,
    MsgHeartbeatResp,
    MsgPreVote,
    MsgPreVoteResp,
    MsgProp,
    MsgReadIndex,
    MsgReadIndexResp,
    MsgSnap,
    MsgTimeoutNow,
    MsgTransferLeader,
    MsgVote,
    MsgVoteResp,
    PeerMessage,
)
from raft.types import ConfState, Entry, EntryKind, Snapshot
from rpc.errors import MalformedFrame
from rpc.reader import Buffer

GroupMessage = tuple[GroupId, PeerMessage]
"""(group id, message)"""

FRAME_PAYLOAD_BYTES_TARGET: Final = 4 << 20
"""`encode_frames` begins a new frame once one holds this much payload."""

FRAME_MESSAGES_MAX: Final = 256
"""Most messages in a frame of `encode_frames`: the receiver handles them without interruption."""

CONTEXT_BYTES_MAX: Final = 1 << 10
"""Longest read index context."""

_PREFIX = Struct("<II")
_ENTRY = Struct("<QQBQIqI")
_MEMBER = Struct("<Q")

# Every layout begins: kind, group, to, from, term. Fixed layouts list the rest of the dataclass's
# fields in its own order, so that decoding is `cls(*fields)`.
_APP = Struct("<BQQQQ QQQI")  # log_term, index, commit, entries
_APP_RESP = Struct("<BQQQQ Q?QQ")
_VOTE = Struct("<BQQQQ QQ?")
_VOTE_RESP = Struct("<BQQQQ ?")
_HEARTBEAT = Struct("<BQQQQ QH")  # commit, context length
_COMMIT = Struct("<BQQQQ Q")
_CONTEXT = Struct("<BQQQQ H")  # context length
_READ_INDEX_RESP = Struct("<BQQQQ QH")  # index, context length
_BARE = Struct("<BQQQQ")
_PROP = Struct("<BQQQQ I")  # entries
# index, term, next_offset, auto_leave, four member counts, data length
_SNAP = Struct("<BQQQQ QQQ?HHHHI")

_KIND_APP: Final = 1
_KIND_APP_RESP: Final = 2
_KIND_VOTE: Final = 3
_KIND_VOTE_RESP: Final = 4
_KIND_PRE_VOTE: Final = 5
_KIND_PRE_VOTE_RESP: Final = 6
_KIND_HEARTBEAT: Final = 7
_KIND_HEARTBEAT_RESP: Final = 8
_KIND_SNAP: Final = 9
_KIND_TIMEOUT_NOW: Final = 10
_KIND_TRANSFER_LEADER: Final = 11
_KIND_PROP: Final = 12
_KIND_READ_INDEX: Final = 13
_KIND_READ_INDEX_RESP: Final = 14
_KIND_COMMIT: Final = 15

_ENTRY_KINDS = tuple(EntryKind(value) for value in range(len(EntryKind)))


# --- encoding -----------------------------------------------------------------------------------
def encode_messages(messages: Sequence[GroupMessage]) -> list[Buffer]:
    """Encode the payload of one RAFT frame: meta first, then entry payloads without a copy.

    Raises ValueError for a message that is not sent between servers.
    """
    encoder = _Encoder()
    for group, message in messages:
        encoder.add(group, message)
    return encoder.finish()


def encode_frames(
    messages: Sequence[GroupMessage], *, payload_bytes: int = FRAME_PAYLOAD_BYTES_TARGET
) -> Iterator[tuple[int, int, list[Buffer]]]:
    """Encode messages into frames: (start, end, buffers) carries messages [start, end).

    A frame ends with the message that brings it to `payload_bytes`, or with number
    `FRAME_MESSAGES_MAX`. A message is never split.
    """
    start = 0
    encoder = _Encoder()
    for at, (group, message) in enumerate(messages):
        encoder.add(group, message)
        if encoder.payload_bytes >= payload_bytes or encoder.count == FRAME_MESSAGES_MAX:
            yield start, at + 1, encoder.finish()
            start = at + 1
            encoder = _Encoder()
    if start < len(messages):
        yield start, len(messages), encoder.finish()


class _Encoder:
    """Builder of one frame."""

    __slots__ = ("count", "meta", "payload_bytes", "payloads")

    def __init__(self) -> None:
        self.count = 0
        self.meta: list[Buffer] = [b""]  # the first place is the prefix's
        self.payloads: list[Buffer] = []
        self.payload_bytes = 0

    def add(self, group: GroupId, message: PeerMessage) -> None:
        encode = _ENCODERS.get(type(message))
        if encode is None:
            raise ValueError(f"{type(message).__name__} is not sent between servers")
        encode(self, group, message)
        self.count += 1

    def add_entries(self, entries: Sequence[Entry]) -> None:
        meta = self.meta
        pack = _ENTRY.pack
        for entry in entries:
            data = entry.data
            length = len(data)
            meta.append(
                pack(
                    entry.term, entry.index, entry.kind, entry.base_offset, entry.records,
                    entry.timestamp, length,
                )
            )  # fmt: skip
            if length:
                self.payloads.append(data)
                self.payload_bytes += length

    def finish(self) -> list[Buffer]:
        meta = self.meta
        meta_bytes = sum(map(len, meta))
        meta[0] = _PREFIX.pack(self.count, meta_bytes)
        return [b"".join(meta), *self.payloads]


def _encode_app(encoder: _Encoder, group: GroupId, message: MsgApp) -> None:
    entries = message.entries
    encoder.meta.append(
        _APP.pack(
            _KIND_APP, group, message.to, message.from_, message.term,
            message.log_term, message.index, message.commit, len(entries),
        )
    )  # fmt: skip
    if entries:
        encoder.add_entries(entries)


def _encode_app_resp(encoder: _Encoder, group: GroupId, message: MsgAppResp) -> None:
    encoder.meta.append(
        _APP_RESP.pack(
            _KIND_APP_RESP, group, message.to, message.from_, message.term,
            message.index, message.reject, message.reject_hint, message.log_term,
        )
    )  # fmt: skip


def _encode_vote(encoder: _Encoder, group: GroupId, message: MsgVote | MsgPreVote) -> None:
    kind = _KIND_VOTE if type(message) is MsgVote else _KIND_PRE_VOTE
    encoder.meta.append(
        _VOTE.pack(
            kind, group, message.to, message.from_, message.term,
            message.log_term, message.index, message.transfer,
        )
    )  # fmt: skip


def _encode_vote_resp(
    encoder: _Encoder, group: GroupId, message: MsgVoteResp | MsgPreVoteResp
) -> None:
    kind = _KIND_VOTE_RESP if type(message) is MsgVoteResp else _KIND_PRE_VOTE_RESP
    encoder.meta.append(
        _VOTE_RESP.pack(kind, group, message.to, message.from_, message.term, message.reject)
    )


def _encode_heartbeat(encoder: _Encoder, group: GroupId, message: MsgHeartbeat) -> None:
    context = _checked_context(message.context)
    encoder.meta.append(
        _HEARTBEAT.pack(
            _KIND_HEARTBEAT, group, message.to, message.from_, message.term,
            message.commit, len(context),
        )
    )  # fmt: skip
    encoder.meta.append(context)


def _encode_commit(encoder: _Encoder, group: GroupId, message: MsgCommit) -> None:
    encoder.meta.append(
        _COMMIT.pack(_KIND_COMMIT, group, message.to, message.from_, message.term, message.commit)
    )


def _encode_context(
    encoder: _Encoder, group: GroupId, message: MsgHeartbeatResp | MsgReadIndex
) -> None:
    kind = _KIND_HEARTBEAT_RESP if type(message) is MsgHeartbeatResp else _KIND_READ_INDEX
    context = _checked_context(message.context)
    encoder.meta.append(
        _CONTEXT.pack(kind, group, message.to, message.from_, message.term, len(context))
    )
    encoder.meta.append(context)


def _encode_read_index_resp(encoder: _Encoder, group: GroupId, message: MsgReadIndexResp) -> None:
    context = _checked_context(message.context)
    encoder.meta.append(
        _READ_INDEX_RESP.pack(
            _KIND_READ_INDEX_RESP, group, message.to, message.from_, message.term,
            message.index, len(context),
        )
    )  # fmt: skip
    encoder.meta.append(context)


def _encode_bare(
    encoder: _Encoder, group: GroupId, message: MsgTimeoutNow | MsgTransferLeader
) -> None:
    kind = _KIND_TIMEOUT_NOW if type(message) is MsgTimeoutNow else _KIND_TRANSFER_LEADER
    encoder.meta.append(_BARE.pack(kind, group, message.to, message.from_, message.term))


def _encode_prop(encoder: _Encoder, group: GroupId, message: MsgProp) -> None:
    entries = message.entries
    encoder.meta.append(
        _PROP.pack(_KIND_PROP, group, message.to, message.from_, message.term, len(entries))
    )
    encoder.add_entries(entries)


def _encode_snap(encoder: _Encoder, group: GroupId, message: MsgSnap) -> None:
    snapshot = message.snapshot
    conf = snapshot.conf_state
    members = (conf.voters, conf.voters_outgoing, conf.learners, conf.learners_next)
    length = len(snapshot.data)
    encoder.meta.append(
        _SNAP.pack(
            _KIND_SNAP, group, message.to, message.from_, message.term,
            snapshot.index, snapshot.term, snapshot.next_offset, conf.auto_leave,
            *map(len, members), length,
        )
    )  # fmt: skip
    for ids in members:
        encoder.meta.extend(map(_MEMBER.pack, ids))
    if length:
        encoder.payloads.append(snapshot.data)
        encoder.payload_bytes += length


def _checked_context(context: bytes) -> bytes:
    if len(context) > CONTEXT_BYTES_MAX:
        raise ValueError(f"read index context of {len(context)} bytes")
    return context


# One encoder per message type; each takes exactly its key's type, which a dict cannot express.
_ENCODERS: dict[type, Callable[[_Encoder, GroupId, Any], None]] = {
    MsgApp: _encode_app,
    MsgAppResp: _encode_app_resp,
    MsgVote: _encode_vote,
    MsgVoteResp: _encode_vote_resp,
    MsgPreVote: _encode_vote,
    MsgPreVoteResp: _encode_vote_resp,
    MsgHeartbeat: _encode_heartbeat,
    MsgHeartbeatResp: _encode_context,
    MsgCommit: _encode_commit,
    MsgSnap: _encode_snap,
    MsgTimeoutNow: _encode_bare,
    MsgTransferLeader: _encode_bare,
    MsgProp: _encode_prop,
    MsgReadIndex: _encode_context,
    MsgReadIndexResp: _encode_read_index_resp,
}


# --- decoding -----------------------------------------------------------------------------------
def message_count(payload: memoryview) -> int:
    """Return the number of messages a RAFT frame declares, at most what its length allows.

    0 for a frame too short to contain the number.
    """
    room = len(payload) // _BARE.size
    return min(room, _PREFIX.unpack_from(payload)[0]) if room else 0


def decode_messages(payload: memoryview) -> list[GroupMessage]:
    """Decode the messages of one RAFT frame; entry payloads are views into it.

    Raises MalformedFrame; then no part of the frame may be used.
    """
    decoder = _Decoder(payload)
    try:
        return decoder.messages()
    except struct.error as error:
        # Every read is by `unpack_from`, which checks the bytes present.
        raise MalformedFrame("raft frame", decoder.at) from error


class _Decoder:
    """Reader of one frame: `at` walks the meta part, `payload_at` the payloads."""

    __slots__ = ("at", "meta", "payload", "payload_at")

    def __init__(self, payload: memoryview) -> None:
        self.payload = payload
        self.meta = payload
        self.at = 0
        self.payload_at = 0

    def messages(self) -> list[GroupMessage]:
        payload = self.payload
        count, meta_bytes = _PREFIX.unpack_from(payload)
        self.payload_at = _PREFIX.size + meta_bytes
        if self.payload_at > len(payload):
            raise MalformedFrame("raft frame lengths")
        self.at = _PREFIX.size
        # Cut off, so that no message can be read out of payload bytes.
        meta = self.meta = payload[: self.payload_at]
        messages: list[GroupMessage] = []
        for _ in range(count):
            if self.at >= len(meta):
                raise MalformedFrame("raft frame count", self.at)
            kind = meta[self.at]
            fixed = _FIXED.get(kind)
            if fixed is not None:
                layout, message_type = fixed
                fields = layout.unpack_from(meta, self.at)
                self.at += layout.size
                messages.append((fields[1], message_type(*fields[2:])))
                continue
            decode = _DECODERS.get(kind)
            if decode is None:
                raise MalformedFrame(f"raft message kind {kind}", self.at)
            messages.append(decode(self))
        if self.at != len(meta) or self.payload_at != len(payload):
            raise MalformedFrame("raft frame end", self.at)
        return messages

    def entries(self, count: int) -> list[Entry]:
        meta = self.meta
        payload = self.payload
        at = self.at
        payload_at = self.payload_at
        unpack_from = _ENTRY.unpack_from
        entry_bytes = _ENTRY.size
        kinds = _ENTRY_KINDS
        end = len(payload)
        entries: list[Entry] = []
        for _ in range(count):
            term, index, kind, base_offset, records, timestamp, length = unpack_from(meta, at)
            at += entry_bytes
            payload_end = payload_at + length
            if payload_end > end or kind >= len(kinds):
                raise MalformedFrame("raft entry", at)
            data = payload[payload_at:payload_end] if length else b""
            payload_at = payload_end
            entries.append(Entry(term, index, kinds[kind], data, base_offset, records, timestamp))
        self.at = at
        self.payload_at = payload_at
        return entries

    def context(self, length: int) -> bytes:
        start = self.at
        self.at = end = start + length
        if end > len(self.meta) or length > CONTEXT_BYTES_MAX:
            raise MalformedFrame("read index context", start)
        return bytes(self.meta[start:end])

    def members(self, count: int) -> tuple[NodeId, ...]:
        ids: list[NodeId] = []
        for _ in range(count):
            ids.append(_MEMBER.unpack_from(self.meta, self.at)[0])
            self.at += _MEMBER.size
        return tuple(ids)


def _decode_app(decoder: _Decoder) -> GroupMessage:
    _, group, to, from_, term, log_term, index, commit, count = _APP.unpack_from(
        decoder.meta, decoder.at
    )
    decoder.at += _APP.size
    entries = decoder.entries(count) if count else []
    return group, MsgApp(to, from_, term, log_term, index, entries, commit)


def _decode_heartbeat(decoder: _Decoder) -> GroupMessage:
    _, group, to, from_, term, commit, length = _HEARTBEAT.unpack_from(decoder.meta, decoder.at)
    decoder.at += _HEARTBEAT.size
    return group, MsgHeartbeat(to, from_, term, commit, decoder.context(length))


def _decode_heartbeat_resp(decoder: _Decoder) -> GroupMessage:
    _, group, to, from_, term, length = _CONTEXT.unpack_from(decoder.meta, decoder.at)
    decoder.at += _CONTEXT.size
    return group, MsgHeartbeatResp(to, from_, term, decoder.context(length))


def _decode_read_index(decoder: _Decoder) -> GroupMessage:
    _, group, to, from_, term, length = _CONTEXT.unpack_from(decoder.meta, decoder.at)
    decoder.at += _CONTEXT.size
    return group, MsgReadIndex(to, from_, term, decoder.context(length))


def _decode_read_index_resp(decoder: _Decoder) -> GroupMessage:
    _, group, to, from_, term, index, length = _READ_INDEX_RESP.unpack_from(
        decoder.meta, decoder.at
    )
    decoder.at += _READ_INDEX_RESP.size
    return group, MsgReadIndexResp(to, from_, term, index, decoder.context(length))


def _decode_prop(decoder: _Decoder) -> GroupMessage:
    _, group, to, from_, term, count = _PROP.unpack_from(decoder.meta, decoder.at)
    decoder.at += _PROP.size
    return group, MsgProp(to, from_, term, decoder.entries(count))


def _decode_snap(decoder: _Decoder) -> GroupMessage:
    (
        _, group, to, from_, term, index, snapshot_term, next_offset, auto_leave,
        voters, voters_outgoing, learners, learners_next, length,
    ) = _SNAP.unpack_from(decoder.meta, decoder.at)  # fmt: skip
    decoder.at += _SNAP.size
    conf_state = ConfState(
        voters=decoder.members(voters),
        voters_outgoing=decoder.members(voters_outgoing),
        learners=decoder.members(learners),
        learners_next=decoder.members(learners_next),
        auto_leave=auto_leave,
    )
    start = decoder.payload_at
    decoder.payload_at = end = start + length
    if end > len(decoder.payload):
        raise MalformedFrame("snapshot", decoder.at)
    # Copied: a snapshot is small and may be kept for long, unlike the frame it came in.
    data = bytes(decoder.payload[start:end])
    snapshot = Snapshot(index, snapshot_term, conf_state, next_offset, data)
    return group, MsgSnap(to, from_, term, snapshot)


# kind → layout and the type whose fields it lists; constructor signatures differ by type.
_FIXED: dict[int, tuple[Struct, Callable[..., PeerMessage]]] = {
    _KIND_APP_RESP: (_APP_RESP, MsgAppResp),
    _KIND_VOTE: (_VOTE, MsgVote),
    _KIND_VOTE_RESP: (_VOTE_RESP, MsgVoteResp),
    _KIND_PRE_VOTE: (_VOTE, MsgPreVote),
    _KIND_PRE_VOTE_RESP: (_VOTE_RESP, MsgPreVoteResp),
    _KIND_TIMEOUT_NOW: (_BARE, MsgTimeoutNow),
    _KIND_TRANSFER_LEADER: (_BARE, MsgTransferLeader),
    _KIND_COMMIT: (_COMMIT, MsgCommit),
}

_DECODERS: dict[int, Callable[[_Decoder], GroupMessage]] = {
    _KIND_APP: _decode_app,
    _KIND_HEARTBEAT: _decode_heartbeat,
    _KIND_HEARTBEAT_RESP: _decode_heartbeat_resp,
    _KIND_SNAP: _decode_snap,
    _KIND_PROP: _decode_prop,
    _KIND_READ_INDEX: _decode_read_index,
    _KIND_READ_INDEX_RESP: _decode_read_index_resp,
}
