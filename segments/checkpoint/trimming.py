"""Deleting what lies below a log's first index: whole segments and whole index files.

The new first index is durable in the journal before any file goes, so a crash in between leaves
files that the next start removes. Which index that is, by age or size, is the owner's decision.

Must not know: policies, the loop.
"""

from __future__ import annotations

from collections.abc import Sequence

from ids import Index
from segments.checkpoint.flusher import Pulse
from segments.format.names import segment_number
from segments.io import failpoint
from segments.io.removals import FILES_AT_ONCE
from segments.log.segment import LogFiles
from segments.log.segment_header import SegmentInfo


class RemoveBelow:
    """Removes `segments`, and the index files that only describe entries below `first_index`, so
    many at each call; True as long as there are more. `pulse` counts them.

    Oldest first, so that what a crash leaves is still one run of segments. Blocks.
    """

    def __init__(
        self,
        files: LogFiles,
        segments: Sequence[SegmentInfo],
        first_index: Index,
        pulse: Pulse,
        *,
        files_max: int = FILES_AT_ONCE,
    ) -> None:
        self._files = files
        self._segments = segments
        self._first_index = first_index
        self._pulse = pulse
        self._files_max = files_max
        self._removed = 0
        """Of the segments."""

    def __call__(self) -> bool:
        files, segments = self._files, self._segments
        failpoint.hit("trim.begun")
        for segment in segments[self._removed : self._removed + self._files_max]:
            path = files.segment_path(segment.number)
            if files.fs.exists(path):
                files.fs.unlink(path)
                failpoint.hit("trim.removed")
            self._removed += 1
            self._pulse.beats += 1
        if self._removed < len(segments):
            return True
        below = self._first_index // files.index_entries
        for name in files.fs.list(files.directory):
            kind, number = segment_number(name) or ("", 0)
            path = f"{files.directory}/{name}"
            if kind == "index" and number < below and not files.fs.is_directory(path):
                files.fs.unlink(path)
                self._pulse.beats += 1
        files.fs.sync_directory(files.directory)
        return False
