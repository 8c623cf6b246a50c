"""Committed entries of a range, asked of any replica: RANGE and ENTRIES.

A replica that cannot read entries from its own disk asks another one for its copy. RANGE is

    0   request   u64   little endian, as everything here
    8   group     u64
    16  first     u64   index of the first entry wanted
    24  end       u64   index after the last

ENTRIES is the request's number (u64), then nothing if the asked one cannot help, or a RAFT payload
with one MsgApp that holds entries from `first` on, perhaps fewer than asked for.

Must not know: why somebody asks, logs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from struct import Struct
from typing import Final

from raft.messages import MsgApp
from raft.types import Entry
from rpc.errors import MalformedFrame
from rpc.frames import decode_messages, encode_messages
from rpc.reader import Buffer

_RANGE: Final = Struct("<QQQQ")
_REQUEST: Final = Struct("<Q")


@dataclass(frozen=True, slots=True)
class RangeRequest:
    """Who asks knows the answer by `request`."""

    request: int
    group: int
    first: int
    end: int


def encode_range(asked: RangeRequest) -> list[Buffer]:
    """The payload of a RANGE frame."""
    return [_RANGE.pack(asked.request, asked.group, asked.first, asked.end)]


def decode_range(payload: memoryview) -> RangeRequest:
    """Raises MalformedFrame."""
    if len(payload) != _RANGE.size:
        raise MalformedFrame("range")
    asked = RangeRequest(*_RANGE.unpack_from(payload))
    if not 0 < asked.first < asked.end:
        raise MalformedFrame("range")
    return asked


def encode_entries(request: int, group: int, entries: Sequence[Entry]) -> list[Buffer]:
    """The payload of an ENTRIES frame."""
    head: list[Buffer] = [_REQUEST.pack(request)]
    if not entries:
        return head
    message = MsgApp(0, 0, entries[-1].term, 0, entries[0].index - 1, list(entries), 0)
    return [*head, *encode_messages([(group, message)])]


def decode_entries(payload: memoryview) -> tuple[int, list[Entry]]:
    """(request, entries); the entries' payloads are views into the frame. Raises MalformedFrame."""
    if len(payload) < _REQUEST.size:
        raise MalformedFrame("entries")
    (request,) = _REQUEST.unpack_from(payload)
    rest = payload[_REQUEST.size :]
    if not len(rest):
        return request, []
    messages = decode_messages(rest)
    if len(messages) != 1 or not isinstance(messages[0][1], MsgApp):
        raise MalformedFrame("entries")
    return request, messages[0][1].entries
