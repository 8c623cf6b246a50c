"""A replica that appears damaged."""

from __future__ import annotations

from typing import Any

import pytest

from segments.memory import MemoryLog
from vdl.logstream.group.group import Group
from vdl.logstream.peers.entry_repair import EntryRepair


class Damage:
    """Makes one replica appear damaged, without repair."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.log: Any = None
        self.replica = 0, 0
        self.damaged: tuple[tuple[int, int], ...] = ()
        self.is_whole = True
        whole, damaged = Group.is_whole, MemoryLog.damaged

        def is_whole(group: Group) -> Any:
            is_it = (group.group_id, group.replica_id) == self.replica
            return self.is_whole if is_it else whole.__get__(group)

        def log_damaged(log: MemoryLog) -> Any:
            return self.damaged if log is self.log else damaged.__get__(log)

        monkeypatch.setattr(Group, "is_whole", property(is_whole))
        monkeypatch.setattr(MemoryLog, "damaged", property(log_damaged))
        monkeypatch.setattr(EntryRepair, "_request", lambda *_: None)
