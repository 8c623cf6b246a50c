"""Consumer groups of both protocols and share groups: members, and lag in records and in seconds.

Lag in records is the end of a partition less the committed offset; of a share group it is counted
by the servers. Lag in seconds is the age of the first unread record, by the time of its batch, of
the partitions most behind: each of them costs a read.

Does not depend on HTTP.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from heapq import nlargest
from itertools import chain, islice
from typing import Any, Final

from vdl.console.parameters import LIST, Listing, Parameters, long
from vdl.console.problems import ConsoleError, refuse
from vdl.console.question import (
    CONSUMER_GROUP_DESCRIBE,
    DESCRIBE_GROUPS,
    DESCRIBE_SHARE_GROUP_OFFSETS,
    FETCH,
    LATEST,
    LIST_GROUPS,
    METADATA,
    OFFSET_FETCH,
    SHARE_GROUP_DESCRIBE,
    Question,
    Where,
    by_topic,
)
from vdl.errors import ErrorCode
from vdl.kafka.client import Unreachable
from vdl.kafka.wire import consumer_protocol_assignment as assignment_codec
from vdl.kafka.wire.consumer_group_describe import ConsumerGroupDescribeRequest
from vdl.kafka.wire.describe_groups import DescribeGroupsRequest
from vdl.kafka.wire.describe_share_group_offsets import (
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
)
from vdl.kafka.wire.fetch import FetchPartition, FetchRequest, FetchTopic
from vdl.kafka.wire.list_groups import ListGroupsRequest
from vdl.kafka.wire.metadata import MetadataRequest, MetadataRequestTopic
from vdl.kafka.wire.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup
from vdl.kafka.wire.runtime import WireError
from vdl.kafka.wire.share_group_describe import ShareGroupDescribeRequest
from vdl.records.batch import read_header, split_batches

GROUPS: Final = LIST
MEMBERS_MAX: Final = 200
EXAMINED_MAX: Final = 2_000
"""Members whose assignments are read."""
ROWS_MAX: Final = 1_000
ASKED_MAX: Final = 20_000
"""Partitions of a group whose ends are asked for."""
ASSIGNED_PER_MEMBER_MAX: Final = 1_000
ASSIGNED_MAX: Final = 20_000
"""Assigned partitions of all members together. Classic members choose their numbers freely."""
TIMED_MAX: Final = 8
GROUPS_OF_TOPIC_MAX: Final = 50
GROUPS_ASKED_MAX: Final = 500
SHARE, CONSUMER, CLASSIC = "share", "consumer", "classic"
POINT_SECONDS: Final = 2.0
POINTS_MAX: Final = 300
SERIES_MAX: Final = 200
_TIMED_BYTES: Final = 64 << 10


@dataclass(slots=True)
class _Group:
    """A group, as it is described. `members` are rows of API.md."""

    kind: str
    state: str
    coordinator: int
    assignor: str = ""
    epoch: int | None = None
    members: list[dict[str, Any]] = field(default_factory=list)
    """At most EXAMINED_MAX."""
    members_total: int = 0


@dataclass(slots=True)
class _Row:
    """Progress of a group in one partition. None: not known."""

    committed: int | None = None
    end: int | None = None
    lag: int | None = None
    lag_seconds: float | None = None
    member: str | None = None
    metadata: str = ""


class LagSeries:
    """Points of the groups that were looked at in this console; shared by all threads.

    Bounded in groups and in points. The lag of a group is shown only in an answer about the group,
    for which the servers have checked the right of the user.
    """

    def __init__(self) -> None:
        self._by_group: OrderedDict[str, deque[tuple[int, int | None, float | None]]] = (
            OrderedDict()
        )
        self._lock = threading.Lock()

    def add(self, group: str, lag: int | None, seconds: float | None) -> dict[str, Any]:
        """Add a point, unless the last is recent. Return the `series` of API.md."""
        now_ms = time.time_ns() // 1_000_000
        with self._lock:
            points = self._by_group.setdefault(group, deque(maxlen=POINTS_MAX))
            if not points or now_ms - points[-1][0] >= POINT_SECONDS * 1_000:
                points.append((now_ms, lag, seconds))
            self._by_group.move_to_end(group)
            if len(self._by_group) > SERIES_MAX:
                self._by_group.popitem(last=False)
            shown = list(points)
        return {
            "times": [ms for ms, _, _ in shown],
            "lag": [long(lag) for _, lag, _ in shown],
            "lag_seconds": [seconds for _, _, seconds in shown],
        }


# --- lists ----------------------------------------------------------------------------------------


def list_groups(question: Question) -> tuple[list[dict[str, Any]], list[int]]:
    """Return the rows of all groups that the user may see, by name, and the servers whose groups
    are missing."""
    found: dict[str, dict[str, Any]] = {}
    missing = []
    for server in question.servers().addresses:
        try:
            answer = question.ask_server(server, LIST_GROUPS, ListGroupsRequest())
        except Unreachable:
            missing.append(server)
            continue
        if answer.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
            refuse(answer.error_code, "groups")
        if answer.error_code:
            missing.append(server)
            continue
        for one in answer.groups:
            found[one.group_id] = {
                "group": one.group_id,
                "type": one.group_type.lower() or "unknown",
                "state": one.group_state,
                "protocol": one.protocol_type,
            }
    return [found[name] for name in sorted(found)], missing


def groups(question: Question, given: Parameters) -> dict[str, Any]:
    """Answer `GET groups`."""
    listing = Listing(given, ("name", "state", "type"))
    rows, missing = list_groups(question)
    found = [row | {"name": row["group"]} for row in rows if listing.finds(row["group"])]
    some = listing.choose(found)
    for row in some:
        del row["name"]
    return {"page": listing.info(len(found)), "groups": some, "missing": missing}


def topic_groups(question: Question, given: Parameters) -> dict[str, Any]:
    """Answer `GET topic_groups`."""
    name = given.text("topic", most=249)
    topic = question.topic(name)
    leaders = {(name, one.partition_index): one.leader_id for one in topic.partitions}
    rows, missing = list_groups(question)
    candidates = [row for row in rows if row["type"] in (CLASSIC, CONSUMER)]
    asked = candidates[:GROUPS_ASKED_MAX]
    ends: dict[Where, int | None] | None = None
    found = []
    for row in asked:
        try:
            server = question.coordinator(row["group"])
            offsets = _committed(question, server, row["group"], {topic.topic_id: name})
        except (ConsoleError, Unreachable):
            question.check()
            continue
        if not any(where[0] == name for where in offsets):
            continue
        if ends is None:
            ends = question.offsets(leaders, LATEST)
        lags = [
            end - offset
            for where, (offset, _) in offsets.items()
            if where[0] == name and (end := ends.get(where)) is not None
        ]
        found.append(
            {
                "group": row["group"],
                "state": row["state"],
                "lag": long(sum(max(0, lag) for lag in lags)) if lags else None,
                "lag_seconds": None,
                "members": None,
            }
        )
    most = nlargest(GROUPS_OF_TOPIC_MAX, found, key=lambda row: int(row["lag"] or -1))
    return {
        "groups": most,
        "groups_total": len(found),
        "missing": missing,
        "is_complete": len(asked) == len(candidates),
    }


# --- one group ------------------------------------------------------------------------------------


def group(question: Question, given: Parameters, series: LagSeries) -> dict[str, Any]:
    """Answer `GET group`."""
    name = given.text("group")
    try:
        found = _describe(question, name)
        rows = _progress(question, name, found)
    except Unreachable as error:
        raise ConsoleError("unreachable", str(error)) from None
    _add_owners(rows, found.members)
    _add_seconds(question, rows, found.kind)
    lag, seconds = _lag(rows)
    behind = nlargest(ROWS_MAX, sorted(rows.items()), key=lambda item: item[1].lag or 0)
    return {
        "group": {
            "group": name,
            "type": found.kind,
            "state": found.state,
            "coordinator": found.coordinator,
            "assignor": found.assignor,
            "epoch": found.epoch,
        },
        "members": found.members[:MEMBERS_MAX],
        "members_total": found.members_total,
        "partitions": [_shown(where, row) for where, row in behind],
        "partitions_total": len(rows),
        "lag": long(lag),
        "lag_seconds": seconds,
        "series": series.add(name, lag, seconds),
    }


def _lag(rows: Mapping[Where, _Row]) -> tuple[int | None, float | None]:
    """Return the lag of a group in records and in seconds; None: not known."""
    if len(rows) > ASKED_MAX:
        return None, None
    known = [row.lag for row in rows.values() if row.lag is not None]
    lag = sum(max(0, one) for one in known) if known else None
    late = [row.lag_seconds for row in rows.values() if row.lag_seconds is not None]
    return lag, max(late) if late else (0.0 if known and lag == 0 else None)


def _shown(where: Where, row: _Row) -> dict[str, Any]:
    return {
        "topic": where[0],
        "partition": where[1],
        "committed": long(row.committed),
        "end": long(row.end),
        "lag": long(row.lag),
        "lag_seconds": row.lag_seconds,
        "member": row.member,
        "metadata": row.metadata[:200],
    }


def _describe(question: Question, name: str) -> _Group:
    """Return the description of a group, whatever its type. Raises Unreachable, ConsoleError."""
    server = question.coordinator(name)
    message: Any = ConsumerGroupDescribeRequest([name])
    (one,) = question.ask_server(server, CONSUMER_GROUP_DESCRIBE, message).groups
    if one.error_code == ErrorCode.NONE:
        return _modern(question, CONSUMER, server, one)
    if one.error_code != ErrorCode.GROUP_ID_NOT_FOUND:
        refuse(one.error_code, f"group {name}")
    message = ShareGroupDescribeRequest([name])
    (one,) = question.ask_server(server, SHARE_GROUP_DESCRIBE, message).groups
    if one.error_code == ErrorCode.NONE:
        return _modern(question, SHARE, server, one)
    message = DescribeGroupsRequest([name])
    (one,) = question.ask_server(server, DESCRIBE_GROUPS, message).groups
    if one.error_code:
        refuse(one.error_code, f"group {name}", one.error_message)
    if one.group_state == "Dead":
        refuse(ErrorCode.GROUP_ID_NOT_FOUND, f"group {name}")
    rows = Members(question)
    for member in one.members[:EXAMINED_MAX]:
        assigned = _classic_assignment(member.member_assignment) if rows.room else {}
        rows.add(member, member.group_instance_id, assigned)
    total = len(one.members)
    return _Group(CLASSIC, one.group_state, server, one.protocol_data, None, rows.found, total)


def _modern(question: Question, kind: str, server: int, one: Any) -> _Group:
    rows = Members(question)
    for member in one.members[:EXAMINED_MAX]:
        assigned = {
            topic.topic_name: topic.partitions for topic in member.assignment.topic_partitions
        }
        rows.add(member, getattr(member, "instance_id", None), assigned)
    total = len(one.members)
    return _Group(
        kind, one.group_state, server, one.assignor_name, one.group_epoch, rows.found, total
    )


@dataclass(slots=True)
class Members:
    """Rows of members, whose assigned partitions are bounded one by one and together."""

    question: Question
    found: list[dict[str, Any]] = field(default_factory=list)
    room: int = ASSIGNED_MAX

    def add(self, member: Any, instance: str | None, assigned: Mapping[str, list[int]]) -> None:
        """Add a row."""
        self.question.check()
        shown = []
        left = min(ASSIGNED_PER_MEMBER_MAX, self.room)
        for topic, numbers in assigned.items():
            some = sorted(set(numbers[:left]))
            if some:
                shown.append({"topic": topic, "partitions": some})
            left -= len(some)
            self.room -= len(some)
        self.found.append(
            {
                "member": member.member_id,
                "client": member.client_id,
                "host": member.client_host,
                "instance": instance or "",
                "assigned": sorted(shown, key=lambda one: str(one["topic"])),
                "assigned_total": sum(map(len, assigned.values())),
            }
        )


def _classic_assignment(data: bytes) -> dict[str, list[int]]:
    """Return the partitions in an assignment of Kafka's own consumers; none of other formats."""
    try:
        version = int.from_bytes(bytes(data[:2]), "big", signed=True)
        found = assignment_codec.decode(memoryview(data)[2:], min(version, 3))
    except (WireError, ValueError, IndexError, KeyError):
        return {}
    return {one.topic: list(one.partitions) for one in found.assigned_partitions}


