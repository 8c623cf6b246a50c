"""A real Kafka client in a process of its own, controlled by commands, one a line.

The scenarios are written once, in Python; each client has a thin driver (tests/clients/drivers)
that reads one JSON command a line and answers with one JSON line. A driver holds at most one
consumer: two members of a consumer group are two processes. Keys, values and header values travel
as hexadecimal, null where the record has none.

```
command                                                 answer
{"do": "hello"}                                         {"client": NAME, "version": VERSION}
{"do": "connect"}                                       {"error": TEXT}    empty: it connected;
                                                         else the client's own message
{"do": "produce", "compression": C, "idempotent": BOOL,
 "batch_bytes": N, "records": [RECORD...]}              {"offsets": [[partition, offset]...]}
{"do": "init_transactions", "transactional_id": NAME}   {}    a producer, which is kept
{"do": "transact", "records": [RECORD...],
 "positions": BOOL, "end": "commit"|"abort"|""}         {}    one transaction of that producer
{"do": "end", "commits": BOOL}                          {}    of one that was left open
{"do": "open", "group": NAME|null, "reset": R, "protocol": "consumer" or left out,
 "isolation": "read_committed"|"read_uncommitted"}      {}    a consumer; no automatic commits
{"do": "subscribe", "topics": [NAME...]}                {}
{"do": "subscribe_pattern", "pattern": "^..."}          {}
{"do": "assign", "partitions": [[topic, partition]...]} {}
{"do": "poll", "timeout_ms": N}                         {"records": [READ...],
                                                         "owned": [[topic, partition]...]}
{"do": "pause" | "resume", "partitions": [...]}         {}
{"do": "seek", "topic": T, "partition": P, "offset": N} {}
{"do": "commit"}                                        {}    positions, synchronously
{"do": "committed", "partitions": [...]}                {"offsets": [N|null...]}
{"do": "delete_offsets", "group": NAME,
 "partitions": [...]}                                   {"errors": [CODE...]}
{"do": "create_partitions", "topic": T, "count": N}     {"error": CODE}
{"do": "close"}                                         {}    leaves the group; idempotent
```
RECORD is {"topic", "partition", "key", "value", "timestamp", "headers": [[name, value]...]}, READ
the same with "offset". `positions`: the consumer's positions are committed with the transaction.
A command that fails is answered with {"failed": KIND, "message": TEXT}. KIND is "no_offset" when
there is no valid position and the policy `none` forbids choosing one, else "other".
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
ANSWER_SECONDS_MAX = 45.0

Partition = tuple[str, int]
"""Topic and partition number."""


@dataclass(frozen=True, slots=True)
class Record:
    """Record to produce, and, with an offset, a record read back."""

    topic: str
    partition: int
    key: bytes | None
    value: bytes | None
    timestamp: int
    headers: tuple[tuple[str, bytes | None], ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {
            "topic": self.topic,
            "partition": self.partition,
            "key": _hex(self.key),
            "value": _hex(self.value),
            "timestamp": self.timestamp,
            "headers": [[name, _hex(value)] for name, value in self.headers],
        }

    @staticmethod
    def from_json(fields: dict[str, Any]) -> Record:
        return Record(
            topic=fields["topic"],
            partition=fields["partition"],
            key=_unhex(fields["key"]),
            value=_unhex(fields["value"]),
            timestamp=fields["timestamp"],
            headers=tuple((name, _unhex(value)) for name, value in fields["headers"]),
        )


@dataclass(slots=True)
class Polled:
    """Result of one poll: records by (topic, partition), with offsets, and the assignment."""

    records: list[tuple[int, Record]] = field(default_factory=list)
    owned: frozenset[Partition] = frozenset()


class DriverFailed(Exception):
    """The client refused or failed a command."""

    def __init__(self, client: str, kind: str, message: str) -> None:
        super().__init__(f"{client}: {kind}: {message}")
        self.kind = kind


class Driver:
    """One driver process.

    Commands may be sent to several drivers before the answers are read, so that members of a group
    poll at the same time.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        bootstrap: str,
        log: Path,
        security: Mapping[str, str] | None = None,
    ) -> None:
        """Start the driver.

        `security`: security settings of its clients (tests/clients/drivers/security.py).
        """
        self.name = name
        environment = os.environ | {"PYTHONUNBUFFERED": "1"}
        if security is not None:
            environment["VDL_TEST_SECURITY"] = json.dumps(dict(security))
        self._log = log
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                [*command, bootstrap],
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=environment,
            )
        self._pending = b""

    def tell(self, command: dict[str, Any]) -> None:
        """Send a command; `answer` must follow."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(command).encode() + b"\n")
        self._process.stdin.flush()

    def answer(self, *, seconds_max: float = ANSWER_SECONDS_MAX) -> dict[str, Any]:
        """Return the answer to the oldest unanswered command. Raises DriverFailed."""
        assert self._process.stdout is not None
        descriptor = self._process.stdout.fileno()
        deadline = time.monotonic() + seconds_max
        while b"\n" not in self._pending:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([descriptor], [], [], left)[0]:
                raise TimeoutError(f"{self.name} did not answer in {seconds_max} s")
            data = os.read(descriptor, 1 << 20)
            if not data:
                raise EOFError(f"{self.name} ended; it wrote\n{self._log.read_text()[-2_000:]}")
            self._pending += data
        line, _, self._pending = self._pending.partition(b"\n")
        fields: dict[str, Any] = json.loads(line)
        if "failed" in fields:
            raise DriverFailed(self.name, fields["failed"], fields["message"])
        return fields

    def ask(self, do: str, **arguments: Any) -> dict[str, Any]:
        self.tell({"do": do, **arguments})
        return self.answer()

    def produce(
        self,
        records: Sequence[Record],
        *,
        compression: str = "none",
        idempotent: bool = False,
        batch_bytes: int = 100_000,
    ) -> list[tuple[int, int]]:
        """Produce; return partition and offset of each record, all acknowledged by a majority."""
        answered = self.ask(
            "produce",
            compression=compression,
            idempotent=idempotent,
            batch_bytes=batch_bytes,
            records=[record.to_json() for record in records],
        )
        return [(partition, offset) for partition, offset in answered["offsets"]]

    def transact(
        self, records: Sequence[Record], end: str = "", *, positions: bool = False
    ) -> None:
        """Run a transaction of the producer that `init_transactions` created.

        Without an `end` it is left open.
        """
        self.ask(
            "transact",
            records=[record.to_json() for record in records],
            positions=positions,
            end=end,
        )

    def connect(self) -> str:
        """Return the client's own message why it cannot connect; empty if it can."""
        error: str = self.ask("connect")["error"]
        return error

    def open(
        self,
        *,
        group: str | None = None,
        reset: str = "earliest",
        isolation: str = "read_uncommitted",
        protocol: str = "classic",
    ) -> None:
        more = {} if protocol == "classic" else {"protocol": protocol}
        self.ask("open", group=group, reset=reset, isolation=isolation, **more)

    def poll(self, timeout_ms: int = 500) -> Polled:
        self.start_poll(timeout_ms)
        return self.finish_poll()

    def start_poll(self, timeout_ms: int = 500) -> None:
        self.tell({"do": "poll", "timeout_ms": timeout_ms})

    def finish_poll(self) -> Polled:
        answered = self.answer()
        return Polled(
            records=[
                (fields["offset"], Record.from_json(fields)) for fields in answered["records"]
            ],
            owned=frozenset((topic, partition) for topic, partition in answered["owned"]),
        )

    def committed(self, partitions: Sequence[Partition]) -> list[int | None]:
        offsets: list[int | None] = self.ask("committed", partitions=partitions)["offsets"]
        return offsets

    def delete_offsets(self, group: str, partitions: Sequence[Partition]) -> list[int]:
        """Delete offsets; return the error code of each partition.

        A group's error is that of each partition.
        """
        answered = self.ask("delete_offsets", group=group, partitions=partitions)
        errors: list[int] = answered["errors"]
        return errors

    def create_partitions(self, topic: str, count: int) -> int:
        """Grow a topic to `count` partitions; return the error code."""
        error: int = self.ask("create_partitions", topic=topic, count=count)["error"]
        return error

    def stop(self) -> None:
        """End the process; a client that hangs is killed."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.close()
        except BrokenPipeError:
            pass
        try:
            self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()


def _hex(data: bytes | None) -> str | None:
    return None if data is None else data.hex()


def _unhex(text: str | None) -> bytes | None:
    return None if text is None else bytes.fromhex(text)
