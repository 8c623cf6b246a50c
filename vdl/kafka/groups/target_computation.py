"""Computation of a group's targets, from its state and this server's catalog.

Small groups are computed at once. Larger ones are computed in a thread, one group at a time, from
copies: if the group changes meanwhile, the result is not used.

Does not depend on Raft, sessions or requests.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from vdl.kafka.groups.assignors import ASSIGNORS, UNIFORM, AssignableTopic, Candidate
from vdl.kafka.groups.pattern_subscriptions import Matched
from vdl.state.catalog import Catalog, TopicInfo
from vdl.state.commands import AssignTargets, ResolvedPattern, SubscribedTopic
from vdl.state.modern.group import ModernGroup, changed_targets
from vdl.state.modern.member import ModernMember
from vdl.state.modern.partitions import Partitions

_NO_TOPICS: Mapping[str, TopicInfo] = MappingProxyType({})
_NOTHING: Mapping[str, frozenset[str]] = MappingProxyType({})
INLINE_WORK_MAX = 4_000
"""Members, partitions and matched names beyond which a group is computed in a thread: some
milliseconds."""


@dataclass(frozen=True, slots=True)
class Request:
    """A group at one epoch, and the topics it may subscribe to: copies, for any thread."""

    group_id: str
    epoch: int
    assignment_epoch: int
    members: list[ModernMember]
    targets: dict[str, Partitions]
    known: dict[str, SubscribedTopic]
    known_patterns: dict[str, list[str]]
    assignor: str
    topics: Mapping[str, TopicInfo]
    """Topics that members name, that their patterns match, or that the group knows."""
    racks: Mapping[int, tuple[str, ...]]
    """Partition's group id → racks of its replicas; empty when no member has a rack."""
    gone: frozenset[str]
    """Topics known to the group that are deleted, not merely unknown to this server yet."""
    matched: Mapping[str, tuple[str, ...]]
    """Member → names that its pattern matches and that it may see, ascending."""
    hidden: Mapping[str, frozenset[str]]
    """Member → topics that it may not describe."""
    hidden_before: Mapping[str, frozenset[str]]
    """Value of `hidden` when the targets were last computed."""
    found_no_room: bool
    """True if the group has other targets than were computed last, for want of room."""


def request_of(
    group: ModernGroup,
    catalog: Catalog,
    own_topics: Mapping[str, TopicInfo] = _NO_TOPICS,
    matched: Matched | None = None,
    *,
    hidden_before: Mapping[str, frozenset[str]] = _NOTHING,
    found_no_room: bool = False,
) -> Request:
    """Collect the facts that a group's targets follow from; unrelated topics are left out.
    `own_topics`: Kafka's internal topics. `matched`: None if no member has a pattern."""
    matched = matched or Matched()
    names = set(group.topics).union(*(member.topics for member in group.members.values()))
    names.update(*_distinct(matched.names.values()))
    topics = {
        name: topic
        for name in names
        if (topic := catalog.topics.get(name) or own_topics.get(name)) is not None
    }
    has_racks = any(member.rack_id for member in group.members.values())
    return Request(
        group_id=group.group_id,
        epoch=group.epoch,
        assignment_epoch=group.assignment_epoch,
        members=list(group.members.values()),
        targets=dict(group.targets),
        known=dict(group.topics),
        known_patterns=dict(group.patterns),
        assignor=assignor_of(group),
        topics=topics,
        racks=_racks(catalog) if has_racks else {},
        gone=frozenset(
            name for name, topic in group.topics.items() if catalog.has_deleted(topic.last_group)
        ),
        matched=matched.names,
        hidden=matched.hidden,
        hidden_before=hidden_before,
        found_no_room=found_no_room,
    )


def _distinct(many: Iterable[tuple[str, ...]]) -> Iterable[tuple[str, ...]]:
    """Return each of them once. Members with one pattern share one tuple."""
    return {id(one): one for one in many}.values()


def assignor_of(group: ModernGroup) -> str:
    """Return the assignor that most members request; of equals the first by name; by default
    `uniform`."""
    votes = Counter(member.assignor for member in group.members.values() if member.assignor)
    return min(votes, key=lambda name: (-votes[name], name)) if votes else UNIFORM


def work_of(request: Request) -> int:
    """Return the approximate amount of work: see `INLINE_WORK_MAX`."""
    total = len(request.members) + sum(map(len, _distinct(request.matched.values())))
    for topic in request.topics.values():
        total += len(topic.partitions)
    return total


def targets_of(request: Request) -> AssignTargets | None:
    """Return the command that gives members their targets; None if nothing changed."""
    by_pattern: dict[str, list[tuple[str, ...]]] = {}
    by_name: dict[str, SubscribedTopic] = {}
    members = []
    for member in request.members:
        mine = set(member.topics)
        if member.pattern:
            matched = request.matched.get(member.member_id, ())
            by_pattern.setdefault(member.pattern, []).append(matched)
            mine.update(matched)
        for name in mine - by_name.keys():
            found = _subscribed(request, name)
            if found is not None:
                by_name[name] = found
        members.append((member, {name for name in mine if name in by_name}))
    resolved = {
        pattern: sorted(set[str]().union(*_distinct(names)))
        for pattern, names in by_pattern.items()
    }
    is_known = (
        by_name == request.known
        and resolved == request.known_patterns
        and request.hidden == request.hidden_before
        and request.epoch == request.assignment_epoch
    )
    if is_known and not request.found_no_room:
        return None
    topics = {
        topic.topic_id: AssignableTopic(topic.topic_id, topic.partitions, _racks_of(request, topic))
        for topic in by_name.values()
    }
    candidates = [
        Candidate(
            member.member_id,
            member.instance_id,
            member.rack_id,
            frozenset(by_name[name].topic_id for name in mine),
            request.targets.get(member.member_id, ()),
        )
        for member, mine in members
    ]
    targets = ASSIGNORS[request.assignor](candidates, topics)
    changed = changed_targets(request.targets, targets)
    if is_known and not changed:
        return None
    return AssignTargets(
        group_id=request.group_id,
        group_epoch=request.epoch,
        next_epoch=request.epoch + (request.epoch == request.assignment_epoch),
        topics=[by_name[name] for name in sorted(by_name)],
        patterns=[ResolvedPattern(pattern, resolved[pattern]) for pattern in sorted(resolved)],
        targets=changed,
    )


def _subscribed(request: Request, name: str) -> SubscribedTopic | None:
    """Return the topic of that name. The group's own knowledge counts if this server's catalog lags
    behind the one of the server that led the coordinator before."""
    topic = request.topics.get(name)
    known = request.known.get(name)
    if topic is None:
        return None if name in request.gone else known
    last_group = topic.partitions[-1]
    if known is not None and last_group < known.last_group:
        return known
    return SubscribedTopic(name, topic.topic_id, len(topic.partitions), last_group)


def _racks(catalog: Catalog) -> dict[int, tuple[str, ...]]:
    racks = {server_id: server.rack for server_id, server in catalog.servers.items()}
    if not any(racks.values()):
        return {}
    return {
        group_id: tuple(racks.get(replica.server_id, "") for replica in group.replicas)
        for group_id, group in catalog.groups.items()
    }


def _racks_of(request: Request, topic: SubscribedTopic) -> list[frozenset[str]]:
    found = request.topics.get(topic.name)
    if not request.racks or found is None or len(found.partitions) != topic.partitions:
        return []
    return [frozenset(filter(None, request.racks.get(group, ()))) for group in found.partitions]
