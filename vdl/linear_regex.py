r"""Regular expressions of clients and administrators, in time linear in the text.

Python's `re` tries alternatives one after another: for some patterns the time grows exponentially
with the text, and a client chooses either. Here all alternatives are followed at once (Thompson's
construction): a character costs at most as many steps as the pattern has states, and these are
bounded. Which states follow which is remembered, so a character mostly costs one look-up.

The language is RE2's (https://github.com/google/re2/wiki/Syntax), which Kafka's brokers use for
what consumers subscribe by (KIP-848): characters, `.`, sets with ranges, classes `\d \w \s`,
`[:alpha:]`, `\pL` and their opposites, `\x41`, `\Q...\E`, groups with and without names, flags
`(?i)`, `|`, `*`, `+`, `?`, `{2,5}` (lazy or not is the same: only whether it matches counts), and
`^ $ \A \z \b \B`. A pattern always has to match all of the text. What RE2 refuses is refused: back
references and look-around cannot be matched so. Names of scripts (`\p{Greek}`) are not known.

Must not know: what is matched.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable
from enum import Enum

from vdl.errors import VdlError

STATES_MAX = 1_000
PATTERN_CHARS_MAX = 4_096
_DEPTH_MAX = 50
_REPEATS_MAX = 1_000
_REMEMBERED_MAX = 4_096
"""Steps that are remembered of one pattern; then all are forgotten."""

Accepts = Callable[[str], bool]


class BadPattern(VdlError):
    """A pattern that is no regular expression, or is not matched here."""

    def __init__(self, pattern: str, what: str) -> None:
        super().__init__(pattern, what)
        self.pattern = pattern
        self.what = what

    def __str__(self) -> str:
        return f"{self.what} in the regular expression {self.pattern!r}"


class Assertion(Enum):
    """What is asked of the place between two characters."""

    TEXT_BEGINS = "A"
    TEXT_ENDS = "z"
    LINE_BEGINS = "^"
    LINE_ENDS = "$"
    WORD_BORDER = "b"
    NO_WORD_BORDER = "B"

    def holds(self, before: str, after: str) -> bool:
        """Between these two; empty where the text begins or ends."""
        match self:
            case Assertion.TEXT_BEGINS:
                return not before
            case Assertion.TEXT_ENDS:
                return not after
            case Assertion.LINE_BEGINS:
                return before in ("", "\n")
            case Assertion.LINE_ENDS:
                return after in ("", "\n")
            case Assertion.WORD_BORDER:
                return _is_word(before) is not _is_word(after)
            case Assertion.NO_WORD_BORDER:
                return _is_word(before) is _is_word(after)


def _is_word(char: str) -> bool:
    return char == "_" or (char.isascii() and char.isalnum())


_CLASSES: dict[str, Accepts] = {
    "d": lambda char: char in "0123456789",
    "w": _is_word,
    "s": lambda char: char in " \t\n\r\f",
}
_POSIX: dict[str, Accepts] = {
    "alnum": lambda char: char.isascii() and char.isalnum(),
    "alpha": lambda char: char.isascii() and char.isalpha(),
    "ascii": str.isascii,
    "blank": lambda char: char in " \t",
    "cntrl": lambda char: char < " " or char == "\x7f",
    "digit": _CLASSES["d"],
    "graph": lambda char: "!" <= char <= "~",
    "lower": lambda char: "a" <= char <= "z",
    "print": lambda char: " " <= char <= "~",
    "punct": lambda char: "!" <= char <= "~" and not char.isalnum(),
    "space": lambda char: char in " \t\n\r\f\v",
    "upper": lambda char: "A" <= char <= "Z",
    "word": _is_word,
    "xdigit": lambda char: char in "0123456789abcdefABCDEF",
}
_CATEGORIES = {
    **dict.fromkeys("LMNPSZC"),
    **dict.fromkeys(
        major + minor
        for major, minors in (
            ("L", "ultmo"), ("M", "nce"), ("N", "dlo"), ("P", "cdseifo"), ("S", "mcko"),
            ("Z", "slp"), ("C", "cfos"),
        )
        for minor in minors
    ),
}  # fmt: skip
"""Unicode's, by one letter or two."""
_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f", "v": "\v", "a": "\a"}
_ASSERTIONS = {
    "A": Assertion.TEXT_BEGINS,
    "z": Assertion.TEXT_ENDS,
    "b": Assertion.WORD_BORDER,
    "B": Assertion.NO_WORD_BORDER,
}

