"""Contradictory messages of a faulty peer are refused, and the log stays as it is."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from ids import TERM_MAX
from raft.config import Config
from raft.errors import Contradiction, Diverged
from raft.log import RaftLog
from raft.memory import MemoryStorage
from raft.messages import (
    Message,
    MsgApp,
    MsgAppResp,
    MsgCommit,
    MsgHeartbeat,
    MsgHeartbeatResp,
    MsgPreVote,
    MsgPreVoteResp,
    MsgReadIndexResp,
    MsgSnap,
    MsgTimeoutNow,
    MsgVote,
    MsgVoteResp,
)
from raft.node import TERM_LEAP_MAX, RawNode
from raft.types import NO_LIMIT, ConfState, Entry, Snapshot, StateType

CONF = ConfState(voters=(1, 2, 3))
TICKS = 10


def entry(index: int, term: int, *, base_offset: int | None = None) -> Entry:
    return Entry(
        term, index, base_offset=index - 2 if base_offset is None else base_offset, records=1
    )


def follower() -> RawNode:
    """Return follower 2 in term 3: entries 2 (committed) and 3 of term 2, 4 of term 3."""
    storage = MemoryStorage(Snapshot(index=1, term=1, conf_state=CONF))
    node = RawNode(
        Config(
            id=1, election_ticks=TICKS, heartbeat_ticks=1, storage=storage, rng=Random(1),
            applied=1, check_quorum=True, pre_vote=True,
        )
    )  # fmt: skip
    node.step(MsgApp(1, 2, 3, 1, 1, [entry(2, 2), entry(3, 2), entry(4, 3)], 2))
    return node


def leader() -> RawNode:
    node = follower()
    node.raft.lead = 0
    node.raft.election_elapsed = TICKS
    node.campaign()
    for peer in (2, 3):
        node.step(MsgPreVoteResp(1, peer, node.term + 1))
    for peer in (2, 3):
        node.step(MsgVoteResp(1, peer, node.term))
    assert node.is_leader
    return node


def candidate() -> RawNode:
    node = follower()
    node.raft.lead = 0
    node.campaign()
    node.step(MsgPreVoteResp(1, 2, node.term + 1))
    node.step(MsgPreVoteResp(1, 1, node.term + 1))
    assert node.state is StateType.CANDIDATE
    return node


def shape(node: RawNode) -> object:
    log = node.raft.log
    held = [(e.index, e.term, e.base_offset) for e in log.slice(2, log.last_index + 1, NO_LIMIT)]
    return held, log.committed, log.next_offset, node.term, node.vote, node.state, node.lead


def snap(index: int, term: int, *, next_offset: int = 90, conf: ConfState = CONF) -> Message:
    return MsgSnap(1, 2, 3, Snapshot(index, term, conf, next_offset, b""))


@pytest.mark.parametrize(
    "message",
    [
        MsgHeartbeat(1, 2, 3, 5),
        MsgCommit(1, 2, 3, 5),
        MsgHeartbeat(1, 3, 3, 2),
        MsgApp(1, 3, 3, 3, 4, [], 2),
        MsgApp(1, 2, 3, 3, 4, [entry(6, 3)], 2),
        MsgApp(1, 2, 3, 3, 4, [entry(5, 3), entry(7, 3)], 2),
        MsgApp(1, 2, 3, 3, 4, [entry(5, 4)], 2),
        MsgApp(1, 2, 3, 3, 4, [entry(5, 1 << 40)], 2),
        MsgApp(1, 2, 3, 3, 4, [entry(5, 2)], 2),
        MsgApp(1, 2, 3, 3, 4, [entry(5, 3, base_offset=1 << 63)], 2),
        MsgApp(1, 2, 3, 3, 4, [entry(5, 3), entry(6, 3, base_offset=9)], 2),
        MsgApp(1, 2, 3, 2, 2, [entry(3, 3, base_offset=7)], 2),
        snap(9, 4),
        snap((1 << 64) - 1, 3),
        snap(9, 3, next_offset=1 << 63),
        snap(9, 3, conf=ConfState(voters=(1, 2, 3), learners=(2,))),
        snap(9, 3, conf=ConfState(voters=(1, 2, 3), auto_leave=True)),
    ],
    ids=str,
)
def test_message_that_cannot_be_is_refused_as_a_whole(message: Message) -> None:
    node = follower()
    before = shape(node)
    with pytest.raises(Contradiction):
        node.step(message)
    assert shape(node) == before
    node.step(MsgApp(1, 2, 3, 3, 4, [entry(5, 3)], 5))
    assert (node.last_index, node.commit) == (5, 5)


def test_entry_that_is_committed_is_not_replaced() -> None:
    """Two replicas may both claim to lead, or one's log may differ: this replica cannot decide."""
    log = RaftLog(MemoryStorage(), applying_bytes_max=NO_LIMIT)
    log.append([Entry(1, 1, records=1), Entry(1, 2, base_offset=1, records=1)])
    log.commit_to(2)
    with pytest.raises(Contradiction):
        log.append([Entry(2, 2, base_offset=1, records=1)])
    assert (log.last_index, log.term(2)) == (2, 1)


