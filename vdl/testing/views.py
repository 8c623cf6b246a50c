"""Questions to a cluster over Kafka's protocol: is it ready, who leads, make and delete a topic.

Each is answered by the servers that run, over a connection of its own. Does not depend on how the
servers were started.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping

from vdl.errors import ERRORS_BY_CODE
from vdl.kafka.client import KafkaClient, Unreachable
from vdl.kafka.wire import create_partitions, create_topics, delete_topics, find_coordinator
from vdl.kafka.wire import metadata as wire_metadata
from vdl.kafka.wire.metadata import MetadataResponsePartition as Partition
from vdl.kafka.wire.metadata import MetadataResponseTopic as Topic
from vdl.testing.errors import ClusterError

CALL_SECONDS_MAX = 5.0
READY_SECONDS_MAX = 60.0
CHANGE_SECONDS_MAX = 30.0
KNOWN_SECONDS_MAX = 3.0
"""Time that servers behind the others have to learn of a topic."""
POLL_SECONDS = 0.005
COORDINATOR_KEYS = [str(number) for number in range(64)]
"""Names of groups that fall on all coordinators, with near certainty."""
TOPIC_EXISTS, UNKNOWN_TOPIC = 36, 3
RETRIABLE = frozenset((5, 6, 7, 13, 14, 15, 16, 41))
"""Kafka's codes for a leader that moves, a request that timed out, a coordinator that loads."""


def _topics(client: KafkaClient, names: list[str]) -> list[Topic]:
    asked = wire_metadata.MetadataRequest(
        topics=[wire_metadata.MetadataRequestTopic(name=name) for name in names],
        allow_auto_topic_creation=False,
    )
    found: list[Topic] = client.request(wire_metadata.API_KEY, asked).topics
    return found


def _led(partitions: list[Partition]) -> int:
    """Return how many partitions have a leader."""
    return sum(row.leader_id >= 0 for row in partitions)


