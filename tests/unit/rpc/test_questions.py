"""Frames of the birth request, by which a new server looks for its cluster: small, exact shapes."""

from __future__ import annotations

import pytest

from rpc.birth import decode_answer, encode_answer, encode_ask
from rpc.errors import MalformedFrame
from rpc.reader import Buffer


def joined(buffers: list[Buffer]) -> memoryview:
    return memoryview(b"".join(buffers))


@pytest.mark.parametrize("number", [0, 7])
def test_answer_record_and_number_come_back(number: int) -> None:
    """A cluster record, with the requester's catalog replica."""
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
    """An answer is "empty" or carries a record."""
    with pytest.raises(MalformedFrame):
        decode_answer(memoryview(payload))
