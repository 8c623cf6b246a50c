"""Session deadlines of group members.

For the leader of a coordinator. It only reports whose session ended; the state machine decides.

Rules:

* A member has one entry in the queue, however often it is renewed. To renew costs a dictionary
  entry.
* After a stall of this server every member gets a whole period: the clients were not at fault.
* An ended session is reported again every `RETRY_NS` until `end` is called: the command may have
  been lost.

Does not depend on kinds of groups or on commands.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from heapq import heapify, heappop, heappush

from vdl.clock import MS, Clock, Timer

RETRY_NS = 500 * MS
STALL_NS = 1_000 * MS
"""A timer this late means that the server was stalled, not that clients were silent."""

ENDED_MAX = 100
"""Queue entries of members that were removed are kept up to the number of members and this many
more: a client chooses its rebalance timeout, which may be weeks."""

_Key = tuple[str, str]
"""(group id, member id)."""


class MemberSessions:
    """Deadlines of members, with one timer: see the module."""

    __slots__ = ("_clock", "_due", "_members", "_over", "_queue", "_timer", "_timer_ns")

    def __init__(self, clock: Clock, over: Callable[[str, list[str]], None]) -> None:
        """`over`: called with (group, members whose session ended)."""
        self._clock = clock
        self._over = over
        self._members: dict[str, set[str]] = {}
        """By group, the members in `_due`."""
        self._due: dict[_Key, tuple[int, int]] = {}
        """End of the session, and the whole period (both ns)."""
        self._queue: list[tuple[int, _Key]] = []
        """(time no later than the end of the session, member). May still contain a member that was
        removed."""
        self._timer: Timer | None = None
        self._timer_ns = 0

    def __len__(self) -> int:
        return len(self._due)

    def __contains__(self, key: _Key) -> bool:
        return key in self._due

    def renew(self, group_id: str, member_id: str, period_ms: int) -> None:
        """Give the member a whole period from now on."""
        key = group_id, member_id
        period_ns = period_ms * MS
        due_ns = self._clock.now_ns() + period_ns
        before = self._due.get(key)
        self._due[key] = due_ns, period_ns
        if before is None:
            self._members.setdefault(group_id, set()).add(member_id)
        if before is None or due_ns < before[0]:
            heappush(self._queue, (due_ns, key))
            if len(self._queue) > 2 * len(self._due) + ENDED_MAX:
                self._queue = [(known[0], one) for one, known in self._due.items()]
                heapify(self._queue)
            if self._timer is None or due_ns < self._timer_ns:
                self._arm()

    def silence_ns(self, group_id: str, member_id: str) -> int | None:
        """Return the time since the member was renewed, None if it has no session."""
        known = self._due.get((group_id, member_id))
        return None if known is None else max(0, self._clock.now_ns() + known[1] - known[0])

    def end(self, group_id: str, member_id: str) -> None:
        """Remove the member."""
        if self._due.pop((group_id, member_id), None) is not None:
            members = self._members[group_id]
            members.remove(member_id)
            if not members:
                del self._members[group_id]

    def end_others(self, group_id: str, members: Container[str]) -> None:
        """Remove the group's members that are not among these."""
        for member_id in sorted(self._members.get(group_id, ())):
            if member_id not in members:
                self.end(group_id, member_id)

    def close(self) -> None:
        """Stop because the server no longer leads the coordinator."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._due.clear()
        self._members.clear()
        self._queue.clear()

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self._queue and self._queue[0][1] not in self._due:
            heappop(self._queue)
        if self._queue:
            self._timer_ns = self._queue[0][0]
            delay_ns = max(0, self._timer_ns - self._clock.now_ns())
            self._timer = self._clock.call_later(delay_ns, self._check)

    def _check(self) -> None:
        self._timer = None
        now_ns = self._clock.now_ns()
        if now_ns - self._timer_ns > STALL_NS:
            for key, (_, period_ns) in self._due.items():
                self._due[key] = now_ns + period_ns, period_ns
        over: dict[str, list[str]] = {}
        again: list[tuple[int, _Key]] = []
        while self._queue and self._queue[0][0] <= now_ns:
            queued_ns, key = heappop(self._queue)
            known = self._due.get(key)
            if known is None:
                continue
            due_ns, period_ns = known
            if due_ns <= now_ns:
                group_id, member_id = key
                over.setdefault(group_id, []).append(member_id)
                due_ns = now_ns + RETRY_NS
                self._due[key] = due_ns, period_ns
            if due_ns > queued_ns:
                again.append((due_ns, key))
        for entry in dict.fromkeys(again):
            heappush(self._queue, entry)
        self._arm()
        for group_id, member_ids in sorted(over.items()):
            self._over(group_id, member_ids)
