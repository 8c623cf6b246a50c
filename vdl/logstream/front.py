"""What a host asks of the part of its server that stands before it: of clients, and of what topics
are set to.

The host knows neither. Who starts it gives it one `Front` (`Host.attach`); this is the only way up
beside the callbacks of single requests. Every call returns at once.

Must not know: who implements it.
"""

from __future__ import annotations

from typing import Protocol

from vdl.logstream.group.compaction import CompactionPolicy
from vdl.logstream.group.log_stream import LogStream
from vdl.logstream.group.retention import KEEP, RetentionPolicy

BACKGROUND_RATE = 64 << 20
"""Where there are no producers to be beside."""


class Front(Protocol):
    """See the module."""

    def send_answers(self) -> None:
        """Within a turn: clients' appends may have been answered, and long polls woken."""

    def catalog_changed(self) -> None:
        """The applied catalog is another than before."""

    def directory_given_up(self) -> None:
        """All that the data directory had is marked as lost: peers are to hear of its new list of
        starts, on new links."""

    def request_wait_ns(self) -> int:
        """For how long a request of a client has waited to be started, at the most, now."""

    def retention_policy(self, stream: LogStream) -> RetentionPolicy:
        """What a partition's topic asks to keep."""

    def compaction_policy(self, stream: LogStream) -> CompactionPolicy | None:
        """What a partition's topic asks for; None: it is not compacted."""

    def background_rate(self) -> int:
        """Bytes a second for what nobody waits for, beside producers. At least 1."""


class NoFront:
    """A host without clients: nobody waits, and everything is kept."""

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
