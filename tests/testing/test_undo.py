"""A power cut takes back what was not synced, and nothing else.

The file system of a test cluster is compared with a model: bytes as of the last sync of each file,
names as of the last sync of their directory.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vdl.testing.disk import Disk, NotedFileSystem, Unsynced
from vdl.testing.undo import take_back


class Place:
    """A data directory with its log."""

    def __init__(self, folder: Path) -> None:
        self.data, self.log = folder / "store", folder / "undo.log"
        self.data.mkdir()
        self.disk = Disk(Unsynced(self.log, folder / "trash"))
        self.files = NotedFileSystem(self.disk)

    def path(self, name: str) -> str:
        return str(self.data / name)

    def cut(self) -> dict[str, bytes]:
        """Cut the power; return the contents by name."""
        take_back(self.log, self.data)
        return {
            str(path.relative_to(self.data)): path.read_bytes()
            for path in sorted(self.data.rglob("*"))
            if path.is_file()
        }


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_undo_of_unsynced_bytes_restores_the_synced_ones(place: Place) -> None:
    file = place.files.open(place.path("a"), create=True)
    file.pwrite([b"first"], 0)
    file.sync()
    place.files.sync_directory(str(place.data))
    file.pwrite([b"SECOND and longer"], 2)
    assert place.cut() == {"a": b"first"}


def test_undo_keeps_a_durable_write_amid_unsynced_ones(place: Place) -> None:
    file = place.files.open(place.path("a"), create=True)
    file.pwrite([b"0123456789"], 0)
    file.sync()
    place.files.sync_directory(str(place.data))
    file.pwrite([b"xxxxxxxxxx"], 0)
    file.pwrite([b"DDD"], 3, durable=True)
    file.pwrite([b"yy"], 4)
    assert place.cut() == {"a": b"012DDD6789"}


def test_undo_has_zeros_before_a_durable_write_behind_the_end(place: Place) -> None:
    file = place.files.open(place.path("a"), create=True)
    file.sync()
    place.files.sync_directory(str(place.data))
    file.pwrite([b"abcd"], 0)
    file.pwrite([b"DD"], 6, durable=True)
    assert place.cut() == {"a": b"\0\0\0\0\0\0DD"}


def test_undo_of_unsynced_names_restores_the_synced_ones(place: Place) -> None:
    for name in ("kept", "old", "removed"):
        file = place.files.open(place.path(name), create=True)
        file.pwrite([name.encode()], 0)
        file.sync()
    place.files.sync_directory(str(place.data))
    place.files.open(place.path("new"), create=True).sync()
    place.files.rename(place.path("old"), place.path("kept"))
    place.files.unlink(place.path("removed"))
    place.files.make_directory(place.path("folder/below"))
    place.files.open(place.path("folder/below/file"), create=True)
    assert place.cut() == {"kept": b"kept", "old": b"old", "removed": b"removed"}
    assert not (place.data / "folder").exists()


def test_undo_leaves_names_whose_directory_was_synced(place: Place) -> None:
    for name in ("a", "b", "c"):
        place.files.open(place.path(name), create=True).sync()
    place.files.rename(place.path("a"), place.path("b"))
    place.files.unlink(place.path("c"))
    place.files.sync_directory(str(place.data))
    assert place.cut() == {"b": b""}


def test_undo_of_a_removed_tree_restores_it(place: Place) -> None:
    place.files.make_directory(place.path("tree"))
    file = place.files.open(place.path("tree/file"), create=True)
    file.pwrite([b"data"], 0)
    file.sync()
    place.files.sync_directory(place.path("tree"))
    place.files.sync_directory(str(place.data))
    place.files.remove_tree(place.path("tree"))
    assert not (place.data / "tree").exists()
    assert place.cut() == {"tree/file": b"data"}


def test_undo_of_lengths_restores_cut_off_and_allocated_parts(place: Place) -> None:
    for name in ("short", "long"):
        file = place.files.open(place.path(name), create=True)
        file.pwrite([b"0123456789"], 0)
        file.sync()
        if name == "short":
            file.truncate(3)
            file.pwrite([b"x"], 1)
        else:
            file.allocate(4_096)
    place.files.sync_directory(str(place.data))
    assert place.cut() == {"short": b"0123456789", "long": b"0123456789"}


def test_undo_ignores_the_rest_of_a_record_that_was_being_written(place: Place) -> None:
    file = place.files.open(place.path("a"), create=True)
    file.pwrite([b"first"], 0)
    file.sync()
    place.files.sync_directory(str(place.data))
    file.pwrite([b"SECOND"], 0)
    place.log.write_bytes(place.log.read_bytes() + b"\1\2\3")
    assert place.cut() == {"a": b"first"}


@settings(max_examples=40)
@given(st.integers(0, 1 << 32))
def test_undo_after_random_operations_equals_the_model(
    tmp_path_factory: pytest.TempPathFactory, seed: int
) -> None:
    """Writes, durable writes, truncations and syncs of two files, in any order."""
    rng = random.Random(seed)
    place = Place(tmp_path_factory.mktemp("undo"))
    names = ("a", "b")
    files = {name: place.files.open(place.path(name), create=True) for name in names}
    place.files.sync_directory(str(place.data))
    current = {name: bytearray() for name in names}
    durable = {name: bytearray() for name in names}
    for _ in range(rng.randint(1, 25)):
        name = rng.choice(names)
        file, now, kept = files[name], current[name], durable[name]
        kind = rng.choice(("write", "write", "durable", "sync", "truncate"))
        if kind == "sync":
            file.sync()
            durable[name] = bytearray(now)
        elif kind == "truncate":
            length = rng.randint(0, 40)
            file.truncate(length)
            _resize(now, length)
        else:
            position = rng.randint(0, len(now) if kind == "durable" else 40)
            data = rng.randbytes(rng.randint(1, 20))
            file.pwrite([data], position, durable=kind == "durable")
            _put(now, position, data)
            if kind == "durable":
                _put(kept, position, data)
    assert place.cut() == {name: bytes(durable[name]) for name in names}


def _resize(data: bytearray, length: int) -> None:
    del data[length:]
    data.extend(bytes(length - len(data)))


def _put(data: bytearray, position: int, new: bytes) -> None:
    _resize(data, max(len(data), position + len(new)))
    data[position : position + len(new)] = new
