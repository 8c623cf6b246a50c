"""Client metrics (KIP-714): requested metrics, push interval, parsing and retention."""

from __future__ import annotations

from struct import pack
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.kafka.fake_host import Client, World
from vdl.errors import ErrorCode
from vdl.kafka.configs.options import KafkaOptions
from vdl.kafka.limits.pattern_work import PatternWork
from vdl.kafka.telemetry import client_metrics, otlp, push_reader
from vdl.kafka.telemetry.client_metrics import ALL_METRICS, ClientMetrics
from vdl.kafka.telemetry.otlp import BadMetrics, Point, read_points
from vdl.kafka.telemetry.push_reader import PushReader
from vdl.kafka.wire.api_versions import ApiVersionsRequest
from vdl.kafka.wire.get_telemetry_subscriptions import GetTelemetrySubscriptionsRequest
from vdl.kafka.wire.push_telemetry import PushTelemetryRequest
from vdl.records.compression import Compression, compress
from vdl.state import commands
from vdl.state.resource_configs import ResourceType

GET, PUSH = 71, 72
INSTANCE = b"i" * 16


# --- contents of a push -------------------------------------------------------------------------


def varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def part(number: int, content: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(content)) + content


def point(value: int | float, **attributes: str) -> bytes:
    number = 6 if isinstance(value, int) else 4
    content = varint(number << 3 | 1) + pack("<q" if isinstance(value, int) else "<d", value)
    for key, text in attributes.items():
        content += part(7, part(1, key.encode()) + part(2, part(1, text.encode())))
    return part(1, varint(3 << 3 | 1) + bytes(8) + content)


def counter(name: str, *points: bytes, temporality: int = 1) -> bytes:
    body = b"".join(points) + b"\x10" + varint(temporality) + b"\x18\x01"
    return part(2, part(1, name.encode()) + part(7, body))


def gauge(name: str, *points: bytes) -> bytes:
    return part(2, part(1, name.encode()) + part(5, b"".join(points)))


def pushed(*metrics: bytes) -> bytes:
    return part(1, part(1, b"") + part(2, part(1, b"scope") + b"".join(metrics)))


def test_points_are_read_with_their_kind_and_attributes() -> None:
    """Monotonic sums are counters, and deltas if marked so. Other points are shown as they are."""
    data = pushed(
        counter("a.total", point(5), point(2.5, node="2", zone="x")),
        counter("a.all", point(7), temporality=2),
        gauge("b", point(-1)),
        part(2, part(1, b"histogram") + part(9, b"\x0a\x00")),
    )
    assert read_points(memoryview(data)) == [
        Point("a.total", "", 5.0, is_counter=True, adds=True),
        Point("a.total", "node=2,zone=x", 2.5, is_counter=True, adds=True),
        Point("a.all", "", 7.0, is_counter=True, adds=False),
        Point("b", "", -1.0, is_counter=False, adds=False),
    ]


def test_points_of_a_push_are_bounded() -> None:
    """Points beyond the limit are not read; a long name is truncated."""
    data = pushed(*[gauge("x" * 1_000, point(1), point(2))] * otlp.POINTS_MAX)
    points = read_points(memoryview(data))
    assert len(points) == otlp.POINTS_MAX
    assert {len(one.name) for one in points} == {otlp.TEXT_CHARS_MAX}


@pytest.mark.parametrize("fields", [b"\x08\x01", b"\x12\x00", part(7, part(1, b""))])
def test_fields_of_a_push_are_bounded(fields: bytes) -> None:
    """Holds also without points: a field costs as much, and millions fit.

    Points before the limit are read.
    """
    metric = part(2, part(1, b"a") + fields * 2 * otlp.FIELDS_MAX)
    data = memoryview(pushed(gauge("first", point(1)), metric, gauge("last", point(1))))
    varints = 0

    def counted(data: memoryview, position: int) -> tuple[int, int]:
        nonlocal varints
        varints += 1
        return varint_of(data, position)

    varint_of = otlp._varint
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(otlp, "_varint", counted)
        points = read_points(data)
    assert [one.name for one in points] == ["first"]
    assert varints <= 2 * otlp.FIELDS_MAX


