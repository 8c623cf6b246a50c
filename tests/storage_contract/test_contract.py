"""Storage contract, clause by clause, on every backend."""

import pytest

from segments.api import (
    Compacted,
    HardState,
    MetaBatch,
    OffsetOutOfRange,
    StoredEntry,
    StoreOptions,
    Unavailable,
)
from segments.log.index import read_idx
from segments.log.read_ahead import IDLE_MS
from segments.log.segment import LogFiles


def test_log_when_created_is_empty_and_starts_where_asked(harness):
    """create_log: the first entry has `first_index`; the term before it and its offset are kept."""
    log = harness.new_log(9, 3, first_index=11, prev_term=4, next_offset=70)
    assert (log.group_id, log.replica_number) == (9, 3)
    assert (log.first_index, log.last_index, log.commit_index) == (11, 10, 10)
    assert (log.log_start_offset, log.next_offset) == (70, 70)
    assert log.term(10) == 4
    with pytest.raises(Unavailable):
        log.term(11)
    with pytest.raises(Compacted):
        log.term(9)


def test_log_created_survives_a_crash(harness):
    """create_log: durable before `on_created` runs."""
    harness.new_log(9, 3, first_index=11, prev_term=4, next_offset=70)
    log = harness.reopen()
    assert (log.group_id, log.replica_number, log.first_index) == (9, 3, 11)
    assert (log.term(10), log.next_offset) == (4, 70)


def test_log_ids_after_deletion_are_not_reused(harness):
    """LogId: unique per data directory, never reused."""
    first = harness.new_log().log_id
    harness.store.delete_log(first)
    harness.pump()
    harness.reopen()
    assert harness.new_log().log_id > first


def test_append_copies_data_and_replaces_it_by_a_view(harness, writer):
    """append: the caller's buffer is free afterwards; entries are the same objects."""
    log = harness.new_log()
    buffer = bytearray(b"hello")
    entry = StoredEntry(1, 1, 0, memoryview(buffer), 0, 1, 5)
    harness.store.append(log, [entry])
    buffer[:] = b"xxxxx"
    assert bytes(entry.data) == b"hello"
    assert log.entries(1, 2, 100)[0] is entry
    assert (log.last_index, log.next_offset, log.term(1)) == (1, 1, 1)


def test_append_over_a_suffix_replaces_it(harness, writer):
    """append: entries that the log held from there on are truncated."""
    log = harness.new_log()
    make = writer(log)
    harness.store.append(log, make.entries(10, term=1))
    old = log.entries(6, 7, 10)[0].data
    kept = bytes(old)
    harness.store.append(log, make.entries(3, term=2, first=6))
    assert (log.last_index, log.next_offset) == (8, 8)
    assert [log.term(n) for n in (5, 6, 8)] == [1, 2, 2]
    assert bytes(old) == kept, "a view that was handed out must not change"
    harness.submit()
    log = harness.reopen()
    assert (log.last_index, log.term(5), log.term(8)) == (8, 1, 2)
    assert len(harness.all_entries(log)) == 8


def test_append_at_or_below_commit_is_refused(harness, writer, hard_state):
    """append: committed entries are never truncated (Raft, leader completeness)."""
    log = harness.new_log()
    harness.store.append(log, writer(log).entries(5))
    harness.store.set_hard_state(log, hard_state(commit=3))
    with pytest.raises(AssertionError):
        harness.store.append(log, writer(log).entries(1, term=2, first=3))


def test_entries_not_submitted_are_gone_after_a_crash(harness, writer):
    """Nothing is durable until its token is."""
    log = harness.new_log()
    harness.store.append(log, writer(log).entries(2))
    harness.submit()
    harness.store.append(log, writer(log).entries(2))
    log = harness.reopen()
    assert log.last_index == 2


def test_submit_while_writing_merges_into_one_block(harness, writer):
    """submit: blocks staged while a write is in progress are merged into one."""
    log = harness.new_log()
    tokens = []
    for _ in range(5):
        harness.store.append(log, writer(log).entries(1))
        tokens.append(harness.store.submit())
    assert tokens[1] == tokens[2] == tokens[4] == tokens[0] + 1
    assert harness.acknowledged < tokens[0]
    harness.pump()
    assert harness.acknowledged == harness.store.durable_token == tokens[-1]


