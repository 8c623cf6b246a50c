"""Large payloads that are written to their places before their entries are appended.

Blocks of other logs go on meanwhile. An append never depends on it: its payload is written again
unless the same memory was made durable in the same place.
"""

import itertools
from collections import deque
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest
from crc32c import crc32c

from segments.api import HardState, StoredEntry
from segments.checkpoint import flusher
from segments.io.fs import SyncFailed
from segments.journal import ahead
from segments.log import placement
from tests.storage_contract.conftest import SMALL, SimHarness, Writer
from tests.storage_contract.test_placed_lives import Lives

LARGE = 6_000
SIZE = 60_000
OPTIONS = replace(
    SMALL, place_bytes_min=400, large_bytes_min=LARGE,
    segment_bytes=400 << 10, cache_bytes_max=64 << 10,
)  # fmt: skip


@pytest.fixture
def engine():
    """A store with a log that has room for payloads, and another log."""
    made = SimHarness(OPTIONS)
    made.start()
    log = made.new_log()
    made.new_log(group_id=10)
    made.store.append(log, Writer(log).entries(1, size=SIZE))
    settle(made)
    assert log.placement.rooms
    return made


def settle(engine):
    for log in engine.store.logs.values():
        engine.store.set_hard_state(log, HardState(9, 0, log.last_index))
    engine.submit()
    engine.checkpoint()
    engine.submit()


def begin(engine, entry=None, is_wanted=lambda: True):
    """Begin to write the next entry ahead; return it and the list that tells when that is done."""
    if entry is None:
        (entry,) = Writer(engine.log).entries(1, size=SIZE)
    ended = []
    engine.store.write_ahead(
        engine.log, entry.data, timestamp=entry.timestamp, is_wanted=is_wanted,
        done=lambda: ended.append(True),
    )  # fmt: skip
    return entry, ended


def other_goes_on(engine):
    """Append to the other log; return True if that is acknowledged without a payload's step."""
    other = engine.store.logs[max(engine.store.logs)]
    engine.store.append(other, Writer(other).entries(1))
    token = engine.store.submit()
    while engine.workers.journal_jobs:
        engine.workers.run_one(engine.workers.journal_jobs)
    return engine.acknowledged >= token


def append(engine, *entries):
    """Append and commit; return the bytes that were written beside the block for it."""
    before = engine.store.stats()["payload_bytes"]
    engine.store.append(engine.log, entries)
    engine.submit()
    return engine.store.stats()["payload_bytes"] - before


def check_after_power_cut(engine, entry):
    """Check that the last entry is there after a power cut, before and behind a flush."""
    data, index = bytes(entry.data), entry.index
    for _ in range(2):
        engine.power_cut()
        engine.start()
        assert engine.log.last_index == index
        assert engine.all_entries(engine.log)[-1][2] == data
        settle(engine)


def test_blocks_of_other_logs_go_on_beside_a_payload(engine):
    """Each step is a job of its own, and none of them holds a block up. The rest is small."""
    assert engine.store.ahead_work == 0
    entry, ended = begin(engine)
    assert engine.store.file_work == 0
    steps = []
    while engine.workers.payload_jobs:
        assert other_goes_on(engine)
        assert not ended
        steps.append(engine.store.ahead_work)
        engine.workers.run_one(engine.workers.payload_jobs)
    assert len(set(steps)) == len(steps) > 4
    assert ended == [True]
    assert engine.store.ahead_work == 0
    assert append(engine, entry) < 8192
    assert engine.log.placement.ahead is None
    check_after_power_cut(engine, entry)


def test_checksum_is_computed_where_the_payload_is_written(engine, monkeypatch):
    """Over 100 MB it would hold up the loop."""
    summed = []
    monkeypatch.setattr(
        placement, "crc32c", lambda data, before: summed.append(len(data)) or crc32c(data, before)
    )
    entry, _ = begin(engine)
    engine.pump()
    append(engine, entry)
    assert len(summed) == 1
    assert summed[0] < 8192
    check_after_power_cut(engine, entry)


