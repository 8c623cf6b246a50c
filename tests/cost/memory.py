"""Counts the memory that servers take in pieces of a page or more: the trace that a copy leaves.

A copy of a batch is a new object of the batch's size, or fills a buffer that was new once. So each
byte that is received, staged or sent along should be found here as often as DESIGN allows, and one
more copy shows at once. Between any two instructions of a server's code the interpreter's own
account (`tracemalloc`) is read: what the peak in between adds to the level before is what that
instruction took, also if it was given back by the next. Sizes are those asked for, so that they are
the same on each machine.

A piece's size is right to some hundred bytes, which are the counter's own and always the same. It
does not see what is copied into memory that was there before (a slice that is assigned), nor what
stays below a page; and growing a list or a buffer in place counts by how much it grew. What the
simulator takes, which copies in place of kernel and disk, is not counted.

Every instruction is a call back: some twenty times slower than without.

Must not know: the workload.
"""

from __future__ import annotations

import sys
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterable
from types import FrameType
from typing import Any

from tests.cost.owners import Owners
from vdl.sim.clock import NodeClock, VirtualTime

PAGE_BYTES = 4 << 10
_OUTSIDE = -1

_Trace = Callable[[FrameType, str, Any], Any]


class Memory:
    """Use: `during`, then `taken`."""

    def __init__(self, time: VirtualTime, clocks: Iterable[NodeClock]) -> None:
        self.taken: Counter[str] = Counter()
        """Bytes by function and line."""
        self._time = time
        self._clocks = frozenset(clocks)
        self._owners = Owners()
        self._level = _OUTSIDE
        """Bytes in use before the instruction under way; `_OUTSIDE` while that is no server's."""

    def during(self, work: Callable[[], object]) -> None:
        """Do the work and count."""
        tracemalloc.start()
        sys.settrace(self._called)
        try:
            work()
        finally:
            sys.settrace(None)
            tracemalloc.stop()

    def _called(self, frame: FrameType, event: str, argument: Any) -> _Trace | None:
        """A function begins."""
        if self._time.running not in self._clocks:
            return None
        self._measure(frame.f_back)
        frame.f_trace_lines = False
        if self._owners.is_server(frame):
            frame.f_trace_opcodes = True
            self._enter()
            return self._server
        self._level = _OUTSIDE
        return self._system

    def _server(self, frame: FrameType, event: str, argument: Any) -> _Trace:
        """An instruction of a server's function is about to begin, or was its last."""
        self._measure(frame)
        if event == "return" and not self._owners.is_server(frame.f_back):
            self._level = _OUTSIDE
        return self._server

    def _system(self, frame: FrameType, event: str, argument: Any) -> _Trace:
        """A function of the simulator ends: whoever called it goes on."""
        if event == "return" and self._owners.is_server(frame.f_back):
            self._enter()
        return self._system

    def _enter(self) -> None:
        tracemalloc.reset_peak()
        self._level = tracemalloc.get_traced_memory()[0]

    def _measure(self, frame: FrameType | None) -> None:
        """Count what was taken since the last look on behalf of a server's frame."""
        if self._level == _OUTSIDE:
            return
        level, peak = tracemalloc.get_traced_memory()
        taken = peak - self._level
        if taken < PAGE_BYTES:
            self._level = level
            tracemalloc.reset_peak()
            return
        assert frame is not None, "taken by nobody"
        module = frame.f_globals.get("__name__")
        self.taken[f"{module}.{frame.f_code.co_qualname}:{frame.f_lineno}"] += taken
        self._enter()
