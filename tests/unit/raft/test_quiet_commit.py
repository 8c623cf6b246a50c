"""Commit index updates: repeated with quiet heartbeats, and sent separately (`commit_apart`)."""

from __future__ import annotations

import random

from raft.config import Config
from raft.memory import MemoryStorage
from raft.messages import Message, MsgApp, MsgAppResp, MsgCommit, MsgHeartbeat, MsgVoteResp
from raft.node import RawNode
from raft.types import (
    ConfChange,
    ConfChangeSingle,
    ConfChangeType,
    ConfState,
    Entry,
    HardState,
    Snapshot,
    StateType,
)
from tests.unit.raft.network import Network


def settle(node: RawNode, storage: MemoryStorage) -> list[Message]:
    """Process the node's Readys and return what it sent to its peer."""
    sent: list[Message] = []
    while node.has_ready():
        ready = node.ready()
        if ready.hard_state is not None:
            storage.set_hard_state(HardState(node.term, node.vote, node.commit))
        storage.append(ready.entries)
        sent += ready.messages
        node.advance(ready)
    return sent


def test_leader_repeats_commit_to_follower_that_answers_with_an_older_one() -> None:
    """An append below the follower's commit index is answered with that index.

    Its commit field is not read, so the leader must not assume that the follower has it.
    """
    storage = MemoryStorage(Snapshot(index=1, term=1, conf_state=ConfState(voters=(1, 2))))
    node = RawNode(
        Config(
            id=1,
            election_ticks=10,
            heartbeat_ticks=1,
            rng=random.Random(1),
            storage=storage,
            quiet_heartbeats=True,
        )
    )
    node.campaign()
    settle(node, storage)
    node.step(MsgVoteResp(to=1, from_=2, term=node.term))
    settle(node, storage)
    node.propose([Entry(data=b"x")])
    settle(node, storage)
    last = node.last_index
    node.step(MsgAppResp(to=1, from_=2, term=node.term, index=last))
    settle(node, storage)
    assert node.commit == last
    node.tick(2)
    assert settle(node, storage) == []
    node.step(MsgAppResp(to=1, from_=2, term=node.term, index=last - 1))
    settle(node, storage)
    node.tick(1)
    beats = [message for message in settle(node, storage) if isinstance(message, MsgHeartbeat)]
    assert [beat.commit for beat in beats] == [last]


def test_commit_told_apart_reaches_followers_without_appends_of_its_own() -> None:
    """`commit_apart`: a commit causes no message; `tell_commit` makes one per follower.

    It covers the entries that the follower has, is made once, and is not answered.
    """
    network = Network(batch_appends=True, async_storage_writes=True, commit_apart=True)
    leader = network.elect(1)
    network.cut = lambda message: isinstance(message, MsgCommit)
    network.propose(b"x")
    network.isolate(3)
    work_until_acknowledged(network)
    assert leader.commit == leader.last_index
    assert not network.messages
    assert leader.commit_news_due
    network.heal()
    assert leader.tell_commit() == [MsgCommit(2, 1, leader.term, leader.commit)]
    assert leader.tell_commit() == []
    assert not leader.commit_news_due
    network.step(MsgCommit(2, 1, leader.term, leader.commit))
    assert network.node(2).commit == leader.commit
    network.collect(2)
    assert not network.messages
    # The third one acknowledges at last: an update is due for it alone.
    network.step(MsgAppResp(1, 3, leader.term, leader.last_index))
    assert leader.commit_news_due
    assert leader.tell_commit() == [MsgCommit(3, 1, leader.term, leader.commit)]


def test_commit_told_apart_travels_with_entries_where_some_follow() -> None:
    """A commit index sent with an append is not sent again."""
    network = Network(batch_appends=True, async_storage_writes=True, commit_apart=True)
    leader = network.elect(1)
    network.propose(b"x")
    work_until_acknowledged(network)
    network.propose(b"y")
    network.collect(1)
    appends = [message for message in network.messages if isinstance(message, MsgApp)]
    assert [message.commit for message in appends] == [leader.commit] * 2
    assert leader.tell_commit() == []


def test_change_of_members_is_told_at_once() -> None:
    """`commit_apart`: a member without the change would use the wrong voters after a failure."""
    network = Network(batch_appends=True, async_storage_writes=True, commit_apart=True)
    leader = network.elect(1)
    change = ConfChange(changes=(ConfChangeSingle(ConfChangeType.REMOVE_NODE, 3),))
    leader.propose_conf_change(change)
    work_until_acknowledged(network)
    assert leader.membership.incoming == {1, 2}
    assert network.node(2).membership.incoming == {1, 2}


def test_commit_from_an_older_term_is_answered_with_the_newer_one() -> None:
    """A deposed leader learns the newer term, as from the answer to a heartbeat (§5.1)."""
    network = Network(pre_vote=True)
    old = network.elect(1).term
    node = network.elect(2)
    network.step(MsgCommit(2, 1, old, 1))
    network.collect(2)
    assert [(m.to, m.term) for m in network.messages] == [(1, node.term)]


def test_candidate_that_is_told_a_commit_follows() -> None:
    """The sender of a MsgCommit leads the term (§5.2)."""
    network = Network()
    node = network.node(1)
    node.campaign()
    assert node.state is StateType.CANDIDATE
    network.step(MsgCommit(1, 2, node.term, 1))
    assert (node.state, node.lead) == (StateType.FOLLOWER, 2)


def work_until_acknowledged(network: Network) -> None:
    """Deliver appends and answers except those cut; send no separate commits."""
    for _ in range(6):
        for number in network.hosts:
            if network.node(number).has_ready():
                network.collect(number)
            network.storage_step(number)
        while network.messages:
            network.deliver(0)
