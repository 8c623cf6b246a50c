"""Iceberg tables in a real REST catalog: as in SQLite, also if responses are lost.

The server is Iceberg's own, from Maven Central, fetched once; without it the tests are skipped.
"""

from __future__ import annotations

import dataclasses
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("moto", reason="needs the `spark` extra")
pytest.importorskip("pyiceberg", reason="needs the `spark` extra")

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.catalog import load_catalog
from pyiceberg.table import Table

from tests.pipeline.committer import ROWS, commit_all
from tests.pipeline.live_rows import live_of
from tests.pipeline.objects import make_bucket, object_server
from tests.pipeline.rest_catalog import Gate, catalog_server
from tests.pipeline.test_iceberg import between
from tests.pipeline.test_job_file import GOOD, write
from tests.pipeline.test_tables import COLUMNS, TOPICS, at
from vdl.pipeline import iceberg_catalog, iceberg_table
from vdl.pipeline.compaction import BYTES_TARGET, Compacted
from vdl.pipeline.errors import CommitConflict, JobInvalid, PipelineError
from vdl.pipeline.iceberg_table import IcebergSink
from vdl.pipeline.job import load_job
from vdl.pipeline.open_table import open_place, rows_table, storage_settings
from vdl.pipeline.partitioning import PartitionField
from vdl.pipeline.positions import OffsetRange
from vdl.pipeline.storage import iceberg_options, resolved_settings, storage_of
from vdl.pipeline.table import OP, ROW, Commit, DataFile, Place
from vdl.pipeline.table_columns import schema_lines

ROOT = Path(__file__).resolve().parents[2]
RUN = "0123456789ab"
FEW = 190
KILL_SECONDS_MAX = 60


@pytest.fixture(scope="module")
def objects() -> Iterator[str]:
    """Address of an S3 server."""
    with object_server() as address:
        make_bucket(address, "lake")
        yield address


