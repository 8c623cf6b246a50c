"""Ranges of entries, requested from any replica: RANGE and ENTRIES.

A replica that cannot read entries from its own disk requests another replica's copy. It has
committed them, and knows the term of each. An entry with that index and term is the same entry,
even if the other replica does not know that it is committed (Log Matching, §5.3). RANGE is

    0   request   u64   little endian, as everything here
    8   group     u64
    16  first     u64   index of the first entry wanted
    24  end       u64   index after the last
    32  state     u64   1: if they are compacted away, the resulting state is wanted; else 0

and for a log that is compacted

    40  upto      u64   how far the requesting replica is compacted,
    48  markers   u64   and up to where deletion markers are gone

A replica that is compacted less far would bring back records that are gone, so it answers with
nothing. Entries that are compacted further may be smaller than the ones they stand for. Peers below
`VERSION_OF_COMPACTION` have no such logs.

ENTRIES is

    0   request   u64
    8   log start u64   first index of the answering replica, below which it has nothing; 0: no
                        replica
    16  upto      u64   how far the answering replica is compacted: copies of entries up to there
                        may be smaller than the ones they stand for. Only between peers that speak
                        `VERSION_OF_COMPACTED_COPIES`

then nothing if the server cannot help, or a RAFT payload with one message of the group: a MsgApp
with entries from `first` on, possibly fewer than requested, or a MsgSnap with the state.

Does not depend on logs, or on the reason for a request.
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
    """Request for entries; `request` identifies the answer."""

    request: int
    group: GroupId
    first: Index
    end: Index
    wants_state: bool = False
    compacted: tuple[int, int] = (0, 0)


@dataclass(frozen=True, slots=True)
class RangeAnswer:
    """Answer to `request`: entries, a state, or neither; payloads are views into the frame."""

    request: int
    log_start: Index
    group: GroupId | None = None
    """Group of the contents; None if the answer was decoded and is empty."""
    entries: Sequence[Entry] = ()
    state: Snapshot | None = None
    compacted_upto: Index = NO_INDEX


def encode_range(asked: RangeRequest) -> list[Buffer]:
    """Encode the payload of a RANGE frame."""
    head = _RANGE.pack(asked.request, asked.group, asked.first, asked.end, asked.wants_state)
    return [head] if asked.compacted == (0, 0) else [head, _COMPACTION.pack(*asked.compacted)]


def decode_range(payload: memoryview) -> RangeRequest:
    """Decode a RANGE payload. Raises MalformedFrame."""
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
    """Encode the payload of an ENTRIES frame for a peer that speaks `version`."""
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
    """Decode the ENTRIES payload of a peer that speaks `version`. Raises MalformedFrame."""
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
