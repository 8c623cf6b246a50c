"""Random histories of three logs that share small journal files, on a disk that is sometimes full.

Extends test_placed_lives.py with batches larger than a file, logs that are trimmed and reset, and
entries that are repeated while their log is flushed and trimmed, because a long journal forces them
out of old files.
"""

import pytest

from segments.api import HardState
from segments.checkpoint import scheduler
from tests.storage_contract.test_placed_lives import Lives

pytestmark = pytest.mark.takes_turns(parts=3)

SEEDS = 60


class CrowdedLives(Lives):
    """The staged state of a log begins with its first entry."""

    logs = 3

    def drawn_options(self):
        choice = self.rng.choice
        return {
            "segment_bytes": choice((2048, 4096, 9000, 64 << 10)),
            "cache_bytes_max": choice((8 << 10, 24 << 10, 200 << 10)),
            "idle_block_ms": choice((50, 50, 5_000)),
            "checkpoint_interval_ms": choice((200, 10_000)),
        }

    def step(self):
        if self.rng.random() < 0.85:
            super().step()
            return
        log = self.engine.store.logs[self.rng.choice(self.ids)]
        steps = (self.flood, self.trim, self.reset, self.vote, self.fill, self.repeat)
        self.rng.choices(steps, (4, 4, 1, 3, 2, 4))[0](log)
        assert self.engine.fatal == []

    def flood(self, _):
        """Stage a batch that may be larger than a journal file."""
        store, rng = self.engine.store, self.rng
        for _ in range(rng.randint(1, 8)):
            log = store.logs[rng.choice(self.ids)]
            if rng.random() < 0.5:
                self.append(log, log.last_index + 1, rng.randint(60, 250), rng.choice((2, 20, 60)))
            else:
                for _ in range(40):
                    self.append(log, log.last_index + 1, 1, 180)
        if rng.random() < 0.7:
            store.submit()

    def trim(self, log):
        first = self.rng.randint(log.first_index, log.commit_index + 1)
        if first > log.first_index and not log.installed_state:
            token = self.engine.store._queue.batch.token
            self.engine.store.trim_log(log, first_index=first)
            self.forget(log, first, token)

    def reset(self, log):
        first = log.last_index + self.rng.randint(1, 5)
        token = self.engine.store._queue.batch.token
        self.engine.store.reset_log(
            log, first_index=first, prev_term=self.term, next_offset=log.next_offset + 7
        )
        self.forget(log, first, token)

    def forget(self, log, first, token):
        """Stop expecting entries below `first`."""
        entries = self.staged[log.log_id]
        self.staged[log.log_id] = {n: entry for n, entry in entries.items() if n >= first}
        self.states.append((token, self.copy()))

    def vote(self, log):
        self.term += 1
        state = HardState(max(self.term, log.hard_state.term), 0, log.commit_index)
        self.engine.store.set_hard_state(log, state)

    def fill(self, _):
        self.engine.disk.room = self.rng.choice((0, 5_000, 50_000, None, None, None))

    def repeat(self, log):
        """Repeat records as a checkpoint does with the oldest file of a long journal.

        Flush and trim them before the block that says they are flushed is written.
        """
        store, rng = self.engine.store, self.rng
        if rng.random() < 0.5:
            self.engine.pump()
        if log.oldest_run() and store._journal.allocation.has_next:
            log.restage(log.oldest_run(), store._queue.batch, with_tail=True)
        if rng.random() < 0.5:
            return
        if log.last_index > log.commit_index:
            self.commit(log, log.last_index)
        store.checkpoint()
        while self.engine.workers.pool_jobs:
            self.engine.workers.run_one(self.engine.workers.pool_jobs)
        if rng.random() < 0.7:
            self.trim(log)
        if rng.random() < 0.7:
            store.submit()
            self.engine.pump()

    def die(self):
        if self.rng.random() < 0.4:
            self.engine.pump()
        self.engine.disk.room = None  # a start needs some
        super().die()

    def is_part_of_a_batch(self, found, states):
        """Return True if a prefix of a batch was found.

        Each part of a batch larger than a file is a block of its own.
        """
        return any(
            all(_is_between(found[n], before[n], after[n]) for n in self.ids)
            for before, after in zip(states, states[1:] + states[-1:], strict=True)
        )


def _is_between(found, before, after):
    """Return True if `found` is `before` with a prefix of the records that lead to `after`."""
    if found in (before, after):
        return True
    if any(after.get(n, entry) != entry for n, entry in found.items()):
        return False
    return all(n in found for n in after if found and n < max(found))


def live(kind, seed, steps_max, monkeypatch):
    """Run histories of that kind to their end.

    Half of them flush each entry as soon as possible.
    """
    if seed % 2:
        monkeypatch.setattr(scheduler, "FLUSH_BYTES_MIN", 1)
    lives = kind(seed)
    lives.run(steps_max)
    lives.settle()
    return lives


@pytest.mark.parametrize("seed", range(SEEDS))
def test_start_finds_what_was_acknowledged_in_crowded_files(seed, monkeypatch):
    """A start finds all that was acknowledged, for any logs in the files and any free space."""
    live(CrowdedLives, seed, 150, monkeypatch)
