"""Memory held for clients is bounded over all of them, and every client makes progress."""

from __future__ import annotations

import gc
import tracemalloc
from collections import deque
from collections.abc import Callable
from functools import partial
from struct import pack
from typing import Any

import pytest

from tests.unit.kafka.fake_host import Client, World, batch, fill
from tests.wire import codec, codec_of
from vdl.errors import ErrorCode
from vdl.kafka.configs.options import KafkaOptions
from vdl.kafka.connections.admission import Reason
from vdl.kafka.connections.connection import OTHER_BYTES_MAX
from vdl.kafka.limits.decoding import Decoding
from vdl.kafka.limits.memory import SMALL_BYTES, AnswerMemory, RequestMemory
from vdl.kafka.partitions.record_checks import RecordChecks
from vdl.kafka.wire.alter_client_quotas import AlterClientQuotasRequest, EntryData
from vdl.kafka.wire.fetch import FetchPartition, FetchRequest, FetchTopic
from vdl.kafka.wire.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from vdl.kafka.wire.metadata import MetadataRequest
from vdl.kafka.wire.produce import PartitionProduceData, ProduceRequest, TopicProduceData

PRODUCE, FETCH, METADATA, JOIN_GROUP = 0, 1, 3, 11
MIB = 1 << 20
FRAME = 2 * MIB
LIMIT = 3 * FRAME


def fetch(max_wait_ms: int = 0, offset: int = 0) -> FetchRequest:
    partition = FetchPartition(0, fetch_offset=offset, partition_max_bytes=50 * MIB)
    topics = [FetchTopic("t", bytes(16), [partition])]
    return FetchRequest(max_wait_ms=max_wait_ms, min_bytes=1, max_bytes=50 * MIB, topics=topics)


def world_of_answers(limit: int = 4 * MIB) -> World:
    world = World(KafkaOptions(answer_memory_max=limit))
    (stream,) = world.topic()
    for _ in range(8):
        fill(stream, size=100_000)
    world.run(1)
    return world


def deaf(world: World) -> Client:
    """Return a client that requests everything and reads nothing."""
    client = world.client()
    client.room = 0
    client.request(FETCH, 11, fetch())
    world.run(1)
    return client


# --- responses ------------------------------------------------------------------------------------


def test_answers_nobody_takes_stay_within_the_bound_of_the_server() -> None:
    """Each client requests 50 MiB. One batch may be larger than what is left."""
    world = world_of_answers()
    clients = [deaf(world) for _ in range(60)]
    answers = world.context.answers
    assert 2 * MIB < answers.peak <= answers.limit + 100_200
    assert answers.waiting
    for client in clients:
        client.session.connection_lost()
    assert (answers.used, answers.waiting) == (0, 0)


def test_a_reader_that_has_proved_to_read_has_room_beside_those_that_do_not() -> None:
    """A quarter of the memory is reserved for such readers, whatever the others hold."""
    world = world_of_answers()
    reader = world.client()
    for _ in range(20):
        reader.ask(FETCH, 11, fetch(), wait_ms=1)
    for _ in range(60):
        deaf(world)
    answer = reader.ask(FETCH, 11, fetch(), wait_ms=1)
    assert answer.responses[0].partitions[0].records


def test_a_reader_proves_to_read_by_small_answers_too() -> None:
    """With a small limit each of its responses is too small to be counted."""
    world = World(KafkaOptions(answer_memory_max=MIB))
    (stream,) = world.topic()
    for _ in range(100):
        fill(stream, size=4_000)
    world.run(1)
    reader = world.client()

    def read() -> int:
        answer = reader.ask(FETCH, 11, fetch(), wait_ms=1)
        return len(answer.responses[0].partitions[0].records)

    sizes = [read() for _ in range(30)]
    assert sizes[0] <= MIB // 64
    assert sizes[-1] > 4 * sizes[0]


