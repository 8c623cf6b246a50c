"""Extent of log compaction on replicas: COMPACTED.

A server sends it to the leaders of its replicas' groups, when it has changed and again from time to
time. It has a bounded number of rows:

    0   group    u64   little endian, as everything here
    8   replica  u64   the sender's replica of the group
    16  upto     u64   all its entries up to this index are compacted, permanently

It states what is durable, so it stays true whatever it overtakes and however often it arrives.
Servers below `VERSION_OF_COMPACTION` are sent none: they would end the link.

Does not depend on the method of compaction, or on the use of this report.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import Final, NamedTuple

from ids import GroupId, Index, NodeId
from rpc.errors import MalformedFrame
from rpc.reader import Buffer

_ROW: Final = Struct("<QQQ")
ROWS_MAX = 4_096
"""Most rows in one frame."""


class Compacted(NamedTuple):
    """Extent of compaction of one replica."""

    group: GroupId
    replica: NodeId
    upto: Index


def encode_compacted(rows: Sequence[Compacted]) -> list[Buffer]:
    """Encode the payload of a COMPACTED frame."""
    assert 0 < len(rows) <= ROWS_MAX, len(rows)
    return [b"".join(_ROW.pack(*row) for row in rows)]


def decode_compacted(payload: memoryview) -> list[Compacted]:
    """Decode a COMPACTED payload. Raises MalformedFrame."""
    count, rest = divmod(len(payload), _ROW.size)
    if rest or not 0 < count <= ROWS_MAX:
        raise MalformedFrame("compacted")
    return [Compacted(*row) for row in _ROW.iter_unpack(payload)]
