"""Interface of a log stream to its parts: one replica of a partition."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from ids import Offset
from raft.types import Entry
from vdl.logstream.group.appends import Append
from vdl.logstream.group.group import Group


class Stream(Protocol):
    """A log stream as its parts use it: they share its group and its high watermark."""

    group: Group
    high_watermark: Offset
    """Offset after the last committed entry. Invariant: see `LogStream.high_watermark`."""

    @property
    def serving(self) -> bool: ...
    @property
    def log_start_offset(self) -> Offset: ...
    def read_index(self, *, deadline_ns: int, done: Callable[[bool], None]) -> None: ...
    def when_serving(self, *, deadline_ns: int, done: Callable[[bool], None]) -> None: ...
    def append_verified(self, verified: Sequence[Append]) -> None:
        """See `Appending.append_verified`."""

    def propose(self, entry: Entry) -> bool:
        """Append a command. Return False if it is refused."""
