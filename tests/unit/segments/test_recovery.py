"""Recovery from torn and damaged journals and segments."""

from functools import partial
from random import Random

import pytest

from segments.api import CorruptRecord, DirectoryInUse, HardState, MetaBatch, StoredEntry
from segments.format import meta_pages
from segments.format.block import decode_file_header
from segments.io.fs import RealFileSystem
from segments.meta.file import Meta
from tests.storage_contract.damage import flip_bit
from vdl.sim.clock import NodeClock, VirtualTime
from vdl.sim.disk import DiskProfile, SimDisk
from vdl.sim.filesystem import SimFileSystem
from vdl.sim.workers import SimWorkers


def contents(bench, log):
    """Return all entries of a log, from disk where necessary."""
    found, index = [], log.first_index
    while index <= log.last_index:
        answers = []
        if log.tail.first and index >= log.tail.first:
            answers.append(log.entries(index, log.last_index + 1, 1 << 20))
        else:
            bench.store.entries_cold(log, index, log.last_index + 1, 1 << 20, answers.append)
            bench.workers.pump()
        if isinstance(answers[0], Exception):
            raise answers[0]
        found += answers[0]
        index = found[-1].index + 1
    return [bytes(entry.data) for entry in found]


def test_torn_tail_of_any_length_is_cut(bench):
    """A mismatching block that nothing proves durable is a torn tail: it is cut."""
    (log,) = bench.create()
    bench.append(log, 5, size=6000)
    bench.store.abandon()
    file = bench.journals()[-1]
    whole = file.read_bytes()
    last = bench.blocks(file)[-1]
    for kept in (0, 1, 63, 64, 100, 512, 3000, 4096, 6000):
        torn = whole[: last + kept] + bytes(len(whole) - last - kept)
        file.write_bytes(torn)
        for leftover in bench.journals():
            if leftover != file:
                leftover.unlink()
        store = bench.open()
        log = store.logs[1]
        assert not log.lost, kept
        assert log.last_index == 4, kept
        assert len(contents(bench, log)) == 4
        store.abandon()
    file.write_bytes(whole)
    bench.open()


def test_journal_goes_on_after_a_cut(bench):
    """Recovery opens a new file that records the cut; old bytes behind it never return."""
    (log,) = bench.create()
    bench.append(log, 3)
    file = bench.journals()[-1]
    last = bench.blocks(file)[-1]
    saved = file.read_bytes()
    file.write_bytes(saved[: last + 70] + bytes(len(saved) - last - 70))
    store = bench.reopen()
    log = store.logs[1]
    assert log.last_index == 2
    bench.append(log, 1, term=2, size=50)
    store.abandon()
    # As if the device restored the torn block.
    file.write_bytes(saved)
    log = bench.open().logs[1]
    assert (log.last_index, log.term(3)) == (3, 2)
    assert not log.lost


@pytest.mark.parametrize("where", ["frame", "table", "header", "chain"])
def test_flip_before_the_durable_mark_marks_the_replica_lost(bench, where):
    """A bad block followed by a good one had been durable.

    Its records may have been acknowledged, so the replica never votes or serves again.
    """
    first, second = bench.create(2)
    bench.append(first, 3)
    bench.append(second, 3)
    bench.append(first, 2)
    file = bench.journals()[-1]
    blocks = bench.blocks(file)
    victim = blocks[2]
    at = {"frame": 64 + 2 * 32 + 60, "table": 64 + 20, "header": 34, "chain": 41}[where]
    flip_bit(file, victim + at)
    store = bench.reopen()
    assert store.logs[1].lost
    # Records of the second log after the damage show that it lost none.
    assert not store.logs[2].lost
    assert store.logs[2].last_index == 3
    assert store.stats()["recovered_damaged_blocks"] == 1
    store = bench.reopen()
    assert store.logs[1].lost
    assert not store.logs[2].lost


def test_lost_replica_stays_lost_when_the_evidence_is_gone(bench):
    """The identity file records it."""
    first, second = bench.create(2)
    bench.append(first, 3)
    bench.append(second, 3)
    file = bench.journals()[-1]
    flip_bit(file, bench.blocks(file)[2] + 64 + 64 + 60)
    store = bench.reopen()
    assert store.logs[1].lost
    bench.append(store.logs[2], 5, size=20_000)
    for _ in range(4):
        bench.checkpoint()
        store = bench.reopen()
    assert not file.exists()
    assert store.logs[1].lost
    assert not store.logs[2].lost


def test_flip_in_the_last_block_is_proved_by_the_idle_block(bench):
    """An empty block after an idle period makes damage to the last block detectable."""
    (log,) = bench.create()
    bench.append(log, 3)
    file = bench.journals()[-1]
    last = bench.blocks(file)[-1]
    bench.idle()
    assert bench.blocks(file)[-1] > last
    flip_bit(file, last + 64 + 64 + 70)
    assert bench.reopen().logs[1].lost


def test_idle_server_writes_one_idle_block(bench):
    """An idle server writes one empty block, and no further ones."""
    (log,) = bench.create()
    bench.append(log, 1)
    bench.idle()
    before = bench.store.stats()["journal_blocks"]
    bench.workers.advance(100_000)
    assert bench.store.stats()["journal_blocks"] == before


