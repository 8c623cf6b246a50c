"""Moves that balance replicas and leaderships over servers, hosts and disks.

A plan is a function of its inputs. It moves one replica at a time, from the server that has most to
the one that has least, until no such move makes one of these better without making an earlier one
worse:

1. Replicas of a partition on one host (rack).
2. Bytes by which disks are fuller than `FILL_MAX`.
3. The sum over all servers of their squared numbers of replicas.

So it ends, and a plan for the outcome is empty. Afterwards the order of replicas changes where that
spreads preferred leaders, which moves no bytes. A partition moves to its last place at once.

A server that is down, full or leaving neither takes nor gives replicas, except that one on a shared
host may be given. A partition whose replicas are being moved stays as it is, and counts.

Does not depend on topics' settings, on time, or on how replicas move.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from ids import ServerId

FILL_MAX = 0.8
"""Part of a disk that may be used after a move to it: a fifth is kept free."""

Where = tuple[str, int]
"""A topic and a partition."""


@dataclass(frozen=True, slots=True)
class ServerRoom:
    """A server that may take replicas, and its disk."""

    server_id: ServerId
    rack: str = ""
    """Servers of one rack are on one host; empty: alone on its host."""
    free_bytes: int = 0
    total_bytes: int = 0
    """0: nothing is known of its disk."""
    disk: str = ""
    """Servers with the same one share a disk; empty: it has one of its own."""


@dataclass(frozen=True, slots=True)
class Placed:
    """A partition: its replicas, preferred leader first, and the size of one."""

    where: Where
    replicas: tuple[ServerId, ...]
    size: int = 0
    is_fixed: bool = False
    """True if it cannot move now."""


@dataclass(frozen=True, slots=True)
class Change:
    """Other replicas of a partition, or another order of them."""

    where: Where
    before: tuple[ServerId, ...]
    after: tuple[ServerId, ...]
    size: int

    @property
    def added(self) -> tuple[ServerId, ...]:
        """Servers that get a replica."""
        return tuple(server for server in self.after if server not in self.before)

    @property
    def moved_bytes(self) -> int:
        """Bytes that are copied."""
        return self.size * len(self.added)

    @property
    def leads_elsewhere(self) -> bool:
        """True if another server is to lead the partition."""
        return self.before[0] != self.after[0]


def balance(
    servers: Iterable[ServerRoom],
    partitions: Iterable[Placed],
    *,
    racks: Mapping[ServerId, str],
    replicas_max: int = 0,
) -> list[Change]:
    """Return the changes, by topic and partition.

    `servers`: those that may take replicas. `racks`: of all servers, also those that are down.
    `replicas_max`: limit on the replicas of a server; 0: none.
    """
    return _Plan(servers, partitions, racks, replicas_max).changes()


def shared_hosts(replicas: Iterable[ServerId], racks: Mapping[ServerId, str]) -> int:
    """Return the number of replicas that are on a host with an earlier one."""
    hosts = [_host(server, racks) for server in replicas]
    return len(hosts) - len(set(hosts))


def disk_of(room: ServerRoom) -> str | ServerId:
    """Return what identifies a server's disk: its file system, or the server itself."""
    return room.disk or room.server_id


def _host(server: ServerId, racks: Mapping[ServerId, str]) -> str | ServerId:
    return racks.get(server) or server


