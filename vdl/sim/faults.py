"""Faults, one class each, and the nemesis that schedules them.

A fault is done to a world and, if it lasts, undone. `FAULTS` lists all of them with the option that
sets each one's rate; a new fault is one class and one row. Almost no fault needs to spare a
majority: durable data survives it, and requests that cannot be served are refused. Only faults that
lose durable data for good, such as `Wipe`, `Damage` and `DamagedEntries`, consult the atlas first.

An interrupted start (`Options.cuts_in_start`) has no class here: it is a chance that every start
has, whatever its cause, until everything is healed (`machine`).

Does not depend on the servers' stored data or on how they are checked.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import permutations
from random import Random
from typing import Protocol

from ids import Index, LogId, indexes
from segments.io import failpoint
from vdl.clock import MS
from vdl.logstream.state import CATALOG_GROUP
from vdl.sim.bridge import Bridge
from vdl.sim.clock import VirtualTime
from vdl.sim.damage import spoil_header
from vdl.sim.frame_faults import FrameWeather
from vdl.sim.machine import Condition, Machine
from vdl.sim.member_faults import Apart, LostJoiner, StrikeBetween
from vdl.sim.network import Network
from vdl.sim.old_copies import OldCopy
from vdl.sim.options import NO_CATALOG, NO_PORT, Options
from vdl.sim.raft_watch import RaftWatch

S = 1_000 * MS

PLACES = tuple(place for place in failpoint.POINTS if not place.startswith(("open.", "compact.")))
"""Failpoints of running stores. Starts are interrupted separately (`Options.cuts_in_start`)."""
COMPACTING = tuple(place for place in failpoint.POINTS if place.startswith("compact."))
"""Failpoints of compaction. Use: where a topic is compacted."""
COMPACTING_CHANCE = 0.3
STAGED = ("truncate.staged", "reset.staged", "trim.staged", "checkpoint.noted", "journal.rolled")
STAGED_CHANCE = 0.5
KILL_CHANCE = 0.2
HOLE_KILL_CHANCE = 0.5
AFTER_PLACE_NS_MAX = 500 * MS
PARTS = ("identity", "identity", "journal", "logs", "meta")
"""Parts of a data directory that may be missing."""
PASSES_CHANCE, PASSES_NS_MAX = 0.5, 1 * S
"""Chance that a bad page becomes readable again, and the longest time until then."""
STOPPED_CHANCE = 0.7
SWAPPED_CHANCE = 0.5
DEAF_NS = 3 * S
"""Longer than an isolated leader takes to notice plus an election timeout."""
STRIKE_MS = (20, 120)
"""Time from the election of an isolated leader's successor to its kill."""


class Target(Protocol):
    """Part of a world that faults act on."""

    @property
    def time(self) -> VirtualTime: ...
    @property
    def network(self) -> Network: ...
    @property
    def frames(self) -> FrameWeather: ...
    @property
    def machines(self) -> list[Machine]: ...
    @property
    def initial(self) -> list[Machine]:
        """Machines whose servers form the cluster."""
        ...

    @property
    def raft(self) -> RaftWatch: ...
    @property
    def is_compacting(self) -> bool:
        """True if there is a compacted topic."""
        ...

    @property
    def hosts(self) -> list[str]:
        """Names of all machines, including the clients'."""

    def note(self, text: str) -> None: ...

    def sleep(self, ms: int) -> None:
        """Put all machines and clients to sleep for the given time."""

    def why_no_loss(self) -> str:
        """Return why no replica may be lost for good now; empty if one may (see `atlas`)."""


class Fault(Protocol):
    """One fault. `begin` returns False if there was nothing to apply it to."""

    def begin(self, world: Target, rng: Random) -> bool: ...

    def end(self, world: Target) -> None:
        """Undo the fault. Harmless if it has ended by itself."""


class Kill:
    """kill -9, and a restart some time later."""

    def begin(self, world: Target, rng: Random) -> bool:
        self.machine = rng.choice(world.machines)
        if self.machine.life is None:
            return False
        self.machine.kill()
        return True

    def end(self, world: Target) -> None:
        self.machine.start()


