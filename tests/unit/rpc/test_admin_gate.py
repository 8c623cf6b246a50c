"""The gate in front of the admin port's gRPC, over real sockets."""

from __future__ import annotations

import asyncio
import os
import socket

import pytest

from rpc.admin_gate import AdminGate
from tests.hangs import HANG_SECONDS
from tests.unit.kafka.connections.test_listener import run, until

SIZE = 8 << 20


@pytest.mark.parametrize("part", [10_000, 12_000, 15_000, 50_000])
def test_client_that_ends_before_all_is_relayed_harms_only_itself(part: int) -> None:
    """Its last bytes are still in the gate, and leave before the gate ends the connection."""

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        failures: list[object] = []
        loop.set_exception_handler(lambda _, why: failures.append(why))
        name = f"\0vdl-gate-{os.getpid()}-{part}"
        listening = socket.socket(socket.AF_UNIX)
        listening.bind(name)
        listening.listen()
        listening.setblocking(False)
        gate = AdminGate(name, HANG_SECONDS)
        client = socket.socket()
        client.setblocking(False)
        await loop.sock_connect(client, ("127.0.0.1", await gate.open(("127.0.0.1", 0))))
        await loop.sock_sendall(client, b"x")
        inner, _ = await loop.sock_accept(listening)

        async def send() -> None:
            await loop.sock_sendall(client, bytes(SIZE))
            client.shutdown(socket.SHUT_WR)

        sending = asyncio.create_task(send())
        received = 0
        while data := await loop.sock_recv(inner, part):
            received += len(data)
            await asyncio.sleep(0)
        inner.close()
        assert received == SIZE + 1
        await sending
        assert await loop.sock_recv(client, 1) == b""
        client.close()
        await until(lambda: not len(gate._spoken))
        gate.close()
        listening.close()
        assert failures == []

    run(scenario)
