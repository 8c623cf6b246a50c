"""What the members of a group are to read: computed from its state and this server's catalog.

Small groups are computed at once. What takes longer is computed in a thread, one group at a time,
from copies: the group may change meanwhile, and then the result is not used.

Must not know: Raft, sessions, requests.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from vdl.kafka.groups.assignors import ASSIGNORS, UNIFORM, AssignableTopic, Candidate
from vdl.kafka.groups.topic_patterns import TopicPatterns
from vdl.state.catalog import Catalog, TopicInfo
from vdl.state.commands import AssignTargets, ResolvedPattern, SubscribedTopic
from vdl.state.modern.group import ModernGroup, changed_targets
from vdl.state.modern.member import ModernMember
from vdl.state.modern.partitions import Partitions

_NOTHING: Mapping[str, frozenset[str]] = MappingProxyType({})
INLINE_WORK_MAX = 4_000
"""Members, partitions and matches of a pattern beyond which a group is computed in a thread: some
milliseconds."""


@dataclass(frozen=True, slots=True)
class Request:
    """A group at one epoch, and what there is to subscribe to: copies, for any thread."""

    group_id: str
    epoch: int
    assignment_epoch: int
    members: list[ModernMember]
    targets: dict[str, Partitions]
    known: dict[str, SubscribedTopic]
    known_patterns: dict[str, list[str]]
    assignor: str
    topics: Mapping[str, TopicInfo]
    """All that there are if a member subscribes by a pattern, else those that are named."""
    racks: Mapping[int, tuple[str, ...]]
    """Partition's group id → racks of its replicas; empty when no member has a rack."""
    gone: frozenset[str]
    """Of what the group knows, what is deleted, and not only unheard of here."""
    hidden: Mapping[str, frozenset[str]]
    """Member → topics that it may not describe: its pattern does not stand for them."""
    hidden_before: Mapping[str, frozenset[str]]
    """What `hidden` was when the targets were computed last."""

    @property
    def patterns(self) -> set[str]:
        """What members subscribe by."""
        return {member.pattern for member in self.members if member.pattern}


def request_of(
    group: ModernGroup,
    catalog: Catalog,
    hidden: Mapping[str, frozenset[str]] = _NOTHING,
    hidden_before: Mapping[str, frozenset[str]] = _NOTHING,
) -> Request:
    """What has to be known to compute the targets of a group. Where thousands of groups are
    computed because a topic came, none of those that name theirs costs a look at all topics."""
    has_patterns = any(member.pattern for member in group.members.values())
    topics = dict(catalog.topics) if has_patterns else _named(group, catalog)
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
        hidden=hidden,
        hidden_before=hidden_before,
    )


def _named(group: ModernGroup, catalog: Catalog) -> dict[str, TopicInfo]:
    """The topics that members name, or that the group knows, as far as they are there."""
    names = set(group.topics).union(*(member.topics for member in group.members.values()))
    return {name: topic for name in names if (topic := catalog.topics.get(name)) is not None}


def assignor_of(group: ModernGroup) -> str:
    """What most members ask for; of equals the first by name; by default `uniform`."""
    votes = Counter(member.assignor for member in group.members.values() if member.assignor)
    return min(votes, key=lambda name: (-votes[name], name)) if votes else UNIFORM


def work_of(request: Request, patterns: TopicPatterns) -> int:
    """How much there is to do, about: see `INLINE_WORK_MAX`."""
    names = {name for member in request.members for name in member.topics}
    total = len(request.members) + patterns.unseen(request.patterns, request.topics.keys())
    for name in names | {name for names in request.known_patterns.values() for name in names}:
        topic = request.topics.get(name)
        if topic is not None:
            total += len(topic.partitions)
    return total


def targets_of(request: Request, patterns: TopicPatterns) -> AssignTargets | None:
    """The command that gives members their targets; None: all is as it was."""
    names = request.topics.keys() | (request.known.keys() - request.gone)
    resolved = {pattern: patterns.resolve(pattern, names) for pattern in request.patterns}
    by_name: dict[str, SubscribedTopic] = {}
    members = []
    for member in request.members:
        mine = set(member.topics)
        if member.pattern:
            # Of a topic that its member may not see nobody would read what the member is assigned.
            unseen = request.hidden.get(member.member_id, frozenset())
            mine.update(name for name in resolved[member.pattern] if name not in unseen)
        for name in mine - by_name.keys():
            found = _subscribed(request, name)
            if found is not None:
                by_name[name] = found
        members.append((member, {name for name in mine if name in by_name}))
    is_known = (
        by_name == request.known
        and resolved == request.known_patterns
        and request.hidden == request.hidden_before
    )
    if is_known and request.epoch == request.assignment_epoch:
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
    return AssignTargets(
        group_id=request.group_id,
        group_epoch=request.epoch,
        next_epoch=request.epoch + (request.epoch == request.assignment_epoch),
        topics=[by_name[name] for name in sorted(by_name)],
        patterns=[ResolvedPattern(pattern, resolved[pattern]) for pattern in sorted(resolved)],
        targets=changed_targets(request.targets, targets),
    )


def _subscribed(request: Request, name: str) -> SubscribedTopic | None:
    """The topic of that name. What the group knows of it stands if this server's catalog lags
    behind the one that was seen before: another server led the coordinator then."""
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
