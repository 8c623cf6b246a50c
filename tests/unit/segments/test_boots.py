"""Detection of a directory that went back in time, or was copied, by the boots that it lists."""

import pytest

from segments.boots import (
    BOOTS_MAX,
    Boot,
    JournalMark,
    ended,
    is_behind,
    next_boot,
)

BOOTS = [Boot(4, 40, 900), Boot(5, 50, 1500), Boot(6, 60)]


@pytest.mark.parametrize(
    ("mark", "behind"),
    [
        (JournalMark(6, 60, 10**9), False),  # of this very process
        (JournalMark(5, 50, 1500), False),
        (JournalMark(5, 50, 1501), True),  # the journal ended before it
        (JournalMark(4, 40, 900), False),
        (JournalMark(5, 51, 0), True),  # another boot with that number
        (JournalMark(6, 61, 0), True),  # another process from a copy
        (JournalMark(7, 70, 0), True),  # a later boot
        (JournalMark(3, 30, 10**9), False),  # too long ago to decide
    ],
)
def test_mark_is_looked_up_among_the_boots(mark, behind):
    """The boot has to be listed, and its journal to have reached the mark."""
    assert is_behind(BOOTS, mark) is behind


def test_directory_without_boots_is_behind_any_mark():
    """A directory without boots is behind any mark: it was written by an earlier version."""
    assert is_behind([], JournalMark(1, 1))


def test_boots_follow_each_other_and_are_bounded():
    """Each start ends the previous boot; the oldest ones are dropped."""
    boots: list[Boot] = []
    for n in range(BOOTS_MAX + 3):
        boots = next_boot(boots, end_lsn=100 * n, boot_id=n)
        assert boots[-1] == Boot(n + 1, n)
        assert [boot.end_lsn for boot in boots[:-1]] == [100 * b.number for b in boots[:-1]]
    assert len(boots) == BOOTS_MAX
    assert boots[0].number == 4


def test_start_that_could_not_be_noted_ends_the_boot_before_once():
    """Records in the journal up to the next start were not sent to any peer."""
    boots = ended(BOOTS, end_lsn=2000)
    assert boots[-1] == Boot(6, 60, 2000)
    assert ended(boots, end_lsn=3000) == boots
    assert next_boot(boots, end_lsn=3000, boot_id=7) == [*boots, Boot(7, 7)]
