"""Upserts into an Iceberg table that delete rows where they are: what is written and refused.

PyIceberg reads the tables: it knows files of deleted rows, and has no part in writing them.
"""

from __future__ import annotations

import random
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="needs the `spark` extra")
pytest.importorskip("pyiceberg", reason="needs the `spark` extra")

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.manifest import DataFile as IcebergFile
from pyiceberg.manifest import DataFileContent, FileFormat, ManifestContent
from pyiceberg.table import Table, Transaction
from pyiceberg.table.snapshots import Operation
from pyiceberg.typedef import Record

from tests.pipeline.live_rows import data_files, live_of
from tests.pipeline.test_upserts import COLUMNS, Change, Run, rows_of
from vdl.pipeline import deleted_rows, iceberg_upsert
from vdl.pipeline.compaction import Compacted
from vdl.pipeline.errors import CommitConflict, PipelineError
from vdl.pipeline.iceberg_files import local_path
from vdl.pipeline.iceberg_snapshot import OTHERS, RowDelta, deletes_file
from vdl.pipeline.iceberg_table import IcebergSink, _named, once
from vdl.pipeline.iceberg_upsert import MODE
from vdl.pipeline.positions import OffsetRange, Positions, TopicPositions
from vdl.pipeline.storage import Folders
from vdl.pipeline.table import DELETE, ROW, Commit
from vdl.pipeline.tasks import Item, Result, groups
from vdl.pipeline.upsert import STAGED, parts_of

TARGET = 1 << 20
READ_SECONDS = 120
"""Time for a JVM that starts on a busy machine."""


def grown(folder: Path, rows: int = 100, **more: Any) -> tuple[Run, dict[int, str]]:
    """A table of one file, and the rows that it has."""
    run = Run(folder, "iceberg", **more)
    run.apply([(ROW, n, "old") for n in range(rows)])
    return run, dict.fromkeys(range(rows), "old")


def loaded(run: Run) -> Table:
    assert isinstance(run.table, IcebergSink)
    found = run.table._load()
    assert found is not None
    return found


def deleted(run: Run) -> list[int]:
    """How many rows of each data file are deleted, in the order the files came."""
    return [one.deleted for one in live_of(run.table)]


def change(run: Run, model: dict[int, str], changes: Sequence[Change]) -> None:
    for op, key, text in changes:
        assert key is not None
        if op == DELETE:
            model.pop(key, None)
        else:
            model[key] = text or ""
    run.apply(changes)
    assert rows_of(run.table) == model


def between(monkeypatch: pytest.MonkeyPatch, act: Callable[[], Any]) -> None:
    """Have something done just before the next commit reaches the catalog."""
    commit = Transaction.commit_transaction

    def late(transaction: Transaction) -> Table:
        monkeypatch.setattr(Transaction, "commit_transaction", commit)
        act()
        return commit(transaction)

    monkeypatch.setattr(Transaction, "commit_transaction", late)


def test_rows_that_a_batch_replaces_are_deleted_where_they_are(tmp_path: Path) -> None:
    """A data file stays, and has one file of deleted rows, whatever the number of batches."""
    run, model = grown(tmp_path)
    (first,) = data_files(run.table)
    change(run, model, [(ROW, 5, "new"), (DELETE, 7, None)])
    assert first in data_files(run.table)
    assert deleted(run) == [2, 0]
    change(run, model, [(ROW, 5, "newer"), (ROW, 9, "new"), (DELETE, 1000, None)])
    assert first in data_files(run.table)
    # The second batch's file had the row of key 5 only, and is gone.
    assert deleted(run) == [3, 0]
    (snapshot, *_) = reversed(loaded(run).metadata.snapshots)
    assert snapshot.summary is not None
    assert snapshot.summary.operation == Operation.OVERWRITE
    assert snapshot.summary["total-position-deletes"] == "3"
    assert snapshot.summary["total-delete-files"] == "1"
    assert snapshot.summary["total-data-files"] == "2"
    assert Run(tmp_path, "iceberg").table.sequence == 3


