"""Errors of the consensus core: one small tree, data as fields.

Conditions that cannot occur are asserts, not errors. `InvalidConfig`, `InvalidConfChange` and
`StepLocalMessage` are mistakes of the caller; `StepPeerNotFound` and `Contradiction` of a peer. The
storage errors are results of a storage. `ProposalDropped` is an ordinary outcome that a host
handles.
"""

from __future__ import annotations

from enum import Enum

from ids import Index


class RaftError(Exception):
    """Base class of all errors of the consensus core."""


class InvalidConfig(RaftError):
    """A `Config` field has an invalid value."""

    def __init__(self, field: str, rule: str) -> None:
        super().__init__(f"{field} {rule}")
        self.field = field
        self.rule = rule


class InvalidConfChange(RaftError):
    """A membership change does not fit the configuration it would apply to."""


class MalformedConfChange(RaftError):
    """An entry's payload is not a membership change."""


class StepLocalMessage(RaftError):
    """A message that only the node itself may send came from outside."""

    def __init__(self) -> None:
        super().__init__("raft: cannot step raft local message")


class StepPeerNotFound(RaftError):
    """A response came from a node that is not in the configuration."""

    def __init__(self, peer: int) -> None:
        super().__init__("raft: cannot step as peer not found")
        self.peer = peer


class Contradiction(RaftError):
    """A peer's message is impossible, in itself or given this log.

    One of the two replicas is faulty, or has lost what it acknowledged. Nothing of the message was
    taken except its term, if that is possible. A host drops the message and raises an alarm; any
    repair would be a guess.
    """


class Diverged(Contradiction):
    """A leader has another entry where one is committed here.

    Both logs had a majority, so one of the replicas that formed it has lost what it acknowledged.
    This replica cannot follow that leader in its term.
    """

    def __init__(self, first: Index, what: str) -> None:
        super().__init__(what)
        self.first = first
        """Index of the first entry that is known to differ."""


class DropReason(Enum):
    """Reason why a proposal was not appended. In every case none of its entries was."""

    NO_LEADER = "no leader"
    """This replica does not lead and may not forward."""
    TRANSFERRING = "leadership transfer in progress"
    UNCOMMITTED_LIMIT = "uncommitted entries at their limit"
    REMOVED = "leader is no longer a member"


class ProposalDropped(RaftError):
    """A proposal was refused; none of its entries was appended."""

    def __init__(self, reason: DropReason) -> None:
        super().__init__("raft proposal dropped")
        self.reason = reason


class StorageAnswer(RaftError):
    """Base class of errors that a `Storage` raises instead of returning a result."""


class Compacted(StorageAnswer):
    """The index is before the first entry held."""


class Unavailable(StorageAnswer):
    """The index is after the last entry held."""


class SnapshotOutOfDate(StorageAnswer):
    """The given snapshot is older than the one held."""


class SnapshotTemporarilyUnavailable(StorageAnswer):
    """A snapshot is being made; try again later."""


class NotInMemory(StorageAnswer):
    """Entries [first, end) exist only on disk. The host reads them outside the core."""

    def __init__(self, first: Index, end: Index) -> None:
        super().__init__(f"entries [{first}, {end}) are not in memory")
        self.first = first
        self.end = end
