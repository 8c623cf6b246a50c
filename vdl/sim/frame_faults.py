"""Faults of Raft frames beyond those of TCP: loss, repetition, delay.

A `FrameFaults` is between the links of a simulated machine and its server. It may drop a RAFT
frame, deliver it twice, or delay it past later ones. A deaf machine receives none for a while
although its links are up; no message of a paused group arrives; of a group reserved for one server
no vote request of another arrives. Raft must survive all of that, and streams alone would never
test it. Heartbeats, leader lists and forwarded proposals rely on the order of their stream and are
never touched.

A delayed frame may outlive its link, as a packet may.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from zlib import crc32

from ids import GroupId, ServerId
from raft.messages import MsgPreVote, MsgVote
from rpc.frames import decode_messages, encode_messages
from rpc.hello import Hello, RejectReason
from rpc.peer import FrameType
from rpc.streams import PeerHandler
from vdl.clock import MS
from vdl.sim.clock import NodeClock

HELD_BACK_NS_MAX = 2_000 * MS
"""Longer than an election timeout: a deposed leader's messages may arrive in the next term."""


@dataclass(slots=True)
class FrameWeather:
    """Chances for each RAFT frame, one object for the whole world.

    Use: set `active` False to heal.
    """

    loss: float = 0.0
    duplicates: float = 0.0
    delays: float = 0.0
    delay_ns_mean: int = 20 * MS
    active: bool = False
    deafness: bool = False
    """True if machines may be deaf at all."""
    deaf: set[int] = field(default_factory=set)
    """Ids of servers that receive no RAFT frames now."""
    stillness: bool = False
    """True if groups may be paused at all."""
    still: set[GroupId] = field(default_factory=set)
    """Groups whose messages do not arrive now, `active` or not."""
    reserved: dict[GroupId, ServerId] = field(default_factory=dict)
    """Groups that only this server may be elected for now, `active` or not."""
    holds_snapshots: bool = False
    """True if snapshots arrive just when a checkpoint's notes are on their way to the journal."""
    snapshots: set[int] = field(default_factory=set)
    """Checksums of frames in flight that carry a snapshot."""

    def snapshot_left(self, payload: memoryview) -> None:
        """Note that a frame with a snapshot was sent."""
        if self.holds_snapshots and self.active:
            self.snapshots.add(crc32(payload))

    @property
    def any(self) -> bool:
        """True if any frame may ever be touched."""
        chances = self.loss or self.duplicates or self.delays
        return bool(chances or self.deafness or self.stillness or self.holds_snapshots)


class FrameFaults:
    """`PeerHandler` in front of a process's own."""

    __slots__ = ("_clock", "_handler", "_held", "_is_over", "_rng", "_server_id", "_weather")

    def __init__(
        self,
        handler: PeerHandler,
        weather: FrameWeather,
        clock: NodeClock,
        rng: Random,
        is_over: Callable[[], bool],
        server_id: ServerId = ServerId(0),
    ) -> None:
        """Wrap a handler.

        `is_over` returns True once the links have been closed; no callback may follow that.
        `server_id`: server of the handler.
        """
        self._server_id = server_id
        self._handler = handler
        self._weather = weather
        self._clock = clock
        self._rng = rng
        self._is_over = is_over
        self._held: list[Callable[[], None]] = []

    def frame(self, server_id: ServerId, frame_type: FrameType, payload: memoryview) -> None:
        """See `PeerHandler.frame`."""
        weather = self._weather
        if frame_type is FrameType.RAFT and (weather.still or weather.reserved):
            payload = _passing(payload, server_id, weather)
            if not len(payload):
                return
        if frame_type is not FrameType.RAFT or not weather.active:
            self._handler.frame(server_id, frame_type, payload)
            return
        if self._server_id in weather.deaf:
            return
        if weather.snapshots and crc32(payload) in weather.snapshots:
            self._hold(server_id, payload)
            return
        rng = self._rng
        if rng.random() < weather.loss:
            return
        if rng.random() < weather.duplicates:
            self._later(server_id, payload)
        if rng.random() < weather.delays:
            self._later(server_id, payload)
        else:
            self._handler.frame(server_id, frame_type, payload)

    def _later(self, server_id: ServerId, payload: memoryview) -> None:
        # A copy: the handler owns the frame it receives, and may receive it twice.
        copy = memoryview(bytearray(payload))
        delay_ns = int(self._rng.expovariate(1.0 / self._weather.delay_ns_mean))

        def deliver() -> None:
            if not self._is_over():
                self._handler.frame(server_id, FrameType.RAFT, copy)

        self._clock.call_later(min(delay_ns, HELD_BACK_NS_MAX), deliver)

    def _hold(self, server_id: ServerId, payload: memoryview) -> None:
        """Hold the frame until `noted`, at most `HELD_BACK_NS_MAX`."""
        copy = memoryview(bytearray(payload))
        self._weather.snapshots.discard(crc32(payload))

        def deliver() -> None:
            if deliver in self._held and not self._is_over():
                self._held.remove(deliver)
                self._handler.frame(server_id, FrameType.RAFT, copy)

        self._held.append(deliver)
        self._clock.call_later(HELD_BACK_NS_MAX, deliver)

    @property
    def holds(self) -> bool:
        """True if a snapshot is held."""
        return bool(self._held)

    def noted(self) -> None:
        """Deliver held snapshots: a checkpoint's notes are on their way to the disk."""
        for deliver in self._held:
            self._clock.call_soon(deliver)

    # --- passed on unchanged --------------------------------------------------------------------
    def refusal(self, hello: Hello) -> tuple[RejectReason, str] | None:
        return self._handler.refusal(hello)

    def link_up(self, hello: Hello) -> None:
        self._handler.link_up(hello)

    def link_down(self, server_id: ServerId, *, refused: bool) -> None:
        self._handler.link_down(server_id, refused=refused)

    def rejected(
        self, server_id: ServerId, reason: RejectReason, text: str, *, by_peer: bool
    ) -> None:
        self._handler.rejected(server_id, reason, text, by_peer=by_peer)

    def beat(self) -> None:
        self._handler.beat()


def _passing(payload: memoryview, from_server: ServerId, weather: FrameWeather) -> memoryview:
    """Return the frame without the messages that must not arrive; empty if none is left."""
    messages = decode_messages(payload)
    kept = [
        (group_id, message)
        for group_id, message in messages
        if group_id not in weather.still
        and (
            weather.reserved.get(group_id, from_server) == from_server
            or not isinstance(message, MsgVote | MsgPreVote)
        )
    ]
    if len(kept) == len(messages):
        return payload
    return memoryview(b"".join(encode_messages(kept)) if kept else b"")