def test_file_that_is_largely_deleted_is_written_again(tmp_path: Path) -> None:
    """At the share, and one row beyond it."""
    run, model = grown(tmp_path)
    (first,) = data_files(run.table)
    change(run, model, [(DELETE, n, None) for n in range(20)])
    assert (deleted(run), data_files(run.table)) == ([20], {first})
    change(run, model, [(DELETE, 20, None)])
    assert deleted(run) == [0]
    assert first not in data_files(run.table)
    change(run, model, [(DELETE, n, None) for n in range(100)])
    assert data_files(run.table) == set()
    manifests = loaded(run).current_snapshot().manifests(loaded(run).io)  # type: ignore[union-attr]
    live = [one for one in manifests if one.has_added_files() or one.has_existing_files()]
    assert live == []


@pytest.mark.parametrize("mode", ["", "copy-on-write"])
def test_table_that_is_not_merged_on_read_has_no_deleted_rows(tmp_path: Path, mode: str) -> None:
    """As one of an earlier release, which has no such property."""
    run, model = grown(tmp_path)
    table = loaded(run)
    with table.transaction() as transaction:
        transaction.remove_properties(MODE)
        if mode:
            transaction.set_properties({MODE: mode})
    run = Run(tmp_path, "iceberg")
    (first,) = data_files(run.table)
    change(run, model, [(ROW, 5, "new")])
    assert deleted(run) == [0, 0]
    assert first not in data_files(run.table)


def test_deleted_rows_of_a_key_of_two_columns_are_exact(tmp_path: Path) -> None:
    """Both values of a key may be in the file, and in no row together."""
    run = Run(tmp_path, "iceberg", key=("id", "text"))
    run.apply([(ROW, n, text) for n in range(50) for text in ("a", "b")])
    run.apply([(DELETE, 3, "a"), (DELETE, 7, "b"), (DELETE, 8, "c"), (DELETE, 99, "a")])
    found = {(row["id"], row["text"]) for row in loaded(run).scan().to_arrow().to_pylist()}
    gone = {(3, "a"), (7, "b")}
    assert found == {(n, text) for n in range(50) for text in "ab"} - gone
    assert deleted(run) == [2]


def test_keys_are_found_in_every_part_of_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Positions count from the beginning of the file, not of what is looked at together."""
    monkeypatch.setattr(iceberg_upsert, "SEARCH_ROWS", 7)
    monkeypatch.setattr(deleted_rows, "GROUP_ROWS", 3)
    run, model = grown(tmp_path)
    change(run, model, [(ROW, n, "new") for n in range(3, 100, 9)])
    assert deleted(run) == [11, 0]
    (one, _) = live_of(run.table)
    assert one.deletes is not None
    found = pq.read_table(local_path(one.deletes.file_path))
    assert found["pos"].to_pylist() == list(range(3, 100, 9))
    assert set(found["file_path"].to_pylist()) == {one.data.file_path}
    assert not any(field.nullable for field in found.schema)


def test_files_and_parts_are_divided_into_tasks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A part has the staging files that have rows of its partitions."""
    assert groups([("a", 5), ("b", 5), ("c", 1), ("d", 20), ("e", 1)], 10) == [
        ["a", "b"], ["c"], ["d"], ["e"],
    ]  # fmt: skip
    assert groups([], 10) == []
    monkeypatch.setattr(iceberg_upsert, "SEARCH_BYTES", 1)
    run, model = grown(tmp_path)
    for n in range(5):
        change(run, model, [(ROW, n, f"{n}"), (ROW, 200 + n, "more")])
    seen: list[int] = []

    def counted(function: Callable[[Item], Result], items: Sequence[Item], /) -> list[Result]:
        seen.append(len(items))
        return [function(item) for item in items]

    run.table._tasks = counted  # type: ignore[attr-defined]
    change(run, model, [(ROW, n, "last") for n in range(5)])
    assert seen == [1, 6]