@settings(max_examples=300, deadline=None)
@given(cut=st.integers(0, 200), position=st.integers(0, 200), value=st.integers(0, 255))
def test_damaged_metrics_are_read_or_refused(cut: int, position: int, value: int) -> None:
    """No other exception is raised, for any bytes."""
    data = bytearray(pushed(counter("a", point(5, k="v")), gauge("b", point(1.5), point(2))))
    data[position % len(data)] = value
    try:
        read_points(memoryview(data[: len(data) - cut % len(data)]))
    except BadMetrics:
        pass


# --- subscriptions and pushes ---------------------------------------------------------------------


def subscribe(world: World, name: str = "s", **configs: str) -> None:
    settings_of = {key.replace("_", "."): value for key, value in configs.items()}
    change = commands.ConfigChange(name, settings_of, replaces=True)
    world.host.apply(commands.AlterResourceConfigs([(ResourceType.CLIENT_METRICS, change)]))


def ask(client: Client, instance_id: bytes = INSTANCE) -> Any:
    return client.ask(GET, 0, GetTelemetrySubscriptionsRequest(instance_id))


def push(
    client: Client,
    subscription_id: int,
    data: bytes = b"",
    *,
    instance_id: bytes = INSTANCE,
    last: bool = False,
    codec: int = 0,
) -> int:
    request = PushTelemetryRequest(instance_id, subscription_id, last, codec, data)
    return int(client.ask(PUSH, 0, request).error_code)


def test_client_without_subscription_is_asked_for_nothing() -> None:
    """It gets an instance id, and requests its subscriptions again after five minutes."""
    answer = ask(World().client(), bytes(16))
    assert answer.error_code == ErrorCode.NONE
    assert answer.client_instance_id not in (bytes(16), INSTANCE)
    assert (answer.requested_metrics, answer.push_interval_ms) == ([], 300_000)
    assert answer.telemetry_max_bytes == KafkaOptions().telemetry_max_bytes
    assert answer.delta_temporality


def test_client_is_asked_for_what_all_its_subscriptions_want() -> None:
    """A subscription applies if all its patterns match whole client values.

    The shortest interval counts.
    """
    world = World()
    subscribe(world, "a", metrics="a.,b.", interval_ms="2000")
    subscribe(world, "b", metrics="b.,c.", interval_ms="1000", match="client_id=fa.*")
    subscribe(world, "c", metrics="d.", interval_ms="100", match="client_id=fa")
    subscribe(world, "d", metrics="e.", match="client_id=fake,client_software_name=none")
    subscribe(world, "e", metrics="f.", match="client_source_address=10[.]0[.]0[.][0-9]+")
    subscribe(world, "f", interval_ms="100")
    client = world.client()
    client.ask(18, 3, ApiVersionsRequest("franz", "1.0"))
    answer = ask(client)
    assert (answer.requested_metrics, answer.push_interval_ms) == (["a.", "b.", "c.", "f."], 1_000)
    subscribe(world, "d", metrics="*", match="client_software_name=fr.nz")
    world.run(1_000)
    assert ask(client).requested_metrics == [ALL_METRICS]


def test_subscriptions_are_chosen_off_the_loop_once_for_a_client() -> None:
    """Administrators choose the patterns and clients the values, and either may be long."""
    world, jobs = World(), []
    work = PatternWork(lambda job, done: jobs.append((job, done)), world.clock)
    world.context.pattern_work = work
    subscribe(world, metrics="a.", match="client_id=f.*,client_software_name=.*", interval_ms="100")
    client = world.client()
    client.request(GET, 0, GetTelemetrySubscriptionsRequest(INSTANCE))
    assert client.answers() == []
    assert work.compiles == 0
    job, done = jobs.pop()
    done(job())
    world.run(10)
    (answer,) = client.answers()
    assert answer.requested_metrics == ["a."]
    world.run(1_000)
    assert ask(client).requested_metrics == ["a."]
    assert push(client, answer.subscription_id) == ErrorCode.NONE
    assert (jobs, work.compiles, work.matches) == ([], 2, 2)


