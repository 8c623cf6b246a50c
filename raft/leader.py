"""The leader: appends, replicates, commits, and confirms its leadership (§5.3, §5.4.2, §8).

Replication is pipelined: entries are sent ahead of acknowledgements (thesis §10.2.1). Each member's
`Progress` holds what to send next and if it may be sent. An acknowledgement updates it, may commit
entries, and sends what has become possible. The leader's own log is one of the replicas: its
acknowledgement arrives when its own disk has the entry.

`batch_appends` changes only the time of sending: a broadcast is noted in `broadcast_due` and leaves
with the next Ready.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from operator import attrgetter
from typing import Final

from ids import NO_INDEX, Index, NodeId, Term
from raft.errors import (
    Compacted,
    Contradiction,
    DropReason,
    NotInMemory,
    ProposalDropped,
    SnapshotTemporarilyUnavailable,
)
from raft.follower import become_follower
from raft.log import payload_bytes
from raft.membership import decode_conf_change
from raft.messages import (
    Message,
    MsgApp,
    MsgAppResp,
    MsgCommit,
    MsgHeartbeat,
    MsgHeartbeatResp,
    MsgProp,
    MsgReadIndex,
    MsgReadIndexResp,
    MsgSnap,
    MsgTimeoutNow,
    MsgTransferLeader,
)
from raft.progress import PROBE, REPLICATE, SNAPSHOT, Progress
from raft.quorum import VoteResult, joint_index, joint_vote, majority_index
from raft.state import LEADER, Raft
from raft.types import (
    CONF_CHANGE_KINDS,
    NONE,
    ColdRead,
    Entry,
    EntryKind,
    ReadOnlyOption,
    ReadState,
)

_match = attrgetter("match")

SNAPSHOT_ANSWERS_MAX: Final = 50
"""Heartbeats a replica may answer after a snapshot was sent before another one is sent."""


def become_leader(raft: Raft) -> None:
    """Become leader and append an empty entry; its commit shows what is committed (§5.4.2, §8)."""
    assert raft.ballots is not None
    assert raft.may_lead
    assert raft.state is not LEADER
    raft.reset(raft.term)
    raft.begin_progress()
    raft.lead = raft.id
    raft.state = LEADER
    raft.election_is_over()
    own = raft.progress[raft.id]
    own.become_replicate()
    own.recent_active = True
    raft.pending_conf_index = raft.log.last_index
    raft.term_start = raft.log.last_index + 1
    _append(raft, [Entry(kind=EntryKind.NOOP)])
    _broadcast(raft)


# --- Time --------------------------------------------------------------------------------------


def tick(raft: Raft, ticks: int) -> None:
    """Advance time for a leader: check-quorum, end of a transfer, heartbeats."""
    raft.heartbeat_elapsed += ticks
    raft.election_elapsed += ticks
    if raft.election_elapsed >= raft.election_ticks:
        raft.election_elapsed = 0
        if raft.check_quorum and not _keep_quorum(raft):
            become_follower(raft, raft.term, NONE)
            return
        # The transferee has had one election timeout. Accept proposals again (thesis §3.10).
        raft.lead_transferee = NONE
    if raft.heartbeat_elapsed >= raft.heartbeat_ticks:
        rounds, raft.heartbeat_elapsed = divmod(raft.heartbeat_elapsed, raft.heartbeat_ticks)
        raft.heartbeat_rounds += rounds
        context = raft.pending_reads.last_round
        _send_heartbeats(raft, context)
        if context and raft.quiet_heartbeats:
            # Answers to a read's heartbeats do not show whether earlier messages have arrived.
            _send_heartbeats(raft, b"")


def _keep_quorum(raft: Raft) -> bool:
    """Return True if a quorum was heard since the last check (thesis §6.2); begin a new period."""
    active = {
        node: node == raft.id or progress.recent_active
        for node, progress in raft.progress.items()
        if not progress.is_learner
    }
    for _, progress in raft.peers:
        progress.recent_active = False
    return _is_quorum(raft, active)


def peers_silent(raft: Raft, silent: Container[NodeId]) -> bool:
    """Step down if the peers that are not silent form no quorum (thesis §6.2).

    Return True if the leader stepped down.
    """
    heard = {node: node == raft.id or node not in silent for node in raft.progress}
    if not raft.check_quorum or _is_quorum(raft, heard):
        return False
    become_follower(raft, raft.term, NONE)
    return True


def _is_quorum(raft: Raft, heard: Mapping[NodeId, bool]) -> bool:
    membership = raft.membership
    return joint_vote(membership.incoming, membership.outgoing, heard) is VoteResult.WON


def ticks_until_due(raft: Raft, never: int) -> int:
    """Return the number of ticks until `tick` would do something."""
    due = never
    if raft.check_quorum or raft.lead_transferee != NONE:
        due = raft.election_ticks - raft.election_elapsed
    heartbeat = raft.heartbeat_ticks - raft.heartbeat_elapsed
    if heartbeat < due:
        if not raft.quiet_heartbeats or raft.pending_reads.last_round:
            due = heartbeat
        else:
            for _, progress in _out_of_step(raft):
                rounds = max(progress.ask_round - raft.heartbeat_rounds, 1)
                due = min(due, heartbeat + (rounds - 1) * raft.heartbeat_ticks)
    # A heartbeat that was not needed when it was due may be needed now.
    return max(due, 1)


def asks(raft: Raft) -> bool:
    """Return True if any peer receives heartbeats, now or later."""
    if not raft.quiet_heartbeats or raft.pending_reads.last_round:
        return True
    return bool(_out_of_step(raft))


def _out_of_step(raft: Raft) -> list[tuple[NodeId, Progress]]:
    """Return the linked peers that lack an entry, as far as known, or the commit index.

    A peer has an entry once it has acknowledged it, and the commit index once it was sent. With
    `commit_apart` only the entries count.
    """
    last_index, committed = raft.log.last_index, raft.log.committed
    found: list[tuple[NodeId, Progress]] = []
    for peer in raft.peers:
        progress = peer[1]
        if (
            progress.state is not REPLICATE
            or progress.match != last_index
            or not (raft.commit_apart or progress.sent_commit >= committed)
        ) and raft.is_linked(peer[0]):
            found.append(peer)
    return found


def _send_heartbeats(raft: Raft, context: bytes) -> None:
    committed = raft.log.committed
    # A read's round needs answers from every peer, even if the host has proof of life.
    everybody = not raft.quiet_heartbeats or context != b""
    for node, progress in raft.peers if everybody else _out_of_step(raft):
        if everybody or _is_due_to_ask(raft, node, progress):
            # Not beyond what is known to match: the rest of the peer's log may differ from ours.
            commit = min(progress.match, committed)
            raft.msgs.append(MsgHeartbeat(node, raft.id, raft.term, commit, context))
            progress.sent_commit = commit


def _is_due_to_ask(raft: Raft, node: NodeId, progress: Progress) -> bool:
    """Return True if an out-of-step replica receives a heartbeat in this round.

    A replica that may not have read the last one yet receives none: more messages would delay
    it further.
    """
    rounds = raft.heartbeat_rounds
    if progress.ask_round > rounds:
        return False
    asked_ago = (rounds - progress.asked_round) * raft.heartbeat_ticks
    asks = not progress.tries or raft.heard_ago(node) < asked_ago
    progress.tried(rounds, asks=asks)
    return asks


# --- Proposals ---------------------------------------------------------------------------------


def propose(raft: Raft, entries: list[Entry]) -> None:
    """Append entries to the log and send them. Raises ProposalDropped, then nothing has changed."""
    assert entries
    if raft.id not in raft.progress:
        raise ProposalDropped(DropReason.REMOVED)
    if raft.lead_transferee != NONE:
        raise ProposalDropped(DropReason.TRANSFERRING)
    payload = 0
    changes_members = False
    for entry in entries:
        payload += len(entry.data)
        if entry.kind in CONF_CHANGE_KINDS:
            changes_members = True
    # The first entry is accepted whatever its size if nothing is uncommitted. Empty entries are
    # always accepted: a leader must be able to leave a joint configuration.
    if (
        payload
        and raft.uncommitted_bytes
        and raft.uncommitted_bytes + payload > raft.max_uncommitted_bytes
    ):
        raise ProposalDropped(DropReason.UNCOMMITTED_LIMIT)
    if changes_members:
        _admit_conf_changes(raft, entries)
        payload = payload_bytes(entries)  # smaller if one has become an empty entry
    raft.uncommitted_bytes += payload
    if raft.heartbeat_elapsed and not asks(raft):
        # No answer is pending, so the current interval has no purpose. Peers that these entries put
        # out of step have a whole interval to answer.
        raft.heartbeat_elapsed = 0
    _append(raft, entries)
    _broadcast(raft)


def _admit_conf_changes(raft: Raft, entries: list[Entry]) -> None:
    """Accept membership changes, or turn them into empty entries (thesis §4.1, §4.3).

    Raises MalformedConfChange, then nothing has changed.
    """
    changes = [
        (index, entry, decode_conf_change(entry.data))
        for index, entry in enumerate(entries, raft.log.last_index + 1)
        if entry.kind in CONF_CHANGE_KINDS
    ]
    for index, entry, change in changes:
        is_unapplied = raft.pending_conf_index > raft.log.applied
        # Joint: only leaving is allowed. Not joint: there is nothing to leave.
        does_not_fit = raft.membership.is_joint != (change.changes == ())
        if (is_unapplied or does_not_fit) and not raft.disable_conf_change_validation:
            entry.kind = EntryKind.NOOP
            entry.data = b""
        else:
            raft.pending_conf_index = Index(index)


def _append(raft: Raft, entries: list[Entry]) -> None:
    """Assign term, index and base offset, append, and queue this replica's acknowledgement."""
    log = raft.log
    index = log.last_index
    offset = log.next_offset
    term = raft.term
    for entry in entries:
        index += 1
        entry.term = term
        entry.index = index
        entry.base_offset = offset
        offset += entry.records
    log.append(entries)
    raft.acknowledge(raft.id, index)


