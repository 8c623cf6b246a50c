"""Upserts: a row for each key, that of its last record, regardless of faults in between."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="needs the `spark` extra")
pytest.importorskip("deltalake", reason="needs the `spark` extra")
pytest.importorskip("pyiceberg", reason="needs the `spark` extra")

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable

from tests.pipeline.live_rows import data_files, live_rows
from vdl.pipeline.catalog_settings import local_catalog, name_of
from vdl.pipeline.errors import CommitConflict, PipelineError, SinkInconsistent
from vdl.pipeline.open_table import open_place
from vdl.pipeline.partitioning import PartitionField
from vdl.pipeline.positions import OffsetRange, Positions, TopicPositions
from vdl.pipeline.storage import Folders, resolved_settings, storage_of
from vdl.pipeline.table import DELETE, OP, ROW, TRUNCATE, Commit, DataFile, Place, TableSink
from vdl.pipeline.table_columns import schema_lines
from vdl.pipeline.upsert import STAGED, changes_of, check_key

KINDS = pytest.mark.parametrize("kind", ["delta", "iceberg"])
TOPICS = {"t": ("id", 1)}
COLUMNS = pa.schema(
    [("id", pa.int64()), ("text", pa.string()), ("_partition", pa.int32()), ("_offset", pa.int64())]
)
Change = tuple[str, int | None, str | None]
"""Operation of a record, its key, and its text."""


def at(offset: int) -> Positions:
    return Positions({"t": TopicPositions("id", {0: offset})})


def opened(
    folder: Path, kind: str, *, key: Sequence[str] = ("id",), fields: Sequence[str] = (),
    url: str = "",
) -> TableSink:  # fmt: skip
    path = str(folder / "t")
    catalog = local_catalog(path) if kind == "iceberg" else {}
    by = tuple(map(PartitionField, fields))
    settings = resolved_settings(url, {})
    place = Place(kind, url or path, settings, catalog, name_of(path), by, tuple(key))
    return open_place(place, "job")


class Run:
    """Run of a job, opened at its table's end."""

    def __init__(self, folder: Path, kind: str, name: str = "0123456789ab", **more: Any) -> None:
        self.table = opened(folder, kind, **more)
        self.name = name
        self.end = self.table.open(TOPICS).offset("t", 0) or 0
        self._number = 0

    def staged(
        self, changes: Sequence[Change], *, columns: Any = COLUMNS, files: int = 1
    ) -> Commit:
        """Return a batch of consecutive records as executors would have written it."""
        rows = [
            {"id": key, "text": text, OP: op, "_partition": 0, "_offset": self.end + n}
            for n, (op, key, text) in enumerate(changes)
        ]
        schema = columns.append(pa.field(OP, pa.string()))
        found = []
        for n in range(files if rows else 0):
            part = rows[n::files]
            path = f"{self.table.staging(self.name)}/job-{self.name}-{self._number}-{n}.parquet"
            storage = storage_of(path, resolved_settings(path, {}))
            with storage.create(path) as file:
                pq.write_table(pa.Table.from_pylist(part, schema), file)
            span = OffsetRange("t", 0, part[0]["_offset"], part[-1]["_offset"] + 1)
            found.append(DataFile(path, len(part), storage.finish(path), (span,)))
        end = self.end + len(rows)
        self._number += 1
        return Commit(
            "job", self.name, self._number, at(self.end), at(end), len(rows), 0, tuple(found),
            schema_lines(columns),
        )  # fmt: skip

    def apply(self, changes: Sequence[Change], *, columns: Any = COLUMNS, files: int = 1) -> None:
        batch = self.staged(changes, columns=columns, files=files)
        self.table.commit(batch, columns)
        self.end += len(changes)


def rows_of(table: TableSink) -> dict[int, str]:
    """Return key → text, after checking that each key is there once."""
    found = live_rows(table)
    keys = [row["id"] for row in found]
    assert len(set(keys)) == len(keys), sorted(keys)
    assert not any(OP in row for row in found), found[:1]
    return {row["id"]: row["text"] for row in found}


@KINDS
def test_table_has_the_last_record_of_each_key(tmp_path: Path, kind: str) -> None:
    """Within a batch, across batches, across files of a batch, and after a deletion."""
    run = Run(tmp_path, kind)
    run.apply([(ROW, 1, "a"), (ROW, 2, "b"), (ROW, 1, "c"), (ROW, 3, "d")], files=2)
    assert rows_of(run.table) == {1: "c", 2: "b", 3: "d"}
    run.apply([(ROW, 2, "e"), (DELETE, 1, None), (ROW, 4, "f")])
    assert rows_of(run.table) == {2: "e", 3: "d", 4: "f"}
    run.apply([(ROW, 1, "g")])
    assert rows_of(run.table) == {1: "g", 2: "e", 3: "d", 4: "f"}
    again = Run(tmp_path, kind)
    assert (again.end, again.table.sequence) == (8, 3)
    assert list((tmp_path / "t" / STAGED / "job").iterdir()) == []


