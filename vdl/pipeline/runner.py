"""Execution of a job: batches from a source into tables, each with its offsets in one commit.

A run begins where the *tables* end, in a new Spark checkpoint: Spark's state of earlier runs is not
used, so it can be lost, old or from another machine. Within the run Spark's stream, or the driver
itself (`direct_batches`), provides one range of offsets after the other; each batch is decoded,
written to files by the executors, and committed by the driver. The order of a batch:

1. rows and dead letters are written to staging files (one pass over the source),
2. too many dead letters: stop, nothing is committed,
3. the topics must still be those of the offsets,
4. the rows' table must accept the batch as far as can be known before: its columns, its start,
5. the dead letters are committed, then the rows with the offsets.

A crash between the two commits leaves dead letters whose rows are written again. The dead-letter
table's own offsets show this, and the letters that it already has are then looked up.

Does not depend on the command line.
"""

from __future__ import annotations

import contextlib
import functools
import json
import re
import shutil
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vdl.pipeline import expectations
from vdl.pipeline.client_secrets import java_settings, resolved
from vdl.pipeline.compaction import BYTES_TARGET, RETAIN_HOURS, CompactingSink
from vdl.pipeline.dead_letters import offsets_within
from vdl.pipeline.decode import COLUMNS, DEAD_ONLY, decode
from vdl.pipeline.errors import (
    CommitConflict,
    PipelineError,
    SinkInconsistent,
    TooManyDeadLetters,
    reason_of,
)
from vdl.pipeline.files import (
    DEAD,
    DEAD_SCHEMA,
    REPORT_DDL,
    ROWS,
    WriteSpec,
    packed,
    write_batches,
)
from vdl.pipeline.job import INPUT, TOPIC, Job
from vdl.pipeline.lag import Lag, lag_of
from vdl.pipeline.open_table import dead_table, rows_table, storage_settings
from vdl.pipeline.options import TEXTS, At, parse, parse_where
from vdl.pipeline.partitioning import check_columns, from_json
from vdl.pipeline.positions import (
    OffsetRange,
    Positions,
    admit,
    capped,
    check_same_topics,
    ranges,
)
from vdl.pipeline.producing import Target
from vdl.pipeline.read import DDL
from vdl.pipeline.registered.values import FORMS, Texts
from vdl.pipeline.rollback import Rewinding
from vdl.pipeline.seen import counts_of, is_whole, observed
from vdl.pipeline.storage import storage_of
from vdl.pipeline.table import (
    OP,
    Commit,
    DataFile,
    TableSink,
    WindowSink,
    WindowState,
    by_whom,
)
from vdl.pipeline.table_columns import schema_lines
from vdl.pipeline.tasks import on_spark
from vdl.pipeline.topic_sink import TopicSink, as_records, send_on_spark
from vdl.pipeline.topics import Topics
from vdl.pipeline.upsert import check_key
from vdl.pipeline.window_files import span_of
from vdl.pipeline.windows import Window, all_windows, check_same, window_batch

if TYPE_CHECKING:
    from vdl.pipeline.direct import Direct
    from vdl.pipeline.direct_batches import DirectBatches

CHECKPOINT = re.compile(r"[0-9a-f]{12}-[0-9]+")
"""Name of a checkpoint: a run, and the number of its attempt."""
WAIT_SECONDS = 0.5
IDLE_SECONDS = 0.01
"""Least time between two looks at the topics, as in Spark's stream."""
IN_DOUBT_MAX = 2
"""Batches in a row that tasks give up before the stream takes over: one may have a huge record."""
START_ATTEMPTS = 5
NOT_CONNECTED = "Python worker failed to connect back"
"""Spark's error if the process of a Python source is not there after ten seconds.

This happens on an overloaded machine.
"""


@dataclass(frozen=True, slots=True)
class WindowReport:
    """Windows of one batch.

    `late`: rows that missed a window; `open`: upper bound of partial aggregates kept for windows ×
    keys that are not written yet; `watermark_us`: event time, None before the first.
    """

    late: int
    open: int
    watermark_us: int | None


@dataclass(slots=True)
class BatchReport:
    """One batch, for progress bars, metrics and logs.

    `phases_ms`: read and write (one pass over the source), commit, and requests to the cluster.
    """

    batch: int
    rows: int
    dead: int
    end: Positions
    lag: Lag
    newest_ms: int
    phases_ms: dict[str, float] = field(default_factory=dict)
    windows: WindowReport | None = None
    failed: Mapping[str, int] = field(default_factory=dict)
    """Rule → number of rows that fail it."""
    compacted: str = ""
    """Result of a compaction after the batch, or the reason for its failure."""


