"""Kinds of problems: `vdl status`, `/health`, `/ready`, `/metrics`, the alerts and the runbook use
the same words.

Does not depend on how a problem is found (`diagnosis.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

SERVER_KINDS: Final = {
    "starting": "the server does not serve clients yet, or waits to be replaced",
    "stopping": "the server stops",
    "no_quorum": "the server is linked to no majority of the servers",
    "disk_full": "the disk has no room: the server takes no new records",
    "out_of_file_descriptors": "clients are turned away for want of file descriptors",
    "flush_stalled": "the disk writes the journal and hangs over a segment",
    "overloaded": "the server has more to do than it can",
    "late_for_long": "the loop has been late for a minute: leaderships go elsewhere",
    "clock_wrong": "the wall clock differs from that of most servers",
    "certificate_ends": "a certificate of the server ends within a week, or has ended",
    "peer_contradicts": "another server sent what cannot be true beside the log here",
    "replica_lost": "a replica lost durable data and waits to be replaced",
}
"""Kind → meaning, of problems of one server."""
CLUSTER_KINDS: Final = {
    "peer_unreachable": "a server is not linked to this one",
    "link_refused": "servers reach each other, and are not to be linked",
    "peer_full": "another server takes no new records: it has no room, or no descriptors",
    "directory_new": "a server with a directory unknown to the cluster waits to be replaced",
    "seeds_differ": "the files of two servers have other addresses of servers",
    "no_leader": "partitions without a leader",
    "under_replicated": "partitions led here with fewer replicas in sync than they have",
    "under_min_isr": "partitions led here with fewer replicas in sync than min.insync.replicas",
    "replica_replaced": "replicas that are being replaced",
    "replica_moved": "replicas that are being moved: not wrong",
    "no_authorizer": "clients show who they are and may do everything: as it was set",
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
