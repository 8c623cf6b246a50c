"""Runtime of the generated modules: errors, varints, tagged fields.

A generated function calls it only off the fast path: for a length of more than one byte, a struct
with tagged fields, or an invalid field. Peers are not trusted: every failure to read their bytes is
a `WireError`; a failure to encode is a local error, an `EncodeError`. Bytes
left over after a message are ignored, as in Kafka.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from struct import error as StructError
from typing import Protocol, TypeVar

from vdl.errors import VdlError

Buffer = bytes | bytearray | memoryview
Records = Buffer | list[Buffer]
"""Record batches: a view when decoded; one buffer or several to be sent one after another."""

ZERO_UUID = bytes(16)
TAGGED_FIELDS_MAX = 64
"""Tagged fields one struct may carry; the schemas define at most a handful."""
ELEMENTS_MAX = 200_000
"""Most elements of all arrays of one message together, with tagged fields and long texts in them.
Each also takes time to process; `vdl/kafka/parts.py` bounds how many are processed at once."""
TEXT_BYTES = 256
"""A longer text in an array counts as one element more for each such number of bytes: all of them
may be invalid UTF-8 that has to be replaced, at some ten microseconds."""
STRING_BYTES_MAX = 0x7FFF
VERSION_NEVER = 32767
"""`FLEXIBLE_FROM` of a message that has no flexible version."""

Decoded = TypeVar("Decoded", covariant=True)
Encoded = TypeVar("Encoded", contravariant=True)

_read_h = Struct(">h").unpack_from
_read_i = Struct(">i").unpack_from
_pack_h = Struct(">h").pack
_pack_i = Struct(">i").pack


class WireError(VdlError):
    """The peer's bytes are not the message that they should be. The connection cannot continue."""


class ShortBuffer(WireError):
    """The message ends before its fields do."""

    def __init__(self, what: str, size: int) -> None:
        super().__init__(what, size)
        self.what = what
        self.size = size


class BadLength(WireError):
    """A length or a count that does not fit the remaining bytes."""

    def __init__(self, what: str, length: int, left: int) -> None:
        super().__init__(what, length, left)
        self.what = what
        self.length = length
        self.left = left


class NullField(WireError):
    """Null where the version does not allow it."""

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.what = what


class BadVarint(WireError):
    """A varint longer than the five bytes a 32-bit value can need."""


class BadTaggedField(WireError):
    """A tagged field whose content is not as long as stated: `difference` bytes read too many."""

    def __init__(self, tag: int, difference: int) -> None:
        super().__init__(tag, difference)
        self.tag = tag
        self.difference = difference


class TooManyTaggedFields(WireError):
    """More tagged fields in one struct than `TAGGED_FIELDS_MAX`, or than the bytes allow."""

    def __init__(self, count: int) -> None:
        super().__init__(count)
        self.count = count


class TooManyElements(WireError):
    """The array `what`, of `count` elements, takes the message above `ELEMENTS_MAX`."""

    def __init__(self, what: str, count: int) -> None:
        super().__init__(what, count)
        self.what = what
        self.count = count


class UnsupportedVersion(WireError):
    """A version of a message that the schemas do not have."""

    def __init__(self, what: str, version: int) -> None:
        super().__init__(what, version)
        self.what = what
        self.version = version


class EncodeError(VdlError):
    """A local message that cannot be encoded: never the peer's fault."""


class UnsupportedField(EncodeError):
    """A field with a value that the version cannot carry and must not drop."""

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.what = what


class UnencodableMessage(EncodeError):
    """A value of the wrong type or range; the cause is chained."""

    def __init__(self, what: str, version: int) -> None:
        super().__init__(what, version)
        self.what = what
        self.version = version


def bad_length(what: str, length: int, left: int) -> WireError:
    """Return the error for a length that failed its check; `length` is negative for null."""
    return NullField(what) if length < 0 else BadLength(what, length, left)


