"""Three hosts in one thread on virtual time, over the in-memory store and the in-process network.

All layers above the disk and below the front end are real.
"""

import random
from collections.abc import Callable
from typing import Any, TypeVar

import pytest

from rpc.hello import Hello, RejectReason
from rpc.links import Links
from rpc.memory import Network
from segments.api import StorageError, Write
from segments.io.inline_workers import InlineWorkers
from segments.memory import MemoryStore
from tests.unit.logstream.front import ChosenFront
from vdl.clock import MS
from vdl.logstream.bootstrap import BirthRecord
from vdl.logstream.group.appends import Appended
from vdl.logstream.group.log_stream import LogStream
from vdl.logstream.group.state_group import Outcome, OutcomeKind
from vdl.logstream.host import Host
from vdl.logstream.options import HostOptions
from vdl.logstream.peers.journal_marks import boots_info
from vdl.logstream.state import HostState
from vdl.records.batch import BatchFields, Record, build_batch, read_header
from vdl.sim.clock import NodeClock, SimTimer, VirtualTime
from vdl.state.commands import CreateTopics, DeleteTopics, NewTopic, RegisterServer

T = TypeVar("T")
SYNC_NS = 300_000
SERVERS = (1, 2, 3)
CLOCK_HOLD_MS = 30_000
"""Longer than nearly all tests: the catalog's log has one note of the time."""


class DelayWorkers:
    """Workers with simulated delays.

    Jobs take `SYNC_NS` each. Those of the journal run one after the other and take `sync_ns`;
    `hold` stops the journal.
    """

    def __init__(self, clock: NodeClock) -> None:
        self._clock = clock
        self._free_at = 0
        self.sync_ns = SYNC_NS
        self.held: list[Callable[[], None]] | None = None

    def journal(self, job: Callable[[], T], done: Callable[[T | BaseException], None]) -> None:
        if self.held is not None:
            self.held.append(lambda: self.journal(job, done))
            return
        now_ns = self._clock.now_ns()
        self._free_at = max(self._free_at, now_ns) + self.sync_ns
        self._clock.call_later(self._free_at - now_ns, lambda: done(job()))

    def write(self, write: Write, done: Callable[[int | BaseException], None]) -> None:
        self.journal(write.run, done)

    def compute(self, job: Callable[[], T], done: Callable[[T | BaseException], None]) -> None:
        self.pool(job, done)

    def pool(self, job: Callable[[], T], done: Callable[[T | BaseException], None]) -> None:
        def run() -> None:
            result: T | BaseException
            try:
                result = job()
            except StorageError as error:  # a worker hands failures to its owner
                result = error
            done(result)

        self._clock.call_later(SYNC_NS, run)

    def payload(self, job: Callable[[], T], done: Callable[[T | BaseException], None]) -> None:
        self.pool(job, done)

    def essential(self, job: Callable[[], T], done: Callable[[T | BaseException], None]) -> None:
        self.pool(job, done)

    def files(self, job: Callable[[], T], done: Callable[[T | BaseException], None]) -> None:
        self.pool(job, done)

    def call_later(self, delay_ms: int, fn: Callable[[], None]) -> SimTimer:
        return self._clock.call_later(delay_ms * MS, fn)

    def hold(self) -> None:
        """Let the journal's disk hang."""
        self.held = []

    def release(self) -> None:
        """Let the journal's disk continue."""
        held, self.held = self.held or [], None
        for job in held:
            job()


class ErrorLog:
    """A log whose events tests can read."""

    def __init__(self) -> None:
        self.errors: list[tuple[str, str]] = []
        """(event, partition) of each error; the partition is empty for none."""
        self.fields: list[tuple[str, dict[str, Any]]] = []
        self.others: list[tuple[str, dict[str, Any]]] = []
        """Events that are no errors."""
        self.notes: list[tuple[str, dict[str, Any]]] = []
        """Events that have no line."""

    def note(self, event: str, **fields: Any) -> None:
        self.notes.append((event, fields))

    def info(self, event: str, **fields: Any) -> None:
        self.others.append((event, fields))

    def warning(self, event: str, **fields: Any) -> None:
        self.others.append((event, fields))

    def error(self, event: str, **fields: Any) -> None:
        self.errors.append((event, fields.get("partition", "")))
        self.fields.append((event, fields))


