"""Consumer groups of the classic protocol, and their offsets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tests.differential.side import Side
from vdl.kafka.wire.delete_groups import DeleteGroupsRequest
from vdl.kafka.wire.describe_groups import DescribeGroupsRequest
from vdl.kafka.wire.heartbeat import HeartbeatRequest
from vdl.kafka.wire.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from vdl.kafka.wire.leave_group import LeaveGroupRequest, MemberIdentity
from vdl.kafka.wire.list_groups import ListGroupsRequest
from vdl.kafka.wire.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from vdl.kafka.wire.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from vdl.kafka.wire.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from vdl.kafka.wire.sync_group import SyncGroupRequest, SyncGroupRequestAssignment

SESSION_MS = 30_000
INSTANCES_SINCE = 5
"""JoinGroup identifies a member by its instance from this version on (KIP-345)."""
MEMBERS_SINCE = 3
"""LeaveGroup names several members from this version on."""
GROUPS_SINCE = 8
"""OffsetFetch requests several groups from this version on (KIP-709)."""
MEMBER_ID_REQUIRED_SINCE = 4
MEMBER_ID_REQUIRED = 79


def _protocols(*names: str) -> list[JoinGroupRequestProtocol]:
    return [JoinGroupRequestProtocol(name, b"m") for name in names]


def _join(group: str, member_id: str = "", **fields: Any) -> JoinGroupRequest:
    chosen: dict[str, Any] = {
        "session_timeout_ms": SESSION_MS,
        "rebalance_timeout_ms": SESSION_MS,
        "protocol_type": "consumer",
        "protocols": _protocols("range"),
    }
    return JoinGroupRequest(group_id=group, member_id=member_id, **chosen | fields)


@dataclass(slots=True)
class Joined:
    """A group with one member, which leads it and has its assignment."""

    group: str
    member_id: str
    generation: int
    coordinator: int


def _joined(side: Side, name: str, *, synced: bool = True, instance: str | None = None) -> Joined:
    group = f"{side.prefix}.{name}"
    to = side.coordinator(group)

    def code(answer: Any) -> int:
        return int(answer.error_code)

    first = side.retry(_join(group, group_instance_id=instance), code, to=to)
    member_id = first.member_id
    if first.error_code == MEMBER_ID_REQUIRED:
        first = side.retry(_join(group, member_id), code, to=to)
    assert first.error_code == 0, first
    side.symbols.learn(member_id, f"member of {name}")
    if synced:
        request = SyncGroupRequest(
            group,
            first.generation_id,
            member_id,
            instance,
            "consumer",
            "range",
            [SyncGroupRequestAssignment(member_id, b"assigned")],
        )
        answer = side.retry(request, code, to=to)
        assert answer.error_code == 0, answer
    return Joined(group, member_id, first.generation_id, to)


def join_group(side: Side) -> None:
    group = f"{side.prefix}.join"
    to = side.coordinator(group)
    side.retry(_join(group, "nobody"), lambda answer: int(answer.error_code), to=to)

    def ask(label: str, request: JoinGroupRequest, *, first: int = 0) -> None:
        for version in side.versions(11):
            if version >= first:
                answer = side.quiet(request, version=version, to=to)
                # The id is allocated by the cluster; its presence is compared.
                side.symbols.learn(answer.member_id, "a member id")
                side.symbols.learn(answer.leader, "a member id")
                side.keep_answer(f"{label} v{version}", answer)

    ask("unknown member", _join(group, "nobody"))
    ask("no group", _join(""))
    ask("session too short", _join(group, session_timeout_ms=1))
    ask("session too long", _join(group, session_timeout_ms=1 << 30))
    ask("negative session", _join(group, session_timeout_ms=-1))
    ask("no protocols", _join(group, protocols=[]))
    ask("no protocol type", _join(group, protocol_type=""))
    ask("neither", _join(group, protocol_type="", protocols=[]))
    ask("new", _join(group), first=MEMBER_ID_REQUIRED_SINCE)
    ask(
        "unknown member, with an instance",
        _join(group, "nobody", group_instance_id="i"),
        first=INSTANCES_SINCE,
    )
    for version in side.versions(11):
        name = f"fresh{version}"
        fresh = f"{side.prefix}.{name}"
        at = side.coordinator(fresh)
        answer = side.quiet(_join(fresh), version=version, to=at)
        side.symbols.learn(answer.member_id, f"member of {name}")
        side.keep_answer(f"fresh v{version}", answer)
        if answer.error_code == MEMBER_ID_REQUIRED:
            request = _join(fresh, answer.member_id)
            side.ask(f"fresh, with the id v{version}", request, version=version, to=at)
    for version in side.versions(11):
        if version < INSTANCES_SINCE:
            continue
        name = f"static{version}"
        fresh = f"{side.prefix}.{name}"
        at = side.coordinator(fresh)
        for turn in ("first", "second"):
            request = _join(fresh, group_instance_id="i")
            answer = side.quiet(request, version=version, to=at)
            side.symbols.learn(answer.member_id, f"{turn} member of {name}")
            side.keep_answer(f"{turn}, static v{version}", answer)


def membership(side: Side) -> None:
    """Send requests of a member of a stable group, and of non-members."""
    joined = _joined(side, "stable")
    group, member, generation, to = (
        joined.group,
        joined.member_id,
        joined.generation,
        joined.coordinator,
    )
    other = to % 3 + 1

    def at(name: str, to: int) -> int:
        """Return the server that answers for a group: `to`, or another group's own coordinator."""
        return to if name == group else side.coordinator(name)

    def beat(label: str, *names: Any, to: int = to, first: int = 0) -> None:
        request = HeartbeatRequest(*names)
        side.each(f"heartbeat, {label}", request, to=at(names[0], to), first=first)

    beat("good", group, generation, member)
    beat("an old generation", group, generation - 1, member)
    beat("a generation to come", group, generation + 1, member)
    beat("no generation", group, -1, member)
    beat("an unknown member", group, generation, "nobody")
    beat("no member", group, generation, "")
    beat("an unknown group", f"{group}.none", generation, member)
    beat("no group", "", generation, member)
    beat("an unknown instance", group, generation, member, "i", first=3)
    beat("not the coordinator", group, generation, member, to=other)

    def sync(label: str, *names: Any, first: int = 0, to: int = to, **fields: Any) -> None:
        fields = {"protocol_type": "consumer", "protocol_name": "range"} | fields
        request = SyncGroupRequest(*names, **fields)
        side.each(f"sync, {label}", request, to=at(names[0], to), first=first)

    sync("again", group, generation, member)
    sync("an old generation", group, generation - 1, member)
    sync("a generation to come", group, generation + 1, member)
    sync("an unknown member", group, generation, "nobody")
    sync("no member", group, generation, "")
    sync("an unknown group", f"{group}.none", generation, member)
    sync("no group", "", generation, member)
    sync("an unknown instance", group, generation, member, "i", first=3)
    sync("another type", group, generation, member, protocol_type="x", first=5)
    sync("another protocol", group, generation, member, protocol_name="x", first=5)
    sync("no type", group, generation, member, protocol_type=None, first=5)
    sync("not the coordinator", group, generation, member, to=other)

    def join(label: str, request: JoinGroupRequest, *, first: int = 0, to: int = to) -> None:
        side.each(f"join, {label}", request, to=to, first=first)

    join("another type", _join(group, member, protocol_type="x"))
    join("another protocol", _join(group, "", protocols=_protocols("x")))
    join("an unknown member", _join(group, "nobody"))
    join("not the coordinator", _join(group, member), to=other)

    def describe(label: str, *names: str, to: int = to, **fields: Any) -> None:
        request = DescribeGroupsRequest(list(names), **fields)
        where = at(names[0], to) if len(names) == 1 else to
        side.each(f"describe, {label}", request, to=where, first=3 if fields else 0)

    describe("good", group)
    describe("unknown", f"{group}.none")
    describe("no name", "")
    describe("twice", group, group)
    describe("nothing")
    describe("what one may do", group, include_authorized_operations=True)
    describe("not the coordinator", group, to=other)

    def leave(label: str, name: str, *members: tuple[str, str | None], to: int = to) -> None:
        def make(version: int) -> LeaveGroupRequest:
            if version < MEMBERS_SINCE:
                return LeaveGroupRequest(name, members[0][0] if members else "")
            rows = [MemberIdentity(*pair) for pair in members]
            return LeaveGroupRequest(name, "", rows)

        side.each(f"leave, {label}", make, to=at(name, to))

    leave("an unknown member", group, ("nobody", None))
    leave("no member", group, ("", None))
    leave("nobody", group)
    leave("an unknown group", f"{group}.none", (member, None))
    leave("no group", "", (member, None))
    leave("two unknown", group, ("nobody", None), ("no one", None))
    leave("an unknown instance", group, ("", "i"))
    leave("a member by an unknown instance", group, (member, "i"))
    leave("not the coordinator", group, (member, None), to=other)
    side.each("delete, with a member", DeleteGroupsRequest([group]), to=to)
    for version in side.versions(13):
        found = _joined(side, f"leaves{version}")
        if version < MEMBERS_SINCE:
            request = LeaveGroupRequest(found.group, found.member_id)
        else:
            rows = [MemberIdentity(found.member_id, None), MemberIdentity(found.member_id, None)]
            request = LeaveGroupRequest(found.group, "", rows)
        side.ask(f"leave v{version}", request, version=version, to=found.coordinator)
        describing = DescribeGroupsRequest([found.group])
        side.ask(f"describe, left v{version}", describing, to=found.coordinator)


