"""Damage to the last block of a journal, and if its directory is then behind its peers' notes.

It is if a durable record is lost with the block: nothing else shows that one is missing. It is not
if the block only proved the previous one: nothing is missing then, and a directory that is taken
for one of the past has all of its replicas replaced.
"""

import shutil
from pathlib import Path

import pytest

from segments.api import HardState
from segments.boots import JournalMark, is_behind
from segments.format.block import PAGE_BYTES, decode_file_header
from tests.storage_contract.conftest import make, put
from tests.storage_contract.damage import flip_bit


def just_appended(harness, log, writer):
    """Append; nothing proves the last block yet."""
    put(harness, log, writer, 3, size=400)


def proved(harness, log, writer):
    """Append; an idle block says that the previous one had been durable."""
    just_appended(harness, log, writer)
    harness.workers.advance(1_000)


def started_again(harness, log, writer):
    """Restart; the start has written the first block of a file, which carries no records."""
    proved(harness, log, writer)
    harness.crash()
    harness.start()


def started_again_and_carried(harness, log, writer):
    """Restart; that block repeats what nothing had proved, and another one proves it."""
    just_appended(harness, log, writer)
    harness.crash()
    harness.start()
    harness.workers.advance(1_000)


def closed(harness, log, writer):
    """Close; the last block is the closing one."""
    proved(harness, log, writer)
    harness.close()


def committed(harness, log, writer):
    """Commit; the last block carries a commit index alone.

    Nothing proves it, and it is not needed.
    """
    harness.store.append(log, writer(log).entries(1, size=400))
    harness.submit()
    harness.workers.advance(1_000)
    harness.store.set_hard_state(log, HardState(1, 2, log.last_index))
    harness.store.submit(urgent=False)
    harness.workers.advance(5_000)


ENDS = (just_appended, proved, started_again, started_again_and_carried, closed, committed)


def facts(store):
    """Return what peers received of each log, without the commit index, which is sent again."""
    return {
        log.log_id: (log.last_index, log.hard_state.term, log.hard_state.vote, log.lost)
        for log in store.logs.values()
    }


@pytest.mark.parametrize("end", ENDS, ids=lambda end: end.__name__)
def test_directory_is_behind_when_a_record_is_gone_and_not_otherwise(tmp_path, writer, end):
    """Flip bits anywhere in the newest file.

    A record that is damaged and proved costs its log, which reports the loss itself.
    """
    harness = make("disk", tmp_path)
    log = harness.new_log(9)
    put(harness, log, writer, 2, size=400)
    harness.workers.advance(1_000)
    end(harness, log, writer)
    store = harness.store
    mark = JournalMark(store.boots[-1].number, store.boots[-1].boot_id, store.durable_lsn)
    before = facts(store)
    harness.crash()
    root, aside = Path(harness.directory), tmp_path / "aside"
    shutil.copytree(root, aside)
    headers = {p: decode_file_header(p.read_bytes()) for p in (root / "journal").iterdir()}
    newest, header = max(
        ((p, h) for p, h in headers.items() if h is not None), key=lambda item: item[1].sequence
    )
    blocks = range(header.bytes, newest.stat().st_size, PAGE_BYTES)
    written = [at for at in blocks if any(newest.read_bytes()[at : at + PAGE_BYTES])]
    assert written
    outcomes = []
    for at in written:
        flip_bit(newest, at + 20)
        harness.start()
        is_lost = facts(harness.store) != before
        is_told = any(log.lost for log in harness.store.logs.values())
        behind = is_behind(harness.store.boots, mark)
        outcomes.append((at, is_lost, is_told, behind))
        harness.crash()
        shutil.rmtree(root)
        shutil.copytree(aside, root)
    assert [o for o in outcomes if o[3] and not o[1]] == []  # healthy, and would be replaced
    assert [o for o in outcomes if o[1] and not o[2] and not o[3]] == []  # lost, and not reported
    assert (just_appended is not end) or any(behind for *_, behind in outcomes)
