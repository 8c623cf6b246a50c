"""Journal files go when a block behind the notes says that these are durable, and not before.

The last block of all may be damaged without a trace: then a start counts as if it had never been.
"""

from dataclasses import replace

from tests.storage_contract.conftest import SMALL, SimHarness, put
from vdl.sim.damage import _blocks, _files

RARE = replace(
    SMALL,
    checkpoint_bytes=1 << 30,
    checkpoint_entries=1 << 30,
    checkpoint_interval_ms=1 << 30,
    cache_bytes_max=1 << 20,
)
"""Checkpoints come when they are called."""


def journal_sequences(engine):
    return [header.sequence for _, header in _files(engine.disk)]


def noted(writer):
    """Several files of entries, and in the last block of all the note that they are flushed."""
    engine = SimHarness(RARE)
    engine.start()
    log = engine.new_log()
    for _ in range(40):
        put(engine, log, writer, 10, size=300)
    engine.store.checkpoint()
    engine.pump()
    put(engine, log, writer, 1)
    assert log.flushed_index == log.last_index - 1
    return engine


def test_files_stay_as_long_as_nothing_proves_that_they_can_go(writer):
    engine = noted(writer)
    before = journal_sequences(engine)
    assert len(before) >= 3
    engine.workers.advance(200)  # an idle block
    assert journal_sequences(engine)[0] > before[0]


def test_start_goes_on_without_the_note_in_a_damaged_last_block(writer):
    engine = noted(writer)
    last = engine.log.last_index
    inode, header = _files(engine.disk)[-1]
    block = list(_blocks(inode, header))[-1]
    inode.data[block.position + 9] ^= 1
    inode.durable[block.position + 9] ^= 1
    engine.power_cut()
    engine.start()
    assert not engine.log.lost
    assert engine.log.last_index == last - 1, "the entry in that block is gone, as any torn one"
    assert len(engine.all_entries(engine.log)) == last - 1
