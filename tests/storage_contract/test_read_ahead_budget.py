"""Read-ahead accounting: the bytes counted are the memory that is held."""

import random

import pytest

from segments.api import StoredEntry
from segments.log import read_ahead as ahead
from segments.log.cold_reads import Found
from segments.log.read_ahead import ReadAhead


def window(first, count, size, buffers=1):
    """Return entries that are views of `buffers` buffers, with a header before each."""
    entries = []
    for n in range(buffers):
        memory = memoryview(random.Random(first + n).randbytes(count * (size + 48)))
        for m in range(count):
            start = m * (size + 48) + 48
            index = first + len(entries)
            entries.append(StoredEntry(1, index, 0, memory[start : start + size], index, 1, index))
    return Found(first, entries)


def kept_bytes(windows):
    """Return the bytes that the windows hold, by the buffers in which their entries lie."""
    found = [found for found in windows._windows.values() if found.entries]
    return sum(
        len(obj) for obj in {id(e.data.obj): e.data.obj for f in found for e in f.entries}.values()
    )


@pytest.mark.parametrize("count", [0, 1, 10, 30, 47])
def test_what_is_counted_is_never_less_than_what_is_kept(count):
    """One remaining entry holds the whole buffer that it was read with."""
    windows = ReadAhead()
    for reader in range(100):
        found = window(1, 48, 64 << 10)
        found.count = count
        windows.keep((reader, 0, "index", 1 + count), found)
        assert kept_bytes(windows) <= windows.bytes <= ahead.WINDOWS_BYTES_MAX
    assert windows._windows


def test_little_that_is_left_does_not_keep_much():
    """Many readers near the ends of their windows fit; they read the same."""
    windows = ReadAhead()
    for reader in range(100):
        found = window(1, 48, 64 << 10)
        found.count = 46
        windows.keep((reader, 0, "index", 47), found)
    assert len(windows._windows) == 100
    rest = windows.take((3, 0, "index", 47))
    assert rest.index == 47
    assert rest.entries == window(1, 48, 64 << 10).entries[46:]


def test_all_buffers_of_a_window_count_once():
    """Entries read in two calls lie in two buffers."""
    windows = ReadAhead()
    found = window(1, 8, 1000, buffers=2)
    windows.keep((1, 0, "index", 1), found)
    assert windows.bytes == 2 * 8 * 1048 + 16 * 400
    windows.keep((1, 0, "index", 1), found)
    assert windows.bytes == 2 * 8 * 1048 + 16 * 400
    assert windows.take((1, 0, "index", 1)) is not None  # of two readers
    assert windows.take((1, 0, "index", 1)) is not None
    assert windows.bytes == 0


def test_small_entries_count_with_what_they_cost_beside_their_bytes():
    """An entry without payload is still an object."""
    windows = ReadAhead()
    found = window(1, 1000, 0)
    windows.keep((1, 0, "index", 1), found)
    assert windows.bytes >= 1000 * 400


def test_everything_is_given_back():
    """The count returns to zero, in whatever order readers come and go."""
    windows, rng = ReadAhead(), random.Random(4)
    for _ in range(300):
        key = (rng.randrange(40), 0, "offset", rng.randrange(3))
        if rng.random() < 0.4:
            windows.take(key)
        else:
            found = window(1, 20, rng.choice((10, 5000, 200_000)))
            found.count = rng.randrange(21)
            windows.keep(key, found)
        assert kept_bytes(windows) <= windows.bytes <= ahead.WINDOWS_BYTES_MAX
    for key in list(windows._windows):
        while windows.take(key) is not None:
            pass
    assert windows.bytes == 0


@pytest.mark.parametrize("readers", [1, 5, 10, 15])
def test_windows_of_so_many_readers_are_taken_before_they_are_dropped(readers):
    """Each of several readers finds its window and the next one, a mebibyte at a time in turn."""
    windows = ReadAhead()
    asked, size = 1 << 20, 64 << 10
    for reader in range(readers):
        windows.keep((reader, 0, "offset", 0), Found(1, []))
    bytes_ahead = windows.ahead_bytes(ahead.AHEAD_BYTES)
    assert asked // 2 <= bytes_ahead <= ahead.AHEAD_BYTES
    for reader in range(readers):
        found = window(1, (asked + bytes_ahead) // (size + 448), size)
        found.count = asked // size
        windows.keep((reader, 0, "offset", 1), found)
        windows.keep((reader, 0, "offset", 2), window(1, bytes_ahead // (size + 448), size))
    assert windows.bytes <= ahead.WINDOWS_BYTES_MAX
    for reader in range(readers):
        assert (reader, 0, "offset", 1) in windows
        assert (reader, 0, "offset", 2) in windows


def test_nothing_is_read_ahead_for_too_many_readers():
    """A window dropped before it is used costs two disk reads."""
    windows = ReadAhead()
    for reader in range(ahead.READERS_MAX):
        windows.keep((reader, 0, "offset", 0), Found(1, []))
        assert windows.ahead_bytes(2 << 20) * len(windows) <= ahead.WINDOWS_BYTES_MAX // 2
    assert windows.ahead_bytes(2 << 20) == 0


def test_reader_that_arrives_with_nothing_does_not_take_the_window_of_another():
    """Two readers at one position share either's window, and the second finds it, too."""
    windows = ReadAhead()
    key = (1, 0, "index", 1)
    windows.keep(key, window(1, 8, 1000))
    windows.keep(key, Found(1, []))
    assert len(windows.take(key).entries) == 8
    assert len(windows.take(key).entries) == 8
    assert windows.take(key) is None
    assert windows.bytes == 0


def test_window_of_a_reader_that_stays_away_goes():
    """A window whose readers come back in time stays."""
    windows = ReadAhead()
    for number in (1, 2):
        windows.keep((number, 0, "index", 1), window(1, 8, 1000))
    windows.expire()
    assert len(windows) == 2
    windows.keep((2, 0, "index", 1), Found(1, []))
    windows.expire()
    assert windows.take((1, 0, "index", 1)) is None
    assert windows.take((2, 0, "index", 1)) is not None