def rebalance(side: Side) -> None:
    """Send requests to a group between its first member's join and its leader's sync."""
    joined = _joined(side, "joining", synced=False)
    group, member, generation, to = (
        joined.group,
        joined.member_id,
        joined.generation,
        joined.coordinator,
    )
    describing = DescribeGroupsRequest([group])
    # Kafka describes a group by its state on disk.
    side.settle(
        lambda: side.quiet(describing, to=to).groups[0].group_state != "Dead",
        f"{group} is there",
    )
    side.each("describe", describing, to=to)
    side.each("heartbeat", HeartbeatRequest(group, generation, member), to=to)
    side.each("delete", DeleteGroupsRequest([group]), to=to)
    commit = _commit(group, (f"{side.prefix}.t", 0, 5, ""), member=(member, generation))
    side.each("commit", commit, to=to)


def two_members(side: Side) -> None:
    """A second member joins, both get an assignment, the first one leaves."""
    first = _joined(side, "two")
    group, to = first.group, first.coordinator

    def beat(label: str, member_id: str, generation: int, *, until: int) -> None:
        """Send heartbeats until the answer is this one: the coordinator may have to be notified."""
        request = HeartbeatRequest(group, generation, member_id)
        side.settle(
            lambda: side.quiet(request, to=to).error_code == until, f"{label} is answered {until}"
        )
        side.ask(label, request, to=to)

    asked = side.quiet(_join(group), to=to)
    assert asked.error_code == MEMBER_ID_REQUIRED, asked
    second_id = asked.member_id
    side.symbols.learn(second_id, "second member of two")
    second_joins = side.begin("the second joins", _join(group, second_id), to=to)
    beat("heartbeat while it rebalances", first.member_id, first.generation, until=27)
    commit = _commit(
        group, (side.topic("two"), 0, 5, ""), member=(first.member_id, first.generation)
    )
    side.each("commit while it rebalances", commit, to=to)
    sync = SyncGroupRequest(group, first.generation, first.member_id, None, "consumer", "range")
    side.each("sync while it rebalances", sync, to=to)
    side.each("describe while it rebalances", DescribeGroupsRequest([group]), to=to)
    first_joins = side.begin("the first joins again", _join(group, first.member_id), to=to)
    generation = first_joins().generation_id
    second_joins()
    beat("heartbeat before the sync", second_id, generation, until=0)
    follower = SyncGroupRequest(group, generation, second_id, None, "consumer", "range")
    second_syncs = side.begin("the second syncs", follower, to=to)
    given = [
        SyncGroupRequestAssignment(first.member_id, b"one"),
        SyncGroupRequestAssignment(second_id, b"two"),
        SyncGroupRequestAssignment("nobody", b"three"),
    ]
    leader = SyncGroupRequest(group, generation, first.member_id, None, "consumer", "range", given)
    side.ask("the first syncs", leader, to=to)
    second_syncs()
    beat("heartbeat of the first", first.member_id, generation, until=0)
    side.ask("describe both", DescribeGroupsRequest([group]), to=to)
    rows = [MemberIdentity(first.member_id, None)]
    side.ask("the first leaves", LeaveGroupRequest(group, "", rows), to=to)
    beat("heartbeat of the second", second_id, generation, until=27)
    beat("heartbeat of who left", first.member_id, generation, until=25)


