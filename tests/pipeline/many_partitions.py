"""Topics of very many partitions: time to plan a batch, and to read one with a record each.

    python -m tests.pipeline.many_partitions --partitions 10000 --step 1000

One server, without a low limit on replicas; topics of `--step` partitions each, and a record in
each partition. Then, in seconds: `open`, the driver's part of the source, from a new connection to
the tasks of a batch; `batch`, a batch read on Spark until all its rows were seen; a job into a
Parquet table, `run --once`, over the same records, and again over a second record each, with the
parts of each batch.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer

from examples.flights import create_topic
from tests.chaos.harness.replica_set import ReplicaSet
from vdl.pipeline.job import load_job
from vdl.pipeline.options import parse
from vdl.pipeline.runner import BatchReport, Runner
from vdl.pipeline.session import make_session
from vdl.pipeline.source import VdlReader

CREATE_SECONDS_MAX = 300.0
FLUSH_SECONDS_MAX = 300.0
JOB = """
[job]
name = "many"
[source]
bootstrap = "{bootstrap}"
topics = [{topics}]
[decode]
schema = "n bigint"
[sink]
kind = "parquet"
path = "many"
[run]
checkpoint = "checkpoint"
"""

Topics = Sequence[tuple[str, int]]
"""(name, partitions)."""


def make_topics(bootstrap: str, partitions: int, step: int) -> Topics:
    """Create `partitions` partitions in topics of `step`, the last one smaller."""
    topics = [
        (f"many-{first}", min(step, partitions - first)) for first in range(0, partitions, step)
    ]
    deadline = time.monotonic() + CREATE_SECONDS_MAX
    for topic, count in topics:
        while True:
            try:
                create_topic(bootstrap, topic, partitions=count)
                break
            except KafkaException as error:
                # It may have been created nevertheless, which is sufficient.
                late = error.args[0].code() == KafkaError.REQUEST_TIMED_OUT
                if not late or time.monotonic() >= deadline:
                    raise
    return topics


def record_to_each(bootstrap: str, topics: Topics) -> None:
    """Produce a record to each partition; return when all are acknowledged."""
    producer = Producer(
        {"bootstrap.servers": bootstrap, "acks": "all", "linger.ms": 50, "log_level": 2}
    )
    failures: list[str] = []

    def delivered(error: KafkaError | None, message: object) -> None:
        del message
        if error is not None:
            failures.append(error.str())

    for topic, count in topics:
        for partition in range(count):
            value = f'{{"n": {partition}}}'.encode()
            producer.produce(topic, value, partition=partition, on_delivery=delivered)
            producer.poll(0)
    left = producer.flush(FLUSH_SECONDS_MAX)
    assert left == 0, left
    assert not failures, failures[:3]


def source_options(bootstrap: str, topics: Topics) -> dict[str, str]:
    return {"bootstrap": bootstrap, "topics": ",".join(topic for topic, _ in topics)}


def plan_tasks(bootstrap: str, topics: Topics) -> int:
    """Return the number of tasks of a batch of all topics."""
    return len(VdlReader(parse(source_options(bootstrap, topics))).partitions())


def read_batch(spark: Any, bootstrap: str, topics: Topics) -> list[tuple[str, int, int]]:
    """Return (topic, partition, offset) of all records."""
    frame = spark.read.format("vdl").options(**source_options(bootstrap, topics)).load()
    return [tuple(row) for row in frame.select("topic", "partition", "offset").collect()]


def run_job(spark: Any, bootstrap: str, topics: Topics, folder: Path) -> list[BatchReport]:
    """Return the batches of `run --once` into a table in `folder`."""
    file = folder / "many.toml"
    names = ", ".join(f'"{topic}"' for topic, _ in topics)
    file.write_text(JOB.format(bootstrap=bootstrap, topics=names), encoding="utf-8")
    reports: list[BatchReport] = []
    with closing(Runner(load_job(file), spark, reports.append)) as runner:
        runner.run(once=True)
    return reports


def expected(topics: Topics, records: int) -> list[tuple[str, int, int]]:
    """Return the sorted result of `read_batch` if each partition has this number of records."""
    return sorted(
        (topic, partition, offset)
        for topic, count in topics
        for partition in range(count)
        for offset in range(records)
    )


@contextmanager
def _timed(what: str) -> Iterator[None]:
    began = time.monotonic()
    yield
    print(f"{what}: {time.monotonic() - began:.2f} s", flush=True)


def measure(servers: ReplicaSet, partitions: int, step: int, folder: Path) -> None:
    bootstrap = servers.bootstrap
    with _timed("topics made"):
        topics = make_topics(bootstrap, partitions, step)
    with _timed("a record to each"):
        record_to_each(bootstrap, topics)
    for _ in range(3):
        with _timed("open"):
            tasks = plan_tasks(bootstrap, topics)
    print(f"tasks: {tasks}", flush=True)
    with _timed("Spark's start"):
        spark = make_session("many-partitions")
    for _ in range(3):
        with _timed("batch"):
            found = read_batch(spark, bootstrap, topics)
        assert sorted(found) == expected(topics, 1), len(found)
    for records in (1, 2):
        if records > 1:
            record_to_each(bootstrap, topics)
        with _timed(f"job, record {records} of each"):
            reports = run_job(spark, bootstrap, topics, folder)
        assert sum(report.rows for report in reports) == partitions, reports
        for report in reports:
            parts = ", ".join(f"{name} {ms / 1000:.2f}" for name, ms in report.phases_ms.items())
            print(f"  batch of {report.rows} rows: {parts}", flush=True)
    spark.stop()


def main() -> int:
    parser = argparse.ArgumentParser(description="A batch over very many partitions.")
    parser.add_argument("--partitions", type=int, default=10_000)
    parser.add_argument("--step", type=int, default=1_000, help="partitions of one topic")
    options = parser.parse_args()
    servers = ReplicaSet(1)
    try:
        servers.configure({"cluster.replicas_per_server": options.partitions})
        servers.up()
        with TemporaryDirectory(prefix="vdl-many-") as folder:
            measure(servers, options.partitions, options.step, Path(folder))
    finally:
        servers.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
