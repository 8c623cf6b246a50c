"""Steps from a group's present members to those listed in the catalog.

The catalog decides on the members; the group's leader executes it, by ordinary membership changes
of one replica each (thesis §4.1): unwanted replicas are removed, new ones are added as learners,
and become voters once they have caught up (§4.2.1). The next leader continues where the last one
stopped: the only state is the group's own configuration.

A replica that is moved, not lost, is *leaving*: it holds acknowledged records, and stays until all
wanted members are voters. Replicas added by a reassignment become voters together, when all of them
have caught up, so that the group does not need more votes than necessary for the time of a copy.

The catalog applied at the leader may for a while be older than the members, after a restart or if
it lags. A member with a later number than the wanted replica of the same server shows that; then
the leader waits.

An *observer* is a wanted replica that does not vote: a server that was added to the cluster has
such a replica of the catalog. It is added as a learner and stays one, so no majority depends on it.
A leaving voter of the catalog becomes an observer instead of being removed.

Does not depend on the reason of a replacement, messages or time.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from ids import NodeId
from raft.node import RawNode
from raft.types import NONE, ConfChange, ConfChangeSingle, ConfChangeType
from vdl.logstream.group.replica_ids import server_of


def next_change(
    node: RawNode,
    wanted: Collection[NodeId],
    has_caught_up: Callable[[NodeId], bool],
    *,
    leaving: Sequence[NodeId] = (),
    adding: Collection[NodeId] = (),
    observing: Collection[NodeId] = (),
    may_come: Callable[[NodeId], bool] = lambda member: True,
) -> ConfChangeSingle | None:
    """Return the leader's next step towards the wanted voters; None if there is nothing to do now.

    `has_caught_up`: returns True if a member has, the leader included (`rounds.py`). `leaving`:
    members that may stay for the time being. `adding`: those of `wanted` that a reassignment adds.
    `observing`: wanted replicas that are no voters. `may_come`: returns True if a replica can be
    added now.
    """
    membership = node.membership
    if membership.is_joint or node.membership_changing:
        return None
    if node.id not in wanted and node.id not in leaving:
        # A leader that is to be replaced cannot do it: another one will.
        return None
    members = membership.members()
    newest = {server_of(member): member for member in sorted(members)}
    listed = (*wanted, *leaving, *observing)
    if any(newest.get(server_of(replica), NONE) > replica for replica in listed):
        return None
    for member in sorted(members):
        if member in observing and member in membership.learners:
            continue
        # A leaving learner was cancelled, and nothing depends on it.
        if member not in wanted and (member not in leaving or member in membership.learners):
            return ConfChangeSingle(ConfChangeType.REMOVE_NODE, member)
    for member in (*sorted(wanted), *sorted(observing)):
        if member not in members and may_come(member):
            return ConfChangeSingle(ConfChangeType.ADD_LEARNER_NODE, member)
    have_come = all(has_caught_up(member) for member in adding)
    for member in sorted(membership.learners.difference(observing)):
        if has_caught_up(member) and (have_come or member not in adding):
            return ConfChangeSingle(ConfChangeType.ADD_NODE, member)
    if node.id in wanted and have_come and can_take_over(node, wanted, has_caught_up):
        # Lagging replicas first: they are of no use.
        for member in sorted(leaving, key=lambda member: (has_caught_up(member), member)):
            if member in membership.incoming and member in observing:
                return ConfChangeSingle(ConfChangeType.ADD_LEARNER_NODE, member)
            if member in members and member not in observing:
                return ConfChangeSingle(ConfChangeType.REMOVE_NODE, member)
    return None


def can_take_over(
    node: RawNode, wanted: Collection[NodeId], has_caught_up: Callable[[NodeId], bool]
) -> bool:
    """Return True if the group can go on without leaving members.

    All wanted replicas are voters then, and most of them have caught up.
    """
    caught_up = sum(map(has_caught_up, wanted))
    return node.membership.incoming.issuperset(wanted) and 2 * caught_up > len(wanted)


def as_change(single: ConfChangeSingle) -> ConfChange:
    """Return one step as the change in its entry."""
    return ConfChange(changes=(single,))
