"""Entries of data files in an Iceberg table's manifests, with their partitions.

A new file is in a partition of the table's present spec. A file with rows that were written again
stays in the partition that they had, of the spec that they were written in: its rows may be of
several partitions of a newer spec.

Does not depend on Spark, Kafka, or how commits are made.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import Any

from pyiceberg.io.pyarrow import parquet_file_to_data_file
from pyiceberg.manifest import DATA_FILE_TYPE, DataFile
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.table import Table, Transaction
from pyiceberg.transforms import TruncateTransform
from pyiceberg.typedef import Record

from vdl.pipeline.errors import SinkInconsistent
from vdl.pipeline.storage import is_url

EPOCH = datetime.date(1970, 1, 1)
PARTITION = next(n for n, field in enumerate(DATA_FILE_TYPE[2].fields) if field.name == "partition")
"""Place of the partition among a manifest's fields of a file."""


def new_file(
    table: Table, transaction: Transaction, path: str, partition: Sequence[Any]
) -> DataFile:
    """Return the entry of a file of new rows, in a partition of the table's present spec."""
    spec, values = transaction.table_metadata.spec(), [as_stored(one) for one in partition]
    return _data_file(table, transaction, path, spec, values)


def file_of_same_rows(table: Table, transaction: Transaction, path: str, of: DataFile) -> DataFile:
    """Return the entry of a file with rows of another one, in the partition that they had."""
    spec = transaction.table_metadata.specs()[of.spec_id]
    values = [of.partition[n] for n in range(len(spec.fields))]
    return _data_file(table, transaction, path, spec, values)


def _data_file(
    table: Table,
    transaction: Transaction,
    path: str,
    spec: PartitionSpec,
    wanted: Sequence[Any],
) -> DataFile:
    """Return the entry of a file, with its partition.

    Raises SinkInconsistent if the file's own statistics contradict its partition. Statistics
    show only transforms that preserve order, so not a bucket, and they truncate long strings,
    so not every prefix; in these cases the partition given by the file's writer is used. A
    file may lack a column whose value its partition has.
    """
    location = path if is_url(path) else f"file://{path}"
    metadata = transaction.table_metadata
    schema = metadata.schema()
    shown = [
        n
        for n, field in enumerate(spec.fields)
        if field.transform.preserves_order and schema.find_column_name(field.source_id)
    ]
    of_these = PartitionSpec(*(spec.fields[n] for n in shown), spec_id=metadata.default_spec_id)
    metadata = metadata.model_copy(update={"partition_specs": [of_these]})
    found = parquet_file_to_data_file(table.io, metadata, location)
    known = list(wanted)
    for place, n in enumerate(shown):
        value = found.partition[place]
        is_prefix = isinstance(spec.fields[n].transform, TruncateTransform)
        is_missing = spec.fields[n].source_id not in found.value_counts
        if value is not None or not (is_prefix or is_missing):
            known[n] = value
    if known != list(wanted):
        raise SinkInconsistent(
            f"{path}: its partition is {list(wanted)}, its statistics say {known}: a value "
            "may be too long for them"
        )
    found[PARTITION] = Record(*wanted)
    found.spec_id = spec.spec_id
    return found


def as_stored(value: Any) -> Any:
    """Return a partition value as Iceberg stores it: dates are days since 1970."""
    if isinstance(value, datetime.date):
        return (value - EPOCH).days
    return value
