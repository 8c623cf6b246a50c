"""Contents of records: the size, distribution and compressibility that the rows state."""

from __future__ import annotations

from collections import Counter

import pytest
import zstandard

from tests.bench.payloads import LOG_LINE_LISTS, incompressible, log_lines


@pytest.mark.parametrize("partitions", [1, 30, 1_000])
def test_incompressible_over_partitions_spreads_evenly(partitions: int) -> None:
    """Round robin: each list has the same number for every partition."""
    (messages,) = incompressible(100, partitions)
    counts = Counter(message["partition"] for message in messages)
    assert sorted(counts) == list(range(partitions))
    assert len(set(counts.values())) == 1
    assert {len(message["value"]) for message in messages} == {100}


def test_log_lines_of_a_batch_shrink_as_told() -> None:
    """A megabyte, the maximum of a batch, is compressed four to five times.

    No line occurs twice in it.
    """
    lists = log_lines(1_000)
    assert len(lists) == LOG_LINE_LISTS
    values = [message["value"] for message in lists[0]]
    assert {len(value) for value in values} == {1_000}
    assert len(set(values)) == len(values)
    batch = b"".join(values)
    assert 4 < len(batch) / len(zstandard.ZstdCompressor(3).compress(batch)) < 5
