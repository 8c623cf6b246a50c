"""Each watched rule of Raft, broken once in a working world: the watch must report it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ids import NodeId
from raft.membership import Membership
from raft.state import LEADER
from vdl.clock import MS
from vdl.kafka.groups.group_coordinator import GroupCoordinator
from vdl.logstream.group.group import Group
from vdl.logstream.group.replica_ids import server_of
from vdl.logstream.group.state_group import StateGroup
from vdl.server.server import ServerState
from vdl.sim.machine import Machine
from vdl.sim.options import Options
from vdl.sim.raft_watch import ReplicaWatch
from vdl.sim.world import TOPIC, World

S = 1_000 * MS
CALM = Options(
    partitions=1, coordinators=1, plain_producers=0, members=0, readers=0, sends_per_second=50
)

Sabotage = Callable[[World, Machine, Group], None]


def led(world: World, leader: Machine) -> Group:
    """Return the leader's replica of the topic's one partition."""
    assert leader.server is not None
    assert leader.server.host is not None
    host = leader.server.host
    for group_id, group in host.groups.items():
        stream = host.stream(group_id)
        if stream is not None and stream.topic == TOPIC:
            return group
    raise AssertionError("the leader has no replica")


def followers(world: World, group: Group) -> list[tuple[Machine, Group]]:
    """Return the other replicas, with their machines."""
    found = []
    for machine in world.machines:
        host = machine.server.host if machine.server is not None else None
        if host is not None and machine.server_id != server_of(group.replica_id):
            found.append((machine, host.groups[group.group_id]))
    return found


def change_vote(world: World, leader: Machine, group: Group) -> None:
    group.node.raft.vote = 77


def lower_term(world: World, leader: Machine, group: Group) -> None:
    group.node.raft.term -= 1


def crown_another(world: World, leader: Machine, group: Group) -> None:
    raft = followers(world, group)[0][1].node.raft
    raft.state, raft.lead = LEADER, raft.id


def change_past(world: World, leader: Machine, group: Group) -> None:
    """Make the followers' logs differ before the entries that come."""
    last = group.node.raft.log.last_index
    chains = world.watch.raft.group(group.group_id).chains
    for (index, term), chain in list(chains.items()):
        if index == last:
            chains[index, term] = chain + 1
    leader.kill()
    leader.start()


def deafen_disks(world: World, leader: Machine, group: Group) -> None:
    """Let the disks report nothing, so that entries the servers believe durable are not."""
    for machine in world.machines:
        machine.disk.on_durable = lambda image: None


def deafen_own_disk(world: World, leader: Machine, group: Group) -> None:
    """Empty two of three disks of the leader's commits: its own, and a dead follower's."""
    follower = followers(world, group)[0][0]
    leader.disk.on_durable = lambda image: None
    follower.power_cut()
    world.watch.raft.disks[follower.server_id].forget()


def forget_an_entry(world: World, leader: Machine, group: Group) -> None:
    """Let the disk show one entry more than recovery will find."""
    log = world.watch.raft.disks[leader.server_id].logs[group.log.log_id]
    leader.kill()
    log.entry(log.last + 1, group.node.term, file=1)
    leader.start()


def have_voted(world: World, leader: Machine, group: Group) -> None:
    """Let all have voted for another candidate in the coming terms, in an earlier process."""
    seen = world.watch.raft.group(group.group_id)
    for _, other in followers(world, group):
        for ahead in range(1, 9):
            seen.past_of(other.replica_id).votes[group.node.term + ahead] = 77
    leader.power_cut()


def have_told_a_term(world: World, leader: Machine, group: Group) -> None:
    past = world.watch.raft.group(group.group_id).past_of(group.replica_id)
    past.term = group.node.term + 100
    leader.kill()
    leader.start()


def have_told_an_entry(world: World, leader: Machine, group: Group) -> None:
    past = world.watch.raft.group(group.group_id).past_of(group.replica_id)
    past.index = group.node.last_index + 100
    leader.kill()
    leader.start()


def lose_the_directory(world: World, leader: Machine, group: Group) -> None:
    """Empty the disk without notice to the watch."""
    leader.kill()
    leader.disk.wipe()
    leader.start()


def answer_a_read_early(world: World, leader: Machine, group: Group) -> None:
    """Confirm a read before everything committed at its request is applied."""
    group.reads.ask(world.time.now_ns + S, lambda confirmed: None)
    (ask,) = group.reads.asks
    group.applied -= 1
    ask.done(True)
    group.applied += 1


