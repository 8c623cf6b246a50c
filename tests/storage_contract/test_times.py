"""Look-up of the first entry at or after a time: exactly the result of a scan, at far less cost.

Timestamps are the clients': in any order, or none (-1). The reference is a scan over a list. The
engine's knowledge of its segments must survive trims, truncations, resets, repairs and restarts.
"""

import contextlib
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from segments.api import EntriesDamaged, HardState, SegmentSpan, StoredEntry
from segments.io.fs import RealFile, RealFileSystem
from segments.log import log as segments_log
from segments.log.largest_timestamps import UNKNOWN, LargestTimestamps
from tests.storage_contract.conftest import SMALL
from tests.storage_contract.damage import flip_bit

TINY = replace(SMALL, segment_bytes=600, index_segment_entries=8)
"""Some four entries a segment."""

numbers = st.integers(0, 9)


@given(
    st.lists(numbers, max_size=20),
    st.lists(st.tuples(st.sampled_from("aads"), st.integers(0, 30), numbers), max_size=60),
    st.integers(0, 30),
)
@settings(max_examples=300, deadline=None)
def test_maxima_find_what_a_scan_finds(values, operations, start):
    """Values are appended, dropped from the front and changed, in any order."""
    maxima = LargestTimestamps(values)
    for what, where, value in [("s", 0, 0), *operations]:
        if what == "a":
            values.append(value)
            maxima.append(value)
        elif what == "d":
            count = min(where // 6, len(values))
            del values[:count]
            maxima.drop(count)
        elif values:
            values[where % len(values)] = value
            maxima[where % len(values)] = value
        assert len(maxima) == len(values)
        first = min(start, len(values))
        for least in range(11):
            found = (n for n in range(first, len(values)) if values[n] >= least)
            assert maxima.first(first, least) == next(found, len(values))


timestamps = st.one_of(st.just(-1), st.integers(0, 12))
fractions = st.integers(0, 100)
operations = st.one_of(
    st.tuples(st.just("append"), st.lists(timestamps, min_size=1, max_size=12)),
    st.tuples(st.just("append"), st.lists(timestamps, min_size=1, max_size=12)),
    st.tuples(st.just("append"), st.lists(timestamps, min_size=1, max_size=12)),
    st.tuples(st.just("replace"), fractions, st.lists(timestamps, min_size=1, max_size=6)),
    st.tuples(st.just("flush"), fractions),
    st.tuples(st.just("flush"), st.just(100)),
    st.tuples(st.just("trim"), fractions),
    st.tuples(st.just("reset"), st.integers(1, 9)),
    st.tuples(st.just("reopen")),
    st.tuples(st.just("damage"), fractions, st.booleans(), fractions),
    st.tuples(st.just("ask"), timestamps),
)


class Timed:
    """One log on the engine, and its timestamps in a list."""

    def __init__(self, engine, *, is_disk):
        self.engine = engine
        self.is_disk = is_disk
        self.engine.new_log()
        self.term = 1
        self.first = 1
        self.times = []

    @property
    def log(self):
        return self.engine.log

    @property
    def last(self):
        return self.first + len(self.times) - 1

    def entry(self, index, term):
        data = bytes([index & 0xFF]) * (60 + index * 7 % 90)
        timestamp = self.times[index - self.first]
        return StoredEntry(term, index, 0, data, index - 1, 1, timestamp)

    def run(self, operation):
        getattr(self, "do_" + operation[0])(*operation[1:])
        assert self.engine.fatal == []

    def do_append(self, times):
        first = self.last + 1
        self.times += times
        entries = [self.entry(index, self.term) for index in range(first, self.last + 1)]
        self.engine.store.append(self.log, entries)

    def do_replace(self, fraction, times):
        commit = self.log.commit_index
        first = commit + 1 + (self.last - commit) * fraction // 100
        del self.times[first - self.first :]
        self.term += 1
        self.do_append(times)

    def commit(self, fraction):
        old = self.log.hard_state
        commit = old.commit + (self.last - old.commit) * fraction // 100
        self.engine.store.set_hard_state(self.log, HardState(self.term, 1, commit))
        self.engine.submit()

    def do_flush(self, fraction):
        self.commit(fraction)
        self.engine.checkpoint()

    def do_trim(self, fraction):
        first = self.first + (self.log.commit_index + 1 - self.first) * fraction // 100
        if first > self.first and not self.log.installed_state:
            del self.times[: first - self.first]
            self.first = first
            self.engine.store.trim_log(self.log, first_index=first)
            self.engine.submit()
            self.engine.pump()

    def do_reset(self, ahead):
        self.term += 1
        self.first, self.times = self.last + ahead, []
        self.engine.store.reset_log(
            self.log, first_index=self.first, prev_term=self.term, next_offset=self.first - 1
        )
        self.engine.submit()
        self.engine.pump()

    def do_reopen(self):
        self.commit(0)
        self.engine.reopen()

    def do_damage(self, fraction, is_idx_damaged, ahead):
        """Damage a frame, with its Idx or not, and one more Idx, so that the rest is rewritten.

        Append while it is damaged; then repair it.
        """
        log = self.log
        if not self.is_disk or log.flushed_index <= self.first:
            return
        # Not the last one: nothing would define the log's end.
        bad = self.first + (log.flushed_index - 1 - self.first) * fraction // 100
        other = bad + (log.flushed_index - bad) * ahead // 100
        copy = self.entry(bad, log.term(bad))
        idx = log.files.idx(bad)
        flip_bit(Path(log.files.segment_path(idx.segment)), idx.position + 60)
        for index in {other} | ({bad} if is_idx_damaged else set()):
            number, slot = divmod(index, TINY.index_segment_entries)
            flip_bit(Path(log.files.index_path(number)), 64 + slot * 40 + 1)
        terms = {log.term(index) for index in range(max(bad - 1, 1), bad + 2)}
        if fraction % 2 and bad > self.first and other != bad + 1 and len(terms) == 1:
            self.do_reopen()  # otherwise nothing would define its term
        for index in range(self.first, self.log.flushed_index + 1):  # rebuilds what can be
            with contextlib.suppress(EntriesDamaged):
                self.engine.cold(self.engine.store.entries_cold, self.log, index, index + 1, 0)
        if ahead % 2:
            self.do_append([1, 2, 1, -1, 2])
            self.do_flush(100)
        for asked in (0, 6, 12):  # finds out what is to be corrected
            self.engine.store.index_of_timestamp(self.log, asked, self.log.flushed_index, _ignore)
        self.engine.pump()
        while self.log.damaged:
            answers = []
            copies = [
                self.entry(index, self.log.term(index)) for index in range(*self.log.damaged[0])
            ]
            assert bad in range(*self.log.damaged[0])
            self.engine.store.repair(self.log, copies or [copy], answers.append)
            self.engine.pump()
            assert answers == [None]

    def do_ask(self, timestamp):
        self.check(timestamp, self.first, self.log.commit_index)

    def check_all(self):
        assert self.log.first_index == self.first
        for timestamp in (-1, 0, 1, 5, 9, 12, 13):
            for start in {0, self.first, self.first + len(self.times) // 3, self.last + 3}:
                for end in {self.log.commit_index, (self.first + self.last) // 2, self.last}:
                    self.check(timestamp, start, end)
        if self.is_disk:
            self.check_spans()

    def check(self, timestamp, start, end):
        naive = next(
            (
                index
                for index in range(max(start, self.first), min(end, self.last) + 1)
                if self.times[index - self.first] >= timestamp
            ),
            end + 1,
        )
        answers = []
        self.engine.store.index_of_timestamp(
            self.log, timestamp, end, answers.append, first_index=start
        )
        self.engine.pump()
        assert answers == [naive], (timestamp, start, end)

    def check_spans(self):
        """Check that spans equal the last Idx of each segment, without anything remembered."""
        log, answers = self.log, []
        self.engine.store.segment_spans(log, answers.append)
        self.engine.pump()
        ends = [*(segment.first_index for segment in log.segments[1:]), log.flushed_index + 1]
        known = []
        for segment, end in zip(log.segments, ends, strict=bool(log.segments)):
            idx = log.files.idx(end - 1)
            times = self.times[max(segment.first_index - self.first, 0) : end - self.first]
            assert idx.max_timestamp >= max(times, default=-1)
            if segment.first_index >= self.first:
                assert idx.max_timestamp == max(times)
            known.append(
                SegmentSpan(
                    idx.base_offset + idx.records,
                    idx.position + idx.length,
                    idx.max_timestamp,
                    end - 1,
                )
            )
        assert answers[0][:-1] == known


def _ignore(_):
    """Ignore the result; only side effects count."""


@pytest.mark.parametrize("backend", ["memory", "disk"])
@settings(
    max_examples=200,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(plan=st.lists(operations, min_size=4, max_size=30))
def test_time_is_found_where_a_scan_finds_it(make_harness, backend, plan):
    """Look-ups of existing and missing times equal a scan, after every step.

    They begin at several entries.
    """
    with tempfile.TemporaryDirectory() as directory:
        engine = make_harness(backend, Path(directory), TINY)
        timed = Timed(engine, is_disk=backend == "disk")
        try:
            for operation in plan:
                timed.run(operation)
                timed.check_all()
            timed.do_flush(100)
            timed.check_all()
        finally:
            engine.crash()


class Looks:
    """Counts files opened and reads made by a look-up, by kind of file."""

    def __init__(self, monkeypatch):
        self.opened = {"log": 0, "index": 0}
        self.reads = 0
        real_open, real_read = RealFileSystem.open, RealFile.pread

        def opened(fs, path, **how):
            if (kind := path.rpartition(".")[2]) in self.opened:
                self.opened[kind] += 1
            return real_open(fs, path, **how)

        def read(file, *arguments):
            self.reads += 1
            return real_read(file, *arguments)

        monkeypatch.setattr(RealFileSystem, "open", opened)
        monkeypatch.setattr(RealFile, "pread", read)

    def of(self, engine, timestamp, first_index=0):
        """Return (result, segments opened, reads)."""
        self.opened, self.reads = {"log": 0, "index": 0}, 0
        found = engine.cold(
            lambda log, *rest: engine.store.index_of_timestamp(log, *rest, first_index=first_index),
            engine.log,
            timestamp,
            engine.log.commit_index,
        )
        return found, self.opened["log"], self.reads


SEGMENTS = 2_000
READS_MAX = 40
"""Reads to bisect one segment's index and read its entry, with the file's length and header."""
MANY = replace(
    SMALL, segment_bytes=64 + 2 * (48 + 16), index_segment_entries=1 << 12,
    checkpoint_entries=10**9, cache_bytes_max=8 << 20, checkpoint_bytes=1 << 30,
    journal_file_bytes=4 << 20,
)  # fmt: skip


def time_of(index):
    """Return a small timestamp, in no order.

    One of two entries in every hundredth segment has a timestamp later than all before it.
    """
    segment = (index - 1) // 2
    return 1_000 + segment if segment % 100 == 99 and index % 2 else index * 7 % 50


def scan(timestamp, first, last):
    """Return the expected result."""
    found = (index for index in range(first, last + 1) if time_of(index) >= timestamp)
    return next(found, last + 1)


@pytest.fixture
def many(make_harness, tmp_path):
    """Return 2,000 segments of two entries each."""
    engine = make_harness("disk", tmp_path, MANY)
    log = engine.new_log()
    indexes = range(1, 2 * SEGMENTS + 3)
    times = [StoredEntry(1, n, 0, bytes(16), n - 1, 1, time_of(n)) for n in indexes]
    engine.store.append(log, times)
    engine.store.set_hard_state(log, HardState(1, 1, log.last_index))
    engine.submit()
    engine.checkpoint()
    assert len(log.segments) == SEGMENTS + 1
    yield engine
    assert engine.fatal == []
    engine.crash()


ASKED = (0, 30, 49, 50, 1_050, 1_700, 1_099, 2_500, 2_999, 3_000)


def look_at_few(engine, looks):
    """Check that a look-up of any time opens only the segment that holds it.

    It also opens the one in which it begins, if not at its first entry.
    """
    log = engine.log
    for timestamp in ASKED:
        for first_index in (0, (log.first_index + log.last_index) // 2):
            found, opened, reads = looks.of(engine, timestamp, first_index)
            assert found == scan(timestamp, max(first_index, log.first_index), log.last_index)
            assert opened <= 2, (timestamp, opened)
            assert reads <= READS_MAX, (timestamp, reads)


def test_look_up_over_many_segments_reads_one(many, monkeypatch):
    """All 2,000 were sealed in this run: their maxima are known."""
    look_at_few(many, Looks(monkeypatch))


def test_look_up_behind_what_was_trimmed_reads_one(many, monkeypatch):
    """Later times lie below the log's start, and in its first segment: that one is read through."""
    looks = Looks(monkeypatch)
    for first in (3, 602, 2_700, 2_701):  # 200 and 1,400 are the second of a late segment's two
        many.store.trim_log(many.log, first_index=first)
        many.submit()
        many.pump()
        look_at_few(many, looks)


def test_first_segment_whose_late_entry_is_deleted_does_not_hide_the_others(many, monkeypatch):
    """Segments are found though the first one's largest time is of a trimmed entry."""
    first = next(index for index in range(2, SEGMENTS) if time_of(index - 1) > 1_000)
    many.store.trim_log(many.log, first_index=first)
    many.submit()
    many.pump()
    found, opened, _ = Looks(monkeypatch).of(many, 1_000)
    assert many.log.segments[0].first_index == first - 1
    assert found == scan(1_000, first, many.log.last_index)
    assert opened == 2


def test_new_life_learns_of_each_segment_once(many, monkeypatch):
    """One Idx of each is read, and only of those before the result; then it is as before.

    Other jobs use the pool's thread in between.
    """
    monkeypatch.setattr(segments_log, "LOOKS_MAX", 64)
    many.close()
    many.start()
    looks = Looks(monkeypatch)
    assert looks.of(many, 1_099)[2] <= 100 + READS_MAX
    assert looks.of(many, 1_099)[2] <= READS_MAX
    jobs = []
    pool = many.workers.pool
    monkeypatch.setattr(many.workers, "pool", lambda *job: (jobs.append(1), pool(*job)))
    found, opened, reads = looks.of(many, 3_000)
    assert found == many.log.last_index + 1
    assert opened == 0
    assert SEGMENTS - 100 - READS_MAX <= reads <= SEGMENTS + READS_MAX
    assert len(jobs) >= (SEGMENTS - 100) // 64
    assert many.log.maxima.first(0, UNKNOWN) == SEGMENTS
    look_at_few(many, looks)


def test_what_segments_hold_is_read_once(many, monkeypatch):
    """Retention queries repeatedly: what sealed segments report does not change."""
    spans = []
    looks = Looks(monkeypatch)
    many.store.segment_spans(many.log, spans.append)
    many.pump()
    assert looks.reads == 0
    many.close()
    many.start()
    for reads in (SEGMENTS, 0):
        looks.reads = 0
        many.store.segment_spans(many.log, spans.append)
        many.pump()
        assert looks.reads == reads
        assert spans[-1] == spans[0]


HIGH = 9_000


@pytest.fixture
def holed(make_harness, tmp_path):
    """Return six entries in one segment, of which the third is much later than all others."""
    engine = make_harness("disk", tmp_path, SMALL)
    timed = Timed(engine, is_disk=True)
    timed.do_append([1, 2, HIGH, 3, 4, 5])
    timed.do_flush(100)
    assert len(engine.log.segments) == 1
    yield timed
    assert engine.fatal == []
    engine.crash()


def spoil(timed, *, frames=(), rows=()):
    files = timed.log.files
    for index in frames:
        idx = files.idx(index)
        flip_bit(Path(files.segment_path(idx.segment)), idx.position + 60)
    for index in rows:
        number, slot = divmod(index, SMALL.index_segment_entries)
        flip_bit(Path(files.index_path(number)), 64 + slot * 40 + 1)


def fill_hole(timed, index):
    """Repair the entry with another replica's copy."""
    with pytest.raises(EntriesDamaged):
        timed.engine.cold(timed.engine.store.entries_cold, timed.log, index, index + 1, 0)
    answers = []
    copy = timed.entry(index, timed.log.term(index))
    timed.engine.store.repair(timed.log, [copy], answers.append)
    timed.engine.pump()
    assert answers == [None]
    assert timed.log.damaged == ()


def test_index_rebuilt_around_a_hole_knows_the_times_that_its_idx_knows(holed):
    """A frame is damaged and its Idx is good; another Idx is damaged, and all are rewritten."""
    spoil(holed, frames=[3], rows=[5])
    assert holed.engine.cold(holed.engine.store.entries_cold, holed.log, 5, 6, 0)
    fill_hole(holed, 3)
    assert holed.log.files.idx(6).max_timestamp == HIGH
    holed.check_all()
    holed.check(HIGH, 1, 6)


def test_hole_that_is_filled_in_the_newest_segment_counts_for_what_follows(holed):
    """A start finds its index rebuilt without the time of a damaged entry.

    A flush continues from there, before and after the repair, and seals the segment.
    """
    spoil(holed, frames=[3], rows=range(3, 7))
    holed.engine.cold(holed.engine.store.entries_cold, holed.log, 5, 6, 0)
    holed.do_reopen()
    assert holed.log.cursor.max_timestamp == 5
    holed.do_append([6, 7])
    holed.do_flush(100)
    fill_hole(holed, 3)
    holed.check(HIGH, 1, 8)
    for _ in range(8):
        holed.do_append([8] * 8)
        holed.do_flush(100)
    sealed, *_ = holed.log.segments
    assert sealed.sealed.max_timestamp == HIGH
    holed.check_all()
    holed.check(HIGH, 1, holed.last)
    holed.check(HIGH - 1, 2, holed.last)


def test_hole_that_is_filled_raises_what_was_known_of_its_segment(holed):
    """A repaired entry raises what was known of its sealed segment.

    This covers what was read while it was damaged, and the result of a read begun before the repair
    that ends after it.
    """
    for _ in range(8):
        holed.do_append([8] * 8)
        holed.do_flush(100)
    assert len(holed.log.segments) > 1
    last = holed.log.segments[1].first_index - 1
    spoil(holed, frames=[3], rows=range(3, last + 1))
    holed.engine.cold(holed.engine.store.entries_cold, holed.log, 5, 6, 0)
    holed.do_reopen()
    holed.engine.pump()
    late = []
    store = holed.engine.store
    store.index_of_timestamp(holed.log, 100, holed.last, late.append)
    job, done = holed.engine.workers.pool_jobs.popleft()
    read = job()  # and its result is not delivered yet
    assert [found.max_timestamp for found in read.learned] == [8] * (len(holed.log.segments) - 1)
    # Another look-up reads it in the meantime; the damaged entry is not found.
    assert holed.engine.cold(store.index_of_timestamp, holed.log, 8, holed.last) == 7
    assert holed.log.segments[0].sealed.max_timestamp == 8
    fill_hole(holed, 3)
    assert holed.log.segments[0].sealed.max_timestamp == HIGH
    done(read)
    holed.engine.pump()
    assert late == [holed.last + 1]  # as it was when it was read
    assert holed.log.files.idx(last).max_timestamp == HIGH
    holed.check_all()
    holed.check(HIGH, 1, holed.last)


def test_log_that_is_reset_during_a_look_up_is_searched_as_it_is_then(make_harness, tmp_path):
    """The old files' times do not apply to the new ones."""
    engine = make_harness("disk", tmp_path, TINY)
    timed = Timed(engine, is_disk=True)
    timed.do_append([1] * 30)
    timed.do_flush(100)
    timed.do_reopen()
    engine.pump()
    found = []
    engine.store.index_of_timestamp(engine.log, 5, 60, found.append)
    job, done = engine.workers.pool_jobs.popleft()
    read = job()
    timed.do_reset(2)
    timed.do_append([1] * 7 + [6] + [1] * 20)
    timed.do_flush(100)
    done(read)
    engine.pump()
    assert found == [timed.first + 7]
    timed.check_all()
    engine.crash()
