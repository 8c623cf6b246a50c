"""Records that `vdl consume` keeps: an expression over the record, and a regular expression.

The expression is JMESPath (https://jmespath.org/specification.html), a language without loops and
without access to the program. It sees one object: `topic`, `partition`, `offset`, `timestamp`,
`key`, `value` and `headers`, an object by name. The regular expression is RE2's, linear in the
length of the text; it is looked for in key and value.

Does not depend on a client.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from vdl.commands.records.record_decoding import Undecodable, json_document
from vdl.commands.records.record_json import Received, bytes_field

Look = Callable[[bytes], object]
"""Return the JSON value of bytes; raises Undecodable."""
_JMESPATH_MISSING = "--filter needs jmespath: pip install 'vdl-log[cli]'"


class BadFilter(ValueError):
    """An expression that is none: why."""


def json_or_text(data: bytes) -> object:
    """Return the JSON value of bytes; of other bytes the text, or base64."""
    try:
        return json_document(data)
    except Undecodable:
        return bytes_field(data)[1]


class Filter:
    """Records for which an expression is true, as JMESPath defines it: not null, false or empty."""

    def __init__(self, expression: str, *, key: Look, value: Look) -> None:
        """Compile an expression; `key` and `value` decode what it sees. Raises BadFilter."""
        try:
            import jmespath
            from jmespath import exceptions
        except ModuleNotFoundError:
            raise BadFilter(_JMESPATH_MISSING) from None
        try:
            self._compiled: Any = jmespath.compile(expression)
        except (exceptions.JMESPathError, RecursionError) as error:
            raise BadFilter(str(error) or "nested too deeply") from None
        self._errors = (exceptions.JMESPathError, TypeError, ValueError, RecursionError)
        self._key, self._value = key, value
        self.failed = 0
        """Records to which it could not be applied, such as a function on a wrong type."""
        self.problem = ""
        """The first reason."""

    def keeps(self, record: Received) -> bool:
        """Return True if the expression is true for the record; False if it cannot be applied."""
        document = {
            "topic": record.topic,
            "partition": record.partition,
            "offset": record.offset,
            "timestamp": record.timestamp_ms,
            "key": _seen(self._key, record.key),
            "value": _seen(self._value, record.value),
            "headers": {name: bytes_field(data)[1] for name, data in record.headers or []},
        }
        try:
            found = self._compiled.search(document)
        except self._errors as error:
            self.failed += 1
            self.problem = self.problem or str(error)
            return False
        return not (found is None or found is False or found in ("", [], {}))


def _seen(look: Look, data: bytes | None) -> object:
    if data is None:
        return None
    try:
        return look(data)
    except Undecodable:
        return bytes_field(data)[1]


def compile_grep(pattern: str) -> Callable[[Received], bool]:
    """Return a function that looks for an RE2 pattern in key and value. Raises BadFilter."""
    import re2

    options = re2.Options()
    options.log_errors = False
    options.never_capture = True
    # Bytes that are no UTF-8 match nothing in RE2's UTF-8; in Latin-1 each byte is a character, so
    # that mode serves only patterns of ASCII.
    if pattern.isascii():
        options.encoding = re2.Options.Encoding.LATIN1
    try:
        compiled = re2.compile(pattern.encode("utf-8", "surrogateescape"), options)
    except re2.error as error:
        told = error.args[0]
        raise BadFilter(told.decode() if isinstance(told, bytes) else str(told)) from None

    def keeps(record: Received) -> bool:
        return any(
            data is not None and compiled.search(data) is not None
            for data in (record.value, record.key)
        )

    return keeps
