"""Denied requests: Kafka with its StandardAuthorizer and VDL, with users that have few permissions.

Each API in each common version, by a user without permissions, and by one who may describe the
resources; then requests that are partly allowed. Skipped where Kafka cannot be started.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from subprocess import CalledProcessError
from typing import Any

import pytest

from tests.chaos.harness.replica_set import ReplicaSet
from tests.differential.batches import batch
from tests.differential.compare import Known, differences, load_known, unlisted
from tests.differential.connection import Login
from tests.differential.kafka_cluster import KafkaCluster, why_not
from tests.differential.side import Side, Versions, common, versions_of
from tests.unit.kafka.permissions.test_permissions import NEEDED, requests
from vdl.commands.servers.replica_set import make_replica_set, write_configs
from vdl.commands.servers.secure_set import secure_replica_set
from vdl.kafka.api import API
from vdl.kafka.security.client_settings import read_client_settings
from vdl.kafka.wire.create_acls import AclCreation, CreateAclsRequest
from vdl.kafka.wire.create_topics import CreatableTopic, CreateTopicsRequest
from vdl.kafka.wire.delete_topics import DeleteTopicsRequest, DeleteTopicState
from vdl.kafka.wire.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from vdl.kafka.wire.describe_topic_partitions import DescribeTopicPartitionsRequest, TopicRequest
from vdl.kafka.wire.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from vdl.kafka.wire.metadata import MetadataRequest, MetadataRequestTopic
from vdl.kafka.wire.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from vdl.server.first_users import first_users_text
from vdl.state.acls import AclOperation, AclResource

SHOWN_MAX = 60
DESCRIBE = AclOperation.DESCRIBE
LEGACY_BELOW = 3
"""Versions of Produce in which Kafka accepts no batches."""
PASSWORD = "a-password-of-tests"
NOBODY, SEER, SOME = "nobody", "seer", "some"
"""Users: no permission; may describe everything; as the scenario allows."""
USERS = {"admin": PASSWORD, NOBODY: PASSWORD, SEER: PASSWORD, SOME: PASSWORD}
NOT_ASKED = {17, 18, 36, 71, 72}
"""Logins, and APIs that need no permission."""
LEFT_TO_OTHERS = {
    16,  # all groups of the cluster
    23,  # a consumer's request needs the same permission as a broker's
    35,  # sizes
    55,  # members of the quorum
    60,  # state of the cluster
    66,  # all transactions of the cluster
}
"""APIs that are not denied, or covered by other tests."""
AUTHORIZER = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS;User:admin",
    "auto.create.topics.enable": "false",
}
SETTINGS = "auto.create.topics.enable = false\ngroup.initial.rebalance.delay.ms = 0\n"


@dataclass(slots=True)
class Secured:
    """Both clusters, and the logins of a user at each."""

    bootstraps: dict[str, str]
    logins: dict[str, Callable[[str], Login]]
    versions: Versions
    known: list[Known]
    used: set[str]

    def sides(self, user: str, prefix: str = "") -> list[Side]:
        return [
            Side(which, bootstrap, self.versions, prefix, self.logins[which](user))
            for which, bootstrap in self.bootstraps.items()
        ]

    def compare(self, name: str, user: str, ask: Callable[[Side], None]) -> None:
        sides = self.sides(user)
        try:
            with ThreadPoolExecutor() as pool:
                for running in [pool.submit(ask, side) for side in sides]:
                    running.result()
        finally:
            for side in sides:
                side.close()
        kafka, vdl = sides
        assert kafka.answers, "nothing was asked"
        left = unlisted(differences(name, kafka.answers, vdl.answers), self.known)
        shown = "\n".join(map(str, left[:SHOWN_MAX]))
        assert not left, f"{len(left)} differences that are not in known.toml:\n{shown}"


@pytest.fixture(scope="module")
def secured() -> Iterator[Secured]:
    if reason := why_not():
        pytest.skip(reason)
    kafka, servers = KafkaCluster(AUTHORIZER, users=USERS), ReplicaSet(3)
    made = make_replica_set(servers.directory, count=3, base_port=servers.base_port, is_secure=True)
    secure_replica_set(made)
    (servers.directory / "first_users").write_text(first_users_text(list(USERS.items())))
    write_configs(made)
    for server in made.servers:
        text = server.config_file.read_text()
        text = text.replace("[kafka]\n", "[kafka]\n" + SETTINGS)
        text = text.replace('name = "SASL_SSL"\n', 'name = "SASL_SSL"\nmechanisms = ["PLAIN"]\n')
        server.config_file.write_text(text)
    tls = read_client_settings(servers.directory / "client.properties").ssl_context()
    logins: dict[str, Callable[[str], Login]] = {
        "kafka": lambda user: Login(user, PASSWORD),
        "vdl": lambda user: Login(user, PASSWORD, tls),
    }
    try:
        with ThreadPoolExecutor() as pool:
            starting = pool.submit(servers.up)
            try:
                kafka.up()
            except CalledProcessError as error:
                pytest.skip(f"Kafka's jars cannot be had: {error}")
            starting.result()
        bootstraps = {"kafka": kafka.bootstrap, "vdl": servers.bootstrap}
        versions = common(
            *(versions_of(_first(at), logins[which]("admin")) for which, at in bootstraps.items())
        )
        found = Secured(bootstraps, logins, versions, load_known(), set())
        _prepare(found)
        yield found
    finally:
        kafka.close()
        servers.close()


def _first(bootstrap: str) -> tuple[str, int]:
    host, _, port = bootstrap.partition(",")[0].rpartition(":")
    return host, int(port)


def allowed(user: str, resource: int, name: str, operation: int) -> AclCreation:
    return AclCreation(resource, name, 3, f"User:{user}", "*", operation, 3)


BINDINGS: Sequence[AclCreation] = (
    allowed(SEER, AclResource.TOPIC, "*", AclOperation.DESCRIBE),
    allowed(SEER, AclResource.GROUP, "*", AclOperation.DESCRIBE),
    allowed(SOME, AclResource.TOPIC, ".open", AclOperation.ALL),
    allowed(SOME, AclResource.TOPIC, "made", AclOperation.CREATE),
    allowed(SOME, AclResource.TOPIC, ".seen", AclOperation.DESCRIBE),
    allowed(SOME, AclResource.TOPIC, "never-made", AclOperation.DESCRIBE),
)


SEEN = MetadataRequest([MetadataRequestTopic(name=".seen")], False)


def _prepare(secured: Secured) -> None:
    """Create topics that are hidden, seen and open, and grant permissions."""
    for side in secured.sides("admin"):
        try:
            for name in ("t", "open", "seen"):
                side.topic(name)
            names = (".t", ".open", ".seen")
            _ids_of[side.name] = {name: side.topic_id(name) for name in names}
            side.quiet(CreateAclsRequest(list(BINDINGS)))
        finally:
            side.close()
    for side in secured.sides(SOME):
        for node in (1, 2, 3):
            side.settle(
                lambda side=side, node=node: not side.quiet(SEEN, to=node).topics[0].error_code,
                "the ACLs are known",
            )
        side.close()


@pytest.mark.parametrize("user", [NOBODY, SEER])
def test_denied_answers_are_kafkas(secured: Secured, user: str) -> None:
    """Each API and version, with and without permission to describe the resource."""

    def ask(side: Side) -> None:
        topic_id = _ids_of[side.name][".t"]
        side.symbols.learn(topic_id, "id of t")
        for key, api in API.items():
            if key in NOT_ASKED or key in LEFT_TO_OTHERS:
                continue
            if user == SEER and {operation for operation, _ in NEEDED.get(key, [])} == {DESCRIBE}:
                continue  # allowed
            for version in side.versions(key):
                if key == 0 and version < LEGACY_BELOW:
                    continue
                request = _renamed(requests(version, topic_id)[key])
                side.ask(f"{api.name} v{version}", request, version=version)

    secured.compare(f"denied_to_{user}", user, ask)


_ids_of: dict[str, dict[str, bytes]] = {}


def _renamed(message: Any) -> Any:
    """Replace the topic "t" by ".t"."""
    from dataclasses import fields, is_dataclass

    if is_dataclass(message) and not isinstance(message, type):
        for field in fields(message):
            value = getattr(message, field.name)
            if isinstance(value, str) and value == "t":
                setattr(message, field.name, ".t")
            elif isinstance(value, list):
                setattr(message, field.name, [_renamed(one) for one in value])
    return ".t" if message == "t" else message


def test_partly_denied_answers_are_kafkas(secured: Secured) -> None:
    """Allowed parts are executed and others refused.

    Absent resources are reported only to users with permission.
    """

    def ask(side: Side) -> None:
        names = [".t", ".open", ".seen", "never-made", "nowhere"]
        for name, topic_id in _ids_of[side.name].items():
            side.symbols.learn(topic_id, f"id of {name}")
        side.each(
            "metadata, all",
            lambda version: MetadataRequest(None if version else [], False, False, version >= 8),
        )
        side.each(
            "metadata, named",
            MetadataRequest([MetadataRequestTopic(name=name) for name in names], False),
        )
        side.each(
            "metadata, created",
            MetadataRequest([MetadataRequestTopic(name=name) for name in names], True),
        )
        for node in (1, 2, 3):
            data = [PartitionProduceData(0, memoryview(batch([b"v"])))]
            topics = [TopicProduceData(name, bytes(16), data) for name in (".t", "nowhere")]
            side.ask(
                f"produce to {node}", ProduceRequest(None, -1, 1_000, topics), version=9, to=node
            )
        rows = [
            ListOffsetsTopic(name, [ListOffsetsPartition(0, -1, -1)]) for name in (".t", "nowhere")
        ]
        side.each("list offsets", ListOffsetsRequest(-1, 0, rows))
        resources = [DescribeConfigsResource(kind, name, ["cleanup.policy"]) for kind, name in (
            (2, ".t"), (2, ".open"), (2, "nowhere"), (4, "1"), (32, "g"), (16, "m"),
        )]  # fmt: skip
        side.each("describe configs", DescribeConfigsRequest(resources))
        side.each("topic partitions, all", DescribeTopicPartitionsRequest([], 2_000))
        side.each(
            "topic partitions, named",
            DescribeTopicPartitionsRequest([TopicRequest(name) for name in names], 2_000),
        )
        wanted = [
            CreatableTopic(name, 1, 3)
            for name in ("made", ".t", ".seen", "other", "twice", "twice")
        ]
        side.each("create topics", CreateTopicsRequest(wanted, 10_000, True), first=1)
        side.each(
            "delete topics, by name",
            lambda version: (
                DeleteTopicsRequest(
                    [DeleteTopicState(name) for name in names if name != ".open"], [], 10_000
                )
                if version >= 6
                else DeleteTopicsRequest([], [name for name in names if name != ".open"], 10_000)
            ),
        )

    secured.compare("partly_denied", SOME, ask)
