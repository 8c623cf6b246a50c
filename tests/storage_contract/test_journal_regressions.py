"""Regressions at crash points of the disk engine: full disk, awaited file, split batch."""

import errno
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from segments.api import HardState, Log, MetaBatch, StoredEntry, StoreOptions
from segments.checkpoint import scheduler as checkpoints_module
from segments.checkpoint.flusher import FlushPlan
from segments.format.block import Mark
from segments.io.fs import RealFileSystem
from segments.io.inline_workers import InlineWorkers
from segments.journal import writer as writer_module
from segments.journal.marks import marks_behind, marks_of
from segments.log.log import Batch, DiskLog
from segments.store import DiskStore
from tests.storage_contract.conftest import SimHarness, put
from tests.storage_contract.steps import OPTIONS, draw, stage

JOURNAL_BYTES = 256 << 10


def open_store(path: Path, workers: InlineWorkers) -> DiskStore:
    options = StoreOptions(
        journal_file_bytes=JOURNAL_BYTES,
        journal_first_file_bytes=JOURNAL_BYTES,
        meta_map_bytes=1 << 24,
        checkpoint_bytes=1 << 40,
        checkpoint_interval_ms=10**9,
    )
    return DiskStore.open(RealFileSystem(), str(path / "data"), workers, options, random.Random(1))


def make_logs(store: DiskStore, workers: InlineWorkers, *groups: int) -> list[Log]:
    logs: list[Log] = []
    for group_id in groups:
        store.create_log(group_id, 1, on_created=logs.append)
    workers.advance(10)
    return logs


def entry(term: int, index: int, size: int = 100) -> StoredEntry:
    return StoredEntry(term, index, 0, bytes([term]) * size, index, 1, 5)


def test_full_disk_during_a_checkpoint_loses_no_machine_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next checkpoint writes what was collected for a failed one."""
    workers = InlineWorkers()
    store = open_store(tmp_path, workers)
    (log,) = make_logs(store, workers, 9)
    pending: list[tuple[bytes, bytes | None]] = [(b"k1", b"v1"), (b"k2", b"old")]
    applied = 0

    def collect(logs: object) -> list[MetaBatch]:
        items, pending[:] = list(pending), []
        return [MetaBatch(log.log_id, applied, items)]

    def full(plan: FlushPlan) -> None:
        raise OSError(errno.ENOSPC, "full")

    store.collect_meta = collect
    real = checkpoints_module.run_flush
    for index, flush in ((1, full), (2, real)):
        store.append(log, [entry(1, index, 20_000)])
        store.set_hard_state(log, HardState(1, 0, index))
        store.submit()
        workers.advance(1)
        applied = index
        monkeypatch.setattr(checkpoints_module, "run_flush", flush)
        store.checkpoint()
        workers.pump()
        pending.append((b"k2", b"v2"))
    workers.advance(5_000)
    assert not store.disk_full
    assert store.load_meta(log) == (2, [(b"k1", b"v1"), (b"k2", b"v2")])


def test_crash_behind_a_file_that_was_waited_for_loses_nothing(tmp_path: Path) -> None:
    """A file's header describes what its first block makes durable, and nothing later."""
    workers = InlineWorkers()
    store = open_store(tmp_path, workers)
    (log,) = make_logs(store, workers, 9)
    journal = store._journal
    journal.allocation.prepared.clear()
    journal.allocation.is_preparing = True  # preparing the next file takes time
    store.append(log, [entry(1, 1, 100_000)])
    store.set_hard_state(log, HardState(1, 0, 1))
    store.submit()
    workers.pump()
    store.checkpoint()
    workers.pump()
    store.append(log, [entry(1, 2, 200_000)])
    store.submit()
    store.append(log, [entry(1, 3)])
    store.submit()
    journal.allocation.is_preparing = False
    journal._prepare()
    workers.run_one(workers.pool_jobs)
    workers.run_one(workers.journal_jobs)
    while workers.pool_jobs:
        workers.run_one(workers.pool_jobs)
    store.abandon()
    (again,) = open_store(tmp_path, InlineWorkers()).logs.values()
    assert not again.lost
    assert again.last_index == 2