def static_members(side: Side) -> None:
    """Send requests of a member with an instance id (KIP-345).

    A new member with the same one replaces it.
    """
    joined = _joined(side, "static", instance="i")
    group, member, generation, to = (
        joined.group,
        joined.member_id,
        joined.generation,
        joined.coordinator,
    )
    topic = side.topic("static")
    for label, member_id, instance in (
        ("good", member, "i"),
        ("another instance", member, "j"),
        ("another member", "nobody", "i"),
        ("no instance", member, None),
    ):
        beat = HeartbeatRequest(group, generation, member_id, instance)
        side.each(f"heartbeat, {label}", beat, to=to, first=3)
        sync = SyncGroupRequest(group, generation, member_id, instance, "consumer", "range")
        side.each(f"sync, {label}", sync, to=to, first=3)
        commit = _commit(
            group, (topic, 0, 5, ""), member=(member_id, generation), instance=instance
        )
        for version in side.versions(8):
            if 7 <= version <= NAMES_UNTIL:
                side.ask(f"commit, {label} v{version}", commit, version=version, to=to)
    side.each("describe", DescribeGroupsRequest([group]), to=to)
    side.each("join, another member", _join(group, "nobody", group_instance_id="i"), to=to, first=5)
    request = _join(group, group_instance_id="i")
    answer = side.quiet(request, to=to)
    side.symbols.learn(answer.member_id, "member that came back")
    side.keep_answer("join, back", answer)
    side.each("heartbeat of the fenced", HeartbeatRequest(group, generation, member, "i"), to=to)
    for label, member_id, instance in (
        ("fenced", member, "i"),
        ("unknown instance", "", "j"),
        ("by its instance", "", "i"),
    ):
        rows = [MemberIdentity(member_id, instance)]
        side.ask(f"leave, {label}", LeaveGroupRequest(group, "", rows), to=to)
    side.each("describe, empty", DescribeGroupsRequest([group]), to=to)


