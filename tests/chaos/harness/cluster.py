"""Queries of a replica set through its public interfaces: topics, leaders, health."""

from __future__ import annotations

import time
from http.client import HTTPConnection
from typing import Any

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from tests.chaos.harness.load import QUIET
from tests.chaos.harness.replica_set import ReplicaSet
from vdl.commands.checks.cluster_status import ClusterStatus, Partition, collect
from vdl.config.values import parse_address
from vdl.kafka.client import Unreachable

CALL_SECONDS_MAX = 10.0
HEALTHY_SECONDS_MAX = 30.0
POLL_SECONDS = 0.1


def create_topic(
    replica_set: ReplicaSet,
    name: str,
    *,
    partitions: int = 1,
    alone_on: int = 0,
    first_on: int = 0,
) -> None:
    """Create a topic and place its replicas.

    It has one on every server, led by `first_on`, or a single one on `alone_on`.
    """
    servers = list(replica_set.server_ids)
    placed: dict[str, Any] = {"replication_factor": replica_set.nodes}
    if alone_on:
        placed = {"replica_assignment": [[alone_on]] * partitions}
    elif first_on:
        servers.sort(key=lambda server_id: server_id != first_on)
        placed = {"replica_assignment": [servers] * partitions}
    admin = AdminClient({"bootstrap.servers": replica_set.bootstrap, **QUIET})
    topic = NewTopic(name, num_partitions=partitions, **placed)
    deadline = time.monotonic() + HEALTHY_SECONDS_MAX
    is_first = True
    while True:
        try:
            admin.create_topics([topic])[name].result(timeout=CALL_SECONDS_MAX)
        except KafkaException as error:
            code = error.args[0].code()
            if code == KafkaError.TOPIC_ALREADY_EXISTS and not is_first:
                return
            # A leader that moves at this moment cannot report the outcome.
            if code != KafkaError.REQUEST_TIMED_OUT or time.monotonic() > deadline:
                raise
            is_first = False
        else:
            return


def status(replica_set: ReplicaSet) -> ClusterStatus:
    """Return the cluster's status. Raises Unreachable when no server answers."""
    return collect([parse_address(address) for address in replica_set.bootstrap.split(",")])


def partitions(cluster: ClusterStatus) -> list[Partition]:
    return [partition for topic in cluster.topics for partition in topic.partitions]


def metrics_page(replica_set: ReplicaSet, server_id: int) -> str:
    """Return a server's page of metrics; empty when it does not answer."""
    http = replica_set.server(server_id).config().http
    assert http is not None
    connection = HTTPConnection(http.host, http.port, timeout=CALL_SECONDS_MAX)
    try:
        connection.request("GET", "/metrics")
        return connection.getresponse().read().decode()
    except OSError:
        return ""
    finally:
        connection.close()


def numbers(replica_set: ReplicaSet, server_id: int) -> dict[str, float]:
    """Return a server's unlabelled metrics by name; empty when it does not answer."""
    text = metrics_page(replica_set, server_id)
    rows = (line.split() for line in text.splitlines() if line[:1] not in {"#", ""})
    return {row[0]: float(row[1]) for row in rows if "{" not in row[0]}


def leader(replica_set: ReplicaSet, topic: str, partition: int = 0) -> int:
    """Return the server that leads a partition, by its metadata; wait until there is one."""
    deadline = time.monotonic() + HEALTHY_SECONDS_MAX
    while True:
        # A new client each time: an existing one may answer from its cache.
        admin = AdminClient({"bootstrap.servers": replica_set.bootstrap, **QUIET})
        try:
            found: Any = admin.list_topics(topic, timeout=CALL_SECONDS_MAX).topics[topic]
            number: int = found.partitions[partition].leader
        except (KafkaException, KeyError):
            number = -1
        if number > 0:
            return number
        assert time.monotonic() < deadline, f"{topic} {partition} has no leader"
        time.sleep(POLL_SECONDS)


def wait_healthy(replica_set: ReplicaSet) -> float:
    """Wait until every group has a leader and all its replicas are members and up to date.

    Return the seconds.
    """
    return _wait(replica_set, is_quiet=False)


def wait_equal(replica_set: ReplicaSet) -> float:
    """As `wait_healthy`, for servers without writers: no replica lacks a single entry."""
    return _wait(replica_set, is_quiet=True)


def _wait(replica_set: ReplicaSet, *, is_quiet: bool) -> float:
    began = time.monotonic()
    while True:
        problem = _problem(replica_set, is_quiet)
        if not problem:
            return time.monotonic() - began
        assert time.monotonic() - began < HEALTHY_SECONDS_MAX, problem
        time.sleep(POLL_SECONDS)


def _problem(replica_set: ReplicaSet, is_quiet: bool) -> str:
    try:
        cluster = status(replica_set)
    except Unreachable as error:
        return str(error)
    for server in cluster.servers:
        if server.problem:
            return f"server {server.id}: {server.problem}"
    if len(cluster.servers) < replica_set.nodes:
        return f"only {len(cluster.servers)} servers are known"
    for group in (*cluster.groups, *partitions(cluster)):
        if group.leader < 0:
            return f"{group.name} has no leader"
        for replica in group.replicas:
            if replica.role == "learner":
                return f"{group.name} on {replica.server} does not take part yet"
            # Under load a follower is always a few records behind; entries count what is on disk.
            if replica.lag < 0 or replica.lag > LAG_MAX:
                return f"{group.name} on {replica.server} is {replica.lag} records behind"
            if is_quiet and replica.server != group.leader and replica.lag_entries != 0:
                return f"{group.name} on {replica.server} lacks {replica.lag_entries} entries"
    return ""


LAG_MAX = 20
"""Records of a tenth of a second."""