def test_commit_index_is_never_durable_before_the_truncation_it_presumes(tmp_path: Path) -> None:
    """Raft §5.4: an overwritten entry must not come back as committed.

    This holds also when the batch that overwrites it is written in two parts and only the first one
    arrived.
    """
    workers = InlineWorkers()
    store = open_store(tmp_path, workers)
    log, other = make_logs(store, workers, 9, 10)
    store.append(log, [entry(3, 1), entry(3, 2)])
    store.set_hard_state(log, HardState(3, 1, 0))
    store.submit()
    workers.pump()
    store.append(other, [entry(1, 1)])
    store.submit()
    store.set_hard_state(log, HardState(5, 2, 0))
    store.submit()
    store.append(other, [entry(1, index, 50_000) for index in range(2, 8)])
    store.submit()
    store.append(log, [entry(5, 1), entry(5, 2)])
    store.set_hard_state(log, HardState(5, 2, 2))
    store.submit()
    workers.run_one(workers.journal_jobs)
    while workers.pool_jobs:
        workers.run_one(workers.pool_jobs)
    workers.run_one(workers.journal_jobs)
    assert store._journal.partly_written
    store.abandon()
    logs = open_store(tmp_path, InlineWorkers()).logs.values()
    again = next(one for one in logs if one.group_id == 9)
    assert again.commit_index == 0 or again.term(again.commit_index) == 5


def test_file_of_an_unfinished_batch_says_only_what_is_durable(tmp_path: Path) -> None:
    """A batch larger than a file begins several, and the process dies between two.

    Later the first of them is the journal's oldest. Its header must not include the missing parts,
    or a plain start finds that entries are missing.
    """
    workers = InlineWorkers()
    store = open_store(tmp_path, workers)
    one, other = make_logs(store, workers, 9, 10)
    store.append(one, [entry(1, index, 5_000) for index in range(1, 41)])
    store.set_hard_state(one, HardState(1, 1, 0))
    store.submit()
    workers.pump()
    store.append(other, [entry(1, index, 5_000) for index in range(1, 46)])
    store.append(one, [entry(1, index, 5_000) for index in range(41, 140)])
    store.set_hard_state(one, HardState(2, 3, 0))
    store.submit()
    journal = store._journal
    while journal.current_sequence < 3 or not journal.partly_written:
        workers.run_one(workers.journal_jobs or workers.pool_jobs)
    store.abandon()
    workers = InlineWorkers()
    store = open_store(tmp_path, workers)
    one = next(log for log in store.logs.values() if log.group_id == 9)
    assert 40 < one.last_index < 139
    assert one.hard_state.term == 1
    end = one.last_index + 1
    store.append(one, [entry(4, end, 20_000)])
    store.set_hard_state(one, HardState(4, 0, end))
    store.submit()
    workers.pump()
    store.checkpoint()
    workers.advance(1_000)
    assert min(store._journal.chain.paths) == 2
    store.abandon()
    again = open_store(tmp_path, InlineWorkers()).logs[one.log_id]
    assert not again.lost
    assert again.last_index == end
    assert again.hard_state == HardState(4, 0, end)


@pytest.mark.parametrize("seed", range(4))
def test_marks_behind_a_part_of_a_batch_are_the_state_of_its_logs_there(seed: int) -> None:
    """Marks follow from the records of that part, applied to the state before the batch."""
    harness = SimHarness(OPTIONS)
    harness.start()
    rng = random.Random(seed)
    for _ in range(3):
        harness.new_log()
    store = harness.store
    parts = 0
    for _ in range(150):
        batch = store._journal.queue.batch
        seen: list[tuple[list[bytes], dict[int, Mark]]] = []
        for _ in range(rng.randint(1, 8)):
            step = draw(rng, store.logs)
            if step.kind in {"append", "hard", "reset", "trim"}:
                stage(store, step)
                marks = {mark.log_id: mark for mark in marks_of(store._logs)}
                seen.append((list(batch.records), marks))
        for records, marks in seen:
            # A newer hard state replaces an older one: then there is no such part.
            if batch.records[: len(records)] == records:
                part = Batch(0)
                part.records, part.buffers = records, batch.buffers
                behind = marks_behind(batch.before, part)
                assert behind == {log_id: marks[log_id] for log_id in batch.before}
                parts += 1
        harness.submit()
        if rng.random() < 0.3:
            harness.checkpoint()
    assert parts > 300


