"""TCP transport of the links: the peer port, dialling, non-blocking reads and gather writes.

Sockets are driven by the loop's `add_reader` and `add_writer` directly. asyncio's own transports
are not used because they join gather lists before writing (`writelines` on Python 3.11 copies every
payload). Here `sendmsg` passes a payload from the cache chunk to the kernel, and `recv_into` from
the kernel into the bytearray in which it stays.

No tasks, no futures, no coroutines: everything is a callback on the loop. An exception raised by a
callback of the host goes to the loop's exception handler, which a server makes fatal.

Sizes: one link reads at most `_READ_BYTES_PER_TURN` before others get their turn. Bytes that the
kernel does not take stay in the link's engine, which bounds them.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import random
import socket
import struct
import termios
import time
from collections.abc import Callable, Sequence

from ids import ServerId
from rpc.hello import Hello
from rpc.link_options import DEFAULT_OPTIONS, LinkOptions
from rpc.links import Links
from rpc.reader import Buffer
from rpc.resolver import Answer, Candidate, Resolver, numeric, resolve
from rpc.streams import (
    Address,
    Clock,
    Dial,
    DialFailed,
    OwnedStream,
    PeerHandler,
    Stream,
    StreamOwner,
    Timer,
)
from rpc.tls_stream import LinkSecurity

_READ_BYTES_PER_TURN = 1 << 20
_BACKLOG = 128
_SIOCOUTQNSD = 0x894B  # linux/sockios.h: bytes written to the socket and not sent even once
_INT = struct.Struct("i")
_NO_INT = bytes(_INT.size)
_LINGER_ZERO = struct.pack("ii", 1, 0)
_ACCEPTS_PER_TURN = 32
_REPEAT_NS = 10_000_000_000
# No stream is lost when the kernel has no descriptor or memory for one: the peer dials again.
_ACCEPT_PAUSE_S = 0.1
_OUT_OF_RESOURCES = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM))


class LoopClock:
    """`rpc.streams.Clock` of an asyncio loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def now_ns(self) -> int:
        return time.monotonic_ns()

    work_ns = now_ns

    def call_later(self, delay_ns: int, fn: Callable[[], None]) -> Timer:
        return self._loop.call_later(delay_ns / 1e9, fn)


class SocketStream(OwnedStream):
    """A connected non-blocking TCP socket as a `rpc.streams.Stream`."""

    identity: int | None = None
    """None: TCP proves no identity."""

    __slots__ = (
        "_fd", "_is_paused", "_is_writing", "_loop", "_socket", "_unsent_bytes_max",
    )  # fmt: skip

    def __init__(self, loop: asyncio.AbstractEventLoop, connected: socket.socket) -> None:
        super().__init__()
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._loop = loop
        self._socket = connected
        self._fd = connected.fileno()
        self._is_paused = False
        self._is_writing = False  # the loop reports when the socket takes bytes again
        self._unsent_bytes_max = 0

    def start(self, owner: StreamOwner) -> None:
        super().start(owner)
        self._loop.add_reader(self._fd, self._readable)

    def write(self, buffers: Sequence[Buffer]) -> int:
        """See `Stream.write`: one `sendmsg`."""
        if self._is_closed:
            return sum(map(len, buffers))
        try:
            written = self._socket.sendmsg(buffers)
        except BlockingIOError:
            written = 0
        except OSError as error:
            # Reported later, so that no callback runs inside a `write`.
            self._loop.call_soon(self._end, _cause(error))
            return sum(map(len, buffers))
        offered = sum(map(len, buffers))
        if written < offered and not self._is_writing:
            self._is_writing = True
            self._loop.add_writer(self._fd, self._writable)
        return written

    def unsent_bytes(self) -> int:
        """See `Stream.unsent_bytes`. Bytes that TCP has not sent yet.

        Bytes in flight and not acknowledged are not counted: congestion control bounds them.
        """
        return self._queued_bytes(_SIOCOUTQNSD)

    def limit_unsent(self, bytes_max: int) -> None:
        """See `Stream.limit_unsent`. Enforced by the kernel.

        It takes less than it is offered, and reports the socket as writable when half is sent.
        """
        if self._is_closed or bytes_max == self._unsent_bytes_max:
            return
        self._unsent_bytes_max = bytes_max
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, bytes_max)

    def pause_reading(self) -> None:
        """See `Stream.pause_reading`.

        The reader stays registered with the loop: ignoring its calls for a turn is cheaper than
        removing and adding it.
        """
        self._is_paused = True

    def resume_reading(self) -> None:
        """See `Stream.resume_reading`."""
        self._is_paused = False

    def unread_bytes(self) -> int:
        """See `Stream.unread_bytes`."""
        return self._queued_bytes(termios.FIONREAD)

    def _queued_bytes(self, request: int) -> int:
        """Return the bytes the kernel holds for this socket in one of its two queues."""
        if self._is_closed:
            return 0
        queued: int = _INT.unpack(fcntl.ioctl(self._fd, request, _NO_INT))[0]
        return queued

    def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        self._loop.remove_reader(self._fd)
        if self._is_writing:
            self._loop.remove_writer(self._fd)
        self._socket.close()

    def _readable(self) -> None:
        owner = self._owner
        assert owner is not None
        budget = _READ_BYTES_PER_TURN
        while not (self._is_closed or self._is_paused) and budget > 0:
            buffer = owner.get_buffer()
            try:
                received = self._socket.recv_into(buffer)
            except BlockingIOError:
                return
            except OSError as error:
                self._end(_cause(error))
                return
            if not received:
                self._end("closed by the peer")
                return
            is_full = received == len(buffer)
            owner.buffer_updated(received)
            if not is_full:
                return
            budget -= received

    def _writable(self) -> None:
        assert self._is_writing
        self._is_writing = False
        self._loop.remove_writer(self._fd)
        self._tell_writable()


