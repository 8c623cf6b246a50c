"""How fast all readers far behind may be fed together, by what producers feel of it.

Readers take what producers leave. How much that is no constant says: it depends on the machine, on
what else runs there, on other servers. What producers feel says it: how long their acknowledgements
take, which contains the turns of the loop, the journal and the followers.

So the mean time of an acknowledgement while readers are fed is compared with what it is without
them. It may be `WORSE_PERCENT` of that and `WORSE_NS` more. The rate changes with each look by the
root of how far it is from there, by a quarter at the most: the closer, the less, so it does not
swing. It grows only where a reader had to wait for it. It never falls below what readers are to get
in any case, which the caller says.

What it is without readers is measured while there are none. Where there are always some, they pause
for `PAUSE_NS` every `PAUSE_EVERY_NS`. So a disk or a follower that became slow by itself is not
taken for their doing, and does not hold them up for long. All servers pause at the same moments of
the time they agree on: an acknowledgement waits for others' disks, too, and those feed readers of
their own. Each would take for usual what it takes beside them, and all would drive each other.

Such times vary by themselves: on one disk for three servers, one tenth of a second takes twice as
long as the next. So no single look decides what is usual.

It looks only when it is called: no timer runs for it.

Must not know: who reads, what else bounds a reader.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import isqrt
from typing import Protocol

from vdl.clock import MS

LOOK_NS = 100 * MS
"""The least time between two changes of the rate. Twice as long as an acknowledgement usually takes
if that is more: a change must be felt before the next."""
FEW = 8
"""Fewer acknowledgements tell nothing yet,"""
FEW_NS = 500 * MS
"""unless no more come in this time."""
STALE_NS = 2_000 * MS
"""After a gap of this length, or a clock that jumped, what came before is not counted."""
WORSE_PERCENT = 225
WORSE_NS = MS // 2
SETTLE_NS = 50 * MS
SETTLE_NS_MAX = 125 * MS
"""So long after its last read a reader is not felt any more: twice what an acknowledgement takes,
but within these two."""
PAUSE_NS = 250 * MS
PAUSE_EVERY_NS = 10_000 * MS
PAUSE_FIRST_NS = 1_000 * MS
"""The first pause comes so soon where it was never measured what it is without readers."""
RATE_MAX = 64 << 30
"""A second. No machine feeds that; it bounds the number."""
_MANY = 16
"""So many acknowledgements are a whole sample."""
_SLOWLY, _FAST = 3, 1
"""How often the way is halved that the usual time moves with a whole sample: while nobody reads
there are ten a second, else one in a pause. It is halved in proportion (a geometric mean), so that
one very long time counts no more than one very short."""
_STEP = 1_000
_STEP_MIN, _STEP_MAX = _STEP * 3 // 4, _STEP * 5 // 4
"""What the rate is multiplied with after a look, in thousandths."""
_LOOKS = 8
"""Of so many looks beside readers the mean says what it takes lately."""


class Acknowledged(Protocol):
    """Acknowledgements of this server since its start: how many, and how long they took in all."""

    requests: int
    total_ns: int


@dataclass(slots=True)
class _Silence:
    """Of a server that nobody produces to."""

    requests: int = 0
    total_ns: int = 0


def own_time(now_ns: int) -> int:
    """What servers agree on where there is one."""
    return now_ns


class ReadPace:
    """The pace of one server. Times are of the monotonic clock, in nanoseconds. `agreed_ns`: what
    that is in the time on which all servers agree."""

    __slots__ = (
        "_acknowledged", "_agreed_ns", "_began_ns", "_fed_ns", "_is_alone", "_lately_ns",
        "_pause_next_ns", "_requests", "_short_ns", "_total_ns", "pause_end_ns", "rate", "reading",
        "usual_ns",
    )  # fmt: skip

    def __init__(self, agreed_ns: Callable[[int], int] = own_time) -> None:
        self._agreed_ns = agreed_ns
        self._acknowledged: Acknowledged = _Silence()
        self._began_ns = 0
        """When the present look began."""
        self._requests = self._total_ns = 0
        """What was acknowledged by then."""
        self._is_alone = True
        """Whether what is counted since then is to tell of producers without readers."""
        self._fed_ns = -STALE_NS
        """When a reader was fed last."""
        self._short_ns = -STALE_NS
        """Until when a reader had to wait for the rate, at the latest."""
        self._pause_next_ns = 0
        self.pause_end_ns = 0
        """No read may begin before."""
        self.usual_ns = 0
        """What an acknowledgement takes without readers; 0: not known yet."""
        self._lately_ns = 0
        """What it took in the last looks beside readers, on average."""
        self.reading = 0
        """Reads under way. Use: whoever begins one ends it."""
        self.rate = 0
        """Bytes a second for all readers. Use: not less than what they are to get in any case."""

    def watch(self, acknowledged: Acknowledged) -> None:
        """Go by these from now on."""
        self._acknowledged = acknowledged
        self._begin(self._began_ns)

    def look(self, now_ns: int, least: int, *, is_waited_for: bool) -> int:
        """Bytes a second that all readers may be fed now, at least `least`. To be called often
        while producers or readers are at work. `is_waited_for`: some acknowledgement is."""
        self.rate = max(self.rate, least)
        if not self._is_alone and now_ns >= self._pause_next_ns:
            self.pause_end_ns = now_ns + PAUSE_NS
            self._pause_next_ns = self._common_pause_ns(now_ns)
        elapsed_ns = now_ns - self._began_ns
        if -LOOK_NS < elapsed_ns < 0:
            pass  # what had to wait for its turn says when it came
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
        """A reader is fed now, or was until now."""
        if self._is_alone:
            if now_ns - self._began_ns < STALE_NS:
                self._learn()
            is_new = now_ns - self._fed_ns >= STALE_NS
            if is_new:
                self.rate = 0  # other producers may be at work by now
            is_unknown = is_new and not self.usual_ns
            self._pause_next_ns = self._common_pause_ns(now_ns)
            if is_unknown:
                self._pause_next_ns = now_ns + PAUSE_FIRST_NS
            self._is_alone = False
            self._begin(now_ns)
        self._fed_ns = max(self._fed_ns, now_ns)

    def short(self, until_ns: int) -> None:
        """The rate makes a reader wait until then."""
        self._short_ns = max(self._short_ns, until_ns)

    def _common_pause_ns(self, now_ns: int) -> int:
        """When all pause next, but for one that is close."""
        until_ns = PAUSE_EVERY_NS - self._agreed_ns(now_ns) % PAUSE_EVERY_NS
        if until_ns < PAUSE_EVERY_NS // 2:
            until_ns += PAUSE_EVERY_NS
        return now_ns + until_ns

    def _has_settled(self, now_ns: int) -> bool:
        """Whether no reader is felt any more. One that only waits for the rate is. Nor may an
        acknowledgement that began beside one tell of producers without."""
        if self.reading:
            return False
        settle_ns = max(SETTLE_NS, min(2 * self._lately_ns, SETTLE_NS_MAX))
        if now_ns < self.pause_end_ns:
            return now_ns - self._fed_ns >= settle_ns
        return now_ns - max(self._fed_ns, self._short_ns) >= settle_ns

    def _begin(self, now_ns: int) -> None:
        """What is counted from now on is looked at next."""
        self._began_ns = now_ns
        self._requests = self._acknowledged.requests
        self._total_ns = self._acknowledged.total_ns

    def _felt(self) -> tuple[int, int]:
        """(acknowledgements since the look began, their mean time)"""
        count = self._acknowledged.requests - self._requests
        return count, (self._acknowledged.total_ns - self._total_ns) // max(1, count)

    def _learn(self) -> None:
        """Note what an acknowledgement takes without readers."""
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
        """Change the rate by what was felt beside readers."""
        count, mean_ns = self._felt()
        if count < FEW and elapsed_ns < FEW_NS:
            return
        if count:
            # Without readers it would take no longer: a usual time of more than twice what it takes
            # lately is out of date.
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
