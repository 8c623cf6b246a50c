"""Decoding of records to rows, and detection of records that cannot be decoded.

Values are JSON of a schema, JSON made by a registry's schema, or raw. Decoded rows have the columns
of the schema and their origin: `_offset`, `_partition`, `_timestamp` and, in a job with several
topics, `_topic`. Until they are written, they also have the columns of a dead letter (DEAD_ONLY):
`_error`, which is null in a good row, and `_key`, `_value`, `_headers` and `_dead_topic`, which are
null, or empty for `_headers`, in a good row.

Upserts also have OP, the effect of a record on the row of its key (`upsert`). Rows appended from
Debezium's envelopes have the envelope's own OP, `_ts_ms` and `_source`. If a value does not contain
its key, as a tombstone, the record's key is used: a JSON object of the key's columns, with or
without a schema around it, or the value of the only column.

Spark parses JSON. Its errors are explained here (`explain`), record by record, because there should
be few.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from vdl.pipeline.expectations import RULE, Rule, failed, reason
from vdl.pipeline.registered.values import FORMS, REGISTERED, json_texts
from vdl.pipeline.table import DELETE, OP, ROW, TRUNCATE

COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "headers")
"""Columns that decoding needs from a source; a dead letter keeps key, value, headers and topic.

`timestampType` is omitted: no row has it, and each column has a cost for every record.
"""
ORIGIN = ("_partition", "_offset", "_timestamp", "_topic")
RAW = "__"
DEAD_ONLY = ("_error", "_key", "_value", "_headers", "_dead_topic")
CORRUPT = "_corrupt"
DEAD, DROP, NULLS = "dead", "drop", "null"
DELETES = "delete"
TOMBSTONES = (DEAD, DROP, NULLS, DELETES)
"""Treatments of a tombstone: a dead letter, nothing, a row of NULLs, deletion of the key's row."""
DEBEZIUM = "debezium"
ENVELOPES = ("", DEBEZIUM)
ENVELOPE_DATES = {"dateFormat": "yyyy-MM-dd['Z']", "enableDateTimeParsingFallback": "true"}
"""Option for Debezium's `isostring`, which writes a date as 2013-01-31Z.

Other forms are read as without it.
"""
TS, SOURCE = "_ts_ms", "_source"
OPS = ("c", "r", "u", DELETE, TRUNCATE)
"""Debezium's operations: row created, read in a snapshot, updated, deleted; table truncated."""
NO_VALUE = "the record has no value"
NOT_UTF8 = "the value is not UTF-8"
NOT_JSON = "the value is not a JSON object of the schema"
NOT_ENVELOPE = "the value is not a Debezium envelope of rows of the schema"
NO_ROW = "the envelope has no row"
NO_KEY = "a column of the key is NULL: "
NO_TOMBSTONE_KEY = "the record has no value, and its key is not valid for "
NOT_OF_COLUMNS = "the value is not valid for decode.schema: "
"""Error of a value that its own schema can read; the beginning of its JSON follows."""
SHOWN_CHARACTERS = 150
RANGE = "offsets ["
"""Prefix of the error of a letter for several offsets (`unreadable_text`)."""
RANGE_END = re.compile(r"offsets \[\d+, (\d+)\): ")
DETAIL_MAX = 200
NO_REGISTRY: Mapping[str, str] = {}
UNREADABLE = (ValueError, RecursionError)
"""Exceptions of Python's JSON parser; RecursionError is raised for deep nesting."""


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
    envelope: str = "",
    key: Sequence[str] = (),
) -> Any:
    """Return the decoded rows of a frame that has at least COLUMNS.

    Values of a registry's schemas are read by an additional Python process if the frame does not
    have the column REGISTERED.

    `tombstones`: treatment of a record without a value in a JSON form, one of TOMBSTONES;
    `rescued`: name of the column for members that the schema does not have, or "";
    `registry`: settings of the registry that `form` needs, with their secrets;
    `envelope`: one of ENVELOPES; `key`: columns of the key of upserts.
    With `rules` the rows also have a column RULE.
    """
    from pyspark.sql import functions as f
    from pyspark.sql.types import StructType

    origin = [
        f.col("partition").alias("_partition"),
        f.col("offset").alias("_offset"),
        f.col("timestamp").alias("_timestamp"),
    ]
    if topics > 1:
        origin.append(f.col("topic").alias("_topic"))
    # The source marks offsets that it cannot read by a header without a name (`read.letter`).
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
        if REGISTERED not in frame.columns:
            found = json_texts(f.col("value"), registry, form)
            frame = frame.select("*", found.alias(REGISTERED))
        text, own_error = f.col(f"{REGISTERED}.text"), f.col(f"{REGISTERED}.error")
        mismatch = f.concat(f.lit(NOT_OF_COLUMNS), f.left(text, f.lit(SHOWN_CHARACTERS)))
    is_tombstone = f.col("value").isNull() & f.coalesce(~is_letter, f.lit(True))
    if tombstones == DROP:
        frame = frame.filter(~is_tombstone)
    inner, options = text, {"columnNameOfCorruptRecord": CORRUPT}
    if envelope:
        options |= ENVELOPE_DATES
        with_corrupt, mismatch = _envelope_type(wanted), f.lit(NOT_ENVELOPE)
        inner = _row_text(text)
    parsed = f.from_json(text, with_corrupt, options)
    staged = frame.select("*", parsed.alias("_json"))
    columns = [f.col("_json").getField(name) for name in names]
    op, row_error, told = f.lit(ROW), f.lit(None).cast("string"), []
    if envelope:
        op, row_error, columns = _of_envelope(names)
        told = [op, _member("ts_ms"), _member("source")]
    if key:
        key_text = f.col("key").cast("string")
        if form in FORMS:
            # Keys are often plain text even if values are not.
            of_key = json_texts(f.when(is_tombstone, f.col("key")), registry, form)
            key_text = f.coalesce(of_key["text"], key_text)
        op = f.when(is_tombstone, f.lit(DELETE)).otherwise(op)
        columns = _with_key(columns, names, key, wanted, key_text, op)
        no_key = _key_error(columns, names, key, is_tombstone, op)
        row_error = f.coalesce(f.when(~is_tombstone, row_error), no_key)
        told = [f.when(op.isin(DELETE, TRUNCATE), op).otherwise(f.lit(ROW))]
    error = (
        f.when(is_letter, unreadable)
        .when(is_tombstone & f.lit(tombstones == DEAD), NO_VALUE)
        .when(is_tombstone, row_error if key else f.lit(None))
        .when(own_error.isNotNull(), own_error)
        .when(~f.is_valid_utf8(text), NOT_UTF8)
        .when(f.col("_json").isNull() | f.col(f"_json.{CORRUPT}").isNotNull(), mismatch)
        .otherwise(row_error)
    )
    if rescued:
        columns.append(_rescued(inner, names))
        names = [*names, rescued]
    names = [*names, *(OP, TS, SOURCE)[: len(told)]]
    named = [column.alias(name) for column, name in zip([*columns, *told], names, strict=True)]
    staged = staged.select("*", error.alias("_error"))
    rows = staged.select(*named, *origin, "_error", *_raw_columns())
    return _with_rules(rows, names, rules)


