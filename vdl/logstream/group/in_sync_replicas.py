"""In-sync replicas (Kafka's ISR) of the groups led here, computed from the leader's progress.

A replica is in sync while its server is heard of and it holds what the leader's log held a bounded
time ago (`replica.lag.time.max.ms`). As in Kafka, lag is a time, not a number of records. Each
check notes where the leader's log ended; a replica that reaches that end was caught up at the time
of that check.

Rules:

* A new leader begins with itself. Another voter joins once it holds an entry of the leader's own
  term and was caught up lately; it leaves when it lags for too long, or when its server is silent
  for longer than two election timeouts. A refused connection proves a dead process, and so does a
  connection to a later process: the replica leaves at once. Between the bounds of joining
  (`JOIN_NS`) and of leaving the list does not change.
* A replica whose link was lost does not join by what it held before, only once it responds again:
  its server may have restarted without that data.
* Learners, and replicas that are to be replaced, are not in sync. A leaving replica may be, while
  it is a voter: acknowledged records may depend on it.
* The number of copies of an entry is counted by the voters' durable match index (`copied`), not by
  this list. The list only shows if copies can be expected.

Does not depend on topics or their settings.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass
from functools import lru_cache

from ids import NO_INDEX, GroupId, Index, NodeId, ServerId, Term
from raft.progress import PROBE
from raft.quorum import copied_index
from vdl.clock import MS, Clock
from vdl.logstream.group.group import Group
from vdl.logstream.group.replica_ids import server_of
from vdl.logstream.options import TICK_NS, HostOptions

LOOK_NS = 1_000 * MS
"""Interval in which each led group is checked."""

JOIN_NS = 2 * LOOK_NS
"""Maximum time since a joining replica was caught up: at one check it holds what the log held at
the check before."""

NEVER_NS = -(1 << 62)

SETS_SHARED = 1_024
"""Most sets of replicas that are kept to be shared by groups."""


@dataclass(slots=True)
class Follower:
    """Leader's view of one replica."""

    target: Index
    """End of the leader's log at `target_ns`; the replica has not been seen to hold it yet."""
    target_ns: int
    caught_up_ns: int = NEVER_NS
    """Invariant: the replica holds all that the leader's log held then."""
    heard_ns: int = NEVER_NS
    is_gone: bool = False
    """True if its server's process was proved dead since."""


