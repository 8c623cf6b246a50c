"""Recounting a table against its source: for every range of offsets, is every record there, once?

A record of the source is a row of the table or a dead letter. Rows carry `_partition` and `_offset`
unless the job's steps drop them; then only the numbers that the commits say can be added up. What
was compacted away or is a control record has an offset and no record, so the source is read, not
subtracted. It is read and counted in ranges on the executors; only ranges that differ are looked at
record by record.

Must not know: the command line.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from vdl.pipeline.errors import PipelineError
from vdl.pipeline.job import TOPIC, Job
from vdl.pipeline.positions import Positions, TopicPositions
from vdl.pipeline.table import TableSink, open_table
from vdl.pipeline.topic_sink import JOB_HEADER, SOURCE_HEADER, deduplicated, header_text
from vdl.pipeline.topics import Topics

RANGE_OFFSETS = 100_000
EXAMPLES_MAX = 20


@dataclass(frozen=True, slots=True)
class RangeDifference:
    """Offsets [start, end) of a partition where table and source differ."""

    topic: str
    partition: int
    start: int
    end: int
    source: int
    rows: int
    duplicates: int
    examples: tuple[int, ...]
    """Offsets that are missing, or there more than once."""


@dataclass(slots=True)
class Verdict:
    """What was counted. `lost` and `duplicates` are 0 for a good table."""

    source: int = 0
    rows: int = 0
    dead: int = 0
    duplicates: int = 0
    lost: int = 0
    gone: int = 0
    """Offsets that retention has removed from the source since: they cannot be recounted."""
    differences: list[RangeDifference] = field(default_factory=list)

    @property
    def is_good(self) -> bool:
        return not self.lost and not self.duplicates and not self.differences


def verify(job: Job, spark: Any) -> Verdict:
    """Recount what the table has. Raises PipelineError where rows do not say their offsets."""
    from pyspark.sql import functions as f

    if job.window is not None:
        raise PipelineError(
            f"{job.sink.path}: a row is a window of many records, so its rows cannot be told apart"
        )
    topics = Topics(job.source.read_options())
    ids = topics.ids()
    table = open_table(job.sink.kind, job.sink.path, job.name)
    dead_table = open_table(job.sink.dead_kind, job.errors.path, job.name)
    end = table.open(ids)
    dead_table.open(ids)
    if not end:
        return Verdict()
    begin = _begin(table)
    firsts = topics.begins()
    topics.close()
    readable = _later(begin, firsts)
    verdict = Verdict(gone=_distance(begin, readable))
    placed = _places(spark, table, dead_table, job)
    inside = placed.filter(_within(begin, end))
    counted = inside.groupBy("topic", "partition", "offset").agg(
        f.sum("is_row").alias("rows"), f.count(f.lit(1)).alias("times")
    )
    read = _source(spark, job, readable, end)
    joined = read.join(counted, ["topic", "partition", "offset"], "full_outer")
    joined = joined.select(
        "topic",
        "partition",
        "offset",
        f.coalesce("is_source", f.lit(0)).alias("is_source"),
        f.coalesce("rows", f.lit(0)).alias("rows"),
        f.coalesce("times", f.lit(0)).alias("times"),
    )
    is_readable = _within(readable, end)
    lost = (f.col("times") == 0) & (f.col("is_source") == 1)
    invented = (f.col("is_source") == 0) & is_readable
    by_range = (
        joined.withColumn("start", f.expr(f"offset div {RANGE_OFFSETS} * {RANGE_OFFSETS}"))
        .groupBy("topic", "partition", "start")
        .agg(
            f.sum("is_source").alias("source"),
            f.sum("rows").alias("rows"),
            f.sum(f.col("times") - f.col("rows")).alias("dead"),
            f.sum(f.greatest(f.col("times") - 1, f.lit(0))).alias("duplicates"),
            f.sum(lost.cast("long")).alias("lost"),
            f.sum(invented.cast("long")).alias("invented"),
            f.slice(
                f.collect_list(f.when(lost | invented | (f.col("times") > 1), f.col("offset"))),
                1, EXAMPLES_MAX,
            ).alias("examples"),
        )
        .orderBy("topic", "partition", "start")
    )  # fmt: skip
    for row in by_range.collect():
        verdict.source += int(row["source"])
        verdict.rows += int(row["rows"])
        verdict.dead += int(row["dead"])
        verdict.duplicates += int(row["duplicates"])
        verdict.lost += int(row["lost"])
        if row["lost"] or row["duplicates"] or row["invented"]:
            verdict.differences.append(
                RangeDifference(
                    row["topic"], int(row["partition"]), int(row["start"]),
                    int(row["start"]) + RANGE_OFFSETS, int(row["source"]), int(row["rows"]),
                    int(row["duplicates"]), tuple(row["examples"]),
                )
            )  # fmt: skip
    return verdict


def _begin(table: TableSink) -> Positions:
    """Where the table's first commit began; partitions that came later begin at 0."""
    notes = table.notes()
    return notes[0].start


