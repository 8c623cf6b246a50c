"""Appends, acknowledgements and reads of a log stream, over three real hosts."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from rpc.hello import PROTOCOL_VERSION, VERSION_OF_LATE_FIRST_NUMBERS
from segments.api import Log, SegmentSpan
from segments.memory import MemoryStore
from tests.unit.logstream.conftest import SERVERS, Cluster
from vdl.errors import ErrorCode
from vdl.logstream.group.appends import Appended
from vdl.logstream.group.log_stream import LogStream
from vdl.state.commands import AllocateProducerIds


def error_of(fates: list[Appended]) -> ErrorCode | None:
    assert len(fates) <= 1
    return fates[0].error if fates else None


def follower_servers(stream: LogStream) -> list[int]:
    return [server for server in (1, 2, 3) if server != stream.leader_server]


def test_append_is_acknowledged_after_a_majority_synced(cluster: Any) -> None:
    """Raft §5.3: the disks of the leader and one follower are needed, no more and no fewer."""
    stream = cluster.leader(cluster.create_topic())
    followers = follower_servers(stream)
    for server in followers:
        cluster.nodes[server].workers.hold()
    fates = cluster.append(stream)
    cluster.run(100)
    assert fates == []
    assert stream.high_watermark == 0
    cluster.nodes[followers[0]].workers.release()
    cluster.run(5)
    assert error_of(fates) is ErrorCode.NONE
    assert stream.high_watermark == 1


def test_append_commits_while_the_leaders_own_disk_hangs(cluster: Any) -> None:
    """Thesis §10.2.1: two followers are a majority; the leader counts itself only when synced."""
    stream = cluster.leader(cluster.create_topic())
    cluster.nodes[stream.leader_server].workers.hold()
    fates = cluster.append(stream)
    cluster.run(5)
    assert error_of(fates) is ErrorCode.NONE


def test_offsets_are_dense_over_elections(cluster: Any) -> None:
    """Raft's own entries consume no offset."""
    group_id = cluster.create_topic()
    stream = cluster.leader(group_id)
    first = cluster.append(stream)
    cluster.run(5)
    cluster.nodes[stream.leader_server].crash()
    cluster.run(3_000)
    second = cluster.append(cluster.leader(group_id))
    cluster.run(5)
    assert [first[0].base_offset, second[0].base_offset] == [0, 1]


def test_append_on_a_follower_is_refused_as_never_appended(cluster: Any) -> None:
    group_id = cluster.create_topic()
    follower = follower_servers(cluster.leader(group_id))[0]
    fates = cluster.append(cluster.nodes[follower].host.stream(group_id))
    assert error_of(fates) is ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_deposed_leader_answers_appended_batches_as_unknown(cluster: Any) -> None:
    """The next leader may have the batch or not: neither success nor failure is reported."""
    group_id = cluster.create_topic()
    stream = cluster.leader(group_id)
    leader = stream.leader_server
    for server in follower_servers(stream):
        cluster.network.cut(leader, server)
        cluster.network.cut(server, leader)
    fates = cluster.append(stream, ms=60_000)
    cluster.run(4_000)
    assert error_of(fates) is ErrorCode.REQUEST_TIMED_OUT
    assert not stream.is_leader


def test_batch_cut_off_on_a_deposed_leader_disappears(cluster: Any) -> None:
    """§5.3: the new leader's log wins; entries that were never acknowledged may be removed."""
    group_id = cluster.create_topic()
    old = cluster.leader(group_id)
    leader, others = old.leader_server, follower_servers(old)
    for server in others:
        cluster.network.cut(leader, server)
        cluster.network.cut(server, leader)
    cluster.append(old, b"lost")
    cluster.run(4_000)
    kept = cluster.append(cluster.leader(group_id), b"kept")
    cluster.run(10)
    assert error_of(kept) is ErrorCode.NONE
    for server in others:
        cluster.network.heal(leader, server)
        cluster.network.heal(server, leader)
    cluster.run(3_000)
    streams = [node.host.stream(group_id) for node in cluster.nodes.values()]
    assert [stream.high_watermark for stream in streams] == [1, 1, 1]
    copies = {bytes(stream.read(0, 1 << 20).buffers[0]) for stream in streams}
    assert len(copies) == 1
    assert b"kept" in copies.pop()


