"""List of existing logs: the identity file, written in the background once per turn.

A created log exists once the file lists it durably. A deleted log is dropped with the next write,
and a start before that opens it again. A full disk delays creation. Deletion frees space, so space
for it is reserved.

Does not depend on the contents of logs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from ids import NO_SERVER, DirectoryId, LogId, ServerId
from segments.api import Log, Workers
from segments.boots import Boot
from segments.directory.identity import Identity, LogIdentity, encode, fresh_path, write_identity
from segments.io.fs import (
    DISK_FULL_RETRY_MS,
    FileSystem,
    is_disk_full,
    is_refused,
    unless_refused,
)
from segments.io.reserve import Reserve
from segments.log.log import DiskLog

RESERVE_PIECE_BYTES = 128 << 10


def identity_reserve(fs: FileSystem, directory: str) -> Reserve:
    """Return the space reserved for the identity file."""
    return Reserve(fs, f"{directory}/reserve", "identity", RESERVE_PIECE_BYTES)


def replace_identity(fs: FileSystem, directory: str, reserve: Reserve, data: bytes) -> None:
    """Write the identity file; on a full disk over a piece of the reserve, or after freeing some.

    Blocks. Raises OSError (ENOSPC) if none is left.
    """
    is_made = False
    while True:
        try:
            write_identity(fs, directory, data, is_made=is_made)
            break
        except OSError as error:
            if not is_disk_full(error):
                raise
            fits = len(data) <= reserve.piece_bytes
            is_made = fits and reserve.take(fresh_path(directory))
            if not is_made and not reserve.free(1):
                raise
    with unless_refused():
        reserve.fill()


class RegistryOwner(Protocol):
    """Receiver of notifications about writes.

    Calls rather than results: writes end in a thread, and no call waits for that.
    """

    def log_created(self, log: DiskLog) -> None:
        """Handle a log whose existence is durable."""

    def registry_written(self) -> None:
        """Handle a write that has ended or was refused."""

    def registry_failed(self, error: BaseException) -> None:
        """React to a disk that can no longer be trusted."""


class LogRegistry:
    """The identity file's logs. Changes of one turn share a write."""

    def __init__(
        self,
        fs: FileSystem,
        directory: str,
        workers: Workers,
        identity: Identity,
        owner: RegistryOwner,
    ) -> None:
        self._fs = fs
        self._directory = directory
        self._workers = workers
        self._identity = identity
        self._reserve = identity_reserve(fs, directory)
        self._owner = owner
        self._created: list[tuple[DiskLog, Callable[[Log], None]]] = []
        self._noted: list[Callable[[], None]] = []
        """Use: called when the present identity is durable."""
        self._is_armed = False
        self._is_dirty = False
        self._removed: set[LogId] = set()
        """Use: deleted logs that the file still lists.
        Invariant: no data of such a log is removed, nor a journal file that it needs."""
        self.is_writing = False
        self.is_full = False
        self.is_closed = False

    @property
    def directory_id(self) -> DirectoryId:
        return self._identity.directory_id

    @property
    def cluster_record(self) -> bytes:
        return self._identity.cluster_record

    @property
    def server_id(self) -> ServerId:
        return self._identity.server_id

    @property
    def boots(self) -> list[Boot]:
        return self._identity.boots

    @property
    def count(self) -> int:
        """Number of logs that the file lists, including those being created."""
        return len(self._identity.logs) + len(self._removed)

    @property
    def lists_removed(self) -> bool:
        """True if the file lists a deleted log."""
        return bool(self._removed)

    def is_listed(self, log_id: LogId) -> bool:
        """Return True if the file lists this deleted log."""
        return log_id in self._removed

    def adopt_cluster(self, record: bytes, done: Callable[[], None]) -> None:
        """Write the cluster record, and call `done` once it is durable.

        Blocks, unless a thread writes the file: it was given an older identity, and no other may
        use the path of the next file.
        """
        self._identity.cluster_record = record
        if self.is_writing:
            self._noted.append(done)
            self._touch()
            return
        write_identity(self._fs, self._directory, encode(self._identity))
        done()

    def adopt_server(self, server_id: ServerId) -> None:
        """Assign the directory to that server."""
        assert self._identity.server_id in (NO_SERVER, server_id), self._identity.server_id
        self._identity.server_id = server_id
        self._touch()

    def lose_all(
        self, directory_id: DirectoryId, boots: list[Boot], done: Callable[[], None]
    ) -> None:
        """Mark every log as lost, and give the directory a new id.

        Includes logs being created. `done` is called when this is durable.
        """
        self._identity.former_ids.append(self._identity.directory_id)
        self._identity.directory_id = directory_id
        self._identity.boots = boots
        for known in self._identity.logs.values():
            known.lost = True
        self._noted.append(done)
        self._touch()

    def take_id(self) -> LogId:
        """Return an id that no log of this directory ever had."""
        self._identity.next_log_id += 1
        return LogId(self._identity.next_log_id - 1)

    def add(self, known: LogIdentity, log: DiskLog, on_created: Callable[[Log], None]) -> None:
        self._identity.logs[known.log_id] = known
        self._created.append((log, on_created))
        self._touch()

    def remove(self, log_id: LogId) -> None:
        del self._identity.logs[log_id]
        self._removed.add(log_id)
        self._touch()

    def write_anew(self) -> None:
        """Write the file again, because it is damaged on disk."""
        self._touch()

    def _touch(self) -> None:
        """Schedule a write at the end of this turn."""
        self._is_dirty = True
        if not self._is_armed and not self.is_writing:
            self._arm(0)

    def _arm(self, delay_ms: int) -> None:
        self._is_armed = True
        self._workers.call_later(delay_ms, self._write)

    def _write(self) -> None:
        self._is_armed = False
        if self.is_closed or self.is_writing or not self._is_dirty:
            return
        self._is_dirty = False
        self.is_writing = True
        data = encode(self._identity)
        created, self._created = self._created, []
        noted, self._noted = self._noted, []
        removed = set(self._removed)
        fs, directory, reserve = self._fs, self._directory, self._reserve

        def done(result: BaseException | None) -> None:
            self.is_writing = False
            if self.is_closed:
                return
            self.is_full = isinstance(result, BaseException) and is_refused(result)
            if self.is_full:
                self._created = created + self._created
                self._noted = noted + self._noted
                self._is_dirty = True
                self._arm(DISK_FULL_RETRY_MS)
                self._owner.registry_written()
            elif isinstance(result, BaseException):
                self._owner.registry_failed(result)
            else:
                self._removed -= removed
                self._announce(created)
                for one in noted:
                    one()

        self._workers.essential(lambda: replace_identity(fs, directory, reserve, data), done)

    def _announce(self, created: list[tuple[DiskLog, Callable[[Log], None]]]) -> None:
        if self._is_dirty and not self._is_armed:
            self._write()
        for log, on_created in created:
            if (known := self._identity.logs.get(log.id)) is not None:
                log.is_lost = known.lost
                self._owner.log_created(log)
                on_created(log)
        self._owner.registry_written()