# --- Sending -----------------------------------------------------------------------------------


def _broadcast(raft: Raft) -> None:
    """Send new entries or a new commit index to all peers."""
    if raft.batch_appends:
        raft.broadcast_due = True
        return
    for node, progress in raft.peers:
        _maybe_send_append(raft, node, progress, send_if_empty=True)


def _owe_commit(raft: Raft) -> None:
    """Note that a peer needs the commit index, to be sent later."""
    if raft.commit_apart:
        raft.commit_news_due = True
    elif raft.batch_appends:
        raft.broadcast_due = True


def send_put_off(raft: Raft) -> None:
    """Send what `batch_appends` deferred: entries, or the commit index to peers that need it."""
    raft.broadcast_due = False
    committed, last = raft.log.committed, raft.log.last_index
    for node, progress in raft.peers:
        news = not raft.commit_apart and progress.can_bump_commit(committed)
        while (news or progress.next <= last) and _maybe_send_append(
            raft, node, progress, send_if_empty=news
        ):
            news = False


def tell_commit(raft: Raft) -> list[MsgCommit]:
    """Return a MsgCommit for each peer that lacks it, as far as the peer has the entries.

    For `commit_apart`. A peer that acknowledges more entries later makes another one due.
    """
    raft.commit_news_due = False
    committed = raft.log.committed
    news: list[MsgCommit] = []
    for node, progress in raft.peers:
        commit = min(committed, progress.match)
        if commit > progress.sent_commit:
            progress.sent_commit = commit
            news.append(MsgCommit(node, raft.id, raft.term, commit))
    return news


