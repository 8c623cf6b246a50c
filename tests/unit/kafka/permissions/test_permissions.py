"""Permissions of every API: without them each request is refused, with them it passes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from tests.unit.kafka.fake_host import Client, World, batch, fill
from tests.unit.kafka.test_fuzz import sound_requests
from vdl.errors import ErrorCode
from vdl.kafka.answer import Reply
from vdl.kafka.api import API, ROWS, Api
from vdl.kafka.configs.options import KafkaOptions
from vdl.kafka.context import RequestContext
from vdl.kafka.permissions.rules import Refused
from vdl.kafka.permissions.table import PERMISSIONS, check_request, described, finished
from vdl.kafka.security.principal import Principal
from vdl.kafka.wire import alter_share_group_offsets as altered_offsets
from vdl.kafka.wire import delete_share_group_offsets as deleted_offsets
from vdl.kafka.wire import describe_share_group_offsets as described_offsets
from vdl.kafka.wire import (
    share_acknowledge,
    share_fetch,
    share_group_describe,
    share_group_heartbeat,
)
from vdl.kafka.wire.add_offsets_to_txn import AddOffsetsToTxnRequest
from vdl.kafka.wire.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from vdl.kafka.wire.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    ScramCredentialDeletion,
)
from vdl.kafka.wire.consumer_group_describe import ConsumerGroupDescribeRequest
from vdl.kafka.wire.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from vdl.kafka.wire.create_acls import AclCreation, CreateAclsRequest
from vdl.kafka.wire.create_topics import CreatableTopic, CreateTopicsRequest
from vdl.kafka.wire.delete_acls import DeleteAclsFilter, DeleteAclsRequest
from vdl.kafka.wire.delete_groups import DeleteGroupsRequest
from vdl.kafka.wire.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from vdl.kafka.wire.delete_topics import DeleteTopicsRequest, DeleteTopicState
from vdl.kafka.wire.describe_acls import DescribeAclsRequest
from vdl.kafka.wire.describe_cluster import DescribeClusterRequest
from vdl.kafka.wire.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from vdl.kafka.wire.describe_groups import DescribeGroupsRequest
from vdl.kafka.wire.describe_topic_partitions import (
    Cursor,
    DescribeTopicPartitionsRequest,
    TopicRequest,
)
from vdl.kafka.wire.describe_transactions import DescribeTransactionsRequest
from vdl.kafka.wire.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
    UserName,
)
from vdl.kafka.wire.end_txn import EndTxnRequest
from vdl.kafka.wire.fetch import FetchPartition, FetchRequest, FetchTopic
from vdl.kafka.wire.find_coordinator import FindCoordinatorRequest
from vdl.kafka.wire.heartbeat import HeartbeatRequest
from vdl.kafka.wire.init_producer_id import InitProducerIdRequest
from vdl.kafka.wire.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from vdl.kafka.wire.leave_group import LeaveGroupRequest
from vdl.kafka.wire.list_groups import ListedGroup, ListGroupsRequest, ListGroupsResponse
from vdl.kafka.wire.list_transactions import ListTransactionsRequest
from vdl.kafka.wire.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseTopic,
)
from vdl.kafka.wire.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from vdl.kafka.wire.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from vdl.kafka.wire.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)
from vdl.kafka.wire.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from vdl.kafka.wire.sasl_authenticate import SaslAuthenticateRequest
from vdl.kafka.wire.sasl_handshake import SaslHandshakeRequest
from vdl.kafka.wire.sync_group import SyncGroupRequest
from vdl.kafka.wire.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from vdl.kafka.wire.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from vdl.state import commands
from vdl.state.acls import (
    ANY_NAME,
    CLUSTER_NAME,
    AclOperation,
    AclPattern,
    AclPermission,
    AclResource,
)
from vdl.state.commands import AclBinding
from vdl.state.features import SHARE_VERSION

ALICE = Principal("alice")
Do = AclOperation
TOPIC, GROUP, CLUSTER = AclResource.TOPIC, AclResource.GROUP, AclResource.CLUSTER
TRANSACTIONAL_ID = AclResource.TRANSACTIONAL_ID
REFUSED = {
    ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED,
}
NAMES = {TOPIC: "t", GROUP: "g", CLUSTER: CLUSTER_NAME, TRANSACTIONAL_ID: "x"}

OPEN_TO_ALL = {17, 18, 36, 38, 39, 40, 41, 60, 71, 72}
"""APIs that every client needs, that reveal nothing new to it, or that manage its own tokens.

