"""Damaged ranges: equivalent to a set of entries, and searched in logarithmic time."""

import random
from itertools import pairwise

from segments.log.damaged_ranges import DamagedRanges


class Counted(int):
    """An index that counts its comparisons."""

    __slots__ = ()
    compared = 0

    def __lt__(self, other):
        Counted.compared += 1
        return int(self) < int(other)

    def __gt__(self, other):
        Counted.compared += 1
        return int(self) > int(other)

    __hash__ = int.__hash__


def test_ranges_are_what_a_set_of_entries_would_be():
    """Ranges equal a set of entries after any additions, repairs and trims."""
    rng = random.Random(5)
    for _ in range(200):
        ranges, entries, trimmed = DamagedRanges(), set(), 1
        for _ in range(40):
            first = rng.randint(1, 40)
            end = first + rng.randint(0, 6)
            what = rng.random()
            if what < 0.5:
                ranges.add(first, end)
                entries |= set(range(first, end))
            elif what < 0.8:
                ranges.repaired(range(first, end))
                entries -= set(range(first, end))
            elif what < 0.97:
                trimmed = max(trimmed, rng.randint(1, 12))
                ranges.trim(trimmed)
                entries = {index for index in entries if index >= trimmed}
            else:
                ranges.clear()
                entries.clear()
            found = ranges.ranges
            assert {index for a, b in found for index in range(a, b)} == entries
            assert all(a < b for a, b in found)
            assert all(before[1] < after[0] for before, after in pairwise(found))
            assert len(ranges) == len(found)
            assert all((index in ranges) == (index in entries) for index in range(1, 50))
            if first < end:
                assert ranges.covers(first, end) == (set(range(first, end)) <= entries)


def test_many_ranges_are_added_looked_up_and_repaired_by_search():
    """A thousand times as many cost about a thousand times as much, not a million times."""
    count = 4_000
    order = [Counted(2 * n) for n in range(1, count + 1)]
    random.Random(1).shuffle(order)
    ranges = DamagedRanges()
    Counted.compared = 0
    for index in order:
        ranges.add(index, Counted(index + 1))
        assert index in ranges
    assert len(ranges) == count
    ranges.repaired(order)
    assert ranges.ranges == ()
    assert Counted.compared <= count * 100
