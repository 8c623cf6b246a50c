"""A coordinator with many committed offsets: all of them are there, on whichever server it is.

POSITIONS=1000000 fills it to its limit; then it takes some minutes.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator

import pytest

from tests.chaos.conftest import Figure
from tests.chaos.harness.cluster import create_topic, wait_healthy
from tests.chaos.harness.replica_set import ReplicaSet
from tests.wire import AnyApiClient
from vdl.kafka.client import KafkaClient, Unreachable
from vdl.kafka.wire import api_versions, find_coordinator, metadata, offset_commit
from vdl.kafka.wire import offset_fetch as fetch_wire

pytestmark = pytest.mark.takes_turns(parts=2)

POSITIONS = int(os.environ.get("POSITIONS", "100000"))
TOPIC = "positions"
PARTITIONS = 100
GROUPS = POSITIONS // PARTITIONS
METADATA, COMMIT, FETCH, FIND, VERSIONS = 3, 8, 9, 10, 18
TOO_EARLY = {14, 15, 16}
"""Errors that clients retry: the coordinator is loading, not available, elsewhere."""
SETTINGS = {"cluster.coordinators": 1, "raft.command_entries_kept": 50}
CHECKPOINT_SECONDS = 15.0
"""Interval of checkpoints, behind which logs are trimmed.

A replica that lacks more needs a snapshot.
"""
SECONDS_MAX = 120.0


@pytest.fixture
def servers(request: pytest.FixtureRequest) -> Iterator[ReplicaSet]:
    servers = ReplicaSet()
    servers.configure(SETTINGS)
    servers.up()
    before = request.session.testsfailed
    yield servers
    servers.close(failed=request.node.name if request.session.testsfailed > before else "")


class Asker:
    """Client that queries the current coordinator, and retries what may be retried."""

    def __init__(self, servers: ReplicaSet) -> None:
        self._servers = servers
        self._client: KafkaClient | None = None

    def _connect(self) -> KafkaClient:
        for server_id in self._servers.running():
            host, port = self._servers.address(server_id).split(":")
            try:
                with AnyApiClient(host, int(port)) as client:
                    asked = find_coordinator.FindCoordinatorRequest(coordinator_keys=["g0"])
                    (found,) = client.request(FIND, asked).coordinators
            except (Unreachable, OSError):
                continue
            if not found.error_code:
                return AnyApiClient(found.host, found.port).__enter__()
        raise Unreachable("nobody", "is the coordinator")

    def request(self, key: int, requests: list[object]) -> list[object]:
        deadline = time.monotonic() + SECONDS_MAX
        while True:
            try:
                self._client = self._client or self._connect()
                answers = self._client.requests([(key, one) for one in requests])
            except (Unreachable, OSError):
                self.close()
            else:
                if not any(codes(answer) & TOO_EARLY for answer in answers):
                    return answers
                self.close()
            assert time.monotonic() < deadline, "no answer"
            time.sleep(0.05)

    def close(self) -> None:
        """Forget the current coordinator."""
        if self._client is not None:
            self._client.__exit__(None, None, None)
            self._client = None

    def server_id(self) -> int:
        self.close()
        self._client = self._connect()
        return 1 + self._client._port - self._servers.base_port


def codes(answer: object) -> set[int]:
    if isinstance(answer, fetch_wire.OffsetFetchResponse):
        return {group.error_code for group in answer.groups}
    assert isinstance(answer, offset_commit.OffsetCommitResponse)
    return {one.error_code for topic in answer.topics for one in topic.partitions}


def commit_all(asker: Asker, topic_id: bytes, first: int) -> None:
    """Commit each group's offset in partition p: `first` + group + p."""
    for start in range(0, GROUPS, 10):
        requests: list[object] = []
        for group in range(start, min(GROUPS, start + 10)):
            partitions = [
                offset_commit.OffsetCommitRequestPartition(p, first + group + p)
                for p in range(PARTITIONS)
            ]
            topic = offset_commit.OffsetCommitRequestTopic(topic_id=topic_id, partitions=partitions)
            requests.append(offset_commit.OffsetCommitRequest(f"g{group}", topics=[topic]))
        for answer in asker.request(COMMIT, requests):
            assert codes(answer) == {0}