def test_block_that_a_start_repeats_is_proved_by_an_idle_one(tmp_path: Path) -> None:
    """Acknowledged records are repeated in a new file's first block, and only there.

    Damage there is no tear once the journal has been idle for a while.
    """
    workers = InlineWorkers()
    store = open_store(tmp_path, workers)
    (log,) = make_logs(store, workers, 9)
    index = 0
    while store._journal.current_sequence == 1:
        index += 1
        store.append(log, [entry(1, index, 30_000)])
        store.submit()
        workers.pump()
    store.abandon()
    workers = InlineWorkers()
    store = open_store(tmp_path, workers)
    path = Path(store._journal.chain.paths[store._journal.current_sequence])
    workers.advance(1_000)
    store.abandon()
    data = bytearray(path.read_bytes())
    data[data.find(b"VDLB") + 100] ^= 1
    path.write_bytes(data)
    (again,) = open_store(tmp_path, InlineWorkers()).logs.values()
    assert again.lost or again.last_index == index


def append(store: DiskStore, log: Log, count: int, size: int) -> None:
    first = log.last_index + 1
    store.append(log, [entry(1, index, size) for index in range(first, first + count)])
    store.set_hard_state(log, HardState(1, 0, log.last_index))
    store.submit()


def run_pool(workers: InlineWorkers) -> None:
    while workers.pool_jobs:
        workers.run_one(workers.pool_jobs)


def checkpoint_with_its_note_under_way(
    store: DiskStore, workers: InlineWorkers, small: Log, large: Log
) -> None:
    """Build a journal whose first file is needed only for a few entries of `small`.

    It is so once the block being written is durable.
    """
    append(store, small, 5, 1_000)
    workers.pump()
    for _ in range(8):
        append(store, large, 40, 1_000)
        workers.pump()
    store.checkpoint()
    run_pool(workers)
    append(store, large, 1, 10)
    assert workers.journal_jobs
    assert small.oldest_needed() == min(store._journal.chain.paths)


@pytest.mark.parametrize("change", ["reset", "delete"])
def test_files_stay_until_what_ends_the_need_for_them_is_durable(
    tmp_path: Path, change: str
) -> None:
    """Files stay until another log's snapshot or deletion is durable.

    A checkpoint's note becomes durable before it. A crash then finds that log as it was.
    """
    workers = InlineWorkers()
    store = open_store(tmp_path, workers)
    small, large = make_logs(store, workers, 9, 10)
    checkpoint_with_its_note_under_way(store, workers, small, large)
    if change == "reset":
        store.reset_log(small, first_index=1_000, prev_term=1, next_offset=1_000, state=b"state")
        store.submit()
    else:
        store.delete_log(small.log_id)
    workers.run_one(workers.journal_jobs)
    run_pool(workers)
    store.abandon()
    again = open_store(tmp_path, InlineWorkers()).logs[small.log_id]
    assert not again.lost
    assert again.last_index == 5


@pytest.mark.parametrize("change", ["reset", "delete"])
def test_files_go_when_what_ends_the_need_for_them_is_durable(tmp_path: Path, change: str) -> None:
    """The first file is released once the other log's snapshot or deletion is durable, too."""
    workers = InlineWorkers()
    store = open_store(tmp_path, workers)
    small, large = make_logs(store, workers, 9, 10)
    checkpoint_with_its_note_under_way(store, workers, small, large)
    oldest = min(store._journal.chain.paths)
    if change == "reset":
        store.reset_log(small, first_index=1_000, prev_term=1, next_offset=1_000)
        store.submit()
    else:
        store.delete_log(small.log_id)
    workers.advance(1_000)
    assert min(store._journal.chain.paths) > oldest


