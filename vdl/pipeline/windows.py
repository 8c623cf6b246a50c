"""Windows over event time: what a job file says of them, and the frames of one batch.

A window is [window_start, window_end) of a time column, aligned to 1970-01-01 00:00 UTC; with a
`slide` smaller than its size a row is in several. The watermark is the latest event time of all
batches so far, less `late`; it never goes back. A window is closed once its end is at or below the
watermark. A batch

1. counts its rows into windows that were open before it; one that misses a window, because that
   was closed or because its time is NULL, is late: counted once, and in the windows still open,
2. adds what earlier batches have counted of open windows: partial aggregates, from the files that
   the table's last commit names,
3. moves the watermark, and divides: closed windows become rows of the table, the partial
   aggregates of the others files of the next state.

All of it, the watermark too, becomes visible in the batch's commit or not at all, and no other
state exists. So every window is written once, and every row is in its windows once or counted as
late, whatever is killed. The columns of partial aggregates are named by number, since the names in
a job are anyone's.

Must not know: tables, Kafka.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from vdl.pipeline.errors import PipelineError, SinkInconsistent
from vdl.pipeline.table import WindowState

START, END = "window_start", "window_end"
UNITS_US = {
    "millisecond": 1_000,
    "second": 1_000_000,
    "minute": 60_000_000,
    "hour": 3_600_000_000,
    "day": 86_400_000_000,
    "week": 604_800_000_000,
}
DURATION = re.compile(rf"(\d{{1,9}}) *({'|'.join(UNITS_US)})s?")
DURATION_MAX_US = 36_500 * UNITS_US["day"]
WINDOWS_PER_ROW_MAX = 1_000
"""Each row is counted that many times at most: size / slide."""
AGGREGATE = re.compile(r"(?i)(count|sum|min|max|avg) *\( *(\*|[a-z_][a-z0-9_]*) *\)")
NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
NONE_YET_US = -(1 << 62)
"""A watermark below every time."""
FILE_GROUPS = 1_000_000
"""Windows × keys in one file, about: fewer files are fewer to read in the next batch."""


@dataclass(frozen=True, slots=True)
class Value:
    """One aggregate: `name` = `function`(`column`); "*" stands for every row."""

    name: str
    function: str
    column: str


@dataclass(frozen=True, slots=True)
class Window:
    """As a job file has it. `aggregates`: column → "avg(dep_delay)". What is computed from the
    texts may be asked of one without `problems` only."""

    time: str
    size: str
    slide: str
    late: str
    keys: tuple[str, ...]
    aggregates: Mapping[str, str]

    @property
    def size_us(self) -> int:
        return duration_us(self.size)

    @property
    def slide_us(self) -> int:
        """Without one, windows do not overlap."""
        return duration_us(self.slide or self.size)

    @property
    def late_us(self) -> int:
        return duration_us(self.late)

    @property
    def values(self) -> list[Value]:
        return [parse_value(name, text) for name, text in self.aggregates.items()]

    def definition(self) -> str:
        """What must stay the same while a table is written; "60 minutes" is "1 hour"."""
        return json.dumps(
            {
                "time": self.time,
                "size": self.size_us,
                "slide": self.slide_us,
                "late": self.late_us,
                "keys": self.keys,
                "values": [[v.name, v.function, v.column] for v in self.values],
            }
        )

    def problems(self) -> list[str]:
        """All that is wrong with it, as far as it can be told without rows."""
        return [*_time_problems(self), *_column_problems(self)]


def duration_us(text: str) -> int:
    """Microseconds of "10 minutes". Raises ValueError."""
    match = DURATION.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is no duration, as '10 minutes' is one")
    found = int(match[1]) * UNITS_US[match[2]]
    if found > DURATION_MAX_US:
        raise ValueError(f"{text!r} is more than a hundred years")
    return found


def parse_value(name: str, text: str) -> Value:
    """Raises ValueError."""
    match = AGGREGATE.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is none of count(*), count(x), sum(x), min(x), max(x), avg(x)")
    function = match[1].lower()
    if match[2] == "*" and function != "count":
        raise ValueError(f"{text!r}: only count can have *")
    return Value(name, function, match[2])


def _time_problems(window: Window) -> list[str]:
    found = [] if window.time else ["window.time: must name a column"]
    known: dict[str, int] = {}
    for name, text in (
        ("size", window.size),
        ("slide", window.slide or window.size),
        ("late", window.late),
    ):
        try:
            known[name] = duration_us(text)
        except ValueError as error:
            if name != "slide" or window.slide:
                found.append(f"window.{name}: {error}")
    size, slide = known.get("size"), known.get("slide")
    if size == 0:
        found.append("window.size: must not be 0")
    elif slide == 0:
        found.append("window.slide: must not be 0")
    elif size is not None and slide is not None:
        if slide > size:
            found.append("window.slide: must not be more than the size, or rows are in no window")
        elif size > slide * WINDOWS_PER_ROW_MAX:
            found.append(f"window.slide: puts a row into more than {WINDOWS_PER_ROW_MAX} windows")
    return found


def _column_problems(window: Window) -> list[str]:
    found = []
    # Tables do not tell upper case from lower.
    taken = {START, END}
    for key in window.keys:
        if key == "_offset":
            found.append("window.keys: _offset makes a window of every row")
        if key.lower() in taken:
            found.append(f"window.keys: {key!r} is taken")
        taken.add(key.lower())
    if not window.aggregates:
        found.append("window.values: at least one is needed")
    for name, text in window.aggregates.items():
        if not NAME.fullmatch(name):
            found.append(f"window.values: {name!r} is no name")
        if name.lower() in taken:
            found.append(f"window.values: {name!r} is taken")
        taken.add(name.lower())
        try:
            parse_value(name, text)
        except ValueError as error:
            found.append(f"window.values.{name}: {error}")
    return found


def check_same(window: Window | None, state: WindowState | None, *, path: str) -> None:
    """That a table that has been written to is of these windows. Raises SinkInconsistent."""
    what_to_do = "begin a new table, with another sink.path"
    if window is None and state is not None:
        raise SinkInconsistent(f"{path} has windows, but the job has none: {what_to_do}")
    if window is not None and state is None:
        raise SinkInconsistent(f"{path} has been written without windows: {what_to_do}")
    if window is not None and state is not None and window.definition() != state.definition:
        mine, known = json.loads(window.definition()), json.loads(state.definition)
        changed = ", ".join(f"window.{key}" for key in mine if mine[key] != known.get(key))
        raise SinkInconsistent(
            f"{path} has been written with other windows: {changed} differ; {what_to_do}"
        )


# --- frames ---------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class BatchWindows:
    """What becomes of a batch. `closed` is a frame of the table's columns, `open` one of partial
    aggregates; whether they have rows is known without looking again."""

    closed: Any
    has_closed: bool
    open: Any
    has_open: bool
    columns: str
    """Of `open`, as `WindowState` keeps them."""
    watermark_us: int | None
    late: int
    newest_ms: int
    """Of the records' timestamps, as far as the steps have kept them; -1: not known."""


