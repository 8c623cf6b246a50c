"""Every command of a replicated state machine, and the envelope in which it is logged.

A command is one entry of the catalog's or a coordinator's log. It carries everything its outcome
depends on: the proposer's time, the identifiers it drew, the limits of its configuration. Two
replicas that apply the same entries therefore have the same bytes.

Rules:

* Tags are numbers and are never reused. Fields are only added at the end, with a default.
* An unknown field is an error: a replica that does not understand a command must stop, or it would
  diverge.

Must not know: who proposes, how entries are stored, Kafka's wire format.
"""

from __future__ import annotations

from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Annotated

import msgspec

from ids import DirectoryId, GroupId, Offset, ReplicaNumber, ServerId
from vdl.state.modern.partitions import Partitions
from vdl.state.table import decoded


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
    """A server registers itself and its addresses for clients, at each start."""

    server_id: ServerId
    directory_id: DirectoryId
    rack: str
    """Servers with one label share a machine; empty: alone on its own."""
    listeners: dict[str, tuple[str, int]]
    """Listener name → advertised (host, port)."""
    replica_of_catalog: bool
    """True: voter of the catalog; False: learner."""
    features: dict[str, tuple[int, int, int]] = {}
    """Feature → the lowest and highest level this server's version speaks, and the one that a new
    cluster begins with. Empty: of a version without features."""


class NewTopic(Part, frozen=True):
    """One topic to create. The proposer draws `topic_id` and has checked `configs`."""

    name: str
    topic_id: bytes
    """16 bytes, drawn by the proposer."""
    partitions: int = -1
    """-1: the default of the command."""
    replication_factor: int = -1
    """-1: the default of the command, or the number of servers if that is less."""
    assignments: list[list[ServerId]] | None = None
    """Server ids by partition, preferred leader first; then both counts must be -1."""
    configs: dict[str, str] = {}


class CreateTopics(Command, frozen=True, tag=2):
    """Create topics, each on its own: one that is refused does not stop the others."""

    topics: list[NewTopic]
    default_partitions: int = 1
    default_replication_factor: int = 3
    validate_only: bool = False
    alive: list[ServerId] = []
    """Servers the proposer has a link to: they come first in placements. Empty: all."""
    replicas_per_server_max: int = 0
    """Replicas of partitions that one server may have, as the proposer is configured; 0: any."""
    counts_each_server: bool = False
    """Whether that holds for each server by itself, wherever partitions are placed, and not for
    the sum over them. Commands of an older version, which are applied again, do not say so."""


class DeleteTopics(Command, frozen=True, tag=3):
    """Delete topics by name or by id; what is asked by id is answered after the names."""

    names: list[str] = []
    topic_ids: list[bytes] = []


class AllocateProducerIds(Command, frozen=True, tag=4):
    """Take the next `count` producer ids out of the cluster's range."""

    count: Annotated[int, msgspec.Meta(ge=1)]


class ReplaceServer(Command, frozen=True, tag=5):
    """A server came back with another, empty data directory: its replicas went with the old one.
    All of them are to be replaced by new ones, under new numbers, in the new directory."""

    server_id: ServerId
    old_directory_id: DirectoryId
    """The directory known to the proposer: another one means that another command was first."""
    directory_id: DirectoryId


class LostReplica(Part, frozen=True):
    """A replica that its own server can no longer trust."""

    group_id: GroupId
    replica_number: ReplicaNumber


class ReplaceReplicas(Command, frozen=True, tag=6):
    """A server found that some of its replicas lost what they may have acknowledged: each is to be
    replaced by a new one, under a new number, in the same directory."""

    server_id: ServerId
    directory_id: DirectoryId
    replicas: list[LostReplica]


class ListChange(Part, frozen=True):
    """What is added to a setting that is a list, or taken from it (KIP-339). Which list that is, is
    known only where the command is applied; so the proposer says what may be in it."""

    name: str
    parts: list[str]
    subtracts: bool
    default: str
    allowed: list[str]
    is_open: bool = False
    """Whether the list may have any part, the proposer having checked those of the change, or
    none at all."""
    may_be_empty: bool = False
    """Whether nothing may be left of a list that is not open."""


