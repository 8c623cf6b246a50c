"""Lanes of a link: urgent Raft messages are written before entries and snapshots, and both of them
between the pieces of a large one.

Otherwise the votes, acknowledgements and read confirmations of all groups would wait behind one
group's entries. Each lane keeps its order; there is none between the two. Raft allows any order
between nodes. This implementation assumes:

* `MsgApp` and `MsgSnap` keep their order, empty `MsgApp`s too: one that arrived before the entries
  it follows would be refused, and all of them sent again.
* `MsgHeartbeat` *without* a context checks that what was sent before has arrived: it ends the wait
  for a probe's answer, and shows that a snapshot was dropped. It stays behind them. One *with* a
  context confirms a read, and is urgent; its answer proves nothing about what it overtook
  (`raft.leader._on_heartbeat_answer`).
* `MsgAppResp`, `MsgVoteResp`, `MsgPreVoteResp`, `MsgHeartbeatResp`: what they report is durable
  before they are sent. The entries they may overtake are of groups that their sender leads, or
  led in an older term, and these are refused by their term.
* `MsgVote`, `MsgPreVote`: a candidate's own entries of older terms are refused in the same way.
* `MsgCommit`: never above what the peer has acknowledged, so what it commits has arrived before.
* `MsgTimeoutNow`: sent once the transferee has acknowledged the whole log; nothing is in flight.
* `MsgReadIndex`, `MsgReadIndexResp`: about committed entries, for which the requester waits.

A frame that is larger than a piece is written piece by piece, and bulk messages of *other groups*
pass it: Raft orders nothing between groups. A group with a message in such a frame, or behind one,
stays behind it until all its messages there are written (`PeerEngine.behind`). So all of the above
holds within each group. A frame that has one message of such a group waits with all of its
messages, so those of other groups have frames of their own (`let_pass`).

Of the other frames, heartbeats and leader lists are urgent, in their order: a heartbeat confirms
the list before it, and everything on the peer's list that no frame before it denied (DENIALS). A
list may name a leader whose first entries are still to come, as its first heartbeat would. A full
disk or a stop (CONDITION), a request for a range, one on behalf of a client and its answer (QUERY,
REPLY), and the outcome of a forwarded command (PROPOSED) state nothing about what they overtake:
the server that forwarded a command waits for the command itself. A command that is sent until it is
answered (COMMAND) need not wait for entries either, unless it is large; its answer (COMMAND_DONE)
reports that it is applied. The same holds for several of them together (COMMANDS, COMMANDS_DONE).
The extent to which a replica is compacted (COMPACTED) is durable before it is sent. REJECT comes
last of all, because the link ends with it.

Does not depend on links, or on how lanes are written.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from raft.messages import MsgApp, MsgHeartbeat, MsgSnap, PeerMessage
from rpc.frames import FRAME_PAYLOAD_BYTES_TARGET, EncodedFrame, GroupMessage, encode_frames

_BULK: Final[frozenset[type[PeerMessage]]] = frozenset((MsgApp, MsgSnap))

_FRAMES_OF_PIECE: Final = 4
"""Part of a piece at which a frame that is to pass a large one ends. The last message may be nearly
as large again, and the heads of small entries are as large as they are."""


def in_lanes(
    messages: Sequence[GroupMessage],
) -> tuple[Sequence[GroupMessage], Sequence[GroupMessage]]:
    """Return (urgent messages, the others), each in their order."""
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


def let_pass(
    bulk: Sequence[GroupMessage],
    frames: Sequence[EncodedFrame],
    behind: Collection[int],
    piece_bytes: int,
) -> tuple[Sequence[GroupMessage], Sequence[EncodedFrame]]:
    """Return bulk messages and their frames, those first that pass a large one.

    `behind`: the groups behind a large frame on the link, which cuts frames above `piece_bytes`.
    Their messages come last, with those of groups that have a large one among `bulk`.
    """
    small_bytes = max(piece_bytes // _FRAMES_OF_PIECE, 1)
    large_bytes = FRAME_PAYLOAD_BYTES_TARGET
    if behind:
        frames = encode_frames(bulk, payload_bytes=small_bytes)
        large_bytes = piece_bytes
    large = {
        bulk[start][0]
        for start, end, buffers in frames
        if end - start == 1 and sum(map(len, buffers)) > large_bytes
    }
    if not (large or behind):
        return bulk, frames
    passing: list[GroupMessage] = []
    held: list[GroupMessage] = []
    for item in bulk:
        (held if item[0] in large or item[0] in behind else passing).append(item)
    count = len(passing)
    ordered = encode_frames(passing, payload_bytes=small_bytes)
    for start, end, buffers in encode_frames(held, payload_bytes=small_bytes):
        ordered.append((count + start, count + end, buffers))
    return passing + held, ordered
