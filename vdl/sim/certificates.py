"""Certificates and handshakes of the simulator, below the TLS stream that real links have.

`rpc.tls_stream` decides which certificate is valid for what, here as on sockets. Only its engine
differs: real handshakes draw their own randomness, and a world is a function of its seed. This one
presents certificates and encrypts nothing, in the order of TLS 1.3: the dialer finishes first and
may have sent much before it is refused. The signing authority is a field of the certificate.

    dialer   → hello                                       acceptor → certificate, its length before
    dialer   → certificate, its length before; done        acceptor: done

Does not depend on links or on the meaning of names in certificates.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from struct import Struct

from rpc.errors import TlsFailed
from rpc.reader import Buffer
from rpc.tls_context import CLUSTER_NAME_DEFAULT, LinkEncryption, identity_uri
from rpc.tls_engine import HANDSHAKE_BYTES_MAX
from rpc.tls_stream import LinkSecurity, handshake_at_once

AUTHORITY = "ours"
SET = CLUSTER_NAME_DEFAULT

_HELLO = b"\x16\x03\x01virtual"
"""Begins like a handshake record, so that `rpc/either_stream.py` can distinguish the two."""
_LENGTH = Struct("<H")


@dataclass(frozen=True, slots=True)
class Certificate:
    """A certificate: its signing authority, and the URIs among its alternative names."""

    authority: str
    uris: tuple[str, ...]

    def encode(self) -> bytes:
        return "\n".join((self.authority, *self.uris)).encode()


def certificate_of(
    server_id: int, *, cluster: str = SET, authority: str = AUTHORITY
) -> Certificate:
    """Return a server's certificate; 0: an administrator's."""
    return Certificate(authority, (identity_uri(cluster, server_id),))


@dataclass(frozen=True, slots=True)
class HandshakeSide:
    """One end's part in handshakes; a `rpc.tls_stream.EngineMaker`.

    `trusted`: authority whose certificates it accepts, "" for any.
    """

    own: Certificate
    trusted: str
    dials: bool

    def new_engine(self) -> HandshakeEngine:
        return HandshakeEngine(self)

    def revokes(self, certificate: bytes) -> bool:
        """See `EngineMaker.revokes`. No certificate is revoked here."""
        del certificate
        return False


def security_of(
    own: Certificate,
    *,
    trusted: str = AUTHORITY,
    links: LinkEncryption = LinkEncryption.REQUIRED,
) -> LinkSecurity:
    """Return the stream security of a process with this certificate."""
    return LinkSecurity(
        SET,
        HandshakeSide(own, trusted, dials=False),
        HandshakeSide(own, trusted, dials=True),
        handshake_at_once,
        takes_plain=links is not LinkEncryption.REQUIRED,
        dials_plain=links is LinkEncryption.ACCEPTED,
    )


class HandshakeEngine:
    """Engine of one handshake; a `rpc.tls_stream.Engine`."""

    __slots__ = ("_arrived", "_has_begun", "_output", "_peer", "_side", "is_closed", "is_open")

    def __init__(self, side: HandshakeSide) -> None:
        self._side = side
        self._arrived = bytearray()
        self._output = bytearray()
        self._peer: Certificate | None = None
        self._has_begun = False
        self.is_open = False
        self.is_closed = False

    def received(self, data: Buffer) -> None:
        self._arrived += data
        if not self.is_open and len(self._arrived) > HANDSHAKE_BYTES_MAX:
            raise TlsFailed("the handshake exceeds its maximum size")

    def handshake(self) -> bool:
        """See `TlsEngine.handshake`."""
        if not self._has_begun and not self._begin():
            return False
        if len(self._arrived) < _LENGTH.size:
            return False
        (length,) = _LENGTH.unpack_from(self._arrived)
        end = _LENGTH.size + length
        if len(self._arrived) < end:
            return False
        shown = bytes(self._arrived[_LENGTH.size : end])
        del self._arrived[:end]
        self._verify(shown)
        if self._side.dials:
            self._show()
        self.is_open = True
        return True

    def _begin(self) -> bool:
        if self._side.dials:
            self._output += _HELLO
        else:
            begin = bytes(self._arrived[: len(_HELLO)])
            if not _HELLO.startswith(begin):
                raise TlsFailed("wrong version number")
            if begin != _HELLO:
                return False
            del self._arrived[: len(_HELLO)]
            self._show()
        self._has_begun = True
        return True

    def _show(self) -> None:
        encoded = self._side.own.encode()
        self._output += _LENGTH.pack(len(encoded)) + encoded

    def _verify(self, shown: bytes) -> None:
        authority, *uris = shown.decode(errors="replace").split("\n")
        if self._side.trusted not in {"", authority}:
            raise TlsFailed("certificate verify failed")
        self._peer = Certificate(authority, tuple(uris))

    def peer_certificate(self) -> Mapping[str, object] | None:
        if self._peer is None:
            return None
        return {"subjectAltName": tuple(("URI", uri) for uri in self._peer.uris)}

    def peer_certificate_der(self) -> bytes:
        return b""

    def read_into(self, buffer: memoryview) -> int:
        count = min(len(buffer), len(self._arrived))
        buffer[:count] = self._arrived[:count]
        del self._arrived[:count]
        return count

    def write(self, buffers: Sequence[Buffer], bytes_max: int) -> int:
        taken = 0
        for buffer in buffers:
            piece = memoryview(buffer)[: bytes_max - taken]
            self._output += piece
            taken += len(piece)
        return taken

    def take_output(self) -> bytes:
        output = bytes(self._output)
        self._output.clear()
        return output

    def close(self) -> bytes:
        return self.take_output()
