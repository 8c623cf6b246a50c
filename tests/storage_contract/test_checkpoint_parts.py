"""Checkpoints by time that take a few logs at a time.

Logs deleted together are removed together, and none of it makes work for the garbage collector.
"""

import errno
import gc
from dataclasses import replace

import pytest

from segments.api import HardState, MetaBatch, StoreOptions
from segments.checkpoint import scheduler as checkpoints_module
from segments.checkpoint.scheduler import (
    FLUSH_BYTES_MIN,
    JOURNAL_FILES_MANY,
    JOURNAL_FILES_MIN,
    MANY_LOGS,
    PARTS_MAX,
)
from segments.io import failpoint
from segments.io.fs import RealFileSystem
from segments.recovery.orphans import REMOVED_LOGS
from tests.storage_contract.conftest import SMALL, DiskHarness, SimHarness

OPTIONS = replace(
    StoreOptions(), journal_file_bytes=8 << 20, journal_first_file_bytes=1 << 20,
    meta_map_bytes=4 << 20,
)  # fmt: skip
PART_MS = OPTIONS.checkpoint_interval_ms // PARTS_MAX


@pytest.fixture
def harness():
    made = SimHarness(OPTIONS)
    made.start()
    yield made
    assert made.fatal == []
    made.crash()


@pytest.fixture
def flushes(monkeypatch):
    """Collect (log id, bytes, entries) of the flushes so far, one list for each job."""
    jobs = []
    run = checkpoints_module._run

    def counted(plans, *others):
        jobs.append([(plan.files.log_id, plan.bytes, plan.last - plan.first + 1) for plan in plans])
        return run(plans, *others)

    monkeypatch.setattr(checkpoints_module, "_run", counted)
    return jobs


def begin_again(harness, **options):
    harness.crash()
    harness.options = replace(OPTIONS, **options)
    harness.start()


def stage(harness, writer, logs, size):
    """Stage one more committed entry for each log."""
    for log in logs:
        harness.store.append(log, writer(log).entries(1, size=size))
        harness.store.set_hard_state(log, HardState(1, 0, log.last_index))


def grow(harness, writer, logs, size):
    stage(harness, writer, logs, size)
    harness.submit()


def part_timers(harness):
    due = harness.store._checkpoints._part_due
    return [timer for _, _, timer in harness.workers._timers if timer.fn == due]


def test_logs_that_grow_alike_are_flushed_a_few_at_a_time(harness, writer, flushes):
    logs = [harness.new_log(group_id=n + 1) for n in range(2 * MANY_LOGS)]
    for _ in range(200):
        grow(harness, writer, logs, size=1_000)
        harness.workers.advance(PART_MS)
    assert {log_id for job in flushes for log_id, _, _ in job} == {log.log_id for log in logs}
    assert max(map(len, flushes)) <= len(logs) // 8
    sizes = [size for job in flushes for _, size, _ in job]
    assert min(sizes) >= FLUSH_BYTES_MIN
    assert max(sizes) > 3 * FLUSH_BYTES_MIN
    contents = [harness.all_entries(log) for log in logs]
    harness.reopen()
    assert [harness.all_entries(log) for log in harness.store.logs.values()] == contents


def test_tails_that_keep_old_journal_files_go_with_their_shares(harness, writer, flushes):
    """Tails that need old journal files are flushed with their shares.

    All at once would delay appends. This holds also when the journal has outgrown its files.
    """
    begin_again(harness, journal_file_bytes=4 << 20)
    logs = [harness.new_log(group_id=n + 1) for n in range(2 * MANY_LOGS)]
    files = []
    for _ in range(10 * PARTS_MAX):
        grow(harness, writer, logs, size=450)
        harness.workers.advance(PART_MS)
        files.append(harness.store.stats()["journal_files"])
    assert JOURNAL_FILES_MIN < max(files) <= JOURNAL_FILES_MANY
    assert max(map(len, flushes)) <= len(logs) // 4
    assert files[-1] > JOURNAL_FILES_MIN
    harness.workers.advance(2 * OPTIONS.checkpoint_interval_ms)
    assert harness.store.stats()["journal_files"] <= JOURNAL_FILES_MIN


