"""Reading of a connection: frames, memory, limits. `test_listener.py` tests its writes."""

import gc
import mmap
import random
import struct
import weakref
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from segments.api import Buffer
from tests.unit.kafka.fake_host import FakeHost, FakeLog
from vdl.kafka.configs.options import KafkaOptions
from vdl.kafka.connections.connection import (
    CHUNK_BYTES_MAX,
    CHUNK_BYTES_MIN,
    COPIED_BYTES_MAX,
    GROWTH,
    MAPPED_BYTES_MIN,
    OFFERED_BYTES_MAX,
    REQUEST_BYTES_MAX,
    BadFrameLength,
    Connection,
    FrameReader,
    Request,
)
from vdl.kafka.connections.turn import Turn
from vdl.kafka.context import Context
from vdl.kafka.wire.header import RequestHeader, encode_request_header
from vdl.sim.clock import NodeClock, VirtualTime

PRODUCE = 0


def request_frame(body: bytes, correlation_id: int = 1, version: int = 9) -> bytes:
    header = RequestHeader(PRODUCE, version, correlation_id, "tests")
    head = encode_request_header(header, is_flexible=version >= 9)
    return struct.pack(">i", len(head) + len(body)) + head + body


class Transport:
    """Transport that takes everything and is never paused."""

    def send(self, buffers: Sequence[Buffer]) -> Sequence[Buffer]:
        return []

    def close(self, rest: Sequence[Buffer]) -> None: ...

    def abort(self) -> None: ...

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


class FullTransport(Transport):
    """Transport that takes `room` bytes in all."""

    def __init__(self, room: int) -> None:
        self.room = room
        self.offered: list[int] = []

    def send(self, buffers: Sequence[Buffer]) -> Sequence[Buffer]:
        (buffer,) = buffers
        self.offered.append(len(buffer))
        taken = min(self.room, len(buffer))
        self.room -= taken
        return [memoryview(buffer)[taken:]] if taken < len(buffer) else []


def connect(bytes_max: int = REQUEST_BYTES_MAX, transport: Transport | None = None) -> Connection:
    clock = NodeClock(VirtualTime())
    context = Context(FakeHost(clock), KafkaOptions(), clock, FakeLog(), bytes)
    answers = context.answers.account()
    return Connection(transport or Transport(), Turn(context), answers, bytes_max, lambda: None)


def feed(connection: Connection, data: bytes, step: int) -> list[Request]:
    """Write `data` into the connection, at most `step` bytes at a time, as a socket would."""
    requests = []
    view = memoryview(data)
    while view:
        buffer = connection.get_buffer()
        assert len(buffer) > 0
        count = min(len(buffer), len(view), step)
        buffer[:count] = view[:count]
        view = view[count:]
        requests += connection.received(count, 0)
    return requests


@given(
    sizes=st.lists(st.sampled_from([0, 1, 90, 4_000, 20_000, 70_000, 300_000]), max_size=8),
    step=st.sampled_from([333, 4_096, 65_536, 1 << 20]),
)
@settings(max_examples=60, deadline=None)
def test_stream_cut_anywhere_gives_the_same_requests(sizes: list[int], step: int) -> None:
    """The order is kept too, and views keep their bytes."""
    rng = random.Random(repr(sizes))
    bodies = [rng.randbytes(size) for size in sizes]
    data = b"".join(request_frame(body, number) for number, body in enumerate(bodies))
    connection = connect()
    requests = feed(connection, data, step)
    # Compared after everything has arrived: no view may have been overwritten meanwhile.
    assert [bytes(request.body) for request in requests] == bodies
    assert [request.correlation_id for request in requests] == list(range(len(bodies)))
    assert all(request.client_id == "tests" for request in requests)
    assert not connection.frames.arrived


def test_small_stream_byte_by_byte_gives_the_same_requests() -> None:
    """Each call has one byte."""
    data = b"".join(request_frame(bytes([number]) * 20, number) for number in range(5))
    requests = feed(connect(), data, 1)
    assert [bytes(request.body) for request in requests] == [bytes([n]) * 20 for n in range(5)]


def test_body_can_be_patched_in_place() -> None:
    """A handler patches the batch header in the request's buffer, so the body is writable."""
    (request,) = feed(connect(), request_frame(b"abcd"), 100)
    request.body[0:2] = b"XY"
    assert bytes(request.body) == b"XYcd"


def test_request_counts_its_whole_frame() -> None:
    """`bytes` is the size of the frame with its header, without the length in front."""
    frame = request_frame(b"abcd")
    (request,) = feed(connect(), frame, 100)
    assert request.bytes == len(frame) - 4


def test_mid_request_is_true_from_the_first_byte_to_the_last() -> None:
    """The deadline of a request counts from its first byte."""
    connection = connect()
    frame = request_frame(bytes(50))
    assert not connection.frames.arrived
    feed(connection, frame[:1], 10)
    assert connection.frames.arrived
    feed(connection, frame[1:-1], 100)
    assert connection.frames.arrived
    assert len(feed(connection, frame[-1:], 10)) == 1
    assert not connection.frames.arrived


@pytest.mark.parametrize("length", [-1, -(2**31), 101, 1_195_725_856, 0x16030102])
def test_frame_length_that_cannot_be_is_refused_again_and_again(length: int) -> None:
    """Negative, above the limit, "GET " and a TLS hello: the error is permanent."""
    connection = connect(bytes_max=100)
    assert feed(connection, struct.pack(">i", length), 4) == []
    fault = repr(BadFrameLength(length, 100))
    assert connection.fault == fault
    assert feed(connection, request_frame(b"good"), 100) == []
    assert connection.fault == fault


