"""Targets of the figures: absolute limits, and ratios to the system beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum


class Kind(Enum):
    """Compared quantity, and the good side of the limit; the value is the written form."""

    AT_LEAST = "≥{}"
    AT_MOST = "≤{}"
    RATIO_AT_LEAST = "≥{}×"
    RATIO_AT_MOST = "≤{}×"


@dataclass(frozen=True, slots=True)
class Target:
    """A limit. `value` is the figure's and `base` the baseline's, None if there is none."""

    kind: Kind
    limit: float

    def __str__(self) -> str:
        return self.kind.value.format(f"{self.limit:g}")

    def is_met(self, value: float | None, base: float | None) -> bool | None:
        """Return True if the target is met; None: nothing to compare."""
        is_ratio = self.kind in {Kind.RATIO_AT_LEAST, Kind.RATIO_AT_MOST}
        if value is None or (is_ratio and not base):
            return None
        compared = value / base if is_ratio and base else value
        if self.kind in {Kind.AT_LEAST, Kind.RATIO_AT_LEAST}:
            return compared >= self.limit
        return compared <= self.limit


Targets = Mapping[str, Sequence[Target]]
"""Targets by figure."""


def verdict(targets: Sequence[Target], value: float | None, base: float | None) -> str:
    """Return each target with `met`, `missed`, or `-` if there is nothing to compare."""
    words = {True: "met", False: "missed", None: "-"}
    return ", ".join(f"{target} {words[target.is_met(value, base)]}" for target in targets)


def _at_least(limit: float) -> tuple[Target, ...]:
    return (Target(Kind.AT_LEAST, limit),)


def _at_most(limit: float) -> tuple[Target, ...]:
    return (Target(Kind.AT_MOST, limit),)


def _times_at_least(limit: float) -> tuple[Target, ...]:
    return (Target(Kind.RATIO_AT_LEAST, limit),)


def _times_at_most(limit: float) -> tuple[Target, ...]:
    return (Target(Kind.RATIO_AT_MOST, limit),)


WORKLOADS: Targets = {
    "start_seconds": _at_most(2),
    "rss_idle_mb": _at_most(80),
    "rss_after_mb": _at_most(250),
    "produce_1000_bytes_mb_per_second": _times_at_least(1.3),
    "produce_1000_bytes_server_cpu_seconds_per_gb": _at_most(8),
    "produce_100_bytes_mb_per_second": _times_at_least(1),
    "produce_100_bytes_server_cpu_seconds_per_gb": _times_at_most(0.5),
    "produce_30_partitions_mb_per_second": _times_at_least(3),
    "produce_1000_partitions_mb_per_second": _times_at_least(3),
    "produce_16k_batches_mb_per_second": _times_at_least(6),
    "produce_zstd_mb_per_second": _times_at_least(1),
    "ack_at_200_p50_ms": _at_most(1.5),
    "ack_at_200_p99_ms": _at_most(8),
    "ack_at_1000_p50_ms": _at_most(3),
    "ack_at_1000_p99_ms": _at_most(15),
    "end_to_end_at_200_p50_ms": _at_most(3),
    "end_to_end_at_200_p99_ms": _at_most(12),
    "consume_cached_mb_per_second": _times_at_least(1.2),
    "consume_cached_server_cpu_seconds_per_gb": _at_most(1.2),
    "consume_cold_mb_per_second": _times_at_least(1),
    "tailing_50_worst_p99_ms": _at_most(50),
    "tailing_50_server_cpu_seconds_per_second": _times_at_most(2),
    "sync_producer_mean_ms": _at_most(1.2),
}

TRANSACTIONS: Targets = {
    "records_per_second": _times_at_least(1),
    "transaction_p99_ms": _times_at_most(1),
}

_RECORDS_2018 = 870
"""Records a second of the system of 2018, sent one by one: its best published result."""
_MB_2018 = 7
"""MB a second, likewise: records of 1,024 bytes, 50 at a time."""

SARAMA: Targets = {
    **{
        f"{record_bytes}_bytes_by_1_records_per_second": _at_least(_RECORDS_2018)
        for record_bytes in (100, 500, 1_024, 4_096)
    },
    "1024_bytes_by_50_mb_per_second": _at_least(3 * _MB_2018),
}
