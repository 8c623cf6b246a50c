"""A client that sends batches with false contents, each of which must be detected.

The checksums are correct, but the records differ from the header: counts too large and too small,
bytes behind the last record, offsets with gaps, lengths that lead outside, records cut off,
compressed or not. Each must be answered with INVALID_RECORD, on the loop and off it, with other
requests before and behind. One lie is corrected by a server as in Kafka, the largest timestamp:
such a batch is accepted and read like any other.

Its batches are recorded as sends like those of other clients, so that the checks of the history
find a record that was refused and exists. `believed` lists lies that were acknowledged, or refused
for another reason. Does not depend on where and how batches are checked.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from random import Random

from vdl.check.history import Send
from vdl.clock import MS
from vdl.errors import ErrorCode
from vdl.kafka.wire import produce
from vdl.records.batch import (
    HEADER_BYTES,
    LENGTH_FROM,
    BatchFields,
    Record,
    build_batch,
    patch_max_timestamp,
    seal,
)
from vdl.records.compression import Compression, compress
from vdl.sim.client import Failure, Message
from vdl.sim.producer import DEFINITE, RETRIABLE
from vdl.sim.recorder import make_record
from vdl.sim.subscription import TopicPartition
from vdl.sim.workload import Env

S = 1_000 * MS
RECORDS_MAX = 6
REQUESTS_AT_ONCE_MAX = 3
_LAST_DELTA, _COUNT = slice(23, 27), slice(57, 61)
_LENGTH = slice(8, 12)


class Lie(Enum):
    """The false property of a batch."""

    COUNT_HUGE = "2^31-1 records"
    COUNT_HIGH = "more records than there are"
    COUNT_LOW = "fewer records than there are"
    LAST_DELTA = "a last offset that is not the count's"
    GARBAGE = "bytes behind the last record"
    GAP = "offset deltas with a gap"
    RECORD_LENGTH = "a record that leads outside"
    CUT = "records cut off, compressed or not"
    MAX_TIMESTAMP = "another largest timestamp"


def lying_batch(lie: Lie, records: Sequence[Record], codec: Compression, rng: Random) -> bytearray:
    """Return a batch of at least two records with the lie in it, its checksum corrected."""
    batch = build_batch(records, BatchFields(compression=codec))
    count = len(records)
    match lie:
        case Lie.COUNT_HUGE:
            count = (1 << 31) - 1
        case Lie.COUNT_HIGH:
            count += rng.randint(1, 3)
        case Lie.COUNT_LOW:
            count -= 1
        case Lie.LAST_DELTA:
            batch[_LAST_DELTA] = (count + rng.randint(0, 3)).to_bytes(4, "big")
            return _sealed(batch)
        case Lie.GARBAGE:
            batch += rng.randbytes(rng.randint(1, 40))
        case Lie.GAP:
            return _sealed(_with_gap(records, codec))
        case Lie.RECORD_LENGTH:
            plain = build_batch(records)
            plain[HEADER_BYTES] = 0x7E  # 63 bytes, and the last record is shorter or not there
            plain[HEADER_BYTES:] = plain[HEADER_BYTES : HEADER_BYTES + 40]
            batch = plain
        case Lie.CUT:
            del batch[rng.randrange(HEADER_BYTES, len(batch)) :]
        case Lie.MAX_TIMESTAMP:
            patch_max_timestamp(memoryview(batch), records[0].timestamp + rng.choice((-1, 1)) * 77)
            return batch
    batch[_COUNT] = count.to_bytes(4, "big")
    batch[_LAST_DELTA] = (count - 1).to_bytes(4, "big")
    return _sealed(batch)


def _with_gap(records: Sequence[Record], codec: Compression) -> bytearray:
    """Return the batch of all records without the first one's bytes; its header still fits."""
    rest = build_batch([records[0], *records], BatchFields(compression=Compression.NONE))
    first = build_batch([records[0]])
    inside = bytes(rest[len(first) :])
    batch = build_batch(records, BatchFields(compression=codec))
    if codec is not Compression.NONE:
        inside = compress(codec, inside)
    return batch[:HEADER_BYTES] + inside


