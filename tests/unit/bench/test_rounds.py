"""Measurements: what is run when, and what is made of its figures."""

from __future__ import annotations

from functools import partial

import pytest

from tests.bench.__main__ import MEASUREMENTS, parse
from tests.bench.rounds import Comparison, Figures, alternate, medians, percentiles, table


def test_rounds_with_several_runs_alternate_their_order() -> None:
    """A machine that slows down meanwhile must not favour whoever comes first."""
    ran: list[str] = []

    def run(name: str) -> Figures:
        ran.append(name)
        return {"seconds": float(len(ran))}

    found = alternate(Comparison({name: partial(run, name) for name in "abc"}, "a"), 2)
    assert ran == ["a", "b", "c", "c", "b", "a"]
    assert medians(found) == {name: {"seconds": 3.5} for name in "abc"}


def test_table_with_baseline_divides_each_median_by_its() -> None:
    """A figure that only one run has stands alone."""
    rounds = {"one": [{"mb": 2.0}], "two": [{"mb": 1.0, "only": 7.0}]}
    head, *lines = table(rounds, "one")
    assert head.split() == ["one", "two", "two/one"]
    assert [line.split() for line in lines] == [
        ["mb", "2.00", "1.00", "0.50"],
        ["only", "-", "7.00", "-"],
    ]


def test_table_of_single_run_has_its_extremes() -> None:
    """A limit is held by the worst round, not by the median."""
    head, line = table({"vdl": [{"s": 1.0}, {"s": 5.0}, {"s": 2.0}]}, "")
    assert head.split() == ["vdl", "least", "most"]
    assert line.split() == ["s", "2.00", "1.00", "5.00"]


def test_percentiles_of_even_times_are_their_places() -> None:
    """p99 of 1,001 equally spaced times is the one with 10 above it."""
    figures = percentiles("ack", [float(n) for n in range(1_001)])
    assert figures == {"ack_p50_ms": 500.0, "ack_p99_ms": 990.0, "ack_p999_ms": 999.0}


@pytest.mark.parametrize("name", MEASUREMENTS)
def test_measurement_by_name_has_options_and_rounds(name: str) -> None:
    """Every name that is told leads to a measurement that can be run."""
    found, measurement, options = parse([name, "--json", "figures.json"])
    assert found == name
    assert options.rounds >= 1
    assert callable(measurement.prepared)


def test_measurement_without_name_is_throughput_and_latency() -> None:
    """`make bench BENCH_ARGS=--quick` needs no name."""
    name, _, options = parse(["--quick", "--rounds", "3"])
    assert (name, options.quick, options.rounds) == ("workloads", True, 3)
