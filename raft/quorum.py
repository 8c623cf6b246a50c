"""Counting: which index a set of voters has, and whether a vote is decided.

A quorum is a majority of the voters, or a majority of each of two sets while the configuration is
joint (paper §6). The empty set of voters agrees to everything: that makes a joint configuration
whose old half is empty count exactly as its new half alone.

Pure functions over sets of ids; who the voters are is `raft.membership`'s business.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import Enum
from typing import Final

from ids import NO_INDEX, Index, NodeId

EVERYTHING: Final = Index((1 << 64) - 1)
"""Index an empty set of voters has committed."""


class VoteResult(Enum):
    """State of a vote; the value is its name in traces."""

    PENDING = "VotePending"
    LOST = "VoteLost"
    WON = "VoteWon"


def majority_index(acked: Collection[Index]) -> Index:
    """Largest index that a majority has, of what each voter has (0: nothing known). §5.3."""
    count = len(acked)
    if count == 0:
        return EVERYTHING
    # Ascending: at this place a majority of voters is at or above.
    return sorted(acked)[(count - 1) // 2]


def copied_index(acked: Collection[Index], copies: int) -> Index:
    """Largest index that so many of these voters have; 0 when there are fewer voters."""
    return sorted(acked, reverse=True)[copies - 1] if 0 < copies <= len(acked) else NO_INDEX


def joint_index(incoming: Collection[Index], outgoing: Collection[Index]) -> Index:
    """Largest index that both halves' majorities have (paper §6)."""
    return min(majority_index(incoming), majority_index(outgoing))


def majority_vote(voters: Collection[NodeId], votes: Mapping[NodeId, bool]) -> VoteResult:
    """Outcome among `voters` of the votes cast so far (§5.2)."""
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
    """Outcome that needs both halves: one loss loses, two wins win (paper §6)."""
    first = majority_vote(incoming, votes)
    second = majority_vote(outgoing, votes)
    if first is second:
        return first
    if VoteResult.LOST in (first, second):
        return VoteResult.LOST
    return VoteResult.PENDING
