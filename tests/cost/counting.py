"""Cost of one workload: it is run and counted, and the counts become figures.

Does not depend on earlier figures.
"""

from __future__ import annotations

import gc
from collections import Counter
from dataclasses import dataclass, field

from tests.cost.calls import Calls
from tests.cost.memory import Memory
from tests.cost.workloads import Load, Workload

FIGURES = {
    "python_calls": "calls of Python functions",
    "builtin_calls": "calls of built-in functions",
    "system_calls": "system calls",
    "syncs": "of them, those that wait for the disk",
    "file_bytes": "bytes written to files",
    "socket_bytes": "bytes written to sockets",
    "cyclic_objects": "objects in cycles, which wait for the collector to stop a server",
    "memory_bytes": "bytes of memory taken in pieces of a page or more",
}
"""Figures of all three servers together, per unit of the workload."""
DIGITS = 3


@dataclass(slots=True)
class Counted:
    """Counts of one workload, per unit."""

    figures: dict[str, float]
    digest: str
    """Digest of all deliveries: equal if the servers did the same."""
    top: dict[str, dict[str, float]] = field(default_factory=dict)
    """By figure: its largest contributors, largest first."""


def count(workload: Workload, top: int = 0) -> Counted:
    """Run a workload and count; `top`: number of contributors to name per figure."""
    # The time of a garbage collection depends on allocations before the load.
    gc.disable()
    load = Load(workload)
    calls = Calls(load.cluster.time, load.cluster.clocks)
    gc.collect()
    calls.during(load.run)
    cyclic_objects = gc.collect()
    sums = {
        "python_calls": calls.python,
        "builtin_calls": calls.builtin,
        "system_calls": calls.system,
    }
    totals = {name: counter.total() for name, counter in sums.items()}
    totals["syncs"] = calls.syncs
    totals["file_bytes"] = calls.file_bytes
    totals["socket_bytes"] = calls.socket_bytes
    totals["cyclic_objects"] = cyclic_objects
    digest = load.cluster.digest
    if workload.counts_memory:
        memory = _memory(workload, digest)
        sums["memory_bytes"] = memory.taken
        totals["memory_bytes"] = memory.taken.total()
    return Counted(
        {name: round(total / workload.units, DIGITS) for name, total in totals.items()},
        digest,
        {name: _largest(counter, workload, top) for name, counter in sums.items()},
    )


def _memory(workload: Workload, digest: str) -> Memory:
    """Run the same load once more, on a cluster of its own, and count memory."""
    load = Load(workload)
    memory = Memory(load.cluster.time, load.cluster.clocks)
    memory.during(load.run)
    assert load.cluster.digest == digest, "the same load did not do the same"
    return memory


def _largest(counter: Counter[str], workload: Workload, top: int) -> dict[str, float]:
    return {name: round(n / workload.units, DIGITS) for name, n in counter.most_common(top)}
