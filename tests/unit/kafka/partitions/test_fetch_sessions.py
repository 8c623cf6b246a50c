"""Fetch sessions (KIP-227): responses contain all changed partitions and no others."""

from __future__ import annotations

import pytest

from tests.unit.kafka.fake_host import Client, FakeStream, World, fill
from vdl.clock import MS
from vdl.errors import ErrorCode
from vdl.kafka.configs.options import KafkaOptions
from vdl.kafka.handlers import fetch as handler
from vdl.kafka.partitions.fetch_sessions import EPOCH_MAX, EVICT_AFTER_NS, FetchSessions
from vdl.kafka.partitions.read_throttle import READ_BYTES_MAX
from vdl.kafka.wire.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
)
from vdl.kafka.wire.metadata import MetadataRequest
from vdl.records.batch import split_batches
from vdl.state import commands

FETCH = 1
VERSION = 11
BY_ID = 13


class Session:
    """Client of one session, with the state that clients keep."""

    def __init__(self, world: World, partitions: int, version: int = VERSION) -> None:
        self.world = world
        self.client: Client = world.client()
        self.version = version
        self.offsets = dict.fromkeys(range(partitions), 0)
        self.id = 0
        self.epoch = 0

    def request(self, *changed: int, wait_ms: int = 0, max_bytes: int = 1 << 20) -> FetchRequest:
        named = [
            FetchPartition(index, fetch_offset=self.offsets[index], partition_max_bytes=1 << 20)
            for index in (self.offsets if not self.epoch else changed)
        ]
        return FetchRequest(
            max_wait_ms=wait_ms,
            min_bytes=1,
            max_bytes=max_bytes,
            session_id=self.id,
            session_epoch=self.epoch,
            topics=[FetchTopic("t", self.topic_id, named)] if named else [],
        )

    @property
    def topic_id(self) -> bytes:
        topic = self.world.host.catalog.topics.get("t")
        return bytes(16) if topic is None else topic.topic_id

    def ask(self, request: FetchRequest) -> dict[int, int]:
        """Return the number of batches of each partition in the response, -1 with an error."""
        return self.take(self.client.ask(FETCH, self.version, request))

    def take(self, response: FetchResponse) -> dict[int, int]:
        assert response.error_code == ErrorCode.NONE
        self.id = response.session_id
        self.epoch += 1
        return {
            part.partition_index: -1
            if part.error_code
            else len(split_batches(memoryview(part.records or b"")))
            for topic in response.responses
            for part in topic.partitions
        }

    def error(self, request: FetchRequest) -> int:
        response: FetchResponse = self.client.ask(FETCH, self.version, request)
        return response.error_code


def opened(partitions: int = 3, version: int = VERSION) -> tuple[World, list[FakeStream], Session]:
    world = World()
    streams = world.topic(partitions=partitions)
    session = Session(world, partitions, version)
    assert session.ask(session.request()) == dict.fromkeys(range(partitions), 0)
    assert session.id > 0
    return world, streams, session


@pytest.mark.parametrize("version", range(7, 19))
def test_only_partitions_with_news_are_told(version: int) -> None:
    """All of them at first, then those with new records or a new log end."""
    _, streams, session = opened(version=version)
    assert session.ask(session.request()) == {}
    fill(streams[1])
    assert session.ask(session.request()) == {1: 1}
    assert session.ask(session.request()) == {1: 1}, "its position did not move"
    session.offsets[1] = 1
    assert session.ask(session.request(1)) == {}
    assert session.ask(session.request()) == {}


def test_a_new_high_watermark_is_told_without_records() -> None:
    """There is no room for the second partition's records; its consumer still sees its lag."""
    _, streams, session = opened()
    for stream in streams:
        fill(stream, size=1000)
    assert session.ask(session.request(max_bytes=10)) == {0: 1, 1: 0, 2: 0}
    session.offsets[0] = 1
    assert session.ask(session.request(0, max_bytes=10)) == {1: 1}


def test_who_got_records_is_served_last_the_next_time() -> None:
    """With room for one partition in a response, each has its turn."""
    _, streams, session = opened()
    for stream in streams:
        for _ in range(3):
            fill(stream, size=1000)
    served = []
    for _ in range(6):
        told = session.ask(session.request(*range(3), max_bytes=10))
        (got,) = [index for index, batches in told.items() if batches]
        session.offsets[got] += 1
        served.append(got)
    assert sorted(served) == [0, 0, 1, 1, 2, 2]


