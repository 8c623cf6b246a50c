"""The data pipeline: topics to tables on Spark, exactly once.

A client of the Kafka front end like any other. In use from plain Spark:

    from vdl.pipeline import register
    register(spark)
    frame = spark.read.format("vdl").options(bootstrap="127.0.0.1:9092", topics="flights").load()

`spark.readStream.format("vdl")` takes the same options. Jobs in TOML files, run by `vdl pipeline`,
add decoding, dead letters, steps in SQL and sinks that commit offsets together with rows.

What runs on executors is `read`, `columns`, `segment_read`, `files`, `topic_sink`, `evidence` and
`registered`; they and what they import know only this package, `segments` and `vdl.check`. Nothing
here is imported by a server, and importing this package alone loads neither Spark nor Arrow.
"""

from __future__ import annotations

from typing import Any


def register(spark: Any) -> None:
    """Make `format("vdl")` known to a Spark session. Filters are pushed down from here on."""
    from vdl.pipeline.source import VdlDataSource

    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    spark.dataSource.register(VdlDataSource)
