"""Lineage of a job, reported as OpenLineage events.

A run has a START event, a RUNNING when it knows its columns and then periodically, and at its end a
COMPLETE, a FAIL with the reason, or an ABORT if it was interrupted. Each names the topics and
static tables that are read, the table (or topic) and the dead-letter table that are written, their
columns, and the rows written by this run so far. A killed run sends no final event.

A thread of its own creates and sends events (`event_sender.py`): nothing here can stop a job or
delay it, except for END_SECONDS at its end.

Names follow OpenLineage's naming: a topic is in `kafka://host:port` of the first server that the
job file names, a folder in `file`, an object store's table in `s3://bucket`.

Does not depend on Spark or the command line.
"""

from __future__ import annotations

import datetime
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

from vdl.pipeline.client_secrets import looked_up
from vdl.pipeline.errors import PipelineError, reason_of
from vdl.pipeline.event_sender import EventSender
from vdl.pipeline.job import TOPIC, Job
from vdl.pipeline.lineage_settings import LineageSettings
from vdl.pipeline.storage import is_url

PROJECT = "vdl-log"
PRODUCER = f"https://pypi.org/project/{PROJECT}"
END_SECONDS = 5.0
"""Limit on the wait for unsent events at the end of a job."""
MESSAGE_LENGTH_MAX = 2000
RETRIES = {"total": 2, "connect": 2, "read": 0, "backoff_factor": 0.3}
START, RUNNING, COMPLETE, FAIL, ABORT = "START", "RUNNING", "COMPLETE", "FAIL", "ABORT"
Columns = Sequence[tuple[str, str]]
"""Names and types, in Spark's notation."""
DEAD_COLUMNS: Columns = (
    ("topic", "string"), ("partition", "int"), ("offset", "bigint"), ("timestamp", "timestamp"),
    ("key", "binary"), ("value", "binary"),
    ("headers", "array<struct<key:string,value:binary>>"), ("error", "string"),
    ("offset_end", "bigint"),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class DatasetName:
    """OpenLineage's identity of a data set: both fields together."""

    namespace: str
    name: str


@dataclass(frozen=True, slots=True)
class Told:
    """Contents of an event."""

    kind: str
    time: float
    rows: int = 0
    dead: int = 0
    message: str = ""
    source_columns: Columns = ()
    columns: Columns = ()


Send = Callable[[Told], None]


class RunLineage:
    """Lineage of one run of a job. Use in a `with` around the whole run.

    `tell` receives a line at the end if events were not sent.
    """

    def __init__(
        self,
        sender: EventSender[Told],
        *,
        interval_seconds: float,
        tell: Callable[[str], None],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._sender = sender
        self._interval = interval_seconds
        self._tell = tell
        self._clock = clock
        self._next = 0.0
        self._rows = self._dead = 0
        self._source_columns: Columns = ()
        self._columns: Columns = ()

    def __enter__(self) -> RunLineage:
        self._put(START)
        return self

    def on_open(self, source_columns: Columns, columns: Columns) -> None:
        """Report the columns that the job reads from values, and those of its table."""
        self._source_columns, self._columns = tuple(source_columns), tuple(columns)
        self._put(RUNNING)

    def on_batch(self, *, rows: int, dead: int) -> None:
        self._rows += rows
        self._dead += dead
        if self._clock() >= self._next:
            self._put(RUNNING)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        del kind, trace
        if error is None:
            self._put(COMPLETE, is_last=True)
        elif isinstance(error, Exception):
            self._put(FAIL, reason_of(error)[:MESSAGE_LENGTH_MAX], is_last=True)
        else:
            self._put(ABORT, is_last=True)
        self._sender.close(END_SECONDS)
        missing = self._sender.put_count - self._sender.sent
        if missing:
            reason = self._sender.reason or "no response yet"
            self._tell(f"lineage: {missing} of {self._sender.put_count} events not sent: {reason}")

    def _put(self, kind: str, message: str = "", *, is_last: bool = False) -> None:
        now = self._clock()
        self._next = now + self._interval
        told = Told(
            kind, now, self._rows, self._dead, message, self._source_columns, self._columns
        )  # fmt: skip
        self._sender.put(told, is_last=is_last)


def lineage_of(
    job: Job,
    *,
    is_batch: bool,
    tell: Callable[[str], None],
    on_outcome: Callable[[str], None] = lambda outcome: None,
) -> RunLineage | None:
    """Return the lineage of a run, or None if the job has no section for it.

    `on_outcome`: as of EventSender. Raises PipelineError if the library is not installed,
    SecretMissing.
    """
    settings = job.lineage
    if settings is None:
        return None
    try:
        emit = _transport(settings)
    except ModuleNotFoundError as error:
        raise PipelineError(
            f"lineage requires openlineage-python ({error}); run pip install "
            "'vdl-log[lineage]', or pip install '.[lineage]' in a checkout"
        ) from error
    events = Events(job, settings, is_batch=is_batch)
    sender: EventSender[Told] = EventSender(lambda told: emit(events.event(told)), on_outcome)
    return RunLineage(sender, interval_seconds=settings.interval_seconds, tell=tell)


def _transport(settings: LineageSettings) -> Callable[[Any], Any]:
    """Return the library's transport, named explicitly: its environment and files are not read."""
    from openlineage.client.facet_v2 import set_producer

    emit: Callable[[Any], Any]
    set_producer(PRODUCER)
    if settings.file:
        from openlineage.client.transport.file import FileConfig, FileTransport

        emit = FileTransport(FileConfig(log_file_path=settings.file, append=True)).emit
        return emit
    from openlineage.client.transport.http import HttpConfig, HttpTransport

    given: dict[str, Any] = {
        "url": settings.url if settings.url.endswith("/") else f"{settings.url}/",
        "endpoint": settings.endpoint.lstrip("/"),
        "timeout": settings.timeout_seconds,
        "retry": RETRIES,
    }
    if settings.api_key:
        key = looked_up("lineage.api_key", settings.api_key)
        given["auth"] = {"type": "api_key", "apiKey": key}
    emit = HttpTransport(HttpConfig.from_dict(given)).emit
    return emit


@dataclass(slots=True)
class Events:
    """Builder of the events of a run."""

    job: Job
    settings: LineageSettings
    is_batch: bool
    run_id: str = field(default_factory=lambda: str(uuid.uuid4()))

    def event(self, told: Told) -> Any:
        """Return the library's RunEvent."""
        from openlineage.client import event_v2 as made
        from openlineage.client.facet_v2 import error_message_run, job_type_job
        from openlineage.client.facet_v2 import processing_engine_run as engine

        facets: dict[str, Any] = {
            "processing_engine": engine.ProcessingEngineRunFacet(
                version=_version_of("pyspark"),
                name="spark",
                openlineageAdapterVersion=_version_of(PROJECT),
            )
        }
        if told.message:
            facets["errorMessage"] = error_message_run.ErrorMessageRunFacet(
                message=told.message, programmingLanguage="PYTHON"
            )
        kind = job_type_job.JobTypeJobFacet(
            processingType="BATCH" if self.is_batch else "STREAMING", integration="VDL",
            jobType="JOB",
        )  # fmt: skip
        return made.RunEvent(
            eventType=made.RunState[told.kind],
            eventTime=datetime.datetime.fromtimestamp(told.time, datetime.UTC).isoformat(),
            run=made.Run(self.run_id, facets),
            job=made.Job(self.settings.namespace, self.job.name, {"jobType": kind}),
            producer=PRODUCER,
            inputs=[
                made.InputDataset(one.namespace, one.name, facets=_columns_facet(columns))
                for one, columns in inputs_of(self.job, told.source_columns)
            ],
            outputs=[
                made.OutputDataset(
                    one.namespace, one.name, facets=_columns_facet(columns),
                    outputFacets=_statistics(told, rows),
                )
                for one, columns, rows in outputs_of(self.job, told)
            ],
        )  # fmt: skip


def inputs_of(job: Job, columns: Columns) -> Iterator[tuple[DatasetName, Columns]]:
    """Yield the topics, with the columns read from their values, and the tables to join with."""
    for topic in job.source.topics:
        yield topic_name(job.source.bootstrap, topic), columns
    for table in job.tables.values():
        yield path_name(table.path), ()


def outputs_of(job: Job, told: Told) -> Iterator[tuple[DatasetName, Columns, int]]:
    """Yield the rows' table and the dead-letter table, with their numbers of rows."""
    sink = job.sink
    is_topic = sink.kind == TOPIC
    rows = topic_name(sink.bootstrap, sink.topic) if is_topic else path_name(sink.path)
    yield rows, told.columns, told.rows
    yield path_name(job.errors.path), DEAD_COLUMNS if told.columns else (), told.dead


def topic_name(bootstrap: str, topic: str) -> DatasetName:
    return DatasetName(f"kafka://{bootstrap.split(',', maxsplit=1)[0].strip()}", topic)


def path_name(path: str) -> DatasetName:
    """Return the name of a table in a folder or below a URL, without the URL's user."""
    if not is_url(path):
        return DatasetName("file", path)
    parts = urlsplit(path)
    scheme = "s3" if parts.scheme in {"s3a", "s3n"} else parts.scheme
    authority = parts.netloc.rpartition("@")[2]
    if scheme == "file":
        return DatasetName("file", parts.path)
    return DatasetName(f"{scheme}://{authority}", parts.path.strip("/") or "/")


def _version_of(project: str) -> str:
    """Return the installed version; a cluster's own Spark need not be installed."""
    try:
        return version(project)
    except PackageNotFoundError:
        return "unknown"


def _columns_facet(columns: Columns) -> Mapping[str, Any]:
    if not columns:
        return {}
    from openlineage.client.facet_v2 import schema_dataset as schema

    fields = [schema.SchemaDatasetFacetFields(name=name, type=kind) for name, kind in columns]
    return {"schema": schema.SchemaDatasetFacet(fields=fields)}


def _statistics(told: Told, rows: int) -> Mapping[str, Any]:
    if told.kind == START:
        return {}
    from openlineage.client.facet_v2 import output_statistics_output_dataset as statistics

    return {"outputStatistics": statistics.OutputStatisticsOutputDatasetFacet(rowCount=rows)}