@KINDS
def test_key_that_comes_and_goes_in_one_batch_leaves_what_its_last_record_says(
    tmp_path: Path, kind: str
) -> None:
    run = Run(tmp_path, kind)
    run.apply([(ROW, 1, "a"), (ROW, 1, "b"), (DELETE, 1, None)])
    assert rows_of(run.table) == {}
    run.apply([(ROW, 1, "a"), (DELETE, 1, None), (ROW, 1, "c"), (ROW, 2, "d"), (DELETE, 2, None)])
    assert rows_of(run.table) == {1: "c"}


@KINDS
def test_deletion_of_a_key_that_was_never_there_moves_the_offsets_only(
    tmp_path: Path, kind: str
) -> None:
    """Also as the first batch, and if a batch has no records."""
    run = Run(tmp_path, kind)
    run.apply([(DELETE, 5, None)])
    run.apply([(ROW, 1, "a")])
    run.apply([(DELETE, 7, None), (DELETE, 8, None)])
    run.apply([])
    assert rows_of(run.table) == {1: "a"}
    again = Run(tmp_path, kind)
    assert (again.end, again.table.sequence) == (4, 4)


@KINDS
@pytest.mark.parametrize("key", [("text",), ()])
def test_table_of_another_key_is_refused(tmp_path: Path, kind: str, key: tuple[str, ...]) -> None:
    """The rows of one key would be replaced, and those of the other would not."""
    Run(tmp_path, kind).apply([(ROW, 1, "a")])
    wanted = "one row for each text" if key else "a row for each record"
    with pytest.raises(SinkInconsistent, match=f"one row for each id, .* asks for {wanted}"):
        Run(tmp_path, kind, key=key)
    (tmp_path / "rows").mkdir()
    Run(tmp_path / "rows", kind, key=()).apply([])
    with pytest.raises(SinkInconsistent, match=r"a row for each record, .* one row for each id"):
        Run(tmp_path / "rows", kind)
    assert Run(tmp_path, kind).end == 1


