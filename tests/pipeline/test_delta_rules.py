"""Delta tables created by others: each requirement on a writer is met or refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("deltalake", reason="needs the `spark` extra")

import pyarrow as pa
from deltalake import DeltaTable, TableFeatures, write_deltalake

from tests.pipeline.test_tables import COLUMNS, TOPICS, at, batch, rows_of
from vdl.pipeline.delta_rules import DeltaRefused
from vdl.pipeline.open_table import open_table

ONE = pa.table([[-1], [0], [0]], schema=COLUMNS)


def write(folder: Path) -> Any:
    """Write a batch of five rows, as a job would; return the table."""
    table = open_table("delta", str(folder), "job")
    table.open(TOPICS)
    table.commit(batch(table, "a", at(0, 0), at(5, 0)), COLUMNS)
    return table


def refused(folder: Path, reason: str) -> None:
    """Assert that no row of the batch is in the table, and that its values are unchanged."""
    before = DeltaTable(str(folder)).version()
    with pytest.raises(DeltaRefused, match=reason):
        write(folder)
    assert DeltaTable(str(folder)).version() == before


def test_partitioned_table_is_refused_and_not_filled_with_nulls(tmp_path: Path) -> None:
    """Readers take values of partition columns from the log, never from the files."""
    write_deltalake(str(tmp_path / "t"), ONE, partition_by=["_partition"])
    refused(tmp_path / "t", "it is partitioned by _partition")
    found = DeltaTable(str(tmp_path / "t")).to_pyarrow_table()
    assert found["_partition"].to_pylist() == [0]


def test_table_with_a_check_constraint_is_refused(tmp_path: Path) -> None:
    write_deltalake(str(tmp_path / "t"), ONE)
    DeltaTable(str(tmp_path / "t")).alter.add_constraint({"few": "n < 3"})
    refused(tmp_path / "t", r"it has the constraint few \(n < 3\)")


@pytest.mark.parametrize(
    ("feature", "is_idle"),
    [
        ("AppendOnly", True),
        ("CheckConstraints", True),
        ("DeletionVectors", True),
        ("DomainMetadata", False),
        ("IcebergCompatV1", False),
        ("RowTracking", False),
        ("VariantType", False),
    ],
)
def test_feature_of_a_table_is_idle_or_refused(
    tmp_path: Path, feature: str, *, is_idle: bool
) -> None:
    write_deltalake(str(tmp_path / "t"), ONE)
    named = getattr(TableFeatures, feature)
    DeltaTable(str(tmp_path / "t")).alter.add_feature(named, allow_protocol_versions_increase=True)
    if is_idle:
        assert rows_of(write(tmp_path / "t")) == [-1, *range(5)]
    else:
        refused(tmp_path / "t", f"it has the feature {feature[0].lower()}{feature[1:]}")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"delta.columnMapping.mode": "name"}, "its columns have the mapping name"),
        ({"protocol": 8}, "it requires writers of version 8"),
        ({"delta.generationExpression": "n + 1"}, "its column _offset has a generated value"),
        ({"delta.invariants": "{}"}, "its column _offset has an invariant"),
    ],
)
def test_rule_that_another_writer_has_set_is_refused(
    tmp_path: Path, changes: dict[str, Any], reason: str
) -> None:
    """The rules are in the form of a Spark table's log."""
    write_deltalake(str(tmp_path / "t"), ONE)
    (log,) = (tmp_path / "t" / "_delta_log").glob("*.json")
    actions = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    ((name, value),) = changes.items()
    for action in actions:
        if name == "protocol" and "protocol" in action:
            action["protocol"] = {"minReaderVersion": 1, "minWriterVersion": value}
        if "metaData" in action and name == "delta.columnMapping.mode":
            action["metaData"]["configuration"][name] = value
        elif "metaData" in action and name != "protocol":
            schema = json.loads(action["metaData"]["schemaString"])
            schema["fields"][-1]["metadata"] = {name: value}
            action["metaData"]["schemaString"] = json.dumps(schema)
    log.write_text("\n".join(map(json.dumps, actions)), encoding="utf-8")
    refused(tmp_path / "t", reason)


@pytest.mark.parametrize("is_null", [False, True])
def test_not_null_is_kept_by_what_the_files_say(tmp_path: Path, *, is_null: bool) -> None:
    """Spark's rows may nearly always be NULL: only the actual values count."""
    strict = pa.schema([COLUMNS.field(0).with_nullable(not is_null), *list(COLUMNS)[1:]])
    also = pa.field("more", pa.string(), nullable=not is_null)
    known = strict.append(also) if is_null else pa.schema([strict.field(0), *list(COLUMNS)[1:]])
    one = pa.table([[-1], [0], [0], *([["x"]] if is_null else [])], schema=known)
    write_deltalake(str(tmp_path / "t"), one)
    if not is_null:
        assert rows_of(write(tmp_path / "t")) == [-1, *range(5)]
        return
    table = open_table("delta", str(tmp_path / "t"), "job")
    table.open(TOPICS)
    wider = COLUMNS.append(pa.field("more", pa.string()))
    with pytest.raises(DeltaRefused, match="its column more is NOT NULL"):
        table.commit(batch(table, "a", at(0, 0), at(5, 0), 0, wider), wider)
