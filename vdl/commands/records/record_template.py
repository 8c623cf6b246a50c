r"""Templates of `vdl consume --format`, in the language of kcat's `-f`.

| field | bytes | field | bytes |
|---|---|---|---|
| `%v`, `%s` | value | `%S` | its length; -1 if it is null |
| `%k` | key | `%K` | its length; -1 if it is null |
| `%t` | topic | `%T` | timestamp in milliseconds |
| `%p` | partition | `%h` | headers: `name=value,name=value` |
| `%o` | offset | `%%` | a percent sign |

`\n`, `\t`, `\r`, `\0`, `\\` and `\xHH` are bytes.

Does not depend on a client.
"""

from __future__ import annotations

from collections.abc import Callable

from vdl.commands.records.record_input import unescaped
from vdl.commands.records.record_json import Received

Show = Callable[[bytes | None], bytes]
"""Bytes that are shown for a key or a value."""
Write = Callable[[Received], bytes]


class BadTemplate(ValueError):
    """A template that cannot be read: why."""


def compile_template(text: str, *, key: Show, value: Show, header: Show) -> Write:
    """Return a function that makes the output of a record; `key`, `value`, `header` show theirs.

    Raises BadTemplate.
    """
    fields: dict[str, Write] = {
        "v": lambda record: value(record.value),
        "s": lambda record: value(record.value),
        "k": lambda record: key(record.key),
        "h": lambda record: b",".join(
            name.encode() + b"=" + header(data) for name, data in record.headers or []
        ),
        "t": lambda record: record.topic.encode(),
        "p": lambda record: b"%d" % record.partition,
        "o": lambda record: b"%d" % record.offset,
        "T": lambda record: b"%d" % record.timestamp_ms,
        "S": lambda record: _length(record.value),
        "K": lambda record: _length(record.key),
    }
    parts: list[Write] = []
    literal = ""
    at = 0
    while at < len(text):
        if text[at] == "\\":
            literal += text[at : at + 2]  # kept together: `\\%` is a backslash before a field
            at += 2
            continue
        if text[at] != "%":
            literal += text[at]
            at += 1
            continue
        letter = text[at + 1 : at + 2]
        at += 2
        if letter == "%":
            literal += "%"
        elif letter in fields:
            parts += _literal(literal)
            literal = ""
            parts.append(fields[letter])
        else:
            known = " ".join(f"%{name}" for name in sorted(fields))
            raise BadTemplate(f"unknown field %{letter}; known are {known} %%")
    parts += _literal(literal)
    return lambda record: b"".join([part(record) for part in parts])


def _literal(text: str) -> list[Write]:
    try:
        data = unescaped(text)
    except ValueError as error:
        raise BadTemplate(str(error)) from None
    return [lambda record: data] if data else []


def _length(data: bytes | None) -> bytes:
    return b"-1" if data is None else b"%d" % len(data)
