"""`RawNode`: one replica of one group, driven by its host.

The host calls `step` for each incoming message, `tick` as time passes, and `propose` with entries
to replicate. It then takes a `Ready`, carries it out, and delivers the storage's answers through
`step` (asynchronous mode) or calls `advance` (synchronous mode). The node does no I/O, reads no
clock and has no randomness of its own: equal calls produce equal Readys.

This module is the boundary: it checks input, compares terms (§5.1) and dispatches messages by type
to the current role. The roles are implemented in `raft.follower`, `raft.candidate` and
`raft.leader`, the making of a Ready in `raft.ready`.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass
from typing import Final

from ids import NO_INDEX, NO_TERM, TERM_MAX, Index, NodeId, Offset, Term
from raft import candidate, follower, leader, membership, ready
from raft.config import Config
from raft.errors import (
    Contradiction,
    DropReason,
    ProposalDropped,
    StepLocalMessage,
    StepPeerNotFound,
)
from raft.membership import Membership
from raft.messages import (
    RESPONSES,
    Message,
    MsgApp,
    MsgAppResp,
    MsgCommit,
    MsgHeartbeat,
    MsgHeartbeatResp,
    MsgPreVote,
    MsgPreVoteResp,
    MsgReadIndexResp,
    MsgSnap,
    MsgStorageAppend,
    MsgStorageAppendResp,
    MsgStorageApply,
    MsgStorageApplyResp,
    MsgTimeoutNow,
    MsgVote,
    MsgVoteResp,
)
from raft.progress import Progress
from raft.ready import Ready, ReadyMaker
from raft.state import CANDIDATE, FOLLOWER, LEADER, PRE_CANDIDATE, Raft
from raft.types import (
    NO_LIMIT,
    NONE,
    ConfChange,
    ConfState,
    Entry,
    EntryKind,
    HardState,
    Snapshot,
    SoftState,
    StateType,
)

NEVER_DUE: Final = NO_LIMIT
"""Value of `ticks_until_due` for a node that does nothing by time alone."""

TERM_LEAP_MAX: Final = 1 << 24
"""Largest accepted jump of the term: an election each second for half a year. The bound keeps one
message of a faulty peer from using up the terms of a group, which cannot be undone."""

_FROM_LEADERS: Final = frozenset((MsgApp, MsgHeartbeat, MsgCommit, MsgSnap))
"""Messages that only the leader of their term sends."""

_OF_A_TERM: Final = _FROM_LEADERS | {
    MsgAppResp,
    MsgVote,
    MsgVoteResp,
    MsgPreVote,
    MsgHeartbeatResp,
    MsgTimeoutNow,
    MsgReadIndexResp,
}
"""Messages between peers that always carry a term. MsgPreVoteResp is not one of them: a new
replica may refuse a pre-vote while its term is still 0."""

_ANY_ROLE: Final[dict[type[Message], Callable[..., None]]] = {
    MsgVote: candidate.handle_vote,
    MsgPreVote: candidate.handle_pre_vote,
    MsgVoteResp: candidate.on_vote_answer,
    MsgTimeoutNow: candidate.on_timeout_now,
    MsgStorageAppendResp: ready.handle_storage_append_resp,
    MsgStorageApplyResp: ready.handle_storage_apply_resp,
}

_HANDLERS: Final[tuple[dict[type[Message], Callable[..., None]], ...]] = (
    _ANY_ROLE | follower.HANDLERS,
    _ANY_ROLE | candidate.HANDLERS,
    _ANY_ROLE | candidate.HANDLERS,
    _ANY_ROLE | leader.HANDLERS,
)
"""Handlers by role (`StateType` is the index) and message type. Other messages are ignored."""

assert list(range(4)) == [FOLLOWER, PRE_CANDIDATE, CANDIDATE, LEADER]


@dataclass(frozen=True, slots=True)
class Status:
    """Summary of a node for people and tests."""

    id: NodeId
    hard_state: HardState
    soft_state: SoftState
    applied: Index
    membership: Membership
    lead_transferee: NodeId
    progress: dict[NodeId, Progress]
    """Progress per member, ids ascending; empty unless leader. Live objects: do not change them."""


class RawNode(ReadyMaker):
    """One replica of one group. Raises subclasses of RaftError; see each method.

    `ReadyMaker` is a base and no part, which saves the host a call per group and turn.
    """

    __slots__ = ()

    def __init__(self, config: Config) -> None:
        """Create the replica.

        Use `raft`, its state, for invariants, tests, and reads by the host for each message. All
        other access goes through the methods and properties here.
        """
        super().__init__(Raft(config))

    # --- Input ---------------------------------------------------------------------------------

    def step(self, msg: Message) -> None:
        """Process a message from a peer or from the local storage.

        Raises StepPeerNotFound for a response from a node that is not a member, ProposalDropped for
        a forwarded proposal that cannot be appended, Contradiction for an impossible message.
        """
        raft = self.raft
        kind = type(msg)
        if (
            kind in RESPONSES
            and msg.from_ not in raft.progress
            and msg.from_ != raft.id
            and msg.from_ not in raft.membership.members()
        ):
            raise StepPeerNotFound(msg.from_)
        term = msg.term
        if term != raft.term:
            if term == NO_TERM:
                if kind in _OF_A_TERM:
                    raise Contradiction(f"{kind.__name__} without a term")
            elif not self._admit_other_term(msg):
                return
        handler = _HANDLERS[raft.state].get(kind)
        if handler is not None:
            handler(raft, msg)
        elif kind is MsgStorageAppend or kind is MsgStorageApply:
            raise StepLocalMessage

    def _admit_other_term(self, msg: Message) -> bool:
        """Process the term of a message from another term (§5.1). Return True to handle it too."""
        raft = self.raft
        kind = type(msg)
        if msg.term > raft.term:
            if not _can_be_reached(raft, msg.term):
                raise Contradiction(f"term {msg.term} is too far above term {raft.term}")
            if isinstance(msg, MsgVote | MsgPreVote):
                if raft.has_leader_lease and not msg.transfer:
                    # Stickiness: a replica that hears a leader does not help to depose it (§6).
                    return False
                if kind is MsgPreVote:
                    # A pre-vote is only a query. It changes no term.
                    return True
            if isinstance(msg, MsgPreVoteResp) and not msg.reject:
                # A grant carries a term that no replica has reached, a rejection a real one.
                return True
            lead = msg.from_ if kind in _FROM_LEADERS else NONE
            follower.become_follower(raft, msg.term, lead)
            return True
        if kind in (MsgHeartbeat, MsgApp, MsgCommit) and (raft.check_quorum or raft.pre_vote):
            # A leader of an older term. Our campaigns cannot depose it, because others stick to it.
            # Send it our term; otherwise it would never accept our messages again.
            raft.msgs_after_append.append(MsgAppResp(msg.from_, raft.id, raft.term, NO_INDEX))
        elif kind is MsgPreVote:
            # Otherwise two candidates of different terms could reject each other forever.
            raft.msgs_after_append.append(
                MsgPreVoteResp(msg.from_, raft.id, raft.term, reject=True)
            )
        elif kind is MsgStorageAppendResp:
            return True
        return False

    def tick(self, n: int = 1) -> None:
        """Advance time by `n` ticks."""
        if self.raft.state is LEADER:
            leader.tick(self.raft, n)
        else:
            candidate.tick(self.raft, n)

    def propose(self, entries: list[Entry]) -> None:
        """Append entries, all or none, or forward them to the leader.

        Term, index and base offset are written into the given objects when they are appended.
        Raises ProposalDropped.
        """
        raft = self.raft
        if raft.state is LEADER:
            leader.propose(raft, entries)
        elif raft.state is FOLLOWER:
            follower.propose(raft, entries)
        else:
            raise ProposalDropped(DropReason.NO_LEADER)

    def propose_conf_change(self, change: ConfChange, *, v1: bool = False) -> Entry:
        """Propose a membership change and return its entry.

        `v1` encodes a single change in the older form. A leader that cannot accept the change now
        (another one is not applied yet, or it does not fit) appends an empty entry instead, whose
        kind is NOOP. Raises ProposalDropped.
        """
        assert not v1 or len(change.changes) == 1, change
        entry = Entry(
            kind=EntryKind.CONF_CHANGE if v1 else EntryKind.CONF_CHANGE_V2,
            data=membership.encode_conf_change(change),
        )
        self.propose([entry])
        return entry

    def apply_conf_change(self, entry: Entry) -> ConfState:
        """Apply a committed membership change and return the membership in effect.

        The host calls this for each such entry, in order. An entry that a snapshot has overtaken
        changes nothing. Raises MalformedConfChange, InvalidConfChange: the log then holds an entry
        that must not be in it.
        """
        raft = self.raft
        if entry.index > raft.membership_index:
            change = membership.decode_conf_change(entry.data)
            raft.set_membership(membership.changed(raft.membership, change), entry.index)
            if raft.state is LEADER:
                leader.membership_changed(raft)
        return raft.membership.conf_state()

    def campaign(self) -> None:
        """Start a campaign now, if this replica may campaign."""
        candidate.start_campaign(self.raft)

    def campaign_soon(self, ticks: int) -> None:
        """Campaign in `ticks` ticks, unless a leader is heard or a vote is cast before."""
        assert ticks > 0, ticks
        if self.raft.state is not LEADER:
            candidate.campaign_soon(self.raft, ticks)

    def allow_leading(self, *, allowed: bool) -> None:
        """Set whether this replica may lead.

        A replica that may not lead follows, votes and acknowledges as usual. It does not campaign,
        not even when leadership is transferred to it, and a running campaign ends. A current leader
        keeps leading: its host transfers leadership.
        """
        if allowed:
            candidate.allow_leading(self.raft)
        else:
            candidate.forbid_leading(self.raft)

    def set_election_timeout(self, ticks: int) -> None:
        """Replace the random election timeout. Use: scripted elections in tests and tools."""
        self.raft.randomized_election_timeout = ticks

    def advance(self, ready: Ready) -> None:
        """Report that `ready`, the last one, is carried out. For the synchronous mode."""
        assert not self.raft.async_storage_writes, (
            "with asynchronous storage writes, storage answers by messages"
        )
        for msg in self.steps_on_advance(ready):
            self.step(msg)

    def entries_ready(self, peer: NodeId, entries: list[Entry]) -> None:
        """Deliver the entries of a ColdRead; an empty list if they could not be read."""
        raft = self.raft
        if peer == raft.id:
            raft.log.supply_committed(entries)
        elif raft.state is LEADER:
            leader.entries_ready(raft, peer, entries)

    def know_committed(self, *, index: Index, term: Term) -> None:
        """Mark the entry with this index and term as committed.

        The host has learnt it from a replica that applied the entry. The entry must be in this log
        and durable.
        """
        log = self.raft.log
        assert index <= log.stable, (index, log.stable)
        assert log.matches(index=index, term=term), (index, term)
        log.commit_to(index)

    def take_state(self, snapshot: Snapshot) -> None:
        """Continue after `snapshot`, with its membership.

        The state machine was given another replica's state up to that index, whose entries are in
        this log and durable. Use: on a replica that does not lead and has no entries being applied.
        """
        follower.take_state(self.raft, snapshot)

    def tell_commit(self) -> list[MsgCommit]:
        """With `commit_apart`: return the MsgCommits due to peers and count them as sent.

        Empty unless leader.
        """
        return leader.tell_commit(self.raft) if self.raft.state is LEADER else []

    def pace(self, learners: Mapping[NodeId, int]) -> None:
        """Set learners whose entries the host reads and schedules, with the bytes per read.

        Applies while they are learners and this replica leads; see `ColdRead`.
        """
        self.raft.paced = learners

    def transfer_leader(self, transferee: NodeId) -> None:
        """Transfer leadership to a voter; a follower forwards the request (thesis §3.10)."""
        raft = self.raft
        if raft.state is LEADER:
            leader.transfer(raft, transferee)
        elif raft.state is FOLLOWER:
            follower.pass_transfer_on(raft, transferee)

    def forget_leader(self) -> None:
        """Forget the leader, or the candidate voted for, so that other candidates are heard.

        No effect unless follower.
        """
        if self.raft.state is FOLLOWER:
            follower.forget_leader(self.raft)

    def read_index(self, context: bytes) -> bool:
        """Request an index that is safe to read at; the answer is a `ReadState` with this context.

        Return False if no leader is known. A request may remain unanswered when leadership changes
        or when too many wait behind it. The host must then time it out.
        """
        raft = self.raft
        if raft.state is LEADER:
            leader.read_index(raft, raft.id, context)
            return True
        if raft.state is FOLLOWER:
            return follower.pass_read_on(raft, raft.id, context)
        return False

    # --- Knowledge from the host ---------------------------------------------------------------

    def leader_heard(self, ticks_ago: int, *, lead: NodeId = NONE, term: Term = NO_TERM) -> None:
        """Record proof that the leader was alive `ticks_ago` ticks ago.

        `lead` and `term` also name the leader, as a heartbeat would. A follower that knows no
        leader accepts it, an older term is ignored, and a newer one is entered if it is possible.
        """
        raft = self.raft
        if not _can_be_reached(raft, term):
            return
        if lead != NONE and (term > raft.term or (term == raft.term and raft.lead != lead)):
            assert not (raft.state is LEADER and term == raft.term), (lead, term)
            follower.become_follower(raft, term, lead)
            raft.election_elapsed = ticks_ago
        elif raft.state is FOLLOWER and raft.lead != NONE and term in (0, raft.term):
            raft.campaign_due = 0
            raft.election_elapsed = min(raft.election_elapsed, ticks_ago)

    def newer_term(self, term: Term) -> None:
        """Enter `term` if it is newer and possible, as on any message of that term (§5.1).

        The host has proof that other replicas have reached it.
        """
        raft = self.raft
        if term > raft.term and _can_be_reached(raft, term):
            follower.become_follower(raft, term, NONE)

    def peer_heard(self, peer: NodeId) -> None:
        """Count a peer as heard for check-quorum; the host heard from it by other means."""
        progress = self.raft.progress.get(peer)
        if progress is not None:
            progress.recent_active = True

    @property
    def asks(self) -> bool:
        """True if a leader has heartbeats to send when they are due."""
        return leader.asks(self.raft)

    def peers_silent(self, silent: Container[NodeId]) -> bool:
        """Report that nothing at all was heard of these peers for an election timeout.

        Check-quorum then need not wait for the end of its period. Return True if a leader stepped
        down.
        """
        return self.raft.state is LEADER and leader.peers_silent(self.raft, silent)

    def report_unreachable(self, peer: NodeId) -> None:
        """Report that messages to a peer, including a snapshot, were lost."""
        if self.raft.state is LEADER:
            leader.report_unreachable(self.raft, peer)

    def report_snapshot(self, peer: NodeId, ok: bool) -> None:
        """Report that a snapshot reached a peer, or did not."""
        if self.raft.state is LEADER:
            leader.report_snapshot(self.raft, peer, ok=ok)

    # --- Views ---------------------------------------------------------------------------------

    def ticks_until_due(self) -> int:
        """Return the ticks after which `tick` would do something; NEVER_DUE if it never would.

        Any other call may change the result, so the host must query it again after each.
        """
        raft = self.raft
        if raft.state is LEADER:
            return leader.ticks_until_due(raft, NEVER_DUE)
        log = raft.log
        # `Raft.is_promotable`, inlined because this is called very often.
        if not (raft.is_voter and raft.may_lead) or log.last_index < log.lacks_to:
            return NEVER_DUE
        if log.snapshot is not None:
            return NEVER_DUE
        due = max(raft.randomized_election_timeout - raft.election_elapsed, 1)
        return min(due, raft.campaign_due) if raft.campaign_due else due

    @property
    def id(self) -> NodeId:
        """Id of this replica."""
        return self.raft.id

    @property
    def term(self) -> Term:
        """Current term."""
        return self.raft.term

    @property
    def vote(self) -> NodeId:
        """Candidate that received this replica's vote in the current term."""
        return self.raft.vote

    @property
    def lead(self) -> NodeId:
        """Known leader, else NONE."""
        return self.raft.lead

    @property
    def state(self) -> StateType:
        """Current role."""
        return self.raft.state

    @property
    def is_leader(self) -> bool:
        """True if this replica leads."""
        return self.raft.state is LEADER

    @property
    def commit(self) -> Index:
        """Highest index known to be committed."""
        return self.raft.log.committed

    @property
    def commit_news_due(self) -> bool:
        """True if `tell_commit` may return messages."""
        return self.raft.commit_news_due

    @property
    def applied(self) -> Index:
        """Highest applied index."""
        return self.raft.log.applied

    @property
    def stable(self) -> Index:
        """Highest locally durable index; 0 while a snapshot that replaces the log is not."""
        log = self.raft.log
        return log.stable if log.snapshot is None else NO_INDEX

    @property
    def last_index(self) -> Index:
        """Last index in the log."""
        return self.raft.log.last_index

    @property
    def own_term_committed(self) -> bool:
        """True if this replica leads and has committed an entry of its own term (§8)."""
        return self.raft.own_term_committed

    @property
    def transferring(self) -> NodeId:
        """Transferee of a leadership transfer in progress, else NONE."""
        return self.raft.lead_transferee

    @property
    def uncommitted_bytes(self) -> int:
        """Bytes of payload appended by this leader and not yet applied."""
        return self.raft.uncommitted_bytes

    @property
    def membership(self) -> Membership:
        """Configuration in effect."""
        return self.raft.membership

    @property
    def membership_changing(self) -> bool:
        """True if a leader must wait before it may propose another membership change."""
        return self.raft.pending_conf_index > self.raft.log.applied

    def next_offset(self) -> Offset:
        """Return the Kafka offset after the last entry."""
        return self.raft.log.next_offset

    def voters(self) -> frozenset[NodeId]:
        """Return the voters, those of both halves while joint."""
        return self.raft.membership.voters()

    def progress(self, peer: NodeId) -> Progress | None:
        """Return the leader's view of a member; None if not a member or this node does not lead."""
        return self.raft.progress.get(peer) if self.raft.state is LEADER else None

    def status(self) -> Status:
        """Return a summary of the node."""
        raft = self.raft
        return Status(
            id=raft.id,
            hard_state=raft.hard_state(),
            soft_state=raft.soft_state(),
            applied=raft.log.applied,
            membership=raft.membership,
            lead_transferee=raft.lead_transferee,
            progress=dict(raft.progress) if raft.state is LEADER else {},
        )


def _can_be_reached(raft: Raft, term: Term) -> bool:
    """Return True if other replicas can have reached that term."""
    return term <= TERM_MAX and term - raft.term <= TERM_LEAP_MAX
