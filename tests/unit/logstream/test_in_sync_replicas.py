"""In-sync replicas, and acknowledgements that wait for them, over three real hosts."""

from typing import Any

import pytest

from raft.quorum import copied_index
from vdl.errors import ErrorCode
from vdl.logstream.group.appends import Appended
from vdl.logstream.group.log_stream import LogStream

ALL = {1, 2, 3}


def told(cluster: Any, group_id: int, *servers: int) -> list[set[int]]:
    """Return the in-sync list that each server reports to its clients."""
    asked = servers or tuple(sorted(ALL))
    return [set(cluster.nodes[server].host.in_sync_of(group_id)) for server in asked]


def followers_of(stream: LogStream) -> list[int]:
    return sorted(ALL - {stream.leader_server})


def errors(fates: list[Appended]) -> list[ErrorCode]:
    return [fate.error for fate in fates]


def lose(cluster: Any, server: int, group_id: int, *, away_ms: int = 0) -> None:
    """Restart a server so that it finds its replica of the group to have lost durable data."""
    node = cluster.nodes[server]
    node.crash()
    cluster.run(away_ms)
    for state in node.store.image.logs.values():
        state.lost = state.group_id == group_id
    node.start()


def until_replaced(cluster: Any, stream: LogStream, server: int) -> set[tuple[int, ...]]:
    """Run until the leader's catalog lists a successor. Return the in-sync lists until then."""
    host, told_of = cluster.nodes[stream.leader_server].host, set()
    for _ in range(5_000):
        told_of.add(host.in_sync_of(stream.group_id))
        if server << 16 | 2 in stream.group.listed:
            break
        cluster.run(1)
    assert server << 16 | 2 in stream.group.listed
    return told_of


def whole(cluster: Any) -> LogStream:
    """Return the leader of a topic of which all replicas are in sync."""
    group_id = cluster.create_topic()
    cluster.run(2_500)
    assert told(cluster, group_id) == [ALL] * 3
    stream: LogStream = cluster.leader(group_id)
    return stream


def test_every_server_tells_what_the_leader_says(cluster: Any) -> None:
    """All replicas of an idle topic are in sync; without an election the list does not change."""
    stream = whole(cluster)
    version = cluster.nodes[stream.leader_server].host.liveness._lists.sender.version
    for _ in range(50):
        cluster.append(stream)
        cluster.run(100)
    assert told(cluster, stream.group_id) == [ALL] * 3
    assert cluster.nodes[stream.leader_server].host.liveness._lists.sender.version == version


def test_follower_that_lags_is_not_in_sync_though_it_has_a_link() -> None:
    """Kafka's `replica.lag.time.max.ms`: its link and heartbeats do not count.

    It returns only when it holds the leader's log.
    """
    from tests.unit.logstream.conftest import Cluster

    cluster = Cluster(replica_lag_max_ms=2_000)
    stream = whole(cluster)
    slow = followers_of(stream)[0]
    cluster.nodes[slow].workers.hold()
    cluster.append(stream)
    cluster.run(1_000)
    assert told(cluster, stream.group_id) == [ALL] * 3, "it has not lagged for long"
    cluster.append(stream)
    cluster.run(3_500)
    assert slow in cluster.nodes[stream.leader_server].host.alive_servers()
    assert told(cluster, stream.group_id) == [ALL - {slow}] * 3
    cluster.nodes[slow].workers.release()
    cluster.run(2_500)
    assert told(cluster, stream.group_id) == [ALL] * 3


def test_idle_follower_whose_server_dies_leaves_and_rejoins_when_it_has_everything(
    cluster: Any,
) -> None:
    """It does not lag, yet it is gone; when it is back, it counts once it holds the log."""
    stream = whole(cluster)
    dead = followers_of(stream)[0]
    cluster.nodes[dead].crash()
    cluster.run(4_000)
    others = sorted(ALL - {dead})
    assert told(cluster, stream.group_id, *others) == [ALL - {dead}] * 2
    cluster.append(stream)
    cluster.nodes[dead].start()
    cluster.run(4_000)
    assert told(cluster, stream.group_id) == [ALL] * 3


