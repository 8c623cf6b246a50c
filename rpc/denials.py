"""Denials of claims to lead an old term, by a server that knows of a newer one: DENIALS.

A leader list claims (group, term). A server that knows of a newer term of the group sends a denial
before each of its heartbeats, for as long as the claim is on the list. So a heartbeat that
acknowledges the list never comes before the denial of a claim on it.

DENIALS, little-endian: (group u64, claimed term u64, newer term u64) each, at least one.

Does not depend on links, the transfer of lists, or the consequences of a denial.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import Final, NamedTuple

from ids import TERM_MAX, GroupId, NodeId, Term
from rpc.errors import MalformedFrame

DENIALS_MAX: Final = 4_096
"""Most denials sent with one heartbeat; the others follow with the next ones."""

_DENIAL = Struct("<QQQ")


class Denial(NamedTuple):
    """`replica` claims to lead `group` in `claimed`, but the group has reached the term `newer`."""

    group: GroupId
    claimed: Term
    newer: Term
    replica: NodeId
    """Known where the claim was received; not sent."""


def encode_denials(denials: Sequence[Denial]) -> bytes:
    """Encode the payload of a DENIALS frame."""
    return b"".join([_DENIAL.pack(group, claimed, newer) for group, claimed, newer, _ in denials])


def decode_denials(payload: memoryview) -> list[tuple[GroupId, Term, Term]]:
    """Decode (group, claimed term, newer term) rows. Raises MalformedFrame."""
    if not payload or len(payload) % _DENIAL.size:
        raise MalformedFrame("denials", len(payload))
    rows = list(_DENIAL.iter_unpack(payload))
    if len(rows) > DENIALS_MAX:
        raise MalformedFrame("denials", len(payload))
    for _, claimed, newer in rows:
        if not claimed < newer <= TERM_MAX:
            raise MalformedFrame(f"denial of term {claimed} by {newer}")
    return rows
