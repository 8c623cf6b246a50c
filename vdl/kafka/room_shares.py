"""Room of one coordinator, shared out between the principals whose groups and transactional ids it
has.

Groups and positions (committed offsets) together are bounded (`COORDINATOR_BYTES_MAX`); once
positions have a bound of their own, each of the two is. Transactional ids are bounded, too. Each is
a `Room` here. Principals are not
part of the replicated state. So a coordinator's leader keeps how much each holds, and refuses
before it proposes: a group counts for the principal that first sent a request for it to this
leader. A group without such a request counts for no principal, but its bytes are not free. No
principal may hold more than three times what it leaves free (`kafka/shares.py`): most of an
otherwise empty room, and never all of it. Participants of a transaction may take more: a principal
with many transactional ids can still use them.

A command counts from before it is proposed until it is decided; then the group is counted again.

Does not depend on requests, nor on the error code of a refusal.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from vdl.clock import MS, Clock
from vdl.kafka.shares import Shares
from vdl.state import commands
from vdl.state.coordinator import (
    COORDINATOR_BYTES_MAX,
    TRANSACTIONS_BYTES_MAX,
    Coordinator,
    PositionsBound,
)
from vdl.state.offsets import OFFSET_BYTES
from vdl.state.table import text_bytes
from vdl.state.transactions import ID_BYTES, PARTICIPANT_BYTES

TIMES_OF_FREE = 3
TIMES_OF_FREE_IN_USE = 15
"""The same for participants that are added to a transactional id. They are freed when the
transaction ends."""
RECOUNT_NS = 1_000 * MS
"""Least time between two recounts of all groups. A recount comes before a refusal, because groups
also shrink without a request."""
IDLE_LOOKED_MS = 60_000
"""Time between two looks at which transactional ids may be forgotten: some milliseconds. Each
recount looks, too."""
_FORGOTTEN_FROM = 1_000
_NOBODY = ""


@dataclass(frozen=True, slots=True)
class Room:
    """A bounded amount of room, in bytes."""

    bytes_max: int
    held: Callable[[], int]
    held_by: Callable[[str], int]
    """Bytes held by a group."""
    look_again: Callable[[], None] = lambda: None
    """Called before a refusal: `held` may depend on an older look."""


def shared_room(machine: Coordinator) -> Room:
    """Return the room of everything that has no bound of its own."""

    def held_by(group_id: str) -> int:
        held = machine.bytes_of(group_id)
        if machine.positions_bound is not None:
            held -= machine.offsets.bytes_of(group_id)
        return held

    return Room(COORDINATOR_BYTES_MAX, lambda: machine.shared_bytes, held_by)


def room_of_positions(machine: Coordinator, bound: PositionsBound) -> Room:
    """Return the room of positions that have a bound of their own. It is no more than the least
    bytes that the largest number of positions takes: otherwise one principal could have all of
    them."""
    bytes_max = min(bound.bytes_max, OFFSET_BYTES * bound.count_max)
    return Room(bytes_max, lambda: machine.offsets.bytes, machine.offsets.bytes_of)


def room_of_transactions(machine: Coordinator, now_ms: Callable[[], int]) -> Room:
    """Return the room of transactional ids, which count as groups do.

    An id that may be forgotten to make room for another is free. What groups have of the room is
    not.
    """
    transactions = machine.transactions
    looked_ms, free = -IDLE_LOOKED_MS, 0

    def held_by(transactional_id: str) -> int:
        known = transactions.ids.get(transactional_id)
        return 0 if known is None or known.may_be_forgotten(now_ms()) else known.bytes

    def look() -> None:
        nonlocal looked_ms, free
        looked_ms = now_ms()
        known = transactions.ids.values()
        free = sum(one.bytes for one in known if one.may_be_forgotten(looked_ms))

    def held() -> int:
        if now_ms() - looked_ms >= IDLE_LOOKED_MS:
            look()
        left = transactions.bytes_max - max(0, transactions.bytes - free)
        return TRANSACTIONS_BYTES_MAX - left

    return Room(TRANSACTIONS_BYTES_MAX, held, held_by, look)


class GroupShares:
    """Shares of one room: see the module."""

    __slots__ = (
        "_clock", "_counted", "_held", "_machine", "_owners", "_recounted_ns", "_room", "_shares",
    )  # fmt: skip

    def __init__(self, machine: Coordinator, room: Room, clock: Clock) -> None:
        self._machine = machine
        self._room = room
        self._clock = clock
        self._shares = Shares(room.bytes_max, TIMES_OF_FREE)
        self._owners: dict[str, str] = {}
        """Group id → principal it counts for."""
        self._counted: dict[str, int] = {}
        """Bytes of each such group when it was last counted."""
        self._held = 0
        """Invariant: the sum of `_counted`."""
        self._recounted_ns = -RECOUNT_NS

    def begin(self, asker: str, group_id: str, more: int, times: int = TIMES_OF_FREE) -> str | None:
        """Count a command of `asker` that takes `more` bytes. Return the principal that it counts
        for, to be passed to `end`; None if that principal would hold more than `times` what it
        leaves free."""
        if len(self._owners) > _FORGOTTEN_FROM + 2 * self._machine.item_count:
            self._recount()
        owner = self._owners.setdefault(group_id, asker)
        self._count(group_id)
        if not self._may_take(owner, more, times):
            now_ns = self._clock.now_ns()
            if now_ns - self._recounted_ns < RECOUNT_NS:
                return None
            self._recounted_ns = now_ns
            self._room.look_again()
            self._recount()
            owner = self._owners.setdefault(group_id, asker)
            if not self._may_take(owner, more, times):
                return None
        self._shares.change(owner, more)
        return owner

    def end(self, owner: str, group_id: str, more: int) -> None:
        """End a command that is decided, or never will be here."""
        self._shares.change(owner, -more)
        if group_id in self._owners:
            self._count(group_id)

    def _may_take(self, owner: str, more: int, times: int) -> bool:
        others = max(0, self._room.held() - self._held)
        self._shares.change(_NOBODY, others - self._shares.held(_NOBODY))
        return self._shares.may_take(owner, more, times)

    def _recount(self) -> None:
        """Count all groups again, and forget those that are gone, except groups whose positions
        depend on a pending transaction."""
        for group_id in list(self._owners):
            self._count(group_id)
            if not self._counted[group_id] and not self._machine.pending.holds(group_id):
                del self._owners[group_id], self._counted[group_id]

    def _count(self, group_id: str) -> None:
        now, before = self._room.held_by(group_id), self._counted.get(group_id, 0)
        self._counted[group_id] = now
        self._held += now - before
        self._shares.change(self._owners[group_id], now - before)


def transactions_growth(machine: Coordinator, command: Any) -> int:
    """Return the bytes by which a client's command increases the transactional ids, at most."""
    name = command.transactional_id
    known = machine.transactions.ids.get(name)
    match command:
        case commands.InitTransactions() if known is None:
            return ID_BYTES + text_bytes(name)
        case commands.AddToTransaction() if known is not None and not command.verify_only:
            added = set(command.participants).difference(known.participants)
            return PARTICIPANT_BYTES * len(added)
    return 0


