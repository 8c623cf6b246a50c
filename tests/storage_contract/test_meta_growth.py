"""Applied state that outgrows its map needs no action, and nothing is refused."""

import random
from dataclasses import replace

from segments.api import MetaBatch, StoreOptions
from segments.io.fs import RealFileSystem
from tests.storage_contract.conftest import DiskHarness, put

OPTIONS = replace(
    StoreOptions(),
    journal_file_bytes=1 << 20,
    journal_first_file_bytes=64 << 10,
    meta_map_bytes=1 << 20,
    scrub_bytes_per_second=0,
)
STEP = 4_000


def key(n):
    return b"p%012d" % (n * 2654435761 % (1 << 40))


def store_items(engine, writer, changes):
    put(engine, engine.log, writer, 1)
    engine.collect(MetaBatch(engine.log.log_id, engine.log.commit_index, changes))
    engine.checkpoint()
    assert not engine.store.disk_full
    assert engine.store.accepts_appends


def test_state_that_outgrows_its_map_is_stored_deleted_and_found_again(tmp_path, writer):
    engine = DiskHarness(OPTIONS, directory=str(tmp_path / "data"))
    engine.start()
    engine.new_log()
    for first in range(0, 10 * STEP, STEP):
        changes = [(key(n), random.Random(n).randbytes(60)) for n in range(first, first + STEP)]
        store_items(engine, writer, changes)
    numbers = engine.store.stats()
    assert numbers["meta_used_bytes"] > 3 * OPTIONS.meta_map_bytes
    assert numbers["meta_used_bytes"] <= numbers["meta_file_bytes"] <= numbers["meta_map_bytes"]
    engine.reopen()
    _, items = engine.store.load_meta(engine.log)
    assert len(items) == 10 * STEP
    for first in range(0, 9 * STEP, STEP):
        store_items(engine, writer, [(key(n), None) for n in range(first, first + STEP)])
    assert engine.store.stats()["meta_used_bytes"] < numbers["meta_used_bytes"] // 2
    _, items = engine.store.load_meta(engine.log)
    assert len(items) == STEP
    engine.close()
    assert engine.fatal == []
    assert RealFileSystem().exists(f"{engine.directory}/meta/data.mdb")
