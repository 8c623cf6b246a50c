"""Background sender of events that never delays its job.

A thread of its own sends events one after the other. The queue is bounded: if the receiver is
slower than the job, events are dropped and counted. Failures are counted and the last reason is
kept; none is raised. The end of a job waits a bounded time for the remaining events.

Does not depend on the kind of events or their destination.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

WAITING_MAX = 100
"""Limit on queued events, besides the one being sent."""
REASON_LENGTH_MAX = 300
SENT, FAILED, DROPPED = "sent", "failed", "dropped"
Event = TypeVar("Event")


class EventSender(Generic[Event]):
    """Use: `put` from any thread, `close` once. `send` may take any time, and may raise."""

    def __init__(
        self,
        send: Callable[[Event], None],
        on_outcome: Callable[[str], None] = lambda outcome: None,
        *,
        waiting_max: int = WAITING_MAX,
    ) -> None:
        """`on_outcome`: called with SENT, FAILED or DROPPED for each event, from any thread."""
        self._send = send
        self._on_outcome = on_outcome
        self._waiting: queue.Queue[Event | None] = queue.Queue(waiting_max)
        self._lock = threading.Lock()
        self.put_count = 0
        self.sent = 0
        self.reason = ""
        """Reason of the last failed event."""
        # A daemon thread does not delay the end of the process.
        self._thread = threading.Thread(target=self._work, name="events", daemon=True)
        self._thread.start()

    def put(self, event: Event, *, is_last: bool = False) -> None:
        """Queue an event without waiting.

        If the queue is full the event is dropped, or for the last event the oldest one.
        """
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
        """Wait up to `seconds` until all events are sent, and drop the rest."""
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
