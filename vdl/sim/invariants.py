"""Invariants of every world, watched while it runs and checked at its end.

* The rules of Raft, after every event, on every replica the event touched (`raft_watch`).
* The memory that a server holds for its clients stays within its bounds, whatever they do.
* The durability audit: when a client receives an acknowledgement, its records are in the durable
  image of a majority of its replicas' disks. The disks are inspected directly: records are
  recognised in the bytes that became durable, whatever wrote them. For a topic with
  `min.insync.replicas` they are on that many disks, too, for clients that requested acks=all.
* The reported in-sync replicas are correct, and at the end all are in sync (`in_sync_watch`).
* A deposed leader does not serve for long (`stale_watch`).
* At the end all replicas of a group hold equal entries and equal state.
* Where producers expire, no live one is forgotten, and in the end none is remembered.
* The entries that a server holds in memory because no segment has them yet stay within their bound,
  whatever its disk does and whichever server sends them.
* No process ends by an exception, logs an error or fails to answer a request.

Does not depend on which faults happened.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from struct import Struct

from ids import GroupId, Index, NodeId
from segments.api import Buffer, EntriesDamaged, StorageError, StoredEntry
from vdl.clock import MS, Clock
from vdl.logstream.group.group import Group
from vdl.logstream.group.replica_ids import server_of
from vdl.logstream.host import Host
from vdl.server.server import ServerState
from vdl.sim.durable import DurableLogs
from vdl.sim.in_sync_watch import InSyncWatch
from vdl.sim.machine import Life, Machine
from vdl.sim.raft_watch import RaftWatch
from vdl.sim.recorder import values_in
from vdl.sim.stale_watch import StaleWatch
from vdl.sim.subscription import TopicPartition

COMMANDS_BYTES = 16 << 10
UNCOMMITTED_FACTOR = 2
_ENTRY = Struct("<QQBQQ")
_EVERYTHING = 1 << 30
REPAIR_NS = 500 * MS
REPAIRS_MAX = 20
"""Limit on repeated reads of a replica's log after a read met damage, `REPAIR_NS` apart."""


@dataclass(frozen=True, slots=True)
class Violation:
    """A violated invariant."""

    name: str
    detail: str

    def __str__(self) -> str:
        return f"{self.name}: {self.detail}"


