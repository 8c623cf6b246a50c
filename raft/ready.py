"""`Ready`: the work a node requests, and how its completion is reported.

A Ready is a batch: entries and hard state to make durable, entries to apply, messages to send.
There are two ways to process it:

- *Synchronous*: write snapshot, entries and hard state, in this order, sync if `must_sync`; send
  the messages; apply `committed_entries`; call `advance`. Nothing may be sent before the sync.
- *Asynchronous* (`async_storage_writes`): the same requests come as messages to two local threads.
  MsgStorageAppend goes to the thread that writes the log, MsgStorageApply to the one that applies
  entries. Each carries the `responses` to deliver when done. All other messages may leave at once;
  those that must wait for the disk are among the responses. Any number of Readys may be in
  progress.

An acknowledgement of the disk is bound to the term in which the write was given out. Otherwise:
entry (1, 12) is given out; a new leader overwrites it by (2, 12), given out too; a third one writes
(1, 12) back (a log may shrink to an older term's suffix and regrow); the first write's answer
arrives and would acknowledge an entry that is not yet on disk. Within one term a leader never
overwrites, so the pair (term, index) of an answer identifies one write.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ids import NO_TERM, Index, NodeId, Term
from raft import candidate, leader
from raft.errors import NotInMemory
from raft.log import payload_bytes
from raft.messages import (
    Message,
    MsgStorageAppend,
    MsgStorageAppendResp,
    MsgStorageApply,
    MsgStorageApplyResp,
)
from raft.state import LEADER, Raft
from raft.types import (
    ENTRY_OVERHEAD_BYTES,
    LOCAL_APPEND_THREAD,
    LOCAL_APPLY_THREAD,
    ColdRead,
    Entry,
    HardState,
    ReadState,
    Snapshot,
    SoftState,
    StateType,
)


class Ready(msgspec.Struct):
    """Work that a node requests. The host owns the lists; entries and messages are shared."""

    soft_state: SoftState | None = None
    """Set when leader or role changed."""
    hard_state: HardState | None = None
    """Set when term, vote or commit changed."""
    entries: list[Entry] = msgspec.field(default_factory=list)
    """Entries to make durable. If the first one's index is inside the log, truncate there first."""
    snapshot: Snapshot | None = None
    """Snapshot that replaces the log and the state machine."""
    committed_entries: list[Entry] = msgspec.field(default_factory=list)
    """Entries to apply, in order."""
    messages: list[Message] = msgspec.field(default_factory=list)
    read_states: list[ReadState] = msgspec.field(default_factory=list)
    cold_reads: list[ColdRead] = msgspec.field(default_factory=list)
    """Entries to read from disk, for peers or for applying here; see `ColdRead`."""
    must_sync: bool = False
    """True if entries or hard state must be on disk before anything that depends on them. A
    commit index alone need not be: it is learnt again."""


