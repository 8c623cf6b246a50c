"""Share-partitions: how far each share group is with each partition (KIP-932), and who may say so.

A share-partition has a start offset, below which everything is done with, and runs of records from
there on that were given out at least once: their state, and how often they were delivered. All
beyond was never given out. The leader of the partition keeps the same in memory, with locks and
members, and writes what changes.

Rules:

* Only one writer: the leader that claimed the share-partition last. A claim carries the leader's
  epoch and a number of its own; what an earlier claim wrote is refused. It ends all locks: records
  that were given out are available again, with the deliveries they had.
* Writes of one claim are numbered. One that comes again changes nothing, one that is missing makes
  those behind it refused, until the leader claims anew.
* A record that is done with is never available again, and its start offset never moves back, but
  where an administrator sets it, with no members there.
* A new state has a new epoch, so that no leader writes to the one after it.

Must not know: locks, members, which records exist.
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
"""The start offset of a state that no leader has claimed: `share.auto.offset.reset` decides."""

STATE_BYTES = 96
"""What a share-partition takes in a snapshot beside the group's name, and each run of it."""
RUN_BYTES = 14
RUNS_MAX = 40_000
"""Runs of one share-partition: more than what the largest limit of locks can make."""


class RecordState(IntEnum):
    """What became of a record of a share-partition."""

    AVAILABLE = 0
    """To be given out again."""
    ACQUIRED = 1
    """Given out to a member."""
    DONE = 2
    """Acknowledged, rejected, given up after too many deliveries, or no record at all: never to be
    given out again. Its deliveries do not matter any more and are 0."""


Delivered = tuple[int, int]
"""(state, delivery count)."""
DONE: Delivered = (RecordState.DONE, 0)
_STATES = frozenset(RecordState)

ShareKey = tuple[str, bytes, int]
"""(group id, topic id, partition)."""


class StoredShareState(msgspec.Struct, frozen=True, array_like=True):
    """A share-partition as it is stored."""

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
    """The answer to a claim, where there is no error."""

    state_epoch: int
    start_offset: int
    runs: list[tuple[int, int, int, int]]
    """(first, last, state, delivery count)."""


class WrittenShareStates(msgspec.Struct, frozen=True, array_like=True):
    """The answer to writes: an error code for each."""

    errors: list[int]


class ShareState:
    """One share-partition."""

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
        """Invariant: never moves back while `state_epoch` stays."""
        self.runs: Runs[Delivered] = Runs()
        """From `start_offset` on. Invariant: what is DONE stays so."""
        self.leader_epoch = -1
        self.claim = 0
        self.number = 0
        """Of the newest write of this claim."""

    @property
    def bytes(self) -> int:
        """What it takes in a snapshot, about."""
        return STATE_BYTES + text_bytes(self.key[0]) + RUN_BYTES * len(self.runs)

    @property
    def done_count(self) -> int:
        """Records at or above the start offset that are done with."""
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
        """The runs as they are stored and sent."""
        return [(first, last, *value) for first, last, value in self.runs]

    # --- the leader of the partition ---------------------------------------------------------
    def take(self, leader_epoch: int, claim: int) -> ErrorCode:
        """A leader claims it. The same claim may come again."""
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
        """What is wrong with a write."""
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
        """Take a write that `check` has nothing against."""
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
        """What all of them take in a snapshot, about."""

    def __len__(self) -> int:
        return len(self._sizes)

    def get(self, group_id: str, topic_id: bytes, partition: int) -> ShareState | None:
        """One share-partition."""
        return self._by_group.get(group_id, {}).get((topic_id, partition))

    def of(self, group_id: str) -> dict[tuple[bytes, int], ShareState]:
        """All of a group by (topic id, partition); not to be changed."""
        return self._by_group.get(group_id, {})

    def partition_groups(self) -> Iterator[GroupId]:
        """The group ids of all partitions, not each once."""
        for states in self._by_group.values():
            for state in states.values():
                yield state.partition_group

    def size_of(self, group_id: str) -> int:
        """What one more share-partition of a group takes."""
        return STATE_BYTES + text_bytes(group_id)

    def put(self, state: ShareState) -> None:
        """A new state, in place of the one before it."""
        group_id, topic_id, partition = state.key
        self._by_group.setdefault(group_id, {})[topic_id, partition] = state
        self._changed(state)

    def claim(self, command: ClaimSharePartition) -> ClaimedShareState | ErrorCode:
        """Give a share-partition to the leader of its partition."""
        state = self.get(command.group_id, command.topic_id, command.partition)
        if state is None:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        error = state.take(command.leader_epoch, command.claim)
        if error is not ErrorCode.NONE:
            return error
        self._changed(state)
        return ClaimedShareState(state.state_epoch, state.start_offset, state.listed())

    def write(self, write: ShareWrite, room: int) -> ErrorCode:
        """Take what a leader writes, if there are `room` bytes for what it adds at most."""
        state = self.get(write.group_id, write.topic_id, write.partition)
        if state is None:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        error = state.check(write)
        if error is not ErrorCode.NONE:
            return error
        if any(change[2] == RecordState.ACQUIRED for change in write.changes):
            # Only what gives records out can be put off; the rest soon makes room.
            runs = len(write.changes) + len(state.runs)
            if RUN_BYTES * 2 * len(write.changes) > room or runs > RUNS_MAX:
                return ErrorCode.MESSAGE_TOO_LARGE
        state.write(write)
        self._changed(state)
        return ErrorCode.NONE

    def remove(self, keys: list[ShareKey]) -> None:
        """Forget share-partitions that are there."""
        for key in keys:
            states = self._by_group[key[0]]
            del states[key[1:]]
            if not states:
                del self._by_group[key[0]]
            self.bytes -= self._sizes.pop(key)
            self._dirty.add(key)

    def remove_group(self, group_id: str) -> None:
        """Forget all of a group."""
        self.remove([state.key for state in self.of(group_id).values()])

    def remove_partitions(self, partition_groups: set[GroupId]) -> int:
        """Forget those of deleted partitions; how many."""
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
        """(key, value) of what changed and was not taken since, None where it went."""
        dirty: list[tuple[bytes, bytes | None]] = []
        for key in taken(self._dirty, limit):
            state = self.get(*key)
            value = None if state is None else encode_value(state.stored())
            dirty.append((digest_key(KEY_PREFIX, key[0], key[1].hex(), key[2]), value))
        dirty.sort()
        return dirty

    def items(self) -> list[tuple[bytes, bytes]]:
        """Everything, in key order."""
        return sorted(self.scan())

    def scan(self) -> Iterator[tuple[bytes, bytes]]:
        """See `Scan.items`."""
        for key in list(self._sizes):
            if (state := self.get(*key)) is not None:
                stored = encode_value(state.stored())
                yield digest_key(KEY_PREFIX, key[0], key[1].hex(), key[2]), stored

    def load(self, values: list[bytes]) -> None:
        """Replace everything. Raises msgspec.DecodeError for what was never stored."""
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
