"""Measurements: the order of runs, and the evaluation of their figures."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from tests.bench.__main__ import MEASUREMENTS, as_json, parse
from tests.bench.rounds import (
    Comparison,
    Figures,
    Passes,
    alternate,
    medians,
    percentiles,
    table,
)
from tests.bench.rows import ROWS
from tests.bench.sarama import BATCH_RECORDS, RECORD_BYTES
from tests.bench.targets import SARAMA, WORKLOADS, Kind, Target


def test_rounds_with_several_runs_alternate_their_order() -> None:
    """A machine that slows down meanwhile must not favour the first one."""
    ran: list[str] = []

    def run(name: str) -> Figures:
        ran.append(name)
        return {"seconds": float(len(ran))}

    found = alternate(Comparison({name: partial(run, name) for name in "abc"}, "a"), 2)
    assert ran == ["a", "b", "c", "c", "b", "a"]
    assert medians(found) == {name: {"seconds": 3.5} for name in "abc"}


def test_table_with_baseline_divides_each_median_by_its() -> None:
    """A figure that only one run has is shown alone."""
    rounds = {"one": [{"mb": 2.0}], "two": [{"mb": 1.0, "only": 7.0}]}
    head, *lines = table(rounds, "one")
    assert head.split() == ["one", "two", "two/one"]
    assert [line.split() for line in lines] == [
        ["mb", "2.00", "1.00", "0.50"],
        ["only", "-", "7.00", "-"],
    ]


def test_table_of_single_run_has_its_extremes() -> None:
    """A limit is checked against the worst round, not the median."""
    head, line = table({"vdl": [{"s": 1.0}, {"s": 5.0}, {"s": 2.0}]}, "")
    assert head.split() == ["vdl", "least", "most"]
    assert line.split() == ["s", "2.00", "1.00", "5.00"]


def test_rounds_of_two_passes_tell_both_and_compare_the_second() -> None:
    """The first pass has a column of its own, and no ratio."""
    runs = {
        "vdl": lambda: Passes(cold={"mb": 1.0}, warm={"mb": 6.0}),
        "peer": lambda: Passes(cold={"mb": 1.0}, warm={"mb": 2.0}),
    }
    head, line = table(alternate(Comparison(runs, "peer"), 2), "peer")
    assert head.split() == ["vdl", "peer", "vdl_cold", "peer_cold", "vdl/peer"]
    assert line.split() == ["mb", "6.00", "2.00", "1.00", "1.00", "3.00"]


def test_table_with_targets_says_which_are_met() -> None:
    """Limits apply to the measured side, ratios to its relation to the other."""
    rounds = {"vdl": [{"mb": 6.0, "ms": 9.0}], "peer": [{"mb": 2.0, "ms": 1.0}]}
    targets = {
        "mb": (Target(Kind.RATIO_AT_LEAST, 3.0),),
        "ms": (Target(Kind.AT_MOST, 8.0), Target(Kind.RATIO_AT_MOST, 9.0)),
        "of another row": (Target(Kind.AT_LEAST, 1.0),),
    }
    _, *lines = table(rounds, "peer", targets)
    assert lines[0].endswith("≥3× met")
    assert lines[1].endswith("≤8 missed, ≤9× met")


def test_table_without_baseline_leaves_ratios_open() -> None:
    """Ratios without a peer are neither met nor missed."""
    targets = {"mb": (Target(Kind.RATIO_AT_LEAST, 3.0), Target(Kind.AT_LEAST, 5.0))}
    _, line = table({"vdl": [{"mb": 6.0}]}, "", targets)
    assert line.endswith("≥3× -, ≥5 met")


def test_figures_of_baseline_alone_can_be_kept() -> None:
    """`scale --partitions 1 --json FILE`: figures are saved also without a comparison."""
    comparison = Comparison({"1": lambda: {"mb": 1.0}}, "1")
    kept = as_json("scale", comparison, alternate(comparison, 1))
    assert kept["medians"] == {"1": {"mb": 1.0}}
    assert kept["verdicts"] == {}


def test_rounds_before_each_run_prepare_the_machine() -> None:
    """Every run starts from the same state, not only the first."""
    done: list[str] = []

    def run() -> Figures:
        done.append("run")
        return {"s": 1.0}

    alternate(Comparison({"a": run}), 2, lambda: done.append("fill"))
    assert done == ["fill", "run", "fill", "run"]


def test_percentiles_of_even_times_are_their_places() -> None:
    """p99 of 1,001 equally spaced times is the one with 10 above it."""
    figures = percentiles("ack", [float(n) for n in range(1_001)])
    assert figures == {"ack_p50_ms": 500.0, "ack_p99_ms": 990.0, "ack_p999_ms": 999.0}


@pytest.mark.parametrize("name", MEASUREMENTS)
def test_measurement_by_name_has_options_and_rounds(name: str) -> None:
    """Every listed name leads to a measurement that can be run."""
    found, measurement, options = parse([name, "--json", "figures.json"])
    assert found == name
    assert options.rounds >= 1
    assert callable(measurement.prepared)


def test_measurement_without_name_is_throughput_and_latency() -> None:
    """`make bench BENCH_ARGS=--quick` needs no name."""
    name, _, options = parse(["--quick", "--rounds", "3"])
    assert (name, options.quick, options.rounds) == ("workloads", True, 3)


def test_measurement_beside_peer_has_several_rounds(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """`make bench PEER=kafka` alone makes the published table."""
    program = tmp_path / "peer"
    program.touch(mode=0o755)
    monkeypatch.setenv("PEER", "kafka")
    monkeypatch.setenv("PEER_COMMAND", str(program))
    _, _, options = parse([])
    assert options.rounds == 3
    assert options.memory_in_use
    _, _, options = parse(["--rounds", "1", "--no-memory-in-use"])
    assert options.rounds == 1
    assert not options.memory_in_use


def test_measurement_beside_unknown_peer_says_what_it_needs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The error comes before anything is started."""
    monkeypatch.setenv("PEER", "other")
    monkeypatch.delenv("PEER_COMMAND", raising=False)
    with pytest.raises(SystemExit, match="PEER=other needs PEER_COMMAND"):
        parse([])
    monkeypatch.setenv("PEER_COMMAND", str(tmp_path / "none"))
    with pytest.raises(SystemExit, match="there is no program"):
        parse([])


def test_targets_name_figures_of_rows() -> None:
    """A target for a figure that no row has would never be missed."""
    of_the_run = ("start_seconds", "rss_idle_mb", "rss_after_mb")
    for figure in WORKLOADS:
        assert figure in of_the_run or any(figure.startswith(f"{row}_") for row in ROWS)
    cells = {f"{size}_bytes_by_{count}" for size in RECORD_BYTES for count in BATCH_RECORDS}
    assert all(figure.partition("_records")[0].partition("_mb")[0] in cells for figure in SARAMA)
