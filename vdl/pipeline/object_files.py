"""Parquet files of an object store as a Spark frame, read by Arrow on the executors.

Spark's client for such stores is in jars of its own that are larger than the rest of Spark. Arrow
wrote the files and can read them too.

Does not depend on table formats.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from vdl.pipeline.storage import storage_of

BATCH_ROWS = 50_000
TASKS_MAX = 200


def read_files(spark: Any, paths: Sequence[str], columns: str, settings: Mapping[str, str]) -> Any:
    """Return these columns (in Spark's notation) of all files; NULL if a file lacks one.

    `settings` as returned by `storage.resolved_settings`.
    """
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import StructType

    schema = to_arrow_schema(StructType.fromDDL(columns))
    named = spark.createDataFrame([(path,) for path in paths], "path string")
    spread = named.repartition(min(len(paths), TASKS_MAX))
    read = functools.partial(_rows, schema=schema, settings=settings)
    return spread.mapInArrow(read, columns)


def _rows(
    batches: Iterator[pa.RecordBatch], *, schema: pa.Schema, settings: Mapping[str, str]
) -> Iterator[pa.RecordBatch]:
    for path in (path for batch in batches for path in batch.column(0).to_pylist()):
        file = pq.ParquetFile(storage_of(path, settings).open(path))
        there = [name for name in schema.names if name in file.schema_arrow.names]
        for batch in file.iter_batches(BATCH_ROWS, columns=there):
            columns = [
                batch.column(field.name).cast(field.type)
                if field.name in there
                else pa.nulls(batch.num_rows, field.type)
                for field in schema
            ]
            yield pa.RecordBatch.from_arrays(columns, schema=schema)
