"""Files of the audit log: lines go to a thread, which appends them and rotates by size.

    audit.log, audit.log.1 (the one before), ... audit.log.N (the oldest)

The loop never waits for the disk: lines are queued until the thread has written them. A line about
an act is never lost while the server runs: it is kept until the disk accepts it. While `is_full`,
no act should begin, so that such lines take little more than `QUEUE_BYTES`, plus `SUPER_BYTES` for
super users. No principal holds more of `QUEUE_BYTES` than it leaves free (`vdl/kafka/shares.py`).
Other lines may use half of `QUEUE_BYTES`. Beyond it, and if the disk refuses them, they are lost;
their number is in the next line that is written, and in the server's own log. If a full disk
accepted part of a line, that part is truncated, so that the next write begins a line. The files are
readable by their owner alone.

Does not depend on the contents of lines.
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
"""Part of it that is reserved for acts: refused requests of others do not delay them."""
SUPER_BYTES = QUEUE_BYTES // 2
"""Bytes beyond it for acts of super users, who may have to free the disk when others have filled
the rest."""
RETRY_SECONDS = 1.0
"""Delay before a disk that refused lines is tried again."""


class AuditFile:
    """Audit log file and its thread: see the module. Call `write` and `close` from the loop."""

    def __init__(
        self,
        path: Path,
        *,
        bytes_max: int,
        files_max: int,
        on_loss: Callable[[str], None],
    ) -> None:
        """`files_max`: older files that are kept beside the present one. `on_loss`: called in the
        thread with the reason why lines were lost. Raises OSError if the file cannot be opened."""
        self._path = path
        self._bytes_max = bytes_max
        self._older_max = files_max
        self._on_loss = on_loss
        self._lines: deque[tuple[bytes, str | None]] = deque()
        """Each line with the client whose act it reports, or None."""
        self._queued = 0
        self._acts = Shares(QUEUE_BYTES)
        """Bytes of act lines that are not written yet, including those being written."""
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
        """Queue a line. `act_of`: the client whose act it reports, if that changes something."""
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
        """Return True if acts of this client should wait until lines were written. `is_super`: it
        is a super user."""
        with self._changed:
            if is_super:
                return self._queued >= QUEUE_BYTES + SUPER_BYTES
            return self._queued >= QUEUE_BYTES or self._acts.has_share(who)

    def close(self, timeout_seconds: float = 1.0) -> None:
        """Write the remaining lines, as far as the disk accepts them in time."""
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
                # A failure to report it is no reason to stop either.
                with suppress(Exception):
                    cause = getattr(error, "strerror", None) or error
                    self._on_loss(f"{type(error).__name__}: {cause}")
                self._refused(lines, lost)
                if is_last:
                    break
        os.close(self._file)

    def _written(self, lines: list[tuple[bytes, str | None]]) -> None:
        """Uncount lines that were written."""
        with self._changed:
            for line, act_of in lines:
                if act_of is not None:
                    self._acts.change(act_of, -len(line))

    def _refused(self, lines: list[tuple[bytes, str | None]], lost: int) -> None:
        """Keep the act lines that the disk refused, and wait a while."""
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
        """Rotate the files. Raises OSError; then no name has changed, unless the disk refused to
        rename existing files. The next lines retry it: a file does not exceed its size."""
        fresh = self._path.with_name(f"{self._path.name}.new")
        fresh.unlink(missing_ok=True)
        # Created before anything is renamed: if there is no room for it, older files would be lost
        # one after the other, for nothing.
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
