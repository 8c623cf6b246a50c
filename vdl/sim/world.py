"""One simulated world: runs a seed through all phases and returns the outcome.

A world is a set of servers on a network, with clients, on one virtual clock. Its phases are:

* *birth*: the cluster forms and the topic is created. In worlds with loop stalls or slow links, the
  loops are then stalled or the links filled; no group may lose its leader because of it.
* *safety*: clients work while the nemesis injects faults. Anything may be unavailable; nothing may
  be incorrect.
* *liveness*: all faults are healed. Leaders must exist within ten election timeouts. In some worlds
  a lagging consumer must catch up, or consumer groups must come to rest. Every producer must
  finish, every reader must learn of all records in the logs, and all replicas must become equal;
  with a compacted partition, again after a power cut of all servers.
* *drain*: a fresh client reads everything.

Then the histories are checked.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from operator import itemgetter
from pathlib import Path
from random import Random

from ids import GroupId, ServerId
from rpc.streams import PeerHandler
from rpc.tls_context import LinkEncryption
from segments.api import StoreOptions
from segments.log.tail_cache import LARGE_BYTES_MIN
from vdl.check import report
from vdl.check.history import Mark, Op
from vdl.check.history import Record as Seen
from vdl.clock import MS
from vdl.config.settings import Config, Endpoint
from vdl.config.values import Address
from vdl.kafka.configs.options import KafkaOptions, ListenerOptions
from vdl.kafka.wire import list_offsets
from vdl.logstream.group.log_stream import LogStream
from vdl.logstream.options import HostOptions
from vdl.server.server import ServerState
from vdl.sim.ageing import DAY_MS, OFFSETS_KEPT_MINUTES, Ageing
from vdl.sim.atlas import why_not
from vdl.sim.client import ClientOptions, Failure, KafkaClient, Message
from vdl.sim.clock import NodeClock, VirtualTime
from vdl.sim.closed_server import judge_closed_server
from vdl.sim.consumer import Consumer, ConsumerOptions, Fetched, list_request, listed
from vdl.sim.deaf import Deaf
from vdl.sim.disk import DiskProfile, SimDisk
from vdl.sim.faults import CLOCK_HOLD_MS, WALL_ERRORS_MS, Nemesis
from vdl.sim.filled_disks import judge_filled_disks
from vdl.sim.flood import FLOODED, UNDER_WAY_NS, Flood, under_way_bytes
from vdl.sim.frame_faults import FrameWeather
from vdl.sim.going_over import GoingOver
from vdl.sim.in_sync_watch import IN_SYNC_LOOK_NS, LAG_MAX_MS
from vdl.sim.intruder import Doorkeeper, Intruder
from vdl.sim.invariants import Violation, Watch
from vdl.sim.joiners import Joiners
from vdl.sim.keyed import KeyedTopic
from vdl.sim.laggard import CATCH_UP_NS, FLOOR_BYTES, LAGGARDS, Laggard
from vdl.sim.late_answers import LateAnswers
from vdl.sim.lateness import judge_lateness
from vdl.sim.liar import Liar
from vdl.sim.machine import (
    FATAL_ERRORS,
    KAFKA_PORT,
    LISTENER,
    PEER_PORT,
    Life,
    Machine,
    machine_name,
)
from vdl.sim.mover import Mover
from vdl.sim.network import Network, SimDialer, Weather
from vdl.sim.one_fault import judge_bridge, judge_one_fault
from vdl.sim.options import Options
from vdl.sim.producer import ProducerOptions
from vdl.sim.raft_watch import RaftWatch
from vdl.sim.recorder import Recorder, value_of
from vdl.sim.share import SHARE_GROUP, ShareLoad
from vdl.sim.slow_learner import judge_slow_learner
from vdl.sim.stale_watch import STALE_LOOK_NS
from vdl.sim.subscription import ResetStrategy, SubscriptionState, TopicPartition
from vdl.sim.trace import Trace
from vdl.sim.transactional import TransactionalTopic
from vdl.sim.workload import (
    Asker,
    Env,
    MemberLoad,
    OffsetAsker,
    ProducerLoad,
    Reader,
    TopicChurn,
    TopicGrowth,
    create_topic,
    note_poll,
)
from vdl.state.coordinator import Coordinator

S = 1_000 * MS
TOPIC = "orders"
QUIET = "quiet"
BIRTH_NS = 30 * S
ELECTION_TIMEOUT_NS = 1_200 * MS
LATE_ANSWERS_NS = 4 * S
"""Limit on the wait for the condition that makes an answer late, and for that answer."""
LEADERS_NS = 10 * ELECTION_TIMEOUT_NS
HANDLED = 24
"""Messages and turns of a server for each group that needs a new leader: two or three of its own
for each group, and all requests and responses about the groups it follows.
"""
FAILOVER_SYNCS = 20
FAILOVER_TIMEOUTS = 3
FAILOVER_TERMS = {3: 2, 5: 5}
"""Limits of a failover on slow disks: syncs, election timeouts, terms by number of servers.

A failover takes at least three syncs after the one in progress. With five servers votes may be
split, and the next election waits four times as long as a vote took.
"""
GROUPS_NS = 30 * S
"""Limit for consumer groups to come to rest after the faults, while producers go on.

It covers the session of a member that crashed last and the end of an instance's previous process,
a rebalance, and what members missed.
"""
COMPACTED_NS = 3 * S
"""Time without a new compaction decision after which compaction is at rest: several checks of a
leader.
"""
SETTLE_NS = 60 * S
COMPACTION_NS = 120 * S
"""Limit for compaction to come to rest.

It covers two decisions, the second about deletion markers. A replica whose newest segment has not
ended carries out each decision when it is repeated: 15 seconds after the last other replica is
done. Each of these may wait as long for a checkpoint.
"""
DISK_PATIENCE_MS = HostOptions().disk_patience_ms
CATCH_UP_RATE = HostOptions().catch_up_bytes_per_second
UNCOMMITTED_BYTES_MAX = HostOptions().uncommitted_bytes_max
FLOODED_PATIENCE_MS = 60_000
REST_NS = 3 * S
"""Time without elections after which leaderships are taken to be stable."""
FLOOD_NS = 4 * S
POLL_NS = 50 * MS
CLIENT_HOSTS = ("c1", "c2")
REQUEST_BYTES_MAX = 512 << 10
REQUEST_MEMORY_MAX = 5 << 18
ANSWER_MEMORY_MAX = 128 << 10
ANSWER_SLACK_BYTES = 48 << 10
"""Allowance for one batch, which is sent whatever its size, and for answers of a few bytes, which
are not counted.
"""
MEMORY_CHECK_NS = 20 * MS
WALL_BASE_MS = 1_750_000_000_000

ELECTIONS_MIN = 3
CRASHES_MIN = 2
ACKNOWLEDGEMENTS_MIN = 100
"""Minimum of each that must happen after a world's birth for the world to count."""

