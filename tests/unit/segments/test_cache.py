"""The tail cache and its parts."""

import random

from segments.api import StoredEntry
from segments.log.log import Batch, DiskLog, Run
from segments.log.segment import LogFiles
from segments.log.tail_cache import (
    CHUNK_BYTES_MAX,
    CHUNK_BYTES_MIN,
    ENTRY_OVERHEAD_BYTES,
    TailCache,
)
from segments.log.terms import TermRuns


def make_log(budget=1 << 20):
    files = LogFiles(None, "nowhere", 1, 9, 64)
    return DiskLog(files, 1, TailCache(budget), first_index=1, prev_term=0, next_offset=0)


def stage(log, count, size, batch=None):
    batch = batch or Batch(1)
    first = log.last + 1
    log.stage(
        [StoredEntry(1, n, 0, bytes(size), n - 1, 1, n) for n in range(first, first + count)], batch
    )
    return batch


def test_chunks_grow_with_their_log():
    """A quiet log costs half a KiB, a busy one uses chunks of mebibytes."""
    log = make_log()
    stage(log, 1, 100)
    assert [chunk.capacity for chunk in log.tail.chunks] == [CHUNK_BYTES_MIN]
    for _ in range(400):
        stage(log, 1, 10_000)
    sizes = [chunk.capacity for chunk in log.tail.chunks]
    assert sizes == sorted(sizes)
    assert sizes[-1] == CHUNK_BYTES_MAX
    assert log.tail.cache.bytes == sum(sizes)


def test_frames_that_touch_are_gathered_as_one_buffer():
    """A journal block gathers runs, not entries (IOV_MAX)."""
    log = make_log()
    batch = Batch(1)
    for _ in range(3):
        stage(log, 2, 20, batch)
    assert len(batch.buffers) == 1
    assert batch.bytes == len(batch.buffers[0]) == 6 * 68


def test_slice_at_its_byte_limit_and_one_past():
    """A slice has at least one entry, then at most the limit of frame bytes."""
    log = make_log()
    stage(log, 500, 52)
    for count in (1, 2, 17, 300):
        assert len(log.tail.slice(1, 501, count * 100)) == count
        assert len(log.tail.slice(1, 501, count * 100 - 1)) == max(1, count - 1)
    assert len(log.tail.slice(7, 8, 1 << 20)) == 1
    assert [entry.index for entry in log.tail.slice(31, 90, 1 << 20)] == list(range(31, 90))


def test_evicted_are_only_chunks_that_segments_hold():
    """Oldest first; never unflushed ones, nor ones that have grown since their flush."""
    log = make_log(budget=0)
    cache = log.tail.cache
    stage(log, 50, 100)
    cache.evict()
    assert log.tail.first == 1
    last_chunk = log.tail.chunks[-1].first
    cache.flushed(log.tail, 50)
    stage(log, 1, 100)
    cache.evict()
    assert log.tail.first == last_chunk
    cache.flushed(log.tail, 51)
    cache.evict()
    assert log.tail.chunks == []
    assert cache.bytes == 0
    stage(log, 1, 100)
    assert log.tail.first == 52


def test_memory_of_a_chunk_is_reused_only_without_views():
    """Memory exported as a view is never written again while the view exists."""
    log = make_log(budget=0)
    cache = log.tail.cache
    stage(log, 3, CHUNK_BYTES_MAX - 1000)
    held = log.tail.entry(3).data
    chunk_memory = log.tail.chunks[-1].memory
    assert len(chunk_memory) == CHUNK_BYTES_MAX
    cache.flushed(log.tail, 3)
    cache.evict()
    again = [cache.memory(CHUNK_BYTES_MAX) for _ in range(3)]
    assert not any(memory is chunk_memory for memory in again)
    del held
    again = [cache.memory(CHUNK_BYTES_MAX) for _ in range(3)]
    assert any(memory is chunk_memory for memory in again)
    assert all(len(memory) == CHUNK_BYTES_MAX for memory in again)


