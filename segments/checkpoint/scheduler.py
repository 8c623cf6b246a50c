"""Checkpoint scheduling: entries to segments, applied state to the meta, notes to the journal.

After a checkpoint, journal files that nothing needs any more are released. One checkpoint runs at a
time, triggered by bytes, entries or time. A checkpoint by time is a round of parts, each with its
own share of the logs: flushing thirty logs together, or collecting the state of a thousand at once,
takes a tenth of a second or more, for which appends would wait. Data that a full disk refuses stays
in the journal and in memory. The checkpoint does the rest of its work, and is retried each second
until one succeeds.

Does not depend on how blocks, segments and transactions are written.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from operator import attrgetter
from typing import Protocol

import msgspec

from ids import NO_INDEX, LogId, Offset
from segments.api import MetaBatch, SegmentLimits, StoreOptions, Workers
from segments.checkpoint.flusher import FlushPlan, FlushResult, FlushSpan, Pulse, run_flush
from segments.checkpoint.rooms import ROOM_BYTES_MIN, Rooms, Surplus, give_back
from segments.directory.log_registry import LogRegistry
from segments.format.block import FLUSHED, HARD
from segments.io import failpoint
from segments.io.fs import DISK_FULL_RETRY_MS, free_bytes, is_refused
from segments.journal.split import block_bytes
from segments.journal.writer import Journal
from segments.log.log import DiskLog
from segments.log.placement import NO_ROOMS
from segments.log.segment_header import Cursor
from segments.log.tail_cache import TailCache
from segments.meta.file import Meta
from segments.meta.pending import MetaCommit, PendingMeta

FLUSH_BYTES_MIN = 16 << 10
"""Smaller tails stay in the journal, are written again at its head once, and are then flushed. If
many logs are dirty, they are flushed when they need an old file. The minimum sinks as the cache
fills."""
MANY_LOGS = 64
"""With as many dirty logs, a tail is flushed as soon as it exceeds a size of its own."""
FLUSH_STEPS = 64
"""Number of different sizes, from one to four times the minimum, so that logs that grow alike
become due one after the other."""
PARTS_MAX = 50
PART_MS_MIN = 200
"""Maximum number of parts of a checkpoint by time, and minimum time between them."""
JOURNAL_FILES_MIN = 3
"""The journal file being written, and two that wait for their entries to reach segments. If many
logs are dirty, a tail that needs an older file is flushed in its log's part at any size."""
JOURNAL_FILES_MANY = 5
"""With more files, they are released after each part rather than at a round's end."""

RESTAGED_BYTES = 4 << 20
"""Limit on data staged again for damaged journal files; the rest waits for the next round."""


@dataclass(slots=True)
class Outcome:
    """Result of a checkpoint's job."""

    flushed: list[FlushResult] = field(default_factory=list)
    is_meta_saved: bool = False
    is_full: bool = False
    meta_lost: frozenset[int] | None = None
    """Logs of which meta stores nothing until all of their state is written again; None:
    unchanged."""
    given_back: set[LogId] = field(default_factory=set)
    """Logs whose surplus was given back."""
    is_scarce: bool = False
    """True if the disk has no space to spare for rooms."""


class CheckpointState(Enum):
    """State of the checkpoint's job, and the outcome of the previous one."""

    IDLE = auto()
    """No job is in progress. The last one completed everything."""
    RUNNING = auto()
    """A thread runs the job."""
    REFUSED = auto()
    """No job is in progress. A full disk refused a part of the last one; a timer will retry."""
    RETRYING = auto()
    """A thread runs the job again. The disk counts as full until it succeeds."""


FULL = (CheckpointState.REFUSED, CheckpointState.RETRYING)
"""States in which the disk counts as full. A tuple, because each append checks it and a set would
hash in Python."""
_BEGUN = {
    CheckpointState.IDLE: CheckpointState.RUNNING,
    CheckpointState.REFUSED: CheckpointState.RETRYING,
}
"""State after a job begins, by state before it. In other states none begins."""
_BEFORE = {begun: before for before, begun in _BEGUN.items()}
"""State after a job whose outcome is ignored, because the store closes or has failed."""


