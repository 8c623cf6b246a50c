"""The asyncio edge of the front end: sockets on one side, `ClientSession` on the other.

Two of the few places in `vdl` that know an event loop are here: a listening socket, and one
`BufferedProtocol` per client. Rules:

* One system call per connection and turn: what a session sends goes out by one gather write,
  straight to the socket. Of what the socket does not take, a first slice is handed to the
  transport, which waits for room and has the session go on; the rest stays with the session.
  (asyncio's own `writelines` joins the buffers first, and `write` copies what it keeps.)
* The listening socket is drained in small portions, so that a flood of connections does not starve
  the ones that are there. Out of file descriptors, a spare one is given up to accept and close the
  connection at the head of the queue: clients see a refusal instead of a server that hangs.

Must not know: requests, anything above bytes.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import math
import os
import socket
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

from rpc.tls_context import TlsContext
from rpc.tls_stream import Offload, handshake_at_once
from segments.api import Buffer
from vdl.kafka.configs.options import ListenerOptions
from vdl.kafka.connections.client_session import ClientSession
from vdl.kafka.connections.frontend import Frontend
from vdl.kafka.connections.socket_writes import Lingering, write_some
from vdl.kafka.connections.tls_listener import Certificate, Peer, TlsPort, TlsProtocol
from vdl.kafka.security.certificate_names import PrincipalRules
from vdl.kafka.security.principal import ANONYMOUS
from vdl.listening import listening_socket

_BACKLOG = 1_024
_ACCEPTS_PER_TURN = 32
_NO_DESCRIPTORS = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_ACCEPT_RETRY_S = 0.1
_WARNING_S = 60.0
"""Between two log lines about missing descriptors."""
_SLICE_BYTES = 64 << 10
"""Unsent bytes that are handed to the transport, which copies them."""
_KEEPALIVE_IDLE_S = 60
_KEEPALIVE_INTERVAL_S = 10
_KEEPALIVE_PROBES = 6


class ClientProtocol(asyncio.BufferedProtocol):
    """One client's socket, and the transport its session asks for."""

    __slots__ = (
        "_accept",
        "_file",
        "_lingering",
        "_session",
        "_transport",
    )

    def __init__(
        self,
        accept: Callable[[ClientProtocol, Peer], ClientSession | None],
        lingering: Lingering,
    ) -> None:
        self._accept = accept
        self._lingering = lingering
        self._session: ClientSession | None = None

    # --- from the event loop -------------------------------------------------------------------
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport), transport
        self._transport = transport
        self._file: int = transport.get_extra_info("socket").fileno()
        transport.set_write_buffer_limits(high=0)
        peer = transport.get_extra_info("peername") or ("unknown", 0)
        self._session = session = self._accept(self, (str(peer[0]), int(peer[1])))
        if session is None:
            transport.abort()
            return
        # What is there already need not wait for the next turn, in which it would be looked for.
        try:
            count = os.readv(self._file, [session.get_buffer(-1)])
        except OSError:
            return  # nothing is there, or the transport finds out why
        if count:
            session.buffer_updated(count)

    def get_buffer(self, sizehint: int) -> memoryview:
        session = self._session
        if session is None or session.closed:
            return memoryview(bytearray(max(sizehint, 1)))  # a closing connection; thrown away
        return session.get_buffer(sizehint)

    def buffer_updated(self, nbytes: int) -> None:
        session = self._session
        if session is not None and not session.closed:
            session.buffer_updated(nbytes)

    def eof_received(self) -> bool:
        # Kafka clients do not half-close: no answer could be wanted any more.
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self._lingering.over(self._transport)
        # Let go of, or the two would hold each other until the collector finds them.
        session, self._session = self._session, None
        if session is not None:
            session.connection_lost()

    def pause_writing(self) -> None:
        if self._session is not None:
            self._session.pause_writing()

    def resume_writing(self) -> None:
        if self._session is not None:
            self._session.resume_writing()

    # --- from the session ------------------------------------------------------------------------
    def send(self, buffers: Sequence[Buffer]) -> Sequence[Buffer]:
        """One gather write; of the rest a slice goes to the transport, if the socket is full."""
        transport = self._transport
        if transport.is_closing():
            return ()
        if transport.get_write_buffer_size():
            return buffers
        rest = write_some(self._file, buffers)
        while rest and not transport.is_closing():
            rest = self._write_slice(rest)
            if transport.get_write_buffer_size():
                break  # only then it says when there is room: a slice may leave at once
            if rest:
                rest = write_some(self._file, rest)
        return rest

    def _write_slice(self, rest: Sequence[Buffer]) -> Sequence[Buffer]:
        """Have the transport wait for room with the first bytes; what is left. It says that there
        is room when these have left."""
        left = deque(rest)
        room = _SLICE_BYTES
        while left and room > 0:
            first = memoryview(left.popleft())
            if len(first) > room:
                left.appendleft(first[room:])
                first = first[:room]
            room -= len(first)
            self._transport.write(first)
        return list(left)

    def close(self, rest: Sequence[Buffer]) -> None:
        self._lingering.close(self._transport, rest)

    def abort(self) -> None:
        self._transport.abort()

    def pause_reading(self) -> None:
        if not self._transport.is_closing():
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        if not self._transport.is_closing():
            self._transport.resume_reading()


