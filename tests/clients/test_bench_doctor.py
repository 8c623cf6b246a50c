"""`vdl bench` and `vdl doctor` against real servers."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient

from tests.clients.command_line import CommandLine
from tests.clients.command_process import Commands
from tests.clients.topics import Topics
from vdl.commands.resources import temporary_topic

SECONDS_MAX = 60


@pytest.fixture(scope="module")
def vdl(bootstrap: str) -> Iterator[Commands]:
    with Commands(bootstrap) as commands:
        yield commands


def own_topics(bootstrap: str, prefix: str) -> list[str]:
    found: Any = AdminClient({"bootstrap.servers": bootstrap}).list_topics(timeout=SECONDS_MAX)
    return [name for name in found.topics if name.startswith(prefix)]


def wait_until_removed(bootstrap: str, prefix: str) -> None:
    """Servers may list a deleted topic for a moment."""
    deadline = time.monotonic() + SECONDS_MAX
    while found := own_topics(bootstrap, prefix):
        assert time.monotonic() < deadline, found
        time.sleep(0.05)


def test_bench_counts_each_record_once(vdl: Commands, bootstrap: str) -> None:
    """All phases report what was written, and the topic is removed."""
    load = ["--records", "500", "--size", "100", "--partitions", "2", "--acks", "all"]
    pace = ["--latency-rate", "50", "--latency-seconds", "1"]
    done = vdl.run("bench", *load, *pace, "--json")
    assert done.code == 0, done.errors
    phases = json.loads(done.output)["phases"]
    assert phases["write"]["records"] == phases["read"]["records"] == 500
    assert phases["write"]["latency"]["count"] == 500
    paced = phases["end to end"]
    assert 0 < paced["records"] <= 50
    latency = paced["latency"]
    assert 0 < latency["p50_ms"] <= latency["p99_ms"] <= latency["max_ms"]
    wait_until_removed(bootstrap, "vdl-bench-")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["int", "term"])
def test_bench_that_is_stopped_removes_its_topic(
    number: signal.Signals, vdl: Commands, bootstrap: str, topics: Topics
) -> None:
    topics.create("bench-stopped")  # the servers are up
    with vdl.start("bench", "--seconds", "600", "--rate", "100") as running:
        while not own_topics(bootstrap, "vdl-bench-"):
            assert running.poll() is None
        running.send_signal(number)
        errors = running.rest()[1]
        assert running.wait(SECONDS_MAX) == 130, errors
    wait_until_removed(bootstrap, "vdl-bench-")


def test_doctor_finds_a_sound_cluster_sound(vdl: Commands, bootstrap: str, topics: Topics) -> None:
    """With --write a record goes there and back, and the topic is removed."""
    topics.create("doctor")
    done = vdl.run("doctor", "--write", "--json")
    found = {row["check"]: row for row in json.loads(done.output)["findings"]}
    assert done.code == 0, found
    assert found["leaders"]["verdict"] == found["write"]["verdict"] == "ok"
    assert found["read"]["verdict"] == found["clocks"]["verdict"] == "ok"
    assert found["server 1"]["verdict"] == "ok"
    assert found["API versions"]["verdict"] == "ok"
    wait_until_removed(bootstrap, "vdl-doctor-")


def test_doctor_names_the_address_that_does_not_answer(bootstrap: str) -> None:
    """Exit code 1, the reason and the next step; the others are looked at all the same."""
    with Commands(f"127.0.0.1:1,{bootstrap}") as commands:
        done = commands.run("doctor")
    assert done.code == 1
    assert "fail  bootstrap: 127.0.0.1:1: " in done.output.decode()
    assert "→ start the server" in done.output.decode()
    assert "ok    server 1" in done.output.decode()


@pytest.mark.parametrize(
    ("words", "document", "prefix"),
    [
        (("bench", "--records", "5", "--latency-rate", "0"), "phases", "vdl-bench-"),
        (("doctor", "--write"), "findings", "vdl-doctor-"),
    ],
)
def test_topic_whose_deletion_nobody_answers_is_named(
    words: tuple[str, ...],
    document: str,
    prefix: str,
    bootstrap: str,
    topics: Topics,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Findings are shown all the same, and the exit code is 1: something is left behind."""

    def no_time_left(_: object) -> float:
        # A wait of 0 s may still find the answer, if this thread had to wait for a core.
        raise TimeoutError

    topics.create("undeleted")
    monkeypatch.setattr(temporary_topic, "wait_seconds", no_time_left)
    ran = CommandLine(bootstrap).run(*words, "--json")
    assert ran.code == 1, ran.error
    assert ran.json[document]
    assert f"topic {prefix}" in ran.out + ran.error
    assert "was not deleted: no answer" in ran.out + ran.error
    wait_until_removed(bootstrap, prefix)