class Node:
    """One server: its store survives crashes, everything else is created anew."""

    host: Host
    clock: NodeClock
    workers: DelayWorkers
    links: Links
    log: ErrorLog
    wall_base_ms = 1_750_000_000_000
    """Base of its wall clock at its next start, as if the world were new."""

    def __init__(self, cluster: "Cluster", server_id: int) -> None:
        self.cluster = cluster
        self.id = server_id
        self.store: MemoryStore | None = None
        self.directories = 0
        self.starts = 0
        self.start()

    def start(self) -> None:
        cluster = self.cluster
        self.clock = NodeClock(cluster.time, wall_base_ms=self.wall_base_ms)
        self.workers = DelayWorkers(self.clock)
        self.log = ErrorLog()
        self.starts += 1
        # Different for each start, except the first of its directory.
        began_ns = 0 if self.store is None else cluster.time.now_ns
        self.store = self.open_store(random.Random(self.id + 10 * self.directories + began_ns))
        node = self

        class Relay:
            def __getattr__(self, name: str) -> Any:
                return getattr(node.host, name)

            def rejected(
                self, server_id: int, reason: RejectReason, text: str, *, by_peer: bool
            ) -> None:
                """Note a rejection, which a server logs; the host is not involved."""
                node.rejected.append((server_id, reason, text, by_peer))

        self.incarnation = cluster.time.now_ns
        self.rejected: list[tuple[int, RejectReason, str, bool]] = []
        dialer = cluster.network.dialer(self.id)
        self.links = Links(self.hello(), dialer, self.clock, random.Random(self.id), Relay())
        self.host = Host(
            HostState(
                server_id=self.id,
                record=cluster.record,
                store=self.store,
                transport=self.links,
                clock=self.clock,
                rng=random.Random(self.id + 100 * self.starts),
                options=cluster.options,
                log=self.log,
                cache_bytes_max=128 << 20,
            )
        )
        cluster.network.listen(self.id, ("node", self.id), self.links.accepted)
        self.front = ChosenFront()
        self.front.on_given_up = lambda: self.links.set_local(self.hello())
        self.host.start(self.front)
        if self.id not in cluster.closed:
            self.host.begin_serving()
        for other in cluster.servers:
            if other != self.id:
                self.links.set_peer(other, ("node", other))

    def open_store(self, rng: random.Random) -> Any:
        """Open the directory that the server has, or a new one."""
        image = self.store.image if self.store is not None else None
        return MemoryStore(self.workers, rng=rng, image=image)

    def hello(self) -> Hello:
        """Return the server's HELLO."""
        assert self.store is not None
        return Hello(
            server_id=self.id,
            directory_id=self.store.directory_id,
            incarnation=self.incarnation,
            cluster_id=self.cluster.record.cluster_id,
            info=boots_info(self.store),
            former_ids=self.cluster.record.former_ids,
        )

    def wipe(self) -> None:
        """Crash and empty the disk: the next start draws another directory id."""
        self.crash()
        self.store = None
        self.directories += 1

    def crash(self) -> None:
        """Crash as by kill -9: state that was not durable is lost."""
        self.clock.stop()
        self.cluster.network.crash(self.id)
        self.cluster.network.stop_listening(("node", self.id))


def make_state(
    server_id: int = 1,
    *,
    record: BirthRecord | None = None,
    store: Any = None,
    transport: Any = None,
    clock: Any = None,
    log: Any = None,
    options: HostOptions | None = None,
    life: int = 0,
) -> HostState:
    """Return the state of a server of which a test needs only some parts.

    `life`: number of its process.
    """
    return HostState(
        server_id=server_id,
        record=record or BirthRecord("cluster", ((1, b"1"), (2, b"2")), 3),
        store=store,
        transport=transport,
        clock=clock or NodeClock(VirtualTime()),
        rng=random.Random(server_id + 100 * life),
        options=options or HostOptions(),
        log=log,
        cache_bytes_max=128 << 20,
    )


def directory_of(server_id: int) -> bytes:
    """Return the directory id that a server's first store draws."""
    return MemoryStore(InlineWorkers(), rng=random.Random(server_id)).directory_id


