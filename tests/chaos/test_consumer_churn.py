"""Members of a KIP-848 group join and leave while the server that coordinates it is killed.

CHURN sets the duration in seconds, with a hundred members; by default a dozen run for a few
seconds.
"""

from __future__ import annotations

import os
import random
import time

from tests.chaos.conftest import Figure
from tests.chaos.harness.cluster import create_topic, wait_healthy
from tests.chaos.harness.consumers import FIND, ConsumerThread, Sightings
from tests.chaos.harness.replica_set import ReplicaSet
from tests.wire import AnyApiClient
from vdl.kafka.wire import find_coordinator as find_wire

CHURN_SECONDS = float(os.environ.get("CHURN", "0"))
IS_FULL = CHURN_SECONDS > 0
MEMBERS = 100 if IS_FULL else 12
PARTITIONS = 200 if IS_FULL else 24
SECONDS = CHURN_SECONDS if IS_FULL else 12.0
PAUSE_SECONDS = 0.5
SETTLE_SECONDS_MAX = 30.0
TOPIC, GROUP = "churn", "many"


def coordinator(replica_set: ReplicaSet) -> int:
    """Return the server that coordinates the group."""
    host, _, port = replica_set.bootstrap.split(",")[0].rpartition(":")
    deadline = time.monotonic() + 20
    while True:
        with AnyApiClient(host, int(port)) as client:
            request = find_wire.FindCoordinatorRequest(coordinator_keys=[GROUP])
            (found,) = client.request(FIND, request).coordinators
        if not found.error_code:
            return int(found.node_id)
        assert time.monotonic() < deadline, "nobody coordinates the group"
        time.sleep(0.1)


def settled(members: list[ConsumerThread]) -> bool:
    """Return True if each partition has one owner, and no member more than its share."""
    owned = [partition for member in members for partition in set(member.owned)]
    share = -(-PARTITIONS // len(members))
    return (
        len(owned) == len(set(owned)) == PARTITIONS
        and max(len(member.owned) for member in members) <= share
    )


def wait_settled(members: list[ConsumerThread]) -> float:
    """Wait until the group is settled; return the seconds."""
    began = time.monotonic()
    while not settled(members):
        seconds = time.monotonic() - began
        counts = sorted(len(member.owned) for member in members)
        assert seconds < SETTLE_SECONDS_MAX, f"not settled: {counts}"
        time.sleep(0.02)
    return time.monotonic() - began


def test_churn_over_a_leader_kill_gives_no_partition_to_two(
    replica_set: ReplicaSet, figure: Figure
) -> None:
    """No partition is owned twice in an epoch, and no committed offset goes back.

    When the churn ends every member has a share within seconds.
    """
    rng = random.Random(848)
    create_topic(replica_set, TOPIC, partitions=PARTITIONS)
    sightings = Sightings()
    count = 0

    def another() -> ConsumerThread:
        nonlocal count
        count += 1
        member = ConsumerThread(replica_set.bootstrap, GROUP, TOPIC, sightings, count)
        member.start()
        return member

    members = [another() for _ in range(MEMBERS)]
    gone: list[ConsumerThread] = []

    def leave(member: ConsumerThread) -> None:
        member.stop()
        gone.append(member)

    try:
        first = wait_settled(members)
        ends = time.monotonic() + SECONDS
        strikes = time.monotonic() + SECONDS / 3
        while time.monotonic() < ends:
            if rng.random() < 0.5 and len(members) > MEMBERS // 2:
                leave(members.pop(rng.randrange(len(members))))
            if len(members) < MEMBERS:
                members.append(another())
            if time.monotonic() > strikes:
                strikes = ends
                struck = coordinator(replica_set)
                replica_set.kill(struck)
                time.sleep(PAUSE_SECONDS)
                replica_set.start(struck)
            time.sleep(PAUSE_SECONDS)
        leave(members.pop(0))
        members.append(another())
        settling = wait_settled(members)
        wait_healthy(replica_set)
    finally:
        for member in members:
            member.stop()
        for member in (*members, *gone):
            member.join()
    assert sightings.problems == []
    assert sightings.commits > PARTITIONS
    figure("members", count)
    figure("commits", sightings.commits)
    figure("fenced", sightings.fenced)
    figure("first_settled_seconds", round(first, 2))
    figure("settled_seconds", round(settling, 2))
