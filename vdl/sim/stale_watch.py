"""Limit on the time for which a deposed leader goes on serving clients.

It serves fetches, long polls, offset queries and heartbeats of members. Its answers are not wrong,
but may be old.

From the commit of an entry of a newer term, a leader of an older one has `BOUND_NS` left, on the
time of its timers (`vdl.logstream.time.loop_time`): that is the clock's while its loop is in time.
Time in which the process does not run does not count: nothing is served then. Nor is a partition
served after a gap in the loop before a quorum has answered.

All servers are checked every `STALE_LOOK_NS` of virtual time. Does not depend on faults, clients,
or why a leader was deposed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from ids import GroupId, Term
from vdl.clock import MS
from vdl.logstream.group.log_stream import LogStream
from vdl.logstream.host import Host
from vdl.logstream.options import TICK_NS, HostOptions
from vdl.sim.machine import Life, Machine
from vdl.sim.raft_watch import RaftWatch

STALE_LOOK_NS: Final = 50 * MS

BOUND_NS: Final = 2 * HostOptions().election_ticks * TICK_NS
"""Two election timeouts: one without a byte from the followers of the newer term, and the rest
until the next check of the links, or until their next heartbeat is read.
"""

UNDER_WAY_NS: Final = 400 * MS
"""Extra time of the network, where it loses and so delays data."""

_Place = tuple[int, GroupId, Term]
"""Server, group, the older term."""


@dataclass(slots=True)
class _OwnTime:
    """Running time of a process, by its own measure."""

    life: Life
    looked_ns: int
    lost_ns: int
    stood: bool
    passed_ns: int = 0

    def look(self, now_ns: int, lost_ns: int, *, stands: bool) -> None:
        passed_ns = now_ns - self.looked_ns - (lost_ns - self.lost_ns)
        if not (stands or self.stood):
            self.passed_ns += max(0, passed_ns)
        self.looked_ns, self.lost_ns, self.stood = now_ns, lost_ns, stands


class StaleWatch:
    """Watch of deposed leaders. `violate` is called once for each group."""

    def __init__(
        self,
        machines: Sequence[Machine],
        raft: RaftWatch,
        violate: Callable[[str, str], None],
    ) -> None:
        self._machines = machines
        self._raft = raft
        self._violate = violate
        self._times: dict[int, _OwnTime] = {}
        """By server id."""
        self._since: dict[_Place, int] = {}
        """Time, by its own measure, at which each serving deposed leader was first found."""
        self._told: set[GroupId] = set()
        self.longest_ns = 0
        """Longest time that any deposed leader has served."""

    def look(self, now_ns: int) -> None:
        """Check all servers."""
        since: dict[_Place, int] = {}
        for machine in self._machines:
            life = machine.life
            host = life.server.host if life is not None else None
            if life is None or host is None:
                self._times.pop(machine.server_id, None)
                continue
            passed_ns = self._passed_ns(life, host, now_ns)
            for group_id, term in self._outlived(host):
                place = (host.server_id, group_id, term)
                since[place] = self._since.get(place, passed_ns)
                self._judge(place, passed_ns - since[place])
        self._since = since

    def _passed_ns(self, life: Life, host: Host, now_ns: int) -> int:
        server_id = host.server_id
        time = self._times.get(server_id)
        lost_ns, stands = host.loop_time.lost_ns, life.clock.paused
        if time is None or time.life is not life:
            time = self._times[server_id] = _OwnTime(life, now_ns, lost_ns, stands)
        time.look(now_ns, lost_ns, stands=stands)
        return time.passed_ns

    def _outlived(self, host: Host) -> list[tuple[GroupId, Term]]:
        """Return the groups that a server serves in a term older than the newest committed one."""
        found: list[tuple[GroupId, Term]] = []
        for group_id, group in host.groups.items():
            if not group.serving:
                continue
            cluster = self._raft.group(group_id).cluster
            term = group.node.term
            if cluster.committed_term(cluster.last_committed) > term and _answers(
                host, group.owner
            ):
                found.append((group_id, term))
        return found

    def _judge(self, place: _Place, served_ns: int) -> None:
        server_id, group_id, term = place
        self.longest_ns = max(self.longest_ns, served_ns)
        if served_ns > BOUND_NS + UNDER_WAY_NS and group_id not in self._told:
            self._told.add(group_id)
            what = f"group {group_id}: server {server_id} serves in term {term}"
            ago = f"{served_ns // MS} ms after a newer one has committed"
            self._violate("stale-leader", f"{what}, {ago}")


def _answers(host: Host, owner: object) -> bool:
    """Return True if it answers by itself. After a loop gap a partition asks a quorum first."""
    return not isinstance(owner, LogStream) or owner._proved == host.state.gaps.count
