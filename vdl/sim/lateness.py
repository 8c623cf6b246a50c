"""Loops that are late although nothing else is wrong, with the permitted cost and duration.

Every turn of some loops takes `Options.stall_ms` more for a while, as if other processes used the
machine. While they are late, no leader may lose its leadership. By the servers' own rules that
holds for stalls of up to 400 ms (`options.STALL_MS`):

* A follower hears from its leader once in a heartbeat (100 ms), delayed by a turn of the leader and
  by a turn of its own. A leader hears the answer one turn later. So with turns of D, and a fast
  network, silence is up to 100 ms + 3 D.
* Of the time for which a loop is late, a quarter counts (`loop_time`): all but the 50 ms between
  two beats of each D. Of 100 ms + 3 D of silence, (D + 150 ms) / 4 for each D count: 450 ms for the
  longest stall, of an election timeout that is at least 600 ms.
* If only one of two is late, silence that counts in full is up to 100 ms + D.

A late server reports it, and the report ends within `QUIET_NS` after the lateness: the window over
which lateness is measured, and as much again for the backlog.

Does not depend on what makes a machine slow or on other faults.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING

from vdl.clock import MS
from vdl.logstream.elections.overload import WINDOW_NS
from vdl.logstream.host import Host

if TYPE_CHECKING:
    from vdl.sim.machine import Machine
    from vdl.sim.world import World

STALLED_NS = 2 * WINDOW_NS
"""Longer than a server takes to report that it is late."""
QUIET_NS = 2 * WINDOW_NS
SETTLE_NS = 10_000 * MS
ALL_CHANCE = 0.6
"""Chance that all servers are late instead of one of them: they may share a machine."""


def judge_lateness(world: World, rng: Random) -> bool:
    """Make loops late in a world without other faults, and check the cost.

    Return False if leaders still change at the beginning.
    """
    if not world.wait(SETTLE_NS, lambda: not world.watch.away_from_home()):
        world.watch.violate("no-birth", "leaders change, though nothing is wrong")
        return False
    weather = world.network.weather
    world.network.weather = replace(weather, jitter_ns=0, loss=0.0)
    late = world.machines if rng.random() < ALL_CHANCE else [rng.choice(world.machines)]
    elections = world.watch.elections
    times = [host.overload.times for host in _hosts(late)]
    world.note(f"late by {world.options.stall_ms} ms: {[machine.name for machine in late]}")
    for machine in late:
        machine.stall(world.options.stall_ms * MS)
    world.run_for(STALLED_NS)
    if [host.overload.times for host in _hosts(late)] == times:
        world.watch.violate("late-unsaid", f"loops were late by {world.options.stall_ms} ms")
    for machine in late:
        machine.stall(0)
    world.network.weather = weather
    if not world.wait(QUIET_NS, lambda: not _busy(world.machines)):
        world.watch.violate("not-quiet", f"{_busy(world.machines)}, {QUIET_NS // MS} ms later")
    if world.watch.elections != elections:
        count = world.watch.elections - elections
        world.watch.violate("leader-lost", f"{count} elections while loops were late")
    return True


def _busy(machines: list[Machine]) -> str:
    """Describe a server that reports overload or has campaigns waiting; empty if there is none."""
    for host in _hosts(machines):
        if host.overload.is_overloaded:
            return f"server {host.server_id}: {host.overload.problem()}"
        if host.campaigns.waiting:
            return f"server {host.server_id}: {host.campaigns.waiting} groups wait to be elected"
    return ""


def _hosts(machines: list[Machine]) -> list[Host]:
    servers = [machine.server for machine in machines]
    return [s.host for s in servers if s is not None and s.host is not None]
