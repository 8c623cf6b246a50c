"""Which kind of table a job writes: the one place that knows all of them.

A kind is imported only when it is asked for: each brings libraries that the others do not need.
"""

from __future__ import annotations

from vdl.pipeline.table import TableSink


def open_table(kind: str, path: str, job: str) -> TableSink:
    """The table of a job."""
    if kind == "delta":
        from vdl.pipeline.delta_table import DeltaSink

        return DeltaSink(path, job)
    if kind == "topic":
        from vdl.pipeline.topic_sink import TopicSink

        return TopicSink(path, job)
    from vdl.pipeline.parquet_table import ParquetSink

    assert kind == "parquet", kind
    return ParquetSink(path, job)
