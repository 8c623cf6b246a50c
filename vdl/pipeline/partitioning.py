"""Partitions of a table: each file has one value of some columns, or of transforms of them.

A reader that looks for few values skips all other files. Partition values of a Delta table are in
its log, those of an Iceberg table in its manifests; the columns stay in the files, too. A file
belongs to one partition, so rows are divided where they are written, NULL by itself.

The transforms are Iceberg's, with its results: years, months and hours are numbers since 1970-01-01
in UTC, days are dates, buckets are numbered from 0.

Loads Arrow only where rows are processed, and PyIceberg only for its bucket hash. Does not depend
on Spark or table formats.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vdl.pipeline.errors import PipelineError

YEAR, MONTH, DAY, HOUR = "year", "month", "day", "hour"
BUCKET, TRUNCATE = "bucket", "truncate"
TIMES = (YEAR, MONTH, DAY, HOUR)
WIDTHS = range(1, 1 << 31)
"""Allowed widths: numbers of buckets, lengths of text prefixes, or steps of truncated numbers."""
TEXT = re.compile(
    rf"(?P<time>{'|'.join(TIMES)})\((?P<of>[^()]+)\)"
    rf"|(?P<sized>{BUCKET}|{TRUNCATE})\(\s*(?P<width>[0-9]{{1,10}})\s*,(?P<of_sized>[^()]+)\)"
    r"|(?P<column>[^()]+)"
)
SIZED = re.compile(r"(\w+)\[([0-9]+)\]")
HOUR_US = 3_600_000_000
INDEX = "__row"


@dataclass(frozen=True, slots=True)
class PartitionField:
    """A column and its transform: "" for identity, one of TIMES, BUCKET, TRUNCATE.

    `width`: for the last two, among WIDTHS.
    """

    column: str
    transform: str = ""
    width: int = 0

    def __str__(self) -> str:
        if not self.transform:
            return self.column
        width = f"{self.width}, " if self.width else ""
        return f"{self.transform}({width}{self.column})"

    @property
    def iceberg(self) -> str:
        """Name of the transform in Iceberg's metadata."""
        width = f"[{self.width}]" if self.width else ""
        return f"{self.transform}{width}" if self.transform else "identity"


def parse_field(text: str) -> PartitionField:
    """Parse `column`, `day(column)` or `bucket(16, column)`. Raises ValueError."""
    found = TEXT.fullmatch(text.strip())
    if found is None:
        known = f"{', '.join(TIMES)} of one, {BUCKET}(count, one) or {TRUNCATE}(width, one)"
        raise ValueError(f"{text!r} is not a column, nor {known}")
    if found["sized"]:
        width = int(found["width"])
        if width not in WIDTHS:
            raise ValueError(f"{text!r}: {width} is not between 1 and {WIDTHS[-1]}")
        return PartitionField(found["of_sized"].strip(), found["sized"], width)
    return PartitionField((found["of"] or found["column"]).strip(), found["time"] or "")


def as_told(transform: str, column: str) -> str:
    """Return a table's field, of any transform, as a job file would have it."""
    if transform == "identity":
        return column
    found = SIZED.fullmatch(transform)
    return f"{transform}({column})" if found is None else f"{found[1]}({found[2]}, {column})"


def check_columns(fields: Sequence[PartitionField], schema: Any) -> None:
    """Raise PipelineError unless a table's rows can be divided by the fields."""
    problems = []
    for field in fields:
        if field.column not in schema.names:
            problems.append(f"column {field.column} does not exist")
        elif not _fits(field, schema.field(field.column).type):
            kind = schema.field(field.column).type
            problems.append(f"{field} is not possible for {kind}")
    if problems:
        what = (
            "a partition is of whole numbers, texts, booleans or dates, of a year, month or day of "
            "times or dates, an hour of times, a bucket of any of these but booleans, or the "
            "beginning of whole numbers or texts"
        )
        raise PipelineError(f"sink.partition_by: {'; '.join(problems)}: {what}")


def _fits(field: PartitionField, kind: Any) -> bool:
    from pyarrow import types

    is_time, is_date = bool(types.is_timestamp(kind)), bool(types.is_date32(kind))
    is_plain = bool(types.is_integer(kind) or types.is_string(kind))
    if field.transform == HOUR:
        return is_time
    if field.transform in TIMES:
        return is_time or is_date
    if field.transform == BUCKET:
        return is_plain or is_time or is_date
    if field.transform == TRUNCATE:
        return is_plain
    return is_plain or is_date or bool(types.is_boolean(kind))


def divided(batch: Any, fields: Sequence[PartitionField]) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Yield (a value for each field, the rows that have them) of an Arrow record batch.

    Rows keep their order.
    """
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
    """Return the transformed values of an Arrow column.

    Times are in UTC, as in all these tables.
    """
    if field.transform in TIMES:
        return _times(column, field.transform)
    if field.transform == BUCKET:
        return _buckets(column, field)
    if field.transform == TRUNCATE:
        return _beginnings(column, field.width)
    return column


def _times(column: Any, transform: str) -> Any:
    import pyarrow as pa
    import pyarrow.compute as pc

    moments = column.cast(pa.timestamp("us", getattr(column.type, "tz", None)))
    # The same moments without a time zone's name: the transforms are in UTC.
    moments = moments.cast(pa.int64()).cast(pa.timestamp("us"))
    if transform == HOUR:
        return pc.divide(pc.floor_temporal(moments, unit="hour").cast(pa.int64()), HOUR_US)
    if transform == DAY:
        return pc.floor_temporal(moments, unit="day").cast(pa.date32())
    years = pc.subtract(pc.year(moments), 1970)
    if transform == YEAR:
        return years
    return pc.add(pc.multiply(years, 12), pc.subtract(pc.month(moments), 1))


def _buckets(column: Any, field: PartitionField) -> Any:
    import pyarrow as pa
    from pyiceberg.transforms import parse_transform
    from pyiceberg.types import LongType, StringType

    is_text = pa.types.is_string(column.type)
    # Iceberg hashes a date by its days, a time by its microseconds.
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64())
    elif not is_text:
        column = (column.cast(pa.int32()) if pa.types.is_date32(column.type) else column).cast(
            pa.int64()
        )
    bucket = parse_transform(field.iceberg).transform(StringType() if is_text else LongType())
    found = column.dictionary_encode()
    of_values = pa.array([bucket(value) for value in found.dictionary.to_pylist()], pa.int32())
    return of_values.take(found.indices)


def _beginnings(column: Any, width: int) -> Any:
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_string(column.type):
        return pc.utf8_slice_codeunits(column, 0, width)
    numbers = column.cast(pa.int64())
    # Arrow's division rounds towards zero, Iceberg's remainder is never negative.
    part = pc.subtract(numbers, pc.multiply(pc.divide(numbers, width), width))
    part = pc.if_else(pc.less(part, 0), pc.add(part, width), part)
    return pc.subtract_checked(numbers, part)


def to_json(key: Sequence[Any]) -> list[Any]:
    """Return partition values as JSON: dates as {"date": "2013-01-31"}."""
    return [{"date": one.isoformat()} if isinstance(one, datetime.date) else one for one in key]


def from_json(told: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(
        datetime.date.fromisoformat(one["date"]) if isinstance(one, Mapping) else one
        for one in told
    )


def as_text(value: Any) -> str | None:
    """Return a value as Delta's log has it; None is NULL."""
    if isinstance(value, bool):
        return str(value).lower()
    return None if value is None else str(value)
