"""Windows over event time: their definition in a job file, and the frames of one batch.

A window is [window_start, window_end) of a time column, aligned to 1970-01-01 00:00 UTC; with a
`slide` smaller than its size a row is in several. Each partition of the source has its own latest
event time; the watermark is the least of these, less `late` (`watermark.py`), and never goes back.
A window is closed once its end is at or below the watermark. A batch

1. counts its rows into windows that were open before it; a row that misses a window, because that
   was closed, because its time is NULL or too far ahead, is late: counted once, kept in a folder of
   late rows, and counted in the windows still open,
2. moves the watermark,
3. adds up windows that are closed by that, from its own partial aggregates and those of earlier
   batches, and writes them into the table,
4. writes its aggregates of the windows still open as one more file of partial aggregates. Files of
   earlier batches stay as they are; a few small ones are merged with it, so that there are few
   (`merge_choice`), and those of which all windows are closed are left out.

So a batch writes about as much as it has read, however many windows are open. All of it, the
watermark too, becomes visible in the batch's commit or not at all, and no other state exists. So
every window is written once, and every row is in its windows once or counted as late, whenever a
run is killed. Columns of partial aggregates are named by number, since the names in a job are
arbitrary.

Does not depend on tables or Kafka.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vdl.pipeline.errors import PipelineError, SinkInconsistent
from vdl.pipeline.table import KeptWindows, WindowState
from vdl.pipeline.watermark import Heard, Sources

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
"""Limit on size / slide: the number of windows that each row is counted in."""
AGGREGATE = re.compile(r"(?i)(count|sum|min|max|avg) *\( *(\*|[a-z_][a-z0-9_]*) *\)")
NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
NONE_YET_US = -(1 << 62)
"""A watermark below every time."""
FILE_GROUPS = 1_000_000
"""Approximate limit on windows × keys in one file: the next batch reads fewer files."""
MERGED_TIMES = 2
"""An earlier file is merged with newer data unless it is more than this many times as large."""
IDLE, FUTURE = "1 minute", "1 day"
SOURCE = "source"
REASON = "_late"
"""Column of late rows: LATE, NO_TIME or AHEAD."""
LATE, NO_TIME, AHEAD = "late", "no time", "ahead"


@dataclass(frozen=True, slots=True)
class Value:
    """One aggregate: `name` = `function`(`column`); "*" stands for every row."""

    name: str
    function: str
    column: str


@dataclass(frozen=True, slots=True)
class Window:
    """Window definition of a job file. `aggregates`: column → "avg(dep_delay)".

    Properties computed from the texts are valid only without `problems`.
    """

    time: str
    size: str
    slide: str
    late: str
    keys: tuple[str, ...]
    aggregates: Mapping[str, str]
    idle: str = IDLE
    """A partition without rows for longer holds no window open."""
    future: str = FUTURE
    """Limit of a row's time ahead of the clock; rows beyond are late."""

    @property
    def size_us(self) -> int:
        return duration_us(self.size)

    @property
    def slide_us(self) -> int:
        """Without a slide, windows do not overlap."""
        return duration_us(self.slide or self.size)

    @property
    def late_us(self) -> int:
        return duration_us(self.late)

    @property
    def idle_us(self) -> int:
        return duration_us(self.idle)

    @property
    def future_us(self) -> int:
        return duration_us(self.future)

    @property
    def values(self) -> list[Value]:
        return [parse_value(name, text) for name, text in self.aggregates.items()]

    def definition(self) -> str:
        """Return the part that must stay the same while a table is written.

        "60 minutes" equals "1 hour". `idle` and `future` may change.
        """
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
        """Return all problems that can be found without rows."""
        return [*_time_problems(self), *_column_problems(self)]


def duration_us(text: str) -> int:
    """Return the microseconds of "10 minutes". Raises ValueError."""
    match = DURATION.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not a duration such as '10 minutes'")
    found = int(match[1]) * UNITS_US[match[2]]
    if found > DURATION_MAX_US:
        raise ValueError(f"{text!r} is longer than a hundred years")
    return found


