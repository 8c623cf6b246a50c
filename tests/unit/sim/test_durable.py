"""The durable state of logs read from a disk, compared with the engine that wrote it."""

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
    """One disk, the store on it, and the independent view of its durable logs."""

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
        """Cut a start after `reached` of its steps; return the number of steps it has."""
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
    """Nothing counts before the write is complete; then all staged records, in order."""
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
    """The term is known if a log begins after a snapshot, or was cut until nothing was left."""
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
    """After a cut in the middle of a write, everything recovered is durable."""
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
    """Some sectors of the block are on the disk and some are not.

    Everything that recovery keeps of it has been made durable by then.
    """
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
    """The last block was acknowledged and no later block proves it.

    It is found after cuts of the start that rewrites it and of the next one, at any step, before
    and after a power cut.
    """
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
    """A start makes the directory that it continues durable, whichever start created it.

    A power cut then loses nothing of it.
    """
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
    """The later blocks prove that it was durable: it is not a torn tail."""
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
