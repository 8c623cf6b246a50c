"""What a leader knows about one replica, and how much it may send it (thesis §10.2.1).

Three states, named as in etcd's raft:

- PROBE: where the logs agree is unknown; one MsgApp at a time until an answer tells.
- REPLICATE: the replica follows; MsgApps are sent ahead of answers, `next` moves when sending,
  bounded by the in-flight limits.
- SNAPSHOT: the log no longer reaches back far enough; nothing is sent until the snapshot is in.

A leader keeps one `Progress` for every member, itself included (its own `match` is what its own
disk holds). The object lives as long as the membership; a new term resets it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Final

from ids import NO_INDEX, Index, NodeId
from raft.membership import Membership
from raft.types import NO_LIMIT


class ProgressState(Enum):
    """Mode of replication; the value is its name in traces."""

    PROBE = "StateProbe"
    REPLICATE = "StateReplicate"
    SNAPSHOT = "StateSnapshot"


PROBE = ProgressState.PROBE
REPLICATE = ProgressState.REPLICATE
SNAPSHOT = ProgressState.SNAPSHOT

ROUNDS_BETWEEN_MAX = 8
"""Between two turns of a replica that answers no heartbeat."""

TRIES_MAX: Final = 2 * ROUNDS_BETWEEN_MAX.bit_length()
"""More turns than these in vain change nothing."""


class Inflights:
    """MsgApps with entries on their way to one peer: (last index, payload bytes), oldest first."""

    __slots__ = ("_bytes", "_sent", "bytes_max", "msgs_max")

    def __init__(self, msgs_max: int, bytes_max: int = NO_LIMIT) -> None:
        self.msgs_max = msgs_max
        self.bytes_max = bytes_max
        self._sent: deque[tuple[Index, int]] = deque()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._sent)

    @property
    def is_full(self) -> bool:
        """Whether nothing more may be sent. One message may go beyond the limit in bytes."""
        return len(self._sent) >= self.msgs_max or self._bytes >= self.bytes_max

    def add(self, last: Index, payload_bytes: int) -> None:
        """A message whose last entry is `last` was sent."""
        assert not self.is_full, (last, len(self._sent), self._bytes)
        self._sent.append((last, payload_bytes))
        self._bytes += payload_bytes

    def free_to(self, index: Index) -> None:
        """Everything up to `index` was acknowledged."""
        sent = self._sent
        while sent and sent[0][0] <= index:
            self._bytes -= sent.popleft()[1]

    def clear(self) -> None:
        """Nothing is on its way any more, or it no longer matters."""
        self._sent.clear()
        self._bytes = 0


class Progress:
    """One replica in the leader's eyes.

    Invariant: match < next, but for the leader's own. In SNAPSHOT, next == pending_snapshot + 1
    or match + 1, whichever is more.
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
        """Highest index known to be durable there."""
        self.next: Index = next_index
        """Index of the next entry to send."""
        self.sent_commit: Index = NO_INDEX
        """Highest commit index sent in a message that, if it arrives, takes effect there."""
        self.state = PROBE
        self.pending_snapshot: Index = NO_INDEX
        """SNAPSHOT: index of the snapshot on its way."""
        self.snapshot_answers = 0
        """SNAPSHOT: heartbeats answered since it left."""
        # Counted as heard from when first added: check-quorum must not depose a leader before
        # the newcomer had a chance to answer.
        self.recent_active = True
        """Use: check-quorum; cleared each election timeout."""
        self.flow_paused = False
        """No MsgApp until an answer or a heartbeat's answer: a probe is out, or inflights full."""
        self.cold_read_first: Index = NO_INDEX
        """First index of the read from disk the host was asked for; 0: none pending."""
        self.tries = 0
        """How often it was its turn to be sent a heartbeat since it last answered, `TRIES_MAX` for
        more. Use: `quiet_heartbeats`."""
        self.asked_round = 0
        """In which of the leader's heartbeat rounds it was sent the last one."""
        self.ask_round = 0
        """The first of them in which it is its turn again."""
        self.inflights = inflights
        self.is_learner = is_learner

    def reset(self, *, next_index: Index, match: Index) -> None:
        """Forget everything: another term begins."""
        self.match = match
        self.next = next_index
        self.sent_commit = NO_INDEX
        self.recent_active = False
        self.answered()
        self._enter(PROBE)

    @property
    def is_paused(self) -> bool:
        """Whether no MsgApp may be sent now."""
        return self.flow_paused or self.cold_read_first != 0 or self.state is SNAPSHOT

    def become_probe(self) -> None:
        """Send one message and wait for its answer."""
        after_snapshot = self.pending_snapshot + 1 if self.state is SNAPSHOT else NO_INDEX
        self._enter(PROBE)
        self.next = max(self.match + 1, after_snapshot)
        self.sent_commit = min(self.sent_commit, self.next - 1)

    def become_replicate(self) -> None:
        """Send ahead of answers."""
        self._enter(REPLICATE)
        self.next = self.match + 1

    def become_snapshot(self, index: Index) -> None:
        """Wait until the snapshot at `index` is in."""
        self._enter(SNAPSHOT)
        self.pending_snapshot = index
        self.next = index + 1
        self.sent_commit = index

    def sent_entries(self, *, count: int, payload_bytes: int) -> None:
        """A MsgApp with `count` entries from `next` on was sent."""
        if self.state is REPLICATE:
            if count:
                self.next += count
                self.inflights.add(self.next - 1, payload_bytes)
            # Full: further (empty) messages are probes, one for each heartbeat answered.
            self.flow_paused = self.inflights.is_full
        else:
            assert self.state is PROBE, self.state
            if count:
                self.flow_paused = True

    def tried(self, round_: int, *, asks: bool) -> None:
        """It was its turn in that round to be sent a heartbeat. While it answers none, its turns
        come further and further apart."""
        if asks:
            self.asked_round = round_
        self.ask_round = round_ + min(1 << (self.tries >> 1), ROUNDS_BETWEEN_MAX)
        self.tries = min(self.tries + 1, TRIES_MAX)

    def answered(self) -> None:
        """It did, or what it was asked is lost: its next turn is the next round."""
        self.tries = 0
        self.ask_round = 0

    def can_bump_commit(self, commit: Index) -> bool:
        """Whether sending `commit` could move the replica's commit index."""
        return commit > self.sent_commit and self.sent_commit < self.next - 1

    def maybe_update(self, index: Index) -> bool:
        """The replica holds everything up to `index`. Returns whether that is news."""
        if index <= self.match:
            return False
        self.match = index
        if self.next <= index:
            self.next = index + 1
        self.flow_paused = False
        return True

    def maybe_decrease(self, *, rejected: Index, hint: Index) -> bool:
        """The replica refused the MsgApp after `rejected`; the logs may agree at `hint`.

        Returns False for an answer overtaken by a newer one (§5.3).
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
    """Progress of every member, ids ascending: members that stay keep theirs."""
    tracked: dict[NodeId, Progress] = {}
    for node in sorted(membership.members()):
        progress = known.get(node)
        if progress is None:
            # Probed at the end of the log first: if it is empty, its answer tells at once.
            progress = Progress(
                next_index=max(last_index, Index(1)), inflights=new_inflights(), is_learner=False
            )
        progress.is_learner = node in membership.learners
        tracked[node] = progress
    return tracked
