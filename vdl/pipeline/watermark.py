"""Watermark of several partitions: the progress of the slowest active one.

A partition's progress is its latest event time. The watermark is the minimum of these, less the
allowed lateness within one partition, so a partition that lags loses no rows by that. A partition
without rows for a while (`idle`) does not count, since it may stay silent forever. It counts again
once it has rows. The watermark never goes back.

Times are microseconds since 1970; `now_us` is the driver's clock, used only to detect idle
partitions.

Does not depend on rows, Spark or Kafka.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple


class Heard(NamedTuple):
    """One partition's latest event time, and the arrival time of its last row."""

    at_us: int
    when_us: int


@dataclass(frozen=True, slots=True)
class Sources:
    """Partitions of a source. `known`: their progress before the batch."""

    late_us: int
    idle_us: int
    known: Mapping[str, Heard]

    def after(self, seen: Mapping[str, int | None], *, now_us: int) -> dict[str, Heard]:
        """Return the progress after a batch.

        `seen`: partition → latest event time in the batch, None if its rows have none.
        """
        found = dict(self.known)
        for source, at in seen.items():
            old = found.get(source)
            if at is not None:
                found[source] = Heard(at if old is None else max(at, old.at_us), now_us)
            elif old is not None:
                found[source] = Heard(old.at_us, now_us)
        return found

    def watermark(
        self, heard: Mapping[str, Heard], before: int | None, *, now_us: int
    ) -> int | None:
        """Return the watermark after `before`; None if there was no event yet."""
        told = [one.at_us for one in heard.values() if now_us - one.when_us <= self.idle_us]
        if not told:
            return before
        found = min(told) - self.late_us
        return found if before is None else max(before, found)
