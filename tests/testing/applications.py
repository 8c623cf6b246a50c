"""Small applications with classic bugs, each with its counterpart that is right.

Every pair has one check and differs in a line or two. `COUNT` values go in; a check says which of
loss and repetition is wrong.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from confluent_kafka import (
    OFFSET_STORED,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)

from vdl.testing.application import App, Env

COUNT = 3
VALUES = [str(number) for number in range(COUNT)]
CALL_SECONDS = 30.0
QUIET = {
    "log_level": 0,
    "reconnect.backoff.max.ms": 200,
    "topic.metadata.refresh.fast.interval.ms": 50,
}


def producer(env: Env, **settings: Any) -> Producer:
    named = {name.replace("_", "."): value for name, value in settings.items()}
    return Producer({"bootstrap.servers": env.bootstrap, "linger.ms": 0, **QUIET, **named})


def consumer(env: Env, **settings: Any) -> Consumer:
    """Return a consumer with positions of its own. It does not subscribe and is no member."""
    named = {name.replace("_", "."): value for name, value in settings.items()}
    return Consumer(
        {
            "bootstrap.servers": env.bootstrap,
            "group.id": env.topic(),
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 20,
            **QUIET,
            **named,
        }
    )


def records(consumer: Consumer, *places: TopicPartition) -> Iterator[Message]:
    """Yield the records of these partitions up to their ends."""
    consumer.assign(list(places))
    left = len(places)
    while left:
        message = consumer.poll(CALL_SECONDS)
        assert message is not None, "no answer"
        error = message.error()
        if error is None:
            yield message
        elif error.code() == KafkaError._PARTITION_EOF:
            left -= 1
        elif not error.retriable() and error.code() != KafkaError._ALL_BROKERS_DOWN:
            raise KafkaException(error)


def value_of(message: Message) -> str:
    return (message.value() or b"").decode()


def put(env: Env, topic: str, values: list[str]) -> None:
    """Write values so that they are safe."""
    made = producer(env, enable_idempotence=True)
    for value in values:
        made.produce(env.topic(topic), value, partition=0)
    assert made.flush(CALL_SECONDS) == 0


def values_in(env: Env, topic: str) -> list[str]:
    """Return all committed values of partition 0."""
    reader = consumer(env, isolation_level="read_committed")
    try:
        return [value_of(one) for one in records(reader, TopicPartition(env.topic(topic), 0, 0))]
    finally:
        reader.close()


def fill(env: Env) -> None:
    put(env, "in", VALUES)


def fill_twice(env: Env) -> None:
    put(env, "in", [value for value in VALUES for _ in range(2)])


def nothing_lost(env: Env) -> None:
    lost = sorted(set(VALUES) - set(env.effects()))
    assert not lost, f"lost: {lost}"


def each_once(env: Env) -> None:
    found = sorted(env.effects())
    assert found == VALUES, f"expected each of {VALUES} once, found {found}"


def each_effect_is_stored(env: Env) -> None:
    """A customer was answered only if the order is there."""
    lost = sorted(set(env.effects()) - set(values_in(env, "in")))
    assert not lost, f"confirmed and lost: {lost}"


def each_once_in_topic(env: Env) -> None:
    found = sorted(values_in(env, "in"))
    assert found == VALUES, f"expected each of {VALUES} once, found {found}"


# --- positions and work ---------------------------------------------------------------------------
def work(env: Env, *, commits_first: bool = False, ahead: int = 1) -> None:
    """Read a value, do its work and commit the position."""
    reader = consumer(env)
    place = TopicPartition(env.topic(), 0, OFFSET_STORED)
    for message in records(reader, place):
        after = [TopicPartition(env.topic(), 0, (message.offset() or 0) + ahead)]
        if commits_first:
            reader.commit(offsets=after, asynchronous=False)
            env.step()
            env.effect(value_of(message))
        else:
            env.effect(value_of(message))
            reader.commit(offsets=after, asynchronous=False)
            env.step()
    reader.close()


COMMITS_FIRST = App("COMMITS_FIRST", partial(work, commits_first=True), nothing_lost, fill)
COMMITS_AFTER = App("COMMITS_AFTER", work, nothing_lost, fill)
COMMITS_OWN_OFFSET = App("COMMITS_OWN_OFFSET", partial(work, ahead=0), each_once, fill)
COMMITS_NEXT_OFFSET = App("COMMITS_NEXT_OFFSET", work, each_once, fill)


def work_later(env: Env, *, stores_after: bool) -> None:
    """Read everything, and work through it afterwards, with automatic commits."""
    reader = consumer(
        env,
        enable_auto_commit=True,
        auto_commit_interval_ms=20,
        enable_auto_offset_store=not stores_after,
    )
    queue = list(records(reader, TopicPartition(env.topic(), 0, OFFSET_STORED)))
    time.sleep(0.3)  # until the next automatic commit
    for message in queue:
        env.step()
        env.effect(value_of(message))
        if stores_after:
            reader.store_offsets(message)
    reader.close()


AUTO_COMMITS = App("AUTO_COMMITS", partial(work_later, stores_after=False), nothing_lost, fill)
STORES_AFTER = App("STORES_AFTER", partial(work_later, stores_after=True), nothing_lost, fill)


def work_from(env: Env, *, reset: str) -> None:
    """Wait for orders: the first ones arrive once this listens."""
    reader = consumer(env, auto_offset_reset=reset)
    place = TopicPartition(env.topic(), 0, OFFSET_STORED)
    if not env.starts:
        place.offset = reader.get_watermark_offsets(place, CALL_SECONDS)[1]
        put(env, "in", VALUES)
        env.step()
    for message in records(reader, place):
        env.effect(value_of(message))
        reader.commit(message=message, asynchronous=False)
    reader.close()


STARTS_AT_LATEST = App("STARTS_AT_LATEST", partial(work_from, reset="latest"), nothing_lost)
STARTS_AT_EARLIEST = App("STARTS_AT_EARLIEST", partial(work_from, reset="earliest"), nothing_lost)


def work_on_new(env: Env, *, remembers: Callable[[Env], set[str]]) -> None:
    """Do each value's work once, though values come twice."""
    reader = consumer(env)
    seen = remembers(env)
    for message in records(reader, TopicPartition(env.topic(), 0, OFFSET_STORED)):
        value = value_of(message)
        if value not in seen:
            env.effect(value)
            seen.add(value)
            env.step()
        reader.commit(message=message, asynchronous=False)
    reader.close()


