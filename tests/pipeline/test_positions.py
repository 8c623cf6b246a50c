"""Positions and the arithmetic of batches: every offset is in exactly one batch."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vdl.pipeline.errors import LogShrank, RowsGone, TopicRecreated
from vdl.pipeline.positions import (
    TASK_RANGES_MAX,
    TASK_ROWS_MIN,
    OffsetRange,
    Positions,
    TopicPositions,
    admit,
    capped,
    check_reachable,
    check_same_topics,
    cut,
    ranges,
    together,
)


def at(offsets: dict[int, int], *, topic: str = "t", topic_id: str = "id") -> Positions:
    return Positions({topic: TopicPositions(topic_id, offsets)})


def test_positions_as_json_come_back_equal() -> None:
    """Positions survive a sink or a checkpoint unchanged; keys are text."""
    positions = at({0: 5, 11: 7}).over(at({2: 1}, topic="u", topic_id="other"))
    text = json.dumps(positions.to_json())
    assert Positions.from_json(json.loads(text)) == positions


def test_positions_of_the_connector_are_read() -> None:
    """The official connector writes no ids; ours are added to its offsets."""
    found = Positions.from_json({"t": {"0": 5}})
    assert found == at({0: 5}, topic_id="")
    assert found.with_ids_of(at({0: 9})) == at({0: 5})


@pytest.mark.parametrize("data", [{"t": 5}, {"t": {"id": "x", "offsets": 3}}, {"t": {"a": "b"}}])
def test_positions_that_are_none_are_refused(data: dict[str, object]) -> None:
    with pytest.raises(ValueError):
        Positions.from_json(data)


def test_positions_of_another_topic_id_stop_the_job() -> None:
    """A recreated topic has offsets of its own: to continue would skip its first records."""
    with pytest.raises(TopicRecreated, match="deleted and created again"):
        check_same_topics(at({0: 5}), at({0: 9}, topic_id="new"))
    check_same_topics(at({0: 5}), at({0: 9}))
    check_same_topics(at({0: 5}, topic_id=""), at({0: 9}))


def test_positions_before_the_log_start_are_gone() -> None:
    with pytest.raises(RowsGone) as gone:
        check_reachable(at({0: 5}), at({0: 8}), at({0: 20}))
    assert (gone.value.wanted, gone.value.first) == (5, 8)


def test_positions_behind_the_log_end_are_no_wait() -> None:
    """A job must not wait until a log that lost its end is as long again."""
    with pytest.raises(LogShrank):
        check_reachable(at({0: 21}), at({0: 0}), at({0: 20}))


def test_positions_of_added_partitions_begin_at_zero() -> None:
    found = ranges(at({0: 5}), at({0: 5, 1: 3}))
    assert found == [OffsetRange("t", 1, 0, 3)]


def test_positions_that_go_on_may_have_more_partitions() -> None:
    assert at({0: 5, 1: 0}).goes_on_from(at({0: 5}))
    assert not at({0: 6, 1: 0}).goes_on_from(at({0: 5}))


def test_capped_ends_stay_at_their_limit() -> None:
    assert capped(at({0: 9, 1: 4, 2: 7}), at({0: 5, 1: 6})) == at({0: 5, 1: 4})


OFFSETS = st.dictionaries(st.integers(0, 5), st.integers(0, 300), min_size=1)


@given(begin=OFFSETS, more=OFFSETS, rows_max=st.integers(10, 300))
def test_admit_until_the_end_takes_every_offset_once(
    begin: dict[int, int], more: dict[int, int], rows_max: int
) -> None:
    """Batches follow one another without gap or overlap, none is too large, and they end."""
    position = at(begin)
    end = at({p: begin.get(p, 0) + more.get(p, 0) for p in {*begin, *more}})
    total = sum(r.count for r in ranges(position, end))
    while ranges(position, end):
        stop = admit(position, end, rows_max=rows_max)
        taken = ranges(position, stop)
        count = sum(r.count for r in taken)
        assert 0 < count <= rows_max
        assert all(r.start == (position.offset("t", r.partition) or 0) for r in taken)
        assert all(r.end <= (end.offset("t", r.partition) or 0) for r in taken)
        position = stop
        total -= count
    assert total == 0


def test_admit_takes_a_small_partition_beside_a_large_one_at_once() -> None:
    """In proportion none of the thirty would be in the first batches, and all would be late."""
    stop = admit(at({0: 0, 1: 0}), at({0: 30, 1: 10_000_000}), rows_max=200_000)
    assert stop.offset("t", 0) == 30
    assert stop.offset("t", 1) == 200_000 - 30


def test_admit_of_more_partitions_than_rows_lets_none_wait_for_ever() -> None:
    """Each has its turn, however much the others have."""
    count, rows_max = 25, 10
    position = at(dict.fromkeys(range(count), 0))
    for batch in range(10):
        end = at({p: 2 + batch * (1 + 100 * (p == 0)) for p in range(count)})
        position = admit(position, end, rows_max=rows_max)
    assert all((position.offset("t", p) or 0) > 0 for p in range(count))


def test_admit_by_bytes_takes_a_share() -> None:
    """Half of the bytes are half of each partition's records."""
    stop = admit(
        at({0: 0, 1: 0}), at({0: 100, 1: 300}), rows_max=10_000, bytes_max=20_000,
        row_bytes={("t", 0): 100.0, ("t", 1): 100.0},
    )  # fmt: skip
    assert stop == at({0: 50, 1: 150})


def test_admit_of_one_huge_record_takes_one() -> None:
    """A limit below one record's size must not stop the stream."""
    stop = admit(at({0: 4}), at({0: 9}), rows_max=10, bytes_max=1, row_bytes={("t", 0): 1e6})
    assert stop == at({0: 5})


@given(counts=st.lists(st.integers(1, 2000), min_size=1, max_size=6), tasks=st.integers(0, 40))
def test_cut_pieces_cover_their_ranges(counts: list[int], tasks: int) -> None:
    wanted = [OffsetRange("t", p, 10, 10 + count) for p, count in enumerate(counts)]
    pieces = cut(wanted, tasks_min=tasks)
    for r in wanted:
        mine = [piece for piece in pieces if piece.partition == r.partition]
        assert mine[0].start == r.start
        assert mine[-1].end == r.end
        assert all(a.end == b.start for a, b in pairwise(mine))
    assert len(pieces) >= min(tasks, sum(counts))


@given(counts=st.lists(st.integers(1, 30_000), max_size=40), tasks=st.integers(0, 10))
def test_pieces_of_one_task_are_those_that_follow(counts: list[int], tasks: int) -> None:
    """Tasks contain all pieces, in order, and no task of small pieces is larger than necessary."""
    pieces = [OffsetRange("t", p, 0, count) for p, count in enumerate(counts)]
    found = together(pieces, tasks_min=tasks)
    assert [piece for few in found for piece in few] == pieces
    for few in found:
        assert len(few) == 1 or sum(r.count for r in few) <= TASK_ROWS_MIN
    assert len(found) >= min(tasks, len(pieces))


def test_pieces_of_many_small_partitions_are_few_tasks() -> None:
    """Otherwise 24 partitions of a hundred records would be 24 tasks, and 24 files."""
    small = [OffsetRange("t", p, 0, 100) for p in range(24)]
    assert len(together(small)) == 1
    assert len(together(small, tasks_min=8)) == 8
    single = [OffsetRange("t", p, 0, 1) for p in range(10_000)]
    assert [len(few) for few in together(single)] == [TASK_RANGES_MAX] * 10
