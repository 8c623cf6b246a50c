"""JSON decoding by Arrow: values that are not in doubt equal Spark's, to the bit."""

from __future__ import annotations

import json
import math
import random
import struct
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="needs the `spark` extra")

import pyarrow as pa

from vdl.pipeline.json_columns import JsonColumns, Unreadable

UTC = pa.timestamp("us", tz="UTC")
SCHEMA = pa.schema(
    [
        ("b", pa.bool_()), ("i", pa.int32()), ("l", pa.int64()), ("d", pa.float64()),
        ("s", pa.string()), ("t", UTC), ("day", pa.date32()), ("y", pa.int8()),
    ]
)  # fmt: skip
DDL = "b boolean, i int, l bigint, d double, s string, t timestamp, day date, y tinyint"
GOOD = [
    b'{"b":true,"i":1,"l":9007199254740993,"d":1.5,"s":"x","t":"2026-11-29T10:00:00Z"}',
    b' {"i":-0,"l":-9223372036854775808,"d":0.0}\n',
    b'{"s":"\\u00e9\\ud83d\\ude00\\/\\u0000","x":[1,{"s":2}],"d":1e-400}',
    b'{"b":null,"s":null,"t":null}',
    b'{\n"i": 7,\r\n\t"l": 8}',
    b"{}",
    b'{"day":"2024-02-29","y":-128,"t":"2026-11-29T10:00:00.123456Z"}',
    b'{"d":12345678901234567890123,"i":2147483647}',
]
DOUBTFUL = [
    None, b"", b"{", b"[]", b"null", b'{"i":1}{"i":2}', b'{"i":1} x', b'{"i":1.0}', b'{"i":1e2}',
    b'{"i":"1"}', b'{"i":2147483648}', b'{"l":9223372036854775808}', b'{"y":200}', b'{"s":5}',
    b'{"s":{"a":1}}', b'{"s":"\\ud800"}', b'{"s":"\xff"}', b'{"x":"\xff"}', b'{"i":1,"i":2}',
    b'{"d":NaN}', b'{"d":-Infinity}', b'{"d":Inf}', b'{"x":Inf,"i":1}', b'{"d":"NaN"}',
    b'{"d":1e400}', b'{"b":"true"}', b"{'i':1}", b'{"i":01}', b'{"s":"a\tb"}', b'{"i":1,}',
    b'{"s":"a', b'b"}', b'{"x":{', b"}}", b"\xef\xbb\xbf{}", b'\x0b{"i":1}', b'{"t":1}',
    b'{"t":"2026-02-30T10:00:00Z"}', b'{"t":"yesterday"}', b'{"day":"2026-13-01"}',
    b'{"day":"2023-02-29"}', b'{"day":"2026-1-1"}', b'{"t":"2026-11-29T25:00:00Z"}',
    b'{"x":' + b"[" * 1001 + b"]" * 1001 + b"}", b'{"d":' + b"1" * 1001 + b"}",
    b'{"x":' + b"1" * 1001 + b"}", b'{"d":-0}', b'{"d":-0.0}',
]  # fmt: skip


def read(values: list[bytes | None], *, is_utc: bool = True) -> tuple[list[dict[str, Any]], Any]:
    found, sure = JsonColumns(SCHEMA, is_utc=is_utc).read(pa.array(values, pa.binary()))
    assert found.schema == SCHEMA
    assert found.num_rows == sure.sum()
    return found.to_pylist(), sure.tolist()


def test_json_of_plain_forms_is_decoded() -> None:
    found, sure = read(list(GOOD))
    assert all(sure)
    assert [r["l"] for r in found][:2] == [9007199254740993, -9223372036854775808]
    assert found[2]["s"] == "é😀/\0"
    assert found[4]["i"] == 7


@pytest.mark.parametrize("place", range(len(DOUBTFUL)))
def test_json_in_doubt_is_left_and_costs_no_other_row(place: int) -> None:
    bad = DOUBTFUL[place]
    found, sure = read([GOOD[0], bad, GOOD[4], bad, GOOD[1]])
    assert sure == [True, False, True, False, True]
    assert [r["i"] for r in found] == [1, 7, 0]


def test_json_of_many_values_in_doubt_costs_no_other_row() -> None:
    """Covers values that continue in the next one, or end the previous one."""
    values = [value for bad in DOUBTFUL for value in (bad, GOOD[4])]
    found, sure = read(values)
    assert sure == [False, True] * len(DOUBTFUL)
    assert {r["i"] for r in found} == {7}