class PowerCut:
    """Power loss of a machine, which loses everything not synced."""

    def begin(self, world: Target, rng: Random) -> bool:
        self.machine = rng.choice(world.machines)
        if self.machine.life is None:
            return False
        self.machine.power_cut()
        return True

    def end(self, world: Target) -> None:
        self.machine.start()


class CutInWrite:
    """Power loss of a machine in the middle of a write: some sectors of the block are on disk."""

    def begin(self, world: Target, rng: Random) -> bool:
        self.machine = rng.choice(world.machines)
        if self.machine.life is None:
            return False
        self.machine.cut_in_write(rng.randint(1, 8))
        return True

    def end(self, world: Target) -> None:
        self.machine.disk.cut_at_write = 0
        self.machine.start()


class CutAtPlace:
    """Power loss or kill of a machine soon after its store has passed a certain failpoint.

    The operation begun there is left half done. Chance alone does not reach rare failpoints.
    """

    def begin(self, world: Target, rng: Random) -> bool:
        self.machine = rng.choice(world.machines)
        if self.machine.life is None:
            return False
        if world.is_compacting and rng.random() < COMPACTING_CHANCE:
            self.place = rng.choice(COMPACTING)
        else:
            self.place = rng.choice(STAGED if rng.random() < STAGED_CHANCE else PLACES)
        is_kill = rng.random() < KILL_CHANCE
        # Usually before the next sync, sometimes after a good deal of later work.
        delay_ns = int(rng.random() ** 4 * AFTER_PLACE_NS_MAX)
        time = world.time

        def passed() -> None:
            life = self.machine.life
            if life is not None and time.running is life.clock:
                failpoint.unwatch(self.place)
                world.note(f"{self.machine.name} has passed {self.place}")
                time.after(delay_ns, self.machine.kill if is_kill else self.machine.power_cut)

        failpoint.watch(self.place, passed)
        return True

    def end(self, world: Target) -> None:
        failpoint.unwatch(self.place)
        self.machine.start()


class Outage:
    """Power loss of all machines at once."""

    def begin(self, world: Target, rng: Random) -> bool:
        for machine in world.machines:
            machine.power_cut()
        return True

    def end(self, world: Target) -> None:
        for machine in world.machines:
            machine.start()


class Brownout:
    """Power loss of some machines in the same instant. It returns for all of them together."""

    def begin(self, world: Target, rng: Random) -> bool:
        count = rng.randint(1, len(world.machines))
        chosen = sorted(rng.sample(range(len(world.machines)), count))
        self.machines = [world.machines[i] for i in chosen if world.machines[i].life is not None]
        for machine in self.machines:
            machine.power_cut()
        return len(self.machines) > 0

    def end(self, world: Target) -> None:
        for machine in self.machines:
            machine.start()


class Stop:
    """Planned restart."""

    def begin(self, world: Target, rng: Random) -> bool:
        self.machine = rng.choice(world.machines)
        if self.machine.condition is not Condition.RUNNING:
            return False
        self.machine.stop(transfer=rng.random() < 0.8)
        return True

    def end(self, world: Target) -> None:
        # A server that did not stop in time is killed, as init systems do.
        if self.machine.condition is Condition.STOPPING:
            self.machine.kill()
        self.machine.start()


class Pause:
    """SIGSTOP and SIGCONT: a stalled virtual machine."""

    def begin(self, world: Target, rng: Random) -> bool:
        self.machine = rng.choice(world.machines)
        if self.machine.life is None:
            return False
        self.machine.pause()
        return True

    def end(self, world: Target) -> None:
        self.machine.resume()


class Partition:
    """Network partition of the servers into two sides. Clients reach one side or both."""

    def begin(self, world: Target, rng: Random) -> bool:
        names = [machine.name for machine in world.machines]
        if len(names) < 2:
            return False
        clients = [name for name in world.hosts if name not in names]
        side = set(rng.sample(names, rng.randint(1, len(names) - 1)))
        if rng.random() < 0.5:
            everyone = [*names, *clients]
            side |= {name for name in clients if rng.random() < 0.5}
        else:
            everyone = names
        self.pairs = [
            (one, other)
            for one, other in permutations(everyone, 2)
            if (one in side) is not (other in side)
        ]
        for one, other in self.pairs:
            world.network.cut(one, other)
        world.note(f"partition {sorted(side)}")
        return True

    def end(self, world: Target) -> None:
        for one, other in self.pairs:
            world.network.heal(one, other)