def test_medium_is_left_to_others_after_each_step(engine, monkeypatch):
    """For as long as the step took, up to a bound: a slow medium must not take twice as long."""
    paused, workers = [], engine.store.workers
    engine.store._ahead._workers = SimpleNamespace(
        payload=workers.payload,
        call_later=lambda ms, fn: paused.append(ms) or workers.call_later(ms, fn),
    )
    for took_ms, pause_ms in ((3, 3), (500, ahead.PAUSE_MS_MAX)):
        times = itertools.count(step=took_ms * 1_000_000)
        monkeypatch.setattr(engine.store._ahead, "_now_ns", partial(next, times))
        entry, ended = begin(engine)
        engine.pump()
        assert not ended
        engine.workers.advance(300)
        assert ended
        assert paused.count(pause_ms) > 10
        append(engine, entry)
        settle(engine)
    check_after_power_cut(engine, entry)


def test_small_entries_before_and_behind_go_along(engine):
    """The first were appended before; the others come in the same append."""
    engine.store.append(engine.log, Writer(engine.log).entries(2, size=100))
    entry, _ = begin(engine)
    engine.pump()
    tail = Writer(engine.log).entries(3, size=500)[1:]
    tail[0].index, tail[1].index = entry.index + 1, entry.index + 2
    tail[0].base_offset = entry.base_offset + entry.records
    tail[1].base_offset = tail[0].base_offset + tail[0].records
    assert append(engine, entry, *tail) < 9_500
    check_after_power_cut(engine, tail[1])
    assert engine.all_entries(engine.log)[-3][2] == bytes(entry.data)


def test_payload_is_written_again_behind_another_entry(engine):
    """It goes to another place, although both come in one append."""
    entry, _ = begin(engine)
    engine.pump()
    first, second = Writer(engine.log).entries(2, size=SIZE)
    moved = replace(entry, index=second.index, base_offset=second.base_offset)
    assert append(engine, replace(first, data=b"x"), moved) > SIZE
    check_after_power_cut(engine, moved)


def test_another_payload_in_the_same_place_is_written(engine):
    """Its length is the same, its bytes are not."""
    entry, _ = begin(engine)
    engine.pump()
    other = replace(entry, data=b"y" * SIZE)
    assert append(engine, other) > SIZE
    check_after_power_cut(engine, other)


def test_payload_is_written_again_where_room_was_given_back(engine):
    """The file was cut behind the last entry, and may have room again."""
    entry, _ = begin(engine)
    engine.pump()
    log, store = engine.log, engine.store
    store._checkpoints.rooms.give_up_all()
    engine.workers.advance(1_000)
    hint = log.placement.ahead
    append(engine, *Writer(log).entries(1, size=10))
    settle(engine)
    (place,) = Writer(log).entries(1, size=SIZE)
    append(engine, place)  # has no room, so the next flush makes some
    settle(engine)
    assert log.placement.rooms
    (entry,) = Writer(log).entries(1, size=SIZE)
    # As if it had been written where this entry goes, when the file had other room.
    at, layout = log.placement, log._layout([entry], 1, OPTIONS and store._limits)
    hint.data, hint.position = entry.data, layout.position - SIZE
    hint.view = memoryview(entry.data).toreadonly()
    hint.rest = replace(hint.rest, position=hint.position + 4096)
    hint.crc = crc32c(entry.data[4096:])
    at.ahead = hint
    assert append(engine, entry) > SIZE
    check_after_power_cut(engine, entry)


