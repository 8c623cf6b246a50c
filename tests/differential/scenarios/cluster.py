"""APIs that describe the cluster or change its servers, and invalid frames."""

from __future__ import annotations

from tests.differential.batches import batch
from tests.differential.connection import key_of
from tests.differential.side import Side
from tests.wire import codec
from vdl.kafka.wire.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from vdl.kafka.wire.alter_replica_log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
)
from vdl.kafka.wire.describe_cluster import DescribeClusterRequest
from vdl.kafka.wire.describe_groups import DescribeGroupsRequest
from vdl.kafka.wire.describe_log_dirs import DescribableLogDirTopic, DescribeLogDirsRequest
from vdl.kafka.wire.describe_producers import DescribeProducersRequest, TopicRequest
from vdl.kafka.wire.describe_quorum import DescribeQuorumRequest, PartitionData, TopicData
from vdl.kafka.wire.elect_leaders import ElectLeadersRequest, TopicPartitions
from vdl.kafka.wire.fetch import FetchPartition, FetchRequest, FetchTopic
from vdl.kafka.wire.find_coordinator import FindCoordinatorRequest
from vdl.kafka.wire.heartbeat import HeartbeatRequest
from vdl.kafka.wire.list_groups import ListGroupsRequest
from vdl.kafka.wire.list_offsets import ListOffsetsRequest, ListOffsetsTopic
from vdl.kafka.wire.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsTopics,
)
from vdl.kafka.wire.metadata import MetadataRequest, MetadataRequestTopic
from vdl.kafka.wire.runtime import EncodeError
from vdl.kafka.wire.unregister_broker import UnregisterBrokerRequest
from vdl.kafka.wire.update_features import FeatureUpdateKey, UpdateFeaturesRequest

TIMEOUT_MS = 10_000
CUT_MAX = 12
"""Maximum number of bytes cut off a request."""


def describe_producers(side: Side) -> None:
    topic = side.topic("producers", 2)
    side.produce(
        topic,
        batch([b"v"], producer_id=5_000, producer_epoch=2, base_sequence=0),
    )

    def ask(label: str, *rows: tuple[str, list[int]], to: int) -> None:
        topics = [TopicRequest(*row) for row in rows]
        side.each(label, DescribeProducersRequest(topics), to=to)

    leader = side.leader(topic)
    request = DescribeProducersRequest([TopicRequest(topic, [0])])
    for node in (1, 2, 3):
        # A replica knows a producer once it knows that its batch is committed.
        side.settle(
            lambda node=node: bool(
                not side.versions(61)
                or side.quiet(request, to=node).topics[0].partitions[0].active_producers
            ),
            f"server {node} knows the producer",
        )
    ask("a producer", (topic, [0]), to=leader)
    ask("unknown topic", (f"{side.prefix}.none", [0]), to=leader)
    ask("no topic", ("", [0]), to=leader)
    ask("partition that is not there", (topic, [9, -1]), to=leader)
    ask("not the leader", (topic, [0]), to=side.other(topic))
    ask("without producers", (topic, [1]), to=side.leader(topic, 1))
    ask("nothing", to=leader)


def elect_leaders(side: Side) -> None:
    topic = side.topic("elected", 2)

    def ask(label: str, kind: int, *rows: tuple[str, list[int]]) -> None:
        topics = [TopicPartitions(*row) for row in rows]
        side.each(label, ElectLeadersRequest(kind, topics, TIMEOUT_MS))

    ask("unknown topic", 0, (f"{side.prefix}.none", [0]))
    ask("no topic", 0, ("", [0]))
    ask("partition that is not there", 0, (topic, [9, -1]))
    ask("nothing", 0)
    side.settle(lambda: side.is_led_as_preferred(topic), "the preferred replicas lead")
    ask("not needed", 0, (topic, [0, 1]))
    ask("not needed, twice", 0, (topic, [0, 0]))
    ask("not needed and unknown", 0, (topic, [0, 9]))
    side.each("no such kind", ElectLeadersRequest(7, [], TIMEOUT_MS), first=1)
    side.each(
        "unclean, not needed",
        ElectLeadersRequest(1, [TopicPartitions(topic, [0])], TIMEOUT_MS),
        first=1,
    )


