"""Iceberg tables: late commits are refused, other writers are tolerated, readers agree."""

from __future__ import annotations

import json
import os
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyiceberg", reason="needs the `spark` extra")
pytest.importorskip("duckdb", reason="needs the `spark` extra")

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.catalog import load_catalog
from pyiceberg.catalog.sql import SqlCatalogBaseTable
from pyiceberg.io.pyarrow import parquet_file_to_data_file
from pyiceberg.table import Table, Transaction
from pyiceberg.transforms import IdentityTransform
from sqlalchemy import event

from tests.pipeline.test_tables import COLUMNS, TOPICS, at, batch, rows_of, stage
from vdl.pipeline import iceberg_catalog, iceberg_table
from vdl.pipeline.catalog_settings import local_catalog, problems_of_catalog, resolved_catalog
from vdl.pipeline.compaction import BYTES_TARGET, Compacted, bins
from vdl.pipeline.errors import CommitConflict, PipelineError, SinkInconsistent
from vdl.pipeline.iceberg_rules import IcebergRefused
from vdl.pipeline.iceberg_table import IcebergSink
from vdl.pipeline.open_table import open_table
from vdl.pipeline.table import Commit, DataFile
from vdl.pipeline.table_columns import schema_lines

NAME = "0123456789ab-0"
"""Name of a runner's file, after the job's name."""


def sink(folder: Path, job: str = "job") -> IcebergSink:
    """Return an open sink."""
    found = open_table("iceberg", str(folder / "t"), job)
    assert isinstance(found, IcebergSink)
    found.open(TOPICS)
    return found


def catalog_of(folder: Path) -> Any:
    """Return the catalog of another writer that does not know of jobs."""
    settings = local_catalog(str(folder / "t"))
    return load_catalog(settings.pop("name"), **settings)


def loaded(folder: Path) -> Table:
    return catalog_of(folder).load_table("default.t")


def numbers(folder: Path) -> list[int]:
    """Return the numbers in the table as PyIceberg reads them."""
    return sorted(loaded(folder).scan().to_arrow()["n"].to_pylist())


def grown(folder: Path, commits: int, first: int = 0, job: str = "job") -> IcebergSink:
    """Return a table after commits of two rows each, in files with the job's name."""
    table = sink(folder, job)
    for n in range(first, first + commits):
        start, end = at(2 * n, 0), at(2 * n + 2, 0)
        files = (stage(table, f"{job}-{NAME}", f"{n}-0", 2 * n, 2 * n + 2),)
        table.commit(Commit(job, "r", n, start, end, 2, 0, files, schema_lines(COLUMNS)), COLUMNS)
    return table


def between(monkeypatch: pytest.MonkeyPatch, act: Callable[[], None]) -> None:
    """Call `act` just before the next commit reaches the catalog."""
    commit = Transaction.commit_transaction

    def late(transaction: Transaction) -> Table:
        monkeypatch.setattr(Transaction, "commit_transaction", commit)
        act()
        return commit(transaction)

    monkeypatch.setattr(Transaction, "commit_transaction", late)