def test_who_does_not_take_its_answer_is_given_up_while_others_wait() -> None:
    """Its connection is closed after a sixth of the frame timeout.

    The next waiter gets its room.
    """
    world = world_of_answers()
    clients = [deaf(world) for _ in range(60)]
    late = world.client()
    late.request(FETCH, 11, fetch())
    world.run(1)
    assert not late.received
    world.run(60_000)
    assert any(client.aborted for client in clients)
    assert late.answers()[0].responses[0].partitions[0].records


def test_who_does_not_take_its_answer_is_kept_while_nobody_waits() -> None:
    """A slow reader does no harm as long as there is room."""
    world = world_of_answers(limit=256 * MIB)
    client = deaf(world)
    world.run(60_000)
    assert not client.aborted
    client.room = 1 << 40
    client.session.resume_writing()
    world.run(1)
    assert client.answers()[0].error_code == ErrorCode.NONE
    assert world.context.answers.used == 0


def test_who_does_not_take_its_answers_is_not_read() -> None:
    """None of its requests is started either; they stay in the socket."""
    world = world_of_answers(limit=256 * MIB)
    client = deaf(world)
    assert not client.reading
    client.request(METADATA, 1, MetadataRequest([]))
    world.run()
    assert not client.received
    client.room = 1 << 40
    client.session.resume_writing()
    world.run()
    assert client.reading
    assert len(client.answers()) == 2


def test_an_answer_leaves_piece_by_piece() -> None:
    """Bytes that the socket accepted are no longer held."""
    world = world_of_answers(limit=256 * MIB)
    client = deaf(world)
    answers = world.context.answers
    held = answers.used
    client.room = 50_000
    client.session.resume_writing()
    assert answers.used < held
    client.room = 1 << 40
    client.session.resume_writing()
    world.run(1)
    assert client.answers()[0].responses[0].partitions[0].records


def test_a_small_piece_of_a_large_chunk_is_copied_when_it_waits() -> None:
    """A chunk of the tail cache must not be kept for a few bytes of it."""
    world = World()
    client = world.client()
    chunk = memoryview(bytearray(MIB))
    client.room = 0
    client.session.connection.queue(chunk[:1000], [chunk[5000:6000]], 2000)
    client.session.connection.flush()
    assert world.context.answers.used == 2000
    client.room = 1 << 40
    client.session.resume_writing()
    assert bytes(client.received) == bytes(2000)


@pytest.mark.parametrize("is_shared", [False, True])
def test_polls_woken_in_one_turn_do_not_all_spend_the_same_room(is_shared: bool) -> None:
    """Each response is counted before the next one is built, for one batch and for small ones."""
    limit = 256 << 10
    world = World(KafkaOptions(answer_memory_max=limit))
    (stream,) = world.topic()
    clients = []
    for number in range(100):
        client = world.client()
        client.room = 0
        request = fetch(max_wait_ms=20_000)
        if not is_shared:
            request.min_bytes = 1 + number
        client.request(FETCH, 11, request)
        clients.append(client)
    world.run(1)
    size = 20_000
    fill(stream, size=size)
    world.run(1)
    answers = world.context.answers
    assert limit // 2 < world.frontend.unsent_bytes() <= limit + size + 200
    assert world.frontend.unsent_bytes() == answers.used
    assert answers.waiting
    for client in clients:
        client.session.connection_lost()
    assert (answers.used, answers.waiting) == (0, 0)


def test_a_read_from_disk_counts_while_an_answer_before_it_leaves() -> None:
    """The response being built and those waiting for the socket are counted separately."""
    world = World()
    (stream,) = world.topic()
    fill(stream, size=100)
    fill(stream, size=100_000)
    world.run(1)
    client = world.client()
    stream.on_disk_below = 1
    held: list[Callable[[Any], None]] = []
    stream.read_cold = lambda offset, size, done, **_: held.append(done)  # type: ignore[method-assign]
    client.session.receive(framed(client, fetch(offset=1)) + framed(client, fetch(offset=0)))
    world.run(1)
    assert held
    assert len(client.answers()) == 1
    assert world.context.answers.used >= MIB


