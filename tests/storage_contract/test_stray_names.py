"""Foreign names in any folder of a data directory are kept and reported."""

from pathlib import Path

import pytest

from tests.storage_contract.conftest import make, put

FOLDERS = ("", "journal", "logs", "logs/00000001", "deleted", "reserve")
FILES = (
    "notes.txt", "x.journal", "1.log.bak", "0000000001.log.bak", "lost+found", "00000000000000ff",
    "0000000000000001.journal.orig", "log", "9999999999.txt", "ABCDEF01", "10.index",
)  # fmt: skip
DIRECTORIES = ("backup", "old.log", "00ffff00", "0000000000000077.journal", "0000000099.index")


@pytest.fixture
def lived(tmp_path, writer):
    """Return a stopped directory that has all of its folders."""
    harness = make("disk", tmp_path)
    log = harness.new_log(9)
    put(harness, log, writer, 120, size=400)
    harness.checkpoint()
    gone = harness.new_log(10)
    put(harness, gone, writer, 10)
    harness.store.delete_log(gone.log_id)
    harness.pump()
    harness.crash()
    yield harness
    harness.crash()


def strew(harness):
    """Create foreign names in every folder; return their paths."""
    root = Path(harness.directory)
    made = []
    for folder in FOLDERS:
        for name in FILES:
            path = root / folder / name
            path.write_bytes(b"not yours")
            made.append(path)
        for name in DIRECTORIES:
            path = root / folder / name
            path.mkdir()
            (path / "precious").write_bytes(b"not yours either")
            made += [path, path / "precious"]
    return made


def test_stray_names_are_let_be_and_told(lived, writer):
    """Foreign names remain across a start, appends, flushes, trims, deletions and a stop.

    Among them are directories, and names similar to the store's.
    """
    made = strew(lived)
    log = None
    for _ in range(2):
        lived.start()
        log = lived.log
        put(lived, log, writer, 150, size=400)
        lived.checkpoint()
        lived.store.trim_log(log, first_index=log.commit_index - 20)
        lived.submit()
        other = lived.new_log(11)
        put(lived, other, writer, 60, size=400)
        lived.checkpoint()
        lived.store.delete_log(other.log_id)
        lived.workers.advance(2000)
        assert lived.fatal == []
        lived.crash()
    assert [path for path in made if not path.exists()] == []
    lived.start()
    told = set(lived.store.strays)
    for path in made:
        hides = path.name in {"lost+found", "precious"} or path.parent.name == "reserve"
        assert (str(path) in told) is not hides, path
    assert lived.store.stats()["stray_names"] == len(told)
    assert lived.log.last_index == 120 + 300
    assert not lived.log.lost


def test_directory_without_stray_names_has_none_to_tell(lived):
    """All that a store creates is its own."""
    lived.start()
    assert lived.store.strays == []


def test_what_a_dead_process_left_half_made_is_ours(lived):
    """Temporary files of a dead process are removed, wherever they are."""
    root = Path(lived.directory)
    begun = root / "journal" / f"{99:016x}.journal.new"
    begun.write_bytes(b"half")
    grave = root / "deleted" / "00000002"
    grave.mkdir()
    stranger = root / "logs" / "00000002"
    stranger.mkdir(exist_ok=True)
    lived.start()
    assert lived.store.strays == []
    assert not any(path.exists() for path in (begun, grave, stranger))
