"""Data pipeline: topics to tables on Spark, exactly once.

A client of the Kafka front end like any other. Use from plain Spark:

    from vdl.pipeline import register
    register(spark)
    frame = spark.read.format("vdl").options(bootstrap="127.0.0.1:9092", topics="flights").load()

`spark.readStream.format("vdl")` takes the same options. Jobs in TOML files, run by `vdl pipeline`,
add decoding, dead letters, SQL steps, and sinks that commit offsets together with rows.

Modules that run on executors: `read`, `columns`, `segment_read`, `files`, `topic_sink`, `evidence`
and `registered`. They and their imports depend only on this package, `segments` and `vdl.check`. No
server imports this package, and importing it alone loads neither Spark nor Arrow.
"""

from __future__ import annotations

from typing import Any


def register(spark: Any) -> None:
    """Make `format("vdl")` known to a Spark session, and enable filter pushdown."""
    from vdl.pipeline.source import VdlDataSource

    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    spark.dataSource.register(VdlDataSource)
