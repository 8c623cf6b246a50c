"""What the generated modules share: errors, varints, tagged fields.

A generated function calls in here only off the usual path: a length that needs more than one byte,
a struct that carries tagged fields, a field that is wrong. Whoever sends bytes is not trusted:
every failure to read them is a `WireError`, whatever the bytes; failing to encode is our own fault
and an `EncodeError`. Bytes left over after a message are ignored, as Kafka ignores them.
"""

from vdl.errors import VdlError

Buffer = bytes | bytearray | memoryview
Records = Buffer | list[Buffer]
"""Record batches: a view when decoded; one buffer or several to be sent one after another."""

ZERO_UUID = bytes(16)
TAGGED_FIELDS_MAX = 64
"""Tagged fields one struct may carry; the schemas define at most a handful."""
ELEMENTS_MAX = 200_000
"""Elements of all arrays of one message together, tagged fields and long texts in them included. What
is asked of each takes time, too; how many are done at once is in `vdl/kafka/parts.py`."""
TEXT_BYTES = 256
"""Longer text in an array counts as an element more for each so many bytes: they may all be such as
have to be replaced, at some ten microseconds."""
STRING_BYTES_MAX = 0x7FFF
VERSION_NEVER = 32767
"""`FLEXIBLE_FROM` of a message that has no flexible version."""


class WireError(VdlError):
    """The peer's bytes are not the message they claim to be. The connection cannot go on."""


class ShortBuffer(WireError):
    """The message ends before its fields do."""

    def __init__(self, what: str, size: int) -> None:
        super().__init__(what, size)
        self.what = what
        self.size = size


class BadLength(WireError):
    """A length or a count that cannot be true of the bytes that are left."""

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
    """A tagged field whose content is not as long as it says: `difference` bytes read too many."""

    def __init__(self, tag: int, difference: int) -> None:
        super().__init__(tag, difference)
        self.tag = tag
        self.difference = difference


class TooManyTaggedFields(WireError):
    """More tagged fields in one struct than `TAGGED_FIELDS_MAX`, or than bytes for them."""

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
    """A message of ours that cannot be sent: our fault, never the peer's."""


class UnsupportedField(EncodeError):
    """A field that holds a value which the version cannot carry and must not drop."""

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
    """The error for a length that failed its check; `length` is negative for null."""
    return NullField(what) if length < 0 else BadLength(what, length, left)


def read_uvarint(view: memoryview, pos: int, first: int) -> tuple[int, int]:
    """`(value, position after it)` of an unsigned varint whose first byte, at `pos - 1`, is ≥ 128.

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
    """As `read_uvarint`, for a string's length plus one. Kafka limits strings to 32,767 bytes."""
    value, pos = read_uvarint(view, pos, first)
    if value > STRING_BYTES_MAX + 1:
        raise BadLength("string", value - 1, len(view) - pos)
    return value, pos


def write_uvarint(value: int) -> bytes:
    """`value` as an unsigned varint."""
    out = bytearray()
    while value > 127:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def write_string_length(value: int) -> bytes:
    """The length-plus-one of a string. Raises UnsupportedField if the string is too long."""
    if value > STRING_BYTES_MAX + 1:
        raise UnsupportedField("string")
    return write_uvarint(value)


def read_tag_count(view: memoryview, pos: int, first: int, size: int) -> tuple[int, int]:
    """`(count, position after it)` of a struct's tagged fields; `first` is at `pos - 1`."""
    count = first
    if first > 127:
        count, pos = read_uvarint(view, pos, first)
    # A tagged field takes two bytes at least: its tag and its length.
    if count > TAGGED_FIELDS_MAX or count * 2 > size - pos:
        raise TooManyTaggedFields(count)
    return count, pos


def read_tag(view: memoryview, pos: int, size: int) -> tuple[int, int, int]:
    """`(tag, start, end)` of the next tagged field; its content is `[start, end)`."""
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
    """Position after a struct's tagged fields, none of which the schema knows."""
    count, pos = read_tag_count(view, pos, first, size)
    for _ in range(count):
        _, _, pos = read_tag(view, pos, size)
    return pos
