"""A front end without clients, whose answers a test chooses."""

from __future__ import annotations

from collections.abc import Callable

from vdl.logstream.front import NoFront
from vdl.logstream.group.compaction import CompactionPolicy
from vdl.logstream.group.log_stream import LogStream
from vdl.logstream.group.retention import KEEP, RetentionPolicy


class ChosenFront(NoFront):
    """A front end with settings chosen by a test."""

    def __init__(self) -> None:
        self.retention: RetentionPolicy = KEEP
        self.compaction: CompactionPolicy | None = None
        self.wait_ns = 0
        self.asked = 0
        """Number of queries for compaction settings."""
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
