"""Batches that the driver plans, over topics that are no plain sequence of records.

The plan and a task run in this process, without Spark, against real servers: what is between both
happens to the topic.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="needs the `spark` extra")
pytest.importorskip("pyspark", reason="needs the `spark` extra")
pytest.importorskip("confluent_kafka", reason="needs the `dev` extra")

import pyarrow.parquet as pq
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient  # type: ignore[attr-defined]

from tests.chaos.harness.replica_set import ReplicaSet
from tests.pipeline.test_direct import direct_of
from tests.pipeline.test_reading import create
from vdl.pipeline import fetch
from vdl.pipeline.direct import Direct, Outcome, left_of
from vdl.pipeline.direct_batches import Item, write
from vdl.pipeline.errors import RowsGone
from vdl.pipeline.files import ROWS
from vdl.pipeline.inflated import BATCH_BYTES_MAX
from vdl.pipeline.options import ReadOptions, parse
from vdl.pipeline.positions import Positions
from vdl.pipeline.source import BrokerTask, VdlStreamReader

COMPACTED = {
    "cleanup.policy": "compact", "segment.bytes": "65536", "min.cleanable.dirty.ratio": "0.0",
}  # fmt: skip
SECONDS = 90.0
LARGEST = 64 << 20


def options_of(bootstrap: str, topic: str, **more: str) -> ReadOptions:
    columns = "key,value,topic,partition,offset,timestamp,headers"
    given = {"bootstrap": bootstrap, "topics": topic, "columns": columns, "unreadable": "letter"}
    return parse({**given, **more})


def planned(options: ReadOptions, begin: dict[str, Any] | None = None) -> tuple[list[Any], Any]:
    """Return the tasks of a batch up to the present end, and that end."""
    with closing(Closing(options)) as one:
        start = begin or one.reader.initialOffset()
        end = one.reader.latestOffset(start, one.reader.getDefaultReadLimit())
        parts = [part.value for part in one.reader.partitions(start, end)]
        return [Item(part, {}) for part in parts if part is not None], end


class Closing:
    """Reader that is closed like a file."""

    def __init__(self, options: ReadOptions) -> None:
        self.reader = VdlStreamReader(options)

    def close(self) -> None:
        self.reader.stop()


def direct_in(folder: Path) -> Direct:
    """Outside Spark all tasks have one name: each writes to a folder of its own."""
    return direct_of(Path(mkdtemp(dir=folder)))


def rows_of(outcome: Outcome) -> list[tuple[int, int]]:
    """Return (offset, number) of the rows that a task has written, in their order."""
    paths = [report["path"] for report in outcome.reports if report["kind"] == ROWS]
    found = [row for path in paths for row in pq.read_table(path).to_pylist()]
    return [(row["_offset"], row["n"]) for row in found]


def number(n: int) -> bytes:
    return json.dumps({"n": n}).encode()


def send(bootstrap: str, topic: str, numbers: range, **more: Any) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5, **more})
    for n in numbers:
        producer.produce(topic, number(n), b"k", partition=0)
    assert producer.flush(30) == 0


@pytest.mark.parametrize("is_allowed", [False, True])
def test_direct_batch_that_is_trimmed_after_its_plan_writes_no_gap_silently(
    bootstrap: str, tmp_path: Path, *, is_allowed: bool
) -> None:
    """It fails and leaves no file; where loss is allowed, the gap is left as one letter."""
    topic = f"trimmed-after-{is_allowed}".lower()
    create(bootstrap, topic, partitions=1)
    send(bootstrap, topic, range(300))
    options = options_of(bootstrap, topic, allowLoss=str(is_allowed).lower())
    (item,), _ = planned(options)
    where = TopicPartition(topic, 0, 120)
    admin = AdminClient({"bootstrap.servers": bootstrap})
    assert admin.delete_records([where])[where].result(timeout=30).low_watermark == 120
    if not is_allowed:
        with pytest.raises(RowsGone, match="begins at 120"):
            write(options, direct_in(tmp_path), item)
        assert list(tmp_path.glob("*/*")) == []
        return
    done = write(options, direct_in(tmp_path), item)
    assert rows_of(done) == [(n, n) for n in range(120, 300)]
    left = left_of([done])
    assert left is not None
    assert left.column("offset").to_pylist() == [0]
    assert "[0, 120)" in left.column("headers").to_pylist()[0][0]["value"].decode()


def test_direct_batch_has_committed_transactions_only(bootstrap: str, tmp_path: Path) -> None:
    """Aborted records and markers have offsets of the batch, and no rows.

    A batch may begin or end within any of them, and is the same when it is read again.
    """
    topic = "transactions-direct"
    create(bootstrap, topic, partitions=1)
    wanted: list[int] = []
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": topic})
    producer.init_transactions(30)
    for turn in range(4):
        send(bootstrap, topic, range(100 * turn, 100 * turn + 20))
        wanted += range(100 * turn, 100 * turn + 20)
        producer.begin_transaction()
        for n in range(100 * turn + 50, 100 * turn + 80):
            producer.produce(topic, number(n), partition=0)
        producer.flush(30)
        if turn % 2:
            producer.commit_transaction(30)
            wanted += range(100 * turn + 50, 100 * turn + 80)
        else:
            producer.abort_transaction(30)
    options = options_of(bootstrap, topic)
    (item,), end = planned(options)
    assert Positions.from_json(end).offset(topic, 0) == 4 * 51
    whole = rows_of(write(options, direct_in(tmp_path), item))
    assert [n for _, n in whole] == wanted
    for start in (0, 19, 20, 35, 50, 51, 60, 101, 160):
        (piece,) = item.part.pieces
        for stop in (start + 1, start + 40, 4 * 51):
            again = Item(BrokerTask((replace(piece, start=start, end=stop),)), {})
            found = rows_of(write(options, direct_in(tmp_path), again))
            assert found == [row for row in whole if start <= row[0] < stop], (start, stop)


def test_direct_batch_of_a_compacted_topic_has_what_is_left(bootstrap: str, tmp_path: Path) -> None:
    """Also where a batch ends, or lies as a whole, within offsets that have no record."""
    topic = "compacted-direct"
    create(bootstrap, topic, partitions=1, **COMPACTED)
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5, "batch.size": 10_000})
    for n in range(2_000):
        value = json.dumps({"n": n, "text": "x" * 300}).encode()
        # Keys of two hundreds are not written again.
        key = b"kept %d" % n if n // 100 in {0, 7} else b"%d" % (n % 10)
        producer.produce(topic, value, key, partition=0)
    assert producer.flush(30) == 0
    options = options_of(bootstrap, topic)
    (item,), _ = planned(options)
    deadline = time.monotonic() + SECONDS
    while True:
        whole = rows_of(write(options, direct_in(tmp_path), item))
        offsets = [offset for offset, _ in whole]
        gap, first = max((b - a, a) for a, b in pairwise(offsets))
        if gap > 200:
            break
        assert time.monotonic() < deadline, len(whole)
        time.sleep(1)
    assert all(offset == n for offset, n in whole)
    assert {n for _, n in whole} >= set(range(1_990, 2_000))
    (piece,) = item.part.pieces
    for start, end in ((0, first + gap // 2), (first + 1, first + 50), (first + 9, 2_000)):
        again = Item(BrokerTask((replace(piece, start=start, end=end),)), {})
        found = rows_of(write(options, direct_in(tmp_path), again))
        assert found == [row for row in whole if start <= row[0] < end], (start, end)


def test_direct_batch_holds_records_of_any_size(bootstrap: str, tmp_path: Path) -> None:
    """One in doubt that the driver must not hold gives the batch up; others are rows.

    The largest exceeds what this reader decompresses, so a client library reads it.
    """
    topic = "huge-direct"
    create(bootstrap, topic, partitions=1, **{"max.message.bytes": str(LARGEST)})
    sizes = (10, BATCH_BYTES_MAX + (1 << 20), 6 << 20, 10)
    producer = Producer({"bootstrap.servers": bootstrap, "message.max.bytes": LARGEST})
    for n, size in enumerate(sizes):
        producer.produce(topic, json.dumps({"n": n, "x": "y" * size}).encode(), partition=0)
        assert producer.flush(60) == 0
    options = options_of(bootstrap, topic)
    (item,), end = planned(options)
    assert rows_of(write(options, direct_in(tmp_path), item)) == [(n, n) for n in range(4)]
    doubtful = b'{"n": 1, "n": 4, "x": "%b"}' % (b"y" * (6 << 20))
    producer.produce(topic, doubtful, partition=0)
    assert producer.flush(60) == 0
    (item,), _ = planned(options, end)
    kept = set(tmp_path.glob("*/*"))
    assert write(options, direct_in(tmp_path), item) == Outcome(is_given_up=True)
    assert set(tmp_path.glob("*/*")) == kept


@pytest.fixture
def three() -> Iterator[ReplicaSet]:
    servers = ReplicaSet(3)
    try:
        servers.up()
        yield servers
    finally:
        servers.close()


@pytest.mark.parametrize("how", ["killed", "suspended"])
def test_direct_batch_goes_on_where_its_leader_ends(
    three: ReplicaSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """Each record is a row once, in order, whichever leader has sent it."""
    create(three.bootstrap, "led", partitions=1)
    send(three.bootstrap, "led", range(3_000), **{"batch.size": 2_000})
    options = options_of(three.bootstrap, "led")
    (item,), _ = planned(options)
    real = fetch._fetch
    asked: list[Callable[..., Any]] = []

    def fetched(*told: Any) -> list[memoryview]:
        asked.append(real)
        if len(asked) == 2:
            admin = AdminClient({"bootstrap.servers": three.bootstrap})
            leader = admin.list_topics("led", timeout=20).topics["led"].partitions[0].leader
            if how == "killed":
                three.kill(leader)
            else:
                three.pause(leader)
        return real(*told)[:5]

    monkeypatch.setattr(fetch, "_fetch", fetched)
    monkeypatch.setattr(fetch, "TIMEOUT_SECONDS", 2.0)
    found = rows_of(write(options, direct_in(tmp_path), item))
    assert found == [(n, n) for n in range(3_000)]
    assert len(asked) == 2
