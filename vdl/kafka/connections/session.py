"""Session of one client: its identity, its login, its requests and their answers in order.

The owner of the socket (the listener, or a simulated network) reports what happens to the socket:
`buffer_updated`, `pause_writing`, `resume_writing`, `connection_lost`. `Connection` has the bytes.
`Admission` decides when a request may start, and if more is read. Rules:

* A request that `Admission` lets in is decoded and passed to the handler of its API. Answers leave
  in the order of the requests.
* A long request is decoded in a thread (`limits.decoding`). So is a request with many elements,
  which is detected when decoding on the loop reaches the limit. A request with many elements is
  done in parts if its API allows it (`vdl.kafka.parts`): one part per turn of the loop, when it is
  the connection's turn. Each part is authorized by the client's permissions at that time.
* Where clients have quotas (`vdl.kafka.limits.client_quotas`), the answer to a client over its
  quota carries the throttle time, and the connection is not read for that long.
* Unreadable bytes close the connection after earlier requests are answered. A handler that raises
  costs only its own request, which gets UNKNOWN_SERVER_ERROR, or the connection where the protocol
  has no answer. A bug in this folder costs one connection.

Does not depend on sockets, the event loop, other connections, or the meaning of requests.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from struct import Struct
from typing import Any

from segments.api import Buffer
from vdl.clock import MS
from vdl.kafka.answer import (
    Assembled,
    Encoded,
    InParts,
    Later,
    Paused,
    Reply,
    Traceable,
    Unbuilt,
)
from vdl.kafka.api import API, Api, Handler
from vdl.kafka.connections.admission import Admission, Exchange
from vdl.kafka.connections.connection import BARE_TOKEN, Connection, Request, Transport
from vdl.kafka.connections.request_stats import RequestStats
from vdl.kafka.connections.traced_request import Times, traced
from vdl.kafka.connections.turn import Turn
from vdl.kafka.connections.wide_request import (
    NARROW_BYTES,
    Decoded,
    WideRequest,
    decoded,
    in_parts,
    wide_answer,
)
from vdl.kafka.context import ConnectionInfo, RequestContext
from vdl.kafka.handlers.api_versions import unsupported_version
from vdl.kafka.limits.client_quotas import REQUEST_THROTTLE_MS_MAX, Quota
from vdl.kafka.limits.decoding import LOOP_BYTES
from vdl.kafka.limits.memory import (
    DECODED_FROM_BYTES,
    PARTITIONS_FROM_BYTES,
    SMALL_BYTES,
    partitions_bytes,
    passed_on_bytes,
)
from vdl.kafka.parts import LARGE_ELEMENTS, LOOP_ELEMENTS
from vdl.kafka.permissions.mutation_quota import STRICT_FROM, take
from vdl.kafka.permissions.rules import Refused
from vdl.kafka.permissions.table import check_request, finished
from vdl.kafka.security.login import LOGIN_APIS, LoginState
from vdl.kafka.wire.runtime import EncodeError, TooManyElements, WireError

_HEAD = Struct(">ii").pack
_HEAD_FLEXIBLE = Struct(">iix").pack
_TOKEN_HEAD = Struct(">i").pack
_API_VERSIONS = 18
_SECOND_NS = 1_000 * MS
_REFUSED_NS = 50 * MS
"""Delay between the answer that a login failed and the end of its connection. Some clients that
find both in one read report only the end."""
_NONE_STARTED = Later()
"""Placeholder for the oldest answer while no request has started."""


class _InTurn:
    """Placeholder for an answer: a step to run when it is the connection's turn."""

    __slots__ = ("step",)

    def __init__(self, step: Callable[[], None]) -> None:
        self.step = step


