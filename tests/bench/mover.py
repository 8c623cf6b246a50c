"""Bytes from a client to three disks with the least code: the limit for any log on this machine.

A leader and two followers, a process each. The client's bytes come in chunks: the leader takes one,
computes its CRC32C, writes it durably into preallocated space, and forwards it; a follower does the
same and acknowledges it; once two of three have a chunk the client receives an acknowledgement.
Copies, CRC and writes are C code, some Python starts them for each chunk. There are no records,
offsets, index or second copy in a segment, and no server that could replace the leader.

Does not depend on VDL.
"""

from __future__ import annotations

import multiprocessing
import os
import socket
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from queue import SimpleQueue

from crc32c import crc32c

HOST = "127.0.0.1"
FILE_BYTES = 64_000_000
"""Written cyclically, like a journal that reuses its files."""
WINDOW = 5
"""Chunks in flight at one time, like the requests of a producer."""
DONE = b"."


class Mover:
    """The three processes. Use in a `with`; `send` any number of times."""

    def __init__(self, folder: Path, chunk_bytes: int) -> None:
        assert FILE_BYTES % chunk_bytes == 0, chunk_bytes
        self._chunk_bytes = chunk_bytes
        context = multiprocessing.get_context("spawn")
        self._processes = []
        ports: list[int] = []
        for number, follow in enumerate(((), (), ports)):
            ours, theirs = context.Pipe()
            process = context.Process(
                target=_serve, args=(str(folder / str(number)), chunk_bytes, follow, theirs)
            )
            process.start()
            self._processes.append(process)
            ports.append(ours.recv())
        self._socket = _dial(ports[-1])

    def __enter__(self) -> Mover:
        return self

    def __exit__(self, *exc: object) -> None:
        self._socket.close()
        for process in reversed(self._processes):
            process.join(10)
            process.kill()

    def pids(self) -> list[int]:
        return [process.pid or 0 for process in self._processes]

    def send(self, megabytes: float) -> None:
        """Send `megabytes`; return when all are on two disks."""
        chunk = os.urandom(self._chunk_bytes)
        count = int(megabytes * 1_000_000) // self._chunk_bytes
        for number in range(count):
            if number >= WINDOW:
                _receive(self._socket, memoryview(bytearray(1)))
            self._socket.sendall(chunk)
        for _ in range(min(WINDOW, count)):
            _receive(self._socket, memoryview(bytearray(1)))


def _serve(path: str, chunk_bytes: int, follow: list[int], parent: Connection) -> None:
    """Run one process: move chunks from the dialer to the file and to the followers."""
    listener = socket.create_server((HOST, 0))
    followers = [_dial(port) for port in follow]
    file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    for position in range(0, FILE_BYTES, 1_000_000):
        os.pwrite(file, bytes(1_000_000), position)
    os.fsync(file)
    parent.send(listener.getsockname()[1])
    source, _ = listener.accept()
    needed = 1 + len(followers) // 2
    acknowledge = _counted(needed, lambda: source.sendall(DONE))
    outlets = [_outlet(lambda chunk: _write(file, chunk), acknowledge)]
    for follower in followers:
        outlets.append(_outlet(follower.sendall, lambda: None))
        threading.Thread(target=_await, args=(follower, acknowledge), daemon=True).start()
    # Twice the chunks in flight, each reused when all outlets are done with it.
    buffers = [memoryview(bytearray(chunk_bytes)) for _ in range(2 * WINDOW)]
    turn = 0
    while _receive(source, buffers[turn]):
        crc32c(buffers[turn])
        for outlet in outlets:
            outlet.put(buffers[turn])
        turn = (turn + 1) % len(buffers)


def _outlet(
    take: Callable[[memoryview], object], done: Callable[[], None]
) -> SimpleQueue[memoryview]:
    """Return a queue whose chunks a thread of its own takes one after another."""
    queue: SimpleQueue[memoryview] = SimpleQueue()

    def run() -> None:
        while True:
            take(queue.get())
            done()

    threading.Thread(target=run, daemon=True).start()
    return queue


_positions: dict[int, int] = {}


def _write(file: int, chunk: memoryview) -> None:
    position = _positions.get(file, 0)
    os.pwritev(file, [chunk], position, os.RWF_DSYNC)
    _positions[file] = (position + len(chunk)) % FILE_BYTES


def _counted(needed: int, act: Callable[[], None]) -> Callable[[], None]:
    """Return a function that each party calls once for each chunk, in the chunks' order.

    It calls `act` whenever the next chunk has enough calls.
    """
    lock = threading.Lock()
    calls: dict[int, int] = {}
    at: dict[int, int] = {}

    def call() -> None:
        me = threading.get_ident()
        with lock:
            chunk = at[me] = at.get(me, -1) + 1
            calls[chunk] = calls.get(chunk, 0) + 1
            if calls[chunk] == needed:
                act()

    return call


def _await(follower: socket.socket, done: Callable[[], None]) -> None:
    one = memoryview(bytearray(1))
    while _receive(follower, one):
        done()


def _receive(source: socket.socket, into: memoryview) -> bool:
    """Fill `into`. Return False if the other end is gone."""
    filled = 0
    while filled < len(into):
        try:
            got = source.recv_into(into[filled:])
        except ConnectionError:
            return False
        if not got:
            return False
        filled += got
    return True


def _dial(port: int) -> socket.socket:
    made = socket.create_connection((HOST, port))
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return made
