"""Long lists of tests run in parts, which take turns."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.parts import part_of, without_turn

COUNT = 23
PARTS = 6


def marked(number: int, parts: int) -> SimpleNamespace:
    mark = pytest.mark.takes_turns(parts=parts) if parts else None
    return SimpleNamespace(
        number=number, path=Path(f"test_{number % 2}.py"), get_closest_marker=lambda name: mark
    )


def test_parts_of_a_list_are_the_list_and_share_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many turns as there are parts run each item once."""
    run = []
    for turn in range(100, 100 + PARTS):
        monkeypatch.setenv("PART", str(turn))
        part = part_of(range(COUNT), PARTS)
        assert COUNT // PARTS <= len(part) <= COUNT // PARTS + 1
        run += part
    assert sorted(run) == list(range(COUNT))


def test_marked_tests_run_once_in_as_many_turns_as_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests without a mark run in each turn."""
    items = [marked(number, (0, 2, 3, 3)[number % 4]) for number in range(48)]
    runs = []
    for turn in range(6):
        monkeypatch.setenv("PART", str(turn))
        gone = without_turn(items)
        runs += [item.number for item in items if item not in gone]
    assert [runs.count(number) for number in range(4)] == [6, 3, 2, 2]
    assert {runs.count(number) for number in range(48)} == {6, 3, 2}


def test_whole_lists_run_without_a_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """As when pytest is run by itself."""
    for environment in ({}, {"PART": "all"}):
        monkeypatch.delenv("PART", raising=False)
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        assert part_of(range(COUNT), PARTS) == list(range(COUNT))
        assert without_turn([marked(number, 3) for number in range(COUNT)]) == []
