"""The values of the consensus core: entries, states, configurations, snapshots, storage.

Everything here is data that crosses the core's border: what goes in and out of `RawNode`, what a
storage returns, what messages carry. Nothing here decides anything.

`Entry` is the one object a record batch lives in from the produce request to the disk and the
peers. It is mutable on purpose: the leader's core stamps term, index and base offset into the
object it was given, and the store later swaps `data` for a view of its cache. Everybody else
treats an entry as read-only.

Ids, terms, indexes and offsets are those of `ids.py`; id 0 (`NONE`) is nobody.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import Final, Protocol, TypeAlias

from ids import NO_INDEX, NO_TERM, Index, NodeId, Offset, Term

Payload: TypeAlias = bytes | bytearray | memoryview

NONE: Final = NodeId(0)
"""Nobody: no leader, no vote."""

LOCAL_APPEND_THREAD: Final = NodeId(-1)
"""Address of the storage writer in messages to and from it (asynchronous storage writes)."""

LOCAL_APPLY_THREAD: Final = NodeId(-2)
"""Address of the state machine's applier in messages to and from it."""

NO_LIMIT: Final = 1 << 62
"""A byte or message limit that never binds."""

ENTRY_OVERHEAD_BYTES: Final = 32
"""What an entry counts towards message and apply limits beyond its payload."""


class EntryKind(IntEnum):
    """What an entry's payload is. The numbers are the format on disk and on the wire."""

    NORMAL = 0
    """A Kafka record batch or a state machine's command; may be empty."""
    CONF_CHANGE = 1
    """One membership change that takes effect by itself (thesis §4.1)."""
    CONF_CHANGE_V2 = 2
    """A set of changes, perhaps through a joint configuration (paper §6); empty: leave it."""
    NOOP = 3
    """Raft's own empty entry, first of each leader's term (§8)."""


CONF_CHANGE_KINDS: Final = (EntryKind.CONF_CHANGE, EntryKind.CONF_CHANGE_V2)
"""Kinds whose payload is a membership change."""


@dataclass(slots=True)
class Entry:
    """One log entry.

    Invariant: `base_offset` is dense: the previous entry's base_offset + records.
    """

    term: Term = NO_TERM
    index: Index = NO_INDEX
    kind: EntryKind = EntryKind.NORMAL
    data: Payload = b""
    base_offset: Offset = Offset(0)
    """Kafka offset of the first record. Assigned by the leader together with the index."""
    records: int = 0
    """How many offsets it consumes: 0 for Raft's own entries and for commands."""
    timestamp: int = -1
    """Largest record timestamp in the batch, ms; -1 if it has none."""


class StateType(IntEnum):
    """A replica's role. An IntEnum because it indexes the table of handlers."""

    FOLLOWER = 0
    PRE_CANDIDATE = 1
    CANDIDATE = 2
    LEADER = 3


@dataclass(frozen=True, slots=True)
class HardState:
    """What must be on disk before messages that depend on it leave (Figure 2, "persistent")."""

    term: Term = NO_TERM
    vote: NodeId = NONE
    commit: Index = NO_INDEX


@dataclass(frozen=True, slots=True)
class SoftState:
    """What a host likes to know but never stores."""

    lead: NodeId
    state: StateType


@dataclass(frozen=True, slots=True)
class ConfState:
    """A group's membership as snapshots and storages hold it; ids ascending."""

    voters: tuple[NodeId, ...] = ()
    voters_outgoing: tuple[NodeId, ...] = ()
    """Voters of the old half of a joint configuration, empty otherwise."""
    learners: tuple[NodeId, ...] = ()
    learners_next: tuple[NodeId, ...] = ()
    """Outgoing voters that become learners when the joint configuration is left."""
    auto_leave: bool = False


@dataclass(slots=True)
class Snapshot:
    """State of the group after `index`: what replaces a log that no longer starts early enough."""

    index: Index = NO_INDEX
    term: Term = NO_TERM
    conf_state: ConfState = ConfState()
    next_offset: Offset = Offset(0)
    """Kafka offset the first entry after the snapshot will have."""
    data: Payload = b""
    """The state machine's own bytes, opaque here."""


