"""The source, jobs and commands on Spark: one session for all."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="needs the `spark` extra")
pytest.importorskip("pyspark", reason="needs the `spark` extra")

import pyarrow.parquet as pq
from confluent_kafka import Producer

from tests.pipeline.test_reading import create
from vdl.commands import pipeline as commands
from vdl.commands.app import run_app
from vdl.pipeline.errors import PipelineError, TooManyDeadLetters, TopicRecreated
from vdl.pipeline.expectations import ExpectationFailed
from vdl.pipeline.job import Job, load_job
from vdl.pipeline.runner import BatchReport, Runner, Totals
from vdl.pipeline.verify import verify

pytestmark = [pytest.mark.spark, pytest.mark.takes_turns(parts=2)]
COUNT = 600
BROKEN = (b"", None, b"\xff", b"{", b"[]", b'{"n":"x"}', b"[" * 1001)

JOB = """
[job]
name = "{name}"
[source]
bootstrap = "{bootstrap}"
topics = ["{topic}"]
max_rows = 250
[decode]
schema = "n bigint, text string"
[sink]
kind = "{sink}"
path = "{name}"
[errors]
share_max = {share}
rows_min = 1
"""


def fill(bootstrap: str, topic: str, first: int, end: int, *, broken: bool = True) -> None:
    """Produce numbers [first, end) as JSON over two partitions, and the broken records."""
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5})
    for n in range(first, end):
        value = json.dumps({"n": n, "text": f"number {n}"}).encode()
        producer.produce(topic, value, partition=n % 2, timestamp=1_000_000 + n)
    for n, value in enumerate(BROKEN if broken else ()):
        producer.produce(topic, value, b"broken", partition=n % 2, headers=[("h", b"1")])
    assert producer.flush(30) == 0


@pytest.fixture(scope="module")
def topic(bootstrap: str) -> str:
    create(bootstrap, "numbers")
    fill(bootstrap, "numbers", 0, COUNT)
    return "numbers"


def job_of(
    folder: Path, bootstrap: str, topic: str, *, sink: str = "parquet", share: float = 0.5,
    more: str = "",
) -> Job:  # fmt: skip
    file = folder / "job.toml"
    text = JOB.format(
        name=f"{topic}-{sink}", bootstrap=bootstrap, topic=topic, sink=sink, share=share
    )
    file.write_text(text + more, encoding="utf-8")
    return load_job(file)


def options(bootstrap: str, topic: str, **more: str) -> dict[str, str]:
    return {"bootstrap": bootstrap, "topics": topic, **more}


def test_batch_read_with_filters_reads_what_is_wanted(
    spark: Any, bootstrap: str, topic: str
) -> None:
    """Partition and offset are cut before anything is fetched, and the result is the same."""
    frame = spark.read.format("vdl").options(**options(bootstrap, topic)).load()
    assert frame.count() == COUNT + len(BROKEN)
    some = frame.filter("partition = 1 and offset >= 10 and offset < 15")
    assert [r["offset"] for r in some.orderBy("offset").collect()] == list(range(10, 15))
    later = frame.filter("timestamp >= timestamp_millis(1000500) and value is not null")
    good = later.selectExpr("get_json_object(cast(value as string), '$.n') as n").dropna()
    assert {int(r["n"]) for r in good.collect() if r["n"].isdigit()} == set(range(500, COUNT))


def test_batch_read_of_nothing_has_no_rows(spark: Any, bootstrap: str, topic: str) -> None:
    """Covers an empty topic, and filters that leave nothing of another."""
    create(bootstrap, "empty")
    empty = spark.read.format("vdl").options(**options(bootstrap, "empty")).load()
    assert empty.collect() == []
    frame = spark.read.format("vdl").options(**options(bootstrap, topic)).load()
    assert frame.filter("offset > 1000000").count() == 0
    assert frame.filter("partition in (7, null)").count() == 0


def test_batch_read_in_many_tasks_is_the_same(spark: Any, bootstrap: str, topic: str) -> None:
    frame = spark.read.format("vdl").options(
        **options(bootstrap, topic, minPartitions="7", columns="partition,offset")
    )
    loaded = frame.load()
    assert loaded.columns == ["partition", "offset"]
    assert loaded.rdd.getNumPartitions() >= 7
    assert loaded.distinct().count() == COUNT + len(BROKEN)


def run_once(job: Job, spark: Any, on_batch: Callable[[BatchReport], None] | None = None) -> Totals:
    """Run the job to the topic's end."""
    with closing(Runner(job, spark, on_batch)) as runner:
        return runner.run(once=True)


