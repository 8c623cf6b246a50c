"""Recounts of tables made by hand: good ones, and the differences reported for others."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="needs the `spark` extra")
pytest.importorskip("pyspark", reason="needs the `spark` extra")
pytest.importorskip("deltalake", reason="needs the `spark` extra")

import pyarrow as pa
import pyarrow.parquet as pq
from confluent_kafka import Producer

from tests.pipeline.test_reading import create, topics_of
from tests.pipeline.test_tables import clean
from vdl.commands.pipeline import _verdict_lines
from vdl.pipeline import verify as verifying
from vdl.pipeline.errors import PipelineError
from vdl.pipeline.job import Job, load_job
from vdl.pipeline.open_table import open_table
from vdl.pipeline.positions import OffsetRange, Positions, TopicPositions
from vdl.pipeline.producing import Target
from vdl.pipeline.table import Commit, DataFile, TableSink
from vdl.pipeline.table_columns import schema_lines
from vdl.pipeline.topic_sink import Mark, TopicSink, produce_file
from vdl.pipeline.verify import verify

pytestmark = [pytest.mark.spark, pytest.mark.takes_turns(parts=2)]
COUNT = 10
"""Records of the topics' only partition."""
STEPS = '[transform]\nsteps = [{name = "some", sql = "select * from input"}]\n'
JOB = """
[job]
name = "job"
[source]
bootstrap = "{bootstrap}"
topics = {topics}
[decode]
schema = "n bigint"
[sink]
kind = "{kind}"
path = "table"
{more}
"""


@pytest.fixture(scope="module")
def ids(bootstrap: str) -> dict[str, str]:
    """Two topics of COUNT records: topic → id."""
    found: dict[str, str] = {}
    for topic in ("recounted", "added"):
        create(bootstrap, topic, partitions=1)
        producer = Producer({"bootstrap.servers": bootstrap})
        for n in range(COUNT):
            producer.produce(topic, json.dumps({"n": n}).encode())
        assert producer.flush(30) == 0
        with closing(topics_of(bootstrap, topic)) as topics:
            found[topic] = topics.ids()[topic][0]
    return found


class Made:
    """Table written as by a job, without running one."""

    def __init__(
        self, folder: Path, bootstrap: str, ids: Mapping[str, str], *, kind: str = "parquet",
        topics: Sequence[str] = ("recounted",), more: str = "",
    ) -> None:  # fmt: skip
        file = folder / "job.toml"
        text = JOB.format(bootstrap=bootstrap, topics=json.dumps(topics), kind=kind, more=more)
        file.write_text(text, encoding="utf-8")
        self.job: Job = load_job(file)
        self._ids = {topic: ids[topic] for topic in topics}
        self.table = self._open()

    def _open(self) -> TableSink:
        sink = self.job.sink
        if sink.kind != "topic":
            table = open_table(sink.kind, sink.path, self.job.name)
        else:
            target = Target(sink.topic, {"bootstrap.servers": sink.bootstrap})
            table = TopicSink(
                sink.path,
                self.job.name,
                lambda paths, mark: sum(produce_file(path, target, mark) for path in paths),
            )
        table.open({topic: (topic_id, 1) for topic, topic_id in self._ids.items()})
        return table

    def at(self, *offsets: int) -> Positions:
        """Return positions in each topic's only partition."""
        told = zip(self._ids.items(), offsets, strict=False)
        return Positions({t: TopicPositions(topic_id, {0: at}) for (t, topic_id), at in told})

    def commit(self, start: Positions, end: Positions, columns: Mapping[str, list[Any]]) -> None:
        rows = pa.table(columns)
        name = f"{self.job.name}-0123456789ab-{self.table.sequence}-0"
        path = f"{self.table.staging('run')}/{name}.parquet"
        pq.write_table(rows, path)
        spans: tuple[OffsetRange, ...] = ()
        if "_offset" in columns:
            offsets, (topic, *_) = columns["_offset"], columns.get("_topic", ["recounted"])
            spans = (OffsetRange(topic, 0, min(offsets), max(offsets) + 1),)
        files = (DataFile(path, rows.num_rows, Path(path).stat().st_size, spans),)
        lines = schema_lines(rows.schema)
        commit = Commit("job", "run", 0, start, end, rows.num_rows, 0, files, lines)
        self.table.commit(commit, rows.schema)

    def halves(self, step: int = 1) -> None:
        """Write rows of every `step`-th offset in two commits."""
        for low, high in ((0, 5), (5, COUNT)):
            self.commit(self.at(low), self.at(high), places(range(low, high, step)))

    def drop(self, file: int) -> str:
        path = sorted(self.table.files())[file]
        Path(path).unlink()
        return path


