"""Compaction: few files and the same rows, with concurrent readers, writers and kills."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="needs the `spark` extra")
pytest.importorskip("deltalake", reason="needs the `spark` extra")
pytest.importorskip("pyiceberg", reason="needs the `spark` extra")

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq

from tests.pipeline.test_job_file import GOOD
from tests.pipeline.test_tables import COLUMNS, TOPICS, at, batch, of_job, rows_of, seen
from vdl.commands.app import run_app
from vdl.pipeline import parquet_table, table
from vdl.pipeline.compaction import BYTES_TARGET, Compacted, Rewrite, Source, rewrite
from vdl.pipeline.errors import PipelineError
from vdl.pipeline.open_table import open_table

PART = 4


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "PART_COMMITS", PART)
    monkeypatch.setattr(parquet_table, "PART_COMMITS", PART)


def grown(folder: Path, commits: int, *, kind: str = "parquet", first: int = 0) -> Any:
    """Return a table of commits of two rows each."""
    found: Any = open_table(kind, str(folder), "job")
    found.open(TOPICS)
    for n in range(first, first + commits):
        found.commit(batch(found, f"run-{n}", at(2 * n, 0), at(2 * n + 2, 0), n), COLUMNS)
    return found


def again(folder: Path, kind: str = "parquet") -> Any:
    found: Any = open_table(kind, str(folder), "job")
    found.open(TOPICS)
    return found


@pytest.mark.parametrize("kind", ["parquet", "delta", "iceberg"])
def test_compaction_leaves_few_files_and_all_rows(tmp_path: Path, kind: str) -> None:
    """The running job continues with the table it had opened, and so does the next run."""
    job = grown(tmp_path / "t", 10, kind=kind)
    done = again(tmp_path / "t", kind).compact(BYTES_TARGET)
    assert done == Compacted(before=8, after=2) if kind == "parquet" else done.after == 1
    assert rows_of(job) == list(range(20))
    job.commit(batch(job, "late", at(20, 0), at(22, 0), 10), COLUMNS)
    after = again(tmp_path / "t", kind)
    assert rows_of(after) == list(range(22))
    assert len(after.files()) == (5 if kind == "parquet" else 2)
    assert after.open(TOPICS) == at(22, 0)
    if kind == "parquet":
        assert seen(tmp_path / "t") == list(range(22))
        assert after.compact(BYTES_TARGET) == Compacted()


@pytest.mark.parametrize("where", ["rewritten", "linked", "exchanged"])
def test_compaction_of_parquet_that_is_killed_shows_old_files_or_new_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """A reader that lists the folder sees each row once; the next open finishes the compaction."""
    grown(tmp_path / "t", PART)

    def die(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as killed:
        if where == "rewritten":
            killed.setattr(os, "link", die)
        elif where == "linked":
            killed.setattr(parquet_table, "exchange", die)
        else:
            killed.setattr(shutil, "rmtree", die)
        with pytest.raises(KeyboardInterrupt):
            again(tmp_path / "t").compact(BYTES_TARGET)
    assert seen(tmp_path / "t") == list(range(2 * PART))
    after = again(tmp_path / "t")
    assert rows_of(after) == seen(tmp_path / "t") == list(range(2 * PART))
    after.compact(BYTES_TARGET)
    assert len(after.files()) == 1
    assert rows_of(after) == seen(tmp_path / "t") == list(range(2 * PART))
    after.vacuum(0)
    left = list((tmp_path / "t/_vdl/compacting").glob("*"))
    assert left == []
    assert rows_of(again(tmp_path / "t")) == list(range(2 * PART))


def test_compaction_of_two_at_a_time_lets_one_do_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    grown(tmp_path / "t", PART)
    link = os.link

    def slow(source: Path, target: Path) -> None:
        monkeypatch.setattr(os, "link", link)
        again(tmp_path / "t").compact(BYTES_TARGET)
        link(source, target)

    monkeypatch.setattr(os, "link", slow)
    with pytest.raises(PipelineError, match="another process is compacting it"):
        again(tmp_path / "t").compact(BYTES_TARGET)
    assert rows_of(again(tmp_path / "t")) == seen(tmp_path / "t") == list(range(2 * PART))


def test_vacuum_of_delta_keeps_what_a_run_has_written_and_readers_may_need(tmp_path: Path) -> None:
    """No commit names the files of a batch in progress, nor obsolete files."""
    job = grown(tmp_path / "t", 5, kind="delta")
    under_way = batch(job, "under-way", at(10, 0), at(12, 0), 5)
    before = deltalake.DeltaTable(str(tmp_path / "t"))
    janitor = again(tmp_path / "t", "delta")
    janitor.compact(BYTES_TARGET)
    assert janitor.vacuum(168) == Compacted()
    assert sorted(before.to_pyarrow_table()["n"].to_pylist()) == list(range(10))
    job.commit(under_way, COLUMNS)
    assert rows_of(again(tmp_path / "t", "delta")) == list(range(12))
    with pytest.raises(PipelineError, match="retention"):
        janitor.vacuum(0)


def test_vacuum_of_delta_removes_files_of_killed_runs(tmp_path: Path) -> None:
    """Files that no commit names go when they are old, and the job's state stays."""
    folder = tmp_path / "t"
    job = grown(folder, 5, kind="delta")
    batch(job, "killed", at(10, 0), at(12, 0), 5)
    old = time.time() - 200 * 3600
    for path in folder.rglob("*"):
        os.utime(path, (old, old))
    under_way = batch(job, "under-way", at(10, 0), at(12, 0), 6)
    files = len(list(folder.rglob("*.parquet")))
    assert again(folder, "delta").vacuum(168) == Compacted(removed=1)
    assert len(list(folder.rglob("*.parquet"))) == files - 1
    job.commit(under_way, COLUMNS)
    after = again(folder, "delta")
    assert rows_of(after) == list(range(12))
    assert after.open(TOPICS) == at(12, 0)


