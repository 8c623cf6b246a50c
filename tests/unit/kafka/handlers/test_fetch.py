"""Fetch: gates, sizes, long polls, cold reads."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from segments.api import Compacted, CorruptRecord, Slices
from tests.unit.kafka.fake_host import FakeStream, World, batch, fill
from vdl.clock import MS
from vdl.errors import ErrorCode
from vdl.kafka.configs.options import KafkaOptions
from vdl.kafka.limits.client_quotas import ClientQuotas
from vdl.kafka.partitions.read_throttle import READ_BYTES_MAX, REQUEST_WAIT_NS_MAX
from vdl.kafka.wire.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
    ReplicaState,
)
from vdl.kafka.wire.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from vdl.records.batch import read_header, split_batches
from vdl.state import commands
from vdl.state.quotas import Quotas

FETCH = 1
SECOND = 1_000 * MS


def fetch(
    *offsets: int,
    topic: str = "t",
    topic_id: bytes = bytes(16),
    max_wait_ms: int = 0,
    min_bytes: int = 1,
    max_bytes: int = 1 << 20,
    partition_max_bytes: int = 1 << 20,
    epoch: int = -1,
    last_epoch: int = -1,
    **fields: object,
) -> FetchRequest:
    """Return a fetch request with one partition for each offset."""
    partitions = [
        FetchPartition(
            index,
            current_leader_epoch=epoch,
            fetch_offset=offset,
            last_fetched_epoch=last_epoch,
            partition_max_bytes=partition_max_bytes,
        )
        for index, offset in enumerate(offsets)
    ]
    return FetchRequest(
        max_wait_ms=max_wait_ms,
        min_bytes=min_bytes,
        max_bytes=max_bytes,
        topics=[FetchTopic(topic, topic_id, partitions)],
        **fields,  # type: ignore[arg-type]
    )


def parts(response: FetchResponse) -> list[PartitionData]:
    (topic,) = response.responses
    return topic.partitions


def counts(response: FetchResponse) -> list[int]:
    """Return the number of batches of each partition in the response."""
    return [len(split_batches(memoryview(part.records or b""))) for part in parts(response)]


def error_of(response: FetchResponse) -> int:
    (part,) = parts(response)
    return part.error_code


@pytest.mark.parametrize("version", range(4, 19))
def test_fetch_of_each_version_returns_the_stored_bytes(version: int) -> None:
    """Returns batches as stored, from the batch that holds the offset on."""
    world = World()
    (stream,) = world.topic()
    fill(stream, 2)
    fill(stream, 3)
    topic_id = world.host.catalog.topics["t"].topic_id if version >= 13 else bytes(16)
    request = fetch(3, topic="" if version >= 13 else "t", topic_id=topic_id)
    if version < 12:
        request.topics[0].partitions[0].last_fetched_epoch = -1
    response = world.client().ask(FETCH, version, request)
    (part,) = parts(response)
    assert part.error_code == ErrorCode.NONE
    assert bytes(part.records) == stream.batches[1].data
    assert (part.high_watermark, part.last_stable_offset) == (5, 5)


def test_fetch_of_committed_data_only() -> None:
    """Appended but uncommitted batches are not visible (KAFKA-14704)."""
    world = World()
    (stream,) = world.topic()
    fill(stream)
    stream.auto_commit = False
    data = memoryview(batch())
    stream.append(data, read_header(data), deadline_ns=0, done=lambda _: None)
    response = world.client().ask(FETCH, 11, fetch(0))
    assert counts(response) == [1]
    assert parts(response)[0].high_watermark == 1
    assert error_of(world.client().ask(FETCH, 11, fetch(1))) == ErrorCode.NONE


def test_fetch_at_the_end_waits_and_wakes_at_the_next_commit() -> None:
    """A long poll is answered in the turn in which its data commits, and leaves no state behind."""
    world = World()
    (stream,) = world.topic()
    client = world.client()
    client.request(FETCH, 11, fetch(0, max_wait_ms=10_000))
    world.run(500)
    assert client.answers() == []
    fill(stream, 4)
    world.run(1)
    (answer,) = client.answers()
    assert counts(answer) == [1]
    assert all(wait.callback is None for wait in stream.waits)


def test_end_to_end_lag_is_sampled_by_the_time_of_answers() -> None:
    """A request that waited is no reason for more samples, nor for fewer, than one that did not."""
    world = World()
    (stream,) = world.topic()
    lag = world.context.delivery_lag.lag
    client = world.client()
    client.request(FETCH, 11, fetch(0, max_wait_ms=10_000))
    world.run(500)
    fill(stream, 4)
    world.run(1)
    assert sum(lag.counts) == 1
    assert len(client.answers()) == 1
    client.ask(FETCH, 11, fetch(0), wait_ms=1)
    assert sum(lag.counts) == 1
    world.run(30)
    client.ask(FETCH, 11, fetch(0))
    assert sum(lag.counts) == 2


def test_fetch_at_the_end_is_answered_empty_after_max_wait() -> None:
    """Without data the response is empty and is sent at max_wait, not before."""
    world = World()
    world.topic()
    client = world.client()
    client.request(FETCH, 11, fetch(0, max_wait_ms=300))
    world.run(299)
    assert client.answers() == []
    world.run(2)
    assert counts(client.answers()[0]) == [0]


def test_fetch_waits_for_min_bytes_over_all_partitions() -> None:
    """min_bytes counts the whole response; wakeups with too little data keep waiting."""
    world = World()
    first, second = world.topic(partitions=2)
    size = len(batch())
    client = world.client()
    client.request(FETCH, 11, fetch(0, 0, max_wait_ms=10_000, min_bytes=2 * size))
    fill(first)
    world.run(100)
    assert client.answers() == []
    fill(second)
    world.run(1)
    assert counts(client.answers()[0]) == [1, 1]


def test_fetch_answers_errors_at_once() -> None:
    """One partition in error does not delay the response for the others."""
    world = World()
    world.topic()
    response = world.client().ask(FETCH, 11, fetch(0, 0, max_wait_ms=10_000))
    assert [part.error_code for part in parts(response)] == [
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ]


def test_fetch_always_returns_the_first_batch_and_then_keeps_the_limits() -> None:
    """KIP-74: a batch larger than every limit is sent only as the first of the response."""
    world = World()
    first, second = world.topic(partitions=2)
    fill(first, size=1000)
    fill(first, size=1000)
    fill(second, size=1000)
    client = world.client()
    assert counts(client.ask(FETCH, 11, fetch(0, 0, partition_max_bytes=10))) == [1, 0]
    assert counts(client.ask(FETCH, 11, fetch(0, 0, max_bytes=10))) == [1, 0]
    for nothing in (0, -1):  # as Kafka: a consumer would otherwise retry forever
        assert counts(client.ask(FETCH, 11, fetch(0, 0, max_bytes=nothing))) == [1, 0]
        assert counts(client.ask(FETCH, 11, fetch(2, 0, max_bytes=nothing))) == [0, 1]
    assert counts(client.ask(FETCH, 11, fetch(2, 0, max_bytes=10))) == [0, 1]
    assert counts(client.ask(FETCH, 11, fetch(0, 0, max_bytes=2500))) == [2, 0]
    assert counts(client.ask(FETCH, 11, fetch(0, 0))) == [2, 1]


def test_fetch_above_the_end_asks_a_quorum_before_out_of_range() -> None:
    """A consumer is reset only by a leader whose leadership a quorum confirmed."""
    world = World()
    (stream,) = world.topic()
    fill(stream)
    client = world.client()
    assert error_of(client.ask(FETCH, 11, fetch(7))) == ErrorCode.OFFSET_OUT_OF_RANGE
    stream.quorum = False
    assert error_of(client.ask(FETCH, 11, fetch(7))) == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_fetch_above_a_high_watermark_that_catches_up_is_served() -> None:
    """The quorum's response may move the high watermark past the offset, which is then no error."""
    world = World()
    (stream,) = world.topic()
    client = world.client()
    client.request(FETCH, 11, fetch(1))
    fill(stream, 2)
    world.run()
    (answer,) = client.answers()
    assert error_of(answer) == ErrorCode.NONE
    assert counts(answer) == [1]