def _maybe_send_append(
    raft: Raft, node: NodeId, progress: Progress, *, send_if_empty: bool
) -> bool:
    """Send the next MsgApp, or a snapshot, unless paused. Return True if something was sent."""
    # `Progress.is_paused`, inlined: this is called for each append and peer.
    if progress.flow_paused or progress.cold_read_first or progress.state is SNAPSHOT:
        return False
    log = raft.log
    previous = progress.next - 1
    # Full in-flight window: send only empty MsgApps, which detect a lost window.
    may_carry = progress.state is not REPLICATE or not progress.inflights.is_full
    if not send_if_empty and (previous >= log.last_index or not may_carry):
        return False
    try:
        previous_term = raft.term if previous >= raft.term_start else log.term(previous)
    except Compacted:
        return _maybe_send_snapshot(raft, node, progress)
    try:
        if node in raft.paced and progress.is_learner and may_carry and previous < log.last_index:
            raise NotInMemory(progress.next, log.last_index + 1)
        entries = (
            log.slice(progress.next, log.last_index + 1, raft.max_size_per_msg) if may_carry else []
        )
    except Compacted:
        return _maybe_send_snapshot(raft, node, progress)
    except NotInMemory as answer:
        if progress.state is REPLICATE:
            progress.cold_read_first = progress.next
            piece = raft.max_size_per_msg
            if progress.is_learner:
                piece = min(piece, raft.paced.get(node, piece))
            raft.cold_reads += (ColdRead(node, progress.next, answer.end, piece),)
            return False
        # No read from disk before the logs are known to agree there: send an empty probe.
        entries = []
        progress.flow_paused = True
    _send_entries(raft, node, progress, previous_term, entries)
    return True


