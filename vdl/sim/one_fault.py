"""One fault alone in a healthy cluster, with limits on the outage, the terms and the rest.

While faults overlap, the duration of a failover has no known bound. Here one fault happens by
itself, to the server that leads most groups, and `BOUNDS` states the permitted cost of each kind. A
group is unavailable until one of the other servers serves it. All times follow from settings.

* `EARLIEST` and `LATEST`: the election timeout, 600 ms, and twice that; timers are drawn between.
* An election is two rounds of messages and a third for the first entry, six hops, after two at
  which the fault is noticed. A hop takes the delay of the network and the turns of two servers that
  handle messages of all groups; the network loses nothing then. Its jitter is exponential: eight
  hops of one of ten groups take more than thirty times the mean in one of millions of cases.
* Three syncs, of the candidate, of another voter and of the entry, after the one in progress. They
  are exponential, too, and a full journal file takes some more.

The kinds are:

* Killed: its link is reset and then refused, which takes a round trip. The remaining servers
  campaign within 50 ms, and if that fails after 200 and 400 ms more (`Campaigning.take_turn`).
* Paused, or cannot send: a follower's timer expires `LATEST` after it last heard from the leader.
  Its vote request is refused by a server that heard from the leader later, and whose own timer
  expires by then: no time is added. If two campaign simultaneously and the third does not answer,
  neither loses: their timers decide, drawn anew.
* Cannot receive: a leader notices that no byte has come from a majority for an election timeout at
  the second of its heartbeats after that (check-quorum). It says so, and at the latest then its
  followers' timers restart.
* Slow disk, narrow link: it remains leader, and no other server is elected.

A server that comes back gets its groups back, some each second (`transfers`); a failed transfer is
retried after two seconds. After that no leadership may move.

A bridge is none of these kinds: reachable groups have a leader all the time, on one side or the
other, and all worlds watch how long a deposed leader serves (`stale_watch`).

Does not depend on what else has happened in this world.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
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
"""Upper bound on the sum of all exponential delays, in multiples of the mean."""
HANDLED = 8
"""Messages, frames and turns of one group in one step of an election."""
HOPS = 8
LASTS_NS = 4 * S
"""Duration of faults that cause no failover."""
SLOW_SYNC_NS = 300 * MS
NARROW_BYTES = 256 << 10
QUIET_NS = 3 * S
LOOKED_NS = 50 * MS
"""Interval at which a world checks a condition."""
BRIDGED_NS = 4 * S
"""Duration of a bridge once its second cut is healed: longer than a deposed leader may serve."""
BRIDGE_LED_NS = 12 * S


@dataclass(frozen=True, slots=True)
class Bound:
    """Permitted cost of a kind of fault. `begin` applies it to a machine in a world."""

    begin: Callable[[World, Machine], None]
    noticed_ns: int
    """Time until a server campaigns, at the last of a group's tries."""
    terms: int
    """Terms that each group may use, with three voters; 0: it keeps its leader."""
    splits: bool = False
    """True if a split vote costs another election timeout."""


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
"""Bounds by kind. Two terms, because votes may be split once."""


def election_ns(options: Options, groups: int) -> int:
    """Return the longest time of an election of all groups, counted from the first campaign.

    See the module.
    """
    turns_us = 2 * (options.turn_us + HANDLED * groups * options.turn_cost_us)
    random_us = MEANS * (options.jitter_us + options.sync_us)
    return (HOPS * (options.delay_us + turns_us) + random_us) * 1_000


def judge_one_fault(world: World) -> None:
    """Apply the drawn fault, end it, and check its cost. The world must have settled before."""
    kind, watch = world.options.one_fault, world.watch
    bound = BOUNDS[kind]

    def is_at_rest() -> bool:
        # During a transfer a group has no leader for a moment.
        return not watch.away_from_home() and not watch.leaderless(world.machines)

    if not world.wait(60 * S, is_at_rest):
        return  # a disk is too slow for this; leaders are checked elsewhere
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
    """Check that leaderships return after the fault and then do not move."""
    watch = world.watch
    since = [world.time.now_ns, watch.elections]

    def is_quiet() -> bool:
        if watch.elections != since[1]:
            since[:] = [world.time.now_ns, watch.elections]
        return world.time.now_ns - since[0] >= QUIET_NS and not watch.leaderless(world.machines)

    # One second for each group to return, or three; starting, linking and catching up take less
    # than ten.
    limit_ns = QUIET_NS + 10 * S + 3 * groups * (S + election)
    if not world.wait(limit_ns, is_quiet):
        watch.violate("not-quiet", f"leaders still change {limit_ns // MS} ms after a {kind}")


def judge_bridge(world: World, rng: Random) -> None:
    """Set up a bridge, with no other fault, that deposes the server that leads most groups.

    `stale_watch` checks how long it serves on. A group with a majority of its voters on one side
    and in the middle must have a leader before the bridge is gone. While replicas move, a group may
    have four voters, two on each side.
    """
    watch = world.watch

    def is_at_rest() -> bool:
        return not watch.away_from_home() and not watch.leaderless(world.machines)

    if not world.wait(60 * S, is_at_rest):
        return  # a disk is too slow for this; leaders are checked elsewhere
    bridge = Bridge(near=max(world.machines, key=watch.led).name)
    if not bridge.begin(world, rng):
        return
    world.run_for(bridge.over_ns + BRIDGED_NS)
    elections_ns = 3 * election_ns(world.options, len(watch.terms(world.machines)))
    sides = [[one for one in world.machines if one.name in side] for side in bridge.connected]
    for when, cores in (("while a bridge lasts", sides), ("after a bridge", [world.machines])):
        if not world.wait(BRIDGE_LED_NS + elections_ns, partial(_are_led, world, cores)):
            watch.violate("no-leader", f"{watch.leaderless(world.machines)}, {when}")
        bridge.end(world)


def _are_led(world: World, cores: Sequence[Sequence[Machine]]) -> bool:
    """Return True if all groups have a leader that the machines of one of `cores` can elect."""
    watch = world.watch
    if not watch.leaderless(world.machines):
        return True
    if not all(machine.server is not None and machine.server.host for machine in world.machines):
        return False
    electable = {group_id for core in cores for group_id in watch.unled(core)}
    return electable.isdisjoint(watch.unled(world.machines))
