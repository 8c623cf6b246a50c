"""A topic is deleted and created again under an idempotent librdkafka producer, as with Kafka."""

from __future__ import annotations

import time

from confluent_kafka import KafkaError, KafkaException, Message, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.clients.topics import Topics

SECONDS = 60.0
SENT = 20


def test_producer_goes_on_in_a_topic_that_was_made_anew(bootstrap: str, topics: Topics) -> None:
    """The producer does not know of the new topic, and its sequence numbers continue.

    If the first of them were refused as those of an unknown producer, that would be fatal to the
    producer: it has sent that batch before.
    """
    fatal: list[KafkaError] = []
    fates: list[KafkaError | None] = []

    def delivered(error: KafkaError | None, message: Message) -> None:
        fates.append(error)

    def failed(error: KafkaError) -> None:
        if error.fatal():
            fatal.append(error)

    name = topics.create("anew")
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "enable.idempotence": True,
            "linger.ms": 0,
            "topic.metadata.refresh.interval.ms": 1_000,
            "topic.metadata.propagation.max.ms": 30_000,
            "error_cb": failed,
        }
    )

    def send(count: int) -> None:
        for number in range(count):
            producer.produce(name, b"%d" % number, partition=0, on_delivery=delivered)
            producer.poll(0)

    send(SENT)
    assert producer.flush(SECONDS) == 0
    assert fates == [None] * SENT
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.delete_topics([name])[name].result()
    deadline = time.monotonic() + SECONDS
    while admin.list_topics(timeout=SECONDS).topics.get(name) is not None:
        assert time.monotonic() < deadline
    # Sent to the deleted topic, and again to its successor.
    fates.clear()
    send(SENT)
    try:
        admin.create_topics([NewTopic(name, 1)])[name].result()
    except KafkaException as error:
        # The producer's own metadata request may have created it before.
        if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
            raise
    assert producer.flush(SECONDS) == 0
    send(SENT)
    assert producer.flush(SECONDS) == 0
    assert not fatal
    assert fates == [None] * (2 * SENT)
