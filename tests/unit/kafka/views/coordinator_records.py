"""Reader of Kafka's group coordinator records, based on their published field lists.

Uses the tables of `group-coordinator/src/main/resources/common/message/*.json` of Kafka 4.3.1 and
none of our code, so an encoder's mistakes are not shared by its reader.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import Any

Fields = list[tuple[str, Any]]
"""(name, type) of each field.

A type is a name, with `?` before it if it may be null, or a list that holds the fields of an
array's elements, or one type.
"""

_PARTITIONS: Fields = [("topicId", "uuid"), ("partitions", ["int32"])]
_CLASSIC: Fields = [
    ("sessionTimeout", "int32"),
    ("protocols", [("name", "string"), ("metadata", "bytes")]),
]

KEYS: dict[int, tuple[str, Fields]] = {
    1: ("offset", [("group", "string"), ("topic", "string"), ("partition", "int32")]),
    2: ("classic", [("group", "string")]),
    3: ("group", [("group", "string")]),
    5: ("member", [("group", "string"), ("member", "string")]),
    6: ("target-epoch", [("group", "string")]),
    7: ("target", [("group", "string"), ("member", "string")]),
    8: ("assignment", [("group", "string"), ("member", "string")]),
    16: ("pattern", [("group", "string"), ("pattern", "string")]),
}
VALUES: dict[tuple[int, int], tuple[bool, Fields, dict[int, tuple[str, Any]]]] = {
    # (key version, value version): (True if flexible, fields, tagged fields)
    (1, 1): (
        False,
        [("offset", "int64"), ("metadata", "string"), ("committed", "int64"), ("expires", "int64")],
        {},
    ),
    (1, 3): (
        False,
        [("offset", "int64"), ("epoch", "int32"), ("metadata", "string"), ("committed", "int64")],
        {},
    ),
    (2, 3): (
        False,
        [
            ("protocolType", "string"), ("generation", "int32"), ("protocol", "?string"),
            ("leader", "?string"), ("changed", "int64"),
            ("members", [
                ("memberId", "string"), ("groupInstanceId", "?string"), ("clientId", "string"),
                ("clientHost", "string"), ("rebalanceTimeout", "int32"),
                ("sessionTimeout", "int32"), ("subscription", "bytes"), ("assignment", "bytes"),
            ]),
        ],
        {},
    ),
    (3, 0): (True, [("epoch", "int32")], {}),
    (5, 0): (
        True,
        [
            ("instanceId", "?string"), ("rackId", "?string"), ("clientId", "string"),
            ("clientHost", "string"), ("topics", ["string"]), ("regex", "?string"),
            ("rebalanceTimeout", "int32"), ("assignor", "?string"),
        ],
        {0: ("classic", ("struct", _CLASSIC))},
    ),
    (6, 0): (True, [("epoch", "int32")], {}),
    (7, 0): (True, [("partitions", _PARTITIONS)], {}),
    (8, 0): (
        True,
        [
            ("epoch", "int32"), ("previous", "int32"), ("state", "int8"),
            ("assigned", _PARTITIONS), ("revoking", _PARTITIONS),
        ],
        {},
    ),
    (16, 0): (True, [("topics", ["string"]), ("version", "int64"), ("timestamp", "int64")], {}),
}  # fmt: skip
_NUMBERS = {"int8": ">b", "int16": ">h", "int32": ">i", "int64": ">q"}


class _Reader:
    def __init__(self, data: bytes, *, flexible: bool) -> None:
        self.data, self.at, self.flexible = data, 0, flexible

    def take(self, count: int) -> bytes:
        assert 0 <= count <= len(self.data) - self.at
        self.at += count
        return self.data[self.at - count : self.at]

    def number(self, kind: str) -> int:
        pattern = Struct(_NUMBERS[kind])
        (found,) = pattern.unpack(self.take(pattern.size))
        return int(found)

    def varint(self) -> int:
        found = shift = 0
        while True:
            (byte,) = self.take(1)
            found |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return found

    def length(self, wide: str) -> int:
        return self.varint() - 1 if self.flexible else self.number(wide)

    def read(self, kind: Any) -> Any:
        if isinstance(kind, tuple):
            is_there = self.number("int8")
            assert is_there in (0, 1)
            return self.fields(kind[1], {}) if is_there else None
        if isinstance(kind, list):
            count = self.length("int32")
            assert count >= 0
            is_struct = isinstance(kind[0], tuple)
            read: Callable[[], Any] = (
                (lambda: self.fields(kind, {})) if is_struct else (lambda: self.read(kind[0]))
            )
            return [read() for _ in range(count)]
        if kind == "uuid":
            return self.take(16)
        name = kind.removeprefix("?")
        if name in _NUMBERS:
            return self.number(name)
        length = self.length("int16" if name == "string" else "int32")
        if length < 0:
            assert kind[0] == "?", "null where it may not be"
            return None
        data = self.take(length)
        return data.decode() if name == "string" else data

    def fields(self, fields: Fields, tagged: dict[int, tuple[str, Any]]) -> dict[str, Any]:
        found = {name: self.read(kind) for name, kind in fields}
        for _ in range(self.varint() if self.flexible else 0):
            name, kind = tagged[self.varint()]
            end = self.varint() + self.at
            found[name] = self.read(kind)
            assert self.at == end
        return found


def read_key(key: bytes) -> tuple[str, dict[str, Any]]:
    """Return (record type, fields of the key)."""
    reader = _Reader(key, flexible=False)
    name, fields = KEYS[reader.number("int16")]
    found = reader.fields(fields, {})
    assert reader.at == len(key)
    return name, found


def read_record(key: bytes, value: bytes | None) -> tuple[str, dict[str, Any], Any]:
    """Return (record type, fields of the key, fields of the value or None)."""
    name, names = read_key(key)
    if value is None:
        return name, names, None
    reader = _Reader(value, flexible=False)
    version = reader.number("int16")
    reader.flexible, fields, tagged = VALUES[int.from_bytes(key[:2]), version]
    found = reader.fields(fields, tagged)
    assert reader.at == len(value)
    return name, names, found
