"""What the sinks have in common: commits of files together with the offsets they stand for.

A table is written in commits, numbered from 1 for each job. A commit holds the files of one batch
and, for every partition, the offset the next batch begins at; both become visible in one step or
not at all. Because the offsets are the table's own, nothing else has to be kept: whoever opens the
table goes on from there, whatever has become of Spark's checkpoint.

A commit is refused (CommitConflict) when the table is not as this run left it. So of two runs of
the same job, one of which was taken for dead, only one can write, and no row is written twice.

Must not know: Spark, Kafka.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

from vdl.pipeline.partitioning import PartitionField
from vdl.pipeline.positions import OffsetRange, Positions
from vdl.pipeline.watermark import Heard


@dataclass(frozen=True, slots=True)
class Place:
    """Where a table is. `path`: of its files, a folder or a URL; `storage`: what an object store
    wants to know, as `storage.resolved_settings` has it; `catalog` and `name`: of an Iceberg
    table, PyIceberg's settings and `namespace.table`."""

    kind: str
    path: str
    storage: Mapping[str, str] = field(default_factory=dict)
    catalog: Mapping[str, str] = field(default_factory=dict)
    name: str = ""
    partition_by: tuple[PartitionField, ...] = ()
    key: tuple[str, ...] = ()
    """Columns of which the table has one row for each value; none: rows are appended."""


@dataclass(frozen=True, slots=True)
class DataFile:
    """A finished file in the table's staging folder. `spans`: for each partition, the first offset
    of its rows and the one after the last, as far as rows carry them; `stats`: of its columns, as
    `file_stats` has them."""

    path: str
    rows: int
    bytes: int
    spans: tuple[OffsetRange, ...] = ()
    stats: Mapping[str, Any] = field(default_factory=dict)
    partition: tuple[Any, ...] = ()
    """A value for each field that the table is partitioned by; None is NULL."""


class KeptWindows(NamedTuple):
    """A file of partial aggregates: the starts of its first and last window, in microseconds, and
    its rows. Some of its windows may be closed by now."""

    first: int
    last: int
    rows: int


UNKNOWN = KeptWindows(-(1 << 62), 1 << 62, 0)
"""Of a file of a release that kept no such things."""


@dataclass(frozen=True, slots=True)
class WindowState:
    """What a job with windows knows after a commit, and part of it.

    `definition`: the job's windows, to be compared; `columns`: of the files, one `name: type` a
    line; `watermark_us`: event time in microseconds since 1970, None before the first event;
    `files`: the partial aggregates of open windows, oldest first, by their names in the table's
    `window_folder`; `heard`: how far each partition is; `late_files`: names, there too, of this
    commit's late rows, until they are shown.
    """

    definition: str
    columns: str
    watermark_us: int | None
    files: Mapping[str, KeptWindows]
    heard: Mapping[str, Heard] = field(default_factory=dict)
    late_files: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {
            "definition": self.definition,
            "columns": self.columns,
            "watermark_us": self.watermark_us,
            "files": {name: list(one) for name, one in self.files.items()},
            "heard": {source: list(one) for source, one in self.heard.items()},
            "late_files": list(self.late_files),
        }

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> WindowState:
        """Raises KeyError, TypeError."""
        files = data["files"]
        if isinstance(files, list):
            files = {str(name): list(UNKNOWN) for name in files}
        return WindowState(
            str(data["definition"]),
            str(data["columns"]),
            None if data["watermark_us"] is None else int(data["watermark_us"]),
            {str(name): KeptWindows(*map(int, one)) for name, one in files.items()},
            {str(s): Heard(*map(int, one)) for s, one in data.get("heard", {}).items()},
            tuple(map(str, data.get("late_files", ()))),
        )


@dataclass(frozen=True, slots=True)
class Commit:
    """One batch of a job. `start` and `end` are positions of the source."""

    job: str
    run: str
    batch: int
    start: Positions
    end: Positions
    rows: int
    dead: int
    files: tuple[DataFile, ...]
    schema: str
    """Names and types of the columns, one `name: type` a line."""
    late: int = 0
    """Rows that came after a window of theirs was closed."""
    windows: WindowState | None = None
    host: str = ""
    since_ms: int = 0
    """Where the run is, and since when: milliseconds since 1970."""

    def runner(self) -> dict[str, Any]:
        """What a table keeps of the run, for `by_whom`."""
        return {"run": self.run, "host": self.host, "since_ms": self.since_ms}