Delegation tokens of others: `tests/unit/kafka/connections/test_delegation_tokens.py`.
"""
SAYS_NOTHING = {(35, 1), (35, 2)}
"""API versions without a field for an error: the response is empty, as in Kafka."""
NEEDS_COORDINATOR = {
    8, 9, 10, 11, 12, 13, 14, 15, 16, 24, 25, 26, 27, 28, 42, 47, 65, 66, 68, 69, 76, 77, 90, 91,
    92,
}  # fmt: skip
"""APIs that require a coordinator, which the fake does not have."""
READS = {1, 78}
"""APIs that check permission where they read: a session has more partitions than its request."""
FILTERED = {16, 66}
"""APIs that omit what the client may not see instead of refusing the request."""

NEEDED: dict[int, list[tuple[AclOperation, AclResource]]] = {
    0: [(Do.WRITE, TOPIC)],
    1: [(Do.READ, TOPIC)],
    2: [(Do.DESCRIBE, TOPIC)],
    3: [(Do.DESCRIBE, TOPIC)],
    8: [(Do.READ, GROUP), (Do.READ, TOPIC)],
    9: [(Do.DESCRIBE, GROUP), (Do.DESCRIBE, TOPIC)],
    10: [(Do.DESCRIBE, GROUP)],
    11: [(Do.READ, GROUP)],
    12: [(Do.READ, GROUP)],
    13: [(Do.READ, GROUP)],
    14: [(Do.READ, GROUP)],
    15: [(Do.DESCRIBE, GROUP)],
    16: [(Do.DESCRIBE, GROUP)],
    19: [(Do.CREATE, CLUSTER)],
    20: [(Do.DELETE, TOPIC)],
    21: [(Do.DELETE, TOPIC)],
    22: [(Do.IDEMPOTENT_WRITE, CLUSTER)],
    23: [(Do.DESCRIBE, TOPIC)],
    24: [(Do.WRITE, TRANSACTIONAL_ID), (Do.WRITE, TOPIC)],
    25: [(Do.WRITE, TRANSACTIONAL_ID), (Do.READ, GROUP)],
    26: [(Do.WRITE, TRANSACTIONAL_ID)],
    27: [(Do.ALTER, CLUSTER)],
    28: [(Do.WRITE, TRANSACTIONAL_ID), (Do.READ, GROUP), (Do.READ, TOPIC)],
    29: [(Do.DESCRIBE, CLUSTER)],
    30: [(Do.ALTER, CLUSTER)],
    31: [(Do.ALTER, CLUSTER)],
    32: [(Do.DESCRIBE_CONFIGS, TOPIC)],
    33: [(Do.ALTER_CONFIGS, GROUP)],
    34: [(Do.ALTER, CLUSTER)],
    35: [(Do.DESCRIBE, CLUSTER)],
    37: [(Do.ALTER, TOPIC)],
    42: [(Do.DELETE, GROUP)],
    43: [(Do.ALTER, CLUSTER)],
    44: [(Do.ALTER_CONFIGS, CLUSTER)],
    45: [(Do.ALTER, CLUSTER)],
    46: [(Do.DESCRIBE, CLUSTER)],
    47: [(Do.DELETE, GROUP), (Do.READ, TOPIC)],
    48: [(Do.DESCRIBE_CONFIGS, CLUSTER)],
    49: [(Do.ALTER_CONFIGS, CLUSTER)],
    50: [(Do.DESCRIBE, CLUSTER)],
    51: [(Do.ALTER, CLUSTER)],
    55: [(Do.DESCRIBE, CLUSTER)],
    57: [(Do.ALTER, CLUSTER)],
    61: [(Do.READ, TOPIC)],
    64: [(Do.ALTER, CLUSTER)],
    65: [(Do.DESCRIBE, TRANSACTIONAL_ID)],
    66: [(Do.DESCRIBE, TRANSACTIONAL_ID)],
    68: [(Do.READ, GROUP), (Do.DESCRIBE, TOPIC)],
    69: [(Do.DESCRIBE, GROUP)],
    74: [(Do.DESCRIBE_CONFIGS, CLUSTER)],
    75: [(Do.DESCRIBE, TOPIC)],
    76: [(Do.READ, GROUP), (Do.DESCRIBE, TOPIC)],
    77: [(Do.DESCRIBE, GROUP)],
    78: [(Do.READ, GROUP), (Do.READ, TOPIC)],
    79: [(Do.READ, GROUP)],
    90: [(Do.DESCRIBE, GROUP)],
    91: [(Do.READ, GROUP), (Do.READ, TOPIC)],
    92: [(Do.DELETE, GROUP), (Do.READ, TOPIC)],
}
"""All permissions that each request below needs, according to Kafka's documentation."""
BY_BROKERS = {(24, version): [(Do.CLUSTER_ACTION, CLUSTER)] for version in (4, 5)}
"""Versions used only between brokers."""


def requests(version: int, topic_id: bytes = bytes(16)) -> dict[int, Any]:
    """Return one request of each API, about topic "t", group "g", transactional id "x"."""
    found = _requests(version)
    found[78].topics[0].topic_id = topic_id
    if version >= 13:
        found[0].topic_data[0].topic_id = found[1].topics[0].topic_id = topic_id
    if version >= 6:
        found[28].topics[0].topic_id = topic_id
    if version >= 10:
        found[8].topics[0].topic_id = found[9].groups[0].topics[0].topic_id = topic_id
    return found


