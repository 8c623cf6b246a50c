"""Which Raft messages are urgent: they are written to a link before entries and snapshots.

Otherwise the votes, acknowledgements and read proofs of all groups would wait behind one group's
entries. Each lane keeps its order; between
the two there is none. Raft allows any order between nodes. What this implementation assumes:

* `MsgApp` and `MsgSnap` keep their order, empty `MsgApp`s too: one that came before the entries
  it follows would be refused, and all of them sent again.
* `MsgHeartbeat` *without* a context asks whether what was sent before has come: it ends the wait
  for a probe's answer, and tells that a snapshot was dropped. It stays behind them. One *with* a
  context proves a read, and is urgent; its answer says nothing of what it overtook
  (`raft.leader._on_heartbeat_answer`).
* `MsgAppResp`, `MsgVoteResp`, `MsgPreVoteResp`, `MsgHeartbeatResp`: what they say is durable
  before they are sent. The entries they may overtake are of groups that their sender leads, or
  led in an older term, which are then refused by their term.
* `MsgVote`, `MsgPreVote`: a candidate's own entries of older terms are refused in the same way.
* `MsgCommit`: never above what the peer has acknowledged, so what it commits has come before.
* `MsgTimeoutNow`: sent once the transferee has acknowledged the whole log; nothing is on its way.
* `MsgReadIndex`, `MsgReadIndexResp`: about committed entries, for which the requester waits.

Of the other frames, heartbeats and leader lists are urgent, in their order: a heartbeat vouches
for the list before it, and confirms of the peer's list what no frame before it denied (DENIALS). A
list may name a leader whose first entries are still to come, as its first heartbeat would. A full
disk or a stop (CONDITION), a question for a range, one on behalf of a client and its answer (QUERY,
REPLY), and the fate of a forwarded command (PROPOSED) say nothing about what they overtake: who
forwarded it waits for the command itself. A command that is
sent until it is answered (COMMAND) waits for no entries either, unless it is large; its answer
(COMMAND_DONE) says that it is applied. Several of them together (COMMANDS, COMMANDS_DONE) likewise.
How far a replica is compacted (COMPACTED) is durable before it is sent. REJECT comes last of all,
because the link ends with it.

Must not know: links, how lanes are written.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from raft.messages import MsgApp, MsgHeartbeat, MsgProp, MsgSnap, MsgTransferLeader, PeerMessage
from rpc.frames import GroupMessage

_BULK: Final[frozenset[type[PeerMessage]]] = frozenset(
    (MsgApp, MsgSnap, MsgProp, MsgTransferLeader)
)


def in_lanes(
    messages: Sequence[GroupMessage],
) -> tuple[Sequence[GroupMessage], Sequence[GroupMessage]]:
    """(urgent ones, the others), each in their order."""
    # Without a call for each message: most turns have a few.
    urgent: list[GroupMessage] = []
    bulk: list[GroupMessage] = []
    for item in messages:
        message = item[1]
        if type(message) is MsgHeartbeat:
            is_bulk = not message.context
        else:
            is_bulk = type(message) in _BULK
        if is_bulk:
            bulk.append(item)
        else:
            urgent.append(item)
    return urgent, bulk
