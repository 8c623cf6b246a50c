"""Anomaly checks on Spark, as sorts and joins, for histories too long for one process's memory.

Each check corresponds to the one of the same name in `vdl.check.anomalies`, whose definitions hold.
It finds the same anomalies, with the same texts, in the facts of `vdl.pipeline.evidence`. No check
compares all pairs: they use groupings, equal joins, and windows over sorted facts, in O(n log n).
Where a check there iterates, a window here looks at the previous row (`lag`), or at all previous
rows (a running maximum). Dense offset indexes are not needed: indexes follow the order of their
offsets, and two of them differ by one if no held offset lies between.

Only findings return to the driver: the count of each anomaly, and the first few.

Transactions and consumer groups are not checked (NOT_CHECKED). Anomalies of groups are those of
registers that are committed to and read in intervals of time. A history has few of these compared
to its records, and `vdl check` finds them in memory.

One task sorts one window: the records of one key, or the reads of one process.

Does not depend on how lines are decoded, or on what produced the history.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as f

from vdl.check.anomalies import STALE_READ_BOUND_NS
from vdl.check.findings import Anomaly, anomaly, name_of
from vdl.check.history import EARLIEST, LATEST
from vdl.pipeline.evidence import (
    FAULT,
    KEPT,
    LISTED,
    NOTHING,
    READ,
    SENT,
    SOUGHT,
    TOLD,
    WATERMARK,
    History,
)

EXAMPLES_MAX = 20
DRAINED = "drained"
"""Requirement of a check besides facts: a read of everything after the run."""

NOT_CHECKED = (
    "own2", "own-overlap", "zombie-commit", "commit-regress", "lost-commit", "skip-commit",
    "lso-regress", "dirty-read", "torn-transaction", "share-limit", "share-count", "share-twice",
    "share-after-end", "share-lost",
)  # fmt: skip
"""Anomalies of groups and of transactions, which only `vdl check` finds."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Result: counts of operations and anomalies. `examples` is limited for each anomaly."""

    operations: int
    outcomes: dict[str, int]
    anomalies: dict[str, int]
    examples: list[Anomaly]

    @property
    def is_clean(self) -> bool:
        return not self.anomalies


def check(paths: Sequence[str], spark: Any, *, examples_max: int = EXAMPLES_MAX) -> Verdict:
    """Check one history, in one or several files. Raises LineMalformed, FileUnreadable."""
    history = History(paths, spark)
    try:
        contents = history.contents()
        present = contents.whats | ({DRAINED} if contents.is_drained else set())
        checks = [one for one in CHECKS if one.needs <= present]
        counts: dict[str, int] = {}
        examples: list[Anomaly] = []
        tables = Tables(history.facts)
        try:
            found = reduce(DataFrame.unionByName, [one.find(tables) for one in checks])
            for row in _first(found, examples_max).collect():
                counts[name_of(row["kind"])] = int(row["count"])
                facts = json.loads(row["facts"])
                examples.append(anomaly(row["kind"], row["key"], list(row["ops"]), **facts))
        finally:
            tables.close()
    finally:
        history.close()
    return Verdict(contents.operations, dict(contents.outcomes), counts, examples)


def _first(found: DataFrame, examples_max: int) -> DataFrame:
    """Return the first findings of each anomaly, with their number."""
    named = Window.partitionBy(f.substring_index("kind", ":", 1))
    number = f.row_number().over(named.orderBy("key", "ops", "facts"))
    return (
        found.select("*", number.alias("number"), f.count(f.lit(1)).over(named).alias("count"))
        .filter(f.col("number") <= examples_max)
        .orderBy(f.substring_index("kind", ":", 1), "number")
    )


