"""Limits on the connections of single addresses: `max.connections.per.ip.overrides`.

The text is "address:number,...". Kafka also accepts host names and resolves them. They are refused
here, because a server makes no look-ups to admit a client.

Does not depend on connections.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from ipaddress import ip_address

from vdl.kafka.security.peer_address import canonical_host

_PART = re.compile(r"\s*(\S+):([0-9]{1,9})\s*")


@lru_cache(maxsize=8)
def ip_limits(text: str) -> Mapping[str, int]:
    """Return address in its shortest form → connections. Raises ValueError(expected format)."""
    found: dict[str, int] = {}
    for part in filter(str.strip, text.split(",")):
        match = _PART.fullmatch(part)
        if match is None or not _is_address(match[1]):
            raise ValueError(f'"address:number,...", not {part.strip()!r:.80}')
        found[canonical_host(match[1])] = int(match[2])
    return found


def ip_limits_text(raw: object) -> str:
    """Return a text that `ip_limits` accepts. Raises ValueError(expected format)."""
    if not isinstance(raw, str):
        raise ValueError('"address:number,..."')
    ip_limits(raw)
    return raw


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True
