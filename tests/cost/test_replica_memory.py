"""Memory that an idle replica of a partition costs a server, as the interpreter counts it.

A large set has thousands of idle replicas, so each object that a replica creates in
advance is paid for thousands of times: an empty `deque` has 624 bytes, an empty set 216.

Not counted: the simulator's memory, and what C libraries allocate.
"""

from __future__ import annotations

import gc
import tracemalloc
from collections import Counter

import vdl.sim
from tests.cost.cluster import SERVERS, Cluster
from vdl.clock import MS

FEW, MANY = 20, 120
SETTLE_NS = 3_000 * MS
REPLICA_BYTES_MAX = 8_000


def bytes_by_file(partitions: int) -> Counter[str]:
    """Return the memory in use by a set with that many partitions, by the file that took it."""
    gc.collect()
    tracemalloc.start()
    try:
        cluster = Cluster(partitions)
        cluster.run_for(SETTLE_NS)
        gc.collect()
        taken = tracemalloc.take_snapshot().statistics("filename")
    finally:
        tracemalloc.stop()
    return Counter({one.traceback[0].filename: one.size for one in taken})


def test_idle_replica_costs_little_memory():
    few, many = bytes_by_file(FEW), bytes_by_file(MANY)
    many.subtract(few)
    each = {
        name: taken // ((MANY - FEW) * SERVERS)
        for name, taken in many.most_common()
        if not name.startswith(tuple(vdl.sim.__path__))
    }
    largest = {name: taken for name, taken in each.items() if taken >= 200}
    assert sum(each.values()) <= REPLICA_BYTES_MAX, largest
