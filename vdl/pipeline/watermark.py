"""The watermark of several partitions: how far the slowest one is, of those that still tell.

A partition is as far as its latest event time. The watermark is the least of these, less what rows
may be late within one partition, so one that is behind the others loses no rows by that. One that
has given no row for a while (`idle`) does not count: it may be silent for ever. Once it gives rows
again it counts again. The watermark never goes back.

Times are microseconds since 1970; `now_us` is the driver's clock, which only tells who is idle.

Must not know: rows, Spark, Kafka.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple


class Heard(NamedTuple):
    """Of one partition: its latest event time, and when a row of it came last."""

    at_us: int
    when_us: int


@dataclass(frozen=True, slots=True)
class Sources:
    """`known`: by partition what was heard before the batch."""

    late_us: int
    idle_us: int
    known: Mapping[str, Heard]

    def after(self, seen: Mapping[str, int | None], *, now_us: int) -> dict[str, Heard]:
        """With a batch: partition → its latest event time there; None where no row has any."""
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
        """From what was before; None: no event yet."""
        told = [one.at_us for one in heard.values() if now_us - one.when_us <= self.idle_us]
        if not told:
            return before
        found = min(told) - self.late_us
        return found if before is None else max(before, found)
