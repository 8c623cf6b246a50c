"""In-memory host with the semantics of the real one, and a client that speaks bytes.

The fake keeps the guarantees that the front end relies on: `append` takes its place at once and is
answered when it commits, only committed data is readable, waiters are woken once a turn, read index
and serving are gates, and commands are applied to a real `Catalog`. The test decides when appends
commit, who leads and which batches are on disk. Virtual time comes from the simulator.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from struct import Struct
from typing import Any

from rpc.queries import Quorum
from segments.api import NotInMemory, OffsetOutOfRange, Slices, StorageError
from tests.wire import codec
from vdl.clock import MS, NEVER
from vdl.errors import ErrorCode
from vdl.kafka.configs.options import KafkaOptions
from vdl.kafka.connections.frontend import Frontend
from vdl.kafka.connections.session import Session
from vdl.kafka.context import Context
from vdl.kafka.host import Verify
from vdl.kafka.wire import registry
from vdl.kafka.wire.header import (
    RequestHeader,
    decode_response_header,
    encode_request_header,
    response_header_is_flexible,
)
from vdl.logstream.group.measures import TopicTraffic
from vdl.logstream.group.offset_for_time import (
    NO_RECORD,
    TimedOffset,
    find_offset_of_largest_time,
)
from vdl.logstream.group.state_group import Outcome, OutcomeKind
from vdl.records.batch import (
    BatchFields,
    BatchHeader,
    Record,
    build_batch,
    first_at_or_after,
    patch_position,
    read_header,
)
from vdl.sim.clock import NodeClock, VirtualTime
from vdl.state import commands
from vdl.state.aborted import AbortedRange
from vdl.state.answer import CommandAnswer
from vdl.state.catalog import Catalog
from vdl.state.coordinator import Coordinator
from vdl.state.producers import ActiveProducer

LISTENER = "PLAINTEXT"
WALL_MS = 1_700_000_000_000


@dataclass(slots=True)
class FakeAppended:
    error: ErrorCode
    base_offset: int = -1
    log_start_offset: int = -1
    duplicate_timestamp: int | None = None


@dataclass(slots=True)
class FakeBatch:
    base_offset: int
    end_offset: int
    term: int
    data: bytes
    done: Callable[[FakeAppended], None] | None
    timestamp: int = -1


class FakeWait:
    def __init__(self, offset: int, stable_offset: int, callback: Callable[[], None]) -> None:
        self.offset = offset
        self.stable_offset = stable_offset
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        self.callback = None


class FakeStream:
    """Log of one partition.

    With `auto_commit` an append commits one turn later, else at `commit`.
    """

    def __init__(self, clock: NodeClock, group_id: int) -> None:
        self.clock = clock
        self.group_id = group_id
        self.is_leader = True
        self.serving = True
        self.is_proved = True
        self.term = 5
        self.leader_server = 1
        self.log_start_offset = 0
        self.high_watermark = 0
        self.auto_commit = True
        self.quorum = True
        self.on_disk_below = 0
        """Batches below this offset are not in memory."""
        self.cold_reads = 0
        self.is_cold_read_at_once = False
        """True if a cold read completes before the call returns, as when readers share it."""
        self.sizes_asked = 0
        self.active_producers: list[ActiveProducer] = []
        self.cold_error: StorageError | None = None
        self.segments_error: StorageError | None = None
        self.batches: list[FakeBatch] = []
        self.copies_asked: list[int] = []
        """`copies_min` of each append."""
        self.waits: list[FakeWait] = []
        self.asked: list[Callable[[bool], None]] = []
        self.committing = False
        self.open_offset: int | None = None
        """First offset of the oldest open transaction."""
        self.aborted_ranges: list[AbortedRange] = []
        self.aborted_age = 0
        self.traffic = TopicTraffic()
        self.duplicate_timestamp: int | None = None
        """If set, every batch is reported as a duplicate of one with this timestamp."""

    @property
    def end_offset(self) -> int:
        return self.batches[-1].end_offset if self.batches else 0

    def append(
        self,
        batch: memoryview,
        header: BatchHeader,
        *,
        copies_min: int = 1,
        deadline_ns: int,
        done: Callable[[FakeAppended], None],
        verify: Verify | None = None,
        begins_epoch: bool = False,
    ) -> None:
        self.copies_asked.append(copies_min)
        if not self.is_leader:
            done(FakeAppended(ErrorCode.NOT_LEADER_OR_FOLLOWER))
            return
        if header.is_transactional:
            assert verify is not None, "every transactional batch can be verified"

            def verified(error: ErrorCode) -> None:
                if error is ErrorCode.NONE:
                    self._take(batch, header, done)
                else:
                    done(FakeAppended(error))

            verify(verified)
        else:
            self._take(batch, header, done)

    def _take(
        self, batch: memoryview, header: BatchHeader, done: Callable[[FakeAppended], None]
    ) -> None:
        base = self.end_offset
        patch_position(batch, base_offset=base, leader_epoch=self.term)
        self.batches.append(
            FakeBatch(
                base, base + header.count, self.term, bytes(batch), done, header.max_timestamp
            )
        )
        if self.auto_commit and not self.committing:
            self.committing = True
            self.clock.call_soon(self.commit)

    def commit(self) -> None:
        """Commit all appended batches and notify waiters and long polls."""
        self.committing = False
        for batch in self.batches:
            self.high_watermark = batch.end_offset
            if batch.done is not None:
                done, batch.done = batch.done, None
                done(
                    FakeAppended(
                        ErrorCode.NONE,
                        batch.base_offset,
                        self.log_start_offset,
                        self.duplicate_timestamp,
                    )
                )
        self.wake_readers()

    @property
    def last_stable_offset(self) -> int:
        end = self.high_watermark
        return end if self.open_offset is None else min(end, self.open_offset)

    def aborted(self, start: int, end: int) -> list[AbortedRange]:
        return [
            one
            for one in self.aborted_ranges
            if one.last_offset >= start and one.first_offset < end
        ]

    def end_open(self) -> None:
        """End the oldest open transaction; no other is open."""
        self.open_offset = None
        self.wake_readers()

    def wake_readers(self) -> None:
        stable, end = self.last_stable_offset, self.high_watermark
        self.wake(lambda wait: wait.offset < end or wait.stable_offset < stable)

    def wake(self, due: Callable[[FakeWait], bool]) -> None:
        woken = [wait for wait in self.waits if due(wait)]
        self.waits = [wait for wait in self.waits if not due(wait) and wait.callback]
        for wait in woken:
            if wait.callback is not None:
                wait.callback()

    def delete_records(
        self, offset: int, *, deadline_ns: int, done: Callable[[ErrorCode], None]
    ) -> None:
        offset = self.high_watermark if offset == -1 else offset
        if offset > self.high_watermark:
            done(ErrorCode.OFFSET_OUT_OF_RANGE)
            return

        def applied() -> None:
            self.log_start_offset = max(self.log_start_offset, offset)
            done(ErrorCode.NONE)
            self.wake(lambda wait: True)

        self.clock.call_soon(applied)

    def lose_leadership(self) -> None:
        """Hand leadership to another server; the outcome of uncommitted batches is unknown."""
        self.is_leader = self.serving = False
        self.term += 1
        for batch in self.batches:
            if batch.done is not None:
                done, batch.done = batch.done, None
                done(FakeAppended(ErrorCode.REQUEST_TIMED_OUT))
        asked, self.asked = self.asked, []
        for one in asked:
            one(False)
        self.wake(lambda wait: True)

    def start_serving(self) -> None:
        self.serving = True
        asked, self.asked = self.asked, []
        for one in asked:
            one(True)

    def read(self, offset: int, bytes_max: int, *, stable: bool = False) -> Slices:
        if offset < self.on_disk_below:
            raise NotInMemory(offset, self.on_disk_below)
        return self._slices(offset, bytes_max, stable=stable)

    def _slices(self, offset: int, bytes_max: int, *, stable: bool) -> Slices:
        end = self.last_stable_offset if stable else self.high_watermark
        if not self.log_start_offset <= offset <= self.high_watermark:
            raise OffsetOutOfRange
        found = Slices(first_offset=offset, end_offset=offset)
        for batch in self.batches:
            if batch.end_offset <= offset or batch.end_offset > end:
                continue
            if found.bytes and found.bytes + len(batch.data) > bytes_max:
                break
            found.buffers.append(memoryview(batch.data))
            found.bytes += len(batch.data)
            found.end_offset = batch.end_offset
        return found

    def read_cold(
        self,
        offset: int,
        bytes_max: int,
        done: Callable[[Slices | StorageError], None],
        *,
        stable: bool = False,
    ) -> None:
        self.cold_reads += 1
        answer = self.cold_error or self._slices(offset, bytes_max, stable=stable)
        if self.is_cold_read_at_once:
            done(answer)
            return
        self.clock.call_later(2 * MS, lambda: done(answer))

    def wait_for(
        self, offset: int, callback: Callable[[], None], *, stable_offset: int = NEVER
    ) -> FakeWait:
        wait = FakeWait(offset, stable_offset, callback)
        self.waits.append(wait)
        return wait

    def prove(self, *, deadline_ns: int, done: Callable[[bool], None]) -> None:
        def proved(passed: bool) -> None:
            self.is_proved = passed
            done(passed)

        self.read_index(deadline_ns=deadline_ns, done=proved)

    def read_index(self, *, deadline_ns: int, done: Callable[[bool], None]) -> None:
        quorum = self.quorum and self.is_leader
        self.clock.call_later(MS, lambda: done(quorum))

    def when_serving(self, *, deadline_ns: int, done: Callable[[bool], None]) -> None:
        if self.serving or not self.is_leader:
            done(self.serving)
        else:
            self.asked.append(done)

    def segment_starts(self, done: Callable[[Any], None]) -> None:
        """Report each batch as a segment of its own."""
        committed = [one for one in self.batches if one.end_offset <= self.high_watermark]
        starts = [
            (max(one.base_offset, self.log_start_offset), one.timestamp)
            for one in committed
            if one.end_offset > self.log_start_offset
        ]
        self.clock.call_soon(lambda: done(self.segments_error or starts))

    def offset_for_time(self, timestamp_ms: int, done: Callable[[Any], None]) -> None:
        for batch in self.batches:
            if batch.end_offset <= self.high_watermark:
                record = first_at_or_after(memoryview(batch.data), timestamp_ms)
                if record is not None:
                    done(TimedOffset(*record, batch.term))
                    return
        done(NO_RECORD)

    def offset_of_largest_time(self, done: Callable[[Any], None]) -> None:
        times = [batch.timestamp for batch in self.batches]
        find_offset_of_largest_time(max(times, default=-1), self.offset_for_time, done)

    def producers(self) -> list[ActiveProducer]:
        return self.active_producers

    def stored_bytes(self, done: Callable[[int | StorageError], None]) -> None:
        self.sizes_asked += 1
        size = sum(len(batch.data) for batch in self.batches)
        answer = self.cold_error or size
        self.clock.call_later(MS, lambda: done(answer))

    def earliest_epoch(self, done: Callable[[int], None]) -> None:
        kept = [batch for batch in self.batches if batch.end_offset > self.log_start_offset]
        self.clock.call_soon(lambda: done(kept[0].term if kept else self.term))

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        if epoch == self.term:
            return epoch, self.high_watermark
        if not 0 <= epoch < self.term:
            return -1, -1
        older = [batch for batch in self.batches if batch.term <= epoch]
        if not older or older[-1].end_offset <= self.log_start_offset:
            return epoch, self.log_start_offset
        return older[-1].term, older[-1].end_offset


class FakeHost:
    """Server 1 of three; the catalog is real and decides at the next turn."""

    def __init__(self, clock: NodeClock) -> None:
        self.clock = clock
        self.server_id = 1
        self.cluster_id = "fake"
        self.catalog = Catalog(self.cluster_id)
        self.coordinator_count = 8
        self.overloaded = False
        self.awaited_disk_ns = 0
        self.large_bytes = 0
        self.takes_large = True
        self.alive = [1, 2, 3]
        self.silent: set[int] = set()
        self.in_sync = [1, 2, 3]
        self.preferred = -1
        """Read replica that the host chooses."""
        self.may_follow = False
        """True if a follower on this server may serve reads."""
        self.preference_asked: list[tuple[str, int]] = []
        """Rack and offset of each lookup of a read replica."""
        self.lost: dict[int, tuple[int, int]] = {}
        """Group → time at which it lost its leader, and the server that failed."""
        self.is_heard = True
        self.streams: dict[int, FakeStream] = {}
        self.leaders: dict[int, tuple[int, int]] = {0: (2, 7)}
        self.catalog_outcome = OutcomeKind.APPLIED
        self.leaders_at_once = True
        self.unled_ns = 0
        self.kept: set[int] = set()
        """Groups whose leaders refuse a leadership transfer."""
        self.says_nothing = False
        """True if leaders that are requested to transfer leadership neither do so nor answer."""
        self.commands: list[Any] = []
        """Commands sent to other groups."""
        self.command_outcome = Outcome(OutcomeKind.APPLIED, CommandAnswer(ErrorCode.NONE))
        self.quorum: Quorum | None = None
        self.coordinator: Coordinator | None = None
        """Coordinator of all keys, if there is one."""
        self._applied = 0
        self.on_catalog_change: Callable[[], None] = lambda: None
        for server_id in (1, 2, 3):
            self.apply(
                commands.RegisterServer(
                    server_id,
                    bytes([server_id]) * 16,
                    f"rack{server_id}",
                    {LISTENER: (f"host{server_id}", 9090 + server_id)},
                    True,
                )
            )

    def agreed_ms(self) -> int:
        return self.clock.wall_ms()

    def command_group(
        self, group_id: int, data: bytes, *, deadline_ns: int, done: Callable[[Outcome], None]
    ) -> None:
        """Record the command; `self.command_outcome` is its outcome, at the next turn.

        With a coordinator the command is applied there instead, a moment later.
        """
        command = commands.decode_command(data)
        self.commands.append(command)
        coordinator = self.coordinator

        def decide() -> None:
            outcome = self.command_outcome
            if coordinator is not None and outcome.kind is OutcomeKind.APPLIED:
                result = coordinator.apply(command, WALL_MS, len(self.commands))
                outcome = Outcome(OutcomeKind.APPLIED, result)
            done(outcome)

        if coordinator is None:
            self.clock.call_soon(decide)
        else:
            self.clock.call_later(MS, decide)

    def apply(self, command: Any) -> Any:
        self._applied += 1
        result = self.catalog.apply(command, self.agreed_ms(), self._applied)
        for group_id, info in self.catalog.groups.items():
            leader = info.replicas[0].server_id
            if self.leaders_at_once:
                self.leaders.setdefault(group_id, (leader, 5))
            if leader == self.server_id:
                self.streams.setdefault(group_id, FakeStream(self.clock, group_id))
        for group_id in [group for group in self.streams if group not in self.catalog.groups]:
            self.streams.pop(group_id).lose_leadership()
        self.on_catalog_change()
        return result

    def leader_of(self, group_id: int) -> tuple[int, int]:
        return self.leaders.get(group_id, (-1, -1))

    def stream(self, group_id: int) -> FakeStream | None:
        return self.streams.get(group_id)

    def state_group(self, group_id: int) -> None:
        return None

    def propose_catalog(
        self, command: Any, *, deadline_ns: int, done: Callable[[Outcome], None]
    ) -> None:
        def decide() -> None:
            result = None
            if self.catalog_outcome is OutcomeKind.APPLIED:
                result = self.apply(command)
            done(Outcome(self.catalog_outcome, result))

        self.clock.call_soon(decide)

    def written_after(self, since_ns: int) -> int:
        return 0

    def disk_space(self, done: Callable[[tuple[int, int] | StorageError], None]) -> None:
        self.clock.call_later(MS, lambda: done((1000, 400)))

    def elect_preferred(
        self,
        leader: int,
        groups: Sequence[int],
        *,
        deadline_ns: int,
        done: Callable[[frozenset[int] | None], None],
    ) -> None:
        def hand_over() -> None:
            if self.says_nothing:
                done(None)
                return
            for group_id in groups:
                assert self.leaders[group_id][0] == leader
                if group_id not in self.kept:
                    term = self.leaders[group_id][1] + 1
                    first = self.catalog.groups[group_id].replicas[0].server_id
                    self.leaders[group_id] = (first, term)
            done(frozenset(groups) & self.kept)

        self.clock.call_soon(hand_over)

    def describe_quorum(self, *, deadline_ns: int, done: Callable[[Quorum | None], None]) -> None:
        self.clock.call_soon(lambda: done(self.quorum))

    def alive_servers(self) -> list[int]:
        return self.alive

    def takes_large_batches(self) -> bool:
        return self.takes_large

    def silent_servers(self) -> set[int]:
        return self.silent

    def in_sync_of(self, group_id: int) -> tuple[int, ...]:
        return tuple(self.in_sync)

    def in_sync_under(self, group_id: int, led: tuple[int, int]) -> tuple[int, ...]:
        return self.in_sync_of(group_id)

    def may_serve_reads(self, group_id: int) -> bool:
        return self.may_follow

    def read_replica(self, group_id: int, rack: str, offset: int) -> int:
        self.preference_asked.append((rack, offset))
        return self.preferred

    @property
    def leader_lost_ns(self) -> int:
        return max((when for when, _ in self.lost.values()), default=0)

    def lost_leader(self, group_id: int) -> tuple[int, int]:
        return self.lost.get(group_id, (0, 0))

    def confirm_links(self, done: Callable[[bool], None]) -> None:
        self.clock.call_soon(partial(done, self.is_heard))

    def coordinator_group(self, key: str) -> int:
        return 1 + len(key) % self.coordinator_count


@dataclass(slots=True)
class FakeLog:
    """Log that keeps its events for tests to inspect."""

    events: list[tuple[str, str, dict[str, Any]]] = field(default_factory=list)

    def note(self, event: str, **fields: Any) -> None:
        self.events.append(("", event, fields))

    def info(self, event: str, **fields: Any) -> None:
        self.events.append(("info", event, fields))

    def warning(self, event: str, **fields: Any) -> None:
        self.events.append(("warning", event, fields))

    def error(self, event: str, **fields: Any) -> None:
        self.events.append(("error", event, fields))


class Client:
    """One connection: collects what the server sends and serves as the server's transport."""

    def __init__(self, world: World, peer: tuple[str, int]) -> None:
        self.world = world
        self.received = bytearray()
        self.sends = 0
        self.closed = False
        self.aborted = False
        self.reading = True
        self.room = 1 << 40
        """Number of bytes that its socket still accepts."""
        self.expected: list[tuple[int, int, int]] = []
        self._correlation_id = 0
        session = world.frontend.accept(self, LISTENER, peer)
        assert session is not None, "refused"
        self.session: Session = session

    # --- the server's transport --------------------------------------------------------------
    def send(self, buffers: Any) -> list[Any]:
        self.sends += 1
        for position, buffer in enumerate(buffers):
            if len(buffer) > self.room:
                self.received += memoryview(buffer)[: self.room]
                rest = [memoryview(buffer)[self.room :], *buffers[position + 1 :]]
                self.room = 0
                return rest
            self.room -= len(buffer)
            self.received += buffer
        return []

    def close(self, rest: Any) -> None:
        for buffer in rest:
            self.received += buffer
        self.closed = True

    def abort(self) -> None:
        self.closed = self.aborted = True

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    # --- the client ----------------------------------------------------------------------------
    def frame(self, api_key: int, version: int, body: bytes) -> bytes:
        """Return a request frame, and record that a response is expected."""
        self._correlation_id += 1
        header = encode_request_header(
            RequestHeader(api_key, version, self._correlation_id, "fake"),
            is_flexible=version >= registry.FLEXIBLE_FROM.get(api_key, 99),
        )
        self.expected.append((api_key, version, self._correlation_id))
        return Struct(">i").pack(len(header) + len(body)) + header + body

    def request(self, api_key: int, version: int, message: Any) -> None:
        body = b"".join(codec(api_key).encode_request(message, version))
        self.session.receive(self.frame(api_key, version, body))

    def answers(self) -> list[Any]:
        """Return the decoded responses that have arrived, in order of the requests."""
        found = []
        view = memoryview(bytes(self.received))
        position = 0
        while len(view) - position >= 4:
            (size,) = Struct(">i").unpack_from(view, position)
            frame = view[position + 4 : position + 4 + size]
            assert len(frame) == size, "an answer was cut off"
            api_key, version, correlation_id = self.expected.pop(0)
            flexible = response_header_is_flexible(api_key, version, registry.FLEXIBLE_FROM)
            got, start = decode_response_header(frame, is_flexible=flexible)
            assert got == correlation_id, "answers out of order"
            found.append(codec(api_key).decode_response(frame[start:], version))
            position += 4 + size
        self.received.clear()
        return found

    def ask(self, api_key: int, version: int, message: Any, wait_ms: int = 50) -> Any:
        """Send one request and return its response."""
        self.request(api_key, version, message)
        self.world.run(wait_ms)
        (answer,) = self.answers()
        return answer