def test_few_logs_are_flushed_one_by_one_once_a_round(harness, writer, flushes):
    logs = [harness.new_log(group_id=n + 1) for n in range(MANY_LOGS - 1)]
    for _ in range(2 * PARTS_MAX):
        grow(harness, writer, logs, size=2_000)
        harness.workers.advance(PART_MS)
    flushed = [log_id for job in flushes for log_id, _, _ in job]
    assert max(map(len, flushes)) <= 2
    assert {flushed.count(log.log_id) for log in logs} <= {1, 2}
    assert harness.store._checkpoints.count == 2


def test_state_is_collected_share_by_share(harness, writer):
    """Each log's state is collected once a round.

    Collecting a thousand at once would stop the loop.
    """
    logs = [harness.new_log(group_id=n + 1) for n in range(3 * PARTS_MAX)]
    asked = []

    def collect(share):
        asked.append([log.log_id for log in share])
        return [MetaBatch(log.log_id, 1, [(b"key", b"value")]) for log in share]

    harness.store.collect_meta = collect
    grow(harness, writer, logs, size=10)
    harness.workers.advance(PARTS_MAX * PART_MS)
    assert {len(share) for share in asked} == {3}
    assert sorted(log_id for share in asked for log_id in share) == [log.log_id for log in logs]
    assert all(harness.store.load_meta(log) == (1, [(b"key", b"value")]) for log in logs)


def test_rounds_end_when_nothing_is_appended(harness, writer):
    """An idle server has no timer for finished work."""
    logs = [harness.new_log(group_id=n + 1) for n in range(3)]
    checkpoints = harness.store._checkpoints
    grow(harness, writer, logs, size=FLUSH_BYTES_MIN)
    harness.workers.advance(2 * OPTIONS.checkpoint_interval_ms)
    assert harness.store.unflushed_bytes == 0
    assert not [
        timer for _, _, timer in harness.workers._timers if timer.fn == checkpoints._part_due
    ]
    rounds = checkpoints.count
    grow(harness, writer, logs, size=FLUSH_BYTES_MIN)
    harness.workers.advance(2 * OPTIONS.checkpoint_interval_ms)
    assert harness.store.unflushed_bytes == 0
    assert checkpoints.count > rounds


def test_much_that_waits_is_flushed_whatever_its_share(harness, writer, flushes):
    """Above a quarter of the cache a checkpoint begins and takes every tail worth a flush."""
    begin_again(harness, cache_bytes_max=4 << 20)
    logs = [harness.new_log(group_id=n + 1) for n in range(MANY_LOGS)]
    for _ in range(15):
        grow(harness, writer, logs, size=1_000)
    assert sum(map(len, flushes)) == 0
    for _ in range(2):
        grow(harness, writer, logs, size=1_000)
    assert max(map(len, flushes)) == len(logs)
    assert harness.store.unflushed_bytes * 4 < harness.options.cache_bytes_max


