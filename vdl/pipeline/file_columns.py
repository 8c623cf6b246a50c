"""Columns of a data file of an Iceberg table, under the names that the table has for them now.

A column of a file is found by its id. One without an id, as in files of this sink, is found by the
table's name mapping, which has all names that a column has had. A column that is not found was
added later, and is NULL. A column of the file that the table does not have was dropped.

Rows that are written again have the table's names and no ids: a file in which some columns have ids
is read by Iceberg's library as if it had no others. Compactions by early builds have made such.

Does not depend on Spark or PyIceberg.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

FIELD_ID = b"PARQUET:field_id"


@dataclass(frozen=True, slots=True)
class Column:
    """Column of a table. `names`: its names in files without ids."""

    name: str
    id: int
    names: tuple[str, ...]


def columns_of_table(table: Any) -> tuple[Column, ...]:
    """Return the columns of PyIceberg's Table, without those within others."""
    mapping = table.metadata.name_mapping() or table.schema().name_mapping
    names = {field.field_id: tuple(field.names) for field in mapping}
    return tuple(
        Column(field.name, field.field_id, names.get(field.field_id, ()))
        for field in table.schema().fields
    )


def names_in(schema: pa.Schema, columns: Iterable[Column]) -> dict[str, str]:
    """Return the table's name → the file's name of each column that a file of this schema has."""
    ids: dict[int, str] = {}
    without_id = set()
    for field in schema:
        if field.metadata and FIELD_ID in field.metadata:
            ids[int(field.metadata[FIELD_ID])] = field.name
        else:
            without_id.add(field.name)
    found = {}
    for column in columns:
        named = (name for name in column.names if name in without_id)
        name = ids.get(column.id) or next(named, None)
        if name is not None:
            found[column.name] = name
    return found


def schema_in(schema: pa.Schema, columns: Sequence[Column]) -> pa.Schema:
    """Return the schema of `in_columns` for a file of this schema."""
    fields = [
        _without_ids(schema.field(of_file)).with_name(name)
        for name, of_file in names_in(schema, columns).items()
    ]
    return pa.schema(fields)


def in_columns(batch: pa.RecordBatch, columns: Sequence[Column]) -> pa.RecordBatch:
    """Return rows of a file with the table's names, and without columns that it does not have."""
    schema = schema_in(batch.schema, columns)
    if schema.equals(batch.schema, check_metadata=True):
        return batch
    names = names_in(batch.schema, columns)
    arrays = [batch.column(names[field.name]).cast(field.type) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def repeated(value: Any, kind: Any, count: int) -> Any:
    """Return a partition value as a column. Iceberg has dates and times as numbers."""
    return pa.repeat(pa.array([value]).cast(_number_of(kind)).cast(kind)[0], count)


def _number_of(kind: Any) -> Any:
    if pa.types.is_date32(kind):
        return pa.int32()
    return pa.int64() if pa.types.is_timestamp(kind) else kind


def _without_ids(field: pa.Field) -> pa.Field:
    return pa.field(field.name, _plain(field.type), field.nullable)


def _plain(kind: Any) -> Any:
    if pa.types.is_struct(kind):
        return pa.struct([_without_ids(kind.field(n)) for n in range(kind.num_fields)])
    if pa.types.is_list(kind):
        return pa.list_(_without_ids(kind.value_field))
    if pa.types.is_map(kind):
        return pa.map_(_without_ids(kind.key_field), _without_ids(kind.item_field))
    return kind
