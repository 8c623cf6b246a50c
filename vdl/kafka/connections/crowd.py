"""A bounded set of open connections: those of a server, or of one of its listeners.

When it is full, a new connection displaces one of the address that has the most: the one that has
been silent longest. No address ends up with more connections than that address.

Does not depend on sockets or sessions.
"""

from __future__ import annotations

from typing import Protocol


class Member(Protocol):
    last_active_ns: int

    @property
    def busy(self) -> bool:
        """True if it waits for an answer or waits out a throttle time: it goes last."""

    def abort(self, reason: str) -> None: ...


class Crowd:
    """Open connections by address; see the module."""

    __slots__ = ("_by_network", "_count")

    def __init__(self) -> None:
        self._by_network: dict[str, dict[Member, None]] = {}
        """Members by address (or network). Invariant: no value is empty."""
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def of(self, network: str) -> int:
        """Return the number of members of an address."""
        return len(self._by_network.get(network, ()))

    def add(self, network: str, member: Member) -> None:
        """Add a member of an address."""
        self._by_network.setdefault(network, {})[member] = None
        self._count += 1

    def remove(self, network: str, member: Member) -> None:
        """Remove a member of an address."""
        of_network = self._by_network[network]
        del of_network[member]
        if not of_network:
            del self._by_network[network]
        self._count -= 1

    def has_room(self, network: str, most: int) -> bool:
        """Return True if an address may have one more member where the maximum is `most`.

        The new member may have to displace another one. Costs O(addresses) once the maximum is
        reached.
        """
        return self._count < most or self._greedier(network) is not None

    def gives_way(self, network: str, most: int) -> Member | None:
        """Return the member to displace for one more of an address that has room, if any."""
        if self._count < most:
            return None
        greedy = self._greedier(network)
        assert greedy is not None, "no room"
        return min(greedy, key=lambda member: (member.busy, member.last_active_ns))

    def _greedier(self, network: str) -> dict[Member, None] | None:
        """Return the members of the address that has the most, if one of them may be displaced."""
        if not self._by_network:
            return None
        greedy = max(self._by_network.values(), key=len)
        return greedy if len(greedy) > self.of(network) + 1 else None
