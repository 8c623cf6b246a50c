"""Shares of the loop: a principal that uses most of it leaves time in which it is idle.

A fair queue alone is not enough where one principal always has requests: the loop is then never
idle, and a record, which passes through it some five times on three servers, waits each time for
what is being done. So requests of a principal *over its share* wait in a line of their own, and the
loop is free for others in the rest of the time.

A principal is over its share if it used more than `share` of the loop's time lately, and more
than twice as much as all others together, while others used some. One that is alone never is, nor
are several that use the same. Produce, and Fetch of the usual size, are never held back: records
that arrive together are cheap together, and they have budgets of their own.

The time is that of handlers, of answers that are built, and a nanosecond for each byte received.

Does not depend on requests, answers or sockets.
"""

from __future__ import annotations

from typing import Protocol
from weakref import WeakValueDictionary

from vdl.clock import MS, Clock

LOOK_NS = 250 * MS
"""Time between two judgements. Older use counts half as much at each."""
OTHERS_TIMES = 2
FORGOTTEN_NS = MS // 50
"""Use below which a principal counts as absent."""
SLICE_NS = 1 * MS
"""Time for requests of principals over their share, before the loop looks at all sockets again. At
least one starts."""
USUAL_FETCH_BYTES = 4 << 10


class LoopUse:
    """Time of the loop that one principal has used."""

    __slots__ = ("__weakref__", "is_noted", "is_over", "used_ns")

    def __init__(self) -> None:
        self.used_ns = 0
        self.is_noted = False
        """True while `LoopShares` judges it."""
        self.is_over = False
        """True if the principal is over its share."""


class LoopShares:
    """Use of the loop by principal."""

    __slots__ = ("_by_asker", "_noted", "_share", "_window_began_ns", "_window_ns", "looks_ns")

    def __init__(self, share: float) -> None:
        """`share`: part of the loop's time that one principal may use beside others; 1: all."""
        self._share = share
        self._by_asker: WeakValueDictionary[str, LoopUse] = WeakValueDictionary()
        """Those of open connections, and those that are noted."""
        self._noted: list[LoopUse] = []
        """Principals with some use lately."""
        self._window_ns = self._window_began_ns = 0
        self.looks_ns = 0
        """Time from which `look` should be called."""

    def of(self, asker: str) -> LoopUse:
        """Return the use of a principal."""
        use = self._by_asker.get(asker)
        if use is None:
            use = self._by_asker[asker] = LoopUse()
        return use

    def note(self, use: LoopUse) -> None:
        """Judge a principal from now on, because it uses the loop."""
        use.is_noted = True
        self._noted.append(use)

    def look(self, now_ns: int) -> None:
        """Judge all principals."""
        self.looks_ns = now_ns + LOOK_NS
        self._window_ns += now_ns - self._window_began_ns
        self._window_began_ns = now_ns
        total_ns = sum(use.used_ns for use in self._noted)
        kept = []
        for use in self._noted:
            used_ns = use.used_ns
            others_ns = total_ns - used_ns
            # One that is over is held to its share, so it stays over until it needs half of that.
            limit = self._share / 2 if use.is_over else self._share
            use.is_over = (
                self._share < 1
                and others_ns > 0
                and used_ns > OTHERS_TIMES * others_ns
                and used_ns > limit * self._window_ns
            )
            use.used_ns = used_ns // 2
            if use.is_over or use.used_ns > FORGOTTEN_NS:
                kept.append(use)
            else:
                use.used_ns, use.is_noted = 0, False
        self._noted = kept
        self._window_ns //= 2


class Waiting(Protocol):
    """A connection as `RestingLine` uses it."""

    def resume_starting(self) -> None:
        """Start a request: it is this one's turn."""


class RestingLine:
    """Connections of principals over their share. Each starts one request at a time, in turn."""

    __slots__ = ("_clock", "_is_armed", "_rest", "_rests_until_ns", "_served", "_waiting")

    def __init__(self, clock: Clock, share: float) -> None:
        """`share`: part of the loop's time that all in the line use at most; above 0."""
        self._clock = clock
        self._rest = 1 / share - 1
        self._waiting: dict[Waiting, None] = {}
        self._served: Waiting | None = None
        """The connection whose turn it is, until its request starts."""
        self._is_armed = False
        self._rests_until_ns = 0

    def __len__(self) -> int:
        """Return the number of waiting connections."""
        return len(self._waiting)

    def may_start(self, one: Waiting) -> bool:
        """Return True if a request may start now.

        If not, `resume_starting` is called in a later turn.
        """
        if one is self._served:
            self._served = None
            return True
        self._waiting[one] = None
        if not self._is_armed:
            self._arm(self._clock.now_ns())
        return False

    def leave(self, one: Waiting) -> None:
        """Remove a waiting connection."""
        self._waiting.pop(one, None)

    def _arm(self, now_ns: int) -> None:
        self._is_armed = True
        self._clock.call_later(max(self._rests_until_ns - now_ns, 1), self._next_slice)

    def _next_slice(self) -> None:
        self._is_armed = False
        began_ns = now_ns = self._clock.now_ns()
        while self._waiting and now_ns - began_ns < SLICE_NS:
            one = next(iter(self._waiting))
            del self._waiting[one]
            self._served = one
            one.resume_starting()
            now_ns = self._clock.now_ns()
        self._served = None
        self._rests_until_ns = now_ns + round(self._rest * (now_ns - began_ns))
        if self._waiting and not self._is_armed:
            self._arm(now_ns)