class World:
    """Front end over a fake host on virtual time."""

    def __init__(
        self,
        options: KafkaOptions | None = None,
        time: VirtualTime | None = None,
        most_of: Mapping[str, int] | None = None,
    ) -> None:
        self.time = time or VirtualTime()
        self.clock = NodeClock(self.time, wall_base_ms=WALL_MS)
        self.host = FakeHost(self.clock)
        self.log = FakeLog()
        self._drawn = 0
        self.context = Context(
            self.host, options or KafkaOptions(), self.clock, self.log, self._random_bytes
        )
        self.frontend = Frontend(self.context, most_of)
        self.host.on_catalog_change = self.context.follow_catalog

    def _random_bytes(self, count: int) -> bytes:
        self._drawn += 1
        return self._drawn.to_bytes(count, "big")

    def client(self, peer: tuple[str, int] = ("10.0.0.1", 5000)) -> Client:
        return Client(self, peer)

    def run(self, ms: float = 50) -> None:
        self.time.run_until(self.time.now_ns + int(ms * MS))

    def topic(
        self,
        name: str = "t",
        partitions: int = 1,
        configs: dict[str, str] | None = None,
        servers: tuple[int, ...] = (1, 2, 3),
    ) -> list[FakeStream]:
        """Create a topic and return the logs of its partitions on this server.

        This server leads the topic unless `servers` begins with another one.
        """
        self.host.apply(
            commands.CreateTopics(
                [
                    commands.NewTopic(
                        name,
                        self._random_bytes(16),
                        assignments=[list(servers)] * partitions,
                        configs=configs or {},
                    )
                ]
            )
        )
        topic = self.host.catalog.topics[name]
        streams = self.host.streams
        return [streams[group] for group in topic.partitions if group in streams]


def batch(count: int = 1, size: int = 10, timestamp: int = WALL_MS, **fields: Any) -> bytearray:
    """Return a sealed batch of `count` records."""
    return build_batch(
        [Record(None, bytes(size), timestamp=timestamp + index) for index in range(count)],
        BatchFields(**fields),
    )


def fill(stream: FakeStream, count: int = 1, size: int = 10) -> None:
    """Append and commit one batch."""
    data = memoryview(batch(count, size))
    stream.append(data, read_header(data), deadline_ns=0, done=lambda _: None)
    stream.commit()