# --- progress -------------------------------------------------------------------------------------


def _progress(question: Question, name: str, found: _Group) -> dict[Where, _Row]:
    if found.kind == SHARE:
        return _share_progress(question, name, found.coordinator)
    offsets = _committed(question, found.coordinator, name, None)
    rows = {where: _Row(committed=offset, metadata=text) for where, (offset, text) in
            offsets.items()}  # fmt: skip
    assigned = {
        (one["topic"], number)
        for member in found.members
        for one in member["assigned"]
        for number in one["partitions"]
    }
    leaders = _leaders(question, islice(chain(rows, assigned - rows.keys()), ASKED_MAX))[0]
    for where in assigned & leaders.keys():
        rows.setdefault(where, _Row())
    for where, end in question.offsets(leaders, LATEST).items():
        question.check()
        row = rows[where]
        row.end = end
        if end is not None and row.committed is not None:
            row.lag = end - row.committed
    return rows


def _share_progress(question: Question, name: str, server: int) -> dict[Where, _Row]:
    message = DescribeShareGroupOffsetsRequest([DescribeShareGroupOffsetsRequestGroup(name, None)])
    (answer,) = question.ask_server(server, DESCRIBE_SHARE_GROUP_OFFSETS, message).groups
    if answer.error_code:
        refuse(answer.error_code, f"group {name}", answer.error_message)
    return {
        (topic.topic_name, one.partition_index): _Row(
            committed=one.start_offset if one.start_offset >= 0 else None,
            lag=one.lag if one.lag >= 0 else None,
        )
        for topic in answer.topics
        for one in topic.partitions
        if one.error_code == ErrorCode.NONE
    }


