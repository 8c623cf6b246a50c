"""asyncio edge of the front end: sockets on one side, `Session` on the other.

This is one of the few files in `vdl` that use an event loop: a listening socket, and one
`BufferedProtocol` per client. Rules:

* A session's bytes go straight to the socket with one gather write, one system call per connection
  and turn. If the socket does not take all of them, a first slice goes to the transport, which
  waits for room and then resumes the session. The rest stays with the session. (asyncio's
  `writelines` joins the buffers first, and `write` copies what it keeps.)
* The listening socket is drained in small portions, so that a flood of connections does not starve
  the existing ones. When the process has no file descriptor left, a spare one is closed in order to
  accept and close the connection at the head of the queue. Clients see a refusal instead of a
  server that hangs.

Does not depend on requests, or on anything above bytes.
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
from vdl.kafka.connections.frontend import Frontend
from vdl.kafka.connections.session import Session
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
"""Time between two log lines about missing descriptors."""
_SLICE_BYTES = 64 << 10
"""Unsent bytes that are handed to the transport, which copies them."""
_KEEPALIVE_IDLE_S = 60
_KEEPALIVE_INTERVAL_S = 10
_KEEPALIVE_PROBES = 6


class ClientProtocol(asyncio.BufferedProtocol):
    """One client's socket, and the transport of its session."""

    __slots__ = (
        "_accept",
        "_file",
        "_lingering",
        "_session",
        "_transport",
    )

    def __init__(
        self,
        accept: Callable[[ClientProtocol, Peer], Session | None],
        lingering: Lingering,
    ) -> None:
        self._accept = accept
        self._lingering = lingering
        self._session: Session | None = None

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
        # Read what is there already, instead of waiting for the next turn's poll.
        try:
            count = os.readv(self._file, [session.connection.get_buffer()])
        except OSError:
            return  # nothing is there, or the transport will find the error
        if count:
            session.buffer_updated(count)

    def get_buffer(self, sizehint: int) -> memoryview:
        session = self._session
        if session is None or session.closed:
            return memoryview(bytearray(max(sizehint, 1)))  # a closing connection; discarded
        return session.connection.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        session = self._session
        if session is not None and not session.closed:
            session.buffer_updated(nbytes)

    def eof_received(self) -> bool:
        # Kafka clients do not half-close, so the client wants no more answers.
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self._lingering.over(self._transport)
        # Break the reference cycle between the two, or it stays until the collector finds it.
        session, self._session = self._session, None
        if session is not None:
            session.connection_lost()

    def pause_writing(self) -> None:
        if self._session is not None:
            self._session.pause_writing()

    def resume_writing(self) -> None:
        if self._session is not None:
            # Later: asyncio is in the middle of a write. If another one failed here, asyncio would
            # report the end of the connection twice, and fail.
            asyncio.get_running_loop().call_soon(self._session.resume_writing)

    # --- from the session ------------------------------------------------------------------------
    def send(self, buffers: Sequence[Buffer]) -> Sequence[Buffer]:
        """Write with one gather write; give a slice of the rest to the transport if the socket is
        full."""
        transport = self._transport
        if transport.is_closing():
            return ()
        if transport.get_write_buffer_size():
            return buffers
        rest = write_some(self._file, buffers)
        while rest and not transport.is_closing():
            rest = self._write_slice(rest)
            if transport.get_write_buffer_size():
                break  # if the slice left at once, the transport will not call resume_writing
            if rest:
                rest = write_some(self._file, rest)
        return rest

    def _write_slice(self, rest: Sequence[Buffer]) -> Sequence[Buffer]:
        """Give the first bytes to the transport, which waits for room. Return the rest.

        The transport calls `resume_writing` when these bytes have left.
        """
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
        """`context` is required for an encrypted protocol. `offload` runs handshakes."""
        self.options = options
        self._rules = PrincipalRules(options.principal_rules)
        self.tls: TlsPort | None = None
        """None if connections are not encrypted."""
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
        """Time of the last refusal, on the loop's clock."""
        self._next_warning_s = 0.0

    def open(self) -> int:
        """Bind and listen, and return the port. Raises OSError. Does not accept connections yet."""
        options = self.options
        listening = listening_socket(options.host, options.port, _BACKLOG)
        listening.setblocking(False)
        self._socket = listening
        self._spare = os.open(os.devnull, os.O_RDONLY)
        return self.port

    @property
    def port(self) -> int:
        """The bound port. Only while open."""
        assert self._socket is not None, "not open"
        port: int = self._socket.getsockname()[1]
        return port

    def start(self) -> None:
        """Start accepting connections."""
        assert self._socket is not None, "not open"
        self._loop.add_reader(self._socket.fileno(), self._accept_some)

    def close(self) -> None:
        """Stop listening. Accepted connections stay; the front end closes them."""
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
        with contextlib.suppress(OSError):  # the peer may have disconnected
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

    def _accept_plain(self, protocol: ClientProtocol, peer: Peer) -> Session | None:
        options = self.options
        return self._frontend.accept(protocol, options.name, peer, mechanisms=options.mechanisms)

    def _accept_secure(
        self, protocol: TlsProtocol, peer: Peer, certificate: Certificate | None
    ) -> Session | None:
        options = self.options
        # As in Kafka, a login determines the principal, even if the client shows a certificate.
        principal = ANONYMOUS
        if not options.mechanisms:
            named = self._rules.principal_of(certificate)
            if named is None:
                assert self.tls is not None
                self.tls.refuse(peer, "no rule matches the subject of the certificate")
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
        """Close the connection that waits longest, because no descriptor is left. Then pause
        accepting."""
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
