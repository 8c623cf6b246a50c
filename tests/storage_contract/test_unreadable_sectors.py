"""Unreadable sectors: each costs the data in it, never the process.

The medium behaves as Linux shows it: a page with a bad sector can neither be read nor be written in
part, because the system reads the rest first. Written as a whole it is good again.
"""

import errno
import random
from dataclasses import replace

import pytest

from segments.api import CorruptRecord, EntriesDamaged, HardState, SegmentLimits, StoredEntry
from segments.io.fs import SyncFailed, is_unreadable
from segments.log import segment as segment_module
from segments.log.index import IDX_BYTES, place
from segments.log.index_files import IndexWriter
from segments.log.segment_header import SEGMENT_HEADER_BYTES, decode_segment_header
from tests.storage_contract.test_scrap import OPTIONS, Engine
from vdl.sim.disk import Directory, DiskProfile, Inode, SimDisk
from vdl.sim.filesystem import SimFile, SimFileSystem

PAGE = 4096
LIMITS = SegmentLimits(16 << 10)
BOTH = replace(OPTIONS, index_segment_entries=256)
"""Options with segments and index files of a few pages each, neither ending with the other."""


class Medium:
    """Bad pages, by inode and number. `refuses`: it does not accept whole pages either."""

    def __init__(self):
        self.bad = {}
        self.refuses = False
        self.before_whole_page = None

    def spoil(self, engine, path, *pages):
        inode = engine.fs.open(path)._inode
        self.bad[id(inode)] = inode, set(pages)

    def pages(self, file):
        return self.bad.get(id(file._inode), (None, set()))[1]

    @property
    def is_good(self):
        return not any(pages for _, pages in self.bad.values())


@pytest.fixture
def medium(monkeypatch):
    """Yield the simulated disk's files, on a medium with bad pages."""
    made = Medium()
    real_read, real_write, real_truncate = SimFile.pread, SimFile.pwrite, SimFile.truncate

    def pread(file, length, position):
        end = min(position + length, file.size())
        if any(p * PAGE < end and position < (p + 1) * PAGE for p in made.pages(file)):
            raise OSError(errno.EIO, "bad sector")
        return real_read(file, length, position)

    def pwrite(file, buffers, position, *, durable=False):
        pages, end = made.pages(file), position + sum(map(len, buffers))
        for page in sorted(pages):
            start, stop = page * PAGE, (page + 1) * PAGE
            if start < end and position < stop:
                if made.refuses or position > start or end < stop:
                    raise OSError(errno.EIO, "bad sector")
                act, made.before_whole_page = made.before_whole_page, None
                if act is not None:
                    act()
                pages.discard(page)
        return real_write(file, buffers, position, durable=durable)

    def truncate(file, length):
        pages = made.pages(file)
        if length < file.size() and length % PAGE and length // PAGE in pages:
            raise OSError(errno.EIO, "bad sector")
        pages -= {page for page in pages if page * PAGE >= length}
        real_truncate(file, length)

    monkeypatch.setattr(SimFile, "pread", pread)
    monkeypatch.setattr(SimFile, "pwrite", pwrite)
    monkeypatch.setattr(SimFile, "truncate", truncate)
    return made


class Watched(Engine):
    """Keeps fatal errors."""

    def start(self):
        super().start()
        self.fatal = []
        self.store.on_fatal = self.fatal.append


def build(count=500, options=BOTH):
    """Return an engine with many segments."""
    engine = Watched(SimFileSystem(SimDisk(random.Random(1), DiskProfile())), "data", options)
    while engine.log.last_index < count:
        engine.put(50)
        engine.flush(LIMITS)
    assert len(engine.log.segments) > 5
    return engine


def entry(index):
    """Return what `Engine.put` wrote."""
    return StoredEntry(1, index, 0, index.to_bytes(2) * 100, index - 1, 1, index)


def segment_path(engine, number):
    return engine.log.files.segment_path(number)


