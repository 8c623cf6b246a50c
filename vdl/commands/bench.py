"""`vdl bench`: throughput and latency of any cluster that speaks Kafka's protocol."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterator
from concurrent.futures import wait
from dataclasses import asdict
from typing import Any

import click

from vdl.commands.cluster.cluster_options import Cluster, cluster_options, kafka_exception
from vdl.commands.interrupts import Interrupts
from vdl.commands.measurement.bench_phases import Load, Measured, end_to_end, read_back, write
from vdl.commands.measurement.latency_histogram import PERCENTILES
from vdl.commands.output import FAILED, emit, fail, json_option, say, table
from vdl.commands.resources.temporary_topic import delete_temporary

PREFIX = "vdl-bench-"
CREATE_SECONDS_MAX = 30.0
SIZE_MIN = 16
"""Bytes of a value: it holds a number and the time at which it was sent."""
SIZE_MAX = 10_000_000
RECORDS_DEFAULT = 200_000
BYTES_DEFAULT = 200_000_000
"""Bytes at most that are written if neither --records nor --seconds is given."""
LATENCY_RATE = 200.0
LATENCY_SECONDS = 10.0


@click.command()
@cluster_options
@click.option("--records", type=click.IntRange(1), help="Records to write.")
@click.option("--seconds", type=click.FloatRange(min=0, min_open=True), help="Write so long.")
@click.option("--size", type=click.IntRange(SIZE_MIN, SIZE_MAX), default=1_000, show_default=True,
              help="Bytes of a value.")  # fmt: skip
@click.option("--rate", type=click.FloatRange(min=0, min_open=True),
              help="Records in a second; as many as possible by default.")  # fmt: skip
@click.option("--partitions", type=click.IntRange(1, 10_000), default=6, show_default=True)
@click.option("--replication", type=click.IntRange(1, 100), help="Replicas; the cluster's default.")
@click.option("--acks", type=click.Choice(["0", "1", "all"]), default="all", show_default=True)
@click.option("--compression", type=click.Choice(["none", "gzip", "snappy", "lz4", "zstd"]),
              default="none", show_default=True)  # fmt: skip
@click.option("--batch-bytes", type=click.IntRange(1), default=1_000_000, show_default=True)
@click.option("--linger-ms", type=click.FloatRange(0, 900_000), default=5.0, show_default=True)
@click.option("--latency-rate", type=click.FloatRange(0, 100_000), default=LATENCY_RATE,
              show_default=True,
              help="Records in a second, end to end; 0: without that phase.")  # fmt: skip
@click.option("--latency-seconds", type=click.FloatRange(0.1, 86_400), default=LATENCY_SECONDS,
              show_default=True, help="Length of the end-to-end phase.")  # fmt: skip
@json_option
def bench(
    *,
    cluster: Cluster,
    records: int | None,
    seconds: float | None,
    size: int,
    rate: float | None,
    partitions: int,
    replication: int | None,
    acks: str,
    compression: str,
    batch_bytes: int,
    linger_ms: float,
    latency_rate: float,
    latency_seconds: float,
    as_json: bool,
) -> int:
    """Measure a cluster with a topic of its own, which is removed at the end and after ^C.

    Three phases: records are written, with the time from each send to its acknowledgement; they are
    read back; and at a low rate each record is timed from its send to its arrival at a consumer.
    Without --rate the first is a test of throughput, and its latency is mostly the time in the
    client's queue.
    """
    if records is None and seconds is None:
        records = max(1, min(RECORDS_DEFAULT, BYTES_DEFAULT // size))
    load = Load(
        records, seconds, size, rate or 0.0,
        {
            "acks": acks, "compression.type": compression, "batch.size": batch_bytes,
            "linger.ms": linger_ms,
            # A record and its batch's head must fit, whatever the cluster's limit is.
            "message.max.bytes": max(2 * SIZE_MAX, batch_bytes + 1_000),
        },
    )  # fmt: skip
    measured: list[Measured] = []
    cluster.outage.is_told = True
    left: list[str] = []
    with Interrupts(), _topic(cluster, partitions, replication, size, left) as topic:
        try:
            measured.append(write(cluster, topic, partitions, load))
            measured.append(read_back(cluster, topic, partitions))
            if latency_rate:
                paced = Load(None, latency_seconds, size, latency_rate, load.properties)
                measured.append(end_to_end(cluster, topic, partitions, paced))
        except kafka_exception() as error:
            fail(cluster.words(error))
    document = {
        "topic": {"partitions": partitions, "replication": replication},
        "load": {**asdict(load), "latency_rate": latency_rate},
        "phases": {one.name: one.document() for one in measured},
    }
    emit(as_json, document, lambda: _print(measured))
    failed = sum(one.failed for one in measured)
    if failed:
        say(f"vdl: {failed:,} records failed; the first: {_reason(measured)}", err=True)
    return FAILED if failed or left else 0


def _reason(measured: list[Measured]) -> str:
    return next(one.problem for one in measured if one.problem)


def _print(measured: list[Measured]) -> None:
    names = ["phase", ">records", ">MB/s", ">records/s"]
    names += [f">p{percent:g}" for percent in PERCENTILES] + [">max ms"]
    rows = []
    for one in measured:
        row: list[object] = [one.name, f"{one.records:,}", f"{one.mb_s:,.1f}", f"{one.rate:,.0f}"]
        times: list[object] = [None] * (len(PERCENTILES) + 1)
        if one.latency is not None:
            times = [f"{number:,.2f}" for number in list(one.latency.document().values())[1:]]
        rows.append(row + times)
    table(names, rows)


@contextlib.contextmanager
def _topic(
    cluster: Cluster, partitions: int, replication: int | None, size: int, left: list[str]
) -> Iterator[str]:
    """Create the topic, and delete it at the end whatever happens. `left` gets a line if that
    fails: what was measured is shown all the same."""
    from confluent_kafka.admin import NewTopic

    name = f"{PREFIX}{secrets.token_hex(6)}"
    config: dict[str, Any] = {}
    if size > 900_000:
        config["max.message.bytes"] = str(size + 100_000)
    new = NewTopic(name, num_partitions=partitions, replication_factor=replication or -1,
                   config=config)  # fmt: skip
    admin = cluster.admin()
    try:
        created = admin.create_topics([new])[name]
        try:
            cluster.result(created)
        finally:
            # After an interrupt as well: a topic cannot be deleted before it is there.
            wait([created], CREATE_SECONDS_MAX)
        yield name
    finally:
        if problem := delete_temporary(cluster, name):
            left.append(problem)
            say(f"vdl: {problem}", err=True)
