"""Positions of records, guessed by zeros or walked, are the same; memory is used again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vdl.records.batch import BatchFields, Record, build_batch

np = pytest.importorskip("numpy", reason="needs the `spark` extra")

from vdl.pipeline import record_bodies as bodies  # noqa: E402
from vdl.pipeline.errors import UndecodableBatch  # noqa: E402
from vdl.pipeline.inflated import PADDING  # noqa: E402

HEADER_BYTES = 61
PLAIN = b'{"origin":"ORD","delay":7}'
ZEROS = st.lists(st.sampled_from([0, 0, 2, 6, 64, 130, 200]), max_size=60).map(bytes)
"""Bytes that look like ends of records and lengths."""


def lanes(batches: Sequence[Sequence[Record]]) -> tuple[bytearray, list[int], list[int]]:
    """Return (the records of batches end to end and padding, their sizes, their counts)."""
    parts = [bytes(build_batch(list(records), BatchFields()))[HEADER_BYTES:] for records in batches]
    return bytearray(b"".join([*parts, PADDING])), [*map(len, parts)], [*map(len, batches)]


def both(batches: Sequence[Sequence[Record]]) -> tuple[Any, Any]:
    """Return the guess, or None, and the final result."""
    buffer, sizes, counts = lanes(batches)
    data = np.frombuffer(buffer, np.uint8)
    edges = np.cumsum([0, *sizes])
    return bodies._guess(data, edges, counts), bodies.record_bodies(data, buffer, sizes, counts)


def walked(batches: Sequence[Sequence[Record]]) -> list[int]:
    buffer, sizes, counts = lanes(batches)
    return list(bodies._walk(buffer, np.cumsum([0, *sizes]), counts).tolist())


@pytest.mark.parametrize("size", [0, 1, 60, 130, 20_000, 300_000])
def test_bodies_of_records_without_headers_are_guessed(size: int) -> None:
    """Covers lengths of one, two and three bytes, in several batches."""
    records = [Record(key=b"k", value=b"v" * (size + n), timestamp=n) for n in range(5)]
    guessed, found = both([records, records[:1], records])
    assert guessed is not None
    assert found[0].tolist() == guessed[0].tolist()
    assert len(found[0]) == 11


def test_bodies_of_values_with_zeros_are_guessed_all_the_same() -> None:
    """A value contains a pattern like a record's beginning, but no record ends there."""
    records = [Record(value=b"\x00\x20\x00" + PLAIN, timestamp=n) for n in range(50)]
    guessed, _ = both([records])
    assert guessed is not None


@pytest.mark.parametrize(
    "odd",
    [
        Record(value=PLAIN, headers=[("a", b"b")]),
        Record(value=bytes(1 << 20)),
        Record(value=b"x" * (1 << 21)),
    ],
)
def test_bodies_that_cannot_be_guessed_are_walked(odd: Record) -> None:
    """Covers headers in the middle, and a length of four bytes."""
    plain = [Record(value=PLAIN)] * 3
    guessed, (at, ends) = both([[*plain, odd, *plain]])
    assert guessed is None
    assert len(at) == 7
    assert (at <= ends).all()


def test_bodies_of_lying_counts_are_refused() -> None:
    """One record more or less than there are, or counted in the other batch."""
    records = [Record(value=PLAIN, timestamp=n) for n in range(4)]
    buffer, sizes, _ = lanes([records, records])
    data = np.frombuffer(buffer, np.uint8)
    for counts in ([4, 3], [4, 5], [3, 5], [5, 3], [0, 8], [8, 0]):
        with pytest.raises(UndecodableBatch):
            bodies.record_bodies(data, buffer, sizes, counts)


@settings(deadline=None)
@given(
    st.lists(
        st.lists(st.builds(Record, key=st.none() | ZEROS, value=ZEROS), min_size=1, max_size=8),
        min_size=1,
        max_size=4,
    )
)
def test_bodies_that_are_guessed_are_those_of_the_walk(batches: list[list[Record]]) -> None:
    """Holds for any values."""
    buffer, sizes, counts = lanes(batches)
    data = np.frombuffer(buffer, np.uint8)
    _, ends = bodies.record_bodies(data, buffer, sizes, counts)
    assert walked(batches)[1:] == ends.tolist()[:-1]
    assert ends[-1] == sum(sizes)


@settings(deadline=None)
@given(st.lists(ZEROS, min_size=1, max_size=3), st.lists(st.integers(0, 6), min_size=3, max_size=3))
def test_bodies_of_garbage_are_those_of_the_walk_or_refused(
    parts: list[bytes], counts: list[int]
) -> None:
    buffer = bytearray(b"".join([*parts, PADDING]))
    sizes, counts = [*map(len, parts)], counts[: len(parts)]
    data, edges = np.frombuffer(buffer, np.uint8), np.cumsum([0, *sizes])
    try:
        starts = bodies._walk(buffer, edges, counts)
    except UndecodableBatch:
        starts = None
    guessed = bodies._guess(data, edges, counts)
    if guessed is not None and (guessed[0] <= guessed[1]).all():
        assert starts is not None
        assert starts.tolist()[1:] == guessed[1].tolist()[:-1]
