"""`vdl` commands in this process, against real servers; and records with times of their own."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition

from vdl.commands.app import run_app

SECONDS = 60.0


@dataclass(frozen=True)
class Ran:
    """Output of a command, and its exit code."""

    code: int
    out: str
    error: str

    @property
    def json(self) -> Any:
        assert self.out, self.error
        return json.loads(self.out)


@dataclass(frozen=True)
class CommandLine:
    """Commands for one cluster."""

    bootstrap: str

    def run(self, *words: str) -> Ran:
        out, error = io.StringIO(), io.StringIO()
        with redirect_stdout(out), redirect_stderr(error):
            code = run_app([*words, "--bootstrap", self.bootstrap])
        return Ran(code, out.getvalue(), error.getvalue())

    def ok(self, *words: str) -> str:
        """Return the output of a command that succeeds."""
        ran = self.run(*words)
        assert ran.code == 0, f"{words}: {ran.error}"
        return ran.out

    def json(self, *words: str) -> Any:
        """Return the document of a command that succeeds."""
        return json.loads(self.ok(*words, "--json"))

    def write(
        self, topic: str, times_ms: Sequence[int], *, partition: int = 0, value: bytes = b"v"
    ) -> None:
        """Write records of these times, a batch each; the keys are the same three in turn."""
        producer = Producer({"bootstrap.servers": self.bootstrap})
        for number, time_ms in enumerate(times_ms):
            key = b"k%d" % (number % 3)
            producer.produce(topic, value, key, partition, timestamp=time_ms)
            assert producer.flush(SECONDS) == 0

    def commit(self, group: str, offsets: Mapping[tuple[str, int], int]) -> None:
        """Commit offsets for a group without members."""
        consumer = Consumer({"bootstrap.servers": self.bootstrap, "group.id": group})
        wanted = [TopicPartition(*place, offset) for place, offset in offsets.items()]
        for one in consumer.commit(offsets=wanted, asynchronous=False):
            assert one.error is None, one
        consumer.close()
