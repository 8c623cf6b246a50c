"""Answer of a Fetch with many partitions, encoded piece by piece.

Encoding a partition takes a microsecond of the loop, and an answer may have ten thousand. A topic
has one entry in the answer, because some clients keep only the last of several, but its partitions
may come from several pieces. So the partitions of each piece are encoded in an answer of their own,
of which all that surrounds them is cut off:

    head | number of topics | name or id | number of partitions | partitions | end of topic | tail

Records are not copied.

Does not depend on requests, sessions or logs.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import Any

from vdl.kafka.wire.fetch import (
    FLEXIBLE_FROM,
    FetchableTopicResponse,
    FetchResponse,
    PartitionData,
    encode_response,
)
from vdl.kafka.wire.runtime import write_uvarint

_LENGTH = Struct(">i").pack


class _Topic:
    """A topic of the answer: its entry before the list of partitions, and the partitions so far."""

    __slots__ = ("buffers", "count", "start")

    def __init__(self, start: bytes) -> None:
        self.start = start
        self.count = 0
        self.buffers: list[Any] = []


class FetchAnswer:
    """A growing answer."""

    __slots__ = ("_end", "_head", "_is_flexible", "_topics", "_version")

    def __init__(self, version: int) -> None:
        self._version = version
        self._is_flexible = version >= FLEXIBLE_FROM
        self._end = int(self._is_flexible)
        """Bytes at the end of a topic, and of an answer without tagged fields: their number."""
        self._head = len(b"".join(self._encoded([]))) - len(self._length(0)) - self._end
        """Bytes before the number of topics."""
        self._topics: dict[str | bytes, _Topic] = {}

    def add(self, name: str | bytes, answers: Sequence[PartitionData]) -> None:
        """Add partitions of a topic, which is given by its name or by its id. Raises EncodeError;
        then nothing was added."""
        entry = FetchableTopicResponse()
        if isinstance(name, str):
            entry.topic = name
        else:
            entry.topic_id = name
        topic = self._topics.get(name)
        if topic is None:
            empty = b"".join(self._encoded([entry]))
            end = len(empty) - len(self._length(0)) - 2 * self._end
            topic = _Topic(empty[self._head + len(self._length(1)) : end])
        entry.partitions = [*answers]
        buffers = self._encoded([entry])
        before = self._head + len(self._length(1)) + len(topic.start)
        before += len(self._length(len(answers)))
        buffers[0] = memoryview(buffers[0])[before:]
        if self._end:
            buffers[-1] = memoryview(buffers[-1])[: -2 * self._end]
        topic.buffers += buffers
        topic.count += len(answers)
        self._topics[name] = topic

    def encoded(self, response: FetchResponse) -> list[Any]:
        """Return the whole answer. `response` has all of it but the topics. Raises EncodeError."""
        bare = b"".join(encode_response(response, self._version))
        length = self._length(len(self._topics))
        buffers: list[Any] = [bare[: self._head] + length]
        for topic in self._topics.values():
            buffers.append(topic.start + self._length(topic.count))
            buffers += topic.buffers
            buffers.append(bytes(self._end))
        buffers.append(bare[self._head + len(self._length(0)) :])
        return buffers

    def _encoded(self, topics: list[FetchableTopicResponse]) -> list[Any]:
        return encode_response(FetchResponse(responses=topics), self._version)

    def _length(self, count: int) -> bytes:
        return write_uvarint(count + 1) if self._is_flexible else _LENGTH(count)
