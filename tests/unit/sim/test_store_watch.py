"""Data removed before its replacement is durable is reported when it is removed."""

from __future__ import annotations

from random import Random

import pytest

from raft.types import Entry
from segments.api import HardState, Log, MetaBatch, StoreOptions
from segments.log import tail_cache
from segments.log.tail_cache import Tail
from segments.store import DiskStore
from vdl.sim.clock import NodeClock, VirtualTime
from vdl.sim.disk import DiskProfile, SimDisk
from vdl.sim.durable import DurableLogs
from vdl.sim.filesystem import SimFileSystem
from vdl.sim.store_watch import StoreWatch
from vdl.sim.workers import SimWorkers

S = 1_000_000_000
OPTIONS = StoreOptions(journal_file_bytes=32 << 10, journal_first_file_bytes=32 << 10)


class Bench:
    """A watched store with one log; it makes checkpoints only on request."""

    def __init__(self) -> None:
        self.told: list[str] = []
        disk, self.time = SimDisk(Random(1), DiskProfile()), VirtualTime()
        durable = DurableLogs()
        disk.on_durable = durable.take
        workers = SimWorkers(NodeClock(self.time), disk)
        self.store = DiskStore.open(SimFileSystem(disk), "data", workers, OPTIONS, Random(7))
        StoreWatch(self.store, durable, lambda _, rule, __: self.told.append(rule))
        made: list[Log] = []
        self.store.create_log(5, 1, on_created=made.append)
        self.pass_time()
        self.log = made[0]

    def pass_time(self) -> None:
        self.time.run_until(self.time.now_ns + S // 10)

    def append(self, first: int, count: int, *, commit: int = 0) -> None:
        entries = [
            Entry(term=1, index=first + n, data=b"x" * 2_000, base_offset=0, records=0)
            for n in range(count)
        ]
        self.store.append(self.log, entries)
        if commit:
            self.store.set_hard_state(self.log, HardState(1, 0, commit))
        self.store.submit()
        self.pass_time()


def test_journal_file_that_alone_holds_an_entry() -> None:
    """It may go if a newer file holds the entry, or a durable note says that segments do."""
    bench = Bench()
    for n in range(5):
        bench.append(1 + 10 * n, 10)
    journal = bench.store._journal
    journal.release(1)
    assert bench.told == []
    journal.release(journal.current_sequence)
    assert bench.told == ["journal-released"]


def test_journal_files_that_a_checkpoint_lets_go() -> None:
    """The store's own releases break no rule, and there are some."""
    bench = Bench()
    for n in range(20):
        bench.append(1 + 10 * n, 10, commit=10 * n)
        bench.store.checkpoint(lambda: None)
        bench.pass_time()
    assert bench.store._journal.file_count < 10
    assert bench.told == []


def test_journal_files_that_go_while_a_reset_is_on_its_way() -> None:
    """The reset may be what makes them superfluous: they stay until it is durable."""
    bench = Bench()
    for n in range(5):
        bench.append(1 + 10 * n, 10)
    journal = bench.store._journal
    bench.store.reset_log(bench.log, first_index=60, prev_term=1, next_offset=0)
    journal.release(1)
    assert bench.told == []
    bench.store.submit()
    bench.pass_time()
    journal.release(2)
    assert bench.told == []
    bench.store.reset_log(bench.log, first_index=70, prev_term=1, next_offset=0)
    journal.release(journal.current_sequence)
    assert bench.told == ["journal-released"]


def test_journal_files_that_do_not_wait_for_a_reset(monkeypatch: pytest.MonkeyPatch) -> None:
    """The notes of a checkpoint are in flight when the log is reset."""
    for holds in (True, False):
        bench = Bench()
        bench.append(1, 10, commit=10)
        checkpoints = bench.store._checkpoints
        if not holds:
            monkeypatch.setattr(checkpoints, "hold_files", lambda: None)
        checkpoints._note_token = bench.store._journal.queue.durable_token
        bench.store.reset_log(bench.log, first_index=60, prev_term=1, next_offset=0)
        assert bench.told == ([] if holds else ["files-not-held"])


def test_log_that_is_deleted_before_the_catalogs_snapshot_is_durable() -> None:
    """One that has a successor may go at any time."""
    bench, made = Bench(), []
    bench.store.create_log(0, 1, on_created=made.append)
    bench.store.create_log(6, 1, on_created=made.append)
    bench.store.create_log(6, 2, on_created=made.append)
    bench.pass_time()
    catalog, old, new = made
    bench.store.reset_log(catalog, first_index=60, prev_term=1, next_offset=0)
    bench.store.delete_log(old.log_id)
    assert bench.told == []
    bench.store.delete_log(new.log_id)
    assert bench.told == ["deleted-early"]
    bench.store.submit()
    bench.pass_time()
    bench.store.delete_log(bench.log.log_id)
    assert bench.told == ["deleted-early"]


def test_log_that_is_cut_beyond_its_checkpoint() -> None:
    """A committed entry need not be covered by a checkpoint."""
    bench = Bench()
    bench.append(1, 10, commit=10)
    bench.store.trim_log(bench.log, first_index=1)
    assert bench.told == []
    bench.store.trim_log(bench.log, first_index=5)
    assert bench.told == ["trimmed-early"]


def test_entries_that_stay_in_the_cache_when_others_take_their_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They share a chunk with older entries."""
    monkeypatch.setattr(tail_cache, "CHUNK_BYTES_MIN", 4 << 10)
    bench = Bench()
    bench.append(1, 6)
    bench.append(5, 3)
    assert bench.told == []
    truncate = Tail.truncate

    def keep(tail: Tail, index: int) -> int:
        chunk = tail.chunks[tail.chunk_at(index)]
        entries, ends = list(chunk.entries), chunk.ends[:]
        removed = truncate(tail, index)
        chunk.entries[:], chunk.ends[:] = entries, ends
        return removed

    monkeypatch.setattr(Tail, "truncate", keep)
    bench.append(6, 1)
    assert bench.told == ["cache-not-cut"]


@pytest.mark.parametrize("clear", [True, False])
def test_checkpoint_behind_an_installed_state(clear: bool) -> None:
    """The first one clears the state stored before; later ones need not."""
    bench = Bench()
    bench.append(1, 6, commit=6)
    bench.store.reset_log(bench.log, first_index=20, prev_term=1, next_offset=0, state=b"state")
    bench.store.submit()
    bench.pass_time()
    log_id = bench.log.log_id
    coming = [MetaBatch(log_id, 19, [], clear=clear), MetaBatch(log_id, 19, [])]
    bench.store.collect_meta = lambda logs: [coming.pop(0)] if logs and coming else []
    for _ in range(2):
        bench.store.checkpoint(lambda: None)
        bench.pass_time()
    assert not coming
    assert bench.told == ([] if clear else ["checkpoint-of-two-states"])