def _requests(version: int) -> dict[int, Any]:
    commit = OffsetCommitRequestPartition(0, 1, -1, -1, "")
    return sound_requests(version) | {
        8: OffsetCommitRequest(
            "g", -1, "", None, -1, [OffsetCommitRequestTopic("t", bytes(16), [commit])]
        ),
        9: OffsetFetchRequest("g", [OffsetFetchRequestTopic("t", [0])])
        if version < 8
        else OffsetFetchRequest(
            groups=[
                OffsetFetchRequestGroup("g", topics=[OffsetFetchRequestTopics("t", bytes(16), [0])])
            ]
        ),
        10: FindCoordinatorRequest("g")
        if version < 4
        else FindCoordinatorRequest(coordinator_keys=["g"]),
        11: JoinGroupRequest(
            "g", 10_000, 10_000, protocol_type="c", protocols=[JoinGroupRequestProtocol("r", b"")]
        ),
        12: HeartbeatRequest("g"),
        13: LeaveGroupRequest("g"),
        14: SyncGroupRequest("g", protocol_type="c", protocol_name="r")
        if version >= 5
        else SyncGroupRequest("g"),
        15: DescribeGroupsRequest(["g"]),
        16: ListGroupsRequest(),
        20: DeleteTopicsRequest([DeleteTopicState("t")], [], 5_000)
        if version >= 6
        else DeleteTopicsRequest([], ["t"], 5_000),
        21: DeleteRecordsRequest([DeleteRecordsTopic("t", [DeleteRecordsPartition(0, 1)])], 100),
        22: InitProducerIdRequest(None, 1_000),
        42: DeleteGroupsRequest(["g"]),
        47: OffsetDeleteRequest(
            "g", [OffsetDeleteRequestTopic("t", [OffsetDeleteRequestPartition(0)])]
        ),
        60: DescribeClusterRequest(include_cluster_authorized_operations=True),
        17: SaslHandshakeRequest("PLAIN"),
        24: AddPartitionsToTxnRequest(
            v3_and_below_transactional_id="x",
            v3_and_below_topics=[AddPartitionsToTxnTopic("t", [0])],
        )
        if version < 4
        else AddPartitionsToTxnRequest(
            [AddPartitionsToTxnTransaction("x", 1, 0, False, [AddPartitionsToTxnTopic("t", [0])])]
        ),
        25: AddOffsetsToTxnRequest("x", 1, 0, "g"),
        26: EndTxnRequest("x", 1, 0, True),
        27: WriteTxnMarkersRequest(
            [WritableTxnMarker(1, 0, False, [WritableTxnMarkerTopic("t", [0])], 0)]
        ),
        28: TxnOffsetCommitRequest(
            "x",
            "g",
            1,
            0,
            topics=[
                TxnOffsetCommitRequestTopic(
                    "t", bytes(16), [TxnOffsetCommitRequestPartition(0, 1, -1, "")]
                )
            ],
        ),
        36: SaslAuthenticateRequest(b"token"),
        50: DescribeUserScramCredentialsRequest([UserName("u")]),
        51: AlterUserScramCredentialsRequest([ScramCredentialDeletion("u", 1)]),
        65: DescribeTransactionsRequest(["x"]),
        66: ListTransactionsRequest(),
        68: ConsumerGroupHeartbeatRequest("g", "m", subscribed_topic_names=["t"]),
        69: ConsumerGroupDescribeRequest(["g"]),
        76: share_group_heartbeat.ShareGroupHeartbeatRequest("g", "m", 0, None, ["t"]),
        77: share_group_describe.ShareGroupDescribeRequest(["g"]),
        78: share_fetch.ShareFetchRequest(
            "g",
            "m",
            max_records=1,
            topics=[share_fetch.FetchTopic(partitions=[share_fetch.FetchPartition()])],
        ),
        79: share_acknowledge.ShareAcknowledgeRequest("g", "m", -1),
        90: described_offsets.DescribeShareGroupOffsetsRequest(
            [described_offsets.DescribeShareGroupOffsetsRequestGroup("g")]
        ),
        91: altered_offsets.AlterShareGroupOffsetsRequest(
            "g",
            [
                altered_offsets.AlterShareGroupOffsetsRequestTopic(
                    "t", [altered_offsets.AlterShareGroupOffsetsRequestPartition(0, 1)]
                )
            ],
        ),
        92: deleted_offsets.DeleteShareGroupOffsetsRequest(
            "g", [deleted_offsets.DeleteShareGroupOffsetsRequestTopic("t")]
        ),
    }


def secured(*bindings: AclBinding, **options: Any) -> World:
    """Return a server with an authorizer and topic "t"."""
    world = World(KafkaOptions(authorizer=True, super_users=(Principal("root"),), **options))
    world.topic("t")
    world.host.catalog.features.levels[SHARE_VERSION] = 1
    allow(world, *bindings)
    return world


def allow(world: World, *bindings: AclBinding) -> None:
    if bindings:
        errors = world.host.apply(commands.CreateAcls(list(bindings))).errors
        assert set(errors) == {ErrorCode.NONE}


def bind(
    operation: AclOperation,
    resource: AclResource,
    name: str | None = None,
    *,
    permission: AclPermission = AclPermission.ALLOW,
    who: str = "User:alice",
) -> AclBinding:
    name = NAMES[resource] if name is None else name
    return AclBinding(resource, name, AclPattern.LITERAL, who, "*", operation, permission)


def client(world: World, principal: Principal = ALICE) -> Client:
    found = world.client()
    found.session.info.principal = principal
    return found


def codes(message: Any) -> Iterator[int]:
    """Yield every error code in a response."""
    if isinstance(message, list):
        for part in message:
            yield from codes(part)
    elif is_dataclass(message):
        for field in fields(message):
            value = getattr(message, field.name)
            if field.name.endswith("error_code") and field.name != "acknowledge_error_code":
                yield value
            else:
                yield from codes(value)


NAMED_NEEDS = [(do, kind) for do in Do for kind in (GROUP, TRANSACTIONAL_ID)]
EVERY_VERSION = [
    pytest.param(api, version, id=f"{api.name}-v{version}")
    for api in ROWS
    for version in range(api.min_version, api.max_version + 1)
]


def test_every_api_has_a_row_and_no_row_is_without_its_api() -> None:
    """A new API is not served before its permissions are defined."""
    assert PERMISSIONS.keys() == API.keys()
    assert NEEDED.keys() | OPEN_TO_ALL == API.keys()
    assert requests(0).keys() == API.keys()


@pytest.mark.parametrize(("api", "version"), EVERY_VERSION)
def test_without_permission_every_api_refuses_and_does_nothing(api: Api, version: int) -> None:
    """CVE-2018-17196, Redpanda 2023-50976: no API is exempt, in any version."""
    world = secured()
    (stream,) = world.topic("u")
    before = world.host.catalog.items()
    asker = client(world)
    request = requests(version, id_of(world))[api.key]
    if api.key in OPEN_TO_ALL or api.key in FILTERED:
        outcome = judged(world, asker, api, version, request)
        assert not isinstance(outcome, Refused)
    else:
        answer = asker.ask(api.key, version, request, wait_ms=50)
        found = set(codes(answer)) - {ErrorCode.NONE}
        if (api.key, version) in SAYS_NOTHING:
            assert answer == getattr(api.wire, f"{api.name}Response")()
            return
        assert found, answer
        assert found <= REFUSED, answer
    assert world.host.catalog.items() == before
    assert not stream.batches
    assert world.host.stream(world.host.catalog.topics["t"].partitions[0]).batches == []


NAMED = [
    row
    for row in EVERY_VERSION
    if any(need in NEEDED.get(row.values[0].key, ()) for need in NAMED_NEEDS)
]


