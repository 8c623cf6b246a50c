"""Checks of `vdl doctor` for a cluster: VDL's or Apache Kafka's.

Each address is tried as a client would do it, first those of the bootstrap, then those that the
servers advertise: a client that reaches the first and not the second cannot work, and its errors
seldom say so.

Does not depend on how findings are shown.
"""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from vdl.commands.checks.cluster_status import collect
from vdl.commands.checks.finding import Finding, examples, fail, ok, skip, warn
from vdl.commands.cluster.connection import TIMEOUT_SECONDS
from vdl.commands.workers import Workers
from vdl.config.values import Address
from vdl.kafka.client import KafkaClient, Unreachable
from vdl.kafka.security.client_settings import ClientSettings, ClientSettingsError
from vdl.kafka.wire import registry
from vdl.kafka.wire.api_versions import ApiVersionsRequest
from vdl.kafka.wire.metadata import MetadataRequest
from vdl.server.problem import NOT_WRONG, counted

CONNECT_SECONDS = 5.0
PROBES_AT_ONCE = 16
EXPIRES_SOON = timedelta(days=30)
METADATA_KEY, API_VERSIONS_KEY = 3, 18
NEWER_APIS = {
    22: "idempotent producers",
    68: "consumer groups of KIP-848",
    76: "share groups",
}
"""API key -> what clients need it for."""
SERVER = "server "
"""Beginning of the name of a finding about one server."""
_RUNBOOK = "deploy/runbook.md#"


@dataclass(slots=True)
class Probe:
    """One address as a client sees it. `problem` is empty if it answered."""

    address: Address
    problem: str = ""
    step: str = ""
    seconds: float = 0.0
    versions: dict[int, tuple[int, int]] = field(default_factory=dict)
    metadata: Any = None
    ends: datetime | None = None
    """End of the server's certificate."""


def probe(
    address: Address, settings: ClientSettings, timeout_seconds: float = TIMEOUT_SECONDS
) -> Probe:
    """Connect to an address, log in, and ask for versions and metadata."""
    found = Probe(address)
    try:
        socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        found.problem = "the name is not known here"
        found.step = f"add {address.host} to DNS or /etc/hosts, or use another name"
        return found
    found.ends = certificate_end(address, settings)
    began = time.monotonic()
    try:
        with KafkaClient(
            address.host, address.port, timeout_seconds=timeout_seconds, settings=settings
        ) as client:
            found.seconds = time.monotonic() - began
            answers = client.requests(
                [
                    (API_VERSIONS_KEY, ApiVersionsRequest("vdl", "0")),
                    (METADATA_KEY, MetadataRequest(topics=None, allow_auto_topic_creation=False)),
                ]
            )
    except Unreachable as error:
        found.problem, found.step = error.reason, _step(error.reason)
        return found
    found.versions = {row.api_key: (row.min_version, row.max_version) for row in
                      answers[0].api_keys}  # fmt: skip
    found.metadata = answers[1]
    return found


def _step(reason: str) -> str:
    """Return the next step for a reason why a server is not reached."""
    words = reason.lower()
    if "refused" in words and "connection" in words:
        return "start the server, or correct the port"
    if "timed out" in words or "unreachable" in words or "no route" in words:
        return "look for a firewall or a wrong address between here and there"
    if "tls" in words or "certificate" in words:
        return "compare security.protocol and ssl.ca.location of the client with the listener"
    if "offer" in words or "login" in words or "authenticat" in words or "password" in words:
        return "compare sasl.mechanism, user and password with the server's"
    return "look at the server's log for this connection"


def certificate_end(address: Address, settings: ClientSettings) -> datetime | None:
    """Return the end of a server's certificate, also of one that is not trusted or has ended;
    None if there is none."""
    if not settings.protocol.is_encrypted:
        return None
    from cryptography import x509

    try:
        context = settings.ssl_context()
        assert context is not None
        # Only looked at: nothing is sent on this connection.
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        with (
            socket.create_connection((address.host, address.port), CONNECT_SECONDS) as plain,
            context.wrap_socket(plain, server_hostname=address.host) as secured,
        ):
            shown = secured.getpeercert(binary_form=True)
    except (OSError, ValueError, ClientSettingsError):
        return None
    return x509.load_der_x509_certificate(shown).not_valid_after_utc if shown else None


