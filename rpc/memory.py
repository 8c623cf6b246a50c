"""In-process network: fake of the socket transport with streams on a virtual clock.

`Network` carries bytes between `Links` as TCP does: in order, complete, delayed, ended by a close,
a reset or not at all. Every event is a timer of the given clock, so that one thread, one clock and
one seed replay a whole cluster. `delay_ns` is called for the delay of each chunk. Data on a cut
path waits, like a TCP segment that is retransmitted until the path works again.

Faults: `cut` and `heal` one direction of one pair; `reset` all streams of a pair; `crash` a server
(its streams end, its port refuses); `vanish` (a power cut: no answer at all, not even a refusal);
`pause` and `resume` a process whose kernel keeps running.

Does not depend on frames, handshakes, or Raft.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

from ids import NO_SERVER, ServerId
from rpc.reader import Buffer
from rpc.streams import Address, Clock, DialFailed, Stream, StreamOwner

WINDOW_BYTES = 4 << 20
"""Bytes that one direction of one stream holds before `write` takes less: a socket's buffers."""

DelayFunction = Callable[[int, int, int], int]
"""(source server, target server, bytes) → delay in ns. 0 bytes: a control segment."""


class Network:
    """All streams between the servers of one world.

    Data is delivered in pieces of at most `chunk_bytes_max`, which may be a single byte.
    """

    def __init__(
        self, clock: Clock, delay_ns: DelayFunction, *, chunk_bytes_max: int = 1 << 20
    ) -> None:
        self.clock = clock
        self.delay_ns = delay_ns
        self.chunk_bytes_max = chunk_bytes_max
        self._listeners: dict[Address, tuple[ServerId, Callable[[Stream], None]]] = {}
        self._servers: dict[Address, ServerId] = {}  # including servers that do not listen now
        self._cut: set[tuple[ServerId, ServerId]] = set()
        self._vanished: set[ServerId] = set()
        self._paused: dict[int, list[Callable[[], None]]] = {}  # calls to make on resume
        # Dicts as ordered sets: faults call back in this order.
        self._streams: dict[MemoryStream, None] = {}
        self._dials: dict[MemoryDial, None] = {}
        self._dying: set[Address] = set()

    # --- calls by servers -----------------------------------------------------------------------
    def dialer(self, server_id: ServerId) -> MemoryDialer:
        """Return the dialer for the `Links` of this server."""
        return MemoryDialer(self, server_id)

    def listen(
        self, server_id: ServerId, address: Address, on_stream: Callable[[Stream], None]
    ) -> None:
        """Pass streams dialled to `address` to `on_stream`; a vanished server is back.

        Raises OSError.
        """
        if address in self._listeners:
            raise OSError(f"{address} is in use")
        self._vanished.discard(server_id)
        self._servers[address] = server_id
        self._dying.discard(address)
        self._listeners[address] = (server_id, on_stream)

    def stop_listening(self, address: Address, *, is_dying: bool = False) -> None:
        """Refuse dials to `address` from now on; or reset them, as a terminating process does."""
        self._listeners.pop(address, None)
        if is_dying:
            self._dying.add(address)
        else:
            self._dying.discard(address)

    def failure(self, address: Address) -> DialFailed:
        """Return the result of a dial to an address without a listener."""
        if address in self._dying:
            return DialFailed(refused=False, cause="reset", is_reset=True)
        return DialFailed(refused=True, cause="refused")

    # --- faults ---------------------------------------------------------------------------------
    def cut(self, source: ServerId, target: ServerId) -> None:
        """Let nothing that `source` sends reach `target`, until `heal`."""
        self._cut.add((source, target))

    def heal(self, source: ServerId, target: ServerId) -> None:
        """Repair a cut and send what waited for it."""
        self._cut.discard((source, target))
        for stream in list(self._streams):
            if (stream.source, stream.target) == (source, target):
                stream.send_again()
        for dial in list(self._dials):
            if {dial.source, dial.target} == {source, target}:
                dial.send_again()

    def reset(self, first: ServerId, second: ServerId) -> None:
        """Reset both ends of every stream between the two; data in flight is lost."""
        for stream in list(self._streams):
            if {stream.source, stream.target} == {first, second}:
                stream.end("reset")

    def crash(self, server_id: ServerId) -> None:
        """End a server's process: its ports refuse, and the other ends of its streams see them end.

        It receives no further callbacks.
        """
        self._remove(server_id)
        for stream in list(self._streams):
            if stream.source == server_id:
                stream.close()

    def vanish(self, server_id: ServerId) -> None:
        """Cut a machine's power: no answers, and no stream ends, until it listens again."""
        self._remove(server_id)
        self._vanished.add(server_id)
        for stream in list(self._streams):
            if stream.source == server_id:
                stream.forget()

    def pause(self, server_id: ServerId) -> None:
        """Stop callbacks into a process until `resume`.

        Its kernel still takes bytes, up to the window, and connections.
        """
        self._paused.setdefault(server_id, [])

    def resume(self, server_id: ServerId) -> None:
        """Deliver everything that happened to a paused process, in order."""
        for call in self._paused.pop(server_id, ()):
            # A call may pause it again; then the rest waits in the new list.
            self.call(server_id, call)

    def _remove(self, server_id: ServerId) -> None:
        self._paused.pop(server_id, None)
        for address in [a for a, (owner, _) in self._listeners.items() if owner == server_id]:
            del self._listeners[address]
        for dial in list(self._dials):
            if dial.source == server_id:
                dial.cancel()

    # --- for streams and dials --------------------------------------------------------------------
    def reaches(self, source: ServerId, target: ServerId) -> bool:
        """Return True if segments of `source` arrive at `target`."""
        if source in self._vanished or target in self._vanished:
            return False
        return (source, target) not in self._cut

    def call(self, server_id: ServerId, call: Callable[[], None]) -> None:
        """Call into a server's process, now or when it resumes."""
        waiting = self._paused.get(server_id)
        if waiting is None:
            call()
        else:
            waiting.append(call)

    def server_at(self, address: Address) -> ServerId:
        """Return the server that listens there or did, 0 if none ever has."""
        return self._servers.get(address, NO_SERVER)

    def begin(self, dial: MemoryDial) -> None:
        """Register a dial in progress."""
        self._dials[dial] = None

    def finish(self, dial: MemoryDial) -> None:
        """Remove a dial that is over."""
        self._dials.pop(dial, None)

    def connect(self, source: ServerId, address: Address) -> Stream | None:
        """Return the near end of a new stream to `address`, None if there is no listener."""
        listener = self._listeners.get(address)
        if listener is None:
            return None
        target, on_stream = listener
        near = MemoryStream(self, source, target)
        far = MemoryStream(self, target, source)
        near.other, far.other = far, near
        self._streams[near] = self._streams[far] = None
        self.call(target, partial(on_stream, far))
        return near

    def detach(self, stream: MemoryStream) -> None:
        """Remove an end of a stream that has no further events."""
        self._streams.pop(stream, None)


