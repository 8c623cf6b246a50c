"""Statistics of files hold for every row, and let readers skip files."""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="needs the `spark` extra")
pytest.importorskip("deltalake", reason="needs the `spark` extra")

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq

from tests.pipeline.test_tables import TOPICS, at
from vdl.pipeline.file_stats import COLUMNS_MAX, stats_of
from vdl.pipeline.files import ROWS, _File
from vdl.pipeline.open_table import open_table
from vdl.pipeline.table import Commit, DataFile
from vdl.pipeline.table_columns import schema_lines

MOMENT = datetime.datetime(2026, 1, 2, 3, 4, 5, 678_901, tzinfo=datetime.UTC)


def stats(folder: Path, rows: pa.Table, **more: Any) -> dict[str, Any]:
    pq.write_table(rows, folder / "f.parquet", **more)
    return stats_of(pq.read_metadata(folder / "f.parquet"))


def test_stats_are_of_all_row_groups(tmp_path: Path) -> None:
    rows = pa.table(
        {
            "n": [5, None, -3, 9],
            "day": [datetime.date(2026, 1, n) for n in (3, 1, 4, 2)],
            "at": pa.array([MOMENT, None, None, MOMENT], pa.timestamp("us", "UTC")),
            "none": pa.nulls(4, pa.int64()),
        }
    )
    assert stats(tmp_path, rows, row_group_size=2) == {
        "minValues": {"n": -3, "day": "2026-01-01", "at": "2026-01-02T03:04:05.678Z"},
        "maxValues": {"n": 9, "day": "2026-01-04", "at": "2026-01-02T03:04:05.679Z"},
        "nullCount": {"n": 1, "day": 0, "at": 2, "none": 4},
    }


def test_stats_that_would_not_hold_are_left_out(tmp_path: Path) -> None:
    """NaN is larger than all numbers, and no statistics include it."""
    rows = pa.table(
        {
            "x": [1.0, float("nan")],
            "long": ["a", "b" * 65],
            "text": ["a", "b"],
            "wall": pa.array([MOMENT.replace(tzinfo=None)] * 2, pa.timestamp("us")),
            "nested": [{"n": 1}, {"n": 2}],
            "list": [[1], [2]],
        }
    )
    found = stats(tmp_path, rows)
    assert found["minValues"] == {"text": "a"}
    assert found["maxValues"] == {"text": "b"}
    assert set(found["nullCount"]) == {"x", "long", "text", "wall"}
    many = pa.table({f"c{n}": [n] for n in range(COLUMNS_MAX + 5)})
    assert len(stats(tmp_path, many)["minValues"]) == COLUMNS_MAX


def test_stats_let_a_reader_of_delta_pass_over_files(tmp_path: Path) -> None:
    """Uses statistics as a task reports them and a commit writes them to the log."""
    table = open_table("delta", str(tmp_path / "t"), "job")
    table.open(TOPICS)
    columns = pa.schema([("n", pa.int64())])
    files = []
    for n in (0, 100):
        file = _File(f"{table.staging('run')}/run-{n}.parquet", ROWS)
        file.add(pa.RecordBatch.from_pydict({"n": [n, n + 9]}), [])
        told = file.finish()
        assert told is not None
        size = (told["path"], told["rows"], told["bytes"])
        files.append(DataFile(*size, stats=json.loads(told["stats"])))
    start, end, lines = at(0, 0), at(4, 0), schema_lines(columns)
    table.commit(Commit("job", "run", 0, start, end, 4, 0, tuple(files), lines), columns)
    actions = pa.table(deltalake.DeltaTable(str(tmp_path / "t")).get_add_actions(flatten=True))
    bounds = sorted(zip(actions["min.n"].to_pylist(), actions["max.n"].to_pylist(), strict=True))
    assert bounds == [(0, 9), (100, 109)]
    dataset = deltalake.DeltaTable(str(tmp_path / "t")).to_pyarrow_dataset()
    few = list(dataset.get_fragments(filter=pa.dataset.field("n") > 50))
    assert len(few) == 1
