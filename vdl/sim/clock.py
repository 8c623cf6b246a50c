"""Virtual time: a heap of events, and the clock of each simulated process.

`VirtualTime` drives a simulation: it takes the earliest event, jumps to its time and runs it.
Events at the same time run in the order they were scheduled, so a run is a function of its seed.

`NodeClock` belongs to one run of one process: it implements `vdl.clock.Clock` on the shared heap.
It simulates five effects of a real machine:

* A *stopped* process (killed, or lost to a power cut) never runs again: its events are dropped.
* A *paused* process (SIGSTOP, a stalled virtual machine) runs nothing until it is resumed; the
  events that came due meanwhile run then, in order.
* Its *wall clock* may jump; monotonic time never does.
* Its *monotonic clock* may drift: the process's seconds, and with them its timers, are then a
  little longer or shorter than the world's.
* A process may be *busy*: with a `meter`, everything that runs at one instant is a turn of its
  loop, which takes as long as the meter returns; events that come due meanwhile wait for the next
  turn.

A clock's `watch` is called after each event of its process, and when the same event continues in
another process.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush

FOREVER_NS = 1 << 62
MILLION = 1_000_000
COMPACT_AT = 4096
"""Number of cancelled timers at which the heap is rebuilt without them."""


class SimTimer:
    """One scheduled event. `fn` is None once it ran or was cancelled."""

    __slots__ = ("clock", "fn", "time", "when_ns")

    def __init__(
        self, time: VirtualTime, clock: NodeClock | None, when_ns: int, fn: Callable[[], None]
    ) -> None:
        self.time = time
        self.clock = clock
        self.when_ns = when_ns
        self.fn: Callable[[], None] | None = fn

    def cancel(self) -> None:
        if self.fn is not None:
            self.fn = None
            self.time.cancelled_timer()


class VirtualTime:
    """Event heap shared by all clocks of one world.

    Times are nanoseconds since the world's start.
    """

    __slots__ = ("_cancelled", "_heap", "_sequence", "events", "now_ns", "running")

    def __init__(self) -> None:
        self.now_ns = 0
        self.events = 0
        self.running: NodeClock | None = None
        """Clock of the process whose event runs or ran last; None for the world's own events."""
        self._heap: list[tuple[int, int, SimTimer]] = []
        self._sequence = 0
        self._cancelled = 0

    def after(
        self, delay_ns: int, fn: Callable[[], None], clock: NodeClock | None = None
    ) -> SimTimer:
        """Run `fn` in `delay_ns` (at once if negative), on behalf of `clock` if one is given."""
        when_ns = self.now_ns + max(0, delay_ns)
        timer = SimTimer(self, clock, when_ns, fn)
        self._sequence += 1
        heappush(self._heap, (when_ns, self._sequence, timer))
        return timer

    def step(self, until_ns: int = FOREVER_NS) -> bool:
        """Run the next event due by `until_ns`. Return False if there is none."""
        heap = self._heap
        while heap and heap[0][0] <= until_ns:
            when_ns, _, timer = heappop(heap)
            fn = timer.fn
            if fn is None:
                self._cancelled -= 1
                continue
            assert when_ns >= self.now_ns, (when_ns, self.now_ns)
            clock = timer.clock
            if clock is not None:
                if clock.stopped:
                    continue
                if clock.paused or clock.busy:
                    clock.postpone(timer)
                    continue
            self.now_ns = when_ns
            timer.fn = None
            self.events += 1
            self.running = clock
            fn()
            running = self.running
            if running is not None:
                if running.watch is not None:
                    running.watch()
                if running.meter is not None or running.stall_ns:
                    running.charge()
            return True
        return False

    def enter(self, clock: NodeClock | None) -> None:
        """Run the rest of the current event inside this process; None: outside of any."""
        running = self.running
        if running is not clock:
            if running is not None and running.watch is not None:
                running.watch()
            self.running = clock

    def run_until(self, when_ns: int, stop: Callable[[], bool] | None = None) -> bool:
        """Run events up to `when_ns` and set the time to it.

        Return True if `stop()` ended it earlier.
        """
        while self.step(when_ns):
            if stop is not None and stop():
                return True
        self.now_ns = max(self.now_ns, when_ns)
        return False

    def cancelled_timer(self) -> None:
        """Count a cancelled timer in the heap; remove them when there are many.

        Servers re-arm timers far more often than they let them run. Without this the heap would
        grow with the work done instead of the work waiting.
        """
        self._cancelled += 1
        if self._cancelled >= COMPACT_AT and self._cancelled * 2 >= len(self._heap):
            # In place: `step` may be holding the list.
            self._heap[:] = [item for item in self._heap if item[2].fn is not None]
            heapify(self._heap)
            self._cancelled = 0

    def postponed(self, timers: list[SimTimer]) -> None:
        """Reschedule, in order and due now, events that came due while their process was paused."""
        for timer in timers:
            if timer.fn is None:
                self._cancelled -= 1
                continue
            timer.when_ns = self.now_ns
            self._sequence += 1
            heappush(self._heap, (self.now_ns, self._sequence, timer))


