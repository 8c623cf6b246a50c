"""Note of a log's compaction: a small file beside its segments.

    0   magic         8   `VDLCMP01`
    8   CRC           4   CRC32C of bytes [12, 28), seeded with the log id
    12  upto          8   index of the last entry considered
    20  markers upto  8   deletion markers up to this entry are removed

Written after all segments are rewritten, so it describes completed work. If it is missing or
damaged, the log is compacted again, which does not change what was done already.

Does not depend on segments.
"""

from __future__ import annotations

import struct

from crc32c import crc32c

from ids import LogId
from segments.api import Compaction
from segments.format.names import COMPACTION
from segments.io import failpoint
from segments.io.fs import FileSystem, read_whole

_MAGIC = b"VDLCMP01"
_NOTE = struct.Struct("<8sIQQ")
_CRC_FROM = 12


def read_note(fs: FileSystem, directory: str, log_id: LogId) -> Compaction:
    """Return the compaction completed for the log in this directory."""
    path = f"{directory}/{COMPACTION}"
    if not fs.exists(path) or fs.is_directory(path):
        return Compaction()
    file = fs.open(path)
    try:
        data = read_whole(file, _NOTE.size, 0)
    finally:
        file.close()
    if len(data) < _NOTE.size:
        return Compaction()
    magic, crc, upto, markers_upto = _NOTE.unpack(data)
    if magic != _MAGIC or crc != crc32c(data[_CRC_FROM:], log_id):
        return Compaction()
    return Compaction(upto, markers_upto)


def write_note(fs: FileSystem, directory: str, log_id: LogId, done: Compaction) -> None:
    """Write the note; durable on return. Blocks. Raises OSError."""
    path = f"{directory}/{COMPACTION}"
    begun = f"{path}.new"
    rest = struct.pack("<QQ", done.upto, done.markers_upto)
    if fs.exists(begun):
        fs.unlink(begun)
    file = fs.open(begun, create=True)
    try:
        file.pwrite([_MAGIC + struct.pack("<I", crc32c(rest, log_id)) + rest], 0)
        file.sync()
    finally:
        file.close()
    failpoint.hit("compact.noting")
    fs.rename(begun, path)
    fs.sync_directory(directory)
    failpoint.hit("compact.noted")
