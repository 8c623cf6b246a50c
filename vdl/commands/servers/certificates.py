"""A certificate authority for one replica set, and the certificates it signs.

```
DIR/ca.pem, ca.key                  the authority; keep the key off the servers
DIR/server-ID.pem, server-ID.key    one pair for each server: its name is in `rpc/tls_context.py`
DIR/admin.pem, admin.key            for `vdl status`
DIR/client-NAME.pem, client-NAME.key
DIR/crl.pem                         revoked certificates, once there are any
```
Keys are ECDSA P-256 without a pass phrase, in files for their owner alone. A file is written whole
or not at all, and the key before its certificate: a server that loads them in between finds a pair
that does not match, and waits for the rest.
"""

from __future__ import annotations

import contextlib
import datetime
import ipaddress
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from rpc.tls_context import ADMIN, identity_uri

CA_DAYS = 3_650
CERTIFICATE_DAYS = 365
CRL_DAYS = CA_DAYS
"""Once a list has expired no client is accepted: a forgotten list must not stop a set."""
_CLOCK_SLACK = datetime.timedelta(minutes=5)
"""Allows a server whose clock is behind to accept a certificate that was just made."""

LOCAL_HOSTS = ("localhost", "127.0.0.1", "::1")


class CertificateError(Exception):
    """A certificate or file that cannot be made or used; the text describes the problem."""