class NodeClock:
    """Clock of one process from its start to its end; a `vdl.clock.Clock`.

    `turn_ns` is the duration of one turn of the process's loop: callbacks of `call_soon` run that
    much later, so that data arriving meanwhile is handled in the same turn, as in a real loop.
    """

    __slots__ = (
        "_in_turn",
        "_offset_ns",
        "_owed_ns",
        "_postponed",
        "_rate_ppm",
        "_time",
        "busy",
        "meter",
        "paused",
        "stall_ns",
        "stopped",
        "turn_ns",
        "wall_base_ms",
        "watch",
    )

    def __init__(
        self,
        time: VirtualTime,
        *,
        wall_base_ms: int = 1_750_000_000_000,
        offset_ns: int = 0,
        turn_ns: int = 20_000,
        drift_ppm: int = 0,
    ) -> None:
        """Create a clock. `drift_ppm`: millionths by which this process's seconds are too short."""
        self._time = time
        self._offset_ns = offset_ns
        self._rate_ppm = MILLION + drift_ppm
        self._postponed: list[SimTimer] = []
        self._in_turn = False
        """True if something of the current turn has run."""
        self._owed_ns = 0
        """Duration of the current turn, as far as it is known."""
        self.busy = False
        """True while a turn takes its time."""
        self.meter: Callable[[], int] | None = None
        """Returns the time in ns for what the process did since the last call; None: turns take no
        time.
        """
        self.stall_ns = 0
        """Extra time of each turn, as if other processes used the machine."""
        self.wall_base_ms = wall_base_ms
        self.turn_ns = turn_ns
        self.paused = False
        self.stopped = False
        self.watch: Callable[[], None] | None = None

    def now_ns(self) -> int:
        rate = self._rate_ppm
        if rate == MILLION:
            return self._time.now_ns + self._offset_ns
        return self._time.now_ns * rate // MILLION + self._offset_ns

    def work_ns(self) -> int:
        """Return `now_ns` plus the duration of the current turn, as far as it is known."""
        if self.meter is not None:
            self._owed_ns += self.meter()
        return self.now_ns() + self._owed_ns

    def wall_ms(self) -> int:
        return self.wall_base_ms + self._time.now_ns // 1_000_000

    def call_later(self, delay_ns: int, fn: Callable[[], None]) -> SimTimer:
        rate = self._rate_ppm
        if rate != MILLION:
            # Rounded up: when a timer runs, its clock must have reached the timer's time.
            delay_ns = delay_ns * MILLION // rate + 1
        return self._time.after(delay_ns, fn, self)

    def call_soon(self, fn: Callable[[], None]) -> None:
        self._time.after(self.turn_ns, fn, self)

    def jump_wall(self, delta_ms: int) -> None:
        """Move the machine's wall clock."""
        self.wall_base_ms += delta_ms

    def pause(self) -> None:
        self.paused = True

    def resume(self) -> None:
        """End the pause and run the events that came due during it, in order."""
        self.paused = False
        self._go_on()

    @property
    def stands(self) -> bool:
        """True if the process runs nothing now."""
        return self.paused or self.busy

    def charge(self) -> None:
        """Charge an event of this process that has just run to the current turn."""
        if self.meter is not None:
            self._owed_ns += self.meter()
        if not self._in_turn and (self._owed_ns or self.stall_ns):
            # After everything else due now, which belongs to the same turn.
            self._in_turn = True
            self._time.after(0, self._turn_over)

    def _turn_over(self) -> None:
        owed_ns, self._owed_ns = self._owed_ns + self.stall_ns, 0
        self._in_turn = False
        if not self.stopped and not self.busy:
            self.busy = True
            self._time.after(owed_ns, self._turn_done)

    def _turn_done(self) -> None:
        self.busy = False
        self._go_on()

    def _go_on(self) -> None:
        if not self.stands:
            postponed, self._postponed = self._postponed, []
            self._time.postponed(postponed)

    def stop(self) -> None:
        """End the process: nothing scheduled on this clock runs again."""
        self.stopped = True
        self._postponed.clear()

    def postpone(self, timer: SimTimer) -> None:
        assert self.stands, timer
        self._postponed.append(timer)
