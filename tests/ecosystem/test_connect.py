"""Kafka Connect, distributed: a file becomes a topic, the topic another file."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from functools import partial
from pathlib import Path
from typing import Any

from tests.ecosystem.programs import Program, free_port, java, libraries
from tests.ecosystem.records import Topics

LINES = 5_000
HTTP_SECONDS_MAX = 60
INTERNAL = ("connect-configs", "connect-offsets", "connect-status")
FILE_CONNECTOR = "org.apache.kafka.connect.file.FileStream"


class Worker:
    """A worker's REST interface."""

    def __init__(self, port: int) -> None:
        self._address = f"http://127.0.0.1:{port}"

    def ask(self, method: str, path: str, body: object = None) -> Any:
        """The answer, or None: nobody answers yet, or what is asked for is not there."""
        request = urllib.request.Request(
            self._address + path,
            None if body is None else json.dumps(body).encode(),
            {"Content-Type": "application/json"},
            method=method,
        )
        try:
            with urllib.request.urlopen(request, timeout=HTTP_SECONDS_MAX) as answer:
                return json.loads(answer.read() or b"null")
        except (urllib.error.URLError, ConnectionError):
            return None

    def is_up(self) -> bool:
        return self.ask("GET", "/") is not None

    def runs(self, connector: str) -> bool:
        """Whether the connector and its task run."""
        status = self.ask("GET", f"/connectors/{connector}/status")
        if status is None:
            return False
        states = [status["connector"]["state"], *(task["state"] for task in status["tasks"])]
        assert "FAILED" not in states, status
        return len(states) == 2 and set(states) == {"RUNNING"}


def test_connect_copies_a_file_through_a_topic_over_a_restart(
    topics: Topics, tmp_path: Path, log: Path
) -> None:
    """The worker ends; lines are added; a worker that knows nothing but the three topics goes on:
    no line is missing and none comes twice."""
    source, sink = tmp_path / "source.txt", tmp_path / "sink.txt"
    topics.create("copied", partitions=1)
    settings = tmp_path / "worker.properties"
    expected: list[str] = []
    for part in range(2):
        lines = [f"part {part}, line {number}" for number in range(LINES)]
        expected += lines
        with source.open("a") as file:
            file.writelines(line + "\n" for line in lines)
        port = free_port()
        _configure(settings, topics, port)
        worker = Worker(port)
        log.unlink(missing_ok=True)
        command = java(
            f"{libraries('java')}/*",
            "org.apache.kafka.connect.cli.ConnectDistributed",
            str(settings),
        )
        with Program(command, log) as program:
            program.wait_for("the worker is up", worker.is_up)
            if part == 0:
                assert worker.ask("PUT", "/connectors/in/config", _connector("Source", source))
                assert worker.ask("PUT", "/connectors/out/config", _connector("Sink", sink))
            for name in ("in", "out"):
                program.wait_for(f"connector {name} runs", partial(worker.runs, name))
            program.wait_for("all lines are there", partial(_has_lines, sink, len(expected)))
    assert sink.read_text().splitlines() == expected
    assert [record.value for record in topics.read("copied")] == [e.encode() for e in expected]
    assert {topics.config(topic, "cleanup.policy") for topic in INTERNAL} == {"compact"}


def _connector(kind: str, file: Path) -> dict[str, str]:
    topic = {"Source": "topic", "Sink": "topics"}[kind]
    return {
        "connector.class": f"{FILE_CONNECTOR}{kind}Connector",
        "tasks.max": "1",
        "file": str(file),
        topic: "copied",
    }


def _configure(settings: Path, topics: Topics, port: int) -> None:
    """A worker with plain text as keys and values, and Connect's defaults otherwise."""
    settings.write_text(
        f"""bootstrap.servers={topics.bootstrap}
group.id=workers
listeners=http://127.0.0.1:{port}
config.storage.topic=connect-configs
offset.storage.topic=connect-offsets
status.storage.topic=connect-status
config.storage.replication.factor={topics.replication}
offset.storage.replication.factor={topics.replication}
status.storage.replication.factor={topics.replication}
key.converter=org.apache.kafka.connect.storage.StringConverter
value.converter=org.apache.kafka.connect.storage.StringConverter
offset.flush.interval.ms=1000
plugin.path={libraries("java")}
plugin.discovery=service_load
"""
    )


def _has_lines(file: Path, count: int) -> bool:
    return file.exists() and len(file.read_text().splitlines()) >= count
