"""Each call of the file system refused once, at every place of the engine that makes it.

The history passes through all of these places. No process ends for want of descriptors, memory or
space: the disk counts as full meanwhile, and everything goes on afterwards. A permanent failure
ends the process. Nothing acknowledged is ever lost. A start may be refused as a whole: it reports
why, and the next one succeeds.
"""

import errno
import random
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import pytest

from segments.api import (
    Compaction,
    HardState,
    MetaBatch,
    NotInMemory,
    StorageError,
    StoredEntry,
    StoreOptions,
)
from segments.format.frame import FRAME_BYTES
from segments.store import DiskStore
from tests.storage_contract.conftest import SimHarness
from tests.storage_contract.every_fifth import EveryFifth
from tests.storage_contract.refusing import CODES, FAILS, Faults, RefusingFileSystem
from vdl.sim.filesystem import SimFileSystem

OPTIONS = StoreOptions(
    journal_file_bytes=64 << 10,
    journal_first_file_bytes=16 << 10,
    segment_bytes=8 << 10,
    index_segment_entries=32,
    cache_bytes_max=24 << 10,
    checkpoint_bytes=1 << 20,
    checkpoint_entries=1 << 20,
    checkpoint_interval_ms=1_000,
    scrub_bytes_per_second=4 << 20,
    place_bytes_min=3_000,
    meta_map_bytes=1 << 20,
)
PATIENCE_MS = 60_000
"""Time within which all refused work has been retried."""

NOT_FATAL = {
    "pread": "damage, which is repaired",
    "meta.get": "damage, as of a read: applied state is then had from elsewhere",
    "meta.scan": "the same",
    "pwrite": "damage: a page that cannot be read is written as a whole",
    "truncate": "damage, as of a write",
    "space": "what is wrong with a disk shows where it is read or written",
}
"""Calls that may fail for good without ending the process, and why."""
LOOKED_AT = ("open", "exists", "size")
"""Further calls that may fail where parts of the directory are examined: such a part is damaged."""


@dataclass
class Known:
    """Acknowledged state of one log."""

    entries: dict = field(default_factory=dict)
    vote: tuple = (0, 0)
    compacted: int = 0
    """Index up to which compaction may have emptied entries."""