@dataclass(frozen=True, slots=True)
class Authority:
    """The certificate and key that sign."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey


def open_authority(directory: Path, cluster: str) -> Authority:
    """Return the authority in a folder, made if there is none. Raises CertificateError."""
    certificate_file, key_file = directory / "ca.pem", directory / "ca.key"
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        if certificate_file.exists():
            certificate = x509.load_pem_x509_certificate(certificate_file.read_bytes())
            key = serialization.load_pem_private_key(key_file.read_bytes(), None)
            if not isinstance(key, ec.EllipticCurvePrivateKey):
                raise CertificateError(
                    f"{key_file} has another type of key; expected an elliptic curve key made "
                    "by `vdl cert`"
                )
            return Authority(certificate, key)
    except (OSError, ValueError) as error:
        raise CertificateError(f"{directory}: {_words(error)}") from error
    authority = _new_authority(cluster)
    _write_pair(certificate_file, authority.certificate, authority.key)
    return authority


def _new_authority(cluster: str) -> Authority:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"{cluster} CA")])
    builder = _builder(name, name, key, CA_DAYS)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_key_usage(signs=True), critical=True)
    builder = builder.add_extension(
        x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False
    )
    return Authority(builder.sign(key, hashes.SHA256()), key)


def write_server(
    directory: Path,
    authority: Authority,
    cluster: str,
    server_id: int,
    hosts: Sequence[str],
    days: int = CERTIFICATE_DAYS,
) -> Path:
    """Write a server's certificate for clients that use any of the hosts. Return its file. Raises
    CertificateError."""
    names: list[x509.GeneralName] = [
        x509.UniformResourceIdentifier(identity_uri(cluster, server_id)),
        *(_host_name(host) for host in dict.fromkeys((*hosts, *LOCAL_HOSTS))),
    ]
    both = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    file = directory / f"server-{server_id}.pem"
    _write_signed(file, authority, f"server-{server_id}", names, both, days)
    return file


def write_admin(
    directory: Path, authority: Authority, cluster: str, days: int = CERTIFICATE_DAYS
) -> Path:
    """Write a certificate for users of the admin service. Return its file. Raises
    CertificateError."""
    names = [x509.UniformResourceIdentifier(identity_uri(cluster, ADMIN))]
    file = directory / "admin.pem"
    _write_signed(file, authority, "admin", names, [ExtendedKeyUsageOID.CLIENT_AUTH], days)
    return file


def write_client(
    directory: Path, authority: Authority, name: str, days: int = CERTIFICATE_DAYS
) -> Path:
    """Write a Kafka client's certificate: its principal is "User:CN=NAME". Return its file. Raises
    CertificateError."""
    file = directory / f"client-{name}.pem"
    _write_signed(file, authority, name, [], [ExtendedKeyUsageOID.CLIENT_AUTH], days)
    return file


def revoke(
    directory: Path, authority: Authority, serials: Sequence[int], days: int = CRL_DAYS
) -> tuple[Path, int]:
    """Add certificates to the authority's list, which is valid for `days` from now. Return its file
    and the number of certificates in it. Raises CertificateError."""
    file = directory / "crl.pem"
    now = datetime.datetime.now(datetime.UTC)
    public = authority.key.public_key()
    builder = (
        x509.CertificateRevocationListBuilder()
        .issuer_name(authority.certificate.subject)
        .last_update(now - _CLOCK_SLACK)
        .next_update(now + datetime.timedelta(days=days))
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(public), critical=False)
    )
    revoked, number = _revoked(file, authority)
    for serial in serials:
        if serial not in revoked:
            one = x509.RevokedCertificateBuilder().serial_number(serial).revocation_date(now)
            revoked[serial] = one.build()
    for entry in revoked.values():
        builder = builder.add_revoked_certificate(entry)
    builder = builder.add_extension(x509.CRLNumber(number + 1), critical=False)
    made = builder.sign(authority.key, hashes.SHA256())
    write_private(file, made.public_bytes(serialization.Encoding.PEM), mode=0o644)
    return file, len(revoked)


def _revoked(file: Path, authority: Authority) -> tuple[dict[int, x509.RevokedCertificate], int]:
    """Return the entries of a list by serial number, and the list's own number; none without a
    file. Raises CertificateError."""
    try:
        found = x509.load_pem_x509_crl(file.read_bytes())
    except FileNotFoundError:
        return {}, 0
    except (OSError, ValueError) as error:
        raise CertificateError(f"{file}: {_words(error)}") from error
    if not found.is_signature_valid(authority.key.public_key()):
        raise CertificateError(f"{file} is the revocation list of another authority")
    try:
        number = found.extensions.get_extension_for_class(x509.CRLNumber).value.crl_number
    except x509.ExtensionNotFound:
        number = 0
    return {entry.serial_number: entry for entry in found}, number


def serial_of(directory: Path, authority: Authority, name: str) -> int:
    """Return the serial number of a certificate in the folder, such as "client-alice". Raises
    CertificateError."""
    file = directory / f"{name}.pem"
    try:
        found = x509.load_pem_x509_certificate(file.read_bytes())
        found.verify_directly_issued_by(authority.certificate)
    except (InvalidSignature, TypeError):
        raise CertificateError(f"{file} is not signed by the authority in {directory}") from None
    except (OSError, ValueError) as error:
        raise CertificateError(f"{file}: {_words(error)}") from error
    return found.serial_number


def _write_signed(
    file: Path,
    authority: Authority,
    common_name: str,
    names: Sequence[x509.GeneralName],
    usages: Sequence[x509.ObjectIdentifier],
    days: int,
) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])
    builder = _builder(subject, authority.certificate.subject, key, days)
    builder = builder.add_extension(
        x509.BasicConstraints(ca=False, path_length=None), critical=True
    )
    builder = builder.add_extension(_key_usage(signs=False), critical=True)
    builder = builder.add_extension(x509.ExtendedKeyUsage(usages), critical=False)
    public = authority.key.public_key()
    builder = builder.add_extension(
        x509.AuthorityKeyIdentifier.from_issuer_public_key(public), critical=False
    )
    if names:
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    _write_pair(file, builder.sign(authority.key, hashes.SHA256()), key)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, days: int
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCK_SLACK)
        .not_valid_after(now + datetime.timedelta(days=days))
    )


def _key_usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs,
        crl_sign=signs,
        encipher_only=False,
        decipher_only=False,
    )


def _host_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _write_pair(file: Path, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> None:
    secret = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    write_private(file.with_suffix(".key"), secret)
    write_private(file, certificate.public_bytes(serialization.Encoding.PEM), mode=0o644)


def write_private(
    file: Path, data: bytes, *, mode: int = 0o600, owner: tuple[int, int] | None = None
) -> None:
    """Write a file as a whole or not at all, never readable for others than `mode` allows. `owner`:
    user and group ids, if it is for another user. Raises CertificateError."""
    fresh = file.with_name(f"{file.name}.new")
    try:
        with contextlib.suppress(FileNotFoundError):
            fresh.unlink()
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with os.fdopen(descriptor, "wb") as opened:
            os.fchmod(descriptor, mode)
            if owner is not None:
                os.fchown(descriptor, *owner)
            opened.write(data)
            opened.flush()
            os.fsync(descriptor)
        fresh.replace(file)
    except OSError as error:
        with contextlib.suppress(OSError):
            fresh.unlink(missing_ok=True)
        raise CertificateError(f"cannot write {file}: {_words(error)}") from error


def _words(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
