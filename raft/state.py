"""State of one replica, shared by its roles.

`Raft` holds the state of the paper's Figure 2, the outgoing messages, and the leader's tracking
state. It makes no decisions: `raft.follower`, `raft.candidate` and `raft.leader` are functions over
it, one module per role, and `raft.node` dispatches messages to them.

There are two outgoing queues, because durability differs. `msgs` may leave at once.
`msgs_after_append` (acknowledgements, votes, and with `durable_campaign` requests for votes) may
leave only after everything appended before them is durable.
"""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Final

from ids import NO_INDEX, Index, NodeId, Term
from raft import membership as members
from raft.config import Config
from raft.log import RaftLog
from raft.membership import Membership
from raft.messages import Message, MsgAppResp
from raft.progress import Inflights, Progress, track
from raft.reads import PendingReads
from raft.types import (
    NONE,
    ColdRead,
    HardState,
    ReadOnlyOption,
    ReadState,
    SoftState,
    StateType,
)

FOLLOWER: Final = StateType.FOLLOWER
PRE_CANDIDATE: Final = StateType.PRE_CANDIDATE
CANDIDATE: Final = StateType.CANDIDATE
LEADER: Final = StateType.LEADER

# Values of all replicas that do not lead. Nothing is added to them.
_NO_PROGRESS: Final[dict[NodeId, Progress]] = {}
_NO_READS: Final = PendingReads()
_NO_LEARNERS: Final[Mapping[NodeId, int]] = {}


