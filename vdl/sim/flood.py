"""Partitions that are written as fast as their links allow, beside quiet ones.

Batches are appended directly at each partition's leader, without a client. The test is the effect
on quiet partitions: on a link with less bandwidth than the writes, everything queued behind entries
is late. The bytes in flight to each partition take the links longer than any election timeout.

Does not depend on faults or links.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from vdl.clock import MS
from vdl.errors import ErrorCode
from vdl.kafka.wire import create_topics, delete_topics
from vdl.logstream.group.appends import Appended
from vdl.logstream.group.log_stream import LogStream
from vdl.records.batch import PLAIN, Record, build_batch, check_batch
from vdl.sim.client import Failure, KafkaClient, Message
from vdl.sim.clock import VirtualTime
from vdl.sim.machine import Machine

FLOODED = "flooded"
BATCHES_UNDER_WAY = 48
"""Batches in flight to each partition."""
UNDER_WAY_NS = 1_500 * MS
"""Time that these take on a link: longer than an election timeout."""
_TURN_NS = 5 * MS
_ALREADY_THERE = 36
_PRODUCE_VERSION = 9
_SECOND_NS = 1_000 * MS
_DEADLINE_NS = 60 * _SECOND_NS


def under_way_bytes(link_bytes_per_second: int) -> int:
    """Return about how many bytes are in flight to one partition."""
    return link_bytes_per_second * UNDER_WAY_NS // _SECOND_NS


class Flood:
    """Writer of the flooded partitions."""

    def __init__(
        self,
        machines: Sequence[Machine],
        time: VirtualTime,
        client: KafkaClient,
        *,
        partitions: int,
        link_bytes_per_second: int,
        kept_bytes: int = -1,
    ) -> None:
        """Create a flood. `kept_bytes`: retention of a partition in bytes; -1: unlimited."""
        self._machines = machines
        self._time = time
        self._client = client
        self._partitions = partitions
        self._kept_bytes = kept_bytes
        self._batch_bytes = under_way_bytes(link_bytes_per_second) // BATCHES_UNDER_WAY
        self._value = bytes(self._batch_bytes)
        self._on_way = dict.fromkeys(range(partitions), 0)
        self._is_running = False
        self._is_created = False
        self.acknowledged_bytes = 0

    def create(self) -> None:
        """Create the topic, with retries; return before it exists."""

        def build(_version: int) -> create_topics.CreateTopicsRequest:
            topic = create_topics.CreatableTopic(FLOODED, self._partitions, -1)
            if self._kept_bytes > 0:
                sizes = {
                    "retention.bytes": self._kept_bytes,
                    "segment.bytes": self._kept_bytes // 4,
                }
                for name, size in sizes.items():
                    topic.configs.append(create_topics.CreatableTopicConfig(name, str(size)))
            return create_topics.CreateTopicsRequest([topic], timeout_ms=2_000)

        def answered(response: Message | Failure) -> None:
            codes = {0, _ALREADY_THERE}
            if isinstance(response, Failure) or response.topics[0].error_code not in codes:
                self._client.backoff(3, self.create)
            else:
                self._is_created = True

        self._client.call_any(create_topics, build, answered)

    @property
    def is_ready(self) -> bool:
        """True if every partition has a serving leader."""
        return self._is_created and len(self._served()) == self._partitions

    def begin(self) -> None:
        """Write until `end`."""
        self._is_running = True
        self._go_on()

    def end(self) -> None:
        """Stop writing. Batches in flight continue."""
        self._is_running = False

    def delete(self) -> None:
        """Delete the topic; the result is ignored."""

        def build(version: int) -> delete_topics.DeleteTopicsRequest:
            if version >= 6:
                state = delete_topics.DeleteTopicState(name=FLOODED)
                return delete_topics.DeleteTopicsRequest([state], timeout_ms=2_000)
            return delete_topics.DeleteTopicsRequest(topic_names=[FLOODED], timeout_ms=2_000)

        self._client.call_any(delete_topics, build, lambda response: None)

    def _served(self) -> list[tuple[Machine, LogStream]]:
        """Return the machine and stream that serve each partition."""
        found: list[tuple[Machine, LogStream]] = []
        for machine in self._machines:
            host = machine.server.host if machine.server is not None else None
            for group_id in sorted(host.groups) if host is not None else ():
                stream = host.stream(group_id) if host is not None else None
                if stream is not None and stream.topic == FLOODED and stream.serving:
                    found.append((machine, stream))
        return found

    def _go_on(self) -> None:
        if not self._is_running:
            return
        for machine, stream in self._served():
            life = machine.life
            host = machine.server.host if machine.server is not None else None
            if life is None or host is None or life.clock.paused:
                continue
            self._time.enter(life.clock)
            while self._on_way[stream.partition] < BATCHES_UNDER_WAY and not host.overloaded:
                self._append(stream, life.clock.now_ns() + _DEADLINE_NS)
            self._time.enter(None)
        self._time.after(_TURN_NS, self._go_on)

    def _append(self, stream: LogStream, deadline_ns: int) -> None:
        batch = memoryview(build_batch([Record(value=self._value)], PLAIN))
        header = check_batch(batch, produce_version=_PRODUCE_VERSION, bytes_max=len(batch))
        self._on_way[stream.partition] += 1
        done = partial(self._done, stream.partition)
        stream.append(batch, header, deadline_ns=deadline_ns, done=done)

    def _done(self, partition: int, appended: Appended) -> None:
        self._on_way[partition] -= 1
        if appended.error is ErrorCode.NONE:
            self.acknowledged_bytes += self._batch_bytes
