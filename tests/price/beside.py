"""Latency of a user beside hostile clients, where every server has a processor of its own.

    python -m tests.price.beside                    calm, then beside hostile clients
    python -m tests.price.beside --kinds groups     beside some kinds of requests only
    python -m tests.price.beside --seconds 20

`make hostile` measures on real processes, which compete for few cores with the hostile clients,
with each other and with everything else on the machine. Here the three servers are those of
`vdl sim`, on virtual time, and their virtual time passes as the processor time that their code
takes: what is measured is the time for which a server's loop does other things. A turn
has the order of `vdl.server.loop`: what arrived, what was to run at its end, timers. Clients,
network and disk take no processor time of anybody: a message is under way for 0.1 ms, a sync takes
0.3 ms. Threads of a server run beside its loop. Python's lock, which they share with it, is not
simulated.

Hostile clients are those of `tests/chaos/harness/hostile.py`, without TLS: each sends the next
request when the last one is answered. They count as one principal, because they have one address.
Nothing is forbidden to them here, so what is refused there (`audit`) is left out.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import statistics
import struct
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

from rpc.streams import DialFailed, Stream
from segments.api import Buffer
from tests.chaos.harness.hostile import CLIENTS, SENDERS, Sent
from tests.cost import cluster as costs
from tests.cost.cluster import TOPIC, TURN_NS, Cluster
from tests.wire import codec_of
from vdl.clock import MS
from vdl.kafka.configs.options import KafkaOptions
from vdl.kafka.wire import header, incremental_alter_configs, produce
from vdl.records.batch import PLAIN, Record, build_batch
from vdl.server.process import GC_THRESHOLDS
from vdl.sim import machine as machines
from vdl.sim.clock import FOREVER_NS, NodeClock, SimTimer, VirtualTime
from vdl.sim.machine import KAFKA_PORT
from vdl.sim.network import Network, SimDialer
from vdl.sim.subscription import TopicPartition
from vdl.sim.trace import Trace
from vdl.sim.workers import SimWorkers

PARTITIONS = 3
RECORD_NS = 20 * MS
ACT_NS = 250 * MS
SECOND_NS = 1_000 * MS
AGAIN_NS = 50 * MS
ROUNDS_MAX = 4
"""As in `vdl.server.loop`."""
KINDS = [kind for kind in SENDERS if kind != "audit"]
_now = time.thread_time_ns
T = TypeVar("T")


class CoreTime(VirtualTime):
    """Virtual time in which each process has a core, and runs as long as its code takes here."""

    __slots__ = ("mark_ns",)

    def __init__(self) -> None:
        super().__init__()
        self.mark_ns = 0
        """Processor time up to which work is charged."""

    def step(self, until_ns: int = FOREVER_NS) -> bool:
        self.mark_ns = _now()
        return super().step(until_ns)

    def enter(self, clock: NodeClock | None) -> None:
        super().enter(clock)
        self.mark_ns = _now()

    def used_ns(self) -> int:
        """Return the processor time used since the last call."""
        before, self.mark_ns = self.mark_ns, _now()
        return self.mark_ns - before

    def elapsed_ns(self) -> int:
        """Return for how long the process that runs now has been in its turn."""
        running = self.running
        return running.elapsed_ns() if isinstance(running, CoreClock) else 0


class CoreLife(machines.Life):
    """Process whose turns take the time that they take here."""

    def take_time(self, turn_cost_ns: int) -> None:
        del turn_cost_ns
        assert isinstance(self.clock, CoreClock)
        self.clock.meter = self.clock.core.used_ns


class CoreTimer(SimTimer):
    """Timer of a server, which runs behind what arrived in its turn."""

    __slots__ = ("_core_clock", "_event")

    def __init__(self, clock: CoreClock, delay_ns: int, fn: Callable[[], None]) -> None:
        super().__init__(clock.core, clock, 0, fn)
        self._core_clock = clock
        self._event = clock.arrive_later(delay_ns, self._is_due)

    def _is_due(self) -> None:
        self._core_clock.due.append(self)

    def run(self) -> None:
        fn, self.fn = self.fn, None
        if fn is not None:
            fn()

    def cancel(self) -> None:
        self.fn = None
        self._event.cancel()


class CoreClock(NodeClock):
    """Clock of a server with a core of its own."""

    def __init__(self, of: VirtualTime, **options: Any) -> None:
        super().__init__(of, **options)
        assert isinstance(of, CoreTime), of
        self.core = of
        self.turns: list[int] = []
        """Durations of its turns, in ns."""
        self._at_end: list[Callable[[], None]] = []
        self.due: list[CoreTimer] = []
        """Timers to run in this turn."""
        self._is_at_timers = False

    def take(self, count_ns: int) -> None:
        """Charge a time to the present turn."""
        self._owed_ns += count_ns

    def elapsed_ns(self) -> int:
        if self.core.running is not self:
            return 0
        return self._owed_ns + _now() - self.core.mark_ns

    def now_ns(self) -> int:
        return super().now_ns() + self.elapsed_ns()

    def work_ns(self) -> int:
        return self.now_ns()

    def call_later(self, delay_ns: int, fn: Callable[[], None]) -> SimTimer:
        if not delay_ns or self.meter is None:  # without a delay it is a socket
            return self.arrive_later(delay_ns, fn)
        return CoreTimer(self, delay_ns, fn)

    def arrive_later(self, delay_ns: int, fn: Callable[[], None]) -> SimTimer:
        """Run `fn` as a part of a turn in which it was reported by a socket."""
        return super().call_later(delay_ns + self.elapsed_ns(), fn)

    def call_soon(self, fn: Callable[[], None]) -> None:
        if self.meter is None or self.core.running is not self or self._is_at_timers:
            super().call_soon(fn)
        else:
            self._at_end.append(fn)

    def _turn_over(self) -> None:
        if not self.stopped:
            self.core.running = self
            self._run_end()
            self._owed_ns += self.core.used_ns()
            self.core.running = None
        self.turns.append(self._owed_ns)
        super()._turn_over()

    def _run_end(self) -> None:
        for _ in range(ROUNDS_MAX):
            at_end, self._at_end = self._at_end, []
            for fn in at_end:
                fn()
        self._is_at_timers = True
        rest, self._at_end = self._at_end, []
        for fn in rest:
            self.call_soon(fn)
        due, self.due = self.due, []
        for timer in due:
            timer.run()
        self._is_at_timers = False


class CoreNetwork(Network):
    """Network that messages enter when they are sent, not at the begin of the turn."""

    def _delay_ns(self, source: str, target: str) -> int:
        assert isinstance(self._time, CoreTime)
        return super()._delay_ns(source, target) + self._time.elapsed_ns()


@contextmanager
def beside_the_loop(core: CoreTime) -> Iterator[None]:
    """Do not charge the loop for what the block takes."""
    if isinstance(core.running, CoreClock):
        core.running.take(core.used_ns())
    yield
    core.used_ns()


class CoreWorkers(SimWorkers):
    """Workers that take none of the loop's time. One thread computes, as long as it takes here."""

    _free_ns = 0

    def _run(
        self,
        job: Callable[[], T],
        done: Callable[[T | BaseException], None],
        free: Callable[[], None],
    ) -> None:
        clock = self._clock
        assert isinstance(clock, CoreClock), clock
        with beside_the_loop(clock.core):
            result, steps, cost_ns = self._disk.run_job(job)

        def complete() -> None:
            with beside_the_loop(clock.core):
                for step in steps:
                    if step.harden is not None:
                        step.harden()
            done(result)
            free()

        clock.arrive_later(cost_ns, complete)

    def compute(self, job: Callable[[], T], done: Callable[[T | BaseException], None]) -> None:
        clock = self._clock
        assert isinstance(clock, CoreClock), clock
        outcome: T | BaseException
        began_ns = _now()
        with beside_the_loop(clock.core):
            try:
                outcome = job()
            except Exception as error:  # noqa: BLE001 - as a thread passes it on
                outcome = error
        now_ns, took_ns = clock.now_ns(), _now() - began_ns
        self._free_ns = max(self._free_ns, now_ns) + took_ns
        clock.arrive_later(self._free_ns - now_ns, partial(done, outcome))


