"""Replicas move between servers: step by step, resumable at any point, and without loss."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from raft.types import ConfChange, ConfChangeSingle, ConfChangeType
from segments.memory import MemoryStore
from tests.unit.logstream.conftest import Cluster
from tests.unit.logstream.test_replacement import rename
from vdl.errors import ErrorCode
from vdl.logstream.group.group import Group
from vdl.logstream.group.replica_ids import replica_id_of, server_of
from vdl.logstream.membership.move_limits import (
    FOLLOWER_RATE,
    FOLLOWER_REPLICAS,
    LEADER_RATE,
    LEADER_REPLICAS,
    UNTHROTTLED,
)
from vdl.logstream.membership.replacement import PARTITIONS_MAX
from vdl.logstream.state import CATALOG_GROUP
from vdl.state.commands import (
    AlterReassignments,
    AlterResourceConfigs,
    AlterTopicConfigs,
    ConfigChange,
    DeleteTopics,
    FinishReassignments,
    LostReplica,
    Reassign,
    ReplaceReplicas,
)

SERVERS = (1, 2, 3, 4, 5, 6)
TOPIC = "events"


@pytest.fixture
def six() -> Cluster:
    """Return six servers; topics have their replicas on the first three."""
    return Cluster(SERVERS)


def move(cluster: Any, replicas: list[int] | None) -> ErrorCode:
    change = Reassign(TOPIC, 0, replicas)
    [(error, _)] = cluster.propose(AlterReassignments([change])).errors
    assert isinstance(error, ErrorCode)
    return error


def holders(cluster: Any, group_id: int) -> list[int]:
    """Return the servers whose directory has a log of the group, running or not."""
    found = []
    for server, node in sorted(cluster.nodes.items()):
        store: MemoryStore = node.store
        found += [server for log in store.logs.values() if log.group_id == group_id]
    return found


def group_on(cluster: Any, group_id: int, server: int) -> Group:
    group = cluster.nodes[server].host.groups[group_id]
    assert isinstance(group, Group)
    return group


def voters(cluster: Any, group_id: int) -> set[int]:
    """Return the servers of the group's voters, by its leader."""
    return {server_of(r) for r in cluster.leader(group_id).group.node.membership.incoming}


def catalog(cluster: Any) -> Any:
    """Return the catalog of a running server."""
    return next(n.host.catalog for n in cluster.nodes.values() if not n.clock.stopped)