_Step = tuple[Accepts | Assertion | None, tuple[int, ...]]


class Pattern:
    """A compiled pattern: states, and what leads from one to others."""

    __slots__ = ("_next", "_start", "_steps")

    def __init__(self, steps: list[_Step], start: int) -> None:
        self._steps = steps
        """By state: (what the next character must be, where it leads); None: without one. The
        first state is the end."""
        self._start = frozenset((start,))
        self._next: dict[tuple[frozenset[int], str, str, str], frozenset[int]] = {}
        """(states, the character before, this one, the one after that) → states: what is
        remembered. The start has no character yet, "" in its place."""

    def matches(self, text: str) -> bool:
        """Whether the whole text matches."""
        states = self._closed(self._start, "", text[:1])
        before = ""
        for at, char in enumerate(text):
            after = text[at + 1 : at + 2]
            states = self._follow(states, before, char, after)
            if not states:
                return False
            before = char
        return 0 in states

    def _follow(self, states: frozenset[int], before: str, char: str, after: str) -> frozenset[int]:
        key = states, before, char, after
        known = self._next.get(key)
        if known is not None:
            return known
        reached: set[int] = set()
        for state in states:
            accepts, targets = self._steps[state]
            if callable(accepts) and accepts(char):
                reached.update(targets)
        found = self._closed(reached, char, after)
        if len(self._next) >= _REMEMBERED_MAX:
            self._next.clear()
        self._next[key] = found
        return found

    def _closed(self, states: set[int] | frozenset[int], before: str, after: str) -> frozenset[int]:
        """With all states that are reached without a character, between these two."""
        found = set(states)
        waiting = list(states)
        while waiting:
            accepts, targets = self._steps[waiting.pop()]
            if accepts is None or (isinstance(accepts, Assertion) and accepts.holds(before, after)):
                new = [target for target in targets if target not in found]
                found.update(new)
                waiting += new
        return frozenset(found)


def compile_pattern(pattern: str) -> Pattern:
    """Raises BadPattern."""
    if len(pattern) > PATTERN_CHARS_MAX:
        raise BadPattern(pattern[:40], f"more than {PATTERN_CHARS_MAX} characters")
    compiler = _Compiler(pattern)
    return Pattern(compiler.steps, compiler.compile())


