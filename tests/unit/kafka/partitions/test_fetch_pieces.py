"""Fetches of so many partitions that they are done in pieces, between which the world goes on."""

from __future__ import annotations

from typing import Any

from tests.unit.kafka import fake_host
from tests.unit.kafka.fake_host import World, fill
from tests.unit.kafka.partitions.test_fetch_sessions import Session
from vdl.clock import MS
from vdl.kafka.wire.fetch import FetchPartition, FetchRequest, FetchTopic
from vdl.state.aborted import AbortedRange

FETCH = 1
MANY = 200


class SlowClock(fake_host.NodeClock):
    def call_later(self, delay_ns: int, fn: Any) -> Any:
        return super().call_later(max(delay_ns, MS), fn)


def slow_world() -> World:
    """Each timer takes a millisecond at least: so a piece takes one, as beside other work."""
    before, fake_host.NodeClock = fake_host.NodeClock, SlowClock
    try:
        world = World()
    finally:
        fake_host.NodeClock = before
    return world


def test_a_session_that_began_with_a_long_poll_is_woken() -> None:
    world = World()
    streams = world.topic(partitions=MANY)
    session = Session(world, MANY)
    session.client.request(FETCH, session.version, session.request(wait_ms=100))
    world.run(300)
    (answer,) = session.client.answers()
    assert len(session.take(answer)) == MANY
    assert session.id
    fill(streams[5])
    assert session.ask(session.request()) == {5: 1}


def full(wait_ms: int, min_bytes: int = 1, isolation: int = 0, count: int = MANY) -> FetchRequest:
    named = [FetchPartition(n, fetch_offset=0, partition_max_bytes=1 << 20) for n in range(count)]
    return FetchRequest(
        max_wait_ms=wait_ms, min_bytes=min_bytes, max_bytes=50 << 20, session_epoch=-1,
        isolation_level=isolation, topics=[FetchTopic("t", bytes(16), named)],
    )  # fmt: skip


def test_a_poll_ends_at_its_deadline_while_partitions_change() -> None:
    world = slow_world()
    streams = world.topic(partitions=MANY)
    client = world.client()
    client.request(FETCH, 11, full(50, min_bytes=1 << 20))
    for _ in range(1000):
        fill(streams[0])
        world.run(1)
        if client.received:
            break
    assert client.received, "no answer within a second, for max_wait_ms=50"


def test_aborted_records_are_marked_when_the_list_was_trimmed_meanwhile() -> None:
    world = slow_world()
    streams = world.topic(partitions=MANY)
    fill(streams[0])
    fill(streams[0])
    streams[0].aborted_ranges = [AbortedRange(*_range())]
    client = world.client()
    client.request(FETCH, 11, full(0, isolation=1))
    while (about := client.session.admission.started[0].answer.about) is None or (
        not about.targets or about.targets[0].found is None
    ):
        world.run(0.5)
    # retention removes the transaction's marker: the list loses its entry
    streams[0].aborted_ranges, streams[0].aborted_age = [], 1
    streams[0].log_start_offset = 1
    world.run(300)
    (answer,) = client.answers()
    part = answer.responses[0].partitions[0]
    if not part.error_code and part.records:
        assert part.aborted_transactions, "aborted records look committed"


def _range() -> tuple[Any, ...]:
    return 7, 0, 0, 1


def test_a_superseded_answer_leaves_its_partitions_awake() -> None:
    world = slow_world()
    streams = world.topic(partitions=MANY)
    session = Session(world, MANY)
    session.client.request(FETCH, session.version, session.request())
    world.run(300)
    (answer,) = session.client.answers()
    session.take(answer)
    for stream in streams:
        fill(stream)  # all are ready again
    for n in session.offsets:
        session.offsets[n] = 1
    lost = session.request(*session.offsets)  # wide; positions at the end: all become quiet
    session.client.request(FETCH, session.version, lost)
    for _ in range(60):
        world.run(1)
        found = world.context.fetch_sessions._sessions[session.id]
        if len(found.ready) < MANY - 40:
            break
    assert not session.client.received
    session.epoch += 1
    other = world.client()  # the client has connected again
    other.request(FETCH, session.version, session.request())
    world.run(300)
    other.answers()
    session.epoch += 1
    fill(streams[0])
    other.request(FETCH, session.version, session.request())
    world.run(300)
    (answer,) = other.answers()
    assert answer.responses, "the new record is never told"


def test_a_client_that_leaves_frees_the_answer_at_once() -> None:
    import gc

    from vdl.kafka.handlers.fetch import _Poll
    from vdl.kafka.partitions.fetch_answer import FetchAnswer

    world = slow_world()
    for stream in world.topic(partitions=MANY):
        fill(stream, size=10_000)
    client = world.client()
    client.session.info.answers.taken = 1 << 30
    gc.collect()
    gc.disable()
    try:
        client.request(FETCH, 11, full(0))

        def has(kind: type) -> bool:
            return any(type(one) is kind for one in gc.get_objects())

        while not has(FetchAnswer):
            world.run(0.5)
        assert not client.received
        client.session.connection_lost()
        world.run(50)
        del client
        assert not has(FetchAnswer), "megabytes wait for the collector"
        assert not has(_Poll)
    finally:
        gc.enable()
