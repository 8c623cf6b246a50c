"""Feeding followers from disk: a limit in bytes for all of them together."""

from vdl.clock import MS
from vdl.logstream.group.feed_throttle import (
    BURST_NS,
    NEVER_NS,
    FeedThrottle,
    Gain,
)
from vdl.sim.clock import NodeClock, VirtualTime

RATE = 1_000_000


def test_reads_beyond_the_rate_wait_their_turn() -> None:
    """They run in order; none is lost, none runs early."""
    time = VirtualTime()
    pace = FeedThrottle(NodeClock(time), RATE)
    done: list[tuple[int, float]] = []
    for number in range(40):
        pace.run(number, RATE // 20, lambda n=number: done.append((n, time.now_ns)))
    time.run_until(3_000 * MS)
    assert [number for number, _ in done] == list(range(40))
    for number, at_ns in done:
        assert at_ns >= number * 50 * MS - BURST_NS
    assert done[-1][1] <= 2_000 * MS


def test_reads_that_find_little_leave_their_time_to_others() -> None:
    """A thousand groups that lack one small entry each are fed at once, not a second each."""
    time = VirtualTime()
    clock = NodeClock(time)
    pace = FeedThrottle(clock, RATE)
    done: list[int] = []

    def ended(number: int) -> None:
        done.append(time.now_ns)
        pace.ended(number, RATE - 100)

    for key in range(1_000):
        pace.run(key, RATE, lambda key=key: clock.call_later(MS, lambda: ended(key)))
    time.run_until(2_000 * MS)
    assert len(done) == 1_000


def test_read_that_finds_more_makes_others_wait() -> None:
    """A batch larger than requested counts with its full size."""
    time = VirtualTime()
    pace = FeedThrottle(NodeClock(time), RATE)
    done: list[int] = []
    pace.run(1, 100, lambda: None)
    pace.ended(1, 100 - RATE)
    pace.run(2, 100, lambda: done.append(time.now_ns))
    time.run_until(500 * MS)
    assert done == []
    time.run_until(2_000 * MS)
    assert len(done) == 1


def test_idle_time_is_not_saved_up() -> None:
    """After an hour without reads the first second is like any other."""
    time = VirtualTime()
    pace = FeedThrottle(NodeClock(time), RATE)
    time.run_until(3_600_000 * MS)
    done: list[int] = []
    for number in range(20):
        pace.run(number, RATE // 10, lambda: done.append(time.now_ns))
    time.run_until(time.now_ns + 1_000 * MS)
    assert 10 <= len(done) <= 12


def test_job_that_waits_gives_way_to_the_next_of_its_key_and_can_be_withdrawn() -> None:
    """The new job keeps the place in the queue; withdrawn jobs take no time."""
    time = VirtualTime()
    pace = FeedThrottle(NodeClock(time), RATE)
    done: list[str] = []
    pace.run("running", RATE, lambda: done.append("running"))
    for key in ("a", "b", "c"):
        pace.run(key, RATE // 2, lambda key=key: done.append(key))
    pace.run("a", RATE // 2, lambda: done.append("a again"))
    pace.withdraw("b")
    time.run_until(999 * MS - BURST_NS)
    assert done == ["running"]
    time.run_until(1_000 * MS)
    assert done == ["running", "a again"]
    time.run_until(10_000 * MS)
    assert done == ["running", "a again", "c"]


def test_of_each_key_one_job_runs_at_a_time() -> None:
    """A hung disk gets no repeated reads for the same follower."""
    time = VirtualTime()
    pace = FeedThrottle(NodeClock(time), RATE)
    done: list[int] = []
    for number in range(30):
        pace.run("key", 100, lambda number=number: done.append(number))
        time.run_until(time.now_ns + 1_000 * MS)
    assert done == [0]
    pace.ended("key", 0)
    assert done == [0, 29]
    pace.run("key", 100, lambda: done.append(30))
    pace.withdraw("key")
    pace.ended("key", 0)
    time.run_until(time.now_ns + 1_000 * MS)
    assert done == [0, 29]


def test_many_jobs_that_end_at_once_run_one_after_the_other() -> None:
    """Not nested: there may be more than Python's recursion limit."""
    time = VirtualTime()
    pace = FeedThrottle(NodeClock(time), RATE)
    done: list[int] = []

    def read(number: int) -> None:
        done.append(number)
        pace.ended(number, 0 if number < 0 else 100)

    pace.run(-1, RATE, lambda: read(-1))
    for number in range(5_000):
        pace.run(number, 100, lambda number=number: read(number))
    time.run_until(2_000 * MS)
    assert done == list(range(-1, 5_000))


def test_job_that_is_due_does_not_wait_for_the_limit_nor_count_for_it() -> None:
    """A follower that would otherwise fall behind is fed in time; the others share the limit."""
    time = VirtualTime()
    pace = FeedThrottle(NodeClock(time), RATE)
    done: list[tuple[str, int]] = []

    def job(key: str) -> None:
        done.append((key, time.now_ns))
        pace.ended(key, 0)

    for key in ("a", "b", "c"):
        pace.run(key, RATE, lambda key=key: job(key))
    pace.run("due", 10 * RATE, lambda: job("due"), due_ns=300 * MS)
    time.run_until(3_000 * MS)
    assert [(key, at_ns // (100 * MS)) for key, at_ns in done] == [
        ("a", 0), ("due", 3), ("b", 10), ("c", 20),
    ]  # fmt: skip


def test_job_that_is_due_and_withdrawn_does_not_run() -> None:
    """A job that was replaced by another of its key does not run at the old time either."""
    time = VirtualTime()
    pace = FeedThrottle(NodeClock(time), RATE)
    done: list[str] = []
    pace.run("running", 10 * RATE, lambda: done.append("running"))
    pace.run("gone", RATE, lambda: done.append("gone"), due_ns=100 * MS)
    pace.run("later", RATE, lambda: done.append("early"), due_ns=100 * MS)
    pace.run("later", RATE, lambda: done.append("later"), due_ns=400 * MS)
    pace.withdraw("gone")
    time.run_until(300 * MS)
    assert done == ["running"]
    time.run_until(500 * MS)
    assert done == ["running", "later"]


def test_follower_is_fed_twice_what_is_written_to_its_group() -> None:
    """The limit does not matter: ten followers of one group gain alike."""
    gain = Gain()
    last, now_ns = 1_000, 0
    fed = dict.fromkeys(range(10), 0)
    due = dict.fromkeys(range(10), 0)
    for step in range(5_000):
        now_ns += MS
        last += 3  # three entries a millisecond
        for follower, due_ns in due.items():
            if now_ns >= due_ns:
                gain.fed(follower, 200, now_ns)
                fed[follower] += 200 if step >= 1_000 else 0
                due[follower] = min(
                    gain.due_ns(follower, last, now_ns), now_ns + 500 * MS
                )  # the limit admits it at times
    for count in fed.values():
        assert 2 * 3 * 4_000 * 0.9 < count < 2 * 3 * 4_000 * 1.1


def test_follower_of_a_group_at_rest_has_the_limit_only() -> None:
    """Nothing is written, so it catches up in any case."""
    gain = Gain()
    for now_ns in range(0, 3_000 * MS, 100 * MS):
        assert gain.due_ns(1, 50, now_ns) == NEVER_NS
        gain.fed(1, 10, now_ns)