def delete_groups(side: Side) -> None:
    group = f"{side.prefix}.away"
    to = side.coordinator(group)
    topic = side.topic("topic")

    def ask(label: str, *names: str, to: int = to) -> None:
        side.each(label, DeleteGroupsRequest(list(names)), to=to)

    none = f"{group}.none"
    ask("unknown", none, to=side.coordinator(none))
    ask("no name", "", to=side.coordinator(""))
    ask("nothing")
    ask("unknown, twice", none, none, to=side.coordinator(none))
    ask("not the coordinator", group, to=to % 3 + 1)
    for version in side.versions(42):
        name = f"{group}{version}"
        at = side.coordinator(name)
        _committed(side, name, (topic, 0, 3, ""))
        side.ask(f"describe before v{version}", DescribeGroupsRequest([name]), to=at)
        side.ask(f"good v{version}", DeleteGroupsRequest([name]), version=version, to=at)
        side.ask(f"again v{version}", DeleteGroupsRequest([name]), version=version, to=at)
        side.ask(f"describe after v{version}", DescribeGroupsRequest([name]), to=at)


def list_groups(side: Side) -> None:
    joined = _joined(side, "listed")
    topic = side.topic("topic")
    empty = f"{side.prefix}.listed.empty"
    _committed(side, empty, (topic, 0, 3, ""))

    def ask(label: str, first: int, states: list[str], types: list[str]) -> None:
        for version in side.versions(16):
            if version < first:
                continue
            for name, group, to in (
                ("member", joined.group, joined.coordinator),
                ("empty", empty, side.coordinator(empty)),
            ):
                request = ListGroupsRequest(states, types)
                answer = side.quiet(request, version=version, to=to)
                # Groups of other scenarios come and go.
                answer.groups = [row for row in answer.groups if row.group_id == group]
                side.keep_answer(f"{label}, {name} v{version}", answer)

    ask("all", 0, [], [])
    for states in (["Stable"], ["Empty"], ["stable"], ["Nonsense"], ["Stable", "Empty"], [""]):
        ask(f"states {states}", 4, states, [])
    for types in (["classic"], ["consumer"], ["Classic"], ["Nonsense"], [""], ["share"]):
        ask(f"types {types}", 5, [], types)


