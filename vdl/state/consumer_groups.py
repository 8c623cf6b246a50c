"""All classic consumer groups of one coordinator: the membership protocol as a state machine.

JoinGroup, SyncGroup, LeaveGroup and expired timers are commands. `apply` checks their preconditions
against the current state and returns events. The coordinator's leader uses the events to answer
pending requests and to set timers. Heartbeats are not commands: they change nothing that must
outlive the leader.

The progress of a rebalance is replicated: joined members, pending member ids, the group's leader. A
group therefore continues where it was when its coordinator moves to another server; no member has
to rejoin.

Does not depend on requests, on versions, on time other than `now_ms`, or on the Raft leader.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from vdl.errors import ErrorCode
from vdl.state import commands
from vdl.state.changed_parts import ChangedParts
from vdl.state.consumer_group import (
    MEMBER_BYTES,
    ConsumerGroup,
    GroupState,
    Member,
    StoredGroup,
    group_from,
    protocols_bytes,
)
from vdl.state.group_kinds import COORDINATOR_IS_FULL, SYNC_IS_FULL, GroupTouched
from vdl.state.held_bytes import HeldBytes
from vdl.state.table import (
    ALL,
    decode_value,
    scanned_items,
    stored_changes,
    stored_items,
    taken,
    texts_bytes,
)


@dataclass(slots=True)
class RebalanceStarted:
    """Members must join within the group's rebalance timeout from now; pending syncs are cancelled.

    Also emitted when that time is over and no member of an all-static group has joined: the time
    starts again.
    """

    group_id: str


@dataclass(slots=True)
class JoinCompleted:
    """A generation is set (COMPLETING_REBALANCE), or no member is left (EMPTY)."""

    group_id: str


@dataclass(slots=True)
class SyncCompleted:
    """Assignments are set and the group is STABLE."""

    group_id: str


@dataclass(slots=True)
class MemberPending:
    """A member id was allocated and must be used within the session timeout."""

    group_id: str
    member_id: str


@dataclass(slots=True)
class MemberRemoved:
    """A member, or a pending one, was removed. `error` is the answer to its pending requests."""

    group_id: str
    member_id: str
    error: ErrorCode


@dataclass(slots=True)
class GroupDeleted:
    """A group was deleted."""

    group_id: str


ClassicEvent = (
    RebalanceStarted | JoinCompleted | SyncCompleted | MemberPending | MemberRemoved | GroupDeleted
)
GroupEvent = ClassicEvent | GroupTouched


@dataclass(slots=True)
class JoinAnswer:
    """Answer to JoinGroup.

    Without an error, the member is in the group under `member_id`. If the group is not in
    PREPARING_REBALANCE then, the member belongs to the current generation.
    """

    error: ErrorCode
    member_id: str
    """With MEMBER_ID_REQUIRED, the id that the client must join with."""
    leader_before: str | None = None
    """Previous leader, if a static member rejoined a stable group without a rebalance; else None.

    If the member itself was the leader, it leads under its new id and must not assign again
    (KIP-814).
    """
    events: list[GroupEvent] = field(default_factory=list)


@dataclass(slots=True)
class SyncAnswer:
    """Answer to SyncGroup. Without an error, the assignment is in the state once it is STABLE."""

    error: ErrorCode
    events: list[GroupEvent] = field(default_factory=list)


@dataclass(slots=True)
class LeaveAnswer:
    """Answer to LeaveGroup: one error for each named member."""

    errors: list[ErrorCode]
    events: list[GroupEvent] = field(default_factory=list)


@dataclass(slots=True)
class GroupChanged:
    """Answer to ExpireMembers and CompleteJoin, which no request waits for."""

    events: list[GroupEvent] = field(default_factory=list)


@dataclass(slots=True)
class GroupsDeleted:
    """Answer to DeleteGroups: one error for each named group."""

    errors: list[ErrorCode]
    events: list[GroupEvent] = field(default_factory=list)


KEY_PREFIX = b"g"
GROUP_BYTES_MAX = 2 << 20
"""Maximum size of a group in a snapshot: its members' subscriptions, assignments and names.

