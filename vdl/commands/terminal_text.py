"""Text of records and clusters for a terminal, where some characters are commands.

A record may hold an escape sequence that renames the window, hides lines, or types text into the
shell of a careless terminal. So characters that control a terminal or the direction of text are
shown as escapes, and bytes that are no UTF-8 as `\\xff`. Line ends and tabs stay.

Does not depend on Kafka.
"""

from __future__ import annotations

import re

_CONTROLS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]"
)
"""C0 but tab and line feed, DEL, C1, line separators, marks of direction (Unicode UAX #9)."""
_JSON_CONTROLS = re.compile(
    "[\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]"
)  # fmt: skip
"""Those that an encoder of JSON leaves as they are."""


def visible(data: bytes) -> bytes:
    """Return `data` with every control character and every invalid byte as a visible escape."""
    text = data.decode("utf-8", "backslashreplace")
    return _CONTROLS.sub(_escaped, text).encode("utf-8", "backslashreplace")


def visible_text(text: str) -> str:
    """Return text with every control character as a visible escape."""
    return _CONTROLS.sub(_escaped, text)


def visible_line(text: str) -> str:
    """Return text as one line: a tab or a line feed in a name must not look like another column or
    row."""
    return visible_text(text).replace("\n", "\\x0a").replace("\t", "\\x09")


def visible_json(line: bytes) -> bytes:
    """Return JSON that means the same, without characters that control a terminal."""
    if line.isascii() and b"\x7f" not in line:
        return line
    return _JSON_CONTROLS.sub(_json_escaped, line.decode()).encode()


def _escaped(found: re.Match[str]) -> str:
    number = ord(found[0])
    return f"\\x{number:02x}" if number < 0x100 else f"\\u{number:04x}"


def _json_escaped(found: re.Match[str]) -> str:
    return f"\\u{ord(found[0]):04x}"
