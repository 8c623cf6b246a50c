"""Share-partitions: each share group's progress in each partition, and its single writer (KIP-932).

A share-partition has a start offset, below which all records are finished, and runs of records from
there on that were delivered at least once, with their state and delivery count. Records beyond were
never delivered. The leader of the partition keeps the same in memory, with locks and members, and
writes its changes here.

Rules:

* There is only one writer: the leader that claimed the share-partition last. A claim carries the
  leader's epoch and a number of its own; writes of earlier claims are refused. A claim ends all
  locks: acquired records become available again and keep their delivery counts.
* Writes of one claim are numbered. A repeated write changes nothing. After a missing write all
  later ones are refused, until the leader claims again.
* A finished record is never available again. The start offset never moves back, unless an
  administrator sets it while the group has no members.
* A new state has a new epoch, so that no leader writes to a later state.

Does not depend on locks, on members, or on which records exist.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum

import msgspec

from ids import GroupId
from vdl.errors import ErrorCode
from vdl.state.commands import ClaimSharePartition, ShareWrite
from vdl.state.runs import Runs
from vdl.state.table import ALL, decode_value, digest_key, encode_value, taken, text_bytes

KEY_PREFIX = b"q"
UNSET_OFFSET = -1
"""Start offset of a state that no leader has set yet: `share.auto.offset.reset` decides."""

STATE_BYTES = 96
"""Estimated size of a share-partition in a snapshot without its group's name, and of each run."""
RUN_BYTES = 14
RUNS_MAX = 40_000
"""Maximum number of runs of a share-partition: more than the largest lock limit can create."""


class RecordState(IntEnum):
    """State of a record of a share-partition."""

    AVAILABLE = 0
    """May be delivered again."""
    ACQUIRED = 1
    """Delivered to a member."""
    DONE = 2
    """Finished: acknowledged, rejected, archived after too many deliveries, or not a record.

    It is never delivered again. Its delivery count is irrelevant and is 0.
    """


Delivered = tuple[int, int]
"""(state, delivery count)."""
DONE: Delivered = (RecordState.DONE, 0)
_STATES = frozenset(RecordState)

ShareKey = tuple[str, bytes, int]
"""(group id, topic id, partition)."""


class StoredShareState(msgspec.Struct, frozen=True, array_like=True):
    """A share-partition as stored."""

    group_id: str
    topic_id: bytes
    partition: int
    partition_group: GroupId
    state_epoch: int
    leader_epoch: int
    claim: int
    number: int
    start_offset: int
    runs: list[tuple[int, int, int, int]]


class ClaimedShareState(msgspec.Struct, frozen=True, array_like=True):
    """Answer to a successful claim."""

    state_epoch: int
    start_offset: int
    runs: list[tuple[int, int, int, int]]
    """(first, last, state, delivery count)."""


class WrittenShareStates(msgspec.Struct, frozen=True, array_like=True):
    """Answer to writes: one error code for each."""

    errors: list[int]


