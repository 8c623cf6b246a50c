"""Traffic by topic for the metrics: of the busiest topics by name, of all others together.

Names of topics are clients' choice, so their number is bounded. Counters must not move back, and a
topic may become busy, or cease to be. So a topic begins a series at 0 when it gets a name, with
what it has from then on; all other traffic is added to `other`. No traffic is lost between two
series. A topic keeps its place until another was twice as busy.

Does not depend on partitions.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, MutableMapping
from dataclasses import dataclass, field
from typing import Final

from vdl.logstream.group.measures import TopicTraffic
from vdl.server.exposition import Sample

OTHER: Final = "other"
"""Name for the topics without one here; a topic of this name is one of them."""
_FADE: Final = 0.8
"""Part of its weight that a topic keeps from one page to the next."""
_STEP_TOPICS: Final = 1_000
_KEYS: Final = ("bytes_in", "records_in", "bytes_out", "records_out")

_Counts = tuple[int, int, int, int]


@dataclass(slots=True)
class _Seen:
    """Counts of a topic up to the last page."""

    of: TopicTraffic
    """Kept, so that no traffic is lost if the topic's replicas here go before the next page."""
    counts: _Counts = (0, 0, 0, 0)
    weight: float = 0.0
    """Recent bytes in and out, older ones counting less."""


@dataclass(slots=True)
class BusiestTopics:
    """Chooses the topics to be named, at each page. `topics_max`: how many at most."""

    traffic: MutableMapping[str, TopicTraffic]
    topics_max: int
    _seen: dict[str, _Seen] = field(default_factory=dict)
    _named: dict[str, list[int]] = field(default_factory=dict)
    """Counters of the named topics since they have been named."""
    _other: list[int] = field(default_factory=lambda: [0] * len(_KEYS))

    def look(self, existing: Container[str]) -> Iterator[None]:
        """Count what came since the last page, and choose; in steps. `existing`: the topics that
        are not deleted."""
        # First, so that the last page has shown all that was counted in a series that ends.
        self._choose()
        for position, (topic, now) in enumerate(list(self.traffic.items()), start=1):
            if position % _STEP_TOPICS == 0:
                yield
            seen = self._seen.get(topic)
            if seen is None:
                seen = self._seen[topic] = _Seen(now)
            counts = now.bytes_in, now.records_in, now.bytes_out, now.records_out
            came = 0
            if counts != seen.counts:
                if topic not in self._named and self._has_place(topic):
                    self._named[topic] = [0] * len(_KEYS)
                into = self._named.get(topic, self._other)
                for at, (count, before) in enumerate(zip(counts, seen.counts, strict=True)):
                    into[at] += count - before
                came = counts[0] - seen.counts[0] + counts[2] - seen.counts[2]
                seen.counts = counts
            seen.weight = seen.weight * _FADE + came
            if topic not in existing:
                # Its further traffic is counted nowhere: its replicas are being removed.
                self.traffic.pop(topic, None)
        for topic in self._seen.keys() - self.traffic.keys():
            del self._seen[topic]
            self._named.pop(topic, None)

    def _has_place(self, topic: str) -> bool:
        return len(self._named) < self.topics_max and topic != OTHER

    def _choose(self) -> None:
        """Name busy topics in place of those half as busy."""
        named = self._named
        by_weight = sorted(
            ((seen.weight, topic) for topic, seen in self._seen.items() if seen.weight > 0),
            reverse=True,
        )
        weakest = sorted((self._seen[topic].weight, topic) for topic in named)
        for weight, topic in by_weight[: self.topics_max]:
            if topic in named or topic == OTHER:
                continue
            if not weakest or 2 * weakest[0][0] >= weight:
                break
            # Its series ends; from now on its traffic is in `other`.
            del named[weakest.pop(0)[1]]
            named[topic] = [0] * len(_KEYS)

    def samples(self) -> Iterator[Sample]:
        """Yield the counters as of the last `look`."""
        for topic, counts in (*self._named.items(), (OTHER, self._other)):
            labels = (("topic", topic),)
            for key, count in zip(_KEYS, counts, strict=True):
                yield Sample(f"{key}_total", labels, count)
