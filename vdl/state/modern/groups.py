"""All groups of the newer protocol of one coordinator, as a state machine (KIP-848).

A heartbeat that changes something is a command; `heard` determines beforehand whether it does.
Targets are commands as well: the coordinator's leader computes them from this state and its
catalog, and they apply only while the group's epoch is the one they were computed for.

Does not depend on the catalog, on sessions, or on request versions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import msgspec

from vdl.errors import ErrorCode
from vdl.state import commands
from vdl.state.changed_parts import ChangedParts
from vdl.state.consumer_groups import GroupEvent, LeaveAnswer
from vdl.state.group_kinds import COORDINATOR_IS_FULL, GroupKind, GroupTouched
from vdl.state.held_bytes import HeldBytes
from vdl.state.modern.group import (
    GROUP_BYTES,
    ModernGroup,
    StoredModernGroup,
    group_from,
    subscription_bytes,
    target_bytes,
)
from vdl.state.modern.member import (
    JOINING_EPOCH,
    STATIC_LEAVING_EPOCH,
    MemberState,
    ModernMember,
    reconciled,
)
from vdl.state.modern.migration import (
    CONSUMER_PROTOCOL,
    joining,
    owned_by,
    subscription_of,
    supports,
)
from vdl.state.modern.partitions import NO_PARTITIONS, Partitions, places_of
from vdl.state.table import (
    ALL,
    decode_value,
    scanned_items,
    stored_changes,
    stored_items,
    taken,
    text_bytes,
)

GROUP_BYTES_MAX = 2 << 20
"""Maximum size of a group in a snapshot, as in the classic protocol."""
KEY_PREFIX = b"m"


@dataclass(slots=True)
class Heard:
    """Effect of a heartbeat: an error, or the member's next value."""

    error: ErrorCode = ErrorCode.NONE
    message: str = ""
    member: ModernMember | None = None
    replaces: str | None = None
    """Member id that the instance had before."""
    grows_epoch: bool = False
    is_change: bool = False
    """True if any replicated state changes."""
    more_bytes: int = 0
    """Number of bytes that the group grows by."""


@dataclass(slots=True)
class HeartbeatAnswer:
    """Answer to ConsumerHeartbeat and LeaveConsumerGroup."""

    error: ErrorCode
    message: str = ""
    member: ModernMember | None = None
    """Member after the command; None with an error, and after it left."""
    before: ModernMember | None = None
    """Member before the command; None if it is new."""
    grew_epoch: bool = False
    new_member_id: str = ""
    """With MEMBER_ID_REQUIRED, the id that a classic member must join with."""
    events: list[GroupEvent] = field(default_factory=list)


@dataclass(slots=True)
class TargetsAssigned:
    """Answer to AssignTargets."""

    is_current: bool
    """False if the group's epoch was a different one; nothing changed."""
    has_room: bool = True
    """False if the targets exceed a group's maximum size; nothing changed."""
    events: list[GroupEvent] = field(default_factory=list)


@dataclass(slots=True)
class ConsumersExpired:
    """Answer to ExpireConsumers, which no request waits for."""

    events: list[GroupEvent] = field(default_factory=list)


