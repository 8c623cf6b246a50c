"""Bytes of records as text that a page can show: JSON, text or hexadecimal.

JSON is only recognised, and sent as it was written: numbers keep all their digits. A recogniser of
its own bounds depth and cost. Everything is cut to what a page may hold.

Does not depend on records.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from vdl.console.record_stream import Field
from vdl.console.registered_values import PREFIX_BYTES, Decoded

SHOWN_CHARS_MAX: Final = 16 << 10
SHOWN_BYTES_MAX: Final = 4 * SHOWN_CHARS_MAX
"""Bytes of a value from which its text is made."""
PAGE_CHARS_MAX: Final = 1 << 20
FORMS: Final = ("auto", "json", "text", "hex")
DECODED_FORMS: Final = ("auto", "json")
"""Forms in which a value with a schema is decoded."""
_JSON_STARTS: Final = b'{["-0123456789tfn'


@dataclass(slots=True)
class Room:
    """Characters that are left on a page."""

    left: int = PAGE_CHARS_MAX

    def cut(self, text: str) -> str:
        """Return as much of a text as fits, and count it."""
        shown = text[: max(0, min(SHOWN_CHARS_MAX, self.left))]
        self.left -= len(shown)
        return shown


def shown(
    found: Field | None, form: str, room: Room, decoded: Mapping[bytes, Decoded] | None = None
) -> dict[str, Any] | None:
    """Return the `Value` of API.md; None for a null. `decoded`: values with schemas."""
    if found is None:
        return None
    registered = decoded.get(found.kept) if decoded and not found.is_cut else None
    if registered is not None and not registered.problem:
        chosen, text = "json", registered.text
    else:
        chosen, text = _text(found, form)
    part = room.cut(text)
    value: dict[str, Any] = {
        "form": chosen,
        "text": part,
        "bytes": str(found.size) if found.size >= 0 else None,
        "is_cut": found.is_cut or len(part) < len(text),
    }
    if registered is not None:
        value["schema"] = int.from_bytes(found.kept[1:PREFIX_BYTES], "big")
        value["problem"] = registered.problem or None
    return value


def _text(found: Field, form: str) -> tuple[str, str]:
    kept = found.kept
    if form == "hex":
        return "hex", kept[:SHOWN_CHARS_MAX].hex(" ")
    if form == "text":
        return "text", kept[:SHOWN_BYTES_MAX].decode("utf-8", "replace")
    if _is_json(found):
        return "json", kept.decode()
    try:
        return "text", _decoded(found)
    except UnicodeDecodeError:
        return "hex", kept[:SHOWN_CHARS_MAX].hex(" ")


def _decoded(found: Field) -> str:
    """Return the text, which may end within a character if it was cut. Raises
    UnicodeDecodeError."""
    kept = found.kept
    try:
        text = kept.decode()
    except UnicodeDecodeError as error:
        if not found.is_cut or error.start < len(kept) - 3:
            raise
        text = kept[: error.start].decode()
    if any(ord(char) < 32 and char not in "\t\n\r" for char in text[:SHOWN_CHARS_MAX]):
        raise UnicodeDecodeError("utf-8", kept, 0, 1, "control characters")
    return text


def _is_json(found: Field) -> bool:
    kept = found.kept
    if found.is_cut or len(kept) > SHOWN_CHARS_MAX or kept.lstrip()[:1] not in _STARTS:
        return False
    try:
        json.loads(kept.decode(), parse_int=_number, parse_float=_number, parse_constant=_constant)
    except (ValueError, RecursionError):
        return False
    return True


_STARTS: Final = frozenset(bytes([byte]) for byte in _JSON_STARTS)


def _number(text: str) -> int:
    """Accept a number of any length, without the cost of a conversion."""
    return len(text)


def _constant(text: str) -> None:
    raise ValueError(text)
