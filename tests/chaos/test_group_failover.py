"""A consumer group continues while its coordinator and its partitions' leaders die."""

from __future__ import annotations

import pytest

from tests.chaos.conftest import Figure
from tests.chaos.harness.cluster import create_topic, leader, wait_healthy
from tests.chaos.harness.group import Members, committed
from tests.chaos.harness.load import IDEMPOTENT, Load
from tests.chaos.harness.replica_set import ReplicaSet

pytestmark = pytest.mark.takes_turns(parts=2)

TOPIC, GROUP = "group-failover", "readers"
ACKS_BETWEEN = 200
DRAIN_SECONDS_MAX = 60.0


@pytest.mark.parametrize("fault", ["each server in turn", "all at once"])
def test_group_misses_no_record_and_no_commit_goes_back(
    replica_set: ReplicaSet, fault: str, figure: Figure
) -> None:
    """Every acknowledged record is delivered at least once, and no committed offset goes back.

    The coordinator, on any server, loses neither members' progress nor the group.
    """
    create_topic(replica_set, TOPIC)
    load = Load(replica_set.bootstrap, TOPIC, IDEMPOTENT)
    members = Members(replica_set.bootstrap, TOPIC, GROUP, count=2)
    load.start()
    members.start()
    victims = [[number] for number in replica_set.server_ids]
    if fault == "all at once":
        victims = [list(replica_set.server_ids)]
    commits = []
    try:
        for struck in victims:
            wait_healthy(replica_set)
            load.wait_acknowledged(ACKS_BETWEEN)
            commits += committed(replica_set.bootstrap, GROUP, TOPIC)
            replica_set.kill(*struck)
            if len(struck) < replica_set.nodes:
                load.wait_acknowledged(ACKS_BETWEEN)
            replica_set.up()
            commits += committed(replica_set.bootstrap, GROUP, TOPIC)
        load.wait_acknowledged(ACKS_BETWEEN)
    finally:
        load.stop()
    assert leader(replica_set, TOPIC) > 0
    members.wait_seen({ack.number for ack in load.acks}, seconds_max=DRAIN_SECONDS_MAX)
    members.stop()
    commits += committed(replica_set.bootstrap, GROUP, TOPIC)
    assert members.problems == []
    assert commits == sorted(commits)
    figure("delivered_again", sum(members.seen.values()) - len(members.seen))
    figure("committed", commits)
