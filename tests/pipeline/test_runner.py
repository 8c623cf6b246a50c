"""A runner without Spark: the commit order of a batch, and the folders it removes.

Rows and dead letters have tables of their own; a batch is refused before either has it.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="needs the `spark` extra")
pytest.importorskip("deltalake", reason="needs the `spark` extra")

import pyarrow as pa
import pyarrow.parquet as pq

from vdl.pipeline import runner as runner_module
from vdl.pipeline.errors import CommitConflict, PipelineError, SinkInconsistent
from vdl.pipeline.files import DEAD_SCHEMA, _letters, unpacked
from vdl.pipeline.job import load_job
from vdl.pipeline.positions import OffsetRange, Positions, TopicPositions
from vdl.pipeline.runner import Runner, Written
from vdl.pipeline.table import DataFile
from vdl.pipeline.topic_sink import Mark

JOB = """
[job]
name = "numbers"
[source]
bootstrap = "127.0.0.1:1"
topics = ["t"]
[decode]
schema = "n bigint"
[sink]
kind = "{kind}"
path = "out"
{more}
"""
IDS = {"t": ("id", 2)}
ROW = pa.schema([("value", pa.binary()), ("_partition", pa.int32()), ("_offset", pa.int64())])
CHANGED = pa.schema([("value", pa.string()), *list(ROW)[1:]])
"""No table accepts a type that cannot hold its values."""


def at(zero: int, one: int) -> Positions:
    return Positions({"t": TopicPositions("id", {0: zero, 1: one})})


class Run:
    """Runner with open tables; `sent`: files passed to producers."""

    def __init__(self, folder: Path, kind: str, patch: pytest.MonkeyPatch) -> None:
        self.sent: list[str] = []
        self._number = 0

        def send(paths: Sequence[str], mark: Mark) -> int:
            del mark
            self.sent += paths
            return sum(pq.ParquetFile(path).metadata.num_rows for path in paths)

        patch.setattr(runner_module, "send_on_spark", lambda spark, target: send)
        file = folder / "job.toml"
        more = 'topic = "numbers"' if kind == "topic" else ""
        file.write_text(JOB.format(kind=kind, more=more), encoding="utf-8")
        self.runner = Runner(load_job(file), None)
        self.rows, self.dead = self.runner._rows_table, self.runner._dead_table
        self.runner._dead_positions = self.dead.open(IDS)
        self.runner._positions = self.rows.open(IDS)

    def close(self) -> None:
        self.runner.close()

    def commit(
        self, end: Positions, letters: Sequence[tuple[int, int]] = (), columns: Any = ROW
    ) -> None:
        """Commit a batch after the rows' end: a row, and dead letters by partition and offset."""
        start = self.runner._positions
        written = Written(columns)
        first = start.offset("t", 0) or 0
        row = {"key": b"k", "value": b"v", "_partition": 0, "_offset": first}
        rows = pa.Table.from_pylist([row], schema=columns)
        written.files = [self._stage(self.rows, rows, (OffsetRange("t", 0, first, first + 1),))]
        written.rows = 1
        if letters:
            told = [{"topic": "t", "partition": p, "offset": o, "error": "no"} for p, o in letters]
            written.dead_files = [self._stage(self.dead, pa.Table.from_pylist(told, DEAD_SCHEMA))]
            written.dead = len(letters)
        self.runner._commit(written, self._number, end)
        self.runner._positions = end

    def _stage(self, table: Any, rows: Any, spans: tuple[OffsetRange, ...] = ()) -> DataFile:
        self._number += 1
        path = Path(table.staging(self.runner._run)) / f"{self._number}.parquet"
        pq.write_table(rows, path)
        return DataFile(str(path), rows.num_rows, path.stat().st_size, spans)


Begin = Callable[[], Run]


@pytest.fixture(params=["parquet", "delta", "iceberg", "topic"])
def begin(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Begin]:
    """Function that begins a run of the job."""
    with ExitStack() as runs:
        yield lambda: runs.enter_context(closing(Run(tmp_path, request.param, monkeypatch)))


def test_batch_of_other_columns_leaves_no_dead_letters_and_sends_nothing(begin: Begin) -> None:
    """A type changed by mistake makes rows of former dead letters.

    If the letters were kept, their offsets would not be checked again after the repair.
    """
    job = begin()
    job.commit(at(5, 0), [(0, 3)])
    sent = list(job.sent)
    with pytest.raises(SinkInconsistent, match="columns have changed"):
        job.commit(at(9, 0), [(0, 6)], CHANGED)
    assert (job.dead.sequence, job.rows.sequence) == (1, 1)
    assert job.sent == sent
    again = begin()
    again.commit(at(9, 0), [(0, 6), (0, 7)])
    assert again.dead.sequence == 2