def places(offsets: Sequence[int], **more: list[Any]) -> dict[str, list[Any]]:
    return {"n": list(offsets), "_partition": [0] * len(offsets), "_offset": list(offsets), **more}


def test_table_of_a_job_that_filters_is_good(
    spark: Any, bootstrap: str, ids: dict[str, str], tmp_path: Path
) -> None:
    """Only its steps know which rows belong there. A committed row does."""
    made = Made(tmp_path, bootstrap, ids, more=STEPS)
    made.halves(2)
    verdict = verify(made.job, spark)
    assert verdict.is_good
    assert (verdict.source, verdict.rows, verdict.lost, verdict.absent) == (COUNT, 6, 0, 4)
    (line,) = _verdict_lines(verdict)
    assert line.endswith("0 lost, 0 duplicates; 4 are not in the table (filtered?)")
    path = made.drop(0)
    verdict = verify(made.job, spark)
    assert not verdict.is_good
    assert (verdict.rows, verdict.rows_committed) == (3, 6)
    _, counts, missing = _verdict_lines(verdict)
    assert counts == "  6 rows were committed, the table has 3"
    assert missing == f"  {path} is missing"


def test_rows_made_of_one_record_are_told_apart_by_their_number(
    spark: Any, bootstrap: str, ids: dict[str, str], tmp_path: Path
) -> None:
    made = Made(tmp_path, bootstrap, ids, more=STEPS)
    offsets = [n for n in range(COUNT) for _ in range(2)]
    numbers = [0, 1] * COUNT
    made.commit(made.at(0), made.at(8), places(offsets[:16], _row=numbers[:16]))
    made.commit(made.at(8), made.at(COUNT), places(offsets[16:], _row=numbers[16:]))
    verdict = verify(made.job, spark)
    assert verdict.is_good
    assert (verdict.source, verdict.rows) == (COUNT, 2 * COUNT)
    (tmp_path / "other").mkdir()
    made = Made(tmp_path / "other", bootstrap, ids, more=STEPS)
    made.commit(made.at(0), made.at(COUNT), places([7, 7, 8, 8], _row=[0, 1, 1, 1]))
    verdict = verify(made.job, spark)
    assert (verdict.is_good, verdict.duplicates) == (False, 1)
    assert [one.examples for one in verdict.differences] == [(8,)]


