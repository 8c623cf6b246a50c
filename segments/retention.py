"""Deleting what lies below a log's first index: whole segments and whole index files.

The new first index is durable in the journal before any file goes, so a crash in between leaves
files that the next start removes. Which index that is, by age or size, is the owner's decision.

Must not know: policies, the loop.
"""

from __future__ import annotations

from collections.abc import Sequence

from segments import failpoint
from segments.names import segment_number
from segments.segment import LogFiles, SegmentInfo


def remove_below(files: LogFiles, segments: Sequence[SegmentInfo], first_index: int) -> None:
    """Remove `segments`, and the index files that only describe entries below `first_index`.

    Oldest first, so that what a crash leaves is still one run of segments. Blocks.
    """
    failpoint.hit("trim.begun")
    for segment in segments:
        path = files.segment_path(segment.number)
        if files.fs.exists(path):
            files.fs.unlink(path)
            failpoint.hit("trim.removed")
    if segments:
        below = segments[-1].number, first_index // files.index_entries
        for name in files.fs.list(files.directory):
            kind, number = segment_number(name) or ("", 0)
            path = f"{files.directory}/{name}"
            if kind == "index" and number < below[1] and not files.fs.is_directory(path):
                files.fs.unlink(path)
        files.fs.sync_directory(files.directory)
