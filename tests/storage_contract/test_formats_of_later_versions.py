"""Files of a later version are refused with a readable error, and nothing of them is changed."""

import errno

import pytest

from segments.api import CorruptRecord, UnknownFormat
from segments.directory.format_note import FORM, FORM_CLEARS, read_form, write_form
from segments.format import block
from segments.format.block import CLEAR, KINDS, STATE_RECORD, TRIM
from segments.io.fs import RealFileSystem
from segments.tool import Directory
from tests.storage_contract.conftest import SMALL, SimHarness, make, put
from vdl.sim.filesystem import SimFileSystem


def tree(path):
    """Return all files and their contents, except the lock."""
    return {
        found.relative_to(path): found.read_bytes()
        for found in sorted(path.rglob("*"))
        if found.is_file() and "lock" not in found.name
    }


@pytest.fixture
def engine(tmp_path, writer):
    engine = make("disk", tmp_path)
    put(engine, engine.new_log(), writer, 20)
    engine.checkpoint()
    return engine


def test_directory_says_its_form_before_the_journal_uses_it(engine, tmp_path):
    assert read_form(RealFileSystem(), engine.directory) == FORM_CLEARS
    (tmp_path / "data" / "format").unlink()
    assert read_form(RealFileSystem(), engine.directory) == 1
    engine.reopen()
    assert read_form(RealFileSystem(), engine.directory) == FORM_CLEARS
    engine.crash()


def test_later_form_is_refused(engine, tmp_path):
    engine.close()
    write_form(RealFileSystem(), engine.directory, FORM + 1)
    before = tree(tmp_path / "data")
    with pytest.raises(
        UnknownFormat, match=f"format {FORM + 1}, but this version supports formats up to {FORM}"
    ):
        engine.start()
    assert tree(tmp_path / "data") == before
    with pytest.raises(UnknownFormat):
        Directory(RealFileSystem(), engine.directory)


@pytest.mark.parametrize("with_lock", [True, False])
def test_later_form_is_told_from_damage_whatever_else_is_new(engine, tmp_path, with_lock):
    """A later format is refused as such, and is not taken for damage.

    To this version the identity looks damaged, the meta missing and the journal empty.
    """
    engine.close()
    data = tmp_path / "data"
    write_form(RealFileSystem(), engine.directory, FORM + 1)
    whole = (data / "identity").read_bytes()
    (data / "identity").write_bytes(whole.replace(b"VDLIDNT3", b"VDLIDNT4"))
    (data / "meta").rename(data / "meta2")
    if not with_lock:
        (data / "lock").unlink()
    before = tree(data)
    with pytest.raises(UnknownFormat):
        engine.start()
    assert tree(data) == before


def test_record_of_an_unknown_kind_is_refused(engine, tmp_path):
    """The block is good: skipping the record would ignore what it says."""
    later = max(KINDS) + 1
    log = engine.log
    batch = engine.store._queue.batch
    log.touch(batch)
    log.stage_state(batch, later, 0, log.last_index, 0)
    engine.submit()
    engine.close()
    before = tree(tmp_path / "data")
    with pytest.raises(UnknownFormat, match=f"record of the unknown kind {later}"):
        engine.start()
    assert tree(tmp_path / "data") == before
    with pytest.raises(UnknownFormat):
        Directory(RealFileSystem(), engine.directory)


def test_one_half_of_the_note_is_enough(engine, tmp_path):
    path = tmp_path / "data" / "format"
    whole = path.read_bytes()
    for at in (0, 9, 12, 4_096, 4_096 + 15):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        assert read_form(RealFileSystem(), engine.directory) == FORM_CLEARS
    path.write_bytes(bytes(len(whole)))
    with pytest.raises(CorruptRecord, match="format"):
        read_form(RealFileSystem(), engine.directory)
    engine.crash()


def test_life_whose_form_could_not_be_written_clears_nothing(writer, monkeypatch):
    """A run that could not write its format note trims as earlier versions do.

    The next run writes the note.
    """
    engine = SimHarness(SMALL)
    real = SimFileSystem.rename

    def refused(fs, old, new):
        if new.endswith("/format"):
            raise OSError(errno.ENOSPC, "no room")
        real(fs, old, new)

    with monkeypatch.context() as patch:
        patch.setattr(SimFileSystem, "rename", refused)
        engine.start()
    log = engine.new_log()
    for kind in (TRIM, CLEAR):
        put(engine, log, writer, 30)
        engine.checkpoint()
        engine.store.trim_log(log, first_index=log.commit_index + 1)
        table = b"".join(engine.store._queue.batch.records)
        found = [row[2] for row in STATE_RECORD.iter_unpack(table)]
        assert kind in found
        assert {TRIM: CLEAR, CLEAR: TRIM}[kind] not in found
        engine.submit()
        engine.workers.advance(2_000)
        log = engine.reopen()
    assert engine.fatal == []
    engine.crash()


def test_kinds_are_all_that_the_engine_writes():
    named = {name: value for name, value in vars(block).items() if name in KIND_NAMES}
    assert set(named.values()) == KINDS


KIND_NAMES = (
    "ENTRY", "HARD", "TRUNCATE", "RESET", "FLUSHED", "TRIM", "INSTALL", "STATE", "PLACE", "DETAIL",
    "PLACED", "CLEAR",
)  # fmt: skip
