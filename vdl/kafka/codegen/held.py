"""Upper bound of the memory that a decoded message takes, for each of its bytes on the wire.

Elements of arrays determine it: two or three bytes become an object of a hundred, with its lists
and texts. Each struct in an array, with its contents, is taken in its costliest form: empty lists,
texts of two bytes if that costs more, numbers that are not among Python's small ones. Sizes are
those of CPython on 64 bits, rounded as its allocator rounds them.
"""

from collections.abc import Iterator

from vdl.kafka.codegen.schema import Field, Message
from vdl.kafka.codegen.source import min_bytes

SLOT = 32
"""Bytes of an element's place in its list: a list of one has room for four."""
LIST = 64
OBJECT = 32
"""Bytes of an object and its garbage collector header, without its fields."""
NUMBER = 32
TEXT = 64
"""Bytes of a text of `TEXT_LENGTH`, or of bytes."""
TEXT_LENGTH = 2
UUID = 64
_FIELD = 8
_NUMBERS = frozenset({"int8", "int16", "uint16", "int32", "uint32", "int64", "float64"})
_TEXTS = frozenset({"string", "bytes"})


HANDLED = 48
"""Bytes that processing an element takes besides: places in other lists, its name as a key."""
PER_BYTE_MIN = 24
"""Long texts outside of arrays are held several times. A long poll holds 650 bytes for a partition
of a Fetch, which has 28."""


def held_per_byte(message: Message, version: int) -> int:
    """Return the most bytes held for a byte of a message, rounded up."""
    is_flexible = version in message.flexible
    most = PER_BYTE_MIN
    for element in _elements(message.fields, version):
        least = min_bytes(element, version, is_flexible=is_flexible)
        if element.is_struct:
            held, texts = _struct(element.fields, version)
        else:
            held, texts = _value(element.element), int(element.element in _TEXTS)
        held += SLOT + HANDLED
        for count in range(texts + 1):
            size = least + TEXT_LENGTH * count
            most = max(most, -(-(held + TEXT * count) // size))
    return most


def _elements(fields: tuple[Field, ...], version: int) -> Iterator[Field]:
    """Yield all arrays that a message may have in a version."""
    for fact in fields:
        if version in fact.versions:
            if fact.is_array:
                yield fact
            yield from _elements(fact.fields, version)


def _struct(fields: tuple[Field, ...], version: int) -> tuple[int, int]:
    """Return the bytes of a struct whose texts and lists are empty, and its number of texts."""
    held, texts = -(-(OBJECT + _FIELD * len(fields)) // 16) * 16, 0
    for fact in fields:
        is_sent = version in fact.versions
        if fact.is_array:
            held += LIST  # also if the version does not have it
        elif fact.is_struct:
            inner, some = _struct(fact.fields, version)
            held += inner
            texts += some if is_sent else 0
        elif is_sent:
            held += _value(fact.type)
            texts += fact.type in _TEXTS
    return held, texts


def _value(type_: str) -> int:
    if type_ == "uuid":
        return UUID
    return NUMBER if type_ in _NUMBERS else 0
