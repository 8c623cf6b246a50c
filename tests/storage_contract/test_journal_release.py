"""Journal files are released once a block behind the notes says that these are durable.

The last block may be damaged undetectably: a start then treats it as if it had never been written.
"""

from dataclasses import replace

from segments.api import HardState
from segments.format.block import PAGE_BYTES
from tests.storage_contract.conftest import SMALL, SimHarness, Writer, put
from vdl.sim.damage import _blocks, _files

RARE = replace(
    SMALL,
    checkpoint_bytes=1 << 30,
    checkpoint_entries=1 << 30,
    checkpoint_interval_ms=1 << 30,
    cache_bytes_max=1 << 20,
)
"""Options under which checkpoints run only on request."""


def journal_sequences(engine):
    return [header.sequence for _, header in _files(engine.disk)]


def noted(writer):
    """Return an engine with several files of entries, noted as flushed in the last block."""
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


def filled(engine, log, blocks):
    """Fill a disk until the journal's file has space for `blocks` blocks of a page.

    No other file is ready; several files before it hold entries.
    """
    journal = engine.store._journal
    for _ in range(20):
        put(engine, log, Writer, 10, size=300)
    engine.workers.advance(1000)
    engine.disk.room = 0
    while journal.allocation.prepared or _room_left(journal) != blocks * PAGE_BYTES:
        vote(engine, log)
        engine.pump()
    assert len(journal_sequences(engine)) >= 3
    # A checkpoint's writes have space, and the next file has none.
    engine.disk.room = 200 << 10
    engine.store.checkpoint()
    engine.pump()
    engine.disk.room = 0
    engine.submit()
    assert log.flushed_index == log.last_index
    assert engine.store._checkpoints._awaiting_proof[0]
    return journal


def _room_left(journal):
    return journal._current.capacity - journal._current.position


def vote(engine, log):
    hard = log.hard_state
    engine.store.set_hard_state(log, HardState(hard.term + 1, 0, hard.commit))
    return engine.store.submit()


def test_files_go_while_a_batch_waits_that_is_to_stand_for_them():
    """The block that proves their release is behind the batch, and the next file is being made."""
    engine = SimHarness(RARE)
    engine.start()
    log = engine.new_log()
    journal = filled(engine, log, 2)
    vote(engine, log)
    token = vote(engine, log)
    engine.pump()
    assert engine.acknowledged == token
    assert journal.chain.replaced
    assert sorted(journal.chain.paths) == [*journal.chain.replaced, journal.current_sequence]
    for _ in range(2):
        engine.power_cut()
        engine.start()
        assert engine.log.hard_state == log.hard_state
        assert len(engine.all_entries(engine.log)) == 200


def test_no_file_waits_for_a_proof_that_waits_for_its_room():
    """The notes fill the last file, and others have taken the reserve's space."""
    engine = SimHarness(RARE)
    engine.start()
    log = engine.new_log()
    journal = filled(engine, log, 1)
    assert not _room_left(journal)
    journal.allocation.files.reserve.free(8)
    journal.allocation.pieces_left = 0
    engine.disk.returns_room = True
    token = vote(engine, log)
    engine.workers.advance(5000)
    assert engine.acknowledged == token
    assert engine.fatal == []
