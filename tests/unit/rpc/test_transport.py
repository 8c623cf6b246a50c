"""The link logic over real sockets on loopback."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import random
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from rpc.link_options import LinkOptions
from rpc.peer import FrameType, PeerLimits
from rpc.reader import Buffer
from rpc.streams import DialFailed, Stream
from rpc.transport import SocketDialer, SocketStream, SocketTransport
from tests.hangs import HANG_SECONDS
from tests.unit.rpc.world import Recorder, hello_of

LOOPBACK = ("127.0.0.1", 0)
ROOT = Path(__file__).parents[3]
SILENT_MS_MAX = int(HANG_SECONDS * 1_000)
"""Silence bound: a link that ends loses its frames, and none may end because the machine was slow.
"""
# A link counts as stable at once, so that a lost one is redialled at once.
OPTIONS = LinkOptions(stable_ms=0, silent_ms_max=SILENT_MS_MAX)


async def until(condition: Callable[[], bool]) -> None:
    """Wait for a condition, with a deadline."""
    async with asyncio.timeout(HANG_SECONDS):
        while not condition():  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0.001)


def transport(server_id: int, handler: Recorder, options: LinkOptions = OPTIONS) -> SocketTransport:
    return SocketTransport(
        hello_of(server_id),
        LOOPBACK,
        handler,
        loop=asyncio.get_running_loop(),
        rng=random.Random(server_id),
        options=options,
    )


@contextlib.asynccontextmanager
async def pair(
    options: LinkOptions = OPTIONS,
) -> AsyncIterator[tuple[SocketTransport, Recorder, SocketTransport, Recorder]]:
    """Yield two linked servers."""
    handlers = Recorder(), Recorder()
    one = transport(1, handlers[0], options)
    two = transport(2, handlers[1], options)
    try:
        one.set_peer(2, ("127.0.0.1", two.port))
        two.set_peer(1, ("127.0.0.1", one.port))
        await until(lambda: bool(handlers[0].up and handlers[1].up))
        yield one, handlers[0], two, handlers[1]
    finally:
        one.close()
        two.close()


@pytest.fixture(autouse=True)
def _nothing_leaks() -> Iterator[None]:
    """Check that every socket is closed by its owner, not by the garbage collector."""
    gc.collect()
    before = set(Path("/proc/self/fd").iterdir())
    yield
    assert len(set(Path("/proc/self/fd").iterdir()) - before) == 0


def test_transport_frames_of_every_size_arrive_in_order() -> None:
    """Frames of up to several megabytes pass in both directions at once.

    Socket buffers are full meanwhile.
    """

    async def scenario() -> None:
        async with pair() as (one, handler_one, two, handler_two):
            rng = random.Random(3)
            payloads = [rng.randbytes(size) for size in (0, 1, 1_000, 70_000, 16_384, 3_000_000)]
            for payload in payloads:
                half = len(payload) // 2
                parts: list[Buffer] = [payload[:half], memoryview(payload)[half:]]
                assert one.send(2, FrameType.RAFT, parts)
                assert two.send(1, FrameType.RAFT, parts)
            count = len(payloads)
            await until(lambda: len(handler_one.frames) == len(handler_two.frames) == count)
            assert [frame[2] for frame in handler_one.frames] == payloads
            assert [frame[2] for frame in handler_two.frames] == payloads
            assert handler_one.events == [("up", 2)]

    asyncio.run(scenario())


def test_transport_frames_that_wait_for_other_turns_arrive_in_order() -> None:
    """Deferred frames of every size arrive in order, from the socket and from the buffer."""

    async def scenario() -> None:
        async with pair(replace(OPTIONS, turn_messages_max=2)) as (one, _, _, handler_two):
            rng = random.Random(4)
            sizes = [rng.choice((0, 8, 100, 30_000, 300_000)) for _ in range(200)]
            payloads = [rng.randbytes(size) for size in sizes]
            for payload in payloads:
                assert one.send(2, FrameType.RAFT, [payload])
            await until(lambda: len(handler_two.frames) == len(payloads))
            assert [frame[2] for frame in handler_two.frames] == payloads

    asyncio.run(scenario())


def test_transport_full_socket_bounds_what_is_queued() -> None:
    """A peer that does not read costs at most the in-flight bound; then everything arrives."""

    async def scenario() -> None:
        limits = PeerLimits(in_flight_bytes_max=8 << 20)
        async with pair(replace(OPTIONS, limits=limits)) as (one, _, _, handler_two):
            sent = 0
            # Nothing is read while this code does not return to the event loop.
            while one.send(2, FrameType.RAFT, [bytes(1 << 20)]):
                sent += 1
            assert sent >= 7
            (status,) = one.links()
            assert (7 << 20) <= status.unsent_bytes <= (8 << 20)
            await until(lambda: len(handler_two.frames) == sent)
            assert one.send(2, FrameType.RAFT, [b"more"])

    asyncio.run(scenario())


CHILD = """
import asyncio, random, sys
from rpc.transport import SocketTransport
from tests.unit.rpc.world import Recorder, hello_of

