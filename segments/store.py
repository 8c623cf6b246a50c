"""The disk engine: one journal for all logs, segments behind it, the tail cache in front.

`DiskStore` implements the contract of `segments.api` by joining the subpackages. A staged batch
goes to the journal. A checkpoint writes committed entries to segments and releases journal files
that nothing needs. The registry lists the existing logs. One checkpoint or one removal runs at a
time, so that no two touch the same files.

Does not depend on Raft, Kafka, wall-clock time or disk formats.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from enum import Enum, auto
from functools import partial
from types import MappingProxyType

from ids import (
    NO_INDEX,
    NO_SERVER,
    NO_TERM,
    DirectoryId,
    GroupId,
    Index,
    LogId,
    Offset,
    ReplicaNumber,
    ServerId,
    Term,
)
from segments.api import (
    NEVER_AHEAD,
    Buffer,
    Compaction,
    EntryLike,
    HardState,
    Log,
    MetaBatch,
    RecordCleaner,
    SegmentLimits,
    SegmentSpan,
    Slices,
    StorageError,
    StoredEntry,
    StoreOptions,
    Workers,
)
from segments.boots import Boot
from segments.checkpoint.scheduler import FULL, CheckpointScheduler
from segments.checkpoint.trimming import RemoveBelow
from segments.compaction.compactor import Compactor
from segments.directory.format_note import FORM_CLEARS, FORM_VOTES, write_form
from segments.directory.identity import LogIdentity
from segments.directory.log_registry import LogRegistry
from segments.directory.peers_note import PeersNote
from segments.format.block import TRIM
from segments.format.names import log_directory
from segments.histogram import Histogram
from segments.io import failpoint
from segments.io.fs import FileSystem, Lock, is_refused, make_durable_directory, sync_names_above
from segments.io.jobs import Jobs
from segments.io.removals import Job, Removal, Removals, RemovalState
from segments.journal.ahead import AheadWriter
from segments.journal.allocation import Room
from segments.journal.writer import Journal, WriterState
from segments.log.log import Batch, DiskLog
from segments.log.placement import NO_ROOMS, Payload, Placement
from segments.log.reader import Reader
from segments.log.repair import Repair
from segments.log.scrubber import Scrubber
from segments.log.segment import LogFiles
from segments.meta.file import Meta
from segments.recovery import start
from segments.recovery.missing_parts import find_identity
from segments.recovery.opening import Recovered
from segments.recovery.orphans import Deletions, RemoveLogs
from segments.recovery.parts import Parts
from segments.recovery.replay import Progress, no_progress
from segments.recovery.tail import CARRIED

AHEAD_KEPT_MS = 2_000
"""Time after which a payload that was written ahead, and not appended, is forgotten."""


ROOM_LOOK_MS, ROOM_LOOKS = 100, 50
"""Interval and number of looks for room that a flush makes."""


class Life(Enum):
    """State of a store; transitions go one way."""

    OPEN = auto()
    CLOSING = auto()
    """Work that has begun is finished, and the closing block is written. Nothing else begins."""
    STOPPED = auto()
    """The disk has failed, or the directory was released. No durability is reported any more."""


class DiskStore:
    """`segments.api.Store` on a file system."""

    def __init__(
        self,
        fs: FileSystem,
        directory: str,
        jobs: Jobs,
        options: StoreOptions,
        rng: random.Random,
        lock: Lock,
        recovered: Recovered,
        now_ns: Callable[[], int],
    ) -> None:
        self.on_durable: Callable[[int], None] = _ignore
        self.on_fatal: Callable[[BaseException], None] = _ignore
        self.on_read_refused: Callable[[OSError], None] = _ignore
        """Called for each read that failed for lack of descriptors or memory."""
        self.collect_meta: Callable[[Sequence[Log]], list[MetaBatch]] = lambda logs: []
        self.strays: Sequence[str] = ()
        """Paths found at start in the directory that are not the store's."""
        self.writes_in_place = True
        """False if the file system does not write in place or this is unknown; nothing is placed
        then."""
        self._fs = fs
        self._directory = directory
        workers: Workers = jobs
        self.workers = workers
        self._jobs = jobs
        self._options = options
        self._limits = SegmentLimits(options.segment_bytes)
        has_places = recovered.identity.has_places
        self._place_bytes_min = options.place_bytes_min if has_places else 0
        self._may_clear = recovered.form >= FORM_CLEARS
        self._lock = lock
        self._recovered = recovered
        self._meta = meta = recovered.meta
        self._cache = cache = recovered.cache
        self._logs = logs = recovered.logs
        self._logs_view: Mapping[LogId, Log] = MappingProxyType(logs)
        self._life = Life.OPEN
        self._closed: Callable[[], None] = _nothing
        self._registry = registry = LogRegistry(fs, directory, workers, recovered.identity, self)
        self._rng = rng
        self._peers_note = PeersNote(fs, directory, workers, self._fail)
        self._journal = journal = Journal(
            fs, f"{directory}/journal", workers, options, rng, logs, self, now_ns,
            recovered.identity.directory_id,
        )  # fmt: skip
        self.submit = journal.submit
        self._queue = journal.queue
        self._allocation = journal.allocation
        self._ahead = AheadWriter(workers, options.large_bytes_min, self._fail, now_ns)
        self._checkpoints = CheckpointScheduler(
            workers, options, logs, journal, meta, cache, registry, self,
            spread=recovered.identity.directory_id[0], has_places=has_places,
        )  # fmt: skip
        self._pulse = self._checkpoints.pulse
        """Shared with removals: either a checkpoint or a removal runs, never both."""
        self._parts = Parts(fs, directory, recovered.form, meta, self)
        self._scrubber = Scrubber(
            workers, logs, self._parts, options.scrub_bytes_per_second, now_ns, self._fail
        )
        self._now_ns = now_ns
        self._reader = Reader(workers, refused=self._read_refused, fail=self._fail)
        self._removals = removals = Removals(workers, self)
        self._compactor = Compactor(workers, removals, self)
        self._deletions = Deletions(fs, directory, meta, registry, removals, self._pulse)
        self._uncovered: deque[tuple[LogIdentity, DiskLog, Callable[[Log], None]]] = deque()
        """Logs to be created once the reserve is large enough for their votes."""

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
        server_id: ServerId = NO_SERVER,
        now_ns: Callable[[], int] = lambda: 0,
        progress: Progress = no_progress,
    ) -> DiskStore:
        """Recover the directory, or create one. Blocks.

        `server_id` is the server that opens the directory; a new directory is assigned to it
        permanently. `NO_SERVER` opens any directory. `now_ns` is used only for sync latencies.
        `progress` receives recovery's progress.

        Raises DirectoryInUse, CorruptRecord (identity, format), OSError, DataMissing if a file that
        existed is missing, ForeignFile, UnknownFormat, and ForeignDirectory if the directory is
        another server's: nothing on disk is changed then.
        """
        if not fs.exists(f"{directory}/lock"):
            # Checked before even a lock file is created.
            found = find_identity(fs, directory, may_be_new=options.accept_empty)
            if found is not None:
                start.check_server(directory, found, server_id)
        make_durable_directory(fs, directory)
        sync_names_above(fs, directory)
        lock = fs.lock(f"{directory}/lock")
        jobs = Jobs(workers)
        writes_in_place = fs.writes_in_place(directory)
        if not writes_in_place:
            # A payload could hit a full disk even where space is preallocated.
            options = replace(options, place_bytes_min=0)
        meta: Meta | None = None
        journal: Journal | None = None
        try:
            recovered = start.begin(fs, directory, options, rng, progress, server_id)
            meta = recovered.meta
            store = cls(fs, directory, jobs, options, rng, lock, recovered, now_ns)
            journal = store._journal
            failpoint.hit("open.recovered")
            store._open_journal()
            store.strays = start.finish(fs, directory, recovered)
            store.writes_in_place = writes_in_place
            store._checkpoints.opened()
            failpoint.hit("open.done")
        except BaseException:
            # Jobs submitted before the failure may still use the files.
            jobs.over(partial(_let_go, journal, meta, lock))
            raise
        return store

    def _open_journal(self) -> None:
        """Write the journal's first block, and release the files it makes superfluous. Blocks."""
        journal, replay = self._journal, self._recovered.replay
        journal.allocation.files.cover(len(self._logs))
        journal.allocation.files.make_room(replay.unproved, replay.scrap)
        journal.open(
            replay.position, replay.live, replay.spare, self._recovered.carried, replay.begins
        )
        failpoint.hit("open.carried")
        self._settle_carried()
        # The reserve first: repeated crashes at this point would use it up.
        journal.allocation.take_back(replay.scrap)

    def _settle_carried(self) -> None:
        """Record that the carried-over data now lies in the journal file just opened."""
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
    def directory_id(self) -> DirectoryId:
        return self._registry.directory_id

    @property
    def server_id(self) -> ServerId:
        return self._registry.server_id

    def adopt_server(self, server_id: ServerId) -> None:
        self._registry.adopt_server(server_id)

    @property
    def boots(self) -> Sequence[Boot]:
        return self._registry.boots

    @property
    def durable_lsn(self) -> int:
        return self._journal.chain.recorded_lsn

    def give_up(self, done: Callable[[], None]) -> None:
        logs = list(self._journal.logs.values())
        for log in logs:
            log.is_lost = True
        for known, _, _ in self._uncovered:
            known.lost = True

        def written() -> None:
            for log in logs:
                log.is_written_off = True
            done()

        directory_id = DirectoryId(self._rng.randbytes(16))
        self._registry.lose_all(directory_id, [Boot(1, self._rng.getrandbits(64))], written)

    def peers_note(self) -> bytes:
        return self._peers_note.read()

    def note_peers(self, note: bytes) -> None:
        self._peers_note.write(note)

    @property
    def logs(self) -> Mapping[LogId, Log]:
        return self._logs_view

    @property
    def durable_token(self) -> int:
        return self._queue.durable_token

    @property
    def unflushed_bytes(self) -> int:
        return self._cache.unflushed - self._cache.large_bytes

    @property
    def large_bytes(self) -> int:
        return self._cache.large_bytes

    @property
    def ahead_bytes_min(self) -> int:
        return self._options.large_bytes_min if self._place_bytes_min else NEVER_AHEAD

    @property
    def flushable_bytes(self) -> int:
        return self._checkpoints.flushable_bytes()

    @property
    def writing_bytes(self) -> int:
        return self._journal.writing_bytes

    @property
    def file_work(self) -> int:
        if not (self._checkpoints.is_running or self._removals.is_running):
            return 0
        return 1 + self._checkpoints.pulse.beats + self._removals.begun

    @property
    def ahead_work(self) -> int:
        return 1 + self._ahead.steps if self._ahead.is_writing else 0

    @property
    def disk_full(self) -> bool:
        return (
            self._allocation.room is Room.FULL
            or self._journal.state is WriterState.REFUSED
            or self._journal.is_payload_refused
            or self._checkpoints.state in FULL
            or self._registry.is_full
            or self._removals.state is RemovalState.REFUSED
        )

    @property
    def accepts_appends(self) -> bool:
        return not self.disk_full

    def entry_room(self, *, is_essential: bool) -> int:
        return self._journal.entry_room(pieces_kept=3 if is_essential else 5)

    def has_room_for(self, size: int) -> bool:
        # Each large entry goes to a segment, too, before its journal file is free.
        return self.accepts_appends and self._journal.has_room_for(size, self._cache.large_bytes)

    def cluster_record(self) -> bytes:
        return self._registry.cluster_record

    def adopt_cluster(self, record: bytes, done: Callable[[], None]) -> None:
        self._registry.adopt_cluster(bytes(record), done)

    def note_moved_votes(self) -> bool:
        if self._parts.form < FORM_VOTES:
            try:
                write_form(self._fs, self._directory, FORM_VOTES)
            except OSError as error:
                if not is_refused(error):
                    raise
                return False
            self._parts.form = FORM_VOTES
        return True

    def create_log(
        self,
        group_id: GroupId,
        replica_number: ReplicaNumber,
        *,
        first_index: Index = Index(1),
        prev_term: Term = NO_TERM,
        next_offset: Offset = Offset(0),
        on_created: Callable[[Log], None],
    ) -> None:
        log_id = self._registry.take_id()
        files = LogFiles(
            self._fs, log_directory(self._directory, log_id), log_id, group_id,
            self._options.index_segment_entries,
        )  # fmt: skip
        log = DiskLog(
            files, replica_number, self._cache, first_index=first_index, prev_term=prev_term,
            next_offset=next_offset,
        )  # fmt: skip
        known = LogIdentity(log_id, group_id, replica_number, first_index, next_offset, prev_term)
        self._uncovered.append((known, log, on_created))
        self._create_covered()

    def _create_covered(self) -> None:
        """Create the logs whose votes fit in the reserve of a full disk."""
        while self._uncovered and self._journal.covers(self._registry.count + 1):
            self._registry.add(*self._uncovered.popleft())

    def delete_log(self, log_id: LogId) -> None:
        log = self._logs.pop(log_id)
        log.deleted = True
        log.placement.rooms = NO_ROOMS
        log.generation += 1
        self._checkpoints.dirty.pop(log_id, None)
        self._checkpoints.pending.forget(log_id)
        self._checkpoints.rooms.forget(log_id)
        self._registry.remove(log_id)
        self._deletions.begin(log_id)

    # --- staging ------------------------------------------------------------------------------
    def append(self, log: Log, entries: Sequence[EntryLike]) -> None:
        if not entries:
            return
        assert isinstance(log, DiskLog), type(log)
        first = entries[0].index
        assert log.hard.commit < first <= log.last + 1, (log.hard.commit, first, log.last)
        is_cut = first <= log.last
        place_bytes_min = 0 if self.disk_full else self._place_bytes_min
        log.stage(entries, self._queue.batch, place_bytes_min=place_bytes_min, limits=self._limits)
        if failpoint.armed:
            failpoint.hit("truncate.staged" if is_cut else "append.staged")
        if is_cut and log.placement.rewind_token:
            self._checkpoints.rooms.note_cut(log)
        self._checkpoints.arm()

    def write_ahead(
        self,
        log: Log,
        data: Buffer,
        *,
        timestamp: int,
        is_wanted: Callable[[], bool],
        done: Callable[[], None],
    ) -> None:
        assert isinstance(log, DiskLog), type(log)
        self._write_ahead(log, data, timestamp, is_wanted, done, ROOM_LOOKS, has_asked=False)

    def _write_ahead(
        self,
        log: DiskLog,
        data: Buffer,
        timestamp: int,
        is_wanted: Callable[[], bool],
        done: Callable[[], None],
        looks: int,
        *,
        has_asked: bool,
    ) -> None:
        """Begin to write the payload; if it has no room yet, look again up to `looks` times.

        `has_asked`: a checkpoint was asked to make room for it.
        """
        is_possible = (
            self._life is Life.OPEN and not (self.disk_full or log.deleted) and is_wanted()
        )
        rest = log.write_ahead(data, timestamp, self._limits) if is_possible else None
        checkpoints = self._checkpoints
        if rest is not None:
            checkpoints.forget_room(log)
            ended = partial(self._written_ahead, log.placement, rest, done)
            self._ahead.write(rest, is_wanted, ended)
            return
        is_awaited = False
        if is_possible and looks:
            if checkpoints.awaits_large(log):
                is_awaited = True  # a flush of the large entry before this one makes room
            elif not has_asked or checkpoints.awaits_room(log):
                is_awaited = has_asked = log.has_places_for(
                    len(data), self._limits
                ) and checkpoints.ask_for_room(log, len(data))
        if not is_awaited:
            checkpoints.forget_room(log)
            self.workers.call_later(0, done)
            return
        again = partial(
            self._write_ahead, log, data, timestamp, is_wanted, done, looks - 1, has_asked=has_asked
        )
        self.workers.call_later(ROOM_LOOK_MS, again)

    def _written_ahead(
        self, placement: Placement, rest: Payload, done: Callable[[], None], crc: int | None
    ) -> None:
        """Note the end of a payload of a log that had this placement; a reset replaces it."""
        self._journal.stats.payload_bytes += rest.bytes
        placement.end_ahead(rest, crc)
        if crc is not None:
            # By its number: the timer must not keep its memory.
            forget = partial(placement.forget_ahead, placement.aheads)
            self.workers.call_later(AHEAD_KEPT_MS, forget)
        done()

    def set_hard_state(self, log: Log, state: HardState) -> None:
        assert isinstance(log, DiskLog), type(log)
        log.stage_hard(state, self._queue.batch)
        if failpoint.armed:
            failpoint.hit("hard.staged")
        if state.commit > log.flushed_index:
            self._checkpoints.committed(log)

    def reset_log(
        self,
        log: Log,
        *,
        first_index: Index,
        prev_term: Term,
        next_offset: Offset,
        state: Buffer = b"",
    ) -> None:
        assert isinstance(log, DiskLog), type(log)
        assert first_index > log.hard.commit, (first_index, log.hard.commit)
        batch = self._queue.batch
        log.reset(first_index, prev_term, next_offset, bytes(state), batch)
        self._checkpoints.hold_files()
        self._checkpoints.arm()  # to cover the installed state
        failpoint.hit("reset.staged")
        self._checkpoints.dirty.pop(log.id, None)
        self._remove_files(log, batch.token)

    def _remove_files(self, log: DiskLog, token: int) -> None:
        """Remove all files of the log once the write with that token is durable.

        The log may flush to new files after that.
        """
        fs, directory, log_id = self._fs, self._directory, log.id
        generation = log.generation

        def begin() -> Job | None:
            if log.deleted or log.generation != generation:
                return None
            return RemoveLogs(fs, directory, [log_id], self._pulse)

        self._removals.add(Removal(token, begin, lambda: log.allow_flush(generation)))

    def trim_log(self, log: Log, *, first_index: Index) -> None:
        assert isinstance(log, DiskLog), type(log)
        assert first_index <= log.hard.commit + 1, (first_index, log.hard.commit)
        if first_index <= log.first:
            return
        assert log.install is None, (
            "entries above an installed state are kept until a checkpoint covers them"
        )
        batch = self._queue.batch
        if self._may_clear and log.trims_all_files(first_index):
            self._clear(log, first_index)
            return
        log.touch(batch)
        log.trim(first_index)
        log.stage_state(batch, TRIM, log.terms.terms[0], first_index, log.start_offset)
        failpoint.hit("trim.staged")
        generation = log.generation

        def begin() -> Job | None:
            # The index of this record: a later one may not be durable yet.
            gone = log.drop_segments(first_index) if log.generation == generation else ()
            return RemoveBelow(log.files, gone, first_index, self._pulse) if gone else None

        self._removals.add(Removal(batch.token, begin))

    def _clear(self, log: DiskLog, first_index: Index) -> None:
        """Trim all entries that segments hold, to free space on a full disk.

        Also trims those before `first_index` that only the journal holds. An ordinary trim would
        keep the newest segment until another follows it, and a full disk has no space for another.
        """
        batch = self._queue.batch
        log.clear(first_index, batch)
        self._checkpoints.hold_files()
        self._checkpoints.arm()  # its notes let journal files go
        failpoint.hit("trim.staged")
        if log.hard.commit <= log.flushed_index:
            self._checkpoints.dirty.pop(log.id, None)
        self._remove_files(log, batch.token)

    # --- callbacks of the subpackages: JournalOwner ---------------------------------------------
    def journal_written(self, batch: Batch | None) -> None:
        self._checkpoints.journaled(0 if batch is None else batch.entries)
        if batch is not None:
            self.on_durable(self._queue.durable_token)
        # Before the next checkpoint: under load one could always begin.
        if self._removals.queue:
            self._removals.next()
        if batch is not None:
            self._checkpoints.begin_if_pressed()
        if self._life is Life.CLOSING:
            self._try_close()

    def journal_failed(self, error: BaseException) -> None:
        self._fail(error)

    def journal_prepared(self) -> None:
        self._create_covered()

    # --- RegistryOwner ------------------------------------------------------------------------
    def log_created(self, log: DiskLog) -> None:
        self._logs[log.id] = self._journal.logs[log.id] = log

    def registry_written(self) -> None:
        for log_id in self._deletions.listed():
            log = self._journal.logs.pop(log_id)
            self._cache.unflushed -= log.unflushed
            self._cache.release(log.tail)
        self._checkpoints.release_files()
        self._next_removal()

    def registry_failed(self, error: BaseException) -> None:
        self._fail(error)

    # --- CheckpointOwner and RemovalsOwner: one of both at a time, so that no two touch the same
    # files ------------------------------------------------------------------------------------
    def checkpoint(self, done: Callable[[], None] | None = None) -> None:
        if done is None and not self._checkpoints.is_noted:
            return  # called repeatedly: removals wait for the notes of the one before
        self._checkpoints.begin(done)

    def checkpoint_may_begin(self) -> bool:
        return self._life is Life.OPEN and not self._removals.is_running

    def checkpoint_collect(self, logs: Sequence[DiskLog]) -> list[MetaBatch]:
        return self.collect_meta(logs)

    def checkpoint_ended(self) -> None:
        self._freed()

    def checkpoint_failed(self, error: BaseException) -> None:
        self._fail(error)

    def removal_may_run(self, token: int) -> bool:
        """Return True if a removal may run.

        Not while a checkpoint's notes are not durable: after a crash the segments from before the
        checkpoint are needed again. Not while the store closes: the next start finishes the
        removals that the records require.
        """
        if self._life is not Life.OPEN or self._checkpoints.is_running:
            return False
        if token > self._queue.durable_token:
            return False
        return self._checkpoints.is_noted

    def removal_is_urgent(self) -> bool:
        return self.disk_full

    def removal_ended(self) -> None:
        self._freed()

    def removal_failed(self, error: BaseException) -> None:
        self._fail(error)

    def _next_removal(self) -> None:
        self._removals.next()
        if self._life is Life.CLOSING:
            self._try_close()

    def _freed(self) -> None:
        """React to the end of a checkpoint or a removal."""
        self._next_removal()
        self._checkpoints.begin_for_waiters()

    # --- PartsOwner ---------------------------------------------------------------------------
    def journal_files(self) -> Sequence[tuple[int, str, int]]:
        return self._journal.counted_files()

    def journal_damaged(self, sequence: int) -> bool:
        if sequence not in self._journal.chain.paths:
            return False
        self._checkpoints.renew_journal(sequence)
        return True

    def identity_damaged(self) -> None:
        self._registry.write_anew()

    def format_damaged(self) -> None:
        # In its present form: votes may have moved since the check began.
        write_form(self._fs, self._directory, self._parts.form)

    def meta_damaged(self) -> None:
        self._meta.suspect()
        self._checkpoints.arm()

    # --- CompactorOwner ------------------------------------------------------------------------
    def compact(
        self,
        log: Log,
        compaction: Compaction,
        make_cleaner: Callable[[], RecordCleaner],
        *,
        pace: Callable[[int], int],
        done: Callable[[bool], None],
    ) -> None:
        assert isinstance(log, DiskLog), type(log)
        assert compaction.markers_upto <= compaction.upto, compaction
        assert compaction.upto <= log.applied, (compaction, log.applied)
        # Segments count as sealed, and entries as flushed, once the journal says so durably.
        is_ready = self._compactor.may_begin(log) and self._life is Life.OPEN and not log.is_lost
        is_noted = self._checkpoints.is_noted and not self._checkpoints.is_running
        if is_ready and is_noted:
            if not log.segments or compaction.upto >= log.segments[-1].first_index:
                self._roll_above(log, compaction.upto)
            elif not log.damaged:
                limits = log.limits or self._limits
                self._compactor.begin(
                    log, compaction, make_cleaner(), pace, done, segment_bytes=limits.bytes
                )
                return
        self.workers.call_later(0, lambda: done(False))

    def _roll_above(self, log: DiskLog, index: Index) -> None:
        """Make the newest segment end at this entry, or as soon after it as allowed."""
        log.roll_above = max(log.roll_above, index)
        log.rewritten = True  # flush its tail, however small
        if log.hard.commit > log.flushed_index:
            self._checkpoints.committed(log)

    def compaction_may_go_on(self) -> bool:
        return self._life is Life.OPEN

    def compaction_failed(self, error: BaseException) -> None:
        self._fail(error)

    # --- cold reads ---------------------------------------------------------------------------
    def read_cold(
        self,
        log: Log,
        offset: Offset,
        end_index: Index,
        bytes_max: int,
        done: Callable[[Slices | StorageError], None],
    ) -> None:
        assert isinstance(log, DiskLog), type(log)
        log.is_read = True
        self._reader.read(log, offset, end_index, bytes_max, done)

    def entries_cold(
        self,
        log: Log,
        first: Index,
        end: Index,
        bytes_max: int,
        done: Callable[[list[StoredEntry] | StorageError], None],
    ) -> None:
        assert isinstance(log, DiskLog), type(log)
        self._reader.entries(log, first, end, bytes_max, done)

    def index_of_offset(
        self, log: Log, offset: Offset, done: Callable[[Index | StorageError], None]
    ) -> None:
        assert isinstance(log, DiskLog), type(log)
        self._reader.index_of_offset(log, offset, done)

    def index_of_timestamp(
        self,
        log: Log,
        timestamp_ms: int,
        end_index: Index,
        done: Callable[[Index | StorageError], None],
        *,
        first_index: Index = NO_INDEX,
    ) -> None:
        assert isinstance(log, DiskLog), type(log)
        self._reader.index_of_timestamp(log, timestamp_ms, end_index, done, first_index=first_index)

    def set_segment_limits(self, log: Log, limits: SegmentLimits) -> None:
        assert isinstance(log, DiskLog), type(log)
        log.limits = limits

    def expect_reads(self, log: Log, expected: bool) -> None:
        assert isinstance(log, DiskLog), type(log)
        log.is_read = expected

    def segment_spans(
        self, log: Log, done: Callable[[list[SegmentSpan] | StorageError], None]
    ) -> None:
        assert isinstance(log, DiskLog), type(log)
        self._reader.segment_spans(log, done)

    def written_after(self, since_ns: int) -> int:
        return self._journal.stats.written_after(since_ns)

    def disk_space(self, done: Callable[[tuple[int, int] | StorageError], None]) -> None:
        fs, directory = self._fs, self._directory

        def found(space: tuple[int, int] | BaseException) -> None:
            if isinstance(space, OSError):
                # No page was read: a fault of the disk shows in reads and writes.
                space = StorageError(str(space))
            if isinstance(space, BaseException) and not isinstance(space, StorageError):
                raise space
            done(space)

        self.workers.pool(lambda: fs.space(directory), found)

    def _read_refused(self, error: OSError) -> None:
        """Forward to the current callback: the owner sets it after the store is open."""
        self.on_read_refused(error)

    def repair(
        self,
        log: Log,
        entries: Sequence[EntryLike],
        done: Callable[[StorageError | None], None],
        *,
        compacted_upto: Index = NO_INDEX,
    ) -> None:
        assert isinstance(log, DiskLog), type(log)
        try:
            work = Repair(log, entries, done, self._compactor, compacted_upto=compacted_upto)
        except StorageError as error:
            done(error)
            return
        if log.segments and any(
            log.segments[-1].first_index <= index <= compacted_upto for index in work.indexes
        ):
            # The segment may have to be rewritten, which the newest never is.
            self._roll_above(log, min(compacted_upto, log.last_index))
        self._removals.add(Removal(0, work.begin, work.written))
        self._removals.next()

    # --- meta ---------------------------------------------------------------------------------
    def load_meta(self, log: Log) -> tuple[Index, list[tuple[bytes, bytes]]]:
        return self._meta.load(log.log_id)

    # --- lifecycle ----------------------------------------------------------------------------
    def close(self, done: Callable[[], None]) -> None:
        assert self._life is not Life.CLOSING, "a store is closed once"
        if self._life is Life.OPEN:
            self._life = Life.CLOSING
        self._closed = done
        self._checkpoints.is_closing = self._ahead.is_stopped = True
        self._jobs.on_rest = self._rested
        self._journal.close()

    def _try_close(self) -> None:
        """Release the directory if no work is left."""
        if not self._journal.closed or self._checkpoints.is_running or self._removals.is_running:
            return
        if self._registry.is_writing or not self._jobs.is_idle:
            return
        self.abandon()
        self._closed()

    def _rested(self) -> None:
        """React to the end of the last running job of any kind."""
        if self._life is Life.CLOSING:
            self._try_close()

    def abandon(self) -> None:
        """Release the directory without writing, as a killed process does.

        No further job begins; a running one is awaited.
        """
        self._stop()
        self._jobs.over(partial(_let_go, self._journal, self._meta, self._lock))

    def _fail(self, error: BaseException) -> None:
        if self._life is not Life.STOPPED:
            self._stop()
            self.on_fatal(error)

    def _stop(self) -> None:
        """Stop all parts. Work in progress is no longer reported as durable."""
        self._life = Life.STOPPED
        self._registry.is_closed = self._scrubber.is_stopped = self._ahead.is_stopped = True
        self._journal.stop()
        self._reader.stop()

    @property
    def journal_writes(self) -> Histogram:
        """Times of durable journal writes, until the loop handles their completion."""
        return self._journal.stats.writes

    def stats(self) -> dict[str, float]:
        cache, journal, replay = self._cache, self._journal, self._recovered.replay
        scrubber, usage = self._scrubber, self._meta.usage
        since_ns = self._now_ns() - scrubber.last_pass_ns
        lost = damaged = segments = 0
        for log in self._logs.values():  # thousands
            lost += log.is_lost
            damaged += len(log.damaged_ranges.ranges)
            segments += len(log.segments)
        return {
            "logs": len(self._logs),
            "logs_lost": lost,
            "meta_salvaged": self._meta.salvaged,
            "meta_used_bytes": usage.used_bytes,
            "meta_file_bytes": usage.file_bytes,
            "meta_map_bytes": usage.map_bytes,
            "damaged_ranges": damaged,
            "segments": segments,
            "unflushed_bytes": cache.unflushed,
            "cache_bytes": cache.bytes,
            "cache_hits": cache.hits,
            "cache_misses": cache.misses,
            "reads_refused": self._reader.refusals,
            "read_ahead_bytes": self._reader.read_ahead.bytes,
            "read_ahead_hits": self._reader.read_ahead.hits,
            "cache_chunks_evicted": cache.evicted,
            "journal_blocks": journal.stats.blocks,
            "journal_bytes": journal.stats.bytes,
            "journal_files": journal.file_count,
            "payload_bytes": journal.stats.payload_bytes,
            "journal_write_ns_total": journal.stats.write_ns_total,
            "journal_write_ns_max": journal.stats.write_ns_max,
            "checkpoints": self._checkpoints.count,
            "flushed_bytes": self._checkpoints.flushed_bytes,
            "scrubbed_bytes": scrubber.bytes,
            "scrub_errors": scrubber.errors,
            "scrub_passes": scrubber.passes,
            "scrub_parts_damaged": self._parts.damaged,
            "scrub_last_pass_bytes": scrubber.last_pass_bytes,
            "scrub_last_pass_seconds_ago": since_ns / 1e9 if scrubber.passes else -1.0,
            "compaction_read_bytes": self._compactor.read_bytes,
            "compaction_freed_bytes": self._compactor.freed_bytes,
            "compaction_segments_rewritten": self._compactor.segments_rewritten,
            "compaction_segments_joined": self._compactor.segments_joined,
            "disk_full": self.disk_full,
            "failpoints": len(failpoint.armed),
            "recovered_blocks": replay.blocks,
            "recovered_torn_bytes": replay.torn_bytes,
            "recovered_damaged_blocks": replay.damaged_blocks,
            "recovered_damaged_headers": len(replay.headers),
            "stray_names": len(self.strays),
        }


def _let_go(journal: Journal | None, meta: Meta | None, lock: Lock) -> None:
    """Release the files: this store no longer uses them, and another may open them."""
    if journal is not None:
        journal.abandon()
    if meta is not None:
        meta.close()
    lock.release()


def _nothing() -> None:
    """Do nothing."""


def _ignore(_: object) -> None:
    """Do nothing: the default callback."""