class ConfigChange(Part, frozen=True):
    """What changes about one topic's settings. The proposer has checked the values."""

    topic: str
    """Or the name of another resource."""
    set: dict[str, str] = {}
    unset: list[str] = []
    """Back to the default."""
    replaces: bool = False
    """Whether everything not named in `set` goes back to its default."""
    lists: list[ListChange] = []


class AlterTopicConfigs(Command, frozen=True, tag=7):
    """Change settings of topics, each on its own."""

    changes: list[ConfigChange]


class NoteTime(Command, frozen=True, tag=8):
    """Remember what time it is: the envelope's. Proposed now and then by the catalog's leader."""


class NewPartitions(Part, frozen=True):
    """What one topic is to grow to."""

    topic: str
    count: int
    """How many partitions it has then, those of before included."""
    assignments: list[list[ServerId]] | None = None
    """Server ids of each new partition, preferred leader first; None: placed as the others."""


class CreatePartitions(Command, frozen=True, tag=9):
    """Add partitions to topics, each on its own (KIP-195). Those of before stay as they are."""

    topics: list[NewPartitions]
    validate_only: bool
    alive: list[ServerId]
    """As in `CreateTopics`."""
    replicas_per_server_max: int
    """As in `CreateTopics`; it holds for each server by itself."""


class FeatureUpdate(Part, frozen=True):
    """The level a feature is to have from now on."""

    feature: str
    level: int
    """0: not finalised any more."""
    upgrade_type: int = 1
    """Kafka's: 1 upgrade, 2 downgrade that loses nothing, 3 any downgrade (KIP-778)."""


class UpdateFeatures(Command, frozen=True, tag=10):
    """Finalise levels of features, all or none (KIP-584)."""

    updates: list[FeatureUpdate]
    validate_only: bool = False


class AlterResourceConfigs(Command, frozen=True, tag=11):
    """Change settings of servers, consumer groups and subscriptions to metrics, each on its own."""

    changes: list[tuple[int, ConfigChange]]
    """(Kafka's number of the resource's type, what changes)."""


class Reassign(Part, frozen=True):
    """Where the replicas of one partition are to be."""

    topic: str
    partition: int
    replicas: list[ServerId] | None
    """Server ids, preferred leader first; None: back to where they were (KIP-455)."""


class AlterReassignments(Command, frozen=True, tag=14):
    """Begin, change or cancel reassignments, each on its own."""

    changes: list[Reassign]
    may_change_count: bool = True
    """Whether a partition may get more or fewer replicas than it has."""
    replicas_per_server_max: int = 0
    """Replicas of partitions that one server may have, as the proposer is configured; 0: any."""


class FinishedMove(Part, frozen=True):
    """A group's leader says that the group's members are what they are to be, and that a majority
    of them knows it."""

    group_id: GroupId
    revision: int
    """Of what they are to be: see `vdl/state/reassignment.py`."""


class FinishReassignments(Command, frozen=True, tag=19):
    """Replicas that were leaving may be deleted."""

    moves: list[FinishedMove]


class ScramUpsert(Part, frozen=True):
    """One user's credential for one mechanism, as it is kept: no password can be made of it."""

    user: str
    mechanism: str
    """Kafka's name, such as "SCRAM-SHA-512"."""
    iterations: int
    salt: bytes
    stored_key: bytes
    server_key: bytes


class AlterScramCredentials(Command, frozen=True, tag=20):
    """Change credentials of users, each on its own (KIP-554)."""

    deletions: list[tuple[str, str]]
    """(user, mechanism)."""
    upserts: list[ScramUpsert]
    decoy_key: bytes
    """Drawn by the proposer, and taken if there is none: what users that do not exist are answered
    by."""
    only_first: bool = False
    """Whether this is for a cluster that never had a credential; otherwise nothing changes."""


class AclBinding(Part, frozen=True):
    """What one principal may do, or may not, with the resources of a pattern. Kafka's numbers."""

    resource_type: int
    name: str
    """Of the resource, or what its name begins with."""
    pattern_type: int
    principal: str
    """"User:alice"; "User:*" for everybody."""
    host: str
    """An address; "*" for any."""
    operation: int
    permission: int


