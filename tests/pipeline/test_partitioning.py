"""Partitions: each file has one value, readers see the same rows, other tables are refused."""

from __future__ import annotations

import datetime
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyiceberg", reason="needs the `spark` extra")
pytest.importorskip("deltalake", reason="needs the `spark` extra")

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog
from pyiceberg.transforms import parse_transform
from pyiceberg.types import DateType, LongType, StringType, TimestamptzType

from tests.pipeline.test_job_file import GOOD, write
from tests.pipeline.test_tables import TOPICS, at
from vdl.pipeline import files as writing
from vdl.pipeline.catalog_settings import local_catalog
from vdl.pipeline.compaction import BYTES_TARGET
from vdl.pipeline.delta_rules import DeltaRefused
from vdl.pipeline.errors import JobInvalid, PipelineError
from vdl.pipeline.files import ROWS, WriteSpec, write_batches
from vdl.pipeline.iceberg_entries import as_stored
from vdl.pipeline.iceberg_rules import IcebergRefused
from vdl.pipeline.job import load_job
from vdl.pipeline.open_table import open_place
from vdl.pipeline.partitioning import (
    PartitionField,
    as_text,
    as_told,
    check_columns,
    divided,
    from_json,
    parse_field,
    to_json,
)  # fmt: skip
from vdl.pipeline.table import Commit, DataFile, Place
from vdl.pipeline.table_columns import schema_lines

NOON = datetime.datetime(2013, 1, 31, 12, tzinfo=datetime.UTC)
DAY = datetime.timedelta(days=1)
COLUMNS = pa.schema(
    [("n", pa.int64()), ("c", pa.string()), ("d", pa.date32()), ("at", pa.timestamp("us", "UTC"))]
)
VALUES = ["x", None, "a/b=c %20ü", "x", "y", None, "NULL", "x"]
ROWS_MADE = [
    {"n": n, "c": c, "d": None if n == 3 else (NOON + n % 2 * DAY).date(), "at": NOON + n % 3 * DAY}
    for n, c in enumerate(VALUES)
]


def batch_of(rows: list[dict[str, Any]] = ROWS_MADE) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(rows, schema=COLUMNS)


def fields(*texts: str) -> tuple[PartitionField, ...]:
    return tuple(map(parse_field, texts))


def test_rows_are_divided_by_values_and_null_is_one() -> None:
    found = dict(divided(batch_of(), fields("c")))
    assert {key[0]: part["n"].to_pylist() for key, part in found.items()} == {
        "x": [0, 3, 7], None: [1, 5], "a/b=c %20ü": [2], "y": [4], "NULL": [6],
    }  # fmt: skip
    days = dict(divided(batch_of(), fields("day(at)")))
    assert {key[0].day: part["n"].to_pylist() for key, part in days.items()} == {
        31: [0, 3, 6], 1: [1, 4, 7], 2: [2, 5],
    }  # fmt: skip
    (one,) = divided(batch_of(ROWS_MADE[:1]), fields("c", "d"))
    assert one[0] == ("x", NOON.date())


def test_days_before_1970_and_at_midnight_are_their_own() -> None:
    first = datetime.datetime(1969, 12, 31, 23, 59, 59, tzinfo=datetime.UTC)
    rows = [{**ROWS_MADE[0], "at": first + n * datetime.timedelta(seconds=1)} for n in range(2)]
    keys = [key[0].isoformat() for key, _ in divided(batch_of(rows), fields("day(at)"))]
    assert keys == ["1969-12-31", "1970-01-01"]


TRANSFORMS = [
    "year(at)", "month(at)", "day(at)", "hour(at)", "year(d)", "month(d)", "day(d)",
    "bucket(3, n)", "bucket(3, c)", "bucket(3, d)", "bucket(3, at)",
    "truncate(3, n)", "truncate(2, c)",
]  # fmt: skip