def test_submit_with_nothing_staged_names_what_was_submitted(harness, writer):
    """submit: returns the token of the last block, so that a waiter for it is not left behind."""
    log = harness.new_log()
    harness.store.append(log, writer(log).entries(1))
    token = harness.store.submit()
    assert harness.store.submit() == token
    harness.pump()
    assert harness.store.submit() == token == harness.acknowledged


def test_submit_of_commit_alone_waits_for_the_idle_block(harness, writer, hard_state):
    """submit(urgent=False): the write may be delayed, but not for ever."""
    log = harness.new_log()
    harness.store.append(log, writer(log).entries(3))
    harness.store.set_hard_state(log, hard_state(commit=0))
    harness.submit()
    harness.store.set_hard_state(log, hard_state(commit=2))
    token = harness.store.submit(urgent=False)
    harness.pump()
    assert harness.acknowledged < token
    harness.workers.advance(500)
    assert harness.acknowledged >= token
    assert harness.reopen().commit_index == 2


def test_hard_state_survives_a_crash(harness, writer, hard_state):
    """Raft §5.1: term and vote are on stable storage before any reply."""
    log = harness.new_log()
    harness.store.append(log, writer(log).entries(4, term=3))
    harness.store.set_hard_state(log, HardState(3, 1, 0))
    harness.store.set_hard_state(log, HardState(7, 1 << 20, 2))
    assert log.hard_state == HardState(7, 1 << 20, 2)
    harness.submit()
    assert harness.reopen().hard_state == HardState(7, 1 << 20, 2)


def test_entries_are_bounded_by_bytes_but_never_none(harness, writer):
    """entries: at least one, then ≤ bytes_max; Compacted and Unavailable outside."""
    log = harness.new_log()
    harness.store.append(log, writer(log).entries(20, size=400))
    assert len(log.entries(1, 21, 1)) == 1
    assert len(log.entries(1, 21, 1 << 20)) == 20
    assert 1 <= len(log.entries(5, 21, 2000)) <= 5
    assert log.entries(3, 3, 100) == []
    with pytest.raises(Compacted):
        log.entries(0, 2, 100)
    with pytest.raises(Unavailable):
        log.entries(20, 22, 100)


def test_read_passes_over_entries_without_records(harness, writer, hard_state):
    """read: Raft's own entries consume no offset and never reach a client."""
    log = harness.new_log()
    make = writer(log)
    store = harness.store
    store.append(log, make.entries(1, records=0, kind=3, size=0))
    store.append(log, make.entries(2, records=5))
    store.append(log, make.entries(2, records=0, kind=1))
    store.append(log, make.entries(1, records=3))
    store.append(log, make.entries(1, records=0, kind=3, size=0))
    store.set_hard_state(log, hard_state(commit=7))
    assert log.next_offset == 13
    whole = log.read(0, 7, 1 << 20)
    assert (len(whole.buffers), whole.first_offset, whole.end_offset) == (3, 0, 13)
    assert whole.bytes == sum(map(len, whole.buffers))
    found = [harness.cold(store.index_of_offset, log, offset) for offset in (0, 4, 5, 9, 10, 12)]
    assert found == [2, 2, 3, 3, 6, 6]
    part = log.read(7, 7, 1)
    assert (part.first_offset, part.end_offset, len(part.buffers)) == (5, 10, 1)
    end = log.read(13, 7, 100)
    assert (end.buffers, end.first_offset, end.end_offset) == ([], 13, 13)


def test_read_outside_the_log_is_refused(harness, writer, hard_state):
    """read: refused below the log start offset and above the requested end."""
    log = harness.new_log(next_offset=100)
    harness.store.append(log, writer(log).entries(4))
    harness.store.set_hard_state(log, hard_state(commit=3))
    for offset in (99, 104, 105):
        with pytest.raises(OffsetOutOfRange):
            log.read(offset, 4, 100)
    assert log.read(103, 4, 100).buffers == []
    assert len(log.read(100, 2, 1000).buffers) == 2
    with pytest.raises(OffsetOutOfRange):
        harness.cold(harness.store.index_of_offset, log, 104)