class Cluster:
    """The hosts, and helpers for tests."""

    node_type = Node

    def __init__(self, servers: tuple[int, ...] = SERVERS, **options: int) -> None:
        self.servers = servers
        self.closed: set[int] = set()
        """Servers that serve no clients after their next start."""
        self.time = VirtualTime()
        self.time.now_ns = 10**12
        world = NodeClock(self.time)
        self.network = Network(world, lambda source, target, size: 200_000)
        often = {"replace_after_ms": 300, "clock_hold_ms": CLOCK_HOLD_MS}
        self.options = HostOptions(held_appends_max=3, **{**often, **options})
        self.record = BirthRecord("cluster", tuple((i, directory_of(i)) for i in servers))
        self.nodes = {i: self.node_type(self, i) for i in servers}
        self.run(100)
        for i in servers:
            directory_id = self.record.directory_of(i) or b""
            self.propose(RegisterServer(i, directory_id, "", {}, True))

    def run(self, ms: float) -> None:
        self.time.run_until(self.time.now_ns + int(ms * MS))

    def true_ms(self) -> int:
        """Return the time of a wall clock that was never set."""
        return Node.wall_base_ms + self.time.now_ns // MS

    def deadline(self, ms: int = 1_000) -> int:
        return self.time.now_ns + ms * MS

    def propose(self, command: Any, *, via: int = 1) -> Any:
        outcomes: list[Outcome] = []
        self.nodes[via].host.propose_catalog(
            command, deadline_ns=self.deadline(), done=outcomes.append
        )
        self.run(200)
        assert [outcome.kind for outcome in outcomes] == [OutcomeKind.APPLIED]
        return outcomes[0].result

    def create_topic(self, name: str = "events", *, via: int = 1) -> int:
        """Create a topic of one partition on all servers. Return its group id."""
        new = NewTopic(name, name.encode().ljust(16), assignments=[list(SERVERS)])
        result = self.propose(CreateTopics([new]), via=via)
        return int(result.topics[0].group_ids[0])

    def delete_topic(self, name: str = "events") -> None:
        self.propose(DeleteTopics([name]))

    def leader(self, group_id: int) -> LogStream:
        """Return the serving leader's stream."""
        for node in self.nodes.values():
            stream = node.host.stream(group_id) if not node.clock.stopped else None
            if stream is not None and stream.serving:
                return stream
        raise AssertionError("nobody serves")

    def new_leader(self, group_id: int, old: LogStream) -> LogStream:
        """Return the serving stream that is not the old leader's."""
        streams = [node.host.stream(group_id) for node in self.nodes.values()]
        (found,) = [s for s in streams if s is not None and s is not old and s.serving]
        return found

    def append(
        self,
        stream: LogStream,
        value: bytes = b"v",
        *,
        ms: int = 1_000,
        timestamp: int = 1_000,
        copies: int = 1,
        **fields: Any,
    ) -> list[Appended]:
        """Append one record. The returned list receives the result."""
        fates: list[Appended] = []
        batch = build_batch([Record(value=value, timestamp=timestamp)], BatchFields(**fields))
        stream.append(
            memoryview(batch),
            read_header(batch),
            copies_min=copies,
            deadline_ns=self.deadline(ms),
            done=fates.append,
        )
        return fates


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


@pytest.fixture
def free_space(monkeypatch: pytest.MonkeyPatch) -> dict[bytes, int]:
    """Return the free space of disks, by directory; unlimited by default."""
    found: dict[bytes, int] = {}
    monkeypatch.setattr(
        MemoryStore,
        "has_room_for",
        lambda store, size: size <= found.get(store.directory_id, 1 << 30),
    )
    return found


@pytest.fixture
def forgetful() -> Cluster:
    """Return hosts that keep very short logs of commands, and check retention often."""
    return Cluster(command_entries_kept=6, retention_check_ms=1_000)


@pytest.fixture
def expiring() -> Cluster:
    """Return hosts that check retention often, with a clock hold of three seconds."""
    return Cluster(retention_check_ms=500, clock_hold_ms=3_000)


@pytest.fixture
def patient() -> Cluster:
    """Return hosts that wait as long as real ones before they retire a directory."""
    return Cluster(replace_after_ms=HostOptions().replace_after_ms)


@pytest.fixture
def tied() -> Cluster:
    """Return hosts whose surviving replicas all campaign in one tick when a leader dies."""
    return Cluster(failover_ticks_min=3, failover_ticks_max=3)


@pytest.fixture
def make_cluster() -> Callable[..., Cluster]:
    """Return the constructor, for hosts with options of a test's own."""
    return Cluster
