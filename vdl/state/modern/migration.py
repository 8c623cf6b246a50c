"""Conversion between the classic and the newer group protocol without restarts (KIP-848).

Upgrade: a member of the newer protocol joins a classic group of consumers. The group becomes one of
the newer kind. Its classic members keep their ids, their partitions and their generation, which is
an epoch from then on, and continue to use their protocol. Their heartbeat's answer makes them
rejoin when their assignment changes, JoinGroup is their step towards the target, and SyncGroup
returns their assignment.

Downgrade: the last member of the newer protocol leaves. The others form a classic group again, in
their generation, which rebalances: the answers to their heartbeats make them rejoin, and until then
they keep their partitions and commit.

Does not depend on the catalog (the proposer supplies the topics), or on requests.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from vdl.state.commands import JoinGroup, SubscribedTopic
from vdl.state.consumer_group import ConsumerGroup, Member
from vdl.state.modern.group import ModernGroup
from vdl.state.modern.member import ClassicSide, ModernMember
from vdl.state.modern.partitions import Partitions, Place, partitions_of
from vdl.state.subscription import (
    NamedPartitions,
    Subscription,
    read_assignment,
    read_subscription,
    write_assignment,
)

CONSUMER_PROTOCOL = "consumer"
"""Protocol type of groups whose members name the topics they subscribe to."""


def upgraded(
    classic: ConsumerGroup, topics: Iterable[SubscribedTopic], now_ms: int
) -> ModernGroup | None:
    """Return the classic group converted to the newer kind.

    None if it is not a group of consumers, or if a member's bytes cannot be parsed.
    """
    if classic.protocol_type != CONSUMER_PROTOCOL:
        return None
    by_name = {topic.name: topic for topic in topics}
    group = ModernGroup(classic.group_id, now_ms)
    # The generation is 0 if the group has not had its first one yet.
    epoch = max(1, classic.generation)
    group.epoch = group.assignment_epoch = epoch
    taken: set[Place] = set()
    for member in classic.members.values():
        # Without a generation no protocol is chosen yet; all protocols list the same topics.
        metadata = member.metadata(classic.protocol_name) or member.protocols[0].metadata
        subscription = read_subscription(metadata)
        assigned = read_assignment(member.assignment)
        if subscription is None or assigned is None:
            return None
        if not member.assignment:
            # Between two generations: the subscription lists the partitions of the previous one.
            assigned = [(name, list(indexes)) for name, indexes in subscription.owned]
        # A client's assignor may give one partition to two members.
        places = places_by_id(assigned, by_name) - taken
        taken |= places
        target = partitions_of(places)
        group.put(
            ModernMember(
                member_id=member.member_id,
                instance_id=member.group_instance_id,
                rack_id=subscription.rack,
                client_id=member.client_id,
                client_host=member.client_host,
                rebalance_timeout_ms=member.rebalance_timeout_ms,
                topics=tuple(sorted(subscription.topics)),
                pattern=None,
                assignor=None,
                epoch=epoch,
                previous_epoch=epoch,
                assigned=target,
                classic=ClassicSide(member.session_timeout_ms, member.protocols),
            )
        )
        group.set_target(member.member_id, target)
    names = {name for member in group.members.values() for name in member.topics}
    group.set_topics([by_name[name] for name in sorted(names & by_name.keys())], [])
    return group


def downgraded(group: ModernGroup, generation: int, now_ms: int) -> ConsumerGroup:
    """Return the group of classic members, stable in `generation`. It must rebalance next."""
    classic = ConsumerGroup(group.group_id, now_ms)
    classic.generation = generation
    classic.protocol_type = CONSUMER_PROTOCOL
    for member in group.members.values():
        assert member.classic is not None, member.member_id
        classic.add(
            Member(
                member_id=member.member_id,
                group_instance_id=member.instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                session_timeout_ms=member.classic.session_timeout_ms,
                rebalance_timeout_ms=member.rebalance_timeout_ms,
                protocols=member.classic.protocols,
                assignment=told_assignment(group, member),
            )
        )
    classic.leader = next(iter(classic.members))
    classic.protocol_name = classic.select_protocol()
    return classic


def subscription_of(command: JoinGroup) -> Subscription | None:
    """Return a classic member's subscription, from its first protocol: all list the same topics."""
    return read_subscription(command.protocols[0].metadata) if command.protocols else None


def joining(
    member: ModernMember | None, member_id: str, command: JoinGroup, subscription: Subscription
) -> ModernMember:
    """Return a classic member updated by its join."""
    classic = ClassicSide(command.session_timeout_ms, command.protocols)
    topics = tuple(sorted(subscription.topics))
    if member is None:
        return ModernMember(
            member_id=member_id,
            instance_id=command.group_instance_id,
            rack_id=subscription.rack,
            client_id=command.client_id,
            client_host=command.client_host,
            rebalance_timeout_ms=command.rebalance_timeout_ms,
            topics=topics,
            pattern=None,
            assignor=None,
            classic=classic,
        )
    return msgspec.structs.replace(
        member,
        member_id=member_id,
        rack_id=subscription.rack or member.rack_id,
        client_id=command.client_id,
        client_host=command.client_host,
        rebalance_timeout_ms=command.rebalance_timeout_ms,
        topics=topics,
        pattern=None,
        classic=classic,
    )


def owned_by(
    subscription: Subscription, topics: Mapping[str, SubscribedTopic]
) -> Partitions | None:
    """Return the partitions that the member reports as owned.

    None if it reports a topic that has no subscribers any more: it has not revoked those
    partitions.
    """
    if any(name not in topics for name, _ in subscription.owned):
        return None
    return partitions_of(
        (topics[name].topic_id, index) for name, indexes in subscription.owned for index in indexes
    )


def supports(group: ModernGroup, protocols: Iterable[str]) -> bool:
    """Return True if a classic member with these protocols may join.

    All classic members must share a protocol, so that the group can become a classic one again.
    """
    common = set(protocols)
    for member in group.members.values():
        if member.classic is not None:
            common &= {protocol.name for protocol in member.classic.protocols}
    return bool(common)


def places_by_id(named: NamedPartitions, topics: Mapping[str, SubscribedTopic]) -> set[Place]:
    """Return the partitions, by topic id, that exist in `topics`."""
    return {
        (topics[name].topic_id, index)
        for name, indexes in named
        if name in topics
        for index in indexes
        if 0 <= index < topics[name].partitions
    }


def protocol_of(member: ModernMember) -> str:
    """Return the assignment strategy to report to a classic member; it has no effect."""
    assert member.classic is not None, member.member_id
    return member.classic.protocols[0].name


def told_assignment(group: ModernGroup, member: ModernMember) -> bytes:
    """Return the assignment to report to a classic member, by topic names."""
    names = {topic.topic_id: topic.name for topic in group.topics.values()}
    return write_assignment(
        [(names[topic_id], part) for topic_id, part in member.assigned if topic_id in names]
    )