def test_pattern_that_an_earlier_version_took_chooses_no_client() -> None:
    """The pattern is in the catalog but does not compile here.

    Other subscriptions are unaffected.
    """
    world = World()
    subscribe(world, "a", metrics="a.", match=r"client_id=\pL{1000}")
    subscribe(world, "b", metrics="b.", match="client_id=(")
    subscribe(world, "c", metrics="c.", match="client_id=f.*")
    assert ask(world.client()).requested_metrics == ["c."]


def test_every_server_asks_for_the_same_under_the_same_id() -> None:
    """A client may push to a server from which it never requested subscriptions."""
    ids = set()
    for _ in range(2):
        world = World()
        subscribe(world, metrics="a.", interval_ms="1000")
        ids.add(ask(world.client()).subscription_id)
    (subscription_id,) = ids
    world = World()
    subscribe(world, metrics="a.", interval_ms="1000")
    assert push(world.client(), subscription_id) == ErrorCode.NONE


@pytest.mark.parametrize("codec", Compression)
def test_pushed_metrics_are_summed_up(codec: Compression) -> None:
    """Counters add the growth since the last push, gauges are replaced."""
    world = World()
    subscribe(world, metrics="*", interval_ms="100")
    client = world.client()
    subscription_id = ask(client).subscription_id
    data = compress(codec, pushed(counter("c", point(5)), gauge("g", point(5))))
    for _ in range(3):
        assert push(client, subscription_id, data, codec=codec) == ErrorCode.NONE
        world.run(100)
    found = list(world.context.client_metrics.series(world.clock.now_ns()))
    assert found == [("c", "fake", "", 15.0, True), ("g", "fake", "", 5.0, False)]
    assert world.context.client_metrics.pushes == 3