class OneWayCut:
    """Cut of one direction between a machine and one other, or all others."""

    def begin(self, world: Target, rng: Random) -> bool:
        if len(world.machines) < 2:
            return False
        one = rng.choice(world.machines).name
        others = [name for name in world.hosts if name != one]
        if rng.random() < 0.5:
            others = [rng.choice(others)]
        outbound = rng.random() < 0.5
        self.pairs = [(one, other) if outbound else (other, one) for other in others]
        for source, target in self.pairs:
            world.network.cut(source, target)
        world.note(f"one-way cut {self.pairs}")
        return True

    def end(self, world: Target) -> None:
        for source, target in self.pairs:
            world.network.heal(source, target)


class LoneLeader:
    """Isolation of a leader from the other servers, while clients reach both sides.

    The leader's new entries are not replicated. Once the others have elected a leader, that one is
    killed, and the server with the longer but older log takes part in the next election. A
    coordinator's leader is only isolated: clients query it for state that may have changed without
    it.
    """

    def begin(self, world: Target, rng: Random) -> bool:
        self.machines: list[Machine] = []
        self._pairs: list[tuple[str, str]] = []
        self._kills = rng.random() < 0.5
        leaders = [
            (machine, group_id)
            for machine in world.machines
            for group_id in sorted(_led(machine, streams=self._kills))
            if len(world.machines) > 2
        ]
        if not leaders:
            return False
        self._machine, self._group_id = rng.choice(leaders)
        alone = self._machine.name
        others = [other.name for other in world.machines if other is not self._machine]
        self._pairs = [(alone, other) for other in others] + [(other, alone) for other in others]
        for one, other in self._pairs:
            world.network.cut(one, other)
        world.note(f"{self._machine.name} leads group {self._group_id} alone")
        self._look(world, rng)
        return True

    def _look(self, world: Target, rng: Random) -> None:
        """Wait for the others' leader."""
        if not self._pairs or not self._kills:
            return
        for machine in world.machines:
            if machine is not self._machine and self._group_id in _led(machine, streams=True):
                strike = partial(self._strike, world, machine)
                world.time.after(rng.randint(*STRIKE_MS) * MS, strike)
                return
        world.time.after(_LOOK_NS, lambda: self._look(world, rng))

    def _strike(self, world: Target, leader: Machine) -> None:
        if self._pairs:
            self.machines.append(leader)
            leader.kill()
            self._heal(world)
            # It requests votes but receives no requests; otherwise the others would mostly campaign
            # first.
            world.frames.deaf.add(self._machine.server_id)
            world.time.after(DEAF_NS, partial(self._hear, world))

    def _hear(self, world: Target) -> None:
        world.frames.deaf.discard(self._machine.server_id)

    def _heal(self, world: Target) -> None:
        for one, other in self._pairs:
            world.network.heal(one, other)
        self._pairs = []

    def end(self, world: Target) -> None:
        self._heal(world)
        self._hear(world)
        for machine in self.machines:
            machine.start()


_LOOK_NS = 10 * MS


def _led(machine: Machine, *, streams: bool) -> set[int]:
    """Return the partitions that a machine leads, or the coordinators."""
    host = machine.server.host if machine.server is not None else None
    if host is None:
        return set()
    return {
        group_id
        for group_id, group in host.groups.items()
        if group_id != CATALOG_GROUP
        and group.node.is_leader
        and (host.stream(group_id) is not None) is streams
    }


class Reset:
    """Reset of the connections between two machines."""

    def begin(self, world: Target, rng: Random) -> bool:
        one, other = rng.sample(world.hosts, 2)
        count = world.network.reset_between(one, other)
        if count:
            world.note(f"reset {one} {other}: {count} connections")
        return count > 0

    def end(self, world: Target) -> None:
        """No effect: the fault is over at once."""


class Clog:
    """Clog of a path, which delivers nothing for a while, then everything."""

    def begin(self, world: Target, rng: Random) -> bool:
        one, other = rng.sample(world.hosts, 2)
        until_ns = world.time.now_ns + rng.randint(10, 2_000) * MS
        world.network.path(one, other).clogged_until_ns = until_ns
        world.note(f"clog {one} → {other}")
        return True

    def end(self, world: Target) -> None:
        """No effect: the fault ends by itself."""


