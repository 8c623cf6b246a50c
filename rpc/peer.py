"""Protocol engine of one link between two servers: bytes in, events out; frames in, bytes out.

It never touches a socket and never reads a clock. The owner of the byte stream (the asyncio
transport, the in-process fake, the simulator) reads into `get_buffer()`, reports with
`buffer_updated()`, takes events from `next_event()` until it returns None, and writes what
`gather()` offers, reporting with `sent()`.

Rules of a link:

* Nothing is sent before HELLO. The dialer's engine queues its HELLO when it is created. The
  acceptor's engine returns the dialer's HELLO as an event and waits for `accept()` or `reject()`.
  Wrong cluster, wrong server and unknown version are refused here, with a REJECT that gives the
  reason.
* A link on which either end has no cluster id yet is *unborn*: it carries ASK, ANSWER, PING and
  PONG only; `send` refuses anything else and receiving it ends the link. A server that adopts a
  cluster closes its unborn links and makes new ones.
* A frame that is damaged, too large or out of place ends the link. There is no resynchronisation.
* The bytes queued and not yet written are bounded (`in_flight_bytes_max`). Beyond it `send` returns
  False and queues nothing: the caller reports the peer as unreachable, and Raft sends again later.
  Small control frames have a reserve of their own, so that heartbeats still pass.
* There are three lanes. Small latency-sensitive frames (heartbeats, votes, acknowledgements) are
  urgent: they are written before all others that have not begun. Bulk frames follow. Those larger
  than `piece_bytes`, which the owner of the stream sets to what the link carries in a short time,
  are cut: their pieces take turns with bulk frames. Each lane keeps its order. A frame whose key,
  such as a group, is in the lane of cut frames goes behind it there. So bulk frames with the same
  key keep their order. While the lane is not empty, frames of some pieces' size pass it uncut: they
  would wait behind all of it. The callers, which choose between urgent and bulk, must know what may
  overtake what (`rpc.lanes`).

Does not depend on Raft, leader lists, or the meaning of ASK and PROPOSE.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, replace
from enum import Enum, IntEnum
from itertools import chain, islice
from struct import Struct

from crc32c import crc32c

from ids import ServerId
from rpc.errors import MalformedFrame, NoMemory, RemoteError, UnexpectedFrame
from rpc.hello import (
    OLD_FRAME_BYTES_MAX,
    PROTOCOL_VERSION,
    PROTOCOL_VERSION_MIN,
    VERSION_OF_LARGE_FRAMES,
    VERSION_OF_PIECES,
    Hello,
    RejectReason,
    decode_hello,
    decode_reject,
    decode_versions,
    encode_hello,
    encode_reject,
    refusal,
)
from rpc.reader import (
    HEAD_BYTES,
    LAST_PIECE,
    PIECE,
    PIECE_BYTES_MIN,
    WHOLE,
    Buffer,
    FrameReader,
    frame_head,
)

HELLO_FRAME_BYTES_MAX = 64 << 10
"""Bytes that a peer may make us buffer before it has identified itself."""

GATHER_BUFFERS_MAX = 1024
"""IOV_MAX of Linux: the most buffers that one `sendmsg` takes."""

PASSING_PIECES = 8
PASSING_BYTES_MAX = 1 << 20
"""Largest bulk frame that passes a cut one, in pieces and in bytes. No ordinary batch has more, and
an urgent frame waits for one such: a fifth of a second on a slow link."""

_PING = Struct("<q")


class FrameType(IntEnum):
    """Type of a frame's payload. Numbers are on the wire: never reuse one."""

    HELLO = 1
    REJECT = 2
    PING = 3
    PONG = 4
    ASK = 5  # an unborn server requests the cluster's birth record
    ANSWER = 6  # "empty", or the record
    RAFT = 7  # messages of many groups, see rpc.frames
    HEARTBEAT = 8  # leader list version and acknowledgement, see rpc.leaders
    LEADERS = 9  # leader list, whole or changes
    PROPOSE = 10  # a state-machine command for the leader of a group
    PROPOSED = 11  # its definite refusal, or where it was appended
    CONDITION = 12  # the sender's condition, such as a full disk, see rpc.condition
    RANGE = 13  # request for committed entries, see rpc.ranges
    ENTRIES = 14  # the entries, or that they are not available
    QUERY = 15  # request on behalf of a client, see rpc.queries
    REPLY = 16  # the answer to a QUERY
    COMPACTED = 17  # how far replicas are compacted, see rpc.compacted
    COMMAND = 18  # a command for the leader of any group, see rpc.commands
    COMMAND_DONE = 19  # its answer, once it is applied there
    COMMANDS = 20  # several COMMANDs
    COMMANDS_DONE = 21  # several COMMAND_DONEs
    DENIALS = 22  # newer terms than those of a leader list, see rpc.denials
    JOURNAL = 23  # how far the sender's journal is durable, see rpc.journal_marks
    REMEMBERED = 24  # the sender's record of the receiver's journal
    DISSENT = 25  # replicas that cannot follow the receiver, see rpc.dissent