def test_a_new_log_start_is_told() -> None:
    """DeleteRecords and retention move it without a new record."""
    world, streams, session = opened()
    fill(streams[2])
    session.ask(session.request())
    session.offsets[2] = 1
    assert session.ask(session.request(2)) == {}
    streams[2].delete_records(1, deadline_ns=0, done=lambda _: None)
    world.run(1)
    assert session.ask(session.request()) == {2: 0}
    assert session.ask(session.request()) == {}


def test_an_error_is_told_each_time_and_its_end_once() -> None:
    """As in Kafka, an error clears the cached state, so the next good response is sent."""
    _, streams, session = opened()
    streams[0].lose_leadership()
    assert session.ask(session.request()) == {0: -1}
    assert session.ask(session.request()) == {0: -1}
    streams[0].is_leader = streams[0].serving = True
    assert session.ask(session.request()) == {0: 0}
    assert session.ask(session.request()) == {}


def test_a_topic_that_is_deleted_and_made_again_is_found_again() -> None:
    """The topic is named by name. A quiet partition reports that its topic is gone."""
    world, _, session = opened(1)
    world.host.apply(commands.DeleteTopics(["t"]))
    assert session.ask(session.request()) == {0: -1}
    (stream,) = world.topic()
    fill(stream)
    assert session.ask(session.request()) == {0: 1}


def test_a_long_poll_is_woken_by_a_quiet_partition() -> None:
    """No partition of the session has anything to report when it begins to wait."""
    world, streams, session = opened()
    session.ask(session.request())
    session.client.request(FETCH, VERSION, session.request(wait_ms=10_000))
    world.run(50)
    assert not session.client.received
    fill(streams[2])
    world.run(50)
    (response,) = session.client.answers()
    assert session.take(response) == {2: 1}
    session.client.request(FETCH, VERSION, session.request(wait_ms=500))
    world.run(600)
    assert session.take(session.client.answers()[0]) == {2: 1}


@pytest.mark.parametrize("version", [VERSION, BY_ID])
def test_forgotten_partitions_are_told_no_more(version: int) -> None:
    """Covers names and ids. A session with no partition left ends."""
    world, streams, session = opened(version=version)
    fill(streams[0])
    fill(streams[1])
    request = session.request()
    request.forgotten_topics_data = [ForgottenTopic("t", session.topic_id, [0])]
    assert session.ask(request) == {1: 1}
    assert world.context.fetch_sessions.partitions == 2
    request = session.request()
    request.forgotten_topics_data = [ForgottenTopic("t", session.topic_id, [1, 2, 7])]
    assert session.ask(request) == {}
    assert session.id == 0
    assert len(world.context.fetch_sessions) == 0


def test_a_partition_may_join_later() -> None:
    """The first response includes it, with or without data."""
    world = World()
    world.topic(partitions=2)
    session = Session(world, 1)
    session.ask(session.request())
    session.offsets[1] = 0
    assert session.ask(session.request(1)) == {1: 0}
    assert session.ask(session.request(1)) == {}


def test_ids_and_epochs_that_are_wrong_are_refused() -> None:
    """Errors 70 and 71: the client starts a new session.

    The session continues for the right epoch.
    """
    _, _, session = opened()
    wrong = session.request()
    wrong.session_epoch += 1
    assert session.error(wrong) == ErrorCode.INVALID_FETCH_SESSION_EPOCH
    wrong = session.request()
    wrong.session_id += 1
    assert session.error(wrong) == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    request = session.request()
    session.version = BY_ID
    assert session.error(request) == ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR
    session.version = VERSION
    assert session.ask(session.request()) == {}


def test_a_full_request_ends_the_session_it_names() -> None:
    """Epoch -1 leaves no session, epoch 0 creates a new one."""
    world, streams, session = opened()
    first = session.id
    session.epoch = 0
    assert len(session.ask(session.request())) == 3
    assert session.id not in (0, first)
    assert len(world.context.fetch_sessions) == 1
    session.epoch = 0
    request = session.request()
    request.session_epoch = -1
    assert len(session.ask(request)) == 3
    assert session.id == 0
    assert len(world.context.fetch_sessions) == 0
    assert not [wait for stream in streams for wait in stream.waits if wait.callback]


