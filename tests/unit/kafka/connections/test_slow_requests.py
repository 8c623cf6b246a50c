"""Slow requests: the slowest of each minute, traces with bounds, and what they cost in memory."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest

from rpc.traces import TracedRequest, TraceFilter
from vdl.clock import MS
from vdl.kafka.connections import slow_requests
from vdl.kafka.connections.slow_requests import (
    LEAST_SLOW_NS,
    MINUTE_NS,
    MINUTES,
    SLOWEST,
    TRACES_MAX,
    UNKNOWN,
    UNREAD_NS,
    SlowRequests,
)


class Time:
    now_ns = 7 * MINUTE_NS

    def __call__(self) -> int:
        return self.now_ns


class Requests:
    """Requests that end one after the other, as sessions note them: only those above the
    threshold."""

    def __init__(self) -> None:
        self.time = Time()
        self.by_api: dict[str, Any] = {
            "Produce": SimpleNamespace(slow_ns=LEAST_SLOW_NS),
            "Fetch": SimpleNamespace(slow_ns=LEAST_SLOW_NS),
        }
        self.slow = SlowRequests(self.by_api, self.time)
        self.looked_at = 0

    def ends(self, ms: float, api: str = "Produce", topic: str = "t", **more: Any) -> None:
        busy_ns = int(ms * MS)
        if busy_ns >= self.by_api[api].slow_ns:
            self.looked_at += 1
            topics = frozenset({topic})
            self.slow.note(TracedRequest(api=api, busy_ns=busy_ns, topics=topics, **more))

    def slowest(self, api: str = "Produce") -> list[int]:
        found = [one.busy_ns // MS for one in self.slow.slowest() if one.api == api]
        return sorted(found, reverse=True)


@pytest.fixture
def requests() -> Requests:
    return Requests()


def test_ring_has_the_slowest_of_each_api_and_minute(requests: Requests) -> None:
    """As a sort of all requests says, though few of them are looked at."""
    rng = random.Random(1)
    expected: list[int] = []
    for minute in range(3):
        requests.time.now_ns = (7 + minute) * MINUTE_NS
        requests.slow.turn_minute()
        durations = [rng.randrange(2, 100_000) for _ in range(2_000)]
        for ms in durations:
            requests.ends(ms)
            requests.ends(ms / 2, "Fetch")
        expected += sorted(durations)[-SLOWEST:]
    assert requests.slowest() == sorted(expected, reverse=True)
    assert len(requests.slowest("Fetch")) == 3 * SLOWEST
    assert requests.looked_at < 600


def test_ring_forgets_after_its_minutes(requests: Requests) -> None:
    requests.ends(50)
    requests.time.now_ns += (MINUTES - 1) * MINUTE_NS
    assert requests.slowest() == [50]
    requests.time.now_ns += MINUTE_NS
    assert requests.slowest() == []
    assert requests.slow.bytes == 0


def test_requests_below_a_millisecond_are_not_looked_at(requests: Requests) -> None:
    requests.ends(0.9)
    assert requests.looked_at == 0
    assert requests.slowest() == []


def test_ring_is_bounded_in_bytes(requests: Requests, monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest minute goes first; the count of bytes is that of the requests kept."""
    one = TracedRequest(client_id="x" * 256).bytes
    monkeypatch.setattr(slow_requests, "RING_BYTES_MAX", 10 * one)
    for minute in range(4):
        requests.time.now_ns = (7 + minute) * MINUTE_NS
        requests.slow.turn_minute()
        for ms in range(2, 8):
            requests.ends(ms, client_id="x" * 256)
        assert requests.slow.bytes <= 10 * one
    assert requests.slow.bytes == sum(one.bytes for one in requests.slow.slowest())
    assert 6 <= len(requests.slowest()) <= 10


def filtered(**more: Any) -> TraceFilter:
    return TraceFilter(**{"duration_ns": 10_000 * MS, "requests_max": 100, **more})


def test_trace_takes_what_its_filter_selects(requests: Requests) -> None:
    for _ in range(SLOWEST):
        requests.ends(1_000)  # the ring is full of slow ones
    wanted = filtered(apis=["Produce"], topics=["t"], client_ids=["c"], slower_than_ns=50 * MS)
    trace = requests.slow.start(wanted)
    requests.ends(60, client_id="c")
    requests.ends(40, client_id="c")
    requests.ends(60, client_id="d")
    requests.ends(60, topic="u", client_id="c")
    requests.ends(60, "Fetch", client_id="c")
    found = requests.slow.read(trace, ends=False)
    assert [one.busy_ns // MS for one in found.requests] == [60]
    assert found.ended == ""
    assert requests.slow.read(trace, ends=True).ended == "it was stopped"
    assert requests.slow.read(trace, ends=False).ended == UNKNOWN


def test_trace_over_costs_nothing(requests: Requests) -> None:
    """Once it has its number, the threshold is that of the ring again."""
    trace = requests.slow.start(filtered(requests_max=2))
    assert requests.by_api["Produce"].slow_ns == 0
    for _ in range(5):
        requests.ends(0.5)
    requests.slow.turn_minute()
    assert requests.by_api["Fetch"].slow_ns == LEAST_SLOW_NS
    assert requests.looked_at == 2
    found = requests.slow.read(trace, ends=False)
    assert (len(found.requests), found.ended) == (2, "it has its number of requests")
    assert requests.slow.bytes == 0


def test_trace_ends_with_its_time(requests: Requests) -> None:
    trace = requests.slow.start(filtered(duration_ns=1_000 * MS))
    requests.time.now_ns += 1_000 * MS
    requests.ends(500)
    assert requests.slow.running == 0
    found = requests.slow.read(trace, ends=False)
    assert (found.requests, found.ended) == ([], "its time is over")


def test_trace_ends_after_its_looks(requests: Requests, monkeypatch: pytest.MonkeyPatch) -> None:
    """A filter that selects nothing must not make each request dearer for long."""
    monkeypatch.setattr(slow_requests, "LOOKS_MAX", 10)
    trace = requests.slow.start(filtered(topics=["other"]))
    for _ in range(20):
        requests.ends(0.5)
    assert requests.looked_at == 10
    assert "looked at" in requests.slow.read(trace, ends=False).ended


def test_traces_are_bounded_in_number_and_bytes(
    requests: Requests, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = TracedRequest().bytes
    monkeypatch.setattr(slow_requests, "TRACE_BYTES_MAX", 3 * one)
    traces = [requests.slow.start(filtered()) for _ in range(TRACES_MAX)]
    assert all(traces)
    assert requests.slow.start(filtered()) == 0
    for _ in range(5):
        requests.ends(0.5)
    assert requests.slow.bytes == TRACES_MAX * 3 * one
    found = requests.slow.read(traces[0], ends=False)
    assert (len(found.requests), found.ended) == (3, "its memory is full")


def test_trace_that_is_not_read_is_dropped(requests: Requests) -> None:
    requests.slow.start(filtered(duration_ns=600_000 * MS))
    requests.ends(0.5)
    requests.time.now_ns += UNREAD_NS
    requests.slow.turn_minute()
    assert requests.slow.bytes == 0
    assert requests.by_api["Produce"].slow_ns == LEAST_SLOW_NS
