"""Records that become upserts: operation and key of each, and dead letters."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="needs the `spark` extra")
pytest.importorskip("pyspark", reason="needs the `spark` extra")

from confluent_kafka import Producer

from tests.pipeline.live_rows import live_rows
from tests.pipeline.test_reading import create
from tests.pipeline.test_spark import backfill, run_once
from vdl.pipeline.decode import COLUMNS, decode
from vdl.pipeline.errors import PipelineError
from vdl.pipeline.job import Job, load_job
from vdl.pipeline.open_table import rows_table
from vdl.pipeline.read import DDL
from vdl.pipeline.runner import Runner

pytestmark = [pytest.mark.spark, pytest.mark.takes_turns(parts=2)]

JOB = """
[job]
name = "{name}"
[source]
bootstrap = "{bootstrap}"
topics = ["{topic}"]
max_rows = 20
[decode]
schema = "{schema}"
{decode}
[sink]
kind = "{sink}"
path = "{name}"
mode = "upsert"
key = ["id"]
[errors]
share_max = 1.0
"""
SCHEMA = "id bigint, text string"


def job_of(
    folder: Path, bootstrap: str, topic: str, sink: str, schema: str = SCHEMA, decode: str = ""
) -> Job:
    file = folder / "job.toml"
    text = JOB.format(
        name=f"{topic}-{sink}", bootstrap=bootstrap, topic=topic, sink=sink, schema=schema,
        decode=decode,
    )  # fmt: skip
    file.write_text(text, encoding="utf-8")
    return load_job(file)


def decoded(
    spark: Any, records: list[tuple[bytes | None, bytes | None]], *, schema: str = SCHEMA,
    **more: Any,
) -> list[dict[str, Any]]:  # fmt: skip
    """Return the decoded rows of records (key, value)."""
    ddl = ", ".join(f"`{name}` {DDL[name]}" for name in COLUMNS)
    rows = [(key, value, "t", 0, n, None, None) for n, (key, value) in enumerate(records)]
    frame = decode(spark.createDataFrame(rows, ddl), form="json", schema=schema, topics=1, **more)
    return [row.asDict(recursive=True) for row in frame.orderBy("_offset").collect()]


def told(rows: list[dict[str, Any]], *names: str) -> list[Any]:
    """Return the named columns of good rows, and the errors of dead ones."""
    return [row["_error"] or tuple(row[name] for name in names) for row in rows]


def wrapped(payload: object) -> bytes:
    """Return the JSON that Connect's converter writes with `schemas.enable`."""
    return json.dumps({"schema": {"type": "struct"}, "payload": payload}).encode()


def test_tombstone_says_its_key_in_the_record_s_key(spark: Any) -> None:
    """The key is an object, bare or with a schema around it, or the value of the only column."""
    keys = [b'{"id": 1}', wrapped({"id": 2}), b"3", b' {"id": 4, "more": 5}', b"no", b"{}", None]
    keys += [b"\xff", b'{"id": "x"}']
    rows = decoded(
        spark, [(None, b'{"id": 7, "text": "a"}'), *((key, None) for key in keys)],
        tombstones="delete", key=["id"],
    )  # fmt: skip
    no_key = "the record has no value, and its key is not valid for id"
    deleted = [(n, None, "d") for n in range(1, 5)]
    assert told(rows, "id", "text", "_op") == [(7, "a", "u"), *deleted, *[no_key] * 5]


def test_tombstone_of_a_text_as_key(spark: Any) -> None:
    keys = [b"abc", b'"abc"', b"5", b'{"id": "abc"}', b"a b", b'{"other": 1}']
    rows = decoded(
        spark, [(key, None) for key in keys], schema="id string", tombstones="delete", key=["id"]
    )
    assert [row["id"] for row in rows] == ["abc", "abc", "5", "abc", "a b", None]
    assert rows[-1]["_error"]


def test_row_without_its_key_is_a_dead_letter(spark: Any) -> None:
    values = [b'{"text": "a"}', b'{"id": null}', b'{"id": 1}']
    rows = decoded(spark, [(b"5", v) for v in values], tombstones="delete", key=["id", "text"])
    assert told(rows, "id") == ["a column of the key is NULL: id, text"] * 3
    rows = decoded(spark, [(b"5", v) for v in values], tombstones="delete", key=["id"])
    assert told(rows, "id") == ["a column of the key is NULL: id"] * 2 + [(1,)]


ENVELOPES = [
    {"before": None, "after": {"id": 1, "text": "a"}, "op": "c"},
    {"before": None, "after": {"id": 2, "text": "b"}, "op": "r"},
    {"before": {"id": 1, "text": "a"}, "after": {"id": 1, "text": "c"}, "op": "u"},
    {"before": {"id": 1, "text": "c"}, "after": None, "op": "d"},
    {"before": None, "after": None, "op": "t"},
]
MORE = {"ts_ms": 5, "source": {"table": "t"}}


