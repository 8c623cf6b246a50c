"""A job as a TOML file: its source, its transformation and its sink.

```toml
[job]
name = "flights"                    # name of its transactions and its consumer group

[source]
kind = "vdl"                        # or "kafka": the official connector
bootstrap = "127.0.0.1:9092"
topics = ["flights"]
start = "earliest"                  # "latest", a time, offsets as JSON; only for a new table
max_rows = 200000                   # limit of one batch
max_bytes = 67108864
segments = []                       # data directories whose sealed segments are read directly
isolation = "read_committed"        # or "read_uncommitted"
[source.options]                    # of the reader, as in options.py, or of the connector
[source.client]                     # librdkafka's settings: TLS, SASL; also for the connector
"security.protocol" = "SASL_SSL"
"sasl.password" = "env:PASSWORD"    # a secret is in the environment or in a file: "file:PATH"

[decode]
format = "json"                     # or "raw"; with a registry "avro", "protobuf", "json-schema"
schema = "year int, carrier string" # as Spark writes types
envelope = ""                       # "debezium": the schema describes the rows within
tombstones = "dead"                 # JSON without a value: a dead letter, "drop", or "null": a row;
                                    # for upserts also "delete", their default
rescued = ""                        # a column for JSON members that the schema does not have

[registry]                          # schema registry; values name their schemas by id
url = "https://registry:8081"       # also "ca", "certificate", "key", "key_password": files
user = "flights"
password = "env:REGISTRY_PASSWORD"

[[expect.rules]]                    # rules for decoded rows; expectations.py
sql = "dep_delay > -90"
action = "dead"                     # or "drop", "stop"
name = "delay"                      # in metrics; the sql by default

[transform]
tables = { airlines = { format = "csv", path = "airlines.csv", options = { header = "true" } } }
steps = [                           # each sees the ones before; "input" are the decoded rows
  { name = "late", sql = "SELECT * FROM input WHERE dep_delay > 60" },
]

[window]                            # windows.py; without it rows are written as they are
time = "departed"                   # a timestamp column of the last step's rows
size = "1 hour"                     # milliseconds, seconds, minutes, hours, days, weeks
slide = ""                          # from the start of one window to the next; the size by default
late = "10 minutes"                 # lag of the watermark behind the latest time seen
idle = "1 minute"                   # a partition silent for longer holds no window open
future = "1 day"                    # limit of a row's time ahead of the clock; beyond it is late
keys = ["carrier"]                  # the table has one row for each window and key
[window.values]                     # count(*); count, sum, min, max, avg of a column
flights = "count(*)"
delay = "avg(dep_delay)"

[sink]
kind = "parquet"                    # or "delta", "iceberg", or "topic": at least once
path = "tables/flights"             # for a topic: the folder of its commits
table = "default.flights"           # for "iceberg": its name in the catalog
partition_by = ["carrier"]          # for delta, iceberg; for iceberg also "day(departed)"
file_bytes = 134217728              # size at which rows continue in another file
mode = "append"                     # or "upsert", for delta and iceberg: one row for each key
topic = ""                          # only for kind "topic"
key = ""                            # the column with the records' key; for upserts a list
bootstrap = ""                      # the source's by default
[sink.options]                      # librdkafka's, for the producers
[sink.storage]                      # for a path in an object store, s3://…, of delta and iceberg
endpoint = ""                       # defaults from the environment: AWS_ENDPOINT_URL,
region = ""                         # AWS_REGION, AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY
secret_access_key = "env:SECRET"    # access_key_id, session_token likewise
[sink.catalog]                      # for "iceberg": PyIceberg's settings of a catalog
uri = "sqlite:////srv/catalog.db"   # catalog.db beside the table's folder by default

[errors]
path = "tables/flights-dead"        # the dead letters; the sink's path with "-dead" by default
share_max = 0.01                    # share of a batch's records; more dead letters stop the job
rows_min = 1000                     # a smaller batch counts as this many records

[run]
interval_seconds = 1.0              # minimum between the starts of two batches
compact_every = 0                   # commits between two compactions by the job itself; 0: none
checkpoint = ""                     # a folder; the sink's path with "-checkpoint" by default
group = ""                          # group whose offsets are committed; "vdl-pipeline-" + name
                                    # by default

[metrics]
listen = ""                         # "127.0.0.1:9400": Prometheus

[lineage]                           # OpenLineage events; none without this section
url = "http://127.0.0.1:5000"       # server that they are posted to; or
file = ""                           # file that a line is appended to for each
endpoint = "api/v1/lineage"         # below the url
api_key = "env:LINEAGE_KEY"         # or "file:PATH"; none by default
namespace = "vdl"                   # of the job
timeout_seconds = 5                 # for one event
interval_seconds = 60               # between two progress events of a run

[spark]                             # settings of the session; "master" for spark.master
```

Paths are relative to the file's folder. Only those of tables to join with may be URLs, as Spark
reads them. Every problem of a file is found before anything is started.

Does not depend on Spark or on Kafka clients.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vdl.pipeline.catalog_settings import (
    NAME as TABLE_NAME,
)
from vdl.pipeline.catalog_settings import (
    local_catalog,
    name_of,
    problems_of_catalog,
)
from vdl.pipeline.client_secrets import KNOWN, exposed, resolved
from vdl.pipeline.client_settings import unfit
from vdl.pipeline.decode import DEAD, DEBEZIUM, DELETES, ENVELOPES, NULLS, TOMBSTONES
from vdl.pipeline.decode import DROP as NOTHING
from vdl.pipeline.errors import JobInvalid
from vdl.pipeline.expectations import ACTIONS, DROP, Rule
from vdl.pipeline.lineage_settings import LineageSettings
from vdl.pipeline.options import (
    CLIENT_PREFIX,
    MAX_BYTES_DEFAULT,
    MAX_ROWS_DEFAULT,
    OptionError,
    ReadOptions,
    parse,
    parse_where,
)
from vdl.pipeline.partitioning import PartitionField, parse_field
from vdl.pipeline.registered.registry import NAMES
from vdl.pipeline.registered.values import FORMS
from vdl.pipeline.settings_reader import Reader
from vdl.pipeline.storage import SCHEMES, URL, is_url, problems_of, scheme_of
from vdl.pipeline.table import FILE_BYTES
from vdl.pipeline.windows import FUTURE, IDLE, Window

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
TOPIC_NAME = re.compile(r"[A-Za-z0-9._-]{1,249}")
LISTEN = re.compile(r"(?:.*:)?([0-9]{1,5})")
STEP_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
SOURCES = ("vdl", "kafka")
TOPIC = "topic"
ICEBERG = "iceberg"
SINKS = ("parquet", "delta", ICEBERG, TOPIC)
URL_SINKS = ("delta", ICEBERG)
"""Sinks that can be in an object store."""
WINDOW_SINKS = ("parquet", "delta", ICEBERG)
"""Sinks that keep open windows in their commits."""
APPEND, UPSERT = "append", "upsert"
MODES = (APPEND, UPSERT)
FORMATS = ("json", "raw", *FORMS)
INPUT = "input"


@dataclass(frozen=True, slots=True)
class Source:
    kind: str
    bootstrap: str
    topics: tuple[str, ...]
    start: str = "earliest"
    max_rows: int = MAX_ROWS_DEFAULT
    max_bytes: int = MAX_BYTES_DEFAULT
    segments: tuple[str, ...] = ()
    options: Mapping[str, str] = field(default_factory=dict)
    client: Mapping[str, str] = field(default_factory=dict)
    isolation: str = "read_committed"

    def reader_options(self) -> dict[str, str]:
        """Return options for `format("vdl")`, with the secrets. Raises SecretMissing."""
        return resolved(self.named_options())

    def named_options(self) -> dict[str, str]:
        """Return the same options with references to secrets instead."""
        given = {
            "bootstrap": self.bootstrap,
            "topics": ",".join(self.topics),
            "start": self.start,
            "maxRows": str(self.max_rows),
            "maxBytes": str(self.max_bytes),
            "segments": ",".join(self.segments),
            "unreadable": "letter",
            "isolation": self.isolation,
            **{f"{CLIENT_PREFIX}{name}": value for name, value in self.client.items()},
        }
        return {**given, **(self.options if self.kind == "vdl" else {})}

    def read_options(self) -> ReadOptions:
        """Return parsed options, for the driver's requests to the cluster. Raises OptionError."""
        return parse(self.reader_options())


