"""The kinds of groups a coordinator has: one group id belongs to one kind at a time.

Groups of the classic protocol are one kind, those of KIP-848 another. All share the coordinator's
log, because a member of the group's present epoch, and nobody else, may commit an offset. Each kind
is a table of its own; what the coordinator asks of all of them is named here.

Must not know: what any kind's groups do.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from vdl.errors import ErrorCode
from vdl.state.table import ALL

COORDINATOR_IS_FULL = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
"""The answer to what a coordinator has no room for. Kafka has no such bound, so no code of its own
fits. This one has clients wait and ask the same server again, where they join, are heard of or
commit, also in transactions. INVALID_COMMIT_OFFSET_SIZE and GROUP_MAX_SIZE_REACHED are final to
them, and COORDINATOR_NOT_AVAILABLE has them look for another coordinator each time. The answer
to a command is no part of the state: servers of other versions may give another one."""

SYNC_IS_FULL = ErrorCode.COORDINATOR_NOT_AVAILABLE
"""The same for SyncGroup, where the Java client takes the other code as final."""


class GroupKind(StrEnum):
    """Kafka's names of the types of groups (KIP-848, KIP-932)."""

    CLASSIC = "classic"
    CONSUMER = "consumer"
    SHARE = "share"


@dataclass(slots=True)
class GroupTouched:
    """A group of another kind than the classic one changed: the coordinator's leader looks at it
    anew. Also when it is gone."""

    group_id: str
    kind: GroupKind
    member_ids: list[str] = field(default_factory=list)
    """Members that came, changed or went."""


class GroupTable(Protocol):
    """All groups of one kind, but for the classic one, which existed before there were kinds."""

    bytes_max: int
    """How much all groups of this kind may take now; set by the coordinator before each command."""

    def __contains__(self, group_id: str) -> bool: ...

    def __len__(self) -> int:
        """How many groups there are, and members in them."""

    def ids(self) -> Iterable[str]:
        """The groups, in order."""

    @property
    def bytes_held(self) -> int:
        """What all groups take in a snapshot, about."""

    def is_empty(self, group_id: str) -> bool:
        """Whether a group that exists has no members."""

    def subscribes(self, group_id: str, topic: str) -> bool:
        """Whether a member of the group subscribes to the topic."""

    def drop(self, group_id: str) -> None:
        """Forget a group that has no members."""

    def take_dirty(self, limit: int = ALL) -> list[tuple[bytes, bytes | None]]: ...
    def items(self) -> list[tuple[bytes, bytes]]: ...

    def scan(self) -> Iterator[tuple[bytes, bytes]]:
        """See `vdl.state.table.Scan`."""

    def load(self, values: list[bytes]) -> None:
        """Replace everything."""
