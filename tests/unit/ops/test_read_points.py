"""Points and ranges of `vdl consume`, and its conditions."""

from __future__ import annotations

import pytest

from vdl.commands.records.partition_ranges import NO_OFFSET, range_of
from vdl.commands.records.read_point import END, START, Kind, Point, duration_ms, parse_point
from vdl.commands.records.record_decoding import plain_form
from vdl.commands.records.record_filter import BadFilter, Filter, compile_grep, json_or_text
from vdl.commands.records.record_json import Received

NOW_MS = 1_800_000_000_000


@pytest.mark.parametrize(
    ("text", "point"),
    [
        ("start", START),
        ("end", END),
        ("0", Point(Kind.OFFSET, 0)),
        ("42", Point(Kind.OFFSET, 42)),
        ("-10", Point(Kind.BEFORE_END, 10)),
        ("@1700000000", Point(Kind.TIME, 1_700_000_000_000)),
        ("@1700000000123", Point(Kind.TIME, 1_700_000_000_123)),
        ("1970-01-02", Point(Kind.TIME, 86_400_000)),
        ("1970-01-01T01:00:00+01:00", Point(Kind.TIME, 0)),
        ("1970-01-01T00:00:01.5Z", Point(Kind.TIME, 1_500)),
        ("15m", Point(Kind.TIME, NOW_MS - 900_000)),
        ("15m ago", Point(Kind.TIME, NOW_MS - 900_000)),
        ("1h30m ago", Point(Kind.TIME, NOW_MS - 5_400_000)),
        ("1.5s", Point(Kind.TIME, NOW_MS - 1_500)),
    ],
)
def test_point_of_each_form_is_understood(text: str, point: Point) -> None:
    assert parse_point(text, now_ms=NOW_MS) == point


@pytest.mark.parametrize(
    "text",
    ["", "x", "@", "@x", "15 m", "ago", "-1.5", "1e3", "9" * 20, "9" * 400 + "d", "99999d",
     "2026-13-01", "²"],
)  # fmt: skip
def test_point_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_point(text, now_ms=NOW_MS)


def test_duration_with_other_words_is_refused() -> None:
    assert duration_ms("2d1ms") == 172_800_001
    with pytest.raises(ValueError, match="no duration"):
        duration_ms("15m ago")


TIMES = {5: 12, 9: NO_OFFSET}
"""A record at offset 12 was the first at time 5; none is as late as 9."""


@pytest.mark.parametrize(
    ("start", "until", "follow", "wanted"),
    [
        (START, None, False, (10, 20)),
        (START, None, True, (10, None)),
        (END, None, True, (20, None)),
        (Point(Kind.OFFSET, 15), None, False, (15, 20)),
        (Point(Kind.OFFSET, 3), None, False, (10, 20)),
        (Point(Kind.OFFSET, 30), None, False, (20, 20)),
        (Point(Kind.BEFORE_END, 4), None, False, (16, 20)),
        (Point(Kind.BEFORE_END, 400), None, False, (10, 20)),
        (Point(Kind.TIME, 5), None, False, (12, 20)),
        (Point(Kind.TIME, 9), None, True, (20, None)),
        (START, Point(Kind.OFFSET, 15), False, (10, 15)),
        (START, Point(Kind.OFFSET, 30), False, (10, 20)),
        (START, Point(Kind.OFFSET, 30), True, (10, 30)),
        (START, Point(Kind.BEFORE_END, 1), False, (10, 19)),
        (START, Point(Kind.TIME, 5), True, (10, 12)),
        (START, Point(Kind.TIME, 9), False, (10, 20)),
        (START, END, True, (10, 20)),
    ],
)
def test_range_of_points_is_within_the_partition(
    start: Point, until: Point | None, follow: bool, wanted: tuple[int, int | None]
) -> None:
    """The partition has the offsets 10 to 19."""
    found = range_of(("t", 0), 10, 20, start=start, until=until, follow=follow, times=TIMES)
    assert (found.start, found.end) == wanted
    assert found.stop_ms is None


def test_range_until_a_time_to_come_stops_at_the_first_such_record() -> None:
    until = Point(Kind.TIME, 9)
    found = range_of(("t", 0), 10, 20, start=START, until=until, follow=True, times=TIMES)
    assert (found.end, found.stop_ms) == (None, 9)
    assert not found.is_empty


def record(value: bytes | None, key: bytes | None = b"k") -> Received:
    headers = [("user", b"x"), ("raw", b"\xff")]
    return Received("t", 1, 7, 1, 5_000, headers, key, value)


@pytest.mark.parametrize(
    ("expression", "keeps"),
    [
        ("value.user == 'x'", True),
        ("value.user == 'y'", False),
        ("value.n > `2` && headers.user == 'x'", True),
        ("value.n > `3`", False),
        ("partition == `1` && offset == `7` && topic == 't' && timestamp == `5000`", True),
        ("key == 'k'", True),
        ("value.zero", True),
        ("value.empty", False),
        ("value.missing", False),
        ("value.list[?a == `1`]", True),
        ("value.list[?a == `2`]", False),
    ],
)
def test_filter_keeps_what_is_true_in_jmespath(expression: str, keeps: bool) -> None:
    value = b'{"user": "x", "n": 3, "zero": 0, "empty": "", "list": [{"a": 1}]}'
    found = Filter(expression, key=json_or_text, value=json_or_text)
    assert found.keeps(record(value)) is keeps


@pytest.mark.parametrize("value", [None, b"", b"\xff\xfe", b"{", b"[" * 100_000])
def test_filter_over_hostile_values_keeps_none(value: bytes | None) -> None:
    found = Filter("value.user == 'x'", key=json_or_text, value=json_or_text)
    assert not found.keeps(record(value, key=None))


def test_filter_that_cannot_be_applied_is_counted() -> None:
    found = Filter("contains(value, 'x')", key=json_or_text, value=json_or_text)
    assert not found.keeps(record(b"1"))
    assert found.failed == 1
    assert "contains" in found.problem


def test_filter_sees_values_in_their_form() -> None:
    found = Filter(
        "value == '00ff'", key=json_or_text, value=lambda d: plain_form("hex").field(d)[1]
    )
    assert found.keeps(record(b"\x00\xff"))


@pytest.mark.parametrize("expression", ["", "value ==", "a b", "(" * 5_000])
def test_filter_that_is_no_expression_is_refused(expression: str) -> None:
    with pytest.raises(BadFilter):
        Filter(expression, key=json_or_text, value=json_or_text)


def test_grep_looks_for_bytes_in_key_and_value() -> None:
    assert compile_grep("b+c")(record(b"\xffabbc\xfe"))
    assert compile_grep("^k$")(record(None))
    assert not compile_grep("z")(record(b"abc"))
    assert compile_grep("größe")(record("die größe".encode()))


@pytest.mark.parametrize("pattern", ["(", r"(a)\1", "a{100000}"])
def test_grep_with_a_bad_pattern_is_refused(pattern: str) -> None:
    with pytest.raises(BadFilter):
        compile_grep(pattern)
