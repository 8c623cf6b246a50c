"""Checks, while the store runs, of the data other than segments that a start reads.

They find damage while memory still has the contents. Once an hour the scrubber has all of it
checked, a step at a time: both copies of identity and format, each block of the journal, each page
of the meta's file. Damaged parts are written again from memory: the identity; the format; the data
that needs journal files up to the damaged one, so that these can be released; the logs in the meta,
as far as they can be read. Until that is done, a start would meet the damage.

For the meta's file, only unreadable places are detected. Changed bytes are detected when they are
read, because each value has a checksum. Pages that the process has mapped stay in memory.

Does not depend on logs or the loop.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Protocol

from segments.api import CorruptRecord
from segments.directory.format_note import is_format_whole
from segments.directory.identity import read_identity
from segments.format.block import (
    FILE_HEADER_BYTES,
    FileHeader,
    decode_file_header,
    first_block_at,
    is_parity_good,
)
from segments.io.fs import File, FileSystem, is_unreadable, read_whole
from segments.meta.file import Meta
from segments.recovery.journal_blocks import bad_frames, read_block

STEP_BYTES = 1 << 20


class PartsOwner(Protocol):
    """Methods that the checks require of the store."""

    def journal_files(self) -> Sequence[tuple[int, str, int]]:
        """Return (sequence, path, LSN up to which it counts) of each needed journal file."""

    def journal_damaged(self, sequence: int) -> bool:
        """React to a damaged journal file. Return False if it was released or reused meanwhile."""

    def identity_damaged(self) -> None: ...
    def format_damaged(self) -> None:
        """Write the format anew. Raises OSError."""

    def meta_damaged(self) -> None: ...


class Look(Protocol):
    """Check of one part.

    `step` runs in the pool: it reads on, and returns the number of bytes. If it raises OSError, it
    is called again. `tell` runs on the loop after a step found damage; it returns False if the
    damage does not count. It may raise OSError, too: the step is then repeated.
    """

    is_done: bool
    is_damaged: bool

    def step(self) -> int: ...
    def tell(self) -> bool: ...


class Parts:
    """Rounds of checks, begun by the scrubber."""

    def __init__(
        self, fs: FileSystem, directory: str, form: int, meta: Meta, owner: PartsOwner
    ) -> None:
        """Begin without checks. `form` is the directory's form, from its note if there is one."""
        self._fs = fs
        self._directory = directory
        self.form = form
        self._meta = meta
        self._owner = owner
        self._looks: deque[Look] = deque()
        self.damaged = 0
        """Number of parts found damaged."""

    def begin(self) -> None:
        """Begin a new round of all parts; unfinished checks start again."""
        fs, directory, owner = self._fs, self._directory, self._owner
        self._looks = deque(
            [
                IdentityLook(fs, directory, owner),
                FormatLook(fs, directory, self.form, owner),
                MetaLook(self._meta, owner),
                *(JournalLook(fs, *file, owner) for file in owner.journal_files()),
            ]
        )

    def next(self) -> Look | None:
        """Return the next check; None if the round has ended."""
        return self._looks[0] if self._looks else None

    def stepped(self) -> None:
        """Note the end of a step of the current check. Raises OSError if it must be repeated."""
        look = self._looks[0]
        if look.is_damaged:
            self.damaged += look.tell()
        if look.is_done or look.is_damaged:
            self._looks.popleft()

    def refused(self) -> None:
        """Move the current check, whose step a full disk refused, behind the others."""
        self._looks.rotate(-1)


class IdentityLook:
    """Check of both halves of the identity."""

    def __init__(self, fs: FileSystem, directory: str, owner: PartsOwner) -> None:
        self.is_done = self.is_damaged = False
        self._fs = fs
        self._directory = directory
        self._owner = owner

    def step(self) -> int:
        count = 0
        try:
            with _unreadable_is_damaged():
                count = _uncache(self._fs, f"{self._directory}/identity")
                found = read_identity(self._fs, self._directory)
        except CorruptRecord:
            found = None
        self.is_damaged = found is None or found.is_half_damaged
        self.is_done = True
        return count

    def tell(self) -> bool:
        self._owner.identity_damaged()
        return True


