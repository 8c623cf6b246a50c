"""Raft messages: one struct per type, and each field has one meaning.

Every message begins with `to`, `from_`, `term`. Between peers `term` is the sender's term; a
pre-vote request and its grant carry the term in which the sender *would* campaign. `term` 0 marks
messages that are not bound to a term: forwarded requests and the storage's "applied".

There are four kinds:
- between peers: MsgApp, MsgAppResp, MsgVote, MsgVoteResp, MsgPreVote, MsgPreVoteResp, MsgHeartbeat,
  MsgHeartbeatResp, MsgCommit, MsgSnap, MsgTimeoutNow;
- forwarded to the leader: MsgProp, MsgReadIndex (and MsgReadIndexResp back), MsgTransferLeader;
- from a node to its own storage: MsgStorageAppend, MsgStorageApply, addressed to
  LOCAL_APPEND_THREAD and LOCAL_APPLY_THREAD, never sent over a network;
- from the storage to its node: MsgStorageAppendResp, MsgStorageApplyResp, and the other
  `responses`.

The host transports messages and does not inspect those between peers. Messages between two nodes
may be lost, repeated and reordered; those to and from the local storage may not.

Messages are structs of msgspec, not dataclasses: a record takes dozens of objects on its way, and
the constructor of a struct is no Python call. So are other objects that are made for each record.
"""

from __future__ import annotations

from typing import Final, TypeAlias

import msgspec

from ids import NO_INDEX, NO_TERM, Index, NodeId, Term
from raft.types import NONE, Entry, Snapshot


class MsgApp(msgspec.Struct):
    """AppendEntries (§5.3). If empty, a probe or an update of the commit index."""

    to: NodeId
    from_: NodeId
    term: Term
    log_term: Term
    """Term of the entry before the first one sent."""
    index: Index
    """Index of the entry before the first one sent."""
    entries: list[Entry]
    commit: Index


class MsgAppResp(msgspec.Struct):
    """Answer to MsgApp and MsgSnap; also the leader's message to itself after its own sync.

    `index`, if accepted: everything up to it matches and is durable. If rejected: the `index` of
    the refused MsgApp. 0 for an answer that only informs a deposed leader of the newer term.
    """

    to: NodeId
    from_: NodeId
    term: Term
    index: Index
    reject: bool = False
    reject_hint: Index = NO_INDEX
    """Rejected: the largest index at which the logs may still agree."""
    log_term: Term = NO_TERM
    """Rejected: the term of the follower's entry at `reject_hint`."""


class MsgVote(msgspec.Struct):
    """RequestVote (§5.2, §5.4.1)."""

    to: NodeId
    from_: NodeId
    term: Term
    log_term: Term
    """Term of the candidate's last entry."""
    index: Index
    """Index of the candidate's last entry."""
    transfer: bool = False
    """True if the old leader initiated this election: voters ignore their lease (§4.2.3)."""


class MsgVoteResp(msgspec.Struct):
    """Answer to MsgVote; also a candidate's vote for itself."""

    to: NodeId
    from_: NodeId
    term: Term
    reject: bool = False


class MsgPreVote(msgspec.Struct):
    """Pre-vote request: would the receiver grant a vote in `term`? (thesis §9.6)"""

    to: NodeId
    from_: NodeId
    term: Term
    log_term: Term
    index: Index
    transfer: bool = False


class MsgPreVoteResp(msgspec.Struct):
    """Answer to MsgPreVote. A grant carries the requested term, a rejection the voter's own."""

    to: NodeId
    from_: NodeId
    term: Term
    reject: bool = False


class MsgHeartbeat(msgspec.Struct):
    """Proof that the leader is alive (§5.2)."""

    to: NodeId
    from_: NodeId
    term: Term
    commit: Index
    """Commit index, never above what the peer is known to have."""
    context: bytes = b""
    """Round of the newest read index request that answers confirm (`raft.reads`)."""


class MsgHeartbeatResp(msgspec.Struct):
    """Answer to MsgHeartbeat, with its context."""

    to: NodeId
    from_: NodeId
    term: Term
    context: bytes = b""


class MsgCommit(msgspec.Struct):
    """Update of the commit index (`Config.commit_apart`): a heartbeat without an answer.

    If it is lost, a follower that needs the commit index requests it.
    """

    to: NodeId
    from_: NodeId
    term: Term
    commit: Index
    """Commit index, never above what the peer is known to have."""