def inside(engine, number, page):
    """Return the entries of a segment whose frames touch a page, by the index."""
    files, found = engine.log.files, []
    for index in range(1, engine.log.flushed_index + 1):
        idx = files.idx(index)
        end = idx.position + idx.length
        if idx.segment == number and idx.position < (page + 1) * PAGE and page * PAGE < end:
            found.append(index)
    return found


def read_all(engine, bytes_max=1 << 20):
    """Read everything in segments; return the entries that could not be read.

    What is read is right.
    """
    bad, index, end = [], 1, engine.log.flushed_index + 1
    while index < end:
        found = engine.cold(engine.store.entries_cold, index, end, bytes_max)
        if isinstance(found, EntriesDamaged):
            assert found.first <= index < found.end
            bad += range(index, found.end)
            index = found.end
            continue
        assert isinstance(found, list), found
        for one in found:
            assert (one.index, bytes(one.data)) == (index, index.to_bytes(2) * 100)
            index += 1
    assert engine.fatal == []
    return bad


def mend(engine, indexes):
    return engine.cold(engine.store.repair, [entry(index) for index in indexes])


def assert_mended(engine, medium, at_once):
    """Check that repairing what is found, `at_once` entries an answer, restores everything."""
    for _ in range(40):
        bad = read_all(engine)
        if not bad:
            break
        while engine.log.damaged:
            first, end = engine.log.damaged[0]
            assert mend(engine, range(first, min(end, first + at_once))) is None
    assert read_all(engine) == []
    assert engine.fatal == []


def test_large_read_names_what_is_bad_and_serves_the_rest(medium):
    """One page of a read of a mebibyte is bad: the entries in it are damaged, and no others."""
    engine = build()
    number = engine.log.segments[2].number
    expected = inside(engine, number, 1)
    assert 10 < len(expected) < 30
    medium.spoil(engine, segment_path(engine, number), 1)
    assert read_all(engine) == expected
    assert engine.log.damaged == ((expected[0], expected[-1] + 1),)
    assert_mended(engine, medium, at_once=1000)
    assert medium.is_good


def test_scrubber_names_what_is_bad(medium):
    """The scrubber reads a mebibyte a step, and reports the entries in the bad page."""
    engine = build(options=replace(BOTH, scrub_bytes_per_second=1 << 20))
    number = engine.log.segments[3].number
    expected = inside(engine, number, 2)
    medium.spoil(engine, segment_path(engine, number), 2)
    engine.workers.advance(30_000)
    assert engine.log.damaged == ((expected[0], expected[-1] + 1),)
    assert engine.fatal == []


