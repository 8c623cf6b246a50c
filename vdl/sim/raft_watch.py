"""Checks of the rules of Raft on every replica after every event that touched it.

`RaftWatch` sees a whole world: every run of every process, every RAFT frame sent, every run of
bytes that becomes durable. `raft.invariants` checks the paper's Figure 3 for every replica that an
event touched. This module checks what needs the whole world:

* Acknowledgements and votes are kept: a replica votes once a term over all its processes; its term,
  and entries that it acknowledged, are still there after a crash.
* They are not early: an acknowledgement or a vote that leaves a machine is in the durable image of
  that machine's disk, as its bytes show (`durable`), and a committed entry is in those of a quorum.
* A recovery finds exactly the durable state of the disk, in the directory of the process before.
* A replica that was lost never runs again under its number: that belongs to one directory.
* No replica becomes leader on a server that serves no clients, except for the catalog, and except
  for a replica with entries that a replica on a serving server lacks.
* Equal (index, term) means equal logs up to there, payloads included: each entry's hash covers
  everything before it.
* A confirmed read sees everything that was committed anywhere before it was requested.

A group that broke a rule is not checked again: its state is unreliable. Does not depend on which
faults happened, on clients, or on what entries mean.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from zlib import crc32

from ids import NO_INDEX, NO_TERM, GroupId, Index, LogId, NodeId, ServerId, Term, indexes
from raft.errors import Compacted
from raft.invariants import (
    ClusterInvariants,
    InvariantViolation,
    check_node,
    entry_fingerprint,
    place_fingerprint,
)
from raft.membership import Membership
from raft.messages import MsgAppResp, MsgSnap, MsgVote, MsgVoteResp
from raft.node import RawNode
from raft.state import LEADER, Raft
from raft.types import Entry, EntryKind, HardState
from rpc.frames import decode_messages
from segments.api import Log
from vdl.errors import ErrorCode
from vdl.kafka.groups.group_coordinator import GroupCoordinator
from vdl.kafka.groups.led_coordinator import LedCoordinator
from vdl.logstream.group.group import Group
from vdl.logstream.group.read_index import ReadRounds
from vdl.logstream.group.replica_ids import replica_id_of, server_of
from vdl.logstream.group.snapshots import decode_snapshot
from vdl.logstream.state import CATALOG_GROUP
from vdl.server.server import ServerState
from vdl.sim.durable import DurableLog, DurableLogs
from vdl.sim.machine import Life, Machine
from vdl.sim.store_watch import StoreWatch
from vdl.sim.watched_node import WatchedNode
from vdl.state.coordinator import Coordinator

CONF_KINDS = (EntryKind.CONF_CHANGE, EntryKind.CONF_CHANGE_V2)

Violate = Callable[[str, str], None]


@dataclass(slots=True)
class Past:
    """Votes, terms and entries that one replica has sent to others, over all its processes."""

    votes: dict[Term, NodeId] = field(default_factory=dict)
    term: Term = NO_TERM
    """Highest term in which it has voted or acknowledged."""
    index: Index = NO_INDEX
    """Last entry that it acknowledged and that has not been replaced since."""
    index_term: Term = NO_TERM


class GroupWatch:
    """State of one group over the whole run."""

    def __init__(self, group_id: GroupId) -> None:
        self.group_id = group_id
        self.cluster = ClusterInvariants()
        self.leaders: dict[Term, NodeId] = {}
        self.chains: dict[tuple[Index, Term], int] = {}
        """Hash over an entry and everything before it."""
        self.past: dict[NodeId, Past] = {}
        self.open_ends: dict[NodeId, tuple[Term, Index]] = {}
        """(term, index) of the last entry of each replica when its server last served."""
        self.members: dict[Index, Membership] = {}
        """Membership after everything up to an index is applied."""
        self.membership = Membership()
        """Membership as of the newest leader."""
        self.membership_term: Term = NO_TERM
        self.membership_index: Index = NO_INDEX
        self.applied_membership = Membership()
        """Newest membership that any voter has applied."""
        self.applied_index: Index = NO_INDEX
        self.most_voters = 0
        self.is_compacted = False
        """True if replicas may hold different parts of entries with records: only the places are
        compared.
        """
        self.broken = False

    def watch_places_only(self) -> None:
        """Compare only the entries' places, because the log is compacted: `is_compacted`."""
        self.is_compacted = True
        self.cluster.fingerprint = _compacted_fingerprint

    def past_of(self, replica: NodeId) -> Past:
        past = self.past.get(replica)
        if past is None:
            past = self.past[replica] = Past()
        return past


