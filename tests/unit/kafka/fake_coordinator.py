"""Coordinator state group without Raft: commands commit and apply at once."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from tests.unit.kafka.fake_host import WALL_MS
from vdl.errors import ErrorCode
from vdl.state import commands
from vdl.state.coordinator import Coordinator


class FakeCoordinator:
    """Coordinator whose `index` and `term` are what a log would give."""

    is_running = is_leader = serving = True
    term = 7
    leader_server = 1

    def __init__(self) -> None:
        self.machine = Coordinator()
        self.observers: list[Any] = []
        self.group = SimpleNamespace(applied=3)

    def apply(self, command: Any, now_ms: int = WALL_MS) -> Any:
        index = self.group.applied + 1
        result = self.machine.apply(command, now_ms, index)
        for observer in self.observers:
            observer.on_applied(self, result, now_ms, index)
        self.group.applied = index
        return result

    def commit(self, group: str, offset: int, *partitions: int, now_ms: int = WALL_MS) -> None:
        offsets = [commands.OffsetCommit("t", bytes(16), p, offset, 4, "m") for p in partitions]
        answer = self.apply(commands.CommitOffsets(group, -1, "", None, offsets), now_ms)
        assert answer.error is ErrorCode.NONE

    def read_index(self, *, deadline_ns: int, done: Callable[[bool], None]) -> None:
        done(True)

    def led_again(self) -> None:
        """Lose leadership for one term and regain it. The terms' first entries do nothing."""
        for observer in self.observers:
            observer.on_stopped_serving(self)
        self.group.applied += 2
        self.term += 2
        for observer in self.observers:
            observer.on_serving(self)
