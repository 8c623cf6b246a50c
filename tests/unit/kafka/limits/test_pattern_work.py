"""Clients' patterns are matched in a thread, in turns between clients."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import pytest

from vdl.clock import MS
from vdl.kafka.limits import pattern_work
from vdl.kafka.limits.pattern_work import (
    COMPILED_MAX,
    CPU_NS_MAX,
    KNOWN_MAX,
    REST,
    SLICE_STEPS,
    WAITING_MAX,
    WAITING_OF_ONE_MAX,
    Found,
    PatternWork,
    TooSlow,
)
from vdl.patterns import PATTERN_BYTES_MAX, BadPattern
from vdl.sim.clock import NodeClock, VirtualTime


class Thread:
    """Thread that runs one job at each call of `run`."""

    def __init__(self) -> None:
        self.time = VirtualTime()
        self.jobs: deque[tuple[Callable[[], Any], Callable[[Any], None]]] = deque()
        self.cpu_ns = 0
        self.cost_ns = 0
        """Processor time that passes at each read of the clock."""
        self.work = PatternWork(
            lambda job, done: self.jobs.append((job, done)), NodeClock(self.time), self._cpu_ns
        )

    def _cpu_ns(self) -> int:
        self.cpu_ns += self.cost_ns
        return self.cpu_ns

    def run(self) -> bool:
        """Run one slice; return False if there was none."""
        assert len(self.jobs) <= 1, "two at a time"
        if not self.jobs:
            return False
        job, done = self.jobs.popleft()
        done(job())
        return True

    def run_all(self) -> None:
        while self.run():
            pass

    def pass_time(self, ms: float) -> None:
        self.time.run_until(self.time.now_ns + int(ms * MS))


@pytest.fixture
def thread() -> Thread:
    return Thread()


def large(number: int) -> tuple[str, list[str]]:
    """Return the arguments of a job of several slices; no two have the same pattern."""
    names = [f"{index:04}".ljust(249, "a") for index in range(60)]
    return f"(a?){{500}}{number}", names


def test_nothing_is_compiled_or_matched_by_the_caller(thread: Thread) -> None:
    found: list[list[Found]] = []
    asked = thread.work.match("alice", [("t.*", ["t1", "u", "t2"]), ("(", ["t"])], found.append)
    assert asked is not None
    assert (thread.work.compiles, thread.work.matches, found) == (0, 0, [])
    thread.run_all()
    ((names, refused),) = found
    assert names == ["t1", "t2"]
    assert isinstance(refused, BadPattern)
    assert (thread.work.compiles, thread.work.matches) == (2, 3)


def test_slice_ends_by_the_steps_that_its_names_may_take(thread: Thread) -> None:
    """Actual speed does not count: the cost of a slice is known in advance."""
    pattern, names = large(0)
    assert thread.work.match("alice", [(pattern, names)], lambda _: None) is not None
    sizes = []
    while thread.jobs:
        before = thread.work.matches
        thread.run()
        sizes.append(thread.work.matches - before)
    size = thread.work._compiled[pattern].size
    assert len(sizes) > 1
    assert sum(sizes) == len(names)
    assert max(sizes) * size * 250 <= SLICE_STEPS + size * 250


def test_askers_take_turns(thread: Thread) -> None:
    """A client with much work delays others by one slice at most."""
    done: list[str] = []
    for number in range(20):
        assert thread.work.match("eve", [large(number)], lambda _: done.append("eve"))
    thread.run()
    assert thread.work.match("alice", [("a", ["a"])], lambda _: done.append("alice"))
    thread.run()
    thread.run()
    assert done == ["alice"]


def test_asker_rests_after_work(thread: Thread) -> None:
    """A client never has more than a share of a processor, and others continue meanwhile."""
    thread.cost_ns = 10 * MS
    assert thread.work.match("eve", [large(1)], lambda _: None)
    thread.run()
    assert not thread.jobs
    rest_ms = REST * 10
    thread.pass_time(rest_ms / 2)
    assert not thread.jobs
    assert thread.work.match("alice", [("a", ["a"])], lambda _: None)
    assert len(thread.jobs) == 1
    thread.run()
    thread.pass_time(rest_ms / 2)
    assert len(thread.jobs) == 1


def test_only_so_much_of_one_asker_waits_and_of_all(thread: Thread) -> None:
    """Requests beyond the bound are refused, and their callback is not called."""

    def ask(asker: str) -> bool:
        return thread.work.match(asker, [("a", ["a"])], lambda _: None) is not None

    assert ask("first")  # in the thread
    assert all(ask("eve") for _ in range(WAITING_OF_ONE_MAX))
    assert not ask("eve")
    others = 0
    while ask(f"other{others}"):
        others += 1
    assert others == WAITING_MAX - WAITING_OF_ONE_MAX
    thread.run_all()
    assert ask("eve")


def test_pattern_that_takes_too_long_is_refused(thread: Thread) -> None:
    """The refusal is temporary: the pattern is valid, and later texts may be fewer."""
    thread.cost_ns = CPU_NS_MAX // 2 + 1
    found: list[list[Found]] = []
    assert thread.work.match("eve", [large(2), ("a", ["a"])], found.append)
    while not found:
        thread.run()
        thread.pass_time(10_000)
    ((slow, other),) = found
    assert isinstance(slow, TooSlow)
    assert other == ["a"]
    assert thread.work.refusal(large(2)[0]) is None


def test_what_is_known_costs_nothing(thread: Thread) -> None:
    """A pattern, valid or not, is compiled once while it is remembered."""
    calls: list[str] = []
    assert thread.work.check("eve", ["a", "("], lambda: calls.append("first"))
    thread.run_all()
    assert thread.work.knows("a")
    assert thread.work.knows("(")
    assert thread.work.refusal("a") is None
    assert thread.work.refusal("(") is not None
    assert thread.work.check("eve", ["(", "a"], lambda: calls.append("second"))
    assert calls == ["first", "second"]
    assert not thread.jobs


def test_pattern_that_is_too_long_never_waits(thread: Thread) -> None:
    """It is neither kept nor compiled."""
    pattern = "a" * (PATTERN_BYTES_MAX + 1)
    assert thread.work.knows(pattern)
    assert thread.work.refusal(pattern) is not None
    found: list[list[Found]] = []
    assert thread.work.match("eve", [(pattern, ["a"])], found.append)
    thread.run_all()
    assert isinstance(found[0][0], BadPattern)
    assert not thread.work._refused


def test_memory_is_bounded(thread: Thread) -> None:
    for number in range(KNOWN_MAX + 10):
        thread.work.check(f"asker{number}", [f"a{number}", f"({number}"], lambda: None)
        thread.run_all()
    assert len(thread.work._compiled) == COMPILED_MAX
    assert len(thread.work._sound) == KNOWN_MAX
    assert len(thread.work._refused) == KNOWN_MAX
    assert len(thread.work._askers) <= 1


def test_exception_refuses_a_pattern_and_ends_nothing(
    thread: Thread, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pattern is a client's: it must not stop each server that leads its coordinator."""

    def fails(_: str) -> Any:
        raise MemoryError

    monkeypatch.setattr(pattern_work, "compile_pattern", fails)
    found: list[list[Found]] = []
    assert thread.work.match("eve", [("a", ["a"])], found.append)
    job, done = thread.jobs.popleft()
    with pytest.raises(MemoryError):
        job()
    done(MemoryError())
    assert isinstance(found[0][0], BadPattern)


def test_question_of_two_askers_is_answered_once_in_the_earlier_turn(thread: Thread) -> None:
    thread.cost_ns = 10 * MS
    for number in range(3):
        assert thread.work.match("eve", [large(number)], lambda _: None)
    found: list[list[Found]] = []
    asked = thread.work.match("eve", [("a", ["a"])], found.append)
    assert asked is not None
    thread.work.join("alice", asked)
    thread.run()
    thread.run()
    assert found == [[["a"]]]
    for _ in range(100):
        thread.run_all()
        thread.pass_time(100)
    assert len(found) == 1


def test_answer_that_is_not_wanted_is_not_worked_out(thread: Thread) -> None:
    found: list[list[Found]] = []
    asked = thread.work.match("eve", [large(1)], found.append)
    assert asked is not None
    thread.run()
    asked.cancel()
    before = thread.work.matches
    thread.run_all()
    assert (thread.work.matches - before, found) == (0, [])
