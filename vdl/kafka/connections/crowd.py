"""Open connections that are bounded in number: those of a server, or of one of its listeners.

Where all are taken, one more costs the address that has most of them the one that is silent for
longest; nobody gets more than that address by it.

Must not know: sockets, sessions.
"""

from __future__ import annotations

from typing import Protocol


class Member(Protocol):
    last_active_ns: int

    @property
    def busy(self) -> bool:
        """It waits for an answer, or as it was told to: it is the last to go."""

    def abort(self, reason: str) -> None: ...


class Crowd:
    """See the module."""

    __slots__ = ("_by_network", "_count")

    def __init__(self) -> None:
        self._by_network: dict[str, dict[Member, None]] = {}
        """By what bounds of an address count. Invariant: none is empty."""
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def of(self, network: str) -> int:
        """Return how many an address has."""
        return len(self._by_network.get(network, ()))

    def add(self, network: str, member: Member) -> None:
        """One more of an address."""
        self._by_network.setdefault(network, {})[member] = None
        self._count += 1

    def remove(self, network: str, member: Member) -> None:
        """It is gone."""
        of_network = self._by_network[network]
        del of_network[member]
        if not of_network:
            del self._by_network[network]
        self._count -= 1

    def has_room(self, network: str, most: int) -> bool:
        """Return whether one more of an address may come in where `most` may be open, perhaps in
        place of another one. Work: O(addresses) once all are taken."""
        return self._count < most or self._greedier(network) is not None

    def gives_way(self, network: str, most: int) -> Member | None:
        """Return which has to go for one more of an address, which has room. None: none."""
        if self._count < most:
            return None
        greedy = self._greedier(network)
        assert greedy is not None, "no room"
        return min(greedy, key=lambda member: (member.busy, member.last_active_ns))

    def _greedier(self, network: str) -> dict[Member, None] | None:
        """Those of the address that has most of all, if one of them may go for one of another
        address."""
        if not self._by_network:
            return None
        greedy = max(self._by_network.values(), key=len)
        return greedy if len(greedy) > self.of(network) + 1 else None
