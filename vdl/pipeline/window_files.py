"""The files of open windows below a table, and when an older one may go.

```
<table>/_vdl/windows/<job>/<run>-<batch>-open-….parquet   partial aggregates of the open windows
<table>/_vdl/windows/<job>/<mark>.json                    of a Delta table: what a commit stands for
```

A file is written and synced under a name of its own before the commit that names it, so a commit
never names what is not there. It is of no use once a later commit is durable. What may be removed
is *listed before* a commit and *removed after* it: a file that was there before commit n can be
named by commits up to n only, since a later one is written by a run that has seen n. So a run that
is taken for dead between its commit and the removal removes nothing of its successor's. Whatever a
crash leaves is on the next commit's list.

Must not know: Spark, Kafka, formats of tables.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterable
from pathlib import Path

from vdl.pipeline.errors import SinkInconsistent
from vdl.pipeline.table import WindowState, sync_folder


class WindowFiles:
    """Those of one job. Readers who list the table's folder do not see them."""

    def __init__(self, root: Path, job: str) -> None:
        self._root = root
        self._folder = root / "_vdl" / "windows" / job

    def folder(self) -> Path:
        """Made, durably, where it is not there yet."""
        if not self._folder.exists():
            self._folder.mkdir(parents=True)
            above = self._folder.parent
            while above != self._root.parent:
                sync_folder(above)
                above = above.parent
            sync_folder(self._root.parent)
        return self._folder

    def check(self, state: WindowState) -> None:
        """That all files of a state are there. Raises SinkInconsistent."""
        missing = [name for name in state.files if not (self._folder / name).exists()]
        if missing:
            raise SinkInconsistent(f"{self._folder}: files of open windows are missing: {missing}")

    def sync(self) -> None:
        """Make the names durable, before a commit has them."""
        sync_folder(self.folder())

    def write_state(self, mark: int, state: WindowState) -> str:
        """Put what a commit stands for beside its files, durably; the name."""
        path = self.folder() / f"{mark}.json"
        with path.open("x", encoding="utf-8") as file:
            json.dump(state.to_json(), file)
            file.flush()
            os.fsync(file.fileno())
        return path.name

    def read_state(self, mark: int) -> WindowState:
        """Raises SinkInconsistent."""
        path = self._folder / f"{mark}.json"
        try:
            return WindowState.from_json(json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError, KeyError) as error:
            raise SinkInconsistent(f"{path}: the table's windows cannot be read: {error}") from None

    def others(self, names: Collection[str]) -> list[Path]:
        """All but those; to be asked before the commit, see above."""
        return [path for path in self.folder().iterdir() if path.name not in names]

    def remove(self, paths: Iterable[Path]) -> None:
        """Only once a commit that does without them is durable."""
        for path in paths:
            path.unlink(missing_ok=True)
