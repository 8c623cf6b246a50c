"""Reads behind the tail that share a disk read: each gets what it requested."""

from segments.api import HardState, StoredEntry


def test_reader_that_joins_a_read_which_ends_earlier_is_given_what_lies_behind(bench):
    """A reader that joins a read which ends earlier gets the entries behind it.

    The first one may read no further than the stable entries, and up to there only emptied ones
    remain. An empty result would make the other one wait although there are records.
    """
    (log,) = bench.create()
    for n in range(1, 21):
        data = bytes([n]) * 2_000 if n > 10 else b""
        bench.store.append(log, [StoredEntry(1, n, 0, data, n - 1, 1, n)])
    bench.store.set_hard_state(log, HardState(1, 1, 20))
    bench.store.submit()
    bench.workers.pump()
    bench.checkpoint()
    assert log.flushed_index == 20
    answers = []
    for end in (10, 20, 5):
        bench.store.read_cold(log, 0, end, 1 << 20, answers.append)
    bench.workers.pump()
    assert sorted((found.bytes, found.end_offset) for found in answers) == [
        (0, 0), (0, 0), (20_000, 20),
    ]  # fmt: skip
