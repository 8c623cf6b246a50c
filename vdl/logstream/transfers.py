"""Which leaderships should move, and to whom (thesis §3.10).

Two reasons to hand one over: this server stops, or the first replica of the placement, which should
lead when it can, is back and has caught up. The latter happens one at a time, so that a server that
comes back is not flooded by all its clients at once.

Must not know: when it is asked.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from raft.progress import ProgressState
from raft.types import NodeId
from vdl.logstream.group import Group
from vdl.logstream.turn import server_of

CAUGHT_UP_ENTRIES = 100
"""A replica that misses no more than this takes over without a noticeable pause."""


def best_heir(group: Group, alive: Collection[int]) -> NodeId:
    """The live replica that has most of a led group's log, 0 when there is none."""
    best, best_match = 0, -1
    for replica in group.voters:
        if replica == group.replica_id or server_of(replica) not in alive:
            continue
        progress = group.node.progress(replica)
        if progress is None or progress.state is not ProgressState.REPLICATE:
            continue  # it has not shown what it has since this leader came, or since it came back
        if progress.match > best_match:
            best, best_match = replica, progress.match
    return best


def next_to_return(groups: Iterable[Group], alive: Collection[int]) -> Group | None:
    """A led group whose preferred leader is another replica that is there and has caught up."""
    for group in groups:
        node = group.node
        if group.preferred or not group.serving or node.transferring:
            continue
        first = group.voters[0]
        if server_of(first) not in alive:
            continue
        progress = node.progress(first)
        if (
            progress is not None
            and progress.state is ProgressState.REPLICATE
            and progress.match + CAUGHT_UP_ENTRIES >= node.last_index
        ):
            return group
    return None
