"""`vdl explain` on real servers: each planted state is named, and a sound one is called so."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer

from ids import GroupId, ServerId
from rpc.admin_client import AdminClient
from tests.clients.raw import PRODUCE_VERSION, RawConnection, produce_request
from vdl.commands.checks.cluster_facts import collect_facts
from vdl.commands.cluster.bootstrap_option import addresses
from vdl.errors import ErrorCode
from vdl.kafka.client import KafkaClient, Unreachable
from vdl.kafka.wire.alter_client_quotas import (
    AlterClientQuotasRequest,
    EntityData,
    EntryData,
    OpData,
)
from vdl.kafka.wire.find_coordinator import FindCoordinatorRequest
from vdl.kafka.wire.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from vdl.kafka.wire.leave_group import LeaveGroupRequest, MemberIdentity
from vdl.kafka.wire.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from vdl.records.batch import Record, build_batch
from vdl.server.explain.facts import Facts
from vdl.server.explain.questions import About, Question, explain
from vdl.state.subscription import write_assignment
from vdl.testing import Cluster
from vdl.testing.node import reserve_port, toml

WAIT_SECONDS_MAX = 90.0
QUIET = {"log_level": 0}
SETTINGS = {"admin.listen": "127.0.0.1:0", "request.slow": "400ms"}
PRODUCE, FIND_COORDINATOR, JOIN, LEAVE, SYNC, ALTER_QUOTAS = 0, 10, 11, 13, 14, 49
NO_SESSION_ENDS_MS = 300_000
ROOM_BYTES = 8 << 20
VDL = str(Path(sys.executable).parent / "vdl")


@pytest.fixture(scope="module")
def shared() -> Iterator[Cluster]:
    with Cluster(3, settings=SETTINGS) as cluster:
        yield cluster


@pytest.fixture
def cluster(shared: Cluster) -> Iterator[Cluster]:
    """Yield a cluster that is whole before and after each test."""
    yield shared
    shared.restore()


def ask(cluster: Cluster, question: Question, *, later_ms: int = 0) -> dict[str, Any]:
    """Return the answer to a question. `later_ms`: as if nothing more had happened since."""
    facts = facts_of(cluster, question)
    facts.now_ms += later_ms
    for server in facts.servers:
        if server.events is not None:
            server.events.now_ms += later_ms
    return explain(question, facts)


def facts_of(cluster: Cluster, question: Question) -> Facts:
    return collect_facts(addresses(cluster.bootstrap), topic=question.topic, group=question.group)


def kinds(answer: dict[str, Any]) -> list[str]:
    """Return the kinds of the answer's findings that are wrong."""
    return [one["kind"] for one in (answer, *answer["also"]) if one["wrong"]]


def answered(
    cluster: Cluster, question: Question, *wanted: str, seen: str | None = None
) -> dict[str, Any]:
    """Wait until the first finding is of one of these kinds, with an event `seen`; return the
    answer."""
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    while True:
        answer = ask(cluster, question)
        events = [one["event"] for one in answer["evidence"]]
        if answer["kind"] in wanted and (seen is None or seen in events):
            break
        assert time.monotonic() < deadline, json.dumps(answer, indent=1)
        time.sleep(0.2)
    assert answer["summary"]
    assert answer["cause"]
    assert answer["next"]
    return answer


def about_partition(topic: str, partition: int = 0) -> Question:
    return Question(About.PARTITION, topic=topic, partition=partition)


def about_leader(topic: str, partition: int = 0) -> Question:
    return Question(About.LEADER, topic=topic, partition=partition)


