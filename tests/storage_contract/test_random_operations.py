"""The engine beside its reference model: after every operation both return the same.

Hypothesis draws the operations and shrinks differences. Sizes are small, so that files roll, are
released and recycled, chunks are evicted and indexes span files within a few operations.
"""

import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from segments.api import HardState, MetaBatch, StorageError, StoredEntry

counts = st.integers(1, 12)
sizes = st.sampled_from([0, 1, 40, 300, 1500])
fractions = st.integers(0, 100)

operations = st.one_of(
    st.tuples(st.just("append"), counts, sizes, st.integers(0, 3)),
    st.tuples(st.just("append"), counts, sizes, st.integers(0, 3)),
    st.tuples(st.just("replace"), counts, sizes, fractions),
    st.tuples(st.just("commit"), fractions),
    st.tuples(st.just("commit"), fractions),
    st.tuples(st.just("vote"), st.integers(0, 5)),
    st.tuples(st.just("submit")),
    st.tuples(st.just("write")),
    st.tuples(st.just("write")),
    st.tuples(st.just("checkpoint"), fractions),
    st.tuples(st.just("idle")),
    st.tuples(st.just("reset"), st.integers(1, 20), st.sampled_from([0, 30, 9_000])),
    st.tuples(st.just("cover"), st.booleans()),
    st.tuples(st.just("trim"), fractions),
    st.tuples(st.just("recreate")),
    st.tuples(st.just("other"), st.integers(0, 2)),
    st.tuples(st.just("read"), fractions, st.sampled_from([0, 500, 5000])),
    st.tuples(st.just("crash")),
    st.tuples(st.just("lose_completion")),
)


