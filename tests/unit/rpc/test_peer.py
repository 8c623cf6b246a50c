"""Two link engines wired back to back: handshake, refusals, bounds, damage."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from rpc.errors import (
    CorruptFrame,
    FrameTooLarge,
    MalformedFrame,
    RemoteError,
    UnexpectedFrame,
)
from rpc.hello import (
    OLD_FRAME_BYTES_MAX,
    PROTOCOL_VERSION,
    VERSION_OF_LARGE_FRAMES,
    Hello,
    RejectReason,
    decode_hello,
    encode_hello,
)
from rpc.peer import (
    GATHER_BUFFERS_MAX,
    HELLO_FRAME_BYTES_MAX,
    Event,
    FrameType,
    HelloReceived,
    LinkState,
    PeerEngine,
    PeerLimits,
    PongReceived,
    Rejected,
    Role,
)
from rpc.reader import HEAD_BYTES

ONE = Hello(1, b"1" * 16, 11, "cluster", b"digest", b"info", b"1 a:1")
TWO = Hello(2, b"2" * 16, 22, "cluster", b"digest", b"other info")


def move(source: PeerEngine, target: PeerEngine, *, step: int = 1 << 20) -> list[Event]:
    """Move all pending bytes of `source` to `target`, at most `step` bytes at a time."""
    events: list[Event] = []
    while source.unsent_bytes:
        data = b"".join(source.gather())[:step]
        source.sent(len(data))
        events += target.receive(data)
    return events


def linked(
    one: Hello = ONE, two: Hello = TWO, *, limits: PeerLimits | None = None, step: int = 1 << 20
) -> tuple[PeerEngine, PeerEngine]:
    """Return an open link, the dialer first."""
    limits = limits or PeerLimits()
    dialer = PeerEngine(one, Role.DIALER, expected=two.server_id, limits=limits)
    acceptor = PeerEngine(two, Role.ACCEPTOR, limits=limits)
    (greeting,) = move(dialer, acceptor, step=step)
    assert isinstance(greeting, HelloReceived)
    assert greeting.hello == replace(one, to_server=two.server_id)
    acceptor.accept()
    (answer,) = move(acceptor, dialer, step=step)
    assert answer == HelloReceived(two)
    return dialer, acceptor


@pytest.mark.parametrize("step", [1, 7, 1 << 20])
def test_peer_handshake_opens_both_ends(step: int) -> None:
    """HELLO both ways, whole and byte by byte, then frames both ways."""
    dialer, acceptor = linked(step=step)
    assert dialer.state is LinkState.OPEN
    assert acceptor.state is LinkState.OPEN
    assert dialer.born
    assert acceptor.born
    for source, target in ((dialer, acceptor), (acceptor, dialer)):
        assert source.send(FrameType.RAFT, [b"head", memoryview(b"records"), b""])
        assert source.send(FrameType.HEARTBEAT, [])
        frames = [
            (event[0], bytes(event[1]))
            for event in move(source, target, step=step)
            if isinstance(event, tuple)
        ]
        assert frames == [(FrameType.HEARTBEAT, b""), (FrameType.RAFT, b"headrecords")]


def test_peer_hello_every_field_travels() -> None:
    """HELLO decodes to what was encoded."""
    hello = replace(ONE, cluster_id="clüster", to_server=7)
    assert decode_hello(memoryview(encode_hello(hello))) == hello


def test_peer_hello_cut_anywhere_is_malformed() -> None:
    """Every truncation of HELLO is detected, except at the fields that earlier builds omit."""
    encoded = encode_hello(ONE)
    earlier = len(encoded) - len(ONE.addresses) - 2
    for end in range(len(encoded)):
        if end == earlier:
            assert decode_hello(memoryview(encoded)[:end]) == replace(ONE, addresses=b"")
            continue
        with pytest.raises(MalformedFrame):
            decode_hello(memoryview(encoded)[:end])


@pytest.mark.parametrize(
    ("one", "two", "expected", "reason"),
    [
        (ONE, replace(TWO, cluster_id="another"), 2, RejectReason.WRONG_CLUSTER),
        (
            replace(ONE, cluster_id="old"),
            replace(TWO, cluster_id="new", former_ids=("older", "old")),
            2,
            RejectReason.RECOVERED,
        ),
        (ONE, TWO, 3, RejectReason.WRONG_SERVER),
        (ONE, replace(TWO, server_id=1), 0, RejectReason.WRONG_SERVER),
        (
            replace(ONE, version=PROTOCOL_VERSION + 1, version_min=PROTOCOL_VERSION + 1),
            TWO,
            2,
            RejectReason.VERSION,
        ),
        (replace(ONE, version=0, version_min=0), TWO, 2, RejectReason.VERSION),
    ],
)
def test_peer_mismatch_is_refused_with_its_reason_at_both_ends(
    one: Hello, two: Hello, expected: int, reason: RejectReason
) -> None:
    """Wrong cluster, wrong server and unknown version: REJECT, and both ends know the reason."""
    dialer = PeerEngine(one, Role.DIALER, expected=expected)
    acceptor = PeerEngine(two, Role.ACCEPTOR)
    (here,) = move(dialer, acceptor)
    assert isinstance(here, Rejected)
    assert (here.reason, here.by_peer) == (reason, False)
    assert acceptor.state is LinkState.CLOSED
    (there,) = move(acceptor, dialer)
    assert isinstance(there, Rejected)
    assert (there.reason, there.text, there.by_peer) == (reason, here.text, True)
    assert dialer.state is LinkState.CLOSED


def test_peer_answer_of_another_server_is_refused_by_the_dialer() -> None:
    """The dialer insists on the server that it dialled, also when the acceptor does not check."""
    dialer = PeerEngine(ONE, Role.DIALER, expected=3)
    impostor = PeerEngine(replace(TWO, server_id=3), Role.ACCEPTOR)
    move(dialer, impostor)
    impostor._local = TWO
    impostor.accept()
    (event,) = move(impostor, dialer)
    assert isinstance(event, Rejected)
    assert event.reason is RejectReason.WRONG_SERVER


def test_peer_newer_version_that_still_speaks_ours_is_accepted() -> None:
    """The version ranges overlap: the link opens."""
    linked(replace(ONE, version=PROTOCOL_VERSION + 3))


def test_peer_frames_before_hello_end_the_link() -> None:
    """No frame precedes HELLO."""
    dialer, _ = linked()
    dialer.send(FrameType.RAFT, [b"raft"])
    stranger = PeerEngine(TWO, Role.ACCEPTOR)
    with pytest.raises(UnexpectedFrame):
        move(dialer, stranger)
    assert stranger.state is LinkState.CLOSED


def test_peer_frames_behind_an_undecided_hello_end_the_link() -> None:
    """A dialer waits for the answer."""
    dialer = PeerEngine(ONE, Role.DIALER)
    data = b"".join(dialer.gather())
    acceptor = PeerEngine(TWO, Role.ACCEPTOR)
    with pytest.raises(UnexpectedFrame):
        acceptor.receive(data + data)


def test_peer_second_hello_ends_the_link() -> None:
    """The identity is sent once."""
    _, acceptor = linked()
    again = PeerEngine(ONE, Role.DIALER)
    with pytest.raises(UnexpectedFrame):
        move(again, acceptor)


def test_peer_send_before_open_and_after_close_is_refused() -> None:
    """Frames need an open link."""
    engine = PeerEngine(ONE, Role.DIALER)
    before = engine.unsent_bytes
    assert not engine.send(FrameType.RAFT, [b"x"])
    assert engine.unsent_bytes == before
    dialer, _ = linked()
    dialer.reject(RejectReason.STOPPING, "")
    assert not dialer.send(FrameType.RAFT, [b"x"])


@pytest.mark.parametrize(("one", "two"), [("", ""), ("", "cluster"), ("cluster", "")])
def test_peer_unborn_link_carries_only_questions(one: str, two: str) -> None:
    """A server without a cluster may only send requests."""
    dialer, acceptor = linked(replace(ONE, cluster_id=one), replace(TWO, cluster_id=two))
    assert not dialer.born
    for frame_type in (FrameType.RAFT, FrameType.HEARTBEAT, FrameType.LEADERS, FrameType.PROPOSE):
        assert not dialer.send(frame_type, [b"x"])
    assert dialer.send(FrameType.ASK, [])
    assert [event[0] for event in move(dialer, acceptor) if isinstance(event, tuple)] == [
        FrameType.ASK
    ]


def test_peer_raft_on_an_unborn_link_is_an_error() -> None:
    """The receiving end does not rely on the sender's restraint."""
    born, _ = linked()
    born.send(FrameType.RAFT, [b"x"])
    _, unborn = linked(ONE, replace(TWO, cluster_id=""))
    with pytest.raises(UnexpectedFrame):
        move(born, unborn)


