"""Order of writes to a link: urgent frames, bulk in pieces, and the order within each lane."""

from __future__ import annotations

import random
from dataclasses import replace
from inspect import signature
from typing import Any, get_args

import pytest

from raft.messages import (
    MsgApp,
    MsgAppResp,
    MsgHeartbeat,
    MsgSnap,
    MsgVote,
    PeerMessage,
)
from raft.types import Entry
from rpc.hello import VERSION_OF_PIECES, RejectReason
from rpc.lanes import in_lanes
from rpc.peer import FrameType, LinkState, PeerEngine, Rejected
from rpc.reader import HEAD_BYTES, PIECE_BYTES_MIN
from tests.unit.rpc.test_peer import TWO, linked, move


def payloads(events: list[object]) -> list[bytes]:
    return [bytes(event[1]) for event in events if isinstance(event, tuple)]


@pytest.mark.parametrize("part", [0, 1, HEAD_BYTES, 50_000])
def test_urgent_frame_overtakes_all_bulk_that_has_not_begun(part: int) -> None:
    """A frame whose write has begun continues: frames are not split once they are queued."""
    dialer, acceptor = linked()
    for mark in b"abc":
        dialer.send(FrameType.RAFT, [bytes([mark]) * 100_000])
    events: list[object] = list(acceptor.receive(b"".join(dialer.gather())[:part]))
    dialer.sent(part)
    dialer.send(FrameType.RAFT, [b"vote"], urgent=True)
    dialer.send(FrameType.HEARTBEAT, [b"beat"])
    events += move(dialer, acceptor)
    bulk = [bytes([mark]) * 100_000 for mark in b"abc"]
    begun = int(part > 0)
    assert payloads(events) == [*bulk[:begun], b"vote", b"beat", *bulk[begun:]]


@pytest.mark.parametrize("seed", range(30))
def test_lanes_keep_their_order_whatever_the_stream_takes(seed: int) -> None:
    """Nothing is lost, repeated or reordered within a lane, under partial writes and pieces.

    An urgent frame waits at most for the piece that has begun.
    """
    rng = random.Random(seed)
    dialer, acceptor = linked()
    dialer.piece_bytes = rng.choice([PIECE_BYTES_MIN, 20_000, 1 << 20])
    sent: dict[bool, list[bytes]] = {True: [], False: []}
    events: list[object] = []
    for number in range(120):
        urgent = rng.random() < 0.5
        size = rng.choice([0, 1, 300]) if urgent else rng.choice([0, 5, 4_000, 70_000])
        payload = b"%d %d " % (urgent, number) + rng.randbytes(size)
        cut = rng.randint(0, len(payload))
        assert dialer.send(FrameType.RAFT, [payload[:cut], b"", payload[cut:]], urgent=urgent)
        sent[urgent].append(payload)
        data = b"".join(dialer.gather())[: rng.choice([0, 1, 17, 5_000, 50_000])]
        dialer.sent(len(data))
        events += acceptor.receive(data)
    events += move(dialer, acceptor, step=rng.choice([7, 1 << 20]))
    found = payloads(events)
    for urgent, all_sent in sent.items():
        assert [p for p in found if p.startswith(b"%d " % urgent)] == all_sent
    assert dialer.unsent_bytes == 0


def test_urgent_frame_waits_for_one_piece_and_not_for_its_frame() -> None:
    """A batch may be as large as the bytes that a slow link carries in a second."""
    dialer, acceptor = linked()
    dialer.piece_bytes = PIECE_BYTES_MIN
    whole = random.Random(1).randbytes(10 * PIECE_BYTES_MIN + 5)
    dialer.send(FrameType.RAFT, [whole[:1_000], memoryview(whole)[1_000:]])
    first = b"".join(dialer.gather())[:100]
    dialer.sent(100)
    dialer.send(FrameType.HEARTBEAT, [b"beat"])
    ahead = b"".join(dialer.gather())[: PIECE_BYTES_MIN + HEAD_BYTES - 100 + HEAD_BYTES + 4]
    dialer.sent(len(ahead))
    assert payloads([*acceptor.receive(first + ahead)]) == [b"beat"]
    assert payloads([*move(dialer, acceptor)]) == [whole]