class Pair:
    """One log (of three) on the engine and on the model, driven by the same operations."""

    def __init__(self, engine, model):
        self.sides = (engine, model)
        self.current = 0
        self.next_group = 9
        for _ in range(3):
            self.create()
        self.term = 1

    def create(self):
        for side in self.sides:
            side.new_log(self.next_group)
        self.next_group += 1

    def logs(self):
        return [(side, list(side.store.logs.values())[self.current]) for side in self.sides]

    @property
    def model_log(self):
        return self.logs()[1][1]

    def run(self, operation):
        getattr(self, "do_" + operation[0])(*operation[1:])

    # --- operations -----------------------------------------------------------------------------
    def append_at(self, first, count, size, records):
        for side, log in self.logs():
            offset = log.offset_after(first - 1)
            entries = []
            for index in range(first, first + count):
                data = bytes([index & 0xFF, self.term & 0xFF]) * (size // 2)
                entries.append(
                    StoredEntry(
                        self.term, index, 0 if records else 3, data, offset, records, index % 7
                    )
                )
                offset += records
            side.store.append(log, entries)

    def do_append(self, count, size, records):
        self.append_at(self.model_log.last_index + 1, count, size, records)

    def do_replace(self, count, size, fraction):
        log = self.model_log
        uncommitted = log.last_index - log.commit_index
        first = log.commit_index + 1 + uncommitted * fraction // 100
        self.term += 1
        self.append_at(first, count, size, 1)

    def set_state(self, commit, vote=None):
        for side, log in self.logs():
            old = log.hard_state
            vote_now = old.vote if vote is None else vote
            term = max(self.term, old.term)
            side.store.set_hard_state(log, HardState(term, vote_now, max(commit, old.commit)))
        self.term = max(self.term, self.model_log.hard_state.term)

    def do_commit(self, fraction):
        log = self.model_log
        self.set_state(log.commit_index + (log.last_index - log.commit_index) * fraction // 100)

    def do_vote(self, vote):
        self.term += 1
        self.set_state(0, vote)

    def do_submit(self):
        for side in self.sides:
            side.store.submit()

    def do_write(self):
        for side in self.sides:
            side.submit()

    def do_checkpoint(self, fraction):
        for side in self.sides:
            batches = []
            for log in side.store.logs.values():
                reach = log.commit_index - log.applied_index
                applied = log.applied_index + reach * fraction // 100
                if applied > log.applied_index:
                    items = [(bytes([applied & 3]), str(applied).encode()), (b"\x07", None)]
                    batches.append(MetaBatch(log.log_id, applied, items))
            # State machines apply only entries that are durable here.
            side.submit()
            side.collect(*batches)
            side.checkpoint()

    def do_idle(self):
        for side in self.sides:
            side.store.submit(urgent=False)
            side.workers.advance(200)

    def do_reset(self, ahead, size):
        first = self.model_log.last_index + ahead
        state = bytes([first & 0xFF, self.term & 0xFF]) * (size // 2)
        for side, log in self.logs():
            offset = log.next_offset + 3
            side.store.reset_log(
                log, first_index=first, prev_term=self.term, next_offset=offset, state=state
            )

    def do_cover(self, is_durable):
        """Checkpoint everything; a log whose reset is not durable yet follows in the next one."""
        for side in self.sides:
            if is_durable:
                side.submit()
            side.collect(*(
                MetaBatch(log.log_id, log.commit_index, [(b"all", b"of it")], clear=True)
                for log in side.store.logs.values()
                if is_durable or log.installed_state
            ))  # fmt: skip
            side.store.checkpoint()
            side.pump()
            side.submit()
            side.checkpoint()

    def do_trim(self, fraction):
        log = self.model_log
        count = log.commit_index + 1 - log.first_index
        if log.installed_state:
            return
        for side, other in self.logs():
            side.store.trim_log(other, first_index=log.first_index + count * fraction // 100)

    def do_recreate(self):
        for side, log in self.logs():
            side.submit()
            side.store.delete_log(log.log_id)
        self.create()

    def do_other(self, which):
        self.current = which

    def do_read(self, fraction, bytes_max):
        results = []
        for side, log in self.logs():
            side.pump()
            span = log.next_offset - log.log_start_offset
            offset = log.log_start_offset + span * fraction // 100
            try:
                found = side.read(log, offset, log.commit_index, bytes_max)
                results.append(
                    (
                        [bytes(b) for b in found.buffers],
                        found.bytes,
                        found.first_offset,
                        found.end_offset,
                    )
                )
            except StorageError as error:
                results.append(type(error))
        engine, model = results
        if isinstance(engine, tuple) and isinstance(model, tuple) and engine != model:
            # A read from disk may end where segments do; its result must be a prefix.
            assert engine[0]
            assert engine[0] == model[0][: len(engine[0])]
            assert engine[2] == model[2]
        else:
            assert engine == model

    def do_crash(self):
        for side in self.sides:
            side.crash()
            side.start()

    def do_lose_completion(self):
        """Let a block reach the disk, and the process die before it is notified."""
        for side in self.sides:
            side.submit()
            side.workers.advance(400)
        self.do_append(2, 40, 1)
        for side in self.sides:
            side.store.submit()
            for jobs in (side.workers.journal_jobs, side.workers.payload_jobs):
                if jobs:
                    job, _ = jobs.popleft()
                    job()
        self.do_crash()

    # --- comparison -----------------------------------------------------------------------------
    def compare(self):
        engine, model = self.sides
        assert list(engine.store.logs) == list(model.store.logs)
        assert engine.fatal == []
        for log_id, mine in engine.store.logs.items():
            other = model.store.logs[log_id]
            assert not mine.lost
            assert summary(mine) == summary(other)

    def compare_contents(self):
        engine, model = self.sides
        for log_id, mine in engine.store.logs.items():
            other = model.store.logs[log_id]
            assert engine.all_entries(mine) == model.all_entries(other)
            applied, items = engine.store.load_meta(mine)
            assert (applied, items) == model.store.load_meta(other)
            for offset in range(mine.log_start_offset, mine.next_offset, 5):
                found = [
                    side.cold(side.store.index_of_offset, log, offset)
                    for side, log in ((engine, mine), (model, other))
                ]
                assert found[0] == found[1]
            for timestamp in (0, 3, 6, 9):
                found = [
                    side.cold(side.store.index_of_timestamp, log, timestamp, log.commit_index)
                    for side, log in ((engine, mine), (model, other))
                ]
                assert found[0] == found[1]


def summary(log):
    return (
        log.group_id, log.first_index, log.last_index, log.hard_state, log.applied_index,
        log.log_start_offset, log.next_offset, log.installed_state,
        [log.term(n) for n in range(log.first_index - 1, log.last_index + 1)],
    )  # fmt: skip


@pytest.mark.parametrize("backend", ["disk", "sim"])
@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(plan=st.lists(operations, max_size=50), kind=st.sampled_from(["small", "odd", "placing"]))
def test_engine_under_random_operations_equals_the_model(
    make_harness, odd_options, placing_options, backend, plan, kind
):
    """Append, truncate, trim, reset, checkpoint, roll, crash, reopen: exactly the model's state."""
    with tempfile.TemporaryDirectory() as directory:
        options = {"small": [], "odd": [odd_options], "placing": [placing_options]}[kind]
        engine = make_harness(backend, Path(directory), *options)
        pair = Pair(engine, make_harness("memory", None))
        try:
            for operation in plan:
                pair.run(operation)
                pair.compare()
            pair.do_write()
            pair.compare_contents()
            pair.do_crash()
            pair.compare()
            pair.compare_contents()
        finally:
            engine.crash()


@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(plan=st.lists(operations, max_size=40), is_placing=st.booleans())
def test_engine_after_power_cuts_equals_the_model(make_harness, placing_options, plan, is_placing):
    """Records reported durable survive the loss of everything unsynced."""
    engine = make_harness("sim", None, *([placing_options] if is_placing else []))
    model = make_harness("memory", None)
    pair = Pair(engine, model)
    engine.crash = engine.power_cut
    for operation in plan:
        pair.run(operation)
        pair.compare()
    pair.do_write()
    pair.do_crash()
    pair.compare()
    pair.compare_contents()