class SocketDialer:
    """`rpc.streams.Dialer` over TCP.

    The addresses of a name are tried in turn. One that does not answer at all comes last in later
    attempts.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.resolver = Resolver(loop.call_soon_threadsafe)

    def dial(self, address: Address, on_result: Callable[[Stream | DialFailed], None]) -> Dial:
        """See `Dialer.dial`."""
        return SocketDial(self._loop, self.resolver, address, on_result)


class SocketDial:
    """One attempt to connect."""

    __slots__ = (
        "_address", "_all_refused", "_candidates", "_fd", "_is_over", "_is_reset", "_loop",
        "_on_result", "_resolver", "_socket", "_tried",
    )  # fmt: skip

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        resolver: Resolver,
        address: Address,
        on_result: Callable[[Stream | DialFailed], None],
    ) -> None:
        self._loop = loop
        self._resolver = resolver
        self._address = address
        self._on_result = on_result
        self._socket: socket.socket | None = None
        self._fd = -1  # registered with the loop, else -1
        self._candidates: list[Candidate] = []
        self._tried: Candidate | None = None  # the last one taken from them
        self._all_refused = True  # all of those tried so far
        self._is_reset = False  # at least one of those
        self._is_over = False
        known = numeric(address)
        if known is not None:
            self._candidates = [known]
            loop.call_soon(self._try_next, "")
        else:
            resolver.ask(address, self._resolved)

    def cancel(self) -> None:
        self._is_over = True
        self._resolver.withdraw(self._address, self._resolved)
        if self._fd >= 0 and self._tried is not None:
            self._resolver.stayed_silent(self._address[0], self._tried)
        self._release()

    def _resolved(self, answer: Answer) -> None:
        if self._is_over:
            return
        if isinstance(answer, str):
            self._finish(DialFailed(refused=False, cause=answer))
        else:
            self._candidates = answer
            self._try_next("")

    def _try_next(self, cause: str) -> None:
        """Connect to the next candidate. `cause` is why the one before failed."""
        if self._is_over:
            return
        if not self._candidates:
            # Only if every address of the name refuses is the process known to be gone. They may
            # be from the previous lookup: where the peer was dialled last.
            self._finish(DialFailed(self._all_refused, cause, self._is_reset))
            return
        self._tried = family, target = self._candidates.pop(0)
        try:
            self._socket = socket.socket(family, socket.SOCK_STREAM)
            self._socket.setblocking(False)
            code = self._socket.connect_ex(target)
        except OSError as error:
            self._failed(error)
            return
        if code == errno.EINPROGRESS:
            self._fd = self._socket.fileno()
            self._loop.add_writer(self._fd, self._connected)
        elif code:
            self._failed(OSError(code, os.strerror(code)))
        else:
            self._connected()

    def _connected(self) -> None:
        connected = self._socket
        assert connected is not None
        if self._fd >= 0:
            self._loop.remove_writer(self._fd)
            self._fd = -1
        code = connected.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            self._failed(OSError(code, os.strerror(code)))
            return
        try:
            is_self = connected.getsockname() == connected.getpeername()
        except OSError as error:
            self._failed(error)
            return
        if is_self:
            # A port of the ephemeral range without a listener can be connected to itself (TCP
            # simultaneous open), and would then be taken from the server that should have it.
            # Lingering for 0 s frees it at once.
            connected.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_ZERO)
            self._failed(ConnectionRefusedError(errno.ECONNREFUSED, "connected to itself"))
            return
        self._socket = None
        self._finish(SocketStream(self._loop, connected))

    def _failed(self, error: OSError) -> None:
        self._release()
        if error.errno != errno.ECONNREFUSED:
            self._all_refused = False
        if error.errno == errno.ECONNRESET:
            self._is_reset = True
        self._try_next(_cause(error))

    def _finish(self, result: Stream | DialFailed) -> None:
        assert not self._is_over
        self._is_over = True
        self._on_result(result)

    def _release(self) -> None:
        if self._fd >= 0:
            self._loop.remove_writer(self._fd)
            self._fd = -1
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def listening_socket(address: Address, backlog: int) -> socket.socket:
    """Return a bound, listening, non-blocking socket with this backlog. Raises OSError."""
    found = resolve(address)
    if isinstance(found, str):
        raise OSError(f"cannot listen on {address[0]}:{address[1]}: {found}")
    family, target = found[0]
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        # A restarted server must not wait for the old connections' TIME_WAIT.
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.setblocking(False)
        listening.bind(target)
        listening.listen(backlog)
    except OSError:
        listening.close()
        raise
    return listening


class SocketListener:
    """Listening socket. Passes every accepted one to `on_socket`, with the address of its peer."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        address: Address,
        on_socket: Callable[[socket.socket, str], None],
    ) -> None:
        """Bind and listen; `start` accepts. Accepted sockets do not block. Raises OSError."""
        self._loop = loop
        self._on_socket = on_socket
        self._resume: asyncio.TimerHandle | None = None
        self._is_closed = False
        self._socket = listening_socket(address, _BACKLOG)
        self._fd = self._socket.fileno()

    @property
    def port(self) -> int:
        """Bound port, also if the address named port 0."""
        return int(self._socket.getsockname()[1])

    def start(self) -> None:
        """Begin to accept."""
        self._resume = None
        self._loop.add_reader(self._fd, self._acceptable)

    def close(self) -> None:
        """Stop listening; further dials are refused."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._resume is not None:
            self._resume.cancel()
        self._loop.remove_reader(self._fd)
        self._socket.close()

    def _acceptable(self) -> None:
        for _ in range(_ACCEPTS_PER_TURN):
            try:
                accepted, peer = self._socket.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in _OUT_OF_RESOURCES:
                    continue  # an error of the stream that was about to be accepted: accept(2)
                # The stream stays in the backlog. An immediate retry would spin.
                self._loop.remove_reader(self._fd)
                self._resume = self._loop.call_later(_ACCEPT_PAUSE_S, self.start)
                return
            accepted.setblocking(False)
            self._on_socket(accepted, peer[0])


class DialTroubles:
    """Filter of failed dials for the log: a peer that is down is dialled every second.

    Reported are a peer's first failure, a failure with another cause than the last reported one,
    and the same cause only if no dial failed for a while. Reports about one peer are at least
    `_REPEAT_NS` apart.
    """

    def __init__(
        self, resolver: Resolver, clock: Clock, tell: Callable[[ServerId, Address, str], None]
    ) -> None:
        self._resolver = resolver
        self._clock = clock
        self._tell = tell
        # By server id: the reported cause, its time, and the time of the last failed dial. Contains
        # only servers that `Links` dials.
        self._told: dict[int, tuple[str, int, int]] = {}

    def dial_failed(self, server_id: ServerId, address: Address, cause: str) -> None:
        """Handle a failed dial, and report it if it is new."""
        # An attempt that times out during its name lookup does not know of the lookup's error.
        cause = self._resolver.trouble(address[0]) or cause
        now_ns = self._clock.now_ns()
        known = self._told.get(server_id)
        if known is not None:
            told, told_ns, failed_ns = known
            goes_on = cause == told and now_ns - failed_ns < _REPEAT_NS
            if goes_on or now_ns - told_ns < _REPEAT_NS:
                self._told[server_id] = told, told_ns, now_ns
                return
        self._told[server_id] = cause, now_ns, now_ns
        self._tell(server_id, address, cause)


class SocketTransport(Links):
    """`Links` over TCP, with a listener. Created and used on the loop's thread."""

    def __init__(
        self,
        local: Hello,
        listen: Address,
        handler: PeerHandler,
        *,
        loop: asyncio.AbstractEventLoop,
        rng: random.Random,
        options: LinkOptions = DEFAULT_OPTIONS,
        clock: Clock | None = None,
        dialer: SocketDialer | None = None,
        on_trouble: Callable[[ServerId, Address, str], None] | None = None,
        security: LinkSecurity | None = None,
    ) -> None:
        """Listen at once, and dial the servers named by `set_peer`. Raises OSError.

        `on_trouble` is called with server id, address and cause if a server cannot be dialled;
        repetitions are filtered, see `DialTroubles`.
        """
        dialer = dialer or SocketDialer(loop)
        clock = clock or LoopClock(loop)
        dial_failed = None
        if on_trouble is not None:
            dial_failed = DialTroubles(dialer.resolver, clock, on_trouble).dial_failed
        self._loop = loop
        self._listener = SocketListener(loop, listen, self._take_socket)
        super().__init__(local, dialer, clock, rng, handler, options, dial_failed, security)
        self._listener.start()

    @property
    def port(self) -> int:
        """Port listened on."""
        return self._listener.port

    def close(self) -> None:
        # Close the port first, so that a peer that receives STOPPING is refused if it dials again.
        self._listener.close()
        super().close()

    def _take_socket(self, connected: socket.socket, host: str) -> None:
        self.accepted(SocketStream(self._loop, connected), host)


def _cause(error: OSError) -> str:
    return error.strerror or str(error)