class AclFilter(Part, frozen=True):
    """Which bindings are meant; None and Kafka's ANY leave a field open."""

    resource_type: int
    name: str | None
    pattern_type: int
    principal: str | None
    host: str | None
    operation: int
    permission: int


class CreateAcls(Command, frozen=True, tag=30):
    """Add bindings, each on its own; one that is there stays."""

    bindings: list[AclBinding]


class DeleteAcls(Command, frozen=True, tag=31):
    """Remove the bindings that any of the filters selects."""

    filters: list[AclFilter]


class QuotaChange(Part, frozen=True):
    """What changes about the quotas of one entity."""

    entity: list[tuple[str, str | None]]
    """(kind, name); a name of None stands for all that have none of their own."""
    set: dict[str, float] = {}
    unset: list[str] = []


class AlterQuotas(Command, frozen=True, tag=35):
    """Change quotas of clients, each entity on its own (KIP-546)."""

    changes: list[QuotaChange]


class CreateDelegationToken(Command, frozen=True, tag=40):
    """Make a token, once, however often it is applied (KIP-48). Principals are texts such as
    "User:alice"."""

    token_id: str
    owner: str
    requester: str
    renewers: list[str]
    lifetime_ms: int
    """Until it ends for good."""
    period_ms: int
    """Until it has to be renewed."""
    verifiers: list[ScramUpsert]
    """Of its password, for each mechanism."""


class AlterDelegationToken(Command, frozen=True, tag=41):
    """Let a token end after so long from now; at once, for good, if that is negative."""

    token_id: str
    who: str
    """Who asks: it must be one of those whose token it is."""
    period_ms: int


# --- coordinator: tags 100..199 --------------------------------------------------------------


class Protocol(Part, frozen=True):
    """One assignment strategy a member supports, with its opaque subscription."""

    name: str
    metadata: bytes


class JoinGroup(Command, frozen=True, tag=100):
    """A member asks to be part of the next generation (KIP-62, KIP-345, KIP-394)."""

    group_id: str
    member_id: str
    """As the client sent it; empty for one that has none yet."""
    new_member_id: str
    """Drawn by the coordinator, used if one has to be given out."""
    group_instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: list[Protocol]
    """In order of preference."""
    known_member_id_required: bool
    """JoinGroup v4+: a dynamic member first gets its id and asks again with it (KIP-394)."""
    members_max: int
    hold_first_rebalance: bool
    """The first rebalance of an empty group waits for `CompleteJoin` (KIP-134)."""
    may_downgrade: bool = False
    """As in `LeaveConsumerGroup`: the member may take the place of the last one that speaks the
    newer protocol."""


class SyncGroup(Command, frozen=True, tag=101):
    """The leader of a generation hands in everybody's assignment."""

    group_id: str
    generation: int
    member_id: str
    group_instance_id: str | None
    protocol_type: str | None
    protocol_name: str | None
    assignments: list[tuple[str, bytes]]
    """(member id, assignment); members left out get an empty one."""


class LeavingMember(Part, frozen=True):
    """Who leaves: by member id, or by instance id alone (an administrator's removal)."""

    member_id: str
    group_instance_id: str | None = None


class LeaveGroup(Command, frozen=True, tag=102):
    """Members go, or are removed (KIP-345)."""

    group_id: str
    members: list[LeavingMember]


class ExpireMembers(Command, frozen=True, tag=103):
    """Members whose session ended or that did not sync in time, by the leader's timers."""

    group_id: str
    member_ids: list[str]
    generation: int = -1
    """Only while this is the group's generation; -1: whatever it is."""


class CompleteJoin(Command, frozen=True, tag=104):
    """The rebalance timeout (or the delay before a first rebalance) of `generation` is over:
    go on with whoever has joined."""

    group_id: str
    generation: int
    """The generation that is being left."""


class DeleteGroups(Command, frozen=True, tag=105):
    """Delete empty groups and their offsets."""

    group_ids: list[str]


