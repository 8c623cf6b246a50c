"""Bit flips in one of the pages that name the tree's root.

Such a page shows another consistent tree, or makes LMDB do what it otherwise would not.
"""

import random
import shutil

import pytest

from segments.api import CorruptRecord, MetaBatch, StorageError
from segments.io.fs import RealFileSystem
from segments.meta.file import Meta
from tests.storage_contract.conftest import META_MAP_BYTES, meta_of_start
from tests.storage_contract.damage import flip_bit

LOGS = (1, 2)
ROUNDS = 13
PAGE_BYTES = 4096
HEADER_BYTES = 152
FILE_BYTES_MAX = 1 << 20
"""Limit of the file: it grows as usual, and not until the disk is full."""


def value(log_id, key, round_):
    return b"%d:%d:%d:" % (log_id, key, round_) + bytes(100)


def commit(meta, round_, want):
    """Commit a few keys of each log, and record the expected contents."""
    batches = []
    for log_id in LOGS:
        items = [(b"k%02d" % key, value(log_id, key, round_)) for key in (round_, round_ % 5)]
        want[log_id].update(items)
        batches.append(MetaBatch(log_id, round_ + 1, items))
    meta.commit(batches)


def opened(path):
    return meta_of_start(path, LOGS, ROUNDS)


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """Yield a closed store and its contents."""
    path = tmp_path_factory.mktemp("written") / "meta"
    meta = Meta(RealFileSystem(), str(path), META_MAP_BYTES)
    want = {log_id: {} for log_id in LOGS}
    for round_ in range(ROUNDS):
        commit(meta, round_, want)
    meta.close()
    return path, want


@pytest.mark.parametrize("is_live", [False, True], ids=["at rest", "live"])
@pytest.mark.parametrize("page", [0, 1])
@pytest.mark.parametrize("first", range(0, HEADER_BYTES, 8))
def test_flipped_header_never_loses_a_key_silently(tmp_path, written, first, page, is_live):
    """Flip a bit of each byte, at rest or under a running store.

    Later loads return everything or are refused, and refused state can be written again.
    """
    rng = random.Random(f"{first} {page} {is_live}")
    for byte in range(first, first + 8):
        path = tmp_path / str(byte) / "meta"
        shutil.copytree(written[0], path)
        want = {log_id: dict(items) for log_id, items in written[1].items()}
        meta = opened(path) if is_live else None
        flip_bit(path / "data.mdb", page * PAGE_BYTES + byte, rng.randrange(8))
        meta = meta or opened(path)
        for round_ in range(ROUNDS, ROUNDS + 3):
            commit(meta, round_, want)
        lost = meta.outdated
        for log_id in LOGS:
            if log_id in lost:
                with pytest.raises(CorruptRecord):
                    meta.load(log_id)
            else:
                assert dict(meta.load(log_id)[1]) == want[log_id]
        if lost:
            whole = [MetaBatch(i, 99, list(want[i].items()), clear=True) for i in sorted(lost)]
            meta.commit(whole)
        meta.close()
        again = opened(path)
        for log_id in LOGS:
            assert dict(again.load(log_id)[1]) == want[log_id]
        again.close()
        assert (path / "data.mdb").stat().st_size < FILE_BYTES_MAX


def test_version_of_a_later_lmdb_is_not_taken_for_damage(tmp_path, written):
    """A later LMDB version is refused, not repaired.

    That would discard the meta of every server alike.
    """
    path = tmp_path / "meta"
    shutil.copytree(written[0], path)
    for bit in (0, 1):
        flip_bit(path / "data.mdb", 20, bit)
    with pytest.raises(StorageError, match="another version"):
        opened(path)
