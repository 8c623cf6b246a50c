"""Certificates that were revoked: the lists (CRL, RFC 5280 §5) in a file, and what they say.

The file is PEM: one list of each authority, one behind the other. OpenSSL checks every handshake
against it, each certificate up to the root (`attach`). As with OpenSSL's own programs an authority
of which there is no list, or whose list has ended, is not believed: who stops the lists from coming
must not bring back a revoked certificate. Who came before a list did is compared with it once it is
there (`Revocations`).

Must not know: sockets, which certificates are whose.
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
"""Some 400,000 certificates."""
_LIST = re.compile(rb"-----BEGIN X509 CRL-----\s.*?-----END X509 CRL-----", re.DOTALL)


class Revocations:
    """What the lists of one file say."""

    def __init__(self, lists: Sequence[x509.CertificateRevocationList]) -> None:
        """Of several lists of one authority the one that ends last counts, as with OpenSSL."""
        newest: dict[bytes, x509.CertificateRevocationList] = {}
        for one in lists:
            name = one.issuer.public_bytes()
            if name not in newest or _end_of(newest[name]) < _end_of(one):
                newest[name] = one
        self._serials: Mapping[bytes, frozenset[int]] = {
            name: frozenset(entry.serial_number for entry in one) for name, one in newest.items()
        }
        self.serials = frozenset[int]().union(*self._serials.values())
        """Of all authorities: who has another one was not revoked."""
        self._ends = {name: _end_of(one) for name, one in newest.items()}

    @property
    def ends(self) -> datetime.datetime:
        """When the first list ends, and nobody of its authority is believed any more."""
        return min(self._ends.values())

    def has(self, certificate: bytes) -> bool:
        """Whether a certificate (DER) is in the list of its authority."""
        from cryptography import x509

        found = x509.load_der_x509_certificate(certificate)
        return found.serial_number in self._serials.get(found.issuer.public_bytes(), ())

    def refuses(self, certificate: bytes, now: datetime.datetime) -> bool:
        """What OpenSSL would make of a certificate (DER), where somebody else shakes hands: also
        without a list of its authority, or with one that has ended."""
        from cryptography import x509

        issuer = x509.load_der_x509_certificate(certificate).issuer.public_bytes()
        return issuer not in self._ends or self._ends[issuer] <= now or self.has(certificate)


def read_revocations(path: Path, ca: Path, now: datetime.datetime) -> Revocations:
    """The lists of a file. Raises TlsFailed, also for one that has ended by `now` or that an
    authority in `ca` has not signed though it says so: nobody could connect with it."""
    from cryptography import x509  # takes 20 ms and 10 MB, for who needs it

    try:
        with path.open("rb") as file:
            data = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise TlsFailed(f"{path}: {error.strerror or type(error).__name__}") from None
    if len(data) > FILE_BYTES_MAX:
        raise TlsFailed(f"{path}: larger than {FILE_BYTES_MAX >> 20} MiB")
    found = _LIST.findall(data)
    if not found:
        raise TlsFailed(f"{path}: no list of revoked certificates in it (PEM, X509 CRL)")
    try:
        lists = [x509.load_pem_x509_crl(one) for one in found]
        revocations = Revocations(lists)
    except ValueError:
        raise TlsFailed(f"{path}: a list in it cannot be read") from None
    for one in lists:
        if not _is_signed(one, ca):
            raise TlsFailed(f"{path}: a list in it is not signed by its authority in {ca}")
    if revocations.ends <= now:
        raise TlsFailed(f"{path}: the list of revoked certificates ended {revocations.ends:%F %R}Z")
    return revocations


def _is_signed(one: x509.CertificateRevocationList, ca: Path) -> bool:
    """By one of the authorities that have its issuer's name; true if there is none here, such as of
    one below another, whose certificate comes with the handshake."""
    from cryptography import x509
    from cryptography.exceptions import InvalidSignature

    try:
        known = x509.load_pem_x509_certificates(ca.read_bytes())
    except (OSError, ValueError):
        raise TlsFailed(f"{ca}: no certificate in it") from None
    keys = [found.public_key() for found in known if found.subject == one.issuer]
    try:
        return not keys or any(one.is_signature_valid(key) for key in keys)  # type: ignore[arg-type]
    except (InvalidSignature, TypeError, ValueError):
        return False  # a key of another kind


def attach(context: ssl.SSLContext, path: Path) -> None:
    """Have a context refuse what the lists of a file refuse. Raises TlsFailed, also if somebody
    would be trusted because of it."""
    before = context.cert_store_stats()
    try:
        context.load_verify_locations(path)
    except (OSError, ValueError) as error:  # SSLError is an OSError
        what = "it cannot be read" if isinstance(error, ssl.SSLError) else error
        raise TlsFailed(f"{path}: {what}") from None
    after = context.cert_store_stats()
    if after["x509"] != before["x509"]:
        raise TlsFailed(f"{path}: a certificate in it, where only lists of revoked ones belong")
    if after["crl"] == before["crl"]:
        raise TlsFailed(f"{path}: no list of revoked certificates in it (PEM, X509 CRL)")
    context.verify_flags |= ssl.VERIFY_CRL_CHECK_CHAIN


def _end_of(one: x509.CertificateRevocationList) -> datetime.datetime:
    """A list need not say when the next one comes; it never ends then."""
    return one.next_update_utc or datetime.datetime.max.replace(tzinfo=datetime.UTC)