@pytest.mark.parametrize(("api", "version"), NAMED)
def test_an_empty_name_needs_permission_too(api: Api, version: int) -> None:
    """Offsets can be committed for group "": no check may treat an empty name as a missing one."""
    world = secured(*(bind(*need) for need in NEEDED[api.key] if need[1] in (TOPIC, CLUSTER)))
    request = unnamed(requests(version, id_of(world))[api.key])
    outcome = judged(world, client(world), api, version, request)
    if api.key in FILTERED or (api.key, version) in BY_BROKERS:
        return
    assert isinstance(outcome, Refused)
    assert set(codes(outcome.answer)) & REFUSED, outcome


def unnamed(request: Any) -> Any:
    """Return the request with "" for group "g" and transactional id "x"."""
    if isinstance(request, list):
        return [unnamed(one) for one in request]
    if is_dataclass(request) and not isinstance(request, type):
        changed = {one.name: unnamed(getattr(request, one.name)) for one in fields(request)}
        return replace(request, **changed)
    return "" if request in ("g", "x") else request


def id_of(world: World) -> bytes:
    topic_id: bytes = world.host.catalog.topics["t"].topic_id
    return topic_id


def judged(world: World, asker: Client, api: Api, version: int, request: Any) -> Any:
    ctx = RequestContext(
        world.context, asker.session.info, api.key, version, 1, "c", world.clock.now_ns(), 0
    )
    authorizer = world.context.authorizer
    assert authorizer is not None
    return check_request(authorizer, api, ctx, request)


@pytest.mark.parametrize(("api", "version"), EVERY_VERSION)
def test_with_what_it_needs_and_nothing_else_every_api_passes(api: Api, version: int) -> None:
    """Kafka requires no more, and one of several required permissions is not enough."""
    needed = BY_BROKERS.get((api.key, version), NEEDED.get(api.key, []))
    if api.key not in READS:
        world = secured(*(bind(*need) for need in needed))
        request = requests(version, id_of(world))[api.key]
        outcome = judged(world, client(world), api, version, request)
        assert not isinstance(outcome, Refused), outcome
        same = request == requests(version, id_of(world))[api.key]
        assert same or api.key == 0, "nothing was taken out of it"
    for missing in needed:
        world = secured(*(bind(*need) for need in needed if need != missing))
        asker, request = client(world), requests(version, id_of(world))[api.key]
        if api.key in FILTERED or (api.key, version) in SAYS_NOTHING:
            continue
        if api.key in READS:
            answer = asker.ask(api.key, version, request)
        else:
            outcome = judged(world, asker, api, version, request)
            blank = getattr(api.wire, f"{api.name}Response")()
            if api.key == 9 and version >= 8:
                blank.groups = [OffsetFetchResponseGroup("g")]
            answer = outcome.answer if isinstance(outcome, Refused) else finished(blank, outcome)
        assert set(codes(answer)) & REFUSED, (missing, answer)


def test_super_user_passes_and_everybody_does_without_an_authorizer() -> None:
    """A super user needs no binding; without an authorizer nothing is checked."""
    for world, who in ((secured(), Principal("root")), (World(), ALICE)):
        if "t" not in world.host.catalog.topics:
            world.topic("t")
        for key, api in API.items():
            if key in NEEDS_COORDINATOR:
                continue
            answer = client(world, who).ask(
                key, api.max_version, requests(api.max_version)[key], 500
            )
            assert not set(codes(answer)) & REFUSED, api.name


# --- hidden topics --------------------------------------------------------------------------------


def named(*names: str, **more: Any) -> MetadataRequest:
    return MetadataRequest([MetadataRequestTopic(name=name) for name in names], **more)


@pytest.mark.parametrize("version", range(14))
def test_topic_one_may_not_describe_is_like_one_that_is_not_there(version: int) -> None:
    """It is omitted from all topics.

    By name it gets error 29 and no id, whether it exists or not.
    """
    world = secured(bind(Do.DESCRIBE, TOPIC, "seen"))
    world.topic("seen")
    everything = MetadataRequest(None if version else [])
    answer = client(world).ask(3, version, everything)
    assert [topic.name for topic in answer.topics] == ["seen"]
    answer = client(world).ask(
        3, version, named("t", "missing", "seen", allow_auto_topic_creation=True)
    )
    told = {topic.name: topic for topic in answer.topics}
    assert told["seen"].error_code == ErrorCode.NONE
    for name in ("t", "missing"):
        assert told[name].error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
        assert not any(told[name].topic_id)
        assert told[name].partitions == []
    assert "missing" not in world.host.catalog.topics
    assert len(answer.brokers) == 3
    answer = client(world).ask(3, version, named("t", "missing"))
    assert {topic.error_code for topic in answer.topics} == {ErrorCode.TOPIC_AUTHORIZATION_FAILED}


def test_topic_asked_for_by_its_id_is_refused_without_its_name() -> None:
    """An id that no topic has is unknown, as for every client."""
    world = secured()
    topic_id = world.host.catalog.topics["t"].topic_id
    answer = client(world).ask(
        3, 12, MetadataRequest([MetadataRequestTopic(topic_id), MetadataRequestTopic(b"i" * 16)])
    )
    by_id = {bytes(topic.topic_id): topic for topic in answer.topics}
    assert by_id[topic_id].error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert by_id[topic_id].name is None
    assert by_id[b"i" * 16].error_code == ErrorCode.UNKNOWN_TOPIC_ID


@pytest.mark.parametrize(
    ("bindings", "error"),
    [
        ([], ErrorCode.TOPIC_AUTHORIZATION_FAILED),
        ([bind(Do.DESCRIBE, TOPIC, "new")], ErrorCode.TOPIC_AUTHORIZATION_FAILED),
        ([bind(Do.DESCRIBE, TOPIC, "new"), bind(Do.CREATE, TOPIC, "new")], ErrorCode.NONE),
        ([bind(Do.DESCRIBE, TOPIC, "new"), bind(Do.CREATE, CLUSTER)], ErrorCode.NONE),
    ],
)
def test_topic_is_created_by_asking_for_it_only_by_who_may(
    bindings: list[AclBinding], error: ErrorCode
) -> None:
    """Permission to describe it is not enough."""
    world = secured(*bindings)
    answer = client(world).ask(3, 9, named("new", allow_auto_topic_creation=True), 2_000)
    assert [topic.error_code for topic in answer.topics] == [error]
    assert ("new" in world.host.catalog.topics) is (error is ErrorCode.NONE)