def test_flush_and_appends_keep_away_from_the_payload(engine):
    """They would write to the same place. Earlier entries are flushed afterwards."""
    log = engine.log
    engine.store.append(log, Writer(log).entries(3, size=100))
    flushed = log.flushed_index
    _, ended = begin(engine)
    engine.store.set_hard_state(log, HardState(9, 0, log.last_index))
    engine.store.submit()
    while engine.workers.journal_jobs:
        engine.workers.run_one(engine.workers.journal_jobs)
    engine.store.checkpoint()
    while engine.workers.pool_jobs:
        engine.workers.run_one(engine.workers.pool_jobs)
    assert log.flushed_index == flushed
    steps = len(engine.workers.payload_jobs)
    (other,) = Writer(log).entries(1, size=LARGE + 10)
    engine.store.append(log, [other])
    engine.store.submit()
    while engine.workers.journal_jobs:
        engine.workers.run_one(engine.workers.journal_jobs)
    assert len(engine.workers.payload_jobs) == steps
    assert log.last_index == other.index
    engine.pump()
    assert ended == [True]
    check_after_power_cut(engine, other)
    assert engine.log.flushed_index == other.index


def test_replaced_entries_leave_nothing_of_a_payload(engine):
    """A new leader's entries go to the place of truncated ones, and behind them."""
    log = engine.log
    (placed,) = Writer(log).entries(1, size=SIZE)
    append(engine, placed)
    begin(engine)
    while not log.placement.ahead.is_durable:
        engine.workers.run_one(engine.workers.payload_jobs)
    instead = replace(placed, term=2, data=b"z" * SIZE)
    assert append(engine, instead) == 0  # through the journal
    settle(engine)
    (last,) = Writer(log).entries(1, size=LARGE, term=2)
    engine.store.append(log, [last])
    settle(engine)
    assert [data for _, _, data, *_ in engine.all_entries(log)[-2:-1]] == [instead.data]
    check_after_power_cut(engine, last)


def test_reset_or_deleted_log_takes_no_payload(engine):
    """The memory is given back when the steps under way have ended."""
    log, store = engine.log, engine.store
    _, ended = begin(engine)
    store.reset_log(log, first_index=9, prev_term=1, next_offset=9)
    engine.pump()
    engine.submit()
    assert (ended, store.ahead_work) == ([True], 0)
    store.append(log, Writer(log).entries(1, size=SIZE))
    settle(engine)
    _, ended = begin(engine)
    store.delete_log(log.log_id)
    engine.pump()
    assert (ended, store.ahead_work) == ([True], 0)
    assert other_goes_on(engine)


@pytest.mark.parametrize("is_flushed", [False, True])
@pytest.mark.parametrize("is_new", [False, True])
def test_first_large_entry_has_room_made_for_it(engine, is_new, is_flushed):
    """Otherwise all logs would wait for it. Also if everything before it is in segments."""
    store = engine.store
    if is_new:
        log = engine.new_log(group_id=11)
    else:
        log = engine.log
        store._checkpoints.rooms.give_up_all()
    store.append(log, Writer(log).entries(2, size=100))
    store.set_hard_state(log, HardState(9, 0, log.last_index))
    engine.submit()
    if is_flushed:
        log.rewritten = True
        engine.checkpoint()
        assert log.flushed_index == log.last_index
    engine.submit()
    assert not log.placement.rooms
    (entry,) = Writer(log).entries(1, size=SIZE)
    ended = []
    store.write_ahead(
        log, entry.data, timestamp=entry.timestamp, is_wanted=lambda: True,
        done=lambda: ended.append(True),
    )  # fmt: skip
    engine.workers.advance(500)
    assert ended == [True]
    before = store.stats()["payload_bytes"]
    store.append(log, [entry])
    engine.submit()
    assert 0 < store.stats()["payload_bytes"] - before < 8192
    group_id = log.group_id
    engine.power_cut()
    engine.start()
    (log,) = [one for one in engine.store.logs.values() if one.group_id == group_id]
    assert engine.all_entries(log)[-1][2] == bytes(entry.data)


