"""One of the two clusters while a scenario runs: sends requests, and keeps the answers.

A scenario is a function of a `Side`. It runs against each cluster with the same requests, so that
answers with equal labels can be compared. Other preparations (topics, records, members) use `quiet`
requests, which are not compared.

Does not depend on which of the two clusters it is.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from tests.differential.connection import Closed, Connection, Login, key_of
from tests.differential.normal import Symbols, Tree, normal
from vdl.kafka.wire import registry
from vdl.kafka.wire.api_versions import ApiVersionsRequest
from vdl.kafka.wire.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from vdl.kafka.wire.find_coordinator import FindCoordinatorRequest
from vdl.kafka.wire.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from vdl.kafka.wire.metadata import MetadataRequest, MetadataRequestTopic
from vdl.kafka.wire.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from vdl.kafka.wire.runtime import EncodeError

LATEST = -1
"""Timestamp that denotes a partition's end."""
SETTLE_SECONDS_MAX = 30.0
POLL_SECONDS = 0.02
RETRIED = {3, 5, 6, 7, 14, 15, 16, 100}
"""Error codes of a cluster that does not know yet what was just created."""

Versions = Mapping[int, range]
"""API key -> versions."""
Make = Callable[[int], Any]


def versions_of(address: tuple[str, int], login: Login | None = None) -> dict[int, range]:
    """Return the versions that both a server and the codec support."""
    connection = Connection(address, login)
    try:
        answer = connection.ask(ApiVersionsRequest("differential", "1"), 3)
    finally:
        connection.close()
    found = {}
    for row in answer.api_keys:
        if row.api_key in registry.NAMES:
            module = registry.module(row.api_key)
            low = max(row.min_version, module.MIN_VERSION)
            found[row.api_key] = range(low, min(row.max_version, module.MAX_VERSION) + 1)
    return found


def common(one: Versions, other: Versions) -> dict[int, range]:
    """Return the versions that both support."""
    return {
        key: range(max(one[key].start, other[key].start), min(one[key].stop, other[key].stop))
        for key in one.keys() & other.keys()
    }


