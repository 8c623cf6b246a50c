"""Rows written where they are read: the same table as by Spark's path."""

from __future__ import annotations

import json
import pickle
import random
import threading
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="needs the `spark` extra")
pytest.importorskip("pyspark", reason="needs the `spark` extra")
pytest.importorskip("fastavro", reason="needs the `spark` extra")

import pyarrow as pa
import pyarrow.parquet as pq
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient  # type: ignore[attr-defined]

from tests.pipeline.end_to_end import as_avro, broken, orders, serve_registry
from tests.pipeline.end_to_end import job_of as order_job
from tests.pipeline.registered.test_registered_values import Answers, framed
from tests.pipeline.test_reading import create
from tests.pipeline.test_spark import fill, job_of, run_once
from vdl.pipeline import direct_batches
from vdl.pipeline.decode import NO_VALUE, NOT_JSON, TOMBSTONES
from vdl.pipeline.direct import AVRO, JSON, Direct, Outcome, can_write, left_of, write_task
from vdl.pipeline.direct_batches import DirectBatches, Part, Stopped, divided
from vdl.pipeline.errors import (
    CommitConflict,
    PipelineError,
    RowsGone,
    TopicRecreated,
)
from vdl.pipeline.files import ROWS as ROWS_KIND
from vdl.pipeline.files import WriteSpec, packed, unpacked
from vdl.pipeline.open_table import rows_table
from vdl.pipeline.options import TEXTS, parse
from vdl.pipeline.positions import OffsetRange
from vdl.pipeline.read import letter, schema_of
from vdl.pipeline.registered.values import Texts
from vdl.pipeline.runner import Runner
from vdl.pipeline.source import BrokerTask, LostRange
from vdl.pipeline.tasks import on_spark
from vdl.pipeline.verify import verify

COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "headers")
ROWS = pa.schema(
    [
        ("n", pa.int64()), ("_partition", pa.int32()), ("_offset", pa.int64()),
        ("_timestamp", pa.timestamp("us", tz="UTC")),
    ]
)  # fmt: skip


def direct_of(folder: Path) -> Direct:
    spec = WriteSpec("job-0123456789ab-0-direct", str(folder), str(folder), "t", {"n": "bigint"})
    return Direct(JSON, spec, ROWS.serialize().to_pybytes(), is_utc=True)


def batch_of(values: list[bytes | None], first: int = 0) -> pa.RecordBatch:
    rows = [
        {"value": value, "topic": "t", "partition": 0, "offset": first + n}
        for n, value in enumerate(values)
    ]
    names = dict.fromkeys(COLUMNS)
    return pa.RecordBatch.from_pylist([names | row for row in rows], schema=schema_of(COLUMNS))


def test_direct_writes_what_is_sure_and_leaves_the_rest(tmp_path: Path) -> None:
    """Letters of the source are left as well, with any contents."""
    letters = letter(OffsetRange("t", 0, 5, 9), "cut off", COLUMNS, b"no")
    batches = [batch_of([b'{"n":1}', b'{"n":1.5}', b'{"n":2}', b" no", None]), letters]
    done = write_task(iter(batches), direct_of(tmp_path), None)
    left = left_of([done, Outcome()])
    assert left is not None
    assert left.schema == schema_of(COLUMNS)
    assert left.column("offset").to_pylist() == [1, 5]
    assert left_of([Outcome()]) is None
    rows, dead = done.reports
    assert (rows["kind"], rows["rows"], rows["spans"]) == (ROWS_KIND, 2, '[["t", 0, 0, 3]]')
    assert pq.read_table(rows["path"]).to_pylist() == [
        {"n": 1, "_partition": 0, "_offset": 0, "_timestamp": None},
        {"n": 2, "_partition": 0, "_offset": 2, "_timestamp": None},
    ]
    told = pq.read_table(dead["path"]).to_pylist()
    assert [(one["offset"], one["value"]) for one in told] == [(3, b" no"), (4, None)]
    assert told[0]["error"].startswith(NOT_JSON)
    assert told[1]["error"] == NO_VALUE


