"""Room for payloads: which logs have some, and what of it is given back to the disk.

Flushes make room behind a log's last frame (`flusher.py`). A log keeps it as long as large appends
come. One to which none came during a whole round of checkpoints gives it up. So does one whose turn
others need, and every log where the disk has little space left. What is given up stays allocated
until a checkpoint's thread has cut the file behind all that has a place, and removed the next file,
that nothing was placed in. A log has no room meanwhile, so nothing new is placed there.

What may be longer than it has to be is remembered as surplus. After a start that is every log: the
life before may have left room, or a cut that was not durable.

Must not know: when a checkpoint begins, how room is made.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import dataclass

from ids import LogId
from segments.api import SegmentLimits
from segments.io import failpoint
from segments.io.fs import File, is_unreadable
from segments.log.log import DiskLog
from segments.log.segment import LogFiles

ROOM_BYTES_MIN = 1 << 20
ROOM_TIMES = 2
"""Room for payloads is made for so many times what a flush has moved on by."""
ROOMS_MAX = 64
"""So many logs have room, two open files each: those that were given it last."""
SPACE_TIMES = 4
"""Room is made where the disk has so many times as much free, beside what others need."""
LOOKS_MAX = 64
"""Of so many logs one job looks whether they have surplus."""
_PAGE_BYTES = 4096


@dataclass(slots=True)
class Surplus:
    """What a log's files may have behind all that has a place, which ends at `position`."""

    log_id: LogId
    files: LogFiles
    segment: int
    position: int


class Rooms:
    """See the module; the part on the loop."""

    def __init__(self, logs: Iterable[DiskLog]) -> None:
        """`logs` are those of which a life before this one may have left room."""
        self._held: dict[LogId, DiskLog] = {}
        """Logs that have room, or are to get it; those served last come last."""
        self._wishes: dict[LogId, int] = {}
        """Of those, at the end of the last round."""
        self._surplus = {log.id: log for log in logs if log.segments and not log.is_lost}
        """Invariant: has every log whose files may be longer than what has a place in them because
        of room that was given up."""

    @property
    def is_empty(self) -> bool:
        """Nobody has room, and there is none to be given back."""
        return not self._held and not self._surplus

    @property
    def has_surplus(self) -> bool:
        return bool(self._surplus)

    def any_files(self) -> LogFiles | None:
        """Of a log that has room."""
        return next((log.files for log in self._held.values()), None)

    def has(self, log_id: LogId) -> bool:
        """Whether the log has room, or is to get it."""
        return log_id in self._held

    def bytes_for(self, log: DiskLog, flushed: int, limits: SegmentLimits, *, is_full: bool) -> int:
        """For how much of this log's payloads there is to be room behind a flush of so many bytes.
        A log for which none came since the last flush gives up what it has."""
        placement = log.placement
        is_wanted, placement.is_wanted = placement.is_wanted, False
        was_held = self._held.pop(log.id, None)
        if not is_wanted or is_full:
            if was_held is not None:
                self._give_up(log)
            return 0
        self._surplus.pop(log.id, None)  # it becomes room
        self._held[log.id] = log
        while len(self._held) > ROOMS_MAX:
            self._give_up(self._held.pop(next(iter(self._held))))
        return min(max(ROOM_TIMES * flushed, ROOM_BYTES_MIN), limits.bytes)

    def _give_up(self, log: DiskLog) -> None:
        """Nothing new is placed there, and what is allocated goes back."""
        self._wishes.pop(log.id, None)
        log.placement.rooms.clear()
        self._surplus[log.id] = log

    def give_up_unused(self) -> None:
        """A round has ended: those give up their room to which nothing large came during all of
        it."""
        for log in list(self._held.values()):
            if self._wishes.get(log.id) == log.placement.wishes:
                self._give_up(self._held.pop(log.id))
        self._wishes = {log.id: log.placement.wishes for log in self._held.values()}

    def give_up_all(self) -> None:
        """Others need the space."""
        held, self._held = self._held, {}
        for log in held.values():
            self._give_up(log)

    def note_cut(self, log: DiskLog) -> None:
        """Entries that had a place were cut off: what they took is surplus."""
        if log.id not in self._held:
            self._surplus[log.id] = log

    def forget(self, log_id: LogId) -> None:
        """The log is deleted."""
        self._held.pop(log_id, None)
        self._wishes.pop(log_id, None)
        self._surplus.pop(log_id, None)

    def take(self, log: DiskLog) -> bool:
        """Whether a flush of this log that is about to begin gives its surplus back."""
        is_due = log.id in self._surplus and log.placement.is_settled
        if is_due:
            del self._surplus[log.id]
        return is_due

    def take_due(self, planned: Container[LogId]) -> list[Surplus]:
        """What is given back of logs that are not flushed. One with a payload under way, or a cut
        that is not durable, waits."""
        due: list[Surplus] = []
        for log in list(self._surplus.values()):
            if len(due) == LOOKS_MAX:
                break
            placement = log.placement
            if log.id in planned or not placement.is_settled:
                continue
            del self._surplus[log.id]
            if placement.segment and not log.is_lost:  # no files after a reset, but old ones
                where = placement.segment, placement.position
                due.append(Surplus(log.id, log.files, *where))
        return due

    def put_back(self, log: DiskLog) -> None:
        """It could not be given back now."""
        if log.id not in self._held:
            self._surplus[log.id] = log


def give_back(files: LogFiles, segment: int, position: int) -> None:
    """Have a log's files end with the page in which `segment` ends at `position`. Blocks. Raises
    OSError; a full disk may refuse it.

    Names of files behind it are gone durably. The cut need not be durable: a crash brings back what
    was allocated, and the next start looks at every log. The page keeps its other bytes, so nothing
    that counts is written again."""
    fs = files.fs
    following: list[str] = []  # several where payloads had begun them and were cut off
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
    """Cut the file behind the page that holds what ends at `position`, if it has blocks there.
    False: it has none, or the medium is too bad; then they stay until the segment is sealed."""
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
