"""The choice of seeds to run, of those that count, and the command's output."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from vdl.sim import run
from vdl.sim.run import FRESH_SEEDS, RUNS_PER_SEED_MAX, Summary, run_fresh, run_seeds


def lived(seed: int, *, counts: bool, violations: tuple[str, ...] = ()) -> Summary:
    return Summary(
        seed=seed, kind="", options="", violations=violations, tail=(), events=1_000, faults=10,
        crashes=5, elections=20, acknowledgements=200, polled=300, virtual_s=10.0, cpu_s=0.5,
        hash="", counts=counts,
    )  # fmt: skip


@pytest.fixture
def worlds(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[int], Summary]], None]:
    """Replaces worlds by given summaries, in this process."""

    def replace(summarize: Callable[[int], Summary]) -> None:
        def live(seed: int, *, kind: str) -> Summary:
            assert kind == ""
            return summarize(seed)

        monkeypatch.setattr(run, "summarize", live)
        monkeypatch.setattr("os.cpu_count", lambda: 1)

    return replace


def test_quiet_seeds_are_run_and_replaced_by_further_ones(
    worlds: Callable[[Callable[[int], Summary]], None],
) -> None:
    """`count` seeds that count are run, and no more seeds than necessary."""
    worlds(lambda seed: lived(seed, counts=seed % 3 != 0))
    results = list(run_seeds(10, 20))
    assert [result.seed for result in results] == list(range(10, 39 + 1))[: len(results)]
    assert sum(result.counts for result in results) == 20
    assert results[-1].counts


def test_seeds_that_never_count_come_to_an_end(
    worlds: Callable[[Callable[[int], Summary]], None], capsys: pytest.CaptureFixture[str]
) -> None:
    """At the limit the search ends, and the command fails."""
    worlds(lambda seed: lived(seed, counts=False))
    assert len(list(run_seeds(1, 7))) == 7 * RUNS_PER_SEED_MAX
    assert run.main(seeds=7) == 1
    assert "0 of 14 seeds count" in capsys.readouterr().out


def test_last_line_is_the_verdict_over_the_seeds_that_count(
    worlds: Callable[[Callable[[int], Summary]], None], capsys: pytest.CaptureFixture[str]
) -> None:
    """Violations of a seed that does not count are violations all the same.

    Each failing seed is followed by the command that runs it again.
    """
    worlds(lambda seed: lived(seed, counts=seed != 2))
    assert run.main(seeds=3) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-2].startswith("3 of 4 seeds count")
    assert lines[-1] == (
        "3 seeds, 3000 events, 30 faults, 60 elections, 600 acknowledgements, 0 violations"
    )
    worlds(lambda seed: lived(seed, counts=seed != 2, violations=("a: b",) if seed == 2 else ()))
    assert run.main(seeds=3) == 1
    out = capsys.readouterr().out
    assert "  again: vdl sim --seed 2\n" in out
    assert out.endswith(" 1 violations\n")


def test_fresh_seeds_begin_where_nobody_counts_and_the_first_is_told(
    worlds: Callable[[Callable[[int], Summary]], None], capsys: pytest.CaptureFixture[str]
) -> None:
    """Otherwise a failure of an earlier run could not be reproduced."""
    worlds(lambda seed: lived(seed, counts=True))
    results = list(run_fresh(0.001))
    told = re.search(r"fresh seeds from (\d+)\n", capsys.readouterr().out)
    assert told is not None
    first = int(told[1])
    assert first > FRESH_SEEDS
    assert [result.seed for result in results[:3]] == [first, first + 1, first + 2]
