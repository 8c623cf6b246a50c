"""Requests that are as expensive as a schema permits: the bytes of one, by a few choices.

A `Wish` defines which of a request's lists is long, the form of its names and numbers, and its
maximum number of elements and bytes. `Written` is the request's body. It is written from the facts
from which the codec is generated, not by the codec, so that it may also be a request that no
regular client sends: invalid text, unknown tagged fields.

Does not depend on servers, nor on the cost of anything.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from struct import Struct
from typing import NamedTuple

from vdl.kafka.codegen.schema import Api, Field, load_all
from vdl.kafka.wire.runtime import write_uvarint
from vdl.records.batch import BatchFields, Record, build_batch

FACTS = {api.key: api for api in load_all() if api.key >= 0}
ELEMENTS = 195_000
BYTES = 16 << 20
KNOWN = 20
"""Number of names that exist: a topic, a group, a transactional id, a user."""
PARTITIONS = 50
_PACK = {
    "int8": Struct(">b").pack,
    "int16": Struct(">h").pack,
    "uint16": Struct(">H").pack,
    "int32": Struct(">i").pack,
    "uint32": Struct(">I").pack,
    "int64": Struct(">q").pack,
    "float64": Struct(">d").pack,
}
_BITS = {"int8": 7, "int16": 15, "uint16": 16, "int32": 31, "uint32": 32, "int64": 63}
_HOLE = b"\0number"
"""Placeholder of an element's number, in an element that is written to be repeated."""
_WAITS = ("timeout", "wait", "lifetime", "period")
"""Parts of the names of fields that make a server wait, which costs nothing."""

NAMES: dict[str, bytes | None] = {
    "unknown": None,
    "known": None,
    "unknown, one": b"n000000",
    "known, one": b"t000000",
    "empty": b"",
    "long": b"l" * 32_000,
    "no text": b"\xff" * 32_000,
    "pattern": rb"(\p{L}|\p{N}){0,200}x",
}
"""Name of each kind; None: a different one in each element."""
NUMBERS = ("0", "1", "8192", "-1", "counted", "largest")
SHAPES = ("inner", "outer", "even")
"""One outer element with all inner ones; many outer ones with one each; equal numbers of both."""


@dataclass(frozen=True, slots=True)
class Wish:
    """Requested form of a request."""

    path: tuple[str, ...] = ()
    """The long list, with its enclosing lists, outermost first."""
    shape: str = "inner"
    names: str = "unknown"
    numbers: str = "0"
    others: int = 0
    """Number of elements of the lists that are not in `path`."""
    has_nulls: bool = False
    flag: bool = True
    tags: int = 0
    """Number of unknown tagged fields in each struct."""
    elements: int = ELEMENTS
    bytes: int = BYTES

    def __str__(self) -> str:
        words = [".".join(self.path) or "no list"]
        if len(self.path) > 1:
            words.append(self.shape)
        words.append(f"names {self.names}")
        if self.numbers != "0":
            words.append(f"numbers {self.numbers}")
        if self.others:
            words.append("other lists, too")
        if self.has_nulls:
            words.append("nulls")
        if self.tags:
            words.append(f"{self.tags} tagged fields each")
        return ", ".join(words)


class Written(NamedTuple):
    body: bytes
    elements: int


