"""Tables in an object store, a real S3 server on this machine: no folder, rename or lock."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("moto", reason="needs the `spark` extra")
pytest.importorskip("pyiceberg", reason="needs the `spark` extra")

import pyarrow as pa
import pyarrow.parquet as pq

from tests.pipeline.objects import Gate, make_bucket, object_server
from tests.pipeline.test_job_file import GOOD, write
from tests.pipeline.test_tables import COLUMNS, TOPICS, at
from vdl.pipeline.catalog_settings import local_catalog
from vdl.pipeline.compaction import BYTES_TARGET
from vdl.pipeline.dead_letters import offsets_within
from vdl.pipeline.errors import CommitConflict, JobInvalid, PipelineError
from vdl.pipeline.files import DEAD, ROWS, WriteSpec, write_batches
from vdl.pipeline.job import load_job
from vdl.pipeline.open_table import open_place, storage_settings
from vdl.pipeline.positions import OffsetRange, Positions
from vdl.pipeline.preflight import check_folders
from vdl.pipeline.storage import resolved_settings, storage_of
from vdl.pipeline.table import Commit, DataFile, Place, TableSink
from vdl.pipeline.table_columns import schema_lines

KINDS = pytest.mark.parametrize("kind", ["delta", "iceberg"])
URL = "s3://lake/tables/t"
FEW = 190


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """Address of an S3 server."""
    with object_server() as address:
        yield address


@pytest.fixture
def store(server: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The store's settings, also in the environment; the bucket is new."""
    for name, value in {
        "AWS_ENDPOINT_URL": server, "AWS_ACCESS_KEY_ID": "me", "AWS_SECRET_ACCESS_KEY": "word",
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    settings = resolved_settings(URL, {})
    make_bucket(server, "lake")
    return settings


def table_of(kind: str, store: dict[str, str], folder: Path, url: str = URL) -> Any:
    catalog = local_catalog(str(folder / "t")) if kind == "iceberg" else {}
    return open_place(Place(kind, url, store, catalog, "default.t"), "job")


def staged(table: TableSink, store: dict[str, str], run: str, first: int, end: int) -> Any:
    """Return a file as a task writes it, with its report."""
    folder = table.staging(run)
    spec = WriteSpec(f"job-{run}-{first}", folder, folder, "t", {}, only=ROWS, storage=store)
    numbers = list(range(first, end))
    batch = pa.record_batch([numbers, [0] * len(numbers), numbers], schema=COLUMNS)
    (reports,) = write_batches(iter([batch]), spec)
    (report,) = reports.to_pylist()
    span = OffsetRange("t", 0, first, end)
    return DataFile(report["path"], report["rows"], report["bytes"], (span,))


def commit(
    table: TableSink, store: dict[str, str], run: str, start: Positions, end: Positions
) -> None:
    low, high = start.offset("t", 0) or 0, end.offset("t", 0) or 0
    file = staged(table, store, run, low, high)
    lines = schema_lines(COLUMNS)
    table.commit(Commit("job", run, 0, start, end, high - low, 0, (file,), lines), COLUMNS)


def rows_of(table: TableSink, store: dict[str, str]) -> list[int]:
    storage = storage_of(URL, store)
    return sorted(n for p in table.files() for n in pq.read_table(storage.open(p))["n"].to_pylist())


RUNS = [f"{n:012x}" for n in range(9)]


@KINDS
def test_table_in_a_store_says_where_it_ends_and_refuses_late_runs(
    tmp_path: Path, store: dict[str, str], kind: str
) -> None:
    table = table_of(kind, store, tmp_path)
    assert not table.open(TOPICS)
    commit(table, store, RUNS[0], at(0, 0), at(5, 0))
    commit(table, store, RUNS[0], at(5, 0), at(7, 0))
    zombie, heir = (table_of(kind, store, tmp_path) for _ in range(2))
    for run in (zombie, heir):
        assert run.open(TOPICS) == at(7, 0)
    commit(heir, store, RUNS[1], at(7, 0), at(9, 0))
    with pytest.raises(CommitConflict, match=r"the job is at batch 3, (expected|not) 2"):
        commit(zombie, store, RUNS[2], at(7, 0), at(8, 0))
    again = table_of(kind, store, tmp_path)
    assert again.open(TOPICS) == at(9, 0)
    assert again.account().rows == 9
    assert rows_of(again, store) == list(range(9))
    assert not [path for path in tmp_path.rglob("*") if path.suffix != ".db"]


def test_version_of_delta_that_two_write_at_once_is_of_one(
    tmp_path: Path, store: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both have checked before either wrote: the store refuses the second PUT."""
    one, other = (table_of("delta", store, tmp_path) for _ in range(2))
    one.open(TOPICS)
    commit(one, store, RUNS[0], at(0, 0), at(5, 0))
    other.open(TOPICS)
    write_rows = type(one)._write

    def late(sink: Any, *arguments: Any) -> None:
        monkeypatch.setattr(type(one), "_write", write_rows)
        commit(other, store, RUNS[1], at(5, 0), at(8, 0))
        write_rows(sink, *arguments)

    monkeypatch.setattr(type(one), "_write", late)
    with pytest.raises(CommitConflict, match="the job is at batch 2, expected 1"):
        commit(one, store, RUNS[2], at(5, 0), at(7, 0))
    again = table_of("delta", store, tmp_path)
    assert again.open(TOPICS) == at(8, 0)
    assert rows_of(again, store) == list(range(8))


@pytest.mark.parametrize("times", [1, 30])
def test_delta_commit_whose_answer_is_lost_is_in_the_table_once(
    tmp_path: Path, store: dict[str, str], times: int
) -> None:
    """The commit that creates the table, one of rows, and one that merges rows.

    The client repeats a request without an answer, and the store refuses the second one, because
    the first was done: that is not another run's commit. If no answer comes at all, the client
    gives up.
    """
    with Gate(store["endpoint"], r"_delta_log/\d+\.json") as gate:
        through = {**store, "endpoint": gate.address}
        table = table_of("delta", through, tmp_path)
        table.open(TOPICS)
        for n in range(3):
            gate.lose(times)
            commit(table, through, RUNS[0], at(2 * n, 0), at(2 * n + 2, 0))
            assert times > 1 or not gate.left()
        gate.lose(0)
        assert table.sequence == 3
    again = table_of("delta", store, tmp_path)
    assert again.open(TOPICS) == at(6, 0)
    assert rows_of(again, store) == list(range(6))


@KINDS
def test_table_in_a_store_is_compacted(tmp_path: Path, store: dict[str, str], kind: str) -> None:
    table = table_of(kind, store, tmp_path)
    table.open(TOPICS)
    for n in range(4):
        commit(table, store, RUNS[n], at(2 * n, 0), at(2 * n + 2, 0))
    done = table.compact(BYTES_TARGET)
    assert (done.before, done.after) == (4, 1)
    assert table.vacuum(168).removed == 0
    commit(table, store, RUNS[5], at(8, 0), at(9, 0))
    again = table_of(kind, store, tmp_path)
    assert again.open(TOPICS) == at(9, 0)
    assert len(again.files()) == 2
    assert rows_of(again, store) == list(range(9))


@pytest.mark.parametrize(("made", "later"), [("s3", "s3a"), ("s3a", "s3"), ("s3", "S3")])
@KINDS
def test_vacuum_keeps_live_files_when_the_job_names_the_store_otherwise(
    tmp_path: Path,
    store: dict[str, str],
    kind: str,
    made: str,
    later: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`s3://` and `s3a://` are one place. What nothing names is removed all the same."""
    from vdl.pipeline import iceberg_table

    for n, scheme in enumerate((made, made, later, later)):
        table = table_of(kind, store, tmp_path, URL.replace("s3", scheme, 1))
        table.open(TOPICS)
        commit(table, store, RUNS[n], at(2 * n, 0), at(2 * n + 2, 0))
    orphan = staged(table, store, RUNS[5], 8, 9).path
    now = time.time() + 15 * 24 * 3600
    monkeypatch.setattr(iceberg_table.time, "time", lambda: now)
    removed = table.vacuum(168).removed
    again = table_of(kind, store, tmp_path, URL.replace("s3", later, 1))
    assert again.open(TOPICS) == at(8, 0)
    assert rows_of(again, store) == list(range(8))
    if kind == "iceberg":
        assert removed
        assert storage_of(URL, store).size(orphan) is None
    commit(again, store, RUNS[6], at(8, 0), at(9, 0))
    assert rows_of(again, store) == list(range(9))


@KINDS
def test_table_in_a_store_is_read_by_its_own_library(
    tmp_path: Path, store: dict[str, str], kind: str
) -> None:
    """The table is opened by URL, with the settings in the environment."""
    commit(opened := table_of(kind, store, tmp_path), store, RUNS[0], opened.open(TOPICS), at(5, 0))
    if kind == "delta":
        from deltalake import DeltaTable

        found = DeltaTable(URL, storage_options={"AWS_ALLOW_HTTP": "true"}).to_pyarrow_table()
    else:
        from pyiceberg.catalog import load_catalog

        settings = {"s3.endpoint": store["endpoint"], "s3.region": "us-east-1"}
        settings |= local_catalog(str(tmp_path / "t"))
        found = load_catalog(settings.pop("name"), **settings).load_table("default.t").scan()
        found = found.to_arrow()
    assert sorted(found["n"].to_pylist()) == list(range(5))


def test_dead_letters_in_a_store_are_looked_up(tmp_path: Path, store: dict[str, str]) -> None:
    del tmp_path
    storage = storage_of(URL, store)
    rows = pa.table({"topic": ["t", "t"], "partition": [0, 0], "offset": [3, 9]})
    for name in ("a", "b"):
        with storage.create(f"{URL}/{name}.parquet") as file:
            pq.write_table(rows, file)
    paths = [one.path for one in storage.entries(URL)]
    assert paths == [f"{URL}/a.parquet", f"{URL}/b.parquet"]
    found = offsets_within(paths, [OffsetRange("t", 0, 0, 5)], storage)
    assert found == {"t/0": frozenset({3})}


def test_task_that_fails_leaves_no_object(store: dict[str, str]) -> None:
    spec = WriteSpec("p", URL, URL, "t", {}, only=ROWS, storage=store)
    batch = pa.record_batch([[1], [0], [1]], schema=COLUMNS)

    def broken() -> Iterator[pa.RecordBatch]:
        yield batch
        raise RuntimeError("as a source that dies")

    with pytest.raises(RuntimeError):
        list(write_batches(broken(), spec))
    storage = storage_of(URL, store)
    assert storage.entries(URL) == []
    assert storage.size(f"{URL}/nothing") is None
    storage.remove(f"{URL}/nothing")
    with pytest.raises(FileNotFoundError):
        storage.get(f"{URL}/nothing")
    assert DEAD != ROWS


STORED = GOOD.replace('path = "out"', 'path = "s3://lake/t"\nkind = "delta"')


def test_job_file_of_a_store_has_its_settings_and_no_secrets(
    tmp_path: Path, store: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    job = load_job(write(tmp_path, STORED))
    assert (job.sink.path, job.errors.path) == ("s3://lake/t", "s3://lake/t-dead")
    assert job.checkpoint == str(tmp_path / "flights-checkpoint")
    assert storage_settings(job) == store
    check_folders(job)
    monkeypatch.setenv("KEY", "other")
    text = STORED + '[sink.storage]\nregion = "eu"\nsecret_access_key = "env:KEY"\n'
    told = storage_settings(load_job(write(tmp_path, text)))
    assert (told["region"], told["secret_access_key"]) == ("eu", "other")
    with pytest.raises(JobInvalid, match="secret_access_key: a job file must not contain secrets"):
        load_job(write(tmp_path, text.replace("env:KEY", "word")))
    with pytest.raises(JobInvalid, match="bucket: unknown setting"):
        load_job(write(tmp_path, STORED + '[sink.storage]\nbucket = "b"\n'))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (STORED.replace("delta", "parquet"), "s3:// is only for delta and iceberg"),
        (STORED.replace("s3:", "ftp:"), "ftp:// is unknown"),
        (STORED.replace("delta", "iceberg"), "sink.catalog: is required"),
        (STORED + '[window]\ntime = "t"\nsize = "1 hour"\nlate = "1 hour"\n[window.values]\n'
         'n = "count(*)"\n', "window: requires a folder"),
        (GOOD + '[sink.storage]\nregion = "x"\n', "sink.storage: only for a path in an object"),
    ],
)  # fmt: skip
def test_job_file_that_a_store_cannot_do_is_refused(
    tmp_path: Path, text: str, problem: str
) -> None:
    with pytest.raises(JobInvalid, match=problem):
        load_job(write(tmp_path, text))


def test_store_that_has_no_such_bucket_is_told_before_spark_starts(
    tmp_path: Path, store: dict[str, str]
) -> None:
    del store
    job = load_job(write(tmp_path, STORED.replace("s3://lake", "s3://nowhere")))
    with pytest.raises(PipelineError, match="nowhere/t: cannot be written to"):
        check_folders(job)


@pytest.mark.takes_turns(parts=2)
@pytest.mark.spark
@KINDS
def test_job_into_a_store_has_every_record_once(
    spark: Any, bootstrap: str, tmp_path: Path, store: dict[str, str], kind: str
) -> None:
    """Executors write and `verify` reads without Hadoop's jars; a second run adds nothing."""
    from tests.pipeline.test_reading import create
    from tests.pipeline.test_spark import BROKEN, JOB, fill, run_once
    from vdl.pipeline.dead_letters import read_letters
    from vdl.pipeline.verify import verify

    del store
    topic = f"stored-{kind}"
    create(bootstrap, topic)
    fill(bootstrap, topic, 0, FEW)
    text = JOB.format(
        name=f"stored-{kind}", bootstrap=bootstrap, topic=topic, sink=kind, share=0.5
    ).replace(f'path = "stored-{kind}"', f'path = "s3://lake/{kind}"')
    text = text.replace("max_rows = 250", "max_rows = 100")
    uri = local_catalog(str(tmp_path / "t"))["uri"]
    catalog = f'[sink.catalog]\ntype = "sql"\nuri = "{uri}"\n' if kind == "iceberg" else ""
    job = load_job(write(tmp_path, text + catalog))
    totals = run_once(job, spark)
    assert (totals.rows, totals.dead) == (FEW, len(BROKEN))
    assert run_once(job, spark).rows == 0
    assert len(list(read_letters(job))) == len(BROKEN)
    verdict = verify(job, spark)
    assert verdict.is_good, verdict
    assert (verdict.rows, verdict.dead) == (FEW, len(BROKEN))
    assert not verdict.is_by_counts
