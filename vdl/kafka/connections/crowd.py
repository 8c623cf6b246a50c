"""A bounded set of open connections: those of a server, or of one of its listeners.

When it is full, a new connection displaces one of the address that has the most: the one that has
been silent longest. No address ends up with more connections than that address.

Does not depend on sockets.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vdl.kafka.connections.session import Session


class Crowd:
    """Open connections by address; see the module."""

    __slots__ = ("_by_network", "_count")

    def __init__(self) -> None:
        self._by_network: dict[str, dict[Session, None]] = {}
        """Sessions by address (or network). Invariant: no value is empty."""
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def of(self, network: str) -> int:
        """Return the number of connections of an address."""
        return len(self._by_network.get(network, ()))

    def add(self, network: str, session: Session) -> None:
        """Add a connection of an address."""
        self._by_network.setdefault(network, {})[session] = None
        self._count += 1

    def remove(self, network: str, session: Session) -> None:
        """Remove a connection of an address."""
        of_network = self._by_network[network]
        del of_network[session]
        if not of_network:
            del self._by_network[network]
        self._count -= 1

    def has_room(self, network: str, most: int) -> bool:
        """Return True if an address may have one more where the maximum is `most`.

        The new connection may have to displace another one. Costs O(addresses) once the maximum is
        reached.
        """
        return self._count < most or self._greedier(network) is not None

    def gives_way(self, network: str, most: int) -> Session | None:
        """Return the session to displace for one more of an address that has room, if any."""
        if self._count < most:
            return None
        greedy = self._greedier(network)
        assert greedy is not None, "no room"
        # One that waits for an answer, or waits out a throttle time, goes last.
        return min(greedy, key=lambda one: (one.busy, one.connection.last_active_ns))

    def _greedier(self, network: str) -> dict[Session, None] | None:
        """Return the sessions of the address that has the most, if one of them may be displaced."""
        if not self._by_network:
            return None
        greedy = max(self._by_network.values(), key=len)
        return greedy if len(greedy) > self.of(network) + 1 else None
