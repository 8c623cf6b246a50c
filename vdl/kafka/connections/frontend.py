"""Front end: all client connections of one server.

`Frontend.accept` makes a `ClientSession` for a connection; `client_session.py` has the rules within
one connection. Rules for all connections together:

* When all connections of the server or of a listener are taken, a new one displaces one of the
  address that has the most: the one that has been silent longest (`crowd.py`).
* Every bound is a setting: connections, connections per address, idle time, time in which an
  arriving request must make progress. A sweep once a second finds idle and stalled connections.
  Connections that stall while others wait for their memory are closed one by one.
* A connection that must log in and has not gets little: one request at a time, of
  `login_bytes_max`, for `LOGIN_SECONDS_MAX`. The number of such connections is bounded
  (`rpc/newcomers.py`).
* While a connection waits for memory, long polls that hold some are answered early.
* A turn of the loop has a budget for requests (`turn_budget`), so requests never occupy the loop
  for long. The rest starts in later turns, in fair order of the connections, which are not read
  meanwhile. Long requests are received, and long answers sent, in parts.
* Answers that become known in one turn are sent with one call per connection.
* A handler that raises is counted, and the first failure of each kind is logged. A bug in a session
  costs one connection.

Does not depend on sockets, the event loop, or the meaning of requests.
"""

from __future__ import annotations

import traceback
from collections import Counter, deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from rpc.newcomers import Newcomers, network_of
from vdl.clock import MS, Timer
from vdl.errors import ErrorCode
from vdl.kafka.answer import Reply
from vdl.kafka.api import API
from vdl.kafka.configs.ip_limits import ip_limits
from vdl.kafka.connections.client_session import ClientSession, Exchange, Transport
from vdl.kafka.connections.crowd import Crowd
from vdl.kafka.connections.logins import begin_login
from vdl.kafka.connections.turn_budget import ReceiveBudget, SendBudget, StartBudget
from vdl.kafka.context import ConnectionInfo, Context
from vdl.kafka.security.peer_address import canonical_host
from vdl.kafka.security.principal import ANONYMOUS, Principal

_SWEEP_NS = 1_000 * MS
_CUT_NS = 4 * MS
"""Delay between closing two stalled connections."""
_ANSWER_EARLY_NS = 20 * MS
"""Time that a poll may continue while it holds memory that others wait for."""
_QUIET_NS = 60_000 * MS
LOGINS_MAX = 1_024
"""Maximum number of open connections that must log in and have not."""
_ORDINARY_ENDS = frozenset({"idle", "stopping"})


class ApiStats:
    """Counters of one API since the start. `errors` counts handlers that raised."""

    __slots__ = ("bytes_in", "bytes_out", "errors", "requests", "total_ns")

    def __init__(self) -> None:
        self.requests = 0
        self.errors = 0
        self.bytes_in = 0
        self.bytes_out = 0
        self.total_ns = 0