async def serve():
    loop, rng = asyncio.get_running_loop(), random.Random(2)
    two = SocketTransport(hello_of(2), ("127.0.0.1", 0), Recorder(), loop=loop, rng=rng)
    two.set_peer(1, ("127.0.0.1", int(sys.argv[1])))
    print(two.port, flush=True)
    await asyncio.Event().wait()

asyncio.run(serve())
"""


def test_transport_dial_in_the_queue_of_a_dying_listener_is_reset() -> None:
    """The kernel accepted the connection, and the process ends before it does.

    No dial was refused.
    """

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        listener = socket.create_server(LOOPBACK)
        results: list[Stream | DialFailed] = []
        SocketDialer(loop).dial(listener.getsockname(), results.append)
        # The dial starts in this turn of the loop, and checks its result in the next.
        loop.call_soon(listener.close)
        await until(lambda: bool(results))
        (result,) = results
        assert isinstance(result, DialFailed)
        assert (result.refused, result.is_reset) == (False, True)

    asyncio.run(scenario())


@pytest.mark.parametrize("with_traffic", [False, True])
def test_transport_killed_process_is_refused_within_milliseconds(with_traffic: bool) -> None:
    """kill -9 ends the link and closes the port, which proves the crash before any timeout."""

    async def scenario() -> None:
        handler = Recorder()
        one = transport(1, handler)
        command = [sys.executable, "-c", CHILD, str(one.port)]
        child = await asyncio.create_subprocess_exec(*command, cwd=ROOT, stdout=subprocess.PIPE)
        try:
            assert child.stdout is not None
            port = await child.stdout.readline()
            one.set_peer(2, ("127.0.0.1", int(port)))
            await until(lambda: handler.up == {2})
            if with_traffic:  # unread bytes make the kernel reset instead of closing
                while one.send(2, FrameType.RAFT, [bytes(1 << 20)]):
                    pass
            loop = asyncio.get_running_loop()
            killed = loop.time()
            child.kill()
            await until(lambda: len(handler.events) > 1)
            assert handler.events == [("up", 2), ("down", 2, True)]
            assert loop.time() - killed < 0.5
        finally:
            if child.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    child.kill()
            await child.wait()
            one.close()

    asyncio.run(scenario())


def test_transport_reset_with_the_peer_alive_links_again() -> None:
    """A reset alone proves nothing."""

    async def scenario() -> None:
        async with pair() as (one, handler_one, _, handler_two):
            (connection,) = one._open.values()
            stream = connection.stream
            assert isinstance(stream, SocketStream)
            # Shut down below the transport, as a middlebox would.
            stream._socket.shutdown(socket.SHUT_RDWR)
            expected = [("up", 2), ("down", 2, False), ("up", 2)]
            await until(lambda: handler_one.events == expected)
            await until(lambda: len(handler_two.events) == 3)

    asyncio.run(scenario())


def test_transport_corrupt_bytes_on_the_wire_end_the_link() -> None:
    """A byte changed below TCP is detected; the session is replaced."""

    async def scenario() -> None:
        async with pair() as (one, handler_one, _, handler_two):
            (connection,) = one._open.values()
            stream = connection.stream
            assert isinstance(stream, SocketStream)
            stream._socket.send(bytes(16))
            await until(lambda: len(handler_two.events) == 3)
            assert handler_two.events == [("up", 1), ("down", 1, False), ("up", 1)]
            assert "corrupt" not in str(handler_one.events)

    asyncio.run(scenario())


def test_transport_stop_is_told() -> None:
    """`close` sends STOPPING: the peer knows at once."""

    async def scenario() -> None:
        async with pair() as (_, handler_one, two, handler_two):
            two.close()
            await until(lambda: ("down", 2, True) in handler_one.events)
            assert handler_two.events == [("up", 1)]

    asyncio.run(scenario())


def test_transport_second_listener_on_the_port_is_an_error() -> None:
    """Two servers cannot share a peer port."""

    async def scenario() -> None:
        one = transport(1, Recorder())
        with pytest.raises(OSError, match="in use"):
            SocketTransport(
                hello_of(2),
                ("127.0.0.1", one.port),
                Recorder(),
                loop=asyncio.get_running_loop(),
                rng=random.Random(2),
            )
        one.close()

    asyncio.run(scenario())


async def dial(host: str, port: int) -> Stream | DialFailed:
    result: asyncio.Future[Stream | DialFailed] = asyncio.get_running_loop().create_future()
    SocketDialer(asyncio.get_running_loop()).dial((host, port), result.set_result)
    async with asyncio.timeout(HANG_SECONDS):
        return await result


@pytest.mark.parametrize("code", [errno.EPROTO, errno.EPERM, errno.ENETUNREACH, errno.EMFILE])
def test_transport_stream_that_cannot_be_accepted_costs_no_other(code: int) -> None:
    """An `accept` error affects no other stream.

    On Linux it reports errors of the next stream in line, and connections that a firewall forbids.
    An exception in the loop would end the server.
    """

    async def run() -> None:
        failed: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, what: failed.append(what))
        handlers = Recorder(), Recorder()
        one, two = transport(1, handlers[0]), transport(2, handlers[1])
        real, port = two._listener._socket, two.port

        class Failing:
            """Fails once."""

            def accept(self) -> object:
                two._listener._socket = real
                raise OSError(code, "the stream has gone wrong")

        two._listener._socket = Failing()  # type: ignore[assignment]
        try:
            one.set_peer(2, ("127.0.0.1", port))
            await until(lambda: bool(handlers[0].up and handlers[1].up))
            assert failed == []
        finally:
            one.close()
            two.close()

    asyncio.run(run())


def test_transport_dial_to_a_closed_port_is_refused() -> None:
    """A refusal is distinguished from silence."""

    async def scenario() -> None:
        with socket.socket() as probe:
            probe.bind(LOOPBACK)
            port = probe.getsockname()[1]
            result = await dial("127.0.0.1", port)
        assert isinstance(result, DialFailed)
        assert result.refused

    asyncio.run(scenario())


def test_transport_dial_by_name() -> None:
    """Names are resolved; a name that does not exist is a failure, not a refusal."""

    async def scenario() -> None:
        with socket.socket() as listener:
            listener.bind(LOOPBACK)
            listener.listen()
            result = await dial("localhost", listener.getsockname()[1])
            assert isinstance(result, SocketStream)
            result.close()
        missing = await dial("no-such-host.invalid", 1)
        assert isinstance(missing, DialFailed)
        assert not missing.refused

    asyncio.run(scenario())


def test_transport_cancelled_dial_has_no_result() -> None:
    """No callback runs after `cancel`."""

    async def scenario() -> None:
        results: list[Stream | DialFailed] = []
        later: list[Stream | DialFailed] = []
        dialer = SocketDialer(asyncio.get_running_loop())
        for host in ("127.0.0.1", "localhost"):
            dialer.dial((host, 1), results.append).cancel()
            # A later dial to the same address shows when the first would have been answered.
            dialer.dial((host, 1), later.append)
        await until(lambda: len(later) == 2)
        assert results == []

    asyncio.run(scenario())


def test_transport_connection_to_itself_is_a_refusal() -> None:
    """A port of our own ephemeral range may connect to itself, without any listener."""

    async def scenario() -> None:
        # Binding the dialling socket to the port that it dials forces the self-connection.
        with socket.socket() as probe:
            probe.bind(LOOPBACK)
            port = probe.getsockname()[1]
        real = socket.socket

        class Bound(real):  # type: ignore[valid-type,misc]
            def connect_ex(self, address: tuple[str, int]) -> int:
                self.bind(("127.0.0.1", port))
                return int(super().connect_ex(address))

        socket.socket = Bound  # type: ignore[misc]
        try:
            result = await dial("127.0.0.1", port)
        finally:
            socket.socket = real  # type: ignore[misc]
        assert isinstance(result, DialFailed)
        assert result.refused
        # The port is free again.
        with socket.socket() as again:
            again.bind(("127.0.0.1", port))

    asyncio.run(scenario())


def test_stream_holds_no_more_unsent_than_it_is_told() -> None:
    """The kernel holds little unsent data, because that cannot be overtaken.

    It notifies when half of the limit is left.
    """

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        listener = socket.create_server(LOOPBACK)
        near = socket.create_connection(listener.getsockname())
        far, _ = listener.accept()
        near.setblocking(False)
        far.setblocking(False)
        stream = SocketStream(loop, near)
        owner = Ended()
        stream.start(owner)
        limit = 128 << 10
        stream.limit_unsent(limit)
        taken = 0
        # The reader is paused: its buffer fills, then ours.
        while count := stream.write([bytes(4 << 20)]):
            taken += count
            await asyncio.sleep(0)
        # The kernel stops at the first segment beyond the limit.
        assert limit // 2 <= stream.unsent_bytes() <= limit + (128 << 10)
        received = 0
        while received < taken:
            with contextlib.suppress(BlockingIOError):
                received += len(far.recv(1 << 20))
            await asyncio.sleep(0)
        await until(lambda: owner.writables > 0)
        assert stream.unsent_bytes() == 0
        stream.close()
        assert stream.unsent_bytes() == 0
        far.close()
        listener.close()

    asyncio.run(scenario())


class Ended:
    """Owns a stream and ignores what it reads."""

    def __init__(self) -> None:
        self.writables = 0
        self.cause = ""

    def get_buffer(self) -> memoryview:
        return memoryview(bytearray(1 << 16))

    def buffer_updated(self, received: int) -> None:
        """Never called: the other end does not write."""

    def writable(self) -> None:
        self.writables += 1

    def ended(self, cause: str) -> None:
        self.cause = cause
