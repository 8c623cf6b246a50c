"""Compaction of a log's segments: what remains, what a crash leaves, what concurrent readers see.

The logs hold real batches. A model that knows nothing of segments, passes and files computes what
must remain of them.
"""

import contextlib
import random
from pathlib import Path

import pytest

from segments.api import (
    Compaction,
    CorruptRecord,
    EntriesDamaged,
    HardState,
    MetaBatch,
    StoredEntry,
)
from segments.compaction.compactor import OLD_FILE_MS
from segments.format.names import rewritten, sequence_of
from segments.io import failpoint
from segments.io.fs import RealFileSystem
from segments.log.segment import LogFiles
from segments.tool import Directory, verify
from tests.storage_contract.conftest import SMALL, DiskHarness, SimHarness, make
from tests.storage_contract.damage import flip_bit
from vdl.records.batch import BatchFields, Record, build_batch, iter_records, read_header
from vdl.records.compaction import BatchCleaner
from vdl.records.compression import Compression

PLACES = [name for name in failpoint.POINTS if name.startswith("compact.")]
JOINED = "compact.join_"
"""Prefix of the failpoints that a join passes."""


class Killed(BaseException):
    """Raised where the process ends."""


def fill(harness, log, rng, count, *, keys=8, producers=(-1, 5, 6)):
    """Append and commit `count` entries with random batches, with commands between them."""
    entries, offset = [], log.next_offset
    sequences = {}
    for index in range(log.last_index + 1, log.last_index + 1 + count):
        if rng.random() < 0.1:
            entries.append(StoredEntry(1, index, 0, b"command", offset, 0, -1))
            continue
        records = [
            Record(
                key=b"k%d" % rng.randrange(keys),
                value=None if rng.random() < 0.3 else rng.randbytes(rng.choice((3, 60))),
                timestamp=index * 10 + n,
            )
            for n in range(rng.randint(1, 4))
        ]
        producer = rng.choice(producers)
        first = sequences.get(producer, 0)
        sequences[producer] = first + len(records)
        fields = BatchFields(
            base_offset=offset, compression=rng.choice(list(Compression)), producer_id=producer,
            producer_epoch=0, base_sequence=first if producer >= 0 else -1,
        )  # fmt: skip
        data = bytes(build_batch(records, fields))
        entries.append(StoredEntry(1, index, 0, data, offset, len(records), index * 10 + 3))
        offset += len(records)
    for entry in entries:
        harness.store.append(log, [entry])
        harness.store.set_hard_state(log, HardState(1, 2, log.last_index))
        harness.submit()
    store_state(harness, log)


def store_state(harness, log):
    harness.collect(MetaBatch(log.log_id, log.commit_index, [(b"a", b"b")]))
    harness.checkpoint()
    harness.workers.advance(1_000)


def records_of(data):
    return [(r.offset, r.key, r.value, r.timestamp) for r in iter_records(memoryview(data))]


def expected(entries, upto, markers_upto):
    """Return index -> records that must remain by definition: the newest of each key."""
    newest = {}
    for index, entry in entries.items():
        if index <= upto and entry[4] and entry[2]:
            newest.update({key: offset for offset, key, _, _ in records_of(entry[2])})
    left = {}
    for index, entry in entries.items():
        if not entry[4]:
            continue
        kept = records_of(entry[2]) if entry[2] else []
        if index <= upto:
            kept = [r for r in kept if newest[r[1]] == r[0]]
            kept = [r for r in kept if r[2] is not None or index > markers_upto]
        left[index] = kept
    return left


def by_index(harness, log):
    return dict(enumerate(harness.all_entries(log), log.first_index))


def compact(harness, log, upto, markers_upto=0, **cleaner):
    """Compact the log up to there, retrying as its owner does. Return True once it is done."""
    for _ in range(20):
        done = []
        harness.store.compact(
            log, Compaction(upto, markers_upto), lambda: BatchCleaner(**cleaner),
            pace=lambda count: 1, done=done.append,
        )  # fmt: skip
        harness.workers.advance(5_000)
        for _ in range(1_000):  # each pass waits until the old files of the previous one are gone
            if not done:
                harness.workers.advance(5_000)
        if done == [True]:
            harness.workers.advance(20_000)
            return True
        # The newest segment ends with the next entry that is flushed.
        entry = StoredEntry(1, log.last_index + 1, 0, b"", log.next_offset, 0, -1)
        harness.store.append(log, [entry])
        harness.store.set_hard_state(log, HardState(1, 2, log.last_index))
        harness.submit()
        store_state(harness, log)
        harness.workers.advance(20_000)
    return False


def check(before, after, left):
    """Check that each entry is where it was and holds what must remain of it."""
    after = {index: entry for index, entry in after.items() if index in before}
    assert list(before) == list(after)
    for index, (term, kind, data, base_offset, records, timestamp) in after.items():
        assert (term, kind, base_offset, records, timestamp) == (
            *before[index][:2], *before[index][3:],
        )  # fmt: skip
        if not records:
            assert data == before[index][2]
            continue
        assert (records_of(data) if data else []) == left[index], index
        if data:
            header, old = read_header(data), read_header(before[index][2] or data)
            assert header.last_offset == base_offset + records - 1
            assert header.codec == (old.codec if header.count else 0)
            assert header.last_sequence == old.last_sequence
            assert header.producer_id == old.producer_id


