"""`RawNode`: one replica of one group, driven from outside.

The host calls `step` with what arrives, `tick` as time passes, `propose` with what is to be
replicated; it then takes a `Ready`, does what it says, and delivers the storage's answers through
`step` (asynchronous mode) or calls `advance` (synchronous mode). The node does no I/O, knows no
clock and has no randomness of its own: equal calls give equal Readys.

This file is the border: it checks what comes in, compares terms (§5.1) and dispatches by message
type to the role that is held. What the roles do is in `raft.follower`, `raft.candidate`,
`raft.leader`; how a Ready is made in `raft.ready`.
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
"""`ticks_until_due` of a node that time alone does not move."""

TERM_LEAP_MAX: Final = 1 << 24
"""Nobody is behind by so many terms: that is an election each second for half a year. One message
of a faulty peer must not use up the terms that a group has, for there is no way back."""

_FROM_LEADERS: Final = frozenset((MsgApp, MsgHeartbeat, MsgCommit, MsgSnap))
"""Whoever sends one leads its term."""

_OF_A_TERM: Final = _FROM_LEADERS | {
    MsgAppResp,
    MsgVote,
    MsgVoteResp,
    MsgPreVote,
    MsgHeartbeatResp,
    MsgTimeoutNow,
    MsgReadIndexResp,
}
"""Between peers; whoever sends one is in a term. A new replica may refuse a pre-vote before it is
in any."""

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
"""By role (`StateType` is the index), then by message type; what is missing is ignored."""

assert list(range(4)) == [FOLLOWER, PRE_CANDIDATE, CANDIDATE, LEADER]


@dataclass(frozen=True, slots=True)
class Status:
    """A look at a node, for people and for tests."""

    id: NodeId
    hard_state: HardState
    soft_state: SoftState
    applied: Index
    membership: Membership
    lead_transferee: NodeId
    progress: dict[NodeId, Progress]
    """Per member, ids ascending; empty unless leader. Live objects: do not change them."""


class RawNode:
    """One replica of one group. Raises RaftError's children; see each method."""

    __slots__ = ("_maker", "has_ready", "raft", "ready")

    def __init__(self, config: Config) -> None:
        self.raft = Raft(config)
        """The state. Use: invariants, tests, and what a host looks at for each message; the rest it
        is told by the methods and properties below."""
        self._maker = ReadyMaker(self.raft)
        # Bound here to save the host a call per group and turn.
        self.has_ready: Callable[[], bool] = self._maker.has_ready
        """Whether `ready()` would return anything. Constant time."""
        self.ready: Callable[[], Ready] = self._maker.ready
        """Everything the node wants done now; it counts as given out."""

    # --- Input ---------------------------------------------------------------------------------

    def step(self, msg: Message) -> None:
        """Take in a message from a peer or from the own storage.

        Raises StepPeerNotFound for an answer from a stranger, ProposalDropped for a forwarded
        proposal that cannot be taken, Contradiction for what cannot be.
        """
        raft = self.raft
        kind = type(msg)
        if msg.from_ not in raft.progress and kind in RESPONSES and msg.from_ != raft.id:
            raise StepPeerNotFound(msg.from_)
        term = msg.term
        if term != raft.term:
            if term == NO_TERM:
                if kind in _OF_A_TERM:
                    raise Contradiction(f"{kind.__name__} of no term")
            elif not self._admit_other_term(msg):
                return
        handler = _HANDLERS[raft.state].get(kind)
        if handler is not None:
            handler(raft, msg)
        elif kind is MsgStorageAppend or kind is MsgStorageApply:
            raise StepLocalMessage

    def _admit_other_term(self, msg: Message) -> bool:
        """Deal with a message of another term (§5.1). Returns whether to handle it as well."""
        raft = self.raft
        kind = type(msg)
        if msg.term > raft.term:
            if not _can_be_reached(raft, msg.term):
                raise Contradiction(f"term {msg.term}, in term {raft.term}")
            if isinstance(msg, MsgVote | MsgPreVote):
                if raft.has_leader_lease and not msg.transfer:
                    # Stickiness: whoever hears a leader does not help to depose it (§6).
                    return False
                if kind is MsgPreVote:
                    # Only a question: it changes nobody's term.
                    return True
            if isinstance(msg, MsgPreVoteResp) and not msg.reject:
                # Granted for a term that nobody has reached; a rejection carries a real one.
                return True
            lead = msg.from_ if kind in _FROM_LEADERS else NONE
            follower.become_follower(raft, msg.term, lead)
            return True
        if kind in (MsgHeartbeat, MsgApp, MsgCommit) and (raft.check_quorum or raft.pre_vote):
            # A leader of an older term that cannot be deposed by our campaign, because others
            # stick to it: let it learn our term, or we would never be heard again.
            raft.msgs_after_append.append(MsgAppResp(msg.from_, raft.id, raft.term, NO_INDEX))
        elif kind is MsgPreVote:
            # Else two candidates of different terms could reject each other for ever.
            raft.msgs_after_append.append(
                MsgPreVoteResp(msg.from_, raft.id, raft.term, reject=True)
            )
        elif kind is MsgStorageAppendResp:
            return True
        return False

    def tick(self, n: int = 1) -> None:
        """`n` ticks passed."""
        if self.raft.state is LEADER:
            leader.tick(self.raft, n)
        else:
            candidate.tick(self.raft, n)

    def propose(self, entries: list[Entry]) -> None:
        """Append entries, all or none, or forward them to the leader.

        Appended entries get their term, index and base offset stamped into the given objects.
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
        """Propose a membership change; `v1`: a single one in the older form.

        Returns the entry. A leader that may not take the change now (another one is not applied
        yet, or it does not fit) appends an empty entry in its place: its kind is then NOOP.
        Raises ProposalDropped.
        """
        assert not v1 or len(change.changes) == 1, change
        entry = Entry(
            kind=EntryKind.CONF_CHANGE if v1 else EntryKind.CONF_CHANGE_V2,
            data=membership.encode_conf_change(change),
        )
        self.propose([entry])
        return entry

    def apply_conf_change(self, entry: Entry) -> ConfState:
        """Apply a committed membership change; the host calls it for each such entry, in order.

        An entry that a snapshot has overtaken meanwhile changes nothing. Returns the membership
        in effect. Raises MalformedConfChange, InvalidConfChange: the log holds what it never
        should.
        """
        raft = self.raft
        if entry.index > raft.membership_index:
            change = membership.decode_conf_change(entry.data)
            raft.set_membership(membership.changed(raft.membership, change), entry.index)
            if raft.state is LEADER:
                leader.membership_changed(raft)
        return raft.membership.conf_state()

    def campaign(self) -> None:
        """Stand for leader now, if this replica may."""
        candidate.start_campaign(self.raft)

    def campaign_soon(self, ticks: int) -> None:
        """Stand for leader in `ticks` ticks, unless a leader is heard or a vote cast before."""
        assert ticks > 0, ticks
        if self.raft.state is not LEADER:
            candidate.campaign_soon(self.raft, ticks)

    def allow_leading(self, *, allowed: bool) -> None:
        """Let this replica lead, or not. One that is not allowed follows, votes and acknowledges as
        any other; it does not campaign, also when leadership is handed to it, and a campaign that
        is under way ends. One that leads goes on: its host hands leadership over."""
        if allowed:
            candidate.allow_leading(self.raft)
        else:
            candidate.forbid_leading(self.raft)

    def set_election_timeout(self, ticks: int) -> None:
        """Replace the drawn election timeout. Use: scripted elections in tests and tools."""
        self.raft.randomized_election_timeout = ticks

    def advance(self, ready: Ready) -> None:
        """Synchronous mode: `ready`, the last one, is worked off."""
        assert not self.raft.async_storage_writes, "storage answers by message"
        for msg in self._maker.steps_on_advance(ready):
            self.step(msg)

    def entries_ready(self, peer: NodeId, entries: list[Entry]) -> None:
        """Deliver what a ColdRead asked for; an empty list if it could not be read."""
        raft = self.raft
        if peer == raft.id:
            raft.log.supply_committed(entries)
        elif raft.state is LEADER:
            leader.entries_ready(raft, peer, entries)

    def know_committed(self, *, index: Index, term: Term) -> None:
        """Somebody who applied the entry of this index and term says so: it is committed, and here
        it is in the log and durable."""
        log = self.raft.log
        assert index <= log.stable, (index, log.stable)
        assert log.matches(index=index, term=term), (index, term)
        log.commit_to(index)

    def take_state(self, snapshot: Snapshot) -> None:
        """The state machine was given what another replica made of entries up to the snapshot's,
        which are in this log and durable: go on behind them, with its members. Use: on a replica
        that does not lead and has given nothing out to be applied."""
        follower.take_state(self.raft, snapshot)

    def tell_commit(self) -> list[MsgCommit]:
        """With `commit_apart`: what peers have to be told of the commit index; it counts as sent.
        Empty unless leader."""
        return leader.tell_commit(self.raft) if self.raft.state is LEADER else []

    def pace(self, learners: Mapping[NodeId, int]) -> None:
        """These get entries only when the host says so, so many bytes at a time, while they are
        learners and this replica leads: see `ColdRead`."""
        self.raft.paced = learners

    def transfer_leader(self, transferee: NodeId) -> None:
        """Hand leadership to a voter; a follower asks its leader to (thesis §3.10)."""
        raft = self.raft
        if raft.state is LEADER:
            leader.transfer(raft, transferee)
        elif raft.state is FOLLOWER:
            follower.pass_transfer_on(raft, transferee)

    def step_down(self) -> None:
        """A leader gives up at once, without a successor."""
        raft = self.raft
        if raft.state is LEADER:
            follower.become_follower(raft, raft.term, NONE)

    def forget_leader(self) -> None:
        """A follower stops believing in its leader, or in whom it voted for, so that it hears
        candidates."""
        if self.raft.state is FOLLOWER:
            follower.forget_leader(self.raft)

    def read_index(self, context: bytes) -> bool:
        """Ask for an index safe to read at; the answer is a `ReadState` with this context.

        Returns False if there is no leader to ask. A request may get no answer when leadership
        changes, or when too many wait behind it: the host gives up on it then.
        """
        raft = self.raft
        if raft.state is LEADER:
            leader.read_index(raft, raft.id, context)
            return True
        if raft.state is FOLLOWER:
            return follower.pass_read_on(raft, raft.id, context)
        return False

    # --- What the host knows -------------------------------------------------------------------

    def leader_heard(self, ticks_ago: int, *, lead: NodeId = NONE, term: Term = NO_TERM) -> None:
        """The leader was alive `ticks_ago` ticks ago, the host has proof.

        With `lead` and `term` it also tells who leads, as a heartbeat would: a follower that does
        not know takes it, an older term is ignored, a newer one entered, unless it cannot be.
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
        """Others are in that term, the host has proof: if it is newer it is entered, as by any
        message of theirs (§5.1), unless it cannot be."""
        raft = self.raft
        if term > raft.term and _can_be_reached(raft, term):
            follower.become_follower(raft, term, NONE)

    def peer_heard(self, peer: NodeId) -> None:
        """A peer was heard on another way: it counts for check-quorum."""
        progress = self.raft.progress.get(peer)
        if progress is not None:
            progress.recent_active = True

    @property
    def asks(self) -> bool:
        """Whether a leader has heartbeats to send, when they are due."""
        return leader.asks(self.raft)

    def peers_silent(self, silent: Container[NodeId]) -> bool:
        """Nothing at all was heard of these peers for an election timeout: check-quorum need not
        wait until its period ends. True: a leader stepped down."""
        return self.raft.state is LEADER and leader.peers_silent(self.raft, silent)

    def report_unreachable(self, peer: NodeId) -> None:
        """Messages to a peer, a snapshot included, were lost."""
        if self.raft.state is LEADER:
            leader.report_unreachable(self.raft, peer)

    def report_snapshot(self, peer: NodeId, ok: bool) -> None:
        """A snapshot reached a peer, or did not."""
        if self.raft.state is LEADER:
            leader.report_snapshot(self.raft, peer, ok=ok)

    # --- Views ---------------------------------------------------------------------------------

    def ticks_until_due(self) -> int:
        """Ticks after which `tick` would do something; NEVER_DUE if time alone never does.

        Asked again after every other call: anything may change it.
        """
        raft = self.raft
        if raft.state is LEADER:
            return leader.ticks_until_due(raft, NEVER_DUE)
        log = raft.log
        # Not promotable; spelled out, as this is asked so often.
        if not (raft.is_voter and raft.may_lead) or log.last_index < log.lacks_to:
            return NEVER_DUE
        if log.snapshot is not None:
            return NEVER_DUE
        due = max(raft.randomized_election_timeout - raft.election_elapsed, 1)
        return min(due, raft.campaign_due) if raft.campaign_due else due

    @property
    def id(self) -> NodeId:
        """This replica's id."""
        return self.raft.id

    @property
    def term(self) -> Term:
        """Current term."""
        return self.raft.term

    @property
    def vote(self) -> NodeId:
        """Whom it voted for in this term."""
        return self.raft.vote

    @property
    def lead(self) -> NodeId:
        """The leader as far as known, else NONE."""
        return self.raft.lead

    @property
    def state(self) -> StateType:
        """The role."""
        return self.raft.state

    @property
    def is_leader(self) -> bool:
        """Whether it leads."""
        return self.raft.state is LEADER

    @property
    def commit(self) -> Index:
        """Last index known committed."""
        return self.raft.log.committed

    @property
    def commit_news_due(self) -> bool:
        """Whether `tell_commit` may have something to say."""
        return self.raft.commit_news_due

    @property
    def applied(self) -> Index:
        """Last index applied."""
        return self.raft.log.applied

    @property
    def stable(self) -> Index:
        """Last index durable here; 0 as long as a snapshot that replaces the log is not."""
        log = self.raft.log
        return log.stable if log.snapshot is None else NO_INDEX

    @property
    def last_index(self) -> Index:
        """Last index in the log."""
        return self.raft.log.last_index

    @property
    def own_term_committed(self) -> bool:
        """Whether it leads and has committed an entry of its own term (§8)."""
        return self.raft.own_term_committed

    @property
    def transferring(self) -> NodeId:
        """Whom leadership is being handed to, else NONE."""
        return self.raft.lead_transferee

    @property
    def uncommitted_bytes(self) -> int:
        """Payload appended by this leader and not yet applied."""
        return self.raft.uncommitted_bytes

    @property
    def membership(self) -> Membership:
        """The configuration in effect."""
        return self.raft.membership

    @property
    def membership_changing(self) -> bool:
        """Whether a leader must wait before it may propose another membership change."""
        return self.raft.pending_conf_index > self.raft.log.applied

    def next_offset(self) -> Offset:
        """Kafka offset after the last entry."""
        return self.raft.log.next_offset

    def voters(self) -> frozenset[NodeId]:
        """Voters, of both halves while joint."""
        return self.raft.membership.voters()

    def progress(self, peer: NodeId) -> Progress | None:
        """A leader's view of a member; None if it is no member or this node does not lead."""
        return self.raft.progress.get(peer) if self.raft.state is LEADER else None

    def status(self) -> Status:
        """A look at the node."""
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
    """Whether others can be in that term."""
    return term <= TERM_MAX and term - raft.term <= TERM_LEAP_MAX
