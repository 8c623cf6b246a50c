"""The groups that a cluster begins with: the catalog and the coordinators.

They are on the initial voters for ever, rotated by group so that the preferred leaders of
coordinators spread. All that changes is the number of a replica that was lost. Only numbers that
are not the first are stored.

Must not know: partitions' groups, which groups there are, why a replica is replaced.
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
    """See the module."""

    __slots__ = ("_numbers", "_servers")

    def __init__(self, initial_voters: tuple[ServerId, ...]) -> None:
        self._servers = initial_voters
        self._numbers: dict[tuple[GroupId, ServerId], ReplicaNumber] = {}
        """Of the replicas whose number is not the first."""

    def __len__(self) -> int:
        """How many items are stored."""
        return len(self._numbers)

    def replicas(self, group_id: GroupId) -> list[ReplicaInfo]:
        """What the group's members are to be, preferred leader first."""
        numbers = self._numbers
        return [
            ReplicaInfo(server, numbers.get((group_id, server), FIRST_REPLICA))
            for server in self._servers_from(group_id)
        ]

    def founding(self, group_id: GroupId) -> list[ReplicaInfo]:
        """The members the group was made with, preferred leader first."""
        return [ReplicaInfo(server, FIRST_REPLICA) for server in self._servers_from(group_id)]

    def renumber(self, group_id: GroupId, server_id: ServerId, number: ReplicaNumber) -> bytes:
        """The server's replica of a group is another one from now on, with this number; the key
        under which that is stored."""
        self._numbers[group_id, server_id] = number
        return _key(group_id, server_id)

    def _servers_from(self, group_id: GroupId) -> tuple[ServerId, ...]:
        servers = self._servers
        shift = group_id % len(servers) if servers else 0
        return servers[shift:] + servers[:shift]

    # --- storing ---------------------------------------------------------------------------
    def keys(self) -> Iterator[bytes]:
        """The keys of all that is stored."""
        return (_key(*place) for place in self._numbers)

    def stored(self, key: bytes) -> bytes | None:
        """The value under a key; None when there is none."""
        _, group_id, server_id = _KEY.unpack(key)
        number = self._numbers.get((group_id, server_id))
        return None if number is None else encode_value(number)

    def load(self, items: list[tuple[bytes, bytes]]) -> None:
        """Replace everything. Raises msgspec.DecodeError for what was never stored."""
        self._numbers = {}
        for key, value in items:
            _, group_id, server_id = _KEY.unpack(key)
            self._numbers[group_id, server_id] = ReplicaNumber(decode_value(value, int))


def _key(group_id: GroupId, server_id: ServerId) -> bytes:
    return _KEY.pack(KEY_PREFIX, group_id, server_id)
