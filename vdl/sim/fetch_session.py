"""A consumer's side of a fetch session (KIP-227): the server's knowledge of its partitions."""

from __future__ import annotations

from vdl.kafka.wire import fetch
from vdl.kafka.wire.runtime import ZERO_UUID

_EPOCH_MAX = (1 << 31) - 1
_Key = tuple[str, bytes, int]


class FetchSession:
    """One session. It ends with any failure; the next one starts with a full request."""

    def __init__(self) -> None:
        self._id = 0
        self._epoch = 0
        self._known: dict[_Key, tuple[int, int]] = {}
        """(topic, id, partition) → (offset, leader epoch) last sent to the server."""

    def reduce(self, request: fetch.FetchRequest, *, by_id: bool) -> None:
        """Reduce a request to the changes since the last one and add the partitions to forget."""
        request.session_id = self._id
        request.session_epoch = self._epoch
        wanted: dict[_Key, tuple[int, int]] = {}
        for topic in request.topics:
            topic_id = topic.topic_id if by_id else ZERO_UUID
            news = []
            for row in topic.partitions:
                key = topic.topic, topic_id, row.partition
                wanted[key] = stands = row.fetch_offset, row.current_leader_epoch
                if self._known.get(key) != stands:
                    news.append(row)
            topic.partitions = news
        request.topics = [topic for topic in request.topics if topic.partitions]
        gone = [key for key in self._known if key not in wanted]
        request.forgotten_topics_data = [
            fetch.ForgottenTopic(name, topic_id, [partition]) for name, topic_id, partition in gone
        ]
        self._known = wanted

    def answered(self, session_id: int) -> None:
        """Advance the session after an answer without an error; 0: the server keeps no session."""
        self._id = session_id
        if session_id:
            self._epoch = self._epoch + 1 if self._epoch < _EPOCH_MAX else 1
        else:
            self._epoch = 0
            self._known = {}
