"""The servers' work per record or megabyte is counted exactly, and cannot grow unnoticed."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.cost.counting import FIGURES
from tests.cost.record import TOLERANCE, VERSION, changes, recorded
from tests.cost.worker import count_apart
from tests.cost.workloads import WORKLOADS
from vdl.records.walk import IS_NATIVE

BY_NAME = {workload.name: workload for workload in WORKLOADS}
AGAIN = ("single", "spread", "tail", "read", "transactions", "joins")
"""Workloads that are counted twice. `large` repeats `read`, and takes longest."""

PLANTED = {
    "copied-batch": ("read", "memory_bytes"),
    "walked-records": ("single", "python_calls"),
    "idle-calls": ("single", "python_calls"),
    "synced-twice": ("single", "syncs"),
    "answers-in-pieces": ("single", "system_calls"),
    "cycles": ("single", "cyclic_objects"),
}
"""By plant: the workload and the figure that detect it."""

EVERY = 1_000_000
"""Number of contributors to a figure on which two counts must agree."""


@pytest.fixture(scope="module")
def counts():
    """Yield the running counts, by (workload, plant, hash seed)."""
    wanted = [(name, "", "0") for name in BY_NAME]
    wanted += [(name, "", "4711") for name in AGAIN]
    wanted += [(name, plant, "0") for plant, (name, _) in PLANTED.items()]
    pool = ThreadPoolExecutor(os.cpu_count() or 1)
    try:
        yield {
            (name, plant, seed): pool.submit(
                count_apart, name, plant=plant, top=EVERY, hash_seed=seed
            )
            for name, plant, seed in wanted
        }
    finally:
        pool.shutdown(cancel_futures=True)


@pytest.mark.parametrize("name", list(BY_NAME))
def test_workload_costs_what_is_recorded(name, counts, record_property):
    """A workload costs neither more than recorded, nor so much less that the gain could be lost."""
    if not IS_NATIVE:
        pytest.skip("no C compiler was there: records are walked by calls in Python")
    before = recorded()
    if not before:
        pytest.skip(f"no figures for Python {VERSION}: record them by `make cost RECORD=1`")
    assert name in before, f"no figures for {name}: record them by `make cost RECORD=1`"
    figures = counts[name, "", "0"].result().figures
    for figure, value in figures.items():
        record_property(figure, value)
    rows = changes(name, BY_NAME[name].unit, before[name], figures, FIGURES)
    faults = [str(row) for row in rows if row.is_fault]
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize("name", AGAIN)
def test_count_in_another_process_is_the_same(name, counts):
    """Counts are equal to the last call and byte, whatever string hashes and addresses are."""
    assert counts[name, "", "4711"].result() == counts[name, "", "0"].result()


@pytest.mark.takes_turns(parts=3)
@pytest.mark.parametrize("plant", list(PLANTED))
def test_planted_waste_is_over_the_tolerance(plant, counts):
    """Each plant exceeds the tolerance; otherwise the check would be ineffective."""
    name, figure = PLANTED[plant]
    clean = counts[name, "", "0"].result().figures[figure]
    assert counts[name, plant, "0"].result().figures[figure] > clean * (1 + TOLERANCE)
