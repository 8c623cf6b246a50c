"""Lag of a job, reported while it works and while it is stuck.

A batch reports its lag when it is committed. A job that hangs commits nothing, so its lag would
appear unchanged. Hence a thread of its own requests the ends of the topics from time to time.

Does not depend on Spark, or on how lag is shown.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

from vdl.pipeline.errors import PipelineError
from vdl.pipeline.options import ReadOptions
from vdl.pipeline.positions import Positions
from vdl.pipeline.topics import Topics

Lag = Mapping[tuple[str, int], int]
ASK_SECONDS = 15.0


def lag_of(positions: Positions, ends: Positions) -> Lag:
    """Return the number of offsets that are not in the table yet, by (topic, partition)."""
    return {
        (topic, partition): max(0, end - (positions.offset(topic, partition) or 0))
        for topic, partition, end in ends.partitions()
    }


class LagWatch:
    """Periodic lag reports. Use in a `with`.

    `tell` is called on another thread, at once and then every `seconds`.
    """

    def __init__(
        self,
        options: ReadOptions,
        positions: Callable[[], Positions],
        tell: Callable[[Lag], None],
        *,
        seconds: float = ASK_SECONDS,
    ) -> None:
        """`positions`: returns the table's end, empty before it is known; called on that thread."""
        self._options = options
        self._positions = positions
        self._tell = tell
        self._seconds = seconds
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="lag", daemon=True)

    def __enter__(self) -> LagWatch:
        self._thread.start()
        return self

    def __exit__(self, *failure: object) -> None:
        self._ended.set()

    def _watch(self) -> None:
        topics = Topics(self._options)
        while not self._ended.is_set():
            positions = self._positions()
            if positions:
                try:
                    self._tell(lag_of(positions, topics.ends()))
                except PipelineError:
                    pass  # The age of the last report shows that no server answers.
            self._ended.wait(self._seconds)
        topics.close()
