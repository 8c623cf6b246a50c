"""Event loop of the server: whole turns, and cheap wake-ups from threads.

asyncio queues each callback of a file. A callback scheduled by it with `call_soon` runs only after
all files were polled again. A server does its work at the end of each turn, so a turn would cost
two rounds of the loop, and an answer to a client a third. Here the selector calls the files'
callbacks itself, and the end of the turn follows in the same round. Files of asyncio's own
transports still go through its queue; in a round with such files the end of the turn is queued
behind them.

asyncio wakes its loop from a thread through a socket pair: three system calls. eventfd needs two.

Does not depend on the work of a turn.
"""

from __future__ import annotations

import asyncio
import os
import selectors
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVarTuple

from vdl.clock import Timer

if TYPE_CHECKING:
    from _typeshed import FileDescriptorLike as _File

_Ts = TypeVarTuple("_Ts")

_NS = 1e9
_ROUNDS_MAX = 4
"""Most rounds of callbacks at the end of a turn, each of which may schedule more in the same turn:
requests arrive, are processed and answered, and the answers let a connection's next request
begin."""

_READ, _WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE
_Call = Callable[[], object]


class _Watch:
    """Callbacks of a file. A cleared callback is not called even for an event of this turn that was
    reported before."""

    __slots__ = ("readable", "writable")

    def __init__(self) -> None:
        self.readable: _Call | None = None
        self.writable: _Call | None = None


class _TurnSelector(selectors.EpollSelector):
    """Calls the callbacks of files whose data is a `_Watch`, and reports asyncio's files."""

    def __init__(self, take_turn: Callable[[list[tuple[_Watch, int]], bool], None]) -> None:
        """`take_turn`: called with the ready files, and True if some of asyncio's are ready."""
        super().__init__()
        self._take_turn = take_turn
        self.end: list[tuple[selectors.SelectorKey, int]] = []
        """Event reported behind asyncio's files, in asyncio's own form; set once the loop
        exists."""

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        events = super().select(timeout)
        if not events:
            return events
        ours: list[tuple[_Watch, int]] = []
        theirs: list[tuple[selectors.SelectorKey, int]] = []
        for event in events:
            watch = event[0].data
            if type(watch) is _Watch:
                ours.append((watch, event[1]))
            else:
                theirs.append(event)
        self._take_turn(ours, bool(theirs))
        if not theirs:
            return theirs
        # asyncio expects that nothing happens between this poll and its callbacks. Files that were
        # registered again meanwhile are left for the next poll.
        current = self.get_map()
        return [event for event in theirs if current.get(event[0].fd) is event[0]] + self.end


