"""One TLS connection without its socket: ciphertext in and out, plaintext in and out.

In the style of h11, over OpenSSL's memory buffers: the owner of the socket keeps its own way of
reading and writing. Clients' connections and the links between servers use the same code. The owner
passes on what arrives (`received`), runs `handshake` until it returns True, and then reads and
writes. After each call there may be something to send (`take_output`).

* `handshake` is the only expensive call, because of a private key's signature. It may run in a
  thread; no other call may be made meanwhile, so the owner stops reading until it returns.
* Plaintext is cut into TLS records of 16 KiB each. Small buffers are joined first, which is one
  copy; each call into OpenSSL costs more than that.
* There is no renegotiation: contexts forbid it (`rpc/tls_context.py`).
* A record without data costs much more than its bytes: a KeyUpdate of TLS 1.3 has 27, and takes
  10 to 20 µs. So at most `RECORDS_AT_ONCE` are passed to OpenSSL at once, and a connection ends
  whose records mostly have no data. Records are counted by their headers.

Does not depend on sockets, the event loop, or the other end's identity.
"""

from __future__ import annotations

import ssl
from collections import deque
from collections.abc import Sequence
from typing import cast

from rpc.errors import TlsFailed
from rpc.reader import Buffer

RECORD_BYTES = 16 << 10
"""Most plaintext in one TLS record."""
HANDSHAKE_BYTES_MAX = 256 << 10
"""Bytes that may arrive before a handshake is done. A chain of certificates takes a few KiB."""

RECORDS_AT_ONCE = 64
"""Most records that OpenSSL reads in one call: 1.2 ms if none has data."""
EMPTY_RECORDS_MAX = 100
"""Records without data that a connection may have; and one more for each `EMPTY_IN` with data. A
client updates its keys once in millions of records."""
EMPTY_IN = 100
_HEADER_BYTES = 5

_FAILURES = (ssl.SSLError, OSError, MemoryError)
_CLOSED = (ssl.SSLZeroReturnError, ssl.SSLEOFError)


