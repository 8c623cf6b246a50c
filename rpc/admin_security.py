"""Access control of the admin plane: servers of the set, and holders of an admin certificate.

gRPC makes the handshakes. It requests the certificates for each, so replaced files are used from
then on; files that do not fit together leave the current ones in use. gRPC does not check
revocation: each call is compared with the revocation lists.

Does not depend on the calls of the admin plane.
"""

from __future__ import annotations

import datetime
import ssl
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import grpc

from rpc.errors import TlsFailed
from rpc.revocations import Revocations
from rpc.tls_context import TlsContext, TlsFiles, identity_in

_URIS = "peer_uri"
"""gRPC's name for the URIs among a certificate's alternative names."""
_CERTIFICATE = "x509_pem_cert"
"""gRPC's name for the certificate itself. gRPC does not report those above it."""


class AdminSecurity:
    """Mutual TLS of one server's admin plane."""

    def __init__(
        self, files: TlsFiles, revocations: Callable[[], Revocations | None] = lambda: None
    ) -> None:
        """`revocations` returns the currently known revocations. Raises TlsFailed."""
        assert files.secures_links, files
        self._files = files
        self._revocations = revocations
        self._checked = TlsContext(files.between_servers(), server_side=True)
        """Checks that files fit together: gRPC would accept any."""

    def server_credentials(self) -> grpc.ServerCredentials:
        """Return the credentials for the port."""
        return grpc.dynamic_ssl_server_credentials(
            self._configuration(),
            self._changed,  # type: ignore[arg-type]  # the stub omits that None is "as before"
            require_client_authentication=True,
        )

    def allows(self, auth_context: Mapping[str, Iterable[bytes]]) -> bool:
        """Return True if the caller may use the admin plane."""
        uris = [uri.decode("utf-8", "replace") for uri in auth_context.get(_URIS, ())]
        if identity_in(uris, self._files.cluster) is None:
            return False
        revocations = self._revocations()
        if revocations is None:
            return True
        now = datetime.datetime.now(datetime.UTC)
        shown = [ssl.PEM_cert_to_DER_cert(one.decode()) for one in auth_context[_CERTIFICATE]]
        return bool(shown) and not any(revocations.refuses(one, now) for one in shown)

    def _changed(self) -> grpc.ServerCertificateConfiguration | None:
        """Return the certificates if they have changed. Called in a thread of gRPC."""
        if not self._checked.is_outdated():
            return None
        try:
            self._checked.load()
        except TlsFailed:
            return None
        return self._configuration()

    def _configuration(self) -> grpc.ServerCertificateConfiguration:
        key, certificate, ca = read_files(self._files)
        return grpc.ssl_server_certificate_configuration([(key, certificate)], ca)


def read_files(files: TlsFiles) -> tuple[bytes, bytes, bytes]:
    """Return (key, certificate, CA) as gRPC expects them. Raises TlsFailed."""
    assert files.key is not None
    assert files.certificate is not None
    assert files.ca is not None
    return _read(files.key), _read(files.certificate), _read(files.ca)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise TlsFailed(f"{path}: {error.strerror}") from None
