"""Connections of a front end: order, bounds, time limits, failures, malformed bytes."""

from __future__ import annotations

from struct import pack
from typing import Any

import pytest

from tests.unit.kafka.fake_host import LISTENER, Client, World, batch, fill
from tests.wire import codec
from vdl.errors import ErrorCode
from vdl.kafka.api import API, Api
from vdl.kafka.configs.options import KafkaOptions
from vdl.kafka.connections.connection import FRAME_RATE_MIN
from vdl.kafka.wire.api_versions import ApiVersionsRequest
from vdl.kafka.wire.fetch import FetchPartition, FetchRequest, FetchTopic
from vdl.kafka.wire.metadata import MetadataRequest
from vdl.kafka.wire.produce import PartitionProduceData, ProduceRequest, TopicProduceData

PRODUCE, FETCH, METADATA, API_VERSIONS = 0, 1, 3, 18


def produce(acks: int = -1, size: int = 10) -> ProduceRequest:
    data = PartitionProduceData(0, memoryview(batch(size=size)))
    return ProduceRequest(None, acks, 1000, [TopicProduceData("t", bytes(16), [data])])


def poll(max_wait_ms: int = 60_000) -> FetchRequest:
    partition = FetchPartition(0, fetch_offset=0, partition_max_bytes=1 << 20)
    return FetchRequest(
        max_wait_ms=max_wait_ms, min_bytes=1, topics=[FetchTopic("t", bytes(16), [partition])]
    )


def hello(client: Client) -> None:
    """Assert that the connection works."""
    answer = client.ask(API_VERSIONS, 0, ApiVersionsRequest())
    assert answer.error_code == ErrorCode.NONE


# --- bytes that make no sense --------------------------------------------------------------------


def frame(*parts: bytes) -> bytes:
    body = b"".join(parts)
    return pack(">i", len(body)) + body


def header(api_key: int, version: int, client: bytes = b"\x00\x01x") -> bytes:
    return pack(">hhi", api_key, version, 7) + client


CLOSED = {
    "negative size": pack(">i", -1),
    "size over the limit": pack(">i", (100 << 20) + 1),
    "an HTTP request": b"GET / HTTP/1.1\r\n\r\n",
    "a TLS hello": bytes.fromhex("16030100f8010000f40303"),
    "size 0": pack(">i", 0),
    "size 1": frame(b"\x00"),
    "size 7": frame(bytes(7)),
    "header cut in the client id": frame(pack(">hhih", METADATA, 1, 7, 300), b"abc"),
    "unknown key": frame(header(999, 0)),
    "negative key": frame(header(-1, 0)),
    "inter-broker key": frame(header(4, 0)),
    "version too new": frame(header(METADATA, 99, b"\x00\x01x\x00")),
    "negative version": frame(header(METADATA, -1)),
    "version too old": frame(header(FETCH, 3)),
    "body missing": frame(header(METADATA, 1)),
    "body cut": frame(header(METADATA, 1), pack(">ih", 1, 5), b"ab"),
    "array longer than the request": frame(header(METADATA, 1), pack(">i", 1 << 30)),
    "null where there must be a string": frame(header(METADATA, 1), pack(">ih", 1, -1)),
    "very many tagged fields": frame(
        header(METADATA, 9, b"\x00\x01x\xff\xff\xff\xff\x07"), b"\x00\x01\x00\x00\x00"
    ),
}


@pytest.mark.parametrize("data", CLOSED.values(), ids=CLOSED.keys())
@pytest.mark.parametrize("byte_by_byte", [False, True])
def test_bytes_that_make_no_sense_end_their_connection_alone(
    data: bytes, byte_by_byte: bool
) -> None:
    """As in Kafka, the connection is closed without an answer, however the bytes are split. Other
    connections are not affected."""
    world = World()
    other = world.client()
    client = world.client()
    pieces = [data[i : i + 1] for i in range(len(data))] if byte_by_byte else [data]
    for piece in pieces:
        client.session.receive(piece)
    world.run()
    assert client.closed
    assert client.received == b""
    assert world.frontend.stats.handler_errors == 0
    assert {event for _, event, _ in world.log.events} == {"client_disconnected"}
    hello(other)
    assert len(world.frontend) == 1


