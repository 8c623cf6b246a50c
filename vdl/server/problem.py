"""Kinds of problems: `vdl status`, `/health`, `/ready`, `/metrics`, the alerts and the runbook use
the same words.

Does not depend on how a problem is found (`diagnosis.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

SERVER_KINDS: Final = {
    "starting": "the server does not serve clients: it starts, or waits to be replaced or added",
    "stopping": "the server is stopping",
    "removed": "the server was removed from the cluster and takes no part",
    "no_quorum": "the server is not connected to a majority of the servers",
    "disk_full": "the disk is full: the server refuses new records",
    "out_of_file_descriptors": "the server has no file descriptors left and refuses new clients",
    "flush_stalled": "a write to a segment does not return, although the journal can be written",
    "overloaded": "the server has more work than it can do",
    "late_for_long": "the event loop has been late for a minute: leaderships move to other servers",
    "clock_wrong": "the wall clock differs from that of most servers",
    "certificate_ends": "a certificate of the server expires within a week, or has expired",
    "peer_contradicts": "another server sent messages that contradict the log of this server",
    "replica_lost": "a replica lost durable data and waits to be replaced",
}
"""Kind → meaning, of problems of one server."""
CLUSTER_KINDS: Final = {
    "peer_unreachable": "a server is not connected to this one",
    "link_refused": "servers reach each other, but one refuses the other",
    "peer_full": "another server refuses new records: its disk is full, or it has no descriptors",
    "directory_new": (
        "a server has a data directory that the cluster does not know, and waits to be replaced"
    ),
    "seeds_differ": "the configuration files of two servers have different addresses of servers",
    "no_leader": "partitions without a leader",
    "under_replicated": "partitions with fewer replicas in sync than assigned",
    "under_min_isr": "partitions with fewer replicas in sync than min.insync.replicas",
    "replica_replaced": "replicas are being replaced",
    "replica_moved": "replicas are being moved, as requested",
    "no_authorizer": "clients log in but may do everything, because no authorizer is set",
}
"""Kind → meaning, of problems that other servers see as well."""
NO_LEADER: Final = " has no leader"
"""Text behind a partition's name."""
NOT_WRONG: Final = frozenset({"no_authorizer", "replica_moved"})


def counted(count: int, what: str) -> str:
    """Return "1 partition", "2 partitions"."""
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


@dataclass(frozen=True, slots=True)
class Problem:
    """One of the kinds above, with details."""

    kind: str
    text: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}"

    @staticmethod
    def parse(text: str) -> Problem:
        """Return the problem whose `str` this is. Its kind may be unknown if the server has another
        version."""
        kind, _, rest = text.partition(": ")
        return Problem(kind, rest)
