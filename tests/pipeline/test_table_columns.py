"""Columns that rows may add to a table, and errors for those that they may not."""

from __future__ import annotations

import pytest

from vdl.pipeline.table_columns import Change, change_of, grown, is_wider, problem_of, types_of

TABLE = "n: int32\ns: struct<a: int64, b: string>\nprice: decimal128(10, 2)"


def test_columns_may_come_in_any_place_and_order() -> None:
    rows = "new: string\nprice: decimal128(10, 2)\ns: struct<a: int64, b: string>\nn: int32"
    change = change_of(TABLE, rows)
    assert change == Change(added=("new: string",))
    assert grown(TABLE, change) == f"{TABLE}\nnew: string"


def test_columns_may_become_wider() -> None:
    rows = TABLE.replace("int32", "int64").replace("10, 2", "12, 3")
    change = change_of(TABLE, rows)
    assert change.widened == ("n: int64", "price: decimal128(12, 3)")
    assert problem_of(change) == ""
    assert types_of(grown(TABLE, change)) == types_of(rows)


def test_columns_that_break_are_all_named() -> None:
    change = change_of(TABLE, "n: string\nS: int64\nprice: decimal128(11, 4)")
    assert problem_of(change) == (
        "its columns have changed: n is int32 in the table and string in the rows; S is s in the "
        "table; price is decimal128(10, 2) in the table and decimal128(11, 4) in the rows; "
        "s (struct<a: int64, b: string>) is in the table but not in the rows"
    )


def test_columns_of_a_new_table_are_any() -> None:
    assert change_of("", TABLE) == Change()


@pytest.mark.parametrize(
    ("narrow", "wide", "fits"),
    [
        ("int8", "int64", True),
        ("int64", "int32", False),
        ("float", "double", True),
        ("int32", "double", False),
        ("decimal128(10, 2)", "decimal128(11, 2)", True),
        ("decimal128(10, 2)", "decimal128(11, 4)", False),
        ("decimal128(10, 2)", "decimal128(11, 1)", False),
        ("string", "int32", False),
    ],
)
def test_type_is_wider_where_each_value_has_room(narrow: str, wide: str, *, fits: bool) -> None:
    assert is_wider(wide, than=narrow) is fits
