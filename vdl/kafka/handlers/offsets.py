"""Committed offsets: OffsetCommit (key 8) v0–10, OffsetFetch (9) v0–10, OffsetDelete (47) v0.

OffsetCommit: v1 members, and a commit time, for which the current time is used here; v2 retention
    of its own until v4, v6 leader epoch (KIP-320), v7 static members (KIP-345), v9 also for the
    newer group protocol, whose member epoch is sent as the generation. From v9 on a member of a
    group that does not exist gets GROUP_ID_NOT_FOUND, before that ILLEGAL_GENERATION (KIP-848).
OffsetFetch: v0 reports a partition without a committed offset as unknown, v2 all topics of a group,
    v5 leader epoch, v7 require stable (KIP-447), v8 several groups (KIP-709), v9 member epochs,
    which a classic group does not check.
v0 of these two was for offsets in ZooKeeper, which every broker could read. Here all versions share
    the same offsets, and only the group's coordinator answers; others return NOT_COORDINATOR.
v10 names topics by id: an id that this server does not know is UNKNOWN_TOPIC_ID, which clients
    retry.
OffsetDelete: KIP-496. Only offsets in topics to which no member subscribes.

An offset is committed for the partition that has the name on this server now. If that partition was
deleted, or if another topic has the name now, there is no committed offset. A commit is refused if
the group already knows a later partition of the same name: the catalog here is behind. An offset
that an open transaction may still move is not stable: a request for stable ones gets
UNSTABLE_OFFSET_COMMIT, and the client retries (KIP-447).

An OffsetFetch waits until a quorum confirmed this coordinator: a stale offset would make a consumer
read again, or commit backwards.

Does not depend on group membership, or on who may commit (the state machine decides that).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar

from ids import NO_OFFSET, Offset
from vdl.errors import ErrorCode
from vdl.kafka.answer import Gathering, InParts, Later, Place, pages_of_lists
from vdl.kafka.context import RequestContext
from vdl.kafka.groups.led_coordinator import LedCoordinator
from vdl.kafka.handlers.groups import group_coordinator
from vdl.kafka.limits.repeats import Repeats
from vdl.kafka.lookup import find_topic
from vdl.kafka.parts import PART_ELEMENTS
from vdl.kafka.wire import offset_commit as commit_wire
from vdl.kafka.wire import offset_delete as delete_wire
from vdl.kafka.wire import offset_fetch as fetch_wire
from vdl.state import commands
from vdl.state.coordinator import CommitAnswer, Coordinator, OffsetsDeleted
from vdl.state.offsets import CommittedOffset, Offsets

_GROUP_NOT_FOUND_FROM = 9
_MEMBER_EPOCHS_FROM = 9
_TOPIC_IDS_FROM = 10
_REPEATED_PLACES_MAX = 1_000
"""Maximum number of repeated partitions in one request. Each has at most
`offset.metadata.max.bytes` of text."""

_POSITION_BYTES = 24
"""Size of a committed offset in an answer, without metadata."""
_SORTED_IN_TIME_OF_ONE = 16
"""Offsets that are sorted by topic in the time that one takes in an answer."""

# --- OffsetCommit --------------------------------------------------------------------------------


def handle_offset_commit(
    ctx: RequestContext, request: commit_wire.OffsetCommitRequest
) -> Later | commit_wire.OffsetCommitResponse:
    """Commit all valid offsets together; each invalid one has its error."""
    response, offsets, waiting = _sort_out(ctx, request)
    if sum(len(offset.metadata) for offset in offsets) > ctx.server.config.message_max_bytes:
        for partition in waiting:
            partition.error_code = ErrorCode.INVALID_COMMIT_OFFSET_SIZE
        return response
    if not offsets:
        return response
    later = Later()

    def done(error: ErrorCode, answer: CommitAnswer | None) -> None:
        code = error if answer is None else answer.error
        if code is ErrorCode.GROUP_ID_NOT_FOUND and ctx.api_version < _GROUP_NOT_FOUND_FROM:
            code = ErrorCode.ILLEGAL_GENERATION
        if code is ErrorCode.MESSAGE_TOO_LARGE:
            code = ErrorCode.INVALID_COMMIT_OFFSET_SIZE
        for partition in waiting:
            partition.error_code = code
        later.complete(response)

    command = commands.CommitOffsets(
        group_id=request.group_id,
        generation=request.generation_id_or_member_epoch,
        member_id=request.member_id,
        group_instance_id=request.group_instance_id,
        offsets=offsets,
        retention_ms=request.retention_time_ms if ctx.api_version <= 4 else -1,
        knows_epochs=ctx.api_version >= _MEMBER_EPOCHS_FROM,
    )
    group_coordinator(ctx).propose(
        request.group_id,
        command,
        later.step(done),
        member_id=request.member_id,
        asker=ctx.asker,
    )
    return later


def fail_offset_commit(
    request: commit_wire.OffsetCommitRequest, _version: int, code: ErrorCode
) -> commit_wire.OffsetCommitResponse:
    """Return `code` for each partition."""
    return commit_wire.OffsetCommitResponse(
        topics=[
            commit_wire.OffsetCommitResponseTopic(
                name=topic.name,
                topic_id=topic.topic_id,
                partitions=[
                    commit_wire.OffsetCommitResponsePartition(
                        partition_index=partition.partition_index, error_code=code
                    )
                    for partition in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def _sort_out(
    ctx: RequestContext, request: commit_wire.OffsetCommitRequest
) -> tuple[
    commit_wire.OffsetCommitResponse,
    list[commands.OffsetCommit],
    list[commit_wire.OffsetCommitResponsePartition],
]:
    """Sort the partitions of a request into valid and refused ones.

    Return the response with refused partitions filled in, the offsets to commit, and the partitions
    of the response that get the outcome of the commit.
    """
    by_id = ctx.api_version >= _TOPIC_IDS_FROM
    response = commit_wire.OffsetCommitResponse()
    offsets: list[commands.OffsetCommit] = []
    waiting: list[commit_wire.OffsetCommitResponsePartition] = []
    for asked in request.topics:
        answered = commit_wire.OffsetCommitResponseTopic(name=asked.name, topic_id=asked.topic_id)
        response.topics.append(answered)
        for position in asked.partitions:
            partition = commit_wire.OffsetCommitResponsePartition(position.partition_index)
            answered.partitions.append(partition)
            found = position_of(
                ctx,
                asked.topic_id if by_id else asked.name,
                position.partition_index,
                position.committed_offset,
                position.committed_leader_epoch,
                position.committed_metadata or "",
            )
            if isinstance(found, ErrorCode):
                partition.error_code = found
            else:
                waiting.append(partition)
                offsets.append(found)
    return response, offsets, waiting


def position_of(
    ctx: RequestContext, key: str | bytes, index: int, offset: int, epoch: int, metadata: str
) -> commands.OffsetCommit | ErrorCode:
    """Return the commit of an offset in the partition with this name or topic id, or an error.

    `epoch` is that of the record before the offset.
    """
    topic = find_topic(ctx, key)
    if topic is None:
        if isinstance(key, bytes):
            return ErrorCode.UNKNOWN_TOPIC_ID
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if not 0 <= index < len(topic.partitions):
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if len(metadata) > ctx.server.config.offset_metadata_max_bytes:
        return ErrorCode.OFFSET_METADATA_TOO_LARGE
    return commands.OffsetCommit(
        topic=topic.name,
        topic_id=topic.topic_id,
        partition=index,
        offset=Offset(offset),
        leader_epoch=epoch,
        metadata=metadata,
        partition_group=topic.partitions[index],
    )


# --- OffsetFetch ---------------------------------------------------------------------------------


def handle_offset_fetch(
    ctx: RequestContext, request: fetch_wire.OffsetFetchRequest
) -> fetch_wire.OffsetFetchResponse | InParts | Later:
    """Return the committed offsets; -1 where there is none.

    A partition that is repeated too often gets INVALID_REQUEST.
    """
    if ctx.api_version >= 8:
        return _fetch_groups(ctx, request)
    later, repeats = Later(), ctx.repeats("place", _REPEATED_PLACES_MAX)
    asked = _asked(request.topics)

    def read(error: ErrorCode, machine: Coordinator | None) -> None:
        if machine is None:
            later.complete(fail_offset_fetch(request, ctx.api_version, error))
            return
        positions = _Positions(
            ctx,
            machine,
            request.group_id,
            repeats,
            request.require_stable,
            fetch_wire.OffsetFetchResponsePartition,
        )
        if asked is None and positions.are_many:
            pages = partial(_pages_before_v8, positions)
            later.complete(InParts(ctx, "topics.partitions", pages, positions.bytes_expected))
            return
        response = fetch_wire.OffsetFetchResponse()
        for name, indexes in positions.wanted(asked):
            told = positions.of(name, indexes)
            response.topics.append(fetch_wire.OffsetFetchResponseTopic(name, told))
            if ctx.api_version == 0:
                for one in told:
                    if one.committed_offset == NO_OFFSET and not one.error_code:
                        one.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        later.complete(response)

    group_coordinator(ctx).read(request.group_id, later.step(read))
    return later


def fail_offset_fetch(
    request: fetch_wire.OffsetFetchRequest, version: int, code: ErrorCode
) -> fetch_wire.OffsetFetchResponse:
    """Return `code` for each group, for each partition before v8."""
    if version >= 8:
        return fetch_wire.OffsetFetchResponse(
            groups=[
                fetch_wire.OffsetFetchResponseGroup(group_id=group.group_id, error_code=code)
                for group in request.groups
            ]
        )
    # v2 to v7 have a field for the whole answer, which not every client reads: it would take a
    # partition without an error as one without a committed offset.
    response = fetch_wire.OffsetFetchResponse(error_code=code)
    for topic in request.topics or ():
        response.topics.append(
            fetch_wire.OffsetFetchResponseTopic(
                name=topic.name,
                partitions=[
                    fetch_wire.OffsetFetchResponsePartition(
                        partition_index=index, committed_offset=-1, metadata="", error_code=code
                    )
                    for index in topic.partition_indexes
                ],
            )
        )
    return response


def _fetch_groups(
    ctx: RequestContext, request: fetch_wire.OffsetFetchRequest
) -> fetch_wire.OffsetFetchResponse | InParts | Later:
    """Answer v8+: each group through its own coordinator, here or not."""
    groups = group_coordinator(ctx)
    response = fetch_wire.OffsetFetchResponse()
    parts: Gathering[fetch_wire.OffsetFetchResponse | InParts] = Gathering(response)
    large: list[
        tuple[
            fetch_wire.OffsetFetchResponseGroup,
            _Positions[fetch_wire.OffsetFetchResponsePartitions],
        ]
    ] = []
    whole_groups = ctx.repeats("group")
    places = ctx.repeats("place", _REPEATED_PLACES_MAX)

    def read(
        target: fetch_wire.OffsetFetchResponseGroup,
        group: fetch_wire.OffsetFetchRequestGroup,
        error: ErrorCode,
        machine: Coordinator | None,
    ) -> None:
        if machine is not None and ctx.api_version >= _MEMBER_EPOCHS_FROM:
            error = machine.check_fetch(group.group_id, group.member_epoch, group.member_id)
        target.error_code = error
        if machine is not None and error is ErrorCode.NONE:
            fill = _fill_group_by_id if ctx.api_version >= _TOPIC_IDS_FROM else _fill_group
            repeats = Repeats() if group.topics is None else places
            group_id = group.group_id
            positions = _Positions(
                ctx,
                machine,
                group_id,
                repeats,
                request.require_stable,
                fetch_wire.OffsetFetchResponsePartitions,
            )
            if group.topics is None and positions.are_many:
                large.append((target, positions))
                parts.response = InParts(
                    ctx,
                    "groups.topics.partitions",
                    partial(_pages, response, large),
                    sum(one.bytes_expected for _, one in large),
                )
            else:
                fill(ctx, target, positions, group.topics)
        parts.arrived()

    for group in request.groups:
        target = fetch_wire.OffsetFetchResponseGroup(group_id=group.group_id)
        response.groups.append(target)
        if group.topics is None and whole_groups.refuses(group.group_id):
            target.error_code = ErrorCode.INVALID_REQUEST
            continue
        parts.expect()
        groups.read(group.group_id, parts.later.step(partial(read, target, group)))
    return parts.result()


Position = TypeVar(
    "Position",
    fetch_wire.OffsetFetchResponsePartition,
    fetch_wire.OffsetFetchResponsePartitions,
)
"""A partition in the answer, as before v8 and since."""


@dataclass(frozen=True, slots=True)
class _Positions(Generic[Position]):
    """Committed offsets of a group, as one request reads them."""

    ctx: RequestContext
    machine: Coordinator
    group_id: str
    repeats: Repeats
    requires_stable: bool
    told: type[Position]

    @property
    def are_many(self) -> bool:
        """True if all of them are more than what is answered in one turn."""
        return len(self.machine.offsets.of(self.group_id)) > PART_ELEMENTS

    @property
    def bytes_expected(self) -> int:
        """Approximate size of the answer with all of them."""
        return _POSITION_BYTES * len(self.machine.offsets.of(self.group_id))

    @property
    def error(self) -> ErrorCode:
        """The error if this is not the coordinator any more: then some may be missing by now."""
        led = group_coordinator(self.ctx).find(self.group_id)
        is_here = isinstance(led, LedCoordinator) and led.machine is self.machine
        return ErrorCode.NONE if is_here else ErrorCode.NOT_COORDINATOR

    def wanted(self, asked: list[tuple[str, list[int]]] | None) -> list[tuple[str, list[int]]]:
        """Return (topic, partitions) to be answered; `asked` is None for all."""
        if asked is not None:
            return asked
        found: dict[str, list[int]] = {}
        for name, index in sorted(self.machine.offsets.of(self.group_id)):
            if self._current(name, index) is not _NONE:
                found.setdefault(name, []).append(index)
        return list(found.items())

    def by_topic(self, into: dict[str, list[int]], size: Callable[[], int]) -> Iterator[None]:
        """Sort all of them into `into`, by topic. Yield between the turns."""
        left = size() * _SORTED_IN_TIME_OF_ONE
        for name, index in list(self.machine.offsets.of(self.group_id)):
            if left <= 0:
                yield
                left = size() * _SORTED_IN_TIME_OF_ONE
            left -= 1
            into.setdefault(name, []).append(index)

    def all_in(self, name: str, indexes: list[int]) -> Iterator[Position | None]:
        """Yield the answers for partitions of a topic; None for one without an offset now."""
        for index in sorted(indexes):
            told = self._of(name, index)
            yield told if told.committed_offset != NO_OFFSET or told.error_code else None

    def of(self, name: str, indexes: list[int]) -> list[Position]:
        """Return the answers for partitions of a topic."""
        return [self._of(name, index) for index in indexes]

    def _of(self, name: str, index: int) -> Position:
        place = self.group_id, name, index
        if self.repeats.refuses(place):
            return self.told(index, NO_OFFSET, error_code=ErrorCode.INVALID_REQUEST)
        if self.requires_stable and self.machine.pending.is_unstable(*place):
            return self.told(index, NO_OFFSET, error_code=ErrorCode.UNSTABLE_OFFSET_COMMIT)
        found = self._current(name, index)
        return self.told(index, found.offset, found.leader_epoch, found.metadata)

    def _current(self, name: str, index: int) -> CommittedOffset:
        return _current(self.ctx, self.machine.offsets, self.group_id, name, index)


def _pages_before_v8(
    positions: _Positions[fetch_wire.OffsetFetchResponsePartition], size: Callable[[], int]
) -> Iterator[tuple[Place, fetch_wire.OffsetFetchResponse]]:
    """Yield all offsets of a group."""

    def page(
        topics: list[fetch_wire.OffsetFetchResponseTopic],
    ) -> fetch_wire.OffsetFetchResponse:
        return fetch_wire.OffsetFetchResponse(topics=topics, error_code=positions.error)

    yield (), page([])
    found: dict[str, list[int]] = {}
    for _ in positions.by_topic(found, size):
        yield (), page([])
    topics = (
        (fetch_wire.OffsetFetchResponseTopic(name), positions.all_in(name, indexes))
        for name, indexes in found.items()
    )
    yield from pages_of_lists(page, "partitions", topics, size)
    yield (), page([])  # an error that came within a topic that is cut


def _pages(
    first: fetch_wire.OffsetFetchResponse,
    large: list[
        tuple[
            fetch_wire.OffsetFetchResponseGroup,
            _Positions[fetch_wire.OffsetFetchResponsePartitions],
        ]
    ],
    size: Callable[[], int],
) -> Iterator[tuple[Place, fetch_wire.OffsetFetchResponse]]:
    """Yield `first`, then all offsets of large groups."""
    first.groups = [one for one in first.groups if all(one is not target for target, _ in large)]
    yield (), first
    for number, (_, positions) in enumerate(large):

        def page(
            topics: list[fetch_wire.OffsetFetchResponseTopics],
            of: _Positions[fetch_wire.OffsetFetchResponsePartitions] = positions,
        ) -> fetch_wire.OffsetFetchResponse:
            group = fetch_wire.OffsetFetchResponseGroup(of.group_id, topics, of.error)
            return fetch_wire.OffsetFetchResponse(groups=[group])

        place = (number,)
        yield place, page([])
        found: dict[str, list[int]] = {}
        for _ in positions.by_topic(found, size):
            yield place, page([])
        yield from pages_of_lists(page, "partitions", _topics(positions, found), size, place)
        yield place, page([])  # an error that came within a topic that is cut


def _topics(
    positions: _Positions[fetch_wire.OffsetFetchResponsePartitions], found: dict[str, list[int]]
) -> Iterator[
    tuple[
        fetch_wire.OffsetFetchResponseTopics,
        Iterator[fetch_wire.OffsetFetchResponsePartitions | None],
    ]
]:
    """Yield the topics of a group, and their partitions. From v10 on they have ids, and unknown
    topics are left out."""
    ctx = positions.ctx
    for name, indexes in found.items():
        topic = fetch_wire.OffsetFetchResponseTopics(name)
        if ctx.api_version >= _TOPIC_IDS_FROM:
            known = find_topic(ctx, name)
            if known is None:
                continue
            topic.topic_id = known.topic_id
        yield topic, positions.all_in(name, indexes)


def _without_position(index: int, code: ErrorCode) -> fetch_wire.OffsetFetchResponsePartitions:
    return fetch_wire.OffsetFetchResponsePartitions(index, NO_OFFSET, error_code=code)


def _fill_group(
    ctx: RequestContext,
    target: fetch_wire.OffsetFetchResponseGroup,
    positions: _Positions[fetch_wire.OffsetFetchResponsePartitions],
    topics: list[fetch_wire.OffsetFetchRequestTopics] | None,
) -> None:
    del ctx
    target.topics = [
        fetch_wire.OffsetFetchResponseTopics(name=name, partitions=positions.of(name, indexes))
        for name, indexes in positions.wanted(_asked(topics))
    ]


def _fill_group_by_id(
    ctx: RequestContext,
    target: fetch_wire.OffsetFetchResponseGroup,
    positions: _Positions[fetch_wire.OffsetFetchResponsePartitions],
    topics: list[fetch_wire.OffsetFetchRequestTopics] | None,
) -> None:
    """Fill in the answer for v10+. In the answer of all topics, unknown topics are left out."""
    if topics is None:
        for name, indexes in positions.wanted(None):
            known = find_topic(ctx, name)
            if known is not None:
                topic = fetch_wire.OffsetFetchResponseTopics(topic_id=known.topic_id)
                topic.partitions = positions.of(name, indexes)
                target.topics.append(topic)
        return
    for asked in topics:
        topic = fetch_wire.OffsetFetchResponseTopics(topic_id=asked.topic_id)
        target.topics.append(topic)
        known = find_topic(ctx, asked.topic_id)
        if known is None:
            topic.partitions = [
                _without_position(index, ErrorCode.UNKNOWN_TOPIC_ID)
                for index in asked.partition_indexes
            ]
        else:
            topic.partitions = positions.of(known.name, asked.partition_indexes)


_NONE = CommittedOffset(
    offset=NO_OFFSET, leader_epoch=-1, metadata="", topic_id=bytes(16), committed_ms=-1
)


def _current(
    ctx: RequestContext, offsets: Offsets, group_id: str, name: str, index: int
) -> CommittedOffset:
    """Return the offset in the topic that has this name now; `_NONE` if there is none.

    A partition that this server does not know may be newer than its catalog; its offset is
    returned.
    """
    found = offsets.get(group_id, name, index)
    if found is None:
        return _NONE
    if found.partition_group:
        return _NONE if ctx.server.host.catalog.has_deleted(found.partition_group) else found
    topic = find_topic(ctx, name)
    if topic is not None and topic.topic_id != found.topic_id:
        return _NONE
    return found


def _asked(
    topics: Iterable[fetch_wire.OffsetFetchRequestTopic | fetch_wire.OffsetFetchRequestTopics]
    | None,
) -> list[tuple[str, list[int]]] | None:
    """Return the requested (topic, partitions); None for all."""
    if topics is None:
        return None
    return [(topic.name, topic.partition_indexes) for topic in topics]


# --- OffsetDelete --------------------------------------------------------------------------------


def handle_offset_delete(
    ctx: RequestContext, request: delete_wire.OffsetDeleteRequest
) -> Later | delete_wire.OffsetDeleteResponse:
    """Delete committed offsets; each partition has its own answer, unless the whole group has an
    error."""
    if not request.group_id:
        return delete_wire.OffsetDeleteResponse(error_code=ErrorCode.INVALID_GROUP_ID)
    response = delete_wire.OffsetDeleteResponse()
    partitions: list[tuple[str, int]] = []
    waiting: list[delete_wire.OffsetDeleteResponsePartition] = []
    for asked in request.topics:
        answered = delete_wire.OffsetDeleteResponseTopic(asked.name)
        response.topics.append(answered)
        topic = find_topic(ctx, asked.name)
        for place in asked.partitions:
            partition = delete_wire.OffsetDeleteResponsePartition(place.partition_index)
            answered.partitions.append(partition)
            if topic is None or not 0 <= place.partition_index < len(topic.partitions):
                partition.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            else:
                waiting.append(partition)
                partitions.append((asked.name, place.partition_index))
    if not partitions:
        return response
    later = Later()

    def done(error: ErrorCode, answer: OffsetsDeleted | None) -> None:
        code = error if answer is None else answer.error
        if answer is None or code is not ErrorCode.NONE:
            later.complete(delete_wire.OffsetDeleteResponse(error_code=code))
            return
        for partition, own_code in zip(waiting, answer.errors, strict=True):
            partition.error_code = own_code
        later.complete(response)

    command = commands.DeleteOffsets(request.group_id, partitions)
    group_coordinator(ctx).propose(request.group_id, command, later.step(done))
    return later
