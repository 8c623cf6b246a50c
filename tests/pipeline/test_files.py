"""Files that tasks write, without Spark."""

from __future__ import annotations

import datetime
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="needs the `spark` extra")

import pyarrow as pa
import pyarrow.parquet as pq

from vdl.pipeline import files
from vdl.pipeline.files import ROWS, _File, in_utc


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


def test_rows_are_held_up_to_so_many_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows may be of 100 KB each: a group of the usual number of rows would be gigabytes."""
    monkeypatch.setattr(files, "ROW_GROUP_BYTES", 1 << 20)
    file = _File(str(tmp_path / "f.parquet"), ROWS)
    for n in range(40):
        file.add(pa.RecordBatch.from_pydict({"n": [n], "value": [b"x" * 100_000]}), [])
        assert file.held_bytes < 1 << 20
    report = file.finish()
    assert report is not None
    assert report["rows"] == 40
    told = pq.ParquetFile(tmp_path / "f.parquet").metadata
    assert [told.row_group(n).num_rows for n in range(told.num_row_groups)] == [11, 11, 11, 7]


def test_small_batches_are_written_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches are combined up to the limits of rows and bytes.

    NULL and empty arrays and maps keep their values.
    """
    columns = pa.schema(
        [
            ("n", pa.int64()),
            ("tags", pa.list_(pa.string())),
            ("more", pa.map_(pa.string(), pa.int64())),
        ]
    )
    rows = [
        {"n": 0, "tags": None, "more": None},
        {"n": 1, "tags": [], "more": []},
        {"n": 2, "tags": ["a", None], "more": [("k", 1)]},
    ] * 7
    small = [pa.RecordBatch.from_pylist(rows[n : n + 2], schema=columns) for n in range(0, 21, 2)]
    monkeypatch.setattr(files, "GATHERED_ROWS", 5)
    found = list(files.gathered(iter(small)))
    assert [batch.num_rows for batch in found] == [6, 6, 6, 3]
    assert [row for batch in found for row in batch.to_pylist()] == rows
    monkeypatch.setattr(files, "GATHERED_BYTES", 1)
    assert [batch.num_rows for batch in files.gathered(iter(small))] == [2] * 10 + [1]
    assert list(files.gathered(iter(()))) == []