class MsgSnap(msgspec.Struct):
    """InstallSnapshot (§7), in one message: snapshots are a few hundred bytes."""

    to: NodeId
    from_: NodeId
    term: Term
    snapshot: Snapshot


class MsgTimeoutNow(msgspec.Struct):
    """Order to campaign at once, because leadership is transferred to `to` (thesis §3.10)."""

    to: NodeId
    from_: NodeId
    term: Term


class MsgTransferLeader(msgspec.Struct):
    """Request to make `from_` the leader, whichever node sends it. Followers forward it."""

    to: NodeId
    from_: NodeId
    term: Term


class MsgProp(msgspec.Struct):
    """Proposal forwarded by a follower; `term` is 0."""

    to: NodeId
    from_: NodeId
    term: Term
    entries: list[Entry]


class MsgReadIndex(msgspec.Struct):
    """Read index request forwarded by a follower (thesis §6.4); `term` is 0."""

    to: NodeId
    from_: NodeId
    term: Term
    context: bytes


class MsgReadIndexResp(msgspec.Struct):
    """Answer to MsgReadIndex."""

    to: NodeId
    from_: NodeId
    term: Term
    index: Index
    context: bytes


class MsgStorageAppend(msgspec.Struct):
    """Request to write to stable storage, in order, and then deliver `responses`.

    `term`, `vote`, `commit` are the new hard state, all 0 if it did not change. A message without
    `must_sync` may share the next sync, but its responses still wait until everything given out
    *before* it is durable: they may acknowledge earlier entries.
    """

    to: NodeId
    from_: NodeId
    term: Term = NO_TERM
    vote: NodeId = NONE
    commit: Index = NO_INDEX
    entries: list[Entry] = msgspec.field(default_factory=list)
    """Entries to append. If the first one's index is inside the log, truncate there first."""
    snapshot: Snapshot | None = None
    """Snapshot that replaces the log. Comes without entries."""
    responses: list[Message] = msgspec.field(default_factory=list)
    must_sync: bool = False


class MsgStorageAppendResp(msgspec.Struct):
    """Answer of the storage: everything up to (`log_term`, `index`) and `snapshot` is durable.

    `term` is the node's term when the write was given out. After a change of term the core ignores
    `index`: entries of the same index and term may have been overwritten and written again, and an
    older write does not prove that the newer one is durable.
    """

    to: NodeId
    from_: NodeId
    term: Term
    log_term: Term = NO_TERM
    index: Index = NO_INDEX
    """0 if the answer covers no entries."""
    snapshot: Snapshot | None = None
    vote: NodeId = NONE
    """Durable vote of the node in `term`; 0 if none is pending."""


class MsgStorageApply(msgspec.Struct):
    """Request to apply these committed and locally durable entries, then deliver `responses`."""

    to: NodeId
    from_: NodeId
    term: Term
    entries: list[Entry]
    responses: list[Message]


class MsgStorageApplyResp(msgspec.Struct):
    """Answer of the state machine: the entries have been applied."""

    to: NodeId
    from_: NodeId
    term: Term
    entries: list[Entry]


PeerMessage: TypeAlias = (
    MsgApp
    | MsgAppResp
    | MsgVote
    | MsgVoteResp
    | MsgPreVote
    | MsgPreVoteResp
    | MsgHeartbeat
    | MsgHeartbeatResp
    | MsgCommit
    | MsgSnap
    | MsgTimeoutNow
    | MsgTransferLeader
    | MsgProp
    | MsgReadIndex
    | MsgReadIndexResp
)
"""Messages that may be sent between servers."""

StorageMessage: TypeAlias = (
    MsgStorageAppend | MsgStorageAppendResp | MsgStorageApply | MsgStorageApplyResp
)
"""Messages between a node and its own storage."""

Message: TypeAlias = PeerMessage | StorageMessage

RESPONSES: Final[frozenset[type[Message]]] = frozenset(
    (MsgAppResp, MsgVoteResp, MsgPreVoteResp, MsgHeartbeatResp, MsgReadIndexResp)
)
"""Answers between peers. Only members of the configuration may send them."""
