"""Files of a set made by `vdl up --secure`: certificates, a first user, a client's settings.

Each file is written once; an existing file is never changed.
"""

from __future__ import annotations

import secrets
from pathlib import Path

from rpc.tls_context import CLUSTER_NAME_DEFAULT
from vdl.commands.servers.certificates import (
    CertificateError,
    open_authority,
    write_admin,
    write_private,
    write_server,
)
from vdl.commands.servers.replica_set import FIRST_USER, ReplicaSet, ReplicaSetError
from vdl.kafka.security.protocol import SCRAM_SHA_512
from vdl.server.first_users import first_users_text

_PASSWORD_BYTES = 24


def secure_replica_set(replica_set: ReplicaSet) -> None:
    """Write the files that are missing. Raises ReplicaSetError."""
    tls = replica_set.directory / "tls"
    try:
        authority = open_authority(tls, CLUSTER_NAME_DEFAULT)
        for server in replica_set.servers:
            if not (tls / f"server-{server.id}.pem").exists():
                write_server(tls, authority, CLUSTER_NAME_DEFAULT, server.id, ())
        if not (tls / "admin.pem").exists():
            write_admin(tls, authority, CLUSTER_NAME_DEFAULT)
        if not replica_set.client_file.exists():
            password = secrets.token_urlsafe(_PASSWORD_BYTES)
            users = replica_set.directory / "first_users"
            write_private(users, first_users_text([(FIRST_USER, password)]).encode())
            write_private(replica_set.client_file, _client_text(tls, password).encode())
    except CertificateError as error:
        raise ReplicaSetError(str(error)) from error


def _client_text(tls: Path, password: str) -> str:
    """Return properties for librdkafka and this program, and the same again for Java."""
    module = "org.apache.kafka.common.security.scram.ScramLoginModule"
    return "\n".join(
        (
            "# Written by `vdl up --secure`. Keep it secret: it has the password of the superuser.",
            "security.protocol=SASL_SSL",
            f"sasl.mechanism={SCRAM_SHA_512}",
            "# librdkafka, kcat, vdl",
            f"sasl.username={FIRST_USER}",
            f"sasl.password={password}",
            f"ssl.ca.location={tls / 'ca.pem'}",
            "# Java",
            f'sasl.jaas.config={module} required username="{FIRST_USER}" password="{password}";',
            "ssl.truststore.type=PEM",
            f"ssl.truststore.location={tls / 'ca.pem'}",
            "# vdl status",
            f"vdl.admin.certificate.location={tls / 'admin.pem'}",
            f"vdl.admin.key.location={tls / 'admin.key'}",
            "",
        )
    )
