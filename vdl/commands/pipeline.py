"""`vdl pipeline`: jobs that write topics to tables on Spark.

Spark, Arrow and the progress bar are loaded by the commands that need them. `vdl.pipeline` runs the
jobs.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import json
import signal
import socket
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from vdl.pipeline.client_secrets import resolved
from vdl.pipeline.errors import PipelineError, reason_of
from vdl.pipeline.job import Job, load_job
from vdl.pipeline.session import NotInstalled, check_installed, make_session, start_jvm

if TYPE_CHECKING:
    from vdl.pipeline.lineage import RunLineage
    from vdl.pipeline.metrics import JobMetrics
    from vdl.pipeline.runner import BatchReport, OnOpen, Runner, Totals
    from vdl.pipeline.verify import Verdict

_job = click.argument(
    "job_file", metavar="JOB.toml", type=click.Path(exists=True, dir_okay=False, path_type=Path)
)
_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")


class _Group(click.Group):
    """Converts an error that stops a job to one line and exit code 1."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return self._invoke(ctx)
        except (PipelineError, OSError) as error:
            raise click.ClickException(str(error)) from error
        except _spark_errors() as error:
            raise click.ClickException(reason_of(error)) from error

    def _invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except ModuleNotFoundError:
            check_installed()  # reports the missing package and how to install it
            raise


def _spark_errors() -> tuple[type[Exception], ...]:
    """Return Spark's exceptions; none if it is not loaded."""
    if "pyspark" not in sys.modules:
        return ()
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    return PySparkException, Py4JError


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"]})
def pipeline() -> None:
    """Write topics to tables on Spark, exactly once."""


@pipeline.command()
@_job
def validate(*, job_file: Path) -> int:
    """Check a job file, without a cluster. Its SQL is parsed where Java is installed."""
    from vdl.pipeline.preflight import check_texts

    job = load_job(job_file)
    try:
        check_texts(job, start_jvm({}))
    except (ModuleNotFoundError, NotInstalled) as error:
        click.echo(f"schema and steps were not parsed: {error}", err=True)
    click.echo(
        f"{job.name}: {', '.join(job.source.topics)} ({job.source.kind}, {job.format}) → "
        f"{len(job.steps)} steps → "
        + (f"windows of {job.window.size} → " if job.window is not None else "")
        + f"{job.sink.kind} {job.sink.path}"
    )
    return 0


@pipeline.command()
@_job
@click.option("--rows", default=20, show_default=True, help="Maximum number of rows shown.")
def plan(*, job_file: Path, rows: int) -> int:
    """Show the columns of the table and the first rows. Write nothing."""
    job = load_job(job_file)
    spark = _session(job)
    try:
        columns, found, dead = _runner(job, spark).preview(rows)
    finally:
        spark.stop()
    click.echo(columns)
    for row in found:
        click.echo(json.dumps(row, default=str))
    for row in dead:
        click.echo(f"dead letter: {json.dumps(row, default=str)}")
    return 0


@pipeline.command()
@_job
@click.option("--once", is_flag=True, help="Stop at the present end of the topics.")
@click.option("--quiet", is_flag=True, help="Print only the last line.")
def run(*, job_file: Path, once: bool, quiet: bool) -> int:
    """Run a job until ^C. It continues at the end of its table."""
    job = load_job(job_file)
    return _run(job, lambda runner: runner.run(once=once), quiet=quiet, is_batch=once)


@pipeline.command()
@_job
@click.option(
    "--from", "start", default="", help="Start of a new table: a value as in source.start."
)
@click.option(
    "--to", "end", default="latest", show_default=True, help="End: latest, a time, or offsets."
)
@click.option(
    "--rows", default=2_000_000, show_default=True, help="Maximum number of rows in a batch."
)
@click.option("--quiet", is_flag=True, help="Print only the last line.")
def backfill(*, job_file: Path, start: str, end: str, rows: int, quiet: bool) -> int:
    """Write existing records in large batches. `run` continues at the reached offsets."""
    job = load_job(job_file)
    return _run(job, lambda r: r.backfill(start, end, rows_max=rows), quiet=quiet, is_batch=True)


