"""What the link logic asks of the world: byte streams, a dialer, a clock, and someone to tell.

The logic above (`rpc.links`) is one implementation; asyncio sockets (`rpc.transport`), the
in-process fake (`rpc.memory`) and the simulator differ only in what stands behind these protocols.

All calls and callbacks happen on one thread. No function here calls back before it has returned.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
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
        """The call will not happen; harmless when it already has."""


class Clock(Protocol):
    """Monotonic time and timers of the loop that owns everything."""

    def now_ns(self) -> int: ...

    def call_later(self, delay_ns: int, fn: Callable[[], None]) -> Timer: ...


class StreamOwner(Protocol):
    """Who reads a stream: the stream reads into `get_buffer()` and reports."""

    def get_buffer(self) -> memoryview:
        """Where received bytes go; never empty."""

    def buffer_updated(self, received: int) -> None:
        """`received` > 0 bytes lie at the start of the last buffer."""

    def writable(self) -> None:
        """The stream takes bytes again, after a `write` that took less than it was offered."""

    def ended(self, cause: str) -> None:
        """The stream is over: closed by the other end, reset, failed; it has closed itself. Called
        at most once, and never after `close`."""


class Stream(Protocol):
    """A connected, ordered, reliable byte stream."""

    @property
    def identity(self) -> int | None:
        """The server that the other end has proved to be; None where nothing is proved. Final
        once bytes arrive."""

    def start(self, owner: StreamOwner) -> None:
        """Begin to read; callbacks come from now on."""

    def write(self, buffers: Sequence[Buffer]) -> int:
        """Take a prefix of the buffers and say how many bytes. If it is not everything,
        `writable` follows. A stream that failed takes everything, and `ended` follows."""

    def unsent_bytes(self) -> int:
        """What `write` took and has not left this machine: nothing overtakes it any more."""

    def limit_unsent(self, bytes_max: int) -> None:
        """From now on `write` takes about so much beyond what has left, and no more; `writable`
        comes when half of it has left."""

    def pause_reading(self) -> None:
        """Nothing that arrives is handed over until `resume_reading`; for a turn of the loop or a
        few. What the buffers below do not hold, the other end keeps."""

    def resume_reading(self) -> None:
        """What arrives is handed over again. Not from within `buffer_updated`."""

    def unread_bytes(self) -> int:
        """What has arrived and was not handed over, about."""

    def close(self) -> None:
        """End the stream; what `write` took is still delivered if possible. No callback follows."""


class OwnedStream(ABC):
    """What a stream over something else keeps of its owner: who it is, and that it hears of the end
    once, and never after `close`."""

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
    """No stream came of it. `refused`: the other machine answered that nobody listens there.
    `is_reset`: somebody listened, and was gone before the connection was taken."""

    refused: bool
    cause: str
    is_reset: bool = False


class Dial(Protocol):
    """An attempt to connect."""

    def cancel(self) -> None:
        """Give up: no result follows."""


class Dialer(Protocol):
    """Makes streams."""

    def dial(self, address: Address, on_result: Callable[[Stream | DialFailed], None]) -> Dial:
        """Connect; exactly one result follows, unless cancelled. Has no timeout of its own."""


class PeerHandler(Protocol):
    """Who the links are for. Plain functions on the loop; a frame costs no task and no future.

    Within a callback, `send` is allowed, and `set_local` from `frame`; peers are added and removed
    outside. `link_up` and `link_down` alternate for one server,
    except that `link_down(refused=True)` may follow `link_down(refused=False)`. Everything known
    about a session (leader lists, heartbeats in flight) ends with `link_down`.
    """

    def refusal(self, hello: Hello) -> tuple[RejectReason, str] | None:
        """Why this server may not have a link, and a text for people; None: it may. Its cluster and
        id were checked; its directory was not."""

    def link_up(self, hello: Hello) -> None:
        """A link is open. `hello.cluster_id` "" means that the peer is unborn."""

    def link_down(self, server_id: ServerId, *, refused: bool) -> None:
        """The link is gone. `refused`: so is the process: nobody listens there any more, or the
        peer said that it stops."""

    def frame(self, server_id: ServerId, frame_type: FrameType, payload: memoryview) -> None:
        """A frame came. `payload` may be kept, it is never overwritten. Raise RemoteError for one
        that is malformed: the link ends. Any other exception is a fault of this server and is not
        caught."""

    def rejected(
        self, server_id: ServerId, reason: RejectReason, text: str, *, by_peer: bool
    ) -> None:
        """A link was refused or ended for a stated reason; for the log. `server_id` is 0 when
        the other end has not said who it is."""

    def beat(self) -> None:
        """The heartbeat interval has passed: send heartbeats. Called with or without links."""


@dataclass(slots=True)
class LinkStatus:
    """One peer as the links see it, for status pages and metrics."""

    server_id: ServerId
    is_up: bool
    dialed_by_us: bool
    unsent_bytes: int
    round_trip_ns: int
    """Of the last PING answered, -1 before the first."""
    silent_ns: int
    """Since bytes were last known to arrive, to the heartbeat interval; goes on while the link is
    down. Of a peer that never had one: since this server has known of it."""
    dial_failures: int


class Transport(Protocol):
    """What a server sees of its links."""

    def send(
        self,
        server_id: ServerId,
        frame_type: FrameType,
        buffers: Sequence[Buffer],
        *,
        urgent: bool = False,
        more: bool = False,
    ) -> bool:
        """Hand over one frame; `urgent`: before entries and snapshots (`rpc.lanes`); `more`:
        another one follows at once and is to leave with it. The buffers must not change until
        written. False, and nothing sent: no link, an unborn one, or the bound
        on unsent bytes is reached: report it unreachable."""

    def confirm(self, server_id: ServerId, done: Callable[[bool], None]) -> None:
        """Call `done` when what is known of the link is current; never from within this call. True:
        the peer answered something that was sent now."""

    def unread_ns(self) -> int:
        """For how long more has come on some link than is handled in a turn, in ns; 0: it does not.
        What peers have said in the meantime may not be known yet."""

    def links(self) -> list[LinkStatus]:
        """Every known peer, by server id."""

    def close(self) -> None:
        """Tell all peers that this server stops, and end everything. No callback follows."""
