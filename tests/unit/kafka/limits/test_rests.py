"""Who has much done that takes long has a quarter of a processor for it, and others do not wait."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from vdl.clock import MS
from vdl.kafka.limits.decoding import Decoding
from vdl.kafka.limits.rests import ASKERS_MAX, AT_ONCE_NS, REST, Rests
from vdl.sim.clock import NodeClock, VirtualTime

JOB_NS = 50 * MS


class Thread:
    """Does one job after the other, each in `JOB_NS`."""

    def __init__(self, time: VirtualTime) -> None:
        self.time = time
        self.cpu = 0

    def cpu_ns(self) -> int:
        return self.cpu

    def compute(self, job: Callable[[], Any], done: Callable[[Any], None]) -> None:
        def ended() -> None:
            done(job())

        self.time.after(JOB_NS, ended)

    def job(self) -> str:
        self.cpu += JOB_NS
        return "decoded"


def decoding() -> tuple[VirtualTime, Decoding, Thread, Rests]:
    time = VirtualTime()
    clock = NodeClock(time, wall_base_ms=0)
    thread, rests = Thread(time), Rests(clock)
    return time, Decoding(thread.compute, clock, rests, thread.cpu_ns), thread, rests


def test_who_has_much_decoded_has_a_quarter_of_a_processor() -> None:
    """The thread takes the interpreter from the loop, for whoever it works. All is done."""
    time, work, thread, _ = decoding()
    done: list[int] = []
    for _ in range(40):
        work.run("eve", thread.job, lambda _: done.append(time.now_ns))
    time.run_until(AT_ONCE_NS)
    assert len(done) == AT_ONCE_NS // JOB_NS
    time.run_until(100_000 * MS)
    assert len(done) == 40
    assert done[-1] >= (1 + REST) * (39 * JOB_NS - AT_ONCE_NS)
    assert done == sorted(done)


def test_nobody_rests_for_another() -> None:
    """Nor for what failed, and an exception is a result."""
    time, work, thread, _ = decoding()
    for _ in range(40):
        work.run("eve", thread.job, lambda _: None)
    time.run_until(1_000 * MS)
    results: list[Any] = []

    def fails() -> None:
        raise ValueError("malformed")

    def guarded(job: Callable[[], Any], done: Callable[[Any], None]) -> None:
        try:
            outcome: Any = job()
        except ValueError as error:
            outcome = error
        done(outcome)

    work._compute = guarded
    work.run("bob", fails, results.append)
    work.run("bob", thread.job, results.append)
    time.run_until(1_000 * MS + 2 * JOB_NS)
    assert isinstance(results[0], ValueError)
    assert results[1] == "decoded"


def test_askers_that_need_not_rest_are_forgotten() -> None:
    """However many come, each once."""
    time, _, _, rests = decoding()
    for number in range(10 * ASKERS_MAX):
        rests.used(f"asker {number}", 1)
        time.run_until(time.now_ns + 10)
    assert len(rests._until_ns) <= ASKERS_MAX
