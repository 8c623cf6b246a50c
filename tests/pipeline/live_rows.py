"""The rows of a table as its readers see them: without those that were deleted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from vdl.pipeline.iceberg_snapshot import LiveFile, live_files
from vdl.pipeline.iceberg_table import IcebergSink
from vdl.pipeline.storage import resolved_settings, storage_of
from vdl.pipeline.table import TableSink


def live_rows(table: TableSink) -> list[dict[str, Any]]:
    """By PyIceberg's own scan, of an Iceberg table."""
    if isinstance(table, IcebergSink):
        loaded = table._load()
        return [] if loaded is None else loaded.scan().to_arrow().to_pylist()
    storage = storage_of(table.path, resolved_settings(table.path, {}))
    found = [pq.read_table(storage.open(path)) for path in table.files()]
    return pa.concat_tables(found, promote_options="default").to_pylist() if found else []


def live_of(table: TableSink) -> list[LiveFile]:
    """The data files of an Iceberg table, with the files of their deleted rows."""
    assert isinstance(table, IcebergSink), table
    loaded = table._load()
    return [] if loaded is None else live_files(loaded)


def data_files(table: TableSink) -> set[str]:
    """Names."""
    if isinstance(table, IcebergSink):
        return {Path(one.data.file_path).name for one in live_of(table)}
    return {Path(path).name for path in table.files()}
