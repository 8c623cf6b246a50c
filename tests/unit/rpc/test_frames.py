"""Raft messages of many groups in one frame: round trips, and MalformedFrame otherwise."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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
    MsgStorageApply,
    MsgTimeoutNow,
    MsgTransferLeader,
    MsgVote,
    MsgVoteResp,
    PeerMessage,
)
from raft.types import ConfState, Entry, EntryKind, Snapshot
from rpc.errors import MalformedFrame
from rpc.frames import (
    CONTEXT_BYTES_MAX,
    FRAME_MESSAGES_MAX,
    GroupMessage,
    decode_messages,
    encode_frames,
    encode_messages,
    message_count,
)

u64 = st.integers(0, (1 << 64) - 1)
ids = st.tuples(u64, u64, u64)  # to, from, term
contexts = st.binary(max_size=40)
members = st.lists(u64, max_size=5).map(tuple)
entries = st.builds(
    Entry,
    term=u64,
    index=u64,
    kind=st.sampled_from(EntryKind),
    data=st.binary(max_size=300),
    base_offset=u64,
    records=st.integers(0, (1 << 32) - 1),
    timestamp=st.integers(-1, (1 << 63) - 1),
)
conf_states = st.builds(
    ConfState,
    voters=members,
    voters_outgoing=members,
    learners=members,
    learners_next=members,
    auto_leave=st.booleans(),
)
snapshots = st.builds(
    Snapshot,
    index=u64,
    term=u64,
    conf_state=conf_states,
    next_offset=u64,
    data=st.binary(max_size=300),
)


def of(kind: type, *fields: st.SearchStrategy[object]) -> st.SearchStrategy[PeerMessage]:
    """Strategy for messages of one type: the three common fields, then its own."""
    return st.tuples(ids, *fields).map(lambda drawn: kind(*drawn[0], *drawn[1:]))


messages = st.one_of(
    of(MsgApp, u64, u64, st.lists(entries, max_size=4), u64),
    of(MsgAppResp, u64, st.booleans(), u64, u64),
    of(MsgVote, u64, u64, st.booleans()),
    of(MsgVoteResp, st.booleans()),
    of(MsgPreVote, u64, u64, st.booleans()),
    of(MsgPreVoteResp, st.booleans()),
    of(MsgHeartbeat, u64, contexts),
    of(MsgHeartbeatResp, contexts),
    of(MsgCommit, u64),
    of(MsgSnap, snapshots),
    of(MsgTimeoutNow),
    of(MsgReadIndex, contexts),
    of(MsgReadIndexResp, u64, contexts),
)
batches = st.lists(st.tuples(u64, messages), max_size=8)


def joined(batch: list[GroupMessage]) -> memoryview:
    return memoryview(bytearray(b"".join(encode_messages(batch))))


def sample() -> list[GroupMessage]:
    """Return one message of every kind."""
    entry = Entry(3, 8, EntryKind.NORMAL, b"batch", 100, 4, 1_700_000_000_000)
    noop = Entry(3, 7, EntryKind.NOOP)
    snapshot = Snapshot(6, 2, ConfState((1, 2, 3), (), (4,)), 100, b"state")
    kinds: list[PeerMessage] = [
        MsgApp(1, 2, 3, 2, 6, [noop, entry], 6),
        MsgAppResp(1, 2, 3, 8, True, 5, 2),
        MsgVote(1, 2, 3, 2, 6, True),
        MsgVoteResp(1, 2, 3, True),
        MsgPreVote(1, 2, 3, 2, 6),
        MsgPreVoteResp(1, 2, 3),
        MsgHeartbeat(1, 2, 3, 6, b"context"),
        MsgHeartbeatResp(1, 2, 3, b"context"),
        MsgSnap(1, 2, 3, snapshot),
        MsgTimeoutNow(1, 2, 3),
        MsgReadIndex(1, 2, 0, b"context"),
        MsgReadIndexResp(1, 2, 3, 6, b"context"),
        MsgCommit(1, 2, 3, 6),
    ]
    return list(enumerate(kinds))


@settings(max_examples=300, deadline=None)
@given(batches)
def test_frames_any_messages_come_back_equal(batch: list[GroupMessage]) -> None:
    """Decoding undoes encoding, for every kind and every value a field can have."""
    assert decode_messages(joined(batch)) == batch


def test_frames_every_kind_that_travels_is_covered() -> None:
    """The sample has each member of PeerMessage once, without requests forwarded to leaders."""
    forwarded = {MsgProp, MsgTransferLeader}
    assert {type(message) for _, message in sample()} == set(PeerMessage.__args__) - forwarded
    assert decode_messages(joined(sample())) == sample()


def test_frames_payloads_are_not_copied() -> None:
    """Entry payloads are sent from their memory and arrive as views into the frame."""
    data = memoryview(bytearray(b"x" * 10_000))
    batch: list[GroupMessage] = [(9, MsgApp(1, 2, 3, 3, 6, [Entry(3, 7, data=data)], 6))]
    buffers = encode_messages(batch)
    assert buffers[1] is data
    frame = memoryview(bytearray(b"".join(buffers)))
    message = decode_messages(frame)[0][1]
    assert isinstance(message, MsgApp)
    payload = message.entries[0].data
    assert isinstance(payload, memoryview)
    assert payload.obj is frame.obj


@pytest.mark.parametrize(
    "message",
    [MsgStorageApply(1, 2, 3, [], []), MsgProp(1, 2, 0, []), MsgTransferLeader(1, 2, 3)],
    ids=["storage", "proposal", "transfer"],
)
def test_frames_what_no_server_sends_does_not_travel(message: Any) -> None:
    """Messages between a node and its disk, and requests forwarded to a leader."""
    with pytest.raises(ValueError, match=type(message).__name__):
        encode_messages([(1, message)])


@pytest.mark.parametrize("kind", [0, 11, 12, 16])
def test_frames_unknown_kind_is_malformed(kind: int) -> None:
    frame = bytearray(joined([(1, MsgTimeoutNow(1, 2, 3))]))
    frame[8] = kind
    with pytest.raises(MalformedFrame):
        decode_messages(memoryview(frame))


@pytest.mark.parametrize("kind", [MsgReadIndex, MsgHeartbeatResp])
def test_frames_context_at_the_limit_passes_one_more_is_refused(kind: type) -> None:
    """A context at the limit is encoded; one byte more is refused."""
    batch = [(1, kind(1, 2, 3, bytes(CONTEXT_BYTES_MAX)))]
    assert decode_messages(joined(batch)) == batch
    with pytest.raises(ValueError, match="context"):
        encode_messages([(1, kind(1, 2, 3, bytes(CONTEXT_BYTES_MAX + 1)))])


def test_frames_cut_anywhere_is_malformed() -> None:
    """Every truncation is detected."""
    frame = joined(sample())
    for end in range(len(frame)):
        with pytest.raises(MalformedFrame):
            decode_messages(frame[:end])


def test_frames_bytes_left_over_are_malformed() -> None:
    """A frame must be consumed exactly."""
    frame = bytearray(joined(sample()))
    with pytest.raises(MalformedFrame):
        decode_messages(memoryview(frame + b"\0"))


def test_frames_any_damage_raises_only_malformed() -> None:
    """Untrusted bytes: decoding returns or raises MalformedFrame."""
    frame = bytes(joined(sample()))
    rng = random.Random(5)
    refused = 0
    for _ in range(5_000):
        damaged = bytearray(frame)
        for _ in range(rng.choice([1, 1, 2, 8])):
            damaged[rng.randrange(len(damaged))] = rng.choice([0, 1, 0x7F, 0x80, 0xFF])
        try:
            decode_messages(memoryview(damaged))
        except MalformedFrame:
            refused += 1
    assert refused > 500


def test_frames_huge_counts_allocate_nothing() -> None:
    """A count of four billion entries in a short frame is refused at the first missing one."""
    frame = bytearray(joined([(1, MsgApp(1, 2, 3, 2, 6, [], 6))]))
    frame[-4:] = b"\xff\xff\xff\xff"
    with pytest.raises(MalformedFrame):
        decode_messages(memoryview(frame))
    frame = bytearray(joined([]))
    frame[:4] = b"\xff\xff\xff\xff"
    with pytest.raises(MalformedFrame):
        decode_messages(memoryview(frame))


def test_frames_are_cut_by_payload_bytes_never_within_a_message() -> None:
    """`encode_frames` covers all messages in order, each frame just past the target size."""
    batch: list[GroupMessage] = [
        (group, MsgApp(1, 2, 3, 3, 6, [Entry(3, 7, data=bytes(400))], 6)) for group in range(10)
    ]
    frames = list(encode_frames(batch, payload_bytes=1_000))
    assert [(start, end) for start, end, _ in frames] == [(0, 3), (3, 6), (6, 9), (9, 10)]
    for start, end, buffers in frames:
        assert decode_messages(memoryview(b"".join(buffers))) == batch[start:end]
    assert list(encode_frames([])) == []


@pytest.mark.parametrize("at", [0, 1, 4])
def test_frames_have_a_large_message_alone(at: int) -> None:
    """Those before it need not wait until all of it is sent."""
    batch: list[GroupMessage] = [
        (group, MsgApp(1, 2, 3, 3, 6, [Entry(3, 7, data=bytes(1_000 if group == at else 9))], 6))
        for group in range(5)
    ]
    frames = encode_frames(batch, payload_bytes=1_000)
    assert (at, at + 1) in [(start, end) for start, end, _ in frames]
    decoded = [decode_messages(memoryview(b"".join(buffers))) for _, _, buffers in frames]
    assert decoded == [batch[start:end] for start, end, _ in frames]
    assert [one for messages in decoded for one in messages] == batch


def test_frames_hold_no_more_messages_than_a_receiver_handles_at_once() -> None:
    """A frame's prefix holds its number of messages, which links use and which is limited."""
    batch: list[GroupMessage] = [
        (group, MsgHeartbeat(1, 2, 3, 4)) for group in range(2 * FRAME_MESSAGES_MAX + 1)
    ]
    joined_frames = [memoryview(b"".join(buffers)) for _, _, buffers in encode_frames(batch)]
    counts = [FRAME_MESSAGES_MAX, FRAME_MESSAGES_MAX, 1]
    assert [message_count(frame) for frame in joined_frames] == counts
    assert [one for frame in joined_frames for one in decode_messages(frame)] == batch
    assert message_count(memoryview(b"\x01\0\0\0\0\0\0")) == 0
    assert message_count(memoryview(b"\xff" * 1_000)) == 1_000 // 33, "one that lies"
