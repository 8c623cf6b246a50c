"""A client in a process of its own, which counts its work while it runs.

Its work is a function of the measuring module, called with the arguments given, then the counts
(shared memory that only it writes) and an event that is set when it must end.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.bench.topics import CALL_SECONDS_MAX

LOOK_SECONDS = 0.05
"""Interval at which a waiting caller checks the process."""


WEIGHT_NICE = 10
"""Niceness for a tenth of a server's CPU share, for all threads of a process together."""


def weigh_little() -> None:
    """Give this process, with all its threads, a tenth of a server's CPU weight.

    A thousand clients of librdkafka have about five thousand threads. On two cores the scheduler
    would give each of them as much as a server: servers would wait for their clients. (Not
    SCHED_IDLE: a hundred spinning threads of it kept servers from running for whole seconds.)
    """
    os.setsid()  # the scheduler weighs sessions, and the threads of one only against each other
    group = Path("/proc/self/autogroup")
    if group.exists():
        group.write_text(str(WEIGHT_NICE), encoding="ascii")
    else:
        os.nice(WEIGHT_NICE)


class ClientProcess:
    """One client process. Use in a `with`: it starts, and must end without an error."""

    def __init__(self, work: Callable[..., None], *arguments: Any, counts: int = 1) -> None:
        context = multiprocessing.get_context("spawn")
        self._counts = context.Array("Q", counts, lock=False)
        self._ends = context.Event()
        self._process = context.Process(
            target=work, args=(*arguments, self._counts, self._ends), daemon=True
        )

    def __enter__(self) -> ClientProcess:
        self._process.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.end()

    @property
    def count(self) -> int:
        """Sum of all counts."""
        return sum(self._counts)

    @property
    def counts(self) -> list[int]:
        return list(self._counts)

    def wait_counting(self) -> None:
        """Return when it has counted something."""
        deadline = time.monotonic() + CALL_SECONDS_MAX
        while not self.count:
            assert self._process.is_alive(), "a client's process ended"
            assert time.monotonic() < deadline, "a client does nothing"
            time.sleep(LOOK_SECONDS / 10)

    def end(self, drain: Callable[[], None] = lambda: None) -> None:
        """End the process and check its exit code.

        `drain` takes output that would block its end.
        """
        self._ends.set()
        deadline = time.monotonic() + CALL_SECONDS_MAX
        while self._process.is_alive() and time.monotonic() < deadline:
            drain()
            self._process.join(LOOK_SECONDS)
        assert self._process.exitcode == 0, f"a client's process ended: {self._process.exitcode}"
