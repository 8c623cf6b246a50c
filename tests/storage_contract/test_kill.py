"""A real process is killed: what it reported durable is there, identical."""

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

from segments.api import StoreOptions
from segments.io.fs import RealFileSystem
from segments.io.inline_workers import InlineWorkers
from segments.store import DiskStore

ROOT = Path(__file__).resolve().parents[2]
CHILD = Path(__file__).with_name("append_forever.py")
OPTIONS = StoreOptions(
    journal_file_bytes=256 << 10,
    journal_first_file_bytes=64 << 10,
    segment_bytes=64 << 10,
    index_segment_entries=128,
    cache_bytes_max=256 << 10,
    checkpoint_bytes=128 << 10,
    meta_map_bytes=1 << 22,
)
LIVES = 6


def test_store_after_kill_has_every_acknowledged_entry(tmp_path):
    """kill -9 at any point under an append loop loses no acknowledged entry.

    Acknowledged entries are identical, and behind them is a clean prefix of what was staged.
    """
    directory = tmp_path / "data"
    rng = random.Random(5)
    acknowledged = 0
    for _ in range(LIVES):
        wanted = acknowledged + rng.randint(50, 400)
        child = subprocess.Popen(
            [sys.executable, str(CHILD), str(directory)],
            stdout=subprocess.PIPE,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            text=True,
        )
        try:
            for line in child.stdout:
                acknowledged = int(line)
                if acknowledged >= wanted:
                    break
        finally:
            os.kill(child.pid, signal.SIGKILL)
            rest, _ = child.communicate(timeout=30)
        for line in rest.splitlines():
            if line.isdigit() and len(line) == 12:  # the last one may be cut
                acknowledged = int(line)
        check(directory, acknowledged)


def check(directory, acknowledged):
    workers = InlineWorkers()
    store = DiskStore.open(RealFileSystem(), str(directory), workers, OPTIONS, random.Random(1))
    (log,) = store.logs.values()
    assert not log.lost
    assert log.last_index >= acknowledged
    index = log.first_index
    while index <= log.last_index:
        found = []
        if log.tail.first and index >= log.tail.first:
            found.append(list(log.entries(index, log.last_index + 1, 1 << 20)))
        else:
            store.entries_cold(log, index, log.last_index + 1, 1 << 20, found.append)
            workers.pump()
        for entry in found[0]:
            assert entry.index == index
            assert bytes(entry.data) == f"{index}:".encode() * (index % 300)
            index += 1
    store.abandon()
