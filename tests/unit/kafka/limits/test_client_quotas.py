"""Client quotas: precedence, throttle times, and zero cost without quotas."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from tests.unit.kafka.fake_host import Client, World, batch, fill
from vdl.clock import MS, Clock
from vdl.errors import ErrorCode
from vdl.kafka.configs.options import KafkaOptions
from vdl.kafka.limits.client_quotas import (
    BUCKETS_MAX,
    BURST_SECONDS,
    LIMITS_MAX,
    NAME_CHARS_MAX,
    ClientQuotas,
    Quota,
)
from vdl.kafka.security.principal import Principal
from vdl.kafka.wire.alter_client_quotas import (
    AlterClientQuotasRequest,
    EntityData,
    EntryData,
    OpData,
)
from vdl.kafka.wire.create_partitions import (
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from vdl.kafka.wire.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from vdl.kafka.wire.delete_topics import DeleteTopicsRequest, DeleteTopicState
from vdl.kafka.wire.describe_client_quotas import ComponentData, DescribeClientQuotasRequest
from vdl.kafka.wire.fetch import FetchPartition, FetchRequest, FetchTopic
from vdl.kafka.wire.metadata import MetadataRequest, MetadataRequestTopic
from vdl.kafka.wire.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from vdl.state import commands
from vdl.state.quotas import Quotas

SECOND = 1_000 * MS
PRODUCE, FETCH, METADATA = 0, 1, 3


def put(quotas: Quotas, key: str, value: float, **names: str | None) -> None:
    entity = [(kind.replace("_", "-"), name) for kind, name in names.items()]
    assert quotas.alter(commands.QuotaChange(entity, {key: value}))[0] is ErrorCode.NONE


LEVELS: list[dict[str, str | None]] = [
    {"user": "u", "client_id": "c"},
    {"user": "u", "client_id": None},
    {"user": "u"},
    {"user": None, "client_id": "c"},
    {"user": None, "client_id": None},
    {"user": None},
    {"client_id": "c"},
    {"client_id": None},
]
"""Kafka's order of precedence."""


@pytest.mark.parametrize("seed", range(30))
def test_strongest_of_eight_levels_counts(seed: int) -> None:
    """Applies to any set of levels, to each kind of quota by itself, and after a change."""
    rng = random.Random(seed)
    quotas = Quotas()
    limits = ClientQuotas(quotas)
    for _ in range(20):
        level = rng.randrange(len(LEVELS))
        key = rng.choice(["producer_byte_rate", "consumer_byte_rate"])
        names = [(kind.replace("_", "-"), name) for kind, name in LEVELS[level].items()]
        if rng.random() < 0.3:
            quotas.alter(commands.QuotaChange(names, unset=[key]))
        else:
            put(quotas, key, level + 1, **LEVELS[level])
        for quota in (Quota.PRODUCE, Quota.FETCH):
            expected = None
            for number, one in enumerate(LEVELS):
                entity = sorted((kind.replace("_", "-"), name) for kind, name in one.items())
                if quota.value in quotas.of(tuple(entity)):
                    expected = (number + 1) * BURST_SECONDS
                    break
            assert limits.burst(quota, "u", "c") == expected
        assert limits.burst(Quota.MUTATION, "u", "c") is None


def test_who_shares_a_quota_with_whom() -> None:
    """A user's quota is shared by all its clients, a client id's by all users.

    Pairs have their own.
    """
    for names, shared, own in (
        ({"user": "u"}, ("u", "d"), ("v", "c")),
        ({"user": None}, ("u", "d"), ("v", "c")),
        ({"client_id": "c"}, ("v", "c"), ("u", "d")),
        ({"client_id": None}, ("v", "c"), ("u", "d")),
        ({"user": None, "client_id": None}, ("u", "c"), ("u", "d")),
    ):
        quotas = Quotas()
        put(quotas, "producer_byte_rate", 1, **names)
        limits = ClientQuotas(quotas)
        assert limits.use(Quota.PRODUCE, "u", "c", 15, 0) == 5_000
        assert limits.wait_ms(Quota.PRODUCE, *shared, 0) == 5_000, names
        assert limits.wait_ms(Quota.PRODUCE, *own, 0) == 0, names


