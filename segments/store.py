"""The disk engine: one journal for all logs, segments behind it, the tail cache before it.

`DiskStore` keeps the contract of `segments.api` by joining the parts: a staged batch goes to the
journal; committed entries go to segments at a checkpoint; journal files that nothing needs are
released; logs are born and die in the identity file. One checkpoint or one chore (removing files of
a reset or deleted log) runs at a time, so that no two touch the same files.

Must not know: Raft, Kafka, wall-clock time; formats are the other modules' business.
"""

from __future__ import annotations

import errno
import random
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TypeVar

from segments import cold, failpoint
from segments.api import (
    Buffer,
    Compacted,
    EntryLike,
    HardState,
    Log,
    MetaBatch,
    Slices,
    StorageError,
    StoredEntry,
    StoreOptions,
    Workers,
)
from segments.block import FLUSHED, TRIM, Mark
from segments.cache import Cache
from segments.flusher import FlushPlan, FlushResult, FlushSpan, run_flush
from segments.fs import FileSystem, Lock, make_durable_directory
from segments.identity import (
    Identity,
    LogIdentity,
    encode,
    read_identity,
    write_identity,
)
from segments.journal import Journal
from segments.leftovers import remove_log, remove_stale, remove_strangers
from segments.log import Batch, DiskLog
from segments.meta import Meta
from segments.pending_meta import MetaCommit, PendingMeta
from segments.recovery import CARRIED, Recovered, log_directory, recover
from segments.retention import remove_below
from segments.segment import Cursor, LogFiles

T = TypeVar("T")
FLUSH_BYTES_MIN = 16 << 10
"""Smaller tails stay in the journal and are written again at its head, once, before a flush."""
JOURNAL_FILES_MIN = 3
"""The file being written, and two that wait for their entries to reach segments."""
DISK_FULL_RETRY_MS = 1000


