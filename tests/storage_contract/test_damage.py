"""Bit flips at rest: each is found or harmless, and is repaired from a copy.

The model stands for the replica that has a good copy. The engine serves what the model has, or
raises an error that names what cannot be served.
"""

import errno
import random
from dataclasses import replace
from pathlib import Path

import pytest

from segments.api import CorruptRecord, EntriesDamaged, HardState, MetaBatch, StoredEntry
from segments.io.fs import RealFile
from segments.log import scrubber as scrub
from segments.log.segment import LogFiles
from tests.storage_contract.conftest import SMALL, Writer, make, put
from tests.storage_contract.damage import flip_bit
from tests.storage_contract.test_scrap import LARGE, FullFileSystem
from tests.storage_contract.test_scrap import Engine as SmallEngine

COUNT = 260


def build(make_harness, tmp_path):
    """Return (engine, model) with the same log: many sealed segments, terms that change."""
    sides = make_harness("disk", tmp_path), make_harness("memory", None)
    for side in sides:
        log = side.new_log()
        for n in range(COUNT):
            term = 1 + n // 60
            data = bytes((n * 7 + k) & 0xFF for k in range(20 + n * 37 % 400))
            entry = StoredEntry(term, n + 1, 3 if n % 50 == 0 else 0, data, log.next_offset,
                                0 if n % 50 == 0 else 1 + n % 3, n)  # fmt: skip
            side.store.append(log, [entry])
            side.store.set_hard_state(log, HardState(term, 1, n + 1))
            if n % 8 == 0:
                side.submit()
        side.submit()
        side.checkpoint()
    return sides


def folder(engine, log):
    return Path(engine.directory) / "logs" / f"{log.log_id:08x}"


def segment_file(engine, number):
    return folder(engine, engine.log) / f"{number:010d}.log"


def index_slot(engine, index):
    """Return (file, position) of an entry's Idx."""
    number, slot = divmod(index, SMALL.index_segment_entries)
    return folder(engine, engine.log) / f"{number:010d}.index", 64 + slot * 40


def flip_in_frame(engine, index, at, bit=0):
    """Flip a bit of byte `at` of an entry's frame in its segment, which is on disk."""
    idx = engine.log.files.idx(index)
    flip_bit(segment_file(engine, idx.segment), idx.position + at, bit)


def read_all(engine, model):
    """Read every entry through the engine.

    Return the indexes that it could not give; compare the others with the model.
    """
    log, other = engine.log, model.log
    bad, index = [], log.first_index
    while index <= log.last_index:
        try:
            found = engine.entries(log, index, log.last_index + 1, 3000)
        except EntriesDamaged as damage:
            damaged = damage
            found = []
        if not found:
            assert damaged.first == index
            bad += range(damaged.first, damaged.end)
            index = damaged.end
            continue
        for entry in found:
            (true,) = other.entries(entry.index, entry.index + 1, 0)
            assert (entry.term, int(entry.kind), bytes(entry.data)) == (
                true.term, true.kind, bytes(true.data),
            )  # fmt: skip
            assert (entry.base_offset, entry.records) == (true.base_offset, true.records)
        index = found[-1].index + 1
    assert sorted(set(bad)) == [i for first, end in log.damaged for i in range(first, end)]
    return bad


def mend(engine, model, indexes):
    """Repair entries from the model's copy."""
    copies = [model.log.entries(i, i + 1, 0)[0] for i in indexes]
    answers = []
    engine.store.repair(engine.log, copies, answers.append)
    engine.pump()
    return answers[0]


