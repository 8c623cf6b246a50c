"""Certificates for tests, made once per run with the functions of `vdl cert`."""

from __future__ import annotations

import datetime
import functools
import tempfile
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtensionOID, NameOID

from rpc.tls_context import KeyPair, TlsFiles
from vdl.commands.servers.certificates import (
    Authority,
    open_authority,
    write_admin,
    write_client,
    write_server,
)

CLUSTER = "test"


@dataclass(frozen=True)
class Authorities:
    """A folder with all certificates that one authority signed."""

    directory: Path
    authority: Authority

    def server(self, server_id: int, cluster: str = CLUSTER) -> TlsFiles:
        """Return the files of a server, of this cluster unless another is named."""
        file = self.directory / f"server-{server_id}.pem"
        if cluster != CLUSTER:
            folder = self.directory / cluster
            folder.mkdir(exist_ok=True)
            file = folder / file.name
        if not file.exists():
            write_server(file.parent, self.authority, cluster, server_id, ())
        return TlsFiles(file, file.with_suffix(".key"), self.directory / "ca.pem", CLUSTER)

    def client(self, name: str) -> KeyPair:
        """Return a client's certificate and key."""
        file = self.directory / f"client-{name}.pem"
        if not file.exists():
            write_client(self.directory, self.authority, name)
        return KeyPair(file, file.with_suffix(".key"))

    def unreadable(self) -> KeyPair:
        """Return a certificate that OpenSSL accepts, with a name that is no text."""
        bad = b"\xff\xfe.example"
        names = bytes([0x82, len(bad)]) + bad
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "mallory")])
        now = datetime.datetime.now(datetime.UTC)
        certificate = (
            x509.CertificateBuilder(self.authority.certificate.subject, name)
            .public_key(key.public_key())
            .serial_number(7)
            .not_valid_before(now - datetime.timedelta(days=1))
            .not_valid_after(now + datetime.timedelta(days=1))
            .add_extension(
                x509.UnrecognizedExtension(
                    ExtensionOID.SUBJECT_ALTERNATIVE_NAME, bytes([0x30, len(names)]) + names
                ),
                critical=False,
            )
            .sign(self.authority.key, hashes.SHA256())
        )
        file = self.directory / "unreadable.pem"
        file.write_bytes(certificate.public_bytes(Encoding.PEM))
        form = PrivateFormat.PKCS8
        file.with_suffix(".key").write_bytes(key.private_bytes(Encoding.PEM, form, NoEncryption()))
        return KeyPair(file, file.with_suffix(".key"))

    def admin(self) -> TlsFiles:
        """Return the files of an administrator, who may use the admin plane."""
        file = self.directory / "admin.pem"
        if not file.exists():
            write_admin(self.directory, self.authority, CLUSTER)
        return TlsFiles(file, file.with_suffix(".key"), self.directory / "ca.pem", CLUSTER)


@functools.cache
def _keep() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="vdl-certificates-")


@functools.cache
def authority(name: str = "ours") -> Authorities:
    """Return the authority of the cluster under test, or another one, which is not trusted."""
    directory = Path(_keep().name) / name
    return Authorities(directory, open_authority(directory, CLUSTER))
