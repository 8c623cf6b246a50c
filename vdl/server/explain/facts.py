"""Facts about a cluster that answers are made from, as its servers reported them.

Servers' clocks may be wrong, so times of events are converted by their age to the clock of this
machine (`Seen`). Does not depend on how facts are collected.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final
from zlib import crc32

from rpc.admin import ConsumerGroup, GroupStatus, Role, ServerEvents, ServerStatus
from vdl.server.problem import Problem

RECENT_MS: Final = 300_000
"""Age up to which an event still counts as something that is wrong now."""
REPLICA_NUMBER_BITS: Final = 16
"""A replica id is the server id above this many bits of replica number."""


@dataclass(slots=True)
class Seen:
    """One event of one server, or repetitions of it. Times are ms since 1970 of this machine."""

    server: int
    event: str
    level: str
    first_ms: int
    last_ms: int
    count: int
    fields: dict[str, Any]

    def text(self, name: str) -> str:
        """Return a field as text, empty if there is none."""
        value = self.fields.get(name)
        return "" if value is None else str(value)

    def number(self, name: str) -> int:
        """Return a field as a whole number, 0 if there is none."""
        value = self.fields.get(name)
        return int(value) if isinstance(value, int | float) else 0


@dataclass(slots=True)
class ServerFacts:
    """One server. `unreachable`: reason why it reported nothing; empty if it reported."""

    id: int
    address: str = ""
    unreachable: str = ""
    status: ServerStatus | None = None
    events: ServerEvents | None = None
    lacks_events: str = ""
    """Reason why there are no events, although it has reported its status."""

    @property
    def problems(self) -> list[Problem]:
        """Problems that it knows of."""
        return [] if self.status is None else list(map(Problem.parse, self.status.problems))

    def has(self, kind: str) -> Problem | None:
        """Return its problem of a kind, None if it has none."""
        return next((problem for problem in self.problems if problem.kind == kind), None)


@dataclass(slots=True)
class Facts:
    """All that is known of a cluster at one time."""

    now_ms: int
    servers: list[ServerFacts] = field(default_factory=list)
    replicas: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """Name of each partition of the cluster's metadata → servers that have a replica."""
    _seen: dict[str, list[Seen]] = field(default_factory=dict, repr=False, compare=False)
    """Name of an event → its events, the latest first; empty before the first question. A cluster
    may have thousands of problems, each of which looks for its events."""

    def server(self, server_id: int) -> ServerFacts | None:
        """Return a server, None if there is none with this id."""
        return next((server for server in self.servers if server.id == server_id), None)

    @property
    def unreachable(self) -> list[int]:
        """Ids of the servers that reported nothing."""
        return [server.id for server in self.servers if server.unreachable]

    def events(self, *names: str) -> list[Seen]:
        """Return the events with one of these names, or all, the latest first."""
        if not self._seen:
            for server in self.servers:
                for seen in () if server.events is None else self._of(server.events):
                    self._seen.setdefault(seen.event, []).append(seen)
            for some in self._seen.values():
                some.sort(key=lambda seen: seen.last_ms, reverse=True)
        if len(names) == 1:
            return list(self._seen.get(names[0], ()))
        found = [seen for name in names or self._seen for seen in self._seen.get(name, ())]
        return sorted(found, key=lambda seen: seen.last_ms, reverse=True)

    def _of(self, events: ServerEvents) -> Iterator[Seen]:
        ahead_ms = events.now_ms - self.now_ms
        for one in events.events:
            try:
                fields = json.loads(one.fields)
            except ValueError:
                continue  # of a version that has another form
            if isinstance(fields, dict):
                yield Seen(
                    events.server_id, one.event, one.level, one.first_ms - ahead_ms,
                    one.last_ms - ahead_ms, one.count, fields,
                )  # fmt: skip

    def is_recent(self, seen: Seen) -> bool:
        """Return True if the event counts as present."""
        return self.now_ms - seen.last_ms <= RECENT_MS

    def group(self, name: str) -> tuple[int, ConsumerGroup] | None:
        """Return a consumer group and its coordinator's server; None if none reported it."""
        found = [
            (group.generation, server.id, group)
            for server in self.servers
            if server.events is not None
            for group in server.events.groups
            if group.name == name
        ]
        if not found:
            return None
        _, server_id, group = max(found, key=lambda one: one[:2])
        return server_id, group

    def replicas_of(self, name: str) -> dict[int, GroupStatus]:
        """Return the replicas of a group that were reported, by server."""
        return {
            server.id: group
            for server in self.servers
            if server.status is not None
            for group in server.status.groups
            if group.name == name
        }

    def leader_of(self, name: str) -> tuple[int, GroupStatus] | None:
        """Return the leader of a group and its report; that of the newest term, if several lead."""
        led = [item for item in self.replicas_of(name).items() if item[1].role is Role.LEADER]
        return max(led, key=lambda item: item[1].term) if led else None

    def coordinator_of(self, group: str) -> str:
        """Return the name of the coordinator of a consumer group, empty if none is known."""
        names = {
            one.name
            for server in self.servers
            if server.status is not None
            for one in server.status.groups
            if one.name.startswith("coordinator-")
        }
        return f"coordinator-{1 + crc32(group.encode()) % len(names)}" if names else ""

    def gaps(self, *kinds: str) -> list[str]:
        """Return what cannot be known, as sentences: servers that reported nothing, and events of
        these kinds that are not kept any more."""
        found = []
        for server in self.servers:
            if server.unreachable:
                found.append(f"Server {server.id} did not answer ({server.unreachable}).")
            elif server.events is None:
                found.append(f"Server {server.id} has no events ({server.lacks_events}).")
            else:
                found += self._gaps_of(server.events, kinds)
        return found

    def _gaps_of(self, events: ServerEvents, kinds: tuple[str, ...]) -> Iterator[str]:
        ahead_ms, own = events.now_ms - self.now_ms, events.server_id
        if events.now_ms - events.started_ms <= RECENT_MS:
            since = clock_text(events.started_ms - ahead_ms)
            yield f"Server {own} was started at {since}; it knows nothing from before."
        for dropped in events.dropped:
            if dropped.kind in kinds:
                until = clock_text(dropped.until_ms - ahead_ms)
                yield f"Server {own} has dropped events up to {until}: there were too many."


def server_of(replica_id: int) -> int:
    """Return the server of a replica id, 0 for none."""
    return replica_id >> REPLICA_NUMBER_BITS


def clock_text(at_ms: int) -> str:
    """Return a time of day, in UTC."""
    seconds = at_ms // 1_000 % 86_400
    return f"{seconds // 3_600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}Z"


def listed(ids: list[int]) -> str:
    """Return "server 1", "servers 1, 2 and 3"."""
    texts = [str(one) for one in sorted(ids)]
    if len(texts) == 1:
        return f"server {texts[0]}"
    return f"servers {', '.join(texts[:-1])} and {texts[-1]}"
