"""Stored bytes of state machines: canonical values, and keys of bounded length.

Equal states have equal bytes on every replica. Values are encoded when a checkpoint takes them, not
when they change: a key that a thousand commands changed in between is encoded once.

Clients may choose long names; stores accept keys of a few hundred bytes. A key made of such names
is their digest, and the value contains the names.
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
"""No limit."""

_ENCODER = msgspec.msgpack.Encoder(order="deterministic")


def encode_value(value: Any) -> bytes:
    """Return the canonical bytes of a stored value."""
    return _ENCODER.encode(value)


def decode_value(data: bytes, kind: type[Value]) -> Value:
    """Decode a stored value. Raise msgspec.DecodeError if it does not have this shape."""
    try:
        return msgspec.msgpack.decode(data, type=kind)
    except UnicodeDecodeError as error:
        raise msgspec.DecodeError(str(error)) from error


def decoding(
    decoder: msgspec.msgpack.Decoder[Value],
) -> Callable[[bytes | bytearray | memoryview], Value]:
    """Return `decoder.decode`, which then raises msgspec.DecodeError also for invalid UTF-8."""
    decode = decoder.decode

    def decoded(data: bytes | bytearray | memoryview) -> Value:
        try:
            return decode(data)
        except UnicodeDecodeError as error:
            raise msgspec.DecodeError(str(error)) from error

    return decoded


class Stored(Protocol):
    """Something that is stored whole, under its name."""

    def stored(self) -> Any:
        """Return the value to encode."""


@dataclass(frozen=True, slots=True)
class Scan:
    """A state that is read in pieces while it keeps changing.

    The last value of a key from `items`, or from `take_dirty` if it returned the key later, is
    current as soon as there is nothing more to take.
    """

    items: Iterator[tuple[bytes, bytes]]
    """(key, value) of everything present throughout, in no order, each as of when it is read."""
    take_dirty: Callable[[int], list[tuple[bytes, bytes | None]]]
    """Return up to the given number of changes not taken yet; None for a removed key."""


class LargeState(Protocol):
    """A state that may have a million items: loaded, and its changes taken, in pieces."""

    def begin_load(self) -> None:
        """Begin to replace the whole state, which is invalid until `end_load`."""

    def load_more(self, items: list[tuple[bytes, bytes]]) -> None:
        """Load some of the items. Raise msgspec.DecodeError if one is invalid."""

    def end_load(self) -> None:
        """End the load after all items. Raise msgspec.DecodeError if one is invalid."""

    @property
    def changed_positions(self) -> int:
        """Number of committed offsets among the changes not taken yet; only these are numerous."""

    def take_dirty(self, limit: int = ALL) -> list[tuple[bytes, bytes | None]]:
        """Return up to `limit` changes not taken yet; None for a removed key."""

    @property
    def snapshots_in_parts(self) -> bool:
        """True if all replicas read snapshots in parts.

        The state is bounded so that it always fits.
        """


def taken(changed: set[Name], limit: int) -> list[Name]:
    """Remove up to `limit` names from `changed` and return them."""
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
    """Return (key, value) of the changed names in key order; None for a removed one."""
    taken: list[tuple[bytes, bytes | None]] = []
    for name in changed:
        one = known.get(name)
        value = None if one is None else encode_value(one.stored())
        taken.append((digest_key(kind, name), value))
    taken.sort()
    return taken


def stored_items(kind: bytes, known: Mapping[str, Stored]) -> list[tuple[bytes, bytes]]:
    """Return (key, value) of everything in key order."""
    return sorted(
        (digest_key(kind, name), encode_value(one.stored())) for name, one in known.items()
    )


def scanned_items(kind: bytes, known: Mapping[str, Stored]) -> Iterator[tuple[bytes, bytes]]:
    """See `Scan.items`."""
    for name in list(known):
        if (one := known.get(name)) is not None:
            yield digest_key(kind, name), encode_value(one.stored())


def text_bytes(text: str) -> int:
    """Return the length of a text as stored, in bytes."""
    return len(text) if text.isascii() else len(text.encode())


def texts_bytes(*texts: str) -> int:
    """Return the length of several texts as stored, in bytes."""
    size = 0
    for text in texts:
        size += len(text) if text.isascii() else len(text.encode())
    return size


def digest_key(kind: bytes, *names: str | int) -> bytes:
    """Return `kind` and a digest of 16 bytes of the names, unique for each list of names."""
    return kind + blake2b(_ENCODER.encode(names), digest_size=16).digest()
