"""A snapshot's state and its reset are atomic, on every backend.

Between the reset and the checkpoint that stores the state that the owner made of it, a process may
die at any moment. The next start then finds the old log without the state, the new log with it, or
the new log and a checkpoint that covers it.
"""

import random

import pytest

from segments.api import HardState, MetaBatch
from segments.io import failpoint

STATE = bytes(range(256)) * 5


def reset(harness, log, first_index=500, state=STATE, **where):
    where = {"prev_term": 6, "next_offset": 9000, **where}
    harness.store.reset_log(log, first_index=first_index, state=state, **where)


def fill(harness, log, writer, count, size=150):
    make = writer(log)
    for _ in range(count):
        harness.store.append(log, make.entries(1, term=7, size=size))
        harness.store.set_hard_state(log, HardState(7, 1, log.last_index))
        harness.submit()


def journal_files(harness):
    """Return the number of journal files; the model has none."""
    return harness.store.stats().get("journal_files", 0)


def cover(harness, log, applied=None):
    applied = log.first_index - 1 if applied is None else applied
    harness.collect(MetaBatch(log.log_id, applied, [(b"k", b"new")], clear=True))
    harness.checkpoint()


def test_state_of_a_reset_is_there_at_once_and_after_a_crash(harness):
    """reset_log: `state` is part of the same record, whatever happens to the caller's buffer."""
    log = harness.new_log()
    assert log.installed_state == b""
    buffer = bytearray(STATE)
    reset(harness, log, state=memoryview(buffer))
    buffer[:] = bytes(len(buffer))
    assert log.installed_state == STATE
    harness.submit()
    for _ in range(3):
        log = harness.reopen()
        assert log.installed_state == STATE
        assert (log.first_index, log.last_index, log.commit_index) == (500, 499, 499)
        assert (log.term(499), log.next_offset, log.log_start_offset) == (6, 9000, 9000)


def test_reset_that_is_not_durable_leaves_the_state_before_it(harness):
    """All or nothing: without the reset its state is absent, and the previous one stays."""
    log = harness.new_log()
    reset(harness, log, 100, b"first")
    harness.submit()
    reset(harness, log, 200, b"second")
    log = harness.reopen()
    assert (log.first_index, log.installed_state) == (100, b"first")
    reset(harness, log, 300, b"")
    assert log.installed_state == b""
    log = harness.reopen()
    assert (log.first_index, log.installed_state) == (100, b"first")
    reset(harness, log, 300, b"")
    harness.submit()
    log = harness.reopen()
    assert (log.first_index, log.installed_state) == (300, b"")


@pytest.mark.parametrize("last", [499, 505])
def test_checkpoint_of_the_whole_state_covers_the_reset(harness, writer, last):
    """installed_state: until a MetaBatch with `clear`, collected after it, is durable."""
    log = harness.new_log()
    reset(harness, log)
    harness.submit()
    fill(harness, log, writer, last - 499)
    cover(harness, log, applied=last)
    assert log.installed_state == b""
    for _ in range(2):
        log = harness.reopen()
        assert (log.installed_state, log.applied_index) == (b"", last)
        assert harness.store.load_meta(log) == (last, [(b"k", b"new")])
        assert log.first_index == 500


def test_checkpoint_of_changes_alone_does_not_cover_the_reset(harness, writer):
    """Changes are not the whole state; neither is what was applied before the reset."""
    log = harness.new_log()
    fill(harness, log, writer, 20)
    reset(harness, log)
    harness.submit()
    for batch in (
        MetaBatch(log.log_id, 499, [(b"a", b"1")]),
        MetaBatch(log.log_id, 20, [(b"a", b"2")], clear=True),
    ):
        harness.collect(batch)
        harness.checkpoint()
        assert log.installed_state == STATE
    log = harness.reopen()
    assert log.installed_state == STATE
    assert log.first_index == 500
    cover(harness, log)
    assert harness.reopen().installed_state == b""


def test_checkpoint_collected_before_the_reset_does_not_cover_it(harness, writer):
    """`clear` and a high applied index are not enough: the batch must be collected later."""
    log = harness.new_log()
    fill(harness, log, writer, 20)
    harness.collect(MetaBatch(log.log_id, 20, [(b"old", b"1")], clear=True))
    harness.store.checkpoint()
    reset(harness, log, 21, b"state at twenty")
    harness.submit()
    harness.workers.advance(200)
    assert log.installed_state == b"state at twenty"
    assert harness.reopen().installed_state == b"state at twenty"


