"""Reading half of a Kafka connection, without the socket: bytes in, requests out.

The interface follows h11. The owner of the socket writes bytes into `get_buffer`, reports them with
`buffer_updated`, and takes whole requests with `next_request` until it returns None. This matches
asyncio's `BufferedProtocol`; a simulated network works the same way. `FrameReader` alone (frames
without a header) serves the client end of a connection.

Rules of memory:

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

An impossible length or an unreadable header raises `WireError`, and every further call raises it
again, because the beginning of the next frame is unknown. The caller decides which keys and
versions exist.

Does not depend on sockets, the event loop, handlers, or the order of answers.
"""

from __future__ import annotations

import mmap
from collections.abc import Mapping
from dataclasses import dataclass
from struct import Struct

from vdl.kafka.wire.header import decode_request_header
from vdl.kafka.wire.registry import FLEXIBLE_FROM
from vdl.kafka.wire.runtime import WireError

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

    Invariant: `[start, end)` of the buffer has arrived and is not consumed; at most the last frame
    in it is incomplete. Bytes before `start` belong to frames that were given out.
    """

    __slots__ = (
        "_chunk_bytes",
        "_end",
        "_is_mapped",
        "_is_own",
        "_start",
        "_view",
        "bytes_max",
        "needed",
    )

    def __init__(self, bytes_max: int = REQUEST_BYTES_MAX) -> None:
        self.bytes_max = bytes_max
        """Largest frame. May change at any time: it is less before a client has authenticated."""
        self._view = _NOTHING
        self._start = 0
        self._end = 0
        self.needed = _LENGTH.size
        """Bytes from `start` until the next frame is whole, as far as is known. Read-only for
        others."""
        self._is_own = False
        """True if the buffer belongs to one large frame and does not extend beyond the frame's
        end."""
        self._is_mapped = False
        """True if such a buffer is mapped: it takes no memory beyond the bytes that arrived."""
        self._chunk_bytes = CHUNK_BYTES_MIN

    @property
    def mid_frame(self) -> bool:
        """True if a frame has begun to arrive and is not whole."""
        return self._end > self._start

    @property
    def memory(self) -> int:
        """Bytes that the arriving frame will hold after one more read; 0 between frames.

        Bytes read with it before its beginning are not counted; they are at most a chunk.
        """
        if self._end == self._start:
            return 0
        if self._needs_room:
            size, is_mapped = self._next_size()
            arrived = self._end - self._start
        else:
            size, is_mapped, arrived = len(self._view), self._is_mapped, self._end
        return min(size, arrived + READ_BYTES_MAX) if is_mapped else size

    @property
    def arrived(self) -> int:
        """Bytes of the arriving frame that are present; 0 between frames."""
        return self._end - self._start

    @property
    def held(self) -> int:
        """Bytes that the arriving frame takes now."""
        return min(len(self._view), self._end) if self._is_mapped else len(self._view)

    @property
    def _needs_room(self) -> bool:
        room = len(self._view)
        return self._end == room or (self._start > 0 and self._start + self.needed > room)

    def get_buffer(self, size_hint: int = -1) -> memoryview:
        """Return the buffer for the next bytes; never empty. `size_hint` is asyncio's, and is
        ignored."""
        del size_hint
        room = len(self._view)
        if self._end == room or (self._start and self._start + self.needed > room):
            self._make_room()
        if self._is_own and self.needed > MAPPED_BYTES_MIN:
            return self._view[self._end : self._end + READ_BYTES_MAX]
        return self._view[self._end :]

    def buffer_updated(self, count: int) -> None:
        """Record that `count` bytes were written to the buffer last returned by `get_buffer`."""
        self._end += count
        assert self._end <= len(self._view), (self._end, len(self._view))
        if self._end == len(self._view) and not self._is_own:
            self._chunk_bytes = min(self._chunk_bytes * 2, CHUNK_BYTES_MAX)

    def next_frame(self) -> memoryview | None:
        """Return the next whole frame, without its length, writable; None until more arrives.

        Raises BadFrameLength.
        """
        whole = self.whole_frame()
        if whole is None:
            return None
        frame, end = whole
        self.consume(end)
        return frame

    def whole_frame(self) -> tuple[memoryview, int] | None:
        """Return the next whole frame and the position after it, without consuming it.

        None until it is whole.

        Raises BadFrameLength.
        """
        start = self._start
        arrived = self._end - start
        if arrived < _LENGTH.size:
            return None
        (length,) = _LENGTH.unpack_from(self._view, start)
        if not 0 <= length <= self.bytes_max:
            raise BadFrameLength(length, self.bytes_max)
        needed = self.needed = _LENGTH.size + length
        if arrived < needed:
            return None
        return self._view[start + _LENGTH.size : start + needed], start + needed

    def begins_with(self) -> int | None:
        """Return the first two bytes of the arriving frame as a number; None before they
        arrived."""
        if self._end - self._start < _LENGTH_AND_KEY.size:
            return None
        key: int = _LENGTH_AND_KEY.unpack_from(self._view, self._start)[1]
        return key

    def consume(self, end: int) -> None:
        """Consume the frame that `whole_frame` returned with this `end`."""
        self._start = end
        self.needed = _LENGTH.size
        if end == self._end:
            # Nothing is under way, so hold no memory. Views given out keep theirs alive.
            self._view = _NOTHING
            self._start = self._end = 0
            self._is_own = self._is_mapped = False

    def _next_size(self) -> tuple[int, bool]:
        """Return the size of the next buffer, and True if it is to be mapped."""
        arrived = self._end - self._start
        if self.needed <= CHUNK_BYTES_MAX:
            return max(self._chunk_bytes, min(self.needed, GROWTH * arrived)), False
        if arrived >= MAPPED_AFTER and self.needed > MAPPED_BYTES_MIN:
            return self.needed, True
        return min(self.needed, max(self._chunk_bytes, GROWTH * arrived)), False

    def _make_room(self) -> None:
        """Replace the buffer with one that begins with a copy of the unfinished frame's bytes."""
        arrived = self._end - self._start
        size, self._is_mapped = self._next_size()
        self._is_own = self.needed > CHUNK_BYTES_MAX
        assert size > arrived, (size, arrived, self.needed)
        view = memoryview(mmap.mmap(-1, size) if self._is_mapped else bytearray(size))
        view[:arrived] = self._view[self._start : self._end]
        self._view = view
        self._start, self._end = 0, arrived