def test_pages_of_topics_neither_show_nor_name_hidden_ones() -> None:
    """The cursor of the next page does not name one either."""
    world = secured(bind(Do.DESCRIBE, TOPIC, "a"), bind(Do.READ, TOPIC, "c"))
    for name in ("a", "b", "c"):
        world.topic(name, 2)
    asker = client(world)
    request = DescribeTopicPartitionsRequest([], 2)
    answer = asker.ask(75, 0, request)
    assert [topic.name for topic in answer.topics] == ["a"]
    assert answer.next_cursor == Cursor("c", 0)
    assert answer.topics[0].topic_authorized_operations == 1 << Do.DESCRIBE
    answer = asker.ask(75, 0, DescribeTopicPartitionsRequest([], 2, answer.next_cursor))
    assert [topic.name for topic in answer.topics] == ["c"]
    answer = asker.ask(75, 0, DescribeTopicPartitionsRequest([], 9, Cursor("b", 1)))
    assert [len(topic.partitions) for topic in answer.topics] == [2], "not the second page of c"
    answer = asker.ask(
        75, 0, DescribeTopicPartitionsRequest([TopicRequest("b"), TopicRequest("a")], 9)
    )
    assert {t.name: t.error_code for t in answer.topics} == {
        "a": ErrorCode.NONE, "b": ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    }  # fmt: skip
    nobody = client(world, Principal("nobody")).ask(75, 0, request)
    assert (nobody.topics, nobody.next_cursor) == ([], None)


def test_what_one_may_do_is_told_by_principal() -> None:
    """KIP-430: only the principal's own operations, unlike without an authorizer."""
    world = secured(bind(Do.READ, TOPIC), bind(Do.CREATE, CLUSTER), bind(Do.DESCRIBE, CLUSTER))
    request = named("t", include_topic_authorized_operations=True)
    request.include_cluster_authorized_operations = True
    answer = client(world).ask(3, 10, request)
    assert answer.topics[0].topic_authorized_operations == 1 << Do.READ | 1 << Do.DESCRIBE
    assert answer.cluster_authorized_operations == 1 << Do.CREATE | 1 << Do.DESCRIBE
    asked = DescribeClusterRequest(include_cluster_authorized_operations=True)
    assert client(world).ask(60, 1, asked).cluster_authorized_operations == (
        1 << Do.CREATE | 1 << Do.DESCRIBE
    )
    other = client(world, Principal("other")).ask(60, 1, asked)
    assert other.cluster_authorized_operations == 0
    assert len(other.brokers) == 3


# --- parts of a request --------------------------------------------------------------------------


def produce(
    *names: str, acks: int = -1, transactional_id: str | None = None, **fields: Any
) -> ProduceRequest:
    return ProduceRequest(
        transactional_id,
        acks,
        1_000,
        [
            TopicProduceData(
                name, bytes(16), [PartitionProduceData(0, memoryview(batch(**fields)))]
            )
            for name in names
        ],
    )


def test_produce_appends_where_it_may_and_refuses_the_rest() -> None:
    """A topic that does not exist is refused with the same error."""
    world = secured(bind(Do.WRITE, TOPIC))
    (denied,) = world.topic("denied")
    answer = client(world).ask(0, 9, produce("denied", "t", "missing"))
    told = {topic.name: topic.partition_responses[0] for topic in answer.responses}
    assert told["t"].error_code == ErrorCode.NONE
    assert told["t"].base_offset == 0
    for name in ("denied", "missing"):
        assert told[name].error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert not denied.batches


def test_produce_without_an_answer_ends_the_connection_after_what_it_may_do() -> None:
    """acks=0: closing the connection is how the client learns of an error."""
    world = secured(bind(Do.WRITE, TOPIC))
    world.topic("denied")
    asker = client(world)
    asker.request(0, 9, produce("denied", "t", acks=0))
    world.run()
    assert asker.closed
    assert len(world.host.stream(world.host.catalog.topics["t"].partitions[0]).batches) == 1
    asker = client(world)
    asker.request(0, 9, produce("denied", acks=0))
    world.run()
    assert asker.closed


def test_transactional_batch_needs_its_transactional_id_whatever_the_request_says() -> None:
    """CVE-2018-17196: the flag in the batch counts, not only the field of the request."""
    world = secured(bind(Do.WRITE, TOPIC), bind(Do.WRITE, TRANSACTIONAL_ID, "mine"))
    refused = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    flags = {"is_transactional": True, "producer_id": 1, "producer_epoch": 0, "base_sequence": 0}
    for transactional_id, fields_, expected in (
        (None, flags, refused),
        ("", flags, refused),
        ("others", flags, refused),
        ("others", {}, refused),
    ):
        request = produce("t", transactional_id=transactional_id, **fields_)
        answer = client(world).ask(0, 9, request)
        assert set(codes(answer)) - {0} == {expected}, (transactional_id, fields_)
    answer = client(world).ask(0, 9, produce("t", transactional_id="mine", **flags))
    assert refused not in set(codes(answer))


def fetch(*names: str, epoch: int = -1, session: int = 0, wait_ms: int = 10) -> FetchRequest:
    poll = FetchPartition(0, fetch_offset=0, partition_max_bytes=1_000)
    return FetchRequest(
        max_wait_ms=wait_ms,
        min_bytes=1,
        session_id=session,
        session_epoch=epoch,
        topics=[FetchTopic(name, bytes(16), [poll]) for name in names],
    )


def records(answer: Any) -> dict[str, tuple[int, bool]]:
    """Return topic → its error, and whether it has records."""
    return {
        topic.topic: (part.error_code, bool(part.records))
        for topic in answer.responses
        for part in topic.partitions
    }


