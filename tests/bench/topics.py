"""Topics of a measurement: creation, wait for leaders, deletion."""

from __future__ import annotations

import time
from collections.abc import Mapping

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

REPLICATION = 3
CALL_SECONDS_MAX = 60.0
RETRY_SECONDS = 0.01
LED_POLL_SECONDS = 0.1
NO_CONFIG: Mapping[str, str] = {}


def create_topic(
    bootstrap: str, topic: str, partitions: int, config: Mapping[str, str] = NO_CONFIG
) -> None:
    """Create a topic with replication 3, if it does not exist. Retries while servers start."""
    admin = _admin(bootstrap)
    wanted = NewTopic(
        topic, num_partitions=partitions, replication_factor=REPLICATION, config=dict(config)
    )
    deadline = time.monotonic() + CALL_SECONDS_MAX
    while True:
        try:
            admin.create_topics([wanted])[topic].result(timeout=CALL_SECONDS_MAX)
        except KafkaException as error:
            if error.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS:
                return
            if time.monotonic() > deadline:
                raise
            time.sleep(RETRY_SECONDS)
        else:
            return


def create_led_topic(
    bootstrap: str, topic: str, partitions: int = 1, config: Mapping[str, str] = NO_CONFIG
) -> None:
    """Create a topic; return when each partition is led by its first replica.

    Leaders stay there, which matters to clients that do not look for them again.
    """
    create_topic(bootstrap, topic, partitions, config)
    _wait_led(bootstrap, topic, partitions)


def delete_topic(bootstrap: str, topic: str) -> None:
    # Kept until the answer has arrived: a closed client drops its requests.
    admin = _admin(bootstrap)
    admin.delete_topics([topic])[topic].result(timeout=CALL_SECONDS_MAX)


def _wait_led(bootstrap: str, topic: str, partitions: int) -> None:
    admin = _admin(bootstrap)
    deadline = time.monotonic() + CALL_SECONDS_MAX
    while True:
        found = admin.list_topics(topic, timeout=CALL_SECONDS_MAX).topics[topic].partitions
        led = sum(row.error is None and row.leader == row.replicas[0] for row in found.values())
        if led == partitions:
            return
        assert time.monotonic() < deadline, f"{led} of {partitions} of {topic} are led as preferred"
        time.sleep(LED_POLL_SECONDS)


def _admin(bootstrap: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