def _places(spark: Any, table: TableSink, dead_table: TableSink, job: Job) -> Any:
    """(topic, partition, offset, is_row) of every row and every dead letter."""
    from pyspark.sql import functions as f

    files = table.files()
    rows = spark.createDataFrame([], "topic string, partition int, offset long, is_row long")
    if job.sink.kind == TOPIC:
        rows = _records_of(spark, job)
    elif files:
        frame = spark.read.parquet(*files)
        if "_offset" not in frame.columns or "_partition" not in frame.columns:
            raise PipelineError(
                f"{table.path}: the job's steps drop _partition and _offset, so its rows cannot be "
                "told apart"
            )
        topic = f.col("_topic") if "_topic" in frame.columns else f.lit(job.source.topics[0])
        rows = frame.select(
            topic.alias("topic"),
            f.col("_partition").alias("partition"),
            f.col("_offset").alias("offset"),
            f.lit(1).cast("long").alias("is_row"),
        )
    letters = dead_table.files()
    if not letters:
        return rows
    dead = spark.read.parquet(*letters).select(
        "topic", "partition", "offset", f.lit(0).cast("long").alias("is_row")
    )
    return rows.unionByName(dead)


def _records_of(spark: Any, job: Job) -> Any:
    """The same of a topic that the job writes: of records that came several times, one."""
    from pyspark.sql import functions as f

    client = {f"client.{name}": value for name, value in job.sink.options.items()}
    options = {"bootstrap": job.sink.bootstrap, "topics": job.sink.topic, "headers": "true"}
    frame = deduplicated(spark.read.format("vdl").options(**options, **client).load())
    place = f.split(header_text(SOURCE_HEADER), "/")
    return frame.filter(header_text(JOB_HEADER) == job.name).select(
        place[0].alias("topic"),
        place[2].cast("int").alias("partition"),
        place[3].cast("long").alias("offset"),
        f.lit(1).cast("long").alias("is_row"),
    )


def _source(spark: Any, job: Job, start: Positions, end: Positions) -> Any:
    """(topic, partition, offset, 1) of every record of the source."""
    from pyspark.sql import functions as f

    options = {
        **job.source.reader_options(),
        "columns": "topic,partition,offset",
        "start": json.dumps(start.to_json()),
        "end": json.dumps(end.to_json()),
    }
    frame = spark.read.format("vdl").options(**options).load()
    return frame.withColumn("is_source", f.lit(1))


def _within(start: Positions, end: Positions) -> Any:
    """Whether a row's place lies in [start, end)."""
    from pyspark.sql import functions as f

    found = f.lit(False)
    for topic, partition, stop in end.partitions():
        low = start.offset(topic, partition) or 0
        found = found | (
            (f.col("topic") == topic)
            & (f.col("partition") == partition)
            & (f.col("offset") >= low)
            & (f.col("offset") < stop)
        )
    return found


def _later(one: Positions, other: Positions) -> Positions:
    topics = {
        topic: TopicPositions(
            known.topic_id,
            {p: max(offset, one.offset(topic, p) or 0) for p, offset in known.offsets.items()},
        )
        for topic, known in other.topics.items()
    }
    return Positions(topics)


def _distance(start: Positions, end: Positions) -> int:
    return sum(
        max(0, offset - (start.offset(topic, partition) or 0))
        for topic, partition, offset in end.partitions()
    )
