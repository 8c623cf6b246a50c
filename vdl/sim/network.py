"""Network of byte streams between simulated machines, with the faults of a network.

Streams behave like TCP: ordered, reliable, in chunks of any size, bounded by a window. Loss is
therefore delay. A cut holds the bytes sent until it heals, unless the connection is dropped first.
A machine is named by the host part of its address. A killed process closes its streams. A machine
without power sends nothing, and answers with a reset once it is up again. A dial to a running
machine without a listener is refused.

Each ordered pair of machines is a `Path`, so that one direction alone can be cut, delayed, clogged
or limited in bandwidth; bytes above the limit are queued in order. All randomness comes from the
network's generator; every delivery is traced.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from random import Random

from rpc.streams import Address, DialFailed, Stream, StreamOwner
from segments.api import Buffer
from vdl.clock import MS
from vdl.sim.clock import NodeClock, VirtualTime
from vdl.sim.trace import Trace

WINDOW_BYTES = 4 << 20
"""Bytes that one direction of a stream holds between a write and the read."""

SEGMENT_BYTES = 16 << 10
"""Bytes that leave in one piece on a path with limited bandwidth."""

_SECOND_NS = 1_000 * MS

RETRANSMIT_NS = 200 * MS
"""Delay of a lost chunk. A dial without an answer is retried after five times this delay."""


@dataclass(slots=True)
class Weather:
    """Delays and losses on every path. `delay_ns` is the least delay, `jitter_ns` a mean."""

    delay_ns: int = 100_000
    jitter_ns: int = 100_000
    loss: float = 0.0
    split: float = 0.1
    """Chance that a chunk arrives in two pieces."""


@dataclass(slots=True, eq=False)
class Path:
    """One direction between two machines."""

    cut: bool = False
    clogged_until_ns: int = 0
    extra_delay_ns: int = 0
    bytes_per_second: int = 0
    """Bandwidth; 0: unlimited."""
    free_ns: int = 0
    """Time at which everything sent so far has left."""
    held: list[Callable[[], None]] = field(default_factory=list)
    """Arrivals held until the cut heals, in order."""


@dataclass(slots=True, eq=False)
class Listener:
    clock: NodeClock
    accept: Callable[[Stream, Address], None]


class SimStream:
    """One end of a connection; implements `rpc.streams.Stream`.

    Invariant: `_inbox` is read by one scheduled `_drain` at a time, so bytes stay in order even
    across a pause of the process.
    """

    identity: int | None = None
    """Identity proved by the peer: none on a plain stream."""

    __slots__ = (
        "_blocked", "_clock", "_drain_due", "_ending", "_inbox", "_last_due_ns", "_network",
        "_owner", "_reading", "_unsent", "_unsent_max", "_window", "closed", "machine", "peer",
    )  # fmt: skip

    def __init__(self, network: Network, machine: str, clock: NodeClock) -> None:
        self._network = network
        self._clock = clock
        self.machine = machine
        self.peer: SimStream | None = None
        self.closed = False
        self._owner: StreamOwner | None = None
        self._inbox: deque[bytes] = deque()
        self._ending = ""  # cause of the end, reported once everything before it is read
        self._drain_due = False
        self._reading = True
        self._window = WINDOW_BYTES
        self._unsent = 0
        self._unsent_max = WINDOW_BYTES
        self._blocked = False
        self._last_due_ns = 0

    # --- Stream ---------------------------------------------------------------------------------
    def start(self, owner: StreamOwner) -> None:
        self._owner = owner
        self._schedule_drain()

    def write(self, buffers: Sequence[Buffer]) -> int:
        if self.closed:
            return sum(map(len, buffers))
        # Copied here, as a kernel does: the caller may change its buffers after the call.
        data = bytes(buffers[0]) if len(buffers) == 1 else b"".join(buffers)
        room = min(self._window, max(0, self._unsent_max - self._unsent))
        if len(data) > room:
            data = data[:room]
            self._blocked = True
        self._window -= len(data)
        if data:
            self._network.carry(self, data)
        return len(data)

    def unsent_bytes(self) -> int:
        return self._unsent

    def limit_unsent(self, bytes_max: int) -> None:
        self._unsent_max = bytes_max

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self._inbox.clear()
            self._network.carry_end(self, "closed by peer")

    def leads_to(self, clock: NodeClock) -> bool:
        """Return True if the other end belongs to the process of `clock`."""
        return self.peer is not None and self.peer._clock is clock

    # --- reading --------------------------------------------------------------------------------
    def narrow(self, window_bytes: int) -> None:
        """Reduce the other end's window, which limits unread bytes.

        Call it at the stream's start.
        """
        assert self.peer is not None, "not connected"
        self.peer.shrink(WINDOW_BYTES - window_bytes)

    def shrink(self, count: int) -> None:
        """Reduce the window by `count` bytes. Called by the other end."""
        self._window = max(0, self._window - count)

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        self._reading = True
        self._schedule_drain()

    def unread_bytes(self) -> int:
        return sum(map(len, self._inbox))

    def abort(self) -> None:
        """Drop the connection at both ends. Data still in flight does not arrive."""
        if not self.closed:
            self.closed = True
            self._inbox.clear()
            self._network.carry_end(self, "reset by peer")

    # --- called by the network ------------------------------------------------------------------
    def arrived(self, data: bytes, ending: str = "") -> None:
        """Take a chunk, or the end of the stream, that reached this machine."""
        if self.closed:
            return
        if ending == "reset by peer":
            self._inbox.clear()
        if data:
            self._inbox.append(data)
        if ending:
            self._ending = ending
        if self._clock.stands or not self._reading:
            self._schedule_drain()
        elif not self._drain_due:
            self._network.enter(self._clock)
            self._drain()

    def die(self) -> None:
        """End the stream with its process: it neither reads nor writes any more."""
        self.closed = True
        self._owner = None
        self._inbox.clear()

    @property
    def process_stopped(self) -> bool:
        return self._clock.stopped

    def due_after(self, due_ns: int) -> int:
        """Return when data due at `due_ns` arrives: never before data sent earlier."""
        self._last_due_ns = max(self._last_due_ns, due_ns)
        return self._last_due_ns

    def _schedule_drain(self) -> None:
        if not self._drain_due and not self.closed:
            self._drain_due = True
            self._clock.call_later(0, self._scheduled_drain)

    def _scheduled_drain(self) -> None:
        self._drain_due = False
        self._drain()

    def _drain(self) -> None:
        """Pass the received data to the owner."""
        owner = self._owner
        if owner is None:
            return
        while self._inbox and self._reading and not self.closed:
            data = self._inbox.popleft()
            target = owner.get_buffer()
            count = min(len(data), len(target))
            target[:count] = data[:count]
            if count < len(data):
                self._inbox.appendleft(data[count:])
            if self.peer is not None:
                self.peer.consumed(count)
            owner.buffer_updated(count)
        if self._ending and not self._inbox and self._reading and not self.closed:
            self.closed = True
            owner.ended(self._ending)

    def consumed(self, count: int) -> None:
        """Note that the other end read `count` bytes of ours."""
        self._window += count
        if self._blocked:
            self._tell_writable()

    def waits(self, count: int) -> None:
        """Note that `count` bytes are queued on the path. Called by the network."""
        self._unsent += count

    def left(self, count: int) -> None:
        """Note that `count` queued bytes have left. Called by the network."""
        self._unsent -= count
        if self._blocked:
            self._tell_writable()

    def _tell_writable(self) -> None:
        if not self.closed and 2 * self._unsent <= self._unsent_max:
            self._blocked = False
            self._clock.call_later(0, self._writable)

    def _writable(self) -> None:
        if self._owner is not None and not self.closed:
            self._owner.writable()


class SimDial:
    """An attempt to connect; a `rpc.streams.Dial`."""

    __slots__ = ("cancelled",)

    def __init__(self) -> None:
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class SimDialer:
    """Dialer of one process; a `rpc.streams.Dialer`."""

    __slots__ = ("_clock", "_machine", "_network")

    def __init__(self, network: Network, machine: str, clock: NodeClock) -> None:
        self._network = network
        self._machine = machine
        self._clock = clock

    def dial(self, address: Address, on_result: Callable[[Stream | DialFailed], None]) -> SimDial:
        dial = SimDial()
        self._network.connect(self._machine, self._clock, address, dial, on_result)
        return dial


class Network:
    """All machines, paths and connections of one world."""

    def __init__(self, time: VirtualTime, rng: Random, trace: Trace, weather: Weather) -> None:
        self.weather = weather
        self._time = time
        self._rng = rng
        self._trace = trace
        self._paths: dict[tuple[str, str], Path] = {}
        self._listeners: dict[Address, Listener] = {}
        self._stand_ins: dict[Address, Listener] = {}
        self._streams: dict[str, list[SimStream]] = {}
        self._down: set[str] = set()
        self._ports = 40_000

    # --- machines -------------------------------------------------------------------------------
    def listen(
        self, address: Address, clock: NodeClock, accept: Callable[[Stream, Address], None]
    ) -> None:
        """Accept connections; `accept` receives the stream and the address of its origin."""
        current = self._listeners.get(address)
        assert current is None or current.clock.stopped, address
        self._listeners[address] = Listener(clock, accept)

    def stand_in(
        self, address: Address, clock: NodeClock, accept: Callable[[Stream, Address], None]
    ) -> None:
        """Accept connections while no process listens at the address, until `stand_down`."""
        self._stand_ins[address] = Listener(clock, accept)

    def stand_down(self, address: Address) -> None:
        """Remove the stand-in listener at the address."""
        self._stand_ins.pop(address, None)

    def machine_up(self, machine: str) -> None:
        self._down.discard(machine)

    def process_killed(self, machine: str) -> None:
        """Close the process's streams, as the kernel does; other machines notice."""
        for stream in self._streams.pop(machine, []):
            if not stream.closed:
                stream.die()
                self.carry_end(stream, "reset by peer")

    def power_cut(self, machine: str) -> None:
        """Silence the machine: its streams end without notice to the other ends."""
        self._down.add(machine)
        for stream in self._streams.pop(machine, []):
            stream.die()

    # --- faults ---------------------------------------------------------------------------------
    def path(self, source: str, target: str) -> Path:
        path = self._paths.get((source, target))
        if path is None:
            path = self._paths[source, target] = Path()
        return path

    def narrow(self, source: str, target: str, bytes_per_second: int) -> None:
        """Limit the bandwidth from `source` to `target`; 0: unlimited."""
        self.path(source, target).bytes_per_second = bytes_per_second

    def cut(self, source: str, target: str) -> None:
        """Hold everything from `source` to `target` until healed."""
        self.path(source, target).cut = True

    def heal(self, source: str, target: str) -> None:
        """End a cut. Data sent meanwhile arrives now, unless its connection was dropped."""
        path = self.path(source, target)
        path.cut = False
        held, path.held = path.held, []
        for arrive in held:
            self._time.after(0, arrive)

    def heal_all(self) -> None:
        # Bandwidth limits stay: they are not faults.
        for source, target in sorted(self._paths):
            self.heal(source, target)
            self._paths[source, target].clogged_until_ns = 0
            self._paths[source, target].extra_delay_ns = 0

    def reset_between(self, one: str, other: str) -> int:
        """Reset every connection between two machines; return their number."""
        found = [
            stream
            for stream in self._streams.get(one, [])
            if not stream.closed and stream.peer is not None and stream.peer.machine == other
        ]
        for stream in found:
            peer = stream.peer
            assert peer is not None
            stream.arrived(b"", "reset by peer")
            peer.arrived(b"", "reset by peer")
        return len(found)

    # --- connections ----------------------------------------------------------------------------
    def connect(
        self,
        machine: str,
        clock: NodeClock,
        address: Address,
        dial: SimDial,
        on_result: Callable[[Stream | DialFailed], None],
    ) -> None:
        delay_ns = self._delay_ns(machine, address[0]) + self._delay_ns(address[0], machine)
        self._time.after(
            delay_ns, partial(self._connected, machine, clock, address, dial, on_result)
        )

    def _connected(
        self,
        machine: str,
        clock: NodeClock,
        address: Address,
        dial: SimDial,
        on_result: Callable[[Stream | DialFailed], None],
    ) -> None:
        if dial.cancelled or clock.stopped:
            return
        target = address[0]
        silent = (
            target in self._down or self.path(machine, target).cut or self.path(target, machine).cut
        )
        if silent:
            again = partial(self._connected, machine, clock, address, dial, on_result)
            self._time.after(5 * RETRANSMIT_NS, again)
            return

        def report(result: Stream | DialFailed) -> None:
            # Checked again here: the process may have been paused between the result and its
            # report.
            if not dial.cancelled:
                on_result(result)
            elif isinstance(result, SimStream):
                result.close()

        listener = self._listeners.get(address)
        if listener is None or listener.clock.stopped:
            listener = self._stand_ins.get(address)
        if listener is None:
            self._trace.note(self._time.now_ns, f"{machine} refused by {target}:{address[1]}")
            clock.call_later(0, partial(report, DialFailed(True, "connection refused")))
            return
        near, far = SimStream(self, machine, clock), SimStream(self, target, listener.clock)
        near.peer, far.peer = far, near
        self._remember(near)
        self._remember(far)
        self._ports += 1
        self._trace.note(self._time.now_ns, f"{machine} connected to {target}:{address[1]}")
        listener.clock.call_later(0, partial(listener.accept, far, (machine, self._ports)))
        clock.call_later(0, partial(report, near))

    def _remember(self, stream: SimStream) -> None:
        streams = self._streams.setdefault(stream.machine, [])
        if len(streams) > 64:
            streams[:] = [other for other in streams if not other.closed]
        streams.append(stream)

    def enter(self, clock: NodeClock) -> None:
        """Run the rest of the current event inside this process."""
        self._time.enter(clock)

    # --- transport ------------------------------------------------------------------------------
    def carry(self, source: SimStream, data: bytes) -> None:
        """Send bytes to the stream's other end."""
        peer = source.peer
        assert peer is not None, "a stream without another end"
        path = self.path(source.machine, peer.machine)
        if path.bytes_per_second:
            for at in range(0, len(data), SEGMENT_BYTES):
                self._queue(source, path, data[at : at + SEGMENT_BYTES])
            return
        if len(data) > 1 and self._rng.random() < self.weather.split:
            middle = self._rng.randrange(1, len(data))
            self._send(source, data[:middle], "")
            data = data[middle:]
        self._send(source, data, "")

    def _queue(self, source: SimStream, path: Path, data: bytes) -> None:
        """Queue a segment behind everything sent before it on the path."""
        now_ns = self._time.now_ns
        took_ns = len(data) * _SECOND_NS // path.bytes_per_second
        path.free_ns = max(path.free_ns, now_ns) + took_ns
        source.waits(len(data))
        self._time.after(path.free_ns - now_ns, partial(self._leave, source, data))

    def _leave(self, source: SimStream, data: bytes) -> None:
        self._send(source, data, "")
        source.left(len(data))

    def carry_end(self, source: SimStream, ending: str) -> None:
        """Send a stream's end: a close after the queued bytes, a reset at once."""
        peer = source.peer
        assert peer is not None, "a stream without another end"
        waits_ns = self.path(source.machine, peer.machine).free_ns - self._time.now_ns
        if source.unsent_bytes() and waits_ns > 0 and ending == "closed by peer":
            self._time.after(waits_ns, partial(self._send, source, b"", ending))
        else:
            self._send(source, b"", ending)

    def _send(self, source: SimStream, data: bytes, ending: str) -> None:
        peer = source.peer
        assert peer is not None, "a stream without another end"
        delay_ns = self._delay_ns(source.machine, peer.machine)
        due_ns = source.due_after(self._time.now_ns + delay_ns)
        self._time.after(
            due_ns - self._time.now_ns, partial(self._arrive, source, peer, data, ending)
        )

    def _arrive(self, source: SimStream, target: SimStream, data: bytes, ending: str) -> None:
        path = self.path(source.machine, target.machine)
        if path.cut:
            path.held.append(partial(self._arrive, source, target, data, ending))
        elif target.machine in self._down:
            pass
        elif target.process_stopped:
            # No process: the kernel answers with a reset.
            if not source.closed and not ending:
                self._send(target, b"", "reset by peer")
        else:
            self._trace.delivery(self._time.now_ns, source.machine, target.machine, data)
            target.arrived(data, ending)

    def _delay_ns(self, source: str, target: str) -> int:
        weather, rng = self.weather, self._rng
        path = self.path(source, target)
        delay_ns = weather.delay_ns + path.extra_delay_ns
        if weather.jitter_ns:
            delay_ns += int(rng.expovariate(1.0 / weather.jitter_ns))
        if weather.loss and rng.random() < weather.loss:
            delay_ns += RETRANSMIT_NS
        return max(delay_ns, path.clogged_until_ns - self._time.now_ns)
