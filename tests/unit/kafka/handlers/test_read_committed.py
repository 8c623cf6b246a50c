"""Read committed (KIP-98): last stable offset, waiting for it, and lists of aborted transactions.

The fake log sets where the oldest open transaction begins and what was aborted.
"""

from __future__ import annotations

import pytest

from tests.unit.kafka.fake_host import WALL_MS, World, fill
from tests.unit.kafka.handlers.test_fetch import counts, fetch, parts
from tests.unit.kafka.partitions.test_fetch_sessions import Session
from vdl.errors import ErrorCode
from vdl.kafka.wire.fetch import AbortedTransaction, FetchRequest
from vdl.kafka.wire.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from vdl.state.aborted import AbortedRange

FETCH = 1
LIST_OFFSETS = 2
COMMITTED = 1


def test_committed_is_read_up_to_the_oldest_open_transaction() -> None:
    """A read_uncommitted reader sees everything. Both kinds receive both ends of the log."""
    world = World()
    (stream,) = world.topic()
    for _ in range(4):
        fill(stream)
    stream.open_offset = 2
    client = world.client()
    for isolation, expected in ((0, 4), (COMMITTED, 2)):
        answer = client.ask(FETCH, 11, fetch(0, isolation_level=isolation))
        assert counts(answer) == [expected]
        assert parts(answer)[0].high_watermark == 4
        assert parts(answer)[0].last_stable_offset == 2
    beyond = client.ask(FETCH, 11, fetch(3, isolation_level=COMMITTED))
    assert (counts(beyond), parts(beyond)[0].error_code) == ([0], ErrorCode.NONE)


@pytest.mark.parametrize("is_cold", [False, True])
def test_committed_comes_with_what_was_aborted_in_it(is_cold: bool) -> None:
    """The list is complete for the batches in the response, wherever their transactions lie."""
    world = World()
    (stream,) = world.topic()
    for _ in range(10):
        fill(stream)
    stream.aborted_ranges = [
        AbortedRange(1, 0, 1, 2),
        AbortedRange(2, 3, 4, 5),
        AbortedRange(3, 1, 6, 7),
        AbortedRange(4, 8, 9, 10),
    ]
    stream.on_disk_below = 10 if is_cold else 0
    size = len(stream.batches[0].data)
    asked = fetch(2, isolation_level=COMMITTED, partition_max_bytes=4 * size)
    answer = world.client().ask(FETCH, 11, asked)
    assert counts(answer) == [4]
    assert parts(answer)[0].aborted_transactions == [
        AbortedTransaction(2, 3),
        AbortedTransaction(3, 1),
    ]
    everything = world.client().ask(FETCH, 11, fetch(2))
    assert parts(everything)[0].aborted_transactions is None


def test_poll_for_committed_waits_for_what_is_stable() -> None:
    """A high watermark that advances over an open transaction wakes no read_committed poll."""
    world = World()
    (stream,) = world.topic()
    fill(stream)
    stream.open_offset = 1
    client = world.client()
    client.request(FETCH, 11, fetch(1, isolation_level=COMMITTED, max_wait_ms=60_000))
    world.run(10)
    waits = list(stream.waits)
    for _ in range(20):
        fill(stream)
    world.run(10)
    assert client.answers() == []
    assert stream.waits == waits, "nobody looked again at each commit"
    stream.end_open()
    world.run(10)
    (answer,) = client.answers()
    assert counts(answer) == [20]


def test_polls_of_both_kinds_do_not_share_an_answer() -> None:
    """A read_uncommitted reader gets no list, a read_committed reader no unstable record."""
    world = World()
    (stream,) = world.topic()
    clients = [world.client(), world.client()]
    for isolation, client in enumerate(clients):
        client.request(FETCH, 11, fetch(0, isolation_level=isolation, max_wait_ms=60_000))
    world.run(1)
    stream.open_offset = 1
    stream.auto_commit = False
    for _ in range(2):
        fill(stream)
    stream.commit()
    world.run(1)
    assert [counts(client.answers()[0]) for client in clients] == [[2], [1]]


def test_session_is_told_when_only_the_stable_end_has_moved() -> None:
    """KIP-227: a partition is omitted only if nothing changed, its last stable offset included."""
    world = World()
    (stream,) = world.topic()
    fill(stream)
    session = Session(world, 1)

    def asked(wait_ms: int = 0) -> FetchRequest:
        request = session.request(wait_ms=wait_ms)
        request.isolation_level = COMMITTED
        return request

    stream.open_offset = 0
    assert session.ask(asked()) == {0: 0}
    assert session.ask(asked()) == {}
    fill(stream)
    assert session.ask(asked()) == {0: 0}, "the high watermark is new"
    assert session.ask(asked()) == {}
    stream.end_open()
    assert session.ask(asked()) == {0: 2}


@pytest.mark.parametrize(
    ("timestamp", "uncommitted", "committed"),
    [(-1, 4, 2), (-2, 0, 0), (WALL_MS, 0, 0), (-3, 0, 0)],
)
def test_offsets_behind_what_is_stable_are_not_told(
    timestamp: int, uncommitted: int, committed: int
) -> None:
    world = World()
    (stream,) = world.topic()
    for _ in range(4):
        fill(stream)
    stream.open_offset = 2
    client = world.client()
    found = []
    for isolation in (0, COMMITTED):
        asked = ListOffsetsPartition(0, current_leader_epoch=-1, timestamp=timestamp)
        request = ListOffsetsRequest(-1, isolation, [ListOffsetsTopic("t", [asked])])
        found.append(client.ask(LIST_OFFSETS, 7, request).topics[0].partitions[0].offset)
    assert found == [uncommitted, committed]
    stream.open_offset = 0
    asked = ListOffsetsPartition(0, current_leader_epoch=-1, timestamp=WALL_MS)
    request = ListOffsetsRequest(-1, COMMITTED, [ListOffsetsTopic("t", [asked])])
    part = client.ask(LIST_OFFSETS, 7, request).topics[0].partitions[0]
    assert (part.offset, part.timestamp, part.error_code) == (-1, -1, 0)