def test_columns_that_the_table_does_not_take_are_found_before_a_batch_is_read(
    begin: Begin,
) -> None:
    """`plan` finds them as a run does. The check changes nothing."""
    begin().commit(at(5, 0))
    again = begin()
    again.runner._columns = CHANGED
    with pytest.raises(SinkInconsistent, match="columns have changed"):
        again.runner._check_table()
    again.runner._columns = ROW
    again.runner._check_table()
    assert begin().rows.sequence == 1


def test_backfill_takes_as_many_times_more_bytes_as_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two million records of a kilobyte would be thirty times the limit of a batch."""
    with closing(Run(tmp_path, "parquet", monkeypatch)) as job:
        job.runner._positions = at(0, 0)
        sizes = {("t", 0): 1000.0, ("t", 1): 1000.0}
        monkeypatch.setattr(job.runner._topics, "row_bytes", lambda starts: sizes)
        stop = job.runner._admitted(at(5_000_000, 5_000_000), 2_000_000)
    assert sum(offset for _, _, offset in stop.partitions()) == (10 * 64 << 20) // 1000


def test_job_compacts_its_tables_every_so_many_commits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Failures are reported and stop nothing."""
    with closing(Run(tmp_path, "delta", monkeypatch)) as job:
        job.runner._job = replace(job.runner._job, compact_every=3)
        told = []
        for n in range(1, 7):
            job.commit(at(n, 0), [(0, n - 1)] if n < 3 else [])
            told.append(job.runner._compact())
        rows, dead = str(tmp_path / "out"), str(tmp_path / "out-dead")
        assert told[:2] == told[3:5] == ["", ""]
        assert told[2] == f"{rows}: 3 files became 1; {dead}: 2 files became 1"
        assert told[5] == f"{rows}: 4 files became 1"
        assert len(job.rows.files()) == len(job.dead.files()) == 1

        def refuse(table: object, hours: int) -> None:
            raise PipelineError("no room")

        monkeypatch.setattr(type(job.rows), "vacuum", refuse)
        assert job.runner._compact() == "no room; no room"


def test_batch_that_another_run_has_committed_leaves_no_dead_letters_and_sends_nothing(
    begin: Begin,
) -> None:
    """Covers a run that was wrongly assumed dead and continues."""
    begin().commit(at(5, 0))
    zombie, heir = begin(), begin()
    heir.commit(at(7, 0))
    with pytest.raises(CommitConflict):
        zombie.commit(at(9, 0), [(0, 6)])
    assert begin().dead.sequence == 0
    assert zombie.sent == []


