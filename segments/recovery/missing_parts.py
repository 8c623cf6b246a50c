"""Detection of missing files when a data directory is opened.

A directory is *new* when it is empty, *begun* while its first start creates the rest, and *whole*
from then on. Its identity distinguishes the last two. A file missing in a whole directory existed
once: it was moved or removed, or is on a disk that is not mounted. Continuing without it would make
the loss permanent, so it is an error, and nothing on disk is changed. `INTERNALS.md` has the table.

Does not depend on the contents of files other than the identity.
"""

from __future__ import annotations

from segments.api import DataMissing
from segments.directory.format_note import read_form
from segments.directory.identity import Identity, read_identity
from segments.format.names import FIRST, ROOT, journal_sequence, says_nothing
from segments.io.fs import FileSystem
from segments.recovery.replay import Replay

_NAMES_MAX = 8
"""Maximum number of other names listed in an error."""


def find_identity(fs: FileSystem, directory: str, *, may_be_new: bool) -> Identity | None:
    """Return the directory's identity; None if it is new.

    Raises DataMissing, CorruptRecord, and UnknownFormat, which is checked first: data of a later
    version is not damage.
    """
    read_form(fs, directory)
    identity = read_identity(fs, directory)
    if identity is None:
        _check_new(fs, directory, may_be_new=may_be_new)
        return None
    if not identity.is_whole:
        return identity
    for name in ("journal", "logs"):
        if not fs.is_directory(f"{directory}/{name}"):
            raise DataMissing(f"{directory}/{name}", "the directory has had logs")
    if not fs.has_meta(f"{directory}/meta") and not fs.has_meta(f"{directory}/meta.new"):
        raise DataMissing(f"{directory}/meta", "it has the applied state")
    if not any(journal_sequence(name) is not None for name in fs.list(f"{directory}/journal")):
        raise DataMissing(f"{directory}/journal/*.journal", "the directory has no journal file")
    return identity


def _check_new(fs: FileSystem, directory: str, *, may_be_new: bool) -> None:
    """Check that a directory without identity is new. Raises DataMissing."""
    there = fs.list(directory) if fs.exists(directory) else []
    names = [name for name in there if name not in FIRST and not says_nothing(name)]
    if names:
        found = ", ".join(names[:_NAMES_MAX]) + (", …" if len(names) > _NAMES_MAX else "")
        raise DataMissing(f"{directory}/identity", f"the directory is not empty; it has {found}")
    if not may_be_new:
        raise DataMissing(
            f"{directory}/identity", "the directory is empty, and storage.accept_empty is false"
        )


def check_logs(fs: FileSystem, directory: str, replay: Replay) -> None:
    """Check that every log with segments has a directory for them. Raises DataMissing."""
    there = set(fs.list(f"{directory}/logs"))
    for log_id, log in replay.logs.items():
        if not (log.is_void or log.lost) and f"{log_id:08x}" not in there:
            raise DataMissing(
                f"{directory}/logs/{log_id:08x}",
                f"it has entries up to {log.flushed_index} of the log",
            )


def strays_of(fs: FileSystem, directory: str) -> list[str]:
    """Return the paths in the directory that are not the store's."""
    names = fs.list(directory)
    return [f"{directory}/{name}" for name in names if name not in ROOT and not says_nothing(name)]
