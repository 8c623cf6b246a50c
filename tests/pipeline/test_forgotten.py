"""A table that lost the job's progress, though other traces remain: the job stops.

If it began at nothing, all rows would be written a second time.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="needs the `spark` extra")
pytest.importorskip("deltalake", reason="needs the `spark` extra")
pytest.importorskip("pyiceberg", reason="needs the `spark` extra")

from tests.pipeline.test_tables import COLUMNS, TOPICS, at, batch, clean, rows_of, stage
from vdl.pipeline.errors import SinkInconsistent
from vdl.pipeline.open_table import open_table
from vdl.pipeline.positions import Positions
from vdl.pipeline.table import Commit, DataFile
from vdl.pipeline.table_columns import schema_lines

RETENTION = "delta.setTransactionRetentionDuration"


def written(folder: Path, kind: str, commits: int) -> Any:
    """Return a table with this number of commits of a row each, in files named as by a task."""
    table = open_table(kind, str(folder), "job")
    table.open(TOPICS)
    for n in range(commits):
        file = named(table, n)
        lines = schema_lines(COLUMNS)
        commit = Commit("job", "0" * 12, n, at(n, 0), at(n + 1, 0), 1, 0, (file,), lines)
        table.commit(commit, COLUMNS)
    return table


def named(table: Any, n: int) -> DataFile:
    return stage(table, f"job-{'0' * 12}", f"{n}-0-0", n, n + 1)


def forget(folder: Path) -> None:
    """Make a Delta table forget all transactions, now."""
    from deltalake import DeltaTable

    DeltaTable(str(folder)).alter.set_table_properties({RETENTION: "interval 0 seconds"})


def opened(folder: Path, kind: str = "delta") -> Positions:
    return open_table(kind, str(folder), "job").open(TOPICS)


@pytest.mark.parametrize("commits", [1, 2])
@pytest.mark.parametrize("is_behind", [False, True])
def test_delta_table_that_forgot_the_transaction_stops_the_job(
    tmp_path: Path, *, commits: int, is_behind: bool
) -> None:
    """Holds also if the log is cleaned, and the checkpoint lacks the transaction too."""
    folder = tmp_path / "t"
    written(folder, "delta", commits)
    forget(folder)
    if is_behind:
        clean(folder)
    with pytest.raises(SinkInconsistent, match=f"committed 0 batches .*{RETENTION}"):
        opened(folder)


@pytest.mark.parametrize("witness", ["state", "log", "names"])
def test_delta_table_that_forgot_the_transaction_is_known_by_each_witness(
    tmp_path: Path, witness: str
) -> None:
    """The witnesses are a state file, commit information in the log, and file names."""
    folder = tmp_path / "t"
    written(folder, "delta", 2)
    forget(folder)
    if witness != "state":
        shutil.rmtree(folder / "_vdl")
    if witness != "log":
        clean(folder)
    with pytest.raises(SinkInconsistent, match="committed 0 batches"):
        opened(folder)


def test_delta_table_that_forgets_stops_a_run_with_its_reason(tmp_path: Path) -> None:
    """The error does not claim that another run was active."""
    folder = tmp_path / "t"
    table = written(folder, "delta", 2)
    late = batch(table, "a", at(2, 0), at(3, 0), 2)
    forget(folder)
    with pytest.raises(SinkInconsistent, match=RETENTION):
        table.commit(late, COLUMNS)


def test_delta_commits_that_were_killed_stop_nothing(tmp_path: Path) -> None:
    """State files precede commits. Here the first commit left one, and a later one left two."""
    from vdl.pipeline.state_files import JobState, StateFiles, new_mark
    from vdl.pipeline.storage import storage_of

    folder = tmp_path / "t"
    states = StateFiles(str(folder), "job", storage_of(str(folder)))
    states.write(new_mark(1), JobState(1, at(1, 0), None))
    assert not opened(folder)
    table = written(folder, "delta", 2)
    for _ in range(2):
        states.write(new_mark(3), JobState(3, at(9, 0), None))
    assert opened(folder) == at(2, 0)
    table.commit(batch(table, "a", at(2, 0), at(3, 0), 2), COLUMNS)
    assert opened(folder) == at(3, 0)


def test_delta_log_that_is_gone_stops_the_job(tmp_path: Path) -> None:
    folder = tmp_path / "t"
    written(folder, "delta", 2)
    shutil.rmtree(folder / "_delta_log")
    with pytest.raises(SinkInconsistent, match="committed 0 batches"):
        opened(folder)


def test_iceberg_table_without_the_jobs_property_stops_the_job(tmp_path: Path) -> None:
    """The property was removed, or the table was rebuilt from the other's files."""
    folder = tmp_path / "t"
    table = written(folder, "iceberg", 2)
    with table._load().transaction() as change:
        change.remove_properties("vdl.job.job")
    with pytest.raises(SinkInconsistent, match=r"vdl\.job\.job"):
        opened(folder, "iceberg")
    assert len(rows_of(table)) == 2


def test_parquet_table_without_its_commits_stops_the_job(tmp_path: Path) -> None:
    folder = tmp_path / "t"
    written(folder, "parquet", 2)
    shutil.rmtree(folder / "_vdl")
    with pytest.raises(SinkInconsistent, match="has files of commits"):
        opened(folder, "parquet")


@pytest.mark.parametrize("kind", ["parquet", "delta", "iceberg"])
@pytest.mark.parametrize("is_all", [False, True])
def test_table_that_is_removed_while_a_run_is_at_work_stops_the_run(
    tmp_path: Path, kind: str, *, is_all: bool
) -> None:
    """It would continue in a table that lacks all earlier rows. `is_all`: also the catalog."""
    folder = tmp_path / "t"
    table = written(folder, kind, 2)
    shutil.rmtree(folder)
    if is_all:
        (tmp_path / "catalog.db").unlink(missing_ok=True)
    late = batch(table, "a", at(2, 0), at(3, 0), 2)
    with pytest.raises(SinkInconsistent, match="the table was removed while the job ran"):
        table.commit(late, COLUMNS)
    shutil.rmtree(folder, ignore_errors=True)
    if kind == "iceberg" and not is_all:
        with pytest.raises(SinkInconsistent, match="drop the table in the catalog"):
            opened(folder, kind)
    else:
        assert not opened(folder, kind)
