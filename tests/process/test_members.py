"""A cluster of real processes grows from three servers to four, and shrinks again, under load.

A producer with acks=all and idempotence writes all the time, and a consumer group reads. The server
that leads the catalog is killed while the new server is drained. In another cluster the added
server loses its disk. In a third all servers with which it began are removed.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.chaos.harness.members import SECONDS_MAX, catalog_leader, members, until, vdl
from tests.chaos.harness.replica_set import free_port
from tests.wire import codec
from vdl.kafka.client import KafkaClient, Unreachable
from vdl.kafka.wire import alter_partition_reassignments as alter

PARTITIONS = 4
ALTER_PARTITION_REASSIGNMENTS = 45


class Set:
    """Servers of one cluster, by id."""

    def __init__(self, folder: Path, servers: int = 4) -> None:
        self.folder = folder
        kinds = ("kafka", "peer", "admin")
        self.ports = {n: {kind: free_port() for kind in kinds} for n in range(1, servers + 1)}
        self.running: dict[int, subprocess.Popen[bytes]] = {}
        self.contacts: tuple[int, ...] = (1, 2, 3)
        """Servers whose addresses clients have."""

    @property
    def bootstrap(self) -> str:
        return ",".join(f"127.0.0.1:{self.ports[n]['kafka']}" for n in self.contacts)

    def start(self, server: int) -> None:
        """Start a server whose file has the addresses of the first three."""
        ports, file = self.ports[server], self.folder / f"{server}.toml"
        seeds = "\n".join(f'{n} = "127.0.0.1:{self.ports[n]["peer"]}"' for n in (1, 2, 3))
        file.write_text(
            f'[server]\nid = {server}\ndata_dir = "data{server}"\n'
            f'[[listeners]]\nname = "PLAINTEXT"\nlisten = "127.0.0.1:{ports["kafka"]}"\n'
            f'[peer]\nlisten = "127.0.0.1:{ports["peer"]}"\n'
            f'[admin]\nlisten = "127.0.0.1:{ports["admin"]}"\n[http]\nlisten = "off"\n'
            f"[cluster]\ncoordinators = 1\n[cluster.seeds]\n{seeds}\n"
            '[raft]\nelection_timeout = "10s"\n',
            encoding="utf-8",
        )
        with (self.folder / f"{server}.log").open("ab") as log:
            self.running[server] = subprocess.Popen(
                [sys.executable, "-m", "vdl.cli", "serve", "--config", str(file)],
                stdout=log,
                stderr=log,
            )

    def log(self, server: int) -> str:
        return (self.folder / f"{server}.log").read_text(encoding="utf-8")

    def end(self, server: int, number: signal.Signals = signal.SIGTERM) -> None:
        """End a server's process."""
        self.running[server].send_signal(number)
        self.running.pop(server).wait(60)

    def add(self, server: int) -> None:
        """Start a server in an empty directory, and add it."""
        self.start(server)
        peer = f"127.0.0.1:{self.ports[server]['peer']}"
        until(
            lambda: not self.vdl("member", "add", str(server), "--peer", peer)[0],
            f"server {server} is not added",
        )

    def remove(self, server: int) -> None:
        """Remove a server, and end its process once it says so."""
        name = str(server)
        until(
            lambda: not self.vdl("member", "remove", name, "--no-wait")[0],
            f"server {server} does not begin to leave",
        )
        until(
            lambda: self.members() and server not in self.members(),
            f"server {server} is not removed",
        )
        until(
            lambda: "event=server_removed" in self.log(server),
            f"server {server} does not say that it was removed",
        )

    def vdl(self, *words: str) -> tuple[int, str, str]:
        return vdl(self.bootstrap, *words)

    def members(self) -> dict[int, dict[str, object]]:
        return members(self.bootstrap)

    def close(self) -> None:
        for process in self.running.values():
            process.kill()
        for process in self.running.values():
            process.wait(30)


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[Set]:
    found = Set(tmp_path)
    try:
        yield found
    finally:
        found.close()


