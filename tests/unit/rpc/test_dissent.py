"""Frames by which replicas report that they cannot follow a leader."""

import pytest

from rpc.dissent import Dissenting, Reason, decode_dissent, encode_dissent
from rpc.errors import MalformedFrame
from rpc.peer import FrameType


def test_dissent_round_trips_byte_by_byte() -> None:
    """One replica a frame."""
    dissenting = Dissenting(9, (3 << 16) | 1, Reason.DIVERGED, 5, 25)
    (data,) = encode_dissent(dissenting)
    assert bytes(data).hex() == (
        "09000000000000000100030000000000020500000000000000" + "1900000000000000"
    )
    assert decode_dissent(memoryview(data)) == dissenting
    assert FrameType.DISSENT == 25
    for wrong in (b"", bytes(data)[:-1], bytes(data) + b"\0", bytes(data)[:16] + b"\3" * 17):
        with pytest.raises(MalformedFrame):
            decode_dissent(memoryview(wrong))
