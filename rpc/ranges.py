"""Entries of a range, asked of any replica: RANGE and ENTRIES.

A replica that cannot read entries from its own disk asks another one for its copy. It has committed
them, and knows the term of each: an entry with that index and term is the one, whether the asked
replica knows that it is committed or not (Log Matching, §5.3). RANGE is

    0   request   u64   little endian, as everything here
    8   group     u64
    16  first     u64   index of the first entry wanted
    24  end       u64   index after the last
    32  state     u64   1: if they are cut off, the state that was made of them is wanted; else 0

and of a log that is compacted

    40  upto      u64   how far the asking replica is compacted,
    48  markers   u64   and up to where deletion markers are gone

From a replica that is not compacted as far, records would come back that are gone: such ones answer
with nothing. What is compacted further may be smaller than what it stands for. Peers that speak
less than `VERSION_OF_COMPACTION` have no such logs.

ENTRIES is

    0   request   u64
    8   log start u64   the asked replica's first index, below which it has nothing; 0: no replica
    16  upto      u64   how far the asked replica is compacted: copies of entries up to there may
                        be smaller than what they stand for. Only between peers that speak
                        `VERSION_OF_COMPACTED_COPIES`

then nothing if the asked one cannot help, or a RAFT payload with one message of the group: a MsgApp
that holds entries from `first` on, perhaps fewer than asked for, or a MsgSnap with the state.

Must not know: why somebody asks, logs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from struct import Struct
from typing import Final

from ids import NO_INDEX, NO_TERM, GroupId, Index
from raft.messages import MsgApp, MsgSnap
from raft.types import NONE, Entry, Snapshot
from rpc.errors import MalformedFrame
from rpc.frames import decode_messages, encode_messages
from rpc.hello import VERSION_OF_COMPACTED_COPIES
from rpc.reader import Buffer

_RANGE: Final = Struct("<QQQQQ")
_COMPACTION: Final = Struct("<QQ")
_ANSWER: Final = Struct("<QQ")
_COMPACTED: Final = Struct("<Q")


@dataclass(frozen=True, slots=True)
class RangeRequest:
    """Who asks knows the answer by `request`."""

    request: int
    group: GroupId
    first: Index
    end: Index
    wants_state: bool = False
    compacted: tuple[int, int] = (0, 0)


@dataclass(frozen=True, slots=True)
class RangeAnswer:
    """To `request`: entries or a state, or neither; payloads are views into the frame."""

    request: int
    log_start: Index
    group: GroupId | None = None
    """Of what it brings; None where it was decoded and brings nothing: it names none then."""
    entries: Sequence[Entry] = ()
    state: Snapshot | None = None
    compacted_upto: Index = NO_INDEX


def encode_range(asked: RangeRequest) -> list[Buffer]:
    """The payload of a RANGE frame."""
    head = _RANGE.pack(asked.request, asked.group, asked.first, asked.end, asked.wants_state)
    return [head] if asked.compacted == (0, 0) else [head, _COMPACTION.pack(*asked.compacted)]


def decode_range(payload: memoryview) -> RangeRequest:
    """Raises MalformedFrame."""
    if len(payload) not in (_RANGE.size, _RANGE.size + _COMPACTION.size):
        raise MalformedFrame("range")
    compacted = (0, 0)
    if len(payload) > _RANGE.size:
        compacted = _COMPACTION.unpack_from(payload, _RANGE.size)
    request, group, first, end, wants_state = _RANGE.unpack_from(payload)
    if not 0 < first < end or wants_state > 1:
        raise MalformedFrame("range")
    return RangeRequest(request, group, first, end, bool(wants_state), compacted)


def encode_answer(answer: RangeAnswer, version: int) -> list[Buffer]:
    """The payload of an ENTRIES frame for a peer that speaks `version`."""
    head: list[Buffer] = [_ANSWER.pack(answer.request, answer.log_start)]
    if version >= VERSION_OF_COMPACTED_COPIES:
        head.append(_COMPACTED.pack(answer.compacted_upto))
    entries, state = answer.entries, answer.state
    message: MsgApp | MsgSnap
    if entries:
        message = MsgApp(
            NONE, NONE, entries[-1].term, NO_TERM, entries[0].index - 1, list(entries), NO_INDEX
        )
    elif state is not None:
        message = MsgSnap(NONE, NONE, state.term, state)
    else:
        return head
    assert answer.group is not None, answer.request
    return [*head, *encode_messages([(answer.group, message)])]


def decode_answer(payload: memoryview, version: int) -> RangeAnswer:
    """Of a peer that speaks `version`. Raises MalformedFrame."""
    tells_compaction = version >= VERSION_OF_COMPACTED_COPIES
    size = _ANSWER.size + (_COMPACTED.size if tells_compaction else 0)
    if len(payload) < size:
        raise MalformedFrame("entries")
    request, log_start = _ANSWER.unpack_from(payload)
    upto = NO_INDEX
    if tells_compaction:
        (upto,) = _COMPACTED.unpack_from(payload, _ANSWER.size)
    rest = payload[size:]
    if not len(rest):
        return RangeAnswer(request, log_start, compacted_upto=upto)
    messages = decode_messages(rest)
    if len(messages) != 1:
        raise MalformedFrame("entries")
    ((group, message),) = messages
    if isinstance(message, MsgApp):
        return RangeAnswer(request, log_start, group, message.entries, compacted_upto=upto)
    if isinstance(message, MsgSnap):
        state = message.snapshot
        return RangeAnswer(request, log_start, group, state=state, compacted_upto=upto)
    raise MalformedFrame("entries")
