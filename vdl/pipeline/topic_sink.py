"""A topic as a sink: at least once, with marks that let a reader make it exactly once.

Rows are staged as files like any table's. Committing a batch produces its rows, waits for every
acknowledgement, and then writes the commit with the offsets, as for a Parquet table that has no
files. A crash between the two produces the batch again. Every record therefore has its origin in
its headers:

    vdl-job      the job's name
    vdl-batch    number of the commit
    vdl-source   topic/topic id/partition/offset, and /row if a column `_row` numbers the rows
                 that were made of one record

Two records with the same job and source are duplicates; `deduplicated` keeps the first.

Does not depend on the command line.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from vdl.pipeline.errors import PipelineError
from vdl.pipeline.parquet_table import ParquetSink
from vdl.pipeline.positions import Positions
from vdl.pipeline.producing import Outgoing, Target, produce_all
from vdl.pipeline.table import Commit, CommitNote

JOB_HEADER, BATCH_HEADER, SOURCE_HEADER = "vdl-job", "vdl-batch", "vdl-source"
ORIGIN = ("_topic", "_partition", "_offset", "_timestamp", "_row")
READ_ROWS = 10_000


@dataclass(frozen=True, slots=True)
class Mark:
    """Marks on the records of one batch.

    `topic` is the source's only one, or "" if the `_topic` column has it; `ids` are the ids of the
    source's topics.
    """

    job: str
    batch: int
    topic: str
    ids: Mapping[str, str] = field(default_factory=dict)


Send = Callable[[Sequence[str], Mark], int]
"""Produces the rows of files; returns their number."""


class TopicSink:
    """Topic sink of one job. Without `send` it can be inspected, but not committed to."""

    def __init__(self, path: str, job: str, send: Send | None = None) -> None:
        self.path = path
        self._commits = ParquetSink(path, job)
        self._send = send

    @property
    def sequence(self) -> int:
        return self._commits.sequence

    def open(self, topics: Mapping[str, tuple[str, int]]) -> Positions:
        return self._commits.open(topics)

    def staging(self, run: str) -> str:
        return self._commits.staging(run)

    def check(self, commit: Commit, arrow_schema: Any) -> None:
        from vdl.pipeline.origins import check_origins

        self._commits.check(commit, arrow_schema)
        check_origins(commit.files)

    def commit(self, commit: Commit, arrow_schema: Any) -> None:
        assert self._send is not None, "the sink was opened read-only"
        self.check(commit, arrow_schema)  # Records that were sent cannot be taken back.
        ids = {topic: known.topic_id for topic, known in commit.end.topics.items()}
        # Topics of the rows: positions are also kept of topics that the job no longer reads.
        topics = {span.topic for file in commit.files for span in file.spans}
        only = next(iter(topics)) if len(topics) == 1 else ""
        mark = Mark(commit.job, self.sequence + 1, only, ids)
        sent = self._send([file.path for file in commit.files], mark)
        assert sent == commit.rows, (sent, commit.rows)
        self._commits.commit(replace(commit, files=()), arrow_schema)
        for file in commit.files:
            Path(file.path).unlink(missing_ok=True)

    def last_run(self) -> str:
        return self._commits.last_run()

    def notes(self) -> list[CommitNote]:
        return self._commits.notes()

    def files(self) -> list[str]:
        return []

    def columns(self) -> str:
        return self._commits.columns()


def send_on_spark(spark: Any, target: Target) -> Send:
    """Return a `Send` whose producers run on the executors, one for each file."""

    def send(paths: Sequence[str], mark: Mark) -> int:
        if not paths:
            return 0
        files = spark.sparkContext.parallelize(list(paths), len(paths))
        produce = functools.partial(produce_file, target=target, mark=mark)
        return int(files.map(produce).sum())

    return send


def as_records(rows: Any, key: str, *, topics: int = 1) -> Any:
    """Return rows as records: `key`, `value`, `headers` if present, and columns of their origin.

    A row whose `value` is not bytes or text becomes JSON of all its columns. `key` names the column
    that is also the record's key; `topics`: number of topics that the job reads. Raises
    PipelineError.
    """
    from pyspark.sql import functions as f

    names = rows.columns
    needed = {"_partition", "_offset"} | ({"_topic"} if topics > 1 else set())
    missing = needed.difference(names)
    if missing:
        raise PipelineError(
            f"the steps of the job drop {', '.join(sorted(missing))}, but records of a topic "
            "need their source offsets"
        )
    origin = [name for name in ORIGIN if name in names]
    if dict(rows.dtypes).get("value") in {"binary", "string"}:
        kept = [name for name in ("key", "value", "headers") if name in names]
        cast = [f.col(n) if n == "headers" else f.col(n).cast("binary").alias(n) for n in kept]
        return rows.select(*cast, *origin)
    value = f.to_json(f.struct(*[f.col(name) for name in names if name not in ORIGIN]))
    keys = [f.col(key).cast("string").cast("binary").alias("key")] if key else []
    return rows.select(*keys, value.cast("binary").alias("value"), *origin)


def produce_file(path: str, target: Target, mark: Mark) -> int:
    """Produce the rows of a file, in order; return their number.

    Raises PipelineError unless each was acknowledged.
    """
    return produce_all(target, _records(path, mark))


def _records(path: str, mark: Mark) -> Iterator[Outgoing]:
    for row in _rows(path):
        at = row.get("_timestamp")
        yield Outgoing(
            row["value"],
            row.get("key"),
            [*_headers(row), *_marks(row, mark)],
            None if at is None else int(at.timestamp() * 1000),
        )


def _rows(path: str) -> Iterator[dict[str, Any]]:
    import pyarrow.parquet as pq

    for batch in pq.ParquetFile(path).iter_batches(READ_ROWS):
        yield from batch.to_pylist()


def _headers(row: Mapping[str, Any]) -> list[tuple[str, bytes]]:
    return [(header["key"], header["value"]) for header in row.get("headers") or ()]


def _marks(row: Mapping[str, Any], mark: Mark) -> list[tuple[str, bytes]]:
    topic = row.get("_topic") or mark.topic
    place: list[object] = [topic, mark.ids.get(topic, ""), row["_partition"], row["_offset"]]
    if "_row" in row:
        place.append(row["_row"])
    return [
        (JOB_HEADER, mark.job.encode()),
        (BATCH_HEADER, str(mark.batch).encode()),
        (SOURCE_HEADER, "/".join(map(str, place)).encode()),
    ]


def header_text(name: str) -> Any:
    """Return a column: a record's last header of that name as text, or null."""
    from pyspark.sql import functions as f

    return f.expr(
        f"cast(try_element_at(filter(headers, h -> h.key = '{name}'), -1).value as string)"
    )


def deduplicated(frame: Any, *, within: str = "") -> Any:
    """Return the records of topics that jobs write, each once, in the frame's columns.

    `frame` has the columns of `format("vdl")` with headers, or of the official connector with
    `includeHeaders`. Records that no job has written are all kept. A stream remembers records for
    `within` of event time ("1 hour"): longer than a job may take to restart, or repeated records
    are too late and kept. Raises ValueError.
    """
    from pyspark.sql import functions as f

    job, source = header_text(JOB_HEADER), header_text(SOURCE_HEADER)
    own = f.concat_ws("/", "topic", "partition", "offset")
    # Job names have no blanks, so the two kinds cannot collide.
    marked = frame.withColumn("_made_of", f.coalesce(f.concat(job, f.lit(" "), source), own))
    if not frame.isStreaming:
        return marked.dropDuplicates(["_made_of"]).drop("_made_of")
    if not within:
        raise ValueError("a stream requires `within`: the time for which it remembers records")
    bounded = marked.withWatermark("timestamp", within)
    return bounded.dropDuplicatesWithinWatermark(["_made_of"]).drop("_made_of")
