"""What the host asks of a server that has clients: a `vdl.logstream.front.Front`.

Must not know: how a server starts and stops.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable

from vdl.kafka.configs.topic_configs import compaction_policy, retention_policy
from vdl.kafka.connections.frontend import Frontend
from vdl.logstream.group.compaction import CompactionPolicy
from vdl.logstream.group.log_stream import LogStream
from vdl.logstream.group.retention import KEEP, RetentionPolicy


class ClientFront:
    """The front end, and the settings of topics as it knows them. `catalog_changed`,
    `directory_given_up`: what the server itself does then."""

    __slots__ = (
        "_frontend", "catalog_changed", "directory_given_up", "request_wait_ns", "send_answers"
    )  # fmt: skip

    def __init__(
        self,
        frontend: Frontend,
        catalog_changed: Callable[[], None],
        directory_given_up: Callable[[], None],
    ) -> None:
        self._frontend = frontend
        self.catalog_changed = catalog_changed
        self.directory_given_up = directory_given_up
        self.send_answers = frontend.flush
        self.request_wait_ns = frontend.start_budget.oldest_ns

    def retention_policy(self, stream: LogStream) -> RetentionPolicy:
        context = self._frontend.context
        topic = context.host.catalog.topics.get(stream.topic)
        if topic is None:
            return KEEP
        config = context.config
        return retention_policy(
            topic.configs,
            config,
            spread=_spread(stream),
            is_sized_anew=config.segment_bytes != context.file_config.segment_bytes,
        )

    def compaction_policy(self, stream: LogStream) -> CompactionPolicy | None:
        context = self._frontend.context
        topic = context.host.catalog.topics.get(stream.topic)
        return None if topic is None else compaction_policy(topic.configs, context.config)

    def background_rate(self) -> int:
        """As fast as a reader is fed while producers are at work, or as a setting says."""
        context = self._frontend.context
        rate = context.read_throttle.background_rate(context.clock.now_ns())
        return max(1, min(rate, int(context.config.cleaner_bytes_per_second)))


def _spread(stream: LogStream) -> int:
    """A number that differs between partitions, and is the same on each server."""
    return zlib.crc32(f"{stream.topic}-{stream.partition}".encode())
