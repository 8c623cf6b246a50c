"""Bytes that a stream may hold, by the measured rate of its link."""

from __future__ import annotations

import pytest

from rpc.backlog import (
    BACKLOG_BYTES_FIRST,
    BACKLOG_BYTES_MAX,
    BACKLOG_BYTES_MIN,
    BACKLOG_NS,
    Backlog,
)

SECOND_NS = 1_000_000_000


def fill(backlog: Backlog, rate: int, *, times: int, late_ns: int = 0) -> None:
    """Simulate a loop that always has more to send, over a link of `rate`.

    It is notified, late, when half has left.
    """
    now_ns = 1
    for _ in range(times):
        unsent = backlog.bytes_max
        backlog.full(unsent, now_ns)
        now_ns += unsent // 2 * SECOND_NS // rate + late_ns
        left = unsent // 2 + late_ns * rate // SECOND_NS
        backlog.drained(max(0, unsent - left), now_ns)


@pytest.mark.parametrize("rate", [1_300_000, 12_500_000, 125_000_000])
def test_backlog_is_what_the_link_carries_in_a_moment(rate: int) -> None:
    """Bytes waiting in the stream take 50 ms, whatever the link."""
    backlog = Backlog()
    fill(backlog, rate, times=40)
    assert backlog.bytes_max == pytest.approx(
        max(BACKLOG_BYTES_MIN, rate * BACKLOG_NS // SECOND_NS), rel=0.05
    )
    assert backlog.is_bounded


def test_backlog_is_bounded_both_ways() -> None:
    """The bound is never zero on the slowest link, nor more than a link may have queued."""
    backlog = Backlog()
    fill(backlog, 1_000, times=40)
    assert backlog.bytes_max == BACKLOG_BYTES_MIN
    fill(backlog, 10 * SECOND_NS, times=40)
    assert backlog.bytes_max == BACKLOG_BYTES_MAX
    assert not backlog.is_bounded


def test_backlog_grows_while_the_stream_runs_dry() -> None:
    """A loop that runs late finds it empty: the link must not idle for that."""
    backlog = Backlog()
    rate, late_ns = 12_500_000, 200_000_000
    fill(backlog, rate, times=40, late_ns=late_ns)
    assert backlog.bytes_max >= late_ns * rate // SECOND_NS


def test_backlog_survives_a_stall() -> None:
    """One retransmission timeout does not make a slow link."""
    backlog = Backlog()
    fill(backlog, 12_500_000, times=40)
    before = backlog.bytes_max
    backlog.full(before, 1)
    backlog.drained(before // 2, 1 + 10 * SECOND_NS)
    assert backlog.bytes_max >= before * 7 // 10
    assert Backlog().bytes_max == BACKLOG_BYTES_FIRST


def test_stream_that_was_not_full_tells_nothing() -> None:
    """A stream that accepts nothing, as before its handshake is done, does not change the bound."""
    backlog = Backlog()
    backlog.drained(0, SECOND_NS)
    assert backlog.bytes_max == BACKLOG_BYTES_FIRST


def test_stream_that_is_empty_when_it_takes_no_more_is_not_what_bounds_the_link() -> None:
    """Everything was sent and waits for the other end to read.

    The bound is in the in-flight bytes then.
    """
    backlog = Backlog()
    backlog.full(0, 1)
    backlog.drained(0, SECOND_NS)
    assert backlog.bytes_max == 2 * BACKLOG_BYTES_FIRST


def test_bytes_that_leave_in_a_lump_are_no_fast_link() -> None:
    """A last burst within zero time suggested 45 MB/s where there were 1.9.

    Heartbeats waited for 0.8 s.
    """
    backlog = Backlog()
    fill(backlog, 1_960_000, times=40)
    before = backlog.bytes_max
    backlog.full(before // 2, 1)
    backlog.drained(before // 2 - 16_384, 400_001)
    assert backlog.bytes_max == before
    backlog.full(before, 1)
    backlog.drained(before // 3, 400_001)
    assert backlog.bytes_max == 2 * before