class Views:
    """Client of the servers at these ports of loopback."""

    def __init__(self, host: str) -> None:
        self._host = host

    def wait_ready(self, ports: Iterable[int], servers: int) -> None:
        """Wait until every server at `ports` knows `servers` servers, a controller and, for every
        group, a coordinator. Raises ClusterError."""
        deadline = time.monotonic() + READY_SECONDS_MAX
        for port in ports:
            while problem := self._not_ready(port, servers):
                if time.monotonic() > deadline:
                    raise ClusterError(f"not ready in {READY_SECONDS_MAX:.0f} s: {problem}")
                time.sleep(POLL_SECONDS)

    def _not_ready(self, port: int, servers: int) -> str:
        try:
            with KafkaClient(self._host, port, timeout_seconds=CALL_SECONDS_MAX) as client:
                while True:
                    found = client.request(
                        wire_metadata.API_KEY, wire_metadata.MetadataRequest(topics=[])
                    )
                    if len(found.brokers) < servers or found.controller_id < 0:
                        time.sleep(POLL_SECONDS)
                        return f"port {port} knows {len(found.brokers)} servers"
                    asked = find_coordinator.FindCoordinatorRequest(
                        coordinator_keys=COORDINATOR_KEYS
                    )
                    rows = client.request(find_coordinator.API_KEY, asked).coordinators
                    if any(row.error_code for row in rows):
                        return f"port {port} knows not all coordinators"
                    return ""
        except Unreachable as error:
            return str(error)

    def leader(self, ports: Iterable[int], topic: str, partition: int) -> int:
        """Return the id of the partition's leader, the one of the newest epoch; 0 if there is
        none. Raises ClusterError for an unknown partition."""
        best: tuple[int, int] | None = None
        for port in ports:
            try:
                with KafkaClient(self._host, port, timeout_seconds=CALL_SECONDS_MAX) as client:
                    rows = _topics(client, [topic])[0].partitions
            except Unreachable:
                continue
            for row in rows:
                if row.partition_index == partition:
                    seen = row.leader_epoch, max(0, row.leader_id)
                    best = max(best or seen, seen)
        if best is None:
            raise ClusterError(f"no server knows partition {partition} of topic {topic}")
        return best[1]

    # --- topics -----------------------------------------------------------------------------------
    def create_topics(
        self, ports: list[int], names: list[str], partitions: int, configs: Mapping[str, str]
    ) -> None:
        """Create topics by one request. Return when all of these servers know the leaders of their
        partitions, or after `KNOWN_SECONDS_MAX`. Raises ClusterError."""
        topics = [
            create_topics.CreatableTopic(
                name=name,
                num_partitions=partitions,
                replication_factor=-1,
                configs=[
                    create_topics.CreatableTopicConfig(name=key, value=value)
                    for key, value in configs.items()
                ],
            )
            for name in names
        ]
        request = create_topics.CreateTopicsRequest(topics=topics, timeout_ms=5_000)
        attempts = 0

        def create(client: KafkaClient) -> tuple[int, str | None]:
            nonlocal attempts
            attempts += 1
            # An attempt without an answer, or in part, may have made some of them.
            made = {0} if attempts == 1 else {0, TOPIC_EXISTS}
            rows = client.request(create_topics.API_KEY, request).topics
            wrong = [row for row in rows if row.error_code not in made]
            return (wrong[0].error_code, wrong[0].error_message) if wrong else (0, None)

        self._change(ports, create)
        self._wait_known(ports, names, partitions)

    def grow_topic(self, ports: list[int], name: str, partitions: int) -> None:
        """Add partitions to a topic, up to this number. Returns as `create_topic`. Raises
        ClusterError."""
        topic = create_partitions.CreatePartitionsTopic(
            name=name, count=partitions, assignments=None
        )
        request = create_partitions.CreatePartitionsRequest(topics=[topic], timeout_ms=5_000)

        def grow(client: KafkaClient) -> tuple[int, str | None]:
            row = client.request(create_partitions.API_KEY, request).results[0]
            return row.error_code, row.error_message

        self._change(ports, grow)
        self._wait_known(ports, [name], partitions)

    def _wait_known(self, ports: list[int], names: list[str], partitions: int) -> None:
        """Clients that ask a server behind the others would take a topic for unknown."""
        deadline = time.monotonic() + KNOWN_SECONDS_MAX
        for port in ports:
            try:
                with KafkaClient(self._host, port, timeout_seconds=KNOWN_SECONDS_MAX) as client:
                    while time.monotonic() < deadline:
                        found = _topics(client, names)
                        if all(_led(topic.partitions) >= partitions for topic in found):
                            break
                        time.sleep(POLL_SECONDS)
            except Unreachable:
                continue

    def delete_topics(self, ports: list[int], names: list[str]) -> None:
        """Delete topics; those that are gone already are left out. Raises ClusterError."""
        states = [delete_topics.DeleteTopicState(name=name) for name in names]
        request = delete_topics.DeleteTopicsRequest(
            topics=states, topic_names=names, timeout_ms=5_000
        )

        def delete(client: KafkaClient) -> tuple[int, str | None]:
            rows = client.request(delete_topics.API_KEY, request).responses
            wrong = [row for row in rows if row.error_code not in (0, UNKNOWN_TOPIC)]
            return (wrong[0].error_code, wrong[0].error_message) if wrong else (0, None)

        self._change(ports, delete)

    def _change(
        self,
        ports: list[int],
        change: Callable[[KafkaClient], tuple[int, str | None]],
    ) -> None:
        """Send a change to one server after the other until it is made. Raises ClusterError."""
        deadline = time.monotonic() + CHANGE_SECONDS_MAX
        attempt = 0
        problem = "no server runs"
        while ports:
            port = ports[attempt % len(ports)]
            try:
                with KafkaClient(self._host, port, timeout_seconds=CALL_SECONDS_MAX) as client:
                    code, message = change(client)
            except Unreachable as error:
                problem = str(error)
            else:
                if not code:
                    return
                problem = f"{ERRORS_BY_CODE[code].name}: {message or ''}"
                if code not in RETRIABLE:
                    raise ClusterError(problem)
            if time.monotonic() > deadline:
                break
            attempt += 1
            time.sleep(POLL_SECONDS)
        raise ClusterError(problem)
