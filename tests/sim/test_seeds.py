"""Whole servers on virtual time: a fixed list of seeds, and a test that seeds are reproducible.

A sixth of the list is run in a run of CI, another sixth with the next commit.
"""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor

import pytest

from tests.parts import part_of, parts_and_turn
from tests.sim.passed import note
from vdl.sim.kinds import KINDS
from vdl.sim.run import Summary, again, run_seeds, summarize

SEEDS = 90
PARTS = 6
_COUNT, _TURN = parts_and_turn(PARTS)
SEEDS_OF_PART = SEEDS // _COUNT
FIRST = 1 + _TURN * SEEDS_OF_PART
OF_EACH_KIND = 2 if _COUNT == 1 else 1
PROCESSES = 2
AGAIN = range(FIRST, FIRST + SEEDS_OF_PART, SEEDS // PARTS)
ONCE_FAILED = (
    20_279, 2_894_814_156_700, 48, 55, 20_000_863, 920_306, 920_014,
    930_147, 1_001_005, 1_103_088, 1_110_099, 1_116_044,
    1_300_055, 2_895_322_647_123, 2_895_322_647_262, 2_895_336_435_753,
    2_895_336_436_027,
)  # fmt: skip
"""Seeds that found a fixed bug: a checkpoint that was refused once; meta read before it was
durable; two full servers that refused one another; a header that a flush lost; damage behind
damage; damage that a log compacted further could not repair; a lost replica that was reported as in
sync; full links that were encrypted; a member of a share group that no member followed when it left
at the end; a follower that accepted more small entries in one turn than it may hold; a killed job
that undid data made durable by the sync of another; lagging readers that requested less than a
batch; damage that had not been read before the end; worlds that did not wait at their end for a
replica to catch up, and for a compaction decision to be repeated; a transfer that was counted as an
election, because it began just before a fault; damage of a disk that had been replaced since,
looked for in another log of the new one.
"""

_RUN = "import sys; from vdl.sim.run import summarize; print(summarize(int(sys.argv[1])).hash)"


@pytest.fixture(scope="module")
def results() -> list[Summary]:
    """The worlds of the part of the list, run once for all tests."""
    found = sorted(
        run_seeds(FIRST, SEEDS_OF_PART, processes=PROCESSES), key=lambda result: result.seed
    )
    note(result.seed for result in found if result.ok)
    return found


def test_no_seed_of_the_fixed_list_violates_anything(results: list[Summary]) -> None:
    """Worlds with crashes, power cuts, pauses and partitions violate no invariant.

    No acknowledged record is lost or moved, no term has two leaders, replicas are equal at the end.
    """
    # A quiet world proves nothing: each that counts has gone through enough by itself.
    assert sum(result.counts for result in results) == SEEDS_OF_PART
    assert len(results) <= SEEDS_OF_PART * 11 // 10 + 2, "more than a tenth are too quiet"
    bad = [complaint(result) for result in results if not result.ok]
    assert not bad, "\n".join(bad)


def test_seeds_that_once_failed_do_not_any_more(results: list[Summary]) -> None:
    """As long as their draws are unchanged they reach the place of the bug."""
    lived = {result.seed for result in results}
    left = [seed for seed in part_of(ONCE_FAILED, PARTS) if seed not in lived]
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(PROCESSES, mp_context=context) as pool:
        bad = [complaint(result) for result in pool.map(summarize, left) if not result.ok]
    assert not bad, "\n".join(bad)


@pytest.mark.parametrize("kind", KINDS)
def test_no_world_of_a_kind_violates_anything(kind: str) -> None:
    """The faults that a kind turns up must do no harm either."""
    found = list(run_seeds(1 + _TURN * OF_EACH_KIND, OF_EACH_KIND, kind=kind, processes=1))
    bad = [complaint(result) for result in found if not result.ok]
    assert not bad, "\n".join(bad)


def test_same_seed_gives_the_same_trace_whatever_the_hash_seed(results: list[Summary]) -> None:
    """A seed determines the whole world, whatever Python's hash seed is and whatever ran before."""
    work = [(seed, hash_seed) for seed in AGAIN for hash_seed in ("1", "2")]
    with ThreadPoolExecutor(PROCESSES) as pool:
        again = dict(zip(work, pool.map(lambda one: trace_hash(*one), work), strict=True))
    # The first hash is from a process that had run other worlds.
    before = {result.seed: result.hash for result in results}
    assert again == {(seed, hash_seed): before[seed] for seed, hash_seed in work}


def complaint(result: Summary) -> str:
    return (
        f"{result.line()}\n  " + "\n  ".join(result.violations[:5])
        + f"\n  again: {again(result.seed, result.kind)}"
    )  # fmt: skip


def trace_hash(seed: int, hash_seed: str) -> str:
    """Return the hash of a seed's trace in an interpreter of its own."""
    run = subprocess.run(
        [sys.executable, "-c", _RUN, str(seed)],
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        check=True,
    )
    return run.stdout.strip()
