"""The state of one replica, shared by its roles.

`Raft` holds what Figure 2 of the paper lists, the outgoing messages, and what the leader tracks. It
has no opinion: `raft.follower`, `raft.candidate` and `raft.leader` are functions over it, one file
a role, and `raft.node` decides which of them gets a message.

Two outgoing queues, because durability differs: `msgs` may leave at once; `msgs_after_append`
(acknowledgements, votes, and with `durable_campaign` requests for votes) only after everything
appended before them is on disk.
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


class Raft:
    """One replica of one group."""

    __slots__ = (
        "async_storage_writes",
        "ballots",
        "batch_appends",
        "broadcast_due",
        "campaign_due",
        "check_quorum",
        "cold_reads",
        "commit_apart",
        "commit_news_due",
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
        self.votes: dict[NodeId, bool] = {}
        """Answers to this replica's question whether it would be elected (pre-vote)."""

        self.election_elapsed = 0
        """Ticks since the leader was heard, a vote was cast, or (leader) check-quorum passed."""
        self.heartbeat_elapsed = self.heartbeat_rounds = 0
        """Ticks since heartbeats were due; how often they were."""
        self.randomized_election_timeout = 0
        """Ticks, in [election_ticks, 2 * election_ticks) (§5.2)."""
        self.campaign_due = 0
        """Ticks until a campaign the host asked for; 0: none asked for."""
        self.may_lead = True
        """Whether the host lets this replica lead. Else it follows and votes as any other, and
        does not campaign."""
        self._no_vote_pending()

        self.msgs: list[Message] = []
        self.msgs_after_append: list[Message] = []
        self.read_states: list[ReadState] = []
        self.cold_reads: list[ColdRead] = []

        self.paced: Mapping[NodeId, int] = {}
        """Learners that get entries only when the host says so, and so many bytes at a time: they
        are asked for as a `ColdRead`, in memory or not."""

        # The leader's.
        self.lead_transferee: NodeId = NONE
        """Whom leadership is being handed to; no proposals meanwhile (thesis §3.10)."""
        self.pending_conf_index: Index = NO_INDEX
        """No membership change may be appended before this index is applied. At the start of a
        term the end of the log: an unapplied change may be in there (thesis §4.1)."""
        self.term_start: Index = NO_INDEX
        """Index of this term's first entry. Use: an entry is of the leader's own term iff its
        index is not below (§5.4.2)."""
        self.uncommitted_bytes = 0
        """Payload appended by this leader and not yet applied."""
        self.pending_reads = PendingReads()
        self.broadcast_due = False
        """MsgApps were put off to the next Ready (`batch_appends`)."""
        self.commit_news_due = False
        """Some peer may not have been told the commit index (`commit_apart`)."""

        self.membership = Membership()
        self.membership_index: Index = self.log.applied
        """The membership is that of after applying this index."""
        self.progress: dict[NodeId, Progress] = {}
        self.peers: tuple[tuple[NodeId, Progress], ...] = ()
        """Everybody else, ids ascending: the order messages are sent in."""
        self.incoming_progress: tuple[Progress, ...] = ()
        self.outgoing_progress: tuple[Progress, ...] = ()
        self.is_voter = False
        self.set_membership(members.restored(conf_state), self.log.applied)
        self.reset(self.term)

    # --- Views ---------------------------------------------------------------------------------

    def hard_state(self) -> HardState:
        """What must be durable."""
        return HardState(self.term, self.vote, self.log.committed)

    def soft_state(self) -> SoftState:
        """Who leads, and what this replica is."""
        return SoftState(self.lead, self.state)

    @property
    def is_promotable(self) -> bool:
        """Whether it may campaign: a voter whose log is in one piece, and whose host lets it."""
        if not (self.may_lead and self.is_voter):
            return False
        return self.log.snapshot is None and not self.log.lacks_committed

    @property
    def has_leader_lease(self) -> bool:
        """Whether a live leader is known; such a voter does not listen to candidates (§6)."""
        return (
            self.check_quorum and self.lead != NONE and self.election_elapsed < self.election_ticks
        )

    @property
    def own_term_committed(self) -> bool:
        """Whether this leader has committed an entry of its own term (§8)."""
        return self.state is LEADER and self.log.committed >= self.term_start

    @property
    def waits_for_disks(self) -> bool:
        """Whether the vote of this term is being written, here or, on disks that took a tick or
        more for this one, perhaps by those who were asked."""
        return self.vote_pending or self.vote_wait > 0

    # --- Changes common to all roles -----------------------------------------------------------

    def reset(self, term: Term) -> None:
        """Begin a role or a term with a clean table."""
        assert term >= self.term, (term, self.term)
        if term != self.term:
            self.term = term
            # Only a new term frees the vote: clearing it on every step-down would let one
            # voter elect two leaders.
            self.vote = NONE
            self._no_vote_pending()
        self.lead = NONE
        self.votes = {}
        self.election_elapsed = 0
        self.heartbeat_elapsed = 0
        self.campaign_due = 0
        self.draw_election_timeout()
        self.lead_transferee = NONE
        self.pending_conf_index = NO_INDEX
        self.term_start = NO_INDEX
        self.uncommitted_bytes = 0
        self.pending_reads = PendingReads()
        self.broadcast_due = False
        self.commit_news_due = False
        last = self.log.last_index
        for node, progress in self.progress.items():
            progress.reset(next_index=last + 1, match=last if node == self.id else NO_INDEX)

    def _no_vote_pending(self) -> None:
        self.ballots: dict[NodeId, bool] | None = None
        """Answers to this replica's candidacy in this term; None: it has not stood in this life, or
        what came of it is known."""
        self.vote_pending = False
        """The vote, for whomever, is on its way to the disk (`durable_campaign`)."""
        self.vote_ticks = 0
        """How long the vote took to be durable, or has taken so far."""
        self.vote_wait = 0
        """Ticks for which the election that the vote was given in is not disturbed by another."""

    def election_is_over(self) -> None:
        """Somebody leads this term: what was waited for has come, also if the own vote is not
        durable yet, and the next election is another one."""
        self._no_vote_pending()
        if self.durable_campaign and self.randomized_election_timeout >= 2 * self.election_ticks:
            self.draw_election_timeout()  # it was made longer for slow disks

    def draw_election_timeout(self) -> None:
        """Randomized so that votes are rarely split (§5.2)."""
        self.randomized_election_timeout = self.election_ticks + self.rng.randrange(
            self.election_ticks
        )

    def set_membership(self, membership: Membership, index: Index) -> None:
        """Take on the membership as of `index`: keep what is known of members that stay."""
        if self.state is not CANDIDATE:
            self.ballots = None  # what others were asked for was to lead the old members
        self.membership = membership
        self.membership_index = index
        self.progress = track(
            self.progress,
            membership,
            last_index=self.log.last_index,
            new_inflights=lambda: Inflights(self.max_inflight_msgs, self.max_inflight_bytes),
        )
        self.peers = tuple((node, p) for node, p in self.progress.items() if node != self.id)
        self.incoming_progress = tuple(self.progress[node] for node in sorted(membership.incoming))
        self.outgoing_progress = tuple(self.progress[node] for node in sorted(membership.outgoing))
        self.is_voter = self.id in membership.voters()

    def acknowledge(self, to: NodeId, index: Index) -> None:
        """Tell the leader (or oneself) that the log matches up to `index`, once that is durable."""
        queue = self.msgs_after_append
        if self.batch_appends and queue:
            # Acknowledgements are cumulative: one per turn says it all.
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
