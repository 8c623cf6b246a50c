"""Tables: a batch is committed once, whole, with its offsets, whatever happens in between."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.pipeline.test_job_file import GOOD
from vdl.commands.app import run_app
from vdl.pipeline.account import Account, account_of
from vdl.pipeline.errors import CommitConflict, SinkInconsistent, TopicRecreated
from vdl.pipeline.open_table import open_table
from vdl.pipeline.parquet_table import ParquetSink
from vdl.pipeline.positions import OffsetRange, Positions, TopicPositions
from vdl.pipeline.table import Commit, DataFile, TableSink, commit_folder
from vdl.pipeline.table_columns import schema_lines

pa = pytest.importorskip("pyarrow", reason="needs the `spark` extra")
pq = pytest.importorskip("pyarrow.parquet", reason="needs the `spark` extra")
pytest.importorskip("deltalake", reason="needs the `spark` extra")
pytest.importorskip("pyiceberg", reason="needs the `spark` extra")


KINDS = pytest.mark.parametrize("kind", ["parquet", "delta", "iceberg"])
TOPICS = {"t": ("id", 2)}
COLUMNS = pa.schema([("n", pa.int64()), ("_partition", pa.int32()), ("_offset", pa.int64())])


def at(zero: int, one: int) -> Positions:
    return Positions({"t": TopicPositions("id", {0: zero, 1: one})})


def stage(table: TableSink, run: str, name: str, first: int, end: int) -> DataFile:
    """Stage a file of partition 0 with a row for each offset of [first, end)."""
    path = f"{table.staging(run)}/{run}-{name}.parquet"
    numbers = list(range(first, end))
    rows = pa.table([numbers, [0] * len(numbers), numbers], schema=COLUMNS)
    pq.write_table(rows, path)
    return DataFile(
        path, len(numbers), Path(path).stat().st_size, (OffsetRange("t", 0, first, end),)
    )


def batch(
    table: TableSink, run: str, start: Positions, end: Positions, number: int = 0,
    columns: Any = COLUMNS,
) -> Commit:  # fmt: skip
    low, high = start.offset("t", 0) or 0, end.offset("t", 0) or 0
    files = (stage(table, run, str(number), low, high),)
    lines = schema_lines(columns)
    return Commit("job", run, number, start, end, high - low, 0, files, lines)


def rows_of(table: TableSink) -> list[int]:
    return sorted(n for path in table.files() for n in pq.read_table(path)["n"].to_pylist())


@KINDS
def test_table_that_is_new_has_no_positions(tmp_path: Path, kind: str) -> None:
    table = open_table(kind, str(tmp_path / "t"), "job")
    assert not table.open(TOPICS)
    assert table.sequence == 0
    assert table.files() == []
    assert list(tmp_path.iterdir()) == []  # A reader leaves nothing behind.


@KINDS
def test_table_after_commits_says_where_it_ends(tmp_path: Path, kind: str) -> None:
    """Rows and offsets are committed together; another process finds the same."""
    table = open_table(kind, str(tmp_path / "t"), "job")
    table.open(TOPICS)
    table.commit(batch(table, "a", at(0, 0), at(5, 0)), COLUMNS)
    table.commit(batch(table, "a", at(5, 0), at(9, 3), 1), COLUMNS)
    again = open_table(kind, str(tmp_path / "t"), "job")
    assert again.open(TOPICS) == at(9, 3)
    assert again.sequence == 2
    assert rows_of(again) == list(range(9))
    assert [(n.rows, n.start, n.end) for n in again.notes()] == [
        (5, at(0, 0), at(5, 0)),
        (4, at(5, 0), at(9, 3)),
    ]


@KINDS
def test_table_with_two_runs_lets_one_write(tmp_path: Path, kind: str) -> None:
    """The run that was wrongly assumed dead continues and is refused; its rows are not visible."""
    table = open_table(kind, str(tmp_path / "t"), "job")
    table.open(TOPICS)
    table.commit(batch(table, "a", at(0, 0), at(5, 0)), COLUMNS)
    zombie, heir = (open_table(kind, str(tmp_path / "t"), "job") for _ in range(2))
    assert zombie.open(TOPICS) == heir.open(TOPICS) == at(5, 0)
    late = batch(zombie, "z", at(5, 0), at(7, 0))
    heir.commit(batch(heir, "h", at(5, 0), at(8, 0)), COLUMNS)
    with pytest.raises(CommitConflict):
        zombie.commit(late, COLUMNS)
    assert rows_of(heir) == list(range(8))


@KINDS
def test_table_of_two_new_runs_lets_one_write(tmp_path: Path, kind: str) -> None:
    """Holds also if neither found a table."""
    one, other = (open_table(kind, str(tmp_path / "t"), "job") for _ in range(2))
    one.open(TOPICS)
    other.open(TOPICS)
    one.commit(batch(one, "a", at(0, 0), at(5, 0)), COLUMNS)
    with pytest.raises(CommitConflict):
        other.commit(batch(other, "b", at(0, 0), at(6, 0)), COLUMNS)
    assert rows_of(one) == list(range(5))


@KINDS
def test_table_refuses_a_batch_that_leaves_a_gap(tmp_path: Path, kind: str) -> None:
    table = open_table(kind, str(tmp_path / "t"), "job")
    table.open(TOPICS)
    table.commit(batch(table, "a", at(0, 0), at(5, 0)), COLUMNS)
    for start in (at(4, 0), at(6, 0)):
        with pytest.raises(CommitConflict, match="does not begin"):
            table.commit(batch(table, "a", start, at(9, 0), 1), COLUMNS)


@KINDS
def test_table_of_a_recreated_topic_stops_the_job(tmp_path: Path, kind: str) -> None:
    table = open_table(kind, str(tmp_path / "t"), "job")
    table.open(TOPICS)
    table.commit(batch(table, "a", at(0, 0), at(5, 0)), COLUMNS)
    with pytest.raises(TopicRecreated):
        open_table(kind, str(tmp_path / "t"), "job").open({"t": ("new", 2)})


@KINDS
def test_table_with_files_of_a_killed_run_shows_none_of_them(tmp_path: Path, kind: str) -> None:
    """Covers files that were staged and never committed, also an empty one left by a kill."""
    table = open_table(kind, str(tmp_path / "t"), "job")
    table.open(TOPICS)
    table.commit(batch(table, "a", at(0, 0), at(5, 0)), COLUMNS)
    stage(table, "killed", "0", 5, 9)
    Path(f"{table.staging('killed')}/empty.parquet").touch()
    again = open_table(kind, str(tmp_path / "t"), "job")
    assert again.open(TOPICS) == at(5, 0)
    again.commit(batch(again, "b", at(5, 0), at(7, 0)), COLUMNS)
    assert rows_of(again) == list(range(7))


def test_run_that_sleeps_between_its_commit_and_the_cleaning_takes_nothing_of_its_successor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It listed the files to remove before: later staged ones are another run's."""
    slow = open_table("parquet", str(tmp_path / "t"), "job")
    slow.open(TOPICS)
    stage(slow, "killed", "0", 0, 5)
    publish = ParquetSink._publish
    successor = open_table("parquet", str(tmp_path / "t"), "job")

    def sleep(sink: ParquetSink, data: dict[str, Any]) -> None:
        publish(sink, data)
        if sink is slow:
            assert successor.open(TOPICS) == at(5, 0)
            stage(successor, "successor", "0", 5, 9)

    monkeypatch.setattr(ParquetSink, "_publish", sleep)
    slow.commit(batch(slow, "slow", at(0, 0), at(5, 0)), COLUMNS)
    left = sorted(path.name for path in (tmp_path / "t" / "_vdl" / "staging").iterdir())
    assert left == ["slow", "successor"]


