"""Planted anomalies of share groups are found; legal histories pass."""

from __future__ import annotations

import pytest

from vdl.check.history import Mark, Op, Record, Share, decode, encode
from vdl.check.report import find

KEY = "t-0"


def op(i: int, f: str, kind: str = "ok", **fields: object) -> Op:
    made = Op(i, f"c{i}", f, kind, i, i, group="g", member=f"m{i}", limit=3)
    for name, value in fields.items():
        setattr(made, name, value)
    return made


def delivered(i: int, first: int, last: int, count: int) -> Op:
    return op(i, "deliver", shares=[Share(KEY, first, last, count)])


def said(i: int, first: int, last: int, count: int, kind: int, outcome: str = "ok") -> Op:
    return op(i, "acknowledge", outcome, shares=[Share(KEY, first, last, count, kind)])


FINE = [delivered(1, 0, 4, 1), said(2, 0, 2, 1, 1), said(3, 3, 4, 1, 2), delivered(4, 3, 4, 2)]


@pytest.mark.parametrize(
    ("more", "name"),
    [
        ([], ""),
        ([said(5, 3, 3, 2, 1), said(6, 4, 4, 2, 3, "info"), delivered(7, 4, 4, 3)], ""),
        ([delivered(5, 3, 3, 4)], "share-limit"),
        ([delivered(5, 4, 6, 2)], "share-count"),
        ([delivered(5, 2, 2, 2)], "share-after-end"),
        ([said(5, 2, 2, 1, 1)], "share-twice"),
        ([said(5, 4, 4, 2, 3), delivered(6, 4, 4, 3)], "share-after-end"),
    ],
)
def test_anomalies_of_share_groups_are_found(more: list[Op], name: str) -> None:
    found = find([*FINE, *more])
    assert {one.name for one in found} == ({name} if name else set()), found


@pytest.mark.parametrize(("limit", "names"), [(10, {"share-lost"}), (3, set())])
def test_a_record_that_nobody_was_given_is_lost(limit: int, names: set[str]) -> None:
    """A record that was never delivered counts as lost if there are many deliveries.

    With few, all of them may have been lost on their way.
    """
    records = [Record(offset, 100 + offset) for offset in range(6)]
    polled = op(5, "poll", polls=[(KEY, records)], final=True, group="")
    sent = op(0, "send", sends=[])
    end = op(6, "share_end", marks=[Mark(KEY, 6)], limit=limit)
    found = find([sent, *FINE, polled, end])
    assert {one.name for one in found if one.name.startswith("share")} == names


def test_operations_of_share_groups_are_written_and_read() -> None:
    for one in (*FINE, op(9, "share_end", marks=[Mark(KEY, 6)])):
        assert decode(encode(one)) == one
