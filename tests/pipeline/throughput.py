"""Rows per CPU-second of each source, and its cost for the servers, in one table.

    vdl pipeline jars
    python -m tests.pipeline.throughput --flights flights-3m.parquet

`flights-3m.parquet` is the file of the npm package vega-datasets 3.2.1 (`npm pack`): three million
flights in order of time. They are produced as JSON to servers started for this, then read by the
official connector with its defaults and tuned, by our source over the protocol, and by it from
segment files. Each reads everything into a sink that does nothing, with all of its columns and with
the three that many jobs need: ours by its option `columns`, the connector by a `select`, as its
users write it, though it creates all seven either way: Spark does not push columns down to it.
Processor time is that of the driver, the JVM and the Python workers together.

The sources take turns within a round. The first round is not counted; of the others the medians are
printed. A ratio is the median of those within a round, since a machine with other users may be
twice as fast in one round as in the next.
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
from statistics import median
from typing import Any

from examples.flights import Row, create_topic
from examples.flights import produce as produce_rows
from examples.pipeline.demo import cpu_seconds
from tests.chaos.harness.replica_set import ReplicaSet
from vdl.pipeline.jars import find_jars
from vdl.pipeline.session import make_session

TOPIC = "flights3m"
CHUNK_ROWS = 200_000
ROUNDS_MIN = 4
ALL = "all"
NARROW = ("value", "partition", "offset")
BASE = "official connector, tuned"
"""Baseline of the ratios of rows per CPU-second, with the same columns."""
SEGMENTS = """[kafka]
"log.segment.bytes" = 4194304
"""
"""Makes nearly all records lie in sealed segments."""


@dataclass(frozen=True)
class Measured:
    """Measurement of one source in one read, or medians of several."""

    rows: int
    seconds: float
    cpu_seconds: float
    server_cpu_seconds: float
    fetches: float
    list_offsets: float

    @property
    def per_cpu_second(self) -> float:
        return self.rows / self.cpu_seconds

    def cells(self) -> str:
        return (
            f"{self.rows / self.seconds:,.0f} | {self.server_cpu_seconds:.2f} | "
            f"{self.fetches:,.0f} | {self.list_offsets:,.0f} |"
        )


Read = tuple[str, str]
"""A source's name and its columns."""


def medians(found: list[Measured]) -> Measured:
    return Measured(
        found[0].rows,
        median(one.seconds for one in found),
        median(one.cpu_seconds for one in found),
        median(one.server_cpu_seconds for one in found),
        median(one.fetches for one in found),
        median(one.list_offsets for one in found),
    )


def table(rounds: list[dict[Read, Measured]]) -> Iterator[str]:
    """Yield lines of Markdown. The ratio is the median of the rounds', with minimum and maximum."""
    yield (
        "| source | columns | rows per CPU-s | | least to most | rows/s | servers' CPU-s | "
        "Fetch | ListOffsets |"
    )
    yield "|---|---|---|---|---|---|---|---|---|"
    of_all = {read: medians([one[read] for one in rounds]) for read in rounds[0]}
    for (source, columns), found in of_all.items():
        base: Read = (BASE, columns)
        ratios = [one[source, columns].per_cpu_second / one[base].per_cpu_second for one in rounds]
        yield (
            f"| {source} | {columns} | {found.per_cpu_second:,.0f} | {median(ratios):.2f}× | "
            f"{min(ratios):.2f}× to {max(ratios):.2f}× | {found.cells()}"
        )


def rows_of(path: Path, limit: int) -> Iterator[list[Row]]:
    """Yield the flights as records, CHUNK_ROWS at a time, keyed by origin."""
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
    """Return the requests that the servers have answered, by API."""
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


def measure(frame: Any, rows: int, servers: ReplicaSet) -> Measured:
    before, server_before = requests_of(servers), server_cpu(servers)
    cpu, began = cpu_seconds(), time.monotonic()
    frame.write.format("noop").mode("overwrite").save()
    seconds, used = time.monotonic() - began, cpu_seconds() - cpu
    after = requests_of(servers)
    asked = {api: count - before.get(api, 0) for api, count in after.items()}
    return Measured(
        rows, seconds, used, server_cpu(servers) - server_before,
        asked.get("Fetch", 0), asked.get("ListOffsets", 0),
    )  # fmt: skip


