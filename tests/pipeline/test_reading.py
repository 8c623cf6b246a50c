"""Reading over the protocol and from segments, without Spark: the same rows, to the offset."""

from __future__ import annotations

import dataclasses
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pa = pytest.importorskip("pyarrow", reason="needs the `spark` extra")
pytest.importorskip("confluent_kafka", reason="needs the `dev` extra")

from confluent_kafka import KafkaError, KafkaException, Producer, TopicPartition  # noqa: E402
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]  # noqa: E402

from segments.format.names import log_directory  # noqa: E402
from tests.chaos.harness.replica_set import ReplicaSet  # noqa: E402
from vdl.kafka.client import Unreachable  # noqa: E402
from vdl.pipeline import fetch, source  # noqa: E402
from vdl.pipeline.errors import LogShrank, RowsGone, Stalled, TopicMissing  # noqa: E402
from vdl.pipeline.fetch import Leaders, NotFetched, read_batches  # noqa: E402
from vdl.pipeline.inflated import Inflated  # noqa: E402
from vdl.pipeline.options import COLUMNS, AtTime, parse  # noqa: E402
from vdl.pipeline.positions import OffsetRange, ranges  # noqa: E402
from vdl.pipeline.read import FIRST_ROWS, _first_left, read_range  # noqa: E402
from vdl.pipeline.segment_read import SealedSegment, divide, find, group, read_segment  # noqa: E402
from vdl.pipeline.source import read_broker  # noqa: E402
from vdl.pipeline.topics import ClusterUnreachable, Topics  # noqa: E402

EVERY = (*COLUMNS, "headers")
RECORDS = 3000


def create(bootstrap: str, topic: str, partitions: int = 2, **configs: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    new = NewTopic(topic, num_partitions=partitions, config=configs)
    admin.create_topics([new])[topic].result(timeout=30)


def produce(bootstrap: str, topic: str, count: int = RECORDS, size: int = 0) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5, "batch.size": 30_000})
    for n in range(count):
        value = None if n % 7 == 3 else b"value %d" % n + b"x" * size
        key = None if n % 5 == 2 else b"key %d" % n
        headers = [("n", str(n).encode()), ("empty", None)] if n % 11 == 0 else None
        producer.produce(
            topic, value, key, partition=n % 2, headers=headers, timestamp=1_000_000 + n
        )
        producer.poll(0)
    assert producer.flush(30) == 0


def topics_of(bootstrap: str, topic: str) -> Topics:
    return Topics(parse({"bootstrap": bootstrap, "topics": topic}))


def read(bootstrap: str, wanted: OffsetRange, columns: tuple[str, ...] = EVERY) -> pa.Table:
    batches = read_range(wanted, bootstrap=bootstrap, columns=columns, stall_seconds=20)
    return pa.Table.from_batches(list(batches))


@pytest.fixture(scope="module")
def topic(bootstrap: str) -> str:
    create(bootstrap, "reading")
    produce(bootstrap, "reading")
    return "reading"


def test_range_over_the_protocol_has_exactly_its_offsets(bootstrap: str, topic: str) -> None:
    found = read(bootstrap, OffsetRange(topic, 1, 17, 1203)).to_pylist()
    assert [r["offset"] for r in found] == list(range(17, 1203))
    for r in found:
        n = 2 * r["offset"] + 1
        assert r["value"] == (None if n % 7 == 3 else b"value %d" % n)
        assert r["key"] == (None if n % 5 == 2 else b"key %d" % n)
        assert (r["topic"], r["partition"], r["timestampType"]) == (topic, 1, 0)
        assert round(r["timestamp"].timestamp() * 1000) == 1_000_000 + n
        assert (r["headers"] is None) == (n % 11 != 0)
        if r["headers"]:
            assert r["headers"][0] == {"key": "n", "value": str(n).encode()}


