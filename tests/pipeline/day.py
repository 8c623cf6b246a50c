"""A day of one-second commits into a table, without Spark, to measure commits over time.

    python -m tests.pipeline.day --kind delta --commits 86400

A commit has one small file. Every `--compact-every` commits the table is compacted and vacuumed, as
by a job with `run.compact_every`. Commits run as fast as possible, so an hour of a Delta table's
log is shortened as time is: `--seconds` is the duration of a second of the day. Each line covers an
equal part of the day: processor and wall time of a commit and of the compactions, live files, files
of the log. A commit should take as long at the end as at the beginning. At the end the table is
reopened and its rows are counted. `--plot FILE.svg` draws them.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from matplotlib import rc_context
from matplotlib.figure import Figure

from vdl.pipeline import delta_table
from vdl.pipeline.compaction import BYTES_TARGET, RETAIN_HOURS
from vdl.pipeline.open_table import open_table
from vdl.pipeline.positions import OffsetRange, Positions, TopicPositions
from vdl.pipeline.table import Commit, DataFile
from vdl.pipeline.table_columns import schema_lines

COLUMNS = pa.schema([("n", pa.int64()), ("_partition", pa.int32()), ("_offset", pa.int64())])
TOPICS = {"t": ("id", 1)}
LINES = 20


@dataclass(slots=True)
class Part:
    """Part of the day. Times in ms."""

    commits: int
    cpu: float
    wall: float
    live: int
    log: int
    compact_ms: float

    def line(self) -> str:
        return (
            f"{self.commits:6d} commits: {self.cpu:6.1f} CPU-ms, {self.wall:6.1f} ms a commit, "
            f"{self.live:5d} live files, {self.log:5d} of the log, "
            f"compactions {self.compact_ms:7.0f} CPU-ms"
        )


def at(offset: int) -> Positions:
    return Positions({"t": TopicPositions("id", {0: offset})})


def commit_one(table: Any, number: int) -> None:
    path = f"{table.staging('r')}/job-0123456789ab-{number}-0.parquet"
    pq.write_table(pa.table([[number], [0], [number]], schema=COLUMNS), path)
    span = (OffsetRange("t", 0, number, number + 1),)
    file = DataFile(path, 1, Path(path).stat().st_size, span)
    start, end = at(number), at(number + 1)
    lines = schema_lines(COLUMNS)
    table.commit(Commit("job", "r", number, start, end, 1, 0, (file,), lines), COLUMNS)


def live(kind: str, commits: int, compact_every: int, folder: Path) -> list[Part]:
    """Run all commits and print each part.

    Raises AssertionError if a row is missing or duplicated.
    """
    table: Any = open_table(kind, str(folder / "t"), "job")
    table.open(TOPICS)
    log = folder / "t" / ("_delta_log" if kind == "delta" else "metadata")
    parts: list[Part] = []
    cpu, wall, compact = time.process_time(), time.monotonic(), 0.0
    each = max(1, commits // LINES)
    for number in range(commits):
        commit_one(table, number)
        if (number + 1) % compact_every == 0:
            began, began_wall = time.process_time(), time.monotonic()
            table.compact(BYTES_TARGET)
            table.vacuum(RETAIN_HOURS)
            took = time.process_time() - began
            compact += took
            cpu, wall = cpu + took, wall + time.monotonic() - began_wall
        if (number + 1) % each == 0:
            spent, waited = time.process_time() - cpu, time.monotonic() - wall
            part = Part(
                number + 1, spent * 1000 / each, waited * 1000 / each, len(table.files()),
                len(list(log.iterdir())) if log.exists() else 0, compact * 1000,
            )  # fmt: skip
            print(part.line(), flush=True)
            parts.append(part)
            cpu, wall, compact = time.process_time(), time.monotonic(), 0.0
    again: Any = open_table(kind, str(folder / "t"), "job")
    assert again.open(TOPICS) == at(commits)
    numbers = sorted(n for path in again.files() for n in pq.read_table(path)["n"].to_pylist())
    assert numbers == list(range(commits))
    return parts


def draw(parts: list[Part], path: Path) -> None:
    """Draw the cost of a commit and the number of files over the day."""
    commits = [part.commits for part in parts]
    figure = Figure(figsize=(8.0, 3.2))
    cost, files = figure.subplots(1, 2)
    cost.plot(commits, [part.cpu for part in parts])
    cost.set_ylabel("CPU-ms a commit")
    files.plot(commits, [part.live for part in parts], label="of the table")
    files.plot(commits, [part.log for part in parts], label="of its log")
    files.set_ylabel("files")
    files.legend(frameon=False)
    for axes in (cost, files):
        axes.set_xlabel("commits")
        axes.set_ylim(bottom=0)
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(linewidth=0.4)
    # Without a date and random names, the same figures make the same file.
    with rc_context({"svg.hashsalt": path.stem}):
        figure.savefig(path, bbox_inches="tight", metadata={"Date": None})


def main() -> int:
    parser = argparse.ArgumentParser(description="A day of one-second commits.")
    parser.add_argument("--kind", choices=["delta", "iceberg"], default="delta")
    parser.add_argument("--commits", type=int, default=86_400)
    parser.add_argument("--compact-every", type=int, default=500)
    parser.add_argument("--seconds", type=float, default=0.05)
    parser.add_argument("--plot", type=Path)
    options = parser.parse_args()
    kept = max(1, round(3600 * options.seconds))
    delta_table.PROPERTIES = {"delta.logRetentionDuration": f"interval {kept} seconds"}
    folder = Path(mkdtemp(prefix="vdl-day-"))
    try:
        parts = live(options.kind, options.commits, options.compact_every, folder)
    finally:
        shutil.rmtree(folder)
    if options.plot:
        draw(parts, options.plot)
    half = len(parts) // 2
    early = sorted(part.cpu for part in parts[1:half])[len(parts[1:half]) // 2]
    late = sorted(part.cpu for part in parts[half:])[len(parts[half:]) // 2]
    print(f"a commit: {early:.1f} CPU-ms in the first half (median), {late:.1f} in the second")
    return 0


if __name__ == "__main__":
    sys.exit(main())
