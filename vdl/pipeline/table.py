"""Common part of the sinks: commits of files together with the offsets they stand for.

A table is written in commits, numbered from 1 for each job. A commit holds the files of one batch
and, for every partition, the offset at which the next batch begins; both become visible in one step
or not at all. Because the offsets are the table's own, no other state is needed: a run that opens
the table continues from there, whatever happened to Spark's checkpoint.

A commit is refused (CommitConflict) if the table is not as this run left it. So of two runs of the
same job, one of which was wrongly assumed dead, only one can write, and no row is written twice.

Does not depend on Spark or Kafka.
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
    """Place of a table.

    `path`: of its files, a folder or a URL; `storage`: settings of an object store, as returned by
    `storage.resolved_settings`; `catalog` and `name`: of an Iceberg table, PyIceberg's settings and
    `namespace.table`.
    """

    kind: str
    path: str
    storage: Mapping[str, str] = field(default_factory=dict)
    catalog: Mapping[str, str] = field(default_factory=dict)
    name: str = ""
    partition_by: tuple[PartitionField, ...] = ()
    key: tuple[str, ...] = ()
    """Columns for whose values the table has one row each; none: rows are appended."""


@dataclass(frozen=True, slots=True)
class DataFile:
    """Finished file in the table's staging folder.

    `spans`: for each partition, the first offset of its rows and the one after the last, as far as
    rows carry them; `stats`: of its columns, as in `file_stats`.
    """

    path: str
    rows: int
    bytes: int
    spans: tuple[OffsetRange, ...] = ()
    stats: Mapping[str, Any] = field(default_factory=dict)
    partition: tuple[Any, ...] = ()
    """Value for each field that the table is partitioned by; None is NULL."""


class KeptWindows(NamedTuple):
    """File of partial aggregates.

    Has the starts of its first and last window, in microseconds, and its number of rows. Some of
    its windows may be closed by now.
    """

    first: int
    last: int
    rows: int


UNKNOWN = KeptWindows(-(1 << 62), 1 << 62, 0)
"""Value for a file of a release that recorded no such numbers."""


@dataclass(frozen=True, slots=True)
class WindowState:
    """State of a job with windows after a commit, as part of it.

    `definition`: the job's windows, for comparison; `columns`: of the files, one `name: type` a
    line; `watermark_us`: event time in microseconds since 1970, None before the first event;
    `files`: the partial aggregates of open windows, oldest first, by their names in the table's
    `window_folder`; `heard`: progress of each partition; `late_files`: names, in the same folder,
    of this commit's late rows, until they are shown.
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
        """Parse a state. Raises KeyError, TypeError."""
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
    """Number of rows that arrived after one of their windows was closed."""
    windows: WindowState | None = None
    host: str = ""
    since_ms: int = 0
    """Start of the run on `host`, in milliseconds since 1970."""

    def runner(self) -> dict[str, Any]:
        """Return the facts about the run that a table keeps, for `by_whom`."""
        return {"run": self.run, "host": self.host, "since_ms": self.since_ms}


def by_whom(told: Mapping[str, Any] | None) -> str:
    """Return the run of a commit as text: its id, its host and its start, as far as recorded.

    Returns "" if there is none.
    """
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
"""Limit on partitions of a batch whose offsets are part of a commit's description.

More would be most of what every commit writes.
"""


def offsets_told(commit: Commit) -> dict[str, Any]:
    """Return `start` and `end` of a batch as JSON, for people to read; empty beyond OFFSETS_MAX."""
    if len(commit.end.partitions()) > OFFSETS_MAX:
        return {}
    return {"start": commit.start.to_json(), "end": commit.end.to_json()}


@dataclass(frozen=True, slots=True)
class CommitNote:
    """Recorded facts of a commit.

    `start` and `end` are empty beyond OFFSETS_MAX, in tables that have their offsets elsewhere.
    """

    sequence: int
    start: Positions
    end: Positions
    rows: int
    dead: int
    late: int = 0


class TableSink(Protocol):
    """Table that one job writes. Paths are on a file system that all executors see."""

    path: str

    def open(self, topics: Mapping[str, tuple[str, int]]) -> Positions:
        """Finish what a killed run left incomplete; return the start of the next batch.

        Empty if the table is new. `topics`: topic → (id, partitions). Raises SinkInconsistent.
        """

    @property
    def sequence(self) -> int:
        """Number of the last commit; 0 if there is none."""

    def staging(self, run: str) -> str:
        """Return the folder that a run's files are written to."""

    def check(self, commit: Commit, arrow_schema: Any) -> None:
        """Check that the table would accept the batch as it is now, without changes.

        Raises the errors of `commit` that can be known before anything else of the batch is
        committed or sent: its columns, its start, and another run's commit in its place.
        """

    def commit(self, commit: Commit, arrow_schema: Any) -> None:
        """`check`, then make the batch visible, durably, and remove files of killed runs.

        Raises CommitConflict, SinkInconsistent.
        """

    def last_run(self) -> str:
        """Return the run of the last commit, in the form of `by_whom`; "" if it is not known."""

    def notes(self) -> list[CommitNote]:
        """Return all known commits, oldest first."""

    def files(self) -> list[str]:
        """Return absolute paths of the table's files."""

    def columns(self) -> str:
        """Return the columns of an open table, in the form of `table_columns`.

        "" if it has none yet.
        """


@runtime_checkable
class WindowSink(Protocol):
    """Table that also keeps open windows, in the same commits."""

    @property
    def windows(self) -> WindowState | None:
        """State of the last commit; None if it is not of a job with windows."""

    def window_folder(self) -> str:
        """Return the folder that the files of open windows are written to."""


@runtime_checkable
class SharedSink(Protocol):
    """Table that several jobs may write to."""

    def unclear_files(self) -> list[str]:
        """Return files that do not record whose rows they have, if other jobs have written here."""


OP = "_op"
ROW, DELETE, TRUNCATE = "u", "d", "t"
"""Values of a column of staging files for upserts.

The record is the row of its key, the deletion of it, or the deletion of all rows before it.
"""
FILE_BYTES = 128 << 20
"""Size at which rows continue in another file."""
PART, COMMIT = "vdl_part", "vdl_commit"
"""Names of folders, in the form of Hive partitions."""
PART_COMMITS = 1000


def part_of(sequence: int) -> int:
    """Return the part of a commit, from 1."""
    return (sequence - 1) // PART_COMMITS + 1


def commit_folder(sequence: int) -> str:
    """Return the path of a commit's files below the folder of all commits, with a final slash."""
    return f"{PART}={part_of(sequence):05d}/{COMMIT}={sequence:09d}/"


WRITER = re.compile(r"(?P<job>.+)-[0-9a-f]{12}-\d+-")
"""Start of a file name given by a task: the job, and the run."""


def file_name(sequence: int, number: int, spans: Sequence[OffsetRange]) -> str:
    """Return a file's name in its table.

    The name has the offsets [first, end) of its rows if they are of one partition.
    """
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
