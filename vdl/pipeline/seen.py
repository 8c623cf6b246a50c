"""Check that a job's steps have read every record of a batch exactly once.

Dead letters are counted where rows go through the steps, at no cost. But a step decides how much of
its input is read: LIMIT stops early, a condition that is never true reads nothing, a UNION of the
input with itself reads it twice. So beside the number of records a checksum over their places is
computed, and compared with that of all offsets of the batch. If they differ, also because offsets
have no record, dead letters are searched in a pass of their own.

Does not depend on the steps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from vdl.pipeline.positions import OffsetRange

_LOW, _FACTOR, _OF_PARTITION, _PRIME = 1 << 31, 2_654_435_761, 40_503, 2_147_483_647
"""Constants of the checksum. A place is below the prime; no intermediate value exceeds 64 bits."""


def observed() -> list[Any]:
    """Return the aggregates to observe on decoded records: `rows`, `dead`, `places`."""
    from pyspark.sql import functions as f

    place = f"(_offset % {_LOW}L * {_FACTOR}L + _partition * {_OF_PARTITION}L) % {_PRIME}L"
    return [
        f.count(f.lit(1)).alias("rows"),
        f.count("_error").alias("dead"),
        f.sum(f.expr(place)).alias("places"),
    ]


def counts_of(observation: Any) -> dict[str, Any]:
    """Return the observed values, or nothing if Spark left the records out of its plan.

    That happens if the steps read nothing at all.
    """
    if not observation._jo.getRow().length():
        return {}
    found: dict[str, Any] = observation.get
    return found


def is_whole(counts: Mapping[str, Any], batch: Sequence[OffsetRange]) -> bool:
    """Return True if the observed records are all offsets of the batch, each once."""
    return counts.get("rows") == sum(r.count for r in batch) and counts.get("places") == sum(
        places(r.partition, r.start, r.end) for r in batch
    )


def places(partition: int, start: int, end: int) -> int:
    """Return the checksum over offsets [start, end) of one partition."""
    offsets: Any = np.arange(start, end, dtype=np.int64) % _LOW
    return int(((offsets * _FACTOR + partition * _OF_PARTITION) % _PRIME).sum())