def test_dead_letters_of_a_batch_that_is_divided_otherwise_stay_known(
    begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run is killed before the rows' commit, and the next one has other batches.

    With more records, a batch takes more of one partition and less of the other. The dead letters
    that the table has of the other must not be forgotten.
    """
    killed = begin()
    with monkeypatch.context() as patch:
        patch.setattr(killed.rows, "commit", fail)
        with pytest.raises(PipelineError, match="killed"):
            killed.commit(at(510, 510), [(0, 500), (1, 500)])
    again = begin()
    again.commit(at(760, 260), [(0, 700)])
    assert again.runner._positions == at(760, 260)
    for run in (again, begin()):
        assert run.runner._dead_positions == at(760, 510)
    again.commit(at(760, 800), [(1, 600)])
    assert begin().runner._dead_positions == at(760, 800)


def test_dead_letter_that_only_the_second_try_finds_is_kept(
    begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows could not be written, and the job file was repaired afterwards.

    Now other records are dead. Existing letters are left out, but not all records below the end of
    that attempt.
    """
    begin().commit(at(10, 0), [(0, 3)])
    killed = begin()
    with monkeypatch.context() as patch:
        patch.setattr(killed.rows, "commit", fail)
        with pytest.raises(PipelineError, match="killed"):
            killed.commit(at(20, 8), [(0, 12), (1, 5)])
    for run in (killed, begin()):
        told = run.runner._dead_there()
        there = {place: unpacked(data) for place, data in told.items()}
        assert there == {"t/0": {12}, "t/1": {5}}
        letters = _letters(dead_rows((0, 12), (0, 13), (1, 3), (1, 5), (1, 12)), {}, there)
        found = list(zip(*(letters.column(n).to_pylist() for n in (1, 2)), strict=True))
        assert found == [(0, 13), (1, 3), (1, 12)]
    again = begin()
    again.commit(at(20, 8), [(0, 13)])
    assert again.runner._dead_there() == {}


def dead_rows(*places: tuple[int, int]) -> Any:
    """Return rows as `decode` returns them."""
    rows = [
        {"_partition": partition, "_offset": offset, "_error": "no", "_dead_topic": "t"}
        for partition, offset in places
    ]
    names = ("_timestamp", "_key", "_value", "_headers")
    return pa.RecordBatch.from_pylist([{**dict.fromkeys(names), **row} for row in rows])


def fail(*_: object) -> None:
    raise PipelineError("killed")


def test_run_removes_checkpoints_of_its_own_job_only(begin: Begin, tmp_path: Path) -> None:
    """The folder may hold other data: that of other jobs, and unknown files."""
    checkpoints = tmp_path / "out-checkpoint"
    others = [
        checkpoints / "flights" / "0123456789ab-0" / "offsets",
        checkpoints / "fedcba987654-0" / "offsets",  # from an earlier version, of an unknown job
        checkpoints / "numbers" / "table" / "_vdl",
    ]
    killed = checkpoints / "numbers" / "0123456789ab-0" / "offsets"
    for folder in (*others, killed):
        folder.mkdir(parents=True)
    begin().commit(at(5, 0))
    assert all(folder.exists() for folder in others)
    assert not killed.parent.exists()


def test_run_that_ends_removes_its_own_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It removes no other.

    It has committed nothing, so another run may be the one that continues.
    """
    used: list[str] = []

    def follow(runner: Runner, checkpoint: str, *, once: bool) -> None:
        assert once
        used.append(checkpoint)
        (Path(checkpoint) / "offsets").mkdir(parents=True)

    monkeypatch.setattr(Runner, "_open", lambda runner: None)
    monkeypatch.setattr(Runner, "_follow", follow)
    healthy = tmp_path / "out-checkpoint" / "numbers" / "0123456789ab-0" / "offsets"
    healthy.mkdir(parents=True)
    with closing(Run(tmp_path, "parquet", monkeypatch)) as job:
        job.runner.run(once=True)
    assert Path(used[0]).parent == healthy.parent.parent
    assert not Path(used[0]).exists()
    assert healthy.exists()


def test_second_copy_of_a_run_touches_nothing_and_is_told_whose_run_it_is(
    begin: Begin, tmp_path: Path
) -> None:
    """It began by mistake and is refused: the healthy run keeps its checkpoint, and continues."""
    healthy, copy = begin(), begin()
    checkpoints = tmp_path / "out-checkpoint" / "numbers"
    for run in (healthy, copy):
        (checkpoints / f"{run.runner._run}-0").mkdir(parents=True)
    healthy.commit(at(5, 0))
    late = checkpoints / f"{copy.runner._run}-1"
    late.mkdir()
    who = healthy.runner._run
    told = rf"run {who} on {re.escape(socket.gethostname())} since \d{{4}}-\d\d-\d\dT[\d:]+Z"
    with pytest.raises(CommitConflict, match=told):
        copy.commit(at(6, 0), [(1, 0)])
    assert (checkpoints / f"{who}-0").exists()
    assert late.exists()
    healthy.commit(at(7, 0), [(1, 0)])


def test_run_whose_checkpoint_its_successor_removed_is_told_of_that_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark reports only that a file is gone."""

    def follow(runner: Runner, checkpoint: str, *, once: bool) -> None:
        heir.commit(at(5, 0))
        raise FileNotFoundError(f"{checkpoint}/offsets/1")

    monkeypatch.setattr(Runner, "_open", lambda runner: None)
    monkeypatch.setattr(Runner, "_follow", follow)
    with (
        closing(Run(tmp_path, "parquet", monkeypatch)) as job,
        closing(Run(tmp_path, "parquet", monkeypatch)) as heir,
    ):
        monkeypatch.setattr(job.runner._topics, "ids", lambda: IDS)
        with pytest.raises(CommitConflict, match=f"run {heir.runner._run} on "):
            job.runner.run()


def test_run_whose_commit_fails_after_it_was_made_is_told_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The table has gone on by this run itself: no other one is to blame."""

    def follow(runner: Runner, checkpoint: str, *, once: bool) -> None:
        del runner, checkpoint, once
        job.commit(at(5, 0))

    def publish(data: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(Runner, "_open", lambda runner: None)
    monkeypatch.setattr(Runner, "_follow", follow)
    with closing(Run(tmp_path, "parquet", monkeypatch)) as job:
        monkeypatch.setattr(job.runner._topics, "ids", lambda: IDS)
        monkeypatch.setattr(job.rows, "_publish", publish)
        with pytest.raises(PipelineError, match="no space left"):
            job.runner.run()
    with closing(Run(tmp_path, "parquet", monkeypatch)) as again:
        assert again.runner._positions == at(5, 0)
