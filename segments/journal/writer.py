"""The journal's writer: staged batches become blocks, one write at a time, in files made ahead.

One job, one block, one `pwrite` that returns when it is on disk. What is staged while a write is in
progress becomes the next block. A file is zero-filled and synced before its first block, so that a
block changes no metadata; the next file is prepared while this one fills, from a released one where
there is one. A file's header goes out in the same write as its first block.

An idle block follows a quiet spell, so that the last block that mattered is proved durable; blocks
that carry only commit indexes need no proof.

On a full disk the next file is made from the reserve, as large as what waits for it, and takes the
place of the newest ones as far as it can, so that they can be given back: votes and notes need no
more room however many there are. Entries leave the last pieces to them.

A failed write ends the journal: `on_fatal`, and nothing is written after.

Must not know: logs' contents, which files are still needed.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from segments.api import Buffer, StoreOptions, Workers
from segments.format.block import (
    BLOCK_HEADER_BYTES,
    CLOSING,
    OPENING,
    PAGE_BYTES,
    FileHeader,
    Mark,
    encode_block,
    encode_file_header,
    file_header_bytes,
    padded,
)
from segments.io import failpoint
from segments.io.fs import DISK_FULL_RETRY_MS, FileSystem, is_disk_full, is_refused, read_around
from segments.journal.files import JournalFile, JournalFiles, Prepared
from segments.journal.split import block_bytes, split
from segments.log.log import Batch

_PADDING = bytes(PAGE_BYTES)
PREPARED_FILES_MAX = 2
PIECES_KEPT = 2
"""Of the reserve: for votes and notes, and the small blocks that come with an election."""
SMALL_BLOCK_BYTES = 16 << 10


class JournalOwner(Protocol):
    """What the journal asks of the store."""

    @property
    def journal_log_count(self) -> int:
        """How many marks there are: one a log."""

    def journal_marks(self, *, before: int = 0) -> list[Mark]:
        """State of every log, for a file header; `before`: of one that stands for the files from
        that sequence on."""

    def journal_carry_over(
        self, live: Sequence[int], inside: Container[int], batch: Batch, bytes_max: int
    ) -> int:
        """See `carry.carry_over`."""

    def journal_needed(self, sequence: int) -> int:
        """Bytes that the journal files from that one on are needed for."""

    def journal_placed(self, batch: Batch) -> None:
        """The batch is durable as a whole, in the files from `batch.sequence` on."""

    def journal_written(self, batch: Batch | None) -> None:
        """It was placed, and may be acknowledged; None: an empty block was written."""

    def journal_failed(self, error: BaseException) -> None: ...


@dataclass(slots=True)
class Position:
    """Where the journal goes on after recovery."""

    lsn: int
    chain: int
    next_sequence: int
    previous: int
    replaced: int = 0
    """Not 0: the file before counts only up to so many bytes before `lsn`."""


@dataclass(slots=True)
class _Write:
    """One block on its way: `part` of a batch, to lie in `file` from `position` to `end`.
    `done_batch` is the batch that is durable with it, `chain_before` what a block that was not
    written takes back."""

    file: JournalFile
    buffers: list[Buffer]
    position: int
    end: int
    part: Batch
    done_batch: Batch | None
    chain_before: int

    def run(self) -> int:
        """Write and sync. Blocks. Raises OSError."""
        file, buffers, position = self.file.file, self.buffers, self.position
        failpoint.hit("journal.before_sync")
        block_end = position + sum(map(len, buffers))
        if block_end > self.file.capacity:
            # Want of room must be met here, where nothing has been written yet.
            file.allocate(block_end)
        if failpoint.armed and failpoint.is_due("journal.torn"):
            file.pwrite(buffers[:1], position)
            failpoint.act("journal.torn")
        written = file.pwrite(buffers, position, durable=True)
        failpoint.hit("journal.after_sync")
        return written


class Journal:
    """Use: stage into `batch`, then `submit`. `durable_token` is what may be acknowledged."""

    def __init__(
        self,
        fs: FileSystem,
        directory: str,
        workers: Workers,
        options: StoreOptions,
        rng: random.Random,
        owner: JournalOwner,
        now_ns: Callable[[], int],
    ) -> None:
        self._fs = fs
        self._directory = directory
        self._workers = workers
        self._options = options
        self._rng = rng
        self._owner = owner
        self._now_ns = now_ns
        self.batch = Batch(1)
        self._rest: Batch | None = None
        self.durable_token = 0
        self._wanted = False
        self._writing = False
        self._failed = False
        self._closing = False
        self._unproved = False
        self._idle_armed = False
        self._blocks_at_arming = 0
        self._lsn = 0
        self._durable_lsn = 0
        self._chain = 0
        self._next_sequence = 1
        self._current: JournalFile | None = None
        self._prepared: deque[JournalFile] = deque()
        self._preparing = False
        self._reuse = ""
        self._begins: dict[int, int] = {}
        self._replaced: list[int] = []
        self._split: list[tuple[int, int]] = []
        """(first, last) file of each batch that lies in several: its entries are noted as of the
        first."""
        self._returned: list[str] = []
        self._under_way_bytes = 0
        self._files = JournalFiles(fs, directory, options)
        self._reserve = self._files.reserve
        self._is_reserve_whole = False
        self._pieces_left = 0
        self._is_retrying = False
        self.is_full = False
        self.is_blocked = False
        self._paths: dict[int, str] = {}
        self.blocks = 0
        self.bytes = 0
        self.write_started_ns = 0
        self.write_ns_total = 0
        self.write_ns_max = 0

    # --- opening -------------------------------------------------------------------------------
    def open(
        self,
        position: Position,
        live: Sequence[tuple[int, str]],
        spare: Sequence[tuple[int, str]],
        carried: Batch,
        begins: Mapping[int, int],
    ) -> None:
        """Begin a new file after recovery and write its first block, with what is `carried` over;
        blocks. Raises OSError (ENOSPC) when not even the reserve has room for it.

        `live` are the files recovery replayed, `spare` those prepared and never used, `begins` the
        LSNs up to which the files before each of `live` count.
        """
        # Names that the process before had changed, and may have died before making durable.
        self._fs.sync_directory(self._directory)
        self._lsn = self._durable_lsn = position.lsn
        self._chain = position.chain
        self._next_sequence = position.next_sequence
        self._paths = dict(live)
        self._begins = {sequence: begins[sequence] for sequence in self._paths}
        for sequence, path in spare:
            handle = self._fs.open(path)
            if handle.size() == self._options.journal_file_bytes:
                self._prepared.append(JournalFile(sequence, path, handle, handle.size()))
            else:
                handle.close()
                self._reserve.give(path)  # made from it for a block that was never written
        if not self._prepared:
            self._prepared.append(self._first_file(carried))
        if carried.marks is None and position.replaced:
            # The file that stood for others is repeated by this one, which stands for them now.
            carried.stands_for = position.previous + 1
            self._begins[carried.stands_for] = position.lsn - position.replaced
            carried.marks = self._owner.journal_marks(before=carried.stands_for)
        buffers, file, end = self._build(carried, OPENING)
        self._begins = {n: self._begins[n] for n in (*self._paths, file.sequence)}
        if end > file.capacity:
            file.file.allocate(end)
        file.file.pwrite(buffers, 0, durable=True)
        self._advance(file, end)
        self._pieces_left = self._reserve.pieces()
        if self._replaced or carried.records:
            self._unproved = True
            self._arm_idle()
        self._prepare()

    def _first_file(self, carried: Batch) -> JournalFile:
        """A small one, so that a start does not wait for a large file to be filled; from the
        reserve, when the disk is full."""
        sequence = self._take_sequence()
        size = min(self._options.journal_first_file_bytes, self._options.journal_file_bytes)
        try:
            return self._files.make(sequence, "", size)
        except OSError as error:
            if not is_disk_full(error):
                raise
            self.is_full = True
            self._carry_over(carried)
            piece = self._files.make_from_reserve(
                sequence, self._header_bytes() + block_bytes(carried)
            )
            if piece is None:
                raise
            return piece

    def make_room(self, unproved: tuple[str, int, int], scrap: Sequence[str]) -> None:
        """Before `open`, when the reserve is used up; blocks. Starts that died one after the other
        have each left a file. What of the newest one is not proved (path, start, end) is written
        again, as it is and where it is: once that is durable, those before it can go. Raises
        OSError."""
        path, start, end = unproved
        if self._reserve.pieces() or not path:
            return
        self._fs.sync_directory(self._directory)
        file = self._fs.open(path)
        unproved_bytes, _ = read_around(file, end - start, start)
        file.pwrite([unproved_bytes], start, durable=True)
        file.close()
        for other in scrap:
            if other != path:
                self._reserve.give(other)

    def take_back(self, paths: Sequence[str]) -> None:
        """Files that recovery found not to count; blocks. After `open`: not before its first block
        is durable, because they may be the only proof. Raises OSError."""
        for path in paths:
            self._reserve.give(path)
        self._pieces_left = self._reserve.pieces()

    # --- writing -------------------------------------------------------------------------------
    def submit(self, *, urgent: bool) -> int:
        """See `Store.submit`."""
        batch = self.batch
        if not batch.records:
            return batch.token - 1
        token = batch.token
        if urgent or self._closing:  # no idle block follows a close
            self._wanted = True
            if not self._writing:
                self._write()
        elif not self._idle_armed:
            self._arm_idle()
        return token

    def close(self) -> None:
        """Write the closing block with whatever is staged; `journal_written` follows."""
        self._closing = True
        self._wanted = True
        if not self._writing:
            self._write()

    @property
    def is_idle(self) -> bool:
        """Nothing staged, nothing being written."""
        return not (self._writing or self._rest or self.batch.records)

    @property
    def closed(self) -> bool:
        """The closing block is on disk."""
        return self._closing and not self._wanted and self.is_idle

    @property
    def current_sequence(self) -> int:
        assert self._current is not None, "journal is not open"
        return self._current.sequence

    @property
    def partly_written(self) -> bool:
        """A batch larger than a file is on disk only in part."""
        return self._rest is not None

    @property
    def has_next(self) -> bool:
        """A file is there for what the one being written has no room for."""
        return bool(self._prepared) and not self.is_full

    @property
    def file_count(self) -> int:
        return len(self._paths)

    def first_of_newest(self, count: int) -> int:
        """Sequence of the oldest of the newest `count` files; 0: there are not so many."""
        return sorted(self._paths)[-count] if len(self._paths) >= count else 0

    def _write(self) -> None:
        """Write the oldest batch's next block, if a file is there to take it."""
        assert not self._writing, "two writes at once"
        if self._failed:
            return
        batch = self._rest
        is_last = batch is None
        if batch is None:
            batch = self.batch
            self._wanted = False
            if batch.records:
                self.batch = Batch(batch.token + 1)
                if self._needs_file(batch, block_bytes(batch)):
                    # As of this batch: by the time its file is there more has been staged, and a
                    # header that spoke of that would name records which are not durable yet.
                    batch.marks = self._owner.journal_marks()
                    if self.is_full:
                        self._carry_over(batch)
        last_part = self._fit(batch)
        if last_part is None:
            self._rest = batch if batch.records else None
            if not self.is_full or self._pieces_wanted():
                self._prepare()
            return
        part, self._rest = last_part
        chain = self._chain
        flags = CLOSING if self._closing and is_last and self._rest is None else 0
        buffers, file, end = self._build(part, flags)
        if batch.records and not batch.sequence:  # an empty one is staged into later
            batch.sequence = file.sequence
        if self._rest is not None:
            self._rest.sequence = batch.sequence
        done_batch = batch if self._rest is None and batch.records else None
        if done_batch is not None and batch.sequence != file.sequence:
            self._split.append((batch.sequence, file.sequence))
        position = file.position
        self._writing = True
        self._under_way_bytes = end - position
        self.write_started_ns = self._now_ns()
        if part.needs_proof:
            self._unproved = True
        elif self._rest is None:
            self._unproved = False
        self._hand_over(_Write(file, buffers, position, end, part, done_batch, chain))

    def _hand_over(self, write: _Write) -> None:
        """Give it to the thread. `_ended` is told; no callback may refer to itself: who makes a
        cycle for each block makes work for the collector, which stops everybody."""
        if not self._failed:
            self._workers.journal(write.run, partial(self._ended, write))

    def _ended(self, write: _Write, result: int | BaseException) -> None:
        if self._failed:
            return
        is_refused = isinstance(result, BaseException) and is_disk_full(result)
        self.is_blocked = is_refused and bool(write.part.records)
        if is_refused and not self.is_blocked:
            # An empty block that says nothing: not worth waiting for, least of all with votes.
            self._chain = write.chain_before
            self._writing = False
            # But the block before is still proved by nothing.
            self._unproved = True
            if not self._idle_armed and not self._closing:
                self._arm_idle()
            self._under_way_bytes = 0
            if self._rest is not None or self._wanted:
                self._write()
            self._owner.journal_written(None)
        elif self.is_blocked:
            # Only a block that lengthens its file can meet this, before it is written.
            self._workers.call_later(DISK_FULL_RETRY_MS, partial(self._hand_over, write))
        elif isinstance(result, BaseException):
            self._fail(result)
        else:
            self._written(write.file, write.end, write.done_batch)

    def _written(self, file: JournalFile, end: int, batch: Batch | None) -> None:
        elapsed = self._now_ns() - self.write_started_ns
        self.write_ns_total += elapsed
        self.write_ns_max = max(self.write_ns_max, elapsed)
        self._writing = False
        self._under_way_bytes = 0
        self._advance(file, end)
        if batch is not None:
            self._owner.journal_placed(batch)
            self.durable_token = batch.token
        elif self._rest is not None:
            failpoint.hit("journal.partly")
        if self._rest is not None or self._wanted:
            self._write()
        if self._unproved and not self._idle_armed and not self._closing:
            self._arm_idle()
        self._owner.journal_written(batch)

    def _advance(self, file: JournalFile, end: int) -> None:
        """Bytes of `file` up to `end` are durable."""
        if file is not self._current:
            if self._current is not None:
                self._current.file.close()
                failpoint.hit("journal.rolled")
            self._current = file
            self._paths[file.sequence] = file.path
            self._prepare()
        elif self._replaced:
            # This block proves the file's first, which stands for what those said.
            self._return_replaced()
        self.blocks += 1
        self.bytes += end - file.position
        file.position = end
        self._lsn = self._durable_lsn = file.start_lsn + end

    def _fail(self, error: BaseException) -> None:
        self._failed = True
        self._owner.journal_failed(error)

    # --- blocks --------------------------------------------------------------------------------
    def _fit(self, batch: Batch) -> tuple[Batch, Batch | None] | None:
        """(what the next block takes of the batch, the rest), or None when a file must come first.

        A batch that no file can take whole is cut between records; a single record that none can
        take goes to the start of a file and makes it longer.
        """
        need = block_bytes(batch)
        if not self._needs_file(batch, need):
            return batch, None
        if not self._prepared:
            return None
        room = self._prepared[0].capacity - self._header_bytes()
        room -= room % PAGE_BYTES  # blocks are whole pages, whatever size a file was given
        if need <= room or len(batch.records) == 1 or batch.stands_for:
            return batch, None
        return split(batch, room)

    def _needs_file(self, batch: Batch, need: int) -> bool:
        """The block of `need` bytes goes to a new file. An empty one may lengthen a full one."""
        current = self._current
        if current is None:
            return True
        return bool(batch.records) and current.position + need > current.capacity

    def _header_bytes(self) -> int:
        return file_header_bytes(self._owner.journal_log_count)

    def _build(self, batch: Batch, flags: int) -> tuple[list[Buffer], JournalFile, int]:
        """(buffers, file, end position) of the block for `batch`, in a new file when it must be."""
        table = b"".join(batch.records)
        size = BLOCK_HEADER_BYTES + len(table) + batch.bytes
        need = padded(size)
        buffers: list[Buffer] = []
        file = self._current
        if file is None or self._needs_file(batch, need):
            begin = self._begins[batch.stands_for] if batch.stands_for else self._lsn
            live = self._live()
            previous = max((n for n in live if not 0 < batch.stands_for <= n), default=0)
            file = self._prepared.popleft()
            self._begins[file.sequence] = begin
            file.start_lsn = self._lsn
            file.salt = self._rng.getrandbits(64)
            marks = batch.marks if batch.marks is not None else self._owner.journal_marks()
            header = encode_file_header(
                FileHeader(
                    file.sequence, file.salt, self._lsn, previous, self._chain, marks,
                    replaced=self._lsn - begin,
                )
            )  # fmt: skip
            if batch.stands_for:
                self._replaced += [n for n in live if n >= batch.stands_for]
            buffers.append(header)
            at = len(header)
        else:
            at = file.position
        head, self._chain = encode_block(
            salt=file.salt, lsn=file.start_lsn + at, durable=self._durable_lsn,
            chain=self._chain, flags=flags, table=table, frames_bytes=batch.bytes,
        )  # fmt: skip
        buffers.append(head)
        buffers += batch.buffers
        if need > size:
            buffers.append(memoryview(_PADDING)[: need - size])
        return buffers, file, at + need

    # --- idle ----------------------------------------------------------------------------------
    def _arm_idle(self) -> None:
        self._idle_armed = True
        self._blocks_at_arming = self.blocks
        self._workers.call_later(self._options.idle_block_ms, self._idle)

    def _idle(self) -> None:
        """A spell has passed since arming: write what waits, or prove the last block."""
        self._idle_armed = False
        if self._closing or self._failed:
            return
        if not (self.batch.records or self._unproved):
            return
        if self._writing or self.blocks != self._blocks_at_arming:
            self._arm_idle()
            return
        self._wanted = True
        self._write()

    # --- files ---------------------------------------------------------------------------------
    def release(self, sequence: int) -> None:
        """Files before `sequence` are not needed any more: prepare the next one from them."""
        assert sequence <= self.current_sequence, (sequence, self.current_sequence)
        old = [(n, self._paths.pop(n)) for n in sorted(self._paths) if n < sequence]
        for n, _ in old:
            del self._begins[n]
        if not old:
            return
        if self.is_full:
            # Who else is after room must not get what belongs to the reserve.
            self._returned += [path for _, path in old]
            self._prepare()
            return
        reuse = ""
        if len(self._prepared) < PREPARED_FILES_MAX and not self._reuse and not self._closing:
            reuse = old.pop()[1]

        if reuse:
            self._reuse = reuse
            self._prepare()
        if old:
            self._remove([path for _, path in old])

    def _remove(self, paths: list[str]) -> None:
        fs, directory = self._fs, self._directory

        def remove() -> None:
            failpoint.hit("journal.before_release")
            for path in paths:
                if fs.exists(path):
                    fs.unlink(path)
            failpoint.hit("journal.released")
            fs.sync_directory(directory)

        if not self._failed:
            self._workers.essential(remove, partial(self._removed, paths))

    def _removed(self, paths: list[str], result: BaseException | None) -> None:
        if isinstance(result, BaseException) and is_refused(result):
            self._workers.call_later(DISK_FULL_RETRY_MS, partial(self._remove, paths))
        elif isinstance(result, BaseException):
            self._fail(result)

    def _carry_over(self, batch: Batch) -> None:
        """Let the file that this batch begins stand for the newest ones, as far as what is needed
        of them fits into a piece beside the batch."""
        room = self._carry_room() - block_bytes(batch)
        if room >= 0 and self._paths:
            live = self._live()
            self._split = [(first, last) for first, last in self._split if last >= live[0]]
            inside = {n for first, last in self._split for n in live if first < n <= last}
            batch.stands_for = self._owner.journal_carry_over(live, inside, batch, room)

    def _carry_room(self) -> int:
        """Bytes that a file on a full disk takes in its first block."""
        sizes = [file.capacity for file in self._prepared][:1]
        size = min(self._reserve.piece_bytes, self._options.journal_file_bytes, *sizes)
        return size - 2 * PAGE_BYTES - self._header_bytes()

    def _live(self) -> list[int]:
        """The files of the chain, ascending."""
        return sorted(self._paths.keys() - set(self._replaced))

    def _return_replaced(self) -> None:
        for sequence in self._replaced:
            if sequence in self._paths:
                self._returned.append(self._paths.pop(sequence))
                del self._begins[sequence]
        self._replaced = []
        self._prepare()

    def entry_room(self, *, pieces_kept: int) -> int:
        """Bytes of entries for which there is room in the files at hand, or in a piece of the
        reserve when there are more than so many: what needs several may not get them. With fewer
        only what the next file can still carry over, so that it takes the place of this one."""
        current = self._current
        assert current is not None, "journal is not open"
        room = current.capacity - current.position
        if self._prepared:
            ahead = min(file.capacity for file in self._prepared)
            room = max(room, ahead - self._header_bytes())
        elif self._pieces_left > pieces_kept:
            room = max(room, self._reserve.piece_bytes - self._header_bytes())
        else:
            needed = self._owner.journal_needed(current.sequence) + SMALL_BLOCK_BYTES
            room = min(room, self._carry_room() - needed)
        waiting = block_bytes(self.batch) + self._under_way_bytes
        if self._rest is not None:
            waiting += block_bytes(self._rest)
        return room - waiting - 2 * PAGE_BYTES

    def _take_sequence(self) -> int:
        sequence = self._next_sequence
        self._next_sequence += 1
        return sequence

    def _prepare(self) -> None:
        """Have the next file ready, and the reserve whole, in the background. A released file costs
        no zeros, so it is made ready even when there is a next one.

        One job at a time: files are used in the order of their sequences.
        """
        has_next = any(not file.is_piece for file in self._prepared) and not self._reuse
        is_done = has_next and self._is_reserve_whole and not self._returned
        if self._preparing or self._failed or is_done:
            return
        if self._closing and self._rest is None:
            return
        self._preparing = True
        reuse, self._reuse = self._reuse, ""
        returned, self._returned = self._returned, []
        sequence = 0 if has_next else self._take_sequence()
        wanted = self._pieces_wanted()

        def done(result: Prepared | BaseException) -> None:
            self._preparing = False
            if isinstance(result, BaseException):
                self._fail(result)
            else:
                self._returned += result.returned
                self._file_ready(result, wanted)

        self._workers.essential(lambda: self._files.ready(sequence, reuse, returned, wanted), done)

    def _file_ready(self, made: Prepared, wanted: int) -> None:
        self.is_full = made.is_full
        self._is_reserve_whole = not made.is_full
        self._pieces_left = made.pieces
        if made.file is not None:
            self._prepared.append(made.file)
        if made.is_full:
            # Nothing is lost: the journal waits until a file can be had.
            self._try_again()
        if self._reuse or (made.file is None and self._pieces_wanted() and not wanted):
            self._prepare()
        self._reuse = self._reuse or made.reuse
        if not self._writing and (self._wanted or self._rest is not None):
            self._write()

    def _pieces_wanted(self) -> int:
        """Bytes of the reserve for what waits for a file; 0: none, or not as much is left. Entries
        that are more than a few leave the last pieces to votes and notes."""
        rest = self._rest
        if rest is None or self._prepared or not self._pieces_left:
            return 0
        wanted = self._header_bytes() + block_bytes(rest)
        is_large = rest.entries and block_bytes(rest) > SMALL_BLOCK_BYTES
        kept = PIECES_KEPT if is_large else 0
        return wanted if self._files.pieces_for(wanted) + kept <= self._pieces_left else 0

    def _try_again(self) -> None:
        if not self._is_retrying:
            self._is_retrying = True
            self._workers.call_later(DISK_FULL_RETRY_MS, self._again)

    def _again(self) -> None:
        self._is_retrying = False
        self._prepare()

    def stop(self) -> None:
        """Something failed, here or elsewhere: nothing is written or acknowledged any more."""
        self._failed = True

    def abandon(self) -> None:
        """Let go of the files without writing."""
        self.stop()
        if self._current is not None:
            self._current.file.close()
        for prepared in self._prepared:
            prepared.file.close()