_TYPE_BY_CODE = {frame_type.value: frame_type for frame_type in FrameType}
_UNBORN_TYPES = frozenset((FrameType.ASK, FrameType.ANSWER))
_BORN_TYPES = frozenset(
    (
        FrameType.ASK, FrameType.ANSWER, FrameType.RAFT, FrameType.HEARTBEAT, FrameType.LEADERS,
        FrameType.PROPOSE, FrameType.PROPOSED, FrameType.CONDITION, FrameType.RANGE,
        FrameType.ENTRIES, FrameType.QUERY, FrameType.REPLY, FrameType.COMPACTED,
        FrameType.COMMAND, FrameType.COMMAND_DONE, FrameType.COMMANDS, FrameType.COMMANDS_DONE,
        FrameType.DENIALS, FrameType.JOURNAL, FrameType.REMEMBERED,
        FrameType.DISSENT,
    )
)  # fmt: skip
_BULK_TYPES = frozenset((FrameType.RAFT, FrameType.PROPOSE, FrameType.ENTRIES, FrameType.COMMAND))
"""Bulk unless sent with `urgent`."""


class Role(Enum):
    """End of the byte stream that an engine represents."""

    DIALER = "dialer"
    ACCEPTOR = "acceptor"


class LinkState(Enum):
    """`OPENING → (DECIDING →) OPEN → CLOSED`; only an acceptor passes DECIDING."""

    OPENING = "opening"
    DECIDING = "deciding"
    OPEN = "open"
    CLOSED = "closed"


@dataclass(frozen=True, slots=True)
class PeerLimits:
    """Bounds of one link, in bytes."""

    in_flight_bytes_max: int = 16 << 20
    control_reserve_bytes: int = 1 << 20
    frame_bytes_max: int = 168 << 20
    """Enough for the largest snapshot of a coordinator with its head. It is sent in pieces."""


DEFAULT_LIMITS = PeerLimits()


@dataclass(slots=True)
class HelloReceived:
    """The peer identified itself. A dialer's link is open now; an acceptor must decide."""

    hello: Hello


@dataclass(slots=True)
class PongReceived:
    """Answer to the PING sent at `sent_ns` on our clock."""

    sent_ns: int


@dataclass(slots=True)
class Rejected:
    """The link was rejected, by the peer or by us. Queued bytes should still be written."""

    reason: RejectReason
    text: str
    by_peer: bool


_NO_KEYS: Set[int] = frozenset()


class _Cut:
    """A frame in the lane of cut frames."""

    __slots__ = ("after", "buffers", "bytes", "frame_type", "has_begun", "is_large", "keys")

    def __init__(
        self,
        frame_type: FrameType,
        buffers: Sequence[Buffer],
        size: int,
        after: int,
        keys: Set[int],
    ) -> None:
        self.frame_type = frame_type
        self.buffers: deque[Buffer] = deque(buffers)
        """Buffers that are in no piece yet."""
        self.bytes = size
        """Bytes of these."""
        self.after = after
        """Number of the last bulk frame that was queued before; it may have a key in common."""
        self.keys = keys
        self.has_begun = False
        """True if a piece was taken."""
        self.is_large = False
        """True if its bytes do not count towards the bound."""

    def take(self, size: int) -> list[Buffer]:
        """Take its next `size` bytes, fewer if it ends before."""
        taken: list[Buffer] = []
        size = min(size, self.bytes)
        self.bytes -= size
        while size:
            buffer = self.buffers[0]
            if len(buffer) > size:
                view = memoryview(buffer)
                taken.append(view[:size])
                self.buffers[0] = view[size:]
                break
            size -= len(buffer)
            taken.append(self.buffers.popleft())
        return taken