# --- offsets --------------------------------------------------------------------------------------

Row = tuple[str, int, int, str | None]
"""Topic, partition, offset, metadata."""


def _commit(
    group: str, *rows: Row, member: tuple[str, int] = ("", -1), instance: str | None = None
) -> OffsetCommitRequest:
    topics: dict[str, OffsetCommitRequestTopic] = {}
    for topic, partition, offset, text in rows:
        found = topics.setdefault(topic, OffsetCommitRequestTopic(topic))
        found.partitions.append(OffsetCommitRequestPartition(partition, offset, -1, -1, text))
    return OffsetCommitRequest(group, member[1], member[0], instance, -1, list(topics.values()))


NAMES_UNTIL = 9
"""OffsetCommit and OffsetFetch use topic ids above this version."""


def _committed(side: Side, group: str, *rows: Row) -> None:
    request = _commit(group, *rows)

    def code(answer: Any) -> int:
        return int(answer.topics[0].partitions[0].error_code)

    side.retry(request, code, version=8, to=side.coordinator(group))


def offset_commit(side: Side) -> None:
    topic = side.topic("committed", 2)
    group = f"{side.prefix}.simple"
    to = side.coordinator(group)
    _committed(side, group, (topic, 0, 1, ""))

    def ask(label: str, *rows: Row, name: str = group, to: int = to, **fields: Any) -> None:
        def make(version: int) -> Any:
            return _commit(name, *rows, **fields)

        for version in side.versions(8):
            if version <= NAMES_UNTIL and (version >= 7 or "instance" not in fields):
                request = make(version)
                side.ask(f"{label} v{version}", request, version=version, to=to)

    ask("good", (topic, 0, 7, "text"))
    ask("null text", (topic, 0, 7, None))
    ask("offset below nought", (topic, 0, -1, ""))
    ask("far below nought", (topic, 0, -5, ""))
    ask("beyond the end", (topic, 0, 1 << 60, ""))
    ask("text too long", (topic, 0, 7, "t" * 5_000))
    ask("partition that is not there", (topic, 9, 7, ""))
    ask("negative partition", (topic, -1, 7, ""))
    ask("unknown topic", (f"{side.prefix}.none", 0, 7, ""))
    ask("no topic", ("", 0, 7, ""))
    ask("good and bad", (topic, 0, 7, ""), (f"{side.prefix}.none", 0, 7, ""))
    ask("twice", (topic, 0, 7, ""), (topic, 0, 8, ""))
    ask("nothing")
    ask("no group", (topic, 0, 7, ""), name="", to=side.coordinator(""))
    ask("a member of no generation", (topic, 0, 7, ""), member=("m", -1))
    ask("a generation without a member", (topic, 0, 7, ""), member=("", 5))
    ask("a member that is not there", (topic, 0, 7, ""), member=("m", 5))
    none = f"{group}.none"
    ask(
        "an unknown group",
        (topic, 0, 7, ""),
        name=none,
        to=side.coordinator(none),
        member=("m", 5),
    )
    ask("an instance of an empty group", (topic, 0, 7, ""), instance="i")
    ask("not the coordinator", (topic, 0, 7, ""), to=to % 3 + 1)
    topic_id = side.topic_id(topic)
    for label, found in {"good": topic_id, "unknown": bytes(15) + b"\7", "no": bytes(16)}.items():
        for version in side.versions(8):
            if version > NAMES_UNTIL:
                request = _commit(group, ("", 0, 7, ""))
                request.topics[0].topic_id = found
                side.ask(f"{label} id v{version}", request, version=version, to=to)
    joined = _joined(side, "owner")
    at = joined.coordinator
    mine = joined.member_id, joined.generation
    ask("a member", (topic, 0, 7, ""), name=joined.group, to=at, member=mine)
    ask("none", (topic, 0, 7, ""), name=joined.group, to=at)
    old = joined.member_id, joined.generation - 1
    ask("an old generation", (topic, 0, 7, ""), name=joined.group, to=at, member=old)
    other = "m", joined.generation
    ask("another member", (topic, 0, 7, ""), name=joined.group, to=at, member=other)