@pipeline.command()
@_job
@_json
def status(*, job_file: Path, as_json: bool) -> int:
    """Show the offsets of the table and its lag behind the topics. Does not use Spark."""
    from vdl.pipeline.account import account_of
    from vdl.pipeline.open_table import rows_table
    from vdl.pipeline.preflight import check_cluster
    from vdl.pipeline.table import WindowSink
    from vdl.pipeline.topics import Topics

    job = load_job(job_file)
    check_cluster(job)
    topics = Topics(job.source.read_options())
    ids = topics.ids()
    table = rows_table(job)
    positions = table.open(ids)
    ends = topics.ends()
    account = account_of(table)
    partitions = [
        {
            "topic": topic,
            "partition": partition,
            "offset": (known := positions.offset(topic, partition) or 0),
            "end": end,
            "lag": max(0, end - known),
        }
        for topic, partition, end in ends.partitions()
    ]
    found = {
        "job": job.name,
        "table": job.sink.path,
        "commits": table.sequence,
        "rows": None if account is None else account.rows,
        "dead_letters": None if account is None else account.dead,
        "lag": sum(int(str(row["lag"])) for row in partitions),
        "partitions": partitions,
    }
    windows = table.windows if isinstance(table, WindowSink) else None
    if windows is not None:
        found["late"] = None if account is None else account.late
        found["watermark"] = _moment(windows.watermark_us)
    if as_json:
        click.echo(json.dumps(found, indent=2))
        return 0
    click.echo(
        f"{job.name}: {found['commits']} commits, {_number(found['rows'])} rows, "
        f"{_number(found['dead_letters'])} dead letters, {found['lag']} records behind"
        + (f", {_number(found['late'])} late, watermark {found['watermark']}" if windows else "")
    )
    if account is None:
        click.echo(
            "  ?: unknown, because the log of the table no longer contains its first commits"
        )
    for row in partitions:
        click.echo(f"  {row['topic']}/{row['partition']}: {row['offset']} of {row['end']}")
    return 0


@pipeline.command()
@_job
@_json
def verify(*, job_file: Path, as_json: bool) -> int:
    """Compare the table with its topics, offset by offset. Exit code 1 if they differ."""
    from vdl.pipeline.verify import verify as recount

    job = load_job(job_file)
    spark = _session(job)
    try:
        verdict = recount(job, spark)
    finally:
        spark.stop()
    if as_json:
        click.echo(json.dumps(dataclasses.asdict(verdict), indent=2))
    else:
        for line in _verdict_lines(verdict):
            click.echo(line)
    return int(not verdict.is_good)


@pipeline.command()
@_job
@click.option(
    "--target-mb", default=128, show_default=True, help="Approximate size of a file in MB."
)
@click.option(
    "--retain-hours",
    default=168,
    show_default=True,
    help="Age in hours from which unused files are removed.",
)
def compact(*, job_file: Path, target_mb: int, retain_hours: int) -> int:
    """Rewrite small files as large ones, and remove unused files. Does not use Spark.

    The job may run at the same time. The table of its dead letters is compacted, too.
    """
    from vdl.pipeline.compaction import Compacted, CompactingSink
    from vdl.pipeline.open_table import dead_table, rows_table
    from vdl.pipeline.preflight import check_cluster
    from vdl.pipeline.topics import Topics

    job = load_job(job_file)
    check_cluster(job)
    with contextlib.closing(Topics(job.source.read_options())) as topics:
        ids = topics.ids()
    for table in (rows_table(job), dead_table(job)):
        table.open(ids)
        done = Compacted()
        if isinstance(table, CompactingSink):
            done = table.compact(target_mb << 20) + table.vacuum(retain_hours)
        click.echo(f"{table.path}: {done.before} files became {done.after}, {done.removed} removed")
    return 0