class Deaf:
    """Loss of all RAFT frames to a machine for a while, although its links are up."""

    def begin(self, world: Target, rng: Random) -> bool:
        if len(world.machines) < 2:
            return False
        machine = rng.choice(world.machines)
        deaf, server_id = world.frames.deaf, machine.server_id
        if server_id in deaf:
            return False
        deaf.add(server_id)
        world.time.after(rng.randint(1_000, 7_000) * MS, lambda: deaf.discard(server_id))
        world.note(f"{machine.name}: deaf")
        return True

    def end(self, world: Target) -> None:
        """No effect: the fault ends by itself, because it must outlast most spells."""


class SlowDisk:
    """Slowdown of a disk by orders of magnitude."""

    def begin(self, world: Target, rng: Random) -> bool:
        self.machine = rng.choice(world.machines)
        self.machine.disk.slowdown = rng.choice((10, 100, 500))
        world.note(f"{self.machine.name}: disk slower by {self.machine.disk.slowdown}")
        return True

    def end(self, world: Target) -> None:
        self.machine.disk.slowdown = 1


STARVED_US = (1_000, 10_000)
"""Time of each thing that a starved server handles: ten to a hundred times the usual one."""


class Starvation:
    """Starvation of all machines: other programs take nearly all of their processors."""

    def begin(self, world: Target, rng: Random) -> bool:
        self.before: list[tuple[Machine, int]] = []
        cost_us = rng.randint(*STARVED_US)
        if any(machine.turn_cost_ns >= STARVED_US[0] * 1_000 for machine in world.machines):
            return False
        self.before = [(machine, machine.turn_cost_ns) for machine in world.machines]
        for machine in world.machines:
            machine.take_time(cost_us * 1_000)
        world.note(f"all starve: {cost_us} us for each thing")
        return True

    def end(self, world: Target) -> None:
        for machine, turn_cost_ns in self.before:
            machine.take_time(turn_cost_ns)


_REVIVE_NS = 100 * MS


class SyncFailure:
    """Failure of a machine's next sync. The process must end itself."""

    def begin(self, world: Target, rng: Random) -> bool:
        self.machine = rng.choice(world.machines)
        if self.machine.life is None:
            return False
        self.machine.disk.fail_syncs = 1
        return True

    def end(self, world: Target) -> None:
        self.machine.disk.fail_syncs = 0
        self.machine.start()


class DiskFull:
    """Full disk: it takes a little more data, then no file can grow until room is made.

    A process that cannot continue ends itself and is restarted repeatedly, full or not.
    """

    def begin(self, world: Target, rng: Random) -> bool:
        self.machine = rng.choice(world.machines)
        if self.machine.disk.room is not None:
            return False
        self.machine.fill_disk(rng.choice((0, rng.randint(1, 8 << 10), rng.randint(1, 256 << 10))))
        return True

    def end(self, world: Target) -> None:
        self.machine.disk.room = None


class Wipe:
    """Loss of a machine's disk: it restarts with an empty one."""

    def begin(self, world: Target, rng: Random) -> bool:
        if world.why_no_loss():
            return False
        self.machine = rng.choice(world.machines)
        self.machine.wipe()
        return True

    def end(self, world: Target) -> None:
        self.machine.start()


class Damage:
    """Restart of a machine with a flipped bit in data its journal had made durable."""

    def begin(self, world: Target, rng: Random) -> bool:
        if world.why_no_loss():
            return False
        self.machine = rng.choice(world.machines)
        self.machine.damage(rng)
        return True

    def end(self, world: Target) -> None:
        self.machine.start()


class BadBlock:
    """Restart of a machine with an unreadable page that its journal had made durable."""

    def begin(self, world: Target, rng: Random) -> bool:
        if world.why_no_loss():
            return False
        self.machine = rng.choice(world.machines)
        self.machine.spoil_block(rng)
        return True

    def end(self, world: Target) -> None:
        self.machine.start()