def test_metadata_known_to_all_in_one_turn_is_built_one_after_the_other() -> None:
    """All requests begin while there is room, but their responses need far more than there is."""
    limit = 256 << 10
    world = World(KafkaOptions(answer_memory_max=limit))
    for number in range(300):
        world.topic(f"t{number}")
    confirmed: list[Callable[[bool], None]] = []
    world.host.confirm_links = confirmed.append  # type: ignore[method-assign]
    clients = [world.client() for _ in range(60)]
    for client in clients:
        client.room = 0
        client.request(METADATA, 1, MetadataRequest(None))
    world.run(1)
    assert len(confirmed) == 60
    for done in confirmed:
        done(True)
    world.run(1)
    assert limit // 2 < world.frontend.unsent_bytes() <= limit + 20_000
    for client in clients:
        client.room = 1 << 40
        client.session.resume_writing()
    world.run(100)  # they are made in parts
    # 300, `__consumer_offsets` and `__transaction_state`.
    assert all(len(client.answers()[0].topics) == 302 for client in clients)
    assert world.context.answers.used == 0


def framed(client: Client, request: FetchRequest) -> bytes:
    from vdl.kafka.wire import fetch as wire

    return client.frame(FETCH, 11, b"".join(codec_of(wire).encode_request(request, 11)))


def test_who_takes_its_answer_byte_by_byte_is_given_up_while_others_wait() -> None:
    """Room must come back within the timeout of one frame, but only while others wait."""
    world, alone = world_of_answers(), world_of_answers(limit=256 * MIB)
    slow = [deaf(world) for _ in range(60)]
    unhindered = deaf(alone)
    waiting = world.context.answers.waiting
    assert waiting
    for _ in range(60):
        for client in [*slow, unhindered]:
            if not client.closed:
                client.room = 1
                client.session.resume_writing()
        world.run(1000)
        alone.run(1000)
    assert any(client.aborted for client in slow)
    assert not unhindered.aborted


def test_who_takes_its_answers_fast_enough_is_kept_while_others_wait() -> None:
    world = world_of_answers()
    readers = [deaf(world) for _ in range(60)]
    for _ in range(60):
        for client in readers:
            client.room = 8_000
            client.session.resume_writing()
        world.run(1000)
    assert not any(client.aborted for client in readers)


def test_who_stops_reading_must_prove_again_that_it_reads() -> None:
    """Otherwise a reader that read once would keep a share of the reserved quarter."""
    world = world_of_answers()
    reader = world.client()
    for _ in range(20):
        reader.ask(FETCH, 11, fetch(), wait_ms=1)
    answers = reader.session.info.answers
    assert answers.limit() > world.context.answers.first
    reader.room = 0
    reader.request(FETCH, 11, fetch())
    world.run(10_000)
    reader.room = 1 << 40
    reader.session.resume_writing()
    world.run(1)
    assert answers.limit() == world.context.answers.first


def test_who_has_proved_to_read_does_not_wait_behind_those_that_have_not() -> None:
    """Room reserved for it becomes free; earlier waiters may not use that room."""
    memory = AnswerMemory(4 * MIB)
    woken: list[int] = []
    held, reader, *others = [memory.account() for _ in range(12)]
    held.reserve(4 * MIB)
    for number, other in enumerate(others):
        other.wait(partial(woken.append, number))
    reader.taken = 4 * MIB
    reader.wait(partial(woken.append, -1))
    held.reserve(4 * MIB - 100_000)
    assert -1 in woken
    assert reader.limit()
    assert not others[0].limit()


# --- requests -------------------------------------------------------------------------------------


def world_of_requests() -> World:
    return World(KafkaOptions(request_bytes_max=FRAME, request_memory_max=LIMIT))


def begun(world: World, count: int) -> Client:
    """Return a client that has sent `count` bytes of a large produce request."""
    client = world.client()
    frame = client.frame(PRODUCE, 9, encoded(produce_request(FRAME - 50_000)))
    client.session.receive(frame[:4])
    client.rest = memoryview(frame)[4:]  # type: ignore[attr-defined]
    send(client, count)
    return client


