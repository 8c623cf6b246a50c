"""Damaged requests of every API and version: a response or a close, never a failing handler."""

from __future__ import annotations

import random

import pytest

from tests.unit.kafka.fake_host import Client, World, batch, fill
from tests.wire import codec
from vdl.kafka.api import ROWS, Api
from vdl.kafka.wire import incremental_alter_configs as incremental
from vdl.kafka.wire.alter_client_quotas import (
    AlterClientQuotasRequest,
    EntityData,
    EntryData,
    OpData,
)
from vdl.kafka.wire.alter_configs import (
    AlterableConfig,
    AlterConfigsRequest,
    AlterConfigsResource,
)
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
from vdl.kafka.wire.api_versions import ApiVersionsRequest
from vdl.kafka.wire.create_acls import AclCreation, CreateAclsRequest
from vdl.kafka.wire.create_delegation_token import (
    CreatableRenewers,
    CreateDelegationTokenRequest,
)
from vdl.kafka.wire.create_partitions import (
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from vdl.kafka.wire.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from vdl.kafka.wire.delete_acls import DeleteAclsFilter, DeleteAclsRequest
from vdl.kafka.wire.delete_topics import DeleteTopicsRequest
from vdl.kafka.wire.describe_acls import DescribeAclsRequest
from vdl.kafka.wire.describe_client_quotas import ComponentData, DescribeClientQuotasRequest
from vdl.kafka.wire.describe_cluster import DescribeClusterRequest
from vdl.kafka.wire.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from vdl.kafka.wire.describe_delegation_token import (
    DescribeDelegationTokenOwner,
    DescribeDelegationTokenRequest,
)
from vdl.kafka.wire.describe_log_dirs import DescribableLogDirTopic, DescribeLogDirsRequest
from vdl.kafka.wire.describe_producers import DescribeProducersRequest
from vdl.kafka.wire.describe_producers import TopicRequest as TopicRequestOfProducers
from vdl.kafka.wire.describe_quorum import DescribeQuorumRequest, PartitionData, TopicData
from vdl.kafka.wire.describe_topic_partitions import DescribeTopicPartitionsRequest, TopicRequest
from vdl.kafka.wire.elect_leaders import ElectLeadersRequest
from vdl.kafka.wire.elect_leaders import TopicPartitions as ElectTopicPartitions
from vdl.kafka.wire.expire_delegation_token import ExpireDelegationTokenRequest
from vdl.kafka.wire.fetch import FetchPartition, FetchRequest, FetchTopic
from vdl.kafka.wire.get_telemetry_subscriptions import GetTelemetrySubscriptionsRequest
from vdl.kafka.wire.incremental_alter_configs import IncrementalAlterConfigsRequest
from vdl.kafka.wire.list_config_resources import ListConfigResourcesRequest
from vdl.kafka.wire.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from vdl.kafka.wire.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsTopics,
)
from vdl.kafka.wire.metadata import MetadataRequest, MetadataRequestTopic
from vdl.kafka.wire.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from vdl.kafka.wire.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from vdl.kafka.wire.push_telemetry import PushTelemetryRequest
from vdl.kafka.wire.renew_delegation_token import RenewDelegationTokenRequest
from vdl.kafka.wire.unregister_broker import UnregisterBrokerRequest
from vdl.kafka.wire.update_features import FeatureUpdateKey, UpdateFeaturesRequest

DAMAGED_PER_VERSION = 40


