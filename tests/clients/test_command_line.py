"""`vdl topic`, `vdl group` and `vdl config` against servers: what they show, change and refuse."""

from __future__ import annotations

import io
import json
import time
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest
from confluent_kafka import Consumer

from tests.clients.command_line import SECONDS, CommandLine
from tests.clients.topics import Topics
from vdl.commands.app import run_app


@pytest.fixture
def line(bootstrap: str) -> CommandLine:
    return CommandLine(bootstrap)


def test_topic_is_created_described_altered_and_deleted(line: CommandLine, topics: Topics) -> None:
    """Each change is seen by the next command; a second topic of the name is refused."""
    name = topics.unused_name("cli")
    line.ok("topic", "create", name, "-p", "2", "--set", "retention.ms=3600000")
    again = line.run("topic", "create", name)
    assert (again.code, "TOPIC_ALREADY_EXISTS" in again.error) == (1, True)
    line.ok("topic", "create", name, "--if-not-exists")
    line.write(name, [0, 0, 0])
    (found,) = line.json("topic", "describe", name)["topics"]
    assert [one["end_offset"] for one in found["partitions"]] == [3, 0]
    assert found["partitions"][0]["bytes"] > 0
    assert {one["name"]: one["value"] for one in found["configs"]}["retention.ms"] == "3600000"
    plan = line.json("topic", "alter", name, "--unset", "retention.ms", "--partitions", "3")
    assert (plan["applied"], [one["to"] for one in plan["changes"]]) == (False, [None, "3"])
    (found,) = line.json("topic", "describe", name)["topics"]
    assert len(found["partitions"]) == 2
    line.ok("topic", "alter", name, "--unset", "retention.ms", "--partitions", "3")
    (found,) = line.json("topic", "describe", name)["topics"]
    assert len(found["partitions"]) == 3
    assert "DYNAMIC_TOPIC_CONFIG" not in {one["source"] for one in found["configs"]}
    line.ok("topic", "delete", name, "--yes")
    gone = line.run("topic", "describe", name)
    assert (gone.code, gone.error.strip()) == (1, f"Error: {name}: no such topic")


def test_name_that_nothing_has_is_told(line: CommandLine, topics: Topics) -> None:
    """At once, too: a request to a broker that is not there would wait for it."""
    name = topics.unused_name("none")
    for words, told in (
        (("group", "reset", "g", "--topic", name, "--to-earliest"), f"Error: {name}: UNKNOWN_"),
        (
            ("config", "get", "broker", "77"),
            "Error: broker 77 is not there or does not answer; those that do: 1",
        ),
        (
            ("config", "set", "broker", "77", "x=1"),
            "Error: broker 77 is not there or does not answer",
        ),
        (("status", "--topic", name), f"{name}: no such topic"),
    ):
        found = line.run(*words)
        assert (found.code, found.error[: len(told)]) == (1, told), words


def test_pattern_is_shown_as_a_plan_and_does_nothing_without_consent(
    line: CommandLine, topics: Topics
) -> None:
    """No terminal, no --yes: exit code 2, and everything is still there."""
    stem = topics.unused_name("pattern")
    for number in range(3):
        topics.create_named(f"{stem}.{number}")
    for words in (
        ("topic", "delete", f"{stem}.*"),
        ("topic", "alter", "--regex", rf"{stem}\.[01]", "--set", "retention.ms=1000"),
        ("topic", "records-delete", f"{stem}.?", "--to-end"),
    ):
        ran = line.run(*words)
        assert (ran.code, f"{stem}.0" in ran.out) == (2, True), words
        assert "--yes" in ran.error
    plan = line.json("topic", "delete", f"{stem}.*")
    assert (plan["applied"], len(plan["topics"])) == (False, 3)
    assert len(line.json("topic", "list", f"{stem}.*")["topics"]) == 3
    assert line.json("topic", "delete", f"{stem}.*", "--yes")["applied"]
    assert line.run("topic", "list", f"{stem}.*").code == 1


