"""The latest events of a server are bounded, shared between their owners, and counted."""

from __future__ import annotations

import logging

import pytest

from vdl.events import (
    BYTES_MAX,
    ENTRIES_MAX,
    NOTED,
    STRETCH_MS,
    TEXT_CHARS_MAX,
    Events,
    Kind,
    topic_of,
)
from vdl.log import EventLog


class Clock:
    def __init__(self) -> None:
        self.now_ms = 1_000

    def __call__(self) -> int:
        return self.now_ms


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def events(clock: Clock) -> Events:
    return Events(clock)


def refuse(events: Events, partition: str, error: str = "X", message: str = "") -> None:
    fields = {"partition": partition, "error": error, "message": message}
    events.add("produce_refused", "", fields)


def test_repetitions_within_a_stretch_are_one_event_with_a_count(
    events: Events, clock: Clock
) -> None:
    for _ in range(3):
        refuse(events, "orders-0")
        clock.now_ms += STRETCH_MS
    (one,) = events.rings[Kind.REFUSAL]
    assert (one.count, one.first_ms, one.last_ms) == (3, 1_000, 1_000 + 2 * STRETCH_MS)
    clock.now_ms += 1
    refuse(events, "orders-0")
    assert [one.count for one in events.rings[Kind.REFUSAL]] == [3, 1]


def test_repetitions_keep_the_worst_where_there_is_one(events: Events) -> None:
    for total_ms in (500, 900, 700):
        events.add("slow_request", "", {"client": "c", "api": "Produce", "total_ms": total_ms})
    (one,) = events.rings[Kind.CLIENT]
    assert (one.count, one.fields["total_ms"]) == (3, 900)


def test_full_ring_drops_events_of_the_noisiest_owner(events: Events) -> None:
    """A topic with few events keeps them, however many another one has."""
    refuse(events, "quiet-0")
    for number in range(2 * ENTRIES_MAX):
        refuse(events, f"noisy-{number}")
    ring = events.rings[Kind.REFUSAL]
    assert ring.entries == ENTRIES_MAX
    assert ring.dropped == ENTRIES_MAX + 1
    assert len(list(ring.of("quiet"))) == 1
    assert ring.dropped_until_ms("quiet") == 0
    assert ring.dropped_until_ms("noisy") == ring.last_dropped_ms == 1_000
    assert [one.fields["partition"] for one in ring.of("noisy")][-1] == (
        f"noisy-{2 * ENTRIES_MAX - 1}"
    )


def test_many_owners_are_bounded_and_the_oldest_goes(events: Events, clock: Clock) -> None:
    for number in range(3 * ENTRIES_MAX):
        clock.now_ms += 1
        refuse(events, f"t{number}-0")
    ring = events.rings[Kind.REFUSAL]
    assert ring.entries == len(list(ring)) == ENTRIES_MAX
    assert not list(ring.of("t0"))
    assert ring.dropped_until_ms("t0") > 1_000
    assert list(ring.of(f"t{3 * ENTRIES_MAX - 1}"))


def test_bytes_are_bounded_and_texts_are_cut(events: Events) -> None:
    for number in range(ENTRIES_MAX):
        refuse(events, f"t-{number}", message="\x1b\N{SNOWMAN}" * 10_000)
    ring = events.rings[Kind.REFUSAL]
    assert ring.bytes <= BYTES_MAX
    assert ring.entries < ENTRIES_MAX
    assert all(len(str(one.fields["message"])) == TEXT_CHARS_MAX for one in ring)
    assert ring.bytes == sum(one.bytes for one in ring)


def test_clients_push_out_nothing_that_the_server_reports_of_itself(events: Events) -> None:
    events.add("disk_full", "error", {})
    events.add("elected", "", {"partition": "orders-0", "term": 2})
    for number in range(3 * ENTRIES_MAX):
        refuse(events, f"t{number}-0")
        events.add("throttled", "", {"client": f"c{number}", "api": "Fetch", "quota": "q"})
        events.add("rebalance_began", "", {"group": f"g{number}", "cause": "member_joined"})
    assert [one.event for one in events.rings[Kind.SERVER]] == ["disk_full"]
    assert [one.event for one in events.rings[Kind.PARTITION]] == ["elected"]


def test_lines_of_the_log_are_kept_and_notes_have_no_line(
    events: Events, caplog: pytest.LogCaptureFixture
) -> None:
    log = EventLog(logging.getLogger("vdl.test"), events).part("more")
    with caplog.at_level(logging.INFO, "vdl.test"):
        log.warning("quorum_lost", missing="2,3", meaning="left out")
        log.info("state_complete", partition="orders-7")
        log.note("elected", partition="orders-7")
        log.info("leads", partitions=1, names="orders-7", leading=1)
    assert [record.getMessage() for record in caplog.records] == [
        "quorum_lost", "state_complete", "leads",
    ]  # fmt: skip
    (lost,) = events.rings[Kind.SERVER]
    assert (lost.level, lost.fields) == ("warning", {"missing": "2,3"})
    assert [one.event for one in events.rings[Kind.PARTITION].of("orders")] == [
        "state_complete", "elected",
    ]  # fmt: skip


def test_topics_are_found_in_the_names_of_partitions() -> None:
    names = {"orders-0": "orders", "a-b-12": "a-b", "catalog": "catalog", "x-y": "x-y", "-1": "-1"}
    assert {name: topic_of(name) for name in names} == names


def test_kinds_of_noted_events_name_their_owner_among_what_makes_them_the_same() -> None:
    """Otherwise one owner's repetitions would count as another's."""
    for event, noted in NOTED.items():
        assert not noted.same or noted.owner in noted.same, event
