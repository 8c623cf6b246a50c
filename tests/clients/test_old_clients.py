"""Clients with the protocols of Kafka 0.8 to 0.10, beside current ones.

They support no headers, and before 0.10 no timestamps. All other fields of a record are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from tests.clients.clients import CLIENTS, OLD_CLIENTS, Client, is_here
from tests.clients.conftest import Drivers
from tests.clients.driver import Record
from tests.clients.raw import RawConnection, produce_request
from tests.clients.scenarios import COMPRESSIONS, assert_quiet, numbered, numbers_of, read, varied
from tests.clients.topics import Topics
from tests.unit.kafka_wire.message_sets import changed, message, wrapped
from vdl.errors import ErrorCode
from vdl.kafka.wire import (
    create_topics,
    delete_topics,
    find_coordinator,
    list_offsets,
    offset_commit,
    offset_fetch,
    produce,
)

OLD_COMPRESSIONS = COMPRESSIONS[:-1]
"""zstd came with Kafka 2.1."""
TODAY = CLIENTS[:2]
"""Current clients in Python, which every machine has."""
NO_TIMESTAMP = -1
LIBRDKAFKA_NO_TIMESTAMP = 0
"""Value that confluent-kafka returns for no timestamp."""


def old_client_parameters(*, with_groups: bool = False) -> list[object]:
    """Return the clients as parameters.

    `with_groups`: those that can be members of consumer groups.
    """
    return [
        pytest.param(
            client,
            id=client.name,
            marks=[getattr(pytest.mark, client.needs)] if client.needs else [],
        )
        for client in OLD_CLIENTS
        if not with_groups or client.name.endswith(("-0.9", "python-0.10"))
    ]


def has_timestamps(client: Client) -> bool:
    return client.name.endswith("-0.10") or client in TODAY


def knows(client: Client, compression: str) -> bool:
    """Return False for LZ4 with sarama before 0.10, where frames had another checksum."""
    return compression != "lz4" or client.name != "sarama-0.8.2"


def as_seen_by(client: Client, record: Record) -> Record:
    """Return a record as a client returns it."""
    if client in TODAY:
        return record
    if has_timestamps(client):
        return replace(record, headers=())
    unknown = LIBRDKAFKA_NO_TIMESTAMP if client.name.startswith("librdkafka") else NO_TIMESTAMP
    return replace(record, headers=(), timestamp=unknown)


def as_stored(client: Client, record: Record) -> Record:
    """Return the stored form of a record that a client produced."""
    if client in TODAY:
        return record
    timestamp = record.timestamp if has_timestamps(client) else NO_TIMESTAMP
    return replace(record, headers=(), timestamp=timestamp)


def without_timestamps(records: list[tuple[int, Record]]) -> list[tuple[int, Record]]:
    """Replace missing timestamps, which clients return as -1 or 0."""
    return [
        (offset, replace(record, timestamp=max(0, record.timestamp))) for offset, record in records
    ]


@pytest.fixture(scope="module", params=OLD_COMPRESSIONS)
def of_all_times(request: pytest.FixtureRequest, drivers: Drivers, topics: Topics) -> list[Record]:
    """Return the stored records of a partition that clients of all generations have written.

    They are in offset order and have one compression.
    """
    compression: str = request.param
    topic = topics.create(f"of-all-times-{compression}")
    stored: list[Record] = []
    for seed, writer in enumerate([*OLD_CLIENTS, *TODAY]):
        if not is_here(writer) or not knows(writer, compression):
            continue
        records = varied(topic, seed=seed + 1, has_null_header=writer.sends_null_headers)
        if writer in OLD_CLIENTS:
            records = [replace(record, headers=()) for record in records]
        driver = drivers.of(writer, 1)[0]
        offsets = driver.produce(records, compression=compression, batch_bytes=30_000)
        assert offsets == [(0, len(stored) + n) for n in range(len(records))], writer.name
        stored += [as_stored(writer, record) for record in records]
    return stored


@pytest.mark.takes_turns(parts=2)
@pytest.mark.parametrize(
    "reader", [*old_client_parameters(), *(pytest.param(one, id=one.name) for one in TODAY)]
)
def test_records_of_all_generations_are_read_by_each(
    reader: Client, drivers: Drivers, of_all_times: list[Record], request: pytest.FixtureRequest
) -> None:
    """Keys, values, offsets, and timestamps where both ends support them."""
    if not knows(reader, request.node.callspec.params["of_all_times"]):
        pytest.skip("a compression that this client does not know")
    driver = drivers.of(reader, 1)[0]
    driver.open()
    driver.ask("assign", partitions=[(of_all_times[0].topic, 0)])
    found = read(driver, len(of_all_times))
    expected = [(n, as_seen_by(reader, record)) for n, record in enumerate(of_all_times)]
    assert without_timestamps(found) == without_timestamps(expected)
    driver.ask("close")


@pytest.mark.parametrize("old", old_client_parameters())
def test_positions_of_an_old_client_are_kept(old: Client, drivers: Drivers, topics: Topics) -> None:
    """Offsets committed by one process are found by the next, and by a current client."""
    topic = topics.create("positions")
    first, second = drivers.of(old, 2)
    first.produce(numbered(topic, range(20)))
    group = f"group-{topic}"
    first.open(group=group)
    first.ask("assign", partitions=[(topic, 0)])
    assert numbers_of(read(first, 20)) == list(range(20))
    first.ask("commit")
    first.ask("close")
    first.produce(numbered(topic, range(20, 25)))
    second.open(group=group)
    assert second.committed([(topic, 0)]) == [20]
    second.ask("assign", partitions=[(topic, 0)])
    found = [number for number in numbers_of(read(second, 5)) if number >= 20]
    assert found == list(range(20, 25))
    second.ask("close")
    today = drivers.of(CLIENTS[0], 1)[0]
    today.open(group=group)
    assert today.committed([(topic, 0)]) == [20]
    today.ask("close")


@pytest.mark.parametrize("old", old_client_parameters(with_groups=True))
def test_old_client_and_one_of_today_share_a_group(
    old: Client, drivers: Drivers, topics: Topics
) -> None:
    """The old one leaves, the other continues at its positions."""
    topic = topics.create("shared", partitions=2)
    (member,) = drivers.of(old, 1)
    today = drivers.of(CLIENTS[0], 1)[0]
    for partition in (0, 1):
        member.produce(numbered(topic, range(10), partition=partition))
    member.open(group=f"group-{topic}")
    member.ask("subscribe", topics=[topic])
    assert sorted(numbers_of(read(member, 20))) == sorted([*range(10)] * 2)
    member.ask("commit")
    member.ask("close")
    today.open(group=f"group-{topic}")
    today.ask("subscribe", topics=[topic])
    today.produce(numbered(topic, range(50, 53)))
    assert numbers_of(read(today, 3)) == [50, 51, 52]
    assert_quiet(today)
    today.ask("close")


# --- versions that no client here sends, and message sets that none should ------------------------


@pytest.fixture
def connect(topics: Topics) -> Iterator[Callable[[int], RawConnection]]:
    """Yield a function that connects to a server by id."""
    made: list[RawConnection] = []

    def to(server_id: int) -> RawConnection:
        made.append(RawConnection(topics.address(server_id)))
        return made[-1]

    yield to
    for connection in made:
        connection.close()


BAD_SETS = {
    "crc": (ErrorCode.CORRUPT_MESSAGE, changed(message(1, b"value"), 12, b"\0\0\0\0")),
    "negative size": (ErrorCode.CORRUPT_MESSAGE, changed(message(0, b"value"), 8, b"\xff" * 4)),
    "cut off": (ErrorCode.INVALID_RECORD, message(1, b"value")[:-1]),
    "nested": (ErrorCode.INVALID_RECORD, wrapped(1, wrapped(1, message(1, b"value")))),
    "no gzip": (ErrorCode.INVALID_RECORD, message(1, b"value", attributes=1)),
    "zstd": (ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, message(1, b"value", attributes=4)),
    "bomb": (ErrorCode.INVALID_RECORD, wrapped(1, bytes(64 << 20))),
}


@pytest.mark.parametrize("name", BAD_SETS)
def test_set_that_is_not_sound_is_refused_and_the_next_one_taken(
    name: str, topics: Topics, connect: Callable[[int], RawConnection]
) -> None:
    """An invalid message set is refused as by Kafka.

    Nothing of it is written, and the next one is accepted.
    """
    topic = topics.create("bad-set")
    connection = connect(topics.leader(topic))
    for data, code, offset in (
        (BAD_SETS[name][1], BAD_SETS[name][0], -1),
        (message(1, b"a"), 0, 0),
    ):
        request = produce_request(topic, data)
        answer = connection.ask(request, key=produce.API_KEY, version=2)
        (partition,) = answer.responses[0].partition_responses
        assert (partition.error_code, partition.base_offset) == (code, offset)


def test_list_offsets_of_version_0(topics: Topics, connect: Callable[[int], RawConnection]) -> None:
    """Both ends, and the start of the only segment."""
    topic = topics.create("list-offsets")
    connection = connect(topics.leader(topic))
    for _ in range(3):
        request = produce_request(topic, message(0, b"a") + message(0, b"b"))
        connection.ask(request, key=produce.API_KEY, version=0)
    for timestamp, count, expected in ((-1, 1, [6]), (-1, 9, [6, 0]), (-2, 9, [0])):
        asked = list_offsets.ListOffsetsPartition(0, timestamp=timestamp, max_num_offsets=count)
        request = list_offsets.ListOffsetsRequest(
            replica_id=-1, topics=[list_offsets.ListOffsetsTopic(topic, [asked])]
        )
        answer = connection.ask(request, key=list_offsets.API_KEY, version=0)
        (partition,) = answer.topics[0].partitions
        assert (partition.error_code, partition.old_style_offsets) == (0, expected)


def test_positions_of_version_0_are_kept_by_the_coordinator(
    topics: Topics, connect: Callable[[int], RawConnection]
) -> None:
    """A partition without a committed offset is unknown.

    A server that does not coordinate the group reports that.
    """
    topic = topics.create("old-positions", partitions=2)
    group = f"group-{topic}"
    key = find_coordinator.API_KEY
    request = find_coordinator.FindCoordinatorRequest(key=group)
    coordinator = connect(1).ask(request, key=key, version=0).node_id
    connections = {server_id: connect(server_id) for server_id in (1, 2, 3)}
    position = offset_commit.OffsetCommitRequestPartition(0, 42, committed_metadata="m")
    commit = offset_commit.OffsetCommitRequest(
        group_id=group,
        topics=[offset_commit.OffsetCommitRequestTopic(topic, partitions=[position])],
    )
    fetch = offset_fetch.OffsetFetchRequest(
        group_id=group, topics=[offset_fetch.OffsetFetchRequestTopic(topic, [0, 1])]
    )
    for server_id, connection in connections.items():
        answer = connection.ask(commit, key=offset_commit.API_KEY, version=0)
        code = 0 if server_id == coordinator else ErrorCode.NOT_COORDINATOR
        assert answer.topics[0].partitions[0].error_code == code
    answer = connections[coordinator].ask(fetch, key=offset_fetch.API_KEY, version=0)
    found = [
        (partition.committed_offset, partition.metadata, partition.error_code)
        for partition in answer.topics[0].partitions
    ]
    assert found == [(42, "m", 0), (-1, "", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)]


def test_topics_are_created_and_deleted_in_version_0(
    topics: Topics, connect: Callable[[int], RawConnection]
) -> None:
    """Topics are created and deleted as introduced by KIP-4."""
    name = topics.unused_name("version-0")
    connection = connect(1)
    create = create_topics.CreateTopicsRequest(
        topics=[create_topics.CreatableTopic(name, 2, 1)], timeout_ms=10_000
    )
    for code in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
        answer = connection.ask(create, key=create_topics.API_KEY, version=0)
        assert answer.topics[0].error_code == code
    delete = delete_topics.DeleteTopicsRequest(topic_names=[name], timeout_ms=10_000)
    for code in (ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
        answer = connection.ask(delete, key=delete_topics.API_KEY, version=0)
        assert answer.responses[0].error_code == code