@pipeline.command()
@_job
@click.option(
    "--of", "other", default="", help="Job whose position in the table this job takes over."
)
@click.option(
    "--beside", is_flag=True, help="Start at source.start beside other jobs of the same topics."
)
def rewind(*, job_file: Path, other: str, beside: bool) -> int:
    """Continue a job at the end of its table after the table was restored to an older version.

    Its table of dead letters may have been restored, too. Does not use Spark. The job must not run
    at the same time: it would be refused.
    """
    from vdl.pipeline.open_table import dead_table, rows_table
    from vdl.pipeline.options import parse_where
    from vdl.pipeline.preflight import check_cluster
    from vdl.pipeline.rollback import Rewinding
    from vdl.pipeline.topics import Topics

    job = load_job(job_file)
    table, letters = rows_table(job), dead_table(job)
    if not isinstance(table, Rewinding) or not isinstance(letters, Rewinding):
        raise PipelineError(
            f"{job.sink.path}: a table of this kind cannot be restored to an older version"
        )
    run = {
        "run": uuid.uuid4().hex[:12],
        "host": socket.gethostname(),
        "since_ms": int(time.time() * 1000),
    }
    check_cluster(job)
    with contextlib.closing(Topics(job.source.read_options())) as topics:
        ids = topics.ids()
        letters.rewind(ids, run)
        positions = table.rewind(ids, run)
        # First, so that a repeated command finds the other job in the table of rows.
        if other and other in letters.other_jobs():
            letters.take_over(other, run)
        if other:
            positions = table.take_over(other, run)
        elif beside and not positions:
            positions = topics.resolve(parse_where("source.start", job.source.start))
            table.begin_beside(positions, run)
    for topic, partition, offset in positions.partitions():
        click.echo(f"{topic}/{partition}: {offset}")
    return 0


@pipeline.group()
def dlq() -> None:
    """Manage dead letters: records that could not be decoded."""


@dlq.command("list")
@_job
@click.option(
    "--limit", default=20, show_default=True, help="Maximum number of dead letters shown."
)
def dlq_list(*, job_file: Path, limit: int) -> int:
    """Show dead letters. Does not use Spark."""
    from vdl.pipeline.dead_letters import read_letters

    count = 0
    for letter in read_letters(load_job(job_file)):
        count += 1
        if count <= limit:
            click.echo(
                f"{letter['topic']}/{letter['partition']} offset {letter['offset']} "
                f"{letter['timestamp']}: {letter['error']}: {_short(letter['value'])}"
            )
    click.echo(f"{count} dead letters")
    return 0


@dlq.command("replay")
@_job
@click.option("--to", "topic", required=True, help="Topic to produce them to.")
def dlq_replay(*, job_file: Path, topic: str) -> int:
    """Produce dead letters to a topic, at least once. Headers have their original offsets."""
    from vdl.pipeline.dead_letters import replay

    count = replay(load_job(job_file), topic)
    click.echo(f"{count} dead letters produced to {topic}")
    return 0


@pipeline.command()
@click.argument(
    "directories", metavar="DIR...", nargs=-1, required=True,
    type=click.Path(exists=True, file_okay=False, path_type=Path),
)  # fmt: skip
@click.option("--master", default="", help="Spark master. Two local cores if it is not given.")
@_json
def audit(*, directories: Sequence[Path], master: str, as_json: bool) -> int:
    """Compare the copies in several data directories, batch by batch, as a job on Spark.

    No server may use them. Exit code 1 if a copy is wrong.
    """
    from segments.api import StorageError
    from vdl.pipeline.audit import audit as compare

    spark = make_session("vdl-audit", master=master)
    try:
        found = compare([str(path.resolve()) for path in directories], spark)
    except (StorageError, FileNotFoundError) as error:
        raise click.ClickException(str(error)) from error
    finally:
        spark.stop()
    if as_json:
        click.echo(json.dumps(dataclasses.asdict(found), indent=2))
        return int(bool(found.findings))
    for one in found.findings:
        click.echo(
            f"group {one.group} entry {one.index} (offset {one.offset}): {one.what} in "
            f"{one.replica}"
        )
    click.echo(
        f"{found.entries} entries, {found.bytes / 1e9:.2f} GB in {found.directories} "
        f"directories: {found.wrong} entries have a wrong copy"
    )
    return int(bool(found.findings))


