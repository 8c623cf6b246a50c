"""Answers of `vdl explain`, from what the user may see.

Events and problems come over the admin plane with the certificate of this server, so an answer is
for users who may describe the cluster and its configuration, as in `cluster_watch.py`. It is made
from nothing that names a topic, consumer group or transactional id that the user may not describe.
The state of partitions is that of the user's own questions to the listeners, for the partitions of
the answer only: with thousands, the admin plane would describe all.

Does not depend on HTTP.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

from ids import GroupId, NodeId, Offset, ServerId, Term
from rpc.admin import ConsumerGroup, Event, GroupStatus, Role, ServerStatus
from vdl.console.cluster_watch import ClusterWatch, is_visible, led_elsewhere, may_see_all
from vdl.console.parameters import Parameters
from vdl.console.problems import ConsoleError, check_code
from vdl.console.question import EARLIEST, FIND_COORDINATOR, LATEST, Question, Where
from vdl.console.topics import TOPIC_RESOURCE, settings
from vdl.errors import ErrorCode
from vdl.events import topic_of
from vdl.kafka.wire.find_coordinator import FindCoordinatorRequest
from vdl.server.explain.facts import REPLICA_NUMBER_BITS, Facts, ServerFacts
from vdl.server.explain.questions import About, explain
from vdl.server.explain.questions import Question as Why
from vdl.server.problem import Problem

EXPLANATION: Final = ("about", "topic", "partition", "group", "api", "server")
_ABOUT: Final = ("cluster", "server", "slow", "partition", "leader", "group", "lag")
_SERVER_MAX: Final = (1 << 31) - 1
_PARTITION_MAX: Final = (1 << 31) - 1
_FINDINGS_MAX: Final = 50
_PARTITIONS_MAX: Final = 2_000
"""Partitions of a group whose ends are asked for."""
_GROUP, _TRANSACTION = 0, 1
"""Kinds of keys of FindCoordinator."""


def explanation(question: Question, watch: ClusterWatch, given: Parameters) -> dict[str, Any]:
    """Answer `GET explanation`."""
    why = _why(given)
    described = question.described_cluster()
    check_code(described.error_code, "the cluster", described.error_message)
    if not may_see_all(described):
        raise ConsoleError(
            "forbidden",
            "explanations: not permitted (DESCRIBE and DESCRIBE_CONFIGS of the cluster are needed)",
        )
    if why.about in (About.GROUP, About.LAG):
        question.coordinator(why.group)  # refuses groups that the user may not describe
    topics = _topics(question, why)
    found = [
        _server(question, watch, broker, why)
        for broker in sorted(described.brokers, key=lambda one: int(one.broker_id))
    ]
    facts = Facts(time.time_ns() // 1_000_000, found)
    if why.about is About.LAG:
        topics = _described(question, _topics_of(facts, why.group))
    facts.replicas = {
        _name(topic, row): tuple(map(ServerId, row.replica_nodes))
        for topic in topics
        for row in topic.partitions
    }
    _hide(question, facts, topics, why)
    _add_partitions(question, facts, topics, why)
    return {"explanation": _without_fields(explain(why, facts))}


def _why(given: Parameters) -> Why:
    """Return the question. Raises ConsoleError unless it has just the parameters that it needs."""
    about = About(given.choice("about", _ABOUT))
    is_partition = about in (About.PARTITION, About.LEADER)
    return Why(
        about,
        topic=given.text("topic", most=249) if is_partition else "",
        partition=given.integer("partition", 0, _PARTITION_MAX) if is_partition else 0,
        group=given.text("group") if about in (About.GROUP, About.LAG) else "",
        api=given.text("api", "", most=64) if about is About.SLOW else "",
        server=given.integer("server", 1, _SERVER_MAX) if about is About.SERVER else 0,
    )


def _topics(question: Question, why: Why) -> list[Any]:
    """Return the topics of which facts are used, as Metadata has them."""
    if why.about in (About.PARTITION, About.LEADER):
        return [question.topic(why.topic)]
    if why.about in (About.CLUSTER, About.SERVER):
        return [one for one in question.metadata(None).topics if not one.error_code]
    return []


def _described(question: Question, names: Collection[str]) -> list[Any]:
    """Return those of the topics that the user may describe."""
    if not names:
        return []
    return [one for one in question.metadata(sorted(names)).topics if not one.error_code]


def _name(topic: Any, row: Any) -> str:
    return f"{topic.name}-{row.partition_index}"


# --- facts ----------------------------------------------------------------------------------------
def _server(question: Question, watch: ClusterWatch, broker: Any, why: Why) -> ServerFacts:
    found = ServerFacts(ServerId(broker.broker_id), f"{broker.host}:{broker.port}")
    if broker.is_fenced:
        found.unreachable = "the controller has no connection to it"
        return found
    return watch.fill(question, found, topic=why.topic, group=why.group)


def _topics_of(facts: Facts, group: str) -> set[str]:
    """Return the topics of a group's offsets and assignments."""
    known = facts.group(group)
    if known is None:
        return set()
    _, found = known
    assigned = {topic_of(place) for member in found.members for place in member.partitions}
    return assigned | {one.topic for one in found.offsets}


def _add_partitions(question: Question, facts: Facts, topics: Iterable[Any], why: Why) -> None:
    """Add the state of the partitions that the answer is about, each as its leader's report."""
    rows = {(topic.name, row.partition_index): row for topic in topics for row in topic.partitions}
    if why.about in (About.PARTITION, About.LEADER):
        rows = {place: row for place, row in rows.items() if place[1] == why.partition}
        _add(facts, rows, {}, {}, _min_in_sync(question, why.topic))
    elif why.about is About.LAG:
        known = facts.group(why.group)
        wanted = set() if known is None else _places(known[1])
        some = sorted(place for place in rows if place in wanted)[:_PARTITIONS_MAX]
        leaders = {place: int(rows[place].leader_id) for place in some}
        starts, ends = question.offsets(leaders, EARLIEST), question.offsets(leaders, LATEST)
        _add(facts, {place: rows[place] for place in some}, starts, ends, 1)