def test_recovery_repeated_without_writes_keeps_everything(bench):
    """Each start carries the unproved block over; nothing grows, nothing is lost."""
    (log,) = bench.create()
    bench.append(log, 4)
    for _ in range(8):
        store = bench.reopen()
        assert store.logs[1].last_index == 4
        assert not store.logs[1].lost
        assert store.stats()["journal_files"] <= 3
    assert len(contents(bench, store.logs[1])) == 4


def test_index_files_missing_short_or_wrong_are_rebuilt(bench):
    """An index holds nothing that its log segments do not hold."""
    (log,) = bench.create()
    bench.append(log, 150, size=300)
    bench.checkpoint()
    expected = contents(bench, log)
    files = sorted((bench.path / "logs/00000001").glob("*.index"))
    assert len(files) == 3
    files[0].unlink()
    files[1].write_bytes(files[1].read_bytes()[:500])
    flip_bit(files[2], 64 + 40 * 3 + 5)
    log = bench.reopen().logs[1]
    assert not log.lost
    assert contents(bench, log) == expected
    assert [log.term(n) for n in (1, 70, 150)] == [1, 1, 1]


def test_damaged_frame_in_a_segment_is_never_returned(bench):
    """Every byte read from disk is checked; the rest of the log is served."""
    (log,) = bench.create()
    bench.append(log, 100, size=300)
    bench.checkpoint()
    log = bench.reopen().logs[1]
    flip_bit(bench.path / "logs/00000001/0000000002.log", 64 + 348 * 2 + 200)
    with pytest.raises(CorruptRecord):
        contents(bench, log)
    answers = []
    bench.store.entries_cold(log, 60, 101, 1 << 20, answers.append)
    bench.workers.pump()
    assert [entry.index for entry in answers[0]][:1] == [60]


def test_segment_missing_marks_the_replica_lost(bench):
    """Entries that should be in segments by the journal, and are not, are lost."""
    (log,) = bench.create()
    bench.append(log, 100, size=300)
    bench.checkpoint()
    (bench.path / "logs/00000001/0000000003.log").unlink()
    log = bench.reopen().logs[1]
    assert log.lost
    assert log.hard_state.term == 1


def test_directory_held_by_another_is_refused(bench):
    """One process per data directory (flock)."""
    with pytest.raises(DirectoryInUse):
        type(bench)(bench.path)


def test_identity_damaged_in_both_halves_is_refused(bench):
    """The directory's identity cannot be guessed."""
    bench.create()
    bench.store.abandon()
    flip_bit(bench.path / "identity", 20)
    flip_bit(bench.path / "identity", 4096 + 40)
    with pytest.raises(CorruptRecord):
        bench.open()
    flip_bit(bench.path / "identity", 20)
    bench.open()


def test_meta_value_damaged_is_refused_not_defaulted(bench):
    """A damaged value costs a snapshot; it is never replaced by a default."""
    (log,) = bench.create()
    bench.append(log, 3)
    batch = MetaBatch(log.log_id, 3, [(b"key%d" % n, b"value") for n in range(9)])
    bench.store.collect_meta = lambda logs: [batch]
    bench.checkpoint()
    assert bench.store.load_meta(log)[0] == 3
    file = RealFileSystem().open_meta
    bench.store.abandon()
    meta = file(f"{bench.directory}/meta", 1 << 20, meta_pages)
    stored = dict(meta.scan(b""))
    name = next(key for key in stored if key.endswith(b"key4"))
    meta.commit([(name, None)])
    meta.close()
    log = bench.open().logs[1]
    with pytest.raises(CorruptRecord):
        bench.store.load_meta(log)


def test_deleted_log_whose_files_remain_is_finished_at_start(bench):
    """A crash between the identity and the files does not restore the log."""
    first, _ = bench.create(2)
    bench.append(first, 60, size=300)
    bench.checkpoint()
    bench.store.delete_log(1)
    # Only the identity is written; the process dies before the files are removed.
    bench.workers.advance(0)
    bench.workers.pool_jobs.clear()
    store = bench.reopen()
    assert list(store.logs) == [2]
    assert not (bench.path / "logs/00000001").exists()
    assert not list((bench.path / "deleted").iterdir())
    assert [log.log_id for log in bench.create()] == [3]


def test_journal_files_are_recycled_not_added(bench):
    """Files that nothing needs become the next ones."""
    (log,) = bench.create()
    for _ in range(30):
        bench.append(log, 5, size=20_000)
        bench.checkpoint()
    assert bench.store.stats()["journal_files"] <= 3
    assert len(list((bench.path / "journal").iterdir())) <= 5
    assert bench.reopen().logs[1].last_index == 150


