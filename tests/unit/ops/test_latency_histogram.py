"""Latencies of `vdl bench` beside sorted values."""

from __future__ import annotations

import random

import pytest

from vdl.commands.measurement.latency_histogram import LatencyHistogram


@pytest.mark.parametrize("scale", [100, 10_000, 10_000_000])
def test_histogram_percentiles_are_within_a_thousandth(scale: int) -> None:
    """Beside the sorted values: never below, and at most 0.1 % above."""
    drawn = random.Random(scale)
    values = [int(drawn.expovariate(1 / scale)) for _ in range(20_000)]
    found = LatencyHistogram()
    for value in values:
        found.add(value)
    values.sort()
    for percent in (50.0, 90.0, 99.0, 99.9, 100.0):
        exact = values[max(int(len(values) * percent / 100 + 0.999999) - 1, 0)]
        assert exact <= found.percentile_us(percent) <= exact * 1.001
    assert found.max_us == values[-1]
    assert found.count == len(values)


def test_histogram_takes_any_value() -> None:
    found = LatencyHistogram()
    assert found.percentile_us(50) == 0
    for value in (-5, 0, 1 << 70):
        found.add(value)
    assert found.percentile_us(1) == 0
    assert found.max_us == 1 << 70
