"""One client's connection as bytes: requests in, answers out. Sans-I/O.

The owner of the socket (the listener, or a simulated network) writes bytes into `get_buffer` and
reports them to the session, which takes the whole requests from `received`. Answers go out through
`queue` and `flush` to a `Transport`. This matches asyncio's `BufferedProtocol`; a simulated network
works the same way. `FrameReader` alone (frames without a header) serves the client end of a
connection.

Rules of memory for what arrives:

* A byte of a buffer is written once. Buffers are never rewound or reused, so a view stays valid as
  long as it is referenced, and views are never given back.
* A view keeps its whole buffer alive: a chunk of at most `CHUNK_BYTES_MAX`, shared with the small
  frames that came with it, or the frame's own buffer. Keep a request's body no longer than until
  its answer; copy data that is kept longer.
* A frame too large for a chunk gets its own buffer and is received in place. The buffer grows with
  the bytes that arrived, never with the announced length: to `GROWTH` times as much.
* A frame above `MAPPED_BYTES_MIN` is mapped whole once `MAPPED_AFTER` bytes have arrived. The
  system provides pages as they are written, so memory follows the bytes that arrived, nothing is
  copied again, and all of it is returned at once.
* A connection with nothing under way holds no buffer.

Rules for slow clients:

* As in Kafka, a request may take any time to arrive while it makes progress: `FRAME_RATE_MIN` over
  each `frame_deadline_ms`, or `CONTENDED_RATE_MIN` since its beginning if it holds memory that
  other connections wait for.
* While other connections wait for memory, one that holds some and makes no progress gets a fraction
  of the usual time. One that takes answers slowly must be able to finish within the full time.
* A turn of the loop has budgets for receiving long requests and for sending long answers
  (`turn_budget`).
* Bytes that the socket does not take stay here, and are charged to the memory for answers. A small
  slice of a large chunk of the tail cache is copied, because it would keep the whole chunk in
  memory. Half of a large answer is not, because that would hold up the loop.

Does not depend on sockets, the event loop, the meaning of requests, or the order of answers.
"""

from __future__ import annotations

import errno
import mmap
from collections.abc import Callable, Sequence
from struct import Struct
from typing import Protocol

import msgspec

from segments.api import Buffer
from vdl.clock import MS
from vdl.kafka.connections.turn import Turn
from vdl.kafka.connections.turn_budget import LONG_ANSWER_BYTES, READ_BYTES_MIN, SHORT_BYTES
from vdl.kafka.limits.memory import UNCOUNTED_BYTES, AnswerAccount
from vdl.kafka.wire.header import decode_request_header
from vdl.kafka.wire.registry import FLEXIBLE_FROM
from vdl.kafka.wire.runtime import WireError

OFFERED_BYTES_MAX = 4 << 20
"""Maximum bytes of a long answer that are sent with one call. A socket takes about as much; but one
whose client reads meanwhile takes all of 100 MB, and the loop waits for 25 ms."""
REQUEST_BYTES_MAX = 100 << 20
"""Kafka's `socket.request.max.bytes`."""
OTHER_BYTES_MAX = 16 << 20
"""Maximum size of a request other than Produce: a Fetch of 400,000 partitions. Such requests decode
to many times their size."""
CHUNK_BYTES_MIN = 4 << 10
CHUNK_BYTES_MAX = 64 << 10
GROWTH = 4
MAPPED_BYTES_MIN = 4 << 20
MAPPED_AFTER = 1 << 20
READ_BYTES_MAX = 256 << 10
"""Maximum that one read may bring of a frame that is or will be mapped. `memory` counts that much
ahead."""
COPIED_BYTES_MAX = 1 << 20
"""Maximum of unsent bytes that are copied if they keep twice as many in memory. It takes half a
millisecond of the loop. More are copied only if they keep sixteen times as many."""

FRAME_RATE_MIN = 1 << 10
"""Lowest rate (bytes per second) at which a request may arrive."""
CONTENDED_RATE_MIN = 1 << 20
"""The same while others wait for the memory. The largest request then takes two minutes."""
_STALL_PARTS = 6
"""While other connections wait for memory, a connection that holds some and makes no progress is
closed after a sixth of `frame_deadline_ms`."""
_SECOND_NS = 1_000 * MS

