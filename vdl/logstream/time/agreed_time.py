"""What time it is, as far as a majority of the servers' clocks agree.

A server's own wall clock may be decades wrong, be set by days, or have stood while the machine
slept. Servers tell one another their wall clocks at every heartbeat. Each clock is kept as its
*offset* from this server's monotonic clock, which never jumps.

Of the clocks that are known now (the own, and those of linked servers) two bounds follow, with
`k` a majority of all servers of the cluster:

* `low`, the k-th largest: a majority of the clocks has reached it.
* `high`, the k-th smallest: a majority of the clocks has not passed it.

When all clocks are known both are the median, so a wrong minority moves nothing. With fewer they
lie apart, and a time between them cannot be told from the truth. With fewer than `k` clocks nothing
is known, and the time goes on with the monotonic clock.

Two times come of that, because the two mistakes do not cost the same:

* `now_ms` stamps what is written: commands, records with LogAppendTime. It is moved into
  [low, high] at once, by the least that is needed; at first it is `high`. A stamp that is too new
  only keeps something for longer.
* `settled_ms` is what deletes. It follows `high` down at once. It rises only to what `low` has been
  at every look for a whole *hold*: a majority's clocks that were set forward together, or the only
  clock of a server alone, delete nothing before they have stood for so long. At a start nothing is
  settled, and nothing is old, until a hold has passed.

Hence after any correction, sleep or start both are right within a hold (and a thirtieth of it) of
the moment since which a majority of right clocks is linked.

For a hold after a start, and after each move of more than `AWAY_MS`, `now_ms` is at least what the
cluster has noted of earlier times (`remember`): servers that start in 1970 do not stamp offsets
that would be decades old as soon as their clocks are right. Hence only what a majority agrees on is
noted (`is_sure`): of two clocks that are days apart beside a server that is away, one is wrong, and
a note of it would move the stamps for a hold when all three agree again. And a move forward is
noted at once (`moves_forward`): who slept for days may start with a wrong clock next.

A peer's clock counts as what it told, when that arrived: too old by its way, never too new. If the
own wall clock runs ahead of the monotonic clock, it was set, or the machine slept: what was told
before is perhaps as old. It is forgotten, and only what provably was said later is taken:
heartbeats that echo one of ours from after that moment.

Times: `wall_ms` is milliseconds since 1970, `now_ns` monotonic nanoseconds of this server. Memory
is bounded by the number of servers and `BUCKETS`.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from ids import ServerId
from vdl.clock import MS

GAP = 6
"""So many parts of a hold without a majority's clocks, and it begins anew."""

NOTHING_IS_OLD = 0
"""`settled_ms` while nothing is settled: no timestamp is older."""

STEP_MS = 1_000
"""The own wall clock was set forward, or the machine slept, if it gained more between two looks."""

JITTER_MS = 5
"""A peer's clock that moved by less did not: the older word took a shorter way."""

AWAY_MS = 60_000
"""Two times farther apart do not agree."""

BUCKETS = 60
"""A hold is looked back upon in so many parts: so much of it is what it may last longer."""


@dataclass(slots=True)
class _Peer:
    """One linked server's clock: its offset (ms), None until it is told."""

    offset_ms: int | None = None
    since_ns: int = -1
    """Only a heartbeat that echoes one of ours from then or later counts."""


@dataclass(slots=True)
class _Bucket:
    """The least `low` (offset, ms) of a part of the hold that began at `start_ns`."""

    start_ns: int
    low_ms: int