def sound_requests(version: int) -> dict[int, object]:
    """Return one request of each API that has the version; damage starts from there."""
    data = [PartitionProduceData(0, memoryview(batch()))]
    poll = FetchPartition(0, fetch_offset=0, partition_max_bytes=1000)
    config = CreatableTopicConfig("retention.ms", "1")
    return {
        0: ProduceRequest(None, -1, 100, [TopicProduceData("t", bytes(16), data)]),
        1: FetchRequest(max_wait_ms=10, topics=[FetchTopic("t", bytes(16), [poll])]),
        2: ListOffsetsRequest(-1, 0, [ListOffsetsTopic("t", [ListOffsetsPartition(0)])]),
        3: MetadataRequest([MetadataRequestTopic(name="t")]),
        38: CreateDelegationTokenRequest(renewers=[CreatableRenewers("User", "r")]),
        39: RenewDelegationTokenRequest(b"hmac", 1),
        40: ExpireDelegationTokenRequest(b"hmac", -1),
        41: DescribeDelegationTokenRequest([DescribeDelegationTokenOwner("User", "u")]),
        18: ApiVersionsRequest("fuzz", "1.0") if version >= 3 else ApiVersionsRequest(),
        19: CreateTopicsRequest([CreatableTopic("n", 1, 1, [], [config])], 100),
        20: DeleteTopicsRequest([], [] if version >= 6 else ["n"], 100),
        23: OffsetForLeaderEpochRequest(
            -1, [OffsetForLeaderTopic("t", [OffsetForLeaderPartition(0, -1, 5)])]
        ),
        29: DescribeAclsRequest(1, None, 1, None, None, 1, 1),
        30: CreateAclsRequest([AclCreation(2, "t", 3, "User:a", "*", 3, 3)]),
        31: DeleteAclsRequest([DeleteAclsFilter(2, "t", 3, None, None, 1, 1)]),
        32: DescribeConfigsRequest([DescribeConfigsResource(2, "t", None)]),
        33: AlterConfigsRequest(
            [AlterConfigsResource(32, "g", [AlterableConfig("consumer.session.timeout.ms", "5")])]
        ),
        34: AlterReplicaLogDirsRequest(
            [AlterReplicaLogDir("/data", [AlterReplicaLogDirTopic("t", [0])])]
        ),
        35: DescribeLogDirsRequest([DescribableLogDirTopic("t", [0])]),
        37: CreatePartitionsRequest(
            [CreatePartitionsTopic("t", 2, [CreatePartitionsAssignment([1, 2, 3])])], 100
        ),
        43: ElectLeadersRequest(0, [ElectTopicPartitions("t", [0])], 100),
        44: IncrementalAlterConfigsRequest(
            [incremental.AlterConfigsResource(16, "m", [incremental.AlterableConfig("match", 2)])]
        ),
        45: AlterPartitionReassignmentsRequest(
            100, True, [ReassignableTopic("t", [ReassignablePartition(0, [3, 1])])]
        ),
        46: ListPartitionReassignmentsRequest(100, [ListPartitionReassignmentsTopics("t", [0])]),
        48: DescribeClientQuotasRequest([ComponentData("user", 0, "u")]),
        49: AlterClientQuotasRequest(
            [EntryData([EntityData("user", "u")], [OpData("producer_byte_rate", 1.0)])]
        ),
        55: DescribeQuorumRequest([TopicData("__cluster_metadata", [PartitionData(0)])]),
        57: UpdateFeaturesRequest(1_000, [FeatureUpdateKey("f", 1)]),
        60: DescribeClusterRequest(),
        61: DescribeProducersRequest([TopicRequestOfProducers("t", [0])]),
        64: UnregisterBrokerRequest(1),
        71: GetTelemetrySubscriptionsRequest(b"i" * 16),
        72: PushTelemetryRequest(b"i" * 16, 1, False, 0, b"\x0a\x02\x12\x00"),
        74: ListConfigResourcesRequest([2, 4] if version else []),
        75: DescribeTopicPartitionsRequest([TopicRequest("t")]),
    }


def damaged(body: bytes, rng: random.Random) -> bytes:
    """Return bytes that are changed, truncated, extended, or all noise."""
    out = bytearray(body)
    for _ in range(rng.randint(1, 3)):
        match rng.randrange(5):
            case 0 if out:
                out[rng.randrange(len(out))] = rng.choice((0, 1, 0x7F, 0x80, 0xFF))
            case 1 if out:
                out[rng.randrange(len(out))] ^= 1 << rng.randrange(8)
            case 2:
                del out[rng.randint(0, len(out)) :]
            case 3:
                position = rng.randint(0, len(out))
                out[position:position] = rng.randbytes(rng.randint(1, 9))
            case _:
                out = bytearray(rng.randbytes(rng.randint(0, 60)))
    return bytes(out)


TESTED = [api for api in ROWS if api.key in sound_requests(0)]
"""The other APIs require a coordinator, which the fake does not have."""


@pytest.mark.parametrize("api", TESTED, ids=lambda api: api.name)
def test_damaged_requests_never_fail_the_server(api: Api) -> None:
    """For any bytes no handler raises, and the next connection is served."""
    rng = random.Random(api.key)
    world = World()
    for stream in world.topic():
        fill(stream, 3)
    for version in range(api.min_version, api.max_version + 1):
        sound = b"".join(codec(api.key).encode_request(sound_requests(version)[api.key], version))
        for _ in range(DAMAGED_PER_VERSION):
            client: Client = world.client()
            client.session.receive(client.frame(api.key, version, damaged(sound, rng)))
            world.run(20)
            client.session.connection_lost()
    told = [fields["traceback"] for level, _, fields in world.log.events if level == "error"]
    assert not told, told[0]
    client = world.client()
    assert client.ask(18, 0, ApiVersionsRequest()).error_code == 0