def test_frame_at_the_limit_is_taken_and_one_past_it_is_not() -> None:
    """`bytes_max` counts the frame without its length."""
    frame = request_frame(bytes(30))
    assert len(feed(connect(bytes_max=len(frame) - 4), frame, 100)) == 1
    connection = connect(bytes_max=len(frame) - 5)
    assert feed(connection, frame, 100) == []
    assert connection.fault.startswith("BadFrameLength")


def test_limit_may_be_raised_once_a_client_has_authenticated() -> None:
    """The limit before authentication is lower."""
    connection = connect(bytes_max=60)
    feed(connection, request_frame(bytes(10)), 100)
    connection.frames.bytes_max = 1_000
    assert len(feed(connection, request_frame(bytes(500)), 2_000)) == 1


@pytest.mark.parametrize("size", range(8))
def test_frame_too_short_for_a_header_is_a_wire_error(size: int) -> None:
    """A frame of 0 to 7 bytes cannot hold a header; the error is permanent."""
    connection = connect()
    data = struct.pack(">i", size) + bytes(size)
    for more in (data, request_frame(b"good")):
        assert feed(connection, more, 100) == []
        assert connection.fault


def test_frame_with_a_bad_header_is_freed_with_its_charge() -> None:
    """Its memory is no longer counted, so nothing may hold it: neither the connection nor a
    reference cycle that only the collector frees."""
    connection = connect()
    tag_beyond_the_frame = bytes([1, 0, 0xFF, 0xFF, 0xFF, 0x7F])
    head = struct.pack(">hhih", PRODUCE, 9, 1, -1) + tag_beyond_the_frame
    data = head + bytes(MAPPED_BYTES_MIN)
    gc.disable()
    try:
        feed(connection, struct.pack(">i", len(data)) + data[:-1], 1 << 20)
        mapped = weakref.ref(connection.frames._view.obj)
        assert isinstance(mapped(), mmap.mmap)
        assert feed(connection, data[-1:], 1) == []
        assert connection.fault
        assert mapped() is None
    finally:
        gc.enable()


def test_requests_before_a_bad_one_are_given_out() -> None:
    """Requests that arrived before the bad bytes are answered."""
    connection = connect()
    data = request_frame(b"good") + struct.pack(">i", -5)
    (request,) = feed(connection, data, 100)
    assert bytes(request.body) == b"good"
    assert connection.fault.startswith("BadFrameLength")


def test_claimed_length_takes_no_memory_before_bytes_arrive() -> None:
    """A buffer grows with the bytes that have arrived, not with the claimed length."""
    reader = FrameReader()
    arrived = 0
    prefix = struct.pack(">i", 90 << 20)
    while arrived < 1 << 20:
        buffer = reader.get_buffer()
        backing = buffer.obj
        assert isinstance(backing, bytearray)
        assert len(backing) <= max(CHUNK_BYTES_MAX, GROWTH * (arrived + 4))
        count = min(1_000, len(buffer))
        if not arrived:
            buffer[:4] = prefix
        reader.buffer_updated(count)
        arrived += count
        assert reader.next_frame() is None


def test_large_frame_has_memory_of_its_own_and_no_more_than_its_size() -> None:
    """A frame too large for a chunk ends where its buffer ends, so its view keeps no other bytes
    alive."""
    (request,) = feed(connect(), request_frame(bytes(500_000)) + request_frame(b"next"), 70_000)[:1]
    backing = request.body.obj
    assert isinstance(backing, bytearray)
    assert len(backing) == 4 + request.bytes


def test_small_frames_share_a_chunk_of_bounded_size() -> None:
    """A view keeps at most one chunk alive."""
    requests = feed(connect(), request_frame(bytes(40)) * 3_000, 1 << 20)
    assert len(requests) == 3_000
    backings = {id(request.body.obj): request.body.obj for request in requests}
    assert 1 < len(backings) < 20
    for backing in backings.values():
        assert isinstance(backing, bytearray)
        assert CHUNK_BYTES_MIN <= len(backing) <= CHUNK_BYTES_MAX


def test_idle_connection_holds_no_buffer() -> None:
    """An idle connection costs no buffer, so ten thousand of them cost none."""
    reader = FrameReader()
    buffer = reader.get_buffer()
    buffer[:7] = struct.pack(">i", 3) + b"abc"
    reader.buffer_updated(7)
    frame = reader.next_frame()
    assert frame is not None
    assert frame.tobytes() == b"abc"
    # The next bytes go into new memory; the frame's views keep the old buffer.
    assert reader.get_buffer().obj is not frame.obj


@pytest.mark.parametrize(
    ("size", "left", "held"),
    [
        (16 << 20, COPIED_BYTES_MAX, COPIED_BYTES_MAX),
        (16 << 20, COPIED_BYTES_MAX + 1, 16 << 20),
        (64 << 20, COPIED_BYTES_MAX + 1, COPIED_BYTES_MAX + 1),
    ],
)
def test_unsent_rest_is_copied_unless_that_takes_long(size: int, left: int, held: int) -> None:
    """A copy lets go of the whole answer. What is too long for one is counted with all of it,
    unless that is far more."""
    transport = FullTransport(size - left)
    connection = connect(transport=transport)
    connection.queue(memoryview(bytes(size)), [], size)
    while transport.room:
        assert not connection.flush()
        connection._turn.send_budget._next_turn()
    assert not connection.flush()
    assert max(transport.offered) == OFFERED_BYTES_MAX
    assert sum(map(len, connection.unsent)) == left
    assert connection.answers.held == held