@pytest.mark.parametrize("text", TRANSFORMS)
def test_what_is_taken_of_a_value_is_what_iceberg_takes(text: str) -> None:
    """Value by value, by PyIceberg's own function; also before 1970, below 0 and for NULL."""
    (field,) = fields(text)
    first = datetime.datetime(1969, 12, 31, 22, 59, 59, 999_999, tzinfo=datetime.UTC)
    moments = [first + n * datetime.timedelta(minutes=61, days=n % 3 * 17) for n in range(60)]
    texts = ["", "a", "äöü€", "𝄞𝄞𝄞", "abc\0d"]
    rows: list[dict[str, Any]] = [
        {"n": n - 30, "c": texts[n % 5], "d": at.date(), "at": at} for n, at in enumerate(moments)
    ]
    rows.append({"n": None, "c": None, "d": None, "at": None})
    kind: Any = {"n": LongType(), "c": StringType(), "d": DateType(), "at": TimestamptzType()}
    taken = parse_transform(field.iceberg).transform(kind[field.column])
    found = {
        row["n"]: as_stored(key[0])
        for key, part in divided(batch_of(rows), (field,))
        for row in part.to_pylist()
    }
    assert found == {row["n"]: taken(row[field.column]) for row in rows}
    assert len(set(found.values())) > 2


def test_fields_are_told_as_they_are_written() -> None:
    for text in [*TRANSFORMS, "c"]:
        (field,) = fields(text.replace(", ", ",  "))
        assert str(field) == text
        assert as_told(field.iceberg, field.column) == text
    assert as_told("void", "c") == "void(c)"


def test_values_survive_json() -> None:
    key = ("x", None, 5, True, NOON.date())
    assert from_json(to_json(key)) == key
    assert [as_text(one) for one in key] == ["x", None, "5", "true", "2013-01-31"]


def test_columns_that_make_no_partitions_are_named() -> None:
    check_columns(fields("c", "d", "n", *TRANSFORMS), COLUMNS)
    with pytest.raises(PipelineError) as refused:
        check_columns(fields("at", "day(n)", "z", "hour(d)", "truncate(2, at)"), COLUMNS)
    for told in (
        "at is not possible for timestamp", "day(n) is not", "column z does not exist",
        "hour(d) is not", "truncate(2, at) is not",
    ):  # fmt: skip
        assert told in str(refused.value)
    for text in ("days(at)", "bucket(at)", "bucket(-1, n)", "bucket(4, n", "day()", "day(day(at))"):
        with pytest.raises(ValueError, match="is not a column, nor year"):
            parse_field(text)
    for text in ("bucket(0, n)", "truncate(2147483648, c)"):
        with pytest.raises(ValueError, match="is not between 1 and 2147483647"):
            parse_field(text)


def reports_of(folder: Path, batches: list[pa.RecordBatch], *by: str, **more: Any) -> list[Any]:
    spec = WriteSpec(
        "job-0123456789ab-0", str(folder), str(folder), "t", {}, only=ROWS,
        partition_by=fields(*by), **more,
    )  # fmt: skip
    return [row for found in write_batches(iter(batches), spec) for row in found.to_pylist()]


def test_task_writes_a_file_for_each_partition(tmp_path: Path) -> None:
    reports = reports_of(tmp_path, [batch_of(), batch_of()], "c")
    assert len(reports) == len(list(tmp_path.iterdir())) == 5
    assert sum(report["rows"] for report in reports) == 2 * len(VALUES)
    for report in reports:
        assert len(set(pq.read_table(report["path"])["c"].to_pylist())) == 1


