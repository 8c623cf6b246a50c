"""^C, SIGTERM and SIGHUP of a command that must end in order.

Each raises KeyboardInterrupt in the main thread. While they are held, the first one is only noted,
so that a step with an effect elsewhere is either done and counted, or not begun; `check` raises it
afterwards. A second one breaks a hold, because the step may wait for something that never comes.

A signal that is ignored stays ignored: `nohup`, and jobs of a shell in the background.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any, Self

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
EXIT_BASE = 128
"""Exit code of a command that a signal ended, less the signal's number, as shells have it."""
PIPE_ENDED = EXIT_BASE + signal.SIGPIPE
"""Exit code of a command whose reader ended first, as that of `vdl topic list | head`."""


class Interrupts:
    """Signals that end a command; they are handled inside a `with`, in the main thread only."""

    def __init__(self) -> None:
        self.count = 0
        """Signals that came."""
        self._number = int(signal.SIGINT)
        self._is_pending = False
        self._holds = 0
        self._breakable = True
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                if signal.getsignal(number) is not signal.SIG_IGN:
                    self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}

    @property
    def code(self) -> int:
        """Exit code after the signal that came last: 130 for ^C, 143 for SIGTERM."""
        return EXIT_BASE + self._number

    @property
    def is_pending(self) -> bool:
        """True if a signal came while signals were held, and `check` has not raised it yet."""
        return self._is_pending

    def check(self, *, in_hold: bool = False) -> None:
        """Raise KeyboardInterrupt for a signal that was held; inside a hold only if `in_hold`: the
        caller is at a place where its step may end."""
        if self._is_pending and (in_hold or not self._holds):
            self._is_pending = False
            raise KeyboardInterrupt

    def postpone(self) -> None:
        """Have the next `check` raise what was raised where it would be lost."""
        self._is_pending = True

    @contextmanager
    def held(self, *, breakable: bool = True) -> Iterator[None]:
        """Note the first signal in the block, and do not raise it; if the block is not `breakable`,
        none of them. `check` raises what was noted."""
        before = self._breakable
        self._holds += 1
        self._breakable = before and breakable
        try:
            yield
        finally:
            self._breakable = before
            self._holds -= 1

    def _handle(self, number: int, frame: FrameType | None) -> None:
        del frame
        self.count += 1
        self._number = number
        if self._holds and (self.count == 1 or not self._breakable):
            self._is_pending = True
            return
        self._is_pending = False
        raise KeyboardInterrupt
