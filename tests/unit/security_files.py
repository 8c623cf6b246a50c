"""Certificates for tests, made once per run with the functions of `vdl cert`."""

from __future__ import annotations

import functools
import tempfile
from dataclasses import dataclass
from pathlib import Path

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
