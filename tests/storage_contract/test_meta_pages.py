"""Bit flips in a page of the tree or of the free list, which LMDB would follow out of the file."""

import multiprocessing
import os
import random
import shutil
import struct
import time

import lmdb
import pytest

from segments.api import CorruptRecord, MetaBatch
from segments.format.meta_header import check_headers
from segments.format.meta_pages import check_pages, good_items, item_at
from segments.io.fs import RealFileSystem
from segments.meta.file import Meta
from tests.storage_contract.conftest import META_MAP_BYTES, meta_of_start
from tests.storage_contract.damage import flip_bit

LOGS = range(1, 41)
FORGOTTEN = range(41, 61)
ROUNDS = 12
PAGE_BYTES = 4096
LARGE_BYTES = 10_000
FLIPS = 150
PROCESSES = 4
SEED = int(os.environ.get("SEED", time.time_ns() % (1 << 32)))


def items(log_id, round_):
    """Return a round's changes, as keys and values.

    They are a new key, a key that always changes, and now and then a value with overflow pages.
    """
    values = {b"k%03d" % round_: b"%d " % log_id * 20, b"last": b"%d" % round_}
    if (log_id + round_) % 16 == 0:
        values[b"large"] = random.Random(f"{log_id} {round_}").randbytes(LARGE_BYTES)
    return values


def contents(log_id, rounds):
    return {key: value for n in range(rounds) for key, value in items(log_id, n).items()}


def commit(meta, log_ids, round_):
    meta.commit(
        [MetaBatch(log_id, round_ + 1, list(items(log_id, round_).items())) for log_id in log_ids]
    )


def opened(path):
    return meta_of_start(path, LOGS, ROUNDS)


def reader(path):
    data = (path / "data.mdb").read_bytes()
    return lambda length, at: data[at : at + length], len(data)


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """Yield a closed store of forty logs, with free pages that twenty others have left."""
    path = tmp_path_factory.mktemp("written") / "meta"
    meta = Meta(RealFileSystem(), str(path), META_MAP_BYTES)
    for round_ in range(ROUNDS):
        commit(meta, [*LOGS, *FORGOTTEN], round_)
    meta.forget(FORGOTTEN)
    meta.close()
    return path


def strike(source, directory, seed, first, last):
    """Flip bits of a file, one at a time, and use it as a server would."""
    for n in range(first, last):
        rng = random.Random(f"{seed} {n}")
        path = directory / str(n)
        shutil.copytree(source, path)
        read, size = reader(path)
        header = check_headers(read, size)
        byte = rng.randrange(2 * PAGE_BYTES, (header.last + 1) * PAGE_BYTES)
        if rng.random() < 0.5:
            byte -= byte % PAGE_BYTES - rng.randrange(160)  # numbers, flags, places of items
        bit = rng.randrange(8)
        print(f"SEED={seed} flip {n}: byte {byte} bit {bit}", flush=True)
        flip_bit(path / "data.mdb", byte, bit)
        meta = opened(path)
        lost = meta.outdated
        commit(meta, LOGS, ROUNDS)
        for log_id in LOGS:
            if log_id in lost:
                with pytest.raises(CorruptRecord):
                    meta.load(log_id)
            else:
                assert dict(meta.load(log_id)[1]) == contents(log_id, ROUNDS + 1)
        whole = [
            MetaBatch(log_id, 99, list(contents(log_id, ROUNDS + 1).items()), clear=True)
            for log_id in sorted(lost)
        ]
        meta.commit(whole)
        meta.close()
        again = opened(path)
        assert not again.outdated
        for log_id in LOGS:
            assert dict(again.load(log_id)[1]) == contents(log_id, ROUNDS + 1)
        again.close()
        shutil.rmtree(path)