def until(cluster: Any, condition: Callable[[], bool], *, ms: int = 20_000) -> None:
    for _ in range(ms // 5):
        if condition():
            return
        cluster.run(5)
    raise AssertionError("it did not come to that")


def settled(cluster: Any, group_id: int) -> bool:
    return not catalog(cluster).move(group_id).is_open


def append(cluster: Any, group_id: int, count: int = 5) -> None:
    """Append records, which must be acknowledged."""
    for _ in range(count):
        fates = cluster.append(cluster.leader(group_id))
        until(cluster, lambda fates=fates: bool(fates))
        assert [fate.error for fate in fates] == [ErrorCode.NONE]


def offsets(cluster: Any, group_id: int) -> dict[int, int]:
    """Return the end of the log on each server that runs a replica."""
    return {
        server: node.host.groups[group_id].node.next_offset()
        for server, node in cluster.nodes.items()
        if not node.clock.stopped and group_id in node.host.groups
    }


@pytest.mark.parametrize(
    "replicas", [[1, 2, 4], [4, 1, 2], [4, 5, 6], [2], [3, 2], [1, 2, 3, 4, 5], [6]]
)
def test_members_become_the_ones_asked_for(six: Any, replicas: list[int]) -> None:
    """More, fewer or all others; the leader may be one of the leaving replicas."""
    group_id = six.create_topic()
    append(six, group_id)
    assert move(six, replicas) is ErrorCode.NONE
    until(six, lambda: settled(six, group_id))
    append(six, group_id)
    six.run(1_000)
    assert voters(six, group_id) == set(replicas)
    assert holders(six, group_id) == sorted(replicas)
    assert offsets(six, group_id) == dict.fromkeys(sorted(replicas), 10)
    # The preferred leader leads when it can, within a second or two.
    until(six, lambda: server_of(six.leader(group_id).group.replica_id) == replicas[0])
    assert group_on(six, group_id, replicas[0]).is_settled
    six.run(2_000)
    for node in six.nodes.values():
        # Servers that had a replica report the leader to clients as all others do.
        assert node.host.leader_of(group_id)[0] == replicas[0]
        assert node.host.in_sync_of(group_id) == tuple(replicas)


def test_leader_that_dies_at_any_time_leaves_all_that_was_acknowledged(six: Any) -> None:
    """The next leader continues from the present state (thesis §4.1)."""
    group_id = six.create_topic()
    append(six, group_id, 3)
    assert move(six, [4, 5, 6]) is ErrorCode.NONE
    acknowledged = 3
    for wait_ms in (30, 150, 220, 310, 90, 130, 450):
        six.run(wait_ms)
        leader = next(
            (s for s, n in six.nodes.items() if (g := n.host.groups.get(group_id)) and g.serving),
            0,
        )
        if leader:
            six.nodes[leader].crash()
            six.run(3_000)
            append(six, group_id, 1)
            acknowledged += 1
            assert max(offsets(six, group_id).values()) == acknowledged
            six.nodes[leader].start()
    until(six, lambda: settled(six, group_id))
    six.run(1_000)
    assert voters(six, group_id) == {4, 5, 6}
    assert holders(six, group_id) == [4, 5, 6]
    assert offsets(six, group_id) == dict.fromkeys((4, 5, 6), acknowledged)


def test_only_server_of_the_target_that_dies_takes_nobody_with_it(six: Any) -> None:
    """Only leaving replicas of the group are left.

    They campaign in some order, though none of them is preferred, and the move ends when the other
    one is back.
    """
    group_id = six.create_topic(TOPIC)
    append(six, group_id, 3)
    leader = server_of(six.leader(group_id).group.replica_id)
    others = {1, 2, 3} - {leader}
    assert move(six, [leader]) is ErrorCode.NONE
    for _ in range(1_000):
        if any(len(group_on(six, group_id, server).placement) == 1 for server in others):
            break
        six.run(1)
    six.nodes[leader].crash()
    six.run(3_000)
    assert not any(six.nodes[server].clock.stopped for server in others)
    six.nodes[leader].start()
    until(six, lambda: settled(six, group_id))
    six.run(1_000)
    assert voters(six, group_id) == {leader}
    assert holders(six, group_id) == [leader]
    assert offsets(six, group_id) == {leader: 3}


def test_nobody_leaves_while_one_that_comes_is_down(six: Any) -> None:
    """No added replica becomes a voter alone: the group needs no more votes than before."""
    group_id = six.create_topic()
    append(six, group_id)
    six.nodes[6].crash()
    move(six, [4, 5, 6])
    six.run(5_000)
    assert voters(six, group_id) == {1, 2, 3}
    assert holders(six, group_id) == [1, 2, 3, 4, 5]
    told = six.nodes[2].host.catalog.reassignment(group_id)
    assert told.adding == [4, 5, 6]
    six.nodes[6].start()
    until(six, lambda: settled(six, group_id))
    assert voters(six, group_id) == {4, 5, 6}


def test_server_of_the_target_that_dies_midway_can_be_given_up(six: Any) -> None:
    """A second alteration replaces the first."""
    group_id = six.create_topic()
    append(six, group_id)
    six.nodes[6].crash()
    move(six, [4, 5, 6])
    six.run(2_000)
    assert move(six, [3, 4, 5]) is ErrorCode.NONE
    until(six, lambda: settled(six, group_id))
    assert voters(six, group_id) == {3, 4, 5}
    six.nodes[6].start()
    six.run(2_000)
    assert holders(six, group_id) == [3, 4, 5]


@pytest.mark.parametrize("wait_ms", [0, 60, 250, 320, 400, 500, 620, 700])
def test_cancelled_at_any_time_goes_back(six: Any, wait_ms: int) -> None:
    group_id = six.create_topic()
    append(six, group_id)
    move(six, [4, 5, 6])
    six.run(wait_ms)
    is_over = settled(six, group_id)
    error = move(six, None)
    assert error is (ErrorCode.NO_REASSIGNMENT_IN_PROGRESS if is_over else ErrorCode.NONE)
    assert six.nodes[1].host.catalog.reassignment(group_id) is None
    until(six, lambda: settled(six, group_id))
    six.run(1_000)
    append(six, group_id)
    there = {4, 5, 6} if is_over else {1, 2, 3}
    assert voters(six, group_id) == there
    until(six, lambda: holders(six, group_id) == sorted(there))
    assert set(offsets(six, group_id).values()) == {10}


def test_topic_deleted_midway_leaves_nothing(six: Any) -> None:
    group_id = six.create_topic()
    append(six, group_id)
    move(six, [4, 5, 6])
    six.run(250)
    six.propose(DeleteTopics([TOPIC]))
    six.run(1_000)
    assert holders(six, group_id) == []
    assert six.nodes[1].host.catalog.moves == {}


def test_catalog_leader_that_dies_midway_is_made_good_by_the_next(six: Any) -> None:
    group_id = six.create_topic()
    append(six, group_id)
    six.nodes[6].crash()
    move(six, [4, 5, 6])
    six.run(500)
    led_by = six.nodes[1].host.leader_of(0)[0]
    if led_by != 6:
        six.nodes[led_by].crash()
    six.nodes[6].start()
    six.run(4_000)
    if led_by != 6:
        six.nodes[led_by].start()
    until(six, lambda: settled(six, group_id))
    six.run(2_000)
    assert voters(six, group_id) == {4, 5, 6}
    assert holders(six, group_id) == [4, 5, 6]


def test_replica_that_is_lost_while_others_come_is_replaced_at_once(six: Any) -> None:
    """It does not wait until all have been added: it would be one replica too many."""
    group_id = six.create_topic()
    append(six, group_id)
    six.nodes[6].crash()
    move(six, [1, 2, 6])
    six.run(1_000)
    directory_id = six.nodes[2].store.directory_id
    six.propose(ReplaceReplicas(2, directory_id, [LostReplica(group_id, 1)]))
    six.run(3_000)
    successor = replica_id_of(2, 2)
    assert successor in six.leader(group_id).group.node.membership.incoming
    assert voters(six, group_id) == {1, 2, 3}
    six.nodes[6].start()
    until(six, lambda: settled(six, group_id))
    assert voters(six, group_id) == {1, 2, 6}


def test_leader_with_an_older_catalog_takes_nobody_back_in(six: Any) -> None:
    """The log's record is final: the replicas that left are about to be deleted."""
    group_id = six.create_topic()
    append(six, group_id)
    move(six, [1, 2, 4])
    until(six, lambda: settled(six, group_id))
    leader = six.leader(group_id).group
    assert leader.revision == leader.wanted_revision == 1
    # As it was before, on a server that lags.
    leader.wanted_revision = 0
    leader.placement = tuple(replica_id_of(server, 1) for server in (1, 2, 3))
    six.run(2_000)
    assert voters(six, group_id) == {1, 2, 4}
    for server in (1, 2, 4):
        assert group_on(six, group_id, server).revision == 1
        six.nodes[server].store.checkpoint()
    six.run(1_000)
    for server in (1, 2, 4):
        six.nodes[server].crash()
        six.nodes[server].start()
    six.run(3_000)
    assert group_on(six, group_id, 2).revision == 1


class ToldCatalog:
    """Replacement for a server's `Forwarding` that checks a group when it is reported."""

    def __init__(self, cluster: Any, server: int, group_id: int) -> None:
        self._cluster = cluster
        self._server = server
        self._group_id = group_id
        self._propose = cluster.nodes[server].host._forwarding.propose
        self.knew: list[int] = []
        """For each report: number of members whose disks know that all changes before the last one
        are committed."""

    def propose(self, command: Any, **rest: Any) -> None:
        assert isinstance(command, FinishReassignments)
        leader = group_on(self._cluster, self._group_id, self._server)
        assert leader.revision == command.moves[0].revision
        assert leader.node.membership.incoming == frozenset(leader.placement)
        last = leader.node.raft.membership_index
        members = [
            group_on(self._cluster, self._group_id, s)
            for s in voters(self._cluster, self._group_id)
        ]
        self.knew.append(sum(g.log.hard_state.commit >= last - 1 for g in members))
        self._propose(command, **rest)


def test_catalog_is_told_only_what_is_in_the_groups_log(six: Any) -> None:
    """If the leader dies then, the members know of the removals before that entry.

    None of them waits for the vote of a replica that is deleted.
    """
    group_id = six.create_topic()
    append(six, group_id)
    told = {server: ToldCatalog(six, server, group_id) for server in SERVERS}
    for server, node in six.nodes.items():
        node.host._replacement._reassignment._forwarding = told[server]
    move(six, [4, 5, 6])
    until(six, lambda: settled(six, group_id))
    knew = [count for one in told.values() for count in one.knew]
    assert knew
    assert all(count >= 2 for count in knew)


def test_removed_leader_that_did_not_know_steps_down(six: Any) -> None:
    """It may be elected before it learns that it is no member; it must not stay in office."""
    group_id = six.create_topic()
    append(six, group_id)
    leader = six.leader(group_id).group
    for server in (1, 2, 3):
        group_on(six, group_id, server).wanted_revision = -1  # no catalog changes it back
    change = ConfChangeSingle(ConfChangeType.REMOVE_NODE, leader.replica_id)
    leader.node.propose_conf_change(ConfChange(changes=(change,)))
    six.nodes[server_of(leader.replica_id)].host.mark_dirty(leader)
    six.run(50)
    assert not leader.node.is_leader
    six.run(3_000)
    assert six.leader(group_id).group is not leader
    append(six, group_id)


def test_many_that_move_at_once_do_not_wait_for_one_another(make_cluster: Any) -> None:
    """Places are given to partitions, not to replicas.

    With a place for each replica, possibly no partition would get all of its own. A partition that
    waits for a server that is away holds no place.
    """
    many = make_cluster(SERVERS)
    names = [f"t{number}" for number in range(PARTITIONS_MAX + 4)]
    groups = [many.create_topic(name) for name in names]
    for group_id in groups:
        append(many, group_id, 1)
    many.nodes[6].crash()
    waiting, others = names[:PARTITIONS_MAX], names[PARTITIONS_MAX:]
    changes = [Reassign(name, 0, [4, 5, 6]) for name in waiting]
    many.propose(AlterReassignments(changes))
    many.run(3_000)
    many.propose(AlterReassignments([Reassign(name, 0, [1, 4, 5]) for name in others]))
    until(many, lambda: all(settled(many, group_id) for group_id in groups[PARTITIONS_MAX:]))
    many.nodes[6].start()
    until(many, lambda: all(settled(many, group_id) for group_id in groups))
    assert all(voters(many, group_id) == {4, 5, 6} for group_id in groups[:PARTITIONS_MAX])


VALUE = b"v" * 20_000
COUNT = 20


def throttle(cluster: Any, *, rate: int, leaders: str, followers: str, server: str = "") -> None:
    """Set limits as `kafka-reassign-partitions --throttle` does: on servers, and on topics."""
    rates = {LEADER_RATE: str(rate), FOLLOWER_RATE: str(rate)}
    cluster.propose(AlterResourceConfigs([(4, ConfigChange(server, rates))]))
    lists = {LEADER_REPLICAS: leaders, FOLLOWER_REPLICAS: followers}
    cluster.propose(AlterTopicConfigs([ConfigChange(TOPIC, lists)]))


def filled(cluster: Any, name: str = TOPIC) -> int:
    """Create a partition on the first three servers with `COUNT` large records."""
    group_id: int = cluster.create_topic(name)
    for _ in range(COUNT):
        assert cluster.append(cluster.leader(group_id), VALUE) is not None
        cluster.run(20)
    return group_id


def ms_until_settled(cluster: Any, group_id: int) -> float:
    began = cluster.time.now_ns
    until(cluster, lambda: settled(cluster, group_id), ms=120_000)
    return float(cluster.time.now_ns - began) / 1e6


@pytest.mark.parametrize(
    ("leaders", "followers", "is_limited"),
    [
        ("0:1,0:2,0:3", "0:4", True),
        ("*", "", True),
        ("", "0:4", True),
        ("", "*", True),
        ("", "", False),
        ("1:1,1:2,1:3", "1:4,0:5", False),
    ],
)
def test_replica_that_comes_is_fed_no_faster_than_the_limit(
    six: Any, leaders: str, followers: str, is_limited: bool
) -> None:
    """Though all of it is in the leader's memory. Replicas without a limit are not delayed."""
    group_id = filled(six)
    rate = 50_000
    throttle(six, rate=rate, leaders=leaders, followers=followers)
    assert move(six, [1, 2, 4]) is ErrorCode.NONE
    least_ms = (COUNT - 3) * len(VALUE) / rate * 1_000  # the last few may be missing
    assert (ms_until_settled(six, group_id) > least_ms) == is_limited
    assert voters(six, group_id) == {1, 2, 4}
    six.run(1_000)
    assert len(set(offsets(six, group_id).values())) == 1


def test_limit_is_for_moves_and_for_nobody_else(six: Any) -> None:
    """A member that returns is fed as before, and acknowledgements do not wait."""
    group_id = filled(six)
    throttle(six, rate=1_000, leaders="*", followers="*")
    assert move(six, [1, 2, 4]) is ErrorCode.NONE
    six.run(2_000)
    assert not settled(six, group_id)
    leader = six.leader(group_id).leader_server
    away = next(server for server in (2, 3, 1) if server != leader)
    six.nodes[away].crash()
    for _ in range(COUNT):
        fates = six.append(six.leader(group_id), VALUE)
        until(six, lambda fates=fates: bool(fates), ms=500)
        assert fates[0].error is ErrorCode.NONE
    six.nodes[away].start()
    end = six.leader(group_id).group.node.next_offset()
    until(six, lambda: offsets(six, group_id).get(away) == end, ms=3_000)
    assert offsets(six, group_id).get(4, 0) < COUNT // 2
    assert not settled(six, group_id)


def test_limit_that_is_lifted_holds_nobody_up_any_more(six: Any) -> None:
    """A cancelled move ends at once, however slow the limit was."""
    group_id = filled(six)
    throttle(six, rate=1, leaders="*", followers="*")
    assert move(six, [1, 2, 4]) is ErrorCode.NONE
    six.run(3_000)
    assert not settled(six, group_id)
    assert move(six, None) is ErrorCode.NONE
    assert ms_until_settled(six, group_id) < 3_000
    assert voters(six, group_id) == {1, 2, 3}
    assert move(six, [1, 2, 5]) is ErrorCode.NONE
    six.run(3_000)
    assert not settled(six, group_id)
    throttle(six, rate=UNTHROTTLED, leaders="", followers="")
    assert ms_until_settled(six, group_id) < 3_000
    assert voters(six, group_id) == {1, 2, 5}


def is_led_by_another(cluster: Any, group_id: int, server: int) -> bool:
    streams = [n.host.stream(group_id) for n in cluster.nodes.values() if not n.clock.stopped]
    return any(s is not None and s.serving and s.leader_server != server for s in streams)


def test_limit_outlives_the_leader(six: Any) -> None:
    """The next leader does not feed faster, not even at first."""
    group_id = filled(six)
    rate = 20_000
    throttle(six, rate=rate, leaders="*", followers="*")
    assert move(six, [1, 2, 4]) is ErrorCode.NONE
    began = six.time.now_ns
    for _ in range(3):
        six.run(1_000)
        leader = six.leader(group_id).leader_server
        six.nodes[leader].crash()
        until(six, lambda leader=leader: is_led_by_another(six, group_id, leader))
        six.nodes[leader].start()
    had = offsets(six, group_id).get(4, 0)
    seconds = (six.time.now_ns - began) / 1e9
    assert had * len(VALUE) <= rate * seconds + 8 * len(VALUE)  # pieces that were under way
    six.run(500)  # the last one that was started has its catalog
    until(six, lambda: settled(six, group_id), ms=120_000)
    assert voters(six, group_id) == {1, 2, 4}


def test_follower_limit_is_for_all_that_come_to_it(six: Any) -> None:
    """Their leaders share it."""
    names = [f"t{number}" for number in range(6)]
    groups = [filled(six, name) for name in names]
    rate = 60_000
    rates = {FOLLOWER_RATE: str(rate)}
    six.propose(AlterResourceConfigs([(4, ConfigChange("4", rates))]))
    lists = {FOLLOWER_REPLICAS: "0:4"}
    six.propose(AlterTopicConfigs([ConfigChange(name, lists) for name in names]))
    began = six.time.now_ns
    six.propose(AlterReassignments([Reassign(name, 0, [1, 2, 4]) for name in names]))
    until(six, lambda: all(settled(six, group_id) for group_id in groups), ms=200_000)
    seconds = (six.time.now_ns - began) / 1e9
    assert (COUNT - 3) * len(names) * len(VALUE) / seconds < rate * 1.1
    assert seconds < 3 * COUNT * len(names) * len(VALUE) / rate


def test_replica_is_deleted_once_a_restart_would_remember_why(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The catalog's snapshot says that it moved away, and waits for the disk as the server dies.

    Created again, without its votes, it would elect a server that lacks acknowledged records.
    """
    six = Cluster(SERVERS, command_entries_kept=6)
    group_id = six.create_topic()
    append(six, group_id)
    six.nodes[2].crash()
    until(six, lambda: voters(six, group_id) == {1, 2, 3} and six.leader(group_id).serving)
    assert move(six, [1, 2, 4]) is ErrorCode.NONE
    until(six, lambda: voters(six, group_id) == {1, 2, 4})
    six.nodes[3].crash()
    until(six, lambda: settled(six, group_id))
    rename(six, 30)
    for server in (1, 4, 5, 6):
        six.nodes[server].store.checkpoint()
    six.run(2_500)

    returned, install = six.nodes[3], Group._install

    def install_slowly(group: Group, *received: Any) -> None:
        if group.group_id == CATALOG_GROUP and group.store is returned.store:
            returned.workers.hold()
        install(group, *received)

    monkeypatch.setattr(Group, "_install", install_slowly)
    returned.start()
    until(six, lambda: returned.workers.held is not None)
    six.run(1_000)
    assert holders(six, group_id) == [1, 2, 3, 4]
    returned.workers.release()
    until(six, lambda: holders(six, group_id) == [1, 2, 4])