def test_bytes_after_the_body_are_ignored() -> None:
    """Kafka ignores them too, so additional fields of a newer client do no harm."""
    world = World()
    client = world.client()
    body = b"".join(codec(METADATA).encode_request(MetadataRequest([]), 1))
    client.session.receive(client.frame(METADATA, 1, body + b"more"))
    world.run()
    (answer,) = client.answers()
    assert answer.topics == []


def test_text_that_is_no_utf8_is_an_unknown_topic() -> None:
    """Kafka replaces undecodable bytes; the name is then invalid."""
    world = World()
    client = world.client()
    client.session.receive(client.frame(METADATA, 1, pack(">ih", 1, 2) + b"\xff\xfe"))
    world.run()
    (answer,) = client.answers()
    assert answer.topics[0].error_code == ErrorCode.INVALID_TOPIC_EXCEPTION


def test_requests_before_bad_bytes_are_answered_first() -> None:
    """Kafka reads one request at a time, so it answers earlier requests before the close."""
    world = World()
    (stream,) = world.topic()
    stream.auto_commit = False
    client = world.client()
    client.request(PRODUCE, 9, produce())
    client.session.receive(pack(">i", -5))
    world.run()
    assert not client.closed
    stream.commit()
    world.run()
    assert len(client.answers()) == 1
    assert client.closed


def test_requests_that_wait_behind_bad_bytes_are_answered_first() -> None:
    """The same holds if they arrived in one read with the bytes that end the connection."""
    world = World()
    (stream,) = world.topic()
    client = world.client()
    client.request(FETCH, 11, poll())
    body = b"".join(codec(METADATA).encode_request(MetadataRequest([]), 1))
    client.session.receive(client.frame(METADATA, 1, body) + b"GET / HTTP/1.1")
    world.run()
    assert not client.closed
    fill(stream)
    world.run()
    assert len(client.answers()) == 2
    assert client.closed


def test_requests_behind_one_that_makes_no_sense_are_not_started() -> None:
    """As in Kafka, the connection ends at the malformed request."""
    world = World()
    (stream,) = world.topic()
    client = world.client()
    client.session.receive(frame(header(METADATA, 1)))
    client.request(PRODUCE, 9, produce())
    world.run()
    assert client.closed
    assert stream.batches == []


def test_equal_correlation_ids_are_echoed() -> None:
    """The server does not require the ids to differ."""
    client = World().client()
    for _ in range(3):
        client.session.receive(client.frame(API_VERSIONS, 0, b""))
        client._correlation_id = 0
    assert len(client.answers()) == 3


def test_requests_arriving_byte_by_byte_are_answered_as_whole_ones() -> None:
    """The output does not depend on how the input is split."""
    outputs = []
    for step in (1, 3, 10_000):
        world = World()
        client = world.client()
        data = client.frame(API_VERSIONS, 0, b"") + client.frame(METADATA, 1, pack(">i", -1))
        for position in range(0, len(data), step):
            client.session.receive(data[position : position + step])
        world.run()
        outputs.append(bytes(client.received))
    assert outputs[0] == outputs[1] == outputs[2]


# --- order and bounds --------------------------------------------------------------------------


def test_requests_behind_a_long_poll_wait_for_it() -> None:
    """Kafka's rule: answers leave in the order of the requests."""
    world = World()
    (stream,) = world.topic()
    client = world.client()
    client.request(FETCH, 11, poll())
    client.request(METADATA, 1, MetadataRequest([]))
    client.request(PRODUCE, 9, produce())
    world.run()
    assert client.answers() == []
    assert stream.batches == []
    fill(stream)
    world.run()
    assert len(client.answers()) == 3


def test_reading_stops_at_the_bound_of_requests_and_goes_on_below_it() -> None:
    """A client that sends ahead is not read without limit."""
    world = World(KafkaOptions(requests_in_flight_max=4))
    (stream,) = world.topic()
    stream.auto_commit = False
    client = world.client()
    for _ in range(3):
        client.request(PRODUCE, 9, produce())
    assert client.reading
    client.request(PRODUCE, 9, produce())
    assert not client.reading
    stream.commit()
    world.run()
    assert client.reading
    assert len(client.answers()) == 4


