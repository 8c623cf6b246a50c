"""Requirements of an Iceberg table on its writers, and the check that this sink meets them.

Every requirement is either met here or refused by name, so that no table is damaged silently: later
format versions, partitions, required columns.

Does not depend on Spark, Kafka, or how commits are made.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa
from pyiceberg.table import Table

from vdl.pipeline.errors import PipelineError
from vdl.pipeline.file_stats import null_counts
from vdl.pipeline.partitioning import PartitionField, as_told
from vdl.pipeline.storage import Storage
from vdl.pipeline.table import DataFile

FORMAT_MAX = 2


class IcebergRefused(PipelineError):
    """The table requires something that this sink does not do; `reasons` lists everything found."""

    def __init__(self, path: str, reasons: list[str]) -> None:
        super().__init__(f"{path}: cannot be written by this sink: {'; '.join(reasons)}")
        self.path = path
        self.reasons = reasons


def check_rules(path: str, table: Table, partitions: Sequence[PartitionField]) -> None:
    """Raise IcebergRefused if adding files to the table as they are would damage it.

    This includes files that are partitioned in another way than the table.
    """
    reasons = []
    if table.metadata.format_version > FORMAT_MAX:
        reasons.append(f"it has the format's version {table.metadata.format_version}")
    known, wanted = partitions_of(table), [str(field) for field in partitions]
    if known != wanted:
        more = f", and not by {', '.join(wanted)}" if wanted else ""
        reasons.append(f"it is partitioned by {', '.join(known) or 'nothing'}{more}")
    if reasons:
        raise IcebergRefused(path, reasons)


def partitions_of(table: Table) -> list[str]:
    """Return the partition fields as a job file has them."""
    found = []
    for field in table.spec().fields:
        name = table.schema().find_column_name(field.source_id)
        found.append(as_told(str(field.transform), name))
    return found


def check_not_null(
    path: str, table: Table, rows: pa.Schema, files: Iterable[DataFile], storage: Storage
) -> None:
    """Raise IcebergRefused if a file has a NULL where the table allows none.

    Only columns that may be NULL in the rows are looked up, in the files' own statistics.
    """
    wanted = [
        column.name
        for column in table.schema().fields
        if column.required and (column.name not in rows.names or rows.field(column.name).nullable)
    ]
    if not wanted:
        return
    bad = {
        name
        for file in files
        for name, count in null_counts(storage.open(file.path), file.rows, wanted).items()
        if count
    }
    if bad:
        raise IcebergRefused(
            path, [f"its column {name} is required, and NULL in rows" for name in sorted(bad)]
        )


def columns_of(arrow_schema: pa.Schema) -> str:
    """Return columns as in `table_columns`, in Iceberg's types.

    Iceberg has no integers of less than 32 bits, and no texts or bytes of another size.
    """
    return "\n".join(f"{field.name}: {_kind(field.type)}" for field in arrow_schema)


def _kind(kind: Any) -> str:
    types = pa.types
    if types.is_int8(kind) or types.is_int16(kind):
        return "int32"
    if types.is_string(kind) or types.is_large_string(kind):
        return "string"
    if types.is_binary(kind) or types.is_large_binary(kind):
        return "binary"
    if types.is_map(kind):
        return f"map<{_kind(kind.key_type)}, {_kind(kind.item_type)}>"
    if types.is_list(kind) or types.is_large_list(kind):
        return f"list<{_kind(kind.value_type)}>"
    if types.is_struct(kind):
        inner = (
            f"{kind.field(n).name}: {_kind(kind.field(n).type)}" for n in range(kind.num_fields)
        )
        return f"struct<{', '.join(inner)}>"
    return str(kind)
