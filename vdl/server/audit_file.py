"""The audit log's files: lines go to a thread, which appends them and rotates by size.

    audit.log, audit.log.1 (the one before), ... audit.log.N (the oldest)

The loop never waits for the disk: lines that the thread has not written are kept. A line that tells
of an act is never lost while the server runs: it is kept until the disk takes it, and while
`is_full` no act should begin, so that they take little more than `QUEUE_BYTES`, and those of super
users `SUPER_BYTES` more. Of the first nobody has more than it leaves to others
(`vdl/kafka/shares.py`). Other lines have half of the first. Beyond it, and when the disk refuses,
they are lost; how many, the next line that is written says, and the server's own log. What a full
disk took of a line is taken back, so that the next one begins a line. The files are readable by
their owner alone.

Must not know: what the lines say.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from vdl.kafka.shares import Shares

QUEUE_BYTES = 8 << 20
ACTS_BYTES = QUEUE_BYTES // 2
"""Of that, for acts alone: refusals of others do not make them wait."""
SUPER_BYTES = QUEUE_BYTES // 2
"""Beyond that, for acts of super users, who may have to free the disk: others fill the rest."""
RETRY_SECONDS = 1.0
"""After which a disk that refused lines is tried again."""


class AuditFile:
    """See the module. `write` and `close` belong to the loop."""

    def __init__(
        self,
        path: Path,
        *,
        bytes_max: int,
        files_max: int,
        on_loss: Callable[[str], None],
    ) -> None:
        """`files_max`: older ones that are kept beside the present one. `on_loss` is told, in the
        thread, why lines were lost. Raises OSError if the file cannot be opened."""
        self._path = path
        self._bytes_max = bytes_max
        self._older_max = files_max
        self._on_loss = on_loss
        self._lines: deque[tuple[bytes, str | None]] = deque()
        """Each with whose act it is of, if it is of one."""
        self._queued = 0
        self._acts = Shares(QUEUE_BYTES)
        """Bytes of lines of acts that are not written, those that are being written included."""
        self._lost = 0
        """Lines that were lost and not reported yet."""
        self._closing = False
        self._changed = threading.Condition()
        self._file = self._open(path)
        self._size = os.fstat(self._file).st_size
        self._thread = threading.Thread(target=self._run, name="audit", daemon=True)
        self._thread.start()

    def _open(self, path: Path) -> int:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        return os.open(path, flags, 0o600)

    def write(self, line: bytes, *, act_of: str | None = None) -> None:
        """Have a line written. `act_of`: who did what it tells of, if that changes something."""
        with self._changed:
            if act_of is None and self._queued + len(line) > QUEUE_BYTES - ACTS_BYTES:
                self._lost += 1
                return
            self._lines.append((line, act_of))
            self._queued += len(line)
            if act_of is not None:
                self._acts.change(act_of, len(line))
            self._changed.notify()

    def is_full(self, who: str, *, is_super: bool = False) -> bool:
        """Return whether acts of somebody should wait until lines were written. `is_super`: it is
        a super user."""
        with self._changed:
            if is_super:
                return self._queued >= QUEUE_BYTES + SUPER_BYTES
            return self._queued >= QUEUE_BYTES or self._acts.has_share(who)

    def close(self, timeout_seconds: float = 1.0) -> None:
        """Write what is left, as far as the disk takes it in time."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join(timeout_seconds)

    # --- the thread ----------------------------------------------------------------------------
    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._lines and not self._closing:
                    self._changed.wait()
                if not self._lines and not self._lost:
                    break
                is_last = self._closing
                lines = [*self._lines]
                lost, self._lost = self._lost, 0
                self._lines.clear()
                self._queued = 0
            try:
                data = b"".join(line for line, _ in lines)
                if lost:
                    data = b'{"event": "lost", "count": %d}\n' % lost + data
                self._append(data)
                self._written(lines)
            except Exception as error:  # noqa: BLE001 - acts wait for this thread, whatever failed
                # What cannot be told is no reason to stop either.
                with suppress(Exception):
                    cause = getattr(error, "strerror", None) or error
                    self._on_loss(f"{type(error).__name__}: {cause}")
                self._refused(lines, lost)
                if is_last:
                    break
        os.close(self._file)

    def _written(self, lines: list[tuple[bytes, str | None]]) -> None:
        """They count no longer."""
        with self._changed:
            for line, act_of in lines:
                if act_of is not None:
                    self._acts.change(act_of, -len(line))

    def _refused(self, lines: list[tuple[bytes, str | None]], lost: int) -> None:
        """Keep the acts of lines that the disk did not take, and wait a while."""
        acts = [line for line in lines if line[1] is not None]
        with self._changed:
            self._lost += lost + len(lines) - len(acts)
            self._lines.extendleft(reversed(acts))
            self._queued += sum(len(line) for line, _ in acts)
            if acts:
                self._changed.wait_for(lambda: self._closing, RETRY_SECONDS)

    def _append(self, data: bytes) -> None:
        if self._size and self._size + len(data) > self._bytes_max:
            self._rotate()
        rest = memoryview(data)
        try:
            while rest:
                rest = rest[os.write(self._file, rest) :]
        except Exception:
            if len(rest) < len(data):
                os.ftruncate(self._file, self._size)
            raise
        self._size += len(data)

    def _rotate(self) -> None:
        """Raises OSError; no name has changed then, unless the disk refuses names that are there.
        It is tried again with the next lines: a file does not grow beyond its size."""
        fresh = self._path.with_name(f"{self._path.name}.new")
        fresh.unlink(missing_ok=True)
        # Made before anything is moved: where there is no room for it, older files would go one
        # after the other, for nothing.
        file = self._open(fresh)
        try:
            names = [self._path, *(self._numbered(n + 1) for n in range(self._older_max))]
            for older, newer in zip(reversed(names[1:]), reversed(names[:-1]), strict=True):
                if newer.exists():
                    newer.replace(older)
            fresh.replace(self._path)
        except OSError:
            os.close(file)
            raise
        os.close(self._file)
        self._file = file
        self._size = 0

    def _numbered(self, number: int) -> Path:
        return self._path.with_name(f"{self._path.name}.{number}")