class ConfChangeType(IntEnum):
    """What happens to one member. The numbers are the encoding."""

    ADD_NODE = 0
    REMOVE_NODE = 1
    UPDATE_NODE = 2
    """Changes nothing here; carries a context to the host through the log."""
    ADD_LEARNER_NODE = 3


class ConfChangeTransition(IntEnum):
    """How a set of changes takes effect. The numbers are the encoding."""

    AUTO = 0
    """Directly when one voter changes at most, else joint and left automatically."""
    JOINT_IMPLICIT = 1
    """Joint, left automatically when the joint configuration is applied."""
    JOINT_EXPLICIT = 2
    """Joint until somebody proposes to leave it."""


@dataclass(frozen=True, slots=True)
class ConfChangeSingle:
    """One member's change."""

    type: ConfChangeType
    node_id: NodeId


@dataclass(frozen=True, slots=True)
class ConfChange:
    """A set of membership changes proposed as one entry.

    No changes with transition AUTO means: leave the joint configuration.
    """

    changes: tuple[ConfChangeSingle, ...] = ()
    transition: ConfChangeTransition = ConfChangeTransition.AUTO
    context: bytes = b""
    """Opaque to the core; travels with the change."""

    @property
    def leaves_joint(self) -> bool:
        """Whether this is the request to leave a joint configuration."""
        return not self.changes and self.transition is ConfChangeTransition.AUTO

    @property
    def enters_joint(self) -> bool:
        """Whether it goes through a joint configuration (paper §6)."""
        return self.transition is not ConfChangeTransition.AUTO or len(self.changes) > 1

    @property
    def auto_leave(self) -> bool:
        """Whether the joint configuration it enters is left without being asked."""
        return self.transition is not ConfChangeTransition.JOINT_EXPLICIT


class ReadOnlyOption(Enum):
    """How a leader proves that it still leads before it answers a read index request."""

    SAFE = "safe"
    """A heartbeat round answered by a quorum (§8)."""
    LEASE_BASED = "lease-based"
    """Check-quorum's lease: wrong if clocks drift, therefore not used in production."""


@dataclass(frozen=True, slots=True)
class ReadState:
    """Answer to `read_index(context)`: reading after applying `index` is linearizable."""

    index: Index
    context: bytes


@dataclass(frozen=True, slots=True)
class ColdRead:
    """Entries the core needs that storage does not hold in memory.

    The host reads entries from `first` on, at most `bytes_max` (but one at least), and hands
    them to `RawNode.entries_ready(peer, entries)`. `peer` is the replica they are for; the
    node's own id means they are to be applied here.
    """

    peer: NodeId
    first: Index
    end: Index
    """Entries in [first, end) are known to be outside memory."""
    bytes_max: int


class Storage(Protocol):
    """The durable log as the core sees it. No call may block on a disk.

    Holds entries [first_index, last_index] and the term of first_index - 1. What `Ready` gave out
    but the storage has not yet made durable may or may not be visible here; the core looks into
    its own unstable tail first.
    """

    def initial_state(self) -> tuple[HardState, ConfState]:
        """What was last persisted; membership as of the applied index the node starts at."""
        ...

    def first_index(self) -> Index:
        """Index of the first entry still held; last_index + 1 when there is none."""
        ...

    def last_index(self) -> Index:
        """Index of the last entry, or of the snapshot the log starts from."""
        ...

    def term(self, index: Index) -> Term:
        """Term of an entry in [first_index - 1, last_index]. Raises Compacted, Unavailable."""
        ...

    def entries(self, lo: Index, hi: Index, bytes_max: int) -> list[Entry]:
        """Entries [lo, hi) up to `bytes_max` bytes, one at least.

        Raises Compacted, Unavailable, NotInMemory. The list is the caller's, the entries are not.
        """
        ...

    def snapshot(self) -> Snapshot:
        """The newest snapshot. Raises SnapshotTemporarilyUnavailable while one is being made."""
        ...

    def next_offset(self, index: Index) -> Offset:
        """Offset after the entry at `index` (base_offset + records), also for first_index - 1."""
        ...