class CheckpointOwner(Protocol):
    """Methods that the scheduler requires of the store.

    Calls rather than values: checkpoints begin by timers, and only the store knows which other work
    uses the files.
    """

    def checkpoint_may_begin(self) -> bool:
        """Return True if the store is open and no other work uses the files."""

    def checkpoint_collect(self, logs: Sequence[DiskLog]) -> list[MetaBatch]:
        """Return the changes of these logs' state machines since the last call."""

    def checkpoint_ended(self) -> None:
        """React to the end of a checkpoint: the files are free."""

    def checkpoint_failed(self, error: BaseException) -> None:
        """React to a disk that can no longer be trusted."""


class Round(msgspec.Struct):
    """A checkpoint by time, done in parts."""

    journaled: tuple[int, int]
    """Bytes and entries journaled when it began."""
    parts_left: int
    """Invariant: above 0 until the round has ended, and a timer runs for the next part."""
    is_followed: bool = False
    """True if an append during this round requires another one after it."""


class CheckpointScheduler:
    """Decides when checkpoints begin and what they contain. One job at a time."""

    def __init__(
        self,
        workers: Workers,
        options: StoreOptions,
        logs: dict[LogId, DiskLog],
        journal: Journal,
        meta: Meta,
        cache: TailCache,
        registry: LogRegistry,
        owner: CheckpointOwner,
        *,
        spread: int,
        has_places: bool,
    ) -> None:
        """Create an idle scheduler.

        `spread` is a number that most likely differs between the servers of a set, so that they do
        not flush the same logs at the same time. `has_places`: logs may have room, also from an
        earlier run.
        """
        self._workers = workers
        self._options = options
        self._logs = logs
        self._journal = journal
        self._queue = journal.queue
        self._meta = meta
        self._cache = cache
        self._registry = registry
        self._owner = owner
        self._spread = spread
        self.dirty: dict[LogId, DiskLog] = {
            log.id: log for log in logs.values() if log.hard.commit > log.flushed_index
        }
        """Use: the logs that a flush considers.
        Invariant: has every log with committed entries that no segment holds."""
        self.pending = PendingMeta()
        self.rooms = Rooms(logs.values() if has_places else ())
        self._room_asked: dict[LogId, DiskLog] = {}
        """Logs with a payload that waits for room. Use: the next checkpoint makes it."""
        self._room_planned: set[LogId] = set()
        """Those for which the checkpoint in progress makes it."""
        self._space_kept = 2 * (options.journal_file_bytes + options.cache_bytes_max)
        """Free disk space not to be used for room: the journal and the segments may need it before
        room that is given up has been returned."""
        self.pulse = Pulse()
        self.state = CheckpointState.IDLE
        self.is_closing = False
        """Invariant: once True nothing begins, and the results of a job are not noted: the closing
        block is written, and a start finds the entries in the journal."""
        self.count = 0
        self.flushed_bytes = 0
        self._parts = min(max(options.checkpoint_interval_ms // PART_MS_MIN, 1), PARTS_MAX)
        self._part_ms = max(options.checkpoint_interval_ms // self._parts, 1)
        self._shares: list[list[DiskLog]] = []
        """Logs by share, see `_of_share`; empty before the first part."""
        self._round: Round | None = None
        """The round in progress, if any."""
        self._is_retry_armed = False
        """True if a timer will retry what was refused."""
        self._waiters: list[Callable[[], None]] = []
        self._has_committed = False
        """True if anything was committed since all logs were last considered."""
        self._entries = 0
        """Entries journaled by this process."""
        self._at_last = (0, 0)
        """Bytes and entries journaled at the last checkpoint, whose due entries are in segments."""
        self._note_token = 0
        """Use: once this token is durable, the needed journal files are determined and segment
        files are removed; 0: no note is awaited.
        Invariant: not below the token of any batch with a note of the last checkpoint, or with a
        reset that was staged since."""
        self._releases = False
        """True if files may be released then: before a round's end a look at all logs costs too
        much."""
        self._damaged_upto = 0
        """Use: data for which journal files up to this one are needed is staged again; 0: none.
        Invariant: not 0 as long as one of these files may exist."""
        self._awaiting_proof = (0, 0)
        """(token, sequence): journal files before `sequence` are released once `token` is proved
        durable; 0: none are waiting."""

    @property
    def is_running(self) -> bool:
        return self.state in (CheckpointState.RUNNING, CheckpointState.RETRYING)

    @property
    def is_full(self) -> bool:
        """True if a full disk refused a part of the last checkpoint."""
        return self.state in FULL

    @property
    def is_noted(self) -> bool:
        """True if the notes of the last checkpoint are durable: a crash cannot undo it."""
        return self._queue.durable_token >= self._note_token

    # --- scheduling ---------------------------------------------------------------------------
    def opened(self) -> None:
        """Begin after the store was opened."""
        self._arm_for_rooms()

    def _arm_for_rooms(self) -> None:
        """Keep rounds going while any log has room: a log that needs none any more may be quiet."""
        if not self.rooms.is_empty:
            self.arm()

    def arm(self) -> None:
        """Schedule a checkpoint by time after an append, if none by size comes first."""
        if self._round is None:
            self._round = Round(self._journaled, self._parts)
            self._wait()
        else:
            self._round.is_followed = True

    @property
    def _journaled(self) -> tuple[int, int]:
        return self._journal.stats.bytes + self._journal.stats.payload_bytes, self._entries

    def committed(self, log: DiskLog) -> None:
        """Note that the log has committed entries that no segment holds."""
        self.dirty[log.id] = log
        self._has_committed = True
        # Its part may have run between the append and the commit, and found nothing to flush.
        self.arm()

    def _wait(self) -> None:
        self._workers.call_later(self._part_ms, self._part_due)

    def _part_due(self) -> None:
        """Do the next part of the round, or retry it a little later."""
        if self.is_closing:
            return
        # Not while notes of the previous one wait: removals wait for them and would get no turn.
        is_ready = self.state is CheckpointState.IDLE and self.is_noted
        if not is_ready or not self._owner.checkpoint_may_begin():
            self._wait()
            return
        current = self._round
        assert current is not None, "a part of no round"
        current.parts_left -= 1
        share = current.parts_left
        if not share:
            # Some appends during the round came after their log's part.
            self._at_last = max(self._at_last, current.journaled)
            self.rooms.give_up_unused()
            is_followed = current.is_followed
            self._round = Round(self._journaled, self._parts) if is_followed else None
        if self._round is not None:
            self._wait()
        if not share and self._is_pressed:
            self.begin()
        else:
            self._begin_part(share)
        if self._round is None:
            self._shares = []  # so that deleted logs are not kept alive

    def _begin_part(self, share: int) -> None:
        """Checkpoint state and tails of the logs of this share.

        If many logs grow, also includes other tails that have outgrown their size.
        """
        commit = self._take_state(self._of_share(share))
        plans = self._plans_of_share(share)
        if plans or commit.batches or self.rooms.has_surplus or not share:
            self._start(plans, commit, is_whole=False, ends_round=not share)

    def _try_again(self) -> None:
        if not self._is_retry_armed:
            self._is_retry_armed = True
            self._workers.call_later(DISK_FULL_RETRY_MS, self._again)

    def _again(self) -> None:
        self._is_retry_armed = False
        if self.is_full and not self.is_closing:
            self.begin()
            if not self.is_running:
                self._try_again()  # a removal uses the files, and nothing else would retry

    def journaled(self, entries: int) -> None:
        """Note that a durable block has `entries` entries, or ends a batch that has them."""
        self._entries += entries
        if self._note_token or self._awaiting_proof[0]:
            self.release_files()

    def begin_if_pressed(self) -> None:
        """Begin a checkpoint if enough was journaled since the last one.

        Less is enough while appends may soon have to wait for space in the cache. While they do
        wait, any amount is enough if something was committed.
        """
        if self.state in FULL or self._queue.durable_token < self._note_token:
            return  # removals wait for the notes of the previous one, and would get no turn
        bytes_max = self._options.checkpoint_bytes
        cache_bytes_max, crowding = self._options.cache_bytes_max, self._cache.crowding
        if crowding > cache_bytes_max // 4:
            is_waited_for = self._has_committed and 2 * crowding > cache_bytes_max
            bytes_max = 0 if is_waited_for else min(bytes_max, cache_bytes_max // 8)
        if self._cache.large_bytes and self._has_large_to_flush():
            bytes_max = 0
        journaled_bytes, entries = self._at_last
        stats = self._journal.stats
        if (
            self._entries - entries >= self._options.checkpoint_entries
            or stats.bytes + stats.payload_bytes - journaled_bytes >= bytes_max
        ):
            self.begin()

    def _has_large_to_flush(self) -> bool:
        """Return True if a segment can take a large entry, which then leaves memory."""
        bytes_min = self._large_bytes_min
        return any(
            chunk.payload is not None and log.flushed_index < chunk.first <= log.flush_last
            for log in self.dirty.values()
            if log.unflushed >= bytes_min and _can_flush(log)
            for chunk in log.tail.chunks
        )

    @property
    def _large_bytes_min(self) -> int:
        """Least size of a tail that is flushed at once for a large entry in it."""
        return max(self._options.large_bytes_min, self._flush_bytes_min)

    def awaits_large(self, log: DiskLog) -> bool:
        """Return True if a large entry of the log is due to be flushed once it is committed."""
        return log.unflushed >= self._large_bytes_min and log.large_bytes > 0

    def ask_for_room(self, log: DiskLog, size: int) -> bool:
        """Have room made for a payload of `size` bytes of the log, now or by the next checkpoint.

        Return False if none can be made. `awaits_room` tells when that has ended; there may be no
        room then, because the disk does not have enough.
        """
        if self.is_full or self._journal.is_full or self.is_closing or log.is_lost:
            return False
        if not log.segments and log.last <= log.flushed_index:
            return False  # nothing begins a segment, as after a state was installed
        if log.id in self._room_planned:
            return True
        log.placement.bytes_wanted = 2 * size + ROOM_BYTES_MIN  # its segment may end before it
        self._room_asked[log.id] = log
        is_ready = self.state is CheckpointState.IDLE and self.is_noted
        if is_ready and _can_make_room(log) and self._owner.checkpoint_may_begin():
            self._start([], self._take_state([]), is_whole=False, ends_round=False)
        return True

    def awaits_room(self, log: DiskLog) -> bool:
        """Return True if the checkpoint in progress, or the next one, makes room for a payload."""
        return log.id in self._room_asked or log.id in self._room_planned

    def forget_room(self, log: DiskLog) -> None:
        """Make no room for a payload of the log any more: it is not wanted, or has a place."""
        self._room_asked.pop(log.id, None)
        log.placement.bytes_wanted = 0

    def _plan_rooms(self, plans: list[FlushPlan]) -> None:
        """Add plans for logs with a payload that waits for room, if they have none yet."""
        planned = {plan.files.log_id for plan in plans}
        for log in list(self._room_asked.values()):
            if log.id not in planned:
                if self._logs.get(log.id) is not log or not log.placement.bytes_wanted:
                    del self._room_asked[log.id]  # deleted, or reset
                    continue
                if not _can_make_room(log):
                    continue
                plans.append(self._plan(log))
            del self._room_asked[log.id]
            self._room_planned.add(log.id)

    def begin_for_waiters(self) -> None:
        """Begin a checkpoint for waiting callers, now that the files are free again."""
        if self._waiters:
            self.begin()

    def begin(self, done: Callable[[], None] | None = None) -> None:
        if done is not None:
            self._waiters.append(done)
        if self.is_running or not self._owner.checkpoint_may_begin():
            return
        self._at_last = self._journaled
        self._has_committed = False
        commit = self._take_state(list(self._logs.values()))
        if self.is_full or not self._is_spread:
            plans = self._plans(self.dirty.values())
        else:
            # It replaces a round's last part, so it does that part's work, too.
            plans = self._plans_of_share(0, at_least=self._is_pressed)
        self._start(plans, commit, is_whole=True, ends_round=True)

    def _take_state(self, logs: Sequence[DiskLog]) -> MetaCommit:
        """Take the changes of these logs' state machines, and those left over from others."""
        self.pending.collect(self._owner.checkpoint_collect(logs), self._logs)
        return self.pending.take(self._logs, self._queue.durable_token)

    def _start(
        self, plans: list[FlushPlan], commit: MetaCommit, *, is_whole: bool, ends_round: bool
    ) -> None:
        rooms = self.rooms
        if self._journal.is_full or self.is_full:
            rooms.give_up_all()
        elif self._room_asked:
            self._plan_rooms(plans)
        self.state = _BEGUN[self.state]
        meta, pulse = self._meta, self.pulse
        pulse.beats += 1
        for plan in plans:
            log_id = plan.files.log_id
            if not rooms.has(log_id):
                plan.room_bytes = 0  # logs planned after it have all the room there may be
                plan.gives_back = rooms.take(self._logs[log_id])
        surplus = rooms.take_due({plan.files.log_id for plan in plans})
        taken = [plan.files.log_id for plan in plans if plan.gives_back]
        taken += [found.log_id for found in surplus]
        roomy, space_kept = rooms.any_files(), self._space_kept

        def job() -> Outcome:
            outcome = _run(plans, commit, meta, surplus, pulse)
            if roomy is not None:
                outcome.is_scarce = free_bytes(roomy.fs, roomy.directory) < space_kept
            return outcome

        def finished(result: Outcome | BaseException) -> None:
            self._finished(result, commit, taken, is_whole=is_whole, ends_round=ends_round)

        self._workers.files(job, finished)

    # --- work ---------------------------------------------------------------------------------
    def _of_share(self, share: int) -> list[DiskLog]:
        """Return the logs of this share that existed at the round's first part.

        Looking at all logs in each part would cost an idle server with thousands of them a tenth of
        its time. An append to a younger log causes another round.
        """
        if not self._shares or share == self._parts - 1:
            self._shares = [[] for _ in range(self._parts)]
            for log in self._logs.values():
                self._shares[(log.id + self._spread) % self._parts].append(log)
        return [log for log in self._shares[share] if self._logs.get(log.id) is log]

    def _plans_of_share(self, share: int, *, at_least: bool = False) -> list[FlushPlan]:
        """Plan flushes of this share's logs with due tails.

        If many logs grow, also plans others whose tails have outgrown their own sizes, or the
        minimum.
        """
        plans = self._plans(log for log in self._of_share(share) if log.id in self.dirty)
        if self._is_spread:
            planned = {plan.files.log_id for plan in plans}
            plans += self._plans_of_grown(planned, at_least=at_least)
        return plans

    def _plans(self, logs: Iterable[DiskLog]) -> list[FlushPlan]:
        """Plan flushes of logs whose tails are due, by id.

        If many are dirty, each log has its own size, and a tail that needs an old journal file is
        flushed at any size: writing it again would only postpone that, for a thousand tails at
        once.
        """
        least = self._flush_bytes_min
        is_spread = self._is_spread
        too_old = self._journal.chain.first_of_newest(JOURNAL_FILES_MIN)
        due = []
        for log in logs:
            bytes_min = least
            if is_spread:
                is_old = 0 < log.oldest_run() < too_old
                bytes_min = 0 if is_old else self._own_size(log, least)
            if self._is_due(log, bytes_min):
                due.append(log)
        return self._planned(due)

    def _plans_of_grown(self, planned: Container[int], *, at_least: bool) -> list[FlushPlan]:
        """Plan flushes of all other logs whose tails have outgrown a size, by id.

        The size is the log's own, or with `at_least` the minimum.
        """
        least = self._flush_bytes_min
        # Without a call per log: most are not due.
        grown = [
            log for log in self.dirty.values() if log.unflushed >= least and log.id not in planned
        ]
        due = []
        for log in grown:
            bytes_min = least if at_least else self._own_size(log, least)
            if self._is_grown(log, bytes_min):
                due.append(log)
        return self._planned(due)

    def _planned(self, due: list[DiskLog]) -> list[FlushPlan]:
        due.sort(key=attrgetter("id"))
        return [self._plan(log) for log in due]

    def _own_size(self, log: DiskLog, least: int) -> int:
        return least + (log.id + self._spread) % FLUSH_STEPS * 3 * least // FLUSH_STEPS

    @property
    def _flush_bytes_min(self) -> int:
        """Minimum size of a tail to be flushed.

        Smaller tails, of however many logs, leave space for appends in the cache, which wait when
        half of it waits for segments. It decreases gradually while an eighth of the cache fills; a
        sudden decrease would make hundreds of tails due.
        """
        room = max(self._options.cache_bytes_max // 8, 1)
        share = min(FLUSH_BYTES_MIN, room // max(len(self.dirty), 1))
        filled = min(max(2 * self._cache.crowding - room, 0), room)
        return FLUSH_BYTES_MIN - (FLUSH_BYTES_MIN - share) * filled // room

    @property
    def _is_spread(self) -> bool:
        return len(self.dirty) >= MANY_LOGS

    @property
    def _is_crowded(self) -> bool:
        return self._cache.crowding > self._options.cache_bytes_max // 4

    @property
    def _is_pressed(self) -> bool:
        """True if much data waits for segments in memory or in the journal, or the disk is full.

        If many logs are dirty, journal files wait for tails whose part will come, and flushing
        others would not help.
        """
        is_long = not self._is_spread and self._journal.file_count > JOURNAL_FILES_MIN
        return self._journal.is_full or self._is_crowded or is_long

    def flushable_bytes(self) -> int:
        """Return the bytes of committed entries that are in no segment yet, without large entries.

        Includes entries of a flush in progress, and entries that no flush can take yet because a
        payload or the record of a truncation must become durable first, or files from before a
        reset must be removed.
        """
        return sum(
            chunk.ends[stop - 1] - chunk.start_of(start)
            for log in self._logs.values()
            if log.unflushed and log.hard.commit > log.flushed_index and not log.is_lost
            for chunk, start, stop in log.tail.spans(log.flushed_index + 1, log.hard.commit + 1)
            if chunk.payload is None
        )

    def _is_due(self, log: DiskLog, bytes_min: int) -> bool:
        """Return True if the tail has `bytes_min` bytes or many entries, or was written again."""
        return (log.rewritten and _can_flush(log)) or self._is_grown(log, bytes_min)

    def _is_grown(self, log: DiskLog, bytes_min: int) -> bool:
        entries = log.last - log.flushed_index
        is_grown = log.unflushed >= bytes_min or entries >= self._options.checkpoint_entries // 100
        return is_grown and _can_flush(log)

    def _plan(self, log: DiskLog) -> FlushPlan:
        """Return the plan of a flush of everything committed, which may be nothing."""
        first, last = log.flushed_index + 1, log.flush_last
        assert first <= last + bool(log.segments), (log.id, first, last)
        spans: list[FlushSpan] = []
        size = 0
        for chunk, start, stop in log.tail.spans(first, last + 1):
            position = chunk.start_of(start)
            spans.append(
                FlushSpan(
                    chunk.readonly,
                    chunk.entries[start:stop],
                    chunk.ends[start:stop],
                    position,
                    chunk.payload,
                )
            )
            size += chunk.ends[stop - 1] - position
        cursor, has_scrap, placement = log.cursor, log.has_scrap, log.placement
        if has_scrap:
            placement.rooms = NO_ROOMS  # their files are removed
        if last > placement.index:
            log.has_scrap = True  # until all of this flush is known to count
        limits = log.limits or SegmentLimits(self._options.segment_bytes)
        return FlushPlan(
            log.files, log.generation, first, last, log.offset_after(last), size,
            Cursor(cursor.segment, cursor.position, cursor.max_timestamp, cursor.first_timestamp),
            spans, limits,
            log.segments[-1].first_index if log.segments else NO_INDEX, has_scrap, self.pulse,
            log.segments[-1].base_offset if log.segments else Offset(0),
            roll_at=log.roll_at(max(first, placement.index + 1)), placed_last=placement.index,
            begun=[info for info in placement.begun if info.first_index <= last],
            end=(placement.segment, placement.position),
            room_bytes=self.rooms.bytes_for(log, size, limits, is_full=self._journal.is_full),
            rooms=dict(placement.rooms), space_kept=self._space_kept, rewinds=placement.rewinds,
            is_read=log.is_read,
        )  # fmt: skip

    def _finished(
        self,
        result: Outcome | BaseException,
        commit: MetaCommit,
        taken: Sequence[LogId],
        *,
        is_whole: bool,
        ends_round: bool,
    ) -> None:
        """Handle the end of a job. `taken` are the logs whose surplus it was to give back."""
        self._room_planned.clear()
        if self.is_closing:
            # The closing block is written: a start finds these entries in the journal.
            self.state = _BEFORE[self.state]
            self._owner.checkpoint_ended()
            return
        if isinstance(result, BaseException):
            if not is_refused(result):
                self.state = _BEFORE[self.state]
                self._owner.checkpoint_failed(result)
                return
            result = Outcome(is_full=True)
        self.state = CheckpointState.REFUSED if result.is_full else CheckpointState.IDLE
        for flushed in result.flushed:
            self._apply(flushed)
        for log_id in taken:
            if log_id not in result.given_back and log_id in self._logs:
                self.rooms.put_back(self._logs[log_id])
        if result.is_scarce:
            self.rooms.give_up_all()
        self._arm_for_rooms()
        if result.meta_lost is not None:
            self._note_lost(result.meta_lost)
        if result.is_meta_saved:
            self.pending.saved(commit, self._logs)
        if result.is_full:
            self._try_again()
        else:
            if not self.pending.is_empty:
                self.arm()  # for state that waits for a reset to become durable
            if ends_round:
                self.count += 1
                self._rewrite_tails()
                self._stage_anew()
        self._cache.evict()
        failpoint.hit("checkpoint.noted")
        self._note_token = self._journal.submit(urgent=False)
        is_long = self._journal.file_count > JOURNAL_FILES_MANY
        self._releases = self._releases or ends_round or is_long
        self.release_files()
        if is_whole:
            waiters, self._waiters = self._waiters, []
            for waiter in waiters:
                waiter()
        self._owner.checkpoint_ended()
        if self._journal.is_idle:
            self.begin_if_pressed()  # no further block will check

    def _note_lost(self, meta_lost: frozenset[int]) -> None:
        """Note the logs of which nothing may be stored any more.

        Retention must not trim up to the lost state.
        """
        for log in self._logs.values():
            if log.id in meta_lost and not log.is_meta_lost:
                self.arm()  # all of its state must be written
            log.is_meta_lost = log.id in meta_lost
            if log.is_meta_lost:
                log.applied = NO_INDEX

    def _apply(self, result: FlushResult) -> None:
        plan = result.plan
        log = self._logs.get(result.log_id)
        if log is None or log.generation != plan.generation:
            return
        log.touch(self._queue.batch)
        log.add_segments(result.opened, result.sealed)
        log.cursor = result.cursor
        log.flushed_index = plan.last
        log.flushed_offset = plan.next_offset
        log.is_void = False
        placement = log.placement
        placement.flushed(plan.last, result.cursor)
        if placement.rewinds == plan.rewinds:
            if plan.has_scrap or plan.writes_frames:
                log.has_scrap = False
            placement.give_room(result.rooms)
        log.rewritten = False
        log.unflushed -= plan.bytes
        self._cache.unflushed -= plan.bytes
        self.flushed_bytes += plan.bytes
        self._cache.flushed(log.tail, plan.last)
        if log.hard.commit <= log.flushed_index:
            self.dirty.pop(log.id, None)
        log.stage_state(self._queue.batch, FLUSHED, 0, plan.last, plan.next_offset)

    def _rewrite_tails(self) -> None:
        """Write again, at the journal's head, data that only the oldest file holds.

        Done if the journal is longer than its live entries justify. The data are uncommitted
        entries, tails too small for a flush, and installed states. Votes need no rewriting: each
        file's header carries them. The journal may be twice as long as the data that no segment
        holds, so rewriting never costs more than the appends that caused it.

        Not done on a full disk, or when one may be about to show: it would use the reserve for
        votes, and could delay them. Small amounts are carried over (`journal/carry_over.py`).
        """
        if not self._journal.allocation.has_next:
            return
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
        least = 0 if self._is_spread else self._flush_bytes_min
        for log_id in sorted(needed):
            if needed[log_id] != oldest:
                continue
            log = self._logs[log_id]
            is_due = log_id in self.dirty and self._is_due(log, least)
            if is_due:
                self.arm()  # it has grown since its part, or the file is old: next round takes it
            log.restage(oldest, self._queue.batch, with_tail=not is_due)

    def renew_journal(self, sequence: int) -> None:
        """Arrange the release of a damaged journal file and those before it.

        The data they are needed for is in memory: it goes to segments or is staged again.
        """
        self._damaged_upto = max(self._damaged_upto, sequence)
        self.arm()
        self.begin()

    def _stage_anew(self) -> None:
        """Stage again the data for which damaged journal files are needed.

        Not on a full disk, as in `_rewrite_tails`.
        """
        damaged_upto, journal = self._damaged_upto, self._journal
        if not damaged_upto:
            return
        if min(journal.chain.paths) > damaged_upto:
            self._damaged_upto = 0
            return
        self.arm()  # the next round checks that they are gone
        if not journal.allocation.has_next:
            return
        journal.end_file(damaged_upto)
        batch = self._queue.batch
        enough = block_bytes(batch) + RESTAGED_BYTES
        for log in self._logs.values():
            if block_bytes(batch) >= enough:
                break
            for sequence in sorted({log.oldest_run(), log.install_sequence}):
                if 0 < sequence <= damaged_upto and not log.is_lost:
                    log.restage(sequence, batch, with_tail=True)
        if journal.current_sequence <= damaged_upto and not batch.records:
            # Only a block with records begins a file.
            for log in list(self._logs.values())[:1]:
                log.touch(batch)
                log.stage_state(batch, HARD, log.hard.term, log.hard.commit, log.hard.vote)
        self._releases = True

    def hold_files(self) -> None:
        """Postpone the release of journal files until the records now staged are durable.

        These records end the need for some of the files.
        """
        if self._note_token or self._awaiting_proof[0]:
            self._releases = self._releases or bool(self._awaiting_proof[0])
            self._awaiting_proof = (0, 0)
            self._note_token = self._queue.batch.token

    def release_files(self) -> None:
        """Release journal files that are no longer needed, once the last notes are durable.

        Files below the oldest needed one are released. A deleted log needs its files until it is no
        longer listed, and a lost one until the identity says so. A block after the notes must prove
        these durable first: the very last block may be damaged without a trace, and a start would
        then miss the files.
        """
        token, sequence = self._awaiting_proof
        if token and self._queue.proved_token >= token:
            self._awaiting_proof = (0, 0)
            self._journal.release(sequence, damaged_upto=self._damaged_upto)
        if not self._note_token or self._queue.durable_token < self._note_token:
            return
        if self._journal.partly_written or self._registry.lists_removed:
            return
        self._note_token = 0
        if not self._releases:
            return
        self._releases = False
        needed = self._journal.current_sequence
        for log in self._logs.values():
            if not log.is_written_off:
                needed = min(needed, log.oldest_needed() or needed)
        self._awaiting_proof = self._queue.durable_token, needed
        if self._queue.proved_token >= self._queue.durable_token:
            self.release_files()


def _can_make_room(log: DiskLog) -> bool:
    """Return True if a flush, perhaps of no entries, may make room now."""
    has_file = bool(log.segments) or log.flush_last > log.flushed_index
    return has_file and not (log.is_lost or log.flush_blocked or log.placement.rewind_token)


def _can_flush(log: DiskLog) -> bool:
    if log.flush_blocked or log.is_lost or log.placement.rewind_token:
        return False
    return log.flush_last > log.flushed_index


def _run(
    plans: list[FlushPlan],
    commit: MetaCommit,
    meta: Meta,
    surplus: list[Surplus],
    pulse: Pulse,
) -> Outcome:
    """Write segments and meta, and give back room.

    Blocks. Raises OSError, but not for a full disk, which may refuse one part and have space for
    another.
    """
    outcome = Outcome()
    failpoint.hit("checkpoint.begun")
    for plan in plans:
        try:
            flushed = run_flush(plan)
            outcome.flushed.append(flushed)
            if flushed.has_given_back:
                outcome.given_back.add(flushed.log_id)
            pulse.beats += 1
        except OSError as error:
            if not is_refused(error):
                raise
            outcome.is_full = True
    failpoint.hit("checkpoint.flushed")
    try:
        meta.commit(commit.batches, commit.covered)
        outcome.is_meta_saved = True
    except OSError as error:
        if not is_refused(error):
            raise
        outcome.is_full = True
    outcome.meta_lost = meta.outdated
    for found in surplus:
        try:
            give_back(found.files, found.segment, found.position)
        except OSError as error:
            if not is_refused(error):
                raise
            continue  # nothing depends on it: retried later, and the disk does not count as full
        outcome.given_back.add(found.log_id)
        pulse.beats += 1
    return outcome