def test_meta_of_a_reset_that_is_not_durable_waits_for_it(harness):
    """Applied state is never ahead of its log, also when a checkpoint is faster than the journal.

    A crash there finds the old log and the old state.
    """
    log = harness.new_log()
    reset(harness, log)
    harness.collect(MetaBatch(log.log_id, 499, [(b"k", b"new")], clear=True))
    harness.store.checkpoint()
    harness.pump()
    log = harness.reopen()
    assert not log.lost
    assert (log.first_index, log.applied_index, log.installed_state) == (1, 0, b"")
    assert harness.store.load_meta(log) == (0, [])
    reset(harness, log)
    harness.collect(MetaBatch(log.log_id, 499, [(b"k", b"new")], clear=True))
    harness.store.checkpoint()
    harness.pump()
    assert log.installed_state == STATE
    harness.submit()
    harness.checkpoint()
    assert log.installed_state == b""
    log = harness.reopen()
    assert (log.applied_index, log.installed_state) == (499, b"")


def test_second_reset_to_the_same_index_has_its_own_state(harness):
    """The batch that covered the first reset does not cover the second."""
    log = harness.new_log()
    reset(harness, log, state=b"first")
    harness.submit()
    cover(harness, log)
    reset(harness, log, state=b"second")
    harness.submit()
    assert harness.reopen().installed_state == b"second"


def test_state_stays_while_journal_files_come_and_go(harness, writer):
    """The record is written again at the journal's head before its file is reused."""
    log = harness.new_log()
    reset(harness, log)
    harness.submit()
    for _ in range(12):
        fill(harness, log, writer, 30, size=700)
        harness.checkpoint()
    assert log.installed_state == STATE
    assert journal_files(harness) <= 6
    for _ in range(2):
        log = harness.reopen()
        assert log.installed_state == STATE
        assert (log.first_index, log.last_index) == (500, 859)
        assert len(harness.all_entries(log)) == 360
    cover(harness, log, applied=log.last_index)
    assert harness.reopen().installed_state == b""


def test_state_stays_when_checkpoints_fail(make_harness, writer, tmp_path, request):
    """Checkpoints fail on a full disk: nothing is covered, and nothing is lost."""
    harness = make_harness("disk", tmp_path)
    log = harness.new_log()
    reset(harness, log)
    harness.submit()

    request.addfinalizer(lambda: failpoint.arm(""))
    failpoint.arm("flush.written:enospc,meta.before_commit:enospc")
    harness.collect(MetaBatch(log.log_id, 499, [(b"k", b"new")], clear=True))
    for _ in range(5):
        fill(harness, log, writer, 40, size=700)
        harness.store.checkpoint()
        harness.workers.advance(300)
        assert log.installed_state == STATE
    failpoint.arm("")
    crashed = harness.reopen()
    assert (crashed.installed_state, crashed.last_index) == (STATE, 699)
    cover(harness, crashed)
    again = harness.reopen()
    assert (again.installed_state, again.applied_index) == (b"", 499)
    harness.crash()


def test_covering_state_of_a_failed_checkpoint_covers_with_the_next(
    make_harness, writer, tmp_path, request
):
    """The batch is collected once and written later: it still is the whole state."""
    harness = make_harness("disk", tmp_path)
    log = harness.new_log()
    reset(harness, log)
    harness.submit()
    fill(harness, log, writer, 40, size=700)

    request.addfinalizer(lambda: failpoint.arm(""))
    failpoint.arm("flush.written:enospc,meta.before_commit:enospc")
    harness.collect(MetaBatch(log.log_id, 499, [(b"k", b"new")], clear=True))
    harness.store.checkpoint()
    harness.pump()
    assert log.installed_state == STATE
    failpoint.arm("")
    harness.collect(MetaBatch(log.log_id, 510, [(b"l", b"more")]))
    harness.checkpoint()
    assert log.installed_state == b""
    log = harness.reopen()
    assert log.installed_state == b""
    assert harness.store.load_meta(log) == (510, [(b"k", b"new"), (b"l", b"more")])
    harness.crash()


