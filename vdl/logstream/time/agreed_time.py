"""The time on which a majority of the servers' clocks agree.

A server's own wall clock may be decades wrong, be set by days, or have stopped while the machine
slept. Servers send each other their wall clocks in every heartbeat. Each clock is kept as its
*offset* from this server's monotonic clock, which never jumps.

The known clocks (the own, and those of linked servers) give two bounds, with `k` a majority of all
servers of the cluster:

* `low`, the k-th largest: a majority of the clocks has reached it.
* `high`, the k-th smallest: a majority of the clocks has not passed it.

When all clocks are known both are the median, so a wrong minority has no effect. With fewer they
differ, and no time between them can be distinguished from the true one. With fewer than `k` clocks
nothing is known, and the time continues with the monotonic clock.

Two times are derived, because the two kinds of error do not cost the same:

* `now_ms` stamps what is written: commands, records with LogAppendTime. It is moved into [low,
  high] at once, by the least amount needed; at first it is `high`. A stamp that is too new only
  keeps data for longer.
* `settled_ms` is the time to delete by. It follows `high` down at once. It rises only to the least
  value of `low` at all checks of a whole *hold*: clocks of a majority that were set forward
  together, or the only clock of a single server, delete nothing before they have stayed so for a
  hold. At a start nothing is settled, and nothing is old, until a hold has passed.

Hence after any correction, sleep or start both are right within a hold (and a thirtieth of it) of
the moment since which a majority of right clocks is linked.

For a hold after a start, and after each move of more than `AWAY_MS`, `now_ms` is at least the last
time that the cluster noted (`remember`): servers that start in 1970 do not stamp offsets that would
be decades old as soon as their clocks are right. Hence only a time on which a majority agrees is
noted (`is_sure`): if two clocks are days apart and the third server is away, one is wrong, and a
note of it would move the stamps for a hold when all three agree again. And a move forward is noted
at once (`moves_forward`): a server that slept for days may start with a wrong clock next.

A peer's clock counts as the value it sent, at its arrival: too old by the time of transit, never
too new. If the own wall clock runs ahead of the monotonic clock, it was set, or the machine slept:
values received before may be equally old. They are forgotten, and only values that were provably
sent later are taken: heartbeats that echo one of ours from after that moment.

Times: `wall_ms` is milliseconds since 1970, `now_ns` monotonic nanoseconds of this server. Memory
is bounded by the number of servers and `BUCKETS`.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from ids import ServerId
from vdl.clock import MS

GAP = 6
"""Number of parts of a hold without a majority's clocks after which the hold begins anew."""

NOTHING_IS_OLD = 0
"""`settled_ms` while nothing is settled: no timestamp is older."""

STEP_MS = 1_000
"""Gain of the own wall clock between two checks beyond which it was set forward, or the machine
slept."""

JITTER_MS = 5
"""Change of a peer's clock that is ignored as jitter of the transit time."""

AWAY_MS = 60_000
"""Difference beyond which two times do not agree."""

BUCKETS = 60
"""Number of parts into which a hold is divided; it may last longer by one part."""


@dataclass(slots=True)
class _Peer:
    """One linked server's clock: its offset (ms), None until it is received."""

    offset_ms: int | None = None
    since_ns: int = -1
    """Only a heartbeat that echoes one of ours from then or later counts."""


@dataclass(slots=True)
class _Bucket:
    """The least `low` (offset, ms) of a part of the hold that began at `start_ns`."""

    start_ns: int
    low_ms: int


