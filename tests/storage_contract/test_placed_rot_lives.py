"""Random histories of many logs on a disk that rots.

A byte or a page behind the flushed data, or of the journal, goes bad between two runs, or a page
while the process runs. Extends test_crowded_lives.py: logs are created and deleted, and processes
die at named places of their jobs, also at a start. A start finds the state behind some batch, not
before the last acknowledged one, except for what damage could reach: a log that it touched may be
lost, or have damaged ranges among its committed entries. All others are unaffected. `verify`, which
looks first, reports what the start finds.

More histories: SEEDS=2000 SEED=100 (their number, and the first).
"""

import os
from dataclasses import dataclass, field

import pytest

from segments.api import DataMissing, EntriesDamaged, StoredEntry
from segments.directory.identity import read_identity
from segments.format.block import BLOCK_HEADER_BYTES, PLACE, PLACED
from segments.format.names import log_directory, segment_number
from segments.io import failpoint
from segments.recovery.replay import replay_journal
from segments.tool import Directory, verify
from tests.storage_contract.test_crowded_lives import CrowdedLives, _is_between, live
from vdl.sim.damage import _blocks, _files, _find, _records
from vdl.sim.filesystem import SimFileSystem

pytestmark = pytest.mark.takes_turns(parts=3)

SEEDS = int(os.environ.get("SEEDS", "30"))
SEED = int(os.environ.get("SEED", "0"))
PAGE = 4096
PLACES = (
    "payload.before_sync", "payload.torn", "payload.after_sync", "journal.partly",
    "journal.rolled", "journal.file_created", "journal.file_filled", "journal.file_named",
    "journal.recycled", "journal.before_release", "journal.released", "checkpoint.begun",
    "flush.created", "flush.written", "flush.sealed", "flush.room", "flush.done", "index.created",
    "index.written", "checkpoint.flushed", "checkpoint.noted", "remove.begun", "remove.moved",
    "remove.removed", "identity.before_write", "identity.renamed", "open.recovered", "open.carried",
)  # fmt: skip


class Died(BaseException):
    """Raised when the process dies, at a named place."""


@dataclass
class Damage:
    """Reach of one fault. `is_open`: it lies in what nothing proves durable."""

    what: str
    logs: set = field(default_factory=set)
    is_open: bool = False
    is_acknowledged: bool = False
    """True if it was acknowledged, or a start has found it."""