DEDUPES_IN_MEMORY = App(
    "DEDUPES_IN_MEMORY", partial(work_on_new, remembers=lambda env: set()), each_once, fill_twice
)
DEDUPES_IN_DATABASE = App(
    "DEDUPES_IN_DATABASE",
    partial(work_on_new, remembers=lambda env: set(env.effects())),
    each_once,
    fill_twice,
)


def work_on_partitions(env: Env, *, looks_again: bool) -> None:
    """Work on all partitions, while others write to all partitions."""
    reader = consumer(env)
    topic = env.topic()
    count = len(reader.list_topics(topic, CALL_SECONDS).topics[topic].partitions)
    env.step()
    writer = producer(env, enable_idempotence=True)
    there = sorted(writer.list_topics(topic, CALL_SECONDS).topics[topic].partitions)
    if not env.starts:
        for number, value in enumerate(VALUES):
            writer.produce(topic, value, partition=there[number % len(there)])
        assert writer.flush(CALL_SECONDS) == 0
    if looks_again:
        count = len(there)
    for message in records(reader, *(TopicPartition(topic, one, 0) for one in range(count))):
        env.effect(value_of(message))
    reader.close()


COUNTS_PARTITIONS_ONCE = App(
    "COUNTS_PARTITIONS_ONCE", partial(work_on_partitions, looks_again=False), nothing_lost
)
COUNTS_PARTITIONS_AGAIN = App(
    "COUNTS_PARTITIONS_AGAIN", partial(work_on_partitions, looks_again=True), nothing_lost
)