def test_task_of_many_partitions_has_few_files_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A partition whose file was finished gets another one."""
    monkeypatch.setattr(writing, "OPEN_MAX", 2)
    monkeypatch.setattr(writing, "HELD_BYTES", 0)
    monkeypatch.setattr(writing, "GATHERED_ROWS", 1)
    reports = reports_of(tmp_path, [batch_of(), batch_of()], "c")
    assert len(reports) > 5
    assert sum(report["rows"] for report in reports) == 2 * len(VALUES)


def test_rows_go_on_in_another_file_where_one_is_large(tmp_path: Path) -> None:
    big = pa.record_batch({"x": [bytes([n % 251]) * 9 + n.to_bytes(4) for n in range(140_000)]})
    reports = reports_of(tmp_path, [big] * 3, file_bytes=1 << 10)
    assert [report["rows"] for report in reports] == [140_000] * 3


def test_task_that_fails_leaves_no_file_of_any_partition(tmp_path: Path) -> None:
    def broken() -> Any:
        yield batch_of()
        raise RuntimeError("as a source that dies")

    with pytest.raises(RuntimeError):
        reports_of(tmp_path, broken(), "c")
    assert list(tmp_path.iterdir()) == []


def table_of(kind: str, folder: Path, *by: str) -> Any:
    path = str(folder / "t")
    catalog = local_catalog(path) if kind == "iceberg" else {}
    found = open_place(Place(kind, path, {}, catalog, "default.t", fields(*by)), "job")
    found.open(TOPICS)
    return found


def iceberg_at(folder: Path) -> Any:
    """Return the table that `table_of` has created there, as others see it."""
    settings = local_catalog(str(folder / "t"))
    return load_catalog(settings.pop("name"), **settings).load_table("default.t")


def commit(
    table: Any, number: int, by: tuple[str, ...], rows: Any = None,
    change: Callable[[Any], Any] = lambda key: key,
) -> None:  # fmt: skip
    """Commit a batch; `change` is applied to the partition values that its writer reports."""
    batch = batch_of() if rows is None else batch_of(rows)
    folder = Path(table.staging("r"))
    spec = WriteSpec(
        f"job-0123456789ab-{number}", str(folder), str(folder), "t", {}, only=ROWS,
        partition_by=fields(*by),
    )  # fmt: skip
    reports = [r for found in write_batches(iter([batch]), spec) for r in found.to_pylist()]
    files = tuple(
        DataFile(
            r["path"], r["rows"], r["bytes"], (), writing.json.loads(r["stats"]),
            change(from_json(writing.json.loads(r["partition"]))),
        )
        for r in reports
    )  # fmt: skip
    start, end = at(number, 0), at(number + 1, 0)
    lines = schema_lines(COLUMNS)
    count = batch.num_rows
    table.commit(Commit("job", "r", number, start, end, count, 0, files, lines), COLUMNS)


@pytest.mark.parametrize("by", [("c",), ("d", "c"), ("n",)])
def test_delta_table_in_partitions_has_the_same_rows(tmp_path: Path, by: tuple[str, ...]) -> None:
    """Readers use the log's values; a filter on one finds its files only."""
    commit(table_of("delta", tmp_path, *by), 0, by)
    again = table_of("delta", tmp_path, *by)
    commit(again, 1, by)
    found = DeltaTable(str(tmp_path / "t"))
    assert found.metadata().partition_columns == list(by)
    rows = found.to_pyarrow_table().select(COLUMNS.names).sort_by("n").to_pylist()
    assert rows == [row for row in ROWS_MADE for _ in range(2)]
    if by == ("c",):
        some = found.to_pyarrow_table(filters=[("c", "=", "a/b=c %20ü")])
        assert some["n"].to_pylist() == [2, 2]
        assert len(found.file_uris(file_pruning_predicate="c = 'x'")) == 2
    assert again.compact(BYTES_TARGET).after == len({tuple(r[c] for c in by) for r in ROWS_MADE})
    old = time.time() - 200 * 3600
    for path in (tmp_path / "t").rglob("*.parquet"):
        os.utime(path, (old, old))
    again.vacuum(168)  # removes no live file, however its partition is named
    rows = DeltaTable(str(tmp_path / "t")).to_pyarrow_table().sort_by("n")["c"].to_pylist()
    assert rows == [value for value in VALUES for _ in range(2)]


ICEBERG_BY = [("c",), ("d", "c"), ("n",), ("bucket(3, n)", "truncate(1, c)", "month(at)")]


