r"""Regular expressions of clients and administrators: RE2's, within a budget.

RE2 follows all alternatives at once, so a match takes time linear in the text, whatever the
pattern. Kafka's brokers use RE2/J, the same language
(https://github.com/google/re2/wiki/Syntax), for what consumers subscribe by (KIP-848): back
references and look-around are refused. A pattern always has to match all of the text.

Linear is not cheap: `a{1000}` has a thousand states, and Python's lock is held while a pattern is
compiled. So the size of a pattern, its classes of Unicode and the memory of what it becomes are
bounded. Compiling costs 10 ms then, the byte of a text `Pattern.size` steps of some 5 ns, both at
the worst. Neither is for the event loop: `vdl.kafka.limits.pattern_work` has both done in a thread.

RE2 is loaded with the first pattern: it takes 3 MB.

Must not know: what is matched, threads.
"""

from __future__ import annotations

from typing import Any

from vdl.errors import VdlError

PATTERN_BYTES_MAX = 4_096
"""In UTF-8."""
MEMORY_MAX = 1 << 20
"""Bytes of a compiled pattern and of what RE2 remembers while it matches."""
UNICODE_CLASSES_MAX = 64
r"""`\p` in a pattern: each stands for hundreds of ranges, and takes 0.1 ms to read."""


class BadPattern(VdlError):
    """A pattern that is no regular expression, or costs too much."""

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
        """Steps that a byte of a text costs at most."""

    def matches(self, text: str) -> bool:
        """Return whether the whole text matches."""
        # Bytes: what is matched in a `str` is counted in characters afterwards.
        return self._compiled.fullmatch(text.encode("utf-8", "surrogatepass")) is not None


def compile_pattern(pattern: str) -> Pattern:
    """Compile within the bounds. Not for the event loop. Raises BadPattern."""
    try:
        encoded = pattern.encode()
    except UnicodeEncodeError:
        raise BadPattern(pattern, "a character that does not exist") from None
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
        re2.purge()  # it would keep 128 of them, whatever their size


def _check_escapes(pattern: str) -> None:
    r"""Raise BadPattern for too many `\p`, and for `\C`, which RE2/J does not have."""
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
        raise BadPattern(pattern, f"more than {UNICODE_CLASSES_MAX} classes of Unicode")
