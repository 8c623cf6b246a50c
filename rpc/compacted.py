"""How far replicas are compacted: COMPACTED.

A server tells it to the servers that lead the groups of its replicas, when it has changed and again
from time to time. Any number, up to a bound, of

    0   group    u64   little endian, as everything here
    8   replica  u64   which of the group's replicas the sender has
    16  upto     u64   all its entries up to this index are compacted, for good

It says what is durable, so it stays true whatever it overtakes and however often it comes. Servers
that speak less than `VERSION_OF_COMPACTION` are sent none: they would end the link.

Must not know: what is compacted, who needs to know.
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
"""Of one frame."""


class Compacted(NamedTuple):
    """One replica."""

    group: GroupId
    replica: NodeId
    upto: Index


def encode_compacted(rows: Sequence[Compacted]) -> list[Buffer]:
    """The payload of a COMPACTED frame."""
    assert 0 < len(rows) <= ROWS_MAX, len(rows)
    return [b"".join(_ROW.pack(*row) for row in rows)]


def decode_compacted(payload: memoryview) -> list[Compacted]:
    """Raises MalformedFrame."""
    count, rest = divmod(len(payload), _ROW.size)
    if rest or not 0 < count <= ROWS_MAX:
        raise MalformedFrame("compacted")
    return [Compacted(*row) for row in _ROW.iter_unpack(payload)]
