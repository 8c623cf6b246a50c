"""Front end: all client connections of one server.

`Frontend.accept` makes a `Session` for a connection; `session.py`, `admission.py` and
`connection.py` have the rules within one connection. Rules for all connections together:

* When all connections of the server or of a listener are taken, a new one displaces one of the
  address that has the most: the one that has been silent longest (`crowd.py`).
* Every bound is a setting: connections, connections per address, idle time, time in which an
  arriving request must make progress. A sweep once a second finds idle and stalled connections.
  Connections that stall while others wait for their memory are closed one by one.
* A connection that must log in and has not gets little: one request at a time, of
  `login_bytes_max`, for `LOGIN_SECONDS_MAX`. The number of such connections is bounded
  (`rpc/newcomers.py`).
* A turn of the loop has a budget for requests (`turn.py`, `turn_budget.py`), so requests never
  occupy the loop for long. The rest starts in later turns, in fair order of the connections, which
  are not read meanwhile. Long requests are received, and long answers sent, in parts.
* A handler that raises is counted, and the first failure of each kind is logged
  (`request_stats.py`).

Does not depend on sockets, the event loop, or the meaning of requests.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping

from rpc.newcomers import Newcomers, network_of
from vdl.clock import MS, Timer
from vdl.kafka.configs.ip_limits import ip_limits
from vdl.kafka.connections.connection import Transport
from vdl.kafka.connections.crowd import Crowd
from vdl.kafka.connections.logins import begin_login
from vdl.kafka.connections.request_stats import RequestStats
from vdl.kafka.connections.session import Session
from vdl.kafka.connections.turn import Turn
from vdl.kafka.context import ConnectionInfo, Context
from vdl.kafka.security.peer_address import canonical_host
from vdl.kafka.security.principal import ANONYMOUS, Principal

_SWEEP_NS = 1_000 * MS
_CUT_NS = 4 * MS
"""Delay between closing two stalled connections."""
_QUIET_NS = 60_000 * MS
LOGINS_MAX = 1_024
"""Maximum number of open connections that must log in and have not."""
_ORDINARY_ENDS = frozenset({"idle", "stopping"})


class Frontend:
    """All client connections of one server."""

    def __init__(self, context: Context, most_of: Mapping[str, int] | None = None) -> None:
        """`most_of`: maximum number of connections of each listener that has a bound of its own."""
        self.context = context
        self.turn = Turn(context)
        self.stats = RequestStats(
            context.log, context.clock.now_ns, slow_ns=context.config.slow_request_ms * MS
        )
        self.connections_accepted = 0
        self.connections_refused = 0
        self.connections_ended: Counter[str] = Counter()
        """Connections closed by this server, by the first word of the reason."""
        self._credentials_revision = 0, 0
        self._sessions: dict[int, Session] = {}
        self._crowd = Crowd()
        """The open connections, by address."""
        self._crowd_of: dict[str, Crowd] = {}
        """Connections of each listener that has a bound of its own."""
        self._most_of = most_of or {}
        self.unproved: Newcomers[Session] = Newcomers(LOGINS_MAX)
        """Connections that must log in and have not."""
        context.read_throttle.pace.watch(self.stats.by_api["Produce"])
        self._quiet_until_ns: dict[str, int] = {}
        self._sweep_timer: Timer | None = None
        self._stalled: deque[Session] = deque()
        """Sessions found stalled by a sweep, to be closed one by one."""
        self._cut_timer: Timer | None = None
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
    ) -> Session | None:
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
                silent.abort("crowded: too many connections, most of them from its address")
        answers = self.context.answers.account()
        info = ConnectionInfo(
            self._next_id, listener, host, peer[1], answers, principal, counts_as=network
        )
        if mechanisms:
            info.login = begin_login(self.context, mechanisms, network_of(host))
        self._next_id += 1
        self.connections_accepted += 1
        session = Session(
            self.turn, self.stats, transport, info, self.unproved.remove, self._forget
        )
        self._sessions[info.id] = session
        for crowd, _ in crowds:
            crowd.add(network, session)
        if mechanisms:
            displaced = self.unproved.add(session, host)
            if displaced is not None:
                displaced.abort("displaced: too many logins are in progress")
        if self._sweep_timer is None:
            self._sweep_timer = self.context.clock.call_later(_SWEEP_NS, self._sweep)
        return session

    def _forget(self, session: Session) -> None:
        """Remove a closed session."""
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
        self.stats.slow.turn_minute()
        for session in list(self._sessions.values()):
            login = session.info.login
            if login is not None and login.is_overdue(now_ns):
                session.abort("overdue: the login was not completed in time")
            elif session.is_slow(now_ns, deadline_ns):
                session.abort("slow: a request did not arrive in time")
            elif session.is_stalled(now_ns, deadline_ns):
                self._stalled.append(session)
            elif session.connection.last_active_ns <= idle_before and not session.busy:
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
                session.abort("stalled: made no progress while others waited for its memory")
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

    # --- for checks ------------------------------------------------------------------------------
    def unsent_bytes(self) -> int:
        """Return the sum of `Connection.unsent_bytes`. Costly; for checks."""
        return sum(session.connection.unsent_bytes for session in self._sessions.values())

    def arriving_bytes(self) -> int:
        """Return the sum of `Session.arriving_bytes`. Costly; for checks."""
        return sum(session.arriving_bytes for session in self._sessions.values())

    @property
    def last_active_ns(self) -> int:
        """Time when a client last sent something; 0 if there is no client."""
        return max((one.connection.last_active_ns for one in self._sessions.values()), default=0)

    # --- stop ------------------------------------------------------------------------------------
    def stop(self) -> None:
        """Accept no connection and no request, drop long polls, and let started appends finish."""
        self._stopping = True
        for session in list(self._sessions.values()):
            session.stop()

    def close(self) -> None:
        """Send known answers, then close every connection."""
        self._stopping = True
        self.turn.flush()
        for session in list(self._sessions.values()):
            session.close("stopping")
        self._stalled.clear()
        if self._sweep_timer is not None:
            self._sweep_timer.cancel()
            self._sweep_timer = None