def test_damaged_frame_of_a_sealed_segment_is_a_hole_until_it_is_repaired(make_harness, tmp_path):
    """The error names the range; entries around it are served; the repaired copy is durable."""
    engine, model = build(make_harness, tmp_path)
    log = engine.log
    bad = log.segments[1].first_index + 2
    flip_in_frame(engine, bad, 60)
    log = engine.reopen()
    assert log.damaged == ()
    with pytest.raises(EntriesDamaged) as caught:
        engine.entries(log, bad, bad + 5)
    assert (caught.value.first, caught.value.end) == (bad, bad + 1)
    assert log.damaged == ((bad, bad + 1),)
    assert engine.store.stats()["damaged_ranges"] == 1
    assert [e.index for e in engine.entries(log, bad - 2, bad + 5)] == [bad - 2, bad - 1]
    assert read_all(engine, model) == [bad]
    assert mend(engine, model, [bad]) is None
    assert log.damaged == ()
    assert read_all(engine, model) == []
    engine.reopen()
    assert read_all(engine, model) == []
    engine.crash()


def test_copy_that_cannot_be_what_stood_there_is_refused(make_harness, tmp_path):
    """Term, length, offsets and kind must match what is known."""
    engine, model = build(make_harness, tmp_path)
    log = engine.log
    bad = log.segments[1].first_index + 1
    flip_in_frame(engine, bad, 50)
    path = segment_file(engine, log.segments[1].number)
    with pytest.raises(EntriesDamaged):
        engine.entries(log, bad, bad + 1)
    before = path.read_bytes()
    (true,) = model.log.entries(bad, bad + 1, 0)
    for change in (
        {"term": true.term + 1}, {"data": bytes(true.data) + b"x"}, {"kind": 9},
        {"base_offset": true.base_offset + 1}, {"records": true.records + 1},
    ):  # fmt: skip
        values = {f: getattr(true, f) for f in StoredEntry.__dataclass_fields__} | change
        answers = []
        engine.store.repair(log, [StoredEntry(**values)], answers.append)
        engine.pump()
        assert isinstance(answers[0], CorruptRecord), change
        assert path.read_bytes() == before
        assert log.damaged == ((bad, bad + 1),)
    assert mend(engine, model, [bad]) is None
    engine.crash()


def test_flipped_bits_anywhere_in_segments_and_indexes_are_found_or_harmless(
    make_harness, tmp_path
):
    """Flipped bits anywhere are found or harmless, between runs or under a running store.

    One or two are flipped at a time. What is served is right, damage is repaired from the model,
    and the next run finds everything good.
    """
    engine, model = build(make_harness, tmp_path)
    rng = random.Random(8)
    damaged = 0
    for round_ in range(120):
        files = sorted(folder(engine, engine.log).iterdir())
        used = {p.name: size_in_use(engine, p) for p in files}
        for _ in range(1 + round_ % 2):
            path = rng.choice(files)
            flip_bit(path, rng.randrange(used[path.name]), rng.randrange(8))
        if round_ % 3 == 0:
            engine.reopen()
        assert not engine.log.lost
        bad = read_all(engine, model)
        damaged += len(bad)
        if bad:
            assert mend(engine, model, bad) is None
        assert read_all(engine, model) == []
        engine.reopen()
        assert not engine.log.lost
        assert read_all(engine, model) == []
        assert engine.log.damaged == ()
    assert damaged > 20
    engine.crash()


def size_in_use(engine, path):
    """Return the number of bytes of a file that are in use."""
    log = engine.log
    size = path.stat().st_size
    if path.suffix == ".log" and int(path.stem) == log.cursor.segment:
        return log.cursor.position
    return size


