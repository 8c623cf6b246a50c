"""The catalog: servers, topics, replica placement, and the cluster's range of producer ids.

It is the state of group 0 and is the same on every server; each server answers Metadata from its
own copy. A group id is allocated once and never reused, so it identifies a partition for ever.

A replica remembers its votes and the entries it acknowledged. Therefore a replica number (server
id, number) belongs to the one data directory it was allocated for. If a server returns with another
directory, or finds a replica damaged, the catalog allocates the next number, and the group changes
its members. The catalog holds the members that a group *should have*; the group's leader makes the
change.

This module relates servers, topics and replicas to one another: topics are placed on servers, a
lost directory renumbers replicas, a reassignment moves them, servers join and leave. Related
modules: membership changes (`reassignment.py`), servers added later (`added_servers.py`), placement
of new replicas (`placement.py`), the groups that exist from the beginning (`system_groups.py`),
topic names (`topic_names.py`). The rest of the stored state does not depend on servers, topics or
replicas, and has one table per kind: settings, features, users, tokens, ACLs, quotas.

Rules:

* `apply` decides. Its results carry Kafka's error codes, one for each topic of the command.
* The only inputs are the state and the command: no clock, no randomness, no other group.

Does not depend on leaders, on records, or on which servers are alive (a command may carry that).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from struct import Struct
from types import MappingProxyType
from typing import Any

import msgspec

from ids import NO_REPLICA, DirectoryId, GroupId, Index, ReplicaNumber, ServerId
from vdl.errors import ErrorCode
from vdl.state import acls, commands, quotas
from vdl.state.acls import Acls
from vdl.state.added_servers import (
    ADDED_SERVERS_MAX,
    AddedServer,
    Drain,
    why_not_added,
    why_not_without,
)
from vdl.state.catalog_answers import (
    AclsCreated,
    AclsDeleted,
    ConfigsAltered,
    CreatedTopic,
    DeletedTopic,
    FeaturesUpdated,
    GroupAdded,
    GroupRemoved,
    GrownTopic,
    MembershipChanged,
    PartitionsCreated,
    ProducerIdBlock,
    ReassignmentsAltered,
    Registration,
    Replacement,
    ReplicasReplaced,
    ServerRegistered,
    TopicsCreated,
    TopicsDeleted,
)
from vdl.state.delegation_tokens import KEY_PREFIX as TOKEN_PREFIX
from vdl.state.delegation_tokens import DelegationTokens, TokenAnswer
from vdl.state.features import Features
from vdl.state.held_groups import HeldGroups
from vdl.state.placement import Load, overfull, place, substitute
from vdl.state.quotas import Quotas
from vdl.state.reassignment import (
    FIRST_REPLICA,
    NEVER_MOVED,
    Move,
    Reassignment,
    ReplicaInfo,
    finished,
    in_progress,
    reassigned,
    renumbered,
)
from vdl.state.resource_configs import (
    CONFIGS_BYTES_MAX,
    KEY_PREFIX,
    ResourceConfigs,
    changed_configs,
    configs_bytes,
)
from vdl.state.scram_credentials import KEY_PREFIX as SCRAM_PREFIX
from vdl.state.scram_credentials import ScramCredentials, UsersAltered
from vdl.state.system_groups import KEY_PREFIX as NUMBER_PREFIX
from vdl.state.system_groups import SystemGroups, rotated
from vdl.state.table import decode_value, encode_value
from vdl.state.topic_names import TopicNames, topic_name_complaint

REPLICA_NUMBER_MAX = (1 << 16) - 1
"""Numbers are 16 bits of a Raft id."""

PARTITIONS_PER_TOPIC_MAX = 100_000
"""Bound that keeps one command from filling every server's memory."""


class ServerInfo(msgspec.Struct, frozen=True, array_like=True):
    """A server of the cluster."""

    server_id: ServerId
    directory_id: DirectoryId
    """Data directory it registered with. Another directory under the same server id is refused."""
    rack: str
    listeners: dict[str, tuple[str, int]]
    """Listener name → advertised (host, port)."""
    replica_of_catalog: bool
    """True for a voter of the catalog, False for a learner."""
    features: dict[str, tuple[int, int, int]] = {}
    """See `RegisterServer.features`."""


class GroupInfo(msgspec.Struct, frozen=True, array_like=True):
    """One partition's Raft group."""

    group_id: GroupId
    topic: str
    partition: int
    replicas: list[ReplicaInfo]
    """Members that the group should have, preferred leader first."""
    founding: list[ReplicaInfo]
    """Members it was created with: the configuration at the start of its log."""


class TopicInfo(msgspec.Struct, frozen=True, array_like=True):
    """A topic: `partitions[p]` is the group id of partition p."""

    name: str
    topic_id: bytes
    partitions: list[GroupId]
    configs: dict[str, str]
    """Settings that were set, as text; defaults are not stored."""


class Votes(msgspec.Struct, frozen=True, array_like=True):
    """Changes since the birth record, as stored once there are any."""

    voters: list[ServerId]
    """`Catalog.voters`."""
    first_servers: list[ServerId]
    """Ids of `Catalog.first_servers`."""


class Counters(msgspec.Struct, frozen=True, array_like=True):
    """Counters of the catalog, as stored."""

    next_group_id: GroupId
    next_producer_id: int
    noted_ms: int = 0
    features_epoch: int = 0


_CATALOG = GroupId(0)
_KEY_COUNTERS = b"c"
_KEY_VOTES = b"v"
_KEY_GROUP = Struct(">cQ")
_KEY_SERVER = Struct(">cI")
ADDED_PREFIX = b"e"
"""Prefix of the keys of `AddedServer`."""


