"""Spark's official Kafka connector against VDL, unmodified: batch and streaming, both directions.

    vdl pipeline jars
    python -m tests.pipeline.connector --rows 300000

Rows are written with the connector to one topic, read with it, and streamed with it from there to a
second topic in micro-batches. Then a stream without new records idles for a while. Each row must
arrive once. The table shows for each step the rows, the servers' CPU time, and the numbers of
Fetch, Produce and ListOffsets requests: the connector requests the latest offsets with each
micro-batch, and that has to be cheap.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from collections.abc import Callable
from tempfile import mkdtemp
from typing import Any

from examples.flights import create_topic
from tests.chaos.harness.replica_set import ReplicaSet
from tests.pipeline.throughput import requests_of, server_cpu
from vdl.pipeline.jars import find_jars
from vdl.pipeline.session import make_session

SOURCE, TARGET = "connector-in", "connector-out"
PARTITIONS = 3
STREAM_SECONDS_MAX = 300
APIS = ("Fetch", "Produce", "ListOffsets")


class Steps:
    """Measurements of each step, by name."""

    def __init__(self, servers: ReplicaSet) -> None:
        self._servers = servers
        self.lines: list[str] = []

    def run(self, name: str, step: Callable[[], int]) -> int:
        """Measure a step; `step` returns its rows."""
        requests, cpu, began = (
            requests_of(self._servers),
            server_cpu(self._servers),
            time.monotonic(),
        )
        rows = step()
        seconds, cpu = time.monotonic() - began, server_cpu(self._servers) - cpu
        after = requests_of(self._servers)
        counts = " | ".join(str(after.get(api, 0) - requests.get(api, 0)) for api in APIS)
        self.lines.append(f"| {name} | {rows} | {seconds:.1f} | {cpu:.2f} | {counts} |")
        print(self.lines[-1], flush=True)
        return rows


class Connector:
    """The four operations of a connector user."""

    def __init__(self, spark: Any, bootstrap: str, folder: str) -> None:
        self._spark = spark
        self._bootstrap = {"kafka.bootstrap.servers": bootstrap}
        self._folder = folder

    def write(self, rows: int) -> int:
        frame = self._spark.range(rows).selectExpr(
            "cast(id as string) as key", "concat('row ', id) as value"
        )
        frame.write.format("kafka").options(**self._bootstrap, topic=SOURCE).save()
        return rows

    def read(self, topic: str) -> int:
        """Return the number of distinct rows; raises AssertionError if one is duplicated."""
        options = {**self._bootstrap, "subscribe": topic, "startingOffsets": "earliest"}
        frame = self._spark.read.format("kafka").options(**options).load()
        found = frame.selectExpr("count(*) as n", "count(distinct key) as d").first()
        assert found["n"] == found["d"], found
        return int(found["n"])

    def stream(self, *, until: Callable[[Any], bool]) -> int:
        """Stream from the first topic to the second; return the rows of this run."""
        options = {
            **self._bootstrap, "subscribe": SOURCE, "startingOffsets": "earliest",
            "maxOffsetsPerTrigger": "50000",
        }  # fmt: skip
        frame = self._spark.readStream.format("kafka").options(**options).load()
        query = (
            frame.select("key", "value")
            .writeStream.format("kafka")
            .options(**self._bootstrap, topic=TARGET, checkpointLocation=self._folder)
            .trigger(processingTime="1 second")
            .start()
        )
        try:
            rows = {}
            deadline = time.monotonic() + STREAM_SECONDS_MAX
            while not until(query):
                assert query.isActive, query.exception()
                assert time.monotonic() < deadline, query.lastProgress
                time.sleep(0.2)
            for progress in query.recentProgress:
                rows[progress["batchId"]] = int(progress["numInputRows"])
        finally:
            query.stop()
        return sum(rows.values())


def main() -> int:
    parser = argparse.ArgumentParser(description="The official connector against VDL.")
    parser.add_argument("--rows", type=int, default=300_000)
    parser.add_argument("--idle-seconds", type=int, default=60)
    options = parser.parse_args()
    folder = mkdtemp(prefix="vdl-connector-")
    servers = ReplicaSet(3)
    try:
        servers.up()
        for topic in (SOURCE, TARGET):
            create_topic(servers.bootstrap, topic, partitions=PARTITIONS)
        steps = Steps(servers)
        spark = make_session("connector", jars=find_jars())
        try:
            connector = Connector(spark, servers.bootstrap, folder)
            steps.run("batch write", lambda: connector.write(options.rows))
            assert steps.run("batch read", lambda: connector.read(SOURCE)) == options.rows

            def has_all(query: Any) -> bool:
                done = sum(int(p["numInputRows"]) for p in query.recentProgress)
                return done >= options.rows

            steps.run("stream to a topic", lambda: connector.stream(until=has_all))
            end = time.monotonic() + options.idle_seconds
            name = f"stream at rest, {options.idle_seconds} s"
            idle = steps.run(name, lambda: connector.stream(until=lambda _: time.monotonic() > end))
            assert idle == 0, idle
            assert steps.run("batch read of that", lambda: connector.read(TARGET)) == options.rows
        finally:
            spark.stop()
    finally:
        servers.close()
        shutil.rmtree(folder, ignore_errors=True)
    print("| step | rows | seconds | servers' CPU-s | Fetch | Produce | ListOffsets |")
    print("|---|---|---|---|---|---|---|")
    print("\n".join(steps.lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