def produce(
    cluster: Cluster, topic: str, *values: bytes, timeout: float = WAIT_SECONDS_MAX, **more: Any
) -> list[str | None]:
    """Produce values; return the error of each, None for those that were acknowledged."""
    outcomes: list[str | None] = []

    def delivered(error: object, message: object) -> None:
        outcomes.append(None if error is None else str(error))

    settings = {
        "bootstrap.servers": cluster.bootstrap,
        "message.timeout.ms": round(timeout * 1_000),
        **QUIET,
        **more,
    }
    producer = Producer(settings)
    for value in values:
        producer.produce(topic, value, partition=0, on_delivery=delivered)
    producer.flush(WAIT_SECONDS_MAX)
    return outcomes


class Member:
    """A member of a classic group that does only what a test says. It sends no heartbeats."""

    def __init__(self, stack: ExitStack, cluster: Cluster, group: str, **settings: Any) -> None:
        self.group = group
        self.settings = settings
        self.id = ""
        self.generation = 0
        host, _, port = cluster.bootstrap.split(",")[0].partition(":")
        with KafkaClient(host, int(port)) as client:
            request = FindCoordinatorRequest(key_type=0, coordinator_keys=[group])
            (found,) = client.request(FIND_COORDINATOR, request).coordinators
        self.client = stack.enter_context(KafkaClient(found.host, found.port))

    def join(self) -> None:
        for _ in range(2):
            answer = self.client.request(JOIN, self._join_request())
            self.id = answer.member_id
            if answer.error_code != ErrorCode.MEMBER_ID_REQUIRED:
                break
        assert answer.error_code == ErrorCode.NONE, answer
        self.generation = answer.generation_id

    def _join_request(self) -> JoinGroupRequest:
        values = {
            "session_timeout_ms": NO_SESSION_ENDS_MS,
            "rebalance_timeout_ms": NO_SESSION_ENDS_MS,
            **self.settings,
        }
        return JoinGroupRequest(
            group_id=self.group,
            member_id=self.id,
            protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol("range", b"\0\0\0\0\0\0\xff\xff\xff\xff")],
            **values,
        )

    def sync(self, *topics: str) -> None:
        given = write_assignment([(topic, [0]) for topic in topics])
        answer = self.client.request(
            SYNC,
            SyncGroupRequest(
                self.group, self.generation, self.id,
                group_instance_id=self.settings.get("group_instance_id"),
                protocol_type="consumer", protocol_name="range",
                assignments=[SyncGroupRequestAssignment(self.id, given)],
            ),
        )  # fmt: skip
        assert answer.error_code == ErrorCode.NONE, answer

    def leave(self) -> None:
        self.client.request(LEAVE, LeaveGroupRequest(self.group, members=[MemberIdentity(self.id)]))
        self.id = ""


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as found:
        yield found


# --- a sound cluster ------------------------------------------------------------------------------
def test_sound_cluster_is_called_sound(cluster: Cluster) -> None:
    topic = cluster.topic()
    assert produce(cluster, topic, b"1") == [None]
    assert answered(cluster, about_partition(topic), "nothing_wrong")["ok"]
    assert answered(cluster, Question(About.CLUSTER), "nothing_wrong")["ok"]
    assert answered(cluster, Question(About.SERVER, server=1), "nothing_wrong")["ok"]
    assert ask(cluster, Question(About.SLOW, api="DeleteTopics"))["kind"] == "nothing_wrong"
    led = answered(cluster, about_leader(topic), "first_leader")
    assert led["ok"]
    assert led["server"] == cluster.leader(topic)


def test_unknown_names_are_said_to_be_unknown(cluster: Cluster) -> None:
    topic = cluster.topic()
    gone = cluster.topic()
    answered(cluster, about_partition("no-such-topic"), "unknown_topic")
    assert f"Did you mean {topic}?" in ask(cluster, about_partition(f"{topic}x"))["cause"]
    assert (
        "has 1 partition,"
        in answered(cluster, about_partition(topic, 7), "unknown_partition")["cause"]
    )
    answered(cluster, about_partition(gone), "nothing_wrong")
    cluster.delete_topics(gone)
    answered(cluster, about_partition(gone), "topic_deleted")
    answered(cluster, Question(About.GROUP, group="no-such-group"), "unknown_group")
    answered(cluster, Question(About.SERVER, server=9), "unknown_server")


