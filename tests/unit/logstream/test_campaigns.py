"""Number and order of the campaigns of a server's groups."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

import pytest

from raft.node import RawNode
from raft.types import StateType
from tests.unit.logstream.conftest import make_state
from vdl.clock import MS
from vdl.logstream.elections.campaigns import (
    DISK_WAITS,
    FEWEST,
    FEWEST_AT_TIMEOUT,
    FIRST,
    LATE_NS,
    PLACE_TIMEOUTS,
    QUICK,
    STARTS_PER_TURN,
    UNREAD_TIMEOUTS,
    Campaigns,
)
from vdl.logstream.group.log_stream import LogStream
from vdl.logstream.group.state_group import StateGroup
from vdl.logstream.membership import open_replica as opening
from vdl.logstream.membership.open_replica import ReplicaOpener
from vdl.logstream.options import TICK_NS, HostOptions
from vdl.logstream.peers.contradictions import Contradictions
from vdl.logstream.peers.liveness import Liveness
from vdl.sim.clock import NodeClock, VirtualTime
from vdl.state.commands import CreateTopics, NewTopic

TIMEOUT_NS = 600 * MS
SYSTEM_LAST = 8
PARTITIONS = 60


class FakeGroup:
    """A replica of which only the role counts."""

    def __init__(self, group_id: int) -> None:
        self.group_id = group_id
        raft = SimpleNamespace(
            state=StateType.FOLLOWER, waits_for_disks=False, own_term_committed=True
        )
        self.node = SimpleNamespace(raft=raft)

    def become(self, state: StateType) -> None:
        self.node.raft.state = state


class Line:
    """Campaigns of fake groups, in the order in which they began."""

    def __init__(self, elections_max: int) -> None:
        self.stood: list[int] = []
        self.loop_time = SimpleNamespace(late_ns=0)
        loop_time: Any = self.loop_time
        self.not_due: set[int] = set()
        options = HostOptions(elections_max=elections_max, election_ticks=TIMEOUT_NS // TICK_NS)
        self.unread: set[int] = set()
        """Groups whose peers have not read what was sent to them."""
        self.campaigns = Campaigns(
            options,
            loop_time,
            system_last=SYSTEM_LAST,
            is_unread=lambda group, since_ns: group.group_id in self.unread,
        )

    def _campaign(self, groups: Iterable[Any]) -> None:
        for group in groups:
            if group.group_id not in self.not_due:
                self.stood.append(group.group_id)
                group.become(StateType.PRE_CANDIDATE)

    def turn_ended(self) -> None:
        if self.campaigns.turn_ended():
            self._campaign(self.campaigns.admit(0))

    def look(self, now_ns: int) -> None:
        self._campaign(self.campaigns.look(now_ns))

    def ask(self, *group_ids: int, now_ns: int = 0) -> list[Any]:
        groups: list[Any] = [FakeGroup(group_id) for group_id in group_ids]
        for group in groups:
            self.due(group, now_ns)
        return groups

    def due(self, group: Any, now_ns: int = 0) -> None:
        self._campaign(self.campaigns.ask(group, now_ns))

    def end(self, group: Any, state: StateType = StateType.LEADER, now_ns: int = 0) -> None:
        group.become(state)
        self.campaigns.noted(group, now_ns)
        self.turn_ended()


def test_groups_stand_in_the_order_they_were_due_when_others_have_ended() -> None:
    line = Line(2)
    groups = line.ask(11, 12, 13, 14)
    assert (line.stood, line.campaigns.waiting, line.campaigns.under_way) == ([11, 12], 2, 2)
    line.end(groups[1])
    assert line.stood == [11, 12, 13]
    groups[0].become(StateType.CANDIDATE)
    line.campaigns.noted(groups[0], 0)
    line.turn_ended()
    assert line.stood == [11, 12, 13]
    line.end(groups[0], StateType.FOLLOWER)
    assert line.stood == [11, 12, 13, 14]
    assert line.campaigns.waiting == 0


def test_catalog_and_coordinators_do_not_wait() -> None:
    line = Line(1)
    line.ask(11, 12, SYSTEM_LAST, 0, SYSTEM_LAST + 1)
    assert line.stood == [11, SYSTEM_LAST, 0]
    assert line.campaigns.waiting == 2


def test_turn_that_is_not_needed_any_more_is_dropped_and_takes_no_place() -> None:
    line = Line(1)
    first, *_ = line.ask(11, 12, 13)
    line.not_due.add(12)
    line.end(first)
    assert line.stood == [11, 13]
    assert line.campaigns.dropped == 1


def test_group_that_is_due_again_while_it_waits_or_stands_has_one_place() -> None:
    line = Line(1)
    standing, waiting = line.ask(11, 12)
    line.due(waiting)
    assert line.campaigns.waiting == 1
    line.due(standing)  # its own timer: it campaigns again, in its own place
    assert line.stood == [11, 11]
    assert line.campaigns.under_way == 1


def test_replica_that_is_gone_is_passed_over_and_its_successor_is_not() -> None:
    line = Line(1)
    standing, waiting = line.ask(11, 12)
    line.campaigns.forget(waiting)
    (successor,) = line.ask(12)
    line.end(standing)
    assert line.stood == [11, 12]
    assert waiting.node.raft.state is StateType.FOLLOWER
    line.campaigns.forget(successor)
    assert line.campaigns.under_way == 0


def test_campaign_that_nobody_answers_holds_its_place_for_one_timeout() -> None:
    line = Line(1)
    line.ask(11, 12)
    line.look(TIMEOUT_NS - 1)
    assert line.stood == [11]
    line.look(TIMEOUT_NS)
    assert line.stood == [11, 12]


def test_place_is_held_until_peers_have_read_the_messages_and_a_timeout_after_that() -> None:
    """More campaigns would only lengthen the queue of what they have not read."""
    line = Line(1)
    (standing, _) = line.ask(11, 12)
    line.unread.add(11)
    line.look(2 * TIMEOUT_NS)
    assert line.campaigns.is_held_back(standing, 2 * TIMEOUT_NS)
    assert line.stood == [11]
    standing.become(StateType.CANDIDATE)
    line.campaigns.noted(standing, 2 * TIMEOUT_NS)
    line.unread.clear()
    assert not line.campaigns.is_held_back(standing, 2 * TIMEOUT_NS)
    line.look(3 * TIMEOUT_NS - 1)
    assert line.stood == [11]
    line.look(3 * TIMEOUT_NS)
    assert line.stood == [11, 12]


def test_peers_that_do_not_read_hold_up_no_groups_that_do_not_need_them() -> None:
    """The campaign that they hold back is not repeated, and has a place again when it goes on."""
    line = Line(1)
    (standing, _, _) = line.ask(11, 12, 13)
    line.unread.add(11)
    line.look(PLACE_TIMEOUTS * TIMEOUT_NS)
    assert line.campaigns.is_held_back(standing, PLACE_TIMEOUTS * TIMEOUT_NS)
    assert line.stood == [11, 12]
    assert line.campaigns.under_way == 1
    standing.become(StateType.CANDIDATE)
    line.campaigns.noted(standing, PLACE_TIMEOUTS * TIMEOUT_NS)
    assert line.campaigns.under_way == 2


def test_peers_that_never_read_do_not_hold_a_campaign_back_for_ever() -> None:
    line = Line(1)
    (standing, _) = line.ask(11, 12)
    line.unread.add(11)
    line.look(UNREAD_TIMEOUTS * TIMEOUT_NS)
    assert not line.campaigns.is_held_back(standing, UNREAD_TIMEOUTS * TIMEOUT_NS)
    assert line.stood == [11, 12]


def test_elected_leader_holds_its_place_until_it_has_committed_in_its_term() -> None:
    line = Line(1)
    (standing, _) = line.ask(11, 12)
    standing.node.raft.own_term_committed = False
    standing.become(StateType.LEADER)
    line.campaigns.noted(standing, 0)
    line.turn_ended()
    assert line.stood == [11]
    standing.node.raft.own_term_committed = True
    line.end(standing)
    assert line.stood == [11, 12]


def test_server_of_unknown_speed_begins_with_a_few_and_each_that_is_quick_permits_one_more() -> (
    None
):
    line = Line(1_000)
    groups = line.ask(*range(100, 400))
    assert line.campaigns.under_way == FIRST
    for group in groups[:10]:
        line.end(group, now_ns=TIMEOUT_NS // QUICK - 1)
    assert line.campaigns.under_way == FIRST + 10
    for group in groups[10:20]:
        line.end(group, now_ns=TIMEOUT_NS // QUICK)
    assert line.campaigns.under_way == FIRST + 10
    for group in groups[20:]:
        line.end(group, now_ns=TIMEOUT_NS)
    line.ask(*range(400, 500))
    assert line.campaigns.under_way == FIRST


def test_no_more_begin_in_one_turn_than_leave_time_for_others() -> None:
    line = Line(1_000)
    groups = line.ask(*range(100, 300))
    for group in groups[1:]:
        line.end(group)
    assert line.campaigns.under_way == 1
    line.stood.clear()
    line.ask(*range(300, 300 + STARTS_PER_TURN + 5))
    assert len(line.stood) == STARTS_PER_TURN
    line.turn_ended()
    assert len(line.stood) == STARTS_PER_TURN + 5


def test_late_server_has_fewer_and_fewer_under_way_and_as_many_as_before_once_it_is_in_time() -> (
    None
):
    line = Line(FIRST)
    line.ask(*range(100, 400))
    assert line.campaigns.under_way == FIRST
    line.loop_time.late_ns = LATE_NS
    for now_ns in range(1, 10):
        line.look(now_ns)
    line.look(TIMEOUT_NS)
    assert line.campaigns.under_way == FEWEST
    line.loop_time.late_ns = TIMEOUT_NS
    for now_ns in range(1, 10):
        line.look(TIMEOUT_NS + now_ns)
    line.look(2 * TIMEOUT_NS + 10)
    assert line.campaigns.under_way == FEWEST_AT_TIMEOUT
    line.loop_time.late_ns = 0
    for now_ns in range(20):
        line.look(2 * TIMEOUT_NS + now_ns)
    assert line.campaigns.under_way == FIRST


def test_campaigns_that_wait_for_disks_make_room_while_the_loop_is_in_time() -> None:
    """They make room for as many others at each check, up to a bound.

    Campaigns that request votes of others take their places again.
    """
    line = Line(10)
    groups = line.ask(*range(100, 200))
    for count in (10, 20, 30, 40, 50, 50):
        assert line.campaigns.under_way == count
        for group in groups[:count]:
            group.node.raft.waits_for_disks = True
        line.look(1)
    assert line.campaigns.under_way == 10 * (1 + DISK_WAITS)
    for group in groups:
        group.node.raft.waits_for_disks = False
    line.look(2)
    for group in groups[:40]:
        line.end(group)
    assert line.campaigns.under_way == 10
    line.end(groups[40])
    assert line.stood[-1] == 150


def test_late_loop_makes_no_room_for_those_who_wait_for_disks() -> None:
    line = Line(FEWEST)
    for group in line.ask(*range(100, 200)):
        group.node.raft.waits_for_disks = True
    line.loop_time.late_ns = LATE_NS
    line.look(1)
    assert line.campaigns.under_way == FEWEST


# --- with real groups ---------------------------------------------------------------------------


def create(cluster: Any, partitions: int) -> list[int]:
    """Create a topic whose partitions are on all servers, all led by one."""
    new = NewTopic("many", b"many".ljust(16), assignments=[[1, 2, 3]] * partitions)
    result = cluster.propose(CreateTopics([new]))
    cluster.run(500)
    return list(result.topics[0].group_ids)


def most_at_a_time(cluster: Any, groups: list[int], ms: int) -> int:
    """Return the largest number of simultaneous campaigns on one server, sampled every 0.1 ms."""
    most = 0
    for _ in range(ms * 10):
        cluster.run(0.1)
        for node in cluster.nodes.values():
            if not node.clock.stopped:
                found = [node.host.groups[group_id].node.raft.state for group_id in groups]
                standing = (StateType.PRE_CANDIDATE, StateType.CANDIDATE)
                most = max(most, sum(state in standing for state in found))
    return most


@pytest.mark.parametrize(("elections_max", "most"), [(4, 4), (1_000, FIRST)])
def test_leaders_of_a_dead_server_are_followed_a_few_at_a_time(
    make_cluster: Callable[..., Any], elections_max: int, most: int
) -> None:
    """All have leaders soon, each by one election."""
    cluster = make_cluster(elections_max=elections_max)
    groups = create(cluster, PARTITIONS)
    terms = [cluster.leader(group_id).group.node.term for group_id in groups]
    cluster.nodes[1].crash()
    assert most_at_a_time(cluster, groups, 300) == most
    leaders = [cluster.leader(group_id) for group_id in groups]
    assert [leader.group.node.term for leader in leaders] == [term + 1 for term in terms]


def test_many_groups_give_those_whose_turn_is_first_the_time_that_they_need(
    make_cluster: Callable[..., Any],
) -> None:
    """Without the delay the second replica's turn would come 40 ms after the first's.

    Most groups are still waiting then: simultaneous candidates split the vote, or the later one
    becomes the leader out of order.
    """
    cluster = make_cluster(elections_max=4)
    groups = create(cluster, 3 * PARTITIONS)
    cluster.nodes[1].crash()
    cluster.run(60)
    led = [
        node.host.groups[g].node.is_leader
        for node in list(cluster.nodes.values())[1:]
        for g in groups
    ]
    assert sum(led) < len(groups), "all were led before the second turn"
    cluster.run(400)
    leaders = [cluster.leader(group_id) for group_id in groups]
    assert {leader.leader_server for leader in leaders} == {2}
    assert {leader.group.node.term for leader in leaders} == {2}


def test_group_that_waits_counts_up_no_term_and_asks_nobody(
    make_cluster: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No server answers: without a queue each would request votes once per election timeout."""
    cluster = make_cluster(elections_max=1)
    groups = create(cluster, 30)
    cluster.nodes[1].crash()
    cluster.nodes[2].crash()
    asked: list[int] = []
    tick = RawNode.tick

    def counted(node: RawNode, n: int = 1) -> None:
        before = node.state
        tick(node, n)
        if node.state is StateType.PRE_CANDIDATE and before is not StateType.PRE_CANDIDATE:
            asked.append(node.id)

    monkeypatch.setattr(RawNode, "tick", counted)
    last = cluster.nodes[3].host
    before = {group_id: last.groups[group_id].node.term for group_id in groups}
    cluster.run(3_000)
    assert 0 < len(asked) < 30
    assert {group_id: last.groups[group_id].node.term for group_id in groups} == before
    cluster.nodes[2].start()
    cluster.run(3_000)
    assert all(cluster.leader(group_id) for group_id in groups)