@contextlib.contextmanager
def window_batch(
    rows: Any, window: Window, state: WindowState | None, folder: str
) -> Iterator[BatchWindows]:
    """The windows of a batch's rows and of `state`, whose files are in `folder`. Frames are good
    until the context ends. Raises PipelineError where the rows have not the columns."""
    from pyspark.sql import functions as f

    before = None if state is None else state.watermark_us
    fresh = _partials(rows, window, NONE_YET_US if before is None else before)
    kept = [field for field in fresh.schema.fields if field.name not in ("rows", "at", "newest")]
    columns = "\n".join(f"{field.name}: {field.dataType.simpleString()}" for field in kept)
    if state is not None and state.columns != columns:
        raise SinkInconsistent(
            f"types of the windows' columns have changed, from {state.columns.splitlines()} to "
            f"{columns.splitlines()}; begin a new table"
        )
    paths = [] if state is None else [f"{folder}/{name}" for name in state.files]
    # Kept while the batch is: it is looked at up to three times, and costs a pass over the source.
    merged = _merged(fresh, kept, paths, window).persist()
    try:
        is_late = f.col("window").isNull()
        seen = merged.agg(
            f.max("at").alias("at"),
            f.max("newest").alias("newest"),
            f.sum(f.when(is_late, f.col("rows"))).alias("late"),
            f.min("window").alias("first"),
            f.max("window").alias("last"),
            f.count(f.lit(1)).alias("groups"),
        ).collect()[0]
        watermark = before
        if seen["at"] is not None:
            watermark = max(NONE_YET_US if before is None else before, seen["at"] - window.late_us)
        closed_to = (NONE_YET_US if watermark is None else watermark) - window.size_us
        is_closed = f.col("window") <= closed_to
        files = -(-int(seen["groups"]) // FILE_GROUPS) or 1
        yield BatchWindows(
            closed=_final(merged.filter(is_closed), window, rows.schema).coalesce(files),
            has_closed=seen["first"] is not None and seen["first"] <= closed_to,
            open=merged.filter(~is_closed).select(*[field.name for field in kept]).coalesce(files),
            has_open=seen["last"] is not None and seen["last"] > closed_to,
            columns=columns,
            watermark_us=watermark,
            late=int(seen["late"] or 0),
            newest_ms=-1 if seen["newest"] is None else int(seen["newest"]),
        )
    finally:
        merged.unpersist()


def all_windows(rows: Any, window: Window) -> Any:
    """The table's rows as if every window were closed: to be looked at. Raises PipelineError."""
    partials = _partials(rows, window, NONE_YET_US).filter("window is not null")
    return _final(partials, window, rows.schema)


def _check_columns(schema: Any, window: Window) -> None:
    """Raises PipelineError with all that is missing or of a wrong type."""
    from pyspark.sql.types import NumericType, TimestampType

    kinds = {field.name: field.dataType for field in schema.fields}
    problems = []
    used = {"window.time": [window.time], "window.keys": window.keys}
    used |= {f"window.values.{v.name}": [v.column] for v in window.values if v.column != "*"}
    for setting, names in used.items():
        missing = [name for name in names if name not in kinds]
        problems += [f"{setting}: there is no column {name}" for name in missing]
    time = kinds.get(window.time)
    if time is not None and not isinstance(time, TimestampType):
        problems.append(f"window.time: {window.time} is {time.simpleString()}, not timestamp")
    for v in window.values:
        kind = kinds.get(v.column)
        if v.function in ("sum", "avg") and kind is not None and not isinstance(kind, NumericType):
            problems.append(f"window.values.{v.name}: {v.column} is {kind.simpleString()}")
    if problems:
        raise PipelineError(f"{'; '.join(problems)}; the rows have {', '.join(sorted(kinds))}")


def _partials(rows: Any, window: Window, watermark_us: int) -> Any:
    """One row for each window × keys of these rows; those of a NULL window count late rows. Times
    are integers: `window`, its start, and `at`, the latest, in microseconds, `newest` in ms."""
    from pyspark.sql import functions as f
    from pyspark.sql.types import TimestampType

    _check_columns(rows.schema, window)
    kinds = {field.name: field.dataType for field in rows.schema.fields}
    has_timestamp = isinstance(kinds.get("_timestamp"), TimestampType)
    newest = f.unix_millis("_timestamp") if has_timestamp else f.lit(None).cast("long")
    keys = _keys(window)
    taken = rows.select(
        f.unix_micros(_named(window.time)).alias("at"),
        newest.alias("newest"),
        *[_named(name).alias(key) for name, key in zip(window.keys, keys, strict=True)],
        *[
            (f.lit(1) if v.column == "*" else _named(v.column)).alias(f"input_{n}")
            for n, v in enumerate(window.values)
        ],
    )
    placed = taken.select("*", f.explode(_starts(window, watermark_us)).alias("window"))
    partials = []
    for n, v in enumerate(window.values):
        column = f.col(f"input_{n}")
        if v.function == "avg":
            partials.append(f.sum(_summand(column, kinds[v.column])).alias(f"value_{n}"))
            partials.append(f.count(column).alias(f"value_{n}_count"))
        else:
            aggregate = {"count": f.count, "sum": f.sum, "min": f.min, "max": f.max}[v.function]
            partials.append(aggregate(column).alias(f"value_{n}"))
    return placed.groupBy("window", *keys).agg(
        *partials,
        f.count(f.lit(1)).alias("rows"),
        f.max("at").alias("at"),
        f.max("newest").alias("newest"),
    )


def _starts(window: Window, watermark_us: int) -> Any:
    """The starts of the open windows that the time `at` is in, and a NULL where it misses one."""
    from pyspark.sql import functions as f

    at, size, slide = f.col("at"), f.lit(window.size_us), f.lit(window.slide_us)
    count = -(-window.size_us // window.slide_us)
    last = at - f.pmod(at, slide)
    starts = f.transform(f.sequence(f.lit(0), f.lit(count - 1)), lambda n: last - n * slide)
    is_open = f.filter(starts, lambda start: (start + size > at) & (start + size > watermark_us))
    first_end = at - f.pmod(at - size, slide) + slide
    is_late = f.coalesce(first_end <= watermark_us, f.lit(True))  # NULL: the time is NULL.
    missed = f.array(f.lit(None).cast("long"))
    none = f.array().cast("array<bigint>")
    return f.concat(f.coalesce(is_open, none), f.when(is_late, missed).otherwise(none))


def _merged(fresh: Any, kept: list[Any], paths: list[str], window: Window) -> Any:
    """The partial aggregates of a batch with those of earlier ones. Types stay as they are: a sum
    that has no room in them is an error, as within one batch."""
    from pyspark.sql import functions as f
    from pyspark.sql.types import StructType

    if not paths:
        return fresh
    earlier = fresh.sparkSession.read.schema(StructType(kept)).parquet(*paths)
    earlier = earlier.select(
        "*",
        f.lit(0).cast("long").alias("rows"),
        f.lit(None).cast("long").alias("at"),
        f.lit(None).cast("long").alias("newest"),
    )
    kinds = {field.name: field.dataType for field in kept}
    merges = []
    for n, v in enumerate(window.values):
        for name in [f"value_{n}", f"value_{n}_count"] if v.function == "avg" else [f"value_{n}"]:
            merge = {"min": f.min, "max": f.max}.get(v.function, f.sum)
            merges.append(merge(name).cast(kinds[name]).alias(name))
    return (
        fresh.unionByName(earlier)
        .groupBy("window", *_keys(window))
        .agg(*merges, f.sum("rows").alias("rows"), f.max("at").alias("at"),
             f.max("newest").alias("newest"))
    )  # fmt: skip


def _final(partials: Any, window: Window, schema: Any) -> Any:
    """The table's columns: window_start, window_end, the keys, the values."""
    from pyspark.sql import functions as f

    kinds = {field.name: field.dataType for field in schema.fields}
    values = []
    for n, v in enumerate(window.values):
        value = f.col(f"value_{n}")
        if v.function == "avg":
            # Where there is nothing to count the sum is NULL, and so is the quotient.
            value = _quotient(value, f.col(f"value_{n}_count"), kinds[v.column])
        values.append(value.alias(v.name))
    return partials.select(
        f.timestamp_micros(f.col("window")).alias(START),
        f.timestamp_micros(f.col("window") + window.size_us).alias(END),
        *[f.col(key).alias(name) for name, key in zip(window.keys, _keys(window), strict=True)],
        *values,
    )


def _summand(column: Any, kind: Any) -> Any:
    """As SQL's avg adds: decimals exactly, all else as doubles."""
    from pyspark.sql.types import DecimalType

    return column if isinstance(kind, DecimalType) else column.cast("double")


def _quotient(total: Any, count: Any, kind: Any) -> Any:
    """Of the type that SQL's avg has."""
    from pyspark.sql.types import DecimalType

    if not isinstance(kind, DecimalType):
        return total / count
    wanted = DecimalType(min(38, kind.precision + 4), min(38, kind.scale + 4))
    return (total / count.cast("decimal(20,0)")).cast(wanted)


def _keys(window: Window) -> list[str]:
    return [f"key_{n}" for n in range(len(window.keys))]


def _named(name: str) -> Any:
    """A column of this very name, dots and all."""
    from pyspark.sql import functions as f

    return f.col(f"`{name.replace('`', '``')}`")
