"""Frames of commands for the leaders of groups: exact shapes, and nothing else."""

from __future__ import annotations

import struct

import pytest

from rpc.commands import (
    CommandDone,
    Fate,
    Proposed,
    ProposeOutcome,
    SentCommand,
    decode_command,
    decode_done,
    decode_proposed,
    encode_command,
    encode_done,
    encode_proposed,
    split,
)
from rpc.commands import joined as joined_payloads
from rpc.errors import MalformedFrame
from rpc.reader import Buffer


def joined(buffers: list[Buffer]) -> memoryview:
    return memoryview(b"".join(buffers))


@pytest.mark.parametrize("command", [b"", b"\x93\x01", bytes(5_000)])
def test_command_comes_back(command: bytes) -> None:
    sent = decode_command(joined(encode_command(SentCommand(1 << 60, 9, 3_000, command))))
    assert (sent.request_id, sent.group, sent.timeout_ms) == (1 << 60, 9, 3_000)
    assert bytes(sent.command) == command


def test_command_is_neither_copied_nor_changed() -> None:
    """The command is sent from its memory and arrives as a view."""
    command = b"c" * 1_000
    buffers = encode_command(SentCommand(7, 9, 30_000, command))
    assert buffers[1] is command
    assert decode_command(joined(buffers)) == SentCommand(7, 9, 30_000, command)


@pytest.mark.parametrize("outcome", ProposeOutcome)
def test_proposed_every_outcome_comes_back(outcome: ProposeOutcome) -> None:
    """In the layout that all versions know, whose unused fields are ignored."""
    proposed = Proposed(7, outcome)
    former = struct.pack("<QBQQQ", 7, outcome, 55, 3, 2 << 16 | 1)
    assert decode_proposed(memoryview(former)) == proposed
    assert len(joined(encode_proposed(proposed))) == len(former)
    assert decode_proposed(joined(encode_proposed(proposed))) == proposed


@pytest.mark.parametrize("fate", Fate)
@pytest.mark.parametrize("answer", [b"", b"state"])
def test_answer_comes_back(fate: Fate, answer: bytes) -> None:
    """A code may be Kafka's -1."""
    done = decode_done(joined(encode_done(CommandDone(7, fate, -1, answer))))
    assert (done.request_id, done.fate, done.code) == (7, fate, -1)
    assert bytes(done.answer) == answer


def test_frames_cut_and_unknown_fates_are_malformed() -> None:
    command = joined(encode_command(SentCommand(1, 2, 3, b"")))
    for end in range(len(command)):
        with pytest.raises(MalformedFrame):
            decode_command(command[:end])
    done = joined(encode_done(CommandDone(1, Fate.APPLIED, 0)))
    for end in range(len(done)):
        with pytest.raises(MalformedFrame):
            decode_done(done[:end])
    with pytest.raises(MalformedFrame):
        decode_done(memoryview(bytes(8) + b"\x09" + bytes(2)))
    proposed = joined(encode_proposed(Proposed(7, ProposeOutcome.ACCEPTED)))
    for end in range(len(proposed)):
        with pytest.raises(MalformedFrame):
            decode_proposed(proposed[:end])
    unknown = bytearray(proposed)
    unknown[8] = 200
    with pytest.raises(MalformedFrame):
        decode_proposed(memoryview(unknown))


def test_commands_come_back_together_and_in_their_order() -> None:
    sent = [SentCommand(number, 9, 3_000, bytes(number)) for number in range(5)]
    found = split(joined(joined_payloads([encode_command(one) for one in sent])))
    assert [decode_command(one).request_id for one in found] == list(range(5))
    assert [bytes(decode_command(one).command) for one in found] == [bytes(n) for n in range(5)]
    assert split(memoryview(b"")) == []


def test_what_is_cut_between_or_within_commands_is_malformed() -> None:
    whole = joined(joined_payloads([[b"abc"], [b"", b"de"]]))
    ends = {7, len(whole), 0}  # the ends of its parts
    for end in set(range(len(whole))) - ends:
        with pytest.raises(MalformedFrame):
            split(whole[:end])
    with pytest.raises(MalformedFrame):
        split(memoryview(b"\xff\xff\xff\xff" + bytes(20)))
