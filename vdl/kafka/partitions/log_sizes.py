"""How much the replicas of this server take on its disk, looked up for all who ask.

To know it may take a read of the disk for each replica. So there is one walk over all of them at a
time, with a few look-ups under way; who asks meanwhile is answered by the next. What many clients
ask for costs no more than what one does.

Must not know: requests, topics.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from ids import GroupId
from segments.api import Compacted, StorageError
from vdl.state.catalog import Catalog

UNDER_WAY_MAX = 4
"""Look-ups of one walk at a time: others read from the disk, too."""


class Replica(Protocol):
    """A partition's replica on this server."""

    def stored_bytes(self, done: Callable[[int | StorageError], None]) -> None: ...


class Holder(Protocol):
    """This server."""

    @property
    def catalog(self) -> Catalog: ...
    def stream(self, group_id: GroupId) -> Replica | None: ...
    def disk_space(self, done: Callable[[tuple[int, int] | StorageError], None]) -> None: ...


@dataclass(slots=True)
class Sizes:
    """What a walk found."""

    total_bytes: int = -1
    """Of the file system; -1: unknown."""
    usable_bytes: int = -1
    """What it still takes; -1: unknown."""
    by_group: dict[GroupId, int] = field(default_factory=dict)
    """Bytes of each replica here. One that was deleted meanwhile is not in it."""
    error: StorageError | None = None
    """Not None: something could not be read, and the rest was not looked at."""


class LogSizes:
    """See the module."""

    def __init__(self, host: Holder) -> None:
        self._host = host
        self._waiting: list[Callable[[Sizes], None]] = []
        """Who is answered by the next walk."""
        self._told: list[Callable[[Sizes], None]] = []
        """Who is answered by this one. Invariant: not empty while there is a walk."""
        self._found = Sizes()
        self._left: list[GroupId] = []
        """Groups to be looked at, the last one first."""
        self._under_way = 0
        self._is_starting = False
        """Whether look-ups are being started: one that ends at once starts none itself."""

    def look_up(self, done: Callable[[Sizes], None]) -> None:
        """`done`, later, with what a walk found that began after this call."""
        self._waiting.append(done)
        if not self._told:
            self._begin()

    def _begin(self) -> None:
        self._told, self._waiting = self._waiting, []
        self._found = found = Sizes()
        self._left = sorted(self._host.catalog.groups, reverse=True)
        self._under_way = 1

        def measured(space: tuple[int, int] | StorageError) -> None:
            if isinstance(space, StorageError):
                found.error = space
            else:
                found.total_bytes, found.usable_bytes = space
            self._ended()

        self._host.disk_space(measured)

    def _ended(self) -> None:
        """A look-up has ended."""
        self._under_way -= 1
        if not self._is_starting:
            self._go_on()

    def _go_on(self) -> None:
        self._is_starting = True
        while self._left and self._under_way < UNDER_WAY_MAX and self._found.error is None:
            self._measure(self._left.pop())
        self._is_starting = False
        if self._under_way:
            return
        told, self._told = self._told, []
        found = self._found
        if self._waiting:
            self._begin()
        for done in told:
            done(found)

    def _measure(self, group_id: GroupId) -> None:
        stream = self._host.stream(group_id)
        if stream is None:
            return
        found = self._found
        self._under_way += 1

        def measured(size: int | StorageError) -> None:
            if isinstance(size, int):
                found.by_group[group_id] = size
            elif not isinstance(size, Compacted) and self._host.stream(group_id) is stream:
                found.error = size
            self._ended()

        stream.stored_bytes(measured)
