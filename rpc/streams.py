"""Interfaces that the link logic requires: byte streams, a dialer, a clock, and a handler.

The logic above (`rpc.links`) is one implementation. asyncio sockets (`rpc.transport`), the
in-process fake (`rpc.memory`) and the simulator differ only in what implements these protocols.

All calls and callbacks happen on one thread. No function here calls back before it has returned.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from ids import ServerId
from rpc.hello import Hello, RejectReason
from rpc.peer import FrameType
from rpc.reader import Buffer

Address = tuple[str, int]
"""(host, port)"""


class Timer(Protocol):
    """A scheduled call."""

    def cancel(self) -> None:
        """Cancel the call; no effect if it has already happened."""


class Clock(Protocol):
    """Monotonic time and timers of the loop that owns everything."""

    def now_ns(self) -> int: ...

    def work_ns(self) -> int:
        """As `now_ns`, for the time that work takes: it also advances in a simulated turn."""

    def call_later(self, delay_ns: int, fn: Callable[[], None]) -> Timer: ...


class StreamOwner(Protocol):
    """Owner of a stream. The stream reads into `get_buffer()` and reports."""

    def get_buffer(self) -> memoryview:
        """Return the buffer for received bytes; never empty."""

    def buffer_updated(self, received: int) -> None:
        """Handle `received` > 0 bytes at the start of the last buffer, which may be released."""

    def writable(self) -> None:
        """Handle that the stream takes bytes again, after a `write` that took less than offered."""

    def ended(self, cause: str) -> None:
        """Handle the end of the stream: closed by the other end, reset, or failed.

        The stream has closed itself. Called at most once, and never after `close`.
        """


class Stream(Protocol):
    """A connected, ordered, reliable byte stream."""

    @property
    def identity(self) -> int | None:
        """Server that the other end has proved to be; None if the stream proves no identity.

        Final once bytes arrive.
        """

    def start(self, owner: StreamOwner) -> None:
        """Begin to read and to call the owner back."""

    def write(self, buffers: Sequence[Buffer]) -> int:
        """Take a prefix of the buffers and return its length in bytes.

        If it is not everything, `writable` follows. A stream that failed takes everything, and
        `ended` follows.
        """

    def unsent_bytes(self) -> int:
        """Return the number of bytes taken that have not left; nothing overtakes them."""

    def limit_unsent(self, bytes_max: int) -> None:
        """Limit the bytes that `write` takes beyond those that have left to about `bytes_max`.

        `writable` is called when half of them have left.
        """

    def pause_reading(self) -> None:
        """Hand over no received bytes until `resume_reading`, for one or a few turns of the loop.

        Bytes that do not fit in the buffers below stay at the other end.
        """

    def resume_reading(self) -> None:
        """Hand over received bytes again. Not allowed within `buffer_updated`."""

    def unread_bytes(self) -> int:
        """Return about how many bytes have arrived and were not handed over."""

    def close(self) -> None:
        """Close the stream; bytes taken are still delivered if possible. No callback follows."""


class OwnedStream(ABC):
    """Base of a stream over something else: keeps the owner and reports the end to it.

    The end is reported once, and never after `close`.
    """

    __slots__ = ("_is_closed", "_owner")

    def __init__(self) -> None:
        self._owner: StreamOwner | None = None
        self._is_closed = False

    def start(self, owner: StreamOwner) -> None:
        """See `Stream.start`."""
        assert self._owner is None
        self._owner = owner

    @abstractmethod
    def close(self) -> None:
        """See `Stream.close`."""

    def _tell_writable(self) -> None:
        assert self._owner is not None
        self._owner.writable()

    def _end(self, cause: str) -> None:
        if not self._is_closed:
            self.close()
            assert self._owner is not None
            self._owner.ended(cause)


@dataclass(frozen=True, slots=True)
class DialFailed:
    """A dial failed. `refused`: the other machine answered that no process listens there.

    `is_reset`: a process listened, and was gone before it accepted the connection.
    """

    refused: bool
    cause: str
    is_reset: bool = False


class Dial(Protocol):
    """An attempt to connect."""

    def cancel(self) -> None:
        """Abandon the attempt: no result follows."""


class Dialer(Protocol):
    """Makes streams."""

    def dial(self, address: Address, on_result: Callable[[Stream | DialFailed], None]) -> Dial:
        """Connect; exactly one result follows, unless cancelled. Has no timeout of its own."""


class PeerHandler(Protocol):
    """Callbacks of the links. Plain functions on the loop; a frame costs no task and no future.

    Within a callback, `send` is allowed, and `set_local` from `frame`; peers are added and removed
    outside. `link_up` and `link_down` alternate for one server, except that
    `link_down(refused=True)` may follow `link_down(refused=False)`. All state of a session (leader
    lists, heartbeats in flight) ends with `link_down`.
    """

    def refusal(self, hello: Hello) -> tuple[RejectReason, str] | None:
        """Return why this server may not have a link, and a text for people; None if it may.

        Its cluster and id were checked; its directory was not.
        """

    def link_up(self, hello: Hello) -> None:
        """Handle a new link. `hello.cluster_id` "" means that the peer is unborn."""

    def link_down(self, server_id: ServerId, *, refused: bool) -> None:
        """Handle the loss of a link. `refused`: the process is gone too.

        That is, no process listens there any more, or the peer announced that it stops.
        """

    def frame(self, server_id: ServerId, frame_type: FrameType, payload: memoryview) -> None:
        """Handle a frame. `payload` may be kept, it is never overwritten.

        Raise RemoteError for a malformed frame: the link ends. Any other exception is a fault of
        this server and is not caught.
        """

    def rejected(
        self, server_id: ServerId, reason: RejectReason, text: str, *, by_peer: bool
    ) -> None:
        """Handle, for the log, a link refused or ended for a stated reason.

        `server_id` is 0 if the other end has not identified itself.
        """

    def beat(self) -> None:
        """Send heartbeats: the interval has passed. Called with or without links."""


@dataclass(slots=True)
class LinkStatus:
    """State of the link to one peer, for status pages and metrics."""

    server_id: ServerId
    is_up: bool
    dialed_by_us: bool
    unsent_bytes: int
    round_trip_ns: int
    """Round trip of the last PING answered, -1 before the first."""
    silent_ns: int
    """Time since bytes were last known to arrive, accurate to the heartbeat interval. It grows
    while the link is down. For a peer that never had a link: since this server has known of it."""
    dial_failures: int


class Transport(Protocol):
    """A server's interface to its links."""

    def send(
        self,
        server_id: ServerId,
        frame_type: FrameType,
        buffers: Sequence[Buffer],
        *,
        urgent: bool = False,
        more: bool = False,
        keyed: Sequence[tuple[int, object]] = (),
    ) -> bool:
        """Queue one frame. Return False, with nothing sent, if that is not possible.

        `keyed`: items, of which the first part is a key, such as a group: frames of one lane with a
        key in common keep their order (`PeerEngine.send`).
        `urgent`: before entries and snapshots (`rpc.lanes`). `more`: another frame follows at once
        and should leave together with this one. The buffers must not change until written. False
        means no link, an unborn one, or that the bound on unsent bytes is reached: the caller
        reports the peer as unreachable.
        """

    def behind(self, server_id: ServerId) -> Mapping[int, int]:
        """Return the keys of frames that are sent in pieces, with the number of these frames.

        Further ones with these keys wait.
        """

    def piece_bytes(self, server_id: ServerId) -> int:
        """Return the size above which a frame of entries is sent in pieces."""

    def confirm(self, server_id: ServerId, done: Callable[[bool], None]) -> None:
        """Call `done` when the known state of the link is current; never from within this call.

        `done(True)`: the peer answered something that was sent now.
        """

    def unread_ns(self) -> int:
        """Return for how long, in ns, a link has had more messages than are handled in a turn.

        0 if none has. Reports of peers from that time may not be known yet.
        """

    def links(self) -> list[LinkStatus]:
        """Return the status of every known peer, by server id."""

    def close(self) -> None:
        """Send STOPPING to all peers and close everything. No callback follows."""