class TurnLoop(asyncio.SelectorEventLoop):
    """asyncio's own loop, with turns."""

    def __init__(self) -> None:
        self._turn_selector = _TurnSelector(self._take_turn)
        super().__init__(self._turn_selector)
        # A file that asyncio reads from is registered with (reader's handle, writer's handle).
        data = (asyncio.Handle(self._end_turn, (), self), None)
        self._turn_selector.end = [(selectors.SelectorKey(-1, -1, _READ, data), _READ)]
        self._in_turn = False
        """True if the turn's end is still to come."""
        self._at_end: list[Callable[[], None]] = []

    # --- turns -----------------------------------------------------------------------------------
    def at_turn_end(self, fn: Callable[[], None]) -> None:
        """Run `fn` at the end of the turn, after earlier ones; between turns, run it soon."""
        if self._in_turn:
            self._at_end.append(fn)
        else:
            self.call_soon(fn)

    def _take_turn(self, ready: list[tuple[_Watch, int]], goes_on: bool) -> None:
        self._in_turn = True
        for watch, events in ready:
            if events & _READ and watch.readable is not None:
                self._call(watch.readable)
            if events & _WRITE and watch.writable is not None:
                self._call(watch.writable)
        if not goes_on:
            self._end_turn()

    def _end_turn(self) -> None:
        for _ in range(_ROUNDS_MAX):
            if not self._at_end:
                break
            fns, self._at_end = self._at_end, []
            for fn in fns:
                self._call(fn)
        self._in_turn = False
        if self._at_end:  # after the next poll, so that no file starves
            fns, self._at_end = self._at_end, []
            for fn in fns:
                self.call_soon(fn)

    def _call(self, fn: _Call) -> None:
        try:
            fn()
        except Exception as error:  # noqa: BLE001 - as asyncio does for its callbacks
            self.call_exception_handler({"message": "exception in a turn", "exception": error})

    # --- files, as `asyncio.AbstractEventLoop` has it -------------------------------------------
    def add_reader(self, fd: _File, callback: Callable[[*_Ts], Any], *args: *_Ts) -> None:
        if self._is_theirs(fd):
            super().add_reader(fd, callback, *args)
            return
        watch = self._find(fd) or _Watch()
        watch.readable = partial(callback, *args) if args else callback
        self._update(fd, watch)

    def add_writer(self, fd: _File, callback: Callable[[*_Ts], Any], *args: *_Ts) -> None:
        if self._is_theirs(fd):
            super().add_writer(fd, callback, *args)
            return
        watch = self._find(fd) or _Watch()
        watch.writable = partial(callback, *args) if args else callback
        self._update(fd, watch)

    def remove_reader(self, fd: _File) -> bool:
        if self._is_theirs(fd):
            return super().remove_reader(fd)
        watch = self._find(fd)
        if watch is None or watch.readable is None:
            return False
        watch.readable = None
        self._update(fd, watch)
        return True

    def remove_writer(self, fd: _File) -> bool:
        if self._is_theirs(fd):
            return super().remove_writer(fd)
        watch = self._find(fd)
        if watch is None or watch.writable is None:
            return False
        watch.writable = None
        self._update(fd, watch)
        return True

    def _is_theirs(self, file: _File) -> bool:
        """Return True if asyncio has registered the file itself: `sock_connect` and similar methods
        do, and unregister it through the methods above. After `close` asyncio refuses all
        files."""
        if self.is_closed():
            return True
        key = self._turn_selector.get_map().get(file)
        return key is not None and type(key.data) is not _Watch

    def _find(self, file: _File) -> _Watch | None:
        key = self._turn_selector.get_map().get(file)
        return None if key is None else key.data

    def _update(self, file: _File, watch: _Watch) -> None:
        """Register the file for the events that have a callback."""
        selector = self._turn_selector
        events = (_READ if watch.readable else 0) | (_WRITE if watch.writable else 0)
        if not events:
            selector.unregister(file)
        elif file in selector.get_map():
            selector.modify(file, events, watch)
        else:
            selector.register(file, events, watch)


class LoopClock:
    """`vdl.clock.Clock` over a loop."""

    __slots__ = ("_loop",)

    def __init__(self, loop: TurnLoop) -> None:
        self._loop = loop

    def now_ns(self) -> int:
        return time.monotonic_ns()

    work_ns = now_ns

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def call_later(self, delay_ns: int, fn: Callable[[], None]) -> Timer:
        return self._loop.call_later(delay_ns / _NS, fn)

    def call_soon(self, fn: Callable[[], None]) -> None:
        self._loop.at_turn_end(fn)


class Doorbell:
    """Runs calls from threads on the loop."""

    __slots__ = ("_calls", "_file")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._calls: deque[tuple[Callable[[Any], None], Any]] = deque()
        self._file = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        loop.add_reader(self._file, self._answer)

    def ring(self, fn: Callable[[Any], None], argument: object) -> None:
        """Run `fn(argument)` on the loop, calls of one thread in order. From any thread."""
        self._calls.append((fn, argument))
        os.eventfd_write(self._file, 1)

    def _answer(self) -> None:
        os.eventfd_read(self._file)
        calls = self._calls
        left = len(calls)  # later calls ring again
        try:
            while left:
                left -= 1
                fn, argument = calls.popleft()
                fn(argument)
        finally:
            if left:  # a call failed
                os.eventfd_write(self._file, 1)