def _committed(
    question: Question, server: int, name: str, names: Mapping[bytes, str] | None
) -> dict[Where, tuple[int, str]]:
    """Return (offset, metadata) that a group has committed. Raises Unreachable, ConsoleError.

    `names`: the topics that matter by id; None: all."""
    request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(name, topics=None)])
    (answer,) = question.ask_server(server, OFFSET_FETCH, request).groups
    if answer.error_code:
        refuse(answer.error_code, f"offsets of {name}")
    if names is None:
        names = _names(question, [one.topic_id for one in answer.topics if not one.name])
    return {
        (topic, one.partition_index): (one.committed_offset, one.metadata or "")
        for found in answer.topics
        if (topic := found.name or names.get(bytes(found.topic_id)))
        for one in found.partitions
        if one.error_code == ErrorCode.NONE and one.committed_offset >= 0
    }


def _names(question: Question, ids: Iterable[bytes]) -> dict[bytes, str]:
    wanted = [MetadataRequestTopic(topic_id=bytes(one), name=None) for one in ids]
    if not wanted:
        return {}
    answer = question.ask(METADATA, MetadataRequest(wanted, allow_auto_topic_creation=False))
    return {bytes(one.topic_id): one.name for one in answer.topics if one.name}


def _leaders(
    question: Question, places: Iterable[Where]
) -> tuple[dict[Where, int], dict[str, Any]]:
    """Return the leaders of partitions that exist, and their topics."""
    wanted = by_topic(places)
    if not wanted:
        return {}, {}
    topics = {
        one.name: one for one in question.metadata(sorted(wanted)).topics if not one.error_code
    }
    leaders = {}
    for name, topic in topics.items():
        question.check()
        numbers = frozenset(wanted[name])
        for one in topic.partitions:
            if one.partition_index in numbers:
                leaders[name, one.partition_index] = one.leader_id
    return leaders, topics


