"""Memory for decompressed records: grown, bounded, used again."""

from __future__ import annotations

import pytest

from vdl.pipeline.errors import UndecodableBatch
from vdl.records.compression import Compression, compress

cramjam = pytest.importorskip("cramjam")

from vdl.pipeline.inflated import BATCH_BYTES_MAX, PADDING, Inflated  # noqa: E402


def added(inflated: Inflated, codec: Compression, data: bytes) -> int:
    return inflated.add(int(codec), memoryview(bytes(compress(codec, data))))


@pytest.mark.parametrize("codec", list(Compression))
def test_inflated_batches_lie_end_to_end(codec: Compression) -> None:
    """Covers batches that grow a thousandfold, and batches after a clear, which leaves nothing."""
    inflated = Inflated()
    for _ in range(2):
        parts = [b"first", bytes(3_000_000), b"", b"last" * 1000]
        assert [added(inflated, codec, part) for part in parts] == [*map(len, parts)]
        joined = b"".join(parts)
        assert inflated.size == len(joined)
        assert inflated.memory[: inflated.size] == joined
        assert inflated.memory[inflated.size : inflated.size + len(PADDING)] == PADDING
        inflated.clear()
        added(inflated, codec, b"\xff" * 5_000_000)
        inflated.clear()


@pytest.mark.parametrize("codec", list(Compression))
def test_inflated_batch_at_its_limit_is_taken_and_one_byte_more_is_not(codec: Compression) -> None:
    inflated = Inflated()
    added(inflated, codec, b"before")
    assert added(inflated, codec, bytes(BATCH_BYTES_MAX)) == BATCH_BYTES_MAX
    for size in (BATCH_BYTES_MAX + 1, 2 * BATCH_BYTES_MAX):
        with pytest.raises(UndecodableBatch):
            added(inflated, codec, bytes(size))
    assert inflated.size == len(b"before") + BATCH_BYTES_MAX
    assert inflated.memory[: inflated.size] == b"before" + bytes(BATCH_BYTES_MAX)


def test_inflated_snappy_is_taken_in_blocks_and_plain() -> None:
    """Java's client writes blocks, and some others write plain Snappy.

    A truncated block is refused.
    """
    data = bytes(range(256)) * 1000
    stream = bytes(compress(Compression.SNAPPY, data))
    inflated = Inflated()
    assert inflated.add(2, memoryview(stream)) == len(data)
    assert inflated.add(2, memoryview(bytes(cramjam.snappy.compress_raw(data)))) == len(data)
    assert inflated.memory[: inflated.size] == data * 2
    with pytest.raises(UndecodableBatch, match="truncated"):
        inflated.add(2, memoryview(stream[:-1]))


@pytest.mark.parametrize("codec", [1, 2, 3, 4, 5, 7])
def test_inflated_garbage_is_refused(codec: int) -> None:
    inflated = Inflated()
    inflated.add(0, memoryview(b"good"))
    with pytest.raises(UndecodableBatch):
        inflated.add(codec, memoryview(b"\x00garbage" * 9))
    assert inflated.memory[: inflated.size] == b"good"
