"""Revoked certificates: certificate revocation lists (CRL, RFC 5280 §5) in a file.

The file is PEM: one list for each authority, one behind the other. OpenSSL checks every handshake
against it, each certificate up to the root (`attach`). As in OpenSSL's own programs, certificates
of an authority without a list, or with an expired list, are refused: suppressing the lists must not
make a revoked certificate valid again. Connections that began before a list was loaded are compared
with it afterwards (`Revocations`).

Does not depend on sockets, or on the owners of certificates.
"""

from __future__ import annotations

import datetime
import re
import ssl
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rpc.errors import TlsFailed

if TYPE_CHECKING:
    from cryptography import x509

FILE_BYTES_MAX = 16 << 20
"""Room for some 400,000 certificates."""
_LIST = re.compile(rb"-----BEGIN X509 CRL-----\s.*?-----END X509 CRL-----", re.DOTALL)


class Revocations:
    """Contents of the lists in one file."""

    def __init__(self, lists: Sequence[x509.CertificateRevocationList]) -> None:
        """Read the lists. Of several lists of one authority the one that expires last counts.

        OpenSSL does the same.
        """
        newest: dict[bytes, x509.CertificateRevocationList] = {}
        for one in lists:
            name = one.issuer.public_bytes()
            if name not in newest or _end_of(newest[name]) < _end_of(one):
                newest[name] = one
        self._serials: Mapping[bytes, frozenset[int]] = {
            name: frozenset(entry.serial_number for entry in one) for name, one in newest.items()
        }
        self.serials = frozenset[int]().union(*self._serials.values())
        """Revoked serial numbers of all authorities; no other certificate is revoked."""
        self._ends = {name: _end_of(one) for name, one in newest.items()}

    @property
    def ends(self) -> datetime.datetime:
        """Expiry of the first list; then all certificates of its authority are refused."""
        return min(self._ends.values())

    def has(self, certificate: bytes) -> bool:
        """Return True if a certificate (DER) is in the list of its authority, or cannot be read."""
        from cryptography import x509

        try:
            found = x509.load_der_x509_certificate(certificate)
        except ValueError:
            return True
        return found.serial_number in self._serials.get(found.issuer.public_bytes(), ())

    def refuses(self, certificate: bytes, now: datetime.datetime) -> bool:
        """Return True if OpenSSL would refuse a certificate (DER), for handshakes made elsewhere.

        That includes certificates of an authority without a list, or with an expired one.
        """
        from cryptography import x509

        try:
            issuer = x509.load_der_x509_certificate(certificate).issuer.public_bytes()
        except ValueError:
            return True
        return issuer not in self._ends or self._ends[issuer] <= now or self.has(certificate)


def read_revocations(path: Path, ca: Path, now: datetime.datetime) -> Revocations:
    """Read the lists of a file.

    Raises TlsFailed, also for a list that has expired by `now` or is not signed by the authority in
    `ca` that it names: all connections would fail with it.
    """
    from cryptography import x509  # takes 20 ms and 10 MB, so only if needed

    try:
        with path.open("rb") as file:
            data = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise TlsFailed(f"{path}: {error.strerror or type(error).__name__}") from None
    if len(data) > FILE_BYTES_MAX:
        raise TlsFailed(f"{path}: larger than {FILE_BYTES_MAX >> 20} MiB")
    found = _LIST.findall(data)
    if not found:
        raise TlsFailed(f"{path}: has no revocation list (PEM, X509 CRL)")
    try:
        lists = [x509.load_pem_x509_crl(one) for one in found]
        revocations = Revocations(lists)
    except ValueError:
        raise TlsFailed(f"{path}: has an invalid revocation list") from None
    for one in lists:
        if not _is_signed(one, ca):
            raise TlsFailed(
                f"{path}: has a revocation list that is not signed by its authority in {ca}"
            )
    if revocations.ends <= now:
        raise TlsFailed(f"{path}: the revocation list expired at {revocations.ends:%F %R}Z")
    return revocations


def _is_signed(one: x509.CertificateRevocationList, ca: Path) -> bool:
    """Return True if one of the authorities with the issuer's name has signed the list.

    Also if there is none here, for example for an intermediate authority, whose certificate comes
    with the handshake.
    """
    from cryptography import x509
    from cryptography.exceptions import InvalidSignature

    try:
        known = x509.load_pem_x509_certificates(ca.read_bytes())
    except (OSError, ValueError):
        raise TlsFailed(f"{ca}: has no valid certificate") from None
    keys = [found.public_key() for found in known if found.subject == one.issuer]
    try:
        return not keys or any(one.is_signature_valid(key) for key in keys)  # type: ignore[arg-type]
    except (InvalidSignature, TypeError, ValueError):
        return False  # a key of another kind


def attach(context: ssl.SSLContext, path: Path) -> None:
    """Make a context refuse certificates by the lists of a file.

    Raises TlsFailed, also if the file would add a trusted certificate.
    """
    before = context.cert_store_stats()
    try:
        context.load_verify_locations(path)
    except (OSError, ValueError) as error:  # SSLError is an OSError
        what = "cannot be parsed" if isinstance(error, ssl.SSLError) else error
        raise TlsFailed(f"{path}: {what}") from None
    after = context.cert_store_stats()
    if after["x509"] != before["x509"]:
        raise TlsFailed(f"{path}: has a certificate; expected only revocation lists")
    if after["crl"] == before["crl"]:
        raise TlsFailed(f"{path}: has no revocation list (PEM, X509 CRL)")
    context.verify_flags |= ssl.VERIFY_CRL_CHECK_CHAIN


def _end_of(one: x509.CertificateRevocationList) -> datetime.datetime:
    """Return the expiry of a list; one without a next update never expires."""
    return one.next_update_utc or datetime.datetime.max.replace(tzinfo=datetime.UTC)
