"""Patterns that clients choose: matched in a thread of its own, in turns between the askers.

What a pattern costs is bounded (`vdl.patterns`), but it is much beside what a request costs. So:

* Nothing is compiled or matched on the event loop.
* One thread does it, in slices of `SLICE_STEPS`. After each slice another asker has its turn.
* An asker rests `REST` times as long as its slices took: it never has more than a quarter of a
  processor. An asker with little to do does not notice.
* Only `WAITING_OF_ONE_MAX` questions of an asker wait, and `WAITING_MAX` in all; more are refused.
* A pattern that takes longer than `CPU_NS_MAX` with the texts of one question is refused.
* What was refused or accepted last is remembered: to ask again costs nothing.

Must not know: who the askers are, what is matched.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from typing import TypeVar

from vdl.clock import MS, Clock, Timer
from vdl.kafka.host import Compute
from vdl.patterns import PATTERN_BYTES_MAX, BadPattern, Pattern, compile_pattern

SLICE_STEPS = 4_000_000
"""Steps of RE2, at most, after which another asker has its turn: 20 ms at the worst."""
COMPILE_STEPS = 500
"""Steps that compiling a byte of a pattern counts for."""
REST = 3
REST_NS_MIN = 5 * MS
"""An asker that would rest for less goes on."""
CPU_NS_MAX = 2_000 * MS
WAITING_MAX = 1_000
WAITING_OF_ONE_MAX = 100
ASKERS_MAX = 1_000
"""Askers of whom it is remembered that they rest."""
COMPILED_MAX = 32
"""Compiled patterns that are kept; each takes up to `MEMORY_MAX` bytes."""
KNOWN_MAX = 1_024
"""Patterns that are known to be sound, and as many that are not."""

Found = list[str] | BadPattern
"""The texts that match all of a pattern, in the order they were given; or why it is refused."""
Question = tuple[str, Collection[str]]
"""A pattern, and texts."""
Value = TypeVar("Value")


class TooSlow(BadPattern):
    """A pattern that is sound, and takes too long with these texts."""


class Asked:
    """Questions of one asker, or of several who ask the same. Changed by `PatternWork` alone."""

    __slots__ = ("askers", "at", "done", "found", "is_over", "questions", "spent_ns", "texts")

    def __init__(self, questions: Sequence[Question], done: Callable[[list[Found]], None]) -> None:
        self.questions = [(pattern, list(texts)) for pattern, texts in questions]
        self.done = done
        self.askers: set[str] = set()
        self.found: list[Found] = []
        """By question, as far as there are answers."""
        self.texts: list[str] = []
        """Those of the present question that match."""
        self.at = 0
        """How many texts of the present question were looked at."""
        self.spent_ns = 0
        """On the present question."""
        self.is_over = False

    def cancel(self) -> None:
        """The answer is not wanted any more."""
        self.is_over = True


class _Asker:
    """One whose questions wait, or that rests."""

    __slots__ = ("rested_ns", "waiting")

    def __init__(self) -> None:
        self.waiting: deque[Asked] = deque()
        self.rested_ns = 0
        """It rests until then (ns, the clock's)."""


class PatternWork:
    """See the module. Called on the loop."""

    def __init__(
        self, compute: Compute, clock: Clock, cpu_ns: Callable[[], int] = lambda: 0
    ) -> None:
        """`compute`: the thread. `cpu_ns`: processor time of the thread it is called in (ns); the
        default is for servers on virtual time."""
        self._compute = compute
        self._clock = clock
        self._cpu_ns = cpu_ns
        self._askers: OrderedDict[str, _Asker] = OrderedDict()
        """In the order of their turns."""
        self._waiting = 0
        self._is_running = False
        self._is_starting = False
        self._timer: Timer | None = None
        self._compiled: OrderedDict[str, Pattern] = OrderedDict()
        """Use: by the one slice that runs, only."""
        self._sound: OrderedDict[str, None] = OrderedDict()
        self._refused: OrderedDict[str, BadPattern] = OrderedDict()
        self.slices = 0
        self.compiles = 0
        self.matches = 0
        """Texts that were looked at."""

    # --- what is known -----------------------------------------------------------------------
    def refusal(self, pattern: str) -> BadPattern | None:
        """Return why the pattern is refused, if that is known."""
        if len(pattern) > PATTERN_BYTES_MAX:
            return BadPattern(pattern[:80], f"more than {PATTERN_BYTES_MAX} bytes")
        return self._refused.get(pattern)

    def knows(self, pattern: str) -> bool:
        """Return whether the pattern was checked, and that is remembered."""
        return pattern in self._sound or self.refusal(pattern) is not None

    # --- questions ---------------------------------------------------------------------------
    def check(self, asker: str, patterns: Iterable[str], done: Callable[[], None]) -> bool:
        """Have patterns compiled, then `done()`: `refusal` says which are not sound. False: too
        much waits."""
        unknown = [(one, ()) for one in dict.fromkeys(patterns) if not self.knows(one)]
        if not unknown:
            done()
            return True
        return self.match(asker, unknown, lambda _: done()) is not None

    def match(
        self, asker: str, questions: Sequence[Question], done: Callable[[list[Found]], None]
    ) -> Asked | None:
        """Have texts matched, then `done` with the answer to each question; it may be called at
        once. None: too much waits, and `done` is not called."""
        present = self._askers.get(asker)
        waiting = 0 if present is None else len(present.waiting)
        if self._waiting >= WAITING_MAX or waiting >= WAITING_OF_ONE_MAX:
            return None
        asked = Asked(questions, done)
        self.join(asker, asked)
        return asked

    def join(self, asker: str, asked: Asked) -> None:
        """Have it answered, however much waits: in the turn of any of its askers. For patterns that
        were let in, which are bounded elsewhere."""
        if asked.is_over or asker in asked.askers:
            return
        asked.askers.add(asker)
        self._enqueue(asker, asked)
        self._start()

    def _enqueue(self, asker: str, asked: Asked) -> None:
        self._askers.setdefault(asker, _Asker()).waiting.append(asked)
        self._waiting += 1

    # --- turns -------------------------------------------------------------------------------
    def _start(self) -> None:
        if self._is_starting:
            return
        self._is_starting = True
        while not self._is_running:
            turn = self._next()
            if turn is None:
                break
            asker, asked = turn
            self._is_running = True
            self._compute(partial(self._slice, asked), partial(self._sliced, asker, asked))
        self._is_starting = False

    def _next(self) -> tuple[str, Asked] | None:
        """Take the next question of the first asker that need not rest; if all rest, wait."""
        now_ns = self._clock.now_ns()
        first_ns: int | None = None
        for name, asker in list(self._askers.items()):
            while asker.waiting and asker.waiting[0].is_over:
                asker.waiting.popleft()
                self._waiting -= 1
            left_ns = asker.rested_ns - now_ns
            if not asker.waiting:
                if left_ns <= 0 or len(self._askers) > ASKERS_MAX:
                    del self._askers[name]
            elif left_ns < REST_NS_MIN:
                self._askers.move_to_end(name)
                self._waiting -= 1
                return name, asker.waiting.popleft()
            elif first_ns is None or left_ns < first_ns:
                first_ns = left_ns
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if first_ns is not None:
            self._timer = self._clock.call_later(first_ns, self._rested)
        return None

    def _rested(self) -> None:
        self._timer = None
        self._start()

    def _sliced(self, name: str, asked: Asked, spent: int | BaseException) -> None:
        self._is_running = False
        self.slices += 1
        if isinstance(spent, BaseException):
            # The pattern was a client's: no exception that it causes may end the server.
            self._answer(asked, BadPattern(asked.questions[len(asked.found)][0], repr(spent)))
        else:
            now_ns = self._clock.now_ns()
            asker = self._askers.setdefault(name, _Asker())
            self._askers.move_to_end(name)
            asker.rested_ns = max(asker.rested_ns, now_ns) + REST * spent
        for (pattern, _), found in zip(asked.questions, asked.found, strict=False):
            self._remember(pattern, found)
        if len(asked.found) < len(asked.questions):
            if not asked.is_over:
                self._enqueue(name, asked)
        elif not asked.is_over:
            asked.is_over = True
            asked.done(asked.found)
        self._start()

    def _remember(self, pattern: str, found: Found) -> None:
        if isinstance(found, TooSlow) or len(pattern) > PATTERN_BYTES_MAX:
            return
        if isinstance(found, BadPattern):
            _put(self._refused, pattern, found, KNOWN_MAX)
        else:
            _put(self._sound, pattern, None, KNOWN_MAX)

    # --- in the thread -----------------------------------------------------------------------
    def _slice(self, asked: Asked) -> int:
        """Do one slice; return the processor time it took (ns)."""
        began_ns = self._cpu_ns()
        left, spent_ns = SLICE_STEPS, 0
        while left > 0 and len(asked.found) < len(asked.questions) and not asked.is_over:
            left -= self._do_some(asked, left)
            now_ns = self._cpu_ns() - began_ns
            asked.spent_ns += now_ns - spent_ns
            spent_ns = now_ns
            if asked.spent_ns > CPU_NS_MAX and len(asked.found) < len(asked.questions):
                pattern = asked.questions[len(asked.found)][0]
                self._answer(asked, TooSlow(pattern, "too many steps to match"))
        return spent_ns

    def _do_some(self, asked: Asked, left: int) -> int:
        """Go on with the present question; return the steps it took, about."""
        pattern, texts = asked.questions[len(asked.found)]
        taken = 0
        compiled = self._compiled.get(pattern)
        if compiled is None:
            self.compiles += 1
            taken += COMPILE_STEPS * len(pattern)
            try:
                compiled = compile_pattern(pattern)
            except BadPattern as error:
                self._answer(asked, error)
                return taken
        _put(self._compiled, pattern, compiled, COMPILED_MAX)
        while asked.at < len(texts) and taken < left:
            text = texts[asked.at]
            asked.at += 1
            self.matches += 1
            taken += compiled.size * (len(text) + 1)
            if compiled.matches(text):
                asked.texts.append(text)
        if asked.at == len(texts):
            self._answer(asked, asked.texts)
        return taken

    def _answer(self, asked: Asked, found: Found) -> None:
        asked.found.append(found)
        asked.texts, asked.at, asked.spent_ns = [], 0, 0


def _put(kept: OrderedDict[str, Value], key: str, value: Value, count_max: int) -> None:
    """Keep a value as the newest; the oldest goes."""
    kept[key] = value
    kept.move_to_end(key)
    if len(kept) > count_max:
        kept.popitem(last=False)
