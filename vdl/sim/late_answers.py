"""Answers to requests of a process that has ended, which chance alone rarely produces.

A server that leads a coordinator sends partitions the results of transactions. One partition is led
elsewhere and is paused: its leader keeps the messages and answers when it continues. Another one is
led by that server itself, is paused, and so has no leader once the server is killed. The server is
killed a few times and restarted at once each time, and no other server is elected for its
coordinators: the first time because an old process has numbered many requests, then as soon as the
new one waits for the first partition. At last that partition continues. Its leader answers requests
of processes that have ended, while their successor waits for the other partition, under numbers of
its own.

No other fault happens meanwhile: leaderships must stay as they were. Does not depend on how
requests are numbered.
"""

from __future__ import annotations

from functools import partial
from random import Random
from typing import TYPE_CHECKING

from ids import GroupId
from vdl.clock import MS
from vdl.state.coordinator import Coordinator

if TYPE_CHECKING:
    from vdl.logstream.host import Host
    from vdl.sim.faults import Target
    from vdl.sim.machine import Machine

KILLS = 3
LOOK_NS = 5 * MS
KILL_IN_MS = (0, 200)
"""Time from a process's wait for an answer to its kill."""
GO_ON_IN_MS = (100, 1_500)
"""Time from its last start until the partition that others lead continues."""
RESERVED_MS = 5_000
"""Longest reservation of coordinators for the server.

A round takes three seconds if it restarts at once.
"""


class LateAnswers:
    """Fault that delays answers until the process that asked has ended."""

    def __init__(self) -> None:
        self._still: set[GroupId] = set()

    def begin(self, world: Target, rng: Random) -> bool:
        """See `Fault`."""
        self._kills = KILLS
        plans = [] if len(world.machines) < 3 else list(_plans(world.machines))
        if not plans:
            return False
        self._machine, self._awaited, unled = rng.choice(plans)
        self._still = {self._awaited, unled}
        world.frames.still |= self._still
        world.frames.reserved |= dict.fromkeys(_led(self._machine), self._machine.server_id)
        # A server that does not come back must not block groups that need a leader.
        world.time.after(RESERVED_MS * MS, world.frames.reserved.clear)
        world.note(f"{self._machine.name} is to miss answers of {self._awaited}, not of {unled}")
        self._strike(world, rng)
        return True

    def is_over(self) -> bool:
        """Return True if the late answers have been sent."""
        return self._awaited not in self._still

    def _strike(self, world: Target, rng: Random) -> None:
        """Restart the process."""
        if not self._still:
            return
        self._machine.kill()
        self._machine.start()
        self._kills -= 1
        if self._kills:
            self._look(world, rng)
        else:
            in_ns = rng.randint(*GO_ON_IN_MS) * MS
            world.time.after(in_ns, partial(self._go_on, world, self._awaited))

    def _look(self, world: Target, rng: Random) -> None:
        """Wait until the new process waits for the partition."""
        host = _host(self._machine)
        if host is not None and self._awaited in host.commands.awaited:
            world.time.after(rng.randint(*KILL_IN_MS) * MS, partial(self._strike, world, rng))
        elif self._still:
            world.time.after(LOOK_NS, partial(self._look, world, rng))

    def _go_on(self, world: Target, group_id: GroupId) -> None:
        if group_id in self._still:
            self._still.discard(group_id)
            world.frames.still.discard(group_id)

    def end(self, world: Target) -> None:
        """See `Fault`."""
        for group_id in sorted(self._still):
            self._go_on(world, group_id)
        world.frames.reserved.clear()
        self._machine.start()


def _host(machine: Machine) -> Host | None:
    return machine.server.host if machine.server is not None else None


def _plans(machines: list[Machine]) -> list[tuple[Machine, GroupId, GroupId]]:
    """Return the possible choices of a machine and two participants.

    Each is (machine that leads a coordinator of transactions, a participant led elsewhere, a
    participant led by the machine).
    """
    plans: list[tuple[Machine, GroupId, GroupId]] = []
    for machine in machines:
        host = _host(machine)
        participants = _participants(host) if host is not None else set()
        for group_id in sorted(participants):
            assert host is not None, machine.name
            if host.leader_of(group_id)[0] in {-1, host.server_id}:
                continue
            plans += [
                (machine, group_id, other)
                for other in sorted(participants)
                if host.groups[other].node.is_leader
            ]
    return plans


def _led(machine: Machine) -> list[GroupId]:
    """Return the coordinators that a machine leads."""
    host = _host(machine)
    groups = {} if host is None else host.state.state_groups
    return [
        group_id
        for group_id, state_group in groups.items()
        if isinstance(state_group.machine, Coordinator) and state_group.serving
    ]


def _participants(host: Host) -> set[GroupId]:
    """Return the partitions with a replica here that transactions coordinated here write to."""
    found: set[GroupId] = set()
    for group_id, state_group in host.state.state_groups.items():
        machine = state_group.machine
        if isinstance(machine, Coordinator) and host.groups[group_id].serving:
            for known in machine.transactions.ids.values():
                found |= set(known.participants)
    return {group_id for group_id in found if host.stream(group_id) is not None}