def test_parquet_commit_is_not_written_over_by_a_run_of_the_same_process_id(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In two containers both are process 1.

    One has linked its commit, and not yet removed the other name of that file, when the other run
    writes its own.
    """
    one, other = (ParquetSink(str(tmp_path / "t"), "job") for _ in range(2))
    one.open(TOPICS)
    other.open(TOPICS)
    late = batch(other, "other", at(0, 0), at(6, 0))
    link = os.link

    def linked(source: Path, target: Path) -> None:
        monkeypatch.setattr(os, "link", link)
        link(source, target)
        with pytest.raises(CommitConflict, match="exists already"):
            other._link({"run": late.run, "batch": "of the other"}, 1)

    monkeypatch.setattr(os, "link", linked)
    one.commit(batch(one, "one", at(0, 0), at(5, 0)), COLUMNS)
    again = open_table("parquet", str(tmp_path / "t"), "job")
    assert again.open(TOPICS) == at(5, 0)
    assert rows_of(again) == list(range(5))
    assert list((tmp_path / "t" / "_vdl").glob("*.tmp")) == []


def test_parquet_commit_of_a_killed_run_that_was_not_put_in_place_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first commit of a later run removes it.

    If its own run continues, it is refused as late.
    """
    one, other = (ParquetSink(str(tmp_path / "t"), "job") for _ in range(2))
    one.open(TOPICS)
    other.open(TOPICS)
    link = os.link

    def slow(source: Path, target: Path) -> None:
        monkeypatch.setattr(os, "link", link)
        one.commit(batch(one, "one", at(0, 0), at(5, 0)), COLUMNS)
        assert not source.exists()
        link(source, target)

    monkeypatch.setattr(os, "link", slow)
    with pytest.raises(CommitConflict):
        other.commit(batch(other, "other", at(0, 0), at(6, 0)), COLUMNS)
    assert rows_of(one) == list(range(5))


@KINDS
def test_table_takes_new_columns_and_refuses_lost_ones(tmp_path: Path, kind: str) -> None:
    table = open_table(kind, str(tmp_path / "t"), "job")
    table.open(TOPICS)
    table.commit(batch(table, "a", at(0, 0), at(5, 0)), COLUMNS)
    other = pa.schema([COLUMNS.field(0).with_type(pa.string()), *list(COLUMNS)[1:]])
    changed = batch(table, "a", at(5, 0), at(6, 0), 1, other)
    with pytest.raises(SinkInconsistent, match="n is int64 in the table and string in the rows"):
        table.commit(changed, other)
    fewer = pa.schema(list(COLUMNS)[:2])
    with pytest.raises(SinkInconsistent, match=r"_offset \(int64\) is in the table but not in"):
        table.commit(batch(table, "a", at(5, 0), at(6, 0), 1, fewer), fewer)
    # As with a column that was added to `decode.schema`: it precedes those of the origin.
    wider = pa.schema([pa.field("more", pa.string()), *COLUMNS])
    table.commit(batch(table, "a", at(5, 0), at(7, 0), 1, wider), wider)
    again = open_table(kind, str(tmp_path / "t"), "job")
    again.open(TOPICS)
    again.commit(batch(again, "b", at(7, 0), at(8, 0), 0, wider), wider)
    assert rows_of(again) == list(range(8))
    assert again.columns().splitlines() == [
        "n: int64", "_partition: int32", "_offset: int64", "more: string",
    ]  # fmt: skip


def test_parquet_table_takes_wider_types_and_delta_says_that_it_cannot(tmp_path: Path) -> None:
    """A wider type stays the table's for later rows."""
    wider = pa.schema([COLUMNS.field(0), pa.field("_partition", pa.int64()), COLUMNS.field(2)])
    for kind in ("parquet", "delta"):
        table = open_table(kind, str(tmp_path / kind), "job")
        table.open(TOPICS)
        table.commit(batch(table, "a", at(0, 0), at(5, 0)), COLUMNS)
        more = batch(table, "a", at(5, 0), at(6, 0), 1, wider)
        if kind == "delta":
            with pytest.raises(SinkInconsistent, match="_partition: int64 is wider"):
                table.commit(more, wider)
            continue
        table.commit(more, wider)
        assert "_partition: int64" in table.columns()
        back = batch(table, "a", at(6, 0), at(7, 0), 2)
        with pytest.raises(SinkInconsistent, match="_partition is int64 in the table and int32"):
            table.commit(back, COLUMNS)


def seen(folder: Path) -> list[int]:
    """Return what a reader of folders finds that does not know of commits."""
    found = pq.read_table(folder)
    return sorted(found["n"].to_pylist()) if "n" in found.column_names else []


def of_two_files(table: TableSink, run: str, first: int, end: int) -> Commit:
    """Return a batch of [first, end) of partition 0 in two files."""
    middle = (first + end) // 2
    files = (stage(table, run, "low", first, middle), stage(table, run, "high", middle, end))
    lines = schema_lines(COLUMNS)
    start, stop = at(first, 0), at(end, 0)
    return Commit("job", run, 0, start, stop, end - first, 0, files, lines)


@pytest.mark.parametrize("calls", range(6))
def test_parquet_batch_is_shown_whole_wherever_a_run_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, calls: int
) -> None:
    """Before or after any rename, a reader of the folder sees all of the batch or nothing.

    The next run finishes what was committed, once.
    """
    table = open_table("parquet", str(tmp_path / "t"), "job")
    table.open(TOPICS)
    table.commit(of_two_files(table, "a", 0, 4), COLUMNS)
    made = 0
    rename, link = Path.rename, os.link

    def count() -> None:
        nonlocal made
        if made == calls:
            raise KeyboardInterrupt
        made += 1

    def renamed(source: Path, target: Path) -> Path:
        count()
        return rename(source, target)

    def linked(source: Path, target: Path) -> None:
        count()
        link(source, target)

    batch_of_two = of_two_files(table, "a", 4, 8)
    with monkeypatch.context() as killed:
        killed.setattr(Path, "rename", renamed)
        killed.setattr(os, "link", linked)
        try:
            table.commit(batch_of_two, COLUMNS)
        except KeyboardInterrupt:
            assert made == calls
    assert seen(tmp_path / "t") in ([*range(4)], [*range(8)])
    again = open_table("parquet", str(tmp_path / "t"), "job")
    assert again.open(TOPICS) in (at(4, 0), at(8, 0))
    assert rows_of(again) == seen(tmp_path / "t")
    assert len(rows_of(again)) == again.open(TOPICS).offset("t", 0)


