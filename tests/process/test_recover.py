"""`vdl recover` on three real servers, of which two lose their disks for good."""

from __future__ import annotations

import io
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.chaos.harness.replica_set import free_port
from vdl.commands.app import run_app
from vdl.commands.checks.cluster_status import collect
from vdl.config.values import parse_address
from vdl.kafka.client import Unreachable

SECONDS = 600.0
TOPIC = "orders"
PARTITIONS = 2
GROUP = "billing"


class Servers:
    """Three servers of one cluster, by id."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        kinds = ("kafka", "peer", "admin")
        self.ports = {n: {kind: free_port() for kind in kinds} for n in (1, 2, 3)}
        self.running: dict[int, subprocess.Popen[bytes]] = {}

    def bootstrap(self, *servers: int) -> str:
        return ",".join(f"127.0.0.1:{self.ports[n]['kafka']}" for n in servers or (1, 2, 3))

    def data(self, server: int) -> Path:
        return self.folder / f"data{server}"

    def start(self, *servers: int, election: str = "10s") -> None:
        seeds = "\n".join(f'{n} = "127.0.0.1:{self.ports[n]["peer"]}"' for n in (1, 2, 3))
        for server in servers:
            ports, file = self.ports[server], self.folder / f"{server}.toml"
            file.write_text(
                f'[server]\nid = {server}\ndata_dir = "data{server}"\n'
                f'[[listeners]]\nname = "PLAINTEXT"\nlisten = "127.0.0.1:{ports["kafka"]}"\n'
                f'[peer]\nlisten = "127.0.0.1:{ports["peer"]}"\n'
                f'[admin]\nlisten = "127.0.0.1:{ports["admin"]}"\n[http]\nlisten = "off"\n'
                f"[cluster]\ncoordinators = 1\n[cluster.seeds]\n{seeds}\n"
                f'[raft]\nelection_timeout = "{election}"\n',
                encoding="utf-8",
            )
            with (self.folder / f"{server}.log").open("ab") as log:
                self.running[server] = subprocess.Popen(
                    [sys.executable, "-m", "vdl.cli", "serve", "--config", str(file)],
                    stdout=log,
                    stderr=log,
                )

    def kill(self, *servers: int) -> None:
        for server in servers:
            self.running[server].kill()
        for server in servers:
            self.running.pop(server).wait(30)

    def log(self, server: int) -> str:
        return (self.folder / f"{server}.log").read_text(encoding="utf-8")


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[Servers]:
    made = Servers(tmp_path)
    try:
        yield made
    finally:
        made.kill(*made.running)


def vdl(*words: str) -> tuple[int, str, str]:
    """Run a command. Return its exit code, output and errors."""
    out, error = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(error):
        code = run_app(words)
    return code, out.getvalue(), error.getvalue()


def plan_of(directory: Path) -> dict:
    code, out, error = vdl("recover", str(directory), "--json")
    assert code == 0, error
    return json.loads(out)


def contents(directory: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


def until(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.2)


def is_whole(servers: Servers) -> bool:
    """Return True if three servers answer, and every group has three voters in sync."""
    try:
        found = collect(map(parse_address, servers.bootstrap().split(",")))
    except Unreachable:
        return False
    groups = [*found.groups, *found.partitions]
    return (
        len(found.servers) == len(servers.running) == 3
        and not any(server.problem for server in found.servers)
        and all(group.is_well and len(group.replicas) == 3 for group in groups)
    )


def create_topic(servers: Servers) -> None:
    def created() -> bool:
        admin = AdminClient({"bootstrap.servers": servers.bootstrap(), "log_level": 0})
        topic = NewTopic(TOPIC, PARTITIONS, 3, config={"min.insync.replicas": "2"})
        try:
            admin.create_topics([topic])[TOPIC].result(30)
        except TimeoutError:
            return False
        except KafkaException as error:
            return "ALREADY_EXISTS" in str(error)
        return True

    until(created, "the topic is created")


def write(servers: Servers, values: range, **settings: object) -> None:
    """Write records with acks=all, by an idempotent producer."""
    failed: list[object] = []
    producer = Producer(
        {"bootstrap.servers": servers.bootstrap(), "enable.idempotence": True, "log_level": 0,
         "message.timeout.ms": 300_000, "transaction.timeout.ms": 300_000, **settings}
    )  # fmt: skip
    if "transactional.id" in settings:
        producer.init_transactions(300)
        producer.begin_transaction()
    for value in values:
        producer.produce(
            TOPIC, str(value), partition=value % PARTITIONS,
            on_delivery=lambda error, _: failed.append(error) if error else None,
        )  # fmt: skip
    assert producer.flush(300) == 0
    assert not failed
    if "transactional.id" in settings:
        producer.commit_transaction(300)


def read(bootstrap: str) -> list[int]:
    """Read all committed records."""
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "reader", "enable.auto.commit": False,
         "isolation.level": "read_committed", "enable.partition.eof": True, "log_level": 0}
    )  # fmt: skip
    found: list[int] = []
    try:
        for partition in range(PARTITIONS):
            consumer.assign([TopicPartition(TOPIC, partition, 0)])
            deadline = time.monotonic() + SECONDS
            is_read = False
            while not is_read:
                assert time.monotonic() < deadline, found
                message = consumer.poll(0.5)
                if message is not None and not message.error():
                    found.append(int(message.value()))
                elif message is not None:
                    is_read = message.error().code() == KafkaError._PARTITION_EOF
    finally:
        consumer.close()
    return sorted(found)


def commit(servers: Servers, offset: int) -> None:
    consumer = Consumer(
        {"bootstrap.servers": servers.bootstrap(), "group.id": GROUP, "log_level": 0}
    )
    consumer.commit(offsets=[TopicPartition(TOPIC, 0, offset)], asynchronous=False)
    consumer.close()


def committed(bootstrap: str) -> int:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": GROUP, "log_level": 0})
    (found,) = consumer.committed([TopicPartition(TOPIC, 0)], timeout=300)
    consumer.close()
    return found.offset


def leader_of(bootstrap: str) -> int:
    """Return the server that leads the first partition; -1 if that is not known."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    try:
        return admin.list_topics(TOPIC, timeout=30).topics[TOPIC].partitions[0].leader
    except (KafkaException, KeyError):
        return -1


