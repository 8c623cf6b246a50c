"""Requirements of a Delta table on its writers, and the check that this sink meets them.

Delta's protocol has rules that only a writer can enforce: values of partition columns are in the
log and not in the files, CHECK constraints and NOT NULL hold for every row, mapped columns have
other names in files. delta-rs commits the files it is given without checking such rules, so a
violation is silent damage. Every requirement of a table is therefore either met here or refused by
name. A feature unknown here is refused too.

Does not depend on Spark, Kafka, or how commits are made.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable

from vdl.pipeline.errors import PipelineError
from vdl.pipeline.file_stats import null_counts
from vdl.pipeline.storage import Storage
from vdl.pipeline.table import DataFile

CONSTRAINT_PREFIX = "delta.constraints."
IDLE_FEATURES = frozenset(
    {
        "appendOnly", "changeDataFeed", "deletionVectors", "timestampNtz", "v2Checkpoint",
        "vacuumProtocolCheck",
        # These require something only if a column or a property uses them: see `_asked`.
        "checkConstraints", "columnMapping", "generatedColumns", "identityColumns", "invariants",
        "allowColumnDefaults",
    }
)  # fmt: skip
"""Features that require nothing of a writer that only adds files of all columns."""
LEGACY_VERSION_MAX = 6
"""Writer versions up to this stand for sets of features, all in IDLE_FEATURES."""
FEATURES_VERSION = 7
COLUMN_RULES = {
    "delta.invariants": "an invariant",
    "delta.generationExpression": "a generated value",
    "delta.identity.start": "an identity value",
}
MAPPING = "delta.columnMapping.mode"


class DeltaRefused(PipelineError):
    """The table requires something that this sink does not do; `reasons` lists everything found."""

    def __init__(self, path: str, reasons: list[str]) -> None:
        super().__init__(f"{path}: this sink cannot write to the table: {'; '.join(reasons)}")
        self.path = path
        self.reasons = reasons


def check_rules(path: str, table: DeltaTable, partitions: Sequence[str]) -> None:
    """Raise DeltaRefused if adding files to the table as they are would damage it.

    This includes files that are partitioned by other columns than the table.
    """
    protocol, metadata = table.protocol(), table.metadata()
    reasons = _unknown_features(int(protocol.min_writer_version), protocol.writer_features or ())
    columns = list(metadata.partition_columns)
    if columns != list(partitions):
        wanted = f", and not by {', '.join(partitions)}" if partitions else ""
        reasons.append(f"it is partitioned by {', '.join(columns) or 'nothing'}{wanted}")
    reasons += _asked(dict(metadata.configuration), json.loads(table.schema().to_json()))
    if reasons:
        raise DeltaRefused(path, reasons)


def check_partitions(path: str, columns: Sequence[str], files: Iterable[DataFile]) -> None:
    """Raise DeltaRefused unless Delta's log can represent each partition value."""
    bad = {
        name
        for file in files
        for name, one in zip(columns, file.partition, strict=True)
        if one == ""
    }
    if bad:
        what = "is an empty string in some rows, which Delta reads as NULL; replace it in a step"
        raise DeltaRefused(path, [f"its partition column {name} {what}" for name in sorted(bad)])


def _unknown_features(version: int, features: Iterable[str]) -> list[str]:
    if version > FEATURES_VERSION:
        return [f"it requires writers of version {version}"]
    if version > LEGACY_VERSION_MAX:
        unknown = sorted(set(features) - IDLE_FEATURES)
        return [f"it has the feature {name}" for name in unknown]
    return []


def _asked(properties: Mapping[str, Any], schema: Mapping[str, Any]) -> list[str]:
    """Return the requirements of the table's properties and columns."""
    found = [
        f"it has the constraint {name.removeprefix(CONSTRAINT_PREFIX)} ({text})"
        for name, text in sorted(properties.items())
        if name.startswith(CONSTRAINT_PREFIX)
    ]
    if properties.get(MAPPING) not in {None, "none"}:
        found.append(f"its columns have the mapping {properties[MAPPING]}")
    for column in schema["fields"]:
        told = column.get("metadata") or {}
        found += [
            f"its column {column['name']} has {what}"
            for name, what in COLUMN_RULES.items()
            if name in told
        ]
    return found


def check_not_null(
    path: str, table: DeltaTable, rows: pa.Schema, files: Iterable[DataFile], storage: Storage
) -> None:
    """Raise DeltaRefused if a file has a NULL where the table allows none.

    Only columns that may be NULL in the rows are looked up, in the files' own statistics. These do
    not cover a NOT NULL within a struct, list or map, so such a column must be non-nullable in the
    rows as well.
    """
    wanted = [
        column["name"]
        for column in json.loads(table.schema().to_json())["fields"]
        if not column["nullable"]
        and (column["name"] not in rows.names or rows.field(column["name"]).nullable)
    ]
    if not wanted:
        return
    bad = {
        name: count
        for file in files
        for name, count in null_counts(storage.open(file.path), file.rows, wanted).items()
        if count
    }
    if bad:
        raise DeltaRefused(
            path, [f"its column {name} is NOT NULL, but NULL in some rows" for name in sorted(bad)]
        )