def server_cpu(servers: ReplicaSet) -> float:
    return sum(servers.cpu_seconds(server_id) for server_id in servers.server_ids)


def sources(spark: Any, servers: ReplicaSet) -> dict[Read, Any]:
    """Return a frame of each source, with all of its columns and with three."""
    kafka = {
        "kafka.bootstrap.servers": servers.bootstrap,
        "subscribe": TOPIC,
        "startingOffsets": "earliest",
    }
    tuned = {**kafka, "kafka.max.poll.records": "50000", "kafka.fetch.max.bytes": "52428800"}
    ours = {"bootstrap": servers.bootstrap, "topics": TOPIC}
    stores = ",".join(str(servers.directory / str(n) / "store") for n in servers.server_ids)
    segments = {**ours, "segments": stores}
    narrow = ",".join(NARROW)
    found: dict[Read, Any] = {}
    # A separate reader for each: it keeps the options of the one before.
    for name, options in (("official connector, defaults", kafka), (BASE, tuned)):
        found[name, ALL] = spark.read.format("kafka").options(**options).load()
        found[name, narrow] = found[name, ALL].select(*NARROW)
    for name, options in (("vdl, over the protocol", ours), ("vdl, from segments", segments)):
        found[name, ALL] = spark.read.format("vdl").options(**options).load()
        wanted = {**options, "columns": narrow}
        found[name, narrow] = spark.read.format("vdl").options(**wanted).load()
    for columns in (ALL, narrow):
        of_each = {tuple(frame.columns) for (_, kind), frame in found.items() if kind == columns}
        assert len(of_each) == 1, of_each
    return {read: found[read] for read in sorted(found, key=lambda read: read[1] != ALL)}


def main() -> int:
    parser = argparse.ArgumentParser(description="Rows per CPU-second of each source.")
    parser.add_argument("--flights", type=Path, required=True)
    parser.add_argument("--rows", type=int, default=3_000_000)
    parser.add_argument("--partitions", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=ROUNDS_MIN)
    options = parser.parse_args()
    if options.rounds < ROUNDS_MIN:
        parser.error(f"--rounds: medians of fewer than {ROUNDS_MIN} say little")
    servers = ReplicaSet(3)
    servers.up()
    servers.down()
    for server_id in servers.server_ids:
        config = servers.server(server_id).config_file
        text = config.read_text(encoding="utf-8").replace("[kafka]\n", SEGMENTS)
        config.write_text(text, encoding="utf-8")
    servers.up()
    try:
        create_topic(servers.bootstrap, TOPIC, partitions=options.partitions)
        count = 0
        for rows in rows_of(options.flights, options.rows):
            sent = produce_rows(servers.bootstrap, TOPIC, rows)
            count += sum(map(len, sent.values()))
            print(f"produced {count}", flush=True)
        # Until a checkpoint has moved them to segments.
        time.sleep(15)
        spark = make_session("throughput", jars=find_jars())
        try:
            rounds: list[dict[Read, Measured]] = []
            for number in range(options.rounds + 1):
                of_round: dict[Read, Measured] = {}
                for (name, columns), frame in sources(spark, servers).items():
                    found = of_round[name, columns] = measure(frame, count, servers)
                    rate = f"{found.per_cpu_second:,.0f}"
                    print(f"{number} | {name} | {columns} | {rate} | {found.cells()}", flush=True)
                if number:
                    rounds.append(of_round)
            check = sources(spark, servers)
            counts = {read: frame.count() for read, frame in check.items()}
            assert set(counts.values()) == {count}, counts
        finally:
            spark.stop()
    finally:
        servers.close()
    for line in table(rounds):
        print(line)
    return 0


if __name__ == "__main__":
    sys.exit(main())