def test_item_is_found_by_the_pages_on_its_way(written):
    """Every item of the file is found, and no other."""
    read, size = reader(written)
    with (
        lmdb.open(str(written), readonly=True, lock=False) as environment,
        environment.begin() as transaction,
    ):
        stored = {bytes(key): bytes(value) for key, value in transaction.cursor()}
    assert len(stored) > 400
    assert any(len(value) >= LARGE_BYTES for value in stored.values())
    for key, value in stored.items():
        assert item_at(read, size, key) == value
        for other in (key + b"\x00", key[:-1]):
            assert item_at(read, size, other) == stored.get(other)
    assert item_at(read, size, b"\xff" * 20) is None


def test_item_on_a_flipped_page_is_told_or_found(written):
    """A look-up over a flipped page finds the item or raises CorruptRecord.

    This holds for every bit of every page: LMDB would follow the page out of the file.
    """
    read, size = reader(written)
    header = check_headers(read, size)
    data = bytearray(read(size, 0))
    rng = random.Random(SEED)
    print(f"SEED={SEED}")
    keys = list(good_items(read, size))
    refused = 0
    for _ in range(FLIPS * 10):
        byte = rng.randrange(2 * PAGE_BYTES, (header.last + 1) * PAGE_BYTES)
        if rng.random() < 0.5:
            byte -= byte % PAGE_BYTES - rng.randrange(160)
        bit = 1 << rng.randrange(8)
        data[byte] ^= bit
        try:
            item_at(lambda length, at: bytes(data[at : at + length]), size, rng.choice(keys))
        except CorruptRecord:
            refused += 1
        data[byte] ^= bit
    assert refused


@pytest.mark.parametrize("share", range(PROCESSES))
def test_flipped_page_never_ends_the_process(tmp_path, written, share):
    """A load returns everything or is refused, and the state can then be written again."""
    # Runs in a process of its own, which LMDB may end.
    size = FLIPS // PROCESSES
    child = multiprocessing.get_context("spawn").Process(
        target=strike, args=(written, tmp_path, SEED, share * size, (share + 1) * size)
    )
    child.start()
    child.join()
    assert child.exitcode == 0


def test_what_lmdb_writes_is_whole(tmp_path):
    """No page that LMDB wrote is reported as damaged, after any sequence of puts and deletes."""
    rng = random.Random(SEED)
    print(f"SEED={SEED}")
    keys = [b"%05d" % n * rng.randrange(1, 60) for n in range(3_000)]
    with lmdb.open(str(tmp_path), map_size=256 << 20, sync=False) as environment:
        for _ in range(150):
            with environment.begin(write=True) as transaction:
                for key in rng.choices(keys, k=rng.choice([1, 5, 300])):
                    if rng.random() < 0.4:
                        transaction.delete(key)
                    else:
                        transaction.put(key, bytes(rng.choice([0, 7, 90, 1_300, 2_500, 30_000])))
            read, size = reader(tmp_path)
            check_pages(read, size)
        with environment.begin() as transaction:
            assert good_items(read, size) == dict(transaction.cursor())
        depth = environment.stat()["depth"]
    assert depth >= 3


def test_all_of_a_damaged_page_but_the_item_struck_is_kept(tmp_path, written):
    """The position of one item leads nowhere: only its log is given up."""
    path = tmp_path / "meta"
    shutil.copytree(written, path)
    read, size = reader(path)
    header = check_headers(read, size)
    leaf = next(
        number
        for number in range(2, header.last)
        if struct.unpack_from("<QHH", read(12, number * PAGE_BYTES)) == (number, 0, 2)
        and _is_in_use(path, number)
    )
    flip_bit(path / "data.mdb", leaf * PAGE_BYTES + 16 + 1, 7)
    with pytest.raises(CorruptRecord):
        check_pages(*reader(path))
    meta = opened(path)
    assert len(meta.outdated) == 1
    assert meta.salvaged == 1
    meta.close()


def _is_in_use(path, number):
    """Return True if a change of the page's own number is detected."""
    data = bytearray((path / "data.mdb").read_bytes())
    data[number * PAGE_BYTES] ^= 1
    try:
        check_pages(lambda length, at: bytes(data[at : at + length]), len(data))
    except CorruptRecord:
        return True
    return False
