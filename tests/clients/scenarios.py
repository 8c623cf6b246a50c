"""Uses of a Kafka client by applications, each written once for all clients.

A scenario is a function of a `Stage`: the drivers of one client, and topics to create. It asserts
what the application may rely on, never how the client achieves it. SCENARIOS lists them with the
number of drivers (processes, hence group members) that each needs.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest

from tests.clients.driver import Driver, DriverFailed, Partition, Record
from tests.clients.topics import Topics

COMPRESSIONS = ("none", "gzip", "snappy", "lz4", "zstd")
WAIT_SECONDS_MAX = 30.0
QUIET_POLLS = 3
"""Number of polls without a record after which no more are expected."""
BASE_TIMESTAMP = 1_700_000_000_000


@dataclass(frozen=True, slots=True)
class Stage:
    """Resources of a scenario."""

    drivers: Sequence[Driver]
    topics: Topics
    sends_null_headers: bool

    @property
    def driver(self) -> Driver:
        return self.drivers[0]


@dataclass(frozen=True, slots=True)
class Scenario:
    name: str
    play: Callable[[Stage], None]
    drivers: int = 1


# --- records and waiting --------------------------------------------------------------------------


def numbered(topic: str, numbers: range, *, partition: int = 0) -> list[Record]:
    """Return records whose value is their number."""
    return [
        Record(topic, partition, b"k%d" % (n % 7), b"%d" % n, BASE_TIMESTAMP + n) for n in numbers
    ]


def varied(topic: str, *, seed: int, has_null_header: bool) -> list[Record]:
    """Return records of every shape.

    They have null and empty keys and values, headers, timestamps out of order, compressible text
    and incompressible bytes.
    """
    blob = bytes((seed * 131 + i * i * 7 + i * 13) % 256 for i in range(3_000))
    ahead, behind = BASE_TIMESTAMP + 1_000_000 * seed, BASE_TIMESTAMP - 5_000
    none = None if has_null_header else b"none"
    return [
        Record(topic, 0, None, b"plain", ahead),
        Record(topic, 0, b"tombstone", None, ahead + 1),
        Record(topic, 0, b"", b"", ahead + 2),
        Record(topic, 0, "schlüssel-ключ".encode(), "wert-значение-値".encode(), behind),
        Record(topic, 0, b"headers", b"h", ahead + 3, (("a", b"1"), ("a", b"2"), ("ü", b""))),
        Record(topic, 0, b"null header", b"h", ahead + 4, (("none", none),)),
        Record(topic, 0, b"long", b"compressible " * 2_000, ahead + 5),
        Record(topic, 0, b"blob", blob, ahead + 6),
        *(Record(topic, 0, b"%d" % n, b"row %d" % n, ahead + 10 + n) for n in range(50)),
    ]


def read(driver: Driver, count: int) -> list[tuple[int, Record]]:
    """Poll until `count` records came; return (offset, record) in the order of arrival."""
    found: list[tuple[int, Record]] = []
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    while len(found) < count:
        assert time.monotonic() < deadline, f"{len(found)} of {count} records came"
        found += driver.poll().records
    return found


def assert_quiet(driver: Driver) -> None:
    """Check that no more records come."""
    for _ in range(QUIET_POLLS):
        assert driver.poll(100).records == []


def numbers_of(found: Sequence[tuple[int, Record]]) -> list[int]:
    return [int(record.value or b"-1") for _, record in found]


def all_partitions(topic: str, partitions: int) -> list[Partition]:
    return [(topic, number) for number in range(partitions)]


# --- producing ------------------------------------------------------------------------------------


def produce_with(compression: str) -> Callable[[Stage], None]:
    """Every part of a record survives, in order, at the acknowledged offset."""

    def play(stage: Stage) -> None:
        topic = stage.topics.create(f"codec-{compression}")
        seed = COMPRESSIONS.index(compression) + 1
        sent = varied(topic, seed=seed, has_null_header=stage.sends_null_headers)
        offsets = stage.driver.produce(sent, compression=compression)
        assert offsets == [(0, n) for n in range(len(sent))]
        stage.driver.open()
        stage.driver.ask("assign", partitions=[(topic, 0)])
        assert read(stage.driver, len(sent)) == list(enumerate(sent))

    return play


def produce_idempotently(stage: Stage) -> None:
    """Many small batches in flight: dense offsets, no duplicates, the order of sending."""
    topic = stage.topics.create("idempotent", partitions=3)
    sent = [record for n in range(3) for record in numbered(topic, range(300), partition=n)]
    offsets = stage.driver.produce(sent, idempotent=True, batch_bytes=1_000)
    assert offsets == [(n, offset) for n in range(3) for offset in range(300)]
    stage.driver.open()
    stage.driver.ask("assign", partitions=all_partitions(topic, 3))
    found = read(stage.driver, len(sent))
    for partition in range(3):
        of_partition = [pair for pair in found if pair[1].partition == partition]
        assert numbers_of(of_partition) == list(range(300))
        assert [offset for offset, _ in of_partition] == list(range(300))
    assert_quiet(stage.driver)


# --- what to consume ------------------------------------------------------------------------------


def subscribe_to_topics(stage: Stage) -> None:
    """A list of topics: all their partitions, and no others."""
    wanted = [stage.topics.create("listed", partitions=2) for _ in range(2)]
    other = stage.topics.create("unlisted")
    sent = [*numbered(wanted[0], range(10)), *numbered(wanted[1], range(10, 20), partition=1)]
    stage.driver.produce([*sent, *numbered(other, range(90, 99))])
    stage.driver.open(group=stage.topics.unused_name("group"))
    stage.driver.ask("subscribe", topics=wanted)
    found = read(stage.driver, 20)
    assert sorted(numbers_of(found)) == list(range(20))
    assert {record.topic for _, record in found} == set(wanted)
    owned = frozenset(pair for topic in wanted for pair in all_partitions(topic, 2))
    assert stage.driver.poll(100).owned == owned


def subscribe_to_pattern(stage: Stage) -> None:
    """A pattern also matches a topic that is created after subscribing."""
    stem = stage.topics.unused_name("pattern")
    early, late = f"{stem}-early", f"{stem}-late"
    stage.topics.create_named(early)
    stage.driver.produce(numbered(early, range(5)))
    stage.driver.open(group=stage.topics.unused_name("group"))
    stage.driver.ask("subscribe_pattern", pattern=f"^{stem}-.*")
    assert numbers_of(read(stage.driver, 5)) == list(range(5))
    stage.driver.ask("commit")
    stage.topics.create_named(late, partitions=2)
    stage.driver.produce(numbered(late, range(5, 10), partition=1))
    found = read(stage.driver, 5)
    assert numbers_of(found) == list(range(5, 10))
    assert {record.topic for _, record in found} == {late}
    assert stage.driver.poll(100).owned == {(early, 0), (late, 0), (late, 1)}


def assign_partitions(stage: Stage) -> None:
    """Assigned partitions only, without a group."""
    topic = stage.topics.create("assigned", partitions=3)
    for n in range(3):
        stage.driver.produce(numbered(topic, range(n * 10, n * 10 + 10), partition=n))
    stage.driver.open()
    stage.driver.ask("assign", partitions=[(topic, 0), (topic, 2)])
    found = read(stage.driver, 20)
    assert sorted(numbers_of(found)) == [*range(10), *range(20, 30)]
    assert_quiet(stage.driver)


# --- where to consume -----------------------------------------------------------------------------


def pause_and_resume(stage: Stage) -> None:
    """A paused partition returns nothing while the other continues; resumed, it misses nothing."""
    topic = stage.topics.create("paused", partitions=2)
    driver = stage.driver
    driver.open()
    driver.ask("assign", partitions=all_partitions(topic, 2))
    driver.produce(numbered(topic, range(5)) + numbered(topic, range(100, 105), partition=1))
    read(driver, 10)
    driver.ask("pause", partitions=[(topic, 0)])
    driver.produce(numbered(topic, range(5, 10)) + numbered(topic, range(105, 110), partition=1))
    assert numbers_of(read(driver, 5)) == list(range(105, 110))
    assert_quiet(driver)
    driver.ask("resume", partitions=[(topic, 0)])
    assert numbers_of(read(driver, 5)) == list(range(5, 10))


def seek_back_and_forth(stage: Stage) -> None:
    """The next record is the one at the requested offset."""
    topic = stage.topics.create("seek")
    driver = stage.driver
    driver.produce(numbered(topic, range(20)), batch_bytes=600)
    driver.open()
    driver.ask("assign", partitions=[(topic, 0)])
    read(driver, 20)
    for offset in (7, 0, 19):
        driver.ask("seek", topic=topic, partition=0, offset=offset)
        found = read(driver, 20 - offset)
        assert [pair[0] for pair in found] == list(range(offset, 20))


def reset_to_earliest(stage: Stage) -> None:
    """A new group begins at the oldest record."""
    topic = stage.topics.create("earliest")
    stage.driver.produce(numbered(topic, range(10)))
    stage.driver.open(group=stage.topics.unused_name("group"), reset="earliest")
    stage.driver.ask("subscribe", topics=[topic])
    assert numbers_of(read(stage.driver, 10)) == list(range(10))


def reset_to_latest(stage: Stage) -> None:
    """A new group begins behind the existing records."""
    topic = stage.topics.create("latest")
    driver = stage.driver
    driver.produce(numbered(topic, range(10)))
    driver.open(group=stage.topics.unused_name("group"), reset="latest")
    driver.ask("subscribe", topics=[topic])
    # The time at which the client takes its position is not visible; produce until a record comes.
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    found: list[int] = []
    number = 10
    while not found:
        assert time.monotonic() < deadline, "nothing came"
        driver.produce(numbered(topic, range(number, number + 1)))
        number += 1
        found = numbers_of(driver.poll(300).records)
    assert found[0] >= 10
    while found[-1] < number - 1:
        assert time.monotonic() < deadline, f"{number - 1} did not come"
        found += numbers_of(driver.poll(300).records)
    assert found == list(range(found[0], number))


def reset_to_none(stage: Stage) -> None:
    """A group without commits fails under the policy `none`."""
    topic = stage.topics.create("none")
    stage.driver.produce(numbered(topic, range(10)))
    stage.driver.open(group=stage.topics.unused_name("group"), reset="none")
    stage.driver.ask("subscribe", topics=[topic])
    assert_no_offset(stage.driver)


def seek_out_of_range(stage: Stage) -> None:
    """An offset beyond the end is refused with OFFSET_OUT_OF_RANGE, not read as the end."""
    topic = stage.topics.create("beyond")
    driver = stage.driver
    driver.produce(numbered(topic, range(10)))
    group = stage.topics.unused_name("group")
    driver.open(group=group)
    driver.ask("subscribe", topics=[topic])
    read(driver, 10)
    driver.ask("commit")
    driver.ask("close")

    driver.produce(numbered(topic, range(10, 20)))
    driver.open(group=group, reset="none")
    driver.ask("subscribe", topics=[topic])
    read(driver, 10)
    driver.ask("seek", topic=topic, partition=0, offset=1_000)
    assert_no_offset(driver)


def assert_no_offset(driver: Driver) -> None:
    """Check that the client fails for want of a position, and reads nothing before."""
    with pytest.raises(DriverFailed) as failed:
        poll_nothing(driver)
    assert failed.value.kind == "no_offset", failed.value


def poll_nothing(driver: Driver) -> None:
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    while time.monotonic() < deadline:
        assert driver.poll().records == []


# --- groups ---------------------------------------------------------------------------------------


def commit_and_resume(stage: Stage) -> None:
    """The group's next consumer continues at the committed offset, not at the last read one."""
    topic = stage.topics.create("commit", partitions=2)
    group = stage.topics.unused_name("group")
    driver = stage.driver
    driver.produce(numbered(topic, range(10)) + numbered(topic, range(10, 15), partition=1))
    driver.open(group=group)
    driver.ask("subscribe", topics=[topic])
    read(driver, 15)
    driver.ask("commit")
    assert driver.committed(all_partitions(topic, 2)) == [10, 5]
    driver.produce(numbered(topic, range(20, 25)))
    assert numbers_of(read(driver, 5)) == list(range(20, 25))
    driver.ask("close")

    driver.produce(numbered(topic, range(25, 30)))
    driver.open(group=group)
    driver.ask("subscribe", topics=[topic])
    assert numbers_of(read(driver, 10)) == list(range(20, 30))
    assert_quiet(driver)