@KINDS
def test_batch_that_is_repeated_after_a_kill_changes_nothing(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If killed before the commit, nothing is written, and the next run repeats the batch.

    If killed after it, the next run continues after the batch, and a repetition of it is refused.
    """
    run = Run(tmp_path, kind)
    run.apply([(ROW, 1, "a"), (ROW, 2, "b")])
    killed = Run(tmp_path, kind)
    killed.staged([(ROW, 1, "lost"), (DELETE, 2, None)])
    changes = [(ROW, 1, "c"), (DELETE, 2, None), (ROW, 3, "d")]
    again = Run(tmp_path, kind)
    assert again.end == 2
    repeated = again.staged(changes)
    with monkeypatch.context() as patch:
        patch.setattr(Folders, "remove", _killed)
        with pytest.raises(KeyboardInterrupt):
            again.table.commit(repeated, COLUMNS)
    assert rows_of(again.table) == {1: "c", 3: "d"}
    last = Run(tmp_path, kind, "ba9876543210")
    assert (last.end, last.table.sequence) == (5, 2)
    with pytest.raises(CommitConflict):
        last.table.commit(repeated, COLUMNS)
    last.apply([(ROW, 4, "e")])
    assert rows_of(last.table) == {1: "c", 3: "d", 4: "e"}
    assert list((tmp_path / "t" / STAGED / "job").iterdir()) == []


def _killed(*_: object) -> None:
    raise KeyboardInterrupt


@KINDS
@pytest.mark.parametrize(
    "late", [[(ROW, 1, "zombie"), (ROW, 9, "zombie")], [(DELETE, 99, None)], []]
)
def test_run_that_was_taken_for_dead_is_refused(
    tmp_path: Path, kind: str, late: list[Change]
) -> None:
    """Also if its batch changes no row, so that there is nothing to merge.

    The run checks the table before the other run's commit.
    """
    run = Run(tmp_path, kind)
    run.apply([(ROW, 1, "a"), (ROW, 2, "b")])
    zombie, heir = Run(tmp_path, kind, "cccccccccccc"), Run(tmp_path, kind)
    removed = zombie.staged([(ROW, 1, "zombie")])
    heir.apply([(ROW, 1, "heir"), (DELETE, 2, None)])
    batch = zombie.staged(late)
    check = zombie.table._check_unchanged  # type: ignore[attr-defined]
    looks = iter([True])

    def look() -> None:
        if not next(looks, False):
            check()

    zombie.table._check_unchanged = look  # type: ignore[attr-defined]
    with pytest.raises(CommitConflict):
        zombie.table.commit(batch, COLUMNS)
    with pytest.raises(CommitConflict, match="are missing"):
        changes_of(removed, ["id"], Folders())
    assert rows_of(heir.table) == {1: "heir"}
    assert Run(tmp_path, kind).table.sequence == 2


@KINDS
def test_columns_may_be_added_to_a_table_of_upserts(tmp_path: Path, kind: str) -> None:
    """Older rows have NULL there, also after they are rewritten."""
    run = Run(tmp_path, kind)
    run.apply([(ROW, 1, "a"), (ROW, 2, "b"), (ROW, 3, "c")])
    more = COLUMNS.insert(1, pa.field("more", pa.float64()))
    run.apply([(ROW, 2, "d"), (DELETE, 3, None)], columns=more)
    assert rows_of(run.table) == {1: "a", 2: "d"}
    run.apply([(ROW, 1, "e")], columns=more)
    assert rows_of(run.table) == {1: "e", 2: "d"}
    assert "more: double" in run.table.columns()
    other = COLUMNS.set(1, pa.field("text", pa.int64()))
    with pytest.raises(PipelineError, match="columns have changed"):
        run.table.check(run.staged([], columns=other), other)


@KINDS
def test_files_that_cannot_have_a_key_stay_as_they_are(tmp_path: Path, kind: str) -> None:
    """Files are excluded by minimum and maximum key, in partitioned tables also by partition."""
    run = Run(tmp_path, kind)
    for first in range(0, 40, 10):
        run.apply([(ROW, n, "old") for n in range(first, first + 10)])
    before = data_files(run.table)
    assert len(before) == 4
    run.apply([(ROW, n, "new") for n in (14, 15, 100)] + [(DELETE, 16, None)])
    after = data_files(run.table)
    assert len(before & after) == 3
    assert rows_of(run.table) == {
        **{n: "old" for n in range(40) if n != 16}, 14: "new", 15: "new", 100: "new",
    }  # fmt: skip


@KINDS
def test_file_that_could_have_a_key_and_has_not_stays_as_it_is(tmp_path: Path, kind: str) -> None:
    run = Run(tmp_path, kind)
    run.apply([(ROW, n, "old") for n in range(0, 20, 2)])
    before = data_files(run.table)
    run.apply([(ROW, 5, "new"), (DELETE, 7, None)])
    assert before < data_files(run.table)
    assert rows_of(run.table) == {**dict.fromkeys(range(0, 20, 2), "old"), 5: "new"}


def test_delta_files_that_cannot_have_a_key_are_not_read(tmp_path: Path) -> None:
    run = Run(tmp_path, "delta")
    for first in range(0, 40, 10):
        run.apply([(ROW, n, "old") for n in range(first, first + 10)])
    run.apply([(ROW, 15, "new")])
    told = DeltaTable(str(tmp_path / "t")).history(1)[0]["operationMetrics"]
    assert told["num_target_files_scanned"] == 1
    assert told["num_target_files_skipped_during_scan"] == 3


@KINDS
def test_table_of_upserts_with_partitions_and_two_columns_as_key(tmp_path: Path, kind: str) -> None:
    columns = COLUMNS.append(pa.field("land", pa.string()))
    run = Run(tmp_path, kind, key=("id", "land"), fields=["land"])

    def apply(*changes: tuple[str, int, str | None, str]) -> None:
        batch = run.staged([change[:3] for change in changes], columns=columns)
        for file in batch.files:
            rows = pq.read_table(file.path)
            lands = pa.array([land for *_, land in changes], pa.string())
            at_land = rows.schema.get_field_index("land")
            pq.write_table(rows.set_column(at_land, "land", lands), file.path)
        run.table.commit(batch, columns)
        run.end += len(changes)

    apply((ROW, 1, "a", "de"), (ROW, 1, "b", "fr"), (ROW, 2, "c", "fr"))
    before = data_files(run.table)
    apply((ROW, 1, "d", "fr"), (DELETE, 2, None, "de"))
    rows = live_rows(run.table)
    if kind == "delta":
        rows = [row for path in run.table.files() for row in _with_partition(path)]
    found = sorted((row["id"], row["land"], row["text"]) for row in rows)
    assert found == [(1, "de", "a"), (1, "fr", "d"), (2, "fr", "c")]
    assert len(before & data_files(run.table)) == 1


def _with_partition(path: str) -> list[dict[str, Any]]:
    """Return a file's rows; Delta keeps partition values in the log, and in the folder's name."""
    folder = Path(path).parent.name
    rows = pq.ParquetFile(path).read().to_pylist()
    return [{"land": folder.partition("=")[2], **row} for row in rows]


@KINDS
def test_table_of_upserts_in_an_object_store(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("moto", reason="needs the `spark-dev` extra")
    from tests.pipeline.objects import make_bucket, object_server

    with object_server() as address:
        make_bucket(address, "lake")
        for name, value in {
            "AWS_ENDPOINT_URL": address, "AWS_ACCESS_KEY_ID": "me",
            "AWS_SECRET_ACCESS_KEY": "word",
        }.items():  # fmt: skip
            monkeypatch.setenv(name, value)
        url = "s3://lake/t"
        for changes in (
            [(ROW, 1, "a"), (ROW, 2, "b")],
            [(ROW, 1, "c"), (DELETE, 2, None), (ROW, 3, "d")],
            [(DELETE, 9, None)],
        ):
            Run(tmp_path, kind, url=url).apply(changes)
        again = Run(tmp_path, kind, url=url)
        assert again.end == 6
        assert rows_of(again.table) == {1: "c", 3: "d"}
        storage = storage_of(url, resolved_settings(url, {}))
        assert storage.entries(f"{url}/{STAGED}") == []


@KINDS
def test_truncation_ends_all_rows_before_it(tmp_path: Path, kind: str) -> None:
    run = Run(tmp_path, kind)
    run.apply([(ROW, 1, "a"), (ROW, 2, "b")])
    run.apply([(ROW, 3, "c"), (TRUNCATE, None, None), (ROW, 2, "d")])
    assert rows_of(run.table) == {2: "d"}
    run.apply([(ROW, 3, "c"), (TRUNCATE, None, None)])
    assert rows_of(run.table) == {}
    assert Run(tmp_path, kind).end == 7


@KINDS
def test_truncation_in_a_topic_of_several_partitions_stops_the_job(
    tmp_path: Path, kind: str
) -> None:
    from dataclasses import replace

    run = Run(tmp_path, kind)
    run.apply([(ROW, 1, "a")])
    batch = run.staged([(TRUNCATE, None, None)])
    two = Positions({"t": TopicPositions("id", {0: 2, 1: 5})})
    with pytest.raises(PipelineError, match=r"partition 0 offset 1: .*truncated"):
        run.table.commit(replace(batch, end=two), COLUMNS)
    assert rows_of(run.table) == {1: "a"}


@KINDS
def test_random_changes_are_those_of_a_dict(tmp_path: Path, kind: str) -> None:
    """Comparison with a model, through compactions and new runs."""
    rng = random.Random(7)
    model: dict[int, str] = {}
    run = Run(tmp_path, kind)
    for batch in range(12):
        changes: list[Change] = []
        for n in range(rng.randrange(1, 60)):
            key = rng.randrange(50)
            if rng.random() < 0.3:
                changes.append((DELETE, key, None))
                model.pop(key, None)
            else:
                changes.append((ROW, key, f"{batch}-{n}"))
                model[key] = f"{batch}-{n}"
        run.apply(changes, files=rng.randrange(1, 3))
        assert rows_of(run.table) == model
        if batch % 5 == 4:
            run.table.compact(1 << 20)  # type: ignore[attr-defined]
            assert rows_of(run.table) == model
            run = Run(tmp_path, kind)


def test_upsert_that_a_power_cut_has_torn_is_taken_back(tmp_path: Path) -> None:
    """The log has the commit, and a file that it names is empty: delta-rs syncs neither.

    The commit was not reported to the run, so the next run repeats its batch.
    """
    run = Run(tmp_path, "delta")
    run.apply([(ROW, 1, "a"), (ROW, 2, "b")])
    states = _states(tmp_path)
    before = set(run.table.files())
    run.apply([(ROW, 1, "c")])
    (torn,) = set(run.table.files()) - before
    Path(torn).write_bytes(b"")
    for path, data in states.items():
        path.write_bytes(data)  # It is removed after the sync.
    again = Run(tmp_path, "delta")
    assert (again.end, again.table.sequence) == (2, 1)
    assert rows_of(again.table) == {1: "a", 2: "b"}
    again.apply([(ROW, 1, "c")])
    assert rows_of(again.table) == {1: "c", 2: "b"}


def _states(folder: Path) -> Mapping[Path, bytes]:
    files = (folder / "t" / "_vdl" / "state").rglob("*")
    return {path: path.read_bytes() for path in files if path.is_file()}


def test_delta_table_whose_rows_may_only_be_added_is_refused(tmp_path: Path) -> None:
    run = Run(tmp_path, "delta")
    run.apply([(ROW, 1, "a")])
    table = DeltaTable(str(tmp_path / "t"))
    table.alter.set_table_properties({"delta.appendOnly": "true"})
    with pytest.raises(PipelineError, match="may only be added"):
        Run(tmp_path, "delta").apply([(ROW, 1, "b")])


def test_key_must_be_of_columns_that_can_be_compared() -> None:
    check_key(["id", "text"], COLUMNS)
    with pytest.raises(PipelineError, match="column nope does not exist; x is double"):
        check_key(["nope", "x"], pa.schema([("x", pa.float64())]))
