"""Long requests and long answers take turns, so that other connections do not wait for them."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from heapq import heappop, heappush
from itertools import pairwise
from struct import pack
from weakref import ref

import pytest

from tests.unit.kafka.fake_host import Client, World, batch, fill
from tests.wire import codec, codec_of
from vdl.clock import MS
from vdl.kafka.answer import Later, Unbuilt
from vdl.kafka.api import API, Api
from vdl.kafka.configs.options import KafkaOptions
from vdl.kafka.connections import admission
from vdl.kafka.connections.connection import OFFERED_BYTES_MAX
from vdl.kafka.connections.turn_budget import (
    ANSWER_BYTES,
    COSTLY_NS,
    FEW_BYTES,
    FRAME_BYTES,
    LEFT_MAX,
    READ_BYTES_MIN,
    SHARE_NS,
    SHORT_BYTES,
    SHORT_NS,
    SMALL_PARTS,
    START_NS,
    ReceiveBudget,
    SendBudget,
    StartBudget,
)
from vdl.kafka.context import RequestContext
from vdl.kafka.handlers.api_versions import unsupported_version
from vdl.kafka.wire import produce
from vdl.kafka.wire.api_versions import ApiVersionsRequest, ApiVersionsResponse
from vdl.kafka.wire.fetch import FetchPartition, FetchRequest, FetchTopic
from vdl.kafka.wire.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from vdl.sim.clock import FOREVER_NS, VirtualTime

PRODUCE, FETCH, API_VERSIONS = 0, 1, 18
MIB = 1 << 20
LONG = 5 * MIB


@cache
def body_of(size: int) -> bytes:
    data = PartitionProduceData(0, memoryview(batch(size=size)))
    request = ProduceRequest(None, -1, 30_000, [TopicProduceData("t", bytes(16), [data])])
    return b"".join(codec_of(produce).encode_request(request, 9))


class Sender:
    """A client with one long request, which sends whenever it is read."""

    def __init__(self, world: World, size: int = LONG) -> None:
        self.client = world.client()
        self.rest = memoryview(self.client.frame(PRODUCE, 9, body_of(size)))

    def send(self) -> int:
        """Send what the server reads in one turn: one buffer. Return its size."""
        client = self.client
        if not client.reading or client.closed or not self.rest:
            return 0
        into = client.session.connection.get_buffer()
        count = min(len(into), len(self.rest))
        into[:count] = self.rest[:count]
        client.session.buffer_updated(count)
        self.rest = self.rest[count:]
        return count


def world_of_requests() -> World:
    world = World(KafkaOptions(message_max_bytes=2 * LONG))
    world.topic()
    world.run(1)
    return world


def test_long_requests_of_many_take_little_of_each_turn() -> None:
    """All requests are read to their end."""
    world = world_of_requests()
    senders = [Sender(world) for _ in range(20)]
    for _ in range(10):  # until the server knows their size
        for sender in senders:
            sender.send()
        world.run(20)
    most = 0
    for _ in range(2_600):
        most = max(most, sum(sender.send() for sender in senders))
        world.run(1)
    assert most <= FRAME_BYTES + len(senders) * READ_BYTES_MIN
    assert all(len(sender.client.answers()) == 1 for sender in senders)
    assert not world.frontend.turn.receive_budget


def test_long_requests_of_few_are_read_faster() -> None:
    """Two producers with large requests are no overload."""
    world = world_of_requests()
    senders = [Sender(world) for _ in range(2)]
    for _ in range(10):
        for sender in senders:
            sender.send()
        world.run(4)
    waited = 0
    before = sum(len(sender.rest) for sender in senders)
    for _ in range(6):
        for _ in range(8):
            for sender in senders:
                sender.send()
        waited += len(world.frontend.turn.receive_budget)
        world.run(4)
    assert waited, "the pace was not needed"
    assert before - sum(len(sender.rest) for sender in senders) >= 2 * 6 * FRAME_BYTES


def test_short_requests_are_read_as_they_come() -> None:
    """Requests of the clients' default size are read at once, however many connections there
    are."""
    world = world_of_requests()
    long = [Sender(world) for _ in range(30)]
    short = [Sender(world, SHORT_BYTES - 1000) for _ in range(10)]
    for _ in range(30):
        for sender in [*long, *short]:
            sender.send()
    assert world.frontend.turn.receive_budget
    assert not any(sender.rest for sender in short)


def test_who_waits_for_its_turn_is_not_late() -> None:
    """A turn may come later than the time after which a silent client counts as stalled."""
    options = KafkaOptions(
        request_bytes_max=8 * MIB,
        request_memory_max=48 * MIB,
        message_max_bytes=8 * MIB,
        frame_deadline_ms=240,
    )
    world = World(options)
    world.topic()
    world.run(1)
    senders = [Sender(world, 6 * MIB) for _ in range(100)]
    waited = 0
    for _ in range(1_000):
        for sender in senders:
            sender.send()
        world.run(1)
        waited += bool(world.context.requests.waiting and world.frontend.turn.receive_budget)
        now_ns, deadline_ns = world.clock.now_ns(), options.frame_deadline_ms * MS
        for sender in senders:
            assert not sender.client.session.is_stalled(now_ns, deadline_ns)
            assert not sender.client.session.is_slow(now_ns, deadline_ns)
    assert waited


def test_a_client_that_goes_away_waits_no_more() -> None:
    world = world_of_requests()
    senders = [Sender(world) for _ in range(30)]
    for _ in range(5):
        for sender in senders:
            sender.send()
    assert len(world.frontend.turn.receive_budget) > 10
    for sender in senders:
        sender.client.session.connection_lost()
    assert not world.frontend.turn.receive_budget


class Nobody:
    shared_until_ns = share_ns = 0
    shared_by: object = None
    asker = "nobody"

    def resume_starting(self) -> None: ...


def test_a_pace_that_nobody_needs_sets_no_timer() -> None:
    world = World()
    pace, answers, starts = (
        ReceiveBudget(world.clock),
        SendBudget(world.clock),
        StartBudget(world.clock),
    )
    pace.took(lambda: None, 1)
    answers.sent(1)
    assert starts.may_start(Nobody(), 0)
    world.run(20)
    assert not starts
    assert pace.left == FEW_BYTES
    assert not world.time.step()


# --- answers --------------------------------------------------------------------------------------


def fetch(max_wait_ms: int = 0) -> FetchRequest:
    partition = FetchPartition(0, fetch_offset=0, partition_max_bytes=MIB)
    return FetchRequest(
        max_wait_ms=max_wait_ms,
        min_bytes=1,
        max_bytes=MIB,
        topics=[FetchTopic("t", bytes(16), [partition])],
    )


def world_of_answers() -> tuple[World, list[Client]]:
    world = World()
    (stream,) = world.topic()
    for _ in range(10):
        fill(stream, size=100_000)
    world.run(1)
    return world, [world.client() for _ in range(30)]


def test_long_answers_of_one_turn_leave_in_several() -> None:
    """A short answer is sent at once."""
    world, readers = world_of_answers()
    for reader in readers:
        reader.request(FETCH, 11, fetch())
    other = world.client()
    other.request(API_VERSIONS, 0, ApiVersionsRequest())
    world.time.run_until(world.time.now_ns)
    assert 0 < sum(len(reader.received) for reader in readers) <= ANSWER_BYTES + MIB + 1000
    assert len(other.answers()) == 1
    assert len(world.frontend.turn.send_budget) > 20
    # A waiting connection requests more, and is answered in order.
    readers[-1].request(API_VERSIONS, 0, ApiVersionsRequest())
    world.run(1)
    for reader in readers:
        assert reader.answers()[0].responses[0].partitions[0].records
    assert not world.frontend.turn.send_budget
    assert world.context.answers.used == 0
    assert all(reader.reading for reader in readers)


def test_one_long_answer_leaves_in_several_turns_however_fast_its_client_reads() -> None:
    """The loop would send all of 100 MB with one call."""
    world = World()
    (stream,) = world.topic()
    fill(stream, size=9 * MIB)
    world.run(1)
    reader, size = world.client(), 10 * MIB
    partition = FetchPartition(0, fetch_offset=0, partition_max_bytes=size)
    topics = [FetchTopic("t", bytes(16), [partition])]
    request = FetchRequest(max_wait_ms=0, min_bytes=1, max_bytes=size, topics=topics)
    reader.request(FETCH, 11, request)
    world.time.run_until(world.time.now_ns)
    assert 0 < len(reader.received) <= OFFERED_BYTES_MAX
    world.run(1)
    assert len(reader.answers()[0].responses[0].partitions[0].records) >= 9 * MIB
    assert world.context.answers.used == 0


def test_an_answer_that_waits_for_its_turn_leaves_before_its_connection_is_closed() -> None:
    world, readers = world_of_answers()
    for reader in readers:
        reader.request(FETCH, 11, fetch())
    world.time.run_until(world.time.now_ns)
    assert world.frontend.turn.send_budget
    readers[-1].session.receive(pack(">i", -1))  # a malformed frame ends the connection
    world.run(1)
    assert readers[-1].closed
    assert readers[-1].answers()[0].responses[0].partitions[0].records


def test_a_reader_that_goes_away_waits_no_more() -> None:
    world, readers = world_of_answers()
    for reader in readers:
        reader.request(FETCH, 11, fetch())
    for reader in readers:
        reader.session.connection_lost()
    assert not world.frontend.turn.send_budget
    assert world.context.answers.used == 0


# --- requests -------------------------------------------------------------------------------------
COST_NS = START_NS // 20


class BusyTime(VirtualTime):
    """Virtual time in which events take time: events that are overdue run next, in their order."""

    __slots__ = ()

    def step(self, until_ns: int = FOREVER_NS) -> bool:
        heap = self._heap
        while heap and heap[0][0] < self.now_ns:
            self._sequence += 1
            heappush(heap, (self.now_ns, self._sequence, heappop(heap)[2]))
        return super().step(until_ns)


class CostlyWorld(World):
    """A world in which an ApiVersions request takes `cost_ns` of its server's loop."""

    def __init__(self, config: KafkaOptions | None = None) -> None:
        super().__init__(config, time=BusyTime())
        self.cost_ns = COST_NS
        self.started: list[int] = []
        """Connections of the requests that have started, in order."""

    def handle(self, ctx: RequestContext, request: object) -> ApiVersionsResponse:
        del request
        self.time.now_ns += self.cost_ns
        self.started.append(ctx.connection.id)
        return unsupported_version()


