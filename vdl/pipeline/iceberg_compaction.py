"""Which files of an Iceberg table are written again, and whether they are still the table's.

Small files are written again together, within a partition; a large file by itself where more than
DELETED_SHARE_MAX of it is deleted. The new files have no deleted rows.

Writing them takes a while, and the job that the table is of may commit meanwhile. Where it has
deleted a row of a file, the file that was made of it would bring the row back: such a group is not
committed, and is for the next compaction.

Must not know: Spark, Kafka, how commits are made.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pyiceberg.table import Table

from vdl.pipeline.compaction import Rewrite, Source, Written, bins
from vdl.pipeline.file_columns import Column
from vdl.pipeline.iceberg_files import local_path
from vdl.pipeline.iceberg_snapshot import LiveFile, live_files, shared_by_rows

DELETED_SHARE_MAX = 0.05
GROUPS_MAX = 16
"""Groups of files that are rewritten before a commit shows the results."""


@dataclass(frozen=True, slots=True)
class Group:
    """Files of one partition that are written again together. `new`: what was made of them;
    `shared`: columns with one value, which the files need not have."""

    files: Sequence[LiveFile]
    shared: tuple[tuple[str, Any], ...] = ()
    new: Sequence[Written] = field(default_factory=tuple)

    @property
    def rows_min(self) -> int:
        """Rows that are not deleted, or more if another writer has repeated deleted ones."""
        return sum(int(one.data.record_count) - one.deleted for one in self.files)

    def rewrite(
        self,
        folder: str,
        prefix: str,
        bytes_target: int,
        columns: tuple[Column, ...],
        storage: Mapping[str, str],
    ) -> Rewrite:
        sources = [
            Source(*(local_path(file.file_path) for file in one.files)) for one in self.files
        ]
        return Rewrite(tuple(sources), folder, prefix, bytes_target, columns, self.shared, storage)


def plan(table: Table, live: Sequence[LiveFile], bytes_target: int) -> list[Group]:
    """Return which of a table's live files are to be written again.

    A table may have had several partition specs. A file is in a partition of one of them.
    """
    by_partition: dict[tuple[Any, ...], list[LiveFile]] = {}
    for one in live:
        values = (one.data.partition[n] for n in range(len(one.data.partition)))
        by_partition.setdefault((one.data.spec_id, *values), []).append(one)
    found = []
    for files in by_partition.values():
        shared = shared_by_rows(table, files[0].data)
        together = bins([(one, _live_bytes(one)) for one in files], bytes_target)
        found += [Group(group, shared) for group in together]
        planned = {one.name for group in together for one in group}
        found += [
            Group([one], shared)
            for one in files
            if one.name not in planned
            and one.deleted > DELETED_SHARE_MAX * int(one.data.record_count)
        ]
    return found


def _live_bytes(one: LiveFile) -> int:
    rows = max(1, int(one.data.record_count))
    return int(one.data.file_size_in_bytes) * (rows - one.deleted) // rows


def still_there(groups: Sequence[Group], table: Table) -> tuple[list[Group], list[Group]]:
    """Return the groups whose files are as they were when they were read, and the others."""
    live = {one.name for one in live_files(table)}
    kept = [group for group in groups if all(one.name in live for one in group.files)]
    return kept, [group for group in groups if group not in kept]
