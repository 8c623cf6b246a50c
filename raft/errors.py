"""Errors of the consensus core: one small tree, data as fields.

What cannot happen is an assert, not an error here. `InvalidConfig`, `InvalidConfChange` and
`StepLocalMessage` are the caller's mistake; `StepPeerNotFound` and `Contradiction` are a peer's;
the storage errors are how a storage answers; `ProposalDropped` is an ordinary outcome that a host
handles.
"""

from __future__ import annotations

from enum import Enum

from ids import Index


class RaftError(Exception):
    """Any error of the consensus core."""


class InvalidConfig(RaftError):
    """A `Config` field has an impossible value."""

    def __init__(self, field: str, rule: str) -> None:
        super().__init__(f"{field} {rule}")
        self.field = field
        self.rule = rule


class InvalidConfChange(RaftError):
    """A membership change does not fit the configuration it would apply to."""


class MalformedConfChange(RaftError):
    """An entry's payload is not a membership change."""


class StepLocalMessage(RaftError):
    """A message that only the node itself may send came in from outside."""

    def __init__(self) -> None:
        super().__init__("raft: cannot step raft local message")


class StepPeerNotFound(RaftError):
    """A response came from a node that is not in the configuration."""

    def __init__(self, peer: int) -> None:
        super().__init__("raft: cannot step as peer not found")
        self.peer = peer


class Contradiction(RaftError):
    """A peer's message says what cannot be, by itself or beside this log: one of the two replicas
    is faulty, or has lost what it acknowledged. Nothing of the message was taken but its term, if
    that can be. A host drops it and tells people; to repair anything would be to guess."""


class Diverged(Contradiction):
    """A leader has another entry where one is committed here. Both logs had a majority: one of the
    replicas that made it has forgotten what it acknowledged. This replica cannot follow that leader
    in its term."""

    def __init__(self, first: Index, what: str) -> None:
        super().__init__(what)
        self.first = first
        """Index of the first entry that is known to differ."""


class DropReason(Enum):
    """Why a proposal was not appended. In every case nothing of it was."""

    NO_LEADER = "no leader"
    """This replica does not lead and may not forward."""
    TRANSFERRING = "leadership transfer in progress"
    UNCOMMITTED_LIMIT = "uncommitted entries at their limit"
    REMOVED = "leader is no longer a member"


class ProposalDropped(RaftError):
    """A proposal was refused; nothing of it was appended."""

    def __init__(self, reason: DropReason) -> None:
        super().__init__("raft proposal dropped")
        self.reason = reason


class StorageAnswer(RaftError):
    """What a `Storage` raises instead of returning what was asked for."""


class Compacted(StorageAnswer):
    """The index lies before the first entry held."""


class Unavailable(StorageAnswer):
    """The index lies behind the last entry held."""


class SnapshotOutOfDate(StorageAnswer):
    """The snapshot offered is older than the one held."""


class SnapshotTemporarilyUnavailable(StorageAnswer):
    """A snapshot is being made; ask again later."""


class NotInMemory(StorageAnswer):
    """Entries [first, end) exist but only on disk: a host reads them outside the core."""

    def __init__(self, first: Index, end: Index) -> None:
        super().__init__(f"entries [{first}, {end}) are not in memory")
        self.first = first
        self.end = end
