"""Kafka Connect, distributed: a file is copied to a topic, and the topic to another file.

Another test checks exactly-once across kill -9 of workers and a suspended one. VDL_CONNECT_LINES
and VDL_CONNECT_KILLS set its minimum number of lines, and how often a worker is killed.
"""

from __future__ import annotations

import os
import time
from functools import partial
from pathlib import Path
from threading import Event, Thread

import pytest

from tests.ecosystem.connect import ONCE_SETTINGS, Worker, worker_command
from tests.ecosystem.programs import Program, free_port, libraries
from tests.ecosystem.records import Followed, Topics

pytestmark = pytest.mark.takes_turns(parts=2)

LINES = 5_000
ONCE_LINES = int(os.environ.get("VDL_CONNECT_LINES", "20000"))
KILLS = int(os.environ.get("VDL_CONNECT_KILLS", "1"))
LINES_AT_ONCE, WRITE_PAUSE_SECONDS = 20, 0.01
"""Growth of the exactly-once source's file."""
LINES_AHEAD_MAX, LINES_MAX = 5_000, ONCE_LINES + 1_000_000
PAUSES_MAX = 20
SETTLE_SECONDS = 2.0
"""Data that a suspended worker has sent may still be under way, and end its transaction.

Shorter than `session.timeout.ms`: an unsuccessful pause has no effect on the worker.
"""
INTERNAL = ("connect-configs", "connect-offsets", "connect-status")
FENCED = ("ProducerFencedException", "InvalidProducerEpochException", "has been fenced")
FILE_CONNECTOR = "org.apache.kafka.connect.file.FileStream"


def test_connect_copies_a_file_through_a_topic_over_a_restart(
    topics: Topics, tmp_path: Path, log: Path
) -> None:
    """A new worker with only the three topics continues: no line is missing or duplicated.

    The first worker ends, and lines are added in between.
    """
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
        with Program(worker_command(settings), log) as program:
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


def test_connect_source_writes_each_line_exactly_once_over_kills_and_a_zombie(
    topics: Topics, tmp_path: Path, log: Path
) -> None:
    """Exactly-once source: workers are killed in transactions, and one is suspended and fenced.

    With `exactly.once.source.support` transactions contain lines and the position in the file. The
    suspended worker is in the middle of a transaction until another has taken over, and is fenced
    when it continues. A read-committed reader gets each line once, in order.
    """
    source = tmp_path / "once.txt"
    topics.create("once", partitions=1)
    settings = tmp_path / "once.properties"
    config = _connector("Source", source) | {
        "topic": "once",
        "exactly.once.support": "required",
        "transaction.boundary": "interval",
        "transaction.boundary.interval.ms": "200",
        "batch.size": "50",
    }

    def start(number: int) -> tuple[Program, Worker]:
        port = free_port()
        _configure(settings, topics, port, name="once")
        with settings.open("a") as file:
            file.write(ONCE_SETTINGS)
        program = Program(worker_command(settings), log.with_suffix(f".{number}"))
        worker = Worker(port)
        program.wait_for("the worker is up", worker.is_up)
        return program, worker

    with topics.follow("once") as written, GrowingFile(source, written) as lines:

        def wait(program: Program, count: float) -> None:
            program.wait_for("lines are there", lambda: written.count() >= count)

        for number in range(KILLS):
            program, worker = start(number)
            with program:
                if number == 0:
                    assert worker.ask("PUT", "/connectors/once/config", config)
                wait(program, ONCE_LINES * (number + 1) / (KILLS + 2))
                program.kill()
        zombie, worker = start(KILLS)
        with zombie:
            if not KILLS:
                assert worker.ask("PUT", "/connectors/once/config", config)
            wait(zombie, ONCE_LINES * (KILLS + 1) / (KILLS + 2))
            _pause_in_a_transaction(zombie, topics, written)
            before, said = written.count(), zombie.log.stat().st_size
            successor, worker = start(KILLS + 1)
            with successor:
                wait(successor, before + 1)
                zombie.resume()
                successor.wait_for("the zombie is fenced", partial(_is_fenced, zombie, said))
                # The file continues: the source holds the last lines back until more follow.
                wait(successor, max(ONCE_LINES, lines.count))
    assert [record.value for record in written.records] == [
        b"line %d" % number for number in range(len(written.records))
    ]


class GrowingFile:
    """File that gains one line after the other, gradually, within a `with`."""

    def __init__(self, path: Path, written: Followed) -> None:
        """Open the file. `written`: the lines' destination, which the file is kept close to."""
        self._path = path
        self._written = written
        self._count = 0
        self._is_ending = Event()
        self._thread = Thread(target=self._grow)

    def __enter__(self) -> GrowingFile:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._is_ending.set()
        self._thread.join()

    @property
    def count(self) -> int:
        """Return the number of lines; more will come."""
        assert self._thread.is_alive(), f"{self._count} lines were too few"
        return self._count

    def _grow(self) -> None:
        while not self._is_ending.wait(WRITE_PAUSE_SECONDS) and self._count < LINES_MAX:
            if self._count - len(self._written.records) < LINES_AHEAD_MAX:
                added = range(self._count, self._count + LINES_AT_ONCE)
                with self._path.open("a") as stream:
                    stream.writelines(f"line {number}\n" for number in added)
                self._count = added.stop


def _pause_in_a_transaction(program: Program, topics: Topics, written: Followed) -> None:
    """Suspend it in the middle of a transaction: between two of them there is nothing to fence."""

    def is_open() -> bool:
        written.count()  # or the file would not grow for long
        return topics.has_open_transaction("once")

    for _ in range(PAUSES_MAX):
        program.wait_for("a transaction is open", is_open)
        program.pause()
        time.sleep(SETTLE_SECONDS)
        if topics.has_open_transaction("once"):
            return
        program.resume()
        enough = written.count() + 1
        program.wait_for("it goes on", lambda: written.count() >= enough)  # noqa: B023
    raise AssertionError(f"in none of {PAUSES_MAX} pauses a transaction was open")


def _is_fenced(program: Program, said: int) -> bool:
    """Return True if it reports that after the first `said` bytes of its output."""
    text = program.log.read_bytes()[said:].decode(errors="replace")
    return any(word in text for word in FENCED)


def _connector(kind: str, file: Path) -> dict[str, str]:
    topic = {"Source": "topic", "Sink": "topics"}[kind]
    return {
        "connector.class": f"{FILE_CONNECTOR}{kind}Connector",
        "tasks.max": "1",
        "file": str(file),
        topic: "copied",
    }


def _configure(settings: Path, topics: Topics, port: int, *, name: str = "connect") -> None:
    """Write a worker's settings: plain text as keys and values, otherwise Connect's defaults."""
    settings.write_text(
        f"""bootstrap.servers={topics.bootstrap}
group.id={name}-workers
listeners=http://127.0.0.1:{port}
config.storage.topic={name}-configs
offset.storage.topic={name}-offsets
status.storage.topic={name}-status
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
