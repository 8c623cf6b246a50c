"""What the driver asks a cluster: topic ids, where logs begin and end, offsets of a time.

Through the admin client of an unmodified librdkafka; ListOffsets goes out once per leader and not
once per partition. Each call has its own deadline, so a cluster that is away is an error, not a
wait for ever.

Must not know: Spark.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any

from confluent_kafka import (
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    OffsetSpec,
)

from vdl.pipeline.errors import PipelineError, TopicMissing
from vdl.pipeline.options import At, AtTime, Earliest, Latest, ReadOptions, Where
from vdl.pipeline.positions import Positions, TopicPositions

REQUEST_SECONDS = 15.0
ATTEMPTS = 4
"""A leader that moves answers an error once or twice: that is no reason for a job to stop."""
PAUSE_SECONDS = 0.5
"""Before the second attempt, and as much more before each further one."""
SAMPLE_RECORDS = 64
SAMPLE_SECONDS = 2.0
SAMPLE_BYTES_MAX = 64 << 10

_ISOLATION = {
    "read_committed": IsolationLevel.READ_COMMITTED,
    "read_uncommitted": IsolationLevel.READ_UNCOMMITTED,
}


class ClusterUnreachable(PipelineError):
    """A request got no answer, several times."""


class Topics:
    """The topics of one reader. Use: `close` when done."""

    def __init__(
        self, options: ReadOptions, *, request_seconds: float = 0.0, attempts: int = 0
    ) -> None:
        """`request_seconds`, `attempts`: of a request; REQUEST_SECONDS and ATTEMPTS when 0."""
        self._options = options
        self._request_seconds = request_seconds or REQUEST_SECONDS
        self._attempts = attempts or ATTEMPTS
        self._client = {**options.client, "bootstrap.servers": options.bootstrap}
        # What librdkafka would log, again and again, is told once: in the error.
        settings: Any = {"log_level": "0", "error_cb": self._note, **self._client}
        self._admin = AdminClient(settings)
        self._last_error = ""

    def _note(self, error: KafkaError) -> None:
        if error.code() != KafkaError._ALL_BROKERS_DOWN or not self._last_error:
            self._last_error = error.str()

    def ids(self) -> dict[str, tuple[str, int]]:
        """Topic → (topic id, number of partitions). Raises TopicMissing, ClusterUnreachable."""
        names = list(self._options.topics)
        futures = self._again(
            lambda: self._admin.describe_topics(
                TopicCollection(names), request_timeout=self._request_seconds
            )
        )
        found: dict[str, tuple[str, int]] = {}
        for name, described in futures.items():
            # Kafka writes ids in the alphabet of URLs, librdkafka in the other one.
            topic_id = str(described.topic_id).replace("+", "-").replace("/", "_")
            found[name] = (topic_id, len(described.partitions))
        return found

    def resolve(self, where: Where) -> Positions:
        """Offsets for `where`, of every partition there is."""
        ids = self.ids()
        if isinstance(where, At):
            begins = self._offsets(ids, OffsetSpec.earliest())
            named = Positions({t: known for t, known in where.positions.topics.items() if t in ids})
            return named.over(begins)
        if isinstance(where, AtTime):
            found = self._offsets(ids, OffsetSpec.for_timestamp(where.timestamp_ms))
            # Nothing is as young as that: what comes next is.
            return self._instead_of_none(found, ids)
        spec = OffsetSpec.earliest() if isinstance(where, Earliest) else OffsetSpec.latest()
        assert isinstance(where, Earliest | Latest), where
        return self._offsets(ids, spec)

    def begins(self) -> Positions:
        return self.resolve(Earliest())

    def ends(self) -> Positions:
        """Up to where records can be read: with read_committed, the last stable offset."""
        return self.resolve(Latest())

    def _instead_of_none(self, found: Positions, ids: Mapping[str, tuple[str, int]]) -> Positions:
        if all(offset >= 0 for _, _, offset in found.partitions()):
            return found
        ends = self._offsets(ids, OffsetSpec.latest())
        topics = {
            t: TopicPositions(
                known.topic_id,
                {
                    p: offset if offset >= 0 else (ends.offset(t, p) or 0)
                    for p, offset in known.offsets.items()
                },
            )
            for t, known in found.topics.items()
        }
        return Positions(topics)

    def _offsets(self, ids: Mapping[str, tuple[str, int]], spec: Any) -> Positions:
        asked = {
            TopicPartition(name, partition): spec
            for name, (_, count) in ids.items()
            for partition in range(count)
        }
        answers = self._again(
            lambda: self._admin.list_offsets(
                asked,
                isolation_level=_ISOLATION[self._options.isolation],
                request_timeout=self._request_seconds,
            )
        )
        offsets: dict[str, dict[int, int]] = {name: {} for name in ids}
        for where, answer in answers.items():
            offsets[where.topic][where.partition] = int(answer.offset)
        return Positions(
            {name: TopicPositions(topic_id, offsets[name]) for name, (topic_id, _) in ids.items()}
        )

    def _again(self, ask: Any) -> dict[Any, Any]:
        """The answers to a request of several futures, tried again while leaders move."""
        problem: KafkaException | None = None
        for attempt in range(self._attempts):
            time.sleep(attempt * PAUSE_SECONDS)
            answers: dict[Any, Any] = {}
            key: Any = ""
            try:
                for key, future in ask().items():
                    answers[key] = future.result(timeout=2 * self._request_seconds)
            except KafkaException as error:
                code = error.args[0].code()
                if code == KafkaError.UNKNOWN_TOPIC_OR_PART:
                    raise TopicMissing(key if isinstance(key, str) else key.topic) from error
                problem = error
            else:
                return answers
        self._admin.poll(0)
        reason = self._last_error or (problem.args[0].str() if problem is not None else "")
        raise ClusterUnreachable(f"{self._options.bootstrap}: {reason}") from problem

    def row_bytes(self, where: Iterable[tuple[str, int, int]]) -> dict[tuple[str, int], float]:
        """Bytes per record, by (topic, partition), of the first few at each (topic, partition,
        offset); partitions that gave none within SAMPLE_SECONDS are left out."""
        found: dict[tuple[str, int], list[int]] = {}
        wanted = [TopicPartition(topic, partition, offset) for topic, partition, offset in where]
        if not wanted:
            return {}
        consumer = Consumer(
            {
                "log_level": 0,
                "group.id": "vdl-pipeline-sample",
                "enable.auto.commit": False,
                "fetch.message.max.bytes": SAMPLE_BYTES_MAX,
                "queued.min.messages": SAMPLE_RECORDS,
                **self._client,
            }
        )
        try:
            consumer.assign(wanted)
            deadline = time.monotonic() + SAMPLE_SECONDS
            while len(found) < len(wanted) and time.monotonic() < deadline:
                for message in consumer.consume(SAMPLE_RECORDS, timeout=SAMPLE_SECONDS / 20):
                    if message.error() is None:
                        size = len(message) + len(message.key() or b"")
                        key = (str(message.topic()), int(message.partition() or 0))
                        found.setdefault(key, []).append(size)
        finally:
            consumer.close()
        return {key: sum(sizes) / len(sizes) for key, sizes in found.items()}

    def close(self) -> None:
        """Let go of the connections."""
        del self._admin
