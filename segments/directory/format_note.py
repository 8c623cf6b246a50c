"""Form of the data directory: the minimum that a version must know to open it.

    0   magic   8   `VDLFORM1`
    8   CRC     4   CRC32C of bytes [12, 16)
    12  number  4

Written twice, each copy padded to a page, so that no flipped bit and no unreadable page affects
both. A directory without the file has form 1.

A version that writes data which others would skip, or take for damage, first records a higher form
here, durably. A version that does not know the form refuses the directory and changes nothing.
`segments/FORMAT.md` has the table of forms.

Does not depend on the differences between forms.
"""

from __future__ import annotations

import struct

from crc32c import crc32c

from segments.api import CorruptRecord, UnknownFormat
from segments.io.fs import FileSystem, read_around

FORM_CLEARS = 2
"""The journal may have records of kind CLEAR."""
FORM_VOTES = 3
"""Coordinators that the birth record names may be gone for good. Set before the first is."""
FORM = FORM_VOTES
"""Newest form that this version knows."""
_MAGIC = b"VDLFORM1"
_NOTE = struct.Struct("<8sII")
_NUMBER = struct.Struct("<I")
_PAGE_BYTES = 4096


def read_form(fs: FileSystem, directory: str) -> int:
    """Read the form.

    Raises UnknownFormat for a form of a later version, CorruptRecord or OSError.
    """
    path = f"{directory}/format"
    if not fs.exists(path):
        return 1
    numbers = [number for number in _copies(fs, path) if number]
    if not numbers:
        raise CorruptRecord("format", 0)
    if numbers[0] > FORM:
        raise UnknownFormat(
            path,
            (f"it requires format {numbers[0]}, but this version supports formats up to {FORM}"),
        )
    return numbers[0]


def is_format_whole(fs: FileSystem, directory: str, number: int) -> bool:
    """Return True if both copies have this number, or one set since. Raises OSError."""
    path = f"{directory}/format"
    if not fs.exists(path):
        return False
    one, other = _copies(fs, path)
    return one == other >= number


def _copies(fs: FileSystem, path: str) -> list[int]:
    """Return the number in each copy; 0 for a damaged one."""
    file = fs.open(path)
    try:
        data, _ = read_around(file, 2 * _PAGE_BYTES, 0)
    finally:
        file.close()
    return [_number(data[at : at + _NOTE.size]) for at in (0, _PAGE_BYTES)]


def write_form(fs: FileSystem, directory: str, number: int) -> None:
    """Write both copies; durable on return. Blocks. Raises OSError."""
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
    """Return the number in one copy; 0 if it is damaged."""
    if len(data) < _NOTE.size:
        return 0
    magic, crc, number = _NOTE.unpack(data)
    is_good = magic == _MAGIC and crc == crc32c(_NUMBER.pack(number))
    return int(number) if is_good else 0