class Tables:
    """Tables that several checks use, derived from the facts; kept by Spark until `close`."""

    def __init__(self, facts: DataFrame) -> None:
        what = f.col("what")
        self.facts = facts
        self.sent = facts.filter(what == SENT)
        self.acked = self.sent.filter("type = 'ok' and offset is not null")
        self.read = facts.filter(what == READ)
        self.values = self._values().persist()
        self.final = self._final().persist()
        self.starts = (
            facts.filter(what.isin(READ, NOTHING) & f.col("is_final"))
            .groupBy("key")
            .agg(f.min("offset").alias("start"))
        )
        """(key, start) of keys that were read after the run; null if nothing was found."""

    def close(self) -> None:
        self.values.unpersist()
        self.final.unpersist()

    @property
    def held(self) -> DataFrame:
        """Operations that place a value at an offset: acknowledged sends and reads."""
        columns = ("key", "offset", "value", "t1", "op")
        return self.acked.select(*columns).unionByName(self.read.select(*columns))

    def _values(self) -> DataFrame:
        """Return (key, value) → `first`, `last`, `writer`, first `reader`, each a struct or null.

        `first` and `last` are the first and last offset of the value, as (offset, t1, op), with t1
        and op of `last` negated: the first operation that reported that offset.
        """

        is_sent, is_read = f.col("what") == SENT, f.col("what") == READ
        is_held = is_read | ((f.col("type") == "ok") & f.col("offset").isNotNull())
        first = f.struct("offset", "t1", "op")
        last = f.struct("offset", (-f.col("t1")).alias("t1"), (-f.col("op")).alias("op"))
        writer = f.struct("t1", "op", "seq", "type", "is_retried", "pid", "siblings")
        return (
            self.facts.filter(is_sent | is_read)
            # Repartition before grouping: few facts share a value, and these are sorted once.
            .repartition("key", "value")
            .groupBy("key", "value")
            .agg(
                f.min(f.when(is_held, first)).alias("first"),
                f.max(f.when(is_held, last)).alias("last"),
                f.min(f.when(is_sent, writer)).alias("writer"),
                f.min(f.when(is_read, f.struct("t1", "op"))).alias("reader"),
            )
        )

    def _final(self) -> DataFrame:
        """Return (key, offset) → value, epoch, timestamp, op of the read after the run."""

        latest = f.max(f.struct("t1", "op", "seq", "value", "epoch", "timestamp"))
        return (
            self.read.filter("is_final")
            .groupBy("key", "offset")
            .agg(latest.alias("latest"))
            .select("key", "offset", "latest.op", "latest.value", "latest.epoch",
                    "latest.timestamp")
        )  # fmt: skip


def inconsistent_offsets(tables: Tables) -> DataFrame:

    held = tables.held
    several = (
        held.groupBy("key", "offset")
        .agg(f.min("value").alias("least"), f.max("value").alias("most"))
        .filter("least < most")
        .select("key", "offset")
    )
    told = (
        held.join(several, ["key", "offset"])
        .groupBy("key", "offset", "value")
        .agg(f.min(f.struct("t1", "op")).alias("first"))
        .groupBy("key", "offset")
        .agg(
            f.sort_array(f.collect_list("value")).alias("values"),
            f.sort_array(f.collect_list("first.op")).alias("ops"),
        )
    )
    values = f.array_join(f.col("values").cast("array<string>"), ", ")
    return _findings(told, "inconsistent-offsets", f.col("ops"), offset=f.col("offset"),
                     values=values)  # fmt: skip


def duplicates(tables: Tables) -> DataFrame:

    is_allowed = f.coalesce(f.expr("writer.pid < 0 and writer.is_retried"), f.lit(False))
    found = tables.values.filter("first.offset < last.offset").filter(~is_allowed)
    return _findings(
        found, "duplicate", f.array("first.op", -f.col("last.op")),
        value=f.col("value"), first=f.col("first.offset"), last=f.col("last.offset"),
    )  # fmt: skip


