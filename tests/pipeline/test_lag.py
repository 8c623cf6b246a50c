"""Lag is reported while a job commits nothing."""

from __future__ import annotations

import queue
from collections.abc import Iterator

import pytest

pytest.importorskip("confluent_kafka", reason="needs the `dev` extra")

from vdl.pipeline import lag
from vdl.pipeline.errors import PipelineError
from vdl.pipeline.lag import LagWatch, lag_of
from vdl.pipeline.options import ReadOptions, parse
from vdl.pipeline.positions import Positions, TopicPositions

LEAST = parse({"bootstrap": "127.0.0.1:9", "topics": "t"})


def at(zero: int, one: int) -> Positions:
    return Positions({"t": TopicPositions("id", {0: zero, 1: one})})


def test_lag_is_what_lies_behind_the_table() -> None:
    """An added partition lags from its start; a table may be ahead."""
    positions = Positions({"t": TopicPositions("id", {0: 5})})
    assert lag_of(positions, at(9, 3)) == {("t", 0): 4, ("t", 1): 3}
    assert lag_of(at(9, 3), at(8, 3)) == {("t", 0): 0, ("t", 1): 0}


def test_lag_grows_while_the_table_stands_still(monkeypatch: pytest.MonkeyPatch) -> None:
    """Holds also across a request without a response."""
    answers: Iterator[Positions | None] = iter([at(5, 5), None, at(8, 6)])

    class Cluster:
        def __init__(self, options: ReadOptions) -> None:
            assert options is LEAST

        def ends(self) -> Positions:
            answer = next(answers, None)
            if answer is None:
                raise PipelineError("no answer")
            return answer

        def close(self) -> None:
            pass

    monkeypatch.setattr(lag, "Topics", Cluster)
    told: queue.Queue[lag.Lag] = queue.Queue()
    with LagWatch(LEAST, lambda: at(5, 5), told.put, seconds=0.001):
        found = [told.get(timeout=30) for _ in range(2)]
    assert found == [{("t", 0): 0, ("t", 1): 0}, {("t", 0): 3, ("t", 1): 1}]
