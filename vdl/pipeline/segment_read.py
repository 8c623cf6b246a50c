"""Reading of records from a server's sealed segment files, without requests to a broker.

`find` runs on the driver: it determines which log of a data directory holds a partition, and which
of its segments are sealed (every one but the newest, which still grows and whose valid end only the
journal knows). A sealed segment holds exactly the committed entries from its first index to that of
the next, so the offsets [its base, the next one's base) can be read from there, and those after the
last sealed one over the protocol: the two meet at an exact offset.

The server's catalog, as of the last checkpoint, maps a partition to its group. Its topic id must be
the one that the brokers report, so files of a deleted topic of the same name are never read. Files
may be removed by retention, or be damaged, between plan and read. The unread rest is then read over
the protocol (`source.py`).

Does not depend on Spark, Kafka clients, or the server.
"""

from __future__ import annotations

import base64
import os
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path

import msgspec
import pyarrow as pa
from crc32c import crc32c

from ids import NO_INDEX, GroupId, Index, LogId, Offset
from segments.api import CorruptRecord, StorageError, StoreOptions
from segments.directory.format_note import read_form
from segments.directory.identity import read_identity
from segments.format.meta_pages import item_at
from segments.format.names import log_directory, segment_number, sequence_of
from segments.io.fs import RealFileSystem
from segments.log.segment import LogFiles
from segments.log.segment_header import SEGMENT_HEADER_BYTES, decode_segment_header
from vdl.pipeline.columns import Gathered, open_lane
from vdl.pipeline.inflated import Inflated
from vdl.pipeline.positions import TASK_ROWS_MAX, OffsetRange

CATALOG_GROUP = GroupId(0)
TASK_BYTES_MAX = 64 << 20
"""Limit on segment bytes that one task reads, unless a single segment is larger."""
TASKS_WANTED = 8
"""Minimum number of tasks for segments, as far as there are segments.

The number of executor cores is not known here.
"""
META_ATTEMPTS = 3
"""Attempts to read a meta that a server may be writing."""
_ITEM = struct.Struct("<IH")
_TOPIC = b"t"
_MALFORMED = (msgspec.MsgspecError, struct.error, LookupError, TypeError, ValueError)
"""Exceptions of reading a meta in any other form than a server's."""


@dataclass(frozen=True, slots=True)
class SealedSegment:
    """Segment that no longer changes: entries [first, end) with offsets [base, next)."""

    directory: str
    log_id: LogId
    group_id: GroupId
    number: int
    first_index: Index
    end_index: Index
    base_offset: Offset
    next_offset: Offset
    size_bytes: int


@dataclass(frozen=True, slots=True)
class SegmentRange:
    """Offsets of one partition that one sealed segment holds."""

    wanted: OffsetRange
    segment: SealedSegment


@dataclass(frozen=True, slots=True)
class SegmentTask:
    """Consecutive ranges of one partition that one task reads."""

    pieces: tuple[SegmentRange, ...]

    @property
    def count(self) -> int:
        return sum(piece.wanted.count for piece in self.pieces)


Seen = dict[str, tuple[tuple[str, ...], int, list[SealedSegment]]]
"""Directory of a log → names of its files, the newest segment that had begun, and the result."""


def find(
    directory: str, topic: str, topic_id: str, count: int, seen: Seen | None = None
) -> dict[int, list[SealedSegment]]:
    """Return partition → its sealed segments in one data directory, by offset.

    Partitions without a good replica there are missing. The server may be running. `seen`: results
    of earlier calls, so that a log in which no segment has begun since is not read again. Raises
    StorageError, OSError.
    """
    fs = RealFileSystem()
    read_form(fs, directory)  # files of a later version may mean more than is read here
    identity = read_identity(fs, directory)
    if identity is None:
        raise FileNotFoundError(f"{directory}/identity")
    by_group = {log.group_id: log for log in identity.logs.values() if not log.lost}
    catalog = by_group.get(CATALOG_GROUP)
    groups = [] if catalog is None else _groups(directory, catalog.log_id, topic, topic_id)
    found: dict[int, list[SealedSegment]] = {}
    for partition, group_id in enumerate(groups[:count]):
        log = by_group.get(group_id)
        if log is not None:
            found[partition] = _sealed(fs, directory, log.log_id, group_id, seen)
    return found