def check_all(asker: Asker, first: int, *, step: int = 1) -> None:
    for group in range(0, GROUPS, step):
        asked = fetch_wire.OffsetFetchRequestGroup(f"g{group}", topics=None)
        request = fetch_wire.OffsetFetchRequest(groups=[asked], require_stable=False)
        (answer,) = asker.request(FETCH, [request])
        assert isinstance(answer, fetch_wire.OffsetFetchResponse)
        (topic,) = answer.groups[0].topics
        found = {one.partition_index: one.committed_offset for one in topic.partitions}
        assert found == {p: first + group + p for p in range(PARTITIONS)}, f"g{group}"


class Pinger:
    """Requests each server's API versions continuously: the longest wait is that of its loop."""

    def __init__(self, servers: ReplicaSet) -> None:
        self._is_over = threading.Event()
        self.longest = dict.fromkeys(servers.server_ids, 0.0)
        self._threads = [
            threading.Thread(target=self._ping, args=(servers.address(one).split(":"), one))
            for one in servers.server_ids
        ]
        for thread in self._threads:
            thread.start()

    def _ping(self, place: list[str], server_id: int) -> None:
        asked = api_versions.ApiVersionsRequest("t", "1")
        while not self._is_over.is_set():
            try:
                with AnyApiClient(place[0], int(place[1]), timeout_seconds=30) as client:
                    while not self._is_over.wait(0.005):
                        began = time.monotonic()
                        client.request(VERSIONS, asked)
                        waited = time.monotonic() - began
                        self.longest[server_id] = max(self.longest[server_id], waited)
            except (Unreachable, OSError):
                self._is_over.wait(0.05)

    def take(self) -> dict[int, int]:
        """Return the longest waits since the last call, in milliseconds."""
        taken = {one: round(1_000 * seconds) for one, seconds in self.longest.items()}
        self.longest = dict.fromkeys(self.longest, 0.0)
        return taken

    def close(self) -> None:
        self._is_over.set()
        for thread in self._threads:
            thread.join()


def test_coordinator_with_many_positions_moves_and_starts_with_all_of_them(
    servers: ReplicaSet, figure: Figure
) -> None:
    """One server is away during the commits, and gets them in a snapshot.

    Then the leader is killed, then all servers.
    """
    host, port = servers.address(1).split(":")
    create_topic(servers, TOPIC, partitions=PARTITIONS)
    with AnyApiClient(host, int(port), timeout_seconds=60) as client:
        named = metadata.MetadataRequestTopic(name=TOPIC)
        (made,) = client.request(METADATA, metadata.MetadataRequest([named])).topics
    asker = Asker(servers)
    pinger = Pinger(servers)
    try:
        commit_all(asker, made.topic_id, 0)
        figure("longest_ms_idle", pinger.take())
        away = next(one for one in servers.server_ids if one != asker.server_id())
        figure("rss_mb_before", {one: servers.rss_bytes(one) >> 20 for one in servers.running()})
        servers.kill(away)
        began = time.monotonic()
        commit_all(asker, made.topic_id, 1_000)
        figure("commit_seconds", round(time.monotonic() - began, 1))
        figure("longest_ms_commits", pinger.take())
        time.sleep(CHECKPOINT_SECONDS)
        figure("longest_ms_checkpoints", pinger.take())
        servers.start(away)
        servers.wait_serving(away)
        wait_healthy(servers)
        figure("longest_ms_snapshot", pinger.take())
        figure("rss_mb", {one: servers.rss_bytes(one) >> 20 for one in servers.running()})
        servers.kill(asker.server_id())
        began = time.monotonic()
        check_all(asker, 1_000, step=GROUPS)
        figure("failover_seconds", round(time.monotonic() - began, 2))
        check_all(asker, 1_000)
        figure("longest_ms_failover", pinger.take())
        servers.kill(*servers.running())
        began = time.monotonic()
        servers.up()
        check_all(asker, 1_000, step=GROUPS)
        figure("start_seconds", round(time.monotonic() - began, 2))
        figure("longest_ms_start", pinger.take())
        figure("rss_mb_start", {one: servers.rss_bytes(one) >> 20 for one in servers.running()})
        check_all(asker, 1_000)
    finally:
        pinger.close()
        asker.close()