def test_replica_that_is_to_be_replaced_leaves_at_once_in_what_peers_are_sent(
    cluster: Any,
) -> None:
    """The in-sync list for clients changes with the catalog, not at the next check.

    So do the list sent to peers, and the replicas that count for `min.insync.replicas`.
    """
    stream = whole(cluster)
    leader, lost = cluster.nodes[stream.leader_server].host, followers_of(stream)[0]
    lose(cluster, lost, stream.group_id)
    until_replaced(cluster, stream, lost)
    assert lost << 16 | 1 in stream.group.members, "it is removed afterwards"
    in_sync = leader.in_sync_of(stream.group_id)
    assert set(in_sync) == ALL - {lost}
    assert leader.liveness._lists.sender._led[stream.group_id].in_sync == in_sync
    assert not leader.in_sync[stream.group_id].is_whole
    fates = cluster.append(stream, copies=3)
    assert errors(fates) == [ErrorCode.NOT_ENOUGH_REPLICAS]


@pytest.mark.parametrize("away_ms", [4_000, 0], ids=["seen to be gone", "back at once"])
def test_replica_that_was_lost_while_its_server_was_away_does_not_rejoin(
    cluster: Any, away_ms: int
) -> None:
    """The server is heard of again, but only the replica's earlier match index is known.

    Only a response of the replica proves that it still has its log. A later process of the server
    proves that the earlier one is gone, as a refused connection would.
    """
    stream = whole(cluster)
    leader, lost = cluster.nodes[stream.leader_server].host, followers_of(stream)[0]
    lose(cluster, lost, stream.group_id, away_ms=away_ms)
    cluster.run(50)
    told_of = until_replaced(cluster, stream, lost)
    assert lost in leader.alive_servers()
    assert told_of == {leader.in_sync_of(stream.group_id)}
    assert lost not in leader.in_sync_of(stream.group_id)
    cluster.run(4_000)
    assert told(cluster, stream.group_id) == [ALL] * 3, "its successor is"


def test_replica_of_a_server_that_is_back_at_once_rejoins_when_it_answers(cluster: Any) -> None:
    """It lost nothing: a moment later all are in sync as before."""
    stream = whole(cluster)
    leader, back = cluster.nodes[stream.leader_server].host, followers_of(stream)[0]
    cluster.nodes[back].crash()
    cluster.nodes[back].start()
    cluster.run(50)
    assert set(leader.in_sync_of(stream.group_id)) == ALL - {back}
    cluster.run(3_000)
    assert told(cluster, stream.group_id) == [ALL] * 3


def test_new_leader_begins_with_those_who_proved_what_they_have(cluster: Any) -> None:
    """A new term starts without the old list: the dead leader is in no list, the others are."""
    stream = whole(cluster)
    old = stream.leader_server
    cluster.nodes[old].crash()
    cluster.run(3_000)
    others = sorted(ALL - {old})
    assert told(cluster, stream.group_id, *others) == [set(others)] * 2
    assert cluster.leader(stream.group_id).leader_server in others


def test_append_with_min_insync_replicas_waits_for_every_copy(cluster: Any) -> None:
    """With three of three an acknowledged record is durable on three; a majority is not enough."""
    stream = whole(cluster)
    slow = followers_of(stream)[0]
    cluster.nodes[slow].workers.hold()
    strict = cluster.append(stream, copies=3)
    plain = cluster.append(stream)
    cluster.run(100)
    assert (errors(strict), errors(plain)) == ([], [ErrorCode.NONE])
    assert stream.high_watermark == 2, "consumers read what is committed"
    cluster.nodes[slow].workers.release()
    cluster.run(20)
    assert errors(strict) == [ErrorCode.NONE]
    assert strict[0].base_offset == 0
    cluster.run(1_000)
    assert not stream.group.awaits_copies
    assert not stream.busy


def test_append_is_refused_before_it_is_appended_when_too_few_are_in_sync(cluster: Any) -> None:
    """NOT_ENOUGH_REPLICAS: certainly not appended.

    More copies than replicas count as all replicas.
    """
    stream = whole(cluster)
    cluster.nodes[followers_of(stream)[0]].crash()
    cluster.run(4_000)
    end = stream.end_offset
    for copies in (3, 9):
        assert errors(cluster.append(stream, copies=copies)) == [ErrorCode.NOT_ENOUGH_REPLICAS]
    assert stream.end_offset == end
    two, one = cluster.append(stream, copies=2), cluster.append(stream)
    cluster.run(50)
    assert errors(two) == errors(one) == [ErrorCode.NONE]


