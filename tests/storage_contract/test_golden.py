"""Directories written by earlier versions are read and continued."""

import json
import random
import shutil

import pytest

from segments.api import HardState, StorageError, StoredEntry, UnknownFormat
from segments.directory import format_note
from segments.directory.format_note import FORM_CLEARS, FORM_VOTES, read_form
from segments.format.block import BLOCK_MAGIC, KINDS, PAGE_BYTES, RECORD_BYTES, decode_block
from segments.io.fs import RealFileSystem
from segments.tool import Directory, verify
from tests.storage_contract.golden_files import FOLDER, OPTIONS, open_copy, shown

NAMES = sorted(path.name.removesuffix(".tar.xz") for path in FOLDER.glob("*.tar.xz"))
MAGICS = {".log": b"VDLSEG01", ".index": b"VDLIDX01"}
BY_VERSION = {
    "v1": {".journal": b"VDLJRNL1", "identity": b"VDLIDNT1"},
    "v2": {".journal": b"VDLJRNL2", "identity": b"VDLIDNT1"},
    "v3": {
        ".journal": b"VDLJRNL2",
        "identity": b"VDLIDNT2",
        "format": b"VDLFORM1",
        "compaction": b"VDLCMP01",
    },
}
BY_VERSION["v4"] = BY_VERSION["v3"] | {"identity": b"VDLIDNT3"}
"""Magics by archive name: the earlier formats that are still read."""


def test_golden_directories_are_there():
    """An empty list of names would test nothing."""
    versions = ("v1", "v2", "v3", "v4")
    assert {f"{v}-{end}" for v in versions for end in ("clean", "killed")} <= set(NAMES)


def test_newest_golden_directory_has_every_kind_of_record(tmp_path):
    """The newest directory has every kind of record.

    Otherwise a later version could lose the support for one.
    """
    harness = open_copy("v4-killed", tmp_path)
    found = set()
    for path in (tmp_path / "data" / "journal").glob("*.journal"):
        data = path.read_bytes()
        for at in range(0, len(data), PAGE_BYTES):
            kept = decode_block(data[at:], at) if data.startswith(BLOCK_MAGIC, at) else None
            if kept is not None:
                found |= set(kept.table[8::RECORD_BYTES])
    assert found == KINDS
    assert read_form(RealFileSystem(), harness.directory) == FORM_VOTES


def test_form_of_moved_votes_stays_and_keeps_earlier_versions_away(tmp_path, monkeypatch):
    """They would create the coordinator that was deleted here again (segments/FORMAT.md)."""
    harness = open_copy("v4-clean", tmp_path)
    with monkeypatch.context() as earlier:
        earlier.setattr(format_note, "FORM", FORM_CLEARS)
        with pytest.raises(UnknownFormat, match="requires format 3"):
            harness.start()
    harness.start()
    assert 1 not in {log.group_id for log in harness.store.logs.values()}
    assert read_form(RealFileSystem(), harness.directory) == FORM_VOTES
    harness.crash()


@pytest.mark.parametrize("name", NAMES)
def test_directory_of_an_earlier_version_shows_what_it_showed(name, tmp_path):
    """Every log, entry, term, vote, applied item and installed state is there.

    The store continues from it.
    """
    expected = json.loads((FOLDER / f"{name}.json").read_text())
    harness = open_copy(name, tmp_path)
    harness.start()
    for _ in range(2):
        assert shown(harness) == expected
        harness.reopen()
    rng = random.Random(name)
    for log in harness.store.logs.values():
        hard, last = log.hard_state, log.last_index
        for index in range(last + 1, last + 60):
            data = rng.randbytes(300)
            harness.store.append(
                log, [StoredEntry(hard.term, index, 0, data, log.next_offset, 1, 5)]
            )
        harness.store.set_hard_state(log, HardState(hard.term, hard.vote, last + 40))
    harness.submit()
    harness.checkpoint()
    before = shown(harness)
    harness.reopen()
    assert shown(harness) == before
    assert harness.fatal == []
    harness.crash()


@pytest.mark.parametrize("name", NAMES)
def test_golden_directory_is_whole_offline_and_each_file_names_its_version(name, tmp_path):
    """Offline tools agree; a magic of another version is refused."""
    harness = open_copy(name, tmp_path)
    with Directory(RealFileSystem(), harness.directory, OPTIONS.index_segment_entries) as found:
        reports, differences = verify([found])
    assert [report.problems for report in reports] == [[]] * len(reports)
    assert differences == []
    seen = set()
    magics = MAGICS | BY_VERSION[name.partition("-")[0]]
    data = tmp_path / "data"
    for path in sorted(data.rglob("*")):
        kind = path.suffix or path.name
        if path.is_file() and kind in magics:
            magic = path.read_bytes()[:8]
            assert magic in {magics[kind], bytes(8)}, path  # zeros: a file not used yet
            seen.add(magic)
    assert set(magics.values()) <= seen
    identity = data / "identity"
    identity.write_bytes(identity.read_bytes().replace(magics["identity"], b"VDLIDNT9"))
    with pytest.raises(StorageError, match="identity"):
        harness.start()
    shutil.rmtree(data)
