"""Turn of the event loop, shared by all sessions of a server: its budgets, its end, its retries.

A session that learns an answer marks itself. At the end of the turn, all marked sessions go on, so
the answers of one turn to one client are sent with one call.

While a connection waits for memory, long polls that hold some are answered early.

Does not depend on sockets, connections or requests.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from vdl.clock import MS, Timer
from vdl.kafka.connections.turn_budget import (
    OTHERS_NS,
    ReceiveBudget,
    SendBudget,
    StartBudget,
)
from vdl.kafka.context import Context

_ANSWER_EARLY_NS = 20 * MS
"""Time that a poll may continue while it holds memory that others wait for."""


class Turn:
    """State and services that all sessions of a server share; see the module."""

    __slots__ = (
        "_deferred",
        "_early_timer",
        "_flush_scheduled",
        "_marked",
        "_other_produced_ns",
        "_retries",
        "context",
        "known_ns",
        "large_requests",
        "produced_by",
        "produced_ns",
        "receive_budget",
        "record_budget",
        "send_budget",
        "started_ns",
        "waiting_to_start",
        "work_budget",
    )

    def __init__(self, context: Context) -> None:
        self.context = context
        self.receive_budget = ReceiveBudget(context.clock)
        self.send_budget = SendBudget(context.clock)
        self.record_budget = StartBudget(context.clock)
        """Budget of Produce, and of Fetch of the usual size."""
        self.work_budget = StartBudget(context.clock, self._since_record_ns, self.record_budget)
        """Budget of all other requests."""
        self.produced_by = ""
        """Principal of the last Produce."""
        self.produced_ns = self._other_produced_ns = -OTHERS_NS
        """Times at which it started, and at which the last one of another principal did."""
        self.started_ns = 0
        """Time when the last request or part started, or a large answer was begun."""
        self.known_ns = 0
        """Time at which the first answer of the last turn became known. Use: `ApiStats`."""
        self.large_requests: dict[object, Callable[[], None]] = {}
        """Requests with a counted decoded form, oldest first, and steps that answer them early."""
        self.waiting_to_start: dict[object, None] = {}
        """Connections that wait for memory for a decoded request."""
        self._marked: list[Callable[[], None]] = []
        self._deferred: list[Callable[[], None]] = []
        self._flush_scheduled = False
        self._retries: dict[int, list[Callable[[], None]]] = {}
        """Steps by delay (ms). Invariant: no list is empty, and each has a timer."""
        self._early_timer: Timer | None = None
        context.defer = self.defer

    def mark(self, proceed: Callable[[], None]) -> None:
        """Call `proceed` of a session at the end of the turn. It must not raise."""
        self._marked.append(proceed)
        if not self._flush_scheduled:
            self._schedule()

    def defer(self, step: Callable[[], None]) -> None:
        """Run `step` once at the end of this turn. Answers that it completes are sent in this
        turn."""
        self._deferred.append(step)
        if not self._flush_scheduled:
            self._schedule()

    def _schedule(self) -> None:
        self._flush_scheduled = True
        clock = self.context.clock
        self.known_ns = clock.now_ns()
        clock.call_soon(self.flush)

    def flush(self) -> None:
        """End a turn: run deferred steps, then let each marked session send its answers.

        May be called at any time outside a handler.
        """
        if self._deferred:
            self._flush_scheduled = True  # the steps' answers are sent below
            deferred, self._deferred = self._deferred, []
            for step in deferred:
                step()
        self.context.shared.clear()
        self._flush_scheduled = False
        if self._deferred:
            self._schedule()
        marked, self._marked = self._marked, []
        for proceed in marked:
            proceed()

    def other_produces(self, asker: str) -> None:
        """Note that the next Produce is of another principal than the last."""
        self._other_produced_ns = self.produced_ns
        self.produced_by = asker

    def _since_record_ns(self, asker: str) -> int:
        """Return the time since a record of another principal than `asker` passed through this
        server; `OTHERS_NS` if there was none lately."""
        now_ns = self.context.clock.now_ns()
        is_own = self.produced_by == asker
        produced_ns = self._other_produced_ns if is_own else self.produced_ns
        if now_ns - produced_ns >= OTHERS_NS:
            return OTHERS_NS
        return now_ns - max(produced_ns, self.context.host.awaited_disk_ns)

    def oldest_wait_ns(self) -> int:
        """Return the longest wait of a request for its turn (ns); 0 if none waits. Costly; for
        checks."""
        return max(self.record_budget.oldest_ns(), self.work_budget.oldest_ns())

    def retry(self, step: Callable[[], None], after_ms: int) -> None:
        """Run `step` after `after_ms`, together with the others of that delay.

        Used when a request waits for room in the host or the audit log.
        """
        if after_ms not in self._retries:
            self._retries[after_ms] = []
            self.context.clock.call_later(after_ms * MS, partial(self._retry, after_ms))
        self._retries[after_ms].append(step)

    def _retry(self, after_ms: int) -> None:
        for step in self._retries.pop(after_ms):
            step()

    def answer_early(self) -> None:
        """Schedule early answers of long polls that hold much memory, because a connection waits.

        The delay keeps their clients from polling again as fast as they can.
        """
        if self._early_timer is None:
            self._early_timer = self.context.clock.call_later(_ANSWER_EARLY_NS, self._answer_early)

    def _answer_early(self) -> None:
        self._early_timer = None
        if self.waiting_to_start or self.context.requests.first is not None:
            for answer_early in list(self.large_requests.values()):
                answer_early()