def _envelope_type(row: Any) -> Any:
    """Return the type of a Debezium value around rows of a type.

    The envelope may be bare, or the `payload` beside its schema.
    """
    from pyspark.sql.types import LongType, StructType

    def members() -> Any:
        return (
            StructType()
            .add("before", row).add("after", row).add("op", "string").add("ts_ms", LongType())
            .add("source", "string")
        )  # fmt: skip

    return members().add("payload", members()).add(CORRUPT, "string")


def _member(name: str) -> Any:
    """Return a member of the envelope in `_json`."""
    from pyspark.sql import functions as f

    return f.coalesce(f.col(f"_json.payload.{name}"), f.col(f"_json.{name}"))


def _row_text(text: Any) -> Any:
    """Return the JSON of the row after the change in an envelope."""
    from pyspark.sql import functions as f

    inner = f.get_json_object(text, "$.payload.after")
    return f.coalesce(inner, f.get_json_object(text, "$.after"))


def _of_envelope(names: Sequence[str]) -> tuple[Any, Any, list[Any]]:
    """Return (op, error of an envelope that was parsed, columns of its row)."""
    from pyspark.sql import functions as f

    op, before, after = _member("op"), _member("before"), _member("after")
    is_known = f.coalesce(op.isin(*OPS), f.lit(False))
    shown = f.coalesce(f.left(op, f.lit(SHOWN_CHARACTERS)), f.lit("NULL"))
    unknown = f.concat(f.lit("the envelope's op is "), shown)
    error = f.when(~is_known, unknown).when(op.isin("c", "r", "u") & after.isNull(), NO_ROW)
    row = f.when(op == DELETE, before).otherwise(after)
    return op, error, [row.getField(name) for name in names]