def lose_a_majority(servers: Servers) -> None:
    """Write records and offsets; then end all servers, and take the disks of two away."""
    servers.start(1, 2, 3)
    until(lambda: is_whole(servers), "three servers")
    create_topic(servers)
    write(servers, range(100))
    write(servers, range(100, 150), **{"transactional.id": "till"})
    commit(servers, 40)
    until(lambda: is_whole(servers), "all copies")
    servers.kill(1, 2, 3)
    for server in (2, 3):
        servers.data(server).rename(servers.folder / f"old{server}")


def test_survivor_leads_alone_and_the_set_becomes_whole(servers: Servers) -> None:
    """Everything that the survivor holds is there, three copies again; old disks take no part."""
    lose_a_majority(servers)
    survivor = servers.data(1)
    before = contents(survivor)
    plan = plan_of(survivor)
    assert contents(survivor) == before
    fates = {row["name"]: row["fate"] for row in plan["groups"]}
    names = ["catalog", "coordinator-1", "orders-0", "orders-1"]
    assert fates == dict.fromkeys(names, "kept")
    old_id = plan["cluster_id"]
    code, _, error = vdl("recover", str(survivor), "--accept-data-loss", "--yes", "another")
    assert code == 1
    assert "not the cluster id" in error
    assert contents(survivor) == before

    starts = servers.log(1).count("event=recovered")
    servers.start(1)
    # The command locks the directory too: a server that starts meanwhile would be refused.
    until(lambda: servers.log(1).count("event=recovered") > starts, "the server has its directory")
    code, _, error = vdl("recover", str(survivor), "--accept-data-loss", f"--yes={old_id}")
    assert code == 1
    assert "in use by a running server" in error
    servers.kill(1)
    code, _, error = vdl("recover", str(survivor), "--accept-data-loss", f"--yes={old_id}")
    assert code == 0, error
    assert not plan_of(survivor)["is_needed"]

    servers.start(1)
    alone = servers.bootstrap(1)
    until(lambda: leader_of(alone) == 1, "the survivor leads")
    assert read(alone) == list(range(150))
    assert committed(alone) == 40

    # An old disk comes back: it is refused, and says so.
    shutil.copytree(servers.folder / "old3", servers.data(3))
    servers.start(3, election="1s")
    until(lambda: "recovered_without_this" in servers.log(3), "the old server says so")
    assert servers.running.pop(3).wait(30) != 0
    assert leader_of(alone) == 1
    shutil.rmtree(servers.data(3))

    servers.start(2, 3)
    until(lambda: is_whole(servers), "three copies again")
    write(servers, range(150, 200))
    write(servers, range(200, 250), **{"transactional.id": "till"})
    assert committed(servers.bootstrap()) == 40
    until(lambda: leader_of(servers.bootstrap()) > 0, "a leader")
    servers.kill(leader_of(servers.bootstrap()))
    left = servers.bootstrap(*servers.running)
    until(lambda: leader_of(left) in servers.running, "another leader")
    assert read(left) == list(range(250))