BROKEN = {
    "cut off": b'{"i":5,"s":"x"',
    "cut off within a text": b'{"i":5,"s":"x}',
    "cut off within an object": b'{"i":5,"x":{}',
    "no object": b"no order",
    "another type": b'{"i":5,"d":"x"}',
    "a whole number with a point": b'{"i":5.5}',
    "a number too large": b'{"i":99999999999}',
    "a member twice": b'{"i":5,"i":6}',
    "two objects": b'{"i":5}{"i":6}',
    "not UTF-8": b'{"i":5,"s":"\xff"}',
    "no date": b'{"i":5,"day":"2026-02-30"}',
    "a number too long": b'{"i":5,"x":' + b"1" * 1001 + b"}",
    "nothing": None,
}
PLACES = {
    "first": [0],
    "last": [-1],
    "both ends": [0, 1, -2, -1],
    "here and there": list(range(7, 400, 90)),
    "neighbours": [100, 101, 102],
    "many": list(range(0, 400, 3)),
    "all but one": list(range(1, 400)),
    "all": list(range(400)),
}


@pytest.mark.takes_turns(parts=3)
@pytest.mark.parametrize("places", PLACES.values(), ids=PLACES)
@pytest.mark.parametrize("kind", [*BROKEN, "each kind in turn"])
def test_json_broken_values_of_a_large_batch_cost_no_other_row(
    kind: str, places: list[int]
) -> None:
    broken = [BROKEN[kind]] if kind in BROKEN else list(BROKEN.values())
    values: list[bytes | None] = [b'{"i":%d,"d":%d.5,"s":"text"}' % (n, n) for n in range(400)]
    expected = [True] * len(values)
    for count, place in enumerate(places):
        values[place], expected[place] = broken[count % len(broken)], False
    found, sure = read(values)
    assert sure == expected
    assert [row["i"] for row in found] == [n for n, good in enumerate(expected) if good]
    assert [row["d"] for row in found] == [n + 0.5 for n, good in enumerate(expected) if good]


def test_json_value_is_decoded_the_same_alone_and_among_others() -> None:
    """Values are broken in random places; a difference is reported with its seed."""
    seed = random.randrange(1 << 32)
    rng = random.Random(seed)
    # Few values, so that Arrow's errors name rows.
    values = rng.sample(values_of(rng, 300), rng.randrange(1, 9))
    values += [b'{"i":%d,"s":"text"}' % n for n in range(240)]
    rng.shuffle(values)
    found, sure = read(values, is_utc=False)
    alone = [read([value], is_utc=False) for value in values]
    assert sure == [one_sure for _, (one_sure,) in alone], seed
    assert found == [row for rows, _ in alone for row in rows], seed


def test_json_long_values_are_looked_at_each() -> None:
    long = [
        (b'{"i":1,"s":"%s"}' % (b"x" * 2000), True),
        (b'{"i":1,"x":' + b"[" * 600 + b"]" * 600 + b"}", False),
        (b'{"i":1,"x":%s}' % (b"1" * 1000), False),
        (b'{"i":1,"s":"%s"}' % (b"[" * 400 + b"-" * 600), True),
    ]
    values = [value for value, _ in long] * 3
    assert read([GOOD[0], *values])[1] == [True, *[good for _, good in long] * 3]


def test_json_of_nothing_is_nothing() -> None:
    assert read([]) == ([], [])
    assert read([None, b"x"]) == ([], [False, False])


def test_json_that_a_slice_has_is_read_from_its_place() -> None:
    whole = pa.array([b"x", GOOD[0], GOOD[4], b"y"], pa.binary())
    found, sure = JsonColumns(SCHEMA, is_utc=True).read(whole.slice(1, 2))
    assert sure.tolist() == [True, True]
    assert found["i"].to_pylist() == [1, 7]


def test_json_times_without_a_zone_are_in_doubt_where_it_is_another() -> None:
    value = b'{"t":"2026-11-29T10:00:00"}'
    assert read([value], is_utc=False)[1] == [False]
    assert read([value, b'{"t":"2026-11-29 10:00:00.5"}'])[1] == [True, True]


def values_of(rng: random.Random, count: int) -> list[bytes | None]:
    """Return objects of the schema, some with changed bytes."""
    tokens: list[bytes] = [
        b"1", b"-1", b"1.5", b'"x"', b"null", b"true", b"{}", b"[]", b'"2026-11-29T10:00:00Z"',
        b'"2026-02-29"', b'"2024-02-29"', b"1e5", b"128", b"3000000000", b'"\\u00e9"', b'""',
        b'"2026-11-29T10:00:00+02:00"', b'"2026-11-29 10:00"', b"-0", b"0.1", b'"1"', b"NaN",
        b'"Infinity"', b'{"s":"}{"}', b"99999999999999999999", b'"2026-11-29T10:00:00.1234567Z"',
    ]  # fmt: skip
    names = [*SCHEMA.names, "x", "S"]
    found: list[bytes | None] = []
    for _ in range(count):
        chosen = rng.sample(names, rng.randrange(len(names)))
        members = [b'"%s":%s' % (n.encode(), rng.choice(tokens)) for n in chosen]
        value = bytearray(b"{" + b",".join(members) + b"}")
        for _ in range(rng.choice((0, 0, 0, 1, 1, 2))):
            at = rng.randrange(len(value))
            what = rng.choice(b'{}[]",:\\ \n\t0123456789eE+-.xtnu\x00\xff/')
            value[at : at + rng.randrange(2)] = bytes([what])
        found.append(bytes(value))
    return [*found, *GOOD, *DOUBTFUL]


