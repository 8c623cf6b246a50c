"""Changed parts of one coordinator's groups, recorded for a view that shows the state as a log.

Changes are recorded only between `begin` and `end`, and are dropped once taken.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from typing import NamedTuple


class PartKind(IntEnum):
    """Parts of a group that change independently.

    The numbers are those of the records in which Kafka's coordinators keep them.
    """

    POSITION = 1
    CLASSIC_GROUP = 2
    """A classic group, with all of its members."""
    GROUP = 3
    """A KIP-848 group; the kinds below are its parts."""
    MEMBER = 5
    TARGET_EPOCH = 6
    TARGET = 7
    """Target of one member."""
    ASSIGNMENT = 8
    """Assignment of one member."""
    PATTERN = 16


class Part(NamedTuple):
    """One part, by kind and name."""

    kind: PartKind
    group_id: str
    name: str = ""
    """Topic of an offset, id of a member, or a pattern."""
    partition: int = 0


class ChangedParts:
    """Recorder of changed parts; see the module."""

    __slots__ = ("_parts",)

    def __init__(self) -> None:
        self._parts: dict[Part, None] | None = None

    def begin(self) -> None:
        """Start recording changes."""
        self._parts = {}

    def end(self) -> None:
        """Stop recording changes."""
        self._parts = None

    def take(self) -> list[Part]:
        """Return the parts changed or removed since the last call, in order."""
        if not self._parts:
            return []
        parts, self._parts = self._parts, {}
        return list(parts)

    def position(self, group_id: str, topic: str, partition: int) -> None:
        """Record that an offset was committed or removed."""
        if self._parts is not None:
            self._parts[Part(PartKind.POSITION, group_id, topic, partition)] = None

    def classic_group(self, group_id: str) -> None:
        """Record a change of a classic group."""
        if self._parts is not None:
            self._parts[Part(PartKind.CLASSIC_GROUP, group_id)] = None

    def group(
        self, group_id: str, member_ids: Iterable[str] = (), patterns: Iterable[str] = ()
    ) -> None:
        """Record a change of a KIP-848 group, of these members, and of these patterns' matches."""
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