def test_parquet_commit_without_its_rename_is_finished(tmp_path: Path) -> None:
    """Killed between the commit and the rename: the next run shows the batch, once."""
    table = open_table("parquet", str(tmp_path / "t"), "job")
    table.open(TOPICS)
    table.commit(batch(table, "a", at(0, 0), at(5, 0)), COLUMNS)
    (shown,) = (tmp_path / "t").glob("vdl_part=*/vdl_commit=*")
    commit = json.loads((tmp_path / "t/_vdl/commits/000000001.json").read_text())
    staged = tmp_path / "t" / commit["files"][0]["staged"]
    shown.rename(staged.parent)
    assert seen(tmp_path / "t") == []
    again = open_table("parquet", str(tmp_path / "t"), "job")
    assert again.open(TOPICS) == at(5, 0)
    assert rows_of(again) == seen(tmp_path / "t") == list(range(5))


def test_parquet_files_of_tries_that_failed_are_not_shown(tmp_path: Path) -> None:
    """They are beside those that the commit names."""
    table = open_table("parquet", str(tmp_path / "t"), "job")
    table.open(TOPICS)
    wanted = batch(table, "a", at(0, 0), at(5, 0))
    stage(table, "a", "failed", 0, 5)
    table.commit(wanted, COLUMNS)
    assert seen(tmp_path / "t") == list(range(5))