def test_entry_of_zeros_in_a_bad_page_is_not_served(medium):
    """The zeros that replace an unreadable page match a CRC here; the page has to be rewritten."""
    engine = build()
    first = engine.log.last_index + 1
    zeros = [StoredEntry(1, i, 0, bytes(3 * PAGE), i - 1, 1, i) for i in range(first, first + 9)]
    engine.store.append(engine.log, zeros)
    engine.store.set_hard_state(engine.log, HardState(1, 7, first + 8))
    engine.store.submit()
    engine.workers.pump()
    engine.flush(LIMITS)
    idx = engine.log.files.idx(first + 4)
    medium.spoil(engine, segment_path(engine, idx.segment), idx.position // PAGE + 1)
    found = engine.cold(engine.store.entries_cold, first + 4, first + 5, 0)
    assert isinstance(found, EntriesDamaged)
    assert engine.cold(engine.store.repair, [zeros[4]]) is None
    assert medium.is_good


@pytest.mark.parametrize("at_once", [1, 7, 1000])
@pytest.mark.parametrize("where", ["segment", "index", "both"])
def test_any_page_may_go_bad(medium, where, at_once):
    """A store opens with any page bad, serves the rest, and is intact when all was repaired.

    Pages are of segments and indexes, and go bad between runs or under a running store. Copies come
    in small answers.
    """
    engine = build()
    rng = random.Random(at_once)
    folder = engine.log.files.directory
    names = engine.fs.list(folder)
    damaged = 0
    for round_ in range(12):
        kinds = {"segment": [".log"], "index": [".index"], "both": [".log", ".index"]}[where]
        for kind in kinds:
            path = f"{folder}/{rng.choice([name for name in names if name.endswith(kind)])}"
            size = engine.fs.open(path).size()
            if path == segment_path(engine, engine.log.cursor.segment):
                size = engine.log.cursor.position
            medium.spoil(engine, path, rng.randrange(-(-size // PAGE)))
        if round_ % 2 and where != "both":
            engine.restart()
        assert not engine.log.lost
        damaged += len(read_all(engine, rng.choice([0, 3000, 1 << 20])))
        assert_mended(engine, medium, at_once)
        engine.restart()
        assert read_all(engine) == []
    assert bool(damaged) == (where != "index")
    sizes = {name: engine.fs.open(f"{folder}/{name}").size() for name in names}
    assert all(size <= 16 << 10 for name, size in sizes.items() if name.endswith(".log"))
    engine.put(100)
    engine.flush(LIMITS)
    assert read_all(engine) == []


def test_store_opens_with_a_bad_first_page_in_every_segment(medium):
    """A store opens although neither headers nor first frames can be read.

    The indexes show what begins there. The repair rewrites the headers.
    """
    engine = build()
    expected = []
    for segment in engine.log.segments:
        expected += inside(engine, segment.number, 0)
        medium.spoil(engine, segment_path(engine, segment.number), 0)
    before = [(s.number, s.first_index, s.base_offset) for s in engine.log.segments]
    engine.restart()
    assert not engine.log.lost
    assert [(s.number, s.first_index, s.base_offset) for s in engine.log.segments] == before
    assert read_all(engine) == expected
    assert_mended(engine, medium, at_once=1000)
    assert medium.is_good
    for name in engine.fs.list(engine.log.files.directory):
        if name.endswith(".index"):
            engine.fs.unlink(f"{engine.log.files.directory}/{name}")
    engine.restart()
    assert [(s.number, s.first_index, s.base_offset) for s in engine.log.segments] == before
    assert read_all(engine) == []


@pytest.mark.parametrize("missing", ["newest", "middle"])
def test_store_opens_with_a_bad_first_page_and_without_idx_that_a_power_cut_took(medium, missing):
    """The remaining Idx tell where the segment begins, and its frames what follows them."""
    engine = build()
    while engine.log.cursor.position < 3 * PAGE:
        engine.put(10)
        engine.flush(LIMITS)
    number, end = engine.log.cursor.segment, engine.log.flushed_index + 1
    expected = inside(engine, number, 0)
    medium.spoil(engine, segment_path(engine, number), 0)
    for first in range(expected[-1] + 1, end, 9):
        stop = end if missing == "newest" else (first + end) // 2
        for index in range(first, stop):
            file_number, position = place(index, BOTH.index_segment_entries)
            file = engine.fs.open(engine.log.files.index_path(file_number))
            file.pwrite([bytes(IDX_BYTES)], position)
        engine.restart()
        assert not engine.log.lost, first
        assert engine.log.last_index == end - 1
        assert read_all(engine) == expected
    assert_mended(engine, medium, at_once=1000)
    assert medium.is_good


def test_flush_into_a_bad_page_of_an_index(medium):
    """A flush writes the file's header and its own Idx into the bad page.

    Those that lay there are rebuilt.
    """
    engine = build()
    path = engine.log.files.index_path(engine.log.flushed_index // BOTH.index_segment_entries)
    size = engine.fs.open(path).size()
    medium.spoil(engine, path, 0, (size - 1) // PAGE)
    engine.put(100)
    engine.flush(LIMITS)
    assert engine.log.unflushed == 0
    assert medium.is_good
    assert read_all(engine) == []


def test_flush_into_a_bad_page_of_a_segment(medium):
    """Data flushed into a bad page is readable; the page's earlier data is damaged."""
    engine = build()
    number = engine.log.segments[-1].number
    size = engine.log.cursor.position
    page = (size - 1) // PAGE
    lost = inside(engine, number, page)
    flushed = engine.log.flushed_index
    medium.spoil(engine, segment_path(engine, number), page)
    engine.put(100)
    engine.flush(LIMITS)
    assert engine.log.unflushed == 0
    assert medium.is_good
    engine.restart()
    assert lost[-1] == flushed < engine.log.flushed_index
    assert read_all(engine) == lost
    assert mend(engine, lost) is None
    assert read_all(engine) == []


def test_flush_into_the_bad_first_page_of_a_segment_writes_its_header_again(medium):
    """The page can only be written as a whole.

    Without a header, and without the Idx, which a power cut may take, the segment could not be
    identified.
    """
    engine = build()
    before = len(engine.log.segments)
    for _ in range(1_000):
        engine.put(100)
        engine.flush(LIMITS)
        if len(engine.log.segments) > before:
            break
    assert engine.log.cursor.position < PAGE
    segment = engine.log.segments[-1]
    path = segment_path(engine, segment.number)
    medium.spoil(engine, path, 0)
    engine.put(100)
    engine.flush(LIMITS)
    assert medium.is_good
    header = engine.fs.open(path).pread(SEGMENT_HEADER_BYTES, 0)
    told = decode_segment_header(header, engine.log.log_id)
    assert (told.number, told.first_index) == (segment.number, segment.first_index)
    assert told.base_offset == segment.base_offset


def test_scrap_in_a_bad_page_of_an_index_is_cut_off(medium):
    """A flush that did not count left Idx; truncating within a page makes the system read it."""
    engine = build()
    engine.put(100)
    engine.cut_flush(LIMITS)
    engine.restart()
    path = engine.log.files.index_path(engine.log.flushed_index // BOTH.index_segment_entries)
    medium.spoil(engine, path, (engine.fs.open(path).size() - 1) // PAGE)
    engine.put(100)
    engine.flush(SegmentLimits(8 << 10))
    assert engine.log.unflushed == 0
    assert read_all(engine) == []


def test_two_write_one_bad_page_of_an_index(medium):
    """Two writers of one bad page do not lose Idx for good.

    They are rebuilds of two segments, or one and a flush. The later one's zeros overwrite the
    other's Idx, and a reader that misses those has them rebuilt.
    """
    engine = build()
    files, segments = engine.log.files, engine.log.segments
    ends = [s.first_index for s in segments[1:]]
    path = files.index_path(0)
    medium.spoil(engine, path, 1)
    touching = [n for n, end in enumerate(ends) if end * 40 > PAGE and end < 200]
    one, other = touching[0], touching[1]
    medium.before_whole_page = lambda: files.rebuild(segments[other], ends[other])
    files.rebuild(segments[one], ends[one])
    assert medium.before_whole_page is None
    assert medium.is_good
    with pytest.raises(CorruptRecord):
        files.idx(ends[other] - 1)
    assert read_all(engine) == []


def test_repair_that_the_medium_does_not_take_is_refused(medium):
    """A refused repair is not fatal: the range stays damaged, and the owner is notified."""
    engine = build()
    number = engine.log.segments[2].number
    medium.spoil(engine, segment_path(engine, number), 1)
    bad = read_all(engine)
    medium.refuses = True
    assert isinstance(mend(engine, bad), CorruptRecord)
    assert engine.log.damaged == ((bad[0], bad[-1] + 1),)
    medium.refuses = False
    assert mend(engine, bad) is None
    assert read_all(engine) == []


def test_failed_sync_of_a_repair_is_fatal(medium, monkeypatch):
    """A failed sync of a repair is fatal, though its error number is that of an unreadable page."""
    engine = build()
    number = engine.log.segments[2].number
    medium.spoil(engine, segment_path(engine, number), 1)
    bad = read_all(engine)

    def sync(_):
        raise SyncFailed(OSError(errno.EIO, "failed"))

    monkeypatch.setattr(SimFile, "sync", sync)
    engine.store.repair(engine.log, [entry(index) for index in bad], [].append)
    engine.workers.pump()
    assert [type(error) for error in engine.fatal] == [SyncFailed]
    assert not is_unreadable(engine.fatal[0])


def test_failed_write_of_a_readable_page_is_fatal(medium, monkeypatch):
    """A write is retried in another way only where the medium cannot read."""
    engine = build()
    real = SimFile.pwrite

    def pwrite(file, buffers, position, *, durable=False):
        if len(buffers) == 1 and len(buffers[0]) % 40 == 0:
            raise OSError(errno.EIO, "failed")
        return real(file, buffers, position, durable=durable)

    monkeypatch.setattr(SimFile, "pwrite", pwrite)
    engine.put(100)
    engine.store.checkpoint()
    engine.workers.pump()
    assert [error.errno for error in engine.fatal] == [errno.EIO]


def test_two_rebuilds_of_one_missing_index(medium, monkeypatch):
    """Both find none; the second one to create it takes over the first one's."""
    engine = build()
    path = engine.log.files.index_path(0)
    engine.fs.unlink(path)
    real, answers = SimFileSystem.open, []

    def open_(fs, name, *, create=False):
        if create and name == path:
            monkeypatch.setattr(SimFileSystem, "open", real)
            answers.append(job())
        return real(fs, name, create=create)

    for index in (1, 3):
        engine.store.entries_cold(engine.log, index, index + 1, 0, answers.append)
    job, _ = engine.workers.pool_jobs.pop()
    monkeypatch.setattr(SimFileSystem, "open", open_)
    engine.workers.pump()
    assert answers[0].entries[0].index == 3
    assert answers[1][0].index == 1
    assert read_all(engine) == []


def test_scrubber_rebuilds_an_index_while_a_reset_moves_it(monkeypatch):
    """The log was replaced, and what the step found is void."""
    engine = build(options=replace(BOTH, scrub_bytes_per_second=1 << 20))
    log, workers = engine.log, engine.workers
    engine.fs.unlink(log.files.index_path(0))
    real = IndexWriter.flush

    def flush(writer):
        monkeypatch.setattr(IndexWriter, "flush", real)
        engine.store.reset_log(
            log, first_index=log.last_index + 100, prev_term=1, next_offset=10**6
        )
        engine.store.submit()
        workers.pump()
        assert not engine.fs.exists(log.files.directory)
        flush_was.append(True)
        real(writer)

    flush_was = []
    monkeypatch.setattr(IndexWriter, "flush", flush)
    workers.advance(60_000)
    assert flush_was
    assert engine.fatal == []
    assert engine.store.stats()["scrub_passes"] >= 1


def damaged_without_index(engine, count, *, is_wiped=False):
    """Damage the frames and Idx of `count` adjacent entries; return the first.

    `is_wiped`: their headers are destroyed, too.
    """
    files = engine.log.files
    first = engine.log.segments[2].first_index + 10
    for index in range(first, first + count):
        idx = files.idx(index)
        segment = engine.fs.open(files.segment_path(idx.segment))
        if is_wiped:
            segment.pwrite([bytes(idx.length)], idx.position)
        segment.pwrite([b"?"], idx.position + 60)
    for index in range(first, first + count):
        number, position = segment_module.place(index, files.index_entries)
        engine.fs.open(files.index_path(number)).pwrite([bytes(40)], position)
    found = engine.cold(engine.store.entries_cold, first, first + 1, 0)
    assert isinstance(found, EntriesDamaged)
    assert found.first == first
    return first


def test_copies_that_come_one_at_a_time_fill_a_hole_without_index():
    """The entries behind the first are damaged, too, and cannot confirm it.

    The last one closes the chain.
    """
    engine = build()
    first = damaged_without_index(engine, 3)
    for index in range(first, first + 3):
        assert mend(engine, [index]) is None
    assert read_all(engine) == []


@pytest.mark.parametrize(
    "change",
    [
        {"data": (5).to_bytes(2) * 101},
        {"data": (5).to_bytes(2) * 99},
        {"records": 500},
        {"data": bytes(100_000)},
    ],
)
@pytest.mark.parametrize("is_wiped", [False, True])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_copy_that_does_not_fit_a_hole_without_index_is_refused(count, is_wiped, change):
    """Damaged neighbours do not confirm a copy.

    Known facts about them and about the entries behind them still apply.
    """
    engine = build()
    first = damaged_without_index(engine, count, is_wiped=is_wiped)
    path = engine.log.files.segment_path(engine.log.segments[2].number)
    before = bytes(engine.fs.open(path)._inode.data)
    values = {f: getattr(entry(first), f) for f in StoredEntry.__dataclass_fields__} | change
    refused = engine.cold(engine.store.repair, [StoredEntry(**values)])
    if is_wiped and count > 1 and len(values["data"]) < 300 and values["records"] == 1:
        # Nothing gives its length: the last one will not fit.
        assert refused is None
        for index in range(first + 1, first + count - 1):
            assert mend(engine, [index]) is None
        refused = mend(engine, [first + count - 1])
    else:
        assert bytes(engine.fs.open(path)._inode.data) == before
    assert isinstance(refused, CorruptRecord)


def lose_unsynced(engine):
    """Cut the power, keeping of every file what was synced."""

    def restore(directory):
        for node in directory.entries.values():
            if isinstance(node, Directory):
                restore(node)
            elif isinstance(node, Inode):
                node.data = bytearray(node.durable)
                node.dirty.clear()

    disk = engine.fs.disk
    disk.cut_jobs([])
    restore(disk.root)
    engine.start()


def flush_all(engine, count):
    """Flush `count` more entries to the one segment."""
    engine.put(count)
    engine.flush(SegmentLimits(64 << 10))
    assert engine.log.flushed_index == engine.log.last_index
    assert len(engine.log.segments) == 1


def test_repair_that_leaves_zeros_makes_durable_where_entries_lie(medium):
    """Trimmed entries are not repaired.

    The data beside the others in their page is zeros now, which cannot be walked, and a power cut
    takes the newest Idx along.
    """
    engine = Watched(SimFileSystem(SimDisk(random.Random(1), DiskProfile())), "data", BOTH)
    flush_all(engine, 80)
    medium.spoil(engine, segment_path(engine, 1), 0)
    engine.store.trim_log(engine.log, first_index=8)
    engine.store.submit()
    engine.workers.pump()
    (segment,) = engine.log.segments
    bad = [index for index in inside(engine, 1, 0) if index >= 8]
    assert segment.first_index == 1
    assert bad
    assert mend_read(engine, bad) is None
    flush_all(engine, 80)
    lose_unsynced(engine)
    assert not engine.log.lost
    engine.assert_whole()


def mend_read(engine, indexes):
    """Have the entries found damaged, and repair them."""
    for index in indexes:
        assert isinstance(
            engine.cold(engine.store.entries_cold, index, index + 1, 0), EntriesDamaged
        )
    return mend(engine, indexes)


def test_bad_page_between_whole_frames_is_passed_by_what_its_own_idx_say(medium):
    """Entries behind it lost their Idx in a power cut: they are found by their frames again."""
    engine = Watched(SimFileSystem(SimDisk(random.Random(1), DiskProfile())), "data", BOTH)
    flush_all(engine, 80)
    engine.log.files.open_index(0, 1).sync()
    bad = inside(engine, 1, 1)
    assert 1 < len(bad) < 80
    medium.spoil(engine, segment_path(engine, 1), 1)
    flush_all(engine, 80)
    lose_unsynced(engine)
    assert not engine.log.lost
    assert engine.log.last_index == 160
    assert read_all(engine) == bad
    assert mend(engine, bad) is None
    assert read_all(engine) == []
