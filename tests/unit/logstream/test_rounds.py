"""Progress of replicas measured by rounds (thesis §4.2.1).

A round is the time in which a replica receives the entries that existed when the round began.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from raft.membership import Membership
from raft.node import RawNode
from tests.unit.logstream.test_membership import NEW, ONE, TWO, leader
from vdl.clock import MS
from vdl.logstream.group.replica_ids import replica_id_of
from vdl.logstream.membership import replacement
from vdl.logstream.membership.rounds import ROUNDS_MAX, STALLED_TICKS, Rounds

LIMIT = 60
"""The election timeout, in ticks."""


class Learner:
    """A learner of a leader whose log grows, and its rounds."""

    def __init__(self) -> None:
        self.node: RawNode = leader({ONE, TWO}, {NEW})
        self.progress = self.node.raft.progress[NEW]
        self.rounds = Rounds(self.node.term, election_ticks=LIMIT)
        self.tick = 1_000

    def look(self, *, ticks: int, grows: int = 0, gets: int = 0) -> None:
        """Let time pass; the leader's log grows by `grows` entries, the learner gets `gets`."""
        self.tick += ticks
        self.node.raft.log.last_index += grows
        self.progress.match = min(self.progress.match + gets, self.node.last_index)
        self.rounds.look(self.node, self.node.membership.members(), self.tick)

    @property
    def has_caught_up(self) -> bool:
        return self.rounds.has_caught_up(NEW)

    @property
    def is_overdue(self) -> bool:
        return self.rounds.is_overdue(NEW)


@pytest.fixture
def learner() -> Learner:
    made = Learner()
    made.progress.become_replicate()
    return made


def test_replica_that_has_all_there_is_has_caught_up_at_the_first_look(learner: Learner) -> None:
    """Groups without activity wait for nothing."""
    learner.look(ticks=0, gets=1 << 30)
    assert learner.has_caught_up


def test_replica_that_has_not_shown_what_it_has_has_not_caught_up() -> None:
    """Since this leader was elected, or since the replica returned."""
    learner = Learner()
    learner.look(ticks=0, gets=1 << 30)
    learner.look(ticks=10)
    assert not learner.has_caught_up
    learner.progress.become_replicate()
    learner.look(ticks=10)
    assert learner.has_caught_up
    learner.progress.become_probe()
    learner.look(ticks=10)
    assert not learner.has_caught_up


def test_replica_that_lags_steadily_by_less_than_a_timeout_has_caught_up(learner: Learner) -> None:
    """It always lacks thousands of entries, and receives each of them a moment after the leader."""
    learner.look(ticks=0, grows=100_000)
    for _ in range(ROUNDS_MAX):
        learner.look(ticks=10, grows=4_000, gets=54_000)
    learner.progress.match = learner.node.last_index - 4_000
    learner.look(ticks=10, grows=4_000, gets=4_000)
    assert learner.has_caught_up
    for _ in range(50):
        learner.look(ticks=10, grows=4_000, gets=4_000)
        assert learner.has_caught_up
        assert learner.progress.match == learner.node.last_index - 4_000


@pytest.mark.parametrize(("ticks", "has_caught_up"), [(LIMIT - 1, True), (LIMIT, False)])
def test_round_is_short_if_it_takes_less_than_an_election_timeout(
    learner: Learner, ticks: int, has_caught_up: bool
) -> None:
    learner.look(ticks=0, grows=100)
    learner.look(ticks=ticks, grows=100, gets=learner.node.last_index)
    assert learner.has_caught_up is has_caught_up


def test_replica_that_takes_nothing_more_has_not_caught_up(learner: Learner) -> None:
    """Its last round was short, and the running one is too long."""
    learner.look(ticks=0, gets=1 << 30)
    learner.look(ticks=10, grows=1)
    learner.look(ticks=LIMIT - 1, grows=1)
    assert learner.has_caught_up
    learner.look(ticks=1, grows=1)
    assert not learner.has_caught_up
    assert not learner.is_overdue
    learner.look(ticks=STALLED_TICKS - LIMIT - 1)
    assert not learner.is_overdue
    learner.look(ticks=1)
    assert learner.is_overdue


