"""Value types of the consensus core: entries, states, configurations, snapshots, storage.

These types cross the core's boundary: the input and output of `RawNode`, the results of a storage,
the contents of messages. They contain no decisions.

One `Entry` object carries a record batch from the produce request to the disk and the peers. It is
mutable on purpose: the leader's core writes term, index and base offset into the object it was
given, and the store later replaces `data` with a view of its cache. All other code treats an entry
as read-only.

Ids, terms, indexes and offsets are those of `ids.py`. Id 0 (`NONE`) means no replica.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import Final, Protocol, TypeAlias

import msgspec

from ids import NO_INDEX, NO_TERM, Index, NodeId, Offset, Term

Payload: TypeAlias = bytes | bytearray | memoryview

NONE: Final = NodeId(0)
"""No replica: no leader is known, or no vote was cast."""

LOCAL_APPEND_THREAD: Final = NodeId(-1)
"""Address of the storage writer in messages to and from it (asynchronous storage writes)."""

LOCAL_APPLY_THREAD: Final = NodeId(-2)
"""Address of the state machine's applier in messages to and from it."""

NO_LIMIT: Final = 1 << 62
"""A byte or message limit that never binds."""

ENTRY_OVERHEAD_BYTES: Final = 32
"""Bytes added to an entry's payload when it is counted towards message and apply limits."""


class EntryKind(IntEnum):
    """Type of an entry's payload. The numbers are the format on disk and on the wire."""

    NORMAL = 0
    """A Kafka record batch or a state machine's command. May be empty."""
    CONF_CHANGE = 1
    """One membership change that takes effect at once (thesis §4.1)."""
    CONF_CHANGE_V2 = 2
    """A set of changes, possibly through a joint configuration (paper §6). Empty: leave it."""
    NOOP = 3
    """Empty entry that Raft itself appends, the first of each leader's term (§8)."""


CONF_CHANGE_KINDS: Final = (EntryKind.CONF_CHANGE, EntryKind.CONF_CHANGE_V2)
"""Kinds whose payload is a membership change."""


class Entry(msgspec.Struct):
    """One log entry.

    Invariant: `base_offset` is dense: the previous entry's base_offset + records.
    """

    term: Term = NO_TERM
    index: Index = NO_INDEX
    kind: EntryKind = EntryKind.NORMAL
    data: Payload = b""
    base_offset: Offset = Offset(0)
    """Kafka offset of the first record, assigned by the leader together with the index."""
    records: int = 0
    """Number of offsets the entry uses. 0 for Raft's own entries and for commands."""
    timestamp: int = -1
    """Largest record timestamp in the batch, in ms. -1 if there is none."""


class StateType(IntEnum):
    """Role of a replica. An IntEnum because it indexes the table of handlers."""

    FOLLOWER = 0
    PRE_CANDIDATE = 1
    CANDIDATE = 2
    LEADER = 3


class HardState(msgspec.Struct, frozen=True):
    """State that must be durable before messages depending on it leave (Figure 2, "persistent")."""

    term: Term = NO_TERM
    vote: NodeId = NONE
    commit: Index = NO_INDEX


@dataclass(frozen=True, slots=True)
class SoftState:
    """Volatile state reported to the host. It is never stored."""

    lead: NodeId
    state: StateType


@dataclass(frozen=True, slots=True)
class ConfState:
    """A group's membership as stored in snapshots and storages. Ids are in ascending order."""

    voters: tuple[NodeId, ...] = ()
    voters_outgoing: tuple[NodeId, ...] = ()
    """Voters of the old half of a joint configuration, otherwise empty."""
    learners: tuple[NodeId, ...] = ()
    learners_next: tuple[NodeId, ...] = ()
    """Outgoing voters that become learners when the joint configuration is left."""
    auto_leave: bool = False


@dataclass(slots=True)
class Snapshot:
    """State of the group after `index`. Replaces a log that no longer reaches back far enough."""

    index: Index = NO_INDEX
    term: Term = NO_TERM
    conf_state: ConfState = ConfState()
    next_offset: Offset = Offset(0)
    """Kafka offset of the first entry after the snapshot."""
    data: Payload = b""
    """Encoded state of the state machine, opaque to the core."""


