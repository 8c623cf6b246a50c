"""The journal's writer: staged batches become blocks, one write at a time, in files prepared ahead.

One block is one durable write, by the kernel (`io/ring.py`) or by a job. Payloads in segments to
which the block refers are written in parallel by a job; the block is done when both are.
Data staged during a write becomes the next block. A file is zero-filled and synced before its first
block, so that a block changes no metadata; the next file is prepared while this one fills
(`allocation.py`). A file's header is part of the same write as its first block.

After a quiet spell an idle block is written, which proves that the last block with data is durable.
Blocks that carry only commit indexes need no proof.

On a full disk the next file is made from the reserve. It replaces as many of the newest files as it
can (`carry_over.py`), so that they can be released. Votes and notes then need no more space,
however many there are. Entries leave the last pieces of the reserve to them.

A failed write ends the journal: its owner is notified, and nothing is written afterwards.

Does not depend on the contents of logs or on which files are still needed.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from enum import Enum, auto
from functools import partial
from typing import Protocol

import msgspec

from ids import DirectoryId, LogId
from segments.api import Buffer, StoreOptions, Workers
from segments.format.block import (
    BLOCK_HEADER_BYTES,
    CLOSING,
    OPENING,
    PAGE_BYTES,
    encode_block,
    file_header_bytes,
    padded,
)
from segments.io import failpoint
from segments.io.fs import (
    DISK_FULL_RETRY_MS,
    IOV_MAX,
    FileSystem,
    RealFile,
    is_disk_full,
    is_refused,
)
from segments.journal.allocation import PREPARED_FILES_MAX, Allocation, Room
from segments.journal.carry_over import carry_over, needed_bytes
from segments.journal.chain import Chain, Position
from segments.journal.files import SMALL_BLOCK_BYTES, JournalFile, JournalFiles, Prepared
from segments.journal.marks import marks_before, marks_of
from segments.journal.queue import Queue
from segments.journal.split import block_bytes, split
from segments.journal.stats import WriteStats
from segments.log.log import Batch, DiskLog
from segments.log.placement import Payload, write_payloads

_PADDING = bytes(PAGE_BYTES)
ROOM_FILES = 2
"""Number of additional files for which there must be space beside an entry that enlarges its file:
the next file, and other writes meanwhile."""


class JournalOwner(Protocol):
    """Receiver of notifications about batches.

    Calls rather than results: they come when a write has ended, and no call waits for that.
    """

    def journal_written(self, batch: Batch | None) -> None:
        """Handle a durable batch, which may be acknowledged.

        None: an empty block or a part of a batch was written.
        """

    def journal_failed(self, error: BaseException) -> None:
        """React to a failure. Nothing is written any more."""

    def journal_prepared(self) -> None:
        """React to prepared space: the reserve may cover more logs than before."""


class WriterState(Enum):
    """State of the writer."""

    IDLE = auto()
    """No block is in progress, and none waits for a file."""
    AWAITING_FILE = auto()
    """A batch, or the rest of one, needs a file that is not ready yet."""
    WRITING = auto()
    """The kernel or a thread writes a block."""
    REFUSED = auto()
    """The block was refused for lack of disk space or memory. It is retried each second, and
    nothing is written before it."""
    STOPPED = auto()
    """A failure here or elsewhere. Nothing is written or acknowledged any more."""


_MOVES = (
    (WriterState.IDLE, WriterState.WRITING),
    (WriterState.WRITING, WriterState.IDLE),
    (WriterState.IDLE, WriterState.AWAITING_FILE),
    (WriterState.AWAITING_FILE, WriterState.AWAITING_FILE),
    (WriterState.AWAITING_FILE, WriterState.WRITING),
    (WriterState.WRITING, WriterState.REFUSED),
    (WriterState.REFUSED, WriterState.REFUSED),
    (WriterState.REFUSED, WriterState.IDLE),
    *((state, WriterState.STOPPED) for state in WriterState),
)
"""All state transitions. A tuple: look-up in a set would hash both states in Python."""
_MAY_WRITE = (WriterState.IDLE, WriterState.AWAITING_FILE)


class _Write(msgspec.Struct):
    """One block being written: `part` of a batch, in `file` from `position` to `end`.

    `done_batch` is the batch that becomes durable with it. `crc_before` restores the chain if the
    block is not written. While `awaits_payloads`, a `result` that arrives first is kept.
    """

    file: JournalFile
    buffers: list[Buffer]
    position: int
    end: int
    part: Batch
    done_batch: Batch | None
    crc_before: int
    awaits_payloads: bool = False
    result: int | BaseException = 0

    def place(self) -> tuple[int, Sequence[Buffer], int] | None:
        """See `segments.api.Write`."""
        file = self.file.file
        if failpoint.armed or self.end > self.file.capacity or len(self.buffers) > IOV_MAX:
            return None
        if type(file) is not RealFile:  # another one has to see each call
            return None
        return file.descriptor, self.buffers, self.position

    def run(self) -> int:
        """Write and sync. Blocks. Raises OSError."""
        file, buffers, position = self.file.file, self.buffers, self.position
        if failpoint.armed:
            failpoint.hit("journal.before_sync")
        block_end = position + sum(map(len, buffers))
        if block_end > self.file.capacity:
            # A lack of space must be detected here, before anything is written.
            file.allocate(block_end)
        if failpoint.armed and failpoint.is_due("journal.torn"):
            file.pwrite(buffers[:1], position)
            failpoint.act("journal.torn")
        written = file.pwrite(buffers, position, durable=True)
        if failpoint.armed:
            failpoint.hit("journal.after_sync")
        return written


class Journal:
    """Journal of all logs. Use: stage into `queue.batch`, then `submit`. Batches up to
    `queue.durable_token` may be acknowledged."""

    def __init__(
        self,
        fs: FileSystem,
        directory: str,
        workers: Workers,
        options: StoreOptions,
        rng: random.Random,
        logs: Mapping[LogId, DiskLog],
        owner: JournalOwner,
        now_ns: Callable[[], int],
        directory_id: DirectoryId,
    ) -> None:
        """Create a journal that is not open yet.

        `logs` are those of the recovery. `directory_id` is written to each block.
        """
        self._directory_id = directory_id
        self._workers = workers
        self._options = options
        self._rng = rng
        self.logs = dict(logs)
        """Use: the logs that a header's marks name, and whose data a new file repeats.
        Invariant: has every log that the identity on disk lists, also a deleted one: a start before
        the next identity is durable still needs its data."""
        self._owner = owner
        self._now_ns = now_ns
        self.queue = Queue()
        self.chain = Chain()
        self.allocation = Allocation(JournalFiles(fs, directory, options))
        self.stats = WriteStats()
        self.state = WriterState.IDLE
        self._current: JournalFile | None = None
        """Use: receives the next block as long as it fits.
        Invariant: the newest file of the chain. Everything before its position is durable."""
        self._started_ns = 0
        self._under_way_bytes = 0
        """Use: bytes of the current file that the block in progress takes; 0: there is none."""
        self._payload_bytes = 0
        """Payload bytes of the block in progress."""
        self._unproved = False
        """Use: an idle block follows.
        Invariant: True while the newest block that needs a proof has no block after it."""
        self._armed_at: int | None = None
        """Use: number of blocks when the idle timer was set; None: it is not set."""
        self._is_retry_armed = False
        """True if a timer will request disk space again."""
        self.is_payload_refused = False
        """True if a payload was refused. It is retried after a second, and nothing is written
        before."""

    # --- opening -------------------------------------------------------------------------------
    def open(
        self,
        position: Position,
        live: Sequence[tuple[int, str]],
        spare: Sequence[tuple[int, str]],
        carried: Batch,
        begins: Mapping[int, int],
    ) -> None:
        """Begin a new file after recovery and write its first block with the `carried` records.

        Blocks. Raises OSError (ENOSPC) if not even the reserve has space for it. `live` are the
        files that recovery replayed, `spare` those prepared and never used, `begins` the LSNs up to
        which the files before each of `live` count.
        """
        chain, allocation = self.chain, self.allocation
        allocation.files.sync_names()
        chain.open(position, live, begins)
        allocation.next_sequence = position.next_sequence
        allocation.open(spare)
        if not allocation.prepared:
            allocation.prepared.append(self._first_file(carried))
        if carried.marks is None and position.replaced:
            # The file that stood for others is repeated by this one, which now stands for them.
            carried.stands_for = position.previous + 1
            chain.begins[carried.stands_for] = position.lsn - position.replaced
            carried.marks = marks_before(self.logs, carried.stands_for)
        buffers, file, end = self._build(carried, OPENING)
        chain.begins = {n: chain.begins[n] for n in (*chain.paths, file.sequence)}
        if end > file.capacity:
            file.file.allocate(end)
        file.file.pwrite(buffers, 0, durable=True)
        self._advance(file, end, is_missed=bool(carried.records))
        allocation.pieces_left = allocation.files.reserve.pieces()
        if chain.replaced or carried.records:
            self._unproved = True
            self._arm_idle()
        self._prepare()

    def _first_file(self, carried: Batch) -> JournalFile:
        """Return a small file, so that a start does not wait for a large one to be filled.

        On a full disk the file is made from the reserve.
        """
        allocation, files = self.allocation, self.allocation.files
        sequence = allocation.take_sequence()
        try:
            return files.make(sequence, files.first_file_bytes)
        except OSError as error:
            if not is_disk_full(error):
                raise
            allocation.room = Room.FULL
            self._carry_over(carried)
            piece = files.make_from_reserve(sequence, self._header_bytes() + block_bytes(carried))
            if piece is None:
                raise
            return piece

    def covers(self, logs: int) -> bool:
        """Return True if the reserve covers the votes of that many logs on a full disk.

        If not, it is enlarged, and `journal_prepared` follows.
        """
        is_covered = self.allocation.covers(logs)
        if not is_covered and not self.is_full:  # a full disk is retried each second anyway
            self._prepare()
        return is_covered

    # --- writing -------------------------------------------------------------------------------
    def submit(self, *, urgent: bool = True) -> int:
        """See `Store.submit`."""
        queue = self.queue
        batch = queue.batch
        if not batch.records:
            return batch.token - 1
        token = batch.token
        if urgent or queue.is_closing:  # no idle block follows a close
            queue.is_wanted = True
            if self.state in _MAY_WRITE:
                self._write()
        elif self._armed_at is None:
            self._arm_idle()
        return token

    def close(self) -> None:
        """Write the closing block with the staged records; `journal_written` follows."""
        self.queue.is_closing = True
        self.queue.is_wanted = True
        if self.state in _MAY_WRITE:
            self._write()

    @property
    def is_idle(self) -> bool:
        """True if nothing is staged or being written."""
        return self.state is WriterState.IDLE and self.queue.is_empty

    @property
    def closed(self) -> bool:
        """True if the closing block is on disk. Never true of a stopped journal."""
        return self.queue.is_closing and not self.queue.is_wanted and self.is_idle

    @property
    def writing_bytes(self) -> int:
        """Bytes of the block in progress, with its payloads."""
        return self._under_way_bytes and self._under_way_bytes + self._payload_bytes

    @property
    def is_full(self) -> bool:
        """True if a file or a piece of the reserve was refused for lack of space."""
        return self.allocation.room is Room.FULL

    @property
    def current_sequence(self) -> int:
        assert self._current is not None, "journal is not open"
        return self._current.sequence

    @property
    def partly_written(self) -> bool:
        """True if a batch larger than a file is only partly on disk."""
        return self.queue.rest is not None

    @property
    def file_count(self) -> int:
        return len(self.chain.paths)

    def _become(self, state: WriterState) -> None:
        assert (self.state, state) in _MOVES, (self.state, state)
        self.state = state

    def _write(self) -> None:
        """Write the oldest batch's next block, if a file is ready for it."""
        if self.state is WriterState.STOPPED:
            return
        assert self.state in _MAY_WRITE, self.state
        queue = self.queue
        batch = queue.rest
        is_last = batch is None
        if batch is None:
            batch = queue.take()
        current, need = self._current, block_bytes(batch)
        # An empty block may extend a full file.
        needs_file = current is None or (
            bool(batch.records) and current.position + need > current.capacity
        )
        if needs_file and is_last and batch.records:
            # Taken now: by the time the file is ready, more has been staged, and a header with
            # that state would name records that are not durable yet.
            batch.marks = marks_of(self.logs)
            if self.allocation.room is Room.FULL:
                self._carry_over(batch)
        last_part = self._fit(batch) if needs_file else (batch, None)
        if last_part is None:
            assert batch.records, batch.token
            queue.rest = batch
            self._become(WriterState.AWAITING_FILE)
            if self.allocation.room is not Room.FULL or self._pieces_wanted():
                self._prepare()
            else:
                self._do_without_proof()
            return
        part, queue.rest = last_part
        crc = self.chain.crc
        flags = CLOSING if queue.is_closing and is_last and queue.rest is None else 0
        buffers, file, end = self._build(part, flags)
        if batch.records and not batch.sequence:  # more may be staged into an empty one
            batch.sequence = file.sequence
        if queue.rest is not None:
            queue.rest.sequence = batch.sequence
        done_batch = batch if queue.rest is None and batch.records else None
        if done_batch is not None and batch.sequence != file.sequence:
            self.chain.divided.append((batch.sequence, file.sequence))
        position = file.position
        self._become(WriterState.WRITING)
        self._under_way_bytes = end - position
        self._started_ns = self._now_ns()
        if part.needs_proof:
            self._unproved = True
        elif queue.rest is None:
            self._unproved = False
        self._hand_over(_Write(file, buffers, position, end, part, done_batch, crc))

    def _hand_over(self, write: _Write) -> None:
        """Have the block written, by the kernel or the thread; `_ended` follows.

        No callback may refer to itself: a cycle per block makes work for the garbage collector,
        which stops all threads.
        """
        if self.state is WriterState.STOPPED:
            return
        payloads, write.part.payloads = write.part.payloads, []
        self._payload_bytes = 0
        if payloads:
            self._payload_bytes = sum(payload.bytes for payload in payloads)
            write.awaits_payloads = True
            self._write_payloads(write, payloads)
        self._workers.write(write, partial(self._ended, write))

    def _write_payloads(self, write: _Write, payloads: Sequence[Payload]) -> None:
        if self.state is not WriterState.STOPPED:
            job = partial(write_payloads, payloads)
            self._workers.payload(job, partial(self._payloads_ended, write, payloads))

    def _payloads_ended(
        self, write: _Write, payloads: Sequence[Payload], result: int | BaseException
    ) -> None:
        """Handle the end of the payload writes.

        Their space was allocated, so a failure is a failed sync, except a lack of memory or
        descriptors, which occurs before any write.
        """
        if self.state is WriterState.STOPPED:
            return
        self.is_payload_refused = isinstance(result, BaseException) and is_refused(result)
        if self.is_payload_refused:
            again = partial(self._write_payloads, write, payloads)
            self._workers.call_later(DISK_FULL_RETRY_MS, again)
            return
        write.awaits_payloads = False
        if isinstance(result, BaseException):
            self._fail(result)
            return
        self.stats.payload_bytes += result
        if write.result:
            self._ended(write, write.result)

    def _ended(self, write: _Write, result: int | BaseException) -> None:
        """Handle the end of a block's write.

        A failed write or sync is final: the system may have marked the pages clean, so another sync
        would prove nothing.
        """
        if self.state is WriterState.STOPPED:
            return
        is_failure = isinstance(result, BaseException) and not is_refused(result)
        if write.awaits_payloads and not is_failure:
            write.result = result  # counts only together with them
            return
        if not isinstance(result, BaseException):
            self._written(write)
        elif not is_refused(result):
            self._fail(result)
        elif write.part.records:
            # Only a block that extends its file can be refused, before it is written.
            self._become(WriterState.REFUSED)
            self._workers.call_later(DISK_FULL_RETRY_MS, partial(self._hand_over, write))
            self._do_without_proof()
        else:
            self._take_back(write)

    def _take_back(self, write: _Write) -> None:
        """Take back an empty block that a full disk refused.

        Nothing, and votes least of all, should wait for it. But the block before remains unproved.
        """
        self.chain.crc = write.crc_before
        self._become(WriterState.IDLE)
        self._unproved = True
        # It must not hold the files whose space it would need.
        self.queue.proved_token = self.queue.durable_token
        if self._armed_at is None and not self.queue.is_closing:
            self._arm_idle()
        self._under_way_bytes = 0
        if self.queue.is_due:
            self._write()
        self._owner.journal_written(None)

    def _do_without_proof(self) -> None:
        """Count the last block as proved.

        A full disk has no space for the block that would prove it, and files wait for that proof.
        """
        if self.queue.proved_token < self.queue.durable_token:
            self.queue.proved_token = self.queue.durable_token
            self._owner.journal_written(None)

    def _written(self, write: _Write) -> None:
        """Note that the block is on disk, and a batch that ends with it."""
        queue, stats, batch = self.queue, self.stats, write.done_batch
        now_ns = self._now_ns()
        elapsed = now_ns - self._started_ns
        stats.last.append((self._started_ns, now_ns))
        stats.write_ns_total += elapsed
        stats.writes.observe(elapsed)
        stats.write_ns_max = max(stats.write_ns_max, elapsed)
        self._become(WriterState.IDLE)
        self._under_way_bytes = 0
        self._advance(write.file, write.end, is_missed=write.part.needs_proof)
        queue.proved_token = queue.durable_token
        if batch is not None:
            batch.note_placed()
            queue.durable_token = batch.token
            if not batch.needs_proof:
                queue.proved_token = batch.token
        elif queue.rest is not None:
            failpoint.hit("journal.partly")
        if queue.rest is not None or queue.is_wanted:
            self._write()
        if self._unproved and self._armed_at is None and not queue.is_closing:
            self._arm_idle()
        self._owner.journal_written(batch)

    def _advance(self, file: JournalFile, end: int, *, is_missed: bool) -> None:
        """Advance `file` to `end` after a durable block.

        `is_missed`: peers must be able to detect its loss.
        """
        chain, stats = self.chain, self.stats
        if file is not self._current:
            if self._current is not None:
                self._current.file.close()
                failpoint.hit("journal.rolled")
            self._current = file
            chain.paths[file.sequence] = file.path
            self._prepare()
        elif chain.replaced:
            # This block proves the file's first one, which contains what the replaced files held.
            self.allocation.returned += chain.drop_replaced()
            self._prepare()
        stats.blocks += 1
        stats.bytes += end - file.position
        file.position = end
        chain.durable_lsn = file.start_lsn + end
        if is_missed:
            chain.recorded_lsn = chain.durable_lsn

    def _fail(self, error: BaseException) -> None:
        self._become(WriterState.STOPPED)
        self._owner.journal_failed(error)

    # --- blocks --------------------------------------------------------------------------------
    def _fit(self, batch: Batch) -> tuple[Batch, Batch | None] | None:
        """Return (part of a batch for the block that begins a file, the rest); None without a file.

        A batch that no file can take whole is split between records. A single record that none can
        take goes to the start of a file and enlarges it.
        """
        prepared = self.allocation.prepared
        if not prepared:
            return None
        need = block_bytes(batch)
        room = prepared[0].capacity - self._header_bytes()
        room -= room % PAGE_BYTES  # blocks are whole pages, even if the file is not
        if need <= room or len(batch.records) == 1 or batch.stands_for:
            return batch, None
        return split(batch, room)

    def _header_bytes(self) -> int:
        return file_header_bytes(len(self.logs))

    def _build(self, batch: Batch, flags: int) -> tuple[list[Buffer], JournalFile, int]:
        """Return (buffers, file, end position) of the block for `batch`; may begin a new file."""
        chain = self.chain
        table = b"".join(batch.records)
        size = BLOCK_HEADER_BYTES + len(table) + batch.bytes
        need = padded(size)
        buffers: list[Buffer] = []
        file = self._current
        if file is None or (batch.records and file.position + need > file.capacity):
            file = self.allocation.prepared.popleft()
            file.salt = self._rng.getrandbits(64)
            marks = batch.marks if batch.marks is not None else marks_of(self.logs)
            header = chain.begin(file, marks, batch.stands_for)
            buffers.append(header)
            at = len(header)
        else:
            at = file.position
        head, chain.crc = encode_block(
            salt=file.salt, lsn=file.start_lsn + at, durable=chain.durable_lsn,
            chain=chain.crc, flags=flags, table=table, frames_bytes=batch.bytes,
            directory=self._directory_id,
        )  # fmt: skip
        buffers.append(head)
        buffers += batch.buffers
        if need > size:
            buffers.append(memoryview(_PADDING)[: need - size])
        return buffers, file, at + need

    # --- idle ----------------------------------------------------------------------------------
    def _arm_idle(self) -> None:
        self._armed_at = self.stats.blocks
        self._workers.call_later(self._options.idle_block_ms, self._idle)

    def _idle(self) -> None:
        """Write waiting records, or prove the last block, if nothing was written since arming."""
        blocks, self._armed_at = self._armed_at, None
        if self.queue.is_closing or self.state is WriterState.STOPPED:
            return
        if not (self.queue.batch.records or self._unproved):
            return
        if self.state not in _MAY_WRITE or self.stats.blocks != blocks:
            self._arm_idle()
            return
        self.queue.is_wanted = True
        self._write()

    # --- files ---------------------------------------------------------------------------------
    def counted_files(self) -> list[tuple[int, str, int]]:
        """Return (sequence, path, LSN up to which it counts) of each file that a start needs."""
        chain = self.chain
        live = chain.live()
        begun = sorted(chain.begins.keys() - chain.paths.keys())  # its first block is being written
        ends = [chain.begins[n] for n in [*live, *begun][1:]]
        if not begun:
            ends.append(chain.durable_lsn)
        return [(n, chain.paths[n], end) for n, end in zip(live, ends, strict=True)]

    def end_file(self, sequence: int) -> None:
        """Make the next block with records begin a new file, if `sequence` is the current one."""
        current = self._current
        if current is not None and current.sequence == sequence:
            current.capacity = min(current.capacity, current.position)

    def release(self, sequence: int, *, damaged_upto: int = 0) -> None:
        """Release files before `sequence`, which are no longer needed.

        The next file is prepared from them, but not from those up to `damaged_upto`, whose places
        on the medium may be bad.
        """
        assert sequence <= self.current_sequence, (sequence, self.current_sequence)
        allocation = self.allocation
        damaged = self.chain.release(min(sequence, damaged_upto + 1))
        old = self.chain.release(sequence)
        if damaged:
            self._remove(damaged)
        if not old and not damaged:
            return
        rest = self.queue.rest
        if rest is not None and 0 < rest.stands_for < sequence:
            # It waits for a file that is to replace others, some of which are gone now.
            rest.stands_for = min(n for n in self.chain.paths if n >= sequence)
        if allocation.room is Room.FULL:
            # Other users of the disk must not take space that belongs to the reserve.
            allocation.returned += old
            self._prepare()
            return
        has_room = len(allocation.prepared) < PREPARED_FILES_MAX and not allocation.reuse
        if has_room and old and not self.queue.is_closing:
            allocation.reuse = old.pop()
            self._prepare()
        if old:
            self._remove(old)

    def _remove(self, paths: list[str]) -> None:
        if self.state is not WriterState.STOPPED:
            job = partial(self.allocation.files.remove, paths)
            self._workers.essential(job, partial(self._removed, paths))

    def _removed(self, paths: list[str], result: BaseException | None) -> None:
        if isinstance(result, BaseException) and is_refused(result):
            self._workers.call_later(DISK_FULL_RETRY_MS, partial(self._remove, paths))
        elif isinstance(result, BaseException):
            self._fail(result)

    def _carry_over(self, batch: Batch) -> None:
        """Let the file that this batch begins replace as many of the newest files as possible.

        The data needed from them must fit into a piece of the reserve beside the batch.
        """
        room = self.allocation.carry_room(self._header_bytes()) - block_bytes(batch)
        # A payload may become durable without its block: then earlier files must be unchanged.
        if room >= 0 and self.chain.paths and not batch.payloads:
            live = self.chain.live()
            inside = self.chain.inside(live)
            batch.stands_for = carry_over(self.logs, live, inside, batch, room)

    def entry_room(self, *, pieces_kept: int) -> int:
        """Return the bytes of entries that fit in the files at hand or in a piece of the reserve.

        A piece is counted only if more than `pieces_kept` are left: entries that need several
        pieces may not get them. With fewer, only as much counts as the next file can still carry
        over, so that it can replace this one.
        """
        current = self._current
        assert current is not None, "journal is not open"
        header_bytes = self._header_bytes()
        room = current.capacity - current.position
        ahead = self.allocation.next_room(header_bytes, pieces_kept=pieces_kept)
        if ahead is None:
            needed = needed_bytes(self.logs, current.sequence) + SMALL_BLOCK_BYTES
            room = min(room, self.allocation.carry_room(header_bytes) - needed)
        else:
            room = max(room, ahead)
        return room - self.queue.block_bytes - self._under_way_bytes - 2 * PAGE_BYTES

    def has_room_for(self, size: int, beside: int) -> bool:
        """Return True if a block with one more entry of `size` bytes fits.

        It must fit in the next file as it is, or, if that must be larger, on the disk, which must
        keep `beside` bytes for others. The file system knows its free space without access to the
        medium.
        """
        allocation = self.allocation
        needed = size + self.queue.block_bytes + self._under_way_bytes + 2 * PAGE_BYTES
        if allocation.has_next and needed <= allocation.prepared[0].capacity - self._header_bytes():
            return True
        files = allocation.files
        return needed + beside + ROOM_FILES * files.file_bytes <= files.free_bytes()

    def _prepare(self) -> None:
        """Prepare the next file and complete the reserve, in the background."""
        queue = self.queue
        if self.state is WriterState.STOPPED or (queue.is_closing and queue.rest is None):
            return
        wanted = self._pieces_wanted()
        job = self.allocation.begin(wanted)
        if job is not None:
            self._workers.essential(job, partial(self._prepared, wanted))

    def _prepared(self, wanted: int, made: Prepared | BaseException) -> None:
        """Handle the end of a preparation, in which a file could take `wanted` reserve bytes."""
        allocation = self.allocation
        allocation.is_preparing = False
        if isinstance(made, BaseException):
            self._fail(made)
            return
        allocation.made(made)
        if made.is_full:
            # Nothing is lost: the journal waits until it can get a file.
            self._try_again()
        if allocation.reuse or (made.file is None and self._pieces_wanted() and not wanted):
            self._prepare()
        allocation.reuse = allocation.reuse or made.reuse
        if self.state in _MAY_WRITE and self.queue.is_due:
            self._write()
        self._owner.journal_prepared()

    def _pieces_wanted(self) -> int:
        return self.allocation.pieces_wanted(self.queue.rest, self._header_bytes())

    def _try_again(self) -> None:
        if not self._is_retry_armed:
            self._is_retry_armed = True
            self._workers.call_later(DISK_FULL_RETRY_MS, self._again)

    def _again(self) -> None:
        self._is_retry_armed = False
        self._prepare()

    # --- shutdown ------------------------------------------------------------------------------
    def stop(self) -> None:
        """Stop after a failure here or elsewhere: nothing is written or acknowledged any more."""
        self._become(WriterState.STOPPED)

    def abandon(self) -> None:
        """Release the files without writing."""
        self.stop()
        if self._current is not None:
            self._current.file.close()
        self.allocation.close()
