"""Addresses of clients, written in one way: ACLs, quotas and bounds compare them as text.

A socket that listens on `::` says `::ffff:10.0.0.7` of a client that came by IPv4, and a link-local
address comes with its zone. An ACL may have been written with `2001:DB8:0::1`.

Must not know: sockets, who compares.
"""

from __future__ import annotations

from functools import lru_cache
from ipaddress import IPv6Address, ip_address

_KNOWN_MAX = 10_000


@lru_cache(_KNOWN_MAX)
def canonical_host(host: str) -> str:
    """The address in its shortest form, IPv4 as such, without a zone; what is none stays."""
    try:
        address = ip_address(host)
    except ValueError:
        return host
    if isinstance(address, IPv6Address):
        if address.ipv4_mapped is not None:
            return str(address.ipv4_mapped)
        return str(address).partition("%")[0]
    return str(address)
