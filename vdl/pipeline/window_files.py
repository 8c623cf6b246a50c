"""Files of open windows below a table, and the rule for removing old ones.

```
<table>/_vdl/windows/<job>/<run>-<batch>-open-….parquet   partial aggregates of the open windows
<table>/_vdl/windows/<job>/<run>-<batch>-late-….parquet   late rows of a batch in progress
<table>/_vdl/windows/<job>/<mark>.json                    of a Delta table: state of a commit
<table>-late/<job>/vdl_part=…/vdl_commit=…/…              late rows, for readers
```

A file is written and synced under a name of its own before the commit that names it, so a commit
never names a missing file. It is obsolete once a later commit is durable. Removable files are
*listed before* a commit and *removed after* it: a file that existed before commit n can be named by
commits up to n only, since a later one is written by a run that has seen n. So a run that is
assumed dead between its commit and the removal removes nothing of its successor's. Files left by a
crash are on the next commit's list.

Late rows are named by the commit of their batch, too, and shown after it, all of a commit by one
rename. Opening the table repeats that for the last commit, so they are shown once.

Does not depend on Spark, Kafka, or table formats.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path

from vdl.pipeline.errors import SinkInconsistent
from vdl.pipeline.table import (
    UNKNOWN,
    KeptWindows,
    WindowState,
    commit_folder,
    sync_folder,
)


class WindowFiles:
    """Window files of one job. Readers that list the table's folder do not see them."""

    def __init__(self, root: Path, job: str) -> None:
        self._root = root
        self._folder = root / "_vdl" / "windows" / job
        self._late = root.parent / f"{root.name}-late" / job

    def folder(self) -> Path:
        """Return the folder, created durably if it does not exist."""
        if not self._folder.exists():
            self._folder.mkdir(parents=True)
            above = self._folder.parent
            while above != self._root.parent:
                sync_folder(above)
                above = above.parent
            sync_folder(self._root.parent)
        return self._folder

    def check(self, state: WindowState) -> None:
        """Raise SinkInconsistent if a file of the state is missing."""
        missing = [name for name in state.files if not (self._folder / name).exists()]
        if missing:
            raise SinkInconsistent(f"{self._folder}: files of open windows are missing: {missing}")

    def show_late(self, sequence: int, state: WindowState) -> None:
        """Move the late rows of commit `sequence` to the readers' folder, unless that is done."""
        if not state.late_files:
            return
        target = self._late / commit_folder(sequence)
        ready = self.folder() / f"late-{sequence}"
        if target.exists():
            return
        ready.mkdir(exist_ok=True)
        for name in state.late_files:
            staged = self._folder / name
            if staged.exists():
                staged.rename(ready / name)
        sync_folder(ready)
        target.parent.mkdir(parents=True, exist_ok=True)
        ready.rename(target)
        above = target.parent
        while above != self._root.parent:
            sync_folder(above)
            above = above.parent
        sync_folder(self._root.parent)

    def sync(self) -> None:
        """Make the names durable, before a commit has them."""
        sync_folder(self.folder())

    def write_state(self, mark: int, state: WindowState) -> str:
        """Write a commit's state beside its files, durably; return the file's name."""
        path = self.folder() / f"{mark}.json"
        with path.open("x", encoding="utf-8") as file:
            json.dump(state.to_json(), file)
            file.flush()
            os.fsync(file.fileno())
        return path.name

    def read_state(self, mark: int) -> WindowState:
        """Read a commit's state. Raises SinkInconsistent."""
        path = self._folder / f"{mark}.json"
        try:
            return WindowState.from_json(json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise SinkInconsistent(
                f"{path}: the windows of the table cannot be read: {error}"
            ) from None

    def others(self, state: WindowState, *more: str) -> list[Path]:
        """Return all files that are not in a state; call before the commit, see above."""
        names = {*state.files, *state.late_files, *more}
        return [p for p in self.folder().iterdir() if p.name not in names and p.is_file()]

    def remove(self, paths: Iterable[Path]) -> None:
        """Remove files. Call only after a commit that does not need them is durable."""
        for path in paths:
            path.unlink(missing_ok=True)


def span_of(path: str) -> KeptWindows:
    """Return the windows and rows of a file of partial aggregates, from its own statistics."""
    import pyarrow.parquet as pq

    told = pq.ParquetFile(path).metadata
    groups = [told.row_group(n).column(0) for n in range(told.num_row_groups)]
    assert all(one.path_in_schema == "window" for one in groups), path
    if not told.num_rows or not all(one.is_stats_set for one in groups):
        return UNKNOWN
    low = min(int(one.statistics.min) for one in groups)
    high = max(int(one.statistics.max) for one in groups)
    return KeptWindows(low, high, int(told.num_rows))
