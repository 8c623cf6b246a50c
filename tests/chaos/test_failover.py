"""Failures of a partition's leader in every way, while values are written to it.

Nothing acknowledged may be lost, moved or reordered. The limits apply to what an unmodified
librdkafka producer sees: the longest time without an acknowledgement around each fault.

FAILOVERS sets the number of leader failures: three by default, ten for the full form. The full form
checks the limits themselves, on an otherwise idle machine; the short one runs beside other load and
only detects that failover is no longer fast at all.
"""

from __future__ import annotations

import os
import statistics

import pytest

from tests.chaos.conftest import Figure
from tests.chaos.harness.cluster import create_topic
from tests.chaos.harness.load import (
    IDEMPOTENT,
    PLAIN,
    Load,
    Variant,
    assert_kept,
    read_back,
)
from tests.chaos.harness.replica_set import ReplicaSet
from tests.chaos.harness.strikes import strike_leader

TOPIC = "failover"
FAILOVERS = int(os.environ.get("FAILOVERS", "3"))
LENIENCE = 1 if FAILOVERS >= 10 else 5
KILL_GAP_MS_MEDIAN, KILL_GAP_MS_MAX = 1_000 * LENIENCE, 3_000 * LENIENCE
PAUSE_GAP_MS_MAX = 3_500 * LENIENCE
STOP_GAP_MS_MAX = 300 * LENIENCE
IMPATIENT = {"socket.timeout.ms": 1_000, "request.timeout.ms": 1_000}
"""A paused server keeps its connections open.

The client decides when to leave; by default librdkafka waits a minute, with any server.
"""


def record_gaps(figure: Figure, gaps: list[float], load: Load) -> None:
    figure("gaps_ms", [round(gap) for gap in gaps])
    figure("gap_ms_median", round(statistics.median(gaps)))
    figure("gap_ms_max", round(max(gaps)))
    figure("acknowledged", len(load.acks))


def assert_all_kept(replica_set: ReplicaSet, load: Load) -> None:
    assert load.failures == {}
    assert len(load.acks) == load.sent
    assert_kept(load, read_back(replica_set.bootstrap, TOPIC))


@pytest.mark.parametrize("variant", [IDEMPOTENT, PLAIN], ids=lambda variant: variant.name)
def test_killed_leader_loses_nothing_and_is_replaced_in_time(
    replica_set: ReplicaSet, variant: Variant, figure: Figure
) -> None:
    """kill -9 of the leader, repeatedly, each restarted: 0 lost, 0 moved, order kept.

    The gap is at most 1 s in the median, 3 s at worst.
    """
    create_topic(replica_set, TOPIC)
    load = Load(replica_set.bootstrap, TOPIC, variant)
    gaps = strike_leader(replica_set, load, replica_set.kill, replica_set.start, count=FAILOVERS)
    record_gaps(figure, gaps, load)
    assert_all_kept(replica_set, load)
    assert statistics.median(gaps) <= KILL_GAP_MS_MEDIAN
    assert max(gaps) <= KILL_GAP_MS_MAX


def test_paused_leader_loses_nothing_and_is_replaced_in_time(
    replica_set: ReplicaSet, figure: Figure
) -> None:
    """SIGSTOP: the connections stay up and silent. When it continues it is no longer the leader."""
    create_topic(replica_set, TOPIC)
    load = Load(replica_set.bootstrap, TOPIC, IDEMPOTENT, **IMPATIENT)
    gaps = strike_leader(replica_set, load, replica_set.pause, replica_set.resume, count=FAILOVERS)
    record_gaps(figure, gaps, load)
    assert_all_kept(replica_set, load)
    assert max(gaps) <= PAUSE_GAP_MS_MAX


def test_stopped_leader_hands_over_and_loses_nothing(
    replica_set: ReplicaSet, figure: Figure
) -> None:
    """SIGTERM: leadership is handed over before the process ends."""

    def start_again(server_id: int) -> None:
        replica_set.wait_stopped(server_id)
        replica_set.start(server_id)

    create_topic(replica_set, TOPIC)
    load = Load(replica_set.bootstrap, TOPIC, IDEMPOTENT)
    gaps = strike_leader(replica_set, load, replica_set.terminate, start_again, count=FAILOVERS)
    record_gaps(figure, gaps, load)
    assert_all_kept(replica_set, load)
    assert max(gaps) <= STOP_GAP_MS_MAX