@pytest.mark.parametrize(
    ("message", "index"),
    [
        (MsgApp(1, 3, 4, 3, 3, [], 2), 3),
        (MsgApp(1, 3, 4, 1, 1, [entry(2, 2), entry(3, 3), entry(4, 4)], 2), 3),
        (MsgApp(1, 3, 4, 2, 2, [entry(3, 2), entry(4, 2), entry(5, 4)], 5), 4),
        (MsgSnap(1, 3, 4, Snapshot(index=3, term=3, next_offset=2, conf_state=CONF)), 3),
    ],
    ids=str,
)
def test_leader_whose_log_is_another_one_is_not_acknowledged(message: Message, index: int) -> None:
    """Its log differs where entries are committed here: it would count this log as a copy (§5.3).

    The error states which entries are committed here.
    """
    node = follower()
    node.step(MsgCommit(1, 2, 3, 4))
    with pytest.raises(Diverged, match=f"entries {index} to 4 conflict") as raised:
        node.step(message)
    assert raised.value.first == index
    assert (node.last_index, node.commit) == (4, 4)
    assert not [said for said in node.raft.msgs_after_append if said.to == 3]


def test_leader_that_repeats_what_is_committed_is_acknowledged() -> None:
    """Also from before the log's start, which cannot be compared any more."""
    for message in (
        MsgApp(1, 2, 3, 1, 1, [entry(2, 2), entry(3, 2)], 2),
        MsgApp(1, 2, 3, 0, 0, [entry(1, 1, base_offset=-1), entry(2, 2)], 2),
        MsgSnap(1, 2, 3, Snapshot(index=3, term=2, next_offset=2, conf_state=CONF)),
    ):
        node = follower()
        node.step(MsgCommit(1, 2, 3, 4))
        node.step(message)
        assert node.commit == 4


@pytest.mark.parametrize("reject", [False, True])
def test_leader_refuses_an_answer_to_what_it_never_sent(reject: bool) -> None:
    node = leader()
    before, last = shape(node), node.last_index
    with pytest.raises(Contradiction):
        node.step(MsgAppResp(1, 2, node.term, last + 1, reject=reject))
    assert shape(node) == before
    assert node.progress(2).match == 0  # type: ignore[union-attr]
    node.propose([Entry(records=1)])


FURTHER: list[Callable[[int], Message]] = [
    lambda term: MsgVote(1, 3, term, 9, 9, transfer=True),
    lambda term: MsgPreVote(1, 3, term, 9, 9, transfer=True),
    lambda term: MsgHeartbeat(1, 3, term, 2),
    lambda term: MsgApp(1, 3, term, 3, 4, [], 2),
    lambda term: MsgAppResp(1, 3, term, 0),
    lambda term: MsgVoteResp(1, 3, term, reject=True),
    lambda term: MsgPreVoteResp(1, 3, term),
]


