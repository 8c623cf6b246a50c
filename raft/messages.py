"""One dataclass per message type; a field means one thing.

Every message begins with `to`, `from_`, `term`. Between peers `term` is the sender's term; a pre-
vote request and its grant carry the term the sender *would* campaign in. `term` 0 marks what is
not bound to a term: forwarded requests and the storage's "applied".

Four kinds of travellers:
- peer to peer: MsgApp, MsgAppResp, MsgVote, MsgVoteResp, MsgPreVote, MsgPreVoteResp, MsgHeartbeat,
  MsgHeartbeatResp, MsgCommit, MsgSnap, MsgTimeoutNow;
- forwarded to the leader: MsgProp, MsgReadIndex (and MsgReadIndexResp back), MsgTransferLeader;
- node to its own storage: MsgStorageAppend, MsgStorageApply, addressed to LOCAL_APPEND_THREAD and
  LOCAL_APPLY_THREAD, never sent over a network;
- storage to its node: MsgStorageAppendResp, MsgStorageApplyResp, and whatever else was among
  `responses`.

The host carries messages and never looks inside the peer ones. Messages between two nodes may be
lost, repeated and reordered; those to and from the local storage may not.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, TypeAlias

from ids import NO_INDEX, NO_TERM, Index, NodeId, Term
from raft.types import NONE, Entry, Snapshot


@dataclass(slots=True)
class MsgApp:
    """AppendEntries (§5.3). Empty: a probe, or news of the commit index."""

    to: NodeId
    from_: NodeId
    term: Term
    log_term: Term
    """Term of the entry before the first one sent."""
    index: Index
    """Index of the entry before the first one sent."""
    entries: list[Entry]
    commit: Index


@dataclass(slots=True)
class MsgAppResp:
    """Answer to MsgApp and MsgSnap; also the leader's message to itself after its own sync.

    `index`: accepted: everything up to it matches and is durable; rejected: the `index` of the
    MsgApp refused. Neither for an answer that only tells a deposed leader the newer term: 0.
    """

    to: NodeId
    from_: NodeId
    term: Term
    index: Index
    reject: bool = False
    reject_hint: Index = NO_INDEX
    """Rejected: the largest index where the logs may still agree."""
    log_term: Term = NO_TERM
    """Rejected: the term of the follower's entry at `reject_hint`."""


@dataclass(slots=True)
class MsgVote:
    """RequestVote (§5.2, §5.4.1)."""

    to: NodeId
    from_: NodeId
    term: Term
    log_term: Term
    """Term of the candidate's last entry."""
    index: Index
    """Index of the candidate's last entry."""
    transfer: bool = False
    """The old leader asked for this election: a live leader is no reason to refuse (§4.2.3)."""


@dataclass(slots=True)
class MsgVoteResp:
    """Answer to MsgVote; also a candidate's vote for itself."""

    to: NodeId
    from_: NodeId
    term: Term
    reject: bool = False


@dataclass(slots=True)
class MsgPreVote:
    """Would you vote for me in `term`? (thesis §9.6)"""

    to: NodeId
    from_: NodeId
    term: Term
    log_term: Term
    index: Index
    transfer: bool = False


@dataclass(slots=True)
class MsgPreVoteResp:
    """Answer to MsgPreVote: a grant carries the asked term, a rejection the voter's own."""

    to: NodeId
    from_: NodeId
    term: Term
    reject: bool = False


@dataclass(slots=True)
class MsgHeartbeat:
    """The leader is alive (§5.2)."""

    to: NodeId
    from_: NodeId
    term: Term
    commit: Index
    """Never above what the peer is known to have."""
    context: bytes = b""
    """The newest read index request that answers confirm: its round (`raft.reads`)."""


@dataclass(slots=True)
class MsgHeartbeatResp:
    """Answer to MsgHeartbeat, its context returned."""

    to: NodeId
    from_: NodeId
    term: Term
    context: bytes = b""