class AgreedTime:
    """The agreed time, as computed by one server."""

    __slots__ = (
        "_best_ms",
        "_bounds",
        "_buckets",
        "_counts_own",
        "_due_ns",
        "_hold_ns",
        "_majority",
        "_noted_ms",
        "_own_ms",
        "_peers",
        "_settled_ms",
        "_since_ns",
        "_sure_ns",
        "moves_forward",
    )

    def __init__(self, servers: int, *, counts_own: bool = True, hold_ms: int) -> None:
        """Create it.

        `servers`: number of servers whose clocks count, which is fixed when the cluster is born: a
        majority of them overlaps with every other majority. `counts_own`: True if this server is
        one of them at first.
        """
        self._counts_own = counts_own
        self._majority = servers // 2 + 1
        self._hold_ns = hold_ms * MS
        self._peers: dict[ServerId, _Peer] = {}
        self._own_ms: int | None = None
        self._best_ms: int | None = None
        """Offset of `now_ms`; None until a majority's clocks were known."""
        self._settled_ms: int | None = None
        """Offset of `settled_ms`. Invariant: not above `high` at the last check."""
        self._bounds: tuple[int, int] | None = None
        """(low, high) of the known clocks. Invariant: the result of `_find_bounds`."""
        self._noted_ms = 0
        self._buckets: deque[_Bucket] = deque()
        self._due_ns = -1
        """End of the newest bucket: while no clock moves, nothing changes before."""
        self._since_ns = 0
        """Start of the evidence in `_buckets`."""
        self._sure_ns: int | None = None
        """Time since when stamps are sure; None before the first check."""
        self.moves_forward = 0
        """Number of times `now_ms` has leapt ahead by more than `AWAY_MS`."""

    # --- inputs -------------------------------------------------------------------------------
    def linked(self, peer: ServerId) -> None:
        """Start a session with a server: values of an earlier one do not count."""
        self._peers[peer] = _Peer()
        self._clocks_changed()

    def unlinked(self, peer: ServerId) -> None:
        """End a session: the server's clock is unknown from now on."""
        self._peers.pop(peer, None)
        self._clocks_changed()

    def count_own(self, counts: bool) -> None:
        """Count the clock of this server from now on, or no more."""
        if counts != self._counts_own:
            self._counts_own = counts
            self._clocks_changed()

    def received(
        self, peer: ServerId, peer_wall_ms: int, echo_ns: int, *, wall_ms: int, now_ns: int
    ) -> None:
        """Take the wall clock in a linked server's heartbeat.

        `echo_ns`: when the newest of our heartbeats was sent that the server had read by then, -1
        for none.
        """
        passed_ms = now_ns // MS
        if self._own_ms is None or not -1 <= wall_ms - passed_ms - self._own_ms <= 1:
            self.look(wall_ms, now_ns)
        known = self._peers.get(peer)
        if known is None or echo_ns < known.since_ns:
            return
        offset_ms = peer_wall_ms - passed_ms
        before = known.offset_ms
        if before is None or not -JITTER_MS <= offset_ms - before <= JITTER_MS:
            known.offset_ms = offset_ms
            self._clocks_changed()
            self.look(wall_ms, now_ns)

    def remember(self, ms: int) -> None:
        """Take the last time that the cluster noted."""
        self._noted_ms = ms

    def look(self, wall_ms: int, now_ns: int) -> None:
        """Check the clocks. Use: many times in each hold."""
        own_ms = wall_ms - now_ns // MS
        if self._own_ms is None:
            self._sure_ns = now_ns + self._hold_ns
            self._own_ms = own_ms
            self._clocks_changed()
        elif not -1 <= own_ms - self._own_ms <= 1:  # beyond rounding
            if own_ms - self._own_ms > STEP_MS:
                self._stepped(own_ms - self._own_ms, now_ns)
            self._own_ms = own_ms
            self._clocks_changed()
        if now_ns < self._due_ns or self._bounds is None:
            return
        low, high = self._bounds
        before = self._best_ms
        self._best_ms = high if before is None else min(max(before, low), high)
        if before is not None and abs(self._best_ms - before) > AWAY_MS:
            self._sure_ns = now_ns + self._hold_ns
            self.moves_forward += self._best_ms > before
        stood = self._stood(low, now_ns)
        if stood is not None and (self._settled_ms is None or self._settled_ms < stood):
            self._settled_ms = stood
        if self._settled_ms is not None and self._settled_ms > high:
            self._settled_ms = high
        self._due_ns = self._buckets[-1].start_ns + max(1, self._hold_ns // BUCKETS)

    def _stepped(self, gained_ms: int, now_ns: int) -> None:
        """Forget peers' clocks, because the own wall clock gained on the monotonic one.

        All others may have gained too: until they report, the stamps follow, as stamps that are too
        new are the smaller error.
        """
        for peer in self._peers.values():
            peer.offset_ms = None
            peer.since_ns = now_ns
        if self._best_ms is not None:
            self._best_ms += gained_ms
            if gained_ms > AWAY_MS:
                self._sure_ns = now_ns + self._hold_ns
                self.moves_forward += 1

    def _clocks_changed(self) -> None:
        """Compute the bounds again, after a change in the known clocks."""
        self._bounds = self._find_bounds()
        self._due_ns = -1

    def _find_bounds(self) -> tuple[int, int] | None:
        """Return (low, high) as offsets, None if fewer than a majority's clocks are known."""
        known = [] if self._own_ms is None or not self._counts_own else [self._own_ms]
        known += [peer.offset_ms for peer in self._peers.values() if peer.offset_ms is not None]
        if len(known) < self._majority:
            return None
        known.sort()
        return known[-self._majority], known[self._majority - 1]

    def _stood(self, low_ms: int, now_ns: int) -> int | None:
        """Return the least `low` of the last hold, now included; None before a whole hold."""
        buckets = self._buckets
        width_ns = max(1, self._hold_ns // BUCKETS)
        if buckets and now_ns - buckets[-1].start_ns > GAP * width_ns:
            buckets.clear()
        while buckets and buckets[0].start_ns + width_ns <= now_ns - self._hold_ns:
            buckets.popleft()
        if not buckets:
            self._since_ns = now_ns
        if buckets and now_ns - buckets[-1].start_ns < width_ns:
            buckets[-1].low_ms = min(buckets[-1].low_ms, low_ms)
        else:
            buckets.append(_Bucket(now_ns, low_ms))
        assert len(buckets) <= BUCKETS + 3, len(buckets)
        if now_ns - self._since_ns < self._hold_ns:
            return None
        return min(bucket.low_ms for bucket in buckets)

    # --- outputs ------------------------------------------------------------------------------
    def now_ms(self, wall_ms: int, now_ns: int) -> int:
        """Return the time to stamp with."""
        passed_ms = now_ns // MS
        own_ms = wall_ms - passed_ms
        if self._own_ms is None or abs(own_ms - self._own_ms) > 1:
            self.look(wall_ms, now_ns)
        best_ms = own_ms if self._best_ms is None else self._best_ms
        if self._sure_ns is None or now_ns < self._sure_ns:
            return max(best_ms + passed_ms, self._noted_ms)
        return best_ms + passed_ms

    def settled_ms(self, now_ns: int) -> int:
        """Return the time to delete by, as of the last check; NOTHING_IS_OLD until there is one."""
        if self._settled_ms is None:
            return NOTHING_IS_OLD
        return max(NOTHING_IS_OLD, self._settled_ms + now_ns // MS)

    @property
    def is_sure(self) -> bool:
        """True if a majority's clocks are known and agree."""
        return self._bounds is not None and self._bounds[1] - self._bounds[0] <= AWAY_MS

    @property
    def ahead_ms(self) -> int:
        """Lead of the own wall clock over `now_ms` at the last check; 0 if unknown."""
        if self._own_ms is None or self._best_ms is None:
            return 0
        return self._own_ms - self._best_ms