@pytest.mark.parametrize("by", [*ICEBERG_BY, *((text,) for text in TRANSFORMS)])
def test_iceberg_table_in_partitions_has_the_same_rows(tmp_path: Path, by: tuple[str, ...]) -> None:
    commit(table_of("iceberg", tmp_path, *by), 0, by)
    again = table_of("iceberg", tmp_path, *by)
    commit(again, 1, by)
    found = iceberg_at(tmp_path)
    assert found.scan().to_arrow().sort_by("n").to_pylist() == [
        row for row in ROWS_MADE for _ in range(2)
    ]
    if by == ("c",):
        assert len(list(found.scan("c = 'x'").plan_files())) == 2
        assert sorted(found.scan("c is null").to_arrow()["n"].to_pylist()) == [1, 1, 5, 5]
    if by == ("day(at)",):
        some = found.scan("at >= '2013-02-02T00:00:00+00:00'")
        assert len(list(some.plan_files())) == 2
        assert sorted(some.to_arrow()["n"].to_pylist()) == [2, 2, 5, 5]
    # Readers know the bucket of a value.
    assert sorted(found.scan("n == 3").to_arrow()["n"].to_pylist()) == [3, 3]
    if by == ("bucket(3, n)",):
        assert len(list(found.scan("n == 3").plan_files())) == 2
    if by == ("truncate(2, c)",):
        assert len(list(found.scan("c == 'a/b=c %20ü'").plan_files())) == 2
    done = again.compact(BYTES_TARGET)
    assert done.before == 2 * done.after
    found.refresh()
    assert sorted(found.scan().to_arrow()["n"].to_pylist()) == sorted([*range(8)] * 2)
    assert len(list(found.scan().plan_files())) == done.after


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_table_in_other_partitions_is_refused(tmp_path: Path, kind: str) -> None:
    commit(table_of(kind, tmp_path, "c"), 0, ("c",))
    for by, told in (((), "by c$"), (("n",), "by c, and not by n")):
        other = table_of(kind, tmp_path, *by)
        with pytest.raises((DeltaRefused, IcebergRefused), match=f"it is partitioned {told}"):
            commit(other, 1, by)
    commit(table_of(kind, tmp_path, "c"), 1, ("c",))


def test_empty_text_of_a_delta_partition_is_refused(tmp_path: Path) -> None:
    """Delta's log has no other form for NULL."""
    with pytest.raises(DeltaRefused, match="its partition column c is an empty string"):
        commit(table_of("delta", tmp_path, "c"), 0, ("c",), [{**ROWS_MADE[0], "c": ""}])


def test_long_text_of_an_iceberg_partition_is_not_taken_for_null(tmp_path: Path) -> None:
    """A file's statistics leave it out."""
    long = [{**ROWS_MADE[0], "c": "x" * 9000}]
    with pytest.raises(PipelineError, match="a value may be too long"):
        commit(table_of("iceberg", tmp_path, "c"), 0, ("c",), long)
    commit(table_of("iceberg", tmp_path / "other", "truncate(2, c)"), 0, ("truncate(2, c)",), long)
    (file,) = iceberg_at(tmp_path / "other").scan("c > 'x'").plan_files()
    assert file.file.partition[0] == "xx"


def test_file_of_another_partition_than_its_writer_says_is_refused(tmp_path: Path) -> None:
    table = table_of("iceberg", tmp_path, "day(at)", "bucket(4, n)")
    commit(table, 0, ("day(at)", "bucket(4, n)"))
    with pytest.raises(PipelineError, match="its statistics say"):
        commit(table, 1, ("day(at)", "bucket(4, n)"), change=lambda key: (key[0] + DAY, key[1]))


@pytest.mark.parametrize(
    ("kind", "by", "problem"),
    [
        ("parquet", '["year"]', "only for delta and iceberg"),
        ("delta", '["day(at)"]', "are only for iceberg"),
        ("delta", '["bucket(4, a)"]', "are only for iceberg"),
        ("iceberg", '["a", "day(a)"]', "lists a column twice"),
        ("iceberg", '["days(a)"]', "is not a column, nor year"),
    ],
)
def test_job_file_with_partitions_that_cannot_be_is_refused(
    tmp_path: Path, kind: str, by: str, problem: str
) -> None:
    text = GOOD.replace('"out"', f'"out"\nkind = "{kind}"\npartition_by = {by}')
    with pytest.raises(JobInvalid, match=problem):
        load_job(write(tmp_path, text))
