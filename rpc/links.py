"""The links of one server: dialling, handshake, one link per pair, liveness, loss.

This is the only implementation of that logic. It runs over `rpc.streams`, so that real sockets and
the simulator execute the same code.

**One link per pair of servers.** Both ends dial, so that either may be behind a firewall; a link
carries both directions and is one session. If two dials cross, *the dial of the lower server id
wins*. The lower end holds an inbound HELLO while its own attempt is in progress and accepts it only
if that attempt fails. The higher end accepts an inbound HELLO at once and drops its own attempt. A
peer dials only if it has no link. So an inbound HELLO of a linked peer means either that its end of
the link is lost, or that the HELLO crossed our own successful dial. In the first case the new
stream replaces the link. In the second it is refused, and the link is pinged to check it.

**Two processes of one server.** An inbound HELLO from another start of the linked peer's data
directory is held while the link is pinged. If the link ends, the peer was restarted, and the new
process takes its place. If the ping is answered, both processes run, one of them in a copy of the
directory. The second one is refused.

**Fast failover.** A link that ends unexpectedly is dialled again at once, before anything is
reported. A refused connection proves that the process is gone: `link_down(refused=True)`. A
connection that dies before HELLO, accepted or still in the listener's queue, belongs to a process
that is terminating; it is dialled again within milliseconds. A new link is reported as down and
then up: a new session. Anything slower is `link_down(refused=False)` after `redial_report_ms`, and
Raft's election timeout decides.

**Back-off** doubles from `backoff_first_ms` to `backoff_max_ms`, with jitter. A link that was open
for less than `stable_ms` is not dialled again at once, so that two servers that disagree do not
spin.

**Liveness.** A link that brings no byte for `silent_ms_max` is closed; one that is quiet for
`ping_idle_ms` is pinged first. If this server's own loop was stalled, all peers get that time back.

**Turns.** A link may hold more unread messages than this server can handle within the time it may
be silent: after a pause, or when thousands of groups send at once. If it handled all of them in one
turn of the loop, its peers would close their links before it answers, connect again, and send
everything again. So a link delivers no more than its part of `turn_messages_max` messages per turn.
The rest stays unread until the next turn, which may find that the link is closed. Code that relies
on what peers have reported must take unread messages into account: see `unread_ns`.

Does not depend on Raft, except for the number of messages in a frame; nor on sockets or asyncio.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType

from ids import NO_SERVER, ServerId
from rpc.backlog import Backlog
from rpc.errors import NoMemory, RemoteError
from rpc.frames import message_count
from rpc.hello import Hello, RejectReason
from rpc.link_options import DEFAULT_OPTIONS, LinkOptions
from rpc.newcomers import Newcomers
from rpc.peer import (
    Event,
    FrameType,
    HelloReceived,
    LinkState,
    PeerEngine,
    PongReceived,
    Rejected,
    Role,
)
from rpc.reader import Buffer
from rpc.streams import (
    Address,
    Clock,
    Dial,
    Dialer,
    DialFailed,
    LinkStatus,
    PeerHandler,
    Stream,
    Timer,
)
from rpc.tls_stream import LinkSecurity
from rpc.turn_share import FEWEST, TurnPace, TurnShare

_MS = 1_000_000
_NONE: Mapping[int, int] = MappingProxyType({})
_NEVER_BYTES = 1 << 62


# Reasons that persist: the next dial waits for the longest back-off.
_LASTING = frozenset(
    (
        RejectReason.WRONG_CLUSTER, RejectReason.WRONG_SERVER, RejectReason.VERSION,
        RejectReason.NOT_ADMITTED, RejectReason.TOO_MANY_LINKS, RejectReason.SECOND_PROCESS,
        RejectReason.FOREIGN_DIRECTORY, RejectReason.REMOVED, RejectReason.RECOVERED,
    )
)  # fmt: skip


_OF_THE_DIALED = (RejectReason.SECOND_PROCESS, RejectReason.REMOVED, RejectReason.RECOVERED)
"""Reasons that are believed only if this server dialled."""


class _Connection:
    """One stream and its engine. Owned by `Links`, which decides what it is used for."""

    __slots__ = (
        "backlog", "blocked", "engine", "get_buffer", "heard", "heard_ns", "is_closed",
        "is_paused", "links", "notable_bytes", "opened_ns", "peer", "pinged", "round_trip_ns",
        "share", "stream", "suspect_ns", "turn_bytes",
    )  # fmt: skip

    def __init__(self, links: Links, stream: Stream, engine: PeerEngine, now_ns: int) -> None:
        self.links = links
        self.stream = stream
        self.engine = engine
        self.get_buffer = engine.get_buffer
        self.peer: _Peer | None = None  # known once dialled or greeted
        self.blocked = False  # the stream took less than was offered; `writable` will be called
        self.turn_bytes = links.options.turn_bytes  # until no piece begins in this turn of the loop
        self.backlog = Backlog()
        self.notable_bytes = 0  # a write of this size shows something about the rate
        self.is_closed = False
        self.heard = False  # since the last sweep; cheaper than reading the clock for each buffer
        self.heard_ns = now_ns
        self.opened_ns = now_ns
        self.pinged = False
        self.suspect_ns = -1
        self.round_trip_ns = -1
        self.is_paused = False  # unread messages wait for the next turn
        self.share = TurnShare(links.part_of_turn(is_busy=False))
        self._bound()

    # --- StreamOwner ----------------------------------------------------------------------------
    def buffer_updated(self, received: int) -> None:
        self.heard = True
        self.share.received_bytes += received
        self.engine.buffer_updated(received)
        self._take()
        if self.is_paused:
            self.stream.pause_reading()

    def _take(self) -> None:
        """Handle received events, up to this turn's share, and note how long it takes."""
        engine, links, share = self.engine, self.links, self.share
        left, began_ns = share.left, links.work_ns()
        try:
            while not self.is_closed and (event := engine.next_event()) is not None:
                share.left -= 1
                if type(event) is tuple:
                    assert self.peer is not None
                    frame_type, payload = event
                    if frame_type is FrameType.RAFT:
                        share.left -= message_count(payload)
                    links.handler.frame(self.peer.server_id, frame_type, payload)
                else:
                    links._event(self, event)
                if share.left <= share.few:
                    self._see_next_turn()
                    if share.left <= 0:
                        self.is_paused = True
                        break
                if engine.reader.is_empty:
                    break
        except RemoteError as error:
            if not self.is_closed:
                links._broken(self, error)
        except NoMemory as error:
            if not self.is_closed:
                self.close()
                links._over(self, reason=None, text=str(error))
        if engine.unsent_bytes and not self.blocked and not self.is_closed:
            self.flush()
        links.pace.delivered(left - share.left, links.work_ns() - began_ns)

    def _see_next_turn(self) -> None:
        if not self.share.is_refill_due:
            self.share.is_refill_due = True
            self.links.next_turn(self._next_turn)

    def _next_turn(self) -> None:
        share = self.share
        is_busy = self.is_paused or share.mark_ns >= 0
        share.refill(self.links.part_of_turn(is_busy=is_busy))
        if self.is_closed or not is_busy:
            return
        if self.is_paused:
            self.heard = True  # the messages handled now arrived earlier
            self.is_paused = share.left <= 0
            if not self.is_paused:
                self._take()
        self._look_what_is_left()

    def _look_what_is_left(self) -> None:
        if self.is_closed:
            return
        share = self.share
        unread_bytes = self.stream.unread_bytes()
        share.look(self.links.now_ns(), unread_bytes=unread_bytes, is_held_up=self.is_paused)
        if not self.is_paused:
            self.stream.resume_reading()
        if share.mark_ns >= 0:
            self._see_next_turn()

    def writable(self) -> None:
        self.blocked = False
        if not self.is_closed:
            self.backlog.drained(self.stream.unsent_bytes(), self.links.now_ns())
            self._bound()
        self.flush()

    def ended(self, cause: str) -> None:
        self.is_closed = True
        self.links._over(self, reason=None, text=cause)

    # --- for Links ------------------------------------------------------------------------------
    def flush(self, *, is_last: bool = False) -> None:
        """Write queued bytes as far as the stream takes them, and some pieces in a turn.

        `is_last`: there will be no other turn.
        """
        assert not self.is_closed
        engine = self.engine
        while engine.unsent_bytes and not self.blocked:
            buffers = engine.gather(begins_bytes=1 if is_last else self.turn_bytes)
            if engine.behind and not any(buffers):
                return  # the next piece waits for the next turn; a buffer may be empty
            written = self.stream.write(buffers)
            engine.sent(written)
            if engine.unsent_bytes:
                self.blocked = written < sum(map(len, buffers))
            if self.blocked or written >= self.notable_bytes:
                self._look(written)
            if engine.behind:
                if self.turn_bytes == self.links.options.turn_bytes:
                    self.links.next_turn(self._next_pieces)
                self.turn_bytes -= written

    def _next_pieces(self) -> None:
        self.turn_bytes = self.links.options.turn_bytes
        if not (self.blocked or self.is_closed):
            self.flush()

    def _look(self, written: int) -> None:
        """After a large write: estimate the link's rate from the bytes that have left."""
        unsent = self.stream.unsent_bytes()
        if self.blocked:
            if written or unsent:  # else it was not full: its handshake is not done
                self.backlog.full(unsent, self.links.now_ns())
        elif not unsent:
            self.backlog.ran_dry()
            self._bound()

    def _bound(self) -> None:
        """Limit the stream to what the link carries in `BACKLOG_NS`, and pieces to half of that."""
        backlog = self.backlog
        bytes_max = backlog.bytes_max
        self.stream.limit_unsent(bytes_max)
        self.notable_bytes = bytes_max // 2 if backlog.is_bounded else _NEVER_BYTES
        self.engine.piece_bytes = min(bytes_max // 2, self.links.options.piece_bytes_max)

    def close(self, reason: RejectReason | None = None, text: str = "") -> None:
        """Close the stream; send REJECT first if there is a reason and the engine is not closed."""
        if self.is_closed:
            return
        if reason is not None and self.engine.state is not LinkState.CLOSED:
            self.engine.reject(reason, text)
        if not self.blocked:
            self.flush(is_last=True)
        self.is_closed = True
        self.stream.close()


class _Confirmation:
    """Request to be called when the state of a peer is known to be current."""

    __slots__ = ("asked_ns", "done")

    def __init__(self, asked_ns: int, done: Callable[[bool], None]) -> None:
        self.asked_ns = asked_ns
        self.done = done


class _Peer:
    """State of one other server.

    Invariant: no attempt is in progress while there is a link; `held` only during an attempt,
    `challenger` only beside a link.
    """

    __slots__ = (
        "address", "attempt", "attempt_timer", "challenged_ns", "challenger", "confirming", "dial",
        "dial_timer", "failures", "heard_ns", "held", "is_up", "link", "quick_redials", "refusable",
        "report_timer", "server_id",
    )  # fmt: skip

    def __init__(self, server_id: ServerId, now_ns: int) -> None:
        self.server_id = server_id
        self.heard_ns = now_ns  # of the last link that ended; before the first, since known
        self.address: Address | None = None  # None: it dials us, we cannot dial it
        self.link: _Connection | None = None
        self.is_up = False  # as last reported to the handler
        self.refusable = False  # was up; loss not reported as a refusal yet
        self.dial: Dial | None = None  # the attempt, while connecting
        self.attempt: _Connection | None = None  # the attempt, while waiting for HELLO
        self.attempt_timer: Timer | None = None
        self.held: _Connection | None = None  # greeted us while our own attempt is in progress
        self.challenger: _Connection | None = None  # greeted us beside the link
        self.challenged_ns = 0  # time of its HELLO
        self.dial_timer: Timer | None = None  # for the next attempt
        self.report_timer: Timer | None = None  # for a loss that is not reported yet
        self.failures = 0
        self.quick_redials = 0
        self.confirming: list[_Confirmation] = []

    @property
    def is_attempting(self) -> bool:
        return self.dial is not None or self.attempt is not None


class Links:
    """All links of one server. Implements `rpc.streams.Transport`."""

    def __init__(
        self,
        local: Hello,
        dialer: Dialer,
        clock: Clock,
        rng: random.Random,
        handler: PeerHandler,
        options: LinkOptions = DEFAULT_OPTIONS,
        dial_failed: Callable[[ServerId, Address, str], None] | None = None,
        security: LinkSecurity | None = None,
    ) -> None:
        """Create the links of the server `local`.

        `dial_failed` is called with server id, address and cause of each failed dial, for the log.
        `security`: without it, any process that reaches the port may claim to be a server.
        """
        self._local = local
        self._dialer = dialer
        self._clock = clock
        self._rng = rng
        self.handler = handler
        self.options = options
        self._tell_dial_failed = dial_failed
        self.pace = TurnPace(options.turn_messages_max)
        self.work_ns = clock.work_ns
        """Return the time to measure work by, within a turn. Called for each delivery."""
        self._security = security
        self._refused = 0
        self._peers: dict[ServerId, _Peer] = {}
        self._open: dict[int, _Connection] = {}  # the links that are up, by server id
        self._inbound: Newcomers[_Connection] = Newcomers(options.inbound_max)
        """Inbound streams that have not sent HELLO yet."""
        self._is_closed = False
        self._swept_ns = clock.now_ns()
        self._sweep_timer = clock.call_later(self._until_sweep(self._swept_ns), self._sweep)

    # --- Transport ------------------------------------------------------------------------------
    def send(
        self,
        server_id: ServerId,
        frame_type: FrameType,
        buffers: Sequence[Buffer],
        *,
        urgent: bool = False,
        more: bool = False,
        keyed: Sequence[tuple[int, object]] = (),
    ) -> bool:
        """See `Transport.send`. Written at once, unless the stream is full."""
        connection = self._open.get(server_id)
        if connection is None:
            return False
        engine = connection.engine
        is_taken = engine.send(frame_type, buffers, urgent=urgent, keyed=keyed)
        if not connection.blocked and not (more and is_taken):
            connection.flush()
            if not is_taken and not connection.is_closed:
                # Frames held back by `more` took the room this one needs.
                is_taken = engine.send(frame_type, buffers, urgent=urgent, keyed=keyed)
                if not connection.blocked:
                    connection.flush()
        return is_taken

    def behind(self, server_id: ServerId) -> Mapping[int, int]:
        """See `Transport.behind`."""
        connection = self._open.get(server_id)
        return connection.engine.behind if connection is not None else _NONE

    def piece_bytes(self, server_id: ServerId) -> int:
        """See `Transport.piece_bytes`."""
        connection = self._open.get(server_id)
        piece_bytes_max = self.options.piece_bytes_max
        return connection.engine.piece_bytes if connection is not None else piece_bytes_max

    def confirm(self, server_id: ServerId, done: Callable[[bool], None]) -> None:
        """Call `done` once `link_up` and `link_down` reflect the peer's current state.

        `done(True)`: the peer answered a ping sent now. `done(False)`: its loss has been reported,
        or it stayed silent for `confirm_ms_max`. Never called from within this call. Detects a
        process that has just died before clients are directed to it.
        """
        peer = self._peers.get(server_id)
        if self._is_closed or peer is None or not peer.is_up:
            self._clock.call_later(0, partial(done, False))
            return
        confirmation = _Confirmation(self._clock.now_ns(), done)
        peer.confirming.append(confirmation)
        self._clock.call_later(
            self.options.confirm_ms_max * _MS, partial(_give_up, peer, confirmation)
        )
        link = peer.link
        if link is not None:
            link.engine.ping(confirmation.asked_ns)
            if not link.blocked:
                link.flush()

    def now_ns(self) -> int:
        """Return the time of the loop's monotonic clock."""
        return self._clock.now_ns()

    def part_of_turn(self, *, is_busy: bool) -> int:
        """Return the number of messages that one link delivers per turn.

        Busy links share the budget among themselves; other links get what they would get if all
        links were busy. A slow server delivers less, but not less than `FEWEST` on a link.
        """
        links = self._open.values()
        sharing = sum(link.share.is_refill_due for link in links) if is_busy else len(links)
        sharing = max(1, sharing)
        usual = self.options.turn_messages_max // sharing
        return max(1, min(usual, FEWEST), self.pace.messages // sharing)

    def unread_ns(self) -> int:
        """See `Transport.unread_ns`."""
        marks = [link.share.mark_ns for link in self._open.values() if link.share.mark_ns >= 0]
        return self._clock.now_ns() - min(marks) if marks else 0

    def next_turn(self, fn: Callable[[], None]) -> None:
        """Call `fn` after other callbacks have had their turn."""
        self._clock.call_later(0, fn)

    @property
    def refused(self) -> int:
        """Number of streams that this server refused or ended because of the other end.

        Either its certificate, its HELLO or its frames were not acceptable.
        """
        return self._refused + (self._security.refused if self._security is not None else 0)

    def links(self) -> list[LinkStatus]:
        """Return the status of every known peer, by server id."""
        now_ns = self._clock.now_ns()
        return [self._status(self._peers[server_id], now_ns) for server_id in sorted(self._peers)]

    def close(self) -> None:
        """Send STOPPING on every link and close everything; no callback follows."""
        if self._is_closed:
            return
        self._is_closed = True
        self._sweep_timer.cancel()
        for server_id in sorted(self._peers):
            peer = self._peers[server_id]
            self._end_attempt(peer, RejectReason.STOPPING)
            _cancel(peer.dial_timer)
            _cancel(peer.report_timer)
            for waiting in (peer.held, peer.challenger):
                if waiting is not None:
                    waiting.close(RejectReason.STOPPING, "")
            if peer.link is not None:
                peer.link.close(RejectReason.STOPPING, "")
        for connection in self._inbound:
            self._inbound.remove(connection)
            connection.close()
        self._peers.clear()
        self._open.clear()

    # --- peers ----------------------------------------------------------------------------------
    def set_peer(self, server_id: ServerId, address: Address) -> None:
        """Keep a link to this server at this address; dial at once if the address is new."""
        if server_id == self._local.server_id:
            raise ValueError(f"server {server_id} is this server")
        assert not self._is_closed
        peer = self._peer(server_id)
        if peer.address == address:
            return
        peer.address = address
        if peer.link is None:
            self._end_attempt(peer, None)
            peer.failures = 0
            self._schedule_dial(peer, delay_ns=0)

    def remove_peer(self, server_id: ServerId, text: str) -> None:
        """Forget a removed server; its link is closed with that text and reported as down."""
        peer = self._peers.pop(server_id, None)
        if peer is None:
            return
        self._end_attempt(peer, None)
        peer.dial_timer = _cancel(peer.dial_timer)
        for waiting in (peer.held, peer.challenger):
            if waiting is not None:
                waiting.close(RejectReason.REMOVED, text)
        if peer.link is not None:
            self._unlink(peer).close(RejectReason.REMOVED, text)
        self._report_down(peer, refused=False)

    def forget_address(self, server_id: ServerId) -> None:
        """Dial a server no more. Its link, and those that it opens, stay."""
        peer = self._peers.get(server_id)
        if peer is None:
            return
        if peer.link is None:
            self.remove_peer(server_id, "")
        else:
            peer.address = None

    def set_local(self, local: Hello) -> None:
        """Change the HELLO of this server, for example after it adopted a cluster.

        All links are closed, reported as down, and made again.
        """
        if local.server_id != self._local.server_id:
            raise ValueError("a server cannot change its id")
        self._local = local
        for connection in self._inbound:
            self._inbound.remove(connection)
            connection.close(RejectReason.IDENTITY_CHANGED, "")
        for server_id in sorted(self._peers):
            peer = self._peers[server_id]
            self._end_attempt(peer, RejectReason.IDENTITY_CHANGED)
            for waiting in (peer.held, peer.challenger):
                if waiting is not None:
                    waiting.close(RejectReason.IDENTITY_CHANGED, "")
            peer.held = peer.challenger = None
            if peer.link is not None:
                self._unlink(peer).close(RejectReason.IDENTITY_CHANGED, "")
            self._report_down(peer, refused=False)
            peer.failures = 0
            if peer.address is None:
                del self._peers[server_id]
            else:
                self._schedule_dial(peer, delay_ns=0)

    def accepted(self, stream: Stream, host: str = "") -> None:
        """Take over a stream accepted on the peer port, from address `host`.

        It must send HELLO in time, and the number of streams that have not is bounded
        (`newcomers.py`).
        """
        if self._is_closed:
            self._refused += 1
            stream.close()
            return
        if self._security is not None:
            stream = self._security.wrap(stream, dialed=False)
        engine = PeerEngine(self._local, Role.ACCEPTOR, limits=self.options.limits)
        connection = _Connection(self, stream, engine, self._clock.now_ns())
        displaced = self._inbound.add(connection, host)
        if displaced is not None:
            self._refused += 1
            displaced.close()
        stream.start(connection)

    def _peer(self, server_id: ServerId) -> _Peer:
        peer = self._peers.get(server_id)
        if peer is None:
            peer = self._peers[server_id] = _Peer(server_id, self._clock.now_ns())
        return peer

    # --- dialling -------------------------------------------------------------------------------
    def _schedule_dial(self, peer: _Peer, *, delay_ns: int) -> None:
        assert peer.link is None
        assert not peer.is_attempting
        _cancel(peer.dial_timer)
        if delay_ns:
            peer.dial_timer = self._clock.call_later(delay_ns, partial(self._dial, peer))
        else:
            self._dial(peer)

    def _dial(self, peer: _Peer) -> None:
        assert peer.link is None
        assert not peer.is_attempting
        assert peer.address is not None
        peer.dial_timer = None
        peer.attempt_timer = self._clock.call_later(
            self.options.attempt_ms_max * _MS, partial(self._attempt_timed_out, peer)
        )
        peer.dial = self._dialer.dial(peer.address, partial(self._dialed, peer))

    def _dialed(self, peer: _Peer, result: Stream | DialFailed) -> None:
        assert peer.dial is not None
        peer.dial = None
        if isinstance(result, DialFailed):
            self._dial_failed(peer, result.cause)
            self._attempt_failed(peer, refused=result.refused, died_early=result.is_reset)
            return
        engine = PeerEngine(
            self._local, Role.DIALER, expected=peer.server_id, limits=self.options.limits
        )
        stream = result
        if self._security is not None:
            stream = self._security.wrap(stream, dialed=True)
        connection = _Connection(self, stream, engine, self._clock.now_ns())
        connection.peer = peer
        peer.attempt = connection
        stream.start(connection)
        connection.flush()

    def _dial_failed(self, peer: _Peer, cause: str) -> None:
        if self._tell_dial_failed is not None and peer.address is not None:
            self._tell_dial_failed(peer.server_id, peer.address, cause)

    def _attempt_timed_out(self, peer: _Peer) -> None:
        self._dial_failed(peer, "timed out" if peer.attempt is None else "no HELLO in time")
        self._end_attempt(peer, None)
        self._attempt_failed(peer, refused=False)

    def _end_attempt(self, peer: _Peer, reason: RejectReason | None) -> None:
        peer.attempt_timer = _cancel(peer.attempt_timer)
        if peer.dial is not None:
            peer.dial.cancel()
            peer.dial = None
        if peer.attempt is not None:
            peer.attempt.close(reason)
            peer.attempt = None

    def _attempt_failed(
        self, peer: _Peer, *, refused: bool, died_early: bool = False, lasting: bool = False
    ) -> None:
        peer.attempt_timer = _cancel(peer.attempt_timer)
        if peer.held is not None:
            held = peer.held
            peer.held = None
            self._accept(peer, held)
            return
        options = self.options
        if refused:
            self._report_down(peer, refused=True)
        elif peer.report_timer is not None:
            if died_early and peer.quick_redials < len(options.quick_redials_ms):
                delay_ms = options.quick_redials_ms[peer.quick_redials]
                peer.quick_redials += 1
                self._schedule_dial(peer, delay_ns=delay_ms * _MS)
                return
            self._report_down(peer, refused=False)
        self._back_off(peer, lasting=lasting)

    def _back_off(self, peer: _Peer, *, lasting: bool = False) -> None:
        options = self.options
        delay_ms = options.backoff_max_ms
        if not lasting:
            delay_ms = min(delay_ms, options.backoff_first_ms << min(peer.failures, 16))
        peer.failures += 1
        jitter = 0.5 + self._rng.random() / 2
        self._schedule_dial(peer, delay_ns=int(delay_ms * _MS * jitter))

    # --- events of connections ------------------------------------------------------------------
    def _event(self, connection: _Connection, event: Event) -> None:
        if type(event) is HelloReceived:
            if connection.engine.role is Role.ACCEPTOR:
                self._greeted(connection, event.hello)
            else:
                self._answered(connection, event.hello)
        elif type(event) is PongReceived:
            connection.round_trip_ns = max(0, self._clock.now_ns() - event.sent_ns)
            if connection.peer is not None:
                self._answered_ping(connection.peer, event.sent_ns)
        else:
            assert isinstance(event, Rejected), event
            self._rejected(connection, event)

    def _greeted(self, connection: _Connection, hello: Hello) -> None:
        """Handle the HELLO of a peer that dialled us: accept, hold or refuse it."""
        self._inbound.remove(connection)
        if not self._is_proved(connection, hello):
            return
        if hello.server_id not in self._peers and len(self._peers) >= self.options.peers_max:
            self._refuse(connection, hello.server_id, RejectReason.TOO_MANY_LINKS)
            return
        if self._is_refused(connection, hello):
            return
        peer = self._peer(hello.server_id)
        connection.peer = peer
        we_are_lower = self._local.server_id < hello.server_id
        link = peer.link
        if link is not None and _is_other_start(link.engine.remote, hello):
            self._challenge(peer, link, connection)
            return
        if link is not None:
            dialed_by_us = link.engine.role is Role.DIALER
            known = link.engine.remote
            assert known is not None
            if we_are_lower and dialed_by_us and known.is_same_process(hello):
                self._suspect(link)
                connection.close(RejectReason.DUPLICATE_LINK, "already linked")
                return
        elif we_are_lower and peer.is_attempting:
            if peer.held is not None:
                peer.held.close(RejectReason.DUPLICATE_LINK, "dialled again")
            peer.held = connection
            return
        self._accept(peer, connection)

    def _challenge(self, peer: _Peer, link: _Connection, challenger: _Connection) -> None:
        """Handle the HELLO of another process of a linked peer: check if the first one is gone."""
        if peer.challenger is not None:
            peer.challenger.close(RejectReason.DUPLICATE_LINK, "dialled again")
        peer.challenger = challenger
        peer.challenged_ns = self._clock.now_ns()
        self._suspect(link)
        link.engine.ping(peer.challenged_ns)
        if not link.blocked:
            link.flush()

    def _answered_ping(self, peer: _Peer, sent_ns: int) -> None:
        """Handle a pong: the linked process ran when it read the ping sent at `sent_ns`."""
        if peer.confirming:
            _confirmed(peer, sent_ns, answered=True)
        challenger = peer.challenger
        if challenger is not None and sent_ns >= peer.challenged_ns:
            peer.challenger = None
            where = f", at {peer.address[0]}:{peer.address[1]}" if peer.address else ""
            text = (
                f"server {peer.server_id} is already running{where}: this process uses a copy "
                "of its data directory"
            )
            self._refuse(challenger, peer.server_id, RejectReason.SECOND_PROCESS, text)

    def _is_proved(self, connection: _Connection, hello: Hello) -> bool:
        """Return True if the stream confirms the identity claimed in `hello`, or proves none.

        Otherwise the connection is refused without a text that the other end could learn from.
        """
        identity = connection.stream.identity
        if identity in (None, hello.server_id):
            return True
        text = f"it claims to be server {hello.server_id}, but has a certificate of {identity}"
        connection.close(RejectReason.NOT_ADMITTED, "")
        self._refuses(hello.server_id, RejectReason.NOT_ADMITTED, text)
        return False

    def _accept(self, peer: _Peer, connection: _Connection) -> None:
        connection.engine.accept()
        self._establish(peer, connection)

    def _answered(self, connection: _Connection, hello: Hello) -> None:
        """Handle the answer of a peer that we dialled: the link is open."""
        peer = connection.peer
        assert peer is not None
        assert peer.attempt is connection
        peer.attempt = None
        if not self._is_proved(connection, hello):
            self._attempt_failed(peer, refused=False, lasting=True)
            return
        if self._is_refused(connection, hello):
            self._attempt_failed(peer, refused=False, lasting=True)
            return
        self._establish(peer, connection)

    def _is_refused(self, connection: _Connection, hello: Hello) -> bool:
        """Return True if the handler refuses the server; the connection is closed then."""
        refusal = self.handler.refusal(hello)
        if refusal is None:
            return False
        self._refuse(connection, hello.server_id, *refusal)
        return True

    def _establish(self, peer: _Peer, connection: _Connection) -> None:
        """Make `connection` the link of the peer and close its other connections."""
        hello = connection.engine.remote
        assert hello is not None
        assert connection.engine.state is LinkState.OPEN
        if peer.link is not None:
            self._unlink(peer).close(RejectReason.DUPLICATE_LINK, "replaced")
        self._end_attempt(peer, None)
        peer.dial_timer = _cancel(peer.dial_timer)
        for other in (peer.held, peer.challenger):
            if other is not None:
                other.close(RejectReason.DUPLICATE_LINK, "already linked")
        peer.held = peer.challenger = None
        self._report_down(peer, refused=False)
        peer.link = connection
        peer.is_up = True
        peer.refusable = False
        connection.opened_ns = connection.heard_ns = self._clock.now_ns()
        self._open[peer.server_id] = connection
        connection.flush()
        self.handler.link_up(hello)

    def _refuse(
        self, connection: _Connection, server_id: ServerId, reason: RejectReason, text: str = ""
    ) -> None:
        connection.close(reason, text)
        self._refuses(server_id, reason, text)

    def _refuses(self, server_id: ServerId, reason: RejectReason, text: str) -> None:
        """Count and report that this end refused or ended a link."""
        self._refused += 1
        self.handler.rejected(server_id, reason, text, by_peer=False)

    def _suspect(self, link: _Connection) -> None:
        if link.suspect_ns < 0:
            now_ns = self._clock.now_ns()
            link.suspect_ns = now_ns
            link.heard = False
            link.engine.ping(now_ns)
            if not link.blocked:
                link.flush()

    def _rejected(self, connection: _Connection, event: Rejected) -> None:
        remote = connection.engine.remote
        server_id = connection.peer.server_id if connection.peer is not None else NO_SERVER
        if not server_id and remote is not None:
            server_id = remote.server_id
        connection.close()
        self._over(connection, reason=event.reason, text=event.text)
        is_dialer = connection.engine.role is Role.DIALER
        if event.reason in _OF_THE_DIALED and not is_dialer:
            event = replace(event, reason=RejectReason.PROTOCOL_ERROR)  # not the dialer's decision
        if not event.by_peer:
            self._refuses(server_id, event.reason, event.text)
        elif event.reason is not RejectReason.DUPLICATE_LINK:
            self.handler.rejected(server_id, event.reason, event.text, by_peer=True)

    def _broken(self, connection: _Connection, error: RemoteError) -> None:
        """Handle a violation of the protocol by the peer."""
        server_id = connection.peer.server_id if connection.peer is not None else NO_SERVER
        text = str(error)
        if connection.engine.state is LinkState.OPEN:
            connection.close(RejectReason.PROTOCOL_ERROR, text)
        else:
            connection.close()
        self._over(connection, reason=RejectReason.PROTOCOL_ERROR, text=text)
        self._refuses(server_id, RejectReason.PROTOCOL_ERROR, text)

    # --- loss -----------------------------------------------------------------------------------
    def _over(self, connection: _Connection, *, reason: RejectReason | None, text: str) -> None:
        """Handle a connection that was closed, but not on our own initiative."""
        assert connection.is_closed
        peer = connection.peer
        if peer is None:
            self._inbound.remove(connection)
        elif connection is peer.link:
            self._lost(peer, reason)
        elif connection is peer.attempt:
            peer.attempt = None
            if reason is None:
                self._dial_failed(peer, text)
            self._attempt_failed(
                peer,
                refused=reason is RejectReason.STOPPING,
                died_early=reason is None,
                lasting=reason in _LASTING,
            )
        elif connection is peer.held:
            peer.held = None
        elif connection is peer.challenger:
            peer.challenger = None

    def _lost(self, peer: _Peer, reason: RejectReason | None) -> None:
        """Handle the end of a link: find out if the peer is gone, then report."""
        link = self._unlink(peer)
        now_ns = self._clock.now_ns()
        peer.refusable = True
        if now_ns - link.opened_ns >= self.options.stable_ms * _MS:
            peer.failures = 0
        if self._takes_challenger(peer):
            return
        is_stopping = reason is RejectReason.STOPPING
        if peer.address is None:
            # Known only while linked: ids of unknown servers must not accumulate.
            del self._peers[peer.server_id]
            self._report_down(peer, refused=is_stopping)
            return
        if is_stopping:
            self._report_down(peer, refused=True)
            self._back_off(peer)
            return
        peer.report_timer = self._clock.call_later(
            self.options.redial_report_ms * _MS,
            partial(self._report_down, peer, refused=False),
        )
        peer.quick_redials = 0
        if peer.failures == 0:
            # The next loss of a link that does not become stable waits for its back-off.
            peer.failures = 1
            self._schedule_dial(peer, delay_ns=0)
        else:
            self._back_off(peer)

    def _takes_challenger(self, peer: _Peer) -> bool:
        """Return True if the challenger of a link that ended has taken its place."""
        challenger, peer.challenger = peer.challenger, None
        if challenger is None or challenger.engine.remote is None:
            return False
        if self._is_refused(challenger, challenger.engine.remote):
            return False
        self._accept(peer, challenger)
        return True

    def _unlink(self, peer: _Peer) -> _Connection:
        link = peer.link
        assert link is not None
        peer.link = None
        peer.heard_ns = link.heard_ns
        del self._open[peer.server_id]
        return link

    def _report_down(self, peer: _Peer, *, refused: bool) -> None:
        """Report the loss of a peer to the handler, once for each fact not reported yet."""
        peer.report_timer = _cancel(peer.report_timer)
        if refused:
            if not peer.refusable:
                return
            peer.refusable = False
        elif not peer.is_up:
            return
        peer.is_up = False
        self.handler.link_down(peer.server_id, refused=refused)
        _confirmed(peer, self._clock.now_ns(), answered=False)

    # --- liveness -------------------------------------------------------------------------------
    def _sweep(self) -> None:
        """Close silent links, ping quiet ones, and let the host beat. Runs each `heartbeat_ms`."""
        options = self.options
        now_ns = self._clock.now_ns()
        interval_ns = options.heartbeat_ms * _MS
        self._sweep_timer = self._clock.call_later(self._until_sweep(now_ns), self._sweep)
        # The time for which our own loop was stalled proves nothing about peers: what they sent
        # meanwhile may not have been read yet.
        stood_still_ns = max(0, now_ns - self._swept_ns - 2 * interval_ns)
        self._swept_ns = now_ns
        for connection in [
            inbound
            for inbound in self._inbound
            if now_ns - inbound.opened_ns > options.attempt_ms_max * _MS + stood_still_ns
        ]:
            self._inbound.remove(connection)
            self._refused += 1
            connection.close()
        for server_id in sorted(self._open):
            connection_up = self._open.get(server_id)
            if connection_up is not None:
                self._check_liveness(connection_up, now_ns, stood_still_ns)
        if not self._is_closed:
            self.handler.beat()

    def _until_sweep(self, now_ns: int) -> int:
        """Return the time to the next sweep: at multiples of its interval, as other timers do."""
        interval_ns = self.options.heartbeat_ms * _MS
        return interval_ns - now_ns % interval_ns

    def _check_liveness(self, link: _Connection, now_ns: int, stood_still_ns: int) -> None:
        options = self.options
        if link.heard:
            link.heard = False
            link.heard_ns = now_ns
            link.pinged = False
            link.suspect_ns = -1
            return
        link.heard_ns += stood_still_ns
        silent_ns = now_ns - link.heard_ns
        if link.suspect_ns >= 0:
            link.suspect_ns += stood_still_ns
        is_dead_suspect = 0 <= link.suspect_ns < now_ns - options.suspect_ms_max * _MS
        if silent_ns > options.silent_ms_max * _MS or is_dead_suspect:
            link.close()
            self._over(link, reason=None, text="silent")
        elif silent_ns >= options.ping_idle_ms * _MS and not link.pinged:
            link.pinged = True
            link.engine.ping(now_ns)
            if not link.blocked:
                link.flush()

    def _status(self, peer: _Peer, now_ns: int) -> LinkStatus:
        link = peer.link
        return LinkStatus(
            server_id=peer.server_id,
            is_up=link is not None,
            dialed_by_us=link is not None and link.engine.role is Role.DIALER,
            unsent_bytes=link.engine.unsent_bytes if link is not None else 0,
            round_trip_ns=link.round_trip_ns if link is not None else -1,
            silent_ns=now_ns - (link or peer).heard_ns,
            dial_failures=peer.failures,
        )


def _cancel(timer: Timer | None) -> Timer | None:
    """Cancel the timer if there is one, and return None to assign in its place."""
    if timer is not None:
        timer.cancel()
    return None


def _is_other_start(known: Hello | None, hello: Hello) -> bool:
    """Return True if `hello` is from another process in the same data directory, or a copy."""
    assert known is not None
    return known.directory_id == hello.directory_id and known.incarnation != hello.incarnation


def _confirmed(peer: _Peer, asked_until_ns: int, *, answered: bool) -> None:
    """Answer the confirmations requested up to that time."""
    due = [one for one in peer.confirming if one.asked_ns <= asked_until_ns]
    peer.confirming = [one for one in peer.confirming if one.asked_ns > asked_until_ns]
    for one in due:
        one.done(answered)


def _give_up(peer: _Peer, confirmation: _Confirmation) -> None:
    if confirmation in peer.confirming:
        peer.confirming.remove(confirmation)
        confirmation.done(False)
