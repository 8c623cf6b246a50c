"""Deliberate waste, one function each, which the cost check must detect.

Each changes the code of the counting process, and nothing else. Planted code works for the server
that calls it, so it counts as the server's.

Does not depend on how cost is counted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from segments.api import Buffer
from vdl.kafka.connections import frontend
from vdl.kafka.handlers import produce
from vdl.logstream.group.log_stream import LogStream
from vdl.records import batch as records
from vdl.sim.filesystem import SimFile

CALLS_PER_APPEND = 10


def copied_batch() -> None:
    """Copy each batch once more before it is checked."""
    check_batch = produce.check_batch

    def check_copy(batch: memoryview | None, **options: Any) -> records.BatchHeader:
        return check_batch(memoryview(bytearray(batch or b"")), **options)

    produce.check_batch = check_copy


def walked_records() -> None:
    """Walk each batch record by record."""
    append = LogStream.append

    def walk_and_append(
        stream: LogStream, batch: memoryview, *arguments: Any, **options: Any
    ) -> None:
        assert all(record.value is not None for record in records.iter_records(batch))
        append(stream, batch, *arguments, **options)

    LogStream.append = walk_and_append


def idle_calls() -> None:
    """Make a few more calls with each append: just above the tolerance."""
    append = LogStream.append

    def nothing() -> None:
        """Do nothing."""

    def call_and_append(stream: LogStream, *arguments: Any, **options: Any) -> None:
        for _ in range(CALLS_PER_APPEND - 1):
            nothing()
        append(stream, *arguments, **options)

    LogStream.append = call_and_append


def synced_twice() -> None:
    """Follow each journal block with a sync of its own."""
    pwrite = SimFile.pwrite

    def write_and_sync(
        file: SimFile, buffers: Sequence[Buffer], position: int, *, durable: bool = False
    ) -> int:
        written = pwrite(file, buffers, position, durable=durable)
        if durable:
            file.sync()
        return written

    SimFile.pwrite = write_and_sync


def answers_in_pieces() -> None:
    """Send an answer's buffers one by one instead of gathering them."""
    accept = frontend.Frontend.accept

    class Pieces:
        """A transport that gets each buffer separately."""

        def __init__(self, transport: Any) -> None:
            self._transport = transport

        def __getattr__(self, name: str) -> Any:
            return getattr(self._transport, name)

        def send(self, buffers: Sequence[Buffer]) -> Sequence[Buffer]:
            for position, buffer in enumerate(buffers):
                rest = self._transport.send([buffer])
                if rest:
                    return [*rest, *buffers[position + 1 :]]
            return ()

    def accept_in_pieces(front: Any, transport: Any, *arguments: Any) -> Any:
        return accept(front, Pieces(transport), *arguments)

    frontend.Frontend.accept = accept_in_pieces


def cycles() -> None:
    """Leave an object that refers to itself with each append."""
    append = LogStream.append

    def append_in_circles(stream: LogStream, *arguments: Any, **options: Any) -> None:
        circle: list[object] = []
        circle.append(circle)
        append(stream, *arguments, **options)

    LogStream.append = append_in_circles


PLANTS: dict[str, Callable[[], None]] = {
    "copied-batch": copied_batch,
    "walked-records": walked_records,
    "idle-calls": idle_calls,
    "synced-twice": synced_twice,
    "answers-in-pieces": answers_in_pieces,
    "cycles": cycles,
}