class OffsetCommit(Part, frozen=True):
    """A position in one partition of one topic."""

    topic: str
    topic_id: bytes
    """Of the topic the coordinator knew when it proposed; 16 zeros if it knew none."""
    partition: int
    offset: Offset
    leader_epoch: int
    metadata: str
    partition_group: GroupId = GroupId(0)
    """The partition's group id, given out once: it tells a deleted topic from one that a catalog
    which lags has not heard of. 0: committed by a version that did not say."""


class CommitOffsets(Command, frozen=True, tag=106):
    """Committed offsets of a group, all or none."""

    group_id: str
    generation: int
    member_id: str
    group_instance_id: str | None
    offsets: list[OffsetCommit]
    retention_ms: int = -1
    """OffsetCommit v2–4: how long to keep them; -1: the group's retention."""
    knows_epochs: bool = True
    """Whether the request is of a version that says member epochs (KIP-848), v9 on."""


class ExpireOffsets(Command, frozen=True, tag=107):
    """Remove expired offsets: of groups without members for the retention time (KIP-211), and those
    in deleted partitions."""

    retention_ms: int
    deleted_partitions: list[GroupId] = []
    """Group ids of partitions that the proposer's catalog had given out and no longer lists."""
    now_ms: int = -1
    """The time to expire by, which clocks have stood by for long: the envelope's, which stamps, may
    be later. -1: the envelope's, in entries of before there was this field."""


class DeleteOffsets(Command, frozen=True, tag=108):
    """Forget a group's positions, each on its own (KIP-496)."""

    group_id: str
    partitions: list[tuple[str, int]]
    """(topic, partition)."""


class InitTransactions(Command, frozen=True, tag=109):
    """A producer begins, or begins anew, to use a transactional id (InitProducerId)."""

    transactional_id: str
    timeout_ms: int
    """After which an open transaction is aborted."""
    new_producer_id: int = -1
    """Allocated by the proposer, used if one has to be given out."""
    expected_producer_id: int = -1
    """What the producer has, if it says so (KIP-360); both or none."""
    expected_epoch: int = -1


class AddToTransaction(Command, frozen=True, tag=110):
    """Partitions and coordinators of consumer groups take part in a producer's transaction, which
    begins with the first. Any server may send it; the answer's data is the transaction's number
    (u64)."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    participants: list[GroupId]
    """Raft groups."""
    verify_only: bool = False
    """Only whether they take part already (KIP-890): TRANSACTION_ABORTABLE if not."""
    version: int = 1
    """Of the protocol, as the producer speaks it: see `vdl/state/transactions.py`."""


class EndTransaction(Command, frozen=True, tag=111):
    """A producer commits or aborts (EndTxn)."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    commits: bool
    version: int = 1
    new_producer_id: int = -1
    """As in `InitTransactions`."""


class CompleteTransactions(Command, frozen=True, tag=112):
    """All participants of these transactions have acknowledged how they ended."""

    transactions: list[tuple[str, int, int]]
    """(transactional id, producer id, number)."""


class AbortTransactions(Command, frozen=True, tag=113):
    """These transactions were open for longer than their producers said, by the leader's timers.
    Proposed while members do not know `TimeOutTransactions`."""

    transactions: list[tuple[str, int, int]]
    """(transactional id, producer id, number)."""


class ExpireTransactionalIds(Command, frozen=True, tag=114):
    """Forget transactional ids that were not used for the retention time."""

    retention_ms: int
    now_ms: int
    """As in `ExpireOffsets`."""
    ids_max: int
    """How many at most."""


class CommitTransactionOffsets(Command, frozen=True, tag=115):
    """Positions of a group that are to stand once the producer's transaction commits, all or none
    (TxnOffsetCommit). The proposer has asked the transaction's coordinator."""

    group_id: str
    generation: int
    member_id: str
    group_instance_id: str | None
    producer_id: int
    producer_epoch: int
    number: int
    """Of the transaction, as its coordinator said."""
    offsets: list[OffsetCommit]
    asked_at: int = -1
    """The entry of this log that was applied last when that coordinator was asked; -1: not said."""


class EndTransactionOffsets(Command, frozen=True, tag=116):
    """A transaction ended: what it committed in any of this coordinator's groups stands, or is
    gone. Sent by the transaction's coordinator until it is answered."""

    producer_id: int
    producer_epoch: int
    number: int
    commits: bool