def test_parquet_table_of_another_layout_is_refused(tmp_path: Path) -> None:
    """As one of an early build, or of a later one: nothing is written, and nothing shown twice."""
    table = open_table("parquet", str(tmp_path / "t"), "job")
    table.open(TOPICS)
    table.commit(batch(table, "a", at(0, 0), at(5, 0)), COLUMNS)
    commit = tmp_path / "t/_vdl/commits/000000001.json"
    data = json.loads(commit.read_text())
    for version in (1, 3):
        commit.write_text(json.dumps({**data, "version": version}))
        with pytest.raises(SinkInconsistent, match=f"has version {version} of the layout, not 2"):
            open_table("parquet", str(tmp_path / "t"), "job").open(TOPICS)
    assert seen(tmp_path / "t") == list(range(5))


def test_parquet_table_refuses_columns_named_as_its_folders(tmp_path: Path) -> None:
    """Readers would take the folder's number for the column's value."""
    table = open_table("parquet", str(tmp_path / "t"), "job")
    table.open(TOPICS)
    columns = COLUMNS.append(pa.field("vdl_commit", pa.int64()))
    with pytest.raises(SinkInconsistent, match="vdl_commit is a name of folders"):
        table.commit(batch(table, "a", at(0, 0), at(5, 0), 0, columns), columns)


def test_parquet_names_say_the_offsets(tmp_path: Path) -> None:
    table = open_table("parquet", str(tmp_path / "t"), "job")
    table.open(TOPICS)
    table.commit(batch(table, "a", at(0, 0), at(5, 0)), COLUMNS)
    (path,) = (tmp_path / "t").rglob("*.parquet")
    assert str(path.relative_to(tmp_path / "t")) == (
        f"vdl_part=00001/vdl_commit=000000001/000000001-t-0-{0:020d}-{5:020d}-0000.parquet"
    )
    assert [commit_folder(n) for n in (1000, 1001)] == [
        "vdl_part=00001/vdl_commit=000001000/", "vdl_part=00002/vdl_commit=000001001/",
    ]  # fmt: skip


