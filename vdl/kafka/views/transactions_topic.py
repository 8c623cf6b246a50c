"""`__transaction_state` as Kafka's tools read it: the states of transactional ids, as a log.

A record is one state of one transactional id, in the format of Kafka's own coordinators
(TransactionLogKey v0, TransactionLogValue v1), or the tombstone of an expired id.

Does not depend on requests, nor on how coordinators are placed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from struct import Struct
from typing import Any

from ids import GroupId
from vdl.clock import Clock
from vdl.kafka.host import Compute
from vdl.kafka.views.coordinator_view import CoordinatorView
from vdl.kafka.views.offsets_topic import OFFSETS_TOPIC
from vdl.kafka.wire.runtime import write_string_length, write_uvarint
from vdl.logstream.group.state_group import StateGroup
from vdl.logstream.time.loop_gap import LoopGaps
from vdl.records.batch import NO_TIMESTAMP, Record
from vdl.state.catalog import Catalog, TopicInfo
from vdl.state.coordinator import Coordinator
from vdl.state.transactions import NO_PRODUCER_ID, TransactionalId, TransactionAnswer

TRANSACTIONS_TOPIC = "__transaction_state"
TRANSACTIONS_TOPIC_ID = bytes.fromhex("5f5f7472616e73616374696f6e5f7374")
"""Other topics' ids are random: none is this one."""

IDS_PER_BATCH = 500
"""Transactional ids in one batch, of those that existed when the view began."""

_NAME_BYTES_MAX = (1 << 15) - 1
"""Kafka's records have 16 bits for the length of a name."""
_KEY_HEAD = Struct(">hh")
_VALUE_HEAD = Struct(">hqhib")
_TIMES = Struct(">qq")
_INT16 = Struct(">h")
_INT32 = Struct(">i")
_INT64 = Struct(">q")
_NO_TAGS = b"\0"


def transactions_topic(catalog: Catalog) -> TopicInfo:
    """Return the topic as handlers see topics: its groups are the coordinators."""
    groups = [GroupId(n) for n in range(1, 1 + catalog.coordinator_groups)]
    return TopicInfo(
        TRANSACTIONS_TOPIC, TRANSACTIONS_TOPIC_ID, groups, {"cleanup.policy": "compact"}
    )


def topics_of(participants: Iterable[GroupId], catalog: Catalog) -> dict[str, list[int]]:
    """Return the partitions that take part in a transaction, by topic, in order. Coordinators are
    partitions of the offsets topic. Deleted ones are left out."""
    topics: dict[str, list[int]] = {}
    for participant in participants:
        if participant <= catalog.coordinator_groups:
            topics.setdefault(OFFSETS_TOPIC, []).append(participant - 1)
        elif (info := catalog.groups.get(participant)) is not None:
            topics.setdefault(info.topic, []).append(info.partition)
    return {topic: sorted(partitions) for topic, partitions in sorted(topics.items())}


@dataclass(frozen=True, slots=True)
class Seen:
    """Contents of a record: the state as it was when it was read, because it changes."""

    transactional_id: str
    changed_ms: int
    value: bytes | None
    """None: the id no longer exists."""


def transaction_log(
    state_group: StateGroup,
    group_id: GroupId,
    clock: Clock,
    gaps: LoopGaps,
    compute: Compute,
    catalog: Callable[[], Catalog],
) -> CoordinatorView[str, Seen]:
    """Return one coordinator's transactional ids as a partition. `gaps`: the server's."""
    content = TransactionStates(state_group, catalog)
    return CoordinatorView(content, state_group, group_id, clock, gaps, compute)


class TransactionStates:
    """A `Content`: transactional ids."""

    def __init__(self, state_group: StateGroup, catalog: Callable[[], Catalog]) -> None:
        self._state_group = state_group
        self._catalog = catalog

    @property
    def _ids(self) -> dict[str, TransactionalId]:
        machine = self._state_group.machine
        assert isinstance(machine, Coordinator), type(machine)
        return machine.transactions.ids

    @property
    def count(self) -> int:
        return len(self._ids)

    @property
    def bytes(self) -> int:
        return sum(known.bytes for known in self._ids.values())

    def standing(self) -> Iterator[list[str]]:
        names = list(self._ids)
        for start in range(0, len(names), IDS_PER_BATCH):
            yield names[start : start + IDS_PER_BATCH]

    def changed(self, result: Any) -> list[str]:
        return result.touched if isinstance(result, TransactionAnswer) else []

    def unwatched(self) -> None:
        """Do nothing: results report the changes."""

    def take(self, places: list[str]) -> list[Seen]:
        catalog = self._catalog()
        return [self._seen(name, catalog) for name in places]

    def _seen(self, name: str, catalog: Catalog) -> Seen:
        known = self._ids.get(name)
        if known is None:
            return Seen(name, NO_TIMESTAMP, None)
        topics = topics_of(known.participants, catalog)
        return Seen(name, known.changed_ms, state_value(known, topics))

    def newest_ms(self, places: list[str]) -> int:
        found = (self._ids[name].changed_ms for name in places if name in self._ids)
        return max(found, default=-1)

    def size_of(self, item: Seen) -> int:
        return 20 + len(item.transactional_id) + len(item.value or b"")

    def record(self, item: Seen) -> Record | None:
        name = item.transactional_id.encode()
        if len(name) > _NAME_BYTES_MAX:
            return None
        key = _KEY_HEAD.pack(0, len(name)) + name
        return Record(key, item.value, timestamp=item.changed_ms)


def state_value(known: TransactionalId, topics: dict[str, list[int]]) -> bytes:
    """Return a TransactionLogValue v1. Before its first transaction an id has null partitions."""
    parts = [
        _VALUE_HEAD.pack(1, known.producer_id, known.epoch, known.timeout_ms, known.state),
        write_uvarint(len(topics) + 1 if known.state else 0),
    ]
    for topic, partitions in topics.items():
        name = topic.encode()
        parts += [write_string_length(len(name) + 1), name, write_uvarint(len(partitions) + 1)]
        parts += [_INT32.pack(partition) for partition in partitions]
        parts.append(_NO_TAGS)
    parts.append(_TIMES.pack(known.changed_ms, known.started_ms))
    tags = [(2, _INT16.pack(known.version))]
    if known.next_producer_id != NO_PRODUCER_ID:
        tags.insert(0, (1, _INT64.pack(known.next_producer_id)))
    if known.previous_producer_id != NO_PRODUCER_ID:
        tags.insert(0, (0, _INT64.pack(known.previous_producer_id)))
    parts.append(write_uvarint(len(tags)))
    for tag, data in tags:
        parts += [write_uvarint(tag), write_uvarint(len(data)), data]
    return b"".join(parts)
