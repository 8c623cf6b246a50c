"""The simulator finds planted bugs, beginning with the seeds that found them before.

A sixth of the bugs is searched for in a run of CI, another sixth with the next commit.
"""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest

from tests.mutants.hunt import WORKER, Copies, hunt
from tests.mutants.patches import load_all
from tests.mutants.run import recorded, row
from tests.parts import part_of
from tests.sim.passed import passed

SEEDS = recorded()
PARTS = 6
MUTATIONS = part_of([mutation for mutation in load_all() if mutation.name in SEEDS], PARTS)
"""Mutations with recorded seeds whose turn it is.

Those without take too many worlds for this stage: `make mutants` searches for all.
"""

FRESH_SEEDS = 160
"""Length of the search when the recorded seeds miss.

It is four times `RECORDED_WITHIN`, so a change of all worlds seldom hides a recorded mutation.
`make mutants` goes to 1,000.
"""


@pytest.fixture(scope="module")
def copies(tmp_path_factory):
    # Seeds of the stage `worlds`, if that has run with this code, need not be run again.
    with closing(Copies(tmp_path_factory.mktemp("mutants"), passed=passed())) as made:
        yield made


@pytest.fixture(scope="module")
def hunts(copies):
    """Yield the running searches by name, as many at a time as there are processors."""
    pool = ThreadPoolExecutor(os.cpu_count() or 1)
    try:
        yield {
            mutation.name: pool.submit(
                hunt, copies, mutation, known_first(SEEDS[mutation.name]), first=True
            )
            for mutation in MUTATIONS
        }
    finally:
        pool.shutdown(cancel_futures=True)


def known_first(known):
    return known + [seed for seed in range(1, FRESH_SEEDS + 1) if seed not in known]


@pytest.mark.parametrize("name", [mutation.name for mutation in MUTATIONS])
def test_simulator_finds_planted_bug(name, hunts, record_property):
    """A planted bug survives neither the recorded seeds nor the fresh search after them."""
    one = hunts[name].result()
    record_property("seeds", one.tried)
    assert one.complaint == "", row(one)


def test_unmutated_code_passes_the_seeds_that_found(copies, hunts):
    """Recorded seeds pass without the bug; otherwise a finding would say nothing about it."""
    assert any(future.result().found for future in hunts.values())
    assert copies.calm.violations == ()
    assert copies.failing() == []


def test_worker_refuses_code_that_is_not_the_copy(tmp_path):
    """A worker whose imports come from elsewhere would test the wrong code, and find nothing."""
    command = [sys.executable, "-P", str(WORKER), str(tmp_path)]
    done = subprocess.run(
        command, cwd=tmp_path, input="1", capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert f"not from {tmp_path}" in done.stderr