def test_parquet_table_without_a_commit_is_refused(tmp_path: Path) -> None:
    """If a commit was removed, the table's end is no longer known."""
    table = open_table("parquet", str(tmp_path / "t"), "job")
    table.open(TOPICS)
    for n, (low, high) in enumerate([(0, 5), (5, 6), (6, 9)]):
        table.commit(batch(table, "a", at(low, 0), at(high, 0), n), COLUMNS)
    (tmp_path / "t/_vdl/commits/000000002.json").unlink()
    with pytest.raises(SinkInconsistent, match="missing"):
        open_table("parquet", str(tmp_path / "t"), "job").open(TOPICS)


def test_parquet_table_of_another_job_is_refused(tmp_path: Path) -> None:
    table = open_table("parquet", str(tmp_path / "t"), "job")
    table.open(TOPICS)
    table.commit(batch(table, "a", at(0, 0), at(5, 0)), COLUMNS)
    with pytest.raises(SinkInconsistent, match="belongs to"):
        open_table("parquet", str(tmp_path / "t"), "other").open(TOPICS)


def test_delta_log_does_not_grow_and_the_account_stays_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each commit lists the log.

    Files older than a checkpoint are removed after an hour, here at once.
    """
    from deltalake import DeltaTable

    from vdl.pipeline import delta_table

    table = open_table("delta", str(tmp_path / "made"), "job")
    table.open(TOPICS)
    table.commit(batch(table, "a", at(0, 0), at(1, 0)), COLUMNS)
    made = DeltaTable(str(tmp_path / "made")).metadata().configuration
    assert made["delta.logRetentionDuration"] == "interval 1 hours"
    at_once = {"delta.logRetentionDuration": "interval 0 seconds", "delta.checkpointInterval": "5"}
    monkeypatch.setattr(delta_table, "PROPERTIES", at_once)
    table = open_table("delta", str(tmp_path / "t"), "job")
    table.open(TOPICS)
    most = 0
    for n in range(30):
        table.commit(batch(table, "a", at(n, 0), at(n + 1, 0), n), COLUMNS)
        most = max(most, len(list((tmp_path / "t" / "_delta_log").glob("*.json"))))
    assert most <= 11
    again = open_table("delta", str(tmp_path / "t"), "job")
    assert again.open(TOPICS) == at(30, 0)
    assert account_of(again) == Account(at(0, 0), 30)
    assert rows_of(again) == list(range(30))


def test_delta_table_is_shared_with_other_writers(tmp_path: Path) -> None:
    """A compaction between two batches changes nothing for the job.

    Another job has its own state.
    """
    import deltalake

    table: Any = open_table("delta", str(tmp_path / "t"), "job")
    table.open(TOPICS)
    table.commit(batch(table, "a", at(0, 0), at(5, 0)), COLUMNS)
    table.commit(batch(table, "a", at(5, 0), at(9, 0), 1), COLUMNS)
    deltalake.DeltaTable(str(tmp_path / "t")).optimize.compact()
    table.commit(batch(table, "a", at(9, 0), at(12, 0), 2), COLUMNS)
    other = open_table("delta", str(tmp_path / "t"), "other")
    assert not other.open(TOPICS)
    again = open_table("delta", str(tmp_path / "t"), "job")
    assert again.open(TOPICS) == at(12, 0)
    assert rows_of(again) == list(range(12))


def of_job(folder: Path, job: str, run: str, name: str, first: int, end: int) -> Any:
    """Return a table of the job after a commit of [first, end), in a file of this name."""
    table: Any = open_table("delta", str(folder), job)
    start = table.open(TOPICS) or at(first, 0)
    assert start == at(first, 0)
    files = (stage(table, name, "0-0", first, end),)
    lines = schema_lines(COLUMNS)
    commit = Commit(job, run, 0, start, at(end, 0), end - first, 0, files, lines)
    table.commit(commit, COLUMNS)
    return table


def test_delta_files_of_another_job_are_not_this_ones(tmp_path: Path) -> None:
    """Both read the same topic into one table."""
    import deltalake

    for job, run in (("job", "0123456789ab"), ("other-job", "ba9876543210")):
        of_job(tmp_path / "t", job, run, f"{job}-{run}-0", 0, 5)
    for job in ("job", "other-job"):
        table: Any = open_table("delta", str(tmp_path / "t"), job)
        table.open(TOPICS)
        assert rows_of(table) == list(range(5))
        assert table.unclear_files() == []
    deltalake.DeltaTable(str(tmp_path / "t")).optimize.compact()
    again: Any = open_table("delta", str(tmp_path / "t"), "job")
    again.open(TOPICS)
    assert len(again.unclear_files()) == 1


def test_delta_files_of_one_job_are_clear_whatever_their_names(tmp_path: Path) -> None:
    import deltalake

    of_job(tmp_path / "t", "job", "0123456789ab", "x", 0, 5)
    of_job(tmp_path / "t", "job", "0123456789ab", "job-0123456789ab-1", 5, 9)
    table: Any = open_table("delta", str(tmp_path / "t"), "job")
    assert table.unclear_files() == []
    deltalake.DeltaTable(str(tmp_path / "t")).optimize.compact()
    assert table.unclear_files() == []
    assert rows_of(table) == list(range(9))


@KINDS
def test_account_is_of_all_commits_that_the_table_had_when_it_was_opened(
    tmp_path: Path, kind: str
) -> None:
    table = open_table(kind, str(tmp_path / "t"), "job")
    table.open(TOPICS)
    assert account_of(table) == Account()
    table.commit(batch(table, "a", at(2, 1), at(5, 1)), COLUMNS)
    table.commit(batch(table, "a", at(5, 1), at(9, 3), 1), COLUMNS)
    reader = open_table(kind, str(tmp_path / "t"), "job")
    reader.open(TOPICS)
    table.commit(batch(table, "a", at(9, 3), at(12, 3), 2), COLUMNS)
    assert account_of(reader) == Account(at(2, 1), 7)
    assert account_of(table) == Account(at(2, 1), 10)


def clean(folder: Path) -> None:
    """Let another writer commit, and remove earlier files from a Delta table's log.

    This happens after thirty days: no commit of the job is left.
    """
    import deltalake

    deltalake.DeltaTable(str(folder)).create_write_transaction([], "append", COLUMNS)
    deltalake.DeltaTable(str(folder)).create_checkpoint()
    for file in sorted((folder / "_delta_log").glob("*.json"))[:-1]:
        file.unlink()


def grow(folder: Path, first: int, end: int) -> TableSink:
    """Make commits of a row each."""
    table = open_table("delta", str(folder), "job")
    table.open(TOPICS)
    for n in range(first, end):
        table.commit(batch(table, f"run-{n}", at(n, 0), at(n + 1, 0), n), COLUMNS)
    return table


def reopened(folder: Path) -> tuple[Positions, Account | None]:
    table = open_table("delta", str(folder), "job")
    return table.open(TOPICS), account_of(table)


def test_delta_positions_survive_the_loss_of_history(tmp_path: Path) -> None:
    """The transactions alone record the job's position, its start and the rows written since."""
    grow(tmp_path / "t", 2, 6)
    clean(tmp_path / "t")
    assert reopened(tmp_path / "t") == (at(6, 0), Account(at(2, 0), 4))
    grow(tmp_path / "t", 6, 8)
    assert reopened(tmp_path / "t") == (at(8, 0), Account(at(2, 0), 6))