def test_full_cache_grows_on_the_memory_of_its_oldest_chunk():
    """A full cache reuses its oldest chunk's memory, if segments hold that chunk's entries."""
    log = make_log(budget=5 * CHUNK_BYTES_MAX)
    cache = log.tail.cache
    stage(log, 4, CHUNK_BYTES_MAX - 1000)
    memories = [chunk.memory for chunk in log.tail.chunks]
    cache.flushed(log.tail, 3)
    for oldest in memories[:3]:
        stage(log, 1, CHUNK_BYTES_MAX - 1000)
        assert log.tail.chunks[-1].memory is oldest
        assert cache.bytes <= cache.bytes_max
    for _ in range(2):
        stage(log, 1, CHUNK_BYTES_MAX - 1000)
        assert not any(log.tail.chunks[-1].memory is memory for memory in memories)
    assert log.tail.first == 4


def test_hits_and_misses_are_counted():
    """Reads that the cache served, and those that needed the disk."""
    log = make_log()
    stage(log, 5, 100)
    log.hard.commit = 5
    log.read(2, 5, 1000)
    log.entries(1, 3, 1000)
    assert (log.tail.cache.hits, log.tail.cache.misses) == (2, 0)


def test_batches_in_memory_are_found_without_a_count_or_a_read():
    """Measurements must not look like readers. The files of this log cannot be read at all."""
    log = make_log(budget=0)
    stage(log, 50, 100)
    log.hard.commit = 40
    found = log.in_memory(30, 50, 4)
    assert [bytes(one) for one in found] == [bytes(100)] * 4
    assert len(log.in_memory(37, 50, 99)) == 3  # those of entries 38, 39 and 40
    assert log.in_memory(40, 50, 99) == []
    log.tail.cache.flushed(log.tail, 50)
    log.tail.cache.evict()
    assert log.in_memory(30, 50, 4) == []
    assert (log.tail.cache.hits, log.tail.cache.misses) == (0, 0)


def test_term_runs_answer_as_a_list_would():
    """Reference model: a plain list of terms."""
    rng = random.Random(4)
    runs, plain, first = TermRuns(0, 0), [0], 0
    for _ in range(3000):
        action = rng.random()
        last = first + len(plain) - 1
        if action < 0.8:
            term = plain[-1] + (rng.random() < 0.2)
            runs.add(last + 1, term, (last + 1) * 3)
            plain.append(term)
        elif action < 0.9 and len(plain) > 1:
            cut = rng.randint(first + 1, last)
            runs.truncate(cut)
            del plain[cut - first :]
        elif len(plain) > 1:
            cut = rng.randint(first, last)
            runs.trim(cut)
            del plain[: cut - first]
            first = cut
        for index in {first, first + len(plain) - 1, rng.randint(first, first + len(plain) - 1)}:
            assert runs.term(index) == plain[index - first]
            begins = index > first and plain[index - first] != plain[index - first - 1]
            assert runs.offset_at(index) == (index * 3 if begins else -1)


def test_journal_runs_name_the_oldest_file_needed():
    """Runs made superfluous by a truncation or a flush hold no file."""
    log = make_log()
    stage(log, 20, 10)
    log.note_journaled(1, 1, 8)
    log.note_journaled(2, 9, 14)
    log.note_journaled(3, 12, 20)
    assert log.runs == [Run(1, 1, 8), Run(2, 9, 11), Run(3, 12, 20)]
    assert log.oldest_needed() == 1
    log.flushed_index = 8
    assert log.oldest_needed() == 2
    log.note_journaled(4, 9, 20)
    assert log.oldest_needed() == 4
    log.flushed_index = 20
    assert log.oldest_needed() == 0


def test_chunk_cut_to_what_segments_hold_may_go():
    """A truncated chunk can be evicted.

    Otherwise it and all later chunks of its log would stay for ever.
    """
    log = make_log(budget=0)
    cache = log.tail.cache
    stage(log, 20, 100)
    cache.flushed(log.tail, 15)
    log.flushed_index = log.hard.commit = 15
    log.truncate(16, Batch(2))
    stage(log, 50, 10_000)
    cache.flushed(log.tail, log.last)
    cache.evict()
    assert log.tail.chunks == []
    assert cache.bytes == 0