def _groups(directory: str, log_id: LogId, topic: str, topic_id: str) -> list[GroupId]:
    """Return the group ids of a topic's partitions, from the catalog's state in the meta.

    Returns nothing if it does not know the topic, or knows another of that name. Raises
    StorageError, OSError.
    """
    name = _TOPIC + topic.encode()
    try:
        item = _stored(f"{directory}/meta", log_id.to_bytes(4) + b"k" + name)
        if item is None:
            return []
        crc, length = _ITEM.unpack_from(item)
        end = _ITEM.size + length
        if crc32c(item[4:]) != crc or item[_ITEM.size : end] != name:
            raise CorruptRecord("meta value", 0, expected=crc, actual=crc32c(item[4:]))
        fields = msgspec.msgpack.decode(item[end:])
        told = base64.urlsafe_b64encode(fields[1]).decode().rstrip("=")
        return [GroupId(group) for group in fields[2]] if told == topic_id else []
    except _MALFORMED as error:
        raise CorruptRecord("meta", 0) from error


def _stored(meta: str, key: bytes) -> bytes | None:
    """Return the value of `key` in the meta, read without LMDB.

    LMDB follows a damaged page beyond the file and ends the process. Raises StorageError, OSError.
    """
    problem: CorruptRecord | None = None
    for _ in range(META_ATTEMPTS):
        with Path(meta, "data.mdb").open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            try:
                return item_at(partial(_read_at, file.fileno()), size, key)
            except CorruptRecord as error:
                problem = error  # A server may be writing: then it is valid the next time.
    assert problem is not None, meta
    raise problem


def _read_at(descriptor: int, length: int, position: int) -> bytes:
    return os.pread(descriptor, length, position)


def _sealed(
    fs: RealFileSystem, directory: str, log_id: LogId, group_id: GroupId, seen: Seen | None
) -> list[SealedSegment]:
    path = log_directory(directory, log_id)
    files = LogFiles(fs, path, log_id, group_id, StoreOptions().index_segment_entries)
    if not fs.exists(path):
        return []
    names = tuple(sorted(fs.list(path)))
    if seen is not None and path in seen:
        before, newest, found = seen[path]
        if before == names and not _has_begun(files, names, newest):
            return found
    infos, _ = files.segments(flushed_index=NO_INDEX)  # a bad header does not matter to a reader
    pairs = list(pairwise(infos))
    count = len(pairs)
    # A large append may have begun the newest files before their entries were committed.
    while pairs and not _is_indexed(files, pairs[-1][0].number, pairs[-1][1].first_index - 1):
        pairs.pop()
    found = [
        SealedSegment(
            directory, log_id, group_id, info.number, info.first_index, after.first_index,
            info.base_offset, after.base_offset,
            Path(files.segment_path(info.number)).stat().st_size,
        )
        for info, after in pairs
        if sequence_of(after.number) == info.last_sequence + 1
        and after.first_index > info.first_index
    ]  # fmt: skip
    if seen is not None and len(pairs) == count:
        newest = sequence_of(infos[-1].number) if infos else 0
        seen[path] = names, newest, found
    return found


def _has_begun(files: LogFiles, names: Sequence[str], newest: int) -> bool:
    """Return True if a segment after `newest` has begun.

    A file may exist without a header, preallocated for large appends.
    """
    for name in names:
        kind, number = segment_number(name) or ("", 0)
        if kind != "log" or sequence_of(number) <= newest:
            continue
        try:
            with Path(files.directory, name).open("rb") as file:
                decode_segment_header(file.read(SEGMENT_HEADER_BYTES), files.log_id)
        except (CorruptRecord, OSError):
            continue
        return True
    return False


def _is_indexed(files: LogFiles, segment: int, last: Index) -> bool:
    """Return True if a flush has reached the segment's last entry.

    Only then all of it is committed.
    """
    try:
        return sequence_of(files.idx(last).segment) == sequence_of(segment)
    except CorruptRecord:
        return False


