"""Offline inspection of data directories: dump, verify, index. No server may hold them.

`dump` lists the logs. `verify` reads all bytes that count, checks every CRC, and compares the
copies of a group in several directories, except for payloads of entries that some of them have
compacted and others not yet. `index` rebuilds all indexes from the log segments. Only `index`
writes. Each returns plain values, which the command line prints as text or JSON.

Does not depend on the command line or Kafka.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from crc32c import crc32c

from ids import NO_INDEX, GroupId, Index, LogId, ReplicaNumber, Term, indexes
from segments.api import (
    Compaction,
    CorruptRecord,
    EntriesDamaged,
    EntryLike,
    StorageError,
    StoredEntry,
    StoreOptions,
)
from segments.compaction.note import read_note
from segments.directory.format_note import read_form
from segments.directory.identity import Identity, LogIdentity, read_identity
from segments.format.frame import read_frame
from segments.format.names import log_directory, sequence_of
from segments.io.fs import FileSystem, read_whole
from segments.log.index import IndexDamaged
from segments.log.segment import LogFiles
from segments.log.segment_header import SEGMENT_HEADER_BYTES, SegmentInfo
from segments.recovery.placed import cursor_of
from segments.recovery.replay import Replay, replay_journal
from segments.recovery.replayed_log import ReplayedLog
from segments.recovery.tail import JournalReader, entries_or_damage, placed_entries

INDEX_ENTRIES = StoreOptions().index_segment_entries


@dataclass(slots=True)
class LogReport:
    """One log of one directory. `problems` are texts, oldest entry first."""

    directory: str
    log_id: LogId
    group_id: GroupId
    replica_number: ReplicaNumber
    first_index: int
    last_index: int
    flushed_index: int
    commit: int
    term: Term
    vote: int
    segments: int
    lost: bool
    entries_read: int = 0
    problems: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Difference:
    """First entry at which copies of a group differ, and the directories that are wrong.

    A directory is wrong if its copy does not match its own CRC. If all match and still differ, none
    can be named: a majority of equal copies proves nothing, because an old copy of a directory may
    be among them.
    """

    group_id: GroupId
    index: Index
    offset: int
    wrong: list[str]
    longest: list[str]
    """Directories whose copies have the most committed entries; these must be kept in any case."""
    longest_index: Index
    """Index of their last committed entry."""


@dataclass(frozen=True, slots=True)
class DamagedRange:
    """Entries [first, end) that a directory should have and that cannot be read.

    They are damaged at `position` in a log segment, or are in no file any more; `position` is None
    then.
    """

    first: Index
    end: Index
    position: int | None

    def __str__(self) -> str:
        what = "missing" if self.position is None else f"damaged at position {self.position}"
        return f"entries [{self.first}, {self.end}) are {what}"


class Directory:
    """A data directory, locked while it is inspected. Use: `with`.

    Missing journal files do not end the inspection, as they end a server's start: the logs that
    needed them are marked lost.
    """

    def __init__(self, fs: FileSystem, path: str, index_entries: int = INDEX_ENTRIES) -> None:
        """Lock the directory and replay its journal.

        Raises DirectoryInUse, CorruptRecord, ForeignFile, UnknownFormat or FileNotFoundError.
        """
        self.fs = fs
        self.path = path
        self._index_entries = index_entries
        if not fs.exists(f"{path}/identity"):
            raise FileNotFoundError(f"{path}/identity")
        self._lock = fs.lock(f"{path}/lock")
        try:
            read_form(fs, path)
            identity = read_identity(fs, path)
            if identity is None:
                raise FileNotFoundError(f"{path}/identity")
            self.identity: Identity = identity
            self.replay: Replay = replay_journal(
                fs, f"{path}/journal", identity, missing_is_lost=True
            )
        except BaseException:
            self._lock.release()
            raise

    def __enter__(self) -> Directory:
        return self

    def __exit__(self, *failure: object) -> None:
        self._lock.release()

    def files(self, known: LogIdentity) -> LogFiles:
        path = log_directory(self.path, known.log_id)
        return LogFiles(self.fs, path, known.log_id, known.group_id, self._index_entries)

    def segments(self, known: LogIdentity) -> list[SegmentInfo]:
        """Return the log's segments that count. Raises CorruptRecord."""
        files, replayed = self.files(known), self.replay.logs[known.log_id]
        if replayed.is_void or not self.fs.exists(files.directory):
            return []  # existing files belong to dropped entries
        flushed = replayed.flushed_index
        return [s for s in files.segments(flushed)[0] if s.first_index <= flushed]

    def entries(self, known: LogIdentity) -> Iterator[StoredEntry | DamagedRange]:
        """Yield the log's committed entries in order; a missing entry is a damaged range.

        Raises CorruptRecord.
        """
        replayed = self.replay.logs[known.log_id]
        wanted = replayed.first_index
        for found in self._found(known, replayed):
            if isinstance(found, DamagedRange):
                first, end = found.first, found.end
            else:
                first, end = found.index, found.index + 1
            if end <= wanted:
                continue
            if wanted < first:
                yield DamagedRange(wanted, first, None)
            yield found
            wanted = end
        end = max(replayed.flushed_index, min(replayed.commit, replayed.last_index)) + 1
        if wanted < end:
            yield DamagedRange(wanted, end, None)

    def misses_end(self, known: LogIdentity) -> str:
        """Return why the end of the last flushed frame is unknown; empty if it is known.

        Later entries are written there: without it the log is lost, even if all flushed entries are
        trimmed.
        """
        replayed, files = self.replay.logs[known.log_id], self.files(known)
        last = replayed.flushed_index
        if replayed.is_void:
            return ""
        try:
            segments = self.segments(known)
        except StorageError as error:
            return str(error)
        if not segments or segments[0].first_index > replayed.first_index:
            return f"segments missing at entry {replayed.first_index}"
        try:
            cursor_of(files, last, {segment.number for segment in segments})
        except (IndexDamaged, FileNotFoundError):
            damaged: list[Index] = []  # as when a start rebuilds these Idx
            try:
                for _ in files.walk(segments[-1], last + 1, damaged=damaged):
                    pass
            except EntriesDamaged as damage:
                return str(DamagedRange(damage.first, damage.end, damage.position))
            if last in damaged:
                return str(DamagedRange(last, last + 1, None))
        return ""

    def lost_ahead(self, known: LogIdentity) -> list[DamagedRange]:
        """Return the unreadable ranges of placed entries not known to be committed.

        They may have been acknowledged, and no copy of them can be expected.
        """
        replayed, files = self.replay.logs[known.log_id], self.files(known)
        first = max(replayed.flushed_index, replayed.commit, replayed.applied) + 1
        found: list[DamagedRange] = []
        for index in indexes(first, replayed.last_index + 1):
            ref = replayed.frames.get(index)
            if ref is None or ref.placed is None:
                continue  # in the journal, where replay has checked it
            try:
                placed_entries(files, [ref.placed], ref.length)
            except (CorruptRecord, FileNotFoundError):
                if found and found[-1].end == index:
                    begins = found.pop()
                    found.append(DamagedRange(begins.first, index + 1, begins.position))
                else:
                    found.append(DamagedRange(index, index + 1, ref.placed.position))
        return found

    def _found(
        self, known: LogIdentity, replayed: ReplayedLog
    ) -> Iterator[StoredEntry | DamagedRange]:
        """Yield entries and damaged ranges from segments, then from the journal."""
        files, segments = self.files(known), self.segments(known)
        for n, segment in enumerate(segments):
            last = n + 1 == len(segments)
            end = replayed.flushed_index + 1 if last else segments[n + 1].first_index
            yield from _walk(files, segment, end)
        journal = JournalReader(self.fs, f"{self.path}/journal")
        try:
            for found in entries_or_damage(files, replayed, journal):
                index = found if isinstance(found, int) else found.index
                if index > replayed.commit:
                    return
                if isinstance(found, int):
                    ref = replayed.frames[index]
                    position = ref.placed.position if ref.placed else ref.position
                    yield DamagedRange(index, index + 1, position)
                else:
                    yield found
        finally:
            journal.close()


