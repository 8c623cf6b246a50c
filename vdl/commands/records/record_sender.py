"""Sends records, counts what became of them, and keeps memory and rate bounded.

The client's queue holds QUEUE_KIB; `send` waits while it is full. A record is counted when the
cluster has answered for it: acknowledged, or failed.

Does not depend on where the records come from.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from vdl.commands.cluster.cluster_options import Outage, kafka_exception
from vdl.commands.interrupts import Interrupts
from vdl.commands.records.record_input import RECORD_BYTES_MAX
from vdl.commands.records.record_json import NewRecord

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Message, Producer

QUEUE_KIB = 131_072
"""Bytes that may wait for the cluster: more than the largest record."""
WAIT_SECONDS = 0.1
REASONS_MAX = 16
"""Kinds of errors that are counted one by one."""
SERVED_EVERY = 512
"""Records between two looks for answers."""

PROPERTIES: dict[str, object] = {
    "queue.buffering.max.kbytes": QUEUE_KIB,
    "message.max.bytes": RECORD_BYTES_MAX,
    # As Java's `delivery.timeout.ms`.
    "message.timeout.ms": 120_000,
}


IN_FLIGHT_MAX = 5
"""Requests of an idempotent producer that may wait for answers, as in Kafka."""


def delivery_properties(acks: str, given: Mapping[str, str]) -> dict[str, object]:
    """Return the properties that decide where a record goes and that it is there once.

    As with Kafka's own producer, a key has the partition of murmur2, and a producer is idempotent
    unless `acks`, or a property that the user has given, excludes it.
    """
    found: dict[str, object] = {"acks": acks, "partitioner": "murmur2_random"}
    required = given.get("acks", given.get("request.required.acks", acks))
    retries = given.get("retries", given.get("message.send.max.retries", ""))
    in_flight = given.get("max.in.flight", given.get("max.in.flight.requests.per.connection", ""))
    is_limited = not in_flight.isdigit() or int(in_flight) <= IN_FLIGHT_MAX
    if required in ("all", "-1") and retries != "0" and is_limited:
        found["enable.idempotence"] = True
    return found


REACH_SECONDS = 0.5
"""Wait for a server to answer, before records are given up."""


@dataclass(slots=True)
class Outcome:
    """Results of the records that were sent."""

    acknowledged: int = 0
    failed: int = 0
    value_bytes: int = 0
    """Bytes of keys and values that were acknowledged."""
    last: tuple[str, int, int] | None = None
    """Topic, partition and offset of the record acknowledged last; offset -1 with acks=0."""
    reasons: Counter[str] = field(default_factory=Counter)
    """Number of failed records by reason."""


class RecordSender:
    """A producer for one topic. Its methods may raise KafkaException for an error that is
    final.

    Signals are held while the client calls back, where they would be lost and an answer with them.
    """

    def __init__(
        self,
        producer: Producer,
        topic: str,
        *,
        rate: float = 0.0,
        interrupts: Interrupts | None = None,
        outage: Outage | None = None,
    ) -> None:
        """Send to a topic, `rate` records in a second at most; 0: without a limit."""
        self._outage = outage or Outage()
        self.outcome = Outcome()
        self._producer = producer
        self._topic = topic
        self._rate = rate
        self._interrupts = interrupts or Interrupts()
        self._sent = 0
        self._began = time.monotonic()

    def send(self, record: NewRecord) -> None:
        """Queue a record; wait while the queue is full."""
        while True:
            try:
                self._producer.produce(
                    self._topic,
                    value=record.value,
                    key=record.key,
                    partition=record.partition,
                    timestamp=record.timestamp_ms,
                    headers=record.headers or None,  # type: ignore[arg-type]  # str is not needed
                    on_delivery=self._answered,
                )
            except BufferError:
                self._poll(WAIT_SECONDS)
                continue
            except kafka_exception() as error:
                # Refused by the client itself, such as a partition that does not exist.
                if error.args[0].fatal():
                    raise
                self._fail(error.args[0])
            break
        self._sent += 1
        if self._sent % SERVED_EVERY == 0:
            self._poll(0)

    def wait_for_turn(self) -> None:
        """Return when the rate allows the next record."""
        if not self._rate:
            return
        turn = self._began + self._sent / self._rate
        while (left := turn - time.monotonic()) > 0:
            # It returns early when there is an answer.
            self._poll(min(left, WAIT_SECONDS))

    def _poll(self, seconds: float) -> None:
        with self._interrupts.held():
            self._producer.poll(seconds)
        self._interrupts.check()

    def _answered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self._fail(error)
            return
        self._outage.end()
        outcome = self.outcome
        outcome.acknowledged += 1
        outcome.value_bytes += len(message) + len(message.key() or b"")
        offset = message.offset()
        outcome.last = (
            message.topic() or "", message.partition() or 0, -1 if offset is None else offset
        )  # fmt: skip

    def _fail(self, error: KafkaError) -> None:
        self.outcome.failed += 1
        reason = f"{error.name().lstrip('_')}: {error.str()}"
        if reason in self.outcome.reasons or len(self.outcome.reasons) < REASONS_MAX:
            self.outcome.reasons[reason] += 1

    def flush(self) -> None:
        """Return when every record was answered for; a record that times out fails. After a signal
        none is waited for while no server answers."""
        while len(self._producer):
            if self._interrupts.count and self._outage.reason and not self._is_over():
                self.abandon()
                return
            with self._interrupts.held():
                self._producer.flush(WAIT_SECONDS)
            self._interrupts.check()

    def _is_over(self) -> bool:
        """Return True if a server answers again: an outage is noted until a record is acknowledged,
        and there may have been none since."""
        try:
            with self._interrupts.held():
                self._producer.list_topics(self._topic, timeout=REACH_SECONDS)
        except kafka_exception():
            return False
        self._outage.end()
        return True

    def abandon(self) -> None:
        """Give up what was not answered for; it counts as failed."""
        self._producer.purge()
        self._producer.flush(WAIT_SECONDS * 50)