def backfill(job: Job, spark: Any, *, rows_max: int = 2_000_000) -> Totals:
    """Backfill all records."""
    with closing(Runner(job, spark)) as runner:
        return runner.backfill("earliest", "latest", rows_max=rows_max)


@pytest.mark.parametrize("sink", ["parquet", "delta", "iceberg"])
def test_job_run_twice_has_every_record_once(
    spark: Any, bootstrap: str, topic: str, tmp_path: Path, sink: str
) -> None:
    """The second run begins where the table ends, with an empty checkpoint."""
    job = job_of(tmp_path, bootstrap, topic, sink=sink)
    reports: list[BatchReport] = []
    totals = run_once(job, spark, reports.append)
    assert (totals.rows, totals.dead) == (COUNT, len(BROKEN))
    assert all(report.rows + report.dead <= 250 for report in reports)
    assert sum(reports[-1].lag.values()) == 0
    again = run_once(job, spark)
    assert (again.rows, again.batches) == (0, 0)
    verdict = verify(job, spark)
    assert verdict.is_good
    assert (verdict.rows, verdict.dead) == (COUNT, len(BROKEN))


def test_arrays_and_maps_that_are_null_stay_null(
    spark: Any, bootstrap: str, tmp_path: Path
) -> None:
    """Except in the remains of good rows.

    There a NULL array would cost a job most of its time, since Spark sets the offsets of all
    earlier NULL rows again for each row.
    """
    from vdl.pipeline.decode import decode
    from vdl.pipeline.open_table import rows_table
    from vdl.pipeline.read import DDL

    values = ['{"n":0}', '{"n":1,"tags":[],"more":{}}', '{"n":2,"tags":["a"],"more":{"k":1}}', "no"]
    create(bootstrap, "arrays")
    producer = Producer({"bootstrap.servers": bootstrap})
    for value in values:
        producer.produce("arrays", value.encode(), partition=0, headers=[("h", b"1")])
    assert producer.flush(30) == 0
    schema = "n bigint, tags array<string>, more map<string,bigint>"
    job = job_of(tmp_path, bootstrap, "arrays", sink="delta")
    job = replace(job, schema=schema)
    assert run_once(job, spark).rows == 3
    table = rows_table(job)
    (path,) = [table.open({"arrays": ("", 1)}), *table.files()][1:]
    found = pq.read_table(path).select(["n", "tags", "more"]).to_pylist()
    assert sorted(found, key=lambda row: row["n"]) == [
        {"n": 0, "tags": None, "more": None},
        {"n": 1, "tags": [], "more": []},
        {"n": 2, "tags": ["a"], "more": [("k", 1)]},
    ]
    read = {**options(bootstrap, "arrays"), "columns": ",".join(DDL)}
    decoded = decode(
        spark.read.format("vdl").options(**read).load(), form="json", schema=schema, topics=1
    )
    headers = [row["_headers"] for row in decoded.orderBy("_offset").collect()]
    assert headers == [[], [], [], [("h", b"1")]]