class SilentTrace(Trace):
    """A trace of nothing."""

    def delivery(self, time_ns: int, source: str, target: str, data: bytes) -> None:
        pass


class Caller:
    """A connection that sends prepared requests, one at a time."""

    def __init__(self, time: VirtualTime, network: Network, host: str, server: str) -> None:
        self._time = time
        clock = NodeClock(time, turn_ns=TURN_NS)
        self._dialer = SimDialer(network, host, clock)
        self._server = server
        self._stream: Stream | None = None
        self._out: deque[memoryview] = deque()
        self._into = memoryview(bytearray(1 << 20))
        self._head = bytearray()
        self._left = 0
        self._sent_ns = 0
        self._answered: Callable[[int], None] | None = None
        self._dial()

    def send(self, sent: Sent, answered: Callable[[int], None]) -> None:
        """Send a request; `answered` receives the time it took, or -1 if the connection ended."""
        module, version, body, client_id = sent
        head = header.encode_request_header(
            header.RequestHeader(module.API_KEY, version, 1, client_id),
            is_flexible=version >= module.FLEXIBLE_FROM,
        )
        self._answered, self._sent_ns = answered, self._time.now_ns
        size = struct.pack(">i", len(head) + len(body))
        self._out = deque(memoryview(part) for part in (size + head, body) if part)
        self.writable()

    def _dial(self) -> None:
        self._dialer.dial((self._server, KAFKA_PORT), self._dialed)

    def _dialed(self, result: Stream | DialFailed) -> None:
        if isinstance(result, DialFailed):
            self._time.after(AGAIN_NS, self._dial)
            return
        self._stream = result
        result.start(self)
        self.writable()

    def writable(self) -> None:
        while self._out and self._stream is not None:
            taken = self._stream.write([self._out[0]])
            self._out[0] = self._out[0][taken:]
            if self._out[0]:
                return
            self._out.popleft()

    def get_buffer(self) -> memoryview:
        return self._into

    def buffer_updated(self, received: int) -> None:
        data: Buffer = self._into[:received]
        if not self._left:
            self._head += data
            if len(self._head) < 4:
                return
            self._left = 4 + int.from_bytes(self._head[:4], "big") - len(self._head)
            self._head.clear()
        else:
            self._left -= received
        if not self._left:
            self._tell(self._time.now_ns - self._sent_ns)

    def _tell(self, took_ns: int) -> None:
        answered, self._answered = self._answered, None
        if answered is not None:
            answered(took_ns)

    def close(self) -> None:
        if self._stream is not None:
            self._stream.close()
        self._stream, self._answered = None, None

    def ended(self, cause: str) -> None:
        del cause
        self._stream, self._left = None, 0
        self._out.clear()
        self._head.clear()
        self._time.after(AGAIN_NS, self._again)

    def _again(self) -> None:
        self._dial()
        self._tell(-1)


