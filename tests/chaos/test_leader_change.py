"""Order of an unmodified librdkafka's records when a leader changes while a request is in flight.

Record 1 is on its way to a server that leads no more and is slow. The client learns the new leader
by other means, and is given record 2. An idempotent producer sends it when record 1 is answered. A
plain one sends it at once, also with `max.in.flight` 1: that bounds the requests of a connection,
and the new leader has another one. The former leader then refuses record 1, and the client sends it
to the new leader, which stores it behind record 2.

So the order of a plain producer holds within a leader's term only: see `sent_in_term`. Nothing here
but `AlterPartitionReassignments` depends on VDL; with Kafka's servers the orders are the same.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any, Protocol

import pytest
from confluent_kafka import ElectionType, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.chaos.harness.load import (
    IDEMPOTENT,
    ORDERED_IN_TERM,
    QUIET,
    Ack,
    Stored,
    Variant,
    number_of,
    read_back,
    sent_in_term,
    value_of,
)
from tests.chaos.harness.moves import move
from tests.chaos.harness.replica_set import ReplicaSet

TOPIC, BESIDE = "led-anew", "beside"
FORMER, NEXT, THIRD = 1, 2, 3
SECONDS_MAX = 60.0
POLL_SECONDS = 0.02
IDLE_SECONDS = 1.5


class Servers(Protocol):
    """Three servers that can stand still."""

    @property
    def bootstrap(self) -> str: ...
    def pause(self, server_id: int) -> None: ...
    def resume(self, server_id: int) -> None: ...


class _Client:
    """A producer, and what is known of its records."""

    def __init__(self, bootstrap: str, variant: Variant) -> None:
        self.acked: set[int] = set()
        self.in_flight = 0
        """Records of the topic in flight, as of the last statistics since one was sent."""
        settings = {"bootstrap.servers": bootstrap, "statistics.interval.ms": 50}
        calls = {"stats_cb": self._measured, **QUIET}
        self._producer = Producer({**settings, **calls, **variant.settings})

    def _measured(self, text: str) -> None:
        topic = json.loads(text)["topics"].get(TOPIC, {"partitions": {}})
        self.in_flight = sum(one["msgs_inflight"] for one in topic["partitions"].values())

    def send(self, number: int) -> None:
        def delivered(error: KafkaError | None, _: Any) -> None:
            assert error is None, error
            self.acked.add(number)

        self.in_flight = 0
        self._producer.produce(TOPIC, value_of(number), partition=0, on_delivery=delivered)

    def wait(self, ends: Callable[[], bool], what: str) -> None:
        """Poll until `ends`, and write to the next leader meanwhile."""
        deadline = time.monotonic() + SECONDS_MAX
        while not ends():
            assert time.monotonic() < deadline, what
            self._producer.produce(BESIDE, b"", partition=0)
            self._producer.poll(POLL_SECONDS)

    def learn(self) -> int:
        """Return the leader as the next one knows it; from then on the producer knows it, too.

        For metadata librdkafka prefers the server that it sent to last, in whole seconds.
        """
        until = time.monotonic() + IDLE_SECONDS
        self.wait(lambda: time.monotonic() > until, "")
        return _leader(self._producer)

    def flush(self) -> None:
        assert self._producer.flush(SECONDS_MAX) == 0


def _leader(client: AdminClient | Producer) -> int:
    found: int = client.list_topics(TOPIC, SECONDS_MAX).topics[TOPIC].partitions[0].leader
    return found


def stored_order(servers: Servers, variant: Variant) -> list[int]:
    """Return the records 0 to 2 in the order in which they are stored first."""
    admin = AdminClient({"bootstrap.servers": servers.bootstrap, **QUIET})
    topics = (
        NewTopic(TOPIC, 1, replica_assignment=[[FORMER, NEXT, THIRD]]),
        NewTopic(BESIDE, 1, replica_assignment=[[NEXT]]),
    )
    for made in admin.create_topics([*topics]).values():
        made.result(SECONDS_MAX)
    client = _Client(servers.bootstrap, variant)
    client.wait(lambda: _leader(admin) == FORMER, "another server leads")
    client.send(0)
    client.wait(lambda: 0 in client.acked, "record 0 is not acknowledged")
    move(servers.bootstrap, TOPIC, {0: [NEXT, FORMER, THIRD]})
    admin.elect_leaders(ElectionType.PREFERRED, [TopicPartition(TOPIC, 0)]).result(SECONDS_MAX)
    client.wait(lambda: _leader(admin) == NEXT, "no other leader")
    servers.pause(FORMER)
    try:
        client.send(1)
        client.wait(lambda: client.in_flight == 1, "record 1 is not sent")
        assert client.learn() == NEXT
        client.send(2)
        if not variant.is_idempotent:
            client.wait(lambda: client.in_flight == 2 or 2 in client.acked, "record 2 is not sent")
        assert 1 not in client.acked
    finally:
        servers.resume(FORMER)
    client.flush()
    stored = read_back(servers.bootstrap, TOPIC, 0)
    return list(dict.fromkeys(number_of(record.value) for record in stored))


@pytest.mark.parametrize(
    ("variant", "order"),
    [(IDEMPOTENT, [0, 1, 2]), (ORDERED_IN_TERM, [0, 2, 1])],
    ids=["idempotent", "plain"],
)
def test_record_that_a_former_leader_refuses_is_stored_behind_later_ones(
    replica_set: ReplicaSet, variant: Variant, order: list[int]
) -> None:
    """Only the idempotent producer waits for the former leader's answer."""
    assert stored_order(replica_set, variant) == order


def test_order_is_judged_among_values_sent_after_an_answer_of_their_term() -> None:
    """The leader of term 1 refused value 2. That of term 2 stored value 5 behind a later one."""
    terms = {0: 1, 1: 1, 3: 2, 2: 2, 4: 2, 6: 2, 5: 2}
    stored = [
        Stored(offset, value_of(number), term)
        for offset, (number, term) in enumerate(terms.items())
    ]
    returned_ns = {0: 5, 1: 15, 3: 35, 2: 36, 4: 45, 6: 65, 5: 66}
    acks = [Ack(n, offset, 10 * n, returned_ns[n]) for offset, n in enumerate(terms)]
    assert sent_in_term(acks, stored) == {1: [1], 2: [4, 6, 5]}
