"""Indexes or windows that point behind the requested offset, which would skip records."""

import pytest

from segments.log import cold_reads as cold
from segments.log.index import IDX_BYTES, IndexDamaged, pack_idx, place
from tests.storage_contract.conftest import SMALL, DiskHarness, put


@pytest.fixture
def harness(tmp_path, writer):
    """Yield 120 entries of one record each, all in segments and none of them in memory."""
    made = DiskHarness(SMALL, directory=str(tmp_path / "data"))
    made.start()
    log = made.new_log()
    put(made, log, writer, 120, size=400)
    made.pump()
    made.checkpoint()
    assert log.flushed_index == 120
    yield made
    assert made.fatal == []
    made.close()


def test_index_that_leads_behind_the_offset_is_damage(harness):
    """An index that points behind the offset is reported as damage.

    Where it is intact, rebuilding does not help.
    """
    log = harness.log
    look = cold.read(log, 10, 120, 1 << 20, 12, 0)
    with pytest.raises(IndexDamaged, match="base offset"):
        look()
    (first, *_) = cold.read(log, 10, 120, 1 << 20, 11, 0)().entries
    assert first.base_offset == 10


def write_idx(files, index, **changes):
    """Write a wrong row whose check passes, as a flipped bit produces once in 65,536 times."""
    idx = files.idx(index)._replace(**changes)
    row = bytearray(IDX_BYTES)
    pack_idx(row, 0, files.log_id, index, *idx)
    number, position = place(index, files.index_entries)
    file = files.open_index(number, index)
    file.pwrite([row], position)
    file.close()


def test_search_that_wrong_offsets_lead_astray_is_noticed(harness):
    """The entry found is checked, and the index is rebuilt from the frames."""
    log, files = harness.log, harness.log.files
    for index in range(40, 48):
        write_idx(files, index, base_offset=index - 5)
    for offset in range(30, 60):
        slices = harness.cold(harness.store.read_cold, log, offset, 120, 400)
        assert slices.first_offset == offset
    assert files.idx(40).base_offset == 39


@pytest.mark.parametrize(
    "changes", [{"term": 9}, {"base_offset": 7}, {"records": 3}, {"kind": 2}, {"max_timestamp": 5}]
)
def test_idx_that_passes_its_check_must_say_what_its_frame_says(harness, changes):
    """Reads and the scrubber compare them; the frame is right."""
    log, files = harness.log, harness.log.files
    for read in (
        lambda: harness.cold(harness.store.entries_cold, log, 40, 41, 0),
        lambda: files.healing(log.segments, 121, lambda: files.check(40, 50, 1 << 20)),
    ):
        before = files.idx(40)
        write_idx(files, 40, **changes)
        assert files.idx(40) != before
        read()
        assert files.idx(40) == before


def test_window_that_begins_behind_the_offset_is_not_served(harness):
    """The index entry that it names is not used either."""
    log, store = harness.log, harness.store
    found = cold.read(log, 10, 120, 2_000, 0, 1 << 16)()
    found.index += 2
    del found.entries[:2]
    key = log.id, log.generation, "offset", 10
    store._reader.read_ahead.keep(key, found)
    slices = harness.cold(store.read_cold, log, 10, 120, 400)
    assert slices.first_offset == 10
    assert store.stats()["read_ahead_hits"] == 0
