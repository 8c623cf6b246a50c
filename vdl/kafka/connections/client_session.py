"""Sans-I/O engine of one client connection: bytes in, bytes out.

The owner of the socket (the listener, or a simulated network) passes a `ClientSession` the bytes
that arrive and sends what the session passes to its `Transport`. Rules:

* Requests of a connection start, and are answered, in the order of their arrival. As in Kafka, a
  request starts when all requests before it are answered. Only Produce may start while earlier
  Produce requests of its connection are pending, because it takes its place in the log when it
  starts. A Produce that is decoded off the loop, whose batches are checked off the loop, or that is
  done in parts, holds back the requests behind it until that is finished.
* Bounds are settings: requests and bytes in flight, unsent bytes. A connection at a bound is not
  read. Before a required login is done, the connection is read one request at a time, each of at
  most `login_bytes_max`.
* As in Kafka, a request may take any time to arrive while it makes progress: `FRAME_RATE_MIN` over
  each `frame_deadline_ms`, or `CONTENDED_RATE_MIN` since its beginning if it holds memory that
  other connections wait for.
* Memory is charged to the server-wide accounts (`limits.memory`) before it is taken: requests that
  arrive or are unanswered, and answers that are unsent. A connection that does not take its answers
  is not read. While other connections wait for memory, one that holds some and makes no progress
  gets a fraction of the usual time. One that takes answers slowly must be able to finish within the
  full time.
* A turn of the loop has budgets (`turn_budget`) for starting requests, receiving long ones and
  sending long answers. A session without budget waits for its turn in each.
* A long request is decoded in a thread (`limits.decoding`). So is a request with many elements,
  which is detected when decoding on the loop reaches the limit. The requests behind it wait. A
  request with many elements is done in parts if its API allows it (`vdl.kafka.parts`): one part per
  turn of the loop, when it is the connection's turn. Each part is authorized by the client's
  permissions at that time.
* Where clients have quotas (`vdl.kafka.limits.client_quotas`), the answer to a client over its
  quota carries the throttle time, and the connection is not read for that long.
* Bytes that the socket does not take stay in the session. A small slice of a large chunk of the
  tail cache is copied, because it would keep the whole chunk in memory.
* Unreadable bytes close the connection after earlier requests are answered. A handler that raises
  costs only its own request, which gets UNKNOWN_SERVER_ERROR, or the connection where the protocol
  has no answer.

Does not depend on sockets, the event loop, other connections, or the meaning of requests.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from struct import Struct
from typing import Any, Protocol

from segments.api import Buffer
from vdl.clock import MS, Timer
from vdl.kafka.answer import Encoded, Later, Reply, Unbuilt
from vdl.kafka.api import API, Api, Handler
from vdl.kafka.connections.connection import BARE_TOKEN, Connection, Request
from vdl.kafka.connections.turn_budget import (
    LONG_ANSWER_BYTES,
    READ_BYTES_MIN,
    SHORT_BYTES,
    SMALL_REQUEST_BYTES,
    ReceiveBudget,
    SendBudget,
    StartBudget,
)
from vdl.kafka.connections.wide_request import (
    NARROW_BYTES,
    Decoded,
    WideRequest,
    decoded,
    in_parts,
)
from vdl.kafka.context import ConnectionInfo, Context, RequestContext
from vdl.kafka.handlers.api_versions import unsupported_version
from vdl.kafka.limits.client_quotas import REQUEST_THROTTLE_MS_MAX, Quota
from vdl.kafka.limits.decoding import LOOP_BYTES
from vdl.kafka.limits.memory import (
    DECODED_FROM_BYTES,
    PARTITIONS_FROM_BYTES,
    SMALL_BYTES,
    UNCOUNTED_BYTES,
    decoded_bytes,
    partitions_bytes,
    passed_on_bytes,
)
from vdl.kafka.partitions.record_checks import LARGE_BYTES_COUNTED
from vdl.kafka.parts import LOOP_ELEMENTS
from vdl.kafka.permissions.mutation_quota import STRICT_FROM, take
from vdl.kafka.permissions.rules import Finish, Refused
from vdl.kafka.permissions.table import CHANGES, check_request, finished
from vdl.kafka.security.audit import FULL_RETRY_MS
from vdl.kafka.security.login import LOGIN_APIS, LoginState
from vdl.kafka.wire.runtime import EncodeError, TooManyElements, WireError
from vdl.logstream.options import LARGE_LED_BYTES_MAX

_HEAD = Struct(">ii").pack
_HEAD_FLEXIBLE = Struct(">iix").pack
_TOKEN_HEAD = Struct(">i").pack
_API_VERSIONS = 18
_SECOND_NS = 1_000 * MS
_REFUSED_NS = 50 * MS
"""Delay between the answer that a login failed and the end of its connection. Some clients that
find both in one read report only the end."""
_STALL_PARTS = 6
"""While other connections wait for memory, a connection that holds some and makes no progress is
closed after a sixth of `frame_deadline_ms`."""
FRAME_RATE_MIN = 1 << 10
"""Lowest rate (bytes per second) at which a request may arrive."""
CONTENDED_RATE_MIN = 1 << 20
"""The same while others wait for the memory. The largest request then takes two minutes."""


class Transport(Protocol):
    """Connection below a session, as the session uses it."""

    def send(self, buffers: Sequence[Buffer]) -> Sequence[Buffer]:
        """Send the buffers in order, and return the rest that cannot be sent now.

        The session keeps the rest until `resume_writing`. The buffers must not change until they
        are sent.
        """

    def close(self, rest: Sequence[Buffer]) -> None:
        """Close once everything given to `send`, and then `rest`, is sent."""

    def abort(self) -> None:
        """Close immediately."""

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


class _InTurn:
    """Placeholder for an answer: a step to run when it is the connection's turn."""

    __slots__ = ("step",)

    def __init__(self, step: Callable[[], None]) -> None:
        self.step = step