def fill(harness, log, writer, hard_state, count, **shape):
    """Append and commit `count` entries in one block each, with checkpoints in between."""
    make = writer(log)
    for n in range(count):
        harness.store.append(log, make.entries(1, **shape))
        harness.store.set_hard_state(log, hard_state(commit=log.last_index))
        harness.submit()
        if n % 50 == 49:
            harness.checkpoint()


def test_reads_from_disk_equal_reads_from_memory(harness, writer, hard_state):
    """Every entry and offset is found over many segments, evicted chunks and a restart."""
    log = harness.new_log()
    fill(harness, log, writer, hard_state, 300, size=200, records=2)
    expected = [
        (1, 0, bytes((n * 7 + 1 + k) & 0xFF for k in range(200)), (n - 1) * 2, 2, n * 10)
        for n in range(1, 301)
    ]
    for _ in range(2):
        assert harness.all_entries(log) == expected
        for offset in range(0, 600, 7):
            assert harness.cold(harness.store.index_of_offset, log, offset) == offset // 2 + 1
            found = harness.read(log, offset, 300, 1000)
            assert found.first_offset == offset // 2 * 2
            assert bytes(found.buffers[0]) == expected[offset // 2][2]
            assert found.bytes <= 1000
            assert found.end_offset == found.first_offset + 2 * len(found.buffers)
        for index in range(0, 301, 13):
            assert log.offset_after(index) == index * 2
        log = harness.reopen()
        assert (log.first_index, log.last_index, log.commit_index) == (1, 300, 300)


def test_timestamps_find_the_first_entry_at_or_after(harness, writer, hard_state):
    """index_of_timestamp: the largest timestamps, in no order, over segments and tail."""
    log = harness.new_log()
    stamps = [(n * 37) % 101 + n for n in range(1, 201)]
    for n, stamp in enumerate(stamps, 1):
        harness.store.append(log, [StoredEntry(1, n, 0, bytes(150), n - 1, 1, stamp)])
        harness.store.set_hard_state(log, hard_state(commit=n))
        harness.submit()
        if n == 150:
            harness.checkpoint()
    for asked in (0, 1, 60, 150, 220, 290, 400):
        for end in (10, 120, 200):
            expected = next(
                (n for n, stamp in enumerate(stamps[:end], 1) if stamp >= asked), end + 1
            )
            found = harness.cold(harness.store.index_of_timestamp, log, asked, end)
            assert found == expected, (asked, end)


def test_terms_are_known_after_reopen(harness, writer, hard_state):
    """term: from memory, always; recovered without reading every entry."""
    log = harness.new_log()
    make = writer(log)
    for term in (1, 2, 2, 5, 9):
        harness.store.append(log, make.entries(17, term=term, size=90))
        harness.store.set_hard_state(log, hard_state(term=term, commit=log.last_index - 1))
        harness.submit()
        harness.checkpoint()
    expected = [log.term(n) for n in range(86)]
    log = harness.reopen()
    assert [log.term(n) for n in range(86)] == expected
    assert expected[17] == 1
    assert expected[18] == 2
    assert expected[85] == 9


def test_reset_installs_a_snapshot_and_survives(harness, writer, hard_state):
    """reset_log: drop every entry, continue at `first_index` (Raft §7)."""
    log = harness.new_log()
    fill(harness, log, writer, hard_state, 120, size=150)
    harness.store.reset_log(log, first_index=500, prev_term=6, next_offset=9000)
    assert (log.first_index, log.last_index, log.commit_index) == (500, 499, 499)
    assert (log.term(499), log.next_offset, log.log_start_offset) == (6, 9000, 9000)
    harness.submit()
    for _ in range(2):
        log = harness.reopen()
        assert (log.first_index, log.last_index, log.commit_index) == (500, 499, 499)
        assert (log.term(499), log.next_offset, log.log_start_offset) == (6, 9000, 9000)
    harness.store.append(log, writer(log).entries(80, term=7, size=150))
    harness.store.set_hard_state(log, hard_state(term=7, commit=570))
    harness.submit()
    harness.checkpoint()
    log = harness.reopen()
    assert (log.first_index, log.last_index, log.commit_index) == (500, 579, 570)
    assert len(harness.all_entries(log)) == 80


def test_reset_not_durable_leaves_the_old_log(harness, writer, hard_state):
    """reset_log: no file is removed before the record is on disk."""
    log = harness.new_log()
    fill(harness, log, writer, hard_state, 60, size=150)
    harness.store.reset_log(log, first_index=500, prev_term=6, next_offset=9000)
    log = harness.reopen()
    assert (log.first_index, log.last_index) == (1, 60)
    assert len(harness.all_entries(log)) == 60


def test_trim_moves_the_start_and_survives(harness, writer, hard_state):
    """trim_log: entries below are gone for good, wherever they lie."""
    log = harness.new_log()
    fill(harness, log, writer, hard_state, 150, size=150)
    for first in (30, 101, 149, 151):
        harness.store.trim_log(log, first_index=first)
        harness.submit()
        assert (log.first_index, log.log_start_offset) == (first, first - 1)
        with pytest.raises(Compacted):
            log.entries(first - 1, first, 100)
        log = harness.reopen()
        assert (log.first_index, log.log_start_offset, log.last_index) == (first, first - 1, 150)
        assert log.term(first - 1) == 1
        assert len(harness.all_entries(log)) == 151 - first
    fill(harness, log, writer, hard_state, 60, size=150)
    log = harness.reopen()
    assert (log.first_index, log.last_index, log.next_offset) == (151, 210, 210)


def test_deleted_log_stays_deleted(harness, writer, hard_state):
    """delete_log: replay ignores the log; its neighbour is unaffected."""
    doomed = harness.new_log(9)
    kept = harness.new_log(10)
    for log in (doomed, kept):
        fill(harness, log, writer, hard_state, 60, size=150)
    harness.store.delete_log(doomed.log_id)
    assert list(harness.store.logs) == [kept.log_id]
    harness.pump()
    for _ in range(2):
        log = harness.reopen()
        assert list(harness.store.logs) == [kept.log_id]
        assert (log.group_id, log.last_index) == (10, 60)
        assert len(harness.all_entries(log)) == 60


def test_cluster_record_is_kept_byte_for_byte(harness):
    """adopt_cluster: opaque, durable when it says so."""
    done = []
    assert harness.store.cluster_record() == b""
    directory_id = harness.store.directory_id
    harness.store.adopt_cluster(b"born \x00 together", lambda: done.append(True))
    assert done
    harness.reopen()
    assert harness.store.cluster_record() == b"born \x00 together"
    assert harness.store.directory_id == directory_id
    assert len(directory_id) == 16


def test_meta_of_a_checkpoint_is_loaded_after_a_crash(harness, writer, hard_state):
    """collect_meta, load_meta: dirty keys of one checkpoint, all or none; clear drops the rest."""
    log = harness.new_log()
    fill(harness, log, writer, hard_state, 10)
    harness.collect(MetaBatch(log.log_id, 4, [(b"b", b"2"), (b"a", b"1"), (b"", b"empty")]))
    harness.checkpoint()
    assert log.applied_index == 4
    harness.collect(MetaBatch(log.log_id, 7, [(b"a", None), (b"c", b"3"), (b"b", b"22")]))
    harness.checkpoint()
    log = harness.reopen()
    assert log.applied_index == 7
    assert harness.store.load_meta(log) == (7, [(b"", b"empty"), (b"b", b"22"), (b"c", b"3")])
    harness.collect(MetaBatch(log.log_id, 9, [(b"z", b"26")], clear=True))
    harness.checkpoint()
    log = harness.reopen()
    assert harness.store.load_meta(log) == (9, [(b"z", b"26")])


def test_close_writes_what_was_staged(harness, writer, hard_state):
    """close: the closing block carries what was staged; the next start finds all of it."""
    log = harness.new_log()
    harness.store.append(log, writer(log).entries(3))
    harness.store.set_hard_state(log, hard_state(commit=2))
    harness.close()
    harness.start()
    assert (harness.log.last_index, harness.log.commit_index) == (3, 2)


def test_many_logs_created_in_one_turn_all_exist(harness):
    """create_log: several calls of one loop turn share one write."""
    made = []
    for group_id in range(9, 60):
        harness.store.create_log(group_id, 1, on_created=made.append)
    harness.pump()
    assert [log.group_id for log in made] == list(range(9, 60))
    harness.reopen()
    assert sorted(log.group_id for log in harness.store.logs.values()) == list(range(9, 60))


def test_entry_larger_than_every_limit_is_stored(harness, writer, hard_state):
    """One entry may be larger than a journal file, a segment and the cache."""
    log = harness.new_log()
    make = writer(log)
    for size in (100, 200_000, 10):
        harness.store.append(log, make.entries(1, size=size))
        harness.store.set_hard_state(log, hard_state(commit=log.last_index))
    harness.submit()
    harness.checkpoint()
    log = harness.reopen()
    assert [len(entry[2]) for entry in harness.all_entries(log)] == [100, 200_000, 10]
    assert len(harness.read(log, 1, 3, 10).buffers[0]) == 200_000


def test_batch_larger_than_a_journal_file_is_durable_as_a_whole(harness, writer):
    """submit: one token, however many blocks it takes."""
    log = harness.new_log()
    harness.store.append(log, writer(log).entries(1000, size=300))
    harness.submit()
    log = harness.reopen()
    assert log.last_index == 1000
    assert len(harness.all_entries(log)) == 1000


def test_batch_of_many_blocks_fits_files_of_odd_size(make_harness, odd_options, tmp_path):
    """Blocks are whole pages: a file of odd size takes fewer, and nothing is skipped."""
    harness = make_harness("disk", tmp_path, odd_options)
    log = harness.new_log()
    index = 1
    for size in range(0, 2400, 37):
        entries = [StoredEntry(1, index + n, 0, bytes(size), 0, 0, -1) for n in range(15)]
        harness.store.append(log, entries)
        index += 15
        harness.submit()
        assert not harness.store._journal.partly_written
    log = harness.reopen()
    assert not log.lost
    assert log.last_index == index - 1
    harness.crash()


def test_journal_records_are_counted_beyond_32_bits(make_harness, writer, hard_state, tmp_path):
    """A log may have more records over time than its counter has values."""
    harness = make_harness("disk", tmp_path)
    log = harness.new_log()
    log.sequence = (1 << 32) - 150
    for _ in range(10):
        fill(harness, log, writer, hard_state, 30, size=900)
        log = harness.reopen()
        assert not log.lost
        assert len(harness.all_entries(log)) == log.last_index
    assert 100 < log.sequence < 1000
    harness.crash()


def test_reader_that_goes_on_is_served_from_what_was_read_ahead(
    make_harness, writer, hard_state, tmp_path
):
    """read_cold, entries_cold: one larger read serves later ones, for several readers at once.

    Nothing of it enters the tail cache, and a reset ends it.
    """
    harness = make_harness("disk", tmp_path)
    log = harness.new_log()
    fill(harness, log, writer, hard_state, 400, size=300)
    log = harness.reopen()
    cached = harness.store.stats()["cache_bytes"]
    ends = {0: 0, 100: 100}
    last = log.flushed_index - 10
    while ends[100] < last:
        for start, offset in ends.items():
            found = harness.read(log, offset, last, 900)
            assert found.first_offset == offset
            assert [bytes(b) for b in found.buffers] == [
                bytes((n * 7 + 1 + k) & 0xFF for k in range(300))
                for n in range(offset + 1, found.end_offset + 1)
            ]
            assert found.end_offset <= last
            ends[start] = found.end_offset
    stats = harness.store.stats()
    assert stats["read_ahead_hits"] > 150
    assert 0 < stats["read_ahead_bytes"] <= 32 << 20
    assert stats["cache_bytes"] == cached
    hits, index = stats["read_ahead_hits"], 1
    while index < 200:
        part = harness.entries(log, index, 200, 900)
        assert [e.index for e in part] == list(range(index, index + len(part)))
        assert sum(len(e.data) for e in part) <= 900
        index = part[-1].index + 1
    assert harness.store.stats()["read_ahead_hits"] > hits + 50
    harness.store.reset_log(log, first_index=900, prev_term=1, next_offset=ends[0])
    harness.submit()
    with pytest.raises(OffsetOutOfRange):
        harness.read(log, ends[0] + 1, 899, 900)
    assert harness.read(log, ends[0], 899, 900).buffers == []
    harness.crash()


def test_readers_at_one_place_share_what_is_read(make_harness, writer, hard_state, tmp_path):
    """Two lagging consumers at one position cost the reads and memory of one."""
    harness = make_harness("disk", tmp_path)
    log = harness.new_log()
    fill(harness, log, writer, hard_state, 400, size=300)
    log = harness.reopen()
    jobs = {}
    for readers in (1, 2):
        offset, jobs[readers] = 0, 0
        while offset < 300:
            found = []
            for _ in range(readers):
                harness.store.read_cold(log, offset, log.flushed_index, 900, found.append)
            jobs[readers] += len(harness.workers.pool_jobs)
            harness.workers.pump()
            assert len(found) == readers
            assert [bytes(b) for b in found[0].buffers] == [bytes(b) for b in found[-1].buffers]
            offset = found[0].end_offset
    assert 0 < jobs[2] <= jobs[1]
    harness.workers.advance(2 * IDLE_MS)
    assert harness.store.stats()["read_ahead_bytes"] == 0


def test_reader_that_goes_on_does_not_wait_for_the_disk(
    make_harness, writer, hard_state, tmp_path, monkeypatch
):
    """The next range is read while the reader processes the current one.

    Every byte is as written.
    """
    monkeypatch.setattr("segments.log.reader.AHEAD_BYTES", 3_000)
    harness = make_harness("disk", tmp_path)
    log = harness.new_log()
    fill(harness, log, writer, hard_state, 400, size=300)
    log = harness.reopen()
    offset, waits = 0, []
    while offset < log.flushed_offset:
        found = []
        harness.store.read_cold(log, offset, log.flushed_index, 900, found.append)
        waits.append(not found)
        harness.workers.pump()
        assert [bytes(b) for b in found[0].buffers] == [
            bytes((n * 7 + 1 + k) & 0xFF for k in range(300))
            for n in range(offset + 1, found[0].end_offset + 1)
        ]
        offset = found[0].end_offset
    assert len(waits) > 100
    assert sum(waits[2:]) == 0


def test_read_looks_at_no_more_of_the_index_than_it_needs(
    make_harness, writer, hard_state, tmp_path, monkeypatch
):
    """A read looks at few of the rows that one `pread` returned: each costs as much as an entry."""
    harness = make_harness("disk", tmp_path, StoreOptions(index_segment_entries=1024))
    log = harness.new_log()
    fill(harness, log, writer, hard_state, 400, size=300)
    log = harness.reopen()
    seen = []

    def counted(data, at, log_id, index):
        seen.append(index)
        return read_idx(data, at, log_id, index)

    monkeypatch.setattr("segments.log.index_files.read_idx", counted)
    found = harness.cold(harness.store.entries_cold, log, 20, 300, 900)
    assert [entry.index for entry in found] == [20, 21, 22]
    assert set(seen) <= set(range(20, 24))


def test_offset_where_a_term_ended_is_known_without_the_disk(
    make_harness, writer, hard_state, tmp_path, monkeypatch
):
    """offset_after: consumers query it for old terms (KIP-101) without blocking the loop."""
    harness = make_harness("disk", tmp_path)
    log = harness.new_log()
    make = writer(log)
    for term in (1, 2, 5, 9):
        harness.store.append(log, make.entries(90, term=term, size=200, records=3))
        harness.store.set_hard_state(log, hard_state(term=term, commit=log.last_index))
        harness.submit()
        harness.checkpoint()
    for _ in range(2):
        assert log.tail.first == 0 or log.tail.first > 180
        with monkeypatch.context() as patch:
            patch.setattr(LogFiles, "idx", None)
            assert [log.offset_after(n) for n in (0, 90, 180, 270, 360)] == [0, 270, 540, 810, 1080]
        assert log.offset_after(100) == 300
        log = harness.reopen()
    harness.store.trim_log(log, first_index=91)
    assert [log.offset_after(n) for n in (90, 180)] == [270, 540]
    harness.crash()


def test_disk_space_is_that_of_the_file_system(harness):
    """disk_space: bytes written never exceed the total; both are unknown without a disk."""
    found = []
    harness.store.disk_space(found.append)
    harness.pump()
    ((total, usable),) = found
    assert (total, usable) == (-1, -1) or 0 <= usable <= total
