"""Owner of a directory, its boots, and its notes about peers."""

import pytest

from segments.api import ForeignDirectory, HardState
from segments.boots import GOES_ON, JournalMark, is_behind
from segments.directory.identity import read_identity
from tests.storage_contract.conftest import SMALL, DiskHarness, put


def mark_of(store):
    """Return the mark that a peer holds of the directory."""
    return JournalMark(store.boots[-1].number, store.boots[-1].boot_id, store.durable_lsn)


def test_each_start_is_a_boot_that_says_where_the_one_before_ended(harness, writer):
    """However a run ends, the next one finds all that was durable in it."""
    log = harness.new_log(9)
    marks = []
    for n in range(5):
        put(harness, harness.log if n else log, writer, 20)
        harness.pump()
        harness.workers.advance(1000 if n % 2 else 0)
        marks.append(mark_of(harness.store))
        if n == 3:
            harness.close()
            harness.start()
        else:
            harness.reopen()
        boots = harness.store.boots
        assert [boot.number for boot in boots] == list(range(1, n + 3))
        assert len({boot.boot_id for boot in boots}) == len(boots)
        assert boots[-1].end_lsn == GOES_ON
        assert all(boot.end_lsn >= mark.lsn for boot, mark in zip(boots, marks, strict=False))
        assert not any(is_behind(boots, mark) for mark in marks)


def test_directory_that_is_given_up_is_another_one_and_its_logs_stay_lost(harness, writer):
    """Retiring a directory durably gives it a new id and marks its existing logs as lost."""
    log = harness.new_log(9)
    put(harness, log, writer, 20)
    harness.pump()
    former = harness.store.directory_id
    done = []
    harness.store.give_up(lambda: done.append(1))
    assert log.lost
    harness.pump()
    assert done == [1]
    given = harness.store.directory_id
    assert given != former
    assert [boot.number for boot in harness.store.boots] == [1]
    for n in range(3):
        harness.reopen()
        assert harness.store.directory_id == given
        assert [boot.number for boot in harness.store.boots] == [1, 2, 3, 4][: n + 2]
        (log,) = harness.store.logs.values()
        assert log.lost
    fresh = harness.new_log(9, 2)
    put(harness, fresh, writer, 20)
    harness.reopen()
    assert [log.lost for _, log in sorted(harness.store.logs.items())] == [True, False]
    assert [log.last_index for log in harness.store.logs.values() if not log.lost] == [20]


def test_newest_note_of_peers_is_found_again(harness):
    """Each note replaces the previous ones."""
    assert harness.store.peers_note() == b""
    for n in range(5):
        harness.store.note_peers(b"note %d" % n)
        harness.store.note_peers(b"note %d, later" % n)
        harness.pump()
        harness.reopen()
        assert harness.store.peers_note() == b"note %d, later" % n


def test_server_adopts_a_directory_once(harness):
    """A directory of an earlier version names no server."""
    assert harness.store.server_id == 0
    harness.store.adopt_server(7)
    harness.pump()
    harness.reopen()
    assert harness.store.server_id == 7


def test_directory_of_another_server_is_refused_and_left_alone(tmp_path):
    """The error is readable and is raised before anything is changed.

    The directory opens for its own server and for tools.
    """
    engine = DiskHarness(SMALL, directory=str(tmp_path / "data"), server_id=3)
    engine.start()
    engine.new_log()
    engine.reopen()
    assert engine.store.server_id == 3
    engine.crash()
    before = {path: path.read_bytes() for path in (tmp_path / "data").rglob("*") if path.is_file()}
    engine.server_id = 2
    for without_lock in (False, True):
        if without_lock:
            (tmp_path / "data" / "lock").unlink()
            del before[tmp_path / "data" / "lock"]
        with pytest.raises(ForeignDirectory, match=r"of server 3, but this is server 2"):
            engine.start()
        assert before == {
            path: path.read_bytes() for path in (tmp_path / "data").rglob("*") if path.is_file()
        }
    for server_id in (3, 0):
        engine.server_id = server_id
        engine.start()
        assert engine.store.server_id == 3
        engine.crash()


