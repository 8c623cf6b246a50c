"""A full disk is a temporary state: nothing acknowledged is lost, votes go on, and it ends.

First, failpoints refuse every job its space in turn. Then a small file system is really filled,
where the machine permits making one.
"""

import os
import random
import subprocess

import pytest

from segments.api import HardState, StoreOptions
from segments.io import failpoint
from segments.io.inline_workers import InlineWorkers
from tests.storage_contract.conftest import DiskHarness
from tests.storage_contract.steps import OPTIONS, Step, draw
from tests.storage_contract.test_failpoints import STAGED, Engine, Model, at, seen

TMPFS_BYTES = 6 << 20
REAL = StoreOptions(
    journal_file_bytes=512 << 10,
    journal_first_file_bytes=256 << 10,
    segment_bytes=256 << 10,
    index_segment_entries=1024,
    cache_bytes_max=4 << 20,
    checkpoint_bytes=256 << 10,
    meta_map_bytes=1 << 20,
)


@pytest.fixture(autouse=True)
def disarmed():
    yield
    failpoint.arm("")


NEVER_FULL = ("journal.recycled", "payload.before_sync", "payload.torn", "payload.after_sync")
"""Failpoints that never meet a full disk: a rename, and writes to allocated space.

A failing one is a failed sync.
"""


@pytest.mark.parametrize("name", [n for n in at("job") if n not in NEVER_FULL])
def test_store_refused_room_at_any_step_goes_on_and_recovers(name, tmp_path):
    """ENOSPC at every step of every job is never fatal.

    The store reports it, recovers when there is space again, and everything is where it belongs.
    """
    model = Model(OPTIONS)
    engine = Engine(OPTIONS, directory=str(tmp_path / "data"))
    model.start()
    engine.start()
    rng = random.Random(name)
    was_full = False
    for round_ in range(4):
        do_some(engine, model, rng, 15)
        failpoint.arm(f"{name}:enospc")
        do_some(engine, model, rng, 15, kinds=STAGED)
        # A checkpoint, and changes to the existing logs, wait until there is space.
        for step in (
            Step("checkpoint", term=round_ % 2),
            Step("renew", min(model.store.logs), index=7),
        ):
            engine.do(step)
            model.do(step)
        for _ in range(3):
            engine.workers.advance(400)
            was_full |= engine.store.disk_full
            assert engine.store.accepts_appends == (not engine.store.disk_full)
        failpoint.arm("")
        engine.workers.advance(3000)
        assert engine.fatal == []
        assert not engine.store.disk_full
        assert seen(engine) == seen(model)
    # Removals may find nothing to do for this seed. A file that is not needed may stay a little
    # longer. Payloads without space go to the journal. Nothing waits for space that is given back.
    harmless = ("trim.", "journal.file_", "journal.before", "journal.rel", "flush.room", "room.")
    assert was_full or name.startswith(harmless)
    engine.reopen()
    model.reopen()
    assert seen(engine) == seen(model)
    engine.crash()


def do_some(engine, model, rng, count, kinds=()):
    """Apply to both sides steps of the kinds that do not wait for space."""
    while count:
        step = draw(rng, model.store.logs)
        if kinds and step.kind not in kinds:
            continue
        if step.kind == "trim" and engine.store.logs[step.log_id].installed_state:
            continue
        engine.do(step)
        model.do(step)
        engine.workers.advance(10)
        count -= 1


@pytest.fixture
def small_disk(tmp_path):
    """Yield a file system of a few mebibytes, or skip the test."""
    where = tmp_path / "small"
    where.mkdir()
    if os.geteuid() != 0:
        pytest.skip("mounting a small file system needs root")
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={TMPFS_BYTES}", "tmpfs", str(where)],
        capture_output=True,
        check=False,
    )
    if mounted.returncode:
        pytest.skip(f"no mount here: {mounted.stderr.decode().strip()}")
    yield where
    subprocess.run(["umount", "-l", str(where)], check=True)


def fill(path, leave=0, name="ballast"):
    """Use up all space but `leave` bytes."""
    free = os.statvfs(path).f_bavail * os.statvfs(path).f_frsize
    with (path / name).open("wb") as ballast:
        if free > leave:
            os.posix_fallocate(ballast.fileno(), 0, free - leave)


def append(harness, log, writer, count, size):
    hard = log.hard_state
    term = max(1, hard.term)
    harness.store.append(log, writer(log).entries(count, term=term, size=size))
    harness.store.set_hard_state(log, HardState(term, hard.vote, log.last_index))
    return harness.store.submit()