def offset_fetch(side: Side) -> None:
    topic = side.topic("fetched", 2)
    group = f"{side.prefix}.reads"
    to = side.coordinator(group)
    _committed(side, group, (topic, 0, 7, "text"))

    def ask(
        label: str,
        *rows: tuple[str, list[int]],
        name: str = group,
        to: int = to,
        first: int = 1,
        all_topics: bool = False,
        **fields: Any,
    ) -> None:
        def make(version: int) -> OffsetFetchRequest:
            if version < GROUPS_SINCE:
                topics = None if all_topics else [OffsetFetchRequestTopic(*row) for row in rows]
                return OffsetFetchRequest(name, topics, **fields)
            found = [OffsetFetchRequestTopics(row[0], bytes(16), row[1]) for row in rows]
            one = OffsetFetchRequestGroup(name, topics=None if all_topics else found)
            return OffsetFetchRequest(groups=[one], **fields)

        for version in side.versions(9):
            if first <= version <= NAMES_UNTIL:
                side.ask(f"{label} v{version}", make(version), version=version, to=to)

    ask("good", (topic, [0]))
    ask("nothing committed", (topic, [1]))
    ask("partition that is not there", (topic, [9, -1]))
    ask("unknown topic", (f"{side.prefix}.none", [0]))
    ask("no topic", ("", [0]))
    ask("twice", (topic, [0, 0]))
    ask("the topic twice", (topic, [0]), (topic, [1]))
    ask("no partition", (topic, []))
    ask("nothing")
    ask("all", all_topics=True, first=2)
    none = f"{group}.none"
    at = side.coordinator(none)
    ask("all, unknown group", all_topics=True, first=2, name=none, to=at)
    ask("unknown group", (topic, [0]), name=none, to=at)
    ask("no group", (topic, [0]), name="", to=side.coordinator(""))
    ask("stable only", (topic, [0]), require_stable=True, first=7)
    ask("not the coordinator", (topic, [0]), to=to % 3 + 1)
    topic_id = side.topic_id(topic)
    for label, found in {"good": topic_id, "unknown": bytes(15) + b"\7", "no": bytes(16)}.items():
        for version in side.versions(9):
            if version > NAMES_UNTIL:
                row = OffsetFetchRequestTopics("", found, [0, 1, 9])
                request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group, topics=[row])])
                side.ask(f"{label} id v{version}", request, version=version, to=to)
    for version in side.versions(9):
        if GROUPS_SINCE <= version <= NAMES_UNTIL:
            rows = [OffsetFetchRequestTopics(topic, bytes(16), [0])]
            one = OffsetFetchRequestGroup(group, topics=rows)
            asked = {"two groups": [one, one], "no groups": []}
            if version >= 9:
                named = OffsetFetchRequestGroup(group, "m", 3, rows)
                asked["a member that is not there"] = [named]
            for label, groups in asked.items():
                request = OffsetFetchRequest(groups=groups)
                side.ask(f"{label} v{version}", request, version=version, to=to)


def offset_delete(side: Side) -> None:
    topic = side.topic("dropped", 2)
    group = f"{side.prefix}.drops"
    to = side.coordinator(group)
    _committed(side, group, (topic, 0, 7, ""))

    def ask(label: str, *rows: tuple[str, list[int]], name: str = group, to: int = to) -> None:
        topics = [
            OffsetDeleteRequestTopic(row[0], list(map(OffsetDeleteRequestPartition, row[1])))
            for row in rows
        ]
        side.each(label, OffsetDeleteRequest(name, topics), to=to)

    none = f"{group}.none"
    ask("unknown group", (topic, [0]), name=none, to=side.coordinator(none))
    ask("no group", (topic, [0]), name="", to=side.coordinator(""))
    ask("unknown topic", (f"{side.prefix}.none", [0]))
    ask("partition that is not there", (topic, [9, -1]))
    ask("nothing committed", (topic, [1]))
    ask("twice", (topic, [1, 1]))
    ask("nothing")
    ask("no partition", (topic, []))
    ask("not the coordinator", (topic, [0]), to=to % 3 + 1)
    ask("good", (topic, [0]))
    joined = _joined(side, "holds")
    ask("a group with members", (topic, [0]), name=joined.group, to=joined.coordinator)


SCENARIOS = (
    join_group,
    membership,
    rebalance,
    two_members,
    static_members,
    delete_groups,
    list_groups,
    offset_commit,
    offset_fetch,
    offset_delete,
)