@pytest.mark.parametrize("what", ["missing", "short", "zeros", "other"])
def test_index_that_is_missing_short_or_wrong_is_built_again(make_harness, tmp_path, what):
    """An index holds nothing that its log segments do not hold."""
    engine, model = build(make_harness, tmp_path)
    for life in range(2):
        for path in sorted(folder(engine, engine.log).glob("*.index")):
            if what == "missing":
                path.unlink()
            elif what == "short":
                path.write_bytes(path.read_bytes()[: path.stat().st_size // 2 + 7])
            elif what == "zeros":
                path.write_bytes(bytes(path.stat().st_size))
            else:
                path.write_bytes(random.Random(life).randbytes(path.stat().st_size))
        if life:
            engine.reopen()
        assert not engine.log.lost
        assert read_all(engine, model) == []
        for offset in range(0, model.log.next_offset, 9):
            found = [s.cold(s.store.index_of_offset, s.log, offset) for s in (engine, model)]
            assert found[0] == found[1]
    engine.crash()


def test_hole_whose_index_is_damaged_too_is_repaired_by_walking(make_harness, tmp_path):
    """A damaged entry with a damaged index is repaired.

    Its position is behind the entries before it.
    """
    engine, model = build(make_harness, tmp_path)
    log = engine.log
    bad = log.segments[2].first_index + 1
    flip_in_frame(engine, bad, 5, 6)  # its length
    path, position = index_slot(engine, bad)
    flip_bit(path, position + 3)
    found = read_all(engine, model)
    assert bad in found
    assert mend(engine, model, found) is None
    assert read_all(engine, model) == []
    engine.reopen()
    assert read_all(engine, model) == []
    engine.crash()


def test_segment_cut_short_is_filled_again(make_harness, tmp_path):
    """The end of a sealed segment is gone."""
    engine, model = build(make_harness, tmp_path)
    log = engine.log
    path = segment_file(engine, log.segments[1].number)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    found = read_all(engine, model)
    assert len(found) > 2
    assert mend(engine, model, found) is None
    assert path.read_bytes() == whole
    engine.reopen()
    assert read_all(engine, model) == []
    engine.crash()


def test_flipped_bits_of_the_meta_are_found_or_harmless(make_harness, tmp_path):
    """Applied state is what was stored, or is refused; it is never a default or another state.

    The store opens in every case and accepts a whole state anew.
    """
    engine = make_harness("disk", tmp_path)
    log = engine.new_log()
    engine.store.append(log, [StoredEntry(1, n, 0, b"x", n, 1, n) for n in range(1, 2000)])
    engine.store.set_hard_state(log, HardState(1, 1, 1999))
    engine.submit()
    rng = random.Random(6)
    refused = 0
    for round_ in range(60):
        items = [(f"k{n}".encode(), rng.randbytes(rng.randrange(300))) for n in range(120)]
        engine.collect(MetaBatch(log.log_id, round_ + 1, items, clear=True))
        engine.checkpoint()
        assert engine.store.load_meta(log) == (round_ + 1, sorted(items))
        log = engine.reopen()  # the next journal file's header knows of this checkpoint
        assert engine.store.load_meta(log) == (round_ + 1, sorted(items))
        engine.crash()
        path = Path(engine.directory) / "meta" / "data.mdb"
        used = len(path.read_bytes().rstrip(b"\0"))  # behind that it is only reserved
        flip_bit(path, rng.randrange(used), rng.randrange(8))
        engine.start()
        log = engine.log
        assert not log.lost
        try:
            assert engine.store.load_meta(log) == (round_ + 1, sorted(items))
        except CorruptRecord:
            refused += 1
    assert refused > 5
    engine.crash()


def test_scrubber_finds_what_nobody_reads_at_its_rate(make_harness, tmp_path):
    """Every segment, also the newest, is read repeatedly at a bounded number of bytes a second.

    Damage that it finds is counted once.
    """
    engine, model = build(make_harness, tmp_path)
    log = engine.log
    sealed = log.segments[-1].first_index - 1
    total = sum(s.stat().st_size for s in folder(engine, log).glob("*.log"))
    bad = []
    for segment in (log.segments[0], log.segments[3], log.segments[-1]):
        index = segment.first_index + 1
        assert index <= log.flushed_index
        flip_in_frame(engine, index, 9)
        bad.append(index)
    flip_bit(*index_slot(engine, sealed - 2))
    engine.workers.advance(60_000)
    assert log.damaged == tuple((index, index + 1) for index in bad)
    stats = engine.store.stats()
    assert stats["scrub_errors"] == 3
    assert stats["scrub_passes"] >= 2
    assert 0.7 * total < stats["scrub_last_pass_bytes"] < total
    assert mend(engine, model, bad) is None
    engine.workers.advance(60_000)
    assert log.damaged == ()
    assert engine.store.stats()["scrub_errors"] == 3
    engine.crash()


def test_scrubber_sorts_the_logs_once_a_pass(make_harness, tmp_path, monkeypatch):
    """The scrubber sorts the logs once a pass, not at each step, and reads each log once."""
    sorts, read = [], []

    def counted(values):
        sorts.append(1)
        return sorted(values)

    check = LogFiles.check

    def noted(files, first, end, bytes_max):
        read.append((files.log_id, first, end))
        return check(files, first, end, bytes_max)

    monkeypatch.setattr(scrub, "sorted", counted, raising=False)
    monkeypatch.setattr(LogFiles, "check", noted)
    engine = make_harness("disk", tmp_path, replace(SMALL, checkpoint_entries=100))
    for group_id in range(9, 29):
        log = engine.new_log(group_id)
        entries = [StoredEntry(1, n, 0, bytes(300), n - 1, 1, n) for n in range(1, 20)]
        engine.store.append(log, entries)
        engine.store.set_hard_state(log, HardState(1, 1, 19))
    engine.submit()
    engine.checkpoint()
    engine.store.delete_log(5)
    while not engine.store.stats()["scrub_passes"]:
        engine.workers.advance(100)
    assert sorts == [1]
    assert sorted({log_id for log_id, _, _ in read}) == [n for n in range(1, 21) if n != 5]
    assert len(read) > 30
    assert read == sorted(read)
    while engine.store.stats()["scrub_passes"] < 2:
        engine.workers.advance(100)
    assert read == 2 * read[: len(read) // 2]
    assert len(sorts) == 2
    engine.crash()


def test_scrubber_rests_after_many_small_logs(make_harness, tmp_path):
    """The scrubber pauses between passes over small logs.

    At its byte rate alone it would read a thousand of them repeatedly, a hundred a second.
    """
    engine = make_harness("disk", tmp_path, SMALL)
    for group_id in range(9, 309):
        log = engine.new_log(group_id)
        engine.store.append(log, [StoredEntry(1, 1, 0, bytes(300), 0, 1, 1)])
        engine.store.set_hard_state(log, HardState(1, 1, 1))
    engine.submit()
    engine.checkpoint()
    while not engine.store.stats()["scrub_passes"]:
        engine.workers.advance(100)
    engine.workers.advance(29_000)
    assert engine.store.stats()["scrub_passes"] == 1
    engine.workers.advance(10_000)
    assert engine.store.stats()["scrub_passes"] == 2
    engine.crash()


def test_scrubber_keeps_to_its_rate(make_harness, tmp_path):
    """A slow scrubber takes its time; trimmed and deleted logs cause no errors."""
    options = replace(SMALL, scrub_bytes_per_second=1000)
    engine = make_harness("disk", tmp_path, options)
    log = engine.new_log()
    for n in range(1, 200):
        engine.store.append(log, [StoredEntry(1, n, 0, bytes(300), n - 1, 1, n)])
    engine.store.set_hard_state(log, HardState(1, 1, 199))
    engine.submit()
    engine.checkpoint()
    engine.workers.advance(20_000)
    read = engine.store.stats()["scrubbed_bytes"]
    assert 4_000 <= read <= 16_000
    engine.workers.advance(20_000)
    assert 12_000 <= engine.store.stats()["scrubbed_bytes"] - read <= 28_000
    engine.store.trim_log(log, first_index=150)
    engine.submit()
    engine.workers.advance(30_000)
    engine.store.delete_log(log.log_id)
    engine.workers.advance(30_000)
    assert engine.fatal == []
    engine.crash()


def test_bytes_that_the_medium_cannot_read_are_damage_and_not_the_end(
    make_harness, tmp_path, monkeypatch
):
    """EIO from a segment is damage; EIO from an index causes it to be rewritten."""
    engine, model = build(make_harness, tmp_path)
    log = engine.log
    bad = log.segments[1].first_index
    idx = log.files.idx(bad)
    sectors = {
        segment_file(engine, idx.segment).name: range(idx.position, idx.position + idx.length),
        index_slot(engine, bad + 40)[0].name: range(64, 128),
    }
    real = RealFile.pread

    def pread(file, length, position):
        name = Path(f"/proc/self/fd/{file._fd}").resolve().name
        if set(range(position, position + length)) & set(sectors.get(name, ())):
            raise OSError(errno.EIO, "a bad sector")
        return real(file, length, position)

    def rewritten(file, buffers, position, *, durable=False):
        sectors.pop(Path(f"/proc/self/fd/{file._fd}").resolve().name, None)
        return write(file, buffers, position, durable=durable)

    write = RealFile.pwrite
    monkeypatch.setattr(RealFile, "pread", pread)
    monkeypatch.setattr(RealFile, "pwrite", rewritten)
    found = read_all(engine, model)
    assert bad in found
    assert [name for name in sectors if name.endswith(".index")] == []
    assert engine.fatal == []
    assert mend(engine, model, found) is None
    assert read_all(engine, model) == []
    engine.crash()


def test_read_behind_a_hole_without_its_index_names_the_hole(make_harness, tmp_path):
    """The last entry before the damage does not hold the offset, and is not returned for it."""
    engine, model = build(make_harness, tmp_path)
    log = engine.log
    bad = log.segments[2].first_index + 1
    idx = log.files.idx(bad)
    behind = log.files.idx(bad + 1).base_offset
    flip_in_frame(engine, bad, 60)
    for index in (bad, bad + SMALL.index_segment_entries):
        index_slot(engine, index)[0].unlink(missing_ok=True)
    for offset in (idx.base_offset, behind):
        with pytest.raises(EntriesDamaged) as caught:
            engine.read(log, offset, log.commit_index, 3000)
        assert caught.value.first == bad
    before = engine.read(log, idx.base_offset - 1, log.commit_index, 3000)
    assert before.end_offset == idx.base_offset
    assert mend(engine, model, range(*log.damaged[0])) is None
    assert engine.read(log, behind, log.commit_index, 0).first_offset <= behind
    engine.crash()


def test_meta_that_has_gone_back_is_refused(make_harness, tmp_path):
    """An older state, intact in itself, is not what was stored.

    The journal records the state's index.
    """
    engine = make_harness("disk", tmp_path)
    log = engine.new_log()
    engine.store.append(log, [StoredEntry(1, n, 0, b"x", n, 1, n) for n in range(1, 20)])
    engine.store.set_hard_state(log, HardState(1, 1, 19))
    engine.submit()
    path = Path(engine.directory) / "meta" / "data.mdb"
    for applied in (5, 9):
        older = path.read_bytes()
        engine.collect(MetaBatch(log.log_id, applied, [(b"k", b"%d" % applied)], clear=True))
        engine.checkpoint()
        log = engine.reopen()  # a new journal file, whose header names the checkpoint
    engine.crash()
    path.write_bytes(older)
    engine.start()
    log = engine.log
    assert not log.lost
    with pytest.raises(CorruptRecord):
        engine.store.load_meta(log)
    engine.collect(MetaBatch(log.log_id, 19, [(b"k", b"19")], clear=True))
    engine.checkpoint()
    assert engine.store.load_meta(log) == (19, [(b"k", b"19")])
    log = engine.reopen()
    assert engine.store.load_meta(log) == (19, [(b"k", b"19")])
    engine.crash()


def test_index_that_cannot_be_rebuilt_for_want_of_room_is_rebuilt_later(tmp_path):
    """A read finds the damage: it gets an error, and the server goes on."""
    fs = FullFileSystem()
    engine = SmallEngine(fs, str(tmp_path / "data"))
    engine.put(200)
    engine.flush(LARGE)
    (tmp_path / "data/logs/00000001/0000000001.index").unlink()
    failures = []
    engine.store.on_fatal = failures.append
    fs.refuses = lambda path, position: path.endswith(".index")
    assert isinstance(engine.cold(engine.store.entries_cold, 70, 80, 1 << 20), CorruptRecord)
    assert not failures
    fs.refuses = lambda path, position: False
    engine.assert_whole()


@pytest.mark.parametrize("at", [60, 5, 7, 30], ids=["data", "length", "large length", "header"])
def test_hole_in_the_newest_segment_does_not_cost_the_log_its_index(make_harness, tmp_path, at):
    """Idx are synced only when their segment is sealed.

    A power cut takes those of the newest one, and damage among its entries must not hide the good
    ones behind it.
    """
    engine, model = build(make_harness, tmp_path)
    log = engine.log
    segment = log.segments[-1]
    end = log.flushed_index + 1
    assert end - segment.first_index > 3
    bad = segment.first_index + 1
    flip_in_frame(engine, bad, at, 6)
    cut_at = index_slot(engine, bad)
    for index in range(bad, end):
        path, position = index_slot(engine, index)
        if path.exists():
            path.write_bytes(path.read_bytes()[: position if path == cut_at[0] else 0])
    engine.reopen()
    log = engine.log
    assert not log.lost
    assert [log.term(index) for index in range(log.first_index, log.last_index + 1)] == [
        model.log.term(index) for index in range(log.first_index, log.last_index + 1)
    ]
    found = read_all(engine, model)
    assert found == [bad]
    assert mend(engine, model, found) is None
    assert read_all(engine, model) == []
    engine.crash()


def test_damage_that_begins_in_what_was_trimmed_is_damage(make_harness, tmp_path):
    """Damage that begins among trimmed entries is not reported as deletion.

    From the damaged range on, entries can be repaired.
    """
    engine, _ = build(make_harness, tmp_path)
    log = engine.log
    info, following = next(
        pair
        for pair in zip(log.segments[3:], log.segments[4:], strict=False)
        if pair[1].first_index - pair[0].first_index > 4
    )
    bad, first, end = info.first_index + 1, info.first_index + 2, following.first_index
    idx = log.files.idx(bad)
    engine.store.trim_log(log, first_index=first)
    engine.submit()
    with segment_file(engine, info.number).open("r+b") as file:
        file.seek(idx.position)
        file.write(bytes(idx.length))
    engine.reopen()
    for index in range(info.first_index, end):
        index_slot(engine, index)[0].unlink(missing_ok=True)
    with pytest.raises(EntriesDamaged) as caught:
        engine.entries(engine.log, first, end)
    assert (caught.value.first, caught.value.end) == (first, end)
    assert engine.log.damaged


def test_repair_of_a_segment_whose_file_is_gone_fails(tmp_path):
    """The server goes on: the next start finds that this replica lost its log."""
    engine = make("sim", tmp_path)
    log = engine.new_log()
    put(engine, log, Writer, 60, size=500)
    engine.checkpoint()
    good = []
    engine.store.entries_cold(log, 1, log.flushed_index + 1, 1 << 30, good.extend)
    engine.pump()
    segment = log.segments[1]
    log.files.fs.unlink(log.files.segment_path(segment.number))
    found = []
    engine.store.entries_cold(log, segment.first_index, segment.first_index + 1, 1, found.append)
    engine.pump()
    assert isinstance(found[0], CorruptRecord)
    ((first, end),) = log.damaged
    done = []
    engine.store.repair(log, [e for e in good if first <= e.index < end], done.append)
    engine.workers.advance(1_000)
    assert [type(answer) for answer in done] == [CorruptRecord]
    assert (engine.fatal, log.damaged) == ([], ((first, end),))
    engine.crash()