@pipeline.command("check")
@click.argument(
    "histories", metavar="HISTORY.jsonl...", nargs=-1, required=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
)  # fmt: skip
@click.option("--master", default="", help="Spark master. Two local cores if it is not given.")
@_json
def check_history(*, histories: Sequence[Path], master: str, as_json: bool) -> int:
    """Check one history, in one or several files, as a job on Spark.

    Like `vdl check`, for histories larger than memory, but without anomalies of consumer groups.
    Exit code 0 if it is clean, 1 if anomalies were found, 2 if a file is not a history.
    """
    from vdl.pipeline.check import CHECKED, NOT_CHECKED, check
    from vdl.pipeline.evidence import FileUnreadable, LineMalformed, partitions_for

    partitions = str(partitions_for(histories))
    spark = make_session(
        "vdl-check", master=master, settings={"spark.sql.shuffle.partitions": partitions}
    )
    try:
        verdict = check([str(path) for path in histories], spark)
    except (FileUnreadable, LineMalformed) as error:
        click.echo(str(error), err=True)
        return 2
    finally:
        spark.stop()
    if as_json:
        told = {**dataclasses.asdict(verdict), "checked": CHECKED, "not_checked": NOT_CHECKED}
        click.echo(json.dumps(told, indent=2))
        return int(not verdict.is_clean)
    for anomaly in verdict.examples:
        click.echo(anomaly)
    more = sum(verdict.anomalies.values()) - len(verdict.examples)
    if more:
        click.echo(f"… and {more} more")
    counts = ", ".join(f"{verdict.outcomes.get(kind, 0)} {kind}" for kind in ("ok", "fail", "info"))
    names = ", ".join(f"{count} {name}" for name, count in sorted(verdict.anomalies.items()))
    click.echo(f"{verdict.operations} operations ({counts}): {names or 'clean'}")
    click.echo(f"not checked here, only by `vdl check`: {', '.join(NOT_CHECKED)}")
    return int(not verdict.is_clean)


@pipeline.command()
def jars() -> int:
    """Fetch the official connector's jars with Maven, for source.kind = "kafka"."""
    from vdl.pipeline.jars import fetch_jars

    for path in fetch_jars():
        click.echo(path)
    return 0


def _run(
    job: Job, act: Callable[[Runner], Totals], *, quiet: bool, is_batch: bool
) -> int:  # fmt: skip
    from vdl.pipeline.lineage import lineage_of
    from vdl.pipeline.metrics import JobMetrics

    metrics = JobMetrics(job.name, job.metrics_listen)
    lineage = lineage_of(
        job,
        is_batch=is_batch,
        tell=lambda line: click.echo(line, err=True),
        on_outcome=metrics.on_lineage,
    )
    with lineage or contextlib.nullcontext():
        totals = _run_told(job, act, metrics, lineage, quiet=quiet)
    late = f", {totals.late} late" if job.window is not None else ""
    click.echo(f"{totals.batches} batches, {totals.rows} rows, {totals.dead} dead letters{late}")
    return 0


@contextlib.contextmanager
def _progress(*, quiet: bool) -> Iterator[Callable[[BatchReport], None]]:
    """Show batches: as a bar on a terminal, as lines elsewhere, not at all if `quiet`."""
    if quiet:
        yield lambda report: None
    elif not sys.stderr.isatty():
        yield _show_line
    else:
        with _Bar() as bar:
            yield bar.show


def _show_line(report: BatchReport) -> None:
    phases = ", ".join(f"{name} {millis:.0f} ms" for name, millis in report.phases_ms.items())
    windows = report.windows
    told = f"{windows.late} late, {windows.open} windows open, " if windows is not None else ""
    told += "".join(f"{count} fail {rule}, " for rule, count in report.failed.items() if count)
    seconds = sum(report.phases_ms.values()) / 1000
    rate = (report.rows + report.dead) / seconds if seconds else 0.0
    behind = sum(report.lag.values())
    left = f", {behind / rate:.0f} s at this rate" if behind and rate else ""
    click.echo(
        f"batch {report.batch}: {report.rows} rows, {report.dead} dead letters, {told}"
        f"{rate:,.0f} rows/s, {behind} behind{left}{_age(report.newest_ms)} ({phases})",
        err=True,
    )
    if report.compacted:
        click.echo(f"compaction: {report.compacted}", err=True)


def _age(newest_ms: int) -> str:
    """Return the age of the newest record in the table, as text."""
    return f", {max(0.0, time.time() - newest_ms / 1000):.0f} s old" if newest_ms >= 0 else ""


