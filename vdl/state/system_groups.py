"""Groups that a cluster begins with: the catalog and the coordinators.

Their voters always are on the initial voters, rotated by group so that the preferred leaders of
coordinators are distributed. Only the number of a lost replica changes. Numbers are stored if they
are not the first. Servers that were added later have replicas of the catalog without a vote.

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
    """Replica numbers of the catalog and the coordinators; see the module."""

    __slots__ = ("_numbers", "_servers")

    def __init__(self, initial_voters: tuple[ServerId, ...]) -> None:
        self._servers = initial_voters
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
            for server in self._servers_from(group_id)
        ]

    def founding(self, group_id: GroupId) -> list[ReplicaInfo]:
        """Return the members the group was created with, preferred leader first."""
        return [ReplicaInfo(server, FIRST_REPLICA) for server in self._servers_from(group_id)]

    def number(self, group_id: GroupId, server_id: ServerId) -> ReplicaNumber:
        """Return the number of a server's replica of a group."""
        return self._numbers.get((group_id, server_id), FIRST_REPLICA)

    def renumber(self, group_id: GroupId, server_id: ServerId, number: ReplicaNumber) -> bytes:
        """Set the number of a server's new replica of a group. Return the number's stored key."""
        self._numbers[group_id, server_id] = number
        return _key(group_id, server_id)

    def _servers_from(self, group_id: GroupId) -> tuple[ServerId, ...]:
        servers = self._servers
        shift = group_id % len(servers) if servers else 0
        return servers[shift:] + servers[:shift]

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
        """Replace everything. Raise msgspec.DecodeError for a value that was never stored."""
        self._numbers = {}
        for key, value in items:
            _, group_id, server_id = _KEY.unpack(key)
            self._numbers[group_id, server_id] = ReplicaNumber(decode_value(value, int))


def _key(group_id: GroupId, server_id: ServerId) -> bytes:
    return _KEY.pack(KEY_PREFIX, group_id, server_id)
