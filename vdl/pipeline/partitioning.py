"""Partitions of a table: its files have one value each of some columns, or of their days.

A reader that looks for few values passes over all other files. Values of a Delta table's partitions
stand in its log, those of an Iceberg table in its manifests; the columns stay in the files, too. A
file is of one partition, so rows are divided where they are written, NULL by itself.

Loads Arrow only where rows are. Must not know: Spark, formats of tables.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vdl.pipeline.errors import PipelineError

DAY = "day"
TEXT = re.compile(r"(?:(day)\((.+)\)|([^()]+))")
INDEX = "__row"


@dataclass(frozen=True, slots=True)
class PartitionField:
    """A column, and what is taken of its values: "" for themselves, or DAY."""

    column: str
    transform: str = ""

    def __str__(self) -> str:
        return f"{self.transform}({self.column})" if self.transform else self.column


def parse_field(text: str) -> PartitionField:
    """Of `column` or `day(column)`. Raises ValueError."""
    found = TEXT.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"{text!r} is neither a column nor day(a column)")
    return PartitionField(found[2] or found[3], found[1] or "")


def check_columns(fields: Sequence[PartitionField], schema: Any) -> None:
    """That a table's rows can be divided so. Raises PipelineError."""
    problems = []
    for field in fields:
        if field.column not in schema.names:
            problems.append(f"there is no column {field.column}")
        elif not _fits(field, schema.field(field.column).type):
            kind = schema.field(field.column).type
            problems.append(f"{field} is not to be had of {kind}")
    if problems:
        what = "a partition is of whole numbers, texts, booleans or dates, or the day of a time"
        raise PipelineError(f"sink.partition_by: {'; '.join(problems)}: {what}")


def _fits(field: PartitionField, kind: Any) -> bool:
    from pyarrow import types

    if field.transform == DAY:
        return bool(types.is_timestamp(kind) or types.is_date32(kind))
    return bool(
        types.is_integer(kind)
        or types.is_string(kind)
        or types.is_boolean(kind)
        or types.is_date32(kind)
    )


def divided(batch: Any, fields: Sequence[PartitionField]) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """(a value for each field, the rows that have them), of a record batch of Arrow's; rows stay in
    their order."""
    import pyarrow as pa

    names = [str(n) for n in range(len(fields))]
    keys = pa.table(
        [*(_values(batch.column(f.column), f) for f in fields), pa.array(range(batch.num_rows))],
        names=[*names, INDEX],
    )
    groups = keys.group_by(names, use_threads=False).aggregate([(INDEX, "list")])
    if groups.num_rows == 1:
        yield tuple(groups.column(n)[0].as_py() for n in names), batch
        return
    for row in groups.to_pylist():
        yield tuple(row[n] for n in names), batch.take(pa.array(row[f"{INDEX}_list"]))


def _values(column: Any, field: PartitionField) -> Any:
    """Days are of UTC, as everywhere in these tables."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if field.transform == DAY and pa.types.is_timestamp(column.type):
        return (
            pc.floor_temporal(column, unit="day")
            .cast(pa.timestamp("us", column.type.tz))
            .cast(pa.timestamp("us"))
            .cast(pa.date32())
        )
    return column


def to_json(key: Sequence[Any]) -> list[Any]:
    """Values of partitions as JSON: dates as {"date": "2013-01-31"}."""
    return [{"date": one.isoformat()} if isinstance(one, datetime.date) else one for one in key]


def from_json(told: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(
        datetime.date.fromisoformat(one["date"]) if isinstance(one, Mapping) else one
        for one in told
    )


def as_text(value: Any) -> str | None:
    """As Delta's log has values; None is NULL."""
    if isinstance(value, bool):
        return str(value).lower()
    return None if value is None else str(value)