def test_compaction_of_a_delta_table_of_two_jobs_is_refused(tmp_path: Path) -> None:
    for job in ("job", "other"):
        found = of_job(tmp_path / "t", job, "0123456789ab", f"{job}-0123456789ab-0", 0, 5)
    with pytest.raises(PipelineError, match="other jobs write to this table"):
        found.compact(BYTES_TARGET)


def test_command_compacts_the_rows_and_the_dead_letters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without Spark, also if there is no dead-letter table yet."""

    class Cluster:
        """Cluster with the methods that the command needs."""

        def __init__(self, options: object, **limits: float) -> None:
            del options, limits

        def ids(self) -> dict[str, tuple[str, int]]:
            return TOPICS

        def close(self) -> None:
            pass

    monkeypatch.setattr("vdl.pipeline.topics.Topics", Cluster)
    file = tmp_path / "job.toml"
    job = GOOD.replace('"flights"\n[source]', '"job"\n[source]').replace('["flights"]', '["t"]')
    file.write_text(job.replace('"out"', '"t"'), encoding="utf-8")
    grown(tmp_path / "t", 10)
    assert run_app(["pipeline", "compact", str(file)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"{tmp_path}/t: 8 files became 2, 0 removed",
        f"{tmp_path}/t-dead: 0 files became 0, 0 removed",
    ]
    assert seen(tmp_path / "t") == list(range(20))


def test_rewriting_keeps_columns_that_came_later_and_wider_types(tmp_path: Path) -> None:
    """The new files have about the requested size."""
    old = pa.table({"n": pa.array(range(5), pa.int32())})
    new = pa.table({"s": ["x" * 1000] * 2000, "n": pa.array(range(5, 2005), pa.int64())})
    for name, rows in (("old", old), ("new", new)):
        pq.write_table(rows, tmp_path / name)
    (tmp_path / "to").mkdir()
    sources = tuple(Source(str(tmp_path / name)) for name in ("old", "new"))
    files = rewrite(Rewrite(sources, str(tmp_path / "to"), "f", 1))
    assert sum(file.rows for file in files) == 2005
    found = pq.read_table(tmp_path / "to")
    assert found.schema == pa.schema([("n", pa.int64()), ("s", pa.string())])
    assert found["n"].to_pylist() == list(range(2005))
    assert found["s"].null_count == 5