class AgreedTime:
    """See the module."""

    __slots__ = (
        "_best_ms",
        "_bounds",
        "_buckets",
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

    def __init__(self, servers: int, *, hold_ms: int) -> None:
        """`servers`: how many the cluster has, this one included."""
        self._majority = servers // 2 + 1
        self._hold_ns = hold_ms * MS
        self._peers: dict[ServerId, _Peer] = {}
        self._own_ms: int | None = None
        self._best_ms: int | None = None
        """Offset of `now_ms`; None until a majority's clocks were known."""
        self._settled_ms: int | None = None
        """Offset of `settled_ms`. Invariant: not above `high` at the last look."""
        self._bounds: tuple[int, int] | None = None
        """(low, high) of the clocks that are known. Invariant: what `_find_bounds` finds."""
        self._noted_ms = 0
        self._buckets: deque[_Bucket] = deque()
        self._due_ns = -1
        """While no clock moves there is nothing to see before: the end of the newest bucket."""
        self._since_ns = 0
        """When the evidence in `_buckets` began."""
        self._sure_ns: int | None = None
        """Since when stamps are sure; None before the first look."""
        self.moves_forward = 0
        """How often `now_ms` has leapt ahead by more than `AWAY_MS`."""

    # --- what is learned ----------------------------------------------------------------------
    def linked(self, peer: ServerId) -> None:
        """A new session: what the server told in another one does not count."""
        self._peers[peer] = _Peer()
        self._clocks_changed()

    def unlinked(self, peer: ServerId) -> None:
        """Nobody knows what its clock does now."""
        self._peers.pop(peer, None)
        self._clocks_changed()

    def received(
        self, peer: ServerId, peer_wall_ms: int, echo_ns: int, *, wall_ms: int, now_ns: int
    ) -> None:
        """A linked server's heartbeat said what time it is there. `echo_ns`: when the newest of our
        heartbeats was sent that it had read by then, -1 for none."""
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
        """What the cluster noted last as its time."""
        self._noted_ms = ms

    def look(self, wall_ms: int, now_ns: int) -> None:
        """See what the clocks say now. To be called many times in each hold."""
        own_ms = wall_ms - now_ns // MS
        if self._own_ms is None:
            self._sure_ns = now_ns + self._hold_ns
            self._own_ms = own_ms
            self._clocks_changed()
        elif not -1 <= own_ms - self._own_ms <= 1:  # beyond what rounding does
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
        """The own wall clock gained on the monotonic one. Perhaps all others did: until they tell,
        the stamps follow, for too new is the smaller mistake."""
        for peer in self._peers.values():
            peer.offset_ms = None
            peer.since_ns = now_ns
        if self._best_ms is not None:
            self._best_ms += gained_ms
            if gained_ms > AWAY_MS:
                self._sure_ns = now_ns + self._hold_ns
                self.moves_forward += 1

    def _clocks_changed(self) -> None:
        """Another clock is known, or one less, or one moved: what follows from them does, too."""
        self._bounds = self._find_bounds()
        self._due_ns = -1

    def _find_bounds(self) -> tuple[int, int] | None:
        """(low, high) as offsets, None when fewer than a majority's clocks are known."""
        known = [] if self._own_ms is None else [self._own_ms]
        known += [peer.offset_ms for peer in self._peers.values() if peer.offset_ms is not None]
        if len(known) < self._majority:
            return None
        known.sort()
        return known[-self._majority], known[self._majority - 1]

    def _stood(self, low_ms: int, now_ns: int) -> int | None:
        """The least `low` of the last hold, this one included; None until there is a whole one."""
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

    # --- what time it is ----------------------------------------------------------------------
    def now_ms(self, wall_ms: int, now_ns: int) -> int:
        """The time to stamp with."""
        passed_ms = now_ns // MS
        own_ms = wall_ms - passed_ms
        if self._own_ms is None or abs(own_ms - self._own_ms) > 1:
            self.look(wall_ms, now_ns)
        best_ms = own_ms if self._best_ms is None else self._best_ms
        if self._sure_ns is None or now_ns < self._sure_ns:
            return max(best_ms + passed_ms, self._noted_ms)
        return best_ms + passed_ms

    def settled_ms(self, now_ns: int) -> int:
        """The time to delete by, as of the last look; NOTHING_IS_OLD until there is one."""
        if self._settled_ms is None:
            return NOTHING_IS_OLD
        return max(NOTHING_IS_OLD, self._settled_ms + now_ns // MS)

    @property
    def is_sure(self) -> bool:
        """Whether a majority's clocks are known and agree."""
        return self._bounds is not None and self._bounds[1] - self._bounds[0] <= AWAY_MS

    @property
    def ahead_ms(self) -> int:
        """How far the own wall clock was ahead of `now_ms` at the last look; 0 while nobody knows
        better."""
        if self._own_ms is None or self._best_ms is None:
            return 0
        return self._own_ms - self._best_ms
