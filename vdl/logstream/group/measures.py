"""Measurements on the path of a record: traffic by topic, and times of replication.

Log streams increment plain numbers here; the metrics read them.

Does not depend on how they are shown, or on how many topics are shown.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from weakref import WeakValueDictionary

from segments.histogram import Histogram


@dataclass(slots=True, weakref_slot=True, eq=False)
class TopicTraffic:
    """Traffic of one topic through this server since its start. Bytes are as clients compress."""

    bytes_in: int = 0
    """Bytes of batches appended to logs that this server leads; `records_in` likewise."""
    records_in: int = 0
    bytes_out: int = 0
    """Bytes of batches in answers to consumers; `records_out`: the offsets that they cover."""
    records_out: int = 0


class Measures:
    """Measurements that all log streams of a server share."""

    __slots__ = ("now_ns", "replication", "traffic")

    def __init__(self, now_ns: Callable[[], int], replication: Histogram) -> None:
        """`now_ns`: the monotonic clock. `replication`: see `HostStats`."""
        self.now_ns = now_ns
        self.replication = replication
        self.traffic: WeakValueDictionary[str, TopicTraffic] = WeakValueDictionary()
        """By topic. Each lives as long as a replica of its topic here, or as the metrics remember
        it: without metrics, topics that come and go leave nothing."""

    def traffic_of(self, topic: str) -> TopicTraffic:
        """Return the counters of a topic; the caller keeps them."""
        return self.traffic.setdefault(topic, TopicTraffic())