def lost_writes(tables: Tables) -> DataFrame:

    values = tables.values
    polled = values.filter("reader is not null")
    bounds = polled.groupBy("key").agg(f.max("first.offset").alias("bound"))
    passed = (
        values.filter("reader is null and first is not null and writer is not null")
        .join(f.broadcast(bounds), "key")
        .filter("last.offset <= bound")
    )
    # An operation with an unknown outcome happened if another of its values was read.
    proven = (
        passed.filter("writer.type = 'info'")
        .withColumn("sibling", f.explode("writer.siblings"))
        .join(
            polled.select("key", f.col("value").alias("sibling")), ["key", "sibling"], "left_semi"
        )
        .drop("sibling")
        .dropDuplicates(["key", "value"])
    )
    found = passed.filter("writer.type = 'ok'").unionByName(proven)
    return _findings(
        found, "lost-write", f.array("writer.op"),
        value=f.col("value"), offset=f.col("last.offset"),
    )  # fmt: skip


def unseen(tables: Tables) -> DataFrame:

    is_trimmed = f.coalesce(f.col("offset") < f.col("start"), f.lit(False))
    found = (
        tables.sent.filter("type = 'ok'")
        .select("key", "op", "offset", "value")
        .join(f.broadcast(tables.starts), "key")
        .filter(~is_trimmed)
        .join(tables.final.select("key", "value"), ["key", "value"], "left_anti")
    )
    return _findings(found, "unseen", f.array("op"), value=f.col("value"), offset=f.col("offset"))


def phantoms(tables: Tables) -> DataFrame:

    polled = tables.values.filter("reader is not null")
    never = _findings(
        polled.filter("writer is null"), "phantom", f.array("reader.op"), value=f.col("value")
    )
    failed = _findings(
        polled.filter("writer.type = 'fail'"), "aborted-read", f.array("writer.op", "reader.op"),
        value=f.col("value"),
    )  # fmt: skip
    return never.unionByName(failed)


def sends_in_order(tables: Tables) -> DataFrame:

    # In order of invocation, which is the order of operation numbers.
    sends = Window.partitionBy("proc", "key").orderBy("op", "t1", "seq")
    found = (
        tables.acked.filter("not (pid < 0 and is_retried)")
        .select(
            "proc", "key", "op", "offset",
            f.lag("offset").over(sends).alias("before"), f.lag("op").over(sends).alias("last_op"),
        )
        .filter("before >= offset")
    )  # fmt: skip
    return _findings(
        found,
        f.when(f.col("op") == f.col("last_op"), "int-nonmonotonic-send").otherwise(
            "nonmonotonic-send"
        ),
        f.array("last_op", "op"),
        offset=f.col("offset"), before=f.col("before"), proc=f.col("proc"),
    )  # fmt: skip


def polls_in_order(tables: Tables) -> DataFrame:

    along = Window.partitionBy("proc", "key").orderBy("t1", "op", "seq")
    so_far = along.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    # An assignment resets a process's positions, except those it keeps.
    what = f.col("what")
    turn = f.when(what == KEPT, -1).when(what == SOUGHT, 1).otherwise(0)
    walked = (
        _consumers(tables)
        .withColumn("turns", f.col("told") + f.sum(turn).over(so_far))
        .filter(what == READ)
        .select(
            "proc", "key", "op", "offset", "turns",
            *(f.lag(name).over(along).alias(f"last_{name}") for name in ("op", "offset", "turns")),
        )
        .filter("turns = last_turns and offset <> last_offset + 1")
    )  # fmt: skip
    places = tables.held.select("key", "offset").distinct()
    following = places.select(
        "key",
        f.col("offset").alias("last_offset"),
        f.lead("offset").over(Window.partitionBy("key").orderBy("offset")).alias("following"),
    )
    back = walked.filter("offset <= last_offset").withColumn("kind", f.lit("nonmonotonic-poll"))
    skipped = (
        walked.filter("offset > last_offset")
        .join(following, ["key", "last_offset"])
        .filter("following < offset")
        .drop("following")
        .withColumn("kind", f.lit("poll-skip"))
    )
    return _findings(
        back.unionByName(skipped),
        f.when(f.col("op") == f.col("last_op"), f.concat(f.lit("int-"), "kind")).otherwise(
            f.col("kind")
        ),
        f.array("last_op", "op"),
        offset=f.col("offset"), before=f.col("last_offset"), proc=f.col("proc"),
    )  # fmt: skip