def test_quiet_log_is_carried_at_the_journals_head(bench):
    """An uncommitted entry, or a tail too small for a flush, does not let the journal grow."""
    quiet, uncommitted, busy = bench.create(3)
    bench.append(quiet, 2)
    bench.append(uncommitted, 2, commit=False)
    for _ in range(40):
        bench.append(busy, 5, size=20_000)
        bench.checkpoint()
    assert bench.store.stats()["journal_files"] <= 4
    store = bench.reopen()
    assert [len(contents(bench, log)) for log in store.logs.values()] == [2, 2, 200]
    assert store.logs[2].commit_index == 0


def test_vote_survives_the_release_of_its_file(bench):
    """Each journal file's header carries every log's term and vote."""
    voter, busy = bench.create(2)
    bench.store.set_hard_state(voter, type(voter.hard_state)(7, 42, 0))
    bench.store.submit()
    bench.workers.pump()
    first = bench.journals()[0]
    for _ in range(30):
        bench.append(busy, 5, size=20_000)
        bench.checkpoint()
    assert not first.exists()
    assert bench.reopen().logs[1].hard_state == type(voter.hard_state)(7, 42, 0)


def test_sync_failure_is_fatal_and_nothing_is_acknowledged_after(bench):
    """A failed journal write is fatal: on_fatal once, and no token afterwards.

    A retry would report success over lost pages.
    """
    (log,) = bench.create()
    bench.append(log, 1)
    fatal, durable = [], []
    bench.store.on_fatal = fatal.append
    bench.store.on_durable = durable.append
    file = bench.store._journal._current.file

    class Broken:
        def pwrite(self, *arguments, durable=False):
            raise OSError(5, "input/output error")

        close = file.close

    bench.store._journal._current.file = Broken()
    for _ in range(3):
        entry = StoredEntry(1, log.last_index + 1, 0, b"x", log.next_offset, 1, 1)
        bench.store.append(log, [entry])
        bench.store.submit()
        bench.workers.advance(1000)
    assert len(fatal) == 1
    assert durable == []


@pytest.mark.parametrize("arrived", [0, 1, 64, 200, 600])
def test_start_that_is_cut_in_its_first_write_loses_nothing(bench, arrived):
    """The last block is proved by nothing, so a start carries it over.

    Its new file's header may reach the disk without the block, or with a part of it: the block is
    still where it was.
    """
    (log,) = bench.create()
    bench.append(log, 1)
    index = log.last_index + 1
    bench.store.append(log, [StoredEntry(5, index, 0, b"acknowledged" * 50, 1, 1, 0)])
    bench.store.set_hard_state(log, HardState(5, 7, index - 1))
    bench.store.submit()
    bench.workers.pump()
    bench.store.abandon()
    for _ in range(2):  # two consecutive starts end in the same way
        bench.open().abandon()
        file = bench.journals()[-1]
        data = file.read_bytes()
        header = decode_file_header(data)
        end = header.bytes + arrived
        file.write_bytes(data[:end] + bytes(len(data) - end))
    store = bench.open()
    (log,) = store.logs.values()
    assert not log.lost
    assert (log.last_index, log.hard_state) == (index, HardState(5, 7, index - 1))
    assert contents(bench, log)[-1] == b"acknowledged" * 50
    bench.append(log, 1, term=5)
    store.abandon()


@pytest.mark.parametrize("damaged", ["", "table", "frame"])
@pytest.mark.parametrize("arrived", [0, 64, 200])
def test_header_of_a_file_that_never_began_proves_the_one_before(bench, arrived, damaged):
    """A damaged block is no torn tail if a next file's header shows that it was acknowledged.

    A power cut tore the first write of that file.
    """
    (log,) = bench.create()
    while len(bench.journals()) < 2:
        bench.append(log, 1, size=6000, commit=False)  # nothing is flushed, no file released
    bench.store.abandon()
    before, newest = bench.journals()
    data = newest.read_bytes()
    end = decode_file_header(data).bytes + arrived
    newest.write_bytes(data[:end] + bytes(len(data) - end))
    last = bench.blocks(before)[-1]
    if damaged:
        flip_bit(before, last + {"table": 70, "frame": 3000}[damaged], 3)
    for _ in range(2):  # the second start finds the notes of the first
        store = bench.open()
        assert store.logs[1].lost == bool(damaged)
        store.abandon()
    if not damaged:
        bench.append(bench.open().logs[1], 1)


def test_meta_is_durable_before_a_start_vouches_for_it():
    """A process killed in its commit leaves pages that can be read and are not on the disk.

    The next one records in the journal what it read: a power cut must not revert it.
    """
    kept = 0
    for seed in range(20):
        disk = SimDisk(Random(seed), DiskProfile())
        fs = SimFileSystem(disk)
        time = VirtualTime()
        workers = SimWorkers(NodeClock(time), disk)
        meta = Meta(fs, "meta", 1 << 20)
        fs.sync_directory("")
        batch = MetaBatch(1, 7, [(b"k", b"v")])
        workers.pool(partial(meta.commit, [batch]), lambda _: None)
        time.run_until(1)
        workers.die()
        read = Meta(fs, "meta", 1 << 20).applied(1)
        disk.power_cut()
        assert Meta(fs, "meta", 1 << 20).applied(1) == read, seed
        kept += read
    assert kept, "no commit got far enough to be read"
