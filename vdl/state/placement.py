"""Placement of the replicas of new partitions.

Each partition first gets its preferred leader: the server with the fewest preferred leaders, so
that leaders are distributed. Followers come next: servers on machines (racks) without a replica
yet, then the others, the least loaded first. Servers that are down are used only if there are not
enough others, or no other on such a machine. Ties go to the next server in id order, so the outcome
is a function of the inputs.

Does not depend on topics, or on a server's properties other than id and rack.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from ids import ServerId


class Load:
    """Number of replicas, and of preferred leaders among them, on each server."""

    __slots__ = ("leaders", "replicas")

    def __init__(self, servers: Iterable[ServerId]) -> None:
        self.leaders = dict.fromkeys(servers, 0)
        self.replicas = dict(self.leaders)

    def copy(self) -> Load:
        """Return an independent copy."""
        copied = Load(())
        copied.leaders, copied.replicas = dict(self.leaders), dict(self.replicas)
        return copied

    def add(self, replicas: Sequence[ServerId]) -> None:
        """Count one partition, preferred leader first; unknown servers are ignored."""
        for server in replicas:
            if server in self.replicas:
                self.replicas[server] += 1
        if replicas[0] in self.leaders:
            self.leaders[replicas[0]] += 1


def place(
    load: Load,
    racks: Mapping[ServerId, str],
    *,
    partitions: int,
    replication_factor: int,
    alive: frozenset[ServerId],
) -> list[list[ServerId]]:
    """Return server ids by partition, preferred leader first, and count them in `load`.

    `racks` maps every server to its rack, empty for none. If `alive` is empty, all servers are.
    """
    servers = sorted(racks)
    assert 0 < replication_factor <= len(servers), (replication_factor, servers)
    return [_place_one(load, racks, servers, replication_factor, alive) for _ in range(partitions)]


def _place_one(
    load: Load,
    racks: Mapping[ServerId, str],
    servers: list[ServerId],
    replication_factor: int,
    alive: frozenset[ServerId],
) -> list[ServerId]:
    def down(server: ServerId) -> bool:
        return bool(alive) and server not in alive

    leader = min(servers, key=lambda s: (down(s), load.leaders[s], load.replicas[s], s))
    chosen = [leader]
    used_racks = {racks[leader]}
    while len(chosen) < replication_factor:
        follower = min(
            (server for server in servers if server not in chosen),
            key=lambda s: (
                bool(racks[s]) and racks[s] in used_racks,
                down(s),
                load.replicas[s],
                (s < leader, s),
            ),
        )
        chosen.append(follower)
        used_racks.add(racks[follower])
    load.add(chosen)
    return chosen


def substitute(
    load: Load,
    racks: Mapping[ServerId, str],
    replicas: Sequence[ServerId],
    *,
    alive: frozenset[ServerId],
    replicas_max: int,
) -> ServerId | None:
    """Return the server for one more replica of a partition; None if no server may take it.

    `racks` has the servers that may; `replicas` are the servers that have one and keep it. If
    `alive` is empty, all servers are. A server that is down is used only if there is no other: the
    copy would not end. `replicas_max` 0 means no limit.
    """
    used_racks = {racks[server] for server in replicas if server in racks}
    return min(
        (
            server
            for server in sorted(racks)
            if server not in replicas and not 0 < replicas_max <= load.replicas[server]
        ),
        key=lambda s: (
            bool(alive) and s not in alive,
            bool(racks[s]) and racks[s] in used_racks,
            load.replicas[s],
        ),
        default=None,
    )


def overfull(placements: list[list[ServerId]], load: Load, replicas_max: int) -> str:
    """Return why a server would exceed its replica limit; empty if none would.

    The placements are added to `load`, which is not changed. `replicas_max` 0 means no limit.
    """
    if not replicas_max:
        return ""
    wanted = Counter(server for replicas in placements for server in replicas)
    for server, more in sorted(wanted.items()):
        held = load.replicas[server]
        if held + more > replicas_max:
            return (
                f"server {server} would have {held + more} partition replicas, but the maximum "
                f"is {replicas_max} (cluster.replicas_per_server)"
            )
    return ""
