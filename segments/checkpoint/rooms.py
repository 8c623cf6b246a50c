"""Rooms for payloads: which logs have preallocated space, and giving it back to the disk.

Flushes make room after a log's last frame (`flusher.py`). A log keeps it as long as it receives
large appends. It loses it after a whole round of checkpoints without any (after a large entry: some
rounds later), or when `ROOMS_MAX` other logs have received room since; all logs lose it when the
disk has little space left. The space stays allocated until a checkpoint's thread has cut the file
after the last placed entry and removed the next file, in which nothing was placed. Until then the
log has no room, so nothing new is placed there.

Logs whose files may be longer than necessary are recorded as surplus. After a start these are all
logs: the previous run may have left room, or a truncation that was not durable.

Does not depend on when a checkpoint begins or how room is made.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import dataclass

from ids import LogId
from segments.api import SegmentLimits
from segments.io import failpoint
from segments.io.fs import File, is_unreadable
from segments.log.log import DiskLog
from segments.log.placement import NO_ROOMS
from segments.log.segment import LogFiles

ROOM_BYTES_MIN = 1 << 20
ROOM_TIMES = 2
"""Size of a room, as a multiple of the bytes written by the flush that makes it."""
ROOMS_MAX = 64
"""Maximum number of logs with room, two open files each: those that received it last."""
SPACE_TIMES = 4
"""Room is made only if the disk's free space, less that kept for others, is this many times as
large."""
LOOKS_MAX = 64
"""Maximum number of logs that one job checks for surplus."""
_PAGE_BYTES = 4096


@dataclass(slots=True)
class Surplus:
    """Possible surplus of a log's files after `position`, the end of its placed entries."""

    log_id: LogId
    files: LogFiles
    segment: int
    position: int


class Rooms:
    """The rooms of all logs; the part that runs on the loop."""

    def __init__(self, logs: Iterable[DiskLog]) -> None:
        """Begin without rooms. `logs` are those for which an earlier run may have left room."""
        self._held: dict[LogId, DiskLog] = {}
        """Logs that have room or are to get it, least recently served first."""
        self._wishes: dict[LogId, int] = {}
        """`Placement.wishes` of these logs at the end of the last round."""
        self._surplus = {log.id: log for log in logs if log.segments and not log.is_lost}
        """Invariant: has every log whose files may be longer than its placed entries because of
        room that was given up."""

    @property
    def is_empty(self) -> bool:
        """True if no log has room and none is to be given back."""
        return not self._held and not self._surplus

    @property
    def has_surplus(self) -> bool:
        return bool(self._surplus)

    def any_files(self) -> LogFiles | None:
        """Return the files of some log that has room."""
        return next((log.files for log in self._held.values()), None)

    def has(self, log_id: LogId) -> bool:
        """Return True if the log has room or is to get it."""
        return log_id in self._held

    def bytes_for(self, log: DiskLog, flushed: int, limits: SegmentLimits, *, is_full: bool) -> int:
        """Return the bytes of room to make after a flush of `flushed` bytes.

        A log that wanted none since the last flush gives up its room, unless large entries of it
        may follow.
        """
        placement = log.placement
        wanted = min(placement.bytes_wanted, 2 * limits.bytes)  # two segments have room
        is_wanted = placement.is_wanted or placement.rounds_kept > 0 or wanted > 0
        placement.is_wanted, placement.bytes_wanted = False, 0
        was_held = self._held.pop(log.id, None)
        if not is_wanted or is_full:
            if was_held is not None:
                self._give_up(log)
            return 0
        self._surplus.pop(log.id, None)  # reused as room
        self._held[log.id] = log
        while len(self._held) > ROOMS_MAX:
            self._give_up(self._held.pop(next(iter(self._held))))
        return max(min(max(ROOM_TIMES * flushed, ROOM_BYTES_MIN), limits.bytes), wanted)

    def _give_up(self, log: DiskLog) -> None:
        """Place nothing new in the log's room, and mark its space for giving back."""
        self._wishes.pop(log.id, None)
        log.placement.rounds_kept = 0
        log.placement.rooms = NO_ROOMS
        self._surplus[log.id] = log

    def give_up_unused(self) -> None:
        """End a round: logs without a large append during all of it give up their room.

        After a large entry they keep it for some rounds: without room, one holds up all logs.
        """
        for log in list(self._held.values()):
            if self._wishes.get(log.id) != log.placement.wishes:
                continue
            if log.placement.rounds_kept:
                log.placement.rounds_kept -= 1
            else:
                self._give_up(self._held.pop(log.id))
        self._wishes = {log.id: log.placement.wishes for log in self._held.values()}

    def give_up_all(self) -> None:
        """Give up all rooms, because the space is needed elsewhere."""
        held, self._held = self._held, {}
        for log in held.values():
            self._give_up(log)

    def note_cut(self, log: DiskLog) -> None:
        """Note that placed entries were truncated: the space they occupied is surplus."""
        if log.id not in self._held:
            self._surplus[log.id] = log

    def forget(self, log_id: LogId) -> None:
        """Forget a deleted log."""
        self._held.pop(log_id, None)
        self._wishes.pop(log_id, None)
        self._surplus.pop(log_id, None)

    def take(self, log: DiskLog) -> bool:
        """Return True if a flush of this log about to begin should give its surplus back."""
        is_due = log.id in self._surplus and log.placement.is_settled
        if is_due:
            del self._surplus[log.id]
        return is_due

    def take_due(self, planned: Container[LogId]) -> list[Surplus]:
        """Return the surplus to give back of logs that are not flushed.

        A log with a payload in progress, or a truncation that is not durable, waits.
        """
        due: list[Surplus] = []
        for log in list(self._surplus.values()):
            if len(due) == LOOKS_MAX:
                break
            placement = log.placement
            if log.id in planned or not placement.is_settled:
                continue
            del self._surplus[log.id]
            if placement.segment and not log.is_lost:  # after a reset there are only old files
                where = placement.segment, placement.position
                due.append(Surplus(log.id, log.files, *where))
        return due

    def put_back(self, log: DiskLog) -> None:
        """Record the surplus of a log again, because it could not be given back now."""
        if log.id not in self._held:
            self._surplus[log.id] = log


def give_back(files: LogFiles, segment: int, position: int) -> None:
    """Cut a log's files after the page in which `segment` ends at `position`.

    Blocks. Raises OSError; a full disk may refuse it.

    The removal of following files is durable. The cut need not be: a crash brings the allocation
    back, and the next start checks every log. The last page keeps its other bytes, so no data that
    counts is written again.
    """
    fs = files.fs
    following: list[str] = []  # several if payloads had begun them and were truncated
    while fs.exists(path := files.segment_path(segment + 1 + len(following))):
        following.append(path)
    for path in reversed(following):
        if not fs.is_directory(path):
            fs.unlink(path)
            failpoint.hit("room.removed")
    if following:
        fs.sync_directory(files.directory)
    file = fs.open(files.segment_path(segment))
    try:
        if cut_behind(file, position):
            failpoint.hit("room.cut")
    finally:
        file.close()


def cut_behind(file: File, position: int) -> bool:
    """Cut the file after the page that contains the end `position`, if blocks are allocated there.

    Return False if none are, or if the medium is too damaged; they then stay until the segment is
    sealed.
    """
    end = position - position % -_PAGE_BYTES
    if file.size() <= end or file.allocated() <= end:
        return False
    try:
        file.truncate(end)
    except OSError as error:
        if not is_unreadable(error):
            raise
        return False
    return True