def make(module: Any, message: Any, version: int) -> Sent:
    return module, version, b"".join(codec_of(module).encode_request(message, version)), "user"


class World:
    """Three servers, a producer for each, and an administrator."""

    def __init__(self) -> None:
        costs.VirtualTime = CoreTime  # type: ignore[attr-defined]
        costs.Network = CoreNetwork  # type: ignore[attr-defined]
        costs.Trace = SilentTrace  # type: ignore[attr-defined]
        machines.Life = CoreLife  # type: ignore[misc]
        machines.NodeClock = CoreClock  # type: ignore[attr-defined]
        machines.SimWorkers = CoreWorkers  # type: ignore[attr-defined]
        costs.KafkaOptions = partial(  # type: ignore[attr-defined]
            KafkaOptions, auto_create_topics=False
        )
        self.cluster = Cluster(PARTITIONS)
        self.time, self.network = self.cluster.time, self.cluster.network
        self.took: dict[str, list[int]] = {"produce": [], "act": []}
        self.failed: Counter[str] = Counter()
        client = self.cluster.client()
        names = [machine.name for machine in self.cluster.machines]
        for partition in range(PARTITIONS):
            leader = client.metadata.leader(TopicPartition(TOPIC, partition))
            caller = Caller(self.time, self.network, "alice", names[leader - 1])
            data = produce.PartitionProduceData(
                partition, memoryview(build_batch([Record(value=bytes(100))], PLAIN))
            )
            topic = produce.TopicProduceData(TOPIC, partition_data=[data])
            request = produce.ProduceRequest(None, -1, 30_000, [topic])
            self._repeat("produce", caller, make(produce, request, 9), PARTITIONS * RECORD_NS)
        entry = incremental_alter_configs.AlterableConfig("retention.ms", 0, "10000001")
        resource = incremental_alter_configs.AlterConfigsResource(2, TOPIC, [entry])
        act = incremental_alter_configs.IncrementalAlterConfigsRequest([resource])
        caller = Caller(self.time, self.network, "admin", names[0])
        self._repeat("act", caller, make(incremental_alter_configs, act, 1), ACT_NS)
        self.names = names

    def _repeat(self, what: str, caller: Caller, sent: Sent, every_ns: int) -> None:
        def again() -> None:
            caller.send(sent, answered)

        def answered(took_ns: int) -> None:
            if took_ns < 0:
                self.failed[what] += 1
                took_ns = 0
            self.took[what].append(took_ns)
            self.time.after(max(0, every_ns - took_ns), again)

        self.time.after(every_ns, again)

    def measure(self, seconds: float) -> dict[str, Any]:
        for took in self.took.values():
            took.clear()
        for clock in self.cluster.clocks:
            clock.turns.clear()  # type: ignore[attr-defined]
        self.cluster.run_for(int(seconds * SECOND_NS))
        found: dict[str, Any] = {}
        for name, took in self.took.items():
            cuts = statistics.quantiles(took, n=100)
            found[name] = (round(cuts[49] / 1e6, 2), round(cuts[98] / 1e6, 2), len(took))
        for number, clock in enumerate(self.cluster.clocks, 1):
            turns = sorted(clock.turns)  # type: ignore[attr-defined]
            busy = sum(turns) / (seconds * 1e9)
            found[f"loop {number}"] = (
                f"{busy:.0%} busy, turns p50 {turns[len(turns) // 2] / 1e6:.2f}"
                f" p99 {turns[len(turns) * 99 // 100] / 1e6:.2f} max {turns[-1] / 1e6:.1f} ms"
            )
        return found


