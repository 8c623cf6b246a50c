"""The follower: answers its leader, forwards requests, and waits (§5.2, §5.3).

Also contains `become_follower`, the transition from any other role, and the handling of MsgApp,
MsgHeartbeat and MsgSnap, which a candidate shares once it has recognised the leader.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from ids import NO_INDEX, NO_TERM, Index, NodeId, Term
from raft import membership as members
from raft.errors import Contradiction, Diverged, DropReason, InvalidConfChange, ProposalDropped
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
    MsgTransferLeader,
)
from raft.state import FOLLOWER, LEADER, Raft
from raft.types import (
    NONE,
    Entry,
    ReadOnlyOption,
    ReadState,
    Snapshot,
)

_POSITION_MAX: Final = (1 << 62) - 1
"""Upper bound of indexes and offsets. No log reaches it; a higher one would not fit, or would leave
no room for entries behind it."""


def become_follower(raft: Raft, term: Term, lead: NodeId) -> None:
    """Follow `lead` (NONE: unknown) in `term`."""
    raft.reset(term)
    raft.lead = lead
    raft.state = FOLLOWER
    if lead != NONE:
        raft.election_is_over()


def forget_leader(raft: Raft) -> None:
    """Forget the leader, so that candidates are heard; stay in the term.

    The election that leader may have won is over.
    """
    raft.vote_wait = 0
    # A lease-based leader answers reads on the premise that no other leader is elected.
    if raft.read_only_option is not ReadOnlyOption.LEASE_BASED:
        raft.lead = NONE


def propose(raft: Raft, entries: list[Entry]) -> None:
    """Forward entries to the leader. Raises ProposalDropped."""
    if raft.lead == NONE or raft.disable_proposal_forwarding:
        raise ProposalDropped(DropReason.NO_LEADER)
    raft.msgs.append(MsgProp(raft.lead, raft.id, NO_TERM, entries))


def pass_transfer_on(raft: Raft, transferee: NodeId) -> None:
    """Forward a transfer to `transferee` to the leader."""
    if raft.lead != NONE:
        raft.msgs.append(MsgTransferLeader(raft.lead, transferee, raft.term))


def pass_read_on(raft: Raft, requester: NodeId, context: bytes) -> bool:
    """Forward a read index request to the leader. Return False if none is known."""
    if raft.lead == NONE:
        return False
    raft.msgs.append(MsgReadIndex(raft.lead, requester, NO_TERM, context))
    return True


def handle_append(raft: Raft, msg: MsgApp) -> None:
    """Handle AppendEntries (Figure 2). Raises Contradiction."""
    log = raft.log
    if msg.index < log.committed:
        # The leader may continue from the commit index, unless its log differs.
        _check_committed(raft, msg.index, msg.log_term, msg.term)
        for entry in msg.entries:
            if entry.index > log.committed:
                break
            _check_committed(raft, entry.index, entry.term, msg.term)
        raft.acknowledge(msg.from_, log.committed)
        return
    if not log.matches(index=msg.index, term=msg.log_term):
        _reject_append(raft, msg)
        return
    last_new = msg.index
    entries = msg.entries
    if entries:
        term, offset = msg.log_term, entries[0].base_offset
        for entry in entries:
            last_new += 1
            if (
                entry.index != last_new
                or entry.base_offset != offset
                or not term <= entry.term <= msg.term
            ):
                raise Contradiction(
                    f"entry {last_new} of an append does not continue the entry before it"
                )
            term, offset = entry.term, offset + entry.records
        conflict = log.find_conflict(entries)
        if conflict:
            # Only from the first conflict on: a delayed, shorter MsgApp must not truncate what a
            # later one added (§5.3).
            known = conflict - entries[0].index
            log.append(entries[known:] if known else entries)
    log.commit_to(min(msg.commit, last_new))
    raft.acknowledge(msg.from_, last_new)


def _check_committed(raft: Raft, index: Index, term: Term, leader_term: Term) -> None:
    """Raise Diverged if a leader has another entry where one is committed here.

    An acknowledgement would make the leader count this log as a copy of its own (§5.4.3, Log
    Matching).
    """
    log = raft.log
    if index < log.first_index() - 1 or log.matches(index=index, term=term):
        return
    raise Diverged(
        index,
        f"the leader of term {leader_term} has an entry of term {term} at {index}, but here an "
        f"entry of term {log.term(index)} is committed; entries {index} to {log.committed} "
        "conflict",
    )


def _reject_append(raft: Raft, msg: MsgApp) -> None:
    """Reject with the last index where the logs may agree, to skip single steps back (§5.3)."""
    hint, hint_term = raft.log.find_conflict_by_term(
        index=min(msg.index, raft.log.last_index), term=msg.log_term
    )
    raft.msgs_after_append.append(
        MsgAppResp(
            msg.from_,
            raft.id,
            raft.term,
            msg.index,
            reject=True,
            reject_hint=hint,
            log_term=hint_term,
        )
    )


def handle_heartbeat(raft: Raft, msg: MsgHeartbeat) -> None:
    """Take the commit index and return the context. Raises Contradiction."""
    raft.log.commit_to(msg.commit)
    raft.msgs.append(MsgHeartbeatResp(msg.from_, raft.id, raft.term, msg.context))


def handle_snapshot(raft: Raft, msg: MsgSnap) -> None:
    """Handle InstallSnapshot (§7). Raises Contradiction."""
    if _restore(raft, msg.snapshot, msg.term):
        raft.acknowledge(msg.from_, raft.log.last_index)
    else:
        raft.acknowledge(msg.from_, raft.log.committed)


def _restore(raft: Raft, snapshot: Snapshot, term: Term) -> bool:
    """Replace log and membership by those of a snapshot sent in `term`.

    Return False if the snapshot adds nothing. Raises Contradiction.
    """
    log = raft.log
    assert raft.state is FOLLOWER, raft.state
    if snapshot.term > term or max(snapshot.index, snapshot.next_offset) > _POSITION_MAX:
        raise Contradiction(
            f"a snapshot of term {snapshot.term} at {snapshot.index} in a message of term {term}"
        )
    if snapshot.index <= log.committed:
        _check_committed(raft, snapshot.index, snapshot.term, term)
        return False
    if log.matches(index=snapshot.index, term=snapshot.term):
        # The log has all entries; only the commit index was behind.
        log.commit_to(snapshot.index)
        return False
    try:
        membership = members.restored(snapshot.conf_state)
    except InvalidConfChange as error:
        raise Contradiction(f"a snapshot with an invalid membership: {error}") from error
    log.restore(snapshot)
    # The snapshot's membership replaces the old one. It need not contain this replica: a snapshot
    # at the start of the log may be older than the change that added the replica.
    raft.set_membership(membership, snapshot.index)
    return True


def take_state(raft: Raft, snapshot: Snapshot) -> None:
    """Install the state of a snapshot (§7) but keep the log, which has all of its entries.

    Used if only the state could not be produced here.
    """
    log, index = raft.log, snapshot.index
    assert raft.state is not LEADER, raft.state
    assert log.applied == log.applying < index <= log.stable, (log.applied, log.applying, index)
    assert log.matches(index=index, term=snapshot.term), (index, snapshot.term)
    log.commit_to(index)
    log.cold_read_first = NO_INDEX
    log.cold_committed = ()
    log.applied_to(index, 0)
    raft.set_membership(members.restored(snapshot.conf_state), index)


def _on_append(raft: Raft, msg: MsgApp) -> None:
    _heard_leader(raft, msg.from_)
    handle_append(raft, msg)


def _on_heartbeat(raft: Raft, msg: MsgHeartbeat) -> None:
    _heard_leader(raft, msg.from_)
    handle_heartbeat(raft, msg)


def _on_commit(raft: Raft, msg: MsgCommit) -> None:
    _heard_leader(raft, msg.from_)
    raft.log.commit_to(msg.commit)


def _on_snapshot(raft: Raft, msg: MsgSnap) -> None:
    _heard_leader(raft, msg.from_)
    handle_snapshot(raft, msg)


def _heard_leader(raft: Raft, lead: NodeId) -> None:
    if raft.lead not in (NONE, lead):
        raise Contradiction(f"another replica also leads term {raft.term}")
    raft.election_elapsed = 0
    raft.campaign_due = 0
    if raft.lead == NONE:
        raft.lead = lead
        raft.election_is_over()


def _on_proposal(raft: Raft, msg: MsgProp) -> None:
    propose(raft, msg.entries)


def _on_transfer(raft: Raft, msg: MsgTransferLeader) -> None:
    pass_transfer_on(raft, msg.from_)


def _on_read_index(raft: Raft, msg: MsgReadIndex) -> None:
    pass_read_on(raft, msg.from_, msg.context)


def _on_read_index_answer(raft: Raft, msg: MsgReadIndexResp) -> None:
    raft.read_states += (ReadState(msg.index, msg.context),)


# `...`: each handler takes the message type under which it is listed.
HANDLERS: Final[dict[type[Message], Callable[..., None]]] = {
    MsgApp: _on_append,
    MsgHeartbeat: _on_heartbeat,
    MsgCommit: _on_commit,
    MsgSnap: _on_snapshot,
    MsgProp: _on_proposal,
    MsgTransferLeader: _on_transfer,
    MsgReadIndex: _on_read_index,
    MsgReadIndexResp: _on_read_index_answer,
}