@dataclass(slots=True)
class Request:
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


class Connection:
    """Server's view of a client's connection: frames with decoded headers."""

    __slots__ = ("_flexible_from", "_frames", "bare_tokens")

    def __init__(
        self,
        *,
        bytes_max: int = REQUEST_BYTES_MAX,
        flexible_from: Mapping[int, int] = FLEXIBLE_FROM,
    ) -> None:
        self._frames = FrameReader(bytes_max)
        self._flexible_from = flexible_from
        self.bare_tokens = False
        """True while frames are tokens of a login without a header: requests of version
        `BARE_TOKEN`."""

    @property
    def bytes_max(self) -> int:
        """Largest request that this connection accepts."""
        return self._frames.bytes_max

    @bytes_max.setter
    def bytes_max(self, value: int) -> None:
        self._frames.bytes_max = value

    @property
    def mid_request(self) -> bool:
        """True if a request has begun to arrive and is not whole."""
        return self._frames.mid_frame

    @property
    def arrived(self) -> int:
        """Bytes of the arriving request that are present; 0 between requests."""
        return self._frames.arrived

    @property
    def needed(self) -> int:
        """Bytes of the arriving request when it is whole, as far as is known."""
        return self._frames.needed

    @property
    def held(self) -> int:
        """Bytes that the arriving request takes now."""
        return self._frames.held

    @property
    def memory(self) -> int:
        """Bytes that the arriving request will hold after one more read."""
        return self._frames.memory

    def get_buffer(self, size_hint: int = -1) -> memoryview:
        """Return the buffer for the next bytes; never empty."""
        return self._frames.get_buffer(size_hint)

    def buffer_updated(self, count: int) -> None:
        """Record that `count` bytes were written to the buffer last returned by `get_buffer`."""
        self._frames.buffer_updated(count)

    def next_request(self) -> Request | None:
        """Return the next whole request, in order of arrival; None until more arrives.

        Raises WireError if the length or the header is invalid.
        """
        frames = self._frames
        whole = frames.whole_frame()
        if frames.needed > OTHER_BYTES_MAX and frames.begins_with() not in (None, _PRODUCE):
            raise BadFrameLength(frames.needed, OTHER_BYTES_MAX)
        if whole is None:
            return None
        frame, end = whole
        if self.bare_tokens:
            frames.consume(end)
            return Request(SASL_AUTHENTICATE, BARE_TOKEN, 0, None, frame, len(frame))
        header = decode_request_header(frame, self._flexible_from)
        frames.consume(end)
        return Request(
            header.api_key,
            header.api_version,
            header.correlation_id,
            header.client_id,
            frame[header.body_start :],
            len(frame),
        )
