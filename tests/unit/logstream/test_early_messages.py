"""Messages for groups that are not here yet are bounded, by number and by bytes."""

from raft.messages import MsgPreVote, MsgSnap
from raft.types import Snapshot
from vdl.logstream.peers.early_messages import EarlyMessages


def snapshot(size: int) -> MsgSnap:
    return MsgSnap(1, 2, 3, Snapshot(index=5, term=3, data=bytes(size)))


def test_snapshots_are_bounded_by_their_bytes() -> None:
    """Four thousand of the largest would be more memory than a server has."""
    early = EarlyMessages(messages_max=100, snapshot_bytes_max=1_000)
    assert early.keep(1, snapshot(600))
    assert not early.keep(2, snapshot(600))
    assert early.keep(2, snapshot(400))
    assert early.keep(2, MsgPreVote(1, 2, 3, 3, 5))
    assert len(early.take(1)) == 1
    assert early.keep(3, snapshot(600))
    early.drop_unless(lambda group: group != 2)
    assert early.keep(4, snapshot(400))
    assert not early.keep(5, snapshot(1))


def test_messages_are_bounded_by_their_number() -> None:
    early = EarlyMessages(messages_max=2, snapshot_bytes_max=1_000)
    vote = MsgPreVote(1, 2, 3, 3, 5)
    assert [early.keep(group, vote) for group in (1, 1, 2)] == [True, True, False]
    early.take(1)
    assert early.keep(2, vote)
