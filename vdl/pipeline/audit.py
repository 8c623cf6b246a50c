"""Batch-by-batch comparison of the copies of a cluster's logs, as a distributed job.

Each data directory is locked on the driver, and its journal is replayed there. Its segments, cut
into pieces, are read by tasks wherever the directory is visible. A task checks every frame's CRC
and reports for each entry the facts that two copies must share (term, base offset, CRC of the
payload). Spark joins the copies of an entry by (group, index). Only entries with a problem return
to the driver.

An entry should be in a copy if its index lies in [the log's first index, its commit index], as that
copy's own journal has them: a trimmed log begins later, and a lagging follower has acknowledged no
more than it has. Problems of one copy, besides being `different` from the others:

| problem | |
|---|---|
| damaged | the frame does not match its CRC |
| torn | the file ends within the frame |
| missing | the file ends before it or does not exist; in the journal: it cannot be reached |
| out of order | a good frame of another entry is in its place |
| LOST | for a log, at its first entry that no segment has: nothing from there on is certain |
| GIVEN_UP | likewise: a start has found it lost, and its server takes nothing from it any more |

Among copies that differ though each matches its CRC, those that most others contradict are wrong.
Entries in the journal of a lost log are not compared: they may have been overwritten since.

Does not depend on Kafka. The cluster's servers must not be running.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from crc32c import crc32c

from ids import GroupId, Index, LogId, Offset, indexes
from segments.api import CorruptRecord, EntriesDamaged, StorageError, StoredEntry
from segments.format.frame import FRAME_BYTES, read_frame
from segments.format.names import log_directory
from segments.io.fs import RealFileSystem
from segments.log.index import IndexDamaged
from segments.log.segment import LogFiles
from segments.log.segment_header import SegmentInfo
from segments.recovery.tail import JournalReader, entries_or_damage
from segments.tool import INDEX_ENTRIES, Directory

PIECE_ENTRIES = 20_000
BATCH_ROWS = 10_000
TOLD_MAX = 10_000
"""Limit on wrong entries that are reported one by one: a copy may lack millions."""
GOOD, DAMAGED, TORN, MISSING, MISPLACED = "", "damaged", "torn", "missing", "out of order"
LOST = "the journal lost records of this log"
GIVEN_UP = "retired by its server, which lost data in it"
NO_SEGMENT = 0
"""Segment number of an entry without a segment; segments count from 1."""
FOUND_DDL = (
    "replica string, group long, index long, term long, offset long, crc long, bytes long, "
    "problem string"
)
FOUND = pa.schema(
    [
        ("replica", pa.string()),
        ("group", pa.int64()),
        ("index", pa.int64()),
        ("term", pa.int64()),
        ("offset", pa.int64()),
        ("crc", pa.int64()),
        ("bytes", pa.int64()),
        ("problem", pa.string()),
    ]
)
Row = tuple[str, int, int, int, int, int, int, str]


@dataclass(frozen=True, slots=True)
class Piece:
    """Entries [first, end) of one log of one directory, which should be in one segment.

    The number is NO_SEGMENT if that segment does not exist.
    """

    directory: str
    log_id: LogId
    group_id: GroupId
    number: int
    segment_first: Index
    first: Index
    end: Index


@dataclass(frozen=True, slots=True)
class Finding:
    """Problem of one copy of an entry. `replica` is a data directory."""

    group: GroupId
    index: Index
    replica: str
    what: str
    offset: int
    """Base offset according to the good copies; -1 without one."""


@dataclass(slots=True)
class Audit:
    """Result: what was read and is good, with each copy counted, and what is wrong."""

    directories: int
    entries: int
    bytes: int
    wrong: int
    """Number of entries with a wrong copy."""
    findings: list[Finding]
    """Findings for the first TOLD_MAX of them."""


def audit(directories: Sequence[str], spark: Any) -> Audit:
    """Compare all copies. Raises DirectoryInUse, CorruptRecord, FileNotFoundError."""
    from pyspark.sql import functions as f

    pieces: list[Piece] = []
    tails: list[Row] = []
    opened: list[Directory] = []
    try:
        for path in directories:
            directory = Directory(RealFileSystem(), path, INDEX_ENTRIES)
            opened.append(directory)
            for log_id in sorted(directory.identity.logs):
                pieces += pieces_of(directory, log_id)
                tails += tail_of(directory, log_id)
        count = max(1, len(pieces))
        tasks = spark.sparkContext.parallelize(range(count), min(count, 1000))
        frame = spark.createDataFrame(tasks.map(lambda n: (n,)), "n long")

        def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                for n in batch.column("n").to_pylist():
                    if n < len(pieces):
                        yield from read_piece(pieces[n])

        found = frame.mapInArrow(read, FOUND_DDL)
        if tails:
            found = found.unionByName(spark.createDataFrame(tails, FOUND_DDL))
        copies = found.groupBy("group", "index").agg(
            f.collect_list(f.struct("replica", "term", "offset", "crc", "bytes", "problem")).alias(
                "copies"
            ),
            f.count_if(f.col("problem") == GOOD).alias("count"),
            f.sum("bytes").alias("bytes"),
            f.countDistinct("term", "offset", "crc").alias("kinds"),
            f.max(f.col("problem") != GOOD).alias("is_bad"),
        )
        copies.cache()
        try:
            is_wrong = f.expr("is_bad or kinds > 1")
            totals = copies.agg(f.sum("count"), f.sum("bytes"), f.count_if(is_wrong)).first()
            told = copies.filter(is_wrong).orderBy("group", "index").limit(TOLD_MAX).collect()
        finally:
            copies.unpersist()
    finally:
        for directory in opened:
            directory.__exit__()
    findings = [finding for row in told for finding in judge(row)]
    entries, size, wrong = (int(total or 0) for total in totals)
    return Audit(len(directories), entries, size, wrong, findings)


def judge(row: Any) -> list[Finding]:
    """Return the problems of the copies of one entry."""
    votes: dict[tuple[int, int, int], list[str]] = {}
    for copy in row["copies"]:
        if not copy["problem"]:
            votes.setdefault((copy["term"], copy["offset"], copy["crc"]), []).append(
                copy["replica"]
            )
    ranked = sorted(votes.items(), key=lambda item: -len(item[1]))
    offset = ranked[0][0][1] if ranked else -1
    findings = [
        Finding(row["group"], row["index"], copy["replica"], copy["problem"], offset)
        for copy in row["copies"]
        if copy["problem"]
    ]
    if len(ranked) > 1:
        is_tie = len(ranked[0][1]) == len(ranked[1][1])
        for _, replicas in ranked if is_tie else ranked[1:]:
            what = "different, and the right copy is unknown" if is_tie else "different"
            findings += [
                Finding(row["group"], row["index"], replica, what, offset) for replica in replicas
            ]
    return sorted(findings, key=lambda one: one.replica)


def pieces_of(directory: Directory, log_id: LogId) -> list[Piece]:
    """Return the pieces of a log that segments have or should have.

    Entries below the oldest segment belong to one that is missing.
    """
    known = directory.identity.logs[log_id]
    replayed = directory.replay.logs[log_id]
    segments = directory.segments(known)
    begins = [(NO_SEGMENT, replayed.first_index), *((s.number, s.first_index) for s in segments)]
    ends = [first for _, first in begins[1:]] + [replayed.flushed_index + 1]
    return [
        Piece(
            directory.path, log_id, known.group_id, number, segment_first,
            Index(start), min(end, Index(start + PIECE_ENTRIES)),
        )
        for (number, segment_first), end in zip(begins, ends, strict=True)
        for start in range(max(segment_first, replayed.first_index), end, PIECE_ENTRIES)
    ]  # fmt: skip


def tail_of(directory: Directory, log_id: LogId) -> list[Row]:
    """Return rows for the committed entries that only the journal has, or should have.

    The first row reports a loss that the journal cannot locate, if there is one.
    """
    known, replayed = directory.identity.logs[log_id], directory.replay.logs[log_id]
    path, group_id = directory.path, known.group_id
    index = replayed.flushed_index + 1
    rows: list[Row] = []
    if replayed.lost:
        rows.append(_bad_row(path, group_id, index, GIVEN_UP if known.lost else LOST))
    journal = JournalReader(directory.fs, f"{path}/journal")
    try:
        for found in entries_or_damage(directory.files(known), replayed, journal):
            is_wanted = replayed.first_index <= index <= replayed.commit and not replayed.lost
            if is_wanted and isinstance(found, int):
                rows.append(_bad_row(path, group_id, index, DAMAGED))
            elif is_wanted and isinstance(found, StoredEntry):
                rows.append(_good_row(path, group_id, found))
            index += 1
    finally:
        journal.close()
    # The journal may have a commit index before its entries: they were not acknowledged here.
    end = min(replayed.commit, replayed.last_index) + 1
    rows += [
        _bad_row(path, group_id, n, MISSING) for n in indexes(max(index, replayed.first_index), end)
    ]
    return rows


def read_piece(piece: Piece) -> Iterator[pa.RecordBatch]:
    """Yield every entry of a piece, as FOUND rows. Runs on executors."""
    rows: list[Row] = []
    for row in _walk(piece):
        rows.append(row)
        if len(rows) >= BATCH_ROWS:
            yield _batch(rows)
            rows = []
    if rows:
        yield _batch(rows)


def _batch(rows: list[Row]) -> pa.RecordBatch:
    columns = [list(column) for column in zip(*rows, strict=True)]
    return pa.RecordBatch.from_arrays(
        [pa.array(c, field.type) for c, field in zip(columns, FOUND, strict=True)], schema=FOUND
    )


def _walk(piece: Piece) -> Iterator[Row]:
    files = LogFiles(
        RealFileSystem(), log_directory(piece.directory, piece.log_id), piece.log_id,
        piece.group_id, INDEX_ENTRIES,
    )  # fmt: skip
    index = piece.first
    while index < piece.end:
        try:
            for entry in _entries(files, piece, index):
                yield _good_row(piece.directory, piece.group_id, entry)
                index = entry.index + 1
        except (StorageError, OSError):
            yield _bad_row(piece.directory, piece.group_id, index, _what(files, piece, index))
            index += 1


def _entries(files: LogFiles, piece: Piece, index: Index) -> Iterator[StoredEntry]:
    """Yield the good entries from `index` on.

    An entry's Idx, which has a CRC of its own, gives the position of its frame. A bad Idx is no
    damage, since it can be rebuilt: at the beginning of a piece its segment is walked instead.
    Raises StorageError, OSError.
    """
    try:
        idx = files.idx(index)
    except IndexDamaged:
        if index > piece.first or piece.number == NO_SEGMENT:
            raise
        walk = files.walk(SegmentInfo(piece.number, piece.segment_first, Offset(0)), piece.end)
    else:
        if piece.number not in {NO_SEGMENT, idx.segment}:
            raise EntriesDamaged(index, index + 1, 0)
        segment = SegmentInfo(idx.segment, piece.segment_first, Offset(0))
        walk = files.walk(segment, piece.end, index=index, position=idx.position)
    for entry, _, _ in walk:
        if entry.index >= index:
            yield entry


def _good_row(directory: str, group_id: GroupId, entry: StoredEntry) -> Row:
    data = memoryview(entry.data)
    return (
        directory, group_id, entry.index, entry.term, entry.base_offset, crc32c(data), len(data),
        GOOD,
    )  # fmt: skip


def _bad_row(directory: str, group_id: GroupId, index: Index, what: str) -> Row:
    return directory, group_id, index, -1, -1, -1, 0, what


def _what(files: LogFiles, piece: Piece, index: Index) -> str:
    """Return the problem at the place of an entry."""
    try:
        idx = files.idx(index)
        file = files.fs.open(files.segment_path(idx.segment))
    except FileNotFoundError:
        return MISSING
    except StorageError:
        return DAMAGED if files.fs.exists(files.segment_path(piece.number)) else MISSING
    try:
        size = file.size()
        if idx.position + FRAME_BYTES > size:
            return MISSING
        if idx.position + idx.length > size:
            return TORN
        view = memoryview(file.pread(idx.length, idx.position))
    except OSError:
        return DAMAGED
    finally:
        file.close()
    if not any(view):
        return MISSING
    try:
        entry = read_frame(view, 0, piece.group_id, idx.position)
    except CorruptRecord:
        half = len(view) // 2
        return TORN if not any(view[half:]) else DAMAGED
    return MISPLACED if entry.index != index else DAMAGED
