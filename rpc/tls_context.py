"""TLS configuration of a server: files, `ssl` contexts that follow them, names in certificates.

Files are PEM. A context is rebuilt when one of its files changes, and new connections use it; open
ones stay. If files do not fit together (one is replaced and its partner not yet), the existing
context is kept. A list of revoked certificates (CRL) is one of the files (`rpc/revocations.py`).

A server of the set has a certificate with exactly one URI among its alternative names that begins
with `vdl://`:

    vdl://CLUSTER/server/ID     server ID of the set that its own files call CLUSTER
    vdl://CLUSTER/admin         a user of the admin plane that is not a server

Clients of Kafka's protocol have certificates without such a name.

No session tickets are issued. A client of TLS 1.2 may resume its own session by id for two hours,
with the certificate that it showed, until a file changes: the new context knows no sessions.

Does not depend on sockets, or on which connections use which context.
"""

from __future__ import annotations

import datetime
import re
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from rpc.errors import TlsFailed
from rpc.revocations import Revocations, attach, read_revocations
from rpc.tls_engine import TlsEngine

CLUSTER_NAME_DEFAULT = "vdl"
ADMIN = 0
"""Identity of an admin, which is not a server."""

_IDENTITY = re.compile(r"vdl://([A-Za-z0-9._-]{1,64})/(?:server/([1-9][0-9]{0,4})|admin)")
_SCHEME = "vdl:"

_VERSIONS = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
VERSIONS = tuple(_VERSIONS)


class ClientAuth(Enum):
    """Kafka's `ssl.client.auth`: use of client certificates."""

    NONE = "none"
    REQUESTED = "requested"
    REQUIRED = "required"


@dataclass(frozen=True, slots=True)
class KeyPair:
    """A certificate with the chain above it, and its private key, which has no pass phrase."""

    certificate: Path
    key: Path


@dataclass(frozen=True, slots=True)
class TlsOptions:
    """Files and rules of one port, or of the connections that one server makes."""

    own: KeyPair | None = None
    """None: shows no certificate. A port needs one."""
    ca: Path | None = None
    """Certificates of the authorities that sign the other end's certificates."""
    crl: Path | None = None
    """Lists of certificates revoked by them. None: revocation is not checked."""
    client_auth: ClientAuth = ClientAuth.NONE
    others: tuple[KeyPair, ...] = ()
    """Shown in place of `own` to clients that request a name in them (SNI)."""
    version_min: str = "TLSv1.2"
    ciphers: str = ""
    """Ciphers of TLS 1.2, in OpenSSL's notation. Empty: OpenSSL's choice."""

    @property
    def files(self) -> tuple[Path, ...]:
        """All files that are read."""
        pairs = (self.own, *self.others) if self.own is not None else self.others
        named = [path for pair in pairs for path in (pair.certificate, pair.key)]
        return (*named, *(path for path in (self.ca, self.crl) if path is not None))


class LinkEncryption(Enum):
    """Which links between servers are encrypted, if they can be (`tls.links`)."""

    REQUIRED = "required"
    """All links."""
    ACCEPTED = "accepted"
    """Inbound links if the other server encrypts them."""
    PREFERRED = "preferred"
    """As ACCEPTED, and all links that this server dials."""


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """TLS settings of one server: its own certificate, and what its ports have in common."""

    certificate: Path | None = None
    """None: nothing of this server is encrypted, unless a port has a certificate of its own."""
    key: Path | None = None
    ca: Path | None = None
    cluster: str = CLUSTER_NAME_DEFAULT
    """Name of this set in the certificates of its servers."""
    version_min: str = "TLSv1.2"
    ciphers: str = ""
    links: LinkEncryption = LinkEncryption.REQUIRED
    crl: Path | None = None

    @property
    def own(self) -> KeyPair | None:
        """Certificate and key of the server."""
        if self.certificate is None or self.key is None:
            return None
        return KeyPair(self.certificate, self.key)

    @property
    def secures_links(self) -> bool:
        """True if links between servers and the admin plane require certificates."""
        return self.own is not None and self.ca is not None

    def between_servers(self) -> TlsOptions:
        """Return the options for connections on which both ends show a certificate."""
        return TlsOptions(
            own=self.own,
            ca=self.ca,
            crl=self.crl,
            client_auth=ClientAuth.REQUIRED,
            version_min=self.version_min,
            ciphers=self.ciphers,
        )


