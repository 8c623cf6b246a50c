"""A bit in the page that names the tree's root shows another tree, in which all adds up."""

import random

import pytest

from segments.api import CorruptRecord, MetaBatch
from segments.fs import RealFileSystem
from segments.meta import Meta
from tests.storage_contract.damage import flip_bit

LOGS = (1, 2)
ROUNDS = 13


def value(log_id, key, round_):
    return b"%d:%d:%d:" % (log_id, key, round_) + bytes(100)


def commit(meta, round_, want):
    """A few keys of each log, and what the log must hold then."""
    batches = []
    for log_id in LOGS:
        items = [(b"k%02d" % key, value(log_id, key, round_)) for key in (round_, round_ % 5)]
        want[log_id].update(items)
        batches.append(MetaBatch(log_id, round_ + 1, items))
    meta.commit(batches)


@pytest.mark.parametrize("page", [0, 1])
@pytest.mark.parametrize("byte", range(96, 152, 4))
def test_flipped_root_never_loses_a_key_silently(tmp_path, page, byte):
    """Live, behind the back of a store that goes on: what is loaded later is everything, or is
    refused; and what was refused can be written again."""
    path = tmp_path / "meta"
    meta = Meta(RealFileSystem(), str(path), 1 << 20)
    meta.check(LOGS)
    want = {log_id: {} for log_id in LOGS}
    for round_ in range(ROUNDS):
        commit(meta, round_, want)
    flip_bit(path / "data.mdb", page * 4096 + byte, random.Random(byte).randrange(8))
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
    again = Meta(RealFileSystem(), str(path), 1 << 20)
    again.check(LOGS)
    for log_id in LOGS:
        assert dict(again.load(log_id)[1]) == want[log_id]
    again.close()