@dataclass(frozen=True, slots=True)
class Step:
    name: str
    sql: str


@dataclass(frozen=True, slots=True)
class Table:
    """Static table to join with, read when the job starts."""

    format: str
    path: str
    options: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Sink:
    """Destination of rows.

    `topic`, `key`, `bootstrap` and `options` apply to kind "topic", `table` and `catalog` to kind
    "iceberg".
    """

    kind: str
    path: str
    topic: str = ""
    key: str = ""
    bootstrap: str = ""
    options: Mapping[str, str] = field(default_factory=dict)
    table: str = ""
    catalog: Mapping[str, str] = field(default_factory=dict)
    storage: Mapping[str, str] = field(default_factory=dict)
    partition_by: tuple[PartitionField, ...] = ()
    file_bytes: int = FILE_BYTES
    mode: str = APPEND
    upsert_key: tuple[str, ...] = ()
    """Key columns in mode "upsert"."""

    @property
    def dead_kind(self) -> str:
        """Kind of the dead-letter table: a topic's dead letters are kept in a table too."""
        return "parquet" if self.kind == TOPIC else self.kind


@dataclass(frozen=True, slots=True)
class Errors:
    path: str
    share_max: float = 0.01
    rows_min: int = 1000


@dataclass(frozen=True, slots=True)
class Job:
    name: str
    source: Source
    format: str
    schema: str
    tables: Mapping[str, Table]
    steps: tuple[Step, ...]
    sink: Sink
    errors: Errors
    interval_seconds: float
    checkpoint: str
    group: str
    metrics_listen: str
    spark: Mapping[str, str]
    window: Window | None = None
    tombstones: str = "dead"
    envelope: str = ""
    rescued: str = ""
    compact_every: int = 0
    rules: tuple[Rule, ...] = ()
    registry: Mapping[str, str] = field(default_factory=dict)
    """Settings of the registry, with references to secrets."""
    lineage: LineageSettings | None = None

    @property
    def is_upsert(self) -> bool:
        return self.sink.mode == UPSERT

    @property
    def leaves_out(self) -> bool:
        """True if a record may be neither a row nor a dead letter."""
        drops = any(rule.action == DROP for rule in self.rules)
        return bool(self.steps) or self.tombstones == "drop" or drops