class MemoryDialer:
    """`rpc.streams.Dialer` of one server."""

    __slots__ = ("_network", "_server_id")

    def __init__(self, network: Network, server_id: ServerId) -> None:
        self._network = network
        self._server_id = server_id

    def dial(
        self, address: Address, on_result: Callable[[Stream | DialFailed], None]
    ) -> MemoryDial:
        return MemoryDial(self._network, self._server_id, address, on_result)


class MemoryDial:
    """One attempt to connect: a request and its answer, either of which may be cut off."""

    __slots__ = (
        "_address",
        "_is_over",
        "_is_waiting",
        "_network",
        "_on_result",
        "source",
        "target",
    )

    def __init__(
        self,
        network: Network,
        source: ServerId,
        address: Address,
        on_result: Callable[[Stream | DialFailed], None],
    ) -> None:
        self.source = source
        self.target = network.server_at(address)
        self._network = network
        self._address = address
        self._on_result = on_result
        self._is_over = False
        self._is_waiting = True  # for a heal
        network.begin(self)
        self.send_again()

    def cancel(self) -> None:
        self._is_over = True
        self._network.finish(self)

    def send_again(self) -> None:
        """Send the request, as TCP does repeatedly until it is answered."""
        if self._is_waiting:
            self._is_waiting = False
            network = self._network
            round_trip_ns = network.delay_ns(self.source, self.target, 0)
            round_trip_ns += network.delay_ns(self.target, self.source, 0)
            network.clock.call_later(round_trip_ns, self._arrived)

    def _arrived(self) -> None:
        if self._is_over:
            return
        network = self._network
        source, target = self.source, self.target
        if not (network.reaches(source, target) and network.reaches(target, source)):
            self._is_waiting = True
            return
        stream = network.connect(source, self._address)
        result = network.failure(self._address) if stream is None else stream
        network.call(source, partial(self._finish, result))

    def _finish(self, result: Stream | DialFailed) -> None:
        if not self._is_over:
            self._is_over = True
            self._network.finish(self)
            self._on_result(result)
        elif not isinstance(result, DialFailed):
            result.close()


