"""Want of memory, threads and descriptors costs the connection that needs it, and no other."""

from __future__ import annotations

import asyncio
import ctypes
import os
import resource
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from crc32c import crc32c

from ids import ServerId
from rpc.admin_gate import AdminGate
from rpc.errors import NoMemory
from rpc.links import Links
from rpc.peer import FrameType
from rpc.reader import PIECE, PIECE_BYTES_MIN, FrameReader, frame_head
from tests.hangs import HANG_SECONDS
from tests.unit.kafka.connections.test_listener import run, until
from tests.unit.rpc.world import World
from vdl.kafka.connections.connection import REQUEST_BYTES_MAX
from vdl.kafka.connections.connection import FrameReader as RequestReader

malloc_trim = ctypes.CDLL(None).malloc_trim
ROOM_BYTES = 16 << 20
LARGE_BYTES = 1 << 30
"""More than earlier tests can have left free in this process."""


@contextmanager
def little_memory(room_bytes: int = ROOM_BYTES) -> Iterator[None]:
    """Let this process have this much more address space."""
    malloc_trim(0)  # else what earlier tests left free would be used
    before = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    used = pages * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + room_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def write(reader: FrameReader | RequestReader, data: bytes) -> None:
    buffer = reader.get_buffer()
    assert len(buffer) >= len(data)
    buffer[: len(data)] = data
    reader.buffer_updated(len(data))


def test_frame_without_memory_is_an_error_of_its_link() -> None:
    """A frame of its own buffer, and one that comes in pieces."""
    reader = FrameReader(frame_bytes_max=LARGE_BYTES)
    write(reader, frame_head(1, LARGE_BYTES, 0))
    with little_memory(), pytest.raises(NoMemory, match=str(LARGE_BYTES)):
        reader.next_frame()
    joined = FrameReader(frame_bytes_max=LARGE_BYTES)
    write(joined, frame_head(1, PIECE_BYTES_MIN, 0, PIECE))
    with little_memory(), pytest.raises(NoMemory, match=str(LARGE_BYTES)):
        joined.next_frame()


def test_link_without_memory_ends_and_is_dialled_again() -> None:
    """The other server's link ends; what it sends later arrives."""
    world = World(2)
    world.run(500)
    links: Links = world[1].links
    link = links._peers[ServerId(2)].link
    assert link is not None
    head = frame_head(FrameType.RAFT, LARGE_BYTES, crc32c(b""), PIECE)
    buffer = link.get_buffer()
    buffer[: len(head)] = head
    link.engine.reader.frame_bytes_max = LARGE_BYTES
    with little_memory():
        link.buffer_updated(len(head))
    assert link.is_closed
    world.run(3_000)
    world[2].send(1, b"hello again")
    world.run(5)
    assert world[1].handler.frames[-1][2] == b"hello again"


def test_request_without_memory_is_an_error_of_its_socket() -> None:
    """asyncio ends a transport whose buffer is an OSError; any other exception ends the server."""
    reader = RequestReader(REQUEST_BYTES_MAX)
    write(reader, REQUEST_BYTES_MAX.to_bytes(4, "big"))
    assert reader.next_frame() is None

    def receive_on() -> None:
        while reader.next_frame() is None:
            reader.buffer_updated(len(reader.get_buffer()))

    with little_memory(1 << 20), pytest.raises(OSError, match="memory"):
        receive_on()


def test_gate_without_descriptors_serves_again_and_ends_in_order() -> None:
    """Nothing reaches the loop's exception handler, which would end the server."""

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        failures: list[object] = []
        loop.set_exception_handler(lambda _, why: failures.append(why))
        name = f"\0vdl-gate-{os.getpid()}-none"
        listening = socket.socket(socket.AF_UNIX)
        listening.bind(name)
        listening.listen()
        listening.setblocking(False)
        gate = AdminGate(name, HANG_SECONDS)
        place = ("127.0.0.1", await gate.open(("127.0.0.1", 0)))
        clients = [socket.socket() for _ in range(4)]
        for client in clients:
            client.setblocking(False)
        taken = []
        before = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(256, clients[-1].fileno() + 8), before[1]))
        try:
            # One is left for the connection that is accepted, and none for the one to gRPC.
            while True:
                try:
                    taken.append(os.dup(0))
                except OSError:
                    break
            await loop.sock_connect(clients[0], place)
            await asyncio.sleep(0.3)
            os.close(taken.pop())
            await loop.sock_sendall(clients[0], b"x")
            assert await loop.sock_recv(clients[0], 1) == b""
        finally:
            for descriptor in taken:
                os.close(descriptor)
            resource.setrlimit(resource.RLIMIT_NOFILE, before)
        await loop.sock_connect(clients[1], place)
        await loop.sock_sendall(clients[1], b"y")
        inner, _ = await asyncio.wait_for(loop.sock_accept(listening), HANG_SECONDS)
        assert await loop.sock_recv(inner, 1) == b"y"
        gate.close()
        await until(lambda: not len(gate._spoken))
        await asyncio.sleep(0)
        for one in (*clients, inner, listening):
            one.close()
        assert failures == []

    run(scenario)