def rebalance_two_members(stage: Stage) -> None:
    """Every partition always has one owner while a second member comes and goes.

    No record is missed.
    """
    topic = stage.topics.create("rebalance", partitions=6)
    group = stage.topics.unused_name("group")
    everything = frozenset(all_partitions(topic, 6))
    first, second = stage.drivers
    seen: Counter[int] = Counter()

    first.open(group=group)
    first.ask("subscribe", topics=[topic])
    _produce_evenly(first, topic, range(60))
    _poll_until([first], seen, lambda owned: owned == [everything] and len(seen) == 60)
    first.ask("commit")

    second.open(group=group)
    second.ask("subscribe", topics=[topic])
    _poll_until([first, second], seen, lambda owned: _is_shared(owned, everything))
    _produce_evenly(first, topic, range(60, 120))
    owned = _poll_until([first, second], seen, lambda owned: len(seen) == 120)
    assert _is_shared(owned, everything), owned
    first.ask("commit")
    second.ask("commit")

    first.ask("close")
    _poll_until([second], seen, lambda owned: owned == [everything])
    _produce_evenly(second, topic, range(120, 180))
    _poll_until([second], seen, lambda owned: len(seen) == 180)
    # Records committed before a rebalance are not read again after it.
    assert max(seen.values()) == 1, seen


