"""What a disk durably says of its logs, beside what the engine that wrote it says."""

from __future__ import annotations

from random import Random

import pytest

from raft.types import Entry
from segments.api import HardState, Log, StoreOptions
from segments.store import DiskStore
from vdl.sim.clock import NodeClock, VirtualTime
from vdl.sim.damage import flip_durable_bit
from vdl.sim.disk import DiskProfile, SimDisk
from vdl.sim.durable import DurableLogs
from vdl.sim.filesystem import SimFileSystem
from vdl.sim.workers import NoWorkers, SimWorkers

OPTIONS = StoreOptions(journal_file_bytes=64 << 10, journal_first_file_bytes=64 << 10)
MS = 1_000_000
S = 1_000 * MS


class Bench:
    """One disk, the store on it, and the second opinion."""

    def __init__(self, seed: int, *, is_open: bool = True) -> None:
        self.disk = SimDisk(Random(seed), DiskProfile())
        self.durable = DurableLogs()
        self.disk.on_durable = self.durable.take
        self.time = VirtualTime()
        if is_open:
            self.open()

    def open(self) -> None:
        self.clock = NodeClock(self.time)
        self.workers = SimWorkers(self.clock, self.disk)
        self.store = DiskStore.open(
            SimFileSystem(self.disk), "data", self.workers, OPTIONS, Random(7)
        )

    def open_and_cut(self, reached: int, *, power: bool) -> int:
        """A start that gets through so many of its steps; how many it would have had."""
        fs = SimFileSystem(self.disk)
        opened, steps, _ = self.disk.run_job(
            lambda: DiskStore.open(fs, "data", NoWorkers(), OPTIONS, Random(8))
        )
        assert isinstance(opened, DiskStore), opened
        self.disk.cut_job(steps, reached=min(reached, len(steps)))
        if power:
            self.disk.power_cut()
        return len(steps)

    def new_log(self) -> Log:
        made: list[Log] = []
        self.store.create_log(5, 1, on_created=made.append)
        self.time.run_until(self.time.now_ns + S)
        return made[0]

    def append(self, log: Log, first: int, count: int, term: int) -> None:
        entries = [
            Entry(term=term, index=first + n, data=b"x" * 300, base_offset=0, records=0)
            for n in range(count)
        ]
        self.store.append(log, entries)
        self.store.submit()

    def power_cut(self) -> None:
        self.clock.stop()
        self.workers.die()
        self.disk.power_cut()


def test_blocks_tell_entries_votes_and_truncations_once_they_are_durable() -> None:
    """Nothing before the write is complete; then what was staged, in its order."""
    bench = Bench(1)
    log = bench.new_log()
    bench.append(log, 1, 3, term=1)
    assert log.log_id not in bench.durable.logs
    bench.time.run_until(bench.time.now_ns + S)
    told = bench.durable.logs[log.log_id]
    assert (told.last, told.terms) == (3, {1: 1, 2: 1, 3: 1})
    bench.append(log, 2, 1, term=2)
    bench.store.set_hard_state(log, HardState(2, 9, 1))
    bench.store.submit()
    bench.time.run_until(bench.time.now_ns + S)
    assert (told.last, told.terms) == (2, {1: 1, 2: 2})
    assert (told.term, told.vote, told.commit) == (2, 9, 1)
    assert told.ever[3] == {1}


def test_of_the_entry_before_the_first_one_the_term_is_known() -> None:
    """Where a log begins behind a snapshot, or was cut until nothing was left."""
    bench = Bench(1)
    log = bench.new_log()
    bench.append(log, 1, 3, term=1)
    bench.time.run_until(bench.time.now_ns + S)
    told = bench.durable.logs[log.log_id]
    bench.store.reset_log(log, first_index=6, prev_term=4, next_offset=9, state=b"")
    bench.store.submit()
    bench.time.run_until(bench.time.now_ns + S)
    assert (told.first, told.last, told.ever[5]) == (6, 5, {4})


