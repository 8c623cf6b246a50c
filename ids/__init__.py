"""The ids and positions that every package speaks of, each a type of its own.

To a type checker they are different kinds of int, so that a term is not taken for an index, nor a
log for a group. At run time they *are* int: nothing is wrapped, and naming one costs nothing. They
are made where they come in: decoders (what `struct` unpacks needs no call), configuration, and the
few places that count them on. `Index(n)` there is `int(n)`.

*Index* is Raft's log index (first entry: 1), *offset* is Kafka's record offset (first record: 0).
Index 0 means "before the log", term 0 "before any election".

Must not know: anything.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NewType, Self

if TYPE_CHECKING:
    # Counted on with plain numbers, they stay what they are.

    class _Position(int):
        def __add__(self, other: int, /) -> Self: ...
        def __sub__(self, other: int, /) -> Self: ...
        def __floordiv__(self, other: int, /) -> Self: ...

    class Term(_Position):
        """A Raft term. It is the Kafka leader epoch of a partition."""

    class Index(_Position):
        """A position in a Raft log."""

    class Offset(_Position):
        """A position of a record in a partition, as Kafka's clients count them."""

    def indexes(start: Index, end: Index, /) -> Sequence[Index]:
        """Those in [start, end)."""

    GroupId = NewType("GroupId", int)
    ServerId = NewType("ServerId", int)
    ReplicaNumber = NewType("ReplicaNumber", int)

    class NodeId(int):
        """A replica, as Raft names it: its server's id, and below that its number there."""

        def __rshift__(self, bits: int, /) -> ServerId: ...

    LogId = NewType("LogId", int)
    DirectoryId = NewType("DirectoryId", bytes)
else:
    Term = Index = Offset = int
    indexes = range
    GroupId = ServerId = ReplicaNumber = NodeId = LogId = int
    DirectoryId = bytes

NO_INDEX: Final = Index(0)
"""Before the log."""

NO_TERM: Final = Term(0)
"""Before any election."""

TERM_MAX: Final = Term((1 << 31) - 1)
"""No term is above it: a leader epoch has four bytes and a sign in Kafka's batches and requests."""

NO_OFFSET: Final = Offset(-1)
"""None is known, or there is none."""

NO_SERVER: Final = ServerId(0)
"""None is known."""

NO_REPLICA: Final = ReplicaNumber(0)
"""A server has none."""

NO_LEADER: Final = ServerId(-1), Term(-1)
"""Nobody leads, as far as is known, and no term is."""