def test_append_without_majority_times_out_as_unknown(cluster: Any) -> None:
    stream = cluster.leader(cluster.create_topic())
    for server in follower_servers(stream):
        cluster.nodes[server].workers.hold()
    fates = cluster.append(stream, ms=300)
    cluster.run(500)
    assert error_of(fates) is ErrorCode.REQUEST_TIMED_OUT


def test_retried_batch_in_flight_waits_for_its_original(cluster: Any) -> None:
    """KIP-98: a duplicate is answered with the original's offset, and not before it commits."""
    stream = cluster.leader(cluster.create_topic())
    for server in follower_servers(stream):
        cluster.nodes[server].workers.hold()
    producer = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0}
    first = cluster.append(stream, **producer)
    again = cluster.append(stream, **producer)
    cluster.run(50)
    assert first == again == []
    for server in follower_servers(stream):
        cluster.nodes[server].workers.release()
    cluster.run(10)
    assert [error_of(first), error_of(again)] == [ErrorCode.NONE, ErrorCode.NONE]
    assert first[0].base_offset == again[0].base_offset == 0
    assert stream.high_watermark == 1


def test_retried_batch_is_told_when_its_original_was_appended(cluster: Any) -> None:
    """As in Kafka: a duplicate is answered with the timestamp of the original.

    In flight, committed, and by the next leader. Other batches have none.
    """
    group_id = cluster.create_topic()
    stream = cluster.leader(group_id)
    producer = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0}
    fates = [cluster.append(stream, timestamp=time, **producer) for time in (5_000, 6_000)]
    cluster.run(10)
    fates.append(cluster.append(stream, timestamp=7_000, **producer))
    cluster.run(10)
    cluster.nodes[stream.leader_server].crash()
    cluster.run(3_000)
    fates.append(cluster.append(cluster.leader(group_id), timestamp=8_000, **producer))
    cluster.run(10)
    assert [fate[0].duplicate_timestamp for fate in fates] == [None, 5_000, 5_000, 5_000]


def test_append_tells_where_the_log_begins_after_a_deletion(cluster: Any) -> None:
    """KIP-107: records below it are deleted, though their segment is still there."""
    stream = cluster.leader(cluster.create_topic())
    for _ in range(5):
        cluster.append(stream)
    cluster.run(10)
    stream.delete_records(3, deadline_ns=cluster.deadline(), done=lambda error: None)
    cluster.run(100)
    fate = cluster.append(stream)
    cluster.run(10)
    assert (fate[0].base_offset, fate[0].log_start_offset) == (5, 3)


def test_retried_batch_is_recognised_by_the_next_leader(cluster: Any) -> None:
    """The window is a function of the committed log, so it survives failover."""
    group_id = cluster.create_topic()
    stream = cluster.leader(group_id)
    producer = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0}
    cluster.append(stream, **producer)
    cluster.run(10)
    cluster.nodes[stream.leader_server].crash()
    cluster.run(3_000)
    stream = cluster.leader(group_id)
    again = cluster.append(stream, **producer)
    cluster.run(10)
    assert error_of(again) is ErrorCode.NONE
    assert again[0].base_offset == 0
    assert stream.high_watermark == 1


def test_producer_goes_on_in_a_topic_that_was_made_anew(cluster: Any) -> None:
    """The producer does not know of the deletion, so its numbers continue.

    An id assigned after the topic's creation begins at 0 in it, also under the next leader; after a
    restart this is unknown.
    """
    cluster.create_topic()
    old = cluster.propose(AllocateProducerIds(1)).first
    cluster.delete_topic()
    group_id = cluster.create_topic()
    new = cluster.propose(AllocateProducerIds(1)).first
    stream = cluster.leader(group_id)
    old_batch = {"producer_id": old, "producer_epoch": 0, "base_sequence": 70}
    new_batch = {"producer_id": new, "producer_epoch": 0, "base_sequence": 70}
    sent_back = cluster.append(stream, **old_batch)
    taken, refused = cluster.append(stream, **old_batch), cluster.append(stream, **new_batch)
    cluster.run(50)
    assert error_of(sent_back) is ErrorCode.NOT_LEADER_OR_FOLLOWER, "another may come before it"
    assert error_of(taken) is ErrorCode.NONE
    assert error_of(refused) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    cluster.nodes[stream.leader_server].crash()
    cluster.run(3_000)
    refused = cluster.append(cluster.leader(group_id), **new_batch)
    cluster.run(50)
    assert error_of(refused) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