class _Piece:
    """A piece of a frame in the lane of cut frames, or a whole one."""

    __slots__ = ("after", "buffers", "bytes", "is_large", "keys")

    def __init__(self, buffers: Iterable[Buffer], size: int, cut: _Cut) -> None:
        self.buffers: deque[Buffer] = deque(buffers)
        self.bytes = size
        """Remaining bytes, the head included."""
        self.after = cut.after
        self.is_large = cut.is_large
        self.keys = _NO_KEYS if cut.bytes else cut.keys
        """Keys of its frame if this is the last piece."""


Frame = tuple[FrameType, memoryview]
"""A frame for the layer above. The payload is writable and stays valid while referenced."""
Event = HelloReceived | Frame | PongReceived | Rejected


class PeerEngine:
    """One end of one link."""

    __slots__ = (
        "_begun_bytes", "_bulk", "_bulk_frames", "_bulk_queued", "_cut", "_expected", "_large",
        "_large_bytes", "_limits", "_local", "_piece_begun", "_piece_leads", "_pieces",
        "_remote_bytes_max", "_sendable", "_takes_pieces", "_turn_bytes", "_urgent",
        "_urgent_bytes", "behind", "born", "buffer_updated", "get_buffer", "piece_bytes",
        "reader", "remote", "role", "state", "unsent_bytes",
    )  # fmt: skip

    def __init__(
        self,
        local: Hello,
        role: Role,
        *,
        expected: ServerId = ServerId(0),
        limits: PeerLimits = DEFAULT_LIMITS,
    ) -> None:
        """Create the engine of one end. `expected`: the server that must answer, 0 for any."""
        self.role = role
        self.state = LinkState.OPENING
        self.remote: Hello | None = None
        self.born = False  # both ends named the same cluster
        self.unsent_bytes = 0  # queued and not yet reported by `sent`
        self._local = replace(local, to_server=expected)
        self._expected = expected
        self._limits = limits
        self.reader = FrameReader(frame_bytes_max=HELLO_FRAME_BYTES_MAX)
        self.get_buffer: Callable[[], memoryview] = self.reader.get_buffer
        """Returns the buffer for the stream's next bytes; never empty."""
        self.buffer_updated: Callable[[int], None] = self.reader.buffer_updated
        """Takes the number of received bytes at the start of the last buffer returned."""
        self.piece_bytes = limits.frame_bytes_max
        """Size limit of a piece of a bulk frame, if that is not below `PIECE_BYTES_MIN`. Larger
        frames are cut."""
        self._takes_pieces = False
        self._remote_bytes_max = limits.frame_bytes_max
        """Largest frame that the other end accepts."""
        self._urgent: deque[Buffer] = deque()
        self._urgent_bytes = 0
        self._bulk: deque[Buffer] = deque()
        self._bulk_frames: deque[int] = deque()
        """Bytes of each frame in `_bulk`, heads included."""
        self._bulk_queued = 0
        """Number of frames that were ever queued in `_bulk`."""
        self._begun_bytes = 0
        """Remaining bytes of the first bulk frame if part of it is written; it continues before all
        others."""
        self._cut: deque[_Cut] = deque()
        """Frames that are cut, and those behind them, except for what `_pieces` have."""
        self._pieces: deque[_Piece] = deque()
        """The next pieces of the cut lane. Cut late: a checksum takes time."""
        self._piece_begun = False
        """True if part of the first is written; it continues before all others. Invariant: not
        while `_begun_bytes`."""
        self._piece_leads = False
        """True if the first was offered before the bulk frames that have not begun."""
        self._large_bytes = 0
        """Bytes of pieces of a frame whose bytes do not count towards the bound."""
        self._turn_bytes = 0
        """Bytes of bulk frames that may leave before the next piece."""
        self._large: _Cut | None = None
        """The frame larger than half the bound, while some of it is in no piece."""
        self.behind: dict[int, int] = {}
        """Keys of the frames in the cut lane, with the number of frames. Read-only for others."""
        self._sendable: frozenset[FrameType] = frozenset()
        if role is Role.DIALER:
            self._queue(FrameType.HELLO, (encode_hello(self._local),))

    @property
    def frame_bytes_max(self) -> int:
        """Largest frame that may be sent."""
        return self._limits.frame_bytes_max

    # --- in -------------------------------------------------------------------------------------
    def receive(self, data: Buffer) -> list[Event]:
        """Copy `data` in and return all its events, for streams that cannot read into a buffer.

        Events of frames behind an undecided HELLO are an error, as in `next_event`.
        """
        events: list[Event] = []
        view = memoryview(data)
        while view and self.state is not LinkState.CLOSED:
            buffer = self.get_buffer()
            taken = min(len(buffer), len(view))
            buffer[:taken] = view[:taken]
            view = view[taken:]
            self.buffer_updated(taken)
            while (event := self.next_event()) is not None:
                events.append(event)
        return events

    def next_event(self) -> Event | None:
        """Return the next event, or None until more bytes arrive. After a raise the link is CLOSED.

        Raises CorruptFrame, FrameTooLarge, MalformedFrame, NoMemory, UnexpectedFrame.
        """
        while self.state is not LinkState.CLOSED:
            try:
                frame = self.reader.next_frame()
                if frame is None:
                    return None
                code, payload = frame
                frame_type = _TYPE_BY_CODE.get(code)
                # `_sendable` is the set of types that this link carries, in both directions.
                if self.state is LinkState.OPEN and frame_type in self._sendable:
                    assert frame_type is not None, code
                    return frame_type, payload
                event = self._step(code, frame_type, payload)
            except (RemoteError, NoMemory):
                self.state = LinkState.CLOSED
                raise
            if event is not None:
                return event
        return None

    def _step(self, code: int, frame_type: FrameType | None, payload: memoryview) -> Event | None:
        """Process a frame of the link itself: HELLO, REJECT, PING, PONG."""
        if self.state is LinkState.OPEN:
            if frame_type is FrameType.PING:
                self._ping_received(payload)
                return None
            if frame_type is FrameType.PONG:
                if len(payload) != _PING.size:
                    raise MalformedFrame("pong", len(payload))
                return PongReceived(_PING.unpack(payload)[0])
        elif self.state is LinkState.OPENING and frame_type is FrameType.HELLO:
            return self._hello_received(payload)
        if frame_type is FrameType.REJECT:
            self.state = LinkState.CLOSED
            reason, text = decode_reject(payload)
            return Rejected(reason, text, by_peer=True)
        raise UnexpectedFrame(
            code, self.state.value if self.born else f"without a cluster, {self.state.value}"
        )

    def _hello_received(self, payload: memoryview) -> Event:
        version, version_min = decode_versions(payload)
        if version < PROTOCOL_VERSION_MIN or version_min > PROTOCOL_VERSION:
            text = f"this server supports versions [{PROTOCOL_VERSION_MIN}, {PROTOCOL_VERSION}], "
            return self._refuse(RejectReason.VERSION, f"{text}not [{version_min}, {version}]")
        hello = decode_hello(payload)
        self.remote = hello
        refused = refusal(self._local, hello, expected=self._expected)
        if refused is not None:
            return self._refuse(*refused)
        if self.role is Role.DIALER:
            self._open()
        else:
            self.state = LinkState.DECIDING
        return HelloReceived(hello)

    def _ping_received(self, payload: memoryview) -> None:
        if len(payload) != _PING.size:
            raise MalformedFrame("ping", len(payload))
        # A peer that pings and never reads gets no more answers than fit within the bound.
        if self.unsent_bytes < self._limits.in_flight_bytes_max:
            self._queue(FrameType.PONG, (bytes(payload),))

    def _refuse(self, reason: RejectReason, text: str) -> Rejected:
        self.reject(reason, text)
        return Rejected(reason, text, by_peer=False)

    def _open(self) -> None:
        assert self.remote is not None
        self.state = LinkState.OPEN
        self.born = (
            bool(self.remote.cluster_id) and self.remote.cluster_id == self._local.cluster_id
        )
        self._sendable = _BORN_TYPES if self.born else _UNBORN_TYPES
        self._takes_pieces = self.remote.version >= VERSION_OF_PIECES
        self.reader.frame_bytes_max = self._limits.frame_bytes_max
        if self.remote.version < VERSION_OF_LARGE_FRAMES:
            self._remote_bytes_max = min(self._limits.frame_bytes_max, OLD_FRAME_BYTES_MAX)

    # --- out ------------------------------------------------------------------------------------
    def accept(self) -> None:
        """Answer the dialer's HELLO with ours: the link is open."""
        assert self.state is LinkState.DECIDING, self.state
        self._queue(FrameType.HELLO, (encode_hello(self._local),))
        self._open()

    def reject(self, reason: RejectReason, text: str) -> None:
        """Send the reason and close: no event follows. Queued bytes should still be written."""
        assert self.state is not LinkState.CLOSED, self.state
        # Last of all: the peer closes the link when it reads this.
        if self._cut or self._pieces:
            self._queue_cut(FrameType.REJECT, (encode_reject(reason, text),), _NO_KEYS)
        else:
            self._queue(FrameType.REJECT, (encode_reject(reason, text),), is_bulk=True)
        self.state = LinkState.CLOSED

    def send(
        self,
        frame_type: FrameType,
        buffers: Sequence[Buffer],
        *,
        urgent: bool = False,
        keyed: Sequence[tuple[int, object]] = (),
    ) -> bool:
        """Queue one frame. Return False, with nothing queued, if it cannot be sent now.

        That is the case if the link is not open, if it is unborn and the frame is for members of a
        cluster, if the bound is reached, or if the other end's version does not accept a frame this
        large. `urgent` queues it before all bulk, as for all frame types that are never bulk. Bulk
        frames with a key in common keep their order; without `keyed`, the type is the key.

        The buffers are kept, not copied: they must not change until written. One frame larger than
        half the bound is accepted if no other such frame is queued. It does not block others: its
        remaining bytes do not count towards the bound. Raises ValueError for a frame that the peer
        would refuse.
        """
        if self.state is not LinkState.OPEN:
            return False
        if frame_type not in self._sendable:
            if frame_type not in _BORN_TYPES:
                raise ValueError(f"only the engine sends {frame_type.name} frames")
            return False
        length = 0
        for buffer in buffers:
            length += len(buffer)
        is_bulk = not urgent and frame_type in _BULK_TYPES
        limits = self._limits
        if length > limits.frame_bytes_max:
            raise ValueError(
                f"frame of {length} bytes, but at most {limits.frame_bytes_max} may be sent"
            )
        if length > self._remote_bytes_max:
            return False
        unsent = self.unsent_bytes
        bytes_max = limits.in_flight_bytes_max
        # If it counted, it could only be sent while almost nothing else is queued.
        is_large = is_bulk and length > bytes_max // 2
        if unsent:
            if not is_bulk:
                bytes_max += limits.control_reserve_bytes
            if is_large and (self._large is not None or self._large_bytes):
                return False
            needed = 0 if is_large else HEAD_BYTES + length
            if unsent - self._large_left() + needed > bytes_max:
                return False
        if is_bulk and (self.behind or is_large or length > self.piece_bytes):
            keys = {key for key, _ in keyed} or {-frame_type}
            if is_large or not self._passes(length, keys):
                self._queue_cut(frame_type, buffers, keys, is_large=is_large)
                return True
        self._queue(frame_type, buffers, is_bulk=is_bulk)
        return True

    def _passes(self, length: int, keys: Set[int]) -> bool:
        """Return True if a bulk frame is sent uncut before the cut lane."""
        behind = self.behind
        if not behind:
            return length <= self.piece_bytes
        bytes_max = max(min(PASSING_PIECES * self.piece_bytes, PASSING_BYTES_MAX), self.piece_bytes)
        return length <= bytes_max and keys.isdisjoint(behind)

    def _large_left(self) -> int:
        """Return the unwritten bytes of a frame larger than half the bound."""
        left = 0 if self._large is None else HEAD_BYTES + self._large.bytes
        return left + self._large_bytes

    def ping(self, now_ns: int) -> None:
        """Queue a PING; it returns `now_ns` to us in a `PongReceived`."""
        assert self.state is LinkState.OPEN, self.state
        self._queue(FrameType.PING, (_PING.pack(now_ns),))

    def gather(self, *, begins_bytes: int = 1) -> list[Buffer]:
        """Return the buffers to write next, for one `sendmsg`. Empty if nothing is queued.

        At most one frame of the cut lane, or piece of one, begins; none if `begins_bytes` is not
        positive. While nothing else is queued, several do, up to about `begins_bytes`.
        """
        urgent, bulk = self._urgent, self._bulk
        if self._pieces or (self._cut and begins_bytes > 0):
            if urgent or bulk:
                return list(islice(self._with_piece(begins_bytes > 0), GATHER_BUFFERS_MAX))
            return self._only_pieces(begins_bytes)[:GATHER_BUFFERS_MAX]
        if urgent and bulk:
            begun = self._begun_buffers()
            return list(
                islice(
                    chain(islice(bulk, begun), urgent, islice(bulk, begun, None)),
                    GATHER_BUFFERS_MAX,
                )
            )
        out = urgent or bulk
        if len(out) <= GATHER_BUFFERS_MAX:
            return list(out)
        return list(islice(out, GATHER_BUFFERS_MAX))

    def _only_pieces(self, begins_bytes: int) -> list[Buffer]:
        """Return the buffers of the next pieces, while no other lane has anything."""
        pieces = self._pieces
        out: list[Buffer] = []
        number = 0
        while begins_bytes > 0 or (self._piece_begun and not number):
            if number == len(pieces):
                if not self._cut:
                    break
                self._cut_piece()
            piece = pieces[number]
            out.extend(piece.buffers)
            begins_bytes -= piece.bytes
            number += 1
        return out

    def _with_piece(self, begins: bool) -> Iterator[Buffer]:
        """Return the buffers of all lanes, of one piece at most, in the order of writing."""
        urgent, bulk, pieces = self._urgent, self._bulk, self._pieces
        if not pieces:
            self._cut_piece()
        piece = pieces[0]
        if self._piece_begun:
            return chain(piece.buffers, urgent, bulk)
        begun = self._begun_buffers()
        parts: list[Iterable[Buffer]] = [islice(bulk, begun), urgent, islice(bulk, begun, None)]
        bulk_sent = self._bulk_queued - len(self._bulk_frames)
        self._piece_leads = begins and self._turn_bytes <= 0 and bulk_sent >= piece.after
        if begins:
            parts.insert(2 if self._piece_leads else 3, piece.buffers)
        return chain(*parts)

    def _begun_buffers(self) -> int:
        """Return how many buffers of the bulk lane belong to a frame that has begun."""
        left, count = self._begun_bytes, 0
        for buffer in self._bulk if left else ():
            count += 1
            left -= len(buffer)
            if left <= 0:
                break
        assert left == 0, (left, self._begun_bytes)
        return count

    def sent(self, written: int) -> None:
        """Report that the stream took the first `written` bytes of what `gather` returned."""
        assert 0 <= written <= self.unsent_bytes, (written, self.unsent_bytes)
        self.unsent_bytes -= written
        if not self.unsent_bytes:
            self._urgent.clear()
            self._bulk.clear()
            self._bulk_frames.clear()
            self._urgent_bytes = self._begun_bytes = 0
            while self._pieces:
                self._piece_sent(self._pieces[0].bytes)
            return
        if self._piece_begun:
            written -= self._piece_sent(written)
        begun = min(written, self._begun_bytes)
        if begun:
            self._bulk_sent(begun)
        urgent = min(written - begun, self._urgent_bytes)
        if urgent:
            self._urgent_bytes -= urgent
            _drop(self._urgent, urgent)
        written -= begun + urgent
        if written and self._piece_leads:
            written -= self._piece_sent(written)
        while written and self._bulk_frames:
            written -= self._bulk_sent(min(written, self._begun_bytes or self._bulk_frames[0]))
        while written:
            written -= self._piece_sent(written)

    def _bulk_sent(self, written: int) -> int:
        """Drop bytes of the first bulk frame."""
        _drop(self._bulk, written)
        left = (self._begun_bytes or self._bulk_frames[0]) - written
        if not left:
            self._bulk_frames.popleft()
        self._begun_bytes = left
        self._turn_bytes -= written
        return written

    def _piece_sent(self, written: int) -> int:
        """Drop bytes of the first piece, as many as it has; return their number."""
        piece = self._pieces[0]
        written = min(written, piece.bytes)
        piece.bytes -= written
        if piece.is_large:
            self._large_bytes -= written
        self._piece_begun = piece.bytes > 0
        if self._piece_begun:
            _drop(piece.buffers, written)
            return written
        self._pieces.popleft()
        self._piece_leads = False
        self._turn_bytes = self.piece_bytes
        for key in piece.keys:
            left = self.behind.pop(key) - 1
            if left:
                self.behind[key] = left
        return written

    def _queue(
        self, frame_type: FrameType, buffers: Sequence[Buffer], *, is_bulk: bool = False
    ) -> None:
        crc = 0
        length = 0
        for buffer in buffers:
            crc = crc32c(buffer, crc)
            length += len(buffer)
        out = self._bulk if is_bulk else self._urgent
        out.append(frame_head(frame_type, length, crc))
        out.extend(buffers)
        length += HEAD_BYTES
        self.unsent_bytes += length
        if is_bulk:
            self._bulk_frames.append(length)
            self._bulk_queued += 1
        else:
            self._urgent_bytes += length

    def _queue_cut(
        self,
        frame_type: FrameType,
        buffers: Sequence[Buffer],
        keys: Set[int],
        *,
        is_large: bool = False,
    ) -> None:
        """Queue a frame that is sent in pieces, or behind such a frame."""
        size = sum(map(len, buffers))
        cut = _Cut(frame_type, buffers, size, self._bulk_queued, keys)
        for key in keys:
            self.behind[key] = self.behind.get(key, 0) + 1
        if is_large:
            self._large = cut
            cut.is_large = True
        self._cut.append(cut)
        self.unsent_bytes += size + HEAD_BYTES

    def _cut_piece(self) -> None:
        """Make the next piece of the cut lane."""
        cut = self._cut[0]
        is_first = not cut.has_begun
        size = max(self.piece_bytes, PIECE_BYTES_MIN) if self._takes_pieces else cut.bytes
        whole = cut.bytes
        buffers = cut.take(size)
        crc = 0
        for buffer in buffers:
            crc = crc32c(buffer, crc)
        is_last = not cut.bytes
        flags = (WHOLE if is_first else LAST_PIECE) if is_last else PIECE
        size = whole - cut.bytes
        head = frame_head(cut.frame_type, size, crc, flags)
        size += HEAD_BYTES
        self._pieces.append(_Piece(chain((head,), buffers), size, cut))
        if cut.is_large:
            self._large_bytes += size
        cut.has_begun = True
        if is_last:
            self._cut.popleft()
            if cut is self._large:
                self._large = None
        else:
            self.unsent_bytes += HEAD_BYTES  # of the next piece


def _drop(out: deque[Buffer], written: int) -> None:
    """Remove the first `written` bytes."""
    while written:
        buffer = out[0]
        if len(buffer) > written:
            out[0] = memoryview(buffer)[written:]
            return
        written -= len(buffer)
        out.popleft()
