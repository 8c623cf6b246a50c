"""Recount of a table against its source: every record of each offset range is there exactly once.

A record of the source is a row of the table or a dead letter, or several rows that a column `_row`
numbers. Compacted offsets and control records have an offset but no record, so the source is read,
not subtracted. It is read and counted in ranges on the executors; only ranges that differ are
compared record by record.

A job's steps may leave records out, in a way that only they know. So for a job with steps a record
that is missing in the table is no loss; that no row was lost follows from the numbers in the
commits. If the steps drop the columns with a row's origin, only these numbers can be compared.

Does not depend on the command line.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

from vdl.pipeline.account import Account, account_of
from vdl.pipeline.client_secrets import resolved
from vdl.pipeline.errors import PipelineError
from vdl.pipeline.job import TOPIC, Job
from vdl.pipeline.object_files import read_files
from vdl.pipeline.open_table import dead_table, rows_table, storage_settings
from vdl.pipeline.options import Where, parse_where
from vdl.pipeline.positions import Positions, TopicPositions
from vdl.pipeline.rollback import Rewinding
from vdl.pipeline.storage import is_url, storage_of
from vdl.pipeline.table import SharedSink, TableSink
from vdl.pipeline.table_columns import types_of
from vdl.pipeline.topic_sink import JOB_HEADER, SOURCE_HEADER, deduplicated, header_text
from vdl.pipeline.topics import Topics

RANGE_OFFSETS = 100_000
EXAMPLES_MAX = 20
LOOK_UPS = 16
"""Number of concurrent file look-ups: each is a request in an object store."""
PLACE = ("_topic", "_partition", "_offset", "_row")
SPARK_TYPES = {"int16": "smallint", "int32": "int", "int64": "bigint", "string": "string"}
NO_PLACE = "_offset bigint"
"""Schema of files whose rows do not have their origin: only to be counted."""
ROWS_DDL = "_partition int, _offset long"
"""Schema of a table without files."""
BOUNDS_DDL = "topic string, partition int, low long, stop long, readable long"
PLACES_DDL = "topic string, partition int, offset long, number string, is_row long"
"""PLACES of rows and dead letters: the original record, and the number among its rows."""


@dataclass(frozen=True, slots=True)
class RangeDifference:
    """Offsets [start, end) of a partition in which table and source differ."""

    topic: str
    partition: int
    start: int
    end: int
    source: int
    rows: int
    duplicates: int
    examples: tuple[int, ...]
    """Offsets that are missing, duplicated, or not in the source."""


@dataclass(slots=True)
class Verdict:
    """Result of a recount. `lost`, `duplicates` and `invented` are 0 for a good table."""

    source: int = 0
    rows: int = 0
    dead: int = 0
    duplicates: int = 0
    lost: int = 0
    invented: int = 0
    """Number of offsets in the table at which the source has no record."""
    absent: int = 0
    """Number of records missing in the table of a job with steps, presumably left out by these."""
    gone: int = 0
    """Number of offsets that cannot be recounted.

    Retention has removed them from the source, or the job no longer reads their topic.
    """
    rows_committed: int | None = None
    """Number according to the commits; None for a topic, whose retention removes rows."""
    dead_committed: int | None = None
    is_by_counts: bool = False
    """True if rows do not have their origin, so only these numbers were compared."""
    missing_files: list[str] = field(default_factory=list)
    """Missing files of the table or of its dead letters."""
    differences: list[RangeDifference] = field(default_factory=list)

    @property
    def is_good(self) -> bool:
        return (
            not (self.lost or self.duplicates or self.invented or self.missing_files)
            and self.rows_committed in {None, self.rows}
            and self.dead_committed in {None, self.dead}
        )


def _start_of(job: Job) -> Where:
    """Return where a job begins that has committed nothing."""
    return parse_where("source.start", job.source.start)


def verify(job: Job, spark: Any) -> Verdict:
    """Recount the table. Raises PipelineError if no verdict is possible."""
    if job.window is not None:
        raise PipelineError(
            f"{job.sink.path}: a row is a window of many records, so records cannot be "
            "compared with rows"
        )
    if job.is_upsert:
        raise PipelineError(
            f"{job.sink.path}: a row is the last of many records of its key, so records cannot "
            "be compared with rows"
        )
    table, dead = rows_table(job), dead_table(job)
    with closing(Topics(job.source.read_options())) as topics:
        ids, firsts = topics.ids(), topics.begins()
        end = table.open(ids)
        dead.open(ids)
        has_nothing = not end and topics.resolve(_start_of(job)) == topics.ends()
    if has_nothing:
        if isinstance(table, Rewinding):
            table.check_alone(ids)
        return Verdict()
    if not end:
        raise PipelineError(
            f"{table.path}: the job {job.name} has written nothing there, so there is nothing to "
            "compare"
        )
    account = account_of(table)
    if account is None:
        raise PipelineError(
            f"{table.path}: the commits with the job's first offsets are no longer in the "
            "table's log, so missing records cannot be found"
        )
    for shared in (table, dead):
        _check_whose(shared)
    begin, readable = account.begin, _readable(account.begin, firsts, end)
    verdict = Verdict(gone=_gone(begin, readable, end), dead_committed=account.dead)
    settings = storage_settings(job)
    files, absent = _there(table.files(), settings)
    letters, absent_letters = _there(dead.files(), settings)
    bounds = _bounds(spark, begin, readable, end)
    dead_places = _inside(_dead_places(spark, letters, settings), bounds)
    if job.sink.kind == TOPIC:
        rows, is_numbered = _records_of(spark, job, end), True
    else:
        verdict.rows_committed = account.rows
        frame, is_numbered = spark.createDataFrame([], ROWS_DDL), False
        if files:
            frame = _places_in(spark, files, table.columns(), settings)
            is_numbered = "_row" in frame.columns
        rows = _row_places(frame, only=_only_topic(job, account, end, frame.columns))
        if rows is None:
            verdict.is_by_counts = True
            verdict.rows, verdict.dead = int(frame.count()), int(dead_places.count())
            _check_at_rest(job, table, ids)
    if rows is not None:
        placed = _inside(rows, bounds).unionByName(dead_places)
        counted = _counted(placed, is_numbered=is_numbered)
        _compare(verdict, _source(spark, job, readable, end), counted, bounds, job)
    # A commit made meanwhile may have named files just before they got their names.
    verdict.missing_files = _there([*absent, *absent_letters], settings)[1]
    return verdict


def _compare(verdict: Verdict, source: Any, counted: Any, bounds: Any, job: Job) -> None:
    """Compare both sides by ranges of offsets, and add the result to the verdict."""
    from pyspark.sql import functions as f

    both = source.join(counted, ["topic", "partition", "offset"], "full_outer")
    joined = both.join(f.broadcast(bounds), ["topic", "partition"], "left").select(
        "topic",
        "partition",
        "offset",
        *[f.coalesce(n, f.lit(0)).alias(n) for n in ("is_source", "rows", "dead", "duplicates")],
        f.coalesce(_is_between("readable"), f.lit(False)).alias("is_readable"),
    )
    is_absent = (f.col("rows") + f.col("dead") == 0) & (f.col("is_source") == 1)
    is_invented = (f.col("is_source") == 0) & f.col("is_readable")
    is_wrong = is_invented | (f.col("duplicates") > 0)
    if not job.leaves_out:
        is_wrong |= is_absent
    by_range = (
        joined.withColumn("start", f.expr(f"offset div {RANGE_OFFSETS} * {RANGE_OFFSETS}"))
        .groupBy("topic", "partition", "start")
        .agg(
            *[f.sum(name).alias(name) for name in ("rows", "dead", "duplicates")],
            f.sum("is_source").alias("source"),
            f.sum(is_absent.cast("long")).alias("absent"),
            f.sum(is_invented.cast("long")).alias("invented"),
            f.sum(is_wrong.cast("long")).alias("wrong"),
            f.slice(
                f.sort_array(f.collect_list(f.when(is_wrong, f.col("offset")))), 1, EXAMPLES_MAX
            ).alias("examples"),
        )
        .orderBy("topic", "partition", "start")
    )
    for row in by_range.collect():
        verdict.source += int(row["source"])
        verdict.rows += int(row["rows"])
        verdict.dead += int(row["dead"])
        verdict.duplicates += int(row["duplicates"])
        verdict.invented += int(row["invented"])
        if job.leaves_out:
            verdict.absent += int(row["absent"])
        else:
            verdict.lost += int(row["absent"])
        if row["wrong"]:
            verdict.differences.append(
                RangeDifference(
                    row["topic"], int(row["partition"]), int(row["start"]),
                    int(row["start"]) + RANGE_OFFSETS, int(row["source"]), int(row["rows"]),
                    int(row["duplicates"]), tuple(row["examples"]),
                )
            )  # fmt: skip


def _counted(placed: Any, *, is_numbered: bool) -> Any:
    """Return (topic, partition, offset, rows, dead, duplicates) of places.

    Rows made of one record have distinct numbers.
    """
    from pyspark.sql import functions as f

    is_row = f.col("is_row") == 1
    # Counting distinct values costs a second shuffle.
    number = f.when(is_row, f.coalesce("number", f.lit("")))
    expected = f.greatest(f.count_distinct(number), f.lit(1)) if is_numbered else f.lit(1)
    return placed.groupBy("topic", "partition", "offset").agg(
        f.sum("is_row").alias("rows"),
        f.sum(1 - f.col("is_row")).alias("dead"),
        (f.count(f.lit(1)) - expected).alias("duplicates"),
    )


def _places_in(spark: Any, files: Sequence[str], columns: str, settings: Mapping[str, str]) -> Any:
    """Return the columns of files that have the rows' origins, with the table's types.

    Files may differ, in columns that were added later and in types that became wider.
    """
    kinds = {name: kind for name, kind in types_of(columns).items() if name in PLACE}
    is_known = all(kind in SPARK_TYPES for kind in kinds.values())
    if is_known or is_url(files[0]):
        # A type without a Spark type here is that of `_row`, whose values are only compared for
        # equality.
        types = {name: SPARK_TYPES.get(kind, "string") for name, kind in kinds.items()}
        told = ", ".join(f"`{name}` {kind}" for name, kind in types.items())
        if is_url(files[0]):
            return read_files(spark, files, told or NO_PLACE, settings)
        return spark.read.schema(told or NO_PLACE).parquet(*files)
    return spark.read.option("mergeSchema", "true").parquet(*files)


def _row_places(frame: Any, *, only: str) -> Any | None:
    """Return PLACES of a table's rows; None if some do not have their origin.

    `only`: the topic of rows that name none, "" if it is not known.
    """
    from pyspark.sql import functions as f

    names = frame.columns
    if "_partition" not in names or "_offset" not in names:
        return None
    topic = f.lit(only or None).cast("string")
    number = f.col("_row") if "_row" in names else f.lit(None)
    placed = frame.select(
        (f.coalesce("_topic", topic) if "_topic" in names else topic).alias("topic"),
        f.col("_partition").cast("int").alias("partition"),
        f.col("_offset").cast("long").alias("offset"),
        number.cast("string").alias("number"),
        f.lit(1).cast("long").alias("is_row"),
    )
    # Null in rows older than these columns.
    nowhere = placed.filter("topic is null or partition is null or offset is null")
    return placed if nowhere.isEmpty() else None


def _only_topic(job: Job, account: Account, end: Positions, names: Sequence[str]) -> str:
    """Return the topic of rows that name none, or "".

    Rows of several topics name theirs unless a step drops it. So rows without a topic are from the
    time when the job had only its first topic.
    """
    if len(end.topics) == 1:
        return next(iter(end.topics))
    are_named = "_topic" in names or (not job.steps and len(job.source.topics) > 1)
    if are_named and len(account.begin.topics) == 1:
        return next(iter(account.begin.topics))
    return ""


def _dead_places(spark: Any, letters: Sequence[str], settings: Mapping[str, str]) -> Any:
    """Return PLACES of dead letters."""
    from pyspark.sql import functions as f

    if not letters:
        return spark.createDataFrame([], PLACES_DDL)
    place = "topic string, partition int, offset long"
    found = (
        read_files(spark, letters, place, settings)
        if is_url(letters[0])
        else spark.read.parquet(*letters)
    )
    return found.select(
        "topic",
        "partition",
        "offset",
        f.lit(None).cast("string").alias("number"),
        f.lit(0).cast("long").alias("is_row"),
    )


def _records_of(spark: Any, job: Job, end: Positions) -> Any:
    """Return PLACES of the records that the job has written to a topic.

    Duplicates count once, and records of an earlier source topic of the same name are left out.
    """
    from pyspark.sql import functions as f

    client = {f"client.{name}": value for name, value in resolved(job.sink.options).items()}
    options = {"bootstrap": job.sink.bootstrap, "topics": job.sink.topic, "headers": "true"}
    frame = spark.read.format("vdl").options(**options, **client).load()
    place = f.split(header_text(SOURCE_HEADER), "/")
    is_of_source = f.lit(False)
    for topic, known in end.topics.items():
        is_id = place[1] == known.topic_id if known.topic_id else f.lit(True)
        is_of_source |= (place[0] == topic) & is_id
    mine = frame.filter(header_text(JOB_HEADER) == job.name).filter(is_of_source)
    return deduplicated(mine).select(
        place[0].alias("topic"),
        place[2].cast("int").alias("partition"),
        place[3].cast("long").alias("offset"),
        f.get(place, f.lit(4)).alias("number"),
        f.lit(1).cast("long").alias("is_row"),
    )


def _source(spark: Any, job: Job, start: Positions, end: Positions) -> Any:
    """Return (topic, partition, offset, 1) of every record of the source."""
    from pyspark.sql import functions as f

    options = {
        **job.source.reader_options(),
        "columns": "topic,partition,offset",
        "start": json.dumps(start.to_json()),
        "end": json.dumps(end.to_json()),
    }
    frame = spark.read.format("vdl").options(**options).load()
    return frame.withColumn("is_source", f.lit(1))


def _there(paths: Sequence[str], settings: Mapping[str, str]) -> tuple[list[str], list[str]]:
    """Return (existing files, missing files)."""
    found: tuple[list[str], list[str]] = ([], [])
    if paths:
        size = storage_of(paths[0], settings).size
        with ThreadPoolExecutor(LOOK_UPS) as pool:
            for path, known in zip(paths, pool.map(size, paths), strict=True):
                found[known is None].append(path)
    return found


def _check_whose(table: TableSink) -> None:
    """Raise PipelineError unless each file is known to be this job's or another's."""
    unclear = table.unclear_files() if isinstance(table, SharedSink) else []
    if unclear:
        raise PipelineError(
            f"{table.path}: other jobs write to this table too, and {len(unclear)} files, such "
            f"as {unclear[0]}, do not record their job: they were compacted, or belong to none"
        )


def _check_at_rest(job: Job, table: TableSink, ids: dict[str, tuple[str, int]]) -> None:
    """Raise PipelineError if a commit was made while rows were counted.

    The new rows could not be distinguished.
    """
    again = rows_table(job)
    again.open(ids)
    if again.sequence != table.sequence:
        raise PipelineError(
            f"{table.path}: the job has committed meanwhile; its rows have no source offsets, "
            "so they can be counted only while it is stopped"
        )


def _bounds(spark: Any, begin: Positions, readable: Positions, end: Positions) -> Any:
    """Return by topic and partition the table's start (`low`) and end (`stop`), and `readable`.

    `readable` is the offset from which on the source still has it, null if it has nothing of it. A
    partition that `begin` lacks begins at 0. This is a table and not a condition, since there may
    be thousands.
    """
    rows = [
        (topic, partition, begin.offset(topic, partition) or 0, stop, first)
        for topic, partition, stop in end.partitions()
        for first in [readable.offset(topic, partition)]
    ]
    return spark.createDataFrame(rows, BOUNDS_DDL)


def _is_between(low: str) -> Any:
    """Return the condition that a row's offset lies in [low, stop) of its bounds."""
    from pyspark.sql import functions as f

    return (f.col("offset") >= f.col(low)) & (f.col("offset") < f.col("stop"))


def _inside(places: Any, bounds: Any) -> Any:
    """Return the places that the job has reached, and no others."""
    from pyspark.sql import functions as f

    found = places.join(f.broadcast(bounds), ["topic", "partition"]).filter(_is_between("low"))
    return found.select(*places.columns)


def _readable(begin: Positions, firsts: Positions, end: Positions) -> Positions:
    """Return the offsets from which on the source still has the table's records.

    Contains the current topics only.
    """
    found: dict[str, TopicPositions] = {}
    for topic, known in end.of(firsts.topics).topics.items():
        offsets = {
            partition: max(
                firsts.offset(topic, partition) or 0, begin.offset(topic, partition) or 0
            )
            for partition in known.offsets
        }
        found[topic] = TopicPositions(known.topic_id, offsets)
    return Positions(found)


def _gone(begin: Positions, readable: Positions, end: Positions) -> int:
    """Return the number of the table's offsets that the source no longer has."""
    gone = 0
    for topic, partition, stop in end.partitions():
        start = begin.offset(topic, partition) or 0
        first = readable.offset(topic, partition)
        gone += max(0, (stop if first is None else min(first, stop)) - start)
    return gone
