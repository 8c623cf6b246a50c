"""Commands of the replicated state machines, and the envelope in which they are logged.

A command is one entry of the catalog's or a coordinator's log. It carries everything its outcome
depends on: the proposer's time, the identifiers it drew, the limits of its configuration. Two
replicas that apply the same entries therefore have the same bytes.

Rules:

* Tags are numbers and are never reused. Fields are only added at the end, with a default.
* An unknown field is an error: a replica that does not understand a command must stop, or it would
  diverge.

Does not depend on proposers, on the storage of entries, or on Kafka's wire format.
"""

from __future__ import annotations

from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Annotated

import msgspec

from ids import DirectoryId, GroupId, Offset, ReplicaNumber, ServerId
from vdl.state.modern.partitions import Partitions
from vdl.state.table import decoding


class Command(
    msgspec.Struct,
    frozen=True,
    array_like=True,
    forbid_unknown_fields=True,
    gc=False,
    tag_field="kind",
):
    """Base of all commands: a tagged, positional record."""


class Part(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False):
    """Base of the values inside commands."""


# --- catalog: tags 1..99 ---------------------------------------------------------------------


class RegisterServer(Command, frozen=True, tag=1):
    """Register a server and its addresses for clients. Proposed at each start."""

    server_id: ServerId
    directory_id: DirectoryId
    rack: str
    """Servers with the same label share a machine; empty for a server on a machine of its own."""
    listeners: dict[str, tuple[str, int]]
    """Listener name → advertised (host, port)."""
    replica_of_catalog: bool
    """True for a voter of the catalog, False for a learner."""
    features: dict[str, tuple[int, int, int]] = {}
    """Feature → (lowest level, highest level, initial level) of this server's version.

    The initial level is the one a new cluster begins with. Empty for a version without features.
    """


class NewTopic(Part, frozen=True):
    """One topic to create. The proposer draws `topic_id` and has checked `configs`."""

    name: str
    topic_id: bytes
    """16 bytes, drawn by the proposer."""
    partitions: int = -1
    """-1 for the command's default."""
    replication_factor: int = -1
    """-1 for the command's default, or the number of servers if that is less."""
    assignments: list[list[ServerId]] | None = None
    """Server ids by partition, preferred leader first. If given, both counts must be -1."""
    configs: dict[str, str] = {}


class CreateTopics(Command, frozen=True, tag=2):
    """Create topics, each independently: a refused topic does not stop the others."""

    topics: list[NewTopic]
    default_partitions: int = 1
    default_replication_factor: int = 3
    validate_only: bool = False
    alive: list[ServerId] = []
    """Servers the proposer has a link to, preferred for placement. Empty for all."""
    replicas_per_server_max: int = 0
    """Limit on a server's partition replicas, by the proposer's configuration; 0 for none."""
    counts_each_server: bool = False
    """True if the limit applies to each server; False if it applies to the sum over all servers.

    Commands of older versions lack this field and are still applied by the sum.
    """


class DeleteTopics(Command, frozen=True, tag=3):
    """Delete topics by name or by id. Answers for ids follow those for names."""

    names: list[str] = []
    topic_ids: list[bytes] = []


class AllocateProducerIds(Command, frozen=True, tag=4):
    """Allocate the next `count` producer ids of the cluster's range."""

    count: Annotated[int, msgspec.Meta(ge=1)]


class ReplaceServer(Command, frozen=True, tag=5):
    """Replace all replicas of a server that returned with another, empty data directory.

    Its replicas were lost with the old directory. New ones, under new numbers, replace them in the
    new directory.
    """

    server_id: ServerId
    old_directory_id: DirectoryId
    """Directory known to the proposer. A mismatch means that another command came first."""
    directory_id: DirectoryId


class LostReplica(Part, frozen=True):
    """A replica that its own server can no longer trust."""

    group_id: GroupId
    replica_number: ReplicaNumber