def read_uvarint(view: memoryview, pos: int, first: int) -> tuple[int, int]:
    """Return `(value, position after it)` of an unsigned varint whose first byte, at `pos - 1`, is
    ≥ 128.

    Raises BadVarint, and IndexError at the end of the view (which decoders turn into ShortBuffer).
    """
    value = first & 0x7F
    for shift in (7, 14, 21, 28):
        byte = view[pos]
        pos += 1
        value |= (byte & 0x7F) << shift
        if byte < 128:
            return value, pos
    raise BadVarint(value)


def read_string_length(view: memoryview, pos: int, first: int) -> tuple[int, int]:
    """Read as `read_uvarint` does, a string's length plus one. Kafka limits strings to 32,767
    bytes. Raises BadLength."""
    value, pos = read_uvarint(view, pos, first)
    if value > STRING_BYTES_MAX + 1:
        raise BadLength("string", value - 1, len(view) - pos)
    return value, pos


def write_uvarint(value: int) -> bytes:
    """Return `value` as an unsigned varint."""
    out = bytearray()
    while value > 127:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def write_string_length(value: int) -> bytes:
    """Return the length-plus-one of a string as a varint. Raises UnsupportedField if it is too
    long."""
    if value > STRING_BYTES_MAX + 1:
        raise UnsupportedField("string")
    return write_uvarint(value)


def read_tag_count(view: memoryview, pos: int, first: int, size: int) -> tuple[int, int]:
    """Return `(count, position after it)` of a struct's tagged fields; `first` is at `pos - 1`."""
    count = first
    if first > 127:
        count, pos = read_uvarint(view, pos, first)
    # A tagged field takes two bytes at least: its tag and its length.
    if count > TAGGED_FIELDS_MAX or count * 2 > size - pos:
        raise TooManyTaggedFields(count)
    return count, pos


def read_tag(view: memoryview, pos: int, size: int) -> tuple[int, int, int]:
    """Return `(tag, start, end)` of the next tagged field; its content is `[start, end)`."""
    tag = view[pos]
    pos += 1
    if tag > 127:
        tag, pos = read_uvarint(view, pos, tag)
    length = view[pos]
    pos += 1
    if length > 127:
        length, pos = read_uvarint(view, pos, length)
    end = pos + length
    if end > size:
        raise BadLength("tagged field", length, size - pos)
    return tag, pos, end


def skip_tagged_fields(view: memoryview, pos: int, first: int, size: int) -> int:
    """Return the position after a struct's tagged fields, none of which the schema knows."""
    count, pos = read_tag_count(view, pos, first, size)
    for _ in range(count):
        _, _, pos = read_tag(view, pos, size)
    return pos


# --- entry points of a module ---------------------------------------------------------------------
class Decode(Protocol[Decoded]):
    """Decode one kind of message."""

    def __call__(self, view: memoryview, version: int, budget: int = ELEMENTS_MAX) -> Decoded:
        """Return the message. Bytes after it are ignored. Raise WireError for any invalid bytes."""
        ...


class Encode(Protocol[Encoded]):
    """Encode one kind of message."""

    def __call__(self, message: Encoded, version: int) -> list[Buffer]:
        """Return the message as buffers to be sent in order. Raise EncodeError."""
        ...


def decoder(
    what: str, *layouts: tuple[int, int, Callable[[memoryview, int], Decoded]]
) -> Decode[Decoded]:
    """Return the decoder of the message `what`; `layouts`: first version, last version, function."""
    by_version = _by_version(layouts)

    def decode(view: memoryview, version: int, budget: int = ELEMENTS_MAX) -> Decoded:
        layout = by_version.get(version)
        if layout is None:
            raise UnsupportedVersion(what, version)
        try:
            return layout(view, budget)
        except (IndexError, StructError):
            raise ShortBuffer(what, len(view)) from None

    return decode


def encoder(
    what: str, *layouts: tuple[int, int, Callable[[Encoded], list[Buffer]]]
) -> Encode[Encoded]:
    """Return the encoder of the message `what`; `layouts`: first version, last version, function."""
    by_version = _by_version(layouts)

    def encode(message: Encoded, version: int) -> list[Buffer]:
        layout = by_version.get(version)
        if layout is None:
            raise UnsupportedVersion(what, version)
        try:
            return layout(message)
        except (AttributeError, StructError, TypeError, ValueError) as error:
            raise UnencodableMessage(what, version) from error

    return encode