def test_peer_engine_frames_are_not_for_the_host() -> None:
    """HELLO, REJECT, PING and PONG are handled by the engine."""
    dialer, _ = linked()
    for frame_type in (FrameType.HELLO, FrameType.REJECT, FrameType.PING, FrameType.PONG):
        with pytest.raises(ValueError, match=frame_type.name):
            dialer.send(frame_type, [b""])


def test_peer_bound_is_exact() -> None:
    """Frames are accepted up to the limit; one byte more is refused and none of it is queued."""
    limits = PeerLimits(in_flight_bytes_max=1_000, control_reserve_bytes=100)
    dialer, acceptor = linked(limits=limits)
    assert dialer.send(FrameType.RAFT, [bytes(500 - HEAD_BYTES)])
    assert not dialer.send(FrameType.RAFT, [bytes(501 - HEAD_BYTES)])
    assert dialer.unsent_bytes == 500
    assert dialer.send(FrameType.RAFT, [bytes(500 - HEAD_BYTES)])
    assert dialer.unsent_bytes == 1_000
    assert not dialer.send(FrameType.PROPOSE, [b""])
    # Control frames have a reserve.
    assert dialer.send(FrameType.HEARTBEAT, [bytes(100 - HEAD_BYTES)])
    assert not dialer.send(FrameType.HEARTBEAT, [b""])
    assert len(move(dialer, acceptor)) == 3
    assert dialer.send(FrameType.RAFT, [bytes(500)])