# --- refused batches ------------------------------------------------------------------------------
def test_refused_batches_are_explained_by_their_error(cluster: Cluster) -> None:
    small = cluster.topic(configs={"max.message.bytes": "1000"})
    (error,) = produce(cluster, small, os.urandom(5_000))
    assert error is not None
    large = answered(cluster, about_partition(small), "record_too_large")
    assert large["evidence"][0]["fields"]["error"] == "MESSAGE_TOO_LARGE"
    assert "rdkafka at 127.0.0.1" in large["cause"]

    topic = cluster.topic()
    assert produce(cluster, topic, b"1") == [None]
    follower = next(one for one in cluster.servers if one != cluster.leader(topic))
    port = int(cluster.bootstrap.split(",")[follower - 1].rpartition(":")[2])
    connection = RawConnection(("127.0.0.1", port))
    request = produce_request(topic, bytes(build_batch([Record(b"k", b"v")])))
    answer = connection.ask(request, key=PRODUCE, version=PRODUCE_VERSION)
    connection.close()
    code = answer.responses[0].partition_responses[0].error_code
    assert code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    answered(cluster, about_partition(topic), "not_leader")


def test_fenced_producer_is_named(cluster: Cluster) -> None:
    topic = cluster.topic()
    settings = {"bootstrap.servers": cluster.bootstrap, "transactional.id": "tx-1", **QUIET}
    old, new = Producer(settings), Producer(settings)
    old.init_transactions(WAIT_SECONDS_MAX)
    old.begin_transaction()
    old.produce(topic, b"1", partition=0)
    old.flush(WAIT_SECONDS_MAX)
    new.init_transactions(WAIT_SECONDS_MAX)
    with suppress(KafkaException):
        old.produce(topic, b"2", partition=0)
        old.flush(WAIT_SECONDS_MAX)
        old.commit_transaction(WAIT_SECONDS_MAX)
    answered(cluster, about_partition(topic), "producer_fenced")


# --- replicas and leaders -------------------------------------------------------------------------
def test_dead_follower_and_returned_leader_are_explained(cluster: Cluster) -> None:
    strict = cluster.topic(configs={"min.insync.replicas": "3"})
    lax = cluster.topic()
    for topic in (strict, lax):
        assert produce(cluster, topic, b"1") == [None]
    leader = cluster.leader(lax)
    cluster.kill(leader)
    answer = answered(cluster, about_partition(lax), "under_replicated")
    assert f"server {leader} is not in sync" in answer["cause"]
    below = answered(cluster, about_partition(strict), "below_min_isr")
    assert "2 of 3 replicas are in sync, and min.insync.replicas is 3" in below["summary"]
    assert f"server {leader}" in below["next"]
    assert leader == below["server"]
    assert produce(cluster, strict, b"2", timeout=1.0) != [None]
    led = answered(cluster, about_leader(lax), "leader_process_ended")
    assert led["cause"] == f"The process of server {leader} ended."
    assert led["server"] != leader
    down = answered(cluster, Question(About.SERVER, server=leader), "server_unreachable")
    assert not down["ok"]
    assert "server_unreachable" in kinds(ask(cluster, Question(About.CLUSTER)))
    cluster.start(leader)
    answered(cluster, about_leader(lax), "moved_preferred_leader")
    assert "restarted" in [
        one["kind"] for one in ask(cluster, Question(About.SERVER, server=leader))["also"]
    ]