class ReplaceReplicas(Command, frozen=True, tag=6):
    """Replace replicas of a server that lost entries they may have acknowledged.

    Each is replaced by a new one, under a new number, in the same directory.
    """

    server_id: ServerId
    directory_id: DirectoryId
    replicas: list[LostReplica]


class ListChange(Part, frozen=True):
    """A change that appends to a list setting, or subtracts from it (KIP-339).

    The list's content is known only where the command is applied, so the proposer includes the
    allowed parts.
    """

    name: str
    parts: list[str]
    subtracts: bool
    default: str
    allowed: list[str]
    is_open: bool = False
    """True if any part is allowed: the proposer has checked the change's. The list may be empty."""
    may_be_empty: bool = False
    """True if a list that is not open may become empty."""


class ConfigChange(Part, frozen=True):
    """Changes to one topic's settings. The proposer has checked the values."""

    topic: str
    """Topic name, or the name of another resource."""
    set: dict[str, str] = {}
    unset: list[str] = []
    """Names that return to their defaults."""
    replaces: bool = False
    """True if every setting that `set` does not name returns to its default."""
    lists: list[ListChange] = []


class AlterTopicConfigs(Command, frozen=True, tag=7):
    """Change settings of topics, each independently."""

    changes: list[ConfigChange]


class NoteTime(Command, frozen=True, tag=8):
    """Record the envelope's time. Proposed at intervals by the catalog's leader."""


class NewPartitions(Part, frozen=True):
    """A topic's new partition count."""

    topic: str
    count: int
    """Total number of partitions afterwards, existing ones included."""
    assignments: list[list[ServerId]] | None = None
    """Server ids of each new partition, preferred leader first; None for automatic placement."""


class CreatePartitions(Command, frozen=True, tag=9):
    """Add partitions to topics, each independently (KIP-195). Existing partitions do not change."""

    topics: list[NewPartitions]
    validate_only: bool
    alive: list[ServerId]
    """As in `CreateTopics`."""
    replicas_per_server_max: int
    """As in `CreateTopics`; applies to each server."""


class FeatureUpdate(Part, frozen=True):
    """New level of one feature."""

    feature: str
    level: int
    """0 means no longer finalised."""
    upgrade_type: int = 1
    """Kafka's number: 1 upgrade, 2 lossless downgrade, 3 any downgrade (KIP-778)."""


class UpdateFeatures(Command, frozen=True, tag=10):
    """Finalise levels of features, all or none (KIP-584)."""

    updates: list[FeatureUpdate]
    validate_only: bool = False


class AlterResourceConfigs(Command, frozen=True, tag=11):
    """Change settings of servers, consumer groups and metrics subscriptions, each independently."""

    changes: list[tuple[int, ConfigChange]]
    """(Kafka's resource type, change)."""


class Reassign(Part, frozen=True):
    """Target replicas of one partition."""

    topic: str
    partition: int
    replicas: list[ServerId] | None
    """Server ids, preferred leader first; None to return to the original ones (KIP-455)."""


class AlterReassignments(Command, frozen=True, tag=14):
    """Begin, change or cancel reassignments, each independently."""

    changes: list[Reassign]
    may_change_count: bool = True
    """True if the number of a partition's replicas may change."""
    replicas_per_server_max: int = 0
    """Limit on a server's partition replicas, by the proposer's configuration; 0 for none."""


class FinishedMove(Part, frozen=True):
    """Confirmation by a group's leader that the members are the target ones.

    A majority of the members knows it.
    """

    group_id: GroupId
    revision: int
    """Revision of the target members: see `vdl/state/reassignment.py`."""


class FinishReassignments(Command, frozen=True, tag=19):
    """Finish reassignments: the replicas that were leaving may be deleted."""

    moves: list[FinishedMove]


class AdmitServer(Command, frozen=True, tag=45):
    """Add a server that waits, in an empty data directory, to be added to the cluster."""

    server_id: ServerId
    directory_id: DirectoryId
    """Data directory in which the server waits."""
    host: str
    port: int
    """Address at which the other servers reach it."""