def paths(key: int, version: int) -> Iterator[tuple[str, ...]]:
    """Yield each list of a request in a version."""
    message = FACTS[key].messages[0]

    def inside(fields: Sequence[Field], above: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
        for field in fields:
            if version not in field.versions or version in field.tagged:
                continue
            here = (*above, field.name) if field.is_array else above
            if field.is_array:
                yield here
            if field.is_struct:
                yield from inside(field.fields, here)

    yield from inside(message.fields, ())


def write(key: int, version: int, wish: Wish) -> Written:
    """Write the largest request of the wish within its bounds."""
    api = FACTS[key]
    counts = _counts(wish, 1)
    one = _Writer(api, version, wish, counts)
    if not wish.path:
        return Written(one.written, one.elements)
    # By the size of ten more elements, as many as fit.
    small, large = (_Writer(api, version, wish, _counts(wish, n)) for n in (1, 10))
    lists = len(wish.path) if wish.shape == "even" else 1
    per_element = max(1, large.elements - small.elements) / (10**lists - 1)
    per_bytes = max(1, len(large.written) - len(small.written)) / (10**lists - 1)
    room = min(
        (wish.elements - small.elements) / per_element,
        (wish.bytes - len(small.written)) / per_bytes,
    )
    count = max(1, int(max(1.0, room) ** (1 / lists)))
    while True:
        writer = _Writer(api, version, wish, _counts(wish, count))
        if count == 1 or (writer.elements <= wish.elements and len(writer.written) <= wish.bytes):
            return Written(writer.written, writer.elements)
        count = count * 9 // 10


def _counts(wish: Wish, count: int) -> dict[tuple[str, ...], int]:
    """Return the number of elements of each list of the path, in each of the elements around it."""
    path = wish.path
    many = {"inner": len(path) - 1, "outer": 0}.get(wish.shape)
    return {
        path[: depth + 1]: count if many is None or depth == many else 1
        for depth in range(len(path))
    }


class _Writer:
    """Writer of one body."""

    def __init__(
        self, api: Api, version: int, wish: Wish, counts: dict[tuple[str, ...], int]
    ) -> None:
        message = api.messages[0]
        self._version = version
        self._wish = wish
        self._counts = counts
        self._is_flexible = version in message.flexible
        self._number = 0
        self._tags = self._tagged() if self._is_flexible else b""
        self.elements = 0
        out = bytearray()
        self._struct(out, message.fields, ())
        self.written = bytes(out)

    def _tagged(self) -> bytes:
        tags = (write_uvarint(number) + b"\0" for number in range(90, 90 + self._wish.tags))
        return write_uvarint(self._wish.tags) + b"".join(tags)

    def _struct(self, out: bytearray, fields: Sequence[Field], above: tuple[str, ...]) -> None:
        for field in fields:
            if self._version in field.versions and self._version not in field.tagged:
                self._field(out, field, above)
        out += self._tags

    def _field(self, out: bytearray, field: Field, above: tuple[str, ...]) -> None:
        here = (*above, field.name)
        is_null = self._wish.has_nulls and here not in self._counts
        if is_null and self._version in field.nullable:
            if field.is_struct and not field.is_array:
                out += b"\xff"
            elif self._is_flexible:
                out += b"\0"
            else:
                out += b"\xff\xff" if field.type == "string" else b"\xff\xff\xff\xff"
            return
        if not field.is_array:
            if field.is_struct and self._version in field.nullable:
                out += b"\x01"
            self._value(out, field, above)
            return
        count = self._counts.get(here, self._wish.others)
        self.elements += count
        out += write_uvarint(count + 1) if self._is_flexible else _PACK["int32"](count)
        if not count:
            return
        if self._wish.numbers == "counted":
            for self._number in range(count):
                self._value(out, field, here)
            return
        # Written once: writing 200,000 takes seconds.
        before = self.elements
        template = bytearray()
        self._value(template, field, here)
        self.elements += (count - 1) * (self.elements - before)
        if _HOLE in template:
            out += b"".join(template.replace(_HOLE, self._numbered(n)) for n in range(count))
        else:
            out += template * count

    def _numbered(self, number: int) -> bytes:
        if self._wish.names == "known":
            return b"t%06d" % (number % KNOWN)
        return b"n%06d" % number

    def _value(self, out: bytearray, field: Field, above: tuple[str, ...]) -> None:
        if field.is_struct:
            self._struct(out, field.fields, above)
            return
        kind = field.element
        if kind in _BITS:
            out += _PACK[kind](self._integer(field.name, kind))
        elif kind == "bool":
            out.append(self._wish.flag)
        elif kind == "float64":
            out += _PACK[kind](1.0)
        elif kind == "uuid":
            out += b"anybody's" + self._name()[:7].ljust(7)
        elif kind == "string":
            name = self._name()
            out += write_uvarint(len(name) + 1) if self._is_flexible else _PACK["int16"](len(name))
            out += name
        else:
            data = _RECORDS if kind == "records" else self._name()
            out += write_uvarint(len(data) + 1) if self._is_flexible else _PACK["int32"](len(data))
            out += data

    def _name(self) -> bytes:
        kind = self._wish.names
        name = NAMES[kind]
        if name is not None:
            return name
        return _HOLE if self._wish.numbers != "counted" else self._numbered(self._number)

    def _integer(self, name: str, kind: str) -> int:
        lowered = name.lower()
        if any(part in lowered for part in _WAITS):
            return 0
        match self._wish.numbers:
            case "counted":
                return self._number % (PARTITIONS if kind != "int8" else 3)
            case "largest":
                return (1 << _BITS[kind]) - 1
            case "8192":  # iterations of a server, where such a large number is allowed
                return 8_192 if _BITS[kind] >= _BITS["int32"] else 1
            case text:
                return 0 if text == "-1" and kind.startswith("u") else int(text)


_RECORDS = bytes(build_batch([Record(None, b"")], BatchFields()))


def steps(key: int, version: int) -> list[dict[str, object]]:
    """Return the choices of the climb, one at a time, the weightiest first."""
    return [
        *({"path": path} for path in paths(key, version)),
        *({"shape": shape} for shape in SHAPES[1:]),
        *({"names": names} for names in NAMES),
        *({"numbers": numbers} for numbers in NUMBERS),
        {"others": 1},
        {"has_nulls": True},
        {"flag": False},
        {"tags": 60},
    ]


def changed(wish: Wish, step: dict[str, object]) -> Wish | None:
    """Return the wish with another choice; None if that makes no difference."""
    if "shape" in step and len(wish.path) < 2:  # a list in a list
        return None
    other = replace(wish, **step)  # type: ignore[arg-type]  # of the field's type each
    return None if other == wish else other
