"""Kafka's own command-line tools read topics that are views here, and change log levels."""

from __future__ import annotations

import json
from typing import Any

import pytest
from confluent_kafka import Producer

from tests.ecosystem.programs import run_tool
from tests.ecosystem.records import Topics

pytestmark = pytest.mark.java

READ_MS = "8000"
"""Time without records after which the console consumer ends."""
READ_TIMES = 4
"""Number of attempts: on a busy machine it may end before it has begun to read."""
COMPLETE_COMMIT, COMPLETE_ABORT = 4, 5


def end_transaction(bootstrap: str, transactional_id: str, topic: str, *, commits: bool) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": transactional_id})
    producer.init_transactions()
    producer.begin_transaction()
    producer.produce(topic, b"v", partition=1)
    producer.flush()
    if commits:
        producer.commit_transaction()
    else:
        producer.abort_transaction()


def transactions(bootstrap: str) -> dict[str, dict[str, Any]]:
    """Return the state of each transactional id in `__transaction_state`, by Kafka's formatter."""
    printed = run_tool(
        "org.apache.kafka.tools.consumer.ConsoleConsumer",
        *("--bootstrap-server", bootstrap, "--topic", "__transaction_state", "--from-beginning"),
        *("--formatter", "org.apache.kafka.tools.consumer.TransactionLogMessageFormatter"),
        *("--timeout-ms", READ_MS),
    )
    found: dict[str, dict[str, Any]] = {}
    # It prints one document after the other, without separators.
    for line in printed.replace('}{"key"', '}\n{"key"').splitlines():
        record = json.loads(line)
        assert (record["key"]["type"], record["value"]["version"]) == (0, 1), record
        found[record["key"]["data"]["transactionalId"]] = record["value"]["data"]
    return found


def test_transaction_log_is_read_by_kafkas_formatter(bootstrap: str, topics: Topics) -> None:
    """The state of each transactional id, decoded by Kafka's own code."""
    topics.create("transactions-of-tools")
    for name, commits in (("committing", True), ("aborting", False)):
        end_transaction(bootstrap, name, "transactions-of-tools", commits=commits)
    wanted = {"committing": COMPLETE_COMMIT, "aborting": COMPLETE_ABORT}
    for _ in range(READ_TIMES):
        found = transactions(bootstrap)
        stands = {name: value["transactionStatus"] for name, value in found.items()}
        if wanted.items() <= stands.items():
            break
    for name, status in wanted.items():
        value = found[name]
        assert value["transactionStatus"] == status
        assert value["producerId"] >= 0
        assert value["transactionPartitions"] == []
        assert value["transactionTimeoutMs"] == 60_000


def test_levels_of_loggers_are_changed_by_kafka_configs(bootstrap: str) -> None:
    """One of this server's loggers is changed and reset; an unknown one is refused."""
    program = "kafka.admin.ConfigCommand"
    entity = ["--bootstrap-server", bootstrap, "--entity-type", "broker-loggers"]
    entity += ["--entity-name", "1"]
    assert "vdl.kafka=INFO" in run_tool(program, *entity, "--describe")
    run_tool(program, *entity, "--alter", "--add-config", "vdl.kafka=DEBUG")
    described = run_tool(program, *entity, "--describe")
    assert "vdl.kafka=DEBUG" in described
    assert "vdl.logstream=INFO" in described
    run_tool(program, *entity, "--alter", "--delete-config", "vdl.kafka")
    assert "vdl.kafka=INFO" in run_tool(program, *entity, "--describe")
