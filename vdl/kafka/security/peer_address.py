"""Canonical form of client addresses: ACLs, quotas and bounds compare them as text.

A socket that listens on `::` reports `::ffff:10.0.0.7` for a client that connects by IPv4, and a
link-local address has its zone. An ACL may have been written with `2001:DB8:0::1`.

Does not depend on sockets, or on users of the addresses.
"""

from __future__ import annotations

from functools import lru_cache
from ipaddress import IPv6Address, ip_address

_KNOWN_MAX = 10_000


@lru_cache(_KNOWN_MAX)
def canonical_host(host: str) -> str:
    """Return an address in its shortest form, IPv4 as such, without a zone.

    A text that is no address is returned unchanged.
    """
    try:
        address = ip_address(host)
    except ValueError:
        return host
    if isinstance(address, IPv6Address):
        if address.ipv4_mapped is not None:
            return str(address.ipv4_mapped)
        return str(address).partition("%")[0]
    return str(address)
