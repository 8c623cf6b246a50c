"""What commands changed in the groups of one coordinator, part by part: for who shows it as a log.

Nothing is noted until somebody asks for it, and nothing is kept that was taken.

Must not know: what the parts say, who asks.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from typing import NamedTuple


class PartKind(IntEnum):
    """Parts of a group that change by themselves. The numbers are those of the records in which
    Kafka's coordinators keep them."""

    POSITION = 1
    CLASSIC_GROUP = 2
    """A classic group, with all of its members."""
    GROUP = 3
    """A group of KIP-848; the following are its parts."""
    MEMBER = 5
    TARGET_EPOCH = 6
    TARGET = 7
    """Of one member."""
    ASSIGNMENT = 8
    """Likewise."""
    PATTERN = 16


class Part(NamedTuple):
    """One of them, by name."""

    kind: PartKind
    group_id: str
    name: str = ""
    """The topic of a position, the id of a member, a pattern."""
    partition: int = 0


class ChangedParts:
    """See the module."""

    __slots__ = ("_parts",)

    def __init__(self) -> None:
        self._parts: dict[Part, None] | None = None

    def begin(self) -> None:
        """Note what changes from now on."""
        self._parts = {}

    def end(self) -> None:
        """Note nothing any more."""
        self._parts = None

    def take(self) -> list[Part]:
        """What changed since the last call, also what went, in order."""
        if not self._parts:
            return []
        parts, self._parts = self._parts, {}
        return list(parts)

    def position(self, group_id: str, topic: str, partition: int) -> None:
        """A position was committed, or went."""
        if self._parts is not None:
            self._parts[Part(PartKind.POSITION, group_id, topic, partition)] = None

    def classic_group(self, group_id: str) -> None:
        if self._parts is not None:
            self._parts[Part(PartKind.CLASSIC_GROUP, group_id)] = None

    def group(
        self, group_id: str, member_ids: Iterable[str] = (), patterns: Iterable[str] = ()
    ) -> None:
        """A group of KIP-848, these members, and what these patterns match."""
        parts = self._parts
        if parts is None:
            return
        parts[Part(PartKind.GROUP, group_id)] = None
        parts[Part(PartKind.TARGET_EPOCH, group_id)] = None
        for member_id in member_ids:
            for kind in (PartKind.MEMBER, PartKind.TARGET, PartKind.ASSIGNMENT):
                parts[Part(kind, group_id, member_id)] = None
        for pattern in patterns:
            parts[Part(PartKind.PATTERN, group_id, pattern)] = None