@pytest.mark.parametrize("version", [VERSION_OF_LATE_FIRST_NUMBERS - 1, PROTOCOL_VERSION])
def test_producer_does_not_begin_late_beside_a_server_that_counts_from_zero(
    cluster: Any, version: int
) -> None:
    """A leader of an older version would take a batch before the first one for a duplicate.

    Its client would assume that unwritten records were written.
    """
    group_id = cluster.create_topic()
    stream = cluster.leader(group_id)
    old = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 70}
    stream.state.producers.ids_given_out(8)
    other = follower_servers(stream)[0]
    alive = cluster.nodes[stream.leader_server].host.state.alive
    alive[other] = replace(alive[other], version=version)
    told = [cluster.append(stream, **old) for _ in range(2)]
    cluster.run(50)
    assert [error_of(fate) for fate in told] == (
        [ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NONE]
        if version == PROTOCOL_VERSION
        else [ErrorCode.UNKNOWN_PRODUCER_ID] * 2
    )
    first = cluster.append(stream, producer_id=7, producer_epoch=1, base_sequence=0)
    cluster.run(50)
    assert error_of(first) is ErrorCode.NONE


@pytest.mark.parametrize("producer_id", [7, 8])
def test_gap_in_a_producers_sequence_is_told_by_a_leader_that_knows_it_is_one(
    cluster: Any, producer_id: int
) -> None:
    """A leader that was deposed without knowing it may lack batches that its successor took.

    The client would drop a batch that is in order there, or send it again under a new epoch.
    """
    stream = cluster.leader(cluster.create_topic())
    gap = {"producer_id": producer_id, "producer_epoch": 0, "base_sequence": 2}
    cluster.append(stream, producer_id=7, producer_epoch=0, base_sequence=0)
    told = cluster.append(stream, **gap)
    cluster.run(50)
    assert error_of(told) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    for server in follower_servers(stream):
        cluster.network.cut(stream.leader_server, server)
    not_told = cluster.append(stream, ms=10_000, **gap)
    assert stream.is_leader
    cluster.run(5_000)
    assert error_of(not_told) is ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_new_leader_holds_appends_until_its_own_term_applies(cluster: Any) -> None:
    """§8: before its own-term entry a leader does not know the commit index."""
    group_id = cluster.create_topic()
    old = cluster.leader(group_id)
    transferee = follower_servers(old)[0]
    stream = cluster.nodes[transferee].host.stream(group_id)
    host = cluster.nodes[old.leader_server].host
    host.groups[group_id].node.transfer_leader(
        cluster.nodes[transferee].host.groups[group_id].replica_id
    )
    host.mark_dirty(host.groups[group_id])
    while not stream.is_leader:
        cluster.run(0.1)
    assert not stream.serving
    fates = cluster.append(stream)
    assert fates == []
    cluster.run(10)
    assert stream.serving
    assert error_of(fates) is ErrorCode.NONE


def test_held_appends_are_bounded(cluster: Any) -> None:
    """At the limit they wait; one past it is refused as never appended."""
    group_id = cluster.create_topic()
    stream = cluster.leader(group_id)
    group = cluster.nodes[stream.leader_server].host.groups[group_id]
    group.serving = False
    held = [cluster.append(stream) for _ in range(cluster.options.held_appends_max)]
    refused = cluster.append(stream)
    assert error_of(refused) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert held == [[], [], []]
    cluster.nodes[stream.leader_server].host.mark_dirty(group)
    cluster.run(10)
    assert [fates[0].base_offset for fates in held] == [0, 1, 2]


def test_held_append_is_not_overtaken_by_a_smaller_one() -> None:
    """The last one would have room when it comes, and when a part of what is before it commits."""
    cluster = Cluster(uncommitted_bytes_max=2_000)
    stream = cluster.leader(cluster.create_topic())
    fates = [cluster.append(stream, bytes(900))]
    cluster.run(0.1)
    fates += [cluster.append(stream, bytes(size)) for size in (800, 1_100, 50)]
    assert len(stream.held) == 2
    while not fates[0]:
        cluster.run(0.01)
    assert len(stream.held) == 2
    cluster.run(50)
    assert [one[0].base_offset for one in fates] == [0, 1, 2, 3]


