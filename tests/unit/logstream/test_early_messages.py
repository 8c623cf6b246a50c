"""Messages for groups that are not here yet are bounded, by number and by bytes."""

from typing import Any

from raft.messages import MsgApp, MsgPreVote, MsgSnap
from raft.types import Entry, Snapshot
from vdl.clock import MS
from vdl.logstream.peers.early_messages import EarlyMessages
from vdl.state.commands import CreateTopics, NewTopic


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


def test_first_append_of_a_leader_is_kept_and_records_are_not() -> None:
    """A follower that opens late knows its leader at once; records would pin receive buffers."""
    early = EarlyMessages(messages_max=2, snapshot_bytes_max=1_000)

    def append(*entries: Entry) -> MsgApp:
        return MsgApp(1, 2, 3, 0, 0, list(entries), 0)

    begins_term, record = Entry(3, 1), Entry(3, 2, data=b"record")
    assert early.keep(1, append(begins_term))
    assert not early.keep(1, append(record))
    assert not early.keep(1, append(begins_term, record))
    assert not early.keep(2, append(begins_term)), "the rest is for votes"
    assert early.take(1) == [append(begins_term)]


def test_replica_that_opens_late_knows_its_leader_at_once(cluster: Any) -> None:
    """The next leader list comes up to 100 ms later, and Metadata waits for a leader."""
    late = cluster.nodes[3]
    late.workers.sync_ns = 20 * MS
    group_id = late.host.catalog.next_group_id
    command = CreateTopics([NewTopic("t", bytes(16), assignments=[[1, 2, 3]])])
    cluster.nodes[1].host.propose_catalog(
        command, deadline_ns=cluster.deadline(), done=lambda outcome: None
    )
    cluster.run(10)
    assert cluster.nodes[1].host.leader_of(group_id)[0] == 1
    while group_id not in late.host.groups:
        cluster.run(1)
    assert late.host.leader_of(group_id)[0] == 1
