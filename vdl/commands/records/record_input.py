"""Records from streams of bytes: parts between delimiters, lines of JSON, whole files.

A stream is read piece by piece. Memory is bounded by RECORD_BYTES_MAX, because a longer part is
refused before it is complete.

Does not depend on a client.
"""

from __future__ import annotations

import select
from collections.abc import Callable, Iterator
from io import RawIOBase
from pathlib import Path

from vdl.commands.records.record_json import (
    BadRecord,
    NewRecord,
    check_header_name,
    parse_record,
)

RECORD_BYTES_MAX = 100_000_000
"""A server of Kafka takes requests up to 104,857,600 bytes (`socket.request.max.bytes`)."""
PIECE_BYTES = 1 << 16

_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "0": "\0", "\\": "\\"}


def unescaped(text: str) -> bytes:
    r"""Return the bytes that a user wrote with \n, \t, \r, \0, \\ and \xHH. Raises ValueError."""
    found = bytearray()
    at = 0
    while at < len(text):
        if text[at] != "\\":
            found += text[at].encode("utf-8", "surrogateescape")
            at += 1
            continue
        letter = text[at + 1 : at + 2]
        if letter == "x":
            digits = text[at + 2 : at + 4]
            if len(digits) != 2:
                raise ValueError(f"\\x{digits}: expected two hexadecimal digits")
            found.append(int(digits, 16))
            at += 4
        elif letter in _ESCAPES:
            found += _ESCAPES[letter].encode()
            at += 2
        else:
            raise ValueError(f"unknown escape \\{letter}")
    return bytes(found)


def parts(
    read: Callable[[int], bytes], delimiter: bytes, *, bytes_max: int = RECORD_BYTES_MAX
) -> Iterator[bytes]:
    """Yield the parts of a stream, without delimiters. What follows the last delimiter is a part
    if it is not empty. `read` returns at most as many bytes as it is asked for, none at the end.
    Raises BadRecord for a part of more than `bytes_max`."""
    rest = bytearray()
    while piece := read(PIECE_BYTES):
        searched = max(0, len(rest) - len(delimiter) + 1)
        rest += piece
        if rest.find(delimiter, searched) >= 0:
            *complete, last = bytes(rest).split(delimiter)
            rest = bytearray(last)
            yield from complete
        if len(rest) > bytes_max:
            raise BadRecord(f"longer than {bytes_max:,} bytes without the delimiter {delimiter!r}")
    if rest:
        yield bytes(rest)


def whole_reads(file: RawIOBase) -> Callable[[int], bytes]:
    """Return a function that reads from a file and waits for bytes, for `parts`.

    Another program may have made the file non-blocking. Then a read without bytes returns None,
    which is not the end.
    """

    def read(count: int) -> bytes:
        while (found := file.read(count)) is None:
            watch = select.poll()
            watch.register(file.fileno(), select.POLLIN)
            watch.poll()
        return found

    return read


def line_record(line: bytes, separator: bytes | None) -> NewRecord:
    """Return the record of a line: with a separator, key and value; a line without it has no
    key."""
    if separator is None:
        return NewRecord(line)
    key, found, value = line.partition(separator)
    return NewRecord(value, key) if found else NewRecord(line)


def json_record(line: bytes) -> NewRecord | None:
    """Return the record of a line of JSON, None for a blank line. Raises BadRecord."""
    return parse_record(line) if line.strip() else None


def file_record(path: Path) -> NewRecord:
    """Return a whole file as one record. Raises BadRecord, OSError."""
    with path.open("rb") as file:
        data = file.read(RECORD_BYTES_MAX + 1)
    if len(data) > RECORD_BYTES_MAX:
        raise BadRecord(f"longer than {RECORD_BYTES_MAX:,} bytes")
    return NewRecord(data)


def parse_header(text: str) -> tuple[str, bytes | None]:
    """Return name and value of `name=value`; a name alone has the value null. Raises
    ValueError."""
    name, found, value = text.partition("=")
    if not name:
        raise ValueError(f"expected name=value, not {text!r}")
    check_header_name(name)
    return name, value.encode("utf-8", "surrogateescape") if found else None