class DiskStore:
    """`segments.api.Store` on a file system."""

    def __init__(
        self,
        fs: FileSystem,
        directory: str,
        workers: Workers,
        options: StoreOptions,
        *,
        lock: Lock,
        identity: Identity,
        meta: Meta,
        cache: Cache,
        recovered: Recovered,
        journal: Callable[[DiskStore], Journal],
    ) -> None:
        self.on_durable: Callable[[int], None] = _ignore
        self.on_fatal: Callable[[BaseException], None] = _ignore
        self.collect_meta: Callable[[], list[MetaBatch]] = list
        self._fs = fs
        self._directory = directory
        self._workers = workers
        self._options = options
        self._lock = lock
        self._identity = identity
        self._meta = meta
        self._cache = cache
        self._recovered = recovered
        self._logs = recovered.logs
        self._logs_view: Mapping[int, Log] = MappingProxyType(self._logs)
        self._journal = journal(self)
        self._failed = False
        self._closing: Callable[[], None] | None = None
        # identity
        self._newborn: list[tuple[DiskLog, Callable[[Log], None]]] = []
        self._identity_armed = False
        self._identity_writing = False
        self._identity_dirty = False
        # checkpoints and chores
        self._dirty: dict[int, DiskLog] = {
            log.id: log for log in self._logs.values() if log.hard.commit > log.flushed_index
        }
        self._checkpoint_running = False
        self._checkpoint_armed = False
        self._checkpoint_waiters: list[Callable[[], None]] = []
        self._pending_meta = PendingMeta()
        self._bytes_at_checkpoint = 0
        self._entries_since = 0
        self._note_token = 0
        self._chores: deque[tuple[int, Callable[[], None]]] = deque()
        self._chore_running = False
        self.disk_full = False
        self._checkpoints = 0
        self._flushed_bytes = 0

    # --- opening ------------------------------------------------------------------------------
    @classmethod
    def open(
        cls,
        fs: FileSystem,
        directory: str,
        workers: Workers,
        options: StoreOptions,
        rng: random.Random,
        *,
        now_ns: Callable[[], int] = lambda: 0,
    ) -> DiskStore:
        """Recover the directory, or make one; blocks. `now_ns` is only for sync latencies.

        Raises DirectoryInUse, CorruptRecord (identity), OSError.
        """
        for name in ("journal", "logs", "deleted"):
            make_durable_directory(fs, f"{directory}/{name}")
        lock = fs.lock(f"{directory}/lock")
        meta: Meta | None = None
        try:
            identity = read_identity(fs, directory)
            if identity is None:
                identity = Identity(rng.randbytes(16))
                write_identity(fs, directory, encode(identity))
            remove_strangers(fs, directory, identity)
            meta = Meta(fs.open_meta(f"{directory}/meta", options.meta_map_bytes))
            fs.sync_directory(directory)
            cache = Cache(options.cache_bytes_max)
            recovered = recover(fs, directory, identity, cache, meta, options.index_segment_entries)
            if recovered.newly_lost:
                for log_id in recovered.newly_lost:
                    identity.logs[log_id].lost = True
                write_identity(fs, directory, encode(identity))
            store = cls(
                fs, directory, workers, options, lock=lock, identity=identity, meta=meta,
                cache=cache, recovered=recovered,
                journal=lambda owner: Journal(
                    fs, f"{directory}/journal", workers, options, rng, owner, now_ns
                ),
            )  # fmt: skip
            replay = recovered.replay
            failpoint.hit("open.recovered")
            store._journal.open(replay.position, replay.live, replay.spare, recovered.carried)
            failpoint.hit("open.carried")
            store._settle_carried()
            remove_stale(fs, [*recovered.stale_files, *replay.scrap], recovered.stale_directories)
            failpoint.hit("open.done")
        except BaseException:
            if meta is not None:
                meta.close()
            lock.release()
            raise
        return store

    def _settle_carried(self) -> None:
        """What was carried over now lies in the file just opened."""
        sequence = self._journal.current_sequence
        for log in self._logs.values():
            for run in log.runs:
                if run.sequence == CARRIED:
                    run.sequence = sequence
            if log.install_sequence == CARRIED:
                log.install_sequence = sequence
        self._recovered.replay.carried.clear()
        self._recovered.carried = Batch(0)

    # --- identity -----------------------------------------------------------------------------
    @property
    def directory_id(self) -> bytes:
        return self._identity.directory_id

    @property
    def logs(self) -> Mapping[int, Log]:
        return self._logs_view

    @property
    def durable_token(self) -> int:
        return self._journal.durable_token

    @property
    def unflushed_bytes(self) -> int:
        return self._cache.unflushed

    def cluster_record(self) -> bytes:
        return self._identity.cluster_record

    def adopt_cluster(self, record: bytes) -> None:
        self._identity.cluster_record = bytes(record)
        write_identity(self._fs, self._directory, encode(self._identity))

    def create_log(
        self,
        group_id: int,
        replica_number: int,
        *,
        first_index: int = 1,
        prev_term: int = 0,
        next_offset: int = 0,
        on_created: Callable[[Log], None],
    ) -> None:
        log_id = self._identity.next_log_id
        self._identity.next_log_id += 1
        self._identity.logs[log_id] = LogIdentity(
            log_id, group_id, replica_number, first_index, next_offset, prev_term
        )
        files = LogFiles(
            self._fs, log_directory(self._directory, log_id), log_id, group_id,
            self._options.index_segment_entries,
        )  # fmt: skip
        log = DiskLog(
            files, replica_number, self._cache, first_index=first_index, prev_term=prev_term,
            next_offset=next_offset,
        )  # fmt: skip
        self._newborn.append((log, on_created))
        self._touch_identity()

    def delete_log(self, log_id: int) -> None:
        log = self._logs.pop(log_id)
        log.deleted = True
        log.generation += 1
        self._dirty.pop(log_id, None)
        self._pending_meta.forget(log_id)
        self._cache.unflushed -= log.unflushed
        self._cache.release(log.tail)
        del self._identity.logs[log_id]
        self._touch_identity()
        fs, directory, meta = self._fs, self._directory, self._meta

        def remove() -> None:
            remove_log(fs, directory, log_id)
            meta.forget(log_id)
            failpoint.hit("delete.forgotten")

        # After the identity no longer lists the log: a crash in between resurrects nothing.
        self._chores.append((0, lambda: self._run_chore(remove)))

    def _touch_identity(self) -> None:
        """Write the identity file at the end of this turn, once for all changes of the turn."""
        self._identity_dirty = True
        if not self._identity_armed and not self._identity_writing:
            self._identity_armed = True
            self._workers.call_later(0, self._write_identity)

    def _write_identity(self) -> None:
        self._identity_armed = False
        if self._failed or self._identity_writing or not self._identity_dirty:
            return
        self._identity_dirty = False
        self._identity_writing = True
        data = encode(self._identity)
        newborn, self._newborn = self._newborn, []
        fs, directory = self._fs, self._directory

        def job() -> None:
            write_identity(fs, directory, data)

        def done(result: BaseException | None) -> None:
            self._identity_writing = False
            if isinstance(result, BaseException):
                self._fail(result)
                return
            if self._identity_dirty:
                self._write_identity()
            for log, on_created in newborn:
                if not log.deleted and log.id in self._identity.logs:
                    self._logs[log.id] = log
                    on_created(log)
            self._next_chore()

        self._workers.pool(job, done)

    # --- staging ------------------------------------------------------------------------------
    def append(self, log: Log, entries: Sequence[EntryLike]) -> None:
        if not entries:
            return
        assert isinstance(log, DiskLog), type(log)
        first = entries[0].index
        assert log.hard.commit < first <= log.last + 1, (log.hard.commit, first, log.last)
        is_cut = first <= log.last
        log.stage(entries, self._journal.batch)
        failpoint.hit("truncate.staged" if is_cut else "append.staged")
        if not self._checkpoint_armed:
            self._arm_checkpoint()

    def set_hard_state(self, log: Log, state: HardState) -> None:
        assert isinstance(log, DiskLog), type(log)
        log.stage_hard(state, self._journal.batch)
        failpoint.hit("hard.staged")
        if state.commit > log.flushed_index:
            self._dirty[log.id] = log

    def reset_log(
        self, log: Log, *, first_index: int, prev_term: int, next_offset: int, state: Buffer = b""
    ) -> None:
        assert isinstance(log, DiskLog), type(log)
        assert first_index > log.hard.commit, (first_index, log.hard.commit)
        batch = self._journal.batch
        log.reset(first_index, prev_term, next_offset, bytes(state), batch)
        failpoint.hit("reset.staged")
        self._dirty.pop(log.id, None)
        fs, directory, log_id = self._fs, self._directory, log.id
        generation = log.generation

        def remove() -> None:
            remove_log(fs, directory, log_id)

        def chore() -> None:
            if log.deleted or log.generation != generation:
                self._next_chore()
                return
            self._run_chore(remove, lambda: log.allow_flush(generation))

        self._chores.append((batch.token, chore))

    def trim_log(self, log: Log, *, first_index: int) -> None:
        assert isinstance(log, DiskLog), type(log)
        assert first_index <= log.hard.commit + 1, (first_index, log.hard.commit)
        if first_index <= log.first:
            return
        assert log.install is None, "what follows an installed state is needed until it is covered"
        log.trim(first_index)
        batch = self._journal.batch
        log.stage_state(batch, TRIM, log.terms.terms[0], first_index, log.start_offset)
        failpoint.hit("trim.staged")
        generation = log.generation

        def chore() -> None:
            if log.generation != generation:
                self._next_chore()
                return
            # This record's index: a later one may not be durable yet.
            files, segments = log.files, log.segments
            keep = [s for s in segments[1:] if s.first_index > first_index]
            gone = segments[: max(0, len(segments) - len(keep) - 1)]
            log.segments = segments[len(gone) :]
            self._run_chore(lambda: remove_below(files, gone, first_index))

        self._chores.append((batch.token, chore))

    def submit(self, *, urgent: bool = True) -> int:
        return self._journal.submit(urgent=urgent)

    # --- the journal's owner ------------------------------------------------------------------
    def journal_marks(self) -> list[Mark]:
        return [self._logs[log_id].mark() for log_id in sorted(self._logs)]

    def journal_written(self, batch: Batch | None) -> None:
        if batch is not None:
            for span in batch.spans:
                span.log.note_journaled(batch.sequence, span.first, span.last)
            for log, generation in batch.installs:
                log.note_installed(batch.sequence, generation)
            self._entries_since += batch.entries
            if (
                self._entries_since >= self._options.checkpoint_entries
                or self._journal.bytes - self._bytes_at_checkpoint >= self._options.checkpoint_bytes
            ):
                self.checkpoint()
            if self._note_token and self._journal.durable_token >= self._note_token:
                self._release_files()
            self.on_durable(self._journal.durable_token)
        if self._chores:
            self._next_chore()
        if self._closing is not None:
            self._try_close()

    def journal_failed(self, error: BaseException) -> None:
        self._fail(error)

    def _release_files(self) -> None:
        """The notes of the last checkpoint are durable: let go of journal files below the oldest
        that still holds an entry which no segment has."""
        if self._journal.partly_written:
            return
        self._note_token = 0
        needed = self._journal.current_sequence
        for log in self._logs.values():
            if not log.is_lost:
                needed = min(needed, log.oldest_needed() or needed)
        self._journal.release(needed)

    # --- checkpoints --------------------------------------------------------------------------
    def checkpoint(self, done: Callable[[], None] | None = None) -> None:
        if done is not None:
            self._checkpoint_waiters.append(done)
        if self._checkpoint_running or self._chore_running or self._failed:
            return
        if self._closing is not None:
            return
        self._checkpoint_running = True
        self._bytes_at_checkpoint = self._journal.bytes
        self._entries_since = 0
        self._pending_meta.collect(self.collect_meta(), self._logs)
        commit = self._pending_meta.take(self._logs, self._journal.durable_token)
        plans = [
            self._plan(log) for _, log in sorted(self._dirty.items()) if self._should_flush(log)
        ]
        meta = self._meta

        def job() -> list[FlushResult]:
            failpoint.hit("checkpoint.begun")
            results = [run_flush(plan) for plan in plans]
            failpoint.hit("checkpoint.flushed")
            if commit.batches:
                meta.commit(commit.batches, commit.covered)
            return results

        def finished(result: list[FlushResult] | BaseException) -> None:
            self._checkpointed(result, commit)

        self._workers.pool(job, finished)

    def _should_flush(self, log: DiskLog) -> bool:
        if log.flush_blocked or log.is_lost:
            return False
        if log.unflushed >= FLUSH_BYTES_MIN or log.rewritten:
            return True
        return log.last - log.flushed_index >= self._options.checkpoint_entries // 100

    def _plan(self, log: DiskLog) -> FlushPlan:
        """What a flush of everything committed writes."""
        first, last = log.flushed_index + 1, log.hard.commit
        assert first <= last, (log.id, first, last)
        spans: list[FlushSpan] = []
        size = 0
        for chunk, start, stop in log.tail.spans(first, last + 1):
            position = chunk.start_of(start)
            spans.append(
                FlushSpan(
                    chunk.readonly, chunk.entries[start:stop], chunk.ends[start:stop], position
                )
            )
            size += chunk.ends[stop - 1] - position
        cursor = log.cursor
        return FlushPlan(
            log.files, log.generation, first, last, log.offset_after(last), size,
            Cursor(cursor.segment, cursor.position, cursor.max_timestamp), spans,
            self._options.segment_bytes,
        )  # fmt: skip

    def _checkpointed(self, result: list[FlushResult] | BaseException, commit: MetaCommit) -> None:
        self._checkpoint_running = False
        if self._closing is not None:
            # The closing block is written: a start finds these entries in the journal.
            self._try_close()
            return
        if isinstance(result, BaseException):
            if not _is_disk_full(result):
                self._fail(result)
                return
            # The data is still in the journal; the same entries overwrite what was begun.
            self.disk_full = True
            self._workers.call_later(DISK_FULL_RETRY_MS, self.checkpoint)
        else:
            self.disk_full = False
            self._checkpoints += 1
            for flushed in result:
                self._apply_flush(flushed)
            self._pending_meta.saved(commit, self._logs)
            self._rewrite_tails()
            self._cache.evict()
            failpoint.hit("checkpoint.noted")
            self._note_token = self._journal.submit(urgent=False)
            if self._journal.durable_token >= self._note_token:
                self._release_files()
            self._dirty = {
                log_id: log
                for log_id, log in self._dirty.items()
                if log.hard.commit > log.flushed_index
            }
        waiters, self._checkpoint_waiters = self._checkpoint_waiters, []
        for waiter in waiters:
            waiter()
        self._next_chore()

    def _apply_flush(self, result: FlushResult) -> None:
        plan = result.plan
        log = self._logs.get(result.log_id)
        if log is None or log.generation != plan.generation:
            return
        for number, max_timestamp in result.sealed:
            for segment in log.segments:
                if segment.number == number:
                    segment.max_timestamp = max_timestamp
        log.segments += result.opened
        log.cursor = result.cursor
        log.flushed_index = plan.last
        log.flushed_offset = plan.next_offset
        log.is_void = False
        log.rewritten = False
        log.unflushed -= plan.bytes
        self._cache.unflushed -= plan.bytes
        self._flushed_bytes += plan.bytes
        self._cache.flushed(log.tail, plan.last)
        log.stage_state(self._journal.batch, FLUSHED, 0, plan.last, plan.next_offset)

    def _rewrite_tails(self) -> None:
        """When the journal has grown beyond what its live entries excuse, write again at its head
        what only the oldest file holds: uncommitted entries, tails too small for a flush, and
        installed states.

        Votes need no rewriting: each file's header carries them. The journal may be twice as long
        as what no segment holds, so rewriting never costs more than the appends that caused it.
        """
        live = self._cache.unflushed + sum(len(log.installed_state) for log in self._logs.values())
        excused = 2 * live // self._options.journal_file_bytes
        if self._journal.file_count <= JOURNAL_FILES_MIN + excused:
            return
        needed = {
            log_id: sequence
            for log_id, log in self._logs.items()
            if not log.is_lost and (sequence := log.oldest_needed())
        }
        oldest = min(needed.values(), default=0)
        if not oldest or oldest == self._journal.current_sequence:
            return
        for log_id in sorted(needed):
            if needed[log_id] == oldest:
                self._logs[log_id].restage(oldest, self._journal.batch)

    def _arm_checkpoint(self) -> None:
        self._checkpoint_armed = True
        self._workers.call_later(self._options.checkpoint_interval_ms, self._checkpoint_due)

    def _checkpoint_due(self) -> None:
        self._checkpoint_armed = False
        if self._closing is None:
            self.checkpoint()

    # --- chores -------------------------------------------------------------------------------
    def _next_chore(self) -> None:
        """Begin the oldest chore whose record is durable, if nothing else is at the files.

        Not while a checkpoint's notes are not durable: a crash would fall back to the segments
        from before it, so none of those may go yet.
        """
        if self._checkpoint_running or self._chore_running or self._failed:
            return
        if self._closing is not None:
            return  # the next start finishes what the records say
        if not self._chores or self._chores[0][0] > self._journal.durable_token:
            return
        if self._identity_dirty or self._identity_writing or self._note_token:
            return
        self._chores.popleft()[1]()

    def _run_chore(self, job: Callable[[], None], then: Callable[[], None] | None = None) -> None:
        self._chore_running = True

        def done(result: BaseException | None) -> None:
            self._chore_running = False
            if isinstance(result, BaseException):
                self._fail(result)
                return
            if then is not None:
                then()
            self._next_chore()
            if self._checkpoint_waiters:
                self.checkpoint()
            if self._closing is not None:
                self._try_close()

        self._workers.pool(job, done)

    # --- cold reads -------------------------------------------------------------------------
    def read_cold(
        self,
        log: Log,
        offset: int,
        end_index: int,
        bytes_max: int,
        done: Callable[[Slices | StorageError], None],
    ) -> None:
        assert isinstance(log, DiskLog), type(log)
        self._run_cold(cold.read(log, offset, end_index, bytes_max), done)

    def entries_cold(
        self,
        log: Log,
        first: int,
        end: int,
        bytes_max: int,
        done: Callable[[list[StoredEntry] | StorageError], None],
    ) -> None:
        assert isinstance(log, DiskLog), type(log)
        self._run_cold(cold.entries(log, first, end, bytes_max), done)

    def index_of_timestamp(
        self,
        log: Log,
        timestamp_ms: int,
        end_index: int,
        done: Callable[[int | StorageError], None],
    ) -> None:
        assert isinstance(log, DiskLog), type(log)
        job, end = cold.index_of_timestamp(log, timestamp_ms, end_index)

        def found(index: int | StorageError) -> None:
            if not isinstance(index, StorageError) and index >= end:
                index = cold.index_in_tail(log, timestamp_ms, end, end_index + 1)
            done(index)

        self._run_cold(job, found)

    def _run_cold(self, job: Callable[[], T], done: Callable[[T | StorageError], None]) -> None:
        def finished(result: T | BaseException) -> None:
            if isinstance(result, FileNotFoundError):
                done(Compacted("the segment was deleted meanwhile"))
            elif isinstance(result, OSError):
                self._fail(result)
            elif isinstance(result, BaseException) and not isinstance(result, StorageError):
                raise result
            else:
                done(result)

        self._workers.pool(job, finished)

    # --- meta ---------------------------------------------------------------------------------
    def load_meta(self, log: Log) -> tuple[int, list[tuple[bytes, bytes]]]:
        return self._meta.load(log.log_id)

    # --- life ---------------------------------------------------------------------------------
    def close(self, done: Callable[[], None]) -> None:
        assert self._closing is None, "closed twice"
        self._closing = done
        self._journal.close()

    def _try_close(self) -> None:
        if not self._journal.closed or self._checkpoint_running or self._chore_running:
            return
        if self._identity_writing or self._closing is None:
            return
        done, self._closing = self._closing, None
        self.abandon()
        done()

    def abandon(self) -> None:
        """Let go of the directory without writing: what a killed process leaves behind."""
        self._failed = True
        self._journal.abandon()
        self._meta.close()
        self._lock.release()

    def _fail(self, error: BaseException) -> None:
        if not self._failed:
            self._failed = True
            self.on_fatal(error)

    def stats(self) -> dict[str, float]:
        cache, journal, replay = self._cache, self._journal, self._recovered.replay
        return {
            "logs": len(self._logs),
            "logs_lost": sum(log.is_lost for log in self._logs.values()),
            "segments": sum(len(log.segments) for log in self._logs.values()),
            "unflushed_bytes": cache.unflushed,
            "cache_bytes": cache.bytes,
            "cache_hits": cache.hits,
            "cache_misses": cache.misses,
            "cache_chunks_evicted": cache.evicted,
            "journal_blocks": journal.blocks,
            "journal_bytes": journal.bytes,
            "journal_files": journal.file_count,
            "journal_write_ns_total": journal.write_ns_total,
            "journal_write_ns_max": journal.write_ns_max,
            "checkpoints": self._checkpoints,
            "flushed_bytes": self._flushed_bytes,
            "disk_full": self.disk_full,
            "failpoints": len(failpoint.armed),
            "recovered_blocks": replay.blocks,
            "recovered_torn_bytes": replay.torn_bytes,
            "recovered_damaged_blocks": replay.damaged_blocks,
        }


def _is_disk_full(error: BaseException) -> bool:
    return isinstance(error, OSError) and error.errno == errno.ENOSPC


def _ignore(_: object) -> None:
    """Nobody listens yet."""
