"""Commands forwarded to the leader of a group: PROPOSE and PROPOSED.

The proposer names its request by an id of its own and is told one of two things: *accepted*, with
the index and term its entry was given (which says nothing yet about commit), or a definite refusal:
the command is in no log. When the link ends before the answer, the fate is unknown.

PROPOSE, little-endian: request_id u64, group u64, timeout_ms u32, then the command.
PROPOSED: request_id u64, outcome u8, index u64, term u64, leader u64.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from struct import Struct

from ids import NO_INDEX, NO_TERM, GroupId, Index, Term
from rpc.errors import MalformedFrame
from rpc.reader import Buffer

_PROPOSE = Struct("<QQI")
_PROPOSED = Struct("<QBQQQ")


class ProposeOutcome(IntEnum):
    """What became of a forwarded command. All but ACCEPTED mean: it was never appended."""

    ACCEPTED = 0
    NOT_LEADER = 1  # or a limit, or a leadership transfer: it may be sent again
    UNKNOWN_GROUP = 3
    REFUSED = 5  # not a command the leader knows; it is not to be sent again


_OUTCOME_BY_CODE = {outcome.value: outcome for outcome in ProposeOutcome}


@dataclass(slots=True)
class Propose:
    """A command for the leader of `group`, worth appending for `timeout_ms` more."""

    request_id: int
    group: GroupId
    timeout_ms: int
    command: Buffer


@dataclass(slots=True)
class Proposed:
    """The answer. `index`, `term`: where it was appended. `leader`: the replica to ask instead,
    0 if it is not known; only with NOT_LEADER."""

    request_id: int
    outcome: ProposeOutcome
    index: Index = NO_INDEX
    term: Term = NO_TERM
    leader: int = 0


def encode_propose(propose: Propose) -> list[Buffer]:
    """The payload of a PROPOSE frame."""
    head = _PROPOSE.pack(propose.request_id, propose.group, propose.timeout_ms)
    return [head, propose.command]


def decode_propose(payload: memoryview) -> Propose:
    """`command` is a view into the payload. Raises MalformedFrame."""
    if len(payload) < _PROPOSE.size:
        raise MalformedFrame("propose", len(payload))
    request_id, group, timeout_ms = _PROPOSE.unpack_from(payload)
    return Propose(request_id, group, timeout_ms, payload[_PROPOSE.size :])


def encode_proposed(proposed: Proposed) -> list[Buffer]:
    """The payload of a PROPOSED frame."""
    return [
        _PROPOSED.pack(
            proposed.request_id, proposed.outcome, proposed.index, proposed.term, proposed.leader
        )
    ]


def decode_proposed(payload: memoryview) -> Proposed:
    """Raises MalformedFrame."""
    if len(payload) != _PROPOSED.size:
        raise MalformedFrame("proposed", len(payload))
    request_id, code, index, term, leader = _PROPOSED.unpack_from(payload)
    outcome = _OUTCOME_BY_CODE.get(code)
    if outcome is None:
        raise MalformedFrame(f"proposed outcome {code}", 8)
    return Proposed(request_id, outcome, index, term, leader)
