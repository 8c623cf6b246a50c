"""A flush is written in rate-limited steps, and counts only when all of it is on disk."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from segments.api import Buffer, HardState, SegmentLimits, StoredEntry
from segments.checkpoint.flusher import WRITE_BACK_BYTES, FlushPlan, FlushSpan, run_flush
from segments.io.fs import RealFile, RealFileSystem
from segments.log.segment import LogFiles
from segments.log.segment_header import Cursor
from tests.unit.segments.conftest import Bench

MIB = 1 << 20
Call = tuple[str, str, int, int]
"""Operation, file, start, end."""


class WatchedFile(RealFile):
    """A file that records the operations on it."""

    __slots__ = ("calls", "name")
    calls: list[Call]
    name: str

    def pwrite(self, buffers: Sequence[Buffer], position: int, *, durable: bool = False) -> int:
        written = super().pwrite(buffers, position, durable=durable)
        self.calls.append(("write", self.name, position, position + written))
        return written

    def write_back(self, length: int, position: int) -> None:
        self.calls.append(("back", self.name, position, position + length))
        super().write_back(length, position)

    def truncate(self, length: int) -> None:
        self.calls.append(("length", self.name, 0, length))
        super().truncate(length)

    def sync(self) -> None:
        self.calls.append(("sync", self.name, 0, 0))
        super().sync()


class WatchedFileSystem(RealFileSystem):
    __slots__ = ("calls",)

    def __init__(self) -> None:
        self.calls: list[Call] = []

    def open(self, path: str, *, create: bool = False) -> RealFile:
        real = super().open(path, create=create)
        file = WatchedFile(real._fd)
        real._fd = -1
        file.calls, file.name = self.calls, path.rpartition(".")[2]
        return file


def test_large_flush_is_written_back_step_by_step_and_synced_once(tmp_path: Path) -> None:
    """Each sync makes the file system commit its own journal; one at the end is sufficient."""
    fs = WatchedFileSystem()
    size = 300_000
    entries = [StoredEntry(1, index, 1, b"", index, 1, 0) for index in range(1, 21)]
    image = memoryview(bytes(size * len(entries)))
    spans = [
        FlushSpan(image, entries[:5], [n * size for n in range(1, 6)], 0),
        FlushSpan(image, entries[5:], [n * size for n in range(6, 21)], 5 * size),
    ]
    files = LogFiles(fs, str(tmp_path / "log"), 1, 9, 1024)
    plan = FlushPlan(
        files, 0, 1, 20, 20, len(image), Cursor(), spans, SegmentLimits(64 * MIB), 0, False
    )
    run_flush(plan)
    log = [call for call in fs.calls if call[1] == "log" and call[0] != "length"]
    assert [call for call in log if call[0] == "sync"] == [("sync", "log", 0, 0)]
    assert log[-1][0] == "sync"
    assert max(end - start for kind, _, start, end in log if kind == "write") <= WRITE_BACK_BYTES
    behind = at = 0
    for kind, _, start, end in log[:-1]:
        if kind == "write":
            behind += end - start
            assert behind < 2 * WRITE_BACK_BYTES
        else:
            assert start == at
            at = end
            behind -= end - start
    assert behind < WRITE_BACK_BYTES


def test_file_is_lengthened_once_for_all_that_a_flush_writes(tmp_path: Path) -> None:
    """A flush extends the file once, in large steps: the next small flush finds space."""
    fs = WatchedFileSystem()
    size = 300_000
    entries = [StoredEntry(1, index, 1, b"", index, 1, 0) for index in range(1, 22)]
    image = memoryview(bytes(size * len(entries)))
    spans = [
        FlushSpan(image, [entry], [entry.index * size], (entry.index - 1) * size)
        for entry in entries
    ]
    files = LogFiles(fs, str(tmp_path / "log"), 1, 9, 1024)
    limits = SegmentLimits(64 * MIB)
    plan = FlushPlan(
        files, 0, 1, 20, 20, 20 * size, Cursor(), spans[:20], limits, 0, False
    )  # fmt: skip
    cursor = run_flush(plan).cursor
    lengths = [end for kind, _, _, end in fs.calls if kind == "length"]
    assert len(lengths) == 1
    assert 21 * size < lengths[0] < 20 * size + 4 * MIB
    plan = FlushPlan(files, 0, 21, 21, 21, size, cursor, spans[20:], limits, 1, False)
    run_flush(plan)
    assert [end for kind, _, _, end in fs.calls if kind == "length"] == lengths


def test_what_waits_for_old_files_to_go_counts_as_to_be_flushed(bench: Bench) -> None:
    """Entries that wait for old files to be removed count as flushable.

    Otherwise the limit on what a catching-up replica may hold would allow all the space there is.
    """
    (log,) = bench.create()
    store = bench.store
    for _ in range(300):
        bench.append(log, 1, size=7_900)
    bench.checkpoint()
    bench.idle()
    first, offset = log.last_index + 1_000, log.next_offset + 1_000
    store.reset_log(log, first_index=first, prev_term=1, next_offset=offset)
    store.submit()
    bench.workers.pump()
    assert log.flush_blocked
    store.append(log, [StoredEntry(1, first, 0, bytes(5_000), offset, 1, 5)])
    store.set_hard_state(log, HardState(1, 1, first))
    store.submit()
    bench.workers.pump()
    assert store.flushable_bytes == store.unflushed_bytes > 5_000