def by_whom(told: Mapping[str, Any] | None) -> str:
    """The run of a commit in words: its id, its host and when it began, as far as the commit says
    so; "" where there is none."""
    if not told or not told.get("run"):
        return ""
    words = f"run {told['run']}"
    if told.get("host"):
        words += f" on {told['host']}"
    if told.get("since_ms"):
        since = datetime.fromtimestamp(int(told["since_ms"]) / 1000, UTC)
        words += f" since {since:%Y-%m-%dT%H:%M:%SZ}"
    return words


OFFSETS_MAX = 100
"""Partitions. Of a batch of more a commit's own words do not have the offsets: they would be most
of what every commit writes."""


def offsets_told(commit: Commit) -> dict[str, Any]:
    """`start` and `end` of a batch as JSON, for people to look at; nothing where they are many."""
    if len(commit.end.partitions()) > OFFSETS_MAX:
        return {}
    return {"start": commit.start.to_json(), "end": commit.end.to_json()}


@dataclass(frozen=True, slots=True)
class CommitNote:
    """What is kept of a commit. `start` and `end` are empty where they are many, in tables that
    have their offsets elsewhere."""

    sequence: int
    start: Positions
    end: Positions
    rows: int
    dead: int
    late: int = 0


class TableSink(Protocol):
    """A table that one job writes. Paths are of a file system that all executors see."""

    path: str

    def open(self, topics: Mapping[str, tuple[str, int]]) -> Positions:
        """Finish what a killed run left half done; where the next batch begins, nothing where the
        table is new. `topics`: topic → (id, partitions). Raises SinkInconsistent."""

    @property
    def sequence(self) -> int:
        """Of the last commit; 0: there is none."""

    def staging(self, run: str) -> str:
        """The folder that a run's files are written to."""

    def check(self, commit: Commit, arrow_schema: Any) -> None:
        """That the table would take the batch as it is now; changes nothing. Raises what `commit`
        does, for what can be known before anything else of the batch has been committed or sent:
        its columns, where it begins, and another run's commit in its place."""

    def commit(self, commit: Commit, arrow_schema: Any) -> None:
        """`check`, then make the batch visible, durably, and remove what killed runs have left.
        Raises CommitConflict, SinkInconsistent."""

    def last_run(self) -> str:
        """The run of the last commit that there is, as `by_whom` has it; "" where it is not
        known."""

    def notes(self) -> list[CommitNote]:
        """All commits that are known, oldest first."""

    def files(self) -> list[str]:
        """Absolute paths of the table's files."""

    def columns(self) -> str:
        """Of the table that was opened, as `table_columns` has them; "" where it has none yet."""


@runtime_checkable
class WindowSink(Protocol):
    """A table that also keeps open windows, in the same commits."""

    @property
    def windows(self) -> WindowState | None:
        """Of the last commit; None: it is not of a job with windows."""

    def window_folder(self) -> str:
        """The folder that the files of open windows are written to."""


@runtime_checkable
class SharedSink(Protocol):
    """A table that several jobs may write to."""

    def unclear_files(self) -> list[str]:
        """Where other jobs have written to it: files that do not say whose rows they have."""


OP = "_op"
ROW, DELETE, TRUNCATE = "u", "d", "t"
"""A column of staging files for upserts: that a record is the row of its key, the end of it, or the
end of all rows before it."""
FILE_BYTES = 128 << 20
"""Where a file has as many rows go on in another one."""
PART, COMMIT = "vdl_part", "vdl_commit"
"""Names of folders, as Hive names partitions."""
PART_COMMITS = 1000


def part_of(sequence: int) -> int:
    """Which part a commit is in, from 1."""
    return (sequence - 1) // PART_COMMITS + 1


def commit_folder(sequence: int) -> str:
    """Where the files of a commit are shown, below a folder of commits; with a slash behind it."""
    return f"{PART}={part_of(sequence):05d}/{COMMIT}={sequence:09d}/"


WRITER = re.compile(r"(?:(?P<job>.+)-)?(?P<run>[0-9a-f]{12})-\d+-")
"""Of the name of a file that stays as its task wrote it: the job, of newer ones, and its run."""


def file_name(sequence: int, number: int, spans: Sequence[OffsetRange]) -> str:
    """A file's name in its table: of one partition's rows, the offsets [first, end) it holds."""
    if len(spans) == 1:
        (span,) = spans
        where = f"{span.topic}-{span.partition}-{span.start:020d}-{span.end:020d}"
        return f"{sequence:09d}-{where}-{number:04d}.parquet"
    return f"{sequence:09d}-mixed-{number:04d}.parquet"


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
