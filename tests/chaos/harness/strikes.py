"""Repeated faults of a partition's leader under a producer.

The gap of each fault is the longest time without any acknowledgement around it.

Does not depend on the kind of fault, nor on limits of the gap.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from tests.chaos.harness.cluster import leader, wait_healthy
from tests.chaos.harness.load import Load
from tests.chaos.harness.replica_set import ReplicaSet

SETTLED_ACKS = 100
"""Acknowledgements to wait for before and after each fault: half a second's."""


@dataclass(frozen=True, slots=True)
class Strike:
    """Times are of the monotonic clock. `end_ns`: enough has been acknowledged since."""

    server_id: int
    start_ns: int
    end_ns: int


def strike_leader(
    replica_set: ReplicaSet,
    load: Load,
    fault: Callable[[int], object],
    heal: Callable[[int], object],
    *,
    count: int,
    struck: Callable[[Strike], None] = lambda strike: None,
) -> list[float]:
    """Run `load` and fail its leader `count` times; return the gap of each in milliseconds.

    `struck` is called for each before it is healed. Raises AssertionError when the servers do not
    recover.
    """
    strikes: list[Strike] = []
    load.start()
    try:
        for _ in range(count):
            wait_healthy(replica_set)
            load.wait_acknowledged(SETTLED_ACKS)
            server_id = leader(replica_set, load.topic)
            began_ns = time.monotonic_ns()
            fault(server_id)
            load.wait_acknowledged(SETTLED_ACKS)
            strikes.append(Strike(server_id, began_ns, time.monotonic_ns()))
            struck(strikes[-1])
            heal(server_id)
        wait_healthy(replica_set)
        load.wait_acknowledged(SETTLED_ACKS)
    finally:
        load.stop()
    return [load.longest_gap_ms(strike.start_ns, strike.end_ns) for strike in strikes]
