"""Six real servers as three hosts of two: a host dies, replicas are balanced, a server leaves.

`vdl up --per-host` starts them, and an idempotent producer with acks=all writes all the time.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from tests.chaos.harness.load import IDEMPOTENT, QUIET, Load, assert_kept, read_back
from tests.chaos.harness.members import until, vdl
from tests.chaos.harness.moves import replicas
from tests.chaos.harness.replica_set import ReplicaSet

PARTITIONS = 6
HOSTS = {1: "host-1", 2: "host-1", 3: "host-2", 4: "host-2", 5: "host-3", 6: "host-3"}
LAYOUT = ("--per-host", "2", "--timeout", "50")


@pytest.fixture
def servers(request: pytest.FixtureRequest) -> Iterator[ReplicaSet]:
    found = ReplicaSet(6)
    failed = request.session.testsfailed
    try:
        found.up(*LAYOUT)
        yield found
    finally:
        found.close(failed=request.node.name if request.session.testsfailed > failed else "")


def _json(servers: ReplicaSet, *words: str) -> tuple[int, Any]:
    code, out, error = vdl(servers.bootstrap, *words, "--json")
    assert out, error
    return code, json.loads(out)


def _replicas(servers: ReplicaSet) -> list[list[int]]:
    found = replicas(servers.bootstrap, "t")
    return [found[partition] for partition in range(PARTITIONS)]


def _is_whole(servers: ReplicaSet, count: int) -> bool:
    """Return True if as many servers answer, and every partition is in sync."""
    code, out, _ = vdl(servers.bootstrap, "status", "--json")
    cluster = json.loads(out) if out else {"servers": []}
    return len(cluster["servers"]) == count and code == 0


def test_host_dies_replicas_are_balanced_and_a_server_leaves_as_planned(
    servers: ReplicaSet,
) -> None:
    """Nothing acknowledged is lost, no two replicas share a host, and plans are what happens."""
    admin = AdminClient({"bootstrap.servers": servers.bootstrap, **QUIET})
    # Uneven, and two partitions share a host.
    placed = [[1, 3, 5]] * 4 + [[1, 2, 5]] * 2
    admin.create_topics([NewTopic("t", PARTITIONS, replica_assignment=placed)])["t"].result(30)
    load = Load(servers.bootstrap, "t", IDEMPOTENT, partitions=PARTITIONS, rate_per_second=60)
    load.start()
    try:
        load.wait_acknowledged(60)
        servers.kill(5, 6)
        load.wait_acknowledged(120)
        code, document = _json(servers, "plan", "remove", "6")
        assert code == 0, "a server that is down may leave: it has no replica"
        code, document = _json(servers, "balance")
        assert "servers that do not answer are left as they are: 5, 6" in document["plan"]["notes"]
        assert not {5, 6} & {
            server
            for step in document["plan"]["steps"]
            for move in step["moves"]
            for server in set(move["replicas_after"]) - set(move["replicas"])
        }
        servers.up(*LAYOUT)
        until(lambda: _is_whole(servers, 6), "the host does not come back")

        code, document = _json(servers, "balance", "--execute")
        assert (code, document["done"]["partitions"]) == (
            0,
            len(document["plan"]["steps"][0]["moves"]),
        )
        found = _replicas(servers)
        assert all(len({HOSTS[server] for server in on}) == 3 for on in found)
        assert Counter(server for on in found for server in on) == dict.fromkeys(HOSTS, 3)
        assert Counter(on[0] for on in found) == dict.fromkeys(HOSTS, 1)
        _, document = _json(servers, "balance", "--plan")
        assert not document["plan"]["steps"]

        # A partition with a replica out of sync blocks the plan.
        until(lambda: _is_whole(servers, 6), "the moved replicas do not catch up")
        code, document = _json(servers, "plan", "remove", "1")
        assert code == 0, document["plan"]
        assert document["plan"]["steps"], "one of the first servers may leave"
        code, document = _json(servers, "plan", "move", f"t:0={found[0][0]}")
        assert (code, document["done"]) == (1, None)
        assert document["plan"]["refused"] == "t-0: fewer than two durable copies would be left"

        code, document = _json(servers, "plan", "remove", "6", "--execute")
        drain, _ = document["plan"]["steps"]
        assert (code, drain["replicas"], drain["quorum_left"], drain["copies_left"]) == (0, 3, 1, 3)
        planned = {move["partition"]: move["replicas_after"] for move in drain["moves"]}
        after = [planned.get(partition, on) for partition, on in enumerate(found)]
        assert _replicas(servers) == after
        assert all(len({HOSTS[server] for server in on}) == 3 for on in after)
        code, document = _json(servers, "balance", "--stop")
        assert (code, document) == (0, {"stopped": 0})
    finally:
        load.stop()
    assert not load.failures
    for partition in range(PARTITIONS):
        assert_kept(load, read_back(servers.bootstrap, "t", partition), partition)