def test_batch_of_several_partitions_is_reduced_in_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each part leaves its own rows alone: keys of different partitions are different ones."""
    from vdl.pipeline import upsert

    monkeypatch.setattr(upsert, "PART_ROWS", 5)
    run = Run(tmp_path, "iceberg")
    batch = run.staged([(ROW, n // 2, f"{n}") for n in range(24)], files=2)
    files = []
    for file in batch.files:
        rows = pq.read_table(file.path)
        # Keys 4 n to 4 n + 3 are in partition n.
        partitions = [key // 4 for key in rows["id"].to_pylist()]
        at = rows.schema.get_field_index("_partition")
        pq.write_table(
            rows.set_column(at, "_partition", pa.array(partitions, pa.int32())), file.path
        )
        spans = tuple(OffsetRange("t", p, 0, 24) for p in sorted(set(partitions)))
        files.append(replace(file, spans=spans))
    end = Positions({"t": TopicPositions("id", {0: 24, 1: 24, 2: 24})})
    batch = replace(batch, files=tuple(files), end=end)
    merge = run.table._merge(batch)  # type: ignore[attr-defined]
    assert len(parts_of(batch, merge._part)) == 3
    run.table.commit(batch, COLUMNS)
    assert rows_of(run.table) == {n: f"{2 * n + 1}" for n in range(12)}
    assert len(data_files(run.table)) == 3


@pytest.mark.parametrize("is_large", [True, False])
@pytest.mark.parametrize("last", [ROW, DELETE])
def test_key_of_two_partitions_is_one_row_in_a_batch_of_any_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_large: bool, last: str
) -> None:
    """As in a batch that one task reduces: the record of the highest partition is the last."""
    from vdl.pipeline import upsert

    if is_large:
        monkeypatch.setattr(upsert, "PART_ROWS", 5)
    run = Run(tmp_path, "iceberg")
    run.apply([(ROW, 3, "old"), (ROW, 99, "old")])
    # Key 3 has its last records in the partitions 0 and 2.
    changes: list[Change] = [(ROW, 3, "zero"), (ROW, 4, "four"), *[(ROW, 5, "five")] * 5]
    changes += [(ROW, 6, "six"), *[(ROW, 7, "seven")] * 5, (last, 3, "two")]
    partitions = [0] * 7 + [1] * 6 + [2]
    batch = spread_over(run.staged(changes), partitions)
    merge = run.table._merge(batch)  # type: ignore[attr-defined]
    assert len(parts_of(batch, merge._part)) == (3 if is_large else 1)
    before = {path.name for path in (tmp_path / "t" / "data").iterdir()}
    run.table.commit(batch, COLUMNS)
    wanted = {4: "four", 5: "five", 6: "six", 7: "seven", 99: "old"}
    assert rows_of(run.table) == (wanted | {3: "two"} if last == ROW else wanted)
    left = {path.name for path in (tmp_path / "t" / "data").iterdir()} - before
    live = {Path(one.file_path).name for of in live_of(run.table) for one in of.files}
    assert left <= live
    assert list((tmp_path / "t" / STAGED / "job").iterdir()) == []


def spread_over(batch: Commit, partitions: Sequence[int]) -> Commit:
    """Return a staged batch of one file whose records are of these partitions of the source."""
    (file,) = batch.files
    rows = pq.read_table(file.path)
    at = rows.schema.get_field_index("_partition")
    pq.write_table(rows.set_column(at, "_partition", pa.array(partitions, pa.int32())), file.path)
    counts = {one: list(partitions).count(one) for one in sorted(set(partitions))}
    spans = tuple(OffsetRange("t", one, 0, count) for one, count in counts.items())
    end = Positions({"t": TopicPositions("id", dict.fromkeys(counts, 100))})
    return replace(batch, files=(replace(file, spans=spans),), end=end)


def test_task_that_runs_twice_is_committed_once(tmp_path: Path) -> None:
    """As one that Spark takes for slow: both attempts write, and one of them counts."""
    run, model = grown(tmp_path)

    def twice(function: Callable[[Item], Result], items: Sequence[Item], /) -> list[Result]:
        late = [function(item) for item in items]
        found = [function(item) for item in items]
        assert late != found or not items
        return found

    run.table._tasks = twice  # type: ignore[attr-defined]
    rng = random.Random(3)
    for batch in range(6):
        keys = rng.sample(range(100), 9)
        change(run, model, [(ROW, key, f"{batch}") for key in keys])
    run.table.compact(TARGET)  # type: ignore[attr-defined]
    assert rows_of(run.table) == model
    assert rows_of(Run(tmp_path, "iceberg").table) == model


def test_batch_whose_staged_files_are_gone_is_refused_on_the_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A successor's first commit removes them; then a task of this run finds none."""
    run, model = grown(tmp_path)
    heir = Run(tmp_path, "iceberg", "cccccccccccc")
    batch = run.staged([(ROW, 1, "zombie")])
    between_stages = iceberg_upsert._planned

    def late(*arguments: Any) -> Any:
        monkeypatch.setattr(iceberg_upsert, "_planned", between_stages)
        change(heir, model, [(ROW, 1, "heir")])
        return between_stages(*arguments)

    monkeypatch.setattr(iceberg_upsert, "_planned", late)
    with pytest.raises(CommitConflict, match="are missing"):
        run.table.commit(batch, COLUMNS)
    assert rows_of(heir.table) == model