@pytest.fixture
def costly(monkeypatch: pytest.MonkeyPatch) -> CostlyWorld:
    """Its costly requests start like records."""
    world = CostlyWorld()
    monkeypatch.setattr(admission, "_FETCH", API_VERSIONS)
    row = API[API_VERSIONS]
    changed = Api(API_VERSIONS, row.name, row.min_version, row.max_version, "", world.handle)
    monkeypatch.setitem(API, API_VERSIONS, changed)
    return world


def ask(client: Client, count: int = 1, software: str = "x") -> None:
    """Send `count` requests that arrive in one read."""
    request = ApiVersionsRequest(software, "1")
    body = b"".join(codec(API_VERSIONS).encode_request(request, 3))
    frames = b"".join(client.frame(API_VERSIONS, 3, body) for _ in range(count))
    into = client.session.connection.get_buffer()
    assert len(into) >= len(frames), "more than one read"
    into[: len(frames)] = frames
    client.session.buffer_updated(len(frames))


def test_timers_run_between_the_requests_of_a_crowd(costly: CostlyWorld) -> None:
    """Otherwise an overloaded server sends its heartbeats late, and loses its leaderships. All
    requests are answered, and no client waits for ever."""
    beats: list[int] = []

    def beat() -> None:
        beats.append(costly.clock.now_ns())
        costly.clock.call_later(10 * MS, beat)

    beat()
    clients = [costly.client() for _ in range(100)]
    before_ns = costly.clock.now_ns()
    for client in clients:
        ask(client, 5)
    assert costly.clock.now_ns() - before_ns <= START_NS + COST_NS
    costly.run(3_000)
    assert [len(client.answers()) for client in clients] == [5] * 100
    gaps = [after - before for before, after in pairwise(beats)]
    assert max(gaps) <= 10 * MS + START_NS + COST_NS
    assert not costly.frontend.turn.record_budget


