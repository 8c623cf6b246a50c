"""Table as a folder of Parquet files that only ever shows whole batches.

```
<path>/vdl_part=00001/vdl_commit=000000007/000000007-flights-3-…0500-…0900-0000.parquet
                                           rows of offsets [500, 900) of partition 3
<path>/_vdl/commits/000000007.json         commit 7: its files, the offsets, the columns
<path>/_vdl/compacted/00001.json           part 1 was written again: the files it has now
<path>/_vdl/staging/<run>/…                files of a batch in progress
<path>/_vdl/windows/<job>/…                open windows, as `window_files` has them
```

A commit is its JSON file, put there by `link`, which fails if one with that number exists: of two
runs only one can write commit 7. Before it, all files are written and synced, and those that count
are moved to a folder of the commit's own; after it, this folder is renamed to its place. So one
rename shows all files of a batch: a reader that lists the table sees all of them or none, whenever
a run is killed. Opening the table finishes the rename of the last commit, so a crash leaves a batch
late, never half, and never twice. Readers that list the folder see no uncommitted file: Spark,
Arrow and Hive skip names with an underscore.

Folders are named like Hive partitions, because readers of such folders discover them by themselves.
Readers see two additional columns, `vdl_part` and `vdl_commit` (`table.commit_folder`).

A part that has all its commits can be rewritten into few files (`compact`). Its new folder is
created beside it and synced, then a JSON file records its contents, then both folders exchange
their names in one step: a reader that lists the table sees the old files or the new ones. Opening
the table finishes that step. A reader that has listed the old files and not opened them yet finds
them gone, and has to start over; none sees a row twice or misses one. Commits of a job are in later
parts, so it may run meanwhile.

Requires a file system with atomic rename and hard links that all executors share.

Does not depend on Spark or Kafka.
"""

from __future__ import annotations

import json
import os
import shutil
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vdl.pipeline.compaction import Compacted, Rewrite, Source, exchange, rewrite
from vdl.pipeline.errors import CommitConflict, PipelineError, SinkInconsistent
from vdl.pipeline.positions import Positions, TopicPositions, check_same_topics
from vdl.pipeline.table import (
    COMMIT,
    PART,
    PART_COMMITS,
    Commit,
    CommitNote,
    DataFile,
    WindowState,
    by_whom,
    commit_folder,
    file_name,
    part_of,
    sync_folder,
)
from vdl.pipeline.table_columns import change_of, grown, problem_of
from vdl.pipeline.window_files import WindowFiles

VERSION = 2
"""Version of this layout. Version 1 was that of early builds."""


