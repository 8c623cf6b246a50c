"""Clients that make servers hold memory, and fetch sessions that send only changes."""

from __future__ import annotations

from dataclasses import replace

from vdl.kafka.limits.memory import SMALL_BYTES
from vdl.kafka.wire.fetch import FetchPartition, FetchRequest, FetchTopic
from vdl.sim.fetch_session import FetchSession
from vdl.sim.options import Options
from vdl.sim.world import REQUEST_BYTES_MAX, World


def test_a_deaf_client_brings_servers_to_their_bounds() -> None:
    """Unread answers and incomplete requests reach the limits of memory and never exceed them."""
    options = replace(Options(), deaf_clients=1, seconds=4, record_bytes_max=4_000)
    world = World(7, options)
    outcome = world.run()
    assert world.watch.held_most["answers"] > SMALL_BYTES
    assert world.watch.held_most["requests"] > REQUEST_BYTES_MAX
    assert not [found for found in outcome.violations if found.name == "memory"]


def request(*offsets: int) -> FetchRequest:
    rows = [FetchPartition(index, fetch_offset=offset) for index, offset in enumerate(offsets)]
    return FetchRequest(topics=[FetchTopic("t", partitions=rows)])


def test_a_session_says_what_moved_and_what_is_gone() -> None:
    """The first request is full; after an answer without a session the next one is full again."""
    session = FetchSession()
    first = request(0, 0, 0)
    session.reduce(first, by_id=False)
    assert (first.session_id, first.session_epoch) == (0, 0)
    assert len(first.topics[0].partitions) == 3
    session.answered(9)
    second = request(0, 5)
    session.reduce(second, by_id=False)
    assert (second.session_id, second.session_epoch) == (9, 1)
    assert [row.partition for row in second.topics[0].partitions] == [1]
    assert [row.partitions for row in second.forgotten_topics_data] == [[2]]
    session.answered(0)
    third = request(0, 5)
    session.reduce(third, by_id=False)
    assert (third.session_id, third.session_epoch) == (0, 0)
    assert len(third.topics[0].partitions) == 2