def test_answers_that_become_known_together_are_built_in_turns(
    costly: CostlyWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For example, answers that wait for the new leader of a partition whose server failed."""
    later = [Later() for _ in range(100)]
    rest = iter(later)
    monkeypatch.setattr(API[API_VERSIONS], "handler", lambda ctx, request: next(rest))
    clients = [costly.client() for _ in later]
    for client in clients:
        ask(client)
    costly.run(1_000)

    def build() -> ApiVersionsResponse:
        costly.time.now_ns += COST_NS
        return unsupported_version()

    for answer in later:
        answer.complete(Unbuilt(build))
    beats: list[int] = []

    def beat() -> None:
        beats.append(costly.clock.now_ns())
        costly.clock.call_later(10 * MS, beat)

    beat()
    costly.run(2_000)
    assert [len(client.answers()) for client in clients] == [1] * 100
    assert max(after - before for before, after in pairwise(beats)) <= 10 * MS + START_NS + COST_NS


def test_connections_whose_requests_wait_take_turns(costly: CostlyWorld) -> None:
    """A connection with one request does not wait for all requests of another one."""
    greedy, *others = [costly.client() for _ in range(11)]
    for _ in range(3):
        ask(greedy, 80)
    for client in others:
        ask(client)
    costly.run(5_000)
    order = costly.started
    assert order.count(greedy.session.info.id) == 240
    last = max(order.index(client.session.info.id) for client in others)
    assert last * COST_NS <= START_NS + len(others) * COST_NS + 2 * SHARE_NS


def test_who_has_used_less_than_its_share_is_served_first(costly: CostlyWorld) -> None:
    """A new connection, or one with occasional requests, does not wait for a share of each in a
    crowd. A steady stream of new connections does not starve the crowd either."""
    crowd = [costly.client() for _ in range(100)]
    for client in crowd:
        ask(client, 80)
    costly.run(3_000)  # until each has been served
    modest = costly.client()
    for _ in range(5):
        costly.run(700)
        before = len(costly.started)
        ask(modest)
        while not modest.answers():
            assert costly.time.step()
        assert (len(costly.started) - before) * COST_NS <= 2 * START_NS
    waiting = {client.session.info.id for client in crowd}
    before = len(costly.started)
    while not waiting <= set(costly.started[before:]):
        ask(costly.client())
        assert costly.time.step()
    assert len(costly.started) - before <= 100 * 2 * (2 * SHARE_NS // COST_NS)


class _Backlog:
    """A connection that uses its whole share whenever it is served, and waits again if it has a
    `budget` to wait for."""

    def __init__(
        self,
        name: str,
        time: VirtualTime,
        served: list[str],
        *,
        share_ns: int,
        budget: StartBudget | None = None,
    ) -> None:
        self._name = self.asker = name
        self._budget = budget
        self._time = time
        self._served = served
        self.shared_until_ns = 0
        self.share_ns = share_ns
        self.shared_by: object = None

    def resume_starting(self) -> None:
        self._served.append(self._name)
        self._time.now_ns += SHARE_NS
        if self._budget is not None:
            assert not self._budget.may_start(self, 0)


def test_who_once_took_longer_than_a_share_is_not_served_last(costly: CostlyWorld) -> None:
    """The process paused while the connection was served. It is charged for that once, and the
    estimate of its share does not grow."""
    budget = StartBudget(costly.clock)
    served: list[str] = []
    unlucky = _Backlog("unlucky", costly.time, served, share_ns=4 * SHARE_NS)
    others = [_Backlog("other", costly.time, served, share_ns=SHARE_NS) for _ in range(20)]
    assert budget.may_start(others[0], 0)  # this turn has begun
    for starter in (unlucky, *others):
        assert not budget.may_start(starter, 0)
    costly.run(1_000)
    assert len(served) == 21
    assert served[0] == "unlucky"


def test_forty_connections_of_one_user_have_one_share(costly: CostlyWorld) -> None:
    """A user with one connection gets as much time as a user with forty, and the forty share
    equally."""
    budget = StartBudget(costly.clock)
    served: list[str] = []
    crowd = [
        _Backlog("crowd", costly.time, served, share_ns=SHARE_NS, budget=budget) for _ in range(40)
    ]
    numbers = {id(starter): 0 for starter in crowd}
    for starter in crowd:
        resume = starter.resume_starting

        def counted(key: int = id(starter), resume: Callable[[], None] = resume) -> None:
            numbers[key] += 1
            resume()

        starter.resume_starting = counted  # type: ignore[method-assign]
    other = _Backlog("other", costly.time, served, share_ns=SHARE_NS, budget=budget)
    assert budget.may_start(other, 0)  # this turn has begun
    for waiting in (*crowd, other):
        assert not budget.may_start(waiting, 0)
    while len(served) < 400:
        costly.time.step()
    assert 199 <= served.count("other") <= 201
    assert 4 <= min(numbers.values()) <= max(numbers.values()) <= 6
    assert len(budget) == 41
    for waiting in (*crowd, other):
        budget.leave(waiting)
    assert not budget


class _Asking:
    """A connection with `left` requests, which take `cost_ns` each."""

    def __init__(
        self, budget: StartBudget, time: VirtualTime, asker: str, cost_ns: int, left: int = 1
    ) -> None:
        self._budget = budget
        self._time = time
        self.asker = asker
        self._cost_ns = cost_ns
        self.left = left
        self.started = 0
        self.shared_until_ns = self.share_ns = 0
        self.shared_by: object = None

    def resume_starting(self) -> None:
        budget = self._budget
        while self.left:
            if budget.started_ns >= budget.until_ns and not budget.may_start(
                self, self._time.now_ns
            ):
                return
            budget.started_ns = self._time.now_ns
            self._time.now_ns += self._cost_ns
            self.left -= 1
            self.started += 1

    def ask(self, left: int = 1) -> None:
        """Add requests to a connection that has none."""
        assert not self.left
        self.left = left
        self.resume_starting()


MANY = 1_000_000


def spend(time: VirtualTime, span_ns: int) -> None:
    end_ns = time.now_ns + span_ns
    while time.now_ns < end_ns:
        assert time.step()


def wait_for(time: VirtualTime, asking: _Asking) -> int:
    """Run until it has no waiting request. Return the time that took (ns)."""
    from_ns = time.now_ns
    while asking.left:
        assert time.step()
    return time.now_ns - from_ns


def crowd_of(costly: CostlyWorld, budget: StartBudget, count: int) -> list[_Asking]:
    """Return `count` principals, each with one connection that always has requests."""
    crowd = [_Asking(budget, costly.time, f"crowd {n}", COST_NS, MANY) for n in range(count)]
    for one in crowd:
        one.resume_starting()
    spend(costly.time, 2 * count * SHARE_NS)
    return crowd


def test_nobody_waits_for_the_new_connections_of_another(costly: CostlyWorld) -> None:
    """A principal has one share for all its connections, however many they are."""
    budget, time = StartBudget(costly.clock), costly.time
    crowd_of(costly, budget, 1)
    honest = _Asking(budget, time, "honest", COST_NS)
    honest.resume_starting()
    wait_for(time, honest)
    burst = [_Asking(budget, time, "burst", SHARE_NS) for _ in range(1000)]
    for one in burst:
        one.resume_starting()
    honest.ask()
    assert wait_for(time, honest) <= 2 * START_NS
    spend(time, 1000 * SHARE_NS)
    assert 450 <= sum(one.started for one in burst) <= 550


def test_what_is_used_while_others_of_a_user_wait_costs_no_more(costly: CostlyWorld) -> None:
    """Those connections are gone; the next request of the remaining one does not pay for them."""
    budget, time = StartBudget(costly.clock), costly.time
    crowd_of(costly, budget, 9)
    large = _Asking(budget, time, "user", SHARE_NS)
    small = [_Asking(budget, time, "user", MS // 10) for _ in range(500)]
    for one in (large, *small):
        one.resume_starting()
    for one in (large, *small):
        wait_for(time, one)
    large.ask()
    assert wait_for(time, large) <= 3 * START_NS


def test_a_user_that_comes_with_new_connections_has_one_share(costly: CostlyWorld) -> None:
    """A principal's use is remembered while none of its connections waits."""
    budget, time = StartBudget(costly.clock), costly.time
    crowd = crowd_of(costly, budget, 9)
    before = sum(one.started for one in crowd)
    served = 0
    for _ in range(100):
        guest = _Asking(budget, time, "guest", SHARE_NS)
        guest.resume_starting()
        wait_for(time, guest)
        served += SHARE_NS
    others = (sum(one.started for one in crowd) - before) * COST_NS
    assert served * 9 <= others * 1.2


def test_a_user_that_was_away_has_nothing_in_hand(costly: CostlyWorld) -> None:
    budget, time = StartBudget(costly.clock), costly.time
    (other,) = crowd_of(costly, budget, 1)
    user = _Asking(budget, time, "user", COST_NS)
    user.resume_starting()
    wait_for(time, user)
    spend(time, 100 * START_NS)
    before = other.started
    user.started = 0
    user.ask(MANY)
    spend(time, 10 * START_NS)
    assert user.started * COST_NS <= (other.started - before) * COST_NS + 2 * SHARE_NS


def test_users_that_came_once_are_forgotten(costly: CostlyWorld) -> None:
    """They are forgotten even if others wait all the time."""
    budget, time = StartBudget(costly.clock), costly.time
    crowd = crowd_of(costly, budget, 2)
    guests = [_Asking(budget, time, f"guest {n}", SHARE_NS) for n in range(200)]
    for guest in guests:
        guest.resume_starting()
    known = [ref(guest.shared_by) for guest in guests]
    for guest in guests:
        wait_for(time, guest)
    guests.clear()
    del guest
    spend(time, 10 * START_NS)
    assert len(budget) == len(crowd)
    assert sum(asker() is not None for asker in known) <= LEFT_MAX + 2 * len(crowd)


def test_connections_that_have_left_are_forgotten(costly: CostlyWorld) -> None:
    """They are forgotten even while another connection of their user waits unserved."""
    budget = StartBudget(costly.clock)
    crowd_of(costly, budget, 1)
    known = []
    for _ in range(1000):
        one = _Asking(budget, costly.time, "crowd 0", COST_NS)
        one.resume_starting()
        budget.leave(one)
        known.append(ref(one))
    assert len(budget) == 1
    assert sum(one() is not None for one in known) <= LEFT_MAX + 3


def test_a_connection_that_logs_in_while_it_waits_takes_turns_with_its_user(
    costly: CostlyWorld,
) -> None:
    """Until it is served, it waits under its old name. Afterwards its part equals that of its
    user's other connections, whatever it has used before."""
    budget, time = StartBudget(costly.clock), costly.time
    crowd_of(costly, budget, 1)
    users = [_Asking(budget, time, "user", COST_NS, MANY) for _ in range(4)]
    late = _Asking(budget, time, "10.0.0.1", COST_NS, MANY)
    for one in (*users, late):
        one.resume_starting()
    spend(time, 40 * START_NS)
    assert late.started > 2 * max(one.started for one in users)
    late.asker = "user"
    spend(time, 5 * START_NS)
    for one in (*users, late):
        one.started = 0
    spend(time, 40 * START_NS)
    assert min(one.started for one in users) > 0
    assert late.started >= min(one.started for one in users) - 2 * SHARE_NS // COST_NS
    assert late.started <= max(one.started for one in users) + 2 * SHARE_NS // COST_NS
    late.asker = "another"  # again; it leaves before it is served
    waiting = len(budget)
    budget.leave(late)
    assert len(budget) == waiting - 1
    for one in users:
        budget.leave(one)
    assert len(budget) == 1
    spend(time, START_NS)


def test_small_requests_do_not_wait_for_a_crowd_that_is_as_new(
    costly: CostlyWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The crowd's use is still unknown. Small requests have a small part of a turn, so that the
    crowd is served too."""
    crowd = [costly.client() for _ in range(100)]
    with monkeypatch.context() as patch:
        patch.setattr(admission, "SMALL_REQUEST_BYTES", 0)
        for client in crowd:
            ask(client, 80)
    small = [costly.client() for _ in range(20)]
    for client in small:
        ask(client)
    before = len(costly.started)
    costly.run(5 * (START_NS // MS))
    numbers = [client.session.info.id for client in small]
    served = [number for number in costly.started[before:] if number in numbers]
    assert served == numbers[: len(served)], "in the order in which they came"
    assert len(served) >= 3 * SHORT_NS // SMALL_PARTS // COST_NS
    assert len(served) * 2 <= len(costly.started) - before


def test_one_that_waits_alone_has_the_turn_for_itself(costly: CostlyWorld) -> None:
    costly.cost_ns = COSTLY_NS // 2
    client = costly.client()
    for _ in range(5):
        ask(client, 80)
    before = len(costly.started)
    while len(costly.started) == before:
        costly.time.step()
    assert len(costly.started) - before > 2 * SHARE_NS // costly.cost_ns


@pytest.mark.parametrize("connections", [1, 40])
@pytest.mark.parametrize(
    ("cost_ns", "turn_ns"), [(COSTLY_NS // 2, START_NS), (2 * COSTLY_NS, SHORT_NS)]
)
def test_turn_is_long_only_where_requests_are_small(
    costly: CostlyWorld, cost_ns: int, turn_ns: int, connections: int
) -> None:
    """A turn has a fixed cost, which many small requests share. A few costly requests would make
    every record wait 100 ms in each of the turns that it passes through."""
    costly.cost_ns = cost_ns
    beats: list[int] = []

    def beat() -> None:
        beats.append(costly.clock.now_ns())
        costly.clock.call_later(1 * MS, beat)

    beat()
    clients = [costly.client() for _ in range(connections)]
    for _ in range(400 // connections):
        for client in clients:
            ask(client)
    costly.run(2_000)
    assert sum(len(client.answers()) for client in clients) == 400
    longest = max(after - before for before, after in pairwise(beats))
    assert turn_ns <= longest + 1 * MS
    # Small requests may exceed their part, and so may the turn.
    assert longest <= turn_ns + 1 * MS + 3 * cost_ns


def test_small_requests_that_are_costly_do_not_take_all_of_each_turn(
    costly: CostlyWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They have their part of a turn, and the others get at least one request."""
    costly.cost_ns = 3 * SHORT_NS
    crowd = [costly.client() for _ in range(40)]
    large = costly.client(("10.0.0.2", 1))
    ask(crowd[0])
    for client in crowd:
        ask(client, 5)
    monkeypatch.setattr(admission, "SMALL_REQUEST_BYTES", 0)
    ask(large)
    costly.run(6 * costly.cost_ns // MS)
    assert large.session.info.id in costly.started


def test_who_waits_and_sends_more_is_not_read(costly: CostlyWorld) -> None:
    """The backlog of a waiting connection is bounded by one read; the rest stays with the
    client."""
    first, second = costly.client(), costly.client()
    ask(first, 60)
    ask(second, 3)
    assert second.reading, "it has not sent more"
    ask(second, 3)
    assert not second.reading
    assert costly.frontend.turn.record_budget.oldest_ns() == 0, "until now it was served"
    costly.time.now_ns += 7 * MS
    assert costly.frontend.turn.record_budget.oldest_ns() == 7 * MS
    costly.run(1_000)
    assert costly.frontend.turn.record_budget.oldest_ns() == 0
    assert second.reading
    assert len(second.answers()) == 6


def test_a_client_whose_request_has_not_started_may_go_away(costly: CostlyWorld) -> None:
    first, second = costly.client(), costly.client()
    ask(first, 60)
    ask(second, 3)
    assert len(costly.frontend.turn.record_budget) == 2
    second.session.connection_lost()
    first.session.connection_lost()
    assert not costly.frontend.turn.record_budget
    costly.run(1_000)
    assert second.session.info.id not in costly.started
    third = costly.client()
    ask(third)
    costly.run(1)
    assert len(third.answers()) == 1
