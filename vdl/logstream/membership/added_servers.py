"""Servers that join and leave a cluster: requests, and the part of the catalog's leader.

A server joins in four steps. Each follows from state, so that any of them may be interrupted:

1. The new server waits in an empty directory, linked to the cluster (`vdl/logstream/bootstrap.py`).
   It has no vote, no log and no birth record, so it harms nothing if it is never added.
2. An operator's request binds its id, that directory and its address in the catalog
   (`AdmitServer`). The other servers then keep a link to it.
3. The new server receives its number, adopts the birth record and creates its replica of the
   catalog; the catalog's leader adds that as an observer, which never votes (`conf_changes.py`).
4. It applies the catalog, registers, and serves clients. Only then it gets replicas.

A server leaves in three. The catalog's leader takes one each second, by what the applied catalog
says, and remembers nothing:

1. `DecommissionServer` marks the server as leaving. It gets no new replica. For one of the first
   servers that is `DecommissionVoter`.
2. `MoveVotes` gives its votes in the catalog and the coordinators to another server, as in a
   reassignment. `DrainServers` begins to reassign its partitions, a limited number at a time
   (`reassignment.py`).
3. When no group lists it, `RemoveServer` retires its directory. Links to it are refused. Until then
   it has a replica of the catalog, which does not vote, so it learns of its removal.

Majorities overlap throughout: the members of each group change as in every reassignment, and the
catalog lists the server until the group's own log says that it has left. So no group counts a
removed server's vote, and no group needs it.

Does not depend on how a request reached this server.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from ids import DirectoryId, GroupId, ServerId
from rpc.hello import VERSION_OF_ADDED_SERVERS, VERSION_OF_MOVED_VOTES, Hello
from vdl.clock import MS
from vdl.errors import ErrorCode
from vdl.logstream.group.state_group import Outcome, OutcomeKind
from vdl.logstream.membership.replacement import groups_that_halt
from vdl.logstream.peers.forwarding import Forwarding
from vdl.logstream.peers.liveness import Liveness
from vdl.logstream.state import CATALOG_GROUP, HostState
from vdl.state.added_servers import AddedServer, why_not_added
from vdl.state.commands import (
    AdmitServer,
    DecommissionServer,
    DecommissionVoter,
    DrainServers,
    MoveVotes,
    RemoveServer,
    ReplaceServer,
)

MOVES_MAX = 32
"""Maximum number of partitions that are being moved away from leaving servers at a time."""
EXAMINED_MAX = 1_000
"""Maximum number of partitions of a leaving server that are examined for one that cannot move."""
DEADLINE_NS = 2_000 * MS
"""Time after which a proposal without a known outcome is repeated."""

Done = Callable[[ErrorCode, str], None]
"""Receives the result of a request, and a text if it is an error."""


class Standing(Enum):
    """Where a server is between its start and its removal."""

    WAITING = "waiting"
    """It waits to be added."""
    JOINING = "joining"
    """It was added, and has not registered yet."""
    MEMBER = "member"
    LEAVING = "leaving"


@dataclass(slots=True)
class ServerStanding:
    """One server, as an operator sees it."""

    server_id: ServerId
    standing: Standing
    is_voter: bool
    """True if it votes in the catalog and the coordinators."""
    is_connected: bool
    address: str = ""
    """Address for its peers, of an added server; of one that waits, as it says itself."""
    directory_id: bytes = b""
    """Directory that it is in, or waits in; of one that is not connected, the last one."""
    rack: str = ""
    replicas: int = 0
    """Replicas of partitions that it has to keep."""
    leading: int = 0
    """Partitions that it leads, as far as is known here."""
    blocking: str = ""
    """A partition that keeps it from being removed, and the reason."""
    reason: str = ""


def removed_text(server_id: ServerId) -> str:
    """Return the reason for which a removed server is refused."""
    return (
        f"server {server_id} was removed from the cluster: to return, it needs an empty data "
        "directory, and must be added again"
    )


class AddedServers:
    """Part of one server in additions and removals."""

    __slots__ = (
        "_forwarding", "_is_proposing", "_liveness", "_state", "address_of", "replicas_max"
    )  # fmt: skip

    def __init__(self, state: HostState, liveness: Liveness, forwarding: Forwarding) -> None:
        self._state = state
        self._liveness = liveness
        self._forwarding = forwarding
        self._is_proposing = False
        """True while a command of `look_around` is in flight."""
        self.replicas_max: Callable[[], int] = int
        """Returns the limit on a server's partition replicas; 0: none."""
        self.address_of: Callable[[Hello], str] = lambda hello: ""
        """Returns the address that a linked server has for itself; empty if unknown."""

    # --- requests ------------------------------------------------------------------------------
    def admit(
        self, server_id: ServerId, host: str, port: int, *, deadline_ns: int, done: Done
    ) -> None:
        """Add a server that waits, or change the address of one that was added.

        One that was added and waits in another directory has lost the first: its replicas are
        replaced. As an operator decides this, a volume that was mounted late is none of the causes.
        """
        state, catalog = self._state, self._state.catalog
        hello = state.hello_of(server_id)
        if complaint := why_not_added(server_id, len(catalog.initial_voters)):
            done(ErrorCode.INVALID_REQUEST, complaint)
            return
        if complaint := self._why_not_now(server_id, hello):
            done(ErrorCode.BROKER_NOT_AVAILABLE, complaint)
            return
        assert hello is not None
        admits = AdmitServer(server_id, hello.directory_id, host, port)
        old = catalog.added.get(server_id)
        if old is None or old.directory_id == hello.directory_id:
            self._request(admits, deadline_ns, done)
            return
        if complaint := self._why_not_replaced(old):
            done(ErrorCode.BROKER_NOT_AVAILABLE, complaint)
            return

        def replaced(error: ErrorCode, message: str) -> None:
            if error is ErrorCode.NONE:
                self._request(admits, deadline_ns, done)  # perhaps at another address
            else:
                done(error, message)

        replaces = ReplaceServer(server_id, old.directory_id, hello.directory_id)
        self._request(replaces, deadline_ns, replaced)

    def _why_not_replaced(self, old: AddedServer) -> str:
        """Return why an added server's directory cannot be given up; empty if it can."""
        state, server_id = self._state, old.server_id
        linked = state.alive.get(server_id)
        if server_id == state.server_id or (
            linked is not None and linked.directory_id == old.directory_id
        ):
            return f"server {server_id} runs in another directory: stop one of the two"
        if halted := groups_that_halt(state.catalog, server_id, self._liveness):
            return (
                f"{state.told_of(halted[0])} and {len(halted) - 1} other partitions have no leader "
                f"without the lost directory of server {server_id}: start servers that have their "
                "replicas, or delete these topics"
            )
        return ""

    def decommission(
        self, server_id: ServerId, *, is_leaving: bool, deadline_ns: int, done: Done
    ) -> None:
        """Begin to remove a server, or take it back."""
        catalog = self._state.catalog
        if not is_leaving and self._stays(server_id):
            # The catalog here may be behind: its leader refuses the command for one that stays.
            known = catalog.directory_of(server_id) or DirectoryId(bytes(16))
            self._request(
                DecommissionServer(server_id, known, is_leaving=False),
                deadline_ns,
                done,
                is_done=lambda: self._stays(server_id),
            )
            return
        error, complaint = catalog.why_no_removal(server_id)
        if error is not ErrorCode.NONE:
            done(error, complaint)
            return
        directory_id = catalog.directory_of(server_id)
        assert directory_id is not None, server_id
        if server_id in catalog.added:
            leaves = DecommissionServer(server_id, directory_id, is_leaving)
            self._request(leaves, deadline_ns, done)
        elif complaint := self._why_votes_stay(server_id):
            done(ErrorCode.BROKER_NOT_AVAILABLE, complaint)
        else:
            self._request(DecommissionVoter(server_id, directory_id), deadline_ns, done)

    def _stays(self, server_id: ServerId) -> bool:
        """Return True for a server of the beginning whose removal the catalog here does not know.

        It stays, whether it could be removed or not.
        """
        catalog = self._state.catalog
        return server_id in catalog.first_servers and server_id not in catalog.added

    def _why_votes_stay(self, server_id: ServerId) -> str:
        """Return why the votes of a server cannot be moved now; empty if they can.

        As for `_why_not_now`, all must be there to say their version, except the one that leaves:
        it may be gone for good.
        """
        state, catalog = self._state, self._state.catalog
        if catalog.knows_moved_votes:
            return ""
        for other in sorted(catalog.first_servers.keys() | catalog.added.keys()):
            if other == state.server_id:
                continue
            peer = state.alive.get(other)
            if peer is None and other != server_id:
                return (
                    f"server {other} is not connected: before the first removal of a server with "
                    "which the cluster began, all others must be"
                )
            if peer is not None and peer.version < VERSION_OF_MOVED_VOTES:
                return f"server {other} runs a version in which these servers cannot be removed"
        return ""

    def _request(
        self,
        command: Any,
        deadline_ns: int,
        done: Done,
        *,
        is_done: Callable[[], bool] = lambda: False,
    ) -> None:
        """Propose a command. `is_done`: True if nothing is left to do once it is applied here."""

        def ended(outcome: Outcome) -> None:
            if outcome.kind is OutcomeKind.APPLIED and is_done():
                done(ErrorCode.NONE, "")
            elif outcome.kind is OutcomeKind.APPLIED:
                done(outcome.result.error, outcome.result.message)
            elif outcome.kind is OutcomeKind.UNKNOWN:
                done(ErrorCode.REQUEST_TIMED_OUT, "the outcome is unknown: see `vdl member list`")
            else:
                done(ErrorCode.BROKER_NOT_AVAILABLE, "the catalog has no leader: try again")

        self._forwarding.propose(command, deadline_ns=deadline_ns, done=ended)

    def _why_not_now(self, server_id: ServerId, hello: Hello | None) -> str:
        """Return why a server cannot be added now; empty if it can.

        A replica stops at a command that it does not know, so all servers must be there to say
        their version before the first of these commands is appended. Servers that were added know
        them: they need not be there.
        """
        state = self._state
        if hello is None:
            return (
                f"server {server_id} is not connected to server {state.server_id}: start it with "
                "the addresses of the cluster's servers, and wait until it logs "
                "waiting_to_be_added"
            )
        moved = state.catalog.knows_moved_votes
        if hello.version < (VERSION_OF_MOVED_VOTES if moved else VERSION_OF_ADDED_SERVERS):
            return f"server {server_id} runs a version that cannot be added"
        if moved:
            return ""
        for other in state.catalog.first_servers:
            if other == state.server_id:
                continue
            peer = state.alive.get(other)
            if peer is None:
                return (
                    f"server {other} is not connected: all servers with which the cluster began "
                    "must be"
                )
            if peer.version < VERSION_OF_ADDED_SERVERS:
                return f"server {other} runs a version to which no server can be added"
        return ""

    # --- the catalog's leader --------------------------------------------------------------------
    def look_around(self) -> None:
        """Take the next step for the servers that are leaving. Use: once a second."""
        state, catalog = self._state, self._state.catalog
        if self._is_proposing or not state.catalog_group.serving:
            return
        leaving = catalog.leaving
        if not leaving and not catalog.open_moves:
            return
        # Servers that wait to be added are linked, too.
        linked = sorted([state.server_id, *(state.alive.keys() & catalog.servers.keys())])
        votes = MoveVotes(linked)
        if catalog.votes_plan(votes) != catalog.voters:
            self._propose(votes)
            return
        for server_id in sorted(leaving):
            if not catalog.held_by(server_id) and not catalog.has_votes(server_id):
                directory_id = catalog.added[server_id].directory_id
                state.log.info("removes_server", server=server_id)
                self._propose(RemoveServer(server_id, directory_id))
                return
        if not leaving:
            return
        # A full disk takes a partition only if no other server can, like one that is down.
        able = list(filter(self._has_room, linked)) or linked
        drains = DrainServers(able, MOVES_MAX, self.replicas_max())
        if catalog.drain_plan(drains):
            self._propose(drains)

    def _has_room(self, server_id: ServerId) -> bool:
        """Return True unless a server's disk is known to be full."""
        state = self._state
        if server_id == state.server_id:
            return state.store.accepts_appends
        return server_id not in state.full

    def _propose(self, command: Any) -> None:
        self._is_proposing = True

        def done(outcome: Outcome) -> None:
            del outcome  # the applied catalog decides about the next proposal
            self._is_proposing = False

        deadline_ns = self._state.clock.now_ns() + DEADLINE_NS
        self._forwarding.propose(command, deadline_ns=deadline_ns, done=done)

    # --- for operators ---------------------------------------------------------------------------
    def describe(self) -> list[ServerStanding]:
        """Return all servers of the cluster, and those that wait here to be added, by id."""
        state, catalog = self._state, self._state.catalog
        found = [
            ServerStanding(
                hello.server_id,
                Standing.WAITING,
                is_voter=False,
                is_connected=True,
                address=self.address_of(hello),
                directory_id=hello.directory_id,
            )
            # One that was emptied while it left may have been given the birth record still.
            for hello in (*state.newcomers.values(), *state.alive.values())
            if not catalog.is_member(hello.server_id)
        ]
        leading = Counter(self._liveness.leader_of(group_id)[0] for group_id in catalog.groups)
        for server_id in catalog.first_servers.keys() | catalog.added.keys():
            added, known = catalog.added.get(server_id), catalog.servers.get(server_id)
            standing = Standing.MEMBER if known is not None else Standing.JOINING
            one = ServerStanding(
                server_id,
                Standing.LEAVING if added is not None and added.is_leaving else standing,
                is_voter=server_id in catalog.voters,
                is_connected=server_id in (state.server_id, *state.alive, *state.newcomers),
                address=f"{added.host}:{added.port}" if added is not None and added.host else "",
                directory_id=self._directory_of(server_id),
                rack="" if known is None else known.rack,
                replicas=len(catalog.held[server_id]),
                leading=leading[server_id],
            )
            if one.standing is Standing.LEAVING:
                one.blocking, one.reason = self._blocking(server_id)
            elif added is not None and server_id in state.newcomers:
                one.reason = self._why_not_back(added)
            found.append(one)
        return sorted(found, key=lambda one: one.server_id)

    def _directory_of(self, server_id: ServerId) -> bytes:
        """Return the directory in which a server runs or waits, or the last one known."""
        state = self._state
        if server_id == state.server_id:
            return state.store.directory_id
        hello = state.hello_of(server_id)
        known = state.catalog.directory_of(server_id)
        return hello.directory_id if hello is not None else known or b""

    def _why_not_back(self, added: AddedServer) -> str:
        """Return why an added server waits instead of taking part; empty if it will by itself."""
        hello = self._state.newcomers[added.server_id]
        if hello.directory_id == added.directory_id:
            return ""
        return self._why_not_replaced(added) or "it lost its directory: add it again"

    def _blocking(self, server_id: ServerId) -> tuple[str, str]:
        """Return a partition that keeps a server from being removed, and why; ("", "") for none.

        One that cannot move now comes before those that do, or wait for their turn.
        """
        if self._liveness.leader_of(CATALOG_GROUP)[0] < 0:
            return "catalog", "it has no leader" + self._missing_of(
                replica.server_id for replica in self._state.catalog.replicas(CATALOG_GROUP)
            )
        catalog = self._state.catalog
        voting = [
            GroupId(group_id)
            for group_id in range(1 + catalog.coordinator_groups)
            if any(replica.server_id == server_id for replica in catalog.listed(GroupId(group_id)))
        ]
        held = [info.group_id for info in catalog.held_by(server_id)[:EXAMINED_MAX]]
        found = ("", "")
        for group_id in voting + held:
            reason, is_stuck = self._why_here(server_id, group_id)
            if is_stuck or not found[0]:
                found = self._state.name_of(group_id), reason
            if is_stuck:
                break
        return found

    def _why_here(self, server_id: ServerId, group_id: GroupId) -> tuple[str, bool]:
        """Return why a group still has a replica on a server; True: it cannot move now."""
        state = self._state
        if self._liveness.leader_of(group_id)[0] < 0:
            listed = self._state.catalog.listed(group_id)
            return "it has no leader" + self._missing_of(one.server_id for one in listed), True
        servers = [replica.server_id for replica in state.catalog.replicas(group_id)]
        if server_id in servers:
            if group_id in state.system_groups:
                return self._why_votes_not_begun(servers)
            return self._why_not_begun(servers)
        adding = set(servers).difference(state.catalog.move(group_id).origin)
        for server in sorted(adding):
            if server != state.server_id and server not in state.alive:
                return f"server {server}, which is to take it, is not connected", True
            if not self._has_room(server):
                return f"the disk of server {server}, which is to take it, is full", True
        if adding:
            return f"server {min(adding)} takes it", False
        return "its leader has not confirmed yet that it moved", False

    def _missing_of(self, servers: Iterable[ServerId]) -> str:
        """Return which of a group's servers are not connected; empty if all are."""
        state = self._state
        missing = sorted(set(servers) - {state.server_id, *state.alive})
        if not missing:
            return ""
        return f" (not connected: {', '.join(map(str, missing))})"

    def _why_votes_not_begun(self, servers: Sequence[ServerId]) -> tuple[str, bool]:
        catalog = self._state.catalog
        if catalog.servers.keys() - catalog.leaving - set(servers):
            return "its votes are about to be given to another server", False
        return "no other server can take its votes: add one", True

    def _why_not_begun(self, servers: list[ServerId]) -> tuple[str, bool]:
        catalog, limit = self._state.catalog, self.replicas_max()
        others = catalog.servers.keys() - catalog.leaving - set(servers)
        if not others:
            return "every other server has a replica of it", True
        if limit and all(len(catalog.held[server]) >= limit for server in others):
            return f"no server may have more than {limit} replicas", True
        return f"it waits for others: {MOVES_MAX} partitions move at a time", False