class BadPage:
    """Loss of a page of a segment or its index while its server runs.

    The page stays unreadable until it is rewritten, or for a moment only. Its data is intact
    elsewhere, so nothing may be lost.
    """

    def begin(self, world: Target, rng: Random) -> bool:
        if world.why_no_loss():
            return False
        machine = rng.choice(world.machines)
        bad_pages = machine.disk.bad_pages
        before = set(bad_pages)
        if not machine.spoil_segment(rng):
            return False
        if rng.random() < PASSES_CHANCE:
            pages = bad_pages - before
            delay_ns = int(rng.random() ** 4 * PASSES_NS_MAX)
            world.time.after(delay_ns, lambda: bad_pages.difference_update(pages))
        return True

    def end(self, world: Target) -> None:
        """No effect: the fault ends by itself."""


class Missing:
    """Power loss of a machine that comes back with a part of its data directory missing.

    Causes are a disk that is not mounted or a part that was moved. The machine must refuse to start
    until the part is put back, and with another machine's journal.
    """

    def begin(self, world: Target, rng: Random) -> bool:
        self.machine = rng.choice(world.machines)
        if self.machine.life is None or self.machine.hidden:
            return False
        self.machine.power_cut()
        part = rng.choice(PARTS)
        if self.machine.hide(part):
            others = [m for m in world.machines if m.life is not None]
            if part == "journal" and others:
                self.machine.try_journal_of(others[0])
            self.machine.start()
        return True

    def end(self, world: Target) -> None:
        self.machine.put_back()
        self.machine.start()


class OtherDirectory:
    """Restart of a machine with a copy of another's directory, or of two with each other's.

    Neither starts until each has its own again.
    """

    def begin(self, world: Target, rng: Random) -> bool:
        self.machines: list[Machine] = []
        if len(world.machines) < 2:
            return False
        one, other = rng.sample(world.machines, 2)
        chosen = [(one, other)]
        if rng.random() < SWAPPED_CHANCE:
            chosen.append((other, one))
        if any(machine.life is None or machine.hidden for machine, _ in chosen):
            return False
        for machine, _ in chosen:
            machine.kill()
        for machine, owner in chosen:
            if machine.give_directory_of(owner):
                self.machines.append(machine)
            machine.start()
        return True

    def end(self, world: Target) -> None:
        for machine in self.machines:
            machine.put_back()
            machine.start()


class BadHeader:
    """Power loss, and one page of a journal file's header or of the identity damaged or unreadable.

    Another page holds the same data, so nothing is lost.
    """

    def begin(self, world: Target, rng: Random) -> bool:
        self.machine = rng.choice(world.machines)
        if self.machine.life is None:
            return False
        self.machine.power_cut()
        what = spoil_header(self.machine.disk, rng)
        if what:
            self.machine.note(what)
        return True

    def end(self, world: Target) -> None:
        self.machine.start()


class SecondOpener:
    """Attempt of a second process to open a directory in use, while its owner runs or stops."""

    def begin(self, world: Target, rng: Random) -> bool:
        machine = rng.choice(world.machines)
        if machine.life is None:
            return False
        if rng.random() < STOPPED_CHANCE:
            machine.stop(transfer=False)
        self.machine = machine
        machine.open_again()
        return True

    def end(self, world: Target) -> None:
        # A server that did not stop in time is killed, as init systems do.
        if self.machine.condition is Condition.STOPPING:
            self.machine.kill()
        self.machine.start()


class DamagedEntries:
    """Restart of one or two machines, each with a different damaged entry of one group.

    They have to apply those entries. Every entry is intact somewhere, so nothing may be lost, nor
    may the group halt for long.
    """

    def begin(self, world: Target, rng: Random) -> bool:
        self.machines: list[Machine] = []
        if world.why_no_loss():
            return False
        hosts = [m.server.host for m in world.machines if m.server is not None and m.server.host]
        groups = sorted({group_id for host in hosts for group_id in host.groups})
        group_id = rng.choice(groups)
        taken = {i for m in world.machines for g, _, i in m.damaged_entries if g == group_id}
        chosen = rng.sample(world.machines, rng.randint(1, 2))
        is_kill = rng.random() < HOLE_KILL_CHANCE
        plan: list[tuple[Machine, LogId, Index]] = []
        for machine in chosen:
            log = machine.log_of(group_id)
            # A log that was cut could not be applied from its beginning.
            if log is None or log.first_index > 1:
                return False
            # Between entries of the same term: at a term's start, damage without Idx hides which
            # entry it is.
            between = [
                i
                for i in indexes(Index(2), log.flushed_index)
                if i not in taken and log.term(i - 1) == log.term(i + 1)
            ]
            if not between:
                return False
            index = rng.choice(between)
            taken.add(index)
            plan.append((machine, log.log_id, index))
        for machine, log_id, index in plan:
            # The page cache that a killed process leaves includes the newest Idx.
            (machine.kill if is_kill else machine.power_cut)()
            machine.open_hole(group_id, log_id, index, rng)
            self.machines.append(machine)
        return True

    def end(self, world: Target) -> None:
        for machine in self.machines:
            machine.start()


