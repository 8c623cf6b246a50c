"""A topic as a sink: at least once, and exactly once for a reader of its headers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="needs the `spark` extra")
pytest.importorskip("pyspark", reason="needs the `spark` extra")

import pyarrow as pa
import pyarrow.parquet as pq

from tests.pipeline.test_reading import create
from tests.pipeline.test_spark import BROKEN, COUNT, fill, run_once
from vdl.pipeline.dead_letters import read_letters
from vdl.pipeline.errors import PipelineError
from vdl.pipeline.job import Job, load_job
from vdl.pipeline.parquet_table import ParquetSink
from vdl.pipeline.producing import Target
from vdl.pipeline.topic_sink import Mark, _records, deduplicated, produce_file
from vdl.pipeline.verify import verify

JOB = """
[job]
name = "odd-numbers"
[source]
bootstrap = "{bootstrap}"
topics = ["{source}"]
max_rows = 250
[decode]
schema = "n bigint, text string"
[transform]
steps = [{{ name = "odd", sql = "select * from input where n % 2 = 1" }}]
[sink]
kind = "topic"
path = "odd"
topic = "{target}"
key = "n"
[errors]
share_max = 0.5
rows_min = 1
"""


def job_of(folder: Path, bootstrap: str, source: str, target: str) -> Job:
    create(bootstrap, source)
    create(bootstrap, target)
    fill(bootstrap, source, 0, COUNT)
    file = folder / "job.toml"
    file.write_text(JOB.format(bootstrap=bootstrap, source=source, target=target), encoding="utf-8")
    return load_job(file)


def records(spark: Any, bootstrap: str, topic: str) -> Any:
    options = {"bootstrap": bootstrap, "topics": topic, "headers": "true"}
    return spark.read.format("vdl").options(**options).load()


@pytest.mark.takes_turns(parts=2)
@pytest.mark.spark
def test_batch_that_was_produced_and_not_committed_comes_again_and_is_told_apart(
    spark: Any, bootstrap: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed between the last acknowledgement and the commit, so the topic has the batch twice.

    A reader of the headers sees it once. Its dead letters, which are committed before, are there
    once.
    """
    job = job_of(tmp_path, bootstrap, "to-be-odd", "odd")
    commit = ParquetSink.commit

    def killed(sink: ParquetSink, *arguments: Any) -> None:
        if sink.path == job.sink.path and sink.sequence == 2:
            raise PipelineError("killed")
        commit(sink, *arguments)

    monkeypatch.setattr(ParquetSink, "commit", killed)
    with pytest.raises(PipelineError, match="killed"):
        run_once(job, spark)
    monkeypatch.undo()
    assert len(list(read_letters(job))) == len(BROKEN)
    totals = run_once(job, spark)
    assert totals.dead == len(BROKEN)
    assert len(list(read_letters(job))) == len(BROKEN)
    found = records(spark, bootstrap, "odd")
    odd = list(range(1, COUNT, 2))
    assert found.count() > len(odd)
    rows = deduplicated(found).collect()
    assert deduplicated(found).columns == found.columns
    assert sorted(json.loads(row["value"])["n"] for row in rows) == odd
    for row in rows:
        value = json.loads(row["value"])
        assert value == {"n": value["n"], "text": f"number {value['n']}"}
        assert bytes(row["key"]) == str(value["n"]).encode()
        headers = {header["key"]: bytes(header["value"]).decode() for header in row["headers"]}
        assert headers["vdl-job"] == "odd-numbers"
        topic, topic_id, partition, _ = headers["vdl-source"].split("/")
        assert (topic, int(partition)) == ("to-be-odd", 1)
        assert topic_id
        assert row["timestamp"].timestamp() * 1000 == 1_000_000 + value["n"]
    verdict = verify(job, spark)
    assert verdict.is_good
    assert (verdict.rows, verdict.dead, verdict.duplicates) == (len(odd), len(BROKEN), 0)
    assert verdict.absent == COUNT - len(odd)


@pytest.mark.spark
def test_stream_is_deduplicated_for_a_while_only(
    spark: Any, bootstrap: str, tmp_path: Path
) -> None:
    """Without a bound it would have to remember everything. Records of no job are kept."""
    create(bootstrap, "nobodys")
    fill(bootstrap, "nobodys", 0, 50)
    options = {"bootstrap": bootstrap, "topics": "nobodys", "headers": "true", "start": "earliest"}
    stream = spark.readStream.format("vdl").options(**options).load()
    with pytest.raises(ValueError, match="within"):
        deduplicated(stream)
    writer = deduplicated(stream, within="1 hour").writeStream.format("memory")
    writer = writer.queryName("kept").option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = writer.trigger(availableNow=True).start()
    assert query.awaitTermination(120)
    assert spark.table("kept").count() == 50 + len(BROKEN)


def test_rows_made_of_one_record_are_told_apart_by_their_numbers(tmp_path: Path) -> None:
    """Otherwise a reader would take the second one for a duplicate of the first."""
    mark = Mark("job", 1, "source", {"source": "id"})
    columns = {"value": [b"a", b"b"], "_partition": [0, 0], "_offset": [7, 7], "_row": [0, 1]}
    file = str(tmp_path / "rows.parquet")
    pq.write_table(pa.table(columns), file)
    sources = [dict(record.headers)["vdl-source"] for record in _records(file, mark)]
    assert sources == [b"source/id/0/7/0", b"source/id/0/7/1"]


def test_record_that_is_not_taken_is_an_error(tmp_path: Path, bootstrap: str) -> None:
    file = str(tmp_path / "rows.parquet")
    value = b"x" * 900_000
    pq.write_table(pa.table({"value": [value], "_partition": [0], "_offset": [7]}), file)
    create(bootstrap, "small", **{"max.message.bytes": "1000"})
    target = Target("small", {"bootstrap.servers": bootstrap})
    with pytest.raises(PipelineError, match="1 of 1 not acknowledged"):
        produce_file(file, target, Mark("job", 1, "source"))
