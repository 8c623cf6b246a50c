"""Commands that the leader of a group is asked to append, and what came of them: COMMAND and
COMMAND_DONE, and COMMANDS and COMMANDS_DONE with all of a turn.

Unlike a catalog command in PROPOSE, such a command is answered when it is applied at the leader.
Whoever sent it sends it again until it is answered, so it may be applied more than once.

COMMAND, little-endian: request u64, group u64, worth answering for so many ms u32, then the
command. COMMAND_DONE: request u64, fate u8, code i16, then the machine's answer. Code and answer
have a meaning with APPLIED only. COMMANDS and COMMANDS_DONE: payloads of these, each behind its
length u32.

Must not know: what commands mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from struct import Struct

from ids import GroupId
from rpc.errors import MalformedFrame
from rpc.reader import Buffer

_LENGTH = Struct("<I")
_COMMAND = Struct("<QQI")
_DONE = Struct("<QBh")


class Fate(IntEnum):
    """What became of a command."""

    APPLIED = 0
    NOT_APPENDED = 1
    """The server does not lead the group, or has no room: it may be sent again."""
    UNKNOWN = 2
    """It may or may not be applied: it may be sent again."""
    REFUSED = 3
    """Not a command that the group's leader can ever append: it is not to be sent again."""


_FATE_BY_CODE = {fate.value: fate for fate in Fate}


@dataclass(slots=True)
class SentCommand:
    """A command for the leader of `group`, which is waited for `timeout_ms` more."""

    request_id: int
    group: GroupId
    timeout_ms: int
    command: Buffer


@dataclass(slots=True)
class CommandDone:
    """The answer."""

    request_id: int
    fate: Fate
    code: int = 0
    answer: Buffer = b""


def encode_command(sent: SentCommand) -> list[Buffer]:
    """The payload of a COMMAND frame."""
    return [_COMMAND.pack(sent.request_id, sent.group, sent.timeout_ms), sent.command]


def decode_command(payload: memoryview) -> SentCommand:
    """`command` is a view into the payload. Raises MalformedFrame."""
    if len(payload) < _COMMAND.size:
        raise MalformedFrame("command", len(payload))
    request_id, group, timeout_ms = _COMMAND.unpack_from(payload)
    return SentCommand(request_id, group, timeout_ms, payload[_COMMAND.size :])


def encode_done(done: CommandDone) -> list[Buffer]:
    """The payload of a COMMAND_DONE frame."""
    return [_DONE.pack(done.request_id, done.fate, done.code), done.answer]


def decode_done(payload: memoryview) -> CommandDone:
    """`answer` is a view into the payload. Raises MalformedFrame."""
    if len(payload) < _DONE.size:
        raise MalformedFrame("command done", len(payload))
    request_id, code, error = _DONE.unpack_from(payload)
    fate = _FATE_BY_CODE.get(code)
    if fate is None:
        raise MalformedFrame(f"command done fate {code}", 8)
    return CommandDone(request_id, fate, error, payload[_DONE.size :])


def joined(payloads: Sequence[Sequence[Buffer]]) -> list[Buffer]:
    """The payload of a COMMANDS or COMMANDS_DONE frame, from those of single ones."""
    buffers: list[Buffer] = []
    for payload in payloads:
        buffers.append(_LENGTH.pack(sum(map(len, payload))))
        buffers += payload
    return buffers


def split(payload: memoryview) -> list[memoryview]:
    """What was joined. Raises MalformedFrame."""
    found: list[memoryview] = []
    position, end = 0, len(payload)
    while position < end:
        if end - position < _LENGTH.size:
            raise MalformedFrame("commands", end)
        (length,) = _LENGTH.unpack_from(payload, position)
        position += _LENGTH.size
        if length > end - position:
            raise MalformedFrame("commands", end)
        found.append(payload[position : position + length])
        position += length
    return found