class Listener:
    """One listening socket and the connections it accepted."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        frontend: Frontend,
        options: ListenerOptions,
        log: logging.Logger,
        *,
        context: TlsContext | None = None,
        offload: Offload = handshake_at_once,
    ) -> None:
        """`context`: needed by a protocol that is encrypted. `offload`: where handshakes run."""
        self.options = options
        self._rules = PrincipalRules(options.principal_rules)
        self.tls: TlsPort | None = None
        """None: connections are not encrypted."""
        if options.protocol.is_encrypted:
            assert context is not None, options.name
            self.tls = TlsPort(
                options.name,
                context,
                offload,
                partial(frontend.admits, listener=options.name),
                self._accept_secure,
                log,
            )
        self._loop = loop
        self._frontend = frontend
        self._log = log
        self._socket: socket.socket | None = None
        self._spare = -1
        self._starting: set[asyncio.Task[object]] = set()
        self._lingering = Lingering()
        self._retry: asyncio.TimerHandle | None = None
        self.refused_without_descriptor = 0
        self.refused_s = -math.inf
        """When that was last, on the loop's clock."""
        self._next_warning_s = 0.0

    def open(self) -> int:
        """Bind and listen; the port. Raises OSError. No connection is accepted yet."""
        options = self.options
        listening = listening_socket(options.host, options.port, _BACKLOG)
        listening.setblocking(False)
        self._socket = listening
        self._spare = os.open(os.devnull, os.O_RDONLY)
        return self.port

    @property
    def port(self) -> int:
        """The port that is bound; only while open."""
        assert self._socket is not None, "not open"
        port: int = self._socket.getsockname()[1]
        return port

    def start(self) -> None:
        """Accept connections from now on."""
        assert self._socket is not None, "not open"
        self._loop.add_reader(self._socket.fileno(), self._accept_some)

    def close(self) -> None:
        """Stop listening. Connections stay; the front end closes them."""
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None
        if self._socket is not None:
            self._loop.remove_reader(self._socket.fileno())
            self._socket.close()
            self._socket = None
        if self._spare >= 0:
            os.close(self._spare)
            self._spare = -1

    # --- accepting -----------------------------------------------------------------------------
    def _accept_some(self) -> None:
        assert self._socket is not None, "not open"
        for _ in range(_ACCEPTS_PER_TURN):
            try:
                accepted, _address = self._socket.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in _NO_DESCRIPTORS:
                    self._refuse_one()
                    return
                continue  # an error of the connection that was about to be accepted
            self._begin(accepted)

    def _begin(self, accepted: socket.socket) -> None:
        accepted.setblocking(False)
        with contextlib.suppress(OSError):  # the peer may be gone already
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            accepted.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _KEEPALIVE_IDLE_S)
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _KEEPALIVE_INTERVAL_S)
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _KEEPALIVE_PROBES)
        task = self._loop.create_task(self._connect(accepted))
        self._starting.add(task)
        task.add_done_callback(self._starting.discard)

    async def _connect(self, accepted: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(self._new_protocol, accepted)
        except OSError as error:
            accepted.close()
            self._log.debug("connection_failed", extra={"fields": {"error": str(error)}})

    def _new_protocol(self) -> ClientProtocol | TlsProtocol:
        if self.tls is not None:
            return self.tls.protocol()
        return ClientProtocol(self._accept_plain, self._lingering)

    def _accept_plain(self, protocol: ClientProtocol, peer: Peer) -> ClientSession | None:
        options = self.options
        return self._frontend.accept(protocol, options.name, peer, mechanisms=options.mechanisms)

    def _accept_secure(
        self, protocol: TlsProtocol, peer: Peer, certificate: Certificate | None
    ) -> ClientSession | None:
        options = self.options
        # As in Kafka, a login says who it is, whatever certificate there is.
        principal = ANONYMOUS
        if not options.mechanisms:
            named = self._rules.principal_of(certificate)
            if named is None:
                assert self.tls is not None
                self.tls.refuse(peer, "no rule for the certificate's subject")
                return None
            principal = named
        return self._frontend.accept(
            protocol,
            options.name,
            peer,
            principal=principal,
            mechanisms=options.mechanisms,
            is_admitted=True,
        )

    def _refuse_one(self) -> None:
        """No descriptor is left: close the connection that waits longest, then rest a little."""
        assert self._socket is not None, "not open"
        self.refused_without_descriptor += 1
        self.refused_s = now_s = self._loop.time()
        if now_s >= self._next_warning_s:
            self._next_warning_s = now_s + _WARNING_S
            fields = {"listener": self.options.name, "refused": self.refused_without_descriptor}
            self._log.warning("out_of_file_descriptors", extra={"fields": fields})
        if self._spare >= 0:
            os.close(self._spare)
            self._spare = -1
        with contextlib.suppress(OSError):
            refused, _address = self._socket.accept()
            refused.close()
        with contextlib.suppress(OSError):
            self._spare = os.open(os.devnull, os.O_RDONLY)
        self._loop.remove_reader(self._socket.fileno())
        self._retry = self._loop.call_later(_ACCEPT_RETRY_S, self._resume_accepting)

    def _resume_accepting(self) -> None:
        self._retry = None
        if self._socket is not None:
            self._loop.add_reader(self._socket.fileno(), self._accept_some)