def _places(group: ConsumerGroup) -> set[Where]:
    """Return the partitions that a group reads or has read."""
    found = {(one.topic, one.partition) for one in group.offsets}
    for member in group.members:
        for place in member.partitions:
            topic, _, number = place.rpartition("-")
            found.add((topic, int(number)))
    return found


def _add(
    facts: Facts,
    rows: Mapping[Where, Any],
    starts: Mapping[Where, int | None],
    ends: Mapping[Where, int | None],
    in_sync_min: int,
) -> None:
    for (topic, number), row in rows.items():
        leader = facts.server(row.leader_id)
        if leader is None:
            continue
        if leader.status is None:
            leader.status = ServerStatus(ServerId(leader.id))
        place = topic, number
        leader.status.groups.append(
            GroupStatus(
                GroupId(-1), f"{topic}-{number}", _replica(leader.id), Role.LEADER,
                Term(row.leader_epoch), _replica(leader.id),
                log_start_offset=Offset(starts.get(place) or 0),
                high_watermark=Offset(ends.get(place) or 0),
                voters=list(map(_replica, row.replica_nodes)),
                in_sync=list(row.isr_nodes),
                in_sync_min=min(in_sync_min, len(row.replica_nodes)),
            )
        )  # fmt: skip


def _replica(server: int) -> NodeId:
    return NodeId(server << REPLICA_NUMBER_BITS)


def _min_in_sync(question: Question, topic: str) -> int:
    """Return `min.insync.replicas` of a topic, 1 if the user may not see it."""
    try:
        rows = settings(question, TOPIC_RESOURCE, topic)
    except ConsoleError as error:
        if error.kind != "forbidden":
            raise
        return 1
    return next((int(row["value"]) for row in rows if row["name"] == "min.insync.replicas"), 1)


# --- what the user may not see --------------------------------------------------------------------
def _hide(question: Question, facts: Facts, described: Iterable[Any], why: Why) -> None:
    """Take out of the facts what names a topic, group or transactional id that is not the user's
    to describe. `described`: topics that are."""
    topics = {topic.name for topic in described}
    events = {server.id: server.events.events for server in facts.servers if server.events}
    fields = {id(one): _fields(one) for some in events.values() for one in some}
    groups = _permitted(question, _GROUP, {one.get("group") for one in fields.values()})
    transactions = _permitted(
        question, _TRANSACTION, {one.get("transactional_id") for one in fields.values()}
    )
    allowed = {"topic": topics, "group": groups, "transactional_id": transactions}

    def may_see(event: Event) -> bool:
        found = fields[id(event)]
        place = str(found.get("partition") or "")
        return (not place or _is_own(place) or topic_of(place) in topics) and all(
            name not in found or found[name] in some for name, some in allowed.items()
        )

    led = {
        _name(topic, row) for topic in described for row in topic.partitions if row.leader_id >= 0
    }
    for server in facts.servers:
        if server.status is not None:
            server.status.groups = [one for one in server.status.groups if _is_own(one.name)]
            problems = [(server.id, one) for one in server.problems if is_visible(one, topics)]
            if why.about is About.CLUSTER:
                problems = led_elsewhere(problems, led)
            server.status.problems = list(map(str, _some([one for _, one in problems])))
        if server.events is not None:
            server.events.events = list(filter(may_see, server.events.events))
            server.events.groups = [
                _shown(one, topics) for one in server.events.groups if one.name == why.group
            ]


def _some(problems: Iterable[Problem]) -> list[Problem]:
    """Return the first problems of each kind: of one kind there may be as many as partitions."""
    counts: Counter[str] = Counter()
    found = []
    for one in problems:
        counts[one.kind] += 1
        if counts[one.kind] <= _FINDINGS_MAX:
            found.append(one)
    return found


def _is_own(name: str) -> bool:
    """Return True for the catalog and coordinators, which are no topic's."""
    return name == "catalog" or (name.startswith("coordinator-") and topic_of(name) != name)


def _fields(event: Event) -> dict[str, Any]:
    try:
        found = json.loads(event.fields)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _permitted(question: Question, kind: int, names: Iterable[Any]) -> set[str]:
    """Return the groups or transactional ids that the user may describe."""
    asked = sorted(name for name in set(names) if isinstance(name, str) and name)
    if not asked:
        return set()
    request = FindCoordinatorRequest(key_type=kind, coordinator_keys=asked)
    refusals = (
        ErrorCode.GROUP_AUTHORIZATION_FAILED,
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    )
    answer = question.ask(FIND_COORDINATOR, request)
    return {one.key for one in answer.coordinators if one.error_code not in refusals}


def _shown(group: ConsumerGroup, topics: Collection[str]) -> ConsumerGroup:
    return replace(
        group,
        offsets=[one for one in group.offsets if one.topic in topics],
        members=[
            replace(
                member, partitions=[one for one in member.partitions if topic_of(one) in topics]
            )
            for member in group.members
        ],
    )


def _without_fields(found: dict[str, Any]) -> dict[str, Any]:
    """Return an answer as a page has it: a bounded number of findings, and of events only their
    sentences."""
    del found["also"][_FINDINGS_MAX:]
    for one in (found, *found["also"]):
        for seen in one["evidence"]:
            del seen["fields"]
    return found
