"""Benchmark from a topic to a table: the pipeline against the official connector.

    vdl pipeline jars
    python -m tests.pipeline.end_to_end --rows 300000 --rounds 3

The result is rows per CPU-second. Values are orders as JSON, and as Avro with schemas in a
registry; in one case all are valid, in another one in a hundred is broken. The pipeline runs a job
as users do, with offsets in its commits, dead letters and statistics, into Parquet, Delta and
Iceberg. The connector has the minimum that loses nothing: `from_json` or `from_avro`, Spark's own
Parquet writer, and the value of undecodable records in a column of the same table. Both stream to
the topic's end with batches of the same size, in one session, one after the other within a round.
Processor time is that of the driver, the JVM and the Python workers together, without the server's.

Each round runs all cases in turn, and another one begins than before: Spark ends Python processes
that are idle for a minute, so a case that follows a long run of the connector starts them again.
The first round, in which the JVM compiles most, is not counted.
The output has the medians of the others; a ratio is the median of the ratios within rounds. Lines
of single cases end with the machine's load.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

import fastavro
from confluent_kafka import Producer

from examples.flights import create_topic
from tests.chaos.harness.replica_set import ReplicaSet
from vdl.pipeline.jars import SCALA, SPARK, find_jars
from vdl.pipeline.job import Job, parse_job
from vdl.pipeline.runner import Runner
from vdl.pipeline.session import make_session

CONNECTOR = "connector"
SPARK_AVRO = f"org.apache.spark:spark-avro_{SCALA}:{SPARK}"
SCHEMA_ID = 1
SINKS = ("parquet", "delta", "iceberg")
DDL = (
    "id bigint, customer string, product string, quantity int, price double, currency string, "
    "paid boolean, country string, created timestamp, note string"
)
AVRO = {
    "type": "record", "name": "Order", "fields": [
        {"name": "id", "type": "long"}, {"name": "customer", "type": "string"},
        {"name": "product", "type": "string"}, {"name": "quantity", "type": "int"},
        {"name": "price", "type": "double"}, {"name": "currency", "type": "string"},
        {"name": "paid", "type": "boolean"}, {"name": "country", "type": "string"},
        {"name": "created", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "note", "type": ["null", "string"]},
    ],
}  # fmt: skip
WATCH_SECONDS = 0.2
BEGAN_MS = 1_764_000_000_000


class Processor:
    """Processor time of this process and its descendants, including ended ones.

    Spark ends its Python processes without a report of their time, so they are sampled while they
    run. The samples' own time is left out: it would count more the slower the machine is.
    """

    def __init__(self) -> None:
        self._seen: dict[tuple[str, str], float] = {}
        self._own = 0.0
        self._lock = threading.Lock()
        threading.Thread(target=self._watch, daemon=True).start()

    def seconds(self) -> float:
        with self._lock:
            began = time.thread_time()
            ticks = os.sysconf("SC_CLK_TCK")
            stats: dict[str, list[str]] = {}
            for entry in Path("/proc").iterdir():
                if entry.name.isdigit():
                    with contextlib.suppress(OSError):
                        text = (entry / "stat").read_text(encoding="utf-8")
                        stats[entry.name] = text.rpartition(")")[2].split()
            wanted = [str(os.getpid())]
            while wanted:
                pid = wanted.pop()
                if pid in stats:
                    told = stats[pid]
                    # Pids are reused: the start time identifies a process.
                    self._seen[pid, told[19]] = sum(map(int, told[11:13])) / ticks
                wanted += [child for child, told in stats.items() if told[1] == pid]
            self._own += time.thread_time() - began
            return sum(self._seen.values()) - self._own

    def _watch(self) -> None:
        while True:
            self.seconds()
            time.sleep(WATCH_SECONDS)


def orders(count: int, rng: random.Random) -> Iterator[dict[str, Any]]:
    for n in range(count):
        yield {
            "id": n,
            "customer": f"customer-{rng.randrange(100_000)}",
            "product": f"product {rng.randrange(1000)}",
            "quantity": rng.randrange(1, 9),
            "price": round(rng.random() * 100, 2),
            "currency": "EUR",
            "paid": rng.random() < 0.5,
            "country": rng.choice(("DE", "FR", "US")),
            "created": BEGAN_MS + n,
            "note": None if n % 3 else f"leave the parcel at door {n}",
        }


def as_json(order: dict[str, Any]) -> bytes:
    millis = order["created"]
    moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(millis // 1000))
    told = {**order, "created": f"{moment}.{millis % 1000:03d}Z"}
    return json.dumps(told, separators=(",", ":")).encode()


def as_avro() -> Any:
    parsed = fastavro.parse_schema(AVRO)

    def write(order: dict[str, Any]) -> bytes:
        out = BytesIO(b"\0" + SCHEMA_ID.to_bytes(4, "big"))
        out.seek(0, 2)
        fastavro.schemaless_writer(out, parsed, order)
        return out.getvalue()

    return write


def broken(value: bytes, n: int) -> bytes:
    """Break a value by truncation, replacement, or (in JSON) another type."""
    kinds = (value[:-7], b"no order", value.replace(b'"price":', b'"price":"x","p":'))
    return kinds[n % 3] if value[:1] == b"{" else kinds[n % 2]


def fill(bootstrap: str, topic: str, form: str, rows: int, share: float) -> None:
    create_topic(bootstrap, topic, partitions=4)
    producer = Producer(
        {"bootstrap.servers": bootstrap, "linger.ms": 20, "compression.type": "lz4"}
    )
    write = as_json if form == "json" else as_avro()
    every = round(1 / share) if share else 0
    for n, order in enumerate(orders(rows, random.Random(7))):
        value = write(order)
        if every and n % every == every // 2:
            value = broken(value, n // every)
        producer.produce(topic, value, str(order["id"]).encode())
        if n % 1000 == 0:
            producer.poll(0)
    assert producer.flush(120) == 0


def serve_registry() -> tuple[str, ThreadingHTTPServer]:
    """Serve a registry that has one schema; return its address and server."""

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = json.dumps({"schema": json.dumps(AVRO)}).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *told: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"http://127.0.0.1:{server.server_address[1]}", server


def job_of(bootstrap: str, topic: str, form: str, sink: str, url: str, folder: Path) -> Job:
    told: dict[str, Any] = {
        "job": {"name": f"orders-{sink}"},
        "source": {"bootstrap": bootstrap, "topics": [topic]},
        "decode": {"format": form, "schema": DDL},
        "sink": {"kind": sink, "path": str(folder / "table")},
        "errors": {"share_max": 0.05},
        "run": {"interval_seconds": 0.1},
    }
    if form == "avro":
        told["registry"] = {"url": url}
    return parse_job(told, "orders", folder)


def by_job(spark: Any, job: Job) -> int:
    with closing(Runner(job, spark)) as runner:
        totals = runner.run(once=True)
    return totals.rows + totals.dead


def by_connector(spark: Any, bootstrap: str, topic: str, form: str, folder: Path) -> int:
    """Write with the connector; return the number of rows."""
    from pyspark.sql import functions as f
    from pyspark.sql.avro.functions import from_avro

    options = {
        "kafka.bootstrap.servers": bootstrap, "subscribe": topic, "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": "200000", "kafka.max.poll.records": "50000",
        "kafka.fetch.max.bytes": "52428800",
    }  # fmt: skip
    frame = spark.readStream.format("kafka").options(**options).load()
    if form == "json":
        wanted = f"{DDL}, _corrupt string"
        how = {"columnNameOfCorruptRecord": "_corrupt"}
        row = f.from_json(f.col("value").cast("string"), wanted, how)
        is_bad = f.col("row").isNull() | f.col("row._corrupt").isNotNull()
    else:
        data = f.expr("substring(value, 6, length(value) - 5)")
        row = from_avro(data, json.dumps(AVRO), {"mode": "PERMISSIVE"})
        is_bad = f.col("row.id").isNull()
    names = [name.split()[0] for name in DDL.split(", ")]
    rows = frame.select("partition", "offset", "timestamp", "value", row.alias("row")).select(
        *(f"row.{name}" for name in names),
        f.col("partition").alias("_partition"),
        f.col("offset").alias("_offset"),
        f.col("timestamp").alias("_timestamp"),
        f.when(is_bad, f.col("value")).alias("_bad"),
    )
    query = (
        rows.writeStream.format("parquet")
        .options(path=str(folder / "table"), checkpointLocation=str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return sum(int(one["numInputRows"]) for one in query.recentProgress)


def avro_jars() -> list[str]:
    """Return the jars of `from_avro`, fetched by Maven."""
    folder = Path.home() / ".cache" / "vdl" / "jars-avro"
    if not list(folder.glob("*.jar")):
        folder.mkdir(parents=True, exist_ok=True)
        command = ["mvn", "-B", "-q", "dependency:copy", f"-Dartifact={SPARK_AVRO}"]
        subprocess.run([*command, f"-DoutputDirectory={folder}"], check=True, timeout=600)
    return sorted(map(str, folder.glob("*.jar")))


def main() -> int:
    parser = argparse.ArgumentParser(description="Topic to table, beside the connector.")
    parser.add_argument("--rows", type=int, default=300_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--forms", default="json,avro")
    parser.add_argument("--sinks", default=",".join(SINKS))
    parser.add_argument("--shares", default="0,0.01", help="Of broken records.")
    given = parser.parse_args()
    shares = [float(text) for text in given.shares.split(",")]
    forms, sinks = given.forms.split(","), given.sinks.split(",")
    work = Path(tempfile.mkdtemp(prefix="vdl-end-to-end-"))
    servers = ReplicaSet(1)
    url, registry = serve_registry()
    found: dict[tuple[str, float, str], list[float]] = {}
    processor = Processor()
    try:
        servers.up()
        jars = [*find_jars(), *(avro_jars() if "avro" in forms else [])]
        spark = make_session("end-to-end", jars=jars)
        try:
            topics = {(f, s): f"orders-{f}-{s:g}" for f in forms for s in shares}
            for (form, share), topic in topics.items():
                fill(servers.bootstrap, topic, form, given.rows, share)
            whos = (CONNECTOR, *sinks)
            for number, ((form, share), topic), turn in product(
                range(given.rounds + 1), topics.items(), range(len(whos))
            ):
                who = whos[(number + turn) % len(whos)]
                folder = work / f"{topic}-{number}-{who}"
                folder.mkdir()
                cpu = processor.seconds()
                if who == CONNECTOR:
                    rows = by_connector(spark, servers.bootstrap, topic, form, folder)
                else:
                    job = job_of(servers.bootstrap, topic, form, who, url, folder)
                    rows = by_job(spark, job)
                rate = given.rows / (processor.seconds() - cpu)
                assert rows == given.rows, (who, rows)
                load = os.getloadavg()[0]
                print(
                    f"{number} | {form} | {share:g} | {who} | {rate:,.0f} | {load:.0f}", flush=True
                )
                if number:
                    found.setdefault((form, share, who), []).append(rate)
                shutil.rmtree(folder)
        finally:
            spark.stop()
    finally:
        registry.shutdown()
        servers.close()
        shutil.rmtree(work, ignore_errors=True)
    for line in table(found):
        print(line)
    return 0


def table(found: dict[tuple[str, float, str], list[float]]) -> Iterator[str]:
    """Yield the result as Markdown."""
    yield "| values | broken | into | rows per CPU-s | beside the connector | least to most |"
    yield "|---|---|---|---|---|---|"
    for (form, share, who), rates in found.items():
        base = found[form, share, CONNECTOR]
        ratios = [mine / other for mine, other in zip(rates, base, strict=True)]
        yield (
            f"| {form} | {share:.0%} | {who} | {median(rates):,.0f} | {median(ratios):.2f}× | "
            f"{min(ratios):.2f}× to {max(ratios):.2f}× |"
        )


if __name__ == "__main__":
    sys.exit(main())
