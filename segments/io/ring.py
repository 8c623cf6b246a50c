"""Durable writes by the kernel (io_uring), without a thread of this process.

A thread that writes costs the loop two changes of threads for each block, each with a wait for the
interpreter's lock, and two system calls to be woken. The kernel has threads of its own: one system
call begins the write, and the loop polls for its end together with its sockets.

The ring is there if `segments/io/_ring.c` could be built, and the kernel offers it: many sandboxes
forbid it. Once it refuses a write, it is not used again.

Does not depend on what is written.
"""

from __future__ import annotations

import errno
import select
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from segments.api import Buffer
from segments.io.fs import failed_sync

if TYPE_CHECKING:
    from segments.io._ring import Ring

_NOT_BEGUN = frozenset((errno.EAGAIN, errno.EINTR, errno.ECANCELED))
"""Errors after which all of the write is done again, by other means.

The kernel gives them where it did not begin, or was interrupted. To do it again is safe after any
part of it: the whole block is written and synced by another call, whose own result counts. No other
error may be here. It could be that of a sync, which the system reports once; see `SyncFailed`.
"""


class WriteRing:
    """Durable writes, one at a time. Used on one thread."""

    def __init__(self, ring: Ring) -> None:
        self._ring = ring
        self.on_refused: Callable[[OSError], None] | None = None
        """Called once, with the error after which the ring is not used again."""
        self._ended: Callable[[int | BaseException | None], None] | None = None
        """Called with the result of the write in progress; None: there is none."""
        self._size = 0
        self._is_refused = False

    def begin(
        self,
        fd: int,
        buffers: Sequence[Buffer],
        position: int,
        ended: Callable[[int | BaseException | None], None],
    ) -> bool:
        """Begin to write the buffers at `position`. Return False if that is not possible.

        No write may be in progress: it could end after this one. The file stays open under its
        number until the write has ended: the kernel may look it up late.

        `ended(bytes)` follows when they are durable, `ended(SyncFailed)` if the write or its sync
        failed, and `ended(None)` if all of it is to be written again by other means.
        """
        assert self._ended is None, "a write is in progress"
        if self._is_refused:
            return False
        try:
            self._ring.write(fd, buffers, position)
        except OSError as error:
            self._refused(error)
            return False
        self._ended = ended
        self._size = sum(map(len, buffers))
        return True

    def fileno(self) -> int:
        """Return the file that is readable when a write has ended: call `look` then."""
        return self._ring.fileno()

    def look(self) -> None:
        """Report a write that has ended."""
        result, ended = self._ring.ended(), self._ended
        if result is None or ended is None:
            return
        self._ended = None
        if result == -errno.ECANCELED:
            # It could start no thread of its own, after 45 ms; each further one would take as long.
            self._refused(OSError(errno.ECANCELED, "the kernel could start no thread"))
        if result == self._size:
            ended(result)
        elif result >= 0 or -result in _NOT_BEGUN:
            ended(None)
        else:
            ended(failed_sync(-result))

    def _refused(self, error: OSError) -> None:
        self._is_refused = True
        if self.on_refused is not None:
            self.on_refused(error)

    def wait(self) -> None:
        """Wait until no write is in progress. Blocks; reports nothing."""
        if self._ended is not None:
            poll = select.poll()
            poll.register(self._ring.fileno(), select.POLLIN)
            poll.poll()


def open_ring() -> WriteRing | None:
    """Return a ring, None where there is none."""
    try:
        from segments.io._ring import Ring
    except ImportError:
        return None
    try:
        return WriteRing(Ring())
    except OSError:
        return None