@pytest.mark.parametrize("make", FURTHER, ids=lambda make: type(make(1)).__name__)
@pytest.mark.parametrize("node", [follower, leader])
def test_term_that_nobody_can_have_reached_is_not_entered(
    make: Callable[[int], Message], node: Callable[[], RawNode]
) -> None:
    """Terms are stored in four bytes, and Kafka's leader epochs are signed.

    A group that has used them up cannot elect a leader any more.
    """
    one = node()
    before = shape(one)
    for term in (one.term + TERM_LEAP_MAX + 1, TERM_MAX, TERM_MAX + 1, 1 << 32, (1 << 64) - 1):
        with pytest.raises(Contradiction):
            one.step(make(term))
        one.leader_heard(0, lead=3, term=term)
        assert shape(one) == before
    one.step(make(one.term + TERM_LEAP_MAX))


OF_A_TERM: list[Message] = [
    MsgApp(1, 2, 0, 3, 4, [], 2),
    MsgAppResp(1, 2, 0, 4),
    MsgVote(1, 2, 0, 9, 9, transfer=True),
    MsgVoteResp(1, 2, 0),
    MsgPreVote(1, 2, 0, 9, 9, transfer=True),
    MsgHeartbeat(1, 2, 0, 2),
    MsgHeartbeatResp(1, 2, 0),
    MsgCommit(1, 2, 0, 2),
    MsgSnap(1, 2, 0, Snapshot(9, 1, CONF)),
    MsgTimeoutNow(1, 2, 0),
    MsgReadIndexResp(1, 2, 0, 2, b"r1"),
]


@pytest.mark.parametrize("message", OF_A_TERM, ids=lambda message: type(message).__name__)
@pytest.mark.parametrize("make", [follower, candidate, leader])
def test_message_of_no_term_is_refused(make: Callable[[], RawNode], message: Message) -> None:
    """Forwarded requests have no term.

    Votes and acknowledgements without one would count in any term, and a leader without one would
    lead any term.
    """
    node = make()
    before, votes = shape(node), node.raft.ballots
    with pytest.raises(Contradiction):
        node.step(message)
    assert (shape(node), node.raft.ballots) == (before, votes)


def test_nobody_campaigns_beyond_the_last_term() -> None:
    node = follower()
    while node.term < TERM_MAX:
        term = min(node.term + TERM_LEAP_MAX, TERM_MAX)
        node.step(MsgHeartbeat(1, 2, term, 2))
    assert node.term == TERM_MAX
    node.tick(3 * TICKS)
    node.campaign()
    assert node.term == TERM_MAX
    assert {type(message) for message in node.raft.msgs} == {MsgHeartbeatResp}


def test_replica_that_lacks_what_is_committed_has_no_part_in_elections_until_it_has_it() -> None:
    """It may have acknowledged and lost the entries: its vote could elect a leader without them."""
    node = follower()
    with pytest.raises(Contradiction):
        node.step(MsgHeartbeat(1, 2, 3, 6))
    node.forget_leader()
    node.campaign()
    assert node.state is StateType.FOLLOWER
    assert not [m for m in node.raft.msgs if isinstance(m, MsgPreVote)]
    node.raft.msgs_after_append.clear()
    for asks in (MsgPreVote(1, 3, 4, 3, 4, transfer=True), MsgVote(1, 3, 4, 3, 4, transfer=True)):
        node.step(asks)
        (answer,) = node.raft.msgs_after_append
        assert isinstance(answer, MsgPreVoteResp | MsgVoteResp)
        assert answer.reject
        node.raft.msgs_after_append.clear()
    node.step(MsgApp(1, 3, 5, 3, 4, [entry(5, 3), entry(6, 5)], 6))
    assert node.commit == 6
    node.raft.msgs_after_append.clear()
    node.step(MsgVote(1, 2, 6, 5, 6, transfer=True))
    (answer,) = node.raft.msgs_after_append
    assert isinstance(answer, MsgVoteResp)
    assert not answer.reject
