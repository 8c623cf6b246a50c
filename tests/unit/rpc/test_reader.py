"""Frames from a byte stream: complete, byte by byte, damaged, large."""

from __future__ import annotations

import random

import pytest
from crc32c import crc32c

from rpc.errors import CorruptFrame, FrameTooLarge, MalformedFrame, RemoteError
from rpc.reader import (
    CHUNK_BYTES,
    HEAD_BYTES,
    LAST_PIECE,
    PIECE,
    PIECE_BYTES_MIN,
    FrameReader,
    frame_head,
)

SIZES = [0, 1, 15, 16, 17, 1_000, 16_383, 16_384, 16_385, 65_519, 65_520, 65_521, 300_000]


def frame(frame_type: int, payload: bytes) -> bytes:
    return frame_head(frame_type, len(payload), crc32c(payload)) + payload


def payload_of(size: int) -> bytes:
    return random.Random(size).randbytes(size)


def feed(reader: FrameReader, data: bytes, *, step: int) -> list[tuple[int, memoryview]]:
    """Return all frames of `data`, received at most `step` bytes at a time."""
    frames: list[tuple[int, memoryview]] = []
    at = 0
    while at < len(data):
        buffer = reader.get_buffer()
        assert len(buffer) > 0
        taken = min(step, len(buffer), len(data) - at)
        buffer[:taken] = data[at : at + taken]
        at += taken
        reader.buffer_updated(taken)
        while (found := reader.next_frame()) is not None:
            frames.append(found)
    return frames


@pytest.mark.parametrize("step", [1, 13, 4_096, 65_536, 1 << 20])
def test_reader_any_cut_of_the_stream_gives_the_same_frames(step: int) -> None:
    """The split points of the stream do not matter, and no view changes after it was returned."""
    rng = random.Random(1)
    sizes = [size for size in SIZES if step > 1 or size < 20_000] * 3
    rng.shuffle(sizes)
    stream = b"".join(frame(size % 200, payload_of(size)) for size in sizes)
    frames = feed(FrameReader(frame_bytes_max=1 << 20), stream, step=step)
    assert [kind for kind, _ in frames] == [size % 200 for size in sizes]
    for (_, view), size in zip(frames, sizes, strict=True):
        assert view == payload_of(size)
        assert not view.readonly


def test_reader_memory_of_a_large_frame_is_used_again_once_nobody_holds_it() -> None:
    """Any number may be held; held memory is not written to."""
    reader = FrameReader(frame_bytes_max=4 << 20)
    payloads = [payload_of(size) for size in (300_000, 1 << 20, 299_999, 1_000_000, 2 << 20)] * 4
    held: list[tuple[bytes, memoryview]] = []
    memories: list[object] = []  # held, so that each has an identity of its own
    for number, payload in enumerate(payloads):
        [(_, view)] = feed(reader, frame(7, payload), step=CHUNK_BYTES)
        assert view == payload
        memories.append(view.obj)
        if number % 3 == 0:
            held.append((payload, view[1:-1].toreadonly()))
        view.release()
        for kept, part in held:
            assert part == kept[1:-1]
    assert len({id(memory) for memory in memories}) < len(payloads)
    for _, part in held:
        part.release()
    before = len({id(memory) for memory in memories})
    for _ in range(10):
        [(_, view)] = feed(reader, frame(7, payload_of(1 << 20)), step=CHUNK_BYTES)
        memories.append(view.obj)
        view.release()
    assert len({id(memory) for memory in memories}) <= before + 1


def test_reader_large_frame_is_received_into_its_own_buffer() -> None:
    """A large payload is read in place, except for the bytes that arrived with its head."""
    payload = payload_of(1 << 20)
    data = frame(7, payload)
    reader = FrameReader(frame_bytes_max=1 << 20)
    first = reader.get_buffer()
    assert len(first) == CHUNK_BYTES
    first[:] = data[:CHUNK_BYTES]
    reader.buffer_updated(CHUNK_BYTES)
    assert reader.next_frame() is None
    rest = reader.get_buffer()
    assert len(rest) == HEAD_BYTES + len(payload) - CHUNK_BYTES
    rest[:] = data[CHUNK_BYTES:]
    reader.buffer_updated(len(rest))
    found = reader.next_frame()
    assert found is not None
    assert found[1].obj is rest.obj
    assert found[1] == payload


@pytest.mark.parametrize("at", range(HEAD_BYTES))
def test_reader_damaged_head_is_noticed_before_its_length_is_believed(at: int) -> None:
    """Any flipped bit in the head ends the stream as soon as the head is complete."""
    for bit in range(8):
        data = bytearray(frame(7, b"payload")[:HEAD_BYTES])
        data[at] ^= 1 << bit
        with pytest.raises(CorruptFrame, match="head"):
            feed(FrameReader(frame_bytes_max=1 << 20), bytes(data), step=1)