class DecommissionServer(Command, frozen=True, tag=46):
    """Begin to remove an added server, or take back any that is leaving."""

    server_id: ServerId
    directory_id: DirectoryId
    """As in `RemoveServer`: a late command must not hit a server that was added again."""
    is_leaving: bool = True


class DrainServers(Command, frozen=True, tag=47):
    """Begin the next moves of partitions away from the servers that are leaving."""

    alive: list[ServerId]
    """As in `CreateTopics`."""
    moves_max: int
    """Limit on the number of these moves in progress."""
    replicas_per_server_max: int = 0
    """As in `AlterReassignments`."""


class RemoveServer(Command, frozen=True, tag=48):
    """Remove a leaving server that holds no vote and no replica of a partition any more."""

    server_id: ServerId
    directory_id: DirectoryId
    """Directory known to the proposer. A mismatch means that another command came first."""


class DecommissionVoter(Command, frozen=True, tag=49):
    """Begin to remove a server that the cluster began with.

    A command of its own: a version that cannot move votes stops at it, instead of refusing what
    the others do.
    """

    server_id: ServerId
    directory_id: DirectoryId
    """As in `RemoveServer`."""


class MoveVotes(Command, frozen=True, tag=50):
    """Give the votes of leaving servers in the catalog and the coordinators to others.

    Also those that are on their way to a server that is down.
    """

    alive: list[ServerId]
    """As in `CreateTopics`."""


class ScramUpsert(Part, frozen=True):
    """One user's credential for one mechanism, as stored.

    The password cannot be derived from it.
    """

    user: str
    mechanism: str
    """Kafka's name, such as "SCRAM-SHA-512"."""
    iterations: int
    salt: bytes
    stored_key: bytes
    server_key: bytes


class AlterScramCredentials(Command, frozen=True, tag=20):
    """Change credentials of users, each independently (KIP-554)."""

    deletions: list[tuple[str, str]]
    """(user, mechanism)."""
    upserts: list[ScramUpsert]
    decoy_key: bytes
    """Key drawn by the proposer, used if there is none yet.

    The server derives its answers for unknown users from it.
    """
    only_first: bool = False
    """True if the command changes nothing in a cluster that ever had a credential."""


class AclBinding(Part, frozen=True):
    """Permission or denial for one principal on the resources of a pattern. Kafka's numbers."""

    resource_type: int
    name: str
    """Name of the resource, or its prefix."""
    pattern_type: int
    principal: str
    """"User:alice", or "User:*" for all principals."""
    host: str
    """An address, or "*" for any."""
    operation: int
    permission: int


class AclFilter(Part, frozen=True):
    """Selection of bindings; None and Kafka's ANY match any value of a field."""

    resource_type: int
    name: str | None
    pattern_type: int
    principal: str | None
    host: str | None
    operation: int
    permission: int


class CreateAcls(Command, frozen=True, tag=30):
    """Add bindings, each independently; an existing binding is kept."""

    bindings: list[AclBinding]


class DeleteAcls(Command, frozen=True, tag=31):
    """Remove the bindings that any of the filters selects."""

    filters: list[AclFilter]


class QuotaChange(Part, frozen=True):
    """Quota changes of one entity."""

    entity: list[tuple[str, str | None]]
    """(kind, name); None as name is the default for entities without quotas of their own."""
    set: dict[str, float] = {}
    unset: list[str] = []


class AlterQuotas(Command, frozen=True, tag=35):
    """Change quotas of clients, each entity independently (KIP-546)."""

    changes: list[QuotaChange]


class CreateDelegationToken(Command, frozen=True, tag=40):
    """Create a token; applying it again creates no second one (KIP-48).

    Principals are texts such as "User:alice".
    """

    token_id: str
    owner: str
    requester: str
    renewers: list[str]
    lifetime_ms: int
    """Maximum lifetime of the token."""
    period_ms: int
    """Time until the token must be renewed."""
    verifiers: list[ScramUpsert]
    """Verifiers of the token's password, one for each mechanism."""