def test_reading_stops_at_the_bound_of_bytes() -> None:
    """Bytes are bounded like requests; a single request may be larger than the bound."""
    world = World(KafkaOptions(request_bytes_in_flight_max=1000))
    (stream,) = world.topic()
    stream.auto_commit = False
    client = world.client()
    client.request(PRODUCE, 9, produce(size=5000))
    assert not client.reading
    assert len(stream.batches) == 1
    stream.commit()
    world.run()
    assert client.reading


def test_a_client_that_does_not_read_is_not_served_further() -> None:
    """Above the high water mark no request starts and no answer is queued."""
    world = World()
    client = world.client()
    hello(client)
    client.session.pause_writing()
    client.request(METADATA, 1, MetadataRequest([]))
    world.run()
    assert client.received == b""
    client.session.resume_writing()
    world.run()
    assert len(client.answers()) == 1


def test_answers_to_requests_that_came_together_are_bounded() -> None:
    """Short requests may have large answers. At the high water mark the queued answers are sent,
    and the other requests wait until the client reads."""
    world = World(KafkaOptions(write_buffer_bytes_max=2_000))
    client = world.client()
    sent: list[int] = []

    def send(buffers: list[bytes]) -> None:
        sent.append(sum(map(len, buffers)))
        client.received += b"".join(buffers)
        client.session.pause_writing()

    client.send = send  # type: ignore[method-assign]
    requests = [client.frame(API_VERSIONS, 0, b"") for _ in range(60)]
    client.session.receive(b"".join(requests))
    world.run()
    assert len(sent) == 1
    answer_bytes = sum(sent) // (60 - len(client.session.admission.waiting))
    while client.session.admission.waiting:
        client.session.resume_writing()
        world.run()
    assert len(client.answers()) == 60
    assert len(sent) > 1
    assert max(sent) < 2_000 + answer_bytes


def test_connections_above_the_limits_are_refused() -> None:
    """Limits for all connections and for one address: at the limit and one past it."""
    world = World(KafkaOptions(connections_max=2, connections_per_ip_max=1))
    frontend = world.frontend
    first = world.client(("10.0.0.1", 1))
    assert frontend.accept(first, LISTENER, ("10.0.0.1", 2)) is None
    world.client(("10.0.0.2", 1))
    assert frontend.accept(first, LISTENER, ("10.0.0.3", 1)) is None
    first.session.connection_lost()
    world.client(("10.0.0.3", 1))
    assert (frontend.connections_refused, len(frontend)) == (2, 2)


def test_address_that_takes_all_connections_gives_way_to_others() -> None:
    """Its connection that was silent longest is closed. The address itself displaces no other."""
    world = World(KafkaOptions(connections_max=4))
    crowd = []
    for number in range(4):
        crowd.append(world.client(("10.0.0.1", number)))
        world.run(1)
    crowd[0].ask(API_VERSIONS, 0, ApiVersionsRequest())
    other = world.client(("10.0.0.2", 1))
    assert [client.closed for client in crowd] == [False, True, False, False]
    assert world.frontend.accept(crowd[0], LISTENER, ("10.0.0.1", 9)) is None
    world.client(("10.0.0.3", 1))
    assert [client.closed for client in crowd] == [False, True, True, False]
    # Two, one and one: another address would then have as many as the first, so it is refused.
    assert world.frontend.accept(crowd[0], LISTENER, ("10.0.0.2", 2)) is None
    assert not other.closed
    assert len(world.frontend) == 4


def test_listener_has_no_more_connections_than_are_its_own() -> None:
    """A flood at one listener leaves room at the others. Within the listener, the address with
    the most connections gives way."""
    world = World(KafkaOptions(connections_max=8), most_of={LISTENER: 3, "OTHER": 0})
    frontend = world.frontend
    crowd = []
    for number in range(3):
        crowd.append(world.client(("10.0.0.1", number)))
        world.run(1)
    assert not frontend.admits("10.0.0.1", LISTENER)
    assert frontend.accept(crowd[0], LISTENER, ("10.0.0.1", 9)) is None
    for number in range(5):
        assert frontend.accept(crowd[0], "OTHER", ("10.0.0.1", number)) is not None
    other = world.client(("10.0.0.2", 1))
    assert [client.closed for client in crowd] == [True, False, False]
    assert not other.closed
    other.session.connection_lost()
    assert frontend.admits("10.0.0.1", LISTENER)