SASL_AUTHENTICATE = 36
BARE_TOKEN = -1
"""API version that marks a SaslAuthenticate that consists of its token only (KIP-43)."""

_LENGTH = Struct(">i")
_LENGTH_AND_KEY = Struct(">ih")
_PRODUCE = 0
_NOTHING = memoryview(bytearray())


class BadFrameLength(WireError):
    """A frame length that is negative, or above the maximum of this connection."""

    def __init__(self, length: int, bytes_max: int) -> None:
        super().__init__(length, bytes_max)
        self.length = length
        self.bytes_max = bytes_max


class FrameReader:
    """Splitter of a stream of `[int32 length | frame]` into frames.

    Invariant: the last `arrived` bytes before `_end` of the buffer are not given out; at most the
    last frame in them is incomplete. Bytes before them belong to frames that were given out.
    """

    __slots__ = (
        "_chunk_bytes",
        "_end",
        "_is_mapped",
        "_is_own",
        "_view",
        "arrived",
        "bytes_max",
        "needed",
    )

    def __init__(self, bytes_max: int = REQUEST_BYTES_MAX) -> None:
        self.bytes_max = bytes_max
        """Largest frame. May change at any time: it is less before a client has authenticated."""
        self._view = _NOTHING
        self._end = 0
        self.arrived = 0
        """Bytes of the arriving frame that are present; 0 between frames. Read-only for others, as
        is `needed`."""
        self.needed = _LENGTH.size
        """Bytes of the arriving frame when it is whole, as far as is known."""
        self._is_own = False
        """True if the buffer belongs to one large frame and does not extend beyond the frame's
        end."""
        self._is_mapped = False
        """True if such a buffer is mapped: it takes no memory beyond the bytes that arrived."""
        self._chunk_bytes = CHUNK_BYTES_MIN

    @property
    def memory(self) -> int:
        """Bytes that the arriving frame will hold after one more read; 0 between frames.

        Bytes read with it before its beginning are not counted; they are at most a chunk.
        """
        if not self.arrived:
            return 0
        if self._needs_room:
            size, is_mapped = self._next_size()
            arrived = self.arrived
        else:
            size, is_mapped, arrived = len(self._view), self._is_mapped, self._end
        return min(size, arrived + READ_BYTES_MAX) if is_mapped else size

    @property
    def held(self) -> int:
        """Bytes that the arriving frame takes now."""
        return min(len(self._view), self._end) if self._is_mapped else len(self._view)

    @property
    def _needs_room(self) -> bool:
        room, start = len(self._view), self._end - self.arrived
        return self._end == room or (start > 0 and start + self.needed > room)

    def get_buffer(self) -> memoryview:
        """Return the buffer for the next bytes; never empty. Raises OSError for want of memory."""
        room, start = len(self._view), self._end - self.arrived
        if self._end == room or (start and start + self.needed > room):  # without a call
            self._make_room()
        if self._is_own and self.needed > MAPPED_BYTES_MIN:
            return self._view[self._end : self._end + READ_BYTES_MAX]
        return self._view[self._end :]

    def buffer_updated(self, count: int) -> None:
        """Record that `count` bytes were written to the buffer last returned by `get_buffer`."""
        self._end += count
        self.arrived += count
        assert self._end <= len(self._view), (self._end, len(self._view))
        if self._end == len(self._view) and not self._is_own:
            self._chunk_bytes = min(self._chunk_bytes * 2, CHUNK_BYTES_MAX)

    def next_frame(self) -> memoryview | None:
        """Return the next whole frame, without its length, writable; None until more arrives.

        Raises BadFrameLength, and again at each further call.
        """
        arrived = self.arrived
        if arrived < _LENGTH.size:
            return None
        start = self._end - arrived
        (length,) = _LENGTH.unpack_from(self._view, start)
        if not 0 <= length <= self.bytes_max:
            raise BadFrameLength(length, self.bytes_max)
        needed = _LENGTH.size + length
        if arrived < needed:
            self.needed = needed
            return None
        frame = self._view[start + _LENGTH.size : start + needed]
        self.arrived = arrived - needed
        self.needed = _LENGTH.size
        if arrived == needed:
            # Nothing is under way, so hold no memory. Views given out keep theirs alive.
            self._view = _NOTHING
            self._end = 0
            self._is_own = self._is_mapped = False
        return frame

    def begins_with(self) -> int | None:
        """Return the first two bytes of the arriving frame as a number; None before they
        arrived."""
        if self.arrived < _LENGTH_AND_KEY.size:
            return None
        key: int = _LENGTH_AND_KEY.unpack_from(self._view, self._end - self.arrived)[1]
        return key

    def _next_size(self) -> tuple[int, bool]:
        """Return the size of the next buffer, and True if it is to be mapped."""
        arrived = self.arrived
        if self.needed <= CHUNK_BYTES_MAX:
            return max(self._chunk_bytes, min(self.needed, GROWTH * arrived)), False
        if arrived >= MAPPED_AFTER and self.needed > MAPPED_BYTES_MIN:
            return self.needed, True
        return min(self.needed, max(self._chunk_bytes, GROWTH * arrived)), False

    def _make_room(self) -> None:
        """Replace the buffer with one that begins with a copy of the unfinished frame's bytes.

        Raises OSError if there is no memory for it, so that this connection ends and no other.
        """
        arrived = self.arrived
        if not arrived:
            self._view, self._end = memoryview(bytearray(self._chunk_bytes)), 0
            return
        size, self._is_mapped = self._next_size()
        self._is_own = self.needed > CHUNK_BYTES_MAX
        assert size > arrived, (size, arrived, self.needed)
        try:
            view = memoryview(_mapped(size) if self._is_mapped else bytearray(size))
        except MemoryError:
            raise OSError(errno.ENOMEM, "no memory for a request") from None
        view[:arrived] = self._view[self._end - arrived : self._end]
        self._view = view
        self._end = arrived


