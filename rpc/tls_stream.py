"""TLS over any `rpc.streams.Stream`, itself a `Stream`, transparent to the links above.

The handshake begins with `start`; until it is done, `write` takes nothing. It runs where `Offload`
puts it, because a signature takes up to a millisecond; data that arrives meanwhile waits, bounded.
After it the other end must have shown a certificate of a server (`rpc/tls_context.py`), or the
stream ends. `identity` is that server, and the links compare it with HELLO.

A silent other end is limited by the time that the links allow until HELLO.

Does not depend on sockets or frames.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from rpc.either_stream import EitherStream
from rpc.errors import TlsFailed
from rpc.reader import Buffer
from rpc.streams import OwnedStream, Stream, StreamOwner
from rpc.tls_context import ADMIN, alternative_names, identity_in
from rpc.tls_engine import HANDSHAKE_BYTES_MAX, RECORD_BYTES, after

_PART_BYTES = 256 << 10
"""Bytes encrypted in one call; as many may have to wait here for the stream below."""
_STAGING_BYTES = 256 << 10

Offload = Callable[[Callable[[], bool], Callable[[bool | BaseException], None]], None]
"""Run a job off the loop, then pass its result, or its exception, to the callback on the loop."""


def handshake_at_once(
    job: Callable[[], bool], done: Callable[[bool | BaseException], None]
) -> None:
    """`Offload` without threads."""
    try:
        result: bool | BaseException = job()
    except TlsFailed as error:
        result = error
    done(result)


class Engine(Protocol):
    """Cryptography of one connection, as `rpc.tls_engine.TlsEngine` describes it."""

    @property
    def is_open(self) -> bool: ...

    @property
    def is_closed(self) -> bool: ...

    def received(self, data: Buffer) -> None: ...

    def handshake(self) -> bool: ...

    def peer_certificate(self) -> Mapping[str, object] | None: ...

    def peer_certificate_der(self) -> bytes: ...

    def read_into(self, buffer: memoryview) -> int: ...

    def write(self, buffers: Sequence[Buffer], bytes_max: int) -> int: ...

    def take_output(self) -> bytes: ...

    def close(self) -> bytes: ...


class EngineMaker(Protocol):
    """Maker of the engines for one side's connections."""

    def new_engine(self) -> Engine: ...

    def revokes(self, certificate: bytes) -> bool:
        """Return True if a certificate (DER) has been revoked by now."""


class LinkSecurity:
    """TLS settings and state for the links of one server."""

    def __init__(
        self,
        cluster: str,
        accepting: EngineMaker,
        dialing: EngineMaker,
        offload: Offload,
        *,
        takes_plain: bool = False,
        dials_plain: bool = False,
    ) -> None:
        """Create the settings.

        `cluster` is the set's name in its servers' certificates. `takes_plain`: inbound links may
        be unencrypted, and then prove no identity. `dials_plain`: this server dials unencrypted.
        Both are for the time in which a set migrates.
        """
        self.cluster = cluster
        self.accepting = accepting
        self.dialing = dialing
        self.offload = offload
        self.takes_plain = takes_plain
        self.dials_plain = dials_plain
        self.staging = memoryview(bytearray(_STAGING_BYTES))
        """Buffer for received ciphertext, which is consumed before anything else is read."""
        self.refused = 0
        """Number of streams whose other end has not proved to be a server of this set."""
        self.proved: set[TlsStream] = set()
        """Open streams whose other end has."""

    def wrap(self, stream: Stream, *, dialed: bool) -> Stream:
        """Return the stream with TLS over it, unless it may be unencrypted."""
        if dialed:
            return stream if self.dials_plain else TlsStream(stream, self, self.dialing)
        if self.takes_plain:
            return EitherStream(stream, self._secure)
        return self._secure(stream)

    def drop_revoked(self) -> None:
        """End the streams of servers whose certificate has been revoked meanwhile."""
        for stream in list(self.proved):
            stream.drop_if_revoked()

    def _secure(self, stream: Stream) -> Stream:
        return TlsStream(stream, self, self.accepting)


