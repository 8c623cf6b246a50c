"""Files that tasks write, without Spark."""

from __future__ import annotations

import datetime

import pytest

pytest.importorskip("pyspark", reason="needs the `spark` extra")

import pyarrow as pa

from vdl.pipeline.files import in_utc


def test_times_are_written_in_utc_whatever_the_session_has() -> None:
    at = datetime.datetime(2026, 1, 2, 3, 4, tzinfo=datetime.UTC)
    columns = pa.schema(
        [
            ("n", pa.int64()),
            ("at", pa.timestamp("us", "Europe/Berlin")),
            ("wall", pa.timestamp("us")),
        ]
    )
    wall = at.replace(tzinfo=None)
    batch = pa.RecordBatch.from_pylist([{"n": 1, "at": at, "wall": wall}], schema=columns)
    found = in_utc(batch)
    assert found.schema.types == [pa.int64(), pa.timestamp("us", "UTC"), pa.timestamp("us")]
    assert found.to_pylist() == [{"n": 1, "at": at, "wall": wall}]
    assert in_utc(found) is found
