"""Choice of the segments to join: by their sizes alone.

Few small segments remain, and no entry is rewritten very often.
"""

import random

import pytest

from segments.compaction.joining import EMPTIED_BYTES_MAX, Group, Size, groups
from segments.format.frame import FRAME_BYTES
from segments.log.largest_timestamps import LargestTimestamps
from segments.log.segment_header import SEGMENT_HEADER_BYTES

LIMIT = 4_000_000


def sizes(*found: int) -> list[Size]:
    return [Size(size, 1) for size in found]


@pytest.mark.parametrize(
    ("found", "joined"),
    [
        ((), []),
        ((50_000,), []),
        ((50_000, 50_000, 60_000), [(0, 3)]),
        ((3_000_000, 50_000), []),
        ((3_000_000, 50_000, 50_000), [(1, 3)]),
        ((100_000, 50_000), [(0, 2)]),
        ((3_000_000, 2_000_000, 2_000_000), [(1, 3)]),
        ((2_000_000, 2_000_000), [(0, 2)]),
        ((2_000_064, 2_000_001), []),
    ],
)
def test_neighbours_are_joined_once_the_newer_is_half_of_the_older(
    found: tuple[int, ...], joined: list[tuple[int, int]]
) -> None:
    """The result never exceeds the size of a segment."""
    assert groups(sizes(*found), LIMIT) == [Group(*one) for one in joined]


def test_long_run_of_nothing_is_joined_with_its_like_only() -> None:
    """Readers skip such a segment as a whole."""
    count = EMPTIED_BYTES_MAX // FRAME_BYTES + 1
    empty = Size(SEGMENT_HEADER_BYTES + FRAME_BYTES * count, count)
    few = Size(SEGMENT_HEADER_BYTES + FRAME_BYTES * 10, 10)
    some = Size(1_000_000, 10)
    assert groups([some, empty, empty, some, few], 1 << 30) == [Group(1, 3)]
    assert groups([few, some, few], 1 << 30) == [Group(0, 2)]


@pytest.mark.parametrize("seed", range(20))
def test_log_that_grows_has_few_segments_and_is_seldom_written_again(seed: int) -> None:
    """Some tens of segments out of a thousand.

    Each byte is written about as often as they double.
    """
    rng = random.Random(seed)
    have: list[Size] = []
    written = added = 0
    for _ in range(1_000):
        size = rng.randint(1_000, 20_000)
        have.append(Size(size, 1))
        added += size
        left: list[Size] = []
        position = 0
        for start, end in groups(have, LIMIT):
            left += have[position:start]
            part = have[start:end]
            total = sum(one.bytes - SEGMENT_HEADER_BYTES for one in part) + SEGMENT_HEADER_BYTES
            assert total <= LIMIT
            left.append(Size(total, sum(one.entries for one in part)))
            written += total
            position = end
        have = left + have[position:]
        assert groups(have, LIMIT) == []
    assert sum(one.entries for one in have) == 1_000
    assert len(have) < 2 * added / LIMIT + 20
    assert written < 12 * added


@pytest.mark.parametrize("seed", range(20))
def test_largest_timestamps_of_joined_segments_are_those_of_all(seed: int) -> None:
    """The maxima of joined segments equal those of a list, after any additions and removals."""
    rng = random.Random(seed)
    values = [rng.randrange(100) for _ in range(rng.randint(1, 40))]
    maxima = LargestTimestamps(values)
    while len(values) > 1:
        count = rng.randint(1, len(values))
        position = rng.randint(0, len(values) - count)
        match rng.randrange(3):
            case 0:
                maxima.drop(1)
                del values[0]
            case 1:
                maxima.append(50)
                values.append(50)
            case _:
                maxima.join(position, count)
                values[position : position + count] = [max(values[position : position + count])]
        assert [maxima[n] for n in range(len(maxima))] == values
        for least in (0, 30, 60, 99):
            found = next((n for n, value in enumerate(values) if value >= least), len(values))
            assert maxima.first(0, least) == found
        if rng.random() < 0.02:
            break
