"""Directed worlds: one thing goes wrong, and the effect is measured on virtual time.

Every story ends in healing, a drain and all checks, like a seed. The limits are Raft's timers:
election timeout 600 to 1,200 ms, heartbeats every 100 ms.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import pairwise
from random import Random
from typing import Any

import pytest

from segments.format.block import decode_block, decode_file_header
from vdl.clock import MS
from vdl.logstream.group.state_group import Outcome
from vdl.server.server import ServerState
from vdl.sim.clock import NodeClock, VirtualTime
from vdl.sim.filesystem import SimFileSystem
from vdl.sim.machine import Condition, Life, Machine, StartCut
from vdl.sim.options import Options
from vdl.sim.world import World
from vdl.state.commands import CreateTopics, NewTopic

S = 1_000 * MS
CALM = Options(partitions=1, plain_producers=0, members=0, sends_per_second=50)
ELECTION_NS = 1_200 * MS


def tell(story: Callable[[World, Machine], None], options: Options = CALM, seed: int = 1) -> World:
    """Run a world in which `story` happens to the leader's machine; nothing may be violated."""
    world = World(seed, options)

    def told() -> None:
        world.run_for(2 * S)
        leader = world.leader()
        assert leader is not None, "nobody leads in a calm world"
        story(world, leader)

    outcome = world.live(told)
    assert outcome.violations == [], "\n".join([*outcome.trace.tail, *map(str, outcome.violations)])
    return world


def longest_gap_ns(world: World, since_ns: int, until_ns: int) -> int:
    """Return the longest time without an acknowledgement."""
    times = [op.t1 for op in world.recorder.ops if op.f == "send" and op.ok]
    inside = [since_ns, *sorted(t for t in times if since_ns < t < until_ns), until_ns]
    return max(later - earlier for earlier, later in pairwise(inside))


def test_cluster_is_founded_though_a_server_hears_its_peers_before_it_has_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It listens before it starts; a peer reports only once, at link-up, that it is empty too."""
    start = Life.start

    def late(life: Life) -> None:
        gap_ns = 300 * MS if life.machine.server_id == 1 else 0
        life.clock.call_later(gap_ns, lambda: start(life))

    monkeypatch.setattr(Life, "start", late)
    tell(lambda world, leader: world.run_for(1 * S))


def test_server_that_has_not_begun_does_not_pass_for_an_empty_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A wiped server must not take the others for new ones and form a cluster of its own.

    All lose power, and the server with the lowest id also its disk. The two others hold the
    cluster's data, and start late.
    """
    start = Life.start

    def late(life: Life) -> None:
        gap_ns = 0 if life.machine.server_id == 1 else 500 * MS
        life.clock.call_later(gap_ns, lambda: start(life))

    def story(world: World, leader: Machine) -> None:
        assert world.wait(20 * S, lambda: not world.why_no_loss()), world.why_no_loss()
        monkeypatch.setattr(Life, "start", late)
        for machine in world.machines:
            machine.power_cut()
        world.machines[0].wipe()
        for machine in world.machines:
            machine.start()
        world.run_for(2 * S)

    tell(story)


def test_server_that_is_stopped_before_it_has_begun_does_not_begin() -> None:
    """A process receives signals before it starts."""

    def story(world: World, leader: Machine) -> None:
        leader.kill()
        leader.start()
        server = leader.server
        assert server is not None
        leader.stop(transfer=True)
        server.start()
        assert server.host is None
        world.run_for(1 * S)
        assert leader.condition is Condition.DOWN
        leader.start()
        world.run_for(2 * S)

    tell(story)


def test_killed_leader_is_replaced_within_milliseconds() -> None:
    """A refused link proves that the process is gone: no election timeout is needed."""

    def story(world: World, leader: Machine) -> None:
        began = world.time.now_ns
        leader.kill()
        world.run_for(3 * S)
        assert longest_gap_ns(world, began, world.time.now_ns) < 600 * MS
        leader.start()
        world.run_for(2 * S)

    tell(story)