def test_delta_commit_of_many_partitions_is_small_and_its_state_is_one_file(
    tmp_path: Path,
) -> None:
    """For any number of partitions: two transactions, and the state of the last commit only."""
    count = 4000
    topics = {"t": ("id", count)}
    table = open_table("delta", str(tmp_path / "t"), "job")
    table.open(topics)
    for n in range(3):
        start, end = (
            Positions({"t": TopicPositions("id", dict.fromkeys(range(count), m))})
            for m in (n, n + 1)
        )
        files: tuple[DataFile, ...] = ()
        commit = Commit("job", "run", n, start, end, 0, 0, files, schema_lines(COLUMNS))
        table.commit(commit, COLUMNS)
    again = open_table("delta", str(tmp_path / "t"), "job")
    assert again.open(topics) == end
    assert account_of(again) == Account(
        Positions({"t": TopicPositions("id", dict.fromkeys(range(count), 0))})
    )
    assert len(list((tmp_path / "t/_vdl/state/job").iterdir())) == 1
    for log in (tmp_path / "t/_delta_log").glob("*.json"):
        text = log.read_text(encoding="utf-8")
        assert text.count('"txn"') == 2
        assert len(text) < 200_000


def test_delta_commit_syncs_the_version_that_it_has_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Holds also if another writer committed in between."""
    import deltalake

    synced: list[str] = []
    fsync = os.fsync

    def note(descriptor: int) -> None:
        synced.append(str(Path(f"/proc/self/fd/{descriptor}").readlink()))
        fsync(descriptor)

    table = grow(tmp_path / "t", 0, 1)
    for n in range(1, 4):
        if n == 2:
            deltalake.DeltaTable(str(tmp_path / "t")).optimize.compact()
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", note)
            table.commit(batch(table, f"run-{n}", at(n, 0), at(n + 1, 0), n), COLUMNS)
        version = deltalake.DeltaTable(str(tmp_path / "t")).version()
        assert any(path.endswith(f"_delta_log/{version:020d}.json") for path in synced)
        synced.clear()


def test_delta_table_without_the_file_of_its_state_is_refused(tmp_path: Path) -> None:
    grow(tmp_path / "t", 0, 2)
    (state,) = (tmp_path / "t/_vdl/state/job").iterdir()
    state.unlink()
    with pytest.raises(SinkInconsistent, match="the job's state cannot be read"):
        open_table("delta", str(tmp_path / "t"), "job").open(TOPICS)


@pytest.mark.parametrize("before", [0, 1])
def test_delta_table_whose_last_commit_names_no_state_is_refused(
    tmp_path: Path, before: int
) -> None:
    """As one of an early build, which kept the offsets in transactions."""
    from deltalake import DeltaTable, write_deltalake
    from deltalake.transaction import CommitProperties, Transaction

    folder = tmp_path / "t"
    if before:
        grow(folder, 0, before)
    else:
        write_deltalake(folder, pa.Table.from_pylist([], COLUMNS))
    told = [Transaction("vdl/job", before + 1, 0), Transaction("vdl/job/t/id/0", 2, 0)]
    properties = CommitProperties(app_transactions=told)
    DeltaTable(folder).create_write_transaction([], "append", COLUMNS, commit_properties=properties)
    reason = "that of batch 1" if before else "none"
    with pytest.raises(SinkInconsistent, match=f"its state is {reason}: an earlier build"):
        open_table("delta", str(folder), "job").open(TOPICS)


def test_status_of_a_table_without_history_counts_all_or_says_that_it_cannot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Cluster:
        """Cluster with the methods that `status` needs."""

        def __init__(self, options: object, **limits: float) -> None:
            del options, limits

        def ids(self) -> dict[str, tuple[str, int]]:
            return TOPICS

        def ends(self) -> Positions:
            return at(9, 0)

        def close(self) -> None:
            pass

    monkeypatch.setattr("vdl.pipeline.topics.Topics", Cluster)
    file = tmp_path / "job.toml"
    job = GOOD.replace('"flights"\n[source]', '"job"\n[source]').replace('["flights"]', '["t"]')
    file.write_text(job.replace('path = "out"', 'kind = "delta"\npath = "t"'), encoding="utf-8")
    grow(tmp_path / "t", 0, 4)
    clean(tmp_path / "t")
    assert run_app(["pipeline", "status", str(file)]) == 0
    (line, *_) = capsys.readouterr().out.splitlines()
    assert line == "job: 4 commits, 4 rows, 0 dead letters, 5 records behind"
    # As after a rewind to a commit whose facts are gone.
    table: Any = grow(tmp_path / "t", 4, 4)
    table._account = None
    table.commit(batch(table, "run-4", at(4, 0), at(5, 0), 4), COLUMNS)
    clean(tmp_path / "t")
    assert run_app(["pipeline", "status", "--json", str(file)]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["commits"], told["rows"], told["dead_letters"]) == (5, None, None)
    assert run_app(["pipeline", "status", str(file)]) == 0
    assert capsys.readouterr().out.splitlines()[:2] == [
        "job: 5 commits, ? rows, ? dead letters, 4 records behind",
        "  ?: unknown, because the log of the table no longer contains its first commits",
    ]


def test_delta_table_in_a_folder_with_a_blank_names_its_files(tmp_path: Path) -> None:
    """Delta encodes names as in URLs."""
    table = open_table("delta", str(tmp_path / "a table"), "job")
    table.open(TOPICS)
    table.commit(batch(table, "a %b", at(0, 0), at(5, 0)), COLUMNS)
    assert rows_of(table) == list(range(5))