def realtime_offsets(tables: Tables) -> DataFrame:

    known = tables.held.groupBy("key", "t1", "op").agg(f.max("offset").alias("offset"))
    asked = tables.acked.select("key", "t0", "op", "offset")
    found = _with_highest_before(asked, known, "key").filter("offset <= highest")
    return _findings(
        found, "realtime-offset", f.array("witness", "op"),
        offset=f.col("offset"), known=f.col("highest"),
    )  # fmt: skip


def stale_reads(tables: Tables) -> DataFrame:

    earlier = (
        Window.partitionBy("proc", "key")
        .orderBy("t1", "op", "seq")
        .rowsBetween(Window.unboundedPreceding, Window.currentRow)
    )
    what, offset = f.col("what"), f.col("offset")
    goes_on = f.when(what == READ, offset + 1).when(what == SOUGHT, offset)
    place = f.when(goes_on.isNotNull(), f.struct(goes_on.alias("offset"), "told"))
    empty = (
        _consumers(tables)
        .withColumn("place", f.last(place, ignorenulls=True).over(earlier))
        .filter((what == NOTHING) & (f.col("place.told") == f.col("told")))
        .select("key", "op", "t0", "t1", f.col("place.offset").alias("offset"))
    )
    # The first acknowledgement at or after that position.
    rows = empty.withColumn("is_asked", f.lit(True)).unionByName(
        tables.acked.select("key", "offset", f.col("t1").alias("acked"))
        .withColumn("is_asked", f.lit(False)),
        allowMissingColumns=True,
    )  # fmt: skip
    behind = (
        Window.partitionBy("key")
        .orderBy(f.desc("offset"), "is_asked")
        .rowsBetween(Window.unboundedPreceding, Window.currentRow)
    )
    late = (
        rows.withColumn("since", f.min("acked").over(behind))
        .filter(f.col("is_asked") & (f.col("t0") - f.col("since") > STALE_READ_BOUND_NS))
        .select("key", "op", "t0", "t1", "offset", "since")
    )
    # Faults apply to all keys. One task sorts only them and the late reads.
    faults = tables.facts.filter(what == FAULT).select(
        "op", "t1", f.struct("t1", (f.col("value") == 1).alias("is_begin")).alias("fault")
    )
    past = Window.orderBy("t1", "op").rowsBetween(Window.unboundedPreceding, Window.currentRow)
    # Without an earlier fault, `greatest` is the other argument.
    late_ns = f.col("t0") - f.greatest("calm.t1", "since")
    found = (
        late.unionByName(faults, allowMissingColumns=True)
        .withColumn("calm", f.last("fault", ignorenulls=True).over(past))
        .filter("fault is null and (calm is null or (not calm.is_begin and t0 >= calm.t1))")
        .withColumn("late_ns", late_ns)
        .filter(f.col("late_ns") > STALE_READ_BOUND_NS)
    )
    return _findings(
        found, "stale-read", f.array("op"), offset=f.col("offset"), late_s=f.col("late_ns") / 1e9
    )


def truncated_reads(tables: Tables) -> DataFrame:

    found = (
        tables.read.select("key", "op", "offset", "value")
        .join(f.broadcast(tables.starts), "key")
        .filter("offset >= start")
        .join(tables.final.select("key", "offset"), ["key", "offset"], "left_anti")
    )
    return _findings(
        found, "truncated-read", f.array("op"), offset=f.col("offset"), value=f.col("value")
    )


def high_watermarks(tables: Tables) -> DataFrame:

    served = tables.facts.filter(f.col("what") == WATERMARK)
    known = served.select("key", "epoch", "t1", "op", "offset")
    asked = served.select("key", "epoch", "t0", "op", "offset")
    found = _with_highest_before(asked, known, "key", "epoch").filter("offset < highest")
    return _findings(
        found, "hw-regress", f.array("witness", "op"),
        offset=f.col("offset"), known=f.col("highest"), epoch=f.col("epoch"),
    )  # fmt: skip