def _walk(
    files: LogFiles, segment: SegmentInfo, end: Index
) -> Iterator[StoredEntry | DamagedRange]:
    """Yield a segment's entries below `end`; continue after damage by length or Idx."""
    index, position = segment.first_index, SEGMENT_HEADER_BYTES
    walk = files.walk(segment, end, damaged=[])
    while index < end:
        following, behind = end, position
        try:
            for entry, at, length in walk:
                if index < entry.index:
                    yield DamagedRange(index, entry.index, position)
                yield entry
                index, position = entry.index + 1, at + length
        except EntriesDamaged as damage:
            following, behind = _behind(files, segment, damage.first + 1, end)
            walk = files.walk(segment, end, index=following, position=behind, damaged=[])
        if index < following:
            yield DamagedRange(index, following, position)
        index, position = following, behind


def _behind(files: LogFiles, segment: SegmentInfo, index: Index, end: Index) -> tuple[Index, int]:
    """Return (first entry from `index` on to which its Idx leads, its position), or `end`."""
    file = files.fs.open(files.segment_path(segment.number))
    try:
        while index < end:
            try:
                idx = files.idx(index)
                view = memoryview(read_whole(file, idx.length, idx.position))
                entry = read_frame(view, 0, files.group_id, idx.position)
            except CorruptRecord:
                pass
            else:
                if entry.index == index and idx.segment == segment.number:
                    return index, idx.position
            index += 1
    finally:
        file.close()
    return end, 0