SAFETY_LONGER_MAX = 3
"""Limit on the extension of the safety phase of a world that does not count yet, in multiples of
its length.
"""

Load = (
    ProducerLoad
    | MemberLoad
    | ShareLoad
    | Asker
    | OffsetAsker
    | TopicChurn
    | TopicGrowth
    | Ageing
    | Liar
    | Mover
)


@dataclass(slots=True)
class Outcome:
    """Result of a seed."""

    seed: int
    options: Options
    violations: list[Violation]
    history: list[Op]
    trace: Trace
    events: int = 0
    virtual_ns: int = 0
    faults: int = 0
    crashes: int = 0
    elections: int = 0
    acknowledgements: int = 0
    polled: int = 0
    hash: str = ""
    counts: bool = False
    """True if the world went through enough for its result to be meaningful."""


class World:
    """One simulated world (see the module). Implements `faults.Target`."""

    def __init__(self, seed: int, options: Options, *, echo: bool = False) -> None:
        self.seed = seed
        self.options = options
        self.time = VirtualTime()
        self.work_ns = HANDLED * options.quiet_groups * options.turn_cost_us * 1_000
        """Time a server needs to handle something for all groups, where turns take time."""
        self.trace = Trace(echo=echo)
        # One generator for each part, so that a change in one part does not alter the draws of the
        # others.
        root = Random(f"vdl {seed}")
        self._rng = {
            name: Random(root.getrandbits(64))
            for name in (
                "net", "disk", "server", "client", "nemesis", "start", "ageing", "late", "keyed",
                "transactional", "intruder", "answers", "bridge", "joiners",
            )
        }  # fmt: skip
        weather = Weather(
            options.delay_us * 1_000, options.jitter_us * 1_000, options.loss, options.split
        )
        self.network = Network(self.time, self._rng["net"], self.trace, weather)
        self.frames = FrameWeather(options.raft_loss, options.raft_duplicates, options.raft_delays)
        self.frames.deafness = options.deafness > 0
        self.frames.holds_snapshots = options.held_snapshots
        self.frames.stillness = bool(options.late_answers)
        count = options.servers + options.joiners
        self.machines = [self._machine(ServerId(i)) for i in range(1, count + 1)]
        self.initial = self.machines[: options.servers]
        """Machines whose servers form the cluster."""
        self.hosts = [machine.name for machine in self.machines] + list(CLIENT_HOSTS)
        self.is_compacting = options.keyed
        self.watch = Watch(self.machines, min_in_sync=options.min_in_sync)
        self.watch.sent_bytes_max = sent_bytes_max(options)
        self.recorder = Recorder(self.time)
        self.nemesis = Nemesis(self, options, self._rng["nemesis"])
        self.env = Env(
            network=self.network,
            make_clock=self._client_clock,
            bootstrap=[(machine.name, KAFKA_PORT) for machine in self.machines],
            recorder=self.recorder,
            options=options,
            topic=TOPIC,
            acknowledged=self.watch.acknowledged,
        )
        self.env.who_forgot = self.watch.who_forgot
        self._loads: list[Load] = []
        self._shares: list[ShareLoad] = []
        self.liars: list[Liar] = []
        self.mover: Mover | None = None
        self.joiners: Joiners | None = None
        self._slept_ms = 0
        self._client_clocks: list[NodeClock] = []
        self._ageing: Ageing | None = None
        self._keyed: KeyedTopic | None = None
        self._transactional: TransactionalTopic | None = None
        self._elections_at_birth = 0
        self._deaf: list[Deaf] = []
        self.intruders: list[Intruder] = []
        self.going_over = GoingOver()
        self._readers: list[Reader] = []

    def note(self, text: str) -> None:
        self.trace.note(self.time.now_ns, text)

    @property
    def raft(self) -> RaftWatch:
        """See `faults.Target`."""
        return self.watch.raft

    def why_no_loss(self) -> str:
        """See `faults.Target`."""
        return why_not(self.machines, self.watch.raft)

    # --- construction -----------------------------------------------------------------------------
    def _machine(self, server_id: ServerId) -> Machine:
        options = self.options
        rng = self._rng["server"]
        profile = DiskProfile(sync_ns=options.sync_us * 1_000)
        machine = Machine(
            server_config(server_id, options),
            time=self.time,
            network=self.network,
            disk=SimDisk(Random(self._rng["disk"].getrandbits(64)), profile),
            rng=Random(rng.getrandbits(64)),
            start_rng=Random(self._rng["start"].getrandbits(64)),
            trace=self.trace,
            turn_ns=options.turn_us * 1_000,
            wall_base_ms=WALL_BASE_MS + rng.randint(-50, 50),
            drift_ppm=rng.randint(-options.drift_ppm, options.drift_ppm),
            frames=self.frames,
            cuts_in_start=options.cuts_in_start,
        )
        machine.take_time(options.turn_cost_us * 1_000)
        if options.encrypted:
            machine.encryption = lambda life: LinkEncryption.REQUIRED
        elif options.goes_over:
            machine.encryption = lambda life: self.going_over.begin(life.machine.name)
        if options.intruders:
            machine.guard = self._guarded
        return machine

    def _guarded(self, life: Life, handler: PeerHandler) -> PeerHandler:
        return Doorkeeper(handler, life, self.watch.violate)

    def _client_clock(self) -> NodeClock:
        clock = NodeClock(self.time, wall_base_ms=WALL_BASE_MS + self._slept_ms)
        self._client_clocks.append(clock)
        return clock

    def true_ms(self) -> int:
        """Return the true time, in ms since 1970."""
        return WALL_BASE_MS + self._slept_ms + self.time.now_ns // MS

    def latest_stamp_ms(self) -> int:
        """Return the latest time that servers may stamp with, in ms since 1970.

        That is the true time, or the latest of the servers' clocks while not every server is linked
        to every other one (docs/operate.md).
        """
        clocks, linked = [self.true_ms()], []
        for machine in self.machines:
            if machine.life is not None:
                clocks.append(machine.life.clock.wall_ms())
                host = None if machine.server is None else machine.server.host
                linked += [] if host is None else [len(host.alive_servers())]
        is_whole = linked == [len(self.machines)] * len(self.machines)
        return clocks[0] if is_whole else max(clocks)

    def sleep(self, ms: int) -> None:
        """See `faults.Target`."""
        self.note(f"all sleep for {ms} ms")
        self._slept_ms += ms
        for machine in self.machines:
            machine.jump_wall(ms)
        for clock in self._client_clocks:
            clock.jump_wall(ms)

    def fresh_client(self, name: str) -> KafkaClient:
        clock = self._client_clock()
        rng = Random(self._rng["client"].getrandbits(64))
        dialer = SimDialer(self.network, CLIENT_HOSTS[0], clock)
        client = KafkaClient(name, self.env.bootstrap, dialer, clock, rng, ClientOptions())
        self.env.clients.append(client)
        return client

    # --- the run ----------------------------------------------------------------------------------
    def run(self) -> Outcome:
        """Run all phases with the drawn faults and return the outcome."""
        return self.live(self._safety)

    def live(self, story: Callable[[], None]) -> Outcome:
        """Run all phases with `story` in place of the drawn faults.

        Stop at the first phase that fails.
        """
        try:
            if self._birth():
                self._start_load()
                story()
                if self._liveness():
                    self._drain()
        except Exception as error:  # noqa: BLE001 - whatever a process dies of is the finding
            self.watch.violate("exception", f"{type(error).__name__}: {error}")
            self.trace.tail.append("".join(traceback.format_exception(error)))
            # The history lacks operations that were in progress at the exception, so it cannot be
            # judged.
            return self._outcome()
        self._judge()
        return self._outcome()

    def _judge(self) -> None:
        """Collect violations from every part that recorded them, and check the histories."""
        watch = self.watch
        for machine in self.machines:
            if machine.life is not None:
                watch.judge(machine.life)
        for client in self.env.clients:
            for text in client.protocol_errors:
                watch.violate("malformed-response", text)
        for consumer in self.env.consumers:
            for text in consumer.corrupt:
                watch.violate("corrupt-batch", text)
        for producer in self.env.producers:
            for tp in producer.order_lost:
                watch.violate("order-lost", f"oldest batch of {tp} called out of order")
            for text in producer.forgotten_early:
                watch.violate("forgotten-early", text)
        for liar in self.liars:
            for text in liar.believed:
                watch.violate("lie-believed", text)
        for intruder in self.intruders:
            intruder.look()
        for anomaly in report.find(self.recorder.ops):
            watch.violate(anomaly.name, str(anomaly))

    def _outcome(self) -> Outcome:
        ops = self.recorder.ops
        return Outcome(
            seed=self.seed,
            options=self.options,
            violations=self.watch.violations,
            history=ops,
            trace=self.trace,
            events=self.time.events,
            virtual_ns=self.time.now_ns,
            faults=self.nemesis.faults,
            crashes=self.crashes,
            elections=self.watch.elections,
            acknowledgements=self.recorder.acknowledged,
            polled=sum(len(records) for op in ops for _, records in op.polls),
            hash=self.trace.digest(),
            counts=self.counts,
        )

    @property
    def crashes(self) -> int:
        return sum(machine.crashes for machine in self.machines)

    @property
    def counts(self) -> bool:
        """True if enough has happened since the birth for the result to be meaningful."""
        return (
            self.watch.elections - self._elections_at_birth >= ELECTIONS_MIN
            and self.crashes >= CRASHES_MIN
            and self.recorder.acknowledged >= ACKNOWLEDGEMENTS_MIN
        )

    # --- slow links -------------------------------------------------------------------------------
    def narrow(self, bytes_per_second: int) -> None:
        """Limit the rate of every link between servers."""
        for source in self.machines:
            for target in self.machines:
                if source is not target:
                    self.network.narrow(source.name, target.name, bytes_per_second)

    def flood(self, partitions: int, link_bytes_per_second: int, *, kept_bytes: int = -1) -> Flood:
        """Create partitions whose traffic can fill links of the given rate.

        Return before they exist.
        """
        self.watch.sent_bytes_max += partitions * under_way_bytes(link_bytes_per_second)
        flood = Flood(
            self.machines,
            self.time,
            self.fresh_client("flood"),
            partitions=partitions,
            link_bytes_per_second=link_bytes_per_second,
            kept_bytes=kept_bytes,
        )
        flood.create()
        return flood

    def _fill_links(self) -> bool:
        """Fill the links while nothing else is wrong.

        Return False if any group changed its leader.
        """
        rate = self.options.link_kib << 10
        self.narrow(rate)
        flood = self.flood(self.options.floods, rate)
        since = [self.time.now_ns, self.watch.elections]

        def at_rest() -> bool:
            if self.watch.elections != since[1]:
                since[:] = [self.time.now_ns, self.watch.elections]
            is_calm = self.time.now_ns - since[0] >= REST_NS
            # A leadership that returns to its preferred leader is not lost.
            return flood.is_ready and is_calm and not self.watch.away_from_home()

        if not self.wait(BIRTH_NS + self.work_ns, at_rest):
            self.watch.violate("no-birth", "leaders change, though nothing is wrong")
            return False
        before = self.watch.elections_but(FLOODED)
        flood.begin()
        self.run_for(FLOOD_NS)
        flood.end()
        self.run_for(2 * UNDER_WAY_NS)
        # A flooded partition may be transferred by a server whose disk is busy for too long.
        elections = self.watch.elections_but(FLOODED) - before
        if elections:
            self.watch.violate("leader-lost", f"{elections} elections while links were full")
        self.note(f"flooded: {flood.acknowledged_bytes} bytes")
        flood.delete()
        return True

    # --- used by stories --------------------------------------------------------------------------
    def run_for(self, duration_ns: int) -> None:
        """Let time pass.

        A disk error that nothing caught, or a port in use, ends its process, as for a real one.
        """
        until_ns = self.time.now_ns + duration_ns
        while self.time.now_ns < until_ns:
            try:
                self.time.run_until(until_ns)
            except OSError as error:
                machine = self._running()
                if machine is None or error.errno not in FATAL_ERRORS:
                    raise
                machine.failed(error)

    def _running(self) -> Machine | None:
        """Return the machine whose process ran last."""
        for machine in self.machines:
            if machine.life is not None and machine.life.clock is self.time.running:
                return machine
        return None

    def leader(self, partition: int = 0) -> Machine | None:
        """Return the machine that serves a partition of the topic in the highest term."""
        found = self._serving(partition)
        return max(found, key=itemgetter(0, 1))[2] if found else None

    def _stream(self, partition: int) -> LogStream | None:
        """Return the partition's stream on the server that serves it in the highest term."""
        found = self._serving(partition)
        return max(found, key=itemgetter(0, 1))[3] if found else None

    def _serving(self, partition: int) -> list[tuple[int, int, Machine, LogStream]]:
        """Return (term, server id, machine, stream) for every server that serves the partition."""
        found: list[tuple[int, int, Machine, LogStream]] = []
        for machine in self.machines:
            host = machine.server.host if machine.server is not None else None
            for group_id in sorted(host.groups) if host is not None else ():
                assert host is not None, machine.name
                stream = host.stream(group_id)
                if stream is None or (stream.topic, stream.partition) != (TOPIC, partition):
                    continue
                if stream.serving:
                    found.append((stream.term, machine.server_id, machine, stream))
        return found

    def wait(self, limit_ns: int, condition: Callable[[], bool]) -> bool:
        """Let time pass until the condition holds, checking every `POLL_NS`.

        Return False at the limit.
        """
        deadline_ns = self.time.now_ns + limit_ns
        while not condition():
            if self.time.now_ns >= deadline_ns:
                return False
            self.run_for(POLL_NS)
        return True

    def _birth(self) -> bool:
        """Form the cluster and create its topics. Return False if a phase of the birth failed."""
        rng = self._rng["server"]
        for machine in self.machines:
            self.time.after(rng.randint(0, 500) * MS, machine.start)
        if self.options.joiners:
            self._begin_joiners()
        client = self.fresh_client("creator")
        missing = {TOPIC: self.options.partitions}
        if self.options.quiet_groups:
            missing[QUIET] = self.options.quiet_groups

        def create(name: str) -> None:
            create_topic(
                client,
                name,
                missing[name],
                partial(answered, name),
                min_in_sync=self.options.min_in_sync,
            )

        def answered(name: str, error: int) -> None:
            if error in {0, 36}:
                missing.pop(name, None)
            else:
                client.backoff(3, partial(create, name))

        def serving() -> bool:
            states = [m.server.state for m in self.initial if m.server is not None]
            return states.count(ServerState.SERVING) == len(self.initial)

        # A topic created earlier would have fewer replicas.
        if self.wait(BIRTH_NS, serving):
            for name in list(missing):
                create(name)
        limit_ns = BIRTH_NS + self.work_ns
        if not self.wait(limit_ns, lambda: not missing and not self.watch.settled()):
            self.watch.violate("no-birth", self.watch.settled() or "the topic was not created")
            return False
        if self.options.ages and not self._begin_ageing():
            self.watch.violate("no-birth", "nothing could be written that grows old")
            return False
        if self.options.stall_ms and not judge_lateness(self, self._rng["late"]):
            return False
        if self.options.floods and not self._fill_links():
            return False
        self._elections_at_birth = self.watch.elections
        self._watch_in_sync()
        self._watch_stale()
        self.note("born")
        return True

    def _begin_joiners(self) -> None:
        self.joiners = Joiners(
            self.machines,
            self.machines[self.options.servers :],
            self.time,
            self.watch.raft,
            Random(self._rng["joiners"].getrandbits(64)),
            self.options.member_changes,
            self.watch.violate,
        )
        self.watch.takes_part = self.joiners.takes_part

    def _joiners_end(self, joiners: Joiners) -> bool:
        """Check that every server that joins or leaves has done so."""
        limit_ns = SETTLE_NS + fed_in_ns(self.options, self.recorder.acknowledged)
        if not self.wait(limit_ns, lambda: not joiners.unsettled()):
            self.watch.violate("stays-between", joiners.unsettled())
            return False
        self.note(f"servers: {joiners.accepted} requests took effect")
        return True

    def _begin_ageing(self) -> bool:
        """Start `Ageing`, whose data a wrong clock would delete.

        In most worlds one clock is wrong before it starts.
        """
        rng = self._rng["ageing"]
        ageing_rng = Random(rng.getrandbits(64))
        if self.options.wrong_clocks and len(self.machines) > 2 and rng.random() < 0.7:
            rng.choice(self.machines).set_wall_error(rng.choice(WALL_ERRORS_MS))
        self._ageing = Ageing(
            self.env, CLIENT_HOSTS[0], ageing_rng, self.true_ms, self.latest_stamp_ms
        )
        return self.wait(BIRTH_NS, lambda: self._ageing is not None and self._ageing.is_ready)

    def _watch_in_sync(self) -> None:
        """Compare the reported in-sync replicas with the disks, periodically."""
        self.watch.look_at_in_sync(self.time.now_ns)
        self.time.after(IN_SYNC_LOOK_NS, self._watch_in_sync)

    def _watch_stale(self) -> None:
        """Check how long deposed leaders serve, periodically."""
        self.watch.stale.look(self.time.now_ns)
        self.time.after(STALE_LOOK_NS, self._watch_stale)

    def _safety(self) -> None:
        """Run clients while the nemesis injects faults."""
        if self.options.late_answers:
            self._answer_late()
        self.nemesis.start()
        self.run_for(self.options.seconds * S)
        until_ns = self.time.now_ns + SAFETY_LONGER_MAX * self.options.seconds * S
        while not self.counts and self.time.now_ns < until_ns:
            if self.crashes < CRASHES_MIN:
                self.nemesis.strike()
            self.run_for(S)

    def _answer_late(self) -> None:
        """Restart a coordinator's server while partitions do not answer it, repeatedly."""
        rng = self._rng["answers"]
        for machine in self.machines:
            machine.cuts_in_start = 0.0
        for _ in range(self.options.late_answers):
            fault = LateAnswers()
            if self.wait(LATE_ANSWERS_NS, partial(fault.begin, self, rng)):
                self.wait(LATE_ANSWERS_NS, fault.is_over)
                self.run_for(rng.randint(0, 500) * MS)
                fault.end(self)
                self.run_for(rng.randint(500, 2_000) * MS)
        for machine in self.machines:
            machine.cuts_in_start = self.options.cuts_in_start

    def _start_load(self) -> None:
        self.recorder.happened("nemesis", "fault").note = "begin"
        options, rng = self.options, self._rng["client"]

        def new_rng() -> Random:
            return Random(rng.getrandbits(64))

        def host() -> str:
            return rng.choice(CLIENT_HOSTS)

        for i in range(options.idempotent_producers + options.plain_producers):
            idempotent = i < options.idempotent_producers
            load = ProducerLoad(self.env, f"p{i}", host(), new_rng(), idempotent=idempotent)
            self._loads.append(load)
        for i in range(options.readers):
            self._readers.append(Reader(self.env, f"r{i}", host(), new_rng()))
        self._loads += [
            MemberLoad(self.env, f"m{i}", host(), new_rng()) for i in range(options.members)
        ]
        self._deaf = [Deaf(self.env, host(), new_rng()) for _ in range(options.deaf_clients)]
        if self._deaf:
            self._check_memory()
        self._loads.append(Asker(self.env, "a0", host(), new_rng()))
        if options.lone_leaders and options.members:
            self._loads.append(OffsetAsker(self.env, "o0", host(), new_rng()))
        if options.keyed:
            self._begin_keyed()
        if options.transactional_producers:
            self._transactional = TransactionalTopic(
                self.env,
                self.machines,
                self.fresh_client("transactional"),
                CLIENT_HOSTS[0],
                Random(self._rng["transactional"].getrandbits(64)),
                count=options.transactional_producers,
            )
        if self._ageing is not None:
            self._ageing.start()
            self._loads.append(self._ageing)
        if options.topic_churn:
            self._loads.append(TopicChurn(self.env, "t0", host(), new_rng()))
        if options.growth:
            self._loads.append(TopicGrowth(self.env, "g0", host(), new_rng()))
        self.liars = [Liar(self.env, f"l{i}", host(), new_rng()) for i in range(options.liars)]
        self._loads += self.liars
        for i in range(options.share_members):
            share = ShareLoad(self.env, f"s{i}", host(), new_rng(), limit=options.share_limit)
            self._shares.append(share)
        self._loads += self._shares
        if options.moves:
            self.mover = Mover(self.env, host(), new_rng(), len(self.machines))
            self._loads.append(self.mover)
        self._loads += [
            MemberLoad(self.env, f"e{i}", host(), new_rng(), by_epochs=True)
            for i in range(options.epoch_members)
        ]

        self._let_in_intruders()

    def _let_in_intruders(self) -> None:
        rng = self._rng["intruder"]
        for _ in range(self.options.intruders):
            intruder = Intruder(
                self.machines,
                self.network,
                NodeClock(self.time),
                Random(rng.getrandbits(64)),
                self.watch.violate,
                is_encrypted=self.options.encrypted,
            )
            self.intruders.append(intruder)
            intruder.start()

    def _begin_keyed(self) -> None:
        def written(group_id: GroupId) -> None:
            self.watch.raft.group(group_id).watch_places_only()

        rng = Random(self._rng["keyed"].getrandbits(64))
        client = self.fresh_client("keyed")
        keys = self.options.keys
        self._keyed = KeyedTopic(self.machines, self.time, client, rng, written, keys)
        self._keyed.begin()

    def _keyed_settles(self, keyed: KeyedTopic) -> bool:
        """Wait until compaction is at rest on all replicas, then check that no key was lost."""
        since = [self.time.now_ns]

        def is_at_rest() -> bool:
            if keyed.behind():
                since[0] = self.time.now_ns
            return self.time.now_ns - since[0] >= COMPACTED_NS

        if not self.wait(COMPACTION_NS, is_at_rest):
            self.watch.violate("not-compacted", keyed.behind())
            return False
        self.note(f"compacted: {keyed.compacted}")
        checked: list[bool] = []
        keyed.check(
            lambda text: self.watch.violate("compacted-wrongly", text),
            lambda: checked.append(True),
        )
        return self.wait(SETTLE_NS, lambda: bool(checked))

    def _keyed_starts_again(self) -> bool:
        """Cut the power after small segments are joined and the old files are removed.

        A start then finds only the joined segments. No log may be lost.
        """
        stores = [machine.life.store for machine in self.machines if machine.life is not None]
        if not self.wait(SETTLE_NS, lambda: all(store._compactor.is_idle for store in stores)):
            self.watch.violate("not-joined", "segments, a minute after the last compaction")
            return False
        self.note("all segments are joined")
        lost = self._lost_logs()
        # After a spoiled page one entry may be recorded by nothing durable.
        chosen = [machine for machine in self.machines if not machine.exposed()]
        for machine in chosen:
            machine.power_cut()
        for machine in chosen:
            machine.start()
        if not self._settles():
            return False
        for name, group_id in sorted(self._lost_logs() - lost):
            self.watch.violate("lost-at-start", f"{name}: the log of group {group_id}")
        return True

    def _lost_logs(self) -> set[tuple[str, GroupId]]:
        """Return the logs known to have lost entries they may have acknowledged."""
        return {
            (machine.name, log.group_id)
            for machine in self.machines
            if machine.life is not None
            for log in machine.life.store.logs.values()
            if log.lost
        }

    def _transactions_end(self, topic: TransactionalTopic) -> bool:
        """Wait until all transactions ended on all replicas, then read the committed records."""
        if not self.wait(SETTLE_NS, lambda: not topic.unfinished()):
            self.watch.violate("transaction-hangs", topic.unfinished())
            return False
        topic.drain()
        if not self.wait(SETTLE_NS, lambda: not topic.undrained()):
            self.watch.violate("not-drained", topic.undrained())
            return False
        topic.finish()
        self.note(f"transactions: {sum(producer.ended for producer in topic.producers)}")
        return True

    def _transactions_agree(self, topic: TransactionalTopic) -> bool:
        """Check that every replica has exactly the transactions of its log."""
        checked: list[bool] = []
        topic.check(
            lambda text: self.watch.violate("transactions-differ", text),
            lambda: checked.append(True),
        )
        return self.wait(SETTLE_NS, lambda: bool(checked))

    def _check_memory(self) -> None:
        """Check that memory held for each server's clients stays within its bounds, periodically.

        The bytes are measured where they are held, not read from the counters.
        """
        for machine in self.machines:
            frontend = machine.server.frontend if machine.server is not None else None
            if frontend is not None:
                self.watch.held(
                    machine.name,
                    "answers",
                    frontend.unsent_bytes(),
                    ANSWER_MEMORY_MAX + ANSWER_SLACK_BYTES,
                )
                self.watch.held(
                    machine.name, "requests", frontend.arriving_bytes(), REQUEST_MEMORY_MAX
                )
        self.time.after(MEMORY_CHECK_NS, self._check_memory)

    def _send_away(self) -> None:
        """Stop all hostile clients and servers."""
        for deaf in self._deaf:
            deaf.stop()
        for intruder in self.intruders:
            intruder.stop()

    def _liveness(self) -> bool:
        """Heal all faults and check that the world comes to rest within its limits."""
        self._send_away()
        # Where membership has changed, a majority of machines need not be a majority of voters.
        may_be_first = not any(machine.losses for machine in self.machines)
        if self.options.majority_first and may_be_first and not self._majority_elects():
            return False
        self.nemesis.heal()
        self.note("healed")
        self.recorder.happened("nemesis", "fault").note = "heal"
        limit_ns = LEADERS_NS + self.work_ns
        if not self.wait(limit_ns, lambda: not self.watch.leaderless(self.machines)):
            self.watch.violate(
                "no-leader",
                f"{self.watch.leaderless(self.machines)}, {limit_ns // MS} ms after heal",
            )
            return False
        self.run_for(1 * S)
        if self.options.behind_kib:
            self._catch_up()
        if self.options.groups_settle and not self._groups_settle():
            return False
        for load in self._loads:
            load.stop()
        if self.joiners is not None:
            self.joiners.stop()
        settling = [reader.consumer for reader in self._readers]
        for consumer in self.env.consumers:
            if consumer not in settling:
                consumer.close()
        for reader in self._readers:
            reader.settle()
        if not self._producers_end():
            return False
        if not self.wait(SETTLE_NS, lambda: not self._behind()):
            self.watch.violate("reader-behind", f"{self._behind()}, a minute after the last batch")
            return False
        for consumer in settling:
            consumer.close()
        if self._shares and not self._shares_end():
            return False
        if self._keyed is not None:
            self._keyed.end()
        if self._transactional is not None:
            self._transactional.end()
            if not self._transactions_end(self._transactional):
                return False
        if self._ageing is not None and not self._aged(self._ageing):
            return False
        if self.joiners is not None and not self._joiners_end(self.joiners):
            return False
        if self.options.producer_expiry_ms and not self._forgotten():
            return False
        return self._settles() and self._goes_wrong_alone()

    def _goes_wrong_alone(self) -> bool:
        """Run the single faults drawn for a healthy cluster, one after the other."""
        if self.options.failover_sync_ms and len(self.machines) > 1:
            return self._slow_failover() and self._settles()
        if self.options.learner_sync_ms and len(self.machines) > 2:
            judge_slow_learner(self)
            if not self._settles():
                return False
        if self.options.closed and len(self.machines) > 2:
            judge_closed_server(self)
            if not self._settles():
                return False
        if self.options.one_fault and len(self.machines) > 1:
            judge_one_fault(self)
            if not self._settles():
                return False
        if self.options.bridged:
            judge_bridge(self, self._rng["bridge"])
            if not self._settles():
                return False
        if self.options.fills_disks and len(self.machines) > 2:
            judge_filled_disks(self)
            return self._settles()
        self.note("settled")
        return True

    def _shares_end(self) -> bool:
        """Check that the share group finishes every partition.

        Each record it holds is accepted, or its lock expires.
        """
        for share in self._shares:
            share.stop()  # partitions may have been added since
        if not self.wait(SETTLE_NS, lambda: not self._share_behind()):
            self.watch.violate("share-behind", f"{self._share_behind()}, a minute after heal")
            return False
        for share in self._shares:
            share.finish()
        end = self.recorder.happened("shares", "share_end")
        end.group, end.limit = SHARE_GROUP, self.options.share_limit
        end.marks = [Mark(str(tp), offset) for tp, offset in sorted(self._share_starts().items())]
        return True

    def _share_starts(self) -> dict[TopicPartition, int]:
        """Return the share group's start offsets, as applied by its coordinator's leader."""
        for machine in self.machines:
            host = machine.server.host if machine.server is not None else None
            if host is None:
                continue
            state_group = host.state_group(host.coordinator_group(SHARE_GROUP))
            if state_group is None or not state_group.is_running or not state_group.serving:
                continue
            coordinator = state_group.machine
            assert isinstance(coordinator, Coordinator), coordinator
            topic = host.catalog.topics.get(TOPIC)
            return {
                TopicPartition(TOPIC, index): state.start_offset
                for (topic_id, index), state in coordinator.share.states.of(SHARE_GROUP).items()
                if topic is not None and topic_id == topic.topic_id
            }
        return {}

    def _share_behind(self) -> str:
        """Return the partitions of which the share group has not finished every record."""
        starts = self._share_starts()
        found = []
        for tp in self.env.partitions:
            stream = self._stream(tp.partition)
            start = starts.get(tp, -1)
            if stream is None or start < stream.high_watermark:
                end = None if stream is None else stream.high_watermark
                found.append(f"{SHARE_GROUP} is at {start} of {tp}, which ends at {end}")
        return ", ".join(found)

    def _groups_settle(self) -> bool:
        """Check that the consumer groups come to rest, once their members stay.

        Each partition then has one member, which reads what was in it when the faults ended.
        """
        members = [load for load in self._loads if isinstance(load, MemberLoad)]
        for load in members:
            load.settle()
        for churn in self._loads:
            if isinstance(churn, TopicChurn):
                churn.stop()
        ends: dict[TopicPartition, int] = {}
        for tp in self.env.partitions:
            stream = self._stream(tp.partition)
            if stream is not None:
                ends[tp] = stream.high_watermark
        began_ns = self.time.now_ns
        if not self.wait(GROUPS_NS, lambda: not self._unsettled_groups(members, ends)):
            what = self._unsettled_groups(members, ends)
            self.watch.violate("group-unsettled", f"{what}, {GROUPS_NS // S} s after heal")
            return False
        self.note(f"groups settled in {(self.time.now_ns - began_ns) // MS} ms")
        return True

    def _unsettled_groups(self, members: list[MemberLoad], ends: dict[TopicPartition, int]) -> str:
        """Describe a group whose partitions are not each with one member that has read them."""
        for group in sorted({load.group for load in members}):
            positions: dict[TopicPartition, int] = {}
            for load in members:
                if load.group != group:
                    continue
                held = load.held
                if held is None:
                    return f"{load.name} is not in {group}"
                for tp, position in held.items():
                    if tp in positions:
                        return f"{tp} has two members of {group}"
                    positions[tp] = position
            for tp in self.env.partitions:
                if tp not in positions:
                    return f"{tp} has no member of {group}"
                end = ends.get(tp, 0)
                if positions[tp] < end:
                    return f"{group} is at {positions[tp]} of {tp}, which ended at {end}"
        return ""

    def _aged(self, ageing: Ageing) -> bool:
        """Check, with all clocks right, that old data is deleted and nothing else."""
        self.run_for(2 * CLOCK_HOLD_MS * MS)
        limit_ns = SETTLE_NS + fed_in_ns(self.options, self.recorder.acknowledged)
        if not self.wait(limit_ns, lambda: not ageing.kept_too_long(self.machines)):
            self.watch.violate("kept-too-long", ageing.kept_too_long(self.machines))
            return False
        for text in ageing.deleted_early(self.machines):
            self.watch.violate("deleted-early", text)
        return True

    def _forgotten(self) -> bool:
        """Check that no idle producer is remembered, and that producers can resume.

        The producers do not know that they were forgotten; what they send must be accepted.
        """
        limit_ns = SETTLE_NS + fed_in_ns(self.options, self.recorder.acknowledged)
        if not self.wait(limit_ns, lambda: not self.watch.remembered()):
            self.watch.violate("producers-kept", self.watch.remembered())
            return False
        if self.options.min_in_sync > 1 and not self._settles():
            # Until a lost replica has caught up, NOT_ENOUGH_REPLICAS is correct.
            return False
        loads = [load for load in self._loads if isinstance(load, ProducerLoad)]
        for load in loads:
            load.come_back()
        if not self._producers_end():
            return False
        for load in loads:
            for text in load.refused:
                self.watch.violate("producer-refused", text)
        return True

    def _settles(self) -> bool:
        """Wait until all replicas are equal and in sync."""
        limit_ns = SETTLE_NS + fed_in_ns(self.options, self.recorder.acknowledged)
        if not self.wait(limit_ns, lambda: not self.watch.settled()):
            self.watch.violate("not-settled", self.watch.settled())
            return False
        return True

    def _producers_end(self) -> bool:
        """Wait until every batch has ended."""
        if not self.wait(SETTLE_NS, lambda: not any(p.unfinished for p in self.env.producers)):
            self.watch.violate("stuck-producer", "batches have not ended a minute after heal")
            return False
        return True

    def _behind(self) -> str:
        """Return the readers that have not learned of all records.

        Producers have stopped, so no later batch makes up for a notification that a server missed.
        """
        stands: dict[TopicPartition, tuple[int, int]] = {}
        for tp in self.env.partitions if self._readers else ():
            stream = self._stream(tp.partition)
            if stream is None:
                return f"no server serves {tp}"
            stands[tp] = stream.high_watermark, stream.log_start_offset
        return ", ".join(filter(None, (reader.behind(stands) for reader in self._readers)))

    def _catch_up(self) -> None:
        """Check that lagging consumers reach the end of each partition while producers go on."""
        ends: dict[TopicPartition, tuple[int, int]] = {}
        for tp in self.env.partitions:
            stream = self._stream(tp.partition)
            if stream is not None:
                ends[tp] = (stream.log_start_offset, stream.high_watermark)
        laggards = [self._laggard(name, ends) for name in LAGGARDS]
        limit_ns = CATCH_UP_NS + 2 * self.time.now_ns
        if not self.wait(limit_ns, lambda: not any(one.missing() for one in laggards)):
            missing = "; ".join(filter(None, (one.missing() for one in laggards)))
            self.watch.violate("reader-starved", f"{missing}, producers went on")
        self.note("caught up")

    def _laggard(self, name: str, ends: dict[TopicPartition, tuple[int, int]]) -> Laggard:
        """Return a consumer that starts behind `ends`."""
        recorder = self.recorder
        recorder.happened(name, "assign").keys = [str(tp) for tp in sorted(ends)]

        def positioned(tp: TopicPartition, offset: int) -> None:
            recorder.happened(name, "seek").marks.append(Mark(str(tp), offset))

        laggard = Laggard(
            self.fresh_client(name),
            self.options,
            ends,
            partial(note_poll, self.env, name),
            positioned,
        )
        self.env.consumers.append(laggard.consumer)
        return laggard

    def _slow_failover(self) -> bool:
        """Kill the server that leads most groups while all disks are slow.

        See `Options.failover_sync_ms`.
        """
        sync_ns = self.options.failover_sync_ms * MS
        for machine in self.machines:
            machine.disk.steady_sync_ns = sync_ns
        self.run_for(3 * sync_ns)
        victim = max(self.machines, key=self.watch.led)
        others = [machine for machine in self.machines if machine is not victim]
        before = self.watch.terms(others)
        self.note(f"{victim.name} dies, syncs take {self.options.failover_sync_ms} ms")
        self.nemesis.keep_down(victim)
        limit_ns = FAILOVER_SYNCS * sync_ns + FAILOVER_TIMEOUTS * ELECTION_TIMEOUT_NS
        waiting = set(self.watch.unled(others))

        def each_was_led() -> bool:
            # Leaders transfer groups back meanwhile; of two thousand groups some are always in
            # transfer.
            waiting.intersection_update(list(self.watch.unled(others, waiting)))
            return not waiting

        if not self.wait(limit_ns, each_was_led):
            self.watch.violate("slow-failover", f"group {min(waiting)} after {limit_ns} ns")
            return False
        after = self.watch.terms(others)
        for group_id in sorted(before.keys() & after.keys()):
            if after[group_id] - before[group_id] > FAILOVER_TERMS[len(self.machines)]:
                what = f"group {group_id}: terms {before[group_id]} to {after[group_id]}"
                self.watch.violate("many-elections", what)
        for machine in self.machines:
            machine.disk.steady_sync_ns = 0
        self.nemesis.heal()
        return True

    def _majority_elects(self) -> bool:
        """Check that a majority alone elects its leaders within ten election timeouts."""
        majority = len(self.machines) // 2 + 1
        core = self._rng["nemesis"].sample(self.machines, majority)
        self.nemesis.heal_only(core)
        self.note(f"healed: {sorted(machine.name for machine in core)}")
        limit_ns = LEADERS_NS + self.work_ns
        if not self.wait(limit_ns, lambda: not self.watch.leaderless(core)):
            what = f"{self.watch.leaderless(core)}, {limit_ns // MS} ms after a majority was healed"
            self.watch.violate("no-leader", what)
            return False
        return True

    def _drain(self) -> bool:
        """Read everything with a fresh client and from every replica's disk."""
        if self._keyed is not None and not (
            self._keyed_settles(self._keyed)
            and self._settles()
            and self._keyed_starts_again()
            and self._keyed_settles(self._keyed)
            and self._settles()
        ):
            return False
        topic = self._transactional
        if topic is not None and not (self._transactions_agree(topic) and self._settles()):
            return False
        drain = Drain(self)
        compared: list[bool] = []
        self.watch.compare(lambda: compared.append(True))
        if not self.wait(SETTLE_NS, lambda: drain.complete and bool(compared)):
            what = "replicas could not be read" if drain.complete else drain.missing()
            self.watch.violate("not-drained", what)
            return False
        drain.finish()
        return True