Kafka's bound is the size of a batch, 1 MiB by default.
"""


class ConsumerGroups:
    """All classic groups; see the module. Other modules only read `groups`."""

    __slots__ = ("_changed", "_dirty", "_held", "_members", "groups")

    def __init__(self, changed: ChangedParts) -> None:
        """Notify `changed` of groups that change or are removed."""
        self._changed = changed
        self._held = HeldBytes()
        self.groups: dict[str, ConsumerGroup] = {}
        self._members = 0
        self._dirty: set[str] = set()

    def __len__(self) -> int:
        """Return the number of groups plus that of their members."""
        return len(self.groups) + self._members

    @property
    def bytes_held(self) -> int:
        """Estimated size of all groups in a snapshot."""
        held = self._held
        return held.of(self.groups) if held.stale else held.total

    def _touch(self, group_id: str) -> None:
        """Mark a group as changed."""
        self._dirty.add(group_id)
        self._held.stale.add(group_id)
        self._changed.classic_group(group_id)

    def growth(self, command: commands.JoinGroup) -> int:
        """Return how many bytes a join adds to its group at most."""
        group = self.groups.get(command.group_id)
        return _growth(ConsumerGroup(command.group_id, 0) if group is None else group, command)

    # --- joining ---------------------------------------------------------------------------
    def join(self, command: commands.JoinGroup, now_ms: int, free_bytes: int) -> JoinAnswer:
        """Join by member id, by instance id, or as a new member (KIP-62, KIP-345, KIP-394).

        `free_bytes`: size by which all groups may grow, also in `sync`.
        """
        group = self.groups.get(command.group_id)
        if group is None:
            if command.member_id:
                return JoinAnswer(ErrorCode.UNKNOWN_MEMBER_ID, command.member_id)
            group = ConsumerGroup(command.group_id, now_ms)
        if not group.supports(command.protocol_type, command.protocols):
            return JoinAnswer(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, command.member_id)
        # State that does not fit a snapshot could never be restored from another replica.
        refusal = _refusal(group, _growth(group, command), free_bytes)
        if refusal is not ErrorCode.NONE:
            return JoinAnswer(refusal, command.member_id)
        if command.member_id:
            answer = self._join_known(group, command, now_ms)
        else:
            answer = self._join_new(group, command, now_ms)
        if answer.error in (ErrorCode.NONE, ErrorCode.MEMBER_ID_REQUIRED):
            self.groups[group.group_id] = group
            self._touch(group.group_id)
        return answer

    def _join_new(
        self, group: ConsumerGroup, command: commands.JoinGroup, now_ms: int
    ) -> JoinAnswer:
        instance_id = command.group_instance_id
        if instance_id is not None and instance_id in group.static_members:
            old = group.members[group.static_members[instance_id]]
            if is_too_late(group, old, command.members_max):
                return self._turn_away(group, old.member_id, command, now_ms)
            return self._replace_static(group, command, now_ms)
        if is_full(group, command.members_max):
            return JoinAnswer(ErrorCode.GROUP_MAX_SIZE_REACHED, "")
        new_id = command.new_member_id
        if instance_id is None and command.known_member_id_required:
            group.expect(new_id, command.session_timeout_ms)
            return JoinAnswer(
                ErrorCode.MEMBER_ID_REQUIRED,
                new_id,
                events=[MemberPending(group.group_id, new_id)],
            )
        return self._add(group, new_id, command, now_ms)

    def _join_known(
        self, group: ConsumerGroup, command: commands.JoinGroup, now_ms: int
    ) -> JoinAnswer:
        member_id = command.member_id
        if member_id in group.pending and command.group_instance_id is None:
            if has_all_members(group, command.members_max):
                return self._turn_away(group, member_id, command, now_ms)
            group.expect_no_more(member_id)
            return self._add(group, member_id, command, now_ms)
        error = group.check_member(member_id, command.group_instance_id)
        if error is not ErrorCode.NONE:
            return JoinAnswer(error, member_id)
        member = group.members[member_id]
        if is_too_late(group, member, command.members_max):
            return self._turn_away(group, member_id, command, now_ms)
        answer = JoinAnswer(ErrorCode.NONE, member_id)
        match group.state:
            case GroupState.COMPLETING_REBALANCE if member.protocols == command.protocols:
                # The member may have missed the answer to its join; it already is in this
                # generation.
                return answer
            case GroupState.STABLE if (
                member_id != group.leader and member.protocols == command.protocols
            ):
                return answer
        # A leader that joins a stable group wants a new assignment, even with the same
        # subscription.
        _update(group, member, command)
        group.join(member)
        self._rebalance(group, now_ms, answer.events)
        return answer

    def _turn_away(
        self, group: ConsumerGroup, member_id: str, command: commands.JoinGroup, now_ms: int
    ) -> JoinAnswer:
        """Remove and refuse a member or pending member because the group is full (KIP-389)."""
        answer = JoinAnswer(ErrorCode.GROUP_MAX_SIZE_REACHED, command.member_id)
        members_before = len(group.members)
        self._remove(group, member_id, answer.events)
        self._go_on_without(group, members_before, now_ms, answer.events)
        return answer

    def _add(
        self, group: ConsumerGroup, member_id: str, command: commands.JoinGroup, now_ms: int
    ) -> JoinAnswer:
        if not group.members:
            group.protocol_type = command.protocol_type
        self._members += 1
        group.add(
            Member(
                member_id=member_id,
                group_instance_id=command.group_instance_id,
                client_id=command.client_id,
                client_host=command.client_host,
                session_timeout_ms=command.session_timeout_ms,
                rebalance_timeout_ms=command.rebalance_timeout_ms,
                protocols=command.protocols,
                joined=True,
            )
        )
        if group.leader is None:
            group.leader = member_id
        if group.state is GroupState.EMPTY:
            group.held = command.hold_first_rebalance
        answer = JoinAnswer(ErrorCode.NONE, member_id)
        self._rebalance(group, now_ms, answer.events)
        return answer

    def _replace_static(
        self, group: ConsumerGroup, command: commands.JoinGroup, now_ms: int
    ) -> JoinAnswer:
        """Let a static member return under a new member id; the old id is fenced."""
        assert command.group_instance_id is not None, command
        old_id = group.static_members[command.group_instance_id]
        leader_before = group.leader
        member = group.remove(old_id)
        member.member_id = command.new_member_id
        group.add(member)
        _update(group, member, command)
        if leader_before == old_id:
            group.leader = member.member_id
        answer = JoinAnswer(
            ErrorCode.NONE,
            member.member_id,
            events=[MemberRemoved(group.group_id, old_id, ErrorCode.FENCED_INSTANCE_ID)],
        )
        if group.state is GroupState.STABLE and group.select_protocol() == group.protocol_name:
            answer.leader_before = leader_before
            return answer
        group.join(member)
        self._rebalance(group, now_ms, answer.events)
        return answer

    # --- the other commands ------------------------------------------------------------------
    def check_sync(self, command: commands.SyncGroup) -> ErrorCode:
        """Return NONE if a member may sync: in COMPLETING_REBALANCE and STABLE.

        KIP-559 for the protocol; its fields are None if the request does not have them.
        """
        group = self.groups.get(command.group_id)
        if group is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        error = group.check_member(command.member_id, command.group_instance_id)
        if error is not ErrorCode.NONE:
            return error
        if command.generation != group.generation:
            return ErrorCode.ILLEGAL_GENERATION
        if command.protocol_type is not None and command.protocol_type != group.protocol_type:
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        if group.state is GroupState.PREPARING_REBALANCE:
            return ErrorCode.REBALANCE_IN_PROGRESS
        if command.protocol_name is not None and command.protocol_name != group.protocol_name:
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        return ErrorCode.NONE

    def sync(self, command: commands.SyncGroup, now_ms: int, free_bytes: int) -> SyncAnswer:
        """Make the generation stable with the leader's assignment; later syncs change nothing."""
        error = self.check_sync(command)
        if error is not ErrorCode.NONE:
            return SyncAnswer(error)
        group = self.groups[command.group_id]
        if group.state is GroupState.STABLE or group.leader != command.member_id:
            return SyncAnswer(ErrorCode.NONE)
        assert group.state is GroupState.COMPLETING_REBALANCE, group.state
        assignments = dict(command.assignments)
        members = group.members.values()
        more = 0
        for member in members:
            more += len(assignments.get(member.member_id, b"")) - len(member.assignment)
        refusal = _refusal(group, more, free_bytes)
        if refusal is not ErrorCode.NONE:
            is_full = refusal is COORDINATOR_IS_FULL
            return SyncAnswer(SYNC_IS_FULL if is_full else ErrorCode.MESSAGE_TOO_LARGE)
        for member in members:
            group.assign(member, assignments.get(member.member_id, b""))
        group.enter(GroupState.STABLE, now_ms)
        self._touch(group.group_id)
        return SyncAnswer(ErrorCode.NONE, [SyncCompleted(group.group_id)])

    def leave(self, command: commands.LeaveGroup, now_ms: int) -> LeaveAnswer:
        """Remove members at once, without waiting for their sessions to end."""
        group = self.groups.get(command.group_id)
        if group is None:
            return LeaveAnswer([ErrorCode.UNKNOWN_MEMBER_ID] * len(command.members))
        answer = LeaveAnswer([])
        members_before = len(group.members)
        for leaving in command.members:
            member_id = leaving.member_id
            instance_id = leaving.group_instance_id
            if not member_id and instance_id is not None:
                member_id = group.static_members.get(instance_id, "")
            error = ErrorCode.NONE
            if member_id not in group.pending:
                error = group.check_member(member_id, instance_id)
            answer.errors.append(error)
            if error is ErrorCode.NONE:
                self._remove(group, member_id, answer.events)
        if answer.events:
            self._go_on_without(group, members_before, now_ms, answer.events)
        return answer

    def expire(self, command: commands.ExpireMembers, now_ms: int) -> GroupChanged:
        """Remove members whose timers at the coordinator's leader expired."""
        changed = GroupChanged()
        group = self.groups.get(command.group_id)
        if group is None or command.generation not in (-1, group.generation):
            return changed
        members_before = len(group.members)
        for member_id in command.member_ids:
            if member_id in group.members or member_id in group.pending:
                self._remove(group, member_id, changed.events)
        if changed.events:
            self._go_on_without(group, members_before, now_ms, changed.events)
        return changed

    def complete_join(self, command: commands.CompleteJoin, now_ms: int) -> GroupChanged:
        """End the join phase of the next generation because its time is over."""
        changed = GroupChanged()
        group = self.groups.get(command.group_id)
        if (
            group is not None
            and group.state is GroupState.PREPARING_REBALANCE
            and group.generation == command.generation
        ):
            self._complete_join(group, now_ms, changed.events)
            self._touch(group.group_id)
        return changed

    def delete(self, group_id: str, events: list[GroupEvent]) -> ErrorCode:
        """Delete a group that has no members."""
        group = self.groups.get(group_id)
        if group is None:
            return ErrorCode.GROUP_ID_NOT_FOUND
        if group.state is not GroupState.EMPTY:
            return ErrorCode.NON_EMPTY_GROUP
        for member_id in list(group.pending):
            self._remove(group, member_id, events)
        del self.groups[group_id]
        self._touch(group_id)
        events.append(GroupDeleted(group_id))
        return ErrorCode.NONE

    def adopt(self, group: ConsumerGroup, now_ms: int) -> list[GroupEvent]:
        """Add a group converted from another kind; its members must rejoin."""
        assert group.group_id not in self.groups, group.group_id
        self.groups[group.group_id] = group
        self._members += len(group.members)
        group.enter(GroupState.STABLE, now_ms)
        events: list[GroupEvent] = []
        self._rebalance(group, now_ms, events)
        return events

    def give_away(self, group_id: str) -> list[GroupEvent]:
        """Remove a group that is converted to another kind.

        Clients with pending requests must rejoin.
        """
        group = self.groups.pop(group_id)
        self._members -= len(group.members)
        self._touch(group_id)
        events: list[GroupEvent] = [
            MemberRemoved(group_id, member_id, ErrorCode.REBALANCE_IN_PROGRESS)
            for member_id in (*group.members, *group.pending)
        ]
        events.append(GroupDeleted(group_id))
        return events

    def ensure(self, group_id: str, now_ms: int) -> None:
        """Create a group for committed offsets if it does not exist. It needs no members."""
        if group_id not in self.groups:
            self.groups[group_id] = ConsumerGroup(group_id, now_ms)
            self._touch(group_id)

    # --- queries -----------------------------------------------------------------------------
    def check_heartbeat(
        self, group_id: str, generation: int, member_id: str, group_instance_id: str | None
    ) -> ErrorCode:
        """Return the answer to a heartbeat: NONE, REBALANCE_IN_PROGRESS, or a membership error."""
        group = self.groups.get(group_id)
        if group is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        error = group.check_member(member_id, group_instance_id)
        if error is not ErrorCode.NONE:
            return error
        if generation != group.generation:
            return ErrorCode.ILLEGAL_GENERATION
        if group.state is GroupState.PREPARING_REBALANCE:
            return ErrorCode.REBALANCE_IN_PROGRESS
        return ErrorCode.NONE

    def check_commit(
        self, group_id: str, generation: int, member_id: str, group_instance_id: str | None
    ) -> ErrorCode:
        """Return NONE if offsets may be committed.

        A member may commit in its generation; a client without membership, while the group is
        empty.
        """
        group = self.groups.get(group_id)
        if group is None:
            return ErrorCode.NONE if generation < 0 else ErrorCode.GROUP_ID_NOT_FOUND
        if generation < 0 and group.state is GroupState.EMPTY:
            return ErrorCode.NONE
        error = group.check_member(member_id, group_instance_id)
        if error is not ErrorCode.NONE:
            return error
        if generation != group.generation:
            return ErrorCode.ILLEGAL_GENERATION
        if group.state is GroupState.COMPLETING_REBALANCE:
            # The member is in this generation, but has no assignment in it yet.
            return ErrorCode.REBALANCE_IN_PROGRESS
        return ErrorCode.NONE

    def check_transaction_commit(
        self, group_id: str, generation: int, member_id: str, group_instance_id: str | None
    ) -> ErrorCode:
        """Return NONE if a transaction may commit offsets (KIP-447).

        A member may in its generation. A client that names neither member nor generation, as older
        clients do, always may.
        """
        group = self.groups.get(group_id)
        if group is None:
            return ErrorCode.NONE if generation < 0 else ErrorCode.ILLEGAL_GENERATION
        names_nobody = not member_id and group_instance_id is None
        if generation < 0 and (names_nobody or group.state is GroupState.EMPTY):
            return ErrorCode.NONE
        error = group.check_member(member_id, group_instance_id)
        if error is ErrorCode.NONE and generation != group.generation:
            error = ErrorCode.ILLEGAL_GENERATION
        return error

    # --- the rebalance -----------------------------------------------------------------------
    def _remove(self, group: ConsumerGroup, member_id: str, events: list[GroupEvent]) -> None:
        if not group.expect_no_more(member_id):
            group.remove(member_id)
            self._members -= 1
        self._touch(group.group_id)
        events.append(MemberRemoved(group.group_id, member_id, ErrorCode.UNKNOWN_MEMBER_ID))

    def _go_on_without(
        self, group: ConsumerGroup, members_before: int, now_ms: int, events: list[GroupEvent]
    ) -> None:
        """Rebalance after a removal, if needed.

        A removed member's partitions must be reassigned; a removed pending member only delayed a
        rebalance.
        """
        if len(group.members) < members_before or group.state is GroupState.PREPARING_REBALANCE:
            self._rebalance(group, now_ms, events)

    def _rebalance(self, group: ConsumerGroup, now_ms: int, events: list[GroupEvent]) -> None:
        """Start a rebalance unless one is being prepared; complete it if all have joined."""
        self._touch(group.group_id)
        if group.state is not GroupState.PREPARING_REBALANCE:
            group.enter(GroupState.PREPARING_REBALANCE, now_ms)
            events.append(RebalanceStarted(group.group_id))
        if group.all_joined and not (group.held and group.members):
            self._complete_join(group, now_ms, events)

    def _complete_join(self, group: ConsumerGroup, now_ms: int, events: list[GroupEvent]) -> None:
        """Set the next generation from the joined members.

        Static members that did not join stay until their sessions end (KIP-345).
        """
        members = group.members
        if group.joined_count < len(members):
            for member in [member for member in members.values() if not member.joined]:
                if member.group_instance_id is None:
                    self._remove(group, member.member_id, events)
        if members and not group.joined_count:
            events.append(RebalanceStarted(group.group_id))
            return
        group.held = False
        group.generation += 1
        if not members:
            group.protocol_name = None
            group.leader = None
            group.enter(GroupState.EMPTY, now_ms)
        else:
            leader = members.get(group.leader or "")
            if leader is None or not leader.joined:
                group.leader = next(one.member_id for one in members.values() if one.joined)
            group.protocol_name = group.select_protocol()
            group.begin_generation()
            group.enter(GroupState.COMPLETING_REBALANCE, now_ms)
        events.append(JoinCompleted(group.group_id))

    # --- storing ---------------------------------------------------------------------------
    def take_dirty(self, limit: int = ALL) -> list[tuple[bytes, bytes | None]]:
        """Return up to `limit` (key, value) changes not taken yet; None for a removed group."""
        return stored_changes(KEY_PREFIX, taken(self._dirty, limit), self.groups)

    def items(self) -> list[tuple[bytes, bytes]]:
        """Return everything in key order."""
        return stored_items(KEY_PREFIX, self.groups)

    def scan(self) -> Iterator[tuple[bytes, bytes]]:
        """See `Scan.items`."""
        return scanned_items(KEY_PREFIX, self.groups)

    def load(self, values: list[bytes]) -> None:
        """Replace everything."""
        groups = [group_from(decode_value(value, StoredGroup)) for value in values]
        self.groups = {group.group_id: group for group in groups}
        self._members = sum(len(group.members) for group in groups)
        self._dirty = set()
        self._held.load(self.groups)