class FlushStarve:
    """Hang of a machine's segment writes for a while, though its journal writes go on."""

    def begin(self, world: Target, rng: Random) -> bool:
        self.machine = rng.choice(world.machines)
        if self.machine.starved:
            return False
        self.machine.starve(is_starved=True)
        return True

    def end(self, world: Target) -> None:
        self.machine.starve(is_starved=False)


def close(machine: Machine, why: str) -> None:
    """Restart a machine's process so that it serves no clients."""
    machine.kill()
    machine.hears_catalog = why != NO_CATALOG
    machine.has_port = why != NO_PORT
    machine.note(f"serves no clients: {why}")
    machine.start()


def may_serve(machine: Machine) -> None:
    """Allow the machine to serve clients again."""
    machine.hears_catalog = machine.has_port = True


class Closure:
    """Restart of a machine's process, which then serves no clients for a while."""

    def begin(self, world: Target, rng: Random) -> bool:
        self.machine = rng.choice(world.machines)
        why = rng.choice((NO_CATALOG, NO_PORT))
        if self.machine.life is None or not (self.machine.hears_catalog and self.machine.has_port):
            return False
        close(self.machine, why)
        return True

    def end(self, world: Target) -> None:
        may_serve(self.machine)
        self.machine.start()


class ClockJump:
    """Adjustment of a machine's wall clock by an administrator."""

    def begin(self, world: Target, rng: Random) -> bool:
        machine = rng.choice(world.machines)
        machine.jump_wall(rng.choice((-1, 1)) * rng.choice((10, 1_000, 60_000, 3_600_000)))
        return True

    def end(self, world: Target) -> None:
        """No effect: clocks are left as they are."""


DAY_MS = 86_400_000
DECADES_BEHIND_MS = -50 * 365 * DAY_MS
WALL_ERRORS_MS = (DECADES_BEHIND_MS, -8 * DAY_MS, 8 * DAY_MS, 30 * DAY_MS, 40_000 * DAY_MS)
"""Errors of a wall clock.

Each would delete something: a clock that is ahead deletes at once, one that is behind stamps
records that are old as soon as the clock is right.
"""

SLEEP_MS = 8 * DAY_MS
CLOCK_HOLD_MS = 3_000
"""`clock.hold` of the servers."""


def may_be_wrong(world: Target, machine: Machine) -> bool:
    """Return True if this clock may be made wrong too: a majority must be right.

    The clock of a single server may be wrong for less than `clock.hold`.
    """
    wrong = sum(other.wall_error_ms != 0 for other in world.machines if other is not machine)
    return len(world.machines) == 1 or wrong + 1 <= (len(world.machines) - 1) // 2