def test_leader_moved_by_hand_is_said_to_be_moved(cluster: Cluster) -> None:
    topic = cluster.topic()
    assert produce(cluster, topic, b"1") == [None]
    facts = facts_of(cluster, about_partition(topic))
    led = facts.leader_of(f"{topic}-0")
    assert led is not None
    leader, status = led
    other = next(one for one in cluster.servers if one != leader)
    with AdminClient(admin_of(cluster, leader)) as client:
        client.transfer_leadership(GroupId(status.group_id), ServerId(other))
    # The preferred leader may have it back by now, for another reason.
    answer = answered(cluster, about_leader(topic), "moved_operator", "moved_preferred_leader")
    moved = f"Server {leader} transferred {topic}-0 to server {other}: an operator asked for it."
    assert moved in [one["text"] for one in answer["evidence"]]


def admin_of(cluster: Cluster, server: int) -> tuple[str, int]:
    text = (cluster.directory / str(server) / "vdl.toml").read_text(encoding="utf-8")
    table = text.partition("[admin]")[2]
    host, _, port = table.partition('listen = "')[2].partition('"')[0].partition(":")
    return host, int(port)


def test_lost_majority_is_explained(cluster: Cluster) -> None:
    topic = cluster.topic()
    assert produce(cluster, topic, b"1") == [None]
    leader = cluster.leader(topic)
    others = [one for one in cluster.servers if one != leader]
    cluster.kill(*others)
    answer = answered(cluster, about_partition(topic), "no_majority")
    assert answer["next"] == f"Start servers {others[0]} and {others[1]}, or let them continue."
    assert any(f"Server {others[0]} did not answer" in text for text in answer["unknown"])


def test_paused_follower_and_cut_links_are_explained(cluster: Cluster) -> None:
    topic = cluster.topic()
    assert produce(cluster, topic, b"1") == [None]
    leader = cluster.leader(topic)
    follower = next(one for one in cluster.servers if one != leader)
    cluster.pause(follower)
    answer = answered(cluster, about_partition(topic), "under_replicated", seen="isr_shrunk")
    assert answer["evidence"][0]["fields"]["reason"] == "silent"
    cluster.restore()
    leader = cluster.leader(topic)
    cluster.isolate(leader)
    answered(cluster, Question(About.SERVER, server=leader), "no_quorum", seen="quorum_lost")
    led = answered(cluster, about_leader(topic), "leader_timeout", "leader_gave_up")
    assert led["server"] != leader


def test_slow_disks_make_slow_requests(cluster: Cluster) -> None:
    topic = cluster.topic()
    assert produce(cluster, topic, b"1") == [None]
    for server in cluster.servers:
        cluster.slow_disk(server, 0.6)
    assert produce(cluster, topic, b"2") == [None]
    answer = answered(cluster, Question(About.SLOW, api="Produce"), "slow_replication")
    assert answer["evidence"][0]["fields"]["wait_ms"] >= 400


def test_wrong_clock_is_explained(cluster: Cluster) -> None:
    cluster.advance_time(60, 3)
    answer = answered(cluster, Question(About.SERVER, server=3), "clock_wrong")
    assert "60 s ahead" in answer["summary"]
    cluster.advance_time(-60, 3)
    answered(cluster, Question(About.SERVER, server=3), "nothing_wrong")


# --- consumer groups ------------------------------------------------------------------------------
def test_member_that_comes_and_goes_is_named(cluster: Cluster, stack: ExitStack) -> None:
    group = Question(About.GROUP, group="churn")
    member = Member(stack, cluster, "churn")
    for _ in range(4):
        member.join()
        member.sync()
        member.leave()
    answer = answered(cluster, group, "rebalances_repeatedly")
    assert not answer["ok"]
    assert answer["evidence"][0]["count"] + len(answer["evidence"]) > 2


