"""The event loop as a server wants it: whole turns, and threads that are heard cheaply.

asyncio runs what a callback asks for with `call_soon` only after it has looked at all sockets
again. A server does its work at the end of each turn, so each would cost two rounds of the loop,
and each answer to a client a third. Here the end of a turn is an event of its own: the selector
adds it behind those that are ready, asyncio runs it behind their callbacks, in the same round.

asyncio also wakes its loop for a thread by a socket pair, which takes three system calls. Linux has
eventfd for that, which takes two.

Must not know: what is done in a turn.
"""

from __future__ import annotations

import asyncio
import os
import selectors
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from vdl.clock import Timer

_NS = 1e9
_ROUNDS_MAX = 4
"""How often what is done at the end of a turn may ask for more in the same turn: work comes, is
done, is answered, and the answers let the next request of a connection begin."""

_Events = list[tuple[selectors.SelectorKey, int]]


class _TurnSelector(selectors.EpollSelector):
    """Reports one more event whenever any is ready: the turn's end, for asyncio to call."""

    def __init__(self) -> None:
        super().__init__()
        self.end: _Events = []
        """What is reported besides; in asyncio's form, set once its loop is there."""
        self.in_turn = False
        """Whether the turn's end is still to come."""

    def select(self, timeout: float | None = None) -> _Events:
        events = super().select(timeout)
        if events:
            events += self.end
            self.in_turn = True
        return events


class TurnLoop(asyncio.SelectorEventLoop):
    """asyncio's own loop, with turns."""

    def __init__(self) -> None:
        self._turn_selector = _TurnSelector()
        super().__init__(self._turn_selector)
        # A file that asyncio reads from is registered with (reader's handle, writer's handle).
        data = (asyncio.Handle(self._end_turn, (), self), None)
        key = selectors.SelectorKey(-1, -1, selectors.EVENT_READ, data)
        self._turn_selector.end = [(key, selectors.EVENT_READ)]
        self._at_end: list[Callable[[], None]] = []

    def at_turn_end(self, fn: Callable[[], None]) -> None:
        """Run `fn` at the end of the turn, with what it asks for in turn; soon, between turns."""
        if self._turn_selector.in_turn:
            self._at_end.append(fn)
        else:
            self.call_soon(fn)

    def _end_turn(self) -> None:
        try:
            for _ in range(_ROUNDS_MAX):
                if not self._at_end:
                    break
                for fn in self._take():
                    fn()
        finally:
            self._turn_selector.in_turn = False
            for fn in self._take():  # after a look at the sockets, so that nobody starves
                self.call_soon(fn)

    def _take(self) -> list[Callable[[], None]]:
        taken, self._at_end = self._at_end, []
        return taken


class LoopClock:
    """`vdl.clock.Clock` over a loop."""

    __slots__ = ("_loop",)

    def __init__(self, loop: TurnLoop) -> None:
        self._loop = loop

    def now_ns(self) -> int:
        return time.monotonic_ns()

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def call_later(self, delay_ns: int, fn: Callable[[], None]) -> Timer:
        return self._loop.call_later(delay_ns / _NS, fn)

    def call_soon(self, fn: Callable[[], None]) -> None:
        self._loop.at_turn_end(fn)


class Doorbell:
    """How threads have something run on the loop."""

    __slots__ = ("_calls", "_file", "_loop")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._calls: deque[tuple[Callable[[Any], None], Any]] = deque()
        self._file = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        loop.add_reader(self._file, self._answer)

    def ring(self, fn: Callable[[Any], None], argument: object) -> None:
        """Have `fn(argument)` run on the loop, calls of one thread in order. From any thread."""
        self._calls.append((fn, argument))
        os.eventfd_write(self._file, 1)

    def _answer(self) -> None:
        os.eventfd_read(self._file)
        calls = self._calls
        for _ in range(len(calls)):  # what comes meanwhile rings again
            fn, argument = calls.popleft()
            fn(argument)
