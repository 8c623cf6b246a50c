"""Counter of the memory that servers allocate in pieces of a page or more, which detects copies.

A copy of a batch is a new object of the batch's size, or fills a buffer that was new once. So each
received, staged or forwarded byte is counted as often as DESIGN allows, and an additional copy is
visible. Between any two instructions of a server's code the interpreter's own account
(`tracemalloc`) is read: the amount by which the peak in between exceeds the previous level is
attributed to that instruction, also if the next one frees it. Sizes are those requested, so that
they are the same on each machine.

A piece's size is exact to some hundred bytes, which are the counter's own and always the same.
Copies into existing memory (an assigned slice) are not counted, nor are allocations below a page;
growing a list or a buffer in place counts by its growth. Allocations of the simulator, which copies
in place of kernel and disk, are not counted.

Every instruction is a callback: this is some twenty times slower.

Does not depend on the workload.
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
    """Memory counter: run `during`, then read `taken`."""

    def __init__(self, time: VirtualTime, clocks: Iterable[NodeClock]) -> None:
        self.taken: Counter[str] = Counter()
        """Bytes by function and line."""
        self._time = time
        self._clocks = frozenset(clocks)
        self._owners = Owners()
        self._level = _OUTSIDE
        """Bytes in use before the current instruction; `_OUTSIDE` while that is not a server's."""

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
        """Handle the start of a function."""
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
        """Handle a server's instruction that is about to begin, or that was its function's last."""
        self._measure(frame)
        if event == "return" and not self._owners.is_server(frame.f_back):
            self._level = _OUTSIDE
        return self._server

    def _system(self, frame: FrameType, event: str, argument: Any) -> _Trace:
        """Handle the end of a simulator's function: its caller continues."""
        if event == "return" and self._owners.is_server(frame.f_back):
            self._enter()
        return self._system

    def _enter(self) -> None:
        tracemalloc.reset_peak()
        self._level = tracemalloc.get_traced_memory()[0]

    def _measure(self, frame: FrameType | None) -> None:
        """Count the memory allocated since the last measurement for a server's frame."""
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