@pytest.mark.parametrize("size", [1, 1_000, 100_000])
def test_reader_damaged_payload_is_noticed(size: int) -> None:
    """Any flipped bit in the payload, records included, is detected."""
    rng = random.Random(size)
    for _ in range(20):
        data = bytearray(frame(7, payload_of(size)))
        data[HEAD_BYTES + rng.randrange(size)] ^= 1 << rng.randrange(8)
        with pytest.raises(CorruptFrame, match="payload"):
            feed(FrameReader(frame_bytes_max=1 << 20), bytes(data), step=1 << 20)


def test_reader_zeros_are_not_a_frame() -> None:
    """A stream of zeros fails at the first head."""
    with pytest.raises(CorruptFrame):
        feed(FrameReader(frame_bytes_max=1 << 20), bytes(HEAD_BYTES), step=1)


def test_reader_length_at_the_limit_passes_one_more_is_refused() -> None:
    """The bound is exact and is checked before anything is allocated."""
    reader = FrameReader(frame_bytes_max=1_000)
    assert len(feed(reader, frame(1, bytes(1_000)), step=1 << 20)) == 1
    with pytest.raises(FrameTooLarge) as caught:
        feed(reader, frame(1, bytes(1_001))[:HEAD_BYTES], step=1 << 20)
    assert (caught.value.length, caught.value.bytes_max) == (1_001, 1_000)


def test_reader_flags_of_a_future_version_are_refused() -> None:
    """Flags have no meaning yet: a frame with flags is refused."""
    head = bytearray(frame(1, b""))
    head[5] = 1
    head[12:16] = crc32c(bytes(head[:12]), 0x56444C31).to_bytes(4, "little")
    with pytest.raises(MalformedFrame):
        feed(FrameReader(frame_bytes_max=1_000), bytes(head), step=100)


def test_reader_random_bytes_raise_only_remote_errors() -> None:
    """Bytes from a stranger raise RemoteError and nothing else."""
    for seed in range(300):
        with pytest.raises(RemoteError):
            feed(FrameReader(frame_bytes_max=1 << 16), random.Random(seed).randbytes(64), step=9)


def piece(payload: bytes, flags: int, frame_type: int = 7) -> bytes:
    return frame_head(frame_type, len(payload), crc32c(payload), flags) + payload


@pytest.mark.parametrize("step", [13, 4_096, 1 << 20])
def test_reader_joins_pieces_and_passes_whole_frames_between_them(step: int) -> None:
    """A large frame may come in pieces; frames between them are not delayed."""
    parts = [payload_of(PIECE_BYTES_MIN), payload_of(100_000), payload_of(17)]
    stream = piece(parts[0], PIECE) + frame(8, b"urgent") + piece(parts[1], PIECE)
    stream += frame(9, b"") + piece(parts[2], LAST_PIECE) + frame(7, b"next")
    found = feed(FrameReader(frame_bytes_max=1 << 20), stream, step=step)
    assert [kind for kind, _ in found] == [8, 9, 7, 7]
    assert [bytes(view) for _, view in found] == [b"urgent", b"", b"".join(parts), b"next"]
    joined = found[2][1]
    assert not joined.readonly
    assert memoryview(joined.obj).nbytes == len(joined), "a view of more memory than it needs"


@pytest.mark.parametrize(
    ("stream", "error"),
    [
        (piece(b"", LAST_PIECE), MalformedFrame),
        (piece(payload_of(PIECE_BYTES_MIN - 1), PIECE), MalformedFrame),
        (piece(payload_of(PIECE_BYTES_MIN), 3), MalformedFrame),
        (piece(payload_of(20_000), PIECE) + piece(b"x", LAST_PIECE, 8), MalformedFrame),
        (piece(payload_of(20_000), PIECE) * 2 + piece(b"x", LAST_PIECE), FrameTooLarge),
    ],
)
def test_reader_refuses_pieces_that_cost_more_than_they_hold(
    stream: bytes, error: type[RemoteError]
) -> None:
    """None without the others, none too small, none of two frames, and all within the bound."""
    with pytest.raises(error):
        feed(FrameReader(frame_bytes_max=40_000), stream, step=1 << 16)


def test_reader_joins_pieces_of_which_the_receiver_holds_views() -> None:
    """As asyncio does on links with TLS."""
    parts = [payload_of(size) for size in (20_000, 300_000, 70_000)]
    flags = [PIECE, PIECE, LAST_PIECE]
    stream = b"".join(map(piece, parts, flags)) + frame(8, b"next")
    reader, held, found = FrameReader(frame_bytes_max=1 << 20), [], []
    at = 0
    while at < len(stream):
        buffer = reader.get_buffer()
        held.append(memoryview(buffer))
        taken = min(50_000, len(buffer), len(stream) - at)
        buffer[:taken] = stream[at : at + taken]
        at += taken
        reader.buffer_updated(taken)
        while (one := reader.next_frame()) is not None:
            found.append(one)
    assert found == [(7, b"".join(parts)), (8, b"next")]


def test_reader_takes_pieces_up_to_the_bound() -> None:
    """The bound is on the frame, not on its pieces."""
    stream = piece(payload_of(20_000), PIECE) + piece(payload_of(20_000), LAST_PIECE)
    ((_, payload),) = feed(FrameReader(frame_bytes_max=40_000), stream * 1, step=1 << 16)
    assert payload == payload_of(20_000) * 2
