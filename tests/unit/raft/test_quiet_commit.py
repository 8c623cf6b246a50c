"""With quiet heartbeats the news of a commit index must not get lost for good."""

from __future__ import annotations

import random

from raft.config import Config
from raft.memory import MemoryStorage
from raft.messages import Message, MsgAppResp, MsgHeartbeat, MsgVoteResp
from raft.node import RawNode
from raft.types import ConfState, Entry, HardState, Snapshot


def settle(node: RawNode, storage: MemoryStorage) -> list[Message]:
    """Work off the node's Readys; what it sent to its peer."""
    sent: list[Message] = []
    while node.has_ready():
        ready = node.ready()
        if ready.hard_state is not None:
            storage.set_hard_state(HardState(node.term, node.vote, node.commit))
        storage.append(ready.entries)
        sent += ready.messages
        node.advance(ready)
    return sent


def test_leader_repeats_commit_to_follower_that_answers_with_an_older_one() -> None:
    """An append below the follower's commit index is answered with that index, its commit field
    unread; the leader must not count the follower as told."""
    storage = MemoryStorage(Snapshot(index=1, term=1, conf_state=ConfState(voters=(1, 2))))
    node = RawNode(
        Config(
            id=1,
            election_ticks=10,
            heartbeat_ticks=1,
            rng=random.Random(1),
            storage=storage,
            quiet_heartbeats=True,
        )
    )
    node.campaign()
    settle(node, storage)
    node.step(MsgVoteResp(to=1, from_=2, term=node.term))
    settle(node, storage)
    node.propose([Entry(data=b"x")])
    settle(node, storage)
    last = node.last_index
    node.step(MsgAppResp(to=1, from_=2, term=node.term, index=last))
    settle(node, storage)
    assert node.commit == last
    node.tick(2)
    assert settle(node, storage) == []
    node.step(MsgAppResp(to=1, from_=2, term=node.term, index=last - 1))
    settle(node, storage)
    node.tick(1)
    beats = [message for message in settle(node, storage) if isinstance(message, MsgHeartbeat)]
    assert [beat.commit for beat in beats] == [last]