class ShareState:
    """State of one share-partition."""

    __slots__ = (
        "claim", "key", "leader_epoch", "number", "partition_group", "runs", "start_offset",
        "state_epoch",
    )  # fmt: skip

    def __init__(
        self, key: ShareKey, partition_group: GroupId, state_epoch: int, offset: int
    ) -> None:
        self.key = key
        self.partition_group = partition_group
        self.state_epoch = state_epoch
        self.start_offset = offset
        """Invariant: never moves back while `state_epoch` stays the same."""
        self.runs: Runs[Delivered] = Runs()
        """From `start_offset` on. Invariant: DONE records stay DONE."""
        self.leader_epoch = -1
        self.claim = 0
        self.number = 0
        """Number of the newest write of this claim."""

    @property
    def bytes(self) -> int:
        """Estimated size in a snapshot."""
        return STATE_BYTES + text_bytes(self.key[0]) + RUN_BYTES * len(self.runs)

    @property
    def done_count(self) -> int:
        """Number of finished records at or above the start offset."""
        return sum(last - first + 1 for first, last, value in self.runs if value == DONE)

    def stored(self) -> StoredShareState:
        return StoredShareState(
            *self.key,
            self.partition_group,
            self.state_epoch,
            self.leader_epoch,
            self.claim,
            self.number,
            self.start_offset,
            self.listed(),
        )

    def listed(self) -> list[tuple[int, int, int, int]]:
        """Return the runs as they are stored and sent."""
        return [(first, last, *value) for first, last, value in self.runs]

    # --- the leader of the partition ---------------------------------------------------------
    def take(self, leader_epoch: int, claim: int) -> ErrorCode:
        """Claim it for a leader. The same claim may be repeated."""
        before, now = (self.leader_epoch, self.claim), (leader_epoch, claim)
        if now < before:
            return ErrorCode.FENCED_LEADER_EPOCH
        if now > before:
            self.leader_epoch, self.claim, self.number = leader_epoch, claim, 0
            for first, last, (state, count) in list(self.runs):
                if state == RecordState.ACQUIRED:
                    self.runs.put(first, last, (RecordState.AVAILABLE, count))
        return ErrorCode.NONE

    def check(self, write: ShareWrite) -> ErrorCode:
        """Return what is wrong with a write, NONE if nothing is."""
        if write.state_epoch != self.state_epoch:
            return ErrorCode.FENCED_STATE_EPOCH
        if (write.leader_epoch, write.claim) != (self.leader_epoch, self.claim):
            return ErrorCode.FENCED_LEADER_EPOCH
        if write.number <= self.number:
            return ErrorCode.NONE
        if write.number != self.number + 1:
            return ErrorCode.FENCED_LEADER_EPOCH
        if write.start_offset < max(0, self.start_offset):
            return ErrorCode.INVALID_REQUEST
        for first, last, state, count in write.changes:
            if not 0 <= first <= last or state not in _STATES or not 0 <= count < 1 << 15:
                return ErrorCode.INVALID_REQUEST
            for _, _, (old_state, old_count) in self.runs.within(first, last):
                is_done = old_state == RecordState.DONE
                if state != RecordState.DONE and (is_done or count < old_count):
                    return ErrorCode.INVALID_RECORD_STATE
        return ErrorCode.NONE

    def write(self, write: ShareWrite) -> None:
        """Apply a write that `check` accepted."""
        if write.number <= self.number:
            return
        self.number = write.number
        for first, last, state, count in write.changes:
            value = DONE if state == RecordState.DONE else (state, count)
            self.runs.put(first, last, value)
        self.start_offset = write.start_offset
        self.runs.cut_below(self.start_offset)


