"""Opening of a data directory: restores its logs from identity, segments, journal and meta.

Replay gives the state that each log should have. Then its segments are examined: files of a reset
or of an unfinished flush are noted as stale, the last Idx gives the position of the next frame, and
a binary search over Idx finds the terms. Entries that only the journal holds are read back into the
tail. A log whose segments lack entries that the journal expects there is lost, like one whose
journal records are missing: it is opened empty after everything acknowledged, and never used again.

Does not depend on how the store continues from here.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

from ids import NO_INDEX, NO_TERM, LogId, NodeId, ReplicaNumber, indexes
from segments.api import CorruptRecord, StorageError
from segments.compaction.note import read_note
from segments.directory.identity import Identity
from segments.format.block import FLUSHED, RECORD_BYTES
from segments.format.names import log_directory, sequence_of
from segments.io.fs import FileSystem
from segments.log.log import Batch, DiskLog, Install, Run
from segments.log.segment import LogFiles
from segments.log.segment_header import SegmentInfo
from segments.log.tail_cache import TailCache
from segments.log.terms import TermRuns
from segments.meta.file import Meta
from segments.recovery.placed import (
    cursor_of,
    flush_damaged,
    is_unproved,
    placed_segments,
    placement_of,
    write_again,
)
from segments.recovery.replay import Progress, Replay, no_progress
from segments.recovery.replayed_log import ReplayedLog
from segments.recovery.tail import JournalReader, journal_entries, live_sequence


@dataclass(slots=True)
class Recovered:
    """Result of the recovery.

    `newly_lost` are log ids not known as lost before. `carried` is repeated in the first block of
    the next journal file. Stale files no longer count; they are removed once that block is durable,
    because they may be the only proof until then.
    """

    carried: Batch
    identity: Identity
    meta: Meta
    cache: TailCache
    logs: dict[LogId, DiskLog] = field(default_factory=dict)
    replay: Replay = field(default_factory=Replay)
    newly_lost: list[LogId] = field(default_factory=list)
    stale_files: list[str] = field(default_factory=list)
    stale_directories: list[str] = field(default_factory=list)
    form: int = 1
    """Form of the directory; data that requires a higher one is not written."""
    strays: list[str] = field(default_factory=list)
    """Paths among the store's files that are not its own."""


def recover(
    fs: FileSystem,
    directory: str,
    identity: Identity,
    replay: Replay,
    cache: TailCache,
    meta: Meta,
    index_entries: int,
    progress: Progress = no_progress,
) -> Recovered:
    """Read everything back, as the journal describes it.

    Blocks. Writes only indexes that must be rebuilt.
    """
    journal_directory = f"{directory}/journal"
    found = Recovered(_carry(replay), identity, meta, cache, replay=replay)
    carried_from = replay.carried_from
    reader = JournalReader(fs, journal_directory)
    for n, (log_id, replayed) in enumerate(replay.logs.items()):
        progress("logs", n, len(replay.logs))
        known = identity.logs[log_id]
        files = LogFiles(
            fs, log_directory(directory, log_id), log_id, known.group_id, index_entries
        )
        try:
            segments = _segments(files, replayed, found)
            opened = files, known.replica_number, cache, replayed, segments, reader, carried_from
            try:
                log = _open_log(*opened)
            except (CorruptRecord, FileNotFoundError):
                if not flush_damaged(files, replayed, segments, reader, meta.applied(log_id)):
                    raise
                log = _open_log(*opened)
                # Otherwise the file with these entries is released, and only marks record the
                # reason.
                log.touch(found.carried)
                log.stage_state(found.carried, FLUSHED, 0, log.flushed_index, log.flushed_offset)
        except (StorageError, FileNotFoundError):
            log = _open_lost(files, known.replica_number, cache, replayed)
        log.applied = meta.applied(log_id)
        meta.expect(log_id, replayed.applied)
        log.is_lost = log.is_lost or replayed.lost
        if log.applied > log.last:
            log.is_lost = True  # only entries that were durable here are ever applied
        elif log.applied > log.hard.commit:
            log.hard.commit = log.applied
        if log.is_lost and not known.lost:
            found.newly_lost.append(log_id)
        log.is_written_off = log.is_lost  # the identity says so before anything is written
        found.logs[log_id] = log
    reader.close()
    meta.check(found.logs)
    for log in found.logs.values():
        _settle_meta(log, meta)
    return found


def _settle_meta(log: DiskLog, meta: Meta) -> None:
    """Set the log's applied state, now that all of meta was read.

    A damaged checkpoint covers nothing: after a trim up to it, or without the installed state,
    there would be no state to start from.
    """
    if log.id in meta.outdated:
        log.applied = NO_INDEX
        log.is_meta_lost = True
    install = log.install
    # Entries after the reset are trimmed only once a checkpoint covers its state.
    if install and (meta.covers(log.id, install) or log.first > install.first_index):
        log.note_covered()