def test_large_state_is_durable_as_a_whole(harness, writer):
    """A state of 24 MiB in a journal whose files are thousands of times smaller."""
    state = random.Random(3).randbytes(24 << 20)
    log = harness.new_log()
    harness.store.append(log, writer(log).entries(40, size=900))
    reset(harness, log, state=state)
    harness.store.append(log, writer(log).entries(40, term=7, size=900))
    harness.submit()
    log = harness.reopen()
    assert log.installed_state == state
    assert (log.first_index, log.last_index) == (500, 539)
    harness.store.set_hard_state(log, HardState(7, 1, 539))
    harness.submit()
    cover(harness, log)
    fill(harness, log, writer, 200)
    harness.checkpoint()
    assert journal_files(harness) < 8
    log = harness.reopen()
    assert (log.installed_state, log.last_index) == (b"", 739)


def test_trim_behind_an_installed_state_waits_for_its_checkpoint(harness, writer):
    """trim_log: after a crash the entries behind a reset follow its state."""
    log = harness.new_log()
    reset(harness, log)
    fill(harness, log, writer, 60)
    with pytest.raises(AssertionError):
        harness.store.trim_log(log, first_index=530)
    cover(harness, log, applied=550)
    harness.store.trim_log(log, first_index=530)
    harness.submit()
    log = harness.reopen()
    assert (log.first_index, log.term(529), log.offset_after(529)) == (530, 7, 9030)
    assert log.installed_state == b""


def test_two_logs_of_one_group_live_side_by_side(harness, writer):
    """create_log, delete_log: a successor exists before its replica goes, across crashes."""
    old = harness.new_log(9, 1)
    fill(harness, old, writer, 60)
    new = harness.new_log(9, 2, first_index=1)
    reset(harness, new, 40, b"handed over", prev_term=7, next_offset=39)
    harness.submit()

    def look():
        by_number = {log.replica_number: log for log in harness.store.logs.values()}
        assert all(log.group_id == 9 for log in by_number.values())
        return by_number

    harness.reopen()
    logs = look()
    assert sorted(logs) == [1, 2]
    assert (logs[1].last_index, len(harness.all_entries(logs[1]))) == (60, 60)
    assert (logs[2].first_index, logs[2].installed_state) == (40, b"handed over")
    harness.store.delete_log(logs[1].log_id)
    assert list(look()) == [2]
    harness.reopen()  # the identity was not written: the log is still there as a whole
    if len(harness.store.logs) == 2:
        assert len(harness.all_entries(look()[1])) == 60
        harness.store.delete_log(look()[1].log_id)
    harness.pump()
    for _ in range(2):
        harness.reopen()
        logs = look()
        assert list(logs) == [2]
        assert (logs[2].first_index, logs[2].installed_state) == (40, b"handed over")
    fill(harness, logs[2], writer, 30)
    harness.checkpoint()
    harness.reopen()
    assert len(harness.all_entries(look()[2])) == 30


def test_covering_state_that_was_late_does_not_cover_the_next_reset(
    make_harness, writer, tmp_path, request
):
    """The batch was refused by a full disk and written after another reset.

    It was made of the first one's state.
    """
    request.addfinalizer(lambda: failpoint.arm(""))
    harness = make_harness("disk", tmp_path)
    log = harness.new_log()
    reset(harness, log, state=b"first")
    harness.submit()
    failpoint.arm("meta.before_commit:enospc")
    harness.collect(MetaBatch(log.log_id, 499, [(b"k", b"new")], clear=True))
    harness.store.checkpoint()
    harness.pump()
    reset(harness, log, 600, state=b"second")
    harness.submit()
    failpoint.arm("")
    harness.workers.advance(3000)
    assert harness.store.load_meta(log)[0] == 499
    assert log.installed_state == b"second"
    assert harness.reopen().installed_state == b"second"
    harness.crash()


def test_flush_that_a_reset_overtook_counts_for_nothing(make_harness, writer, tmp_path):
    """A checkpoint of the previous log is under way during the reset.

    Neither its segments nor its removals may touch the log that follows.
    """
    harness = make_harness("disk", tmp_path)
    log = harness.new_log()
    fill(harness, log, writer, 40, size=700)
    harness.store.checkpoint()
    reset(harness, log, 500)
    harness.store.submit()
    reset(harness, log, 600)
    harness.submit()
    harness.workers.advance(200)
    assert (log.flushed_index, log.segments) == (599, ())
    fill(harness, log, writer, 40, size=700)
    harness.checkpoint()
    assert log.flushed_index == 639
    log = harness.reopen()
    assert (log.first_index, log.last_index, log.installed_state) == (600, 639, STATE)
    assert len(harness.all_entries(log)) == 40
    harness.crash()
