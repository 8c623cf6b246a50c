"""Services that a server with clients provides to its host: a `vdl.logstream.front.Front`."""

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
    `directory_given_up`: actions of the server itself."""

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
        self.send_answers = frontend.turn.flush
        self.request_wait_ns = frontend.turn.oldest_wait_ns

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
        """Return the rate of a reader while producers are active, or the rate of the setting if
        that is lower."""
        context = self._frontend.context
        rate = context.read_throttle.background_rate(context.clock.now_ns())
        return max(1, min(rate, int(context.config.cleaner_bytes_per_second)))


def _spread(stream: LogStream) -> int:
    """Return a number that differs between partitions, and is the same on each server."""
    return zlib.crc32(f"{stream.topic}-{stream.partition}".encode())
