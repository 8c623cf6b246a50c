"""Leader's view of each replica, and flow control of what it sends (thesis §10.2.1).

There are three states, named as in etcd's raft:

- PROBE: it is unknown where the logs agree. One MsgApp at a time, until an answer shows it.
- REPLICATE: the replica follows. MsgApps are sent ahead of answers, `next` moves on sending, and
  the in-flight limits apply.
- SNAPSHOT: the log no longer reaches back far enough. Nothing is sent until the snapshot is
  installed.

A leader keeps one `Progress` for every member, itself included: its own `match` is what its own
disk holds. The object exists as long as the member does; a new term resets it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from typing import Final

from ids import NO_INDEX, Index, NodeId
from raft.membership import Membership
from raft.types import NO_LIMIT


class ProgressState(Enum):
    """Mode of replication. The value is its name in traces."""

    PROBE = "StateProbe"
    REPLICATE = "StateReplicate"
    SNAPSHOT = "StateSnapshot"


PROBE = ProgressState.PROBE
REPLICATE = ProgressState.REPLICATE
SNAPSHOT = ProgressState.SNAPSHOT

ROUNDS_BETWEEN_MAX = 8
"""Largest number of rounds between two heartbeats to a replica that does not answer."""

TRIES_MAX: Final = 2 * ROUNDS_BETWEEN_MAX.bit_length()
"""Bound of `Progress.tries`: more unanswered tries do not change the interval."""


class Inflights:
    """MsgApps with entries in flight to one peer: (last index, payload bytes), oldest first."""

    __slots__ = ("_bytes", "_sent", "bytes_max", "is_full", "msgs_max")

    def __init__(self, msgs_max: int, bytes_max: int = NO_LIMIT) -> None:
        self.msgs_max = msgs_max
        self.bytes_max = bytes_max
        self._sent: list[tuple[Index, int]] | None = None
        """None: nothing was sent since the last `clear`."""
        self._bytes = 0
        self.is_full = False
        """True if nothing more may be sent. One message may exceed the limit in bytes."""

    def __len__(self) -> int:
        return 0 if self._sent is None else len(self._sent)

    def add(self, last: Index, payload_bytes: int) -> None:
        """Record a sent message whose last entry is `last`."""
        assert not self.is_full, (last, len(self), self._bytes)
        sent = self._sent
        if sent is None:
            sent = self._sent = []
        sent.append((last, payload_bytes))
        self._bytes += payload_bytes
        self.is_full = len(sent) >= self.msgs_max or self._bytes >= self.bytes_max

    def free_to(self, index: Index) -> None:
        """Remove the messages up to `index`, which was acknowledged."""
        sent = self._sent
        if sent is None:
            return
        freed = 0
        for last, payload_bytes in sent:
            if last > index:
                break
            self._bytes -= payload_bytes
            freed += 1
        del sent[:freed]
        self.is_full = len(sent) >= self.msgs_max or self._bytes >= self.bytes_max

    def clear(self) -> None:
        """Remove all messages: none is in flight any more, or they no longer matter."""
        self._sent = None
        self._bytes = 0
        self.is_full = False


class Progress:
    """Leader's view of one replica.

    Invariant: match < next, except for the leader itself. In SNAPSHOT, next is the larger of
    pending_snapshot + 1 and match + 1.
    """

    __slots__ = (
        "ask_round",
        "asked_round",
        "cold_read_first",
        "flow_paused",
        "inflights",
        "is_learner",
        "match",
        "next",
        "pending_snapshot",
        "recent_active",
        "sent_commit",
        "snapshot_answers",
        "state",
        "tries",
    )

    def __init__(self, *, next_index: Index, inflights: Inflights, is_learner: bool) -> None:
        self.match: Index = NO_INDEX
        """Highest index known to be durable on the replica."""
        self.next: Index = next_index
        """Index of the next entry to send."""
        self.sent_commit: Index = NO_INDEX
        """Highest commit index sent in a message that takes effect if it arrives."""
        self.state = PROBE
        self.pending_snapshot: Index = NO_INDEX
        """SNAPSHOT: index of the snapshot in flight."""
        self.snapshot_answers = 0
        """SNAPSHOT: number of heartbeats answered since it was sent."""
        # A new member counts as heard from: check-quorum must not depose a leader before the
        # member had a chance to answer.
        self.recent_active = True
        """True if the replica was heard. Use: check-quorum; cleared each election timeout."""
        self.flow_paused = False
        """True if no MsgApp may be sent until an answer, to a MsgApp or a heartbeat, arrives: a
        probe is in flight, or inflights are full."""
        self.cold_read_first: Index = NO_INDEX
        """First index of the ColdRead requested from the host; 0 if none is pending."""
        self.tries = 0
        """Heartbeats due to the replica since it last answered, at most `TRIES_MAX`.
        Use: `quiet_heartbeats`."""
        self.asked_round = 0
        """Leader's heartbeat round in which the last one was sent to it."""
        self.ask_round = 0
        """First heartbeat round in which the next one is due."""
        self.inflights = inflights
        self.is_learner = is_learner

    def reset(self, *, next_index: Index, match: Index) -> None:
        """Forget everything at the start of another term."""
        self.match = match
        self.next = next_index
        self.sent_commit = NO_INDEX
        self.recent_active = False
        self.answered()
        self._enter(PROBE)

    @property
    def is_paused(self) -> bool:
        """True if no MsgApp may be sent now."""
        return self.flow_paused or self.cold_read_first != 0 or self.state is SNAPSHOT

    def become_probe(self) -> None:
        """Enter PROBE: send one message and wait for its answer."""
        after_snapshot = self.pending_snapshot + 1 if self.state is SNAPSHOT else NO_INDEX
        self._enter(PROBE)
        self.next = max(self.match + 1, after_snapshot)
        self.sent_commit = min(self.sent_commit, self.next - 1)

    def become_replicate(self) -> None:
        """Enter REPLICATE: send ahead of answers."""
        self._enter(REPLICATE)
        self.next = self.match + 1

    def become_snapshot(self, index: Index) -> None:
        """Enter SNAPSHOT: wait until the snapshot at `index` is installed."""
        self._enter(SNAPSHOT)
        self.pending_snapshot = index
        self.next = index + 1
        self.sent_commit = index

    def sent_entries(self, *, count: int, payload_bytes: int) -> None:
        """Record a sent MsgApp with `count` entries from `next` on."""
        if self.state is REPLICATE:
            if count:
                self.next += count
                self.inflights.add(self.next - 1, payload_bytes)
            # Full: further (empty) messages are probes, one for each answered heartbeat.
            self.flow_paused = self.inflights.is_full
        else:
            assert self.state is PROBE, self.state
            if count:
                self.flow_paused = True

    def tried(self, round_: int, *, asks: bool) -> None:
        """Record that a heartbeat was due in a round, and sent if `asks`.

        The interval to the next one grows while the replica answers none.
        """
        if asks:
            self.asked_round = round_
        self.ask_round = round_ + min(1 << (self.tries >> 1), ROUNDS_BETWEEN_MAX)
        self.tries = min(self.tries + 1, TRIES_MAX)

    def answered(self) -> None:
        """Reset the interval after an answer or a lost message: the next round is due."""
        self.tries = 0
        self.ask_round = 0

    def can_bump_commit(self, commit: Index) -> bool:
        """Return True if sending `commit` could advance the replica's commit index."""
        return commit > self.sent_commit and self.sent_commit < self.next - 1

    def maybe_update(self, index: Index) -> bool:
        """Record that the replica holds everything up to `index`. Return True if that is new."""
        if index <= self.match:
            return False
        self.match = index
        if self.next <= index:
            self.next = index + 1
        self.flow_paused = False
        return True

    def maybe_decrease(self, *, rejected: Index, hint: Index) -> bool:
        """Record a refusal of the MsgApp after `rejected`; the logs may agree at `hint`.

        Return False for an answer that a newer one has overtaken (§5.3).
        """
        if self.state is REPLICATE:
            if rejected <= self.match:
                return False
            self.next = self.match + 1
        else:
            if self.next - 1 != rejected:
                return False
            self.next = max(min(rejected, hint + 1), self.match + 1)
            self.flow_paused = False
        self.sent_commit = min(self.sent_commit, self.next - 1)
        return True

    def _enter(self, state: ProgressState) -> None:
        self.state = state
        self.flow_paused = False
        self.pending_snapshot = NO_INDEX
        self.snapshot_answers = 0
        self.cold_read_first = NO_INDEX
        self.inflights.clear()


def track(
    known: Mapping[NodeId, Progress],
    membership: Membership,
    *,
    last_index: Index,
    new_inflights: Callable[[], Inflights],
) -> dict[NodeId, Progress]:
    """Return the progress of every member, ids ascending. Members that stay keep theirs."""
    tracked: dict[NodeId, Progress] = {}
    for node in sorted(membership.members()):
        progress = known.get(node)
        if progress is None:
            # Probe at the end of the log first: an empty replica's answer shows that at once.
            progress = Progress(
                next_index=max(last_index, Index(1)), inflights=new_inflights(), is_learner=False
            )
        progress.is_learner = node in membership.learners
        tracked[node] = progress
    return tracked
