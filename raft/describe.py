"""Text forms of the core's messages and state, for traces, tools and transcripts.

The wording is that of etcd's raft, so that transcripts of both can be compared line by line.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

from ids import NO_INDEX, NO_TERM, Index, NodeId, Term
from raft.membership import Membership, decode_conf_change
from raft.messages import (
    Message,
    MsgApp,
    MsgAppResp,
    MsgCommit,
    MsgHeartbeat,
    MsgPreVote,
    MsgPreVoteResp,
    MsgProp,
    MsgReadIndexResp,
    MsgSnap,
    MsgStorageAppend,
    MsgStorageAppendResp,
    MsgStorageApply,
    MsgStorageApplyResp,
    MsgVote,
    MsgVoteResp,
)
from raft.progress import Progress
from raft.ready import Ready
from raft.types import (
    LOCAL_APPEND_THREAD,
    LOCAL_APPLY_THREAD,
    ConfChange,
    ConfChangeType,
    ConfState,
    Entry,
    EntryKind,
    HardState,
    Payload,
    Snapshot,
    SoftState,
    StateType,
)

Formatter: TypeAlias = Callable[[Payload], str]
"""Function that formats an entry's payload."""

_STATE_NAMES = {
    StateType.FOLLOWER: "StateFollower",
    StateType.PRE_CANDIDATE: "StatePreCandidate",
    StateType.CANDIDATE: "StateCandidate",
    StateType.LEADER: "StateLeader",
}
_KIND_NAMES = {
    EntryKind.NORMAL: "EntryNormal",
    EntryKind.NOOP: "EntryNormal",
    EntryKind.CONF_CHANGE: "EntryConfChange",
    EntryKind.CONF_CHANGE_V2: "EntryConfChangeV2",
}
_CHANGE_LETTERS = {
    ConfChangeType.ADD_NODE: "v",
    ConfChangeType.ADD_LEARNER_NODE: "l",
    ConfChangeType.REMOVE_NODE: "r",
    ConfChangeType.UPDATE_NODE: "u",
}
_LOCAL_NAMES = {LOCAL_APPEND_THREAD: "AppendThread", LOCAL_APPLY_THREAD: "ApplyThread"}


def quoted(data: Payload) -> str:
    """Return a payload as a quoted string."""
    text = bytes(data).decode("utf-8", "backslashreplace")
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def state_name(state: StateType) -> str:
    """Return the name of a role, such as `StateLeader`."""
    return _STATE_NAMES[state]


def change(conf_change: ConfChange) -> str:
    """Format a membership change as `v1 l2 r3 u4`."""
    return " ".join(f"{_CHANGE_LETTERS[one.type]}{one.node_id}" for one in conf_change.changes)


def entry(e: Entry, formatter: Formatter = quoted) -> str:
    """Format an entry as `term/index kind payload`."""
    if e.kind in (EntryKind.NORMAL, EntryKind.NOOP):
        payload = formatter(e.data)
    else:
        payload = change(decode_conf_change(e.data))
    return f"{e.term}/{e.index} {_KIND_NAMES[e.kind]} {payload}".rstrip(" ")


def entries(es: list[Entry], formatter: Formatter = quoted) -> str:
    """Format entries, one per line."""
    return "".join(entry(e, formatter) + "\n" for e in es)


def hard_state(state: HardState) -> str:
    """Format a hard state as `Term:1 Vote:1 Commit:10`, without the vote if there is none."""
    vote = f" Vote:{state.vote}" if state.vote else ""
    return f"Term:{state.term}{vote} Commit:{state.commit}"


def soft_state(state: SoftState) -> str:
    """Format a soft state as `Lead:1 State:StateLeader`."""
    return f"Lead:{state.lead} State:{state_name(state.state)}"


def conf_state(state: ConfState) -> str:
    """Format as `Voters:[1 2] VotersOutgoing:[1] Learners:[] LearnersNext:[] AutoLeave:true`."""

    def ids(values: tuple[NodeId, ...]) -> str:
        return "[" + " ".join(map(str, values)) + "]"

    return (
        f"Voters:{ids(state.voters)} VotersOutgoing:{ids(state.voters_outgoing)} "
        f"Learners:{ids(state.learners)} LearnersNext:{ids(state.learners_next)} "
        f"AutoLeave:{str(state.auto_leave).lower()}"
    )


def snapshot(s: Snapshot) -> str:
    """Format a snapshot as `Index:4 Term:1 ConfState:…`."""
    return f"Index:{s.index} Term:{s.term} ConfState:{conf_state(s.conf_state)}"


def membership(m: Membership) -> str:
    """Format as `voters=(1 2 3)&&(1) learners=(2) learners_next=(1) autoleave`."""

    def ids(values: frozenset[NodeId]) -> str:
        return "(" + " ".join(map(str, sorted(values))) + ")"

    parts = "voters=" + ids(m.incoming)
    if m.outgoing:
        parts += "&&" + ids(m.outgoing)
    if m.learners:
        parts += " learners=" + ids(m.learners)
    if m.learners_next:
        parts += " learners_next=" + ids(m.learners_next)
    return parts + (" autoleave" if m.auto_leave else "")


