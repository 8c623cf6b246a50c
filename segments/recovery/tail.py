"""What only the journal tells of a log: the entries behind the durable end, read back.

Their frames lie in the journal, or in segments where it says that they do.

Must not know: logs as objects, what is done with the entries.
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
"""As a journal sequence: the file about to be opened."""


def entries_or_damage(
    files: LogFiles, replayed: ReplayedLog, journal: JournalReader
) -> Iterator[StoredEntry | Index]:
    """The entries after the durable end, for one who looks: in place of one that cannot be read
    its index."""
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
            bytes_max = 0 if bytes_max else _READ_BYTES  # one of them: which?
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
    """The entries after the durable end, or from `first` on, from the journal, in runs of frames
    that touch. Raises CorruptRecord, FileNotFoundError."""
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
    """Whether a frame lies so many bytes behind another, in the same file."""
    if ref.placed is not None and first.placed is not None:
        here = first.placed.segment, first.placed.position + length
        return (ref.placed.segment, ref.placed.position) == here
    if ref.placed is not None or first.placed is not None:
        return False
    return (ref.sequence, ref.position) == (first.sequence, first.position + length)


def placed_entries(files: LogFiles, refs: list[Placed], length: int) -> list[StoredEntry]:
    """Placed entries that lie end to end. Raises CorruptRecord, FileNotFoundError."""
    start = refs[0].position
    file = files.fs.open(files.segment_path(refs[0].segment))
    try:
        view = memoryview(read_around(file, length, start)[0])
    finally:
        file.close()
    for ref in refs:
        found = int.from_bytes(view[ref.position - start :][:4], "little")
        if found != ref.crc:  # a good frame of another entry had the place before
            raise CorruptRecord("placed frame", ref.position, expected=ref.crc, actual=found)
    return [read_frame(view, ref.position - start, files.group_id, ref.position) for ref in refs]


class JournalReader:
    """Reads frames back; keeps the few files open that all logs' entries lie in."""

    def __init__(self, fs: FileSystem, directory: str) -> None:
        self._fs = fs
        self._directory = directory
        self._files: dict[int, File] = {}

    def entries(self, group_id: GroupId, refs: list[FrameRef], length: int) -> list[StoredEntry]:
        """The entries of frames that lie end to end. Raises CorruptRecord."""
        start, sequence = refs[0].position, refs[0].sequence
        file = self._files.get(sequence)
        if file is None:
            file = self._fs.open(file_path(self._directory, sequence))
            self._files[sequence] = file
        # What the medium cannot give now fails its check: it costs this log, not the start.
        view = memoryview(read_around(file, length, start)[0])
        return [read_frame(view, ref.position - start, group_id, ref.position) for ref in refs]

    def close(self) -> None:
        for file in self._files.values():
            file.close()


def live_sequence(ref: FrameRef, carried_from: tuple[int, int]) -> int:
    """The journal file that will hold the frame once the journal goes on."""
    return CARRIED if (ref.sequence, ref.position) >= carried_from else ref.sequence
