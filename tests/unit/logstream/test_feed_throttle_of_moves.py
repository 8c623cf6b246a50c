"""Limits on feeding added replicas: each applies to all its replicas, and to no others."""

from __future__ import annotations

from collections.abc import Hashable

from vdl.clock import MS
from vdl.logstream.group.feed_throttle import FeedThrottle
from vdl.logstream.membership.move_limits import PIECE_BYTES_MIN, piece_bytes
from vdl.sim.clock import NodeClock, VirtualTime

RATE = 1_000_000
SIZE = 100_000


class Feeds:
    """Jobs of `SIZE` bytes that take no time, one after the other for each key."""

    def __init__(self) -> None:
        self.time = VirtualTime()
        self.throttle = FeedThrottle(NodeClock(self.time), 1 << 40)
        self.moved: dict[Hashable, int] = {}

    def feed(self, key: Hashable, *, less: int = 0) -> None:
        def job() -> None:
            self.moved[key] = self.moved.get(key, 0) + SIZE - less
            self.throttle.ended(key, less)
            self.feed(key, less=less)

        self.throttle.run(key, SIZE, job)

    def run(self, seconds: float) -> None:
        self.time.run_until(self.time.now_ns + int(seconds * 1_000 * MS))


def test_limit_is_shared_by_all_that_name_it() -> None:
    """Jobs run in order; a key without a limit does not wait."""
    feeds = Feeds()
    feeds.throttle.limit_moves({"l": RATE}, dict.fromkeys(range(5), ("l",)))
    for key in range(5):
        feeds.feed(key)
    feeds.run(10)
    assert sum(feeds.moved.values()) <= 10 * RATE + SIZE
    assert sum(feeds.moved.values()) >= 10 * RATE - SIZE
    assert max(feeds.moved.values()) - min(feeds.moved.values()) <= SIZE
    done: list[bool] = []
    feeds.throttle.run("free", 1 << 40, lambda: done.append(True))
    assert done == [True]


def test_every_limit_that_is_named_holds() -> None:
    """The slower one of two decides; a key that waits for it does not delay others."""
    feeds = Feeds()
    feeds.throttle.limit_moves(
        {"leader": 2 * RATE, "slow": RATE // 10, "fast": 10 * RATE},
        {"a": ("leader", "slow"), "b": ("leader", "fast")},
    )
    feeds.feed("a")
    feeds.feed("b")
    feeds.run(10)
    assert feeds.moved["a"] <= RATE + SIZE
    assert 17 * RATE <= feeds.moved["b"] <= 20 * RATE
    assert sum(feeds.moved.values()) <= 20 * RATE + 2 * SIZE


def test_what_was_not_moved_is_given_back() -> None:
    """A read that finds little uses little of the limit."""
    feeds = Feeds()
    feeds.throttle.limit_moves({"l": RATE}, {"a": ("l",)})
    feeds.feed("a", less=SIZE - 1_000)
    feeds.run(1)
    assert RATE - SIZE <= feeds.moved["a"] <= RATE + SIZE


def test_pause_is_not_made_up_for() -> None:
    """After an hour without jobs it is as slow as before."""
    feeds = Feeds()
    feeds.throttle.limit_moves({"l": RATE}, {"a": ("l",)})
    feeds.run(3_600)
    feeds.feed("a")
    feeds.run(1)
    assert feeds.moved["a"] <= RATE + SIZE


def test_limits_that_change_hold_for_what_waits() -> None:
    """The new rate applies from the next piece on; without a limit no job waits any more."""
    time = VirtualTime()
    throttle = FeedThrottle(NodeClock(time), 1 << 40)
    done: list[str] = []
    throttle.limit_moves({"l": 1}, dict.fromkeys("abc", ("l",)))
    throttle.run("a", 1_000, lambda: done.append("a"))
    throttle.run("b", 1_000, lambda: done.append("b"))
    throttle.run("c", 1_000, lambda: done.append("c"))
    throttle.run("a", 1_000, lambda: done.append("a again"))
    throttle.withdraw("c")
    assert done == ["a"]
    throttle.ended("a", 0)
    throttle.limit_moves({}, {})
    assert done == ["a", "b", "a again"]


def test_raised_limit_helps_what_waits_already() -> None:
    """A piece that was begun has its share of the new rate."""
    time = VirtualTime()
    throttle = FeedThrottle(NodeClock(time), 1 << 40)
    done: list[str] = []
    throttle.limit_moves({"l": 1_000}, dict.fromkeys("ab", ("l",)))
    throttle.run("a", 1_000_000, lambda: done.append("a"))
    throttle.run("b", 1_000, lambda: done.append("b"))
    throttle.limit_moves({"l": 1_000_000_000}, dict.fromkeys("ab", ("l",)))
    time.run_until(time.now_ns + 2 * MS)
    assert done == ["a", "b"]


def test_equal_limits_change_nothing() -> None:
    """They are set again each second while a move is known."""
    throttle = FeedThrottle(NodeClock(VirtualTime()), 1)
    throttle.limit_moves({"l": RATE}, {"a": ("l",)})
    throttle.run("first", SIZE, bool)
    for number in range(5):
        throttle.run(number, SIZE, bool, due_ns=1 << 60)
    for rate in [RATE] * 100 + [2 * RATE]:
        throttle.limit_moves({"l": rate}, {"a": ("l",)})
    assert len(throttle._due_first) == 5


def test_pieces_are_as_small_as_the_limit_is_low() -> None:
    """Thirty added replicas need not wait thirty mebibytes for their first entry."""
    assert piece_bytes(10) == PIECE_BYTES_MIN
    assert piece_bytes(RATE) == RATE // 10
