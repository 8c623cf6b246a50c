"""Common part of the two Python drivers: the loop over command lines and the form of records.

The protocol is that of tests/clients/driver.py.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from typing import Any, Protocol

Fields = dict[str, Any]


class NoOffset(Exception):
    """Raised when there is no valid position, and the reset policy is `none`."""


class Client(Protocol):
    """Client with a method for each command, whose keyword arguments are the command's fields."""

    def hello(self) -> Fields: ...
    def connect(self) -> Fields: ...
    def produce(
        self, *, compression: str, idempotent: bool, batch_bytes: int, records: list[Fields]
    ) -> Fields: ...
    def init_transactions(self, *, transactional_id: str) -> None: ...
    def transact(self, *, records: list[Fields], positions: bool, end: str) -> None: ...
    def end(self, *, commits: bool) -> None: ...
    def open(
        self, *, group: str | None, reset: str, isolation: str, protocol: str = "classic"
    ) -> None: ...
    def subscribe(self, *, topics: list[str]) -> None: ...
    def subscribe_pattern(self, *, pattern: str) -> None: ...
    def assign(self, *, partitions: list[tuple[str, int]]) -> None: ...
    def poll(self, *, timeout_ms: int) -> Fields: ...
    def pause(self, *, partitions: list[tuple[str, int]]) -> None: ...
    def resume(self, *, partitions: list[tuple[str, int]]) -> None: ...
    def seek(self, *, topic: str, partition: int, offset: int) -> None: ...
    def commit(self) -> None: ...
    def committed(self, *, partitions: list[tuple[str, int]]) -> Fields: ...
    def delete_offsets(self, *, group: str, partitions: list[tuple[str, int]]) -> Fields: ...
    def create_partitions(self, *, topic: str, count: int) -> Fields: ...
    def close(self) -> None: ...


def run(client: Client) -> None:
    """Answer commands until standard input ends."""
    for line in sys.stdin:
        fields = json.loads(line)
        command: Any = getattr(client, fields.pop("do"))
        try:
            answer = command(**fields) or {}
        except NoOffset as error:
            answer = {"failed": "no_offset", "message": str(error)}
        except Exception as error:  # noqa: BLE001 - whatever the client raises is the answer
            answer = {"failed": "other", "message": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)
    client.close()


def unhex(text: str | None) -> bytes | None:
    return None if text is None else bytes.fromhex(text)


def headers_from(fields: Fields) -> list[tuple[str, bytes | None]]:
    """Return the headers of a record to produce."""
    return [(name, unhex(value)) for name, value in fields["headers"]]


def read_record(
    topic: str,
    partition: int,
    offset: int,
    *,
    key: bytes | None,
    value: bytes | None,
    timestamp: int,
    headers: Iterable[tuple[str, bytes | None]],
) -> Fields:
    """Return the form of a record that was read."""
    return {
        "topic": topic,
        "partition": partition,
        "offset": offset,
        "key": None if key is None else key.hex(),
        "value": None if value is None else value.hex(),
        "timestamp": timestamp,
        "headers": [[name, None if data is None else data.hex()] for name, data in headers],
    }
