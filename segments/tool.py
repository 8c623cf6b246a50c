"""Looking at data directories offline: dump, verify, index. No server may hold them.

`dump` lists what is there; `verify` reads every byte that counts and checks every CRC, and compares
the copies of the same group in several directories; `index` writes all indexes again from the log
segments. Each returns plain values, which the command line prints as text or JSON.

Must not know: the command line, Kafka.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from crc32c import crc32c

from segments.api import CorruptRecord, StorageError, StoredEntry
from segments.fs import FileSystem
from segments.identity import Identity, LogIdentity, read_identity
from segments.index import IndexDamaged
from segments.recovery import log_directory
from segments.replay import Replay, ReplayedLog, replay_journal
from segments.segment import LogFiles, SegmentInfo

INDEX_ENTRIES = 102_400


@dataclass(slots=True)
class LogReport:
    """One log of one directory. `problems` are in words, oldest entry first."""

    directory: str
    log_id: int
    group_id: int
    replica_number: int
    first_index: int
    last_index: int
    flushed_index: int
    commit: int
    term: int
    vote: int
    segments: int
    lost: bool
    problems: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Difference:
    """The first entry at which copies of a group differ, and the directory that is wrong: the one
    whose copy does not match its own CRC or is in the minority; "" when that cannot be said."""

    group_id: int
    index: int
    offset: int
    wrong: str


class Directory:
    """A data directory, locked for as long as it is looked at. Use: `with`."""

    def __init__(self, fs: FileSystem, path: str, index_entries: int = INDEX_ENTRIES) -> None:
        """Raises DirectoryInUse, CorruptRecord, FileNotFoundError."""
        self.fs = fs
        self.path = path
        self._index_entries = index_entries
        if not fs.exists(f"{path}/identity"):
            raise FileNotFoundError(f"{path}/identity")
        self._lock = fs.lock(f"{path}/lock")
        try:
            identity = read_identity(fs, path)
            assert identity is not None, path
            self.identity: Identity = identity
            self.replay: Replay = replay_journal(fs, f"{path}/journal", identity.logs)
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
        """The log's segments that count. Raises CorruptRecord."""
        files = self.files(known)
        if not self.fs.exists(files.directory):
            return []
        flushed = self.replay.logs[known.log_id].flushed_index
        return [s for s in files.segments()[0] if s.first_index <= flushed]

    def entries(self, known: LogIdentity) -> Iterator[StoredEntry]:
        """The log's entries in segments, from the frames themselves. Raises CorruptRecord."""
        replayed = self.replay.logs[known.log_id]
        segments = self.segments(known)
        for n, segment in enumerate(segments):
            last = n + 1 == len(segments)
            end = replayed.flushed_index + 1 if last else segments[n + 1].first_index
            for entry, _, _ in self.files(known).walk(segment, end):
                if entry.index >= replayed.first_index:
                    yield entry


def dump(directory: Directory) -> list[LogReport]:
    """What is there, by log id; segments are counted, not read."""
    return [_report(directory, known) for _, known in sorted(directory.identity.logs.items())]


def verify(directories: Sequence[Directory]) -> tuple[list[LogReport], list[Difference]]:
    """Check every frame and Idx of each directory, then compare what is committed in all."""
    reports = [report for directory in directories for report in _verify_one(directory)]
    groups = sorted({log.group_id for d in directories for log in d.identity.logs.values()})
    differences = [_compare(directories, group_id) for group_id in groups]
    return reports, [found for found in differences if found is not None]


def rebuild_index(directory: Directory) -> int:
    """Write all index files again; the number of segments read. Raises CorruptRecord."""
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
        files = directory.files(known)
        index = max(report.first_index, 1)
        try:
            for entry in directory.entries(known):
                index = entry.index
                try:
                    idx = files.idx(index)
                except IndexDamaged as damage:
                    report.problems.append(f"{damage} (rebuilt when it is read)")
                else:
                    if (idx.base_offset, idx.term) != (entry.base_offset, entry.term):
                        report.problems.append(f"index of entry {index} names another entry")
        except (CorruptRecord, FileNotFoundError) as error:
            report.problems.append(f"behind entry {index}: {error}")
        if report.lost:
            report.problems.append("the journal lost records of this log")
    return reports


def _compare(directories: Sequence[Directory], group_id: int) -> Difference | None:
    """The first committed entry at which copies of the group differ."""
    copies: list[tuple[str, Iterator[tuple[int, int, int] | None]]] = []
    start = 0
    for directory in directories:
        for _, known in sorted(directory.identity.logs.items()):
            if known.group_id == group_id:
                copies.append((directory.path, _digests(directory, known)))
                start = max(start, directory.replay.logs[known.log_id].first_index)
    if len(copies) < 2:
        return None
    heads = [next(copy, None) for _, copy in copies]
    index = start
    while True:
        for n, (_, copy) in enumerate(copies):
            while (head := heads[n]) is not None and head[0] < index:
                heads[n] = next(copy, None)
        present = [(copies[n][0], head) for n, head in enumerate(heads) if head is not None]
        if len(present) < 2:
            return None
        votes: dict[tuple[int, int, int], list[str]] = {}
        for path, head in present:
            votes.setdefault(head, []).append(path)
        if len(votes) > 1:
            ranked = sorted(votes.items(), key=lambda item: len(item[1]))
            is_clear = len(ranked[0][1]) < len(ranked[-1][1])
            return Difference(
                group_id, index, ranked[-1][0][2], ranked[0][1][0] if is_clear else ""
            )
        index += 1


def _digests(directory: Directory, known: LogIdentity) -> Iterator[tuple[int, int, int] | None]:
    """(index, CRC of term and payload, base offset) of the entries that can be read."""
    try:
        for entry in directory.entries(known):
            yield entry.index, crc32c(entry.data, entry.term), entry.base_offset
    except StorageError:
        return