def _send_entries(
    raft: Raft, node: NodeId, progress: Progress, previous_term: Term, entries: list[Entry]
) -> None:
    """Send a MsgApp with `entries`, starting at `progress.next`."""
    commit = raft.log.committed
    raft.msgs.append(
        MsgApp(node, raft.id, raft.term, previous_term, progress.next - 1, entries, commit)
    )
    progress.sent_entries(
        count=len(entries), payload_bytes=payload_bytes(entries) if entries else 0
    )
    progress.sent_commit = commit


def _maybe_send_snapshot(raft: Raft, node: NodeId, progress: Progress) -> bool:
    """Send a snapshot to a replica that is behind the start of the log (§7)."""
    if not progress.recent_active:
        return False
    try:
        snapshot = raft.log.snapshot or raft.log.storage.snapshot()
    except SnapshotTemporarilyUnavailable:
        return False
    assert snapshot.index > 0, "a compacted log has a snapshot"
    progress.become_snapshot(snapshot.index)
    raft.msgs.append(MsgSnap(node, raft.id, raft.term, snapshot))
    return True


def entries_ready(raft: Raft, node: NodeId, entries: list[Entry]) -> None:
    """Send the entries of a ColdRead; [] if the host could not read them."""
    progress = raft.progress.get(node)
    if progress is None or progress.cold_read_first == 0:
        return
    if entries and entries[0].index != progress.cold_read_first:
        # Requested before the peer was probed again; the read that is pending now is still to
        # come. Accepting stale results would trigger one more read, and so one more stale result.
        return
    progress.cold_read_first = NO_INDEX
    if progress.is_paused or not entries:
        return
    first = entries[0].index
    if (
        first == progress.next
        and not (progress.state is REPLICATE and progress.inflights.is_full)
        and raft.log.matches(index=first, term=entries[0].term)
        and raft.log.matches(index=entries[-1].index, term=entries[-1].term)
    ):
        try:
            previous_term = raft.log.term(first - 1)
        except Compacted:
            _maybe_send_snapshot(raft, node, progress)
            return
        _send_entries(raft, node, progress, previous_term, entries)
    _send_all(raft, node, progress)


def _send_all(raft: Raft, node: NodeId, progress: Progress) -> None:
    """Send entries as far as the limits allow."""
    last = raft.log.last_index
    while progress.next <= last and _maybe_send_append(raft, node, progress, send_if_empty=False):
        pass


# --- Answers -----------------------------------------------------------------------------------


def _on_append_answer(raft: Raft, msg: MsgAppResp) -> None:
    node = msg.from_
    progress = raft.progress.get(node)
    if progress is None:
        return
    index = msg.index
    if index > raft.log.last_index:
        raise Contradiction(f"an acknowledgement of entry {index}, above the end of this log")
    progress.recent_active = True
    if progress.tries:
        progress.answered()
    if msg.reject:
        _go_back(raft, node, progress, msg)
        return
    if raft.quiet_heartbeats and index < progress.sent_commit and node != raft.id:
        # An append that begins below the follower's commit index is answered with that index, and
        # the follower does not take the commit index from it. While heartbeats are quiet nothing
        # else would repeat it, so the leader sends it again.
        progress.sent_commit = index
        _owe_commit(raft)
    if not progress.maybe_update(index) and not (
        # A probe's answer that adds nothing still ends the probing. This excludes an answer to
        # this leader's messages of an older term, which its own vote request has overtaken.
        progress.match == index
        and progress.state is PROBE
        and (index == progress.next - 1 or not raft.quiet_heartbeats)
    ):
        return
    raft.acked_by = node
    if progress.state is REPLICATE:
        progress.inflights.free_to(index)
    elif progress.state is PROBE:
        progress.become_replicate()
    elif progress.match + 1 >= raft.log.first_index():
        # The snapshot is installed, or was not needed: the log reaches back far enough.
        progress.become_probe()
        progress.become_replicate()
    elif index >= progress.pending_snapshot:
        # It is installed, but the log was compacted beyond it meanwhile: send the next one.
        progress.become_probe()
    # An acknowledgement up to the commit index cannot complete a majority above it.
    if index > raft.log.committed and _maybe_commit(raft):
        raft.committed_by = node
        _commit_moved(raft)
    elif node != raft.id and progress.can_bump_commit(raft.log.committed):
        if raft.batch_appends:
            _owe_commit(raft)
        else:
            _maybe_send_append(raft, node, progress, send_if_empty=True)
    if node != raft.id:
        if progress.next <= raft.log.last_index:
            _send_all(raft, node, progress)
        if node == raft.lead_transferee and progress.match == raft.log.last_index:
            raft.msgs.append(MsgTimeoutNow(node, raft.id, raft.term))