class ReplicaWatch:
    """One replica in one process: its state after the last event that touched it."""

    __slots__ = (
        "_base", "_chains", "_commit", "_confs", "_installing", "_is_open", "_is_unstable",
        "_leading", "_led_term", "_mark", "_members", "_stable", "_terms", "_watch", "group",
        "node", "seen",
    )  # fmt: skip

    def __init__(
        self, watch: RaftWatch, seen: GroupWatch, group: Group, is_open: Callable[[], bool]
    ) -> None:
        """Watch a replica. `is_open` returns True if its server accepts clients."""
        self._watch = watch
        self._is_open = is_open
        self.seen = seen
        self.group = group
        self.node: RawNode = group.node
        self._commit: Index = NO_INDEX
        self._leading = False
        self._led_term: Term = NO_TERM
        self._mark: tuple[object, ...] = ()
        self._base: Index = NO_INDEX
        self._terms: list[Term] = [NO_TERM]
        self._chains: list[int] = [0]
        self._confs: list[Index] = []
        self._installing: tuple[Index, Index] | None = None
        """Snapshot being installed: its index, and the index that its state reflects."""
        self._stable: Index = self.node.raft.log.stable
        self._is_unstable = False
        self._members = self.node.raft.membership

    def begin(self, recovered: HardState | None) -> None:
        """Check the replica at its start. `recovered`: the hard state found on its disk, if any."""
        raft, seen = self.node.raft, self.seen
        seen.most_voters = max(seen.most_voters, len(raft.membership.incoming))
        past = seen.past_of(self.node.id)
        if raft.term < past.term:
            self._watch.broken(
                seen, "term-lost", f"{self._name()}: reported {past.term}, returned in {raft.term}"
            )
        self._read_recovered(raft)
        self._commit = raft.log.committed
        if self._commit > seen.cluster.last_committed:
            self._watch.broken(
                seen, "commit", (
                    f"{self._name()} begins with {self._commit} committed, above the last "
                    f"committed entry {seen.cluster.last_committed}"
                ),
            )  # fmt: skip
        if recovered is not None:
            seen.cluster.restarted(self.node, recovered)
        self.look()

    def look(self) -> None:
        """Check the replica against itself, its past and the other replicas."""
        raft = self.node.raft
        log = raft.log
        mark = (
            raft.term, raft.vote, raft.state, raft.lead, log.committed, log.last_index,
            log.last_term, log.stable, log.applied, log.applying,
        )  # fmt: skip
        if mark == self._mark:
            if raft.state is LEADER:
                check_node(self.node)  # its progress of peers may have moved
            return
        self._mark = mark
        if self._is_open():
            self.seen.open_ends[raft.id] = log.last_term, log.last_index
        self._follow_log(raft)
        if log.stable != self._stable:
            self._check_stable(raft)
        if self._installing is not None:
            self._check_installed(raft, *self._installing)
        if log.committed != self._commit:
            self._check_commit(raft)
        self.seen.cluster.observe(self.node)
        self._check_members(raft)
        self._commit = log.committed
        self._members = raft.membership
        self._leading = raft.state is LEADER
        if self._leading:
            self._leads(raft)

    def _name(self) -> str:
        return f"group {self.seen.group_id}, replica on server {server_of(self.node.id)}"

    # --- the log --------------------------------------------------------------------------------
    def _read_recovered(self, raft: Raft) -> None:
        """Take over the recovered log: known entries by their place, others as read."""
        log, seen = raft.log, self.seen
        first = log.first_index()
        if first > 1:
            self._rebase(first - 1, log.term(first - 1))
        for index in indexes(first, log.offset):
            term = log.term(index)
            chain = seen.chains.get((index, term))
            if chain is None or index > log.committed:
                entry = log.slice(index, index + 1, 0)[0]
                read = _chained(self._chains[-1], entry, is_compacted=self.seen.is_compacted)
                chain = seen.chains.setdefault((index, term), read)
                if chain != read:
                    self._watch.broken(
                        seen, "log-matching", f"{self._name()} read another entry at {index},"
                        f" term {term}, than was written",
                    )  # fmt: skip
            self._terms.append(term)
            self._chains.append(chain)

    def _rebase(self, index: Index, term: Term) -> None:
        """Start the log after `index`, because a snapshot replaced the entries up to it."""
        chain = self.seen.chains.get((index, term))
        committed = self.seen.cluster.committed_term(index)
        if committed not in {0, term}:
            self._watch.broken(
                self.seen, "log-start", (
                    f"{self._name()} begins after entry {index}, term {term}, but the entry "
                    f"committed there has term {committed}"
                ),
            )  # fmt: skip
        if chain is None:
            self._watch.broken(
                self.seen, "log-start", (
                    f"{self._name()} begins after entry {index}, term {term}, which no replica "
                    "had"
                ),
            )  # fmt: skip
        self._base = index
        self._terms = [term]
        self._chains = [chain or 0]
        self._confs = []

    def _follow_log(self, raft: Raft) -> None:
        """Take in entries appended and replaced since the last look (§5.3, Log Matching)."""
        log, seen = raft.log, self.seen
        entries, offset = log.entries, log.offset
        top = self._base + len(self._terms) - 1
        before = offset - 1
        if before > top or self._terms[before - self._base] != log.term(before):
            self._take_snapshot(before, log.term(before))
            top = self._base
        same = min(log.last_index, top)
        while same >= offset and self._terms[same - self._base] != entries[same - offset].term:
            same -= 1
        if same < top:
            if same == log.last_index:
                self._watch.broken(
                    seen, "log-cut", (
                        f"{self._name()} truncated the entries after {same} without a "
                        "replacement"
                    ),
                )  # fmt: skip
            self._replaced(same)
        for entry in entries[same + 1 - offset :]:
            chain = _chained(self._chains[-1], entry, is_compacted=self.seen.is_compacted)
            known = seen.chains.setdefault((entry.index, entry.term), chain)
            if known != chain:
                self._watch.broken(
                    seen, "log-matching", (
                        f"{self._name()}: entry {entry.index}, term {entry.term}, or an "
                        "earlier one, differs on another replica"
                    ),
                )  # fmt: skip
            self._terms.append(entry.term)
            self._chains.append(chain)
            if entry.kind in CONF_KINDS:
                self._confs.append(entry.index)

    def _take_snapshot(self, index: Index, term: Term) -> None:
        """Take in a snapshot that replaced the whole log (§7).

        The log ended before `index` or had another entry there. In the latter case everything after
        it is gone, and the chains kept here for the entries up to there differ from the others'.
        """
        if index <= self._commit:
            self._watch.broken(
                self.seen, "truncated-commit", f"{self._name()} replaced entry {index} by a"
                f" snapshot, with {self._commit} committed",
            )  # fmt: skip
        past = self.seen.past_of(self.node.id)
        if index < past.index < self._base + len(self._terms):
            # A crash may still restore the old log: then its own entry was acknowledged.
            past.index, past.index_term = index, self._terms[index - self._base]
        self._rebase(index, term)
        snapshot = self.node.raft.log.snapshot
        if snapshot is not None and snapshot.index == index and snapshot.data:
            reflects = decode_snapshot(snapshot.data).members.reflects
            self._installing = index, reflects
            if reflects < index:
                self._watch.broken(
                    self.seen, "snapshot-ahead", f"{self._name()} gets a snapshot at {index} whose"
                    f" state is that after {reflects}",
                )  # fmt: skip

    def _check_stable(self, raft: Raft) -> None:
        """Check that the entries the replica takes for durable are on its disk (RELIABILITY 1.5.2).

        Report it once and keep checking the group.
        """
        log, seen = raft.log, self.seen
        grows, self._stable = log.stable > self._stable, log.stable
        if not grows or log.snapshot is not None or self._is_unstable:
            return
        term = log.term(log.stable)
        if not self._watch.is_durable(seen.group_id, self.node.id, log.stable, term):
            self._is_unstable = True
            what = f"{self._name()} treats {log.stable}, term {term}, as durable"
            self._watch.told("stable-not-durable", what)

    def _check_installed(self, raft: Raft, index: Index, reflects: Index) -> None:
        """Check that the replica knows how far an installed snapshot's state reaches.

        Entries up to there must not be applied to it again.
        """
        if raft.log.snapshot is not None or self.group.applied < index:
            return
        self._installing = None
        if self.group.reflects < reflects:
            self._watch.broken(
                self.seen, "reflects-forgotten", (
                    f"{self._name()} has a state as of {reflects}, but continues as of "
                    f"{self.group.reflects}"
                ),
            )  # fmt: skip

    def _replaced(self, same: Index) -> None:
        """Cut the watched log after `same`."""
        if same < self._commit:
            self._watch.broken(
                self.seen, "truncated-commit", (
                    f"{self._name()} truncated the entries after {same}, with {self._commit} "
                    "committed"
                ),
            )  # fmt: skip
        kept = same + 1 - self._base
        del self._terms[kept:], self._chains[kept:]
        self._confs = [index for index in self._confs if index <= same]
        past = self.seen.past_of(self.node.id)
        if past.index > same:
            past.index, past.index_term = same, self._terms[-1]

    # --- commits and leaders --------------------------------------------------------------------
    def _check_commit(self, raft: Raft) -> None:
        """Check an advanced commit index: a leader proves it, others receive it (§5.4.2)."""
        commit, seen = raft.log.committed, self.seen
        term = raft.log.term(commit)
        leads = raft.state is LEADER and (commit >= raft.term_start or self._led_term == raft.term)
        # The event in which a leader commits may also be the one that deposes it.
        if leads or (self._leading and term == self._led_term):
            if leads and term != raft.term:
                self._watch.broken(
                    seen, "old-term-commit", f"{self._name()} leads term {raft.term} and committed"
                    f" entry {commit} of term {term}",
                )  # fmt: skip
            # The event in which it commits may also apply a membership change committed before: the
            # members at the start of the event count.
            too_few = self._too_few(self._members, commit, term)
            if too_few and self._members is not raft.membership:
                too_few = self._too_few(raft.membership, commit, term)
            if too_few:
                self._watch.broken(
                    seen, "commit-not-durable", f"{self._name()} committed entry {commit}, term"
                    f" {term}, durable on {too_few}",
                )  # fmt: skip
        elif commit > seen.cluster.last_committed:
            self._watch.broken(
                seen, "commit", (
                    f"{self._name()} treats {commit} as committed, above the last committed "
                    f"entry {seen.cluster.last_committed}"
                ),
            )  # fmt: skip

    def _too_few(self, members: Membership, index: Index, term: Term) -> str:
        """Describe on how many disks an entry is durable; empty if on a quorum of the members."""
        for half in (members.incoming, members.outgoing):
            has = sum(self._watch.is_durable(self.seen.group_id, r, index, term) for r in half)
            if half and has * 2 <= len(half):
                return f"{has} of {len(half)} disks"
        return ""

    def _check_members(self, raft: Raft) -> None:
        """Check that equal applied entries mean equal members: they are replicated state (§6)."""
        seen = self.seen
        # A snapshot may hold the membership as of an index after its own.
        index = max(raft.log.applied, self.group.reflects)
        if index < seen.membership_index or raft.id not in seen.membership.incoming:
            return  # a new replica uses its initial membership until it has caught up
        if index >= seen.applied_index:
            seen.applied_index, seen.applied_membership = index, raft.membership
        known = seen.members.setdefault(index, raft.membership)
        if known != raft.membership:
            self._watch.broken(
                seen, "members-differ", (
                    f"{self._name()} has applied {index} entries and has the members "
                    f"{raft.membership}, another replica {known}"
                ),
            )  # fmt: skip

    def _is_needed(self, raft: Raft) -> bool:
        """Return True if a replica whose server serves lacked entries of this one at its election.

        Also one that is no voter any more: it may not know, and campaigns.
        """
        last = Index(raft.term_start - 1)
        end = raft.log.term(last), last
        return any(other < end for other in self.seen.open_ends.values())

    def _leads(self, raft: Raft) -> None:
        term, seen = raft.term, self.seen
        if self._led_term != term:
            self._led_term = term
            if seen.group_id != CATALOG_GROUP and not (self._is_open() or self._is_needed(raft)):
                self._watch.told("leads-closed", f"{self._name()} leads, and serves no clients")
            if term not in seen.leaders:
                seen.leaders[term] = raft.id
                self._watch.elections += 1
            # `ClusterInvariants` reports two leaders of one term.
        if term >= seen.membership_term:
            if seen.membership.incoming != raft.membership.incoming:
                self._watch.on_other_voters(seen.group_id, seen.membership.incoming)
            seen.membership_term, seen.membership = term, raft.membership
            seen.membership_index = raft.membership_index
        committed = seen.cluster.last_committed
        open_changes = [index for index in self._confs if index > committed]
        if len(open_changes) > 1:
            self._watch.broken(
                seen, "two-changes", f"{self._name()} has uncommitted configuration changes at"
                f" {open_changes}",
            )  # fmt: skip


