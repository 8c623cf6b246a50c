"""Space for LMDB is reserved before a transaction, which cannot be refused space within."""

from __future__ import annotations

import errno
import mmap
import os
import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lmdb
import pytest

from segments.format import meta_pages
from segments.io import fs
from segments.io.fs import (
    LmdbFile,
    MetaFile,
    RealFileSystem,
    SyncFailed,
    _pages_added,
    is_disk_full,
    is_passing,
    is_refused,
)

MAP_BYTES = 64 << 20
Puts = list[tuple[bytes, bytes | None]]


def small(rng: random.Random) -> bytes:
    return rng.randbytes(rng.randrange(60))


def mixed(rng: random.Random) -> bytes:
    return rng.randbytes(rng.choice((8, 100, 700, 1_300, 1_400, 2_000, 2_100, 4_090, 30_000)))


def near_half_a_page(rng: random.Random) -> bytes:
    return rng.randbytes(rng.randrange(1_200, 2_100))


@pytest.mark.parametrize("make", [small, mixed, near_half_a_page])
@pytest.mark.parametrize("is_ordered", [False, True])
def test_transaction_adds_no_more_pages_than_were_reserved(
    make: Callable[[random.Random], bytes], is_ordered: bool, tmp_path: Path
) -> None:
    """The reserve covers few items and many; new, changed and deleted ones; in any order."""
    rng = random.Random(f"{make.__name__} {is_ordered}")
    file = LmdbFile(str(tmp_path / "meta"), MAP_BYTES, meta_pages)
    environment = file._environment
    count = 0
    for size in (1, 1, 3, 10, 40, 200, 1_000, 1, 5, 600, 30, 1, 700):
        puts: Puts = []
        for _ in range(size):
            count += 1
            name = count if is_ordered else rng.randrange(3_000)
            key = name.to_bytes(8, "big") + bytes(rng.randrange(200) if not is_ordered else 0)
            puts.append((key, None if rng.random() < 0.2 else make(rng)))
        sizes = [len(key) + len(value or b"") for key, value in puts]
        before = environment.info()["last_pgno"]
        most = _pages_added(environment.stat(), sizes)
        file.commit(puts)
        assert environment.info()["last_pgno"] - before <= most
        end = (environment.info()["last_pgno"] + 1) * environment.stat()["psize"]
        found = (tmp_path / "meta" / "data.mdb").stat()
        assert found.st_size >= end
        assert found.st_blocks * 512 >= end
    file.close()


def test_reserve_of_a_steady_meta_does_not_grow(tmp_path: Path) -> None:
    """Pages are reused: the reserve stays within a small multiple of the stored size."""
    rng = random.Random(1)
    file = LmdbFile(str(tmp_path / "meta"), MAP_BYTES, meta_pages)
    sizes = []
    for _ in range(60):
        file.commit([(b"%04d" % rng.randrange(500), rng.randbytes(100)) for _ in range(50)])
        sizes.append((tmp_path / "meta" / "data.mdb").stat().st_size)
    assert len(set(sizes[30:])) <= 8
    assert sizes[-1] <= 13 * 500 * 120  # with one transaction more than needed
    file.close()


def test_refused_reserve_is_a_full_disk_that_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing was written: the stored state remains, and the same transaction is retried."""
    file = RealFileSystem().open_meta(str(tmp_path / "meta"), MAP_BYTES, meta_pages)
    file.commit([(b"a", b"1")])

    def refuse(*arguments: Any) -> None:
        raise OSError(28, "no room")

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    with pytest.raises(OSError, match="no room") as caught:
        file.commit([(b"a", bytes(1 << 20))])
    assert is_disk_full(caught.value)
    assert file.get(b"a") == b"1"
    monkeypatch.undo()
    file.commit([(b"a", bytes(1 << 20))])
    assert file.get(b"a") == bytes(1 << 20)
    file.close()


@pytest.mark.parametrize("seed", range(40))
def test_full_disk_takes_one_more_transaction_as_large_as_any_before(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A transaction as large as any before fits, also in a process that started on the full disk.

    It may record deletions, after which files are removed and space is freed.
    """
    rng = random.Random(seed)
    path = str(tmp_path / "meta")
    file = LmdbFile(path, MAP_BYTES, meta_pages)
    for size in [100, *rng.choices((1, 5, 20, 50, 100), k=rng.randrange(5, 60))]:
        file.commit([(b"%06d" % rng.randrange(4_000), rng.randbytes(100)) for _ in range(size)])
    room = Path(path, "data.mdb").stat().st_size

    def full(_fd: int, _start: int, end: int) -> None:
        if end > room:
            raise OSError(errno.ENOSPC, "no room")

    monkeypatch.setattr(os, "posix_fallocate", full)
    if seed % 2:
        file.close()
        file = LmdbFile(path, MAP_BYTES, meta_pages)
    gone = [key for key, _ in file.scan(b"")][:20]
    file.commit([(key, None) for key in gone])
    assert not set(gone) & {key for key, _ in file.scan(b"")}
    file.close()