def test_peer_frame_larger_than_the_bound_is_in_no_others_way() -> None:
    """A batch larger than the in-flight bound is sent, one at a time, also while others are queued.

    The bound holds for all other frames: behind it, before it, and while it is written.
    """
    limits = PeerLimits(in_flight_bytes_max=1_000, control_reserve_bytes=0)
    dialer, acceptor = linked(limits=limits)
    assert dialer.send(FrameType.RAFT, [bytes(500)])
    assert dialer.send(FrameType.RAFT, [bytes(5_000)])
    assert not dialer.send(FrameType.RAFT, [bytes(5_000)])
    assert dialer.send(FrameType.RAFT, [bytes(400)])
    assert not dialer.send(FrameType.RAFT, [bytes(100)])
    for written in (HEAD_BYTES + 500, 3_000, 2_000, HEAD_BYTES):
        assert not dialer.send(FrameType.RAFT, [bytes(1_000)])
        acceptor.receive(b"".join(dialer.gather())[:written])
        dialer.sent(written)
    assert dialer.send(FrameType.RAFT, [bytes(5_000)])
    frames = [event for event in move(dialer, acceptor) if isinstance(event, tuple)]
    assert [len(payload) for _, payload in frames] == [400, 5_000]


def test_peer_frame_larger_than_any_frame_is_our_bug() -> None:
    """A frame at the limit passes; one byte more raises at the sender."""
    limits = PeerLimits(frame_bytes_max=2_000)
    dialer, acceptor = linked(limits=limits)
    assert dialer.send(FrameType.RAFT, [bytes(2_000)])
    assert len(move(dialer, acceptor)) == 1
    with pytest.raises(ValueError, match="2001"):
        dialer.send(FrameType.RAFT, [bytes(2_001)])


@pytest.mark.parametrize("version", [VERSION_OF_LARGE_FRAMES - 1, VERSION_OF_LARGE_FRAMES])
def test_peer_of_before_is_sent_no_frame_that_it_ends_the_link_for(version: int) -> None:
    """A peer of an earlier version gets the frames that it accepts.

    The sender of others is notified that they were not sent.
    """
    dialer, _ = linked(two=replace(TWO, version=version))
    frame = memoryview(bytes(OLD_FRAME_BYTES_MAX + 1))
    assert dialer.send(FrameType.RAFT, [frame]) is (version >= VERSION_OF_LARGE_FRAMES)
    dialer.sent(dialer.unsent_bytes)
    assert dialer.send(FrameType.RAFT, [frame[1:]])


