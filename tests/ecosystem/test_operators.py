"""Operators' tools of Kafka, unmodified, and the calls that Cruise Control and Strimzi make.

The calls are a program of Kafka's AdminClient (`java/src/vdl/Operators.java`), which prints a line
an answer; three servers of Kafka answer the same program.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from tests.chaos.harness.members import until, vdl
from tests.chaos.harness.replica_set import ReplicaSet
from tests.differential.kafka_cluster import KafkaCluster, why_not
from tests.ecosystem.programs import classes, java, run_refused, run_tool

pytestmark = [pytest.mark.java, pytest.mark.takes_turns(parts=2)]

TOOLS = "org.apache.kafka.tools"
QUORUM, CLUSTER = f"{TOOLS}.MetadataQuorumCommand", f"{TOOLS}.ClusterTool"
ELECTION, LOG_DIRS = f"{TOOLS}.LeaderElectionCommand", f"{TOOLS}.LogDirsCommand"
FEATURES = f"{TOOLS}.FeatureCommand"
PROGRAM_SECONDS_MAX = 300
TOPIC = "operated-by-tools"
ADDED, KILLED = 4, 3
VOTERS = (1, 2, 3)


def answers(bootstrap: str) -> list[str]:
    """Return what the program prints about a cluster."""
    done = subprocess.run(
        java(classes("java"), "vdl.Operators", bootstrap),
        check=False,
        timeout=PROGRAM_SECONDS_MAX,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout.splitlines()


@pytest.fixture
def kafka_of_three() -> Iterator[KafkaCluster]:
    reason = why_not()
    if reason:
        pytest.skip(reason)
    cluster = KafkaCluster()
    try:
        cluster.up()
        yield cluster
    finally:
        cluster.close()


def test_calls_of_operators_are_answered_as_by_kafka(
    bootstrap: str, kafka_of_three: KafkaCluster
) -> None:
    """Moves, throttles, elections, the quorum, directories and settings; refusals too."""
    expected = answers(kafka_of_three.bootstrap)
    assert "waited in vain" not in expected
    assert answers(bootstrap) == expected


@pytest.fixture
def grown(request: pytest.FixtureRequest) -> Iterator[ReplicaSet]:
    """Yield a cluster that began with three servers, and has a fourth."""
    servers, is_over = ReplicaSet(ADDED), False
    try:
        servers.configure({}, voters=len(VOTERS))
        for server in servers.server_ids:
            servers.start(server)
        peer = servers.peer_address(ADDED)
        until(
            lambda: not vdl(servers.bootstrap, "member", "add", str(ADDED), "--peer", peer)[0],
            "the fourth server is not added",
        )
        yield servers
        is_over = True
    finally:
        servers.close(failed="" if is_over else request.node.name)


def replication(bootstrap: str) -> dict[int, dict[str, str]]:
    """Return the rows of `describe --replication`, by server."""
    printed = run_tool(QUORUM, "--bootstrap-server", bootstrap, "describe", "--replication")
    head, *rows = ([cell.strip() for cell in line.split("\t")] for line in printed.splitlines())
    return {int(row[0]): dict(zip(head, row, strict=False)) for row in rows if row[0]}


def states(bootstrap: str, *options: str) -> dict[int, str]:
    """Return the state of each server in `list-endpoints`.

    Any server answers, also one that has not applied the catalog's last entries.
    """
    printed = run_tool(CLUSTER, "list-endpoints", "--bootstrap-server", bootstrap, *options)
    rows = [line.split() for line in printed.splitlines()[1:]]
    return {int(row[0]): row[4] for row in rows if row}


def test_kafkas_tools_show_and_change_a_cluster_of_four(grown: ReplicaSet) -> None:
    """The quorum with an observer, endpoints, elections, directories, features; one server dies,
    and the fourth is unregistered."""
    bootstrap = grown.bootstrap
    at = ("--bootstrap-server", bootstrap)
    admin = AdminClient({"bootstrap.servers": bootstrap})
    topic = NewTopic(TOPIC, num_partitions=3, replica_assignment=[[1, 2, 3], [3, 1, 2], [2, 3, 1]])
    admin.create_topics([topic])[TOPIC].result(60)

    def has_been_heard() -> bool:
        return all(int(row["LastCaughtUpTimestamp"]) > 0 for row in replication(bootstrap).values())

    until(has_been_heard, "the quorum has a server that was never heard of")
    rows = replication(bootstrap)
    assert sorted(row["Status"] for row in rows.values()) == (
        ["Follower", "Follower", "Leader", "Observer"]
    )
    assert rows[ADDED]["Status"] == "Observer"
    assert all(
        int(row["LogEndOffset"]) > 0 and len(row["DirectoryId"]) > 20 for row in rows.values()
    )
    status = run_tool(QUORUM, *at, "describe", "--status")
    fields = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
    assert [one["id"] for one in json.loads(fields["CurrentVoters"])] == [*VOTERS]
    assert [one["id"] for one in json.loads(fields["CurrentObservers"])] == [ADDED]
    removal = (
        "remove-controller",
        "--controller-id",
        "2",
        "--controller-directory-id",
        rows[2]["DirectoryId"],
    )
    assert "UnsupportedVersionException" in run_refused(QUORUM, *at, *removal)

    assert fields["ClusterId"].strip() in run_tool(CLUSTER, "cluster-id", *at)
    until(
        lambda: states(bootstrap) == dict.fromkeys(grown.server_ids, "unfenced"),
        "a server that runs is not unfenced",
    )
    assert "BrokerIdNotRegistered" in run_refused(CLUSTER, "unregister", *at, "--id", "9")
    described = run_tool(FEATURES, *at, "describe")
    assert "transaction.version" in described
    assert "kraft.version" in run_refused(FEATURES, *at, "upgrade", "--feature", "kraft.version=1")

    elect = (*at, "--election-type", "preferred")
    run_tool(ELECTION, *elect, "--all-topic-partitions")
    again = run_tool(ELECTION, *elect, "--topic", TOPIC, "--partition", "1")
    assert "Valid replica already elected" in again
    unknown = run_refused(ELECTION, *elect, "--topic", TOPIC, "--partition", "9")
    assert "UnknownTopicOrPartition" in unknown
    listed = run_tool(LOG_DIRS, *at, "--describe", "--broker-list", "1,3", "--topic-list", TOPIC)
    found = json.loads(listed.splitlines()[-1])["brokers"]
    assert {one["broker"]: len(one["logDirs"][0]["partitions"]) for one in found} == {1: 3, 3: 3}

    grown.kill(KILLED)
    until(
        lambda: states(bootstrap, "--include-fenced-brokers")[KILLED] == "fenced",
        "the dead server is not fenced",
    )
    until(lambda: KILLED not in states(bootstrap), "a fenced server is listed")
    dead = run_refused(ELECTION, *elect, "--topic", TOPIC, "--partition", "1")
    assert "PreferredLeaderNotAvailable" in dead

    def is_behind() -> bool:
        now = replication(bootstrap)
        caught_up = {server: int(row["LastCaughtUpTimestamp"]) for server, row in now.items()}
        return caught_up[KILLED] < min(caught_up[server] for server in now if server != KILLED)

    until(is_behind, "a dead server counts as caught up")
    grown.start(KILLED)
    until(lambda: len(states(bootstrap)) == ADDED, "the server does not come back")
    run_tool(CLUSTER, "unregister", *at, "--id", str(ADDED))
    until(lambda: ADDED not in replication(bootstrap), "the fourth server is not removed")
    until(
        lambda: ADDED not in states(bootstrap, "--include-fenced-brokers"),
        "a removed server is listed",
    )