def test_rows_that_the_source_does_not_have_are_wrong_whatever_the_steps(
    spark: Any, bootstrap: str, ids: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The row is as if offset 7 were a control record's."""
    source = verifying._source
    monkeypatch.setattr(verifying, "_source", lambda *a: source(*a).filter("offset != 7"))
    made = Made(tmp_path, bootstrap, ids, more=STEPS)
    made.commit(made.at(0), made.at(COUNT), places([0, 7]))
    verdict = verify(made.job, spark)
    assert (verdict.is_good, verdict.invented, verdict.duplicates) == (False, 1, 0)
    assert [one.examples for one in verdict.differences] == [(7,)]


def test_rows_that_do_not_say_their_places_are_counted(
    spark: Any, bootstrap: str, ids: dict[str, str], tmp_path: Path
) -> None:
    """Holds also if only rows of later commits have no origin."""
    made = Made(tmp_path, bootstrap, ids, more=STEPS)
    made.commit(made.at(0), made.at(5), {"n": [1, 2, 3]})
    made.commit(made.at(5), made.at(7), {"n": [5]})
    verdict = verify(made.job, spark)
    assert (verdict.is_good, verdict.is_by_counts, verdict.rows) == (True, True, 4)
    made.commit(made.at(7), made.at(COUNT), places([7, 8]))
    verdict = verify(made.job, spark)
    assert (verdict.is_good, verdict.is_by_counts, verdict.rows) == (True, True, 6)
    made.drop(0)
    verdict = verify(made.job, spark)
    assert (verdict.is_good, verdict.rows, verdict.rows_committed) == (False, 3, 6)


def test_topic_that_was_added_has_rows_beside_those_of_the_first(
    spark: Any, bootstrap: str, ids: dict[str, str], tmp_path: Path
) -> None:
    """The first topic's rows name no topic, because it was the only one."""
    Made(tmp_path, bootstrap, ids).halves()
    made = Made(tmp_path, bootstrap, ids, topics=("recounted", "added"))
    named = places(range(COUNT), _topic=["added"] * COUNT)
    made.commit(made.at(COUNT, 0), made.at(COUNT, COUNT), named)
    verdict = verify(made.job, spark)
    assert verdict.is_good
    assert (verdict.source, verdict.rows) == (2 * COUNT, 2 * COUNT)


def test_records_made_of_a_topic_that_was_recreated_are_not_counted(
    spark: Any, bootstrap: str, ids: dict[str, str], tmp_path: Path
) -> None:
    """They are still in the target; the commits of the new path are of the new topic."""
    create(bootstrap, "target", partitions=1)
    made = Made(tmp_path, bootstrap, ids, kind="topic", more='topic = "target"')
    rows = places(range(COUNT), value=[b"x"] * COUNT)
    pq.write_table(pa.table(rows), tmp_path / "old.parquet")
    old = Mark("job", 1, "recounted", {"recounted": "an older id"})
    target = Target("target", {"bootstrap.servers": bootstrap})
    assert produce_file(str(tmp_path / "old.parquet"), target, old) == COUNT
    made.commit(made.at(0), made.at(COUNT), rows)
    verdict = verify(made.job, spark)
    assert verdict.is_good
    assert (verdict.rows, verdict.duplicates, verdict.rows_committed) == (COUNT, 0, None)


@pytest.mark.parametrize("kind", ["parquet", "delta"])
def test_offsets_of_a_missing_file_are_named(
    spark: Any, bootstrap: str, ids: dict[str, str], tmp_path: Path, kind: str
) -> None:
    """Holds also for a Delta table whose log no longer has the file's commit."""
    folder = tmp_path / "a folder"
    folder.mkdir()
    made = Made(folder, bootstrap, ids, kind=kind)
    made.halves()
    if kind == "delta":
        clean(Path(made.job.sink.path))
        assert verify(made.job, spark).is_good
    path = made.drop(0)
    verdict = verify(made.job, spark)
    assert (verdict.lost, verdict.missing_files) == (5, [path])
    assert [one.examples for one in verdict.differences] == [(0, 1, 2, 3, 4)]


def test_table_of_two_jobs_is_recounted_for_each(
    spark: Any, bootstrap: str, ids: dict[str, str], tmp_path: Path
) -> None:
    """Both write rows of one topic to one table: rows of the other job are no duplicates."""
    import deltalake

    made = Made(tmp_path, bootstrap, ids, kind="delta")
    made.halves()
    text = (tmp_path / "job.toml").read_text(encoding="utf-8")
    (tmp_path / "other.toml").write_text(text.replace('"job"', '"other"'), encoding="utf-8")
    other = load_job(tmp_path / "other.toml")
    table = open_table("delta", other.sink.path, other.name)
    table.open({topic: (ids[topic], 1) for topic in ("recounted",)})
    rows = pa.table(places(range(COUNT)))
    path = f"{table.staging('run')}/other-0123456789ab-0-0.parquet"
    pq.write_table(rows, path)
    files = (DataFile(path, COUNT, Path(path).stat().st_size, ()),)
    start, end, lines = made.at(0), made.at(COUNT), schema_lines(rows.schema)
    commit = Commit("other", "run", 0, start, end, COUNT, 0, files, lines)
    table.commit(commit, rows.schema)
    verdict = verify(other, spark)
    assert (verdict.is_good, verdict.rows, verdict.duplicates) == (True, COUNT, 0)
    deltalake.DeltaTable(other.sink.path).optimize.compact()
    with pytest.raises(PipelineError, match="do not record their job"):
        verify(other, spark)


def test_job_that_has_nothing_to_write_yet_is_good(
    bootstrap: str, ids: dict[str, str], tmp_path: Path
) -> None:
    """One that has records before it and no table was perhaps renamed."""
    create(bootstrap, "unwritten", partitions=1)
    for topic, start, is_good in (
        ("unwritten", "earliest", True),
        ("recounted", "latest", True),
        ("recounted", "earliest", False),
    ):
        text = JOB.format(bootstrap=bootstrap, topics=[topic], kind="parquet", more="")
        path = tmp_path / "job.toml"
        path.write_text(text.replace("[decode]", f'start = "{start}"\n[decode]'))
        job = load_job(path)
        if is_good:
            assert verify(job, None).is_good
        else:
            with pytest.raises(PipelineError, match="has written nothing"):
                verify(job, None)


def test_places_of_thousands_of_partitions_are_told_apart(spark: Any) -> None:
    """A condition for each of them exceeded the stack of Spark's parser."""
    count = 3000
    begin, readable, end = (
        Positions({"t": TopicPositions("id", dict.fromkeys(range(count), n))}) for n in (2, 3, 6)
    )
    bounds = verifying._bounds(spark, begin, readable.of([]), end)
    rows = spark.range(count).selectExpr(
        "'t' AS topic", "cast(id AS int) AS partition", "id % 8 AS offset"
    )
    assert verifying._inside(rows, bounds).count() == count // 8 * 4
    assert bounds.filter("readable is null").count() == count
    assert verifying._bounds(spark, begin, readable, end).filter("readable = 3").count() == count
