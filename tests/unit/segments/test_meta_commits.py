"""State of many logs is committed and deleted in few transactions."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from segments.api import MetaBatch
from segments.format import meta_pages
from segments.format.meta_header import MetaHeader
from segments.io import fs
from segments.meta.file import FORGOTTEN_KEYS, Meta

LOGS = 2 * FORGOTTEN_KEYS


@pytest.fixture
def meta(tmp_path: Path) -> Meta:
    return Meta(fs.RealFileSystem(), str(tmp_path / "meta"), 16 << 20)


@pytest.fixture
def checks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Record one element for each check of the file's headers, one for each transaction."""
    found: list[int] = []
    check_headers = meta_pages.check_headers

    def counted(read: fs.Read, file_bytes: int) -> MetaHeader:
        found.append(file_bytes)
        return check_headers(read, file_bytes)

    monkeypatch.setattr(meta_pages, "check_headers", counted)
    return found


def test_commit_reads_all_it_changes_at_once(meta: Meta, checks: list[int]) -> None:
    for applied in (1, 2):
        value = str(applied).encode()
        batches = [MetaBatch(n, applied, [(b"key", value), (value, b"")]) for n in range(LOGS)]
        checks.clear()
        meta.commit(batches)
        assert len(checks) <= 3
    assert meta.load(LOGS - 1) == (2, [(b"1", b""), (b"2", b""), (b"key", b"2")])
    meta.commit([MetaBatch(0, 3, [(b"1", None), (b"key", b"3"), (b"key", b"4")])])
    assert meta.load(0) == (3, [(b"2", b""), (b"key", b"4")])


def test_logs_of_which_something_is_stored_are_found_by_a_look_up_each(meta: Meta) -> None:
    """However many items each has, and however far apart their ids are."""
    log_ids = [1, 2, 700, 65_536, 3_000_000, (1 << 32) - 1]
    meta.commit([MetaBatch(n, 1, [(b"%d" % k, b"v") for k in range(20)]) for n in log_ids])
    assert meta.stored() == log_ids
    meta.forget(log_ids[1:4])
    assert meta.stored() == [1, *log_ids[4:]]


def test_logs_are_forgotten_whole_and_together(meta: Meta, monkeypatch: pytest.MonkeyPatch) -> None:
    meta.commit([MetaBatch(n, 1, [(b"key", b"value")]) for n in range(LOGS + 1)])
    transactions: list[set[bytes]] = []
    commit = fs.LmdbFile.commit

    def counted(file: fs.LmdbFile, puts: list[tuple[bytes, bytes | None]]) -> None:
        transactions.append({key[:4] for key, _ in puts})
        commit(file, puts)

    monkeypatch.setattr(fs.LmdbFile, "commit", counted)
    meta.forget(range(LOGS))
    assert len(transactions) <= 2 * LOGS // FORGOTTEN_KEYS + 1
    assert sum(map(len, transactions)) == LOGS, "one lies in two transactions"
    assert [meta.applied(n) for n in range(LOGS + 1)] == [0] * LOGS + [1]
    meta.forget([5])
    meta.close()


@pytest.fixture
def full(meta: Meta, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Simulate a disk that has no space for a new file, while the list is not empty.

    It keeps what a refused request allocated.
    """
    made, real = [1], os.posix_fallocate

    def refuse(fd: int, start: int, length: int) -> None:
        real(fd, start, min(length, 1 << 16) if made else length)
        if made:
            raise OSError(errno.ENOSPC, "no space")

    meta.commit([MetaBatch(n, 5, [(b"key", b"value")]) for n in (1, 2)])
    monkeypatch.setattr(os, "posix_fallocate", refuse)
    return made


def test_refused_new_file_leaves_nothing_open_and_no_room_taken(
    meta: Meta, full: list[int], tmp_path: Path
) -> None:
    meta.suspect()
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(3):
        with pytest.raises(OSError, match="no space"):
            meta.commit([])
        assert len(list(Path("/proc/self/fd").iterdir())) == before
        assert not (tmp_path / "meta.new").exists()
    full.clear()
    meta.commit([])
    assert meta.salvaged == 1
    assert meta.load(1) == (5, [(b"key", b"value")])


def test_logs_are_forgotten_in_a_file_that_waits_for_a_new_one(
    meta: Meta, full: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file can be read, and not be written to.

    As with commits, a full disk refuses both operations.
    """
    good = dict(meta._file.scan(b""))

    def damaged(fd: int, checks: fs.MetaChecks) -> dict[bytes, bytes] | None:
        """Report damage only in the current file."""
        return good if os.fstat(fd).st_ino == inode else None

    inode = (tmp_path / "meta" / "data.mdb").stat().st_ino
    monkeypatch.setattr(fs, "_good_if_damaged", damaged)
    meta.suspect()
    with pytest.raises(OSError, match="no space"):
        meta.commit([])
    for _ in range(2):
        with pytest.raises(OSError, match="no space"):
            meta.forget([1])
    full.clear()
    meta.forget([1])
    assert meta.stored() == [2]
    assert meta.load(2) == (5, [(b"key", b"value")])


def test_damage_found_while_a_new_file_is_begun_calls_for_another(
    meta: Meta, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The scrubber may have read a page of the new one."""
    real = Meta._salvage

    def salvage(self: Meta) -> None:
        real(self)
        if self.salvaged == 1:
            self.suspect()

    monkeypatch.setattr(Meta, "_salvage", salvage)
    meta.suspect()
    for expected in (1, 2, 2):
        meta.commit([])
        assert meta.salvaged == expected