class WatchedReads(ReadRounds):
    """Read index rounds of one replica, checked when a read is confirmed (§8)."""

    __slots__ = ("_group", "_seen", "_watch")

    def __init__(self, watch: RaftWatch, seen: GroupWatch, group: Group) -> None:
        super().__init__()
        self._watch = watch
        self._seen = seen
        self._group = group

    def ask(self, deadline_ns: int, done: Callable[[bool], None]) -> None:
        committed = self._seen.cluster.last_committed

        def checked(confirmed: bool) -> None:
            if confirmed and self._group.applied < committed:
                self._watch.broken(
                    self._seen, "stale-read-index", (
                        f"group {self._seen.group_id}: a read was confirmed at "
                        f"{self._group.applied}, but {committed} was committed before its "
                        "request"
                    ),
                )  # fmt: skip
            done(confirmed)

        super().ask(deadline_ns, checked)


def watch_answers(watch: RaftWatch, groups: GroupCoordinator) -> None:
    """Check that a coordinator answers from state that reflects every earlier commit (§8).

    The state must include everything committed anywhere before the request, however leadership was
    confirmed.
    """
    read_led = groups.read_led
    if "read_led" in vars(groups):
        return  # it has several replicas here

    def read(led: LedCoordinator, done: Callable[[ErrorCode, Coordinator | None], None]) -> None:
        group = led.state_group.group
        seen = watch.group(group.group_id)
        committed = seen.cluster.last_committed

        def checked(error: ErrorCode, machine: Coordinator | None) -> None:
            if error is ErrorCode.NONE and group.applied < committed:
                watch.broken(
                    seen, "stale-answer", (
                        f"group {seen.group_id}: committed state was reported as of "
                        f"{group.applied}, but {committed} was committed before the request"
                    ),
                )  # fmt: skip
            done(error, machine)

        read_led(led, checked)

    vars(groups)["read_led"] = read