def _refusal(group: ConsumerGroup, more: int, free_bytes: int) -> ErrorCode:
    """Return why a group may not grow by `more` bytes, NONE if it may. 0 or less always fit."""
    if more > 0 and group.bytes + more > GROUP_BYTES_MAX:
        return ErrorCode.GROUP_MAX_SIZE_REACHED
    return COORDINATOR_IS_FULL if more > max(0, free_bytes) else ErrorCode.NONE


def _growth(group: ConsumerGroup, command: commands.JoinGroup) -> int:
    """Return how many bytes a join adds to the group at most."""
    known = group.members.get(command.member_id)
    if known is None and command.group_instance_id is not None:
        known = group.members.get(group.static_members.get(command.group_instance_id, ""))
    said = protocols_bytes(command.protocols)
    if known is not None:
        said += texts_bytes(command.client_id, command.client_host)
        said -= texts_bytes(known.client_id, known.client_host)
        return said - protocols_bytes(known.protocols)
    names = (command.member_id, command.new_member_id, command.group_instance_id or "")
    return said + MEMBER_BYTES + texts_bytes(command.client_id, command.client_host, *names)


def is_full(group: ConsumerGroup, members_max: int) -> bool:
    """Return True if no further member id may be allocated.

    More ids than members may be allocated, because not every client returns with its id.
    """
    return len(group.pending) >= members_max or has_all_members(group, members_max)


def has_all_members(group: ConsumerGroup, members_max: int) -> bool:
    """Return True if no further member fits. Members that have not rejoined do not count."""
    if group.state is GroupState.PREPARING_REBALANCE:
        return group.joined_count >= members_max
    return len(group.members) >= members_max


def is_too_late(group: ConsumerGroup, member: Member, members_max: int) -> bool:
    """Return True if the next generation is full for a member that has not joined it yet."""
    return (
        group.state is GroupState.PREPARING_REBALANCE
        and not member.joined
        and has_all_members(group, members_max)
    )


def _update(group: ConsumerGroup, member: Member, command: commands.JoinGroup) -> None:
    """Update the fields that a member sends with each join."""
    group.bytes += texts_bytes(command.client_id, command.client_host)
    group.bytes -= texts_bytes(member.client_id, member.client_host)
    member.client_id = command.client_id
    member.client_host = command.client_host
    member.session_timeout_ms = command.session_timeout_ms
    member.rebalance_timeout_ms = command.rebalance_timeout_ms
    group.set_protocols(member, command.protocols)
