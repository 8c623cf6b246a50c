"""Consumers that start far behind while producers go on; each of them must catch up.

Worlds with the option `behind_kib` have small caches and a tiny `request.cold_read_rate`, so older
data comes from disk at a rate set by the producers. A consumer takes so little at a time that the
limit of one read's wait alone, one read a second, is slower than the producers: it catches up only
if readers gain on the producers and share the rate.

Does not depend on faults or on how readers are throttled.
"""

from __future__ import annotations

from collections.abc import Callable

from vdl.clock import MS
from vdl.kafka.partitions.read_throttle import READ_BYTES_MAX
from vdl.sim.client import KafkaClient
from vdl.sim.consumer import Consumer, ConsumerOptions, Fetched
from vdl.sim.options import Options
from vdl.sim.subscription import ResetStrategy, SubscriptionState, TopicPartition

S = 1_000 * MS
LAGGARDS = ("laggard 1", "laggard 2")
"""More than one, each on connections of its own: none may starve another."""
FLOOR_BYTES = 1 << 10
"""`request.cold_read_rate` of such a world's servers."""
CATCH_UP_NS = 30 * S
"""Limit beyond twice the world's age so far: at twice the producers' rate it takes as long as they
took to write what the consumer missed.
"""
BEHIND = 2
"""Lag of the consumer, in cache sizes, if there is as much data."""
_BYTES_MIN = 512


def ingest_bytes_per_second(options: Options) -> int:
    """Return about how many bytes all producers of a world write in a second."""
    producers = options.idempotent_producers + options.plain_producers
    record_bytes = 60 + options.record_bytes_max // 2
    return int(producers * options.sends_per_second * (1 + options.records_max) / 2 * record_bytes)


class Laggard:
    """One lagging consumer. `on_fetched` receives each fetch, `on_position` each start position."""

    def __init__(
        self,
        client: KafkaClient,
        options: Options,
        ends: dict[TopicPartition, tuple[int, int]],
        on_fetched: Callable[[Fetched], None],
        on_position: Callable[[TopicPartition, int], None],
    ) -> None:
        """Start the consumer. `ends`: each partition's first offset, and the one after its last."""
        self._on_fetched = on_fetched
        self._left = set(ends)
        piece = ingest_bytes_per_second(options) // (2 * options.partitions_max)
        # A batch larger than the requested size comes only as the first of an answer; otherwise it
        # is read in vain and charged twice.
        piece = max(_BYTES_MIN, options.batch_bytes_max, piece)
        self._consumer = Consumer(
            client,
            SubscriptionState(ResetStrategy.EARLIEST),
            self._fetched,
            ConsumerOptions(
                max_wait_ms=50,
                partition_bytes_max=min(piece, READ_BYTES_MAX),
            ),
        )
        self.consumer.assign(sorted(ends))
        records = BEHIND * (options.behind_kib << 10) // (60 + options.record_bytes_max // 2)
        for tp, (start, end) in sorted(ends.items()):
            position = max(start, end - records)
            on_position(tp, position)
            self.consumer.seek(tp, position)

    @property
    def consumer(self) -> Consumer:
        return self._consumer

    def missing(self) -> str:
        """Describe the partitions whose end it has not reached, empty if it has reached all."""
        subscription = self.consumer.subscription
        return ", ".join(f"{tp} at {subscription.state(tp).position}" for tp in sorted(self._left))

    def _fetched(self, fetched: Fetched) -> None:
        self._on_fetched(fetched)
        position = fetched.records[-1].offset + 1 if fetched.records else fetched.position
        if position >= fetched.high_watermark:
            self._left.discard(fetched.tp)