class Load:
    """A producer and a member of a consumer group, in threads of their own."""

    def __init__(self, bootstrap: str) -> None:
        self.acknowledged: list[int] = []
        self.failed: list[str] = []
        self.read: Counter[int] = Counter()
        self._stop = threading.Event()
        self._producer = Producer(
            {"bootstrap.servers": bootstrap, "enable.idempotence": True, "acks": "all"}
        )
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "g",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
            }
        )
        self._threads = [threading.Thread(target=run) for run in (self._write, self._read)]
        for thread in self._threads:
            thread.start()

    def _write(self) -> None:
        number = 0
        while not self._stop.is_set():
            self._producer.produce(
                "t",
                b"%d" % number,
                partition=number % PARTITIONS,
                on_delivery=lambda error, message: self._delivered(error, message.value()),
            )
            number += 1
            self._producer.poll(0.02)
        assert self._producer.flush(SECONDS_MAX) == 0

    def _delivered(self, error: object, value: bytes) -> None:
        if error is None:
            self.acknowledged.append(int(value))
        else:
            self.failed.append(str(error))

    def _read(self) -> None:
        self._consumer.subscribe(["t"])
        deadline = time.monotonic() + 2 * SECONDS_MAX
        while not (self._stop.is_set() and self.is_complete()) and time.monotonic() < deadline:
            message = self._consumer.poll(0.2)
            if message is not None and message.error() is None:
                self.read[int(message.value())] += 1
        self._consumer.close()

    def is_complete(self) -> bool:
        return not self._threads[0].is_alive() and len(self.read) >= len(self.acknowledged)

    def end(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(2 * SECONDS_MAX)
            assert not thread.is_alive()


def leading(servers: Set, server: int) -> object:
    """Return the number of partitions that a server leads."""
    return servers.members().get(server, {}).get("leading")


def is_created(servers: Set) -> bool:
    """Create the topic, unless it exists. Return True if it does."""
    admin = AdminClient({"bootstrap.servers": servers.bootstrap})
    try:
        admin.create_topics([NewTopic("t", PARTITIONS, 3)])["t"].result(60)
    except KafkaException as error:
        return bool(error.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS)
    return True


def is_moved(servers: Set, replicas: list[list[int]]) -> bool:
    """Reassign the partitions of the topic. Return False if the server was too busy."""
    partitions = [alter.ReassignablePartition(n, to) for n, to in enumerate(replicas)]
    request = alter.AlterPartitionReassignmentsRequest(
        10_000, True, [alter.ReassignableTopic("t", partitions)]
    )
    port = servers.ports[1]["kafka"]
    try:
        with KafkaClient("127.0.0.1", port, timeout_seconds=60, module=codec) as client:
            answer = client.request(ALTER_PARTITION_REASSIGNMENTS, request)
    except Unreachable:
        return False
    return not any(p.error_code for t in answer.responses for p in t.partitions)


def begin(servers: Set) -> None:
    """Form a cluster of three servers, with the topic."""
    for server in (1, 2, 3):
        servers.start(server)
    until(lambda: len(servers.members()) == 3, "the cluster does not form")
    until(
        lambda: all(m["standing"] == "member" for m in servers.members().values()), "not all serve"
    )
    until(lambda: is_created(servers), "the topic is not created")


def is_in_sync(servers: Set, server: int) -> bool:
    """Return True if the server's replica of each partition that it has is in sync."""
    admin = AdminClient({"bootstrap.servers": servers.bootstrap})
    partitions = admin.list_topics("t", timeout=60).topics["t"].partitions.values()
    on_it = [one for one in partitions if server in one.replicas]
    return bool(on_it) and all(server in one.isrs for one in on_it)


def write(servers: Set, numbers: range) -> None:
    """Write numbers with acks=all; each must be acknowledged."""
    failed: list[object] = []
    producer = Producer({"bootstrap.servers": servers.bootstrap, "acks": "all"})
    for number in numbers:
        producer.produce(
            "t", b"%d" % number, partition=number % PARTITIONS,
            on_delivery=lambda error, _: failed.append(error) if error else None,
        )  # fmt: skip
    assert producer.flush(SECONDS_MAX) == 0
    assert not failed


def test_added_server_that_lost_its_disk_takes_no_part_until_it_is_added_again(
    servers: Set,
) -> None:
    """It waits in its empty directory. Its replicas are filled again, and no record is lost."""
    begin(servers)
    servers.start(4)
    until(lambda: 4 in servers.members(), "the new server does not wait")
    peer = f"127.0.0.1:{servers.ports[4]['peer']}"
    waiting = servers.members()[4]
    assert (waiting["standing"], waiting["address"]) == ("waiting", peer)
    assert f"directory={waiting['directory_id']}" in servers.log(4)
    until(lambda: not servers.vdl("member", "add", "4", "--peer", peer)[0], "it is not added")
    until(
        lambda: is_moved(servers, [[4, 1, 2], [2, 4, 3], [3, 1, 4], [4, 2, 3]]),
        "the partitions are not moved",
    )
    write(servers, range(100))
    until(lambda: is_in_sync(servers, 4), "its replicas do not catch up")
    servers.running[4].kill()
    servers.running[4].wait(30)
    shutil.rmtree(servers.folder / "data4")
    servers.start(4)
    again = "it lost its directory: add it again"
    until(lambda: servers.members()[4]["reason"] == again, "it does not wait")
    lost = servers.members()[4]
    assert lost["directory_id"] != waiting["directory_id"]
    assert lost["replicas"] == PARTITIONS
    write(servers, range(100, 200))
    assert not is_in_sync(servers, 4)
    until(lambda: not servers.vdl("member", "add", "4", "--peer", peer)[0], "it is not added")
    until(lambda: is_in_sync(servers, 4), "its replicas are not filled again")
    assert not servers.members()[4]["reason"]
    assert log_counts(servers) == Counter(range(200))


def test_cluster_grows_and_shrinks_under_load_and_loses_nothing(servers: Set) -> None:
    """3 → 4 → 3 servers: each acknowledged record is read, and each number is in the log once."""
    begin(servers)
    load = Load(servers.bootstrap)
    try:
        code, _, error = servers.vdl("member", "add", "4", "--peer", "127.0.0.1:1", "--no-wait")
        assert code == 1
        assert "server 4 is connected to no server" in error
        servers.start(4)
        until(lambda: "waiting_to_be_added" in servers.log(4), "the new server does not wait")
        peer = f"127.0.0.1:{servers.ports[4]['peer']}"
        until(lambda: not servers.vdl("member", "add", "4", "--peer", peer)[0], "it is not added")
        assert servers.members()[4]["standing"] == "member"
        moved = [[4, 1, 2], [2, 4, 3], [3, 1, 4], [4, 2, 3]]
        until(lambda: is_moved(servers, moved), "the partitions are not moved")
        until(lambda: leading(servers, 4), "the new server leads nothing")
        until(lambda: not servers.vdl("member", "remove", "4", "--no-wait")[0], "it is not drained")
        leader = catalog_leader(servers.bootstrap)
        servers.running[leader].send_signal(signal.SIGKILL)
        servers.running[leader].wait(30)
        servers.start(leader)
        until(lambda: servers.members().keys() == {1, 2, 3}, "the server is not removed")
        until(
            lambda: "event=server_removed" in servers.log(4), "the removed server does not say so"
        )
        servers.running[4].send_signal(signal.SIGTERM)
        assert servers.running[4].wait(60) == 0
    finally:
        load.end()
    assert_each_is_there_once(load, servers)
    servers.start(4)
    until(lambda: servers.log(4).count("event=server_removed") > 1, "the removed server takes part")


def test_all_servers_of_the_beginning_are_removed_under_load(tmp_path: Path) -> None:
    """Three others have all records then, each once, also after all of them were restarted.

    All files name only servers that are gone. An old directory of a removed server, and an empty
    one, take no part.
    """
    servers = Set(tmp_path, 6)
    try:
        begin(servers)
        code, _, error = servers.vdl("member", "remove", "1", "--no-wait")
        assert code == 1
        assert "only 2 other servers stay: add a server first" in error
        servers.contacts = (1, 2, 3, 4, 5, 6)
        load = Load(servers.bootstrap)
        try:
            for new, old in ((4, 1), (5, 2), (6, 3)):
                servers.add(new)
                servers.remove(old)
                if new == 5:
                    leader = catalog_leader(servers.bootstrap)
                    servers.end(leader, signal.SIGKILL)
                    servers.start(leader)
                servers.end(old)
        finally:
            load.end()
        assert_each_is_there_once(load, servers)
        assert {n for n, one in servers.members().items() if one["is_voter"]} == {4, 5, 6}
        for server in (4, 5, 6):
            servers.end(server)
        for server in (4, 5, 6):
            servers.start(server)
        servers.contacts = (4, 5, 6)
        until(lambda: log_counts(servers) == Counter(load.acknowledged), "they do not serve again")
        shutil.rmtree(servers.folder / "data2")
        servers.start(1)
        servers.start(2)
        until(lambda: servers.log(1).count("event=server_removed") > 1, "it does not say so again")
        write(servers, range(1_000_000, 1_000_100))
        assert servers.members().keys() == {4, 5, 6}
        assert log_counts(servers) == Counter([*load.acknowledged, *range(1_000_000, 1_000_100)])
    finally:
        servers.close()


def assert_each_is_there_once(load: Load, servers: Set) -> None:
    """Check that no record failed, and that each acknowledged one was read and is there once."""
    assert not load.failed
    assert len(load.acknowledged) > 100
    assert set(load.acknowledged) <= load.read.keys()
    assert log_counts(servers) == Counter(load.acknowledged)


def log_counts(servers: Set) -> Counter[int]:
    """Return how often each number is in the topic, read without a group."""
    reader = Consumer(
        {
            "bootstrap.servers": servers.bootstrap,
            "group.id": "none",
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
        }
    )
    reader.assign([TopicPartition("t", number, 0) for number in range(PARTITIONS)])
    found: Counter[int] = Counter()
    ended: set[int | None] = set()
    deadline = time.monotonic() + SECONDS_MAX
    while len(ended) < PARTITIONS and time.monotonic() < deadline:
        message = reader.poll(1.0)
        if message is None:
            continue
        error = message.error()
        if error is None:
            found[int(message.value() or b"")] += 1
        elif error.code() == KafkaError._PARTITION_EOF:
            ended.add(message.partition())
    reader.close()
    return found
