"""Servers with real `StateGroup`s, coordinators and handlers over a log that a test commits.

Commands are encoded as the bytes of an entry and applied on every server. The test decides when
they commit, who leads, and whether an old leader's uncommitted entries survive. Time is virtual.
Responses pass through the codec in the requested version, so a test sees only what a client could
read.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from raft.errors import DropReason, ProposalDropped
from raft.types import Entry
from rpc.hello import PROTOCOL_VERSION
from tests.unit.kafka.fake_host import FakeLog
from tests.wire import codec_of
from vdl.clock import MS
from vdl.errors import ErrorCode
from vdl.kafka.answer import InParts, Later, Paused
from vdl.kafka.api import API
from vdl.kafka.configs.options import KafkaOptions
from vdl.kafka.connections.wide_request import wide_answer
from vdl.kafka.context import ConnectionInfo, Context, RequestContext
from vdl.kafka.groups.group_coordinator import GroupCoordinator
from vdl.kafka.limits.pattern_work import PatternWork
from vdl.kafka.security.principal import ANONYMOUS, Principal
from vdl.kafka.transactions.transaction_coordinator import TransactionCoordinator
from vdl.kafka.views.offsets_topic import offsets_topic
from vdl.kafka.views.transactions_topic import transactions_topic
from vdl.logstream.group.state_group import NOT_APPENDED, UNKNOWN, Outcome, OutcomeKind, StateGroup
from vdl.sim.clock import NodeClock, VirtualTime
from vdl.state import commands
from vdl.state.answer import CommandAnswer
from vdl.state.catalog import Catalog
from vdl.state.coordinator import Coordinator
from vdl.state.features import GROUP_VERSION, SUPPORTED, Levels
from vdl.state.partition import EndTransactionMarker, decode_command

COORDINATORS = 2


class FakeNode:
    """Raft node with the interface that a state group needs."""

    uncommitted_bytes = 0

    def __init__(self, log: GroupLog, server_id: int) -> None:
        self.log = log
        self.server_id = server_id

    @property
    def is_leader(self) -> bool:
        return self.log.leader == self.server_id

    @property
    def term(self) -> int:
        return self.log.term

    @property
    def lead(self) -> int:
        return self.log.leader << 16 | 1

    def propose(self, entries: list[Entry]) -> None:
        if not self.is_leader:
            raise ProposalDropped(DropReason.NO_LEADER)
        if self.log.refusing:
            raise ProposalDropped(DropReason.UNCOMMITTED_LIMIT)
        self.log.uncommitted += [entry.data for entry in entries]


class FakeReads:
    """Read index rounds that a test confirms by committing."""

    def __init__(self) -> None:
        self.asked: list[Callable[[bool], None]] = []

    def ask(self, deadline_ns: int, done: Callable[[bool], None]) -> None:
        self.asked.append(done)

    def answer(self, current: bool) -> None:
        asked, self.asked = self.asked, []
        for done in asked:
            done(current)


class FakeStore:
    """Disk with room."""

    accepts_appends = True


class FakeGroup:
    """One replica of a coordinator group."""

    def __init__(self, log: GroupLog, server_id: int) -> None:
        self.group_id = log.number
        self.node = FakeNode(log, server_id)
        self.reads = FakeReads()
        self.store = FakeStore()
        self.serving = False
        self.is_whole = True
        self.members: list[int] = []

    @property
    def accepts_appends(self) -> bool:
        return self.store.accepts_appends

    def propose(self, entry: Entry) -> None:
        self.node.propose([entry])


class GroupLog:
    """Log of one coordinator group, shared by its replicas."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.leader = 0
        self.term = 0
        self.committed: list[bytes] = []
        self.uncommitted: list[Any] = []
        self.refusing = False