def load_job(path: Path) -> Job:
    """Read and check a job file. Raises JobInvalid with all problems, OSError."""
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise JobInvalid(str(path), [str(error)]) from error
    return parse_job(data, str(path), path.resolve().parent)


def parse_job(data: Mapping[str, Any], name: str, folder: Path) -> Job:
    """Return the job that a parsed TOML file describes. Raises JobInvalid."""
    reader = Reader(data)
    job = _read(reader, folder)
    reader.finish()
    if not reader.problems:
        _check(job, reader.problems)
    if reader.problems:
        raise JobInvalid(name, reader.problems)
    return job


def _read(r: Reader, folder: Path) -> Job:
    def table_path(text: str, what: str) -> str:
        """Return a path of files that are written, but neither renamed nor synced by name."""
        if sink_kind in URL_SINKS and scheme_of(text) in SCHEMES:
            return text.rstrip("/")
        return path_of(text, what)

    def path_of(text: str, what: str) -> str:
        """Return the path of a folder whose files are renamed and synced."""
        found = URL.match(text)
        if found is not None and found[1].lower() != "file":
            r.problems.append(
                f"{what}: {text!r} is not on a file system: {found[1]}:// is "
                + ("only for delta and iceberg" if found[1].lower() in SCHEMES else "unknown")
            )
        return str(folder / text.removeprefix("file://")) if text else ""

    def read_from(text: str) -> str:
        """Return a path that Spark reads, in any place."""
        return text if URL.match(text) else path_of(text, "")

    name = r.text("job", "name")
    sink_kind = r.text("sink", "kind", "parquet")
    sink_path = table_path(r.text("sink", "path"), "sink.path")
    source = Source(
        kind=r.text("source", "kind", "vdl"),
        bootstrap=r.text("source", "bootstrap"),
        topics=tuple(r.texts("source", "topics")),
        start=r.text("source", "start", "earliest"),
        max_rows=r.count("source", "max_rows", MAX_ROWS_DEFAULT),
        max_bytes=r.count("source", "max_bytes", MAX_BYTES_DEFAULT),
        segments=tuple(
            path_of(text, "source.segments") for text in r.texts("source", "segments", [])
        ),
        options=r.mapping("source", "options"),
        client=r.mapping("source", "client"),
        isolation=r.text("source", "isolation", "read_committed"),
    )
    is_iceberg = sink_kind == ICEBERG
    mode = r.text("sink", "mode", APPEND)
    is_upsert = mode == UPSERT
    envelope = r.text("decode", "envelope", "")
    tombstones = DELETES if is_upsert else NOTHING if envelope == DEBEZIUM else DEAD
    tables = {
        name: Table(
            r.text(table, "format", "parquet"),
            read_from(r.text(table, "path", "")),
            r.mapping(table, "options"),
        )
        for name, table in r.tables("transform", "tables").items()
    }
    steps = tuple(
        Step(r.text(step, "name", f"step{n}"), r.text(step, "sql", ""))
        for n, step in enumerate(r.rows("transform", "steps"), 1)
    )
    return Job(
        name=name,
        source=source,
        format=r.text("decode", "format", "json"),
        schema=r.text("decode", "schema", ""),
        tables=tables,
        steps=steps,
        sink=Sink(
            kind=sink_kind,
            path=sink_path,
            topic=r.text("sink", "topic", ""),
            key="" if is_upsert else r.text("sink", "key", ""),
            mode=mode,
            upsert_key=tuple(r.texts("sink", "key")) if is_upsert else (),
            bootstrap=r.text("sink", "bootstrap", "") or source.bootstrap,
            options=r.mapping("sink", "options"),
            storage=r.mapping("sink", "storage"),
            partition_by=_read_partitions(r),
            file_bytes=r.count("sink", "file_bytes", FILE_BYTES),
            table=r.text("sink", "table", "") or (name_of(sink_path) if is_iceberg else ""),
            catalog=r.mapping("sink", "catalog")
            or (local_catalog(sink_path) if is_iceberg and not is_url(sink_path) else {}),
        ),
        errors=Errors(
            table_path(r.text("errors", "path", ""), "errors.path") or f"{sink_path}-dead",
            r.number("errors", "share_max", 0.01),
            r.count("errors", "rows_min", 1000),
        ),
        interval_seconds=r.number("run", "interval_seconds", 1.0),
        checkpoint=path_of(r.text("run", "checkpoint", ""), "run.checkpoint")
        or (str(folder / f"{name}-checkpoint") if is_url(sink_path) else f"{sink_path}-checkpoint"),
        group=r.text("run", "group", "") or f"vdl-pipeline-{name}",
        metrics_listen=r.text("metrics", "listen", ""),
        spark=r.whole("spark"),
        window=_read_window(r) if r.has("window") else None,
        tombstones=r.text("decode", "tombstones", tombstones),
        envelope=envelope,
        rescued=r.text("decode", "rescued", ""),
        compact_every=r.count("run", "compact_every", 0),
        rules=_read_rules(r) if r.has("expect") else (),
        registry=_read_registry(r) if r.has("registry") else {},
        lineage=_read_lineage(r, path_of) if r.has("lineage") else None,
    )