def dump(directory: Directory) -> list[LogReport]:
    """Return a report per log, by log id; segments are counted, not read."""
    return [_report(directory, known) for _, known in sorted(directory.identity.logs.items())]


def verify(directories: Sequence[Directory]) -> tuple[list[LogReport], list[Difference]]:
    """Check every frame and Idx of each directory, then compare the committed entries of all."""
    reports = [report for directory in directories for report in _verify_one(directory)]
    groups = sorted({log.group_id for d in directories for log in d.identity.logs.values()})
    differences = [_compare(directories, group_id) for group_id in groups]
    return reports, [found for found in differences if found is not None]


def rebuild_index(directory: Directory) -> int:
    """Rebuild all index files; return the number of segments read. Raises CorruptRecord."""
    count = 0
    for _, known in sorted(directory.identity.logs.items()):
        segments = directory.segments(known)
        flushed = directory.replay.logs[known.log_id].flushed_index
        for n, segment in enumerate(segments):
            end = segments[n + 1].first_index if n + 1 < len(segments) else flushed + 1
            directory.files(known).rebuild(segment, end)
            count += 1
    return count


def _report(directory: Directory, known: LogIdentity) -> LogReport:
    replayed: ReplayedLog = directory.replay.logs[known.log_id]
    report = LogReport(
        directory.path, known.log_id, known.group_id, known.replica_number, replayed.first_index,
        replayed.last_index, replayed.flushed_index, replayed.commit, replayed.term,
        replayed.vote, 0, replayed.lost,
    )  # fmt: skip
    try:
        report.segments = len(directory.segments(known))
    except StorageError as error:
        report.problems.append(str(error))
    return report


def _verify_one(directory: Directory) -> list[LogReport]:
    reports = dump(directory)
    for report in reports:
        known = directory.identity.logs[report.log_id]
        try:
            for found in directory.entries(known):
                if isinstance(found, DamagedRange):
                    report.problems.append(str(found))
                else:
                    report.entries_read += 1
                    _check_idx(directory, known, found, report)
        except (CorruptRecord, FileNotFoundError) as error:
            report.problems.append(f"after {report.entries_read} entries: {error}")
        if what := directory.misses_end(known):
            report.problems.append(
                f"{what}: the end of the last flushed entry is unknown, so the replica is lost"
            )
        for lost in directory.lost_ahead(known):
            report.problems.append(
                f"{lost}, and their commit is not recorded: the replica is lost, unless a "
                "checkpoint has applied them"
            )
        if report.lost:
            report.problems.append("the journal lost records of this log")
    return reports


