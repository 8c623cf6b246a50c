"""The driver's requests to a cluster: topic ids, starts and ends of logs, offsets of a time.

Offsets in the good case use a connection of their own (`offsets.py`). All other requests, and all
with settings that only librdkafka understands, use the admin client of an unmodified librdkafka;
ListOffsets is sent once per leader and not once per partition. Each call has its own deadline, so
an unreachable cluster is an error, not an endless wait.

Does not depend on Spark.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from confluent_kafka import (
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, OffsetSpec

from vdl.pipeline.errors import PipelineError, TopicMissing
from vdl.pipeline.options import At, AtTime, Earliest, Latest, ReadOptions, Where
from vdl.pipeline.positions import Positions, TopicPositions

REQUEST_SECONDS = 15.0
ATTEMPTS = 4
"""A leader that moves returns an error once or twice, which must not stop a job."""
PAUSE_SECONDS = 0.5
"""Delay before the second attempt, and its increase before each further one."""
SAMPLE_RECORDS = 64
SAMPLE_SECONDS = 2.0
SAMPLE_BYTES_MAX = 64 << 10

_ISOLATION = {
    "read_committed": IsolationLevel.READ_COMMITTED,
    "read_uncommitted": IsolationLevel.READ_UNCOMMITTED,
}

NO_ANSWER = "check the addresses, and `security.protocol` of the source's client"
"""Advice if no error says more: a server of TLS drops a client without it and gives no reason."""
_RANKS = {KafkaError._ALL_BROKERS_DOWN: 0, KafkaError._AUTHENTICATION: 2}

EARLIEST, LATEST = -2, -1
"""Values of a time in the protocol for the start and the end of a log."""
_SPECS = {EARLIEST: OffsetSpec.earliest(), LATEST: OffsetSpec.latest()}


class ClusterUnreachable(PipelineError):
    """A request got no response in several attempts."""


class TopicForbidden(PipelineError):
    """The job's user has no permission for the topic."""

    def __init__(self, topic: str) -> None:
        super().__init__(
            f"topic {topic}: the servers do not permit this user to describe it; a job needs READ "
            "on its topics"
        )


@dataclass(frozen=True, slots=True)
class Bounds:
    """Starts of the logs, and their ends a moment later."""

    firsts: Positions
    ends: Positions