def test_zombie_that_has_searched_before_its_successor_committed_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the catalog: all of its work was done by then."""
    run, model = grown(tmp_path)
    heir = Run(tmp_path, "iceberg", "cccccccccccc")
    batch = run.staged([(ROW, 1, "zombie"), (ROW, 500, "zombie")])
    between(monkeypatch, lambda: change(heir, model, [(ROW, 1, "heir"), (DELETE, 2, None)]))
    with pytest.raises(CommitConflict, match="the job is at batch 2, not 1"):
        run.table.commit(batch, COLUMNS)
    assert rows_of(heir.table) == model
    assert deleted(heir) == [2, 0]


def test_commit_that_is_refused_though_it_was_made_keeps_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request that is sent twice can be made and then refused.

    The snapshot of another run that has committed since carries the files.
    """
    run, model = grown(tmp_path)
    commit = Transaction.commit_transaction
    model |= {1: "first", 2: "first"}

    def made(transaction: Transaction) -> Table:
        monkeypatch.setattr(Transaction, "commit_transaction", commit)
        commit(transaction)
        heir = Run(tmp_path, "iceberg", "cccccccccccc")
        change(heir, model, [(ROW, 500, "heir")])
        raise CommitFailedException("it is there already")

    monkeypatch.setattr(Transaction, "commit_transaction", made)
    with pytest.raises(CommitConflict, match="the job is at batch 3, not 1"):
        run.table.commit(run.staged([(ROW, 1, "first"), (ROW, 2, "first")]), COLUMNS)
    assert rows_of(Run(tmp_path, "iceberg", "dddddddddddd").table) == model


def test_upsert_searches_again_behind_a_compaction_that_was_quicker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The positions that it has found are of files that are there no more."""
    run, model = grown(tmp_path)
    change(run, model, [(ROW, n, "new") for n in range(10)])
    janitor = Run(tmp_path, "iceberg", "cccccccccccc")
    done: list[Compacted] = []
    between(monkeypatch, lambda: done.append(janitor.table.compact(TARGET)))  # type: ignore[attr-defined]
    change(run, model, [(ROW, 5, "newer"), (ROW, 50, "newer"), (DELETE, 60, None)])
    assert done == [Compacted(before=2, after=1)]
    assert deleted(run) == [3, 0]
    assert Run(tmp_path, "iceberg").table.sequence == 3


def test_compaction_does_not_bring_back_rows_that_were_deleted_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The group that has such a file is left to the next one."""
    run, model = grown(tmp_path)
    change(run, model, [(ROW, n, "new") for n in range(10)])
    janitor = Run(tmp_path, "iceberg", "cccccccccccc")
    between(monkeypatch, lambda: change(run, model, [(DELETE, 50, None)]))
    assert janitor.table.compact(TARGET) == Compacted()  # type: ignore[attr-defined]
    assert rows_of(run.table) == model
    names = {path.name for path in (tmp_path / "t" / "data").iterdir()}
    assert not any("compacted" in name for name in names)
    assert janitor.table.compact(TARGET) == Compacted(before=2, after=1)  # type: ignore[attr-defined]
    assert rows_of(run.table) == model
    assert deleted(run) == [0]