def cluster_findings(
    addresses: Iterable[Address],
    settings: ClientSettings,
    *,
    timeout_seconds: float = TIMEOUT_SECONDS,
) -> Iterator[Finding]:
    """Yield the findings about a cluster."""
    asked = list(dict.fromkeys(addresses))
    with Workers(PROBES_AT_ONCE) as pool:
        tried = list(pool.map(lambda a: probe(a, settings, timeout_seconds), asked))
        for one in tried:
            yield _reached("bootstrap", one)
        answered = [one for one in tried if not one.problem]
        if not answered:
            return
        metadata = answered[0].metadata
        known = {one.address: one for one in answered}
        advertised = {
            broker.node_id: Address(broker.host, broker.port) for broker in metadata.brokers
        }
        others = [address for address in advertised.values() if address not in known]
        more = pool.map(lambda a: probe(a, settings, timeout_seconds), others)
        known |= {one.address: one for one in more}
    for number, address in sorted(advertised.items()):
        one = known[address]
        finding = _reached(f"{SERVER}{number}", one)
        if one.problem:
            step = f"{one.step}; clients use the address that the server advertises, {address}"
            finding = fail(finding.name, finding.text, step)
        yield finding
    found = [known[address] for address in advertised.values() if not known[address].problem]
    yield from certificates(found, datetime.now(UTC))
    yield from versions(found)
    yield from partitions(metadata)


def _reached(name: str, one: Probe) -> Finding:
    if one.problem:
        return fail(name, f"{one.address}: {one.problem}", one.step)
    return ok(name, f"{one.address} answers in {one.seconds * 1_000:.1f} ms")


def certificates(probes: Iterable[Probe], now: datetime) -> Iterator[Finding]:
    """Yield a finding for the certificate of each server that has one."""
    for one in probes:
        if one.ends is None:
            continue
        name = f"certificate {one.address}"
        text = f"ends {one.ends:%Y-%m-%d %H:%M} UTC"
        if one.ends <= now:
            yield fail(name, text, "renew it (`vdl cert` for a set made with --secure)")
        elif one.ends - now < EXPIRES_SOON:
            yield warn(name, text, "renew it in time (`vdl cert` for a set made with --secure)")
        else:
            yield ok(name, text)


def versions(probes: list[Probe]) -> Iterator[Finding]:
    """Yield a finding about the APIs that the servers offer."""
    name = "API versions"
    if not probes:
        return
    different = sorted(
        {
            key
            for one in probes[1:]
            for key in one.versions.keys() | probes[0].versions.keys()
            if one.versions.get(key) != probes[0].versions.get(key)
        }
    )
    if different:
        names = [registry.NAMES.get(key, str(key)) for key in different]
        yield warn(
            name, f"servers differ in {examples(names)}",
            "bring all servers to one version, or end the upgrade that is under way",
        )  # fmt: skip
        return
    offered = probes[0].versions
    missing = [what for key, what in NEWER_APIS.items() if key not in offered]
    text = f"{len(offered)} APIs, the same on {counted(len(probes), 'server')}"
    if missing:
        text += f"; without {', '.join(missing)}"
    yield ok(name, text)


def partitions(metadata: Any) -> Iterator[Finding]:
    """Yield findings about leaders and replicas, from Kafka's Metadata."""
    leaderless, behind, single = [], [], []
    count = 0
    for topic in metadata.topics:
        for row in topic.partitions:
            count += 1
            name = f"{topic.name}-{row.partition_index}"
            if row.leader_id < 0:
                leaderless.append(name)
            if len(row.isr_nodes) < len(row.replica_nodes):
                behind.append(name)
            if len(row.replica_nodes) == 1:
                single.append(name)
    if leaderless:
        yield fail(
            "leaders", f"{len(leaderless)} of {count} partitions have none: "
            f"{examples(sorted(leaderless))}", "start the servers that have their replicas",
        )  # fmt: skip
    else:
        yield ok("leaders", f"{counted(count, 'partition')}, none without one")
    if behind:
        yield warn(
            "replicas", f"{len(behind)} of {count} partitions are under-replicated: "
            f"{examples(sorted(behind))}", "start or replace the servers that are behind",
        )  # fmt: skip
    else:
        yield ok("replicas", "all are in sync")
    if single and len(metadata.brokers) > 1:
        yield warn(
            "copies", f"{len(single)} of {count} partitions have one replica: "
            f"{examples(sorted(single))}", "the loss of one disk loses them: add replicas",
        )  # fmt: skip


def vdl_findings(
    addresses: Iterable[Address],
    settings: ClientSettings,
    *,
    timeout_seconds: float = TIMEOUT_SECONDS,
) -> Iterator[Finding]:
    """Yield the problems that VDL's servers report of themselves, as `vdl status` collects them."""
    name = "admin plane"
    try:
        status = collect(addresses, settings, timeout_seconds=timeout_seconds)
    except (Unreachable, ClientSettingsError) as error:
        yield skip(name, str(error))
        return
    answered = [server for server in status.servers if not server.problem]
    if not answered:
        reasons = sorted({server.problem for server in status.servers})
        yield skip(name, f"no server has one that answers: {examples(reasons)}")
        return
    for server in status.servers:
        if server.problem:
            yield warn(
                f"{name} of server {server.id}", server.problem, "start it, or open its admin port"
            )
    problems = status.problems
    for kind, texts in problems.items():
        step = f"see {_RUNBOOK}{kind}"
        report = warn if kind in NOT_WRONG else fail
        yield report(kind, examples(texts), step)
    if not problems:
        yield ok(name, f"no problem on {counted(len(answered), 'server')} of VDL")
