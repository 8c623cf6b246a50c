"""Links on a virtual clock: one per pair, quick detection of a crash, bounded retries."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from struct import pack

import pytest

from rpc.backlog import BACKLOG_BYTES_MAX
from rpc.hello import RejectReason
from rpc.link_options import LinkOptions
from rpc.peer import FrameType, PeerEngine, PeerLimits, Role
from rpc.reader import Buffer
from tests.unit.rpc.world import World, address_of, hello_of

SETTLED_MS = 1_500
"""Time after which a link counts as stable."""


def downs(world: World, server_id: int, peer: int) -> list[bool]:
    """Return the `refused` argument of every link_down of `peer` that the server received."""
    events = world[server_id].handler.events
    return [bool(event[2]) for event in events if event[:2] == ("down", peer)]


@pytest.mark.parametrize("jitter_ms", [0.0, 0.5, 20.0])
@pytest.mark.parametrize("chunk_bytes_max", [1, 1 << 20])
def test_links_all_dial_at_once_one_link_each_pair(jitter_ms: float, chunk_bytes_max: int) -> None:
    """Simultaneous dials are resolved without a link going up and down."""
    for seed in range(5):
        world = World(4, seed=seed, jitter_ms=jitter_ms, chunk_bytes_max=chunk_bytes_max)
        world.run(300)
        for server_id, server in world.servers.items():
            others = set(world.servers) - {server_id}
            assert server.handler.up == others
            assert sorted(server.handler.events) == [("up", other) for other in sorted(others)]
        assert len(world.network._streams) == 4 * 3


def test_links_dials_cross_the_lower_id_wins() -> None:
    """Both ends apply the same rule for whose dial it was."""
    world = World(2)
    world.run(100)
    assert [status.dialed_by_us for status in world[1].links.links()] == [True]
    assert [status.dialed_by_us for status in world[2].links.links()] == [False]


def test_links_lower_cannot_dial_takes_the_held_hello() -> None:
    """The higher server's dial is used when the lower one's attempt fails."""
    world = World(2)
    world[1].links.set_peer(2, ("nowhere", 1))
    world.run(SETTLED_MS)
    assert world[1].handler.up == {2}
    assert [status.dialed_by_us for status in world[2].links.links()] == [True]


def frames_of(count: int, messages: int) -> list[bytes]:
    """Return payloads of `count` RAFT frames, each with a prefix for `messages` messages."""
    return [pack("<II", messages, number) + bytes(40 * messages) for number in range(count)]


class Turns:
    """Work that server 1's links have deferred to the next turn of its loop."""

    def __init__(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        self.waiting: list[Callable[[], None]] = []
        clock = world[1].links._clock
        call_later = clock.call_later

        def held(delay_ns: int, fn: Callable[[], None]) -> object:
            return call_later(delay_ns, fn) if delay_ns else self.waiting.append(fn)

        monkeypatch.setattr(clock, "call_later", held)

    def next(self) -> None:
        """Run the next turn."""
        now, self.waiting[:] = self.waiting[:], []
        for go_on in now:
            go_on()


@pytest.mark.parametrize("chunk_bytes_max", [30, 1 << 20])
def test_links_bring_no_more_than_their_part_in_a_turn(
    chunk_bytes_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that receives more than it can handle still sends and receives heartbeats."""
    options = LinkOptions(turn_messages_max=50)
    world = World(3, chunk_bytes_max=chunk_bytes_max, options=options)
    world.run(SETTLED_MS)
    turns = Turns(world, monkeypatch)
    handler = world[1].handler
    for payload in frames_of(12, messages=9):
        assert world[2].send(1, payload)
        assert world[3].send(1, payload)
    passed = 0
    assert world[1].links.unread_ns() == 0
    while True:
        world.run(5)
        assert not 0 < passed < 18 or world[1].links.unread_ns() > 0
        senders = [server_id for server_id, _, _ in handler.frames[passed:]]
        # A frame counts as ten messages: its nine and itself. In the first turn each share is all
        # fifty, as no link was open yet.
        assert senders.count(2) == senders.count(3) <= (3 if passed else 5)
        passed = len(handler.frames)
        if not turns.waiting:
            break
        turns.next()
    for sender in (2, 3):
        came = [payload for server_id, _, payload in handler.frames if server_id == sender]
        assert came == frames_of(12, messages=9)
    assert handler.up == {2, 3}
    assert world[1].links.unread_ns() == 0


@pytest.mark.parametrize("turn_ms", [5, 250])
def test_link_that_alone_has_much_to_say_has_the_whole_turn(
    turn_ms: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two links are open, and the other one has nothing to send.

    Other work that makes turns long takes nothing from the links.
    """
    world = World(3, options=LinkOptions(turn_messages_max=50))
    world.run(SETTLED_MS)
    turns = Turns(world, monkeypatch)
    for payload in frames_of(20, messages=9):
        assert world[2].send(1, payload)
    counts, passed = [], 0
    while passed < 20:
        world.run(turn_ms)
        counts.append(len(world[1].handler.frames) - passed)
        passed += counts[-1]
        turns.next()
    assert counts == [5, 5, 5, 5]


def test_links_that_end_bring_nothing_of_what_waits_for_the_next_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Deferred frames of a link that has ended are dropped.

    They are sent again on the next session.
    """
    world = World(2, options=LinkOptions(turn_messages_max=10))
    world.run(SETTLED_MS)
    turns = Turns(world, monkeypatch)
    for payload in frames_of(3, messages=9):
        assert world[2].send(1, payload)
    world.run(5)
    assert len(world[1].handler.frames) == 1
    world.crash(2)
    world.restart(2)
    world.run(SETTLED_MS)
    assert world[1].handler.hellos[2].incarnation == 2
    turns.next()
    assert len(world[1].handler.frames) == 1
    assert world[1].handler.up == {2}


@pytest.mark.parametrize("chunk_bytes_max", [1, 7, 1 << 20])
def test_links_send_delivers_in_order(chunk_bytes_max: int) -> None:
    """Frames arrive complete and in order, however the stream is split."""
    world = World(2, chunk_bytes_max=chunk_bytes_max)
    world.run(100)
    payloads = [bytes([n]) * (n * 37) for n in range(50)]
    for payload in payloads:
        assert world[1].send(2, payload)
        assert world[2].send(1, payload)
    world.run(10)
    assert [frame[2] for frame in world[2].handler.frames] == payloads
    assert [frame[2] for frame in world[1].handler.frames] == payloads


def test_links_crash_reports_refused_at_once() -> None:
    """A link that ends and is refused on redial proves the crash, within a few round trips."""
    world = World(3)
    world.run(SETTLED_MS)
    world.crash(1)
    world.run(1)
    assert downs(world, 2, 1) == [True]
    assert downs(world, 3, 1) == [True]
    world.run(5_000)
    assert downs(world, 2, 1) == [True]
    assert not world[2].send(1, b"x")


def test_links_crash_of_a_dying_listener_is_found_by_quick_redials() -> None:
    """A port that still accepts while its process dies does not hide the crash."""
    world = World(2)
    world.run(SETTLED_MS)
    address = address_of(1)
    # The links end first; the listener exists a moment longer and drops accepted connections.
    world.crash(1)
    world.network.listen(1, address, lambda stream: stream.close())
    world.clock.call_later(5_000_000, lambda: world.network.stop_listening(address))
    world.run(30)
    assert downs(world, 2, 1) == [True]


def test_links_crash_of_a_listener_that_resets_is_found_by_quick_redials() -> None:
    """A dial may wait in the queue of a dying process: it is reset, and not refused."""
    world = World(2)
    world.run(SETTLED_MS)
    address = address_of(1)
    world.crash(1)
    world.network.stop_listening(address, is_dying=True)
    world.clock.call_later(5_000_000, lambda: world.network.stop_listening(address))
    world.run(30)
    assert downs(world, 2, 1) == [True]


def test_links_reset_with_both_alive_is_a_new_session() -> None:
    """A reset link is redialled at once: down without refusal, then up."""
    world = World(2)
    world.run(SETTLED_MS)
    world.network.reset(1, 2)
    world.run(2)
    for me, peer in ((1, 2), (2, 1)):
        assert world[me].handler.events == [("up", peer), ("down", peer, False), ("up", peer)]


def test_links_unstable_link_backs_off() -> None:
    """Links that repeatedly break early are not redialled in a tight loop."""
    world = World(2)
    for _ in range(2_000):
        world.run(1)
        world.network.reset(1, 2)
    ups = [event for event in world[1].handler.events if event[0] == "up"]
    assert len(ups) < 30
    world.run(SETTLED_MS)
    assert world[1].handler.up == {2}


def test_links_power_cut_reports_silence_without_refusal() -> None:
    """There is no answer: the link closes after the silence bound, and nothing proves a crash."""
    world = World(2)
    world.run(SETTLED_MS)
    world.power_off(1)
    world.run(world.options.silent_ms_max - 200)
    assert world[2].handler.up == {1}
    world.run(600)
    assert downs(world, 2, 1) == [False]
    world.restart(1)
    world.run(SETTLED_MS)
    assert world[2].handler.up == {1}
    assert world[2].handler.hellos[1].incarnation == 2


def test_links_refusal_after_silence_is_reported_once() -> None:
    """A machine that returns without its server proves the crash late."""
    world = World(2)
    world.run(SETTLED_MS)
    world.power_off(1)
    world.run(5_000)
    assert downs(world, 2, 1) == [False]
    world.network._vanished.discard(1)
    world.network.heal(2, 1)
    world.run(3_000)
    assert downs(world, 2, 1) == [False, True]


def test_links_one_way_cut_closes_the_link_at_both_ends() -> None:
    """The end that receives nothing closes; the other end then cannot keep the link."""
    world = World(2)
    world.run(SETTLED_MS)
    world.network.cut(1, 2)
    world.run(5_000)
    assert world[2].handler.up == set()
    assert world[1].handler.up == set()
    world.network.heal(1, 2)
    world.run(3_000)
    assert world[1].handler.up == {2}
    assert world[2].handler.up == {1}


def test_links_short_cut_keeps_the_link() -> None:
    """TCP's retransmission bridges an interruption shorter than the silence bound."""
    world = World(2)
    world.run(SETTLED_MS)
    for source, target in ((1, 2), (2, 1)):
        world.network.cut(source, target)
    world.run(1_000)
    for source, target in ((1, 2), (2, 1)):
        world.network.heal(source, target)
    world.run(3_000)
    assert world[1].handler.events == [("up", 2)]
    assert world[2].handler.events == [("up", 1)]


def test_links_idle_link_stays_up_by_pings() -> None:
    """Pings prove liveness and measure the round trip without any traffic of the host."""
    world = World(2, delay_ms=3.0)
    world.run(20_000)
    assert world[1].handler.events == [("up", 2)]
    (status,) = world[1].links.links()
    assert status.round_trip_ns == 6_000_000
    assert world[1].handler.beats == 200


def test_links_own_pause_closes_nothing() -> None:
    """Time in which our own process was paused is no evidence about others."""
    world = World(3)
    world.run(SETTLED_MS)
    world.pause(2)
    world.run(1_500)  # below the others' silence bound
    world.resume(2)
    world.run(3_000)
    assert world[2].handler.events == [("up", 1), ("up", 3)]


def test_links_long_pause_of_a_peer_is_silence_then_a_new_session() -> None:
    """A stopped process keeps its port: no refusal; when it continues it is linked again."""
    world = World(2)
    world.run(SETTLED_MS)
    world.pause(1)
    world.run(8_000)
    assert downs(world, 2, 1) == [False]
    world.resume(1)
    world.run(3_000)
    assert world[1].handler.up == {2}
    assert world[2].handler.up == {1}
    world[2].send(1, b"hello again")
    world.run(5)
    assert world[1].handler.frames[-1][2] == b"hello again"


def test_links_restart_is_a_new_session_with_the_new_incarnation() -> None:
    """Frames queued for the old process never reach the new one."""
    world = World(2)
    world.run(SETTLED_MS)
    world.crash(1)
    world.restart(1)
    world.run(SETTLED_MS)
    assert world[2].handler.hellos[1].incarnation == 2
    assert downs(world, 2, 1) == [False]
    assert world[1].handler.frames == []


@pytest.mark.parametrize("server_id", [1, 2])
def test_links_refuse_a_second_process_while_the_first_one_answers(server_id: int) -> None:
    """A second process, in a copy of the directory, is refused.

    The first one's link is unaffected.
    """
    world = World(2)
    world.run(SETTLED_MS)
    other = 3 - server_id
    first = world[server_id]
    second = world.second_process(server_id)
    world.run(3_000)
    assert second.handler.up == set()
    assert (other, RejectReason.SECOND_PROCESS, True) in second.handler.rejects
    assert world[other].handler.hellos[server_id].incarnation == 1
    assert downs(world, other, server_id) == []
    assert first.handler.events == [("up", other)]
    assert (server_id, RejectReason.SECOND_PROCESS, False) in world[other].handler.rejects


@pytest.mark.parametrize("server_id", [1, 2])
def test_links_take_the_next_process_when_the_former_one_is_silent(server_id: int) -> None:
    """A server lost power, and its link remains.

    Its next process replaces it within the time granted to a suspected link.
    """
    world = World(2)
    world.run(SETTLED_MS)
    other = 3 - server_id
    world.power_off(server_id)
    world.restart(server_id)
    world.run(world.options.suspect_ms_max + 3 * world.options.heartbeat_ms)
    assert world[server_id].handler.up == {other}
    assert world[other].handler.hellos[server_id].incarnation == 2
    assert RejectReason.SECOND_PROCESS not in {r for _, r, _ in world[server_id].handler.rejects}


def test_links_do_not_believe_a_dialer_that_this_is_a_second_process() -> None:
    """Only a dialled server may report a second process, because any process may dial."""
    world = World(2)
    world.run(SETTLED_MS)
    link = world[2].links._peers[1].link
    assert link is not None
    acceptor = 2 if link.engine.role is Role.ACCEPTOR else 1
    dialer = world[3 - acceptor].links._peers[acceptor].link
    assert dialer is not None
    dialer.engine.reject(RejectReason.SECOND_PROCESS, "go away")
    dialer.flush()
    world.run(5)
    reasons = [reason for _, reason, _ in world[acceptor].handler.rejects]
    assert RejectReason.SECOND_PROCESS not in reasons
    assert RejectReason.PROTOCOL_ERROR in reasons


def test_links_close_tells_peers_that_we_stop() -> None:
    """A planned stop proves as much as a refused redial, and is faster."""
    world = World(2)
    world.run(SETTLED_MS)
    world[1].links.close()
    world.run(0.2)
    assert downs(world, 2, 1) == [True]
    assert world[2].handler.rejects == [(1, RejectReason.STOPPING, True)]
    assert world[1].handler.events == [("up", 2)]


def test_links_wrong_cluster_is_refused_with_its_reason() -> None:
    """Two clusters never exchange a frame, and report the reason."""
    world = World(2, hellos={2: hello_of(2, cluster_id="another")})
    world.run(3_000)
    for me, peer in ((1, 2), (2, 1)):
        handler = world[me].handler
        assert handler.up == set()
        assert {reject[1] for reject in handler.rejects} == {RejectReason.WRONG_CLUSTER}
        assert {reject[0] for reject in handler.rejects} == {peer}
        # Permanent reasons wait the longest back-off: a handful of attempts in 3 s.
        assert len(handler.rejects) < 20


def test_links_wrong_server_at_the_address_is_refused() -> None:
    """A dial that reaches another server than intended makes no link."""
    world = World(3)
    world.run(SETTLED_MS)
    world[1].links.set_peer(9, address_of(2))
    world.run(100)
    assert (9, RejectReason.WRONG_SERVER, True) in world[1].handler.rejects
    assert world[1].handler.up == {2, 3}


def test_links_unadmitted_directory_gets_no_link() -> None:
    """The host decides about directories; both ends receive the refusal."""
    world = World(2)
    world[2].handler.denied = {1}
    world.run(500)
    assert world[1].handler.up == set()
    assert (1, RejectReason.NOT_ADMITTED, False) in world[2].handler.rejects
    assert (2, RejectReason.NOT_ADMITTED, True) in world[1].handler.rejects


def test_links_unborn_servers_only_ask() -> None:
    """A link carries only ASK and ANSWER before both servers belong to the cluster."""
    world = World(2, hellos={2: hello_of(2, cluster_id="")})
    world.run(100)
    assert world[1].handler.hellos[2].cluster_id == ""
    assert not world[1].send(2, b"raft")
    assert world[2].send(1, b"", FrameType.ASK)
    assert world[1].send(2, b"\x00", FrameType.ANSWER)
    world.run(5)
    assert world[1].handler.frames == [(2, FrameType.ASK, b"")]
    assert world[2].handler.frames == [(1, FrameType.ANSWER, b"\x00")]


def test_links_adopting_a_cluster_makes_new_links() -> None:
    """`set_local` from within a frame: the unborn link ends, a born one follows at once."""
    world = World(2, hellos={2: hello_of(2, cluster_id="")})
    world.run(100)
    server = world[2]
    server.handler.on_frame = lambda *_: server.links.set_local(
        replace(server.hello, cluster_id="cluster-1")
    )
    world[1].send(2, b"\x01record", FrameType.ANSWER)
    world.run(100)
    assert world[1].handler.hellos[2].cluster_id == "cluster-1"
    assert world[1].handler.events == [("up", 2), ("down", 2, False), ("up", 2)]
    assert world[1].send(2, b"raft")


def test_links_unknown_server_may_link_but_is_not_dialled() -> None:
    """A new server that knows us is linked; when it leaves, it is not redialled."""
    world = World(2)
    world[1].links.remove_peer(2, "removed")
    world.run(SETTLED_MS)
    assert world[1].handler.up == {2}
    world.crash(2)
    world.run(3_000)
    assert downs(world, 1, 2) == [False]
    assert world[1].links.links() == []


def test_links_removed_peer_goes_down() -> None:
    """Removing a peer ends its link and its dials."""
    world = World(2)
    world.run(SETTLED_MS)
    world[2].links.remove_peer(1, "removed")
    world[1].handler.denied = {2}
    world[1].links.remove_peer(2, "removed")
    world.run(3_000)
    assert world[1].handler.events == [("up", 2), ("down", 2, False)]
    assert world[1].links.links() == []


def test_links_forgotten_address_keeps_the_link_and_is_dialled_no_more() -> None:
    """A server that waits to be added again stays linked, and leaves by itself."""
    world = World(2)
    world.run(SETTLED_MS)
    world[1].links.forget_address(2)
    world.run(3_000)
    assert world[1].handler.events == [("up", 2)]
    world.crash(2)
    world.run(3_000)
    assert world[1].links.links() == []
    world[1].links.forget_address(2)


def test_links_in_flight_bound_refuses_and_recovers() -> None:
    """At the bound bulk is refused, control frames pass, and accepted frames arrive."""
    limits = PeerLimits(in_flight_bytes_max=8 << 20)
    world = World(2, options=LinkOptions(limits=limits))
    world.run(100)
    world.pause(2)
    sent = 0
    while world[1].send(2, bytes(1 << 20)):
        sent += 1
        world.run(10)  # pieces have their part of a turn
    # The stream's window, then the bound.
    assert sent == 4 + 7
    assert world[1].send(2, b"beat", FrameType.HEARTBEAT)
    (status,) = world[1].links.links()
    assert status.unsent_bytes <= limits.in_flight_bytes_max + limits.control_reserve_bytes
    world.resume(2)
    world.run(100)
    assert len(world[2].handler.frames) == sent + 1
    assert world[1].send(2, b"more")


class Stranger:
    """Reads without ever sending. The reason for its stream's end goes to `ended`."""

    def __init__(self, ended: list[str]) -> None:
        self._ended = ended

    def get_buffer(self) -> memoryview:
        return memoryview(bytearray(100))

    def buffer_updated(self, received: int) -> None: ...
    def writable(self) -> None: ...
    def ended(self, cause: str) -> None:
        self._ended.append(cause)


def test_links_inbound_streams_that_say_nothing_are_bounded_and_closed() -> None:
    """Strangers hold at most `inbound_max` streams, for a second."""
    world = World(1, options=LinkOptions(inbound_max=3))
    ended: list[str] = []
    for _ in range(4):
        stream = world.network.connect(9, address_of(1))
        assert stream is not None
        stream.start(Stranger(ended))
    world.run(10)
    assert len(ended) == 1
    world.run(2_000)
    assert len(ended) == 4


def test_links_strangers_that_say_nothing_do_not_keep_a_server_out() -> None:
    """A restarted server is linked while others repeatedly fill the port."""
    world = World(1, options=LinkOptions(inbound_max=3))
    ended: list[str] = []
    for _ in range(3):
        stream = world.network.connect(9, address_of(1))
        assert stream is not None
        stream.start(Stranger(ended))
    late = world.network.connect(9, address_of(1))
    assert late is not None
    late_ended: list[str] = []
    late.start(Stranger(late_ended))
    world.run(10)
    assert ended == ["closed by the peer"]
    assert late_ended == []


def test_links_garbage_on_the_port_is_closed() -> None:
    """An HTTP request is not a frame."""
    world = World(1)
    ended: list[str] = []
    stream = world.network.connect(9, address_of(1))
    assert stream is not None
    stream.start(Stranger(ended))
    stream.write([b"GET / HTTP/1.1\r\n\r\n"])
    world.run(1)
    assert ended == ["closed by the peer"]
    assert world[1].handler.rejects == [(0, RejectReason.PROTOCOL_ERROR, False)]


@pytest.mark.parametrize("seed", range(20))
def test_links_random_faults_then_quiet_every_pair_is_linked(seed: int) -> None:
    """All pairs agree on one link after any sequence of crashes, cuts, resets and pauses."""
    rng = random.Random(seed)
    world = World(4, seed=seed, jitter_ms=rng.choice([0.0, 2.0, 30.0]))
    ids = list(world.servers)
    down: set[int] = set()
    paused: set[int] = set()
    cut: set[tuple[int, int]] = set()
    for _ in range(60):
        world.run(rng.choice([0.2, 3, 50, 700, 3_000]))
        server, other = rng.sample(ids, 2)
        fault = rng.randrange(6)
        if fault == 0 and server not in paused:
            if server in down:
                down.discard(server)
                world.restart(server)
            else:
                down.add(server)
                (world.crash if rng.random() < 0.5 else world.power_off)(server)
        elif fault == 1 and server not in down:
            if server in paused:
                paused.discard(server)
                world.resume(server)
            else:
                paused.add(server)
                world.pause(server)
        elif fault == 2:
            cut.add((server, other))
            world.network.cut(server, other)
        elif fault == 3:
            cut.discard((server, other))
            world.network.heal(server, other)
        elif fault == 4:
            world.network.reset(server, other)
        elif server not in down | paused:
            world[server].send(other, bytes(rng.randrange(100_000)))
    for server, other in sorted(cut):
        world.network.heal(server, other)
    for server in sorted(paused):
        world.resume(server)
    for server in sorted(down):
        world.restart(server)
    world.run(10_000)
    for server_id in ids:
        assert world[server_id].handler.up == set(ids) - {server_id}
        for status in world[server_id].links.links():
            assert status.is_up
            (mirror,) = [
                far for far in world[status.server_id].links.links() if far.server_id == server_id
            ]
            assert mirror.dialed_by_us is not status.dialed_by_us
    before = {server_id: len(world[server_id].handler.events) for server_id in ids}
    for server_id in ids:
        for other in ids:
            assert server_id == other or world[server_id].send(other, b"still here")
    world.run(5_000)
    for server_id in ids:
        assert len(world[server_id].handler.events) == before[server_id]
        last = {frame[0] for frame in world[server_id].handler.frames if frame[2] == b"still here"}
        assert last == set(ids) - {server_id}


def test_links_same_seed_same_history() -> None:
    """The whole history is a function of clock, network and seeds."""

    def history(seed: int) -> list[object]:
        world = World(4, seed=seed, jitter_ms=5.0)
        for step in range(20):
            world.run(300)
            world.network.reset(1 + step % 4, 1 + (step + 1) % 4)
        return [server.handler.events for server in world.servers.values()]

    assert history(7) == history(7)


def test_links_confirm_a_live_peer_within_a_round_trip() -> None:
    """A live peer answers a ping that was sent after the request."""
    world = World(2)
    world.run(SETTLED_MS)
    asked: list[bool] = []
    world[1].links.confirm(2, asked.append)
    assert asked == []
    world.run(5)
    assert asked == [True]


def test_links_confirm_a_peer_that_just_died_after_its_loss_is_told() -> None:
    """A caller at the moment of the crash learns of it, not of the previous link."""
    world = World(2)
    world.run(SETTLED_MS)
    world.network.crash(2)
    seen: list[tuple[bool, set[int]]] = []
    world[1].links.confirm(2, lambda answered: seen.append((answered, set(world[1].handler.up))))
    world.run(90)
    assert seen == [(False, set())]


def test_links_confirm_a_silent_peer_is_bounded() -> None:
    """A peer that neither answers nor is lost delays no caller for long."""
    world = World(2)
    world.run(SETTLED_MS)
    world.network.cut(2, 1)
    asked: list[bool] = []
    world[1].links.confirm(2, asked.append)
    world.run(99)
    assert asked == []
    world.run(2)
    assert asked == [False]


def test_link_however_fast_cuts_a_large_frame_into_pieces() -> None:
    """A heartbeat waits for one piece of it, not for all."""
    world = World(2)
    world.run(SETTLED_MS)
    connection = world[1].links._open[2]
    while connection.backlog.is_bounded:
        connection.backlog.ran_dry()
    connection._bound()
    assert connection.engine.piece_bytes <= BACKLOG_BYTES_MAX // 2


def test_turn_ends_although_an_empty_buffer_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """A payload may be empty, and no piece of a large frame begins any more in this turn."""
    world = World(2, options=LinkOptions(turn_bytes=1))
    world.run(SETTLED_MS)
    links = world[1].links
    gather, offers = PeerEngine.gather, count()

    def gather_few(engine: PeerEngine, *, begins_bytes: int) -> list[Buffer]:
        assert next(offers) < 1_000, "the turn does not end"
        return gather(engine, begins_bytes=begins_bytes)

    monkeypatch.setattr(PeerEngine, "gather", gather_few)
    assert links.send(2, FrameType.RAFT, [bytes(30 << 20)], keyed=[(1, None)])
    assert links.send(2, FrameType.RAFT, [b"small", b""], keyed=[(2, None)])
    world.run(1_000)
    found = [len(payload) for _, _, payload in world[2].handler.frames]
    assert found == [len(b"small"), 30 << 20]


@pytest.mark.parametrize("is_full", [False, True])
def test_small_frame_of_another_group_passes_a_large_one(is_full: bool) -> None:
    """Also while the stream takes everything at once: a turn has a bound on pieces."""
    world = World(2)
    world.run(SETTLED_MS)
    links = world[1].links
    if is_full:
        world.pause(2)
    large, small = [bytes(30 << 20)], [b"small"]
    assert links.send(2, FrameType.RAFT, large, keyed=[(1, None)])
    assert links.behind(2) == {1: 1}
    assert links.send(2, FrameType.RAFT, [b"behind"], keyed=[(1, None)])
    assert links.send(2, FrameType.RAFT, small, keyed=[(2, None)])
    world.resume(2)
    world.run(1_000)
    found = [len(payload) for _, _, payload in world[2].handler.frames]
    assert found == [len(b"small"), 30 << 20, len(b"behind")]
    assert not links.behind(2)
    assert not links.behind(3)