def test_recovery_and_the_blocks_agree_after_every_power_cut() -> None:
    """Whatever survived a cut in the middle of a write: what is recovered is durable by then."""
    survived = set[int]()
    for seed in range(40):
        bench = Bench(seed)
        log = bench.new_log()
        bench.append(log, 1, 2, term=1)
        bench.time.run_until(bench.time.now_ns + S)
        bench.append(log, 3, 2, term=1)
        bench.power_cut()
        bench.open()
        again = bench.store.logs[log.log_id]
        assert again.last_index == bench.durable.logs[log.log_id].last
        survived.add(again.last_index)
    assert survived == {2, 4}


def test_power_cut_in_a_write_tears_blocks_of_which_the_table_is_there() -> None:
    """Some sectors of the block are on the disk and some are not; what recovery makes of that is
    what it made durable itself."""
    torn = 0
    for seed in range(40):
        bench = Bench(seed)
        log = bench.new_log()
        cut: list[int] = []
        bench.disk.on_cut = lambda cut=cut: cut.append(1)  # type: ignore[misc]
        bench.append(log, 1, 1, term=1)
        bench.time.run_until(bench.time.now_ns + S)
        bench.disk.cut_at_write = 1
        bench.append(log, 2, 6, term=1)
        assert cut, "the write has begun"
        bench.power_cut()
        bench.open()
        again = bench.store.logs[log.log_id]
        assert again.last_index == bench.durable.logs[log.log_id].last
        assert not again.lost
        torn += bench.store.stats()["recovered_torn_bytes"] > 0
    assert torn > 5


@pytest.mark.parametrize("power", [False, True])
def test_recovery_and_the_blocks_agree_after_starts_cut_at_every_step(power: bool) -> None:
    """The last block was acknowledged and nothing proves it: wherever the start is cut that was to
    write it again, and the one after that, it is found, before and after a power cut."""
    steps = reached = 0
    while reached <= steps:
        for seed in range(6):
            bench = Bench(seed)
            log = bench.new_log()
            bench.append(log, 1, 2, term=1)
            bench.time.run_until(bench.time.now_ns + OPTIONS.idle_block_ms * MS // 2)
            assert bench.durable.logs[log.log_id].last == 2
            bench.power_cut()
            steps = bench.open_and_cut(reached, power=power)
            bench.open_and_cut(Random(seed).randrange(steps), power=not power)
            for _ in range(2):
                bench.open()
                assert log.log_id in bench.store.logs, (reached, seed)
                again = bench.store.logs[log.log_id]
                assert (again.last_index, again.lost) == (2, False), (reached, seed)
                assert bench.durable.logs[log.log_id].last == 2
                bench.power_cut()
        reached += 1
    assert steps >= 4, "syncs of meta and of names, and the first block"


@pytest.mark.parametrize("power", [False, True])
def test_first_start_may_be_cut_at_every_step(power: bool) -> None:
    """What a directory holds was made durable by the start that went on with it, whoever made it:
    nothing of it goes with a power cut."""
    steps = reached = 0
    while reached <= steps:
        for seed in range(6):
            bench = Bench(seed, is_open=False)
            steps = bench.open_and_cut(reached, power=power)
            bench.open()
            log = bench.new_log()
            bench.append(log, 1, 2, term=1)
            bench.time.run_until(bench.time.now_ns + S)
            bench.power_cut()
            bench.open()
            assert log.log_id in bench.store.logs, (reached, seed)
            assert bench.store.logs[log.log_id].last_index == 2, (reached, seed)
        reached += 1
    assert steps > 10


def test_flipped_bit_in_a_durable_block_costs_the_replica_in_it() -> None:
    """The later blocks prove that it was durable: this is no torn tail."""
    lost = 0
    for seed in range(10):
        bench = Bench(seed)
        log = bench.new_log()
        for n in range(4):
            bench.append(log, 1 + n, 1, term=1)
            bench.time.run_until(bench.time.now_ns + S)
        bench.power_cut()
        assert flip_durable_bit(bench.disk, Random(seed))
        bench.open()
        lost += bench.store.logs[log.log_id].lost
    assert lost == 10
