"""Plans of `vdl topic`: what is not known is not counted as nothing."""

from __future__ import annotations

import pytest

from vdl.commands.resources.topic_facts import Where
from vdl.commands.resources.topic_plans import record_count

A, B = ("t", 0), ("t", 1)


@pytest.mark.parametrize(
    ("starts", "ends", "expected"),
    [
        ({A: 2, B: 0}, {A: 5, B: 1}, 4),
        ({A: 2, B: None}, {A: 5, B: 1}, None),
        ({A: 2, B: 9}, {A: 5, B: None}, None),
        ({A: 2}, {A: 5}, None),
    ],
)
def test_records_of_a_topic_with_a_silent_leader_are_not_known(
    starts: dict[Where, int | None], ends: dict[Where, int | None], expected: int | None
) -> None:
    """A number without the records of one partition would make a deletion look harmless."""
    assert record_count([A, B], starts, ends) == expected
