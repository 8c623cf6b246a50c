"""All servers are killed at once, under load."""

from __future__ import annotations

import pytest

from tests.chaos.conftest import Figure
from tests.chaos.harness.cluster import create_topic, wait_healthy
from tests.chaos.harness.load import IDEMPOTENT, PLAIN, Load, Variant, assert_kept, read_back
from tests.chaos.harness.replica_set import ReplicaSet

TOPIC = "kill-all"
ROUNDS = 2
ACKS_BETWEEN = 200


@pytest.mark.parametrize("variant", [IDEMPOTENT, PLAIN], ids=lambda variant: variant.name)
def test_killed_replica_set_has_every_acknowledged_record_after_restart(
    replica_set: ReplicaSet, variant: Variant, figure: Figure
) -> None:
    """kill -9 of all three under load.

    After the restart each acknowledged record is there, identical, at its offset; and the producer
    continues.
    """
    create_topic(replica_set, TOPIC)
    load = Load(replica_set.bootstrap, TOPIC, variant)
    load.start()
    try:
        for number in range(ROUNDS):
            load.wait_acknowledged(ACKS_BETWEEN)
            replica_set.kill(*replica_set.server_ids)
            figure(f"restart_{number + 1}_seconds", round(replica_set.up(), 2))
        load.wait_acknowledged(ACKS_BETWEEN)
        wait_healthy(replica_set)
    finally:
        load.stop()
    assert load.failures == {}
    figure("acknowledged", len(load.acks))
    assert_kept(load, read_back(replica_set.bootstrap, TOPIC))


def test_killed_while_idle_replica_set_starts_by_itself(replica_set: ReplicaSet) -> None:
    """A restart needs neither clients nor an operator."""
    create_topic(replica_set, TOPIC)
    load = Load(replica_set.bootstrap, TOPIC, IDEMPOTENT)
    load.start()
    load.wait_acknowledged(ACKS_BETWEEN)
    load.stop()
    for _ in range(ROUNDS):
        replica_set.kill(*replica_set.server_ids)
        replica_set.up()
        wait_healthy(replica_set)
        assert_kept(load, read_back(replica_set.bootstrap, TOPIC))
