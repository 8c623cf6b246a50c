"""Each anomaly of a consumer group, planted once, is found; clean histories pass."""

from __future__ import annotations

import pytest

from vdl.check.history import EPOCHS, MIXED, Mark, Op, Record, Send
from vdl.check.report import find


def op(i: int, f: str, **more: object) -> Op:
    made = Op(i, str(more.pop("proc", "m1")), f, str(more.pop("kind", "ok")), 10 * i, 10 * i + 5)
    made.group = "g"
    for name, value in more.items():
        setattr(made, name, value)
    return made


def own(i: int, member: str, gen: int, *keys: str) -> Op:
    return op(i, "rebalance", proc=member, member=member, gen=gen, keys=list(keys))


def commit(i: int, offset: int, gen: int = 1, **more: object) -> Op:
    return op(i, "commit", gen=gen, marks=[Mark("t-0", offset)], **more)


def committed(i: int, offset: int) -> Op:
    return op(i, "committed", marks=[Mark("t-0", offset)])


def names(*ops: Op) -> set[str]:
    return {anomaly.name for anomaly in find(ops)}


def test_group_that_hands_over_between_generations_is_clean() -> None:
    """One owner a generation, commits by the current one, reads of the last commit."""
    assert not names(
        op(0, "send", sends=[Send("t-0", 0, 7)]),
        own(1, "m1", 1, "t-0"),
        op(2, "poll", polls=[("t-0", [Record(0, 7)])]),
        commit(3, 1),
        own(4, "m1", 2),
        own(5, "m2", 2, "t-0"),
        committed(6, 1),
        commit(7, 1, 2),
    )


def test_two_owners_in_one_generation_are_found() -> None:
    """own2."""
    assert names(own(1, "m1", 1, "t-0"), own(2, "m2", 1, "t-0")) == {"own2"}


@pytest.mark.parametrize("note", [EPOCHS, MIXED])
def test_two_owners_at_one_time_are_found_whatever_their_epochs(note: str) -> None:
    """own-overlap: a member owns a partition between two accepted heartbeats that name it."""

    def owns(i: int, member: str, gen: int, *keys: str) -> Op:
        return op(i, "owns", proc=member, member=member, gen=gen, keys=list(keys))

    def gets(i: int, member: str, gen: int, *keys: str) -> Op:
        made = own(i, member, gen, *keys)
        made.note = note
        return made

    handed_over = [gets(1, "m1", 1, "t-0"), owns(2, "m1", 1, "t-0"), gets(3, "m1", 1)]
    assert not names(*handed_over, gets(5, "m2", 2, "t-0"), owns(6, "m2", 2, "t-0"))
    twice = [gets(3, "m2", 2, "t-0"), owns(4, "m1", 1, "t-0"), owns(5, "m2", 2, "t-0")]
    assert names(*handed_over[:2], *twice) == {"own-overlap"}
    # An expelled member that does not know it yet owns nothing.
    assert not names(*handed_over[:2], gets(3, "m2", 2, "t-0"), owns(5, "m2", 2, "t-0"))


def test_epochs_of_a_converted_group_may_be_used_again() -> None:
    """Not by the same member: a commit of its earlier epoch is late."""
    one, two = own(1, "m1", 8, "t-0"), own(3, "m2", 8, "t-0")
    for made in (one, two):
        made.note = MIXED
    assert not names(one, two)
    again = own(4, "m2", 9, "t-0")
    again.note = MIXED
    assert names(one, two, again, commit(5, 1, 8, member="m2")) == {"zombie-commit"}
    assert not names(one, two, again, commit(5, 1, 8, member="m1"))


def test_epochs_are_each_member_s_own() -> None:
    """A commit with an epoch that only other members have left is no zombie.

    One of its own past is.
    """
    one, two = own(1, "m1", 1, "t-0"), own(2, "m2", 2, "t-1")
    again = own(4, "m1", 3, "t-0")
    for made in (one, two, again):
        made.note = EPOCHS
    assert not names(one, two, commit(3, 1, gen=1, member="m1"))
    late = commit(5, 1, gen=1, member="m1")
    assert names(one, two, again, late) == {"zombie-commit"}


def test_commit_from_an_old_generation_is_a_zombie() -> None:
    """zombie-commit: the generation had ended before the commit was sent."""
    assert names(own(1, "m1", 2, "t-0"), commit(2, 1, gen=1)) == {"zombie-commit"}


def test_fetch_of_less_than_was_committed_is_a_lost_commit() -> None:
    """lost-commit: a value that was never committed, or none."""
    assert names(commit(1, 5), committed(2, -1)) == {"lost-commit"}
    assert names(commit(1, 5), committed(2, 4)) == {"lost-commit"}


def test_fetch_of_a_superseded_commit_regressed() -> None:
    """commit-regress: an older commit was returned."""
    assert names(commit(1, 4), commit(2, 5), committed(3, 4)) == {"commit-regress"}


def test_commit_of_unknown_outcome_may_or_may_not_be_read() -> None:
    """info: both results are legal."""
    for offset in (4, 5):
        assert not names(commit(1, 4), commit(2, 5, kind="info"), committed(3, offset))


def test_commit_past_an_undelivered_record_skipped_it() -> None:
    """skip-commit: offset 1 was delivered to no member of the group."""
    assert "skip-commit" in names(
        op(0, "send", sends=[Send("t-0", 0, 7), Send("t-0", 1, 8), Send("t-0", 2, 9)]),
        op(1, "poll", polls=[("t-0", [Record(0, 7), Record(2, 9)])]),
        commit(2, 3),
    )
