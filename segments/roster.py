"""Which logs exist: the identity file, written in the background, once for all changes of a turn.

A log that was made exists when the file says so durably; one that was deleted is forgotten by the
next write. A full disk delays the former. The latter is what makes room: for it some is set aside.

Must not know: what logs hold.
"""

from __future__ import annotations

from collections.abc import Callable

from segments.api import Log, Workers
from segments.fs import DISK_FULL_RETRY_MS, FileSystem, is_disk_full
from segments.identity import Identity, LogIdentity, encode, write_identity
from segments.log import DiskLog
from segments.reserve import Reserve

RESERVE_PIECE_BYTES = 128 << 10


class Roster:
    """`born` is called on the loop with each log whose existence is durable, `written` after each
    write."""

    def __init__(
        self,
        fs: FileSystem,
        directory: str,
        workers: Workers,
        identity: Identity,
        *,
        born: Callable[[DiskLog], None],
        written: Callable[[], None],
        fail: Callable[[BaseException], None],
    ) -> None:
        self._fs = fs
        self._directory = directory
        self._workers = workers
        self._identity = identity
        self._reserve = Reserve(fs, f"{directory}/reserve", "identity", RESERVE_PIECE_BYTES)
        self._born = born
        self._written = written
        self._fail = fail
        self._newborn: list[tuple[DiskLog, Callable[[Log], None]]] = []
        self._is_armed = False
        self._is_dirty = False
        self._removed: set[int] = set()
        """Logs that the file still lists."""
        self.is_writing = False
        self.is_full = False
        self.is_closed = False

    @property
    def directory_id(self) -> bytes:
        return self._identity.directory_id

    @property
    def cluster_record(self) -> bytes:
        return self._identity.cluster_record

    @property
    def is_settled(self) -> bool:
        """The file says what is known here."""
        return not (self._is_dirty or self.is_writing)

    @property
    def lists_removed(self) -> bool:
        """The file lists a log that was removed."""
        return bool(self._removed)

    def adopt_cluster(self, record: bytes) -> None:
        """Write the cluster record durably. Blocks."""
        self._identity.cluster_record = record
        write_identity(self._fs, self._directory, encode(self._identity))

    def take_id(self) -> int:
        """An id no log of this directory ever had."""
        self._identity.next_log_id += 1
        return self._identity.next_log_id - 1

    def add(self, known: LogIdentity, log: DiskLog, on_created: Callable[[Log], None]) -> None:
        self._identity.logs[known.log_id] = known
        self._newborn.append((log, on_created))
        self._touch()

    def remove(self, log_id: int) -> None:
        del self._identity.logs[log_id]
        self._removed.add(log_id)
        self._touch()

    def _touch(self) -> None:
        """Write at the end of this turn."""
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
        newborn, self._newborn = self._newborn, []
        removed = set(self._removed)
        fs, directory = self._fs, self._directory

        def job() -> None:
            while True:
                try:
                    write_identity(fs, directory, data)
                    break
                except OSError as error:
                    if not is_disk_full(error) or not self._reserve.free(1):
                        raise
            try:
                self._reserve.fill()
            except OSError as error:
                if not is_disk_full(error):
                    raise

        def done(result: BaseException | None) -> None:
            self.is_writing = False
            self.is_full = isinstance(result, BaseException) and is_disk_full(result)
            if self.is_full:
                self._newborn = newborn + self._newborn
                self._is_dirty = True
                self._arm(DISK_FULL_RETRY_MS)
                self._written()
            elif isinstance(result, BaseException):
                self._fail(result)
            else:
                self._removed -= removed
                self._announce(newborn)

        self._workers.pool(job, done)

    def _announce(self, newborn: list[tuple[DiskLog, Callable[[Log], None]]]) -> None:
        if self._is_dirty and not self._is_armed:
            self._write()
        for log, on_created in newborn:
            if log.id in self._identity.logs:
                self._born(log)
                on_created(log)
        self._written()
