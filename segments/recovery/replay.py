"""Journal replay: which files count, which blocks, and the resulting state of each log.

Files are chained: each names the sequence of the one before. Replay begins with the oldest file
that the chain reaches, and reads blocks in order. At a block that does not match, the rest of the
file is searched for one that does: there is one only if the damaged block had been durable. (The
*durable mark* is the largest durable LSN in any good block, including those after a damaged one,
and each file's start LSN.) If there is none, the tail is torn and is cut. If there is one,
acknowledged data may be lost:

* if the table is good and a frame is not, the log of that frame lost it;
* if the table is not good, every log is suspect until a later record of it shows, by its sequence,
  that it lost nothing.

A bit flip in the last block, with nothing after it, is indistinguishable from a torn write; idle
and closing blocks keep the last block young.

Data that is read may be in the page cache only, because the process died while writing or its sync
failed. So the journal continues at the durable mark, and the blocks after it are *carried*: written
again unchanged in the next file's first block before the store opens. A file whose own header lies
after the mark is left out of the chain; so is one whose first block never arrived: its carried
blocks are still in the file before. But its header proves everything before it, as a durable mark
does, because it was written when that was on disk.

A header with one damaged or unreadable page is reconstructed from its parity (`block`), and counts
as whole. So is a header that was never completely written, if all of it but a page was.

A newer file without a header of its own was never used, or its first write was cut, or the header
is damaged. Everything ever written to the directory had its durable mark on disk before, so only in
the last case is there a block whose mark lies after the end of the chain. Then every log is
suspect.

A block names the directory it was written to. A file of another directory, put there by mistake,
has log ids that mean other logs, or other replicas of the same groups with votes of their own, and
may have replaced a file of this one. So it is an error, raised before anything is changed.

A block may say that frames are in segments (PLACED). It was durable only when they were, so nothing
was written after it before that. Therefore the last block is torn, too, if such a frame is missing.
Those of other blocks are looked for when they are needed: a later block may have truncated them,
and other frames may have taken their positions.

Does not depend on caches. Collects references to frames, not frames.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from ids import DirectoryId, LogId
from segments.api import DataMissing, ForeignFile, UnknownFormat
from segments.directory.identity import Identity
from segments.format.block import (
    BLOCK_HEADER_BYTES,
    CLEAR,
    CLOSING,
    DETAIL,
    DETAIL_RECORD,
    ENTRY,
    FILE_HEADER_BYTES,
    FLUSHED,
    FRAMED,
    INSTALL,
    KINDS,
    MARK_INSTALLED,
    MARK_VOID,
    NO_DIRECTORY,
    PAGE_BYTES,
    PLACE,
    PLACED,
    RECORD_BYTES,
    RESET,
    SEQUENCE_MASK,
    STATE_RECORD,
    TRUNCATE,
    Block,
    FileHeader,
    Mark,
    decode_file_header,
    encode_file_header,
    file_header_bytes,
    header_length,
    marks_end,
    mend_file_header,
    padded,
)
from segments.format.frame import base_offset_of, is_frame
from segments.format.names import (
    is_journal_begun,
    journal_sequence,
    log_directory,
    says_nothing,
    segment_path,
)
from segments.io.fs import File, FileSystem, read_around, read_whole
from segments.journal.chain import Position
from segments.journal.files import file_path
from segments.recovery.journal_blocks import (
    bad_frames,
    directory_of,
    durable_mark,
    has_first_block,
    next_block,
    read_block,
)
from segments.recovery.replayed_log import FrameRef, ReplayedLog

_FILE_BYTES_MIN = 3 * PAGE_BYTES
"""Minimum size of a file: a header, its parity and a block."""
_HEADER_BYTES_MAX = 256 << 20
_REACH_BYTES = 64 << 10


@dataclass(slots=True)
class _FoundFile:
    sequence: int
    path: str
    header: FileHeader | None
    size: int
    is_blank: bool
    """True if the header is that of an earlier use, or zeros."""
    proves: int = 0
    """LSN up to which the journal was durable when the header was written."""
    is_recycled: bool = False
    """True if the header is that of an earlier use."""


@dataclass(slots=True)
class Carried:
    """A good block that is not proved durable: its table and its frames."""

    lsn: int
    chain: int
    table: bytes
    frames: memoryview


@dataclass(slots=True)
class Replay:
    """Result of the replay: logs by id, position at which the journal continues, and files."""

    logs: dict[LogId, ReplayedLog] = field(default_factory=dict)
    position: Position = field(default_factory=lambda: Position(0, 0, 1, 0))
    carried: list[Carried] = field(default_factory=list)
    live: list[tuple[int, str]] = field(default_factory=list)
    spare: list[tuple[int, str]] = field(default_factory=list)
    scrap: list[str] = field(default_factory=list)
    strays: list[str] = field(default_factory=list)
    """Paths among the journal's files that are not the store's."""
    headers: dict[str, bytes] = field(default_factory=dict)
    """Correct header, by path, of each file whose header on disk differs from it."""
    begins: dict[int, int] = field(default_factory=dict)
    """LSN up to which the file before counts, by the sequence of each file in `live`."""
    carried_from: tuple[int, int] = (0, 0)
    """(journal file, position) from which blocks are carried."""
    unproved: tuple[str, int, int] = ("", 0, 0)
    """(path, start, end) of carried data, including the header if that is not proved either."""
    end_lsn: int = 0
    """LSN after the last good block. Everything ever known durable lies before it."""
    blocks: int = 0
    torn_bytes: int = 0
    damaged_blocks: int = 0


Progress = Callable[[str, int, int], None]
"""Callback for progress: what is being read, number done, total number."""


def no_progress(what: str, done: int, total: int) -> None:
    """Ignore the progress."""


def replay_journal(
    fs: FileSystem,
    directory: str,
    identity: Identity,
    progress: Progress = no_progress,
    *,
    missing_is_lost: bool = False,
) -> Replay:
    """Read the whole journal of `directory`. Blocks; changes nothing on disk.

    Raises DataMissing if files that existed are missing, and ForeignFile for a file of another
    directory. With `missing_is_lost`, logs that need a missing file are marked lost instead, and a
    foreign file is ignored: for reading a copy that will not be written to.
    """
    return _Replayer(fs, directory, identity, progress, missing_is_lost).run()


class _Replayer:
    def __init__(
        self,
        fs: FileSystem,
        directory: str,
        identity: Identity,
        progress: Progress,
        missing_is_lost: bool,
    ) -> None:
        self._progress = progress
        self._missing_is_lost = missing_is_lost
        self._fs = fs
        self._directory = directory
        self.result = Replay()
        self._logs = self.result.logs
        self._owners = (identity.directory_id, *identity.former_ids, NO_DIRECTORY)
        self._log_ids_end = identity.next_log_id
        self._newest = 0
        self._proved_lsn = 0
        """LSN up to which the journal was durable, from the header of a file that does not
        count."""
        self._is_header_needed = False
        """True if only such a header proves that a damaged block had been durable."""
        self._end_chain = 0
        """CRC of the last block that counts."""
        for log_id in sorted(identity.logs):
            known = identity.logs[log_id]
            last = known.first_index - 1
            self._logs[log_id] = ReplayedLog(
                log_id, known.first_index, known.prev_term, known.next_offset, last, last,
                known.next_offset, last, lost=known.lost,
            )  # fmt: skip

    def run(self) -> Replay:
        found = self._find_files()
        chain = self._chain(found)
        result = self.result
        newest = self._newest
        if not chain:
            if self._logs and not any(self._was_written(file) for file in found):
                self._miss(f"{self._directory}/*.journal", "no journal file has a block")
            self._sort(found, chain)
            for log in self._logs.values():
                log.lost = True  # logs exist, so a journal did
            # Leftovers in reused files must stay below every later mark.
            lsn = max((durable_mark(self._fs, file.path, 0) for file in found), default=0)
            result.position = Position(lsn, 0, newest + 1, 0)
            result.end_lsn = lsn
            return result
        base = chain[0].header
        assert base is not None, chain[0].path
        for mark in base.marks:
            self._start_from(mark)
        left_out = [file.proves for file in found if file.sequence > chain[-1].sequence]
        self._proved_lsn, self._is_header_needed = max(left_out, default=0), False
        end_lsn = 0
        for current in chain:
            assert current.header is not None, current.path
            result.begins[current.sequence] = current.header.begin_lsn
            for mark in current.header.marks:
                if mark.log_id in self._logs:
                    self._logs[mark.log_id].applied = mark.applied
        for n, current in enumerate(chain):
            self._progress("journal_files", n, len(chain))
            following = chain[n + 1].header if n + 1 < len(chain) else None
            stop = following.begin_lsn if following is not None else None
            result.carried.clear()
            if n and current.header is not None and current.header.replaced:
                self._replace(current.header.marks)
            end_lsn = self._replay_file(current, stop)
        result.end_lsn = end_lsn
        result.carried = [c for c in result.carried if c.lsn >= self._proved_lsn]
        self._judge_left_out(found, chain[-1].sequence, end_lsn)
        self._sort(found, chain)
        self._check_oldest(found, chain[0])
        for log in self._logs.values():
            if log.suspect or not log.is_whole:
                log.lost = True
        self._go_on_at_mark(chain[-1], end_lsn, newest + 1)
        return result

    def _check_oldest(self, found: list[_FoundFile], oldest: _FoundFile) -> None:
        """Check that the file before the oldest was released because no log needs it.

        If one does, and no damage explains its absence, it is missing.
        """
        assert oldest.header is not None, oldest.path
        previous = oldest.header.previous
        if not previous or self.result.damaged_blocks or previous in {f.sequence for f in found}:
            return
        file = self._fs.open(oldest.path)
        try:
            if not has_first_block(file, oldest.header):
                return  # its marks describe the contents of that block
        finally:
            file.close()
        for log in self._logs.values():
            if not (log.lost or log.suspect or log.misses_places or log.is_whole):
                self._miss(
                    file_path(self._directory, previous),
                    f"it, or a file before it, has entries of log {log.log_id:08x}",
                )

    def _miss(self, path: str, why: str) -> None:
        """Raise DataMissing, unless missing files are only reported.

        The logs are found incomplete in that case.
        """
        if not self._missing_is_lost:
            raise DataMissing(path, why)

    def _was_written(self, file: _FoundFile) -> bool:
        """Return True if the file was written to after its preparation."""
        if not file.is_blank:
            return True
        return not file.is_recycled and durable_mark(self._fs, file.path, -1) >= 0

    def _sort(self, found: list[_FoundFile], chain: list[_FoundFile]) -> None:
        """Sort files into those that count, those prepared but never used, and those to remove."""
        result = self.result
        in_chain = {file.sequence for file in chain}
        for file in found:
            if file.sequence in in_chain:
                result.live.append((file.sequence, file.path))
            elif file.is_blank and (not chain or file.sequence > chain[-1].sequence):
                result.spare.append((file.sequence, file.path))
            else:
                result.scrap.append(file.path)

    def _go_on_at_mark(self, last: _FoundFile, end_lsn: int, next_sequence: int) -> None:
        """Set the position at which the next file begins: after everything proved durable."""
        header, result = last.header, self.result
        assert header is not None, last.path
        first = result.carried[0] if result.carried else None
        start = first.lsn if first is not None else end_lsn
        result.carried_from = last.sequence, start - header.start_lsn
        if not self._is_header_needed:  # else no file may be removed before the next one exists
            result.unproved = last.path, start - header.start_lsn, end_lsn - header.start_lsn
        if first is None and header.start_lsn + header.bytes < end_lsn <= self._proved_lsn:
            result.position = Position(end_lsn, self._end_chain, next_sequence, last.sequence)
        elif first is None or first.lsn == header.start_lsn + header.bytes:
            # Not even its header is proved: the file before it is the last of the journal.
            result.unproved = last.path, 0, end_lsn - header.start_lsn
            result.live.remove((last.sequence, last.path))
            result.scrap.append(last.path)
            result.position = Position(
                header.start_lsn, header.chain, next_sequence, header.previous, header.replaced
            )
        else:
            result.position = Position(first.lsn, first.chain, next_sequence, last.sequence)

    # --- files ---------------------------------------------------------------------------------
    def _find_files(self) -> list[_FoundFile]:
        found: list[_FoundFile] = []
        if self._missing_is_lost and not self._fs.exists(self._directory):
            return found
        for name in self._fs.list(self._directory):
            path = f"{self._directory}/{name}"
            sequence = journal_sequence(name)
            if sequence is None or self._fs.is_directory(path):
                if is_journal_begun(name) and not self._fs.is_directory(path):
                    self.result.scrap.append(path)
                elif not says_nothing(name):
                    self.result.strays.append(path)
                self._newest = max(self._newest, sequence or 0)
                continue
            self._newest = max(self._newest, sequence)
            file = self._fs.open(path)
            try:
                found.append(self._look(file, sequence, path))
            except ForeignFile:
                if not self._missing_is_lost:
                    raise
                self.result.strays.append(path)
            finally:
                file.close()
        found.sort(key=lambda file: file.sequence)
        self._leave_out_cut(found)
        return found

    def _look(self, file: File, sequence: int, path: str) -> _FoundFile:
        """Read the file's header. Raises ForeignFile."""
        size = file.size()
        data, _ = read_around(file, PAGE_BYTES, 0)
        length = header_length(data)
        if PAGE_BYTES < length <= min(size, _HEADER_BYTES_MAX):
            data, _ = read_around(file, length, 0)
        header = decode_file_header(data)
        if header is None or header.sequence != sequence:
            header = mend_file_header(self._reach(file, size, length), sequence) or header
        if header is not None:
            self._check_owner(path, directory_of(file, header))
        if header is not None and header.sequence != sequence:
            return _FoundFile(sequence, path, None, size, is_blank=True, is_recycled=True)
        if header is not None:
            self._check_header(file, path, header)
        is_blank = header is None and not any(data[:FILE_HEADER_BYTES])
        proves = header.start_lsn if header is not None else 0
        return _FoundFile(sequence, path, header, size, is_blank, proves)

    def _reach(self, file: File, size: int, length: int) -> bytes:
        """Return the beginning of the file, as far as a damaged header may reach.

        Its first or another page is damaged. Marks of all ids ever assigned could fill a whole
        file, but most files without a good header were never used.
        """
        reach, end = _REACH_BYTES, 0
        while end < size:
            data, _ = read_around(file, min(size, reach), 0)
            end = marks_end(data, self._log_ids_end)
            if end < len(data):
                break
            reach *= 2
        wanted = max(padded(end) + 2 * PAGE_BYTES, padded(length) + PAGE_BYTES)
        return read_around(file, min(size, wanted), 0)[0]

    def _check_owner(self, path: str, owner: DirectoryId) -> None:
        """Raise ForeignFile if the owner is another directory."""
        if owner not in self._owners:
            raise ForeignFile(path, owner)

    def _leave_out_cut(self, found: list[_FoundFile]) -> None:
        """Exclude a file that stands for others and was cut: the others still exist."""
        for one in reversed(found):
            if one.header is not None and one.header.replaced:
                file = self._fs.open(one.path)
                try:
                    if not self._can_stand(file, one.header):
                        one.header = None
                finally:
                    file.close()
            # Even if the file does not count: this was durable when it was begun.
            self._proved_lsn = max(self._proved_lsn, one.proves)

    def _can_stand(self, file: File, header: FileHeader) -> bool:
        """Return True if the file may stand for those it replaces.

        It must be complete, or have been durable and be damaged now, so that the others may be
        gone. Its table must be good even then, because the marks do not include the entries that
        the first block repeats.
        """
        size = file.size()
        block, data = read_block(file, header, header.bytes, size)
        if block is None or block.chain != header.chain:
            return False
        if bad_frames(block, data):
            return self._is_proved(file, header, block, None, size)
        return not self._is_torn(file, header, block, None)

    def _check_header(self, file: File, path: str, header: FileHeader) -> None:
        """Record the correct header if one page on disk differs from it, even a parity page.

        A second damaged page could not be corrected.
        """
        if header.bytes == file_header_bytes(len(header.marks)):
            written = encode_file_header(header)
            if read_whole(file, len(written), 0) != written:
                self.result.headers[path] = written

    def _chain(self, found: list[_FoundFile]) -> list[_FoundFile]:
        """Return the newest file and those before it, as far as each names an existing one."""
        by_sequence = {file.sequence: file for file in found if file.header is not None}
        chain: list[_FoundFile] = []
        current = by_sequence.get(max(by_sequence, default=0))
        while current is not None and not self._has_begun(current):
            assert current.header is not None, current.path
            if current.header.previous not in by_sequence:
                break
            later = [file.proves for file in found if file.sequence > current.sequence]
            if max(later, default=0) > current.header.start_lsn + current.header.bytes:
                break  # the header of a later file proves that it has
            del by_sequence[current.sequence]
            current = by_sequence.get(max(by_sequence))
        while current is not None:
            chain.append(current)
            assert current.header is not None, current.path
            current = by_sequence.get(current.header.previous)
        chain.reverse()
        return chain

    def _has_begun(self, found: _FoundFile) -> bool:
        """Return True if the file's first block is or was there.

        The header is part of the same write, but the write can be cut between them, and that block
        holds what a start carries over.
        """
        header = found.header
        assert header is not None, found.path
        file = self._fs.open(found.path)
        try:
            if has_first_block(file, header):
                return True
            size = file.size()
            return next_block(file, header, header.bytes + PAGE_BYTES, size, size) is not None
        finally:
            file.close()

    def _judge_left_out(self, found: list[_FoundFile], newest: int, end_lsn: int) -> None:
        """Check newer files that do not count for proof that the journal was longer.

        The proof may be in a header, or in a block of a file without a good header. A file shorter
        than it must have been also proves damage: it was whole when it was written to, and before
        the next one was made. Such a file is not blank.
        """
        for file in found:
            if file.sequence < newest:
                continue
            was_whole = file.header is not None or not file.is_blank or file is not found[-1]
            is_short = was_whole and file.size < _FILE_BYTES_MIN
            is_damaged = is_short or file.proves > end_lsn
            if file.sequence > newest and file.header is None and not is_damaged:
                is_damaged = durable_mark(self._fs, file.path, end_lsn) > end_lsn
            if is_damaged:
                file.is_blank = False
                self.result.damaged_blocks += 1
                self._suspect_all()

    # --- blocks --------------------------------------------------------------------------------
    def _replay_file(self, found: _FoundFile, stop_lsn: int | None) -> int:
        """Apply the file's blocks below `stop_lsn`; return the LSN of their end."""
        header = found.header
        assert header is not None, found.path
        file = self._fs.open(found.path)
        try:
            size = file.size()
            stop = size if stop_lsn is None else stop_lsn - header.start_lsn
            position, chain, flags = header.bytes, header.chain, 0
            while position < stop:
                block, data = read_block(file, header, position, size)
                is_good = block is not None and block.chain == chain and not bad_frames(block, data)
                if block is not None and is_good and self._is_torn(file, header, block, stop_lsn):
                    self.result.torn_bytes = stop - position
                    break
                if block is not None and is_good:
                    self._apply(block, data, found.sequence, frozenset())
                elif block is not None and self._is_proved(file, header, block, stop_lsn, size):
                    self.result.damaged_blocks += 1
                    self._apply(block, data, found.sequence, bad_frames(block, data))
                else:
                    # Its length cannot be trusted: continue at the next good block.
                    following = next_block(file, header, position + PAGE_BYTES, stop, size)
                    if following is None and stop_lsn is None:
                        if not flags & CLOSING:
                            self.result.torn_bytes = stop - position
                        break
                    self.result.damaged_blocks += 1
                    self._suspect_all()
                    if following is None:
                        position = stop
                        break
                    position, chain = following[0], following[1].chain
                    continue
                position += block.padded
                chain, flags = block.crc, block.flags
            self._end_chain = chain
            return header.start_lsn + position
        finally:
            file.close()

    def _is_torn(self, file: File, header: FileHeader, block: Block, stop_lsn: int | None) -> bool:
        """Return True if payloads of the good block are missing and not proved durable."""
        kinds = block.table[8::RECORD_BYTES]
        if not any(kind == PLACED for kind in kinds):
            return False
        size = file.size()
        follows, _ = read_block(file, header, block.position + block.padded, size)
        if follows is not None or self._has_payloads(block):
            return False
        return not self._is_proved(file, header, block, stop_lsn, size)

    def _has_payloads(self, block: Block) -> bool:
        """Return True if the frames exist that the block places in segments.

        Not required are frames that it truncates again, or whose log was deleted: once the block
        was durable, others may have taken their positions. Nor are frames that it records as
        flushed: they may be trimmed.
        """
        places: dict[int, tuple[int, int]] = {}
        wanted: dict[LogId, list[tuple[int, int, int, int, int]]] = {}
        for n in range(0, len(block.table), RECORD_BYTES):
            log_id, _, kind, term, index, value = STATE_RECORD.unpack_from(block.table, n)
            if kind == PLACE:
                places[log_id] = term, value
            elif kind == PLACED and log_id in self._logs and log_id in places:
                segment, position = places[log_id]
                length = value & 0xFFFFFFFF
                frame = index, segment, position, length, value >> 32
                wanted.setdefault(log_id, []).append(frame)
                places[log_id] = segment, position + length
            elif kind == TRUNCATE and log_id in wanted:
                wanted[log_id] = [frame for frame in wanted[log_id] if frame[0] < index]
            elif kind == FLUSHED and log_id in wanted:
                wanted[log_id] = [frame for frame in wanted[log_id] if frame[0] > index]
            elif kind == CLEAR and log_id in wanted:
                wanted[log_id] = [frame for frame in wanted[log_id] if frame[0] >= index]
            elif kind in (RESET, INSTALL):
                wanted.pop(log_id, None)
        reader = _SegmentReader(self._fs, self._directory.rpartition("/")[0])
        try:
            return all(
                reader.has_frame(log_id, *place)
                for log_id, frames in wanted.items()
                for _, *place in frames
            )
        finally:
            reader.close()

    def _is_proved(
        self, file: File, header: FileHeader, block: Block, stop_lsn: int | None, size: int
    ) -> bool:
        """Return True if a later block or a later file proves that this block had been durable.

        The file may be one that does not count because its first block never arrived.
        """
        end = block.position + block.padded
        if stop_lsn is not None or next_block(file, header, end, size, size) is not None:
            return True
        is_proved = header.start_lsn + end <= self._proved_lsn
        self._is_header_needed |= is_proved
        return is_proved

    def _apply(self, block: Block, data: memoryview, sequence: int, bad: frozenset[int]) -> None:
        """Apply a block's records; frames whose number is in `bad` are lost to their logs.

        Raises ForeignFile or UnknownFormat.
        """
        path = file_path(self._directory, sequence)
        self._check_owner(path, block.directory)
        for kind in sorted(set(block.table[8::RECORD_BYTES]) - KINDS):
            raise UnknownFormat(path, f"it has a record of the unknown kind {kind}")
        result = self.result
        result.blocks += 1
        at = BLOCK_HEADER_BYTES + len(block.table)
        result.carried = [c for c in result.carried if c.lsn >= block.durable]
        result.carried.append(
            Carried(block.lsn, block.chain, bytes(block.table), data[at : block.length])
        )
        for n in range(0, len(block.table), RECORD_BYTES):
            log_id, number, kind, term, index, value = STATE_RECORD.unpack_from(block.table, n)
            length = value & 0xFFFFFFFF if kind in FRAMED else 0
            log = self._logs.get(log_id)
            if log is not None:
                self._check_sequence(log, number)
                if kind & 0xFF == DETAIL:
                    fields = DETAIL_RECORD.unpack_from(block.table, n)
                    log.detail = fields[3], *fields[5:]
                elif kind == PLACED:
                    log.add_placed(index, term, value, sequence, block.position + n)
                elif kind not in FRAMED:
                    log.apply(kind, term, index, value)
                elif n in bad:
                    log.lost = True
                else:
                    ref = FrameRef(sequence, block.position + at, length, term)
                    if kind == ENTRY:
                        log.add(index, ref)
                    else:
                        if kind == INSTALL:
                            log.apply(RESET, term, index, base_offset_of(data, at))
                        log.installed = ref
            at += length

    def _check_sequence(self, log: ReplayedLog, number: int) -> None:
        seen = log.sequence
        # The first one may precede the header's number, by less than half the sequence space.
        is_before = (log.sequence_hint - number) & SEQUENCE_MASK <= SEQUENCE_MASK // 2
        if number == seen or (seen < 0 and is_before):
            log.suspect = False
        else:
            log.lost = True
        log.sequence = (number + 1) & SEQUENCE_MASK

    def _suspect_all(self) -> None:
        for log in self._logs.values():
            log.suspect = True

    def _replace(self, marks: list[Mark]) -> None:
        """Replace the state of each log by the marks of a file that stands for others.

        Those no longer exist. A log that was suspect before may have lost data, and nothing can
        show it.
        """
        for mark in marks:
            log = self._logs.get(mark.log_id)
            if log is None:
                continue
            log.lost = log.lost or log.suspect
            log.cut(mark.last_index + 1)
            self._start_from(mark)
            log.sequence = -1
            if not mark.flags & MARK_INSTALLED:
                log.installed = None

    def _start_from(self, mark: Mark) -> None:
        log = self._logs.get(mark.log_id)
        if log is None:
            return
        log.first_index, log.prev_term = mark.first_index, mark.prev_term
        log.start_offset, log.last_index = mark.start_offset, mark.last_index
        log.flushed_index, log.flushed_offset = mark.flushed_index, mark.flushed_offset
        log.term, log.vote, log.commit = mark.term, mark.vote, mark.commit
        log.is_void = bool(mark.flags & MARK_VOID)
        log.sequence_hint = mark.sequence


class _SegmentReader:
    """Looks for frames in segments; keeps the last file open."""

    def __init__(self, fs: FileSystem, directory: str) -> None:
        self._fs = fs
        self._directory = directory
        self._path = ""
        self._file: File | None = None

    def has_frame(self, log_id: LogId, segment: int, position: int, length: int, crc: int) -> bool:
        """Return True if the frame with that CRC is at `position`."""
        path = segment_path(log_directory(self._directory, log_id), segment)
        if path != self._path:
            self.close()
            self._path = path
            try:
                self._file = self._fs.open(path)
            except FileNotFoundError:
                return False
        if self._file is None or self._file.size() < position + length:
            return False
        frame = memoryview(read_whole(self._file, length, position))
        return is_frame(frame, length, crc)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