def test_last_word_comes_behind_what_is_queued() -> None:
    """The peer closes the link when it reads REJECT, which must not overtake acknowledged work."""
    dialer, acceptor = linked()
    dialer.send(FrameType.RAFT, [b"entries"])
    dialer.send(FrameType.RAFT, [b"vote"], urgent=True)
    dialer.reject(RejectReason.STOPPING, "")
    events = move(dialer, acceptor)
    assert payloads([*events]) == [b"vote", b"entries"]
    assert isinstance(events[-1], Rejected)
    assert acceptor.state is LinkState.CLOSED


def test_bulk_leaves_room_for_what_is_urgent() -> None:
    """Urgent messages use the same reserve as heartbeats."""
    dialer, _ = linked()
    while dialer.send(FrameType.RAFT, [bytes(1 << 20)]):
        pass
    assert dialer.send(FrameType.RAFT, [b"vote"], urgent=True)
    assert not dialer.send(FrameType.PROPOSE, [bytes(1 << 20)])


def test_every_message_has_a_lane_and_those_with_order_are_bulk() -> None:
    """Bulk: entries, snapshots, and the heartbeat that checks for their arrival."""
    bulk = {MsgApp, MsgSnap}
    for kind in get_args(PeerMessage):
        if kind is not MsgHeartbeat:
            message = kind(*(0 for _ in signature(kind).parameters))
            assert in_lanes([(1, message)])[kind in bulk] == [(1, message)]
    asks, proves = MsgHeartbeat(2, 1, 1, 0), MsgHeartbeat(2, 1, 1, 0, b"round")
    assert in_lanes([(1, asks), (1, proves)]) == ([(1, proves)], [(1, asks)])


def test_lanes_keep_the_order_of_messages() -> None:
    """An empty append behind entries stays behind them."""
    entries = MsgApp(2, 1, 1, 1, 5, [Entry(1, 6)], 5)
    probe = MsgApp(2, 1, 1, 1, 6, [], 5)
    answer, vote = MsgAppResp(2, 1, 1, 7), MsgVote(2, 1, 2, 1, 7)
    messages = [(1, entries), (2, answer), (1, probe), (3, vote)]
    urgent, bulk = in_lanes(messages)
    assert urgent == [(2, answer), (3, vote)]
    assert bulk == [(1, entries), (1, probe)]


def test_peer_of_an_older_version_is_sent_whole_frames() -> None:
    """A peer of an older version does not support pieces, and gets whole frames."""
    dialer, acceptor = linked(two=replace(TWO, version=VERSION_OF_PIECES - 1))
    for source, first in ((dialer, PIECE_BYTES_MIN + 1), (acceptor, PIECE_BYTES_MIN)):
        source.piece_bytes = PIECE_BYTES_MIN
        source.send(FrameType.RAFT, [bytes(PIECE_BYTES_MIN + 1)])
        assert len(b"".join(source.gather())) == HEAD_BYTES + first


def test_frames_of_other_groups_pass_between_the_pieces_of_a_large_one() -> None:
    """Those of its own groups stay behind it, and so do others of a frame that stays behind."""
    dialer, acceptor = linked()
    dialer.piece_bytes = PIECE_BYTES_MIN
    large = random.Random(1).randbytes(4 * PIECE_BYTES_MIN)
    dialer.send(FrameType.RAFT, [b"before"], keyed=[(1, 0)])
    dialer.send(FrameType.RAFT, [large], keyed=[(1, 0)])
    events: list[object] = list(move_some(dialer, acceptor, 100 + PIECE_BYTES_MIN))
    dialer.send(FrameType.RAFT, [b"both"], keyed=[(1, 0), (2, 0)])
    dialer.send(FrameType.RAFT, [b"behind"], keyed=[(2, 0)])
    dialer.send(FrameType.RAFT, [b"other"], keyed=[(3, 0)])
    dialer.send(FrameType.PROPOSE, [b"command"])
    events += move(dialer, acceptor)
    assert payloads(events) == [b"before", b"other", b"command", large, b"both", b"behind"]
    assert not dialer.behind


