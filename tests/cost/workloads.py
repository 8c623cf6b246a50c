"""Fixed workloads whose cost is counted, one row each in `WORKLOADS`.

Every load is sent twice: first a small one, so that connections, caches and code paths are warm,
then, from idle to idle, the one that counts. Work left after the last answer (the flush to
segments, the followers' commit) belongs to its cost.

Does not depend on what is counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle, islice

from tests.cost.cluster import SETTLE_NS, TOPIC, Cluster
from tests.cost.joining import Joining
from tests.cost.transacting import Transactional
from vdl.clock import MS
from vdl.kafka.wire import produce
from vdl.records.batch import BatchFields, Record, build_batch
from vdl.sim.client import Failure, KafkaClient, Message
from vdl.sim.consumer import Consumer, ConsumerOptions, Fetched
from vdl.sim.subscription import ResetStrategy, SubscriptionState, TopicPartition

RECORD_BYTES = 1_000
TIMESTAMP_MS = 1_750_000_000_000
LOAD_NS = 120_000 * MS
"""Upper limit of a load's duration."""


@dataclass(frozen=True, slots=True)
class Workload:
    """One load. Counts are per run; figures are per `unit`, of which a run has `units`."""

    name: str
    about: str
    unit: str
    units: int
    partitions: int
    records_per_request: int
    requests: int
    requests_to_warm: int
    in_flight: int
    idempotent: bool = False
    consumers: int = 0
    producers: int = 0
    """Number of transactional producers, each with `requests` transactions.

    0: one producer without transactions.
    """
    members: int = 0
    """Number of members of classic groups, each of which joins `requests` times. 0: none."""
    record_bytes: int = RECORD_BYTES
    counts_memory: bool = False
    """True if memory is counted: it is significant only for large batches, and counting takes long.
    """


WORKLOADS = (
    Workload(
        name="large",
        about="1 MB batches of 1,000 records to one partition, 4 requests under way",
        unit="MB",
        units=32,
        partitions=1,
        records_per_request=1_000,
        requests=32,
        requests_to_warm=16,
        in_flight=4,
        counts_memory=True,
    ),
    Workload(
        name="single",
        about="one record a request to one partition, 16 requests under way",
        unit="record",
        units=1_000,
        partitions=1,
        records_per_request=1,
        requests=1_000,
        requests_to_warm=200,
        in_flight=16,
    ),
    Workload(
        name="lone",
        about="one record a request to one partition, the next when it is acknowledged",
        unit="record",
        units=200,
        partitions=1,
        records_per_request=1,
        requests=200,
        requests_to_warm=50,
        in_flight=1,
    ),
    Workload(
        name="spread",
        about="one record a request to 120 partitions in turn, 32 requests under way, idempotent",
        unit="record",
        units=960,
        partitions=120,
        records_per_request=1,
        requests=960,
        requests_to_warm=240,
        in_flight=32,
        idempotent=True,
    ),
    Workload(
        name="tail",
        about="one record a request to one partition, 4 under way, read at once by 8 consumers",
        unit="record",
        units=500,
        partitions=1,
        records_per_request=1,
        requests=500,
        requests_to_warm=50,
        in_flight=4,
        consumers=8,
    ),
    Workload(
        name="read",
        about="1 MB batches of 1,000 records to one partition, read at once by 4 consumers",
        unit="MB",
        units=8,
        partitions=1,
        records_per_request=1_000,
        requests=8,
        requests_to_warm=4,
        in_flight=1,
        consumers=4,
        counts_memory=True,
    ),
    Workload(
        name="transactions",
        about="transactions of 100 records of 100 bytes, by 64 producers to 12 partitions",
        unit="transaction",
        units=256,
        partitions=12,
        records_per_request=100,
        requests=4,
        requests_to_warm=2,
        in_flight=1,
        producers=64,
        record_bytes=100,
    ),
    Workload(
        name="joins",
        about="32 classic groups, each of one member that joins, syncs and leaves",
        unit="join",
        units=128,
        partitions=1,
        records_per_request=1,
        requests=4,
        requests_to_warm=2,
        in_flight=1,
        members=32,
    ),
)


