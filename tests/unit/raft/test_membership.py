"""Membership: single changes (thesis §4.1), joint consensus (§6), learners, the encoding."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raft.errors import InvalidConfChange, MalformedConfChange
from raft.membership import (
    Membership,
    changed,
    decode_conf_change,
    encode_conf_change,
    restored,
)
from raft.messages import MsgVoteResp
from raft.types import (
    ConfChange,
    ConfChangeSingle,
    ConfChangeTransition,
    ConfChangeType,
    Entry,
    EntryKind,
    StateType,
)
from tests.unit.raft.network import ELECTION_TICKS, Network

ADD = ConfChangeType.ADD_NODE
LEARN = ConfChangeType.ADD_LEARNER_NODE
REMOVE = ConfChangeType.REMOVE_NODE
AUTO, IMPLICIT, EXPLICIT = ConfChangeTransition

singles = st.builds(ConfChangeSingle, st.sampled_from(ConfChangeType), st.integers(1, 6))
conf_changes = st.builds(
    ConfChange,
    st.lists(singles, max_size=5).map(tuple),
    st.sampled_from(ConfChangeTransition),
    st.binary(max_size=20),
)


def change(*changes: tuple[ConfChangeType, int], how: ConfChangeTransition = AUTO) -> ConfChange:
    """Return a change of several members."""
    return ConfChange(tuple(ConfChangeSingle(kind, node) for kind, node in changes), how)


def majorities(voters: frozenset[int]) -> list[set[int]]:
    """Return all majorities of a set."""
    ordered = sorted(voters)
    subsets = [
        {node for bit, node in enumerate(ordered) if mask >> bit & 1}
        for mask in range(1 << len(ordered))
    ]
    return [subset for subset in subsets if 2 * len(subset) > len(ordered)]


@given(st.lists(conf_changes, max_size=12))
def test_every_step_of_membership_keeps_majorities_overlapping(changes: list[ConfChange]) -> None:
    """§6: there are never two disjoint majorities, before and after any accepted change."""
    before = Membership(incoming=frozenset((1, 2, 3)))
    for one in changes:
        try:
            after = changed(before, one)
        except InvalidConfChange:
            continue
        decide_before = [
            a | b
            for a in majorities(before.incoming)
            for b in (majorities(before.outgoing) if before.is_joint else [set()])
        ]
        decide_after = [
            a | b
            for a in majorities(after.incoming)
            for b in (majorities(after.outgoing) if after.is_joint else [set()])
        ]
        assert all(a & b for a in decide_before for b in decide_after)
        assert restored(after.conf_state()) == after
        before = after


@given(conf_changes)
def test_conf_change_survives_its_encoding(one: ConfChange) -> None:
    """The decoded payload equals the change."""
    assert decode_conf_change(encode_conf_change(one)) == one
    assert decode_conf_change(memoryview(encode_conf_change(one))) == one


def test_leaving_a_joint_configuration_has_an_empty_payload() -> None:
    """§6: the second entry, C_new, needs no content."""
    assert encode_conf_change(ConfChange()) == b""


@pytest.mark.parametrize(
    "data",
    [b"\x01", b"\x02" + bytes(7), b"\x01\x00\x01\x00" + bytes(4), b"\x01\x07" + bytes(6)],
)
def test_malformed_change_is_refused(data: bytes) -> None:
    """Too short, unknown version, missing change, unknown transition."""
    with pytest.raises(MalformedConfChange):
        decode_conf_change(data)


def test_malformed_change_is_not_appended() -> None:
    """A proposal is appended in full or not at all."""
    network = Network()
    leader = network.elect(1)
    with pytest.raises(MalformedConfChange):
        leader.propose([Entry(data=b"x"), Entry(kind=EntryKind.CONF_CHANGE_V2, data=b"?")])
    assert leader.last_index == 2


def test_node_is_added_as_learner_then_promoted() -> None:
    """Thesis §4.2.1: catch up first, vote then."""
    network = Network()
    leader = network.elect(1)
    network.add(4)
    leader.propose_conf_change(change((LEARN, 4)))
    network.settle()
    assert network.node(4).applied == leader.applied
    assert network.node(4).voters() == {1, 2, 3}
    leader.propose_conf_change(change((ADD, 4)))
    network.settle()
    assert network.node(4).voters() == {1, 2, 3, 4}
    network.elect(4)


def test_change_takes_effect_when_applied() -> None:
    """As in etcd's transcripts: at apply, not at append as in §6."""
    network = Network()
    leader = network.elect(1)
    leader.propose_conf_change(change((ADD, 4)))
    assert leader.voters() == {1, 2, 3}
    network.settle()
    assert leader.voters() == {1, 2, 3, 4}


def test_second_change_before_the_first_is_applied_becomes_an_empty_entry() -> None:
    """Thesis §4.1: one change at a time."""
    network = Network()
    leader = network.elect(1)
    first = leader.propose_conf_change(change((ADD, 4)))
    second = leader.propose_conf_change(change((ADD, 5)))
    assert (first.kind, second.kind) == (EntryKind.CONF_CHANGE_V2, EntryKind.NOOP)
    network.settle()
    third = leader.propose_conf_change(change((ADD, 5)))
    assert third.kind is EntryKind.CONF_CHANGE_V2


