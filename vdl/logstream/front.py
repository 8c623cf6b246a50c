"""Interface of the host to the server's front end: clients, and the settings of topics.

The host knows neither. The server that starts it passes one `Front` (`Host.start`); apart from the
callbacks of single requests this is the only way up. Every call returns at once.
"""

from __future__ import annotations

from typing import Protocol

from vdl.logstream.group.compaction import CompactionPolicy
from vdl.logstream.group.log_stream import LogStream
from vdl.logstream.group.retention import KEEP, RetentionPolicy

BACKGROUND_RATE = 64 << 20
"""Bytes a second, if there is no front end and so no producers."""


class Front(Protocol):
    """The front end, as the host uses it."""

    def send_answers(self) -> None:
        """Send pending answers.

        Called within a turn: appends may have been answered, and long polls woken.
        """

    def catalog_changed(self) -> None:
        """Note that the applied catalog changed."""

    def directory_given_up(self) -> None:
        """Open new links with the directory's new list of starts.

        Everything that the directory held is marked as lost.
        """

    def request_wait_ns(self) -> int:
        """Return the longest time, now, that a client's request has waited to be started."""

    def retention_policy(self, stream: LogStream) -> RetentionPolicy:
        """Return the retention settings of a partition's topic."""

    def compaction_policy(self, stream: LogStream) -> CompactionPolicy | None:
        """Return the compaction settings of a partition's topic; None: it is not compacted."""

    def background_rate(self) -> int:
        """Return the rate for background work beside producers, in bytes a second. At least 1."""


class NoFront:
    """A host without clients: no request waits, and everything is kept."""

    def send_answers(self) -> None:
        pass

    def catalog_changed(self) -> None:
        pass

    def directory_given_up(self) -> None:
        pass

    def request_wait_ns(self) -> int:
        return 0

    def retention_policy(self, stream: LogStream) -> RetentionPolicy:
        del stream
        return KEEP

    def compaction_policy(self, stream: LogStream) -> CompactionPolicy | None:
        del stream
        return None

    def background_rate(self) -> int:
        return BACKGROUND_RATE
