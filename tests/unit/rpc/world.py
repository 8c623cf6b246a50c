"""A few servers' links on a virtual clock, over the in-process network."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from rpc.hello import Hello, RejectReason
from rpc.link_options import LinkOptions
from rpc.links import Links
from rpc.memory import Network
from rpc.peer import FrameType
from rpc.streams import Address

MS = 1_000_000
CLUSTER = "cluster-1"


@dataclass(slots=True)
class VirtualTimer:
    """A scheduled call; ordered by time, then by creation."""

    due_ns: int
    order: int
    fn: Callable[[], None]
    is_cancelled: bool = False

    def __lt__(self, other: VirtualTimer) -> bool:
        return (self.due_ns, self.order) < (other.due_ns, other.order)

    def cancel(self) -> None:
        self.is_cancelled = True


class VirtualClock:
    """Clock that advances from one timer to the next."""

    def __init__(self) -> None:
        self._now_ns = 0
        self._order = 0
        self._timers: list[VirtualTimer] = []

    def now_ns(self) -> int:
        return self._now_ns

    work_ns = now_ns

    def call_later(self, delay_ns: int, fn: Callable[[], None]) -> VirtualTimer:
        assert delay_ns >= 0, delay_ns
        self._order += 1
        timer = VirtualTimer(self._now_ns + delay_ns, self._order, fn)
        heapq.heappush(self._timers, timer)
        return timer

    def run(self, duration_ms: float) -> None:
        """Run everything due in the next `duration_ms`."""
        end_ns = self._now_ns + int(duration_ms * MS)
        while self._timers and self._timers[0].due_ns <= end_ns:
            timer = heapq.heappop(self._timers)
            self._now_ns = timer.due_ns
            if not timer.is_cancelled:
                timer.fn()
        self._now_ns = end_ns


class ProcessClock:
    """Clock of one process: it dies with the process and stops while it is paused."""

    def __init__(self, clock: VirtualClock) -> None:
        self._clock = clock
        self._held: list[Callable[[], None]] = []
        self.is_alive = True
        self.is_paused = False

    def now_ns(self) -> int:
        return self._clock.now_ns()

    work_ns = now_ns

    def call_later(self, delay_ns: int, fn: Callable[[], None]) -> VirtualTimer:
        timer = self._clock.call_later(delay_ns, lambda: self._due(timer, fn))
        return timer

    def _due(self, timer: VirtualTimer, fn: Callable[[], None]) -> None:
        if not self.is_alive:
            return
        if self.is_paused:
            self._held.append(lambda: None if timer.is_cancelled else fn())
        else:
            fn()

    def resume(self) -> None:
        self.is_paused = False
        held, self._held = self._held, []
        for call in held:
            call()


@dataclass
class Recorder:
    """A PeerHandler that records events, and checks that ups and downs alternate."""

    up: set[int] = field(default_factory=set)
    hellos: dict[int, Hello] = field(default_factory=dict)
    events: list[tuple[object, ...]] = field(default_factory=list)
    frames: list[tuple[int, FrameType, bytes]] = field(default_factory=list)
    rejects: list[tuple[int, RejectReason, bool]] = field(default_factory=list)
    beats: int = 0
    denied: set[int] = field(default_factory=set)
    on_frame: Callable[[int, FrameType, memoryview], None] = lambda *_: None

    def refusal(self, hello: Hello) -> tuple[RejectReason, str] | None:
        return (RejectReason.NOT_ADMITTED, "") if hello.server_id in self.denied else None

    def link_up(self, hello: Hello) -> None:
        assert hello.server_id not in self.up, hello.server_id
        self.up.add(hello.server_id)
        self.hellos[hello.server_id] = hello
        self.events.append(("up", hello.server_id))

    def link_down(self, server_id: int, *, refused: bool) -> None:
        assert server_id in self.up or refused, server_id
        self.up.discard(server_id)
        self.events.append(("down", server_id, refused))

    def frame(self, server_id: int, frame_type: FrameType, payload: memoryview) -> None:
        assert server_id in self.up, server_id
        self.frames.append((server_id, frame_type, bytes(payload)))
        self.on_frame(server_id, frame_type, payload)

    def rejected(self, server_id: int, reason: RejectReason, text: str, *, by_peer: bool) -> None:
        self.rejects.append((server_id, reason, by_peer))

    def beat(self) -> None:
        self.beats += 1


def hello_of(server_id: int, *, incarnation: int = 1, cluster_id: str = CLUSTER) -> Hello:
    return Hello(server_id, bytes([server_id]) * 16, incarnation, cluster_id)


def address_of(server_id: int) -> Address:
    return (f"server-{server_id}", 9000)


class Server:
    """One process: its links, and the events that their handler received."""

    def __init__(
        self, world: World, hello: Hello, options: LinkOptions, *, listens: bool = True
    ) -> None:
        self.hello = hello
        self.clock = ProcessClock(world.clock)
        self.handler = Recorder()
        self.links = Links(
            hello,
            world.network.dialer(hello.server_id),
            self.clock,
            random.Random(hello.server_id * 1000 + hello.incarnation),
            self.handler,
            options,
        )
        if listens:
            world.network.listen(hello.server_id, address_of(hello.server_id), self.links.accepted)

    def send(self, to: int, payload: bytes, frame_type: FrameType = FrameType.RAFT) -> bool:
        return self.links.send(to, frame_type, [payload])


class World:
    """Servers 1..n that all know each other, and the faults that can be applied to them."""

    def __init__(
        self,
        servers: int = 2,
        *,
        seed: int = 0,
        delay_ms: float = 0.1,
        jitter_ms: float = 0.0,
        chunk_bytes_max: int = 1 << 20,
        options: LinkOptions | None = None,
        hellos: dict[int, Hello] | None = None,
    ) -> None:
        self.clock = VirtualClock()
        self._rng = random.Random(seed)
        self._delay_ms = delay_ms
        self._jitter_ms = jitter_ms
        self.options = options or LinkOptions()
        self.network = Network(self.clock, self._delay_ns, chunk_bytes_max=chunk_bytes_max)
        self.servers: dict[int, Server] = {}
        ids = range(1, servers + 1)
        for server_id in ids:
            hello = (hellos or {}).get(server_id, hello_of(server_id))
            self.servers[server_id] = Server(self, hello, self.options)
        for server_id in ids:
            self.introduce(server_id)

    def __getitem__(self, server_id: int) -> Server:
        return self.servers[server_id]

    def introduce(self, server_id: int) -> None:
        """Introduce a server to all others."""
        for other in self.servers:
            if other != server_id:
                self.servers[server_id].links.set_peer(other, address_of(other))

    def run(self, duration_ms: float) -> None:
        self.clock.run(duration_ms)

    def crash(self, server_id: int) -> None:
        """Kill the process, as kill -9."""
        self.servers[server_id].clock.is_alive = False
        self.network.crash(server_id)

    def power_off(self, server_id: int) -> None:
        self.servers[server_id].clock.is_alive = False
        self.network.vanish(server_id)

    def restart(self, server_id: int) -> None:
        old = self.servers[server_id].hello
        hello = replace(old, incarnation=old.incarnation + 1)
        self.servers[server_id] = Server(self, hello, self.options)
        self.introduce(server_id)

    def second_process(self, server_id: int) -> Server:
        """Return another process in a copy of a server's directory, which cannot be dialled."""
        hello = self.servers[server_id].hello
        second = Server(
            self, replace(hello, incarnation=hello.incarnation + 1), self.options, listens=False
        )
        for other in self.servers:
            if other != server_id:
                second.links.set_peer(other, address_of(other))
        return second

    def pause(self, server_id: int) -> None:
        self.servers[server_id].clock.is_paused = True
        self.network.pause(server_id)

    def resume(self, server_id: int) -> None:
        # Data in the kernel comes first, then the timers that became due.
        self.network.resume(server_id)
        self.servers[server_id].clock.resume()

    def _delay_ns(self, source: int, target: int, size: int) -> int:
        return int((self._delay_ms + self._rng.random() * self._jitter_ms) * MS)
