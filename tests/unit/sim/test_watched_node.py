"""Each rule that steps are checked against, broken once: it alone must be reported."""

from __future__ import annotations

from random import Random

import pytest

from raft import leader
from raft.config import Config
from raft.log import RaftLog
from raft.memory import MemoryStorage
from raft.messages import (
    Message,
    MsgApp,
    MsgHeartbeat,
    MsgHeartbeatResp,
    MsgPreVote,
    MsgPreVoteResp,
    MsgVote,
    MsgVoteResp,
)
from raft.node import RawNode
from raft.state import Raft
from raft.types import (
    ConfChange,
    ConfChangeSingle,
    ConfChangeType,
    ConfState,
    Entry,
    EntryKind,
    Snapshot,
)
from vdl.sim.watched_node import UNHEARD_TIMEOUTS, WatchedNode

TICKS = 10
CONF = ConfState(voters=(1, 2, 3))


class Bench:
    """One watched voter of three, whose log ends in entries of terms 1 and 2.

    They were sent by the leader of term 3.
    """

    def __init__(self) -> None:
        self.told: list[str] = []
        storage = MemoryStorage(Snapshot(index=1, term=1, conf_state=CONF))
        node = RawNode(
            Config(
                id=1, election_ticks=TICKS, heartbeat_ticks=1, storage=storage, rng=Random(1),
                applied=1, check_quorum=True, pre_vote=True,
            )
        )  # fmt: skip
        self.node = WatchedNode(node, lambda rule, _: self.told.append(rule))
        self.node.step(append(1, 1, 3, [entry(2, 1), entry(3, 2)], commit=1))

    def leaderless(self) -> None:
        """Let an election timeout pass without messages."""
        self.node.raft.lead = 0
        self.node.raft.election_elapsed = TICKS

    def elected(self) -> None:
        """Let the two others vote for it; its own vote is not durable yet."""
        self.leaderless()
        self.node.campaign()
        for peer in (2, 3):
            self.node.step(MsgPreVoteResp(1, peer, self.node.term + 1))
        for peer in (2, 3):
            self.node.step(MsgVoteResp(1, peer, self.node.term))
        assert self.node.is_leader


def entry(index: int, term: int) -> Entry:
    return Entry(term=term, index=index, data=b"x")


def append(index: int, log_term: int, term: int, entries: list[Entry], commit: int) -> MsgApp:
    return MsgApp(1, 2, term, log_term, index, entries, commit)


def vote(index: int, log_term: int, *, is_question: bool = False) -> Message:
    return (MsgPreVote if is_question else MsgVote)(1, 3, 4, log_term, index)