class Raft:
    """State of one replica of one group."""

    __slots__ = (
        "acked_by",
        "async_storage_writes",
        "ballots",
        "batch_appends",
        "broadcast_due",
        "campaign_due",
        "check_quorum",
        "cold_reads",
        "commit_apart",
        "commit_news_due",
        "committed_by",
        "disable_conf_change_validation",
        "disable_proposal_forwarding",
        "durable_campaign",
        "election_elapsed",
        "election_ticks",
        "heard_ago",
        "heartbeat_elapsed",
        "heartbeat_rounds",
        "heartbeat_ticks",
        "id",
        "incoming_progress",
        "is_linked",
        "is_voter",
        "lead",
        "lead_transferee",
        "log",
        "max_inflight_bytes",
        "max_inflight_msgs",
        "max_size_per_msg",
        "max_uncommitted_bytes",
        "may_lead",
        "membership",
        "membership_index",
        "msgs",
        "msgs_after_append",
        "outgoing_progress",
        "paced",
        "peers",
        "pending_conf_index",
        "pending_reads",
        "pre_vote",
        "progress",
        "quiet_heartbeats",
        "randomized_election_timeout",
        "read_only_option",
        "read_states",
        "rng",
        "state",
        "step_down_on_removal",
        "term",
        "term_start",
        "uncommitted_bytes",
        "vote",
        "vote_pending",
        "vote_ticks",
        "vote_wait",
        "votes",
    )

    def __init__(self, config: Config) -> None:
        self.id: NodeId = config.id
        self.rng: Random = config.rng
        self.election_ticks = config.election_ticks
        self.heartbeat_ticks = config.heartbeat_ticks
        self.pre_vote, self.check_quorum = config.pre_vote, config.check_quorum
        self.async_storage_writes = config.async_storage_writes
        self.read_only_option: ReadOnlyOption = config.read_only_option
        self.disable_proposal_forwarding = config.disable_proposal_forwarding
        self.disable_conf_change_validation = config.disable_conf_change_validation
        self.step_down_on_removal = config.step_down_on_removal
        self.max_size_per_msg = config.max_size_per_msg
        self.max_uncommitted_bytes = config.max_uncommitted_entries_size
        self.max_inflight_msgs = config.max_inflight_msgs
        self.max_inflight_bytes = config.max_inflight_bytes
        self.quiet_heartbeats = config.quiet_heartbeats
        self.is_linked, self.heard_ago = config.is_linked, config.heard_ago
        self.batch_appends, self.commit_apart = config.batch_appends, config.commit_apart
        self.durable_campaign = config.durable_campaign

        hard_state, conf_state = config.storage.initial_state()
        self.log = RaftLog(
            config.storage,
            applying_bytes_max=config.max_committed_size_per_ready or config.max_size_per_msg,
        )
        self.log.commit_to(hard_state.commit)
        if config.applied:
            self.log.applied_to(config.applied, 0)

        self.term: Term = hard_state.term
        self.vote: NodeId = hard_state.vote
        self.state: StateType = FOLLOWER
        self.lead: NodeId = NONE
        self.votes: dict[NodeId, bool] | None = None
        """Answers to this replica's pre-vote requests, by voter; only of a pre-candidate."""

        self.election_elapsed = 0
        """Ticks since the leader was heard, a vote was cast, or (leader) check-quorum passed."""
        self.heartbeat_elapsed = self.heartbeat_rounds = 0
        """Ticks since heartbeats were last due; number of heartbeat rounds that were due."""
        self.randomized_election_timeout = 0
        """Ticks, in [election_ticks, 2 * election_ticks) (§5.2)."""
        self.campaign_due = 0
        """Ticks until a campaign requested by the host; 0 if none was requested."""
        self.may_lead = True
        """True if the host lets this replica lead. Otherwise it follows and votes as usual but does
        not campaign."""
        self._no_vote_pending()

        self.msgs: list[Message] = []
        self.msgs_after_append: list[Message] = []
        # Tuples: an empty list for each of thousands of idle replicas has 56 bytes.
        self.read_states: tuple[ReadState, ...] = ()
        self.cold_reads: tuple[ColdRead, ...] = ()

        self.paced: Mapping[NodeId, int] = _NO_LEARNERS
        """Learners whose entries the host schedules, with the bytes per read. Entries for them are
        requested with a `ColdRead` even if they are in memory."""

        # State of a leader.
        self.lead_transferee: NodeId = NONE
        """Transferee of a leadership transfer; no proposals meanwhile (thesis §3.10)."""
        self.pending_conf_index: Index = NO_INDEX
        """No membership change may be appended before this index is applied. At the start of a
        term it is the end of the log, which may contain an unapplied change (thesis §4.1)."""
        self.term_start: Index = NO_INDEX
        """Index of this term's first entry. Use: an entry is of the leader's own term iff its
        index is not below (§5.4.2)."""
        self.uncommitted_bytes = 0
        """Bytes of payload appended by this leader and not yet applied."""
        self.pending_reads = _NO_READS
        self.broadcast_due = False
        """True if MsgApps are deferred to the next Ready (`batch_appends`)."""
        self.commit_news_due = False
        """True if a peer may not have received the commit index (`commit_apart`)."""

        self.membership = Membership()
        self.membership_index: Index = self.log.applied
        """Index after whose application `membership` is in effect."""
        self.is_voter = False
        self.set_membership(members.restored(conf_state), self.log.applied)
        self.reset(self.term)

    # --- Views ---------------------------------------------------------------------------------

    def hard_state(self) -> HardState:
        """Return the state that must be durable."""
        return HardState(self.term, self.vote, self.log.committed)

    def soft_state(self) -> SoftState:
        """Return the leader and this replica's role."""
        return SoftState(self.lead, self.state)

    @property
    def is_promotable(self) -> bool:
        """True if it may campaign: a voter whose log is complete and that the host lets lead."""
        if not (self.may_lead and self.is_voter):
            return False
        return self.log.snapshot is None and not self.log.lacks_committed

    @property
    def has_leader_lease(self) -> bool:
        """True if a live leader is known; such a voter ignores candidates (§6)."""
        return (
            self.check_quorum and self.lead != NONE and self.election_elapsed < self.election_ticks
        )

    @property
    def own_term_committed(self) -> bool:
        """True if this leader has committed an entry of its own term (§8)."""
        return self.state is LEADER and self.log.committed >= self.term_start

    @property
    def waits_for_disks(self) -> bool:
        """True if the vote of this term is being written.

        Either here or, if this replica's disk took a tick or more, possibly at the other voters.
        """
        return self.vote_pending or self.vote_wait > 0

    # --- Changes common to all roles -----------------------------------------------------------

    def reset(self, term: Term) -> None:
        """Clear the state of the previous role or term."""
        assert term >= self.term, (term, self.term)
        if term != self.term:
            self.term = term
            # Only a new term frees the vote. Clearing it on every step-down would let one
            # voter elect two leaders.
            self.vote = NONE
            self._no_vote_pending()
        self.lead = NONE
        self.votes = None
        self.election_elapsed = 0
        self.heartbeat_elapsed = 0
        self.campaign_due = 0
        self.draw_election_timeout()
        self.lead_transferee = NONE
        self.pending_conf_index = NO_INDEX
        self.term_start = NO_INDEX
        self.uncommitted_bytes = 0
        self.pending_reads = _NO_READS
        self.broadcast_due = False
        self.commit_news_due = False
        # Use: measurements only. Replicas whose acknowledgements last moved their own match index,
        # and the commit index.
        self.acked_by = self.committed_by = NONE
        self.progress: dict[NodeId, Progress] = _NO_PROGRESS
        """Progress of each member, itself included; only of a leader."""
        self.peers: tuple[tuple[NodeId, Progress], ...] = ()
        """All other members, ids ascending. Messages are sent in this order."""
        self.incoming_progress: tuple[Progress, ...] = ()
        self.outgoing_progress: tuple[Progress, ...] = ()

    def begin_progress(self) -> None:
        """Begin to follow the progress of all members, at the start of leadership."""
        self.pending_reads = PendingReads()
        self._track()
        last = self.log.last_index
        for node, progress in self.progress.items():
            progress.reset(next_index=last + 1, match=last if node == self.id else NO_INDEX)

    def _track(self) -> None:
        """Note the members whose progress is followed. Those that stay keep theirs."""
        membership = self.membership
        self.progress = track(
            self.progress,
            membership,
            last_index=self.log.last_index,
            new_inflights=lambda: Inflights(self.max_inflight_msgs, self.max_inflight_bytes),
        )
        self.peers = tuple((node, p) for node, p in self.progress.items() if node != self.id)
        self.incoming_progress = tuple(self.progress[node] for node in sorted(membership.incoming))
        self.outgoing_progress = tuple(self.progress[node] for node in sorted(membership.outgoing))

    def _no_vote_pending(self) -> None:
        self.ballots: dict[NodeId, bool] | None = None
        """Answers to this replica's candidacy in this term, by voter. None: it has not campaigned
        since it started, or the outcome is known."""
        self.vote_pending = False
        """True if the vote, for any candidate, is not durable yet (`durable_campaign`)."""
        self.vote_ticks = 0
        """Ticks the vote took to become durable, or has taken so far."""
        self.vote_wait = 0
        """Ticks during which no other election may disturb the one in which the vote was cast."""

    def election_is_over(self) -> None:
        """End the election of this term, because its leader is known.

        This replica's own vote need not be durable yet: the next election is independent of it.
        """
        self._no_vote_pending()
        if self.durable_campaign and self.randomized_election_timeout >= 2 * self.election_ticks:
            self.draw_election_timeout()  # it was extended for slow disks

    def draw_election_timeout(self) -> None:
        """Draw a random election timeout, so that split votes are rare (§5.2)."""
        self.randomized_election_timeout = self.election_ticks + self.rng.randrange(
            self.election_ticks
        )

    def set_membership(self, membership: Membership, index: Index) -> None:
        """Adopt the membership as of `index`."""
        if self.state is not CANDIDATE:
            self.ballots = None  # votes were requested under the old membership
        self.membership = membership
        self.membership_index = index
        self.is_voter = self.id in membership.voters()
        if self.state is LEADER:
            self._track()

    def acknowledge(self, to: NodeId, index: Index) -> None:
        """Acknowledge the log up to `index` to the leader (or itself), once it is durable."""
        queue = self.msgs_after_append
        if self.batch_appends and queue:
            # Acknowledgements are cumulative: one per turn is enough.
            last = queue[-1]
            if (
                type(last) is MsgAppResp
                and last.to == to
                and last.term == self.term
                and not last.reject
            ):
                last.index = max(last.index, index)
                return
        queue.append(MsgAppResp(to, self.id, self.term, index))