def test_pattern_takes_no_internal_topics_unless_told(line: CommandLine, topics: Topics) -> None:
    """A pattern of all topics is not meant for the cluster's own; a full name is."""
    stem = topics.unused_name("internal")
    own, other = f"__{stem}", f"x{stem}"
    topics.create_named(own)
    topics.create_named(other)
    line.commit(stem, {(other, 0): 0})  # there is a topic of offsets
    for command in (
        ("topic", "delete"),
        ("topic", "records-delete", "--to-end"),
        ("topic", "alter", "--set", "retention.ms=1000"),
    ):
        for pattern in (("*",), ("--regex", ".*")):
            ran = line.run(*command, *pattern, "--json")
            assert (ran.code, own in ran.error) == (0, True), ran.error
            assert other in ran.out
            assert '"__' not in ran.out, command
        ran = line.run(*command, f"__{stem}*", "--json")
        assert (ran.code, "internal topics alone" in ran.error) == (1, True)
        for words in ((f"*{stem}", "--internal"), (own, f"*{stem}")):
            both = line.run(*command, *words, "--json").out
            assert f'"{own}"' in both, words
            assert f'"{other}"' in both, words
    line.ok("topic", "delete", f"*{stem}", "--internal", "--yes")
    assert line.run("topic", "describe", own).code == 1


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_group_with_members_keeps_its_offsets_and_one_without_is_reset(
    line: CommandLine, topics: Topics, protocol: str
) -> None:
    """A plan changes nothing; members forbid a reset and a deletion, as in Kafka."""
    topic, group = topics.create("reset", partitions=2), topics.unused_name("reset")
    line.write(topic, [1_000, 2_000, 3_000, 4_000])
    consumer = Consumer(
        {
            "bootstrap.servers": line.bootstrap,
            "group.id": group,
            "group.protocol": protocol,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe([topic])
    read = 0
    deadline = time.monotonic() + SECONDS
    while read < 4:
        assert time.monotonic() < deadline, read
        message = consumer.poll(1.0)
        read += message is not None and message.error() is None
    consumer.commit(asynchronous=False)
    (listed,) = line.json("group", "list", group)["groups"]
    assert (listed["type"], listed["state"]) == (protocol, "Stable")
    (described,) = line.json("group", "describe", group)["groups"]
    assert [len(one["partitions"]) for one in described["members"]] == [2]
    refused = line.run("group", "reset", group, "--all-topics", "--to-earliest", "--execute")
    assert (refused.code, "inactive" in refused.error) == (1, True)
    assert line.run("group", "delete", group, "--execute").code == 1
    consumer.close()

    def offset() -> int:
        (found,) = line.json("group", "lag", group)["groups"]
        places = {one["partition"]: one["offset"] for one in found["partitions"]}
        return int(places[0])

    line.ok("group", "reset", group, "--all-topics", "--to-earliest")
    assert offset() == 4
    for options, expected in (
        (("--to-earliest",), 0),
        (("--to-datetime", "1970-01-01T00:00:02.500Z"), 2),
        (("--to-datetime", "@5000"), 4),
        (("--shift-by", "-3"), 1),
        (("--shift-by", "-3"), 0),
        (("--to-offset", "99"), 4),
        (("--by-duration", "1h"), 4),
        (("--to-latest",), 4),
    ):
        line.ok("group", "reset", group, "--topic", f"{topic}:0", *options, "--execute")
        assert offset() == expected, options
    line.ok("group", "delete", group)
    assert line.json("group", "list", group)["groups"]
    line.ok("group", "delete", group, "--execute")
    assert line.run("group", "list", group).code == 1


def test_config_of_each_kind_is_set_explained_and_unset(line: CommandLine, topics: Topics) -> None:
    """The source of a value changes with the layer that has it."""
    topic, group = topics.create("config"), topics.unused_name("config")
    for kind, name, key, value, source in (
        ("topic", topic, "retention.ms", "7200000", "DYNAMIC_TOPIC_CONFIG"),
        ("group", group, "consumer.session.timeout.ms", "50000", "GROUP_CONFIG"),
        ("broker", "1", "max.connections", "5001", "DYNAMIC_BROKER_CONFIG"),
        ("broker", "all", "max.connections", "5002", "DYNAMIC_DEFAULT_BROKER_CONFIG"),
    ):
        line.ok("config", "set", kind, name, f"{key}={value}")
        (found,) = line.json("config", "get", kind, name, key)["configs"]
        assert (found["value"], found["source"]) == (value, source)
        if name != "all":
            (explained,) = line.json("config", "explain", key, f"--{kind}", name)["found"][-1:]
            assert (explained["value"], explained["source"]) == (value, source)
            assert explained["meaning"]
            assert explained["layers"][0]["source"] == source
        line.ok("config", "unset", kind, name, key)
        left = line.json("config", "get", kind, name)["configs"]
        assert key not in {one["name"] for one in left}
    (of_any, *_) = line.json("config", "explain", "retention.ms")["found"]
    assert of_any["set_with"] == "vdl config set topic NAME retention.ms=..."
    assert line.run("config", "set", "topic", topic, "retention.ms=soon").code == 1
    assert line.run("config", "explain", "no.such.setting").code == 1


def test_quota_is_a_document_when_it_is_set_listed_and_removed(line: CommandLine) -> None:
    """The default of all users has no name."""
    of_all, quotas = {"user": None}, {"producer_byte_rate": 5_000_000_000.0}
    made = line.json("quota", "set", "producer_byte_rate=5000000000", "--user", "*")
    assert made == {"entity": of_all, "quotas": quotas}
    assert {"entity": of_all, "quotas": quotas} in line.json("quota", "list")["quotas"]
    gone = line.json("quota", "remove", "producer_byte_rate", "--user", "*")
    assert gone["quotas"] == {"producer_byte_rate": None}
    assert made not in line.json("quota", "list")["quotas"]


def test_certificates_are_a_document_when_they_are_made(tmp_path: Path) -> None:
    """The files that are named are there."""
    out, error = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(error):
        assert run_app(["cert", "--out", str(tmp_path), "--nodes", "1", "--json"]) == 0
    made = json.loads(out.getvalue())
    assert all(Path(one["key"]).is_file() for one in made["made"])
    assert Path(made["ca"]).is_file()


def test_wrong_usage_and_missing_servers_have_their_own_exit_codes(line: CommandLine) -> None:
    """2 for usage; 1 in one line, within seconds, for a port that nothing listens on."""
    assert line.run("topic", "describe").code == 2
    assert line.run("group", "reset", "g", "--all-topics").code == 2
    assert line.run("topic", "list", "-X", "no.such.property=1").code == 2
    away = CommandLine("127.0.0.1:1").run("topic", "list")
    assert away.code == 1
    assert away.error.count("\n") == 1
    assert "refused" in away.error
