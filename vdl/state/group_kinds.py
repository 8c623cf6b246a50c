"""The kinds of groups in a coordinator: one group id belongs to one kind at a time.

Groups of the classic protocol are one kind, those of KIP-848 another. All share the coordinator's
log, because only a member of the group's current epoch may commit an offset. Each kind has its own
table; `GroupTable` is the interface that the coordinator needs of all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from vdl.errors import ErrorCode
from vdl.state.table import ALL

COORDINATOR_IS_FULL = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
"""Error for commands that a coordinator has no room for.

Kafka has no such bound and therefore no code for it. With this code, clients wait and retry at the
same server for joins, heartbeats and commits, also in transactions. INVALID_COMMIT_OFFSET_SIZE and
GROUP_MAX_SIZE_REACHED are final for them, and COORDINATOR_NOT_AVAILABLE makes them look up the
coordinator each time. Answers to commands are not part of the state: servers of other versions may
return another code.
"""

SYNC_IS_FULL = ErrorCode.COORDINATOR_NOT_AVAILABLE
"""The same for SyncGroup, where the Java client treats the other code as final."""


class GroupKind(StrEnum):
    """Kafka's names of the group types (KIP-848, KIP-932)."""

    CLASSIC = "classic"
    CONSUMER = "consumer"
    SHARE = "share"


@dataclass(slots=True)
class GroupTouched:
    """A group of a kind other than classic was changed or removed.

    The coordinator's leader re-examines it.
    """

    group_id: str
    kind: GroupKind
    member_ids: list[str] = field(default_factory=list)
    """Members that joined, changed or left."""


class GroupTable(Protocol):
    """Table of all groups of one kind. The classic kind is older and does not implement it."""

    bytes_max: int
    """Current size limit of all groups of this kind; set by the coordinator before each command."""

    def __contains__(self, group_id: str) -> bool: ...

    def __len__(self) -> int:
        """Return the number of groups plus that of their members."""

    def ids(self) -> Iterable[str]:
        """Return the group ids, in order."""

    @property
    def bytes_held(self) -> int:
        """Estimated size of all groups in a snapshot."""

    def is_empty(self, group_id: str) -> bool:
        """Return True if an existing group has no members."""

    def subscribes(self, group_id: str, topic: str) -> bool:
        """Return True if a member of the group subscribes to the topic."""

    def drop(self, group_id: str) -> None:
        """Remove a group that has no members."""

    def take_dirty(self, limit: int = ALL) -> list[tuple[bytes, bytes | None]]: ...
    def items(self) -> list[tuple[bytes, bytes]]: ...

    def scan(self) -> Iterator[tuple[bytes, bytes]]:
        """See `vdl.state.table.Scan`."""

    def load(self, values: list[bytes]) -> None:
        """Replace everything."""