@pytest.mark.parametrize("leave", [0, 100_000, 700_000])
def test_votes_are_durable_on_a_file_system_that_is_full(small_disk, writer, leave):
    """There is no space for a journal file, a segment or an index.

    Votes are written all the same, also by the next process. Entries that were acknowledged are
    served when there is space again.
    """
    harness = DiskHarness(REAL, directory=str(small_disk / "data"))
    harness.start()
    log = harness.new_log()
    append(harness, log, writer, 50, 1000)
    harness.pump()
    fill(small_disk, leave)
    acknowledged = log.last_index
    while harness.store.accepts_appends:
        token = append(harness, log, writer, 20, 2000)
        harness.workers.advance(100)
        if harness.acknowledged >= token:
            acknowledged = log.last_index
        harness.store.checkpoint()
        harness.workers.advance(100)
    assert harness.store.disk_full
    for life in range(3):
        for n in range(20):
            # Other writers take the space that the journal can do without.
            fill(small_disk, name=f"others-{life}-{n}")
            vote = n % 7
            harness.store.set_hard_state(
                log, HardState(10 + life * 1000 + n, vote, 0 or log.commit_index)
            )
            token = harness.store.submit()
            harness.workers.advance(20)
            assert harness.acknowledged >= token
        harness.workers.advance(3000)
        assert harness.fatal == []
        assert harness.store.disk_full
        log = harness.reopen()
        assert not log.lost
        assert log.last_index >= acknowledged
        assert log.hard_state == HardState(10 + life * 1000 + 19, 19 % 7, log.commit_index)
    for path in (small_disk / "ballast", *small_disk.glob("others-*")):
        path.unlink()
    harness.workers.advance(5000)
    assert not harness.store.disk_full
    assert harness.store.accepts_appends
    append(harness, log, writer, 200, 1000)
    harness.pump()
    harness.checkpoint()
    log = harness.reopen()
    assert len(harness.all_entries(log)) == log.last_index >= acknowledged + 200
    assert harness.fatal == []
    harness.crash()


def test_appends_that_come_nevertheless_wait_and_are_then_durable(small_disk, writer):
    """A caller that ignores the full disk is not acknowledged early, and loses nothing."""
    harness = DiskHarness(REAL, directory=str(small_disk / "data"))
    harness.start()
    log = harness.new_log()
    fill(small_disk)
    tokens = [append(harness, log, writer, 10, 5000) for _ in range(40)]
    for _ in range(20):
        harness.workers.advance(500)
    assert harness.fatal == []
    assert harness.store.disk_full
    assert harness.acknowledged < tokens[-1]
    (small_disk / "ballast").unlink()
    harness.workers.advance(10_000)
    assert harness.acknowledged >= tokens[-1]
    assert not harness.store.disk_full
    log = harness.reopen()
    assert log.last_index == 400
    harness.crash()


def test_next_journal_file_is_taken_from_those_that_were_released(tmp_path, writer, monkeypatch):
    """Under steady load journal files are recycled, and zeros are not written for each."""
    harness = DiskHarness(OPTIONS, directory=str(tmp_path / "data"))
    harness.start()
    log = harness.new_log()
    created = []
    files = harness.store._journal.allocation.files
    make_next = files._make_next

    def counting(made, sequence):
        created.append(bool(made.reuse))
        make_next(made, sequence)

    monkeypatch.setattr(type(files), "_make_next", lambda _, *how: counting(*how))
    for _ in range(60):
        append(harness, log, writer, 20, 900)
        harness.pump()
        harness.checkpoint()
    assert len(created) > 10
    assert sum(created[5:]) >= 0.9 * len(created[5:])
    harness.crash()


def test_time_between_tries_is_bounded(tmp_path, writer):
    """A full disk is probed once a second, not in a loop."""
    harness = DiskHarness(OPTIONS, directory=str(tmp_path / "data"))
    harness.start()
    log = harness.new_log()
    failpoint.arm("flush.written:enospc,meta.before_commit:enospc")
    workers = harness.workers
    assert isinstance(workers, InlineWorkers)
    for _ in range(20):
        append(harness, log, writer, 10, 900)
        workers.advance(100)
    assert 2 <= failpoint.armed["flush.written"].passed <= 4
    failpoint.arm("")
    workers.advance(2000)
    assert not harness.store.disk_full
    assert harness.store.stats()["disk_full"] == 0
    harness.crash()


def test_deleting_a_log_makes_room_on_a_file_system_that_is_full(small_disk, writer):
    """No block is free: the records to be written first have reserved space."""
    harness = DiskHarness(REAL, directory=str(small_disk / "data"))
    harness.start()
    doomed, kept = harness.new_log(), harness.new_log()
    append(harness, doomed, writer, 300, 2000)
    append(harness, kept, writer, 5, 1000)
    harness.pump()
    harness.store.checkpoint()
    harness.workers.advance(2000)
    fill(small_disk)
    for _ in range(20):
        if not harness.store.accepts_appends:
            break
        append(harness, kept, writer, 20, 2000)
        harness.store.checkpoint()
        harness.workers.advance(1000)
    assert harness.store.disk_full
    fill(small_disk, name="rest")
    harness.store.delete_log(doomed.log_id)
    harness.workers.advance(5000)
    assert harness.fatal == []
    assert not harness.store.disk_full
    token = append(harness, kept, writer, 5, 1000)
    harness.pump()
    assert harness.acknowledged >= token
    harness.close()
