"""Steps of a change: what each moves, and what is left while it does.

The moves are decided by a copy of the catalog (`catalog_copy.py`) and by `vdl/state/balance.py`.
A step is what is under way at one time: at most `MOVES_MAX` partitions, as in a drain.

A partition loses no replica before its new ones have caught up: the group changes its members by
joint consensus. So while a step lasts, the durable copies of a partition are at least its replicas
that are in sync now, or those that are in sync or new afterwards, whichever are fewer. A move that
would lower them below `COPIES_MIN` is not made. A partition that cannot move now is named, with the
reason.

Pure: time and rates are arguments.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace

from ids import GroupId, ServerId
from vdl.commands.changes.catalog_copy import LEAVING, WAITING, CatalogCopy
from vdl.commands.changes.live_cluster import LiveCluster, LiveServer
from vdl.logstream.membership.added_servers import MOVES_MAX
from vdl.server.problem import counted
from vdl.state.balance import (
    FILL_MAX,
    Change,
    Placed,
    ServerRoom,
    Where,
    balance,
    disk_of,
    shared_hosts,
)
from vdl.state.commands import DrainServers

COPIES_MIN = 2
STEP_SECONDS = 1.0
"""Time of a step beside its bytes: decisions of the catalog, and changes of members."""


@dataclass(frozen=True, slots=True)
class Blocked:
    """A partition that cannot move now."""

    where: Where
    reason: str


@dataclass(frozen=True, slots=True)
class Step:
    """One step, and what is left while it lasts."""

    title: str
    changes: list[Change] = field(default_factory=list)
    seconds: float = 0.0
    quorum_left: int | None = None
    """Servers that may fail while the step lasts, and each of its partitions goes on; None: it
    moves none."""
    copies_left: int | None = None
    """Least durable copies of one of its partitions while it lasts."""
    blocked: list[Blocked] = field(default_factory=list)

    @property
    def replicas(self) -> int:
        """Number of replicas that are copied."""
        return sum(len(change.added) for change in self.changes)

    @property
    def leaderships(self) -> int:
        """Number of partitions that are led by another server afterwards."""
        return sum(change.leads_elsewhere for change in self.changes)

    @property
    def moved_bytes(self) -> int:
        """Bytes that are copied."""
        return sum(change.moved_bytes for change in self.changes)


@dataclass(slots=True)
class Plan:
    """The steps of a change."""

    steps: list[Step] = field(default_factory=list)
    refused: str = ""
    """Why the cluster would refuse it; empty if it would not."""
    notes: list[str] = field(default_factory=list)

    @property
    def changes(self) -> list[Change]:
        """All moves, in their order."""
        return [change for step in self.steps for change in step.changes]

    @property
    def blocked(self) -> list[Blocked]:
        """Partitions that cannot move now, each once."""
        return list({one.where: one for step in self.steps for one in step.blocked}.values())


class Planner:
    """Plans of one live cluster. `rate`: bytes a second that a leader sends to its new replicas."""

    def __init__(self, live: LiveCluster, *, rate: int) -> None:
        self._live = live
        self._rate = rate
        self._replicas_max = live.replicas_max

    def remove(self, server: ServerId) -> Plan:
        """Remove a server: the drain that the catalog's leader carries out."""
        plan, copy = Plan(), CatalogCopy(self._live)
        error, plan.refused = copy.catalog.why_no_removal(server)
        if not error:
            plan.refused = copy.decommission(server)
        if plan.refused:
            return plan
        able = [one.id for one in self._live.servers.values() if one.is_up and not one.is_full]
        drain = DrainServers(able, MOVES_MAX, self._replicas_max)
        if (successor := copy.move_votes(server, able)) is not None:
            title = f"give the votes of server {server} in the catalog and the coordinators"
            plan.steps.append(Step(f"{title} to server {successor}"))
        stuck: dict[GroupId, Blocked] = {}
        title, begun = "end moves in progress", copy.in_progress()
        while True:
            changes = {
                group: self._change(copy.where[group], before, copy.replicas(group))
                for group, before in begun
            }
            why = {group: self.why_not_now(change) for group, change in changes.items()}
            done = [group for group in changes if not why[group]]
            now = {group: Blocked(changes[group].where, why[group]) for group in why if why[group]}
            if changes:
                moved = [changes[group] for group in done]
                plan.steps.append(self._step(title, moved, list(now.values())))
            copy.finish(done)
            stuck = {g: one for g, one in (stuck | now).items() if g not in done}
            title, begun = f"drain server {server}", copy.drain(drain)
            if not begun or (not done and changes):
                break
        for group in sorted(copy.catalog.held[server]):
            if group not in stuck:
                reason = self._why_kept(copy, group)
                stuck[group] = Blocked(copy.where[group], reason)
        blocked = [stuck[group] for group in sorted(stuck)]
        plan.steps.append(Step(f"remove server {server}", blocked=blocked))
        self._note(plan, voters=copy.catalog.voters)
        return plan

    def add(self, servers: Sequence[ServerId], rack: str) -> Plan:
        """Add servers that wait or will, and balance."""
        plan, copy = Plan(), CatalogCopy(self._live)
        for server in servers:
            plan.refused = copy.admit(server)
            if plan.refused:
                return plan
            copy.register(server, rack)
            plan.steps.append(Step(f"add server {server}"))
        known = self._live.servers
        rooms = [replace(_room(server, known.get(server)), rack=rack) for server in servers]
        return self._balance(plan, [*self._rooms(), *rooms])

    def balance(self) -> Plan:
        """Balance replicas and preferred leaders over the servers."""
        return self._balance(Plan(), self._rooms())

    def move(self, targets: dict[Where, list[ServerId]]) -> Plan:
        """Move partitions to given servers."""
        plan, copy = Plan(), CatalogCopy(self._live)
        changes = []
        for where, servers in sorted(targets.items()):
            partition = self._live.partitions.get(where)
            if partition is None:
                plan.refused = f"{told(where)}: no such partition"
                return plan
            change = self._change(where, partition.replicas, tuple(servers))
            plan.refused = copy.reassign(where, servers, self._replicas_max) or _why_fewer(change)
            if plan.refused:
                plan.refused = f"{told(where)}: {plan.refused}"
                return plan
            if change.before != change.after:
                changes.append(change)
        self._add_steps(plan, "move partitions", changes)
        self._note(plan)
        return plan

    def why_not_as_planned(self, plan: Plan, servers: Iterable[ServerId], rack: str) -> list[str]:
        """Return what the plan to add servers did not know: their racks and disks, once they are
        there."""
        racks = self._live.racks
        found = [
            f"server {one} is in rack {racks[one]!r}, and was planned for {rack!r}"
            for one in servers
            if one in racks and racks[one] != rack
        ]
        again = Plan(plan.steps)
        self._note(again)
        return found + [
            note for note in (again.refused, *again.notes) if note and note not in plan.notes
        ]

    def why_not_now(self, change: Change, new: Iterable[ServerId] = ()) -> str:
        """Return why a partition cannot move; empty if it can. `new`: servers that will be there by
        then."""
        return self._why(change, new) or self._why_unsafe(change)

    def why_not_begun(self, change: Change) -> str:
        """Return why a move cannot be asked for; empty if it can."""
        if self._live.partitions[change.where].moving is not None:
            return "it is being moved already"
        return self.why_not_now(change)

    def anew(self, change: Change) -> Change:
        """Return the change from what a partition's replicas are now."""
        partition = self._live.partitions.get(change.where)
        before = change.after if partition is None else partition.replicas
        return Change(change.where, before, change.after, change.size)

    def why_kept(self, where: Where) -> str:
        """Return what a move in progress waits for."""
        partition = self._live.partitions.get(where)
        if partition is None or partition.moving is None:
            return "it has ended"
        moving, size = partition.moving, partition.size
        before = tuple(s for s in moving.replicas if s not in moving.adding)
        why = self.why_not_now(Change(where, before, partition.replicas, size))
        if why or not moving.adding:
            return why or "its leader has not confirmed yet that it moved"
        return f"server {min(moving.adding)} takes it"

    # --- parts ------------------------------------------------------------------------------------
    def _rooms(self) -> list[ServerRoom]:
        """Return the servers that may take replicas."""
        return [
            one.room
            for one in self._live.servers.values()
            if one.is_up and not one.is_full and one.member.standing == "member"
        ]

    def _balance(self, plan: Plan, rooms: list[ServerRoom]) -> Plan:
        live = self._live
        leaving = {s for s, one in live.servers.items() if one.member.standing == LEAVING}
        placed = [
            Placed(
                one.where,
                one.replicas,
                one.size,
                is_fixed=one.moving is not None
                or one.leader < 0
                or not leaving.isdisjoint(one.replicas),
            )
            for one in live.partitions.values()
        ]
        racks = {**live.racks, **{room.server_id: room.rack for room in rooms}}
        new = {room.server_id for room in rooms} - live.up
        changes = balance(rooms, placed, racks=racks, replicas_max=self._replicas_max)
        self._add_steps(plan, "balance", changes, new)
        left = sum(one.is_fixed for one in placed)
        if left:
            plan.notes.append(
                f"{counted(left, 'partition')} left as before: moving, without a leader, or on a "
                "server that is being removed"
            )
        down = sorted(s for s, one in live.servers.items() if not one.is_up and s not in new)
        down = [s for s in down if live.servers[s].member.standing != WAITING]
        if down:
            plan.notes.append(f"servers that do not answer are left as they are: {_list(down)}")
        self._note(plan, rooms)
        return plan

    def _add_steps(
        self, plan: Plan, title: str, changes: list[Change], new: Iterable[ServerId] = ()
    ) -> None:
        """Divide moves into steps. `new`: servers that will be there by then."""
        for start in range(0, len(changes), MOVES_MAX):
            some = changes[start : start + MOVES_MAX]
            why = {change.where: self.why_not_now(change, new) for change in some}
            plan.steps.append(
                self._step(
                    title,
                    [change for change in some if not why[change.where]],
                    [Blocked(where, reason) for where, reason in why.items() if reason],
                    new,
                )
            )

    def _change(
        self, where: Where, before: tuple[ServerId, ...], after: tuple[ServerId, ...]
    ) -> Change:
        return Change(where, before, after, self._live.partitions[where].size)

    def _step(
        self,
        title: str,
        changes: list[Change],
        blocked: list[Blocked],
        new: Iterable[ServerId] = (),
    ) -> Step:
        up = self._live.up.union(new)
        sent: Counter[int] = Counter()
        for change in changes:
            sent[self._live.partitions[change.where].leader] += change.moved_bytes
        return Step(
            title,
            changes,
            STEP_SECONDS + max(sent.values(), default=0) / self._rate,
            min((_quorum_left(change, up) for change in changes), default=None),
            min((self._copies_left(change) for change in changes), default=None),
            blocked,
        )

    def _copies_left(self, change: Change) -> int:
        in_sync = self._live.partitions[change.where].in_sync
        after = in_sync.union(change.added).intersection(change.after)
        return min(len(in_sync.intersection(change.before)), len(after))

    def _why(self, change: Change, new: Iterable[ServerId]) -> str:
        partition, up = self._live.partitions[change.where], self._live.up.union(new)
        if partition.leader < 0:
            missing = sorted(set(change.before) - up)
            return "it has no leader" + (f" (not connected: {_list(missing)})" if missing else "")
        for server in sorted(change.added):
            if server not in up:
                return f"server {server}, which is to take it, is not connected"
            one = self._live.servers.get(server)
            if one is not None and one.is_full:
                return f"the disk of server {server}, which is to take it, is full"
        return ""

    def _why_unsafe(self, change: Change) -> str:
        is_safe = len(change.before) < COPIES_MIN or self._copies_left(change) >= COPIES_MIN
        return "" if is_safe else "fewer than two durable copies would be left"

    def _why_kept(self, copy: CatalogCopy, group: GroupId) -> str:
        """Return why a drain moves a partition nowhere."""
        catalog, limit = copy.catalog, self._replicas_max
        others = catalog.servers.keys() - catalog.leaving - set(copy.replicas(group))
        if not others:
            return "every other server has a replica of it"
        if limit and all(len(catalog.held[server]) >= limit for server in others):
            return f"no server may have more than {limit} replicas"
        return "others must move first"

    def _note(
        self,
        plan: Plan,
        rooms: Iterable[ServerRoom] | None = None,
        voters: Collection[ServerId] | None = None,
    ) -> None:
        """Note hosts that would be shared and disks that would be too full. Refuse what no disk has
        room for. `voters`: those of the catalog afterwards; None: as now."""
        live = self._live
        if voters is None:
            voters = [one.id for one in live.servers.values() if one.member.is_voter]
        known = self._rooms() if rooms is None else rooms
        racks = {**live.racks, **{room.server_id: room.rack for room in known}}
        shared = [c.where for c in plan.changes if shared_hosts(c.after, racks)]
        if shared:
            plan.notes.append(
                f"{counted(len(shared), 'partition')}, such as {told(shared[0])}, with several "
                "replicas on one host afterwards"
            )
        single = [c.where for c in plan.changes if len(c.before) == len(c.after) == 1]
        if single:
            plan.notes.append(
                f"{counted(len(single), 'partition')}, such as {told(single[0])}, with one "
                "replica: one durable copy before, and one after"
            )
        disks = {room.server_id: disk_of(room) for room in known}
        more: Counter[str | ServerId] = Counter()
        for change in plan.changes:
            for server in change.added:
                more[disks.get(server, server)] += change.size
        for room in {disk_of(room): room for room in reversed([*known])}.values():
            added = more[disk_of(room)]
            used = room.total_bytes - room.free_bytes + added
            if added and used > room.total_bytes > 0:
                plan.refused = (
                    f"server {room.server_id} has no room: {used - room.total_bytes} bytes more "
                    "than its disk has"
                )
            elif added and used > FILL_MAX * room.total_bytes > 0:
                plan.notes.append(f"the disk of server {room.server_id} would be over 80 % full")
        count, of_rack = len(voters), Counter(live.racks.get(one) for one in voters)
        for rack, number in sorted((r, n) for r, n in of_rack.items() if r):
            if 2 * number >= count > 1:
                plan.notes.append(
                    f"{number} of the {count} servers that have the catalog and the coordinators "
                    f"are in rack {rack}: without it the cluster stops"
                )


def told(where: Where) -> str:
    """Return the name of a partition."""
    return f"{where[0]}-{where[1]}"


def _room(server: ServerId, known: LiveServer | None) -> ServerRoom:
    return ServerRoom(server) if known is None else known.room


def _list(servers: Iterable[int]) -> str:
    return ", ".join(map(str, servers))


def _quorum_left(change: Change, up: frozenset[ServerId]) -> int:
    """Return the servers that may fail, and a majority of the old and of the new replicas is left.

    While the members change, a group needs both.
    """
    return min(
        len(up.intersection(replicas)) - (len(replicas) // 2 + 1)
        for replicas in (change.before, change.after)
    )


def _why_fewer(change: Change) -> str:
    if len(change.after) < COPIES_MIN <= len(change.before):
        return "fewer than two durable copies would be left"
    return ""