def _read_registry(r: Reader) -> dict[str, str]:
    found = {name: r.text("registry", name, "") for name in NAMES}
    return {name: value for name, value in found.items() if value}


def _read_lineage(r: Reader, path_of: Callable[[str, str], str]) -> LineageSettings:
    known = LineageSettings()
    return LineageSettings(
        url=r.text("lineage", "url", ""),
        endpoint=r.text("lineage", "endpoint", known.endpoint),
        file=path_of(r.text("lineage", "file", ""), "lineage.file"),
        api_key=r.text("lineage", "api_key", ""),
        namespace=r.text("lineage", "namespace", known.namespace),
        timeout_seconds=r.number("lineage", "timeout_seconds", known.timeout_seconds),
        interval_seconds=r.number("lineage", "interval_seconds", known.interval_seconds),
    )


def _read_partitions(r: Reader) -> tuple[PartitionField, ...]:
    found = []
    for text in r.texts("sink", "partition_by", []):
        try:
            found.append(parse_field(text))
        except ValueError as error:
            r.problems.append(f"sink.partition_by: {error}")
    return tuple(found)


def _read_rules(r: Reader) -> tuple[Rule, ...]:
    found = []
    for row in r.rows("expect", "rules"):
        sql = r.text(row, "sql")
        found.append(Rule(r.text(row, "name", "") or sql, sql, r.text(row, "action")))
    return tuple(found)


def _read_window(r: Reader) -> Window:
    return Window(
        time=r.text("window", "time"),
        size=r.text("window", "size"),
        slide=r.text("window", "slide", ""),
        late=r.text("window", "late"),
        keys=tuple(r.texts("window", "keys", [])),
        aggregates=r.mapping("window", "values"),
        idle=r.text("window", "idle", IDLE),
        future=r.text("window", "future", FUTURE),
    )


