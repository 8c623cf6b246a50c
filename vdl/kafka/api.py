"""Table of the APIs that this server offers; a row holds all that differs between APIs.

ApiVersions answers from it, the dispatcher routes by it, tests walk it. A version is listed only if
its semantics hold. Handlers and wire modules are named as text: a server loads them all in a thread
some seconds after it began to serve (`load`); a request that comes before loads its own.

A handler is a plain function `(RequestContext, request) -> answer`. The answer is the response
message, or one of `vdl.kafka.answer`. A failure builder is `(request, version, code) -> response`:
the response with `code` at each place where the client looks for an error.

Does not depend on connections, sockets, or the work of handlers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vdl.errors import ErrorCode
    from vdl.kafka.context import RequestContext

Handler = Callable[["RequestContext", Any], Any]
FailureBuilder = Callable[[Any, int, "ErrorCode"], Any]

_WORD_START = re.compile(r"(?<!^)(?=[A-Z])")


class Api:
    """One row. `min_version`..`max_version` is advertised and accepted, inclusive."""

    __slots__ = (
        "_failure",
        "_handler",
        "_module",
        "handler",
        "key",
        "large_answer",
        "max_version",
        "min_version",
        "name",
        "passed_on",
        "pipelined",
        "wire",
    )

    wire: Any
    """The generated module of this API, loaded at first use."""
    handler: Handler
    """The handler, loaded at first use."""

    def __init__(
        self,
        key: int,
        name: str,
        min_version: int,
        max_version: int,
        module: str,
        handler: str | Handler,
        failure: str | FailureBuilder = "",
        *,
        pipelined: bool = False,
        large_answer: bool = False,
        passed_on: str = "",
    ) -> None:
        self.key = key
        self.name = name
        """Kafka's name. In snake case, it is the name of the wire module."""
        self.min_version = min_version
        self.max_version = max_version
        self.pipelined = pipelined
        """True if it may start while earlier pipelined requests of its connection wait for their
        answer: only Produce, which takes its place in the log when it starts. Any other request
        starts when all before it are answered, as in Kafka."""
        self.large_answer = large_answer
        """True if the answer may be far larger than the request: it starts only while there is room
        for one."""
        self.passed_on = passed_on
        """Array of the request whose elements are mostly bytes that are passed on in a command;
        empty if there is none. Such a request takes less decoded memory than others."""
        self._module = module
        """The file in `vdl/kafka/handlers` that has both functions."""
        self._handler = handler
        """The handler, or its name."""
        self._failure = failure
        """Empty: the response has an error code for the request as a whole."""

    def __getattr__(self, name: str) -> Any:
        """Load `wire` or `handler`, which is not set yet; it is a plain attribute from then on."""
        found: Any
        if name == "wire":
            module = _WORD_START.sub("_", self.name).lower()
            self.wire = found = import_module(f"vdl.kafka.wire.{module}")
        elif name == "handler":
            handler = self._handler
            self.handler = found = self._function(handler) if isinstance(handler, str) else handler
        else:
            raise AttributeError(name)
        return found

    def failure(self, request: Any, version: int, code: ErrorCode) -> Any:
        """Return the response with `code` wherever the request could have been answered; or a
        `Reply`, if the protocol has no place for it."""
        build = self._failure
        if isinstance(build, str):
            if not build:
                return getattr(self.wire, f"{self.name}Response")(error_code=code)
            build = self._failure = self._function(build)
        return build(request, version, code)

    def load(self) -> None:
        """Load all modules."""
        _ = self.wire, self.handler

    def _function(self, name: str) -> Callable[..., Any]:
        module = import_module(f"vdl.kafka.handlers.{self._module}")
        function: Callable[..., Any] = getattr(module, name)
        return function


