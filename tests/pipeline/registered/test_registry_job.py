"""A job whose values name their schemas in Apicurio, written by Confluent's own serializers."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="needs the `spark` extra")
pytest.importorskip("fastavro", reason="needs the `spark` extra")

from confluent_kafka import Producer
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

from rpc.proto import admin_pb2
from tests.ecosystem.apicurio import Registry, program
from tests.ecosystem.programs import free_port
from tests.pipeline.test_reading import create
from tests.pipeline.test_spark import run_once
from vdl.pipeline.job import load_job
from vdl.pipeline.preflight import check_registry

pytestmark = pytest.mark.spark
COUNT = 300
UNKNOWN = b"\0\x7f\xff\xff\xff"
"""The id of a schema that was never registered."""

JOB = """
[job]
name = "numbers"
[source]
bootstrap = "{bootstrap}"
topics = ["{topic}"]
[decode]
format = "{form}"
schema = "{schema}"
rescued = "rest"
[registry]
url = "{url}"
[sink]
kind = "parquet"
path = "{topic}"
[errors]
share_max = 0.5
"""
AVRO = json.dumps({
    "type": "record", "name": "Number",
    "fields": [
        {"name": "n", "type": "long"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "more", "type": ["null", "string"], "default": None},
    ],
})  # fmt: skip
JSON_SCHEMA = json.dumps({
    "title": "Number", "type": "object", "required": ["n"],
    "properties": {"n": {"type": "integer"}, "more": {"type": "string"}},
})  # fmt: skip


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    registry = Registry(free_port())
    port = int(registry.url.split(":")[2].partition("/")[0])
    with program(port, tmp_path_factory.mktemp("registry") / "log") as running:
        running.wait_for("the registry is up", registry.is_up)
        yield registry.url


def of_avro(client: SchemaRegistryClient) -> Callable[[int, Any], bytes]:
    write = AvroSerializer(client, AVRO)
    return lambda n, where: write({"n": n, "at": n * 1000, "more": f"m{n}"}, where)


def of_json(client: SchemaRegistryClient) -> Callable[[int, Any], bytes]:
    write = JSONSerializer(JSON_SCHEMA, client)
    return lambda n, where: write({"n": n, "more": f"m{n}"}, where)


def of_protobuf(client: SchemaRegistryClient) -> Callable[[int, Any], bytes]:
    write = ProtobufSerializer(admin_pb2.StatusRequest, client)
    return lambda n, where: write(admin_pb2.StatusRequest(group_ids=[n, n + 1]), where)


@pytest.mark.takes_turns(parts=3)
@pytest.mark.parametrize(
    ("form", "schema", "make", "first"),
    [
        ("avro", "n bigint, at timestamp", of_avro, {"n": 0, "rest": '{"more":"m0"}'}),
        ("json-schema", "n bigint", of_json, {"n": 0, "rest": '{"more":"m0"}'}),
        ("protobuf", "group_ids array<bigint>", of_protobuf, {"group_ids": [0, 1], "rest": None}),
    ],
)
def test_values_become_rows_by_the_schemas_they_name(
    spark: Any,
    bootstrap: str,
    url: str,
    tmp_path: Path,
    form: str,
    schema: str,
    make: Callable[[SchemaRegistryClient], Callable[[int, Any], bytes]],
    first: dict[str, Any],
) -> None:
    """A value that names no known schema becomes a dead letter with that reason."""
    topic = f"registered-{form}"
    create(bootstrap, topic, partitions=1)
    where = SerializationContext(topic, MessageField.VALUE)
    producer = Producer({"bootstrap.servers": bootstrap})
    with SchemaRegistryClient({"url": url}) as client:
        write = make(client)
        for n in range(COUNT):
            producer.produce(topic, write(n, where))
    for value in (b"{}", UNKNOWN):
        producer.produce(topic, value)
    assert producer.flush(30) == 0
    file = tmp_path / "job.toml"
    file.write_text(
        JOB.format(bootstrap=bootstrap, topic=topic, form=form, schema=schema, url=url),
        encoding="utf-8",
    )
    job = load_job(file)
    check_registry(job)
    totals = run_once(job, spark)
    assert (totals.rows, totals.dead) == (COUNT, 2)
    rows = spark.read.parquet(job.sink.path).orderBy("_offset").collect()
    found = rows[0].asDict()
    assert {name: found[name] for name in first} == first
    assert len({str(row[0]) for row in rows}) == COUNT
    if form == "avro":
        assert (rows[7]["at"] - rows[0]["at"]).total_seconds() == 7
    letters = spark.read.parquet(job.errors.path).orderBy("offset").collect()
    assert "does not begin with a schema id" in letters[0]["error"]
    assert "is not known to the registry" in letters[1]["error"]