def _check(job: Job, problems: list[str]) -> None:
    def need(fact: bool, problem: str) -> None:
        if not fact:
            problems.append(problem)

    need(bool(NAME.fullmatch(job.name)), f"job.name: {job.name!r} is not a valid name")
    need(job.source.kind in SOURCES, f"source.kind: {job.source.kind!r} is not one of {SOURCES}")
    need(job.sink.kind in SINKS, f"sink.kind: {job.sink.kind!r} is not one of {SINKS}")
    need(job.sink.kind != TOPIC or bool(job.sink.topic), "sink.topic: is required")
    of_topics = job.sink.topic or job.sink.key or job.sink.options
    need(job.sink.kind == TOPIC or not of_topics, "sink.topic, key, options: only for kind 'topic'")
    need(
        job.sink.kind == ICEBERG or not (job.sink.table or job.sink.catalog),
        "sink.table, catalog: only for kind 'iceberg'",
    )
    if job.sink.kind == ICEBERG:
        need(
            bool(TABLE_NAME.fullmatch(job.sink.table)),
            f"sink.table: {job.sink.table!r} is not namespace.name",
        )
        problems += [
            f"sink.catalog: {problem}" for problem in problems_of_catalog(job.sink.catalog)
        ]
    problems += [f"sink.storage: {problem}" for problem in problems_of(job.sink.storage)]
    need(
        is_url(job.sink.path) or is_url(job.errors.path) or not job.sink.storage,
        "sink.storage: only for a path in an object store",
    )
    need(job.sink.kind != ICEBERG or bool(job.sink.catalog), "sink.catalog: is required")
    fields = job.sink.partition_by
    need(job.sink.kind in URL_SINKS or not fields, "sink.partition_by: only for delta and iceberg")
    need(
        job.sink.kind == ICEBERG or not any(one.transform for one in fields),
        "sink.partition_by: transforms such as day(…) are only for iceberg; a step can "
        "compute a column",
    )
    need(
        len({one.column for one in fields}) == len(fields),
        "sink.partition_by: lists a column twice",
    )
    need(job.sink.file_bytes > 0, "sink.file_bytes: must be greater than 0")
    need(
        job.sink.topic not in job.source.topics or job.sink.bootstrap != job.source.bootstrap,
        "sink.topic: must not be one of the source topics",
    )
    for topic in (*job.source.topics, *([job.sink.topic] if job.sink.topic else [])):
        need(bool(TOPIC_NAME.fullmatch(topic)), f"topics: {topic!r} is not a valid topic name")
    need(job.format in FORMATS, f"decode.format: {job.format!r} is not one of {FORMATS}")
    need(
        job.tombstones in TOMBSTONES,
        f"decode.tombstones: {job.tombstones!r} is not one of {TOMBSTONES}",
    )
    need(
        job.envelope in ENVELOPES,
        (f"decode.envelope: {job.envelope!r} is not one of {ENVELOPES[1:]}"),
    )
    need(job.format != "raw" or not job.envelope, "decode.envelope: not for raw values")
    problems += _problems_of_upsert(job)
    need(job.format != "raw" or not job.rescued, "decode.rescued: not for raw values")
    by_registry = job.format in FORMS
    need(not by_registry or "url" in job.registry, f"registry.url: is required for {job.format!r}")
    need(by_registry or not job.registry, f"registry: is not used by format {job.format!r}")
    for rule in job.rules:
        need(rule.action in ACTIONS, f"expect.rules: {rule.action!r} is not one of {ACTIONS}")
        need(bool(rule.sql.strip()), "expect.rules: a rule has no sql")
    rule_names = [rule.name for rule in job.rules]
    need(len(set(rule_names)) == len(rule_names), "expect.rules: two rules have the same name")
    need(bool(job.source.topics), "source.topics: at least one is required")
    need(job.format == "raw" or bool(job.schema), f"decode.schema: is required for {job.format!r}")
    need(0 <= job.errors.share_max <= 1, "errors.share_max: must be between 0 and 1")
    need(not _is_same(job.errors.path, job.sink.path), "errors.path: must differ from sink.path")
    for what, path in (("sink", job.sink.path), ("errors", job.errors.path)):
        need(
            not (_is_within(path, job.checkpoint) or _is_within(job.checkpoint, path)),
            f"run.checkpoint: must not be inside {what}.path, nor contain it",
        )
    need(job.interval_seconds >= 0, "run.interval_seconds: must not be negative")
    need(job.compact_every >= 0, "run.compact_every: must not be negative")
    if job.lineage is not None:
        problems += [f"lineage.{problem}" for problem in job.lineage.problems()]
    need(_is_address(job.metrics_listen), f"metrics.listen: {job.metrics_listen!r} has no port")
    need(
        job.source.kind == "vdl" or not job.source.segments,
        "source.segments: only for kind = 'vdl'",
    )
    names = [INPUT, *job.tables]
    for step in job.steps:
        need(
            bool(STEP_NAME.fullmatch(step.name)),
            (f"transform.steps: {step.name!r} is not a valid name"),
        )
        need(step.name not in names, f"transform.steps: {step.name!r} is already used")
        need(bool(step.sql.strip()), f"transform.steps: {step.name} has no sql")
        names.append(step.name)
    for name, table in job.tables.items():
        need(bool(table.path), f"transform.tables.{name}: has no path")
    if job.window is not None:
        problems += job.window.problems()
        need(not is_url(job.sink.path), "window: requires a folder in sink.path for its state")
        need(job.sink.kind in WINDOW_SINKS, f"window: only for sink.kind {WINDOW_SINKS}")
    try:
        parse_where("source.start", job.source.start)
        client = parse(job.source.named_options()).client
        problems += [f"source.options: client.{n}: {why}" for n, why in unfit(client).items()]
    except OptionError as error:
        problems.append(f"source: {error}")
    problems += [f"sink.options: {name}: {why}" for name, why in unfit(job.sink.options).items()]
    if job.source.kind == "kafka":
        problems += [
            f"source.client: {name}: is unknown for kind = 'kafka'; use the name of the "
            "connector, kafka.…, in source.options"
            for name in sorted(set(job.source.client) - KNOWN)
        ]
    for section, settings in (
        ("source.client", job.source.client), ("source.options", job.source.options),
        ("sink.options", job.sink.options), ("spark", job.spark), ("registry", job.registry),
    ):  # fmt: skip
        problems += [
            f"{section}: {name}: a job file must not contain secrets; use env:NAME or file:PATH"
            for name in exposed(settings)
        ]