def test_direct_sends_dead_letters_with_the_tasks_that_read_them(tmp_path: Path) -> None:
    """Not with the secrets: Spark writes a function above 1 MiB to files."""
    offsets = {p: random.Random(p).sample(range(4 << 20), 400_000) for p in (0, 1)}
    spec = replace(
        direct_of(tmp_path).spec, dead_there={f"t/{p}": packed(told) for p, told in offsets.items()}
    )
    pieces = [OffsetRange("t", p, 0, 10) for p in (1, 2)]
    parts: list[Part] = [BrokerTask((piece,)) for piece in pieces]
    options = parse({"bootstrap": "127.0.0.1:1", "topics": "t"})
    function, items = divided(
        options, replace(direct_of(tmp_path), spec=spec), [*parts, LostRange(pieces[0])]
    )
    assert len(pickle.dumps(function)) < 10_000
    assert [set(item.dead_there) for item in items] == [{"t/1"}, set(), {"t/1"}]
    assert unpacked(items[0].dead_there["t/1"]) == set(offsets[1])
    assert len(pickle.dumps(items)) < 1 << 20


def test_direct_treats_tombstones_as_the_job_says(tmp_path: Path) -> None:
    """Records left are only those of which Spark makes rows of NULLs."""
    found = {}
    for tombstones in TOMBSTONES[:3]:
        direct = replace(direct_of(tmp_path), tombstones=tombstones)
        done = write_task(iter([batch_of([b'{"n":1}', None])]), direct, None)
        left = left_of([done])
        found[tombstones] = (len(done.reports), left and left.num_rows)
    assert found == {"dead": (2, None), "drop": (1, None), "null": (1, 1)}


def test_direct_gives_up_if_too_much_is_left(tmp_path: Path) -> None:
    """The driver's memory holds what tasks leave."""
    direct = replace(direct_of(tmp_path), left_bytes_max=10_000)
    odd = batch_of([b'{"n":1}', b"no", *[b'{"n":1.5}'] * 20])
    assert not write_task(iter([odd] * 3), direct, None).is_given_up
    assert write_task(iter([odd] * 200), direct, None) == Outcome(is_given_up=True)
    assert list(tmp_path.iterdir()) == []


def test_direct_of_a_task_that_fails_leaves_no_file(tmp_path: Path) -> None:
    def broken() -> Any:
        yield batch_of([b'{"n":1}', None])
        raise OSError("the leader is gone")

    with pytest.raises(OSError, match="gone"):
        write_task(broken(), direct_of(tmp_path), None)
    assert list(tmp_path.iterdir()) == []


def test_direct_reads_values_of_schemas_that_change_within_a_batch(tmp_path: Path) -> None:
    """Rows keep the order of their records. The many schemas of one batch are a limit of speed."""
    old = [{"name": "n", "type": "long"}]
    new = [{"name": "added", "type": ["null", "string"]}, {"name": "n", "type": "int"}]
    answers = Answers()
    for schema_id, fields in ((1, old), (2, new), *((n, old) for n in range(10, 30))):
        schema = {"type": "record", "name": "R", "fields": fields}
        answers.put(schema_id, "AVRO", json.dumps(schema))
    answers.put(3, "AVRO", '"string"')
    here = {"url": answers.url}
    direct = replace(direct_of(tmp_path), form=AVRO, registry=here)
    long, added = bytes([2 * 40]), b"\x02\x02x" + bytes([2 * 41])
    values = [framed(1 + n % 2, added if n % 2 else long) for n in range(60)]
    values[5], values[8] = framed(3, b"\x02x"), framed(9, b"\x02")
    batch = batch_of([*values, *(framed(n, long) for n in range(10, 30))])
    try:
        done = write_task(iter([batch]), direct, Texts(AVRO, here))
    finally:
        answers.close()
    rows, dead = done.reports
    found = pq.read_table(rows["path"]).to_pylist()
    offsets = [row["_offset"] for row in found]
    assert offsets == sorted(offsets)
    assert [row["n"] for row in found if row["_offset"] < 60] == [
        40 + n % 2 for n in range(60) if n not in {5, 8}
    ]
    (letter_of_9,) = pq.read_table(dead["path"]).to_pylist()
    assert letter_of_9["offset"] == 8
    assert "not known to the registry" in letter_of_9["error"]
    left = left_of([done])
    assert left is not None
    told = dict(zip(left["offset"].to_pylist(), left["_registered"].to_pylist(), strict=True))
    assert told.pop(5) == {"text": '"x"', "error": None}
    assert set(told) == set(range(60, 80)) - set(offsets)
    assert {one["text"] for one in told.values()} == {'{"n": 40}'}