class ModernGroups:
    """All groups of the newer protocol, a `GroupTable`; see the module. `groups` is read-only."""

    __slots__ = ("_changed", "_dirty", "_held", "_members", "bytes_max", "groups")

    kind = GroupKind.CONSUMER

    def __init__(self, changed: ChangedParts) -> None:
        """Notify `changed` of changes and removals of groups, and of their members."""
        self._changed = changed
        self.bytes_max = 1 << 62
        self.groups: dict[str, ModernGroup] = {}
        self._members = 0
        self._dirty: set[str] = set()
        self._held = HeldBytes()

    # --- the group table ---------------------------------------------------------------------
    def __contains__(self, group_id: str) -> bool:
        return group_id in self.groups

    def __len__(self) -> int:
        return len(self.groups) + self._members

    def ids(self) -> Iterable[str]:
        """Return the group ids, in order."""
        return sorted(self.groups)

    @property
    def bytes_held(self) -> int:
        """Estimated size of all groups in a snapshot."""
        held = self._held
        return held.of(self.groups) if held.stale else held.total

    def is_empty(self, group_id: str) -> bool:
        """Return True if an existing group has no members."""
        return not self.groups[group_id].members

    def subscribes(self, group_id: str, topic: str) -> bool:
        """Return True if a member of the group subscribes to the topic."""
        return topic in self.groups[group_id].topic_names()

    def drop(self, group_id: str) -> None:
        """Remove a group that has no members."""
        assert not self.groups[group_id].members, group_id
        del self.groups[group_id]
        self._touch(group_id)

    def _touch(self, group_id: str, *member_ids: str) -> GroupTouched:
        self._dirty.add(group_id)
        self._held.stale.add(group_id)
        self._changed.group(group_id, member_ids)
        return GroupTouched(group_id, self.kind, list(member_ids))

    def _refusal(self, group: ModernGroup, more: int) -> ErrorCode:
        """Return why a group may not grow by `more` bytes, NONE if it may. 0 or less always fit."""
        if more > 0 and group.bytes + more > GROUP_BYTES_MAX:
            return ErrorCode.GROUP_MAX_SIZE_REACHED
        if more > 0 and self.bytes_held + more > self.bytes_max:
            return COORDINATOR_IS_FULL
        return ErrorCode.NONE

    # --- heartbeats ----------------------------------------------------------------------------
    def heard(self, command: commands.ConsumerHeartbeat, group: ModernGroup | None = None) -> Heard:
        """Evaluate a heartbeat against the current state, or that of `group`, without changing
        it."""
        group = group or self.groups.get(command.group_id)
        joins = command.member_epoch == JOINING_EPOCH
        if group is None:
            if not joins:
                return Heard(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {command.group_id} not found.")
            group = ModernGroup(command.group_id, 0)
        found = self._find(group, command)
        if found.error is not ErrorCode.NONE:
            return found
        before = found.member
        if before is None and len(group.members) >= command.members_max:
            return Heard(
                ErrorCode.GROUP_MAX_SIZE_REACHED,
                "The consumer group has reached its maximum capacity of "
                f"{command.members_max} members.",
            )
        member = _updated(before, command)
        more = member.bytes - (0 if before is None else before.bytes)
        if before is None and not group.members and group.group_id not in self.groups:
            more += GROUP_BYTES + text_bytes(group.group_id)
        # State that does not fit a snapshot could never be restored from another replica.
        refusal = self._refusal(group, more)
        if refusal is not ErrorCode.NONE:
            full = "coordinator" if refusal is COORDINATOR_IS_FULL else "group"
            return Heard(refusal, f"The {full} has no room for another member.")
        subscribes_anew = (
            before is None or before.topics != member.topics or before.pattern != member.pattern
        )
        had_target = found.replaces or member.member_id
        if had_target in group.targets:
            member = reconciled(
                member,
                target=group.target(had_target),
                target_epoch=group.assignment_epoch,
                taken=group.owners,
                owned=_shown(member, command),
            )
        return Heard(
            member=member,
            replaces=found.replaces,
            grows_epoch=subscribes_anew,
            is_change=member != before or found.replaces is not None or subscribes_anew,
            more_bytes=more,
        )

    def _find(self, group: ModernGroup, command: commands.ConsumerHeartbeat) -> Heard:
        """Find the member that sent this heartbeat; None for a new one."""
        joins = command.member_epoch == JOINING_EPOCH
        instance_id = command.instance_id
        member_id = command.member_id
        if instance_id is None:
            member = group.members.get(member_id)
            if member is None and not joins:
                return _unknown(group.group_id, member_id)
        else:
            owner = group.static_members.get(instance_id)
            if owner is None:
                if not joins:
                    return Heard(
                        ErrorCode.UNKNOWN_MEMBER_ID, f"Instance id {instance_id} is unknown."
                    )
                member = group.members.get(member_id)
            elif not joins and owner != member_id:
                return _fenced_instance(member_id, instance_id, owner)
            else:
                member = group.members[owner]
                if joins and (owner != member_id or member.epoch == STATIC_LEAVING_EPOCH):
                    return _replacing(member, member_id, instance_id)
        if member is None:
            return Heard()
        return _check_epoch(member, command)

    def heartbeat(
        self, command: commands.ConsumerHeartbeat, heard: Heard, now_ms: int
    ) -> HeartbeatAnswer:
        """Apply a heartbeat; `heard` is its evaluation in this state."""
        member = heard.member
        assert member is not None, command
        group = self.groups.get(command.group_id)
        if group is None:
            group = self.groups[command.group_id] = ModernGroup(command.group_id, now_ms)
        return self._take(group, heard, now_ms)

    def _take(self, group: ModernGroup, heard: Heard, now_ms: int) -> HeartbeatAnswer:
        member = heard.member
        assert member is not None, group.group_id
        before = group.members.get(member.member_id)
        if not heard.is_change:
            return HeartbeatAnswer(ErrorCode.NONE, member=member, before=before)
        if not group.members:
            group.changed_ms = now_ms
        members_before = len(group.members)
        if heard.replaces is not None:
            target = group.targets.get(heard.replaces)
            group.remove(heard.replaces)
            if target is not None:
                group.set_target(member.member_id, target)
            before = None
        group.put(member)
        self._members += len(group.members) - members_before
        if heard.grows_epoch:
            group.epoch += 1
        touched = self._touch(group.group_id, member.member_id)
        if heard.replaces not in (None, member.member_id):
            touched.member_ids.append(heard.replaces)
            self._changed.group(group.group_id, [heard.replaces])
        return HeartbeatAnswer(
            ErrorCode.NONE,
            member=member,
            before=before,
            grew_epoch=heard.grows_epoch,
            events=[touched],
        )

    # --- members of the classic protocol -------------------------------------------------------
    def adopt(self, group: ModernGroup) -> None:
        """Add a group converted from a classic group with members."""
        assert group.group_id not in self.groups, group.group_id
        self.groups[group.group_id] = group
        self._members += len(group.members)
        self._touch(group.group_id, *group.members)
        self._changed.group(group.group_id, patterns=group.patterns)

    def give_away(self, group_id: str) -> ModernGroup:
        """Remove a group that is converted to a classic one, and return it."""
        group = self.groups.pop(group_id)
        self._members -= len(group.members)
        self._touch(group_id, *group.members)
        self._changed.group(group_id, patterns=group.patterns)
        return group

    def joined(self, command: commands.JoinGroup, now_ms: int) -> HeartbeatAnswer:
        """Let a classic member of the group join, or move towards its target.

        Corresponds to a heartbeat of the newer protocol.
        """
        group = self.groups[command.group_id]
        found = self._find_classic(group, command)
        if found.error is not ErrorCode.NONE:
            return HeartbeatAnswer(found.error, found.message, found.member)
        before, member_id = found.member, command.member_id or command.new_member_id
        subscription = subscription_of(command)
        names = [protocol.name for protocol in command.protocols]
        if (
            command.protocol_type != CONSUMER_PROTOCOL
            or subscription is None
            or not supports(group, names)
        ):
            return HeartbeatAnswer(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        if before is None and len(group.members) >= command.members_max:
            return HeartbeatAnswer(ErrorCode.GROUP_MAX_SIZE_REACHED)
        if before is None and command.known_member_id_required and not command.member_id:
            return HeartbeatAnswer(ErrorCode.MEMBER_ID_REQUIRED, new_member_id=member_id)
        member = joining(before, member_id, command, subscription)
        more = member.bytes - (0 if before is None else before.bytes)
        refusal = self._refusal(group, more)
        if refusal is not ErrorCode.NONE:
            return HeartbeatAnswer(refusal)
        old_id = member_id if found.replaces is None else found.replaces
        if old_id in group.targets:
            member = reconciled(
                member,
                target=group.target(old_id),
                target_epoch=group.assignment_epoch,
                taken=group.owners,
                owned=owned_by(subscription, group.topics),
            )
        subscribes_anew = (
            before is None or before.topics != member.topics or before.pattern != member.pattern
        )
        heard = Heard(
            member=member,
            replaces=found.replaces,
            grows_epoch=subscribes_anew,
            is_change=member != before or found.replaces is not None or subscribes_anew,
        )
        return self._take(group, heard, now_ms)

    def _find_classic(self, group: ModernGroup, command: commands.JoinGroup) -> Heard:
        """Find the member that sent this request; None for a new one.

        An instance may return under another id, whichever protocol it used.
        """
        instance_id = command.group_instance_id
        if instance_id is None:
            return Heard(member=group.members.get(command.member_id))
        owner = group.static_members.get(instance_id)
        if command.member_id:
            if owner is None:
                return Heard(ErrorCode.UNKNOWN_MEMBER_ID)
            if owner != command.member_id:
                return Heard(ErrorCode.FENCED_INSTANCE_ID)
            return Heard(member=group.members[owner])
        if owner is None:
            return Heard()
        anew = msgspec.structs.replace(
            group.members[owner], epoch=JOINING_EPOCH, previous_epoch=JOINING_EPOCH
        )
        return Heard(member=anew, replaces=owner)

    def check_classic(
        self, group_id: str, member_id: str, instance_id: str | None, generation: int
    ) -> ErrorCode:
        """Check that this is a classic member in its current generation.

        REBALANCE_IN_PROGRESS means that it is, and must rejoin to release partitions, or to get
        ones that are free now.
        """
        group = self.groups[group_id]
        if instance_id is not None:
            owner = group.static_members.get(instance_id)
            if owner is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            if owner != member_id:
                return ErrorCode.FENCED_INSTANCE_ID
        member = group.members.get(member_id)
        if member is None or member.classic is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if generation != member.epoch:
            return ErrorCode.ILLEGAL_GENERATION
        if member.epoch < group.epoch or member.state is MemberState.UNREVOKED:
            return ErrorCode.REBALANCE_IN_PROGRESS
        if member.state is MemberState.UNRELEASED:
            wanted = set(places_of(group.target(member_id))) - set(places_of(member.assigned))
            if any(place not in group.owners for place in wanted):
                return ErrorCode.REBALANCE_IN_PROGRESS
        return ErrorCode.NONE

    def left(self, command: commands.LeaveGroup, now_ms: int) -> LeaveAnswer:
        """Remove classic members that leave or are removed.

        Other members are unknown to that protocol.
        """
        group = self.groups[command.group_id]
        answer = LeaveAnswer([])
        gone: list[str] = []
        for leaving in command.members:
            member_id = leaving.member_id
            if leaving.group_instance_id is not None:
                owner = group.static_members.get(leaving.group_instance_id)
                if owner is None:
                    answer.errors.append(ErrorCode.UNKNOWN_MEMBER_ID)
                    continue
                if member_id and owner != member_id:
                    answer.errors.append(ErrorCode.FENCED_INSTANCE_ID)
                    continue
                member_id = owner
            member = group.members.get(member_id)
            if member is None or member.classic is None or member_id in gone:
                answer.errors.append(ErrorCode.UNKNOWN_MEMBER_ID)
            else:
                answer.errors.append(ErrorCode.NONE)
                gone.append(member_id)
        if gone:
            self._remove(group, gone, now_ms)
            answer.events.append(self._touch(group.group_id, *gone))
        return answer

    def is_classic_again(self, group_id: str) -> bool:
        """Return True if the group has members and all of them use the classic protocol."""
        group = self.groups.get(group_id)
        return (
            group is not None
            and bool(group.members)
            and all(member.classic is not None for member in group.members.values())
        )

    # --- leaving and expiry --------------------------------------------------------------------
    def leave(self, command: commands.LeaveConsumerGroup, now_ms: int) -> HeartbeatAnswer:
        """Remove a member at once.

        A static member that will return keeps its partitions for one session timeout.
        """
        group = self.groups.get(command.group_id)
        if group is None:
            return HeartbeatAnswer(
                ErrorCode.GROUP_ID_NOT_FOUND, f"Group {command.group_id} not found."
            )
        member_id = command.member_id
        if command.instance_id is not None:
            owner = group.static_members.get(command.instance_id)
            if owner is None:
                return HeartbeatAnswer(
                    ErrorCode.UNKNOWN_MEMBER_ID, f"Instance id {command.instance_id} is unknown."
                )
            if owner != member_id:
                fenced = _fenced_instance(member_id, command.instance_id, owner)
                return HeartbeatAnswer(fenced.error, fenced.message)
        member = group.members.get(member_id)
        if member is None:
            unknown = _unknown(command.group_id, member_id)
            return HeartbeatAnswer(unknown.error, unknown.message)
        if command.is_static:
            group.put(
                msgspec.structs.replace(
                    member,
                    epoch=STATIC_LEAVING_EPOCH,
                    state=MemberState.STABLE,
                    revoking=NO_PARTITIONS,
                )
            )
        else:
            self._remove(group, [member_id], now_ms)
        return HeartbeatAnswer(
            ErrorCode.NONE,
            before=member,
            grew_epoch=not command.is_static,
            events=[self._touch(group.group_id, member_id)],
        )

    def expire(self, command: commands.ExpireConsumers, now_ms: int) -> ConsumersExpired:
        """Remove members whose timers at the coordinator's leader expired."""
        group = self.groups.get(command.group_id)
        over = []
        for member_id, epoch in command.members:
            member = None if group is None else group.members.get(member_id)
            if member is None:
                continue
            if epoch < 0 or (member.epoch == epoch and member.state is MemberState.UNREVOKED):
                over.append(member_id)
        if group is None or not over:
            return ConsumersExpired()
        self._remove(group, over, now_ms)
        return ConsumersExpired([self._touch(group.group_id, *over)])

    def _remove(self, group: ModernGroup, member_ids: list[str], now_ms: int) -> None:
        for member_id in member_ids:
            group.remove(member_id)
            self._members -= 1
        group.epoch += 1
        if not group.members:
            group.changed_ms = now_ms
            self._changed.group(group.group_id, patterns=group.patterns)
            group.set_topics([], [])

    # --- targets -------------------------------------------------------------------------------
    def assign(self, command: commands.AssignTargets, now_ms: int) -> TargetsAssigned:
        """Set targets, if the group is still in the epoch they were computed for.

        Since then no member has joined, left or changed its subscription.
        """
        group = self.groups.get(command.group_id)
        if group is None or not group.members or group.epoch != command.group_epoch:
            return TargetsAssigned(is_current=False)
        targets = command.targets
        if any(member_id not in group.members for member_id, _ in targets):
            # An instance returned under another id meanwhile, which does not change the epoch.
            return TargetsAssigned(is_current=False)
        if not self._fit(group, command):
            return TargetsAssigned(is_current=True, has_room=False)
        patterns = [*group.patterns, *(one.pattern for one in command.patterns)]
        group.set_topics(command.topics, command.patterns)
        for member_id, target in targets:
            group.set_target(member_id, target)
        without = [member_id for member_id in group.members if member_id not in group.targets]
        for member_id in without:
            group.set_target(member_id, NO_PARTITIONS)
        changed = [*(member_id for member_id, _ in targets), *without]
        self._changed.group(group.group_id, changed, patterns)
        group.epoch = group.assignment_epoch = command.next_epoch
        return TargetsAssigned(is_current=True, events=[self._touch(group.group_id)])

    def fit(self, command: commands.AssignTargets) -> bool:
        """Return False if there is no room for these targets. Use: before they are proposed."""
        group = self.groups.get(command.group_id)
        is_current = group is not None and group.epoch == command.group_epoch
        return not is_current or self._fit(self.groups[command.group_id], command)

    def _fit(self, group: ModernGroup, command: commands.AssignTargets) -> bool:
        more = subscription_bytes(command.topics, command.patterns)
        for member_id, target in command.targets:
            before = group.targets.get(member_id)
            more += target_bytes(target) - (0 if before is None else target_bytes(before))
        return self._refusal(group, more) is ErrorCode.NONE

    # --- queries -------------------------------------------------------------------------------
    def check_commit(
        self, group_id: str, epoch: int, member_id: str, *, knows_epochs: bool
    ) -> ErrorCode:
        """Return NONE if offsets may be committed.

        A member may commit in its current epoch; any client, while the group has no members.
        `knows_epochs`: the request's version carries member epochs.
        """
        group = self.groups[group_id]
        if epoch < 0 and not group.members:
            return ErrorCode.NONE
        member = group.members.get(member_id)
        if member is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if member.classic is None and not knows_epochs:
            return ErrorCode.UNSUPPORTED_VERSION
        return _check_exact_epoch(member, epoch)

    def check_fetch(self, group_id: str, epoch: int, member_id: str | None) -> ErrorCode:
        """Return NONE if committed offsets may be read.

        A client that does not claim membership may always read them.
        """
        if member_id is None and epoch < 0:
            return ErrorCode.NONE
        member = self.groups[group_id].members.get(member_id or "")
        if member is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        return _check_exact_epoch(member, epoch)

    # --- storing -------------------------------------------------------------------------------
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
        groups = [group_from(decode_value(value, StoredModernGroup)) for value in values]
        self.groups = {group.group_id: group for group in groups}
        self._members = sum(len(group.members) for group in groups)
        self._dirty = set()
        self._held.load(self.groups)


def _updated(member: ModernMember | None, command: commands.ConsumerHeartbeat) -> ModernMember:
    """Return the member updated by its heartbeat; omitted fields stay unchanged."""
    topics = None if command.topics is None else tuple(sorted(set(command.topics)))
    if member is None:
        return ModernMember(
            member_id=command.member_id,
            instance_id=command.instance_id,
            rack_id=command.rack_id,
            client_id=command.client_id,
            client_host=command.client_host,
            rebalance_timeout_ms=command.rebalance_timeout_ms,
            topics=topics or (),
            pattern=command.pattern or None,
            assignor=command.assignor,
        )
    pattern = member.pattern if command.pattern is None else command.pattern or None
    timeout_ms = command.rebalance_timeout_ms
    return msgspec.structs.replace(
        member,
        member_id=command.member_id,
        instance_id=command.instance_id or member.instance_id,
        rack_id=command.rack_id or member.rack_id,
        client_id=command.client_id,
        client_host=command.client_host,
        rebalance_timeout_ms=member.rebalance_timeout_ms if timeout_ms < 0 else timeout_ms,
        topics=member.topics if topics is None else topics,
        pattern=pattern,
        assignor=command.assignor or member.assignor,
        classic=None,
    )


def _replacing(member: ModernMember, member_id: str, instance_id: str) -> Heard:
    """Let an instance return, perhaps under another member id.

    This requires that it left as a static member, or that it used the classic protocol; otherwise
    two members would run under one instance id.
    """
    if member.classic is None and member.epoch != STATIC_LEAVING_EPOCH:
        return Heard(
            ErrorCode.UNRELEASED_INSTANCE_ID,
            f"Static member {member_id} with instance id {instance_id} cannot join the group "
            f"because the instance id is owned by {member.member_id} member.",
        )
    anew = msgspec.structs.replace(member, epoch=JOINING_EPOCH, previous_epoch=JOINING_EPOCH)
    return Heard(member=anew, replaces=member.member_id)


def _check_epoch(member: ModernMember, command: commands.ConsumerHeartbeat) -> Heard:
    """Check a heartbeat's member epoch.

    A member may send its previous epoch if it owns only partitions that are assigned to it: the
    answer with the current epoch may have been lost.
    """
    epoch = command.member_epoch
    if epoch == member.epoch:
        return Heard(member=member)
    if epoch > member.epoch:
        which = "greater"
    elif epoch == member.previous_epoch and _is_part(command.owned, member.assigned):
        return Heard(member=member)
    else:
        which = "smaller"
    return Heard(
        ErrorCode.FENCED_MEMBER_EPOCH,
        f"The consumer group member has a {which} member epoch ({epoch}) than the one known by "
        f"the group coordinator ({member.epoch}). The member must abandon all its partitions and "
        "rejoin.",
    )


def _is_part(owned: Partitions | None, assigned: Partitions) -> bool:
    return owned is not None and set(places_of(owned)) <= set(places_of(assigned))


def _shown(member: ModernMember, command: commands.ConsumerHeartbeat) -> Partitions | None:
    """Return the partitions that the member reports in its current epoch, else None.

    A report from an earlier epoch proves nothing: the request may have been delayed.
    """
    return command.owned if command.member_epoch == member.epoch else None


def _check_exact_epoch(member: ModernMember, epoch: int) -> ErrorCode:
    if epoch == member.epoch:
        return ErrorCode.NONE
    if member.classic is not None:
        return ErrorCode.ILLEGAL_GENERATION
    return ErrorCode.STALE_MEMBER_EPOCH


def _unknown(group_id: str, member_id: str) -> Heard:
    return Heard(
        ErrorCode.UNKNOWN_MEMBER_ID, f"Member {member_id} is not a member of group {group_id}."
    )


def _fenced_instance(member_id: str, instance_id: str, owner: str) -> Heard:
    return Heard(
        ErrorCode.FENCED_INSTANCE_ID,
        f"Static member {member_id} with instance id {instance_id} was fenced by member {owner}.",
    )
