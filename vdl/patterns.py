"""Regular expressions of clients and administrators, by RE2 and within a budget.

RE2 follows all alternatives at once, so the time of a match is linear in the text for every
pattern. Kafka's brokers use RE2/J, the same language (https://github.com/google/re2/wiki/Syntax),
for consumers' subscription patterns (KIP-848): back references and look-around are refused. A
pattern always has to match the whole text.

Linear is not cheap: `a{1000}` has a thousand states, and Python's lock is held while a pattern is
compiled. So the size of a pattern, its Unicode classes and the memory of its compiled form are
bounded. In the worst case compiling then costs 10 ms, and each byte of a text costs `Pattern.size`
steps of some 5 ns. Neither must run on the event loop: `vdl.kafka.limits.pattern_work` runs both in
a thread.

RE2 is loaded with the first pattern, because it takes 3 MB.

Does not depend on the texts that are matched, or on threads.
"""

from __future__ import annotations

from typing import Any

from vdl.errors import VdlError

PATTERN_BYTES_MAX = 4_096
"""Bound on a pattern in UTF-8."""
MEMORY_MAX = 1 << 20
"""Bytes of a compiled pattern and of RE2's cache while it matches."""
UNICODE_CLASSES_MAX = 64
r"""Maximum number of `\p` in a pattern: each stands for hundreds of ranges and costs 0.1 ms."""


class BadPattern(VdlError):
    """Raised for a pattern that is not a regular expression or costs too much."""

    def __init__(self, pattern: str, what: str) -> None:
        super().__init__(pattern, what)
        self.pattern = pattern
        self.what = what

    def __str__(self) -> str:
        return f"{self.what} in the regular expression {self.pattern[:80]!r}"


class Pattern:
    """A compiled pattern."""

    __slots__ = ("_compiled", "size")

    def __init__(self, compiled: Any) -> None:
        self._compiled = compiled
        self.size: int = compiled.programsize
        """Maximum number of steps for a byte of a text."""

    def matches(self, text: str) -> bool:
        """Return True if the whole text matches."""
        # Bytes, because after matching a `str` the binding counts characters.
        return self._compiled.fullmatch(text.encode("utf-8", "surrogatepass")) is not None


def compile_pattern(pattern: str) -> Pattern:
    """Compile a pattern within the bounds. Raise BadPattern if it exceeds them or is invalid.

    Must not run on the event loop.
    """
    try:
        encoded = pattern.encode()
    except UnicodeEncodeError:
        raise BadPattern(pattern, "a character that is not valid Unicode") from None
    if len(encoded) > PATTERN_BYTES_MAX:
        raise BadPattern(pattern, f"more than {PATTERN_BYTES_MAX} bytes")
    _check_escapes(pattern)
    import re2

    options = re2.Options()
    options.max_mem = MEMORY_MAX
    options.log_errors = False  # clients must not write to standard error
    options.never_capture = True
    try:
        return Pattern(re2.compile(encoded, options))
    except re2.error as error:
        what = error.args[0] if error.args else b""
        text = what.decode("utf-8", "replace") if isinstance(what, bytes) else str(what)
        raise BadPattern(pattern, text) from None
    finally:
        re2.purge()  # its cache would keep 128 patterns of any size


def _check_escapes(pattern: str) -> None:
    r"""Raise BadPattern for too many `\p`, and for `\C`, which RE2/J does not support."""
    classes = 0
    at = pattern.find("\\")
    while 0 <= at < len(pattern) - 1:
        escaped = pattern[at + 1]
        classes += escaped in "pP"
        if escaped == "C":
            raise BadPattern(pattern, "invalid escape sequence: \\C")
        if escaped == "Q":
            end = pattern.find("\\E", at + 2)
            at = len(pattern) if end < 0 else end
        at = pattern.find("\\", at + 2)
    if classes > UNICODE_CLASSES_MAX:
        raise BadPattern(pattern, f"more than {UNICODE_CLASSES_MAX} Unicode classes")
