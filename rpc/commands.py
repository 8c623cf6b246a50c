"""Commands for the leader of a group, and their outcomes.

PROPOSE requests that the catalog's leader append a command. The proposer identifies its request by
an id of its own and receives one of two answers in PROPOSED: *accepted*, which does not imply
commit, or a definite refusal: the command is in no log. If the link ends before the answer, the
outcome is unknown.

COMMAND is for the leader of any group, and is answered by COMMAND_DONE when the command is applied
there. Its sender sends it again until it is answered, so it may be applied more than once.

PROPOSE and COMMAND, little-endian: request_id u64, group u64, timeout_ms u32, then the command.
PROPOSED: request_id u64, outcome u8, 24 bytes without a meaning.
COMMAND_DONE: request_id u64, fate u8, code i16, then the machine's answer. Code and answer have a
meaning with APPLIED only. COMMANDS and COMMANDS_DONE, all of a turn: payloads of these, each behind
its length u32.

Does not depend on the meaning of commands.
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
_PROPOSED = Struct("<QB24x")
_DONE = Struct("<QBh")


class ProposeOutcome(IntEnum):
    """Outcome of a proposed command. All but ACCEPTED mean that it was never appended."""

    ACCEPTED = 0
    NOT_LEADER = 1  # or a limit, or a leadership transfer: it may be sent again
    UNKNOWN_GROUP = 3
    REFUSED = 5  # not a command that the leader knows; it must not be sent again


class Fate(IntEnum):
    """Outcome of a command that is answered when it is applied."""

    APPLIED = 0
    NOT_APPENDED = 1
    """The server does not lead the group, or has no room. The command may be sent again."""
    UNKNOWN = 2
    """The command may or may not be applied. It may be sent again."""
    REFUSED = 3
    """The group's leader can never append this command. It must not be sent again."""


_OUTCOME_BY_CODE = {outcome.value: outcome for outcome in ProposeOutcome}
_FATE_BY_CODE = {fate.value: fate for fate in Fate}


@dataclass(slots=True)
class SentCommand:
    """A command for the leader of `group`; its sender waits for `timeout_ms` more."""

    request_id: int
    group: GroupId
    timeout_ms: int
    command: Buffer


@dataclass(slots=True)
class Proposed:
    """Answer to PROPOSE."""

    request_id: int
    outcome: ProposeOutcome


@dataclass(slots=True)
class CommandDone:
    """Answer to COMMAND."""

    request_id: int
    fate: Fate
    code: int = 0
    answer: Buffer = b""


def encode_command(sent: SentCommand) -> list[Buffer]:
    """Encode the payload of a PROPOSE or COMMAND frame."""
    return [_COMMAND.pack(sent.request_id, sent.group, sent.timeout_ms), sent.command]


def decode_command(payload: memoryview) -> SentCommand:
    """Decode a command; `command` is a view into the payload. Raises MalformedFrame."""
    if len(payload) < _COMMAND.size:
        raise MalformedFrame("command", len(payload))
    request_id, group, timeout_ms = _COMMAND.unpack_from(payload)
    return SentCommand(request_id, group, timeout_ms, payload[_COMMAND.size :])


def encode_proposed(proposed: Proposed) -> list[Buffer]:
    """Encode the payload of a PROPOSED frame."""
    return [_PROPOSED.pack(proposed.request_id, proposed.outcome)]


def decode_proposed(payload: memoryview) -> Proposed:
    """Decode a PROPOSED payload. Raises MalformedFrame."""
    if len(payload) != _PROPOSED.size:
        raise MalformedFrame("proposed", len(payload))
    request_id, code = _PROPOSED.unpack_from(payload)
    outcome = _OUTCOME_BY_CODE.get(code)
    if outcome is None:
        raise MalformedFrame(f"proposed outcome {code}", 8)
    return Proposed(request_id, outcome)


def encode_done(done: CommandDone) -> list[Buffer]:
    """Encode the payload of a COMMAND_DONE frame."""
    return [_DONE.pack(done.request_id, done.fate, done.code), done.answer]


def decode_done(payload: memoryview) -> CommandDone:
    """Decode a COMMAND_DONE payload; `answer` is a view into it. Raises MalformedFrame."""
    if len(payload) < _DONE.size:
        raise MalformedFrame("command done", len(payload))
    request_id, code, error = _DONE.unpack_from(payload)
    fate = _FATE_BY_CODE.get(code)
    if fate is None:
        raise MalformedFrame(f"command done fate {code}", 8)
    return CommandDone(request_id, fate, error, payload[_DONE.size :])


def joined(payloads: Sequence[Sequence[Buffer]]) -> list[Buffer]:
    """Join single payloads to that of a COMMANDS or COMMANDS_DONE frame."""
    buffers: list[Buffer] = []
    for payload in payloads:
        buffers.append(_LENGTH.pack(sum(map(len, payload))))
        buffers += payload
    return buffers


def split(payload: memoryview) -> list[memoryview]:
    """Return the single payloads that were joined. Raises MalformedFrame."""
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
