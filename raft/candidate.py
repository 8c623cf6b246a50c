"""Elections: campaigns and votes (§5.2, §5.4.1, thesis §9.6).

`campaign` requests votes. With pre-vote there are two rounds, a query and the election; without it,
or when the old leader transfers leadership, there is only the election. A candidate's vote for
itself is a message like the others: it counts once its own disk holds it. With `durable_campaign`
votes are requested from the others only after that.

A vote that is being written is not abandoned for another term. Otherwise, on a disk as slow as an
election timeout, no candidate would ever win. So with `durable_campaign` a replica does not
campaign before its vote, for any candidate, is durable, and then waits for `VOTE_WAITS` times as
long as that write took, because the others' disks need time too. A candidate with a faster disk
campaigns again before the slower ones have answered. Their late votes count while the term they
were given in is current and has no leader.

Voting is here too, because granting and counting votes are two sides of one rule; every role votes.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Final, assert_never

from ids import TERM_MAX, Index, NodeId, Term
from raft.errors import DropReason, NotInMemory, ProposalDropped
from raft.follower import (
    become_follower,
    handle_append,
    handle_heartbeat,
    handle_snapshot,
)
from raft.leader import become_leader
from raft.messages import (
    Message,
    MsgApp,
    MsgCommit,
    MsgHeartbeat,
    MsgPreVote,
    MsgPreVoteResp,
    MsgProp,
    MsgSnap,
    MsgTimeoutNow,
    MsgVote,
    MsgVoteResp,
)
from raft.quorum import VoteResult, joint_vote
from raft.state import CANDIDATE, FOLLOWER, LEADER, PRE_CANDIDATE, Raft
from raft.types import CONF_CHANGE_KINDS, NONE

VOTE_WAITS: Final = 4
"""Time given to the other voters' disks, as a multiple of the time the replica's own took. They may
be writing something else first, and syncs differ in duration."""
VOTE_WAIT_MAX: Final = 2_000
"""Upper bound of that wait, in ticks."""


class Campaign(Enum):
    """Kind of campaign."""

    PRE_ELECTION = "pre-election"
    ELECTION = "election"
    TRANSFER = "transfer"


def tick(raft: Raft, ticks: int) -> None:
    """Advance time for a replica that does not lead; campaign after an election timeout."""
    raft.election_elapsed += ticks
    due = raft.election_elapsed >= raft.randomized_election_timeout
    if raft.campaign_due:
        raft.campaign_due = max(raft.campaign_due - ticks, 0)
        due = due or raft.campaign_due == 0
    if raft.vote_pending:
        raft.vote_ticks += ticks
    elif raft.vote_wait:
        raft.vote_wait = max(raft.vote_wait - ticks, 0)
    if due and raft.is_promotable:
        raft.election_elapsed = 0
        start_campaign(raft)


def start_campaign(raft: Raft) -> None:
    """Campaign in the configured way, if this replica may."""
    if not raft.vote_pending:
        hup(raft, Campaign.PRE_ELECTION if raft.pre_vote else Campaign.ELECTION)


def hup(raft: Raft, how: Campaign) -> None:
    """Campaign if this replica may.

    It may not while it leads, is not promotable, or is about to apply another membership, or if
    there is no higher term.
    """
    if raft.state is LEADER or not raft.is_promotable or raft.term >= TERM_MAX:
        return
    _commit_what_conf_changes_prove(raft)
    if not _has_unapplied_conf_change(raft):
        campaign(raft, how)


def campaign_soon(raft: Raft, ticks: int) -> None:
    """Campaign in `ticks` ticks, or after the current election has had its time."""
    if ticks < raft.vote_wait:
        ticks = raft.vote_wait + raft.rng.randrange(raft.election_ticks)
    raft.campaign_due = ticks


def allow_leading(raft: Raft) -> None:
    """Let this replica lead.

    If its election timeout has expired meanwhile, it restarts at a random point: replicas that are
    allowed at the same time would otherwise split the vote.
    """
    if raft.may_lead:
        return
    raft.may_lead = True
    timeout = raft.randomized_election_timeout
    if raft.state is FOLLOWER and raft.election_elapsed >= timeout:
        # Resetting the elapsed time must not turn a leader long silent into one heard just now:
        # this replica would then refuse to vote for another one (§6).
        raft.lead = NONE
        raft.election_elapsed = raft.rng.randrange(timeout)


def forbid_leading(raft: Raft) -> None:
    """Do not let this replica lead.

    No campaign begins, and a campaign in progress is not won, not even by a late vote.
    """
    raft.may_lead = False
    raft.campaign_due = 0
    if raft.state is not LEADER:
        raft.ballots = None
    if raft.state in (PRE_CANDIDATE, CANDIDATE):
        become_follower(raft, raft.term, NONE)


def vote_is_durable(raft: Raft) -> None:
    """Handle that the vote of this term is durable.

    The candidate gets a full election timeout from now on, and the time that disks like this one
    need.
    """
    if not raft.vote_pending:
        return
    raft.vote_pending = False
    raft.election_elapsed = 0
    raft.campaign_due = 0
    raft.vote_wait = min(VOTE_WAITS * raft.vote_ticks, VOTE_WAIT_MAX)
    if raft.vote_wait > raft.randomized_election_timeout:
        raft.randomized_election_timeout = raft.vote_wait + raft.rng.randrange(raft.election_ticks)


def campaign(raft: Raft, how: Campaign) -> None:
    """Request votes, or pre-votes, from all voters."""
    match how:
        case Campaign.PRE_ELECTION:
            _become_pre_candidate(raft)
            # A grant is for the next term, a rejection for ours: see MsgPreVoteResp.
            _request_votes(raft, MsgPreVote, MsgPreVoteResp, raft.term + 1, transfer=False)
            if raft.durable_campaign:
                _on_pre_vote_answer(raft, MsgPreVoteResp(raft.id, raft.id, raft.term + 1))
        case Campaign.ELECTION | Campaign.TRANSFER:
            _become_candidate(raft)
            transfer = how is Campaign.TRANSFER
            _request_votes(raft, MsgVote, MsgVoteResp, raft.term, transfer=transfer)
        case _:
            assert_never(how)


def _become_pre_candidate(raft: Raft) -> None:
    assert raft.state is not LEADER
    # Neither term nor vote changes: that is the purpose of pre-vote.
    raft.votes = {}
    raft.lead = NONE
    raft.campaign_due = 0
    raft.state = PRE_CANDIDATE


def _become_candidate(raft: Raft) -> None:
    assert raft.state is not LEADER
    raft.reset(raft.term + 1)
    _vote(raft, raft.id)
    raft.ballots = {}
    raft.state = CANDIDATE


def _request_votes(
    raft: Raft,
    request: type[MsgVote | MsgPreVote],
    response: type[MsgVoteResp | MsgPreVoteResp],
    term: Term,
    *,
    transfer: bool,
) -> None:
    log = raft.log
    # A pre-vote commits neither side to anything, so it need not wait for the disk.
    waits = raft.durable_campaign and request is MsgVote
    queue = raft.msgs_after_append if waits else raft.msgs
    for voter in sorted(raft.membership.voters()):
        if voter == raft.id:
            if waits or not raft.durable_campaign:
                raft.msgs_after_append.append(response(voter, raft.id, term))
        else:
            queue.append(request(voter, raft.id, term, log.last_term, log.last_index, transfer))


def _commit_what_conf_changes_prove(raft: Raft) -> None:
    """Commit the second newest membership change in the log, which the newest one proves committed.

    A leader appends a membership change only once it has applied the one before (thesis §4.1).

    The later change brings a commit index that covers the earlier one, but a crash may keep the
    entries and lose that index. With members two changes old a majority need not overlap the
    current one. Refusing to campaign is not enough: perhaps only replicas with the later change can
    win, and then the earlier one would never be committed. So it is committed here and applied, and
    the next timeout starts the campaign.
    """
    if raft.disable_conf_change_validation:
        return
    log = raft.log
    first = log.committed + 1
    changes: list[Index] = []
    while first <= log.last_index:
        try:
            entries = log.slice(first, log.last_index + 1, log.applying_bytes_max)
        except NotInMemory as answer:
            # Not what a crash left: only committed entries leave memory.
            first = answer.end
            continue
        changes += [entry.index for entry in entries if entry.kind in CONF_CHANGE_KINDS]
        first = entries[-1].index + 1
    if len(changes) > 1:
        log.commit_to(changes[-2])


def _has_unapplied_conf_change(raft: Raft) -> bool:
    """Return True if a committed membership change waits to be applied.

    A campaign with the old voters could elect a leader beside the one of the new voters. Entries
    that are not in memory count as a change: applying will load them.
    """
    log = raft.log
    first = log.applied + 1
    while first <= log.committed:
        try:
            entries = log.slice(first, log.committed + 1, log.applying_bytes_max)
        except NotInMemory:
            return True
        if any(entry.kind in CONF_CHANGE_KINDS for entry in entries):
            return True
        first = entries[-1].index + 1
    return False


# --- Voting ------------------------------------------------------------------------------------


def _vote(raft: Raft, candidate: NodeId) -> None:
    raft.vote = candidate
    raft.vote_pending = raft.durable_campaign
    raft.vote_ticks = 0


def handle_vote(raft: Raft, msg: MsgVote) -> None:
    """Handle RequestVote (Figure 2). Learners vote: the candidate may know newer members."""
    may_vote = raft.vote == msg.from_ or (raft.vote == NONE and raft.lead == NONE)
    may_vote = may_vote and not raft.log.lacks_committed
    if may_vote and raft.log.is_up_to_date(index=msg.index, term=msg.log_term):
        raft.msgs_after_append.append(MsgVoteResp(msg.from_, raft.id, msg.term))
        raft.election_elapsed = 0
        raft.campaign_due = 0
        if raft.vote != msg.from_:
            _vote(raft, msg.from_)
    else:
        raft.msgs_after_append.append(MsgVoteResp(msg.from_, raft.id, raft.term, reject=True))


def handle_pre_vote(raft: Raft, msg: MsgPreVote) -> None:
    """Handle a pre-vote request; it changes no term or vote here (thesis §9.6)."""
    may_vote = (
        msg.term > raft.term or raft.vote == msg.from_ or (raft.vote == NONE and raft.lead == NONE)
    )
    queue = raft.msgs if raft.durable_campaign else raft.msgs_after_append
    if (
        may_vote
        and not raft.log.lacks_committed
        and not _awaits_votes(raft, msg.from_)
        and not _comes_first(raft, msg)
        and raft.log.is_up_to_date(index=msg.index, term=msg.log_term)
    ):
        # The requested term, not ours: the sender is in an older one and would drop the answer.
        queue.append(MsgPreVoteResp(msg.from_, raft.id, msg.term))
    else:
        queue.append(MsgPreVoteResp(msg.from_, raft.id, raft.term, reject=True))


def _comes_first(raft: Raft, msg: MsgPreVote) -> bool:
    """Return True if this pre-candidate takes precedence over the sender of `msg`.

    Simultaneous pre-candidates would both be granted and then have one vote each. So the one with
    the better log, or the lower id, goes on; if that is the sender, this replica ends its pre-vote.
    Applies only in the first third of an election timeout, as the one that goes on may not reach a
    majority.
    """
    is_asking = raft.state is PRE_CANDIDATE and raft.election_elapsed < raft.election_ticks // 3
    if not (raft.durable_campaign and is_asking):
        return False
    log = raft.log
    if (log.last_term, log.last_index, -raft.id) > (msg.log_term, msg.index, -msg.from_):
        return True
    raft.votes = None
    raft.state = FOLLOWER
    return False


def _awaits_votes(raft: Raft, asker: NodeId) -> bool:
    """Return True if an election that this replica voted in may still be decided.

    No other election disturbs it while disks need their time. A candidate that repeats its request
    has not received the vote it was given.
    """
    return raft.vote_pending or (raft.lead == NONE and raft.vote_wait > 0 and raft.vote != asker)


def _count(raft: Raft, votes: dict[NodeId, bool], msg: MsgVoteResp | MsgPreVoteResp) -> VoteResult:
    # The first answer of a voter counts: a repeated message is not a second vote.
    votes.setdefault(msg.from_, not msg.reject)
    return joint_vote(raft.membership.incoming, raft.membership.outgoing, votes)


def on_vote_answer(raft: Raft, msg: MsgVoteResp) -> None:
    """Count a vote; with `durable_campaign` also a late one.

    The candidate may have started a pre-vote for the next term by then. Its log is still the one
    the vote was requested for, because no replica has led this term.
    """
    if raft.ballots is None or not (raft.state is CANDIDATE or raft.durable_campaign):
        return
    result = _count(raft, raft.ballots, msg)
    if result is VoteResult.WON:
        become_leader(raft)
    elif result is VoteResult.LOST:
        raft.ballots = None
        raft.vote_wait = 0
        if raft.state is CANDIDATE:
            become_follower(raft, raft.term, NONE)


def _on_pre_vote_answer(raft: Raft, msg: MsgPreVoteResp) -> None:
    if raft.state is not PRE_CANDIDATE or raft.votes is None:
        return
    result = _count(raft, raft.votes, msg)
    if result is VoteResult.WON:
        campaign(raft, Campaign.ELECTION)
    elif result is VoteResult.LOST:
        # Our term, not the message's: a grant carries a term that no replica has reached.
        become_follower(raft, raft.term, NONE)


# --- A candidate that meets a leader -----------------------------------------------------------


def _on_append(raft: Raft, msg: MsgApp) -> None:
    become_follower(raft, msg.term, msg.from_)
    handle_append(raft, msg)


def _on_heartbeat(raft: Raft, msg: MsgHeartbeat) -> None:
    become_follower(raft, msg.term, msg.from_)
    handle_heartbeat(raft, msg)


def _on_commit(raft: Raft, msg: MsgCommit) -> None:
    become_follower(raft, msg.term, msg.from_)
    raft.log.commit_to(msg.commit)


def _on_snapshot(raft: Raft, msg: MsgSnap) -> None:
    become_follower(raft, msg.term, msg.from_)
    handle_snapshot(raft, msg)


def _on_proposal(raft: Raft, msg: MsgProp) -> None:
    raise ProposalDropped(DropReason.NO_LEADER)


def on_timeout_now(raft: Raft, msg: MsgTimeoutNow) -> None:
    """Handle a transfer: campaign at once, without pre-vote (thesis §3.10)."""
    if raft.state is FOLLOWER:
        hup(raft, Campaign.TRANSFER)


# `...`: each handler takes the message type under which it is listed.
HANDLERS: Final[dict[type[Message], Callable[..., None]]] = {
    MsgApp: _on_append,
    MsgHeartbeat: _on_heartbeat,
    MsgCommit: _on_commit,
    MsgSnap: _on_snapshot,
    MsgProp: _on_proposal,
    MsgPreVoteResp: _on_pre_vote_answer,
}
