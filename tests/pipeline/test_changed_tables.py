"""Iceberg tables whose columns or partitions have changed: upserts and compaction keep all rows.

PyIceberg reads the tables, and changes them as another writer would.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="needs the `spark` extra")
pytest.importorskip("pyiceberg", reason="needs the `spark` extra")

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.io.pyarrow import parquet_file_to_data_file
from pyiceberg.manifest import DataFileContent, FileFormat
from pyiceberg.transforms import IdentityTransform
from pyiceberg.typedef import Record

from tests.pipeline.live_rows import live_of, live_rows
from tests.pipeline.test_merge_on_read import loaded
from tests.pipeline.test_upserts import COLUMNS, Change, Run
from vdl.pipeline.errors import PipelineError
from vdl.pipeline.file_columns import Column, in_columns, names_in
from vdl.pipeline.iceberg_entries import PARTITION
from vdl.pipeline.iceberg_files import local_path
from vdl.pipeline.partitioning import PartitionField
from vdl.pipeline.table import DELETE, ROW

TARGET = 1 << 20
LAND = COLUMNS.append(pa.field("land", pa.string()))


def grown(folder: Path, rows: int = 10, **more: Any) -> Run:
    run = Run(folder, "iceberg", **more)
    run.apply([(ROW, n, "old") for n in range(rows)])
    return run


def apply(run: Run, changes: Sequence[Change], lands: Sequence[str], columns: Any = LAND) -> None:
    """Apply changes to rows that have a column `land`."""
    batch = run.staged(changes, columns=columns)
    for file in batch.files:
        rows = pq.read_table(file.path)
        at = rows.schema.get_field_index("land")
        pq.write_table(rows.set_column(at, "land", pa.array(lands, pa.string())), file.path)
    run.table.commit(batch, columns)
    run.end += len(changes)


def rows_of(run: Run, *names: str) -> list[tuple[Any, ...]]:
    return sorted((tuple(row[name] for name in names) for row in live_rows(run.table)), key=str)


def compact(run: Run) -> None:
    assert run.table.compact(TARGET).before  # type: ignore[attr-defined]


def test_file_without_a_key_column_has_none_of_the_keys(tmp_path: Path) -> None:
    """The column was added later. Its older rows have NULL there, and NULL is no key."""
    grown(tmp_path, 3)
    run = Run(tmp_path, "iceberg", key=("id", "land"))
    apply(run, [(ROW, 1, "new"), (ROW, 2, "new")], ["de", "de"])
    apply(run, [(ROW, 1, "newer"), (DELETE, 2, None), (ROW, 3, "new")], ["de", "de", "de"])
    wanted = [(0, None, "old"), (1, None, "old"), (2, None, "old"), (1, "de", "newer")]
    wanted = sorted([*wanted, (3, "de", "new")], key=str)
    assert rows_of(run, "id", "land", "text") == wanted
    compact(run)
    assert rows_of(run, "id", "land", "text") == wanted


@pytest.mark.parametrize("changes", [1, 6])
def test_renamed_key_column_is_found_in_older_files(tmp_path: Path, changes: int) -> None:
    """By the table's name mapping. A file that is written again has the present name."""
    run = grown(tmp_path)
    with loaded(run).update_schema() as update:
        update.rename_column("id", "number")
    columns = COLUMNS.set(0, pa.field("number", pa.int64()))
    run = Run(tmp_path, "iceberg", key=("number",))
    batch = run.staged([(ROW, n, "new") for n in range(changes)])
    for file in batch.files:
        rows = pq.read_table(file.path)
        pq.write_table(rows.rename_columns(["number", *rows.column_names[1:]]), file.path)
    run.table.commit(batch, columns)
    wanted = [(n, "new" if n < changes else "old") for n in range(10)]
    assert rows_of(run, "number", "text") == wanted
    compact(run)
    assert rows_of(run, "number", "text") == wanted


