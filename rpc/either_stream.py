"""Inbound stream that may be encrypted or not, as its first three bytes show.

Used while the servers of a set migrate between the two (`LinkSecurity.takes_plain`). A TLS
handshake begins with 22, 3, and 1 to 3 (RFC 8446 §5.1). A frame begins with its length, lowest byte
first, and the third byte is 0 in every HELLO of less than 64 KiB. An unencrypted peer proves no
identity.

Does not depend on sockets or frames.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rpc.reader import Buffer
from rpc.streams import OwnedStream, Stream, StreamOwner
from rpc.tls_context import ADMIN

FIRST_BYTES = 3


def is_handshake(first: Buffer) -> bool:
    """Return True if a TLS handshake begins with these bytes."""
    return first[:2] == b"\x16\x03" and first[2] != 0


class EitherStream(OwnedStream):
    """Stream that is encrypted or not; see the module. `secure` puts TLS over a stream."""

    __slots__ = (
        "_above", "_chosen", "_first", "_have", "_inner", "_is_wanted", "_secure", "_unsent_max",
    )  # fmt: skip

    def __init__(self, inner: Stream, secure: Callable[[Stream], Stream]) -> None:
        super().__init__()
        self._inner = inner
        self._secure = secure
        self._first = bytearray(FIRST_BYTES)
        self._have = 0
        """Number of bytes received into `_first`."""
        self._chosen: Stream | None = None
        """Stream to write to, once it is known."""
        self._above: StreamOwner | None = None
        """Owner of the stream below, once it is known."""
        self._is_wanted = False
        self._unsent_max = -1

    # --- Stream ----------------------------------------------------------------------------------
    @property
    def identity(self) -> int | None:
        """See `Stream.identity`. Until it is known: ADMIN, which no server has."""
        return ADMIN if self._chosen is None else self._chosen.identity

    def start(self, owner: StreamOwner) -> None:
        super().start(owner)
        self._inner.start(self)

    def write(self, buffers: Sequence[Buffer]) -> int:
        """See `Stream.write`."""
        if self._chosen is not None:
            return self._chosen.write(buffers)
        self._is_wanted = True
        return 0

    def unsent_bytes(self) -> int:
        """See `Stream.unsent_bytes`."""
        return (self._chosen or self._inner).unsent_bytes()

    def limit_unsent(self, bytes_max: int) -> None:
        """See `Stream.limit_unsent`."""
        self._unsent_max = bytes_max
        (self._chosen or self._inner).limit_unsent(bytes_max)

    def pause_reading(self) -> None:
        """See `Stream.pause_reading`."""
        (self._chosen or self._inner).pause_reading()

    def resume_reading(self) -> None:
        """See `Stream.resume_reading`."""
        (self._chosen or self._inner).resume_reading()

    def unread_bytes(self) -> int:
        """See `Stream.unread_bytes`."""
        return (self._chosen or self._inner).unread_bytes()

    def close(self) -> None:
        """See `Stream.close`."""
        if not self._is_closed:
            self._is_closed = True
            (self._chosen or self._inner).close()

    # --- owner of the stream below ---------------------------------------------------------------
    def get_buffer(self) -> memoryview:
        if self._above is None:
            return memoryview(self._first)[self._have :]
        return self._above.get_buffer()

    def buffer_updated(self, received: int) -> None:
        if self._above is not None:
            self._above.buffer_updated(received)
            return
        self._have += received
        if self._have == FIRST_BYTES:
            self._choose()

    def writable(self) -> None:
        if self._above is not None:
            self._above.writable()

    def ended(self, cause: str) -> None:
        self._is_closed = True
        above = self._above or self._owner
        assert above is not None
        above.ended(cause)

    # --- between the two -------------------------------------------------------------------------
    def _choose(self) -> None:
        owner = self._owner
        assert owner is not None
        if is_handshake(self._first):
            self._chosen = self._secure(_Below(self._inner, self._read_by))
            if self._unsent_max >= 0:
                self._chosen.limit_unsent(self._unsent_max)
            self._chosen.start(owner)
        else:
            self._chosen = self._inner
            self._above = owner
        above = self._above
        assert above is not None
        above.get_buffer()[:FIRST_BYTES] = self._first
        above.buffer_updated(FIRST_BYTES)
        if self._is_wanted and self._chosen is self._inner and not self._is_closed:
            owner.writable()

    def _read_by(self, owner: StreamOwner) -> None:
        self._above = owner


class _Below:
    """The stream below as seen by the one over it: it has been started already."""

    identity: int | None = None

    __slots__ = ("_inner", "_read_by")

    def __init__(self, inner: Stream, read_by: Callable[[StreamOwner], None]) -> None:
        self._inner = inner
        self._read_by = read_by

    def start(self, owner: StreamOwner) -> None:
        self._read_by(owner)

    def write(self, buffers: Sequence[Buffer]) -> int:
        return self._inner.write(buffers)

    def unsent_bytes(self) -> int:
        return self._inner.unsent_bytes()

    def limit_unsent(self, bytes_max: int) -> None:
        self._inner.limit_unsent(bytes_max)

    def pause_reading(self) -> None:
        self._inner.pause_reading()

    def resume_reading(self) -> None:
        self._inner.resume_reading()

    def unread_bytes(self) -> int:
        return self._inner.unread_bytes()

    def close(self) -> None:
        self._inner.close()
