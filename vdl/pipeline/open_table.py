"""Selection of a job's kind of table: the only module that knows all kinds.

A kind is imported only when needed: each uses libraries that the others do not need.
"""

from __future__ import annotations

from vdl.pipeline.catalog_settings import DEAD_SUFFIX, local_catalog, name_of, resolved_catalog
from vdl.pipeline.job import ICEBERG, Job
from vdl.pipeline.storage import resolved_settings
from vdl.pipeline.table import Place, TableSink
from vdl.pipeline.tasks import Tasks, here


def open_table(kind: str, path: str, job: str) -> TableSink:
    """Return a job's table in a folder, without further settings."""
    if kind == ICEBERG:
        return open_place(Place(kind, path, {}, local_catalog(path), name_of(path)), job)
    return open_place(Place(kind, path), job)


def rows_table(job: Job, tasks: Tasks = here) -> TableSink:
    """Return the table of the job's rows. Raises SecretMissing, PipelineError."""
    return open_place(place_of(job, job.sink.kind, job.sink.path), job.name, tasks)


def dead_table(job: Job, tasks: Tasks = here) -> TableSink:
    """Return the job's dead-letter table. Raises SecretMissing, PipelineError."""
    place = place_of(job, job.sink.dead_kind, job.errors.path, DEAD_SUFFIX)
    return open_place(place, job.name, tasks)


def place_of(job: Job, kind: str, path: str, suffix: str = "") -> Place:
    """Return the place of one of a job's tables, with the secrets. Raises SecretMissing."""
    sink = job.sink
    storage = resolved_settings(path, sink.storage)
    fields, key = ((), ()) if suffix else (sink.partition_by, sink.upsert_key)
    if kind != ICEBERG:
        return Place(kind, path, storage, partition_by=fields, key=key)
    catalog = resolved_catalog(sink.catalog)
    return Place(kind, path, storage, catalog, f"{sink.table}{suffix}", fields, key)


def storage_settings(job: Job) -> dict[str, str]:
    """Return the settings, with secrets, of the object store of the job's tables.

    Empty for folders. Raises SecretMissing.
    """
    paths = (job.errors.path, job.sink.path)
    return {k: v for path in paths for k, v in resolved_settings(path, job.sink.storage).items()}


def open_place(place: Place, job: str, tasks: Tasks = here) -> TableSink:
    """Return the table of a job.

    `tasks`: runs the divisible parts of upserts and compactions; only an Iceberg table uses it.
    """
    if place.kind == "delta":
        from vdl.pipeline.delta_table import DeltaSink

        return DeltaSink(place, job)
    if place.kind == ICEBERG:
        from vdl.pipeline.iceberg_table import IcebergSink

        return IcebergSink(place, job, tasks)
    if place.kind == "topic":
        from vdl.pipeline.topic_sink import TopicSink

        return TopicSink(place.path, job)
    from vdl.pipeline.parquet_table import ParquetSink

    assert place.kind == "parquet", place.kind
    return ParquetSink(place.path, job)