def parse_value(name: str, text: str) -> Value:
    """Parse an aggregate. Raises ValueError."""
    match = AGGREGATE.fullmatch(text.strip())
    if match is None:
        raise ValueError(
            f"{text!r} is not one of count(*), count(x), sum(x), min(x), max(x), avg(x)"
        )
    function = match[1].lower()
    if match[2] == "*" and function != "count":
        raise ValueError(f"{text!r}: only count accepts *")
    return Value(name, function, match[2])


def _time_problems(window: Window) -> list[str]:
    found = [] if window.time else ["window.time: must name a column"]
    known: dict[str, int] = {}
    for name, text in (
        ("size", window.size),
        ("slide", window.slide or window.size),
        ("late", window.late),
        ("idle", window.idle),
        ("future", window.future),
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
            found.append(
                "window.slide: must not exceed the size; otherwise some rows are in no window"
            )
        elif size > slide * WINDOWS_PER_ROW_MAX:
            found.append(
                f"window.slide: each row would be in more than {WINDOWS_PER_ROW_MAX} windows"
            )
    return found


def _column_problems(window: Window) -> list[str]:
    found = []
    # Tables do not distinguish upper and lower case.
    taken = {START, END}
    for key in window.keys:
        if key == "_offset":
            found.append("window.keys: _offset would make a window for each row")
        if key.lower() in taken:
            found.append(f"window.keys: {key!r} is already used")
        taken.add(key.lower())
    if not window.aggregates:
        found.append("window.values: at least one is required")
    for name, text in window.aggregates.items():
        if not NAME.fullmatch(name):
            found.append(f"window.values: {name!r} is not a valid name")
        if name.lower() in taken:
            found.append(f"window.values: {name!r} is already used")
        taken.add(name.lower())
        try:
            parse_value(name, text)
        except ValueError as error:
            found.append(f"window.values.{name}: {error}")
    return found


def check_same(window: Window | None, state: WindowState | None, *, path: str) -> None:
    """Raise SinkInconsistent unless a table that has been written to has these windows."""
    what_to_do = "use a new table, with another sink.path"
    if window is None and state is not None:
        raise SinkInconsistent(f"{path} has windows, but the job has none; {what_to_do}")
    if window is not None and state is None:
        raise SinkInconsistent(f"{path} was written without windows; {what_to_do}")
    if window is not None and state is not None and window.definition() != state.definition:
        mine, known = json.loads(window.definition()), json.loads(state.definition)
        changed = ", ".join(f"window.{key}" for key in mine if mine[key] != known.get(key))
        raise SinkInconsistent(
            f"{path} was written with other windows: {changed} differ; {what_to_do}"
        )


# --- frames ---------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class BatchWindows:
    """Frames and state after a batch.

    `closed` is a frame of the table's columns, `open` one of partial aggregates, `late_rows` one of
    rows with their REASON; None if there are none.
    """

    closed: Any | None
    open: Any | None
    late_rows: Any | None
    kept: Mapping[str, KeptWindows]
    """Earlier files that stay unchanged in the next state."""
    columns: str
    """Columns of `open`, as `WindowState` keeps them."""
    watermark_us: int | None
    heard: Mapping[str, Heard]
    late: int
    newest_ms: int
    """Latest of the records' timestamps, as far as the steps have kept them; -1 if unknown."""


@contextlib.contextmanager
def window_batch(
    rows: Any, window: Window, state: WindowState | None, folder: str, *, now_us: int
) -> Iterator[BatchWindows]:
    """Yield the windows of a batch's rows and of `state`, whose files are in `folder`.

    Frames are valid until the context ends. Raises PipelineError if the rows lack columns.
    """
    from pyspark.sql import functions as f

    before = None if state is None else state.watermark_us
    bounds = Bounds(NONE_YET_US if before is None else before, now_us + window.future_us)
    fresh = _partials(rows, window, bounds)
    kept = [field for field in fresh.schema.fields if field.name not in OF_BATCH]
    columns = "\n".join(f"{field.name}: {field.dataType.simpleString()}" for field in kept)
    if state is not None and state.columns != columns:
        raise SinkInconsistent(
            f"types of the windows' columns have changed, from {state.columns.splitlines()} to "
            f"{columns.splitlines()}; use a new table"
        )
    # Cached during the batch: it is read up to three times, and costs a pass over the source.
    fresh = fresh.persist()
    try:
        seen = _seen(fresh)
        sources = Sources(window.late_us, window.idle_us, {} if state is None else state.heard)
        heard = sources.after({s: row["at"] for s, row in seen.items()}, now_us=now_us)
        watermark = sources.watermark(heard, before, now_us=now_us)
        closed_to = (NONE_YET_US if watermark is None else watermark) - window.size_us
        files = {} if state is None else dict(state.files)
        closing = [
            name
            for name, one in files.items()
            if one.first <= closed_to and one.last > bounds.watermark_us - window.size_us
        ]
        firsts = [row["first"] for row in seen.values() if row["first"] is not None]
        has_closed = bool(closing) or any(first <= closed_to for first in firsts)
        merged = merge_choice(files, sum(int(row["groups"]) for row in seen.values()))
        left = {n: one for n, one in files.items() if n not in merged and one.last > closed_to}
        lasts = [row["last"] for row in seen.values() if row["last"] is not None]
        has_open = any(last > closed_to for last in [*lasts, *(files[n].last for n in merged)])

        def added_up(names: Sequence[str], which: Any) -> Any:
            paths = [f"{folder}/{name}" for name in names]
            # Files may still have windows that an earlier batch has closed.
            is_after = f.col("window") > bounds.watermark_us - window.size_us
            return _merged(fresh, kept, paths, window, is_after & which)

        late = sum(int(row["late"] or 0) for row in seen.values())
        closed = None
        if has_closed:
            found = added_up(closing, f.col("window") <= closed_to)
            closed = _final(found, window, rows.schema).coalesce(_files_for(seen, files, closing))
        still_open = None
        if has_open:
            found = added_up(merged, f.col("window") > closed_to)
            still_open = found.select(*[field.name for field in kept])
            still_open = still_open.coalesce(_files_for(seen, files, merged))
        yield BatchWindows(
            closed=closed,
            open=still_open,
            late_rows=_late_rows(rows, window, bounds) if late else None,
            kept=left,
            columns=columns,
            watermark_us=watermark,
            heard=heard,
            late=late,
            newest_ms=max((int(r["newest"]) for r in seen.values() if r["newest"]), default=-1),
        )
    finally:
        fresh.unpersist()


def merge_choice(files: Mapping[str, KeptWindows], fresh_rows: int) -> list[str]:
    """Return the newest files (of those in order, oldest first) to merge with fresh rows.

    Each file is chosen that is not much larger than all after it. So data is rewritten a
    logarithmic number of times, and there is a logarithmic number of files.
    """
    chosen: list[str] = []
    rows = fresh_rows
    for name, one in reversed(list(files.items())):
        if one.rows > MERGED_TIMES * rows:
            break
        chosen.append(name)
        rows += one.rows
    return chosen


def _files_for(seen: Mapping[str, Any], files: Mapping[str, KeptWindows], names: Any) -> int:
    groups = sum(int(row["groups"]) for row in seen.values())
    return -(-(groups + sum(files[name].rows for name in names)) // FILE_GROUPS) or 1


def _seen(fresh: Any) -> dict[str, Any]:
    """Return source → aggregates of its rows in this batch."""
    from pyspark.sql import functions as f

    found = fresh.groupBy(SOURCE).agg(
        f.max("at").alias("at"),
        f.max("newest").alias("newest"),
        f.sum(f.when(f.col("window").isNull(), f.col("rows"))).alias("late"),
        f.min("window").alias("first"),
        f.max("window").alias("last"),
        f.count("window").alias("groups"),
    )
    return {row[SOURCE]: row for row in found.collect()}


def all_windows(rows: Any, window: Window) -> Any:
    """Return the table's rows as if every window were closed, for display. Raises PipelineError."""
    from pyspark.sql import functions as f

    partials = _partials(rows, window, Bounds(NONE_YET_US, ALL_US))
    kept = [field for field in partials.schema.fields if field.name not in OF_BATCH]
    merged = _merged(partials, kept, [], window, f.col("window").isNotNull())
    return _final(merged, window, rows.schema)


def _check_columns(schema: Any, window: Window) -> None:
    """Raise PipelineError with all columns that are missing or of a wrong type."""
    from pyspark.sql.types import NumericType, TimestampType

    kinds = {field.name: field.dataType for field in schema.fields}
    problems = []
    used = {"window.time": [window.time], "window.keys": window.keys}
    used |= {f"window.values.{v.name}": [v.column] for v in window.values if v.column != "*"}
    for setting, names in used.items():
        missing = [name for name in names if name not in kinds]
        problems += [f"{setting}: column {name} does not exist" for name in missing]
    time = kinds.get(window.time)
    if time is not None and not isinstance(time, TimestampType):
        problems.append(f"window.time: {window.time} is {time.simpleString()}, not timestamp")
    for v in window.values:
        kind = kinds.get(v.column)
        if v.function in ("sum", "avg") and kind is not None and not isinstance(kind, NumericType):
            problems.append(f"window.values.{v.name}: {v.column} is {kind.simpleString()}")
    if problems:
        raise PipelineError(f"{'; '.join(problems)}; the rows have {', '.join(sorted(kinds))}")


@dataclass(frozen=True, slots=True)
class Bounds:
    """Limits on a row's time.

    Windows that end at or below `watermark_us` are closed. Times above `future_us` are too far
    ahead.
    """

    watermark_us: int
    future_us: int


def _partials(rows: Any, window: Window, bounds: Bounds) -> Any:
    """Return one row for each source × window × keys of these rows.

    Rows of a NULL window count late rows. Times are integers: `window`, its start, and `at`, the
    latest, in microseconds, `newest` in ms.
    """
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
        _source_of(rows.columns).alias(SOURCE),
        *[_named(name).alias(key) for name, key in zip(window.keys, keys, strict=True)],
        *[
            (f.lit(1) if v.column == "*" else _named(v.column)).alias(f"input_{n}")
            for n, v in enumerate(window.values)
        ],
    )
    placed = taken.select("*", f.explode(_starts(window, bounds)).alias("window"))
    partials = []
    for n, v in enumerate(window.values):
        column = f.col(f"input_{n}")
        if v.function == "avg":
            partials.append(f.sum(_summand(column, kinds[v.column])).alias(f"value_{n}"))
            partials.append(f.count(column).alias(f"value_{n}_count"))
        else:
            aggregate = {"count": f.count, "sum": f.sum, "min": f.min, "max": f.max}[v.function]
            partials.append(aggregate(column).alias(f"value_{n}"))
    return placed.groupBy("window", *keys, SOURCE).agg(
        *partials,
        f.count(f.lit(1)).alias("rows"),
        # Times too far ahead must not move the watermark.
        f.max(f.when(f.col("at") <= bounds.future_us, f.col("at"))).alias("at"),
        f.max("newest").alias("newest"),
    )


OF_BATCH = frozenset({SOURCE, "rows", "at", "newest"})
"""Columns of `_partials` that no file keeps."""
ALL_US = 1 << 62
"""A time above every other."""


def _source_of(names: Sequence[str]) -> Any:
    """Return the partition of a row as a column; "" for all if the steps dropped it."""
    from pyspark.sql import functions as f

    parts = [f.col(name).cast("string") for name in ("_topic", "_partition") if name in names]
    return f.coalesce(f.concat_ws("/", *parts), f.lit("")) if "_partition" in names else f.lit("")


def _starts(window: Window, bounds: Bounds) -> Any:
    """Return the starts of the open windows that contain `at`, and a NULL for a missed one."""
    from pyspark.sql import functions as f

    at, size, slide = f.col("at"), f.lit(window.size_us), f.lit(window.slide_us)
    count = -(-window.size_us // window.slide_us)
    last = at - f.pmod(at, slide)
    starts = f.transform(f.sequence(f.lit(0), f.lit(count - 1)), lambda n: last - n * slide)
    is_open = f.filter(
        starts,
        lambda start: (
            (start + size > at) & (start + size > bounds.watermark_us) & (at <= bounds.future_us)
        ),
    )
    missed = f.array(f.lit(None).cast("long"))
    none = f.array().cast("array<bigint>")
    is_late = _reason(at, window, bounds).isNotNull()
    return f.concat(f.coalesce(is_open, none), f.when(is_late, missed).otherwise(none))


def _reason(at: Any, window: Window, bounds: Bounds) -> Any:
    """Return why a row of the time `at` misses one of its windows, or NULL."""
    from pyspark.sql import functions as f

    slide = f.lit(window.slide_us)
    first_end = at - f.pmod(at - window.size_us, slide) + slide
    return (
        f.when(at.isNull(), NO_TIME)
        .when(at > bounds.future_us, AHEAD)
        .when(first_end <= bounds.watermark_us, LATE)
    )


def _late_rows(rows: Any, window: Window, bounds: Bounds) -> Any:
    """Return late rows after the job's steps, which costs another pass over the source."""
    from pyspark.sql import functions as f

    reason = _reason(f.unix_micros(_named(window.time)), window, bounds)
    return rows.select("*", reason.alias(REASON)).filter(f.col(REASON).isNotNull())


def _merged(fresh: Any, kept: list[Any], paths: list[str], window: Window, which: Any) -> Any:
    """Merge a batch's partial aggregates with those in files, for windows for which `which` holds.

    Types stay the same: a sum that exceeds them is an error, as within one batch.
    """
    from pyspark.sql import functions as f
    from pyspark.sql.types import StructType

    names = [field.name for field in kept]
    found = fresh.filter(which).select(*names)
    if paths:
        earlier = fresh.sparkSession.read.schema(StructType(kept)).parquet(*paths)
        found = found.unionByName(earlier.filter(which).select(*names))
    kinds = {field.name: field.dataType for field in kept}
    merges = []
    for n, v in enumerate(window.values):
        for name in [f"value_{n}", f"value_{n}_count"] if v.function == "avg" else [f"value_{n}"]:
            merge = {"min": f.min, "max": f.max}.get(v.function, f.sum)
            merges.append(merge(name).cast(kinds[name]).alias(name))
    return found.groupBy("window", *_keys(window)).agg(*merges)


def _final(partials: Any, window: Window, schema: Any) -> Any:
    """Return the table's columns: window_start, window_end, the keys, the values."""
    from pyspark.sql import functions as f

    kinds = {field.name: field.dataType for field in schema.fields}
    values = []
    for n, v in enumerate(window.values):
        value = f.col(f"value_{n}")
        if v.function == "avg":
            # With a count of 0 the sum is NULL, and so is the quotient.
            value = _quotient(value, f.col(f"value_{n}_count"), kinds[v.column])
        values.append(value.alias(v.name))
    return partials.select(
        f.timestamp_micros(f.col("window")).alias(START),
        f.timestamp_micros(f.col("window") + window.size_us).alias(END),
        *[f.col(key).alias(name) for name, key in zip(window.keys, _keys(window), strict=True)],
        *values,
    )


def _summand(column: Any, kind: Any) -> Any:
    """Return a summand as SQL's avg adds: decimals exactly, all others as doubles."""
    from pyspark.sql.types import DecimalType

    return column if isinstance(kind, DecimalType) else column.cast("double")


def _quotient(total: Any, count: Any, kind: Any) -> Any:
    """Return the quotient in the type of SQL's avg."""
    from pyspark.sql.types import DecimalType

    if not isinstance(kind, DecimalType):
        return total / count
    wanted = DecimalType(min(38, kind.precision + 4), min(38, kind.scale + 4))
    return (total / count.cast("decimal(20,0)")).cast(wanted)


def _keys(window: Window) -> list[str]:
    return [f"key_{n}" for n in range(len(window.keys))]


def _named(name: str) -> Any:
    """Return the column of exactly this name, including dots."""
    from pyspark.sql import functions as f

    return f.col(f"`{name.replace('`', '``')}`")