def test_nothing_of_a_dropped_tail_is_kept():
    """A dropped tail's memory is released.

    Its log was deleted or reset, and the budget no longer counts it.
    """
    log = make_log()
    cache = log.tail.cache
    stage(log, 300, 10_000)
    cache.flushed(log.tail, 250)
    cache.release(log.tail)
    assert cache.bytes == 0
    assert not cache._evictable


def test_suffixes_that_are_cut_one_after_the_other_are_counted_once():
    """The unflushed bytes throttle producers, so they must be exact."""
    log = make_log()
    for _ in range(4):
        first = log.last + 1
        stage(log, 10, 5_000)
        log.truncate(first + 5, Batch(2))
        log.truncate(first + 1, Batch(3))
        stage(log, 1, 100)
    there = sum(chunk.ends[-1] for chunk in log.tail.chunks)
    assert log.unflushed == log.tail.cache.unflushed == there


def test_charge_after_a_cut_and_a_flush_is_for_the_memory_that_stays():
    """A truncated chunk keeps all of its memory; after a flush its entries count, too."""
    log = make_log()
    cache = log.tail.cache
    stage(log, 20, 100)
    memory = sum(len(chunk.memory) for chunk in log.tail.chunks)
    assert cache.bytes == memory
    log.truncate(16, Batch(2))
    kept = log.tail.chunks
    memory = sum(len(chunk.memory) for chunk in kept)
    assert cache.bytes == memory
    cache.flushed(log.tail, 15)
    assert cache.bytes == memory + 15 * ENTRY_OVERHEAD_BYTES
    stage(log, 1, 100)
    new = log.tail.chunks[-1]
    assert new.entries[0].index == 16
    assert cache.bytes == memory + 15 * ENTRY_OVERHEAD_BYTES + len(new.memory)
    cache.flushed(log.tail, 16)
    assert cache.bytes == memory + 16 * ENTRY_OVERHEAD_BYTES + len(new.memory)
    for chunk in log.tail.chunks:
        assert chunk.charge == len(chunk.memory) + ENTRY_OVERHEAD_BYTES * len(chunk.entries)


def test_cache_keeps_its_books_whatever_happens():
    """The charged, evictable and unflushed bytes always equal a recount.

    Tested by random appends, truncations, flushes and drops of several tails.
    """
    rng = random.Random(11)
    cache = TailCache(200_000)
    logs = []
    for number in range(3):
        files = LogFiles(None, "nowhere", number, 9, 64)
        logs.append(DiskLog(files, 1, cache, first_index=1, prev_term=0, next_offset=0))
    for _ in range(3_000):
        log = rng.choice(logs)
        action = rng.random()
        if action < 0.6:
            stage(log, rng.randint(1, 8), rng.choice((10, 900, 9_000)))
        elif action < 0.75 and log.last > log.flushed_index:
            log.truncate(rng.randint(log.flushed_index + 1, log.last), Batch(2))
        elif action < 0.97 and log.last > log.flushed_index:
            last = rng.randint(log.flushed_index + 1, log.last)
            spans = log.tail.spans(log.flushed_index + 1, last + 1)
            size = sum(chunk.ends[stop - 1] - chunk.start_of(start) for chunk, start, stop in spans)
            log.unflushed -= size
            cache.unflushed -= size
            log.flushed_index = log.hard.commit = last
            cache.flushed(log.tail, last)
        elif action > 0.99:
            cache.unflushed -= log.unflushed
            log.unflushed = 0
            cache.release(log.tail)
            log.flushed_index = log.tail.flushed_index = log.hard.commit = log.last
        cache.evict()
        chunks = [(log, chunk) for log in logs for chunk in log.tail.chunks]
        assert cache.bytes == sum(chunk.charge for _, chunk in chunks)
        done = {chunk for log, chunk in chunks if chunk.end - 1 <= log.flushed_index}
        assert done <= cache._evictable.keys() <= {chunk for _, chunk in chunks}
        assert cache.bytes <= cache.bytes_max or not done
        for log in logs:
            spans = log.tail.spans(log.flushed_index + 1, log.last + 1)
            size = sum(chunk.ends[stop - 1] - chunk.start_of(start) for chunk, start, stop in spans)
            assert log.unflushed == size
