"""Simulated streams: order, chunks, cuts, windows, and the end of processes and machines."""

from __future__ import annotations

from random import Random

import pytest

from rpc.streams import Address, DialFailed, Stream
from vdl.clock import MS
from vdl.sim.clock import NodeClock, VirtualTime
from vdl.sim.network import SEGMENT_BYTES, WINDOW_BYTES, Network, SimDialer, SimStream, Weather
from vdl.sim.trace import Trace

S = 1000 * MS


class End:
    """One end of a stream: collects its data and events."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.data = bytearray()
        self.over = ""
        self.writables = 0
        self._buffer = bytearray(1 << 16)
        stream.start(self)

    def get_buffer(self) -> memoryview:
        return memoryview(self._buffer)

    def buffer_updated(self, received: int) -> None:
        self.data += self._buffer[:received]

    def writable(self) -> None:
        self.writables += 1

    def ended(self, cause: str) -> None:
        self.over = cause


class Net:
    """Two machines, a server process on one of them and a client process on the other."""

    def __init__(self, seed: int = 1, **weather: float) -> None:
        self.time = VirtualTime()
        self.trace = Trace()
        self.net = Network(self.time, Random(seed), self.trace, Weather(**weather))  # type: ignore[arg-type]
        self.server = NodeClock(self.time)
        self.client = NodeClock(self.time)
        self.accepted = list[End]()
        self.results = list[Stream | DialFailed]()
        self.net.listen(("s", 1), self.server, self._accept)

    def _accept(self, stream: Stream, address: Address) -> None:
        self.accepted.append(End(stream))

    def run(self, ns: int) -> None:
        self.time.run_until(self.time.now_ns + ns)

    def dial(self) -> None:
        SimDialer(self.net, "c", self.client).dial(("s", 1), self.results.append)

    def connect(self) -> tuple[End, End]:
        self.dial()
        self.run(3 * S)
        result = self.results[-1]
        assert isinstance(result, SimStream)
        return End(result), self.accepted[-1]


@pytest.mark.parametrize("seed", range(20))
def test_bytes_arrive_whole_and_in_order_whatever_the_weather(seed: int) -> None:
    """A stream is TCP: loss and jitter delay it, nothing reorders it, even across a pause."""
    net = Net(seed, loss=0.3, split=0.5, jitter_ns=5 * MS)
    near, far = net.connect()
    rng = Random(seed)
    sent = bytearray()
    for i in range(60):
        chunk = rng.randbytes(rng.randint(1, 300))
        sent += chunk
        assert near.stream.write([chunk[:7], chunk[7:]]) == len(chunk)
        net.run(rng.randint(0, 20 * MS))
        if i == 20:
            net.server.pause()
        if i == 40:
            net.server.resume()
    net.run(10 * S)
    assert far.data == sent


def test_nobody_listening_is_refused_and_no_power_is_silence() -> None:
    """A refusal proves that the process is gone; silence proves nothing."""
    net = Net()
    net.server.stop()
    net.net.process_killed("s")
    net.dial()
    net.run(1 * S)
    assert net.results == [DialFailed(True, "connection refused")]
    net.net.power_cut("s")
    net.dial()
    net.run(20 * S)
    assert len(net.results) == 1
    net.net.machine_up("s")
    net.run(2 * S)
    assert len(net.results) == 2


def test_killed_process_resets_its_connections() -> None:
    """The kernel closes them, which resets the other end."""
    net = Net()
    near, far = net.connect()
    far.stream.write([b"last words"])
    net.server.stop()
    net.net.process_killed("s")
    net.run(1 * S)
    assert near.over == "reset by peer"


def test_power_cut_is_silent_until_the_machine_is_back() -> None:
    """Only a write after the reboot finds that the connection is gone."""
    net = Net()
    near, _ = net.connect()
    net.server.stop()
    net.net.power_cut("s")
    near.stream.write([b"x"])
    net.run(60 * S)
    assert near.over == ""
    net.net.machine_up("s")
    near.stream.write([b"x"])
    net.run(1 * S)
    assert near.over == "reset by peer"


def test_one_way_cut_holds_one_direction_until_it_heals() -> None:
    """Data sent during the cut arrives when it heals, in order."""
    net = Net()
    near, far = net.connect()
    net.net.cut("c", "s")
    near.stream.write([b"a"])
    far.stream.write([b"z"])
    net.run(1 * S)
    near.stream.write([b"b"])
    net.run(1 * S)
    assert (bytes(near.data), bytes(far.data)) == (b"z", b"")
    net.net.heal("c", "s")
    net.run(1 * S)
    assert bytes(far.data) == b"ab"


def test_write_beyond_the_window_is_taken_in_part_and_writable_follows() -> None:
    """A reader that does not read stops its writer."""
    net = Net()
    near, far = net.connect()
    assert isinstance(far.stream, SimStream)
    far.stream.pause_reading()
    net.run(1 * S)
    assert near.stream.write([bytes(WINDOW_BYTES + 5)]) == WINDOW_BYTES
    net.run(1 * S)
    assert near.writables == 0
    far.stream.resume_reading()
    net.run(1 * S)
    assert near.writables == 1
    assert len(far.data) == WINDOW_BYTES


def test_close_delivers_what_was_written_before_it() -> None:
    """FIN comes after the data; no callback follows at the end that closed."""
    net = Net(jitter_ns=10 * MS)
    near, far = net.connect()
    near.stream.write([b"hello"])
    near.stream.close()
    net.run(1 * S)
    assert (bytes(far.data), far.over, near.over) == (b"hello", "closed by peer", "")


def test_cancelled_dial_reports_nothing() -> None:
    """Exactly one result follows a dial, unless it is cancelled."""
    net = Net()
    dial = SimDialer(net.net, "c", net.client).dial(("s", 1), net.results.append)
    dial.cancel()
    net.run(1 * S)
    assert net.results == []


def test_equal_seeds_give_equal_traces_and_others_do_not() -> None:
    """The trace hash identifies a run."""

    def digest(seed: int) -> str:
        net = Net(seed)
        near, _ = net.connect()
        near.stream.write([b"x" * 1000])
        net.run(1 * S)
        return net.trace.digest()

    assert digest(1) == digest(1)
    assert digest(1) != digest(2)


def test_narrow_path_carries_so_many_bytes_a_second_in_order() -> None:
    """Faster data is queued before it leaves; the other direction is not affected."""
    net = Net(jitter_ns=0)
    near, far = net.connect()
    net.net.narrow("c", "s", 1 << 20)
    data = Random(1).randbytes(3 << 20)
    assert near.stream.write([data]) == len(data)
    far.stream.write([b"quick"])
    net.run(1 * S)
    assert near.data == b"quick"
    assert 0.9 < len(far.data) / (1 << 20) <= 1.0
    on_way = len(data) - len(far.data) - near.stream.unsent_bytes()
    assert 0 <= on_way <= SEGMENT_BYTES
    near.stream.write([b"late"])
    net.run(3 * S)
    assert far.data == data + b"late"
    assert near.stream.unsent_bytes() == 0


def test_narrow_path_takes_no_more_than_it_is_told() -> None:
    """`limit_unsent`: the rest stays with the owner, which may write again when half has left."""
    net = Net(jitter_ns=0)
    near, _far = net.connect()
    net.net.narrow("c", "s", 1 << 20)
    near.stream.limit_unsent(1 << 18)
    assert near.stream.write([bytes(1 << 20)]) == 1 << 18
    assert near.stream.write([b"more"]) == 0
    net.run(100 * MS)
    assert near.writables == 0
    net.run(50 * MS)
    assert near.writables == 1
    assert near.stream.write([bytes(1 << 20)]) > 1 << 17


def test_end_of_a_stream_waits_for_what_was_sent_before() -> None:
    """A close is ordered after the data before it, over a path with limited bandwidth too."""
    net = Net()
    near, far = net.connect()
    net.net.narrow("c", "s", 1 << 20)
    near.stream.write([bytes(1 << 19)])
    near.stream.close()
    net.run(200 * MS)
    assert not far.over
    net.run(1 * S)
    assert len(far.data) == 1 << 19
    assert far.over == "closed by peer"
