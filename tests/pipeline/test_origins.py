"""Rows for a topic have distinct origins, wherever they are in a batch."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="needs the `spark` extra")

import pyarrow as pa
import pyarrow.parquet as pq

from vdl.pipeline import origins
from vdl.pipeline.errors import PipelineError
from vdl.pipeline.files import ROWS, WriteSpec, write_batches
from vdl.pipeline.origins import check_origins
from vdl.pipeline.positions import Positions, TopicPositions
from vdl.pipeline.runner import Written
from vdl.pipeline.table import Commit, DataFile
from vdl.pipeline.topic_sink import Mark, TopicSink, _records, as_records

Row = dict[str, Any]
VALUES = pa.schema([("value", pa.binary())])
TYPES = {
    "value": pa.binary(), "_topic": pa.string(), "_partition": pa.int32(), "_offset": pa.int64(),
    "_row": pa.int32(),
}  # fmt: skip


def row(offset: int | None, *, partition: int = 0, **more: Any) -> Row:
    return {"value": b"v", "_partition": partition, "_offset": offset, **more}


def stage(folder: Path, *tasks: Sequence[Row]) -> list[DataFile]:
    """Return the files of a batch, as tasks write and report them."""
    written = Written(None)
    for n, rows in enumerate(tasks):
        schema = pa.schema([(name, TYPES[name]) for name in rows[0]])
        spec = WriteSpec(f"task{n}", str(folder), str(folder), "t", {}, only=ROWS)
        batches = pa.Table.from_pylist(list(rows), schema).to_batches(max_chunksize=100)
        for told in write_batches(iter(batches), spec):
            for report in told.to_pylist():
                written.add(report)
    return written.files


def test_rows_of_one_record_in_two_files_are_refused_before_any_is_sent(tmp_path: Path) -> None:
    """`SELECT ... UNION ALL SELECT ...` creates such rows.

    With one origin, a deduplicating reader would drop the second one without notice.
    """
    sent: list[str] = []

    def send(paths: Sequence[str], mark: Mark) -> int:
        del mark
        sent.extend(paths)
        return sum(pq.ParquetFile(path).metadata.num_rows for path in paths)

    start, end = (Positions({"t": TopicPositions("id", {0: n})}) for n in (0, 10))
    sink = TopicSink(str(tmp_path / "sink"), "job", send)
    sink.open({"t": ("id", 1)})
    folder = Path(sink.staging("run"))
    rows = [row(n) for n in range(5, 10)]
    files = stage(folder, rows, rows)
    commit = Commit("job", "run", 0, start, end, 10, 0, tuple(files), "value: binary")
    with pytest.raises(PipelineError, match=r"t/0 offset 5; number them in a column _row"):
        sink.commit(commit, VALUES)
    assert (sent, sink.sequence) == ([], 0)
    numbered = [[{**one, "_row": n} for one in rows] for n in range(2)]
    files = stage(folder, *numbered)
    sink.commit(Commit("job", "run", 0, start, end, 10, 0, tuple(files), "value: binary"), VALUES)
    assert (len(sent), sink.sequence) == (2, 1)


@pytest.mark.parametrize(
    ("tasks", "problem"),
    [
        ([[row(7), row(7)]], "source offset: t/0 offset 7; number"),
        ([[row(7), row(8), row(9), row(7)]], "source offset: t/0 offset 7; number"),
        ([[row(7), row(9)], [row(8)], [row(10), row(8)]], "source offset: t/0 offset 8; number"),
        ([[row(7, _row=1), row(7, _row=2)], [row(7, _row=1)]], "offset 7 with the number 1"),
        ([[row(7, _row=None)], [row(7, _row=None)]], "offset 7 with the number None"),
        (
            [[row(7, _topic="u")], [row(8, _topic="t"), row(7, _topic="u")]],
            "source offset: u/0 offset 7",
        ),
        ([[row(7), row(None)]], "NULL in one of"),
    ],
)
def test_rows_of_one_origin_are_refused(
    tmp_path: Path, tasks: list[list[Row]], problem: str
) -> None:
    """Side by side, far apart in a file, in different files."""
    with pytest.raises(PipelineError, match=problem):
        check_origins(stage(tmp_path, *tasks))


def test_rows_of_several_places_are_told_apart(tmp_path: Path) -> None:
    """Covers one offset of two partitions and of two topics, and a record's rows by number."""
    check_origins([])
    check_origins(stage(tmp_path, [row(7), row(7, partition=1), row(9)], [row(8)]))
    check_origins(stage(tmp_path, [row(7, _topic="t")], [row(7, _topic="u")]))
    check_origins(stage(tmp_path, [row(7, _row=1), row(8, _row=1)], [row(7, _row=0)]))


def test_rows_without_their_topic_are_refused_where_there_are_several() -> None:
    """Equal offsets of two topics would be one origin, in different batches."""
    rows = SimpleNamespace(columns=["value", "_partition", "_offset"])
    with pytest.raises(PipelineError, match="steps of the job drop _topic"):
        as_records(rows, "", topics=2)


def test_rows_say_their_topic_also_where_the_job_has_read_another(tmp_path: Path) -> None:
    """Later commits still record the positions of the other topic."""
    marks: list[Mark] = []

    def send(paths: Sequence[str], mark: Mark) -> int:
        marks.append(mark)
        return len(paths)

    sink = TopicSink(str(tmp_path / "sink"), "job", send)
    sink.open({"t": ("id", 1)})
    start, end = (
        Positions({"old": TopicPositions("other", {0: 5}), "t": TopicPositions("id", {0: n})})
        for n in (0, 10)
    )
    files = stage(Path(sink.staging("run")), [row(7)])
    sink.commit(Commit("job", "run", 0, start, end, 1, 0, tuple(files), "value: binary"), VALUES)
    (record,) = _records(write_row(tmp_path, row(7)), marks[0])
    assert dict(record.headers)["vdl-source"] == b"t/id/0/7"


def write_row(folder: Path, one: Row) -> str:
    pq.write_table(pa.Table.from_pylist([one]), folder / "row.parquet")
    return str(folder / "row.parquet")


@pytest.mark.parametrize("rows_max", [1, 7, 50, 1_000_000])
def test_rows_with_numbers_are_looked_through_in_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows_max: int
) -> None:
    """The result equals a plain count for any number of rows held at a time."""
    monkeypatch.setattr(origins, "ROWS_MAX", rows_max)
    rng = random.Random(5)
    places = [(p, o, n) for p in range(2) for o in range(40) for n in range(rng.randrange(4))]
    for seed in range(6):
        rng = random.Random(seed)
        given = [*places, *rng.choices(places, k=seed % 2)]
        rng.shuffle(given)
        rows = [row(o, partition=p, _row=n) for p, o, n in given]
        files = stage(tmp_path, rows[:50], rows[50:])
        ((most, times),) = Counter(given).most_common(1)
        if times == 1:
            check_origins(files)
        else:
            with pytest.raises(PipelineError, match="t/{} offset {} with .* {} in".format(*most)):
                check_origins(files)
