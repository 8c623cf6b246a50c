"""What a host counts since its start."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class HostStats:
    """Counters since start."""

    turns: int = 0
    frames_out: int = 0
    messages_out: int = 0
    messages_in: int = 0
    messages_dropped: int = 0
    appends_refused: int = 0
    """As a follower, because the segments do not keep up."""
    contradictions: int = 0
    """Messages that contradict themselves or what is here: also dropped."""
    contradicted_ns: int = 0
    """When the last one came, on the server's clock; 0: none has."""
    elections: int = 0
    early_messages: int = 0
