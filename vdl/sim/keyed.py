"""A compacted partition beside the others, with a check of what compaction may remove.

Batches are appended directly at the partition's leader, without a client, with a few keys used
again and again, some of them deleted. At the end every replica is read from its disk. The newest
acknowledged record of each key must exist, or a later one; for a key whose newest record deletes it
no older record may exist. `Invariants.compare` checks that replicas hold the same bytes: before
that all are compacted as far as was decided.

The effect of a batch without a known result on its keys is unknown: for those only resurrection is
checked.

Does not depend on faults or on how a log is compacted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from random import Random

import segments.api as storage
from ids import GroupId
from vdl.clock import MS
from vdl.errors import ErrorCode
from vdl.kafka.wire import create_topics
from vdl.logstream.group.appends import Appended
from vdl.logstream.group.log_stream import LogStream
from vdl.records.batch import (
    PLAIN,
    BatchFields,
    Record,
    build_batch,
    check_batch,
    iter_records,
)
from vdl.records.compression import Compression
from vdl.sim.client import Failure, KafkaClient, Message
from vdl.sim.clock import VirtualTime
from vdl.sim.machine import Machine

KEYED = "keyed"
CONFIGS = {
    "cleanup.policy": "compact",
    "segment.bytes": "65536",
    "min.cleanable.dirty.ratio": "0.0",
    "delete.retention.ms": "0",
}
VALUE_BYTES = 4_000
"""About fifteen batches fill a segment."""
_DELETED = 0.4
_TURN_NS = 50 * MS
_DEADLINE_NS = 2_000 * MS
_ALREADY_THERE = 36
_PRODUCE_VERSION = 9
_READ_BYTES = 1 << 20

Newest = dict[bytes, tuple[int, bytes | None]]
"""Key → offset and value of its newest record."""


class KeyedTopic:
    """Writer and checker of the partition.

    `on_group` is called with its group before each write.
    """

    def __init__(
        self,
        machines: Sequence[Machine],
        time: VirtualTime,
        client: KafkaClient,
        rng: Random,
        on_group: Callable[[GroupId], None],
        keys: int,
    ) -> None:
        self._machines = machines
        self._time = time
        self._client = client
        self._rng = rng
        self._on_group = on_group
        self._keys = keys
        self._is_running = False
        self._count = 0
        self._acknowledged: Newest = {}
        self._open: set[bytes] = set()
        """Keys of batches without a known result."""

    def begin(self) -> None:
        """Create the topic, and write to it until `end`."""
        self._is_running = True
        self._create()
        self._go_on()

    def end(self) -> None:
        """Stop writing."""
        self._is_running = False

    def _create(self) -> None:
        def build(_version: int) -> create_topics.CreateTopicsRequest:
            rows = [create_topics.CreatableTopicConfig(k, v) for k, v in CONFIGS.items()]
            topic = create_topics.CreatableTopic(KEYED, 1, -1, configs=rows)
            return create_topics.CreateTopicsRequest([topic], timeout_ms=2_000)

        def answered(response: Message | Failure) -> None:
            codes = {0, _ALREADY_THERE}
            is_made = not isinstance(response, Failure) and response.topics[0].error_code in codes
            if not is_made and self._is_running:
                self._client.backoff(3, self._create)

        self._client.call_any(create_topics, build, answered)

    def _streams(self) -> Iterator[tuple[Machine, LogStream]]:
        for machine in self._machines:
            host = machine.server.host if machine.server is not None else None
            for group_id in sorted(host.groups) if host is not None else ():
                stream = host.stream(group_id) if host is not None else None
                if stream is not None and stream.topic == KEYED:
                    yield machine, stream

    def _go_on(self) -> None:
        if not self._is_running:
            return
        for machine, stream in self._streams():
            life = machine.life
            if life is None or life.clock.paused or not stream.serving:
                continue
            self._on_group(stream.group_id)
            self._time.enter(life.clock)
            self._append(stream, life.clock.now_ns() + _DEADLINE_NS)
            self._time.enter(None)
        self._time.after(_TURN_NS, self._go_on)

    def _append(self, stream: LogStream, deadline_ns: int) -> None:
        rng = self._rng
        records = []
        for _ in range(rng.randint(1, 3)):
            self._count += 1
            value = b"%d " % self._count + bytes(rng.randrange(VALUE_BYTES))
            is_deletion = rng.random() < _DELETED
            records.append(
                Record(b"k%d" % rng.randrange(self._keys), None if is_deletion else value)
            )
        codec = rng.choice((Compression.NONE, Compression.LZ4))
        fields = PLAIN if codec is Compression.NONE else BatchFields(compression=codec)
        batch = memoryview(build_batch(records, fields))
        header = check_batch(batch, produce_version=_PRODUCE_VERSION, bytes_max=len(batch))
        self._open.update(record.key or b"" for record in records)
        done = partial(self._done, records)
        stream.append(batch, header, deadline_ns=deadline_ns, done=done)

    def _done(self, records: Sequence[Record], appended: Appended) -> None:
        if appended.error is not ErrorCode.NONE:
            return
        for delta, record in enumerate(records):
            key, offset = record.key or b"", appended.base_offset + delta
            if offset > self._acknowledged.get(key, (-1, None))[0]:
                self._acknowledged[key] = offset, record.value
                self._open.discard(key)

    # --- at the end ------------------------------------------------------------------------------
    def behind(self) -> str:
        """Describe the replicas not compacted as far as was decided; empty if there are none."""
        found = []
        for machine, stream in self._streams():
            state, log = stream.state, stream.group.log
            wanted = storage.Compaction(state.compact_upto, state.markers_upto)
            if log.compaction != wanted:
                found.append(f"{machine.name} is at {log.compaction}, not {wanted}")
        return ", ".join(found)

    @property
    def compacted(self) -> int:
        """Index up to which compaction was decided."""
        return max((stream.state.compact_upto for _, stream in self._streams()), default=0)

    def check(self, broken: Callable[[str], None], done: Callable[[], None]) -> None:
        """Read every replica. `broken` is called for each rule that one of them breaks."""
        streams = list(self._streams())
        left = [len(streams)]

        def one_read() -> None:
            left[0] -= 1
            if not left[0]:
                done()

        for machine, stream in streams:
            self._read(machine, stream, broken, one_read)
        if not streams:
            done()

    def _read(
        self,
        machine: Machine,
        stream: LogStream,
        broken: Callable[[str], None],
        done: Callable[[], None],
    ) -> None:
        group = stream.group
        newest: Newest = {}
        position = [group.log.first_index]

        def read_on() -> None:
            end = group.log.commit_index + 1
            if position[0] < end:
                group.store.entries_cold(group.log, position[0], end, _READ_BYTES, found)
                return
            for text in self._judge(newest):
                broken(f"{machine.name}: {text}")
            done()

        def found(entries: list[storage.StoredEntry] | storage.StorageError) -> None:
            if isinstance(entries, storage.StorageError):
                broken(f"{machine.name}: unreadable: {entries!r}")
                done()
                return
            for entry in entries:
                position[0] = entry.index + 1
                if entry.records and len(entry.data):
                    for record in iter_records(memoryview(entry.data)):
                        newest[record.key or b""] = record.offset, record.value
            read_on()

        read_on()

    def _judge(self, newest: Newest) -> Iterator[str]:
        for key, (offset, value) in sorted(self._acknowledged.items()):
            at, what = newest.get(key, (-1, None))
            if at >= offset:
                continue
            if value is not None and key not in self._open:
                yield f"{key!r} was written at {offset}, and its newest record is at {at}"
            elif what is not None:
                yield f"{key!r} was deleted or written at {offset}, and one of {at} is there"