class Request(msgspec.Struct):
    """One request as it arrived. `body` is writable, and a view of the connection's memory."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None
    body: memoryview
    bytes: int
    """Size of the frame, including the header."""
    arrived_ns: int = 0
    """Time when the request was whole, if the receiver set it."""
    began_ns: int = 0
    """Time when its first bytes were read; 0: together with its last ones."""


class Transport(Protocol):
    """Socket below a connection, as the connection uses it."""

    def send(self, buffers: Sequence[Buffer]) -> Sequence[Buffer]:
        """Send the buffers in order, and return the rest that cannot be sent now.

        The connection keeps the rest until the session's `resume_writing`. The buffers must not
        change until they are sent.
        """

    def close(self, rest: Sequence[Buffer]) -> None:
        """Close once everything given to `send`, and then `rest`, is sent."""

    def abort(self) -> None:
        """Close immediately."""

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


class Connection:
    """Byte stream of one client; see the module. Each direction is in one of these states:

    in            event                                                  next
    READ          `received`: a request is whole                         READ
    READ          `received`: a long one, and the budget is used up      IN_LINE
    READ          `received`: a length or header is invalid              READ, with a `fault`
    IN_LINE       it is its turn (`resume_receiving`)                    READ
    any           `set_reading(False)`, `set_reading(True)`              STOPPED, and back

    out           event                                                  next
    FREE          `flush`, the transport takes all                       FREE
    FREE          `flush`, the transport takes a part                    BLOCKED
    FREE          `flush` of a long answer, and the budget is used up    IN_LINE
    FREE          `pause_writing`: the transport holds enough            BLOCKED, nothing unsent
    BLOCKED       the transport takes more (`resume_writing`)            FREE if it takes all
    IN_LINE       it is its turn (`resume_writing`)                      FREE or BLOCKED

    READ and IN_LINE: `reads`. STOPPED: the session does not want to read. FREE: `is_writable`.
    `close` ends both directions.
    """

    __slots__ = (
        "_frame_from",
        "_last_progress",
        "_out",
        "_resume",
        "_turn",
        "_unsent_at_first",
        "_unsent_since_ns",
        "_waits_since_ns",
        "answers",
        "arriving",
        "bare_tokens",
        "fault",
        "frame_since_ns",
        "frames",
        "is_long",
        "is_writable",
        "last_active_ns",
        "out_bytes",
        "reads",
        "stuck_since_ns",
        "transport",
        "unsent",
    )

    def __init__(
        self,
        transport: Transport,
        turn: Turn,
        answers: AnswerAccount,
        bytes_max: int,
        resume: Callable[[], None],
    ) -> None:
        """`resume` calls `resume_writing` in the session: it is this connection's turn to send."""
        self.transport = transport
        self.answers = answers
        """This connection's part of the memory for answers."""
        self._turn = turn
        self._resume = resume
        self.last_active_ns = turn.context.clock.now_ns()
        """Time when bytes last arrived or an answer was given."""
        # In.
        self.frames = FrameReader(bytes_max)
        self.bare_tokens = False
        """True while frames are tokens of a login without a header: requests of version
        `BARE_TOKEN`."""
        self.fault = ""
        """Reason why no further request can be read; empty while they can be."""
        self.reads = True
        """True while the session wants to read."""
        self._waits_since_ns = 0
        """Time since which the connection waits for `ReceiveBudget`; 0 if it does not wait."""
        self.arriving = 0
        """Bytes that the arriving request will hold after one more read."""
        self.is_long = False
        """True if the arriving request is long: it is read within `ReceiveBudget`."""
        self.frame_since_ns = 0
        """Time when the arriving request began, or when reading resumed in the middle of it. 0 if
        no request arrives, or if the server does not read the connection."""
        self._frame_from = 0
        """Bytes of the arriving request that were present at `frame_since_ns`."""
        self._last_progress = (0, 0)
        """(time, bytes arrived by then) of the last progress seen."""
        # Out.
        self.is_writable = True
        """True while answers may be sent. While it is not, nothing is sent or started."""
        self._out: list[Buffer] = []
        self.out_bytes = 0
        """Bytes of the answers that are queued for the next `flush`."""
        self.unsent: Sequence[Buffer] = ()
        """Buffers that the transport has not taken. While there are some, it is not writable."""
        self.stuck_since_ns = 0
        """Time when the transport last took some of the unsent bytes; 0 if nothing is unsent."""
        self._unsent_since_ns = 0
        """Start of the current period with unsent bytes; 0 if nothing is unsent."""
        self._unsent_at_first = 0
        """Bytes that were unsent at `_unsent_since_ns`."""

    # --- in --------------------------------------------------------------------------------------
    def get_buffer(self) -> memoryview:
        """Return the buffer for the next bytes; never empty."""
        view = self.frames.get_buffer()
        if self.is_long:
            return view[: max(self._turn.receive_budget.left, READ_BYTES_MIN)]
        return view

    def received(self, count: int, now_ns: int) -> list[Request]:
        """Return the requests that became whole when `count` bytes were written to the buffer.

        They are in order of arrival. Sets `fault` at the first length or header that is invalid:
        the beginning of the next frame is unknown from then on.
        """
        self.last_active_ns = now_ns
        frames = self.frames
        frames.buffer_updated(count)
        requests: list[Request] = []
        if self.fault:
            return requests
        try:
            while (frame := frames.next_frame()) is not None:
                if self.bare_tokens:
                    size = len(frame)
                    one = Request(SASL_AUTHENTICATE, BARE_TOKEN, 0, None, frame, size, now_ns)
                else:
                    key, version, correlation_id, client_id, body_start = decode_request_header(
                        frame, FLEXIBLE_FROM
                    )
                    one = Request(
                        key,
                        version,
                        correlation_id,
                        client_id,
                        frame[body_start:],
                        len(frame),
                        now_ns,
                        self.frame_since_ns,
                    )
                requests.append(one)
                self.frame_since_ns = 0
                if not frames.arrived:
                    break
            if frames.needed > OTHER_BYTES_MAX and frames.begins_with() not in (None, _PRODUCE):
                raise BadFrameLength(frames.needed, OTHER_BYTES_MAX)
        except WireError as error:
            self.fault = repr(error)  # its traceback would keep the frame
        if not frames.arrived:
            self.frame_since_ns = self.arriving = 0
            self.is_long = False
        else:
            self.arriving = frames.memory
            self.is_long = frames.needed > SHORT_BYTES
            if not self.frame_since_ns and self.reads:
                self._frame_begins(now_ns)
        return requests

    def pace(self, count: int, now_ns: int) -> None:
        """Count `count` bytes of a long request against the budget. Stop reading if it is used
        up."""
        if self._waits_since_ns or self._turn.receive_budget.took(self.resume_receiving, count):
            return
        self._waits_since_ns = now_ns
        if self.reads:
            self.transport.pause_reading()

    def resume_receiving(self) -> None:
        """Resume reading because it is this connection's turn. The wait does not count against the
        client."""
        waited_ns = self._turn.context.clock.now_ns() - self._waits_since_ns
        self._waits_since_ns = 0
        if not self.reads:
            return
        self.last_active_ns += waited_ns
        if self.frame_since_ns:
            self.frame_since_ns += waited_ns
            self._last_progress = self._last_progress[0] + waited_ns, self._last_progress[1]
        self.transport.resume_reading()

    def set_reading(self, *, reads: bool) -> None:
        """Stop reading, or read again; `reads` must change."""
        assert self.reads is not reads, reads
        self.reads = reads
        if not reads:
            self.frame_since_ns = 0
            self.transport.pause_reading()
            return
        if self.frames.arrived:
            # This happens once per request: only whole requests count, so no bound can be reached
            # again before this one is whole.
            self.last_active_ns = now_ns = self._turn.context.clock.now_ns()
            self._frame_begins(now_ns)
        if not self._waits_since_ns:
            self.transport.resume_reading()

    def _frame_begins(self, now_ns: int) -> None:
        """Start measuring the time that the client takes to send a request."""
        self.frame_since_ns = now_ns
        self._frame_from = self.frames.arrived
        self._last_progress = now_ns, self._frame_from

    # --- out -------------------------------------------------------------------------------------
    def queue(self, head: Buffer, body: Sequence[Buffer], size: int) -> None:
        """Add an answer, of `size` bytes with its head, to those of the next `flush`."""
        self._out.append(head)
        self._out += body
        self.out_bytes += size
        answers = self.answers
        if self.out_bytes > UNCOUNTED_BYTES:
            answers.hold(self.out_bytes)
        if answers.reserved:
            answers.reserve(0)

    def flush(self) -> bool:
        """Send what was left unsent, or what is queued. Return True if the transport took all.

        What it did not take is kept and counted.
        """
        buffers = self.unsent
        if not buffers:
            buffers, self._out, self.out_bytes = self._out, [], 0
        answers = self.answers
        size = sum(map(len, buffers))
        if size >= LONG_ANSWER_BYTES:
            budget = self._turn.send_budget
            if not budget.may_send(self._resume):
                self.is_writable = False
                answers.hold(_pinned(buffers))
                self.unsent = buffers
                return False
            later: Sequence[Buffer] = ()
            if size > OFFERED_BYTES_MAX:
                buffers, later = _cut(buffers, OFFERED_BYTES_MAX)
            rest = self.transport.send(buffers)
            budget.sent(size - sum(map(len, rest)) - sum(map(len, later)))
            if later:
                if not rest:  # the socket takes more: nothing but the budget calls again
                    budget.wait(self._resume)
                rest = [*rest, *later]
        else:
            rest = self.transport.send(buffers)
        if not rest:
            answers.taken += size
            if answers.held:
                answers.hold(0)
            self.stuck_since_ns = self._unsent_since_ns = 0
            self.unsent = ()
            return True
        self.is_writable = False
        left = sum(map(len, rest))
        now_ns = self._turn.context.clock.now_ns()
        if left < size or not self.stuck_since_ns:
            self.stuck_since_ns = now_ns
        if not self._unsent_since_ns:
            self._unsent_since_ns, self._unsent_at_first = now_ns, left
        pinned = _pinned(rest)
        if pinned > (2 if left <= COPIED_BYTES_MAX else 16) * left:
            rest, pinned = [b"".join(rest)], left
        answers.taken += size - left
        answers.hold(pinned)
        self.unsent = rest
        return False

    # --- judged from time to time ----------------------------------------------------------------
    def is_slow(self, now_ns: int, deadline_ns: int, *, is_waited_for: bool) -> bool:
        """Return True if the arriving request made no progress for a whole deadline.

        `is_waited_for`: it holds memory for requests that other connections wait for.
        """
        if self._waits_since_ns or not 0 < self.frame_since_ns <= now_ns - deadline_ns:
            return False
        arrived = self.frames.arrived
        if is_waited_for:
            took_ns = now_ns - self.frame_since_ns
            if (arrived - self._frame_from) * _SECOND_NS < CONTENDED_RATE_MIN * took_ns:
                return True
        looked_ns, before = self._last_progress
        if looked_ns > now_ns - deadline_ns:
            return False
        self._last_progress = now_ns, arrived
        return (arrived - before) * _SECOND_NS < FRAME_RATE_MIN * (now_ns - looked_ns)

    def is_stalled(self, now_ns: int, deadline_ns: int, *, is_waited_for: bool) -> bool:
        """Return True if the connection holds memory that others wait for and makes no progress.

        That is the case if it takes no answers, or takes them too slowly, or its request does not
        arrive. A connection that takes long to read must prove again that it reads, even if no
        other waits. `is_waited_for`: as for `is_slow`.
        """
        before_ns = now_ns - deadline_ns // _STALL_PARTS
        if 0 < self._unsent_since_ns <= before_ns:
            self.answers.taken = 0
            if (is_waited_for or self._turn.context.answers.waiting) and (
                self.stuck_since_ns <= before_ns or self._reads_slowly(now_ns, deadline_ns)
            ):
                return True
        return (
            is_waited_for
            and self.reads
            and not self._waits_since_ns
            and self.frame_since_ns > 0
            and self.last_active_ns <= before_ns
        )

    def _reads_slowly(self, now_ns: int, deadline_ns: int) -> bool:
        """Return True if at the rate so far the unsent bytes take longer than a deadline."""
        taken = self._unsent_at_first - sum(map(len, self.unsent))
        return taken * deadline_ns < self._unsent_at_first * (now_ns - self._unsent_since_ns)

    @property
    def unsent_bytes(self) -> int:
        """Bytes of memory that unsent answers keep alive, counted anew."""
        return _pinned([*self.unsent, *self._out])

    def close(self) -> None:
        """Drop what is under way, because the connection is over."""
        self._out.clear()
        self.unsent = ()
        if self._waits_since_ns:
            self._turn.receive_budget.leave(self.resume_receiving)
        self._turn.send_budget.leave(self._resume)
        # Break the reference cycle with the session, or it stays until the collector finds it.
        self._resume = _is_over


def _is_over() -> None:
    """Do nothing: the session is closed."""


def _pinned(buffers: Sequence[Buffer]) -> int:
    """Return the bytes that these buffers keep in memory: the whole object behind each slice."""
    sizes: dict[int, int] = {}
    for buffer in buffers:
        owner = buffer.obj if isinstance(buffer, memoryview) else buffer
        if id(owner) not in sizes:
            sizes[id(owner)] = memoryview(owner).nbytes
    return sum(sizes.values())


def _cut(buffers: Sequence[Buffer], size: int) -> tuple[list[Buffer], list[Buffer]]:
    """Return (buffers with the first `size` bytes, the rest), without copying."""
    for n, buffer in enumerate(buffers):
        length = len(buffer)
        if length > size:
            view = memoryview(buffer)
            return [*buffers[:n], view[:size]], [view[size:], *buffers[n + 1 :]]
        size -= length
    return list(buffers), []


def _mapped(size: int) -> mmap.mmap:
    """Return mapped memory. Private pages cost two thirds of shared ones, which are the default."""
    return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