def _add_owners(rows: Mapping[Where, _Row], members: Iterable[dict[str, Any]]) -> None:
    for member in members:
        for one in member["assigned"]:
            for number in one["partitions"]:
                row = rows.get((one["topic"], number))
                if row is not None:
                    row.member = member["member"]


# --- lag in seconds -------------------------------------------------------------------------------


def _add_seconds(question: Question, rows: Mapping[Where, _Row], kind: str) -> None:
    for row in rows.values():
        if row.lag is not None and row.lag <= 0:
            row.lag_seconds = 0.0
    if kind == SHARE:
        return  # records behind the start may be acknowledged already
    late = [item for item in rows.items() if item[1].lag and item[1].lag > 0]
    most = nlargest(TIMED_MAX, late, key=lambda item: item[1].lag or 0)
    leaders, topics = _leaders(question, [where for where, _ in most])
    now_ms = time.time_ns() // 1_000_000
    for where, row in most:
        leader = leaders.get(where, -1)
        if leader < 0 or row.committed is None:
            continue
        time_ms = _first_time(question, leader, topics[where[0]], where[1], row.committed)
        if time_ms is not None:
            row.lag_seconds = max(0, now_ms - time_ms) / 1_000


def _first_time(
    question: Question, leader: int, topic: Any, number: int, offset: int
) -> int | None:
    """Return the time of the first batch with records from an offset on; None if it is not
    known."""
    partition = FetchPartition(number, fetch_offset=offset, partition_max_bytes=_TIMED_BYTES)
    request = FetchRequest(
        max_wait_ms=0,
        min_bytes=0,
        max_bytes=_TIMED_BYTES,
        isolation_level=0,
        topics=[FetchTopic(topic.name, topic.topic_id, [partition])],
    )
    try:
        answer = question.ask_server(leader, FETCH, request)
    except Unreachable:
        return None
    if answer.error_code or not answer.responses:
        return None
    (found,) = answer.responses[0].partitions
    if found.error_code:
        return None
    for batch in split_batches(memoryview(found.records or b"")):
        header = read_header(batch)
        if header.last_offset >= offset and not header.is_control and header.max_timestamp >= 0:
            time_ms: int = header.max_timestamp
            return time_ms
    return None
