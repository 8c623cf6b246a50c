"""Deferred responses: an error on the way becomes the response."""

from __future__ import annotations

from typing import Any

import pytest

from vdl.kafka.answer import Gathering, Later


def broken(what: str) -> None:
    raise ValueError(what)


def test_step_that_fails_where_it_is_called_back_is_the_answer() -> None:
    """The coordinator that calls back, and its other requests, do not see the exception."""
    later = Later()
    answered: list[Any] = []
    later.when_done(lambda one: answered.append(one.response))
    later.step(broken)("no such thing")
    assert [str(answer) for answer in answered] == ["no such thing"]
    assert isinstance(later.response, ValueError)


def test_step_runs_with_what_it_is_called_with_until_there_is_an_answer() -> None:
    later = Later()
    seen: list[tuple[int, str]] = []

    def take(number: int, *, name: str) -> None:
        seen.append((number, name))

    step = later.step(take)
    step(1, name="a")
    later.complete("answer")
    step(2, name="b")
    assert seen == [(1, "a")]


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_gathering_with_a_part_that_fails_is_answered_once(order: tuple[int, int]) -> None:
    parts = Gathering("all")
    steps = [parts.later.step(broken), parts.later.step(lambda _what: parts.arrived())]
    for _ in steps:
        parts.expect()
    later = parts.result()
    assert isinstance(later, Later)
    for number in order:
        steps[number]("part")
    assert isinstance(later.response, ValueError)
