"""A server that lost its data directory.

It must not make others believe that it never had any, and gets its replicas back from the other
servers.
"""

from __future__ import annotations

import time

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from tests.chaos.harness.cluster import create_topic, leader, wait_healthy
from tests.chaos.harness.load import IDEMPOTENT, QUIET, Load, assert_kept, read_back
from tests.chaos.harness.replica_set import ReplicaSet

pytestmark = pytest.mark.takes_turns(parts=2)

TOPIC = "wiped"
ACKS = 200
WATCHED_SECONDS = 4.0
"""Several election timeouts."""


def write(replica_set: ReplicaSet) -> Load:
    create_topic(replica_set, TOPIC)
    load = Load(replica_set.bootstrap, TOPIC, IDEMPOTENT)
    load.start()
    load.wait_acknowledged(ACKS)
    load.stop()
    return load


def cluster_id(address: str) -> str:
    """Return the cluster id; empty when the server does not answer as a member of a cluster."""
    admin = AdminClient({"bootstrap.servers": address, **QUIET})
    try:
        found: str | None = admin.list_topics(timeout=1.0).cluster_id
    except KafkaException:
        return ""
    return found or ""


def serves_topic(replica_set: ReplicaSet, server_id: int) -> bool:
    """Return True if this server's own metadata names it as the leader of the topic's partition."""
    admin = AdminClient({"bootstrap.servers": replica_set.address(server_id), **QUIET})
    try:
        metadata = admin.list_topics(timeout=1.0)
    except KafkaException:
        return False
    if TOPIC not in metadata.topics:
        return False
    leads: bool = metadata.topics[TOPIC].partitions[0].leader == server_id
    return leads


def test_wiped_server_is_replaced(replica_set: ReplicaSet) -> None:
    """One of three starts empty.

    The two others continue, no operator acts, and it becomes a member again under a new identity:
    with either of the others down it is the second of two that have every record.
    """
    create_topic(replica_set, TOPIC)
    load = Load(replica_set.bootstrap, TOPIC, IDEMPOTENT)
    load.start()
    load.wait_acknowledged(ACKS)
    wait_healthy(replica_set)
    wiped = leader(replica_set, TOPIC)
    before = cluster_id(replica_set.bootstrap)
    replica_set.kill(wiped)
    replica_set.wipe(wiped)
    load.wait_acknowledged(ACKS)
    replica_set.start(wiped)
    replica_set.wait_serving(wiped)
    wait_healthy(replica_set)
    assert cluster_id(replica_set.address(wiped)) == before
    for other in replica_set.server_ids:
        if other != wiped:
            replica_set.kill(other)
            load.wait_acknowledged(ACKS)
            replica_set.start(other)
            wait_healthy(replica_set)
    load.stop()
    assert_kept(load, read_back(replica_set.bootstrap, TOPIC))


def test_wiped_server_does_not_vote(replica_set: ReplicaSet) -> None:
    """A wiped server does not vote while one of the two others is down.

    Its vote would complete a majority, and it may have voted or acknowledged differently before.
    Nothing is served until the other returns.
    """
    load = write(replica_set)
    wait_healthy(replica_set)
    last = leader(replica_set, TOPIC)
    wiped, other = (number for number in replica_set.server_ids if number != last)
    replica_set.kill(*replica_set.server_ids)
    replica_set.wipe(wiped)
    replica_set.start(wiped)
    replica_set.start(other)
    deadline = time.monotonic() + WATCHED_SECONDS
    while time.monotonic() < deadline:
        assert not serves_topic(replica_set, wiped)
        assert not serves_topic(replica_set, other)
    replica_set.start(last)
    assert_kept(load, read_back(replica_set.bootstrap, TOPIC))


def test_wiped_server_alone_waits_and_founds_no_cluster(replica_set: ReplicaSet) -> None:
    """A wiped server waits while both others are down and cannot be queried.

    When they return it is admitted.
    """
    load = write(replica_set)
    wait_healthy(replica_set)
    before = cluster_id(replica_set.bootstrap)
    replica_set.kill(*replica_set.server_ids)
    replica_set.wipe(1)
    replica_set.start(1)
    deadline = time.monotonic() + WATCHED_SECONDS
    while time.monotonic() < deadline:
        assert cluster_id(replica_set.address(1)) == ""
        assert 1 in replica_set.running()
    replica_set.start(2)
    replica_set.start(3)
    assert_kept(load, read_back(replica_set.bootstrap, TOPIC))
    assert cluster_id(replica_set.bootstrap) == before
    wait_healthy(replica_set)


def test_all_wiped_but_one_found_no_cluster(replica_set: ReplicaSet) -> None:
    """Two empty servers are a majority, but not all: the third still has the old cluster."""
    write(replica_set)
    wait_healthy(replica_set)
    before = cluster_id(replica_set.bootstrap)
    replica_set.kill(*replica_set.server_ids)
    for server_id in (1, 2):
        replica_set.wipe(server_id)
        replica_set.start(server_id)
    deadline = time.monotonic() + WATCHED_SECONDS
    while time.monotonic() < deadline:
        for server_id in (1, 2):
            assert cluster_id(replica_set.address(server_id)) == ""
    replica_set.start(3)
    deadline = time.monotonic() + WATCHED_SECONDS
    while time.monotonic() < deadline:
        for server_id in replica_set.server_ids:
            assert cluster_id(replica_set.address(server_id)) in {"", before}
