"""From records to rows: JSON by a schema, what a registry's schema makes JSON of, or raw; and which
records cannot be.

Decoded rows have the columns of the schema and, for whoever asks where a row came from, `_offset`,
`_partition`, `_timestamp` and, of a job with several topics, `_topic`. Beside them, until they are
written, what a dead letter needs: `_error`, which is null where the row is good, and `_key`,
`_value`, `_headers` and `_topic`, which are null where it is.

JSON is parsed by Spark. What it objects to is put in words here (`explain`), record by record,
because there should be few.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from vdl.pipeline.expectations import RULE, Rule, failed, reason
from vdl.pipeline.registered.values import FORMS, json_texts

COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "headers")
"""What decoding needs of a source: key, value, headers and topic are what a dead letter keeps.
Without `timestampType`, which no row has, since each column costs something for every record."""
ORIGIN = ("_partition", "_offset", "_timestamp", "_topic")
RAW = "__"
DEAD_ONLY = ("_error", "_key", "_value", "_headers", "_dead_topic")
CORRUPT = "_corrupt"
DEAD, DROP, NULLS = "dead", "drop", "null"
TOMBSTONES = (DEAD, DROP, NULLS)
"""A dead letter, nothing, or a row whose columns are NULL."""
NO_VALUE = "the record has no value"
NOT_UTF8 = "the value is not UTF-8"
NOT_JSON = "the value is not a JSON object of the schema"
NOT_OF_COLUMNS = "the value is not of decode.schema: "
"""Of a value that its own schema reads, and the beginning of what it reads as."""
SHOWN_CHARACTERS = 150
RANGE = "offsets ["
"""What the reason begins with where a letter stands for several offsets (`unreadable_text`)."""
RANGE_END = re.compile(r"offsets \[\d+, (\d+)\): ")
DETAIL_MAX = 200
NO_REGISTRY: Mapping[str, str] = {}
UNREADABLE = (ValueError, RecursionError)
"""What Python's JSON raises: what is nested too deep for it is no ValueError."""


def decode(
    frame: Any,
    *,
    form: str,
    schema: str,
    topics: int,
    tombstones: str = DEAD,
    rescued: str = "",
    rules: Sequence[Rule] = (),
    registry: Mapping[str, str] = NO_REGISTRY,
) -> Any:
    """The decoded rows of a frame that has COLUMNS, and maybe more. `tombstones`: what becomes of
    a record without a value where JSON is wanted, one of TOMBSTONES; `rescued`: the column that
    keeps what the schema does not have, "" for none; `registry`: settings of the one that `form`
    needs, with their secrets. With `rules` there is a column RULE, too."""
    from pyspark.sql import functions as f
    from pyspark.sql.types import StructType

    origin = [
        f.col("partition").alias("_partition"),
        f.col("offset").alias("_offset"),
        f.col("timestamp").alias("_timestamp"),
    ]
    if topics > 1:
        origin.append(f.col("topic").alias("_topic"))
    # The source's word for offsets that it cannot read: a header without a name (`read.letter`).
    first = f.get(f.col("headers"), f.lit(0))
    is_letter = (f.size("headers") == 1) & first["key"].isNull()
    unreadable = f.when(is_letter, first["value"].cast("string"))
    if form == "raw":
        staged = frame.select(
            "key", "value", "headers", *origin, unreadable.alias("_error"), *_raw_columns()
        )
        return _with_rules(staged, ["key", "value", "headers"], rules)
    wanted = StructType.fromDDL(schema)
    names = [field.name for field in wanted.fields]
    with_corrupt = StructType([*wanted.fields]).add(CORRUPT, "string")
    text, own_error, mismatch = f.col("value").cast("string"), f.lit(None), f.lit(NOT_JSON)
    if form in FORMS:
        found = json_texts(f.col("value"), registry, form)
        frame = frame.select("*", found.alias("_registered"))
        text, own_error = f.col("_registered.text"), f.col("_registered.error")
        mismatch = f.concat(f.lit(NOT_OF_COLUMNS), f.left(text, f.lit(SHOWN_CHARACTERS)))
    parsed = f.from_json(text, with_corrupt, {"columnNameOfCorruptRecord": CORRUPT})
    is_tombstone = f.col("value").isNull() & f.coalesce(~is_letter, f.lit(True))
    if tombstones == DROP:
        frame = frame.filter(~is_tombstone)
    error = (
        f.when(is_letter, unreadable)
        .when(is_tombstone, NO_VALUE if tombstones == DEAD else f.lit(None))
        .when(own_error.isNotNull(), own_error)
        .when(~f.is_valid_utf8(text), NOT_UTF8)
        .when(f.col("_json").isNull() | f.col(f"_json.{CORRUPT}").isNotNull(), mismatch)
    )
    staged = frame.select("*", parsed.alias("_json")).select("*", error.alias("_error"))
    columns = [f.col("_json").getField(name).alias(name) for name in names]
    if rescued:
        columns.append(_rescued(text, names).alias(rescued))
        names = [*names, rescued]
    rows = staged.select(*columns, *origin, "_error", *_raw_columns())
    return _with_rules(rows, names, rules)


