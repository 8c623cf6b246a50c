"""Admission of one connection's requests: their order, their bounds, and the memory they hold.

Rules:

* Requests of a connection start, and are answered, in the order of their arrival. As in Kafka, a
  request starts when all requests before it are answered. Only Produce may start while earlier
  Produce requests of its connection are pending, because it takes its place in the log when it
  starts. A Produce that is decoded off the loop, whose batches are checked off the loop, or that is
  done in parts, holds back the requests behind it until that is finished.
* Bounds are settings: requests and bytes in flight. A connection at a bound is not read. Before a
  required login is done, the connection is read one request at a time, each of at most
  `login_bytes_max`.
* Memory is charged to the server-wide accounts (`limits.memory`) before it is taken: requests that
  arrive or are unanswered, and what they become when they are decoded.
* A turn of the loop has a budget for starting records, and one for all other requests
  (`turn_budget`). A connection without budget waits for its turn, and is not read if it sends more
  meanwhile.
* A Produce waits while the host, the checks of its principal's batches, or another large Produce
  leave it no room. A change waits while its principal's part of the audit log is full.
* A client over its quota (`limits.client_quotas`) is not read for its throttle time. Requests that
  were read before are served.

Does not depend on sockets, bytes, or the meaning of requests.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from enum import Enum
from functools import partial
from typing import Any

from vdl.clock import MS, Timer
from vdl.kafka.answer import Later, Paused, Reply
from vdl.kafka.api import API, Api
from vdl.kafka.connections.connection import Request
from vdl.kafka.connections.turn import Turn
from vdl.kafka.connections.turn_budget import SMALL_REQUEST_BYTES, StartBudget
from vdl.kafka.connections.wide_request import WideRequest
from vdl.kafka.context import ConnectionInfo, RequestContext
from vdl.kafka.limits.memory import DECODED_FROM_BYTES, SMALL_BYTES, decoded_bytes
from vdl.kafka.partitions.record_checks import LARGE_BYTES_COUNTED
from vdl.kafka.permissions.rules import Finish
from vdl.kafka.permissions.table import CHANGES
from vdl.kafka.security.audit import FULL_RETRY_MS
from vdl.logstream.options import LARGE_LED_BYTES_MAX

_FETCH = 1
USUAL_FETCH_BYTES = 1 << 10
"""Size up to which a Fetch starts like a Produce: that of some fifty partitions."""


class Reason(Enum):
    """Reason why a connection waits, in the order in which reasons are examined.

    The first ones keep it from being read (`may_read`), the others keep its next request from
    starting (`next`). The value says what ends the wait.
    """

    NONE = "it does not wait"
    CLOSING = "the client takes the answers before it; a connection that ends is read no more"
    READ_AHEAD = "its requests that were read start"
    THROTTLE = "the throttle time of its client ends"
    LOGIN = "the one request that it may have before its login is answered"
    IN_FLIGHT = "half of its requests in flight, or of their bytes, are answered"
    REQUEST_MEMORY = "memory for requests is freed"
    ORDER = "the requests before it are answered, or have taken their place in the log"
    TURN = "its turn comes"
    ANSWER_MEMORY = "memory for answers is freed"
    AUDIT_LOG = "the audit log has room for its principal"
    DECODED_MEMORY = "memory for what a request becomes when it is decoded is freed"
    HOST = "the host has room for appends, or the record checks for its principal"
    LARGE_PRODUCE = "the large Produce before it is checked, and in its segment"


class Exchange:
    """A request that has started, and its answer once it is known."""

    __slots__ = (
        "answer",
        "api",
        "arrived_ns",
        "began_ns",
        "bytes",
        "client_id",
        "correlation_id",
        "counted",
        "finishes",
        "is_decoding",
        "measured",
        "request",
        "started_ns",
        "throttle_ms",
        "used_ns",
        "version",
        "wide",
        "worked_ns",
    )

    def __init__(self, api: Api, request: Request, started_ns: int) -> None:
        self.api = api
        self.version = request.api_version
        self.correlation_id = request.correlation_id
        self.bytes = self.counted = request.bytes
        """`counted` includes what a Produce takes for its partitions, if they are many."""
        self.client_id = request.client_id
        self.began_ns = request.began_ns
        self.arrived_ns = request.arrived_ns
        self.started_ns = started_ns
        self.worked_ns = 0
        """Time at which the handler of it, or of its last part, returned; 0: there was none."""
        self.answer: Any = None
        """A response, Encoded, Reply, an exception, a step in turn, or a Later that becomes one of
        them."""
        self.is_decoding = False
        """True while the request waits for a decoding thread or is decoded. Its bytes are held
        until then."""
        self.wide: WideRequest | None = None
        """State of a request done in parts; None for others."""
        self.finishes: tuple[Finish, ...] = ()
        """Filters for the answer that hide what the client may not see."""
        self.measured: RequestContext | None = None
        """Context whose quotas the request counts against; None if there are no quotas."""
        self.used_ns = 0
        """Time of the loop that the request used."""
        self.throttle_ms = 0
        """Throttle time of the connection, as far as it was known when the request started."""
        self.request: Any = None
        """The decoded request, used to build an error answer of its shape. Not kept for pipelined
        APIs, whose frames are large; they build their own errors."""


class Admission:
    """Requests of one connection that are in flight, and their memory; see the module.

    A request is in one of these states:

    state      event                                                   next
    (none)     `arrived`                                               WAITING
    WAITING    `next`, no reason to wait: its start is counted         STARTED
    WAITING    `next`, a reason to wait: `start_waits_for`             WAITING
    WAITING    `drop_waiting`: the connection ends                     (none)
    STARTED    it is decoded in a thread, or has a further part        PAUSED
    PAUSED     decoded, or after the next poll; `may_go_on`            STARTED
    STARTED    its answer is large and not built; `may_build`          STARTED
    STARTED    `answered`, in order                                    (none)

    The first WAITING request is examined whenever the session proceeds, against each `Reason` in
    their order. The event that it waits for wakes the session: an answer, its turn
    (`resume_starting`), freed memory, or a retry after a delay. So no reason is kept as a state of
    its own; only the places in queues are.

    The connection is read while `may_read`, which also charges what has been read:

    state      event                                                   next
    READ       `may_read`, a reason not to read: `reading_waits_for`   UNREAD
    READ       `may_read`, no memory: it queues for some               UNREAD
    UNREAD     `may_read`, no reason any more                          READ

    Invariant: `charged` is what `RequestMemory` counts for this connection; 0 while it holds no
    more than `SMALL_BYTES`.
    """

    __slots__ = (
        "_in_line",
        "_info",
        "_moderate",
        "_reads_ahead",
        "_resume",
        "_throttle_timer",
        "_turn",
        "_wake",
        "_will_retry",
        "asker",
        "bytes_in_flight",
        "charged",
        "decoded",
        "reading_waits_for",
        "share_ns",
        "shared_by",
        "shared_until_ns",
        "start_waits_for",
        "started",
        "throttled_until_ns",
        "waiting",
    )

    def __init__(
        self,
        turn: Turn,
        info: ConnectionInfo,
        wake: Callable[[], None],
        resume: Callable[[], None],
    ) -> None:
        """`wake` lets the session proceed at the end of the turn, `resume` at once."""
        self._turn = turn
        self._info = info
        self.asker = info.asker
        """See `Starter`."""
        self._wake = wake
        self._resume = resume
        self.waiting: deque[Request] = deque()
        """Requests that have arrived and not started, in order."""
        self.started: deque[Exchange] = deque()
        """Requests that have started and are not answered, in order."""
        self.bytes_in_flight = 0
        """Bytes of both, with what a Produce takes for many partitions."""
        self.decoded = 0
        """Bytes that the started request takes beside its frame; 0 for a Produce."""
        self.charged = 0
        self._moderate = 0
        """Bytes that the started request has taken from the reserve for moderate requests."""
        self.start_waits_for = self.reading_waits_for = Reason.NONE
        """The reasons found when the next request, and the reading, were last examined."""
        self.shared_until_ns = self.share_ns = 0
        self.shared_by: object = None
        """See `Starter`."""
        self._in_line = False
        """True while it has a place in the line of a `StartBudget`."""
        self._reads_ahead = False
        """True if more bytes arrived meanwhile."""
        self._will_retry = False
        """True while a retry is due."""
        self._throttle_timer: Timer | None = None
        self.throttled_until_ns = 0
        """End of the client's throttle time; 0 if it is not throttled."""

    def arrived(self, requests: Sequence[Request]) -> None:
        """Add the requests that became whole by a read, perhaps none."""
        if self._in_line:
            self._reads_ahead = True
        self.waiting += requests
        for request in requests:
            self.bytes_in_flight += request.bytes

    # --- starting --------------------------------------------------------------------------------
    def next(self, idle_since_ns: int) -> Request | None:
        """Return the first waiting request if it may start now, and count its start.

        Otherwise `start_waits_for` is the reason, and the session is woken when it may have ended.
        A request with an unknown API key is returned when all before it are answered.
        `idle_since_ns`: time when bytes last arrived or an answer was given.
        """
        request = self.waiting[0]
        api = API.get(request.api_key)
        if self.started:
            last = self.started[-1]
            if api is None or not api.pipelined or not last.api.pipelined or last.is_decoding:
                return self._waits(Reason.ORDER)
            if type(last.answer) is Later and last.answer.holding:
                return self._waits(Reason.ORDER)
            if last.wide is not None and not last.wide.is_done:
                return self._waits(Reason.ORDER)
        if api is None:
            self.bytes_in_flight -= request.bytes
            return self.waiting.popleft()
        turn = self._turn
        context, size = turn.context, request.bytes
        if turn.work_budget.passed_from_ns:
            turn.work_budget.pay_for_pass()
        budget = turn.record_budget if api.pipelined else self._budget_of(api, size)
        if budget.started_ns >= budget.until_ns:
            is_small = size <= SMALL_REQUEST_BYTES and not api.pipelined
            since_ns = request.arrived_ns if api.pipelined else idle_since_ns
            if not self._has_turn(budget, since_ns, is_small=is_small):
                return self._waits(Reason.TURN)
        if api.pipelined:
            checks = context.record_checks
            if context.host.overloaded or (
                checks.is_short and checks.has_its_share(self._info.asker)
            ):
                return self._retries(Reason.HOST, context.config.overload_retry_ms)
            if size > LARGE_BYTES_COUNTED and not self._may_start_large(size):
                return self._retries(Reason.LARGE_PRODUCE, context.config.overload_retry_ms)
        else:
            if api.large_answer and not self._has_answer_room():
                return self._waits(Reason.ANSWER_MEMORY)
            if context.audit is not None and api.key in CHANGES and self._audit_is_full():
                return self._retries(Reason.AUDIT_LOG, FULL_RETRY_MS)
            if size > DECODED_FROM_BYTES and not self._may_decode(api, request):
                return self._waits(Reason.DECODED_MEMORY)
        self.start_waits_for = Reason.NONE
        budget.started_ns = turn.started_ns = context.clock.now_ns()
        budget.starts += 1
        if api.pipelined:
            if turn.produced_by != self.asker:
                turn.other_produces(self.asker)
            turn.produced_ns = budget.started_ns
        return self.waiting.popleft()

    def may_go_on(self, since_ns: int) -> bool:
        """Return True if a paused request may continue, and count that as a start.

        If not, it waits for its turn since `since_ns`.
        """
        budget = self._further_turn(since_ns)
        if budget is None:
            return False
        self._counts_start(budget)
        return True

    def may_build(self, since_ns: int, *, must_finish: bool) -> bool:
        """Return True if a large answer may be built, and count that as a start.

        If not, it waits for its turn since `since_ns`, or for memory. `must_finish`: a part of it
        is built already, and has to be finished to free its memory.
        """
        budget = self._further_turn(since_ns)
        if budget is None or not (must_finish or self._has_answer_room()):
            return False
        self._counts_start(budget)
        return True

    def _counts_start(self, budget: StartBudget) -> None:
        turn = self._turn
        budget.started_ns = turn.started_ns = turn.context.clock.now_ns()
        budget.starts += 1

    def _waits(self, reason: Reason) -> Request | None:
        self.start_waits_for = reason
        return None

    def _retries(self, reason: Reason, after_ms: int) -> Request | None:
        """Wait, and try again after a delay, because no event reports that the reason has ended."""
        if not self._will_retry:
            self._will_retry = True
            self._turn.retry(self._retry, after_ms)
        return self._waits(reason)

    def _retry(self) -> None:
        self._will_retry = False
        self._wake()

    def logged_in(self) -> None:
        """Count what it holds, and what follows, as use of the principal that the client has
        proved to be."""
        self._return_moderate()
        before, self.asker = self.asker, self._info.asker
        requests = self._turn.context.requests
        requests.take(before, -self.charged)
        requests.take(self.asker, self.charged)

    def _budget_of(self, api: Api, size: int) -> StartBudget:
        """Return the budget in which a request starts."""
        turn = self._turn
        if api.pipelined or (api.key == _FETCH and size <= USUAL_FETCH_BYTES):
            return turn.record_budget
        return turn.work_budget

    def _has_turn(self, budget: StartBudget, since_ns: int, *, is_small: bool = False) -> bool:
        """Return True if the turn's budget allows a start; if not, take a place in its line."""
        if not self._in_line:
            self._in_line = not budget.may_start(self, since_ns, is_small=is_small)
        return not self._in_line

    def _further_turn(self, since_ns: int) -> StartBudget | None:
        """Return the budget if the oldest started request may go on; if not, take a place in its
        line."""
        exchange = self.started[0]
        turn = self._turn
        # A Fetch that has more to do is not one of the usual size, however short its request is.
        budget = turn.record_budget if exchange.api.pipelined else turn.work_budget
        if budget.started_ns < budget.until_ns or self._has_turn(budget, since_ns):
            return budget
        return None

    def resume_starting(self) -> None:
        """Start waiting requests because it is this connection's turn."""
        self._in_line = self._reads_ahead = False
        self._resume()

    def _has_answer_room(self) -> bool:
        """Return True if there is memory for a large answer; if not, queue for it."""
        memory = self._turn.context.answers
        answers = self._info.answers
        if memory.used > memory.ample and not answers.limit():
            answers.wait(self._wake)
            return False
        answers.stop_waiting()
        return True

    def _audit_is_full(self) -> bool:
        context, info = self._turn.context, self._info
        assert context.audit is not None
        authorizer = context.authorizer
        is_super = authorizer is not None and authorizer.is_super(info.principal)
        return context.audit.is_full(info.asker, is_super=is_super)

    def _may_decode(self, api: Api, request: Request) -> bool:
        """Return True if there is memory for the decoded request; if not, queue for it."""
        decoded = decoded_bytes(
            request.bytes, api.key, request.api_version, passed_on=bool(api.passed_on)
        )
        if not decoded:
            return True
        turn = self._turn
        memory = turn.context.requests
        asker = self.asker
        if not memory.has_room_for(decoded, asker) and memory.take_moderate(decoded, asker):
            self._moderate = decoded
        elif not memory.may_start(self, decoded, asker):
            memory.wait_to_start(self, self._wake, decoded, asker)
            turn.waiting_to_start[self] = None
            turn.answer_early()
            return False
        turn.waiting_to_start.pop(self, None)
        self.count_decoded(decoded)
        memory.leave(self)
        return True

    def _may_start_large(self, size: int) -> bool:
        """Return True if a Produce of `size` bytes may start now.

        Only one large Produce is checked at a time, and few bytes of earlier ones may still be in
        memory without being in a segment.
        """
        context = self._turn.context
        large_bytes = context.host.large_bytes
        return not context.record_checks.has_large and (
            not large_bytes or large_bytes + size <= LARGE_LED_BYTES_MAX
        )

    # --- what started requests hold --------------------------------------------------------------
    def count_decoded(self, count: int) -> None:
        """Charge `count` more bytes until the request is answered."""
        self.decoded += count
        self.charged += count
        self._turn.context.requests.take(self.asker, count)
        self._turn.large_requests[self] = self.answer_early

    def count_partitions(self, exchange: Exchange, more: int) -> None:
        """Charge `more` bytes for a Produce's partitions until it is answered."""
        exchange.counted += more
        self.bytes_in_flight += more
        self.charged += more
        self._turn.context.requests.take(self.asker, more)

    def hasten(self) -> None:
        """Schedule the early answer of a long poll if other connections wait for its memory."""
        turn = self._turn
        if turn.waiting_to_start or turn.context.requests.first is self:
            turn.answer_early()

    def answer_early(self) -> None:
        """Answer a long poll of this connection now, because others wait for its memory."""
        if self.started:
            answer = self.started[0].answer
            if type(answer) is Later and answer.answer_early is not None:
                answer.answer_early()

    def answered(self) -> None:
        """Remove the oldest started request, because its answer is known."""
        exchange = self.started.popleft()
        self.bytes_in_flight -= exchange.counted
        if self.decoded:
            # `may_read` frees its memory. Its priority over other connections ends now, because it
            # may have the next such request waiting.
            self.decoded = 0
            self._return_moderate()
            self._turn.large_requests.pop(self, None)
            self._turn.context.requests.finished(self)

    def _return_moderate(self) -> None:
        if self._moderate:
            self._turn.context.requests.return_moderate(self._moderate, self.asker)
            self._moderate = 0

    # --- reading ---------------------------------------------------------------------------------
    def may_read(self, arriving: int, *, is_open: bool, reads: bool) -> bool:
        """Return True if the connection may be read, and charge for what it holds.

        Reading stops at a bound, and resumes when half of it is free. `arriving`: bytes that the
        arriving request will hold after one more read. `is_open`: requests are taken, and answers
        sent. `reads`: it is read now.
        """
        config = self._turn.context.config
        requests, size = len(self.waiting) + len(self.started), self.bytes_in_flight
        requests_max, bytes_max = config.requests_in_flight_max, config.request_bytes_in_flight_max
        login = self._info.login
        reason = Reason.NONE
        if not is_open:
            reason = Reason.CLOSING
        elif self._reads_ahead:
            reason = Reason.READ_AHEAD
        elif self.throttled_until_ns:
            reason = Reason.THROTTLE
        elif login is not None and not login.was_done:
            if requests:
                reason = Reason.LOGIN
        elif reads:
            if requests >= requests_max or size >= bytes_max:
                reason = Reason.IN_FLIGHT
        elif requests > requests_max // 2 or size > bytes_max // 2:
            reason = Reason.IN_FLIGHT
        held = size + arriving + self.decoded
        if (held > SMALL_BYTES or self.charged) and not self._charge(
            held, may_wait=reason is Reason.NONE and not size
        ):
            reason = reason if reason is not Reason.NONE else Reason.REQUEST_MEMORY
        self.reading_waits_for = reason
        return reason is Reason.NONE

    def _charge(self, held: int, *, may_wait: bool) -> bool:
        """Charge the memory of this connection's requests, including one more read.

        Return False if there is no room. Then it queues for memory if it `may_wait`: a connection
        with other requests under way waits for their answers.
        """
        memory = self._turn.context.requests
        counted = held if held > SMALL_BYTES else 0
        more = counted - self.charged
        if more > 0 and not memory.may_have(
            self, more, self.asker, is_alone=not self.bytes_in_flight
        ):
            if may_wait:
                memory.wait(self, self._wake, self.asker)
            return False
        self.charged = counted
        memory.take(self.asker, more)
        if not counted:
            memory.finished(self)
        memory.leave_arriving(self)
        return True

    def throttle(self, wait_ms: int) -> None:
        """Do not read the connection for a time, because its client is over a quota (KIP-219)."""
        clock = self._turn.context.clock
        until_ns = clock.now_ns() + wait_ms * MS
        if until_ns > self.throttled_until_ns:
            self.throttled_until_ns = until_ns
            if self._throttle_timer is not None:
                self._throttle_timer.cancel()
            self._throttle_timer = clock.call_later(wait_ms * MS, self._throttle_ends)

    def _throttle_ends(self) -> None:
        self._throttle_timer = None
        self.throttled_until_ns = 0
        self._wake()

    @property
    def is_waited_for(self) -> bool:
        """True if it holds memory for requests, and other connections wait for some."""
        return self._turn.context.requests.waiting > 0 and self.charged > SMALL_BYTES

    # --- the end ---------------------------------------------------------------------------------
    def drop_waiting(self) -> None:
        """Drop the requests that have not started."""
        # Answers may take long to leave; the waiting requests are not counted meanwhile.
        self.bytes_in_flight -= sum(request.bytes for request in self.waiting)
        self.waiting.clear()
        self._turn.waiting_to_start.pop(self, None)
        self._turn.context.requests.leave(self)

    def cancel(self) -> None:
        """Cancel what has started, and drop everything else, because the client is gone.

        Work that cannot be undone continues: batches wait for their check or for the log, or a
        request for being decoded. It keeps its bytes until then.
        """
        if self._throttle_timer is not None:
            self._throttle_timer.cancel()
            self._throttle_timer = None
        self.waiting.clear()
        requests = self._turn.context.requests
        for exchange in self.started:
            # The answer may refer to the exchange, for its next step. With 200,000 elements it must
            # not wait for a full collection.
            answer, exchange.answer = exchange.answer, Reply.CLOSE
            if type(answer) is not Later or answer.done:
                if type(answer) is Later and type(answer.response) is Paused:
                    paused, answer.response = answer.response, None
                    answer.about = None  # no cycle may be left
                    paused.cancel()
                continue
            kept = 0
            if exchange.api.pipelined:
                kept = min(exchange.counted, self.charged)
            elif exchange.is_decoding:
                kept = min(exchange.counted + self.decoded, self.charged)
            if not kept:
                answer.cancel()
                continue
            self.charged -= kept
            answer.detach(partial(requests.take, self.asker, -kept))
        self.started.clear()

    def close(self) -> None:
        """Free all memory and leave all queues, after `cancel`."""
        turn = self._turn
        requests = turn.context.requests
        requests.take(self.asker, -self.charged)
        self.charged = 0
        requests.finished(self)
        requests.leave(self)
        self.decoded = 0
        self._return_moderate()
        turn.large_requests.pop(self, None)
        turn.waiting_to_start.pop(self, None)
        if self._in_line:
            turn.record_budget.leave(self)
            turn.work_budget.leave(self)
        # Break the reference cycle with the session, or it stays until the collector finds it.
        self._wake = self._resume = _is_over


def _is_over() -> None:
    """Do nothing: the session is closed."""