@pytest.mark.parametrize("seed", range(6))
def test_newest_record_of_each_key_stays_where_it_was(harness, seed):
    """Offsets, terms and timestamps stay too, and compacting again changes nothing."""
    rng = random.Random(seed)
    log = harness.new_log()
    fill(harness, log, rng, 120)
    before = by_index(harness, log)
    upto = rng.randint(1, log.last_index)
    assert compact(harness, log, upto, keys_max=rng.choice((1, 3, 100)))
    assert log.compaction == Compaction(upto, 0)
    after = by_index(harness, log)
    check(before, after, expected(before, upto, 0))
    fill(harness, log, rng, 60)
    second = by_index(harness, log)
    last = rng.randint(upto, log.last_index - 1)
    assert compact(harness, log, last, upto)
    left = expected(second, last, upto)
    check(second, by_index(harness, log), left)
    final = harness.all_entries(log)
    assert compact(harness, log, last, upto)
    assert harness.all_entries(log)[: len(final)] == final


def test_every_way_to_compact_comes_to_the_same_bytes(tmp_path):
    """Replicas that compact in different ways end with the same bytes.

    They do so in one pass or many, with small or large memory, for all of the log or only what
    others have not compacted yet.
    """
    outcomes = set()
    for way in range(5):
        harness = SimHarness(SMALL)
        harness.start()
        log = harness.new_log()
        fill(harness, log, random.Random(4), 150)
        steps = [(130, 60)] if way < 2 else [(40, 0), (90, 40), (130, 60)]
        if way == 4:
            steps = [(90, 0), (40, 0), (130, 60)]
        for upto, markers_upto in steps:
            if upto > log.compaction.upto or way != 4:
                assert compact(harness, log, upto, markers_upto, keys_max=(1000, 2)[way % 2])
        if way >= 2:  # markers that an earlier pass might have kept
            assert compact(harness, log, 130, 60)
        outcomes.add(tuple(harness.all_entries(log)[:130]))
        harness.crash()
    assert len(outcomes) == 1


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("nth", [1, 2, 7])
def test_power_cut_at_each_step_loses_nothing(place, nth):
    """A start finds the partly compacted log, and the rest is done afterwards."""
    harness = SimHarness(SMALL)
    harness.start()
    log = harness.new_log()
    fill(harness, log, random.Random(nth), 150)
    before = by_index(harness, log)
    left = expected(before, 120, 0)
    passed = []

    def pass_by():
        passed.append(place)
        if len(passed) == nth:
            raise Killed

    if place in {"compact.noting", "compact.noted"} and nth > 1:
        return
    if place.startswith(JOINED) and nth > 2:
        return  # no more steps than that
    failpoint.watch(place, pass_by)
    try:
        with pytest.raises(Killed):
            compact(harness, log, 120)
    finally:
        failpoint.unwatch(place)
    harness.power_cut()
    harness.start()
    log = harness.log
    assert not log.lost
    half_done = by_index(harness, log)
    for index, entry in half_done.items():
        assert entry[:2] == before[index][:2]
        assert entry[3:] == before[index][3:]
        found = records_of(entry[2]) if entry[4] and entry[2] else []
        assert not entry[4] or found in (records_of(before[index][2]), left[index])
    assert log.damaged == ()
    assert harness.store.strays == []
    assert compact(harness, log, 120)
    check(before, by_index(harness, log), left)
    harness.power_cut()
    harness.start()
    assert harness.log.compaction == Compaction(120, 0)
    check(before, by_index(harness, harness.log), left)


@pytest.mark.parametrize("place", ["compact.named", "compact.indexed", "compact.noted"])
def test_power_cut_after_several_passes_brings_nothing_back(place):
    """A start could not tell three files of a segment apart.

    Where memory for keys is small, each pass waits until the old files of the previous one are
    gone.
    """
    for nth in (1,) if place == "compact.noted" else (3, 9, 12, 14):
        harness = SimHarness(SMALL)
        harness.start()
        log = harness.new_log()
        fill(harness, log, random.Random(nth), 150, keys=12)
        before = by_index(harness, log)
        passed, numbers = [], []

        def pass_by(nth=nth, passed=passed, numbers=numbers, log=log):
            numbers[:] = [segment.number for segment in log.segments]
            passed.append(nth)
            if len(passed) == nth:
                raise Killed

        failpoint.watch(place, pass_by)
        try:
            with pytest.raises(Killed):
                compact(harness, log, 120, 120, keys_max=3)
        finally:
            failpoint.unwatch(place)
        harness.power_cut()
        harness.start()
        log = harness.log
        assert not log.lost
        # Each is what it was, or one written since.
        for segment, number in zip(log.segments, numbers, strict=True):
            assert segment.number in {number, rewritten(number)}
        if log.compaction.upto == 120:
            check(before, by_index(harness, log), expected(before, 120, 120))
        assert compact(harness, log, 120, 120, keys_max=3)
        check(before, by_index(harness, log), expected(before, 120, 120))


def test_reader_behind_what_is_gone_is_given_the_next_batch(harness):
    """The reader must make progress: it would repeat a read that returned no batches for ever."""
    log = harness.new_log()
    fill(harness, log, random.Random(1), 150, keys=2)
    upto = log.last_index - 30
    assert compact(harness, log, upto)
    offset, batches = log.log_start_offset, 0
    while offset < log.next_offset:
        found = harness.read(log, offset, log.commit_index, 200)
        assert found.buffers, offset
        assert found.end_offset > offset
        assert found.first_offset >= offset or batches == 0
        offset, batches = found.end_offset, batches + 1
    assert batches < 100