def reassignments(side: Side) -> None:
    topic = side.topic("moved", 2)

    def alter(label: str, *rows: tuple[str, int, list[int] | None]) -> None:
        topics = [
            ReassignableTopic(name, [ReassignablePartition(index, nodes)])
            for name, index, nodes in rows
        ]
        side.each(f"alter, {label}", AlterPartitionReassignmentsRequest(TIMEOUT_MS, True, topics))

    alter("unknown topic", (f"{side.prefix}.none", 0, [1]))
    alter("partition that is not there", (topic, 9, [1]))
    alter("cancel nothing", (topic, 0, None))
    alter("an unknown server", (topic, 0, [1, 2, 9]))
    alter("no server", (topic, 0, []))
    alter("a server twice", (topic, 0, [1, 1, 2]))
    alter("a negative server", (topic, 0, [-1]))
    alter("nothing")

    def listed(label: str, rows: list[tuple[str, list[int]]] | None) -> None:
        topics = None if rows is None else [ListPartitionReassignmentsTopics(*row) for row in rows]
        side.each(f"list, {label}", ListPartitionReassignmentsRequest(TIMEOUT_MS, topics))

    listed("all", None)
    listed("nothing", [])
    listed("one", [(topic, [0])])
    listed("unknown", [(f"{side.prefix}.none", [0]), (topic, [9])])


def quorum(side: Side) -> None:
    """The members of the quorum differ; refusals do not."""
    for label, topic, index in (
        ("another topic", "x", 0),
        ("another partition", "__cluster_metadata", 1),
    ):
        request = DescribeQuorumRequest([TopicData(topic, [PartitionData(index)])])
        side.each(label, request)
    side.each("nothing", DescribeQuorumRequest([]))


def log_dirs(side: Side) -> None:
    """The sizes of replicas differ; their list, and refusals, do not."""
    topic = side.topic("placed", 2)

    def ask(label: str, *rows: tuple[str, list[int]]) -> None:
        topics = [DescribableLogDirTopic(*row) for row in rows]
        side.each(label, DescribeLogDirsRequest(topics), to=2)

    both = DescribeLogDirsRequest([DescribableLogDirTopic(topic, [0, 1])])
    # A Kafka server creates its replica a moment after it was assigned.
    side.settle(
        lambda: (
            not side.versions(35)
            or sum(len(row.partitions) for row in side.quiet(both, to=2).results[0].topics) == 2
        ),
        "both replicas are there",
    )
    ask("one", (topic, [0]))
    ask("two", (topic, [0, 1]))
    ask("twice", (topic, [0, 0]))
    ask("unknown topic", (f"{side.prefix}.none", [0]))
    ask("no topic", ("", [0]))
    ask("partition that is not there", (topic, [9, -1]))
    ask("no partition", (topic, []))
    ask("nothing")


def alter_log_dirs(side: Side) -> None:
    topic = side.topic("dirs")

    def ask(label: str, path: str, name: str, *indexes: int) -> None:
        rows = [AlterReplicaLogDir(path, [AlterReplicaLogDirTopic(name, list(indexes))])]
        side.each(label, AlterReplicaLogDirsRequest(rows))

    ask("no such directory", "/no/such/directory", topic, 0)
    ask("no absolute path", "directory", topic, 0)
    ask("no path", "", topic, 0)
    ask("unknown topic, no such directory", "/no/such/directory", f"{side.prefix}.none", 0)
    ask("partition that is not there, no such directory", "/no/such/directory", topic, 9, -1)
    ask("no partition", "/no/such/directory", topic)
    side.each("nothing", AlterReplicaLogDirsRequest([]))


def servers(side: Side) -> None:
    side.each("unregister an unknown server", UnregisterBrokerRequest(77))
    side.each("unregister a negative server", UnregisterBrokerRequest(-1))
    unknown = FeatureUpdateKey("no.such.feature", 1, False, 1)
    side.each("unknown feature", UpdateFeaturesRequest(TIMEOUT_MS, [unknown]))
    side.each("no feature", UpdateFeaturesRequest(TIMEOUT_MS, []))
    side.each("the same feature twice", UpdateFeaturesRequest(TIMEOUT_MS, [unknown, unknown]))
    nameless = FeatureUpdateKey("", 1, False, 1)
    side.each("a feature without a name", UpdateFeaturesRequest(TIMEOUT_MS, [nameless]))