class WrongClock:
    """Change of a running server's wall clock by days or decades, corrected later."""

    restarts = False

    def begin(self, world: Target, rng: Random) -> bool:
        self.machine = machine = rng.choice(world.machines)
        error_ms = rng.choice(WALL_ERRORS_MS)
        if machine.life is None or machine.wall_error_ms or not may_be_wrong(world, machine):
            return False
        if self.restarts:
            machine.kill()
        machine.set_wall_error(error_ms)
        if len(world.machines) == 1:
            world.time.after(CLOCK_HOLD_MS * MS // 2, lambda: machine.set_wall_error(0))
        machine.start()
        return True

    def end(self, world: Target) -> None:
        self.machine.set_wall_error(0)


class WrongClockAtStart(WrongClock):
    """Start of a server with a wrong wall clock, corrected while it runs."""

    restarts = True


class Sleep:
    """Sleep of all machines for days, as of a laptop or a paused set of virtual machines.

    Afterwards wall clocks are right (or as wrong as before), monotonic clocks have not advanced,
    and messages in flight still are. A single machine cannot distinguish this from a clock set by
    days, and has not recorded it yet if its clock is wrong at the next start.
    """

    def begin(self, world: Target, rng: Random) -> bool:
        if len(world.machines) == 1:
            return False
        world.sleep(SLEEP_MS)
        return True

    def end(self, world: Target) -> None:
        """No effect: all machines are awake."""


_WAIT_NS = 50 * MS


@dataclass(frozen=True, slots=True)
class Row:
    """A fault, the option that sets its rate, and its longest duration in milliseconds."""

    make: Callable[[], Fault]
    rate: Callable[[Options], float]
    lasts_ms_max: int
    waits: bool = False
    """True if the fault is retried until possible: the atlas may soon allow it."""


FAULTS = (
    Row(Kill, lambda o: o.kills, 4_000),
    Row(PowerCut, lambda o: o.power_cuts, 4_000),
    Row(CutInWrite, lambda o: o.cuts_in_write, 4_000),
    Row(CutAtPlace, lambda o: o.cuts_at_places, 4_000),
    Row(Outage, lambda o: o.outages, 2_000),
    Row(Brownout, lambda o: o.brownouts, 3_000),
    Row(Stop, lambda o: o.stops, 4_000),
    Row(Pause, lambda o: o.pauses, 4_000),
    Row(Partition, lambda o: o.partitions_cut, 5_000),
    Row(OneWayCut, lambda o: o.one_way_cuts, 5_000),
    Row(Reset, lambda o: o.resets, 1),
    Row(Clog, lambda o: o.clogs, 1),
    Row(SlowDisk, lambda o: o.slow_disks, 4_000),
    Row(SyncFailure, lambda o: o.sync_failures, 4_000),
    Row(DiskFull, lambda o: o.full_disks, 6_000),
    Row(Wipe, lambda o: o.wipes, 4_000, waits=True),
    Row(Damage, lambda o: o.damage, 4_000, waits=True),
    Row(ClockJump, lambda o: o.clock_jumps, 1),
    Row(WrongClock, lambda o: o.clock_steps, 6_000),
    Row(WrongClockAtStart, lambda o: o.wrong_clocks, 6_000),
    Row(Sleep, lambda o: o.sleeps, 1),
    Row(Deaf, lambda o: o.deafness, 1),
    Row(Missing, lambda o: o.missing, 4_000),
    Row(OtherDirectory, lambda o: o.other_directories, 3_000),
    Row(BadHeader, lambda o: o.bad_headers, 4_000),
    Row(SecondOpener, lambda o: o.second_openers, 2_000),
    Row(DamagedEntries, lambda o: o.damaged_entries, 4_000, waits=True),
    Row(FlushStarve, lambda o: o.flush_starves, 8_000),
    Row(BadPage, lambda o: o.bad_pages, 1, waits=True),
    Row(BadBlock, lambda o: o.bad_blocks, 4_000, waits=True),
    Row(LoneLeader, lambda o: o.lone_leaders, 6_000),
    Row(Bridge, lambda o: o.bridges, 6_000),
    Row(Closure, lambda o: o.closures, 6_000),
    Row(OldCopy, lambda o: o.old_copies, 2_000, waits=True),
    Row(StrikeBetween, lambda o: o.member_strikes, 3_000, waits=True),
    Row(LostJoiner, lambda o: o.joiner_wipes, 2_000, waits=True),
    Row(Apart, lambda o: o.member_cuts, 4_000),
    Row(Starvation, lambda o: o.starvations, 6_000),
)


SPELL_MS_MIN = 500
"""Shortest spell of faults."""

CALM_MS = (500, 3_500)
"""Range of the pause between two spells.

Operations that take seconds, such as forming a consumer group, would otherwise never be begun and
so never be interrupted.
"""


class Nemesis:
    """Scheduler of faults: each at its rate, in spells, until everything is healed.

    At the end of a spell all its faults are undone.
    """

    def __init__(self, world: Target, options: Options, rng: Random) -> None:
        self.faults = 0
        self._world = world
        self._options = options
        self._rng = rng
        self._active: dict[int, Fault] = {}
        self._healed = False
        self._reviving = False
        self._kept_down: list[Machine] = []
        self._calm_end_ns = 0

    def start(self) -> None:
        self._world.frames.active = True
        for row in FAULTS:
            self._schedule(row)
        self._world.time.after(self._spell_ns(), self._calm_down)

    def _calm_down(self) -> None:
        """End the spell and plan the next one."""
        if self._healed:
            return
        for number in sorted(self._active):
            self._over(number)
        self._world.note("calm")
        calm_ns = self._rng.randint(*CALM_MS) * MS
        spell_ns = self._spell_ns()
        self._calm_end_ns = self._world.time.now_ns + calm_ns
        self._world.time.after(calm_ns + spell_ns, self._calm_down)

    def _spell_ns(self) -> int:
        return self._rng.randint(SPELL_MS_MIN, self._options.spell_ms_max) * MS

    def _schedule(self, row: Row) -> None:
        rate = row.rate(self._options)
        if rate > 0:
            delay_ns = int(self._rng.expovariate(rate) * S)
            self._world.time.after(delay_ns, lambda: self._happen(row))

    def _happen(self, row: Row) -> None:
        if self._healed:
            return
        calm_ns = self._calm_end_ns - self._world.time.now_ns
        if calm_ns > 0:
            self._world.time.after(calm_ns, lambda: self._schedule(row))
            return
        fault = row.make()
        if not fault.begin(self._world, self._rng):
            if row.waits:
                self._world.time.after(_WAIT_NS, lambda: self._happen(row))
            else:
                self._schedule(row)
            return
        self._schedule(row)
        self._began(fault, row)

    def _began(self, fault: Fault, row: Row) -> None:
        self.faults += 1
        number = self.faults
        self._active[number] = fault
        lasts_ns = self._rng.randint(1, row.lasts_ms_max * MS)
        self._world.time.after(lasts_ns, lambda: self._over(number))

    def strike(self) -> None:
        """Crash a machine now, whatever the rates are, because too few crashes have happened."""
        row = self._rng.choice([row for row in FAULTS if row.make in (Kill, PowerCut)])
        fault = row.make()
        if fault.begin(self._world, self._rng):
            self._began(fault, row)

    def _over(self, number: int) -> None:
        fault = self._active.pop(number, None)
        if fault is not None:
            fault.end(self._world)

    def stop(self) -> None:
        """Schedule no more faults, and undo those in progress."""
        self._healed = True
        self._world.frames.active = False
        for machine in self._world.machines:
            machine.cuts_in_start = 0.0
        for number in sorted(self._active):
            self._over(number)
        self._world.network.heal_all()
        for machine in self._world.machines:
            machine.put_back()
            machine.disk.slowdown = 1
            machine.disk.fail_syncs = 0
            machine.disk.room = None
            machine.disk.cut_at_write = 0
            machine.set_wall_error(0)
            machine.resume()
            if machine.condition is Condition.STOPPING:
                machine.kill()
        if not self._reviving:
            self._reviving = True
            self._revive()

    def heal_only(self, core: list[Machine]) -> None:
        """Undo everything except that the machines outside `core` stay useless.

        Each of those has no power, or cannot send, or cannot receive, or both.
        """
        self.stop()
        network, rng = self._world.network, self._rng
        for machine in self._world.machines:
            if machine in core:
                continue
            how = rng.choice(("off", "cut off", "deaf", "mute"))
            self._world.note(f"not healed yet: {machine.name} is {how}")
            if how == "off":
                machine.power_cut()
                self._kept_down.append(machine)
                continue
            for other in self._world.machines:
                if other is not machine and how != "deaf":
                    network.cut(machine.name, other.name)
                if other is not machine and how != "mute":
                    network.cut(other.name, machine.name)

    def keep_down(self, machine: Machine) -> None:
        """End the machine's process, after `heal`. It starts with the next `heal`."""
        self._kept_down.append(machine)
        machine.kill()

    def heal(self) -> None:
        """Undo every fault and schedule no more."""
        self._kept_down.clear()
        self.stop()

    def _revive(self) -> None:
        """Start every stopped machine, periodically.

        A sync that had failed before the heal may end its process only a moment later.
        """
        for machine in self._world.machines:
            if machine not in self._kept_down:
                machine.start()
        self._world.time.after(_REVIVE_NS, self._revive)