def test_column_that_was_dropped_is_not_written_again(tmp_path: Path) -> None:
    """And does not become the values of a new column of its name."""
    run = Run(tmp_path, "iceberg")
    apply(run, [(ROW, n, "old") for n in range(10)], ["de"] * 10)
    with loaded(run).update_schema() as update:
        update.delete_column("land")
    run = Run(tmp_path, "iceberg")
    run.apply([(ROW, n, "new") for n in range(5)])
    wanted = [(n, "new" if n < 5 else "old") for n in range(10)]
    assert rows_of(run, "id", "text") == wanted
    compact(run)
    assert rows_of(run, "id", "text") == wanted


def test_rows_of_a_writer_with_field_ids_are_kept(tmp_path: Path) -> None:
    """Iceberg's library ignores names in a file of which some columns have ids: none has any."""
    run = grown(tmp_path, 3)
    rows = {"id": [100, 101], "text": ["x", "y"], "_partition": [0, 0], "_offset": [-1, -2]}
    loaded(run).append(pa.table(rows, schema=COLUMNS))
    more = COLUMNS.append(pa.field("tags", pa.list_(pa.struct([("x", pa.int32())]))))
    run = Run(tmp_path, "iceberg")
    run.apply([(ROW, 100, "z"), (ROW, 1, "new")], columns=more)
    wanted = [(0, "old"), (1, "new"), (100, "z"), (101, "y"), (2, "old")]
    assert rows_of(run, "id", "text") == wanted
    compact(run)
    assert rows_of(run, "id", "text") == wanted
    for one in live_of(run.table):
        schema = pq.read_schema(local_path(one.data.file_path))
        assert not any(field.metadata for field in schema), schema


def test_partition_has_the_value_of_a_key_column_that_a_file_lacks(tmp_path: Path) -> None:
    """As files that a table took over from Hive, which keeps such columns out of them."""
    run = Run(tmp_path, "iceberg", key=("id", "land"), fields=["land"])
    apply(run, [(ROW, 1, "a"), (ROW, 2, "b")], ["de", "fr"])
    table = loaded(run)
    path = f"{local_path(table.location())}/data/hive.parquet"
    rows = {"id": [1, 2, 3], "text": ["x"] * 3, "_partition": [0] * 3, "_offset": [-1] * 3}
    pq.write_table(pa.table(rows, schema=COLUMNS), path)
    transaction = table.transaction()
    with transaction.update_snapshot().fast_append() as append:
        file = parquet_file_to_data_file(table.io, table.metadata, f"file://{path}")
        file[PARTITION] = Record("it")
        append.append_data_file(file)
    transaction.commit_transaction()
    run = Run(tmp_path, "iceberg", key=("id", "land"), fields=["land"])
    apply(run, [(ROW, 1, "new"), (DELETE, 3, None), (ROW, 2, "new")], ["it", "it", "de"])
    wanted = [(1, "de", "a"), (1, "it", "new"), (2, "de", "new"), (2, "fr", "b"), (2, "it", "x")]
    assert rows_of(run, "id", "land", "text") == wanted
    compact(run)
    assert rows_of(run, "id", "land", "text") == wanted


@pytest.mark.parametrize("changes", [1, 6])
@pytest.mark.parametrize("old", ["", "bucket", "land"])
def test_upserts_keep_files_in_the_partition_spec_that_they_were_written_in(
    tmp_path: Path, old: str, changes: int
) -> None:
    """A file of an older spec has none of the new one's values, or values of another column."""
    key = ("id", "land")
    run = Run(tmp_path, "iceberg", key=key, fields=["land"] if old == "land" else [])
    if old == "bucket":
        run.table._fields = (PartitionField("land", "bucket", 4),)  # type: ignore[attr-defined]
    lands = ["de", "fr"] * 5
    apply(run, [(ROW, n, "old") for n in range(10)], lands)
    fields = loaded(run).spec().fields
    with loaded(run).update_spec() as update:
        for field in fields:
            update.remove_field(field.name)
        update.add_field("id", IdentityTransform(), "by_id")
    before = {one.data.file_path: one.data.spec_id for one in live_of(run.table)}
    run = Run(tmp_path, "iceberg", key=key, fields=["id"])
    changed = [(ROW, n, "new") for n in range(changes)]
    apply(run, [*changed, (DELETE, 9, None)], [*lands[:changes], "fr"])
    wanted = [(n, lands[n], "new" if n < changes else "old") for n in range(9)]
    assert rows_of(run, "id", "land", "text") == wanted
    specs = {one.data.file_path: one.data.spec_id for one in live_of(run.table)}
    newest = loaded(run).spec().spec_id
    assert newest not in before.values()
    assert set(specs.values()) == {newest, *before.values()}
    for n in range(9):
        scanned = loaded(run).scan(row_filter=f"land == '{lands[n]}' and id == {n}").to_arrow()
        assert scanned["id"].to_pylist() == [n]
    run.table.compact(TARGET)  # type: ignore[attr-defined]
    assert rows_of(run, "id", "land", "text") == wanted