Layout = TypeVar("Layout")


def _by_version(layouts: tuple[tuple[int, int, Layout], ...]) -> dict[int, Layout]:
    return {
        version: layout for first, last, layout in layouts for version in range(first, last + 1)
    }


# --- fields of variable size, for modules whose speed does not matter -----------------------------
def take_count(
    view: memoryview, pos: int, size: int, budget: int, least: int, what: str
) -> tuple[int, int, int]:
    """Return `(count, position after it, budget left)` of an array whose elements take at least
    `least` bytes. Raise WireError if the count is negative or does not fit."""
    n = _read_i(view, pos)[0]
    return _checked_count(n, pos + 4, size, budget, least, what)


def take_compact_count(
    view: memoryview, pos: int, size: int, budget: int, least: int, what: str
) -> tuple[int, int, int]:
    """As `take_count`, in flexible versions."""
    n = view[pos]
    pos += 1
    if n > 127:
        n, pos = read_uvarint(view, pos, n)
    return _checked_count(n - 1, pos, size, budget, least, what)


def _checked_count(
    n: int, pos: int, size: int, budget: int, least: int, what: str
) -> tuple[int, int, int]:
    if not 0 <= n * least <= size - pos:
        raise bad_length(what, n, size - pos)
    budget -= n
    if budget < 0:
        raise TooManyElements(what, n)
    return n, pos, budget


def take_string(
    view: memoryview, pos: int, size: int, budget: int, what: str
) -> tuple[str, int, int]:
    """Return `(text, position after it, budget left)`. Raise WireError if it is null or cut."""
    n = _read_h(view, pos)[0]
    return _checked_string(view, n, pos + 2, size, budget, what)


def take_compact_string(
    view: memoryview, pos: int, size: int, budget: int, what: str
) -> tuple[str, int, int]:
    """As `take_string`, in flexible versions."""
    n = view[pos]
    pos += 1
    if n > 127:
        n, pos = read_string_length(view, pos, n)
    return _checked_string(view, n - 1, pos, size, budget, what)


def _checked_string(
    view: memoryview, n: int, pos: int, size: int, budget: int, what: str
) -> tuple[str, int, int]:
    end = pos + n
    if not pos <= end <= size:
        raise bad_length(what, n, size - pos)
    if n > TEXT_BYTES and (budget := budget - n // TEXT_BYTES) < 0:
        raise TooManyElements(what, n)
    return view[pos:end].tobytes().decode("utf-8", "replace"), end, budget


def take_nullable_string(
    view: memoryview, pos: int, size: int, budget: int, what: str
) -> tuple[str | None, int, int]:
    """As `take_string`, where null is allowed."""
    if _read_h(view, pos)[0] < 0:
        return None, pos + 2, budget
    return take_string(view, pos, size, budget, what)


def take_compact_nullable_string(
    view: memoryview, pos: int, size: int, budget: int, what: str
) -> tuple[str | None, int, int]:
    """As `take_nullable_string`, in flexible versions."""
    n = view[pos]
    pos += 1
    if n > 127:
        n, pos = read_string_length(view, pos, n)
    if not n:
        return None, pos, budget
    return _checked_string(view, n - 1, pos, size, budget, what)


def put_count(n: int) -> bytes:
    """Return the count of an array."""
    return _pack_i(n)


def put_compact_count(n: int) -> bytes:
    """As `put_count`, in flexible versions."""
    return write_uvarint(n + 1)


def put_string(text: str) -> bytes:
    """Return a string with its length."""
    raw = text.encode()
    return _pack_h(len(raw)) + raw


def put_compact_string(text: str) -> bytes:
    """As `put_string`, in flexible versions. Raise UnsupportedField if it is too long."""
    raw = text.encode()
    return write_string_length(len(raw) + 1) + raw


def put_nullable_string(text: str | None) -> bytes:
    """As `put_string`; None is null."""
    return _pack_h(-1) if text is None else put_string(text)


def put_compact_nullable_string(text: str | None) -> bytes:
    """As `put_nullable_string`, in flexible versions."""
    return b"\0" if text is None else put_compact_string(text)