def test_connection_that_waits_for_its_answer_does_not_give_way_to_others() -> None:
    """It is silent because it waits for the server. If all wait, the one that waits longest is
    closed."""
    world = World(KafkaOptions(connections_max=3))
    world.topic()
    crowd = []
    for number in range(3):
        crowd.append(world.client(("10.0.0.1", number)))
        world.run(1)
    for client in crowd[:2]:
        client.request(FETCH, 11, poll(max_wait_ms=300_000))
        world.run(1)
    crowd[2].ask(API_VERSIONS, 0, ApiVersionsRequest())
    world.client(("10.0.0.2", 1))
    assert [client.closed for client in crowd] == [False, False, True]
    world.client(("10.0.0.3", 1))
    assert [client.closed for client in crowd] == [True, False, True]


def test_addresses_of_one_network_of_ipv6_count_as_one() -> None:
    world = World(KafkaOptions(connections_per_ip_max=2))
    first = world.client(("2001:db8::1", 1))
    world.client(("2001:db8::2", 1))
    assert world.frontend.accept(first, LISTENER, ("2001:db8::3", 1)) is None
    world.client(("2001:db8:0:1::1", 1))


def test_single_addresses_have_limits_of_their_own() -> None:
    """`max.connections.per.ip.overrides` sets a higher or lower limit, in any notation of the
    address."""
    overrides = "10.0.0.1:3, ::ffff:10.0.0.2:0,2001:DB8::1:1"
    world = World(KafkaOptions(connections_per_ip_max=2, connections_of_ips_max=overrides))
    admitted = {
        host: sum(
            world.frontend.accept(world.client((f"10.1.{n}.{m}", 1)), LISTENER, (host, m))
            is not None
            for m in range(5)
        )
        for n, host in enumerate(("10.0.0.1", "10.0.0.2", "2001:db8::1", "10.0.0.3"))
    }
    assert admitted == {"10.0.0.1": 3, "10.0.0.2": 0, "2001:db8::1": 1, "10.0.0.3": 2}


def test_an_idle_connection_is_closed_and_a_busy_one_is_not() -> None:
    """A connection is idle after ten minutes without a byte, unless a long poll waits."""
    world = World()
    world.topic()
    idle, busy = world.client(), world.client()
    world.run(301_000)
    busy.request(FETCH, 11, poll(max_wait_ms=300_000))
    world.run(298_000)
    assert not idle.closed
    world.run(3_000)
    assert idle.aborted
    world.run(590_000)
    assert not busy.closed, "it was answered less than ten minutes ago"
    world.run(20_000)
    assert busy.aborted


def test_a_request_that_dribbles_in_is_cut_off() -> None:
    """It stays below the minimum rate for thirty seconds, although bytes arrive steadily."""
    world = World()
    client = world.client()
    client.session.receive(pack(">i", 1000))
    for _ in range(29):
        client.session.receive(b"\0")
        world.run(1000)
    assert not client.closed
    client.session.receive(b"\0")
    world.run(2000)
    assert client.aborted


@pytest.mark.parametrize(
    ("rate", "is_cut"), [(2 * FRAME_RATE_MIN, False), (FRAME_RATE_MIN - 1, True)]
)
def test_a_request_that_gets_on_may_take_its_time(rate: int, is_cut: bool) -> None:
    """Kafka cuts none off. Here a slow request must keep the minimum rate in each deadline
    period, and is then served minutes later."""
    world = World()
    (stream,) = world.topic()
    world.run()
    client = world.client()
    body = b"".join(codec(PRODUCE).encode_request(produce(size=300 * FRAME_RATE_MIN), 9))
    data = client.frame(PRODUCE, 9, body)
    for at in range(0, len(data), rate):
        if client.closed:
            break
        client.session.receive(data[at : at + rate])
        world.run(1_000)
    assert client.closed is is_cut
    assert len(stream.batches) == (not is_cut)


