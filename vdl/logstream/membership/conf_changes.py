"""From the members a group has to those the catalog says it is to have, one step at a time.

The catalog decides who the members are to be; the group's leader brings it about, by ordinary
membership changes of one replica each (thesis §4.1): whoever is to go is removed, whoever is to
come is added as a learner, and made a voter once it has caught up (§4.2.1). Whatever the last
leader got done, the next one goes on from there: nothing is kept but the group's own configuration.

Who is to go because it is moved, and not because it is lost, is *leaving*: it holds what was
acknowledged, and stays until all who are to be members have its place. Those that a reassignment
adds become voters together, when all of them have caught up, so that a group does not wait for
more voters than it needs to for as long as a copy takes.

The catalog applied at the leader may for a while be older than the members: it may have restarted,
or lag. Members with a later number than the wanted one of the same server tell; then it waits.

Must not know: why a member is replaced, messages, time.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from ids import NodeId
from raft.node import RawNode
from raft.types import NONE, ConfChange, ConfChangeSingle, ConfChangeType
from vdl.logstream.group.outbox import server_of


def next_change(
    node: RawNode,
    wanted: Collection[NodeId],
    has_caught_up: Callable[[NodeId], bool],
    *,
    leaving: Sequence[NodeId] = (),
    adding: Collection[NodeId] = (),
    may_come: Callable[[NodeId], bool] = lambda member: True,
) -> ConfChangeSingle | None:
    """The leader's next step towards the wanted voters; None when there is nothing to do now.
    `has_caught_up`: whether a member has, the leader itself too (`rounds.py`).
    `leaving`: members that may stay for the time being. `adding`: those of `wanted` that a
    reassignment brings. `may_come`: whether a replica can be added now."""
    membership = node.membership
    if membership.is_joint or node.membership_changing:
        return None
    if node.id not in wanted and node.id not in leaving:
        # A leader that was replaced itself cannot do it: another one will.
        return None
    members = membership.members()
    newest = {server_of(member): member for member in sorted(members)}
    if any(newest.get(server_of(replica), NONE) > replica for replica in (*wanted, *leaving)):
        return None
    for member in sorted(members):
        # A learner that leaves was cancelled: nothing depends on it.
        if member not in wanted and (member not in leaving or member in membership.learners):
            return ConfChangeSingle(ConfChangeType.REMOVE_NODE, member)
    for member in sorted(wanted):
        if member not in members and may_come(member):
            return ConfChangeSingle(ConfChangeType.ADD_LEARNER_NODE, member)
    have_come = all(has_caught_up(member) for member in adding)
    for member in sorted(membership.learners):
        if has_caught_up(member) and (have_come or member not in adding):
            return ConfChangeSingle(ConfChangeType.ADD_NODE, member)
    if node.id in wanted and have_come and can_take_over(node, wanted, has_caught_up):
        # Those first that are of no use.
        for member in sorted(leaving, key=lambda member: (has_caught_up(member), member)):
            if member in members:
                return ConfChangeSingle(ConfChangeType.REMOVE_NODE, member)
    return None


def can_take_over(
    node: RawNode, wanted: Collection[NodeId], has_caught_up: Callable[[NodeId], bool]
) -> bool:
    """Whether all wanted are voters, and most of them have caught up: the group goes on without
    those that leave."""
    caught_up = sum(map(has_caught_up, wanted))
    return node.membership.incoming.issuperset(wanted) and 2 * caught_up > len(wanted)


def as_change(single: ConfChangeSingle) -> ConfChange:
    """One step as the entry that takes it."""
    return ConfChange(changes=(single,))
