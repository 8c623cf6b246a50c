"""Which form of the data directory is the least that a version must know to open it.

    0   magic   8   `VDLFORM1`
    8   CRC     4   CRC32C of bytes [12, 16)
    12  number  4

Twice, each padded to a page, so that no flipped bit and no unreadable page takes both. A directory
without the file has form 1.

A version that writes something which others would pass over, or take for damage, says so here
first, durably. A version that does not know the form refuses the directory, and changes nothing.
`README.md` has the table of forms.

Must not know: what makes the forms different.
"""

from __future__ import annotations

import struct

from crc32c import crc32c

from segments.api import CorruptRecord, UnknownFormat
from segments.io.fs import FileSystem, read_around

FORM_CLEARS = 2
"""The journal may have records of kind CLEAR."""
FORM = FORM_CLEARS
"""The newest that this version knows."""
_MAGIC = b"VDLFORM1"
_NOTE = struct.Struct("<8sII")
_NUMBER = struct.Struct("<I")
_PAGE_BYTES = 4096


def read_form(fs: FileSystem, directory: str) -> int:
    """Raises UnknownFormat for a form of a later version, CorruptRecord, OSError."""
    path = f"{directory}/format"
    if not fs.exists(path):
        return 1
    numbers = [number for number in _copies(fs, path) if number]
    if not numbers:
        raise CorruptRecord("format", 0)
    if numbers[0] > FORM:
        raise UnknownFormat(path, f"it asks for form {numbers[0]}, and this version knows {FORM}")
    return numbers[0]


def is_format_whole(fs: FileSystem, directory: str, number: int) -> bool:
    """Whether both copies say it. Raises OSError."""
    path = f"{directory}/format"
    return fs.exists(path) and _copies(fs, path) == [number, number]


def _copies(fs: FileSystem, path: str) -> list[int]:
    """What each says; 0: it is damaged."""
    file = fs.open(path)
    try:
        data, _ = read_around(file, 2 * _PAGE_BYTES, 0)
    finally:
        file.close()
    return [_number(data[at : at + _NOTE.size]) for at in (0, _PAGE_BYTES)]


def write_form(fs: FileSystem, directory: str, number: int) -> None:
    """Durable on return. Blocks. Raises OSError."""
    path = f"{directory}/format"
    begun = f"{path}.new"
    packed = _NUMBER.pack(number)
    page = _NOTE.pack(_MAGIC, crc32c(packed), number).ljust(_PAGE_BYTES, b"\0")
    if fs.exists(begun):
        fs.unlink(begun)
    file = fs.open(begun, create=True)
    try:
        file.pwrite([page + page], 0)
        file.sync()
    finally:
        file.close()
    fs.rename(begun, path)
    fs.sync_directory(directory)


def _number(data: bytes) -> int:
    """What one copy says; 0: it is damaged."""
    if len(data) < _NOTE.size:
        return 0
    magic, crc, number = _NOTE.unpack(data)
    is_good = magic == _MAGIC and crc == crc32c(_NUMBER.pack(number))
    return int(number) if is_good else 0