def test_replica_that_needs_too_many_rounds_is_overdue_until_one_is_short(
    learner: Learner,
) -> None:
    """It is as fast as its producers, and a second behind."""
    learner.look(ticks=0, grows=100)
    for number in range(ROUNDS_MAX):
        assert not learner.is_overdue
        assert learner.rounds._of[NEW].ended == number
        learner.look(ticks=100, grows=100, gets=learner.node.last_index if number == 0 else 100)
    assert learner.is_overdue
    assert not learner.has_caught_up
    learner.look(ticks=10, gets=100)
    learner.look(ticks=10)
    assert learner.has_caught_up


def test_long_copy_is_not_overdue_while_it_grows(learner: Learner) -> None:
    """The first round is all of the log."""
    learner.look(ticks=0, grows=1 << 20)
    for _ in range(100):
        learner.look(ticks=STALLED_TICKS - 1, gets=1)
        assert not learner.is_overdue


def test_member_that_went_and_comes_again_begins_anew(learner: Learner) -> None:
    """A replica under the same number may have been inactive for hours."""
    learner.look(ticks=0, gets=1 << 30)
    learner.node.raft.set_membership(Membership(frozenset({ONE, TWO})), learner.node.applied)
    learner.rounds.look(learner.node, learner.node.membership.members(), learner.tick)
    assert not learner.has_caught_up


# --- three servers ------------------------------------------------------------------------------


def wiped(cluster: Any, victim: int, *, sync_ms: int) -> None:
    """Restart a server with an empty disk, on which syncs take `sync_ms`."""
    cluster.nodes[victim].wipe()
    cluster.run(500)
    cluster.nodes[victim].start()
    cluster.nodes[victim].workers.sync_ns = sync_ms * MS


def under_load(
    cluster: Any, lead: Any, *, per_s: int, size: int, ms: int, condition: Callable[[], bool]
) -> bool:
    """Append `per_s` records a second. Return True if the condition becomes true in time."""
    step_ms = max(1, 1_000 // per_s)
    for passed in range(0, ms, step_ms):
        if passed % 50 == 0 and condition():
            return True
        for _ in range(per_s * step_ms // 1_000):
            cluster.append(lead, value=b"x" * size, ms=60_000)
        cluster.run(step_ms)
    return condition()


@pytest.mark.parametrize(
    ("per_s", "sync_ms", "size"), [(1_000, 200, 100), (4_000, 30, 100), (1_000, 30, 40_000)]
)
def test_learner_that_lags_steadily_becomes_a_voter_under_load(
    cluster: Any, per_s: int, sync_ms: int, size: int
) -> None:
    """With thousands of batches or 40 MB a second, and a slow disk, it always lags."""
    group_id = cluster.create_topic()
    wiped(cluster, 3, sync_ms=sync_ms)
    lead = cluster.leader(group_id)
    assert under_load(
        cluster, lead, per_s=per_s, size=size, ms=8_000,
        condition=lambda: is_renewed(lead, 3),
    )  # fmt: skip
    assert lead.is_leader


def is_renewed(stream: Any, server_id: int) -> bool:
    """Return True if a server's second replica is a voter."""
    return replica_id_of(server_id, 2) in stream.group.node.membership.incoming


@pytest.fixture
def one_place(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(replacement, "PARTITIONS_MAX", 1)
    return


@pytest.mark.usefixtures("one_place")
def test_learner_that_never_catches_up_gives_its_place_to_others(cluster: Any) -> None:
    """Its rounds take seconds. There is one place; another partition must get its replica."""
    hot, quiet = cluster.create_topic("hot"), cluster.create_topic("quiet")
    for _ in range(5):
        cluster.append(cluster.leader(quiet))
    cluster.run(200)
    wiped(cluster, 3, sync_ms=1_500)
    lead, other = cluster.leader(hot), cluster.leader(quiet)
    assert under_load(
        cluster, lead, per_s=100, size=100, ms=60_000, condition=lambda: is_renewed(other, 3)
    )
    assert not is_renewed(lead, 3)
    cluster.nodes[3].workers.sync_ns = 1 * MS
    cluster.run(5_000)
    assert is_renewed(lead, 3)