def test_new_leader_takes_no_change_while_older_entries_are_unapplied() -> None:
    """Thesis §4.1: the entries of an earlier leader may include a change not yet applied."""
    network = Network()
    network.elect(1)
    network.isolate(2, 3)
    network.propose(b"of an earlier term")
    network.settle()
    network.crash(1)
    leader = network.node(1)
    leader.campaign()
    network.collect(1)
    network.step(MsgVoteResp(1, 2, leader.term))
    assert leader.propose_conf_change(change((ADD, 4))).kind is EntryKind.NOOP
    network.heal()
    network.messages.clear()
    network.tick(1)
    network.settle()
    assert leader.propose_conf_change(change((ADD, 4))).kind is EntryKind.CONF_CHANGE_V2


def test_joint_change_needs_both_majorities_and_leaves_by_itself() -> None:
    """§6: C_old,new, then C_new."""
    network = Network()
    leader = network.elect(1)
    for node in (4, 5):
        network.add(node)
    leader.propose_conf_change(change((ADD, 4), (ADD, 5), (REMOVE, 2), (REMOVE, 3)))
    network.settle(1, 2)
    assert network.node(1).membership.is_joint
    # The old half agrees, the new one (1, 4, 5) cannot.
    network.propose(b"x")
    network.settle(1, 2, 3)
    before = leader.commit
    assert before < leader.last_index
    network.settle()
    assert leader.commit == leader.last_index
    assert not leader.membership.is_joint
    assert leader.voters() == {1, 4, 5}


def test_joint_change_needs_the_old_half_too() -> None:
    """§6: a majority of C_new alone decides nothing."""
    network = Network()
    leader = network.elect(1)
    for node in (4, 5):
        network.add(node)
    leader.propose_conf_change(change((ADD, 4), (ADD, 5), (REMOVE, 2), (REMOVE, 3), how=EXPLICIT))
    network.settle()
    network.isolate(2, 3)
    [entry] = network.propose(b"x")
    network.settle()
    assert leader.commit == entry.index - 1
    network.isolate(3, 5)
    leader.report_unreachable(2)
    network.tick(1)
    network.settle()
    assert leader.commit == entry.index


def test_explicit_joint_change_waits_to_be_left() -> None:
    """§6: the host decides when to leave."""
    network = Network()
    leader = network.elect(1)
    leader.propose_conf_change(change((LEARN, 3), how=EXPLICIT))
    network.settle()
    assert leader.membership.learners_next == {3}
    assert leader.propose_conf_change(change((ADD, 4))).kind is EntryKind.NOOP
    leader.propose_conf_change(ConfChange())
    network.settle()
    assert leader.membership == Membership(frozenset((1, 2)), learners=frozenset((3,)))


def test_new_leader_leaves_a_joint_configuration_it_inherits() -> None:
    """§6: the transition survives its leader."""
    network = Network()
    leader = network.elect(1)
    network.isolate(2)
    leader.propose_conf_change(change((LEARN, 3), how=IMPLICIT))
    while not network.node(3).membership.is_joint:
        network.collect(1)
        while network.messages:
            network.deliver()
        if network.node(3).has_ready():
            network.collect(3)
    network.crash(1)
    network.messages.clear()
    network.heal()
    network.settle(1)
    assert network.node(1).membership.is_joint
    network.elect(1)
    assert not network.node(1).membership.is_joint
    assert network.node(3).membership.learners == {3}


def test_removed_leader_steps_down_if_asked_to() -> None:
    """Thesis §4.2.2: a leader that is not in the new configuration steps down."""
    network = Network(step_down_on_removal=True)
    leader = network.elect(1)
    leader.propose_conf_change(change((REMOVE, 1)), v1=True)
    network.settle()
    assert leader.state is StateType.FOLLOWER
    network.tick(1, 3 * ELECTION_TICKS)
    assert leader.state is StateType.FOLLOWER


def test_removed_member_shrinks_the_quorum() -> None:
    """§6: decisions are then made by the other members."""
    network = Network()
    leader = network.elect(1)
    leader.propose_conf_change(change((REMOVE, 3)))
    network.settle()
    network.isolate(3)
    [entry] = network.propose(b"x")
    network.settle()
    assert leader.commit == entry.index
    assert leader.progress(3) is None


def test_removed_server_does_not_disrupt() -> None:
    """Thesis §4.2.3: pre-vote and stickiness exclude a server that missed its removal."""
    network = Network(pre_vote=True, check_quorum=True)
    leader = network.elect(1)
    network.isolate(3)
    leader.propose_conf_change(change((REMOVE, 3)))
    network.settle()
    network.heal()
    for _ in range(5 * ELECTION_TICKS):
        for node in (1, 2, 3):
            network.tick(node)
        network.settle()
    assert leader.is_leader
    assert leader.term == 1


def test_membership_survives_a_restart() -> None:
    """It is rebuilt by applying the entries after the snapshot again."""
    network = Network()
    leader = network.elect(1)
    leader.propose_conf_change(change((LEARN, 7)))
    network.settle()
    network.crash(2)
    network.settle(2)
    assert network.node(2).membership == leader.membership


def test_bytes_of_a_change_that_did_not_fit_are_not_counted() -> None:
    """It became an empty entry; the bytes would stay counted for the rest of the leader's term."""
    network = Network()
    leader = network.elect(1)
    node = network.node(1)
    for _ in range(2):
        node.propose_conf_change(
            ConfChange(changes=(ConfChangeSingle(ConfChangeType.ADD_LEARNER_NODE, 3),))
        )
    network.settle()
    network.propose(b"x")
    network.settle()
    assert leader.uncommitted_bytes == 0