def same(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return struct.pack("d", one) == struct.pack("d", other) or (
            math.isnan(one) and math.isnan(other)
        )
    return bool(one == other)


def test_json_that_nobody_can_read_is_found() -> None:
    """Values in doubt, such as other forms of numbers, are not among them."""
    gone = [
        b"no", b' "{}"', b"12", b"]", b"{", b'{"i":1', b'{"s":"x', b'{"i":"1"}', b'{"d":"x"}',
        b'{"b":"true"}', b'{"l":[1]}', b'{"d":{}}', b'{"i":true}',
    ]  # fmt: skip
    kept = [
        None, b"", b"[]", b"\xff", b"n\xff", b"\xef\xbb\xbf{}", b'{"d":"NaN"}', b'{"d":"-INF"}',
        b'{"s":"\\ud800"}',
        b'{"i":1.5}', b'{"b":1}', b"{'i':1}", b'{"i":1}}', b'{"s":1}', b'{"i":null}', b'{"t":1}',
        b'{"s":"%s' % (b"x" * 200_000),
    ]  # fmt: skip
    found = Unreadable(SCHEMA).find(pa.array([*gone, *kept], pa.binary())).to_pylist()
    assert found == [True] * len(gone) + [False] * len(kept)


@pytest.mark.spark
def test_json_is_what_spark_makes_of_it(spark: Any) -> None:
    """Thousands of values, most of them broken in some way.

    A difference is reported with its seed.
    """
    from pyspark.sql import functions as f
    from pyspark.sql.types import StructType

    seed = random.randrange(1 << 32)
    rng = random.Random(seed)
    values = values_of(rng, 4000)
    rng.shuffle(values)
    wanted = StructType([*StructType.fromDDL(DDL).fields]).add("_corrupt", "string")
    frame = spark.createDataFrame([(n, v) for n, v in enumerate(values)], "n int, value binary")
    text = f.col("value").cast("string")
    parsed = f.from_json(text, wanted, {"columnNameOfCorruptRecord": "_corrupt"})
    is_dead = ~f.is_valid_utf8("text") | f.col("j").isNull() | f.col("j._corrupt").isNotNull()
    rows = frame.select("n", text.alias("text"), parsed.alias("j"))
    names = [f"j.{name}" for name in SCHEMA.names]
    rows = rows.select("n", f.coalesce(is_dead, f.lit(True)).alias("bad"), *names)
    # Through Arrow, as rows are written.
    table = rows.orderBy("n").toArrow()
    found, sure = read(values)
    assert sum(sure) > len(values) // 20, seed
    gone = Unreadable(SCHEMA).find(pa.array(values, pa.binary())).to_pylist()
    assert sum(gone) > len(values) // 20, seed
    for value, is_gone, is_bad in zip(values, gone, table["bad"].to_pylist(), strict=True):
        assert is_bad or not is_gone, (seed, value)
    # Invalid UTF-8, and times of other millennia, cannot be displayed.
    table = table.filter(pa.array(sure))
    kept = [value for value, is_sure in zip(values, sure, strict=True) if is_sure]
    bad, told = table["bad"].to_pylist(), table.select(SCHEMA.names).to_pylist()
    for value, is_bad, mine, sparks in zip(kept, bad, found, told, strict=True):
        assert not is_bad, (seed, value)
        for name in SCHEMA.names:
            assert same(mine[name], sparks[name]), (seed, value, name)


def test_json_as_python_writes_it_is_not_in_doubt() -> None:
    """The good case must use the fast path."""
    rng = random.Random(5)
    rows = [
        {"b": rng.random() < 0.5, "i": rng.randrange(-9, 9), "l": rng.getrandbits(62),
         "d": rng.uniform(-1e9, 1e9), "s": chr(rng.randrange(32, 0xD000)) * 3, "x": [n],
         "t": f"2026-11-29T10:00:00.{n:03d}Z", "day": "2026-11-29", "y": 5}
        for n in range(500)
    ]  # fmt: skip
    found, sure = read([json.dumps(row).encode() for row in rows])
    assert all(sure)
    assert [(r["l"], r["d"], r["s"]) for r in found] == [(r["l"], r["d"], r["s"]) for r in rows]
