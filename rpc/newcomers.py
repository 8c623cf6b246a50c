"""Connections whose other end has not shown who it is, and which of them has to go for one more.

A port may be flooded by strangers. So few of their connections are open at a time. One more costs
the address that has most of them its oldest: an address that floods a port displaces its own
connections, and others come in. A network of IPv6 (/64), which one machine may have all addresses
of, counts as one address.

Must not know: sockets, what a connection has to show.
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
    """Whose an address is, as far as bounds go: itself, of IPv6 its /64. What is none stays."""
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
    """So many connections at the most. Connections are told apart by identity (hash)."""

    __slots__ = ("_by_network", "_most", "_network_of", "displaced")

    def __init__(self, most: int) -> None:
        """`most`: at least 1."""
        assert most >= 1, most
        self._most = most
        self._network_of: dict[ConnectionT, str] = {}
        """Oldest first. Invariant: `most` at the most."""
        self._by_network: dict[str, dict[ConnectionT, None]] = {}
        """The same, of each network its oldest first. Invariant: none is empty."""
        self.displaced = 0
        """How many had to go for others."""

    def __len__(self) -> int:
        return len(self._network_of)

    def __iter__(self) -> Iterator[ConnectionT]:
        """Oldest first. They may be removed meanwhile."""
        return iter(list(self._network_of))

    def __contains__(self, connection: ConnectionT) -> bool:
        return connection in self._network_of

    def add(self, connection: ConnectionT, host: str) -> ConnectionT | None:
        """Count one more from an address; the one that has to go for it, which is not counted any
        more. Work: O(networks) where one has to go."""
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
        """It has shown who it is, or is gone; whether it was counted."""
        network = self._network_of.pop(connection, None)
        if network is None:
            return False
        of_network = self._by_network[network]
        del of_network[connection]
        if not of_network:
            del self._by_network[network]
        return True