def frames(side: Side) -> None:
    """Send unreadable requests."""
    side.raw("no such API", 999, 0, b"")
    side.raw("a negative key", -1, 0, b"")
    side.raw("a version to come", 3, 99, b"")
    side.raw("a negative version", 3, -1, b"")
    side.raw("a body cut short", 3, 1, b"\0\0")
    side.raw("an array longer than the body", 3, 1, b"\x7f\xff\xff\xff")
    side.raw("a negative array", 3, 1, b"\xff\xff\xff\xfe", only_whether=True)
    side.raw("bytes behind the body", 12, 0, b"\0\0\0\0\0\0\0\0" + b"more")
    side.raw("ApiVersions of a version to come", 18, 99, b"")
    side.raw("a null name", 19, 2, b"\0\0\0\1\xff\xff\0\0\0\1\0\1\0\0\0\0\0\0\0\0\0\0\0\0\0")
    side.raw("not UTF-8", 3, 1, b"\0\0\0\1\0\2\xff\xfe", only_whether=True)


def headers(side: Side) -> None:
    """Send headers of requests: that of Metadata v1 and, with tagged fields, that of v9."""
    start, body = b"\0\3\0\1\0\0\0\7", b"\0\0\0\0"
    side.frame("a client id", start + b"\0\1c" + body)
    side.frame("no client id", start + b"\xff\xff" + body)
    side.frame("an empty client id", start + b"\0\0" + body)
    side.frame("a client id longer than the frame", start + b"\0\x7f" + body)
    side.frame("a client id of negative length", start + b"\xff\xfe" + body)
    side.frame("no body", start + b"\0\1c")
    side.frame("a header cut short", start[:6])
    side.frame("two bytes", start[:2])
    start, body = b"\0\3\0\x09\0\0\0\7\0\1c", b"\1\0\0\0"
    side.frame("no tagged fields", start + b"\0" + body + b"\0")
    side.frame("an unknown tagged field", start + b"\1\x63\2ab" + body + b"\0")
    side.frame("an unknown tagged field in the body", start + b"\0" + body + b"\1\x63\2ab")
    side.frame("a tagged field longer than the frame", start + b"\1\x63\x7fab" + body + b"\0")
    side.frame("tagged fields out of order", start + b"\2\x63\0\x62\0" + body + b"\0")
    side.frame("a tagged field twice", start + b"\2\x63\0\x63\0" + body + b"\0")
    side.frame("more tagged fields than bytes", start + b"\x7f" + body + b"\0")


def cut_short(side: Side) -> None:
    """Send valid requests without their last bytes, with and without tagged fields.

    The connection is closed, or the request was complete without them.
    """
    name = f"{side.prefix}.none"
    requests = {
        "metadata": MetadataRequest([MetadataRequestTopic(name=name)], False),
        "find coordinator": FindCoordinatorRequest("k", 0, ["k"]),
        "heartbeat": HeartbeatRequest(name, 1, "member", "instance"),
        "describe groups": DescribeGroupsRequest([name], True),
        "list groups": ListGroupsRequest(["Stable"], ["classic"]),
        "describe cluster": DescribeClusterRequest(True),
        "fetch": FetchRequest(topics=[FetchTopic(name, partitions=[FetchPartition()])]),
        "list offsets": ListOffsetsRequest(-1, 0, [ListOffsetsTopic(name, [])]),
    }
    for label, message in requests.items():
        versions = side.versions(key_of(message))
        for version in {versions[0], versions[-1]}:
            module = codec(key_of(message))
            try:
                body = b"".join(module.encode_request(message, version))
            except EncodeError:
                continue
            for left in range(max(0, len(body) - CUT_MAX), len(body)):
                side.raw(
                    f"{label} v{version}, {left} of {len(body)} bytes",
                    module.API_KEY,
                    version,
                    body[:left],
                    only_whether=True,
                )


SCENARIOS = (
    describe_producers,
    elect_leaders,
    reassignments,
    quorum,
    log_dirs,
    alter_log_dirs,
    servers,
    frames,
    headers,
    cut_short,
)
