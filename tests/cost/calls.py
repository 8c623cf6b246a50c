"""Counts what servers call: functions of Python, built-in functions, and the system.

The interpreter tells of every call of a Python function, generators' every step, and of every call
of a built-in function or method. It does not tell of types that are called (`bytes(x)`), nor of
operators: those are seen by `memory`, if they take any.

The system is where the simulator begins: each call of the file system's interface, each gather
write and each read of a stream, each job given to a thread counts as one system call. A real server
makes these and no others under load, but for the loop's own `epoll_wait` and the lock inside a
hand-over; LMDB makes several for a commit.

Must not know: the workload.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterable
from types import CodeType, FrameType, FunctionType
from typing import Any

from tests.cost.owners import Owners
from vdl.sim.clock import NodeClock, VirtualTime
from vdl.sim.filesystem import SimFile, SimFileSystem, SimMeta
from vdl.sim.network import SimStream
from vdl.sim.workers import SimWorkers

_SYNCS = frozenset(
    ("SimFile.sync", "SimFileSystem.sync_directory", "SimMeta.commit", "SimMeta.sync")
)


def _functions(kind: type, *names: str) -> dict[CodeType, str]:
    """The code of a class's functions, by default of all public ones, and what they are called."""
    chosen = names or [name for name in vars(kind) if not name.startswith("_")]
    found = [vars(kind)[name] for name in chosen]
    return {f.__code__: f.__qualname__ for f in found if isinstance(f, FunctionType)}


SEAMS: dict[CodeType, str] = {
    **_functions(SimFile),
    **_functions(SimFileSystem),
    **_functions(SimMeta),
    **_functions(SimStream, "write", "consumed"),
    **_functions(SimWorkers, "journal", "pool"),
}
"""Where the servers end. `consumed` is told once of each read."""


class Calls:
    """Use: `during`, then the counts."""

    def __init__(self, time: VirtualTime, clocks: Iterable[NodeClock]) -> None:
        self.python: Counter[str] = Counter()
        """Calls by function; `builtin` and `system` likewise."""
        self.builtin: Counter[str] = Counter()
        self.system: Counter[str] = Counter()
        self.syncs = 0
        self.file_bytes = 0
        self.socket_bytes = 0
        self._time = time
        self._clocks = frozenset(clocks)
        self._owners = Owners()
        self._names: dict[int, str] = {}

    def during(self, work: Callable[[], object]) -> None:
        """Do the work and count."""
        sys.setprofile(self._profile)
        try:
            work()
        finally:
            sys.setprofile(None)

    def _profile(self, frame: FrameType, event: str, callee: Any) -> None:
        if self._time.running not in self._clocks:
            return
        if event == "call":
            if self._owners.is_server(frame):
                self.python[self._name(frame)] += 1
            elif frame.f_code in SEAMS:
                self._count_system(SEAMS[frame.f_code], frame.f_locals)
        elif event == "c_call" and self._owners.is_server(frame):
            self.builtin[callee.__qualname__] += 1

    def _name(self, frame: FrameType) -> str:
        code = frame.f_code
        name = self._names.get(id(code))
        if name is None:
            name = self._names[id(code)] = _name(frame)
        return name

    def _count_system(self, name: str, arguments: dict[str, Any]) -> None:
        self.system[name] += 1
        self.syncs += name in _SYNCS
        if name == "SimFile.pwrite":
            self.syncs += arguments["durable"]
            self.file_bytes += sum(map(len, arguments["buffers"]))
        elif name == "SimStream.write":
            self.socket_bytes += sum(map(len, arguments["buffers"]))


def _name(frame: FrameType) -> str:
    """Module and function. What `dataclass` generates does not know its class."""
    code = frame.f_code
    name = code.co_qualname
    if name.startswith("__create_fn__"):
        name = f"{type(frame.f_locals[code.co_varnames[0]]).__name__}.{code.co_name}"
    return f"{frame.f_globals.get('__name__')}.{name}"
