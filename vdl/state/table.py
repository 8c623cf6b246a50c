"""How machines keep what they store: values by key, with the keys that changed since last asked.

A value is encoded when it is taken, not when it changes, so that a key touched by a thousand
commands between two checkpoints is encoded once. Encoding is canonical: equal state, equal bytes.

Must not know: what the values mean.
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

Value = TypeVar("Value")

_ENCODER = msgspec.msgpack.Encoder(order="deterministic")


def encode_value(value: Any) -> bytes:
    """Canonical bytes of a stored value."""
    return _ENCODER.encode(value)


def decode_value(data: bytes, kind: type[Value]) -> Value:
    """Raises msgspec.DecodeError: the stored value is not of this shape."""
    return msgspec.msgpack.decode(data, type=kind)