def progress(p: Progress) -> str:
    """Format as `StateReplicate match=14 next=17 learner paused pendingSnap=4 inactive …`.

    In-flight messages are shown as `inflight=2[full]`.
    """
    text = f"{p.state.value} match={p.match} next={p.next}"
    if p.is_learner:
        text += " learner"
    if p.is_paused:
        text += " paused"
    if p.pending_snapshot:
        text += f" pendingSnap={p.pending_snapshot}"
    if not p.recent_active:
        text += " inactive"
    if len(p.inflights):
        text += f" inflight={len(p.inflights)}" + ("[full]" if p.inflights.is_full else "")
    return text


def message(m: Message, formatter: Formatter = quoted, indent: str = "") -> str:
    """Format a message as `1->2 MsgApp Term:1 Log:1/11 Commit:11 Entries:[1/12 …]`."""
    log_term, index = _log_position(m)
    text = (
        f"{indent}{_address(m.from_)}->{_address(m.to)} {type(m).__name__} "
        f"Term:{m.term} Log:{log_term}/{index}"
    )
    if isinstance(m, MsgAppResp | MsgVoteResp | MsgPreVoteResp) and m.reject:
        hint = m.reject_hint if isinstance(m, MsgAppResp) else 0
        text += f" Rejected (Hint: {hint})"
    if isinstance(m, MsgApp | MsgHeartbeat | MsgCommit | MsgStorageAppend) and m.commit:
        text += f" Commit:{m.commit}"
    if isinstance(m, MsgStorageAppend) and m.vote:
        text += f" Vote:{m.vote}"
    if isinstance(m, MsgApp | MsgProp | MsgStorageAppend | MsgStorageApply | MsgStorageApplyResp):
        text += _message_entries(m.entries, formatter, indent)
    if isinstance(m, MsgSnap | MsgStorageAppend | MsgStorageAppendResp) and m.snapshot is not None:
        text += f"\n{indent}  Snapshot: {snapshot(m.snapshot)}"
    if isinstance(m, MsgStorageAppend | MsgStorageApply) and m.responses:
        lines = [message(response, formatter, indent + "  ") for response in m.responses]
        text += " Responses:[\n" + "\n".join(lines) + f"\n{indent}]"
    return text


def _message_entries(es: list[Entry], formatter: Formatter, indent: str) -> str:
    if len(es) == 1:
        return f" Entries:[{entry(es[0], formatter)}]"
    if es:
        lines = "".join(f"\n{indent}  {entry(e, formatter)}" for e in es)
        return f" Entries:[{lines}\n{indent}]"
    return ""


def _log_position(m: Message) -> tuple[Term, Index]:
    if isinstance(m, MsgApp | MsgAppResp | MsgVote | MsgPreVote | MsgStorageAppendResp):
        return m.log_term, m.index
    if isinstance(m, MsgReadIndexResp):
        return NO_TERM, m.index
    return NO_TERM, NO_INDEX


def _address(node: NodeId) -> str:
    return _LOCAL_NAMES.get(node) or str(node)


def ready(r: Ready, formatter: Formatter = quoted) -> str:
    """Format a Ready, one item per line."""
    text = ""
    if r.soft_state is not None:
        text += soft_state(r.soft_state) + "\n"
    if r.hard_state is not None:
        text += "HardState " + hard_state(r.hard_state) + "\n"
    if r.read_states:
        text += "ReadStates " + " ".join(f"{s.index}:{quoted(s.context)}" for s in r.read_states)
        text += "\n"
    if r.entries:
        text += "Entries:\n" + entries(r.entries, formatter)
    if r.snapshot is not None:
        text += "Snapshot " + snapshot(r.snapshot) + "\n"
    if r.committed_entries:
        text += "CommittedEntries:\n" + entries(r.committed_entries, formatter)
    if r.messages:
        text += "Messages:\n" + "".join(message(m, formatter) + "\n" for m in r.messages)
    if r.cold_reads:
        text += "".join(f"ColdRead {c.peer} from {c.first}\n" for c in r.cold_reads)
    if not text:
        return "<empty Ready>"
    return f"Ready MustSync={str(r.must_sync).lower()}:\n{text}"


def majority(voters: frozenset[NodeId], acked: Mapping[NodeId, Index]) -> str:
    """Format a table of the voters' indexes; bar length: number of voters with a lower index."""
    if not voters:
        return "<empty majority quorum>"
    width = len(voters)
    text = " " * width + "    idx\n"
    for voter in sorted(voters):
        index = acked.get(voter, 0)
        bar = sum(acked.get(other, 0) < index for other in voters)
        if voter in acked:
            text += "x" * bar + ">" + " " * (width - bar)
        else:
            text += "?" + " " * width
        text += f" {index:5d}    (id={voter})\n"
    return text