@pytest.mark.parametrize("why", ["scarce", "full"])
def test_nothing_is_written_ahead_where_no_room_can_be_made(engine, why, monkeypatch):
    """The owner goes on soon, and appends as usual."""
    log, store = engine.log, engine.store
    store._checkpoints.rooms.give_up_all()
    monkeypatch.setattr(flusher, "SPACE_TIMES", 1 << 40)
    if why == "full":
        monkeypatch.setattr(type(store), "disk_full", True)
    entry, ended = begin(engine)
    assert not engine.workers.payload_jobs
    engine.workers.advance(300)
    assert ended == [True]
    monkeypatch.undo()
    append(engine, entry)
    settle(engine)
    assert log.placement.rooms


def without_room(engine):
    """Return a log whose entries are in the journal, and that has no room."""
    log = engine.new_log(group_id=11)
    engine.store.append(log, Writer(log).entries(2, size=100))
    engine.store.set_hard_state(log, HardState(9, 0, log.last_index))
    engine.submit()
    assert not log.placement.rooms
    return log


def write_ahead(engine, log, is_wanted=lambda: True):
    """Begin to write the next entry ahead; return it and the list that tells when that is done."""
    (entry,) = Writer(log).entries(1, size=SIZE)
    ended = []
    engine.store.write_ahead(
        log, entry.data, timestamp=entry.timestamp, is_wanted=is_wanted,
        done=lambda: ended.append(True),
    )  # fmt: skip
    return entry, ended


def press(engine):
    """Append so much to another log that a checkpoint begins, also right after another one."""
    store, log = engine.store, engine.log
    for _ in range(4):
        store.append(log, Writer(log).entries(30, size=1_200))
        store.set_hard_state(log, HardState(9, 0, log.last_index))
        store.submit()
        workers = engine.workers
        while jobs := workers.payload_jobs or workers.journal_jobs:
            workers.run_one(jobs)
    assert store._checkpoints.is_running


def advance_beside_checkpoint(engine, ms):
    """Advance time while the checkpoint's job does not end."""
    workers = engine.workers
    held, workers.pool_jobs = workers.pool_jobs, deque()
    workers.advance(ms)
    workers.pool_jobs.extendleft(reversed(held))


def test_next_checkpoint_makes_room_while_one_runs(engine):
    """Under pressure one follows the other, and none would begin for the room alone."""
    log, store, workers = without_room(engine), engine.store, engine.workers
    press(engine)
    entry, ended = write_ahead(engine, log)
    for _ in range(2):
        assert not ended
        advance_beside_checkpoint(engine, 100)
        workers.run_one(workers.pool_jobs)
        press(engine)
    advance_beside_checkpoint(engine, 100)
    assert ended == [True]
    assert log.placement.ahead.is_durable
    store.append(log, [entry])
    settle(engine)
    engine.power_cut()
    engine.start()
    (log,) = [one for one in engine.store.logs.values() if one.group_id == 11]
    assert engine.all_entries(log)[-1][2] == bytes(entry.data)


@pytest.mark.parametrize("why", ["unwanted", "deleted", "reset"])
def test_no_checkpoint_makes_room_that_is_not_wanted_any_more(engine, why):
    """The payload ends, and its log is an ordinary one for the next checkpoint."""
    log, store = without_room(engine), engine.store
    press(engine)
    is_wanted = [True]
    _, ended = write_ahead(engine, log, is_wanted=lambda: is_wanted[0])
    assert store._checkpoints.awaits_room(log)
    if why == "unwanted":
        is_wanted[0] = False
        advance_beside_checkpoint(engine, 100)
        assert ended == [True]
    elif why == "deleted":
        store.delete_log(log.log_id)
    else:
        store.reset_log(log, first_index=9, prev_term=1, next_offset=9)
    engine.pump()
    engine.submit()
    engine.checkpoint()
    assert not log.placement.rooms
    assert not store._checkpoints.awaits_room(log)
    engine.workers.advance(200)
    assert ended == [True]
    assert other_goes_on(engine)