def _sealed(batch: bytearray) -> bytearray:
    batch[_LENGTH] = (len(batch) - LENGTH_FROM).to_bytes(4, "big")
    seal(batch)
    return batch


class Liar:
    """Client that sends batches with false contents."""

    def __init__(self, env: Env, name: str, host: str, rng: Random) -> None:
        self.name = name
        self.believed: list[str] = []
        """Lies that did not get the expected answer."""
        self.found_out = 0
        self._env = env
        self._rng = rng
        self._client = env.client(name, host, rng)
        self._client.want([env.topic])
        self._lying = True
        self._schedule()

    def stop(self) -> None:
        self._lying = False

    def _schedule(self) -> None:
        delay_ns = int(self._rng.expovariate(self._env.options.sends_per_second / 2) * S)
        self._client.clock.call_later(delay_ns, self._lie)

    def _lie(self) -> None:
        if not self._lying:
            return
        self._schedule()
        tp = self._rng.choice(self._env.partitions)
        leader = self._client.metadata.leader(tp)
        if leader < 0:
            self._client.refresh()
            return
        for _ in range(self._rng.randint(1, REQUESTS_AT_ONCE_MAX)):
            self._send(tp, leader, self._rng.choice(tuple(Lie)))

    def _send(self, tp: TopicPartition, leader: int, lie: Lie) -> None:
        env, rng = self._env, self._rng
        values = [env.recorder.new_value() for _ in range(rng.randint(2, RECORDS_MAX))]
        now_ms = self._client.clock.wall_ms()
        bytes_max = env.options.record_bytes_max
        records = [make_record(v, rng, bytes_max=bytes_max, timestamp=now_ms) for v in values]
        codec = rng.choice((Compression.NONE, Compression.NONE, *Compression))
        batch = lying_batch(lie, records, codec, rng)
        if lie is Lie.MAX_TIMESTAMP:
            env.recorder.sent_at(now_ms)
        invoked = env.recorder.invoke()

        def answered(response: Message | Failure) -> None:
            error, offset = _row(response)
            kind = _kind(error)
            op = env.recorder.returned(invoked, self.name, "send", kind)
            op.node, op.err = f"n{leader}", max(0, error)
            for i, value in enumerate(values):
                op.sends.append(Send(str(tp), offset + i if kind == "ok" else None, value))
            if error in RETRIABLE:
                self._client.refresh()
            self._judge(lie, error, f"{tp} on n{leader}, {codec.name}")

        self._client.call(leader, produce, self._request(tp, batch), answered)

    def _request(
        self, tp: TopicPartition, batch: bytearray
    ) -> Callable[[int], produce.ProduceRequest]:
        def build(_version: int) -> produce.ProduceRequest:
            topic_id = self._client.metadata.topic_id(tp.topic)
            topic = produce.TopicProduceData(tp.topic, topic_id)
            topic.partition_data.append(produce.PartitionProduceData(tp.partition, batch))
            return produce.ProduceRequest(acks=-1, timeout_ms=1_500, topic_data=[topic])

        return build

    def _judge(self, lie: Lie, error: int, where: str) -> None:
        """Check that the answer is permitted for such a batch."""
        if error < 0 or error in RETRIABLE:
            return
        options = self._env.options
        clocks_go_wrong = options.ages or options.clock_jumps
        if lie is Lie.MAX_TIMESTAMP and error == ErrorCode.INVALID_TIMESTAMP and clocks_go_wrong:
            return  # a majority of the clocks may be an hour off
        expected = ErrorCode.NONE if lie is Lie.MAX_TIMESTAMP else ErrorCode.INVALID_RECORD
        if error == expected:
            self.found_out += error == ErrorCode.INVALID_RECORD
            return
        self.believed.append(f"{lie.value}: {where}, answered {error}")


_NO_ANSWER = -2


def _row(response: Message | Failure) -> tuple[int, int]:
    """Return (error code, base offset) of the one partition in the request."""
    if isinstance(response, Failure):
        return (_NO_ANSWER if response.sent else ErrorCode.LEADER_NOT_AVAILABLE), -1
    row = response.responses[0].partition_responses[0]
    return row.error_code, row.base_offset


def _kind(error: int) -> str:
    if error == ErrorCode.NONE:
        return "ok"
    return "fail" if error in DEFINITE else "info"
