"""A source with TLS and login: read as fast as without, by our own reader."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="needs the `spark` extra")
pytest.importorskip("confluent_kafka", reason="needs the `dev` extra")

import pyarrow as pa
from confluent_kafka import Producer
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from tests.chaos.harness.replica_set import ROOT, ReplicaSet
from vdl.commands.servers.certificates import open_authority, write_client
from vdl.commands.servers.replica_set import make_replica_set, write_configs
from vdl.commands.servers.secure_set import secure_replica_set
from vdl.pipeline import source, topics
from vdl.pipeline.fast_client import fast_client
from vdl.pipeline.options import parse
from vdl.pipeline.positions import OffsetRange
from vdl.pipeline.topics import Topics

TOPIC, COUNT = "secured", 500
PASSWORD, KEY_PASSWORD = "not-to-be-seen-7Rk", "of-the-key-only"
CERTIFICATES = """
[[listeners]]
name = "CERTIFICATES"
protocol = "SSL"
listen = "127.0.0.1:{port}"
client_auth = "required"
"""
STEP = 4
"""Distance from a server's login port to its certificate port."""


@dataclass(frozen=True)
class Secured:
    servers: ReplicaSet
    tls: Path

    def login(self, mechanism: str) -> dict[str, str]:
        return {
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": str(self.tls / "ca.pem"),
            "sasl.mechanism": mechanism,
            "sasl.username": "job",
            "sasl.password": PASSWORD,
        }

    def certificate(self) -> dict[str, str]:
        return {
            "security.protocol": "SSL",
            "ssl.ca.location": str(self.tls / "ca.pem"),
            "ssl.certificate.location": str(self.tls / "client-job.pem"),
            "ssl.key.location": str(self.tls / "locked.key"),
            "ssl.key.password": KEY_PASSWORD,
        }

    def bootstrap(self, client: Mapping[str, str]) -> str:
        port = self.servers.base_port + (STEP if client["security.protocol"] == "SSL" else 0)
        return f"127.0.0.1:{port}"


@pytest.fixture(scope="module")
def secured() -> Iterator[Secured]:
    servers = ReplicaSet(1)
    made = make_replica_set(servers.directory, count=1, base_port=servers.base_port, is_secure=True)
    secure_replica_set(made)
    tls = servers.directory / "tls"
    write_client(tls, open_authority(tls, "vdl"), "job")
    key = load_pem_private_key((tls / "client-job.key").read_bytes(), None)
    locked = BestAvailableEncryption(KEY_PASSWORD.encode())
    (tls / "locked.key").write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, locked))
    write_configs(made)
    (server,) = made.servers
    text = server.config_file.read_text(encoding="utf-8")
    text = text.replace("[kafka]\n", "[kafka]\nallow.everyone.if.no.acl.found = true\n")
    text = text.replace(
        'name = "SASL_SSL"\n',
        'name = "SASL_SSL"\nmechanisms = ["SCRAM-SHA-512", "SCRAM-SHA-256", "PLAIN"]\n',
    )
    text += CERTIFICATES.format(port=servers.base_port + STEP)
    server.config_file.write_text(text, encoding="utf-8")
    found = Secured(servers, tls)
    try:
        servers.up()
        done = subprocess.run(
            [sys.executable, "-m", "vdl.cli", "user", "add", "job", "--bootstrap",
             servers.bootstrap, "--config", str(servers.directory / "client.properties")],
            input=f"{PASSWORD}\n", capture_output=True, text=True, cwd=ROOT, timeout=60,
            check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        client: dict[str, Any] = found.login("SCRAM-SHA-512")
        client["bootstrap.servers"] = servers.bootstrap
        admin = AdminClient(client)
        admin.create_topics([NewTopic(TOPIC, 1)])[TOPIC].result(timeout=30)
        producer = Producer(client)
        for n in range(COUNT):
            producer.produce(TOPIC, b"value %d" % n)
        assert producer.flush(30) == 0
        yield found
    finally:
        servers.close()


def options(secured: Secured, client: Mapping[str, str]) -> dict[str, str]:
    told = {f"client.{name}": value for name, value in client.items()}
    return {"bootstrap": secured.bootstrap(client), "topics": TOPIC, **told}


@pytest.mark.parametrize("how", ["SCRAM-SHA-512", "SCRAM-SHA-256", "PLAIN", "certificate"])
def test_source_with_a_login_is_read_without_a_client_library(
    secured: Secured, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """Planned and read over our own connections only."""

    def refuse(*given: Any) -> Any:
        raise AssertionError(given)

    monkeypatch.setattr(source, "read_library", refuse)
    monkeypatch.setattr(topics, "AdminClient", refuse)
    client = secured.certificate() if how == "certificate" else secured.login(how)
    parsed = parse(options(secured, {**client, "client.id": "job-1"}))
    bounds = Topics(parsed).bounds()
    assert bounds.ends.offset(TOPIC, 0) == COUNT
    task = source.BrokerTask((OffsetRange(TOPIC, 0, 10, COUNT),))
    rows = pa.Table.from_batches(list(source.read_ranges(task, parsed)))
    assert rows["value"].to_pylist() == [b"value %d" % n for n in range(10, COUNT)]


def test_source_whose_login_is_refused_says_so(secured: Secured) -> None:
    """The error is that of the client library, which is used after our reader was refused."""
    client = {**secured.login("SCRAM-SHA-512"), "sasl.password": "another"}
    asked = Topics(parse(options(secured, client)), request_seconds=2, attempts=1)
    with pytest.raises(topics.ClusterUnreachable, match="invalid credentials"):
        asked.ends()


def test_source_without_tls_is_told_to_check_it(secured: Secured) -> None:
    """The server drops such a client without a word."""
    plain = {"bootstrap": secured.servers.bootstrap, "topics": TOPIC}
    asked = Topics(parse(plain), request_seconds=2, attempts=1)
    with pytest.raises(topics.ClusterUnreachable, match=r"security\.protocol"):
        asked.ids()


def test_source_without_permission_names_the_topic(secured: Secured) -> None:
    client = secured.login("SCRAM-SHA-512")
    admin = AdminClient({**client, "bootstrap.servers": secured.servers.bootstrap})
    admin.create_topics([NewTopic("forbidden", 1)])["forbidden"].result(timeout=30)
    one = AclBinding(
        ResourceType.TOPIC, "forbidden", ResourcePatternType.LITERAL, "User:other", "*",
        AclOperation.ALL, AclPermissionType.ALLOW,
    )  # fmt: skip
    admin.create_acls([one])[one].result(timeout=30)
    asked = Topics(parse({**options(secured, client), "topics": "forbidden"}))
    with pytest.raises(topics.TopicForbidden, match=r"topic forbidden: .* READ"):
        asked.ends()


@pytest.mark.parametrize(
    "client",
    [
        {"check.crcs": "false"},
        {"security.protocol": "SASL_SSL", "sasl.username": "a", "sasl.password": "b"},
        {"security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER", "sasl.username": "a"},
        {"security.protocol": "SSL", "ssl.ca.location": "/"},
        {"security.protocol": "SSL", "ssl.key.pem": "-----BEGIN"},
    ],
)
def test_settings_that_only_librdkafka_understands_are_left_to_it(client: dict[str, str]) -> None:
    assert fast_client(client) is None


def test_passwords_are_in_no_text_of_a_client() -> None:
    told = {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", "sasl.username": "a"}
    found = fast_client({**told, "sasl.password": PASSWORD, "ssl.key.password": KEY_PASSWORD})
    assert found is not None
    assert PASSWORD not in repr(found)
    assert KEY_PASSWORD not in repr(found)
