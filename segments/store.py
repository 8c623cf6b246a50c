"""The disk engine: one journal for all logs, segments behind it, the tail cache before it.

`DiskStore` keeps the contract of `segments.api` by joining the parts: a staged batch goes to the
journal; committed entries go to segments at a checkpoint; journal files that nothing needs are
released; logs are born and die in the identity file. One checkpoint or one chore (removing files of
a reset or deleted log) runs at a time, so that no two touch the same files.

Must not know: Raft, Kafka, wall-clock time; formats are the other modules' business.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import TypeVar

from segments.api import (
    Buffer,
    Compacted,
    CorruptRecord,
    EntriesDamaged,
    EntryLike,
    HardState,
    Log,
    MetaBatch,
    OffsetOutOfRange,
    ReadRefused,
    SegmentLimits,
    SegmentSpan,
    Slices,
    StorageError,
    StoredEntry,
    StoreOptions,
    Timer,
    Workers,
)
from segments.checkpoint.scheduler import Checkpoints
from segments.checkpoint.trimming import RemovalBelow
from segments.directory.identity import (
    Identity,
    LogIdentity,
    encode,
    write_identity,
)
from segments.directory.log_registry import Roster, identity_reserve, replace_identity
from segments.format.block import TRIM
from segments.io import failpoint
from segments.io.fs import (
    FileSystem,
    Lock,
    is_disk_full,
    is_passing,
    is_refused,
    make_durable_directory,
    sync_names_above,
)
from segments.io.jobs import Jobs
from segments.io.removals import Chore, Chores, Job
from segments.journal.allocation import Room
from segments.journal.writer import Journal, State
from segments.log import cold_reads as cold
from segments.log.log import Batch, DiskLog
from segments.log.read_ahead import AHEAD_BYTES, IDLE_MS, Key, ReadAhead
from segments.log.repair import copy_of, repair
from segments.log.scrubber import Scrubber
from segments.log.segment import LogFiles, Sealed, TimeFound
from segments.log.tail_cache import Cache
from segments.meta.file import Meta
from segments.recovery.missing_parts import check_logs, find_identity, strays_of
from segments.recovery.opening import CARRIED, Recovered, log_directory, recover
from segments.recovery.orphans import (
    Deletions,
    Removal,
    forget_strangers,
    mend_headers,
    remove_stale,
    remove_strangers,
)
from segments.recovery.replay import Progress, no_progress, replay_journal

T = TypeVar("T")


class DiskStore:
    """`segments.api.Store` on a file system."""

    def __init__(
        self,
        fs: FileSystem,
        directory: str,
        jobs: Jobs,
        options: StoreOptions,
        *,
        lock: Lock,
        identity: Identity,
        meta: Meta,
        cache: Cache,
        recovered: Recovered,
        rng: random.Random,
        now_ns: Callable[[], int],
    ) -> None:
        self.on_durable: Callable[[int], None] = _ignore
        self.on_fatal: Callable[[BaseException], None] = _ignore
        self.on_read_refused: Callable[[OSError], None] = _ignore
        """Told of each read that had to be given up for want of descriptors or memory."""
        self._reads_refused = 0
        self.collect_meta: Callable[[Sequence[Log]], list[MetaBatch]] = lambda logs: []
        self.strays: Sequence[str] = ()
        """Paths that the start found in the directory and that are not the store's."""
        self._fs = fs
        self._directory = directory
        workers: Workers = jobs
        self.workers = workers
        self._jobs = jobs
        jobs.on_rest = self._rested
        self._options = options
        self._lock = lock
        self._meta = meta
        self._cache = cache
        self._recovered = recovered
        self._logs = recovered.logs
        self._logs_view: Mapping[int, Log] = MappingProxyType(self._logs)
        self._failed = False
        self._closing: Callable[[], None] | None = None
        self._roster = Roster(
            fs, directory, workers, identity, born=self._born, written=self._listed,
            fail=self._fail,
        )  # fmt: skip
        self._journal = Journal(
            fs, f"{directory}/journal", workers, options, rng, self._logs, self, now_ns
        )
        self._queue = self._journal.queue
        self._checkpoints = Checkpoints(
            workers, options, self._logs, self._journal, meta, cache,
            spread=identity.directory_id[0],
            collect=self._collect_meta, may_begin=self._may_checkpoint,
            lists_removed=lambda: self._roster.lists_removed,
            ended=self._freed, fail=self._fail,
        )  # fmt: skip
        self._pulse = self._checkpoints.pulse
        """Of chores too: one of either runs at a time."""
        self._scrubber = Scrubber(
            workers, self._logs, options.scrub_bytes_per_second, now_ns, self._fail
        )
        self._now_ns = now_ns
        self._ahead = ReadAhead()
        self._ahead_timer: Timer | None = None
        self._reading: dict[Key, list[Callable[[cold.Found | StorageError], None]]] = {}
        """Reads for consumers under way, and who waits for each; more than one where several
        go on at one place."""
        self._chores = Chores(
            workers, may_run=self._may_run_chore, is_urgent=lambda: self.disk_full,
            ended=self._freed, fail=self._fail,
        )  # fmt: skip
        self._deletions = Deletions(
            fs, directory, meta, is_listed=self._roster.is_listed, add=self._chores.add,
            pulse=self._pulse,
        )  # fmt: skip

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
        progress: Progress = no_progress,
    ) -> DiskStore:
        """Recover the directory, or make one; blocks. `now_ns` is only for sync latencies;
        `progress` is told how far recovery is.

        Raises DirectoryInUse, CorruptRecord (identity), OSError, and DataMissing when something is
        not there that has been: nothing on disk is changed then.
        """
        may_be_new = options.accept_empty
        if not fs.exists(f"{directory}/lock"):
            find_identity(fs, directory, may_be_new=may_be_new)  # before even a lock is made
        make_durable_directory(fs, directory)
        sync_names_above(fs, directory)
        lock = fs.lock(f"{directory}/lock")
        jobs = Jobs(workers)
        meta: Meta | None = None
        store: DiskStore | None = None
        try:
            identity = find_identity(fs, directory, may_be_new=may_be_new)
            if identity is None:
                # Before anything else: what there is without an identity has lost it.
                identity = Identity(rng.randbytes(16), is_whole=False)
                write_identity(fs, directory, encode(identity))
            if not identity.is_whole:
                for name in ("journal", "logs"):
                    make_durable_directory(fs, f"{directory}/{name}")
            replay = replay_journal(fs, f"{directory}/journal", identity, progress)
            check_logs(fs, directory, replay)
            make_durable_directory(fs, f"{directory}/deleted")
            # Its name may be all that the life before it gave the identity: files go by it next.
            fs.sync_directory(directory)
            strays = remove_strangers(fs, directory, identity)
            meta = Meta(fs, f"{directory}/meta", options.meta_map_bytes)
            fs.sync_directory(directory)
            cache = Cache(options.cache_bytes_max)
            recovered = recover(
                fs, directory, identity, replay, cache, meta, options.index_segment_entries,
                progress,
            )  # fmt: skip
            if recovered.newly_lost:
                for log_id in recovered.newly_lost:
                    identity.logs[log_id].lost = True
                reserve = identity_reserve(fs, directory)
                replace_identity(fs, directory, reserve, encode(identity))
            store = cls(
                fs, directory, jobs, options, lock=lock, identity=identity, meta=meta,
                cache=cache, recovered=recovered, rng=rng, now_ns=now_ns,
            )  # fmt: skip
            failpoint.hit("open.recovered")
            store._journal.allocation.files.make_room(replay.unproved, replay.scrap)
            store._journal.open(
                replay.position, replay.live, replay.spare, recovered.carried, replay.begins
            )
            failpoint.hit("open.carried")
            store._settle_carried()
            # First the reserve, which a start that is cut here again and again would use up.
            store._journal.allocation.take_back(replay.scrap)
            remove_stale(fs, recovered.stale_files, recovered.stale_directories)
            forget_strangers(meta, identity)
            if not identity.is_whole or identity.is_half_damaged:
                is_mended, identity.is_whole = identity.is_whole, True
                try:
                    reserve = identity_reserve(fs, directory)
                    replace_identity(fs, directory, reserve, encode(identity))
                except OSError as error:
                    # The other half says it all; the next start has room for both, perhaps.
                    if not is_mended or not is_refused(error):
                        raise
            mend_headers(fs, replay)
            store.strays = strays_of(fs, directory) + strays + replay.strays + recovered.strays
            failpoint.hit("open.done")
        except BaseException:
            # What was handed over before it failed may be at the files still.
            jobs.over(partial(_let_go, None if store is None else store._journal, meta, lock))
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
        self._recovered.carried.sequence = sequence
        self._recovered.carried.note_placed()
        self._recovered.replay.carried.clear()
        self._recovered.carried = Batch(0)

    # --- identity -----------------------------------------------------------------------------
    @property
    def directory_id(self) -> bytes:
        return self._roster.directory_id

    @property
    def logs(self) -> Mapping[int, Log]:
        return self._logs_view

    @property
    def durable_token(self) -> int:
        return self._queue.durable_token

    @property
    def unflushed_bytes(self) -> int:
        return self._cache.unflushed

    @property
    def flushable_bytes(self) -> int:
        return self._checkpoints.flushable_bytes()

    @property
    def file_work(self) -> int:
        if not (self._checkpoints.is_running or self._chores.is_running):
            return 0
        return 1 + self._checkpoints.pulse.beats + self._chores.begun

    @property
    def disk_full(self) -> bool:
        return (
            self._journal.allocation.room is Room.FULL
            or self._journal.state is State.REFUSED
            or self._checkpoints.is_full
            or self._roster.is_full
            or self._chores.is_full
        )

    @property
    def accepts_appends(self) -> bool:
        return not self.disk_full

    def entry_room(self, *, is_essential: bool) -> int:
        return self._journal.entry_room(pieces_kept=3 if is_essential else 5)

    def cluster_record(self) -> bytes:
        return self._roster.cluster_record

    def adopt_cluster(self, record: bytes) -> None:
        self._roster.adopt_cluster(bytes(record))

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
        log_id = self._roster.take_id()
        files = LogFiles(
            self._fs, log_directory(self._directory, log_id), log_id, group_id,
            self._options.index_segment_entries,
        )  # fmt: skip
        log = DiskLog(
            files, replica_number, self._cache, first_index=first_index, prev_term=prev_term,
            next_offset=next_offset,
        )  # fmt: skip
        known = LogIdentity(log_id, group_id, replica_number, first_index, next_offset, prev_term)
        self._roster.add(known, log, on_created)

    def _born(self, log: DiskLog) -> None:
        self._logs[log.id] = log

    def delete_log(self, log_id: int) -> None:
        log = self._logs.pop(log_id)
        log.deleted = True
        log.generation += 1
        self._checkpoints.dirty.pop(log_id, None)
        self._checkpoints.pending.forget(log_id)
        self._cache.unflushed -= log.unflushed
        self._cache.release(log.tail)
        self._roster.remove(log_id)
        self._deletions.begin(log_id)

    # --- staging ------------------------------------------------------------------------------
    def append(self, log: Log, entries: Sequence[EntryLike]) -> None:
        if not entries:
            return
        assert isinstance(log, DiskLog), type(log)
        first = entries[0].index
        assert log.hard.commit < first <= log.last + 1, (log.hard.commit, first, log.last)
        is_cut = first <= log.last
        log.stage(entries, self._queue.batch)
        failpoint.hit("truncate.staged" if is_cut else "append.staged")
        self._checkpoints.arm()

    def set_hard_state(self, log: Log, state: HardState) -> None:
        assert isinstance(log, DiskLog), type(log)
        log.stage_hard(state, self._queue.batch)
        failpoint.hit("hard.staged")
        if state.commit > log.flushed_index:
            self._checkpoints.committed(log)

    def reset_log(
        self, log: Log, *, first_index: int, prev_term: int, next_offset: int, state: Buffer = b""
    ) -> None:
        assert isinstance(log, DiskLog), type(log)
        assert first_index > log.hard.commit, (first_index, log.hard.commit)
        batch = self._queue.batch
        log.reset(first_index, prev_term, next_offset, bytes(state), batch)
        self._checkpoints.hold_files()
        self._checkpoints.arm()  # its state is to be covered
        failpoint.hit("reset.staged")
        self._checkpoints.dirty.pop(log.id, None)
        fs, directory, log_id = self._fs, self._directory, log.id
        generation = log.generation

        def begin() -> Job | None:
            if log.deleted or log.generation != generation:
                return None
            return Removal(fs, directory, [log_id], self._pulse)

        self._chores.add(Chore(batch.token, begin, lambda: log.allow_flush(generation)))

    def trim_log(self, log: Log, *, first_index: int) -> None:
        assert isinstance(log, DiskLog), type(log)
        assert first_index <= log.hard.commit + 1, (first_index, log.hard.commit)
        if first_index <= log.first:
            return
        assert log.install is None, "what follows an installed state is needed until it is covered"
        batch = self._queue.batch
        log.touch(batch)
        log.trim(first_index)
        log.stage_state(batch, TRIM, log.terms.terms[0], first_index, log.start_offset)
        failpoint.hit("trim.staged")
        generation = log.generation

        def begin() -> Job | None:
            # This record's index: a later one may not be durable yet.
            gone = log.drop_segments(first_index) if log.generation == generation else ()
            return RemovalBelow(log.files, gone, first_index, self._pulse) if gone else None

        self._chores.add(Chore(batch.token, begin, _nothing))

    def submit(self, *, urgent: bool = True) -> int:
        return self._journal.submit(urgent=urgent)

    # --- the journal's owner ------------------------------------------------------------------
    def journal_written(self, batch: Batch | None) -> None:
        if batch is not None:
            self._checkpoints.journaled(batch.entries)
            self.on_durable(self._queue.durable_token)
        # Before the next checkpoint: under load there is always one that could begin.
        self._next_chore()
        if batch is not None:
            self._checkpoints.begin_if_pressed()
        if self._closing is not None:
            self._try_close()

    def journal_failed(self, error: BaseException) -> None:
        self._fail(error)

    # --- checkpoints and chores: one at a time, so that no two touch the same files -------------
    def checkpoint(self, done: Callable[[], None] | None = None) -> None:
        self._checkpoints.begin(done)

    def _collect_meta(self, logs: Sequence[DiskLog]) -> list[MetaBatch]:
        """As the owner has it now: it sets the callback after the store is open."""
        return self.collect_meta(logs)

    def _may_checkpoint(self) -> bool:
        return not (self._chores.is_running or self._failed or self._closing)

    def _may_run_chore(self, token: int) -> bool:
        """Its record is durable, and nothing else is at the files.

        Not while a checkpoint's notes are not durable: a crash would fall back to the segments
        from before it, so none of those may go yet. Not while the store closes: the next start
        finishes what the records say.
        """
        if self._failed or self._closing is not None or self._checkpoints.is_running:
            return False
        if token > self._queue.durable_token:
            return False
        return self._checkpoints.is_noted

    def _listed(self) -> None:
        """The identity was written."""
        self._deletions.listed()
        self._checkpoints.release_files()
        self._next_chore()

    def _next_chore(self) -> None:
        self._chores.next()
        if self._closing is not None:
            self._try_close()

    def _freed(self) -> None:
        """A checkpoint or a chore has ended."""
        self._next_chore()
        self._checkpoints.begin_for_waiters()

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
        if not log.start_offset <= offset < log.flushed_offset:
            self._run_cold(log, cold.outcome(lambda: log.read(offset, end_index, bytes_max)), done)
            return
        end_index = min(end_index, log.hard.commit)
        age = log.generation

        def give(found: cold.Found | StorageError) -> None:
            if isinstance(found, StorageError):
                done(found)
                return
            slices = cold.slices(found, offset, end_index, bytes_max)
            self._keep_ahead((log.id, age, "offset", slices.end_offset), found)
            self._read_on(log, age, end_index, found)
            done(slices)

        key = (log.id, age, "offset", offset)
        window = self._ahead.take(key)
        if window is not None and window.entries and window.entries[0].base_offset > offset:
            window = None  # it would pass over records, and so would what its index leads to
        if window is not None and _holds_records(window, end_index):
            self._ahead.hits += 1
            self.workers.call_later(0, lambda: give(window))
            return
        waiting = self._reading.get(key)
        if waiting is not None:
            waiting.append(give)
            return
        self._reading[key] = [give]
        index, ahead = (0, 0) if window is None else (window.index, AHEAD_BYTES)
        look = cold.read(log, offset, end_index, bytes_max, index, ahead)
        self._run_cold(log, look, lambda result: self._found(key, result))

    def _read_on(self, log: DiskLog, age: int, end_index: int, window: cold.Found) -> None:
        """Have what follows a window read before its reader is there, once little is left of it:
        a reader then waits for the disk only where that is slower."""
        rest = window.entries[window.count :]
        if not rest or sum(len(entry.data) for entry in rest) > AHEAD_BYTES // 2:
            return
        last = rest[-1]
        offset, index = last.base_offset + last.records, last.index + 1
        key = (log.id, age, "offset", offset)
        if index > min(end_index, log.flushed_index) or log.generation != age:
            return
        if key in self._reading or key in self._ahead:
            return
        self._reading[key] = []
        look = cold.read(log, offset, end_index, 0, index, AHEAD_BYTES)
        self._run_cold(log, look, lambda result: self._found(key, result))

    def _found(self, key: Key, result: cold.Found | StorageError) -> None:
        """A read for consumers has ended: whoever waits is told; for whoever comes it is kept."""
        waiting = self._reading.pop(key)
        for give in waiting:
            give(result)
        if not waiting and not isinstance(result, StorageError):
            self._keep_ahead(key, result, readers=0)

    def entries_cold(
        self,
        log: Log,
        first: int,
        end: int,
        bytes_max: int,
        done: Callable[[list[StoredEntry] | StorageError], None],
    ) -> None:
        assert isinstance(log, DiskLog), type(log)
        if first < log.first or first > log.flushed_index or end > log.last + 1:
            look = cold.outcome(lambda: cold.as_stored(log.entries(first, end, bytes_max)))
            self._run_cold(log, look, done)
            return
        age = log.generation

        def give(found: cold.Found | StorageError) -> None:
            if isinstance(found, StorageError):
                done(found)
                return
            entries = cold.first_entries(found, end, bytes_max)
            self._keep_ahead((log.id, age, "index", first + len(entries)), found)
            done(entries)

        window = self._ahead.take((log.id, age, "index", first))
        if window is not None and window.entries:
            self._ahead.hits += 1
            self.workers.call_later(0, lambda: give(window))
            return
        ahead = 0 if window is None else AHEAD_BYTES
        self._run_cold(log, cold.entries(log, first, end, bytes_max, ahead), give)

    def _keep_ahead(self, key: Key, found: cold.Found, *, readers: int = 1) -> None:
        self._ahead.keep(key, found, readers=readers)
        if self._ahead_timer is None:
            self._ahead_timer = self.workers.call_later(IDLE_MS, self._expire_ahead)

    def _expire_ahead(self) -> None:
        self._ahead.expire()
        self._ahead_timer = None
        if len(self._ahead) and not self._failed:
            self._ahead_timer = self.workers.call_later(IDLE_MS, self._expire_ahead)

    def index_of_offset(
        self, log: Log, offset: int, done: Callable[[int | StorageError], None]
    ) -> None:
        assert isinstance(log, DiskLog), type(log)
        answer: int | StorageError = log.tail.find_offset(offset)
        if not log.start_offset <= offset < log.offset:
            answer = OffsetOutOfRange(f"offset {offset} not in [{log.start_offset}, {log.offset})")
        if answer:
            self.workers.call_later(0, lambda: done(answer))
        else:
            self._run_cold(log, cold.index_of_offset(log, offset), done)

    def index_of_timestamp(
        self,
        log: Log,
        timestamp_ms: int,
        end_index: int,
        done: Callable[[int | StorageError], None],
        *,
        first_index: int = 0,
    ) -> None:
        assert isinstance(log, DiskLog), type(log)
        age = _age(log)
        first = max(log.first, first_index)
        end = max(first, min(log.flushed_index + 1, end_index + 1))

        def in_memory() -> int:
            if end > end_index:
                return end_index + 1
            return cold.index_in_tail(log, timestamp_ms, end, end_index + 1)

        if not log.segments or first == end:
            index = in_memory()
            self.workers.call_later(0, lambda: done(index))
            return
        job, following = cold.index_of_timestamp(log, timestamp_ms, first, end)

        def found(result: TimeFound | StorageError) -> None:
            if isinstance(result, StorageError):
                done(result)
                return
            if _age(log) == age:
                log.note_sealed(result.learned)
            if result.entry >= 0:
                done(result.entry)
            elif following <= min(log.flushed_index, end_index):
                # There are more segments, or what was in memory then has gone to them, and perhaps
                # left memory.
                self.index_of_timestamp(log, timestamp_ms, end_index, done, first_index=following)
            else:
                done(in_memory())

        self._run_cold(log, job, found)

    def set_segment_limits(self, log: Log, limits: SegmentLimits) -> None:
        assert isinstance(log, DiskLog), type(log)
        log.limits = limits

    def segment_spans(
        self, log: Log, done: Callable[[list[SegmentSpan] | StorageError], None]
    ) -> None:
        assert isinstance(log, DiskLog), type(log)
        age = _age(log)

        def found(result: tuple[list[SegmentSpan], list[Sealed]] | StorageError) -> None:
            if isinstance(result, StorageError):
                done(result)
                return
            spans, learned = result
            if _age(log) == age:
                log.note_sealed(learned)
            done(spans)

        self._run_cold(log, cold.segment_spans(log), found)

    def _run_cold(
        self, log: DiskLog, job: Callable[[], T], done: Callable[[T | StorageError], None]
    ) -> None:
        before = _age(log)

        def finished(result: T | BaseException) -> None:
            is_gone = isinstance(result, EntriesDamaged) and result.first < log.first
            if isinstance(result, EntriesDamaged | FileNotFoundError) and (
                is_gone or log.deleted or log.generation != before[0]
            ):
                done(Compacted("the segment was deleted meanwhile"))
            elif isinstance(result, OSError) and is_disk_full(result):
                # Who asks again finds room, perhaps.
                done(CorruptRecord("index, which there is no room to rebuild", 0))
            elif isinstance(result, OSError) and is_passing(result):
                self._reads_refused += 1
                self.on_read_refused(result)
                done(ReadRefused(str(result)))
            elif isinstance(result, OSError):
                self._fail(result)
            elif isinstance(result, BaseException) and not isinstance(result, StorageError):
                raise result
            else:
                if isinstance(result, EntriesDamaged) and before == _age(log):
                    log.hole_ranges.add(result.first, result.end)
                    log.hole_ranges.trim(log.first)
                done(result)

        self.workers.pool(job, finished)

    def repair(
        self,
        log: Log,
        entries: Sequence[EntryLike],
        done: Callable[[StorageError | None], None],
    ) -> None:
        assert isinstance(log, DiskLog), type(log)
        try:
            copies = {
                entry.index: copy_of(entry, log.term(entry.index))
                for entry in entries
                if entry.index in log.hole_ranges
            }
        except StorageError as error:
            done(error)
            return
        generation = log.generation
        failure: list[CorruptRecord] = []

        def begin() -> Callable[[], None] | None:
            if log.generation != generation:
                done(None)
                return None
            segments, end = log.segments, log.flushed_index + 1

            def write() -> None:
                try:
                    repair(log.files, segments, end, copies)
                except CorruptRecord as error:
                    failure.append(error)

            return write

        def written() -> None:
            if log.generation == generation:
                for index, copy in copies.items():  # of some it is true, though others failed
                    log.note_timestamp(index, copy.entry.timestamp)
                log.hole_ranges.fill(() if failure else copies)
                if failure and isinstance(failure[0], EntriesDamaged):
                    # Another hole stands before these: it has to be filled first.
                    log.hole_ranges.add(failure[0].first, failure[0].end)
                    log.hole_ranges.trim(log.first)
            done(failure[0] if failure else None)

        self._chores.add(Chore(0, begin, written))
        self._chores.next()

    # --- meta ---------------------------------------------------------------------------------
    def load_meta(self, log: Log) -> tuple[int, list[tuple[bytes, bytes]]]:
        return self._meta.load(log.log_id)

    # --- life ---------------------------------------------------------------------------------
    def close(self, done: Callable[[], None]) -> None:
        assert self._closing is None, "closed twice"
        self._closing = done
        self._checkpoints.is_closing = True
        self._journal.close()

    def _try_close(self) -> None:
        if not self._journal.closed or self._checkpoints.is_running or self._chores.is_running:
            return
        if self._roster.is_writing or self._closing is None or not self._jobs.is_idle:
            return
        done, self._closing = self._closing, None
        self.abandon()
        done()

    def _rested(self) -> None:
        """No job is under way, of whatever kind."""
        if self._closing is not None:
            self._try_close()

    def abandon(self) -> None:
        """Let go of the directory without writing: what a killed process leaves behind. No job
        goes on; one that runs is waited for."""
        self._stop()
        self._jobs.over(partial(_let_go, self._journal, self._meta, self._lock))

    def _fail(self, error: BaseException) -> None:
        if not self._failed:
            self._stop()
            self.on_fatal(error)

    def _stop(self) -> None:
        """Whatever is still under way, nobody is told that it is durable."""
        self._failed = self._roster.is_closed = self._scrubber.is_stopped = True
        self._journal.stop()
        if self._ahead_timer is not None:
            self._ahead_timer.cancel()
            self._ahead_timer = None

    def stats(self) -> dict[str, float]:
        cache, journal, replay = self._cache, self._journal, self._recovered.replay
        scrubber = self._scrubber
        since_ns = self._now_ns() - scrubber.last_pass_ns
        return {
            "logs": len(self._logs),
            "logs_lost": sum(log.is_lost for log in self._logs.values()),
            "meta_salvaged": self._meta.salvaged,
            "holes": sum(len(log.holes) for log in self._logs.values()),
            "segments": sum(len(log.segments) for log in self._logs.values()),
            "unflushed_bytes": cache.unflushed,
            "cache_bytes": cache.bytes,
            "cache_hits": cache.hits,
            "cache_misses": cache.misses,
            "reads_refused": self._reads_refused,
            "read_ahead_bytes": self._ahead.bytes,
            "read_ahead_hits": self._ahead.hits,
            "cache_chunks_evicted": cache.evicted,
            "journal_blocks": journal.stats.blocks,
            "journal_bytes": journal.stats.bytes,
            "journal_files": journal.file_count,
            "journal_write_ns_total": journal.stats.write_ns_total,
            "journal_write_ns_max": journal.stats.write_ns_max,
            "checkpoints": self._checkpoints.count,
            "flushed_bytes": self._checkpoints.flushed_bytes,
            "scrubbed_bytes": scrubber.bytes,
            "scrub_errors": scrubber.errors,
            "scrub_passes": scrubber.passes,
            "scrub_last_pass_bytes": scrubber.last_pass_bytes,
            "scrub_last_pass_seconds_ago": since_ns / 1e9 if scrubber.passes else -1.0,
            "disk_full": self.disk_full,
            "failpoints": len(failpoint.armed),
            "recovered_blocks": replay.blocks,
            "recovered_torn_bytes": replay.torn_bytes,
            "recovered_damaged_blocks": replay.damaged_blocks,
            "recovered_damaged_headers": len(replay.headers),
            "stray_names": len(self.strays),
        }


def _let_go(journal: Journal | None, meta: Meta | None, lock: Lock) -> None:
    """Nothing of this store is at the files any more: another one may have them."""
    if journal is not None:
        journal.abandon()
    if meta is not None:
        meta.close()
    lock.release()


def _holds_records(window: cold.Found, end_index: int) -> bool:
    return any(entry.records and entry.index <= end_index for entry in window.entries)


def _age(log: DiskLog) -> tuple[int, int]:
    """What was found damaged counts as long as neither a reset nor a repair came between."""
    return log.generation, log.hole_ranges.repairs


def _nothing() -> None:
    """There is nothing to do afterwards."""


def _ignore(_: object) -> None:
    """Nobody listens yet."""