class Load:
    """A workload on a cluster of its own, warm and idle."""

    def __init__(self, workload: Workload) -> None:
        self.workload = workload
        self.cluster = Cluster(workload.partitions)
        self._client = self.cluster.client()
        self._batches = Batches(workload, self._producer_id())
        self._readers = [Reader(self.cluster.client()) for _ in range(workload.consumers)]
        self._transactional = [
            Transactional(self.cluster, f"t{n}", n % workload.partitions, self._batches.contents)
            for n in range(workload.producers)
        ]
        self._joining = [Joining(self.cluster, f"g{n}") for n in range(workload.members)]
        self._send(workload.requests_to_warm)

    def run(self) -> None:
        """Send everything, until all is answered, read and idle again."""
        self._send(self.workload.requests)

    def _producer_id(self) -> int:
        return self.cluster.producer_id(self._client) if self.workload.idempotent else -1

    def _send(self, requests: int) -> None:
        steppers = self._transactional or self._joining
        if steppers:
            self._step(steppers, requests)
            return
        producer = Producer(self._client, self._batches.take(requests), self.workload.in_flight)
        producer.send()
        self.cluster.run_until(lambda: producer.is_done, LOAD_NS)
        self.cluster.run_until(self._is_read, LOAD_NS)
        self.cluster.run_for(SETTLE_NS)

    def _step(self, steppers: Sequence[Transactional] | Sequence[Joining], times: int) -> None:
        for one in steppers:
            one.begin(times)
        self.cluster.run_until(lambda: all(one.is_done for one in steppers), LOAD_NS)
        self.cluster.run_for(SETTLE_NS)

    def _is_read(self) -> bool:
        return all(reader.records == self._batches.records for reader in self._readers)


class Batches:
    """Endless batches, round robin over the partitions."""

    def __init__(self, workload: Workload, producer_id: int) -> None:
        self.records = 0
        """Number of records taken."""
        self._producer_id = producer_id
        self._partitions = cycle(range(workload.partitions))
        self._sequences = [0] * workload.partitions
        value = bytes(workload.record_bytes)
        self.contents = [
            Record(offset=i, timestamp=TIMESTAMP_MS, key=None, value=value)
            for i in range(workload.records_per_request)
        ]
        self._plain = build_batch(self.contents)

    def take(self, count: int) -> list[tuple[int, bytearray]]:
        """Return (partition, batch) of the next ones."""
        taken = [(p, self._batch(p)) for p in islice(self._partitions, count)]
        self.records += count * len(self.contents)
        return taken

    def _batch(self, partition: int) -> bytearray:
        if self._producer_id < 0:
            return self._plain
        sequence = self._sequences[partition]
        self._sequences[partition] += len(self.contents)
        fields = BatchFields(
            producer_id=self._producer_id, producer_epoch=0, base_sequence=sequence
        )
        return build_batch(self.contents, fields)


class Producer:
    """Sends batches in order, one a request, with a bounded number in flight."""

    def __init__(
        self, client: KafkaClient, batches: Sequence[tuple[int, bytearray]], in_flight: int
    ) -> None:
        self._client = client
        self._unsent = iter(batches)
        self._unanswered = len(batches)
        self._in_flight = in_flight

    @property
    def is_done(self) -> bool:
        return self._unanswered == 0

    def send(self) -> None:
        for _ in range(self._in_flight):
            self._send_next()

    def _send_next(self) -> None:
        following = next(self._unsent, None)
        if following is None:
            return
        partition, batch = following
        metadata = self._client.metadata
        rows = [produce.PartitionProduceData(partition, batch)]
        data = produce.TopicProduceData(TOPIC, metadata.topic_id(TOPIC), rows)
        request = produce.ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=[data])
        leader = metadata.leader(TopicPartition(TOPIC, partition))
        self._client.call(leader, produce, lambda _: request, self._answered)

    def _answered(self, response: Message | Failure) -> None:
        assert not isinstance(response, Failure), response
        (topic,) = response.responses
        (row,) = topic.partition_responses
        assert not row.error_code, row
        self._unanswered -= 1
        self._send_next()


class Reader:
    """Reads the first partition from its beginning, and continues at its end."""

    def __init__(self, client: KafkaClient) -> None:
        self.records = 0
        options = ConsumerOptions(partition_bytes_max=1 << 20)
        consumer = Consumer(
            client, SubscriptionState(ResetStrategy.EARLIEST), self._fetched, options
        )
        consumer.assign([TopicPartition(TOPIC, 0)])

    def _fetched(self, fetched: Fetched) -> None:
        self.records += len(fetched.records)