def test_small_tails_of_many_logs_leave_room(harness, writer):
    """Small tails of many logs are flushed, although none is worth a flush by itself.

    Appends would otherwise wait for ever once half of the cache was waiting for a flush.
    """
    begin_again(harness, cache_bytes_max=2 << 20)
    logs = [harness.new_log(group_id=n + 1) for n in range(2 * MANY_LOGS)]
    for _ in range(3 * FLUSH_BYTES_MIN // 1_000):
        grow(harness, writer, logs, size=1_000)
        assert max(log.unflushed for log in harness.store._logs.values()) < FLUSH_BYTES_MIN
        assert harness.store.unflushed_bytes * 2 < harness.options.cache_bytes_max
    harness.workers.advance(PARTS_MAX * PART_MS)
    assert harness.store.unflushed_bytes * 4 <= harness.options.cache_bytes_max


@pytest.mark.parametrize("count", [1, MANY_LOGS - 1, MANY_LOGS])
def test_small_cache_does_not_fill_between_rounds(harness, writer, count):
    """A small cache is flushed before a round ends or `checkpoint_bytes` are reached.

    Appends would otherwise wait for one of these.
    """
    begin_again(harness, cache_bytes_max=8 << 20)
    logs = [harness.new_log(group_id=n + 1) for n in range(count)]
    for n in range(1_600):
        grow(harness, writer, [logs[n % count]], size=10_000)
        assert harness.store.unflushed_bytes * 2 < harness.options.cache_bytes_max
        if not n % 40:
            harness.workers.advance(PART_MS)


def test_what_cannot_be_flushed_does_not_begin_checkpoints_for_ever(harness, writer):
    """While a quarter of the cache is uncommitted, no checkpoint is begun for each block."""
    begin_again(harness, cache_bytes_max=8 << 20)
    log = harness.new_log()
    for _ in range(30):
        harness.store.append(log, writer(log).entries(1, size=100_000))
        harness.submit()
    checkpoints = harness.store._checkpoints
    before = checkpoints.count
    for _ in range(100):
        harness.store.append(log, writer(log).entries(1, size=10))
        harness.submit()
    assert harness.store.unflushed_bytes * 4 > harness.options.cache_bytes_max
    assert checkpoints.count <= before + 1  # an eighth of the cache was journaled


def test_many_logs_are_never_flushed_together(harness, writer, flushes):
    """A checkpoint flushes a bounded number of logs.

    This holds by bytes, and when hundreds of tails need an old journal file or were rewritten at
    the same moment.
    """
    begin_again(harness, journal_file_bytes=4 << 20, checkpoint_bytes=2 << 20)
    logs = [harness.new_log(group_id=n + 1) for n in range(4 * MANY_LOGS)]
    files = 0
    for n in range(12 * PARTS_MAX):
        for log in logs[n % 4 :: 4]:
            stage(harness, writer, [log], size=450)
        harness.submit()
        harness.workers.advance(PART_MS)
        files = max(files, harness.store.stats()["journal_files"])
    assert max(map(len, flushes)) <= len(logs) // 8
    assert files <= JOURNAL_FILES_MANY
    rewritten = sum(log.rewritten for log in harness.store._logs.values())
    assert rewritten == 0


def test_journal_grows_with_a_burst_and_not_beyond_it(harness, writer):
    """The logs of each share are flushed in turn, also those of the last share.

    Journal files that they no longer need go, and rounds end.
    """
    begin_again(harness, journal_file_bytes=1 << 20, checkpoint_bytes=1 << 20)
    logs = [harness.new_log(group_id=n + 1) for n in range(3 * MANY_LOGS)]
    grow(harness, writer, logs, size=100)
    checkpoints = harness.store._checkpoints
    last = [log for log in logs if (log.log_id + checkpoints._spread) % PARTS_MAX == 0]
    busy = [log for log in logs if log not in last]
    files = []
    for part in range(7 * PARTS_MAX):
        is_burst = part < 2 * PARTS_MAX
        for log in busy[part % 3 :: 3] if is_burst else busy[part % 24 :: 24]:
            stage(harness, writer, [log], size=2_500)
        harness.submit()
        harness.workers.advance(PART_MS)
        files.append(harness.store.stats()["journal_files"])
    assert max(files) > JOURNAL_FILES_MANY
    assert max(files[5 * PARTS_MAX :]) <= JOURNAL_FILES_MANY + 1  # removed with the next part
    harness.workers.advance(3 * OPTIONS.checkpoint_interval_ms)
    assert harness.store.stats()["journal_files"] <= JOURNAL_FILES_MIN
    assert not part_timers(harness)


def test_what_was_held_back_is_flushed_once_it_is_committed(harness, writer):
    """Half of the cache is full, nothing more is appended, and the round ends much later."""
    log = harness.new_log()
    harness.workers.advance(PART_MS)
    while harness.store.unflushed_bytes * 2 <= harness.options.cache_bytes_max:
        harness.store.append(log, writer(log).entries(1, size=500_000))
        harness.submit()
    harness.store.set_hard_state(log, HardState(1, 0, log.last_index))
    harness.submit()
    harness.workers.advance(PART_MS)
    assert harness.store.unflushed_bytes == 0


def test_full_disk_is_not_found_free_by_having_nothing_to_do(harness, writer, monkeypatch):
    """Parts without flushable tails do not end the full state.

    Only a successful retry of the refused work does.
    """
    begin_again(harness, journal_file_bytes=1 << 20, checkpoint_bytes=1 << 20)
    logs = [harness.new_log(group_id=n + 1) for n in range(2 * MANY_LOGS)]

    def refused(plan):
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(checkpoints_module, "run_flush", refused)
    checkpoints = harness.store._checkpoints
    logs = [log for log in logs if (log.log_id + checkpoints._spread) % PARTS_MAX]
    for _ in range(10 * PARTS_MAX):
        if harness.store.accepts_appends:
            grow(harness, writer, logs, size=60)
        harness.workers.advance(PART_MS)
        if checkpoints.is_full:
            break
    assert checkpoints.is_full
    for _ in range(5 * PARTS_MAX):
        harness.workers.advance(PART_MS // 10)
        assert checkpoints.is_full


def test_idle_logs_do_not_make_flushes_of_busy_ones_small(harness, writer, flushes):
    """A thousand logs that hold one entry since an election take negligible space."""
    begin_again(harness, cache_bytes_max=8 << 20)
    logs = [harness.new_log(group_id=n + 1) for n in range(8 * MANY_LOGS)]
    grow(harness, writer, logs, size=10)
    busy = logs[:8]
    for _ in range(4 * PARTS_MAX):
        grow(harness, writer, busy, size=1_000)
        harness.workers.advance(PART_MS)
    sizes = [size for job in flushes for _, size, _ in job]
    assert sizes
    assert min(sizes) >= FLUSH_BYTES_MIN


def test_state_that_holds_a_file_is_written_again_beside_a_tail_that_is_due(harness, writer):
    """A flush does not move the state, so its file would be kept for as long as the log is busy."""
    begin_again(harness, journal_file_bytes=1 << 20, journal_first_file_bytes=1 << 20)
    log = harness.new_log()
    harness.store.collect_meta = lambda logs: []
    harness.store.reset_log(log, first_index=500, prev_term=1, next_offset=700, state=b"state")
    harness.submit()
    pool = harness.workers.pool
    harness.workers.pool = lambda job, done: harness.workers.call_later(
        2 * PART_MS, lambda: pool(job, done)
    )
    for _ in range(20 * PARTS_MAX):
        grow(harness, writer, [log], size=10_000)
        harness.workers.advance(PART_MS)
    assert harness.store.stats()["journal_files"] <= 2 * JOURNAL_FILES_MANY


@pytest.mark.parametrize("share", range(0, PARTS_MAX, 7))
def test_round_does_not_put_off_the_checkpoint_by_bytes(share, writer):
    """Bytes appended after their log's part still wait when the round ends, and count."""
    made = SimHarness(replace(OPTIONS, checkpoint_bytes=1 << 20))
    made.start()
    log = made.new_log()
    checkpoints = made.store._checkpoints
    checkpoints._spread = share - log.log_id
    for _ in range(6 * PARTS_MAX):
        grow(made, writer, [log], size=35_000)  # a checkpoint's worth in six seconds
        made.workers.advance(PART_MS)
        assert made.store.unflushed_bytes <= 1.1 * (1 << 20)
    made.crash()


def test_installed_state_is_covered_though_nothing_follows(harness):
    """A snapshot may be the last that a server receives of a log for a long time."""
    log = harness.new_log()
    harness.collect(MetaBatch(log.log_id, 499, [(b"k", b"new")], clear=True))
    harness.store.reset_log(log, first_index=500, prev_term=1, next_offset=700, state=b"state")
    harness.submit()
    assert log.installed_state == b"state"
    harness.workers.advance(2 * OPTIONS.checkpoint_interval_ms)
    assert log.installed_state == b""


def test_checkpoint_that_is_asked_for_beside_a_part_follows_it(harness, writer):
    """A caller that waits for a checkpoint waits for a complete one."""
    logs = [harness.new_log(group_id=n + 1) for n in range(3)]
    checkpoints = harness.store._checkpoints
    grow(harness, writer, logs, size=FLUSH_BYTES_MIN)
    done = []
    pool = harness.workers.pool
    jobs = []
    harness.workers.pool = lambda job, finished: jobs.append((job, finished))
    while not jobs:
        harness.workers.advance(PART_MS)
    harness.store.checkpoint(lambda: done.append(harness.store.unflushed_bytes))
    assert len(jobs) == 1
    harness.workers.pool = pool
    harness.workers.pool(*jobs[0])
    harness.pump()
    harness.workers.advance(PART_MS)
    assert done == [0]
    assert checkpoints.count == 1


def test_part_that_meets_a_full_disk_is_made_up_for(harness, writer):
    logs = [harness.new_log(group_id=n + 1) for n in range(MANY_LOGS)]
    failpoint.arm("flush.written:enospc")
    for _ in range(40):
        grow(harness, writer, logs, size=1_000)
    harness.workers.advance(PART_MS)
    failpoint.arm("")
    assert harness.store.disk_full
    harness.workers.advance(1_500)
    assert not harness.store.disk_full
    grow(harness, writer, logs, size=FLUSH_BYTES_MIN * 4)
    harness.checkpoint()
    assert harness.store.unflushed_bytes == 0


def test_logs_deleted_together_share_their_syncs(tmp_path, writer, monkeypatch):
    made = DiskHarness(SMALL, directory=str(tmp_path / "data"))
    made.start()
    logs = [made.new_log(group_id=n + 1) for n in range(2 * REMOVED_LOGS + 1)]
    kept = logs.pop()
    for log in (*logs, kept):
        made.store.append(log, writer(log).entries(1, size=2_000))
        made.store.set_hard_state(log, HardState(1, 0, 1))
    made.submit()
    made.collect(*(MetaBatch(log.log_id, 1, [(b"key", b"value")]) for log in (*logs, kept)))
    made.checkpoint()
    synced = []
    sync = RealFileSystem.sync_directory

    def counted(fs, path):
        synced.append(path)
        sync(fs, path)

    monkeypatch.setattr(RealFileSystem, "sync_directory", counted)
    for log in logs:
        made.store.delete_log(log.log_id)
    made.workers.advance(1_000)
    assert len(synced) < len(logs) // 8
    directory = tmp_path / "data"
    assert [path.name for path in (directory / "logs").iterdir()] == [f"{kept.log_id:08x}"]
    assert list((directory / "deleted").iterdir()) == []
    assert made.store.load_meta(kept) == (1, [(b"key", b"value")])
    assert all(made.store._meta.applied(log.log_id) == 0 for log in logs)
    made.close()


def test_disk_without_room_for_more_names_is_not_full_for_ever(tmp_path, writer, monkeypatch):
    """Names that a removal has moved aside are deleted before more are moved."""
    made = DiskHarness(SMALL, directory=str(tmp_path / "data"))
    made.start()
    logs = [made.new_log(group_id=n + 1) for n in range(8)]
    for log in logs:
        made.store.append(log, writer(log).entries(20, size=1_000))
        made.store.set_hard_state(log, HardState(1, 0, 20))
    made.submit()
    made.checkpoint()
    deleted = tmp_path / "data" / "deleted"
    rename = RealFileSystem.rename

    def crowded(fs, old, new):
        if new.startswith(str(deleted)) and len(list(deleted.iterdir())) >= 3:
            raise OSError(errno.ENOSPC, "no room for a name")
        rename(fs, old, new)

    monkeypatch.setattr(RealFileSystem, "rename", crowded)
    for log in logs[:4]:
        made.store.delete_log(log.log_id)
    made.workers.advance(200)
    assert made.store.disk_full
    made.workers.advance(2_000)
    assert not made.store.disk_full
    assert list(deleted.iterdir()) == []
    for log in logs[4:]:
        made.store.delete_log(log.log_id)
    made.workers.advance(200)
    assert len(list(deleted.iterdir())) == 3
    made.crash()
    made.start()  # finds three moved and one listed nowhere
    assert list(deleted.iterdir()) == list((tmp_path / "data" / "logs").iterdir()) == []
    made.close()


def test_slow_parts_do_not_multiply(harness, writer):
    """There is only one timer, and rounds come no more often."""
    logs = [harness.new_log(group_id=n + 1) for n in range(MANY_LOGS)]
    workers, checkpoints = harness.workers, harness.store._checkpoints
    pool = workers.pool
    workers.pool = lambda job, done: workers.call_later(PART_MS, lambda: pool(job, done))
    was_late = False
    for _ in range(4 * PARTS_MAX):
        grow(harness, writer, logs, size=2_000)
        workers.advance(PART_MS // 2)  # half the time that a part takes
        was_late |= checkpoints.is_running
        stage(harness, writer, logs[:1], size=100)
        assert len(part_timers(harness)) == 1
        workers.advance(PART_MS // 2)
    assert was_late
    assert 1 <= checkpoints.count <= 4


def test_blocks_and_files_leave_nothing_to_collect(writer):
    made = SimHarness(SMALL)
    made.start()
    log = made.new_log()
    grow(made, writer, [log], size=500)
    gc.collect()
    gc.disable()
    try:
        for n in range(300):
            grow(made, writer, [log], size=900)
            made.workers.advance(20)
            if n % 50 == 0:
                made.checkpoint()
        assert made.store.stats()["journal_bytes"] > 4 * SMALL.journal_file_bytes
        assert gc.collect() == 0
    finally:
        gc.enable()
    made.crash()