def test_compaction_writes_large_files_again_that_are_deleted_in_part(tmp_path: Path) -> None:
    """A small one by itself stays, and so does a large one of which little is deleted."""
    run, model = grown(tmp_path)
    target = 2  # Every file is a large one.
    change(run, model, [(DELETE, n, None) for n in range(5)])
    assert run.table.compact(target) == Compacted()  # type: ignore[attr-defined]
    assert deleted(run) == [5]
    change(run, model, [(DELETE, 5, None)])
    done = run.table.compact(target)  # type: ignore[attr-defined]
    assert done.before == 1
    assert rows_of(run.table) == model
    assert sum(deleted(run)) == 0
    assert run.table.compact(TARGET) == Compacted()  # type: ignore[attr-defined]


def test_vacuum_keeps_the_deleted_rows_of_live_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And removes those that no snapshot needs."""
    import os
    import time

    from vdl.pipeline import iceberg_table

    run, model = grown(tmp_path)
    for n in range(3):
        change(run, model, [(ROW, n, "new")])
    before = {path.name for path in (tmp_path / "t" / "data").iterdir()}
    later = time.time() + 48 * 3600
    for path in (tmp_path / "t").rglob("*"):
        os.utime(path, (later - 47 * 3600, later - 47 * 3600))
    monkeypatch.setattr(iceberg_table.time, "time", lambda: later)
    assert run.table.vacuum(24).removed  # type: ignore[attr-defined]
    left = {path.name for path in (tmp_path / "t" / "data").iterdir()}
    wanted = {Path(file.file_path).name for one in live_of(run.table) for file in one.files}
    assert left == wanted
    assert left < before
    assert rows_of(Run(tmp_path, "iceberg").table) == model


def test_manifests_of_deleted_rows_are_merged(tmp_path: Path) -> None:
    """Files of which a row was deleted once, and then none, would have one each for ever."""
    run, model = grown(tmp_path)
    table = loaded(run)
    with table.transaction() as transaction:
        transaction.set_properties({"commit.manifest.min-count-to-merge": "3"})
    run = Run(tmp_path, "iceberg")
    counts = []
    for n in range(10):
        change(run, model, [(ROW, 1000 + 100 * n + m, "more") for m in range(50)])
        change(run, model, [(DELETE, 1000 + 100 * n, None)])
        snapshot = loaded(run).current_snapshot()
        assert snapshot is not None
        kinds = [one.content for one in snapshot.manifests(loaded(run).io)]
        counts.append((kinds.count(ManifestContent.DATA), kinds.count(ManifestContent.DELETES)))
    assert deleted(run) == [0, *[1] * 10]
    assert max(max(one) for one in counts) <= 4
    sequences = {one.deletes.file_path for one in live_of(run.table) if one.deletes is not None}
    assert len(sequences) == 10


def test_rows_that_others_have_deleted_stay_deleted(tmp_path: Path) -> None:
    """In a file of the kind that is written here: it is read, and taken over."""
    run, model = grown(tmp_path)
    table = loaded(run)
    (live,) = live_of(run.table)
    path = str(tmp_path / "t" / "data" / "others.parquet")
    positions = np.array([2, 4], dtype=np.int64)
    size = deleted_rows.write_positions(path, live.data.file_path, positions, Folders())
    transaction = once(table)
    with RowDelta(transaction, table) as delta:
        delta.append_data_file(deletes_file(f"file://{path}", 2, size, live.data))
    transaction.commit_transaction()
    del model[2], model[4]
    assert rows_of(run.table) == model
    run = Run(tmp_path, "iceberg")
    change(run, model, [(ROW, 4, "back"), (ROW, 6, "new")])
    assert deleted(run) == [3, 0]
    assert run.table.compact(TARGET) == Compacted(before=2, after=1)  # type: ignore[attr-defined]
    assert rows_of(run.table) == model


def deletes_of_others(
    run: Run, positions: Sequence[int], *, file_format: FileFormat = FileFormat.PARQUET
) -> None:
    """Delete rows of the only data file, by a file of positions as they are given."""
    table = loaded(run)
    (live,) = live_of(run.table)
    path = f"{local_path(table.location())}/data/others.parquet"
    rows = np.array(positions, dtype=np.int64)
    size = deleted_rows.write_positions(path, live.data.file_path, rows, Folders())
    file = deletes_file(f"file://{path}", len(positions), size, live.data)
    file[2] = file_format  # its place in a manifest
    transaction = once(table)
    with RowDelta(transaction, table) as delta:
        delta.append_data_file(file)
    transaction.commit_transaction()


def test_positions_that_others_have_written_twice_count_once(tmp_path: Path) -> None:
    """Two more deleted rows are as many as there were, if those are counted with repetitions."""
    run, model = grown(tmp_path)
    deletes_of_others(run, [2, 4, 4, 2])
    del model[2], model[4]
    assert rows_of(run.table) == model
    run = Run(tmp_path, "iceberg")
    change(run, model, [(ROW, 6, "new"), (ROW, 8, "new")])
    change(run, model, [(ROW, 7, "new"), (ROW, 4, "back")])
    assert deleted(run)[0] == 5


def test_compaction_counts_repeated_positions_of_others_once(tmp_path: Path) -> None:
    run, model = grown(tmp_path)
    deletes_of_others(run, [*range(9), *range(9)])
    for n in range(9):
        del model[n]
    assert run.table.compact(2) == Compacted(before=1, after=1)  # type: ignore[attr-defined]
    assert rows_of(run.table) == model
    assert deleted(run) == [0]


def test_deleted_rows_in_another_format_than_parquet_are_refused(tmp_path: Path) -> None:
    run, _ = grown(tmp_path)
    deletes_of_others(run, [2], file_format=FileFormat.AVRO)
    with pytest.raises(PipelineError, match=OTHERS):
        Run(tmp_path, "iceberg").apply([(ROW, 5, "new")])


def test_deleted_rows_of_several_data_files_are_refused(tmp_path: Path) -> None:
    """As other writers may have them: what is of which file only the file itself says."""
    run, _ = grown(tmp_path)
    table = loaded(run)
    (live,) = live_of(run.table)
    path = str(tmp_path / "t" / "data" / "others.parquet")
    positions = np.array([2], dtype=np.int64)
    size = deleted_rows.write_positions(path, live.data.file_path, positions, Folders())
    of_many = deletes_file(f"file://{path}", 1, size, live.data)
    of_many.upper_bounds[deleted_rows.PATH_ID] += b"x"
    transaction = once(table)
    with RowDelta(transaction, table) as delta:
        delta.append_data_file(of_many)
    transaction.commit_transaction()
    run = Run(tmp_path, "iceberg")
    with pytest.raises(PipelineError, match=OTHERS):
        run.apply([(ROW, 5, "new")])
    with pytest.raises(PipelineError, match=OTHERS):
        run.table.compact(TARGET)  # type: ignore[attr-defined]
    with pytest.raises(PipelineError, match=OTHERS):
        run.table.files()


def equality_deletes(run: Run, keys: Sequence[int]) -> None:
    """Delete rows as Flink does: by a file of keys, which applies to all older files."""
    table = loaded(run)
    path = f"{local_path(table.location())}/data/others-{len(keys)}-{keys[0]}.parquet"
    pq.write_table(pa.table({"id": pa.array(keys, pa.int64())}), path)
    bounds = [{1: n.to_bytes(8, "little")} for n in (min(keys), max(keys))]
    file = IcebergFile.from_args(
        content=DataFileContent.EQUALITY_DELETES,
        file_path=f"file://{path}",
        file_format=FileFormat.PARQUET,
        partition=Record(),
        record_count=len(keys),
        file_size_in_bytes=Path(path).stat().st_size,
        value_counts={1: len(keys)},
        null_value_counts={1: 0},
        lower_bounds=bounds[0],
        upper_bounds=bounds[1],
        equality_ids=[1],
    )
    file.spec_id = table.spec().spec_id
    transaction = once(table)
    with RowDelta(transaction, table) as delta:
        delta.append_data_file(file)
    transaction.commit_transaction()


@pytest.mark.parametrize("changes", [1, 30])
def test_keys_that_others_have_deleted_do_not_come_back(tmp_path: Path, changes: int) -> None:
    """A file that is rewritten is newer than the keys, which would no longer apply to it.

    The batch has none of the deleted keys, so a search by its keys does not find them.
    """
    run, _ = grown(tmp_path)
    before = data_files(run.table)
    equality_deletes(run, [90, 95])
    run = Run(tmp_path, "iceberg")
    with pytest.raises(PipelineError, match=OTHERS):
        run.apply([(ROW, n, "new") for n in range(changes)])
    with pytest.raises(PipelineError, match=OTHERS):
        run.table.compact(TARGET)  # type: ignore[attr-defined]
    assert data_files_of_all_kinds(run) == before | {"others-2-90.parquet"}


def data_files_of_all_kinds(run: Run) -> set[str]:
    return {Path(path).name for path in _named(loaded(run))}


def test_files_of_a_table_with_deleted_rows_are_not_its_rows(tmp_path: Path) -> None:
    run, model = grown(tmp_path)
    change(run, model, [(ROW, 5, "new")])
    with pytest.raises(PipelineError, match="rows that were deleted"):
        run.table.files()


def test_what_a_failed_search_has_written_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, _ = grown(tmp_path)
    before = set((tmp_path / "t" / "data").iterdir())

    def die(*_: object) -> int:
        raise OSError("no room")

    monkeypatch.setattr(iceberg_upsert, "write_positions", die)
    with pytest.raises(PipelineError, match="no room"):
        run.apply([(DELETE, 5, None)])
    assert set((tmp_path / "t" / "data").iterdir()) == before


@pytest.mark.parametrize("fields", [[], ["id"]])
def test_random_changes_of_many_keys_are_those_of_a_dict(tmp_path: Path, fields: list[str]) -> None:
    """Small shares of a file, so that most rows are deleted where they are."""
    rng = random.Random(11)
    keys = 8 if fields else 600
    run, model = grown(tmp_path, keys, fields=fields)
    for batch in range(25):
        changes: list[Change] = []
        for n in range(rng.randrange(1, 3 if fields else 40)):
            key = rng.randrange(keys)
            text = None if rng.random() < 0.2 else f"{batch}-{n}"
            changes.append((DELETE if text is None else ROW, key, text))
        change(run, model, changes)
        if batch % 7 == 6:
            run.table.compact(TARGET)  # type: ignore[attr-defined]
            assert rows_of(run.table) == model
            run = Run(tmp_path, "iceberg", fields=fields)


def test_iceberg_s_own_reader_sees_the_same_rows(tmp_path: Path) -> None:
    """Which is another library, in Java, and applies deleted rows by the format's rules."""
    from tests.ecosystem.programs import classes, java

    run, model = grown(tmp_path, 400)
    for batch in range(3):
        rows: list[Change] = [(ROW, n, f"{batch}") for n in range(batch, 400, 17)]
        change(run, model, [*rows, (DELETE, 150 + batch, None), (ROW, 1000 + batch, "more")])
    assert sum(deleted(run)) > 70
    command = java(classes("iceberg"), "vdl.ReadTable", loaded(run).metadata_location, "id", "text")
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=READ_SECONDS
    )
    assert done.returncode == 0, done.stderr
    found = [line.split("\t") for line in done.stdout.splitlines()]
    assert sorted((int(key), text) for key, text in found) == sorted(model.items())


def test_place_without_a_key_makes_a_table_without_the_mode(tmp_path: Path) -> None:
    """Rows that are appended are of no concern to it."""
    run = Run(tmp_path, "iceberg", key=())
    run.table.staging("r")
    run.apply([])
    assert MODE not in loaded(run).properties
