"""`__consumer_offsets` as monitors read it: the commits of consumer groups, as a log.

Some tools (Burrow) know of groups only what they read there. It has a batch a group of what was
committed before, and then one an entry; no records of members.

Must not know: requests, who coordinates what.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from struct import Struct
from typing import Any

from ids import GroupId
from vdl.clock import Clock
from vdl.kafka.host import Compute
from vdl.kafka.views.coordinator_view import CoordinatorView
from vdl.logstream.group.state_group import StateGroup
from vdl.logstream.time.loop_gap import LoopGaps
from vdl.records.batch import Record
from vdl.state.catalog import Catalog, TopicInfo
from vdl.state.coordinator import CommitAnswer, Coordinator, TransactionOffsetsEnded
from vdl.state.offsets import NO_EXPIRY, CommittedOffset

OFFSETS_TOPIC = "__consumer_offsets"
OFFSETS_TOPIC_ID = bytes.fromhex("5f5f636f6e73756d65725f6f66667365")
"""Topic ids of others are drawn: none is this one."""

Position = tuple[str, int]
"""Topic and partition."""
Positioned = tuple[Position, CommittedOffset]

_NAME_BYTES_MAX = (1 << 15) - 1
"""Kafka's records have 16 bits for the length of a name."""
_INT16 = Struct(">h")
_INT32 = Struct(">i")
_KEY_VERSION = _INT16.pack(1)
_VALUE_HEAD = Struct(">hqi")
_OLD_VALUE_HEAD = Struct(">hq")
_TIME = Struct(">q")


def offsets_topic(catalog: Catalog) -> TopicInfo:
    """The topic as handlers see topics: its groups are the coordinators."""
    groups = [GroupId(n) for n in range(1, 1 + catalog.coordinator_groups)]
    return TopicInfo(OFFSETS_TOPIC, OFFSETS_TOPIC_ID, groups, {"cleanup.policy": "compact"})


def commit_log(
    state_group: StateGroup, group_id: GroupId, clock: Clock, gaps: LoopGaps, compute: Compute
) -> CoordinatorView[Position, Positioned]:
    """One coordinator's commits as a partition. `gaps`: the server's."""
    return CoordinatorView(Commits(state_group), state_group, group_id, clock, gaps, compute)


class Commits:
    """A `Content`: positions by group."""

    def __init__(self, state_group: StateGroup) -> None:
        self._state_group = state_group

    @property
    def _machine(self) -> Coordinator:
        machine = self._state_group.machine
        assert isinstance(machine, Coordinator), type(machine)
        return machine

    @property
    def count(self) -> int:
        return len(self._machine.offsets)

    @property
    def bytes(self) -> int:
        return self._machine.offsets.bytes

    def standing(self) -> Iterator[tuple[str, list[Position]]]:
        for group_id in self._machine.group_ids():
            if positions := self._machine.offsets.of(group_id):
                yield group_id, list(positions)

    def changed(self, result: Any) -> Iterable[tuple[str, list[Position]]]:
        committed = {}
        if isinstance(result, CommitAnswer):
            committed = {result.group_id: result.offsets}
        elif isinstance(result, TransactionOffsetsEnded):
            committed = result.committed
        for group_id, offsets in committed.items():
            if offsets:
                yield group_id, [(offset.topic, offset.partition) for offset in offsets]

    def take(self, scope: str, places: list[Position]) -> list[Positioned]:
        positions = self._machine.offsets.of(scope)
        return [(place, positions[place]) for place in places if place in positions]

    def newest_ms(self, scope: str, places: list[Position]) -> int:
        return max((position.committed_ms for _, position in self.take(scope, places)), default=-1)

    def size_of(self, scope: str, item: Positioned) -> int:
        place, position = item
        return 60 + len(scope) + len(place[0]) + len(position.metadata)

    def record(self, scope: str, item: Positioned) -> Record | None:
        """OffsetCommitKey v1, OffsetCommitValue v3, or v1 of a position that expires by itself."""
        place, position = item
        names = scope.encode(), place[0].encode(), position.metadata.encode()
        if max(map(len, names)) > _NAME_BYTES_MAX:
            return None
        group, topic, metadata = (_INT16.pack(len(name)) + name for name in names)
        key = _KEY_VERSION + group + topic + _INT32.pack(place[1])
        committed = _TIME.pack(position.committed_ms)
        if position.expires_ms == NO_EXPIRY:
            head = _VALUE_HEAD.pack(3, position.offset, position.leader_epoch)
            value = head + metadata + committed
        else:
            head = _OLD_VALUE_HEAD.pack(1, position.offset)
            value = head + metadata + committed + _TIME.pack(position.expires_ms)
        return Record(key, value, timestamp=position.committed_ms)