def test_the_largest_epoch_is_followed_by_one() -> None:
    """0 and -1 have other meanings."""
    sessions = FetchSessions(1, 1, lambda count: bytes(count - 1) + b"\x07")
    session = sessions.create(1, 0, uses_topic_ids=False, asker="")
    assert session is not None
    session.epoch = EPOCH_MAX
    assert sessions.find(session.id, EPOCH_MAX, 0, uses_topic_ids=False) is session
    assert session.epoch == 1


def test_a_second_request_has_the_first_answered() -> None:
    """Both come on different connections with the right epoch.

    One request of a session waits at a time.
    """
    world, streams, session = opened()
    session.client.request(FETCH, VERSION, session.request(wait_ms=10_000))
    world.run(1)
    session.epoch += 1
    other = world.client()
    other.request(FETCH, VERSION, session.request(wait_ms=10_000))
    world.run(1)
    (response,) = session.client.answers()
    assert response.responses == []
    fill(streams[0])
    world.run(1)
    assert len(other.answers()[0].responses) == 1


def test_a_client_that_goes_away_leaves_its_session() -> None:
    """Any client that knows its id may use it."""
    world, streams, session = opened()
    session.client.request(FETCH, VERSION, session.request(wait_ms=10_000))
    world.run(1)
    session.client.session.connection_lost()
    session.epoch += 1
    session.client = world.client()
    fill(streams[1])
    assert session.ask(session.request()) == {1: 1}


def test_a_session_that_ends_has_its_request_answered() -> None:
    """A session that is evicted wakes no request.

    Session id 0 in the response makes its client start a new session.
    """
    world, streams, session = opened()
    session.client.request(FETCH, VERSION, session.request(wait_ms=60_000))
    world.run(1)
    assert session.client.answers() == []
    world.context.fetch_sessions.remove(session.id)
    world.run(1)
    (answer,) = session.client.answers()
    assert (answer.error_code, answer.session_id, answer.responses) == (ErrorCode.NONE, 0, [])
    assert all(wait.callback is None for stream in streams for wait in stream.waits)


