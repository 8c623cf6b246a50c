"""`vdl topic`, `vdl group` and `vdl config` say the same of Kafka and of VDL.

Both clusters get the same records, with times of their own. What is a cluster's own choice is left
out: ids, the placement of replicas, bytes, words of refusals.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer

from tests.clients.command_line import SECONDS, CommandLine
from tests.differential.conftest import Pair

NOW_MS = time.time_ns() // 1_000_000
TIMES = [NOW_MS - 900_000 + 10_000 * number for number in range(6)]

Story = Callable[[CommandLine, str], list[Any]]
"""Commands for one cluster, with a stem for names; what they said."""


def refusal(line: CommandLine, *words: str) -> tuple[int, str]:
    """Return the exit code and the name of the error."""
    ran = line.run(*words)
    return ran.code, next((word for word in ran.error.split() if word.isupper() or "_" in word), "")


def shown(line: CommandLine, value: str, *words: str) -> Any:
    """Return a document once a value is in it: each broker applies a change in its own time, and
    before that it may not know the setting."""
    deadline = time.monotonic() + SECONDS
    wanted = f'"value": {json.dumps(value)}'
    while wanted not in (ran := line.run(*words, "--json")).out and time.monotonic() < deadline:
        time.sleep(0.2)
    return ran.json


def topic_story(line: CommandLine, stem: str) -> list[Any]:
    topic = f"{stem}.a"
    said: list[Any] = [
        line.json("topic", "create", topic, "-p", "3", "-r", "3", "--set", "retention.ms=3600000"),
        refusal(line, "topic", "create", topic),
        refusal(line, "topic", "create", f"{stem}.wrong", "--set", "retention.ms=soon"),
        refusal(line, "topic", "create", f"{stem}.many", "-r", "9"),
        line.json("topic", "create", f"{stem}.b", "--validate-only"),
    ]
    line.write(topic, TIMES)
    said += [described(line, topic), line.json("topic", "delete", f"{stem}.*")]
    said.append(
        line.json(
            "topic", "alter", topic, "--set", "cleanup.policy=compact", "--partitions", "4", "--yes"
        )
    )
    said.append(refusal(line, "topic", "alter", topic, "--partitions", "2"))
    said += [
        described(line, topic),
        line.json("topic", "alter", topic, "--unset", "cleanup.policy", "--yes"),
    ]
    at = f"@{TIMES[2]}"
    said += [
        line.json("topic", "records-delete", topic, "--before-time", at),
        line.json("topic", "records-delete", topic, "--before-offset", "4", "--yes"),
        described(line, topic),
        [
            {key: one[key] for key in ("name", "partitions", "replication_factor", "offline")}
            for one in line.json("topic", "list", f"{stem}.*")["topics"]
        ],
        line.json("topic", "delete", f"{stem}.*", "--yes"),
        refusal(line, "topic", "describe", topic),
    ]
    return said


def described(line: CommandLine, topic: str) -> Any:
    """Return a topic once all replicas are in sync: a new partition of VDL has to catch up."""
    deadline = time.monotonic() + SECONDS
    while True:
        (found,) = line.json("topic", "describe", topic)["topics"]
        if all(len(one["isr"]) == len(one["replicas"]) for one in found["partitions"]):
            break
        assert time.monotonic() < deadline, found
        time.sleep(0.2)
    return {
        "partitions": [
            {
                "replicas": sorted(one["replicas"]),
                "has a leader": one["leader"] in one["replicas"],
                "has bytes": sorted(map(int, one["replica_bytes"])) == sorted(one["replicas"]),
                "offsets": (one["start_offset"], one["end_offset"]),
            }
            for one in found["partitions"]
        ],
        "configs": [one for one in found["configs"] if one["source"] == "DYNAMIC_TOPIC_CONFIG"],
    }


def group_story(line: CommandLine, stem: str) -> list[Any]:
    topic, group = f"{stem}.t", f"{stem}.g"
    line.ok("topic", "create", topic, "-p", "2", "-r", "3")
    line.write(topic, TIMES)
    line.commit(group, {(topic, 0): 2, (topic, 1): 0})
    said = [line.json("group", "list", group), lag(line, group)]
    targets = (
        ("--to-earliest",),
        ("--to-latest",),
        ("--to-offset", "3"),
        ("--to-offset", "77"),
        ("--to-datetime", f"@{TIMES[3] - 1}"),
        ("--to-datetime", f"@{NOW_MS + 3_600_000}"),
        ("--by-duration", "2h"),
        ("--shift-by", "-1"),
        ("--shift-by", "9"),
    )
    said += [line.json("group", "reset", group, "--all-topics", *target) for target in targets]
    said.append(
        line.json("group", "reset", group, "--topic", f"{topic}:0", "--to-offset", "4", "--execute")
    )
    said += [lag(line, group), transactional(line, stem)]
    for protocol in ("classic", "consumer"):
        said += with_members(line, f"{stem}.{protocol}", topic, protocol)
    said += [
        line.json("group", "delete", group),
        line.json("group", "delete", group, "--execute"),
        refusal(line, "group", "list", group),
        refusal(line, "group", "describe", group),
    ]
    return said


def lag(line: CommandLine, group: str, *options: str) -> Any:
    """Return a group's lag without what depends on now; seconds must be those of the record."""
    (found,) = line.json("group", "lag", group, *options)["groups"]
    for one in found["partitions"]:
        if (time_ms := one["record_time_ms"]) is not None:
            assert one.pop("lag_seconds") == (found["at_ms"] - time_ms) / 1_000
        one["member"] = one["member"] is not None
    del found["lag_seconds"], found["at_ms"]
    return found