def test_journal_that_lost_its_newest_blocks_ends_below_what_was_durable(tmp_path, writer):
    """A disk lied about a sync.

    The start takes the missing blocks for torn, and its peers notice.
    """
    engine = DiskHarness(SMALL, directory=str(tmp_path / "data"))
    engine.start()
    log = engine.new_log()
    put(engine, log, writer, 10)
    engine.pump()
    kept = {path: path.read_bytes() for path in (tmp_path / "data/journal").iterdir()}
    put(engine, log, writer, 5)
    engine.pump()
    mark = mark_of(engine.store)
    engine.crash()
    for path, data in kept.items():
        path.write_bytes(data)
    engine.start()
    (log,) = engine.store.logs.values()
    assert not log.lost
    assert log.last_index == 10
    assert is_behind(engine.store.boots, mark)
    engine.crash()


def test_directory_restored_from_a_copy_is_behind_also_after_more_starts(tmp_path, writer):
    """A restored directory is behind, after any number of starts and any journal progress."""
    engine = DiskHarness(SMALL, directory=str(tmp_path / "data"))
    engine.start()
    log = engine.new_log()
    put(engine, log, writer, 10)
    engine.close()
    kept = {path: path.read_bytes() for path in (tmp_path / "data").rglob("*") if path.is_file()}
    engine.start()
    put(engine, engine.log, writer, 1)
    engine.pump()
    mark = mark_of(engine.store)
    engine.close()
    for path in (tmp_path / "data").rglob("*"):
        if path.is_file() and path not in kept:
            path.unlink()
    for path, data in kept.items():
        path.write_bytes(data)
    for _ in range(6):
        engine.start()
        put(engine, engine.log, writer, 40)
        engine.pump()
        assert engine.store.durable_lsn > 0
        assert is_behind(engine.store.boots, mark)
        engine.close()


@pytest.mark.parametrize("damaged", [None, 0, 1], ids=["whole", "first half", "second half"])
def test_start_on_a_disk_without_room_is_not_told_of(tmp_path, writer, monkeypatch, damaged):
    """The store opens all the same, and it is no boot: the previous one has ended."""
    engine = DiskHarness(SMALL, directory=str(tmp_path / "data"))
    engine.start()
    log = engine.new_log()
    put(engine, log, writer, 3)
    mark = mark_of(engine.store)
    engine.crash()
    if damaged is not None:
        path = tmp_path / "data" / "identity"
        data = bytearray(path.read_bytes())
        data[damaged * len(data) // 2 + 20] ^= 1
        path.write_bytes(data)

    def refuse(*_, **__):
        raise OSError(28, "no room")

    monkeypatch.setattr("segments.recovery.start.write_identity", refuse)
    engine.start()
    (boot,) = engine.store.boots
    assert mark.lsn <= boot.end_lsn < GOES_ON
    identity = read_identity(engine.store._fs, engine.directory)
    assert identity is not None
    assert identity.boots == [boot], "its end does not wait for room"
    put(engine, engine.log, writer, 3)
    engine.crash()
    monkeypatch.undo()
    engine.start()
    assert [boot.number for boot in engine.store.boots] == [1, 2]
    assert not is_behind(engine.store.boots, mark)
    identity = read_identity(engine.store._fs, engine.directory)
    assert identity is not None
    assert identity.boots == list(engine.store.boots)
    engine.store.set_hard_state(engine.log, HardState(9, 1, engine.log.commit_index))
    engine.crash()


def test_start_that_cannot_write_over_the_note_takes_a_piece_of_the_reserve(tmp_path, monkeypatch):
    """A start that cannot record that its journal ends before the previous boot's is refused.

    This also covers disks where overwriting takes space.
    """
    engine = DiskHarness(SMALL, directory=str(tmp_path / "data"))
    engine.start()
    for group_id in range(100):
        engine.new_log(group_id + 1)
    engine.reopen()
    mark = mark_of(engine.store)
    for log_id in sorted(engine.store.logs)[1:]:
        engine.store.delete_log(log_id)
    engine.pump()
    engine.crash()

    def refuse(*_, **__):
        raise OSError(28, "no room")

    monkeypatch.setattr("segments.recovery.start.write_identity", refuse)
    monkeypatch.setattr("segments.recovery.start.overwrite_identity", refuse)
    engine.start()
    engine.crash()
    monkeypatch.undo()
    engine.start()
    assert not is_behind(engine.store.boots, mark)
    engine.crash()
