"""TLS on a listener for clients: bounded handshakes, then sessions as on any other listener.

* A handshake runs in another thread, so it never blocks the loop. Its connection is not read
  meanwhile. It has a deadline. The number of handshakes under way is bounded; one more displaces
  the oldest of the address that has the most. A client that is slow, sends nothing, or does not
  speak TLS costs one connection.
* Ciphertext is received into memory that all connections of the listener share, and is decrypted
  from OpenSSL's buffer into the session's. A waiting connection holds none of it.
* A session's answers are encrypted in parts of `_PART_BYTES`, each written by one system call. This
  copies each byte twice (into TLS records, and out of the engine). Bytes not encrypted yet stay
  with the session, which bounds them.

Does not depend on requests, on anything above bytes, or on the mapping of certificates to
principals.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from rpc.errors import TlsFailed
from rpc.newcomers import Newcomers
from rpc.tls_context import TlsContext
from rpc.tls_engine import TlsEngine, after
from rpc.tls_stream import Offload
from segments.api import Buffer
from vdl.kafka.connections.socket_writes import LINGERING_BYTES_MAX, Lingering, write_some

if TYPE_CHECKING:
    from vdl.kafka.connections.session import Session

HANDSHAKES_MAX = 256
"""Maximum number of handshakes under way on one listener."""
HANDSHAKE_SECONDS_MAX = 10.0
_PART_BYTES = 256 << 10
_STAGING_BYTES = 64 << 10
_REPLIES_BYTES_MAX = 2 * _PART_BYTES
"""Maximum that the transport may hold: a part that a session sent, and TLS's own replies behind it,
such as a refusal of renegotiation."""
_QUIET_SECONDS = 60.0
"""Time between two log lines about handshakes that failed for the same reason."""
_REASONS_MAX = 100
"""Maximum number of failure reasons that are tracked separately."""

Peer = tuple[str, int]
Certificate = dict[str, object]


class TlsPort:
    """State that the connections of one listener share. Counters are for metrics."""

    def __init__(
        self,
        name: str,
        context: TlsContext,
        offload: Offload,
        admits: Callable[[str], bool],
        accept: Callable[[TlsProtocol, Peer, Certificate | None], Session | None],
        log: logging.Logger,
    ) -> None:
        """`admits` returns True if a client at an address may begin a handshake. `accept` returns
        the session of a client whose handshake is done, given the certificate it has shown."""
        self.name = name
        self.context = context
        self.offload = offload
        self.admits = admits
        self.accept = accept
        self.lingering = Lingering()
        self.staging = memoryview(bytearray(_STAGING_BYTES))
        self.done = 0
        self.failed = 0
        self.timed_out = 0
        self._log = log
        self._under_way: Newcomers[TlsProtocol] = Newcomers(HANDSHAKES_MAX)
        self._deadlines: dict[TlsProtocol, asyncio.TimerHandle] = {}
        """Timers of the handshakes under way."""
        self._quiet_until: dict[str, float] = {}
        self._certified: dict[TlsProtocol, int] = {}
        """Open connections whose client has shown a certificate, with its serial number. Empty
        where certificates cannot be revoked."""

    def __len__(self) -> int:
        """Return the number of handshakes under way."""
        return len(self._under_way)

    @property
    def displaced(self) -> int:
        """Number of handshakes displaced by others."""
        return self._under_way.displaced

    def protocol(self) -> TlsProtocol:
        """Return the protocol for an accepted connection."""
        return TlsProtocol(self)

    def begin(self, protocol: TlsProtocol, host: str) -> None:
        """Record that a handshake begins; it may displace another one."""
        displaced = self._under_way.add(protocol, host)
        if displaced is not None:
            self._deadlines.pop(displaced).cancel()
            displaced.abort()
        loop = asyncio.get_running_loop()
        self._deadlines[protocol] = loop.call_later(HANDSHAKE_SECONDS_MAX, self._too_late, protocol)

    def end(self, protocol: TlsProtocol) -> None:
        """Record that a handshake is over, for any reason."""
        if self._under_way.remove(protocol):
            self._deadlines.pop(protocol).cancel()

    def refuse(self, peer: Peer, reason: str) -> None:
        """Count a failed handshake, and log the first of each reason in a while."""
        self.failed += 1
        now = asyncio.get_running_loop().time()
        if now < self._quiet_until.get(reason, 0.0):
            return
        if len(self._quiet_until) >= _REASONS_MAX:
            self._quiet_until.clear()
        self._quiet_until[reason] = now + _QUIET_SECONDS
        fields = {
            "listener": self.name,
            "peer": f"{peer[0]}:{peer[1]}",
            "reason": reason,
            "count": self.failed,
        }
        self._log.warning("handshake_failed", extra={"fields": fields})

    def is_revoked(self, protocol: TlsProtocol, certificate: Certificate | None) -> bool:
        """Return True if the certificate of a completed handshake is revoked.

        If not, remember it, to check it again when the revocation list changes.
        """
        if certificate is None or self.context.revocations is None:
            return False
        self._certified[protocol] = int(str(certificate["serialNumber"]), 16)
        return self._is_in_list(protocol)

    def _is_in_list(self, protocol: TlsProtocol) -> bool:
        revocations = self.context.revocations
        assert revocations is not None
        # A serial number is rarely in the list, so the certificate is seldom read again.
        return self._certified[protocol] in revocations.serials and self.context.revokes(
            protocol.certificate()
        )

    def drop_revoked(self) -> None:
        """End connections whose certificate has been revoked since."""
        for protocol in list(self._certified):
            if self._is_in_list(protocol):
                protocol.end("certificate: it was revoked")

    def gone(self, protocol: TlsProtocol) -> None:
        """Forget a connection that is over."""
        self.end(protocol)
        self._certified.pop(protocol, None)

    def _too_late(self, protocol: TlsProtocol) -> None:
        self.timed_out += 1
        self.end(protocol)
        protocol.abort()


class TlsProtocol(asyncio.BufferedProtocol):
    """One client's socket with TLS over it, and the transport of its session."""

    __slots__ = (
        "_engine",
        "_file",
        "_is_busy",
        "_is_reading",
        "_peer",
        "_port",
        "_pump_due",
        "_session",
        "_transport",
    )

    def __init__(self, port: TlsPort) -> None:
        self._port = port
        self._engine = TlsEngine(port.context.current, server_side=True)
        self._session: Session | None = None
        self._is_busy = False
        """True while another thread uses the engine."""
        self._is_reading = True
        """True while the session takes what arrives."""
        self._pump_due = False

    # --- from the event loop -------------------------------------------------------------------
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport), transport
        self._transport = transport
        self._file: int = transport.get_extra_info("socket").fileno()
        transport.set_write_buffer_limits(high=0)
        peer = transport.get_extra_info("peername") or ("unknown", 0)
        self._peer: Peer = str(peer[0]), int(peer[1])
        if self._port.admits(self._peer[0]):
            self._port.begin(self, self._peer[0])
        else:
            transport.abort()

    def get_buffer(self, sizehint: int) -> memoryview:
        del sizehint
        return self._port.staging

    def buffer_updated(self, nbytes: int) -> None:
        if self._transport.is_closing():
            return
        try:
            self._engine.received(self._port.staging[:nbytes])
        except TlsFailed as error:
            self._port.refuse(self._peer, str(error))
            self.abort()
            return
        if self._engine.is_open:
            self._pump()
            return
        assert not self._is_busy, "read in the middle of a handshake's step"
        self._is_busy = True
        self._transport.pause_reading()
        self._port.offload(self._step, self._stepped)

    def eof_received(self) -> bool:
        # Kafka clients do not half-close, so the client wants no more answers.
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self._port.gone(self)
        self._port.lingering.over(self._transport)
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

    # --- the handshake -------------------------------------------------------------------------
    def _step(self) -> bool:
        """Run one step of the handshake, in the thread. Return True when it is done.

        Nothing is computed for a client that is gone. So the queued work is bounded by the
        handshakes under way, and not by the number ever begun.
        """
        return not self._transport.is_closing() and self._engine.handshake()

    def _stepped(self, result: bool | BaseException) -> None:
        self._is_busy = False
        transport = self._transport
        if transport.is_closing():
            return
        if isinstance(result, BaseException) and not isinstance(result, TlsFailed):
            # A library failed on the client's bytes; only the client's connection is closed.
            self._port.refuse(self._peer, f"failed in the server: {type(result).__name__}")
            transport.abort()
            return
        transport.write(self._engine.take_output())  # may be an alert that names the error
        if isinstance(result, TlsFailed):
            self._port.refuse(self._peer, str(result))
            transport.close()
            return
        if result:
            self._port.end(self)
            self._port.done += 1
            try:
                certificate = self._engine.peer_certificate()
            except TlsFailed as error:
                self._port.refuse(self._peer, str(error))
                transport.abort()
                return
            if self._port.is_revoked(self, certificate):
                # The handshake may have begun before the revocation was known.
                self._port.refuse(self._peer, "the certificate was revoked")
                transport.abort()
                return
            self._session = self._port.accept(self, self._peer, certificate)
            if self._session is None:
                transport.abort()
                return
            if transport.get_write_buffer_size():
                self._session.pause_writing()
        if self._is_reading:
            transport.resume_reading()
        if result:
            self._pump()  # the first request may have come with the end of the handshake

    # --- received bytes --------------------------------------------------------------------------
    def _pump(self) -> None:
        """Decrypt into the session as much as it takes."""
        self._pump_due = False
        engine = self._engine
        transport = self._transport
        try:
            while self._is_reading and engine.has_input and not transport.is_closing():
                session = self._session
                if session is None or session.closed:
                    return
                try:
                    buffer = session.connection.get_buffer()
                except OSError:  # no memory for this request
                    transport.abort()
                    return
                count = engine.read_into(buffer)
                if not count:
                    break
                session.buffer_updated(count)
            if transport.is_closing():
                return
            if reply := engine.take_output():
                transport.write(reply)
                if transport.get_write_buffer_size() > _REPLIES_BYTES_MAX:
                    # A client requests many short replies and reads none.
                    transport.abort()
                    return
            if engine.is_closed:
                transport.close()
        except TlsFailed:
            transport.abort()

    def pause_reading(self) -> None:
        self._is_reading = False
        if not self._transport.is_closing():
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        self._is_reading = True
        if self._transport.is_closing():
            return
        if not self._is_busy:
            self._transport.resume_reading()
        if self._engine.has_input and not self._pump_due:
            # Not from inside the session's own call.
            self._pump_due = True
            asyncio.get_running_loop().call_soon(self._pump)

    # --- from the session ------------------------------------------------------------------------
    def send(self, buffers: Sequence[Buffer]) -> Sequence[Buffer]:
        """Encrypt and write part by part. Return the rest, unencrypted, once the socket is full."""
        transport = self._transport
        if transport.is_closing():
            return ()
        rest = buffers
        while rest and not transport.get_write_buffer_size():
            taken = self._engine.write(rest, _PART_BYTES)
            rest = after(rest, taken)
            unsent = write_some(self._file, [self._engine.take_output()])
            if unsent:
                transport.write(unsent[0])
                if transport.is_closing():
                    return ()
        return rest

    def close(self, rest: Sequence[Buffer]) -> None:
        transport = self._transport
        if transport.is_closing():
            return
        size = sum(map(len, rest))
        if size > LINGERING_BYTES_MAX:
            transport.abort()
            return
        self._engine.write(rest, size)
        last = self._engine.take_output() + self._engine.close()
        self._port.lingering.close(transport, [last] if last else ())

    def abort(self) -> None:
        self._transport.abort()

    # --- from the port ---------------------------------------------------------------------------
    def certificate(self) -> bytes:
        """Return the client's certificate (DER)."""
        return self._engine.peer_certificate_der()

    def end(self, reason: str) -> None:
        """End the session, if there is one."""
        if self._session is not None:
            self._session.abort(reason)