class Catalog:
    """Replicated state of group 0; see the module.

    Other modules only read it, except through `apply` and `load`.
    """

    def __init__(
        self,
        cluster_id: str = "",
        *,
        coordinator_groups: int = 8,
        initial_voters: Mapping[ServerId, DirectoryId] = MappingProxyType({}),
    ) -> None:
        """Create an empty catalog.

        `initial_voters` maps server id to directory id, as in the birth record. These servers hold
        the catalog and the coordinators at first (`voters`), and are members until they are removed
        (`first_servers`). Right after the birth of the cluster not all of them have registered;
        until they have, a topic with the default replication factor is refused rather than created
        with fewer replicas.
        """
        self.cluster_id = cluster_id
        self.coordinator_groups = coordinator_groups
        self.initial_voters = dict(sorted(initial_voters.items()))
        """As in the birth record, whatever happened since. Use: what a group began with."""
        self.first_servers = dict(self.initial_voters)
        """Those of them that were never removed, with their first directories."""
        self.system = SystemGroups(tuple(self.initial_voters))
        """Replicas of the catalog and of the coordinators."""
        self.servers: dict[ServerId, ServerInfo] = {}
        self.added: dict[ServerId, AddedServer] = {}
        """Servers that were added after the cluster's birth, registered yet or not; and those of
        the first that leave, or were taken back."""
        self.topics: dict[str, TopicInfo] = {}
        self.topics_by_id: dict[bytes, TopicInfo] = {}
        self.groups: dict[GroupId, GroupInfo] = {}
        """Groups of partitions only; the catalog and the coordinators are in `system`."""
        self.moves: dict[GroupId, Move] = {}
        """Reassignment state by group, for groups that were ever reassigned, the catalog and the
        coordinators included."""
        self.held = HeldGroups()
        """Groups of partitions by server, those that are leaving it included. Derived."""
        self.open_moves: set[GroupId] = set()
        """Groups that must still change members or report that they have. Derived."""
        self.next_group_id = GroupId(coordinator_groups + 1)
        self.next_producer_id = 0
        self.features = Features()
        self.resources = ResourceConfigs()
        """Settings of resources other than topics."""
        self.scram = ScramCredentials()
        self.tokens = DelegationTokens()
        self.acls = Acls()
        """Access control lists."""
        self.quotas = Quotas()
        """Client quotas."""
        self.noted_ms = 0
        """Time of the last note, in ms since 1970; 0 if there was none."""
        self.renumbered = 0
        """Number of replica changes seen by this object. Not part of the state."""
        self.topics_revision = 0
        """Number of topic changes seen by this object. Not part of the state."""
        self.retired: dict[DirectoryId, int] = {}
        """Directories of replaced and removed servers, and the servers they belonged to.

        They never take part again.
        """
        self.names = TopicNames()
        """Topic names in use. Derived from `topics`."""
        self._first_group_id = self.next_group_id
        self._dirty: set[bytes] = set()
        self._apply_by_type: dict[type, Callable[[Any], Any]] = {
            commands.RegisterServer: self._register_server,
            commands.CreateTopics: self._create_topics,
            commands.DeleteTopics: self._delete_topics,
            commands.AllocateProducerIds: self._allocate_producer_ids,
            commands.ReplaceServer: self._replace_server,
            commands.ReplaceReplicas: self._replace_replicas,
            commands.AlterTopicConfigs: self._alter_configs,
            commands.CreatePartitions: self._create_partitions,
            commands.UpdateFeatures: self._update_features,
            commands.AlterResourceConfigs: self._alter_resource_configs,
            commands.AlterReassignments: self._alter_reassignments,
            commands.FinishReassignments: self._finish_reassignments,
            commands.AdmitServer: self._admit_server,
            commands.DecommissionServer: self._decommission_server,
            commands.DrainServers: self._drain_servers,
            commands.RemoveServer: self._remove_server,
            commands.DecommissionVoter: self._decommission_voter,
            commands.MoveVotes: self._move_votes,
            commands.AlterScramCredentials: self._alter_scram_credentials,
            commands.CreateAcls: self._create_acls,
            commands.DeleteAcls: self._delete_acls,
            commands.AlterQuotas: self._alter_quotas,
        }
        self._apply_at_time: dict[type, Callable[[Any, int], Any]] = {
            commands.CreateDelegationToken: self._create_token,
            commands.AlterDelegationToken: self._alter_token,
        }
        """Commands whose outcome depends on the time."""

    def understands(self, command: Any) -> bool:
        """Return True if `apply` knows this kind of command.

        A command of an unknown kind must never be appended: every replica would stop at it, at
        every start.
        """
        kind = type(command)
        known = kind in self._apply_by_type or kind in self._apply_at_time
        return known or kind is commands.NoteTime

    def apply(self, command: Any, now_ms: int, index: Index) -> Any:
        """Apply one committed command; the answer's type depends on the command's."""
        is_note = type(command) is commands.NoteTime
        is_alone = len(self.initial_voters) == 1
        if is_note or (is_alone and not self.noted_ms and now_ms):
            # Until there is a note, any command's time counts as one: a single server may be killed
            # before the first note and restart with its clock at 1970. With several servers the
            # clocks may not agree yet.
            self.noted_ms = now_ms
            self._dirty.add(_KEY_COUNTERS)
        if is_note:
            return None
        if (timed := self._apply_at_time.get(type(command))) is not None:
            return timed(command, now_ms)
        return self._apply_by_type[type(command)](command)

    # --- servers ---------------------------------------------------------------------------
    def _register_server(self, command: commands.RegisterServer) -> Registration:
        known = self.servers.get(command.server_id)
        if self.directory_of(command.server_id) not in (None, command.directory_id):
            # A server that lost its disk no longer holds its replicas; they must be replaced first.
            return Registration(
                ErrorCode.DUPLICATE_BROKER_REGISTRATION,
                f"server {command.server_id} is registered with another data directory",
            )
        if self.is_removed(command.server_id, command.directory_id):
            return Registration(
                ErrorCode.BROKER_ID_NOT_REGISTERED, f"server {command.server_id} was removed"
            )
        for other in self.servers.values():
            if other.directory_id == command.directory_id and other.server_id != command.server_id:
                return Registration(
                    ErrorCode.DUPLICATE_BROKER_REGISTRATION,
                    f"this data directory is registered as server {other.server_id}",
                )
        complaint = self.features.complaint_about(command.features)
        if complaint:
            return Registration(ErrorCode.UNSUPPORTED_VERSION, complaint)
        info = ServerInfo(
            server_id=command.server_id,
            directory_id=command.directory_id,
            rack=command.rack,
            listeners=command.listeners,
            replica_of_catalog=command.replica_of_catalog,
            features=command.features,
        )
        if info == known:
            return Registration(ErrorCode.NONE)
        self.servers[command.server_id] = info
        self._dirty.add(_server_key(command.server_id))
        self._begin_features()
        return Registration(ErrorCode.NONE, events=[ServerRegistered(command.server_id)])

    def _begin_features(self) -> None:
        """Finalise the first feature levels, once all first servers have registered theirs.

        If some servers run a version without features, this happens when the last of them is
        upgraded.
        """
        servers = self.servers.values()
        if (
            not self.features.epoch
            and self.first_servers
            and self.first_servers.keys() <= self.servers.keys()
            and all(server.features for server in servers)
        ):
            names = self.features.begin(server.features for server in servers)
            self._dirty.add(_KEY_COUNTERS)
            self._dirty.update(map(_feature_key, names))

    def _update_features(self, command: commands.UpdateFeatures) -> FeaturesUpdated:
        error, message = self.features.update(
            command.updates,
            {server.server_id: server.features for server in self.servers.values()},
            validate_only=command.validate_only,
        )
        if error is ErrorCode.NONE and not command.validate_only:
            self._dirty.add(_KEY_COUNTERS)
            self._dirty.update(_feature_key(update.feature) for update in command.updates)
        return FeaturesUpdated(error, message)

    def _alter_scram_credentials(self, command: commands.AlterScramCredentials) -> UsersAltered:
        errors, changed = self.scram.alter(command)
        self._dirty.update(changed)
        return UsersAltered(errors)

    def _create_token(self, command: commands.CreateDelegationToken, now_ms: int) -> TokenAnswer:
        answer, changed = self.tokens.create(command, now_ms)
        self._dirty.update(changed)
        return answer

    def _alter_token(self, command: commands.AlterDelegationToken, now_ms: int) -> TokenAnswer:
        answer, changed = self.tokens.alter(command, now_ms)
        self._dirty.update(changed)
        return answer

    def directory_of(self, server_id: ServerId) -> DirectoryId | None:
        """Return the directory that holds the server's replicas; None for an unknown server."""
        known = self.servers.get(server_id) or self.added.get(server_id)
        return self.first_servers.get(server_id) if known is None else known.directory_id

    # --- servers that join and leave ---------------------------------------------------------
    @property
    def leaving(self) -> frozenset[ServerId]:
        """Servers that are to be removed: they get no new replica."""
        return frozenset(server for server, added in self.added.items() if added.is_leaving)

    @property
    def voters(self) -> tuple[ServerId, ...]:
        """Servers that should vote in the catalog and in every coordinator."""
        return self.system.voters

    @property
    def votes_moved(self) -> bool:
        """True if other servers vote than at first, or one of the first was removed."""
        first = self.initial_voters
        return self.voters != tuple(first) or len(self.first_servers) < len(first)

    @property
    def knows_moved_votes(self) -> bool:
        """True if the log has had a `DecommissionVoter` that had an effect, for ever after."""
        return self.votes_moved or not self.first_servers.keys().isdisjoint(self.added)

    def is_member(self, server_id: ServerId) -> bool:
        """Return True if the cluster has a server of this id, in whichever directory."""
        return server_id in self.first_servers or server_id in self.added

    def is_removed(self, server_id: ServerId, directory_id: DirectoryId) -> bool:
        """Return True if the server was removed from the cluster with this directory.

        Also True if it was added again since, or has lost this directory.
        """
        return (
            directory_id in self.retired
            and server_id not in self.first_servers
            and self.directory_of(server_id) != directory_id
        )

    def observers(self, group_id: GroupId) -> list[ReplicaInfo]:
        """Return the replicas that a group should have and that do not vote, by server.

        A server that leaves, and has given its votes to another, follows the catalog to its end.
        """
        if group_id != _CATALOG:
            return []
        number = self.system.number
        observing = sorted(self.added.keys() - set(self.voters))
        return [ReplicaInfo(server, number(_CATALOG, server)) for server in observing]

    def _placeable(self) -> dict[ServerId, str]:
        """Return the servers that may get new replicas, with their racks."""
        leaving = self.leaving
        return {s.server_id: s.rack for s in self.servers.values() if s.server_id not in leaving}

    def _admit_server(self, command: commands.AdmitServer) -> MembershipChanged:
        server_id, directory_id = command.server_id, command.directory_id
        if complaint := why_not_added(server_id, len(self.initial_voters)):
            return MembershipChanged(ErrorCode.INVALID_REQUEST, complaint)
        known = self.added.get(server_id)
        if known is not None and known.directory_id == directory_id:
            # Sent again, perhaps with a new address.
            self._note_added(msgspec.structs.replace(known, host=command.host, port=command.port))
            return MembershipChanged(ErrorCode.NONE)
        if self.is_member(server_id):
            return MembershipChanged(
                ErrorCode.DUPLICATE_BROKER_REGISTRATION,
                f"server {server_id} is a server of this cluster already",
            )
        servers = (*self.first_servers, *self.added)
        if directory_id in self.retired or directory_id in map(self.directory_of, servers):
            return MembershipChanged(
                ErrorCode.DUPLICATE_BROKER_REGISTRATION,
                "the data directory was already used by a server: an empty one is needed",
            )
        if len(self.added) >= ADDED_SERVERS_MAX:
            return MembershipChanged(
                ErrorCode.POLICY_VIOLATION, f"at most {ADDED_SERVERS_MAX} servers can be added"
            )
        if server_id in self.retired.values():
            # It was a member before: its replica of the catalog had a number.
            number = ReplicaNumber(self.system.number(_CATALOG, server_id) + 1)
            if number > REPLICA_NUMBER_MAX:
                return MembershipChanged(
                    ErrorCode.POLICY_VIOLATION, f"server {server_id} was added too often"
                )
            self._dirty.add(self.system.renumber(_CATALOG, server_id, number))
        self._note_added(AddedServer(server_id, directory_id, command.host, command.port))
        return MembershipChanged(ErrorCode.NONE)

    def _note_added(self, added: AddedServer) -> None:
        self.added[added.server_id] = added
        self.renumbered += 1
        self._dirty.add(_added_key(added.server_id))

    def why_no_removal(self, server_id: ServerId) -> tuple[ErrorCode, str]:
        """Return why a server cannot be removed, whatever it holds; NONE if it can.

        Use: also before a command about it is proposed. Servers of an older version know none of
        these commands, and while there is an added server, there are none of these servers.
        """
        if server_id in self.added:
            return ErrorCode.NONE, ""
        if server_id not in self.first_servers:
            return ErrorCode.BROKER_ID_NOT_REGISTERED, f"server {server_id} is not registered"
        return self._why_votes_stay(server_id)

    def _why_votes_stay(self, server_id: ServerId) -> tuple[ErrorCode, str]:
        """Return why no other server could take its votes; NONE if one could, or it has none."""
        count = len(self.voters)
        staying = len(self._placeable().keys() - {server_id})
        if server_id not in self.voters or staying >= count:
            return ErrorCode.NONE, ""
        servers = f"{staying} other servers stay" if staying > 1 else f"{staying} other stays"
        return (
            ErrorCode.INVALID_REQUEST,
            f"server {server_id} votes in the catalog and the coordinators, which need {count} "
            f"servers, but only {servers}: add a server first",
        )

    def _decommission_server(self, command: commands.DecommissionServer) -> MembershipChanged:
        server_id = command.server_id
        error, complaint = self.why_no_removal(server_id)
        if error is not ErrorCode.NONE:
            return MembershipChanged(error, complaint)
        if self.directory_of(server_id) != command.directory_id:
            return MembershipChanged(
                ErrorCode.INVALID_REQUEST, f"server {server_id} has another directory now"
            )
        if server_id not in self.added:
            # Older versions refuse it too: only `DecommissionVoter` begins with a first server.
            return MembershipChanged(ErrorCode.INVALID_REQUEST, f"server {server_id} stays")
        if command.is_leaving:
            error, complaint = self._why_not_without(server_id)
            if error is not ErrorCode.NONE:
                return MembershipChanged(error, complaint)
        added = msgspec.structs.replace(self.added[server_id], is_leaving=command.is_leaving)
        self._note_added(added)
        return MembershipChanged(ErrorCode.NONE)

    def _decommission_voter(self, command: commands.DecommissionVoter) -> MembershipChanged:
        """Begin to remove a server of the first ones, which becomes one of the added."""
        server_id, directory_id = command.server_id, command.directory_id
        error, complaint = self.why_no_removal(server_id)
        if error is not ErrorCode.NONE:
            return MembershipChanged(error, complaint)
        if self.directory_of(server_id) != directory_id:
            return MembershipChanged(
                ErrorCode.INVALID_REQUEST, f"server {server_id} has another directory now"
            )
        error, complaint = self._why_not_without(server_id)
        if error is not ErrorCode.NONE:
            return MembershipChanged(error, complaint)
        known = self.added.get(server_id) or AddedServer(server_id, directory_id, "", 0)
        self._note_added(msgspec.structs.replace(known, is_leaving=True))
        self._dirty.add(_KEY_VOTES)
        return MembershipChanged(ErrorCode.NONE)

    def _why_not_without(self, server_id: ServerId) -> tuple[ErrorCode, str]:
        """Return why the cluster cannot go on without a server; NONE if it can."""
        error, complaint = self._why_votes_stay(server_id)
        if error is not ErrorCode.NONE:
            return error, complaint
        partitions = {
            f"{info.topic}-{info.partition}": info.replicas for info in self.groups.values()
        }
        staying = self._placeable().keys() - {server_id}
        leaving = self.leaving | {server_id}
        if complaint := why_not_without(leaving, staying, partitions):
            return ErrorCode.INVALID_REPLICATION_FACTOR, complaint
        return ErrorCode.NONE, ""

    def has_votes(self, server_id: ServerId) -> bool:
        """Return True if a server may still have a vote in the catalog or a coordinator."""
        return server_id in self.voters or any(
            server_id == replica.server_id
            for group_id in self._system_groups()
            for replica in self.move(group_id).leaving
        )

    def _system_groups(self) -> Iterator[GroupId]:
        return map(GroupId, range(1 + self.coordinator_groups))

    def votes_plan(self, command: commands.MoveVotes) -> tuple[ServerId, ...]:
        """Return the voters after the command, which may be the present ones.

        A leaving server gives its votes to one that stays. So does one that was about to receive
        them and is down, but only to one that is there. All groups have their voters on the same
        servers: a directory that has one of them has all (`vdl recover`).
        """
        voters, leaving, alive = list(self.voters), self.leaving, frozenset(command.alive)
        # Moves of all groups begin together, so each has the same origin.
        origins = [self.move(group_id).origin for group_id in self._system_groups()]
        load = Load(self.servers)
        load.replicas = {server: len(self.held[server]) for server in self.servers}
        for position, server in enumerate(voters):
            is_coming = any(origin and server not in origin for origin in origins)
            is_lost = is_coming and bool(alive) and server not in alive
            if server not in leaving and not is_lost:
                continue
            others = [other for other in voters if other != server]
            able = {
                other: rack
                for other, rack in self._placeable().items()
                if self._may_vote(other) and (server in leaving or other in alive)
            }
            able.pop(server, None)
            racks = {**self._racks_of(others), **able}
            chosen = substitute(load, racks, others, alive=alive, replicas_max=0)
            if chosen is not None:
                voters[position] = chosen
        return tuple(voters)

    def _racks_of(self, servers: list[ServerId]) -> dict[ServerId, str]:
        return {server: self.servers[server].rack for server in servers if server in self.servers}

    def _may_vote(self, server_id: ServerId) -> bool:
        """Return True if a server can get a replica of each coordinator: no number has run out."""
        return all(
            replica.replica_number < REPLICA_NUMBER_MAX
            for group_id in self._system_groups()
            for replica in self.move(group_id).former
            if replica.server_id == server_id
        )

    def _move_votes(self, command: commands.MoveVotes) -> MembershipChanged:
        voters = self.votes_plan(command)
        if voters == self.voters:
            return MembershipChanged(ErrorCode.NONE)
        before = {group_id: self.system.replicas(group_id) for group_id in self._system_groups()}
        self.system.voters = voters
        self._dirty.add(_KEY_VOTES)
        for group_id, wanted in before.items():
            replicas, move = reassigned(wanted, self.move(group_id), rotated(voters, group_id))
            for replica in replicas:
                # Each server has a replica of the catalog already: that one gets the vote.
                if group_id != _CATALOG and replica not in wanted:
                    server, number = replica.server_id, replica.replica_number
                    self._dirty.add(self.system.renumber(group_id, server, number))
            self._note_move(group_id, move)
        return MembershipChanged(ErrorCode.NONE)

    def _drain_servers(self, command: commands.DrainServers) -> MembershipChanged:
        """Give partitions of leaving servers other replicas, in the place of those."""
        for group_id, servers in self.drain_plan(command):
            self._reassign(group_id, servers)
        return MembershipChanged(ErrorCode.NONE)

    def drain_plan(self, command: commands.DrainServers) -> list[tuple[GroupId, list[ServerId]]]:
        """Return the moves that the command would begin or change: groups, and their new servers.

        Moves in progress come first. They are changed if they lead onto a leaving server, or away
        from one onto a server that is down, and do not count towards the limit again.
        """
        leaving = self.leaving
        if not leaving:
            return []
        load = Load(self.servers)
        load.replicas = {server: len(self.held[server]) for server in self.servers}
        drain = Drain(load, self._placeable(), leaving, command)
        plan = []
        left = command.moves_max
        for group_id in sorted(self.open_moves & self.groups.keys()):
            wanted, move = self.groups[group_id].replicas, self.moves[group_id]
            drains = not leaving.isdisjoint(replica.server_id for replica in move.leaving)
            left -= drains
            servers = drain.changed(wanted, move, drains=drains)
            if servers and self._has_number(group_id, servers):
                plan.append((group_id, servers))
        for group_id in self._to_drain(leaving) if left > 0 else ():
            info = self.groups[group_id]
            servers = drain.begun([replica.server_id for replica in info.replicas])
            if servers and self._has_number(group_id, servers):
                plan.append((group_id, servers))
                left -= 1
            if left <= 0 or not drain.has_room:
                break
        return plan

    def _to_drain(self, leaving: frozenset[ServerId]) -> Iterator[GroupId]:
        """Yield the groups with a replica on a leaving server and no move in progress, by id."""
        held = {group_id for server in leaving for group_id in self.held[server]}
        yield from sorted(held - self.open_moves)

    def _has_number(self, group_id: GroupId, servers: list[ServerId]) -> bool:
        """Return True if a group can get replicas on these servers: no number has run out."""
        replicas, _ = reassigned(self.groups[group_id].replicas, self.move(group_id), servers)
        return all(replica.replica_number <= REPLICA_NUMBER_MAX for replica in replicas)

    def _remove_server(self, command: commands.RemoveServer) -> MembershipChanged:
        server_id = command.server_id
        error, complaint = self.why_no_removal(server_id)
        if error is not ErrorCode.NONE:
            return MembershipChanged(error, complaint)
        if self.directory_of(server_id) != command.directory_id:
            return MembershipChanged(
                ErrorCode.INVALID_REQUEST, f"server {server_id} has another directory now"
            )
        if server_id not in self.leaving:
            return MembershipChanged(ErrorCode.INVALID_REQUEST, f"server {server_id} stays")
        if self.has_votes(server_id):
            return MembershipChanged(
                ErrorCode.INVALID_REQUEST,
                f"server {server_id} still votes in the catalog and the coordinators: "
                "`vdl member remove` gives its votes to another",
            )
        held = self.held_by(server_id)
        if held:
            return MembershipChanged(
                ErrorCode.INVALID_REQUEST,
                f"server {server_id} still has replicas of {len(held)} partitions, such as "
                f"{held[0].topic}-{held[0].partition}: they are moved by `vdl member remove`",
            )
        del self.added[server_id]
        if self.first_servers.pop(server_id, None) is not None:
            self._dirty.add(_KEY_VOTES)
        self.servers.pop(server_id, None)
        self.retired[command.directory_id] = server_id
        self.renumbered += 1
        self._dirty.add(_added_key(server_id))
        self._dirty.add(_server_key(server_id))
        self._dirty.add(_retired_key(command.directory_id))
        return MembershipChanged(ErrorCode.NONE)

    # --- replicas --------------------------------------------------------------------------
    def replicas(self, group_id: GroupId) -> list[ReplicaInfo]:
        """Return the members that a group should have, preferred leader first.

        Accepts any group id; the list is empty for a group that does not exist.
        """
        if group_id <= self.coordinator_groups:
            return self.system.replicas(group_id)
        info = self.groups.get(group_id)
        return [] if info is None else info.replicas

    def move(self, group_id: GroupId) -> Move:
        """Return the group's reassignment state; `NEVER_MOVED` if it has none."""
        return self.moves.get(group_id, NEVER_MOVED)

    def listed(self, group_id: GroupId) -> list[ReplicaInfo]:
        """Return every replica of a group that its server must keep.

        The members that the group should have come first, then those that are leaving.
        """
        move = self.moves.get(group_id)
        return self.replicas(group_id) + (move.leaving if move is not None else [])

    def founding(self, group_id: GroupId) -> list[ReplicaInfo]:
        """Return the members a group was created with, preferred leader first."""
        if group_id <= self.coordinator_groups:
            return self.system.founding(group_id)
        return self.groups[group_id].founding

    def has_deleted(self, group_id: GroupId) -> bool:
        """Return True if that group's partition was deleted.

        False for a group id this catalog has not allocated yet: its own state may be older.
        """
        known = group_id <= self.coordinator_groups or group_id in self.groups
        return not known and group_id < self.next_group_id

    def replica_number(self, group_id: GroupId, server_id: ServerId) -> ReplicaNumber:
        """Return the number of the server's replica of a group; 0 if it should have none.

        A leaving replica counts until the group has removed it.
        """
        for replica in self.replicas(group_id):
            if replica.server_id == server_id:
                return replica.replica_number
        if group_id in self.moves:
            for replica in self.moves[group_id].leaving:
                if replica.server_id == server_id:
                    return replica.replica_number
        if group_id == _CATALOG and server_id in self.added:
            return self.system.number(_CATALOG, server_id)
        return NO_REPLICA

    def held_by(self, server_id: ServerId) -> list[GroupInfo]:
        """Return the partitions of which the server must keep a replica, by group id."""
        return [self.groups[group_id] for group_id in sorted(self.held[server_id])]

    def is_sole(self, group_id: GroupId) -> bool:
        """Return True if the group has a single replica, which cannot be replaced."""
        return len(self.listed(group_id)) == 1

    def _replace_server(self, command: commands.ReplaceServer) -> Replacement:
        server_id, new = command.server_id, command.directory_id
        if self.directory_of(server_id) != command.old_directory_id:
            return Replacement(
                ErrorCode.INVALID_REQUEST, f"server {server_id} has another directory now"
            )
        if new in self.retired or any(s.directory_id == new for s in self.servers.values()):
            return Replacement(
                ErrorCode.DUPLICATE_BROKER_REGISTRATION,
                "the new directory was already used by a server",
            )
        system = range(1 + self.coordinator_groups)
        held = [g for g in (*system, *self.groups) if self.replica_number(g, server_id)]
        answer = self._renumber(server_id, held)
        if answer.error is ErrorCode.NONE:
            known = self.servers.get(server_id)
            if known is None and server_id not in self.added:
                # The server lost its directory before it could register.
                is_voter = server_id in self.voters
                known = ServerInfo(server_id, new, "", {}, replica_of_catalog=is_voter)
            if known is not None:
                self.servers[server_id] = msgspec.structs.replace(known, directory_id=new)
            if server_id in self.added:
                self._note_added(msgspec.structs.replace(self.added[server_id], directory_id=new))
            self.retired[command.old_directory_id] = server_id
            self._dirty.add(_server_key(server_id))
            self._dirty.add(_retired_key(command.old_directory_id))
        return answer

    def _replace_replicas(self, command: commands.ReplaceReplicas) -> Replacement:
        server_id = command.server_id
        if self.directory_of(server_id) != command.directory_id:
            return Replacement(
                ErrorCode.INVALID_REQUEST, f"server {server_id} has another directory now"
            )
        # A command that is sent again finds its replicas already replaced, and nothing is left to
        # do.
        lost = [
            replica.group_id
            for replica in command.replicas
            if self.replica_number(replica.group_id, server_id) == replica.replica_number
            and not self.is_sole(replica.group_id)
        ]
        return self._renumber(server_id, lost)

    def _renumber(self, server_id: ServerId, group_ids: list[GroupId]) -> Replacement:
        """Allocate the next numbers for the server's replicas of these groups; all or none."""
        if any(self.replica_number(g, server_id) >= REPLICA_NUMBER_MAX for g in group_ids):
            return Replacement(
                ErrorCode.POLICY_VIOLATION,
                f"server {server_id} has reached the maximum number of replacements",
            )
        self.renumbered += 1
        for group_id in group_ids:
            number = ReplicaNumber(self.replica_number(group_id, server_id) + 1)
            if group_id <= self.coordinator_groups:
                self._dirty.add(self.system.renumber(group_id, server_id, number))
            else:
                info = self.groups[group_id]
                replicas = renumbered(info.replicas, server_id)
                self._set_replicas(group_id, replicas)
            if move := self.moves.get(group_id):
                self._note_move(
                    group_id,
                    msgspec.structs.replace(
                        move,
                        revision=move.revision + 1,
                        leaving=renumbered(move.leaving, server_id),
                    ),
                )
        return Replacement(ErrorCode.NONE, events=[ReplicasReplaced(server_id, group_ids)])

    # --- reassignments (KIP-455) -----------------------------------------------------------
    def reassignment(self, group_id: GroupId) -> Reassignment | None:
        """Return the partition's reassignment in progress, None if there is none."""
        info, move = self.groups.get(group_id), self.moves.get(group_id)
        return None if info is None or move is None else in_progress(info.replicas, move)

    def is_reassigning(self, topic: TopicInfo) -> bool:
        """Return True if any partition of the topic is being reassigned."""
        moves = self.moves
        return bool(moves) and any(g in moves and moves[g].origin for g in topic.partitions)

    def _alter_reassignments(self, command: commands.AlterReassignments) -> ReassignmentsAltered:
        held = Counter({server: len(self.held[server]) for server in self.servers})
        return ReassignmentsAltered(
            [self._alter_reassignment(change, command, held) for change in command.changes]
        )

    def _alter_reassignment(
        self,
        change: commands.Reassign,
        command: commands.AlterReassignments,
        held: Counter[ServerId],
    ) -> tuple[ErrorCode, str]:
        topic = self.topics.get(change.topic)
        if topic is None or not 0 <= change.partition < len(topic.partitions):
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "the partition does not exist"
        group_id = topic.partitions[change.partition]
        info, move = self.groups[group_id], self.move(group_id)
        servers, cancels = change.replicas, False
        if servers is None:
            if not move.origin:
                return ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, "no reassignment is in progress"
            servers, cancels = move.origin, True
        elif complaint := self._why_not_on(servers, self.listed(group_id)):
            return ErrorCode.INVALID_REPLICA_ASSIGNMENT, complaint
        elif len(servers) != len(info.replicas) and not command.may_change_count:
            return (
                ErrorCode.INVALID_REPLICATION_FACTOR,
                f"the partition has {len(info.replicas)} replicas, but {len(servers)} were "
                "requested",
            )
        # Versions that cannot move votes cancel it in any case, and must apply what all others do.
        is_checked = not cancels or self.knows_moved_votes
        if is_checked and (complaint := self._why_not_drained(servers)):
            return ErrorCode.INVALID_REPLICA_ASSIGNMENT, complaint
        there = {replica.server_id for replica in self.listed(group_id)}
        more = [server for server in servers if server not in there]
        for server in more:
            if held[server] >= command.replicas_per_server_max > 0:
                return (
                    ErrorCode.POLICY_VIOLATION,
                    f"server {server} already has {held[server]} partition replicas, the "
                    "maximum (cluster.replicas_per_server)",
                )
        if self._reassign(group_id, servers, cancels=cancels) is not ErrorCode.NONE:
            return ErrorCode.POLICY_VIOLATION, "the partition was moved to this server too often"
        held.update(more)
        return ErrorCode.NONE, ""

    def _reassign(
        self, group_id: GroupId, servers: list[ServerId], *, cancels: bool = False
    ) -> ErrorCode:
        """Set the target members of a partition's group. Return NONE unless a number runs out."""
        info, move = self.groups[group_id], self.move(group_id)
        replicas, moved = reassigned(info.replicas, move, servers, cancels=cancels)
        if any(replica.replica_number > REPLICA_NUMBER_MAX for replica in replicas):
            return ErrorCode.POLICY_VIOLATION
        if replicas != info.replicas:
            self._set_replicas(group_id, replicas)
            self.renumbered += 1
        if moved != move:
            self._note_move(group_id, moved)
        return ErrorCode.NONE

    def _why_not_on(self, servers: list[ServerId], there: list[ReplicaInfo]) -> str:
        """Return why a partition cannot have its replicas on these servers; empty if it can.

        `there`: the replicas that it has.
        """
        if not servers:
            return "a partition needs at least one replica"
        if len(set(servers)) != len(servers):
            return "the replicas of a partition must be on different servers"
        held = {replica.server_id for replica in there}
        return self._why_not_placed([server for server in servers if server not in held]) or (
            self._why_unknown(servers)
        )

    def _why_not_drained(self, servers: list[ServerId]) -> str:
        """Return why a partition with replicas on these servers could not leave one of them.

        Empty if it could, or need not.
        """
        staying = len(self._placeable())
        if len(servers) <= staying or not (leaving := self.leaving.intersection(servers)):
            return ""
        return (
            f"server {min(leaving)} is being removed from the cluster, and only {staying} servers "
            "remain"
        )

    def _why_unknown(self, servers: list[ServerId]) -> str:
        unknown = [server for server in servers if server not in self.servers]
        return f"server {unknown[0]} is not registered" if unknown else ""

    def _why_not_placed(self, servers: list[ServerId]) -> str:
        """Return why new replicas cannot be on these servers; empty if they can."""
        leaving = self.leaving.intersection(servers)
        return f"server {min(leaving)} is being removed from the cluster" if leaving else ""

    def _finish_reassignments(self, command: commands.FinishReassignments) -> ReassignmentsAltered:
        answer = ReassignmentsAltered([])
        for done in command.moves:
            move = self.move(done.group_id)
            # A replica that leaves by an older revision may be a member again.
            if move.is_open and move.revision == done.revision:
                self._note_move(done.group_id, finished(move))
                answer.errors.append((ErrorCode.NONE, ""))
            else:
                answer.errors.append((ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, ""))
        return answer

    def _set_replicas(self, group_id: GroupId, replicas: list[ReplicaInfo]) -> None:
        before = self.listed(group_id)
        self.groups[group_id] = msgspec.structs.replace(self.groups[group_id], replicas=replicas)
        self.held.replace(group_id, before, self.listed(group_id))
        self._dirty.add(_group_key(group_id))

    def _note_move(self, group_id: GroupId, move: Move) -> None:
        before = self.listed(group_id)
        self.moves[group_id] = move
        if group_id in self.groups:
            self.held.replace(group_id, before, self.listed(group_id))
        if move.is_open:
            self.open_moves.add(group_id)
        else:
            self.open_moves.discard(group_id)
        self.renumbered += 1
        self._dirty.add(_move_key(group_id))

    # --- topics ----------------------------------------------------------------------------
    def _create_topics(self, command: commands.CreateTopics) -> TopicsCreated:
        answer = TopicsCreated([])
        load = self._load()
        for new in command.topics:
            created = self._plan(new, command)
            if created.error is ErrorCode.NONE and (
                complaint := self._crowded(new, created, load, command)
            ):
                created = CreatedTopic(new.name, ErrorCode.POLICY_VIOLATION, complaint)
            answer.topics.append(created)
            if created.error is ErrorCode.NONE and not command.validate_only:
                self._create(new, created, load, frozenset(command.alive))
                answer.events.extend(GroupAdded(group_id) for group_id in created.group_ids)
        return answer

    def _load(self) -> Load:
        load = Load(self.servers)
        for group_id in self.groups:
            load.add([replica.server_id for replica in self.listed(group_id)])
        return load

    def _crowded(
        self,
        new: commands.NewTopic,
        created: CreatedTopic,
        load: Load,
        command: commands.CreateTopics,
    ) -> str:
        """Return why the topic would exceed a server's replica limit; empty if it would not.

        `load` is not changed.
        """
        replicas_max = command.replicas_per_server_max
        if not replicas_max:
            return ""
        if new.assignments is None and not command.counts_each_server:
            # Commands without the flag were decided by the sum over all servers.
            room = sum(max(0, replicas_max - count) for count in load.replicas.values())
            wanted_in_all = created.partitions * created.replication_factor
            if wanted_in_all <= room:
                return ""
            return (
                f"{wanted_in_all} replicas were requested, but there is room for {room}: a "
                f"server may have at most {replicas_max}"
            )
        placements = new.assignments
        if placements is None:
            placements = self._place(
                load.copy(),
                partitions=created.partitions,
                replication_factor=created.replication_factor,
                alive=frozenset(command.alive),
            )
        return overfull(placements, load, replicas_max)

    def _place(
        self, load: Load, *, partitions: int, replication_factor: int, alive: frozenset[ServerId]
    ) -> list[list[ServerId]]:
        return place(
            load,
            self._placeable(),
            partitions=partitions,
            replication_factor=replication_factor,
            alive=alive,
        )

    def _plan(self, new: commands.NewTopic, command: commands.CreateTopics) -> CreatedTopic:
        """Return the topic's counts if it can be created, else an error. KIP-464 for defaults."""

        def refused(error: ErrorCode, message: str) -> CreatedTopic:
            return CreatedTopic(new.name, error, message)

        complaint = topic_name_complaint(new.name)
        if complaint:
            return refused(ErrorCode.INVALID_TOPIC_EXCEPTION, complaint)
        if new.name in self.topics:
            return refused(ErrorCode.TOPIC_ALREADY_EXISTS, f"topic '{new.name}' already exists")
        if other := self.names.colliding(new.name):
            return refused(
                ErrorCode.INVALID_TOPIC_EXCEPTION,
                f"topic '{new.name}' collides with the existing topic '{other}'",
            )
        if new.topic_id in self.topics_by_id:
            return refused(ErrorCode.INVALID_REQUEST, "the topic id is in use")
        if new.assignments is not None:
            error, complaint = self._check_assignments(new)
            if error is not ErrorCode.NONE:
                return refused(error, complaint)
            partitions, factor = len(new.assignments), len(new.assignments[0])
        else:
            partitions = command.default_partitions if new.partitions == -1 else new.partitions
            factor = new.replication_factor
            if factor == -1:
                servers = self.first_servers.keys() | self.servers.keys()
                factor = min(command.default_replication_factor, len(servers - self.leaving))
        if not 0 < partitions <= PARTITIONS_PER_TOPIC_MAX:
            return refused(
                ErrorCode.INVALID_PARTITIONS,
                f"the number of partitions must be 1 to {PARTITIONS_PER_TOPIC_MAX}",
            )
        if not 0 < factor <= len(self._placeable()):
            return refused(ErrorCode.INVALID_REPLICATION_FACTOR, self._too_few(factor))
        if configs_bytes(new.configs) > CONFIGS_BYTES_MAX:
            return refused(
                ErrorCode.INVALID_CONFIG, f"the settings are larger than {CONFIGS_BYTES_MAX} bytes"
            )
        return CreatedTopic(
            new.name,
            ErrorCode.NONE,
            topic_id=new.topic_id,
            partitions=partitions,
            replication_factor=factor,
            configs=new.configs,
        )

    def _too_few(self, factor: int) -> str:
        leaving = self.leaving.intersection(self.servers)
        told = f", {len(leaving)} of which are being removed" if leaving else ""
        return (
            f"replication factor {factor} is not possible: {len(self.servers)} servers are "
            f"registered{told}"
        )

    def _check_assignments(self, new: commands.NewTopic) -> tuple[ErrorCode, str]:
        assignments = new.assignments
        assert assignments is not None, new.name
        if new.partitions != -1 or new.replication_factor != -1:
            return (
                ErrorCode.INVALID_REQUEST,
                "assignments exclude a number of partitions and a replication factor",
            )
        if not assignments:
            return ErrorCode.INVALID_PARTITIONS, "the assignment has no partition"
        for replicas in assignments:
            if complaint := self._assignment_complaint(replicas, len(assignments[0])):
                return ErrorCode.INVALID_REPLICA_ASSIGNMENT, complaint
        return ErrorCode.NONE, ""

    def _assignment_complaint(self, replicas: list[ServerId], replication_factor: int) -> str:
        """Return what is wrong with the servers of one partition; empty if nothing is."""
        if not replicas or len(set(replicas)) != len(replicas):
            return "the replicas of a partition must be on different servers"
        if len(replicas) != replication_factor:
            return "all partitions must have the same number of replicas"
        return self._why_unknown(replicas) or self._why_not_placed(replicas)

    def _create(
        self,
        new: commands.NewTopic,
        created: CreatedTopic,
        load: Load,
        alive: frozenset[ServerId],
    ) -> None:
        placements = new.assignments
        if placements is None:
            placements = self._place(
                load,
                partitions=created.partitions,
                replication_factor=created.replication_factor,
                alive=alive,
            )
        else:
            for replicas in placements:
                load.add(replicas)
        created.group_ids = self._add_groups(new.name, 0, placements)
        topic = TopicInfo(new.name, new.topic_id, created.group_ids, new.configs)
        self.topics_revision += 1
        self.topics[new.name] = topic
        self.names.add(new.name)
        self.topics_by_id[new.topic_id] = topic
        self._dirty.add(_topic_key(new.name))

    def _add_groups(
        self, topic: str, first_partition: int, placements: list[list[ServerId]]
    ) -> list[GroupId]:
        """Create groups for the partitions from `first_partition` on; return their ids."""
        first = self.next_group_id
        for position, servers in enumerate(placements):
            group_id = GroupId(first + position)
            assert group_id not in self.groups, group_id
            members = [ReplicaInfo(server, FIRST_REPLICA) for server in servers]
            self.groups[group_id] = GroupInfo(
                group_id=group_id,
                topic=topic,
                partition=first_partition + position,
                replicas=members,
                founding=members,
            )
            self.held.replace(group_id, (), members)
            self._dirty.add(_group_key(group_id))
        self.next_group_id = GroupId(first + len(placements))
        self._dirty.add(_KEY_COUNTERS)
        return [GroupId(group_id) for group_id in range(first, self.next_group_id)]

    # --- new partitions of existing topics ---------------------------------------------------
    def _create_partitions(self, command: commands.CreatePartitions) -> PartitionsCreated:
        answer = PartitionsCreated([])
        load = self._load()
        for new in command.topics:
            grown = self._grow(new, command, load)
            answer.topics.append(grown)
            answer.events.extend(GroupAdded(group_id) for group_id in grown.group_ids)
        return answer

    def _grow(
        self, new: commands.NewPartitions, command: commands.CreatePartitions, load: Load
    ) -> GrownTopic:
        """Add the partitions of one topic, if the request is valid, and count them in `load`."""

        def refused(error: ErrorCode, message: str) -> GrownTopic:
            return GrownTopic(new.topic, error, message)

        topic = self.topics.get(new.topic)
        if topic is None:
            return refused(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic '{new.topic}' does not exist"
            )
        if self.is_reassigning(topic):
            return refused(
                ErrorCode.REASSIGNMENT_IN_PROGRESS, f"partitions of '{new.topic}' are being moved"
            )
        present = len(topic.partitions)
        if not present < new.count <= PARTITIONS_PER_TOPIC_MAX:
            return refused(
                ErrorCode.INVALID_PARTITIONS,
                f"topic '{new.topic}' has {present} partitions; expected a larger number, at "
                f"most {PARTITIONS_PER_TOPIC_MAX}",
            )
        # As in Kafka, the first partition decides the replication factor of the new ones.
        factor = len(self.groups[topic.partitions[0]].replicas)
        alive = frozenset(command.alive)
        added = new.count - present
        if new.assignments is not None:
            if complaint := self._growth_complaint(new.assignments, added, factor, alive):
                return refused(ErrorCode.INVALID_REPLICA_ASSIGNMENT, complaint)
            placements = new.assignments
        elif factor > len(self._placeable()):
            return refused(ErrorCode.INVALID_REPLICATION_FACTOR, self._too_few(factor))
        else:
            placements = self._place(
                load.copy(), partitions=added, replication_factor=factor, alive=alive
            )
        if complaint := overfull(placements, load, command.replicas_per_server_max):
            return refused(ErrorCode.POLICY_VIOLATION, complaint)
        for replicas in placements:
            load.add(replicas)
        if command.validate_only:
            return GrownTopic(new.topic, ErrorCode.NONE)
        groups = self._add_groups(new.topic, present, placements)
        self._change_topic(topic, partitions=[*topic.partitions, *groups])
        return GrownTopic(new.topic, ErrorCode.NONE, group_ids=groups)

    def _growth_complaint(
        self,
        assignments: list[list[ServerId]],
        added: int,
        replication_factor: int,
        alive: frozenset[ServerId],
    ) -> str:
        """Return what is wrong with the servers of the new partitions; empty if nothing is."""
        if len(assignments) != added:
            return f"{added} partitions would be added, but {len(assignments)} have an assignment"
        for replicas in assignments:
            if complaint := self._assignment_complaint(replicas, replication_factor):
                return complaint
            if alive and alive.isdisjoint(replicas):
                return "no server of an assigned partition is reachable"
        return ""

    def _change_topic(self, topic: TopicInfo, **fields: Any) -> None:
        changed = msgspec.structs.replace(topic, **fields)
        self.topics_revision += 1
        self.topics[topic.name] = self.topics_by_id[topic.topic_id] = changed
        self._dirty.add(_topic_key(topic.name))

    def _delete_topics(self, command: commands.DeleteTopics) -> TopicsDeleted:
        answer = TopicsDeleted([])
        for name in command.names:
            topic = self.topics.get(name)
            if topic is None:
                error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                answer.topics.append(DeletedTopic(name, bytes(16), error))
            else:
                self._delete(topic, answer)
        for topic_id in command.topic_ids:
            topic = self.topics_by_id.get(topic_id)
            if topic is None:
                answer.topics.append(DeletedTopic("", topic_id, ErrorCode.UNKNOWN_TOPIC_ID))
            else:
                self._delete(topic, answer)
        return answer

    def _delete(self, topic: TopicInfo, answer: TopicsDeleted) -> None:
        for group_id in topic.partitions:
            self.held.replace(group_id, self.listed(group_id), ())
            self.open_moves.discard(group_id)
            del self.groups[group_id]
            self._dirty.add(_group_key(group_id))
            if self.moves.pop(group_id, None) is not None:
                self._dirty.add(_move_key(group_id))
            answer.events.append(GroupRemoved(group_id))
        self.topics_revision += 1
        del self.topics[topic.name]
        self.names.remove(topic.name)
        del self.topics_by_id[topic.topic_id]
        self._dirty.add(_topic_key(topic.name))
        answer.topics.append(
            DeletedTopic(topic.name, topic.topic_id, ErrorCode.NONE, topic.partitions)
        )

    def _alter_configs(self, command: commands.AlterTopicConfigs) -> ConfigsAltered:
        answer = ConfigsAltered([])
        for change in command.changes:
            topic = self.topics.get(change.topic)
            if topic is None:
                answer.errors.append(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
                continue
            configs = changed_configs(change, topic.configs)
            if configs is None or configs_bytes(configs) > CONFIGS_BYTES_MAX:
                answer.errors.append(ErrorCode.INVALID_CONFIG)
                continue
            self._change_topic(topic, configs=configs)
            answer.errors.append(ErrorCode.NONE)
        return answer

    def _alter_resource_configs(self, command: commands.AlterResourceConfigs) -> ConfigsAltered:
        answer = ConfigsAltered([])
        for resource_type, change in command.changes:
            error, key = self.resources.alter(resource_type, change)
            answer.errors.append(error)
            if error is ErrorCode.NONE:
                self._dirty.add(key)
        return answer

    # --- permissions and quotas ------------------------------------------------------------
    def _create_acls(self, command: commands.CreateAcls) -> AclsCreated:
        answer = AclsCreated([])
        for binding in command.bindings:
            error, key = self.acls.add(binding)
            answer.errors.append(error)
            if error is ErrorCode.NONE:
                self._dirty.add(key)
        return answer

    def _delete_acls(self, command: commands.DeleteAcls) -> AclsDeleted:
        # All filters select from the state before the command, as in Kafka: one binding may match
        # several filters.
        deleted = [self.acls.matching(wanted) for wanted in command.filters]
        for binding in dict.fromkeys(one for some in deleted for one in some):
            self._dirty.add(self.acls.remove(binding))
        return AclsDeleted(deleted)

    def _alter_quotas(self, command: commands.AlterQuotas) -> ConfigsAltered:
        answer = ConfigsAltered([])
        for change in command.changes:
            error, key = self.quotas.alter(change)
            answer.errors.append(error)
            if error is ErrorCode.NONE:
                self._dirty.add(key)
        return answer

    # --- producer ids ----------------------------------------------------------------------
    def _allocate_producer_ids(self, command: commands.AllocateProducerIds) -> ProducerIdBlock:
        block = ProducerIdBlock(self.next_producer_id, command.count)
        self.next_producer_id += command.count
        self._dirty.add(_KEY_COUNTERS)
        return block

    # --- storing ---------------------------------------------------------------------------
    def take_dirty(self) -> list[tuple[bytes, bytes | None]]:
        """Return (key, value) of all changes since the last call; None for a removed key."""
        dirty, self._dirty = self._dirty, set()
        return [(key, self._stored(key)) for key in sorted(dirty)]

    def items(self) -> list[tuple[bytes, bytes]]:
        """Return the whole state in key order, for snapshots and digests."""
        keys = [_KEY_COUNTERS, _KEY_VOTES]
        keys.extend(map(_feature_key, self.features.levels))
        keys.extend(self.resources.keys())
        keys.extend(self.scram.keys())
        keys.extend(self.tokens.keys())
        keys.extend(self.acls.keys())
        keys.extend(self.quotas.keys())
        keys.extend(map(_group_key, self.groups))
        keys.extend(map(_move_key, self.moves))
        keys.extend(map(_server_key, self.servers))
        keys.extend(map(_added_key, self.added))
        keys.extend(map(_topic_key, self.topics))
        keys.extend(map(_retired_key, self.retired))
        keys.extend(self.system.keys())
        found = ((key, self._stored(key)) for key in sorted(keys))
        return [(key, value) for key, value in found if value is not None]

    def scan(self) -> None:
        """Return None: the catalog has some thousand items and is read in one piece."""

    @property
    def large(self) -> None:
        """None: the catalog is not a large state."""

    @property
    def item_count(self) -> int:
        """Number of items, in constant time."""
        named = len(self.groups) + len(self.servers) + len(self.topics)
        several = len(self.features.levels) + len(self.retired) + len(self.system)
        of_clients = len(self.acls) + len(self.quotas) + len(self.scram) + len(self.tokens)
        moves_and_more = len(self.moves) + len(self.resources) + len(self.added)
        return 1 + self.knows_moved_votes + named + several + moves_and_more + of_clients

    def load(self, items: list[tuple[bytes, bytes]]) -> None:
        """Replace the whole state.

        Raise msgspec.DecodeError for a value that the catalog never stored.
        """
        self.servers = {}
        self.added = {}
        self.topics_revision += 1
        self.topics = {}
        self.names = TopicNames()
        self.topics_by_id = {}
        self.groups = {}
        self.moves = {}
        self.held = HeldGroups()
        self.next_group_id = self._first_group_id
        self.next_producer_id = 0
        self.noted_ms = 0
        self.features = Features()
        self.retired = {}
        self.renumbered += 1
        self._dirty = set()
        self.system.load([item for item in items if item[0][:1] == NUMBER_PREFIX])
        self.first_servers = dict(self.initial_voters)
        self.system.voters = tuple(self.initial_voters)
        self.resources.load([value for key, value in items if key[:1] == KEY_PREFIX])
        self.scram.load([item for item in items if item[0][:1] == SCRAM_PREFIX])
        self.tokens.load([value for key, value in items if key[:1] == TOKEN_PREFIX])
        self.quotas.load([value for key, value in items if key[:1] == quotas.KEY_PREFIX])
        self.acls.load([value for key, value in items if key[:1] == acls.KEY_PREFIX])
        for key, value in items:
            match key[:1]:
                case b"c":
                    counters = decode_value(value, Counters)
                    self.next_group_id = counters.next_group_id
                    self.next_producer_id = counters.next_producer_id
                    self.noted_ms = counters.noted_ms
                    self.features.epoch = counters.features_epoch
                case b"e":
                    added = decode_value(value, AddedServer)
                    self.added[added.server_id] = added
                case b"f":
                    self.features.levels[key[1:].decode()] = decode_value(value, int)
                case b"g":
                    group = decode_value(value, GroupInfo)
                    self.groups[group.group_id] = group
                case b"m":
                    self.moves[_KEY_GROUP.unpack(key)[1]] = decode_value(value, Move)
                case b"r":
                    self.retired[DirectoryId(key[1:])] = decode_value(value, int)
                case b"s":
                    server = decode_value(value, ServerInfo)
                    self.servers[server.server_id] = server
                case b"v":
                    votes = decode_value(value, Votes)
                    self.system.voters = tuple(votes.voters)
                    for server_id in self.initial_voters.keys() - set(votes.first_servers):
                        del self.first_servers[server_id]
                case b"a" | b"d" | b"n" | b"q" | b"u" | b"x":
                    continue  # loaded above
                case b"t":
                    topic = decode_value(value, TopicInfo)
                    self.topics[topic.name] = topic
                    self.names.add(topic.name)
                    self.topics_by_id[topic.topic_id] = topic
                case kind:
                    raise AssertionError(f"the catalog stores nothing under {kind!r}")
        for group_id in self.groups:
            self.held.replace(group_id, (), self.listed(group_id))
        self.open_moves = {group_id for group_id, move in self.moves.items() if move.is_open}

    def _stored(self, key: bytes) -> bytes | None:
        value: Any
        match key[:1]:
            case b"c":
                value = Counters(
                    self.next_group_id,
                    self.next_producer_id,
                    self.noted_ms,
                    self.features.epoch,
                )
            case b"e":
                value = self.added.get(_KEY_SERVER.unpack(key)[1])
            case b"f":
                value = self.features.levels.get(key[1:].decode())
            case b"g":
                value = self.groups.get(_KEY_GROUP.unpack(key)[1])
            case b"m":
                value = self.moves.get(_KEY_GROUP.unpack(key)[1])
            case b"r":
                value = self.retired.get(DirectoryId(key[1:]))
            case b"a":
                return self.acls.stored(key)
            case b"d":
                return self.tokens.stored(key)
            case b"n":
                return self.system.stored(key)
            case b"v":
                # Also before any vote moves: older versions end at this key, not at a command that
                # a checkpoint has covered.
                votes = Votes(list(self.voters), list(self.first_servers))
                value = votes if self.knows_moved_votes else None
            case b"q":
                return self.quotas.stored(key)
            case b"x":
                return self.resources.stored(key)
            case b"u":
                return self.scram.stored(key)
            case b"s":
                value = self.servers.get(_KEY_SERVER.unpack(key)[1])
            case _:
                value = self.topics.get(key[1:].decode())
        return None if value is None else encode_value(value)


def _added_key(server_id: ServerId) -> bytes:
    return _KEY_SERVER.pack(ADDED_PREFIX, server_id)


def _feature_key(feature: str) -> bytes:
    return b"f" + feature.encode()


def _group_key(group_id: GroupId) -> bytes:
    return _KEY_GROUP.pack(b"g", group_id)


def _move_key(group_id: GroupId) -> bytes:
    return _KEY_GROUP.pack(b"m", group_id)


def _retired_key(directory_id: DirectoryId) -> bytes:
    return b"r" + directory_id


def _server_key(server_id: ServerId) -> bytes:
    return _KEY_SERVER.pack(b"s", server_id)


def _topic_key(name: str) -> bytes:
    return b"t" + name.encode()
