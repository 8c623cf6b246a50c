"""Problems of this server and of the partitions it has replicas of, from its present state.

Does not depend on how problems are shown.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from ids import ServerId
from vdl.clock import MS
from vdl.config.exposure import NO_AUTHORIZER, lacks_authorizer
from vdl.logstream.peers.changes import lacks_quorum, waiting
from vdl.server.partition_counts import PartitionCounts
from vdl.server.problem import Problem, counted
from vdl.server.server import Server, ServerState

CLOCK_MS_MAX: Final = 5_000
"""Largest deviation of the wall clock from the time that a majority of the servers agree on."""
CONTRADICTION_NS: Final = 600_000 * MS
"""Time for which a contradiction counts: the peer may be silent, and still faulty."""


def problems_of(server: Server, counts: PartitionCounts | None = None) -> list[Problem]:
    """Return all problems, those of the server first. Counts partitions without naming them.

    `counts`: a recent count; None: they are counted now."""
    found = [*problems_of_server(server), *problems_of_links(server)]
    found += problems_of_partitions(server, server.partition_counts() if counts is None else counts)
    if lacks_authorizer(server.config):
        found.append(Problem("no_authorizer", NO_AUTHORIZER))
    return found


def problems_of_server(server: Server) -> Iterator[Problem]:
    """Yield the problems of `SERVER_KINDS`."""
    host, state = server.host, server.state
    if state in (ServerState.STOPPING, ServerState.STOPPED):
        yield Problem("stopping", f"server is {state.value}")
    elif state is ServerState.REMOVED:
        yield Problem("removed", "the server was removed from the cluster")
    elif server.waits_to_be_added:
        yield Problem("starting", "server waits to be added to the cluster")
    elif state is not ServerState.SERVING:
        yield Problem("starting", f"server is {state.value}")
    for name, ends in server.certificates_ending().items():
        yield Problem("certificate_ends", f"the certificate of {name} expires at {ends:%F %R}Z")
    if server.lacks_descriptors():
        yield Problem("out_of_file_descriptors", "new client connections are refused")
    if not server.store.accepts_appends:
        yield Problem("disk_full", "the disk is full: new records are refused")
    if host is None:
        return
    if lacks_quorum(host.state):
        yield Problem("no_quorum", "not connected to a majority of the servers")
    if text := host.overload.problem():
        yield Problem("overloaded", text)
    if host.overload.is_late_for_long:
        yield Problem("late_for_long", "responses take longer than a failover")
    if host.is_flush_stalled:
        yield Problem("flush_stalled", "a write to a segment does not return")
    ahead_ms = host.time.ahead_ms
    if abs(ahead_ms) > CLOCK_MS_MAX:
        way = "ahead of" if ahead_ms > 0 else "behind"
        yield Problem("clock_wrong", f"{abs(ahead_ms) / 1_000:.0f} s {way} most servers")
    last_ns = host.stats.contradicted_ns
    if last_ns and server.clock.now_ns() - last_ns < CONTRADICTION_NS:
        yield Problem(
            "peer_contradicts", f"{counted(host.stats.contradictions, 'message')} since the start"
        )
    if host.lost_groups:
        yield Problem("replica_lost", counted(len(host.lost_groups), "replica"))


def problems_of_links(server: Server) -> Iterator[Problem]:
    """Yield the problems of other servers: not linked, link refused, waiting to be replaced, full,
    or with other addresses in their file."""
    for link in server.links.links():
        if not link.is_up:
            both = _both(server, link.server_id)
            yield Problem("peer_unreachable", f"servers {both} are not connected")
    for server_id, why in server.refused_links().items():
        yield Problem("link_refused", f"between servers {_both(server, server_id)}: {why}")
    if server.host is not None:
        for server_id in waiting(server.host.state):
            yield Problem("directory_new", f"server {server_id} waits to be replaced")
        for server_id in sorted(server.host.state.full):
            yield Problem("peer_full", f"server {server_id} refuses new records")
    for text in server.peer_addresses.differences.values():
        yield Problem("seeds_differ", text)


def _both(server: Server, other: ServerId) -> str:
    """Return both ids, in the same words on both servers."""
    lower, higher = sorted((server.config.server_id, other))
    return f"{lower} and {higher}"


def problems_of_partitions(server: Server, counts: PartitionCounts) -> Iterator[Problem]:
    """Yield the problems of the partitions with a replica here, as counted."""
    for kind, count in (
        ("no_leader", counts.leaderless),
        ("replica_replaced", counts.replaced),
        ("replica_moved", counts.moved),
    ):
        if count:
            yield Problem(kind, f"{count} of {counts.groups} groups with a replica on this server")
    yield from problems_of_copies(server, counts)


def problems_of_copies(server: Server, counts: PartitionCounts) -> Iterator[Problem]:
    """Yield the problems of partitions led here that have too few replicas in sync."""
    for kind, count in (
        ("under_replicated", counts.under_replicated),
        ("under_min_isr", counts.under_min),
    ):
        if count:
            led = f"led by server {server.config.server_id}"
            yield Problem(kind, f"{counted(count, 'partition')} {led}")
