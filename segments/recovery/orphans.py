"""Removal of deleted logs' files: they are moved aside first, then removed.

A log is deleted by its absence from the identity. Files that still exist then, because a process
died between the two, are orphans. The next start finds and removes them.

Does not depend on the contents of files.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from ids import LogId
from segments.api import CorruptRecord
from segments.checkpoint.flusher import Pulse
from segments.directory.identity import Identity
from segments.directory.log_registry import LogRegistry
from segments.format.names import log_directory, log_id_of, says_nothing
from segments.io import failpoint
from segments.io.fs import FileSystem, is_refused
from segments.io.removals import FILES_AT_ONCE, Job, Removal, Removals
from segments.meta.file import Meta
from segments.recovery.replay import Replay

REMOVED_LOGS = 128
"""Maximum number of logs per job, because other jobs wait for it."""


class Deletions:
    """Deleted logs whose data is not fully removed.

    Their files wait until the identity no longer lists them, so that a crash in between resurrects
    nothing. Other removals do not wait for that, and may free space for it.
    """

    def __init__(
        self,
        fs: FileSystem,
        directory: str,
        meta: Meta,
        registry: LogRegistry,
        removals: Removals,
        pulse: Pulse,
    ) -> None:
        self._fs = fs
        self._directory = directory
        self._meta = meta
        self._registry = registry
        self._removals = removals
        self._pulse = pulse
        self._waiting: list[LogId] = []
        self._unlisted: list[LogId] = []
        """Invariant: a removal is in the queue as long as there are any."""

    def begin(self, log_id: LogId) -> None:
        """Begin the removal of a deleted log."""
        self._waiting.append(log_id)

    def listed(self) -> list[LogId]:
        """React to a written identity; return the deleted logs that it no longer lists."""
        is_listed = self._registry.is_listed
        unlisted = [log_id for log_id in self._waiting if not is_listed(log_id)]
        if unlisted:
            self._waiting = [log_id for log_id in self._waiting if is_listed(log_id)]
            if not self._unlisted:
                self._add_removal()
            self._unlisted += unlisted
        return unlisted

    def _add_removal(self) -> None:
        self._removals.add(Removal(0, self._job))

    def _job(self) -> Job:
        """Return the job for the logs deleted first; many logs share its syncs."""
        log_ids, self._unlisted = self._unlisted[:REMOVED_LOGS], self._unlisted[REMOVED_LOGS:]
        if self._unlisted:
            self._add_removal()

        removal = RemoveLogs(self._fs, self._directory, log_ids, self._pulse)

        def remove() -> bool:
            if removal():
                return True
            self._meta.forget(log_ids)
            failpoint.hit("delete.forgotten")
            return False

        return remove


class RemoveLogs:
    """Moves the files of logs out of the way, durably, then removes them.

    A call removes a limited number, and returns True while more are left. May also be called again
    after a full disk refused it: files that were moved are removed first, and free space. Blocks.
    `pulse` counts its progress.
    """

    def __init__(
        self,
        fs: FileSystem,
        directory: str,
        log_ids: Sequence[LogId],
        pulse: Pulse,
        *,
        files_max: int = FILES_AT_ONCE,
    ) -> None:
        self._fs = fs
        self._directory = directory
        self._pulse = pulse
        self._files_max = files_max
        self._moved = {log_id: f"{directory}/deleted/{log_id:08x}" for log_id in log_ids}
        self._names: tuple[str, list[str]] = ("", [])
        """Directory being emptied, and the files left in it."""

    def __call__(self) -> bool:
        fs, left = self._fs, self._files_max
        left = self._remove_moved([path for path in self._moved.values() if fs.exists(path)], left)
        if not left:
            return True
        moved: list[str] = []
        for log_id, aside in self._moved.items():
            path = log_directory(self._directory, log_id)
            if fs.exists(path):
                failpoint.hit("remove.begun")
                fs.rename(path, aside)
                failpoint.hit("remove.moved")
                moved.append(aside)
        return not self._remove_moved(moved, left)

    def _remove_moved(self, moved: Sequence[str], left: int) -> int:
        """Remove moved directories; return how many more files this call may remove.

        Their new names are made durable first: half a log must not come back under its old name.
        """
        if not moved:
            return left
        _sync_moves(self._fs, self._directory)
        for aside in moved:
            left = self._empty(aside, left)
            if not left:
                break
            self._fs.remove_tree(aside)
            failpoint.hit("remove.removed")
        return left

    def _empty(self, aside: str, left: int) -> int:
        """Remove up to `left` files; the last ones go together with the directory."""
        fs = self._fs
        if self._names[0] != aside:
            self._names = aside, [n for n in fs.list(aside) if not fs.is_directory(f"{aside}/{n}")]
        names = self._names[1]
        while names and left:
            fs.unlink(f"{aside}/{names[-1]}")
            names.pop()
            left -= 1
            self._pulse.beats += 1
        return left


def remove_logs(fs: FileSystem, directory: str, log_ids: Sequence[LogId]) -> None:
    """Remove everything at once, as a start does."""
    while RemoveLogs(fs, directory, log_ids, Pulse())():
        pass


def _sync_moves(fs: FileSystem, directory: str) -> None:
    fs.sync_directory(f"{directory}/logs")
    fs.sync_directory(f"{directory}/deleted")


def remove_orphans(fs: FileSystem, directory: str, identity: Identity) -> list[str]:
    """Finish deletions that a crash cut short, those already moved first.

    Return the paths of foreign files, which are left alone. A directory is one of ours only if its
    log id was ever assigned.
    """
    deleted, logs = f"{directory}/deleted", f"{directory}/logs"
    moved, others = _logs_in(fs, deleted, identity)
    # Only moved directories: a log that was reset has one here, and another that is in use.
    if moved:
        _sync_moves(fs, directory)
    for log_id in moved:
        fs.remove_tree(f"{deleted}/{log_id:08x}")
        failpoint.hit("remove.removed")
    found, strays = _logs_in(fs, logs, identity)
    orphans = [log_id for log_id in found if log_id not in identity.logs]
    for n in range(0, len(orphans), REMOVED_LOGS):
        remove_logs(fs, directory, orphans[n : n + REMOVED_LOGS])
    return others + strays


def _logs_in(fs: FileSystem, folder: str, identity: Identity) -> tuple[list[LogId], list[str]]:
    """Return (ids of logs that have a directory there, paths of everything else)."""
    log_ids: list[LogId] = []
    strays: list[str] = []
    for name in fs.list(folder):
        log_id, path = log_id_of(name), f"{folder}/{name}"
        if log_id is not None and 0 < log_id < identity.next_log_id and fs.is_directory(path):
            log_ids.append(log_id)
        elif not says_nothing(name):
            strays.append(path)
    return log_ids, strays


def forget_orphans(meta: Meta, identity: Identity) -> None:
    """Finish in the meta what a crash left to do.

    Looks at the stored ids, because the assigned ones may be millions. If it is refused for lack of
    space, or meta is damaged, it is left to a later start.
    """
    known, end = identity.logs, identity.next_log_id
    try:
        meta.forget([n for n in meta.stored() if n not in known and n < end])
    except CorruptRecord:
        return
    except OSError as error:
        if not is_refused(error):
            raise


def remove_stale(fs: FileSystem, files: Sequence[str], directories: Sequence[str]) -> None:
    """Remove files that recovery found not to count, durably.

    One that came back could be mistaken for one that counts. Newest first, so that a crash leaves
    no gap before the rest.
    """
    for path in sorted(files, reverse=True):
        if fs.exists(path):
            fs.unlink(path)
    for parent in sorted({path.rpartition("/")[0] for path in files}):
        fs.sync_directory(parent)
    for path in directories:
        fs.remove_tree(path)


def mend_headers(fs: FileSystem, replay: Replay) -> None:
    """Rewrite the headers of live files of which one page is damaged.

    Another damaged page could not be corrected. If the write fails, they stay as they are.
    """
    live = {path for _, path in replay.live}
    for path in sorted(replay.headers.keys() & live):
        with contextlib.suppress(OSError):
            file = fs.open(path)
            try:
                file.pwrite([replay.headers[path]], 0, durable=True)
            finally:
                file.close()