class Watch:
    """Invariants of one run."""

    def __init__(self, machines: list[Machine], *, min_in_sync: int = 1) -> None:
        self._min_in_sync = min_in_sync
        self.violations: list[Violation] = []
        self.raft = RaftWatch(machines, self.violate)
        self.audited = 0
        self._in_sync = InSyncWatch(machines, self.raft, self.violate)
        self.stale = StaleWatch(machines, self.raft, self.violate)
        self.held_most: dict[str, int] = {}
        """Largest number of bytes that any server held for its clients, by kind."""
        self.sent_bytes_max = 0
        """Largest number of bytes that all producers together may have in flight to one leader."""
        self.raft.on_other_voters = self._other_voters
        self.takes_part: Callable[[Machine], bool] = _always
        """Returns False for a machine whose server is not in the cluster, by its own rules."""
        self._machines = machines
        self._values: dict[int, set[int]] = {}
        """By server id: values of records in the durable image of its disk."""
        self._safe: dict[int, int] = {}
        """Value → number of disks that held it when one of them was lost, or when the voters
        changed, if it was a majority.
        """
        self._lost: dict[tuple[int, NodeId], set[int]] = {}
        """By (group, replica) whose disk was lost: values it held until then."""
        for machine in machines:
            machine.on_start = self.raft.started
            machine.on_down = self._down
            machine.on_raft_frame = self.raft.frame_left
            machine.on_disk_lost = self._disk_lost
            machine.on_staged = self._staged
            self._listen(machine)

    @property
    def elections(self) -> int:
        return self.raft.elections

    def elections_but(self, topic: str) -> int:
        """Return the number of elections, not counting those of a topic's partitions."""
        groups = {group for (name, _), group in self.raft.partitions.items() if name == topic}
        watched = self.raft.groups.items()
        return sum(len(seen.leaders) for group_id, seen in watched if group_id not in groups)

    def violate(self, name: str, detail: str) -> None:
        self.violations.append(Violation(name, detail))

    def held(self, machine: str, what: str, count: int, limit: int) -> None:
        """Check the bytes that a server holds for its clients against a limit."""
        self.held_most[what] = max(self.held_most.get(what, 0), count)
        if count > limit:
            self.violate("memory", f"{machine} holds {count} bytes of {what}, allowed: {limit}")

    # --- while it runs ----------------------------------------------------------------------------
    def _down(self, life: Life) -> None:
        self.raft.ended(life)
        self.judge(life)

    def _staged(self, life: Life) -> None:
        """Check the unflushed bytes when data is on its way to the journal.

        Entries are held in memory until a segment has them.
        """
        host = life.server.host
        if host is None:
            return
        held, bound = life.store.unflushed_bytes, unflushed_bound(host, self.sent_bytes_max)
        if held > bound:
            self.violate(
                "unbounded", f"{life.machine.name} holds {held} unflushed bytes of {bound}"
            )

    def judge(self, life: Life) -> None:
        """Check the errors that a process has recorded, at its end."""
        frontend = life.server.frontend
        if frontend is not None and frontend.stats.handler_errors:
            self.violate("handler-error", f"{life.machine.name}: {frontend.stats.handler_errors}")
        for line in life.machine.warnings:
            self.violate("error-logged", f"{life.machine.name}: {line}")
        life.machine.warnings.clear()

    def look_at_in_sync(self, now_ns: int) -> None:
        """See `InSyncWatch.look`."""
        self._in_sync.look(now_ns)

    def acknowledged(self, tp: TopicPartition, values: list[int], on_all: bool) -> None:
        """Check that acknowledged values are durable. `on_all`: the client requested acks=all."""
        group_id = self.raft.partitions.get((tp.topic, tp.partition))
        if group_id is None:
            self.violate(
                "not-durable", (f"{tp}: acknowledged, but no server ever had a replica of it")
            )
            return
        seen = self.raft.group(group_id)
        halves = (seen.membership.incoming, seen.membership.outgoing)
        disks = [[self._held(group_id, replica) for replica in half] for half in halves]
        asked = min(self._min_in_sync, seen.most_voters) if on_all else 1
        for value in values:
            self.audited += 1
            were_safe = self._safe.get(value, 0)
            if not were_safe:
                for half in disks:
                    copies = sum(value in on_disk for on_disk in half)
                    if half and copies * 2 <= len(half):
                        what = f"{tp}: value {value} on {copies} of {len(half)} disks"
                        self.violate("not-durable", what)
            copies = sum(value in on_disk for on_disk in disks[0])
            if max(copies, were_safe) < asked:
                what = f"{tp}: value {value} on {copies} disks, expected {asked}"
                self.violate("too-few-copies", what)

    def _held(self, group_id: GroupId, replica: NodeId) -> set[int]:
        """Return the values durable with the replica, or durable when its disk was lost.

        What a lost replica acknowledged counts until another one takes its place.
        """
        return self._lost.get((group_id, replica), self._values[server_of(replica)])

    def _disk_lost(self, machine: Machine) -> None:
        """Record the loss of the machine's disk.

        Values held by a majority so far are correctly acknowledged, now or later, whichever
        replicas replace the lost ones.
        """
        mine = self._values[machine.server_id]
        for key in self.raft.log_ids:
            if server_of(key[1]) == machine.server_id:
                self._lost[key] = mine
        majority = min(3, len(self._machines)) // 2 + 1
        self._keep_safe(mine, list(self._values.values()), majority=majority)
        self._listen(machine)
        self.raft.disk_lost(machine.server_id)

    def _other_voters(self, group_id: GroupId, voters: Collection[NodeId]) -> None:
        """Keep the values that a majority of the old voters holds, before the voters change.

        A removed voter was correctly counted, though the answer may still be in flight. A new voter
        may lack entries that most others have: they remain committed, and any majority that elects
        a leader has one of those (thesis §4.1).
        """
        disks = [self._held(group_id, replica) for replica in voters]
        self._keep_safe(set().union(*disks), disks, majority=len(disks) // 2 + 1)

    def _keep_safe(self, values: set[int], disks: list[set[int]], *, majority: int) -> None:
        """Remember the values that a majority of the disks holds."""
        for value in values:
            copies = sum(value in on_disk for on_disk in disks)
            if copies >= majority:
                self._safe[value] = max(copies, self._safe.get(value, 0))

    def _listen(self, machine: Machine) -> None:
        """Collect the values that become durable on the machine's disk, which is empty now."""
        values = self._values[machine.server_id] = set()
        machine.disk.on_durable = _collector(values, self.raft.disks[machine.server_id])

    # --- when it is over --------------------------------------------------------------------------
    def settled(self) -> str:
        """Return why the replicas are not yet equal in length; empty if they are."""
        hosts = self._hosts()
        if len(hosts) < sum(map(self.takes_part, self._machines)):
            return "a server does not run"
        for machine in self._machines:
            if damaged := machine.unhealed():
                return damaged
        groups = sorted({group_id for host in hosts for group_id in host.groups})
        for group_id in groups:
            replicas = [host.groups[group_id] for host in hosts if group_id in host.groups]
            if len(replicas) < len(replicas[0].placement):
                return f"group {group_id} misses a replica"
            if any(group.to_finish for group in replicas):
                return f"replicas of group {group_id} are on the move"
            if not any(group.serving for group in replicas):
                return f"group {group_id} has no leader that serves"
            if len({group.log.last_index for group in replicas}) > 1:
                return f"logs of group {group_id} differ in length"
            if any(group.applied != group.log.last_index for group in replicas):
                return f"group {group_id} has entries that are not applied"
            servers = {server_of(replica) for replica in replicas[0].placement}
            for host in hosts:
                if set(host.in_sync_of(group_id)) != servers:
                    told = host.in_sync_of(group_id)
                    return f"group {group_id}: server {host.server_id} reports {told} in sync"
        return ""

    def remembered(self) -> str:
        """Describe a partition whose replica remembers a producer; empty if there is none."""
        for host in self._hosts():
            for group_id in sorted(host.groups):
                stream = host.stream(group_id)
                if stream is not None and len(stream.state.producers):
                    count = len(stream.state.producers)
                    return f"group {group_id}: server {host.server_id} remembers {count} producers"
        return ""

    def who_forgot(self, tp: TopicPartition, producer_id: int, offset: int) -> str:
        """Describe a replica that has applied the batch at `offset` but does not know its producer.

        Empty if there is none.
        """
        for host in self._hosts():
            for group_id in sorted(host.groups):
                stream = host.stream(group_id)
                if stream is None or (stream.topic, stream.partition) != (tp.topic, tp.partition):
                    continue
                group = stream.group
                if group.applied <= group.log.first_index:
                    continue  # its state may come from a snapshot alone
                is_applied = group.log.offset_after(group.applied) > offset
                if is_applied and stream.state.producers.get(producer_id) is None:
                    return f"{tp}: server {host.server_id}"
        return ""

    def led(self, machine: Machine) -> int:
        """Return the number of groups a machine leads."""
        host = machine.server.host if machine.server is not None else None
        return 0 if host is None else sum(g.node.is_leader for g in host.groups.values())

    def terms(self, core: Sequence[Machine]) -> dict[int, int]:
        """Return the highest term of each group on these machines."""
        servers = {machine.server_id for machine in core}
        terms: dict[int, int] = {}
        for host in self._hosts():
            if host.server_id in servers:
                for group_id, group in host.groups.items():
                    terms[group_id] = max(terms.get(group_id, 0), group.node.term)
        return terms

    def away_from_home(self) -> str:
        """Describe a group whose leader is not its preferred leader; empty if there is none."""
        for host in self._hosts():
            for group_id, group in sorted(host.groups.items()):
                if group.node.is_leader and not group.preferred:
                    return f"group {group_id}"
        return ""

    def leaderless(self, core: Sequence[Machine]) -> str:
        """Describe a group without a leader that serves clients in `core`; empty if there is none.

        Groups without a majority of their voters in `core` are not counted.
        """
        members = [machine for machine in core if self.takes_part(machine)]
        if not all(machine.server is not None and machine.server.host for machine in members):
            return "a server does not run"
        return next((f"group {group_id}" for group_id in self.unled(core)), "")

    def unled(
        self, core: Sequence[Machine], among: Collection[GroupId] | None = None
    ) -> Iterator[GroupId]:
        """Yield the groups without a leader that serves clients in `core`, in order.

        Only groups with a majority of their voters in `core` are considered, and only those in
        `among` if it is given. A leader that serves no clients counts as none: clients cannot reach
        the group, and no other server campaigns.
        """
        servers = {machine.server_id for machine in core}
        hosts = [host for host in self._hosts() if host.server_id in servers]
        closed = {m.server_id for m in core if not is_open(m)}
        found = {group_id for host in hosts for group_id in host.groups}
        for group_id in sorted(found if among is None else found.intersection(among)):
            having = [host for host in hosts if group_id in host.groups]
            electable = self.raft.has_majority(having[0].groups[group_id], servers)
            led = [host for host in having if host.groups[group_id].serving]
            if electable and all(host.server_id in closed for host in led):
                yield group_id

    def compare(self, done: Callable[[], None]) -> None:
        """Compare all replicas, which are settled, and call `done` when all logs are read.

        States are compared as they are now, logs as they are read back through their stores.
        """
        waiting = [0]
        digests: dict[int, dict[str, tuple[int, str]]] = {}
        states: dict[int, dict[str, str]] = {}

        def one_read() -> None:
            waiting[0] -= 1
            if not waiting[0]:
                self._report("replicas-differ", digests)
                self._report("states-differ", states)
                done()

        waiting[0] += 1
        for machine in filter(self.takes_part, self._machines):
            host = machine.server.host if machine.server is not None else None
            if host is None:
                continue
            for group_id in sorted(host.groups):
                group = host.groups[group_id]
                state_group, stream = host.state_group(group_id), host.stream(group_id)
                items = state_group.items() if state_group is not None else None
                if stream is not None:
                    items = stream.items()  # with its log start; deleted records are not compared
                if items is not None:
                    state = _digest(b"".join(k + v for k, v in items))
                    states.setdefault(group_id, {})[machine.name] = state
                waiting[0] += 1
                # Each replica chooses where to cut its log, so compare from the highest start.
                first = max(
                    other.groups[group_id].log.first_index
                    for other in self._hosts()
                    if group_id in other.groups
                )
                _read_log(
                    group, first, digests.setdefault(group_id, {}), machine, host.clock, one_read
                )
        one_read()

    def _report(self, name: str, found: Mapping[int, Mapping[str, object]]) -> None:
        for group_id, by_machine in sorted(found.items()):
            if len(set(by_machine.values())) > 1:
                self.violate(name, f"group {group_id}: {by_machine}")

    def _hosts(self) -> list[Host]:
        servers = [machine.server for machine in self._machines if self.takes_part(machine)]
        return [s.host for s in servers if s is not None and s.host is not None]


def _always(machine: Machine) -> bool:
    del machine
    return True


def is_open(machine: Machine) -> bool:
    """Return True if the machine's server accepts clients."""
    return machine.server is not None and machine.server.state is ServerState.SERVING


def unflushed_bound(host: Host, sent_bytes_max: int) -> int:
    """Return the largest number of unflushed bytes that a server may hold.

    It is the bound of followers, plus the bytes producers had sent before they were held back, plus
    the same again from leaders that have fallen. Commands are few and are not held back.
    """
    return host.state.unflushed_bytes_max + UNCOMMITTED_FACTOR * sent_bytes_max + COMMANDS_BYTES


def _read_log(
    group: Group,
    first: Index,
    digests: dict[str, tuple[int, str]],
    machine: Machine,
    clock: Clock,
    done: Callable[[], None],
) -> None:
    """Hash the group's entries from `first` up to the current commit index, piece by piece.

    Damage that is found must be repaired soon, as after any other read.
    """
    log = group.log
    end = log.commit_index + 1
    running = blake2b(digest_size=8)
    position = [first]
    repairs = [0]

    def read_on() -> None:
        if position[0] >= end:
            digests[machine.name] = (first, running.hexdigest())
            done()
            return
        group.store.entries_cold(log, position[0], end, _EVERYTHING, found)

    def found(entries: list[StoredEntry] | StorageError) -> None:
        if isinstance(entries, EntriesDamaged) and repairs[0] < REPAIRS_MAX:
            # This may be the first read of the damaged entries; it starts their repair.
            repairs[0] += 1
            clock.call_later(REPAIR_NS, read_on)
            return
        if isinstance(entries, StorageError):
            digests[machine.name] = (first, f"unreadable: {entries!r}")
            done()
            return
        for entry in entries:
            assert entry.index == position[0], (entry.index, position[0])
            head = (entry.index, entry.term, entry.kind, entry.base_offset, entry.records)
            running.update(_ENTRY.pack(*head))
            running.update(entry.data)
            position[0] += 1
        read_on()

    read_on()


def _digest(data: bytes) -> str:
    return blake2b(data, digest_size=8).hexdigest()


def _collector(values: set[int], logs: DurableLogs) -> Callable[[Buffer], None]:
    def durable(image: Buffer) -> None:
        logs.take(image)
        values.update(values_in(image))

    return durable