@pytest.mark.parametrize("user", ["removal", "checkpoint"])
def test_checkpoint_that_found_the_files_in_use_comes_by_time_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, user: str
) -> None:
    """A removal or another checkpoint was running when it was due, and nothing more is appended."""
    workers = InlineWorkers()
    options = StoreOptions(meta_map_bytes=1 << 24, checkpoint_interval_ms=10_000)
    path = str(tmp_path / "data")
    store = DiskStore.open(RealFileSystem(), path, workers, options, random.Random(1))
    kept, deleted = make_logs(store, workers, 9, 10)
    held = []

    def pool(job: Callable[[], object], done: Callable[[object], None]) -> None:
        is_users = store._removals.is_running or store._checkpoints.is_running
        (held if is_users else workers.pool_jobs).append((job, done))

    append(store, kept, 20, 1_000)
    workers.advance(5_000)
    monkeypatch.setattr(workers, "pool", pool)
    if user == "removal":
        store.delete_log(deleted.log_id)
    else:
        store.checkpoint()
        append(store, kept, 20, 1_000)
    workers.advance(6_000)
    assert held, "it takes its time"
    monkeypatch.undo()
    workers.pool_jobs.extend(held)
    workers.advance(20_000)
    assert kept.flushed_index == kept.last_index


def test_commit_behind_the_checkpoint_by_time_is_flushed_by_another(tmp_path: Path) -> None:
    """The timer that the append started expired before the commit, and nothing more is appended."""
    workers = InlineWorkers()
    options = StoreOptions(meta_map_bytes=1 << 24, checkpoint_interval_ms=10_000)
    path = str(tmp_path / "data")
    store = DiskStore.open(RealFileSystem(), path, workers, options, random.Random(1))
    (log,) = make_logs(store, workers, 9)
    store.append(log, [entry(1, index, 1_000) for index in range(1, 41)])
    store.submit()
    workers.advance(20_000)
    assert log.flushed_index == 0
    store.set_hard_state(log, HardState(1, 0, 40))
    store.submit()
    workers.advance(20_000)
    assert log.flushed_index == 40


def test_files_of_a_trimmed_log_go_also_while_checkpoints_follow_one_another(
    tmp_path: Path,
) -> None:
    """More is journaled during each checkpoint than triggers the next one."""
    workers = InlineWorkers()
    options = StoreOptions(meta_map_bytes=1 << 24, checkpoint_bytes=1 << 20, segment_bytes=1 << 18)
    path = str(tmp_path / "data")
    store = DiskStore.open(RealFileSystem(), path, workers, options, random.Random(1))
    (log,) = make_logs(store, workers, 9)
    for _ in range(20):
        append(store, log, 12, 100_000)
        while workers.journal_jobs:  # all of it is durable before the pool runs
            workers.run_one(workers.journal_jobs)
        run_pool(workers)
        if log.flushed_index > 100 and log.first_index == 1:
            store.trim_log(log, first_index=100)
    assert log.segments[0].first_index > 1


def test_state_of_all_logs_is_collected_once_for_a_journal_file(
    monkeypatch: pytest.MonkeyPatch, writer: Any
) -> None:
    """The state of all logs is collected once a file.

    With ten thousand logs that takes the loop some milliseconds. The length of a file's header is
    computed by counting them.
    """
    harness = SimHarness(OPTIONS)
    store = harness.start()
    log = harness.new_log()
    collected: list[int] = []

    def counted(logs: Mapping[int, DiskLog]) -> list[Mark]:
        collected.append(1)
        return marks_of(logs)

    monkeypatch.setattr(writer_module, "marks_of", counted)
    begun = store._journal.current_sequence
    for _ in range(80):
        put(harness, log, writer, 10, size=500)
    files = store._journal.current_sequence - begun
    assert files > 5
    assert len(collected) == files
    assert len(marks_of(store._logs)) == len(store.logs)
