"""Frames of requests on behalf of clients: exact shapes, and nothing else."""

from __future__ import annotations

import pytest

from rpc.errors import MalformedFrame
from rpc.queries import (
    GROUPS_MAX,
    AskQuorum,
    Elect,
    Elected,
    Query,
    Quorum,
    QuorumMember,
    Reply,
    decode_query,
    decode_reply,
    encode_query,
    encode_reply,
)
from rpc.reader import Buffer

QUERIES = (Elect(()), Elect((1 << 40, 7)), Elect(tuple(range(GROUPS_MAX))), AskQuorum(0))
REPLIES = (
    None,
    Elected(()),
    Elected((9, 1 << 50)),
    Quorum(3, 1 << 40, 77, ()),
    Quorum(3, 5, 77, (QuorumMember(1, False, 80, 1_700_000_000_000, -1),) * 2),
    Quorum(3, 5, 77, (QuorumMember(2, True, 0, -1, -1),)),
)


def joined(buffers: list[Buffer]) -> memoryview:
    return memoryview(b"".join(buffers))


@pytest.mark.parametrize("query", QUERIES)
def test_query_comes_back(query: Query) -> None:
    assert decode_query(joined(encode_query(1 << 60, query))) == (1 << 60, query)


@pytest.mark.parametrize("reply", REPLIES)
def test_reply_comes_back(reply: Reply | None) -> None:
    assert decode_reply(joined(encode_reply(5, reply))) == (5, reply)


def test_question_of_an_unknown_kind_is_no_error() -> None:
    """A newer server sends requests that this one cannot answer."""
    assert decode_query(memoryview(b"\x05" + bytes(7) + b"\x63what?")) == (5, None)


@pytest.mark.parametrize("frame", [encode_query(5, AskQuorum(9)), encode_query(5, Elect((1, 2)))])
def test_query_cut_is_malformed(frame: list[Buffer]) -> None:
    """A truncated query is malformed, or a shorter one where a whole group is cut off."""
    whole = joined(frame)
    for end in range(len(whole)):
        if end < 9 or (end - 9) % 8 or whole[8] != 1:
            with pytest.raises(MalformedFrame):
                decode_query(whole[:end])


@pytest.mark.parametrize(
    "reply",
    [
        b"",
        bytes(8),
        bytes(8) + b"\0more",
        bytes(8) + b"\1" + bytes(7),
        bytes(8) + b"\1" + bytes(8 * GROUPS_MAX + 8),
        bytes(8) + b"\2" + bytes(19),
        bytes(8) + b"\2" + bytes(20 + 28),
        bytes(8) + b"\2" + bytes(20) + bytes(4) + b"\2" + bytes(24),
        bytes(8) + b"\3",
    ],
)
def test_reply_of_another_shape_is_malformed(reply: bytes) -> None:
    with pytest.raises(MalformedFrame):
        decode_reply(memoryview(reply))