@pytest.mark.parametrize("seed", range(30))
def test_frames_with_a_key_in_common_keep_their_order(seed: int) -> None:
    """Whatever the stream takes, however large they are, and whether or not pieces may begin.

    Large ones pass in the end, however many small ones there are: each piece waits for as many
    bytes of others as it has.
    """
    rng = random.Random(seed)
    dialer, acceptor = linked()
    dialer.piece_bytes = rng.choice([PIECE_BYTES_MIN, 40_000])
    sent: dict[int, list[bytes]] = {key: [] for key in range(5)}
    events: list[object] = []
    number = 0
    for _ in range(300):
        for _ in range(rng.randrange(3)):
            keys = rng.sample(range(5), rng.choice([1, 1, 2]))
            size = rng.choice([0, 50, 9_000, 100_000])
            payload = b"%d %s " % (number, " ".join(map(str, keys)).encode()) + bytes(size)
            if dialer.send(FrameType.RAFT, [payload], keyed=[(key, 0) for key in keys]):
                for key in keys:
                    sent[key].append(payload)
            number += 1
        data = b"".join(dialer.gather(begins_bytes=rng.choice([0, 1, 50_000, 1 << 20])))
        data = data[: rng.choice([0, 17, 5_000, 60_000])]
        dialer.sent(len(data))
        events += acceptor.receive(data)
    dialer.reject(RejectReason.STOPPING, "")
    events += move(dialer, acceptor, step=rng.choice([7_001, 1 << 20]))
    assert isinstance(events[-1], Rejected)
    found = payloads(events)
    assert len(found) == len({payload for one in sent.values() for payload in one})
    for key, all_sent in sent.items():
        assert [payload for payload in found if payload in all_sent] == all_sent, key


def test_large_frame_is_not_starved_by_those_that_pass_it() -> None:
    """Between two pieces as many bytes of others leave as a piece has, and one frame more."""
    dialer, acceptor = linked()
    dialer.piece_bytes = PIECE_BYTES_MIN
    pieces = 5
    dialer.send(FrameType.RAFT, [bytes(pieces * PIECE_BYTES_MIN)], keyed=[(1, 0)])
    others, small = 0, PIECE_BYTES_MIN // 4
    while dialer.behind:
        while dialer.unsent_bytes < (pieces + 3) * PIECE_BYTES_MIN:
            dialer.send(FrameType.RAFT, [bytes(small)], keyed=[(2, 0)])
        others += len([e for e in move_some(dialer, acceptor, small) if len(e[1]) == small])
        assert others <= 5 * (pieces + 1)


def test_pieces_leave_together_while_nothing_else_is_queued() -> None:
    """Each would be a system call. Urgent and bulk frames still pass those that have not begun."""
    dialer, acceptor = linked()
    dialer.piece_bytes = PIECE_BYTES_MIN
    large = random.Random(1).randbytes(8 * PIECE_BYTES_MIN)
    dialer.send(FrameType.RAFT, [large], keyed=[(1, 0)])
    offered = b"".join(dialer.gather(begins_bytes=3 * PIECE_BYTES_MIN))
    assert len(offered) == 3 * (HEAD_BYTES + PIECE_BYTES_MIN)
    assert not dialer.gather(begins_bytes=0)
    dialer.sent(100)
    events: list[object] = list(acceptor.receive(offered[:100]))
    dialer.send(FrameType.RAFT, [b"other"], keyed=[(2, 0)])
    dialer.send(FrameType.HEARTBEAT, [b"beat"])
    assert len(b"".join(dialer.gather(begins_bytes=1 << 20))) < 2 * PIECE_BYTES_MIN
    events += move(dialer, acceptor)
    assert payloads(events) == [b"beat", b"other", large]
    dialer.send(FrameType.RAFT, [large], keyed=[(1, 0)])
    assert len(b"".join(dialer.gather(begins_bytes=1 << 20))) == dialer.unsent_bytes


def move_some(source: PeerEngine, target: PeerEngine, size: int) -> list[Any]:
    """Move the next `size` bytes; return the events."""
    data = b"".join(source.gather())[:size]
    source.sent(len(data))
    return list(target.receive(data))
