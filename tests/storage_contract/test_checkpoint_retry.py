"""A checkpoint that a full disk refused is retried until it succeeds."""

import pytest

from segments.api import HardState, StoredEntry
from segments.io import failpoint
from tests.storage_contract.conftest import SMALL, DiskHarness


@pytest.fixture
def harness(tmp_path):
    made = DiskHarness(SMALL, directory=str(tmp_path / "data"))
    made.start()
    yield made
    failpoint.arm("")
    made.close()


def test_retry_that_meets_a_chore_is_not_the_last(harness):
    """Files of a deleted log are being removed when the retry falls due.

    The disk must not count as full for ever.
    """
    log = harness.new_log()
    failpoint.arm("flush.written:enospc")
    harness.store.append(log, [StoredEntry(1, n + 1, 0, bytes(500), n, 1, n) for n in range(50)])
    harness.store.set_hard_state(log, HardState(1, 0, 50))
    harness.store.submit()
    harness.pump()
    harness.store.checkpoint()
    harness.workers.advance(100)
    assert harness.store.disk_full
    failpoint.arm("")
    vars(harness.store)["checkpoint_may_begin"] = lambda: False
    harness.workers.advance(1_500)
    assert harness.store.disk_full
    del vars(harness.store)["checkpoint_may_begin"]
    harness.workers.advance(1_500)
    assert not harness.store.disk_full
