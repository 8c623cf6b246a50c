"""Detection that all records of a batch were seen, each once."""

from __future__ import annotations

import pytest

pytest.importorskip("numpy", reason="needs the `spark` extra")

from vdl.pipeline.positions import OffsetRange
from vdl.pipeline.seen import is_whole, places

BATCH = [OffsetRange("t", 0, 100, 900), OffsetRange("t", 3, 1 << 40, (1 << 40) + 50)]


def counts(*parts: OffsetRange) -> dict[str, int]:
    """Return counts as Spark observes them for a record at each offset of these."""
    return {
        "rows": sum(r.count for r in parts),
        "places": sum(places(r.partition, r.start, r.end) for r in parts),
    }


def test_whole_batch_is_seen_in_any_order() -> None:
    assert is_whole(counts(BATCH[1], BATCH[0]), BATCH)
    assert is_whole(counts(), [])


@pytest.mark.parametrize(
    "parts",
    [
        [BATCH[0]],
        [BATCH[0], BATCH[0], BATCH[1], BATCH[1]],
        # The same number, but half of them twice.
        [OffsetRange("t", 0, 100, 500), OffsetRange("t", 0, 100, 500), BATCH[1]],
        [OffsetRange("t", 1, 100, 900), BATCH[1]],
    ],
)
def test_part_of_a_batch_is_not_taken_for_all(parts: list[OffsetRange]) -> None:
    assert not is_whole(counts(*parts), BATCH)


def test_batch_of_which_nothing_is_known_is_not_whole() -> None:
    assert not is_whole({}, BATCH)