@pytest.mark.parametrize(
    ("columns", "settings"),
    [
        ([("n", pa.decimal128(9, 2))], []),
        ([("n", pa.list_(pa.int64()))], []),
        ([("n", pa.float32())], []),
        ([("n", pa.int64()), ("n", pa.int64())], []),
        ([("_offset", pa.int64()), ("n", pa.int64())], []),
        ([], []),
        ([("n", pa.int64())], ["spark.sql.legacy.timeParserPolicy"]),
    ],
)
def test_direct_is_not_for_what_spark_may_read_otherwise(
    columns: list[Any], settings: list[str]
) -> None:
    assert can_write(JSON, ROWS, ["spark.sql.session.timeZone"])
    assert not can_write(JSON, pa.schema([*columns, *list(ROWS)[1:]]), settings)
    assert not can_write("raw", ROWS, [])


@pytest.mark.takes_turns(parts=3)
@pytest.mark.spark
@pytest.mark.parametrize("sink", ["parquet", "delta", "iceberg"])
def test_job_writes_the_same_table_either_way(
    spark: Any, bootstrap: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sink: str
) -> None:
    """Rows, types and dead letters are equal; a recount finds nothing wrong."""
    topic = f"direct-{sink}"
    values = [
        json.dumps({"n": n, "d": n / 3, "s": f"é{n}", "at": "2026-11-29T10:00:00.5Z"}).encode()
        for n in range(500)
    ]
    odd = [b'{"n":1.5}', b'{"d":"NaN"}', b'{"s":{"a":1}}', b"no", b'{"n":1}{"n":2}', b'{"at":12}']
    create(bootstrap, topic)
    producer = Producer({"bootstrap.servers": bootstrap})
    for n, value in enumerate([*values[:250], *odd, *values[250:], None]):
        producer.produce(topic, value, b"k", partition=n % 2, timestamp=1_000_000 + n)
    assert producer.flush(30) == 0
    found = {}
    for way in ("direct", "given up", "by Spark"):
        folder = tmp_path / way
        folder.mkdir()
        job = replace(
            job_of(folder, bootstrap, topic, sink=sink),
            schema="n bigint, d double, s string, at timestamp",
        )
        if way == "given up":
            # One byte for two tasks.
            monkeypatch.setattr(direct_batches, "LEFT_BYTES_OF_BATCH_MAX", 1)
        if way == "by Spark":
            monkeypatch.setattr(Runner, "_find_direct", lambda runner: None)
        totals = run_once(job, spark)
        table = rows_table(job)
        table.open({topic: ("", 2)})
        files = table.files()
        read = [pq.read_table(path, partitioning=None) for path in files]
        assert len({one.schema for one in read}) == 1
        rows = pa.concat_tables(read).sort_by(
            [("_partition", "ascending"), ("_offset", "ascending")]
        )
        found[way] = (totals.rows, totals.dead, read[0].schema, rows)
        if sink != "parquet":
            # Only batches with values in doubt are given up.
            names = {Path(path).name for path in files}
            written = {name for name in names if "-direct-" in name}
            assert bool(written) == (way != "by Spark")
            assert names > written or way == "direct"
            staged = {path.name for path in folder.rglob("*-[0-9]-direct-*")}
            assert {name for name in staged if not name.endswith("-dead.parquet")} == written
        if way == "direct":
            assert verify(job, spark).is_good
    one, *others = found.values()
    for other in others:
        assert one[:3] == other[:3]
        # One of them is not equal to itself.
        assert repr(one[3].to_pylist()) == repr(other[3].to_pylist())
    assert one[1] > 1


