"""Counters of a host."""

from __future__ import annotations

from dataclasses import dataclass, field

from segments.histogram import Histogram


@dataclass(slots=True)
class HostStats:
    """Counters since start."""

    turns: int = 0
    frames_out: int = 0
    messages_out: int = 0
    messages_in: int = 0
    messages_dropped: int = 0
    appends_refused: int = 0
    """Appends refused as a follower, because the segments do not keep up."""
    contradictions: int = 0
    """Messages that contradict themselves or the state here; they are dropped too."""
    contradicted_ns: int = 0
    """Time of the last one, on the server's clock; 0: none."""
    elections: int = 0
    early_messages: int = 0
    replication: Histogram = field(default_factory=Histogram)
    """Time from the append of a batch to the log of its leader here until it is committed. Of the
    batches of a partition that wait at once, one is measured."""
