"""The journal's writer: staged batches become blocks, one write at a time, in files made ahead.

One job, one block, one `pwrite` that returns when it is on disk. What is staged while a write is in
progress becomes the next block. A file is zero-filled and synced before its first block, so that a
block changes no metadata; the next file is prepared while this one fills, from a released one where
there is one. A file's header goes out in the same write as its first block.

An idle block follows a quiet spell, so that the last block that mattered is proved durable; blocks
that carry only commit indexes need no proof.

A failed write ends the journal: `on_fatal`, and nothing is written after.

Must not know: logs' contents, which files are still needed.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from segments import failpoint
from segments.api import Buffer, StoreOptions, Workers
from segments.block import (
    BLOCK_HEADER_BYTES,
    CLOSING,
    FRAMED,
    OPENING,
    PAGE_BYTES,
    RECORD_BYTES,
    FileHeader,
    Mark,
    encode_block,
    encode_file_header,
    padded,
)
from segments.fs import DISK_FULL_RETRY_MS, File, FileSystem, is_disk_full
from segments.log import Batch
from segments.reserve import Reserve

_ZEROS = bytes(1 << 20)
_PADDING = bytes(PAGE_BYTES)
PREPARED_FILES_MAX = 2
PIECE_BYTES_MIN = 64 << 10


class JournalOwner(Protocol):
    """What the journal asks of the store."""

    def journal_marks(self) -> list[Mark]:
        """State of every log, for a file header."""

    def journal_written(self, batch: Batch | None) -> None:
        """The batch is durable as a whole; None: an empty block was written."""

    def journal_failed(self, error: BaseException) -> None: ...


@dataclass(slots=True)
class JournalFile:
    """A file being written, or prepared to be. Start LSN and salt are set at its first block.
    `is_piece`: a small one, made from the reserve."""

    sequence: int
    path: str
    file: File
    capacity: int
    start_lsn: int = 0
    salt: int = 0
    position: int = 0
    is_piece: bool = False


@dataclass(slots=True)
class Prepared:
    """What a look at files to come has brought. `is_full`: a file, or the reserve, was refused for
    want of room; `pieces` of the reserve are left."""

    file: JournalFile | None = None
    is_full: bool = False
    pieces: int = 0


@dataclass(slots=True)
class Position:
    """Where the journal goes on after recovery."""

    lsn: int
    chain: int
    next_sequence: int
    previous: int


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
        self._reserve = Reserve(fs, f"{directory}.reserve", _piece_bytes(options))
        self._is_reserve_whole = False
        self._pieces_left = 0
        self._is_retrying = False
        self.is_full = False
        self.is_blocked = False
        self._paths: dict[int, str] = {}
        self._replayed = 0
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
    ) -> None:
        """Begin a new file after recovery and write its first block, with what is `carried` over;
        blocks.

        `live` are the files recovery replayed, `spare` those prepared and never used.
        """
        # Names that the process before had changed, and may have died before making durable.
        self._fs.sync_directory(self._directory)
        self._lsn = self._durable_lsn = position.lsn
        self._chain = position.chain
        self._next_sequence = position.next_sequence
        self._paths = dict(live)
        self._replayed = position.previous
        for sequence, path in spare:
            handle = self._fs.open(path)
            self._prepared.append(JournalFile(sequence, path, handle, handle.size()))
        if not self._prepared:
            self._prepared.append(self._first_file())
        buffers, file, end = self._build(carried, OPENING)
        file.file.pwrite(buffers, 0, durable=True)
        self._advance(file, end)
        self._pieces_left = self._reserve.pieces()
        self._prepare()

    def _first_file(self) -> JournalFile:
        """A small one, so that a start does not wait for a large file to be filled; from the
        reserve, when the disk is full."""
        sequence = self._take_sequence()
        size = min(self._options.journal_first_file_bytes, self._options.journal_file_bytes)
        try:
            return self._make_file(sequence, "", size)
        except OSError as error:
            piece = self._make_piece(sequence) if is_disk_full(error) else None
            if piece is None:
                raise
            self.is_full = True
            return piece

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
    def file_count(self) -> int:
        return len(self._paths)

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
                if self._needs_file(batch, _block_bytes(batch)):
                    # As of this batch: by the time its file is there more has been staged, and a
                    # header that spoke of that would name records which are not durable yet.
                    batch.marks = self._owner.journal_marks()
        last_part = self._fit(batch)
        if last_part is None:
            self._rest = batch if batch.records else None
            if not self.is_full or self._may_take_piece():
                self._prepare()
            return
        part, self._rest = last_part
        flags = CLOSING if self._closing and is_last and self._rest is None else 0
        buffers, file, end = self._build(part, flags)
        if not batch.sequence:
            batch.sequence = file.sequence
        if self._rest is not None:
            self._rest.sequence = batch.sequence
        done_batch = batch if self._rest is None and batch.records else None
        position = file.position
        self._writing = True
        self.write_started_ns = self._now_ns()
        if part.needs_proof:
            self._unproved = True
        elif self._rest is None:
            self._unproved = False
        write = file.file.pwrite
        block_end = position + sum(map(len, buffers))
        lengthens = block_end > file.capacity

        def job() -> int:
            failpoint.hit("journal.before_sync")
            if lengthens:
                # Want of room must be met here, where nothing has been written yet.
                file.file.allocate(block_end)
            if failpoint.armed and failpoint.is_due("journal.torn"):
                write(buffers[:1], position)
                failpoint.act("journal.torn")
            written = write(buffers, position, durable=True)
            failpoint.hit("journal.after_sync")
            return written

        def done(result: int | BaseException) -> None:
            self.is_blocked = isinstance(result, BaseException) and is_disk_full(result)
            if self.is_blocked:
                # Only a block that lengthens its file can meet this, before it is written.
                self._workers.call_later(DISK_FULL_RETRY_MS, again)
            elif isinstance(result, BaseException):
                self._fail(result)
            else:
                self._written(file, end, done_batch)

        def again() -> None:
            if not self._failed:
                self._workers.journal(job, done)

        self._workers.journal(job, done)

    def _written(self, file: JournalFile, end: int, batch: Batch | None) -> None:
        elapsed = self._now_ns() - self.write_started_ns
        self.write_ns_total += elapsed
        self.write_ns_max = max(self.write_ns_max, elapsed)
        self._writing = False
        self._advance(file, end)
        if batch is not None:
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
        need = _block_bytes(batch)
        if not self._needs_file(batch, need):
            return batch, None
        if not self._prepared:
            return None
        room = self._prepared[0].capacity - self._header_bytes()
        room -= room % PAGE_BYTES  # blocks are whole pages, whatever size a file was given
        if need <= room or len(batch.records) == 1:
            return batch, None
        return _split(batch, room)

    def _needs_file(self, batch: Batch, need: int) -> bool:
        """The block of `need` bytes goes to a new file. An empty one may lengthen a full one."""
        current = self._current
        if current is None:
            return True
        return bool(batch.records) and current.position + need > current.capacity

    def _header_bytes(self) -> int:
        return len(encode_file_header(FileHeader(0, 0, 0, 0, 0, self._owner.journal_marks())))

    def _build(self, batch: Batch, flags: int) -> tuple[list[Buffer], JournalFile, int]:
        """(buffers, file, end position) of the block for `batch`, in a new file when it must be."""
        table = b"".join(batch.records)
        size = BLOCK_HEADER_BYTES + len(table) + batch.bytes
        need = padded(size)
        buffers: list[Buffer] = []
        file = self._current
        if file is None or self._needs_file(batch, need):
            previous = file.sequence if file is not None else self._replayed
            file = self._prepared.popleft()
            file.start_lsn = self._lsn
            file.salt = self._rng.getrandbits(64)
            marks = batch.marks if batch.marks is not None else self._owner.journal_marks()
            header = encode_file_header(
                FileHeader(file.sequence, file.salt, self._lsn, previous, self._chain, marks)
            )
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
        if not old:
            return
        fs, directory = self._fs, self._directory
        reuse = ""
        if len(self._prepared) < PREPARED_FILES_MAX and not self._reuse and not self._closing:
            reuse = old.pop()[1]

        def remove() -> None:
            failpoint.hit("journal.before_release")
            for _, path in old:
                if fs.exists(path):
                    fs.unlink(path)
            failpoint.hit("journal.released")
            fs.sync_directory(directory)

        def removed(result: BaseException | None) -> None:
            if isinstance(result, BaseException) and is_disk_full(result):
                self._workers.call_later(DISK_FULL_RETRY_MS, begin)
            elif isinstance(result, BaseException):
                self._fail(result)

        def begin() -> None:
            if not self._failed:
                self._workers.pool(remove, removed)

        if reuse:
            self._reuse = reuse
            self._prepare()
        if old:
            begin()

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
        if self._preparing or self._failed or (has_next and self._is_reserve_whole):
            return
        if self._closing and self._rest is None:
            return
        self._preparing = True
        reuse, self._reuse = self._reuse, ""
        sequence = 0 if has_next else self._take_sequence()
        may_take = self._may_take_piece()

        def done(result: Prepared | BaseException) -> None:
            self._preparing = False
            if isinstance(result, BaseException):
                self._fail(result)
            else:
                self._file_ready(result, may_take)

        self._workers.pool(lambda: self._make_ready(sequence, reuse, may_take), done)

    def _make_ready(self, sequence: int, reuse: str, may_take: bool) -> Prepared:
        """A file, unless `sequence` is 0, and the rest of the reserve. Blocks."""
        made = Prepared()
        reserve = self._reserve
        try:
            if sequence:
                made.file = self._make_file(sequence, reuse, self._options.journal_file_bytes)
            reserve.fill()
        except OSError as error:
            if not is_disk_full(error):
                raise
            made.is_full = True
        if made.file is None and sequence and may_take:
            made.file = self._make_piece(sequence)
        made.pieces = reserve.pieces()
        return made

    def _make_piece(self, sequence: int) -> JournalFile | None:
        """A small file from the reserve; None when it is used up, or others took the room it gave
        back. Blocks."""
        if not self._reserve.take():
            return None
        try:
            file = self._make_file(sequence, "", self._reserve.piece_bytes)
        except OSError as error:
            if not is_disk_full(error):
                raise
            return None
        file.is_piece = True
        return file

    def _file_ready(self, made: Prepared, may_take: bool) -> None:
        self.is_full = made.is_full
        self._is_reserve_whole = not made.is_full
        self._pieces_left = made.pieces
        if made.file is not None:
            self._prepared.append(made.file)
        if made.is_full:
            # Nothing is lost: the journal waits until a file can be had.
            self._try_again()
        if self._reuse or (made.file is None and self._may_take_piece() and not may_take):
            self._prepare()
        if not self._writing and (self._wanted or self._rest is not None):
            self._write()

    def _may_take_piece(self) -> bool:
        """Something that fits into half of the reserve waits for a file: votes and notes do, and
        a last few entries that were on their way when the disk filled up."""
        if self._rest is None or self._prepared or not self._pieces_left:
            return False
        left = self._pieces_left * self._reserve.piece_bytes
        return not self._rest.entries or _block_bytes(self._rest) <= left // 2

    def _try_again(self) -> None:
        if not self._is_retrying:
            self._is_retrying = True
            self._workers.call_later(DISK_FULL_RETRY_MS, self._again)

    def _again(self) -> None:
        self._is_retrying = False
        self._prepare()

    def _make_file(self, sequence: int, reuse: str, size: int) -> JournalFile:
        """A file of `size` zeroed or released bytes under its own durable name. Blocks.

        Its header, if it has one, names another sequence: it counts only once that is rewritten.
        """
        fs = self._fs
        path = file_path(self._directory, sequence)
        if reuse:
            file = fs.open(reuse)
            if file.size() == size:
                fs.rename(reuse, path)
                failpoint.hit("journal.recycled")
                fs.sync_directory(self._directory)
                return JournalFile(sequence, path, file, size)
            file.close()
            fs.unlink(reuse)
        fresh = f"{path}.new"
        if fs.exists(fresh):
            fs.unlink(fresh)  # of a process that died here
        file = fs.open(fresh, create=True)
        try:
            failpoint.hit("journal.file_created")
            file.allocate(size)  # a full disk says so before a second was spent on zeros
            for position in range(0, size, len(_ZEROS)):
                file.pwrite([memoryview(_ZEROS)[: size - position]], position)
            file.sync()
            failpoint.hit("journal.file_filled")
        except OSError:
            file.close()
            fs.unlink(fresh)  # a full disk must not keep half a file
            raise
        fs.rename(fresh, path)
        failpoint.hit("journal.file_named")
        fs.sync_directory(self._directory)
        return JournalFile(sequence, path, file, size)

    def abandon(self) -> None:
        """Let go of the files without writing."""
        self._failed = True
        if self._current is not None:
            self._current.file.close()
        for prepared in self._prepared:
            prepared.file.close()


def _piece_bytes(options: StoreOptions) -> int:
    """A small journal file: room for its header and some blocks."""
    return max(PIECE_BYTES_MIN, options.journal_file_bytes // 64)


def file_path(directory: str, sequence: int) -> str:
    """Name of a journal file."""
    return f"{directory}/{sequence:016x}.journal"


def _block_bytes(batch: Batch) -> int:
    """What the block of a batch takes in a file."""
    return padded(BLOCK_HEADER_BYTES + len(batch.records) * RECORD_BYTES + batch.bytes)


def _split(batch: Batch, room: int) -> tuple[Batch, Batch]:
    """Cut a batch into a first part of at most `room` bytes, but one record, and the rest."""
    first = Batch(batch.token)
    rest = Batch(batch.token)
    left = room - BLOCK_HEADER_BYTES
    frames = 0
    count = 0
    for record in batch.records:
        size = RECORD_BYTES + (frame := _frame_bytes(record))
        if count and size > left:
            break
        left -= size
        frames += frame
        count += 1
    assert count < len(batch.records), (count, room)
    first.records, rest.records = batch.records[:count], batch.records[count:]
    taken = 0
    for buffer in batch.buffers:
        cut = min(len(buffer), frames - taken)
        taken += cut
        if cut:
            first.buffers.append(buffer[:cut])
        if cut < len(buffer):
            rest.buffers.append(buffer[cut:])
    first.bytes, rest.bytes = frames, batch.bytes - frames
    first.needs_proof = rest.needs_proof = batch.needs_proof
    first.sequence = rest.sequence = batch.sequence
    first.marks = rest.marks = batch.marks
    rest.spans = batch.spans
    rest.installs = batch.installs
    rest.entries = batch.entries
    assert rest.records, (room, len(batch.records), batch.bytes)
    return first, rest


def _frame_bytes(record: bytes) -> int:
    """Length of the frame that a record's block carries for it."""
    return int.from_bytes(record[24:28], "little") if record[8] in FRAMED else 0