def test_late_commit_of_another_run_is_refused_by_the_catalog(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It checked before the other one committed: only the snapshot's id shows the conflict."""
    zombie = grown(tmp_path, 1)
    heir = sink(tmp_path)
    between(monkeypatch, lambda: heir.commit(batch(heir, "heir", at(2, 0), at(6, 0)), COLUMNS))
    with pytest.raises(CommitConflict, match="the job is at batch 2, not 1"):
        zombie.commit(batch(zombie, "zombie", at(2, 0), at(5, 0)), COLUMNS)
    assert numbers(tmp_path) == rows_of(heir) == list(range(6))
    assert sink(tmp_path).open(TOPICS) == at(6, 0)
    metadata = {path.name for path in (tmp_path / "t/metadata").glob("*.avro")}
    named = {Path(one.manifest_list).name for one in loaded(tmp_path).metadata.snapshots}
    assert {name for name in metadata if name.startswith("snap-")} == named


def test_first_commits_of_two_runs_let_one_win(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither has seen a table."""
    one, other = sink(tmp_path), sink(tmp_path)
    between(monkeypatch, lambda: other.commit(batch(other, "b", at(0, 0), at(3, 0)), COLUMNS))
    with pytest.raises(CommitConflict):
        one.commit(batch(one, "a", at(0, 0), at(5, 0)), COLUMNS)
    assert numbers(tmp_path) == list(range(3))


def test_catalog_that_another_job_makes_at_the_same_moment_is_used(tmp_path: Path) -> None:
    """Both find no tables in its database, and the second one fails to create them."""
    metadata = SqlCatalogBaseTable.metadata
    settings = {"type": "sql", "uri": f"sqlite:///{tmp_path}/new.db", "name": "vdl"}

    is_first = [True]

    def meanwhile(*_: Any, **__: Any) -> None:
        if is_first:
            is_first.clear()
            iceberg_catalog.catalog_of(settings)

    event.listen(metadata, "before_create", meanwhile)
    try:
        assert iceberg_catalog.catalog_of(settings).list_namespaces() == []
    finally:
        event.remove(metadata, "before_create", meanwhile)
    assert not is_first
    with pytest.raises(PipelineError):
        iceberg_catalog.catalog_of(settings | {"uri": f"sqlite:///{tmp_path}/none/new.db"})


@pytest.mark.parametrize("what", ["append", "compaction", "another job"])
def test_commit_of_another_writer_is_not_in_the_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """The batch is committed on top of it, once; its snapshot is the child of the other's."""
    table = grown(tmp_path, 2)
    more = pa.table([[-1], [0], [0]], schema=COLUMNS)
    acts: dict[str, Callable[[], Any]] = {
        "append": lambda: loaded(tmp_path).append(more),
        "compaction": lambda: sink(tmp_path).compact(BYTES_TARGET),
        "another job": lambda: grown(tmp_path, 1, job="other"),
    }
    between(monkeypatch, lambda: acts[what]() and None)
    table.commit(batch(table, "a", at(4, 0), at(7, 0)), COLUMNS)
    extra = {"append": [-1], "compaction": [], "another job": [0, 1]}[what]
    assert numbers(tmp_path) == sorted(extra + list(range(7)))
    snapshots = loaded(tmp_path).metadata.snapshots
    parents = [one.parent_snapshot_id for one in snapshots]
    assert parents == [None, *(one.snapshot_id for one in snapshots[:-1])]
    assert sink(tmp_path).open(TOPICS) == at(7, 0)
    assert "commit.retry.num-retries" not in loaded(tmp_path).properties


def test_table_of_two_jobs_keeps_them_apart(tmp_path: Path) -> None:
    grown(tmp_path, 2)
    other = grown(tmp_path, 1, job="other")
    table = sink(tmp_path)
    assert table.open(TOPICS) == at(4, 0)
    assert rows_of(table) == list(range(4))
    assert rows_of(other) == [0, 1]
    assert table.unclear_files() == []
    loaded(tmp_path).append(pa.table([[7], [0], [7]], schema=COLUMNS))
    assert len(table.unclear_files()) == 1
    with pytest.raises(PipelineError, match="other jobs write to this table"):
        table.compact(BYTES_TARGET)


def test_snapshot_says_what_its_batch_was(tmp_path: Path) -> None:
    table = grown(tmp_path, 2)
    told = loaded(tmp_path).metadata.snapshots[-1].summary
    assert told is not None
    assert (told["vdl.job"], told["vdl.sequence"], told["vdl.rows"]) == ("job", "2", "2")
    assert [(note.start, note.end) for note in table.notes()] == [
        (at(0, 0), at(2, 0)), (at(2, 0), at(4, 0)),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        (pa.int32(), pa.int64(), ""),
        (pa.float32(), pa.float64(), ""),
        (pa.int8(), pa.int16(), ""),
        (pa.decimal128(9, 2), pa.decimal128(12, 2), ""),
        (pa.decimal128(9, 2), pa.decimal128(12, 3), "other digits behind the point"),
        (pa.int64(), pa.string(), "n is int64 in the table and string in the rows"),
        (pa.int64(), pa.int32(), "n is int64 in the table and int32 in the rows"),
    ],
)
def test_wider_types_are_taken_and_others_refused(
    tmp_path: Path, old: Any, new: Any, reason: str
) -> None:
    """A refused batch leaves nothing in the table."""
    table = sink(tmp_path)

    def commit(kind: Any, number: int) -> None:
        schema = pa.schema([("n", kind)])
        path = f"{table.staging('r')}/{number}.parquet"
        rows = pa.table([pa.array([number], pa.int8()).cast(kind)], schema=schema)
        pq.write_table(rows, path)
        file = DataFile(path, 1, Path(path).stat().st_size)
        start, end = at(number, 0), at(number + 1, 0)
        lines = schema_lines(schema)
        table.commit(Commit("job", "r", number, start, end, 1, 0, (file,), lines), schema)

    commit(old, 0)
    if not reason:
        commit(new, 1)
        assert [int(n) for n in numbers(tmp_path)] == [0, 1]
        return
    with pytest.raises(SinkInconsistent, match=reason):
        commit(new, 1)
    assert len(numbers(tmp_path)) == 1


def test_new_column_and_its_batch_come_in_one_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that is killed before it leaves the columns as they were."""
    table = grown(tmp_path, 1)
    wider = COLUMNS.append(pa.field("more", pa.list_(pa.struct([("x", pa.int32())]))))

    def die() -> None:
        raise KeyboardInterrupt

    between(monkeypatch, die)
    with pytest.raises(KeyboardInterrupt):
        table.commit(batch(table, "a", at(2, 0), at(3, 0), 0, wider), wider)
    assert sink(tmp_path).columns() == schema_lines(COLUMNS)
    again = sink(tmp_path)
    path = f"{again.staging('b')}/b.parquet"
    rows = pa.table([[2], [0], [2], [[{"x": 5}]]], schema=wider)
    pq.write_table(rows, path)
    file = DataFile(path, 1, Path(path).stat().st_size)
    lines = schema_lines(wider)
    again.commit(Commit("job", "b", 0, at(2, 0), at(3, 0), 1, 0, (file,), lines), wider)
    found = loaded(tmp_path).scan().to_arrow().sort_by("n").to_pylist()
    assert [row["more"] for row in found] == [None, None, [{"x": 5}]]


def test_table_that_asks_for_more_is_refused_by_name(tmp_path: Path) -> None:
    """Partitions would be NULL, and so would required columns."""
    catalog = catalog_of(tmp_path)
    catalog.create_namespace("default")
    strict = pa.schema([COLUMNS.field(0).with_nullable(False), *list(COLUMNS)[1:]])
    wanted = {"partitioned by n": COLUMNS, "version 3": COLUMNS, "n is required": strict}
    for reason, schema in wanted.items():
        made = catalog.create_table("default.t", schema, location=f"file://{tmp_path}/t")
        if "partitioned" in reason:
            with made.update_spec() as update:
                update.add_field("n", IdentityTransform(), "by_n")
        if "3" in reason:
            old = Path(made.metadata_location.removeprefix("file://"))
            told = json.loads(old.read_text(encoding="utf-8"))
            new = old.with_name("00001-3.metadata.json")
            new.write_text(json.dumps({**told, "format-version": 3, "next-row-id": 0}))
            catalog.drop_table("default.t")
            catalog.register_table("default.t", f"file://{new}")
        table = sink(tmp_path)
        commit = batch(table, "a", at(0, 0), at(5, 0))
        if reason == "n is required":
            rows = pa.table([[None] * 5, [0] * 5, list(range(5))], schema=COLUMNS)
            pq.write_table(rows, commit.files[0].path)
        with pytest.raises(IcebergRefused, match=reason):
            table.commit(commit, COLUMNS)
        assert loaded(tmp_path).current_snapshot() is None
        catalog.drop_table("default.t")


def test_metadata_is_on_the_disk_before_the_catalog_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, synced: set[str]
) -> None:
    """Otherwise a power cut leaves a table whose metadata file is empty."""
    between(monkeypatch, lambda: None)
    grown(tmp_path, 1)
    metadata = tmp_path / "t" / "metadata"
    written = {str(path) for path in metadata.iterdir()}
    assert len(written) == 4
    assert written | {str(metadata), str(tmp_path / "t" / "data"), str(tmp_path)} <= synced


def test_compaction_keeps_rows_and_leaves_files_to_readers(tmp_path: Path) -> None:
    grown(tmp_path, 6)
    reader = loaded(tmp_path)
    janitor = sink(tmp_path)
    assert janitor.compact(BYTES_TARGET) == Compacted(before=6, after=1)
    assert numbers(tmp_path) == rows_of(janitor) == list(range(12))
    assert janitor.compact(BYTES_TARGET) == Compacted()
    assert janitor.vacuum(24) == Compacted()
    assert sorted(reader.scan().to_arrow()["n"].to_pylist()) == list(range(12))
    with pytest.raises(PipelineError, match="retention of less than 24 hours"):
        janitor.vacuum(0)


def test_vacuum_removes_what_is_old_and_of_no_snapshot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Removes only this job's data files, and none of a batch in progress."""
    table = grown(tmp_path, 6)
    table.compact(BYTES_TARGET)
    folder = Path(table.staging("r"))
    for name in (f"job-{NAME}-killed.parquet", "of-others.parquet"):
        (folder / name).touch()
    later = time.time() + 48 * 3600
    for path in (tmp_path / "t").rglob("*"):
        os.utime(path, (later - 47 * 3600, later - 47 * 3600))
    monkeypatch.setattr(iceberg_table.time, "time", lambda: later)
    under_way = stage(table, f"job-{NAME}", "9-0", 12, 14)
    os.utime(under_way.path, (later, later))
    before = len(list((tmp_path / "t/metadata").glob("*.avro")))
    removed = table.vacuum(24).removed
    after = len(list((tmp_path / "t/metadata").glob("*.avro")))
    left = sorted(path.name for path in folder.iterdir())
    assert len(loaded(tmp_path).metadata.snapshots) == 1
    assert removed == 7 + before - after
    assert after < before
    assert len(left) == 3
    assert "of-others.parquet" in left
    assert Path(under_way.path).exists()
    assert numbers(tmp_path) == list(range(12))
    again = sink(tmp_path)
    again.commit(batch(again, "b", at(12, 0), at(14, 0)), COLUMNS)
    assert numbers(tmp_path) == list(range(14))


@pytest.mark.parametrize("form", ["{}", "file:{}", "file://{}", "hdfs://host{}", "file://host{}"])
def test_vacuum_removes_no_file_that_a_snapshot_needs_in_another_form(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    """Where it is not certain what a location names, vacuum removes nothing and says so."""
    table = grown(tmp_path, 2)
    kept = stage(table, f"job-{NAME}", "5-0", 4, 6)
    orphan = stage(table, f"job-{NAME}", "9-0", 6, 8)
    other = loaded(tmp_path)
    with other.transaction() as transaction, transaction.update_snapshot().fast_append() as append:
        metadata = transaction.table_metadata
        file = parquet_file_to_data_file(other.io, metadata, f"file://{kept.path}")
        file[1] = form.format(kept.path)  # the place of `file_path` in a manifest
        append.append_data_file(file)
    for path in (tmp_path / "t").rglob("*"):
        os.utime(path, (time.time(), time.time() - 25 * 3600))
    later = time.time() + 48 * 3600
    monkeypatch.setattr(iceberg_table.time, "time", lambda: later)
    if "host" in form:
        with pytest.raises(PipelineError, match=r"no file was removed: .*host"):
            sink(tmp_path).vacuum(24)
        assert Path(orphan.path).exists()
    else:
        assert sink(tmp_path).vacuum(24).removed
        assert not Path(orphan.path).exists()
    assert Path(kept.path).exists()


def test_catalog_that_is_locked_does_not_stop_a_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The failure of a compaction is reported like any other."""
    grown(tmp_path, 2)
    janitor = sink(tmp_path)
    with sqlite3.connect(tmp_path / "catalog.db", isolation_level=None) as other:
        other.execute("PRAGMA busy_timeout = 0")
        between(monkeypatch, lambda: other.execute("BEGIN EXCLUSIVE") and None)
        with pytest.raises(PipelineError, match="locked"):
            janitor.compact(BYTES_TARGET)
        other.execute("ROLLBACK")
    other.close()
    assert numbers(tmp_path) == list(range(4))
    assert janitor.compact(BYTES_TARGET).after == 1


def test_table_is_read_by_duckdb_and_pandas(tmp_path: Path) -> None:
    grown(tmp_path, 2)
    scan = loaded(tmp_path).scan()
    assert sorted(scan.to_pandas()["n"]) == list(range(4))
    found = scan.to_duckdb("t").sql("SELECT sum(n), count(*) FROM t").fetchall()
    assert found == [(6, 4)]


def test_rows_that_others_have_deleted_are_not_brought_back(tmp_path: Path) -> None:
    """Rows that PyIceberg deletes are gone from the files; others' delete files are refused."""
    table = grown(tmp_path, 2)
    loaded(tmp_path).delete("n = 1")
    table.commit(batch(table, "a", at(4, 0), at(6, 0)), COLUMNS)
    assert numbers(tmp_path) == [0, 2, 3, 4, 5]
    assert table.open(TOPICS) == at(6, 0)


def test_files_are_put_together_where_they_are_small() -> None:
    sizes = [10, 60, 30, 30, 50, 40, 40, 200, 5]
    found = bins([(size, size) for size in sizes], 100)
    assert found == [[10, 30, 30], [40, 40, 5]]


def test_secrets_of_a_catalog_are_places(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {"uri": "postgresql://me:word@host/db", "token": "abc", "warehouse": "file:///x"}
    assert len(problems_of_catalog(settings)) == 2
    monkeypatch.setenv("CATALOG", "postgresql://me:word@host/db")
    named = {"uri": "env:CATALOG", "warehouse": "file:///x"}
    assert problems_of_catalog(named) == []
    assert resolved_catalog(named) == {"uri": settings["uri"], "warehouse": "file:///x"}