SMALL_MAP = 1 << 20


def items(start: int, end: int) -> Puts:
    return [(b"%08d" % n, bytes([n & 0xFF]) * 500) for n in range(start, end)]


def fill(file: MetaFile, count: int, first: int = 0) -> None:
    for n in range(first, first + count, 500):
        file.commit(list(items(n, min(n + 500, first + count))))


def test_map_grows_with_what_is_stored(tmp_path: Path) -> None:
    """The map grows with the file.

    The next process maps the whole file, whatever size it requests.
    """
    path = str(tmp_path / "meta")
    file = RealFileSystem().open_meta(path, SMALL_MAP, meta_pages)
    assert file.usage.map_bytes == SMALL_MAP
    fill(file, 10_000)
    assert file.usage.used_bytes > 5 * SMALL_MAP
    assert file.usage.map_bytes >= file.usage.file_bytes
    file.close()
    file = RealFileSystem().open_meta(path, SMALL_MAP, meta_pages)
    assert file.usage.map_bytes >= file.usage.file_bytes > 5 * SMALL_MAP
    fill(file, 10_000, first=10_000)
    assert file.scan(b"") == items(0, 20_000)
    file.commit([(b"large", bytes(8 << 20))])
    assert file.get(b"large") == bytes(8 << 20)
    file.close()


def test_what_is_deleted_gives_room_to_what_comes(tmp_path: Path) -> None:
    file = RealFileSystem().open_meta(str(tmp_path / "meta"), SMALL_MAP, meta_pages)
    fill(file, 10_000)
    full = file.usage
    for n in range(0, 10_000, 500):
        file.commit([(key, None) for key, _ in items(n, n + 500)])
    assert file.usage.used_bytes < full.used_bytes // 50
    for first in range(20_000, 60_000, 5_000):
        fill(file, 5_000, first=first)
        for n in range(first, first + 5_000, 500):
            file.commit([(key, None) for key, _ in items(n, n + 500)])
    assert file.usage.file_bytes < 2 * full.file_bytes
    file.close()


def test_map_does_not_grow_where_the_disk_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = RealFileSystem().open_meta(str(tmp_path / "meta"), SMALL_MAP, meta_pages)

    def refuse(*arguments: Any) -> None:
        raise OSError(errno.ENOSPC, "no room")

    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", refuse)
        with pytest.raises(OSError, match="no room"):
            file.commit([(b"a", bytes(2 << 20))])
    assert file.usage.map_bytes == SMALL_MAP
    file.commit([(b"a", bytes(2 << 20))])
    assert file.get(b"a") == bytes(2 << 20)
    file.close()


def test_map_that_the_address_space_has_no_place_for_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """LMDB would be left without any map."""
    file = RealFileSystem().open_meta(str(tmp_path / "meta"), SMALL_MAP, meta_pages)
    file.commit([(b"a", b"1")])

    def refuse(*arguments: Any, **options: Any) -> None:
        raise OSError(errno.ENOMEM, "no memory")

    with monkeypatch.context() as patch:
        patch.setattr(mmap, "mmap", refuse)
        with pytest.raises(OSError, match="no memory") as caught:
            file.commit([(b"b", bytes(2 << 20))])
        assert is_refused(caught.value)
        assert file.get(b"a") == b"1"
    file.commit([(b"b", bytes(2 << 20))])
    file.close()


