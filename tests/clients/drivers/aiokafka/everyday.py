"""Everyday use of aiokafka by an application: see tests/clients/everyday.py."""

from __future__ import annotations

import asyncio
import json
import sys
from importlib.metadata import version
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

SECONDS_MAX = 30.0
ASKED_TIMES = 50


async def produce(plan: dict[str, Any], numbers: list[int]) -> list[list[int]]:
    producer = AIOKafkaProducer(
        bootstrap_servers=plan["bootstrap"],
        acks="all",
        enable_idempotence=True,
        compression_type="gzip",
    )
    await producer.start()
    try:
        sent = [
            await producer.send(
                plan["topic"],
                value=b"%d" % number,
                key=b"k%d" % number,
                partition=number % 2,
                timestamp_ms=plan["time_ms"] + 1_000 * number,
                headers=[("number", b"%d" % number)],
            )
            for number in numbers
        ]
        found = [await one for one in sent]
    finally:
        await producer.stop()
    return [[one.partition, one.offset] for one in found]


def consumer_of(plan: dict[str, Any], *topics: str, group: str | None) -> AIOKafkaConsumer:
    return AIOKafkaConsumer(
        *topics,
        bootstrap_servers=plan["bootstrap"],
        group_id=group,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
    )


async def read(consumer: AIOKafkaConsumer, count: int) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}

    async def poll() -> None:
        while sum(map(len, found.values())) < count:
            polled = await consumer.getmany(timeout_ms=500)
            for where, records in polled.items():
                for record in records:
                    number = int(record.value)
                    assert record.headers == (("number", b"%d" % number),), record
                    assert record.key == b"k%d" % number, record
                    found.setdefault(str(where.partition), []).append(number)

    await asyncio.wait_for(poll(), SECONDS_MAX)
    return found


async def main(plan: dict[str, Any]) -> dict[str, Any]:
    topic, group = plan["topic"], plan["group"]
    admin = AIOKafkaAdminClient(bootstrap_servers=plan["bootstrap"])
    await admin.start()
    await admin.create_topics([NewTopic(topic, num_partitions=2, replication_factor=3)])
    (described,) = await admin.describe_topics([topic])
    result: dict[str, Any] = {"client": f"aiokafka {version('aiokafka')}"}
    result["partitions"] = len(described["partitions"])
    result["offsets"] = await produce(plan, plan["first"])

    consumer = consumer_of(plan, topic, group=group)
    await consumer.start()
    result["read"] = await read(consumer, len(plan["first"]))
    await consumer.commit()
    await consumer.stop()

    await produce(plan, plan["second"])
    consumer = consumer_of(plan, topic, group=group)
    await consumer.start()
    places = [TopicPartition(topic, partition) for partition in (0, 1)]
    result["committed"] = [await consumer.committed(place) for place in places]
    result["read_on"] = await read(consumer, len(plan["second"]))
    await consumer.commit()
    await consumer.stop()

    consumer = consumer_of(plan, group=None)
    await consumer.start()
    consumer.assign(places[1:])
    found = await consumer.offsets_for_times({places[1]: plan["since_ms"]})
    result["since_offset"] = found[places[1]].offset
    consumer.seek(places[1], found[places[1]].offset)
    result["since"] = (await read(consumer, 1))["1"][0]
    await consumer.stop()

    resource = ConfigResource(ConfigResourceType.TOPIC, topic, {"retention.ms": "3600000"})
    await admin.alter_configs([resource])
    asked = ConfigResource(ConfigResourceType.TOPIC, topic, {"retention.ms": None})
    # Any server answers, as with Kafka; one that lags may return the previous value.
    for _ in range(ASKED_TIMES):
        (answer,) = await admin.describe_configs([asked])
        result["retention_ms"] = answer.resources[0][4][0][1]
        if result["retention_ms"] == "3600000":
            break
        await asyncio.sleep(0.1)
    groups = await admin.list_consumer_groups()
    result["is_listed"] = group in {name for name, _ in groups}
    offsets = await admin.list_consumer_group_offsets(group)
    result["group_offsets"] = [offsets[place].offset for place in places]
    await admin.delete_topics([topic])
    await admin.close()
    return result


if __name__ == "__main__":
    print(json.dumps(asyncio.run(main(json.loads(sys.argv[1])))))
