"""Links between servers become encrypted one server at a time, while values are written.

Three rounds over all servers (deploy/runbook.md): accept both, dial encrypted, refuse plain. A
producer continues through all of it, with no more effect than a restart has.
"""

from __future__ import annotations

import time

import pytest
from confluent_kafka.admin import AdminClient

from tests.chaos.conftest import Figure
from tests.chaos.harness.cluster import HEALTHY_SECONDS_MAX, create_topic, numbers
from tests.chaos.harness.load import IDEMPOTENT, QUIET, Load, assert_kept, read_back
from tests.chaos.harness.replica_set import ReplicaSet
from vdl.commands.servers.certificates import open_authority, write_server

pytestmark = pytest.mark.takes_turns(parts=2)

TOPIC = "rolling"
CLUSTER = "vdl"
ROUNDS = ("accepted", "preferred", "required")
SETTLED_ACKS = 50


def wait_in_sync(replica_set: ReplicaSet, topic: str = TOPIC) -> None:
    """Wait until every server has a replica of the topic that is in sync."""
    deadline = time.monotonic() + HEALTHY_SECONDS_MAX
    while True:
        admin = AdminClient({"bootstrap.servers": replica_set.bootstrap, **QUIET})
        partition = admin.list_topics(topic, timeout=HEALTHY_SECONDS_MAX).topics[topic].partitions
        if 0 in partition and len(partition[0].isrs) == replica_set.nodes:
            return
        assert time.monotonic() < deadline, f"in sync: {partition}"
        time.sleep(0.1)


def secured(plain: str, server_id: int, links: str) -> str:
    """Return a server's configuration with its certificate and `tls.links`."""
    rows = [
        "[tls]",
        f'certificate = "../tls/server-{server_id}.pem"',
        f'key = "../tls/server-{server_id}.key"',
        'ca = "../tls/ca.pem"',
        f'links = "{links}"',
    ]
    return plain + "\n" + "\n".join(rows) + "\n"


def test_links_become_encrypted_without_a_failed_send(
    replica_set: ReplicaSet, figure: Figure
) -> None:
    """Nine restarts, 0 failed sends, 0 records lost or moved.

    In the end both others refuse a server without encryption, and continue without it.
    """
    folder = replica_set.directory / "tls"
    authority = open_authority(folder, CLUSTER)
    files = {one: replica_set.server(one).config_file for one in replica_set.server_ids}
    plain = {one: file.read_text(encoding="utf-8") for one, file in files.items()}
    for server_id in replica_set.server_ids:
        write_server(folder, authority, CLUSTER, server_id, ())

    def restart(server_id: int, text: str) -> None:
        files[server_id].write_text(text, encoding="utf-8")
        replica_set.terminate(server_id)
        replica_set.wait_stopped(server_id)
        replica_set.start(server_id)

    def refused(server_id: int) -> float:
        return numbers(replica_set, server_id).get("vdl_server_links_refused_total", -1.0)

    create_topic(replica_set, TOPIC)
    load = Load(replica_set.bootstrap, TOPIC, IDEMPOTENT)
    began_ns = time.monotonic_ns()
    load.start()
    try:
        for links in ROUNDS:
            for server_id in replica_set.server_ids:
                load.wait_acknowledged(SETTLED_ACKS)
                restart(server_id, secured(plain[server_id], server_id, links))
                replica_set.wait_serving(server_id)
                wait_in_sync(replica_set)
        ended_ns = time.monotonic_ns()
        before = [refused(1), refused(2)]
        restart(3, plain[3])
        deadline = time.monotonic() + HEALTHY_SECONDS_MAX
        while refused(1) <= before[0] or refused(2) <= before[1]:
            assert time.monotonic() < deadline, "a server without encryption is not refused"
            time.sleep(0.1)
        load.wait_acknowledged(SETTLED_ACKS)
        restart(3, secured(plain[3], 3, ROUNDS[-1]))
        wait_in_sync(replica_set)
    finally:
        load.stop()
    figure("rolling_gap_ms_max", round(load.longest_gap_ms(began_ns, ended_ns)))
    figure("acknowledged", len(load.acks))
    assert load.failures == {}
    assert len(load.acks) == load.sent
    assert_kept(load, read_back(replica_set.bootstrap, TOPIC))