def test_first_entry_after_an_installed_state_waits_for_no_room(engine):
    """Its log has no segment, and nothing that a flush could begin one with."""
    log, store = without_room(engine), engine.store
    store.reset_log(log, first_index=9, prev_term=1, next_offset=9)
    engine.submit()
    engine.pump()
    entry, ended = write_ahead(engine, log)
    engine.workers.advance(0)
    assert ended == [True]
    store.append(log, [entry])
    settle(engine)
    assert log.placement.rooms


def test_payload_waits_for_room_that_a_flush_makes(engine):
    """A large entry of its log is being flushed. Else, or if it takes long, it is done without."""
    log, store = engine.log, engine.store
    store._checkpoints.rooms.give_up_all()
    (first,) = Writer(log).entries(1, size=SIZE)
    append(engine, first)
    entry, ended = begin(engine)
    engine.workers.advance(300)
    assert not ended
    store.set_hard_state(log, HardState(9, 0, log.last_index))
    engine.submit()
    engine.workers.advance(1_000)
    assert (ended, store.ahead_work) == ([True], 0)
    assert append(engine, entry) < 8192
    settle(engine)
    store._checkpoints.rooms.give_up_all()
    append(engine, *Writer(log).entries(1, size=SIZE))
    entry, ended = begin(engine)
    engine.workers.advance(4_800)
    assert not ended
    engine.workers.advance(400)
    assert ended == [True]
    append(engine, entry)
    check_after_power_cut(engine, entry)


def test_refused_step_ends_it_and_a_failed_sync_ends_the_store(engine, monkeypatch):
    """Blocks go on while memory or descriptors are short. A failed sync proves nothing any more."""
    entry, ended = begin(engine)
    file = engine.log.placement.ahead.rest.file
    pwrite, refusals = type(file).pwrite, [OSError(12, "no memory")]

    def refuse(*arguments, **options):
        if refusals:
            raise refusals.pop()
        return pwrite(*arguments, **options)

    monkeypatch.setattr(type(file), "pwrite", refuse)
    engine.workers.run_one(engine.workers.payload_jobs)
    assert ended == [True]
    assert append(engine, entry) > SIZE
    settle(engine)
    _, ended = begin(engine)

    def fail(_):
        raise SyncFailed(OSError(5, "no disk"))

    monkeypatch.setattr(type(file), "sync", fail)
    engine.pump()
    assert ended == []
    assert len(engine.fatal) == 1
    engine.fatal.clear()


def test_store_closes_beside_a_payload(engine):
    """Nothing of it is there afterwards."""
    entry, ended = begin(engine)
    store = engine.store
    engine.close()
    assert store.ahead_work == 0
    engine.start()
    assert ended == []
    assert engine.log.last_index == entry.index - 1
    settle(engine)


def test_payload_that_is_no_longer_wanted_ends(engine):
    """Before its next step, and while it waits for room."""
    store, log = engine.store, engine.log
    is_wanted = [True]
    entry, ended = begin(engine, is_wanted=lambda: is_wanted[0])
    engine.workers.run_one(engine.workers.payload_jobs)
    is_wanted[0] = False
    engine.workers.run_one(engine.workers.payload_jobs)
    assert (ended, log.placement.ahead) == ([True], None)
    assert not engine.workers.payload_jobs
    assert append(engine, entry) > SIZE
    store._checkpoints.rooms.give_up_all()
    append(engine, *Writer(log).entries(1, size=SIZE))
    is_wanted[0] = True
    _, ended = begin(engine, is_wanted=lambda: is_wanted[0])
    engine.workers.advance(300)
    assert not ended
    is_wanted[0] = False
    engine.workers.advance(100)
    assert ended == [True]