def _produce_evenly(driver: Driver, topic: str, numbers: range) -> None:
    driver.produce(
        [record for n in numbers for record in numbered(topic, range(n, n + 1), partition=n % 6)]
    )


def _is_shared(owned: list[frozenset[Partition]], everything: frozenset[Partition]) -> bool:
    """Return True if both members own something, and together each partition once."""
    first, second = owned
    return bool(first) and bool(second) and not first & second and first | second == everything


def _poll_until(
    members: Sequence[Driver],
    seen: Counter[int],
    is_done: Callable[[list[frozenset[Partition]]], bool],
) -> list[frozenset[Partition]]:
    """Poll all members at the same time until `is_done`.

    Return each one's assignment at the end.
    """
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    while True:
        for member in members:
            member.start_poll(200)
        polls = [member.finish_poll() for member in members]
        for polled in polls:
            seen.update(numbers_of(polled.records))
        owned = [polled.owned for polled in polls]
        if is_done(owned):
            return owned
        assert time.monotonic() < deadline, f"{len(seen)} records seen; owned: {owned}"


SCENARIOS = (
    *(Scenario(f"produce-{name}", produce_with(name)) for name in COMPRESSIONS),
    Scenario("produce-idempotently", produce_idempotently),
    Scenario("subscribe-list", subscribe_to_topics),
    Scenario("subscribe-pattern", subscribe_to_pattern),
    Scenario("assign", assign_partitions),
    Scenario("pause-resume", pause_and_resume),
    Scenario("seek", seek_back_and_forth),
    Scenario("reset-earliest", reset_to_earliest),
    Scenario("reset-latest", reset_to_latest),
    Scenario("reset-none", reset_to_none),
    Scenario("seek-out-of-range", seek_out_of_range),
    Scenario("commit-resume", commit_and_resume),
    Scenario("rebalance", rebalance_two_members, drivers=2),
)