class AlterDelegationToken(Command, frozen=True, tag=41):
    """Let a token expire `period_ms` from now; delete it at once if that is negative."""

    token_id: str
    who: str
    """Requesting principal; it must be the token's owner, requester or a renewer."""
    period_ms: int


# --- coordinator: tags 100..199 --------------------------------------------------------------


class Protocol(Part, frozen=True):
    """One assignment strategy a member supports, with its opaque subscription."""

    name: str
    metadata: bytes


class JoinGroup(Command, frozen=True, tag=100):
    """Let a member join the next generation (KIP-62, KIP-345, KIP-394)."""

    group_id: str
    member_id: str
    """Id as the client sent it; empty if it has none yet."""
    new_member_id: str
    """Id drawn by the coordinator, used if the member needs a new one."""
    group_instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: list[Protocol]
    """In order of preference."""
    known_member_id_required: bool
    """JoinGroup v4+: a dynamic member first gets its id and joins again with it (KIP-394)."""
    members_max: int
    hold_first_rebalance: bool
    """True if the first rebalance of an empty group waits for `CompleteJoin` (KIP-134)."""
    may_downgrade: bool = False
    """As in `LeaveConsumerGroup`.

    The member may take the place of the last one that uses the newer protocol.
    """


class SyncGroup(Command, frozen=True, tag=101):
    """Set the assignments of all members, as sent by the leader of a generation."""

    group_id: str
    generation: int
    member_id: str
    group_instance_id: str | None
    protocol_type: str | None
    protocol_name: str | None
    assignments: list[tuple[str, bytes]]
    """(member id, assignment); members left out get an empty one."""


class LeavingMember(Part, frozen=True):
    """A leaving member, by member id, or by instance id alone (an administrator's removal)."""

    member_id: str
    group_instance_id: str | None = None


class LeaveGroup(Command, frozen=True, tag=102):
    """Remove members that leave or are removed (KIP-345)."""

    group_id: str
    members: list[LeavingMember]


class ExpireMembers(Command, frozen=True, tag=103):
    """Remove members whose session ended or that did not sync in time, by the leader's timers."""

    group_id: str
    member_ids: list[str]
    generation: int = -1
    """Applies only while this is the group's generation; -1 for any."""


class CompleteJoin(Command, frozen=True, tag=104):
    """End the join phase of `generation` with the members that have joined.

    Proposed when the rebalance timeout, or the delay before a first rebalance, is over.
    """

    group_id: str
    generation: int
    """Generation that is being left."""


class DeleteGroups(Command, frozen=True, tag=105):
    """Delete empty groups and their offsets."""

    group_ids: list[str]


class OffsetCommit(Part, frozen=True):
    """Committed offset of one partition."""

    topic: str
    topic_id: bytes
    """Id of the topic that the coordinator knew when it proposed; 16 zeros if it knew none."""
    partition: int
    offset: Offset
    leader_epoch: int
    metadata: str
    partition_group: GroupId = GroupId(0)
    """Partition's group id, which is allocated once.

    It distinguishes a deleted topic from one that a lagging catalog does not know yet. 0 for
    offsets committed by a version that did not record it.
    """


class CommitOffsets(Command, frozen=True, tag=106):
    """Commit offsets of a group, all or none."""

    group_id: str
    generation: int
    member_id: str
    group_instance_id: str | None
    offsets: list[OffsetCommit]
    retention_ms: int = -1
    """OffsetCommit v2–4: retention of these offsets; -1 for the group's retention."""
    knows_epochs: bool = True
    """True if the request's version carries member epochs (KIP-848), v9 on."""


class ExpireOffsets(Command, frozen=True, tag=107):
    """Remove expired offsets.

    These are offsets of groups without members for the retention time (KIP-211), and offsets in
    deleted partitions.
    """

    retention_ms: int
    deleted_partitions: list[GroupId] = []
    """Partitions' group ids that the proposer's catalog had allocated and no longer lists."""
    now_ms: int = -1
    """Time to expire by, held by a majority of clocks for `clock.hold`.

    The envelope's time, which only stamps, may be later. -1 in entries older than this field: the
    envelope's time is used.
    """


