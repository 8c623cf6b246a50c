"""Producing of records to a topic: either all are acknowledged, or it fails.

At least once: records sent before a failure stay in the topic.

Does not depend on the contents of records.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from vdl.pipeline.errors import PipelineError

PRODUCER = {
    "enable.idempotence": True,
    "linger.ms": 20,
    # As Kafka's own clients place keys.
    "partitioner": "murmur2_random",
    "log_level": 0,
}
FLUSH_SECONDS = 120.0
FULL_QUEUE_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class Target:
    """Destination of records. `client` are librdkafka's settings, the servers among them."""

    topic: str
    client: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Outgoing:
    """One record. A missing timestamp (in milliseconds) becomes the time of producing."""

    value: bytes | None
    key: bytes | None
    headers: list[tuple[str, bytes]] = field(default_factory=list)
    timestamp: int | None = None


def produce_all(target: Target, records: Iterable[Outgoing]) -> int:
    """Produce records in order; return their number.

    Raises PipelineError unless each was acknowledged.
    """
    from confluent_kafka import KafkaException, Producer

    producer = Producer({**PRODUCER, **target.client})
    failures: list[str] = []

    def delivered(error: Any, message: Any) -> None:
        del message
        if error is not None:
            failures.append(str(error))

    count = 0
    try:
        for record in records:
            named: dict[str, Any] = {"headers": record.headers, "on_delivery": delivered}
            if record.timestamp is not None:
                named["timestamp"] = record.timestamp
            while True:
                try:
                    producer.produce(target.topic, record.value, record.key, **named)
                    break
                except BufferError:
                    producer.poll(FULL_QUEUE_SECONDS)
            producer.poll(0)
            count += 1
        left = producer.flush(FLUSH_SECONDS)
    except KafkaException as error:
        raise PipelineError(f"{target.topic}: {error}") from error
    if left or failures:
        reason = failures[0] if failures else "no response"
        raise PipelineError(
            f"{target.topic}: {left + len(failures)} of {count} not acknowledged: {reason}"
        )
    return count
