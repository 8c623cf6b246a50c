"""What is there when a data directory is opened, and what must be there and is not.

A directory is *new* when it is empty, *begun* while its first start makes the rest, and *whole*
from then on. Its identity says which of the last two. What is missing in a whole one was there
once: it was moved, removed, or lies on a disk that is not mounted. To go on without it would make
the loss final. So it is an error, and nothing on disk is changed. `README.md` has the table.

Must not know: what the files say, but for the identity.
"""

from __future__ import annotations

from segments.api import DataMissing
from segments.directory.format_note import read_form
from segments.directory.identity import Identity, read_identity
from segments.format.names import FIRST, ROOT, journal_sequence, says_nothing
from segments.io.fs import FileSystem
from segments.recovery.replay import Replay

_NAMES_MAX = 8
"""So many names are given of those that are found instead."""


def find_identity(fs: FileSystem, directory: str, *, may_be_new: bool) -> Identity | None:
    """Whose directory this is; None: it is new. Raises DataMissing, CorruptRecord, and
    UnknownFormat, first of all: what a later version wrote there is not damage."""
    read_form(fs, directory)
    identity = read_identity(fs, directory)
    if identity is None:
        _check_new(fs, directory, may_be_new=may_be_new)
        return None
    if not identity.is_whole:
        return identity
    for name in ("journal", "logs"):
        if not fs.is_directory(f"{directory}/{name}"):
            raise DataMissing(f"{directory}/{name}", "this directory has held logs")
    if not fs.has_meta(f"{directory}/meta") and not fs.has_meta(f"{directory}/meta.new"):
        raise DataMissing(f"{directory}/meta", "the applied state lies there")
    if not any(journal_sequence(name) is not None for name in fs.list(f"{directory}/journal")):
        raise DataMissing(f"{directory}/journal/*.journal", "no journal file is there")
    return identity


def _check_new(fs: FileSystem, directory: str, *, may_be_new: bool) -> None:
    """Raises DataMissing."""
    there = fs.list(directory) if fs.exists(directory) else []
    names = [name for name in there if name not in FIRST and not says_nothing(name)]
    if names:
        found = ", ".join(names[:_NAMES_MAX]) + (", …" if len(names) > _NAMES_MAX else "")
        raise DataMissing(f"{directory}/identity", f"the directory is not empty, it has {found}")
    if not may_be_new:
        raise DataMissing(
            f"{directory}/identity", "the directory is empty, and storage.accept_empty is false"
        )


def check_logs(fs: FileSystem, directory: str, replay: Replay) -> None:
    """Every log that has segments has a directory for them. Raises DataMissing."""
    there = set(fs.list(f"{directory}/logs"))
    for log_id, log in replay.logs.items():
        if not (log.is_void or log.lost) and f"{log_id:08x}" not in there:
            raise DataMissing(
                f"{directory}/logs/{log_id:08x}",
                f"entries up to {log.flushed_index} of that log lie there",
            )


def strays_of(fs: FileSystem, directory: str) -> list[str]:
    """Names beside those of the store that are not its own."""
    names = fs.list(directory)
    return [f"{directory}/{name}" for name in names if name not in ROOT and not says_nothing(name)]
