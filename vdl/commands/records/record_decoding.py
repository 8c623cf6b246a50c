"""Forms in which `vdl consume` shows keys and values.

| form | in text | in JSON |
|---|---|---|
| string | the bytes | `value`, or `value_base64` where they are no UTF-8 |
| json | compact JSON | `value`: that JSON |
| hex, base64 | digits | `value_hex`, `value_base64` |
| avro, protobuf, json-schema | compact JSON | `value`: that JSON |

The last three are decoded with the schema that the bytes name, from a schema registry
(`registered_forms.py`). Bytes that are not of the form are shown as a string, with the problem.

Does not depend on a client.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Protocol

import msgspec

from vdl.commands.records.record_json import bytes_field

PLAIN_FORMS = ("string", "json", "hex", "base64")
REGISTERED_FORMS = ("avro", "protobuf", "json-schema")


class Undecodable(ValueError):
    """Bytes that do not have the form that was asked for: why not."""


class Form(Protocol):
    """A form of keys or values."""

    def field(self, data: bytes) -> tuple[str, object]:
        """Return the suffix of the name in JSON, and the JSON value. Raises Undecodable."""

    def text(self, data: bytes) -> bytes:
        """Return the bytes that stand in text. Raises Undecodable."""


class StringForm:
    """Bytes as they are."""

    def field(self, data: bytes) -> tuple[str, object]:
        return bytes_field(data)

    def text(self, data: bytes) -> bytes:
        return data


class HexForm:
    """Hexadecimal digits."""

    def field(self, data: bytes) -> tuple[str, object]:
        return "_hex", data.hex()

    def text(self, data: bytes) -> bytes:
        return data.hex().encode()


class Base64Form:
    """Base64 (RFC 4648, §4)."""

    def field(self, data: bytes) -> tuple[str, object]:
        return "_base64", base64.b64encode(data).decode()

    def text(self, data: bytes) -> bytes:
        return base64.b64encode(data)


class DocumentForm:
    """A document that `decode` returns as JSON can hold it. `decode` raises Undecodable."""

    def __init__(self, decode: Callable[[bytes], object]) -> None:
        self._decode = decode

    def field(self, data: bytes) -> tuple[str, object]:
        return "", self._decode(data)

    def text(self, data: bytes) -> bytes:
        return msgspec.json.encode(self._decode(data))


def json_document(data: bytes) -> object:
    """Return the JSON value of bytes. Raises Undecodable."""
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Undecodable(f"no JSON: {error}") from None


def plain_form(name: str) -> Form:
    """Return the form of a name of PLAIN_FORMS."""
    forms: dict[str, Callable[[], Form]] = {
        "string": StringForm,
        "json": lambda: DocumentForm(json_document),
        "hex": HexForm,
        "base64": Base64Form,
    }
    return forms[name]()