def test_fetch_answers_what_it_may_and_refuses_the_rest() -> None:
    """The response is immediate: an error does not wait for records."""
    world = secured(bind(Do.READ, TOPIC))
    fill(world.host.stream(world.host.catalog.topics["t"].partitions[0]))
    fill(world.topic("denied")[0])
    answer = client(world).ask(1, 11, fetch("denied", "t", "missing"))
    refused = (ErrorCode.TOPIC_AUTHORIZATION_FAILED, False)
    assert records(answer) == {"t": (0, True), "denied": refused, "missing": refused}


def test_reader_whose_permission_goes_is_out_at_once_in_a_session_and_while_it_waits() -> None:
    """Each attempt checks again; an earlier permission does not count."""
    world = secured(bind(Do.READ, TOPIC))
    (stream,) = [world.host.stream(world.host.catalog.topics["t"].partitions[0])]
    refused = {"t": (ErrorCode.TOPIC_AUTHORIZATION_FAILED, False)}
    in_session, waiting, second = client(world), client(world), client(world)
    opened = in_session.ask(1, 11, fetch("t", epoch=0))
    assert opened.session_id
    for one in (waiting, second):
        one.request(1, 11, fetch("t", wait_ms=5_000))
    world.run()
    assert not waiting.received
    gone = world.host.catalog.acls.matching(commands.AclFilter(1, None, 1, None, None, 1, 1))
    world.host.apply(commands.DeleteAcls([commands.AclFilter(1, None, 1, None, None, 1, 1)]))
    assert len(gone) == 1
    fill(stream)
    world.run()
    for one in (waiting, second):
        assert records(one.answers()[0]) == refused
    again = in_session.ask(1, 11, fetch(epoch=1, session=opened.session_id))
    assert records(again) == refused
    allow(world, *gone)
    again = in_session.ask(1, 11, fetch(epoch=2, session=opened.session_id))
    assert records(again) == {"t": (0, True)}


def test_topics_are_created_and_deleted_where_one_may() -> None:
    """Settings of a new topic are returned only to a client that may describe them."""
    world = secured(bind(Do.CREATE, TOPIC, "mine"), bind(Do.DELETE, TOPIC))
    world.topic("hidden")
    wanted = [CreatableTopic(name, 1, 1) for name in ("mine", "other", "hidden", "hidden")]
    answer = client(world).ask(19, 7, CreateTopicsRequest(wanted, 1_000), 500)
    told = {topic.name: topic for topic in answer.topics}
    assert told["mine"].error_code == ErrorCode.NONE
    assert told["mine"].topic_config_error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert (told["mine"].num_partitions, told["mine"].configs) == (-1, [])
    assert told["other"].error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert told["hidden"].error_code == ErrorCode.INVALID_REQUEST, "as whoever names one twice"
    assert len(answer.topics) == 3
    topics = world.host.catalog.topics
    hidden_id, own_id = topics["hidden"].topic_id, topics["t"].topic_id
    answer = client(world).ask(
        20, 6, DeleteTopicsRequest([
            DeleteTopicState("hidden"), DeleteTopicState("missing"), DeleteTopicState(None, own_id),
        ], [], 1_000),
    )  # fmt: skip
    refused = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    told = {topic.name: topic.error_code for topic in answer.responses}
    assert told == {"hidden": refused, "missing": refused, "t": ErrorCode.NONE}
    answer = client(world).ask(
        20, 6, DeleteTopicsRequest([DeleteTopicState(None, hidden_id)], [], 1_000)
    )
    assert [(one.name, one.error_code) for one in answer.responses] == [(None, refused)]
    allow(world, bind(Do.DESCRIBE, TOPIC, "hidden"), bind(Do.DESCRIBE, TOPIC, "missing"))
    answer = client(world).ask(20, 5, DeleteTopicsRequest([], ["hidden", "missing"], 1_000))
    assert {one.name: one.error_code for one in answer.responses} == {
        "hidden": refused, "missing": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }  # fmt: skip
    assert "hidden" in topics


@pytest.mark.parametrize("version", [3, 6])
def test_topic_is_not_deleted_by_a_request_that_came_before_it(version: int) -> None:
    """The catalog knows it when it decides: no permission was asked for."""
    world = secured(bind(Do.READ, TOPIC, "new"))
    by_name = version < 6
    asked = DeleteTopicsRequest(
        [] if by_name else [DeleteTopicState("new")], ["new"] if by_name else [], 1_000
    )
    one = client(world)
    one.request(20, version, asked)
    world.topic("new")
    world.run(100)
    [answer] = one.answers()
    assert [told.error_code for told in answer.responses] == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert "new" in world.host.catalog.topics


