"""Which kind of table a job writes: the one place that knows all of them.

A kind is imported only when it is asked for: each brings libraries that the others do not need.
"""

from __future__ import annotations

from vdl.pipeline.catalog_settings import DEAD_SUFFIX, local_catalog, name_of, resolved_catalog
from vdl.pipeline.job import ICEBERG, Job
from vdl.pipeline.storage import resolved_settings
from vdl.pipeline.table import Place, TableSink


def open_table(kind: str, path: str, job: str) -> TableSink:
    """The table of a job, in a folder, with nothing else to know of it."""
    if kind == ICEBERG:
        return open_place(Place(kind, path, {}, local_catalog(path), name_of(path)), job)
    return open_place(Place(kind, path), job)


def rows_table(job: Job) -> TableSink:
    """Raises SecretMissing, PipelineError."""
    return open_place(place_of(job, job.sink.kind, job.sink.path), job.name)


def dead_table(job: Job) -> TableSink:
    """Of the job's dead letters. Raises SecretMissing, PipelineError."""
    return open_place(place_of(job, job.sink.dead_kind, job.errors.path, DEAD_SUFFIX), job.name)


def place_of(job: Job, kind: str, path: str, suffix: str = "") -> Place:
    """Of one of a job's tables, with the secrets. Raises SecretMissing."""
    sink = job.sink
    storage = resolved_settings(path, sink.storage)
    fields, key = ((), ()) if suffix else (sink.partition_by, sink.upsert_key)
    if kind != ICEBERG:
        return Place(kind, path, storage, partition_by=fields, key=key)
    catalog = resolved_catalog(sink.catalog)
    return Place(kind, path, storage, catalog, f"{sink.table}{suffix}", fields, key)


def storage_settings(job: Job) -> dict[str, str]:
    """Of the object store that the job's tables are in, with the secrets; nothing for folders.
    Raises SecretMissing."""
    paths = (job.errors.path, job.sink.path)
    return {k: v for path in paths for k, v in resolved_settings(path, job.sink.storage).items()}


def open_place(place: Place, job: str) -> TableSink:
    """The table of a job."""
    if place.kind == "delta":
        from vdl.pipeline.delta_table import DeltaSink

        return DeltaSink(place, job)
    if place.kind == ICEBERG:
        from vdl.pipeline.iceberg_table import IcebergSink

        return IcebergSink(place, job)
    if place.kind == "topic":
        from vdl.pipeline.topic_sink import TopicSink

        return TopicSink(place.path, job)
    from vdl.pipeline.parquet_table import ParquetSink

    assert place.kind == "parquet", place.kind
    return ParquetSink(place.path, job)