def test_fetch_below_the_log_start_is_out_of_range() -> None:
    """The log start offset only grows, so no confirmation is needed."""
    world = World()
    (stream,) = world.topic()
    fill(stream, 5)
    stream.log_start_offset = 3
    assert error_of(world.client().ask(FETCH, 11, fetch(2))) == ErrorCode.OFFSET_OUT_OF_RANGE
    assert error_of(world.client().ask(FETCH, 11, fetch(-1))) == ErrorCode.OFFSET_OUT_OF_RANGE


@pytest.mark.parametrize(
    ("epoch", "error"),
    [
        (4, ErrorCode.FENCED_LEADER_EPOCH),
        (5, ErrorCode.NONE),
        (6, ErrorCode.UNKNOWN_LEADER_EPOCH),
        (-2, ErrorCode.NONE),
    ],
)
def test_fetch_checks_the_leader_epoch(epoch: int, error: ErrorCode) -> None:
    """KIP-320: only this leader's epoch is served. A negative epoch is unset."""
    world = World()
    world.topic()
    assert error_of(world.client().ask(FETCH, 11, fetch(0, epoch=epoch))) == error


def test_fetch_after_a_truncated_epoch_is_told_where_it_diverges() -> None:
    """KIP-595: the reader's last epoch ends here before the reader's offset."""
    world = World()
    (stream,) = world.topic()
    fill(stream, 2)
    stream.term = 8
    fill(stream, 3)
    (part,) = parts(world.client().ask(FETCH, 12, fetch(4, last_epoch=6)))
    assert (part.diverging_epoch.epoch, part.diverging_epoch.end_offset) == (5, 2)
    assert not part.records
    (part,) = parts(world.client().ask(FETCH, 12, fetch(4, last_epoch=8)))
    assert part.diverging_epoch is None