class Topics:
    """Topics of one reader. Use: `close` when done."""

    def __init__(
        self, options: ReadOptions, *, request_seconds: float = 0.0, attempts: int = 0
    ) -> None:
        """`request_seconds`, `attempts`: for a request; REQUEST_SECONDS and ATTEMPTS if 0."""
        self._options = options
        self._request_seconds = request_seconds or REQUEST_SECONDS
        self._attempts = attempts or ATTEMPTS
        self._client = {**options.client, "bootstrap.servers": options.bootstrap}
        self._admin: Any = None
        self._reason: tuple[int, str] = (0, "")
        """Error that says most, with its rank."""

    def _library(self) -> Any:
        """Return the admin client, created on first use since it sends requests by itself."""
        if self._admin is None:
            # librdkafka would log errors again and again; they are reported once, in the exception.
            settings: Any = {"log_level": "0", "error_cb": self._note, **self._client}
            self._admin = AdminClient(settings)
        return self._admin

    def _note(self, error: KafkaError) -> None:
        """Keep the last error, unless an earlier one says more.

        Servers close a connection after a failed login, and then all count as down.
        """
        rank = _RANKS.get(error.code(), 1)
        if rank >= self._reason[0]:
            more = f": {NO_ANSWER}" if error.code() == KafkaError._ALL_BROKERS_DOWN else ""
            self._reason = rank, error.str() + more

    def ids(self) -> dict[str, tuple[str, int]]:
        """Return topic → (topic id, number of partitions).

        Raises TopicMissing, TopicForbidden, ClusterUnreachable.
        """
        names = list(self._options.topics)
        futures = self._again(
            lambda: self._library().describe_topics(
                TopicCollection(names), request_timeout=self._request_seconds
            )
        )
        found: dict[str, tuple[str, int]] = {}
        for name, described in futures.items():
            # Kafka writes ids in URL-safe base64, librdkafka in standard base64.
            topic_id = str(described.topic_id).replace("+", "-").replace("/", "_")
            found[name] = (topic_id, len(described.partitions))
        return found

    def bounds(self) -> Bounds:
        return Bounds(*self._offsets(EARLIEST, LATEST))

    def resolve_within(self, where: Where, known: Bounds) -> Positions:
        """Resolve as `resolve`, without a request for known bounds."""
        if isinstance(where, AtTime):
            return self.resolve(where)
        if isinstance(where, At):
            return _named(where, known)
        return known.firsts if isinstance(where, Earliest) else known.ends

    def resolve(self, where: Where) -> Positions:
        """Return offsets for `where`, of every partition."""
        if isinstance(where, AtTime):
            return self._at_time(where)
        if isinstance(where, At):
            return _named(where, self.bounds())
        (found,) = self._offsets(LATEST if isinstance(where, Latest) else EARLIEST)
        return found

    def begins(self) -> Positions:
        return self.resolve(Earliest())

    def ends(self) -> Positions:
        """Return the ends of readable records: with read_committed, the last stable offsets."""
        return self.resolve(Latest())

    def _at_time(self, where: AtTime) -> Positions:
        found, ends = self._offsets(max(0, where.timestamp_ms), LATEST)
        # No record is as young: the next one counts.
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

    def _offsets(self, *times: int) -> list[Positions]:
        """Return the offsets of all partitions for each time; -1 if no record is as young."""
        from vdl.pipeline.fast_client import fast_client
        from vdl.pipeline.fetch import FAILURES
        from vdl.pipeline.offsets import look_up

        fast = fast_client(self._options.client)
        if fast is not None:
            with contextlib.suppress(*FAILURES):
                return look_up(
                    self._options.bootstrap, self._options.topics, times,
                    isolation=self._options.isolation, client=fast,
                )  # fmt: skip
        ids = self.ids()
        return [self._listed(ids, time) for time in times]

    def _listed(self, ids: Mapping[str, tuple[str, int]], time_ms: int) -> Positions:
        """Return offsets by librdkafka, with retries."""
        spec = _SPECS.get(time_ms) or OffsetSpec.for_timestamp(time_ms)
        asked = {
            TopicPartition(name, partition): spec
            for name, (_, count) in ids.items()
            for partition in range(count)
        }
        answers = self._again(
            lambda: self._library().list_offsets(
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
        """Return the responses to a request of several futures, with retries while leaders move."""
        problem: KafkaException | None = None
        if self._admin is not None:
            self._admin.poll(0)  # errors of an earlier request, which may be over
        self._reason = (0, "")
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
                if code == KafkaError.TOPIC_AUTHORIZATION_FAILED:
                    raise TopicForbidden(key if isinstance(key, str) else key.topic) from error
                problem = error
            else:
                return answers
        self._library().poll(0)
        reason = self._reason[1] or (problem.args[0].str() if problem is not None else "")
        raise ClusterUnreachable(f"{self._options.bootstrap}: {reason}") from problem

    def row_bytes(self, where: Iterable[tuple[str, int, int]]) -> dict[tuple[str, int], float]:
        """Return bytes per record, by (topic, partition), of the first few at each given offset.

        Partitions without a record within SAMPLE_SECONDS are left out.
        """
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
        """Close the connections."""
        self._admin = None


def _named(where: At, known: Bounds) -> Positions:
    """Return the named offsets of existing topics, and the first ones of other partitions."""
    named = where.positions.of(known.firsts.topics)
    topics = {
        topic: replace(
            told,
            offsets={
                partition: {
                    EARLIEST: known.firsts.offset(topic, partition),
                    LATEST: known.ends.offset(topic, partition),
                }.get(offset, offset)
                or 0
                for partition, offset in told.offsets.items()
            },
        )
        for topic, told in named.topics.items()
    }
    return Positions(topics).over(known.firsts)