def test_timer_is_always_set_for_the_group_that_is_due_first(
    make_cluster: Callable[..., Any],
) -> None:
    """It covers groups scheduled by new links, and by admitted turns that are not needed."""
    cluster = make_cluster(elections_max=1)
    create(cluster, 20)

    def check(ms: int) -> None:
        for _ in range(ms):
            cluster.run(1)
            for node in cluster.nodes.values():
                timers = node.host.timers
                assert node.clock.stopped or 0 < timers._armed_tick <= timers._wheel.ticks[0]

    cluster.nodes[1].crash()
    check(1_500)
    cluster.nodes[1].start()
    check(1_500)
    for other in (2, 3):
        cluster.network.reset(1, other)
    check(1_500)


# --- opening ------------------------------------------------------------------------------------


class Steps(NodeClock):
    """A clock that keeps delayed calls until a test runs them."""

    def __init__(self) -> None:
        super().__init__(VirtualTime())
        self.later: list[Callable[[], None]] = []

    def call_later(self, _delay_ns: int, fn: Callable[[], None]) -> None:
        self.later.append(fn)

    def step(self) -> None:
        later, self.later = self.later, []
        for fn in later:
            fn()


def test_partitions_are_opened_a_few_in_a_turn_and_the_catalog_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(opening, "load_state", lambda *_: None)
    clock: Any = Steps()
    opened: list[int] = []
    hosting: Any = SimpleNamespace(
        is_wanted=lambda log: log.group_id != 14,
        replica_lost=lambda log: opened.append(log.group_id),
    )
    state = make_state(clock=clock, options=HostOptions(openings_per_turn=3))
    made = ReplicaOpener(state, Liveness(state, Contradictions(state)), hosting)

    def begin(group_id: int, kind: type) -> None:
        log: Any = SimpleNamespace(group_id=group_id)
        placement: Any = SimpleNamespace(initial=[], present=[])
        made.open(log, placement, object.__new__(kind))

    for group_id in range(10, 18):
        begin(group_id, LogStream)
    begin(0, StateGroup)
    assert opened == [10, 11, 12, 0]
    clock.step()
    assert opened == [10, 11, 12, 0, 13, 15]
    begin(20, LogStream)
    clock.step()
    assert opened == [10, 11, 12, 0, 13, 15, 16, 17, 20]
    clock.step()
    begin(21, LogStream)
    assert opened[-1] == 21
    while clock.later:
        clock.step()