def leader_epochs(tables: Tables) -> DataFrame:

    told = tables.final.filter("epoch >= 0")
    along = Window.partitionBy("key").orderBy("offset")
    fell = told.select(
        "key", "op", "epoch",
        f.lead("epoch").over(along).alias("after"), f.lead("offset").over(along).alias("offset"),
    ).filter("after < epoch")  # fmt: skip
    regressed = _findings(
        fell, "epoch-regress", f.array("op"),
        after=f.col("after"), offset=f.col("offset"), epoch=f.col("epoch"),
    )  # fmt: skip
    acknowledged = (
        tables.acked.filter("node <> '' and not is_retried")
        .select("key", "offset", "t1", "op", "seq", "node")
        .join(told.select("key", "offset", "epoch"), ["key", "offset"])
    )
    leaders = acknowledged.groupBy("key", "epoch").agg(
        f.min(f.struct("t1", "op", "seq", "node")).alias("leader")
    )
    others = acknowledged.join(leaders, ["key", "epoch"]).filter("node <> leader.node")
    two = _findings(
        others, "two-leaders", f.array("leader.op", "op"),
        node=f.col("leader.node"), other=f.col("node"), epoch=f.col("epoch"),
    )  # fmt: skip
    return regressed.unionByName(two)


def listed_offsets(tables: Tables) -> DataFrame:

    asked = tables.facts.filter(f.col("what") == LISTED).select(
        "key", "op", "t0", "timestamp", "offset"
    )
    timestamp, offset = f.col("timestamp"), f.col("offset")
    known = tables.acked.select("key", "t1", "op", "offset")
    latest = _with_highest_before(asked.filter(timestamp == LATEST), known, "key")
    found = _findings(
        latest.filter("offset <= highest"), "list-offsets: latest", f.array("op"),
        offset=offset, known=f.col("highest"),
    )  # fmt: skip
    earliest = asked.filter(timestamp == EARLIEST).join(f.broadcast(tables.starts), "key")
    found = found.unionByName(
        _findings(
            earliest.filter("offset > start"), "list-offsets: earliest", f.array("op"),
            offset=offset, first=f.col("start"),
        )
    )  # fmt: skip
    by_time = asked.filter(timestamp >= 0)
    final = tables.final.filter(timestamp >= 0)
    # The least offset whose timestamp is the requested one or later.
    rows = by_time.withColumn("is_asked", f.lit(True)).unionByName(
        final.select("key", "timestamp", f.col("offset").alias("place"))
        .withColumn("is_asked", f.lit(False)),
        allowMissingColumns=True,
    )  # fmt: skip
    later = (
        Window.partitionBy("key")
        .orderBy(f.desc("timestamp"), "is_asked")
        .rowsBetween(Window.unboundedPreceding, Window.currentRow)
    )
    writers = tables.values.select("key", "value", "writer")
    least = (
        rows.withColumn("least", f.min("place").over(later))
        .filter("is_asked and least is not null and (offset < 0 or least < offset)")
        .drop("place")
        .join(final.select("key", f.col("offset").alias("least"), "value"), ["key", "least"])
        .join(writers, ["key", "value"])
        .filter("writer.type = 'ok' and writer.t1 < t0")
    )
    found = found.unionByName(
        _findings(
            least, "list-offsets: least", f.array("writer.op", "op"),
            offset=offset, timestamp=timestamp, least=f.col("least"),
        )
    )  # fmt: skip
    has = final.select("key", "offset", timestamp.alias("found"))
    return found.unionByName(
        _findings(
            by_time.join(has, ["key", "offset"]).filter("found < timestamp"),
            "list-offsets: later", f.array("op"),
            offset=offset, timestamp=timestamp, found=f.col("found"),
        )
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Check:
    """One check, the anomalies it finds, and the facts that a history needs for it."""

    find: Callable[[Tables], Any]
    names: tuple[str, ...]
    needs: frozenset[str] = frozenset()


CHECKS = (
    Check(inconsistent_offsets, ("inconsistent-offsets",)),
    Check(duplicates, ("duplicate",)),
    Check(lost_writes, ("lost-write",), frozenset({SENT, READ})),
    Check(unseen, ("unseen",), frozenset({SENT, DRAINED})),
    Check(phantoms, ("phantom", "aborted-read"), frozenset({READ})),
    Check(sends_in_order, ("nonmonotonic-send", "int-nonmonotonic-send"), frozenset({SENT})),
    Check(
        polls_in_order,
        ("poll-skip", "int-poll-skip", "nonmonotonic-poll", "int-nonmonotonic-poll"),
        frozenset({READ}),
    ),
    Check(realtime_offsets, ("realtime-offset",), frozenset({SENT})),
    Check(stale_reads, ("stale-read",), frozenset({SENT, NOTHING})),
    Check(truncated_reads, ("truncated-read",), frozenset({READ, DRAINED})),
    Check(high_watermarks, ("hw-regress",), frozenset({WATERMARK})),
    Check(leader_epochs, ("epoch-regress", "two-leaders"), frozenset({READ, DRAINED})),
    Check(listed_offsets, ("list-offsets",), frozenset({LISTED})),
)
CHECKED = tuple(name for one in CHECKS for name in one.names)
"""The anomalies that this module finds."""


def _findings(rows: DataFrame, kind: Any, ops: Any, **facts: Any) -> DataFrame:
    """Return (kind, key, ops, facts): arguments of `vdl.check.findings.anomaly`, facts as JSON."""
    told = f.struct(*(column.alias(name) for name, column in facts.items()))
    return rows.select(
        f.lit(kind).alias("kind"),
        "key",
        ops.alias("ops"),
        f.to_json(told, {"ignoreNullFields": "false"}).alias("facts"),
    )


def _consumers(tables: Tables) -> DataFrame:
    """Return reads and assignments of consumers, by key.

    `told` counts how often a process has been assigned anew, or lost its assignment, so far.
    """
    what = f.col("what")
    is_polled = what.isin(READ, NOTHING) & (f.col("f") == "poll") & (f.col("type") == "ok")
    so_far = (
        Window.partitionBy("proc")
        .orderBy("t1", "op", "seq")
        .rowsBetween(Window.unboundedPreceding, Window.currentRow)
    )
    return (
        tables.facts.filter(is_polled | what.isin(TOLD, KEPT, SOUGHT))
        .select("proc", "key", "what", "op", "seq", "t0", "t1", "offset")
        .withColumn("told", f.sum((what == TOLD).cast("long")).over(so_far))
        .filter(what != TOLD)
    )


def _with_highest_before(asked: DataFrame, known: DataFrame, *by: str) -> DataFrame:
    """Add the greatest offset known before each operation of `asked` (by…, t0, op, offset).

    `highest`: greatest offset in `known` (by…, t1, op, offset) that had returned before the
    operation began, or -1. `witness`: the first operation that knew it.
    """
    # An operation that returns at the same time is not known before: `asked` sorts first.
    before = (
        Window.partitionBy(*by)
        .orderBy("at", "is_known")
        .rowsBetween(Window.unboundedPreceding, Window.currentRow)
    )
    best = f.struct("offset", (-f.col("at")).alias("at"), (-f.col("op")).alias("op"))
    rows = asked.select("*", f.col("t0").alias("at"), f.lit(False).alias("is_known")).unionByName(
        known.select("*", f.col("t1").alias("at"), f.lit(True).alias("is_known")).drop("t1"),
        allowMissingColumns=True,
    )
    return (
        rows.withColumn("best", f.max(f.when(f.col("is_known"), best)).over(before))
        .filter(~f.col("is_known"))
        .withColumn("highest", f.coalesce(f.col("best.offset"), f.lit(-1)))
        .withColumn("witness", f.coalesce(-f.col("best.op"), f.lit(-1)))
        .drop("at", "is_known", "best")
    )
