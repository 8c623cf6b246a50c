"""Topics of many partitions are planned with few requests, and read record by record.

Longer run, with 10,000 of them: `python -m tests.pipeline.many_partitions`.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="needs the `spark` extra")

from confluent_kafka import Producer

from examples.flights import create_topic
from tests.chaos.harness.replica_set import ReplicaSet
from tests.pipeline.many_partitions import Topics as Many
from tests.pipeline.many_partitions import (
    expected,
    make_topics,
    plan_tasks,
    read_batch,
    record_to_each,
    run_job,
    source_options,
)
from tests.pipeline.throughput import requests_of
from vdl.pipeline.fetch import TOGETHER_OFFSETS_MAX, TOGETHER_RANGES
from vdl.pipeline.options import AtTime, Earliest, Latest, ReadOptions, Where, parse
from vdl.pipeline.source import VdlReader, read_ranges
from vdl.pipeline.topics import Topics

PARTITIONS, STEP = 150, 50


@pytest.fixture(scope="module")
def many(bootstrap: str) -> Many:
    topics = make_topics(bootstrap, PARTITIONS, STEP)
    record_to_each(bootstrap, topics)
    return topics


@pytest.mark.parametrize(
    "where", [Earliest(), Latest(), AtTime(0), AtTime((int(time.time()) + 86_400) * 1000)]
)
def test_offsets_are_those_that_librdkafka_finds(
    bootstrap: str, many: Many, where: Where, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Topic ids are the same too, so a job may switch between both by a client setting."""
    options = source_options(bootstrap, many)
    by_library = Topics(parse({**options, "client.socket.timeout.ms": "60000"})).resolve(where)
    topics = Topics(parse(options))
    # Not by librdkafka after all.
    monkeypatch.setattr(topics, "_listed", None)
    assert topics.resolve(where) == by_library


def test_planning_asks_for_all_partitions_at_once(servers: ReplicaSet, many: Many) -> None:
    """One request for metadata, and one to each leader for each end of its logs."""
    before = requests_of(servers)
    assert plan_tasks(servers.bootstrap, many) == 1
    after = requests_of(servers)
    asked = {api: after[api] - before.get(api, 0) for api in ("Metadata", "ListOffsets")}
    assert asked["Metadata"] == 1
    assert asked["ListOffsets"] <= 2 * len(servers.server_ids)


def read_all(options: ReadOptions) -> list[tuple[str, int, int]]:
    """Return (topic, partition, offset) of all records, sorted, as one task reads them."""
    (task,) = [partition.value for partition in VdlReader(options).partitions()]
    assert len(task.pieces) > 1
    return sorted(
        (row["topic"], row["partition"], row["offset"])
        for batch in read_ranges(task, options)
        for row in batch.to_pylist()
    )


def test_small_ranges_are_read_with_one_request_for_many(servers: ReplicaSet, many: Many) -> None:
    before = requests_of(servers).get("Fetch", 0)
    assert read_all(parse(source_options(servers.bootstrap, many))) == expected(many, 1)
    rounds = -(-PARTITIONS // TOGETHER_RANGES)
    assert requests_of(servers)["Fetch"] - before <= rounds * len(servers.server_ids)


def test_ranges_that_are_not_small_are_read_whole_among_those_that_are(bootstrap: str) -> None:
    """Covers more records than are combined, and batches of more bytes."""
    create_topic(bootstrap, "mixed", partitions=4)
    records = [(0, 1, 10), (1, 3, 200_000), (2, TOGETHER_OFFSETS_MAX + 50, 100), (3, 200, 1_000)]
    producer = Producer({"bootstrap.servers": bootstrap, "batch.num.messages": 20})
    for partition, count, size in records:
        for _ in range(count):
            producer.produce("mixed", b"v" * size, partition=partition)
    assert producer.flush(30) == 0
    found = read_all(parse(source_options(bootstrap, [("mixed", len(records))])))
    assert found == [
        ("mixed", partition, offset) for partition, count, _ in records for offset in range(count)
    ]


@pytest.mark.spark
def test_record_of_each_partition_is_read_and_committed(
    spark: Any, bootstrap: str, many: Many, tmp_path: Path
) -> None:
    found = read_batch(spark, bootstrap, many)
    assert sorted(found) == expected(many, 1)
    reports = run_job(spark, bootstrap, many, tmp_path)
    assert sum(report.rows for report in reports) == PARTITIONS