class InSync:
    """The in-sync replicas of one group in one term of this leader."""

    __slots__ = ("_followers", "_options", "group", "replicas", "since_ns", "term")

    def __init__(self, group: Group, options: HostOptions, now_ns: int) -> None:
        self.group = group
        self.term = group.node.term
        self.since_ns = now_ns
        self.replicas: frozenset[NodeId] = _shared(frozenset((group.replica_id,)))
        self._options = options
        self._followers: dict[NodeId, Follower] = {}

    @property
    def servers(self) -> tuple[ServerId, ...]:
        """Servers of the in-sync replicas, in the order of the placement."""
        return _servers(self.group.listed, self.replicas)

    @property
    def is_whole(self) -> bool:
        """True if all listed replicas are in sync."""
        return len(self.replicas) == len(self.group.listed)

    def is_young(self, now_ns: int) -> bool:
        """Return True if live replicas may not have been heard of yet in this term."""
        return now_ns - self.since_ns < silence_ns(self._options)

    def may_reach(self, copies: int, now_ns: int, linked: Container[ServerId]) -> bool:
        """Return True if an entry can be expected to become durable on `copies` voters.

        The progress of a new leader is incomplete: until then every linked voter counts. `linked`:
        the linked servers.
        """
        missing = copies - len(self.replicas)
        if missing <= 0:
            return True
        if not self.is_young(now_ns):
            return False
        others = self.group.node.membership.incoming - self.replicas
        return sum(server_of(replica) in linked for replica in others) >= missing

    def look(self, now_ns: int, is_heard: Callable[[Group, NodeId], bool]) -> bool:
        """Check every replica again. Return True if the list changed."""
        group = self.group
        raft = group.node.raft
        last, voters = raft.log.last_index, raft.membership.incoming
        found = []
        # Observers are never in sync, but `times` are known of them too.
        for replica in (*group.listed, *sorted(group.observers)):
            if replica == group.replica_id:
                found.append(replica)
                continue
            progress = raft.progress.get(replica)
            if progress is None or (replica not in voters and replica not in group.observers):
                self._followers.pop(replica, None)
                continue
            follower = self._followers.get(replica)
            if follower is None:
                # A replica that holds an entry of this term counts as heard of since the term
                # began.
                follower = Follower(last, now_ns, heard_ns=self.since_ns)
                self._followers[replica] = follower
            if progress.match >= last:
                follower.caught_up_ns = now_ns
                follower.target, follower.target_ns = last, now_ns
            elif progress.match >= follower.target:
                follower.caught_up_ns = follower.target_ns
                follower.target, follower.target_ns = last, now_ns
            if is_heard(group, replica):
                follower.heard_ns = now_ns
                follower.is_gone = False
            match = NO_INDEX if progress.state is PROBE else progress.match
            if replica in voters and self._is_in_sync(replica, follower, now_ns, match=match):
                found.append(replica)
        before, self.replicas = self.replicas, _shared(frozenset(found))
        return before != self.replicas

    def placed(self) -> None:
        """Remove replicas at once that are not in the new placement."""
        self.replicas &= frozenset(self.group.listed)

    def _is_in_sync(
        self, replica: NodeId, follower: Follower, now_ns: int, *, match: Index
    ) -> bool:
        if follower.is_gone or now_ns - follower.heard_ns > silence_ns(self._options):
            return False
        lag_ns = now_ns - follower.caught_up_ns
        lag_max_ns = self._options.replica_lag_max_ms * MS
        if replica in self.replicas:
            return lag_ns <= lag_max_ns
        return match >= self.group.node.raft.term_start and lag_ns <= min(JOIN_NS, lag_max_ns)

    def reason_out(self, replica: NodeId, now_ns: int) -> str:
        """Return why a replica is not in sync: its process ended, or it is silent, behind, or no
        voter."""
        follower = self._followers.get(replica)
        if follower is None:
            return "no_voter"
        if follower.is_gone:
            return "process_ended"
        is_silent = now_ns - follower.heard_ns > silence_ns(self._options)
        return "silent" if is_silent else "behind"

    def times(self, replica: NodeId, clock: Clock) -> tuple[int, int]:
        """Return (when the replica was last heard of, a time whose data it holds completely).

        In ms since 1970 on this server's clock; -1: unknown. The second is never the later one
        (KIP-836): tools take a replica that was caught up lately for one that is up.
        """
        now_ms, now_ns = clock.wall_ms(), clock.now_ns()
        if replica == self.group.replica_id:
            return now_ms, now_ms
        follower = self._followers.get(replica)
        if follower is None:
            return -1, -1
        heard_ms, caught_up_ms = (
            -1 if at_ns == NEVER_NS else now_ms - (now_ns - at_ns) // MS
            for at_ns in (
                follower.heard_ns,
                min(follower.heard_ns, follower.caught_up_ns),
            )
        )
        return heard_ms, caught_up_ms

    def server_gone(self, server_id: ServerId) -> bool:
        """Remove the replica of a server whose process is gone. Return True if it was in sync."""
        for replica, follower in self._followers.items():
            if server_of(replica) == server_id:
                follower.is_gone = True
                before = len(self.replicas)
                self.replicas -= {replica}
                return len(self.replicas) < before
        return False


@lru_cache(maxsize=SETS_SHARED)
def _shared(replicas: frozenset[NodeId]) -> frozenset[NodeId]:
    """Return an equal set, the same for all groups."""
    return replicas


@lru_cache(maxsize=SETS_SHARED)
def _servers(listed: tuple[NodeId, ...], replicas: frozenset[NodeId]) -> tuple[ServerId, ...]:
    return tuple([server_of(replica) for replica in listed if replica in replicas])


def silence_ns(options: HostOptions) -> int:
    """Return how long a server may be silent before its replicas are not in sync any more."""
    return 2 * options.election_ticks * TICK_NS


def copied(group: Group, copies: int) -> Index:
    """Return the highest index that `copies` voters, or all if they are fewer, hold durably.

    As far as is known; 0 if this replica does not lead.
    """
    raft = group.node.raft
    if not group.node.is_leader:
        return NO_INDEX
    return copied_index([progress.match for progress in raft.incoming_progress], copies)