class Engine(SimHarness):
    """A store on a disk that refuses calls, and the state that it has acknowledged."""

    def __init__(self):
        super().__init__(OPTIONS)
        self.faults = Faults()
        self.known = {}

    def _open(self):
        fs = RefusingFileSystem(self.disk, self.faults)
        return DiskStore.open(fs, "data", self.workers, self.options, random.Random(self.lives))

    # --- runs ----------------------------------------------------------------------------------
    def begin(self):
        """Start; a refused start is repeated."""
        self.faults.is_start = True
        try:
            self.start()
        except OSError:
            self.disk.cut_jobs([])
            self.faults.calm()
            self.start()
        self.faults.is_start = False
        self.check()

    def end(self):
        done = []
        self.store.close(lambda: done.append(True))
        self.wait(lambda: done)

    def wait(self, is_done):
        """Run until `is_done`; fail after a minute, or if the store reports a fatal error."""
        for _ in range(PATIENCE_MS // 500):
            self.pump()
            if is_done():
                return
            if self.fatal:
                raise Ended
            self.workers.advance(500)
            self.faults.calm_once_refused()
        raise AssertionError("it does not go on")

    def calm_down(self):
        """Stop refusing, and run until all refused work is done."""
        self.pass_on()
        self.workers.advance(15_000)
        self.faults.calm_once_refused()
        self.workers.advance(3_000)
        if self.fatal:
            raise Ended
        assert not self.store.disk_full
        assert self.store.accepts_appends

    # --- requests ------------------------------------------------------------------------------
    def make_log(self, group):
        made = []
        self.store.create_log(group, 1, on_created=made.append)
        self.wait(lambda: made)
        self.known[group] = Known()

    def log_of(self, group):
        (log,) = [log for log in self.store.logs.values() if log.group_id == group]
        return log

    def written(self):
        token = self.store.submit()
        self.wait(lambda: self.acknowledged >= token)

    def put(self, group, count, size, *, term=1, commit=True):
        log = self.log_of(group)
        first = log.last_index + 1
        made = [entry(n, size, term) for n in range(first, first + count)]
        self.store.append(log, made)
        if commit:
            self.store.set_hard_state(log, HardState(term, 2, log.last_index))
        self.written()
        self.known[group].entries |= {stored.index: bytes(stored.data) for stored in made}
        if commit:
            self.known[group].vote = (term, 2)

    def cut(self, group, size):
        """Replace the last two entries, which are uncommitted, with another leader's."""
        log = self.log_of(group)
        first = log.last_index - 1
        assert first > log.commit_index
        for index in (first, first + 1):
            del self.known[group].entries[index]
        self.store.append(log, [entry(n, size, 2) for n in (first, first + 1)])
        self.store.set_hard_state(log, HardState(2, 3, log.last_index))
        self.written()
        self.known[group].entries |= {
            n: bytes(entry(n, size, 2).data) for n in (first, first + 1)
        }  # fmt: skip
        self.known[group].vote = (2, 3)

    def flush(self):
        """Checkpoint the current state of all logs."""
        logs = list(self.store.logs.values())
        self.collect(
            *(
                MetaBatch(
                    log.log_id, log.commit_index, [(b"at", b"%d" % log.commit_index)], clear=True
                )
                for log in logs
            )
        )
        done = []
        self.store.checkpoint(lambda: done.append(True))
        self.wait(lambda: done)
        self.wait(lambda: not self.store.disk_full)

    def read_all(self, group):
        log = self.log_of(group)
        index = log.first_index
        while index <= log.last_index:
            part = self.read_from(log, index)
            assert part[0].index == index
            yield from part
            index = part[-1].index + 1

    def read_from(self, log, index):
        """Read; retry what is refused or damaged once it may be available again."""
        for _ in range(10):
            try:
                return list(log.entries(index, log.last_index + 1, 20_000))
            except NotInMemory:
                answers = []
                self.store.entries_cold(log, index, log.last_index + 1, 20_000, answers.append)
                self.wait(lambda found=answers: found)
                if not isinstance(answers[0], StorageError):
                    return answers[0]
            self.heal(log)
            self.pass_on()
        raise AssertionError(answers)

    def pass_on(self):
        """Let a second or two pass, after which refused data may be available."""
        self.workers.advance(2_000)
        self.faults.calm_once_refused()

    def load(self, log):
        try:
            return self.store.load_meta(log)
        except StorageError:
            self.pass_on()
            return self.store.load_meta(log)

    def heal(self, log):
        """Repair as the log's owner does: other replicas have copies of what is damaged."""
        for first, end in log.damaged:
            known = self.known[log.group_id].entries
            copies = [entry(n, len(known[n]), log.term(n)) for n in range(first, end)]
            done = []
            self.store.repair(log, copies, done.append)
            self.wait(lambda found=done: found)

    def trim(self, group, first):
        known = self.known[group]
        known.entries = {n: data for n, data in known.entries.items() if n >= first}
        log = self.log_of(group)
        while log.first_index < first:
            try:
                self.store.trim_log(log, first_index=first)
            except StorageError:
                self.read_from(log, first - 1)
                self.pass_on()
        self.written()

    def reset(self, group, first):
        log = self.log_of(group)
        self.known[group].entries.clear()
        self.store.reset_log(
            log, first_index=first, prev_term=1, next_offset=first - 1, state=b"state"
        )
        self.written()

    def delete(self, group):
        log = self.log_of(group)
        del self.known[group]
        self.store.delete_log(log.log_id)
        self.workers.advance(5_000)

    def compact(self, group, upto):
        log = self.log_of(group)
        self.known[group].compacted = max(self.known[group].compacted, upto)
        while log.compaction.upto < upto:
            done = []
            self.store.compact(
                log, Compaction(upto, 0), EveryFifth, pace=lambda count: 0, done=done.append
            )
            self.wait(lambda found=done: found)
            if done == [False]:
                self.heal(log)
                self.pass_on()
            self.flush()

    def repair_damage(self, group, index, *, loses_index=False, upto=0):
        """Flip a bit of an entry's frame.

        Its copy comes from another replica, which may be compacted further.
        """
        log = self.log_of(group)
        idx = replace(log.files, fs=SimFileSystem(self.disk)).idx(index)
        path = log.files.segment_path(idx.segment)
        damage(self.disk, path, idx.position + FRAME_BYTES + 1)
        if loses_index:
            self.disk.remove_name(*where(self.disk, log.files.index_path(index // 32)))
        stored = self.known[group].entries[index]
        self.known[group].compacted = max(self.known[group].compacted, upto)
        for _ in range(20):
            answers, done = [], []
            self.store.entries_cold(log, index, index + 1, 1, answers.append)
            self.wait(lambda found=answers: found)
            if not isinstance(answers[0], StorageError):
                return
            copies = [
                entry(n, 0 if upto and n % 5 else len(stored), log.term(n))
                for first, end in log.damaged
                for n in range(first, end)
            ]
            self.store.repair(log, copies, done.append, compacted_upto=upto)
            self.wait(lambda found=done: found)
            self.pass_on()
            self.flush()
        raise AssertionError(answers)

    # --- invariants ----------------------------------------------------------------------------
    def check(self):
        for group, known in self.known.items():
            log = self.log_of(group)
            assert not log.lost, group
            assert (log.hard_state.term, log.hard_state.vote) >= known.vote
            found = {stored.index: bytes(stored.data) for stored in self.read_all(group)}
            for index, data in known.entries.items():
                may_be_less = index <= known.compacted and index % 5
                assert found[index] == data or (may_be_less and found[index] == b""), index
            applied, items = self.load(log)
            if applied and not log.installed_state:
                assert dict(items) == {b"at": b"%d" % applied}


class Ended(Exception):
    """Raised when the store has reported that the disk can no longer be trusted."""


def entry(index, size, term=1):
    return StoredEntry(term, index, 0, bytes([index & 0xFF]) * size, index - 1, 1, index)


def where(disk, path):
    directory = disk.root
    *parts, name = path.split("/")
    for part in parts:
        directory = directory.entries[part]
    return directory, name


def damage(disk, path, position):
    directory, name = where(disk, path)
    node = directory.entries[name]
    node.data[position] ^= 1
    node.durable[position] ^= 1


def fill(engine, *groups):
    for group in groups:
        engine.make_log(group)
    for _ in range(5):
        for group in groups:
            engine.put(group, 12, 300)
        engine.flush()


def appends(engine):
    """Begin and end journal files, segments and index files."""
    engine.begin()
    fill(engine, 1, 2)
    engine.put(1, 3, 300, commit=False)
    engine.cut(1, 300)
    for _ in range(4):
        engine.put(2, 20, 800)
    engine.flush()
    engine.calm_down()


def large_appends(engine):
    engine.begin()
    fill(engine, 1)
    for size in (1_000, 900, 1_100, 4_000):
        engine.put(1, 4, size)
        engine.flush()
    engine.put(1, 1, 100)
    engine.put(1, 4, 1_000, commit=False)
    engine.cut(1, 2_000)
    engine.put(1, 12, 300, term=2)
    engine.flush()
    engine.calm_down()
    engine.crash()
    engine.begin()


def compactions(engine):
    engine.begin()
    fill(engine, 1)
    engine.compact(1, 24)
    engine.calm_down()
    engine.repair_damage(1, 34, upto=50)
    engine.compact(1, 46)
    engine.calm_down()
    engine.trim(1, 30)
    engine.calm_down()


def repairs(engine):
    engine.begin()
    fill(engine, 1)
    engine.repair_damage(1, 9)
    engine.repair_damage(1, 12, loses_index=True)
    engine.calm_down()


def removals(engine):
    engine.begin()
    fill(engine, 1, 2, 3)
    engine.trim(1, 20)
    engine.trim(2, engine.log_of(2).commit_index + 1)
    engine.put(2, 20, 300)
    engine.flush()
    engine.reset(2, 200)
    engine.put(2, 20, 300)
    engine.flush()
    engine.delete(3)
    engine.calm_down()


def full_disk(engine):
    """Use up the reserve, and have it restored."""
    engine.begin()
    fill(engine, 1)
    engine.disk.room = 0
    for _ in range(30):
        engine.put(1, 1, 500)
    engine.workers.advance(3_000)
    engine.disk.room = None
    engine.calm_down()


def starts(engine):
    engine.begin()
    fill(engine, 1, 2)
    engine.put(1, 12, 300, commit=False)
    engine.crash()
    engine.begin()
    engine.put(2, 30, 300)
    engine.power_cut()
    engine.begin()
    engine.put(2, 30, 300)
    engine.end()
    engine.begin()
    engine.calm_down()


CHAPTERS = (appends, large_appends, compactions, repairs, removals, full_disk, starts)
"""Chapters of a history through every path of the engine that touches the disk."""


def live_on(engine):
    """Check that the store works after a refusal."""
    engine.calm_down()
    for group in sorted(engine.known):
        engine.put(group, 20, 300, term=2)
    engine.flush()
    engine.check()
    engine.power_cut()
    engine.begin()


class Place(NamedTuple):
    """Place where a call is made: the first such call is number `at` of a chapter."""

    name: str
    lines: tuple
    chapter: Callable
    at: int
    is_start: bool


def recorded():
    """Return every place of the engine that makes a call, once."""
    found = {}
    for chapter in CHAPTERS:
        engine = Engine()
        chapter(engine)
        live_on(engine)
        engine.crash()
        for (name, lines), (at, is_start) in engine.faults.places.items():
            found.setdefault((name, lines), Place(name, lines, chapter, at, is_start))
    return list(found.values())


@pytest.fixture(scope="module")
def places():
    return recorded()


def refuse(place, code, *, lasts, may_end):
    """Run a history in which that call is refused.

    If it `may_end` the process, the next one finds what was acknowledged. Return True if it ended.
    """
    engine = Engine()
    engine.faults.arm(place.at, code, lasts=lasts)
    try:
        place.chapter(engine)
        live_on(engine)
    except Ended:
        assert may_end, engine.fatal
    except OSError as error:  # of a look-up on the loop, which ends with it
        if not may_end:
            raise
        engine.fatal.append(error)
    has_ended, engine.fatal = bool(engine.fatal), []
    if has_ended:
        engine.crash()
        engine.disk.room = None
        engine.begin()
        live_on(engine)
    assert engine.fatal == []
    engine.crash()
    return has_ended, bool(engine.faults.refused)


@pytest.mark.takes_turns(parts=2)
@pytest.mark.parametrize("lasts", [False, True])
@pytest.mark.parametrize("name", CODES)
def test_refused_call_ends_nobody_and_loses_nothing(places, name, lasts):
    """Each call is refused once with each error, or, for a while, with all of its kind."""
    for n, place in enumerate(place for place in places if place.name == name):
        passing = [code for code in CODES[name] if code != errno.ENOSPC]
        codes = {passing[n % len(passing)], *set(CODES[name]) - set(passing)}
        for code in sorted(codes):
            with annotated(place, code):
                _, was_refused = refuse(place, code, lasts=lasts, may_end=False)
                assert was_refused


@pytest.mark.parametrize("name", FAILS)
def test_call_that_fails_for_good_ends_the_process_and_loses_nothing(places, name):
    for place in places:
        if place.name == name:
            with annotated(place, errno.EIO):
                has_ended, was_refused = refuse(place, errno.EIO, lasts=False, may_end=True)
                assert was_refused
                is_look = any(file == "recovery/parts.py" for file, _ in place.lines)
                is_damage = name in NOT_FATAL or (is_look and name in LOOKED_AT)
                assert has_ended or place.is_start or is_damage, "it goes on"


@contextmanager
def annotated(place, code):
    """Add the refused place to a failure's message."""
    try:
        yield
    except BaseException as error:
        lines = " < ".join(f"{file}:{line}" for file, line in place.lines)
        code_name, chapter = errno.errorcode[code], place.chapter.__name__
        error.add_note(f"{place.name} number {place.at} of {chapter}, {code_name}: {lines}")
        raise