class FakeServer:
    """One server: the catalog, the coordinator replicas and the handlers' context."""

    def __init__(self, cluster: Cluster, server_id: int) -> None:
        self.cluster = cluster
        self.server_id = server_id
        self.cluster_id = "cluster"
        self.clock = NodeClock(cluster.time)
        self.ahead_ms = 0
        """Offset of its wall clock ahead of the time that the servers agreed on."""
        self.catalog = Catalog("cluster", coordinator_groups=COORDINATORS)
        self.coordinator_count = COORDINATORS
        self.state_groups: dict[int, StateGroup] = {}
        self.pattern_work = PatternWork(cluster.compute, self.clock, lambda: cluster.cpu_ns)
        self.groups = GroupCoordinator(
            host=self,
            clock=self.clock,
            rng=random.Random(server_id),
            options=lambda: cluster.options,
            pattern_work=self.pattern_work,
            own_topics=(offsets_topic(self.catalog), transactions_topic(self.catalog)),
        )
        self.transactions = TransactionCoordinator(
            host=self, clock=self.clock, options=cluster.options
        )
        for log in cluster.logs.values():
            time: Any = SimpleNamespace(now_ms=self.clock.wall_ms)
            outbox: Any = SimpleNamespace(mark_dirty=lambda _: None)
            state_group = StateGroup(
                server_id=server_id,
                boot=server_id,
                machine=Coordinator(),
                time=time,
                outbox=outbox,
                alive=cluster.alive,
            )
            group = FakeGroup(log, server_id)
            group.members = [other << 16 | 1 for other in cluster.alive]
            state_group.group = group  # type: ignore[assignment]
            self.groups.attach(state_group)
            self.transactions.attach(state_group)
            self.state_groups[log.number] = state_group
        self.context = Context(
            host=self,
            config=cluster.options,
            clock=self.clock,
            log=FakeLog(),
            random_bytes=random.Random(server_id).randbytes,
            pattern_work=self.pattern_work,
            groups=self.groups,
            transactions=self.transactions,
        )

    def leader_of(self, group_id: int) -> tuple[int, int]:
        log = self.cluster.logs[group_id]
        return (log.leader or -1, log.term)

    def state_group(self, group_id: int) -> StateGroup | None:
        return self.state_groups.get(group_id)

    def stream(self, group_id: int) -> None:
        raise AssertionError(group_id)

    def coordinator_group(self, key: str) -> int:
        return 1 + sum(key.encode()) % COORDINATORS

    def settled_ms(self) -> int:
        return self.clock.wall_ms() - self.ahead_ms

    def alive_servers(self) -> list[int]:
        return sorted(self.cluster.servers)

    def takes_large_batches(self) -> bool:
        return True

    def silent_servers(self) -> set[int]:
        return set()

    def agreed_ms(self) -> int:
        return self.settled_ms()

    def command_group(
        self, group_id: int, data: bytes, *, deadline_ns: int, done: Callable[[Outcome], None]
    ) -> None:
        """Behave as the real one without a network: no retries are needed."""
        if group_id in self.cluster.unreachable:
            self.cluster.unsent.append((self, group_id, data, deadline_ns, done))
            self.clock.call_later(deadline_ns - self.clock.now_ns(), self.cluster.end_unsent)
            return
        if group_id > COORDINATORS:
            self.cluster.partition_told(group_id, decode_command(data), done)
            return
        log = self.cluster.logs[group_id]
        if not log.leader:
            done(UNKNOWN)
            return
        leader = self.cluster.servers[log.leader]
        leader.transactions.receive(group_id, commands.decode_command(data), deadline_ns, done)

    def propose_catalog(
        self, command: Any, *, deadline_ns: int, done: Callable[[Outcome], None]
    ) -> None:
        kind = self.cluster.catalog_outcome
        if kind is OutcomeKind.APPLIED:
            done(Outcome(kind, self.cluster.apply_catalog(command, self)))
        else:
            done(Outcome(kind))


class Call:
    """One request of a client."""

    def __init__(self, answer: Any, key: int, version: int, pass_time: Callable[[], None]) -> None:
        self.answer = answer
        self._pass_time = pass_time
        self.key = key
        self.version = version

    @property
    def done(self) -> bool:
        while isinstance(paused := self._known, Paused):
            self.answer = paused.step()
            self._pass_time()
        return not isinstance(self.answer, Later) or self.answer.done

    @property
    def _known(self) -> Any:
        return self.answer.response if isinstance(self.answer, Later) else self.answer

    @property
    def response(self) -> Any:
        """Response as a client of that version decodes it."""
        assert self.done, "not answered"
        answer = self._known
        wire = API[self.key].wire
        if isinstance(answer, InParts):
            wide = wide_answer(API[self.key], self.version, None, answer)
            wide.begin_pages(answer)
            while wide.has_page:
                wide.take(wide.next_page())
            buffers = wide.encoded()
        else:
            buffers = wire.encode_response(answer, self.version)
        data = b"".join(bytes(b) for b in buffers)
        return codec_of(wire).decode_response(memoryview(data), self.version)

    def hang_up(self) -> None:
        """Close the client's connection."""
        if isinstance(self.answer, Later):
            self.answer.cancel()


