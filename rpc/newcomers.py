"""Bounded set of unauthenticated connections, and which one to displace for one more.

A port may be flooded by strangers, so the number of such connections is bounded. One more displaces
the oldest of the address that has the most: an address that floods a port displaces its own
connections, and others are accepted. An IPv6 network (/64), all of whose addresses one machine may
have, counts as one address.

Does not depend on sockets, or on how a connection authenticates.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from ipaddress import IPv6Address, ip_address, ip_network
from typing import Generic, TypeVar

_KNOWN_MAX = 10_000
_IPV6_PREFIX = 64

ConnectionT = TypeVar("ConnectionT")


@lru_cache(_KNOWN_MAX)
def network_of(host: str) -> str:
    """Return the network that an address counts for: itself, or its /64 in IPv6.

    Anything that is not an address is returned unchanged.
    """
    try:
        address = ip_address(host)
    except ValueError:
        return host
    if not isinstance(address, IPv6Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    without_zone = str(address).partition("%")[0]
    return str(ip_network(f"{without_zone}/{_IPV6_PREFIX}", strict=False))


class Newcomers(Generic[ConnectionT]):
    """A bounded set of connections, which are distinguished by identity (hash)."""

    __slots__ = ("_by_network", "_most", "_network_of", "displaced")

    def __init__(self, most: int) -> None:
        """`most`: the bound, at least 1."""
        assert most >= 1, most
        self._most = most
        self._network_of: dict[ConnectionT, str] = {}
        """Network of each connection, oldest first. Invariant: at most `most` of them."""
        self._by_network: dict[str, dict[ConnectionT, None]] = {}
        """Connections of each network, oldest first. Invariant: no network is empty."""
        self.displaced = 0
        """Number of connections displaced by others."""

    def __len__(self) -> int:
        return len(self._network_of)

    def __iter__(self) -> Iterator[ConnectionT]:
        """Iterate over a copy, oldest first. Connections may be removed meanwhile."""
        return iter(list(self._network_of))

    def __contains__(self, connection: ConnectionT) -> bool:
        return connection in self._network_of

    def add(self, connection: ConnectionT, host: str) -> ConnectionT | None:
        """Add a connection from an address and return the one it displaces, if any.

        The displaced one is removed. Takes O(networks) if one is displaced.
        """
        gone = None
        if len(self._network_of) >= self._most:
            greedy = max(self._by_network.values(), key=len)
            gone = next(iter(greedy))
            self.remove(gone)
            self.displaced += 1
        network = network_of(host)
        self._network_of[connection] = network
        self._by_network.setdefault(network, {})[connection] = None
        return gone

    def remove(self, connection: ConnectionT) -> bool:
        """Remove a connection that has authenticated or ended. Return True if it was present."""
        network = self._network_of.pop(connection, None)
        if network is None:
            return False
        of_network = self._by_network[network]
        del of_network[connection]
        if not of_network:
            del self._by_network[network]
        return True
