"""Rate at which all readers far behind may be fed together, controlled by the latency of
acknowledgements.

Readers get the capacity that producers leave. No constant describes it: it depends on the machine,
on its other load and on other servers. The latency of acknowledgements does: it contains the turns
of the loop, the journal and the followers.

The mean latency while readers are fed is compared with the latency without readers. It may be
`WORSE_PERCENT` of that, plus `WORSE_NS`. At each look the rate is multiplied by the square root of
(allowed latency / measured latency), by a quarter at most: the smaller the deviation, the smaller
the step, so the rate does not oscillate. It grows only if a reader had to wait for it. It never
falls below the least rate that the caller gives.

The latency without readers is measured while there are none. If there are always some, they pause
for `PAUSE_NS` every `PAUSE_EVERY_NS`. So a disk or a follower that became slow by itself is not
blamed on the readers, and does not hold them up for long. All servers pause at the same moments of
their agreed time: an acknowledgement also waits for other servers' disks, which feed readers of
their own. Otherwise each server would take the latency under the others' readers for the usual one,
and all would drive each other up.

Latencies vary by themselves: on one disk for three servers, one tenth of a second takes twice as
long as the next. So no single look decides what is usual.

The rate is computed only when `look` is called: no timer runs.

Does not depend on who reads, nor on other bounds of a reader.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import isqrt
from typing import Protocol

from vdl.clock import MS

LOOK_NS = 100 * MS
"""Least time between two changes of the rate, or twice the usual latency if that is more: a change
must take effect before the next."""
FEW = 8
"""A look waits for this many acknowledgements before it changes the rate."""
FEW_NS = 500 * MS
"""Longest time that it waits for them."""
STALE_NS = 2_000 * MS
"""After a gap of this length, or a jump of the clock, earlier measurements are discarded."""
WORSE_PERCENT = 225
WORSE_NS = MS // 2
SETTLE_NS = 50 * MS
SETTLE_NS_MAX = 125 * MS
"""Bounds of the time after its last read until a reader has no more effect. The time is twice the
latency of an acknowledgement."""
PAUSE_NS = 250 * MS
PAUSE_EVERY_NS = 10_000 * MS
PAUSE_FIRST_NS = 1_000 * MS
"""Delay of the first pause if the latency without readers was never measured."""
RATE_MAX = 64 << 30
"""Bytes per second. More than any machine feeds; it bounds the number."""
_MANY = 16
"""Acknowledgements that make a full sample."""
_SLOWLY, _FAST = 3, 1
"""Number of times that the step of the usual latency is halved after a full sample: while there are
no readers there are ten samples a second, otherwise one in each pause. The halving is in proportion
(a geometric mean), so that one very long time counts no more than one very short."""
_STEP = 1_000
_STEP_MIN, _STEP_MAX = _STEP * 3 // 4, _STEP * 5 // 4
"""Factor of the rate after a look, in thousandths."""
_LOOKS = 8
"""Looks with readers over which the recent latency is averaged."""


class Acknowledged(Protocol):
    """Acknowledgements of this server since its start: their number and their total latency."""

    requests: int
    total_ns: int


@dataclass(slots=True)
class _Silence:
    """Acknowledgements of a server without producers."""

    requests: int = 0
    total_ns: int = 0


def own_time(now_ns: int) -> int:
    """Return the local time, for servers without an agreed time."""
    return now_ns


class ReadPace:
    """Rate control of one server. Times are of the monotonic clock, in nanoseconds. `agreed_ns`
    converts one to the time on which all servers agree."""

    __slots__ = (
        "_acknowledged", "_agreed_ns", "_began_ns", "_fed_ns", "_is_alone", "_lately_ns",
        "_pause_next_ns", "_requests", "_short_ns", "_total_ns", "pause_end_ns", "rate", "reading",
        "usual_ns",
    )  # fmt: skip

    def __init__(self, agreed_ns: Callable[[int], int] = own_time) -> None:
        self._agreed_ns = agreed_ns
        self._acknowledged: Acknowledged = _Silence()
        self._began_ns = 0
        """Time at which the present look began."""
        self._requests = self._total_ns = 0
        """Values of `_acknowledged` at that time."""
        self._is_alone = True
        """True if the present look measures producers without readers."""
        self._fed_ns = -STALE_NS
        """Time at which a reader was last fed."""
        self._short_ns = -STALE_NS
        """Latest time until which a reader had to wait for the rate."""
        self._pause_next_ns = 0
        self.pause_end_ns = 0
        """No read may begin before."""
        self.usual_ns = 0
        """Latency of an acknowledgement without readers; 0: not known yet."""
        self._lately_ns = 0
        """Mean latency in the last looks with readers."""
        self.reading = 0
        """Reads under way. Use: the caller that increments it decrements it."""
        self.rate = 0
        """Bytes per second for all readers. Use: not less than their least rate."""

    def watch(self, acknowledged: Acknowledged) -> None:
        """Use these acknowledgements from now on."""
        self._acknowledged = acknowledged
        self._begin(self._began_ns)

    def look(self, now_ns: int, least: int, *, is_waited_for: bool) -> int:
        """Return the bytes per second that all readers may be fed now, at least `least`. To be
        called often while producers or readers are active. `is_waited_for`: an acknowledgement is
        outstanding."""
        self.rate = max(self.rate, least)
        if not self._is_alone and now_ns >= self._pause_next_ns:
            self.pause_end_ns = now_ns + PAUSE_NS
            self._pause_next_ns = self._common_pause_ns(now_ns)
        elapsed_ns = now_ns - self._began_ns
        if -LOOK_NS < elapsed_ns < 0:
            pass  # a call that waited for its turn passes the time at which it arrived
        elif not 0 <= elapsed_ns < STALE_NS:
            self._begin(now_ns)
        elif self._is_alone:
            if elapsed_ns >= LOOK_NS:
                self._learn()
                self._begin(now_ns)
        elif self._has_settled(now_ns):
            self._is_alone = True
            self._begin(now_ns)
        elif elapsed_ns >= max(LOOK_NS, min(2 * self.usual_ns, FEW_NS)):
            self._judge(elapsed_ns, now_ns, least, is_waited_for=is_waited_for)
        return self.rate

    def fed(self, now_ns: int) -> None:
        """Note that a reader is fed now, or was until now."""
        if self._is_alone:
            if now_ns - self._began_ns < STALE_NS:
                self._learn()
            is_new = now_ns - self._fed_ns >= STALE_NS
            if is_new:
                self.rate = 0  # other producers may be active by now
            is_unknown = is_new and not self.usual_ns
            self._pause_next_ns = self._common_pause_ns(now_ns)
            if is_unknown:
                self._pause_next_ns = now_ns + PAUSE_FIRST_NS
            self._is_alone = False
            self._begin(now_ns)
        self._fed_ns = max(self._fed_ns, now_ns)

    def short(self, until_ns: int) -> None:
        """Note that the rate makes a reader wait until then."""
        self._short_ns = max(self._short_ns, until_ns)

    def _common_pause_ns(self, now_ns: int) -> int:
        """Return the time of the next common pause, skipping one that is close."""
        until_ns = PAUSE_EVERY_NS - self._agreed_ns(now_ns) % PAUSE_EVERY_NS
        if until_ns < PAUSE_EVERY_NS // 2:
            until_ns += PAUSE_EVERY_NS
        return now_ns + until_ns

    def _has_settled(self, now_ns: int) -> bool:
        """Return True if no reader has an effect any more. A reader that only waits for the rate
        has one. An acknowledgement that began while one was active does not measure
        producers without readers."""
        if self.reading:
            return False
        settle_ns = max(SETTLE_NS, min(2 * self._lately_ns, SETTLE_NS_MAX))
        if now_ns < self.pause_end_ns:
            return now_ns - self._fed_ns >= settle_ns
        return now_ns - max(self._fed_ns, self._short_ns) >= settle_ns

    def _begin(self, now_ns: int) -> None:
        """Begin the next look: count from now on."""
        self._began_ns = now_ns
        self._requests = self._acknowledged.requests
        self._total_ns = self._acknowledged.total_ns

    def _felt(self) -> tuple[int, int]:
        """Return (acknowledgements since the look began, their mean latency)."""
        count = self._acknowledged.requests - self._requests
        return count, (self._acknowledged.total_ns - self._total_ns) // max(1, count)

    def _learn(self) -> None:
        """Update the latency without readers."""
        count, mean_ns = self._felt()
        if not count:
            return
        mean_ns = max(1, mean_ns)
        if self.usual_ns:
            for _ in range(_FAST if self._began_ns < self.pause_end_ns else _SLOWLY):
                mean_ns = isqrt(mean_ns * self.usual_ns)
            self.usual_ns += (mean_ns - self.usual_ns) * min(count, _MANY) // _MANY
        else:
            self.usual_ns = mean_ns
        self._lately_ns = self.usual_ns

    def _judge(self, elapsed_ns: int, now_ns: int, least: int, *, is_waited_for: bool) -> None:
        """Change the rate by the latency that was measured with readers."""
        count, mean_ns = self._felt()
        if count < FEW and elapsed_ns < FEW_NS:
            return
        if count:
            # Without readers it would take no longer: a usual latency of more than twice the recent
            # one is out of date.
            self._lately_ns += (mean_ns - self._lately_ns) // _LOOKS
            if self.usual_ns:
                self.usual_ns = max(1, min(self.usual_ns, 2 * self._lately_ns))
            may_ns = self.usual_ns * WORSE_PERCENT // 100 + WORSE_NS
            step = isqrt(_STEP * _STEP * may_ns // max(1, mean_ns)) if self.usual_ns else _STEP
        else:
            step = _STEP_MIN if is_waited_for else _STEP_MAX
        step = min(max(step, _STEP_MIN), _STEP_MAX)
        if step < _STEP:
            self.rate = max(least, self.rate * step // _STEP)
        elif min(self._short_ns, self._fed_ns) >= self._began_ns:
            self.rate = min(RATE_MAX, self.rate * step // _STEP)
        self._begin(now_ns)