class _Moving:
    """Last seen state of a replica that may change without a pump.

    It changes by an acknowledgement, a completion of the disk or an application of entries.
    """

    __slots__ = ("applied", "group", "known", "log", "membership_index", "raft", "stable")

    def __init__(self, group: Group) -> None:
        self.group = group
        self.raft = group.node.raft
        self.log = self.raft.log
        self.stable = self.applied = self.membership_index = self.known = -1
        """`known`: sum of the match indexes of a leader's peers."""


class LifeWatch:
    """Watch of one process: finds the replicas that an event touched."""

    __slots__ = (
        "_groups", "_moving", "_old", "_replicas", "_touched", "_watch", "life", "recovered"
    )  # fmt: skip

    def __init__(self, watch: RaftWatch, life: Life, recovered: dict[LogId, HardState]) -> None:
        self._watch = watch
        self.life = life
        self.recovered = recovered
        """Recovered hard states by log id, until their replica starts."""
        self._groups: list[Group] = []
        self._moving: list[_Moving] = []
        """One for each group, in that order."""
        self._replicas: dict[int, ReplicaWatch] = {}
        self._touched: set[int] = set()
        self._old: dict[int, tuple[Group, Index]] = {}
        """Replicas from an older copy of the disk, with their commit index at that time."""

    def _look_at_old(self) -> None:
        """Check that replicas from an older copy take no part: all others know of the copy."""
        for group_id, (group, commit) in list(self._old.items()):
            if group.node.is_leader or group.node.commit > commit:
                del self._old[group_id]
                self._watch.told(
                    "old-copy", (
                        f"{self.life.machine.name}: a replica of group {group_id} runs on an "
                        "older copy of its disk, which all others have recorded"
                    ),
                )  # fmt: skip

    def event_over(self) -> None:
        """Check the replicas that the event touched.

        These are replicas that wait for a pump, were pumped, or changed in a way that needs none.
        """
        host = self.life.server.host
        if host is None:
            return
        if self._old:
            self._look_at_old()
        groups = list(host.groups.values())
        if groups != self._groups:
            self._follow(groups)
        touched, dirty = self._touched, []
        for moving in self._moving:
            # This runs for each replica after each event: no call and no allocation if nothing
            # changed.
            raft, log = moving.raft, moving.log
            known = 0
            if raft.state is LEADER:
                for progress in raft.incoming_progress:
                    known += progress.match
            if (
                log.stable != moving.stable
                or log.applied != moving.applied
                or raft.membership_index != moving.membership_index
                or known != moving.known
            ):
                moving.stable, moving.applied = log.stable, log.applied
                moving.membership_index, moving.known = raft.membership_index, known
                touched.add(moving.group.group_id)
            if moving.group.dirty:
                dirty.append(moving.group.group_id)
        if dirty or touched:
            replicas = self._replicas
            touched.update(dirty)
            for group_id in sorted(touched):
                replica = replicas.get(group_id)
                if replica is not None:
                    self._look(replica)
            touched.clear()
            # The next turn pumps these, which may leave no other sign of it.
            touched.update(dirty)

    def _follow(self, groups: list[Group]) -> None:
        """Follow replicas that were added and removed."""
        self._groups = groups
        here = {group.group_id: group for group in groups}
        for group_id, group in here.items():
            replica = self._replicas.get(group_id)
            if replica is None or replica.group is not group:
                self._begin(group)
        for gone in [group_id for group_id in self._replicas if group_id not in here]:
            del self._replicas[gone]
        known = {moving.group: moving for moving in self._moving}
        self._moving = [known.get(group) or _Moving(group) for group in groups]

    def over(self) -> None:
        """Check all replicas once more, at the end of the process."""
        self.event_over()
        for replica in self._replicas.values():
            self._look(replica)

    def _begin(self, group: Group) -> None:
        watch = self._watch
        seen = watch.group(group.group_id)
        if group.log.log_id < self.life.machine.old_logs_end:
            # It may exist until it hears from the others, but must not take part with them.
            self._old.setdefault(group.group_id, (group, group.node.commit))
            return
        key = group.group_id, group.replica_id
        if key in watch.lost:
            name = f"group {group.group_id}, replica {group.replica_id}"
            watch.told("number-reused", f"{name}: is back after it was lost")
        watch.log_ids[key] = group.log.log_id
        host = self.life.server.host
        stream = host.stream(group.group_id) if host is not None else None
        if stream is not None:
            watch.partitions[stream.topic, stream.partition] = group.group_id
        self._listen(group)
        replica = self._replicas[group.group_id] = ReplicaWatch(
            watch, seen, group, is_open=lambda: self.life.server.state is ServerState.SERVING
        )
        state_group = host.state_group(group.group_id) if host is not None else None
        for observer in state_group.observers if state_group is not None else ():
            if isinstance(observer, GroupCoordinator):
                watch_answers(watch, observer)
        if not seen.broken:
            assert not group.reads, "a replica that was asked before it was seen"
            group.reads = WatchedReads(watch, seen, group)
            recovered = self.recovered.pop(group.log.log_id, None)
            watch.guarded(seen, lambda: replica.begin(recovered))

    def _listen(self, group: Group) -> None:
        """Note every `Ready` that the host takes from the replica."""
        touched, group_id = self._touched, group.group_id
        watch, seen = self._watch, self._watch.group(group_id)

        def broken(rule: str, what: str) -> None:
            name = f"group {group_id}, replica on server {server_of(group.replica_id)}"
            watch.broken(seen, rule, f"{name}: {what}")

        group.node = WatchedNode(group.node, broken, lambda: touched.add(group_id))

    def _look(self, replica: ReplicaWatch) -> None:
        seen = replica.seen
        if not seen.broken:
            try:
                replica.look()
            except InvariantViolation as violation:
                self._watch.broken(seen, violation.rule, f"group {seen.group_id}: {violation}")


