"""Removal of whole segments and whole index files below a log's first index.

The new first index is durable in the journal before any file is removed, so a crash in between
leaves files that the next start removes. The files to remove are known by name: a log may have many
thousands, and none of the remaining ones is touched. The owner chooses the index, by age or size.

Does not depend on retention policies or the loop.
"""

from __future__ import annotations

from collections.abc import Sequence

from ids import Index
from segments.checkpoint.flusher import Pulse
from segments.io import failpoint
from segments.io.removals import FILES_AT_ONCE
from segments.log.segment import LogFiles
from segments.log.segment_header import SegmentInfo


class RemoveBelow:
    """Removes `segments` and the index files that describe only entries below `first_index`.

    The index files begin with that of the first segment. Each call removes a limited number, and
    returns True while more are left. `pulse` counts them. Oldest first, so that after a crash the
    rest is still one run of segments. Blocks.
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
        self._pulse = pulse
        self._files_max = files_max
        self._removed = 0
        """Number of segments removed."""
        # Index files of only earlier entries went with the segments before these.
        begin = segments[0].first_index // files.index_entries
        self._index_numbers = range(begin, first_index // files.index_entries)

    def __call__(self) -> bool:
        files, left = self._files, self._files_max
        failpoint.hit("trim.begun")
        for segment in self._segments[self._removed : self._removed + left]:
            path = files.segment_path(segment.number)
            if files.fs.exists(path):
                files.fs.unlink(path)
                failpoint.hit("trim.removed")
            self._removed += 1
            left -= 1
            self._pulse.beats += 1
        while self._index_numbers and left:
            path = files.index_path(self._index_numbers[0])
            if files.fs.exists(path) and not files.fs.is_directory(path):
                files.fs.unlink(path)
            self._index_numbers = self._index_numbers[1:]
            left -= 1
            self._pulse.beats += 1
        if self._removed < len(self._segments) or self._index_numbers:
            return True
        files.fs.sync_directory(files.directory)
        return False