class Exchange:
    """A request that has started, and its answer once it is known."""

    __slots__ = (
        "answer",
        "api",
        "bytes",
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
    )

    def __init__(self, api: Api, request: Request, started_ns: int) -> None:
        self.api = api
        self.version = request.api_version
        self.correlation_id = request.correlation_id
        self.bytes = self.counted = request.bytes
        """`counted` includes what a Produce takes for its partitions, if they are many."""
        self.started_ns = started_ns
        self.answer: Any = None
        """A response, Encoded, Reply, an exception, `_InTurn`, or a Later that becomes one of
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


class Sessions(Protocol):
    """State and services that all sessions of a server share (`frontend.py`)."""

    context: Context
    receive_budget: ReceiveBudget
    send_budget: SendBudget
    start_budget: StartBudget
    large_requests: dict[ClientSession, None]
    """Sessions whose decoded request is counted, longest first."""
    waiting_to_start: dict[ClientSession, None]
    """Sessions that wait for memory for a decoded request."""
    login_failures: int

    def mark(self, session: ClientSession) -> None:
        """Schedule `proceed` of the session at the end of the turn."""

    def proved(self, session: ClientSession) -> None:
        """Record that the session has logged in."""

    def forget(self, session: ClientSession) -> None:
        """Record that the session is closed."""

    def answer_early(self) -> None:
        """Answer long polls that hold much memory soon, because a session waits for memory."""

    def hold_back(self, session: ClientSession, for_ms: int) -> None:
        """Call `release` of the session after `for_ms`.

        Used when a Produce waits for the host to have room, or a change waits for room in the audit
        log.
        """

    def finished(self, exchange: Exchange, size: int) -> int:
        """Count one request as answered with `size` bytes. Return the current time (ns)."""

    def handler_failed(self, exchange: Exchange, error: BaseException) -> Any:
        """Return the answer to a request whose handler raised."""

    def session_failed(self, session: ClientSession, error: BaseException) -> None:
        """End the session because of a bug in this file."""

    def log_failure(self, where: str, error: BaseException) -> None:
        """Count a fault of the server, and log the first of its kind."""


class ClientSession:
    """One client connection. `closed` is true once no more bytes go in or out."""

    __slots__ = (
        "_arriving",
        "_bytes_in_flight",
        "_charged",
        "_connection",
        "_decoded",
        "_frame_from",
        "_frontend",
        "_held_back",
        "_is_long",
        "_is_refused",
        "_last_progress",
        "_marked",
        "_moderate",
        "_mute_timer",
        "_muted_until_ns",
        "_out",
        "_out_bytes",
        "_queued",
        "_reading",
        "_reads_ahead",
        "_receive_wait_since_ns",
        "_started",
        "_transport",
        "_unsent",
        "_unsent_at_first",
        "_unsent_since_ns",
        "_waiting",
        "_writable",
        "closed",
        "ending",
        "frame_since_ns",
        "info",
        "last_active_ns",
        "share_ns",
        "shared_by",
        "shared_until_ns",
        "stuck_since_ns",
    )

    def __init__(
        self, frontend: Sessions, transport: Transport, info: ConnectionInfo, now_ns: int
    ) -> None:
        self.info = info
        self.closed = False
        self.ending = ""
        """Reason why no further request is read; empty while requests are read."""
        self.last_active_ns = now_ns
        """Time when bytes last arrived or an answer was given."""
        self.shared_until_ns = self.share_ns = 0
        self.shared_by: object = None
        """See `Starter`."""
        self.frame_since_ns = 0
        """Time when the arriving request began, or when reading resumed in the middle of it. 0 if
        no request arrives, or if the server does not read the connection."""
        self._frame_from = 0
        """Bytes of the arriving request that were present at `frame_since_ns`."""
        self._last_progress = (0, 0)
        """(time, bytes arrived by then) of the last progress seen."""
        self._frontend = frontend
        self._transport = transport
        config = frontend.context.config
        self._connection = Connection(
            bytes_max=config.request_bytes_max if info.login is None else config.login_bytes_max
        )
        self._waiting: deque[Request] = deque()
        self._started: deque[Exchange] = deque()
        self._bytes_in_flight = 0
        self._arriving = 0
        """Bytes that the arriving request will hold after one more read."""
        self._is_long = False
        """True if the arriving request is long: it is read within `ReceiveBudget`."""
        self._is_refused = False
        """True for a moment after a failed login, so that the client can read the answer before the
        connection ends."""
        self._receive_wait_since_ns = 0
        """Time since which the session waits for `ReceiveBudget`; 0 if it does not wait."""
        self._moderate = 0
        """Bytes that the started request has taken from the reserve for moderate requests."""
        self._decoded = 0
        """Bytes that the started request takes beside its frame; 0 for a Produce."""
        self._charged = 0
        """Bytes that `RequestMemory` counts for this connection."""
        self._out: list[Buffer] = []
        self._out_bytes = 0
        self._unsent: Sequence[Buffer] = ()
        """Buffers that the transport has not taken. While there are some, nothing is sent or
        started."""
        self.stuck_since_ns = 0
        """Time when the transport last took some of the unsent bytes; 0 if nothing is unsent."""
        self._unsent_since_ns = 0
        """Start of the current period with unsent bytes; 0 if nothing is unsent."""
        self._unsent_at_first = 0
        """Bytes that were unsent at `_unsent_since_ns`."""
        self._marked = False
        self._reading = True
        self._writable = True
        self._held_back = False
        self._queued = False
        """True while its requests wait for `StartBudget`."""
        self._mute_timer: Timer | None = None
        self._muted_until_ns = 0
        """Time until which the connection is not read because its client exceeded a quota; 0 if it
        is read."""
        self._reads_ahead = False
        """True if more bytes arrived while queued. Reading stops until the requests start."""

    # --- from the transport --------------------------------------------------------------------
    def get_buffer(self, size_hint: int) -> memoryview:
        """Return the buffer for the next bytes."""
        view = self._connection.get_buffer(size_hint)
        if self._is_long:
            return view[: max(self._frontend.receive_budget.left, READ_BYTES_MIN)]
        return view

    def buffer_updated(self, count: int) -> None:
        """Process `count` bytes that were written to the buffer."""
        try:
            self._take(count)
        except Exception as error:  # noqa: BLE001 - the connection edge
            self._frontend.session_failed(self, error)

    def _take(self, count: int) -> None:
        self.last_active_ns = now_ns = self._frontend.context.clock.now_ns()
        connection = self._connection
        connection.buffer_updated(count)
        if self.ending:
            return
        if self._queued:
            self._reads_ahead = True
        try:
            while (request := connection.next_request()) is not None:
                request.arrived_ns = now_ns
                self._waiting.append(request)
                self._bytes_in_flight += request.bytes
                self.frame_since_ns = 0
        except WireError as error:
            self.ending = f"unreadable: {error!r}"  # earlier requests are answered first
        if not connection.mid_request:
            self.frame_since_ns = self._arriving = 0
            self._is_long = False
        else:
            self._arriving = connection.memory
            self._is_long = connection.needed > SHORT_BYTES
            if not self.frame_since_ns and self._reading:
                self._frame_begins(now_ns)
        self.proceed()
        if (
            self._is_long
            and not self._receive_wait_since_ns
            and not self.closed
            and not self._frontend.receive_budget.took(self, count)
        ):
            self._receive_wait_since_ns = now_ns
            if self._reading:
                self._transport.pause_reading()

    def resume_receiving(self) -> None:
        """Resume reading because it is this connection's turn. The wait does not count against the
        client."""
        now_ns = self._frontend.context.clock.now_ns()
        waited_ns = now_ns - self._receive_wait_since_ns
        self._receive_wait_since_ns = 0
        if not self._reading:
            return
        self.last_active_ns += waited_ns
        if self.frame_since_ns:
            self.frame_since_ns += waited_ns
            self._last_progress = self._last_progress[0] + waited_ns, self._last_progress[1]
        self._transport.resume_reading()

    def resume_starting(self) -> None:
        """Start waiting requests because it is this connection's turn."""
        self._queued = self._reads_ahead = False
        try:
            self.proceed()
        except Exception as error:  # noqa: BLE001 - the connection edge
            self._frontend.session_failed(self, error)

    def receive(self, data: Buffer) -> None:
        """Process bytes that arrived, for callers that already hold them."""
        view = memoryview(data)
        while view and not self.closed:
            into = self.get_buffer(len(view))
            count = min(len(into), len(view))
            into[:count] = view[:count]
            self.buffer_updated(count)
            view = view[count:]

    def pause_writing(self) -> None:
        """Stop starting and sending, because too much is unsent."""
        self._writable = False

    def resume_writing(self) -> None:
        """Send the unsent bytes and go on, because the transport takes more."""
        if self.closed:
            return
        if self._unsent and not self._give(self._unsent):
            return
        self._writable = True
        self.mark()

    def resume_sending(self) -> None:
        """Send a long answer because it is this connection's turn."""
        try:
            self.resume_writing()
        except Exception as error:  # noqa: BLE001 - the connection edge
            self._frontend.session_failed(self, error)

    def connection_lost(self) -> None:
        """Cancel pending answers and free all memory, because the client is gone."""
        if self.closed:
            return
        self.closed = True
        if self._mute_timer is not None:
            self._mute_timer.cancel()
            self._mute_timer = None
        self._waiting.clear()
        self._out.clear()
        self._unsent = ()
        requests = self._frontend.context.requests
        for exchange in self._started:
            answer = exchange.answer
            if type(answer) is not Later or answer.done:
                continue
            kept = 0
            if exchange.api.pipelined:
                kept = min(exchange.counted, self._charged)
            elif exchange.is_decoding:
                kept = min(exchange.counted + self._decoded, self._charged)
            if not kept:
                answer.cancel()
                continue
            # The work goes on without the client: its batches still wait for their check or for the
            # log, or the request for being decoded. It keeps its bytes until then.
            self._charged -= kept
            answer.detach(partial(requests.change, -kept))
        self._started.clear()
        on_lost, self.info.on_lost = self.info.on_lost, None
        if on_lost is not None:
            on_lost()
        self.info.answers.close()
        requests.change(-self._charged)
        self._charged = 0
        requests.finished(self)
        requests.leave(self)
        self._decoded = 0
        self._return_moderate()
        self._frontend.large_requests.pop(self, None)
        self._frontend.waiting_to_start.pop(self, None)
        if self._receive_wait_since_ns:
            self._frontend.receive_budget.leave(self)
        self._frontend.send_budget.leave(self)
        if self._queued:
            self._frontend.start_budget.leave(self)
        self._frontend.forget(self)

    # --- requests ----------------------------------------------------------------------------
    def end(self, reason: str) -> None:
        """Start no further request, and close when the started ones are answered."""
        self.ending = self.ending or reason
        # Answers may take long to leave; the waiting requests are not counted meanwhile.
        self._bytes_in_flight -= sum(request.bytes for request in self._waiting)
        self._waiting.clear()
        self._frontend.waiting_to_start.pop(self, None)
        self._frontend.context.requests.leave(self)
        if self._started or self._out or self._unsent or self._is_refused:
            self.mark()
        else:
            self._close()

    def close(self, reason: str) -> None:
        """Close once the answers already built are sent. Drop requests under way."""
        self.ending = reason
        self._close()

    def abort(self, reason: str) -> None:
        """Close immediately. Drop everything under way."""
        self.ending = reason
        transport = self._transport
        self.connection_lost()
        transport.abort()

    def stop(self) -> None:
        """Stop with the server: let started appends finish, drop everything else."""
        if any(not exchange.api.pipelined for exchange in self._started):
            self.abort("stopping")
        else:
            self.end("stopping")

    def _frame_begins(self, now_ns: int) -> None:
        """Start measuring the time that the client takes to send a request."""
        self.frame_since_ns = now_ns
        self._frame_from = self._connection.arrived
        self._last_progress = now_ns, self._frame_from

    def is_slow(self, now_ns: int, deadline_ns: int) -> bool:
        """Return True if the arriving request made no progress for a whole deadline."""
        if self._receive_wait_since_ns or not 0 < self.frame_since_ns <= now_ns - deadline_ns:
            return False
        arrived = self._connection.arrived
        if self._frontend.context.requests.waiting and self._charged > SMALL_BYTES:
            took_ns = now_ns - self.frame_since_ns
            if (arrived - self._frame_from) * _SECOND_NS < CONTENDED_RATE_MIN * took_ns:
                return True
        looked_ns, before = self._last_progress
        if looked_ns > now_ns - deadline_ns:
            return False
        self._last_progress = now_ns, arrived
        return (arrived - before) * _SECOND_NS < FRAME_RATE_MIN * (now_ns - looked_ns)

    def is_stalled(self, now_ns: int, deadline_ns: int) -> bool:
        """Return True if the connection holds memory that others wait for and makes no progress.

        That is the case if it takes no answers, or takes them too slowly, or its request does not
        arrive. A connection that takes long to read must prove again that it reads, even if no
        other waits.
        """
        context = self._frontend.context
        before_ns = now_ns - deadline_ns // _STALL_PARTS
        if 0 < self._unsent_since_ns <= before_ns:
            self.info.answers.taken = 0
            is_waited_for = context.answers.waiting or (
                context.requests.waiting and self._charged > SMALL_BYTES
            )
            if is_waited_for and (
                self.stuck_since_ns <= before_ns or self._reads_slowly(now_ns, deadline_ns)
            ):
                return True
        return (
            context.requests.waiting > 0
            and self._reading
            and not self._receive_wait_since_ns
            and self._charged > SMALL_BYTES
            and self.frame_since_ns > 0
            and self.last_active_ns <= before_ns
        )

    def _reads_slowly(self, now_ns: int, deadline_ns: int) -> bool:
        """Return True if at the rate so far the unsent bytes take longer than a deadline."""
        taken = self._unsent_at_first - sum(map(len, self._unsent))
        return taken * deadline_ns < self._unsent_at_first * (now_ns - self._unsent_since_ns)

    @property
    def unsent_bytes(self) -> int:
        """Bytes of memory that unsent answers keep alive, counted anew."""
        return _pinned([*self._unsent, *self._out])

    @property
    def arriving_bytes(self) -> int:
        """Bytes of memory of arriving and unanswered requests, counted anew; 0 if few."""
        count = self._bytes_in_flight + self._connection.held
        return count if count > SMALL_BYTES else 0

    @property
    def busy(self) -> bool:
        """True if a started request waits for its answer, or the client waits out a throttle time.

        False if the answer waits only for the client to read.
        """
        return (bool(self._started) and self._writable) or self._muted_until_ns > 0

    def mark(self) -> None:
        """Schedule `proceed` at the end of the turn."""
        if not self._marked and not self.closed:
            self._marked = True
            self._frontend.mark(self)

    def proceed(self) -> None:
        """Send known answers, and start the requests that may start."""
        self._marked = False
        send_at = self._frontend.context.config.write_buffer_bytes_max
        while not self.closed and self._writable:
            if self._started and self._answer_first():
                if self._out_bytes >= send_at:
                    self._send()  # the transport says here if there is room for more
                continue
            if not self._waiting or not self._may_start():
                break
            self._start(self._waiting.popleft())
        if self.closed:
            return
        if self._out and self._writable:
            self._send()
        if self.ending and not (self._started or self._waiting or self._unsent or self._is_refused):
            self._close()
            return
        self._regulate()

    def _send(self) -> None:
        out, self._out = self._out, []
        self._out_bytes = 0
        self._give(out)

    def _give(self, buffers: Sequence[Buffer]) -> bool:
        """Pass buffers to the transport. Return True if it took all; keep and count the rest."""
        answers = self.info.answers
        size = sum(map(len, buffers))
        if size >= LONG_ANSWER_BYTES:
            pace = self._frontend.send_budget
            if not pace.may_send(self):
                self._writable = False
                answers.hold(_pinned(buffers))
                self._unsent = buffers
                return False
            rest = self._transport.send(buffers)
            pace.sent(size - sum(map(len, rest)))
        else:
            rest = self._transport.send(buffers)
        if not rest:
            answers.taken += size
            if answers.held:
                answers.hold(0)
            self.stuck_since_ns = self._unsent_since_ns = 0
            self._unsent = ()
            return True
        self._writable = False
        left = sum(map(len, rest))
        now_ns = self._frontend.context.clock.now_ns()
        if left < size or not self.stuck_since_ns:
            self.stuck_since_ns = now_ns
        if not self._unsent_since_ns:
            self._unsent_since_ns, self._unsent_at_first = now_ns, left
        pinned = _pinned(rest)
        if pinned > 2 * left:
            rest, pinned = [b"".join(rest)], left
        answers.taken += size - left
        answers.hold(pinned)
        self._unsent = rest
        return False

    def _may_start(self) -> bool:
        api = API.get(self._waiting[0].api_key)
        if api is None:
            return not self._started  # `_start` ends the connection for it; it is not decoded
        if not api.pipelined:
            request = self._waiting[0]
            is_small = request.bytes <= SMALL_REQUEST_BYTES
            if self._started or not self._is_its_turn(self.last_active_ns, is_small=is_small):
                return False
            if api.large_answer and not self._has_room():
                return False
            audit = self._frontend.context.audit
            if (
                audit is not None
                and api.key in CHANGES
                and audit.is_full(self.info.asker, is_super=self._is_super())
            ):
                self._hold_back(FULL_RETRY_MS)
                return False
            return request.bytes <= DECODED_FROM_BYTES or self._may_decode(api, request)
        if self._started:
            last = self._started[-1]
            if not last.api.pipelined or (type(last.answer) is Later and last.answer.holding):
                return False
            if last.is_decoding:
                return False
            if last.wide is not None and not last.wide.is_done:
                return False
        pace = self._frontend.start_budget
        if pace.started_ns >= pace.until_ns and not self._is_its_turn(self._waiting[0].arrived_ns):
            return False
        context = self._frontend.context
        checks = context.record_checks
        if context.host.overloaded or (checks.is_short and checks.has_its_share(self.info.asker)):
            self._hold_back(context.config.overload_retry_ms)
            return False
        size = self._waiting[0].bytes
        if size > LARGE_BYTES_COUNTED and not self._may_start_large(size):
            self._hold_back(context.config.overload_retry_ms)
            return False
        return True

    def _may_start_large(self, size: int) -> bool:
        """Return True if a Produce of `size` bytes may start now.

        Only one large Produce is checked at a time, and few bytes of earlier ones may still be in
        memory without being in a segment.
        """
        context = self._frontend.context
        large_bytes = context.host.large_bytes
        return not context.record_checks.has_large and (
            not large_bytes or large_bytes + size <= LARGE_LED_BYTES_MAX
        )

    def _is_super(self) -> bool:
        authorizer = self._frontend.context.authorizer
        return authorizer is not None and authorizer.is_super(self.info.principal)

    def _hold_back(self, for_ms: int) -> None:
        """Delay the next request until `release`."""
        if not self._held_back:
            self._held_back = True
            self._frontend.hold_back(self, for_ms)

    @property
    def asker(self) -> str:
        """See `Starter`."""
        return self.info.asker

    def _is_its_turn(self, since_ns: int, *, is_small: bool = False) -> bool:
        """Return True if the turn's budget allows a request to start or an answer to be built.

        If not, queue the session as waiting since `since_ns`.
        """
        pace = self._frontend.start_budget
        if pace.started_ns < pace.until_ns:
            return True
        if not self._queued:
            self._queued = not pace.may_start(self, since_ns, is_small=is_small)
        return not self._queued

    def _may_decode(self, api: Api, request: Request) -> bool:
        """Return True if there is memory for the decoded request; if not, queue for it."""
        decoded = decoded_bytes(
            request.bytes, api.key, request.api_version, passed_on=bool(api.passed_on)
        )
        if not decoded:
            return True
        memory = self._frontend.context.requests
        if not memory.has_room_for(decoded) and memory.take_moderate(decoded):
            self._moderate = decoded
        elif not memory.may_start(self, decoded):
            memory.wait_to_start(self, self.mark, decoded)
            self._frontend.waiting_to_start[self] = None
            self._frontend.answer_early()
            return False
        self._frontend.waiting_to_start.pop(self, None)
        self._is_decoded(decoded)
        memory.leave(self)
        return True

    def _is_decoded(self, count: int) -> None:
        """Charge `count` more bytes until the request is answered."""
        self._decoded += count
        self._charged += count
        self._frontend.context.requests.change(count)
        self._frontend.large_requests[self] = None

    def _return_moderate(self) -> None:
        if self._moderate:
            self._frontend.context.requests.return_moderate(self._moderate)
            self._moderate = 0

    def answer_early(self) -> None:
        """Answer a long poll of this connection now, because others wait for its memory."""
        if self._started:
            answer = self._started[0].answer
            if type(answer) is Later and answer.answer_early is not None:
                answer.answer_early()

    def _has_room(self) -> bool:
        """Return True if there is memory for a large answer; if not, queue the session for it."""
        memory = self._frontend.context.answers
        answers = self.info.answers
        if memory.used > memory.ample and not answers.limit():
            answers.wait(self.mark)
            return False
        answers.stop_waiting()
        return True

    def _starts_now(self) -> None:
        """Count the start of work that waited for its turn."""
        budget = self._frontend.start_budget
        budget.started_ns = self._frontend.context.clock.now_ns()
        budget.starts += 1

    def release(self) -> None:
        """End the delay of `_hold_back`: the host may have room again."""
        self._held_back = False
        self.mark()

    def _start(self, request: Request) -> None:
        api = API.get(request.api_key)
        version = request.api_version
        if api is None:
            self._bytes_in_flight -= request.bytes
            self.end(f"unknown API key {request.api_key}")
            return
        frontend = self._frontend
        budget = frontend.start_budget
        budget.started_ns = now_ns = frontend.context.clock.now_ns()
        budget.starts += 1
        exchange = Exchange(api, request, now_ns)
        self._started.append(exchange)
        login = self.info.login
        if login is not None and not login.allows(api.key, now_ns):
            exchange.answer = Reply.CLOSE
            if login.state is LoginState.DONE:
                self.end(f"expired: {api.name} after the end of its session")
            else:
                self.end(f"unproved: {api.name} in state {login.state.value}")
            return
        if version == BARE_TOKEN and self._connection.bare_tokens:
            self._take_token(exchange, request)
            return
        if not api.min_version <= version <= api.max_version:
            if api.key == _API_VERSIONS:
                exchange.version = 0
                exchange.answer = unsupported_version()
            else:
                exchange.answer = Reply.CLOSE
                self.end(f"unsupported version {version} of {api.name}")
            return
        ctx = self._context_of(exchange, request)
        if len(request.body) > LOOP_BYTES and not api.pipelined:
            self._decode_later(exchange, ctx, request)
            return
        try:
            message = api.wire.decode_request(request.body, version, LOOP_ELEMENTS)
        except TooManyElements:
            self._decode_later(exchange, ctx, request)
            return
        except WireError as error:
            self._is_malformed(exchange, error)
            return
        if not api.pipelined:
            exchange.request = message
            if len(request.body) > NARROW_BYTES:
                self._begin(exchange, ctx, self._in_parts(api, version, message))
                return
        elif request.bytes > PARTITIONS_FROM_BYTES and (more := partitions_bytes(message)):
            self._count_partitions(exchange, more)
            self._begin(exchange, ctx, self._in_parts(api, version, message))
            return
        self._handle(exchange, ctx, message)

    def _in_parts(self, api: Api, version: int, message: Any) -> Decoded:
        replicas_max = self._frontend.context.config.replicas_per_server_max
        return in_parts(api, version, message, replicas_max)

    def _count_partitions(self, exchange: Exchange, more: int) -> None:
        """Charge `more` bytes for a Produce's partitions until it is answered."""
        exchange.counted += more
        self._bytes_in_flight += more
        self._charged += more
        self._frontend.context.requests.change(more)

    def _is_malformed(self, exchange: Exchange, error: BaseException) -> None:
        exchange.answer = Reply.CLOSE
        self.end(f"malformed {exchange.api.name} request: {error!r}")

    def _decode_later(self, exchange: Exchange, ctx: RequestContext, request: Request) -> None:
        """Decode a long request in a thread.

        A Produce comes here when decoding it on the loop reached the limit of elements. The memory
        for its partitions is charged once it is known; only one request of all connections is
        decoded at a time.
        """
        exchange.is_decoding = True
        exchange.answer = later = Later()

        def begin(outcome: Decoded | BaseException) -> None:
            exchange.is_decoding = False
            if isinstance(outcome, BaseException):
                self._is_malformed(exchange, outcome)
                return
            self._begin(exchange, ctx, outcome)

        def done(outcome: Decoded | BaseException) -> None:
            if not self.closed and isinstance(outcome, Decoded):
                self._count_partitions(exchange, outcome.partitions_bytes)
            later.complete(_InTurn(partial(begin, outcome)))

        replicas_max = self._frontend.context.config.replicas_per_server_max
        job = partial(decoded, exchange.api, exchange.version, request.body, replicas_max)
        self._frontend.context.decoding.run(ctx.asker, job, done)
        if not later.done:
            later.when_done(self._answered)

    def _begin(self, exchange: Exchange, ctx: RequestContext, outcome: Decoded) -> None:
        """Handle a decoded request that may have many elements, at once or in parts."""
        api, message = exchange.api, outcome.message
        if not api.pipelined:
            exchange.request = message
            if (
                api.passed_on
                and exchange.bytes > DECODED_FROM_BYTES
                and (more := passed_on_bytes(getattr(message, api.passed_on)))
            ):
                self._is_decoded(more)
        wide = exchange.wide = outcome.wide
        if wide is None:
            self._handle(exchange, ctx, message)
        else:
            wide.judge(ctx)
            self._begin_part(exchange, ctx, wide)

    def _begin_part(self, exchange: Exchange, ctx: RequestContext, wide: WideRequest) -> None:
        """Handle the next part."""
        exchange.request = part = wide.next_part()
        exchange.finishes = ()
        self._handle(exchange, ctx, part)

    def _handle(self, exchange: Exchange, ctx: RequestContext, message: Any) -> None:
        """Call the handler for a request, or for a part of one."""
        frontend = self._frontend
        wide = exchange.wide
        handler = exchange.api.handler if wide is None else wide.handler
        try:
            if frontend.context.authorizer is None and frontend.context.quotas is None:
                answer = handler(ctx, message)
            else:
                answer = self._start_checked(exchange, ctx, message, handler)
        except Exception as error:  # noqa: BLE001 - the connection edge: a request never ends a server
            exchange.request = message
            answer = error
        exchange.answer = answer
        if type(answer) is Later and not answer.done:
            answer.when_done(self._answered)
            if self._decoded and (
                frontend.waiting_to_start or frontend.context.requests.first is self
            ):
                frontend.answer_early()

    def _take_token(self, exchange: Exchange, request: Request) -> None:
        """Handle a token without a request header, as after SaslHandshake v0."""
        message = exchange.api.wire.SaslAuthenticateRequest(bytes(request.body))
        ctx = self._context_of(exchange, request)
        try:
            answer = exchange.api.handler(ctx, message)
        except Exception as error:  # noqa: BLE001 - the connection edge
            self._frontend.log_failure("bare token", error)
            answer = Reply.CLOSE
        exchange.answer = answer
        if type(answer) is Later and not answer.done:
            answer.when_done(self._answered)

    def _context_of(self, exchange: Exchange, request: Request) -> RequestContext:
        return RequestContext(
            self._frontend.context,
            self.info,
            exchange.api.key,
            exchange.version,
            request.correlation_id,
            request.client_id or "",
            exchange.started_ns,
            request.arrived_ns,
        )

    def _login_went_on(self) -> None:
        """Update the connection's state after a step of the login is answered."""
        login = self.info.login
        assert login is not None
        connection = self._connection
        connection.bare_tokens = login.bare_tokens
        if login.state is LoginState.FAILED:
            self._frontend.login_failures += 1
            self._is_refused = True
            self.end(f"login: {login.failure}")
            self._frontend.context.clock.call_later(_REFUSED_NS, self._refusal_is_read)
        elif login.state is LoginState.DONE:
            connection.bytes_max = self._frontend.context.config.request_bytes_max
            self._frontend.proved(self)

    def _start_checked(
        self, exchange: Exchange, ctx: RequestContext, message: Any, handler: Handler
    ) -> Any:
        """Call the handler for the part of a request that permissions and quotas allow."""
        context, api = ctx.server, exchange.api
        if context.authorizer is not None:
            outcome = check_request(context.authorizer, api, ctx, message)
            if isinstance(outcome, Refused):
                return outcome.answer
            exchange.finishes = outcome
        quotas = context.quotas
        if quotas is None:
            return handler(ctx, message)
        exchange.measured = ctx
        if api.key in STRICT_FROM:
            wait_ms, change = take(quotas, api, ctx, message)
            exchange.throttle_ms = max(exchange.throttle_ms, wait_ms)
            if isinstance(change, Refused):
                return change.answer
            if change is not None:
                exchange.finishes = (*exchange.finishes, change)
        try:
            return handler(ctx, message)
        finally:
            now_ns = context.clock.now_ns()
            exchange.used_ns += now_ns - self._frontend.start_budget.started_ns

    def _refusal_is_read(self) -> None:
        self._is_refused = False
        self.mark()

    def _answered(self, later: Later) -> None:
        del later
        self.mark()

    def _answer_first(self) -> bool:
        """Send the oldest answer. Return False if it is not known or there is no room for it."""
        exchange = self._started[0]
        answer = exchange.answer
        if type(answer) is Later:
            if not answer.done:
                return False
            answer = answer.response
        wide = exchange.wide
        if type(answer) is _InTurn:
            if not self._is_its_turn(exchange.started_ns):
                return False
            self._starts_now()
            answer.step()
            return True
        if type(answer) is Unbuilt:
            has_begun = wide is not None and wide.bytes > 0  # it must finish to free its memory
            if not self._is_its_turn(exchange.started_ns) or not (has_begun or self._has_room()):
                return False
            self._starts_now()
            try:
                answer = answer.build()
            except Exception as error:  # noqa: BLE001 - the connection edge
                answer = error
            if exchange.measured is not None:
                now_ns = self._frontend.context.clock.now_ns()
                exchange.used_ns += now_ns - self._frontend.start_budget.started_ns
        if wide is not None:
            if self._goes_on(exchange, wide, answer):
                return True
            answer = exchange.answer
        self._started.popleft()
        self._bytes_in_flight -= exchange.counted
        if self._decoded:
            # `_regulate` frees its memory. Its priority over other sessions ends now, because it
            # may have the next such request waiting.
            self._decoded = 0
            self._return_moderate()
            self._frontend.large_requests.pop(self, None)
            self._frontend.context.requests.finished(self)
        if isinstance(answer, BaseException):
            answer = self._frontend.handler_failed(exchange, answer)
        if exchange.finishes:
            answer = self._finish(exchange, answer)
        if exchange.measured is not None:
            self._throttle(exchange, exchange.measured, answer)
        size = self._emit(exchange, answer) if not isinstance(answer, Reply) else 0
        self.last_active_ns = self._frontend.finished(exchange, size)
        if self.info.login is not None and exchange.api.key in LOGIN_APIS:
            self._login_went_on()
        if answer is Reply.CLOSE:
            self.end(f"{exchange.api.name} failed, and its protocol has no answer to say so")
        return True

    def _goes_on(self, exchange: Exchange, wide: WideRequest, answer: Any) -> bool:
        """Add the answer of a part, and schedule the next part for a later turn.

        Return False after the last part; the answer to send is then in the exchange.
        """
        if isinstance(answer, BaseException):
            answer = self._frontend.handler_failed(exchange, answer)
        answer = self._finish(exchange, answer)
        exchange.finishes = ()
        try:
            wide.take(answer)
        except EncodeError as error:
            wide.take(self._frontend.handler_failed(exchange, error))
        self.info.answers.reserve(wide.bytes)
        if wide.is_done:
            exchange.answer, exchange.request = wide.answer, wide.message
            return False
        exchange.answer = pause = Later()
        pause.when_done(self._answered)
        step = partial(self._begin_part, exchange, wide.context, wide)
        # One timer tick later, after the next poll of the sockets.
        self._frontend.context.clock.call_later(1, partial(pause.complete, _InTurn(step)))
        return True

    def _finish(self, exchange: Exchange, answer: Any) -> Any:
        """Apply the filters of the exchange to the handler's answer."""
        try:
            return finished(answer, exchange.finishes)
        except Exception as error:  # noqa: BLE001 - the connection edge
            return self._frontend.handler_failed(exchange, error)

    def _throttle(self, exchange: Exchange, ctx: RequestContext, answer: Any) -> None:
        """Count the use of a request against its quotas.

        If the client is over a quota, the answer carries the throttle time and the connection is
        not read for that long (KIP-219).
        """
        context = self._frontend.context
        quotas, user, client_id = context.quotas, ctx.principal.name, ctx.client_id
        can_say = hasattr(answer, "throttle_time_ms")
        # The bytes that a Fetch read are counted already; their throttle time is in its answer.
        wait_ms = max(exchange.throttle_ms, answer.throttle_time_ms if can_say else 0)
        if quotas is not None:
            now_ns = context.clock.now_ns()
            percent = exchange.used_ns * 100 / _SECOND_NS
            waits_ms = quotas.use(Quota.REQUEST, user, client_id, percent, now_ns)
            wait_ms = max(wait_ms, min(waits_ms, REQUEST_THROTTLE_MS_MAX))
            if exchange.api.pipelined:
                waits_ms = quotas.use(Quota.PRODUCE, user, client_id, exchange.bytes, now_ns)
                wait_ms = max(wait_ms, waits_ms)
            if wait_ms:
                quotas.note_throttle(wait_ms)
        if not wait_ms:
            return
        if can_say:
            answer.throttle_time_ms = wait_ms
        until_ns = context.clock.now_ns() + wait_ms * MS
        if until_ns > self._muted_until_ns:
            self._muted_until_ns = until_ns
            if self._mute_timer is not None:
                self._mute_timer.cancel()
            self._mute_timer = context.clock.call_later(wait_ms * MS, self._unmute)

    def _unmute(self) -> None:
        """Read the connection again after the throttle time."""
        self._mute_timer = None
        self._muted_until_ns = 0
        self.mark()

    def _emit(self, exchange: Exchange, answer: Any) -> int:
        """Queue the frame of one answer. Return its size."""
        api = exchange.api
        if type(answer) is Encoded:
            body = answer.buffers
        elif exchange.version == BARE_TOKEN:
            if answer.error_code:
                return 0  # the protocol has no error answer here; the connection is closed
            body = [answer.auth_bytes]
        else:
            try:
                if exchange.wide is None:
                    body = api.wire.encode_response(answer, exchange.version)
                else:
                    body = exchange.wide.encoded()
            except EncodeError as error:
                answer = self._frontend.handler_failed(exchange, error)
                body = api.wire.encode_response(answer, exchange.version)
        size = sum(map(len, body))
        if exchange.version == BARE_TOKEN:
            head = _TOKEN_HEAD(size)
        elif exchange.version >= api.wire.FLEXIBLE_FROM and api.key != _API_VERSIONS:
            head = _HEAD_FLEXIBLE(size + 5, exchange.correlation_id)
        else:
            head = _HEAD(size + 4, exchange.correlation_id)
        self._out.append(head)
        self._out += body
        self._out_bytes += len(head) + size
        answers = self.info.answers
        if self._out_bytes > UNCOUNTED_BYTES:
            answers.hold(self._out_bytes)
        if answers.reserved:
            answers.reserve(0)
        return size

    def _regulate(self) -> None:
        """Stop reading at a bound, and resume when half of it is free."""
        config = self._frontend.context.config
        requests = len(self._waiting) + len(self._started)
        login = self.info.login
        if self.ending or not self._writable or self._reads_ahead or self._muted_until_ns:
            may_read = False
        elif login is not None and not login.was_done:
            may_read = not requests
        elif self._reading:
            may_read = (
                requests < config.requests_in_flight_max
                and self._bytes_in_flight < config.request_bytes_in_flight_max
            )
        else:
            may_read = (
                requests <= config.requests_in_flight_max // 2
                and self._bytes_in_flight <= config.request_bytes_in_flight_max // 2
            )
        held = self._bytes_in_flight + self._arriving + self._decoded
        if held > SMALL_BYTES or self._charged:
            may_read = self._charge(held, may_read=may_read)
        if may_read is self._reading:
            return
        self._reading = may_read
        if not may_read:
            self.frame_since_ns = 0
            self._transport.pause_reading()
            return
        if self._connection.mid_request:
            # This happens once per request: only whole requests count, so no bound can be reached
            # again before this one is whole.
            now_ns = self._frontend.context.clock.now_ns()
            self.last_active_ns = now_ns
            self._frame_begins(now_ns)
        if not self._receive_wait_since_ns:
            self._transport.resume_reading()

    def _charge(self, held: int, *, may_read: bool) -> bool:
        """Charge the memory of this connection's requests, including one more read.

        Return False if there is no room: the connection is not read, and queues for memory.
        """
        memory = self._frontend.context.requests
        counted = held if held > SMALL_BYTES else 0
        more = counted - self._charged
        if more > 0:
            is_alone = not self._bytes_in_flight
            if not memory.may_have(self, more, is_alone=is_alone):
                if may_read and is_alone:
                    memory.wait(self, self.mark)
                return False
        self._charged = counted
        memory.change(more)
        if not counted:
            memory.finished(self)
        memory.leave_arriving(self)
        return may_read

    def _close(self) -> None:
        transport = self._transport
        rest = self._unsent
        self.connection_lost()
        transport.close(rest)


def _pinned(buffers: Sequence[Buffer]) -> int:
    """Return the bytes that these buffers keep in memory: the whole object behind each slice."""
    sizes: dict[int, int] = {}
    for buffer in buffers:
        owner = buffer.obj if isinstance(buffer, memoryview) else buffer
        if id(owner) not in sizes:
            sizes[id(owner)] = memoryview(owner).nbytes
    return sum(sizes.values())