class TimeOutTransactions(Command, frozen=True, tag=117):
    """As `AbortTransactions`; a producer that names the epoch it had goes on in the next one
    (KIP-588). Peers of protocol version 11 know it."""

    transactions: list[tuple[str, int, int]]
    """(transactional id, producer id, number)."""


class ExpireOffsetsOf(Command, frozen=True, tag=118):
    """What `ExpireOffsets` does, of some groups: a coordinator with many positions is looked
    through in parts. Peers of protocol version 14 know it."""

    group_ids: list[str]
    retention_ms: int
    deleted_partitions: list[GroupId]
    """Positions of these groups in them go."""
    now_ms: int
    """The time to expire by."""


class RaisePositionsBound(Command, frozen=True, tag=119):
    """From now on positions have bounds of their own. A bound is never lowered. Peers of protocol
    version 14 know it."""

    bytes_max: int
    """What they may take in all, as `Offsets.bytes` counts."""
    count_max: int


class ConsumerHeartbeat(Command, frozen=True, tag=120):
    """A member of a KIP-848 group joins, changes what it subscribes to, or takes a step towards its
    target. Heartbeats that change nothing are no commands."""

    group_id: str
    member_id: str
    member_epoch: int
    """0: it joins. What it leaves with is another command."""
    instance_id: str | None
    rack_id: str | None
    """None here and in what follows: as before."""
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    """-1: as before."""
    topics: list[str] | None
    pattern: str | None
    """Its syntax was checked. Empty: none any more."""
    assignor: str | None
    owned: Partitions | None
    """What it may read now; None: it did not say."""
    members_max: int
    upgrade: list[SubscribedTopic] | None = None
    """If the group is a classic one with members, it becomes one of the newer protocol: what its
    members' topics are. None: it must not."""


class LeaveConsumerGroup(Command, frozen=True, tag=121):
    """A member of a KIP-848 group goes."""

    group_id: str
    member_id: str
    instance_id: str | None
    is_static: bool
    """It will be back as the same instance: its partitions wait for a session."""
    may_downgrade: bool = False
    """If nobody but members of the classic protocol is left, it becomes a classic group."""


class SubscribedTopic(Part, frozen=True):
    """A topic that targets were computed from: the coordinator's leader found it in its catalog."""

    name: str
    topic_id: bytes
    partitions: int
    last_group: GroupId
    """The group id of its last partition. Ids are given out in order: a catalog that does not list
    the topic, and has not given out so many, lags behind the one this was found in."""


class ResolvedPattern(Part, frozen=True):
    """A pattern that members subscribe by, and the topics whose names matched it."""

    pattern: str
    topics: list[str]


class AssignTargets(Command, frozen=True, tag=122):
    """What the members of a group are to read, computed from the group's state at an epoch and from
    what the proposer's catalog says of the topics."""

    group_id: str
    group_epoch: int
    """Only while this is the group's epoch."""
    next_epoch: int
    """The group's epoch from then on: the same, or the next if topics changed."""
    topics: list[SubscribedTopic]
    patterns: list[ResolvedPattern]
    targets: list[tuple[str, Partitions]]
    """(member id, its target) of members whose target changes. Every member has one then."""


class ExpireConsumers(Command, frozen=True, tag=123):
    """Members of a KIP-848 group whose session ended, or that did not give up what they were told
    to in time, by the leader's timers."""

    group_id: str
    members: list[tuple[str, int]]
    """(member id, the epoch it must be in and not have revoked all; -1: any)."""
    may_downgrade: bool = False


class DowngradeConsumerGroup(Command, frozen=True, tag=124):
    """No member of a KIP-848 group speaks the newer protocol any more: it becomes a classic one.
    Peers of protocol version 11 know it. Before that the commands that remove members do it, too
    (`may_downgrade`), and a generation is skipped."""

    group_id: str


# --- coordinator, share groups: tags 130..139 ------------------------------------------------


class ShareTopic(Part, frozen=True):
    """A topic as the coordinator's leader knew it when it proposed."""

    name: str
    topic_id: bytes
    partition_groups: list[GroupId]
    """The group id of each partition, in order: given out once, so it tells a deleted topic from
    its successor."""


