"""Loops that are late although nothing is wrong: what their servers may lose for it, and for how
long.

Every turn of some loops takes `Options.stall_ms` more for a while, as if others used the machine.
While they are late, nobody may lose an office. By the servers' own rules that must hold for stalls
of up to 400 ms
(`options.STALL_MS`):

* A follower hears of its leader once in a heartbeat (100 ms), a turn of the leader later
  than it should be and a turn of its own later still. A leader hears that it was heard after one
  turn more. So with turns of D, and a network that is quick, silence is up to 100 ms + 3 D.
* Of the time for which a loop is late, a quarter counts (`loop_time`): all but the 50 ms between
  two beats of each D. Of 100 ms + 3 D of silence, (D + 150 ms) / 4 for each D count: 450 ms for the
  longest stall, of an election timeout that is 600 ms at the least.
* Where only one of two is late, silence that counts in full is up to 100 ms + D.

A server that is late says so while it is, and when it is over that ends within `QUIET_NS`: the
window over which lateness is measured, and as much again for what had waited.

Must not know: what makes a machine slow, other faults.
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
"""Longer than it takes until a server says that it is late."""
QUIET_NS = 2 * WINDOW_NS
SETTLE_NS = 10_000 * MS
ALL_CHANCE = 0.6
"""That all servers are late, and not one of them: they may share a machine."""


def judge_lateness(world: World, rng: Random) -> bool:
    """Have loops be late, in a world in which nothing else is wrong; False when it is not at
    rest at first."""
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
    """A server that says it is overloaded, or has elections to hold; empty when there is none."""
    for host in _hosts(machines):
        if host.overload.is_overloaded:
            return f"server {host.server_id}: {host.overload.problem()}"
        if host.campaigns.waiting:
            return f"server {host.server_id}: {host.campaigns.waiting} groups wait to be elected"
    return ""


def _hosts(machines: list[Machine]) -> list[Host]:
    servers = [machine.server for machine in machines]
    return [s.host for s in servers if s is not None and s.host is not None]