class DeleteOffsets(Command, frozen=True, tag=108):
    """Delete committed offsets of a group, each independently (KIP-496)."""

    group_id: str
    partitions: list[tuple[str, int]]
    """(topic, partition)."""


class InitTransactions(Command, frozen=True, tag=109):
    """Begin, or begin again, to use a transactional id (InitProducerId)."""

    transactional_id: str
    timeout_ms: int
    """An open transaction is aborted after this time."""
    new_producer_id: int = -1
    """Producer id allocated by the proposer, used if a new one is needed."""
    expected_producer_id: int = -1
    """Producer id that the client has, if it sent one (KIP-360).

    This and the epoch are both set, or neither.
    """
    expected_epoch: int = -1


class AddToTransaction(Command, frozen=True, tag=110):
    """Add participants to a producer's transaction, which begins with the first of them.

    Participants are partitions and coordinators of consumer groups. Any server may send this
    command; the answer's data is the transaction's number (u64).
    """

    transactional_id: str
    producer_id: int
    producer_epoch: int
    participants: list[GroupId]
    """Group ids of the participants."""
    verify_only: bool = False
    """Only check that they take part already (KIP-890); TRANSACTION_ABORTABLE if not."""
    version: int = 1
    """Transaction version that the producer uses: see `vdl/state/transactions.py`."""


class EndTransaction(Command, frozen=True, tag=111):
    """Commit or abort a producer's transaction (EndTxn)."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    commits: bool
    version: int = 1
    new_producer_id: int = -1
    """As in `InitTransactions`."""


class CompleteTransactions(Command, frozen=True, tag=112):
    """Complete transactions whose participants have all acknowledged the outcome."""

    transactions: list[tuple[str, int, int]]
    """(transactional id, producer id, number)."""


class AbortTransactions(Command, frozen=True, tag=113):
    """Abort transactions that exceeded their producers' timeouts, by the leader's timers.

    Proposed while some members do not know `TimeOutTransactions`.
    """

    transactions: list[tuple[str, int, int]]
    """(transactional id, producer id, number)."""


class ExpireTransactionalIds(Command, frozen=True, tag=114):
    """Remove transactional ids that were not used for the retention time."""

    retention_ms: int
    now_ms: int
    """As in `ExpireOffsets`."""
    ids_max: int
    """Maximum number of ids to remove."""


class CommitTransactionOffsets(Command, frozen=True, tag=115):
    """Add offsets of a group that count once the producer's transaction commits, all or none.

    Corresponds to TxnOffsetCommit. The proposer has verified the transaction with its coordinator.
    """

    group_id: str
    generation: int
    member_id: str
    group_instance_id: str | None
    producer_id: int
    producer_epoch: int
    number: int
    """Number of the transaction, as reported by its coordinator."""
    offsets: list[OffsetCommit]
    asked_at: int = -1
    """This log's applied index when that coordinator was queried; -1 if not recorded."""


class EndTransactionOffsets(Command, frozen=True, tag=116):
    """End a transaction's pending offsets in all groups of this coordinator: commit or drop them.

    Sent by the transaction's coordinator until it is answered.
    """

    producer_id: int
    producer_epoch: int
    number: int
    commits: bool


class TimeOutTransactions(Command, frozen=True, tag=117):
    """As `AbortTransactions`, but a producer that names its old epoch continues in the next one.

    KIP-588. Known to peers of protocol version 11.
    """

    transactions: list[tuple[str, int, int]]
    """(transactional id, producer id, number)."""


class ExpireOffsetsOf(Command, frozen=True, tag=118):
    """As `ExpireOffsets`, for some groups: a coordinator with many offsets is scanned in parts.

    Known to peers of protocol version 14.
    """

    group_ids: list[str]
    retention_ms: int
    deleted_partitions: list[GroupId]
    """Committed offsets of `group_ids` in these partitions are removed."""
    now_ms: int
    """Time to expire by."""


