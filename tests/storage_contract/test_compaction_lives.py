"""Random histories of a log that is compacted, joined and trimmed, cut short at any step.

A start finds of each entry a part of what was written, never less than the newest decision keeps.
Of entries that the log's note calls compacted it finds no more than that, either.
"""

import contextlib
import random

import pytest

from segments.api import Compaction
from segments.io import failpoint
from tests.storage_contract.conftest import PLACING, SMALL, SimHarness
from tests.storage_contract.test_compaction import (
    PLACES,
    Killed,
    by_index,
    expected,
    fill,
    records_of,
)
from vdl.records.compaction import BatchCleaner

pytestmark = pytest.mark.takes_turns(parts=2)

SEEDS = 10
LIVES = 14
ELSEWHERE = [
    name
    for name in failpoint.POINTS
    if name.startswith(("trim.", "flush.", "checkpoint.", "index.", "journal.", "payload."))
]


class Lives:
    """The log, what was written to it, and the compaction limits decided so far."""

    def __init__(self, seed):
        self.rng = rng = random.Random(seed)
        self.engine = SimHarness(rng.choice((SMALL, PLACING)))
        self.engine.start()
        self.engine.new_log()
        self.written = {}
        self.decided = Compaction()
        self.committed = 0

    def live(self):
        """Run the process once; it ends in some way."""
        rng, engine = self.rng, self.engine
        place = rng.choice(PLACES if rng.random() < 0.6 else ELSEWHERE)
        left = [rng.randint(1, 6)]

        def pass_by():
            left[0] -= 1
            if not left[0]:
                raise Killed

        failpoint.watch(place, pass_by)
        try:
            with contextlib.suppress(Killed):
                for _ in range(rng.randint(2, 9)):
                    self.step()
        finally:
            failpoint.unwatch(place)
        assert engine.fatal == []
        (engine.power_cut if rng.random() < 0.6 else engine.crash)()
        engine.start()

    def step(self):
        rng, engine, log = self.rng, self.engine, self.engine.log
        what = rng.choices(("write", "compact", "trim", "wait"), (35, 40, 5, 20))[0]
        if what == "write":
            fill(engine, log, rng, rng.randint(5, 60), keys=rng.choice((3, 8)))
            self.committed = log.commit_index
            self.note()
        elif what == "compact":
            self.compact()
        elif what == "trim":
            engine.store.trim_log(log, first_index=rng.randint(1, log.applied_index + 1))
            engine.submit()
        else:
            engine.workers.advance(rng.choice((1, 100, 11_000, 25_000)))

    def note(self):
        for index, entry in by_index(self.engine, self.engine.log).items():
            self.written.setdefault(index, entry)

    def compact(self):
        """Compact the log; remove deletion markers once all that they delete is gone."""
        rng, engine, log = self.rng, self.engine, self.engine.log
        upto = rng.randint(self.decided.upto, max(self.decided.upto, log.applied_index))
        if not log.first_index <= upto <= log.applied_index:
            return
        markers_upto = self.decided.markers_upto
        if rng.random() < 0.5:
            markers_upto = max(markers_upto, min(log.compaction.upto, upto))
        self.decided = Compaction(upto, markers_upto)
        keys_max = rng.choice((1_000, 1_000, 4))
        engine.store.compact(
            log, self.decided, lambda: BatchCleaner(keys_max=keys_max),
            pace=lambda count: rng.choice((1, 1, 300)), done=lambda is_whole: None,
        )  # fmt: skip
        engine.workers.advance(rng.choice((1, 5, 50, 2_000, 30_000)))

    def check(self):
        log = self.engine.log
        assert not log.lost
        assert log.damaged == ()
        assert self.engine.store.strays == []
        assert log.last_index >= self.committed
        self.note()
        noted, decided = log.compaction, self.decided
        least = expected(self.written, decided.upto, decided.markers_upto)
        most = expected(self.written, noted.upto, noted.markers_upto)
        for index, entry in by_index(self.engine, log).items():
            whole = self.written[index]
            assert (*entry[:2], *entry[3:]) == (*whole[:2], *whole[3:])
            if entry[4]:
                found = records_of(entry[2]) if entry[2] else []
                assert set(least[index]) <= set(found) <= set(records_of(whole[2])), index
                assert index > noted.upto or set(found) <= set(most[index]), index


@pytest.mark.parametrize("seed", range(SEEDS))
def test_log_is_compacted_as_far_as_it_says_however_its_lives_end(seed):
    """Nothing that remains is lost, and nothing that was removed comes back."""
    lives = Lives(seed)
    for _ in range(LIVES):
        lives.live()
        lives.check()