def test_silent_member_is_named_before_and_after_its_session(
    cluster: Cluster, stack: ExitStack
) -> None:
    topic = cluster.topic()
    assert produce(cluster, topic, b"1", b"2") == [None, None]
    member = Member(stack, cluster, "silent")
    member.join()
    member.sync(topic)
    lag = Question(About.LAG, group="silent", topic=topic)
    fresh = ask(cluster, lag)
    assert fresh["ok"], fresh
    stuck = ask(cluster, lag, later_ms=20_000)
    assert stuck["kind"] == "consumer_stuck"
    assert "2 records behind" in stuck["summary"]
    dead = Member(stack, cluster, "dead", session_timeout_ms=4_000)
    dead.join()
    dead.sync(topic)
    answered(cluster, Question(About.GROUP, group="dead"), "member_silent")
    answered(cluster, Question(About.LAG, group="dead"), "member_silent")
    answer = answered(cluster, Question(About.GROUP, group="dead"), "member_timed_out")
    assert "sent no heartbeat within its session timeout" in answer["cause"]


def test_awaited_member_is_named_during_a_rebalance(cluster: Cluster, stack: ExitStack) -> None:
    group = Question(About.GROUP, group="slow")
    first, second = Member(stack, cluster, "slow"), Member(stack, cluster, "slow")
    first.join()
    first.sync()
    assert ask(cluster, group)["ok"]
    joining = threading.Thread(target=second.join)
    joining.start()
    answer = answered(cluster, group, "rebalancing")
    assert "joined. It waits for" in answer["cause"]
    first.join()
    joining.join()


def test_group_without_consumers_is_behind_for_lack_of_them(cluster: Cluster) -> None:
    topic = cluster.topic()
    assert produce(cluster, topic, b"1", b"2") == [None, None]
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": "left",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            **QUIET,
        }
    )
    consumer.subscribe([topic])
    message = None
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    while message is None:
        assert time.monotonic() < deadline
        message = consumer.poll(1.0)
    consumer.commit(message=message, asynchronous=False)
    lag = Question(About.LAG, group="left")
    assert ask(cluster, lag)["ok"]
    consumer.close()
    answer = answered(cluster, lag, "no_consumer")
    assert "1 records behind" in answer["summary"]
    assert ask(cluster, Question(About.GROUP, group="left"))["kind"] == "no_members"


def test_throttled_clients_are_named(cluster: Cluster) -> None:
    topic = cluster.topic()
    set_quota(cluster, "producer_byte_rate", 1_000.0)
    try:
        produce(cluster, topic, *(os.urandom(9_000) for _ in range(3)))
        answer = answered(cluster, about_partition(topic), "throttled")
        assert "producer_byte_rate" in answer["cause"]
    finally:
        set_quota(cluster, "producer_byte_rate", None)
    settings = {
        "bootstrap.servers": cluster.bootstrap,
        "group.id": "throttled",
        "auto.offset.reset": "earliest",
        "fetch.message.max.bytes": 20_000,
        **QUIET,
    }
    full = cluster.topic()
    assert produce(cluster, full, *(os.urandom(9_000) for _ in range(30))) == [None] * 30
    consumer = Consumer(settings)
    set_quota(cluster, "consumer_byte_rate", 1_000.0)
    try:
        consumer.subscribe([full])
        deadline = time.monotonic() + WAIT_SECONDS_MAX
        lag = Question(About.LAG, group="throttled", topic=full)
        while (found := ask(cluster, lag))["kind"] != "throttled":
            assert time.monotonic() < deadline, json.dumps(found, indent=1)
            consumer.poll(0.2)
        assert "consumer_byte_rate" in found["cause"]
    finally:
        set_quota(cluster, "consumer_byte_rate", None)
        consumer.close()


def set_quota(cluster: Cluster, name: str, value: float | None) -> None:
    host, _, port = cluster.bootstrap.split(",")[0].partition(":")
    operation = OpData(name, value or 0.0, value is None)
    entry = EntryData([EntityData("client-id", None)], [operation])
    with KafkaClient(host, int(port)) as client:
        (answer,) = client.request(ALTER_QUOTAS, AlterClientQuotasRequest([entry])).entries
    assert answer.error_code == ErrorCode.NONE, answer