class RotLives(CrowdedLives):
    """`logs` is the number of logs at any time. Lost ones are replaced."""

    logs = 5

    def __init__(self, seed):
        self.touched = set()
        self.copies = {}
        self.young = set()
        self.story = []
        self.found = {"lost": 0, "holes": 0, "damage": 0, "died": 0, "starts": 0, "refused": 0}
        super().__init__(seed)

    def begin(self):
        super().begin()
        self.tokens = [0]
        self.pages = []
        self.told_lsn = self.engine.store._journal.chain.durable_lsn
        self.engine.store.on_durable = self.durable

    def durable(self, token):
        self.tokens.append(token)
        self.told_lsn = self.engine.store._journal.chain.durable_lsn
        self.engine._durable(token)

    # --- one run -------------------------------------------------------------------------------
    def run(self, steps_max):
        for _ in range(self.rng.randint(3, 8)):
            place = self.arm()
            try:
                for _ in range(self.rng.randint(10, steps_max)):
                    self.step()
            except Died:
                self.found["died"] += 1
            finally:
                failpoint.unwatch(place)
            self.die()

    def arm(self):
        """Let the process die when it passes a random place for the n-th time; return the place."""
        place, left = self.rng.choice(PLACES), self.rng.choice((1, 1, 2, 3, 6, 15))

        def pass_by():
            nonlocal left
            left -= 1
            if not left:
                self.story.append(f"died at {place}")
                raise Died

        if self.rng.random() < 0.7:
            failpoint.watch(place, pass_by)
        return place

    def step(self):
        chance = self.rng.random()
        if chance < 0.02:
            self.renew()
        elif chance < 0.03:
            self.sector()
        else:
            super().step()
        assert self.engine.fatal == [], self.story

    def renew(self):
        """Delete a log and create another, while other jobs may be under way."""
        log_id = self.rng.choice(self.ids)
        self.story.append(f"deletes {log_id}")
        self.ids.remove(log_id)
        self.engine.store.delete_log(log_id)
        self.make()

    def make(self):
        log = self.engine.new_log(group_id=len(self.story) + 100)
        self.ids.append(log.log_id)
        self.young.add(log.log_id)
        self.staged[log.log_id] = {}
        self.engine.store.set_segment_limits(log, self.limits)

    def fill(self, log):
        """Append, but not while a page is bad.

        A file that ends in one becomes longer when it is written.
        """
        if not self.engine.disk.bad_pages:
            super().fill(log)

    def sector(self):
        """Make a page unreadable under a running process."""
        self.engine.disk.room = None
        if spot := self.spot_in_segments():
            log_id, inode, position = spot
            self.touched.add(log_id)
            self.story.append(f"bad page {position // PAGE} of log {log_id} in a life")
            self.engine.disk.bad_pages.add((inode, position // PAGE))
            self.pages.append((inode, position // PAGE))

    def spot_in_segments(self):
        """Return (log, file, position), most of the time behind the flushed data."""
        rng, disk, log_id = self.rng, self.engine.disk, self.rng.choice(self.ids)
        log = self.engine.store.logs[log_id]
        directory = _find(disk, log_directory("data", log_id))
        if directory is None or not log.segments:
            return None
        files = {
            found[1]: inode
            for name, inode in directory.entries.items()
            if (found := segment_number(name)) is not None and found[0] == "log"
        }
        newest = [n for n in files if n >= log.cursor.segment] or list(files)
        number = rng.choice(sorted(newest if rng.random() < 0.9 else files))
        size = len(files[number].durable)
        begins = log.cursor.position if number == log.cursor.segment else 0
        if begins >= size or rng.random() < 0.1:
            begins = 0
        if not size:
            return None
        end = log.placement.position if number == log.placement.segment else size
        end = end if begins < end < size and rng.random() < 0.8 else size
        return log_id, files[number], rng.randrange(begins, end)

    # --- between two runs ----------------------------------------------------------------------
    def die(self):
        engine, rng = self.engine, self.rng
        begun = [queue.popleft()[0] for queue in self.queues() if rng.random() < 0.8]
        engine.disk.room = None
        jobs = []
        for job in begun:
            try:
                jobs.append(engine.disk.run_job(job)[1])
            except Died:
                jobs.append(engine.disk._steps)
                engine.disk._steps = None
        engine.disk.cut_jobs(jobs)
        self.durable_upto, self.undo = engine.acknowledged, None
        is_damaged = rng.random() < 0.6
        if is_damaged or rng.random() < 0.6:
            engine.disk.power_cut()
        self.judge_pages()
        if is_damaged:
            self.damage()
        self.start()

    def judge_pages(self):
        """Judge a page that went bad in the run.

        It may hold what the last block says is in a segment.
        """
        disk = self.engine.disk
        bad_pages, disk.bad_pages = disk.bad_pages, set()
        healed = set()
        for inode, page in bad_pages:
            damage = Damage(f"page {page}")
            self.reach(damage, inode, page * PAGE, page * PAGE + PAGE)
            if damage.is_open and not self.goes_back(damage):
                healed.add((inode, page))
            elif damage.is_open:
                self.touched |= damage.logs
        disk.bad_pages = bad_pages - healed

    def goes_back(self, damage):
        """Return True if the last block may count as torn.

        Not if a start has found what preceded it, perhaps by that block's word.
        """
        if not damage.is_acknowledged:
            return True
        if len(self.tokens) < 3:
            return False
        self.durable_upto = max(t for t in self.tokens if t < self.tokens[-1])
        return True

    def damage(self):
        """Damage one page or byte."""
        rng, disk = self.rng, self.engine.disk
        if rng.random() < 0.6:
            spot = self.spot_in_segments()
            if spot is None:
                return
            log_id, inode, position = spot
            damage = Damage(f"log {log_id} at {position}", {log_id})
        else:
            journal = disk.root.entries["data"].entries["journal"].entries
            name = rng.choice(sorted(journal))
            inode, position = journal[name], rng.randrange(max(len(journal[name].durable), 1))
            for found, header in _files(disk):
                if found is inode and rng.random() < 0.8:
                    ends = [block.position + block.padded for block in _blocks(found, header)]
                    position = rng.randrange(max([header.bytes, *ends]))
            damage = Damage(f"{name} at {position}")
        if position >= len(inode.durable):
            return
        is_page = rng.random() < 0.4
        first, end = position, position + 1
        if is_page:
            first, end = position // PAGE * PAGE, position // PAGE * PAGE + PAGE
        try:
            self.reach(damage, inode, first, end)
        except DataMissing:
            return  # damage within the run is enough
        if damage.is_open and not self.goes_back(damage):
            return
        damage.what += f", {'page' if is_page else 'byte'}{', open' if damage.is_open else ''}"
        self.story.append(damage.what)
        self.found["damage"] += 1
        self.touched |= damage.logs
        self.young.clear()
        bit = 1 << rng.randrange(8)

        def flip():
            if is_page:
                disk.bad_pages ^= {(inode, position // PAGE)}
                return
            inode.durable[position] ^= bit
            inode.data[position] ^= bit

        flip()
        self.undo = flip if damage.is_open else None

    def reach(self, damage, inode, first, end):
        """Add the logs to which bytes [first, end) of a file matter to `damage`.

        Set its `is_open` if they belong to a block that nothing proves, or to what it says is in a
        segment.
        """
        fs = SimFileSystem(self.engine.disk)
        identity = read_identity(fs, "data")
        replay = replay_journal(fs, "data/journal", identity)
        open_lsn = {carried.lsn for carried in replay.carried}
        path, _, counted = replay.unproved
        files = _files(self.engine.disk)
        proved_lsn = max((header.start_lsn for _, header in files), default=0)
        later, chain = set(), []
        for found, header in files:
            chain = [one for one in chain if one[1].start_lsn + one[2].position < header.begin_lsn]
            chain += [(found, header, block) for block in _blocks(found, header)]
            if path.endswith(f"/{header.sequence:016x}.journal"):
                chain = [one for one in chain if one[0] is not found or one[2].position < counted]
                break
        for found, header, block in reversed(chain):
            is_open = header.start_lsn + block.position in open_lsn
            at = block.position + BLOCK_HEADER_BYTES + len(block.table)
            names = {log_id for log_id, *_ in _records(block)}
            is_hit = is_open and self.has_placed(block, inode, first, end)
            if found is inode and block.position < end and first < block.position + block.length:
                is_hit |= is_open
                damage.logs |= names
                if first < at:
                    damage.logs |= set(identity.logs) - later
            if is_hit:
                # It does not count, and its consequences may have been executed.
                damage.is_open = True
                damage.is_acknowledged |= header.start_lsn + block.position < self.told_lsn
                damage.logs |= names | later
                if header.start_lsn + block.position < proved_lsn:
                    damage.logs |= set(identity.logs)  # a header says that it did
            later |= names
        damage.logs |= self.young - later

    def has_placed(self, block, inode, first, end):
        places = {}
        for log_id, kind, term, _, value in _records(block):
            if kind == PLACE:
                places[log_id] = term, value
            elif kind == PLACED and log_id in places:
                segment, position = places[log_id]
                length = value & 0xFFFFFFFF
                path = f"{log_directory('data', log_id)}/{segment:010d}.log"
                is_there = position < end and first < position + length
                if is_there and _find(self.engine.disk, path) is inode:
                    return True
                places[log_id] = segment, position + length
        return False

    # --- a start -------------------------------------------------------------------------------
    def start(self):
        engine, rng = self.engine, self.rng
        fs = SimFileSystem(engine.disk)
        known = read_identity(fs, "data")
        lost_before = {n for n, log in known.logs.items() if log.lost}
        with Directory(fs, "data", engine.options.index_segment_entries) as directory:
            reports, _ = verify([directory])
            # Created behind a damaged table, and nothing is written yet: it looks like a log that
            # lost everything.
            self.touched |= {
                n for n, log in directory.replay.logs.items() if log.suspect and n in self.young
            }
        said = {
            report.log_id: [text for text in report.problems if "rebuilt" not in text]
            for report in reports
        }
        for _ in range(3):
            place = self.arm() if rng.random() < 0.3 else ""
            try:
                engine.start()
                break
            except Died:
                engine.disk.cut_jobs([])
                if rng.random() < 0.7:
                    engine.disk.power_cut()
            except DataMissing:
                # Files were released by the word of a block that nothing proves: without it, or
                # what it placed, they are missing. The start has changed nothing, so the damage can
                # be undone.
                assert self.undo is not None or self.pages, self.story
                if self.undo is not None:
                    self.undo()
                engine.disk.bad_pages -= set(self.pages)
                self.undo, self.pages, said = None, [], None
                self.durable_upto = self.tokens[-1]
                self.found["refused"] += 1
            finally:
                failpoint.unwatch(place)
        else:
            engine.start()
        self.found["starts"] += 1
        self.check(said, lost_before)

    def check(self, said, lost_before):
        logs = self.engine.store.logs
        self.ids = [n for n in self.ids if n in logs or self.is_missing(n)]
        lost = [n for n in self.ids if logs[n].lost]
        found = {n: self.read_all(n) for n in self.ids if n not in lost}
        holes = {n for n, entries in found.items() if None in entries.values()}
        assert set(lost) | holes <= self.touched, (lost, holes, self.touched, self.story)
        for log_id in set(self.ids) - lost_before:
            is_bad = log_id in lost or log_id in holes
            assert said is None or bool(said[log_id]) == is_bad, (log_id, is_bad, said, self.story)
        durable = max(n for n, (token, _) in enumerate(self.states) if token <= self.durable_upto)
        states = [{n: state.get(n, {}) for n in found} for _, state in self.states[durable:]]
        self.staged = self.explained(found, states)
        assert self.staged is not None, (self.difference(found, states), self.story)
        self.found["lost"] += len(lost)
        self.found["holes"] += len(holes)
        self.go_on(found, holes, lost)

    def is_missing(self, log_id):
        raise AssertionError((log_id, self.story))

    def read_all(self, log_id):
        """Return entries by index; None for damaged ones, which have to be committed."""
        engine, log, found = self.engine, self.engine.store.logs[log_id], {}
        index = log.first_index
        while index <= log.last_index:
            try:
                part = engine.entries(log, index, log.last_index + 1, 2000)
            except EntriesDamaged as error:
                first, end = error.first, min(error.end, log.last_index + 1)
                assert first <= index < end
                assert index <= log.commit_index
                found |= dict.fromkeys(range(index, end))
                index = end
                continue
            for entry in part:
                assert entry.index == index
                found[index] = entry.term, bytes(entry.data)
                index += 1
        return found

    def explained(self, found, states):
        """Return the recorded state that matches `found`, damaged entries filled in, or None.

        Of a batch larger than a file, a prefix of its parts may be there.
        """
        for state in states:
            filled = {n: _filled(entries, state[n]) for n, entries in found.items()}
            if filled == state:
                return filled
        for before, after in zip(states, states[1:] + states[-1:], strict=True):
            filled = {n: _filled(entries, before[n] | after[n]) for n, entries in found.items()}
            if all(_is_between(filled[n], before[n], after[n]) for n in found):
                return filled
        return None

    def difference(self, found, states):
        return [
            (n, entries.keys() ^ state[n].keys())
            for state in states[:3]
            for n, entries in found.items()
            if _filled(entries, state[n]) != state[n]
        ]

    def go_on(self, found, holes, lost):
        """Rewrite damaged entries from copies.

        Remove lost logs, and those that the previous run had deleted or begun to create.
        """
        engine = self.engine
        for log_id in sorted(holes):
            self.repair(log_id, [n for n, entry in found[log_id].items() if entry is None])
        for log_id in sorted(engine.store.logs):
            if log_id in lost or log_id not in self.ids:
                engine.store.delete_log(log_id)
        self.ids = [n for n in self.ids if n not in lost]
        engine.pump()
        self.term += 1
        while len(self.ids) < self.logs:
            self.make()
        self.begin()

    def read_segments(self, log_id):
        """Read segments: entries in memory may be damaged on disk, undetected."""
        return self.staged[log_id] if log_id in self.touched else super().read_segments(log_id)

    def repair(self, log_id, indexes):
        log, copies, done = self.engine.store.logs[log_id], [], []
        flushed = log.flushed_index
        for index in indexes:
            term, data = self.staged[log_id][index]
            copies.append(self.copies[log_id, index, term, data])
        self.engine.store.repair(log, copies, done.append)
        self.engine.workers.advance(5_000)
        self.engine.submit()  # it waits for the notes of a checkpoint, and these for a block
        assert done == [None], (done, self.story)
        found = self.read_all(log_id)
        assert _filled(found, self.staged[log_id]) == self.staged[log_id], self.story
        # Entries read from memory until a checkpoint came may be damaged on disk, too.
        if holes := [n for n, entry in found.items() if entry is None]:
            assert min(holes) > flushed, (holes, flushed, self.story)
            self.repair(log_id, holes)

    def append(self, log, first, count, size):
        super().append(log, first, count, size)
        for entry in log.entries(first, log.last_index + 1, 1 << 30):
            data = bytes(entry.data)
            self.copies[log.log_id, entry.index, entry.term, data] = StoredEntry(
                entry.term, entry.index, entry.kind, data, entry.base_offset, entry.records,
                entry.timestamp,
            )  # fmt: skip


def _filled(entries, state):
    return {n: state.get(n) if entry is None else entry for n, entry in entries.items()}


@pytest.mark.parametrize("seed", range(SEED, SEED + SEEDS))
def test_damage_costs_what_it_touched_and_nothing_else(seed, monkeypatch):
    """However the run ended before it, and whatever was under way."""
    live(RotLives, seed, 120, monkeypatch)
