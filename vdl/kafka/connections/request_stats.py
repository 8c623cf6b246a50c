"""Counts of the requests of one server, by API, and of what failed.

Does not depend on connections or on the meaning of requests.
"""

from __future__ import annotations

import traceback
from bisect import bisect_left
from collections.abc import Callable
from typing import Any, Final

from rpc.traces import TracedRequest
from segments.histogram import DURATION_BOUNDS_NS, Histogram
from vdl.clock import MS
from vdl.errors import ErrorCode
from vdl.kafka.answer import Reply
from vdl.kafka.api import API, Api
from vdl.kafka.connections.slow_requests import LEAST_SLOW_NS, SlowRequests
from vdl.log import Log

_BOUNDS = DURATION_BOUNDS_NS
_LEAST = _BOUNDS[0]

LONG_POLLS: Final = frozenset({"Fetch", "ShareFetch"})
"""APIs whose clients ask the server to wait for records."""


class ApiStats:
    """Counters of one API since the start. `errors` counts handlers that raised.

    The latency of each request is observed once for each phase:

    phase    from                                      to
    queue    it has arrived                            it is started
    work     it is started                             its handler returns, or its last part's
    wait     its handler returns without the answer    the answer is known
    send     the answer is known                       it is queued for the socket
    total    it has arrived                            its answer is queued for the socket

    An answer that waits for earlier ones of its connection, for memory, or for a client that does
    not read, is in the phase `send`. So is its encoding, and the making of one that is built late.
    """

    __slots__ = (
        "bytes_in", "bytes_out", "errors", "is_long_poll", "queue", "requests", "send", "slow_ns",
        "total", "total_ns", "wait", "work",
    )  # fmt: skip

    def __init__(self, *, is_long_poll: bool = False) -> None:
        """`is_long_poll`: the wait of its requests is what clients asked for."""
        self.is_long_poll = is_long_poll
        self.slow_ns = LEAST_SLOW_NS
        """Time from which on a request is looked at by `SlowRequests`."""
        self.requests = 0
        self.errors = 0
        self.bytes_in = 0
        self.bytes_out = 0
        self.total_ns = 0
        self.queue = Histogram()
        self.work = Histogram()
        self.wait = Histogram()
        self.send = Histogram()
        self.total = Histogram()

    def answered(
        self,
        arrived_ns: int,
        started_ns: int,
        worked_ns: int,
        known_ns: int,
        now_ns: int,
        busy_ns: int = 0,
    ) -> bool:
        """Observe the phases of one request. Return True if it is slow.

        `worked_ns`: 0 if no handler was called. `known_ns`: 0 if the answer was known when the
        handler returned. `busy_ns`: part of the wait of a long poll that its client did not ask
        for. One call for all phases, and none for a phase in the first bucket: this runs for each
        request.
        """
        if not worked_ns:
            worked_ns = known_ns = now_ns
        elif known_ns < worked_ns:
            known_ns = worked_ns  # an answer of this turn, which began earlier
        of, ns = self.queue, started_ns - arrived_ns
        of.counts[0 if ns <= _LEAST else bisect_left(_BOUNDS, ns)] += 1
        of.sum_ns += ns
        of, ns = self.work, worked_ns - started_ns
        of.counts[0 if ns <= _LEAST else bisect_left(_BOUNDS, ns)] += 1
        of.sum_ns += ns
        of, wait_ns = self.wait, known_ns - worked_ns
        of.counts[0 if wait_ns <= _LEAST else bisect_left(_BOUNDS, wait_ns)] += 1
        of.sum_ns += wait_ns
        of, ns = self.send, now_ns - known_ns
        of.counts[0 if ns <= _LEAST else bisect_left(_BOUNDS, ns)] += 1
        of.sum_ns += ns
        of, ns = self.total, now_ns - arrived_ns
        of.counts[0 if ns <= _LEAST else bisect_left(_BOUNDS, ns)] += 1
        of.sum_ns += ns
        if self.is_long_poll:
            ns -= wait_ns - busy_ns
        return ns >= self.slow_ns


class RequestStats:
    """Counters of one server. Sessions add the requests that they answer to `by_api`."""

    __slots__ = (
        "_log", "_logged", "_slow_ns", "by_api", "handler_errors", "login_failures", "slow",
    )  # fmt: skip

    def __init__(self, log: Log, now_ns: Callable[[], int], *, slow_ns: int) -> None:
        """`slow_ns`: time from which a request is kept as an event."""
        self._slow_ns = slow_ns
        self.by_api = {
            api.name: ApiStats(is_long_poll=api.name in LONG_POLLS) for api in API.values()
        }
        self.slow = SlowRequests(self.by_api, now_ns)
        self.handler_errors = 0
        self.login_failures = 0
        self._log = log
        self._logged: set[tuple[str, str]] = set()

    def note_slow(self, request: TracedRequest) -> None:
        """Note a slow request, with its phases if it is above `request.slow`."""
        self.slow.note(request)
        if request.busy_ns < self._slow_ns:
            return
        spent_ns = {stage.name: stage.duration_ns for stage in request.stages}
        queue_ns, work_ns, send_ns = (spent_ns.get(name, 0) for name in ("queue", "work", "send"))
        total_ns = request.total_ns - spent_ns.get("receive", 0)
        self._log.note(
            "slow_request",
            client=f"{request.client_id} at {request.peer.rpartition(':')[0]}",
            api=request.api,
            total_ms=total_ns // MS,
            queue_ms=queue_ns // MS,
            work_ms=work_ns // MS,
            wait_ms=(total_ns - queue_ns - work_ns - send_ns) // MS,
            send_ms=send_ns // MS,
        )

    def handler_failed(self, api: Api, version: int, request: Any, error: BaseException) -> Any:
        """Count the failure, log the first of its kind, and return UNKNOWN_SERVER_ERROR.

        `request`: the decoded request; None if the protocol has no answer in its shape.
        """
        self.by_api[api.name].errors += 1
        self.log_failure(f"{api.name} v{version}", error)
        if request is None:
            return Reply.CLOSE
        return api.failure(request, version, ErrorCode.UNKNOWN_SERVER_ERROR)

    def log_failure(self, where: str, error: BaseException) -> None:
        """Count a fault of the server, and log the first of its kind."""
        self.handler_errors += 1
        kind = (where, type(error).__name__)
        if kind not in self._logged:
            self._logged.add(kind)
            self._log.error(
                "handler_failed",
                where=where,
                traceback="".join(traceback.format_exception(error)),
            )
