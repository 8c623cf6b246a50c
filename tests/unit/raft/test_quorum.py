"""Quorum arithmetic against brute-force reference models."""

from __future__ import annotations

from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from raft.quorum import (
    EVERYTHING,
    VoteResult,
    joint_index,
    joint_vote,
    majority_index,
    majority_vote,
)

indexes = st.lists(st.integers(0, 20), max_size=7)
voter_sets = st.sets(st.integers(1, 9), max_size=7)
ballots = st.dictionaries(st.integers(1, 9), st.booleans())


def dumb_index(acked: list[int]) -> int:
    """Try every index from the top: return the first one that is on a majority."""
    if not acked:
        return EVERYTHING
    return next(
        index for index in range(20, -1, -1) if sum(a >= index for a in acked) > len(acked) / 2
    )


def dumb_vote(voters: set[int], votes: dict[int, bool]) -> VoteResult:
    """Try every outcome of the missing votes."""
    missing = [voter for voter in voters if voter not in votes]
    cast = sum(votes[voter] for voter in voters if voter in votes)
    outcomes = {
        2 * (cast + sum(rest)) > len(voters) for rest in product((0, 1), repeat=len(missing))
    }
    if not voters or outcomes == {True}:
        return VoteResult.WON
    return VoteResult.PENDING if True in outcomes else VoteResult.LOST


@given(indexes)
def test_majority_index_equals_trying_every_index(acked: list[int]) -> None:
    """§5.3: committed is the largest index stored on a majority."""
    assert majority_index(acked) == dumb_index(acked)


@given(indexes, indexes)
def test_joint_index_is_on_both_majorities_and_the_next_is_not(
    incoming: list[int], outgoing: list[int]
) -> None:
    """§6: agreement needs separate majorities of both configurations."""
    assert joint_index(incoming, outgoing) == min(dumb_index(incoming), dumb_index(outgoing))


@given(voter_sets, ballots)
def test_majority_vote_equals_trying_every_outcome(
    voters: set[int], votes: dict[int, bool]
) -> None:
    """§5.2: won, lost or pending, for every outcome of the missing votes."""
    assert majority_vote(voters, votes) is dumb_vote(voters, votes)


@given(voter_sets, voter_sets, ballots)
def test_joint_vote_needs_both_halves(
    incoming: set[int], outgoing: set[int], votes: dict[int, bool]
) -> None:
    """§6: one half lost loses, both won wins, else it is pending."""
    halves = {dumb_vote(incoming, votes), dumb_vote(outgoing, votes)}
    expected = VoteResult.PENDING
    if VoteResult.LOST in halves:
        expected = VoteResult.LOST
    elif halves == {VoteResult.WON}:
        expected = VoteResult.WON
    assert joint_vote(incoming, outgoing, votes) is expected


@given(voter_sets, ballots)
def test_joint_vote_with_an_empty_half_counts_as_the_other(
    voters: set[int], votes: dict[int, bool]
) -> None:
    """§6: an empty configuration agrees to everything."""
    assert joint_vote(voters, set(), votes) is majority_vote(voters, votes)