class Session:
    """Session of one client; see the module. It is in one of these states:

    state      event                                                   next
    OPEN       `buffer_updated`, `mark`: it proceeds                   OPEN
    OPEN       a login failed                                          REFUSED
    REFUSED    the client had time to read the answer                  ENDING
    OPEN       `end`; a fault of the connection; Reply.CLOSE           ENDING
    ENDING     all that started is answered, and sent                  CLOSED
    any        `close`, `abort`, `connection_lost`                     CLOSED

    OPEN: `ending` is empty. REFUSED and ENDING: no request is taken. CLOSED: `closed`; no more
    bytes go in or out.

    A started request, an `Exchange`, has one of these answers:

    answer     event                                                   next
    (none)     it must be decoded in a thread                          `Later`, `is_decoding`
    (none)     the handler returned (`_handle`)                        response, `Unbuilt`, `Later`
    `Later`    decoded, or time for the next part                      `_InTurn`
    `Later`    the handler has more to do                              `Paused`
    `Paused`   it is oldest, and it is its turn                        that of its step
    `InParts`  it is oldest, and it is its turn                        its first response
    `Later`    the handler's answer is known                           response or `Unbuilt`
    `_InTurn`  it is oldest, and it is its turn                        that of the handler
    `Unbuilt`  it is oldest, it is its turn, and there is memory       response, `InParts`
    response   it is oldest, of a part: the answers are joined         `Later`, until the next part
    response   it is oldest                                            sent
    """

    __slots__ = (
        "_is_refused",
        "_marked",
        "_on_lost",
        "_on_proved",
        "_started",
        "_stats",
        "_turn",
        "admission",
        "closed",
        "connection",
        "ending",
        "info",
    )

    def __init__(
        self,
        turn: Turn,
        stats: RequestStats,
        transport: Transport,
        info: ConnectionInfo,
        on_proved: Callable[[Session], object],
        on_lost: Callable[[Session], None],
    ) -> None:
        """`on_proved`: the client has logged in. `on_lost`: the session is closed."""
        self.info = info
        self.closed = False
        self.ending = ""
        """Reason why no further request is read; empty while requests are read."""
        self._turn = turn
        self._stats = stats
        self._on_proved = on_proved
        self._on_lost = on_lost
        config = turn.context.config
        self.connection = Connection(
            transport,
            turn,
            info.answers,
            config.request_bytes_max if info.login is None else config.login_bytes_max,
            self.resume_writing,
        )
        self.admission = Admission(turn, info, self.mark, self.proceed)
        self._started = self.admission.started
        self._is_refused = False
        """True for a moment after a failed login, so that the client can read the answer before the
        connection ends."""
        self._marked = False

    # --- from the transport --------------------------------------------------------------------
    def buffer_updated(self, count: int) -> None:
        """Process `count` bytes that were written to the connection's buffer."""
        connection = self.connection
        now_ns = self._turn.context.clock.now_ns()
        try:
            if self.ending:
                connection.last_active_ns = now_ns
                connection.frames.buffer_updated(count)
                return
            self.admission.arrived(connection.received(count, now_ns))
            if connection.fault:
                self.ending = f"unreadable: {connection.fault}"  # others are answered first
            self.proceed()
            if connection.is_long and not self.closed:
                connection.pace(count, now_ns)
        except Exception as error:  # noqa: BLE001 - the connection edge
            self._failed(error)

    def receive(self, data: Buffer) -> None:
        """Process bytes that arrived, for callers that already hold them."""
        view = memoryview(data)
        while view and not self.closed:
            into = self.connection.get_buffer()
            count = min(len(into), len(view))
            into[:count] = view[:count]
            self.buffer_updated(count)
            view = view[count:]

    def pause_writing(self) -> None:
        """Stop starting and sending, because too much is unsent."""
        self.connection.is_writable = False

    def resume_writing(self) -> None:
        """Send the unsent bytes and go on, because the transport takes more, or it is this
        connection's turn to send a long answer."""
        if self.closed:
            return
        connection = self.connection
        try:
            if connection.unsent and not connection.flush():
                return
        except Exception as error:  # noqa: BLE001 - the connection edge
            self._failed(error)
            return
        connection.is_writable = True
        self.mark()

    def connection_lost(self) -> None:
        """Cancel pending answers and free all memory, because the client is gone."""
        if self.closed:
            return
        self.closed = True
        info = self.info
        self.admission.cancel()
        on_lost, info.on_lost = info.on_lost, None
        if on_lost is not None:
            on_lost()
        info.answers.close()
        self.admission.close()
        self.connection.close()
        self._on_lost(self)

    # --- the end -------------------------------------------------------------------------------
    def end(self, reason: str) -> None:
        """Start no further request, and close when the started ones are answered."""
        self.ending = self.ending or reason
        self.admission.drop_waiting()
        connection = self.connection
        if self._started or connection.out_bytes or connection.unsent or self._is_refused:
            self.mark()
        else:
            self._close()

    def close(self, reason: str) -> None:
        """Close once the answers already built are sent. Drop requests under way."""
        self.ending = reason
        self._close()

    def abort(self, reason: str) -> None:
        """Close immediately. Drop everything under way."""
        if self.closed:
            return
        self.ending = reason
        transport = self.connection.transport
        self.connection_lost()
        transport.abort()

    def stop(self) -> None:
        """Stop with the server: let started appends finish, drop everything else."""
        if any(not exchange.api.pipelined for exchange in self._started):
            self.abort("stopping")
        else:
            self.end("stopping")

    def _close(self) -> None:
        connection = self.connection
        rest = connection.unsent
        self.connection_lost()
        connection.transport.close(rest)

    def _failed(self, error: BaseException) -> None:
        """Close the connection because of a bug in this folder."""
        self._stats.log_failure("connection", error)
        self.abort("failed in the server")

    # --- judged from time to time --------------------------------------------------------------
    def is_slow(self, now_ns: int, deadline_ns: int) -> bool:
        """Return True if the arriving request made no progress for a whole deadline."""
        is_waited_for = self.admission.is_waited_for
        return self.connection.is_slow(now_ns, deadline_ns, is_waited_for=is_waited_for)

    def is_stalled(self, now_ns: int, deadline_ns: int) -> bool:
        """Return True if the connection holds memory that others wait for and makes no progress."""
        is_waited_for = self.admission.is_waited_for
        return self.connection.is_stalled(now_ns, deadline_ns, is_waited_for=is_waited_for)

    @property
    def arriving_bytes(self) -> int:
        """Bytes of memory of arriving and unanswered requests, counted anew; 0 if few."""
        count = self.admission.bytes_in_flight + self.connection.frames.held
        return count if count > SMALL_BYTES else 0

    @property
    def busy(self) -> bool:
        """True if a started request waits for its answer, or the client waits out a throttle time.

        False if the answer waits only for the client to read.
        """
        is_throttled = self.admission.throttled_until_ns > 0
        return (bool(self._started) and self.connection.is_writable) or is_throttled

    # --- the turn ------------------------------------------------------------------------------
    def mark(self, later: Later | None = None) -> None:
        """Schedule `proceed` at the end of the turn, for instance because `later` is known."""
        turn = self._turn
        if not self._marked and not self.closed:
            self._marked = True
            turn.mark(self.proceed)
        if later is not None:
            later.known_ns = turn.known_ns

    def proceed(self) -> None:
        """Send known answers, start the requests that may start, and decide on reading. Never
        raises."""
        self._marked = False
        connection, admission, started = self.connection, self.admission, self._started
        send_at = self._turn.context.config.write_buffer_bytes_max
        try:
            while connection.is_writable and not self.closed:
                oldest = started[0].answer if started else _NONE_STARTED
                if (type(oldest) is not Later or oldest.done) and self._answer_first():
                    if connection.out_bytes >= send_at:
                        connection.flush()  # the transport says here if there is room for more
                elif admission.waiting and (request := admission.next(connection.last_active_ns)):
                    self._start(request)
                else:
                    break
            if self.closed:
                return
            if connection.out_bytes and connection.is_writable:
                connection.flush()
            if self.ending and not (
                started or admission.waiting or connection.unsent or self._is_refused
            ):
                self._close()
                return
            is_open = not self.ending and connection.is_writable
            reads = admission.may_read(connection.arriving, is_open=is_open, reads=connection.reads)
            if reads is not connection.reads:
                connection.set_reading(reads=reads)
        except Exception as error:  # noqa: BLE001 - the connection edge
            self._failed(error)

    # --- requests ------------------------------------------------------------------------------
    def _start(self, request: Request) -> None:
        api = API.get(request.api_key)
        if api is None:
            self.end(f"unknown API key {request.api_key}")
            return
        turn, version = self._turn, request.api_version
        now_ns = turn.started_ns
        exchange = Exchange(api, request, now_ns)
        self._started.append(exchange)
        login = self.info.login
        if login is not None and not login.allows(api.key, now_ns):
            exchange.answer = Reply.CLOSE
            if login.state is LoginState.DONE:
                self.end(f"expired: {api.name} after the end of its session")
            else:
                self.end(
                    f"unproved: {api.name} before the end of the login, in state "
                    f"{login.state.value}"
                )
            return
        ctx = RequestContext(
            turn.context,
            self.info,
            api.key,
            version,
            request.correlation_id,
            request.client_id or "",
            now_ns,
            request.arrived_ns,
        )
        if version == BARE_TOKEN and self.connection.bare_tokens:
            self._take_token(exchange, ctx, request)
            return
        if not api.min_version <= version <= api.max_version:
            if api.key == _API_VERSIONS:
                exchange.version = 0
                exchange.answer = unsupported_version()
            else:
                exchange.answer = Reply.CLOSE
                self.end(f"unsupported version {version} of {api.name}")
            return
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
            if len(request.body) > NARROW_BYTES or api.key in LARGE_ELEMENTS:
                self._begin(exchange, ctx, self._in_parts(api, version, message))
                return
        elif request.bytes > PARTITIONS_FROM_BYTES and (more := partitions_bytes(message)):
            self.admission.count_partitions(exchange, more)
            self._begin(exchange, ctx, self._in_parts(api, version, message))
            return
        self._handle(exchange, ctx, message)

    def _in_parts(self, api: Api, version: int, message: Any) -> Decoded:
        replicas_max = self._turn.context.config.replicas_per_server_max
        return in_parts(api, version, message, replicas_max)

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
                self.admission.count_partitions(exchange, outcome.partitions_bytes)
            later.complete(_InTurn(partial(begin, outcome)))

        context = self._turn.context
        replicas_max = context.config.replicas_per_server_max
        job = partial(decoded, exchange.api, exchange.version, request.body, replicas_max)
        context.decoding.run(ctx.asker, job, done)
        if not later.done:
            later.when_done(self.mark)

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
                self.admission.count_decoded(more)
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

    def _begin_pages(self, exchange: Exchange, answer: InParts) -> None:
        """Make the first response of an answer in parts, of a request or of a part of one."""
        wide = exchange.wide
        if wide is None:
            wide = wide_answer(exchange.api, exchange.version, exchange.request, answer)
            exchange.wide = wide
        self._next_page(exchange, wide, partial(wide.begin_pages, answer))

    def _next_page(
        self, exchange: Exchange, wide: WideRequest, begin: Callable[[], None] | None = None
    ) -> None:
        """Make the next response of an answer in parts."""
        try:
            if begin is not None:
                begin()
            exchange.answer = wide.next_page()
        except Exception as error:  # noqa: BLE001 - the connection edge
            exchange.answer = error
            wide.end_pages()
            if wide.is_answer:
                exchange.wide = None  # a part of it would be taken for all
        exchange.worked_ns = now_ns = self._turn.context.clock.now_ns()
        used_ns = now_ns - self._turn.started_ns
        wide.used(used_ns)
        if exchange.measured is not None:
            exchange.used_ns += used_ns

    def _handle(self, exchange: Exchange, ctx: RequestContext, message: Any) -> None:
        """Call the handler for a request, or for a part of one."""
        context, wide = ctx.server, exchange.wide
        handler = exchange.api.handler if wide is None else wide.handler
        try:
            if context.authorizer is None and context.quotas is None:
                answer = handler(ctx, message)
            else:
                answer = self._start_checked(exchange, ctx, message, handler)
        except Exception as error:  # noqa: BLE001 - the connection edge: a request never ends a server
            exchange.request = message
            answer = error
        exchange.answer = answer
        exchange.worked_ns = now_ns = context.clock.now_ns()
        if wide is not None:
            wide.used(now_ns - self._turn.started_ns)
        if type(answer) is Later and not answer.done:
            answer.when_done(self.mark)
            if self.admission.decoded:
                self.admission.hasten()

    def _go_on(self, exchange: Exchange, paused: Paused) -> None:
        """Let a handler continue in its turn."""
        try:
            answer = paused.step()
        except Exception as error:  # noqa: BLE001 - the connection edge
            answer = error
        exchange.answer = answer
        exchange.worked_ns = now_ns = self._turn.context.clock.now_ns()
        if exchange.measured is not None:
            exchange.used_ns += now_ns - self._turn.started_ns
        if type(answer) is Later and not answer.done:
            answer.when_done(self.mark)
            if self.admission.decoded:
                self.admission.hasten()

    def _take_token(self, exchange: Exchange, ctx: RequestContext, request: Request) -> None:
        """Handle a token without a request header, as after SaslHandshake v0."""
        message = exchange.api.wire.SaslAuthenticateRequest(bytes(request.body))
        try:
            answer = exchange.api.handler(ctx, message)
        except Exception as error:  # noqa: BLE001 - the connection edge
            self._stats.log_failure("bare token", error)
            answer = Reply.CLOSE
        exchange.answer = answer
        if type(answer) is Later and not answer.done:
            answer.when_done(self.mark)

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
            exchange.used_ns += context.clock.now_ns() - self._turn.started_ns

    # --- answers -------------------------------------------------------------------------------
    def _answer_first(self) -> bool:
        """Queue the oldest answer, which is known, or go on with its request. Return False if it
        has to wait for its turn or for memory."""
        exchange = self._started[0]
        answer = exchange.answer
        known_ns = busy_ns = 0
        about: Traceable | None = None
        if type(answer) is Later:
            known_ns, busy_ns, about = answer.known_ns, answer.busy_ns, answer.about
            answer.about = None  # it refers to the answer: no cycle may be left to the collector
            answer = answer.response
        admission, wide = self.admission, exchange.wide
        if type(answer) is _InTurn:
            if not admission.may_go_on(exchange.started_ns):
                return False
            answer.step()
            return True
        if type(answer) is Paused:
            if not admission.may_go_on(exchange.started_ns):
                return False
            self._go_on(exchange, answer)
            return True
        if type(answer) is InParts or type(answer) is Unbuilt:
            must_finish = wide is not None and wide.bytes > 0
            if not admission.may_build(exchange.started_ns, must_finish=must_finish):
                return False
        if type(answer) is Unbuilt:
            try:
                answer = answer.build()
            except Exception as error:  # noqa: BLE001 - the connection edge
                answer = error
            # The time of one that turns out to be made in parts counts for its first part.
            if type(answer) is not InParts and (exchange.measured is not None or wide is not None):
                turn = self._turn
                used_ns = turn.context.clock.now_ns() - turn.started_ns
                exchange.used_ns += used_ns
                if wide is not None:
                    wide.used(used_ns)
        if type(answer) is InParts:
            self._begin_pages(exchange, answer)
            return True
        if wide is not None:
            if self._goes_on(exchange, wide, answer):
                return True
            answer = exchange.answer
        admission.answered()
        if isinstance(answer, BaseException):
            answer = self._handler_failed(exchange, answer)
        if exchange.finishes:
            answer = self._finish(exchange, answer)
        if exchange.measured is not None:
            self._throttle(exchange, exchange.measured, answer)
        size = self._queue(exchange, answer) if not isinstance(answer, Reply) else 0
        api = exchange.api
        self.connection.last_active_ns = now_ns = self._turn.context.clock.now_ns()
        stats = self._stats.by_api[api.name]
        stats.requests += 1
        stats.bytes_in += exchange.bytes
        stats.bytes_out += size
        stats.total_ns += now_ns - exchange.started_ns
        is_slow = stats.answered(
            exchange.arrived_ns, exchange.started_ns, exchange.worked_ns, known_ns, now_ns, busy_ns
        )
        if is_slow:
            self._note_slow(exchange, answer, about, Times(known_ns, busy_ns, now_ns, size))
        if self.info.login is not None and api.key in LOGIN_APIS:
            self._login_went_on()
        if answer is Reply.CLOSE:
            self.end(f"{api.name} failed, and its response has no error code")
        return True

    def _note_slow(
        self, exchange: Exchange, answer: Any, about: Traceable | None, times: Times
    ) -> None:
        """Note a slow request. Nothing that is wrong here concerns its client."""
        try:
            context = self._turn.context
            self._stats.note_slow(traced(exchange, self.info, context, answer, about, times))
        except Exception as error:  # noqa: BLE001 - the connection edge
            self._stats.log_failure("trace", error)

    def _goes_on(self, exchange: Exchange, wide: WideRequest, answer: Any) -> bool:
        """Add the answer of a part, and schedule the next part for a later turn.

        Return False after the last part; the answer to send is then in the exchange.
        """
        clock = self._turn.context.clock
        from_ns = clock.now_ns()
        if isinstance(answer, BaseException):
            answer = self._handler_failed(exchange, answer)
        answer = self._finish(exchange, answer)
        try:
            wide.take(answer)
        except EncodeError as error:
            wide.take(self._handler_failed(exchange, error))
        if not wide.has_page:
            exchange.finishes = ()
        self.info.answers.reserve(wide.bytes)
        if wide.is_done:
            exchange.answer, exchange.request = wide.answer, wide.message
            return False
        wide.used(clock.now_ns() - from_ns)
        wide.part_over(self._turn.work_budget.part_ns)
        exchange.answer = pause = Later()
        pause.when_done(self.mark)
        step = partial(self._begin_part, exchange, wide.context, wide)
        if wide.has_page:
            step = partial(self._next_page, exchange, wide)
        # One timer tick later, after the next poll of the sockets.
        clock.call_later(1, partial(pause.complete, _InTurn(step)))
        return True

    def _finish(self, exchange: Exchange, answer: Any) -> Any:
        """Apply the filters of the exchange to the handler's answer."""
        try:
            return finished(answer, exchange.finishes)
        except Exception as error:  # noqa: BLE001 - the connection edge
            return self._handler_failed(exchange, error)

    def _handler_failed(self, exchange: Exchange, error: BaseException) -> Any:
        """Return the answer to a request whose handler raised."""
        return self._stats.handler_failed(exchange.api, exchange.version, exchange.request, error)

    def _throttle(self, exchange: Exchange, ctx: RequestContext, answer: Any) -> None:
        """Count the use of a request against its quotas.

        If the client is over a quota, the answer carries the throttle time and the connection is
        not read for that long (KIP-219).
        """
        context = ctx.server
        if type(answer) is Assembled:
            answer = answer.response
        quotas, user, client_id = context.quotas, ctx.principal.name, ctx.client_id
        can_say = hasattr(answer, "throttle_time_ms")
        # The bytes that a Fetch read are counted already; their throttle time is in its answer.
        wait_ms = max(exchange.throttle_ms, answer.throttle_time_ms if can_say else 0)
        quota = Quota.MUTATION if exchange.throttle_ms else Quota.FETCH
        if quotas is not None:
            now_ns = context.clock.now_ns()
            percent = exchange.used_ns * 100 / _SECOND_NS
            waits_ms = quotas.use(Quota.REQUEST, user, client_id, percent, now_ns)
            waits_ms = min(waits_ms, REQUEST_THROTTLE_MS_MAX)
            if waits_ms > wait_ms:
                wait_ms, quota = waits_ms, Quota.REQUEST
            if exchange.api.pipelined:
                waits_ms = quotas.use(Quota.PRODUCE, user, client_id, exchange.bytes, now_ns)
                if waits_ms > wait_ms:
                    wait_ms, quota = waits_ms, Quota.PRODUCE
            if wait_ms:
                quotas.note_throttle(wait_ms)
        if not wait_ms:
            return
        context.log.note(
            "throttled",
            client=ctx.client_text,
            api=exchange.api.name,
            quota=quota.value,
            throttle_ms=wait_ms,
        )
        if can_say:
            answer.throttle_time_ms = wait_ms
        self.admission.throttle(wait_ms)

    def _queue(self, exchange: Exchange, answer: Any) -> int:
        """Queue the frame of one answer. Return its size."""
        api, wire = exchange.api, exchange.api.wire
        if type(answer) is Encoded:
            body = answer.buffers
        elif exchange.version == BARE_TOKEN:
            if answer.error_code:
                return 0  # the protocol has no error answer here; the connection is closed
            body = [answer.auth_bytes]
        else:
            try:
                if type(answer) is Assembled:
                    body = answer.encode()
                elif exchange.wide is None:
                    body = wire.encode_response(answer, exchange.version)
                else:
                    body = exchange.wide.encoded()
            except EncodeError as error:
                answer = self._handler_failed(exchange, error)
                body = wire.encode_response(answer, exchange.version)
        size = sum(map(len, body))
        if exchange.version == BARE_TOKEN:
            head = _TOKEN_HEAD(size)
        elif exchange.version >= wire.FLEXIBLE_FROM and api.key != _API_VERSIONS:
            head = _HEAD_FLEXIBLE(size + 5, exchange.correlation_id)
        else:
            head = _HEAD(size + 4, exchange.correlation_id)
        self.connection.queue(head, body, len(head) + size)
        return size

    # --- the login -----------------------------------------------------------------------------
    def _login_went_on(self) -> None:
        """Update the connection's state after a step of the login is answered."""
        login = self.info.login
        assert login is not None
        connection, context = self.connection, self._turn.context
        connection.bare_tokens = login.bare_tokens
        if login.state is LoginState.FAILED:
            self._stats.login_failures += 1
            self._is_refused = True
            self.end(f"login: {login.failure}")
            context.clock.call_later(_REFUSED_NS, self._refusal_is_read)
        elif login.state is LoginState.DONE:
            connection.frames.bytes_max = context.config.request_bytes_max
            self.admission.logged_in()
            self._on_proved(self)

    def _refusal_is_read(self) -> None:
        self._is_refused = False
        self.mark()
