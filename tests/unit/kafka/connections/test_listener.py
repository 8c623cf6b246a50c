"""The asyncio listener on real loopback sockets."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import socket
from collections.abc import Awaitable, Callable
from struct import pack, unpack
from typing import Any

import pytest

from tests.hangs import HANG_SECONDS
from tests.unit.kafka.fake_host import LISTENER, FakeHost, FakeLog
from vdl.kafka.configs.options import KafkaOptions, ListenerOptions
from vdl.kafka.connections import listener as listener_module
from vdl.kafka.connections import socket_writes
from vdl.kafka.connections.frontend import Frontend
from vdl.kafka.connections.listener import Listener
from vdl.kafka.connections.session import Session
from vdl.kafka.connections.socket_writes import write_some
from vdl.kafka.context import Context
from vdl.server.loop import LoopClock, TurnLoop
from vdl.sim.clock import NodeClock, VirtualTime

API_VERSIONS_V0 = pack(">ihhih", 10, 18, 0, 7, -1)


class Edge:
    """A front end behind a listener on a port that the system chooses."""

    def __init__(self, **options: Any) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, TurnLoop), loop
        context = Context(
            FakeHost(NodeClock(VirtualTime())),
            KafkaOptions(**options),
            LoopClock(loop),
            FakeLog(),
            os.urandom,
        )
        self.frontend = Frontend(context)
        self.listener = Listener(
            loop, self.frontend, ListenerOptions(LISTENER, port=0), logging.getLogger("test")
        )
        self.port = self.listener.open()
        self.listener.start()

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.port)

    async def close(self) -> None:
        self.listener.close()
        self.frontend.close()
        await until(lambda: len(self.frontend) == 0)


async def until(condition: Callable[[], bool]) -> None:
    """Wait until the condition holds."""
    async with asyncio.timeout(HANG_SECONDS):
        while not condition():  # noqa: ASYNC110 - any condition, on a loop of its own
            await asyncio.sleep(0)


async def connect_slow(edge: Edge) -> tuple[socket.socket, Session]:
    """Return a client with a small receive buffer, and its session."""
    slow = socket.socket()
    slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    slow.setblocking(False)
    await asyncio.get_running_loop().sock_connect(slow, ("127.0.0.1", edge.port))
    await until(lambda: len(edge.frontend) == 1)
    (session,) = edge.frontend._sessions.values()
    return slow, session


async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
    """Send one ApiVersions request. Return its answer."""
    writer.write(API_VERSIONS_V0)
    async with asyncio.timeout(HANG_SECONDS):
        (size,) = unpack(">i", await reader.readexactly(4))
        return await reader.readexactly(size)


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    with asyncio.Runner(loop_factory=TurnLoop) as runner:
        runner.run(scenario())  # type: ignore[arg-type]


def test_listener_serves_connections_and_closes_them() -> None:
    """Accept, answer, close. Port 0 is replaced by the bound port."""

    async def scenario() -> None:
        edge = Edge()
        assert edge.port
        connections = [await edge.connect() for _ in range(40)]
        for reader, writer in connections:
            answer = await ask(reader, writer)
            assert unpack(">ih", answer[:6]) == (7, 0)
        assert len(edge.frontend) == 40
        await edge.close()
        for reader, writer in connections:
            assert await reader.read() == b""
            writer.close()

    run(scenario)


def test_listener_sets_no_delay_and_keep_alive() -> None:
    """Answers are not delayed for more bytes; dead peers are detected."""

    async def scenario() -> None:
        edge = Edge()
        reader, writer = await edge.connect()
        await ask(reader, writer)
        (session,) = edge.frontend._sessions.values()
        accepted = session.connection.transport._transport.get_extra_info("socket")  # type: ignore[attr-defined]
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        writer.close()
        await until(lambda: len(edge.frontend) == 0)
        await edge.close()

    run(scenario)


def test_listener_closes_connections_above_the_limit() -> None:
    """One connection at the limit, and one past it. A freed place is used again."""

    async def scenario() -> None:
        edge = Edge(connections_max=1)
        reader, writer = await edge.connect()
        await ask(reader, writer)
        refused, refused_writer = await edge.connect()
        with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
            await ask(refused, refused_writer)
        refused_writer.close()
        writer.close()
        await until(lambda: len(edge.frontend) == 0)
        reader, writer = await edge.connect()
        await ask(reader, writer)
        writer.close()
        await edge.close()

    run(scenario)


def test_listener_sends_to_a_slow_reader_piece_by_piece() -> None:
    """Unsent bytes wait; once they have left, the connection is writable again; none is lost."""

    async def scenario() -> None:
        edge = Edge(write_buffer_bytes_max=64 << 10)
        loop = asyncio.get_running_loop()
        slow, session = await connect_slow(edge)
        pieces = [bytes([index % 251]) * 997 for index in range(8000)]
        connection = session.connection
        connection.queue(b"", pieces, 997 * 8000)
        connection.flush()
        assert not connection.is_writable
        sent = b"".join(pieces)
        received = bytearray()
        while len(received) < len(sent):
            async with asyncio.timeout(HANG_SECONDS):
                received += await loop.sock_recv(slow, 1 << 20)
        assert received == sent
        await until(lambda: connection.is_writable)
        slow.close()
        await until(lambda: len(edge.frontend) == 0)
        await edge.close()

    run(scenario)


def test_listener_lets_go_of_a_closed_connection_whose_client_does_not_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its session is forgotten at once; descriptor and unsent bytes are freed soon after."""

    async def scenario() -> None:
        monkeypatch.setattr(socket_writes, "_LINGER_S", 0.01)
        edge = Edge(write_buffer_bytes_max=64 << 10)
        deaf, session = await connect_slow(edge)
        transport = session.connection.transport._transport  # type: ignore[attr-defined]
        session.connection.queue(b"", [bytes(16 << 20)], 16 << 20)
        session.connection.flush()
        session.close("malformed request")
        assert len(edge.frontend) == 0
        assert transport.get_write_buffer_size()
        await until(lambda: transport._sock is None)
        assert not transport.get_write_buffer_size()
        deaf.close()
        await edge.close()

    run(scenario)