class RaisePositionsBound(Command, frozen=True, tag=119):
    """Give committed offsets bounds of their own, which are never lowered.

    Known to peers of protocol version 14.
    """

    bytes_max: int
    """Maximum total size, as counted by `Offsets.bytes`."""
    count_max: int


class ConsumerHeartbeat(Command, frozen=True, tag=120):
    """Let a member of a KIP-848 group join, change its subscription, or move towards its target.

    Heartbeats that change nothing are not logged.
    """

    group_id: str
    member_id: str
    member_epoch: int
    """0 for a joining member. Leaving is another command."""
    instance_id: str | None
    rack_id: str | None
    """None, here and in the fields below, means unchanged."""
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    """-1 means unchanged."""
    topics: list[str] | None
    pattern: str | None
    """Pattern with checked syntax. Empty to remove the pattern."""
    assignor: str | None
    owned: Partitions | None
    """Partitions that the member may read now; None if it did not report them."""
    members_max: int
    upgrade: list[SubscribedTopic] | None = None
    """Topics of the members' subscriptions, if a classic group with members may be upgraded.

    None forbids the upgrade.
    """


class LeaveConsumerGroup(Command, frozen=True, tag=121):
    """Let a member of a KIP-848 group leave."""

    group_id: str
    member_id: str
    instance_id: str | None
    is_static: bool
    """True if the instance will return: its partitions are kept for one session timeout."""
    may_downgrade: bool = False
    """True if the group becomes a classic one when only classic members are left."""


class SubscribedTopic(Part, frozen=True):
    """A topic that targets were computed from, as found in the leader's catalog."""

    name: str
    topic_id: bytes
    partitions: int
    last_group: GroupId
    """Group id of the topic's last partition.

    Ids are allocated in order: a catalog that does not list the topic, and has not allocated this
    id yet, is older than the one the topic was found in.
    """


class ResolvedPattern(Part, frozen=True):
    """A pattern that members subscribe by, and the topics whose names matched it."""

    pattern: str
    topics: list[str]


class AssignTargets(Command, frozen=True, tag=122):
    """Set the target assignments of a group's members.

    They are computed from the group's state at an epoch and from the topics in the proposer's
    catalog.
    """

    group_id: str
    group_epoch: int
    """Applies only while this is the group's epoch."""
    next_epoch: int
    """Group's epoch afterwards: the same one, or the next one if topics changed."""
    topics: list[SubscribedTopic]
    patterns: list[ResolvedPattern]
    targets: list[tuple[str, Partitions]]
    """(member id, target) of each member whose target changes. Every member then has a target."""


class ExpireConsumers(Command, frozen=True, tag=123):
    """Remove members of a KIP-848 group, by the leader's timers.

    Their session ended, or they did not revoke partitions in time.
    """

    group_id: str
    members: list[tuple[str, int]]
    """(member id, required epoch). The member must still be revoking in that epoch; -1 for any."""
    may_downgrade: bool = False


class DowngradeConsumerGroup(Command, frozen=True, tag=124):
    """Turn a KIP-848 group without members of the newer protocol into a classic one.

    Known to peers of protocol version 11. For older peers the commands that remove members do this
    as well (`may_downgrade`), and one generation is skipped.
    """

    group_id: str


# --- coordinator, share groups: tags 130..139 ------------------------------------------------


class ShareTopic(Part, frozen=True):
    """A topic as the coordinator's leader knew it when it proposed."""

    name: str
    topic_id: bytes
    partition_groups: list[GroupId]
    """Group id of each partition, in order.

    Ids are allocated once, so they distinguish a deleted topic from its successor.
    """


class JoinShareGroup(Command, frozen=True, tag=130):
    """Let a member of a share group join, or change what it reported (KIP-932)."""

    group_id: str
    member_id: str
    rack_id: str
    client_id: str
    client_host: str
    topic_names: list[str]
    """Sorted names of the topics it subscribes to."""
    topics: list[ShareTopic]
    """Existing topics that any member then subscribes to, by name."""
    members_max: int


