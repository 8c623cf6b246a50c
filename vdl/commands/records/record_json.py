"""A record as one line of JSON: the form that `vdl consume --json` writes and `vdl produce
--json-lines` reads.

```
{"topic": "t", "partition": 0, "offset": 7, "timestamp": 1700000000000, "timestamp_type": "create",
 "headers": [{"name": "h", "value": "text"}], "key": "k", "value": "text"}
```

Text that is valid UTF-8 stands as a string. Other bytes stand in `key_base64`, `value_base64` (or
`_hex`), in place of `key`, `value`. null is a missing key or value. In input `headers` may also be
an object; a value that is no string is JSON text; topic, offset and types are ignored. A document
with `problem` is refused: it does not hold all of its record, or not as it is.

Does not depend on a client.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

ANY_PARTITION = -1
"""The partitioner chooses."""
NUMBER_MAX = (1 << 63) - 1
PARTITION_MAX = (1 << 31) - 1

Headers = Sequence[tuple[str, bytes | None]]


class BadRecord(ValueError):
    """A line that is no record: what is wrong with it."""


@dataclass(slots=True)
class NewRecord:
    """A record to be produced. `timestamp_ms` 0: the time at which it is sent."""

    value: bytes | None
    key: bytes | None = None
    headers: list[tuple[str, bytes | None]] = field(default_factory=list)
    partition: int = ANY_PARTITION
    timestamp_ms: int = 0
    document: object = None
    """The value before it was encoded, for a serializer with a schema; None if it was bytes."""


class Received(NamedTuple):
    """A record that was read."""

    topic: str
    partition: int
    offset: int
    timestamp_type: int
    timestamp_ms: int
    headers: Headers | None
    """None if a name is no UTF-8, so that the client cannot read them."""
    key: bytes | None
    value: bytes | None


TIMESTAMP_TYPES = ("none", "create", "append")
"""By librdkafka's number."""
_IGNORED = frozenset({"topic", "offset", "timestamp_type", "leader_epoch", "problem"})
_READ = ("key", "value", "headers", "partition", "timestamp")
_SUFFIXES = ("", "_base64", "_hex")
_KNOWN = _IGNORED | set(_READ) | {f"{name}{end}" for name in ("key", "value") for end in _SUFFIXES}


def bytes_field(data: bytes | None) -> tuple[str, object]:
    """Return (suffix of the name, JSON value) of bytes: text if they are UTF-8, else base64."""
    if data is None:
        return "", None
    try:
        return "", data.decode()
    except UnicodeDecodeError:
        return "_base64", base64.b64encode(data).decode()


def header_documents(headers: Headers) -> list[dict[str, object]]:
    """Return the headers in their order; a name may occur more than once."""
    found = []
    for name, value in headers:
        suffix, shown = bytes_field(value)
        found.append({"name": name, f"value{suffix}": shown})
    return found


def parse_record(line: bytes) -> NewRecord:
    """Return the record of one line. Raises BadRecord."""
    try:
        found = msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadRecord(f"no JSON: {error}") from None
    if not isinstance(found, dict):
        raise BadRecord("no JSON object")
    unknown = sorted(found.keys() - _KNOWN)
    if unknown:
        raise BadRecord(f"unknown name {unknown[0][:80]!r}; known are {', '.join(sorted(_KNOWN))}")
    if problem := found.get("problem"):
        raise BadRecord(f"it was not read as it is, and no copy is made of it: {problem!s:.200}")
    value = found.get("value")
    return NewRecord(
        _bytes_of(found, "value"),
        _bytes_of(found, "key"),
        _headers(found.get("headers")),
        _number(found, "partition", ANY_PARTITION, PARTITION_MAX),
        _number(found, "timestamp", 0, NUMBER_MAX),
        value,
    )


def check_header_name(name: str) -> None:
    """Raise BadRecord if a client cannot send a header of this name."""
    if "\0" in name:
        raise BadRecord(f"header {name!r}: a name has no NUL")
    try:
        name.encode()
    except UnicodeEncodeError:
        raise BadRecord(f"header {name!r}: the name is no UTF-8") from None


def _number(found: dict[str, object], name: str, default: int, number_max: int) -> int:
    number = found.get(name)
    if number is None:
        return default
    if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number <= number_max:
        raise BadRecord(f"{name}: expected a number from 0 to {number_max}")
    return number


def _bytes_of(found: dict[str, object], name: str) -> bytes | None:
    """Return the bytes of `name`, in whichever of its forms they stand."""
    present = [f"{name}{suffix}" for suffix in _SUFFIXES if f"{name}{suffix}" in found]
    if len(present) > 1:
        raise BadRecord(f"both {present[0]} and {present[1]}")
    if not present:
        return None
    given = found[present[0]]
    if given is None:
        return None
    if present[0] == name:
        return given.encode() if isinstance(given, str) else msgspec.json.encode(given)
    if not isinstance(given, str):
        raise BadRecord(f"{present[0]}: expected a string")
    try:
        if present[0].endswith("_hex"):
            return bytes.fromhex(given)
        return base64.b64decode(given, validate=True)
    except (ValueError, binascii.Error) as error:
        raise BadRecord(f"{present[0]}: {error}") from None


def _headers(given: object) -> list[tuple[str, bytes | None]]:
    if given is None:
        return []
    if isinstance(given, dict):
        given = [{"name": name, "value": value} for name, value in given.items()]
    if not isinstance(given, list):
        raise BadRecord("headers: expected a list or an object")
    found = []
    for row in given:
        name = row.get("name") if isinstance(row, dict) else None
        if not isinstance(name, str):
            raise BadRecord('headers: expected {"name": ..., "value": ...} in each row')
        check_header_name(name)
        found.append((name, _bytes_of(row, "value")))
    return found
