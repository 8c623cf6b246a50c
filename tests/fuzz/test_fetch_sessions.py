"""A short run of the fuzzer of Fetch sessions; `make fuzz` is the long one."""

from __future__ import annotations

from tests.fuzz.fetch_sessions import run

ROUNDS = 40


def test_consumers_with_sessions_get_each_record_once() -> None:
    """The first seeds that found requests kept in a cycle, and a full answer without partitions."""
    run(ROUNDS, seed=1)