class ParquetSink:
    """Sink for one job's table in this format."""

    def __init__(self, path: str, job: str) -> None:
        self.path = path
        self._root = Path(path)
        self._job = job
        self._commits = self._root / "_vdl" / "commits"
        self._sequence = 0
        self._positions = Positions()
        self._schema = ""
        self._has_committed = False
        self._window_files = WindowFiles(self._root, job)
        self._windows: WindowState | None = None

    @property
    def sequence(self) -> int:
        return self._sequence

    @property
    def windows(self) -> WindowState | None:
        return self._windows

    def window_folder(self) -> str:
        return str(self._window_files.folder())

    def open(self, topics: Mapping[str, tuple[str, int]]) -> Positions:
        numbers = self._numbers()
        self._sequence, self._positions, self._schema = 0, Positions(), ""
        self._windows = None
        if not numbers and any(self._root.glob(f"{PART}=*/{COMMIT}=*")):
            what = "has files of commits, but no commits; continuing would write rows twice"
            raise SinkInconsistent(f"{self._commits}: {self.path} {what}")
        if numbers:
            if numbers != list(range(1, len(numbers) + 1)):
                raise SinkInconsistent(f"{self._commits}: commits are missing among {numbers[-1]}")
            last = self._read(numbers[-1])
            if last["job"] != self._job:
                raise SinkInconsistent(
                    f"{self.path} belongs to the job {last['job']}, and {self._job} is new: its "
                    "rows would be written twice; use that name again, or another table"
                )
            self._sequence = numbers[-1]
            self._positions = Positions.from_json(last["end"])
            self._schema = str(last["schema"])
            found = {name: TopicPositions(topic_id, {}) for name, (topic_id, _) in topics.items()}
            check_same_topics(self._positions, Positions(found))
            if last.get("windows") is not None:
                self._windows = WindowState.from_json(last["windows"])
                self._window_files.check(self._windows)
            self._publish(last)
            if self._windows is not None:
                self._window_files.show_late(self._sequence, self._windows)
            for data in self._compacted().values():
                self._show_compacted(data)
        return self._positions

    def staging(self, run: str) -> str:
        folder = self._root / "_vdl" / "staging" / run
        if not folder.exists():
            folder.mkdir(parents=True)
            # A commit names files in this folder: the path to them must survive a power cut, too.
            for above in (folder.parent, self._root / "_vdl", self._root, self._root.parent):
                sync_folder(above)
        return str(folder)

    def check(self, commit: Commit, arrow_schema: Any) -> None:
        taken = {PART, COMMIT} & set(arrow_schema.names)
        if taken:
            raise SinkInconsistent(f"{self.path}: {', '.join(sorted(taken))} is a name of folders")
        change = change_of(self._schema, commit.schema)
        if change.breaking:
            raise SinkInconsistent(f"{self.path}: {problem_of(change)}")
        if not commit.start.goes_on_from(self._positions):
            raise CommitConflict(self.path, "the batch does not begin at the end of the table")
        if self._place(self._sequence + 1).exists():
            raise self._taken(self._sequence + 1)
        if self._sequence and not self._place(self._sequence).exists():
            raise SinkInconsistent(f"{self.path}: the table was removed while the job ran")

    def commit(self, commit: Commit, arrow_schema: Any) -> None:
        self.check(commit, arrow_schema)
        sequence = self._sequence + 1
        known = self._schema or commit.schema
        columns = grown(known, change_of(known, commit.schema))
        data = {
            "version": VERSION,
            "sequence": sequence,
            "job": commit.job,
            **commit.runner(),
            "batch": commit.batch,
            "start": commit.start.to_json(),
            "end": commit.end.to_json(),
            "rows": commit.rows,
            "dead": commit.dead,
            "late": commit.late,
            "windows": None if commit.windows is None else commit.windows.to_json(),
            "schema": columns,
            "files": self._prepared(commit.files, commit.run, sequence),
        }
        # Listed before the commit: a run that has begun by now will be refused. Removed after it,
        # when runs may have begun that will not be.
        scrap = [] if self._has_committed else self._left_by_others(commit.run)
        outdated: list[Path] = []
        if commit.windows is not None:
            self._window_files.sync()
            outdated = self._window_files.others(commit.windows)
        self._link(data, sequence)
        self._publish(data)
        if commit.windows is not None:
            self._window_files.show_late(sequence, commit.windows)
        self._window_files.remove(outdated)
        for path in scrap:
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)
        self._has_committed = True
        self._sequence, self._positions = sequence, commit.end
        self._schema, self._windows = columns, commit.windows

    def _prepared(self, files: Sequence[DataFile], run: str, sequence: int) -> list[dict[str, Any]]:
        """Move the files to where they are published from; return their entries in a commit.

        The moves are durable. Raises CommitConflict.
        """
        names = [file_name(sequence, number, file.spans) for number, file in enumerate(files)]
        staged = [Path(file.path) for file in files]
        folder = commit_folder(sequence)
        try:
            if files:
                # Files of failed task attempts remain in the staging folder.
                ready = Path(self.staging(run)) / f"{COMMIT}={sequence:09d}"
                ready.mkdir(exist_ok=True)
                for path, name in zip(staged, names, strict=True):
                    path.rename(ready / name)
                staged = [ready / name for name in names]
                sync_folder(ready.parent)
            for parent in sorted({path.parent for path in staged}):
                sync_folder(parent)
        except FileNotFoundError:
            what = "another run has committed, and removed the files of this one"
            raise CommitConflict(self.path, what, self.last_run()) from None
        return [
            {
                "staged": str(path.relative_to(self._root)),
                "name": f"{folder}{name}",
                "rows": file.rows,
                "bytes": file.bytes,
                "spans": [[s.topic, s.partition, s.start, s.end] for s in file.spans],
            }
            for file, path, name in zip(files, staged, names, strict=True)
        ]

    def _left_by_others(self, run: str) -> list[Path]:
        """Return other runs' staged files, and commits that were written but not linked."""
        own = self._root / "_vdl"
        staged = [path for path in own.glob("staging/*") if path.name != run]
        return [*staged, *own.glob("commit-*.tmp")]

    def _link(self, data: Mapping[str, Any], sequence: int) -> None:
        """Link the commit file to its place unless one is there. Raises CommitConflict."""
        # Named by the run: processes of two containers may have the same id, and once linked, a
        # file of this name is the commit.
        if not self._commits.exists():
            self._commits.mkdir(parents=True)
            for above in (self._commits.parent, self._root, self._root.parent):
                sync_folder(above)
        temporary = self._root / "_vdl" / f"commit-{data['run']}-{sequence}.tmp"
        with temporary.open("x", encoding="utf-8") as file:
            json.dump(data, file)
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(temporary, self._place(sequence))
        except FileExistsError:
            raise self._taken(sequence) from None
        except FileNotFoundError:
            what = "another run has committed, and removed files that this one was about to commit"
            raise CommitConflict(self.path, what, self.last_run()) from None
        finally:
            temporary.unlink(missing_ok=True)
        sync_folder(self._commits)

    def _place(self, sequence: int) -> Path:
        return self._commits / f"{sequence:09d}.json"

    def _taken(self, sequence: int) -> CommitConflict:
        return CommitConflict(self.path, f"commit {sequence} exists already", self.last_run())

    def _publish(self, data: Mapping[str, Any]) -> None:
        """Show the files of a commit, as far as that has not been done."""
        if not data["files"]:
            return
        one = data["files"][0]
        staged, target = (self._root / one["staged"]).parent, (self._root / one["name"]).parent
        target.parent.mkdir(exist_ok=True)
        try:
            staged.rename(target)
        except FileNotFoundError:
            if not target.exists():
                raise SinkInconsistent(f"{target} of a commit is missing") from None
        sync_folder(target.parent)
        sync_folder(self._root)

    def last_run(self) -> str:
        numbers = self._numbers()
        return by_whom(self._read(numbers[-1])) if numbers else ""

    def notes(self) -> list[CommitNote]:
        return [
            CommitNote(
                number,
                Positions.from_json(data["start"]),
                Positions.from_json(data["end"]),
                int(data["rows"]),
                int(data["dead"]),
                int(data.get("late", 0)),
            )
            for number in self._numbers()
            for data in [self._read(number)]
        ]

    def columns(self) -> str:
        return self._schema

    def files(self) -> list[str]:
        compacted = self._compacted()
        names = [file["name"] for data in compacted.values() for file in data["files"]]
        names += [
            file["name"]
            for number in self._numbers()
            if part_of(number) not in compacted
            for file in self._read(number)["files"]
        ]
        return [str(self._root / name) for name in names]

    def compact(self, bytes_target: int) -> Compacted:
        done = Compacted()
        compacted = self._compacted()
        for part in range(1, part_of(self._sequence + 1)):
            if part not in compacted:
                done += self._compact_part(part, bytes_target)
        return done

    def _compact_part(self, part: int, bytes_target: int) -> Compacted:
        """Rewrite a part that gets no further commit."""
        first, last = (part - 1) * PART_COMMITS + 1, part * PART_COMMITS
        names = [file["name"] for n in range(first, last + 1) for file in self._read(n)["files"]]
        if len(names) < 2:
            return Compacted()
        staging = self._root / "_vdl" / "compacting" / uuid.uuid4().hex
        folder = staging / commit_folder(last)
        folder.mkdir(parents=True)
        sources = tuple(Source(str(self._root / name)) for name in names)
        files = rewrite(Rewrite(sources, str(folder), f"{last:09d}-compacted", bytes_target))
        sync_folder(folder.parent)
        sync_folder(staging)
        rows = sum(self._read(n)["rows"] for n in range(first, last + 1))
        assert sum(file.rows for file in files) == rows, (part, rows)
        data = {
            "part": part,
            "staged": str(folder.parent.relative_to(self._root)),
            "files": [
                {
                    "name": f"{commit_folder(last)}{Path(file.path).name}",
                    "rows": file.rows,
                    "bytes": file.bytes,
                }
                for file in files
            ],
        }
        manifests = self._root / "_vdl" / "compacted"
        manifests.mkdir(exist_ok=True)
        temporary = staging / "manifest.json"
        with temporary.open("x", encoding="utf-8") as file:
            json.dump(data, file)
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(temporary, manifests / f"{part:05d}.json")
        except FileExistsError:
            shutil.rmtree(staging)
            raise PipelineError(f"{self.path}: another process is compacting it") from None
        sync_folder(manifests)
        self._show_compacted(data)
        return Compacted(before=len(names), after=len(files))

    def _show_compacted(self, data: Mapping[str, Any]) -> None:
        """Exchange a part's folder for its new one, as far as that has not been done."""
        staged = self._root / data["staged"]
        target = self._root / data["files"][0]["name"]
        if target.exists() or not staged.exists():
            return
        exchange(staged, target.parent.parent)
        shutil.rmtree(staged.parent, ignore_errors=True)

    def _compacted(self) -> dict[int, dict[str, Any]]:
        """Return part → manifest of its compaction."""
        folder = self._root / "_vdl" / "compacted"
        if not folder.exists():
            return {}
        found = (json.loads(path.read_text(encoding="utf-8")) for path in folder.glob("*.json"))
        return {int(data["part"]): data for data in found}

    def vacuum(self, retain_hours: int) -> Compacted:
        """Remove files of killed compactions; files of runs are removed by the next commit."""
        removed = 0
        edge = time.time() - retain_hours * 3600
        kept = {
            data["staged"].split("/")[2]
            for data in self._compacted().values()
            if not (self._root / data["files"][0]["name"]).exists()
        }
        for folder in (self._root / "_vdl" / "compacting").glob("*"):
            if folder.stat().st_mtime < edge and folder.name not in kept:
                removed += sum(path.is_file() for path in folder.rglob("*"))
                shutil.rmtree(folder, ignore_errors=True)
        return Compacted(removed=removed)

    def _numbers(self) -> list[int]:
        if not self._commits.exists():
            return []
        return sorted(int(path.stem) for path in self._commits.glob("*.json"))

    def _read(self, number: int) -> dict[str, Any]:
        path = self._place(number)
        try:
            data: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise SinkInconsistent(f"{path} cannot be read: {error}") from error
        if data.get("version") != VERSION:
            what = f"has version {data.get('version')} of the layout, not {VERSION}"
            raise SinkInconsistent(f"{path} {what}: begin a new table")
        return data
