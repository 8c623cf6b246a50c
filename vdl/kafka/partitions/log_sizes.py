"""Disk space used by the replicas of this server, measured once for all concurrent requests.

A measurement may take a disk read for each replica. So one walk runs at a time, over the replicas
that its requests want, with a few look-ups in flight; requests that arrive meanwhile are answered
by the next walk. Many clients cost no more than one.

Does not depend on requests or topics.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Protocol

from ids import GroupId
from segments.api import Compacted, StorageError
from vdl.state.catalog import Catalog

UNDER_WAY_MAX = 4
"""Look-ups of one walk in flight: other work reads from the disk, too."""


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
    """Result of a walk."""

    total_bytes: int = -1
    """Size of the file system; -1: unknown."""
    usable_bytes: int = -1
    """Bytes that can still be written; -1: unknown."""
    by_group: dict[GroupId, int] = field(default_factory=dict)
    """Bytes of each replica of the walk. One that was deleted meanwhile is missing."""
    error: StorageError | None = None
    """Read error that ended the walk early; None if there was none."""


class LogSizes:
    """Shared walks over the replicas: see the module."""

    def __init__(self, host: Holder) -> None:
        self._host = host
        self._waiting: list[Callable[[Sizes], None]] = []
        """Callbacks that the next walk answers."""
        self._wanted: set[GroupId] = set()
        """Groups of the next walk."""
        self._told: list[Callable[[Sizes], None]] = []
        """Callbacks that the present walk answers. Invariant: not empty while a walk runs."""
        self._found = Sizes()
        self._left: list[GroupId] = []
        """Groups not looked at yet, the next one last."""
        self._under_way = 0
        self._is_starting = False
        """True while look-ups are being started: one that ends at once must not start others
        itself."""

    def look_up(self, groups: Iterable[GroupId], done: Callable[[Sizes], None]) -> None:
        """Call `done`, later, with the result of a walk that began after this call. It has these
        groups and maybe others; those without a replica here are left out."""
        self._waiting.append(done)
        self._wanted.update(groups)
        if not self._told:
            self._begin()

    def _begin(self) -> None:
        self._told, self._waiting = self._waiting, []
        self._found = found = Sizes()
        self._left = sorted(self._wanted, reverse=True)
        self._wanted = set()
        self._under_way = 1

        def measured(space: tuple[int, int] | StorageError) -> None:
            if isinstance(space, StorageError):
                found.error = space
            else:
                found.total_bytes, found.usable_bytes = space
            self._ended()

        self._host.disk_space(measured)

    def _ended(self) -> None:
        """Note that a look-up has ended."""
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