@dataclass(slots=True)
class MsgCommit:
    """The commit index has moved (`Config.commit_apart`). A heartbeat that wants no answer: if it
    is lost, a follower that waits for it asks."""

    to: NodeId
    from_: NodeId
    term: Term
    commit: Index
    """Never above what the peer is known to have."""


@dataclass(slots=True)
class MsgSnap:
    """InstallSnapshot (§7), in one piece: snapshots are a few hundred bytes."""

    to: NodeId
    from_: NodeId
    term: Term
    snapshot: Snapshot


@dataclass(slots=True)
class MsgTimeoutNow:
    """Campaign at once: leadership is being handed to you (thesis §3.10)."""

    to: NodeId
    from_: NodeId
    term: Term


@dataclass(slots=True)
class MsgTransferLeader:
    """Request that `from_`, whoever sends it, become leader; followers pass it to theirs."""

    to: NodeId
    from_: NodeId
    term: Term


@dataclass(slots=True)
class MsgProp:
    """Proposal forwarded by a follower; `term` is 0."""

    to: NodeId
    from_: NodeId
    term: Term
    entries: list[Entry]


@dataclass(slots=True)
class MsgReadIndex:
    """Read index request forwarded by a follower (thesis §6.4); `term` is 0."""

    to: NodeId
    from_: NodeId
    term: Term
    context: bytes


@dataclass(slots=True)
class MsgReadIndexResp:
    """Answer to MsgReadIndex."""

    to: NodeId
    from_: NodeId
    term: Term
    index: Index
    context: bytes


@dataclass(slots=True)
class MsgStorageAppend:
    """Write this to stable storage, in order, then deliver `responses`.

    `term`, `vote`, `commit` are the new hard state, all 0 when it did not change. A message
    without `must_sync` may ride with the next sync, but its responses still wait until everything
    given out *before* it is durable: they may acknowledge earlier entries.
    """

    to: NodeId
    from_: NodeId
    term: Term = NO_TERM
    vote: NodeId = NONE
    commit: Index = NO_INDEX
    entries: list[Entry] = field(default_factory=list)
    """Entries to append; the first one's index may lie inside the log: truncate there first."""
    snapshot: Snapshot | None = None
    """Replace the log by this; comes without entries."""
    responses: list[Message] = field(default_factory=list)
    must_sync: bool = False


@dataclass(slots=True)
class MsgStorageAppendResp:
    """Everything up to (`log_term`, `index`) is durable, and so is `snapshot`.

    `term` is the node's term when the write was given out. The core ignores the entries part
    after a term change: the same index and term may since have been overwritten and written
    again, and an older write must not vouch for a newer one.
    """

    to: NodeId
    from_: NodeId
    term: Term
    log_term: Term = NO_TERM
    index: Index = NO_INDEX
    """0 when it vouches for no entries."""
    snapshot: Snapshot | None = None
    vote: NodeId = NONE
    """Whom the node has voted for in `term`: that is durable, too. 0 when nobody waits for it."""


@dataclass(slots=True)
class MsgStorageApply:
    """Apply these committed and locally durable entries, in order, then deliver `responses`."""

    to: NodeId
    from_: NodeId
    term: Term
    entries: list[Entry]
    responses: list[Message]


@dataclass(slots=True)
class MsgStorageApplyResp:
    """The entries have been applied."""

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
"""What may travel between servers."""

StorageMessage: TypeAlias = (
    MsgStorageAppend | MsgStorageAppendResp | MsgStorageApply | MsgStorageApplyResp
)
"""What stays between a node and its own storage."""

Message: TypeAlias = PeerMessage | StorageMessage

RESPONSES: Final[frozenset[type[Message]]] = frozenset(
    (MsgAppResp, MsgVoteResp, MsgPreVoteResp, MsgHeartbeatResp, MsgReadIndexResp)
)
"""Answers between peers: only members of the configuration have something to answer."""
