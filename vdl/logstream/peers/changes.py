"""Events of changes of leaderships, in-sync replicas and the quorum; log messages once a second.

A server that fails moves thousands of leaderships at once. So the changes within a second are
logged in one line of each kind, with the number of partitions and the names of the first of them.
Each change of a partition is also kept in memory for a while, with its reason (`Log.note`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from typing import Final

from ids import GroupId, NodeId, ServerId
from raft.types import NONE
from vdl.logstream.group.in_sync_replicas import InSync
from vdl.logstream.group.replica_ids import server_of
from vdl.logstream.state import HostState

NAMES_MAX: Final = 3
"""Maximum number of partitions named in a line."""


class Changes:
    """Unlogged changes of one server. Bounded by the number of its groups."""

    def __init__(self, state: HostState) -> None:
        self._state = state
        self._gained: dict[GroupId, None] = {}
        self._lost: dict[GroupId, None] = {}
        """Changes since the last line."""
        self._out: dict[GroupId, frozenset[ServerId]] = {}
        """By group led here: servers whose replicas were logged as out of sync."""
        self._has_quorum = False

    def leads(self, group_id: GroupId) -> None:
        """Note that this server leads the group, in a new term."""
        self._gained[group_id] = None
        group = self._state.groups[group_id]
        why = group.campaigning
        self._state.log.note(
            "elected",
            partition=self._state.told_of(group_id),
            term=group.node.term,
            reason=why.reason or "no_leader",
            before=why.before or None,
        )
        why.because("", NONE)

    def leads_no_more(self, group_id: GroupId) -> None:
        """Note that this server does not lead the group any more.

        Must precede `InSyncReplicas.resign`.
        """
        self._lost[group_id] = None
        self._out.pop(group_id, None)
        group, term = self._state.groups[group_id], self._state.in_sync.term_of(group_id)
        # A leader that hears no majority gives up without a newer term (thesis §6.2).
        gave_up = group.node.term == term
        self._state.log.note(
            "resigned",
            partition=self._state.told_of(group_id),
            term=term,
            reason="no_majority" if gave_up else "newer_term",
            successor=server_of(group.node.lead) or None,
        )

    def look(self) -> None:
        """Log the changes since the last call."""
        self._look_at_quorum()
        gained, lost = self._named(self._gained), self._named(self._lost)
        self._gained, self._lost = {}, {}
        log, leading = self._state.log, self._state.in_sync.count
        if gained:
            log.info("leads", partitions=len(gained), names=_told(gained), leading=leading)
        if lost:
            log.info("leads_no_more", partitions=len(lost), names=_told(lost), leading=leading)
        self._look_at_in_sync()

    def _look_at_quorum(self) -> None:
        has_quorum = not lacks_quorum(self._state)
        if has_quorum == self._has_quorum:
            return
        log, missing = self._state.log, self._state.catalog.servers.keys() - linked(self._state)
        if has_quorum:
            log.info("quorum_reached", missing=_listed(missing))
        else:
            log.warning(
                "quorum_lost",
                missing=_listed(missing),
                meaning=(
                    "no record can be acknowledged until a majority of the servers is connected"
                ),
            )
        self._has_quorum = has_quorum

    def _look_at_in_sync(self) -> None:
        left: dict[ServerId, list[GroupId]] = defaultdict(list)
        joined: dict[ServerId, list[GroupId]] = defaultdict(list)
        in_sync = self._state.in_sync
        changed = set(in_sync.changed)
        in_sync.changed.clear()
        now_ns = self._state.clock.now_ns()
        for group_id in sorted(changed):
            found = in_sync.get(group_id)
            if found is None:
                continue
            wanted = {server_of(replica): replica for replica in found.group.listed}
            out = frozenset(wanted.keys() - set(found.servers))
            known = self._out.get(group_id, frozenset())
            if found.is_young(now_ns):
                out &= known  # the others may not have been heard of yet
            for server_id in out - known:
                left[server_id].append(group_id)
                self._note_out(found, wanted[server_id], now_ns)
            for server_id in (known - out) & wanted.keys():
                joined[server_id].append(group_id)
                name = self._state.told_of(group_id)
                self._state.log.note("isr_grown", partition=name, replica=server_id)
            self._out[group_id] = out
            if not out:
                del self._out[group_id]
        log = self._state.log
        for server_id, groups in sorted(left.items()):
            names = self._named(groups)
            log.warning("out_of_sync", server=server_id, partitions=len(names), names=_told(names))
        for server_id, groups in sorted(joined.items()):
            names = self._named(groups)
            log.info("in_sync_again", server=server_id, partitions=len(names), names=_told(names))

    def _note_out(self, found: InSync, replica: NodeId, now_ns: int) -> None:
        self._state.log.note(
            "isr_shrunk",
            partition=self._state.told_of(found.group.group_id),
            replica=server_of(replica),
            reason=found.reason_out(replica, now_ns),
            in_sync=_listed(found.servers),
        )

    def _named(self, groups: Collection[GroupId]) -> list[str]:
        """Return the groups' names, topics' first, without those of deleted topics."""
        own = self._state.system_groups
        ordered = sorted(groups, key=lambda group_id: (group_id in own, group_id))
        return [name for group_id in ordered if (name := self._state.name_of(group_id))]


def linked(state: HostState) -> set[ServerId]:
    """Return this server and the linked ones, without those that wait to be replaced.

    The latter have no vote.
    """
    return {state.server_id, *state.alive}.difference(waiting(state))


def waiting(state: HostState) -> list[ServerId]:
    """Return the servers that are linked in another directory than the one in the catalog."""
    catalog = state.catalog
    return [
        server_id
        for server_id, hello in sorted(state.alive.items())
        if server_id in catalog.servers and hello.directory_id != catalog.directory_of(server_id)
    ]


def lacks_quorum(state: HostState) -> bool:
    """Return True if this server is linked to no majority of the catalog's voters."""
    registered = state.catalog.servers.keys() & set(state.catalog.voters)
    return 2 * len(registered & linked(state)) <= len(registered)


def _told(names: Collection[str]) -> str:
    told = ", ".join(list(names)[:NAMES_MAX])
    return told if len(names) <= NAMES_MAX else f"{told} and {len(names) - NAMES_MAX} more"


def _listed(servers: Collection[ServerId]) -> str:
    return ",".join(map(str, sorted(servers)))
