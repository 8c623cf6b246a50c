"""Reasons for which a connection waits: each is detected, and ends with its event."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.unit.kafka.connections.test_logins import Place
from tests.unit.kafka.connections.test_turn_budget import CostlyWorld, ask
from tests.unit.kafka.fake_host import Client, World, batch, fill
from vdl.kafka.answer import Later
from vdl.kafka.api import API, Api
from vdl.kafka.configs.options import KafkaOptions
from vdl.kafka.connections.admission import Reason
from vdl.kafka.limits.memory import MEDIUM_BYTES
from vdl.kafka.partitions.record_checks import LARGE_BYTES_COUNTED
from vdl.kafka.security.audit import AuditLog
from vdl.kafka.wire.create_topics import CreateTopicsRequest
from vdl.kafka.wire.fetch import FetchPartition, FetchRequest, FetchTopic
from vdl.kafka.wire.metadata import MetadataRequest
from vdl.kafka.wire.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from vdl.kafka.wire.sasl_handshake import SaslHandshakeRequest
from vdl.logstream.options import LARGE_LED_BYTES_MAX
from vdl.state import commands

PRODUCE, FETCH, METADATA, SASL_HANDSHAKE, API_VERSIONS, CREATE_TOPICS = 0, 1, 3, 17, 18, 19
MIB = 1 << 20


def produce(size: int = 10) -> ProduceRequest:
    data = PartitionProduceData(0, memoryview(batch(size=size)))
    return ProduceRequest(None, -1, 1_000, [TopicProduceData("t", bytes(16), [data])])


def poll(partitions: int = 1, max_wait_ms: int = 60_000) -> FetchRequest:
    asked = [FetchPartition(0, fetch_offset=0, partition_max_bytes=1_000)] * partitions
    topics = [FetchTopic("t", bytes(16), asked)]
    return FetchRequest(max_wait_ms=max_wait_ms, min_bytes=1, max_bytes=1_000, topics=topics)


def client_that_is_not_sent_to() -> Iterator[Client]:
    client = World().client()
    client.session.pause_writing()
    client.request(METADATA, 1, MetadataRequest([]))
    yield client
    client.session.resume_writing()


def crowd() -> tuple[CostlyWorld, list[Client]]:
    """Return a world and clients whose requests are more than one turn starts."""
    world = CostlyWorld()
    row = API[API_VERSIONS]
    API[API_VERSIONS] = Api(API_VERSIONS, row.name, 0, 4, "", world.handle)
    try:
        clients = [world.client() for _ in range(100)]
        for client in clients:
            ask(client)
    finally:
        API[API_VERSIONS] = row
    return world, clients


def request_of_a_crowd() -> Iterator[Client]:
    _, clients = crowd()
    yield clients[-1]


def more_bytes_of_a_crowd() -> Iterator[Client]:
    _, clients = crowd()
    clients[-1].session.receive(b"\0")
    assert not clients[-1].reading
    yield clients[-1]
    clients[-1].session.connection_lost()


def client_over_its_quota() -> Iterator[Client]:
    world = World()
    world.topic()
    change = commands.QuotaChange([("user", "ANONYMOUS")], {"producer_byte_rate": 1_000})
    world.host.apply(commands.AlterQuotas([change]))
    client = world.client()
    assert client.ask(PRODUCE, 9, produce(10_500)).throttle_time_ms > 0
    yield client


def second_request_before_the_login() -> Iterator[Client]:
    place = Place()
    client = place.visitor()
    row = API[SASL_HANDSHAKE]
    later = Later()
    API[SASL_HANDSHAKE] = Api(SASL_HANDSHAKE, row.name, 0, 1, "", lambda ctx, request: later)
    try:
        client.request(SASL_HANDSHAKE, 1, SaslHandshakeRequest("PLAIN"))
    finally:
        API[SASL_HANDSHAKE] = row
    yield client
    later.complete(row.failure(SaslHandshakeRequest("PLAIN"), 1, 0))


def requests_at_the_bound() -> Iterator[Client]:
    world = World(KafkaOptions(requests_in_flight_max=2))
    (stream,) = world.topic()
    stream.auto_commit = False
    client = world.client()
    for _ in range(2):
        client.request(PRODUCE, 9, produce())
    yield client
    stream.commit()


def request_without_memory() -> Iterator[Client]:
    world = World()
    world.topic()
    requests = world.context.requests
    used = requests.limit
    requests.change(used)
    requests.first = world  # another connection has the reserve
    client = world.client()
    frame = client.frame(PRODUCE, 9, bytes(1_000_000))
    client.session.receive(frame[:100_000])
    yield client
    requests.change(-used)
    requests.finished(world)
    world.run()
    assert client.reading
    client.session.connection_lost()


def request_behind_a_long_poll() -> Iterator[Client]:
    world = World()
    (stream,) = world.topic()
    client = world.client()
    client.request(FETCH, 11, poll())
    client.request(METADATA, 1, MetadataRequest([]))
    yield client
    fill(stream)


def answer_without_memory() -> Iterator[Client]:
    world = World()
    answers = world.context.answers
    answers.change(answers.limit)
    client = world.client()
    client.request(METADATA, 1, MetadataRequest([]))
    yield client
    answers.change(-answers.limit)


def change_beyond_the_audit_log() -> Iterator[Client]:
    world = World()
    is_full = True
    world.context.audit = AuditLog(
        lambda line, act_of: None, world.clock, lambda who, is_super: is_full
    )
    client = world.client()
    client.request(CREATE_TOPICS, 5, CreateTopicsRequest([]))
    yield client
    is_full = False


def request_that_becomes_large() -> Iterator[Client]:
    world = World()
    world.topic()
    requests = world.context.requests
    used = requests.limit - requests.reserve
    requests.change(used)
    others = [str(number) for number in range(requests.moderate_reserve // MEDIUM_BYTES)]
    for other in others:
        assert requests.take_moderate(MEDIUM_BYTES, other)
    requests.first = world
    client = world.client()
    client.request(FETCH, 11, poll(1_000, max_wait_ms=0))
    yield client
    for other in others:
        requests.return_moderate(MEDIUM_BYTES, other)
    requests.change(-used)
    requests.finished(world)


def produce_of_a_busy_host() -> Iterator[Client]:
    world = World()
    world.topic()
    world.host.overloaded = True
    client = world.client()
    client.request(PRODUCE, 9, produce())
    yield client
    world.host.overloaded = False


def large_produce_behind_another() -> Iterator[Client]:
    world = World()
    world.topic()
    world.host.large_bytes = LARGE_LED_BYTES_MAX
    client = world.client()
    client.request(PRODUCE, 9, produce(LARGE_BYTES_COUNTED + MIB))
    yield client
    world.host.large_bytes = 0


WAITS: dict[Reason, Callable[[], Iterator[Client]]] = {
    Reason.CLOSING: client_that_is_not_sent_to,
    Reason.READ_AHEAD: more_bytes_of_a_crowd,
    Reason.THROTTLE: client_over_its_quota,
    Reason.LOGIN: second_request_before_the_login,
    Reason.IN_FLIGHT: requests_at_the_bound,
    Reason.REQUEST_MEMORY: request_without_memory,
    Reason.ORDER: request_behind_a_long_poll,
    Reason.TURN: request_of_a_crowd,
    Reason.ANSWER_MEMORY: answer_without_memory,
    Reason.AUDIT_LOG: change_beyond_the_audit_log,
    Reason.DECODED_MEMORY: request_that_becomes_large,
    Reason.HOST: produce_of_a_busy_host,
    Reason.LARGE_PRODUCE: large_produce_behind_another,
}


def test_every_reason_to_wait_is_tried() -> None:
    assert [*WAITS] == [reason for reason in Reason if reason is not Reason.NONE]


@pytest.mark.parametrize("reason", WAITS, ids=lambda reason: reason.name.lower())
def test_connection_waits_for_its_reason_and_not_longer(reason: Reason) -> None:
    """The connection continues without a further request, and holds no memory at the end."""
    steps = WAITS[reason]()
    client = next(steps)
    admission = client.session.admission
    assert reason in (admission.start_waits_for, admission.reading_waits_for)
    assert next(steps, None) is None
    client.world.run(20_000)
    if not client.session.closed:
        assert admission.start_waits_for is admission.reading_waits_for is Reason.NONE
        assert client.reading
    assert not admission.waiting
    assert not admission.started
    assert admission.charged == admission.decoded == 0
    assert (client.world.context.requests.used, client.world.context.requests.waiting) == (0, 0)
    assert client.world.context.answers.waiting == 0


def test_reasons_are_examined_in_their_order() -> None:
    """Memory is not charged before the request's turn, and a turn not used before its order."""
    world = World()
    (stream,) = world.topic()
    client = world.client()
    client.request(FETCH, 11, poll())
    world.context.answers.change(world.context.answers.limit)
    client.request(METADATA, 1, MetadataRequest([]))
    admission = client.session.admission
    assert admission.start_waits_for is Reason.ORDER
    assert world.context.answers.waiting == 0
    fill(stream)
    world.run()
    # The poll's answer has no memory either, so no request behind it is examined further.
    assert admission.start_waits_for is Reason.ORDER
    assert world.context.answers.waiting == 1
    world.context.answers.change(-world.context.answers.limit)
    world.run()
    assert len(client.answers()) == 2
