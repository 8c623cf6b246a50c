"""Forwarded commands and the birth question: small frames, exact shapes."""

from __future__ import annotations

import pytest

from rpc.birth import decode_answer, encode_answer, encode_ask
from rpc.errors import MalformedFrame
from rpc.proposals import (
    Propose,
    Proposed,
    ProposeOutcome,
    decode_propose,
    decode_proposed,
    encode_propose,
    encode_proposed,
)
from rpc.reader import Buffer


def joined(buffers: list[Buffer]) -> memoryview:
    return memoryview(b"".join(buffers))


def test_propose_command_is_neither_copied_nor_changed() -> None:
    """The command leaves as it lies in memory and arrives as a view."""
    command = b"c" * 1_000
    buffers = encode_propose(Propose(7, 9, 30_000, command))
    assert buffers[1] is command
    assert decode_propose(joined(buffers)) == Propose(7, 9, 30_000, command)


@pytest.mark.parametrize("outcome", ProposeOutcome)
def test_proposed_every_outcome_comes_back(outcome: ProposeOutcome) -> None:
    """Acceptance with its place in the log, refusals with a hint."""
    proposed = Proposed(7, outcome, index=55, term=3, leader=2 << 16 | 1)
    assert decode_proposed(joined(encode_proposed(proposed))) == proposed


def test_proposals_cut_or_unknown_are_malformed() -> None:
    """Truncations and unknown outcomes are noticed."""
    propose = joined(encode_propose(Propose(7, 9, 30_000, b"")))
    proposed = joined(encode_proposed(Proposed(7, ProposeOutcome.ACCEPTED)))
    for end in range(len(propose)):
        with pytest.raises(MalformedFrame):
            decode_propose(propose[:end])
    for end in range(len(proposed)):
        with pytest.raises(MalformedFrame):
            decode_proposed(proposed[:end])
    unknown = bytearray(proposed)
    unknown[8] = 200
    with pytest.raises(MalformedFrame):
        decode_proposed(memoryview(unknown))


@pytest.mark.parametrize("number", [0, 7])
def test_answer_record_and_number_come_back(number: int) -> None:
    """A record with the asker's catalog replica."""
    assert encode_ask() == []
    answer = encode_answer(b"the birth record", catalog_replica=number)
    assert decode_answer(joined(answer)) == (b"the birth record", number)


def test_answer_empty_comes_back() -> None:
    """ "Empty" and a record cannot be confused."""
    assert decode_answer(joined(encode_answer(b""))) == (b"", 0)


@pytest.mark.parametrize(
    "payload", [b"", b"\x00more", b"\x01", b"\x01\0\0\0\0", b"\x02\0\0\0\0record"]
)
def test_answer_of_another_shape_is_malformed(payload: bytes) -> None:
    """An answer says "empty" or carries a record."""
    with pytest.raises(MalformedFrame):
        decode_answer(memoryview(payload))
