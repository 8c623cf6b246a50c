"""Minimum and maximum of a file's columns, as Delta's log keeps them for data skipping.

They are taken from the Parquet file itself. A column is left out if its statistics would not hold
for every row: floating point numbers, because NaN is above all others to Spark and is in no
statistics; long texts; nested columns; types whose order differs between readers.

Does not depend on tables or Spark.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

COLUMNS_MAX = 32
"""Limit on columns: the first ones, as other writers of Delta do."""
TEXT_MAX = 64
_MILLISECOND = datetime.timedelta(milliseconds=1)


def stats_of(metadata: pq.FileMetaData) -> dict[str, Any]:
    """Return `minValues`, `maxValues` and `nullCount`, by column, for the known ones."""
    schema = metadata.schema.to_arrow_schema()
    groups = [metadata.row_group(n) for n in range(metadata.num_row_groups)]
    low: dict[str, Any] = {}
    high: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    for name, chunks in list(_flat_columns(schema, groups))[:COLUMNS_MAX]:
        told = [chunk.statistics for chunk in chunks]
        if not told or not all(one is not None and one.has_null_count for one in told):
            continue
        nulls[name] = sum(one.null_count for one in told)
        known = [one for one in told if one.num_values]
        if not known or not all(one.has_min_max for one in known):
            continue
        first, last = min(one.min for one in known), max(one.max for one in known)
        if _is_kept(schema.field(name).type, first, last):
            low[name], high[name] = _plain(first), _plain(last, is_high=True)
    return {"minValues": low, "maxValues": high, "nullCount": nulls}


def null_counts(file: Any, rows: int, columns: Iterable[str]) -> dict[str, int]:
    """Return column → number of NULLs in a file with this number of rows.

    A missing column is NULL everywhere, and so may be one without statistics.
    """
    found = dict.fromkeys(columns, rows)
    told = pq.ParquetFile(file).metadata
    for name in found:
        counts = [
            chunk.statistics.null_count if chunk.is_stats_set else rows
            for group in map(told.row_group, range(told.num_row_groups))
            for chunk in map(group.column, range(group.num_columns))
            if chunk.path_in_schema == name
        ]
        if counts or not rows:
            found[name] = sum(counts)
    return found


def _flat_columns(schema: pa.Schema, groups: list[Any]) -> Iterator[tuple[str, list[Any]]]:
    """Yield (name, its chunks) of columns that are not nested."""
    for n in range(groups[0].num_columns if groups else 0):
        name = groups[0].column(n).path_in_schema
        if name in schema.names and not pa.types.is_nested(schema.field(name).type):
            yield name, [group.column(n) for group in groups]


def _is_kept(kind: pa.DataType, first: Any, last: Any) -> bool:
    if pa.types.is_string(kind):
        return len(first) <= TEXT_MAX and len(last) <= TEXT_MAX
    is_moment = pa.types.is_timestamp(kind) and kind.tz == "UTC"
    return bool(is_moment or pa.types.is_integer(kind) or pa.types.is_date(kind))


def _plain(value: Any, *, is_high: bool = False) -> Any:
    """Return a value as JSON. Times have whole milliseconds there; a maximum is rounded up."""
    if isinstance(value, datetime.datetime):
        rest = datetime.timedelta(microseconds=value.microsecond % 1000)
        if rest and is_high:
            value += _MILLISECOND
        return (value - rest).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"
    if isinstance(value, datetime.date):
        return value.isoformat()
    return value
