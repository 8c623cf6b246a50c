"""A server that leads a thousand of three thousand groups fails: time and terms of the failover.

Turns of loops take time here; otherwise the number of groups would cost nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from statistics import mean

import pytest

from vdl.clock import MS
from vdl.sim.machine import Machine
from vdl.sim.options import Options
from vdl.sim.world import ELECTION_TIMEOUT_NS, World

pytestmark = pytest.mark.takes_turns(parts=2)

S = 1_000 * MS
GROUPS = 3_000
TURN_COST_US = 40
HANDLED = 12
"""Work of a server for one election: three messages out and three in, commit indexes twice, and its
part of turns and frames.
"""
SYNC_MS = 300
TERMS = 1.05
"""Limit on the average for each group: turns may still coincide."""
MANY = Options(
    partitions=GROUPS,
    coordinators=1,
    idempotent_producers=0,
    plain_producers=0,
    readers=0,
    members=0,
    segment_kib=4 << 10,
    journal_kib=16 << 10,
    checkpoint_kib=16 << 10,
    cache_kib=64 << 10,
)


@dataclass(slots=True)
class Failover:
    """Cost of one failover."""

    groups: int
    ns: int
    terms: list[int]
    """Terms used by each group that the dead server led."""
    others: int
    """Number of groups with another leader that went through a term."""


def fail_over(world: World, victim: Machine) -> Failover:
    """Kill a machine, and let time pass until others lead all groups."""
    hosts = [m.server.host for m in world.machines if m is not victim and m.server is not None]
    living = [host for host in hosts if host is not None]
    assert victim.server is not None
    assert victim.server.host is not None
    led = {number for number, g in victim.server.host.groups.items() if g.node.is_leader}
    others = [machine for machine in world.machines if machine is not victim]
    before, died_ns = world.watch.terms(others), world.time.now_ns
    world.nemesis.keep_down(victim)
    leaderless = set(led)
    while leaderless and world.time.now_ns - died_ns < 60 * S:
        world.run_for(20 * MS)
        leaderless = {n for n in leaderless if not any(host.groups[n].serving for host in living)}
    after, took_ns = world.watch.terms(others), world.time.now_ns - died_ns
    # Groups that learn of it late campaign now, if at all.
    world.run_for(ELECTION_TIMEOUT_NS)
    rest = sum(after[number] != before[number] for number in after if number not in led)
    assert world.watch.terms(others) == after, "elections went on"
    return Failover(len(led), took_ns, [after[n] - before[n] for n in sorted(led)], rest)


def world_of(groups: int) -> World:
    """Return a world with that many groups, born at no cost; from now on turns take time."""
    world = World(1, replace(MANY, partitions=groups))
    assert world._birth()
    for machine in world.machines:
        machine.take_time(TURN_COST_US * 1_000)
    world.run_for(S)
    return world


def test_groups_of_a_dead_server_are_led_again_in_one_term_each() -> None:
    """Campaigns are staggered by group number and queued, as fast as the loops handle them."""
    world = world_of(GROUPS)
    done = fail_over(world, world.machines[0])
    assert done.groups >= GROUPS // 4
    assert mean(done.terms) <= TERMS
    assert max(done.terms) <= 2
    assert done.ns <= ELECTION_TIMEOUT_NS + done.groups * HANDLED * TURN_COST_US * 1_000
    assert world.watch.violations == []


def test_slow_disks_cost_their_syncs_and_not_those_of_every_batch_in_line() -> None:
    """A campaign that waits for a disk costs the loop nothing, and makes room for others."""
    world = world_of(GROUPS // 2)
    sync_ns = SYNC_MS * MS
    for machine in world.machines:
        machine.disk.steady_sync_ns = sync_ns
    world.run_for(3 * sync_ns)
    done = fail_over(world, world.machines[0])
    assert done.groups >= GROUPS // 8
    assert mean(done.terms) <= TERMS
    assert max(done.terms) <= 2
    # The sync in progress, three in series, and one between the first groups and the rest.
    work_ns = done.groups * HANDLED * TURN_COST_US * 1_000
    assert done.ns <= work_ns + 5 * sync_ns
    assert world.watch.violations == []