def test_peer_before_hello_little_is_accepted() -> None:
    """A peer's frame is bounded before it has identified itself."""
    dialer, _ = linked()
    dialer.send(FrameType.RAFT, [bytes(HELLO_FRAME_BYTES_MAX + 1)])
    with pytest.raises(FrameTooLarge):
        move(dialer, PeerEngine(TWO, Role.ACCEPTOR))


def test_peer_partial_writes_lose_and_repeat_nothing() -> None:
    """The stream is the same whatever prefix the socket accepts."""
    dialer, acceptor = linked()
    payloads = [bytes([n]) * (n * 31) for n in range(40)]
    for payload in payloads:
        dialer.send(FrameType.RAFT, [payload[:10], b"", payload[10:]])
    events = []
    step = 1
    while dialer.unsent_bytes:
        data = b"".join(dialer.gather())[:step]
        dialer.sent(len(data))
        events += acceptor.receive(data)
        step = step * 3 % 101 + 1
    assert [bytes(event[1]) for event in events if isinstance(event, tuple)] == (payloads)


def test_peer_gather_keeps_to_what_one_sendmsg_takes() -> None:
    """More buffers than IOV_MAX go in several writes."""
    dialer, acceptor = linked()
    for n in range(600):
        dialer.send(FrameType.RAFT, [b"a", b"b", bytes([n % 256])])
    assert len(dialer.gather()) == GATHER_BUFFERS_MAX
    assert len(move(dialer, acceptor)) == 600


def test_peer_ping_comes_back_with_its_time() -> None:
    """PING is answered by the engine, not by the host."""
    dialer, acceptor = linked()
    dialer.ping(123_456)
    assert move(dialer, acceptor) == []
    assert move(acceptor, dialer) == [PongReceived(123_456)]


def test_peer_ping_flood_without_reading_is_bounded() -> None:
    """A peer that pings and never reads costs at most the in-flight bound."""
    limits = PeerLimits(in_flight_bytes_max=1_000)
    dialer, acceptor = linked(limits=limits)
    for n in range(500):
        dialer.ping(n)
        move(dialer, acceptor)
    assert acceptor.unsent_bytes < 1_000 + 2 * HEAD_BYTES


def test_peer_every_corrupt_byte_closes_with_a_clear_error() -> None:
    """One damaged byte anywhere in a frame: RemoteError, CLOSED, nothing delivered after."""
    dialer, _ = linked()
    dialer.send(FrameType.RAFT, [b"some payload"])
    good = b"".join(dialer.gather())
    for at in range(len(good)):
        _, fresh = linked()
        damaged = bytearray(good)
        damaged[at] ^= 0x10
        with pytest.raises(CorruptFrame):
            fresh.receive(damaged)
        assert fresh.state is LinkState.CLOSED
        assert fresh.receive(good) == []


@pytest.mark.parametrize(
    "spoil",
    [
        lambda engine: engine._queue(FrameType.PING, (b"short",)),
        lambda engine: engine._queue(FrameType.PONG, (b"short",)),
        lambda engine: engine._queue(FrameType.REJECT, (b"",)),
        lambda engine: engine._queue(99, (b"",)),
    ],
)
def test_peer_malformed_control_frames_end_the_link(spoil: Callable[[PeerEngine], None]) -> None:
    """A valid CRC over a wrong shape is still the peer's fault."""
    dialer, acceptor = linked()
    spoil(dialer)
    with pytest.raises(RemoteError):
        move(dialer, acceptor)
    assert acceptor.state is LinkState.CLOSED


def test_peer_reject_on_an_open_link_is_an_event() -> None:
    """A peer that stops reports it."""
    dialer, acceptor = linked()
    dialer.send(FrameType.RAFT, [b"last"])
    dialer.reject(RejectReason.STOPPING, "bye")
    events = move(dialer, acceptor)
    assert isinstance(events[0], tuple)
    assert events[1] == Rejected(RejectReason.STOPPING, "bye", by_peer=True)