def test_payload_that_begins_when_another_ends_is_written_once(engine):
    """Each step is submitted once, so the last one is durable when that is said."""
    store, log = engine.store, engine.log
    entry, again = begin(engine)
    other, ended = Writer(log).entries(1, size=SIZE)[0], []

    def begin_next():
        log.placement.ahead = None
        store.write_ahead(
            log, other.data, timestamp=0, is_wanted=lambda: True, done=lambda: ended.append(True)
        )

    queue = store._ahead._queue
    queue[0] = (*queue[0][:-1], lambda _: begin_next())
    while queue[0][1].buffers[0].obj is entry.data:
        assert len(engine.workers.payload_jobs) == 1
        engine.workers.run_one(engine.workers.payload_jobs)
    assert len(engine.workers.payload_jobs) == 1
    steps = len(queue[0][0])
    while not ended:
        engine.workers.run_one(engine.workers.payload_jobs)
        steps -= 1
    assert (steps, again) == (0, [])


def test_unused_payload_is_forgotten(engine):
    """Its memory is not kept longer than its owner needs to append it."""
    begin(engine)
    engine.pump()
    assert engine.log.placement.ahead.is_durable
    engine.workers.advance(2_000)
    assert engine.log.placement.ahead is None


def test_room_is_kept_for_some_rounds_after_a_large_entry(engine):
    """Without room it would hold up all logs. Small appends to the log do not take it away."""
    log = engine.log
    entry, _ = begin(engine)
    engine.pump()
    append(engine, entry)
    for _ in range(2):
        append(engine, *Writer(log).entries(2, size=100))
        settle(engine)
        assert log.placement.rooms
    rounds = 0
    while log.placement.rooms:
        engine.workers.advance(SMALL.checkpoint_interval_ms)
        rounds += 1
        assert rounds < 20
    assert rounds > 5


class AheadLives(Lives):
    """Logs whose large entries may be written ahead, at any time between other operations."""

    used = 0

    def drawn_options(self):
        return {
            "large_bytes_min": 5_000, "segment_bytes": self.rng.choice((20_000, 60_000)),
            "cache_bytes_max": 64 << 10,
        }  # fmt: skip

    def begin(self):
        self.ahead = {}
        super().begin()

    def step(self):
        checkpoints = self.engine.store._checkpoints
        if self.rng.random() < 0.03 and not checkpoints.is_running:
            checkpoints.rooms.give_up_all()
        super().step()

    def append(self, log, first, count, size):
        """Append; or write the next entry ahead, and append it some time afterwards."""
        if size < 300 or self.rng.random() < 0.3:
            super().append(log, first, count, size)
            return
        store = self.engine.store
        if log.log_id not in self.ahead:
            self.count += 1
            data = self.count.to_bytes(8, "big") * self.rng.randint(5_000 // 8, 2_000)
            self.ahead[log.log_id] = data
            is_wanted = self.rng.random() < 0.9
            store.write_ahead(
                log, data, timestamp=log.last_index, done=lambda: None,
                is_wanted=lambda: is_wanted or self.rng.random() < 0.7,
            )  # fmt: skip
            return
        hint = log.placement.ahead
        if hint is not None and not hint.is_durable and self.rng.random() < 0.8:
            return
        data, index = self.ahead.pop(log.log_id), log.last_index + 1
        entry = StoredEntry(self.term, index, 0, data, log.offset_after(index - 1), 1, index)
        self.staged[log.log_id][index] = entry.term, data
        token = store._queue.batch.token
        store.append(log, [entry])
        self.used += any(0 < payload.bytes < 5_000 for payload in store._queue.batch.payloads)
        self.states.append((token, self.copy()))


def test_lives_of_logs_with_payloads_written_ahead():
    """A start finds exactly what was acknowledged, with payloads cut anywhere."""
    used = 0
    for seed in range(48):
        lives = AheadLives(seed)
        lives.run(80)
        while lives.engine.workers.payload_jobs:
            lives.engine.pump()
        lives.settle()
        lives.engine.power_cut()
        lives.engine.start()
        lives.settle()
        used += lives.used
    assert used > 60
