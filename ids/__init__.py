"""Ids and positions used by every package, each a type of its own.

To a type checker they are different kinds of int, so that a term is not taken for an index, nor a
log for a group. At run time they *are* int: nothing is wrapped, and conversion costs nothing. They
are created where values enter: in decoders (the result of `struct` needs no call), configuration,
and the few places that increment them. `Index(n)` is `int(n)` at run time.

*Index* is Raft's log index (first entry: 1), *offset* is Kafka's record offset (first record: 0).
Index 0 means "before the log", term 0 "before any election".

Does not depend on any other package.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NewType, Self

if TYPE_CHECKING:
    # Arithmetic with plain numbers keeps the type.

    class _Position(int):
        def __add__(self, other: int, /) -> Self: ...
        def __sub__(self, other: int, /) -> Self: ...
        def __floordiv__(self, other: int, /) -> Self: ...

    class Term(_Position):
        """A Raft term, which is also the Kafka leader epoch of a partition."""

    class Index(_Position):
        """Position in a Raft log."""

    class Offset(_Position):
        """Position of a record in a partition, as counted by Kafka's clients."""

    def indexes(start: Index, end: Index, /) -> Sequence[Index]:
        """Return the indexes in [start, end)."""

    GroupId = NewType("GroupId", int)
    ServerId = NewType("ServerId", int)
    ReplicaNumber = NewType("ReplicaNumber", int)

    class NodeId(int):
        """A replica's id in Raft: its server's id, and in the lower bits its number there."""

        def __rshift__(self, bits: int, /) -> ServerId: ...

    LogId = NewType("LogId", int)
    DirectoryId = NewType("DirectoryId", bytes)
else:
    Term = Index = Offset = int
    indexes = range
    GroupId = ServerId = ReplicaNumber = NodeId = LogId = int
    DirectoryId = bytes

NO_INDEX: Final = Index(0)
"""Index before the log."""

NO_TERM: Final = Term(0)
"""Term before any election."""

TERM_MAX: Final = Term((1 << 31) - 1)
"""Highest term: a leader epoch is a signed 32-bit integer in Kafka's batches and requests."""

NO_OFFSET: Final = Offset(-1)
"""No offset, or none known."""

NO_SERVER: Final = ServerId(0)
"""No server is known."""

SERVER_ID_MAX: Final = (1 << 15) - 1
"""Largest server id that can be configured."""

NO_REPLICA: Final = ReplicaNumber(0)
"""The server has no replica."""

NO_LEADER: Final = ServerId(-1), Term(-1)
"""No leader is known, and no term."""