def _raw_columns() -> list[Any]:
    """What a dead letter needs, of a source's frame, under names that no schema has."""
    from pyspark.sql import functions as f

    return [f.col(name).alias(f"{RAW}{name}") for name in ("key", "value", "headers", "topic")]


def _with_rules(rows: Any, names: Sequence[str], rules: Sequence[Rule]) -> Any:
    """Decoded rows of those columns, with DEAD_ONLY, in which a row that fails a rule may be
    dead."""
    from pyspark.sql import functions as f

    others = [f.col(f"`{name.replace('`', '``')}`") for name in names]
    others += [f.col(n) for n in rows.columns if n in ORIGIN]
    raw = [f.col(f"{RAW}{name}") for name in ("key", "value", "headers", "topic")]
    rule = []
    if rules:
        number = f.when(f.col("_error").isNull(), failed(rules))
        rows = rows.select(*others, "_error", *raw, number.alias(RULE))
        error = f.coalesce("_error", reason(rules))
        rows = rows.select(*others, error.alias("_error"), *raw, RULE)
        rule = [f.col(RULE)]
    is_dead = f.col("_error").isNotNull()
    is_record = is_dead & ~f.startswith(f.col("_error"), f.lit(RANGE))
    key, value, headers, topic = raw
    return rows.select(
        *others,
        "_error",
        f.when(is_dead, key).alias("_key"),
        f.when(is_dead, value).alias("_value"),
        f.when(is_record, headers).alias("_headers"),
        f.when(is_dead, topic).alias("_dead_topic"),
        *rule,
    )


def _rescued(text: Any, names: Sequence[str]) -> Any:
    """JSON of the members of an object that are not among `names`, each value as text; NULL where
    there are none."""
    from pyspark.sql import functions as f

    known = f.array(*map(f.lit, names))
    others = f.array_except(f.json_object_keys(text), known)

    def value(key: Any) -> Any:
        path = f.concat(f.lit("$['"), key, f.lit("']"))
        return f.call_function("get_json_object", text, path)

    values = f.transform(others, value)
    return f.when(f.size(others) > 0, f.to_json(f.map_from_arrays(others, values)))


def range_end(error: str) -> int | None:
    """The offset behind those that a dead letter stands for; None where it is of one record."""
    found = RANGE_END.match(error)
    return None if found is None else int(found[1])


def explain(error: str, value: bytes | None, kinds: Mapping[str, str]) -> str:
    """The reason why a value could not be decoded, as exactly as can be said. `kinds`: column →
    its type as Spark writes it."""
    if error != NOT_JSON or value is None:
        return error
    try:
        found = json.loads(value)
    except UNREADABLE as problem:
        return f"{error}: {problem}"[:DETAIL_MAX]
    if not isinstance(found, dict):
        return f"{error}: it is {_name(found)}, not an object"
    for column, kind in kinds.items():
        if column in found and not _fits(found[column], kind):
            return f"{error}: {column} is {_name(found[column])}, not {kind}"[:DETAIL_MAX]
    return error


def _fits(value: Any, kind: str) -> bool:
    """Whether a JSON value can be of a simple type; of others it is not known, so it can."""
    if value is None:
        return True
    if kind in {"tinyint", "smallint", "int", "bigint"}:
        return isinstance(value, int) and not isinstance(value, bool)
    if kind in {"float", "double"}:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if kind == "boolean":
        return isinstance(value, bool)
    return True


def _name(value: Any) -> str:
    kind = type(value).__name__
    try:
        return f"{kind} {json.dumps(value)[:40]}"
    except UNREADABLE:
        return kind