def test_a_session_that_ends_gives_its_turn_to_read_back() -> None:
    """Its request waited for its turn to read from disk.

    That read is not counted against others.
    """
    world = World(KafkaOptions(cold_read_bytes_per_second=1 << 20))
    (stream,) = world.topic()
    session = Session(world, 1)
    session.ask(session.request())
    fill(stream)
    stream.on_disk_below = 1
    pace, now_ns = world.context.read_throttle, world.clock.now_ns()
    pace.produced(-1, 1, now_ns)
    assert pace.ask((-1, -1), READ_BYTES_MAX // 2, now_ns).wait_ns == 0
    session.client.request(FETCH, VERSION, session.request(wait_ms=60_000))
    world.run(1)
    world.context.fetch_sessions.remove(session.id)
    world.run(1)
    now_ns = world.clock.now_ns()
    assert pace.ask((-2, 0), READ_BYTES_MAX, now_ns).wait_ns <= 500 * MS
    world.run(2_000)
    assert stream.cold_reads == 0


def test_a_request_costs_what_there_is_to_say(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two thousand idle partitions are not looked at, even if one beside them has records."""
    _, streams, session = opened(2_000)
    looked_at = 0
    find_topic = handler.find_topic

    def counted(*arguments: object) -> object:
        nonlocal looked_at
        looked_at += 1
        return find_topic(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(handler, "find_topic", counted)
    assert session.ask(session.request()) == {}
    assert looked_at == 0
    fill(streams[1_234])
    assert session.ask(session.request()) == {1_234: 1}
    assert looked_at == 1


# --- bounds ---------------------------------------------------------------------------------------


def test_sessions_are_bounded_in_number_and_who_has_none_goes_on() -> None:
    """Covers the limit and one past it, where the session id is 0."""
    world = World(KafkaOptions(fetch_sessions_max=2))
    (stream,) = world.topic()
    fill(stream)
    sessions = [Session(world, 1) for _ in range(3)]
    for session in sessions:
        assert session.ask(session.request()) == {0: 1}
    assert [session.id > 0 for session in sessions] == [True, True, False]


def test_partitions_of_all_sessions_are_bounded() -> None:
    """A session that grows past the bound ends, and its client starts a new one."""
    world = World(KafkaOptions(fetch_session_partitions_max=4))
    world.topic(partitions=5)
    first, second = Session(world, 3), Session(world, 2)
    first.ask(first.request())
    second.ask(second.request())
    assert (first.id > 0, second.id) == (True, 0)
    first.offsets |= {3: 0, 4: 0}
    first.ask(first.request(3))
    assert first.error(first.request(4)) == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert world.context.fetch_sessions.partitions == 0


def test_partitions_of_one_session_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A session of partitions that are always reported must not make small requests expensive.

    Many requests that each name some partitions could otherwise grow it, and one that names none
    would cost as much as all of them.
    """
    monkeypatch.setattr(handler, "SESSION_PARTITIONS_MAX", 4)
    world = World()
    world.topic(partitions=5)
    session = Session(world, 3)
    session.ask(session.request())
    session.offsets |= {3: 0, 4: 0}
    session.ask(session.request(3))
    assert session.error(session.request(4)) == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert world.context.fetch_sessions.partitions == 0


@pytest.mark.parametrize("count", [4, 5])
def test_session_that_would_be_too_large_is_not_opened(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise it would end with the next request, and every second fetch would be an error."""
    monkeypatch.setattr(handler, "SESSION_PARTITIONS_MAX", 4)
    world = World()
    fill(world.topic(partitions=5)[0])
    session = Session(world, count)
    assert session.ask(session.request())[0] == 1
    assert (session.id > 0) is (count == 4)
    assert len(world.context.fetch_sessions) == (count == 4)


def create(sessions: FetchSessions, partitions: int, now_ns: int, asker: str = "") -> int:
    """Create a session with this number of partitions; return its id, 0 if refused."""
    session = sessions.create(partitions, now_ns, uses_topic_ids=False, asker=asker)
    if session is None:
        return 0
    for index in range(partitions):
        session.add(handler._Target(FetchPartition(index), -1, ErrorCode.NONE, ("t", index)))
    sessions.counted(session, partitions)
    return session.id


def test_who_gives_way_was_not_used_or_is_old_and_smaller() -> None:
    """Kafka's order: a session unused for two minutes, else the smallest old and smaller one."""
    drawn = iter(range(1, 100))
    sessions = FetchSessions(2, 100, lambda count: next(drawn).to_bytes(count, "big"))
    large, small = create(sessions, 5, 0), create(sessions, 2, 0)
    assert create(sessions, 9, EVICT_AFTER_NS - 1) == 0, "both are young"
    later = EVICT_AFTER_NS
    for session_id in (large, small):
        sessions.find(session_id, 1, later, uses_topic_ids=False)
    assert create(sessions, 2, later) == 0, "the smallest is as large"
    assert create(sessions, 3, later) > 0
    assert sessions.find(small, 2, later, uses_topic_ids=False) is (
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    )
    assert create(sessions, 1, 2 * later) > 0, "the large one was not used since"
    assert sessions.find(large, 2, later, uses_topic_ids=False) is (
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    )
    assert (len(sessions), sessions.partitions) == (2, 4)


def test_who_has_most_sessions_gives_way_to_one_that_has_fewer() -> None:
    """Its least recently used sessions go first, until both have as many; never the reverse."""
    drawn = iter(range(1, 100))
    sessions = FetchSessions(6, 100, lambda count: next(drawn).to_bytes(count, "big"))
    of_eve = [create(sessions, 9, 0, "User:eve") for _ in range(8)]
    assert [bool(session_id) for session_id in of_eve] == [True] * 6 + [False] * 2
    sessions.find(of_eve[0], 1, 1, uses_topic_ids=False)
    of_alice = [create(sessions, 1, 2, "User:alice") for _ in range(4)]
    assert [bool(session_id) for session_id in of_alice] == [True] * 3 + [False]
    left = [
        not isinstance(sessions.find(session_id, epoch, 3, uses_topic_ids=False), ErrorCode)
        for session_id, epoch in zip(of_eve[:6], (2, 1, 1, 1, 1, 1), strict=True)
    ]
    assert left == [True, False, False, False, True, True]
    assert create(sessions, 9, 4, "User:eve") == 0
    assert create(sessions, 1, 5, "User:bob") > 0
    assert (len(sessions), sessions.evicted) == (6, 4)


def test_who_has_most_partitions_gives_way_to_one_that_has_fewer() -> None:
    """Partitions are bounded apart from sessions. None is evicted for one that would have more."""
    drawn = iter(range(1, 100))
    sessions = FetchSessions(50, 100, lambda count: next(drawn).to_bytes(count, "big"))
    for _ in range(10):
        assert create(sessions, 10, 0, "User:eve") > 0
    assert create(sessions, 99, 0, "User:alice") == 0
    assert create(sessions, 25, 0, "User:alice") > 0
    assert (len(sessions), sessions.partitions) == (8, 95)


# --- in pieces ------------------------------------------------------------------------------------
MANY = 1_000
METADATA = 3


def begun_in_pieces(version: int = VERSION) -> tuple[World, list[FakeStream], Session]:
    """Return a session whose first request is under way, with all of its partitions read but the
    last ones."""
    world = World()
    streams = world.topic(partitions=MANY)
    session = Session(world, MANY, version)
    session.client.request(FETCH, version, session.request(wait_ms=500))
    for _ in range(10_000):
        if streams[0].waits:
            break
        assert world.time.step()
    assert not streams[-1].waits
    return world, streams, session


def active(streams: list[FakeStream]) -> int:
    return sum(wait.callback is not None for stream in streams for wait in stream.waits)


def test_others_are_answered_between_the_pieces_of_a_request() -> None:
    world, _, session = begun_in_pieces()
    other = world.client(("10.0.0.2", 5000))
    other.request(METADATA, 1, MetadataRequest([]))
    while not (answers := other.answers()):
        assert world.time.step()
    assert len(answers) == 1
    assert not session.client.answers()
    world.run(1_000)
    (response,) = session.client.answers()
    assert session.take(response) == dict.fromkeys(range(MANY), 0)
    assert session.id > 0


@pytest.mark.parametrize("version", [VERSION, BY_ID])
def test_record_behind_the_piece_that_read_its_partition_is_not_missed(version: int) -> None:
    world, streams, session = begun_in_pieces(version)
    fill(streams[0])
    world.run(100)  # well before the end of its time
    (response,) = session.client.answers()
    assert session.take(response) == dict.fromkeys(range(MANY), 0) | {0: 1}


@pytest.mark.parametrize("later", range(4))
def test_client_that_leaves_between_pieces_leaves_nothing(later: int) -> None:
    """Covers a request that waits for the next poll, and one that waits for its turn."""
    world, streams, session = begun_in_pieces()
    for _ in range(later):
        assert world.time.step()
    assert active(streams) > 0
    session.client.session.connection_lost()
    world.run(1_000)
    assert active(streams) == 0
    assert (len(world.context.fetch_sessions), world.context.answers.used) == (0, 0)


def test_session_that_ends_between_the_pieces_of_its_answer_is_not_named_again() -> None:
    """The client begins anew. Nothing stays subscribed or counted."""
    world, streams, session = begun_in_pieces()
    sessions = world.context.fetch_sessions
    fill(streams[0])
    while not sessions:
        assert world.time.step()
    (session_id,) = sessions._sessions
    sessions.remove(session_id)
    world.run(1_000)
    (response,) = session.client.answers()
    assert response.session_id == 0
    sessions.clean(MANY)
    assert (active(streams), sessions.partitions) == (0, 0)


def test_changes_of_many_partitions_are_made_in_pieces() -> None:
    world, streams, session = opened(MANY)
    for stream in streams:
        fill(stream)
    assert session.ask(session.request()) == dict.fromkeys(range(MANY), 1)
    session.offsets = dict.fromkeys(range(MANY), 1)
    assert session.ask(session.request(*range(MANY))) == {}
    forgotten = FetchRequest(
        session_id=session.id,
        session_epoch=session.epoch,
        forgotten_topics_data=[ForgottenTopic("t", partitions=[*range(1, MANY)])],
    )
    assert session.ask(forgotten) == {}
    assert world.context.fetch_sessions.partitions == 1
    assert active(streams) == 1
