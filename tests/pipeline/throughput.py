"""Rows per CPU-second of each source, and what it costs the servers, in one table.

    vdl pipeline jars
    python -m tests.pipeline.throughput --flights flights-3m.parquet

`flights-3m.parquet` is the file of the npm package vega-datasets 3.2.1 (`npm pack`): three million
flights in order of time. They are produced as JSON to servers started for this, then read by the
official connector as it comes and tuned, by our source over the protocol, and by it from segment
files. Each reads everything into a sink that does nothing; processor time is that of the driver,
the JVM and the Python workers together. A first read of each is not counted.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from examples.flights import Row, create_topic
from examples.flights import produce as produce_rows
from examples.pipeline.demo import cpu_seconds
from tests.chaos.harness.replica_set import ReplicaSet
from vdl.pipeline.jars import find_jars
from vdl.pipeline.session import make_session

TOPIC = "flights3m"
CHUNK_ROWS = 200_000
SEGMENTS = """
[kafka]
"log.segment.bytes" = 4194304
"""
"""So that nearly all of it lies in sealed ones."""


@dataclass(frozen=True)
class Measured:
    """One source, one read."""

    source: str
    rows: int
    seconds: float
    cpu_seconds: float
    server_cpu_seconds: float
    requests: dict[str, int]

    def line(self) -> str:
        return (
            f"| {self.source} | {self.rows} | {self.rows / self.cpu_seconds:,.0f} | "
            f"{self.rows / self.seconds:,.0f} | {self.server_cpu_seconds:.2f} | "
            f"{self.requests.get('Fetch', 0)} | {self.requests.get('ListOffsets', 0)} |"
        )


def rows_of(path: Path, limit: int) -> Iterator[list[Row]]:
    """The flights as records, CHUNK_ROWS at a time, keyed by where they began."""
    import pyarrow.parquet as pq

    left = limit
    for batch in pq.ParquetFile(path).iter_batches(CHUNK_ROWS):
        rows = [
            (
                str(row["origin"]).encode(),
                json.dumps(row, default=str, separators=(",", ":")).encode(),
            )
            for row in batch.slice(0, min(left, batch.num_rows)).to_pylist()
        ]
        left -= len(rows)
        if rows:
            yield rows


def requests_of(servers: ReplicaSet) -> dict[str, int]:
    """Requests that the servers have answered, by API."""
    found: dict[str, int] = {}
    for server_id in servers.server_ids:
        address = servers.server(server_id).config().http
        assert address is not None, server_id
        url = f"http://{address.host}:{address.port}/metrics"
        with urllib.request.urlopen(url, timeout=10) as answer:
            for line in answer.read().decode().splitlines():
                if line.startswith("vdl_") and "requests_total{" in line and "api=" in line:
                    api = line.split('api="')[1].split('"')[0]
                    found[api] = found.get(api, 0) + int(float(line.rsplit(" ", 1)[1]))
    return found


def measure(name: str, frame: Any, rows: int, servers: ReplicaSet) -> Measured:
    before, server_before = requests_of(servers), server_cpu(servers)
    cpu, began = cpu_seconds(), time.monotonic()
    frame.write.format("noop").mode("overwrite").save()
    seconds, used = time.monotonic() - began, cpu_seconds() - cpu
    after = requests_of(servers)
    requests = {api: count - before.get(api, 0) for api, count in after.items()}
    return Measured(name, rows, seconds, used, server_cpu(servers) - server_before, requests)


def server_cpu(servers: ReplicaSet) -> float:
    return sum(servers.cpu_seconds(server_id) for server_id in servers.server_ids)


def sources(spark: Any, servers: ReplicaSet) -> dict[str, Any]:
    kafka = {
        "kafka.bootstrap.servers": servers.bootstrap,
        "subscribe": TOPIC,
        "startingOffsets": "earliest",
    }
    tuned = {**kafka, "kafka.max.poll.records": "50000", "kafka.fetch.max.bytes": "52428800"}
    ours = {"bootstrap": servers.bootstrap, "topics": TOPIC}
    stores = ",".join(str(servers.directory / str(n) / "store") for n in servers.server_ids)
    segments = {**ours, "segments": stores}
    # A reader of its own for each: it keeps the options of the one before.
    return {
        "official connector, defaults": spark.read.format("kafka").options(**kafka).load(),
        "official connector, tuned": spark.read.format("kafka").options(**tuned).load(),
        "vdl, protocol": spark.read.format("vdl").options(**ours).load(),
        "vdl, segments": spark.read.format("vdl").options(**segments).load(),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description="Rows per CPU-second of each source.")
    parser.add_argument("--flights", type=Path, required=True)
    parser.add_argument("--rows", type=int, default=3_000_000)
    parser.add_argument("--partitions", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    servers = ReplicaSet(3)
    servers.up()
    servers.down()
    for server_id in servers.server_ids:
        with servers.server(server_id).config_file.open("a", encoding="utf-8") as file:
            file.write(SEGMENTS)
    servers.up()
    try:
        create_topic(servers.bootstrap, TOPIC, partitions=options.partitions)
        count = 0
        for rows in rows_of(options.flights, options.rows):
            sent = produce_rows(servers.bootstrap, TOPIC, rows)
            count += sum(map(len, sent.values()))
            print(f"produced {count}", flush=True)
        # Until a checkpoint has brought them to segments.
        time.sleep(15)
        spark = make_session("throughput", jars=find_jars())
        try:
            best: dict[str, Measured] = {}
            for number in range(options.rounds + 1):
                for name, frame in sources(spark, servers).items():
                    found = measure(name, frame, count, servers)
                    print(number, found.line(), flush=True)
                    known = best.get(name)
                    if number and (known is None or found.cpu_seconds < known.cpu_seconds):
                        best[name] = found
            check = sources(spark, servers)
            counts = {name: frame.count() for name, frame in check.items()}
            assert set(counts.values()) == {count}, counts
        finally:
            spark.stop()
    finally:
        servers.close()
    print("| source | rows | rows per CPU-s | rows/s | servers' CPU-s | Fetch | ListOffsets |")
    print("|---|---|---|---|---|---|---|")
    for one in best.values():
        print(one.line())
    return 0


if __name__ == "__main__":
    sys.exit(main())
