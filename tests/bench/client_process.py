"""A client in a process of its own, which counts what it has done while it goes on.

Its work is a function of the module that measures, called with the arguments given, then the counts
(shared memory that it alone writes) and an event that is set when it is to end.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable
from typing import Any

from tests.bench.topics import CALL_SECONDS_MAX

LOOK_SECONDS = 0.05
"""How often one that is waited for is looked at."""


class ClientProcess:
    """One client. Use in a `with`: it is started, and at the end has to end well."""

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
        """Of all that is counted."""
        return sum(self._counts)

    @property
    def counts(self) -> list[int]:
        return list(self._counts)

    def wait_counting(self) -> None:
        """Return when it has done something."""
        deadline = time.monotonic() + CALL_SECONDS_MAX
        while not self.count:
            assert self._process.is_alive(), "a client's process ended"
            assert time.monotonic() < deadline, "a client does nothing"
            time.sleep(LOOK_SECONDS / 10)

    def end(self, drain: Callable[[], None] = lambda: None) -> None:
        """Have it end, and see that it did well. `drain`: what it has still to say keeps it."""
        self._ends.set()
        deadline = time.monotonic() + CALL_SECONDS_MAX
        while self._process.is_alive() and time.monotonic() < deadline:
            drain()
            self._process.join(LOOK_SECONDS)
        assert self._process.exitcode == 0, f"a client's process ended: {self._process.exitcode}"
