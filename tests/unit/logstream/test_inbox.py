"""What a host takes from its peers, and what it leaves."""

from collections.abc import Callable
from typing import Any

import pytest

from raft.messages import (
    Message,
    MsgProp,
    MsgStorageAppend,
    MsgStorageAppendResp,
    MsgStorageApply,
    MsgStorageApplyResp,
    MsgTransferLeader,
)
from raft.types import Entry, EntryKind
from rpc.frames import encode_messages
from rpc.peer import FrameType

Make = Callable[[int, int], Message]


def proposal(kind: EntryKind, count: int = 1) -> Make:
    return lambda to, from_: MsgProp(to, from_, 0, [Entry(kind=kind) for _ in range(count)])


PROPOSALS = [
    proposal(EntryKind.NORMAL),
    proposal(EntryKind.CONF_CHANGE_V2),
    proposal(EntryKind.NORMAL, count=0),
]


@pytest.mark.parametrize("is_leader", [True, False], ids=["leader", "follower"])
@pytest.mark.parametrize(
    "make",
    [*PROPOSALS, lambda to, from_: MsgTransferLeader(to, from_, 1)],
    ids=["entry", "membership change", "no entries", "transfer"],
)
def test_peers_message_that_no_host_sends_is_dropped_and_counted(
    cluster: Any, make: Make, is_leader: bool
) -> None:
    """The frame is in order, so its sender is not at fault in the way of a broken one. Commands
    reach a log only through its own server, which checks them."""
    group_id = cluster.create_topic()
    servers = sorted(cluster.nodes, key=cluster.leader(group_id).leader_server.__ne__)
    here, peer = (servers[0], servers[1]) if is_leader else (servers[1], servers[0])
    host = cluster.nodes[here].host
    node, dropped = host.groups[group_id].node, host.stats.messages_dropped
    last, lead, term = node.last_index, node.lead, node.term
    message: Any = make(node.id, cluster.nodes[peer].host.groups[group_id].node.id)
    frame = b"".join(bytes(part) for part in encode_messages([(group_id, message)]))
    host.frame(peer, FrameType.RAFT, memoryview(frame))
    assert host.stats.messages_dropped == dropped + 1
    cluster.run(500)
    assert (node.last_index, node.lead, node.term) == (last, lead, term)
    assert node.is_leader == is_leader


@pytest.mark.parametrize("is_leader", [True, False], ids=["leader", "follower"])
@pytest.mark.parametrize(
    "make",
    [
        MsgStorageAppend,
        lambda to, from_: MsgStorageAppendResp(to, from_, 1, 1, 99),
        lambda to, from_: MsgStorageApply(to, from_, 0, [], []),
        lambda to, from_: MsgStorageApplyResp(to, from_, 0, []),
    ],
    ids=["append", "appended", "apply", "applied"],
)
def test_message_of_the_own_storage_is_none_of_a_peers(
    cluster: Any, make: Make, is_leader: bool
) -> None:
    """No frame can carry one today; nobody else's disk vouches for this one either."""
    group_id = cluster.create_topic()
    servers = sorted(cluster.nodes, key=cluster.leader(group_id).leader_server.__ne__)
    here, peer = (servers[0], servers[1]) if is_leader else (servers[1], servers[0])
    host = cluster.nodes[here].host
    node, dropped = host.groups[group_id].node, host.stats.messages_dropped
    message: Any = make(node.id, cluster.nodes[peer].host.groups[group_id].node.id)
    host._inbox.step(group_id, message, peer, host.loop_time.tick())
    assert host.stats.messages_dropped == dropped + 1
