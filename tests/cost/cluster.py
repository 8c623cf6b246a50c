"""A replica set without randomness: three simulated servers whose work depends on their load alone.

The machines are those of `vdl sim`, whole servers on virtual time. Nothing that affects the amount
of work is drawn: each message takes the same time on its way, each sync the same time on the disk,
no clock drifts, nothing is split, lost or broken, and no invariants are checked in between. So two
runs are equal to the last call, and the cost of a code change is not hidden by random variation.

Does not depend on the requests, nor on what is counted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from random import Random

from segments.api import StoreOptions
from vdl.clock import MS
from vdl.kafka.configs.options import KafkaOptions
from vdl.kafka.wire import init_producer_id
from vdl.logstream.options import HostOptions
from vdl.server.server import ServerState
from vdl.sim.client import ClientOptions, Failure, KafkaClient, Message
from vdl.sim.clock import NodeClock, VirtualTime
from vdl.sim.disk import DiskProfile, SimDisk
from vdl.sim.frame_faults import FrameWeather
from vdl.sim.machine import KAFKA_PORT, Machine
from vdl.sim.network import Network, SimDialer, Weather
from vdl.sim.options import Options
from vdl.sim.trace import Trace
from vdl.sim.workload import create_topic
from vdl.sim.world import server_config

TOPIC = "orders"
SERVERS = 3
DELAY_NS = 100_000
TURN_NS = 20_000
SYNC_NS = 300_000
BIRTH_NS = 60_000 * MS
POLL_NS = 10 * MS
LEADERS_NS = 2_000 * MS
"""Time after which no leadership moves any more."""
SETTLE_NS = 400 * MS
"""Time for all committed entries to reach their segment.

It is short, because a server's work while it is idle counts as well.
"""
CLIENT_OPTIONS = ClientOptions(
    request_timeout_ms=60_000, metadata_max_age_ms=3_600_000, allow_auto_create=False
)
STORE = StoreOptions(
    journal_file_bytes=4 << 20,
    journal_first_file_bytes=4 << 20,
    segment_bytes=16 << 20,
    checkpoint_bytes=2 << 20,
    checkpoint_interval_ms=200,
    scrub_bytes_per_second=0,
)
"""Files small enough to roll several times under a load of some megabytes.

Nothing is scrubbed: how much that reads depends on time, not on load.
"""


class NoLuck(Random):
    """Random source that returns the mean for every wait."""

    def expovariate(self, lambd: float = 1.0) -> float:
        return 1.0 / lambd


class Cluster:
    """Servers that serve a topic, and clients beside them."""

    def __init__(self, partitions: int) -> None:
        self.time = VirtualTime()
        trace = Trace()
        weather = Weather(delay_ns=DELAY_NS, jitter_ns=0, loss=0.0, split=0.0)
        self.network = Network(self.time, Random(0), trace, weather)
        self.partitions = partitions
        self._trace = trace
        self._clients = 0
        self.machines = [self._machine(server_id) for server_id in range(1, SERVERS + 1)]
        for machine in self.machines:
            machine.start()
        self._until(self._all_serve)
        self._create_topic()
        self.run_for(LEADERS_NS)

    @property
    def clocks(self) -> list[NodeClock]:
        """Return the clock of each server: work that runs on one of them is a server's."""
        return [machine.life.clock for machine in self.machines if machine.life is not None]

    @property
    def digest(self) -> str:
        """Return a digest that is equal if the same bytes arrived at the same instants."""
        return self._trace.digest()

    def client(self, versions: Mapping[int, int] | None = None) -> KafkaClient:
        """Return a client on a host of its own that knows the topic's leaders.

        `versions`: API key -> newest version that it supports.
        """
        client = self._connect(versions)
        client.want([TOPIC])
        self._until(lambda: self._knows_leaders(client))
        return client

    def producer_id(self, client: KafkaClient) -> int:
        """Return a producer id, requested as an idempotent producer does."""
        ids: list[int] = []

        def answered(response: Message | Failure) -> None:
            assert not isinstance(response, Failure), response
            assert not response.error_code, response
            ids.append(response.producer_id)

        request = init_producer_id.InitProducerIdRequest(transactional_id=None)
        client.call_any(init_producer_id, lambda _: request, answered)
        self._until(lambda: bool(ids))
        return ids[0]

    def run_until(self, condition: Callable[[], bool], limit_ns: int) -> None:
        """Run until the condition holds, checked after every event."""
        holds = condition() or self.time.run_until(self.time.now_ns + limit_ns, condition)
        assert holds, f"waited in vain for {limit_ns / 1e9} s"

    def run_for(self, duration_ns: int) -> None:
        self.time.run_until(self.time.now_ns + duration_ns)

    def _until(self, condition: Callable[[], bool]) -> None:
        """As `run_until`, for the cluster's creation: checked at intervals."""
        deadline_ns = self.time.now_ns + BIRTH_NS
        while not condition():
            assert self.time.now_ns < deadline_ns, "the replica set was not born"
            self.run_for(POLL_NS)

    def _machine(self, server_id: int) -> Machine:
        config = server_config(server_id, Options(servers=SERVERS))
        return Machine(
            # Clients' limits, and the period for which clocks are observed, are those of servers.
            replace(config, store=STORE, host=HostOptions(), kafka=KafkaOptions()),
            time=self.time,
            network=self.network,
            disk=SimDisk(NoLuck(server_id), DiskProfile(sync_ns=SYNC_NS)),
            rng=Random(server_id),
            start_rng=Random(server_id),
            trace=self._trace,
            turn_ns=TURN_NS,
            wall_base_ms=1_750_000_000_000,
            drift_ppm=0,
            frames=FrameWeather(),
            cuts_in_start=0.0,
        )

    def _all_serve(self) -> bool:
        servers = [machine.server for machine in self.machines]
        return all(s is not None and s.state is ServerState.SERVING for s in servers)

    def _create_topic(self) -> None:
        client = self._connect()
        errors: list[int] = []
        create_topic(client, TOPIC, self.partitions, errors.append)
        self._until(lambda: bool(errors))
        assert errors == [0], errors
        client.close()

    def _connect(self, versions: Mapping[int, int] | None = None) -> KafkaClient:
        self._clients += 1
        name = f"c{self._clients}"
        clock = NodeClock(self.time, turn_ns=TURN_NS)
        return KafkaClient(
            name,
            [(machine.name, KAFKA_PORT) for machine in self.machines],
            SimDialer(self.network, name, clock),
            clock,
            Random(self._clients),
            replace(CLIENT_OPTIONS, version_caps=dict(versions or {})),
        )

    def _knows_leaders(self, client: KafkaClient) -> bool:
        found = client.metadata.partitions(TOPIC)
        return len(found) == self.partitions and all(client.metadata.leader(p) > 0 for p in found)