@pytest.mark.parametrize("is_question", [False, True])
def test_vote_for_an_older_log(is_question: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A longer log of an older term is older (§5.4.1)."""
    honest, wrong = Bench(), Bench()
    for bench in (honest, wrong):
        bench.leaderless()
    honest.node.step(vote(9, 1, is_question=is_question))
    honest.node.step(vote(3, 2, is_question=is_question))
    assert honest.told == []
    monkeypatch.setattr(RaftLog, "is_up_to_date", lambda self, index, term: True)
    wrong.node.step(vote(9, 1, is_question=is_question))
    assert wrong.told == ["vote-for-older-log"]


def test_vote_against_a_leader_that_is_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leader stickiness: neither the vote nor the term changes (§6)."""
    bench = Bench()
    bench.node.step(vote(9, 3))
    assert bench.told == []
    monkeypatch.setattr(Raft, "has_leader_lease", False)
    bench.node.step(vote(9, 3))
    assert set(bench.told) == {"helps-to-depose"}


def test_acknowledgement_beyond_what_matched(monkeypatch: pytest.MonkeyPatch) -> None:
    """The append ends before the replica's own tail (§5.3)."""
    bench = Bench()
    bench.node.step(append(1, 1, 3, [entry(2, 1)], commit=1))
    assert bench.told == []
    acknowledge = Raft.acknowledge
    monkeypatch.setattr(
        Raft, "acknowledge", lambda self, to, index: acknowledge(self, to, self.log.last_index)
    )
    bench.node.step(append(1, 1, 3, [entry(2, 1)], commit=1))
    assert bench.told == ["ack-beyond-match"]


def test_commit_beyond_what_matched(monkeypatch: pytest.MonkeyPatch) -> None:
    """The leader has committed more than the append contains (Figure 2)."""
    bench = Bench()
    bench.node.step(append(1, 1, 3, [], commit=3))
    assert bench.told == []
    assert bench.node.commit == 1
    monkeypatch.setattr(
        RaftLog, "commit_to", lambda self, index: setattr(self, "committed", self.last_index)
    )
    bench.node.step(append(1, 1, 3, [], commit=3))
    assert bench.told == ["commit-beyond-match"]


def test_leader_of_an_older_term_is_told() -> None:
    """It must learn of the term, or it would never be followed again (§5.1)."""
    bench = Bench()
    old = MsgHeartbeat(1, 3, 2, 1)
    bench.node.step(old)
    assert bench.told == []
    bench.node.raft.check_quorum = bench.node.raft.pre_vote = False
    bench.node.step(old)
    assert bench.told == []  # by configuration
    bench.node.raft.check_quorum = True
    bench.node.raft.msgs_after_append = Deaf()
    bench.node.step(old)
    assert bench.told == ["old-leader-not-told"]


class Deaf(list[Message]):
    """List that drops everything."""

    def append(self, _message: Message) -> None:
        """Drop the message."""


def test_proof_of_an_older_term_proves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does it delay the election."""
    bench = Bench()
    bench.node.raft.election_elapsed = 7
    bench.node.leader_heard(0, lead=3, term=2)
    assert bench.told == []
    hear = RawNode.leader_heard

    def believe(node: RawNode, ticks_ago: int, *, lead: int, term: int) -> None:
        assert (lead, term) == (3, 2)
        hear(node, ticks_ago)

    monkeypatch.setattr(RawNode, "leader_heard", believe)
    bench.node.leader_heard(0, lead=3, term=2)
    assert bench.told == ["old-leader-believed"]


def test_leader_that_hears_nobody_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    """It steps down after two election timeouts (thesis §6.2); one that hears from a peer stays."""
    bench = Bench()
    bench.elected()
    for _ in range(2 * UNHEARD_TIMEOUTS * TICKS):
        bench.node.tick()
        bench.node.step(MsgHeartbeatResp(1, 3, bench.node.term, b""))
    assert bench.node.is_leader
    for _ in range(2 * TICKS):
        bench.node.tick()
    assert not bench.node.is_leader
    assert bench.told == []
    monkeypatch.setattr(leader, "_keep_quorum", lambda _raft: True)
    bench.elected()
    for _ in range((UNHEARD_TIMEOUTS + 2) * TICKS):
        bench.node.tick()
    assert set(bench.told) == {"leads-unheard"}


def test_members_change_before_an_own_entry_is_committed() -> None:
    """The leader does not know yet which changes its predecessor made (RELIABILITY 1.5.9)."""
    bench = Bench()
    bench.elected()
    raft = bench.node.raft
    raft.log.applied = raft.pending_conf_index
    change = ConfChange([ConfChangeSingle(ConfChangeType.ADD_LEARNER_NODE, 4)])
    assert bench.node.propose_conf_change(change).kind is EntryKind.CONF_CHANGE_V2
    assert bench.told == ["early-change"]
    raft.log.committed = raft.log.applied = raft.log.last_index
    bench.node.propose_conf_change(change)
    assert bench.told == ["early-change"]


def test_the_watch_changes_nothing() -> None:
    """A watched node answers like an unwatched one."""
    bench = Bench()
    bench.leaderless()
    assert bench.node.has_ready()
    bench.node.step(vote(9, 3))
    ready = bench.node.ready()
    assert ready.hard_state is not None
    assert (ready.hard_state.term, ready.hard_state.vote) == (4, 3)