class Cluster:
    """Servers, their logs and their partitions.

    `commits` False: nothing is committed before `pump`.
    """

    def __init__(self, servers: int = 1, **options: Any) -> None:
        self.time = VirtualTime()
        self.options = KafkaOptions(**({"group_initial_rebalance_delay_ms": 0} | options))
        self.commits = True
        self.computing: list[tuple[Callable[[], Any], Callable[[Any], None]]] | None = None
        """If not None, no thread matches patterns; these jobs wait."""
        self.cpu_ns = 0
        """Processor time of the thread that matches patterns."""
        self.catalog_outcome = OutcomeKind.APPLIED
        self.logs = {number: GroupLog(number) for number in range(1, COORDINATORS + 1)}
        self.markers: list[tuple[int, EndTransactionMarker]] = []
        """Markers sent to partitions, with the partition's group."""
        self.silent: list[Callable[[Outcome], None]] | None = None
        """If not None, partitions do not answer; these callbacks wait."""
        self.unreachable: set[int] = set()
        """Partitions without a leader."""
        self.unsent: list[tuple[FakeServer, int, bytes, int, Callable[[Outcome], None]]] = []
        """Commands for them: (sender, group, command, deadline, done)."""
        self.verdict = ErrorCode.NONE
        """Error code that partitions answer."""
        self.alive: dict[int, Any] = {}
        """Hello message of each server, itself included."""
        self.speak(PROTOCOL_VERSION, *range(1, servers + 1))
        self.servers: dict[int, FakeServer] = {}
        for server_id in range(1, servers + 1):
            self.servers[server_id] = FakeServer(self, server_id)
        for server_id in self.servers:
            self.register(server_id, SUPPORTED)
        self.apply_catalog(commands.UpdateFeatures([commands.FeatureUpdate(GROUP_VERSION, 1)]))
        for number in self.logs:
            self.elect(number, 1)

    # --- the thread that matches patterns ----------------------------------------------------
    def compute(self, job: Callable[[], Any], done: Callable[[Any], None]) -> None:
        """Run the job at once, unless jobs are to wait."""
        if self.computing is None:
            done(job())
        else:
            self.computing.append((job, done))

    def compute_one(self) -> None:
        """Run the job that has waited longest."""
        assert self.computing, "nothing waits"
        job, done = self.computing.pop(0)
        done(job())
        if self.commits:
            self.pump()

    def speak(self, version: int, *servers: int) -> None:
        """Set the protocol version of these servers."""
        self.alive.update({server_id: SimpleNamespace(version=version) for server_id in servers})

    # --- the catalog -------------------------------------------------------------------------
    def register(self, server_id: int, features: Levels) -> None:
        """Register a server whose version knows these features."""
        listeners = {"PLAINTEXT": (f"host{server_id}", 9091 + server_id)}
        directory_id = bytes([server_id]) * 16
        self.apply_catalog(
            commands.RegisterServer(server_id, directory_id, "", listeners, True, dict(features))
        )

    def apply_catalog(self, command: Any, asker: FakeServer | None = None) -> Any:
        results = {s: self.servers[s].catalog.apply(command, 0, 0) for s in self.servers}
        return results[asker.server_id if asker is not None else 1]

    def create_topic(self, name: str, topic_id: bytes = b"", partitions: int = 4) -> None:
        new = commands.NewTopic(name, topic_id or name.encode().ljust(16), partitions)
        self.apply_catalog(commands.CreateTopics([new]))

    # --- partitions --------------------------------------------------------------------------
    def partition_told(self, group_id: int, marker: Any, done: Callable[[Outcome], None]) -> None:
        """Receive a command for a partition's leader."""
        self.markers.append((group_id, marker))
        if self.silent is not None:
            self.silent.append(done)
        else:
            done(Outcome(OutcomeKind.APPLIED, CommandAnswer(self.verdict)))

    def answer_partitions(self, outcome: Outcome | None = None) -> None:
        """Answer the waiting markers, and answer later ones at once."""
        told = outcome or Outcome(OutcomeKind.APPLIED, CommandAnswer(self.verdict))
        waiting, self.silent = self.silent or [], None
        for done in waiting:
            done(told)

    def end_unsent(self) -> None:
        """End the commands for unreachable partitions whose deadline has passed."""
        waiting, self.unsent = self.unsent, []
        for one in waiting:
            _, _, _, deadline_ns, done = one
            if deadline_ns <= self.time.now_ns:
                done(NOT_APPENDED)
            else:
                self.unsent.append(one)

    def reach_all(self) -> None:
        """Give all partitions a leader, which receives the commands that wait for it."""
        self.unreachable.clear()
        waiting, self.unsent = self.unsent, []
        for sender, group_id, data, deadline_ns, done in waiting:
            sender.command_group(group_id, data, deadline_ns=deadline_ns, done=done)

    # --- the logs ----------------------------------------------------------------------------
    def elect(self, number: int, leader: int, *, keep: bool = True, serve: bool = True) -> None:
        """Elect a leader; the old one's uncommitted entries are kept or lost."""
        log = self.logs[number]
        old = self.servers.get(log.leader)
        log.leader = leader
        log.term += 1
        if old is not None:
            state_group = old.state_groups[number]
            state_group.group.serving = False
            state_group.group.reads.answer(False)  # type: ignore[attr-defined]
            state_group.leadership_lost()
        if not keep:
            log.uncommitted.clear()
        self._commit(log)
        if serve:
            self.serve(number)

    def serve(self, number: int) -> None:
        """Apply the first entry of the leader's own term, and let it serve."""
        state_group = self.servers[self.logs[number].leader].state_groups[number]
        state_group.group.serving = True
        state_group.serving_started()

    def _commit(self, log: GroupLog) -> None:
        while log.uncommitted:
            data = bytes(log.uncommitted.pop(0))
            log.committed.append(data)
            for server in self.servers.values():
                server.state_groups[log.number].apply(
                    [Entry(term=log.term, index=len(log.committed), data=data)]
                )

    def pump(self) -> None:
        """Commit and apply everything proposed; confirm the leaders' reads."""
        busy = True
        while busy:
            busy = False
            for log in self.logs.values():
                busy = busy or bool(log.uncommitted)
                self._commit(log)
                for server in self.servers.values():
                    reads = server.state_groups[log.number].group.reads
                    assert isinstance(reads, FakeReads)
                    busy = busy or bool(reads.asked)
                    reads.answer(log.leader == server.server_id)

    def advance(self, ms: int) -> None:
        """Let time pass; timers run, and their proposals are committed."""
        until = self.time.now_ns + ms * MS
        while self.time.step(until):
            if self.commits:
                self.pump()
        self.time.run_until(until)

    # --- clients -----------------------------------------------------------------------------
    def call(
        self,
        key: int,
        version: int,
        request: Any,
        *,
        server: int = 1,
        client_id: str = "client",
        user: str = "",
    ) -> Call:
        """Send a request to its handler through the codec.

        `user`: its principal; empty: anonymous.
        """
        api = API[key]
        wire = api.wire
        data = b"".join(bytes(b) for b in codec_of(wire).encode_request(request, version))
        ctx = RequestContext(
            server=(context := self.servers[server].context),
            connection=ConnectionInfo(
                1,
                "PLAINTEXT",
                "127.0.0.1",
                1,
                context.answers.account(),
                Principal(user) if user else ANONYMOUS,
            ),
            api_key=key,
            api_version=version,
            correlation_id=1,
            client_id=client_id,
            received_ns=self.time.now_ns,
            arrived_ns=self.time.now_ns,
        )
        answer = api.handler(ctx, wire.decode_request(memoryview(data), version))
        call = Call(answer, key, version, lambda: self.advance(1))
        if self.commits:
            self.pump()
        return call

    def machine(self, group_id: str) -> Coordinator:
        """Return the coordinator's applied state at its leader."""
        number = self.servers[1].coordinator_group(group_id)
        machine = self.servers[self.logs[number].leader].state_groups[number].machine
        assert isinstance(machine, Coordinator)
        return machine

    def assert_replicas_equal(self) -> None:
        """Assert that every server has the same bytes, and so has a replay of the log alone."""
        for number, log in self.logs.items():
            replay = Coordinator()
            for index, data in enumerate(log.committed):
                envelope = commands.decode(data)
                replay.apply(envelope.command, envelope.now_ms, index + 1)
            for server in self.servers.values():
                assert server.state_groups[number].machine.items() == replay.items()
