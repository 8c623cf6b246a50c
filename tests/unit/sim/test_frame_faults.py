"""Faults of single Raft frames: permitted effects, and frames that must not be touched."""

from __future__ import annotations

from random import Random
from typing import cast

from rpc.peer import FrameType
from rpc.streams import PeerHandler
from vdl.sim.clock import NodeClock, VirtualTime
from vdl.sim.frame_faults import HELD_BACK_NS_MAX, FrameFaults, FrameWeather

FRAMES = 400


class Sink:
    """Handler that keeps its frames and fails if one arrives after the links were closed."""

    def __init__(self) -> None:
        self.frames: list[bytes] = []
        self.over = False

    def frame(self, server_id: int, frame_type: FrameType, payload: memoryview) -> None:
        assert not self.over, "a frame for a server that has closed its links"
        self.frames.append(bytes(payload))


def carried(weather: FrameWeather, frame_type: FrameType = FrameType.RAFT) -> list[int]:
    """Send frames 0, 1, 2, …, one a millisecond, in a reused buffer; return those that arrive."""
    time, sink = VirtualTime(), Sink()
    clock = NodeClock(time)
    faults = FrameFaults(
        cast(PeerHandler, sink), weather, clock, Random(1), is_over=lambda: sink.over
    )
    buffer = bytearray(2)
    for n in range(FRAMES):
        buffer[:] = n.to_bytes(2, "big")
        faults.frame(2, frame_type, memoryview(buffer))
        buffer[:] = b"\xff\xff"
        time.run_until((n + 1) * 1_000_000)
    time.run_until(time.now_ns + HELD_BACK_NS_MAX)
    return [int.from_bytes(frame, "big") for frame in sink.frames]


def test_frames_are_lost_repeated_and_overtaken_but_never_changed() -> None:
    """Each fault alone has its effect on some of the frames and never changes their bytes."""
    everything = list(range(FRAMES))
    lost = carried(FrameWeather(loss=0.2, active=True))
    assert 0 < len(lost) < FRAMES
    assert lost == sorted(set(lost))
    repeated = carried(FrameWeather(duplicates=0.2, active=True))
    assert len(repeated) > FRAMES
    assert sorted(set(repeated)) == everything
    late = carried(FrameWeather(delays=0.2, active=True))
    assert sorted(late) == everything
    assert late != everything


def test_frames_that_rely_on_their_order_are_not_touched() -> None:
    """Heartbeats, leader lists and proposals are designed for streams."""
    weather = FrameWeather(loss=0.9, duplicates=0.9, delays=0.9, active=True)
    for frame_type in (FrameType.HEARTBEAT, FrameType.LEADERS, FrameType.PROPOSE):
        assert carried(weather, frame_type) == list(range(FRAMES))


def test_healed_weather_passes_everything_on() -> None:
    """`active` False ends all faults, whatever the chances are."""
    assert carried(FrameWeather(loss=0.9, duplicates=0.9, delays=0.9)) == list(range(FRAMES))


def test_frame_held_back_is_not_delivered_after_the_links_have_closed() -> None:
    """No callback follows a close."""
    time, sink = VirtualTime(), Sink()
    clock = NodeClock(time)
    weather = FrameWeather(delays=1.0, active=True)
    faults = FrameFaults(
        cast(PeerHandler, sink), weather, clock, Random(1), is_over=lambda: sink.over
    )
    faults.frame(2, FrameType.RAFT, memoryview(b"late"))
    sink.over = True
    time.run_until(HELD_BACK_NS_MAX)
    assert sink.frames == []


def test_deaf_machine_gets_no_raft_frame_and_everything_else() -> None:
    """Its links are up: heartbeats and leader lists pass, and afterwards RAFT frames, too."""
    sink, clock = Sink(), NodeClock(VirtualTime())
    weather = FrameWeather(active=True, deafness=True)
    assert weather.any
    faults = FrameFaults(cast(PeerHandler, sink), weather, clock, Random(1), lambda: False, 2)
    weather.deaf.add(2)
    faults.frame(1, FrameType.RAFT, memoryview(b"lost"))
    faults.frame(1, FrameType.LEADERS, memoryview(b"list"))
    weather.deaf.discard(2)
    faults.frame(1, FrameType.RAFT, memoryview(b"kept"))
    assert sink.frames == [b"list", b"kept"]


def test_snapshot_waits_for_a_checkpoint_and_for_nothing_else() -> None:
    """It arrives once, with the next end of a checkpoint or after the limit."""
    time, sink = VirtualTime(), Sink()
    weather = FrameWeather(holds_snapshots=True, active=True)
    faults = FrameFaults(
        cast(PeerHandler, sink), weather, NodeClock(time), Random(1), is_over=lambda: sink.over
    )
    for frame in (b"one", b"two"):
        weather.snapshot_left(memoryview(frame))
        for arriving in (frame, b"other", frame):
            faults.frame(2, FrameType.RAFT, memoryview(bytearray(arriving)))
        assert sink.frames == [b"other", frame]  # sent again, it is another frame
        if frame == b"one":
            faults.noted()
            time.run_until(time.now_ns + 1_000_000)
        else:
            time.run_until(time.now_ns + HELD_BACK_NS_MAX)
        assert sink.frames == [b"other", frame, frame]
        time.run_until(time.now_ns + 2 * HELD_BACK_NS_MAX)
        assert len(sink.frames) == 3
        sink.frames.clear()
    weather.active = False
    weather.snapshot_left(memoryview(b"one"))
    assert not weather.snapshots