class FormatLook:
    """Check of both copies of the format. Only the loop writes it while the store is open."""

    def __init__(self, fs: FileSystem, directory: str, form: int, owner: PartsOwner) -> None:
        self.is_done = self.is_damaged = False
        self._fs = fs
        self._directory = directory
        self._form = form
        self._owner = owner

    def step(self) -> int:
        count, is_whole = 0, True
        if self._form > 1:
            try:
                with _unreadable_is_damaged():
                    count = _uncache(self._fs, f"{self._directory}/format")
                    is_whole = is_format_whole(self._fs, self._directory, self._form)
            except CorruptRecord:
                is_whole = False
        self.is_damaged = not is_whole
        self.is_done = True
        return count

    def tell(self) -> bool:
        self._owner.format_damaged()
        return True


class MetaLook:
    """Check that the medium can read the meta's file."""

    def __init__(self, meta: Meta, owner: PartsOwner) -> None:
        self.is_done = self.is_damaged = False
        self._meta = meta
        self._owner = owner
        self._position = 0

    def step(self) -> int:
        try:
            count = self._meta.read_medium(STEP_BYTES, self._position)
        except OSError as error:
            if not is_unreadable(error):
                raise
            self.is_damaged = True
            return STEP_BYTES
        self._position += count
        self.is_done = count < STEP_BYTES
        return count

    def tell(self) -> bool:
        self._owner.meta_damaged()
        return True


class JournalLook:
    """Check of a journal file: its header with the parity, and each block that counts."""

    def __init__(
        self, fs: FileSystem, sequence: int, path: str, end_lsn: int, owner: PartsOwner
    ) -> None:
        self.is_done = self.is_damaged = False
        self._fs = fs
        self._sequence = sequence
        self._path = path
        self._end_lsn = end_lsn
        self._owner = owner
        self._header: FileHeader | None = None
        self._position = 0
        self._chain = 0
        """CRC of the block before."""

    def step(self) -> int:
        try:
            with _unreadable_is_damaged():
                file = self._fs.open(self._path)
        except (FileNotFoundError, CorruptRecord):
            self.is_damaged = True  # unless it is no longer needed
            return 0
        with contextlib.closing(file):
            begin = self._position
            try:
                header = self._header or self._read_header(file)
                file.uncache(0, self._position)  # to the end: the last block may be long
                while self._position < begin + STEP_BYTES and not self._is_at_end(header):
                    self._read_block(file, header)
            except CorruptRecord:
                self.is_damaged = True
                return STEP_BYTES
        self.is_done = self._is_at_end(header)
        return self._position - begin

    def _is_at_end(self, header: FileHeader) -> bool:
        return header.start_lsn + self._position >= self._end_lsn

    def _read_header(self, file: File) -> FileHeader:
        """Read and check the header. Raises CorruptRecord."""
        file.uncache()
        head = read_whole(file, FILE_HEADER_BYTES, 0)
        data = read_whole(file, min(first_block_at(head), file.size()), 0)
        header = decode_file_header(data)
        if header is None or header.sequence != self._sequence or not is_parity_good(data):
            raise CorruptRecord("journal header", self._sequence)
        self._header, self._position, self._chain = header, header.bytes, header.chain
        return header

    def _read_block(self, file: File, header: FileHeader) -> None:
        """Check the next block. Raises CorruptRecord."""
        block, data = read_block(file, header, self._position, file.size())
        if block is None or block.chain != self._chain or bad_frames(block, data):
            raise CorruptRecord("journal block", header.start_lsn + self._position)
        self._chain = block.crc
        self._position += block.padded

    def tell(self) -> bool:
        return self._owner.journal_damaged(self._sequence)


@contextlib.contextmanager
def _unreadable_is_damaged() -> Iterator[None]:
    """Raise CorruptRecord instead of the OSError of an unreadable file."""
    try:
        yield
    except OSError as error:
        if not is_unreadable(error):
            raise
        raise CorruptRecord("file", 0) from error


def _uncache(fs: FileSystem, path: str) -> int:
    """Drop the file from the page cache, so that it is read from the medium; return its size."""
    with contextlib.suppress(FileNotFoundError), contextlib.closing(fs.open(path)) as file:
        file.uncache()
        return file.size()
    return 0