def answer_as_a_deposed_coordinator(world: World, leader: Machine, group: Group) -> None:
    """Let a coordinator answer from its applied state without a read index round."""
    for machine in world.machines:
        host = machine.server.host if machine.server is not None else None
        for coordinator in host.coordinators if host is not None else ():
            for groups in coordinator.observers if coordinator.serving else ():
                assert isinstance(groups, GroupCoordinator)
                led = groups._led[coordinator.group_id]
                coordinator.group.applied -= 1
                with pytest.MonkeyPatch.context() as patch:
                    patch.setattr(type(coordinator), "read_index", confirm_at_once)
                    groups.read_led(led, lambda error, machine: None)
                coordinator.group.applied += 1
                return


def confirm_at_once(group: StateGroup, *, deadline_ns: int, done: Callable[[bool], None]) -> None:
    done(True)


def lead_closed(world: World, leader: Machine, group: Group) -> None:
    """Transfer leadership to a server that accepts no clients."""
    other = next(machine for machine in world.machines if machine is not leader)
    assert other.server is not None
    other.server.state = ServerState.STARTING
    group.node.transfer_leader(next(m for m in group.members if server_of(m) == other.server_id))
    assert leader.server is not None
    assert leader.server.host is not None
    leader.server.host.mark_dirty(group)


class Over(Exception):
    """Ends a story early."""


@pytest.mark.parametrize(
    ("sabotage", "rule"),
    [
        (change_vote, "one vote a term"),
        (lower_term, "a term never decreases"),
        (crown_another, "Election Safety"),
        (change_past, "log-matching"),
        (deafen_disks, "ack-not-durable"),
        (deafen_disks, "stable-not-durable"),
        (deafen_own_disk, "commit-not-durable"),
        (forget_an_entry, "recovery"),
        (have_voted, "two-votes"),
        (have_told_a_term, "term-lost"),
        (have_told_an_entry, "log-lost"),
        (lose_the_directory, "directory-lost"),
        (answer_a_read_early, "stale-read-index"),
        (answer_as_a_deposed_coordinator, "stale-answer"),
        (lead_closed, "leads-closed"),
    ],
)
def test_broken_rule_is_noticed(sabotage: Sabotage, rule: str) -> None:
    """The world has no violations before; afterwards one names the rule."""
    world = World(1, CALM)

    def story() -> None:
        world.run_for(1 * S)
        leader = world.leader()
        assert leader is not None
        assert world.watch.violations == []
        sabotage(world, leader, led(world, leader))
        world.run_for(2 * S)
        raise Over

    world.live(story)
    names = [violation.name for violation in world.watch.violations]
    assert any(name.startswith(rule) for name in names), names


def test_nothing_is_taken_away_while_a_voter_does_not_know_its_members() -> None:
    """Two replicas with an uncommitted promotion of the third in their logs cannot elect a leader.

    So the leader that knows of the commit must not be lost.
    """
    world = World(1, CALM)

    def story() -> None:
        world.run_for(1 * S)
        leader = world.leader()
        assert leader is not None
        group = led(world, leader)
        assert world.why_no_loss() == ""
        seen = world.watch.raft.group(group.group_id)
        seen.membership_index = group.node.last_index + 1
        assert "does not know its members" in world.why_no_loss()
        seen.membership_index = group.node.commit
        world.run_for(1 * S)
        assert world.why_no_loss() == ""
        raise Over

    world.live(story)


def test_commit_is_held_against_the_members_by_whom_it_was_made() -> None:
    """A leader may commit, and apply a membership change committed before, in one event."""
    world = World(1, CALM)

    def story() -> None:
        world.run_for(1 * S)
        leader = world.leader()
        assert leader is not None
        group = led(world, leader)
        raft, watch = group.node.raft, world.watch.raft
        replica = ReplicaWatch(watch, watch.group(group.group_id), group, lambda: True)
        members = raft.membership
        raft.membership = Membership(incoming=members.incoming | {NodeId(n) for n in range(1, 5)})
        replica._check_commit(raft)
        assert world.watch.violations == []
        replica._members = raft.membership
        replica._check_commit(raft)
        assert [one.name for one in world.watch.violations] == ["commit-not-durable"]
        raft.membership = members
        raise Over

    world.live(story)