def test_a_request_that_stops_in_its_middle_is_cut_off() -> None:
    """Bytes of earlier periods do not count in the next one."""
    world = World()
    world.run()
    client = world.client()
    client.session.receive(pack(">i", 80 << 20))
    for _ in range(40):
        client.session.receive(bytes(1 << 20))
        world.run(1_000)
    assert not client.closed
    world.run(19_000)
    assert not client.closed
    world.run(34_000)
    assert client.aborted


def pipelined(world: World, *, whole: int) -> tuple[Client, bytes]:
    """Return a client that sent `whole` Produce requests and part of another, and the rest."""
    world.run()  # time 0 would mean that no request has begun to arrive
    client = world.client()
    body = b"".join(codec(PRODUCE).encode_request(produce(), 9))
    data = b"".join(client.frame(PRODUCE, 9, body) for _ in range(whole + 1))
    client.session.receive(data[:-20])
    return client, data[-20:]


@pytest.mark.parametrize("overloaded", [False, True])
def test_a_request_is_not_late_while_the_server_does_not_read(overloaded: bool) -> None:
    """The connection is at its bound in the middle of a frame. Neither slow commits nor an
    overloaded host count against the client. Once it is read again, it has the whole time."""
    world = World(KafkaOptions(requests_in_flight_max=4))
    (stream,) = world.topic()
    stream.auto_commit = False
    world.host.overloaded = overloaded
    client, rest = pipelined(world, whole=4)
    assert not client.reading
    world.run(31_000)
    assert not client.closed
    world.host.overloaded = False
    world.run()
    stream.commit()
    world.run(29_000)
    assert client.reading
    assert not client.closed
    client.session.receive(rest)
    stream.commit()
    world.run()
    assert len(client.answers()) == 5
    world.run(60_000)
    assert not client.closed


@pytest.mark.parametrize("dribbles", [False, True])
def test_time_runs_again_for_a_slow_request_after_a_pause(dribbles: bool) -> None:
    """The deadline counts from when reading resumes. Answers sent meanwhile do not extend it; only
    another pause would, and that requires the whole request."""
    world = World(KafkaOptions(requests_in_flight_max=4))
    (stream,) = world.topic()
    stream.auto_commit = False
    client, rest = pipelined(world, whole=4)
    later = [stream.batches.pop(), stream.batches.pop()]
    world.run(40_000)
    stream.commit()
    world.run(1_000)
    assert client.reading
    assert client.session.busy
    for second in range(28):
        if second in (10, 20):
            stream.batches.append(later.pop())
            stream.commit()
        if dribbles and second < 19:
            client.session.receive(rest[second : second + 1])
        world.run(1_000)
    assert len(client.answers()) == 4
    assert not client.closed
    world.run(3_000)
    assert client.aborted


def test_answers_due_before_bad_bytes_are_waited_for() -> None:
    """Bytes behind the malformed ones are not read, so they are no request that is late."""
    world = World()
    (stream,) = world.topic()
    stream.auto_commit = False
    world.run()
    client = world.client()
    client.request(PRODUCE, 9, produce())
    client.session.receive(pack(">i", -5))
    world.run(31_000)
    assert not client.closed
    stream.commit()
    world.run()
    assert len(client.answers()) == 1
    assert client.closed


def test_a_client_that_never_reads_its_answers_is_idle_in_the_end() -> None:
    """Answers that cannot be sent keep neither the connection nor its memory."""
    world = World(KafkaOptions(requests_in_flight_max=4))
    (stream,) = world.topic()
    stream.auto_commit = False
    client, _ = pipelined(world, whole=4)
    client.session.pause_writing()
    stream.commit()
    world.run(599_000)
    assert not client.closed
    world.run(3_000)
    assert client.aborted


def test_answers_of_one_turn_leave_in_one_call() -> None:
    """A connection makes one system call per turn."""
    world = World()
    client = world.client()
    data = b"".join(client.frame(API_VERSIONS, 0, b"") for _ in range(5))
    client.session.receive(data)
    assert len(client.answers()) == 5
    assert client.sends == 1


# --- failures ------------------------------------------------------------------------------------


