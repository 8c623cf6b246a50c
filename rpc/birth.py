"""How an empty server asks what cluster there is: ASK and ANSWER.

ASK has no payload: the asker's identity and configuration digest were in its HELLO. ANSWER is one
byte, 0 for "empty: I have no cluster either", 1 followed by the cluster's birth record, which is
opaque here. Both may travel on any link, also between servers of which one has no cluster yet.
"""

from __future__ import annotations

from rpc.errors import MalformedFrame
from rpc.reader import Buffer

_EMPTY = b"\x00"
_RECORD = b"\x01"


def encode_ask() -> list[Buffer]:
    """The payload of an ASK frame."""
    return []


def encode_answer(record: bytes) -> list[Buffer]:
    """The payload of an ANSWER frame; an empty record says "empty"."""
    return [_RECORD, record] if record else [_EMPTY]


def decode_answer(payload: memoryview) -> bytes:
    """The birth record, b"" for "empty". Raises MalformedFrame."""
    kind = bytes(payload[:1])
    record = bytes(payload[1:])
    if (kind, bool(record)) == (_EMPTY, False) or (kind, bool(record)) == (_RECORD, True):
        return record
    raise MalformedFrame("answer")