def test_batch_does_not_overtake_one_that_was_refused_while_too_few_were_in_sync(
    cluster: Any,
) -> None:
    """They are in flight together, and a replica returns between them.

    The producer is older than the partition, so its numbers may begin at any value.
    """
    stream = whole(cluster)
    stream.state.producers.ids_given_out(8)
    away = cluster.nodes[followers_of(stream)[0]]
    away.crash()
    cluster.run(4_000)

    def send(number: int) -> list[Appended]:
        batch = {"producer_id": 7, "producer_epoch": 0, "base_sequence": number}
        fates: list[Appended] = cluster.append(stream, copies=3, **batch)
        return fates

    assert errors(send(0)) == [ErrorCode.NOT_ENOUGH_REPLICAS]
    away.start()
    cluster.run(4_000)
    assert stream.is_leader
    assert errors(send(1)) == [ErrorCode.NOT_LEADER_OR_FOLLOWER]
    again = [send(0), send(1)]
    cluster.run(50)
    assert [errors(one) for one in again] == [[ErrorCode.NONE]] * 2


def test_append_whose_replicas_go_meanwhile_has_an_open_fate(cluster: Any) -> None:
    """NOT_ENOUGH_REPLICAS_AFTER_APPEND: it may be committed, and here it is.

    A retry finds it, and is acknowledged once the copies are there.
    """
    stream = whole(cluster)
    gone = followers_of(stream)[0]
    cluster.nodes[gone].workers.hold()
    producer = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0}
    fates = cluster.append(stream, copies=3, ms=30_000, **producer)
    cluster.run(20)
    assert errors(fates) == []
    cluster.nodes[gone].crash()
    cluster.run(4_000)
    assert errors(fates) == [ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND]
    assert stream.high_watermark == 1
    again = cluster.append(stream, copies=3, ms=30_000, **producer)
    cluster.run(20)
    assert errors(again) == [ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND]
    cluster.nodes[gone].start()
    cluster.run(4_000)
    once_more = cluster.append(stream, copies=3, **producer)
    cluster.run(20)
    assert errors(once_more) == [ErrorCode.NONE]
    assert (once_more[0].base_offset, stream.end_offset) == (0, 1)


def test_append_that_waits_for_copies_ends_at_its_deadline_or_with_the_term(cluster: Any) -> None:
    """The outcome of both is unknown: committed, but not on as many disks as requested."""
    stream = whole(cluster)
    slow = followers_of(stream)[0]
    cluster.nodes[slow].workers.hold()
    soon = cluster.append(stream, copies=3, ms=200)
    later = cluster.append(stream, copies=3, ms=60_000)
    cluster.run(500)
    assert (errors(soon), errors(later)) == ([ErrorCode.REQUEST_TIMED_OUT], [])
    term = stream.term
    stream.group.node.transfer_leader(followers_of(stream)[1] << 16 | 1)
    cluster.nodes[stream.leader_server].host.mark_dirty(stream.group)
    cluster.run(500)
    assert stream.term > term
    assert errors(later) == [ErrorCode.REQUEST_TIMED_OUT]
    assert not stream.group.awaits_copies


def test_waiting_for_copies_is_bounded() -> None:
    """At the limit batches are held before they are appended, and go on when there is room."""
    from tests.unit.logstream.conftest import Cluster

    cluster = Cluster(uncopied_max=2)
    stream = whole(cluster)
    slow = followers_of(stream)[0]
    cluster.nodes[slow].workers.hold()
    fates = []
    for _ in range(3):
        fates.append(cluster.append(stream, copies=3, ms=30_000))
        cluster.run(20)
    assert stream.end_offset == 2
    cluster.nodes[slow].workers.release()
    cluster.run(50)
    assert [errors(one) for one in fates] == [[ErrorCode.NONE]] * 3


@pytest.mark.parametrize(
    ("acked", "copies", "index"),
    [([5, 9, 7], 1, 9), ([5, 9, 7], 2, 7), ([5, 9, 7], 3, 5), ([5, 9], 3, 0), ([], 1, 0)],
)
def test_copied_index_is_what_so_many_hold(acked: list[int], copies: int, index: int) -> None:
    assert copied_index(acked, copies) == index


def test_new_leader_expects_copies_only_of_servers_it_has_a_link_to(cluster: Any) -> None:
    """Its list begins with itself.

    Appends for two of three copies are taken at once; those for three of three are not while one
    server is known to be gone.
    """
    stream = whole(cluster)
    group_id, old = stream.group_id, stream.leader_server
    cluster.nodes[old].crash()
    term = stream.term
    for _ in range(300):
        cluster.run(10)
        leading = [
            found
            for server in sorted(ALL - {old})
            if (found := cluster.nodes[server].host.stream(group_id)) is not None
            if found.serving and found.term > term
        ]
        if leading:
            break
    (stream,) = leading
    two, three = cluster.append(stream, copies=2), cluster.append(stream, copies=3)
    assert errors(three) == [ErrorCode.NOT_ENOUGH_REPLICAS]
    cluster.run(20)
    assert errors(two) == [ErrorCode.NONE]