class TlsStream(OwnedStream):
    """TLS over another stream; see the module."""

    __slots__ = (
        "_engine", "_held_back", "_inner", "_is_busy", "_is_paused", "_is_wanted",
        "_is_writable", "_part_bytes", "_rest", "_security", "identity",
    )  # fmt: skip

    def __init__(self, inner: Stream, security: LinkSecurity, maker: EngineMaker) -> None:
        super().__init__()
        self.identity: int | None = ADMIN
        """Server at the other end. Until it is known: ADMIN, which no server has."""
        self._inner = inner
        self._security = security
        self._engine = maker.new_engine()
        self._is_busy = False
        """True while the engine is used by another thread."""
        self._held_back = bytearray()
        """Bytes that arrived meanwhile."""
        self._is_paused = False
        self._is_writable = True
        """True if the stream below takes bytes. Otherwise it reports when it does."""
        self._rest = memoryview(b"")
        """Ciphertext that the stream below has not taken."""
        self._is_wanted = False
        """True if `write` took less than it was offered: its caller waits for `writable`."""
        self._part_bytes = _PART_BYTES

    # --- Stream ----------------------------------------------------------------------------------
    def start(self, owner: StreamOwner) -> None:
        super().start(owner)
        self._inner.start(self)
        if not self._is_closed:
            self._go_on()

    def write(self, buffers: Sequence[Buffer]) -> int:
        """See `Stream.write`."""
        offered = sum(map(len, buffers))
        if self._is_closed:
            return offered
        taken = 0
        while taken < offered and self._engine.is_open and not self._rest:
            left = buffers if not taken else after(buffers, taken)
            taken += self._engine.write(left, self._part_bytes)
            self._send(self._engine.take_output())
        self._is_wanted = taken < offered
        return taken

    def unsent_bytes(self) -> int:
        """See `Stream.unsent_bytes`."""
        return self._inner.unsent_bytes() + len(self._rest)

    def limit_unsent(self, bytes_max: int) -> None:
        """See `Stream.limit_unsent`."""
        # Ciphertext that waits here comes on top of what the stream below holds.
        self._part_bytes = max(RECORD_BYTES, min(bytes_max // 2, _PART_BYTES))
        self._inner.limit_unsent(bytes_max - self._part_bytes)

    def pause_reading(self) -> None:
        """See `Stream.pause_reading`."""
        self._is_paused = True
        self._inner.pause_reading()

    def resume_reading(self) -> None:
        """See `Stream.resume_reading`. Data already here is delivered first."""
        self._is_paused = False
        if not self._is_closed:
            self._read()
        if not (self._is_closed or self._is_paused):
            self._inner.resume_reading()

    def unread_bytes(self) -> int:
        """See `Stream.unread_bytes`. The engine holds less than it receives at once."""
        return self._inner.unread_bytes()

    def close(self) -> None:
        """See `Stream.close`."""
        if self._is_closed:
            return
        self._is_closed = True
        self._security.proved.discard(self)
        if not self._is_busy and not self._rest and self._is_writable:
            last = self._engine.close()
            if last:
                self._inner.write([last])
        self._inner.close()

    def drop_if_revoked(self) -> bool:
        """End the stream if the other end's certificate has been revoked. Return True if so."""
        is_revoked = self._security.accepting.revokes(self._engine.peer_certificate_der())
        if is_revoked:
            self._refuse("TLS: the certificate was revoked")
        return is_revoked

    # --- owner of the stream below ---------------------------------------------------------------
    def get_buffer(self) -> memoryview:
        return self._security.staging

    def buffer_updated(self, received: int) -> None:
        data = self._security.staging[:received]
        if self._is_busy:
            if len(self._held_back) + received > HANDSHAKE_BYTES_MAX:
                self._refuse("the handshake exceeds its maximum size")
            else:
                self._held_back += data
            return
        self._received(data)

    def writable(self) -> None:
        self._is_writable = True
        if self._is_closed:
            return
        if self._rest:
            rest, self._rest = self._rest, memoryview(b"")
            self._send(rest)
        self._tell_if_writable()

    def ended(self, cause: str) -> None:
        self._is_closed = True
        self._security.proved.discard(self)
        assert self._owner is not None
        self._owner.ended(cause)

    # --- between the two -------------------------------------------------------------------------
    def _received(self, data: Buffer) -> None:
        try:
            self._engine.received(data)
        except TlsFailed as error:
            self._refuse(str(error))
            return
        self._go_on()

    def _refuse(self, cause: str) -> None:
        self._security.refused += 1
        self._end(cause)

    def _go_on(self) -> None:
        """Continue the handshake, or read what arrived."""
        if self._engine.is_open:
            self._read()
        else:
            self._is_busy = True
            self._security.offload(self._step, self._stepped)

    def _step(self) -> bool:
        """Run the handshake, possibly in a thread. Computes nothing for a closed stream."""
        return not self._is_closed and self._engine.handshake()

    def _stepped(self, result: bool | BaseException) -> None:
        self._is_busy = False
        if self._is_closed:
            return
        self._send(self._engine.take_output())
        if isinstance(result, BaseException):
            # Whatever a stranger's bytes cause in a library only costs the stranger's stream.
            told = str(result) if isinstance(result, TlsFailed) else type(result).__name__
            self._refuse(f"TLS: {told}")
            return
        if result:
            try:
                certificate = self._engine.peer_certificate() or {}
            except TlsFailed as error:
                self._refuse(f"TLS: {error}")
                return
            self.identity = identity_in(
                alternative_names(certificate, "URI"), self._security.cluster
            )
            if not self.identity:
                self._refuse("TLS: the certificate is not one of a server of this set")
                return
            self._security.proved.add(self)
            if self.drop_if_revoked():
                return  # the handshake began before that was known
            self._tell_if_writable()
        held_back, self._held_back = self._held_back, bytearray()
        if held_back:
            self._received(held_back)
        elif result:
            self._read()  # data may have come with the end of the handshake

    def _read(self) -> None:
        owner = self._owner
        assert owner is not None
        engine = self._engine
        try:
            while not (self._is_closed or self._is_paused):
                count = engine.read_into(owner.get_buffer())
                if not count:
                    break
                owner.buffer_updated(count)
        except TlsFailed as error:
            self._end(f"TLS: {error}")
            return
        if not self._is_closed:
            self._send(engine.take_output())
            if engine.is_closed:
                self._end("closed by the peer")

    def _send(self, data: Buffer) -> None:
        """Send ciphertext to the stream below; keep what it does not take."""
        view = memoryview(data)
        if not view or self._is_closed:
            return
        if self._rest or not self._is_writable:
            self._rest = memoryview(b"".join((self._rest, view)))
            return
        sent = self._inner.write([view])
        if sent < len(view):
            self._is_writable = False
            self._rest = view[sent:]

    def _tell_if_writable(self) -> None:
        if self._is_wanted and self._engine.is_open and not self._rest and not self._is_closed:
            self._is_wanted = False
            self._tell_writable()
