"""Groups that a cluster begins with: the catalog and the coordinators.

All of them have their voters on the same servers, rotated by group so that the preferred leaders
of coordinators are distributed. At first these are the initial voters. When one of them leaves,
another server takes its place in all groups; their number never changes. Replica numbers are stored
if they are not the first. The other servers have replicas of the catalog without a vote.

Does not depend on the groups of partitions, on the number of coordinators, or on why a replica is
replaced.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct

from ids import GroupId, ReplicaNumber, ServerId
from vdl.state.reassignment import FIRST_REPLICA, ReplicaInfo
from vdl.state.table import decode_value, encode_value

KEY_PREFIX = b"n"
_KEY = Struct(">cQI")


class SystemGroups:
    """Voters and replica numbers of the catalog and the coordinators; see the module."""

    __slots__ = ("_initial", "_numbers", "voters")

    def __init__(self, initial_voters: tuple[ServerId, ...]) -> None:
        self._initial = initial_voters
        self.voters = initial_voters
        """Servers that should vote in every group: each group's leader changes its members to
        these. In the order of the preferred leaders."""
        self._numbers: dict[tuple[GroupId, ServerId], ReplicaNumber] = {}
        """Replica numbers that are not the first."""

    def __len__(self) -> int:
        """Return the number of stored items."""
        return len(self._numbers)

    def replicas(self, group_id: GroupId) -> list[ReplicaInfo]:
        """Return the members that the group should have, preferred leader first."""
        numbers = self._numbers
        return [
            ReplicaInfo(server, numbers.get((group_id, server), FIRST_REPLICA))
            for server in rotated(self.voters, group_id)
        ]

    def founding(self, group_id: GroupId) -> list[ReplicaInfo]:
        """Return the members the group was created with, preferred leader first."""
        return [ReplicaInfo(server, FIRST_REPLICA) for server in rotated(self._initial, group_id)]

    def number(self, group_id: GroupId, server_id: ServerId) -> ReplicaNumber:
        """Return the number of a server's replica of a group."""
        return self._numbers.get((group_id, server_id), FIRST_REPLICA)

    def renumber(self, group_id: GroupId, server_id: ServerId, number: ReplicaNumber) -> bytes:
        """Set the number of a server's new replica of a group. Return the number's stored key."""
        self._numbers[group_id, server_id] = number
        return _key(group_id, server_id)

    # --- storing ---------------------------------------------------------------------------
    def keys(self) -> Iterator[bytes]:
        """Return the keys of all stored items."""
        return (_key(*place) for place in self._numbers)

    def stored(self, key: bytes) -> bytes | None:
        """Return the value under a key; None if there is none."""
        _, group_id, server_id = _KEY.unpack(key)
        number = self._numbers.get((group_id, server_id))
        return None if number is None else encode_value(number)

    def load(self, items: list[tuple[bytes, bytes]]) -> None:
        """Replace all numbers. Raise msgspec.DecodeError for a value that was never stored."""
        self._numbers = {}
        for key, value in items:
            _, group_id, server_id = _KEY.unpack(key)
            self._numbers[group_id, server_id] = ReplicaNumber(decode_value(value, int))


def rotated(voters: tuple[ServerId, ...], group_id: GroupId) -> tuple[ServerId, ...]:
    """Return the voters in the order of a group, its preferred leader first."""
    shift = group_id % len(voters) if voters else 0
    return voters[shift:] + voters[:shift]


def _key(group_id: GroupId, server_id: ServerId) -> bytes:
    return _KEY.pack(KEY_PREFIX, group_id, server_id)
