"""Threads for questions to several servers at a time."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from types import TracebackType


class Workers(ThreadPoolExecutor):
    """Threads that a command waits for at the end of a `with`, unless ^C ends it: the answer of a
    server that hangs comes seconds later. `vdl.cli` ends the process then."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        is_interrupted = isinstance(error, KeyboardInterrupt)
        self.shutdown(wait=not is_interrupted, cancel_futures=is_interrupted)