def test_compaction_joins_no_files_of_two_partition_specs(tmp_path: Path) -> None:
    """The same number of fields does not make the same partitions."""
    run = Run(tmp_path, "iceberg", key=("id", "land"), fields=["land"])
    for n in range(3):
        apply(run, [(ROW, n, "a")], ["de"])
    with loaded(run).update_spec() as update:
        update.remove_field("land")
        update.add_field("id", IdentityTransform(), "by_id")
    run = Run(tmp_path, "iceberg", key=("id", "land"), fields=["id"])
    for land in ("fr", "it"):
        apply(run, [(ROW, 7, "b")], [land])
    compact(run)
    assert len(live_of(run.table)) == 2
    assert all(one.data.content == DataFileContent.DATA for one in live_of(run.table))
    wanted = [(0, "de"), (1, "de"), (2, "de"), (7, "fr"), (7, "it")]
    assert rows_of(run, "id", "land") == wanted
    for key, land in wanted:
        scanned = loaded(run).scan(row_filter=f"land == '{land}' and id == {key}").to_arrow()
        assert scanned["id"].to_pylist() == [key]


def test_data_file_in_another_format_than_parquet_is_refused_by_name(tmp_path: Path) -> None:
    run = grown(tmp_path)
    table = loaded(run)
    path = f"{local_path(table.location())}/data/others.orc"
    pq.write_table(pa.table({"id": [1]}), path)
    transaction = table.transaction()
    with transaction.update_snapshot().fast_append() as append:
        file = parquet_file_to_data_file(table.io, table.metadata, f"file://{path}")
        file[2] = FileFormat.ORC  # its place in a manifest
        append.append_data_file(file)
    transaction.commit_transaction()
    run = Run(tmp_path, "iceberg")
    with pytest.raises(PipelineError, match=r"others\.orc is not a Parquet file"):
        run.apply([(ROW, 1, "new")])
    with pytest.raises(PipelineError, match=r"others\.orc is not a Parquet file"):
        run.table.compact(TARGET)  # type: ignore[attr-defined]


def test_column_is_found_by_its_id_or_else_by_its_names() -> None:
    """A column that has an id has no name; also in a file in which only some have ids."""
    columns = [Column("number", 1, ("id", "number")), Column("text", 2, ("text",))]
    number = pa.field("text", pa.int64(), metadata={"PARQUET:field_id": "1"})
    old = pa.field("old", pa.string(), metadata={"PARQUET:field_id": "2"})
    plain = [("text", pa.string()), ("number", pa.int64())]
    assert names_in(pa.schema(plain), columns) == {"number": "number", "text": "text"}
    assert names_in(pa.schema([old, number]), columns) == {"number": "text", "text": "old"}
    assert names_in(pa.schema([number]), columns) == {"number": "text"}
    assert names_in(pa.schema([old, plain[1]]), columns) == {"number": "number", "text": "old"}
    inner = pa.field("x", pa.int32(), metadata={"PARQUET:field_id": "7"})
    nested = pa.schema([("text", pa.map_(pa.string(), pa.list_(pa.struct([inner]))))])
    batch = pa.RecordBatch.from_pylist([{"text": [("a", [{"x": 1}, None])]}], schema=nested)
    found = in_columns(batch, columns)
    assert found.to_pylist() == batch.to_pylist()
    field = found.schema.field("text").type.item_field.type.value_field.type.field(0)
    assert (field.name, field.metadata) == ("x", None)