class MemoryStream:
    """One end of a stream: `source` writes to `target`, which has the end `other`.

    Invariant: `_sent` holds what has not arrived yet, in order, each with its time. A timer is set
    for the first item, unless it waits for a heal.
    """

    identity: int | None = None
    """None: this network proves no identity."""

    __slots__ = (
        "_ending", "_in_flight_bytes", "_is_closed", "_is_forgotten", "_is_full", "_is_paused",
        "_is_waiting", "_network", "_owner", "_sent", "_unread", "other", "source", "target",
    )  # fmt: skip

    def __init__(self, network: Network, source: ServerId, target: ServerId) -> None:
        self.source = source
        self.target = target
        self.other: MemoryStream = self  # until connected
        self._network = network
        self._owner: StreamOwner | None = None
        self._sent: deque[tuple[int, bytes | str]] = deque()  # str, last: cause of the end
        self._in_flight_bytes = 0
        self._is_full = False  # a write took less than it was offered
        self._is_waiting = False  # for a heal
        self._is_paused = False
        self._unread = memoryview(b"")  # arrived while paused
        self._ending = ""  # cause of the end, until it is reported
        self._is_closed = False
        self._is_forgotten = False

    # --- rpc.streams.Stream ---------------------------------------------------------------------
    def start(self, owner: StreamOwner) -> None:
        assert self._owner is None
        self._owner = owner

    def write(self, buffers: Sequence[Buffer]) -> int:
        assert not self._is_closed
        data = b"".join(buffers)  # a copy, as the kernel makes one
        taken = min(len(data), WINDOW_BYTES - self._in_flight_bytes)
        if taken < len(data):
            self._is_full = True
        if taken:
            self._in_flight_bytes += taken
            self._send(data[:taken])
        return taken

    def unsent_bytes(self) -> int:
        """Return 0: written data is in flight. This network delays, but holds nothing back."""
        return 0

    def limit_unsent(self, bytes_max: int) -> None:
        """Do nothing: there is nothing to limit."""

    def pause_reading(self) -> None:
        self._is_paused = True

    def resume_reading(self) -> None:
        self._is_paused = False
        self._read()
        if self._ending:
            self._tell_end(self._ending)

    def unread_bytes(self) -> int:
        return len(self._unread)

    def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._send("closed by the peer")

    # --- for Network ----------------------------------------------------------------------------
    def end(self, cause: str) -> None:
        """End the stream here and report it to the owner."""
        self._sent.clear()
        self._network.detach(self)
        if not self._is_closed:
            self._network.call(self.source, partial(self._tell_end, cause))

    def forget(self) -> None:
        """Remove this end silently."""
        self._is_closed = True
        self._is_forgotten = True
        self._sent.clear()
        self._network.detach(self)

    def send_again(self) -> None:
        """Send again after the path is repaired."""
        if self._is_waiting and self._sent:
            self._is_waiting = False
            delay_ns = self._network.delay_ns(self.source, self.target, 0)
            self._network.clock.call_later(delay_ns, self._arrived)

    # --- in flight --------------------------------------------------------------------------------
    def _send(self, item: bytes | str) -> None:
        network = self._network
        now_ns = network.clock.now_ns()
        size = len(item) if isinstance(item, bytes) else 0
        arrives_ns = now_ns + network.delay_ns(self.source, self.target, size)
        if self._sent:
            arrives_ns = max(arrives_ns, self._sent[-1][0])
        self._sent.append((arrives_ns, item))
        if len(self._sent) == 1:
            network.clock.call_later(arrives_ns - now_ns, self._arrived)

    def _arrived(self) -> None:
        """Deliver the first item, unless the path is cut."""
        if not self._sent:
            return  # reset or forgotten meanwhile
        network = self._network
        if not network.reaches(self.source, self.target):
            self._is_waiting = True
            return
        _, item = self._sent.popleft()
        if self._sent:
            delay_ns = max(0, self._sent[0][0] - network.clock.now_ns())
            network.clock.call_later(delay_ns, self._arrived)
        if self.other._is_forgotten:
            # The machine is back and does not know this stream.
            self.end("reset")
        elif isinstance(item, str):
            network.detach(self)
            self.other.end(item)
        else:
            network.call(self.target, partial(self._deliver, item))

    def _deliver(self, data: bytes) -> None:
        """Deliver data to the other process."""
        self.other._receive(data)
        self._in_flight_bytes -= len(data)
        if self._is_full:
            self._is_full = False
            self._network.call(self.source, self._tell_writable)

    # --- in this end's process --------------------------------------------------------------------
    def _receive(self, data: bytes) -> None:
        self._unread = memoryview(b"".join((self._unread, data)))
        self._read()

    def _read(self) -> None:
        while self._unread and not (self._is_closed or self._is_paused):
            assert self._owner is not None
            buffer = self._owner.get_buffer()
            taken = min(len(self._unread), len(buffer), self._network.chunk_bytes_max)
            buffer[:taken] = self._unread[:taken]
            self._unread = self._unread[taken:]
            self._owner.buffer_updated(taken)

    def _tell_writable(self) -> None:
        if not self._is_closed:
            assert self._owner is not None
            self._owner.writable()

    def _tell_end(self, cause: str) -> None:
        if self._unread or self._is_paused:
            self._ending = cause
        elif not self._is_closed:
            self._is_closed = True
            assert self._owner is not None
            self._owner.ended(cause)