OnBatch = Callable[[BatchReport], None]
OnOpen = Callable[[Sequence[tuple[str, str]], Sequence[tuple[str, str]]], None]
"""Receives names and types: the columns read from values, and the table's."""


@dataclass(slots=True)
class Totals:
    """Totals of a run."""

    batches: int = 0
    rows: int = 0
    dead: int = 0
    late: int = 0


class Runner:
    """Runs one job in one Spark session. Use: `run` or `backfill`; `stop` from another thread."""

    def __init__(
        self,
        job: Job,
        spark: Any,
        on_batch: OnBatch | None = None,
        on_open: OnOpen | None = None,
    ) -> None:
        self._job = job
        self._spark = spark
        self._on_batch = on_batch or (lambda report: None)
        self._on_open = on_open or (lambda source, table: None)
        self._run = uuid.uuid4().hex[:12]
        self._whereabouts: dict[str, Any] = {
            "host": socket.gethostname(),
            "since_ms": int(time.time() * 1000),
        }
        self._rows_table = self._open_sink()
        self._dead_table: TableSink = dead_table(job, on_spark(spark))
        self._topics = Topics(job.source.read_options())
        self._positions = Positions()
        self._dead_positions = Positions()
        self._failure: BaseException | None = None
        self._has_committed = False
        self._columns: Any = None
        """The table's columns as an Arrow schema, once known."""
        self._direct: Direct | None = None
        self._stopping = threading.Event()
        self._clock: Callable[[], float] = time.time
        self._group = GroupOffsets(job)
        self.totals = Totals()

    def _open_sink(self) -> TableSink:
        sink, name = self._job.sink, self._job.name
        if sink.kind != TOPIC:
            return rows_table(self._job, on_spark(self._spark))
        client = {**resolved(sink.options), "bootstrap.servers": sink.bootstrap}
        return TopicSink(sink.path, name, send_on_spark(self._spark, Target(sink.topic, client)))

    # --- run, backfill, preview -----------------------------------------------------------------
    def run(self, *, once: bool = False) -> Totals:
        """Follow the topics until `stop`; with `once`, up to their current ends.

        Raises PipelineError, and Spark's own exceptions for failures within Spark.
        """
        self._open()
        try:
            return self._attempts(once=once)
        finally:
            # A run reads only its own checkpoints.
            _remove(self._old_checkpoints(own=True))

    def _attempts(self, *, once: bool) -> Totals:
        if self._follow_directly(once=once):
            return self.totals
        for attempt in range(START_ATTEMPTS):
            try:
                self._follow(str(self._checkpoints() / f"{self._run}-{attempt}"), once=once)
                break
            except Exception as error:
                if self._failure is not None:
                    raise self._failure from None
                is_slow_start = NOT_CONNECTED in str(error) and not self.totals.batches
                if not is_slow_start or attempt + 1 == START_ATTEMPTS:
                    self._check_not_followed()
                    raise PipelineError(reason_of(error)) from error
        return self.totals

    def _check_not_followed(self) -> None:
        """Raise CommitConflict if another run has committed since.

        With its first commit that run has removed this one's checkpoint, and Spark reports only
        that it is missing.
        """
        table = self._open_sink()
        table.open(self._topics.ids())
        # A commit of this run that was made, and has failed since, is not another run's.
        own = by_whom({"run": self._run, **self._whereabouts})
        if table.sequence != self._rows_table.sequence and table.last_run() != own:
            what = f"the job is at batch {table.sequence}, expected {self._rows_table.sequence}"
            raise CommitConflict(table.path, what, table.last_run())

    def _follow_directly(self, *, once: bool) -> bool:
        """Run batches without Spark's stream, until `stop` is called or the topics end.

        A batch with too many records in doubt is read again by Spark. Returns False if tasks cannot
        write what they read, or if that was so of several batches in a row; the stream then goes on
        from the same place.
        """
        with self._direct_batches() as batches:
            if batches is None:
                return False
            if once:
                batches.end_here()
            number = in_doubt = 0
            while not self._stopping.is_set():
                began = time.monotonic()
                end = batches.end_after(self._positions).with_ids_of(self._positions)
                if not self._positions.goes_on_from(end):
                    in_doubt = 0 if self._batch_directly(batches, number, end) else in_doubt + 1
                    if in_doubt > IN_DOUBT_MAX:
                        return False
                    if in_doubt:
                        self._batch_by_spark(batches, number, end)
                    number += 1
                elif once:
                    break
                if not once:
                    due = began + max(self._job.interval_seconds, IDLE_SECONDS)
                    self._stopping.wait(max(0.0, due - time.monotonic()))
        return True

    @contextlib.contextmanager
    def _direct_batches(self) -> Iterator[DirectBatches | None]:
        """Yield the batches that tasks write, if they can. A stop within one ends the block.

        Raises PipelineError.
        """
        if self._direct is None:
            yield None
            return
        from vdl.pipeline.direct_batches import DirectBatches, Stopped

        found = DirectBatches(self._spark, parse(self._reading()), self._stopping)
        with closing(found) as batches, contextlib.suppress(Stopped):
            try:
                yield batches
            except (CommitConflict, Stopped):
                raise
            except Exception as error:
                # Another run's commit removes files of this one, and tasks report only this.
                self._check_not_followed()
                if isinstance(error, PipelineError):
                    raise
                raise PipelineError(reason_of(error)) from error

    def _batch_directly(self, batches: DirectBatches, number: int, end: Positions) -> bool:
        """Write and commit [self._positions, end); False if too many of its records are in doubt.

        Raises PipelineError, Stopped.
        """
        from vdl.pipeline.direct import left_of

        direct, clock = self._direct, _Phases()
        assert direct is not None, number
        # A run writes its batches one after the other, and task attempt ids of a session are
        # unique.
        prefix = f"{self._job.name}-{self._run}-{number}-direct"
        spec = replace(self._write_spec(prefix), dead_there=self._dead_there())
        outcomes = batches.write(self._positions, end, replace(direct, spec=spec))
        written = Written(arrow_schema=self._columns)
        for outcome in outcomes:
            for report in outcome.reports:
                written.add(report)
        if any(outcome.is_given_up for outcome in outcomes):
            for file in (*written.files, *written.dead_files):
                storage_of(file.path, storage_settings(self._job)).remove(file.path)
            return False
        left = left_of(outcomes)
        if left is not None:
            frame = self._spark.createDataFrame(left)
            more = batches.run(prefix, lambda: self._write(self._decoded(frame), number, end))
            written = written.and_more(more)
        written.total = written.rows + written.dead
        self._settle(written, number, end, clock)
        return True

    def _batch_by_spark(self, batches: DirectBatches, number: int, end: Positions) -> None:
        """Write and commit [self._positions, end), whose files tasks have given up.

        Raises PipelineError, Stopped, Spark's own exceptions.
        """
        clock, group = _Phases(), f"{self._job.name}-{self._run}-{number}"
        frame = self._bounded(self._positions, end)
        written = batches.run(group, lambda: self._write(self._decoded(frame), number, end))
        self._settle(written, number, end, clock)

    def _follow(self, checkpoint: str, *, once: bool) -> None:
        """Run one query until it ends or `stop` is called."""
        frame = self._stream()
        writer = frame.writeStream.foreachBatch(
            lambda batch, number: self._stream_batch(batch, number, checkpoint)
        ).option("checkpointLocation", checkpoint)
        if once:
            writer = writer.trigger(availableNow=True)
        else:
            writer = writer.trigger(processingTime=f"{self._job.interval_seconds} seconds")
        query = writer.start()
        while not query.awaitTermination(WAIT_SECONDS):
            if self._stopping.is_set():
                query.stop()
                break

    def backfill(self, start: str, end: str, *, rows_max: int = 2_000_000) -> Totals:
        """Process in large batches, from the table's end, or `start` if it is new, up to `end`.

        A stream continues at exactly that offset. Raises PipelineError.
        """
        self._open(start or self._job.source.start)
        target = self._topics.resolve(parse_where("end", end or "latest"))
        target = capped(target, self._topics.ends()).over(self._positions)
        if self._job.is_upsert:
            # The driver, or a task, holds a batch of upserts in memory.
            rows_max = min(rows_max, self._job.source.max_rows)
        number = 0
        with self._direct_batches() as batches:
            while ranges(self._positions, _not_before(target, self._positions)):
                if self._stopping.is_set():
                    break
                stop = self._admitted(target, rows_max)
                if batches is None:
                    with self._noting():
                        self._batch(self._bounded(self._positions, stop), number, stop)
                elif not self._batch_directly(batches, number, stop):
                    self._batch_by_spark(batches, number, stop)
                number += 1
        return self.totals

    def _admitted(self, target: Positions, rows_max: int) -> Positions:
        """Return the end of a large batch, whose bytes limit grows as its rows limit does."""
        source = self._job.source
        ends = _not_before(target, self._positions)
        starts = [(r.topic, r.partition, r.start) for r in ranges(self._positions, ends)]
        bytes_max = source.max_bytes * max(1, rows_max // source.max_rows)
        row_bytes = self._topics.row_bytes(starts) if source.max_bytes else {}
        return admit(
            self._positions, ends, rows_max=rows_max, bytes_max=bytes_max, row_bytes=row_bytes
        )

    def preview(self, count: int) -> tuple[str, list[dict[str, Any]], list[dict[str, Any]]]:
        """Return (the table's columns, the first decoded rows, dead letters among records read).

        Writes nothing. Raises the errors that would stop a run before its first batch.
        """
        self._open()
        positions = self._topics.resolve(parse_where("start", self._job.source.start))
        ends = self._topics.ends()
        stop = admit(positions, _not_before(ends, positions), rows_max=20 * count)
        decoded = self._decoded(self._bounded(positions, stop))
        dead = [r.asDict() for r in decoded.filter("_error is not null").limit(count).collect()]
        rows = self._transformed(decoded)
        if self._job.window is not None:
            rows = all_windows(rows, self._job.window)
        told = _names(rows.schema.fields, is_upsert=self._job.is_upsert)
        columns = "\n".join(f"{name}: {kind}" for name, kind in told)
        return columns, [row.asDict() for row in rows.limit(count).collect()], dead

    def close(self) -> None:
        """Close the connections to the cluster."""
        self._group.close()
        self._topics.close()

    def positions(self) -> Positions:
        """Return the end of the rows' table, empty before a run has begun. From any thread."""
        return self._positions

    def stop(self) -> None:
        """Request the end of a run; an uncommitted batch is repeated by the next run."""
        self._stopping.set()

    # --- opening --------------------------------------------------------------------------------
    def _open(self, start: str = "") -> None:
        columns = self._check_steps()
        self._direct = self._find_direct()
        ids = self._topics.ids()
        self._dead_positions = self._dead_table.open(ids)
        self._positions = self._rows_table.open(ids)
        if self._rows_table.sequence and isinstance(self._rows_table, WindowSink):
            check_same(self._job.window, self._rows_table.windows, path=self._rows_table.path)
        where = parse_where("start", start or self._job.source.start)
        if not self._positions:
            if isinstance(self._rows_table, Rewinding):
                self._rows_table.check_alone(ids)
            self._positions = self._topics.resolve(where)
            if isinstance(where, At):
                check_same_topics(where.positions, self._positions)
        else:
            check_shares_topic(self._rows_table.path, self._positions, ids)
            # Partitions added since then begin at their start.
            self._positions = self._positions.over(self._topics.begins())
        self._check_table()
        self._on_open(_columns(self._job.schema), columns)

    def _check_steps(self) -> list[tuple[str, str]]:
        """Return the table's columns, after checking those that the steps name.

        Within a stream Spark would report an error as a page of text. Raises PipelineError,
        AnalysisException.
        """
        from pyspark.sql.pandas.types import to_arrow_schema

        found = self._row_type()
        self._columns = to_arrow_schema(found, timezone="UTC")
        check_columns(self._job.sink.partition_by, self._columns)
        if self._job.is_upsert:
            check_key(self._job.sink.upsert_key, self._columns)
        return _names(found.fields, is_upsert=self._job.is_upsert)

    def _row_type(self) -> Any:
        """Return the type of the table's rows. Raises as `_check_steps`."""
        job = self._job
        if self._is_plain and job.sink.kind != TOPIC:
            from vdl.pipeline.direct import plain_columns

            return plain_columns(_fields(job.schema), topics=len(job.source.topics))
        empty = self._spark.createDataFrame([], ", ".join(f"`{n}` {DDL[n]}" for n in COLUMNS))
        rows = self._transformed(self._decoded(empty))
        return (rows if job.window is None else all_windows(rows, job.window)).schema

    def _check_table(self) -> None:
        """Check that the table accepts rows of the job's columns, before any is read.

        Raises the errors of the table's `check`.
        """
        columns = self._columns
        if self._job.is_upsert:
            columns = columns.remove(columns.get_field_index(OP))
        nothing = Commit(
            self._job.name, self._run, 0, self._positions, self._positions, 0, 0, (),
            schema_lines(columns), **self._whereabouts,
        )  # fmt: skip
        self._rows_table.check(nothing, columns)

    def _checkpoints(self) -> Path:
        """Return the folder of this job's runs; other jobs may share the checkpoint folder."""
        return Path(self._job.checkpoint) / self._job.name

    def _old_checkpoints(self, *, own: bool = False) -> list[Path]:
        """Return the existing checkpoints of other runs, or of this one."""
        return [
            path
            for path in self._checkpoints().glob("*")
            if CHECKPOINT.fullmatch(path.name) and path.name.startswith(f"{self._run}-") == own
        ]

    # --- sources --------------------------------------------------------------------------------
    def _stream(self) -> Any:
        source = self._job.source
        reader = self._spark.readStream
        if source.kind == "vdl":
            options = self._reading()
            options["start"] = json.dumps(self._positions.to_json())
            return reader.format("vdl").options(**options).load()
        begin = self._positions.of(source.topics)
        options = {
            **self._connector_options(),
            "startingOffsets": connector_offsets(begin),
            "maxOffsetsPerTrigger": str(source.max_rows),
        }
        return reader.format("kafka").options(**options).load()

    def _bounded(self, start: Positions, end: Positions) -> Any:
        """Return a batch read."""
        source = self._job.source
        reader = self._spark.read
        if source.kind == "vdl":
            options = self._reading()
            options["start"] = json.dumps(start.to_json())
            options["end"] = json.dumps(end.to_json())
            return reader.format("vdl").options(**options).load()
        options = {
            **self._connector_options(),
            "startingOffsets": connector_offsets(start.of(source.topics)),
            "endingOffsets": connector_offsets(end.of(source.topics)),
        }
        return reader.format("kafka").options(**options).load()

    def _reading(self) -> dict[str, str]:
        """Return the options of our source: the columns, and how to read registered values."""
        job = self._job
        options = {**job.source.reader_options(), "columns": ",".join(COLUMNS)}
        if job.format in FORMS:
            options[TEXTS] = Texts(job.format, resolved(job.registry)).to_text()
        return options

    def _find_direct(self) -> Direct | None:
        """Return how tasks write the rows that they read, or None if Spark must decode them.

        They can if rows are written as they are decoded, and can be decoded without Spark.
        """
        job = self._job
        if not self._is_plain or job.source.kind != "vdl" or job.sink.kind == TOPIC:
            return None
        from vdl.pipeline.direct import NOWHERE, Direct, can_write

        # Those of the session, which may have been set after its start.
        if not can_write(job.format, self._columns, self._spark.conf.getAll):
            return None
        return Direct(
            form=job.format,
            spec=NOWHERE,
            schema=self._columns.serialize().to_pybytes(),
            is_utc=self._spark.conf.get("spark.sql.session.timeZone") == "UTC",
            registry=resolved(job.registry),
            tombstones=job.tombstones,
        )

    @property
    def _is_plain(self) -> bool:
        """True if rows are written as their values are decoded by `decode.schema`."""
        job = self._job
        changes = job.steps or job.rules or job.envelope or job.rescued or job.is_upsert
        return not changes and job.window is None and bool(job.schema)

    def _connector_options(self) -> dict[str, str]:
        source = self._job.source
        return {
            "kafka.bootstrap.servers": source.bootstrap,
            "subscribe": ",".join(source.topics),
            "includeHeaders": "true",
            "failOnDataLoss": "true",
            "kafka.max.poll.records": "50000",
            "kafka.isolation.level": source.isolation,
            **java_settings(resolved(source.client)),
            **resolved(source.options),
        }

    # --- batches --------------------------------------------------------------------------------
    def _stream_batch(self, frame: Any, number: int, checkpoint: str) -> None:
        with self._noting():
            end = self._planned_end(checkpoint, number)
            self._batch(frame, number, end)

    @contextlib.contextmanager
    def _noting(self) -> Iterator[None]:
        """Keep a PipelineError as an object, since Spark's exception has only its text."""
        try:
            yield
        except PipelineError as error:
            self._failure = error
            raise

    def _planned_end(self, checkpoint: str, number: int) -> Positions:
        """Return the end of Spark's plan of this batch, with our topic ids.

        Its file is the same for every source.
        """
        jvm = self._spark._jvm
        path = jvm.org.apache.hadoop.fs.Path(f"{checkpoint}/offsets/{number}")
        files = path.getFileSystem(self._spark._jsc.hadoopConfiguration())
        stream = files.open(path)
        try:
            text = jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8")
        finally:
            stream.close()
        planned = Positions.from_json(json.loads(text.splitlines()[-1]))
        return planned.with_ids_of(self._positions)

    def _batch(self, frame: Any, number: int, end: Positions) -> None:
        """Write and commit [self._positions, end)."""
        if self._positions.goes_on_from(end.over(self._positions)):
            return  # Spark starts a batch even without records.
        clock = _Phases()
        self._settle(self._write(self._decoded(frame), number, end), number, end, clock)

    def _settle(self, written: Written, number: int, end: Positions, clock: _Phases) -> None:
        """Commit a batch whose files are written."""
        clock.lap("read and write")
        self._check_share(written)
        ends = self._topics.ends()
        check_same_topics(end, ends)
        end = end.with_ids_of(ends).over(self._positions)
        self._check_spans(written, end)
        clock.lap("ask")
        self._commit(written, number, end)
        clock.lap("commit")
        self._positions = end
        self._group.commit(end)
        clock.lap("group offsets")
        compacted = self._compact()
        if compacted:
            clock.lap("compact")
        self.totals.batches += 1
        self.totals.rows += written.rows
        self.totals.dead += written.dead
        self.totals.late += written.late
        self._on_batch(
            BatchReport(
                number, written.rows, written.dead, end, lag_of(end, ends), written.newest_ms,
                clock.laps_ms, written.window_report(), written.failed,
                compacted,
            )
        )  # fmt: skip

    def _compact(self) -> str:
        """Compact the tables if it is time to.

        The batch is committed in any case, and later ones can be, so failures are only reported.
        """
        every, told = self._job.compact_every, []
        if not every or self._rows_table.sequence % every:
            return ""
        for table in (self._rows_table, self._dead_table):
            if not isinstance(table, CompactingSink):
                continue
            try:
                done = table.compact(BYTES_TARGET) + table.vacuum(RETAIN_HOURS)
            except PipelineError as error:
                told.append(str(error))
            else:
                if done.before:
                    told.append(f"{table.path}: {done.before} files became {done.after}")
        return "; ".join(told)

    def _decoded(self, frame: Any) -> Any:
        job = self._job
        return decode(
            frame,
            form=job.format,
            schema=job.schema,
            topics=len(job.source.topics),
            tombstones=job.tombstones,
            rescued=job.rescued,
            rules=job.rules,
            registry=resolved(job.registry),
            envelope=job.envelope,
            key=job.sink.upsert_key,
        )

    def _transformed(self, decoded: Any) -> Any:
        """Return the rows that the sink gets: good ones, through the job's steps."""
        sink, topics = self._job.sink, len(self._job.source.topics)
        rows = self._through_steps(decoded)
        return as_records(rows, sink.key, topics=topics) if sink.kind == TOPIC else rows

    def _through_steps(self, decoded: Any) -> Any:
        good = expectations.kept(decoded, self._job.rules)
        good = good.filter("_error is null").drop(*DEAD_ONLY)
        if not self._job.steps:
            return good
        session = decoded.sparkSession
        for name, table in self._job.tables.items():
            reader = session.read.format(table.format).options(**table.options)
            reader.load(table.path).createOrReplaceTempView(name)
        good.createOrReplaceTempView(INPUT)
        found = good
        for step in self._job.steps:
            found = session.sql(step.sql)
            found.createOrReplaceTempView(step.name)
        return found

    def _write(self, decoded: Any, number: int, end: Positions) -> Written:
        spec = replace(
            self._write_spec(f"{self._job.name}-{self._run}-{number}"),
            dead_there=self._dead_there(),
        )
        window, rules = self._job.window, self._job.rules
        is_plain = not self._job.steps and window is None and self._job.sink.kind != TOPIC
        if is_plain and not rules:
            rows = decoded.drop(*DEAD_ONLY)
            return self._collect([(decoded, spec)], rows)
        from pyspark.sql import Observation

        whats = [*observed(), *expectations.observed(rules)]
        seen = Observation(f"decoded-{number}")
        watched = decoded.observe(seen, *whats)
        if is_plain:
            frame = expectations.kept(watched, rules)
            written = self._collect([(frame, spec)], frame.drop(*DEAD_ONLY))
            counts = counts_of(seen)
            return self._told(written, counts)
        rows = self._transformed(watched)
        spec = replace(spec, only=ROWS)
        if window is None:
            written = self._collect([(rows, spec)], rows)
        else:
            written = self._write_windows(rows, spec, window)
        counts = counts_of(seen)
        # Steps may have read only a part of the batch, as LIMIT does, or parts of it twice.
        if is_whole(counts, ranges(self._positions, end)) and not counts["dead"]:
            return self._told(written, counts)
        again = Observation(f"letters-{number}")
        letters = decoded.observe(again, *whats).filter("_error is not null")
        written = written.and_dead(self._collect([(letters, replace(spec, only=DEAD))], rows))
        return self._told(written, counts_of(again))

    def _write_spec(self, prefix: str) -> WriteSpec:
        job = self._job
        return WriteSpec(
            prefix=prefix,
            rows_folder=self._rows_table.staging(self._run),
            dead_folder=self._dead_table.staging(self._run),
            topic=job.source.topics[0] if len(job.source.topics) == 1 else "",
            kinds=_kinds(job.schema),
            storage=storage_settings(job),
            # Upserts are divided when they are merged.
            partition_by=() if job.is_upsert else job.sink.partition_by,
            file_bytes=job.sink.file_bytes,
        )

    def _told(self, written: Written, counts: Mapping[str, Any]) -> Written:
        """Add the observed counts of all records. Raises ExpectationFailed."""
        rules = self._job.rules
        expectations.check(rules, counts)
        written.failed = expectations.counted(rules, counts)
        return written.of_total(int(counts.get("rows", written.rows + written.dead)))

    def _dead_there(self) -> dict[str, bytes]:
        """Return dead letters, by "topic/partition", of records whose rows are not committed.

        They are identified by offset: after a repair of the job file other records may be dead.
        """
        torn = ranges(self._positions, _not_before(self._dead_positions, self._positions))
        if not torn:
            return {}
        storage = storage_of(self._job.errors.path, storage_settings(self._job))
        found = offsets_within(self._dead_table.files(), torn, storage)
        return {place: packed(offsets) for place, offsets in found.items()}

    def _write_windows(self, rows: Any, spec: WriteSpec, window: Window) -> Written:
        """Write closed windows for the table, and open ones for the next batch."""
        table = self._rows_table
        assert isinstance(table, WindowSink), self._job.sink.kind
        folder = table.window_folder()
        now_us = int(self._clock() * 1_000_000)
        with window_batch(rows, window, table.windows, folder, now_us=now_us) as found:
            passes = [] if found.closed is None else [(found.closed, spec)]
            # The table's columns are known without a row.
            written = self._collect(passes, all_windows(rows, window))
            beside = replace(
                spec, prefix=f"{spec.prefix}-open", rows_folder=folder, partition_by=()
            )
            kept = self._beside(found.open, beside)
            late = self._beside(found.late_rows, replace(beside, prefix=f"{spec.prefix}-late"))
        files = {Path(file.path).name: span_of(file.path) for file in kept}
        written.windows = WindowState(
            window.definition(), found.columns, found.watermark_us, {**found.kept, **files},
            found.heard, tuple(Path(file.path).name for file in late),
        )  # fmt: skip
        written.late = found.late
        written.open = sum(one.rows for one in written.windows.files.values())
        written.newest_ms = found.newest_ms
        return written

    def _beside(self, frame: Any | None, spec: WriteSpec) -> list[DataFile]:
        """Write a frame that is not part of the table; return its files."""
        return [] if frame is None else self._collect([(frame, spec)], frame).files

    def _collect(self, passes: list[tuple[Any, WriteSpec]], rows: Any) -> Written:
        from pyspark.sql.pandas.types import to_arrow_schema

        # The table has no such column.
        rows = rows.drop(OP) if self._job.is_upsert else rows
        written = Written(arrow_schema=to_arrow_schema(rows.schema, timezone="UTC"))
        for frame, spec in passes:
            write = functools.partial(write_batches, spec=spec)
            for report in frame.mapInArrow(write, REPORT_DDL).collect():
                written.add(report)
        written.total = written.rows + written.dead
        return written

    def _check_share(self, written: Written) -> None:
        rows = max(written.total, self._job.errors.rows_min)
        if written.dead > rows * self._job.errors.share_max:
            raise TooManyDeadLetters(
                dead=written.dead,
                rows=written.total,
                share_max=self._job.errors.share_max,
                example=written.example,
            )

    def _check_spans(self, written: Written, end: Positions) -> None:
        """Assert that the rows are within this batch: the source returned the planned ranges."""
        for file in (*written.files, *written.dead_files):
            for span in file.spans:
                low = self._positions.offset(span.topic, span.partition) or 0
                high = end.offset(span.topic, span.partition)
                assert low <= span.start, (span, low)
                assert high is not None, span
                assert span.end <= high, (span, high)

    def _commit(self, written: Written, number: int, end: Positions) -> None:
        commit = Commit(
            self._job.name, self._run, number, self._positions, end, written.rows, written.dead,
            tuple(written.files), schema_lines(written.arrow_schema), written.late,
            written.windows, **self._whereabouts,
        )  # fmt: skip
        # Checked first: a dead letter of a refused batch would stay, though its record may become a
        # row once the job file is repaired.
        self._rows_table.check(commit, written.arrow_schema)
        if written.dead_files:
            letters = sum(file.rows for file in written.dead_files)
            start = self._dead_positions.over(self._positions)
            # After an attempt whose rows were not committed this batch may have other ranges, and
            # end earlier in some partition: that partition's position is kept.
            reached = _not_before(end, start).over(start)
            self._dead_table.commit(
                Commit(
                    self._job.name, self._run, number, start, reached, letters, 0,
                    tuple(written.dead_files), schema_lines(DEAD_SCHEMA), **self._whereabouts,
                ),
                DEAD_SCHEMA,
            )  # fmt: skip
            self._dead_positions = reached
        # Listed before the commit: a run that began before it will be refused, and needs no
        # checkpoint. Before its first commit this run may be the one that is refused.
        outdated = [] if self._has_committed else self._old_checkpoints()
        self._rows_table.commit(commit, written.arrow_schema)
        self._has_committed = True
        _remove(outdated)


@dataclass(slots=True)
class Written:
    """Files and counts that the executors wrote for one batch."""

    arrow_schema: Any
    files: list[DataFile] = field(default_factory=list)
    dead_files: list[DataFile] = field(default_factory=list)
    rows: int = 0
    dead: int = 0
    total: int = 0
    """Number of records decoded; with steps it differs from rows plus dead letters."""
    newest_ms: int = -1
    example: str = ""
    late: int = 0
    open: int = 0
    windows: WindowState | None = None
    failed: Mapping[str, int] = field(default_factory=dict)

    def window_report(self) -> WindowReport | None:
        if self.windows is None:
            return None
        return WindowReport(self.late, self.open, self.windows.watermark_us)

    def add(self, report: Any) -> None:
        spans = tuple(OffsetRange(*span) for span in json.loads(report["spans"]))
        stats = json.loads(report["stats"])
        partition = from_json(json.loads(report["partition"]))
        file = DataFile(
            report["path"], int(report["rows"]), int(report["bytes"]), spans, stats, partition
        )
        if report["kind"] == ROWS:
            self.rows += file.rows
            self.newest_ms = max(self.newest_ms, int(report["newest"]))
            self.files.append(file)
        else:
            self.dead += int(report["seen"])
            self.example = self.example or report["example"]
            if file.path:
                self.dead_files.append(file)

    def and_more(self, other: Written) -> Written:
        """Add another part of the same batch."""
        self.files += other.files
        self.dead_files += other.dead_files
        self.rows += other.rows
        self.dead += other.dead
        self.newest_ms = max(self.newest_ms, other.newest_ms)
        self.example = self.example or other.example
        return self

    def and_dead(self, other: Written) -> Written:
        self.dead, self.dead_files, self.example = other.dead, other.dead_files, other.example
        return self

    def of_total(self, total: int) -> Written:
        self.total = total
        return self


class GroupOffsets:
    """Commits the job's progress under a consumer group, for lag tools.

    It is never read back, and a failure does not stop the job.
    """

    def __init__(self, job: Job) -> None:
        self._name = job.group
        self._client = {
            **job.source.read_options().client,
            "bootstrap.servers": job.source.bootstrap,
            "log_level": 0,
        }
        self._consumer: Any = None
        self.failures = 0

    def commit(self, positions: Positions) -> None:
        from confluent_kafka import Consumer, KafkaException, TopicPartition

        if self._consumer is None:
            settings = {"group.id": self._name, "enable.auto.commit": False, **self._client}
            self._consumer = Consumer(settings)
        where = [TopicPartition(t, p, offset) for t, p, offset in positions.partitions()]
        try:
            self._consumer.commit(offsets=where, asynchronous=False)
        except KafkaException:
            self.failures += 1

    def close(self) -> None:
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = None


def check_shares_topic(path: str, known: Positions, topics: Iterable[str]) -> None:
    """Check that a job reads at least one of the topics that its table was written from.

    Offsets of an unrelated topic would be the same as those of other rows. Raises SinkInconsistent.
    """
    if not set(known.topics) & set(topics):
        was, now = ", ".join(sorted(known.topics)), ", ".join(sorted(topics))
        raise SinkInconsistent(
            f"{path}: was written from {was}, but source.topics is {now}: the rows could not be "
            "distinguished; use a new table, or add the topic to those of the table"
        )


def _remove(folders: Sequence[Path]) -> None:
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


class _Phases:
    """Durations of the parts of a batch."""

    def __init__(self) -> None:
        self._since = time.monotonic()
        self.laps_ms: dict[str, float] = {}

    def lap(self, name: str) -> None:
        now = time.monotonic()
        self.laps_ms[name] = (now - self._since) * 1000
        self._since = now


def connector_offsets(positions: Positions) -> str:
    """Return positions in the official connector's form."""
    return json.dumps(
        {
            topic: {str(p): offset for p, offset in sorted(known.offsets.items())}
            for topic, known in positions.topics.items()
        }
    )


def _not_before(target: Positions, start: Positions) -> Positions:
    from vdl.pipeline.source import later

    return later(target, start)


def _kinds(schema: str) -> dict[str, str]:
    return dict(_columns(schema))


def _columns(schema: str) -> list[tuple[str, str]]:
    """Return the names and types of a schema as Spark writes it."""
    return _names(_fields(schema), is_upsert=False)


@functools.lru_cache(16)
def _fields(schema: str) -> tuple[Any, ...]:
    """Return the fields of a schema as Spark writes it."""
    if not schema:
        return ()
    from pyspark.sql.types import StructType

    return tuple(StructType.fromDDL(schema).fields)


def _names(fields: Sequence[Any], *, is_upsert: bool) -> list[tuple[str, str]]:
    """Return the names and types of a table's columns, without the operation column of upserts."""
    return [(f.name, f.dataType.simpleString()) for f in fields if f.name != OP or not is_upsert]