class Side:
    """A cluster, the versions to use, and the answers of one scenario."""

    def __init__(
        self,
        name: str,
        bootstrap: str,
        versions: Versions,
        prefix: str,
        login: Login | None = None,
    ) -> None:
        """Create a side. `login`: credentials."""
        self.name = name
        self._login = login
        self.prefix = prefix
        """Prefix of every name in the scenario: scenarios share the cluster."""
        self.answers: dict[str, Tree] = {}
        self.symbols = Symbols()
        self.left_out: set[int] = set()
        """Keys of the APIs that one of the two does not offer."""
        self._versions = versions
        self._connections: dict[int, Connection] = {}
        self._addresses = [_address(text) for text in bootstrap.split(",")]
        self._nodes: dict[int, tuple[str, int]] = {}

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()

    # --- requests ------------------------------------------------------------------------------

    def versions(self, key: int) -> range:
        """Return the versions of an API that both support; if there are none, note the API."""
        found = self._versions.get(key, range(0))
        if not found:
            self.left_out.add(key)
        return found

    def ask(self, label: str, message: Any, *, version: int | None = None, to: int = 0) -> Any:
        """Send a request to server `to` (0: any), and keep the answer under `label`.

        The version is the newest by default. Return None if there was no answer, and if the version
        lacks a field.
        """
        try:
            answer = self.quiet(message, version=version, to=to)
        except EncodeError:
            return None
        except Closed:
            self._keep(label, "closed")
            return None
        except TimeoutError:
            self._drop(to)
            self._keep(label, "no answer")
            return None
        self._keep(label, normal(answer, self.symbols))
        return answer

    def each(self, label: str, make: Make | Any, *, to: int = 0, first: int = 0) -> None:
        """Send the same request in every common version from `first` on.

        `make` is the message, or a function that makes it for a version. Each request may change
        state: the answers to later ones must not depend on that.
        """
        is_made = callable(make)
        sample = make(first) if is_made else make
        for version in self.versions(key_of(sample)):
            if version >= first:
                message = make(version) if is_made else make
                self.ask(f"{label} v{version}", message, version=version, to=to)

    def newest(self, message: Any) -> int:
        return self.versions(key_of(message))[-1]

    def quiet(self, message: Any, *, version: int | None = None, to: int = 0) -> Any:
        """Return an answer that is not compared. Raises Closed, TimeoutError, EncodeError."""
        chosen = self.newest(message) if version is None else version
        try:
            return self._connection(to).ask(message, chosen)
        except (Closed, TimeoutError):
            self._drop(to)
            raise

    def send(self, message: Any, *, version: int, to: int = 0) -> None:
        """Send a request without an answer."""
        self._connection(to).send(message, version)

    def begin(self, label: str, message: Any, *, to: int) -> Callable[[], Any]:
        """Send a request that waits for others, in the newest version, over its own connection.

        Return a function that waits for the answer, keeps it under `label`, and returns it.
        """
        version = self.newest(message)
        connection = Connection(self._node(to), self._login)
        connection.send(message, version)

        def end() -> Any:
            try:
                answer = connection.answer(message, version)
            finally:
                connection.close()
            self.keep_answer(label, answer)
            return answer

        return end

    def raw(
        self, label: str, key: int, version: int, body: bytes, *, only_whether: bool = False
    ) -> None:
        """Send bytes in place of a message; keep the bytes of the answer, or only its presence."""
        self._raw(label, lambda connection: connection.ask_raw(key, version, body), only_whether)

    def frame(self, label: str, frame: bytes) -> None:
        """Send bytes in place of a request; keep only the presence of an answer."""
        self._raw(label, lambda connection: connection.ask_frame(frame), only_whether=True)

    def _raw(self, label: str, ask: Callable[[Connection], Any], only_whether: bool) -> None:
        connection = Connection(self._addresses[0], self._login)
        try:
            answer: Tree = bytes(ask(connection)).hex()
            if only_whether:
                answer = "answered"
        except Closed:
            answer = "closed"
        except TimeoutError:
            answer = "no answer"
        finally:
            connection.close()
        self._keep(label, answer)

    def keep_answer(self, label: str, answer: Any) -> None:
        """Keep an answer obtained by `quiet`, perhaps with fields removed."""
        self._keep(label, normal(answer, self.symbols))

    def keep(self, label: str, value: Tree) -> None:
        """Keep another observation."""
        self._keep(label, value)

    def _keep(self, label: str, tree: Tree) -> None:
        assert label not in self.answers, f"two answers called {label!r}"
        self.answers[label] = tree

    def _connection(self, to: int) -> Connection:
        if to not in self._connections:
            address = self._addresses[0] if to == 0 else self._node(to)
            self._connections[to] = Connection(address, self._login)
        return self._connections[to]

    def _drop(self, to: int) -> None:
        if connection := self._connections.pop(to, None):
            connection.close()

    def _node(self, node: int) -> tuple[str, int]:
        if node not in self._nodes:
            answer = self.quiet(MetadataRequest(topics=[]), version=1)
            self._nodes = {row.node_id: (row.host, row.port) for row in answer.brokers}
        return self._nodes[node]

    # --- preparations --------------------------------------------------------------------------

    def topic(
        self, name: str, partitions: int = 1, *, on: Sequence[int] = (), **configs: str
    ) -> str:
        """Create a topic; return its full name when all servers know it and its leaders.

        Its only partition is placed on the servers `on`, the first of which leads it. Dots in the
        names of settings are underscores here.
        """
        whole = f"{self.prefix}.{name}"
        made = CreatableTopic(whole, partitions, 3)
        if on:
            made = CreatableTopic(whole, -1, -1, [CreatableReplicaAssignment(0, list(on))])
        for key, value in configs.items():
            made.configs.append(CreatableTopicConfig(key.replace("_", "."), value))
        answer = self.quiet(CreateTopicsRequest([made], timeout_ms=20_000))
        assert answer.topics[0].error_code == 0, answer
        self.await_topic(whole, partitions)
        if on:
            self.settle(lambda: self.leader(whole) == on[0], f"server {on[0]} leads {whole}")
        for partition in range(partitions):
            self.settle(
                lambda partition=partition: self._is_served(whole, partition),
                f"{whole}-{partition} is served",
            )
        return whole

    def _is_served(self, topic: str, partition: int) -> bool:
        """Return True if the leader knows that it leads: the others may know it earlier."""
        rows = [ListOffsetsTopic(topic, [ListOffsetsPartition(partition, -1, LATEST)])]
        request = ListOffsetsRequest(-1, 0, rows)
        answer = self.quiet(request, version=4, to=self.leader(topic, partition))
        return bool(answer.topics[0].partitions[0].error_code == 0)

    def await_topic(self, name: str, partitions: int) -> None:
        """Wait until every server knows the topic and its leaders."""
        ask = MetadataRequest([MetadataRequestTopic(name=name)], allow_auto_topic_creation=False)

        def is_known(node: int) -> bool:
            topic = self.quiet(ask, version=12, to=node).topics[0]
            self.symbols.learn(topic.topic_id, f"id of {name}")
            return len(topic.partitions) == partitions and all(
                row.error_code == 0 and len(row.isr_nodes) == len(row.replica_nodes)
                for row in topic.partitions
            )

        for node in (1, 2, 3):
            self.settle(lambda node=node: is_known(node), f"server {node} knows {name}")

    def await_gone(self, name: str) -> None:
        """Wait until no server knows the topic any more."""
        ask = MetadataRequest([MetadataRequestTopic(name=name)], allow_auto_topic_creation=False)
        for node in (1, 2, 3):
            self.settle(
                lambda node=node: bool(self.quiet(ask, version=12, to=node).topics[0].error_code),
                f"server {node} has forgotten {name}",
            )

    def topic_id(self, name: str) -> bytes:
        ask = MetadataRequest([MetadataRequestTopic(name=name)], allow_auto_topic_creation=False)
        found: bytes = self.quiet(ask, version=12).topics[0].topic_id
        return found

    def leader(self, topic: str, partition: int = 0) -> int:
        """Return the id of the server that leads."""
        ask = MetadataRequest([MetadataRequestTopic(name=topic)], allow_auto_topic_creation=False)
        rows = self.quiet(ask, version=12).topics[0].partitions
        return int(next(row.leader_id for row in rows if row.partition_index == partition))

    def is_led_as_preferred(self, topic: str) -> bool:
        """Return True if the first replica of each partition leads it."""
        ask = MetadataRequest([MetadataRequestTopic(name=topic)], allow_auto_topic_creation=False)
        rows = self.quiet(ask, version=12).topics[0].partitions
        return all(row.leader_id == row.replica_nodes[0] for row in rows)

    def epoch(self, topic: str, partition: int = 0) -> int:
        ask = MetadataRequest([MetadataRequestTopic(name=topic)], allow_auto_topic_creation=False)
        rows = self.quiet(ask, version=12).topics[0].partitions
        return int(next(row.leader_epoch for row in rows if row.partition_index == partition))

    def other(self, topic: str, partition: int = 0) -> int:
        """Return the id of a server that does not lead."""
        return self.leader(topic, partition) % 3 + 1

    def produce(self, topic: str, batch: bytes, partition: int = 0) -> int:
        """Write a batch; return its first offset."""
        data = TopicProduceData(topic, partition_data=[PartitionProduceData(partition, batch)])
        request = ProduceRequest(None, -1, 20_000, [data])
        offsets: list[int] = []

        def is_written() -> bool:
            answer = self.quiet(request, version=9, to=self.leader(topic, partition))
            row = answer.responses[0].partition_responses[0]
            assert row.error_code == 0 or row.error_code in RETRIED, row
            offsets.append(row.base_offset)
            return bool(row.error_code == 0)

        self.settle(is_written, f"{topic} takes a batch")
        return offsets[-1]

    def coordinator(self, group: str, key_type: int = 0) -> int:
        """Return the id of the coordinating server, once there is one."""
        found: list[int] = []

        def is_found() -> bool:
            ask = FindCoordinatorRequest(group, key_type, [])
            answer = self.quiet(ask, version=3)
            found.append(answer.node_id)
            return bool(answer.error_code == 0)

        self.settle(is_found, f"{group} has a coordinator")
        return found[-1]

    def retry(self, message: Any, code: Callable[[Any], int], **where: Any) -> Any:
        """Retry until the code is none of `RETRIED`: a coordinator may still be loading."""
        answers: list[Any] = []

        def is_answered() -> bool:
            answers.append(self.quiet(message, **where))
            return code(answers[-1]) not in RETRIED

        self.settle(is_answered, f"an answer to {type(message).__name__}")
        return answers[-1]

    @contextlib.contextmanager
    def own_connections(self) -> Iterator[None]:
        """Within this block, send requests over new connections."""
        kept, self._connections = self._connections, {}
        try:
            yield
        finally:
            self.close()
            self._connections = kept

    @staticmethod
    def settle(is_so: Callable[[], bool], what: str) -> None:
        """Wait until `is_so()`."""
        deadline = time.monotonic() + SETTLE_SECONDS_MAX
        while not is_so():
            assert time.monotonic() < deadline, f"not in {SETTLE_SECONDS_MAX} s: {what}"
            time.sleep(POLL_SECONDS)


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    return host, int(port)