class LeaveShareGroup(Command, frozen=True, tag=131):
    """Remove members of a share group that leave or whose session expired."""

    group_id: str
    member_ids: list[str]
    topics: list[ShareTopic]
    """As in `JoinShareGroup`, for the members that stay."""


class RefreshShareGroup(Command, frozen=True, tag=132):
    """Update the topics of a share group: some were created, deleted or extended."""

    group_id: str
    topics: list[ShareTopic]


class ClaimSharePartition(Command, frozen=True, tag=133):
    """Let the leader of a partition deliver its records to a share group.

    Writes of the previous claimant are refused from then on, and its unacknowledged deliveries are
    available again.
    """

    group_id: str
    topic_id: bytes
    partition: int
    leader_epoch: int
    claim: int
    """Claim number, which grows with each claim of one leader.

    Writes are fenced by (leader epoch, claim).
    """


class ShareWrite(Part, frozen=True):
    """Changes to one share-partition."""

    group_id: str
    topic_id: bytes
    partition: int
    state_epoch: int
    leader_epoch: int
    claim: int
    number: int
    """Number of the write, from 1 after each claim: a repeated write changes nothing."""
    start_offset: int
    """Start offset; all records below it are finished."""
    changes: list[tuple[int, int, int, int]]
    """(first offset, last offset, state, delivery count); later ones override earlier ones."""


class WriteShareState(Command, frozen=True, tag=134):
    """Store delivered, acknowledged, released and archived records, each write independently."""

    writes: list[ShareWrite]


class AlterShareOffsets(Command, frozen=True, tag=135):
    """Set the start offsets of a share group without members, each partition independently."""

    group_id: str
    offsets: list[tuple[bytes, int, GroupId, Offset]]
    """(topic id, partition, the partition's group id, offset)."""
    topics: list[tuple[bytes, list[GroupId]]] = []
    """(topic id, group ids of all its partitions in order) of each named topic.

    Empty in commands of older versions.
    """
    as_kafka: bool = False
    """True if a missing group is created, and an offset below 0 means none.

    In older commands, a missing group is not found, and an offset below 0 means 0.
    """


class DeleteShareOffsets(Command, frozen=True, tag=136):
    """Delete a share group's state of topics, each independently.

    The group must have no members.
    """

    group_id: str
    topic_ids: list[bytes]


if TYPE_CHECKING:
    AnyCommand = Command
else:
    AnyCommand = reduce(or_, Command.__subclasses__())
    """Union of all commands above; the tag selects the type on decoding."""


class Envelope(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A command as logged.

    (`server_id`, `boot`, `seq`) identifies the proposer's pending request. `now_ms` is the
    cluster's time as the proposer knows it; it stamps what the command writes.
    """

    server_id: ServerId
    boot: int
    seq: int
    now_ms: int
    command: AnyCommand


DecodeError = msgspec.DecodeError
"""Raised for a payload that is not a command known to this version."""

_ENCODER = msgspec.msgpack.Encoder(order="deterministic")


def encode(envelope: Envelope) -> bytes:
    """Return the payload of an entry."""
    return _ENCODER.encode(envelope)


decode = decoding(msgspec.msgpack.Decoder(Envelope))
"""Decode the payload of an entry. The result holds no reference into the data.

Raise msgspec.DecodeError if it is not a known command.
"""


def encode_command(command: Command) -> bytes:
    """Encode a command without an envelope, as sent to the leader of another group."""
    return _ENCODER.encode(command)


_COMMAND_DECODER: msgspec.msgpack.Decoder[Command] = msgspec.msgpack.Decoder(AnyCommand)

decode_command = decoding(_COMMAND_DECODER)
"""Decode a command without an envelope. The result holds no reference into the data.

Raise msgspec.DecodeError if it is not a known command.
"""