class Mob:
    """Hostile clients."""

    def __init__(self, world: World, kinds: list[str], clients: int) -> None:
        self.done: Counter[str] = Counter()
        self._callers: list[Caller] = []
        self._is_over = False
        made = {kind: SENDERS[kind]() for kind in kinds}
        servers = itertools.cycle(world.names)
        for number, kind in enumerate(itertools.islice(itertools.cycle(kinds), clients)):
            if number and number % len(kinds) == 0:
                next(servers)  # or each kind would have one server
            caller = Caller(world.time, world.network, "mallory", next(servers))
            self._callers.append(caller)
            self._next(caller, kind, made[kind], 0)

    def _next(self, caller: Caller, kind: str, made: Iterator[Sent], took_ns: int) -> None:
        if took_ns > 0:
            self.done[kind] += 1
        if not self._is_over:
            caller.send(next(made), partial(self._next, caller, kind, made))

    def stop(self) -> None:
        self._is_over = True
        for caller in self._callers:
            caller.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--kinds", nargs="*", default=KINDS, choices=KINDS)
    parser.add_argument("--clients", type=int, default=CLIENTS)
    arguments = parser.parse_args()
    gc.set_threshold(*GC_THRESHOLDS)  # as in a server
    world = World()
    gc.freeze()
    world.measure(2.0)
    calm = world.measure(arguments.seconds)
    show("calm", calm)
    mob = Mob(world, arguments.kinds, arguments.clients)
    world.measure(2.0)
    struck = world.measure(arguments.seconds)
    show("struck", struck)
    mob.stop()
    print("hostile requests answered:", dict(mob.done), "failed of others:", dict(world.failed))
    for name in world.took:
        print(f"{name}: p50 x{struck[name][0] / calm[name][0]:.1f}",
              f"p99 x{struck[name][1] / calm[name][1]:.1f}")  # fmt: skip


def show(phase: str, found: dict[str, Any]) -> None:
    print(phase)
    for name, value in found.items():
        print(f"  {name:<8} {value}")


if __name__ == "__main__":
    main()