def test_job_of_a_table_that_was_put_back_fills_it_once_it_is_rewound(
    spark: Any, bootstrap: str, topic: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It continues after the batch that the table shows.

    Otherwise the rest would be a permanent gap.
    """
    from deltalake import DeltaTable

    job = job_of(tmp_path, bootstrap, topic, sink="delta")
    run_once(job, spark)
    DeltaTable(job.sink.path).restore(0)
    with pytest.raises(PipelineError, match=r"was restored .* up to batch 1"):
        run_once(job, spark)
    assert run_app(["pipeline", "rewind", str(tmp_path / "job.toml")]) == 0
    assert capsys.readouterr().out.startswith("numbers/0: ")
    assert 0 < run_once(job, spark).rows < COUNT
    verdict = verify(job, spark)
    assert verdict.is_good
    assert (verdict.rows, verdict.dead) == (COUNT, len(BROKEN))


def test_job_under_another_name_does_not_double_its_table(
    spark: Any, bootstrap: str, topic: str, tmp_path: Path
) -> None:
    job = job_of(tmp_path, bootstrap, topic, sink="iceberg")
    run_once(job, spark)
    renamed = tmp_path / "renamed.toml"
    text = (tmp_path / "job.toml").read_text(encoding="utf-8")
    renamed.write_text(text.replace(f'name = "{job.name}"', 'name = "new"'), encoding="utf-8")
    with pytest.raises(PipelineError, match=f"rewind --of {job.name}`"):
        run_once(load_job(renamed), spark)
    assert run_app(["pipeline", "rewind", "--of", job.name, str(renamed)]) == 0
    assert run_once(load_job(renamed), spark).rows == 0


def test_job_with_steps_joins_and_keeps_dead_letters(
    spark: Any, bootstrap: str, topic: str, tmp_path: Path
) -> None:
    (tmp_path / "names.csv").write_text("n,name\n1,one\n2,two\n", encoding="utf-8")
    steps = """
[transform]
tables = { names = { format = "csv", path = "names.csv", options = { header = "true" } } }
steps = [
  { name = "named", sql = "select input.*, name from input left join names using (n)" },
  { name = "few", sql = "select * from named where n % 2 = 1" },
]
"""
    job = job_of(tmp_path, bootstrap, topic, more=steps)
    totals = backfill(job, spark, rows_max=400)
    assert (totals.rows, totals.dead) == (COUNT // 2, len(BROKEN))
    found = spark.read.parquet(job.sink.path)
    assert {r["n"]: r["name"] for r in found.filter("n < 4").collect()} == {1: "one", 3: None}
    letters = {r["value"]: r for r in spark.read.parquet(job.errors.path).collect()}
    assert {None if v is None else bytes(v) for v in letters} == set(BROKEN)
    assert all(r["topic"] == topic and bytes(r["key"]) == b"broken" for r in letters.values())
    errors = sorted(r["error"] for r in letters.values())
    assert "the record has no value" in errors
    assert any("n is str" in error for error in errors)
    verdict = verify(job, spark)
    assert verdict.is_good
    assert (verdict.rows, verdict.dead) == (COUNT // 2, len(BROKEN))
    assert (verdict.lost, verdict.absent) == (0, COUNT // 2)


RULES = """
[[expect.rules]]
name = "few"
sql = "n < 500"
action = "drop"
[[expect.rules]]
sql = "n = 8 or text <> 'number 7' and n < 590"
action = "dead"
"""


@pytest.mark.parametrize("steps", [False, True])
def test_rows_that_are_not_as_expected_are_left_out_or_dead(
    spark: Any, bootstrap: str, topic: str, tmp_path: Path, *, steps: bool
) -> None:
    """The first rule that a row fails decides; each is counted; NULL fails none."""
    more = '[transform]\nsteps = [{ name = "one", sql = "select * from input" }]\n' if steps else ""
    job = job_of(tmp_path, bootstrap, topic, more=RULES + more)
    reports: list[BatchReport] = []
    totals = run_once(job, spark, reports.append)
    assert (totals.rows, totals.dead) == (499, len(BROKEN) + 1)
    failed = [sum(report.failed[name] for report in reports) for name in reports[0].failed]
    assert failed == [100, 1]
    letters = spark.read.parquet(job.errors.path)
    (letter,) = letters.filter("error like 'the row fails%'").collect()
    assert json.loads(bytes(letter["value"]))["n"] == 7
    verdict = verify(job, spark)
    assert verdict.is_good
    assert verdict.absent == 100


def test_rows_that_must_not_be_stop_a_job_before_it_writes(
    spark: Any, bootstrap: str, topic: str, tmp_path: Path
) -> None:
    rules = '[[expect.rules]]\nname = "all"\nsql = "n <> 5"\naction = "stop"\n'
    job = job_of(tmp_path, bootstrap, topic, more=rules)
    with pytest.raises(ExpectationFailed, match=r"1 rows fail 'all' .*partition 1 offset 2$"):
        backfill(job, spark)
    assert list(Path(job.sink.path).glob("vdl_*")) == []


def test_members_that_no_column_has_are_kept(
    spark: Any, bootstrap: str, topic: str, tmp_path: Path
) -> None:
    """A renamed field does not silently become NULL."""
    job_of(tmp_path, bootstrap, topic)
    file = tmp_path / "job.toml"
    text = file.read_text(encoding="utf-8").replace("text string", "txt string")
    file.write_text(text.replace("[decode]", '[decode]\nrescued = "_rest"'), encoding="utf-8")
    job = load_job(file)
    backfill(job, spark)
    (row,) = spark.read.parquet(job.sink.path).filter("n = 8").collect()
    assert (row["txt"], json.loads(row["_rest"])) == (None, {"text": "number 8"})


@pytest.mark.parametrize(("tombstones", "rows"), [("drop", COUNT), ("null", COUNT + 1)])
def test_records_without_a_value_need_not_be_dead_letters(
    spark: Any, bootstrap: str, topic: str, tmp_path: Path, tombstones: str, rows: int
) -> None:
    job_of(tmp_path, bootstrap, topic)
    file = tmp_path / "job.toml"
    text = file.read_text(encoding="utf-8")
    file.write_text(text.replace("[decode]", f'[decode]\ntombstones = "{tombstones}"'))
    job = load_job(file)
    totals = backfill(job, spark)
    assert (totals.rows, totals.dead) == (rows, len(BROKEN) - 1)
    verdict = verify(job, spark)
    assert verdict.is_good
    assert verdict.absent == COUNT + 1 - rows
    if tombstones == "null":
        (row,) = spark.read.parquet(job.sink.path).filter("n is null").collect()
        assert (row["text"], row["_partition"]) == (None, 1)


@pytest.mark.parametrize(
    ("sql", "rows"),
    [
        ("select * from input limit 5", 5),
        ("select * from input where false", 0),
        ("select * from input union all select * from input", 2 * COUNT),
    ],
)
def test_steps_that_read_a_part_keep_all_dead_letters(
    spark: Any, bootstrap: str, topic: str, tmp_path: Path, sql: str, rows: int
) -> None:
    """Records that a step does not read can still be dead letters; the share is of all records."""
    steps = f'[transform]\nsteps = [{{ name = "some", sql = "{sql}" }}]\n'
    share = len(BROKEN) / (COUNT + len(BROKEN)) + 0.001
    job = job_of(tmp_path, bootstrap, topic, more=steps, share=share)
    totals = backfill(job, spark)
    assert (totals.rows, totals.dead) == (rows, len(BROKEN))
    assert spark.read.parquet(job.errors.path).count() == len(BROKEN)


@pytest.mark.parametrize(
    ("command", "sql", "reason"),
    [
        (["plan"], "selec 1", "[PARSE_SYNTAX_ERROR] Syntax error at or near 'selec'"),
        (["run", "--once"], "select nope from input", "[UNRESOLVED_COLUMN.WITH_SUGGESTION]"),
    ],
)
def test_command_that_spark_refuses_says_so_in_one_line(
    spark: Any, bootstrap: str, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str], command: list[str], sql: str, reason: str,
) -> None:  # fmt: skip
    """The message shows what is wrong with the SQL, not where Spark detected it."""
    monkeypatch.setattr(commands, "_session", lambda job: spark)
    monkeypatch.setattr(spark, "stop", lambda: None, raising=False)
    monkeypatch.setattr("signal.signal", lambda *_: None)
    steps = f'[transform]\nsteps = [{{ name = "one", sql = "{sql}" }}]\n'
    job_of(tmp_path, bootstrap, topic, more=steps)
    assert run_app(["pipeline", *command, str(tmp_path / "job.toml")]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"Error: {reason}")


def test_backfill_and_stream_meet_without_gap(spark: Any, bootstrap: str, tmp_path: Path) -> None:
    """Holds also if the job has got a column since, before the others."""
    create(bootstrap, "meeting")
    fill(bootstrap, "meeting", 0, 300, broken=False)
    job = job_of(tmp_path, bootstrap, "meeting")
    assert backfill(job, spark).rows == 300
    fill(bootstrap, "meeting", 300, 400, broken=False)
    file = tmp_path / "job.toml"
    text = file.read_text(encoding="utf-8")
    file.write_text(text.replace('"n bigint,', '"more double, n bigint,'), encoding="utf-8")
    job = load_job(file)
    assert run_once(job, spark).rows == 100
    assert verify(job, spark).is_good
    table = spark.read.option("mergeSchema", "true").parquet(job.sink.path)
    assert table.filter("more is null and n >= 0").count() == 400


def test_job_with_too_many_dead_letters_writes_nothing(
    spark: Any, bootstrap: str, topic: str, tmp_path: Path
) -> None:
    job = job_of(tmp_path, bootstrap, topic, share=0.0)
    with pytest.raises(TooManyDeadLetters, match="nothing of this batch was written"):
        backfill(job, spark)
    for path in (job.sink.path, job.errors.path):
        assert list(Path(path).glob("vdl_*")) == []


def test_job_of_a_recreated_topic_stops(spark: Any, bootstrap: str, tmp_path: Path) -> None:
    import time

    from confluent_kafka.admin import AdminClient  # type: ignore[attr-defined]

    create(bootstrap, "reborn")
    fill(bootstrap, "reborn", 0, 20, broken=False)
    job = job_of(tmp_path, bootstrap, "reborn")
    run_once(job, spark)
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.delete_topics(["reborn"])["reborn"].result(timeout=30)
    deadline = time.monotonic() + 30
    while "reborn" in admin.list_topics(timeout=10).topics:
        assert time.monotonic() < deadline
    create(bootstrap, "reborn")
    with pytest.raises(TopicRecreated):
        run_once(job, spark)


def test_verify_of_a_changed_table_names_the_offsets(
    spark: Any, bootstrap: str, topic: str, tmp_path: Path
) -> None:
    """Covers a duplicated file, and one that is no longer named.

    Both partitions, which are small, are in one file of a batch.
    """
    job = job_of(tmp_path, bootstrap, topic)
    run_once(job, spark)
    first, second, *_ = sorted((Path(job.sink.path) / "_vdl" / "commits").glob("*.json"))
    told = [json.loads(commit.read_text(encoding="utf-8")) for commit in (first, second)]
    ((kept,), (lost,)) = (data["files"] for data in told)
    told[0]["files"], told[1]["files"] = [kept, kept], []
    for commit, data in zip((first, second), told, strict=True):
        commit.write_text(json.dumps(data), encoding="utf-8")
    verdict = verify(job, spark)
    assert not verdict.is_good
    assert (verdict.lost, verdict.duplicates) == (lost["rows"], kept["rows"])
    assert {one.partition for one in verdict.differences} == {0, 1}
