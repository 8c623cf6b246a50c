"""Which messages VDL itself sends and receives, and which are worth inlined code.

A server decodes requests and encodes responses, in every version. The other direction is generated
only where VDL is a client: its commands, its pipeline and the simulator. Clients of tests that
speak more get it from `tests/wire`.
"""

OLDER_VERSIONS: dict[str, tuple[int, ...]] = {
    "AddOffsetsToTxn": (3,),
    "AddPartitionsToTxn": (0, 3),
    "AlterClientQuotas": (),
    "AlterPartitionReassignments": (),
    "AlterUserScramCredentials": (),
    "AlterShareGroupOffsets": (),
    "ApiVersions": (3,),
    "ConsumerGroupDescribe": (),
    "ConsumerGroupHeartbeat": (),
    "CreateAcls": (),
    "CreateDelegationToken": (),
    "CreatePartitions": (),
    "CreateTopics": (),
    "DeleteAcls": (),
    "DeleteTopics": (),
    "DescribeAcls": (),
    "DescribeClientQuotas": (),
    "DescribeCluster": (),
    "DescribeConfigs": (),
    "DescribeDelegationToken": (),
    "DescribeGroups": (),
    "DescribeLogDirs": (2, 4),
    "DescribeShareGroupOffsets": (0,),
    "DescribeUserScramCredentials": (),
    "ElectLeaders": (),
    "EndTxn": (1, 4),
    "ExpireDelegationToken": (),
    "Fetch": (11, 12),
    "FindCoordinator": (2,),
    "Heartbeat": (3,),
    "IncrementalAlterConfigs": (),
    "InitProducerId": (1, 4, 5),
    "JoinGroup": (5,),
    "LeaveGroup": (2,),
    "ListGroups": (),
    "ListOffsets": (5,),
    "ListPartitionReassignments": (),
    "Metadata": (8, 12),
    "OffsetCommit": (7, 9),
    "OffsetFetch": (5, 9),
    "Produce": (8, 9, 11),
    "RenewDelegationToken": (),
    "SaslAuthenticate": (),
    "SaslHandshake": (),
    "ShareAcknowledge": (),
    "ShareFetch": (),
    "ShareGroupDescribe": (),
    "ShareGroupHeartbeat": (),
    "SyncGroup": (3,),
    "TxnOffsetCommit": (4,),
}
"""API that VDL uses as a client → versions it needs beside the newest one: those of the simulator's
old clients, those that name topics instead of giving their ids, and those of Kafka 2.8 to 4.1 that
commands for any cluster need."""

INLINED = frozenset(
    {
        "AddOffsetsToTxn",
        "AddPartitionsToTxn",
        "ConsumerGroupHeartbeat",
        "EndTxn",
        "Fetch",
        "FindCoordinator",
        "Heartbeat",
        "InitProducerId",
        "JoinGroup",
        "ListOffsets",
        "Metadata",
        "OffsetCommit",
        "OffsetFetch",
        "OffsetForLeaderEpoch",
        "Produce",
        "ShareAcknowledge",
        "ShareFetch",
        "SyncGroup",
        "TxnOffsetCommit",
    }
)
"""APIs of the data path: fields of variable size are read and written in line. The others call a
function of `runtime` for each, which takes a fifth of the lines."""


def client_versions(name: str, newest: int) -> frozenset[int]:
    """Return the versions of an API that VDL speaks as a client; none if it never does."""
    older = OLDER_VERSIONS.get(name)
    return frozenset() if older is None else frozenset({*older, newest})
