"""Server variants with a part removed: that part, and nothing else, is missing on disk."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from segments.api import HardState, Log, StoredEntry, StoreOptions
from segments.io.fs import RealFileSystem
from segments.io.inline_workers import InlineWorkers
from segments.store import DiskStore
from tests.bench.variants import OPENED, VARIANTS

OPTIONS = StoreOptions(
    journal_file_bytes=1 << 20, journal_first_file_bytes=1 << 20, segment_bytes=64 << 10,
    checkpoint_bytes=256 << 10, meta_map_bytes=1 << 20,
)  # fmt: skip
ENTRY_BYTES = 10_000
COUNT = 100


def payload(index: int) -> bytes:
    return random.Random(index).randbytes(ENTRY_BYTES)


def run(directory: Path) -> DiskStore:
    """Return a store with a hundred entries, appended each after the previous acknowledgement."""
    workers = InlineWorkers()
    store = DiskStore.open(RealFileSystem(), str(directory), workers, OPTIONS, random.Random(1))
    logs: list[Log] = []
    store.create_log(9, 1, on_created=logs.append)
    workers.pump()
    (log,) = logs
    for index in range(1, COUNT + 1):
        store.append(log, [StoredEntry(1, index, 0, payload(index), index - 1, 1, index)])
        token = store.submit()
        workers.pump()
        assert store.durable_token >= token, "not acknowledged"
        store.set_hard_state(log, HardState(1, 1, index))
    store.checkpoint()
    workers.advance(1_000)
    return store


def held(directory: Path, pattern: str) -> int:
    """Return the number of entries whose bytes are in some file of the pattern."""
    data = b"".join(path.read_bytes() for path in sorted(directory.glob(pattern)))
    return sum(payload(index) in data for index in range(1, COUNT + 1))


@pytest.mark.parametrize(
    ("variant", "in_journal", "in_segments"),
    [("as_it_is", True, True), ("journal_only", True, False), ("segments_only", False, True)],
)
def test_store_of_variant_writes_what_it_says(
    variant: str,
    in_journal: bool,
    in_segments: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A variant acknowledges everything, records flushes, and has its bytes where they belong."""
    for change in VARIANTS[variant]:
        monkeypatch.setattr(change.owner, change.name, change.value)
    store = run(tmp_path)
    assert store.stats()["checkpoints"] >= 2
    assert store.unflushed_bytes == 0
    store.abandon()
    # Unneeded journal files are recycled: some are overwritten.
    assert bool(held(tmp_path, "journal/*")) is in_journal
    assert held(tmp_path, "logs/*/*.log") == (COUNT if in_segments else 0)


def test_store_of_timed_variant_says_what_opening_took(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The line that the recovery measurement parses, and a working store."""
    for change in VARIANTS["timed"]:
        monkeypatch.setattr(change.owner, change.name, change.value)
    run(tmp_path).abandon()
    assert capsys.readouterr().err.startswith(f"{OPENED} seconds=")
