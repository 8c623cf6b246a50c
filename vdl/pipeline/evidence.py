"""History as tables: lines of its files, read as splits in parallel, become facts.

A fact is one statement of an operation about one key (it sent a value, it read a record, it
received an offset), together with what is known of the operation. Lines are decoded where they are
read, by the decoder that `vdl check` uses. Spark keeps the facts, in memory as far as there is room
and then on disk, because each check reads them.

`seq` numbers the facts of one operation, sends before reads, in the order of its line. Fact 0
stands for the operation when operations are counted. Operations are in order of return: (t1, op).

| what | a fact | its columns |
|---|---|---|
| sent | a value was sent | offset or null, value; siblings: the others, if the outcome is unknown |
| read | a record was read | offset, value, epoch (the leader's) and timestamp, or -1 |
| nothing | a poll returned nothing | |
| told | a process was assigned anew, or lost its assignment; no key | |
| kept | a partition that an assignment names | |
| sought | a process was given a position to continue at | offset |
| watermark | a fetch returned the high watermark | offset, epoch |
| listed | an offset was listed | offset, timestamp, or LATEST, EARLIEST |
| fault | a fault began or healed; no key | value: 1 at its begin, else 0 |
| other | an operation with none of the above | |
| malformed | a line is no operation | line, and nothing else |

Does not depend on the checks of a history.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from vdl.check.anomalies import RETRIED
from vdl.check.history import MalformedHistory, Op, decode
from vdl.pipeline.errors import PipelineError

BATCH_FACTS = 20_000
PARTITION_BYTES = 32 << 20
"""Bytes of the files' text for each shuffle partition, which is sorted in a task's memory."""
PARTITIONS_MIN = 4
LINE_SHOWN = 200

SENT, READ, NOTHING, TOLD, KEPT = "sent", "read", "nothing", "told", "kept"
SOUGHT, WATERMARK, LISTED, FAULT = "sought", "watermark", "listed", "fault"
OTHER, MALFORMED = "other", "malformed"

FACT_COLUMNS = (
    ("what", pa.string()),
    ("key", pa.string()),
    ("seq", pa.int32()),
    ("offset", pa.int64()),
    ("value", pa.int64()),
    ("epoch", pa.int64()),
    ("timestamp", pa.int64()),
    ("siblings", pa.list_(pa.int64())),
    ("line", pa.binary()),
)
OP_COLUMNS = (
    ("op", pa.int64()),
    ("proc", pa.string()),
    ("f", pa.string()),
    ("type", pa.string()),
    ("t0", pa.int64()),
    ("t1", pa.int64()),
    ("node", pa.string()),
    ("pid", pa.int64()),
    ("is_retried", pa.bool_()),
    ("is_final", pa.bool_()),
)
FACTS_DDL = (
    "what string, key string, seq int, offset long, value long, epoch long, timestamp long, "
    "siblings array<long>, line binary, op long, proc string, f string, type string, t0 long, "
    "t1 long, node string, pid long, is_retried boolean, is_final boolean"
)
FACTS = pa.schema([*FACT_COLUMNS, *OP_COLUMNS])

Fact = tuple[
    str, str | None, int, int | None, int | None, int | None, int | None, list[int] | None,
    bytes | None,
]  # fmt: skip


class LineMalformed(PipelineError):
    """A line of a history is not an operation; `count` such lines exist."""

    def __init__(self, path: str, line: bytes, *, reason: str, count: int) -> None:
        shown = line[:LINE_SHOWN].decode(errors="replace") + "…" * (len(line) > LINE_SHOWN)
        others = f" (and {count - 1} other lines)" if count > 1 else ""
        super().__init__(f"{path}: not an operation: {reason}: {shown}{others}")
        self.path = path
        self.line = line
        self.reason = reason
        self.count = count


class FileUnreadable(PipelineError):
    """Spark would skip a file of this name, or take the name for a pattern."""

    def __init__(self, path: str) -> None:
        super().__init__(
            f"{path}: Spark does not read a file whose name begins with '_' or '.' or whose "
            f"path has one of {PATTERN_CHARACTERS}; rename it"
        )
        self.path = path


PATTERN_CHARACTERS = "*?[]{}\\"


@dataclass(frozen=True, slots=True)
class Contents:
    """Contents of a history: operations by type, and the kinds of facts."""

    outcomes: Counter[str]
    whats: frozenset[str]
    is_drained: bool
    """True if some operations belong to a read of everything after the run."""

    @property
    def operations(self) -> int:
        return self.outcomes.total()


class History:
    """Facts of one history, in one or several files, in any order.

    Kept by Spark until `close`.
    """

    def __init__(self, paths: Sequence[str], spark: Any) -> None:
        """Raises FileUnreadable."""
        self.paths = [str(Path(path).resolve()) for path in paths]
        for path in self.paths:
            if Path(path).name.startswith(("_", ".")) or set(PATTERN_CHARACTERS) & set(path):
                raise FileUnreadable(path)
        self.spark = spark
        lines = self._text().selectExpr("cast(value as binary) as line")
        self.facts = lines.mapInArrow(facts_of, FACTS_DDL).persist()

    def close(self) -> None:
        self.facts.unpersist()

    def contents(self) -> Contents:
        """Read and keep all files; return their contents. Raises LineMalformed."""
        from pyspark.sql import functions as f

        told = self.facts.groupBy("what", "type", "is_final").agg(
            f.sum((f.col("seq") == 0).cast("long")).alias("operations")
        )
        rows = told.collect()
        malformed = sum(row["operations"] for row in rows if row["what"] == MALFORMED)
        if malformed:
            raise self._malformed(malformed)
        outcomes: Counter[str] = Counter()
        for row in rows:
            outcomes[row["type"]] += row["operations"]
        whats = frozenset(row["what"] for row in rows)
        return Contents(outcomes, whats, any(row["is_final"] for row in rows))

    def _text(self) -> Any:
        return self.spark.read.text(self.paths, lineSep="\n")

    def _malformed(self, count: int) -> LineMalformed:
        """Return an error for one such line, searched in the files: facts have no line numbers."""
        from pyspark.sql import functions as f

        line = bytes(self.facts.filter(f.col("what") == MALFORMED).first()["line"])
        found = (
            self._text()
            .filter(f.col("value").cast("binary") == f.lit(line))
            .select(f.regexp_replace("_metadata.file_path", "^file:/*", "/").alias("path"))
            .first()
        )
        reason = ""
        try:
            decode(line)
        except MalformedHistory as error:
            reason = error.reason
        return LineMalformed(found["path"], line, reason=reason, count=count)


def partitions_for(paths: Sequence[Path]) -> int:
    """Return the number of shuffle partitions for these files' facts."""
    return max(PARTITIONS_MIN, sum(path.stat().st_size for path in paths) // PARTITION_BYTES)


def facts_of(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield FACTS of lines, the only column of the input. Runs on executors."""
    for batch in batches:
        gathered = _Gathered()
        for line in batch.column(0).to_pylist():
            if line.strip():
                gathered.add(line)
                if len(gathered.facts) >= BATCH_FACTS:
                    yield gathered.batch()
                    gathered = _Gathered()
        if gathered.facts:
            yield gathered.batch()


class _Gathered:
    """Facts of some operations.

    Arrow repeats an operation's columns for each of its facts: a Python tuple of nineteen fields
    would cost more than the decoding.
    """

    def __init__(self) -> None:
        self.facts: list[Fact] = []
        self.ops: list[tuple[Any, ...]] = []
        self.op_of: list[int] = []

    def add(self, line: bytes) -> None:
        before = len(self.facts)
        try:
            op = decode(line)
        except MalformedHistory:
            self.facts.append((MALFORMED, None, 0, None, None, None, None, None, line))
            self.ops.append((None,) * len(OP_COLUMNS))
        else:
            self.facts += _facts(op)
            self.ops.append(
                (
                    op.i, op.proc, op.f, op.type, op.t0, op.t1, op.node, op.pid,
                    op.note == RETRIED, op.final,
                )
            )  # fmt: skip
        self.op_of += [len(self.ops) - 1] * (len(self.facts) - before)

    def batch(self) -> pa.RecordBatch:
        facts = [
            pa.array(values, kind)
            for values, (_, kind) in zip(zip(*self.facts, strict=True), FACT_COLUMNS, strict=True)
        ]
        op_of = pa.array(self.op_of, pa.int32())
        ops = [
            pa.array(values, kind).take(op_of)
            for values, (_, kind) in zip(zip(*self.ops, strict=True), OP_COLUMNS, strict=True)
        ]
        return pa.RecordBatch.from_arrays(facts + ops, schema=FACTS)


def _facts(op: Op) -> list[Fact]:
    """Return the facts of an operation, at least one."""
    found: list[Fact] = []
    values = [send.value for send in op.sends]
    siblings = values if op.type == "info" and len(values) > 1 else None
    for send in op.sends:
        found.append(
            (SENT, send.key, len(found), send.offset, send.value, None, None, siblings, None)
        )
    for key, records in op.polls:
        if not records:
            found.append((NOTHING, key, len(found), None, None, None, None, None, None))
        for record in records:
            found.append(
                (
                    READ, key, len(found), record.offset, record.value, record.leader_epoch,
                    record.timestamp, None, None,
                )
            )  # fmt: skip
    for what, name, offset, value, epoch, timestamp in _orders(op):
        found.append((what, name, len(found), offset, value, epoch, timestamp, None, None))
    if not found:
        found.append((OTHER, None, 0, None, None, None, None, None, None))
    return found


def _orders(
    op: Op,
) -> Iterator[tuple[str, str | None, int | None, int | None, int | None, int | None]]:
    """Yield facts other than sends and reads: (what, key, offset, value, epoch, timestamp)."""
    if op.ok:
        for key, (epoch, high_watermark) in op.hw.items():
            if epoch >= 0:
                yield WATERMARK, key, high_watermark, None, epoch, None
    if op.f == "assign":
        yield TOLD, None, None, None, None, None
        for key in sorted(set(op.keys)):
            yield KEPT, key, None, None, None, None
    elif op.f in {"rebalance", "revoke"}:
        yield TOLD, None, None, None, None, None
    elif op.f == "seek":
        for mark in op.marks:
            yield SOUGHT, mark.key, mark.offset, None, None, None
    elif op.f == "list_offsets" and op.ok:
        for mark in op.marks:
            yield LISTED, mark.key, mark.offset, None, None, mark.timestamp
    elif op.f == "fault":
        yield FAULT, None, None, int(op.note == "begin"), None, None
