"""Events that are sent beside a job, and never in its way.

A thread of its own sends them, one after the other. Those that wait are bounded: where the other
end is slower than the job, events are dropped and counted. What goes wrong is counted, and its
reason kept; it is nobody's exception. The end of a job waits for the rest for a bounded time.

Must not know: what events are, where they go.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

WAITING_MAX = 100
"""Events that wait to be sent, besides the one under way."""
REASON_LENGTH_MAX = 300
SENT, FAILED, DROPPED = "sent", "failed", "dropped"
Event = TypeVar("Event")


class EventSender(Generic[Event]):
    """Use: `put` from any thread, `close` once. `send` may take as long as it wants, and raise."""

    def __init__(
        self,
        send: Callable[[Event], None],
        on_outcome: Callable[[str], None] = lambda outcome: None,
        *,
        waiting_max: int = WAITING_MAX,
    ) -> None:
        """`on_outcome`: called with SENT, FAILED or DROPPED for each event; from any thread."""
        self._send = send
        self._on_outcome = on_outcome
        self._waiting: queue.Queue[Event | None] = queue.Queue(waiting_max)
        self._lock = threading.Lock()
        self.put_count = 0
        self.sent = 0
        self.reason = ""
        """Why the last event that failed has failed."""
        # A process does not wait for it when it ends.
        self._thread = threading.Thread(target=self._work, name="events", daemon=True)
        self._thread.start()

    def put(self, event: Event, *, is_last: bool = False) -> None:
        """Never waits. Where there is no room it is dropped, or for the last one the oldest."""
        with self._lock:
            self.put_count += 1
            while True:
                try:
                    self._waiting.put_nowait(event)
                    return
                except queue.Full:
                    pass
                if not is_last:
                    break
                try:
                    self._waiting.get_nowait()
                except queue.Empty:
                    continue
                self._done(DROPPED)
            self._done(DROPPED)

    def close(self, seconds: float) -> None:
        """Wait at most so long until all are sent. What is not by then is dropped."""
        deadline = time.monotonic() + seconds
        try:
            self._waiting.put(None, timeout=seconds)
        except queue.Full:
            return
        self._thread.join(max(0.0, deadline - time.monotonic()))

    def _work(self) -> None:
        while (event := self._waiting.get()) is not None:
            try:
                self._send(event)
            except Exception as error:  # noqa: BLE001 - whatever it is, it is not the job's
                self.reason = f"{type(error).__name__}: {error}"[:REASON_LENGTH_MAX]
                outcome = FAILED
            else:
                outcome = SENT
            with self._lock:
                self._done(outcome)

    def _done(self, outcome: str) -> None:
        self.sent += outcome == SENT
        self._on_outcome(outcome)
