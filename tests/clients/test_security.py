"""Every client over TLS, with every kind of authentication, and its error when it is refused.

One set of three servers for all: links and the admin plane use certificates, and each server has a
port for logins, one for client certificates, and one whose certificate is for another host.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import re
import ssl
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID
from joserfc import jwk, jwt

from tests.chaos.harness.replica_set import ROOT, ReplicaSet
from tests.clients.clients import CLIENTS, Client
from tests.clients.command_line import CommandLine
from tests.clients.driver import Driver, Record
from tests.wire import AnyApiClient
from vdl.commands.servers.certificates import (
    _write_signed,
    open_authority,
    revoke,
    write_client,
)
from vdl.commands.servers.replica_set import make_replica_set, write_configs
from vdl.commands.servers.secure_set import secure_replica_set
from vdl.kafka.security.client_settings import read_client_settings
from vdl.kafka.wire.create_topics import CreatableTopic, CreateTopicsRequest
from vdl.kafka.wire.describe_configs import DescribeConfigsRequest, DescribeConfigsResource

MTLS_STEP, ELSEWHERE_STEP = 4, 7
"""Ports of the other listeners, as offsets from those for logins."""
ISSUER, AUDIENCE = "https://issuer.example.org", "vdl"
PASSWORD_OF_ALICE = "not-to-be-seen-anywhere-5J2"
MECHANISMS = ("SCRAM-SHA-512", "SCRAM-SHA-256", "PLAIN", "OAUTHBEARER")
LISTENERS = """
[[listeners]]
name = "CERTIFICATES"
protocol = "SSL"
listen = "127.0.0.1:{certificates}"
client_auth = "required"
principal_rules = "RULE:^CN=(.*)$/$1/"