def _check_idx(
    directory: Directory, known: LogIdentity, entry: EntryLike, report: LogReport
) -> None:
    if entry.index > report.flushed_index:
        return  # in the journal
    try:
        idx = directory.files(known).idx(entry.index)
    except IndexDamaged as damage:
        report.problems.append(f"{damage} (will be rebuilt by the next read)")
        return
    if (idx.base_offset, idx.term) != (entry.base_offset, entry.term):
        report.problems.append(f"the index record of entry {entry.index} belongs to another entry")


def _compare(directories: Sequence[Directory], group_id: GroupId) -> Difference | None:
    """Return the first difference between committed entries of the group's copies, if any."""
    logs = [
        (directory, known)
        for directory in directories
        for _, known in sorted(directory.identity.logs.items())
        if known.group_id == group_id
    ]
    start = max(directory.replay.logs[known.log_id].first_index for directory, known in logs)
    differ_upto = _compacted_apart(logs)
    copies = [
        (directory.path, _digests(directory, known, differ_upto)) for directory, known in logs
    ]
    heads = [next(copy, None) for _, copy in copies]
    index = start
    while True:
        for n, (_, copy) in enumerate(copies):
            while (head := heads[n]) is not None and head.index < index:
                heads[n] = next(copy, None)
        present = [(copies[n][0], head) for n, head in enumerate(heads) if head is not None]
        if len(present) < 2:
            return None
        if len({head for _, head in present}) > 1:
            return _judge(group_id, index, present, logs)
        index += 1


def _compacted_apart(logs: Sequence[tuple[Directory, LogIdentity]]) -> int:
    """Return the last entry whose payloads cannot be compared; 0 if all can be.

    Some copies are compacted further than others.
    """
    notes: set[Compaction] = set()
    upto = 0
    for directory, known in logs:
        files = directory.files(known)
        notes.add(read_note(directory.fs, files.directory, known.log_id))
        try:
            segments = directory.segments(known)
        except StorageError:
            continue  # reported as a problem of its own
        for segment, following in pairwise(segments):
            if segment.number != sequence_of(segment.number):
                upto = max(upto, following.first_index - 1)
    return max(upto, *(note.upto for note in notes)) if len(notes) > 1 else 0


def _judge(
    group_id: GroupId,
    index: Index,
    copies: list[tuple[str, Digest]],
    logs: Sequence[tuple[Directory, LogIdentity]],
) -> Difference:
    """Describe a difference; damaged copies are wrong."""
    wrong = sorted(path for path, head in copies if head.is_damaged)
    offset = max(head.base_offset for _, head in copies)
    ends: dict[str, Index] = {}
    for directory, known in logs:
        replayed = directory.replay.logs[known.log_id]
        committed = max(replayed.flushed_index, min(replayed.commit, replayed.last_index))
        ends[directory.path] = max(committed, ends.get(directory.path, NO_INDEX))
    last = max(ends.values())
    longest = sorted(path for path, end in ends.items() if end == last)
    return Difference(group_id, index, offset, wrong, longest, last)


@dataclass(frozen=True, slots=True)
class Digest:
    """Data that two copies of an entry must have in common; a damaged copy has none."""

    index: Index
    crc: int = 0
    base_offset: int = -1
    is_damaged: bool = False


def _digests(directory: Directory, known: LogIdentity, differ_upto: int) -> Iterator[Digest]:
    """Yield the digests of committed entries, with payloads only after `differ_upto`."""
    try:
        for found in directory.entries(known):
            if isinstance(found, DamagedRange):
                for index in indexes(found.first, found.end):
                    yield Digest(index, is_damaged=True)
            else:
                data = found.data if found.index > differ_upto else b""
                yield Digest(found.index, crc32c(data, found.term), found.base_offset)
    except (StorageError, FileNotFoundError):
        return