class _Plan:
    """Placements that change until nothing becomes better."""

    def __init__(
        self,
        servers: Iterable[ServerRoom],
        partitions: Iterable[Placed],
        racks: Mapping[ServerId, str],
        replicas_max: int,
    ) -> None:
        self._rooms = {room.server_id: room for room in servers}
        self._racks = {**racks, **{room.server_id: room.rack for room in self._rooms.values()}}
        self._replicas_max = replicas_max
        self._partitions = {one.where: one for one in sorted(partitions, key=lambda p: p.where)}
        self._now = {where: list(one.replicas) for where, one in self._partitions.items()}
        self._moved: set[Where] = set()
        """Partitions that were moved, perhaps back."""
        self._on: dict[ServerId, set[Where]] = {server: set() for server in self._rooms}
        self._held: dict[ServerId, int] = dict.fromkeys(self._rooms, 0)
        """Bytes of a server's replicas."""
        for where, replicas in self._now.items():
            for server in replicas:
                self._on.setdefault(server, set()).add(where)
                self._held[server] = self._held.get(server, 0) + self._partitions[where].size
        self._sized: dict[ServerId, list[tuple[int, Where]]] = {
            server: sorted((self._partitions[where].size, where) for where in wheres)
            for server, wheres in self._on.items()
        }
        """Replicas of a server by size: the one that suits best is found without looking at all."""
        self._stored: dict[str | ServerId, int] = {}
        """Bytes of replicas on a disk, by `disk_of`: of all servers that share it."""
        for room in self._rooms.values():
            disk = disk_of(room)
            self._stored[disk] = self._stored.get(disk, 0) + self._held[room.server_id]
        self._others = {
            server: room.total_bytes - room.free_bytes - self._stored[disk_of(room)]
            for server, room in self._rooms.items()
        }
        """Bytes on a server's disk that are not of these replicas."""

    def changes(self) -> list[Change]:
        """Balance, and return what changed."""
        is_better = True
        while is_better:
            is_better = False
            for apart in self._apart():
                self._move(*apart)
                is_better = True
            for moves in (self._emptier, self._evener):
                while move := next(moves(), None):
                    self._move(*move)
                    is_better = True
        self._lead()
        return [
            Change(where, one.replicas, tuple(self._now[where]), one.size)
            for where, one in self._partitions.items()
            if list(one.replicas) != self._now[where]
        ]

    # --- replicas: (partition, from, to), the best first ------------------------------------------
    def _apart(self) -> Iterator[tuple[Where, ServerId, ServerId]]:
        """Move replicas from hosts that they share to hosts without a replica. Each is moved before
        the next is asked for."""
        for where in self._now:
            while found := self._apart_of(where):
                yield found

    def _apart_of(self, where: Where) -> tuple[Where, ServerId, ServerId] | None:
        replicas = self._now[where]
        if self._partitions[where].is_fixed or not shared_hosts(replicas, self._racks):
            return None
        sharing = [server for server in replicas if self._shares(where, server, server)]
        for source in sorted(sharing, key=lambda s: (-len(self._on[s]), s)):
            for target in self._least():
                if not self._shares(where, target, source) and self._has_room(where, target):
                    return where, source, target
        return None

    def _emptier(self) -> Iterator[tuple[Where, ServerId, ServerId]]:
        """Move a replica from a disk that is too full: one that suffices, or the largest."""
        for source in sorted(self._rooms, key=lambda s: (-self._excess(s), s)):
            excess = self._excess(source)
            if excess <= 0:
                return
            sized = self._sized[source]
            enough = bisect_left(sized, (excess, ("", 0)))
            for size, where in (*sized[enough:], *reversed(sized[:enough])):
                if not size:
                    continue
                for target in sorted(self._least(), key=lambda s: (self._excess(s), s)):
                    if self._may_move(where, source, target):
                        yield where, source, target

    def _evener(self) -> Iterator[tuple[Where, ServerId, ServerId]]:
        """Move a replica to a server with at least two fewer: of a partition of which others stay,
        and the one that evens their bytes."""
        for source in sorted(self._rooms, key=lambda s: (-len(self._on[s]), s)):
            for target in self._least():
                if len(self._on[source]) - len(self._on[target]) < 2:
                    break
                surplus = self._held[source] - self._held[target]
                yield from (
                    (where, source, target)
                    for where in self._nearest(source, surplus)
                    if self._may_move(where, source, target)
                )

    def _nearest(self, source: ServerId, surplus: int) -> Iterator[Where]:
        """Yield the partitions of a server, those of which fewest replicas move first, then those
        whose size is nearest to half of `surplus`."""
        sized = self._sized[source]
        middle = bisect_left(sized, (surplus // 2, ("", 0)))
        moved, is_more = 0, True
        while is_more:
            below, above, is_more = middle - 1, middle, False
            while below >= 0 or above < len(sized):
                is_above = below < 0 or (
                    above < len(sized)
                    and abs(surplus - 2 * sized[above][0]) <= abs(surplus - 2 * sized[below][0])
                )
                where = sized[above if is_above else below][1]
                above, below = above + is_above, below - (not is_above)
                if self._changed(where) == moved:
                    yield where
                is_more |= self._changed(where) > moved
            moved += 1

    def _least(self) -> list[ServerId]:
        """Return the servers that have room, those with the fewest replicas first."""
        takers = [s for s in self._rooms if self._excess(s) <= 0]
        return sorted(takers, key=lambda s: (len(self._on[s]), s))

    def _changed(self, where: Where) -> int:
        """Return the number of a partition's replicas that move."""
        if where not in self._moved:
            return 0
        return len(set(self._now[where]).difference(self._partitions[where].replicas))

    def _may_move(self, where: Where, source: ServerId, target: ServerId) -> bool:
        return (
            not self._partitions[where].is_fixed
            and self._shares(where, target, source) <= self._shares(where, source, source)
            and self._has_room(where, target)
        )

    def _shares(self, where: Where, server: ServerId, without: ServerId) -> bool:
        """Return True if a server is on the host of a replica other than that on `without`."""
        host = _host(server, self._racks)
        others = (one for one in self._now[where] if one != without)
        return any(_host(other, self._racks) == host for other in others)

    def _has_room(self, where: Where, target: ServerId) -> bool:
        """Return True if a server may take another replica of a partition."""
        room, on = self._rooms[target], self._on[target]
        if where in on or len(on) >= self._replicas_max > 0:
            return False
        size = self._partitions[where].size
        return not size or not room.total_bytes or self._excess(target, size) <= 0

    def _excess(self, server: ServerId, more: int = 0) -> int:
        """Return the bytes by which a disk is too full, with `more` on it."""
        total = self._rooms[server].total_bytes
        used = self._others[server] + self._stored[disk_of(self._rooms[server])] + more
        return used - int(FILL_MAX * total) if total else 0

    def _move(self, where: Where, source: ServerId, target: ServerId) -> None:
        replicas, size = self._now[where], self._partitions[where].size
        replicas[replicas.index(source)] = target
        self._moved.add(where)
        self._on[source].remove(where)
        self._on[target].add(where)
        del self._sized[source][bisect_left(self._sized[source], (size, where))]
        insort(self._sized[target], (size, where))
        for server, more in ((target, size), (source, -size)):
            self._held[server] += more
            if server in self._rooms:
                self._stored[disk_of(self._rooms[server])] += more

    # --- leaderships ------------------------------------------------------------------------------
    def _lead(self) -> None:
        """Change the order of replicas until preferred leaders are spread as far as replicas allow.

        A shortest way of partitions leads from the server that is preferred most often to one that
        is preferred at least two times less: each partition on it prefers the next server.
        """
        led: dict[ServerId, set[Where]] = {server: set() for server in self._rooms}
        for where, replicas in self._now.items():
            if replicas[0] in led and not self._partitions[where].is_fixed:
                led[replicas[0]].add(where)
        fixed = dict.fromkeys(self._rooms, 0)
        for where, replicas in self._now.items():
            if replicas[0] in fixed and self._partitions[where].is_fixed:
                fixed[replicas[0]] += 1

        def count(server: ServerId) -> int:
            return len(led[server]) + fixed[server]

        while True:
            for source in sorted(self._rooms, key=lambda s: (-count(s), s)):
                way = self._way(source, led, {s for s in led if count(s) <= count(source) - 2})
                if way:
                    break
            else:
                return
            for where, server in way:
                replicas = self._now[where]
                led[replicas[0]].remove(where)
                led[server].add(where)
                replicas.remove(server)
                replicas.insert(0, server)

    def _way(
        self, source: ServerId, led: Mapping[ServerId, set[Where]], targets: set[ServerId]
    ) -> list[tuple[Where, ServerId]]:
        """Return partitions and the servers that they are to prefer; none if there is no way."""
        reached: dict[ServerId, list[tuple[Where, ServerId]]] = {source: []}
        queue = deque([source] if targets else [])
        while queue:
            server = queue.popleft()
            if server in targets:
                return reached[server]
            for where in sorted(led[server]):
                for other in sorted(self._now[where]):
                    if other in led and other not in reached:
                        reached[other] = [*reached[server], (where, other)]
                        queue.append(other)
        return []