class _Bar:
    """Progress bar: written rows of those that are there now."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

        self._bar = Progress(
            TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}"), console=Console(stderr=True),
        )  # fmt: skip
        self._task = self._bar.add_task("rows", total=None, rate="")
        self._done = 0

    def __enter__(self) -> _Bar:
        self._bar.start()
        return self

    def __exit__(self, *failure: object) -> None:
        self._bar.stop()

    def show(self, report: BatchReport) -> None:
        count = report.rows + report.dead
        self._done += count
        seconds = sum(report.phases_ms.values()) / 1000
        self._bar.update(
            self._task,
            completed=self._done,
            total=self._done + sum(report.lag.values()),
            rate=f"{count / seconds:,.0f} rows/s" if seconds else "",
        )


def _run_told(
    job: Job,
    act: Callable[[Runner], Totals],
    metrics: JobMetrics,
    lineage: RunLineage | None,
    *,
    quiet: bool,
) -> Totals:
    """Run a job in a session of its own, and report its progress."""
    from vdl.pipeline.lag import LagWatch

    spark = _session(job)
    pages = spark.sparkContext.uiWebUrl
    if pages and not quiet:
        click.echo(f"Spark UI: {pages}", err=True)
    on_open = None if lineage is None else lineage.on_open
    with _progress(quiet=quiet) as show:

        def on_batch(report: BatchReport) -> None:
            metrics.on_batch(report)
            if lineage is not None:
                lineage.on_batch(rows=report.rows, dead=report.dead)
            show(report)

        runner = _runner(job, spark, on_batch, on_open)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: runner.stop())
        watch = LagWatch(job.source.read_options(), runner.positions, metrics.on_lag)
        try:
            with watch if job.metrics_listen else contextlib.nullcontext():
                return act(runner)
        finally:
            runner.close()
            spark.stop()


def _session(job: Job) -> Any:
    """Return a session in which the job can run, as far as can be checked. Raises
    PipelineError."""
    from vdl.pipeline.preflight import (
        check_cluster,
        check_folders,
        check_registry,
        check_texts,
    )

    check_installed()
    check_folders(job)
    check_cluster(job)
    check_registry(job)
    told = resolved(job.spark)
    settings = {k if k.startswith("spark.") else f"spark.{k}": v for k, v in told.items()}
    jars: Sequence[str] = ()
    if job.source.kind == "kafka":
        from vdl.pipeline.jars import find_jars

        jars = find_jars()
    return make_session(
        job.name,
        master=settings.pop("spark.master", ""),
        settings=settings,
        jars=jars,
        before=lambda jvm: check_texts(job, jvm),
    )


def _runner(
    job: Job,
    spark: Any,
    on_batch: Callable[[BatchReport], None] | None = None,
    on_open: OnOpen | None = None,
) -> Runner:
    from vdl.pipeline.runner import Runner

    return Runner(job, spark, on_batch, on_open)


def _verdict_lines(verdict: Verdict) -> Iterator[str]:
    """Yield the numbers in one line, and one line for each problem."""
    counts = f"{verdict.rows} rows, {verdict.dead} dead letters"
    if verdict.is_by_counts:
        yield f"{counts}; rows have no source offsets, so only counts were compared"
    else:
        yield (
            f"{verdict.source} records in the source: {counts}, {verdict.lost} lost, "
            f"{verdict.duplicates} duplicates"
            + (
                f", {verdict.invented} offsets that the source does not have"
                if verdict.invented
                else ""
            )
            + (f"; {verdict.absent} are not in the table (filtered?)" if verdict.absent else "")
            + (f"; {verdict.gone} offsets are no longer in the source" if verdict.gone else "")
        )
    if verdict.rows_committed not in {None, verdict.rows}:
        yield f"  {verdict.rows_committed} rows were committed, the table has {verdict.rows}"
    if verdict.dead_committed not in {None, verdict.dead}:
        yield (
            f"  {verdict.dead_committed} dead letters were committed, the table has {verdict.dead}"
        )
    for path in verdict.missing_files:
        yield f"  {path} is missing"
    for one in verdict.differences:
        yield (
            f"  {one.topic}/{one.partition} [{one.start}, {one.end}): {one.source} records, "
            f"{one.rows} rows; examples of offsets: {', '.join(map(str, one.examples))}"
        )


def _number(known: object) -> object:
    return "?" if known is None else known


def _moment(micros: int | None) -> str | None:
    """Return an event time of the job's rows as text."""
    if micros is None:
        return None
    epoch = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
    return (epoch + datetime.timedelta(microseconds=micros)).isoformat()


def _short(value: Any) -> str:
    return repr(value if value is None or len(value) <= 80 else value[:77] + b"...")
