"""Birth of a server: how one without a cluster learns its peers' cluster. ASK and ANSWER.

ASK has no payload: its sender's identity and configuration digest were in HELLO. ANSWER begins with
one byte. 0 means that the sender has no cluster either. 1 is followed by a u32 (little endian), the
number of the catalog replica for the requesting directory (0: none known), and the cluster's birth
record, which is opaque here. Both may be sent on any link, also while one end has no cluster yet.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from ids import NO_REPLICA, ReplicaNumber
from rpc.errors import MalformedFrame
from rpc.reader import Buffer

_EMPTY: Final = b"\x00"
_RECORD: Final = 1
_HEAD: Final = Struct("<BI")


def encode_ask() -> list[Buffer]:
    """Encode the payload of an ASK frame."""
    return []


def encode_answer(record: bytes, *, catalog_replica: int = 0) -> list[Buffer]:
    """Encode the payload of an ANSWER frame; an empty record means no cluster."""
    return [_HEAD.pack(_RECORD, catalog_replica), record] if record else [_EMPTY]


def decode_answer(payload: memoryview) -> tuple[bytes, ReplicaNumber]:
    """Decode (birth record, catalog replica); (b"", 0) for no cluster. Raises MalformedFrame."""
    if bytes(payload[:2]) == _EMPTY:
        return b"", NO_REPLICA
    if len(payload) > _HEAD.size:
        kind, number = _HEAD.unpack_from(payload)
        if kind == _RECORD:
            return bytes(payload[_HEAD.size :]), number
    raise MalformedFrame("answer")