class _Compiler:
    """Reads a pattern into states, from the end to the front: each piece is a function from the
    state behind it to the one before it, so that a piece can be repeated."""

    def __init__(self, pattern: str) -> None:
        self.steps: list[_Step] = [(None, ())]
        self._pattern = pattern
        self._position = 0
        self._depth = 0
        self._copies = 0
        self._flags: frozenset[str] = frozenset()
        """Of the group that is read: i, m, s."""

    def compile(self) -> int:
        piece = self._alternatives()
        if self._position < len(self._pattern):
            raise self._bad("an unexpected )")
        return piece(0)

    def _bad(self, what: str) -> BadPattern:
        return BadPattern(self._pattern[:80], what)

    def _peek(self, count: int = 1) -> str:
        return self._pattern[self._position : self._position + count]

    def _take(self) -> str:
        char = self._peek()
        if not char:
            raise self._bad("an unexpected end")
        self._position += 1
        return char

    def _take_until(self, end: str) -> str:
        at = self._pattern.find(end, self._position)
        if at < 0:
            raise self._bad(f"a missing {end}")
        found = self._pattern[self._position : at]
        self._position = at + len(end)
        return found

    def _add(self, accepts: Accepts | Assertion | None, *targets: int) -> int:
        if len(self.steps) >= STATES_MAX:
            raise self._bad("too many states")
        self.steps.append((accepts, targets))
        return len(self.steps) - 1

    def _alternatives(self) -> Callable[[int], int]:
        self._depth += 1
        if self._depth > _DEPTH_MAX:
            raise self._bad("groups too deep")
        flags = self._flags
        branches = [self._sequence()]
        while self._peek() == "|":
            self._position += 1
            branches.append(self._sequence())
        self._flags = flags
        self._depth -= 1
        if len(branches) == 1:
            return branches[0]
        return lambda behind: self._add(None, *[branch(behind) for branch in branches])

    def _sequence(self) -> Callable[[int], int]:
        pieces: list[Callable[[int], int]] = []
        while self._peek() not in ("", "|", ")"):
            if self._peek(2) == "\\Q":
                self._position += 2
                has_end = "\\E" in self._pattern[self._position :]
                quoted = self._take_until("\\E") if has_end else self._pattern[self._position :]
                if not has_end:
                    self._position = len(self._pattern)
                pieces += [self._char(char) for char in quoted[:-1]]
                if quoted:
                    pieces.append(self._repeated(self._char(quoted[-1])))
                continue
            pieces.append(self._repeated(self._atom()))

        def sequence(behind: int) -> int:
            for piece in reversed(pieces):
                behind = piece(behind)
            return behind

        return sequence

    def _repeated(self, piece: Callable[[int], int]) -> Callable[[int], int]:
        bounds = self._bounds()
        if bounds is None:
            return piece
        if self._peek() == "?":
            self._position += 1
        if self._bounds() is not None:
            raise self._bad("a repetition of a repetition")
        low, high = bounds
        return lambda behind: self._repeat(piece, low, high, behind)

    def _bounds(self) -> tuple[int, int] | None:
        """How often what is before is repeated, from a sign that is taken; -1: without bound."""
        match self._peek():
            case "*":
                found = 0, -1
            case "+":
                found = 1, -1
            case "?":
                found = 0, 1
            case "{":
                return self._counts()
            case _:
                return None
        self._position += 1
        return found

    def _counts(self) -> tuple[int, int] | None:
        """The bounds of `{2,5}`; None: the brace is a character, and is not taken."""
        end = self._pattern.find("}", self._position)
        low, comma, high = self._pattern[self._position + 1 : max(end, 0)].partition(",")
        if not (low.isdecimal() and low.isascii()) or (high and not high.isdecimal()):
            return None
        self._position = end + 1
        bounds = int(low), (int(high) if high else -1) if comma else int(low)
        if max(bounds) > _REPEATS_MAX or 0 <= bounds[1] < bounds[0]:
            raise self._bad("an impossible count")
        return bounds

    def _repeat(self, piece: Callable[[int], int], low: int, high: int, behind: int) -> int:
        if high < 0:
            loop = self._add(None)
            self.steps[loop] = (None, (piece(loop), behind))
            behind = loop
        else:
            for _ in range(high - low):
                behind = self._add(None, self._copy(piece, behind), behind)
        for _ in range(low):
            behind = self._copy(piece, behind)
        return behind

    def _copy(self, piece: Callable[[int], int], behind: int) -> int:
        """One more of a repeated piece, which may have no states: `(){100}`."""
        self._copies += 1
        if self._copies > STATES_MAX:
            raise self._bad("too many repetitions")
        return piece(behind)

    # --- one piece ---------------------------------------------------------------------------
    def _atom(self) -> Callable[[int], int]:
        char = self._take()
        match char:
            case "(":
                return self._group()
            case "*" | "+" | "?":
                raise self._bad(f"an unexpected {char}")
            case "^":
                is_line = "m" in self._flags
                return self._assert(Assertion.LINE_BEGINS if is_line else Assertion.TEXT_BEGINS)
            case "$":
                is_line = "m" in self._flags
                return self._assert(Assertion.LINE_ENDS if is_line else Assertion.TEXT_ENDS)
            case "[":
                return self._one(self._set())
            case ".":
                return self._one(_anything if "s" in self._flags else _no_line_end)
            case "\\" if self._peek() in _ASSERTIONS:
                return self._assert(_ASSERTIONS[self._take()])
            case "\\":
                return self._one(self._folded(self._escape()))
            case _:
                return self._char(char)

    def _assert(self, assertion: Assertion) -> Callable[[int], int]:
        return lambda behind: self._add(assertion, behind)

    def _one(self, accepts: Accepts) -> Callable[[int], int]:
        return lambda behind: self._add(accepts, behind)

    def _char(self, char: str) -> Callable[[int], int]:
        return self._one(self._folded(char.__eq__))

    def _folded(self, accepts: Accepts) -> Accepts:
        """Where cases are the same, what accepts a character in any case of it."""
        if "i" not in self._flags:
            return accepts
        return lambda char: accepts(char) or accepts(char.lower()) or accepts(char.upper())

    def _group(self) -> Callable[[int], int]:
        before = self._flags
        if self._peek() == "?":
            self._position += 1
            if self._peek() == "<" or self._peek(2) == "P<":
                self._take_until("<")
                if not self._take_until(">").isidentifier():
                    raise self._bad("a bad name of a group")
            elif not self._set_flags():
                return lambda behind: behind
        piece = self._alternatives()
        if self._take() != ")":
            raise self._bad("a group without its end")
        self._flags = before
        return piece

    def _set_flags(self) -> bool:
        """Of `(?i-s:`, which begins a group: True; or of `(?i)`, for the rest of this one."""
        flags = set(self._flags)
        adds, is_any = True, False
        while True:
            char = self._take()
            if char == ":" or (char == ")" and is_any):
                self._flags = frozenset(flags)
                return char == ":"
            if char == "-" and adds:
                adds = False
            elif char in "imsU":
                (flags.add if adds else flags.discard)(char)
                is_any = True
            else:
                raise self._bad("a kind of group that is not supported")

    def _escape(self) -> Accepts:
        """What a backslash, which is taken, stands for with what follows."""
        char = self._take()
        known = _CLASSES.get(char.lower())
        if known is not None:
            return known if char.islower() else _opposite(known)
        if char in "pP":
            return self._category(is_opposite=char == "P")
        found = self._escaped_char(char)
        return found.__eq__

    def _escaped_char(self, char: str) -> str:
        if char in _ESCAPES:
            return _ESCAPES[char]
        if char == "x":
            digits = self._take_until("}") if self._peek() == "{" else self._take() + self._take()
            try:
                return chr(int(digits.removeprefix("{"), 16))
            except (ValueError, OverflowError):
                raise self._bad("an impossible number of a character") from None
        if char == "0":
            digits = ""
            while len(digits) < 2 and self._peek() in tuple("01234567"):
                digits += self._take()
            return chr(int(digits or "0", 8))
        if char.isascii() and not char.isalnum():
            return char
        raise self._bad(f"an escape \\{char} that is not supported")

    def _category(self, *, is_opposite: bool) -> Accepts:
        name = self._take()
        if name == "{":
            name = self._take_until("}")
        if name.startswith("^"):
            name, is_opposite = name[1:], not is_opposite
        if name not in _CATEGORIES:
            raise self._bad(f"a class of characters {name!r} that is not known")

        def accepts(char: str) -> bool:
            return unicodedata.category(char).startswith(name) is not is_opposite

        return accepts

    # --- sets ----------------------------------------------------------------------------------
    def _set(self) -> Accepts:
        is_opposite = self._peek() == "^"
        self._position += is_opposite
        members: list[Accepts] = []
        while True:
            if self._peek() == "]" and members:
                self._position += 1
                break
            members.append(self._member())
        accepts = self._folded(lambda char: any(member(char) for member in members))
        return _opposite(accepts) if is_opposite else accepts

    def _member(self) -> Accepts:
        if self._peek(2) == "[:":
            at = self._position
            self._position += 2
            name = self._take_until(":]")
            known = _POSIX.get(name.removeprefix("^"))
            if known is None:
                raise self._bad(f"a class of characters {self._pattern[at : at + 20]!r}")
            return _opposite(known) if name.startswith("^") else known
        first = self._end_of_range()
        if not isinstance(first, str):
            return first
        if self._peek() != "-" or self._peek(2) in ("-", "-]"):
            return first.__eq__
        self._position += 1
        last = self._end_of_range()
        if not isinstance(last, str) or last < first:
            raise self._bad("an impossible range")
        return _between(first, last)

    def _end_of_range(self) -> str | Accepts:
        """A character, or a class, which cannot end a range."""
        char = self._take()
        if char != "\\":
            return char
        if self._peek().lower() in _CLASSES or self._peek() in ("p", "P"):
            return self._escape()
        return self._escaped_char(self._take())


def _anything(_: str) -> bool:
    return True


def _no_line_end(char: str) -> bool:
    return char != "\n"


def _opposite(accepts: Accepts) -> Accepts:
    return lambda char: not accepts(char)


def _between(first: str, last: str) -> Accepts:
    return lambda char: first <= char <= last