def _with_key(
    columns: Sequence[Any], names: Sequence[str], key: Sequence[str], row: Any, text: Any, op: Any
) -> list[Any]:
    """Return a row's columns, completed from the record's key.

    In a deletion, missing columns of the key come from the record's key, and all others are NULL.
    """
    from pyspark.sql import functions as f
    from pyspark.sql.types import StringType, StructType

    kinds = StructType([row[name] for name in key])
    wrapped = "payload" not in key
    wanted = StructType([*kinds.fields])
    text = f.when(f.is_valid_utf8(text), text)
    told = f.from_json(text, wanted.add("payload", kinds) if wrapped else wanted, ENVELOPE_DATES)
    is_gone = op == DELETE
    found = []
    for column, name in zip(columns, names, strict=True):
        if name not in key:
            found.append(f.when(~is_gone, column))
            continue
        said = told.getField(name)
        if wrapped:
            said = f.coalesce(told.getField("payload").getField(name), said)
        if len(key) == 1:
            quoted = f.concat(f.lit(f"{{{json.dumps(name)}:"), text, f.lit("}"))
            by_itself = f.from_json(quoted, kinds).getField(name)
            if isinstance(kinds[name].dataType, StringType):
                by_itself = f.coalesce(by_itself, text)
            said = f.when(f.startswith(f.ltrim(text), f.lit("{")), said).otherwise(by_itself)
        found.append(f.coalesce(column, f.when(is_gone, said)))
    return found


def _key_error(
    columns: Sequence[Any], names: Sequence[str], key: Sequence[str], is_tombstone: Any, op: Any
) -> Any:
    """Return the error of a record that does not identify its row."""
    from pyspark.sql import functions as f

    missing = f.lit(False)
    for column, name in zip(columns, names, strict=True):
        if name in key:
            missing |= column.isNull()
    told = f.when(is_tombstone, f"{NO_TOMBSTONE_KEY}{', '.join(key)}")
    told = told.otherwise(f"{NO_KEY}{', '.join(key)}")
    return f.when(missing & (op != TRUNCATE), told)


def _raw_columns() -> list[Any]:
    """Return a source's columns for dead letters, under names that no schema has."""
    from pyspark.sql import functions as f

    return [f.col(name).alias(f"{RAW}{name}") for name in ("key", "value", "headers", "topic")]


def _with_rules(rows: Any, names: Sequence[str], rules: Sequence[Rule]) -> Any:
    """Return decoded rows of those columns, with DEAD_ONLY; rows that fail a rule may be dead."""
    from pyspark.sql import functions as f

    from vdl.pipeline.read import DDL

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
    none = f.array().cast(DDL["headers"])
    return rows.select(
        *others,
        "_error",
        f.when(is_dead, key).alias("_key"),
        f.when(is_dead, value).alias("_value"),
        # Not NULL in good rows, which drop it: a NULL array is expensive (`session.SETTINGS`).
        f.when(is_record, headers).when(~is_dead, none).alias("_headers"),
        f.when(is_dead, topic).alias("_dead_topic"),
        *rule,
    )


def _rescued(text: Any, names: Sequence[str]) -> Any:
    """Return JSON of an object's members outside `names`, each value as text; NULL if none."""
    from pyspark.sql import functions as f

    known = f.array(*map(f.lit, names))
    others = f.array_except(f.json_object_keys(text), known)

    def value(key: Any) -> Any:
        path = f.concat(f.lit("$['"), key, f.lit("']"))
        return f.call_function("get_json_object", text, path)

    values = f.transform(others, value)
    return f.when(f.size(others) > 0, f.to_json(f.map_from_arrays(others, values)))


def range_end(error: str) -> int | None:
    """Return the end of the offsets that a dead letter stands for, or None if it is one record."""
    found = RANGE_END.match(error)
    return None if found is None else int(found[1])


def explain(error: str, value: bytes | None, kinds: Mapping[str, str]) -> str:
    """Return the most exact reason why a value could not be decoded.

    `kinds`: column → its type as Spark writes it.
    """
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
    """Return False if a JSON value cannot be of a simple type; other types always fit."""
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