def _open_log(
    files: LogFiles,
    replica_number: ReplicaNumber,
    cache: TailCache,
    replayed: ReplayedLog,
    segments: list[SegmentInfo],
    journal: JournalReader,
    carried_from: tuple[int, int],
) -> DiskLog:
    """Open a log from its segments up to the durable end and its journal entries after it.

    Raises StorageError or FileNotFoundError.
    """
    end = replayed.flushed_index + 1
    # A prefix trimmed beyond the durable end is read back first and trimmed then.
    trimmed_ahead = replayed.first_index > end
    log = DiskLog(
        files,
        replica_number,
        cache,
        first_index=end if trimmed_ahead else replayed.first_index,
        prev_term=NO_TERM if trimmed_ahead else replayed.prev_term,
        next_offset=replayed.flushed_offset if trimmed_ahead else replayed.start_offset,
    )
    log.recovered(segments)
    log.is_void = replayed.is_void
    log.flushed_index = log.tail.flushed_index = log.last = replayed.flushed_index
    log.flushed_offset = log.offset = replayed.flushed_offset
    if segments:
        log.compacted = read_note(files.fs, files.directory, files.log_id)
        numbers = {segment.number for segment in segments}
        log.cursor = files.healing(segments, end, lambda: cursor_of(files, end - 1, numbers))
        first = max(log.first, segments[0].first_index)
        for run in files.healing(segments, end, lambda: files.term_runs(first, end)):
            log.terms.add(*run)
    try:
        _read_tail(log, replayed, journal, carried_from)
        log.placement = placement_of(log, replayed)
        if is_unproved(log, replayed, carried_from):
            write_again(log)
        if trimmed_ahead:
            log.trim(replayed.first_index)
    except BaseException:
        # The log is opened again in another way, and these would be counted for ever.
        cache.unflushed -= log.unflushed
        cache.release(log.tail)
        raise
    _set_state(log, replayed)
    return log


def _read_tail(
    log: DiskLog, replayed: ReplayedLog, journal: JournalReader, carried_from: tuple[int, int]
) -> None:
    """Read back entries, and an installed state, that only the journal has.

    Raises StorageError or FileNotFoundError.
    """
    for entries in journal_entries(log.files, replayed, journal):
        log.stage(entries, Batch(0))
    log.runs = _runs(replayed, carried_from)
    if replayed.installed is not None:
        ref = replayed.installed
        (found,) = journal.entries(log.group, [ref], ref.length)
        log.install = Install(
            found.timestamp, found.index, found.term, found.base_offset, bytes(found.data)
        )
        log.install_sequence = live_sequence(ref, carried_from)


def _set_state(log: DiskLog, replayed: ReplayedLog) -> None:
    hard = log.hard
    hard.term, hard.vote = replayed.term, replayed.vote
    last_term = log.terms.term(log.last)
    if last_term > hard.term:
        # Entries of a term reached the disk in a block before the one with the term. This replica
        # had not voted in it: a vote is durable before it is sent.
        hard.term, hard.vote = last_term, NodeId(0)
    # A commit index may have been written in a block before that of its entries.
    hard.commit = max(log.flushed_index, min(replayed.commit, log.last), log.first - 1)
    log.sequence = replayed.sequence if replayed.sequence >= 0 else replayed.sequence_hint


def _open_lost(
    files: LogFiles, replica_number: ReplicaNumber, cache: TailCache, replayed: ReplayedLog
) -> DiskLog:
    """Open a lost log so that it can be reported: no entries, its hard state, marked as lost."""
    log = DiskLog(
        files, replica_number, cache, first_index=replayed.last_index + 1, prev_term=NO_TERM,
        next_offset=replayed.flushed_offset,
    )  # fmt: skip
    log.terms = TermRuns(log.first - 1, replayed.term)
    _set_state(log, replayed)
    log.is_void = False
    log.is_lost = True
    return log


def _segments(files: LogFiles, replayed: ReplayedLog, found: Recovered) -> list[SegmentInfo]:
    """Return the segments that hold entries up to the durable end; note others as stale.

    Raises CorruptRecord if there are none or they do not follow each other.
    """
    if replayed.is_void:
        if files.fs.exists(files.directory):
            found.stale_directories.append(files.directory)
        return []
    segments, begun = files.segments(replayed.flushed_index, found.strays)
    kept = placed_segments(replayed)
    begun = [path for path in begun if path not in {files.segment_path(n) for n in kept}]
    unused = [
        s for s in segments if s.first_index > replayed.flushed_index and s.number not in kept
    ]
    segments = [s for s in segments if s.first_index <= replayed.flushed_index]
    while len(segments) > 1 and segments[1].first_index <= replayed.first_index:
        unused.append(segments.pop(0))
    found.stale_files += begun + [files.segment_path(s.number) for s in unused]
    found.stale_files += files.indexes_below(replayed.first_index)
    if not segments or segments[0].first_index > replayed.first_index:
        raise CorruptRecord("segments missing", replayed.first_index)
    for before, after in pairwise(segments):
        follows = before.last_sequence + 1
        if sequence_of(after.number) != follows:
            raise CorruptRecord("segment missing", after.number, expected=follows)
    return segments


def _carry(replay: Replay) -> Batch:
    """Return the blocks that are not proved durable as one batch."""
    batch = Batch(0)
    for block in replay.carried:
        batch.records += [
            block.table[n : n + RECORD_BYTES] for n in range(0, len(block.table), RECORD_BYTES)
        ]
        if len(block.frames):
            batch.buffers.append(block.frames)
            batch.bytes += len(block.frames)
    return batch


def _runs(replayed: ReplayedLog, carried_from: tuple[int, int]) -> list[Run]:
    """Return the journal files that hold the unflushed entries; CARRIED is the next file."""
    runs: list[Run] = []
    for index in indexes(replayed.flushed_index + 1, replayed.last_index + 1):
        ref = replayed.frames.get(index)
        if ref is None:
            break
        sequence = live_sequence(ref, carried_from)
        if runs and runs[-1].sequence == sequence:
            runs[-1].last = index
        else:
            runs.append(Run(sequence, index, index))
    return runs
