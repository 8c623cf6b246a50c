"""Mistakes of newcomers and operators: each ends in a clear error, and never in the wrong rows.

Real jobs run on Spark. A test changes a table or a topic during a run, or between two runs.
Afterwards it repairs the job as the error says, and counts the table's rows.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="needs the `spark` extra")
pytest.importorskip("pyspark", reason="needs the `spark` extra")

import pyarrow.parquet as pq
from confluent_kafka import Producer

from tests.pipeline.test_reading import create
from tests.pipeline.test_rollback import restore
from tests.pipeline.test_spark import COUNT, fill, job_of, run_once
from vdl.commands.app import run_app
from vdl.pipeline.errors import PipelineError, TooManyDeadLetters
from vdl.pipeline.job import Job, load_job
from vdl.pipeline.open_table import rows_table
from vdl.pipeline.runner import BatchReport
from vdl.pipeline.verify import verify

pytestmark = [pytest.mark.spark, pytest.mark.takes_turns(parts=4)]
SINKS = ("parquet", "delta", "iceberg")
DISK_BYTES = 16 << 20


@pytest.fixture(scope="module")
def topic(bootstrap: str) -> str:
    create(bootstrap, "mistakes")
    fill(bootstrap, "mistakes", 0, COUNT, broken=False)
    return "mistakes"


def check(job: Job, spark: Any, rows: int, dead: int = 0) -> None:
    """Check that the table has each record once."""
    verdict = verify(job, spark)
    assert verdict.is_good, verdict
    assert not verdict.is_by_counts
    assert (verdict.rows, verdict.dead) == (rows, dead)


def after(batches: int, act: Callable[[], None]) -> Callable[[BatchReport], None]:
    """Return an observer that calls `act` once, after this number of batches of a run."""
    seen: list[BatchReport] = []

    def on_batch(report: BatchReport) -> None:
        seen.append(report)
        if len(seen) == batches:
            act()

    return on_batch


@pytest.mark.parametrize("sink", ["delta", "iceberg"])
def test_table_that_is_restored_under_a_run_gets_no_gap(
    spark: Any, bootstrap: str, topic: str, tmp_path: Path, sink: str,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    job = job_of(tmp_path, bootstrap, topic, sink=sink)
    act = after(2, lambda: restore(rows_table(job), 0))
    with pytest.raises(PipelineError, match=r"was restored .* up to batch 1; .*pipeline rewind"):
        run_once(job, spark, act)
    assert run_app(["pipeline", "rewind", str(tmp_path / "job.toml")]) == 0
    assert "mistakes/0: " in capsys.readouterr().out
    run_once(job, spark)
    check(job, spark, COUNT)


@pytest.mark.parametrize("sink", SINKS)
def test_table_that_is_removed_under_a_run_stops_it_and_is_written_anew(
    spark: Any, bootstrap: str, topic: str, tmp_path: Path, sink: str
) -> None:
    job = job_of(tmp_path, bootstrap, topic, sink=sink)

    def remove() -> None:
        shutil.rmtree(job.sink.path)
        (tmp_path / "catalog.db").unlink(missing_ok=True)

    with pytest.raises(PipelineError, match=r"removed|gone"):
        run_once(job, spark, after(1, remove))
    shutil.rmtree(job.sink.path, ignore_errors=True)
    run_once(job, spark)
    check(job, spark, COUNT)


@pytest.mark.parametrize("sink", SINKS)
def test_job_of_another_topic_does_not_mix_its_rows_with_those_of_the_first(
    spark: Any, bootstrap: str, topic: str, tmp_path: Path, sink: str
) -> None:
    """With both topics in the job file, rows are distinguished by `_topic`."""
    job = job_of(tmp_path, bootstrap, topic, sink=sink)
    run_once(job, spark)
    other = f"other-{sink}"
    create(bootstrap, other)
    fill(bootstrap, other, 0, 40, broken=False)
    file = tmp_path / "job.toml"
    text = file.read_text(encoding="utf-8")
    file.write_text(text.replace(f'topics = ["{topic}"]', f'topics = ["{other}"]'), "utf-8")
    told = f"was written from {topic}, but source.topics is {other}"
    with pytest.raises(PipelineError, match=told):
        run_once(load_job(file), spark)
    both = f'topics = ["{topic}", "{other}"]'
    file.write_text(text.replace(f'topics = ["{topic}"]', both), "utf-8")
    assert run_once(load_job(file), spark).rows == 40
    check(load_job(file), spark, COUNT + 40)


CHANGED = (
    b'{"n":1,"text":"as before"}',
    b'{"n":2,"text":"one more","more":{"a":[1]}}',
    b'{"n":3}',
    b'{"text":"none"}',
    b'{"n":null,"text":null}',
    b'{"n":"6","text":"a number as text"}',
    b'{"n":7.0,"text":"a whole number"}',
    b'{"n":7.5,"text":"no whole number"}',
    b'{"n":8,"text":9}',
    b'{"n":9,"text":{"now":"an object"}}',
    b'{"n":[10],"text":"now a list"}',
    b'{"N":11,"TEXT":"in capitals"}',
    b'[{"n":12}]',
)


@pytest.mark.parametrize("sink", SINKS)
def test_source_whose_members_change_loses_no_record(
    spark: Any, bootstrap: str, tmp_path: Path, sink: str
) -> None:
    """A member is added, dropped, renamed, or of another type: a row, or a dead letter with why."""
    name = f"changed-{sink}"
    create(bootstrap, name)
    producer = Producer({"bootstrap.servers": bootstrap})
    for value in CHANGED:
        producer.produce(name, value, partition=0)
    assert producer.flush(30) == 0
    file = tmp_path / "job.toml"
    job = job_of(tmp_path, bootstrap, name, sink=sink, share=0.1)
    with pytest.raises(TooManyDeadLetters, match="nothing of this batch was written"):
        run_once(job, spark)
    job = job_of(tmp_path, bootstrap, name, sink=sink)
    totals = run_once(job, spark)
    assert totals.rows + totals.dead == len(CHANGED)
    check(job, spark, totals.rows, totals.dead)
    table = rows_table(job)
    table.open({name: ("", 2)})
    rows = [row for path in table.files() for row in pq.read_table(path).to_pylist()]
    found = {row["_offset"]: (row["n"], row["text"]) for row in rows}
    assert found[0] == (1, "as before")
    assert found[1] == (2, "one more")
    assert found[2] == (3, None)
    assert not {5, 7, 10} & set(found)
    text = file.read_text(encoding="utf-8")
    file.write_text(text.replace("n bigint", "n string"), encoding="utf-8")
    with pytest.raises(PipelineError, match="n is int64 in the table and string in the rows"):
        run_once(load_job(file), spark)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """Small file system; skips without the permission to mount one."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "vdl", str(folder)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("needs the permission to mount a file system")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.mark.parametrize("sink", SINKS)
def test_disk_that_is_full_at_any_point_of_a_batch_costs_no_row(
    spark: Any, bootstrap: str, disk: Path, sink: str
) -> None:
    """The less room, the earlier a run ends. The next one, with room, writes each row once."""
    name = f"full-{sink}"
    create(bootstrap, name)
    job = job_of(disk, bootstrap, name, sink=sink)
    ballast, told = disk / "ballast", []
    for number in range(12):
        fill(bootstrap, name, 20 * number, 20 * number + 20, broken=number == 3)
        run_once(job, spark) if not number else None
        free = shutil.disk_usage(disk).free
        ballast.write_bytes(bytes(max(0, free - 4096 * 2 * number)))
        try:
            run_once(job, spark)
        except (PipelineError, OSError) as error:
            told.append(str(error))
        ballast.unlink()
    assert told
    assert [line for line in told if "No space left" not in line and "full" not in line] == []
    run_once(job, spark)
    check(job, spark, 12 * 20, 7)
