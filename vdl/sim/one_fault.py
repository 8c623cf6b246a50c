"""One fault alone, when all is well again: how long its groups may stand still, in how many terms
they are led again, and how soon after it all is quiet.

While faults overlap nobody can say how long a failover may take. Here one happens by itself, to the
server that leads most, and `BOUNDS` says what each kind may cost. A group stands still until one of
the others serves it: until then nothing of it is acknowledged. All times follow from settings.

* `EARLIEST` and `LATEST`: the election timeout, 600 ms, and twice that: timers are drawn between.
* An election is two rounds of messages and a third for the first entry, six hops, after two at
  which the fault is noticed. A hop takes the delay of the network and the turns of two servers that
  handle something of all groups; the network loses nothing then. Its jitter has an exponential
  mean: that eight hops of one of ten groups take thirty times that is one case in millions.
* Three syncs, of the candidate, of another voter and of the entry, after the one that was under
  way; they have an exponential mean, too, and a full journal file takes some more.

Killed: its link is reset and then refused, a round trip. Who is left stands within 50 ms, and where
that came to nothing after 200 and 400 ms more (`Group.campaign_in_turn`).
Paused, or not heard: a follower's timer is due `LATEST` after it last heard the leader. Its
question is refused by one who has heard it later, and whose own timer is due by then: no more is
added. Where two campaign at one time and the third does not answer, neither has lost: their timers
decide, drawn anew.
Hears nobody: a leader is told when no byte has come from a majority for an election timeout, at the
second of its heartbeats after that (check-quorum). It says so, and its followers' timers begin anew
at the latest.
Slow disk, narrow link: it leads on, and nobody else comes to lead.
A server that comes back gets its groups back, some each second (`transfers`); a hand-over that
fails is tried again after two. Then nothing may move any more.

A bridge is no kind of these: who is heard is led all the time, by one side or the other, and how
long a deposed leader may serve is watched in all worlds (`stale_watch`).

Must not know: what else has happened in this world.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random
from typing import TYPE_CHECKING

from vdl.clock import MS
from vdl.logstream.options import TICK_NS, HostOptions
from vdl.sim.bridge import Bridge

if TYPE_CHECKING:
    from vdl.sim.machine import Machine
    from vdl.sim.options import Options
    from vdl.sim.world import World

S = 1_000 * MS
EARLIEST_NS = HostOptions().election_ticks * TICK_NS
LATEST_NS = 2 * EARLIEST_NS
HEARTBEAT_NS = HostOptions().heartbeat_ticks * TICK_NS
KILL_TURNS_NS = 650 * MS
MEANS = 30
"""So many times the mean all that is exponential takes together, at the most."""
HANDLED = 8
"""Messages, frames and turns of one group in one step of an election."""
HOPS = 8
LASTS_NS = 4 * S
"""How long faults last that nobody fails over from."""
SLOW_SYNC_NS = 300 * MS
NARROW_BYTES = 256 << 10
QUIET_NS = 3 * S
LOOKED_NS = 50 * MS
"""How often a world looks."""
BRIDGED_NS = 4 * S
"""How long a bridge lasts once all but it is over: longer than a deposed leader may serve."""
BRIDGE_LED_NS = 12 * S


@dataclass(frozen=True, slots=True)
class Bound:
    """What a kind of fault may cost. `begin`: have it happen to a machine, in a world."""

    begin: Callable[[World, Machine], None]
    noticed_ns: int
    """Until somebody stands, the last of a group's tries."""
    terms: int
    """Each group, with three voters; 0: it keeps its leader."""
    splits: bool = False
    """Votes that are split cost another election timeout."""


def _kill(world: World, machine: Machine) -> None:
    world.nemesis.keep_down(machine)


def _pause(world: World, machine: Machine) -> None:
    machine.pause()


def _cut(world: World, machine: Machine) -> None:
    _mute(world, machine)
    _deafen(world, machine)


def _mute(world: World, machine: Machine) -> None:
    for other in world.machines:
        if other is not machine:
            world.network.cut(machine.name, other.name)


def _deafen(world: World, machine: Machine) -> None:
    for other in world.machines:
        if other is not machine:
            world.network.cut(other.name, machine.name)


def _slow(world: World, machine: Machine) -> None:
    machine.disk.steady_sync_ns = SLOW_SYNC_NS


def _narrow(world: World, machine: Machine) -> None:
    for other in world.machines:
        if other is not machine:
            world.network.narrow(machine.name, other.name, NARROW_BYTES)