class TlsContext:
    """The `ssl` context for some options, as of the current files.

    `load` and `is_outdated` read files: call them in a thread once a server runs.
    """

    def __init__(self, options: TlsOptions, *, server_side: bool) -> None:
        """Load the files. Raises TlsFailed."""
        self.options = options
        self._server_side = server_side
        self._seen = _state_of(options.files)
        self.revocations = self._revocations()
        """None: revocation is not checked."""
        self.current = self._make()
        """Context for new connections."""

    def new_engine(self) -> TlsEngine:
        """Return the engine of a new connection."""
        return TlsEngine(self.current, server_side=self._server_side)

    def ends(self) -> datetime.datetime | None:
        """Return when the first of its certificates expires, and with it new connections.

        None if it shows none. Raises TlsFailed. Reads files.
        """
        options = self.options
        pairs = (options.own, *options.others) if options.own is not None else options.others
        return min((_end_of(pair.certificate) for pair in pairs), default=None)

    def revokes(self, certificate: bytes) -> bool:
        """Return True if a certificate (DER) is revoked, including those of open connections."""
        return self.revocations is not None and self.revocations.has(certificate)

    def is_outdated(self) -> bool:
        """Return True if a file has been replaced since it was last looked at."""
        return _state_of(self.options.files) != self._seen

    def load(self) -> None:
        """Load the files; the context stays as it is if this raises TlsFailed."""
        seen = _state_of(self.options.files)
        revocations, context = self._revocations(), self._make()
        self._seen = seen
        self.revocations = revocations
        self.current = context

    def _revocations(self) -> Revocations | None:
        options = self.options
        if options.crl is None or options.ca is None:
            return None
        return read_revocations(options.crl, options.ca, datetime.datetime.now(datetime.UTC))

    def _make(self) -> ssl.SSLContext:
        options = self.options
        if not self._server_side:
            return _client_context(options)
        if options.own is None:
            raise TlsFailed("a listener with TLS requires a certificate")
        context = _server_context(options, options.own)
        by_name: dict[str, ssl.SSLContext] = {}
        for pair in options.others:
            other = _server_context(options, pair)
            by_name.update((name, other) for name in _names_of(pair.certificate))
        if by_name:
            context.sni_callback = _Selector(by_name)
        return context


class _Selector:
    """Selects the certificate for a client's SNI. Unknown names get the first one."""

    def __init__(self, by_name: Mapping[str, ssl.SSLContext]) -> None:
        self._by_name = by_name

    def __call__(
        self, connection: ssl.SSLSocket | ssl.SSLObject, name: str | None, first: ssl.SSLContext
    ) -> None:
        del first
        if name is None:
            return
        name = name.lower()
        found = self._by_name.get(name) or self._by_name.get("*." + name.partition(".")[2])
        if found is not None:
            connection.context = found


def _base(protocol: int, options: TlsOptions) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = _VERSIONS[options.version_min]
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION | ssl.OP_NO_TICKET
    if options.ciphers:
        try:
            context.set_ciphers(options.ciphers)
        except ssl.SSLError as error:
            raise TlsFailed(f"unknown ciphers: {options.ciphers}") from error
    return context


def _server_context(options: TlsOptions, pair: KeyPair) -> ssl.SSLContext:
    context = _base(ssl.PROTOCOL_TLS_SERVER, options)
    context.num_tickets = 0
    _load_pair(context, pair)
    if options.client_auth is not ClientAuth.NONE:
        if options.ca is None:
            raise TlsFailed("client certificates require a CA (tls.ca)")
        _load_ca(context, options.ca, options.crl)
        required = options.client_auth is ClientAuth.REQUIRED
        context.verify_mode = ssl.CERT_REQUIRED if required else ssl.CERT_OPTIONAL
    return context