def test_listener_waits_for_a_few_clients_that_do_not_read_and_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Closed connections do not count as connections, so their number needs a bound of its own."""

    async def scenario() -> None:
        monkeypatch.setattr(socket_writes, "_LINGERING_MAX", 2)
        edge = Edge(write_buffer_bytes_max=64 << 10)
        deaf, transports = [], []
        for _ in range(3):
            client, session = await connect_slow(edge)
            deaf.append(client)
            transports.append(session.connection.transport._transport)  # type: ignore[attr-defined]
            session.connection.queue(b"", [bytes(16 << 20)], 16 << 20)
            session.connection.flush()
            session.close("malformed request")
        await until(lambda: transports[2]._sock is None)
        assert all(transport.get_write_buffer_size() for transport in transports[:2])
        deaf[0].close()  # makes room for another
        await until(lambda: transports[0]._sock is None)
        assert len(edge.listener._lingering) == 1
        deaf[1].close()
        await until(lambda: not edge.listener._lingering)
        deaf[2].close()
        await edge.close()

    run(scenario)


@pytest.mark.parametrize(("silent_seconds", "warnings"), [(60.0, 1), (0.0, 3)])
def test_listener_without_descriptors_refuses_instead_of_hanging(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    silent_seconds: float,
    warnings: int,
) -> None:
    """EMFILE: the spare descriptor is closed, in order to accept and close the connection that
    waits longest. Warnings are logged at a limited rate."""
    monkeypatch.setattr(listener_module, "_WARNING_S", silent_seconds)

    async def scenario() -> None:
        edge = Edge()
        monkeypatch.setattr(listener_module, "_ACCEPT_RETRY_S", 0.001)
        real = edge.listener._socket
        failures = 3

        class Exhausted:
            """A listening socket whose `accept` fails until the spare descriptor is closed."""

            def accept(self) -> Any:
                nonlocal failures
                if failures and edge.listener._spare >= 0:
                    failures -= 1
                    raise OSError(errno.EMFILE, "too many open files")
                assert real is not None
                return real.accept()

            def __getattr__(self, name: str) -> Any:
                return getattr(real, name)

        edge.listener._socket = Exhausted()  # type: ignore[assignment]
        for _ in range(3):
            reader, writer = await edge.connect()
            with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
                await ask(reader, writer)
            writer.close()
        assert edge.listener.refused_without_descriptor == 3
        assert caplog.messages.count("out_of_file_descriptors") == warnings
        reader, writer = await edge.connect()
        await ask(reader, writer)
        writer.close()
        await edge.close()

    run(scenario)


@pytest.mark.parametrize("count", [1, 2, 511, 512, 513, 2000])
def test_write_some_gathers_any_number_of_buffers(count: int) -> None:
    """More buffers than one system call takes need several calls, and stay in order."""
    left, right = socket.socketpair()
    with left, right:
        left.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        buffers = [bytes([index % 256]) * 3 for index in range(count)]
        rest = write_some(left.fileno(), buffers)
        assert list(rest) == []
        assert right.recv(1 << 20, socket.MSG_WAITALL | socket.MSG_DONTWAIT) == b"".join(buffers)


def test_write_some_returns_what_a_full_socket_did_not_take() -> None:
    """The rest may begin in the middle of a buffer."""
    left, right = socket.socketpair()
    with left, right:
        left.setblocking(False)
        right.setblocking(False)
        sent = [os.urandom(100_000) for _ in range(50)]
        rest = write_some(left.fileno(), sent)
        received = bytearray()
        while len(received) < 5_000_000:
            received += right.recv(1 << 20)
            rest = write_some(left.fileno(), rest)
        assert received == b"".join(sent)
        assert list(rest) == []


def test_rest_of_an_answer_that_leaves_at_once_does_not_stand_still(monkeypatch):
    """The socket is full, and has room again before the transport waits for it."""

    async def scenario():
        edge = Edge()
        reader, writer = await edge.connect()
        await until(lambda: len(edge.frontend) == 1)
        (session,) = edge.frontend._sessions.values()
        real, calls = write_some, []

        def full_once(file, buffers):
            calls.append(1)
            return list(buffers) if len(calls) == 1 else real(file, buffers)

        monkeypatch.setattr(listener_module, "write_some", full_once)
        session.connection.queue(b"", [bytes(1 << 18)], 1 << 18)
        session.connection.flush()
        await asyncio.wait_for(reader.readexactly(1 << 18), HANG_SECONDS)
        writer.close()
        await writer.wait_closed()
        await edge.close()

    run(scenario)


def test_client_that_leaves_between_two_slices_of_an_answer_harms_only_itself(monkeypatch):
    """asyncio is in the middle of a write when it says that there is room for more."""

    async def scenario():
        edge = Edge()
        failures: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, why: failures.append(why))
        slow, session = await connect_slow(edge)
        real, left = write_some, []

        def leaves(file, buffers):
            if left:
                slow.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, pack("ii", 1, 0))
                slow.close()
            left.append(1)
            return real(file, buffers)

        monkeypatch.setattr(listener_module, "write_some", leaves)
        session.connection.queue(b"", [bytes(16 << 20)], 16 << 20)
        session.connection.flush()
        while len(left) == 1:
            with contextlib.suppress(BlockingIOError):
                slow.recv(1 << 20)
            await asyncio.sleep(0)
        await until(lambda: len(edge.frontend) == 0)
        await asyncio.sleep(0)
        await edge.close()
        assert failures == []

    run(scenario)
