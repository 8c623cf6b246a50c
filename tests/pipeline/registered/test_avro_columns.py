"""Avro decoding by numpy: values that are not in doubt equal fastavro's, byte by byte."""

from __future__ import annotations

import datetime
import json
import random
from io import BytesIO
from typing import Any

import pytest

pytest.importorskip("fastavro", reason="needs the `spark` extra")
pytest.importorskip("pyarrow", reason="needs the `spark` extra")

import fastavro
import numpy as np
import pyarrow as pa

from vdl.pipeline.registered.avro_columns import PADDING, AvroColumns, Unfit

UTC = pa.timestamp("us", tz="UTC")
ORDER = {
    "type": "record", "name": "Order", "fields": [
        {"name": "id", "type": "long"},
        {"name": "skipped", "type": ["null", "bytes"]},
        {"name": "name", "type": ["null", "string"]},
        {"name": "count", "type": ["int", "null"]},
        {"name": "price", "type": "double"},
        {"name": "half", "type": "float"},
        {"name": "paid", "type": "boolean"},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "day", "type": ["null", {"type": "int", "logicalType": "date"}]},
    ],
}  # fmt: skip
WANTED = pa.schema(
    [
        ("paid", pa.bool_()), ("id", pa.int64()), ("name", pa.string()), ("count", pa.int16()),
        ("price", pa.float64()), ("half", pa.float64()), ("kind", pa.string()), ("at", UTC),
        ("day", pa.date32()), ("absent", pa.string()),
    ]
)  # fmt: skip
PARSED = fastavro.parse_schema(ORDER)


def order(rng: random.Random) -> dict[str, Any]:
    return {
        "id": rng.choice((0, -1, 1 << 40, -(1 << 63), (1 << 63) - 1, rng.getrandbits(20))),
        "skipped": rng.choice((None, b"", b"\xff" * 70)),
        "name": rng.choice((None, "", "é😀", "x" * 200)),
        "count": rng.choice((None, 0, -7, 40_000)),
        "price": rng.choice((0.0, -0.0, 1e300, float("nan"), rng.random())),
        "half": rng.choice((0.5, 1.0)),
        "paid": rng.random() < 0.5,
        "kind": rng.choice("AB"),
        "at": datetime.datetime(2026, 11, 29, tzinfo=datetime.UTC)
        + datetime.timedelta(milliseconds=rng.getrandbits(30)),
        "day": rng.choice((None, datetime.date(2026, 11, 29))),
    }


def encoded(value: dict[str, Any]) -> bytes:
    out = BytesIO()
    fastavro.schemaless_writer(out, PARSED, value)
    return out.getvalue()


def read(values: list[bytes], schema: Any = ORDER) -> tuple[list[dict[str, Any]], list[bool]]:
    data = np.frombuffer(b"".join([*values, PADDING]), np.uint8)
    ends = np.cumsum([len(value) for value in values])
    starts = ends - [len(value) for value in values]
    found, sure = AvroColumns(json.dumps(schema), WANTED).read(data, starts, ends)
    assert found.schema == WANTED
    return found.to_pylist(), sure.tolist()


def theirs(value: bytes) -> dict[str, Any] | None:
    """Return fastavro's value; None if it does not match the schema or is not plain for us."""
    file = BytesIO(value)
    try:
        found: Any = fastavro.schemaless_reader(file, PARSED, None)
    except Exception:  # noqa: BLE001 - whatever it raises
        return None
    return found if file.tell() == len(value) else None


def test_avro_values_are_what_fastavro_reads() -> None:
    """Covers whole values, and values with changed bytes."""
    seed = random.randrange(1 << 32)
    rng = random.Random(seed)
    values = []
    for n in range(3000):
        value = bytearray(encoded(order(rng)) if n % 50 else b"\x80" * rng.randrange(15))
        for _ in range(rng.choice((0, 0, 1)) if n % 2 else 0):
            at = rng.randrange(len(value) + 1)
            value[at : at + rng.randrange(2)] = bytes([rng.choice((0, 1, 2, 127, 255, 254))])
        values.append(bytes(value))
    found, sure = read(values)
    assert sum(sure) > len(values) // 5, seed
    for value, mine, is_sure in zip(values, found, sure, strict=True):
        told = theirs(value)
        if not is_sure:
            continue
        assert told is not None, (seed, value)
        for name in WANTED.names:
            assert mine[name] == told.get(name), (seed, value, name)


def test_avro_values_of_plain_records_are_not_in_doubt() -> None:
    """The good case must use the fast path."""
    rng = random.Random(3)
    values = [{**order(rng), "count": 5, "price": 1.5, "id": 1 << 40} for _ in range(50)]
    found, sure = read([encoded(value) for value in values])
    assert all(sure)
    assert [row["name"] for row in found] == [value["name"] for value in values]


@pytest.mark.parametrize(
    "change",
    [
        {"count": 40_000},  # no smallint
        {"price": float("inf")},
        {"at": datetime.datetime(1930, 1, 1, tzinfo=datetime.UTC)},
        {"id": -(1 << 63)},  # ten bytes: more of them would be another number
    ],
)
def test_avro_values_that_are_not_plain_are_in_doubt(change: dict[str, Any]) -> None:
    rng = random.Random(4)
    good = {**order(rng), "count": 5, "price": 1.5, "id": 7}
    values = [good, {**good, **change}, good]
    assert read([encoded(value) for value in values])[1] == [True, False, True]


@pytest.mark.parametrize("cut", range(1, 40))
def test_avro_value_that_is_cut_off_is_in_doubt(cut: int) -> None:
    good = encoded({**order(random.Random(6)), "count": 5, "price": 1.5, "id": 7, "name": "n" * 30})
    assert read([good, good[:-cut], good, good + b"\0"])[1] == [True, False, True, False]


@pytest.mark.parametrize(
    "kind",
    [
        {"type": "array", "items": "long"},
        {"type": "record", "name": "Inner", "fields": []},
        ["null", "long", "string"],
        "bytes",
        "double",
        {"type": "bytes", "logicalType": "decimal", "precision": 9},
        {"type": "long", "logicalType": "timestamp-millis"},
        "Other",
    ],
)
def test_avro_schemas_with_more_are_left(kind: Any) -> None:
    schema = {"type": "record", "name": "R", "fields": [{"name": "id", "type": kind}]}
    with pytest.raises(Unfit):
        AvroColumns(json.dumps(schema), WANTED)