def produce_request(size: int) -> ProduceRequest:
    data = PartitionProduceData(0, memoryview(batch(size=size)))
    return ProduceRequest(None, -1, 1000, [TopicProduceData("t", bytes(16), [data])])


def encoded(request: ProduceRequest) -> bytes:
    from vdl.kafka.wire import produce

    return b"".join(codec_of(produce).encode_request(request, 9))


def send(client: Client, count: int) -> None:
    """Continue to send while the server reads."""
    rest: memoryview = client.rest  # type: ignore[attr-defined]
    while count and rest and client.reading and not client.closed:
        piece = min(count, len(rest), 50_000)
        client.session.receive(rest[:piece])
        rest = rest[piece:]
        count -= piece
    client.rest = rest  # type: ignore[attr-defined]


def test_requests_that_have_begun_stay_within_the_bound_of_the_server() -> None:
    """Bytes are counted as they arrive; an announced length costs next to nothing."""
    world = world_of_requests()
    requests = world.context.requests
    for _ in range(100):
        client = world.client()
        client.session.receive(pack(">i", FRAME - 10))
    assert requests.used <= 100 * SMALL_BYTES
    world = world_of_requests()
    requests = world.context.requests
    for _ in range(100):
        begun(world, FRAME // 2)
    small = 100 * SMALL_BYTES
    assert LIMIT // 2 < requests.peak <= LIMIT + small
    assert requests.waiting


def test_requests_that_have_all_begun_come_to_an_end_one_by_one() -> None:
    """Incomplete frames hold all the memory: the longest waiter is read first, then the next."""
    world = world_of_requests()
    world.topic()
    clients = [begun(world, FRAME // 3) for _ in range(30)]
    for _ in range(200):
        for client in clients:
            send(client, FRAME)
        world.run(20)
    assert all(len(client.answers()) == 1 for client in clients)
    assert world.context.requests.used == 0


def test_small_requests_go_on_beside_large_ones_that_wait() -> None:
    """Metadata and small batches need no room that others hold."""
    world = world_of_requests()
    world.topic()
    other = world.client()
    for _ in range(100):
        begun(world, FRAME // 2)
    assert world.context.requests.waiting
    assert other.ask(METADATA, 1, MetadataRequest([])).topics == []


def test_who_does_not_go_on_with_a_request_is_given_up_while_others_wait() -> None:
    """A request that is held up for lack of room is not late."""
    world = world_of_requests()
    world.topic()
    world.run(10)
    stalled = [begun(world, FRAME // 3) for _ in range(30)]
    late = begun(world, FRAME)
    assert not late.reading
    for _ in range(300):
        world.run(1000)
        send(late, FRAME)
    assert len(late.answers()) == 1
    assert any(client.aborted for client in stalled)


def test_of_those_that_stall_no_more_are_given_up_than_others_need() -> None:
    """They are closed one by one: each one's room goes to the waiters, until no request waits."""
    world = World(KafkaOptions(request_bytes_max=FRAME, request_memory_max=12 * FRAME))
    world.topic()
    world.run(10)
    stalled = [begun(world, 3 * FRAME // 4) for _ in range(8)]
    assert not world.context.requests.waiting
    late = [begun(world, 3 * FRAME // 4) for _ in range(3)]
    assert world.context.requests.waiting
    for _ in range(10_000):
        world.run(1)
        for client in late[1:]:  # the first of them stalls as well
            send(client, FRAME)
    assert [len(client.answers()) for client in late] == [0, 1, 1]
    assert 0 < sum(client.aborted for client in stalled) < len(stalled)


def test_who_goes_on_slowly_with_a_request_is_given_up_while_others_wait() -> None:
    """Its speed is sufficient while no request waits, but blocks others while some do."""
    world = world_of_requests()
    world.topic()
    world.run(10)
    slow = [begun(world, SMALL_BYTES) for _ in range(8)]
    alone = world_of_requests()
    alone.run(10)
    unhindered = begun(alone, SMALL_BYTES)
    late: Client | None = None
    for second in range(200):
        for client in slow:
            send(client, 8 << 10)
        send(unhindered, 8 << 10)
        world.run(1000)
        alone.run(1000)
        if second == 1:
            late = begun(world, FRAME)
        elif late is not None:
            send(late, FRAME)
    assert not unhindered.closed
    assert any(client.aborted for client in slow)
    assert late is not None
    assert len(late.answers()) == 1


@pytest.mark.parametrize("is_checked", [False, True])
def test_batches_of_a_client_that_went_away_count_until_the_log_has_them(is_checked: bool) -> None:
    """They count while they wait for a thread and while they wait for the log.

    Else clients that send and disconnect would fill the memory uncounted.
    """
    jobs: list[tuple[Callable[[], Any], Callable[[Any], None]]] = []
    world = World(
        KafkaOptions(request_bytes_max=FRAME, request_memory_max=LIMIT, message_max_bytes=FRAME)
    )
    world.context.record_checks = RecordChecks(lambda job, done: jobs.append((job, done)), 100)
    (stream,) = world.topic()
    stream.auto_commit = False
    client = begun(world, FRAME)
    world.run(1)
    requests = world.context.requests
    assert requests.used > FRAME // 2

    def check() -> None:
        ((job, done),) = jobs
        jobs.clear()
        done(job())

    if is_checked:
        check()
    client.session.connection_lost()
    assert requests.used > FRAME // 2
    if not is_checked:
        check()
    world.run(1)
    assert requests.used > FRAME // 2, "the log may not have room"
    stream.commit()
    world.run(1)
    assert requests.used == 0


def test_requests_that_arrive_go_on_beside_some_that_cannot_start() -> None:
    """Requests that cannot start need more than there is; freed room is enough for the others."""
    memory = RequestMemory(10 * FRAME, FRAME)
    assert memory.may_have("stalls", 9 * FRAME, is_alone=True)
    memory.change(8 * FRAME)
    woken: list[str] = []
    for number in range(10):
        assert not memory.may_start(number, 9 * FRAME)
        memory.wait_to_start(number, partial(woken.append, "large"), 9 * FRAME)
    memory.wait("small", partial(woken.append, "small"))
    memory.change(-FRAME)
    assert "small" in woken
    assert memory.may_have("small", FRAME // 4, is_alone=True)


def test_those_that_arrive_and_those_that_start_take_turns() -> None:
    """Both may exceed the common room in turn, so neither blocks the other forever."""
    memory = RequestMemory(10 * FRAME, FRAME)
    memory.change(9 * FRAME)
    asked: list[str] = []

    def ask_to_arrive() -> None:
        if memory.may_have("arrives", FRAME, is_alone=True):
            asked.append("arrives")

    def ask_to_start() -> None:
        if memory.may_start("starts", FRAME):
            asked.append("starts")

    assert memory.may_have("before", FRAME, is_alone=True)
    memory.wait("arrives", ask_to_arrive)
    memory.wait_to_start("starts", ask_to_start, FRAME)
    for _ in range(4):
        memory.finished(memory.first)
    assert asked == ["starts", "arrives"] * 2


def test_a_busy_client_does_not_keep_the_room_of_the_one_that_waits_longest() -> None:
    """Its requests always overlap, but the turn is for one request."""
    world = World(
        KafkaOptions(request_bytes_max=FRAME, request_memory_max=4 * FRAME, message_max_bytes=FRAME)
    )
    (stream,) = world.topic()
    stream.auto_commit = False
    world.run(10)
    for _ in range(2):  # these hold much of what there is
        begun(world, 3 * FRAME // 4)
    busy = world.client()
    body = encoded(produce_request(FRAME - 50_000))
    rest = memoryview(b"")
    late = None
    known = 0
    for turn in range(200):
        for _ in range(40):
            if not busy.reading:
                break
            rest = rest or memoryview(busy.frame(PRODUCE, 9, body))
            busy.session.receive(rest[:50_000])
            rest = rest[50_000:]
        if turn == 20:
            assert world.context.requests.first is busy.session.admission
            late = begun(world, FRAME)
        elif late is not None:
            send(late, FRAME)
            if late.session.admission.bytes_in_flight:
                break
        # Requests that arrived in the previous turn are acknowledged.
        new = stream.batches[known:]
        del stream.batches[known:]
        stream.commit()
        stream.batches += new
        known = len(stream.batches)
        world.run(1)
    else:
        raise AssertionError("never read to its end")


def test_who_takes_no_answers_and_holds_requests_is_given_up_while_others_wait() -> None:
    """They are not read meanwhile, so they cannot complete the requests they began."""
    world = world_of_requests()
    (stream,) = world.topic()
    for _ in range(8):
        fill(stream, size=100_000)
    world.run(10)
    for _ in range(3):
        client = world.client()
        client.room = 0
        poll = fetch(max_wait_ms=1_000)
        poll.min_bytes = 50 * MIB
        client.request(FETCH, 11, poll)
        frame = client.frame(PRODUCE, 9, encoded(produce_request(FRAME - 50_000)))
        client.session.receive(frame[:4])
        client.rest = memoryview(frame)[4:]  # type: ignore[attr-defined]
        send(client, 3 * FRAME // 4)
    world.run(2_000)
    late = begun(world, FRAME)
    assert world.context.requests.waiting
    for _ in range(20):
        world.run(1_000)
        send(late, FRAME)
    assert not late.rest  # type: ignore[attr-defined]


def test_what_is_behind_an_unknown_request_is_not_counted_while_answers_leave() -> None:
    world = world_of_requests()
    (stream,) = world.topic()
    for _ in range(8):
        fill(stream, size=100_000)
    world.run(10)
    client = world.client()
    client.room = 0
    poll = fetch(max_wait_ms=1_000)
    poll.min_bytes = 50 * MIB
    client.request(FETCH, 11, poll)
    unknown = pack(">hhih", 999, 0, 5, -1) + bytes(200_000)
    client.session.receive(pack(">i", len(unknown)) + unknown)
    client.request(FETCH, 11, long_poll(3_000))
    world.run(2_000)
    assert client.session.ending
    assert not client.closed
    requests = world.context.requests
    assert (requests.used, requests.waiting, requests.first) == (0, 0, None)


# --- decoded size of requests ---------------------------------------------------------------------


def long_poll(partitions: int) -> FetchRequest:
    asked = [FetchPartition(0, fetch_offset=0, partition_max_bytes=1000) for _ in range(partitions)]
    topics = [FetchTopic("t", bytes(16), asked)]
    return FetchRequest(max_wait_ms=200_000, min_bytes=1, max_bytes=1000, topics=topics)


def polling(world: World, partitions: int, count: int = 1) -> Client:
    client = world.client()
    for _ in range(count):
        client.request(FETCH, 11, long_poll(partitions))
    return client


def test_polls_of_many_partitions_are_counted_as_what_they_are_decoded_to() -> None:
    """A waiting request has earlier polls answered with the data there is.

    None holds room for long.
    """
    world = world_of_requests()
    world.topic()
    world.run(10)
    requests = world.context.requests
    clients = [polling(world, 1_700) for _ in range(40)]
    world.run(1)
    assert LIMIT // 2 < requests.peak <= LIMIT
    world.run(1_000)
    answered = sum(len(client.answers()) for client in clients)
    assert answered > 30
    for client in clients:
        client.session.connection_lost()
    assert (requests.used, requests.waiting) == (0, 0)


def test_polls_that_hold_much_end_when_another_waits_for_room() -> None:
    """Holds also while the request that may exceed the common room stalls."""
    world = world_of_requests()
    world.topic()
    world.run(10)
    early = [polling(world, 2_000) for _ in range(2)]
    begun(world, 3 * FRAME // 4)
    world.run(10)
    assert [len(client.answers()) for client in early] == [0, 0]
    polling(world, 2_000)
    world.run(30)
    assert [len(client.answers()) for client in early] == [1, 1]


def test_a_poll_that_holds_more_than_others_may_is_answered_soon() -> None:
    """Otherwise no other request could have so much room before the poll's max_wait."""
    world = world_of_requests()
    world.topic()
    world.run(10)
    client = polling(world, 8_000)
    world.run(30)
    assert len(client.answers()) == 1


def test_a_poll_that_is_answered_early_again_and_again_does_not_spin() -> None:
    """Its client has the next poll ready: an immediate response would cause an immediate poll."""
    world = world_of_requests()
    world.topic()
    world.run(10)
    client = polling(world, 8_000, count=50)
    world.run(200)
    assert 5 <= len(client.answers()) <= 10


def test_polls_of_some_partitions_have_room_beside_long_requests() -> None:
    world = world_of_requests()
    (stream,) = world.topic()
    world.run(10)
    for _ in range(20):
        begun(world, 3 * FRAME // 4)
    requests = world.context.requests
    assert requests.waiting
    client = polling(world, 300)
    world.run(10)
    assert not client.answers()  # it has started, and waits for records
    fill(stream)
    world.run(10)
    assert client.answers()[0].responses[0].partitions[0].records


def test_a_long_request_that_waits_to_start_keeps_its_place() -> None:
    """There is room for its bytes, but not yet for its decoded size."""
    world = world_of_requests()
    world.topic()
    world.run(10)
    holders = [begun(world, 3 * FRAME // 4) for _ in range(3)]
    world.run(10)
    requests = world.context.requests
    holders.sort(key=lambda holder: holder.session.admission is requests.first)
    holders[0].session.connection_lost()
    client = polling(world, 3_000)
    world.run(10)
    assert client.session.admission.charged > SMALL_BYTES
    assert client.session.admission.waiting
    for holder in holders[1:]:
        holder.session.connection_lost()
    world.run(10)
    assert not client.session.admission.waiting
    assert not world.frontend.turn.waiting_to_start


def test_polls_of_some_partitions_start_when_others_give_their_room_back() -> None:
    """Their room is reserved, whatever requests that are being read hold."""
    world = world_of_requests()
    world.topic()
    world.run(10)
    for _ in range(20):
        begun(world, 3 * FRAME // 4)
    polling(world, 300)
    world.run(10)
    clients = [polling(world, 10_000), *(polling(world, 300) for _ in range(9))]
    world.run(1_000)
    assert [len(client.session.admission.waiting) for client in clients] == [1] + [0] * 9


def test_who_asks_much_again_and_again_does_not_keep_others_from_it() -> None:
    """Each request is charged more than there is, and the next one waits already."""
    world = world_of_requests()
    world.topic()
    world.run(10)
    first = polling(world, 8_000, count=20)
    other = polling(world, 8_000)
    before: list[int] = []

    def send(buffers: Any) -> list[Any]:
        before.append(first.sends)
        return Client.send(other, buffers)

    other.send = send  # type: ignore[method-assign]
    world.run(1_000)
    assert len(other.answers()) == 1
    assert before[0] < 5
    assert len(first.answers()) == 20


def test_small_elements_among_bytes_that_are_passed_on_are_counted() -> None:
    world = World()
    world.run(10)
    client = world.client()
    protocols = [JoinGroupRequestProtocol(str(number), b"") for number in range(20_000)]
    client.request(JOIN_GROUP, 2, JoinGroupRequest("g", 30_000, 30_000, protocols=protocols))
    assert world.context.requests.peak > 20_000 * 200
    world.run(10)
    client.session.connection_lost()
    assert world.context.requests.used == 0


def test_what_a_produce_of_many_partitions_takes_is_counted_until_it_is_answered() -> None:
    """Its responses wait for those of earlier requests."""
    world = World()
    (stream,) = world.topic()
    stream.auto_commit = False
    world.run(10)
    client = world.client()
    client.request(PRODUCE, 9, produce_request(100))
    data = [PartitionProduceData(number, b"") for number in range(20_000)]
    client.request(
        PRODUCE, 9, ProduceRequest(None, -1, 1000, [TopicProduceData("t", bytes(16), data)])
    )
    assert world.context.requests.used > 20_000 * 300
    stream.commit()
    world.run(10)  # each part takes a turn
    assert len(client.answers()) == 2
    assert world.context.requests.used == 0


@pytest.mark.parametrize(("key", "is_cut"), [(PRODUCE, False), (METADATA, True)])
def test_only_batches_need_requests_of_the_largest_size(key: int, is_cut: bool) -> None:
    """Others grow many times when decoded, so the connection is closed before they arrive."""
    world = World()
    client = world.client()
    client.session.receive(pack(">ihh", OTHER_BYTES_MAX + 1, key, 1))
    assert client.closed is is_cut


# --- shares ---------------------------------------------------------------------------------------
MALLORY, ALICE = ("10.0.0.66", 5000), ("10.0.0.1", 5000)
QUOTAS, ENTRIES = 49, 5_000
ATTACKS = 20


def quota_changes() -> AlterClientQuotasRequest:
    """Return the request that takes most memory for each of its bytes."""
    return AlterClientQuotasRequest([EntryData() for _ in range(ENTRIES)])


def test_decoded_requests_of_one_principal_leave_room_for_another() -> None:
    """Many of one principal wait for each other. Together they hold no more than three quarters of
    the room, and the one that owns the reserve. The same request of another one starts at once,
    before all that wait. The memory in use stays below the bound, measured with everything that the
    server and the test hold."""
    world = World(KafkaOptions(request_bytes_max=MIB, request_memory_max=12 * MIB))
    jobs: deque[tuple[Any, Any]] = deque()
    world.context.decoding = Decoding(lambda job, done: jobs.append((job, done)))
    requests = world.context.requests
    hostile = [world.client(MALLORY) for _ in range(ATTACKS)]
    other = world.client(ALICE)
    body = b"".join(codec(QUOTAS).encode_request(quota_changes(), 1))
    gc.collect()
    tracemalloc.start()
    try:
        for client in hostile:
            client.session.receive(client.frame(QUOTAS, 1, body))
        world.run(1)
        shares = requests.shares
        (held,) = {shares.held(client.session.info.asker) for client in hostile}
        first = hostile[0].session.admission.decoded  # one of them owns the reserve
        assert shares.limit // 2 < held <= shares.limit * 3 // 4 + first
        other.session.receive(other.frame(QUOTAS, 1, body))
        world.run(1)
        assert other.session.admission.start_waits_for is Reason.NONE
        assert other.session.admission.decoded
        waiting = [one for one in hostile if not one.session.admission.decoded]
        assert len(waiting) > ATTACKS // 2
        while jobs:
            job, done = jobs.popleft()
            done(job())
            world.run(1)
        world.run(20_000)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert all(len(client.answers()) == 1 for client in (*hostile, other))
    assert peak < 12 * MIB
    assert (requests.used, requests.waiting, len(shares)) == (0, 0, 0)


def test_freed_room_is_offered_to_each_principal() -> None:
    """The connections that have waited longest may all be of a principal that has its share."""
    memory = RequestMemory(20 * FRAME, FRAME)
    limit = memory.shares.limit
    memory.take("mallory", limit * 3 // 4)
    memory.take("alice", limit - limit * 3 // 4)
    woken: list[str] = []
    for number in range(20):
        assert not memory.may_have(number, FRAME, "mallory", is_alone=False)
        memory.wait(number, partial(woken.append, "mallory"), "mallory")
    assert not memory.may_have("bob", FRAME, "bob", is_alone=False)
    memory.wait("bob", partial(woken.append, "bob"), "bob")
    memory.take("alice", -FRAME)
    assert "bob" in woken
    memory.take("alice", -FRAME)
    assert memory.may_have("bob", FRAME // 2, "bob", is_alone=False)
    assert not memory.may_have(0, FRAME // 2, "mallory", is_alone=False)
