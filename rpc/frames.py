"""RAFT frames: Raft messages of many groups in one frame.

Once per loop turn a server sends each peer one frame with the messages of all its groups for that
peer. The small, fixed parts of all messages are at the front; the payloads of entries follow in the
same order, as they are in memory. Sending uses a gather list that copies nothing; received payloads
are views into the frame.

    count u32, meta_bytes u32
    meta:     message, message, ...      each: kind u8, group, to, from, term, then its own fields;
                                         MsgApp is followed by its entry heads
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
from collections.abc import Callable, Sequence
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
    MsgReadIndex,
    MsgReadIndexResp,
    MsgSnap,
    MsgTimeoutNow,
    MsgVote,
    MsgVoteResp,
    PeerMessage,
)
from raft.types import ConfState, Entry, EntryKind, Snapshot
from rpc.errors import MalformedFrame
from rpc.reader import Buffer

GroupMessage = tuple[GroupId, PeerMessage]
"""(group id, message)"""
EncodedFrame = tuple[int, int, list[Buffer]]
"""(start, end, buffers): the frame carries messages [start, end)."""

FRAME_PAYLOAD_BYTES_TARGET: Final = 4 << 20
"""`encode_frames` begins a new frame once one holds this much payload."""

FRAME_MESSAGES_MAX: Final = 64
"""Most messages in a frame of `encode_frames`: the receiver handles them without interruption."""

CONTEXT_BYTES_MAX: Final = 1 << 10
"""Longest read index context."""

_NO_LIMIT: Final = 1 << 62

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
# 11 and 12 are taken: requests forwarded to leaders had them, which no server ever sent.
_KIND_READ_INDEX: Final = 13
_KIND_READ_INDEX_RESP: Final = 14
_KIND_COMMIT: Final = 15

_ENTRY_KINDS = tuple(EntryKind(value) for value in range(len(EntryKind)))


# --- encoding -----------------------------------------------------------------------------------
def encode_messages(messages: Sequence[GroupMessage]) -> list[Buffer]:
    """Encode the payload of one RAFT frame: meta first, then entry payloads without a copy.

    Raises ValueError for a message that is not sent between servers.
    """
    if not messages:
        return [_PREFIX.pack(0, 0)]
    ((_, _, buffers),) = encode_frames(
        messages, payload_bytes=_NO_LIMIT, messages_max=len(messages)
    )
    return buffers


def encode_frames(
    messages: Sequence[GroupMessage],
    *,
    payload_bytes: int = FRAME_PAYLOAD_BYTES_TARGET,
    messages_max: int = FRAME_MESSAGES_MAX,
) -> list[EncodedFrame]:
    """Encode messages into frames.

    A frame ends with the message that brings it to `payload_bytes`, or with number `messages_max`.
    A message with as much has a frame of its own: those before it need not wait for it. A message
    is never split. Raises ValueError for a message that is not sent between servers.
    """
    frames: list[EncodedFrame] = []
    start = size = 0
    meta: list[Buffer] = [b""]  # the first place is the prefix's
    payloads: list[Buffer] = []
    for end, (group, message) in enumerate(messages, 1):
        encode = _ENCODERS.get(type(message))
        if encode is None:
            raise ValueError(f"{type(message).__name__} is not sent between servers")
        own = encode(meta, payloads, group, message)
        if own >= payload_bytes and end - start > 1:
            # Rare, so it is encoded twice: payloads are not copied.
            head: list[Buffer] = []
            body: list[Buffer] = []
            encode(head, body, group, message)
            del meta[-len(head) :], payloads[len(payloads) - len(body) :]
            meta[0] = _PREFIX.pack(end - 1 - start, sum(map(len, meta)))
            frames.append((start, end - 1, [b"".join(meta), *payloads]))
            start, size = end - 1, 0
            meta, payloads = [b"", *head], body
        size += own
        if size >= payload_bytes or end - start == messages_max or end == len(messages):
            meta[0] = _PREFIX.pack(end - start, sum(map(len, meta)))
            frames.append((start, end, [b"".join(meta), *payloads]))
            start, size, meta, payloads = end, 0, [b""], []
    return frames


def _encode_entries(meta: list[Buffer], payloads: list[Buffer], entries: Sequence[Entry]) -> int:
    pack = _ENTRY.pack
    size = 0
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
            payloads.append(data)
            size += length
    return size


def _encode_app(meta: list[Buffer], payloads: list[Buffer], group: GroupId, message: MsgApp) -> int:
    entries = message.entries
    meta.append(
        _APP.pack(
            _KIND_APP, group, message.to, message.from_, message.term,
            message.log_term, message.index, message.commit, len(entries),
        )
    )  # fmt: skip
    return _encode_entries(meta, payloads, entries) if entries else 0


def _encode_app_resp(
    meta: list[Buffer], _: list[Buffer], group: GroupId, message: MsgAppResp
) -> int:
    meta.append(
        _APP_RESP.pack(
            _KIND_APP_RESP, group, message.to, message.from_, message.term,
            message.index, message.reject, message.reject_hint, message.log_term,
        )
    )  # fmt: skip
    return 0


def _encode_vote(
    meta: list[Buffer], _: list[Buffer], group: GroupId, message: MsgVote | MsgPreVote
) -> int:
    kind = _KIND_VOTE if type(message) is MsgVote else _KIND_PRE_VOTE
    meta.append(
        _VOTE.pack(
            kind, group, message.to, message.from_, message.term,
            message.log_term, message.index, message.transfer,
        )
    )  # fmt: skip
    return 0


def _encode_vote_resp(
    meta: list[Buffer], _: list[Buffer], group: GroupId, message: MsgVoteResp | MsgPreVoteResp
) -> int:
    kind = _KIND_VOTE_RESP if type(message) is MsgVoteResp else _KIND_PRE_VOTE_RESP
    meta.append(
        _VOTE_RESP.pack(kind, group, message.to, message.from_, message.term, message.reject)
    )
    return 0


def _encode_heartbeat(
    meta: list[Buffer], _: list[Buffer], group: GroupId, message: MsgHeartbeat
) -> int:
    context = _checked_context(message.context)
    meta.append(
        _HEARTBEAT.pack(
            _KIND_HEARTBEAT, group, message.to, message.from_, message.term,
            message.commit, len(context),
        )
    )  # fmt: skip
    meta.append(context)
    return 0


def _encode_commit(meta: list[Buffer], _: list[Buffer], group: GroupId, message: MsgCommit) -> int:
    meta.append(
        _COMMIT.pack(_KIND_COMMIT, group, message.to, message.from_, message.term, message.commit)
    )
    return 0


def _encode_context(
    meta: list[Buffer], _: list[Buffer], group: GroupId, message: MsgHeartbeatResp | MsgReadIndex
) -> int:
    kind = _KIND_HEARTBEAT_RESP if type(message) is MsgHeartbeatResp else _KIND_READ_INDEX
    context = _checked_context(message.context)
    meta.append(_CONTEXT.pack(kind, group, message.to, message.from_, message.term, len(context)))
    meta.append(context)
    return 0


def _encode_read_index_resp(
    meta: list[Buffer], _: list[Buffer], group: GroupId, message: MsgReadIndexResp
) -> int:
    context = _checked_context(message.context)
    meta.append(
        _READ_INDEX_RESP.pack(
            _KIND_READ_INDEX_RESP, group, message.to, message.from_, message.term,
            message.index, len(context),
        )
    )  # fmt: skip
    meta.append(context)
    return 0


def _encode_timeout_now(
    meta: list[Buffer], _: list[Buffer], group: GroupId, message: MsgTimeoutNow
) -> int:
    meta.append(_BARE.pack(_KIND_TIMEOUT_NOW, group, message.to, message.from_, message.term))
    return 0


def _encode_snap(
    meta: list[Buffer], payloads: list[Buffer], group: GroupId, message: MsgSnap
) -> int:
    snapshot = message.snapshot
    conf = snapshot.conf_state
    members = (conf.voters, conf.voters_outgoing, conf.learners, conf.learners_next)
    length = len(snapshot.data)
    meta.append(
        _SNAP.pack(
            _KIND_SNAP, group, message.to, message.from_, message.term,
            snapshot.index, snapshot.term, snapshot.next_offset, conf.auto_leave,
            *map(len, members), length,
        )
    )  # fmt: skip
    for ids in members:
        meta.extend(map(_MEMBER.pack, ids))
    if length:
        payloads.append(snapshot.data)
    return length


def _checked_context(context: bytes) -> bytes:
    if len(context) > CONTEXT_BYTES_MAX:
        raise ValueError(f"read index context of {len(context)} bytes")
    return context


# One encoder per message type: it appends to the meta part and to the payloads of a frame, and
# returns the bytes of payload. Each takes exactly its key's type, which a dict cannot express.
_ENCODERS: dict[type, Callable[[list[Buffer], list[Buffer], GroupId, Any], int]] = {
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
    MsgTimeoutNow: _encode_timeout_now,
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
    decoder = _Decoder()
    decoder.payload, decoder.at = payload, _PREFIX.size
    try:
        count, meta_bytes = _PREFIX.unpack_from(payload)
        decoder.payload_at = _PREFIX.size + meta_bytes
        if decoder.payload_at > len(payload):
            raise MalformedFrame("raft frame lengths")
        # Cut off, so that no message can be read out of payload bytes.
        meta = decoder.meta = payload[: decoder.payload_at]
        messages: list[GroupMessage] = []
        for _ in range(count):
            if decoder.at >= len(meta):
                raise MalformedFrame("raft frame count", decoder.at)
            kind = meta[decoder.at]
            fixed = _FIXED.get(kind)
            if fixed is not None:
                layout, message_type = fixed
                fields = layout.unpack_from(meta, decoder.at)
                decoder.at += layout.size
                messages.append((fields[1], message_type(*fields[2:])))
                continue
            decode = _DECODERS.get(kind)
            if decode is None:
                raise MalformedFrame(f"raft message kind {kind}", decoder.at)
            messages.append(decode(decoder))
        if decoder.at != len(meta) or decoder.payload_at != len(payload):
            raise MalformedFrame("raft frame end", decoder.at)
        return messages
    except struct.error as error:
        # Every read is by `unpack_from`, which checks the bytes present.
        raise MalformedFrame("raft frame", decoder.at) from error


class _Decoder:
    """Reader of one frame: `at` walks the meta part, `payload_at` the payloads."""

    __slots__ = ("at", "meta", "payload", "payload_at")

    payload: memoryview
    meta: memoryview
    at: int
    payload_at: int

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
    _KIND_COMMIT: (_COMMIT, MsgCommit),
}

_DECODERS: dict[int, Callable[[_Decoder], GroupMessage]] = {
    _KIND_APP: _decode_app,
    _KIND_HEARTBEAT: _decode_heartbeat,
    _KIND_HEARTBEAT_RESP: _decode_heartbeat_resp,
    _KIND_SNAP: _decode_snap,
    _KIND_READ_INDEX: _decode_read_index,
    _KIND_READ_INDEX_RESP: _decode_read_index_resp,
}