def explode(ctx: Any, request: Any) -> Any:
    raise RuntimeError("a bug")


@pytest.mark.parametrize("version", range(14))
def test_a_handler_that_raises_costs_its_request_only(
    version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The request gets UNKNOWN_SERVER_ERROR, one traceback is logged, the connection stays open."""
    row = API[METADATA]
    broken = Api(
        METADATA,
        row.name,
        row.min_version,
        row.max_version,
        "metadata",
        explode,
        row.failure,
        large_answer=True,
    )
    monkeypatch.setitem(API, METADATA, broken)
    world = World()
    client = world.client()
    request = MetadataRequest([])
    for _ in range(3):
        client.ask(METADATA, version, request)
    assert world.frontend.stats.handler_errors == 3
    assert world.frontend.stats.by_api["Metadata"].errors == 3
    told = [fields for level, _, fields in world.log.events if level == "error"]
    assert len(told) == 1
    assert "RuntimeError: a bug" in told[0]["traceback"]
    hello(client)


def test_a_produce_handler_that_raises_answers_each_partition(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The error is in each partition's entry, where the client looks for it."""
    world = World()
    (stream,) = world.topic()
    monkeypatch.setattr(stream, "append", explode)
    answer = world.client().ask(PRODUCE, 9, produce())
    (partition,) = answer.responses[0].partition_responses
    assert partition.error_code == ErrorCode.UNKNOWN_SERVER_ERROR


def test_a_produce_handler_that_raises_without_acks_closes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """acks=0: a frame would be taken for the answer to the client's next request."""
    world = World()
    (stream,) = world.topic()
    stream.auto_commit = False
    client, other = world.client(), world.client()
    client.request(PRODUCE, 9, produce())
    monkeypatch.setattr(stream, "append", explode)
    client.request(PRODUCE, 9, produce(acks=0))
    client.expected.pop()
    client.request(METADATA, 1, MetadataRequest([]))
    client.expected.pop()
    stream.commit()
    world.run()
    assert len(client.answers()) == 1, "what was asked before"
    assert client.closed
    assert world.frontend.stats.by_api["Produce"].errors == 1
    hello(other)


def test_a_step_that_raises_after_the_handler_returned_is_answered_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A failure in a long poll does not reach the code that woke it."""
    world = World()
    (stream,) = world.topic()
    client = world.client()
    client.request(FETCH, 11, poll())
    monkeypatch.setattr(stream, "read", explode)
    fill(stream)
    world.run()
    (answer,) = client.answers()
    assert answer.error_code == ErrorCode.UNKNOWN_SERVER_ERROR
    assert world.frontend.stats.handler_errors == 1


def test_an_answer_that_cannot_be_encoded_is_a_failure_of_the_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The failure is counted, and the client receives an error."""
    world = World()
    monkeypatch.setattr(world.host, "cluster_id", 17)
    answer = world.client().ask(METADATA, 13, MetadataRequest([]))
    assert answer.error_code == ErrorCode.UNKNOWN_SERVER_ERROR
    assert world.frontend.stats.handler_errors == 1


# --- stop ----------------------------------------------------------------------------------------


def test_stop_lets_appends_finish_and_drops_long_polls() -> None:
    """Pending acknowledgements are sent; no new request is accepted."""
    world = World()
    (stream,) = world.topic()
    stream.auto_commit = False
    producer, consumer, idle = world.client(), world.client(), world.client()
    producer.request(PRODUCE, 9, produce())
    consumer.request(FETCH, 11, poll())
    world.frontend.stop()
    assert (producer.closed, consumer.closed, idle.closed) == (False, True, True)
    assert world.frontend.accept(idle, LISTENER, ("10.0.0.9", 1)) is None
    producer.request(PRODUCE, 9, produce())
    stream.commit()
    world.run()
    producer.expected = producer.expected[:1]
    assert len(producer.answers()) == 1
    assert producer.closed
    assert len(stream.batches) == 1


def test_close_drops_everything_at_once() -> None:
    """Close is the last step of a stop."""
    world = World()
    clients = [world.client() for _ in range(3)]
    world.frontend.close()
    assert all(client.closed for client in clients)
    assert len(world.frontend) == 0