@pytest.mark.parametrize("seed", range(20))
def test_over_any_long_time_no_more_is_used_than_the_rate_allows(seed: int) -> None:
    """A client that obeys its throttle times uses its rate, and one burst."""
    rng = random.Random(seed)
    rate = rng.choice([1, 100, 10_000])
    quotas = Quotas()
    put(quotas, "producer_byte_rate", rate, user="u")
    limits = ClientQuotas(quotas)
    now_ns = used = largest = 0
    while now_ns < 1_000 * SECOND:
        amount = rng.randint(1, rate * 3)
        largest = max(largest, amount)
        used += amount
        wait_ms = limits.use(Quota.PRODUCE, "u", "c", amount, now_ns)
        now_ns += wait_ms * MS + rng.randrange(SECOND // 10)
    seconds = now_ns / SECOND
    assert used <= rate * (seconds + BURST_SECONDS) + largest
    assert used >= rate * seconds * 0.8, "and it gets what it may"


def test_rate_that_changes_counts_from_then_on() -> None:
    """Bytes already overdrawn are waited for at the new rate."""
    quotas = Quotas()
    put(quotas, "producer_byte_rate", 1, user="u")
    limits = ClientQuotas(quotas)
    assert limits.use(Quota.PRODUCE, "u", "c", 30, 0) == 20_000
    put(quotas, "producer_byte_rate", 1_000, user="u")
    assert limits.wait_ms(Quota.PRODUCE, "u", "c", 0) == 20_000, "as long as the answer said"
    assert limits.use(Quota.PRODUCE, "u", "c", 1, 30 * SECOND) == 0
    quotas.alter(commands.QuotaChange([("user", "u")], unset=["producer_byte_rate"]))
    assert limits.use(Quota.PRODUCE, "u", "c", 1 << 40, 0) == 0


def test_ten_thousand_client_ids_and_more_do_not_grow_without_bound() -> None:
    """Full buckets are dropped first; an overdrawn one is remembered."""
    quotas = Quotas()
    put(quotas, "producer_byte_rate", 1, client_id=None)
    limits = ClientQuotas(quotas)
    limits.use(Quota.PRODUCE, "u", "greedy", 1_000, 0)
    for number in range(3 * BUCKETS_MAX):
        limits.use(Quota.PRODUCE, "u", f"client-{number}", 1, number * SECOND // 100)
    assert len(limits) == BUCKETS_MAX
    assert len(limits._limits) <= LIMITS_MAX
    now_ns = 3 * BUCKETS_MAX * SECOND // 100
    assert limits.wait_ms(Quota.PRODUCE, "u", "greedy", now_ns) > 0
    assert limits.evicted == 0


def test_long_names_are_told_apart_and_not_kept() -> None:
    """Each long name has its own quota, also one that an administrator set for exactly that name.

    A client may choose ten thousand ids of 32 KB.
    """
    quotas = Quotas()
    put(quotas, "producer_byte_rate", 1, client_id=None)
    named = "n" * 200
    put(quotas, "producer_byte_rate", 1_000, client_id=named)
    limits = ClientQuotas(quotas)
    for number in range(100):
        assert limits.use(Quota.PRODUCE, "u", f"{number}".rjust(32_767), 11, 0) == 1_000
    assert limits.use(Quota.PRODUCE, "u", named, 10_000, 0) == 0
    assert limits.use(Quota.PRODUCE, "u", named, 1_000, 0) == 1_000
    short = "s" * NAME_CHARS_MAX
    assert limits.use(Quota.PRODUCE, "u", short, 10, 0) == 0
    assert limits.use(Quota.PRODUCE, "u", short + "s", 10, 0) == 0
    assert len(limits) == 103
    kept = [name for _, *names in (*limits._buckets, *limits._limits) for name in names]
    assert max(map(len, kept)) == NAME_CHARS_MAX


# --- requests ------------------------------------------------------------------------------------


def limited(*changes: tuple[dict[str, str | None], str, float]) -> World:
    world = World()
    world.topic("t")
    for names, key, value in changes:
        entity = [(kind.replace("_", "-"), name) for kind, name in names.items()]
        world.host.apply(commands.AlterQuotas([commands.QuotaChange(entity, {key: value})]))
    return world


def produce(size: int = 10, acks: int = -1) -> ProduceRequest:
    data = [PartitionProduceData(0, memoryview(batch(size=size)))]
    return ProduceRequest(None, acks, 1_000, [TopicProduceData("t", bytes(16), data)])


def fetch(
    offset: int = 0, *, wait_ms: int = 1_000, epoch: int = -1, session: int = 0
) -> FetchRequest:
    poll = FetchPartition(0, fetch_offset=offset, partition_max_bytes=1 << 20)
    return FetchRequest(
        max_wait_ms=wait_ms, min_bytes=1, max_bytes=1 << 30, session_id=session,
        session_epoch=epoch, topics=[] if session else [FetchTopic("t", bytes(16), [poll])],
    )  # fmt: skip


def test_without_quotas_nothing_is_measured() -> None:
    """Measuring also stops when the last quota is removed."""
    world = limited()
    assert world.context.quotas is None
    client = world.client()
    assert client.ask(PRODUCE, 9, produce(100_000)).throttle_time_ms == 0
    names: list[tuple[str, str | None]] = [("user", None)]
    world.host.apply(commands.AlterQuotas([commands.QuotaChange(names, {"producer_byte_rate": 1})]))
    assert world.context.quotas is not None
    world.host.apply(
        commands.AlterQuotas([commands.QuotaChange(names, unset=["producer_byte_rate"])])
    )
    assert world.context.quotas is None
    assert client.ask(PRODUCE, 9, produce(100_000)).throttle_time_ms == 0


def test_producer_over_its_quota_is_answered_and_then_not_read() -> None:
    """KIP-219: the response with its throttle time is immediate.

    Later requests are read after it.
    """
    world = limited(({"user": "ANONYMOUS"}, "producer_byte_rate", 1_000))
    client = world.client()
    assert client.ask(PRODUCE, 9, produce(9_000)).throttle_time_ms == 0
    assert client.reading
    answer = client.ask(PRODUCE, 9, produce(5_000))
    assert 4_000 < answer.throttle_time_ms < 4_400
    assert answer.responses[0].partition_responses[0].error_code == ErrorCode.NONE
    assert not client.reading
    world.run(answer.throttle_time_ms - 100)
    assert not client.reading
    world.run(200)
    assert client.reading
    assert client.ask(PRODUCE, 9, produce(10)).throttle_time_ms == 0


def test_producer_that_gets_no_answers_has_to_wait_as_well() -> None:
    """Covers acks=0."""
    world = limited(({"client_id": "fake"}, "producer_byte_rate", 100))
    client = world.client()
    client.request(PRODUCE, 9, produce(3_000, acks=0))
    world.run()
    assert not client.reading
    assert not client.closed
    world.run(60_000)
    assert client.reading


def test_what_was_read_before_is_answered_and_holds_no_memory() -> None:
    """Each pipelined request is counted, so the wait grows."""
    world = limited(({"user": None}, "producer_byte_rate", 1_000))
    client = world.client()
    for _ in range(4):
        client.request(PRODUCE, 9, produce(10_000))
    world.run()
    waits = [answer.throttle_time_ms for answer in client.answers()]
    assert len(waits) == 4
    assert waits == sorted(waits)
    assert 30_000 < waits[-1] < 31_000
    assert world.context.requests.used == 0
    assert not client.reading


def test_connection_that_waits_is_not_taken_for_idle() -> None:
    """Applies for any duration: the client must not send meanwhile."""
    world = World(KafkaOptions(connection_idle_ms=5_000))
    world.topic("t")
    quota = commands.QuotaChange([("user", None)], {"producer_byte_rate": 100})
    world.host.apply(commands.AlterQuotas([quota]))
    client = world.client()
    client.ask(PRODUCE, 9, produce(4_000))
    world.run(25_000)
    assert not client.closed
    assert not client.reading
    client.session.connection_lost()
    world.run(60_000)


def test_consumer_over_its_quota_gets_nothing_at_once_and_no_more_than_a_burst() -> None:
    """It receives its throttle time and then continues at the same offset."""
    world = limited(({"user": None}, "consumer_byte_rate", 1_000))
    (stream,) = world.host.streams.values()
    for _ in range(4):
        fill(stream, size=6_000)
    client, other = world.client(), world.client()
    first = client.ask(FETCH, 11, fetch())
    assert 6_000 <= len(first.responses[0].partitions[0].records) <= 10_000
    assert first.throttle_time_ms == 0
    second = client.ask(FETCH, 11, fetch(1))
    assert len(second.responses[0].partitions[0].records) > 6_000
    assert 2_000 < second.throttle_time_ms < 2_400, "what it got was the last for a while"
    assert not client.reading
    third = other.ask(FETCH, 11, fetch(2))
    assert third.responses == [], "another connection of the same client"
    assert third.throttle_time_ms > 2_000
    world.run(3_000)
    assert client.reading
    assert client.ask(FETCH, 11, fetch(2)).responses


def test_session_loses_nothing_while_its_client_waits() -> None:
    """Data left out of a throttled response comes with the next one (KIP-227)."""
    world = limited(({"user": None}, "consumer_byte_rate", 1_000))
    (stream,) = world.host.streams.values()
    client = world.client()
    fill(stream, size=12_000)
    opened = client.ask(FETCH, 11, fetch(1, wait_ms=0, epoch=0))
    assert opened.session_id
    other = world.client()
    other.ask(FETCH, 11, fetch())
    fill(stream, size=10)
    throttled = client.ask(FETCH, 11, fetch(session=opened.session_id, epoch=1))
    assert (throttled.responses, throttled.session_id) == ([], opened.session_id)
    assert throttled.throttle_time_ms
    world.run(throttled.throttle_time_ms + 100)
    after = client.ask(FETCH, 11, fetch(session=opened.session_id, epoch=2))
    assert len(after.responses[0].partitions[0].records) > 0


def test_time_that_requests_take_counts_and_a_wait_for_it_is_short() -> None:
    """`request_percentage`: 100 is the whole event loop.

    A wait is at most one second, as in Kafka.
    """
    world = limited(({"user": None}, "request_percentage", 5))
    client = world.client()
    world.context.clock = SlowClock(world.clock)
    answer = client.ask(METADATA, 9, MetadataRequest(None))
    world.context.clock = world.clock
    assert 0 < answer.throttle_time_ms <= 1_000
    assert not client.reading
    world.run(1_100)
    assert client.reading


class SlowClock:
    """Clock that takes 400 ms to read."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._late_ns = 0
        self.wall_ms = clock.wall_ms
        self.call_later = clock.call_later
        self.call_soon = clock.call_soon

    def now_ns(self) -> int:
        self._late_ns += 400 * MS
        return self._clock.now_ns() + self._late_ns


def test_addresses_connect_as_often_as_they_may() -> None:
    """Other addresses are not delayed by one that connects too often."""
    world = limited(({"ip": "10.0.0.1"}, "connection_creation_rate", 2))
    quotas = world.context.quotas
    assert quotas is not None
    accepted = [
        world.frontend.accept(Silent(), "PLAINTEXT", ("10.0.0.1", port)) is not None
        for port in range(30)
    ]
    assert sum(accepted) == 2 * BURST_SECONDS
    assert quotas.connections_refused == 10
    assert world.frontend.accept(Silent(), "PLAINTEXT", ("10.0.0.2", 1)) is not None
    world.run(1_000)
    again = [
        world.frontend.accept(Silent(), "PLAINTEXT", ("10.0.0.1", port)) is not None
        for port in range(5)
    ]
    assert sum(again) == 2


class Silent:
    """Transport that nothing is sent over."""

    def send(self, buffers: Any) -> list[Any]:
        return []

    def close(self, rest: Any) -> None: ...

    def abort(self) -> None: ...

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


# --- controller mutations
# --------------------------------------------------------------------------


def topic(name: str) -> CreatableTopic:
    return CreatableTopic(name, 1, 1)


def create(*names: str, partitions: int = 10) -> CreateTopicsRequest:
    return CreateTopicsRequest([CreatableTopic(name, partitions, 1) for name in names], 1_000)


def test_changes_of_topics_beyond_the_quota_are_refused_by_newer_versions() -> None:
    """KIP-599: earlier changes of the request are applied, and the response says when to retry."""
    world = limited(({"user": None}, "controller_mutation_rate", 2))
    client = world.client()
    answer = client.ask(19, 7, create("a", "b", "c", "d"), 500)
    told = {topic.name: topic.error_code for topic in answer.topics}
    refused = ErrorCode.THROTTLING_QUOTA_EXCEEDED
    assert told == {"a": 0, "b": 0, "c": 0, "d": refused}
    assert answer.throttle_time_ms == 5_000
    assert "d" not in world.host.catalog.topics
    assert not client.reading
    other = world.client()
    answer = other.ask(37, 3, CreatePartitionsRequest([CreatePartitionsTopic("a", 11)], 1_000), 500)
    assert answer.results[0].error_code == refused
    answer = world.client().ask(20, 6, DeleteTopicsRequest([DeleteTopicState("a")], [], 1_000), 500)
    assert answer.responses[0].error_code == refused
    assert "a" in world.host.catalog.topics
    world.run(6_000)
    answer = client.ask(20, 6, DeleteTopicsRequest([DeleteTopicState("a")], [], 1_000), 500)
    assert answer.responses[0].error_code == 0


def test_changes_of_topics_by_older_versions_are_done_and_waited_for() -> None:
    """These versions have no error code for it."""
    world = limited(({"user": None}, "controller_mutation_rate", 2))
    client = world.client()
    answer = client.ask(19, 5, create("a", "b", "c", "d"), 500)
    assert {topic.error_code for topic in answer.topics} == {0}
    assert answer.throttle_time_ms == 10_000
    assert not client.reading


@pytest.mark.parametrize("version", [5, 7])
def test_changes_that_are_not_made_do_not_count(version: int) -> None:
    """KIP-599: a failed or validated change does not throttle its client.

    Covers topics that exist, are named twice, or have a bad setting, too many replicas or no
    partition, and requests that only validate. The client keeps its whole quota for a topic that is
    created.
    """
    world = limited(({"user": None}, "controller_mutation_rate", 1))
    client = world.client()
    made = CreateTopicsRequest([topic("a")], 1_000)
    assert client.ask(19, version, made, 500).topics[0].error_code == 0
    bad = [
        replace(topic("bad-setting"), configs=[CreatableTopicConfig("retention.ms", "soon")]),
        replace(topic("bad-replicas"), replication_factor=99),
        replace(topic("bad-count"), num_partitions=0),
        replace(topic("bad-count-2"), num_partitions=-5),
        replace(topic("bad/name"), num_partitions=1_000),
        topic("a"),
        topic("twice"),
        topic("twice"),
    ]
    for _ in range(20):
        answer = client.ask(19, version, CreateTopicsRequest(bad, 1_000), 500)
        assert 0 not in {one.error_code for one in answer.topics}
        assert ErrorCode.THROTTLING_QUOTA_EXCEEDED not in {one.error_code for one in answer.topics}
        assert answer.throttle_time_ms == 0
        request = create("only-validated")
        request.validate_only = True
        assert client.ask(19, version, request, 500).topics[0].error_code == 0
    assert client.reading
    world.run(1_000)  # for the one that was created
    many = replace(topic("many"), num_partitions=10)
    answer = client.ask(19, version, CreateTopicsRequest([many], 1_000), 500)
    assert answer.topics[0].error_code == 0
    assert answer.throttle_time_ms == 0


def test_deletions_and_growth_that_fail_do_not_count() -> None:
    """Covers names and ids, in older and newer versions."""
    world = limited(({"user": None}, "controller_mutation_rate", 1))
    client = world.client()
    made = CreateTopicsRequest([topic("a")], 1_000)
    assert client.ask(19, 7, made, 500).topics[0].error_code == 0
    for _ in range(20):
        unknown = DeleteTopicsRequest(
            [DeleteTopicState("none"), DeleteTopicState(None, b"i" * 16)], [], 1_000
        )
        answer = client.ask(20, 6, unknown, 500)
        assert 0 not in {one.error_code for one in answer.responses}
        assert answer.throttle_time_ms == 0
        answer = client.ask(20, 4, DeleteTopicsRequest([], ["none"], 1_000), 500)
        assert answer.throttle_time_ms == 0
        assignment = CreatePartitionsAssignment([77])
        for asked in (
            CreatePartitionsTopic("a", 1, None),
            CreatePartitionsTopic("none", 50, None),
            CreatePartitionsTopic("a", 5, [assignment] * 4),
        ):
            answer = client.ask(37, 3, CreatePartitionsRequest([asked], 1_000), 500)
            assert answer.results[0].error_code not in (0, ErrorCode.THROTTLING_QUOTA_EXCEEDED)
            assert answer.throttle_time_ms == 0
        grown = CreatePartitionsRequest([CreatePartitionsTopic("a", 50, None)], 1_000, True)
        assert client.ask(37, 3, grown, 500).results[0].error_code == 0
    assert client.reading


def test_topics_that_are_made_when_they_are_asked_for_count() -> None:
    """A topic beyond the quota is not created, and its client retries."""
    world = limited(({"user": None}, "controller_mutation_rate", 0.1))
    client = world.client()
    names = ("new", "newer", "newest")
    request = MetadataRequest([MetadataRequestTopic(name=name) for name in names], True)
    answer = client.ask(METADATA, 9, request, 500)
    told = {one.name: one.error_code for one in answer.topics}
    refused = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert sorted(told.values()) == [0, 0, refused]
    assert answer.throttle_time_ms == 10_000
    assert not client.reading
    (left,) = (name for name, code in told.items() if code)
    assert left not in world.host.catalog.topics
    world.run(11_000)
    request = MetadataRequest([MetadataRequestTopic(name=left)], True)
    assert client.ask(METADATA, 9, request, 500).topics[0].error_code == 0


def test_what_is_wrong_is_told_to_a_client_that_has_nothing_left() -> None:
    """The client receives that error rather than a throttle time."""
    world = limited(({"user": None}, "controller_mutation_rate", 1))
    client = world.client()
    many = replace(topic("many"), num_partitions=11)
    assert client.ask(19, 7, CreateTopicsRequest([many], 1_000), 500).topics[0].error_code == 0
    answer = client.ask(19, 7, create("many", "more"), 500)
    told = {one.name: one.error_code for one in answer.topics}
    assert told == {
        "many": ErrorCode.TOPIC_ALREADY_EXISTS,
        "more": ErrorCode.THROTTLING_QUOTA_EXCEEDED,
    }


# --- the APIs ------------------------------------------------------------------------------------


def alter(*entries: EntryData, validate: bool = False) -> AlterClientQuotasRequest:
    return AlterClientQuotasRequest(list(entries), validate)


def entry(names: dict[str, str | None], *ops: OpData) -> EntryData:
    return EntryData([EntityData(kind, name) for kind, name in names.items()], list(ops))


def described(client: Client, *components: ComponentData, strict: bool = False) -> dict[Any, Any]:
    answer = client.ask(48, 1, DescribeClientQuotasRequest(list(components), strict))
    assert answer.error_code == ErrorCode.NONE
    return {
        tuple((part.entity_type, part.entity_name) for part in found.entity): {
            value.key: value.value for value in found.values
        }
        for found in answer.entries
    }


@pytest.mark.parametrize("version", [0, 1])
def test_quotas_are_altered_and_described(version: int) -> None:
    """Each entity has its own response. A duplicate or invalid entity is refused."""
    client = World().client()
    rate = OpData("producer_byte_rate", 1_024.0)
    answer = client.ask(
        49,
        version,
        alter(
            entry({"user": "u"}, rate, OpData("request_percentage", 0.5)),
            entry({"user": None}, rate),
            entry({"user": "u", "client-id": None}, rate),
            entry({"ip": "10.0.0.1"}, OpData("connection_creation_rate", 5.0)),
            entry({"user": "twice"}, rate),
            entry({"user": "twice"}, OpData("consumer_byte_rate", 1.0)),
            entry({"user": "v"}, rate, rate),
            entry({"user": "w"}, OpData("nonsense", 1.0)),
        ),
    )
    invalid = ErrorCode.INVALID_REQUEST
    assert [one.error_code for one in answer.entries] == [0, 0, 0, 0, *[invalid] * 4]
    assert described(client, ComponentData("user", 0, "u"), strict=True) == {
        (("user", "u"),): {"producer_byte_rate": 1_024.0, "request_percentage": 0.5}
    }
    assert len(described(client, ComponentData("user", 0, "u"))) == 2
    assert len(described(client, ComponentData("user", 1, None))) == 1
    assert len(described(client, ComponentData("user", 2, None))) == 3
    assert len(described(client)) == 4
    assert list(described(client, ComponentData("ip", 2, None))) == [(("ip", "10.0.0.1"),)]
    client.ask(
        49,
        version,
        alter(entry({"user": "u"}, OpData("producer_byte_rate", 0.0, True)), validate=True),
    )
    assert len(described(client)) == 4
    client.ask(49, version, alter(entry({"user": None}, OpData("producer_byte_rate", 0.0, True))))
    assert len(described(client)) == 3


@pytest.mark.parametrize(
    ("components", "error"),
    [
        ([ComponentData("", 0, "u")], ErrorCode.INVALID_REQUEST),
        ([ComponentData("group", 0, "u")], ErrorCode.UNSUPPORTED_VERSION),
        ([ComponentData("user", 0, None)], ErrorCode.INVALID_REQUEST),
        ([ComponentData("user", 1, "u")], ErrorCode.INVALID_REQUEST),
        ([ComponentData("user", 3, None)], ErrorCode.INVALID_REQUEST),
        (
            [ComponentData("user", 0, "u"), ComponentData("user", 2, None)],
            ErrorCode.INVALID_REQUEST,
        ),
        ([ComponentData("user", 2, None), ComponentData("ip", 2, None)], ErrorCode.INVALID_REQUEST),
    ],
)
def test_filters_that_make_no_sense_are_refused(
    components: list[ComponentData], error: ErrorCode
) -> None:
    """Same rules as Kafka's."""
    answer = World().client().ask(48, 1, DescribeClientQuotasRequest(components))
    assert answer.error_code == error
    assert answer.entries is None


def test_quota_is_the_users_whoever_connects_from_where() -> None:
    """The principal's name counts, on any connection."""
    world = limited(({"user": "alice"}, "producer_byte_rate", 100))
    one, two, bob = world.client(), world.client(("10.0.0.9", 1)), world.client()
    for client, name in ((one, "alice"), (two, "alice"), (bob, "bob")):
        client.session.info.principal = Principal(name)
    one.ask(PRODUCE, 9, produce(2_000))
    assert two.ask(PRODUCE, 9, produce(1)).throttle_time_ms > 0
    assert bob.ask(PRODUCE, 9, produce(2_000)).throttle_time_ms == 0
