"""Job state of a Delta table's commit, in a file that the commit names.

```
<table>/_vdl/state/<job>/<mark>.json    the next offsets, and the account, as of one commit
```

A Delta transaction is a name and a number, so offsets of thousands of partitions would be as many
transactions in each commit. Instead the number is the mark of a file. The file is written and
synced before the commit, under a name that no other run can choose, and is obsolete once a later
commit is durable: then it is removed. As for the files of open windows, removable files are listed
before a commit and removed after it.

Does not depend on Spark, Kafka or Delta.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Iterable
from pathlib import Path

from vdl.pipeline.errors import SinkInconsistent
from vdl.pipeline.job_state import JobState
from vdl.pipeline.storage import Storage

MARK = re.compile(r"(\d+)\.json")
MARK_BITS = 31
"""Random bits of a mark: two runs that try the same commit must not share a file's name."""


def new_mark(sequence: int) -> int:
    """Return a mark for one attempt at the commit of that number."""
    return sequence << MARK_BITS | secrets.randbits(MARK_BITS)


def sequence_of(mark: int) -> int:
    return mark >> MARK_BITS


class StateFiles:
    """State files of one job."""

    def __init__(self, root: str, job: str, storage: Storage) -> None:
        self._storage = storage
        self._all = f"{root}/_vdl/state"
        self._folder = f"{self._all}/{job}"

    def write(self, mark: int, state: JobState) -> str:
        """Write a state durably; return its path. Raises FileExistsError in a folder."""
        self._storage.make_folder(self._folder)
        path = f"{self._folder}/{mark}.json"
        self._storage.put(path, json.dumps(state.to_json()).encode())
        return path

    def read(self, mark: int) -> JobState:
        """Read a state. Raises SinkInconsistent."""
        path = f"{self._folder}/{mark}.json"
        try:
            return JobState.from_json(json.loads(self._storage.get(path)))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise SinkInconsistent(f"{path}: the job's state cannot be read: {error}") from None

    def jobs(self) -> set[str]:
        """Return the names of all jobs that have such files in the table."""
        return {Path(one.path).parent.name for one in self._storage.entries(self._all)}

    def marks(self) -> list[int]:
        """Return the marks of all files, including those of commits that were never made."""
        names = [Path(one.path).name for one in self._storage.entries(self._folder)]
        return [int(found[1]) for name in names if (found := MARK.fullmatch(name))]

    def others(self, path: str) -> list[str]:
        """Return all other files; call before the commit, and remove them after it."""
        # By name: a store may list a path in another form than it was written under.
        known = Path(path).name
        return [
            one.path for one in self._storage.entries(self._folder) if Path(one.path).name != known
        ]

    def remove(self, paths: Iterable[str]) -> None:
        for path in paths:
            self._storage.remove(path)
