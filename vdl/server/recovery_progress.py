"""Log events of a long start: one a second after a delay, and one at its end."""

from __future__ import annotations

from collections.abc import Callable

from vdl.log import Log

SHOWN_AFTER_NS = 2_000_000_000
SHOWN_EVERY_NS = 1_000_000_000


class RecoveryProgress:
    """Progress of one recovery; created when it begins."""

    __slots__ = ("_began_ns", "_log", "_next_ns", "_now_ns")

    def __init__(self, log: Log, now_ns: Callable[[], int]) -> None:
        self._log = log
        self._now_ns = now_ns
        self._began_ns = now_ns()
        self._next_ns = self._began_ns + SHOWN_AFTER_NS

    def told(self, what: str, done: int, total: int) -> None:
        """Log that `done` of `total` are read, at most once a second. Blocks only for the log."""
        now_ns = self._now_ns()
        if now_ns >= self._next_ns:
            self._next_ns = now_ns + SHOWN_EVERY_NS
            self._log.info("recovering", reading=what, done=done, of=total)

    def ended(self, logs: int, *, journal_writes: str) -> None:
        """Log that everything is read, and the store is open.

        `journal_writes`: what writes blocks of the journal, `io_uring` or `thread`.
        """
        seconds = (self._now_ns() - self._began_ns) / 1e9
        self._log.info(
            "recovered", logs=logs, seconds=round(seconds, 3), journal_writes=journal_writes
        )
