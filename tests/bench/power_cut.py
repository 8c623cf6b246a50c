"""Time of a start after a power cut, when many logs have a half-full newest segment.

    python -m tests.bench.power_cut --logs 1000

Fills logs of a store in a directory of its own, all of them in turn, and ends without a close. Then
it removes from each log the largest number of Idx that a power cut may lose: those that no flush
has synced. A start rebuilds them from frames. Prints wall and CPU time of the start, with nothing
in the page cache, and the bytes it read. Not a test: machines differ.
"""

from __future__ import annotations

import argparse
import os
import random
import tempfile
import time
from pathlib import Path

from ids import GroupId, Index, NodeId, Offset, ReplicaNumber, Term
from segments.api import HardState, StoredEntry, StoreOptions
from segments.checkpoint.flusher import INDEX_SYNC_BYTES, INDEX_SYNC_ENTRIES
from segments.format.frame import FRAME_BYTES
from segments.io.fs import RealFileSystem
from segments.io.inline_workers import InlineWorkers
from segments.log.index import place
from segments.log.log import DiskLog
from segments.store import DiskStore
from tests.bench.page_cache import forget

ENTRIES_AT_ONCE = 256


def opened(directory: Path) -> tuple[DiskStore, InlineWorkers]:
    workers = InlineWorkers()
    options = StoreOptions(scrub_bytes_per_second=0)
    store = DiskStore.open(
        RealFileSystem(), str(directory), workers, options, random.Random(1),
        now_ns=time.monotonic_ns,
    )  # fmt: skip
    return store, workers


def fill(directory: Path, logs: int, log_bytes: int, entry_bytes: int) -> None:
    """Create the logs, and write `log_bytes` to each."""
    store, workers = opened(directory)
    for number in range(logs):
        store.create_log(GroupId(9 + number), ReplicaNumber(1), on_created=lambda _: None)
    workers.pump()
    data = random.Random(1).randbytes(entry_bytes)
    for last in range(ENTRIES_AT_ONCE, log_bytes // entry_bytes + ENTRIES_AT_ONCE, ENTRIES_AT_ONCE):
        for log in list(store.logs.values()):
            entries = [
                StoredEntry(Term(1), Index(n), 0, data, Offset(n - 1), 1, n)
                for n in range(log.last_index + 1, last + 1)
            ]
            store.append(log, entries)
            store.set_hard_state(log, HardState(Term(1), NodeId(0), Index(last)))
            if store.unflushed_bytes > 32 << 20:
                _flush(store, workers)
        _flush(store, workers)
    store.abandon()


def _flush(store: DiskStore, workers: InlineWorkers) -> None:
    store.submit()
    workers.pump()
    store.checkpoint()
    workers.advance(20)


def cut_power(directory: Path, entry_bytes: int) -> int:
    """Remove the Idx that no flush has synced; return their number for one log."""
    store, _ = opened(directory)
    logs = [log for log in store.logs.values() if isinstance(log, DiskLog)]
    store.abandon()
    count = min(INDEX_SYNC_ENTRIES, INDEX_SYNC_BYTES // (FRAME_BYTES + entry_bytes))
    for log in logs:
        number, position = place(log.flushed_index + 1 - count, log.files.index_entries)
        os.truncate(log.files.index_path(number), position)
        later = Path(log.files.index_path(number + 1))
        later.unlink(missing_ok=True)
    return count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--logs", type=int, default=1_000)
    parser.add_argument("--log-mib", type=float, default=2.0)
    parser.add_argument("--entry-bytes", type=int, default=1_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="vdl-power-cut-") as folder:
        directory = Path(folder) / "data"
        fill(directory, options.logs, int(options.log_mib * (1 << 20)), options.entry_bytes)
        count = cut_power(directory, options.entry_bytes)
        os.sync()
        forget(directory)
        read, wall, cpu = _read_bytes(), time.perf_counter(), time.process_time()
        store, _ = opened(directory)
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        lost = sum(log.lost for log in store.logs.values())
        flushed = sum(log.last_index for log in store.logs.values())
        print(
            f"{options.logs} logs of {options.log_mib} MiB, {flushed} entries, {count} Idx of each "
            f"taken, {lost} lost: {wall:.1f} s, {cpu:.1f} s CPU, "
            f"{(_read_bytes() - read) / 1e6:.0f} MB read"
        )
        store.abandon()


def _read_bytes() -> int:
    """Return the bytes that this process read from files, in the page cache or not."""
    lines = Path("/proc/self/io").read_text(encoding="ascii").splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("rchar")))


if __name__ == "__main__":
    main()
