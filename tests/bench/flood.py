"""As many records as librdkafka sends when its queue is always full, for a given time.

The limit is a time, not an amount, so that systems that differ tenfold are each measured for as
long. The records acknowledged within that time count: those taken by the client, less those it
still holds. Records go to librdkafka a thousand a call, since one a call costs the client more than
some servers take.
"""

from __future__ import annotations

import itertools
import time
from typing import Any

from confluent_kafka import KafkaError, KafkaException

from tests.bench.load import QUEUE_POLL_SECONDS, throughput_producer
from tests.bench.payloads import Messages
from tests.bench.rounds import Figures
from tests.bench.systems import cpu_seconds
from tests.bench.topics import CALL_SECONDS_MAX


class Flood:
    """One producer with a full queue. `close` drops records that have not been sent."""

    def __init__(
        self, bootstrap: str, topic: str, lists: list[Messages], **settings: object
    ) -> None:
        self._producer = throughput_producer(
            bootstrap, **settings, on_delivery=_raise_unless_purged
        )
        self._topic = topic
        self._lists = itertools.cycle(lists)
        self._record_bytes = len(lists[0][0]["value"])
        self._taken = 0

    @property
    def acknowledged(self) -> int:
        """Number of acknowledged records so far."""
        return self._taken - len(self._producer)

    def meet(self) -> None:
        """Have some records acknowledged in every partition.

        A server may still be creating a partition's structures when it already leads it.
        """
        self._taken += self._producer.produce_batch(self._topic, next(self._lists))
        assert self._producer.flush(CALL_SECONDS_MAX) == 0, "records were not acknowledged"

    def run(self, seconds: float) -> None:
        """Keep the queue full for `seconds`."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            messages = next(self._lists)
            taken = self._producer.produce_batch(self._topic, messages)
            self._taken += taken
            if taken < len(messages):
                self._producer.poll(QUEUE_POLL_SECONDS)

    def measured(self, pids: list[int], seconds: float) -> Figures:
        """Return the rates of acknowledged records, and the CPU time of the servers `pids`."""
        before, cpu_before, began = self.acknowledged, cpu_seconds(pids), time.monotonic()
        self.run(seconds)
        # With a thousand partitions whole queues may be answered at once, with nothing in between.
        while self.acknowledged == before and time.monotonic() - began < CALL_SECONDS_MAX:
            self.run(QUEUE_POLL_SECONDS)
        count, elapsed = self.acknowledged - before, time.monotonic() - began
        used = cpu_seconds(pids) - cpu_before
        payload_bytes = count * self._record_bytes
        assert count > 0, f"nothing was acknowledged in {elapsed:.1f} s"
        return {
            "mb_per_second": payload_bytes / 1e6 / elapsed,
            "records_per_second": count / elapsed,
            "server_cpu_seconds_per_gb": used / (payload_bytes / 1e9),
        }

    def close(self) -> None:
        """Drop unsent records; return when nothing is in flight."""
        self._producer.purge(in_flight=False)
        assert self._producer.flush(CALL_SECONDS_MAX) == 0, "records were not acknowledged"


def _raise_unless_purged(error: KafkaError | None, message: Any) -> None:
    """Delivery report that raises KafkaException for any failure except a purge."""
    del message
    if error is not None and error.code() != KafkaError._PURGE_QUEUE:
        raise KafkaException(error)