class JoinShareGroup(Command, frozen=True, tag=130):
    """A member of a share group joins, or says something new of itself (KIP-932)."""

    group_id: str
    member_id: str
    rack_id: str
    client_id: str
    client_host: str
    topic_names: list[str]
    """What it subscribes to, sorted."""
    topics: list[ShareTopic]
    """Of what all members then subscribe to, those that exist, by name."""
    members_max: int


class LeaveShareGroup(Command, frozen=True, tag=131):
    """Members of a share group leave, or were silent for too long."""

    group_id: str
    member_ids: list[str]
    topics: list[ShareTopic]
    """As in `JoinShareGroup`, for the members that stay."""


class RefreshShareGroup(Command, frozen=True, tag=132):
    """Topics that a share group subscribes to have come, gone or grown."""

    group_id: str
    topics: list[ShareTopic]


class ClaimSharePartition(Command, frozen=True, tag=133):
    """The leader of a partition wants to deliver its records to a share group. Whoever claimed it
    before writes no more; what it had given out is to be given out again."""

    group_id: str
    topic_id: bytes
    partition: int
    leader_epoch: int
    claim: int
    """Grows with each claim of one leader. (leader epoch, claim) is what writes are fenced by."""


class ShareWrite(Part, frozen=True):
    """What changed of one share-partition."""

    group_id: str
    topic_id: bytes
    partition: int
    state_epoch: int
    leader_epoch: int
    claim: int
    number: int
    """Of the write, from 1 after each claim: a write that comes again changes nothing."""
    start_offset: int
    """All records below are done with."""
    changes: list[tuple[int, int, int, int]]
    """(first offset, last offset, state, delivery count), the later one counts."""


class WriteShareState(Command, frozen=True, tag=134):
    """Records were given out, acknowledged, given back or given up. Each write on its own."""

    writes: list[ShareWrite]


class AlterShareOffsets(Command, frozen=True, tag=135):
    """Set where a share group without members goes on, each partition on its own."""

    group_id: str
    offsets: list[tuple[bytes, int, GroupId, Offset]]
    """(topic id, partition, the partition's group id, offset)."""
    topics: list[tuple[bytes, list[GroupId]]] = []
    """(topic id, group ids of all its partitions, in their order) of those named, as they are now.
    Commands of an older version do not say so."""
    as_kafka: bool = False
    """The group is made if there is none, and an offset below 0 is none. Before, such a group was
    not found, and such an offset 0."""


class DeleteShareOffsets(Command, frozen=True, tag=136):
    """Forget what a share group without members was given of topics, each on its own."""

    group_id: str
    topic_ids: list[bytes]


if TYPE_CHECKING:
    AnyCommand = Command
else:
    AnyCommand = reduce(or_, Command.__subclasses__())
    """Every command above: what an envelope is decoded to goes by its tag."""


class Envelope(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A command as it stands in the log.

    (`server_id`, `boot`, `seq`) names the proposer's waiter; `now_ms` is the cluster's time as the
    proposer knows it, to stamp what the command writes.
    """

    server_id: ServerId
    boot: int
    seq: int
    now_ms: int
    command: AnyCommand


DecodeError = msgspec.DecodeError
"""A payload that is no command this version knows."""

_ENCODER = msgspec.msgpack.Encoder(order="deterministic")
_DECODER = msgspec.msgpack.Decoder(Envelope)
_COMMAND_DECODER: msgspec.msgpack.Decoder[Command] = msgspec.msgpack.Decoder(AnyCommand)


def encode(envelope: Envelope) -> bytes:
    """The payload of an entry."""
    return _ENCODER.encode(envelope)


def decode(data: bytes | bytearray | memoryview) -> Envelope:
    """Nothing in the result points into `data`. Raises msgspec.DecodeError."""
    return decoded(_DECODER, data)


def encode_command(command: Command) -> bytes:
    """A command without an envelope, as it travels to the leader of another group."""
    return _ENCODER.encode(command)


def decode_command(data: bytes | bytearray | memoryview) -> Command:
    """Nothing in the result points into `data`. Raises msgspec.DecodeError."""
    return decoded(_COMMAND_DECODER, data)
