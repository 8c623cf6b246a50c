"""Transactions in compacted logs.

Aborted records are removed, markers stay for as long as they are needed, and a replica that is fed
the remaining log has the same state as the others.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from segments.api import Compaction, StoredEntry
from tests.unit.logstream.test_log_compaction import ALWAYS, FOREVER_KEPT, Topic
from vdl.errors import ErrorCode
from vdl.logstream.cleanup.compaction import is_due
from vdl.records.batch import BatchFields, Record, build_batch, iter_records, read_header
from vdl.records.compaction import BatchCleaner
from vdl.records.markers import Marker, build_marker
from vdl.state.aborted import AbortedRange
from vdl.state.partition import Compact, EndTransactionMarker, PartitionState, encode_command


class Producer:
    """One transactional producer, of either version of the protocol."""

    def __init__(self, producer_id: int, version: int) -> None:
        self.id = producer_id
        self.version = version
        self.epoch = 0
        self.sequence = 0
        self.open: list[Record] = []
        """Records written by its open transaction."""


class Transactions:
    """Transactional producers beside the plain ones of a compacted topic."""

    def __init__(self, topic: Topic, seed: int) -> None:
        self.topic = topic
        self.cluster = topic.cluster
        self.rng = random.Random(seed)
        self.producers = [Producer(100 + n, 1 + n % 2) for n in range(4)]
        self.count = 0

    def step(self) -> None:
        producer = self.rng.choice(self.producers)
        if producer.open and self.rng.random() < 0.4:
            self.end(producer, commit=self.rng.random() < 0.6)
        else:
            self.write(producer)

    def write(self, producer: Producer) -> None:
        self.count += 1
        key = b"k%d" % self.rng.randrange(6)
        value = None if self.rng.random() < 0.3 else b"t%d" % self.count
        record = Record(key, value, timestamp=self.topic.written)
        fields = BatchFields(
            producer_id=producer.id,
            producer_epoch=producer.epoch,
            base_sequence=producer.sequence,
            is_transactional=True,
        )
        batch = build_batch([record], fields)
        fates: list[Any] = []
        stream = self.cluster.leader(self.topic.group_id)
        stream.append(
            memoryview(batch), read_header(batch), deadline_ns=self.cluster.deadline(),
            done=fates.append, verify=lambda done: done(ErrorCode.NONE),
        )  # fmt: skip
        self.cluster.run(5)
        assert [fate.error for fate in fates] == [0]
        producer.sequence += 1
        producer.open.append(record)

    def end(self, producer: Producer, *, commit: bool) -> None:
        if producer.version == 2:
            producer.epoch, producer.sequence = producer.epoch + 1, 0
        errors: list[ErrorCode] = []
        self.cluster.leader(self.topic.group_id).transactions.end(
            EndTransactionMarker(producer.id, producer.epoch, 1, commit, producer.version),
            deadline_ns=self.cluster.deadline(),
            done=errors.append,
        )
        self.cluster.run(5)
        assert errors == [ErrorCode.NONE]
        producer.open = []

    def end_all(self) -> None:
        for producer in self.producers:
            if producer.open:
                self.end(producer, commit=self.rng.random() < 0.5)


def committed_values(stream: Any, start: int = 0) -> dict[bytes, bytes]:
    """Return the newest value of each key, as read by a client of committed records."""
    seen: dict[bytes, bytes | None] = {}
    offset, end = start, stream.last_stable_offset
    while offset < end:
        found = stream.read(offset, 500, stable=True)
        queue = sorted(stream.aborted(offset, found.end_offset), key=lambda one: one.first_offset)
        dropping: set[int] = set()
        for data in found.buffers:
            header = read_header(data)
            while queue and queue[0].first_offset <= header.last_offset:
                dropping.add(queue.pop(0).producer_id)
            offset = header.last_offset + 1
            if header.is_control:
                dropping.discard(header.producer_id)
            elif not (header.is_transactional and header.producer_id in dropping):
                for record in iter_records(memoryview(data)):
                    seen[record.key or b""] = record.value
    return {key: value for key, value in seen.items() if value is not None}


def all_values(entries: list[Any], aborted: Callable[[Any], bool]) -> dict[bytes, bytes]:
    """Return the same from every entry that was written, before any was removed."""
    seen: dict[bytes, bytes | None] = {}
    for data in entries:
        header = read_header(data)
        if not header.is_control and not aborted(header):
            for record in iter_records(memoryview(data)):
                seen[record.key or b""] = record.value
    return {key: value for key, value in seen.items() if value is not None}


@pytest.mark.parametrize("seed", range(6))
def test_replicas_agree_and_readers_see_what_was_committed(
    make_cluster: Callable[..., Any], seed: int
) -> None:
    """After each compaction, with servers that restart and one that begins with an empty disk.

    Aborted records are removed for good.
    """
    cluster = make_cluster(compaction_check_ms=1_000)
    topic = Topic(cluster, ALWAYS, seed)
    transactions = Transactions(topic, seed)
    rng = random.Random(seed)
    written: dict[int, bytes] = {}
    """All batches that were ever in the log, by base offset."""
    ranges: set[tuple[int, int, int]] = set()

    def note() -> None:
        stream = cluster.leader(topic.group_id)
        log = stream.group.log
        for entry in log.entries(log.first_index, stream.group.commit + 1, 1 << 40):
            if entry.records:
                written.setdefault(entry.base_offset, bytes(entry.data))
        for one in stream.state.aborted:
            ranges.add((one.producer_id, one.first_offset, one.last_offset))

    def is_aborted(header: Any) -> bool:
        return header.is_transactional and any(
            producer == header.producer_id and first <= header.base_offset < last
            for producer, first, last in ranges
        )

    for round_number in range(5):
        for _ in range(rng.randint(20, 40)):
            if rng.random() < 0.3:
                topic.write(1)
            else:
                transactions.step()
        if round_number % 2 or rng.random() < 0.5:
            transactions.end_all()
        cluster.run(20)
        note()
        event = rng.choice(("nothing", "restart", "leader", "wipe"))
        node = cluster.nodes[rng.choice((1, 2, 3))]
        if event == "leader":
            node = cluster.nodes[cluster.leader(topic.group_id).leader_server]
        if event != "nothing":
            node.wipe() if event == "wipe" else node.crash()
            cluster.run(2_000)
            node.start()
            topic.tune(node, ALWAYS)
            cluster.run(4_000)
        topic.settle()
        digests = topic.digests()
        assert all(digest == digests[0] for digest in digests)
        stable = cluster.leader(topic.group_id).last_stable_offset
        ordered = [written[offset] for offset in sorted(written) if offset < stable]
        expected = all_values(ordered, is_aborted)
        for stream in topic.streams():
            assert committed_values(stream) == expected
    transactions.end_all()
    note()
    for _ in range(3):
        topic.write(30)
        topic.settle()
    stream = cluster.leader(topic.group_id)
    upto = stream.state.markers_upto
    assert upto > 0
    assert all(one.index > upto for one in stream.state.aborted)
    for index, _, _, _, records, data, _ in topic.digests()[0][2]:
        if index <= stream.state.compact_upto and data and records:
            header = read_header(data)
            assert not (header.count and not header.is_control and is_aborted(header))


def test_replica_that_is_fed_the_compacted_log_has_the_same_state(
    make_cluster: Callable[..., Any],
) -> None:
    """Aborted transactions may be listed whose records are gone.

    Their first batches remain, as headers, and so do their markers.
    """
    cluster = make_cluster(compaction_check_ms=1_000)
    topic = Topic(cluster, FOREVER_KEPT)
    transactions = Transactions(topic, 5)
    for _ in range(60):
        transactions.step()
    transactions.end_all()
    topic.write(20)
    topic.settle()
    stream = cluster.leader(topic.group_id)
    assert len(stream.state.aborted)
    assert stream.group.log.compaction.upto > [*stream.state.aborted][-1].index
    new = cluster.nodes[stream.leader_server % 3 + 1]
    new.wipe()
    cluster.run(2_000)
    new.start()
    topic.tune(new, FOREVER_KEPT)
    cluster.run(8_000)
    topic.settle()
    digests = topic.digests()
    assert len(digests) == 3
    assert all(digest == digests[0] for digest in digests)


def test_nothing_is_compacted_from_an_open_transaction_on(
    make_cluster: Callable[..., Any],
) -> None:
    cluster = make_cluster(compaction_check_ms=1_000)
    topic = Topic(cluster, ALWAYS)
    transactions = Transactions(topic, 1)
    topic.write(20)
    hanging = transactions.producers[0]
    transactions.write(hanging)
    stream = cluster.leader(topic.group_id)
    first_index = stream.state.producers.oldest_open.first_index
    topic.write(40)
    topic.settle()
    assert 0 < stream.state.compact_upto < first_index
    transactions.end(hanging, commit=False)
    topic.write(5)
    topic.settle()
    assert cluster.leader(topic.group_id).state.compact_upto > first_index


class Cleaned:
    """Entries as one compaction leaves them.

    A segment is cleaned again from its beginning when an entry is found that is removed.
    """

    def __init__(self) -> None:
        self.entries: list[StoredEntry] = []
        self.offset = 0

    def add(self, data: bytearray, records: int) -> int:
        """Append an entry. Return its index."""
        data[:8] = self.offset.to_bytes(8, "big")
        index = len(self.entries) + 1
        self.entries.append(StoredEntry(1, index, 0, bytes(data), self.offset, records, -1))
        self.offset += records
        return index

    def write(self, producer: int, key: bytes, *, epoch: int = 0, sequence: int = 0) -> int:
        fields = BatchFields(
            producer_id=producer, producer_epoch=epoch, base_sequence=sequence,
            is_transactional=True,
        )  # fmt: skip
        return self.add(build_batch([Record(key, b"v", timestamp=1)], fields), 1)

    def end(self, producer: int, *, commit: bool, epoch: int = 0) -> int:
        return self.add(build_marker(Marker(producer, epoch, 1, commit, 1)), 1)

    def left(
        self, markers_upto: int, *aborted: AbortedRange, segment: int = 1_000
    ) -> dict[int, int]:
        """Compact. Return index → number of remaining records, for entries that remain."""
        cleaner = BatchCleaner(aborted=aborted)
        cleaner.scan(self.entries, keys_from=1)
        for start in range(0, len(self.entries), segment):
            part = self.entries[start : start + segment]
            for entry in part:  # until the first one of which something is removed
                if cleaner.clean(entry, markers_upto=markers_upto) is not None:
                    break
            for entry in part:
                data = cleaner.clean(entry, markers_upto=markers_upto)
                if data is not None:
                    entry.data = bytes(data)
        return {e.index: read_header(e.data).count for e in self.entries if e.data}


def test_aborted_record_supersedes_nothing() -> None:
    log = Cleaned()
    kept = log.write(1, b"k")
    committed = log.end(1, commit=True)
    first = log.write(2, b"k")
    log.write(2, b"k", sequence=1)
    marker = log.end(2, commit=False)
    last = log.write(3, b"other")
    assert log.left(0, AbortedRange(2, first - 1, marker - 1, marker)) == {
        kept: 1, committed: 1, first: 0, first + 1: 0, marker: 1, last: 1,
    }  # fmt: skip


@pytest.mark.parametrize("segment", [1, 2, 3, 1_000])
def test_marker_goes_with_the_last_of_its_transaction(segment: int) -> None:
    """Version 2: numbers begin anew in each epoch.

    So nothing of a superseded transaction is needed but the producer's epoch.
    """
    log = Cleaned()
    for epoch in range(4):
        log.write(1, b"k", epoch=epoch)
        log.end(1, commit=True, epoch=epoch + 1)
    assert log.left(4, segment=segment) == {6: 1, 7: 1, 8: 1}


def test_marker_stays_with_what_is_kept_of_its_transaction() -> None:
    """Version 1: headers of the last five batches stay for their numbers.

    Without its marker each would open a transaction that never ends.
    """
    log = Cleaned()
    for sequence in range(8):
        log.write(1, b"k", sequence=sequence)
        log.end(1, commit=True)
    left = log.left(1 << 40)
    assert left == {index: 0 if index in (7, 9, 11, 13) else 1 for index in range(7, 17)}


def test_log_is_not_compacted_before_all_aborted_ones_are_listed() -> None:
    """The decision is part of a snapshot's state.

    It is known before the marker that determines the aborted records.
    """
    state = PartitionState()
    state.producers.apply(7, 0, 0, 1, 1, 2, 5, is_transactional=True)
    state.apply_marker(7, 0, 1, commit=False, offset=3, index=4, timestamp=6)
    state.apply(encode_command(Compact(3, 0)), end_offset=4)
    replica = PartitionState()
    replica.load(state.snapshot_items(0))
    log = SimpleNamespace(
        applied_index=3, installed_state=b"", compaction=Compaction(0, 0), first_index=1
    )
    stream: Any = SimpleNamespace(state=replica, group=SimpleNamespace(log=log))
    replica.pass_batch(7, 1)
    assert not is_due(stream)
    replica.pass_marker(7, commit=False, offset=3, index=4)
    replica.passed_all()
    assert list(replica.aborted) == list(state.aborted)
    assert is_due(stream)
