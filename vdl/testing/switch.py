"""Links to other servers that can be cut, each direction by itself.

Of the two servers of a link, the one that dialled it holds it back. Bytes of a direction that is
cut are kept until it is healed, as TCP keeps what a network loses; a connection that is attempted
or closed meanwhile completes then. To the servers this looks like silence, as a lost network does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rpc.reader import Buffer
from rpc.streams import Address, Dial, DialFailed, Stream, StreamOwner
from rpc.transport import SocketDialer
from vdl.server.loop import TurnLoop

KEPT_BYTES_MAX = 8 << 20
"""Bytes received in a cut direction at which the connection is lost."""
BUFFER_BYTES = 64 << 10


@dataclass(slots=True)
class Ways:
    """Directions between this server and another one. True: cut."""

    sends: bool = False
    receives: bool = False


class Switch:
    """Switch of all links that this server dials."""

    def __init__(self, peers: dict[Address, int]) -> None:
        """`peers`: server id by peer address."""
        self._peers = peers
        self._ways = {server_id: Ways() for server_id in peers.values()}
        self._waiting: list[tuple[int, Callable[[], None]]] = []
        """Calls to be made when the directions of a server are healed."""

    def ways(self, address: Address) -> Ways:
        """Return the directions to and from the server at this address."""
        return self._ways[self._peers[address]]

    def set(self, server_id: int, *, sends: bool, receives: bool) -> None:
        """Cut and heal the directions of one server."""
        ways = self._ways[server_id]
        ways.sends, ways.receives = sends, receives
        due = [call for number, call in self._waiting if number == server_id]
        self._waiting = [one for one in self._waiting if one[0] != server_id]
        for call in due:
            call()

    def when_changed(self, address: Address, call: Callable[[], None]) -> None:
        """Call `call` once, when the directions of the server at this address change."""
        self._waiting.append((self._peers[address], call))


class SwitchedDialer(SocketDialer):
    """`SocketDialer` whose links have a switch."""

    def __init__(self, loop: TurnLoop, switch: Switch) -> None:
        super().__init__(loop)
        self._switch = switch

    def dial(self, address: Address, on_result: Callable[[Stream | DialFailed], None]) -> Dial:
        """See `Dialer.dial`."""
        return SwitchedDial(super().dial, address, self._switch, on_result)


class SwitchedDial:
    """An attempt to connect, which begins when both directions are whole."""

    def __init__(
        self,
        dial: Callable[[Address, Callable[[Stream | DialFailed], None]], Dial],
        address: Address,
        switch: Switch,
        on_result: Callable[[Stream | DialFailed], None],
    ) -> None:
        self._dial = dial
        self._address = address
        self._switch = switch
        self._on_result = on_result
        self._begun: Dial | None = None
        self._is_cancelled = False
        self._begin()

    def cancel(self) -> None:
        """See `Dial.cancel`."""
        self._is_cancelled = True
        if self._begun is not None:
            self._begun.cancel()

    def _begin(self) -> None:
        if self._is_cancelled:
            return
        ways = self._switch.ways(self._address)
        if ways.sends or ways.receives:
            self._switch.when_changed(self._address, self._begin)
        else:
            self._begun = self._dial(self._address, self._connected)

    def _connected(self, result: Stream | DialFailed) -> None:
        if not isinstance(result, DialFailed):
            result = SwitchedStream(result, self._address, self._switch)
        self._on_result(result)


class SwitchedStream:
    """A `Stream` that holds back what it sends or has received."""

    def __init__(self, stream: Stream, address: Address, switch: Switch) -> None:
        self._stream = stream
        self._address = address
        self._switch = switch
        self._ways = switch.ways(address)
        self._owner: StreamOwner | None = None
        self._room = memoryview(bytearray(BUFFER_BYTES))
        self._kept = bytearray()
        self._end = ""
        """Cause of an end that the owner does not know yet."""
        self._is_closed = False
        self._owes_writable = False
        switch.when_changed(address, self._changed)

    @property
    def identity(self) -> int | None:
        """See `Stream.identity`."""
        return self._stream.identity

    def start(self, owner: StreamOwner) -> None:
        """See `Stream.start`."""
        self._owner = owner
        self._stream.start(self)

    def write(self, buffers: Sequence[Buffer]) -> int:
        """See `Stream.write`."""
        if self._ways.sends and not self._is_closed:
            self._owes_writable = True
            return 0
        return self._stream.write(buffers)

    def unsent_bytes(self) -> int:
        """See `Stream.unsent_bytes`."""
        return self._stream.unsent_bytes()

    def limit_unsent(self, bytes_max: int) -> None:
        """See `Stream.limit_unsent`."""
        self._stream.limit_unsent(bytes_max)

    def pause_reading(self) -> None:
        """See `Stream.pause_reading`."""
        self._stream.pause_reading()

    def resume_reading(self) -> None:
        """See `Stream.resume_reading`."""
        self._stream.resume_reading()

    def unread_bytes(self) -> int:
        """See `Stream.unread_bytes`. What a cut keeps has not arrived."""
        return self._stream.unread_bytes()

    def close(self) -> None:
        """See `Stream.close`. The other end of a cut direction notices when it is healed."""
        self._is_closed = True
        if not self._ways.sends:
            self._stream.close()

    # --- as the owner of the stream ---------------------------------------------------------------
    def get_buffer(self) -> memoryview:
        """See `StreamOwner.get_buffer`."""
        if self._keeps or self._owner is None:
            return self._room
        return self._owner.get_buffer()

    @property
    def _keeps(self) -> bool:
        return self._ways.receives or self._is_closed or bool(self._kept)

    def buffer_updated(self, received: int) -> None:
        """See `StreamOwner.buffer_updated`."""
        if self._is_closed:
            return
        if not self._keeps:
            assert self._owner is not None
            self._owner.buffer_updated(received)
            return
        self._kept += self._room[:received]
        if len(self._kept) > KEPT_BYTES_MAX:
            self._stream.close()
            self.ended("more bytes than a cut link keeps")

    def writable(self) -> None:
        """See `StreamOwner.writable`."""
        if not self._is_closed and not self._ways.sends:
            assert self._owner is not None
            self._owner.writable()

    def ended(self, cause: str) -> None:
        """See `StreamOwner.ended`."""
        if self._is_closed:
            return
        if self._ways.receives:
            self._end = cause
            return
        self._is_closed = True
        assert self._owner is not None
        self._owner.ended(cause)

    # --- the switch -------------------------------------------------------------------------------
    def _changed(self) -> None:
        if self._is_closed:
            if self._ways.sends:
                self._switch.when_changed(self._address, self._changed)
            else:
                self._stream.close()
            return
        self._switch.when_changed(self._address, self._changed)
        if self._owner is None:
            return
        if not self._ways.receives:
            self._hand_over(self._owner)
        if self._owes_writable and not self._ways.sends and not self._is_closed:
            self._owes_writable = False
            self._owner.writable()

    def _hand_over(self, owner: StreamOwner) -> None:
        kept, self._kept = self._kept, bytearray()
        while kept and not self._is_closed:
            buffer = owner.get_buffer()
            count = min(len(kept), len(buffer))
            buffer[:count] = kept[:count]
            del kept[:count]
            owner.buffer_updated(count)
        if self._end and not self._is_closed:
            self.ended(self._end)