# --- producers ------------------------------------------------------------------------------------
def confirm(env: Env, *, looks: bool = True, **settings: Any) -> None:
    """Store each order, and tell the customer."""
    writer = producer(env, **settings)
    for value in VALUES:
        env.step()
        is_stored = False
        while not is_stored:
            failed: list[object] = []

            def delivered(error: object, message: object, failed: list[object] = failed) -> None:
                if error is not None:
                    failed.append(error)

            writer.produce(env.topic(), value, partition=0, on_delivery=delivered)
            writer.flush(CALL_SECONDS)
            is_stored = not looks or not failed
        env.effect(value)


SENDS_UNACKNOWLEDGED = App("SENDS_UNACKNOWLEDGED", partial(confirm, acks=0), each_effect_is_stored)
SENDS_ACKNOWLEDGED = App("SENDS_ACKNOWLEDGED", partial(confirm, acks="all"), each_effect_is_stored)
IGNORES_ERRORS = App(
    "IGNORES_ERRORS", partial(confirm, looks=False, message_timeout_ms=1_000), each_effect_is_stored
)
LOOKS_AT_ERRORS = App(
    "LOOKS_AT_ERRORS", partial(confirm, message_timeout_ms=1_000), each_effect_is_stored
)


def send(env: Env, **settings: Any) -> None:
    """Write each value once, however often it must be sent. Not restarted."""
    writer = producer(env, request_timeout_ms=1_000, retry_backoff_ms=50, **settings)
    for value in VALUES:
        env.step()
        writer.produce(env.topic(), value, partition=0)
        assert writer.flush(CALL_SECONDS) == 0


RETRIES_PLAINLY = App(
    "RETRIES_PLAINLY", partial(send, enable_idempotence=False), each_once_in_topic
)
RETRIES_IDEMPOTENTLY = App(
    "RETRIES_IDEMPOTENTLY", partial(send, enable_idempotence=True), each_once_in_topic
)


def send_alone(env: Env, *, fences: bool) -> None:
    """Continue where the one before ended; there is never meant to be a second one."""
    writer = producer(
        env, **({"transactional_id": env.topic()} if fences else {"enable_idempotence": True})
    )
    if fences:
        writer.init_transactions(CALL_SECONDS)
    for value in VALUES[len(values_in(env, "in")) :]:
        if fences:
            writer.begin_transaction()
        env.step()
        writer.produce(env.topic(), value, partition=0)
        if fences:
            writer.commit_transaction(CALL_SECONDS)
        assert writer.flush(CALL_SECONDS) == 0


HAS_NO_FENCE = App("HAS_NO_FENCE", partial(send_alone, fences=False), each_once_in_topic)
HAS_A_FENCE = App("HAS_A_FENCE", partial(send_alone, fences=True), each_once_in_topic)


def pass_on(env: Env, *, isolation: str) -> None:
    """Write in transactions, and then read what was written."""
    writer = producer(env, transactional_id=env.topic())
    writer.init_transactions(CALL_SECONDS)
    for value in VALUES[len(values_in(env, "in")) :]:
        writer.begin_transaction()
        writer.produce(env.topic(), value, partition=0)
        assert writer.flush(CALL_SECONDS) == 0
        env.step()
        writer.commit_transaction(CALL_SECONDS)
    reader = consumer(env, isolation_level=isolation)
    for message in records(reader, TopicPartition(env.topic(), 0, 0)):
        env.effect(value_of(message))
    reader.close()


READS_UNCOMMITTED = App(
    "READS_UNCOMMITTED", partial(pass_on, isolation="read_uncommitted"), each_once
)
READS_COMMITTED = App("READS_COMMITTED", partial(pass_on, isolation="read_committed"), each_once)