[[listeners]]
name = "ELSEWHERE"
protocol = "SASL_SSL"
listen = "127.0.0.1:{elsewhere}"
certificate = "../tls/elsewhere.pem"
key = "../tls/elsewhere.key"
"""
KAFKA = """[kafka]
allow.everyone.if.no.acl.found = true
sasl.oauthbearer.jwks.endpoint.url = "file://{keys}"
sasl.oauthbearer.expected.issuer = "{issuer}"
sasl.oauthbearer.expected.audience = "{audience}"
"""


@dataclass(frozen=True)
class Secured:
    """The replica set, and the settings of its clients."""

    servers: ReplicaSet
    tls: Path

    @property
    def directory(self) -> Path:
        return self.servers.directory

    def bootstrap(self, step: int = 0) -> str:
        base = self.servers.base_port + step
        return ",".join(f"127.0.0.1:{base + i}" for i in range(3))

    def login(self, mechanism: str, **changes: str) -> dict[str, str]:
        """Return the security settings of a client that logs in."""
        found = {"protocol": "SASL_SSL", "ca": str(self.tls / "ca.pem"), "mechanism": mechanism}
        if mechanism == "OAUTHBEARER":
            found["token"] = str(self.tls / "token.jwt")
        else:
            found |= {"user": "alice", "password": PASSWORD_OF_ALICE}
        return found | changes

    def settings(self, mechanism: str, user: str, password: str) -> dict[str, str]:
        """Return the settings of a librdkafka client that logs in."""
        return {
            "bootstrap.servers": self.bootstrap(),
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": str(self.tls / "ca.pem"),
            "sasl.mechanism": mechanism,
            "sasl.username": user,
            "sasl.password": password,
        }

    def certificate(self, name: str = "alice") -> dict[str, str]:
        """Return the security settings of a client with a certificate."""
        return {
            "protocol": "SSL",
            "ca": str(self.tls / "ca.pem"),
            "certificate": str(self.tls / f"client-{name}.pem"),
            "key": str(self.tls / f"client-{name}.key"),
        }

    def vdl(self, *arguments: str, text: str = "") -> str:
        """Return a command's output."""
        done = subprocess.run(
            [sys.executable, "-m", "vdl.cli", *arguments, "--bootstrap", self.bootstrap(),
             "--config", str(self.directory / "client.properties")],
            input=text, capture_output=True, text=True, cwd=ROOT, timeout=30, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def topic(self, name: str) -> str:
        """Create a topic with one partition, as the administrator."""
        settings = read_client_settings(self.directory / "client.properties")
        host, _, port = self.bootstrap().partition(",")[0].partition(":")
        with AnyApiClient(host, int(port), settings=settings) as client:
            request = CreateTopicsRequest([CreatableTopic(name, 1, 3, [], [])], 10_000)
            (made,) = client.request(19, request).topics
            assert made.error_code == 0, made
        return name

    def certificate_of(self, server_id: int) -> str:
        """Return the certificate that a server presents to clients, as PEM."""
        host, _, port = self.bootstrap().split(",")[server_id - 1].partition(":")
        return ssl.get_server_certificate((host, int(port)), timeout=10)

    def said(self) -> str:
        """Return everything that the servers have logged."""
        return "".join(
            self.servers.server(i).log_file.read_text(errors="replace") for i in (1, 2, 3)
        )


@pytest.fixture(scope="module")
def secured() -> Iterator[Secured]:
    servers = ReplicaSet(3)
    made = make_replica_set(servers.directory, count=3, base_port=servers.base_port, is_secure=True)
    secure_replica_set(made)
    tls = servers.directory / "tls"
    authority = open_authority(tls, "vdl")
    write_client(tls, authority, "alice")
    write_client(tls, authority, "mallory")
    revoke(tls, authority, ())
    (tls / "delegation").write_text("only-servers-have-this-key-9Rx")
    elsewhere = [x509.DNSName("elsewhere.example.org")]
    usage = [ExtendedKeyUsageOID.SERVER_AUTH]
    _write_signed(tls / "elsewhere.pem", authority, "elsewhere", elsewhere, usage, 30)
    open_authority(tls / "strangers", "vdl")
    key = jwk.ECKey.generate_key("P-256", {"kid": "k1", "use": "sig"})
    (tls / "keys.json").write_text(json.dumps({"keys": [key.as_dict(private=False)]}))
    for name, end in (("token", 3_600), ("expired", -3_600)):
        now = int(time.time())
        claims = {"iss": ISSUER, "aud": AUDIENCE, "sub": "alice", "iat": now - 7_200}
        claims["exp"] = now + end
        token = jwt.encode({"alg": "ES256", "kid": "k1"}, claims, key, algorithms=["ES256"])
        (tls / f"{name}.jwt").write_text(token)
    write_configs(made)
    for server in made.servers:
        base = servers.base_port + server.id - 1
        text = server.config_file.read_text()
        text = text.replace(
            'name = "SASL_SSL"\n', f'name = "SASL_SSL"\nmechanisms = {json.dumps(MECHANISMS)}\n'
        )
        text += LISTENERS.format(
            certificates=base + MTLS_STEP,
            elsewhere=base + ELSEWHERE_STEP,
        )
        kafka = KAFKA.format(keys=tls / "keys.json", issuer=ISSUER, audience=AUDIENCE)
        text = text.replace("[kafka]\n", kafka)
        text = text.replace("[tls]\n", '[tls]\ncrl = "../tls/crl.pem"\n')
        text = text.replace(
            "[security]\n", '[security]\ndelegation_token_key = "../tls/delegation"\n'
        )
        server.config_file.write_text(text)
    found = Secured(servers, tls)
    try:
        servers.up()
        found.vdl("user", "add", "alice", text=PASSWORD_OF_ALICE + "\n")
        yield found
    finally:
        servers.close()


FAMILIES = [client for client in CLIENTS if client.name != "java-3.9"]
"""The newest client of each family."""


@contextlib.contextmanager
def driven(
    bootstrap: str, security: dict[str, str], folder: Path
) -> Iterator[list[tuple[Driver, Path]]]:
    """Yield a driver of each family and its log, all started at the same time.

    A JVM starts slowly.
    """
    started: list[tuple[Driver, Path]] = []
    try:
        for client in FAMILIES:
            log = folder / f"{client.name}.log"
            driver = Driver(client.name, client.command(), bootstrap, log, security)
            started.append((driver, log))
            driver.tell({"do": "hello"})
        for driver, _ in started:
            driver.answer()
        yield started
    finally:
        for driver, _ in started:
            driver.stop()


def works(driver: Driver, topic: str) -> None:
    """Check that the driver produces to three partitions and reads it back in a group."""
    records = [Record(topic, 0, b"k%d" % i, b"v%d" % i, 1_700_000_000_000 + i) for i in range(9)]
    assert [offset for _, offset in driver.produce(records)] == list(range(9))
    driver.open(group=f"{topic}-group")
    driver.ask("subscribe", topics=[topic])
    read: list[Record] = []
    deadline = time.monotonic() + 30
    while len(read) < len(records) and time.monotonic() < deadline:
        read += [record for _, record in driver.poll().records]
    assert [record.value for record in read] == [record.value for record in records]
    driver.ask("close")


@pytest.mark.takes_turns(parts=2)
@pytest.mark.java
@pytest.mark.go
@pytest.mark.parametrize("how", [*MECHANISMS, "certificate"])
def test_client_that_shows_who_it_is_is_served(secured: Secured, how: str, tmp_path: Path) -> None:
    step, security = (
        (MTLS_STEP, secured.certificate()) if how == "certificate" else (0, secured.login(how))
    )
    with driven(secured.bootstrap(step), security, tmp_path) as drivers:
        for driver, _ in drivers:
            works(driver, secured.topic(f"served-{driver.name}-{how.lower()}"))


REFUSALS = {
    "password": r"(?i)authenticat",
    "token": r"(?i)authenticat|invalid_token|oauth",
    "authority": r"(?i)certificate|PKIX|SSL|unknown authority",
    "host": r"(?i)host ?name|IP address|No subject alternative|cannot validate|SSL|certificate",
    "anonymous": r"(?i)certificate|SSL|handshake|closed|bad_certificate|disconnect|timed? ?out",
}
"""Pattern that each client's error has to match, by kind of refusal."""


@pytest.mark.takes_turns(parts=2)
@pytest.mark.java
@pytest.mark.go
@pytest.mark.parametrize("why", REFUSALS)
def test_client_that_may_not_is_told_why_and_nothing_is_leaked(
    secured: Secured, why: str, tmp_path: Path
) -> None:
    """The client reports a clear error; its connection is closed; its secrets are in no log."""
    wrong = "wrong-and-not-to-be-seen-Qz7"
    step, security = {
        "password": (0, secured.login("SCRAM-SHA-512", password=wrong)),
        "token": (0, secured.login("OAUTHBEARER", token=str(secured.tls / "expired.jwt"))),
        "authority": (0, secured.login("PLAIN", ca=str(secured.tls / "strangers" / "ca.pem"))),
        "host": (ELSEWHERE_STEP, secured.login("SCRAM-SHA-512")),
        "anonymous": (MTLS_STEP, {"protocol": "SSL", "ca": str(secured.tls / "ca.pem")}),
    }[why]
    with driven(secured.bootstrap(step), security, tmp_path) as drivers:
        for driver, _ in drivers:
            driver.tell({"do": "connect"})
        for driver, log in drivers:
            error = driver.answer()["error"]
            assert error, driver.name
            # Some clients report the reason only in their log.
            told = error + log.read_text()
            assert re.search(REFUSALS[why], told), (driver.name, told)
    said = secured.said()
    assert wrong not in said
    assert PASSWORD_OF_ALICE not in said
    assert (secured.tls / "expired.jwt").read_text().split(".")[2] not in said


def test_commands_connect_as_the_file_of_properties_says(secured: Secured) -> None:
    """Commands use the file's settings, also for the admin plane, which requires a certificate."""
    assert "alice" in secured.vdl("user", "list")
    status = json.loads(secured.vdl("status", "--json"))
    traced = json.loads(secured.vdl("trace", "--slowest", "--json"))
    for found in (status, traced):
        assert not any(server["problem"] for server in found["servers"])
    assert len(status["servers"]) == len(traced["servers"]) == 3
    assert "Nothing is wrong" in secured.vdl("explain", "server", "1")
    settings = read_client_settings(secured.directory / "client.properties")
    assert settings.password not in repr(settings)


def test_commands_for_any_cluster_log_in_with_javas_properties_and_librdkafkas(
    secured: Secured, tmp_path: Path
) -> None:
    """Either half of the file is enough, also for what librdkafka cannot ask."""
    topic = secured.topic("commands")
    lines = (secured.directory / "client.properties").read_text().splitlines()
    of_java = ("sasl.jaas.config", "ssl.truststore.")
    of_librdkafka = ("sasl.username", "sasl.password", "ssl.ca.location")
    for left_out in (of_java, of_librdkafka):
        file = tmp_path / "client.properties"
        file.write_text("\n".join(one for one in lines if not one.startswith(left_out)))
        line = CommandLine(secured.bootstrap())
        (found,) = line.json("topic", "describe", topic, "--config", str(file))["topics"]
        assert found["partitions"][0]["bytes"] is not None
        users = line.json("user", "list", "--config", str(file))["users"]
        assert {"admin", "alice"} <= {one["user"] for one in users}
        added = line.json("token", "create", "--config", str(file))
        (token,) = line.json("token", "describe", "--config", str(file))["tokens"]
        assert (token["id"], token["owner"]) == (added["id"], "User:admin")
        line.json("token", "expire", added["id"], "--config", str(file))
    nobody = line.run("topic", "list", "--config", str(wrong_password(file)))
    assert nobody.code == 1
    assert "authentication" in nobody.error.lower()


def wrong_password(file: Path) -> Path:
    """Return a copy of a file of Java's properties with another password."""
    copy = file.with_suffix(".wrong")
    copy.write_text(re.sub(r'password="[^"]*"', 'password="wrong"', file.read_text()))
    return copy


def test_secrets_are_in_nothing_that_servers_wrote(secured: Secured) -> None:
    """No password, token or private key is in anything that servers wrote.

    Checked are logs, metrics, results of DescribeConfigs, journals and segments.
    """
    settings = read_client_settings(secured.directory / "client.properties")
    secrets = {settings.password, PASSWORD_OF_ALICE, (secured.tls / "delegation").read_text()}
    secrets |= {(secured.tls / f"{name}.jwt").read_text() for name in ("token", "expired")}
    for file in secured.tls.glob("*.key"):
        secrets |= {
            line for line in file.read_text().splitlines() if len(line) > 30 and "-" not in line
        }
    assert len(secrets) > 10
    said = [secured.said().encode()]
    for number in (1, 2, 3):
        server = secured.servers.server(number)
        http = server.config().http
        assert http is not None
        for path in ("metrics", "health"):
            with urllib.request.urlopen(f"http://{http}/{path}", timeout=10) as answer:
                said.append(answer.read())
        host, _, port = secured.bootstrap().split(",")[number - 1].partition(":")
        with AnyApiClient(host, int(port), settings=settings) as client:
            asked = DescribeConfigsRequest(
                resources=[DescribeConfigsResource(4, str(number), None)]
            )
            said.append(repr(client.request(32, asked)).encode())
        said += [file.read_bytes() for file in server.directory.rglob("*") if file.is_file()]
    for text in said:
        for secret in secrets:
            assert secret.encode() not in text


LIBRDKAFKA = next(client for client in CLIENTS if client.name == "confluent-kafka")
LEARNT_SECONDS_MAX = 20
"""Time until all three servers know of the revocation. They read it one after the other."""


def until_refused(
    client: Client, bootstrap: str, security: dict[str, str], folder: Path, told: str
) -> None:
    """Log in repeatedly until the client is refused. A server that does not know yet admits it."""
    deadline = time.monotonic() + LEARNT_SECONDS_MAX
    for attempt in itertools.count():
        log = folder / f"out-{bootstrap.rpartition(':')[2]}-{attempt}.log"
        driver = Driver(client.name, client.command(), bootstrap, log, security)
        try:
            if re.search(told, driver.connect() + log.read_text()):
                return
        finally:
            driver.stop()
        assert time.monotonic() < deadline, f"{bootstrap} lets it in"


def test_user_that_is_removed_is_out_within_a_second(secured: Secured, tmp_path: Path) -> None:
    """A removed user's open connections end, and it cannot log in again; others continue."""
    secured.vdl("user", "add", "carol", text="carols-secret\n")
    carol = AdminClient(secured.settings("SCRAM-SHA-512", "carol", "carols-secret"))
    carol.list_topics(timeout=10)
    secured.vdl("user", "remove", "carol")
    deadline = time.monotonic() + 10
    while "user: it was removed" not in secured.said():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    security = secured.login("SCRAM-SHA-512", user="carol", password="carols-secret")
    for address in secured.bootstrap().split(","):
        until_refused(LIBRDKAFKA, address, security, tmp_path, "uthenticat")
    assert "alice" in secured.vdl("user", "list")


DELEGATED = [client for client in CLIENTS if client.name in ("java-4.4", "franz-go")]
"""Clients that support delegation tokens. librdkafka does not."""


@pytest.mark.takes_turns(parts=2)
@pytest.mark.java
@pytest.mark.go
@pytest.mark.parametrize("mechanism", MECHANISMS[:2])
def test_client_with_a_delegation_token_is_its_owner_until_it_is_ended(
    secured: Secured, mechanism: str, tmp_path: Path
) -> None:
    """`vdl token` creates a token on behalf of another user, shows it, renews it and ends it.

    Then the client is refused. A client with a wrong part of the token is refused, too.
    """
    made = secured.vdl("token", "create", "--owner", "User:alice", "--max-lifetime", "2h")
    token = dict(line.rsplit(" ", 1) for line in made.splitlines()[:3])
    assert token["owner"] == "User:alice"
    security = secured.login(
        mechanism, user=token["id"], password=token["secret"], tokenauth="true"
    )
    others = [
        {name: value for name, value in security.items() if name != "tokenauth"},
        security | {"user": "alice"},
        security | {"password": PASSWORD_OF_ALICE},
    ]
    for client in DELEGATED:
        log = tmp_path / f"{client.name}.log"
        driver = Driver(client.name, client.command(), secured.bootstrap(), log, security)
        try:
            works(driver, secured.topic(f"delegated-{client.name}-{mechanism.lower()}"))
        finally:
            driver.stop()
    listed = secured.vdl("token", "describe", "--owner", "User:alice")
    assert token["secret"] not in listed
    (line,) = [one for one in listed.splitlines() if one.startswith(token["id"])]
    assert "owner User:alice, expires 20" in line
    assert secured.vdl("token", "describe", "--owner", "User:bob") == ""
    renewed = secured.vdl("token", "renew", token["id"], "--for", "1h")
    assert renewed < made.splitlines()[3] + "\n"
    assert secured.vdl("token", "expire", token["id"]).startswith("expires ")
    assert token["id"] not in secured.vdl("token", "describe")
    client = DELEGATED[-1]
    for number, refused in enumerate(others):
        log = tmp_path / f"refused-{number}.log"
        driver = Driver(client.name, client.command(), secured.bootstrap(), log, refused)
        try:
            assert "uthenticat" in driver.connect() + log.read_text()
        finally:
            driver.stop()
    until_refused(client, secured.bootstrap(), security, tmp_path, "uthenticat")
    assert token["secret"] not in secured.said()


def test_client_whose_certificate_is_revoked_is_out_within_a_second(
    secured: Secured, tmp_path: Path
) -> None:
    """A revoked client is refused, also a connected one.

    Other clients, and the servers' links, continue.
    """
    bootstrap = secured.bootstrap(MTLS_STEP)

    def client(name: str) -> AdminClient:
        shown = secured.certificate(name)
        return AdminClient(
            {
                "bootstrap.servers": bootstrap,
                "security.protocol": "SSL",
                "ssl.ca.location": shown["ca"],
                "ssl.certificate.location": shown["certificate"],
                "ssl.key.location": shown["key"],
            }
        )

    mallory, alice = client("mallory"), client("alice")
    for one in (mallory, alice):
        assert one.list_topics(timeout=10).topics
    done = subprocess.run(
        [sys.executable, "-m", "vdl.cli", "cert", "revoke", "client-mallory",
         "--out", str(secured.tls)],
        cwd=ROOT, capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    deadline = time.monotonic() + 20
    while "certificate: it was revoked" not in secured.said():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    security = secured.certificate("mallory")
    for address in bootstrap.split(","):
        until_refused(LIBRDKAFKA, address, security, tmp_path, REFUSALS["anonymous"])
    for one in (alice, client("alice")):
        assert one.list_topics(timeout=10).topics
    assert "certificate revoked" in secured.said()
    assert json.loads(secured.vdl("status", "--json"))["servers"][0]["problem"] == ""


def test_certificates_and_passwords_that_are_replaced_under_load_fail_nothing(
    secured: Secured,
) -> None:
    """A producer continues through both.

    New connections see the new certificate; the old password is invalid.
    """
    topic = secured.topic("rotated")
    secured.vdl("user", "add", "dave", text="first\n")
    settings = secured.settings("SCRAM-SHA-256", "dave", "first")
    failed: list[str] = []
    delivered = 0

    def acknowledged(error: object, message: object) -> None:
        nonlocal delivered
        delivered += 1
        if error is not None:
            failed.append(str(error))

    producer = Producer(settings | {"linger.ms": 5})

    def produce(seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            producer.produce(topic, b"x" * 100, callback=acknowledged)
            producer.poll(0.002)

    produce(0.5)
    before = [secured.certificate_of(server_id) for server_id in (1, 2, 3)]
    done = subprocess.run(
        [sys.executable, "-m", "vdl.cli", "cert", "--out", str(secured.tls), "--renew"],
        cwd=ROOT, capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    deadline = time.monotonic() + 20
    # A server may check between two of its files, and load a change in two steps.
    while any(secured.certificate_of(number) == old for number, old in enumerate(before, 1)):
        assert time.monotonic() < deadline, "a server shows its old certificate"
        produce(0.2)
    assert secured.said().count("event=certificates_loaded") >= 3
    secured.vdl("user", "add", "dave", text="second\n")
    produce(0.5)
    assert producer.flush(20) == 0
    assert (failed, delivered > 100) == ([], True)
    assert AdminClient(settings | {"sasl.password": "second"}).list_topics(timeout=10).topics
    with pytest.raises(KafkaException):
        AdminClient(settings).list_topics(timeout=3)
    assert json.loads(secured.vdl("status", "--json"))["servers"][0]["problem"] == ""