def _problems_of_upsert(job: Job) -> list[str]:
    """Return the reasons why rows cannot be merged by key."""
    sink = job.sink
    if sink.mode not in MODES:
        return [f"sink.mode: {sink.mode!r} is not one of {MODES}"]
    if sink.mode != UPSERT:
        is_delete = job.tombstones == DELETES
        return ["decode.tombstones: 'delete' is only for sink.mode 'upsert'"] if is_delete else []
    key, others = sink.upsert_key, [f.column for f in sink.partition_by]
    outside = [name for name in others if name not in key]
    found = {
        f"sink.mode: upsert is only for {URL_SINKS}: a row of kind {sink.kind!r} cannot be "
        "replaced": (sink.kind not in URL_SINKS),
        "sink.key: upsert requires at least one column": not key,
        "sink.key: lists a column twice": len(set(key)) != len(key),
        f"sink.partition_by: {', '.join(outside)} is not in sink.key: a row could move from "
        "one partition to another": bool(key and outside),
        "decode.format: upsert requires columns, which raw values do not have": job.format == "raw",
        ("decode.tombstones: 'null' writes rows for deletions: not for upsert"): job.tombstones
        == NULLS,
        "source.topics: upsert requires exactly one topic: only records of one partition are "
        "ordered": (len(job.source.topics) > 1),
        "transform.steps: not for upsert: a step could keep a row and drop its deletion": (
            bool(job.steps)
        ),
        "window: not for upsert: a replaced row cannot be removed from a window": (
            job.window is not None
        ),
    }
    return [problem for problem, is_so in found.items() if is_so]


def _is_address(listen: str) -> bool:
    found = LISTEN.fullmatch(listen)
    return not listen or (found is not None and int(found[1]) < 1 << 16)


def _is_same(one: str, other: str) -> bool:
    if is_url(one) or is_url(other):
        return one == other
    return Path(one).resolve() == Path(other).resolve()


def _is_within(inner: str, outer: str) -> bool:
    """Return True if `inner` is `outer` or below it, also through links."""
    if is_url(inner) or is_url(outer):
        return False
    return Path(inner).resolve().is_relative_to(Path(outer).resolve())