def positions_growth(machine: Coordinator, command: Any) -> int:
    """Return the bytes by which a client's command increases the positions, at most, if these have
    a bound of their own; 0 or less: none. A transaction's positions count once it ends."""
    if machine.positions_bound is None:
        return 0
    if not isinstance(command, commands.CommitOffsets | commands.CommitTransactionOffsets):
        return 0
    return machine.offsets.growth(command.group_id, command.offsets)


def growth(machine: Coordinator, command: Any) -> int:
    """Return the approximate bytes by which a client's command increases the coordinator, without
    those of `positions_growth`; 0 or less: none."""
    match command:
        case commands.CommitOffsets():
            more = machine.commit_growth(command)
            return more - positions_growth(machine, command)
        case commands.CommitTransactionOffsets():
            return sum(
                text_bytes(command.group_id) + text_bytes(one.topic) + text_bytes(one.metadata)
                for one in command.offsets
            )
        case commands.JoinGroup():
            if machine.has_consumers(command.group_id):
                members = machine.consumer.groups[command.group_id].members
                return 0 if command.member_id in members else machine.groups.growth(command)
            return machine.groups.growth(command)
        case commands.SyncGroup():
            group = machine.group(command.group_id)
            before = 0 if group is None else sum(len(m.assignment) for m in group.members.values())
            return sum(len(assignment) for _, assignment in command.assignments) - before
        case commands.ConsumerHeartbeat():
            return machine.heard(command).more_bytes
        case commands.JoinShareGroup():
            known = machine.share.groups.groups.get(command.group_id)
            member = None if known is None else known.members.get(command.member_id)
            said = sum(map(text_bytes, (*command.topic_names, command.client_id, command.rack_id)))
            return said - (0 if member is None else sum(map(text_bytes, member.topic_names)))
        case _:
            return 0