@pytest.fixture(scope="module")
def port(objects: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """Port of the catalog."""
    with catalog_server(tmp_path_factory.mktemp("rest"), objects) as found:
        yield found


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retry at once after a lost response."""
    monkeypatch.setattr(iceberg_table, "WAITS_SECONDS", (0.01,) * 5)


@pytest.fixture
def gate(port: int) -> Iterator[Gate]:
    with Gate(port) as found:
        yield found


class Lake:
    """Place of a table, in a namespace of the test's own."""

    def __init__(self, gate: Gate, path: str, name: str, store: dict[str, str]) -> None:
        self.path, self.name, self.store = path, name, store
        self.catalog = {"type": "rest", "uri": gate.address}
        self.fields: tuple[PartitionField, ...] = ()
        self.key: tuple[str, ...] = ()

    def sink(self) -> IcebergSink:
        """Return an open sink."""
        where = (self.path, self.store, self.catalog, self.name, self.fields, self.key)
        found = open_place(Place("iceberg", *where), "job")
        assert isinstance(found, IcebergSink)
        found.open(TOPICS)
        return found

    def loaded(self) -> Table:
        """Return the table as another writer sees it that does not know of jobs."""
        settings = {**self.catalog, **iceberg_options(self.store)}
        return load_catalog("other", **settings).load_table(self.name)

    def numbers(self) -> list[int]:
        """Return the numbers in the table as PyIceberg reads them."""
        return sorted(self.loaded().scan().to_arrow()["n"].to_pylist())

    def batch(
        self, table: IcebergSink, first: int, end: int, run: str = RUN, *, columns: Any = COLUMNS
    ) -> Commit:
        """Return a batch with a row for each offset of [first, end) of partition 0."""
        storage, path = storage_of(self.path, self.store), f"{table.staging(run)}/job-{run}-{first}"
        rows = [
            {"n": n, "_partition": 0, "_offset": n, OP: ROW, "more": n} for n in range(first, end)
        ]
        staged = columns.append(pa.field(OP, pa.string())) if self.key else columns
        with storage.create(f"{path}-0.parquet") as file:
            pq.write_table(pa.Table.from_pylist(rows, staged), file)
        spans = (OffsetRange("t", 0, first, end),)
        values = (0,) if self.fields else ()
        size = storage.finish(f"{path}-0.parquet")
        file = DataFile(f"{path}-0.parquet", end - first, size, spans, partition=values)
        lines, span = schema_lines(columns), (at(first, 0), at(end, 0))
        return Commit("job", run, 0, *span, end - first, 0, (file,), lines)

    def write(
        self, table: IcebergSink, first: int, end: int, run: str = RUN, *, columns: Any = COLUMNS
    ) -> None:
        table.commit(self.batch(table, first, end, run, columns=columns), columns)


@pytest.fixture
def lake(request: pytest.FixtureRequest, gate: Gate, tmp_path: Path) -> Lake:
    """Lake in a folder."""
    del request
    return Lake(gate, str(tmp_path / "t"), f"{tmp_path.name}.t", {})


@pytest.fixture(params=["folder", "store"])
def any_lake(
    request: pytest.FixtureRequest, lake: Lake, gate: Gate, objects: str, tmp_path: Path
) -> Lake:
    """Lake in a folder, or in an object store."""
    if request.param == "folder":
        return lake
    given = {"endpoint": objects, "access_key_id": "me", "secret_access_key": "word"}
    path = f"s3://lake/{tmp_path.name}/t"
    return Lake(gate, path, f"{tmp_path.name}.t", resolved_settings(path, given))


def test_table_says_where_it_ends_and_refuses_late_runs(any_lake: Lake) -> None:
    """Rows and offsets are committed together; the run that was assumed dead leaves nothing."""
    table = any_lake.sink()
    assert table.sequence == 0
    any_lake.write(table, 0, 5)
    any_lake.write(table, 5, 7)
    zombie, heir = any_lake.sink(), any_lake.sink()
    assert heir.sequence == zombie.sequence == 2
    late = any_lake.batch(zombie, 7, 8, "f" * 12)
    any_lake.write(heir, 7, 9)
    with pytest.raises(CommitConflict, match="the job is at batch 3, not 2"):
        zombie.commit(late, COLUMNS)
    again = any_lake.sink()
    assert again.open(TOPICS) == at(9, 0)
    assert [(note.start, note.rows) for note in again.notes()] == [
        (at(0, 0), 5), (at(5, 0), 2), (at(7, 0), 2),
    ]  # fmt: skip
    assert any_lake.numbers() == list(range(9))


def test_late_commit_of_another_run_is_refused_by_the_server(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It checked before the other one committed: only the snapshot's id shows the conflict."""
    zombie = lake.sink()
    lake.write(zombie, 0, 2)
    heir = lake.sink()
    between(monkeypatch, lambda: lake.write(heir, 2, 6))
    with pytest.raises(CommitConflict, match="the job is at batch 2, not 1"):
        lake.write(zombie, 2, 5, "f" * 12)
    assert lake.numbers() == list(range(6))
    assert lake.sink().open(TOPICS) == at(6, 0)


def test_commit_of_another_writer_is_not_in_the_way(
    any_lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = any_lake.sink()
    any_lake.write(table, 0, 4)
    more = pa.table([[-1], [0], [0]], schema=COLUMNS)
    between(monkeypatch, lambda: any_lake.loaded().append(more))
    any_lake.write(table, 4, 7)
    assert any_lake.numbers() == list(range(-1, 7))
    snapshots = any_lake.loaded().metadata.snapshots
    assert snapshots[2].parent_snapshot_id == snapshots[1].snapshot_id
    assert any_lake.sink().open(TOPICS) == at(7, 0)


def test_commit_whose_answer_is_lost_is_in_the_table_once(
    lake: Lake, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In each case the run checks the table and continues."""
    monkeypatch.setattr(iceberg_catalog, "TIMEOUTS_SECONDS", (5, 1))
    table = lake.sink()
    hows = ["cut", "cut before", "twice", "late", "hang", "500", "502", "503", "507", "200"]
    for n, how in enumerate(hows):
        gate.lose("", how) if n == 0 else gate.lose(how)
        lake.write(table, n, n + 1)
        assert lake.numbers() == list(range(n + 1)), how
    lake.write(table, 10, 11)
    # For each fault, for the table's creation, and one more if the first was not made or too late.
    assert gate.commits == len(hows) + 1 + 1 + 2
    assert lake.sink().open(TOPICS) == at(11, 0)
    snapshots = lake.loaded().metadata.snapshots
    assert [one.summary["vdl.sequence"] for one in snapshots] == [str(n) for n in range(1, 12)]


def test_table_whose_making_is_not_answered_is_made_once(lake: Lake, gate: Gate) -> None:
    gate.lose("503")
    table = lake.sink()
    lake.write(table, 0, 2)
    assert lake.numbers() == [0, 1]


def test_upsert_whose_answer_is_lost_is_in_the_table_once(lake: Lake, gate: Gate) -> None:
    """Holds also if the first attempt is carried out after the check. Its files are kept."""
    lake.key = ("n",)
    table = lake.sink()
    for n, how in enumerate(["", "cut", "late", "twice", "cut before"]):
        if how:
            gate.lose(how)
        commit = lake.batch(table, n, n + 3)
        table.commit(dataclasses.replace(commit, start=at(n, 0), end=at(n + 1, 0)), COLUMNS)
    assert lake.numbers() == list(range(7))
    assert table.sequence == 5
    live = {Path(file.file_path).name for one in live_of(table) for file in one.files}
    assert live <= {path.name for path in Path(f"{lake.path}/data").iterdir()}


@pytest.mark.parametrize("is_made_first", [True, False])
def test_commit_that_nobody_answers_for_is_found_or_refused(
    lake: Lake, gate: Gate, monkeypatch: pytest.MonkeyPatch, *, is_made_first: bool
) -> None:
    """The run ends. The commit may be made later: before or after the next run's first commit."""
    monkeypatch.setattr(iceberg_table, "WAITS_SECONDS", (0.0, 0.0))
    table = lake.sink()
    lake.write(table, 0, 2)
    gate.lose("late", "cut before")
    with pytest.raises(PipelineError, match="may have been made or not"):
        lake.write(table, 2, 5)
    heir = lake.sink()
    assert heir.sequence == 1
    gate.holds = True
    if is_made_first:
        assert gate.carry_out() == [200]
        with pytest.raises(CommitConflict, match="the job is at batch 2, not 1"):
            lake.write(heir, 2, 4, "f" * 12)
        assert lake.numbers() == list(range(5))
        return
    lake.write(heir, 2, 4, "f" * 12)
    assert gate.carry_out() == [409]
    assert lake.numbers() == list(range(4))


def test_clock_that_is_wrong_by_a_day_stops_no_later_run(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A driver with such a clock has committed; the next one, on another machine, is right."""
    table = lake.sink()
    lake.write(table, 0, 2)
    now = time.time
    for hours in (24, 0, -24, 0):
        with monkeypatch.context() as wrong:
            wrong.setattr(time, "time", lambda ahead=hours: now() + 3600 * ahead)
            table = lake.sink()
            lake.write(table, table.sequence + 1, table.sequence + 2)
    assert lake.numbers() == list(range(6))
    times = [one.timestamp_ms for one in lake.loaded().metadata.snapshots]
    assert times == sorted(times)


def test_partitions_and_columns_come_with_rows(lake: Lake) -> None:
    """The server checks more of a commit than SQLite does."""
    lake.fields = (PartitionField("_partition"),)
    table = lake.sink()
    lake.write(table, 0, 2)
    wider = COLUMNS.append(pa.field("more", pa.int64()))
    lake.write(table, 2, 4, columns=wider)
    found = lake.loaded().scan().to_arrow().sort_by("n").to_pylist()
    assert [row["more"] for row in found] == [None, None, 2, 3]
    assert lake.sink().open(TOPICS) == at(4, 0)


def test_table_that_others_have_made_in_words_of_java_is_written(
    lake: Lake, synced: set[str]
) -> None:
    """Covers locations with `file:/`, as Hadoop writes them.

    Files that a commit names are on disk before the request to the catalog, which writes its own
    metadata file.
    """
    catalog = load_catalog("other", **lake.catalog)
    catalog.create_namespace(lake.name.partition(".")[0])
    catalog.create_table(lake.name, COLUMNS, location=f"file:{lake.path}")
    table = lake.sink()
    lake.write(table, 0, 3)
    assert lake.numbers() == [0, 1, 2]
    assert [Path(path).parent for path in table.files()] == [Path(lake.path, "data")]
    metadata = Path(lake.path, "metadata")
    assert {str(metadata), *map(str, metadata.glob("*.avro"))} <= synced


def test_table_is_compacted_and_its_snapshots_forgotten(
    any_lake: Lake, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A compaction that was sent twice counts once; a lost response is reported to the job."""
    table = any_lake.sink()
    for n in range(3):
        any_lake.write(table, n, n + 1)
    gate.lose("twice")
    assert table.compact(BYTES_TARGET) == Compacted(before=3, after=1)
    assert any_lake.numbers() == [0, 1, 2]
    any_lake.write(table, 3, 4)
    gate.lose("cut")
    with pytest.raises(PipelineError, match="Connection aborted"):
        table.compact(BYTES_TARGET)
    assert any_lake.numbers() == list(range(4))
    later = time.time() + 48 * 3600
    monkeypatch.setattr(iceberg_table.time, "time", lambda: later)
    assert table.vacuum(24).removed > 3
    gone = [one["snapshot-ids"] for one in gate.updates if one["action"] == "remove-snapshots"]
    assert [len(ids) for ids in gone] == [1] * 5
    assert len(any_lake.loaded().metadata.snapshots) == 1
    monkeypatch.undo()
    any_lake.write(table, 4, 6)
    assert any_lake.numbers() == list(range(6))
    assert any_lake.sink().open(TOPICS) == at(6, 0)


def test_old_metadata_is_gone_and_nobody_is_warned(
    any_lake: Lake, caplog: pytest.LogCaptureFixture
) -> None:
    """The server removes it, and PyIceberg tries to."""
    table = any_lake.sink()
    any_lake.write(table, 0, 1)
    with any_lake.loaded().transaction() as change:
        change.set_properties({"write.metadata.previous-versions-max": "1"})
    for n in range(1, 3):
        any_lake.write(table, n, n + 1)
    entries = storage_of(any_lake.path, any_lake.store).entries(f"{any_lake.path}/metadata")
    assert len([one for one in entries if one.path.endswith(".metadata.json")]) == 2
    assert "Failed to delete" not in caplog.text


def test_all_snapshots_are_asked_for(lake: Lake, gate: Gate) -> None:
    """Otherwise vacuum would remove files that unnamed snapshots need."""
    lake.catalog["snapshot-loading-mode"] = "refs"
    table = lake.sink()
    lake.write(table, 0, 1)
    gate.paths.clear()
    table.vacuum(24)
    asked = [path for path in gate.paths if path.partition("?")[0].endswith("/t")]
    assert asked
    assert all(path.endswith("?snapshots=all") for path in asked), asked


JOB_CATALOG = """
[sink.catalog]
type = "rest"
uri = "{uri}"
"oauth2-server-uri" = "{uri}/v1/oauth/tokens"
"""


@pytest.mark.parametrize("setting", ["token", "credential"])
def test_catalog_that_wants_a_token_gets_it_and_nobody_sees_it(
    tmp_path: Path, gate: Gate, monkeypatch: pytest.MonkeyPatch, setting: str
) -> None:
    """The secret of a credential is sent to the token server only."""
    word = "open-sesame"
    secret = word if setting == "token" else f"me:{word}"
    monkeypatch.setenv("LAKE_SECRET", secret)
    text = GOOD.replace('path = "out"', 'path = "out"\nkind = "iceberg"\ntable = "a.t"')
    text += JOB_CATALOG.format(uri=gate.address)
    with pytest.raises(JobInvalid, match=f"{setting}: a job file must not contain secrets") as no:
        load_job(write(tmp_path, f'{text}{setting} = "{secret}"\n'))
    assert word not in str(no.value)
    job = load_job(write(tmp_path, f'{text}{setting} = "env:LAKE_SECRET"\n'))
    assert word not in repr(job)
    gate.token = word if setting == "token" else "client-credentials-token:sub=me"
    assert not rows_table(job).open(TOPICS)
    assert gate.seen - {"", "None"} == {gate.token}
    gate.token, gate.refusal = "another", f"who is {secret}, {word}"
    with pytest.raises(PipelineError, match=r"who is \*\*\*, \*\*\*") as refused:
        rows_table(job).open(TOPICS)
    assert word not in "".join(traceback.format_exception(refused.value))


def test_run_that_is_killed_before_its_answer_has_each_row_once(lake: Lake, gate: Gate) -> None:
    """The server has made the commit, but its response did not arrive."""
    commits = 4
    command = [sys.executable, "-m", "tests.pipeline.committer", "iceberg", lake.path]
    command += [gate.address, str(commits)]
    gate.lose("", "", "hang")
    with subprocess.Popen(command, cwd=ROOT) as first:
        try:
            assert gate.lost.wait(KILL_SECONDS_MAX)
        finally:
            first.kill()
    commit_all("iceberg", lake.path, gate.address, commits)
    lake.name = "default.t"
    assert lake.numbers() == list(range(commits * ROWS))
    assert lake.sink().sequence == commits


@pytest.mark.spark
def test_job_has_every_record_once_though_answers_are_lost(
    spark: Any,
    bootstrap: str,
    tmp_path: Path,
    gate: Gate,
    objects: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rows, offsets and dead letters; a second run adds nothing."""
    from tests.pipeline.test_reading import create
    from tests.pipeline.test_spark import BROKEN, JOB, fill, run_once
    from vdl.pipeline.dead_letters import read_letters
    from vdl.pipeline.verify import verify

    topic = "in-a-rest-catalog"
    create(bootstrap, topic)
    fill(bootstrap, topic, 0, FEW)
    text = JOB.format(name=topic, bootstrap=bootstrap, topic=topic, sink="iceberg", share=0.5)
    text = text.replace(f'path = "{topic}"', f'path = "s3://lake/{topic}"\ntable = "a.b.t"')
    text = (
        text.replace("max_rows = 250", "max_rows = 100")
        + f"""
[sink.catalog]
type = "rest"
uri = "{gate.address}"
[sink.storage]
endpoint = "{objects}"
access_key_id = "env:LAKE_KEY"
secret_access_key = "env:LAKE_SECRET"
"""
    )
    monkeypatch.setenv("LAKE_KEY", "me")
    monkeypatch.setenv("LAKE_SECRET", "word")
    job = load_job(write(tmp_path, text))
    gate.lose("503", "", "cut", "late", "twice", "504")
    totals = run_once(job, spark)
    assert (totals.rows, totals.dead) == (FEW, len(BROKEN))
    assert gate.commits >= 6
    assert run_once(job, spark).rows == 0
    assert len(list(read_letters(job))) == len(BROKEN)
    verdict = verify(job, spark)
    assert verdict.is_good, verdict
    assert (verdict.rows, verdict.dead) == (FEW, len(BROKEN))
    settings = iceberg_options(storage_settings(job))
    catalog = load_catalog("other", type="rest", uri=gate.address, **settings)
    assert catalog.list_tables("a.b") == [("a", "b", "t"), ("a", "b", "t_dead")]