def _client_context(options: TlsOptions) -> ssl.SSLContext:
    """Create a context for links: the server id in the certificate replaces the host name."""
    context = _base(ssl.PROTOCOL_TLS_CLIENT, options)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    if options.ca is None:
        raise TlsFailed("links with TLS require a CA (tls.ca)")
    _load_ca(context, options.ca, options.crl)
    if options.own is not None:
        _load_pair(context, options.own)
    return context


def _load_pair(context: ssl.SSLContext, pair: KeyPair) -> None:
    try:
        # OpenSSL would ask for a pass phrase at the terminal.
        context.load_cert_chain(pair.certificate, pair.key, password=lambda: "")
    except ssl.SSLError as error:
        what = (error.reason or "cannot be parsed").lower().replace("_", " ")
        raise TlsFailed(f"{pair.certificate} with {pair.key}: {what}") from None
    except (OSError, ValueError) as error:
        raise TlsFailed(f"{pair.certificate} with {pair.key}: {_words(error)}") from None


def _load_ca(context: ssl.SSLContext, path: Path, crl: Path | None) -> None:
    try:
        context.load_verify_locations(path)
    except (OSError, ValueError) as error:  # SSLError is an OSError
        what = _words(error) if not isinstance(error, ssl.SSLError) else "has no valid certificate"
        raise TlsFailed(f"{path}: {what}") from None
    if crl is not None:
        attach(context, crl)


def _words(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or type(error).__name__


def _state_of(paths: Sequence[Path]) -> list[tuple[int, int, int] | None]:
    """Return values that distinguish a file from one that replaced it."""
    states: list[tuple[int, int, int] | None] = []
    for path in paths:
        try:
            status = path.stat()
        except OSError:
            states.append(None)
        else:
            states.append((status.st_ino, status.st_size, status.st_mtime_ns))
    return states


# --- names in certificates ------------------------------------------------------------------------


def alternative_names(certificate: Mapping[str, object], kind: str) -> list[str]:
    """Return the names of one kind ("URI", "DNS") in a certificate as described by `ssl`."""
    names = certificate.get("subjectAltName", ())
    assert isinstance(names, tuple), names
    return [name for found, name in names if found == kind]


def identity_in(uris: Sequence[str], cluster: str) -> int | None:
    """Return the server named by these alternative names, or `ADMIN` for an admin.

    None for any other certificate, and if the names are ambiguous.
    """
    named = [uri for uri in uris if uri.lower().startswith(_SCHEME)]
    if len(named) != 1:
        return None
    match = _IDENTITY.fullmatch(named[0])
    if match is None or match[1] != cluster:
        return None
    return int(match[2]) if match[2] else ADMIN


def identity_uri(cluster: str, server_id: int) -> str:
    """Return the name that `identity_in` parses."""
    return f"vdl://{cluster}/server/{server_id}" if server_id else f"vdl://{cluster}/admin"


def _end_of(path: Path) -> datetime.datetime:
    """Return when a certificate in a file expires. Raises TlsFailed."""
    from cryptography import x509

    try:
        return x509.load_pem_x509_certificate(path.read_bytes()).not_valid_after_utc
    except (OSError, ValueError) as error:
        raise TlsFailed(f"{path}: {_words(error)}") from None


def _names_of(path: Path) -> list[str]:
    """Return the host names of a certificate in a file, in lower case. Raises TlsFailed."""
    from cryptography import x509

    try:
        certificate = x509.load_pem_x509_certificate(path.read_bytes())
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except (OSError, ValueError) as error:
        raise TlsFailed(f"{path}: {_words(error)}") from None
    except x509.ExtensionNotFound:
        return []
    return [name.lower() for name in names.value.get_values_for_type(x509.DNSName)]
