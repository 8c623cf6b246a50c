"""Connections between the servers of a replica set; each direction can be cut by itself.

Every server is known to the others by an address of this process, which forwards connections to it.
Data sent in a direction that is cut is kept until it is healed, as TCP keeps what the network
loses. A connection attempted meanwhile is completed when both directions are intact. Clients are
not affected.

Does not depend on the servers' protocol, except for their identification.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any

from rpc.hello import DIRECTORY_ID_BYTES, Hello
from rpc.peer import HelloReceived, PeerEngine, Role
from tests.chaos.harness.replica_set import ReplicaSet
from vdl.commands.servers.replica_set import PEER_PORT_STEP, make_replica_set, write_configs

PORT_STEP = 40
"""Offset of this process's ports above those of each server."""
READ_BYTES = 1 << 16
START_SECONDS_MAX = 10.0


class Wires:
    """Created for a replica set that was never started. Used in a `with` around all of its use."""

    def __init__(self, replica_set: ReplicaSet) -> None:
        self._ids = list(replica_set.server_ids)
        self._base_port = replica_set.base_port
        self._cut: set[tuple[int, int]] = set()
        self._loop = asyncio.new_event_loop()
        self._changed = asyncio.Event()
        self._listeners: list[asyncio.Server] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._thread = threading.Thread(target=self._loop.run_forever, name="wires", daemon=True)
        layout = make_replica_set(
            replica_set.directory, count=replica_set.nodes, base_port=replica_set.base_port
        )
        write_configs(layout)
        for server in layout.servers:
            text = server.config_file.read_text(encoding="utf-8")
            for number in self._ids:
                text = text.replace(
                    f'{number} = "127.0.0.1:{self._server_port(number)}"',
                    f'{number} = "127.0.0.1:{self._port(number)}"',
                )
            text += f'\n[peer]\nlisten = "127.0.0.1:{self._server_port(server.id)}"\n'
            server.config_file.write_text(text, encoding="utf-8")

    def _server_port(self, server_id: int) -> int:
        return self._base_port + PEER_PORT_STEP + server_id - 1

    def _port(self, server_id: int) -> int:
        return self._base_port + PORT_STEP + server_id - 1

    def __enter__(self) -> Wires:
        self._thread.start()
        for server_id in self._ids:
            self._run(self._listen(server_id))
        return self

    def __exit__(self, *exc: object) -> None:
        self._run(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(START_SECONDS_MAX)
        self._loop.close()

    def _run(self, coroutine: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(START_SECONDS_MAX)

    # --- faults ---------------------------------------------------------------------------------
    def silence(self, server_id: int) -> None:
        """Cut the directions from this server to the others; it still receives from them."""
        self._change({(server_id, other) for other in self._ids if other != server_id})

    def deafen(self, server_id: int) -> None:
        """Cut the directions from the others to this server; they still receive from it."""
        self._change({(other, server_id) for other in self._ids if other != server_id})

    def cut(self, *ways: tuple[int, int]) -> None:
        """Cut these directions, from the first to the second server of each pair, and no others."""
        self._change(set(ways))

    def heal(self) -> None:
        """Heal all directions; kept data arrives."""
        self._change(set())

    def _change(self, cut: set[tuple[int, int]]) -> None:
        def change() -> None:
            self._cut = cut
            self._changed.set()
            self._changed = asyncio.Event()

        self._loop.call_soon_threadsafe(change)

    async def _whole(self, *ways: tuple[int, int]) -> None:
        while any(way in self._cut for way in ways):
            await self._changed.wait()

    # --- connections ----------------------------------------------------------------------------
    async def _listen(self, target: int) -> None:
        def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self._spawn(self._connect(target, reader, writer), writer.close)

        listener = await asyncio.start_server(accepted, "127.0.0.1", self._port(target))
        self._listeners.append(listener)

    def _spawn(self, coroutine: Coroutine[Any, Any, None], end: Callable[[], None]) -> None:
        async def run() -> None:
            try:
                await coroutine
            except OSError:
                pass  # the accepted connection is closed, and its other end notices
            finally:
                end()

        task = self._loop.create_task(run())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _connect(
        self, target: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        local = Hello(target, bytes(DIRECTORY_ID_BYTES), 0)
        engine = PeerEngine(local, Role.ACCEPTOR)
        first, source = b"", 0
        while not source:
            data = await reader.read(READ_BYTES)
            if not data:
                return
            first += data
            for event in engine.receive(data):
                if isinstance(event, HelloReceived):
                    source = event.hello.server_id
        await self._whole((source, target), (target, source))
        far_reader, far_writer = await asyncio.open_connection(
            "127.0.0.1", self._server_port(target)
        )
        far_writer.write(first)
        there = self._pass_on(reader, far_writer, (source, target))
        back = self._pass_on(far_reader, writer, (target, source))
        try:
            await asyncio.gather(there, back)
        finally:
            far_writer.close()

    async def _pass_on(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, way: tuple[int, int]
    ) -> None:
        while data := await reader.read(READ_BYTES):
            await self._whole(way)
            writer.write(data)
            await writer.drain()
        await self._whole(way)
        writer.close()

    async def _end(self) -> None:
        for listener in self._listeners:
            listener.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