@pytest.mark.parametrize("codec", list(Compression))
def test_what_is_left_can_be_read_however_small_it_becomes(codec):
    """Compaction may remove all that did not compress.

    Readers refuse data that decompresses to too much.
    """
    zeros, noise = bytes(1 << 20), random.Random(1).randbytes(1 << 16)
    records = [Record(b"a", noise), *(Record(b"z%d" % n, zeros) for n in range(4))]
    batch = bytes(build_batch(records, BatchFields(compression=codec)))
    assert len(list(iter_records(memoryview(batch)))) == 5
    newer = bytes(build_batch([Record(b"a", b"")], BatchFields(base_offset=5)))
    entries = [StoredEntry(1, 1, 0, batch, 0, 5, -1), StoredEntry(1, 2, 0, newer, 5, 1, -1)]
    cleaner = BatchCleaner()
    assert cleaner.scan(entries, keys_from=1) == 3
    left = cleaner.clean(entries[0], markers_upto=0)
    assert left is not None
    assert records_of(left) == records_of(batch)[1:]
    entries[0].data = left
    again = BatchCleaner()
    again.scan(entries, keys_from=1)
    assert again.clean(entries[0], markers_upto=0) is None


def test_reader_passes_over_segments_of_which_nothing_is_left(tmp_path, monkeypatch):
    """Emptied segments are skipped without being read: most of an old log may consist of them."""
    harness = make("disk", tmp_path)
    log = harness.new_log()
    entries = []
    for index in range(1, 401):
        data = bytes(build_batch([Record(b"k", b"v" * 100)], BatchFields(base_offset=index - 1)))
        entries.append(StoredEntry(1, index, 0, data, index - 1, 1, index))
    harness.store.append(log, entries)
    harness.store.set_hard_state(log, HardState(1, 2, log.last_index))
    harness.submit()
    store_state(harness, log)
    upto = log.segments[-1].first_index - 1
    assert compact(harness, log, upto)
    read = []
    entries_of = LogFiles.entries

    def counted(self, first, end, bytes_max):
        found = entries_of(self, first, end, bytes_max)
        read.extend(entry.index for entry in found)
        return found

    monkeypatch.setattr(LogFiles, "entries", counted)
    for is_reopened in (False, True):
        if is_reopened:  # the segments' sizes have to be looked up then
            log = harness.reopen()
        for end, first_offset in ((log.commit_index, upto - 1), (upto - 1, 0), (upto // 2, 0)):
            read.clear()
            found = harness.read(log, 0, end, 2_000)
            assert found.first_offset == first_offset
            assert bool(found.buffers) == (end == log.commit_index)
            assert len(read) < upto // 2
    harness.crash()


def test_keys_are_told_apart_whatever_their_length(harness):
    """Short keys are compared as they are, longer ones by a digest; a mebibyte is a valid key."""
    log = harness.new_log()
    keys = [b"", b"a", b"a" * 15, b"a" * 16, b"a" * 17, b"a" * 15 + b"b", b"\0" * 16]
    entries, offset = [], 0
    for n in range(3):
        for key in keys:
            data = bytes(build_batch([Record(key, b"%d" % n)], BatchFields(base_offset=offset)))
            entries.append(StoredEntry(1, len(entries) + 1, 0, data, offset, 1, n))
            offset += 1
    for entry in entries:
        harness.store.append(log, [entry])
        harness.store.set_hard_state(log, HardState(1, 2, log.last_index))
        harness.submit()
    store_state(harness, log)
    fill(harness, log, random.Random(1), 30)
    before = by_index(harness, log)
    assert compact(harness, log, len(entries))
    check(before, by_index(harness, log), expected(before, len(entries), 0))


def test_key_of_a_mebibyte_supersedes_itself():
    """A key of a mebibyte supersedes earlier records of the same key, and of no other that long."""
    keys = [b"x" * (1 << 20), b"x" * ((1 << 20) - 1) + b"y"]
    entries = []
    for n, key in enumerate([keys[0], keys[1], keys[0]]):
        data = bytes(build_batch([Record(key, b"v")], BatchFields(base_offset=n)))
        entries.append(StoredEntry(1, n + 1, 0, data, n, 1, -1))
    cleaner = BatchCleaner()
    assert cleaner.scan(entries, keys_from=1) == 4
    left = [cleaner.clean(entry, markers_upto=0) for entry in entries]
    assert left == [b"", None, None]


def test_log_of_one_key_is_not_read_again_and_again(tmp_path, monkeypatch):
    """One record of a long log remains: the next compaction reads only what was written since."""
    harness = make("disk", tmp_path)
    log = harness.new_log()
    read = []
    entries_of = LogFiles.entries

    def counted(self, first, end, bytes_max):
        found = entries_of(self, first, end, bytes_max)
        read.extend(entry.index for entry in found)
        return found

    for _ in range(3):
        for _ in range(250):
            data = bytes(build_batch([Record(b"k", b"v" * 60)], BatchFields(log.next_offset)))
            entry = StoredEntry(1, log.last_index + 1, 0, data, log.next_offset, 1, -1)
            harness.store.append(log, [entry])
            harness.store.set_hard_state(log, HardState(1, 2, log.last_index))
            harness.submit()
        store_state(harness, log)
        before = by_index(harness, log)
        upto, done = log.segments[-1].first_index - 1, log.compaction.upto
        read.clear()
        monkeypatch.setattr(LogFiles, "entries", counted)
        answers = []
        harness.store.compact(
            log, Compaction(upto, 0), BatchCleaner, pace=lambda n: 1, done=answers.append
        )
        harness.workers.advance(OLD_FILE_MS // 2)
        monkeypatch.setattr(LogFiles, "entries", entries_of)
        assert answers == [True]
        harness.workers.advance(3 * OLD_FILE_MS)  # and joined
        left = by_index(harness, log)
        check(before, left, expected(before, upto, 0))
        assert not done or len({index for index in read if index < done}) < done / 2
    harness.crash()


def test_reader_under_way_is_not_told_of_damage(tmp_path):
    """Reads that began before a segment was rewritten find its old file."""
    harness = make("disk", tmp_path)
    log = harness.new_log()
    fill(harness, log, random.Random(1), 150)
    before = by_index(harness, log)
    upto = log.segments[-1].first_index - 1
    done, answers = [], []
    harness.store.compact(
        log, Compaction(upto, 0), BatchCleaner, pace=lambda count: 1, done=done.append
    )
    for _ in range(400):
        harness.store.entries_cold(log, 1, upto, 1 << 20, answers.append)
        # The read is under way during the next steps.
        harness.workers.pool_jobs.rotate(1)
        harness.workers.advance(1)
    harness.workers.advance(1_000)
    assert done == [True]
    assert all(isinstance(answer, list) for answer in answers)
    assert log.damaged == ()
    check(before, by_index(harness, log), expected(before, upto, 0))
    harness.crash()


def test_newest_segment_is_left_alone_until_another_has_begun(tmp_path):
    """Flushes continue in it."""
    harness = make("disk", tmp_path)
    log = harness.new_log()
    fill(harness, log, random.Random(1), 40)
    newest = log.segments[-1]
    done = []
    harness.store.compact(
        log, Compaction(newest.first_index, 0), BatchCleaner, pace=lambda n: 1, done=done.append
    )
    harness.workers.advance(10)
    assert done == [False]
    assert log.segments[-1] is newest
    fill(harness, log, random.Random(2), 1)
    assert log.segments[-1].number == newest.number + 1
    assert compact(harness, log, newest.first_index)
    assert log.compaction == Compaction(newest.first_index, 0)
    harness.crash()


def test_damaged_entry_stops_it_and_is_told(tmp_path):
    """Nothing is rewritten from entries that cannot be read; the damage is reported."""
    harness = make("disk", tmp_path)
    log = harness.new_log()
    fill(harness, log, random.Random(1), 150)
    harness.reopen()
    log = harness.log
    path = log.files.segment_path(log.segments[1].number)
    with Path(path).open("r+b") as file:
        file.seek(300)
        file.write(b"\xff\xff\xff")
    done = []
    harness.store.compact(log, Compaction(100, 0), BatchCleaner, pace=lambda n: 1, done=done.append)
    harness.workers.advance(5_000)
    assert done == [False]
    assert log.damaged
    assert not any(name.endswith(".new") for name in log.files.fs.list(log.files.directory))
    harness.crash()


def hurt(log, indexes):
    """Damage the frames of entries; their positions remain known."""
    for index in indexes:
        idx = log.files.idx(index)
        flip_bit(Path(log.files.segment_path(idx.segment)), idx.position + 20)


@pytest.mark.parametrize("wide", [1, 3, 40])
@pytest.mark.parametrize("loses_index", [False, True])
def test_damage_is_repaired_from_a_log_that_is_compacted_further(tmp_path, wide, loses_index):
    """Damage stops compaction here while other replicas go on, so their copies must be accepted.

    The repaired log holds what they have.
    """
    other = SimHarness(SMALL)
    other.start()
    fill(other, other.new_log(), random.Random(4), 150)
    assert compact(other, other.log, 80)
    harness = make("disk", tmp_path)
    log = harness.new_log()
    fill(harness, log, random.Random(4), 150)
    assert compact(harness, log, 80)
    before = by_index(harness, log)
    assert compact(other, other.log, 130, 80)
    bad = range(log.segments[2].first_index + 1, log.segments[2].first_index + 1 + wide)
    hurt(log, bad)
    if loses_index:
        fs, files = log.files.fs, log.files
        fs.unlink(files.index_path(bad[0] // files.index_entries))
    harness.reopen()
    log = harness.log
    done, answers = [], []
    harness.store.compact(
        log, Compaction(130, 80), BatchCleaner, pace=lambda n: 1, done=done.append
    )
    harness.workers.advance(5_000)
    assert done == [False]
    for _ in range(100):
        if not log.damaged:
            with contextlib.suppress(EntriesDamaged):
                harness.all_entries(log)
        if not log.damaged:
            break
        first, end = log.damaged[0]
        copies = [
            StoredEntry(*entry[:1], index, *entry[1:])
            for index, entry in by_index(other, other.log).items()
            if first <= index < end + 3
        ]
        assert copies
        harness.store.repair(log, copies, answers.append, compacted_upto=130)
        harness.workers.advance(20_000)
    assert log.damaged == ()
    assert answers[-1] is None
    after = by_index(harness, log)
    for index, entry in before.items():
        assert after[index] in (entry, by_index(other, other.log)[index])
    assert compact(harness, log, 130, 80)
    assert harness.all_entries(log)[:130] == other.all_entries(other.log)[:130]
    harness.reopen()
    assert harness.store.strays == []
    assert harness.all_entries(harness.log)[:130] == other.all_entries(other.log)[:130]
    harness.crash()


@pytest.mark.parametrize("how", ["page", "empty"])
@pytest.mark.parametrize("when", ["compact.named", "compact.indexed", "compact.join_indexed"])
def test_damage_to_a_file_that_another_stands_for_costs_nothing(tmp_path, when, how):
    """Damage to a replaced file is harmless, also where neither it nor any Idx describes it."""
    harness = make("disk", tmp_path)
    log = harness.new_log()
    fill(harness, log, random.Random(1), 400, keys=3)
    before, upto = by_index(harness, log), log.segments[-1].first_index - 1
    left = expected(before, upto, 0)

    def stop():
        raise Killed

    failpoint.watch(when, stop)
    try:
        with pytest.raises(Killed):
            joined(harness, log, upto)
    finally:
        failpoint.unwatch(when)
    known = log.segments
    harness.crash()
    files = log.files
    if when == "compact.join_indexed":
        named = {files.idx(segment.first_index).segment for segment in known}
        hurt = next(s for s in known if s.number not in named and sequence_of(s.number) > 1)
        number = hurt.number
    else:
        old = known[0].number
        number = rewritten(old) if when == "compact.named" else old
        assert files.idx(known[0].first_index).segment == (old if number != old else rewritten(old))
    path = Path(files.segment_path(number))
    path.write_bytes(bytes(path.stat().st_size) if how == "page" else b"")
    harness.start()
    log = harness.log
    assert not log.lost
    assert not path.exists()
    for index, entry in by_index(harness, log).items():
        found = records_of(entry[2]) if entry[4] and entry[2] else []
        assert not entry[4] or found in (records_of(before[index][2]), left[index])
    assert log.damaged == ()
    harness.crash()


def test_copy_of_another_length_is_refused_where_none_may_be(tmp_path):
    """A copy of another length is refused where compaction cannot have made the entry smaller.

    It has to be at the same position in the log.
    """
    harness = make("disk", tmp_path)
    log = harness.new_log()
    fill(harness, log, random.Random(4), 150)
    index = log.segments[1].first_index + 2
    (true,) = [e for n, e in by_index(harness, log).items() if n == index]
    hurt(log, [index])
    harness.reopen()
    log = harness.log
    with pytest.raises(EntriesDamaged):
        harness.entries(log, index, index + 1)
    term, kind, _, base_offset, records, timestamp = true
    answers = []
    for upto, copy in (
        (index - 1, StoredEntry(term, index, kind, b"", base_offset, records, timestamp)),
        (index, StoredEntry(term, index, kind, b"", base_offset + 1, records, timestamp)),
        (index, StoredEntry(term, index, kind, b"", base_offset, records + 1, timestamp)),
        (index, StoredEntry(term, index, kind, b"", base_offset, records, 1 << 40)),
    ):
        harness.store.repair(log, [copy], answers.append, compacted_upto=upto)
        harness.workers.advance(20_000)
        assert isinstance(answers.pop(), CorruptRecord), copy
        assert log.damaged == ((index, index + 1),)
    copy = StoredEntry(term, index, kind, b"", base_offset, records, timestamp)
    harness.store.repair(log, [copy], answers.append, compacted_upto=index)
    harness.workers.advance(20_000)
    assert answers == [None]
    assert harness.entries(log, index, index + 1)[0].data == b""
    harness.crash()


def test_newest_segment_that_has_to_be_written_anew_ends(tmp_path):
    """A damaged newest segment that needs rewriting ends with the next entry.

    Until then a smaller copy has to wait.
    """
    harness = make("disk", tmp_path)
    log = harness.new_log()
    fill(harness, log, random.Random(4), 150)
    index = log.segments[-1].first_index
    (true,) = [e for n, e in by_index(harness, log).items() if n == index]
    hurt(log, [index])
    harness.reopen()
    log = harness.log
    with pytest.raises(EntriesDamaged):
        harness.entries(log, index, index + 1)
    term, kind, _, base_offset, records, timestamp = true
    copy = StoredEntry(term, index, kind, b"", base_offset, records, timestamp)
    answers = []
    for is_refused in (True, False):
        harness.store.repair(log, [copy], answers.append, compacted_upto=index)
        harness.workers.advance(20_000)
        assert isinstance(answers.pop(), CorruptRecord) is is_refused
        fill(harness, log, random.Random(5), 2)
        harness.workers.advance(20_000)
    assert harness.entries(log, index, index + 1)[0].data == b""
    harness.crash()


def test_trim_and_reset_meanwhile(tmp_path):
    """Files written for segments that a concurrent trim or reset removed are removed too."""
    for move in ("trim", "reset", "delete"):
        harness = DiskHarness(SMALL, directory=str(tmp_path / move))
        harness.start()
        log = harness.new_log()
        fill(harness, log, random.Random(1), 200)
        before = by_index(harness, log)
        done = []
        harness.store.compact(
            log, Compaction(150, 0), BatchCleaner, pace=lambda n: 1, done=done.append
        )
        for _ in range(random.Random(move).randint(8, 14)):
            harness.workers.advance(1)
        if move == "trim":
            harness.store.trim_log(log, first_index=70)
        elif move == "reset":
            harness.store.reset_log(log, first_index=300, prev_term=1, next_offset=900)
        else:
            harness.store.delete_log(log.log_id)
        harness.submit()
        harness.workers.advance(30_000)
        assert done == [move == "trim"]
        assert harness.fatal == []
        if move == "trim":
            left = expected(before, 150, 0)
            after = by_index(harness, log)
            check({i: before[i] for i in after if i in before}, after, left)
            assert compact(harness, log, 160)
        harness.reopen()
        assert harness.store.strays == []
        harness.crash()


@pytest.mark.parametrize("by", ["offset", "index", "time"])
def test_read_that_takes_longer_than_old_files_stay_finds_what_replaced_them(
    tmp_path, monkeypatch, by
):
    """A slow read finds the entries though their segment is rewritten.

    It has looked up their positions, and the file that it is about to open is removed. Nothing is
    damaged.
    """
    harness = make("disk", tmp_path)
    log = harness.new_log()
    fill(harness, log, random.Random(1), 150)
    old, opened = log.files.segment_path(1), RealFileSystem.open
    waiting = [True]

    def slowly(fs, path, **how):
        if path == old and waiting:
            waiting.clear()
            assert compact(harness, log, 120)
            assert not fs.exists(old)
        return opened(fs, path, **how)

    monkeypatch.setattr(RealFileSystem, "open", slowly)
    answers = []
    if by == "offset":
        harness.store.read_cold(log, 0, log.commit_index, 1_000, answers.append)
    elif by == "index":
        harness.store.entries_cold(log, 1, 10, 1_000, answers.append)
    else:
        harness.store.index_of_timestamp(log, 15, log.commit_index, answers.append)
    harness.pump()
    assert not waiting
    (found,) = answers
    assert not isinstance(found, CorruptRecord)
    after = by_index(harness, log)
    if by == "offset":
        (first,) = [entry for entry in after.values() if entry[2] and entry[4]][:1]
        assert bytes(found.buffers[0]) == first[2]
    elif by == "time":
        assert found == min(index for index, entry in after.items() if entry[5] >= 15)
    else:
        assert [bytes(e.data) for e in found] == [after[e.index][2] for e in found]
    harness.crash()


def test_file_of_before_a_reset_is_not_taken_for_a_new_segment(tmp_path):
    """Old files are removed some seconds later; a log that was reset begins with the same names."""
    harness = make("disk", tmp_path)
    log = harness.new_log()
    fill(harness, log, random.Random(1), 150)
    done = []
    harness.store.compact(log, Compaction(120, 0), BatchCleaner, pace=lambda n: 1, done=done.append)
    harness.workers.advance(3_000)
    assert done == [True]
    old = log.files.segment_path(1)
    assert log.files.fs.exists(old)
    harness.store.reset_log(log, first_index=300, prev_term=1, next_offset=900)
    harness.submit()
    fill(harness, log, random.Random(2), 40)
    assert log.segments[0].number == 1
    before = harness.all_entries(log)
    harness.workers.advance(20_000)
    assert log.files.fs.exists(old)
    harness.reopen()
    assert harness.all_entries(harness.log) == before
    # The log can be compacted again.
    assert compact(harness, harness.log, 320)
    harness.crash()


def test_many_logs_are_compacted_one_right_behind_the_other(tmp_path):
    """No log waits until the old files of others have gone."""
    harness = make("disk", tmp_path)
    logs = [harness.new_log(group_id) for group_id in range(9, 12)]
    for log in logs:
        fill(harness, log, random.Random(log.group_id), 100)
    began_ms, done = harness.workers.now_ms, []
    for log in logs:
        harness.store.compact(
            log, Compaction(60, 0), BatchCleaner, pace=lambda n: 1, done=done.append
        )
        harness.workers.advance(1_000)
    assert done == [True, True, True]
    assert harness.workers.now_ms - began_ms < OLD_FILE_MS
    # Each waits on its own: a start could not tell three files of a segment apart.
    again = []
    harness.store.compact(
        logs[0], Compaction(80, 60), BatchCleaner, pace=lambda n: 1, done=again.append
    )
    harness.workers.advance(1_000)
    assert again == [False]
    harness.workers.advance(OLD_FILE_MS)
    for log in logs:
        assert compact(harness, log, 80, 60)
    harness.crash()


def test_index_that_is_lost_is_rebuilt_from_what_was_rewritten(tmp_path):
    """An emptied entry has a frame, too."""
    harness = make("disk", tmp_path)
    log = harness.new_log()
    fill(harness, log, random.Random(1), 150)
    assert compact(harness, log, 120)
    before = harness.all_entries(log)
    terms = [log.term(n) for n in range(log.first_index, log.last_index + 1)]
    harness.crash()
    fs = log.files.fs
    for name in fs.list(log.files.directory):
        if name.endswith(".index"):
            fs.unlink(f"{log.files.directory}/{name}")
    harness.start()
    log = harness.log
    assert harness.all_entries(log) == before
    assert [log.term(n) for n in range(log.first_index, log.last_index + 1)] == terms
    harness.crash()


def test_full_disk_leaves_the_log_as_it_was(tmp_path):
    """The rest is done when there is space."""
    for place in ("compact.begun", "compact.written", "compact.named", "compact.noting"):
        # Joins that are refused have no effect on this; test_join_that_a_full_disk_refuses covers
        # them.
        harness = DiskHarness(SMALL, directory=str(tmp_path / place))
        harness.start()
        log = harness.new_log()
        fill(harness, log, random.Random(1), 150)
        before = by_index(harness, log)
        failpoint.arm(f"{place}:enospc@1")
        try:
            done = []
            harness.store.compact(
                log, Compaction(120, 0), BatchCleaner, pace=lambda n: 1, done=done.append
            )
            harness.workers.advance(3_000)
        finally:
            failpoint.arm("")
        assert done == [False], place
        assert harness.fatal == []
        found = by_index(harness, log)
        for index, entry in found.items():
            assert entry[3:] == before[index][3:]
        harness.workers.advance(20_000)
        assert compact(harness, log, 120)
        check(before, by_index(harness, log), expected(before, 120, 0))
        harness.crash()


@pytest.mark.parametrize("place", PLACES)
def test_disk_that_fails_is_fatal_once(place, tmp_path, request):
    """A disk failure is reported once; the next start finds a readable log without losses."""
    request.addfinalizer(lambda: failpoint.arm(""))
    harness = make("disk", tmp_path)
    log = harness.new_log()
    fill(harness, log, random.Random(1), 150)
    before = by_index(harness, log)
    failpoint.arm(f"{place}:error@1")
    harness.store.compact(
        log, Compaction(100, 0), BatchCleaner, pace=lambda n: 1, done=lambda is_whole: None
    )
    harness.workers.advance(30_000)
    assert len(harness.fatal) == 1
    failpoint.arm("")
    harness.fatal.clear()
    harness.reopen()
    assert compact(harness, harness.log, 100)
    check(before, by_index(harness, harness.log), expected(before, 100, 0))
    harness.crash()


def test_copies_that_are_compacted_apart_do_not_differ(tmp_path):
    """Copies compacted to different limits count as equal.

    Once all are compacted as far, each byte counts.
    """
    harnesses = []
    for name in ("a", "b"):
        harness = DiskHarness(SMALL, directory=str(tmp_path / name))
        harness.start()
        fill(harness, harness.new_log(), random.Random(1), 150)
        harnesses.append(harness)

    def differences():
        for harness in harnesses:
            harness.close()
        with contextlib.ExitStack() as stack:
            opened = [
                stack.enter_context(
                    Directory(RealFileSystem(), h.directory, SMALL.index_segment_entries)
                )
                for h in harnesses
            ]
            reports, found = verify(opened)
        assert [report.problems for report in reports] == [[], []]
        for harness in harnesses:
            harness.start()
        return found

    assert differences() == []
    one, other = harnesses
    assert compact(one, one.log, 100)
    assert differences() == []
    assert compact(other, other.log, 100)
    assert differences() == []
    assert compact(other, other.log, 100, 50)
    assert differences() == []
    for harness in harnesses:
        harness.crash()


def files_of(log):
    """Return names and contents of a log's segments."""
    fs, directory = log.files.fs, log.files.directory
    names = [name for name in fs.list(directory) if name.endswith(".log")]
    return {name: Path(directory, name).read_bytes() for name in sorted(names)}


def joined(harness, log, upto, markers_upto=0):
    """Compact the log up to there; return it with small segments joined and old files gone."""
    assert compact(harness, log, upto, markers_upto)
    harness.workers.advance(60_000)
    return log


def test_small_segments_become_one(tmp_path):
    """Reads and each Idx are as before; another start finds the same."""
    harness = make("disk", tmp_path)
    log = harness.new_log()
    fill(harness, log, random.Random(1), 400, keys=3)
    before, count = by_index(harness, log), len(log.segments)
    upto = log.segments[-1].first_index - 1
    joined(harness, log, upto)
    assert len(log.segments) < count / 2
    assert harness.store.stats()["compaction_segments_joined"] == count - len(log.segments)
    assert len(files_of(log)) == len(log.segments)
    assert any(segment.through for segment in log.segments)
    largest = max(segment.sealed.bytes for segment in log.segments[:-1])
    assert largest <= SMALL.segment_bytes
    left = expected(before, upto, 0)
    check(before, by_index(harness, log), left)
    for timestamp in (0, 500, 2_000, 1 << 40):
        found = harness.cold(harness.store.index_of_timestamp, log, timestamp, log.last_index)
        later = (index for index, entry in before.items() if entry[5] >= timestamp)
        assert found == next(later, log.last_index + 1)
    files, infos = files_of(log), [(s.number, s.first_index, s.through) for s in log.segments]
    log = harness.reopen()
    assert harness.store.strays == []
    assert files_of(log) == files
    assert [(s.number, s.first_index, s.through) for s in log.segments] == infos
    check(before, by_index(harness, log), left)
    # Joined segments are compacted and joined again.
    fill(harness, log, random.Random(2), 300, keys=3)
    second = by_index(harness, log)
    upto = log.segments[-1].first_index - 1
    joined(harness, log, upto, upto)
    check(second, by_index(harness, log), expected(second, upto, upto))
    log = harness.reopen()
    check(second, by_index(harness, log), expected(second, upto, upto))
    harness.crash()


def test_replicas_join_the_same(tmp_path):
    """Replicas join the same segments to the same files, independent of their memory for keys."""
    found = []
    for n in range(2):
        harness = DiskHarness(SMALL, directory=str(tmp_path / str(n)))
        harness.start()
        log = harness.new_log()
        fill(harness, log, random.Random(1), 300, keys=3)
        assert compact(harness, log, 250, keys_max=(1000, 2)[n])
        harness.workers.advance(60_000)
        found.append(files_of(log))
        harness.crash()
    # The number of rewrites may differ; it is in a segment's name and header.
    contents = [[(name[:10], data[64:]) for name, data in one.items()] for one in found]
    assert contents[0] == contents[1]


@pytest.mark.parametrize("damage", ["flip", "page"])
@pytest.mark.parametrize("when", ["compact.join_named", "compact.join_indexing", "later"])
def test_damaged_header_of_joined_segments_costs_nothing(tmp_path, damage, when):
    """The joined segments are named twice, and by Idx."""
    harness = make("disk", tmp_path)
    log = harness.new_log()
    fill(harness, log, random.Random(1), 400, keys=3)
    before, upto = by_index(harness, log), log.segments[-1].first_index - 1

    def stop():
        raise Killed

    if when != "later":
        failpoint.watch(when, stop)
    try:
        with contextlib.suppress(Killed):
            joined(harness, log, upto)
    finally:
        failpoint.unwatch(when)
    harness.crash()
    hurt_one = False
    for name in files_of(log):
        path = Path(log.files.directory, name)
        if int.from_bytes(path.read_bytes()[48:52], "little"):
            hurt_one = True
            if damage == "flip":
                for at in (50, 30):
                    flip_bit(path, at)
            else:
                with path.open("r+b") as file:
                    file.write(bytes(64))
    assert hurt_one
    harness.start()
    log = harness.log
    assert not log.lost
    check(before, by_index(harness, log), expected(before, upto, 0))
    joined(harness, log, upto)
    check(before, by_index(harness, log), expected(before, upto, 0))
    harness.crash()


def test_missing_segment_is_not_taken_for_a_joined_one(tmp_path):
    """A gap between numbers is valid only where a header names it."""
    harness = make("disk", tmp_path)
    log = harness.new_log()
    fill(harness, log, random.Random(1), 400, keys=3)
    joined(harness, log, log.segments[-1].first_index - 1)
    fill(harness, log, random.Random(2), 100)
    path = log.files.segment_path(log.segments[-2].number)
    harness.crash()
    Path(path).unlink()
    harness.start()
    assert harness.log.lost
    harness.crash()


def test_index_that_names_what_was_joined_is_rebuilt(tmp_path):
    """A reader that holds an earlier Idx finds the entry at its new position."""
    harness = make("disk", tmp_path)
    log = harness.new_log()
    fill(harness, log, random.Random(1), 400, keys=3)
    upto = log.segments[-1].first_index - 1
    path, old = Path(log.files.index_path(0)), []
    failpoint.watch("compact.join_named", lambda: old.append(path.read_bytes()))
    try:
        joined(harness, log, upto)
    finally:
        failpoint.unwatch("compact.join_named")
    before = harness.all_entries(log)
    assert path.read_bytes() != old[0]
    harness.crash()
    path.write_bytes(old[0])
    harness.start()
    assert harness.all_entries(harness.log) == before
    assert harness.log.damaged == ()
    harness.crash()


def test_trim_reset_and_repair_while_segments_are_joined(tmp_path):
    """The log changes during a join: the join then has no effect, and no damage is reported."""
    for move in ("trim", "reset", "delete", "damage"):
        for steps in (0, 2, 5):
            harness = DiskHarness(SMALL, directory=str(tmp_path / f"{move}{steps}"))
            harness.start()
            log = harness.new_log()
            fill(harness, log, random.Random(1), 150, keys=3)
            before, begun = by_index(harness, log), []
            failpoint.watch("compact.join_begun", lambda begun=begun: begun.append(True))
            try:
                assert compact(harness, log, 120)
                for _ in range(30_000):
                    if begun:
                        break
                    harness.workers.advance(1)
            finally:
                failpoint.unwatch("compact.join_begun")
            assert begun
            for _ in range(steps):
                harness.workers.advance(1)
            left = expected(before, 120, 0)
            if move == "trim":
                harness.store.trim_log(log, first_index=90)
            elif move == "reset":
                harness.store.reset_log(log, first_index=400, prev_term=1, next_offset=2_000)
            elif move == "delete":
                harness.store.delete_log(log.log_id)
            else:
                log.damaged_ranges.add(60, 62)
            harness.submit()
            harness.workers.advance(30_000)
            assert harness.fatal == []
            if move in {"trim", "damage"}:
                after = by_index(harness, log)
                check({i: before[i] for i in after if i in before}, after, left)
                assert log.damaged == (() if move == "trim" else ((60, 62),))
            harness.reopen()
            assert harness.store.strays == []
            harness.crash()


def test_join_that_a_full_disk_refuses_is_done_another_time(tmp_path):
    """Compacted segments stay as they are."""
    for place in ("begun", "written", "named", "indexing"):
        harness = DiskHarness(SMALL, directory=str(tmp_path / place))
        harness.start()
        log = harness.new_log()
        fill(harness, log, random.Random(1), 150, keys=3)
        before = by_index(harness, log)
        failpoint.arm(f"{JOINED}{place}:enospc@1")
        try:
            assert compact(harness, log, 120)
            harness.workers.advance(30_000)
        finally:
            failpoint.arm("")
        assert harness.fatal == []
        assert log.compaction == Compaction(120, 0)
        check(before, by_index(harness, log), expected(before, 120, 0))
        count = len(log.segments)
        joined(harness, log, 120)
        assert len(log.segments) <= count
        assert any(segment.through for segment in log.segments)
        check(before, by_index(harness, log), expected(before, 120, 0))
        harness.crash()
