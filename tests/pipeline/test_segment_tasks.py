"""Sealed segments of one task: consecutive ones, within bounds."""

from __future__ import annotations

import pytest

pytest.importorskip("pyarrow", reason="needs the `spark` extra")

from vdl.pipeline.positions import TASK_ROWS_MAX, OffsetRange
from vdl.pipeline.segment_read import (
    TASK_BYTES_MAX,
    TASKS_WANTED,
    SealedSegment,
    SegmentRange,
    divide,
    group,
)


def sealed(base: int, count: int, *, size_bytes: int = 0, directory: str = "d") -> SealedSegment:
    return SealedSegment(
        directory, 1, 1, base + 1, base, base + count, base, base + count, size_bytes
    )


def run(count: int, each: int, *, partition: int = 0, size_bytes: int = 0) -> list[SegmentRange]:
    """Return `count` consecutive segments of `each` offsets."""
    return [
        SegmentRange(
            OffsetRange("t", partition, n * each, (n + 1) * each),
            sealed(n * each, each, size_bytes=size_bytes),
        )
        for n in range(count)
    ]


def sizes(found: list[SegmentRange], tasks_min: int = 0) -> list[int]:
    """Return the segments of each task, which together are all of them, in order."""
    tasks = group(found, tasks_min=tasks_min)
    assert [piece for task in tasks for piece in task.pieces] == found
    for task in tasks:
        assert task.count == sum(piece.wanted.count for piece in task.pieces)
        assert len({piece.wanted.partition for piece in task.pieces}) == 1
    return [len(task.pieces) for task in tasks]


def test_segments_of_a_task_have_as_many_rows_as_a_range_may_at_most() -> None:
    """Exactly the limit is one task; a row more is two."""
    half = TASK_ROWS_MAX // 2
    assert sizes(run(2 * TASKS_WANTED, half)) == [2] * TASKS_WANTED
    assert sizes(run(2 * TASKS_WANTED, half + 1)) == [1] * 2 * TASKS_WANTED


def test_segments_of_a_task_have_bytes_at_most() -> None:
    """A segment larger than the limit has its own task."""
    part = TASK_BYTES_MAX // 4
    assert sizes(run(8, 10, size_bytes=part), tasks_min=1) == [4, 4]
    assert sizes(run(8, 10, size_bytes=part + 1), tasks_min=1) == [3, 3, 2]
    assert sizes(run(3, 10, size_bytes=TASK_BYTES_MAX + 1), tasks_min=1) == [1, 1, 1]


@pytest.mark.parametrize("tasks_min", [0, 1, 3, 8, 20, 50])
def test_segments_are_spread_over_tasks(tasks_min: int) -> None:
    """There are at least as many tasks as requested, as far as there are segments."""
    wanted = tasks_min or TASKS_WANTED
    assert len(sizes(run(20, 100), tasks_min)) >= min(20, wanted)
    assert sizes(run(20, 100), 20) == [1] * 20


def test_segments_of_two_partitions_are_two_tasks() -> None:
    found = run(2, 100) + run(2, 100, partition=1)
    assert sizes(found, tasks_min=1) == [2, 2]


def test_segments_with_a_hole_between_them_are_two_tasks() -> None:
    """Offsets in the gap are read over the protocol, by a task of its own."""
    segments = [sealed(0, 100), sealed(100, 100), sealed(250, 100)]
    pieces, rest = divide([OffsetRange("t", 0, 20, 340)], [{("t", 0): segments}])
    assert rest == [OffsetRange("t", 0, 200, 250)]
    assert [(p.wanted.start, p.wanted.end) for p in pieces] == [(20, 100), (100, 200), (250, 340)]
    assert sizes(pieces, tasks_min=1) == [2, 1]


def test_segments_of_several_directories_are_read_in_turn_by_one_task() -> None:
    places = [
        {("t", 0): [sealed(0, 100, directory=name), sealed(100, 100, directory=name)]}
        for name in ("a", "b")
    ]
    pieces, rest = divide([OffsetRange("t", 0, 0, 200)], places)
    assert rest == []
    (task,) = group(pieces, tasks_min=1)
    assert [piece.segment.directory for piece in task.pieces] == ["a", "b"]


def test_no_segments_are_no_tasks() -> None:
    assert group([]) == []