def test_topic_is_not_deleted_by_an_id_that_came_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that is behind does not know the id, and no permission was asked for."""
    world = secured()
    world.topic("new")
    topic_id = world.host.catalog.topics["new"].topic_id
    by_id, by_name = world.host.catalog.topics_by_id, world.host.catalog.topics
    hidden, shown = by_id.pop(topic_id), world.host.apply
    del by_name["new"]

    def apply(command: Any) -> Any:
        by_id[topic_id] = by_name["new"] = hidden
        return shown(command)

    monkeypatch.setattr(world.host, "apply", apply)
    one = client(world)
    asked = DeleteTopicsRequest([DeleteTopicState(None, topic_id)], [], 1_000)
    [told] = one.ask(20, 6, asked).responses
    assert (told.name, told.error_code) == (None, ErrorCode.UNKNOWN_TOPIC_ID)
    by_id[topic_id] = by_name["new"] = hidden
    asked = DeleteTopicsRequest([DeleteTopicState(None, topic_id)], [], 1_000)
    [told] = one.ask(20, 6, asked).responses
    assert (told.name, told.error_code) == (None, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    assert by_name["new"] is hidden


def test_settings_are_described_by_resource() -> None:
    """Settings of servers need permission on the cluster. Each refusal has its own error code."""
    world = secured(bind(Do.DESCRIBE_CONFIGS, TOPIC))
    asked = [
        DescribeConfigsResource(kind, name, None)
        for kind, name in ((2, "t"), (2, "u"), (4, "1"), (16, "m"), (32, "g"))
    ]
    answer = client(world).ask(32, 4, DescribeConfigsRequest(asked))
    assert {(one.resource_type, one.resource_name): one.error_code for one in answer.results} == {
        (2, "t"): ErrorCode.NONE,
        (2, "u"): ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        (4, "1"): ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        (16, "m"): ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        (32, "g"): ErrorCode.GROUP_AUTHORIZATION_FAILED,
    }


@pytest.mark.parametrize("version", [10, 11])
def test_topic_by_id_before_metadata_knew_ids_is_an_invalid_request(version: int) -> None:
    """These versions have no field for a missing name, and the name is not revealed."""
    world = secured()
    asked = MetadataRequest([MetadataRequestTopic(topic_id=id_of(world), name=None)])
    answer = client(world).ask(3, version, asked)
    assert [(topic.name, topic.error_code) for topic in answer.topics] == [
        ("", ErrorCode.INVALID_REQUEST)
    ]


def test_groups_one_may_not_describe_are_not_listed() -> None:
    """A client that may describe the cluster sees all, as in Kafka."""
    for bindings, expected in (
        ([], []),
        ([bind(Do.READ, GROUP, "a")], ["a"]),
        ([bind(Do.DESCRIBE, CLUSTER)], ["a", "b"]),
    ):
        world = secured(*bindings)
        outcome = judged(world, client(world), API[16], 4, ListGroupsRequest())
        answer = ListGroupsResponse(groups=[ListedGroup("a"), ListedGroup("b")])
        assert [group.group_id for group in finished(answer, outcome).groups] == expected


def test_offsets_of_hidden_topics_are_not_told() -> None:
    """Named topics are refused; they are omitted from all topics of a group."""
    world = secured(bind(Do.DESCRIBE, GROUP, "g"), bind(Do.DESCRIBE, TOPIC))
    topics = [OffsetFetchRequestTopics(name, bytes(16), [0]) for name in ("t", "hidden")]
    request = OffsetFetchRequest(
        groups=[
            OffsetFetchRequestGroup("g", topics=topics),
            OffsetFetchRequestGroup("other", topics=topics),
        ]
    )
    outcome = judged(world, client(world), API[9], 8, request)
    assert [(g.group_id, [t.name for t in g.topics or ()]) for g in request.groups] == [
        ("g", ["t"])
    ]
    answer = finished(OffsetFetchResponse(groups=[OffsetFetchResponseGroup("g")]), outcome)
    first, second = answer.groups
    assert [(t.name, t.partitions[0].error_code) for t in first.topics] == [
        ("hidden", ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    ]
    assert (second.group_id, second.error_code) == ("other", ErrorCode.GROUP_AUTHORIZATION_FAILED)
    request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup("g", topics=None)])
    outcome = judged(world, client(world), API[9], 8, request)
    told = [OffsetFetchResponseTopics(name) for name in ("t", "hidden")]
    answer = finished(OffsetFetchResponse(groups=[OffsetFetchResponseGroup("g", told)]), outcome)
    assert [topic.name for topic in answer.groups[0].topics] == ["t"]


@pytest.mark.parametrize("may_at_first", [True, False])
def test_topic_that_is_answered_in_parts_is_judged_once(may_at_first: bool) -> None:
    """With the partitions of some parts only it would look like a smaller topic, or one whose other
    partitions have no offsets."""
    world = secured(bind(Do.DESCRIBE, GROUP, "g"), bind(Do.DESCRIBE, TOPIC, "other"))
    of_topics = commands.AclFilter(2, "t", 1, None, None, 1, 1)

    def let(may: bool) -> None:
        world.host.apply(commands.DeleteAcls([of_topics]))
        allow(world, *([bind(Do.DESCRIBE, TOPIC)] if may else []))

    topic, topic_id = MetadataResponseTopic(name="t"), id_of(world)
    for number, (version, request, told) in enumerate((
        (12, MetadataRequest(None), MetadataResponse(topics=[topic])),
        (7, OffsetFetchRequest("g", None), OffsetFetchResponse(0, [OffsetFetchResponseTopic("t")])),
        (9, *offsets_of_all(OffsetFetchResponseTopics("t"))),
        (10, *offsets_of_all(OffsetFetchResponseTopics(topic_id=topic_id))),
    )):  # fmt: skip
        let(may_at_first)
        outcome = judged(world, client(world), API[9 if number else 3], version, request)
        assert shown(finished(deepcopy(told), outcome)) is may_at_first
        let(not may_at_first)
        assert shown(finished(deepcopy(told), outcome)) is may_at_first


def offsets_of_all(
    topic: OffsetFetchResponseTopics,
) -> tuple[OffsetFetchRequest, OffsetFetchResponse]:
    """Return a request of all offsets of a group, and an answer."""
    request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup("g", topics=None)])
    return request, OffsetFetchResponse(groups=[OffsetFetchResponseGroup("g", [topic])])


def shown(answer: Any) -> bool:
    """Return True if the answer, or its only group, has a topic."""
    groups = getattr(answer, "groups", None) or [answer]
    return bool(groups[0].topics)


def test_producer_id_is_given_to_who_may_write_somewhere() -> None:
    """KIP-679: permission to write to any topic implies idempotent writes."""
    for bindings, error in (
        ([], ErrorCode.CLUSTER_AUTHORIZATION_FAILED),
        ([bind(Do.READ, TOPIC, ANY_NAME)], ErrorCode.CLUSTER_AUTHORIZATION_FAILED),
        ([bind(Do.WRITE, TOPIC, "far")], ErrorCode.NONE),
        ([bind(Do.IDEMPOTENT_WRITE, CLUSTER)], ErrorCode.NONE),
    ):
        answer = client(secured(*bindings)).ask(22, 4, InitProducerIdRequest(None, 1_000))
        assert answer.error_code == error
    answer = client(secured(bind(Do.WRITE, TOPIC))).ask(22, 4, InitProducerIdRequest("x", 1_000))
    assert answer.error_code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


# --- the ACL APIs themselves ---------------------------------------------------------------------


@pytest.mark.parametrize("version", [1, 2, 3])
def test_bindings_are_created_described_and_deleted(version: int) -> None:
    """An invalid binding gets its own error, and the rest is applied."""
    world = secured()
    root = client(world, Principal("root"))
    wanted = [
        AclCreation(2, "t", 3, "User:alice", "*", 3, 3),
        AclCreation(2, "or", 4, "User:alice", "*", 4, 3),
        AclCreation(2, "t", 3, "alice", "*", 3, 3),
        AclCreation(4, "no-cluster", 3, "User:alice", "*", 3, 3),
    ]
    answer = root.ask(30, version, CreateAclsRequest(wanted))
    assert [one.error_code for one in answer.results] == [
        ErrorCode.NONE, ErrorCode.NONE, ErrorCode.INVALID_REQUEST, ErrorCode.INVALID_REQUEST,
    ]  # fmt: skip
    answer = root.ask(29, version, DescribeAclsRequest(2, "orders", 2, None, None, 1, 1))
    assert [(r.resource_name, r.pattern_type, len(r.acls)) for r in answer.resources] == [
        ("or", 4, 1)
    ]
    assert client(world).ask(2, 5, requests(5)[2]).topics[0].partitions[0].error_code == 0
    answer = root.ask(
        31,
        version,
        DeleteAclsRequest(
            [
                DeleteAclsFilter(2, "t", 3, None, None, 1, 1),
                DeleteAclsFilter(0, None, 1, None, None, 1, 1),
            ]
        ),
    )
    first, second = answer.filter_results
    assert [one.principal for one in first.matching_acls] == ["User:alice"]
    assert second.error_code == ErrorCode.INVALID_REQUEST
    refused = client(world).ask(2, 5, requests(5)[2])
    assert set(codes(refused)) == {ErrorCode.TOPIC_AUTHORIZATION_FAILED}


def test_what_is_denied_is_denied_to_an_address() -> None:
    """A denial for a network or a name would block no client, so it is refused.

    An allowance that matches no client is accepted, as in Kafka.
    """
    root = client(secured(), Principal("root"))
    hosts = ["*", "10.0.0.7", "2001:DB8::1", "10.0.0.0/8", "mallory.example.org"]
    wanted = [AclCreation(2, "t", 3, "User:a", host, 3, kind) for kind in (2, 3) for host in hosts]
    answer = root.ask(30, 3, CreateAclsRequest(wanted))
    refused = ErrorCode.INVALID_REQUEST
    assert [one.error_code for one in answer.results] == [0, 0, 0, refused, refused] + [0] * 5


def test_without_an_authorizer_bindings_are_refused_by_name() -> None:
    """SECURITY_DISABLED, as in Kafka: a binding that is never checked would be misleading."""
    world = World()
    for key in (29, 30, 31):
        answer = world.client().ask(key, 3, requests(3)[key])
        assert set(codes(answer)) - {0} == {ErrorCode.SECURITY_DISABLED}
    assert len(world.host.catalog.acls) == 0


def test_filters_that_look_at_everything_come_in_several_commands() -> None:
    """A command is applied in one piece, on every server."""
    world = secured()
    root = client(world, Principal("root"))
    root.ask(30, 3, CreateAclsRequest([AclCreation(2, "t", 3, "User:a", "*", 3, 3)]))
    sizes: list[int] = []
    propose = world.host.propose_catalog

    def counted(command: Any, **more: Any) -> None:
        sizes.append(len(command.filters))
        propose(command, **more)

    world.host.propose_catalog = counted  # type: ignore[method-assign]
    wide = [DeleteAclsFilter(1, None, 1, None, None, 1, 1)] * 9
    narrow = [DeleteAclsFilter(2, "t", 3, None, None, 1, 1)] * 9
    answer = root.ask(31, 3, DeleteAclsRequest([*wide, *narrow]))
    assert sizes == [4, 4, 10]
    assert len(answer.filter_results) == 18
    assert len(answer.filter_results[0].matching_acls) == 1


def test_pipelined_refusals_keep_their_place() -> None:
    """Responses leave in request order, refused or not."""
    world = secured(bind(Do.WRITE, TOPIC))
    asker = client(world)
    for name in ("t", "no", "t", "no"):
        asker.request(0, 9, produce(name))
    world.run()
    errors = [set(codes(answer)) for answer in asker.answers()]
    refused = {ErrorCode.TOPIC_AUTHORIZATION_FAILED}
    assert errors == [{0}, refused, {0}, refused]


def test_failing_handler_does_not_uncover_what_was_refused() -> None:
    """It is answered as without an authorizer, with the refusals beside it."""
    world = secured(bind(Do.DESCRIBE, TOPIC))
    world.topic("hidden")
    api = API[2]
    kept, api.handler = api.handler, _broken
    try:
        request = requests(5)[2]
        request.topics.append(type(request.topics[0])("hidden", list(request.topics[0].partitions)))
        answer = client(world).ask(2, 5, request)
    finally:
        api.handler = kept
    assert {t.name: set(codes(t)) for t in answer.topics} == {
        "t": {ErrorCode.UNKNOWN_SERVER_ERROR},
        "hidden": {ErrorCode.TOPIC_AUTHORIZATION_FAILED},
    }


def _broken(ctx: RequestContext, request: Any) -> Reply:
    raise ValueError("no")


def test_documentation_is_the_table() -> None:
    """CVE-2026-41115: documentation and behaviour are the same."""
    text = (Path(__file__).parents[4] / "docs" / "secure.md").read_text(encoding="utf-8")
    rows = [line for line in text.splitlines() if re.match(r"\| [0-9]", line)]
    assert rows == [f"| {key} | {API[key].name} | {needs} |" for key, needs in described()]
