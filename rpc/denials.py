"""Claims to lead a term that is over, denied by whoever knows of a newer one: DENIALS.

A leader list claims (group, term). A server that knows of a newer term of the group says so with
each of its heartbeats, in a frame before it, for as long as the claim stands. So the heartbeat that
acknowledges the list never comes before the denial of what is on it.

DENIALS, little-endian: (group u64, claimed term u64, newer term u64) each, at least one.

Must not know: links, how lists travel, what follows from a denial.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import Final, NamedTuple

from ids import TERM_MAX, GroupId, NodeId, Term
from rpc.errors import MalformedFrame

DENIALS_MAX: Final = 4_096
"""How many go with one heartbeat; the others follow with the next ones."""

_DENIAL = Struct("<QQQ")


class Denial(NamedTuple):
    """`replica` claims to lead `group` in `claimed`; the group has got to the term `newer`."""

    group: GroupId
    claimed: Term
    newer: Term
    replica: NodeId
    """Known where the claim was heard; it does not travel."""


def encode_denials(denials: Sequence[Denial]) -> bytes:
    """The payload of a DENIALS frame."""
    return b"".join([_DENIAL.pack(group, claimed, newer) for group, claimed, newer, _ in denials])


def decode_denials(payload: memoryview) -> list[tuple[GroupId, Term, Term]]:
    """(group, claimed term, newer term) each. Raises MalformedFrame."""
    if not payload or len(payload) % _DENIAL.size:
        raise MalformedFrame("denials", len(payload))
    rows = list(_DENIAL.iter_unpack(payload))
    if len(rows) > DENIALS_MAX:
        raise MalformedFrame("denials", len(payload))
    for _, claimed, newer in rows:
        if not claimed < newer <= TERM_MAX:
            raise MalformedFrame(f"denial of term {claimed} by {newer}")
    return rows