# --- the command ----------------------------------------------------------------------------------
def test_command_prints_words_and_json_without_control_characters(cluster: Cluster) -> None:
    topic = cluster.topic(configs={"max.message.bytes": "1000"})
    hostile = "rogue\x1b[2J\x9b31m"
    produce(cluster, topic, os.urandom(5_000), **{"client.id": hostile})
    base = [VDL, "explain", "--bootstrap", cluster.bootstrap]
    words = subprocess.run([*base, "partition", topic, "0"], capture_output=True, check=False)
    assert words.returncode == 1, words
    assert b"record_too_large" not in words.stdout
    assert b"MESSAGE_TOO_LARGE" in words.stdout
    document = subprocess.run(
        [*base, "partition", topic, "0", "--json"], capture_output=True, check=False
    )
    assert document.returncode == 1
    assert json.loads(document.stdout)["kind"] == "record_too_large"
    for output in (words.stdout, document.stdout):
        text = output.decode()
        assert "rogue" in text
        assert not {"\x1b", "\x9b"} & set(text)
    sound = subprocess.run([*base, "cluster"], capture_output=True, check=False)
    assert (sound.returncode, b"Nothing is wrong" in sound.stdout) == (0, True), sound
    assert subprocess.run([*base, "server"], capture_output=True, check=False).returncode == 2


# --- a full disk ----------------------------------------------------------------------------------
@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """Yield the address of a server, and its data directory, which is a small file system."""
    store = tmp_path / "store"
    store.mkdir()
    options = ["-t", "tmpfs", "-o", "size=64m", "none", str(store)]
    if subprocess.run(["mount", *options], capture_output=True, check=False).returncode:
        pytest.skip("needs the right to mount a file system")
    ports = [reserve_port() for _ in range(2)]
    kafka, admin = (f"127.0.0.1:{one.getsockname()[1]}" for one in ports)
    settings = {
        "server.id": 1,
        "server.data_dir": str(store),
        "admin.listen": admin,
        "http.listen": "off",
        "storage.journal_file_bytes": "4MiB",
        "storage.journal_first_file_bytes": "2MiB",
        "storage.meta_map_bytes": "16MiB",
    }
    listener = f'[[listeners]]\nname = "PLAINTEXT"\nlisten = "{kafka}"\n'
    (tmp_path / "vdl.toml").write_text(f"{toml(settings)}\n{listener}", encoding="utf-8")
    log = (tmp_path / "log").open("wb")
    server = subprocess.Popen([VDL, "serve", "--config", str(tmp_path / "vdl.toml")], stderr=log)
    try:
        yield kafka, store
    finally:
        server.kill()
        server.wait()
        log.close()
        for one in ports:
            one.close()
        subprocess.run(["umount", "-l", str(store)], check=False)


def test_full_disk_is_explained(small_disk: tuple[str, Path]) -> None:
    """Another program leaves little room.

    A checkpoint may make room for a moment. Then the finding is that batches were refused, which
    has the same kind. The event follows a moment after the state.
    """
    address, store = small_disk
    producer = Producer({"bootstrap.servers": address, **QUIET})
    producer.produce("full", b"the first", partition=0)
    assert producer.flush(WAIT_SECONDS_MAX) == 0
    room = os.statvfs(store)
    with (store / "ballast").open("wb") as ballast:
        os.posix_fallocate(ballast.fileno(), 0, room.f_bavail * room.f_frsize - ROOM_BYTES)
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    answer: dict[str, Any] = {"evidence": []}
    while {one["event"] for one in answer["evidence"]} != {"disk_full"}:
        assert time.monotonic() < deadline, json.dumps(answer, indent=1)
        if not len(producer):
            for _ in range(8):
                producer.produce("full", os.urandom(500_000), partition=0)
        producer.flush(1.0)
        with suppress(Unreachable):  # a loaded machine may take longer than a command waits
            answer = explain(about_partition("full"), collect_facts(addresses(address)))
    producer.purge()
    assert (answer["kind"], answer["server"]) == ("disk_full", 1)
    assert "its disk is full" in answer["cause"]