class TlsEngine:
    """One TLS connection; see the module. TlsFailed from any call ends the connection."""

    __slots__ = (
        "_arrived", "_header", "_incoming", "_left", "_object", "_outgoing", "_reads", "_records",
        "_waiting", "is_closed", "is_open",
    )  # fmt: skip

    def __init__(
        self, context: ssl.SSLContext, *, server_side: bool, server_hostname: str | None = None
    ) -> None:
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._object = context.wrap_bio(
            self._incoming,
            self._outgoing,
            server_side=server_side,
            server_hostname=server_hostname,
        )
        self._arrived = 0
        self._header = b""
        """Begin of a record's header, if it is not whole."""
        self._left = 0
        """Bytes of the present record that have not arrived."""
        self._waiting: deque[tuple[bytes, int]] = deque()
        """Ciphertext that is not passed to OpenSSL yet, with the number of records that begin in
        each piece."""
        self._records = self._reads = 0
        """Records passed to OpenSSL since the end of the handshake, and reads that returned
        data."""
        self.is_open = False
        """True once the handshake is done."""
        self.is_closed = False
        """True once the other end has announced that it sends no more."""

    # --- from the other end ----------------------------------------------------------------------
    def received(self, data: Buffer) -> None:
        """Take in ciphertext that arrived. Raises TlsFailed, also for want of memory."""
        if not self.is_open:
            self._arrived += len(data)
            if self._arrived > HANDSHAKE_BYTES_MAX:
                raise TlsFailed("the handshake exceeds its maximum size")
        view = memoryview(data)
        begin = 0
        while begin < len(view):
            end, records = self._piece(view, begin)
            if self._waiting or begin:
                self._waiting.append((bytes(view[begin:end]), records))
            else:
                self._feed(view[:end], records)
            begin = end

    def _piece(self, view: memoryview, begin: int) -> tuple[int, int]:
        """Return the end of a piece with at most `RECORDS_AT_ONCE` records, and their number."""
        at, size, records = begin, len(view), 0
        while at < size:
            if self._left:
                taken = min(self._left, size - at)
                self._left -= taken
                at += taken
                continue
            if not self._header and records == RECORDS_AT_ONCE:
                break
            taken = min(_HEADER_BYTES - len(self._header), size - at)
            self._header += view[at : at + taken]
            at += taken
            if len(self._header) == _HEADER_BYTES:
                self._left = int.from_bytes(self._header[3:])
                self._header = b""
                records += 1
        return at, records

    def _feed(self, piece: Buffer, records: int) -> None:
        if self.is_open:
            self._records += records
        try:
            self._incoming.write(piece)
        except MemoryError as error:
            raise TlsFailed(_reason(error)) from None

    def _feeds_more(self) -> bool:
        """Pass the next piece to OpenSSL, which has read all before. Return False if there is
        none."""
        if self._records - self._reads > EMPTY_RECORDS_MAX + self._reads // EMPTY_IN:
            raise TlsFailed("records without data")
        if not self._waiting:
            return False
        self._feed(*self._waiting.popleft())
        return True

    def handshake(self) -> bool:
        """Continue the handshake with the received data. Return True once it is done."""
        while True:
            try:
                self._object.do_handshake()
            except ssl.SSLWantReadError:
                if self._feeds_more():
                    continue
                return False
            except _FAILURES as error:
                raise TlsFailed(_reason(error)) from None
            self.is_open = True
            return True

    @property
    def has_input(self) -> bool:
        """True if `read_into` may return data."""
        pending = self._incoming.pending or self._object.pending() or self._waiting
        return bool(pending) and not self.is_closed

    def read_into(self, buffer: memoryview) -> int:
        """Read plaintext and return its length; 0 until more arrives, or at the end."""
        if self.is_closed:
            return 0
        while True:
            try:
                # The stub only knows the call without a buffer, which returns the bytes.
                count = cast("int", self._object.read(len(buffer), cast("bytearray", buffer)))
            except ssl.SSLWantReadError:
                if self._feeds_more():
                    continue
                return 0
            except _CLOSED:
                self.is_closed = True
                return 0
            except _FAILURES as error:
                raise TlsFailed(_reason(error)) from None
            if count:
                self._reads += 1
            else:
                self.is_closed = True
            return count

    # --- to the other end ------------------------------------------------------------------------
    def write(self, buffers: Sequence[Buffer], bytes_max: int) -> int:
        """Encrypt a prefix of about `bytes_max` bytes. Return the number of plaintext bytes."""
        taken = 0
        record = bytearray()
        for buffer in buffers:
            view = memoryview(buffer)
            at = 0
            while at < len(view) and taken < bytes_max:
                if not record and len(view) - at >= RECORD_BYTES:
                    piece = view[at : at + RECORD_BYTES]
                    self._write(piece)
                    size = RECORD_BYTES
                else:
                    size = min(RECORD_BYTES - len(record), len(view) - at)
                    record += view[at : at + size]
                    if len(record) == RECORD_BYTES:
                        self._write(record)
                        record = bytearray()
                at += size
                taken += size
            if taken >= bytes_max:
                break
        if record:
            self._write(record)
        return taken

    def _write(self, data: Buffer) -> None:
        view = memoryview(data)
        try:
            while view:
                view = view[self._object.write(view) :]
        except _FAILURES as error:
            raise TlsFailed(_reason(error)) from None

    def take_output(self) -> bytes:
        """Return the ciphertext to send now."""
        return self._outgoing.read()

    def close(self) -> bytes:
        """Announce the end of the stream if possible. Return the ciphertext to send for it."""
        if self.is_open:
            try:
                self._object.unwrap()
            except (ssl.SSLError, OSError, ValueError):
                pass  # it waits for the other end's answer, which is not needed
        return self._outgoing.read()

    # --- negotiated properties -------------------------------------------------------------------
    def peer_certificate(self) -> dict[str, object] | None:
        """Return the other end's verified certificate as described by `ssl`; None if not shown.

        Raises TlsFailed if `ssl` cannot describe it: an authority may sign what is not text.
        """
        try:
            certificate = self._object.getpeercert()
            if certificate:
                int(str(certificate["serialNumber"]), 16)  # a long one is broken into lines
        except (ValueError, OSError) as error:
            raise TlsFailed(f"the certificate cannot be read: {type(error).__name__}") from error
        return dict(certificate) if certificate else None

    def peer_certificate_der(self) -> bytes:
        """Return the same certificate as bytes (DER); empty if none was shown."""
        return self._object.getpeercert(binary_form=True) or b""

    @property
    def version(self) -> str:
        """Protocol version, such as "TLSv1.3"; empty before it is negotiated."""
        return self._object.version() or ""

    @property
    def cipher(self) -> str:
        """Name of the cipher suite; empty before it is negotiated."""
        agreed = self._object.cipher()
        return agreed[0] if agreed else ""


def after(buffers: Sequence[Buffer], count: int) -> Sequence[Buffer]:
    """Return what follows the first `count` bytes of the buffers."""
    for position, buffer in enumerate(buffers):
        if count < len(buffer):
            if not count:
                return buffers[position:]
            return [memoryview(buffer)[count:], *buffers[position + 1 :]]
        count -= len(buffer)
    return ()


def _reason(error: Exception) -> str:
    """Return OpenSSL's reason for an error, without the numbers of its source lines."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"certificate verify failed: {error.verify_message}"
    if isinstance(error, ssl.SSLError) and error.reason:
        return error.reason.lower().replace("_", " ")
    return type(error).__name__
