"""Events of the rebalances of one coordinator's groups: why each began, and who came last.

Only the coordinator's leader has them, in memory (`Log.note`): they explain what happens, and
decide nothing. The reason of a rebalance is in the answer of the command that began it.

Does not depend on requests or timers.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Any

from vdl.clock import Clock
from vdl.errors import ErrorCode
from vdl.log import Log
from vdl.state.consumer_group import ConsumerGroup, GroupState
from vdl.state.consumer_groups import (
    GroupChanged,
    GroupDeleted,
    JoinAnswer,
    JoinCompleted,
    LeaveAnswer,
    MemberRemoved,
    RebalanceStarted,
    SyncCompleted,
)
from vdl.state.coordinator import Coordinator
from vdl.state.modern.group import ModernGroup, ModernState
from vdl.state.modern.member import JOINING_EPOCH

MEMBERS_MAX = 500
"""Members of a group of the newer protocol up to which the end of a rebalance is noted: all of them
are looked at with each change until then."""
_UUID_CHARS = 37
"""Characters of a dash and the random part of a member id that a coordinator drew."""


@dataclass(slots=True)
class _Open:
    """A rebalance that has not ended."""

    began_ns: int
    last: str = ""
    """Member that joined last."""
    epoch: int = 0
    """Epoch of a group of the newer protocol."""


class RebalanceNotes:
    """Rebalances of one led coordinator: see the module."""

    __slots__ = ("_clock", "_log", "_machine", "_open")

    def __init__(self, machine: Coordinator, clock: Clock, log: Log | None) -> None:
        self._machine = machine
        self._clock = clock
        self._log = log
        self._open: dict[str, _Open] = {}
        """Groups that rebalance. Invariant: each has members."""

    def note(self, event: str, group_id: str, **fields: str | float | None) -> None:
        """Keep an event of a group in memory."""
        if self._log is not None:
            self._log.note(event, group=group_id, **fields)

    # --- classic groups ------------------------------------------------------------------------
    def applied(self, result: Any, synced: Callable[[str], Collection[str]]) -> None:
        """Note what the events of an applied command mean. `synced`: the members of a group that
        had their assignment before the command."""
        for event in result.events:
            if type(event) is RebalanceStarted:
                self._began(event.group_id, result, synced)
            elif type(event) is SyncCompleted:
                self._ended(event.group_id)
            elif type(event) is JoinCompleted:
                group = self._machine.group(event.group_id)
                if group is None or group.state is GroupState.EMPTY:
                    self._open.pop(event.group_id, None)
            elif type(event) is MemberRemoved and event.error is ErrorCode.FENCED_INSTANCE_ID:
                self.note("member_fenced", event.group_id, instance=client_of(event.member_id))
            elif type(event) is GroupDeleted:
                self._open.pop(event.group_id, None)

    def joined(self, group_id: str, member_id: str) -> None:
        """Note that a member joined the next generation."""
        one = self._open.get(group_id)
        if one is not None:
            one.last = member_id

    def _began(self, group_id: str, result: Any, synced: Callable[[str], Collection[str]]) -> None:
        group = self._machine.group(group_id)
        if group is None:
            return
        if group_id not in self._open:
            self._open[group_id] = _Open(self._clock.now_ns())
        cause, member = _cause_of(result, synced(group_id))
        if not cause:
            return
        self.note(
            "rebalance_began",
            group_id,
            cause=cause,
            member=_told(group, member),
            generation=group.generation,
            members=len(group.members),
        )

    def _ended(self, group_id: str) -> None:
        one, group = self._open.pop(group_id, None), self._machine.group(group_id)
        if one is None or group is None:
            return
        self.note(
            "rebalance_ended",
            group_id,
            generation=group.generation,
            members=len(group.members),
            seconds=(self._clock.now_ns() - one.began_ns) / 1e9,
            last=_told(group, one.last),
        )

    # --- groups of the newer protocol ------------------------------------------------------------
    def moved(self, group: ModernGroup, member_ids: Iterable[str]) -> None:
        """Note a change of a group, made by these members."""
        group_id = group.group_id
        one = self._open.get(group_id)
        if not group.members:
            self._open.pop(group_id, None)
            return
        if group.epoch > group.assignment_epoch and (one is None or one.epoch != group.epoch):
            began_ns = self._clock.now_ns() if one is None else one.began_ns
            one = self._open[group_id] = _Open(began_ns, epoch=group.epoch)
            cause, member = "topics_changed", ""
            for member_id in member_ids:
                known = group.members.get(member_id)
                if known is None:
                    cause, member = "member_left", member_id
                else:
                    is_new = known.epoch == JOINING_EPOCH
                    cause = "member_joined" if is_new else "subscription_changed"
                    member = member_text(known.client_id, known.client_host)
                    one.last = member
            self.note(
                "rebalance_began",
                group_id,
                cause=cause,
                member=member,
                generation=group.epoch,
                members=len(group.members),
            )
            if len(group.members) > MEMBERS_MAX:
                del self._open[group_id]
        elif one is not None and group.state is ModernState.STABLE:
            del self._open[group_id]
            self.note(
                "rebalance_ended",
                group_id,
                generation=group.epoch,
                members=len(group.members),
                seconds=(self._clock.now_ns() - one.began_ns) / 1e9,
                last=one.last,
            )

    def forget(self, group_id: str) -> None:
        """Forget a group without members."""
        self._open.pop(group_id, None)


def _cause_of(result: Any, synced: Collection[str]) -> tuple[str, str]:
    """Return why a rebalance began, and the member that caused it."""
    removed = [event.member_id for event in result.events if type(event) is MemberRemoved]
    first = removed[0] if removed else ""
    if isinstance(result, JoinAnswer):
        if removed:
            return "static_member_replaced", result.member_id
        is_known = result.member_id in synced
        return "member_rejoined" if is_known else "member_joined", result.member_id
    if isinstance(result, LeaveAnswer):
        return "member_left", first
    if isinstance(result, GroupChanged):
        # Without one, the time to join begins again for a group of static members.
        return ("member_timed_out", first) if first else ("", "")
    return "protocol_changed", first


def _told(group: ConsumerGroup, member_id: str) -> str:
    member = group.members.get(member_id)
    if member is None:
        return client_of(member_id)
    return member_text(member.client_id, member.client_host)


def member_text(client_id: str, client_host: str) -> str:
    """Return a member for people: a member id is as long and says less."""
    return f"{client_id} at {client_host.removeprefix('/')}"


def client_of(member_id: str) -> str:
    """Return the name in a member id that a coordinator drew, which is of a client or an instance
    of it; other ids unchanged."""
    name, random = member_id[:-_UUID_CHARS], member_id[-_UUID_CHARS:]
    return name if name and random.startswith("-") else member_id