def test_fetch_whose_gate_opens_at_once_is_checked_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Data behind a gate is checked by the next attempt, however soon that is."""
    world = World()
    (stream,) = world.topic()
    fill(stream, 2)
    stream.term = 8
    fill(stream, 3)
    stream.is_proved = False

    def prove(*, deadline_ns: int, done: Callable[[bool], None]) -> None:
        del deadline_ns
        stream.is_proved = True
        done(True)

    monkeypatch.setattr(stream, "prove", prove)
    (part,) = parts(world.client().ask(FETCH, 12, fetch(4, last_epoch=6)))
    assert (part.diverging_epoch.epoch, part.diverging_epoch.end_offset) == (5, 2)
    assert not part.records


def test_fetch_whose_last_epoch_was_deleted_is_served() -> None:
    """A reader at the log start has read what was deleted, not truncated. KIP-595, KIP-107."""
    world = World()
    (stream,) = world.topic()
    fill(stream, 2)
    stream.term = 8
    fill(stream, 3)
    stream.log_start_offset = 2
    for last_epoch in (3, 5, 8):
        (part,) = parts(world.client().ask(FETCH, 12, fetch(2, last_epoch=last_epoch)))
        assert part.error_code == ErrorCode.NONE
        assert part.diverging_epoch is None
        assert part.records
    answer = world.client().ask(FETCH, 12, fetch(2, last_epoch=9))
    assert error_of(answer) == ErrorCode.UNKNOWN_LEADER_EPOCH


def test_fetch_before_the_leader_serves_is_held() -> None:
    """A new leader does not know the commit index until an entry of its own term commits.

    Readers wait for it.
    """
    world = World()
    (stream,) = world.topic()
    fill(stream)
    stream.serving = False
    client = world.client()
    client.request(FETCH, 11, fetch(0))
    world.run(100)
    assert client.answers() == []
    stream.start_serving()
    world.run(1)
    assert counts(client.answers()[0]) == [1]


def test_fetch_after_a_gap_in_the_loop_asks_a_quorum_first() -> None:
    """Another leader may have been elected meanwhile, and local knowledge may be stale (§8)."""
    world = World()
    (stream,) = world.topic()
    fill(stream)
    world.run(1)
    stream.is_proved = False
    client = world.client()
    assert counts(client.ask(FETCH, 11, fetch(0))) == [1]
    assert stream.is_proved
    stream.is_proved = stream.quorum = False
    response = client.ask(FETCH, 11, fetch(0))
    assert error_of(response) == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert counts(response) == [0]


def test_fetch_from_a_follower_names_the_leader() -> None:
    """KIP-951: the hint and, from v16 on, the address."""
    world = World()
    (stream,) = world.topic()
    stream.lose_leadership()
    world.host.leaders[stream.group_id] = (2, 6)
    topic_id = world.host.catalog.topics["t"].topic_id
    response = world.client().ask(FETCH, 16, fetch(0, topic="", topic_id=topic_id))
    assert error_of(response) == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert parts(response)[0].current_leader.leader_id == 2
    assert [node.host for node in response.node_endpoints] == ["host2"]


def test_fetch_that_waits_learns_of_a_new_leader() -> None:
    """A long poll ends when its leader changes."""
    world = World()
    (stream,) = world.topic()
    client = world.client()
    client.request(FETCH, 11, fetch(0, max_wait_ms=60_000))
    world.run(10)
    stream.lose_leadership()
    world.run(1)
    assert error_of(client.answers()[0]) == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_fetch_of_a_topic_that_is_deleted_meanwhile_is_unknown() -> None:
    """A long poll ends when its topic is deleted."""
    world = World()
    world.topic()
    client = world.client()
    client.request(FETCH, 11, fetch(0, max_wait_ms=60_000))
    world.run(10)
    world.host.apply(commands.DeleteTopics(["t"]))
    world.run(1)
    assert error_of(client.answers()[0]) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_fetch_from_disk_leaves_the_loop_and_comes_back() -> None:
    """Data that is not in memory is read by the thread pool; later requests keep their order."""
    world = World()
    first, second = world.topic(partitions=2)
    fill(first)
    fill(second)
    first.on_disk_below = second.on_disk_below = 1
    client = world.client()
    response = client.ask(FETCH, 11, fetch(0, 0))
    assert counts(response) == [1, 1]
    assert (first.cold_reads, second.cold_reads) == (1, 1)


def test_fetch_of_a_damaged_batch_is_a_storage_error() -> None:
    """Bytes that do not match their CRC are never served."""
    world = World()
    (stream,) = world.topic()
    fill(stream)
    stream.on_disk_below = 1
    stream.cold_error = CorruptRecord("batch", 0)
    assert error_of(world.client().ask(FETCH, 11, fetch(0))) == ErrorCode.KAFKA_STORAGE_ERROR


def test_fetch_as_a_replica_is_refused() -> None:
    """CVE-2018-1288: a client cannot become a replica by claiming to be one on a client port."""
    world = World()
    (stream,) = world.topic()
    fill(stream)
    client = world.client()
    refused = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    assert error_of(client.ask(FETCH, 4, fetch(0, replica_id=2))) == refused
    assert client.ask(FETCH, 11, fetch(0, replica_id=2)).error_code == refused
    request = fetch(0, topic="", replica_state=ReplicaState(2, 1))
    assert client.ask(FETCH, 15, request).error_code == refused


def test_fetch_of_an_unknown_topic_id_says_so() -> None:
    """KIP-516: UNKNOWN_TOPIC_ID from v13 on."""
    world = World()
    request = fetch(0, topic="", topic_id=b"n" * 16)
    assert error_of(world.client().ask(FETCH, 13, request)) == ErrorCode.UNKNOWN_TOPIC_ID


def test_fetch_under_read_committed_lists_no_aborted_transaction() -> None:
    """Without transactions everything committed is stable."""
    world = World()
    (stream,) = world.topic()
    fill(stream)
    (part,) = parts(world.client().ask(FETCH, 11, fetch(0, isolation_level=1)))
    assert part.aborted_transactions == []
    assert part.last_stable_offset == 1


def reads_of(stream: FakeStream) -> list[int]:
    """Return a list that collects the offset of each read from now on."""
    offsets: list[int] = []
    read = stream.read

    def noted(offset: int, bytes_max: int, *, stable: bool = False) -> object:
        offsets.append(offset)
        return read(offset, bytes_max, stable=stable)

    stream.read = noted  # type: ignore[method-assign,assignment]
    return offsets


def test_fetch_polls_of_the_same_tail_share_their_answer() -> None:
    """Identical polls that wake in one turn are read and encoded once."""
    world = World()
    (stream,) = world.topic()
    clients = [world.client() for _ in range(5)]
    for client in clients:
        client.request(FETCH, 11, fetch(0, max_wait_ms=60_000))
    reads = reads_of(stream)
    fill(stream, 3)
    world.run(1)
    assert [counts(client.answers()[0]) for client in clients] == [[1]] * 5
    assert len(reads) == 1
    assert world.context.shared == {}


def test_fetch_that_need_not_wait_shares_its_answer_until_the_turn_ends() -> None:
    """A later poll sees newer data.

    A consumer with a rack, which may be redirected, gets its own response.
    """
    world = World()
    (stream,) = world.topic()
    reads = reads_of(stream)
    fill(stream, 3)
    world.run(1)
    clients = [world.client() for _ in range(5)]
    for client in clients:
        client.request(FETCH, 11, fetch(0))
    with_rack = world.client()
    with_rack.request(FETCH, 11, fetch(0, rack_id="a"))
    assert len(reads) == 2
    world.run(1)
    assert world.context.shared == {}
    fill(stream, 3)
    world.run(1)
    later = world.client()
    assert counts(later.ask(FETCH, 11, fetch(0))) == [2]
    assert [counts(client.answers()[0]) for client in [*clients, with_rack]] == [[1]] * 6


def test_fetch_that_has_time_does_not_share_the_answer_of_one_that_has_none() -> None:
    """Both want more than there is; only one of them waits for it."""
    world = World()
    (stream,) = world.topic()
    fill(stream, 3)
    world.run(1)
    hasty, patient = world.client(), world.client()
    hasty.request(FETCH, 11, fetch(0, min_bytes=10_000))
    patient.request(FETCH, 11, fetch(0, min_bytes=10_000, max_wait_ms=60_000))
    world.run(1)
    assert [len(client.answers()) for client in (hasty, patient)] == [1, 0]


def test_fetch_that_wants_more_does_not_share_a_smaller_answer() -> None:
    """`fetch.min.bytes` of each poll holds."""
    world = World()
    (stream,) = world.topic()
    eager, patient = world.client(), world.client()
    eager.request(FETCH, 11, fetch(0, max_wait_ms=60_000))
    patient.request(FETCH, 11, fetch(0, max_wait_ms=60_000, min_bytes=1_000_000))
    fill(stream, 3)
    world.run(1)
    assert counts(eager.answers()[0]) == [1]
    assert patient.answers() == []


@pytest.mark.parametrize(
    ("version", "offset", "other"),
    [
        pytest.param(12, 1, {}, id="offset"),
        pytest.param(12, 0, {"isolation_level": 1}, id="isolation"),
        pytest.param(12, 0, {"max_bytes": 2}, id="max-bytes"),
        pytest.param(12, 0, {"partition_max_bytes": 2}, id="partition-max-bytes"),
        pytest.param(12, 0, {"min_bytes": 2}, id="min-bytes"),
        pytest.param(12, 0, {"epoch": 5}, id="leader-epoch"),
        pytest.param(12, 0, {"rack_id": "a"}, id="rack"),
        pytest.param(11, 0, {}, id="version"),
        pytest.param(12, 0, {"last_epoch": 5}, id="last-epoch"),
    ],
)
def test_fetch_shares_no_answer_to_another_question(
    version: int, offset: int, other: dict[str, object]
) -> None:
    """Responses are shared only if all inputs they depend on are equal."""
    world = World()
    (stream,) = world.topic()
    fill(stream)
    fill(stream)
    world.run(1)
    reads = reads_of(stream)
    first, same, another = world.client(), world.client(), world.client()
    first.request(FETCH, 12, fetch(0))
    same.request(FETCH, 12, fetch(0))
    another.request(FETCH, version, fetch(offset, **other))
    world.run(1)
    assert [len(client.answers()) for client in (first, same, another)] == [1, 1, 1]
    assert reads == [0, offset]


def convert_later(world: World) -> None:
    """Convert as a thread does: the outcome arrives in a later turn."""

    def compute(job: Callable[[], object], done: Callable[[object], None]) -> None:
        world.clock.call_later(MS, lambda: done(job()))

    world.context.down_conversion._compute = compute  # type: ignore[assignment]


def test_converted_answer_of_one_that_waited_is_shared_in_its_turn_only() -> None:
    """The conversion completes outside the end of a turn.

    Later the log may begin elsewhere or have another leader.
    """
    world = World()
    (stream,) = world.topic()
    convert_later(world)
    fill(stream, 3)
    world.run(1)
    old = world.client()
    old.request(FETCH, 3, fetch(3, max_wait_ms=60_000))
    world.run(1)
    fill(stream, 1)
    world.run(20)
    assert len(old.answers()) == 1
    assert world.context.shared == {}
    for version in (3, 11):
        (part,) = parts(world.client().ask(FETCH, version, fetch(3), wait_ms=20))
        assert part.records
        assert world.context.shared == {}
    stream.log_start_offset = 4
    answer = world.client().ask(FETCH, 3, fetch(3), wait_ms=20)
    assert error_of(answer) == ErrorCode.OFFSET_OUT_OF_RANGE


def test_answer_that_is_throttled_is_one_clients_own() -> None:
    """Quotas are set while both wait. Each response is counted and has its own throttle time."""
    world = World()
    (stream,) = world.topic()
    clients = [world.client() for _ in range(2)]
    for client in clients:
        client.request(FETCH, 11, fetch(0, max_wait_ms=60_000))
    world.run(1)
    reads = reads_of(stream)
    quotas = Quotas()
    quotas.alter(commands.QuotaChange([("user", None)], {"consumer_byte_rate": 1e9}))
    world.context.quotas = ClientQuotas(quotas)
    fill(stream, 3)
    world.run(1)
    assert [counts(client.answers()[0]) for client in clients] == [[1], [1]]
    assert len(reads) == 2


@pytest.mark.parametrize("is_paced", [False, True])
def test_reader_behind_that_wants_much_at_once_has_it_at_once(is_paced: bool) -> None:
    """More than `fetch.min.bytes` is available.

    A response made smaller by whole batches, the read throttle or the memory limit of a new
    connection does not make the poll wait.
    """
    world = World()
    (stream,) = world.topic()
    for _ in range(200):
        fill(stream, 1, 30_000)
    stream.on_disk_below = stream.high_watermark
    if is_paced:
        world.context.read_throttle.produced(-1, 1, world.clock.now_ns())
    client = world.client()
    question = fetch(0, min_bytes=3 << 19, partition_max_bytes=3 << 19, max_bytes=9 << 20)
    question.max_wait_ms = 30_000
    client.request(FETCH, 11, question)
    world.run(100)
    (answer,) = client.answers()
    assert counts(answer) == [34]
    assert stream.cold_reads == 1


def test_reader_at_the_end_waits_for_all_that_it_wants() -> None:
    """Available bytes of both partitions count, and no others."""
    world = World()
    streams = world.topic(partitions=2)
    client = world.client()
    for stream in streams:
        fill(stream, 1, 1_000)
    client.request(FETCH, 11, fetch(0, 0, min_bytes=3_000, max_wait_ms=60_000))
    world.run(100)
    assert client.answers() == []
    fill(streams[0], 1, 1_000)
    world.run(1)
    assert [counts(answer) for answer in client.answers()] == [[2, 1]]


def test_reader_of_what_holds_no_records_waits() -> None:
    """The range may hold only entries without records.

    An immediate empty response would make the consumer poll in a busy loop.
    """
    world = World()
    (stream,) = world.topic()
    fill(stream, 3)
    stream.read = lambda offset, bytes_max, *, stable=False: Slices(  # type: ignore[method-assign]
        first_offset=offset, end_offset=offset
    )
    client = world.client()
    client.request(FETCH, 11, fetch(0, max_wait_ms=60_000))
    world.run(1_000)
    assert client.answers() == []


@pytest.mark.parametrize(
    ("is_leader", "rack", "start", "code"),
    [
        (True, "", 0, ErrorCode.NOT_LEADER_OR_FOLLOWER),
        (True, "", 3, ErrorCode.OFFSET_OUT_OF_RANGE),
        (False, "", 0, ErrorCode.NOT_LEADER_OR_FOLLOWER),
        (False, "a", 0, ErrorCode.OFFSET_NOT_AVAILABLE),
    ],
)
def test_read_of_what_is_gone_meanwhile_says_out_of_range_only_when_it_is(
    is_leader: bool, rack: str, start: int, code: ErrorCode
) -> None:
    """OFFSET_OUT_OF_RANGE makes a consumer reset its position."""
    world = World()
    (stream,) = world.topic()
    fill(stream, 3)
    fill(stream, 3)
    stream.on_disk_below = 6
    stream.cold_error = Compacted("the segment was deleted during the read")
    if rack:
        stream.is_leader = stream.serving = False
        world.host.may_follow = True
    client = world.client()
    client.request(FETCH, 11, fetch(0, rack_id=rack))
    world.run(1)
    stream.is_leader, stream.log_start_offset = is_leader, start
    world.run(20)
    assert error_of(client.answers()[0]) == code


@pytest.mark.parametrize("min_bytes", [1, 2_500])
def test_full_answer_reads_no_more_from_disk(min_bytes: int) -> None:
    """One read is wasted, since its size was unknown.

    Everything after it is left to the next request, and the poll does not wait.
    """
    world = World()
    streams = world.topic(partitions=5)
    for stream in streams:
        fill(stream, 1, 1_000)
        fill(stream, 1, 1_000)
        stream.on_disk_below = stream.high_watermark
    client = world.client()
    question = fetch(*[0] * 5, max_bytes=2_500, min_bytes=min_bytes, max_wait_ms=60_000)
    client.request(FETCH, 11, question)
    world.run(100)
    (answer,) = client.answers()
    assert counts(answer) == [2, 0, 0, 0, 0]
    assert [stream.cold_reads for stream in streams] == [1, 1, 0, 0, 0]


def test_fetch_of_a_client_that_goes_away_is_forgotten() -> None:
    """Subscriptions and timers of a closed connection are removed."""
    world = World()
    (stream,) = world.topic()
    client = world.client()
    client.request(FETCH, 11, fetch(0, max_wait_ms=60_000))
    client.session.connection_lost()
    assert all(wait.callback is None for wait in stream.waits)
    fill(stream)
    world.run(100_000)
    assert client.received == b""


def test_fetch_behind_a_produce_sees_it() -> None:
    """Kafka processes one request of a connection at a time: a reader sees its own write."""
    world = World()
    (stream,) = world.topic()
    stream.auto_commit = False
    client = world.client()
    data = [PartitionProduceData(0, memoryview(batch()))]
    client.request(0, 9, ProduceRequest(None, -1, 1000, [TopicProduceData("t", bytes(16), data)]))
    client.request(FETCH, 11, fetch(0))
    world.run()
    stream.commit()
    world.run()
    _, fetched = client.answers()
    assert counts(fetched) == [1]


def test_readers_from_disk_are_paced_while_producers_are_at_work() -> None:
    """No producer waits long for their reads. Without producers, readers get all they can take."""
    world = World(KafkaOptions(cold_read_bytes_per_second=1 << 20))
    (stream,) = world.topic()
    fill(stream)
    stream.on_disk_below = 1
    client = world.client()
    for _ in range(3):
        assert counts(client.ask(FETCH, 11, fetch(0))) == [1]  # no producer load
    occupy(world)
    client.request(FETCH, 11, fetch(0))
    world.run(700)
    assert client.answers() == []
    world.run(400)
    (late,) = client.answers()
    assert counts(late) == [1]


def test_reader_that_leaves_while_it_waits_gives_its_turn_back() -> None:
    """An admitted read that is cancelled is not counted against others and is not performed."""
    world = World(KafkaOptions(cold_read_bytes_per_second=1 << 21))
    (stream,) = world.topic()
    fill(stream)
    stream.on_disk_below = 1
    occupy(world)  # for half a second
    leaving = world.client()
    leaving.request(FETCH, 11, fetch(0))
    world.run(1)
    leaving.session.connection_lost()
    pace = world.context.read_throttle
    admission = pace.ask((-2, 0), READ_BYTES_MAX, world.clock.now_ns())
    assert admission.wait_ns <= SECOND // 2
    reads = stream.cold_reads
    world.run(2_000)
    assert stream.cold_reads == reads


def test_request_waits_for_all_its_reads_from_disk_no_longer_than_the_limit() -> None:
    """Each of twenty partitions would wait for a second: the client would have timed out."""
    world = World(KafkaOptions(cold_read_bytes_per_second=1))
    streams = world.topic(partitions=20)
    for stream in streams:
        fill(stream)
        stream.on_disk_below = 1
    occupy(world)
    client = world.client()
    client.request(FETCH, 11, fetch(*[0] * len(streams)))
    waited_ms = 0
    answers: list[FetchResponse] = []
    while not answers and waited_ms < 30_000:
        world.context.read_throttle.produced(-1, 1, world.clock.now_ns())
        world.run(100)
        waited_ms += 100
        answers = client.answers()
    assert counts(answers[0]) == [1] * len(streams)
    assert waited_ms <= REQUEST_WAIT_NS_MAX // MS + 200


def occupy(world: World) -> None:
    """Simulate producers on other partitions and another reader that has taken a mebibyte."""
    pace, now_ns = world.context.read_throttle, world.clock.now_ns()
    pace.produced(-1, 1, now_ns)
    assert pace.ask((-1, -1), READ_BYTES_MAX, now_ns).wait_ns == 0


@pytest.mark.parametrize("count", [100, 1_000])
def test_partition_that_is_named_often_is_subscribed_to_once(count: int) -> None:
    """Otherwise each record would wake a poll a thousand times."""
    world = World()
    (stream,) = world.topic()
    request = fetch(0, max_wait_ms=500)
    request.topics[0].partitions *= count
    client = world.client()
    client.request(FETCH, 11, request)
    world.run(100)
    assert sum(wait.callback is not None for wait in stream.waits) == 1
    fill(stream)
    world.run(100)
    (answer,) = client.answers()
    assert sum(bool(part.records) for part in answer.responses[0].partitions) >= 1
