"""What a consumer subscribes to, read out of the bytes it joined with.

Kafka's ConsumerProtocolSubscription, of which every version begins with: version i16, then topics:
a count i32 and for each a length i16 and that many bytes of UTF-8. What follows is for other
consumers.

Must not know: groups.
"""

from __future__ import annotations

from struct import Struct
from struct import error as StructError

_HEAD = Struct(">hi")
_LENGTH = Struct(">h")


def subscribed_topics(metadata: bytes) -> frozenset[str] | None:
    """The topics; None when these are not the bytes of a subscription."""
    topics: set[str] = set()
    try:
        version, count = _HEAD.unpack_from(metadata)
        position = _HEAD.size
        if version < 0 or not 0 <= count * _LENGTH.size <= len(metadata) - position:
            return None
        for _ in range(count):
            (length,) = _LENGTH.unpack_from(metadata, position)
            position += _LENGTH.size
            if not 0 <= length <= len(metadata) - position:
                return None
            topics.add(metadata[position : position + length].decode())
            position += length
    except (StructError, UnicodeDecodeError):
        return None
    return frozenset(topics)