BOUNDS = {
    "kill": Bound(_kill, KILL_TURNS_NS, 2),
    "pause": Bound(_pause, HEARTBEAT_NS + LATEST_NS, 2, splits=True),
    "cut": Bound(_cut, HEARTBEAT_NS + LATEST_NS, 2, splits=True),
    "mute": Bound(_mute, HEARTBEAT_NS + LATEST_NS, 2, splits=True),
    "deaf": Bound(_deafen, 3 * HEARTBEAT_NS + EARLIEST_NS + LATEST_NS, 2),
    "slow disk": Bound(_slow, 0, 0),
    "narrow link": Bound(_narrow, 0, 0),
}
"""By kind. Two terms, as votes may be split once."""


def election_ns(options: Options, groups: int) -> int:
    """What an election of all groups may take once somebody stands: see the module."""
    turns_us = 2 * (options.turn_us + HANDLED * groups * options.turn_cost_us)
    random_us = MEANS * (options.jitter_us + options.sync_us)
    return (HOPS * (options.delay_us + turns_us) + random_us) * 1_000


def judge_one_fault(world: World) -> None:
    """Have one happen, drawn, and end; the world is at rest before."""
    kind, watch = world.options.one_fault, world.watch
    bound = BOUNDS[kind]

    def is_at_rest() -> bool:
        # A group that is being handed over is led by nobody for a moment.
        return not watch.away_from_home() and not watch.leaderless(world.machines)

    if not world.wait(60 * S, is_at_rest):
        return  # a disk is too slow for it; who leads is judged elsewhere
    victim = max(world.machines, key=watch.led)
    others = [machine for machine in world.machines if machine is not victim]
    before, elections = watch.terms(others), watch.elections
    election = election_ns(world.options, len(before))
    weather = world.network.weather
    world.network.weather = replace(weather, loss=0.0)
    world.note(f"one fault: {kind}, {victim.name}")
    bound.begin(world, victim)
    if not bound.terms:
        world.run_for(LASTS_NS)
        if watch.elections != elections:
            watch.violate("leader-lost", f"{watch.elections - elections} elections for a {kind}")
    else:
        limit_ns = bound.noticed_ns + election + LOOKED_NS
        if not world.wait(limit_ns, lambda: not watch.leaderless(others)):
            what = f"{kind}: {watch.leaderless(others)} is not led after {limit_ns // MS} ms"
            watch.violate("slow-failover", what)
        after = watch.terms(others)
        most = bound.terms + len(world.machines) - 3
        for number in sorted(before.keys() & after.keys()):
            if after[number] - before[number] > most:
                what = f"{kind}, group {number}: terms {before[number]} to {after[number]}"
                watch.violate("many-elections", what)
    _over(world, victim)
    _judge_quiet(world, kind, len(before), election)
    world.network.weather = weather


def _over(world: World, victim: Machine) -> None:
    victim.disk.steady_sync_ns = 0
    rate = world.options.link_kib << 10
    for other in world.machines:
        if other is not victim:
            world.network.narrow(victim.name, other.name, rate)
    world.nemesis.heal()


def _judge_quiet(world: World, kind: str, groups: int, election: int) -> None:
    """It is over: leaderships return, and then nothing moves."""
    watch = world.watch
    since = [world.time.now_ns, watch.elections]

    def is_quiet() -> bool:
        if watch.elections != since[1]:
            since[:] = [world.time.now_ns, watch.elections]
        return world.time.now_ns - since[0] >= QUIET_NS and not watch.leaderless(world.machines)

    # One second a group to return, or three; to start, link and catch up takes less than ten.
    limit_ns = QUIET_NS + 10 * S + 3 * groups * (S + election)
    if not world.wait(limit_ns, is_quiet):
        watch.violate("not-quiet", f"leaders still change {limit_ns // MS} ms after a {kind}")


def judge_bridge(world: World, rng: Random) -> None:
    """Have one, in a world in which nothing else is wrong, that deposes who leads most. How long it
    serves on is watched (`stale_watch`); a majority hears each other all the time, and must be led
    before the bridge is gone."""
    watch = world.watch

    def is_at_rest() -> bool:
        return not watch.away_from_home() and not watch.leaderless(world.machines)

    if not world.wait(60 * S, is_at_rest):
        return  # a disk is too slow for it; who leads is judged elsewhere
    bridge = Bridge(near=max(world.machines, key=watch.led).name)
    if not bridge.begin(world, rng):
        return
    world.run_for(bridge.over_ns + BRIDGED_NS)
    elections_ns = 3 * election_ns(world.options, len(watch.terms(world.machines)))
    for when in ("while a bridge lasts", "after a bridge"):
        if not world.wait(
            BRIDGE_LED_NS + elections_ns, lambda: not watch.leaderless(world.machines)
        ):
            watch.violate("no-leader", f"{watch.leaderless(world.machines)}, {when}")
        bridge.end(world)