def test_map_that_was_too_small_after_all_is_refused_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The transaction is aborted before it is written, and fits on the next attempt."""
    file = LmdbFile(str(tmp_path / "meta"), SMALL_MAP, meta_pages)
    file.commit([(b"a", b"1")])
    monkeypatch.setattr(fs, "_pages_added", lambda tree, sizes: 1)
    with pytest.raises(OSError, match="meta was full") as caught:
        file.commit([(b"b", bytes(1 << 20))])
    assert is_disk_full(caught.value)
    assert file.get(b"b") is None
    file.commit([(b"b", bytes(1 << 20))])
    assert (file.get(b"a"), file.get(b"b")) == (b"1", bytes(1 << 20))
    file.close()


def test_readers_of_another_thread_outlive_a_larger_map(tmp_path: Path) -> None:
    file = RealFileSystem().open_meta(str(tmp_path / "meta"), SMALL_MAP, meta_pages)
    fill(file, 500)
    has_ended = threading.Event()
    found: list[Puts | BaseException] = []

    def read() -> None:
        try:
            while not has_ended.is_set():
                found[:] = [list(file.scan(b"0000000"))]
        except BaseException as error:  # noqa: BLE001 - told by the test's own thread
            found[:] = [error]

    reader = threading.Thread(target=read)
    reader.start()
    try:
        fill(file, 20_000, first=500)
    finally:
        has_ended.set()
        reader.join()
    assert found == [items(0, 10)]
    assert file.usage.map_bytes > 8 * SMALL_MAP
    file.close()


def test_want_of_memory_before_a_commit_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = LmdbFile(str(tmp_path / "meta"), MAP_BYTES, meta_pages)
    refusing = Refusing(file._environment, lmdb.MemoryError("none"))
    with monkeypatch.context() as patch:
        patch.setattr(file, "_environment", refusing)
        for ask in (lambda: file.commit([(b"a", b"1")]), lambda: file.scan(b"")):
            with pytest.raises(OSError, match="none") as caught:
                ask()
            assert is_passing(caught.value)
    file.commit([(b"a", b"1")])
    file.close()


class Refusing:
    """An environment whose transactions fail at commit."""

    def __init__(self, environment: lmdb.Environment, error: lmdb.Error) -> None:
        self._environment = environment
        self._error = error

    def __getattr__(self, name: str) -> Any:
        return getattr(self._environment, name)

    def begin(self, **options: Any) -> Any:
        raise self._error


@pytest.mark.parametrize("error", [lmdb.DiskError, lmdb.PanicError, lmdb.Error])
def test_commit_that_fails_is_a_failed_sync_whatever_for(
    error: type[lmdb.Error], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There was space: pages that had been accepted are lost.

    A retry would succeed without them (RELIABILITY 1.5.11).
    """
    file = LmdbFile(str(tmp_path / "meta"), MAP_BYTES, meta_pages)
    monkeypatch.setattr(file, "_environment", Refusing(file._environment, error("refused")))
    with pytest.raises(SyncFailed) as caught:
        file.commit([(b"a", b"1")])
    assert not is_disk_full(caught.value)
    monkeypatch.undo()
    file.close()


def test_reserve_for_one_more_leaves_a_nearly_full_disk_its_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file system may keep what it allocated for a request that it refuses.

    No more is requested than there is.
    """
    file = LmdbFile(str(tmp_path / "meta"), MAP_BYTES, meta_pages)
    file.commit(items(0, 10))
    free = 1 << 20
    asked: list[int] = []
    data, real, real_room = tmp_path / "meta" / "data.mdb", os.posix_fallocate, os.fstatvfs
    before = data.stat().st_blocks * 512

    def allocate(fd: int, start: int, end: int) -> None:
        asked.append(end - before)
        real(fd, start, min(end, before + free))
        if end > before + free:
            raise OSError(errno.ENOSPC, "no room")

    def room(fd: int) -> os.statvfs_result:
        found = list(real_room(fd))
        found[1], found[4] = 4096, free // 4096
        return os.statvfs_result(found)

    monkeypatch.setattr(os, "posix_fallocate", allocate)
    monkeypatch.setattr(os, "fstatvfs", room)
    file.commit([(b"large", bytes(700_000))])
    assert asked
    assert max(asked) < free
    assert data.stat().st_blocks * 512 - before < free
    file.close()


def test_reserve_is_not_for_a_transaction_that_was_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = LmdbFile(str(tmp_path / "meta"), MAP_BYTES, meta_pages)
    file.commit(items(0, 10))

    def refuse(*arguments: Any) -> None:
        raise OSError(errno.ENOSPC, "no room")

    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", refuse)
        with pytest.raises(OSError, match="no room"):
            file.commit([(b"large", bytes(8 << 20))])
    file.commit(items(10, 300))
    assert (tmp_path / "meta" / "data.mdb").stat().st_size < 6 << 20
    file.close()
