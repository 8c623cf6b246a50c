"""A front without clients, whose answers a test chooses."""

from __future__ import annotations

from collections.abc import Callable

from vdl.logstream.front import NoFront
from vdl.logstream.group.compaction import CompactionPolicy
from vdl.logstream.group.log_stream import LogStream
from vdl.logstream.group.retention import KEEP, RetentionPolicy


class ChosenFront(NoFront):
    """See the module."""

    def __init__(self) -> None:
        self.retention: RetentionPolicy = KEEP
        self.compaction: CompactionPolicy | None = None
        self.wait_ns = 0
        self.asked = 0
        """How often it was asked how a log is to be compacted."""
        self.on_given_up: Callable[[], None] = lambda: None

    def directory_given_up(self) -> None:
        self.on_given_up()

    def request_wait_ns(self) -> int:
        return self.wait_ns

    def retention_policy(self, stream: LogStream) -> RetentionPolicy:
        del stream
        return self.retention

    def compaction_policy(self, stream: LogStream) -> CompactionPolicy | None:
        del stream
        self.asked += 1
        return self.compaction
