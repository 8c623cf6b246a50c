"""`vdl produce`, `consume` and `doctor` give the same lines with Kafka and with VDL.

Both clusters get the same lines. Times of records are given, so that all of a record can be
compared.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from tests.clients.command_process import Commands, Done
from tests.differential.conftest import Pair

TIME_MS = 1_700_000_000_000
SECONDS = 60.0
LINES = b"key:value\nno separator\n\n:empty key\nempty value:\n\xff\xfe:\x00\x1b[31m\n" + (
    b"long:" + b"x" * 900_000 + b"\n"
)


def test_records_are_the_same_lines_of_both(pair: Pair) -> None:
    said = {}
    for side, bootstrap in pair.bootstraps.items():
        with Commands(bootstrap) as commands:
            said[side] = story(commands, f"{pair.token}-records")
    first, second = said
    assert len(said[first]) == len(said[second]) > 20
    for one, other in zip(said[first], said[second], strict=True):
        assert one == other


def story(commands: Commands, topic: str) -> list[Any]:
    """Return what commands said, without what is a cluster's own choice."""
    admin = AdminClient({"bootstrap.servers": commands.bootstrap})
    admin.create_topics([NewTopic(topic, 2)])[topic].result(SECONDS)
    said: list[Any] = []

    def run(*arguments: str, data: bytes = b"") -> Done:
        done = commands.run(*arguments, data=data)
        said.append((arguments, done.code, done.output, done.errors))
        return done

    for number, compression in enumerate(("none", "gzip", "snappy", "lz4", "zstd")):
        options = ["-K", ":", "-Z", "-H", f"n={number}", "-z", compression, "-p", "0"]
        run("produce", topic, *options, data=LINES)
    shown = ["--format", r"%p %o %S %K %h %k\n", "--null", "NULL", "-p", "0"]
    run("consume", topic, *shown)
    run("consume", topic, "-p", "0", "--value", "hex", "--grep", "^.31m", "--count", "2")
    records = [
        {"value": str(n), "key": f"k{n}", "timestamp": TIME_MS + 1_000 * n, "partition": 1}
        for n in range(10)
    ]
    data = b"".join(json.dumps(record).encode() + b"\n" for record in records)
    run("produce", topic, "--json-lines", data=data)
    run("produce", topic, "--json-lines", "--transactional-id", topic, data=data + b"{\n")
    run("produce", topic, "--json-lines", "--transactional-id", topic, data=data)
    only = ["-p", "1", "--json"]
    for point in (
        [], ["--from", "5"], ["--from", "-3"], ["--from", "end"], ["--from", "1000"],
        ["--until", "4"], ["--from", f"@{TIME_MS + 6_500}"], ["--until", f"@{TIME_MS + 2_000}"],
        ["--from", "2023-11-14T22:13:25"], ["--isolation", "read_uncommitted"],
        ["--filter", "value > `7`"],
    ):  # fmt: skip
        run("consume", topic, *only, *point)
    group = ["--group", f"{topic}-group", "--format", r"%p %o %S\n"]
    first = commands.run("consume", topic, *group, "--count", "7")
    second = commands.run("consume", topic, *group)
    said.append(sorted(first.lines + second.lines))
    run("consume", topic, *group)
    run("produce", topic, "-p", "9")
    run("consume", f"{topic}-unknown")
    run("produce", f"{topic}-unknown", data=b"x\n")
    run("produce", topic, "-X", "message.timeout.ms=1", "-X", "linger.ms=5000", data=b"x\n")
    checked = commands.run("doctor", "--write", "--json")
    verdicts = {row["check"]: row["verdict"] for row in json.loads(checked.output)["findings"]}
    said.append({name: verdicts[name] for name in ("leaders", "write", "read", "clocks")})
    admin.delete_topics([topic])[topic].result(SECONDS)
    return said


def test_header_name_that_is_no_text_hides_no_record(pair: Pair) -> None:
    """Kafka takes such a name, and VDL refuses it: Python's client cannot read it."""
    kcat = shutil.which("kcat")
    if kcat is None:
        pytest.skip("needs kcat")
    bootstrap, topic = pair.bootstraps["kafka"], f"{pair.token}-headers"
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, 1)])[topic].result(SECONDS)
    command = [kcat, "-P", "-b", bootstrap, "-t", topic, "-H", b"\xff=1"]
    subprocess.run(command, input=b"value\n", check=True, timeout=SECONDS)
    with Commands(bootstrap) as commands:
        (found,) = commands.run("consume", topic, "--json").documents
    assert (found["value"], found["headers"]) == ("value", [])
    assert "no UTF-8" in found["problem"]
    admin.delete_topics([topic])[topic].result(SECONDS)
