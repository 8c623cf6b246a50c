"""The stored bytes of state machines: canonical values, and keys of bounded length.

Equal state is equal bytes, on every replica. Values are encoded when a checkpoint takes them, not
when they change: a key that a thousand commands touched in between is encoded once.

Clients may choose long names; stores take keys of a few hundred bytes. A key made of such names is
their digest, and the value contains the names.

Must not know: what the values mean.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from sys import maxsize
from typing import Any, Protocol, TypeVar

import msgspec

Value = TypeVar("Value")
Name = TypeVar("Name")

ALL = maxsize
"""As a limit: none."""

_ENCODER = msgspec.msgpack.Encoder(order="deterministic")


def encode_value(value: Any) -> bytes:
    """Canonical bytes of a stored value."""
    return _ENCODER.encode(value)


def decode_value(data: bytes, kind: type[Value]) -> Value:
    """Raises msgspec.DecodeError: the stored value is not of this shape."""
    try:
        return msgspec.msgpack.decode(data, type=kind)
    except UnicodeDecodeError as error:
        raise msgspec.DecodeError(str(error)) from error


def decoded(decoder: msgspec.msgpack.Decoder[Value], data: bytes | bytearray | memoryview) -> Value:
    """What the decoder makes of it. Raises msgspec.DecodeError, also for text that is none."""
    try:
        return decoder.decode(data)
    except UnicodeDecodeError as error:
        raise msgspec.DecodeError(str(error)) from error


class Stored(Protocol):
    """Something that is stored whole, under its name."""

    def stored(self) -> Any:
        """What is encoded."""


@dataclass(frozen=True, slots=True)
class Scan:
    """A state that is read in pieces while it goes on changing.

    What `items` told of a key, and `take_dirty` after that, if it told of it too, is the key's
    value as long as there is nothing more to take."""

    items: Iterator[tuple[bytes, bytes]]
    """(key, value) of all that was there at the beginning and still is, in no order; each as it is
    when it is told."""
    take_dirty: Callable[[int], list[tuple[bytes, bytes | None]]]
    """At most so many of the changes that nobody has taken yet, None for what is gone."""


class LargeState(Protocol):
    """A state that may have a million items: it is loaded, and its changes are taken, in pieces."""

    def begin_load(self) -> None:
        """Replace the whole state: `load_more`, and then `end_load`. In between it is none."""

    def load_more(self, items: list[tuple[bytes, bytes]]) -> None:
        """Take some more of the items. Raises msgspec.DecodeError."""

    def end_load(self) -> None:
        """All items were given. Raises msgspec.DecodeError."""

    @property
    def changed_positions(self) -> int:
        """How many of the changes that nobody has taken are committed offsets, of which alone there
        are many."""

    def take_dirty(self, limit: int = ALL) -> list[tuple[bytes, bytes | None]]:
        """At most so many changes that nobody has taken, None for what is gone."""

    @property
    def snapshots_in_parts(self) -> bool:
        """Whether all replicas read snapshots in parts. The state is bounded so that such a one
        always fits."""


def taken(changed: set[Name], limit: int) -> list[Name]:
    """At most so many of what has changed. They do not count as changed any more."""
    if not changed:
        return []
    if len(changed) <= limit:
        names = list(changed)
        changed.clear()
        return names
    return [changed.pop() for _ in range(limit)]


def stored_changes(
    kind: bytes, changed: Iterable[str], known: Mapping[str, Stored]
) -> list[tuple[bytes, bytes | None]]:
    """(key, value) of all that changed, by name; None where it is gone. In key order."""
    taken: list[tuple[bytes, bytes | None]] = []
    for name in changed:
        one = known.get(name)
        value = None if one is None else encode_value(one.stored())
        taken.append((digest_key(kind, name), value))
    taken.sort()
    return taken


def stored_items(kind: bytes, known: Mapping[str, Stored]) -> list[tuple[bytes, bytes]]:
    """(key, value) of everything, in key order."""
    return sorted(
        (digest_key(kind, name), encode_value(one.stored())) for name, one in known.items()
    )


def scanned_items(kind: bytes, known: Mapping[str, Stored]) -> Iterator[tuple[bytes, bytes]]:
    """See `Scan.items`."""
    for name in list(known):
        if (one := known.get(name)) is not None:
            yield digest_key(kind, name), encode_value(one.stored())


def text_bytes(text: str) -> int:
    """Bytes of a text as it is stored."""
    return len(text) if text.isascii() else len(text.encode())


def digest_key(kind: bytes, *names: str | int) -> bytes:
    """`kind` and 16 bytes that stand for the names; no two lists of names share them."""
    return kind + blake2b(_ENCODER.encode(names), digest_size=16).digest()
