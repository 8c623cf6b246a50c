"""Reading back of entries that only the journal records: those after the durable end.

Their frames are in the journal, or in segments if it refers to them there.

Does not depend on logs as objects or on the use of the entries.
"""

from __future__ import annotations

from collections.abc import Iterator

from ids import NO_INDEX, GroupId, Index
from segments.api import CorruptRecord, StoredEntry
from segments.format.frame import read_frame
from segments.io.fs import File, FileSystem, read_around
from segments.journal.files import file_path
from segments.log.segment import LogFiles
from segments.recovery.replayed_log import FrameRef, Placed, ReplayedLog

_READ_BYTES = 1 << 20
CARRIED = 1 << 62
"""Journal sequence that stands for the file about to be opened."""


def entries_or_damage(
    files: LogFiles, replayed: ReplayedLog, journal: JournalReader
) -> Iterator[StoredEntry | Index]:
    """Yield the entries after the durable end, or the index of one that cannot be read."""
    index, bytes_max = replayed.flushed_index + 1, _READ_BYTES
    while True:
        try:
            for entries in journal_entries(files, replayed, journal, index, bytes_max=bytes_max):
                yield from entries
                index += len(entries)
        except (CorruptRecord, FileNotFoundError):
            if not bytes_max:
                yield index
                index += 1
            bytes_max = 0 if bytes_max else _READ_BYTES  # one at a time, to find the damaged one
        else:
            return


def journal_entries(
    files: LogFiles,
    replayed: ReplayedLog,
    journal: JournalReader,
    first: Index = NO_INDEX,
    *,
    bytes_max: int = _READ_BYTES,
) -> Iterator[list[StoredEntry]]:
    """Yield the entries after the durable end, or from `first` on, in runs of adjacent frames.

    Raises CorruptRecord or FileNotFoundError.
    """
    index = first or replayed.flushed_index + 1
    while index <= replayed.last_index and index in replayed.frames:
        begin = replayed.frames[index]
        refs = [begin]
        length = begin.length
        while (
            (ref := replayed.frames.get(index + len(refs))) is not None
            and index + len(refs) <= replayed.last_index
            and _touches(ref, begin, length)
            and length + ref.length <= bytes_max
        ):
            refs.append(ref)
            length += ref.length
        if begin.placed is None:
            yield journal.entries(files.group_id, refs, length)
        else:
            yield placed_entries(files, [ref.placed for ref in refs if ref.placed], length)
        index += len(refs)


def _touches(ref: FrameRef, first: FrameRef, length: int) -> bool:
    """Return True if a frame lies `length` bytes after another, in the same file."""
    if ref.placed is not None and first.placed is not None:
        here = first.placed.segment, first.placed.position + length
        return (ref.placed.segment, ref.placed.position) == here
    if ref.placed is not None or first.placed is not None:
        return False
    return (ref.sequence, ref.position) == (first.sequence, first.position + length)


def placed_entries(files: LogFiles, refs: list[Placed], length: int) -> list[StoredEntry]:
    """Read consecutive placed entries. Raises CorruptRecord or FileNotFoundError."""
    start = refs[0].position
    file = files.fs.open(files.segment_path(refs[0].segment))
    try:
        view = memoryview(read_around(file, length, start)[0])
    finally:
        file.close()
    for ref in refs:
        found = int.from_bytes(view[ref.position - start :][:4], "little")
        if found != ref.crc:  # a good frame of another entry, which was there before
            raise CorruptRecord("placed frame", ref.position, expected=ref.crc, actual=found)
    return [read_frame(view, ref.position - start, files.group_id, ref.position) for ref in refs]


class JournalReader:
    """Reads frames back; keeps open the few files that hold all logs' entries."""

    def __init__(self, fs: FileSystem, directory: str) -> None:
        self._fs = fs
        self._directory = directory
        self._files: dict[int, File] = {}

    def entries(self, group_id: GroupId, refs: list[FrameRef], length: int) -> list[StoredEntry]:
        """Return the entries of consecutive frames. Raises CorruptRecord."""
        start, sequence = refs[0].position, refs[0].sequence
        file = self._files.get(sequence)
        if file is None:
            file = self._fs.open(file_path(self._directory, sequence))
            self._files[sequence] = file
        # Unreadable bytes fail their check: they cost this log, not the start.
        view = memoryview(read_around(file, length, start)[0])
        return [read_frame(view, ref.position - start, group_id, ref.position) for ref in refs]

    def close(self) -> None:
        for file in self._files.values():
            file.close()


def live_sequence(ref: FrameRef, carried_from: tuple[int, int]) -> int:
    """Return the journal file that will hold the frame once the journal continues."""
    return CARRIED if (ref.sequence, ref.position) >= carried_from else ref.sequence
