"""What LMDB can be refused, and what it cannot: room is had before a transaction, not within it."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lmdb
import pytest

from segments.format import meta_pages
from segments.io.fs import LmdbFile, RealFileSystem, SyncFailed, _pages_added, is_disk_full

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
    """Of few items and many, new ones, changed ones and deleted ones, in order and not."""
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
    """Pages are used again: what is reserved stays within a small multiple of what is stored."""
    rng = random.Random(1)
    file = LmdbFile(str(tmp_path / "meta"), MAP_BYTES, meta_pages)
    sizes = []
    for _ in range(60):
        file.commit([(b"%04d" % rng.randrange(500), rng.randbytes(100)) for _ in range(50)])
        sizes.append((tmp_path / "meta" / "data.mdb").stat().st_size)
    assert len(set(sizes[30:])) <= 8
    assert sizes[-1] <= 12 * 500 * 120
    file.close()


def test_refused_reserve_is_a_full_disk_that_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing was written: what was there is there, and the same transaction is tried again."""
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


def test_map_that_is_full_is_a_full_disk(tmp_path: Path) -> None:
    """The transaction is given up before it is written."""
    file = RealFileSystem().open_meta(str(tmp_path / "meta"), 1 << 20, meta_pages)
    file.commit([(b"a", b"1")])
    with pytest.raises(OSError, match="meta is full") as caught:
        file.commit([(b"b", bytes(2 << 20))])
    assert is_disk_full(caught.value)
    file.commit([(b"a", b"2")])
    assert file.get(b"a") == b"2"
    file.close()


class Refusing:
    """An environment whose transactions fail when they commit."""

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
    """There was room: pages that had been accepted are lost. To try again would succeed over them
    (RELIABILITY 1.5.11)."""
    file = LmdbFile(str(tmp_path / "meta"), MAP_BYTES, meta_pages)
    monkeypatch.setattr(file, "_environment", Refusing(file._environment, error("refused")))
    with pytest.raises(SyncFailed) as caught:
        file.commit([(b"a", b"1")])
    assert not is_disk_full(caught.value)
    monkeypatch.undo()
    file.close()