def test_long_poll_wakes_once_when_its_record_commits(cluster: Any) -> None:
    stream = cluster.leader(cluster.create_topic())
    calls: list[int] = []
    stream.wait_for(0, lambda: calls.append(stream.high_watermark))
    beyond = stream.wait_for(1, lambda: calls.append(-1))
    cluster.append(stream)
    cluster.run(10)
    assert calls == [1]
    beyond.cancel()
    cluster.append(stream)
    cluster.run(10)
    assert calls == [1]


def test_read_index_fails_on_a_leader_that_lost_its_majority(cluster: Any) -> None:
    """§8: a leader that cannot reach a majority must not confirm a read."""
    stream = cluster.leader(cluster.create_topic())
    answers: list[bool] = []
    stream.read_index(deadline_ns=cluster.deadline(), done=answers.append)
    cluster.run(10)
    assert answers == [True]
    for server in follower_servers(stream):
        cluster.network.cut(stream.leader_server, server)
    stream.read_index(deadline_ns=cluster.deadline(200), done=answers.append)
    cluster.run(400)
    assert answers == [True, False]


def test_earliest_epoch_is_that_of_the_record_at_the_logs_start(cluster: Any) -> None:
    """As in Kafka's ListOffsets: the epoch of the first record that is not deleted.

    The present leader's if there is none.
    """
    group_id = cluster.create_topic()
    stream = cluster.leader(group_id)

    def earliest() -> int:
        found: list[int] = []
        cluster.leader(group_id).earliest_epoch(found.append)
        cluster.run(20)
        return found[0]

    first = stream.term
    assert earliest() == first
    cluster.append(stream)
    cluster.run(20)
    old = stream.leader_server
    cluster.nodes[old].crash()
    cluster.run(3_000)
    stream = cluster.leader(group_id)
    assert stream.term > first
    cluster.append(stream)
    cluster.run(20)
    assert earliest() == first
    done: list[ErrorCode] = []
    stream.delete_records(1, deadline_ns=cluster.deadline(), done=done.append)
    cluster.run(20)
    assert done == [ErrorCode.NONE]
    assert earliest() == stream.term


def test_segment_starts_leave_out_what_is_deleted_and_never_go_back_in_time(cluster: Any) -> None:
    """A segment without a time is as old as those before it."""
    stream = cluster.leader(cluster.create_topic())
    spans = [
        SegmentSpan(end_offset=5, bytes=1, max_timestamp=100),
        SegmentSpan(end_offset=5, bytes=1, max_timestamp=-1),
        SegmentSpan(end_offset=9, bytes=1, max_timestamp=300),
        SegmentSpan(end_offset=12, bytes=1, max_timestamp=-1),
        SegmentSpan(end_offset=15, bytes=1, max_timestamp=200),
    ]
    stream.state.log_start_offset = 2
    stream.group.store = SimpleNamespace(segment_spans=lambda log, done: done(spans))
    found: list[object] = []
    stream.segment_starts(found.append)
    assert found == [[(2, 100), (5, 300), (9, 300), (12, 300)]]


def test_segment_starts_of_a_real_log_begin_at_its_start(cluster: Any) -> None:
    """The tail that is in no segment yet counts as one."""
    stream = cluster.leader(cluster.create_topic())
    found: list[Any] = []
    stream.segment_starts(found.append)
    cluster.append(stream)
    cluster.run(5)
    stream.segment_starts(found.append)
    cluster.run(5)
    empty, (one,) = found
    assert empty == []
    assert one[0] == 0


def test_store_is_told_where_consumers_read(cluster: Any, monkeypatch: Any) -> None:
    """On leaders: data that only followers write need not stay in the system's page cache."""
    told: dict[tuple[int, int], bool] = {}

    def expect_reads(store: MemoryStore, log: Log, expected: bool) -> None:
        server = next(s for s in SERVERS if cluster.nodes[s].store is store)
        told[server, log.group_id] = expected

    monkeypatch.setattr(MemoryStore, "expect_reads", expect_reads)
    group_id = cluster.create_topic()
    first = cluster.leader(group_id).leader_server
    assert [s for s in SERVERS if told[s, group_id]] == [first]
    cluster.nodes[first].crash()
    cluster.run(3_000)
    second = cluster.leader(group_id).leader_server
    assert [s for s in SERVERS if told[s, group_id] and s != first] == [second]
    cluster.nodes[first].start()
    cluster.run(3_000)
    assert [s for s in SERVERS if told[s, group_id]] == [cluster.leader(group_id).leader_server]