ROWS = (
    Api(0, "Produce", 0, 13, "produce", "handle_produce", "fail_produce", pipelined=True),
    Api(1, "Fetch", 0, 18, "fetch", "handle_fetch", "fail_fetch", large_answer=True),
    Api(2, "ListOffsets", 0, 11, "list_offsets", "handle_list_offsets", "fail_list_offsets"),
    Api(3, "Metadata", 0, 13, "metadata", "handle_metadata", "fail_metadata", large_answer=True),
    Api(8, "OffsetCommit", 0, 10, "offsets", "handle_offset_commit", "fail_offset_commit"),
    Api(
        9,
        "OffsetFetch",
        0,
        10,
        "offsets",
        "handle_offset_fetch",
        "fail_offset_fetch",
        large_answer=True,
    ),
    Api(10, "FindCoordinator", 0, 6, "groups", "handle_find_coordinator", "fail_find_coordinator"),
    Api(
        11,
        "JoinGroup",
        0,
        9,
        "groups",
        "handle_join_group",
        "fail_join_group",
        passed_on="protocols",
    ),
    Api(12, "Heartbeat", 0, 4, "groups", "handle_heartbeat"),
    Api(13, "LeaveGroup", 0, 5, "groups", "handle_leave_group"),
    Api(14, "SyncGroup", 0, 5, "groups", "handle_sync_group", passed_on="assignments"),
    Api(
        15,
        "DescribeGroups",
        0,
        6,
        "groups",
        "handle_describe_groups",
        "fail_describe_groups",
        large_answer=True,
    ),
    Api(16, "ListGroups", 0, 5, "groups", "handle_list_groups", large_answer=True),
    Api(17, "SaslHandshake", 0, 1, "sasl", "handle_sasl_handshake"),
    Api(18, "ApiVersions", 0, 5, "api_versions", "handle_api_versions"),
    Api(19, "CreateTopics", 0, 7, "topics", "handle_create_topics", "fail_create_topics"),
    Api(20, "DeleteTopics", 0, 6, "topics", "handle_delete_topics", "fail_delete_topics"),
    Api(21, "DeleteRecords", 0, 2, "records", "handle_delete_records", "fail_delete_records"),
    Api(
        22,
        "InitProducerId",
        0,
        5,
        "producer_ids",
        "handle_init_producer_id",
        "fail_init_producer_id",
    ),
    Api(
        23,
        "OffsetForLeaderEpoch",
        2,
        4,
        "list_offsets",
        "handle_offset_for_leader_epoch",
        "fail_offset_for_leader_epoch",
    ),
    Api(29, "DescribeAcls", 1, 3, "acls", "handle_describe_acls", large_answer=True),
    Api(30, "CreateAcls", 1, 3, "acls", "handle_create_acls", "fail_create_acls"),
    Api(
        31,
        "DeleteAcls",
        1,
        3,
        "acls",
        "handle_delete_acls",
        "fail_delete_acls",
        large_answer=True,
    ),
    Api(
        24,
        "AddPartitionsToTxn",
        0,
        5,
        "transactions",
        "handle_add_partitions_to_txn",
        "fail_add_partitions_to_txn",
    ),
    Api(25, "AddOffsetsToTxn", 0, 4, "transactions", "handle_add_offsets_to_txn"),
    Api(26, "EndTxn", 0, 5, "transactions", "handle_end_txn"),
    Api(
        27,
        "WriteTxnMarkers",
        1,
        2,
        "transactions",
        "handle_write_txn_markers",
        "fail_write_txn_markers",
    ),
    Api(
        28,
        "TxnOffsetCommit",
        0,
        6,
        "transactions",
        "handle_txn_offset_commit",
        "fail_txn_offset_commit",
    ),
    Api(
        32,
        "DescribeConfigs",
        0,
        4,
        "configs",
        "handle_describe_configs",
        "fail_describe_configs",
        large_answer=True,
    ),
    Api(33, "AlterConfigs", 0, 2, "alter_configs", "handle_alter_configs", "fail_alter_configs"),
    Api(
        34,
        "AlterReplicaLogDirs",
        1,
        2,
        "log_dirs",
        "handle_alter_replica_log_dirs",
        "fail_alter_replica_log_dirs",
    ),
    Api(
        35,
        "DescribeLogDirs",
        1,
        5,
        "log_dirs",
        "handle_describe_log_dirs",
        large_answer=True,
    ),
    Api(36, "SaslAuthenticate", 0, 2, "sasl", "handle_sasl_authenticate"),
    Api(
        37,
        "CreatePartitions",
        0,
        3,
        "topics",
        "handle_create_partitions",
        "fail_create_partitions",
    ),
    Api(38, "CreateDelegationToken", 1, 3, "delegation_tokens", "handle_create_delegation_token"),
    Api(39, "RenewDelegationToken", 1, 2, "delegation_tokens", "handle_renew_delegation_token"),
    Api(40, "ExpireDelegationToken", 1, 2, "delegation_tokens", "handle_expire_delegation_token"),
    Api(
        41,
        "DescribeDelegationToken",
        1,
        3,
        "delegation_tokens",
        "handle_describe_delegation_token",
        large_answer=True,
    ),
    Api(42, "DeleteGroups", 0, 3, "groups", "handle_delete_groups", "fail_delete_groups"),
    Api(
        43,
        "ElectLeaders",
        0,
        2,
        "elections",
        "handle_elect_leaders",
        "fail_elect_leaders",
        large_answer=True,
    ),
    Api(
        44,
        "IncrementalAlterConfigs",
        0,
        1,
        "alter_configs",
        "handle_incremental_alter_configs",
        "fail_incremental_alter_configs",
    ),
    Api(
        45,
        "AlterPartitionReassignments",
        0,
        1,
        "reassignments",
        "handle_alter_partition_reassignments",
    ),
    Api(
        46,
        "ListPartitionReassignments",
        0,
        0,
        "reassignments",
        "handle_list_partition_reassignments",
        large_answer=True,
    ),
    Api(47, "OffsetDelete", 0, 0, "offsets", "handle_offset_delete"),
    Api(
        48,
        "DescribeClientQuotas",
        0,
        1,
        "client_quotas",
        "handle_describe_client_quotas",
        "fail_describe_client_quotas",
        large_answer=True,
    ),
    Api(
        49,
        "AlterClientQuotas",
        0,
        1,
        "client_quotas",
        "handle_alter_client_quotas",
        "fail_alter_client_quotas",
    ),
    Api(
        50,
        "DescribeUserScramCredentials",
        0,
        0,
        "scram_users",
        "handle_describe_user_scram_credentials",
        large_answer=True,
    ),
    Api(
        51,
        "AlterUserScramCredentials",
        0,
        0,
        "scram_users",
        "handle_alter_user_scram_credentials",
        "fail_alter_user_scram_credentials",
    ),
    Api(55, "DescribeQuorum", 0, 2, "cluster", "handle_describe_quorum"),
    Api(57, "UpdateFeatures", 0, 2, "features", "handle_update_features"),
    Api(60, "DescribeCluster", 0, 2, "cluster", "handle_describe_cluster"),
    Api(
        61,
        "DescribeProducers",
        0,
        0,
        "producer_ids",
        "handle_describe_producers",
        "fail_describe_producers",
        large_answer=True,
    ),
    Api(64, "UnregisterBroker", 0, 0, "cluster", "handle_unregister_broker"),
    Api(68, "ConsumerGroupHeartbeat", 0, 1, "consumer_groups", "handle_consumer_group_heartbeat"),
    Api(
        69,
        "ConsumerGroupDescribe",
        0,
        1,
        "consumer_groups",
        "handle_consumer_group_describe",
        "fail_consumer_group_describe",
        large_answer=True,
    ),
    Api(
        65,
        "DescribeTransactions",
        0,
        0,
        "transactions",
        "handle_describe_transactions",
        "fail_describe_transactions",
        large_answer=True,
    ),
    Api(
        66, "ListTransactions", 0, 2, "transactions", "handle_list_transactions", large_answer=True
    ),
    Api(
        71,
        "GetTelemetrySubscriptions",
        0,
        0,
        "telemetry",
        "handle_get_telemetry_subscriptions",
    ),
    Api(72, "PushTelemetry", 0, 0, "telemetry", "handle_push_telemetry"),
    Api(
        74,
        "ListConfigResources",
        0,
        1,
        "configs",
        "handle_list_config_resources",
        large_answer=True,
    ),
    Api(
        75,
        "DescribeTopicPartitions",
        0,
        0,
        "metadata",
        "handle_describe_topic_partitions",
        "fail_describe_topic_partitions",
        large_answer=True,
    ),
    Api(76, "ShareGroupHeartbeat", 1, 1, "share_groups", "handle_share_group_heartbeat"),
    Api(
        77,
        "ShareGroupDescribe",
        1,
        1,
        "share_groups",
        "handle_share_group_describe",
        "fail_share_group_describe",
        large_answer=True,
    ),
    Api(78, "ShareFetch", 1, 2, "share_fetch", "handle_share_fetch", large_answer=True),
    Api(79, "ShareAcknowledge", 1, 2, "share_fetch", "handle_share_acknowledge"),
    Api(
        90,
        "DescribeShareGroupOffsets",
        0,
        1,
        "share_offsets",
        "handle_describe_share_group_offsets",
        "fail_describe_share_group_offsets",
        large_answer=True,
    ),
    Api(91, "AlterShareGroupOffsets", 0, 0, "share_offsets", "handle_alter_share_group_offsets"),
    Api(92, "DeleteShareGroupOffsets", 0, 0, "share_offsets", "handle_delete_share_group_offsets"),
)

API: dict[int, Api] = {row.key: row for row in ROWS}


def load() -> None:
    """Load the modules for requests of every kind, in any thread. Loading those of one kind takes
    tens of milliseconds, which would block the loop if its first request did it."""
    for row in ROWS:
        row.load()


TELEMETRY_KEYS = frozenset({71, 72})


def advertised(*, has_telemetry: bool = True) -> Iterator[tuple[int, int, int]]:
    """Yield (key, lowest, highest version) of every API, by key. The APIs of client metrics are
    included only if metrics are subscribed, as in Kafka: a client that sees them uses them, and
    some log a line for it."""
    for key in sorted(API if has_telemetry else API.keys() - TELEMETRY_KEYS):
        row = API[key]
        yield key, row.min_version, row.max_version