class Drain:
    """Client that reads every partition from its earliest offset to the end it had when listed."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._client = world.fresh_client("drain")
        self._found: dict[TopicPartition, list[Seen]] = {tp: [] for tp in world.env.partitions}
        self._ends: dict[TopicPartition, int] = {}
        self._invoked = world.recorder.invoke()
        self._consumer = Consumer(
            self._client,
            SubscriptionState(ResetStrategy.EARLIEST),
            self._fetched,
            ConsumerOptions(max_wait_ms=50, fetch_sessions=world.options.fetch_sessions),
        )
        world.env.consumers.append(self._consumer)
        self._consumer.assign(world.env.partitions)
        self._ask()

    @property
    def complete(self) -> bool:
        return not self.missing()

    def missing(self) -> str:
        """Describe the partitions not read to their end yet; empty if there are none."""
        for tp, records in sorted(self._found.items()):
            end = self._ends.get(tp)
            if end is None or (end > 0 and (not records or records[-1].offset < end - 1)):
                return f"{tp}: {len(records)} records of {end}"
        return ""

    def finish(self) -> None:
        recorder = self._world.recorder
        op = recorder.returned(self._invoked, "drain", "poll", "ok")
        op.final = True
        op.polls = [(str(tp), records) for tp, records in sorted(self._found.items())]
        self._consumer.close()
        self._client.close()

    def _fetched(self, fetched: Fetched) -> None:
        for record, epoch in zip(fetched.records, fetched.epochs, strict=True):
            seen = Seen(record.offset, value_of(record), epoch, record.timestamp)
            self._found[fetched.tp].append(seen)

    def _ask(self) -> None:
        """List the end offset of each partition, periodically."""
        if self._client.closed:
            return
        self._client.clock.call_later(200 * MS, self._ask)
        for tp in sorted(self._found):
            leader = self._client.metadata.leader(tp)
            if tp not in self._ends and leader >= 0:
                request = list_request(self._client, {tp: -1})
                self._client.call(leader, list_offsets, request, partial(self._ended, tp))

    def _ended(self, tp: TopicPartition, response: Message | Failure) -> None:
        row = listed(response).get(tp)
        if row is not None and not row.error_code:
            self._ends[tp] = row.offset


def sent_bytes_max(options: Options) -> int:
    """Return the largest number of bytes that all producers together may have in flight."""
    producers = options.idempotent_producers + options.plain_producers
    return (
        producers
        * options.partitions_max
        * ProducerOptions().in_flight_max
        * options.batch_bytes_max
    )


def fed_in_ns(options: Options, batches: int) -> int:
    """Return the longest time to send a follower the given number of client batches, of all groups.

    The rate is `raft.catch_up_rate`. Unacknowledged batches are not counted: they are few, and most
    batches are smaller than the largest size.
    """
    if not options.catch_up_kib:
        return 0
    return batches * options.batch_bytes_max * S // (options.catch_up_kib << 10)


def server_config(server_id: ServerId, options: Options) -> Config:
    """Return a server's configuration in a world with these options."""
    name = machine_name(server_id)
    peer = Address(name, PEER_PORT)
    cache_kib = options.small_cache_kib or options.cache_kib
    floor = FLOOR_BYTES if options.behind_kib else KafkaOptions().cold_read_bytes_per_second
    seeds = {
        i: Address(machine_name(i), PEER_PORT) for i in map(ServerId, range(1, options.servers + 1))
    }
    return Config(
        source="simulation",
        server_id=server_id,
        data_dir=Path("data"),
        seeds=seeds if options.servers > 1 else {},
        coordinators=options.coordinators,
        listeners=(ListenerOptions(name=LISTENER, host=name, port=KAFKA_PORT),),
        peer=Endpoint(peer, peer) if options.servers > 1 else None,
        admin=None,
        http=None,
        kafka=replace(
            KafkaOptions(),
            group_min_session_timeout_ms=500,
            group_initial_rebalance_delay_ms=300,
            group_consumer_session_timeout_ms=3_000,
            group_consumer_heartbeat_interval_ms=500,
            group_consumer_assignment_interval_ms=300,
            record_check_loop_bytes=options.check_on_loop_bytes,
            offsets_retention_check_ms=500 if options.ages else 600_000,
            offsets_retention_minutes=OFFSETS_KEPT_MINUTES,
            cold_read_bytes_per_second=floor,
            # Small, so that a client that holds memory reaches the bounds and is disconnected soon.
            request_bytes_max=REQUEST_BYTES_MAX,
            request_memory_max=REQUEST_MEMORY_MAX,
            answer_memory_max=ANSWER_MEMORY_MAX,
            frame_deadline_ms=6_000,
        ),
        host=HostOptions(
            command_entries_kept=options.command_entries,
            # Small in every other world, so that entries are applied between two pieces.
            encoded_items_per_turn=3 if options.command_entries % 2 else 500,
            uncommitted_bytes_max=options.uncommitted_bytes or UNCOMMITTED_BYTES_MAX,
            clock_hold_ms=CLOCK_HOLD_MS,
            retention_check_ms=500,
            compaction_check_ms=500 if options.keyed else 15_000,
            replica_lag_max_ms=LAG_MAX_MS,
            catch_up_bytes_per_second=(options.catch_up_kib << 10) or CATCH_UP_RATE,
            # A flood keeps a small journal busy for seconds, which must not transfer the catalog.
            disk_patience_ms=FLOODED_PATIENCE_MS if options.link_kib else DISK_PATIENCE_MS,
            producer_expiration_ms=options.producer_expiry_ms or DAY_MS,
            producer_expiration_check_ms=1_000 if options.producer_expiry_ms else DAY_MS // 144,
        ),
        store=StoreOptions(
            journal_file_bytes=options.journal_kib << 10,
            journal_first_file_bytes=options.journal_kib << 9,
            segment_bytes=options.segment_kib << 10,
            index_segment_entries=options.index_entries,
            cache_bytes_max=min(cache_kib, options.behind_kib or cache_kib) << 10,
            checkpoint_bytes=options.checkpoint_kib << 10,
            checkpoint_entries=2_000,
            checkpoint_interval_ms=2_000,
            place_bytes_min=options.place_bytes,
            large_bytes_min=options.large_bytes or LARGE_BYTES_MIN,
        ),
    )