def test_push_is_refused_as_kafka_refuses_it() -> None:
    """Covers early, late, large and malformed pushes.

    Too soon, under another id, after the last one, too large, with an unknown codec, or malformed.
    """
    world = World(KafkaOptions(telemetry_max_bytes=100))
    subscribe(world, metrics="*", interval_ms="1000")
    client = world.client()
    own = ask(client).subscription_id
    assert push(client, own, instance_id=bytes(16)) == ErrorCode.INVALID_REQUEST
    assert push(client, own + 1) == ErrorCode.UNKNOWN_SUBSCRIPTION_ID
    for data, codec, error in (
        (bytes(101), 0, ErrorCode.TELEMETRY_TOO_LARGE),
        (b"", 9, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
        (b"\xff\xff", 0, ErrorCode.INVALID_RECORD),
        (b"no zstd", Compression.ZSTD, ErrorCode.INVALID_RECORD),
        (b"", 0, ErrorCode.NONE),
    ):
        assert push(client, own, data, codec=codec) == error
        assert push(client, own) == ErrorCode.THROTTLING_QUOTA_EXCEEDED
        world.run(1_000)
    assert push(client, own) == ErrorCode.NONE
    assert push(client, own, last=True) == ErrorCode.NONE, "the last one may be early"
    world.run(2_000)
    assert push(client, own) == ErrorCode.INVALID_REQUEST


def test_connection_pushes_once_in_an_interval_whatever_ids_it_names() -> None:
    """One final push is also accepted: a client has one instance."""
    world = World()
    subscribe(world, metrics="*", interval_ms="1000")
    client = world.client()
    own = ask(client).subscription_id
    assert push(client, own) == ErrorCode.NONE
    throttled = ErrorCode.THROTTLING_QUOTA_EXCEEDED
    for number in range(5):
        assert push(client, own, instance_id=bytes([number]) * 15 + b"x") == throttled
    assert push(client, own, instance_id=b"y" * 16, last=True) == ErrorCode.NONE
    assert push(client, own, instance_id=b"z" * 16, last=True) == throttled
    world.run(1_000)
    assert push(client, own, instance_id=b"w" * 16) == ErrorCode.NONE


def test_push_is_not_read_where_nothing_is_asked_for() -> None:
    world = World()
    client = world.client()
    own = ask(client).subscription_id
    assert push(client, own, b"\xff\xff") == ErrorCode.NONE
    assert world.context.push_reader.read_total == 0


def test_pushes_take_one_thread_in_turns() -> None:
    """Producers' batches use the same threads, so one client's pushes never take all of them."""
    jobs: list[tuple[Any, Any]] = []
    reader = PushReader(lambda job, done: jobs.append((job, done)))
    data, ended = pushed(gauge("a", point(1))), []

    def read(asker: str) -> bool:
        return reader.read(asker, Compression.NONE, data, lambda _: ended.append(asker))

    taken = [read("eve") for _ in range(10)]
    assert taken == [True] * (1 + push_reader.WAITING_OF_ONE_MAX) + [False] * 5
    assert read("alice")
    while jobs:
        assert len(jobs) == 1
        job, done = jobs.pop()
        done(job())
    assert ended == ["eve", "eve", "alice", "eve", "eve", "eve"]
    others = 0
    while read(f"other{others}"):
        others += 1
    assert others == 1 + push_reader.WAITING_MAX


def test_decompression_of_a_push_is_bounded() -> None:
    """A megabyte of zeros is a few bytes of zstd."""
    world = World()
    subscribe(world, metrics="*", interval_ms="1000")
    client = world.client()
    own = ask(client).subscription_id
    bomb = compress(Compression.ZSTD, bytes(200 << 20))
    assert len(bomb) < 1 << 20
    assert push(client, own, bomb, codec=Compression.ZSTD) == ErrorCode.INVALID_RECORD


def test_client_asks_no_more_often_than_it_pushes() -> None:
    """Except after notification of a changed subscription."""
    world = World()
    subscribe(world, metrics="*", interval_ms="10000")
    client = world.client()
    own = ask(client).subscription_id
    assert ask(client).error_code == ErrorCode.THROTTLING_QUOTA_EXCEEDED
    subscribe(world, metrics="a.", interval_ms="10000")
    assert push(client, own) == ErrorCode.UNKNOWN_SUBSCRIPTION_ID
    changed = ask(client)
    assert changed.error_code == ErrorCode.NONE
    assert changed.requested_metrics == ["a."]
    assert push(client, changed.subscription_id) == ErrorCode.NONE
    assert ask(client).error_code == ErrorCode.THROTTLING_QUOTA_EXCEEDED


def test_clients_that_are_remembered_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client that was silent for longest is forgotten, and may then request at once."""
    monkeypatch.setattr(client_metrics, "CLIENTS_MAX", 3)
    world = World()
    client = world.client()
    for number in (1, 2, 3):
        assert ask(client, bytes([number]) * 16).error_code == ErrorCode.NONE
    ask(client, b"\x01" * 16)
    assert ask(client, b"\x04" * 16).error_code == ErrorCode.NONE
    assert len(world.context.client_metrics) == 3
    assert ask(client, b"\x01" * 16).error_code == ErrorCode.THROTTLING_QUOTA_EXCEEDED
    assert ask(client, b"\x02" * 16).error_code == ErrorCode.NONE


def test_numbers_that_are_kept_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bounds are for one client and for all. Values that are already kept continue."""
    monkeypatch.setattr(client_metrics, "SERIES_MAX", 5)
    monkeypatch.setattr(client_metrics, "SERIES_OF_A_CLIENT_MAX", 3)
    kept = ClientMetrics()

    def points(count: int) -> list[Point]:
        return [Point(f"m{number}", "", 1.0, is_counter=True, adds=True) for number in range(count)]

    def take(client: str, count: int, now_ns: int = 0) -> None:
        kept.take(client, points(count), now_ns=now_ns, interval_ms=60_000)

    take("one", 4)
    take("two", 4)
    take("one", 4)
    found = [(client, name, value) for name, client, _, value, _ in kept.series(0)]
    assert found == [
        ("one", "m0", 2.0), ("one", "m1", 2.0), ("one", "m2", 2.0), ("two", "m0", 1.0),
        ("two", "m1", 1.0),
    ]  # fmt: skip
    assert (kept.points, kept.points_dropped) == (8, 4)
    take("three", 1)
    assert len(list(kept.series(0))) == 5
    silent_ns = 3 * 60_000_000_000
    take("two", 2, silent_ns)
    assert {client for _, client, _, _, _ in kept.series(silent_ns + 1)} == {"two"}
    take("three", 3, silent_ns + 1)
    assert len(list(kept.series(silent_ns + 1))) == 5