class Frontend:
    """All client connections of one server."""

    def __init__(self, context: Context, most_of: Mapping[str, int] | None = None) -> None:
        """`most_of`: maximum number of connections of each listener that has a bound of its own."""
        self.context = context
        self.receive_budget = ReceiveBudget(context.clock)
        self.send_budget = SendBudget(context.clock)
        self.start_budget = StartBudget(context.clock)
        self.stats = {api.name: ApiStats() for api in API.values()}
        self.connections_accepted = 0
        self.connections_refused = 0
        self.connections_ended: Counter[str] = Counter()
        """Connections closed by this server, by the first word of the reason."""
        self.handler_errors = 0
        self.login_failures = 0
        self._credentials_revision = 0, 0
        self.large_requests: dict[ClientSession, None] = {}
        """Sessions whose decoded request is counted, longest first."""
        self.waiting_to_start: dict[ClientSession, None] = {}
        """Sessions that wait for memory for a decoded request."""
        self._sessions: dict[int, ClientSession] = {}
        self._crowd = Crowd()
        """The open connections, by address."""
        self._crowd_of: dict[str, Crowd] = {}
        """Connections of each listener that has a bound of its own."""
        self._most_of = most_of or {}
        self.unproved: Newcomers[ClientSession] = Newcomers(LOGINS_MAX)
        """Connections that must log in and have not."""
        self._marked: list[ClientSession] = []
        self._deferred: list[Callable[[], None]] = []
        context.defer = self.defer
        context.read_throttle.pace.watch(self.stats["Produce"])
        self._held_back: dict[int, list[ClientSession]] = {}
        """Sessions by delay (ms). Invariant: no list is empty, and each has a timer."""
        self._told: set[tuple[str, str]] = set()
        self._quiet_until_ns: dict[str, int] = {}
        self._flush_scheduled = False
        self._sweep_timer: Timer | None = None
        self._stalled: deque[ClientSession] = deque()
        """Sessions found stalled by a sweep, to be closed one by one."""
        self._cut_timer: Timer | None = None
        self._early_timer: Timer | None = None
        self._stopping = False
        self._next_id = 1

    def __len__(self) -> int:
        """Return the number of open connections."""
        return len(self._sessions)

    # --- connections -----------------------------------------------------------------------------
    def admits(self, address: str, listener: str) -> bool:
        """Return True if a connection may stay, as far as is known before its handshake.

        Counts the connection against the connection rate of its address.
        """
        host = canonical_host(address)
        quotas = self.context.quotas
        if not self._has_room_for(host, listener) or (
            quotas is not None and not quotas.may_connect(host, self.context.clock.now_ns())
        ):
            self.connections_refused += 1
            return False
        return True

    def _has_room_for(self, host: str, listener: str) -> bool:
        network, of_host = self._bound_of(host)
        return (
            not self._stopping
            and self._crowd.of(network) < of_host
            and all(crowd.has_room(network, most) for crowd, most in self._crowds_of(listener))
        )

    def _crowds_of(self, listener: str) -> list[tuple[Crowd, int]]:
        """Return the crowds in which a connection counts, each with its maximum."""
        crowds = [(self._crowd, self.context.config.connections_max)]
        most = self._most_of.get(listener, 0)
        if most:
            crowds.append((self._crowd_of.setdefault(listener, Crowd()), most))
        return crowds

    def _bound_of(self, host: str) -> tuple[str, int]:
        """Return the name under which a connection counts, and the maximum for that name."""
        config = self.context.config
        own = ip_limits(config.connections_of_ips_max).get(host)
        if own is not None:
            return host, own
        return network_of(host), config.connections_per_ip_max

    def accept(
        self,
        transport: Transport,
        listener: str,
        peer: tuple[str, int],
        *,
        principal: Principal = ANONYMOUS,
        mechanisms: tuple[str, ...] = (),
        is_admitted: bool = False,
    ) -> ClientSession | None:
        """Return the session of a new connection, or None if the caller must close it.

        `principal`: the client's identity as far as TLS shows it. `mechanisms`: the login
        mechanisms of which it must use one. `is_admitted`: `admits` was called before its
        handshake.
        """
        host = canonical_host(peer[0])
        if not is_admitted:
            if not self.admits(host, listener):
                return None
        elif not self._has_room_for(host, listener):
            self.connections_refused += 1
            return None
        network, _ = self._bound_of(host)
        crowds = self._crowds_of(listener)
        for crowd, most in crowds:
            if (silent := crowd.gives_way(network, most)) is not None:
                silent.abort("crowded: too many connections, most of them of its address")
        answers = self.context.answers.account()
        info = ConnectionInfo(
            self._next_id, listener, host, peer[1], answers, principal, counts_as=network
        )
        if mechanisms:
            info.login = begin_login(self.context, mechanisms, network_of(host))
        self._next_id += 1
        self.connections_accepted += 1
        session = ClientSession(self, transport, info, self.context.clock.now_ns())
        self._sessions[info.id] = session
        for crowd, _ in crowds:
            crowd.add(network, session)
        if mechanisms:
            displaced = self.unproved.add(session, host)
            if displaced is not None:
                displaced.abort("displaced: too many logins are under way")
        if self._sweep_timer is None:
            self._sweep_timer = self.context.clock.call_later(_SWEEP_NS, self._sweep)
        return session

    def proved(self, session: ClientSession) -> None:
        """Record that a session has logged in. Called by sessions."""
        self.unproved.remove(session)

    def forget(self, session: ClientSession) -> None:
        """Remove a closed session. Called by sessions."""
        self.unproved.remove(session)
        info = session.info
        del self._sessions[info.id]
        for crowd, _ in self._crowds_of(info.listener):
            crowd.remove(info.counts_as, session)
        if session.ending:
            self._log_end(info, session.ending)

    def _log_end(self, info: ConnectionInfo, reason: str) -> None:
        """Count the end of a connection, and log misbehaving clients at a limited rate.

        The rate limit applies per kind, which is the first word of the reason. Reasons that an
        operator must distinguish therefore begin with different words.
        """
        kind = reason.partition(" ")[0]
        self.connections_ended[kind] += 1
        now_ns = self.context.clock.now_ns()
        if kind not in _ORDINARY_ENDS and now_ns >= self._quiet_until_ns.get(kind, 0):
            self._quiet_until_ns[kind] = now_ns + _QUIET_NS
            self.context.log.warning(
                "client_disconnected",
                peer=f"{info.peer_host}:{info.peer_port}",
                client=info.client_software_name,
                reason=reason,
                count=self.connections_ended[kind],
            )

    def _sweep(self) -> None:
        """Close connections that are idle, or whose request makes no progress."""
        config = self.context.config
        now_ns = self.context.clock.now_ns()
        idle_before = now_ns - config.connection_idle_ms * MS
        deadline_ns = config.frame_deadline_ms * MS
        self._stalled.clear()
        for session in list(self._sessions.values()):
            login = session.info.login
            if login is not None and login.is_overdue(now_ns):
                session.abort("overdue: the login was not done in time")
            elif session.is_slow(now_ns, deadline_ns):
                session.abort("slow: a request did not get on")
            elif session.is_stalled(now_ns, deadline_ns):
                self._stalled.append(session)
            elif session.last_active_ns <= idle_before and not session.busy:
                session.abort("idle for too long")
        self._sweep_timer = None
        if self._sessions:
            self._sweep_timer = self.context.clock.call_later(_SWEEP_NS, self._sweep)
        if self._stalled and self._cut_timer is None:
            self._cut()

    def _cut(self) -> None:
        """Close one connection that is still stalled.

        Freeing its memory page by page takes time, so the next ones follow later; by then other
        connections may no longer wait for memory.
        """
        self._cut_timer = None
        now_ns = self.context.clock.now_ns()
        deadline_ns = self.context.config.frame_deadline_ms * MS
        while self._stalled:
            session = self._stalled.popleft()
            if not session.closed and session.is_stalled(now_ns, deadline_ns):
                session.abort("stalled: holds memory that others wait for, and does not get on")
                break
        if self._stalled:
            self._cut_timer = self.context.clock.call_later(_CUT_NS, self._cut)

    def credentials_changed(self) -> None:
        """Close the connections of users and tokens that were removed."""
        catalog = self.context.host.catalog
        revision = catalog.scram.revision, catalog.tokens.revision
        if revision == self._credentials_revision:
            return
        self._credentials_revision = revision
        for session in list(self._sessions.values()):
            login = session.info.login
            if login is not None and login.was_done and not login.holds():
                who = "token" if login.by_token else "user"
                session.abort(f"{who}: it was removed")

    # --- the turn ------------------------------------------------------------------------------
    def mark(self, session: ClientSession) -> None:
        """Schedule `proceed` of a session at the end of the turn. Called by sessions."""
        self._marked.append(session)
        self._schedule()

    def defer(self, step: Callable[[], None]) -> None:
        """Run `step` once at the end of this turn. Answers that it completes are sent in this
        turn."""
        self._deferred.append(step)
        self._schedule()

    def _schedule(self) -> None:
        if not self._flush_scheduled:
            self._flush_scheduled = True
            self.context.clock.call_soon(self.flush)

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
        for session in marked:
            if not session.closed:
                try:
                    session.proceed()
                except Exception as error:  # noqa: BLE001 - the connection edge
                    self.session_failed(session, error)

    def answer_early(self) -> None:
        """Schedule early answers of long polls that hold much memory. Called by sessions that wait.

        The delay keeps their clients from polling again as fast as they can.
        """
        if self._early_timer is None:
            self._early_timer = self.context.clock.call_later(_ANSWER_EARLY_NS, self._answer_early)

    def _answer_early(self) -> None:
        self._early_timer = None
        if self.waiting_to_start or self.context.requests.first is not None:
            for session in list(self.large_requests):
                session.answer_early()

    def hold_back(self, session: ClientSession, for_ms: int) -> None:
        """Call `release` of a session after `for_ms`. Called by sessions.

        Used when a request waits for room in the host or the audit log.
        """
        if for_ms not in self._held_back:
            self._held_back[for_ms] = []
            self.context.clock.call_later(for_ms * MS, partial(self._release_held, for_ms))
        self._held_back[for_ms].append(session)

    def _release_held(self, for_ms: int) -> None:
        for session in self._held_back.pop(for_ms):
            session.release()

    # --- bookkeeping -----------------------------------------------------------------------------
    def finished(self, exchange: Exchange, size: int) -> int:
        """Count one request as answered with `size` bytes. Return the current time (ns)."""
        now_ns = self.context.clock.now_ns()
        stats = self.stats[exchange.api.name]
        stats.requests += 1
        stats.bytes_in += exchange.bytes
        stats.bytes_out += size
        stats.total_ns += now_ns - exchange.started_ns
        return now_ns

    def handler_failed(self, exchange: Exchange, error: BaseException) -> Any:
        """Count the failure, log the first of its kind, and return UNKNOWN_SERVER_ERROR."""
        api = exchange.api
        self.stats[api.name].errors += 1
        self.log_failure(f"{api.name} v{exchange.version}", error)
        request = exchange.request
        if request is None:
            return Reply.CLOSE
        return api.failure(request, exchange.version, ErrorCode.UNKNOWN_SERVER_ERROR)

    def session_failed(self, session: ClientSession, error: BaseException) -> None:
        """Close one connection because of a bug in the front end."""
        self.log_failure("connection", error)
        session.abort("failed in the server")

    def log_failure(self, where: str, error: BaseException) -> None:
        self.handler_errors += 1
        kind = (where, type(error).__name__)
        if kind not in self._told:
            self._told.add(kind)
            self.context.log.error(
                "handler_failed",
                where=where,
                traceback="".join(traceback.format_exception(error)),
            )

    def unsent_bytes(self) -> int:
        """Return the sum of `ClientSession.unsent_bytes`. Costly; for checks."""
        return sum(session.unsent_bytes for session in self._sessions.values())

    def arriving_bytes(self) -> int:
        """Return the sum of `ClientSession.arriving_bytes`. Costly; for checks."""
        return sum(session.arriving_bytes for session in self._sessions.values())

    @property
    def last_active_ns(self) -> int:
        """Time when a client last sent something; 0 if there is no client."""
        return max((session.last_active_ns for session in self._sessions.values()), default=0)

    # --- stop ------------------------------------------------------------------------------------
    def stop(self) -> None:
        """Accept no connection and no request, drop long polls, and let started appends finish."""
        self._stopping = True
        for session in list(self._sessions.values()):
            session.stop()

    def close(self) -> None:
        """Send known answers, then close every connection."""
        self._stopping = True
        self.flush()
        for session in list(self._sessions.values()):
            session.close("stopping")
        self._stalled.clear()
        if self._sweep_timer is not None:
            self._sweep_timer.cancel()
            self._sweep_timer = None
