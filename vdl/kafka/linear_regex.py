r"""Regular expressions of administrators over texts of clients, in time linear in the text.

Python's `re` tries alternatives one after another: for some patterns the time grows exponentially
with the text, and a client chooses the text. Here all alternatives are followed at once (Thompson's
construction): a character costs at most as many steps as the pattern has states, and these are
bounded.

The language: characters, `.`, `[a-z]`, `[^a-z]`, `\d \w \s` and their opposites, an escaped
character for itself, groups `( )` and `(?: )`, `|`, `*`, `+`, `?` (lazy or not is the same), `{2}`,
`{2,}`, `{2,5}`. A pattern always has to match all of the text; `^` in front and `$` at the end may
say so. Everything else is refused: back references and look-around cannot be matched so.

Must not know: what is matched.
"""

from __future__ import annotations

from collections.abc import Callable

from vdl.errors import VdlError

STATES_MAX = 200
PATTERN_CHARS_MAX = 512
_DEPTH_MAX = 20
_REPEATS_MAX = 100

Accepts = Callable[[str], bool]


class BadPattern(VdlError):
    """A pattern that is no regular expression, or is not matched here."""

    def __init__(self, pattern: str, what: str) -> None:
        super().__init__(pattern, what)
        self.pattern = pattern
        self.what = what

    def __str__(self) -> str:
        return f"{self.what} in the regular expression {self.pattern!r}"


_CLASSES: dict[str, Accepts] = {
    "d": lambda char: char in "0123456789",
    "w": lambda char: char == "_" or (char.isascii() and char.isalnum()),
    "s": lambda char: char in " \t\n\r\f\v",
}
_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


class Pattern:
    """A compiled pattern: states, and what leads from one to others."""

    def __init__(self, steps: list[tuple[Accepts | None, tuple[int, ...]]], start: int) -> None:
        self._steps = steps
        """By state: (what the next character must be, where it leads); None: without one. The
        first state is the end."""
        self._start = self._closure({start})

    def matches(self, text: str) -> bool:
        """Whether the whole text matches."""
        states = self._start
        for char in text:
            reached: set[int] = set()
            for state in states:
                accepts, targets = self._steps[state]
                if accepts is not None and accepts(char):
                    reached.update(targets)
            if not reached:
                return False
            states = self._closure(reached)
        return 0 in states

    def _closure(self, states: set[int]) -> set[int]:
        """With all states that are reached without a character."""
        found = set(states)
        waiting = list(states)
        while waiting:
            accepts, targets = self._steps[waiting.pop()]
            if accepts is None:
                new = [target for target in targets if target not in found]
                found.update(new)
                waiting += new
        return found


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
        self.steps: list[tuple[Accepts | None, tuple[int, ...]]] = [(None, ())]
        self._pattern = pattern
        self._position = 0
        self._depth = 0
        self._copies = 0

    def compile(self) -> int:
        if self._peek() == "^":
            self._position += 1
        piece = self._alternatives()
        if self._position < len(self._pattern):
            raise self._bad("an unexpected )")
        return piece(0)

    def _bad(self, what: str) -> BadPattern:
        return BadPattern(self._pattern, what)

    def _peek(self) -> str:
        return self._pattern[self._position : self._position + 1]

    def _take(self) -> str:
        char = self._peek()
        if not char:
            raise self._bad("an unexpected end")
        self._position += 1
        return char

    def _add(self, accepts: Accepts | None, *targets: int) -> int:
        if len(self.steps) >= STATES_MAX:
            raise self._bad("too many states")
        self.steps.append((accepts, targets))
        return len(self.steps) - 1

    def _alternatives(self) -> Callable[[int], int]:
        self._depth += 1
        if self._depth > _DEPTH_MAX:
            raise self._bad("groups too deep")
        branches = [self._sequence()]
        while self._peek() == "|":
            self._position += 1
            branches.append(self._sequence())
        self._depth -= 1
        if len(branches) == 1:
            return branches[0]
        return lambda behind: self._add(None, *[branch(behind) for branch in branches])

    def _sequence(self) -> Callable[[int], int]:
        pieces: list[Callable[[int], int]] = []
        while self._peek() not in ("", "|", ")"):
            if self._peek() == "$" and self._position + 1 == len(self._pattern):
                self._position += 1
                break
            pieces.append(self._repeated(self._atom()))

        def sequence(behind: int) -> int:
            for piece in reversed(pieces):
                behind = piece(behind)
            return behind

        return sequence

    def _repeated(self, piece: Callable[[int], int]) -> Callable[[int], int]:
        match self._peek():
            case "*":
                low, high = 0, -1
            case "+":
                low, high = 1, -1
            case "?":
                low, high = 0, 1
            case "{":
                low, high = self._counts()
            case _:
                return piece
        self._position += 1
        if self._peek() == "?":
            self._position += 1
        if self._peek() in ("*", "+", "?", "{"):
            raise self._bad("a repetition of a repetition")
        return lambda behind: self._repeat(piece, low, high, behind)

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

    def _counts(self) -> tuple[int, int]:
        """The bounds of `{2,5}`; -1: none. Stops before the brace."""
        end = self._pattern.find("}", self._position)
        text = self._pattern[self._position + 1 : max(end, 0)]
        low, comma, high = text.partition(",")
        if not low.isdecimal() or (high and not high.isdecimal()):
            raise self._bad("a brace that counts nothing")
        self._position = end
        bounds = int(low), (int(high) if high else -1) if comma else int(low)
        if max(bounds) > _REPEATS_MAX or 0 <= bounds[1] < bounds[0]:
            raise self._bad("an impossible count")
        return bounds

    def _atom(self) -> Callable[[int], int]:
        char = self._take()
        if char == "(":
            if self._peek() == "?":
                self._position += 1
                if self._take() != ":":
                    raise self._bad("a kind of group that is not supported")
            piece = self._alternatives()
            if self._take() != ")":
                raise self._bad("a group without its end")
            return piece
        if char in "*+?{^$":
            raise self._bad(f"an unexpected {char}")
        if char == "[":
            accepts = self._set()
        elif char == ".":
            accepts = _any
        elif char == "\\":
            accepts = self._escape()
        else:
            accepts = char.__eq__
        return lambda behind: self._add(accepts, behind)

    def _escape(self) -> Accepts:
        char = self._take()
        known = _CLASSES.get(char.lower())
        if known is not None:
            accepts = known
            return accepts if char.islower() else lambda other: not accepts(other)
        if char in _ESCAPES:
            return _ESCAPES[char].__eq__
        if char.isalnum():
            raise self._bad(f"an escape \\{char} that is not supported")
        return char.__eq__

    def _set(self) -> Accepts:
        is_negative = self._peek() == "^"
        self._position += is_negative
        members: list[Accepts] = []
        while True:
            char = self._take()
            if char == "]" and members:
                break
            if char == "[":
                raise self._bad("a set in a set")
            if char == "\\":
                members.append(self._escape())
                continue
            if self._peek() == "-" and self._pattern[
                self._position + 1 : self._position + 2
            ] not in (
                "",
                "]",
            ):
                self._position += 1
                last = self._take()
                if last in "\\[" or last < char:
                    raise self._bad("an impossible range")
                members.append(_between(char, last))
            else:
                members.append(char.__eq__)
        return lambda char: any(accepts(char) for accepts in members) is not is_negative


def _any(char: str) -> bool:
    return char != "\n"


def _between(first: str, last: str) -> Accepts:
    return lambda char: first <= char <= last