@pytest.mark.parametrize("is_wrapped", [False, True])
def test_debezium_envelopes_become_upserts(spark: Any, *, is_wrapped: bool) -> None:
    """Only the key of a deletion is kept; the tombstone after it repeats it."""
    wrap = wrapped if is_wrapped else (lambda told: json.dumps(told).encode())
    records: list[tuple[bytes | None, bytes | None]] = [
        (wrap({"id": 1}), wrap({**one, **MORE})) for one in ENVELOPES
    ]
    no_before = wrap({"before": None, "op": "d"})
    records += [(wrap({"id": 1}), None), (wrap({"id": 9}), no_before)]
    rows = decoded(spark, records, envelope="debezium", tombstones="delete", key=["id"])
    assert told(rows, "id", "text", "_op") == [
        (1, "a", "u"), (2, "b", "u"), (1, "c", "u"), (1, None, "d"), (None, None, "t"),
        (1, None, "d"), (9, None, "d"),
    ]  # fmt: skip


def test_what_is_no_envelope_is_a_dead_letter(spark: Any) -> None:
    values = [
        b"{}", b"[]", b"x", b"\xff", b'{"op": "m", "after": {"id": 1}}', b'{"op": "c"}',
        b'{"op": "u", "after": {"id": "x"}}', b'{"op": "d"}',
        b'{"op": "c", "after": {"text": "a"}}',
        b'{"id": 1, "text": "a"}', b'{"schema": {}, "payload": null}', b'{"op": "c", "after": 5}',
    ]  # fmt: skip
    rows = decoded(
        spark, [(None, value) for value in values], envelope="debezium", tombstones="delete",
        key=["id"],
    )  # fmt: skip
    errors = [row["_error"] for row in rows]
    assert all(errors), errors
    assert errors[4] == "the envelope's op is m"
    assert errors[5] == "the envelope has no row"
    assert errors[8] == "a column of the key is NULL: id"


def test_debezium_envelopes_that_are_appended_keep_what_they_say(spark: Any) -> None:
    records: list[tuple[bytes | None, bytes | None]] = [
        (None, json.dumps({**one, **MORE}).encode()) for one in ENVELOPES
    ]
    rows = decoded(
        spark, [*records, (b"1", None)], envelope="debezium", tombstones="drop", rescued="rest"
    )
    assert told(rows, "id", "text", "_op") == [
        (1, "a", "c"), (2, "b", "r"), (1, "c", "u"), (1, "c", "d"), (None, None, "t"),
    ]  # fmt: skip
    assert {row["_ts_ms"] for row in rows} == {5}
    assert {row["_source"] for row in rows} == {'{"table":"t"}'}
    more = json.dumps({"op": "c", "after": {"id": 1, "new": 2}}).encode()
    (row,) = decoded(
        spark, [(None, more)], envelope="debezium", tombstones="delete", key=["id"], rescued="rest"
    )
    assert (row["id"], json.loads(row["rest"])) == (1, {"new": "2"})


@pytest.mark.parametrize("sink", ["delta", "iceberg"])
def test_job_of_upserts_has_the_last_row_of_each_key(
    spark: Any, bootstrap: str, tmp_path: Path, sink: str
) -> None:
    """Covers small batches, a second run, a column added later, and dead letters."""
    topic = f"upserts-{sink}"
    create(bootstrap, topic)
    producer = Producer({"bootstrap.servers": bootstrap})
    model: dict[int, str] = {}

    def send(first: int, end: int) -> None:
        for n in range(first, end):
            key = n * 7 % 11
            value = None if n % 5 == 4 else json.dumps({"id": key, "text": f"{n}", "more": n})
            producer.produce(topic, value, str(key), partition=key % 2)
            if value is None:
                model.pop(key, None)
            else:
                model[key] = f"{n}"
        producer.produce(topic, b'{"text": "no key"}', b"5", partition=0)
        assert producer.flush(30) == 0

    send(0, 40)
    job = job_of(tmp_path, bootstrap, topic, sink)
    totals = run_once(job, spark)
    assert (totals.rows, totals.dead) == (40, 1)
    assert totals.batches > 1
    assert rows_of(job) == model
    assert run_once(job, spark).batches == 0
    send(40, 55)
    job = job_of(tmp_path, bootstrap, topic, sink, "more bigint, id bigint, text string")
    assert backfill(job, spark).rows == 15
    assert rows_of(job) == model


def rows_of(job: Job) -> dict[int, str]:
    table = rows_table(job)
    table.open({job.source.topics[0]: ("", 1)})
    found = live_rows(table)
    rows = {row["id"]: row["text"] for row in found}
    assert len(rows) == len(found)
    return rows


def test_job_whose_key_is_no_column_is_refused(spark: Any, bootstrap: str, tmp_path: Path) -> None:
    job = job_of(tmp_path, bootstrap, "upserts-delta", "delta", "text string, id double")
    with pytest.raises(PipelineError, match=r"sink.key: id is double: a key has"):
        Runner(job, spark)._check_steps()