def test_range_behind_the_end_of_a_topic_stalls(bootstrap: str, topic: str) -> None:
    """A read does not wait forever for missing records."""
    wanted = OffsetRange(topic, 0, RECORDS // 2 - 5, RECORDS)
    batches = read_range(wanted, bootstrap=bootstrap, columns=EVERY, stall_seconds=1.5)
    with pytest.raises(Stalled) as stalled:
        list(batches)
    assert stalled.value.offset == RECORDS // 2


def test_range_of_servers_that_are_away_stalls() -> None:
    wanted = OffsetRange("t", 0, 0, 5)
    with pytest.raises(Stalled):
        list(read_range(wanted, bootstrap="127.0.0.1:9", columns=EVERY, stall_seconds=1))


@pytest.fixture(scope="module")
def trimmed(bootstrap: str) -> str:
    """Topic with the first hundred records of a partition removed."""
    create(bootstrap, "trimmed")
    produce(bootstrap, "trimmed", 400)
    admin = AdminClient({"bootstrap.servers": bootstrap})
    where = TopicPartition("trimmed", 0, 100)
    assert admin.delete_records([where])[where].result(timeout=30).low_watermark == 100
    return "trimmed"


def test_range_that_is_gone_in_part_says_how_much(bootstrap: str, trimmed: str) -> None:
    with pytest.raises(
        RowsGone, match="the log begins at 100: 95 records were lost unread"
    ) as gone:
        read(bootstrap, OffsetRange(trimmed, 0, 5, 150))
    assert (gone.value.wanted, gone.value.first) == (5, 100)


@pytest.mark.parametrize("client", ["", "client.check.crcs"])
def test_range_that_is_gone_in_part_is_read_where_loss_is_allowed(
    bootstrap: str, trimmed: str, client: str
) -> None:
    """Returns the rest of it, and nothing of a range that is gone completely."""
    more = {client: "true"} if client else {}
    options = parse({"bootstrap": bootstrap, "topics": trimmed, "allowLoss": "true", **more})
    for end, left in ((150, list(range(100, 150))), (70, [])):
        batches = read_broker(OffsetRange(trimmed, 0, 5, end), options)
        assert [n for batch in batches for n in batch["offset"].to_pylist()] == left


def test_range_that_is_gone_in_part_is_told_in_a_letter(bootstrap: str, trimmed: str) -> None:
    """Retention ran after the plan and before the task."""
    more = {"allowLoss": "true", "unreadable": "letter", "headers": "true"}
    options = parse({"bootstrap": bootstrap, "topics": trimmed, **more})
    first, *rest = [
        row
        for batch in read_broker(OffsetRange(trimmed, 0, 5, 150), options)
        for row in batch.to_pylist()
    ]
    assert (first["offset"], first["headers"][0]["key"]) == (5, None)
    assert first["headers"][0]["value"].startswith(b"offsets [5, 100): they were removed")
    assert [row["offset"] for row in rest] == list(range(100, 150))


@pytest.mark.parametrize("allow_loss", [False, True])
def test_range_that_begins_behind_the_end_of_a_log_says_so(
    bootstrap: str, topic: str, *, allow_loss: bool
) -> None:
    """It was read up to there, so the log was longer."""
    wanted = OffsetRange(topic, 0, RECORDS, RECORDS + 5)
    with pytest.raises(LogShrank) as shrank:
        list(
            read_range(
                wanted, bootstrap=bootstrap, columns=EVERY, stall_seconds=20, allow_loss=allow_loss
            )
        )
    assert (shrank.value.known, shrank.value.end) == (RECORDS, RECORDS // 2)


class Watermarks:
    """Consumer that only reports the start and the end of a log."""

    def __init__(self, answer: tuple[int, int] | KafkaException) -> None:
        self.answer = answer

    def get_watermark_offsets(self, where: TopicPartition, timeout: float) -> Any:
        if isinstance(self.answer, KafkaException):
            raise self.answer
        return self.answer


@pytest.mark.parametrize("answer", [(0, 9), (7, 7), KafkaException(KafkaError(-195))])
def test_range_that_is_there_after_all_is_asked_for_again(answer: Any) -> None:
    """A server may briefly have had less than the leader, or be unreachable now."""
    for allow_loss in (False, True):
        found = _first_left(Watermarks(answer), OffsetRange("t", 0, 5, 9), 7, allow_loss=allow_loss)
        assert found == 7


def test_topics_of_servers_that_are_away_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vdl.pipeline.topics.REQUEST_SECONDS", 1.0)
    monkeypatch.setattr("vdl.pipeline.topics.ATTEMPTS", 2)
    with pytest.raises(ClusterUnreachable):
        topics_of("127.0.0.1:9", "t").ends()


def test_topics_that_do_not_exist_are_an_error(bootstrap: str) -> None:
    with pytest.raises(TopicMissing):
        topics_of(bootstrap, "nowhere").ids()


def test_topics_at_a_time_give_its_first_record(bootstrap: str, topic: str) -> None:
    """Returns the end if no record is as young."""
    topics = topics_of(bootstrap, topic)
    found = topics.resolve(AtTime(1_000_000 + 1000))
    assert (found.offset(topic, 0), found.offset(topic, 1)) == (500, 500)
    assert topics.resolve(AtTime(1_900_000_000_000)).goes_on_from(topics.ends())


def test_topics_that_are_recreated_have_another_id(bootstrap: str) -> None:
    create(bootstrap, "again")
    topics = topics_of(bootstrap, "again")
    before = topics.ids()["again"]
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.delete_topics(["again"])["again"].result(timeout=30)
    deadline = time.monotonic() + 30
    while "again" in admin.list_topics(timeout=10).topics:
        assert time.monotonic() < deadline
    create(bootstrap, "again")
    assert topics.ids()["again"][0] != before[0]


# --- segments ---


@pytest.fixture(scope="module")
def small_segments() -> Iterator[ReplicaSet]:
    """One server with segments of 64 KiB that are flushed every second."""
    servers = ReplicaSet(1)
    servers.up()
    try:
        servers.down()
        config = servers.server(1).config_file
        config.write_text(
            config.read_text(encoding="utf-8").replace(
                "[kafka]\n",
                '[kafka]\n"log.segment.bytes" = 65536\n"message.max.bytes" = 32768\n',
            )
            + '\n[storage]\ncheckpoint_interval = "200ms"\n',
            encoding="utf-8",
        )
        servers.up()
        create(servers.bootstrap, "sealed")
        produce(servers.bootstrap, "sealed", size=150)
        yield servers
    finally:
        servers.close()


def sealed_segments(servers: ReplicaSet) -> dict[int, list[SealedSegment]]:
    """Return the sealed segments of both partitions, once some are on disk."""
    topic_id, count = topics_of(servers.bootstrap, "sealed").ids()["sealed"]
    store = str(servers.directory / "1" / "store")
    deadline = time.monotonic() + 30
    while True:
        found = find(store, "sealed", topic_id, count)
        if len(found) == 2 and all(len(segments) >= 2 for segments in found.values()):
            return found
        assert time.monotonic() < deadline, found
        time.sleep(0.2)


def test_segments_and_protocol_give_equal_rows(small_segments: ReplicaSet) -> None:
    """Every column of every record, from both, while the server runs."""
    for partition, segments in sealed_segments(small_segments).items():
        for one in segments:
            wanted = OffsetRange("sealed", partition, one.base_offset, one.next_offset)
            ((task,), rest) = divide([wanted], [{("sealed", partition): [one]}])
            assert rest == []
            from_file = pa.Table.from_batches(
                list(read_segment(task, columns=EVERY, memory=Inflated()))
            )
            assert from_file.equals(read(small_segments.bootstrap, wanted))
            size = Path(log_directory(one.directory, one.log_id), f"{one.number:010d}.log").stat()
            assert one.size_bytes == size.st_size
            assert from_file.num_rows == wanted.count


def test_segments_and_the_stream_meet_at_one_offset(small_segments: ReplicaSet) -> None:
    """Together they are the topic: no offset is read twice and none is left out."""
    topics = topics_of(small_segments.bootstrap, "sealed")
    place = {("sealed", p): s for p, s in sealed_segments(small_segments).items()}
    begins, ends = topics.begins(), topics.ends()
    from_files, rest = divide(ranges(begins, ends), [place])
    assert from_files
    assert rest
    for partition in (0, 1):
        pieces = sorted(
            [t.wanted for t in from_files if t.wanted.partition == partition]
            + [r for r in rest if r.partition == partition]
        )
        offsets = [n for piece in pieces for n in range(piece.start, piece.end)]
        assert offsets == list(range(ends.offset("sealed", partition) or 0))


def test_segments_of_another_topic_id_are_not_read(small_segments: ReplicaSet) -> None:
    store = str(small_segments.directory / "1" / "store")
    sealed_segments(small_segments)
    assert find(store, "sealed", "AAAAAAAAAAAAAAAAAAAAAA", 2) == {}
    assert find(store, "unknown", "AAAAAAAAAAAAAAAAAAAAAA", 2) == {}


@pytest.mark.parametrize("damage", ["none", "flipped", "removed", "cut"])
def test_segments_of_one_task_that_are_damaged_are_had_from_the_broker(
    small_segments: ReplicaSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    """Two segments are read from the middle of the first to that of the second.

    The first is damaged: a bit is flipped in a copy, or retention has removed it, or it is
    truncated. Records before the damage come from the file, the rest of the segment over the
    protocol, the next segment from its file again, and every record once, in order.
    """
    partition, segments = next(iter(sealed_segments(small_segments).items()))
    copy = tmp_path / "copy"
    two = [dataclasses.replace(one, directory=str(copy)) for one in segments[:2]]
    log = Path(log_directory("", two[0].log_id).lstrip("/"))
    shutil.copytree(small_segments.directory / "1" / "store" / log, copy / log)
    file = copy / log / f"{two[0].number:010d}.log"
    data = bytearray(file.read_bytes())
    if damage == "flipped":
        data[len(data) * 3 // 4] ^= 1
    file.write_bytes(data[: len(data) * 3 // 4] if damage == "cut" else data)
    if damage == "removed":
        file.unlink()
    start, end = ((one.base_offset + one.next_offset) // 2 for one in two)
    wanted = OffsetRange("sealed", partition, start, end)
    pieces, rest = divide([wanted], [{("sealed", partition): two}])
    assert rest == []
    (task,) = group(pieces, tasks_min=1)
    asked: list[OffsetRange] = []
    monkeypatch.setattr(source, "read_broker", lambda r, o: asked.append(r) or read_broker(r, o))
    options = parse({"bootstrap": small_segments.bootstrap, "topics": "sealed"})
    found = list(source.read_partition(source.RangePartition(task), options))
    offsets = [n for batch in found for n in batch["offset"].to_pylist()]
    assert offsets == list(range(wanted.start, wanted.end))
    if damage == "none":
        assert asked == []
    else:
        (over_protocol,) = asked
        assert wanted.start <= over_protocol.start < over_protocol.end == two[0].next_offset


@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
def test_batches_as_brokers_keep_them_are_the_same_rows(
    bootstrap: str, topic: str, isolation: str
) -> None:
    """They are equal to the offset, also if a range begins and ends within a batch."""
    wanted = OffsetRange(topic, 1, 17, 1203)
    with Leaders(bootstrap) as leaders:
        found = list(read_batches(wanted, leaders=leaders, columns=EVERY, isolation=isolation))
    assert found[-1][0] == wanted.end
    assert pa.Table.from_batches([batch for _, batch in found]) == read(bootstrap, wanted)


@pytest.mark.parametrize("answers", [0, 1])
def test_what_batches_do_not_give_a_client_library_does(
    bootstrap: str, topic: str, monkeypatch: pytest.MonkeyPatch, answers: int
) -> None:
    """The connection breaks between two responses, or before the first.

    No row is missing, and none is duplicated.
    """
    wanted = OffsetRange(topic, 0, 3, 1400)
    whole = read(bootstrap, wanted, COLUMNS)
    real = fetch._fetch
    asked = []

    def fetched(*arguments: Any) -> list[memoryview]:
        asked.append(arguments)
        if len(asked) > answers:
            raise Unreachable("somewhere", "closed the connection")
        return real(*arguments)[:1]

    monkeypatch.setattr(fetch, "_fetch", fetched)
    options = parse({"bootstrap": bootstrap, "topics": topic})
    assert pa.Table.from_batches(list(read_broker(wanted, options))) == whole
    assert len(asked) == answers + 1


def test_small_ranges_of_one_task_are_one_batch(
    bootstrap: str, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are read in order, over one connection to each leader, with one request for it."""
    asked = []
    real = fetch._leaders
    monkeypatch.setattr(fetch, "_leaders", lambda *told: asked.append(told) or real(*told))
    pieces = [OffsetRange(topic, n % 2, 10 * n, 10 * n + 3) for n in range(40)]
    options = parse({"bootstrap": bootstrap, "topics": topic})
    (batch,) = source.read_ranges(source.BrokerTask(tuple(pieces)), options)
    places = list(zip(*(batch[name].to_pylist() for name in ("partition", "offset")), strict=True))
    assert places == [(r.partition, n) for r in pieces for n in range(r.start, r.end)]
    assert len(asked) == 1


def test_records_of_any_size_are_batches_of_bounded_bytes(bootstrap: str) -> None:
    """A client library's queue is bounded, so the rows taken out of it at a time must be, too."""
    create(bootstrap, "large", partitions=1)
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5})
    for _ in range(400):
        producer.produce("large", b"x" * 200_000, partition=0)
        producer.poll(0)
    assert producer.flush(60) == 0
    wanted = OffsetRange("large", 0, 0, 400)
    columns = ("value", "offset")
    sizes = [
        batch.nbytes
        for batch in read_range(wanted, bootstrap=bootstrap, columns=columns, stall_seconds=20)
    ]
    assert sum(sizes) >= 400 * 200_000
    assert max(sizes) <= FIRST_ROWS * 201_000


def test_offset_that_is_gone_ends_the_reading_of_batches(bootstrap: str, topic: str) -> None:
    wanted = OffsetRange(topic, 0, RECORDS * 2, RECORDS * 3)
    with Leaders(bootstrap) as leaders, pytest.raises(NotFetched):
        list(read_batches(wanted, leaders=leaders, columns=COLUMNS, isolation="read_committed"))


@pytest.mark.parametrize("address", ["", "host:", "host:port"])
def test_address_that_is_none_is_no_good_case(address: str) -> None:
    with pytest.raises((NotFetched, Unreachable)):
        fetch._leaders("t", address)