class RaftWatch:
    """Watch of all groups of a world. `violate` receives the broken rules."""

    def __init__(self, machines: Iterable[Machine], violate: Violate) -> None:
        self.elections = 0
        self.groups: dict[GroupId, GroupWatch] = {}
        self.disks: dict[ServerId, DurableLogs] = {m.server_id: DurableLogs() for m in machines}
        """By server id."""
        self.partitions: dict[tuple[str, int], GroupId] = {}
        """Group by (topic, partition); the newest one of a recreated topic."""
        self.log_ids: dict[tuple[GroupId, NodeId], LogId] = {}
        """Log id of each (group, replica) on its disk; absent for a replica lost for good."""
        self.lost: dict[tuple[GroupId, NodeId], DurableLog] = {}
        """Durable logs of replicas lost for good: what they acknowledged still counts."""
        self.on_other_voters: Callable[[GroupId, Collection[NodeId]], None] = lambda _, __: None
        """Called with a group and its voters before the voters change."""
        self._violate = violate
        self._directories: dict[ServerId, bytes] = {}
        """Id of the data directory on each server's disk, once a process has opened it."""
        self._lives: dict[int, LifeWatch] = {}

    def group(self, group_id: GroupId) -> GroupWatch:
        seen = self.groups.get(group_id)
        if seen is None:
            seen = self.groups[group_id] = GroupWatch(group_id)
        return seen

    def broken(self, seen: GroupWatch, name: str, detail: str) -> None:
        """Report a broken rule, once for each group."""
        if not seen.broken:
            seen.broken = True
            self._violate(name, detail)

    def told(self, name: str, detail: str) -> None:
        """Report a broken rule and keep checking the group."""
        self._violate(name, detail)

    def guarded(self, seen: GroupWatch, check: Callable[[], None]) -> None:
        try:
            check()
        except InvariantViolation as violation:
            self.broken(seen, violation.rule, f"group {seen.group_id}: {violation}")

    # --- processes ------------------------------------------------------------------------------
    def started(self, life: Life) -> None:
        """Check a process that has just opened its store."""
        recovered: dict[LogId, HardState] = {}
        server_id = life.machine.server_id
        directory_id = life.store.directory_id
        if life.machine.old_logs_end:
            self._directories[server_id] = directory_id  # an older copy gets a new directory id
        if self._directories.setdefault(server_id, directory_id) != directory_id:
            # It would be taken for a wiped one, and all its replicas be replaced silently.
            self._violate("directory-lost", f"{life.machine.name} has created a new directory")
            self._directories[server_id] = directory_id
        for log in life.store.logs.values():
            replica = replica_id_of(server_id, log.replica_number)
            if log.lost or log.log_id < life.machine.old_logs_end:
                self._replica_lost((log.group_id, replica))
                continue
            seen = self.group(log.group_id)
            known = (log.group_id, replica) in self.log_ids
            self._check_recovered(server_id, seen, log)
            self._check_told(seen, seen.past_of(replica), replica, log)
            if known:
                state = log.hard_state
                recovered[log.log_id] = HardState(state.term, state.vote, state.commit)
        StoreWatch(
            life.store,
            self.disks[server_id],
            lambda group_id, rule, what: self.broken(
                self.group(group_id), rule, f"group {group_id} on {life.machine.name}: {what}"
            ),
        )
        watch = self._lives[server_id] = LifeWatch(self, life, recovered)
        life.clock.watch = watch.event_over

    def ended(self, life: Life) -> None:
        watch = self._lives.pop(life.machine.server_id, None)
        life.clock.watch = None
        if watch is not None:
            watch.over()

    def _check_recovered(self, server_id: ServerId, seen: GroupWatch, log: Log) -> None:
        """Check that recovery found exactly the durable state of the disk.

        Data that it could only have read from the page cache must be durable by now.
        """
        durable = self.disks[server_id].logs.get(log.log_id)
        if durable is None:
            durable = DurableLog()
            durable.reset(log.first_index, log.term(log.first_index - 1))
        state = log.hard_state
        term = max(durable.term, log.term(log.last_index))
        vote = durable.vote if durable.term == term else 0
        found = (log.last_index, state.term, state.vote)
        if found != (durable.last, term, vote):
            self.broken(
                seen, "recovery", f"group {seen.group_id} on server {server_id}: (last, term, vote)"
                f" {found} recovered, {(durable.last, term, vote)} durable",
            )  # fmt: skip
            return
        for index in indexes(max(durable.commit, durable.first), durable.last + 1):
            if log.term(index) != durable.terms.get(index):
                self.broken(
                    seen, "recovery", f"group {seen.group_id} on server {server_id}: entry {index}"
                    f" recovered in term {log.term(index)}, durable in {durable.terms.get(index)}",
                )  # fmt: skip
                return

    def _check_told(self, seen: GroupWatch, past: Past, replica: NodeId, log: Log) -> None:
        """Check that a replica still has what it sent to others before the crash."""
        state = log.hard_state
        name = f"group {seen.group_id} on server {server_of(replica)}"
        if state.term < past.term:
            self.broken(
                seen, "term-lost", (f"{name}: reported {past.term}, returned in {state.term}")
            )
        elif past.votes.get(state.term, state.vote) != state.vote:
            voted = past.votes[state.term]
            self.broken(seen, "vote-lost", f"{name}, term {state.term}: {voted}, now {state.vote}")
        elif past.index > log.last_index:
            self.broken(seen, "log-lost", f"{name}: reported {past.index}, has {log.last_index}")
        elif past.index >= log.first_index and log.term(past.index) != past.index_term:
            self.broken(
                seen, "log-lost", (f"{name}: entry {past.index} differs from the reported one")
            )

    # --- frames sent ----------------------------------------------------------------------------
    def frame_left(self, life: Life, payload: memoryview) -> None:
        """Check that the votes and acknowledgements in a RAFT frame are durable (§5.1, §5.2)."""
        for group_id, message in decode_messages(payload):
            kind = type(message)
            if kind is MsgAppResp:
                assert isinstance(message, MsgAppResp), message
                if message.index and not message.reject:
                    self._acknowledged(life, self.group(group_id), message)
            elif kind is MsgVoteResp:
                assert isinstance(message, MsgVoteResp), message
                if not message.reject:
                    self._voted(life, self.group(group_id), message, message.to)
            elif kind is MsgVote:
                assert isinstance(message, MsgVote), message
                self._asked_for_votes(life, self.group(group_id), message)
            elif kind is MsgSnap:
                life.machine.frames.snapshot_left(payload)

    def _voted(
        self, life: Life, seen: GroupWatch, message: MsgVoteResp | MsgVote, candidate: NodeId
    ) -> None:
        past = seen.past_of(message.from_)
        term = message.term
        before = past.votes.setdefault(term, candidate)
        past.term = max(past.term, term)
        name = f"group {seen.group_id} on {life.machine.name}, term {term}"
        if before != candidate:
            self.broken(seen, "two-votes", f"{name}: for {before} and {candidate}")
        durable = self._durable_log(seen.group_id, message.from_)
        is_durable = durable is not None and (
            durable.term > term or (durable.term, durable.vote) == (term, candidate)
        )
        if not is_durable:
            self.broken(seen, "vote-not-durable", f"{name}: vote for {candidate}")

    def _asked_for_votes(self, life: Life, seen: GroupWatch, message: MsgVote) -> None:
        """Check that a candidate has voted for itself and has the log that it names (§5.4.1)."""
        self._voted(life, seen, message, message.from_)
        durable = self._durable_log(seen.group_id, message.from_)
        index = message.index
        if durable is not None and index >= durable.first - 1:
            ever = durable.ever.get(index, ())
            if message.log_term not in ever:
                self.broken(
                    seen, "candidate-not-durable", f"group {seen.group_id} on {life.machine.name},"
                    f" entry {index} of term {message.log_term}: {sorted(ever)}",
                )  # fmt: skip

    def _acknowledged(self, life: Life, seen: GroupWatch, message: MsgAppResp) -> None:
        index, term = message.index, message.term
        name = f"group {seen.group_id} on {life.machine.name}, term {term}, entry {index}"
        durable = self._durable_log(seen.group_id, message.from_)
        if durable is None:
            self.broken(seen, "ack-not-durable", f"{name}: no part of the log is")
            return
        past = seen.past_of(message.from_)
        host = life.server.host
        group = host.groups.get(seen.group_id) if host is not None else None
        raft = group.node.raft if group is not None else None
        ever = durable.ever.get(index, ())
        committed = raft is not None and index <= raft.log.committed
        if durable.term < term and not committed:
            self.broken(seen, "ack-not-durable", f"{name}: durable is term {durable.term}")
        if not committed:
            past.term = max(past.term, term)
        if raft is None or raft.id != message.from_ or raft.term != term:
            # The replica has moved on since it sent this; the entry belonged to an older leader.
            # One block may hold both the entry and its replacement: then only the latter is on the
            # disk, together with the later term, which is all that the older leader could have been
            # denied.
            has_moved_on = durable.term > term
            is_told = index >= durable.first - 1
            if is_told and not has_moved_on and not any(one <= term for one in ever):
                self.broken(seen, "ack-not-durable", f"{name}: {sorted(ever)}")
            return
        try:
            entry_term = raft.log.term(index)
        except Compacted:
            return
        if index >= durable.first - 1 and entry_term not in ever:
            self.broken(seen, "ack-not-durable", f"{name} of term {entry_term}: {sorted(ever)}")
        if index > past.index:
            past.index, past.index_term = index, entry_term

    # --- disks ----------------------------------------------------------------------------------
    def disk_lost(self, server_id: ServerId) -> None:
        """Record the loss of a disk.

        Its replicas are gone: one that came back under the same number would break its votes and
        acknowledgements.
        """
        for key in [key for key in self.log_ids if server_of(key[1]) == server_id]:
            self._replica_lost(key)
        self.disks[server_id].forget()
        self._directories.pop(server_id, None)

    def _replica_lost(self, key: tuple[GroupId, NodeId]) -> None:
        self.lost[key] = self._durable_log(*key) or DurableLog()
        self.log_ids.pop(key, None)

    def _durable_log(self, group_id: GroupId, replica: NodeId) -> DurableLog | None:
        log_id = self.log_ids.get((group_id, replica))
        if log_id is None:
            return self.lost.get((group_id, replica))
        return self.disks[server_of(replica)].logs.get(log_id)

    def durable_last(self, group_id: GroupId, replica: NodeId) -> Index:
        """Return the last entry that the replica's disk holds."""
        log = self._durable_log(group_id, replica)
        return NO_INDEX if log is None else log.last

    def has_majority(self, group: Group, servers: set[ServerId]) -> bool:
        """Return True if a majority of the group's voters are on these servers, none of them lost.

        A server that has lost its replica of the catalog opens no other replica before its new one
        is a voter: only the catalog says which are still its own. Of servers that were added later
        it is an observer.
        """
        catalog = self.group(CATALOG_GROUP).membership
        voting = set(map(server_of, catalog.voters()))
        knowing = catalog.voters() | {r for r in catalog.learners if server_of(r) not in voting}
        able = {server_of(r) for r in knowing if (CATALOG_GROUP, r) in self.log_ids} & servers
        seen = self.group(group.group_id)
        membership = seen.membership if seen.membership_term else group.node.membership
        for half in (membership.incoming, membership.outgoing):
            there = sum(
                server_of(replica) in able and (group.group_id, replica) not in self.lost
                for replica in half
            )
            if half and there * 2 <= len(half):
                return False
        return True

    def members_known(self, group_id: GroupId) -> bool:
        """Return True if every voter's disk holds the commit of the newest membership change.

        A restart then cannot revert it.
        """
        seen = self.group(group_id)
        for voter in seen.membership.voters():
            log = self._durable_log(group_id, voter)
            if log is None or max(log.commit, log.first - 1) < seen.membership_index:
                return False
        return True

    def is_durable(self, group_id: GroupId, replica: NodeId, index: Index, term: Term) -> bool:
        """Return True if the replica's disk holds this entry, or a snapshot that covers it."""
        log = self._durable_log(group_id, replica)
        return log is not None and (index < log.first or log.terms.get(index) == term)


def _chained(before: int, entry: Entry, *, is_compacted: bool) -> int:
    """Hash an entry and everything before it; equal in every run of the seed.

    Replicas of a compacted log may hold different parts of a batch until all have compacted it, so
    records are then left out.
    """
    place = (before, entry.term, int(entry.kind), entry.base_offset, entry.records)
    data = b"" if is_compacted and entry.records else entry.data
    return hash((*place, crc32(data)))


def _compacted_fingerprint(entry: Entry) -> int:
    return place_fingerprint(entry) if entry.records else entry_fingerprint(entry)