def divide(
    wanted: Sequence[OffsetRange], segments: Sequence[dict[tuple[str, int], list[SealedSegment]]]
) -> tuple[list[SegmentRange], list[OffsetRange]]:
    """Return (ranges that can be read from segments, the rest).

    `segments`: of each data directory, by (topic, partition). Directories that hold the same
    offsets share them.
    """
    from_files: list[SegmentRange] = []
    rest: list[OffsetRange] = []
    turn = 0
    for r in wanted:
        position = r.start
        while position < r.end:
            choices = [
                one
                for directory in segments
                for one in directory.get((r.topic, r.partition), [])
                if one.base_offset <= position < one.next_offset
            ]
            if not choices:
                after = [
                    one.base_offset
                    for directory in segments
                    for one in directory.get((r.topic, r.partition), [])
                    if position < one.base_offset < r.end
                ]
                stop = min(after, default=r.end)
                rest.append(OffsetRange(r.topic, r.partition, position, stop))
            else:
                chosen = choices[turn % len(choices)]
                turn += 1
                stop = min(chosen.next_offset, r.end)
                piece = OffsetRange(r.topic, r.partition, position, stop)
                from_files.append(SegmentRange(piece, chosen))
            position = stop
    return from_files, rest


def group(from_files: Sequence[SegmentRange], *, tasks_min: int = 0) -> list[SegmentTask]:
    """Group consecutive segments into tasks.

    A task has at most TASK_ROWS_MAX offsets and TASK_BYTES_MAX of files, unless one segment has
    more. There are at least `tasks_min` tasks or TASKS_WANTED, as far as there are segments. A task
    costs as much as some thousand records.
    """
    total = sum(one.wanted.count for one in from_files)
    rows_max = min(TASK_ROWS_MAX, total // (tasks_min or TASKS_WANTED))
    groups: list[list[SegmentRange]] = []
    rows = size = 0
    for one in from_files:
        before = groups[-1][-1].wanted if groups else None
        goes_on = before is not None and (before.topic, before.partition, before.end) == (
            one.wanted.topic, one.wanted.partition, one.wanted.start
        )  # fmt: skip
        rows, size = rows + one.wanted.count, size + one.segment.size_bytes
        if goes_on and rows <= rows_max and size <= TASK_BYTES_MAX:
            groups[-1].append(one)
        else:
            groups.append([one])
            rows, size = one.wanted.count, one.segment.size_bytes
    return [SegmentTask(tuple(pieces)) for pieces in groups]


def read_segment(
    task: SegmentRange, *, columns: Sequence[str], memory: Inflated
) -> Iterator[pa.RecordBatch]:
    """Yield the records of a range, decompressed in `memory`; each frame's CRC is checked.

    Raises StorageError, OSError, UndecodableBatch; batches yielded before are good.
    """
    one, wanted = task.segment, task.wanted
    fs = RealFileSystem()
    path = log_directory(one.directory, one.log_id)
    if not Path(path).is_dir():
        raise FileNotFoundError(path)
    files = LogFiles(fs, path, one.log_id, one.group_id, StoreOptions().index_segment_entries)
    infos, _ = files.segments(flushed_index=NO_INDEX)  # a bad header does not matter to a reader
    info = next((i for i in infos if i.number == one.number), None)
    if info is None or info.first_index != one.first_index:
        raise FileNotFoundError(files.segment_path(one.number))
    gathered = Gathered(wanted, columns, memory)
    for entry, _, _ in files.walk(info, one.end_index):
        if entry.base_offset >= wanted.end:
            break
        if not entry.records or entry.base_offset + entry.records <= wanted.start:
            continue
        lane = open_lane(memoryview(entry.data))
        if lane is None:
            continue
        gathered.add(lane)
        if gathered.is_enough:
            yield gathered.take()
    if gathered:
        yield gathered.take()


FAILURES = (StorageError, OSError)
"""Failures of reading a file, besides undecodable batches."""