class ConfChangeType(IntEnum):
    """Change of one member. The numbers are the encoding."""

    ADD_NODE = 0
    REMOVE_NODE = 1
    UPDATE_NODE = 2
    """No change of membership. Carries a context to the host through the log."""
    ADD_LEARNER_NODE = 3


class ConfChangeTransition(IntEnum):
    """How a set of changes takes effect. The numbers are the encoding."""

    AUTO = 0
    """Direct if at most one voter changes, else joint and left automatically."""
    JOINT_IMPLICIT = 1
    """Joint, left automatically when the joint configuration is applied."""
    JOINT_EXPLICIT = 2
    """Joint until a proposal to leave it is applied."""


@dataclass(frozen=True, slots=True)
class ConfChangeSingle:
    """Change of one member."""

    type: ConfChangeType
    node_id: NodeId


@dataclass(frozen=True, slots=True)
class ConfChange:
    """A set of membership changes proposed as one entry.

    No changes together with transition AUTO is the request to leave the joint configuration.
    """

    changes: tuple[ConfChangeSingle, ...] = ()
    transition: ConfChangeTransition = ConfChangeTransition.AUTO
    context: bytes = b""
    """Bytes that travel with the change, opaque to the core."""

    @property
    def leaves_joint(self) -> bool:
        """True if this is the request to leave a joint configuration."""
        return not self.changes and self.transition is ConfChangeTransition.AUTO

    @property
    def enters_joint(self) -> bool:
        """True if the change goes through a joint configuration (paper §6)."""
        return self.transition is not ConfChangeTransition.AUTO or len(self.changes) > 1

    @property
    def auto_leave(self) -> bool:
        """True if the joint configuration it enters is left automatically."""
        return self.transition is not ConfChangeTransition.JOINT_EXPLICIT


class ReadOnlyOption(Enum):
    """How a leader confirms its leadership before it answers a read index request."""

    SAFE = "safe"
    """A heartbeat round answered by a quorum (§8)."""
    LEASE_BASED = "lease-based"
    """Lease from check-quorum. Wrong if clocks drift, therefore not used in production."""


@dataclass(frozen=True, slots=True)
class ReadState:
    """Answer to `read_index(context)`: a read after applying `index` is linearizable."""

    index: Index
    context: bytes


@dataclass(frozen=True, slots=True)
class ColdRead:
    """Request to the host to read entries that storage does not hold in memory.

    The host reads entries from `first` on, at most `bytes_max` bytes but at least one entry, and
    passes them to `RawNode.entries_ready(peer, entries)`. `peer` is the replica that needs them.
    The node's own id means that they are to be applied here.
    """

    peer: NodeId
    first: Index
    end: Index
    """Entries in [first, end) are known not to be in memory."""
    bytes_max: int


class Storage(Protocol):
    """The durable log as seen by the core. No method may block on a disk.

    Holds entries [first_index, last_index] and the term of first_index - 1. Entries that a `Ready`
    gave out and that are not durable yet may or may not be visible here. The core looks into its
    own unstable tail first.
    """

    def initial_state(self) -> tuple[HardState, ConfState]:
        """Return the persisted hard state, and the membership at the initial applied index."""
        ...

    def first_index(self) -> Index:
        """Return the index of the first entry held; last_index + 1 if there is none."""
        ...

    def last_index(self) -> Index:
        """Return the index of the last entry, or of the snapshot at which the log starts."""
        ...

    def term(self, index: Index) -> Term:
        """Return the term of an entry in [first_index - 1, last_index].

        Raises Compacted, Unavailable.
        """
        ...

    def entries(self, lo: Index, hi: Index, bytes_max: int) -> list[Entry]:
        """Return entries [lo, hi) up to `bytes_max` bytes, at least one.

        The caller owns the list but not the entries. Raises Compacted, Unavailable, NotInMemory.
        """
        ...

    def snapshot(self) -> Snapshot:
        """Return the newest snapshot.

        Raises SnapshotTemporarilyUnavailable while one is being made.
        """
        ...

    def next_offset(self, index: Index) -> Offset:
        """Return the offset after the entry at `index` (base_offset + records).

        Also defined for first_index - 1.
        """
        ...