class InSyncReplicas:
    """The in-sync replicas of all groups led here."""

    def __init__(self, options: HostOptions, clock: Clock, linked: Container[ServerId]) -> None:
        """Create the lists. `linked`: the linked servers, kept current."""
        self._options = options
        self._clock = clock
        self._linked = linked
        self._led: dict[GroupId, InSync] = {}
        self._young: dict[GroupId, InSync] = {}
        """Checked each time: a new leader's clients wait until it knows its replicas."""
        self._round: list[InSync] = []
        """Groups still to be checked in this second."""
        self._round_size = 0
        self._incarnations: dict[ServerId, int] = {}
        """Incarnation of the last linked process of each server."""
        self.changed: set[GroupId] = set()
        """Groups led here whose list may have changed since this was last cleared."""
        self.expansions = 0
        """Replicas that joined a list, also after its leader began alone; `shrinks` likewise."""
        self.shrinks = 0

    def __getitem__(self, group_id: GroupId) -> InSync:
        return self._led[group_id]

    def get(self, group_id: GroupId) -> InSync | None:
        """Return the list of a group if it is led here."""
        found = self._led.get(group_id)
        is_led = found is not None and found.group.node.is_leader
        return found if is_led else None

    def term_of(self, group_id: GroupId) -> Term:
        """Return the term in which a group is led here, or was until now; 0 if in none."""
        found = self._led.get(group_id)
        return Term(0) if found is None else found.term

    @property
    def count(self) -> int:
        """Number of groups that are led here."""
        return len(self._led)

    def lead(self, group: Group, now_ns: int) -> InSync:
        """Return the list of a group led by this server; each term begins a new one."""
        found = self._led.get(group.group_id)
        if found is None or found.term != group.node.term or found.group is not group:
            found = self._led[group.group_id] = InSync(group, self._options, now_ns)
            self._young[group.group_id] = found
        return found

    def may_reach(self, group: Group, copies: int) -> bool:
        """See `InSync.may_reach`, for a group led here."""
        now_ns = self._clock.now_ns()
        return self.lead(group, now_ns).may_reach(copies, now_ns, self._linked)

    def resign(self, group_id: GroupId) -> None:
        """Drop the list of a group that is not led here."""
        if self._led.pop(group_id, None) is not None:
            self._young.pop(group_id, None)
            self.changed.discard(group_id)

    def look(
        self, now_ns: int, *, share: int, is_heard: Callable[[Group, NodeId], bool]
    ) -> Iterator[Group]:
        """Check the young lists and one `share`-th of all; call that often in `LOOK_NS`.

        `is_heard`: True if the leader heard of a replica lately. Yields the groups whose peers and
        waiting appends have to receive the change before the next list is checked: a peer counts as
        heard of in a group only once it has the newest list.
        """
        for group_id, one in list(self._young.items()):
            if self._has_changed(one, now_ns, is_heard):
                yield one.group
            if one.is_whole or not one.is_young(now_ns):
                del self._young[group_id]
                if self._led.get(group_id) is one:
                    self.changed.add(group_id)
                    # Answer appends that wait for copies which will not come.
                    yield one.group
        if not self._round:
            self._round = list(self._led.values())
            self._round_size = -(-len(self._round) // share)
        due, self._round = self._round[: self._round_size], self._round[self._round_size :]
        for one in due:
            if self._has_changed(one, now_ns, is_heard):
                yield one.group

    def _has_changed(
        self, one: InSync, now_ns: int, is_heard: Callable[[Group, NodeId], bool]
    ) -> bool:
        group, before = one.group, one.replicas
        has_changed = (
            self._led.get(group.group_id) is one
            and group.node.is_leader
            and group.node.term == one.term
            and one.look(now_ns, is_heard)
        )
        if has_changed:
            self.changed.add(group.group_id)
            self.expansions += len(one.replicas - before)
            self.shrinks += len(before - one.replicas)
        return has_changed

    def server_linked(self, server_id: ServerId, incarnation: int) -> list[Group]:
        """Note a link to a server. Return the groups whose list changed.

        If its process is another than the last, the earlier one is gone, with all its data that was
        not durable or was lost since.
        """
        before = self._incarnations.get(server_id, incarnation)
        self._incarnations[server_id] = incarnation
        return [] if before == incarnation else self.server_gone(server_id)

    def server_gone(self, server_id: ServerId) -> list[Group]:
        """Note that a server's process is gone. Return the groups whose list changed."""
        found = [one.group for one in list(self._led.values()) if one.server_gone(server_id)]
        self.shrinks += len(found)
        self.changed.update(group.group_id for group in found)
        return found