def test_no_group_of_a_killed_leader_stays_without_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ticks of servers on one machine coincide, so the remaining servers must take turns.

    Otherwise some of many groups would split their votes and wait for the election timeout.
    """

    def in_phase(time: VirtualTime, **given: Any) -> NodeClock:
        return NodeClock(time, **(given | {"offset_ns": S}))

    monkeypatch.setattr("vdl.sim.machine.NodeClock", in_phase)

    def story(world: World, leader: Machine) -> None:
        led = groups_served(leader)
        assert len(led) > 10
        leader.kill()
        world.run_for(300 * MS)
        served = [groups_served(machine) for machine in world.machines]
        assert led <= set().union(*served), "groups are without a leader"
        leader.start()
        world.run_for(1 * S)

    tell(story, replace(CALM, partitions=60))


def test_paused_leader_is_replaced_after_the_election_timeout() -> None:
    """A stall is no proof: followers wait, elect, and the old leader steps down when it resumes."""

    def story(world: World, leader: Machine) -> None:
        began = world.time.now_ns
        leader.pause()
        world.run_for(6 * S)
        assert longest_gap_ns(world, began, world.time.now_ns) < 3_500 * MS
        assert world.leader() not in {None, leader}
        leader.resume()
        world.run_for(3 * S)

    tell(story)


def test_leader_that_is_not_heard_is_replaced() -> None:
    """One-way cut, outbound: its heartbeats do not arrive."""

    def story(world: World, leader: Machine) -> None:
        others = [machine for machine in world.machines if machine is not leader]
        for other in others:
            world.network.cut(leader.name, other.name)
        world.run_for(5 * S)
        assert any(world_leads(other) for other in others)

    tell(story)


def test_leader_that_does_not_hear_steps_down() -> None:
    """One-way cut, inbound: check-quorum deposes it within two election timeouts."""

    def story(world: World, leader: Machine) -> None:
        for other in world.machines:
            if other is not leader:
                world.network.cut(other.name, leader.name)
        # Its links fail first (2 s), for as long leader lists may keep it in its leadership.
        world.run_for(2 * S + 2 * ELECTION_NS)
        assert not world_leads(leader)

    tell(story)


def test_partitioned_leader_acknowledges_nothing() -> None:
    """Without a majority nothing commits, and entries appended alone are not lost silently."""

    def story(world: World, leader: Machine) -> None:
        for other in world.machines:
            if other is not leader:
                world.network.cut(leader.name, other.name)
                world.network.cut(other.name, leader.name)
        began = world.time.now_ns
        world.run_for(5 * S)
        late = [
            op for op in world.recorder.ops
            if op.f == "send" and op.ok and op.node == f"n{leader.server_id}"
            and op.t0 > began + 200 * MS
        ]  # fmt: skip
        assert late == []

    tell(story)


def test_power_cut_of_all_machines_loses_nothing_acknowledged() -> None:
    """Every acknowledgement was durable on a majority: the audit and the drain agree."""

    def story(world: World, leader: Machine) -> None:
        for _ in range(3):
            for machine in world.machines:
                machine.power_cut()
            world.run_for(500 * MS)
            for machine in world.machines:
                machine.start()
            world.run_for(4 * S)

    world = tell(story)
    assert world.watch.audited > 100


def test_planned_stop_hands_leadership_over_first() -> None:
    """SIGTERM of the leader: the gap is a few round trips, not an election timeout."""

    def story(world: World, leader: Machine) -> None:
        began = world.time.now_ns
        leader.stop(transfer=True)
        world.run_for(2 * S)
        assert longest_gap_ns(world, began, world.time.now_ns) < 500 * MS
        assert leader.life is None

    tell(story)


def test_failed_sync_ends_the_process_and_nothing_is_acknowledged_on_it() -> None:
    """The pages may be lost though a second sync would succeed: the process reads the disk anew."""

    def story(world: World, leader: Machine) -> None:
        leader.disk.fail_syncs = 1
        world.run_for(2 * S)
        assert leader.life is None
        leader.power_cut()
        leader.start()
        world.run_for(2 * S)

    tell(story)


def test_full_disks_are_lived_with_and_nobody_has_to_help() -> None:
    """ENOSPC everywhere, repeatedly: processes that end come back when there is room again.

    All acknowledged records are there.
    """

    def story(world: World, leader: Machine) -> None:
        for room in (0, 20_000, 300_000):
            for machine in world.machines:
                machine.fill_disk(room)
            world.run_for(4 * S)
            leader.kill()
            leader.start()
            world.run_for(1 * S)
            for machine in world.machines:
                machine.disk.room = None
            world.run_for(3 * S)
        before = world.recorder.acknowledged
        world.run_for(2 * S)
        assert world.recorder.acknowledged > before, "there is room, and nobody is served"

    tell(story, replace(CALM, record_bytes_max=4_000))


def test_drifting_clocks_depose_nobody() -> None:
    """A drift of a tenth is far less than the margin between heartbeats and election timeout."""

    def story(world: World, leader: Machine) -> None:
        before = world.watch.elections
        world.run_for(20 * S)
        assert world.watch.elections == before

    tell(story, replace(CALM, drift_ppm=50_000), seed=3)


def test_majority_elects_while_the_rest_is_of_no_use() -> None:
    """Off, deaf, mute or cut off: the others do not need the machine outside."""
    seen = set[str]()
    for seed in range(1, 9):
        world = World(seed, replace(CALM, majority_first=True))
        outcome = world.live(partial(world.run_for, S))
        assert outcome.violations == [], "\n".join([*outcome.trace.tail])
        seen |= {line.rsplit(" ", 1)[1] for line in outcome.trace.tail if "not healed yet" in line}
    assert seen >= {"off", "deaf", "mute"}


def test_restarted_server_serves_nobody_from_an_old_catalog() -> None:
    """A topic was created while it was down: it accepts clients only once it knows the topic."""

    def story(world: World, leader: Machine) -> None:
        follower = next(other for other in world.machines if other is not leader)
        follower.kill()
        world.run_for(S)
        assert leader.server is not None
        catalog = leader.server.host
        assert catalog is not None
        made: list[Outcome] = []
        catalog.propose_catalog(
            CreateTopics(
                topics=[NewTopic("late", b"l" * 16)],
                default_partitions=1,
                default_replication_factor=3,
                alive=[1, 2, 3],
            ),
            deadline_ns=world.time.now_ns + 5 * S,
            done=made.append,
        )
        assert world.wait(5 * S, lambda: bool(made))
        for other in world.machines:
            if other is not follower:
                world.network.cut(follower.name, other.name)
                world.network.cut(other.name, follower.name)
        follower.start()
        world.run_for(6 * S)
        server = follower.server
        assert server is not None
        assert server.state is ServerState.STARTING
        assert server.host is not None
        assert "late" not in server.host.catalog.topics
        world.network.heal_all()
        assert world.wait(5 * S, lambda: server.state is ServerState.SERVING)
        assert "late" in server.host.catalog.topics

    tell(story)


def test_wiped_server_is_given_new_replicas() -> None:
    """The replicas of a wiped server are replaced, and only then may the next disk be lost.

    No acknowledged record is lost.
    """

    def story(world: World, leader: Machine) -> None:
        for machine in (leader, *(other for other in world.machines if other is not leader)):
            assert world.wait(20 * S, lambda: not world.why_no_loss()), world.why_no_loss()
            machine.wipe()
            assert world.why_no_loss(), "a wipe that is not made good is not the last"
            world.run_for(1 * S)
            machine.start()
        assert world.wait(20 * S, lambda: not world.why_no_loss()), world.why_no_loss()

    tell(story)


def test_replacement_comes_to_its_end_though_frames_are_lost_and_the_world_is_quiet() -> None:
    """No later entry repeats a lost message: a replica that is behind must ask, learners too.

    It must also still know which servers to ask.
    """
    quiet = replace(CALM, sends_per_second=1, raft_loss=0.3, coordinators=2)
    for seed in range(1, 4):

        def story(world: World, leader: Machine) -> None:
            world.frames.active = True
            for wipe in (True, False):
                assert world.wait(60 * S, lambda: not world.why_no_loss()), world.why_no_loss()
                if wipe:
                    leader.wipe()
                else:
                    leader.damage(Random(world.seed))
                world.run_for(500 * MS)
                leader.start()
            assert world.wait(60 * S, lambda: not world.watch.settled()), world.watch.settled()

        tell(story, quiet, seed=seed)


def test_flipped_bit_in_a_durable_block_costs_one_replica_and_no_record() -> None:
    """Recovery proves the loss, and the data is fetched from the other replicas."""
    replaced = 0

    for seed in range(1, 5):

        def story(world: World, leader: Machine) -> None:
            assert world.wait(20 * S, lambda: not world.why_no_loss()), world.why_no_loss()
            leader.damage(Random(world.seed))
            world.run_for(1 * S)
            leader.start()
            assert world.wait(30 * S, lambda: not world.why_no_loss()), world.why_no_loss()

        world = tell(story, seed=seed)
        replaced += len(world.watch.raft.lost)
    assert replaced > 0, "no flip hit what was still needed"


def test_power_cut_in_the_first_write_of_a_start_loses_nothing_acknowledged() -> None:
    """The last block before a power cut was acknowledged, and no later block proves it.

    The next start rewrites it, in one write with a new file's header. Of that write the header
    reaches the disk and the block does not. The start after that must still find the block at its
    old place.
    """
    torn = 0

    def story(world: World, leader: Machine) -> None:
        nonlocal torn
        for _ in range(60):
            wait_for_acknowledgement(world)
            leader.power_cut()
            leader.start_and_cut(StartCut.IN_WRITE)
            assert leader.condition is Condition.OFF
            torn += holds_header_alone(leader)
            leader.start()
            if torn:
                break

    tell(story, Options(servers=1, members=0, partitions=1))
    assert torn, "the write never tore there"


def test_one_server_alone_is_a_complete_broker() -> None:
    """Replication 1: groups, idempotence and restarts included."""

    def story(world: World, leader: Machine) -> None:
        leader.power_cut()
        leader.start()
        world.run_for(2 * S)
        leader.kill()
        leader.start()
        world.run_for(2 * S)

    tell(story, Options(servers=1, members=1, partitions=2))


def groups_served(machine: Machine) -> set[int]:
    """Return the groups that the machine's server leads and serves."""
    server = machine.server
    if server is None or server.host is None:
        return set()
    return {g for g, group in server.host.groups.items() if group.serving}


def world_leads(machine: Machine) -> bool:
    """Return True if the machine's server believes that it leads any partition."""
    server = machine.server
    if server is None or server.host is None:
        return False
    groups = server.host.groups
    return any(groups[g].node.is_leader and server.host.stream(g) is not None for g in groups)


def wait_for_acknowledgement(world: World) -> None:
    """Let time pass until a client receives its next acknowledgement."""
    before = world.recorder.acknowledged

    def heard() -> bool:
        return world.recorder.acknowledged > before

    assert world.time.run_until(world.time.now_ns + 2 * S, heard), "nothing is acknowledged"


def holds_header_alone(machine: Machine) -> bool:
    """Return True if the newest journal file with a good header lacks the block after it."""
    fs = SimFileSystem(machine.disk)
    for name in reversed(fs.list("data/journal")):
        file = fs.open(f"data/journal/{name}")
        data = file.pread(file.size(), 0)
        header = decode_file_header(data)
        if header is not None and name == f"{header.sequence:016x}.journal":
            return decode_block(data[header.bytes :], header.bytes) is None
    return False