def _go_back(raft: Raft, node: NodeId, progress: Progress, msg: MsgAppResp) -> None:
    """Handle a rejection: the logs do not agree there, so probe further back by a term (§5.3)."""
    hint = msg.reject_hint
    if msg.log_term > 0:
        # None of our entries with a higher term than the follower's can match there.
        hint, _ = raft.log.find_conflict_by_term(index=hint, term=msg.log_term)
    if progress.maybe_decrease(rejected=msg.index, hint=hint):
        if progress.state is REPLICATE:
            progress.become_probe()
        _maybe_send_append(raft, node, progress, send_if_empty=True)


def _maybe_commit(raft: Raft) -> bool:
    """Commit what a quorum has durably, of this term only (§5.4.2). Return True if it moved."""
    matched = [*map(_match, raft.incoming_progress)]
    if raft.outgoing_progress:
        index = joint_index(matched, [*map(_match, raft.outgoing_progress)])
    else:
        index = majority_index(matched)
    log = raft.log
    if index <= log.committed or index < raft.term_start:
        return False
    log.commit_to(index)
    return True


def _commit_moved(raft: Raft) -> None:
    """Handle a moved commit index: release postponed reads and send it to all peers."""
    if raft.pending_reads.postponed:
        _release_postponed_reads(raft)
    if raft.batch_appends:
        _owe_commit(raft)
    else:
        _broadcast(raft)


def _on_heartbeat_answer(raft: Raft, msg: MsgHeartbeatResp) -> None:
    progress = raft.progress.get(msg.from_)
    if progress is None:
        return
    progress.recent_active = True
    # A read's heartbeat may overtake messages sent before it, so its answer proves nothing.
    if not raft.quiet_heartbeats or not msg.context:
        _has_come(raft, msg.from_, progress)
    if raft.read_only_option is ReadOnlyOption.SAFE and msg.context:
        _confirm_reads(raft, msg.from_, msg.context)


def _has_come(raft: Raft, node: NodeId, progress: Progress) -> None:
    """Handle an answer to a heartbeat that was sent behind all earlier messages."""
    if progress.tries:
        progress.answered()
    progress.flow_paused = False
    if progress.state is SNAPSHOT and raft.quiet_heartbeats:
        # The snapshot has arrived and is either being installed or was dropped. A leader whose
        # host does not report on snapshots would never learn of the latter.
        progress.snapshot_answers += 1
        if progress.snapshot_answers > SNAPSHOT_ANSWERS_MAX:
            report_snapshot(raft, node, ok=False)
    if progress.match < raft.log.last_index or progress.state is PROBE:
        _maybe_send_append(raft, node, progress, send_if_empty=True)


# --- Reads -------------------------------------------------------------------------------------


def read_index(raft: Raft, requester: NodeId, context: bytes) -> None:
    """Answer, start or postpone a read index request (§8)."""
    if not raft.own_term_committed:
        # Entries of earlier terms may be committed without this leader knowing (§8).
        raft.pending_reads.postpone(requester, context)
    elif raft.membership.is_singleton and raft.is_voter:
        _answer_read(raft, requester, context, raft.log.committed)
    else:
        _begin_read(raft, requester, context)


def _begin_read(raft: Raft, requester: NodeId, context: bytes) -> None:
    if raft.read_only_option is ReadOnlyOption.LEASE_BASED:
        _answer_read(raft, requester, context, raft.log.committed)
        return
    name = raft.pending_reads.add(context, requester, raft.log.committed)
    raft.pending_reads.acknowledge(raft.id, name)
    _send_heartbeats(raft, name)


def _release_postponed_reads(raft: Raft) -> None:
    """Start postponed reads: the first commit of the term is known (§8)."""
    postponed, raft.pending_reads.postponed = raft.pending_reads.postponed, []
    for requester, context in postponed:
        read_index(raft, requester, context)


