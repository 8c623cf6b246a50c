"""Steps from a group's present members to the wanted ones: small, in order, never backwards."""

import random

import pytest

from raft.config import Config
from raft.membership import Membership
from raft.memory import MemoryStorage
from raft.node import RawNode
from raft.types import ConfChangeSingle, ConfChangeType, ConfState, Snapshot
from vdl.logstream.group.replica_ids import replica_id_of
from vdl.logstream.membership.conf_changes import next_change

ONE, TWO, OLD, NEW = (replica_id_of(s, n) for s, n in ((1, 1), (2, 1), (3, 1), (3, 2)))
WANTED = [ONE, TWO, NEW]


def nobody(member: int) -> bool:
    """Return False: no member has caught up."""
    del member
    return False


def leader(voters: set[int], learners: set[int] | None = None) -> RawNode:
    """Return ONE, leading a group of these members, with all entries applied."""
    storage = MemoryStorage(Snapshot(1, 1, ConfState(voters=(ONE,))))
    node = RawNode(
        Config(id=ONE, election_ticks=10, heartbeat_ticks=1, storage=storage, rng=random.Random(1))
    )
    node.campaign()
    while node.has_ready():
        ready = node.ready()
        if ready.entries:
            storage.append(ready.entries)
        node.advance(ready)
    assert node.is_leader
    membership = Membership(incoming=frozenset(voters), learners=frozenset(learners or ()))
    node.raft.set_membership(membership, node.applied)
    return node


@pytest.mark.parametrize(
    ("voters", "learners", "change", "replica"),
    [
        ({ONE, TWO, OLD}, set(), ConfChangeType.REMOVE_NODE, OLD),
        ({ONE, TWO}, {OLD}, ConfChangeType.REMOVE_NODE, OLD),
        ({ONE, TWO}, set(), ConfChangeType.ADD_LEARNER_NODE, NEW),
        ({ONE, NEW}, set(), ConfChangeType.ADD_LEARNER_NODE, TWO),
    ],
)
def test_next_step_is_small_and_in_order(
    voters: set[int], learners: set[int], change: ConfChangeType, replica: int
) -> None:
    """Removals come first; an added replica starts as a learner (thesis §4.2.1)."""
    node = leader(voters, learners)
    assert next_change(node, WANTED, nobody) == ConfChangeSingle(change, replica)


def test_nothing_to_do_when_members_are_the_wanted_ones() -> None:
    assert next_change(leader(set(WANTED)), WANTED, nobody) is None


def test_learner_becomes_voter_only_once_it_has_caught_up() -> None:
    """Before that it would vote without having the log (thesis §4.2.1)."""
    node = leader({ONE, TWO}, {NEW})
    assert next_change(node, WANTED, nobody) is None
    change = next_change(node, WANTED, lambda member: member == NEW)
    assert change == ConfChangeSingle(ConfChangeType.ADD_NODE, NEW)


def test_catalog_older_than_the_members_changes_nothing() -> None:
    """A leader that has just restarted may have applied less of the catalog than its predecessor.

    The latter has added the new replica already.
    """
    assert next_change(leader({ONE, TWO, NEW}), [ONE, TWO, OLD], nobody) is None
    assert next_change(leader({ONE, TWO}, {NEW}), [ONE, TWO, OLD], nobody) is None


def test_leader_that_is_not_wanted_changes_nothing() -> None:
    """It would have to remove itself."""
    assert next_change(leader({ONE, TWO}), [TWO, NEW], nobody) is None


def test_one_change_at_a_time() -> None:
    """Two overlapping changes could have disjoint majorities (thesis §4.1)."""
    node = leader({ONE, TWO, OLD})
    node.raft.pending_conf_index = node.last_index + 1
    assert next_change(node, WANTED, nobody) is None


FOUR = replica_id_of(4, 1)


def test_observer_is_added_as_a_learner_and_stays_one() -> None:
    """No majority ever counts it, however far it has caught up."""
    node = leader({ONE, TWO, NEW})
    change = next_change(node, WANTED, nobody, observing={FOUR})
    assert change == ConfChangeSingle(ConfChangeType.ADD_LEARNER_NODE, FOUR)
    node = leader({ONE, TWO, NEW}, {FOUR})
    assert next_change(node, WANTED, lambda _: True, observing={FOUR}) is None
    removal = next_change(node, WANTED, nobody)
    assert removal == ConfChangeSingle(ConfChangeType.REMOVE_NODE, FOUR)


def test_observer_of_an_older_directory_is_replaced() -> None:
    """A number belongs to one directory, also without a vote."""
    node = leader({ONE, TWO, NEW}, {FOUR})
    newer = replica_id_of(4, 2)
    change = next_change(node, WANTED, nobody, observing={newer})
    assert change == ConfChangeSingle(ConfChangeType.REMOVE_NODE, FOUR)
    node = leader({ONE, TWO, NEW}, {newer})
    assert next_change(node, WANTED, nobody, observing={FOUR}) is None  # an older catalog
