"""Quorum arithmetic: the index a set of voters has, and the outcome of a vote.

A quorum is a majority of the voters, or while the configuration is joint a majority of each of two
sets (paper §6). The empty set of voters agrees to everything, so that a joint configuration whose
old half is empty counts exactly as its new half alone.

Pure functions over sets of ids. Membership is defined in `raft.membership`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import Enum
from typing import Final

from ids import NO_INDEX, Index, NodeId

EVERYTHING: Final = Index((1 << 64) - 1)
"""Index that an empty set of voters has committed."""


class VoteResult(Enum):
    """State of a vote. The value is its name in traces."""

    PENDING = "VotePending"
    LOST = "VoteLost"
    WON = "VoteWon"


def majority_index(acked: Collection[Index]) -> Index:
    """Return the largest index a majority has, given each voter's index (0: unknown). §5.3."""
    count = len(acked)
    if count == 0:
        return EVERYTHING
    # Ascending: at this place a majority of voters is at or above.
    return sorted(acked)[(count - 1) // 2]


def copied_index(acked: Collection[Index], copies: int) -> Index:
    """Return the largest index that `copies` voters have; 0 if there are fewer voters."""
    return sorted(acked, reverse=True)[copies - 1] if 0 < copies <= len(acked) else NO_INDEX


def joint_index(incoming: Collection[Index], outgoing: Collection[Index]) -> Index:
    """Return the largest index that the majorities of both halves have (paper §6)."""
    return min(majority_index(incoming), majority_index(outgoing))


def majority_vote(voters: Collection[NodeId], votes: Mapping[NodeId, bool]) -> VoteResult:
    """Return the outcome among `voters` of the votes cast so far (§5.2)."""
    needed = len(voters) // 2 + 1
    granted = 0
    missing = 0
    for voter in voters:
        vote = votes.get(voter)
        if vote is None:
            missing += 1
        elif vote:
            granted += 1
    if granted >= needed or not voters:
        return VoteResult.WON
    if granted + missing >= needed:
        return VoteResult.PENDING
    return VoteResult.LOST


def joint_vote(
    incoming: Collection[NodeId], outgoing: Collection[NodeId], votes: Mapping[NodeId, bool]
) -> VoteResult:
    """Return the joint outcome: WON if both halves win, LOST if one loses (paper §6)."""
    first = majority_vote(incoming, votes)
    second = majority_vote(outgoing, votes)
    if first is second:
        return first
    if VoteResult.LOST in (first, second):
        return VoteResult.LOST
    return VoteResult.PENDING