def _confirm_reads(raft: Raft, node: NodeId, name: bytes) -> None:
    acks = raft.pending_reads.acknowledge(node, name)
    membership = raft.membership
    if joint_vote(membership.incoming, membership.outgoing, acks) is VoteResult.WON:
        for read in raft.pending_reads.confirm(name):
            _answer_read(raft, read.requester, read.context, read.index)


def _answer_read(raft: Raft, requester: NodeId, context: bytes, index: Index) -> None:
    if requester in (NONE, raft.id):
        raft.read_states += (ReadState(index, context),)
    else:
        raft.msgs.append(MsgReadIndexResp(requester, raft.id, raft.term, index, context))


def _on_read_index(raft: Raft, msg: MsgReadIndex) -> None:
    read_index(raft, msg.from_, msg.context)


# --- Membership, transfer, reports -------------------------------------------------------------


def membership_changed(raft: Raft) -> None:
    """Adapt replication to a membership that the leader has just applied."""
    if not raft.is_voter:
        # Removed or demoted. Without step-down it keeps leading until a successor appears.
        if raft.step_down_on_removal:
            become_follower(raft, raft.term, NONE)
        return
    moved = _maybe_commit(raft)
    if moved:
        _commit_moved(raft)
    if not moved or raft.commit_apart:
        for node, progress in raft.peers:
            _maybe_send_append(raft, node, progress, send_if_empty=False)
    if raft.commit_apart:
        # At once, not when the host chooses. If this leader fails, replicas that do not know the
        # new members would request votes from the old ones, which may be too few by then.
        raft.msgs.extend(tell_commit(raft))
    if raft.lead_transferee not in raft.membership.voters():
        raft.lead_transferee = NONE


def maybe_leave_joint(raft: Raft) -> None:
    """Propose to leave a joint configuration with auto_leave, once it is applied (paper §6)."""
    if not raft.membership.auto_leave or raft.log.applied < raft.pending_conf_index:
        return
    try:
        propose(raft, [Entry(kind=EntryKind.CONF_CHANGE_V2)])
    except ProposalDropped:
        # A transfer is in progress. This or the next leader retries at each apply.
        return


def transfer(raft: Raft, transferee: NodeId) -> None:
    """Transfer leadership to a voter: bring it up to date, then let it campaign (thesis §3.10)."""
    progress = raft.progress.get(transferee)
    if progress is None or progress.is_learner:
        return
    if transferee == raft.lead_transferee:
        return
    raft.lead_transferee = NONE
    if transferee == raft.id:
        return
    # The transferee has one election timeout from now on.
    raft.election_elapsed = 0
    raft.lead_transferee = transferee
    if progress.match == raft.log.last_index:
        raft.msgs.append(MsgTimeoutNow(transferee, raft.id, raft.term))
    else:
        _maybe_send_append(raft, transferee, progress, send_if_empty=True)


def report_unreachable(raft: Raft, node: NodeId) -> None:
    """Handle a failed link to a replica: messages sent ahead of answers are probably lost.

    This includes a snapshot, which uses the same link and would not be reported otherwise. It
    also includes the message that makes a transferee campaign, so proposals no longer wait for it.
    """
    if node == raft.lead_transferee:
        raft.lead_transferee = NONE
    progress = raft.progress.get(node)
    if progress is None:
        return
    progress.answered()
    if progress.state is REPLICATE:
        progress.become_probe()
    elif progress.state is SNAPSHOT:
        report_snapshot(raft, node, ok=False)


def report_snapshot(raft: Raft, node: NodeId, *, ok: bool) -> None:
    """Handle the delivery of a snapshot, or its failure."""
    progress = raft.progress.get(node)
    if progress is None or progress.state is not SNAPSHOT:
        return
    if not ok:
        # Otherwise probing would begin behind a snapshot that never arrived.
        progress.pending_snapshot = NO_INDEX
    progress.become_probe()
    # Delivered: its MsgAppResp resumes sending. Failed: the next heartbeat's answer does.
    progress.flow_paused = True


def _on_proposal(raft: Raft, msg: MsgProp) -> None:
    propose(raft, msg.entries)


def _on_transfer(raft: Raft, msg: MsgTransferLeader) -> None:
    transfer(raft, msg.from_)


# `...`: each handler takes the message type under which it is listed.
HANDLERS: Final[dict[type[Message], Callable[..., None]]] = {
    MsgAppResp: _on_append_answer,
    MsgHeartbeatResp: _on_heartbeat_answer,
    MsgProp: _on_proposal,
    MsgReadIndex: _on_read_index,
    MsgTransferLeader: _on_transfer,
}