@pytest.mark.spark
def test_avro_is_read_by_the_source_alone(
    spark: Any, bootstrap: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows and dead letters are those of a query that reads values by a process of its own."""
    topic, ways = "direct-avro", ("direct", "by the source", "by another process")
    create(bootstrap, topic)
    producer = Producer({"bootstrap.servers": bootstrap})
    write = as_avro()
    values = [write(order) for order in orders(300, random.Random(1))]
    for n in range(0, len(values), 10):
        values[n] = broken(values[n], n // 10)
    for n, value in enumerate([*values, None]):
        producer.produce(topic, value, b"k", partition=n % 2, timestamp=1_000_000 + n)
    assert producer.flush(30) == 0
    url, registry = serve_registry()
    found, plans = [], []
    try:
        for way in ways:
            folder = tmp_path / way
            folder.mkdir()
            job = order_job(bootstrap, topic, "avro", "parquet", url, folder)
            job = replace(job, errors=replace(job.errors, share_max=0.5))
            if way != "direct":
                monkeypatch.setattr(Runner, "_find_direct", lambda runner: None)
            if way == "by another process":
                monkeypatch.setattr(Runner, "_reading", without_texts(Runner._reading))
            with closing(Runner(job, spark)) as runner:
                totals = runner.run(once=True)
                frame = runner._decoded(
                    runner._bounded(runner._topics.begins(), runner.positions())
                )
                plans.append(str(frame._jdf.queryExecution().executedPlan()))
            rows = spark.read.parquet(job.sink.path).orderBy("_partition", "_offset").collect()
            dead = spark.read.parquet(job.errors.path).orderBy("partition", "offset").collect()
            found.append((totals.rows, totals.dead, rows, dead))
    finally:
        registry.shutdown()
        registry.server_close()
    assert found[0] == found[1] == found[2]
    assert found[0][:2] == (270, 31)
    assert ["ArrowEvalPython" in plan for plan in plans] == [False, False, True]


@pytest.mark.spark
def test_table_is_continued_by_either_way(
    spark: Any, bootstrap: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An earlier build may go on where this one has ended, and this one again."""
    create(bootstrap, "either")
    job = job_of(tmp_path, bootstrap, "either", sink="delta")
    rows = 0
    for n in range(3):
        fill(bootstrap, "either", 100 * n, 100 * n + 100)
        with monkeypatch.context() as patch:
            if n == 1:
                patch.setattr(Runner, "_find_direct", lambda runner: None)
            rows += run_once(job, spark).rows
    verdict = verify(job, spark)
    assert verdict.is_good
    assert verdict.rows == rows
    table = rows_table(job)
    table.open({"either": ("", 2)})
    ways = ["-direct-" in path for path in table.files()]
    assert (any(ways), all(ways)) == (True, False)


@pytest.mark.spark
def test_run_is_told_that_another_one_has_removed_its_files(
    spark: Any, bootstrap: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its tasks know only that a folder is gone."""
    create(bootstrap, "followed")
    fill(bootstrap, "followed", 0, 600)
    job = job_of(tmp_path, bootstrap, "followed")
    with closing(Runner(job, spark)) as slow, closing(Runner(job, spark)) as heir:
        there = slow._dead_there

        def dead_there() -> dict[str, bytes]:
            if slow.totals.batches == 1:
                heir.run(once=True)
            return there()

        monkeypatch.setattr(slow, "_dead_there", dead_there)
        with pytest.raises(CommitConflict, match=f"run {heir._run} on "):
            slow.run(once=True)
    assert heir.totals.batches > 0
    assert verify(job, spark).is_good


@pytest.mark.spark
def test_preview_and_a_refused_run_write_nothing(
    spark: Any, bootstrap: str, tmp_path: Path
) -> None:
    create(bootstrap, "shown")
    fill(bootstrap, "shown", 0, 10)
    job = job_of(tmp_path, bootstrap, "shown")
    with closing(Runner(job, spark)) as runner:
        assert len(runner.preview(3)[1]) == 3
    assert not Path(job.sink.path).exists()


@pytest.mark.spark
def test_settings_of_a_running_session_count(spark: Any, bootstrap: str, tmp_path: Path) -> None:
    job = job_of(tmp_path, bootstrap, "settings")
    with closing(Runner(job, spark)) as runner:
        runner._check_steps()
        assert runner._find_direct() is not None
        spark.conf.set("spark.sql.legacy.timeParserPolicy", "LEGACY")
        try:
            assert runner._find_direct() is None
        finally:
            spark.conf.unset("spark.sql.legacy.timeParserPolicy")


@pytest.mark.spark
def test_job_stops_if_its_topic_changes_under_it(
    spark: Any, bootstrap: str, tmp_path: Path
) -> None:
    """Batches before the change are in the table, and none after it."""
    admin = AdminClient({"bootstrap.servers": bootstrap})

    def trim(topic: str) -> None:
        gone = [TopicPartition(topic, p, 290) for p in (0, 1)]
        for done in admin.delete_records(gone).values():
            done.result(30)

    def recreate(topic: str) -> None:
        admin.delete_topics([topic])[topic].result(30)
        deadline = time.monotonic() + 30
        while topic in admin.list_topics(timeout=10).topics:
            assert time.monotonic() < deadline
        create(bootstrap, topic)
        fill(bootstrap, topic, 0, 600)

    for change, error in ((trim, RowsGone), (recreate, TopicRecreated)):
        topic = f"under-{change.__name__}"
        create(bootstrap, topic)
        fill(bootstrap, topic, 0, 600, broken=False)
        folder = tmp_path / topic
        folder.mkdir()
        job = job_of(folder, bootstrap, topic)

        def on_batch(_: object, change: Any = change, topic: str = topic) -> None:
            change(topic)

        with closing(Runner(job, spark, on_batch)) as runner, pytest.raises(error):
            runner.run(once=True)
        assert runner.totals.rows == spark.read.parquet(job.sink.path).count() == 250


@pytest.mark.spark
@pytest.mark.parametrize(
    ("change", "error"),
    [
        ("trimmed", "begins at 290"),
        ("deleted", "does not exist"),
        ("recreated, shorter", "was deleted and created again"),
        ("recreated, longer", "was deleted and created again"),
    ],
)
def test_job_stops_if_its_topic_changes_between_plan_and_read(
    spark: Any,
    bootstrap: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    change: str,
    error: str,
) -> None:
    """Nothing of that batch is in the table, and the error says what has happened."""
    topic = f"planned-{change}".replace(", ", "-")
    create(bootstrap, topic)
    fill(bootstrap, topic, 0, 600, broken=False)
    more = '\n[source.options]\nstallSeconds = "3"\n'
    job = job_of(tmp_path, bootstrap, topic, more=more)
    admin = AdminClient({"bootstrap.servers": bootstrap})
    batches: list[Any] = []

    def planned(*told: Any) -> Any:
        batches.append(told)
        if len(batches) == 2:
            if change == "trimmed":
                gone = [TopicPartition(topic, p, 290) for p in (0, 1)]
                for done in admin.delete_records(gone).values():
                    done.result(30)
            else:
                admin.delete_topics([topic])[topic].result(30)
                deadline = time.monotonic() + 30
                while topic in admin.list_topics(timeout=10).topics:
                    assert time.monotonic() < deadline
            if "recreated" in change:
                create(bootstrap, topic)
                fill(bootstrap, topic, 0, 600 if "longer" in change else 20)
        return divided(*told)

    monkeypatch.setattr(direct_batches, "divided", planned)
    with closing(Runner(job, spark)) as runner, pytest.raises(PipelineError, match=error):
        runner.run(once=True)
    assert len(batches) == 2
    assert runner.totals.rows == spark.read.parquet(job.sink.path).count() == 250


@pytest.mark.spark
def test_stop_ends_the_jobs_of_a_batch(spark: Any, bootstrap: str) -> None:
    """Also one that begins after the stop. Errors of a batch are not taken for a wait."""
    stopping = threading.Event()
    options = parse({"bootstrap": bootstrap, "topics": "t"})

    def late() -> list[None]:
        stopping.set()
        time.sleep(2 * direct_batches.WAIT_SECONDS)
        return on_spark(spark)(time.sleep, [600])

    def fail() -> None:
        raise TimeoutError("of a socket")

    with closing(DirectBatches(spark, options, stopping)) as batches:
        with pytest.raises(TimeoutError, match="of a socket"):
            batches.run("fails", fail)
        with pytest.raises(PipelineError, match="str"):
            batches.run("fails", lambda: on_spark(spark)(time.sleep, ["x"]))
        with pytest.raises(Stopped):
            batches.run("late", late)
    assert list(spark.sparkContext.statusTracker().getActiveJobsIds()) == []


def without_texts(reading: Callable[[Runner], dict[str, str]]) -> Callable[[Runner], Any]:
    """Return a `Runner._reading` whose source does not read registered values."""
    return lambda runner: {n: v for n, v in reading(runner).items() if n != TEXTS}