class ShareStates:
    """All share-partitions of one coordinator."""

    __slots__ = ("_by_group", "_dirty", "_sizes", "bytes")

    def __init__(self) -> None:
        self._by_group: dict[str, dict[tuple[bytes, int], ShareState]] = {}
        self._sizes: dict[ShareKey, int] = {}
        self._dirty: set[ShareKey] = set()
        self.bytes = 0
        """Estimated size of all of them in a snapshot."""

    def __len__(self) -> int:
        return len(self._sizes)

    def get(self, group_id: str, topic_id: bytes, partition: int) -> ShareState | None:
        """Return one share-partition."""
        return self._by_group.get(group_id, {}).get((topic_id, partition))

    def of(self, group_id: str) -> dict[tuple[bytes, int], ShareState]:
        """Return a group's share-partitions by (topic id, partition).

        The caller must not change them.
        """
        return self._by_group.get(group_id, {})

    def partition_groups(self) -> Iterator[GroupId]:
        """Yield the group ids of all partitions, with repetitions."""
        for states in self._by_group.values():
            for state in states.values():
                yield state.partition_group

    def size_of(self, group_id: str) -> int:
        """Return the size that one more share-partition of a group takes."""
        return STATE_BYTES + text_bytes(group_id)

    def put(self, state: ShareState) -> None:
        """Store a new state in place of the previous one."""
        group_id, topic_id, partition = state.key
        self._by_group.setdefault(group_id, {})[topic_id, partition] = state
        self._changed(state)

    def claim(self, command: ClaimSharePartition) -> ClaimedShareState | ErrorCode:
        """Claim a share-partition for the leader of its partition."""
        state = self.get(command.group_id, command.topic_id, command.partition)
        if state is None:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        error = state.take(command.leader_epoch, command.claim)
        if error is not ErrorCode.NONE:
            return error
        self._changed(state)
        return ClaimedShareState(state.state_epoch, state.start_offset, state.listed())

    def write(self, write: ShareWrite, room: int) -> ErrorCode:
        """Apply a leader's write, if `room` bytes suffice for what it adds at most."""
        state = self.get(write.group_id, write.topic_id, write.partition)
        if state is None:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        error = state.check(write)
        if error is not ErrorCode.NONE:
            return error
        if any(change[2] == RecordState.ACQUIRED for change in write.changes):
            # Only deliveries can be deferred; all other changes soon free space.
            runs = len(write.changes) + len(state.runs)
            if RUN_BYTES * 2 * len(write.changes) > room or runs > RUNS_MAX:
                return ErrorCode.MESSAGE_TOO_LARGE
        state.write(write)
        self._changed(state)
        return ErrorCode.NONE

    def remove(self, keys: list[ShareKey]) -> None:
        """Remove existing share-partitions."""
        for key in keys:
            states = self._by_group[key[0]]
            del states[key[1:]]
            if not states:
                del self._by_group[key[0]]
            self.bytes -= self._sizes.pop(key)
            self._dirty.add(key)

    def remove_group(self, group_id: str) -> None:
        """Remove all share-partitions of a group."""
        self.remove([state.key for state in self.of(group_id).values()])

    def remove_partitions(self, partition_groups: set[GroupId]) -> int:
        """Remove share-partitions of deleted partitions; return their number."""
        gone = [
            state.key
            for states in self._by_group.values()
            for state in states.values()
            if state.partition_group in partition_groups
        ]
        self.remove(gone)
        return len(gone)

    def _changed(self, state: ShareState) -> None:
        now = state.bytes
        self.bytes += now - self._sizes.get(state.key, 0)
        self._sizes[state.key] = now
        self._dirty.add(state.key)

    # --- storing ---------------------------------------------------------------------------
    def take_dirty(self, limit: int = ALL) -> list[tuple[bytes, bytes | None]]:
        """Return up to `limit` (key, value) changes not taken yet; None for a removed key."""
        dirty: list[tuple[bytes, bytes | None]] = []
        for key in taken(self._dirty, limit):
            state = self.get(*key)
            value = None if state is None else encode_value(state.stored())
            dirty.append((digest_key(KEY_PREFIX, key[0], key[1].hex(), key[2]), value))
        dirty.sort()
        return dirty

    def items(self) -> list[tuple[bytes, bytes]]:
        """Return everything in key order."""
        return sorted(self.scan())

    def scan(self) -> Iterator[tuple[bytes, bytes]]:
        """See `Scan.items`."""
        for key in list(self._sizes):
            if (state := self.get(*key)) is not None:
                stored = encode_value(state.stored())
                yield digest_key(KEY_PREFIX, key[0], key[1].hex(), key[2]), stored

    def load(self, values: list[bytes]) -> None:
        """Replace everything. Raise msgspec.DecodeError for a value that was never stored."""
        self._by_group, self._sizes, self.bytes = {}, {}, 0
        for value in values:
            stored = decode_value(value, StoredShareState)
            key = (stored.group_id, stored.topic_id, stored.partition)
            state = ShareState(key, stored.partition_group, stored.state_epoch, stored.start_offset)
            state.leader_epoch, state.claim = stored.leader_epoch, stored.claim
            state.number = stored.number
            for first, last, kind, count in stored.runs:
                state.runs.put(first, last, (kind, count))
            self.put(state)
        self._dirty = set()
