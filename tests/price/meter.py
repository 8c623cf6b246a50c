"""Cost of a request in a server that runs in this process.

A turn of the loop is the work of its thread between two polls of its files. It is measured in
processor time, so that other programs on the machine do not count. The time of other threads is
that of the process without the loop's thread and the client's.

Does not depend on the request.
"""

from __future__ import annotations

import selectors
import time
import tracemalloc
from dataclasses import dataclass


@dataclass(slots=True)
class Reading:
    turn_ms: float
    """Longest turn of the loop."""
    loop_ms: float
    threads_ms: float
    held_bytes: int = 0
    """Peak of allocated memory above the initial level; 0: not counted."""


class Meter:
    """Meter of a request's cost.

    Call `watch` in the thread of the loop, before it runs; in the client's thread `begin`, then
    `reading`.
    """

    def __init__(self) -> None:
        self._turn_began = 0
        self._longest = self._sum = 0
        self._process_began = self._client_began = 0
        self._held_before = 0

    def watch(self) -> None:
        """Measure the turns of the loops of this process: there is one."""
        look = selectors.EpollSelector.select

        def select(
            selector: selectors.EpollSelector, timeout: float | None = None
        ) -> list[tuple[selectors.SelectorKey, int]]:
            used = time.thread_time_ns() - self._turn_began
            self._sum += used
            self._longest = max(self._longest, used)
            try:
                return look(selector, timeout)
            finally:
                self._turn_began = time.thread_time_ns()

        selectors.EpollSelector.select = select  # type: ignore[method-assign]

    def begin(self) -> None:
        self._longest = self._sum = 0
        self._process_began = time.process_time_ns()
        self._client_began = time.thread_time_ns()
        if tracemalloc.is_tracing():
            tracemalloc.reset_peak()
            self._held_before = tracemalloc.get_traced_memory()[0]

    def reading(self) -> Reading:
        """Return the costs since `begin`."""
        loop, longest = self._sum, self._longest
        client = time.thread_time_ns() - self._client_began
        process = time.process_time_ns() - self._process_began
        held = 0
        if tracemalloc.is_tracing():
            held = tracemalloc.get_traced_memory()[1] - self._held_before
        return Reading(longest / 1e6, loop / 1e6, max(0, process - client - loop) / 1e6, held)