def transactional(line: CommandLine, stem: str) -> Any:
    """A committed transaction, an aborted one, and a committed one: offsets 0, 2 and 4."""
    topic, group = f"{stem}.x", f"{stem}.xg"
    line.ok("topic", "create", topic, "-p", "1", "-r", "3")
    producer = Producer({"bootstrap.servers": line.bootstrap, "transactional.id": topic})
    producer.init_transactions(SECONDS)
    for time_ms, end in zip(
        TIMES,
        (producer.commit_transaction, producer.abort_transaction, producer.commit_transaction),
        strict=False,
    ):
        producer.begin_transaction()
        producer.produce(topic, b"v", partition=0, timestamp=time_ms)
        producer.flush(SECONDS)
        end(SECONDS)
    said = []
    for offset in (1, 3, 5):
        line.commit(group, {(topic, 0): offset})
        said += [
            lag(line, group, "--isolation", isolation)
            for isolation in ("read_uncommitted", "read_committed")
        ]
    return said


def with_members(line: CommandLine, group: str, topic: str, protocol: str) -> list[Any]:
    consumer = Consumer(
        {
            "bootstrap.servers": line.bootstrap, "group.id": group, "group.protocol": protocol,
            "auto.offset.reset": "earliest", "enable.auto.commit": False, "client.id": "c",
        }
    )  # fmt: skip
    consumer.subscribe([topic])
    deadline = time.monotonic() + SECONDS
    while (message := consumer.poll(1.0)) is None or message.error() is not None:
        assert time.monotonic() < deadline
    consumer.commit(message, asynchronous=False)
    (found,) = line.json("group", "describe", group)["groups"]
    (member,) = found["members"]
    said = [
        {
            "group": (found["type"], found["state"], found["assignor"]),
            "member": (member["client"], member["host"], member["partitions"]),
        },
        lag(line, group),
        refusal(line, "group", "reset", group, "--all-topics", "--to-earliest", "--execute"),
        refusal(line, "group", "delete", group, "--execute"),
    ]
    consumer.close()
    return said


def config_story(line: CommandLine, stem: str) -> list[Any]:
    topic, group = f"{stem}.t", f"{stem}.g"
    line.ok("topic", "create", topic, "-p", "1", "-r", "3")
    said: list[Any] = []
    for kind, name, key, value in (
        ("topic", topic, "max.message.bytes", "70000"),
        ("group", group, "consumer.session.timeout.ms", "50000"),
        ("broker", "2", "log.cleaner.threads", "2"),
        ("broker", "all", "max.connections.per.ip", "4000"),
    ):
        before = line.json("config", "get", kind, name, key) if name != "all" else None
        said += [
            before,
            line.json("config", "set", kind, name, f"{key}={value}"),
            shown(line, value, "config", "get", kind, name, key),
            refusal(line, "config", "set", kind, name, f"{key}=-7"),
        ]
        if name != "all":
            (found,) = line.json("config", "explain", key, f"--{kind}", name)["found"][-1:]
            said.append({one: found[one] for one in ("kind", "type", "value", "source")})
            said.append(bool(found["meaning"]))
            said.append(found["layers"])
        said.append(line.json("config", "unset", kind, name, key))
        if before is not None:
            (setting,) = before["configs"]
            said.append(shown(line, setting["value"], "config", "get", kind, name, key))
    said.append(refusal(line, "config", "set", "topic", topic, "no.such.setting=1"))
    said.append(refusal(line, "config", "get", "topic", f"{stem}.nothing"))
    line.ok("topic", "delete", topic, "--yes")
    return said


@pytest.mark.parametrize("story", [topic_story, group_story, config_story])
def test_commands_say_the_same_of_kafka_and_of_vdl(pair: Pair, story: Story) -> None:
    """Every document is equal, and every refusal has the same exit code and error."""
    stem = f"c{pair.token}.{story.__name__}"
    said = {
        name: story(CommandLine(bootstrap), stem) for name, bootstrap in pair.bootstraps.items()
    }
    assert said["vdl"], "nothing was asked"
    for number, (kafka, vdl) in enumerate(zip(said["kafka"], said["vdl"], strict=True)):
        assert vdl == kafka, f"answer {number}"


def test_cluster_of_kafka_is_not_shown_as_a_dead_set_of_vdl(pair: Pair) -> None:
    """It has no admin planes; nothing can be said of the state of its servers."""
    for words in (("status",), ("explain", "cluster")):
        ran = CommandLine(pair.bootstraps["kafka"]).run(*words)
        assert (ran.code, ran.out) == (1, "")
        assert "the cluster is not of VDL" in ran.error