class ReadyMaker:
    """Builds a node's Readys and remembers what was last reported to the host."""

    __slots__ = (
        "_commit",
        "_lead",
        "_outstanding",
        "_state",
        "_steps_on_advance",
        "_term",
        "_vote",
        "raft",
    )

    def __init__(self, raft: Raft) -> None:
        self.raft = raft
        self._term: Term = raft.term
        self._vote: NodeId = raft.vote
        self._commit: Index = raft.log.committed
        self._lead: NodeId = raft.lead
        self._state: StateType = raft.state
        self._steps_on_advance: Sequence[Message] = ()
        self._outstanding: Ready | None = None
        """Synchronous mode: the Ready being processed."""

    def has_ready(self) -> bool:
        """Return True if `ready` would return anything. Constant time."""
        raft = self.raft
        log = raft.log
        return bool(
            raft.msgs
            or raft.msgs_after_append
            or log.in_progress != log.last_index
            or raft.broadcast_due
            or self._commit != log.committed
            or (
                log.applying != log.committed
                and log.has_committed(allow_unstable=not raft.async_storage_writes)
            )
            or self._lead != raft.lead
            or self._state is not raft.state
            or self._term != raft.term
            or self._vote != raft.vote
            or raft.read_states
            or raft.cold_reads
            or (log.snapshot is not None and not log.snapshot_in_progress)
        )

    def ready(self) -> Ready:
        """Return everything requested now and count it as given out."""
        assert self._outstanding is None, "ready() called before advance() of the previous Ready"
        raft = self.raft
        log = raft.log
        if raft.broadcast_due:
            leader.send_put_off(raft)
        ready = Ready(entries=log.take_unwritten(), messages=raft.msgs)
        raft.msgs = []
        if log.applying != log.committed:
            try:
                # Only a synchronous host makes entries durable before it applies those of the same
                # Ready. Otherwise a power cut could leave the applied state ahead of the log.
                is_synchronous = not raft.async_storage_writes
                ready.committed_entries = log.take_committed(allow_unstable=is_synchronous)
            except NotInMemory as answer:
                raft.cold_reads += (
                    ColdRead(raft.id, answer.first, answer.end, log.applying_bytes_max),
                )
        if self._lead != raft.lead or self._state is not raft.state:
            ready.soft_state = raft.soft_state()
            self._lead = raft.lead
            self._state = raft.state
        is_persistent_change = self._term != raft.term or self._vote != raft.vote
        if is_persistent_change or self._commit != log.committed:
            ready.hard_state = raft.hard_state()
            self._term = raft.term
            self._vote = raft.vote
            self._commit = log.committed
        ready.must_sync = is_persistent_change or bool(ready.entries)
        if log.snapshot is not None and not log.snapshot_in_progress:
            ready.snapshot = log.snapshot
            log.snapshot_in_progress = True
        if raft.read_states:
            ready.read_states = [*raft.read_states]
            raft.read_states = ()
        if raft.cold_reads:
            ready.cold_reads = [*raft.cold_reads]
            raft.cold_reads = ()
        if raft.async_storage_writes:
            self._address_storage(ready)
        else:
            self._prepare_advance(ready)
        return ready

    def steps_on_advance(self, ready: Ready) -> Sequence[Message]:
        """Return the messages the node steps into itself after `ready`, in the synchronous mode."""
        assert self._outstanding is ready, (
            "advance() called with another Ready than the previous one"
        )
        self._outstanding = None
        steps = self._steps_on_advance
        self._steps_on_advance = ()
        return steps

    # --- Parts of a Ready ----------------------------------------------------------------------

    def _address_storage(self, ready: Ready) -> None:
        """Asynchronous mode: turn requests to the storage into messages to it."""
        raft = self.raft
        responses = raft.msgs_after_append
        raft.msgs_after_append = []
        hard_state = ready.hard_state
        if ready.entries or responses or hard_state is not None or ready.snapshot is not None:
            append = MsgStorageAppend(
                LOCAL_APPEND_THREAD,
                raft.id,
                entries=ready.entries,
                snapshot=ready.snapshot,
                responses=responses,
                must_sync=ready.must_sync or ready.snapshot is not None,
            )
            if hard_state is not None:
                append.term = hard_state.term
                append.vote = hard_state.vote
                append.commit = hard_state.commit
            # After the acknowledgements: they are handled while the entries are still here.
            log = raft.log
            if log.last_index > log.stable or ready.snapshot is not None or raft.vote_pending:
                responses.append(_stable_answer(raft, ready))
            ready.messages.append(append)
        if ready.committed_entries:
            answer = MsgStorageApplyResp(
                raft.id, LOCAL_APPLY_THREAD, NO_TERM, ready.committed_entries
            )
            ready.messages.append(
                MsgStorageApply(
                    LOCAL_APPLY_THREAD, raft.id, NO_TERM, ready.committed_entries, [answer]
                )
            )

    def _prepare_advance(self, ready: Ready) -> None:
        """Send messages to others, keep the node's own for `advance`: the synchronous mode."""
        raft = self.raft
        self._outstanding = ready
        self._steps_on_advance = steps = list[Message]()
        for message in raft.msgs_after_append:
            (steps if message.to == raft.id else ready.messages).append(message)
        raft.msgs_after_append = []
        log = raft.log
        if log.last_index > log.stable or ready.snapshot is not None:
            steps.append(_stable_answer(raft, ready))
        if ready.committed_entries:
            steps.append(
                MsgStorageApplyResp(raft.id, LOCAL_APPLY_THREAD, NO_TERM, ready.committed_entries)
            )


def _stable_answer(raft: Raft, ready: Ready) -> MsgStorageAppendResp:
    """Return the storage's answer that everything given out so far is durable.

    It names the last entry that is not durable yet, including entries given out earlier: writes
    complete in order. It is sent even without new entries, because after a change of term earlier
    answers are ignored.
    """
    answer = MsgStorageAppendResp(raft.id, LOCAL_APPEND_THREAD, raft.term)
    log = raft.log
    if log.last_index > log.stable:
        answer.index = log.last_index
        answer.log_term = log.last_term
    answer.snapshot = ready.snapshot
    if raft.vote_pending:
        answer.vote = raft.vote
    return answer


# --- Storage's answers -------------------------------------------------------------------------


def handle_storage_append_resp(raft: Raft, msg: MsgStorageAppendResp) -> None:
    """Handle a durable write."""
    if msg.index and msg.term == raft.term:
        raft.log.stable_to(index=msg.index, term=msg.log_term)
    if msg.vote and msg.term == raft.term:
        candidate.vote_is_durable(raft)
    if msg.snapshot is not None:
        # Committed state does not depend on a term.
        applied_snapshot(raft, msg.snapshot)


def applied_snapshot(raft: Raft, snapshot: Snapshot) -> None:
    """Handle a snapshot that is durable and applied."""
    raft.log.stable_snapshot_to(snapshot.index)
    applied_to(raft, snapshot.index, 0)


def handle_storage_apply_resp(raft: Raft, msg: MsgStorageApplyResp) -> None:
    """Handle applied entries."""
    entries = msg.entries
    if entries:
        payload = payload_bytes(entries)
        applied_to(raft, entries[-1].index, payload + ENTRY_OVERHEAD_BYTES * len(entries))
        # Entries of earlier leaders were never counted: stop at zero.
        raft.uncommitted_bytes = max(raft.uncommitted_bytes - payload, 0)


def applied_to(raft: Raft, index: Index, bytes_applied: int) -> None:
    """Mark everything up to `index` as applied; a joint configuration may be left now."""
    raft.log.applied_to(max(index, raft.log.applied), bytes_applied)
    if raft.state is LEADER and raft.membership.auto_leave:
        leader.maybe_leave_joint(raft)
