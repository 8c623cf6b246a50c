"""A bridge: servers on two sides that do not reach each other, with one in the middle.

The middle reaches both sides, and each side has a majority with it. At first everything continues.
Then one direction or both between the middle and one side is cut for about an election timeout, and
the other side elects a leader with the middle. When that cut is healed, only the original one
remains: the deposed leader has links to a majority, and none to its successor.

Does not depend on the servers' data or on how a deposed leader learns of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import product
from random import Random
from typing import Protocol

from vdl.clock import MS
from vdl.sim.clock import VirtualTime
from vdl.sim.machine import Machine
from vdl.sim.network import Network

BEGINS_MS = (100, 1_500)
"""Time until the cut between the middle and a side begins.

Links that were cut earlier may be up by then.
"""
SILENT_MS = (700, 1_900)
"""Duration of that cut: longer than an election timeout, and shorter than links survive."""
DIRECTIONS = ("unheard", "unheard", "unheard", "deaf", "both")
"""Direction of that cut; most often the middle does not receive from the side."""


class Target(Protocol):
    """Part of a world that a bridge acts on."""

    @property
    def time(self) -> VirtualTime: ...
    @property
    def network(self) -> Network: ...
    @property
    def machines(self) -> Sequence[Machine]: ...
    def note(self, text: str) -> None: ...


class Bridge:
    """Fault that sets up a bridge. `near`: a machine on the side that is cut off; empty for any."""

    def __init__(self, near: str = "") -> None:
        self._near = near
        self._pairs: list[tuple[str, str]] = []
        self._silent: list[tuple[str, str]] = []

    def begin(self, world: Target, rng: Random) -> bool:
        """See `Fault`."""
        names = [machine.name for machine in world.machines if machine.name != self._near]
        rng.shuffle(names)
        names += [self._near] if self._near else []
        if len(names) < 3:
            return False
        middle, *sides = names
        half = len(sides) // 2
        far, near = sides[:half], sides[half:]
        self.connected = [*near, middle], [*far, middle]
        """Names of the machines of each side, with the middle."""
        self._pairs = [*product(near, far), *product(far, near)]
        for one, other in self._pairs:
            world.network.cut(one, other)
        direction = rng.choice(DIRECTIONS)
        silent = [(name, middle) for name in near if direction != "deaf"]
        silent += [(middle, name) for name in near if direction != "unheard"]
        begins_ns, lasts_ns = rng.randint(*BEGINS_MS) * MS, rng.randint(*SILENT_MS) * MS
        self.over_ns = begins_ns + lasts_ns
        """Time from the beginning until only the bridge itself is left."""
        world.note(f"bridge {near} {middle} {far}, {direction} for {lasts_ns // MS} ms")
        world.time.after(begins_ns, partial(self._fall_silent, world, silent))
        world.time.after(self.over_ns, partial(self._speak, world))
        return True

    def _fall_silent(self, world: Target, silent: list[tuple[str, str]]) -> None:
        if self._pairs:
            self._silent = silent
            for source, target in silent:
                world.network.cut(source, target)

    def _speak(self, world: Target) -> None:
        silent, self._silent = self._silent, []
        for source, target in silent:
            world.network.heal(source, target)

    def end(self, world: Target) -> None:
        """See `Fault`."""
        self._speak(world)
        pairs, self._pairs = self._pairs, []
        for one, other in pairs:
            world.network.heal(one, other)
